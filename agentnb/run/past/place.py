"""The place where a replay stands: what the recording's events up to there fold to, checked on the way.

To go on is to fold one event more, and to go back is to fold fewer of them, from the first one on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentnb.core.errors import ReplayDiverged
from agentnb.core.events import Event
from agentnb.core.evolve import evolve
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.run.past.divergence import Check


class Place:
    """A place in a recording, before its first event to begin with. Belongs to one thread at a time."""

    def __init__(self, recorded: Sequence[Event], loop: Design, *, check: bool) -> None:
        """`check`: whether each thing that the recording says the loop decided is asked of that loop again."""
        self._recorded = recorded
        self._loop = loop
        self._check = Check(loop) if check else None
        self._diverged: ReplayDiverged | None = None
        self.state = State()
        self.moves = 0
        """How often it has moved."""

    @property
    def diverged(self) -> ReplayDiverged | None:
        """What the loop does instead of the event that comes next, where that has been found to be another."""
        found = self._diverged
        return found if found is not None and found.recorded.seq == self.state.position else None

    def go_to(self, position: int) -> None:
        """Go to where so many events have happened. Raises ReplayDiverged on the way there, and stands before that."""
        if position < self.state.position:
            self._stand_at(position)
        while self.state.position < position:
            self.go_on()

    def go_on(self) -> Event:
        """Let the next event happen. Raises ReplayDiverged where the loop decides otherwise, and then it has not."""
        event = self._recorded[self.state.position]
        if self._check is not None:
            try:
                self._check.look_at(event)
            except ReplayDiverged as error:
                self._diverged = error
                raise
        evolve(self.state, event)
        self.moves += 1
        if self._check is not None:
            self._check.take(event, self.state)
        return event

    def _stand_at(self, position: int) -> None:
        check = Check(self._loop) if self._check is not None else None
        state = State()
        for event, state in folded(self._recorded[:position]):  # up to here it has agreed before
            if check is not None:
                check.take(event, state)
        # At last, at once: who reads where it stands without the lock sees no moment in between.
        self.state, self._check, self.moves = state, check, self.moves + 1


def folded(events: Sequence[Event]) -> Iterator[tuple[Event, State]]:
    """These events, the first of a run, each with the state it led to; it is one state, which changes."""
    state = State()
    for event in events:
        evolve(state, event)
        yield event, state
