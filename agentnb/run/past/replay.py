"""Replay: a recording as a run that performs nothing (ARCHITECTURE.md, 4. Promises).

Every moment is a fold of the events up to it, so going back is folding fewer of them. No model is asked, no tool runs
and no clock is read; what a replay gives is what was recorded.

With a loop to check against, each thing that the recording says the loop decided is asked of that loop again. Where it
would decide otherwise the replay stops before that event and raises ReplayDiverged, which has both sides.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ReplayDiverged, RunFailed, UsageError
from agentnb.core.events import Event
from agentnb.core.evolve import evolve, nested
from agentnb.core.foreign import plain_number
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.core.unicode import printable
from agentnb.run import host as hosting
from agentnb.run.approvals.pending import Pending, schemas, waiting
from agentnb.run.gate.breakpoints import Breakpoint, Breakpoints
from agentnb.run.gate.gate import Unit
from agentnb.run.gate.words import names_in
from agentnb.run.given import check_path
from agentnb.run.output import output_of
from agentnb.run.past.asked import loops_at, missing
from agentnb.run.past.place import Place, folded
from agentnb.run.past.recorded_loop import recorded_loop
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.past.steps import Steps, ends_of
from agentnb.run.recording import Recording
from agentnb.run.watchers import Watchers

_INSTEAD = (
    "fork() goes on from where it stands, as a run; with decision=, message=, arguments= or result= something is"
    " changed there."
)


class Replay(Recording):
    """A recording that is walked through. It stands before its first event to begin with.

    Its panel has a slider, which moves it as `to` does. Safe to use from several threads.
    """

    parts = ("position", "approvals", "graph", "events", "timeline", "messages", "usage", "diagram")

    def __init__(
        self, events: Iterable[Event], loop: Design | None = None, *, name: str | None = None, check: bool = False
    ) -> None:
        self._recorded = tuple(events)
        self.loop = loop if loop is not None else recorded_loop(self._recorded)
        self.id = self._recorded[0].run_id if self._recorded else ""
        self.name = name
        self._place = Place(self._recorded, self.loop, check=check)
        self._breakpoints = Breakpoints((), lambda: names_in(self.loop, self._recorded, is_whole=True))
        self._lock = threading.RLock()
        self._watchers = Watchers(self.id)

    # -- where it stands -------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # which would take every name for one that there is

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, _INSTEAD)

    @property
    def position(self) -> int:
        """How many of the recording's events have happened where the replay stands."""
        return self._place.state.position

    @property
    def place(self) -> tuple[int, int]:
        """Its position, and how often it has moved to get there: what tells a later place from an earlier one."""
        with self._lock:
            return self.position, self._place.moves

    @property
    def recording(self) -> Sequence[Event]:
        """All of the recording's events, wherever the replay stands."""
        return self._recorded

    @property
    def state(self) -> State:
        """Where the run stood; read it, do not change it."""
        return self._place.state

    @property
    def events(self) -> Sequence[Event]:
        """What had happened, oldest first."""
        return self._recorded[: self.position]

    @property
    def pending(self) -> list[Pending]:
        """The calls that waited for a person. Nothing can be decided about them here; `fork` can."""
        with self._lock:
            return waiting(loops_at(self.loop, self.state), run_id=self.id)

    def tool_schemas(self, path: str | None = None) -> dict[str, dict[str, Any]]:
        """The JSON schema of each tool's arguments; none where nobody has the loop."""
        with self._lock:
            return schemas(loops_at(self.loop, self.state), path)

    @property
    def driven(self) -> bool:
        """Whether somebody drove the run then, which is so until it is over."""
        state = self.state
        return state.position > 0 and not state.over

    @property
    def diverged(self) -> ReplayDiverged | None:
        """What the loop does instead of the event that comes next, where that has been found to be another."""
        return self._place.diverged

    @property
    def breakpoints(self) -> Breakpoints:
        """Where `continue_` stops; their hits are those from the recording's beginning to where it stopped."""
        return self._breakpoints

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """While a thread holds this, the replay stands where it is."""
        return self._lock

    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Call `watcher` whenever the replay has moved, with the event it stands behind; gives what ends that.

        Before the first event it is called with None. One that raises is logged, and the others are told.
        """
        return self._watchers.watch(watcher)

    def panel(self) -> Any:
        """The recording's panel, with a slider."""
        return hosting.presenter().panel(self)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """The run as it stood. Raises UsageError before its first event."""
        if not (events := self.events):
            raise UsageError("The replay stands before its first event, where there is nothing yet: step() goes on.")
        return Snapshot.of(events, name=name or self.name)

    # -- walking ---------------------------------------------------------------------------------------------------

    def step(self, unit: Unit = "event") -> Steps:
        """Go on to the end of the next `event`, `call`, `turn` or `phase`; gives the events of that step.

        The list is empty at the end. Raises ReplayDiverged where the loop it is checked against decides otherwise.
        """
        return self._forwards(ends_of(unit))

    def back(self, unit: Unit = "event") -> Steps:
        """Go back to where the step before this place began; gives the events that have not happened any more."""
        ends = ends_of(unit)
        with self._moving():
            here = self.position
            ended = (event.seq + 1 for event, state in self._up_to(here - 1) if ends(event, state))
            began = _first(ended, last=True) or 0
            self._place.go_to(began)
        return Steps(self._recorded[began:here])

    def to(self, seq: int) -> Replay:
        """Go to right after the event `seq`, forwards or backwards; -1 is before the first. Gives the replay itself."""
        seq = plain_number(seq)
        if type(seq) is not int or not -1 <= seq < len(self._recorded):
            there = f"the events 0 to {len(self._recorded) - 1}" if self._recorded else "no events yet"
            raise UsageError(f"The recording has {there}, and no {seq!r}.")
        with self._moving():
            self._place.go_to(seq + 1)
        return self

    def find(self, predicate: Callable[[Event, State], bool], *, backwards: bool = False) -> Event | None:
        """Go to the next event for which `predicate(event, state)` holds, or the last one before here; gives it.

        Where there is none the replay stays where it is, and the answer is None.
        """
        if not callable(predicate):
            raise UsageError(f"find(predicate) takes a function of (event, state), not {predicate!r}.")
        here = self.position
        walked = self._up_to(here - 1 if backwards else len(self._recorded))
        hits = (event for event, state in walked if (backwards or event.seq >= here) and predicate(event, state))
        found: Event | None = _first(hits, last=backwards)
        if found is not None:
            self.to(found.seq)
        return found

    def continue_(self, *, backwards: bool = False) -> Breakpoint | None:
        """Go on to the next position where one of `breakpoints` stops, or the last one before here; gives that one.

        As in a run, it stops before the start of a call, and behind any other event. Where there is none the replay
        goes on to its end, or back to its beginning, and the answer is None.
        """
        with self._moving():
            here = self.position
            stops = self._stops(here - 1 if backwards else len(self._recorded))
            found = _first((stop for stop in stops if backwards or stop[0] > here), last=backwards)
            position, hit = found or (0 if backwards else len(self._recorded), None)
            if backwards:
                list(self._stops(position))  # counted up to there
            self._place.go_to(position)
        return hit

    def _stops(self, until: int) -> Iterator[tuple[int, Breakpoint]]:
        """The positions up to `until` at which breakpoints stop, their hits counted from the first event on.

        As in a run, that is before the start of a call and behind any other event.
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

    def _up_to(self, position: int) -> Iterator[tuple[Event, State]]:
        """The events up to there, each with the state it led to; the replay stays where it is."""
        return folded(self._recorded[: max(0, position)])

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """The events from here to the end."""
        while self.position < len(self._recorded):
            for event in self._forwards(lambda event, state: True):  # none, where another thread has come there first
                yield event

    def __await__(self) -> Generator[Any, None, Any]:
        """Go to the end and give the output."""
        yield from ()
        return self.result()

    def result(self) -> Any:
        """Go to the end and give the output. Raises RunFailed, RunCancelled or LimitReached where the run did."""
        with self._moving():
            self._place.go_to(len(self._recorded))
            state = self.state
        if (failure := state.failure) is not None:
            raise RunFailed(f"{failure.type}: {failure.message}")
        return output_of(state, self.loop)

    def _forwards(self, ends: Callable[[Event, State], bool]) -> Steps:
        done = Steps()
        with self._moving():
            while self.position < len(self._recorded):
                done.append(self._place.go_on())
                if ends(done[-1], self.state):
                    break
        return done

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Nobody else moves it meanwhile. Whoever watches is told where it has come to, also where it could not go on.

        Not under the lock: a watcher may wait for a thread that reads the replay.
        """
        try:
            with self._lock:
                yield
        finally:
            position = self.position
            self._watchers.tell_each(self._recorded[position - 1] if position else None)

    def _ipython_display_(self) -> None:
        hosting.presenter().present(self)

    def __repr__(self) -> str:
        where = f"{self.position} of {len(self._recorded)} events"
        return printable(f"<Replay {self.name or self.id} of {self.loop.name}: {where}>")


def _first(found: Iterator[Any], *, last: bool) -> Any:
    """The first of these, or the last; None where there is none."""
    return next(iter(deque(found, maxlen=1)), None) if last else next(found, None)


def replay(recording: Recording | Snapshot | str | Path, loop: Design | None = None) -> Replay:
    """A recording as a run that performs nothing: step it forwards and backwards.

    recording: a run, a snapshot, or the path of a file that `snapshot.save` wrote. loop: what each of its decisions is
    checked against, as it goes. Raises RecordingCorrupt for a damaged file.
    """
    if not isinstance(loop, (Design, type(None))):
        raise UsageError(f"replay(recording, loop) takes the loop to check it against, not {loop!r}.")
    if isinstance(recording, Recording):
        events = recording.recording if isinstance(recording, Replay) else recording.events
        return Replay(events, loop or recording.loop, name=recording.name, check=loop is not None)
    if not isinstance(recording, Snapshot):
        check_path("replay(recording), where that is no run and no snapshot,", recording)
        recording = Snapshot.load(recording)
    snapshot = recording
    return Replay(snapshot.events, loop, name=snapshot.name, check=loop is not None)
