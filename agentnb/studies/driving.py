"""Driving a study: starts its runs one after the other, and follows each to its end.

At most `at_once` runs work at the same time. A run that waits for a person, or is paused, does not count: the others go
on, so that one person can decide about many runs. Such a run continues as soon as it is decided about.

`Driving` is what a study needs; `DrivingHere` drives the runs in this process, `agentnb.studies.remote` in workers. All
of the driving happens in the event loop of the host thread (`agentnb.run.host`), so that a study outlives the cell that
started it. Decisions come from any thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from agentnb.core.errors import AlreadyDecided, StoreBusy
from agentnb.core.events import Delta, Event, RunEnd
from agentnb.core.evolve import fold
from agentnb.run import Pending, Run, Snapshot
from agentnb.run import host as hosting
from agentnb.run.approvals.decisions import decide_about
from agentnb.run.approvals.too_late import too_late
from agentnb.run.host import call_in
from agentnb.store import Store
from agentnb.studies.budget import Budget, Meter
from agentnb.studies.grid import Cell, Label

Status = Literal["not started", "interrupted", "running", "waiting", "paused", "done", "failed", "cancelled"]
STATUSES: tuple[Status, ...] = get_args(Status)

T = TypeVar("T")

PATIENCE_SECONDS = 600.0
"""Seconds for which a study waits for a store that is locked or away."""
WARNING_SECONDS = 1.0
"""Seconds after which there is a warning that the study waits."""
AGAIN_SECONDS = 0.2
"""Seconds until such a store is tried again."""

CANCELLED = "the study was cancelled"
"""The default reason for cancelling the runs of a study."""

_MAY_CHANGE_STATUS = frozenset(
    {"approval_request", "approval_decision", "call_end", "run_paused", "run_resumed", "run_end"}
)
"""The types of the events after which a run may begin or cease to wait for a person."""


class StudyRun:
    """One run of a study: its cell of the grid, and its state.

    `arm` has the label of each factor. `status` is "waiting" if a person must decide before the run can continue,
    "paused" if a person or a limit has paused it, "failed" if its loop or its model has failed, and "interrupted" if
    the run was left before its end, by a process that has exited.
    `run` is the live run; None before its start, after its end if the study has a store, and if a worker drives it.
    `error` is the reason of a failure, of the run or of its start. `is_paused` is True while the run is paused, as at a
    limit with `on_limit="ask"`; `study.resume` continues it.
    """

    def __init__(self, cell: Cell, store: Store | None) -> None:
        self.cell = cell
        self.status: Status = "not started"
        self.id: str | None = None
        self.run: Run | None = None
        self.stop_reason: str | None = None
        self.error: str | None = None
        self.is_paused = False
        self.replaced: set[str] = set()
        """The ids of recorded runs of this cell that do not count any longer."""
        self._store = store

    def end(self, run: Run) -> None:
        """Note how the run has ended. A store keeps its events, so they are not kept in memory as well."""
        self.stop_reason, self.error = run.stop_reason, error_of(run)
        self.run = None if self._store is not None else run

    def begin_anew(self) -> None:
        """Forget how the run has gone, so that it is run from its beginning. A store keeps what it has."""
        if self.id is not None:
            self.replaced.add(self.id)
        self.id, self.run, self.stop_reason, self.error = None, None, None, None
        self.status = "not started"

    @property
    def is_over(self) -> bool:
        """True if the run is not continued when the study is started again: it has ended, or failed."""
        return self.status in ("done", "failed")

    @property
    def name(self) -> str:
        """The name of the run in the store: the study, the arm, and `input.repeat`."""
        return self.cell.name

    @property
    def arm(self) -> dict[str, Label]:
        """The label of each factor."""
        return dict(self.cell.arm)

    @property
    def input(self) -> Any:
        """The input of the run."""
        return self.cell.input

    @property
    def repeat(self) -> int:
        """The number of the repeat, from 0."""
        return self.cell.repeat

    @property
    def seed(self) -> int:
        """The seed of the run, which the factory receives if it takes `seed`."""
        return self.cell.seed

    @property
    def recording(self) -> Run | Snapshot | None:
        """The run, or its recording in the store; None if it has no events."""
        if self.run is not None or self._store is None or self.id is None:
            return self.run
        return Snapshot.of(self._store.events(self.id), name=self.name)

    def look_up(self) -> int:
        """Return the number of events that the store has. Raises StoreBusy if the store is away."""
        return self._store.position(self.id or self.name) if self._store is not None else 0

    @property
    def output(self) -> Any:
        """The output of the run; None if it has none."""
        if self.run is not None:
            return self.run.output
        if self._store is None or self.id is None or self.stop_reason is None:
            return None
        last = self._store.events(self.id, max(0, self._store.position(self.id) - 1))
        return last[-1].output if last and isinstance(last[-1], RunEnd) else None

    def __repr__(self) -> str:
        return f"<StudyRun {self.name}: {self.status}{f' ({self.error})' if self.error else ''}>"


# -- one run in this process ------------------------------------------------------------------------------------------


class Followed:
    """A run that is driven in this process, and followed in the event loop of the host thread.

    `look` is called in that event loop soon after the status of the run may have changed.
    """

    def __init__(
        self,
        run: Run,
        look: Callable[[], object],
        spent: Callable[[float, float, str | None], object],
        hold: Callable[[], bool],
    ) -> None:
        """`spent` is called with what an answer has cost (`Meter`). While `hold` is True, no request starts."""
        self.run = run
        self._look = look
        self._meter = Meter(run, spent)
        self._hold = hold
        run.hold_requests(self._holds)
        self._is_to_be_looked_at = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waited_for = ExitStack()
        self._subscriptions = ExitStack()
        self._subscriptions.callback(run.watch_driving(self._look_soon))
        self._subscriptions.callback(run.watch(self._happened))

    def waited_for(self, waits: bool) -> None:
        """Note whether a caller waits for the study, and so for this run."""
        self._waited_for.close()
        if waits:
            self._waited_for.enter_context(self.run.waited_for())

    def close(self) -> None:
        """Follow the run no longer."""
        self._subscriptions.close()
        self._waited_for.close()

    # The subscribers are called in the thread that decides, pauses or drives, with the lock of the run.

    def _holds(self) -> bool:
        holds = self._hold()
        if holds:
            self._look_soon()
        return holds

    def _happened(self, event: Event | Delta) -> None:
        if not isinstance(event, Delta):
            self._meter.see(event)
        if event.type in _MAY_CHANGE_STATUS:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._is_to_be_looked_at:
            return
        self._is_to_be_looked_at = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._look_now)
        else:
            call_in(self._loop, self._look_now)

    def _look_now(self) -> None:
        self._is_to_be_looked_at = False
        self._look()

    @property
    def status(self) -> Literal["running", "waiting", "paused"]:
        """The status of the run, unless it is settled."""
        with self.run.lock:
            if any(state.asking for _, state in self.run.state.running()):
                return "waiting"
            return "paused" if self.is_paused else "running"

    @property
    def is_paused(self) -> bool:
        """True if the run is paused, or waits for a limit of its study, and is not settled."""
        return bool(self.run.state.paused) or self.run.is_held


def error_of(run: Run) -> str | None:
    """Return the failure of a run, or of its model, as text."""
    error = run.state.error or run.state.failure
    return f"{error.type}: {error.message}" if error is not None else None


def status_of(stop_reason: str | None) -> Status:
    """Return the status of a run that nothing drives, by its stop reason; None if its model has failed."""
    if stop_reason in ("error", None):
        return "failed"
    return "cancelled" if stop_reason == "cancelled" else "done"


def left_as(events: Sequence[Event]) -> tuple[Status, str | None]:
    """Return the status of a run that has no end and that nothing drives, and its error if its model has failed."""
    state = fold(events)
    if state.failure is not None:
        return "failed", f"{state.failure.type}: {state.failure.message}"
    return ("paused" if state.paused else "interrupted"), None


# -- all runs ----------------------------------------------------------------------------------------------------------


class Driving(ABC):
    """Drives the runs of a study that have not ended. Its state changes on the host thread only.

    `drive_anew`, `cancel`, `cancel_runs`, `wait_begins`, `wait_ends`, `pending`, `decide` and `resume` are safe from
    every thread.
    """

    def __init__(self, runs: Sequence[StudyRun], at_once: int, budget: Budget | None = None) -> None:
        self.runs = runs
        self.at_once = at_once
        self.budget = budget or Budget()
        self.at_limit: concurrent.futures.Future[None] = concurrent.futures.Future()
        """Done when the limit of the study is reached, and no run works any longer. `lift` replaces it."""
        self.counts: Counter[str] = Counter(run.status for run in runs)
        self.changed: Callable[[], object] = lambda: None
        """Called after the status of a run has changed, on the host thread."""
        self.note = ""
        """What the progress line says of the driving."""
        self._queue = deque(run for run in runs if not run.is_over)
        self._news = asyncio.Event()
        self._cancelled: str | None = None

    @abstractmethod
    async def drive(self) -> None:
        """Drive all runs that are not over, until each has ended or its model has failed."""

    @abstractmethod
    def cancel(self, reason: str) -> None:
        """Start no further runs, and cancel those that are active."""

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """Start no further runs, and leave those that are active to another process. Safe from every thread."""

    @abstractmethod
    def cancel_runs(self, runs: Sequence[StudyRun], reason: str) -> None:
        """Cancel some runs, also those that have not begun. The others go on."""

    def drive_anew(self, runs: Sequence[StudyRun]) -> None:
        """Drive these runs, which have ended, from their beginning."""

        def queue() -> None:
            for one in runs:
                self._set(one, "not started")
                one.begin_anew()
            self._queue.extend(runs)

        call_in(hosting.host.loop, queue)

    def _leave_out(self, runs: Sequence[StudyRun]) -> None:
        """Cancel those of the runs that have not begun."""
        for one in runs:
            if one in self._queue:
                self._queue.remove(one)
                self._set(one, "cancelled")

    @abstractmethod
    def wait_begins(self) -> None:
        """Note that a caller waits for the study, and so for each of its runs."""

    @abstractmethod
    def wait_ends(self) -> None:
        """Note that a caller has stopped waiting."""

    @property
    @abstractmethod
    def pending(self) -> list[Pending]:
        """The calls of all active runs that wait for a person, the run that was started first at the beginning."""

    @abstractmethod
    def decide(
        self, items: Sequence[tuple[StudyRun, Pending]], method: str, arguments: Mapping[str, Any]
    ) -> list[Exception | None]:
        """Call a method of `Run` that decides about a call, for each item, and return the error of each, or None."""

    @abstractmethod
    def resume(self, runs: Sequence[StudyRun]) -> int:
        """Let those of the runs that are paused continue, and return how many."""

    @abstractmethod
    def lift(self) -> None:
        """Continue, because the limit of the study is higher. Called on the host thread."""

    @property
    @abstractmethod
    def _under_way(self) -> Iterable[StudyRun]:
        """The runs that have begun and not ended."""

    async def patiently(self, do: Callable[[], T]) -> T:
        """Call a function that uses the store, in a thread. While the store is locked or away, call it again.

        `note` says what is waited for, and after some seconds a RuntimeWarning. Raises StoreBusy after
        `PATIENCE_SECONDS`, and when the study is cancelled meanwhile.
        """
        began, note, has_warned = time.monotonic(), self.note, False
        while True:
            try:
                result = await asyncio.to_thread(do)
            except StoreBusy as error:
                waited = time.monotonic() - began
                if self.is_cancelled or waited > PATIENCE_SECONDS:
                    raise
                self.note = f"waits for its store: {error}"
                self.changed()
                if waited > WARNING_SECONDS and not has_warned:
                    has_warned = True
                    warnings.warn(f"A study waits for its store: {error}", RuntimeWarning, stacklevel=2)
            else:
                self.note = note
                return result
            await asyncio.sleep(AGAIN_SECONDS)

    @property
    def is_cancelled(self) -> bool:
        """True after `cancel`."""
        return self._cancelled is not None

    def _may_begin(self) -> bool:
        may = bool(self._queue) and self._cancelled is None and self.counts["running"] < self.at_once
        return may and self.budget.allows_another(self._under_way)

    def _waits_for_limit(self) -> bool:
        """Return True if runs are left that must not begin or continue before the limit of the study is lifted."""
        waits = self.budget.reached is not None and self._cancelled is None
        waits = waits and (bool(self._queue) or any(one.is_paused for one in self._under_way))
        if waits and not self.counts["running"] and not self.at_limit.done():
            self.at_limit.set_result(None)
        return waits

    def _spent(self, one: StudyRun, tokens: float, cost: float, unpriced: str | None) -> None:
        """Count what an answer of a run has cost."""
        self.budget.add(one, tokens, cost, unpriced)

    def _set(self, one: StudyRun, status: Status) -> None:
        if status != one.status:
            self.counts[one.status] -= 1
            self.counts[status] += 1
            one.status = status
            self._news.set()
            self.changed()


class DrivingHere(Driving):
    """Drives the runs of a study in this process."""

    def __init__(
        self, runs: Sequence[StudyRun], at_once: int, make: Callable[[StudyRun], Run], budget: Budget | None = None
    ) -> None:
        """`make` returns the run of a cell: a new one, or one that continues from its journal."""
        super().__init__(runs, at_once, budget)
        self._make = make
        self._active: dict[StudyRun, Followed] = {}
        self._waits = 0

    async def drive(self) -> None:
        """Drive all runs that are not over, until each has ended or its model has failed."""
        while True:
            self._news.clear()
            while self._may_begin():
                one = self._queue.popleft()
                try:
                    self._begin(one)
                except StoreBusy:
                    self._queue.appendleft(one)
                    await self._wait_for_store(one)
                await asyncio.sleep(0)  # a model that answers at once must not keep other tasks from running
            if not self._waits_for_limit() and not self._active:
                return
            await self._news.wait()

    def cancel(self, reason: str) -> None:
        """Start no further runs, and cancel those that are active."""
        self._cancelled = reason
        self.at_limit = concurrent.futures.Future()
        for followed in list(self._active.values()):
            followed.run.cancel(reason)
        call_in(hosting.host.loop, self._news.set)

    def abandon(self, reason: str) -> None:
        """Start no further runs, and leave those that are active to another process. Safe from every thread."""

        def leave() -> None:
            self._cancelled = reason
            for followed in list(self._active.values()):
                followed.run.abandon(reason)
            self._news.set()

        call_in(hosting.host.loop, leave)

    def lift(self) -> None:
        """Continue, because the limit of the study is higher. Called on the host thread."""
        self.at_limit = concurrent.futures.Future()
        for one, followed in list(self._active.items()):
            followed.run.look_again()
            self._look(one)
        self._news.set()

    @property
    def _under_way(self) -> Iterable[StudyRun]:
        return self._active

    def cancel_runs(self, runs: Sequence[StudyRun], reason: str) -> None:
        """Cancel some runs, also those that have not begun. The others go on."""

        def cancel() -> None:
            self._leave_out(runs)
            for one in runs:
                if (followed := self._active.get(one)) is not None:
                    followed.run.cancel(reason)

        call_in(hosting.host.loop, cancel)

    def wait_begins(self) -> None:
        """Note that a caller waits for the study, and so for each of its runs."""
        call_in(hosting.host.loop, partial(self._count_waits, 1))

    def wait_ends(self) -> None:
        """Note that a caller has stopped waiting."""
        call_in(hosting.host.loop, partial(self._count_waits, -1))

    def _count_waits(self, change: int) -> None:
        before, self._waits = bool(self._waits), self._waits + change
        if before != bool(self._waits):
            for followed in self._active.values():
                followed.waited_for(not before)

    @property
    def pending(self) -> list[Pending]:
        """The calls of all active runs that wait for a person, the run that was started first at the beginning."""
        return [item for followed in list(self._active.values()) for item in followed.run.pending]

    def decide(
        self, items: Sequence[tuple[StudyRun, Pending]], method: str, arguments: Mapping[str, Any]
    ) -> list[Exception | None]:
        """Call a method of `Run` that decides about a call, for each item, and return the error of each, or None."""
        errors: list[Exception | None] = []
        for one, item in items:
            try:
                if one.run is None:
                    raise has_ended(item, one.name, one.recording)
                decide_about(one.run, item, method, arguments)
                errors.append(None)
            except Exception as error:
                errors.append(error)
        return errors

    def resume(self, runs: Sequence[StudyRun]) -> int:
        """Let those of the runs that are paused continue, and return how many."""
        return sum(one.run.resume() for one in runs if one.run is not None and one.is_paused)

    async def _wait_for_store(self, one: StudyRun) -> None:
        """Wait until the store of a run can be read again, or the study is cancelled."""
        try:
            await asyncio.sleep(AGAIN_SECONDS)
            await self.patiently(one.look_up)
        except StoreBusy:
            if not self.is_cancelled:
                raise

    def _begin(self, one: StudyRun) -> None:
        """Start a run in the background, and follow it. A run that cannot be made has failed.

        Raises StoreBusy if the store is away.
        """
        try:
            run = one.run = self._make(one)
        except StoreBusy:
            raise
        except Exception as error:  # of the factory, or of the store: the other runs continue
            one.error = f"{type(error).__name__}: {error}"
            self._set(one, "failed")
            return
        one.id, one.stop_reason, one.error = run.id, None, None
        followed = self._active[one] = Followed(
            run, partial(self._look, one), partial(self._spent, one), lambda: self.budget.reached is not None
        )
        if self._waits:
            followed.waited_for(True)
        self._set(one, "running")
        run.play(stays_paused=True)  # to continue a study is not to approve another budget, or to lift a person's pause
        if self._cancelled is not None:  # meanwhile, by another thread
            run.cancel(self._cancelled)

    def _look(self, one: StudyRun) -> None:
        """Update the status of an active run."""
        followed = self._active.get(one)
        if followed is None:
            return
        if not followed.run.settled:
            one.is_paused = followed.is_paused
            self._set(one, followed.status)
            return

        # It has ended, or its model has failed.
        del self._active[one]
        one.is_paused = False
        followed.close()
        one.end(followed.run)
        self.budget.end(one)
        self._set(one, status_of(one.stop_reason))


def has_ended(item: Pending, run: str, recording: Run | Snapshot | None) -> AlreadyDecided:
    """Return the error for a decision about a call whose run has ended. run: its name."""
    events = recording.events if recording is not None else ()
    return too_late(events, run, item.path, item.id, name=item.name, question=item.event)
