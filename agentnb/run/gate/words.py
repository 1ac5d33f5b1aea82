"""The names that a breakpoint may be at: events, tools and phases; and which one a misspelt name was meant to be.

A run does not know all of its tools and phases: a loop inside it may not have begun, and a generator calls functions
that nothing declares. So a name is refused only where it is not known and is nearly one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from agentnb.core.errors import UsageError
from agentnb.core.events import EVENT_TYPES, CallProposed, CallStart, Event, ModelEnd
from agentnb.core.loop import Design
from agentnb.tools import as_tools

NEARLY = 0.8
"""How much alike a name and an event's are where the one may be the other, misspelt (difflib)."""
NEARLY_DECLARED = 0.75
"""The same for a tool's or a phase's, which are often short: two letters of four that changed places are that alike."""


class Names(NamedTuple):
    """The tools and phases that a run declares, and other names that are no mistake: of functions, of calls made."""

    tools: frozenset[str] = frozenset()
    phases: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


def names_in(design: Design, events: Iterable[Event], *, is_whole: bool = False) -> Names:
    """The names of a loop, of the loops that it has as tools or agents, and of what is recorded.

    is_whole: nothing more will happen than the events tell, so what they name is all that there is.
    """
    declared = list(_designs(design, set()))
    tools = {name for one in declared for name in (*as_tools(one.tools), *one.activities)}
    phases = {phase for one in declared for phase in one.phases}
    functions = {name for one in declared for name in one.may_call()}
    called: set[str] = set()
    entered: set[str] = set()
    for event in events:
        called.update(_called(event))
        if event.phase is not None:
            entered.add(event.phase)
    if is_whole:
        return Names(frozenset(tools | called), frozenset(phases | entered), frozenset(functions))
    return Names(frozenset(tools), frozenset(phases), frozenset(functions | called | entered))


def _designs(design: Design, seen: set[int]) -> Iterator[Design]:
    """A loop, and those that it has as tools or agents, each once."""
    if id(design) in seen:
        return
    seen.add(id(design))
    yield design
    inside = [getattr(tool, "loop", None) for tool in as_tools(design.tools).values()]
    for one in (*inside, *getattr(design, "sub_agents", ())):
        if isinstance(one, Design):
            yield from _designs(one, seen)


def _called(event: Event) -> Iterator[str]:
    if isinstance(event, CallStart):
        yield event.name
    elif isinstance(event, CallProposed):
        yield event.call.name
    elif isinstance(event, ModelEnd):
        yield from (call.name for call in event.message.tool_calls)


def check_word(word: str, known: Callable[[], Names]) -> None:
    """Raise UsageError where a word is no event, tool or phase that is known, and is nearly one.

    `known` gives the names; for a long recording that takes a while, and it is asked only where it matters.
    """
    if word in EVENT_TYPES:
        return
    names = known()
    if word in names.tools or word in names.phases or word in names.others:
        return
    if nearest_event(word) is not None:
        declared = sorted({*names.tools, *names.phases})
        others = f" The run has the tools and phases {', '.join(declared)}." if declared else ""
        raise UsageError(f"{no_event(word)}{others} Of a loop that has not begun: tool={word!r}, or phase={word!r}.")
    _check(word, "tool or phase", {*names.tools, *names.phases})


def check_tools(called: Collection[str], known: Callable[[], Names]) -> None:
    """Raise UsageError where a tool's name is not known, and is nearly one that is."""
    if called:
        names = known()
        for name in sorted(set(called) - names.tools - names.others):
            _check(name, "tool", names.tools)


def check_phases(entered: Collection[str], known: Callable[[], Names]) -> None:
    """Raise UsageError where a phase's name is not known, and is nearly one that is."""
    if entered:
        names = known()
        for name in sorted(set(entered) - names.phases - names.others):
            _check(name, "phase", names.phases)


def _check(name: str, what: str, declared: Collection[str]) -> None:
    if (meant := _nearest(name, declared, NEARLY_DECLARED)) is not None:
        raise UsageError(
            f"There is no breakpoint at {name!r}: the run has no {what} of that name. Did you mean {meant!r}?"
            f" It has {', '.join(sorted(declared))}."
        )


def nearest_event(name: str) -> str | None:
    """The type of event that this may be, misspelt."""
    return _nearest(name, EVENT_TYPES, NEARLY)


def _nearest(name: str, declared: Collection[str], nearly: float) -> str | None:
    from difflib import get_close_matches  # for mistakes only

    spelt = {one.lower(): one for one in declared}
    found = get_close_matches(name.lower(), spelt, 1, nearly)
    return spelt[found[0]] if found else None


def no_event(name: str) -> str:
    """What is said of a name that is no event's, in words."""
    nearest = nearest_event(name)
    meant = f" Did you mean {nearest!r}?" if nearest is not None else ""
    return f"There is no breakpoint at {name!r}: no event is of that type.{meant} Events are {', '.join(EVENT_TYPES)}."
