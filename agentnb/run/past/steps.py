"""The steps of a replay. They have the same units as the steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from agentnb.core.events import Event
from agentnb.core.evolve import nested
from agentnb.core.state import State
from agentnb.run.gate.gate import Gate, Unit, check_unit


class Steps(list[Event]):
    """The events of a step. A step of a replay is complete when it returns; like a step of a run, it can be awaited."""

    def __await__(self) -> Generator[Any, None, Steps]:
        yield from ()
        return self


def ends_of(unit: Unit) -> Callable[[Event, State], bool]:
    """Return a predicate of (event, state after it) that is true if the event ends a step by `unit`.

    Raises UsageError if the unit is unknown.
    """
    check_unit(unit)
    gate = Gate((), None)

    def ends(event: Event, state: State) -> bool:
        gate.observe(event, nested(state, event.path), state)
        return gate.boundary(unit, (event,)) is not None

    return ends
