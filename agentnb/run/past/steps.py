"""The steps in which a recording is walked through: those in which a run is driven."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from agentnb.core.events import Event
from agentnb.core.evolve import nested
from agentnb.core.state import State
from agentnb.run.gate.gate import Gate, Unit, check_unit


class Steps(list[Event]):
    """The events of a step. A replay's step is done when it returns; it may be awaited like a run's all the same."""

    def __await__(self) -> Generator[Any, None, Steps]:
        yield from ()
        return self


def ends_of(unit: Unit) -> Callable[[Event, State], bool]:
    """Whether an event, with the state it led to, ends a step. Raises UsageError on another unit."""
    check_unit(unit)
    gate = Gate((), None)

    def ends(event: Event, state: State) -> bool:
        gate.observe(event, nested(state, event.path), state)
        return gate.boundary(unit, (event,)) is not None

    return ends
