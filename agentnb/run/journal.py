"""The journal: the only place where events are recorded.

`append` stamps an event, checks the phase it opens, folds it into the state, hands it to the recorder (a store's file)
and tells the watchers. It is synchronous and safe from every thread, so a decision, a cancellation or a queued message
is an event as soon as the method that made it returns, whichever thread it was called from.

If an event is not possible (an illegal transition, a value that is not JSON), `append` raises an error, and nothing has
changed.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from agentnb.core.errors import UsageError
from agentnb.core.events import Delta, Event, RunStart, encode_body
from agentnb.core.evolve import evolve, nested
from agentnb.core.json import check_levels
from agentnb.core.loop import Design
from agentnb.core.place import number_of_new_run
from agentnb.core.prefix import Continued
from agentnb.core.protocols import Recorder
from agentnb.core.state import CallState, State
from agentnb.run.checkpoints import Checkpoints
from agentnb.run.event_data import as_json, not_serializable
from agentnb.run.frame import UNKNOWN, Frame
from agentnb.run.watchers import Watchers

AHEAD_SECONDS = 1.0
"""The run's clock is set to the computer's clock if that is ahead by more than these seconds; less is a correction."""

AnEvent = TypeVar("AnEvent", bound=Event)

Watcher = Callable[[Event | Delta], object]
Observer = Callable[[Event, Frame], object]


def nothing_to_write() -> None:
    """Do nothing: without a store, no event is written."""


class Journal(Watchers):
    """The events of a run, the state they fold to, the loops they belong to, and the watchers of new events."""

    def __init__(self, design: Design, run_id: str) -> None:
        self.lock = threading.RLock()
        super().__init__(run_id, self.lock)
        self.run_name = run_id
        """The name of the run in errors: its own, or its id."""
        self.number = number_of_new_run()
        self.events: list[Event] | Continued[Event] = []
        self.state = State()
        self.checkpoints = Checkpoints()
        self.root = Frame(design, self.state)
        self.frames = [self.root]
        """The active loops: the outermost first, and each nested loop after its parent."""
        self._offset = time.time() - time.monotonic()
        """The difference between this run's clock (`now`) and the monotonic clock."""
        self.fresh = False
        """True if an event was appended since this was last set to False."""
        self.observers: tuple[Observer, ...] = ()
        """The parts of the run that need every event, such as the gate. They are notified before the watchers."""
        self.recorder: Recorder | None = None
        self.write: Callable[[], object] = nothing_to_write
        """Writes the appended events to disk now, not at the event loop's next turn."""
        self._is_notifying = False
        self._not_notified: deque[Event | Delta] = deque()

    def append(self, event: AnEvent, frame: Frame | None = None, about: CallState | None = None) -> AnEvent | None:
        """Record `event` as an event of the loop in `frame`; without `frame`, of the outermost loop.

        about: the call that the event is about. The event is then recorded only while that call is open: another thread
        may have ended the call or the run in the meantime.

        Returns the recorded event, a copy with its number, time, run, path and phase; None if it is not recorded.
        Raises IllegalTransition, ImpossibleEvent or NotSerializable; then nothing has changed.
        """
        if frame is None:
            frame = self.root
        with self.lock:  # not `acquire` followed by `try`: Ctrl-C may interrupt in between
            state, events, recorder = frame.state, self.events, self.recorder
            if about is not None and state.open.get(about.id) is not about:
                return None
            if event.seq != -1:
                raise UsageError(
                    f"This {event.type} is recorded already (seq {event.seq}); make a new event each time."
                )

            # Stamp the event, and encode it, before anything changes: both may raise.
            phase = frame.moves.get((state.phase, event.phase, type(event)), UNKNOWN)
            event = replace(
                event,
                seq=len(events),
                time=event.time or self.now(),  # a fork keeps the times of its recording
                run_id=self.run_id,
                path=frame.path,
                phase=frame.opens(event) if phase is UNKNOWN else phase,
            )
            event, line = self._encode(event)

            # Fold and record it. A nested loop gets its state before the watchers are notified, because they may end
            # the run.
            evolve(self.state, event)
            events.append(event)
            if self.state.position % self.checkpoints.every == 0:
                self.checkpoints.keep(self.state)
            if frame.above is not None and isinstance(event, RunStart):
                frame.state = nested(self.state, frame.path)
                self.frames.append(frame)
            if recorder is not None:
                recorder.record(event.seq, line)
            self.fresh = True

            # Notify the observers, then the watchers.
            try:
                for observe in self.observers:
                    observe(event, frame)
            finally:  # Ctrl-C may interrupt the function of a breakpoint, but the event has been recorded
                if self.watchers:
                    self.tell(event)
        return event

    def now(self) -> float:
        """Return the time by the run's own clock, in seconds since the epoch, for its events and its deadlines.

        The clock follows the monotonic clock, so it never goes back, and durations are correct even if the computer's
        clock is set in the meantime. If the computer's clock is ahead, for example after the computer has slept, the
        run's clock is set to it, but not while a tool or a model is running.
        """
        now = self._offset + time.monotonic()
        ahead = time.time() - now
        if ahead > AHEAD_SECONDS and not self._is_at_work():
            self._offset += ahead
            return now + ahead
        return now

    def _is_at_work(self) -> bool:
        states = [frame.state for frame in self.frames]
        return any(
            state.model == "asked" or any(call.status == "running" for call in state.open.values()) for state in states
        )

    def frame_at(self, path: str) -> Frame | None:
        """Return the loop that is being run at this path; None if there is none."""
        return next((frame for frame in self.frames if frame.path == path), None)

    def remember(self) -> None:
        """Count all events so far as part of the recording that the loops continue. Call it before they continue."""
        for frame in self.frames:
            frame.recorded = len(self.events)

    def observe(self, observer: Observer) -> None:
        """Notify `observer` of each event from now on, before the watchers."""
        with self.lock:
            if observer not in self.observers:
                self.observers = (*self.observers, observer)

    def ignore(self, observer: Observer) -> None:
        """Stop notifying `observer`."""
        with self.lock:
            self.observers = tuple(other for other in self.observers if other != observer)

    def load(self, events: Sequence[Event], state: State | None = None) -> None:
        """Take over the events of a recording, without notifying watchers or writing to disk.

        state: the state after the events, if it is known. The events of a fork are shared with the recording.
        """
        self.events = events.copy() if isinstance(events, Continued) else list(events)
        if state is not None:
            self.state = self.root.state = state
            self.checkpoints.begin(state)
        for event in self.events if state is None else ():
            evolve(self.state, event)
            self.checkpoints.keep(self.state)
        # The recording may come from a computer whose clock is ahead.
        last = max((event.time for event in (self.events if state is None else self.events[-1:])), default=0.0)
        self._offset = max(time.time(), last) - time.monotonic()

    @contextmanager
    def saying(self) -> Iterator[None]:
        """Append a person's input: hold the lock, and write to disk on exit.

        The person may kill the process right afterwards, and would not repeat the input.
        """
        with self.lock:
            before = len(self.events)
            yield
            if len(self.events) > before:
                self.write()

    def flush(self) -> None:
        """Return once everything appended so far is on disk."""
        if self.recorder is not None:
            with self.lock:
                self.recorder.flush()

    def tell(self, news: Event | Delta) -> None:
        """Notify the watchers. A watcher that fails does not fail the run: its error is logged.

        If a watcher appends an event, all watchers are notified of it after the current one. A delta after the end of
        the run is dropped, because the end is always last.
        """
        with self.lock:
            if type(news) is Delta and self.state.stop_reason is not None:
                return
            if self._is_notifying or self._not_notified:  # the latter if Ctrl-C has interrupted a watcher
                self._not_notified.append(news)
                if self._is_notifying:
                    return
                news = self._not_notified.popleft()
            self._is_notifying = True
            try:
                self.tell_each(news)
                while self._not_notified:
                    self.tell_each(self._not_notified.popleft())
            finally:
                self._is_notifying = False

    def _encode(self, event: AnEvent) -> tuple[AnEvent, bytes]:
        """Return the event as JSON data, and its line for the recorder; an empty line without one."""
        try:
            if self.recorder is None:
                to_builtins(event)  # an event that is not written must be JSON too: the run may be saved later
                return event, b""
            line = encode_body(event)
        except (TypeError, ValueError, RecursionError) as error:
            event = as_json(event, error)
            line = encode_body(event) if self.recorder is not None else b""
        try:
            check_levels(line)
        except ValueError as error:
            raise not_serializable(event, error) from error
        return event, line


def new_run_id() -> str:
    """Return a new, random id for a run."""
    return uuid.uuid4().hex[:12]
