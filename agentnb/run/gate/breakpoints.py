"""Breakpoints: at which events a run pauses.

A breakpoint is a callable of `(event, state)`, a word (an event type, a tool's name, a phase), or conditions
(`agentnb.run.gate.conditions`).

They may be added, switched off and removed while the run goes on, from every thread. One at the start of a call (a
tool, a function of a generator, `call_start`, a phase that the call opens) stops the run before the call starts, once
for each call. One at any other event stops the run right behind the event. Either way, what is in flight is finished,
and nothing new starts.
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
from agentnb.run.gate.words import Names, check_phases, check_tools, check_word

NEVER = frozenset({"run_paused", "run_resumed", "run_end"})
"""Facts that nothing is paused at: the run stands there already."""


@dataclass(eq=False)
class Breakpoint:
    """One breakpoint: its `number`, what it is at in words, whether it is `enabled`, how often and where it was hit.

    `last` is the number of the event behind which the run was then. `nth`: it stops at that hit and at those behind it,
    and passes over the ones before. Switching it on makes one that is at a cost alone look for that anew.
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
        """Whether it stops the run."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled, self._is_spent = bool(value), False

    def start_over(self) -> None:
        """Forget its hits: it is looked for from the beginning."""
        self.hits, self.last, self._is_spent = 0, None, False

    def is_hit(self, event: Event, state: State, run: State) -> bool:
        """Whether the run is to stop at this event: before the start of a call, behind any other."""
        if not self._enabled or self._is_spent or not self._holds(event, state, run):
            return False
        self._is_spent = self._once
        self.hits += 1
        self.last = event.seq - isinstance(event, CallStart)
        return self.hits >= self.nth


class Breakpoints(Sequence[Breakpoint]):
    """The breakpoints of a run. Safe from every thread, while the run goes on."""

    def __init__(self, given: Iterable[Any] = (), known: Callable[[], Names] = Names) -> None:
        """`known` gives the names of the tools and phases that the run is known to have."""
        self._all: tuple[Breakpoint, ...] = ()
        self._known = known
        self._made = 0
        self._lock = threading.Lock()
        self.added: Callable[[], object] = lambda: None
        """Called when there is one: a run that has none is not looked at."""
        self.failed: Callable[[Breakpoint, Event, BaseException], object] | None = None
        """Called with one whose function has failed; the error is raised where this is None."""
        for spec in given:
            self.add(spec)

    def add(self, spec: Any = None, *, nth: int = 1, **conditions: Any) -> Breakpoint:
        """Stop at what `spec` says, a callable of `(event, state)`, a word or a mapping, or at these conditions.

        The conditions are `event`, `tool`, `arguments` (each `(field, operator, value)`), `phase`, `cost_above` and
        `where`, an expression of event, tool, arguments, phase, turn, cost, usage, values and messages; all of them
        hold where it stops. nth: which time it stops first. Raises UsageError.
        """
        if type(nth) is not int or nth < 1:
            raise UsageError(f"nth is which hit stops the run, 1 for the first, not {nth!r}.")
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
        """What a breakpoint is called, when it holds, and whether that is to be said once. Raises UsageError."""
        if spec is not None and conditions:
            raise UsageError("A breakpoint is made from a callable or a word, or from conditions, not from both.")
        if isinstance(spec, str):
            if not spec or any(sign in spec for sign in "=<>()\"'"):
                raise UsageError(
                    f"A word is an event type, a tool's name or a phase; {spec!r} would be where={spec!r}."
                )
            check_word(spec, self._known)
            return spec, lambda event, state, run: _is_word(spec, event), False
        if callable(spec):
            if is_async(spec):  # what it gives would be something to await, which is always true
                raise UsageError(
                    f"A breakpoint is asked while the run stands at an event, and cannot be async: {spec!r}."
                )
            return getattr(spec, "__name__", "") or repr(spec), lambda event, state, run: spec(event, run), False
        if spec is not None and not isinstance(spec, Mapping):
            raise UsageError(f"A breakpoint is a callable of (event, state), a word or a mapping, not {spec!r}.")
        made = Conditions.of(spec if spec is not None else conditions)
        check_tools(made.tools, self._known)
        check_phases(made.phases, self._known)
        return str(made), made.hold, made.only_cost

    def remove(self, breakpoint: Breakpoint | int) -> None:
        """Take a breakpoint away, which may be given by its number. Raises UsageError where there is no such."""
        gone = self.by_number(breakpoint) if isinstance(breakpoint, int) else breakpoint
        with self._lock:
            if gone not in self._all:
                raise UsageError(f"There is no breakpoint {gone.number} any more.")
            self._all = tuple(one for one in self._all if one is not gone)

    def by_number(self, number: int) -> Breakpoint:
        """The breakpoint of this number. Raises UsageError where there is none."""
        found = next((one for one in self._all if one.number == number), None)
        if found is None:
            raise UsageError(f"There is no breakpoint {number}.")
        return found

    def start_over(self) -> None:
        """Forget all hits: a recording is gone through from its beginning."""
        for one in self._all:
            one.start_over()

    def hit(self, event: Event, state: State, run: State) -> Breakpoint | None:
        """Return the first breakpoint that stops the run at this event; all that are hit count it.

        event: one that has just been recorded, or a CallStart that would be recorded next.
        """
        if event.type in NEVER:
            return None
        hits = [one for one in self._all if self._is_hit(one, event, state, run)]
        return hits[0] if hits else None

    def _is_hit(self, one: Breakpoint, event: Event, state: State, run: State) -> bool:
        try:
            return one.is_hit(event, state, run)
        except (asyncio.CancelledError, *THROWN_IN):
            raise
        except BaseException as error:
            if self.failed is None:
                raise
            self.failed(one, event, error)
            return False

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"Breakpoints({list(self._all)})"


def _is_word(word: str, event: Event) -> bool:
    """A word: an event type, a tool's name, or a phase."""
    return event.type == word or event.phase == word or (isinstance(event, CallStart) and event.name == word)
