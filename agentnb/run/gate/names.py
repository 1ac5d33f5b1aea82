"""The names in breakpoints (events, tools and phases), and the detection of misspelt names.

A run does not know all of its tools and phases: a nested loop may not have started, and a generator calls functions
that it does not declare. A name is therefore refused only if it is unknown and similar to a known name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from agentnb.core.errors import UsageError
from agentnb.core.events import EVENT_TYPES, CallProposed, CallStart, Event, ModelEnd
from agentnb.core.loop import Design
from agentnb.tools import as_tools

NEARLY = 0.8
"""The minimal similarity (difflib, 0 to 1) of a misspelt name and an event type."""
NEARLY_DECLARED = 0.75
"""The minimal similarity of a misspelt name and a tool or phase.

It is lower than for events, because these names are often short: two swapped letters of four result in this value.
"""


class Names(NamedTuple):
    """The names of the tools and phases that a run declares, and other accepted names (of functions and past calls)."""

    tools: frozenset[str] = frozenset()
    phases: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


def names_in(design: Design, events: Iterable[Event], *, is_complete: bool = False) -> Names:
    """Return the names in a loop, in the loops that it has as tools or agents, and in the recorded events.

    is_complete: the events are a complete recording. Their calls and phases then count as tools and phases; otherwise
    they are only accepted names (`others`).
    """
    declared = list(designs_in(design))
    phases = {phase for loop in declared for phase in loop.phases}
    tools: set[str] = set()
    functions: set[str] = set()
    for loop in declared:
        own_tools = as_tools(loop.tools)
        tools.update(own_tools, loop.activities)
        functions.update(loop.calls_class(loop, own_tools).may_call())
    called: set[str] = set()
    entered: set[str] = set()
    for event in events:
        called.update(_called(event))
        if event.phase is not None:
            entered.add(event.phase)
    if is_complete:
        return Names(frozenset(tools | called), frozenset(phases | entered), frozenset(functions))
    return Names(frozenset(tools), frozenset(phases), frozenset(functions | called | entered))


def designs_in(design: Design, seen: set[int] | None = None) -> Iterator[Design]:
    """Yield a loop and the loops that it has as tools or agents, at any depth, each once. `seen`: ids of loops."""
    seen = set() if seen is None else seen
    if id(design) in seen:
        return
    seen.add(id(design))
    yield design
    inside = [getattr(tool, "loop", None) for tool in as_tools(design.tools).values()]
    for loop in (*inside, *getattr(design, "sub_agents", ()), *getattr(design, "nested_loops", {}).values()):
        if isinstance(loop, Design):
            yield from designs_in(loop, seen)


def _called(event: Event) -> Iterator[str]:
    if isinstance(event, CallStart):
        yield event.name
    elif isinstance(event, CallProposed):
        yield event.call.name
    elif isinstance(event, ModelEnd):
        yield from (call.name for call in event.message.tool_calls)


def check_known_name(name: str, known: Callable[[], Names]) -> None:
    """Raise UsageError if a name is not a known event, tool or phase, but is similar to one.

    `known` returns the names. It is slow for a long recording, so it is not called if the name is an event type.
    """
    if name in EVENT_TYPES:
        return
    names = known()
    if name in names.tools or name in names.phases or name in names.others:
        return
    if nearest_event(name) is not None:
        declared = sorted({*names.tools, *names.phases})
        others = f" The run has the tools and phases {', '.join(declared)}." if declared else ""
        raise UsageError(
            f"{unknown_event(name)}{others} For a loop that has not started, use tool={name!r} or phase={name!r}."
        )
    _check(name, "tool or phase", {*names.tools, *names.phases})


def check_tools(called: Collection[str], known: Callable[[], Names]) -> None:
    """Raise UsageError if the name of a tool is unknown, but similar to a known one. `known` returns the names."""
    if called:
        names = known()
        for name in sorted(set(called) - names.tools - names.others):
            _check(name, "tool", names.tools)


def check_phases(entered: Collection[str], known: Callable[[], Names]) -> None:
    """Raise UsageError if the name of a phase is unknown, but similar to a known one. `known` returns the names."""
    if entered:
        names = known()
        for name in sorted(set(entered) - names.phases - names.others):
            _check(name, "phase", names.phases)


def _check(name: str, kind: str, declared: Collection[str]) -> None:
    if (meant := _nearest(name, declared, NEARLY_DECLARED)) is not None:
        raise UsageError(
            f"Cannot set a breakpoint at {name!r}: the run has no {kind} with that name. Did you mean {meant!r}?"
            f" The run has: {', '.join(sorted(declared))}."
        )


def nearest_event(name: str) -> str | None:
    """Return the event type that is most similar to a misspelt name, or None if none is similar enough."""
    return _nearest(name, EVENT_TYPES, NEARLY)


def _nearest(name: str, declared: Collection[str], nearly: float) -> str | None:
    from difflib import get_close_matches  # imported here, because only misspelt names need it

    spelt = {name.lower(): name for name in declared}
    found = get_close_matches(name.lower(), spelt, 1, nearly)
    return spelt[found[0]] if found else None


def unknown_event(name: str) -> str:
    """Return the error message for a name that is not an event type."""
    nearest = nearest_event(name)
    meant = f" Did you mean {nearest!r}?" if nearest is not None else ""
    types = ", ".join(EVENT_TYPES)
    return f"Cannot set a breakpoint at {name!r}: there is no such event type.{meant} The types are {types}."
