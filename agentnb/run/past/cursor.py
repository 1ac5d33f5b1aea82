"""The cursor of a replay: a position in a recording, with the state at this position. Also the steps of a replay.

A cursor moves forwards by applying the next event, and backwards by applying fewer events, from the nearest checkpoint
on. It can check each event on the way. The steps of a replay have the same units as the steps of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from agentnb.core.errors import ReplayDiverged
from agentnb.core.events import Event
from agentnb.core.evolve import evolve, nested
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.run.checkpoints import Checkpoints
from agentnb.run.gate.gate import Gate, Unit, check_unit
from agentnb.run.past.divergence import DecisionCheck


class Cursor:
    """A position in a recording, initially before the first event. Only one thread may use it at a time."""

    def __init__(self, recorded: Sequence[Event], loop: Design, checkpoints: Checkpoints, *, check: bool) -> None:
        """Start before the first event. `check`: compare each recorded decision with the decision of `loop`."""
        self._recorded = recorded
        self._loop = loop
        self._check = DecisionCheck(loop) if check else None
        self._diverged: ReplayDiverged | None = None
        self._checkpoints = checkpoints
        self.state = State()
        self.moves = 0
        """The number of moves."""

    @property
    def diverged(self) -> ReplayDiverged | None:
        """The divergence found at the next event, or None."""
        found = self._diverged
        return found if found is not None and found.recorded.seq == self.state.position else None

    def move_to(self, position: int) -> None:
        """Move to the position after the first `position` events.

        Raises ReplayDiverged if the loop decides differently on the way; the position is then before that event.
        """
        # Events before the current position need no second check. Without a check, the events need not be applied one
        # by one.
        if position < self.state.position or (self._check is None and position > self.state.position):
            state = self._checkpoints.state_at(self._recorded, position)
            check = DecisionCheck(self._loop, state) if self._check is not None else None
            # Assign in one statement: a thread that reads the state without the lock sees no intermediate state.
            self.state, self._check, self.moves = state, check, self.moves + 1
        while self.state.position < position:
            self.advance()

    def advance(self) -> Event:
        """Apply the next event and return it. Raises ReplayDiverged, and does not move, if the loop diverges."""
        event = self._recorded[self.state.position]
        if self._check is not None:
            try:
                self._check.compare(event)
            except ReplayDiverged as error:
                self._diverged = error
                raise
        evolve(self.state, event)
        self._checkpoints.keep(self.state)
        self.moves += 1
        if self._check is not None:
            self._check.applied(event, self.state)
        return event

    def walk(self, begin: int, end: int) -> Iterator[tuple[Event, State]]:
        """Yield the events from the position `begin` to `end`, each with the state after it, without moving.

        The state is one object, which changes.
        """
        state = self._checkpoints.state_at(self._recorded, begin)
        for event in self._recorded[begin:end]:
            evolve(state, event)
            yield event, state


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
