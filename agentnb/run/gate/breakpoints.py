"""Breakpoints: the events at which a run pauses.

A breakpoint is a callable of `(event, state)`, a name (an event type, a tool, a phase), or conditions
(`agentnb.run.gate.conditions`). Breakpoints can be added, disabled and removed from every thread while the run
advances.

A breakpoint at the start of a call (a tool, a function of a generator, `call_start`, a phase that the call opens) stops
the run before the call starts, once for each call. A breakpoint at any other event stops the run directly after the
event. In both cases, effects in flight finish and no new effect starts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.errors import THROWN_IN, UsageError
from agentnb.core.events import CallStart, Event
from agentnb.core.maybe_async import is_async
from agentnb.core.state import State
from agentnb.run.gate.conditions import Conditions
from agentnb.run.gate.names import Names, check_known_name, check_phases, check_tools

NEVER = frozenset({"run_paused", "run_resumed", "run_end"})
"""Event types at which no breakpoint stops the run: a pause, its end, and the end of the run."""


@dataclass(eq=False)
class Breakpoint:
    """A breakpoint: its `number`, its `label`, its state (`enabled`) and its hits.

    `hits` is the number of hits. `last` is the number of the last recorded event at the time of the last hit; None
    before the first hit. `nth`: the first hit that stops the run; earlier hits are only counted, later hits stop the
    run too. A breakpoint whose only condition is a cost is hit once; enabling it again allows another hit.
    """

    number: int
    label: str
    hits: int = 0
    last: int | None = None
    nth: int = 1
    _holds: Callable[[Event, State, State], object] = field(repr=False, default=lambda *_: False)
    _once: bool = field(repr=False, default=False)
    _enabled: bool = field(repr=False, default=True)
    _is_spent: bool = field(repr=False, default=False)

    @property
    def enabled(self) -> bool:
        """True if the breakpoint can stop the run. Assigning it allows another hit of a cost breakpoint."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled, self._is_spent = bool(value), False

    def start_over(self) -> None:
        """Reset the hits, because the events are read again from the first one."""
        self.hits, self.last, self._is_spent = 0, None, False

    def is_hit(self, event: Event, state: State, run: State) -> bool:
        """Count a hit at this event; return True if the run must stop there.

        event: a recorded event, or the CallStart that would be recorded next. state: the state of the event's loop.
        run: the state of the whole run.
        """
        if not self._enabled or self._is_spent or not self._holds(event, state, run):
            return False
        self._is_spent = self._once
        self.hits += 1
        self.last = event.seq - isinstance(event, CallStart)
        return self.hits >= self.nth


class Breakpoints(Sequence[Breakpoint]):
    """The breakpoints of a run. Thread-safe, also while the run advances."""

    def __init__(self, specs: Iterable[Any] = (), known: Callable[[], Names] = Names) -> None:
        """`specs`: the specs of the first breakpoints. `known` returns the known names of tools and phases."""
        self._all: tuple[Breakpoint, ...] = ()
        self._known = known
        self._made = 0
        self._lock = threading.Lock()
        self.added: Callable[[], object] = lambda: None
        """A callback, called after a breakpoint has been added."""
        self.failed: Callable[[Breakpoint, Event, BaseException], object] | None = None
        """A callback for a breakpoint whose function has raised an error. If None, the error propagates."""
        for spec in specs:
            self.add(spec)

    def add(self, spec: Any = None, *, nth: int = 1, **conditions: Any) -> Breakpoint:
        """Add a breakpoint and return it.

        spec: a callable of `(event, state)`, a name (an event type, a tool, a phase), or a mapping of conditions.
        conditions: instead of `spec`; `event`, `tool`, `arguments` (each `(field, operator, value)`), `phase`,
        `cost_above` and `where`, an expression of event, tool, arguments, phase, turn, cost, usage, values and
        messages. The run stops at an event if all conditions hold. nth: the first hit that stops the run, from 1.

        Raises UsageError if the arguments do not describe a breakpoint, or if a name is probably misspelt.
        """
        if type(nth) is not int or nth < 1:
            raise UsageError(f"nth must be the number of the hit that stops the run, 1 or more, not {nth!r}.")
        label, holds, once = self._read(spec, conditions)
        with self._lock:
            self._made += 1
            made = Breakpoint(self._made, label, nth=nth, _holds=holds, _once=once)
            self._all = (*self._all, made)
        self.added()
        return made

    def _read(
        self, spec: Any, conditions: Mapping[str, Any]
    ) -> tuple[str, Callable[[Event, State, State], object], bool]:
        """Return the label of a breakpoint, its predicate, and True if it is hit only once. Raises UsageError."""
        if spec is not None and conditions:
            raise UsageError("A breakpoint has either a callable or a name, or conditions, not both.")
        if isinstance(spec, str):
            if not spec or any(sign in spec for sign in "=<>()\"'"):
                raise UsageError(
                    f"{spec!r} is not the name of an event type, a tool or a phase."
                    f" Pass an expression as where={spec!r}."
                )
            check_known_name(spec, self._known)
            return spec, lambda event, state, run: _has_name(spec, event), False
        if callable(spec):
            if is_async(spec):  # the call would return an awaitable, which is always true
                raise UsageError(
                    f"The function of a breakpoint must not be async, because its result is not awaited: {spec!r}."
                )
            return getattr(spec, "__name__", "") or repr(spec), lambda event, state, run: spec(event, run), False
        if spec is not None and not isinstance(spec, Mapping):
            raise UsageError(f"A breakpoint must be a callable of (event, state), a name or a mapping, not {spec!r}.")
        made = Conditions.of(spec if spec is not None else conditions)
        check_tools(made.tools, self._known)
        check_phases(made.phases, self._known)
        return str(made), made.hold, made.only_cost

    def remove(self, breakpoint: Breakpoint | int) -> None:
        """Remove a breakpoint, given as an object or by its number. Raises UsageError if it does not exist."""
        removed = self.by_number(breakpoint) if isinstance(breakpoint, int) else breakpoint
        with self._lock:
            if removed not in self._all:
                raise UsageError(f"The breakpoint {removed.number} has been removed.")
            self._all = tuple(kept for kept in self._all if kept is not removed)

    def by_number(self, number: int) -> Breakpoint:
        """Return the breakpoint with this number. Raises UsageError if there is none."""
        found = next((breakpoint for breakpoint in self._all if breakpoint.number == number), None)
        if found is None:
            raise UsageError(f"There is no breakpoint {number}.")
        return found

    def start_over(self) -> None:
        """Reset the hits of all breakpoints, before a recording is read from its first event."""
        for breakpoint in self._all:
            breakpoint.start_over()

    def hit(self, event: Event, state: State, run: State) -> Breakpoint | None:
        """Return the first breakpoint that stops the run at this event, or None. Every breakpoint counts its hit.

        event: the event that was recorded last, or the CallStart that would be recorded next.
        """
        if event.type in NEVER:
            return None
        hits = [breakpoint for breakpoint in self._all if self._is_hit(breakpoint, event, state, run)]
        return hits[0] if hits else None

    def _is_hit(self, breakpoint: Breakpoint, event: Event, state: State, run: State) -> bool:
        try:
            return breakpoint.is_hit(event, state, run)
        except (asyncio.CancelledError, *THROWN_IN):
            raise
        except BaseException as error:
            if self.failed is None:
                raise
            self.failed(breakpoint, event, error)
            return False

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"Breakpoints({list(self._all)})"


def _has_name(name: str, event: Event) -> bool:
    """Return True if the name is the type of the event, its phase, or the tool of the call that it starts."""
    return event.type == name or event.phase == name or (isinstance(event, CallStart) and event.name == name)
