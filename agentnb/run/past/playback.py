"""Playback: a recording with a position, which performs no effects (ARCHITECTURE.md, 4. Promises).

The state at a position is the fold of the events up to it, so a playback moves backwards by folding fewer events. It
makes no model requests, runs no tools and reads no clock; all its values come from the recording.

If a loop is given, the playback compares each recorded decision with the decision of this loop. If they differ, the
playback stops before the event and raises ReplayDiverged, which holds both events.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from agentnb.core.errors import ReplayDiverged, RunFailed, UsageError
from agentnb.core.events import Event
from agentnb.core.evolve import evolve, nested
from agentnb.core.json import plain_number
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.run import environment
from agentnb.run.approvals.pending import Pending, schemas, waiting
from agentnb.run.checkpoints import Checkpoints
from agentnb.run.gate.breakpoints import Breakpoint, Breakpoints
from agentnb.run.gate.gate import Unit
from agentnb.run.gate.names import names_in
from agentnb.run.output import output_of
from agentnb.run.past.cursor import Cursor, Steps, ends_of
from agentnb.run.past.readable import ReadableRun
from agentnb.run.past.recorded_loop import loops_at, recorded_loop
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.watchers import Watchers

NEAR = 256
"""The number of events that are searched at once for the start of a step."""


class Playback(ReadableRun):
    """A recording with a position that can be moved. The initial position is before the first event.

    Its panel has a slider, which moves the position as `to` does. Thread-safe. A `Replay` can also be forked.
    """

    parts = ("position", "approvals", "graph", "trace", "events", "timeline", "messages", "usage", "diagram", "detail")

    def __init__(
        self,
        events: Iterable[Event],
        loop: Design | None = None,
        *,
        name: str | None = None,
        check: bool = False,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._recorded = tuple(events)
        self.loop = loop if loop is not None else recorded_loop(self._recorded)
        self.id = self._recorded[0].run_id if self._recorded else ""
        self.name = name
        self._checkpoints = checkpoints if checkpoints is not None else Checkpoints()
        self._cursor = Cursor(self._recorded, self.loop, self._checkpoints, check=check)
        self._breakpoints = Breakpoints((), lambda: names_in(self.loop, self._recorded, is_complete=True))
        self._lock = threading.RLock()
        self._watchers = Watchers(self.id)

    # -- the position ----------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The number of events before the current position."""
        return self._cursor.state.position

    @property
    def place(self) -> tuple[int, int]:
        """The position and the number of moves so far. Of two values, the one with more moves is newer."""
        with self._lock:
            return self.position, self._cursor.moves

    @property
    def recording(self) -> Sequence[Event]:
        """All events of the recording, regardless of the position."""
        return self._recorded

    @property
    def state(self) -> State:
        """The state of the run at the current position. Do not modify it."""
        return self._cursor.state

    @property
    def events(self) -> Sequence[Event]:
        """The events before the current position, oldest first."""
        return self._recorded[: self.position]

    @property
    def pending(self) -> list[Pending]:
        """The calls that awaited a person at the current position. To decide about one of them, use `fork`."""
        with self._lock:
            return waiting(loops_at(self.loop, self.state), run_id=self.id)

    def tool_schemas(self, path: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the JSON schema of each tool's arguments; empty if the replay has no loop.

        path: the path of one running loop; None for all of them.
        """
        with self._lock:
            return schemas(loops_at(self.loop, self.state), path)

    @property
    def driven(self) -> bool:
        """True if the run had started and had not ended at the current position."""
        state = self.state
        return state.position > 0 and not state.over

    @property
    def diverged(self) -> ReplayDiverged | None:
        """The divergence found at the next event, or None."""
        return self._cursor.diverged

    @property
    def breakpoints(self) -> Breakpoints:
        """The breakpoints at which `continue_` stops. Hits are counted from the start of the recording to the stop."""
        return self._breakpoints

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of the position: while a thread holds it, no other thread can move the replay."""
        return self._lock

    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Call `watcher` after each move, and return a function that unsubscribes it.

        The argument is the last event before the new position, or None at the start. An error of a watcher is logged,
        and the other watchers are called.
        """
        return self._watchers.watch(watcher)

    def panel(self) -> Any:
        """Return the panel of the recording, with its timeline as the scrubber."""
        return environment.presenter().panel(self)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Return a snapshot of the run at the current position. Raises UsageError before the first event.

        name: None for the name of the replay.
        """
        if not (events := self.events):
            raise UsageError(
                "The replay is positioned before its first event, so it has no snapshot. Move it with step() or to()."
            )
        return Snapshot.of(events, name=name or self.name)

    # -- moves -----------------------------------------------------------------------------------------------------

    def step(self, unit: Unit = "event") -> Steps:
        """Move to the end of the next `event`, `call`, `turn` or `phase`, and return the events of this step.

        The list is empty at the end of the recording. Raises ReplayDiverged if the loop diverges from the recording.
        """
        return self._forwards(ends_of(unit))

    def back(self, unit: Unit = "event") -> Steps:
        """Move back to the start of the previous step, and return the events that are now after the position."""
        ends = ends_of(unit)
        with self._moving():
            # The previous step starts where the last step before it ends, or at the start of the recording. Look for
            # that end in the nearest events first.
            here, began = self.position, 0
            end = here - 1
            while end > 0 and not began:
                begin = max(0, end - NEAR)
                ended = (event.seq + 1 for event, state in self._cursor.walk(begin, end) if ends(event, state))
                began, end = _first(ended, last=True) or 0, begin
            self._cursor.move_to(began)
        return Steps(self._recorded[began:here])

    def to(self, seq: int) -> Self:
        """Move to the position directly after the event `seq`, forwards or backwards. Returns the replay itself.

        seq: the number of an event, or -1 for the position before the first event. Raises UsageError if there is no
        such event, ReplayDiverged if the loop diverges on the way.
        """
        seq = plain_number(seq)
        if type(seq) is not int or not -1 <= seq < len(self._recorded):
            there = f"the events 0 to {len(self._recorded) - 1}" if self._recorded else "no events yet"
            raise UsageError(f"The recording has {there}, and no event {seq!r}.")
        with self._moving():
            self._cursor.move_to(seq + 1)
        return self

    def find(self, predicate: Callable[[Event, State], bool], *, backwards: bool = False) -> Event | None:
        """Move to the next event for which `predicate(event, state)` is true, and return the event.

        backwards: search for the last such event before the current one instead. If there is none, return None and do
        not move.
        """
        if not callable(predicate):
            raise UsageError(f"find(predicate) takes a function of (event, state), not {predicate!r}.")
        here = self.position
        walked = self._cursor.walk(0, max(0, here - 1)) if backwards else self._cursor.walk(here, len(self._recorded))
        hits = (event for event, state in walked if predicate(event, state))
        found: Event | None = _first(hits, last=backwards)
        if found is not None:
            self.to(found.seq)
        return found

    def continue_(self, *, backwards: bool = False) -> Breakpoint | None:
        """Move to the next position at which one of `breakpoints` stops, and return this breakpoint.

        As in a run, this is before the start of a call, or directly after any other event. backwards: move to the last
        such position before the current one instead. If there is none, return None and move to the end of the
        recording, or to its start.
        """
        with self._moving():
            here = self.position
            stops = self._stops(here - 1 if backwards else len(self._recorded))
            found = _first((stop for stop in stops if backwards or stop[0] > here), last=backwards)
            position, hit = found or (0 if backwards else len(self._recorded), None)
            if backwards:
                list(self._stops(position))  # count the hits again, up to the new position only
            self._cursor.move_to(position)
        return hit

    def _stops(self, until: int) -> Iterator[tuple[int, Breakpoint]]:
        """Yield the positions up to `until` at which breakpoints stop, each with the breakpoint.

        The hits are reset, and counted from the first event on. As in a run, a position is before the start of a call,
        or directly after any other event.
        """
        self._breakpoints.start_over()
        state = State()
        for event in self._recorded[: max(0, until + 1)]:
            starts_a_call = event.type == "call_start"
            if not starts_a_call:
                evolve(state, event)
            position = event.seq if starts_a_call else event.seq + 1
            if position <= until:
                hit = self._breakpoints.hit(event, nested(state, event.path), state)
                if hit is not None:
                    yield position, hit
            if starts_a_call:
                evolve(state, event)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Move to the end, and yield the events on the way."""
        while self.position < len(self._recorded):
            for event in self._forwards(lambda event, state: True):  # empty if another thread has reached the end
                yield event

    def __await__(self) -> Generator[Any, None, Any]:
        """Move to the end and return the output, as `result` does."""
        yield from ()
        return self.result()

    def result(self) -> Any:
        """Move to the end and return the output. Raises RunFailed, RunCancelled or LimitReached if the run did."""
        with self._moving():
            self._cursor.move_to(len(self._recorded))
            state = self.state
        if (failure := state.failure) is not None:
            raise RunFailed(f"{failure.type}: {failure.message}")
        return output_of(state, self.loop)

    def _forwards(self, ends: Callable[[Event, State], bool]) -> Steps:
        done = Steps()
        with self._moving():
            while self.position < len(self._recorded):
                done.append(self._cursor.advance())
                if ends(done[-1], self.state):
                    break
        return done

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Hold the lock during a move, and notify the watchers afterwards, also if the move has failed.

        The watchers are called without the lock: a watcher may wait for a thread that reads the replay.
        """
        try:
            with self._lock:
                yield
        finally:
            position = self.position
            self._watchers.tell_each(self._recorded[position - 1] if position else None)

    def _ipython_display_(self) -> None:
        environment.presenter().present(self)


def _first(found: Iterator[Any], *, last: bool) -> Any:
    """Return the first value, or the last one with `last=True`. Return None if `found` is empty."""
    return next(iter(deque(found, maxlen=1)), None) if last else next(found, None)
