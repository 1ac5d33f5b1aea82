"""Breakpoints: at which facts a run pauses.

A breakpoint is a callable of `(event, state)`, a word (an event type, a tool's name, a phase), or conditions: the
type of the event, the call it is about, the phase it opens, what the run has cost. Conditions are data that is compared
with data, so that a form in a page may make them; one that is typed, `where`, is an expression over data
(`agentnb.run.expressions`).

They may be added, switched off and removed while the run goes on, from every thread. One that is hit stops the run at
the boundary after the event: what is in flight is finished, and nothing new starts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any, Literal, get_args

from agentnb.core.errors import FAILURES, UsageError
from agentnb.core.events import EVENT_TYPES, CallStart, Event
from agentnb.core.state import State
from agentnb.run.expressions import Holds, compile_condition

Predicate = Callable[[Event, State], object]
Operator = Literal["is", "is not", "contains", "matches", "above", "below"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)

NEVER = frozenset({"run_paused", "run_resumed", "run_end"})
"""Facts that nothing is paused at: the run stands there already."""


@dataclass(frozen=True, slots=True)
class Argument:
    """What an argument of a call must be like: `field` is its name, or names with dots into an object.

    `is` and `is not` compare JSON values, `contains` asks for part of a text or an item of a list, `matches` for a glob
    (`*`, `?`), `above` and `below` compare numbers. An argument that is not there fits nothing but `is not`.
    """

    field: str
    operator: Operator
    value: Any

    def __post_init__(self) -> None:
        if not self.field or self.operator not in OPERATORS:
            raise UsageError(f"A breakpoint's argument has a field and one of {', '.join(OPERATORS)}, not {self}.")
        if self.operator in ("above", "below") and not _is_number(self.value):
            raise UsageError(f"A breakpoint compares {self.field!r} with a number, not with {self.value!r}.")

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Whether these arguments are like that."""
        found: Any = arguments
        for name in self.field.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return self.operator == "is not"
            found = found[name]
        return _COMPARE[self.operator](found, self.value)

    def __str__(self) -> str:
        return f"{self.field} {self.operator} {json.dumps(self.value, ensure_ascii=False, default=str)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _contains(found: Any, value: Any) -> bool:
    if isinstance(found, str):
        return str(value) in found
    return isinstance(found, (Sequence, Mapping)) and any(_is(item, value) for item in found)


def _is(found: Any, value: Any) -> bool:
    return isinstance(found, bool) is isinstance(value, bool) and bool(found == value)


_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    "is": _is,
    "is not": lambda found, value: not _is(found, value),
    "contains": _contains,
    "matches": lambda found, value: fnmatchcase(found if isinstance(found, str) else json.dumps(found), str(value)),
    "above": lambda found, value: _is_number(found) and found > value,
    "below": lambda found, value: _is_number(found) and found < value,
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of these hold at an event that is stopped at; None asks for nothing.

    `event`: its type. `tool`: a glob for the name of the tool whose call it is about; `arguments`: what that call is
    like. Where no type is given with these, the call's start. `phase`: the phase it opens. `cost_above`: what the run
    has cost so far, in the currency of the model's `usage`; alone, the first event where that is so. `where`: an
    expression that holds.
    """

    event: str | None = None
    tool: str | None = None
    arguments: tuple[Argument, ...] = ()
    phase: str | None = None
    cost_above: float | None = None
    where: str | None = None
    _where: Holds | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Conditions:
        """The conditions in a mapping; an argument may be a mapping or a triple. Raises UsageError."""
        known = {one.name for one in fields(cls) if not one.name.startswith("_")}
        made = {name: value for name, value in given.items() if value is not None and value != ""}
        if unknown := set(made) - known:
            raise UsageError(f"A breakpoint knows {', '.join(sorted(known))}, not {', '.join(sorted(unknown))}.")
        if not made:
            raise UsageError("A breakpoint without a condition would stop at everything.")
        if made.get("event") not in (None, *EVENT_TYPES):
            raise UsageError(f"There is no breakpoint at {made['event']!r}; events are {', '.join(EVENT_TYPES)}.")
        if "cost_above" in made and not _is_number(made["cost_above"]):
            raise UsageError(f"A breakpoint's cost_above is a number, not {made['cost_above']!r}.")
        made["arguments"] = tuple(map(_argument, made.get("arguments", ())))
        if "where" in made:
            made["_where"] = compile_condition(made["where"])
        return cls(**made)

    @property
    def only_cost(self) -> bool:
        """Whether nothing else is asked for: it then holds from one event on."""
        return self.cost_above is not None and self == Conditions(cost_above=self.cost_above)

    def hold(self, event: Event, state: State, run: State) -> bool:
        """Whether they hold at an event of the loop that stands at `state`, in the run that stands at `run`."""
        about_call = self.tool is not None or self.arguments
        if event.type != (self.event or ("call_start" if about_call else event.type)):
            return False
        if self.phase is not None and event.phase != self.phase:
            return False
        if self.cost_above is not None and not run.usage.get("cost", 0) > self.cost_above:
            return False
        if self._where is None:
            return not about_call or any(self._fit(*call) for call in _calls(event, state))
        calls = list(_calls(event, state)) or [(None, {})]
        return any(self._where(event, state, run, call) and (not about_call or self._fit(*call)) for call in calls)

    def _fit(self, name: str | None, arguments: Mapping[str, Any]) -> bool:
        return fnmatchcase(name or "", self.tool or "*") and all(one.fits(arguments) for one in self.arguments)

    def __str__(self) -> str:
        words = [self.event or ""]
        words += [f"tool {self.tool}"] if self.tool is not None else []
        words += [str(one) for one in self.arguments]
        words += [f"phase {self.phase}"] if self.phase is not None else []
        words += [f"cost above {self.cost_above:g}"] if self.cost_above is not None else []
        words += [self.where] if self.where is not None else []
        return ", ".join(word for word in words if word)


def _argument(given: Any) -> Argument:
    if isinstance(given, Argument):
        return given
    try:
        return Argument(**given) if isinstance(given, Mapping) else Argument(*given)
    except TypeError as error:
        raise UsageError(f"A breakpoint's argument is (field, operator, value), not {given!r}.") from error


def _calls(event: Event, state: State) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """The calls an event is about: the one it names, or those that a model's answer proposes."""
    if isinstance(event, CallStart):
        yield event.name, event.arguments  # as it runs: a design may have put data in their place
        return
    if (call := state.calls.get(getattr(event, "call_id", ""))) is not None:
        yield call.name, call.arguments
    if (proposed := getattr(event, "call", None)) is not None and event.type == "call_proposed":
        yield proposed.name, proposed.arguments
    for made in getattr(getattr(event, "message", None), "tool_calls", ()):
        yield made.name, made.arguments


@dataclass(eq=False)
class Breakpoint:
    """One breakpoint: its `number`, what it is at in words, whether it is `enabled`, how often and where it was hit.

    `nth`: it stops at that hit and at those behind it, and passes over the ones before. Switching it on makes one that
    is at a cost alone look for that anew.
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
        """Whether the run is to stop behind this event."""
        if not self._enabled or self._is_spent or not self._holds(event, state, run):
            return False
        self._is_spent = self._once
        self.hits += 1
        self.last = event.seq
        return self.hits >= self.nth


class Breakpoints(Sequence[Breakpoint]):
    """The breakpoints of a run. Safe from every thread, while the run goes on."""

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self._all: tuple[Breakpoint, ...] = ()
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
        label, holds, once = _read(spec, conditions)
        with self._lock:
            self._made += 1
            made = Breakpoint(self._made, label, nth=nth, _holds=holds, _once=once)
            self._all = (*self._all, made)
        self.added()
        return made

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
        """The first breakpoint that stops the run behind this event; all that are hit count it."""
        if event.type in NEVER:
            return None
        hits = [one for one in self._all if self._is_hit(one, event, state, run)]
        return hits[0] if hits else None

    def _is_hit(self, one: Breakpoint, event: Event, state: State, run: State) -> bool:
        try:
            return one.is_hit(event, state, run)
        except FAILURES as error:
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


def _read(spec: Any, conditions: Mapping[str, Any]) -> tuple[str, Callable[[Event, State, State], object], bool]:
    """What a breakpoint is called, when it holds, and whether that is to be said once."""
    if spec is not None and conditions:
        raise UsageError("A breakpoint is made from a callable or a word, or from conditions, not from both.")
    if isinstance(spec, str):
        if not spec or any(sign in spec for sign in "=<>()\"'"):
            raise UsageError(f"A word is an event type, a tool's name or a phase; {spec!r} would be where={spec!r}.")
        return spec, lambda event, state, run: _is_word(spec, event), False
    if callable(spec):
        return getattr(spec, "__name__", "") or repr(spec), lambda event, state, run: spec(event, run), False
    if spec is not None and not isinstance(spec, Mapping):
        raise UsageError(f"A breakpoint is a callable of (event, state), a word or a mapping, not {spec!r}.")
    made = Conditions.of(spec if spec is not None else conditions)
    return str(made), made.hold, made.only_cost


def _is_word(word: str, event: Event) -> bool:
    """A word: an event type, a tool's name, or a phase."""
    return event.type == word or event.phase == word or (isinstance(event, CallStart) and event.name == word)
