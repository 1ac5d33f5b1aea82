"""Conditions: the properties of the events at which a breakpoint stops.

A condition concerns the type of the event, its call, the phase that it opens, or the cost of the run. Conditions are
plain data, so that a form in a page can build them. The condition `where` is an expression that a user types
(`agentnb.run.gate.expressions`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any, Literal, get_args

from agentnb.core.errors import UsageError, printable
from agentnb.core.events import EVENT_TYPES, CallStart, Event
from agentnb.core.state import State
from agentnb.run.gate.expressions import Call, Condition, compile_condition
from agentnb.run.gate.names import unknown_event

Operator = Literal["is", "is not", "contains", "matches", "above", "below"]
OPERATORS: tuple[Operator, ...] = get_args(Operator)


@dataclass(frozen=True, slots=True)
class Argument:
    """A condition for one argument of a call.

    `field` is the name of the argument, or a path into an object with dots between the names. `is` and `is not` compare
    JSON values. `contains` finds a part of a string, an item of a list or a key of an object. `matches` takes a glob
    (`*`, `?`). `above` and `below` compare numbers. If the argument is missing, only `is not` holds.

    Raises UsageError if the field is empty, the operator is unknown, or a number is compared with another type.
    """

    field: str
    operator: Operator
    value: Any

    def __post_init__(self) -> None:
        if not self.field or self.operator not in OPERATORS:
            raise UsageError(f"A breakpoint's argument must have a field and one of {', '.join(OPERATORS)}: {self}.")
        if self.operator in ("above", "below") and not _is_number(self.value):
            raise UsageError(f"A breakpoint can compare {self.field!r} with a number only, not with {self.value!r}.")

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Return True if the condition holds for these arguments of a call."""
        found: Any = arguments
        for name in self.field.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return self.operator == "is not"
            found = found[name]
        return _COMPARE[self.operator](found, self.value)

    def __str__(self) -> str:
        return printable(f"{self.field} {self.operator} {json.dumps(self.value, ensure_ascii=False, default=str)}")


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
    """The conditions of a breakpoint, which must all hold at an event. None means no condition.

    `event`: the type of the event. `tool`: a glob for the tool of the event's call. `arguments`: the conditions for the
    arguments of that call. `phase`: the phase that the event opens. `cost_above`: a bound for the cost of the run so
    far, in the currency of the model's `usage`; as the only condition, it stops the run at the first event above the
    bound. `where`: an expression.

    Conditions for a call (`tool`, `arguments`, or a `where` that names either) without a condition for the event hold
    only at the start of the call, and so once for each call.
    """

    event: str | None = None
    tool: str | None = None
    arguments: tuple[Argument, ...] = ()
    phase: str | None = None
    cost_above: float | None = None
    where: str | None = None
    _where: Condition | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Conditions:
        """Return the conditions in a mapping. None and "" are ignored; each argument may be a mapping or a triple.

        Raises UsageError if a condition is unknown or not valid, or if there is none.
        """
        known = {item.name for item in fields(cls) if not item.name.startswith("_")}
        made = {name: value for name, value in spec.items() if value is not None and value != ""}
        if unknown := set(made) - known:
            raise UsageError(
                f"A breakpoint has no condition {', '.join(sorted(unknown))}; the conditions are"
                f" {', '.join(sorted(known))}."
            )
        if not made:
            raise UsageError("A breakpoint without a condition would stop at every event.")
        if made.get("event") not in (None, *EVENT_TYPES):
            raise UsageError(unknown_event(str(made["event"])))
        if "cost_above" in made and not _is_number(made["cost_above"]):
            raise UsageError(f"A breakpoint's cost_above must be a number, not {made['cost_above']!r}.")
        made["arguments"] = tuple(map(_argument, made.get("arguments", ())))
        if "where" in made:
            made["_where"] = compile_condition(made["where"])
        return cls(**made)

    @property
    def tools(self) -> list[str]:
        """The exact names of tools in the conditions. A glob is not a name."""
        named = [self.tool] if self.tool is not None and not any(sign in self.tool for sign in "*?[") else []
        return named + (sorted(self._where.tools) if self._where is not None else [])

    @property
    def phases(self) -> list[str]:
        """The names of phases in the conditions."""
        named = [self.phase] if self.phase is not None else []
        return named + (sorted(self._where.phases) if self._where is not None else [])

    @property
    def only_cost(self) -> bool:
        """True if `cost_above` is the only condition. Once it holds, it holds at all later events."""
        return self.cost_above is not None and self == Conditions(cost_above=self.cost_above)

    def hold(self, event: Event, state: State, run: State) -> bool:
        """Return True if all conditions hold at an event.

        state: the state of the event's loop. run: the state of the whole run.
        """
        where = self._where
        about_call = self.tool is not None or self.arguments
        names_call = where is not None and not where.names.isdisjoint(("tool", "arguments"))
        names_event = self.event is not None or (where is not None and "event" in where.names)
        if self.event is not None and event.type != self.event:
            return False
        # Several events concern one call. Without a condition for the event, only the start of the call counts.
        if (about_call or names_call) and not names_event and event.type != "call_start":
            return False
        if self.phase is not None and event.phase != self.phase:
            return False
        if self.cost_above is not None and not run.usage.get("cost", 0) > self.cost_above:
            return False
        # An event can concern several calls (a model's answer). One call must fulfil all conditions.
        if where is None:
            return not about_call or any(self._fit(*call) for call in _calls(event, state))
        calls = list(_calls(event, state)) or [(None, {})]
        return any(where.holds(event, state, run, call) and (not about_call or self._fit(*call)) for call in calls)

    def _fit(self, name: str | None, arguments: Mapping[str, Any]) -> bool:
        return fnmatchcase(name or "", self.tool or "*") and all(item.fits(arguments) for item in self.arguments)

    def __str__(self) -> str:
        parts = [self.event or ""]
        parts += [f"tool {self.tool}"] if self.tool is not None else []
        parts += [str(item) for item in self.arguments]
        parts += [f"phase {self.phase}"] if self.phase is not None else []
        parts += [f"cost above {self.cost_above:g}"] if self.cost_above is not None else []
        parts += [self.where] if self.where is not None else []
        return printable(", ".join(part for part in parts if part))


def _argument(spec: Any) -> Argument:
    try:
        return Argument(**spec) if isinstance(spec, Mapping) else Argument(*spec)
    except TypeError as error:
        raise UsageError(f"A breakpoint's argument must be (field, operator, value), not {spec!r}.") from error


def _calls(event: Event, state: State) -> Iterator[Call]:
    """Yield the calls that an event concerns: the call that it names, or the calls that a model's answer proposes."""
    if isinstance(event, CallStart):
        yield event.name, event.arguments  # the resolved arguments: a design may have replaced references by data
        return
    if (call := state.calls.get(getattr(event, "call_id", ""))) is not None:
        yield call.name, call.arguments
    if (proposed := getattr(event, "call", None)) is not None and event.type == "call_proposed":
        yield proposed.name, proposed.arguments
    for made in getattr(getattr(event, "message", None), "tool_calls", ()):
        yield made.name, made.arguments
