"""The names that a breakpoint may be at: of events, tools and phases, and what one was meant to be that is none.

A word may be any of the three, and a loop that has not begun yet may have tools and phases that nobody knows of. So a
word is refused only where it is no name that the run is known to have, and is nearly an event's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from agentnb.core.errors import UsageError
from agentnb.core.events import EVENT_TYPES, CallProposed, CallStart, Event, ModelEnd
from agentnb.core.loop import Design
from agentnb.tools import as_tools

NEARLY = 0.8
"""How much alike two names are of which one may be the other, misspelt (difflib)."""


def names_in(design: Design, events: Iterable[Event]) -> frozenset[str]:
    """The tools and phases of a loop, of those that it has as tools, and of those that the events tell of."""
    return frozenset((*_names_of(design, set()), *_names_told(events)))


def _names_of(design: Design, seen: set[int]) -> Iterator[str]:
    if id(design) in seen:
        return
    seen.add(id(design))
    yield from design.phases
    yield from design.activities
    for name, tool in as_tools(design.tools).items():
        yield name
        if isinstance(inside := getattr(tool, "loop", None), Design):
            yield from _names_of(inside, seen)


def _names_told(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        if event.phase is not None:
            yield event.phase
        if isinstance(event, CallStart):
            yield event.name
        elif isinstance(event, CallProposed):
            yield event.call.name
        elif isinstance(event, ModelEnd):
            yield from (call.name for call in event.message.tool_calls)


def check_word(word: str, known: Callable[[], Collection[str]]) -> None:
    """Raise UsageError where a word is no event, tool or phase that is known, and is nearly an event.

    `known` gives the tools and phases; for a long recording that takes a while, and is asked for where it matters.
    """
    if word in EVENT_TYPES or nearest_event(word) is None:
        return
    names = known()
    if word in names:
        return
    others = f" The run has the tools and phases {', '.join(sorted(names))}." if names else ""
    raise UsageError(f"{no_event(word)}{others} Of a loop that has not begun: tool={word!r}, or phase={word!r}.")


def nearest_event(name: str) -> str | None:
    """The type of event that this may be, misspelt."""
    from difflib import get_close_matches  # for mistakes only

    return next(iter(get_close_matches(name.lower(), EVENT_TYPES, 1, NEARLY)), None)


def no_event(name: str) -> str:
    """What is said of a name that is no event's, in words."""
    nearest = nearest_event(name)
    meant = f" Did you mean {nearest!r}?" if nearest is not None else ""
    return f"There is no breakpoint at {name!r}: no event is of that type.{meant} Events are {', '.join(EVENT_TYPES)}."
