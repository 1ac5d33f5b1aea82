"""Driving a study: starts its runs one after the other on agentnb's own thread, and follows each to its end.

At most `at_once` runs work at the same time. A run that waits for a person, or is paused, does not count: the others go
on, so that one person can decide about many runs. Such a run continues as soon as it is decided about.

All of the driving happens in the event loop of the host thread (`agentnb.run.host`), so that a study outlives the cell
that started it. Decisions come from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from agentnb.core.events import Delta, Event, RunEnd
from agentnb.run import Run, Snapshot
from agentnb.run import host as hosting
from agentnb.run.host import call_in
from agentnb.store import Store
from agentnb.studies.grid import Cell, Label

Status = Literal["not started", "interrupted", "running", "waiting", "done", "failed", "cancelled"]
STATUSES: tuple[Status, ...] = get_args(Status)

CANCELLED = "the study was cancelled"
"""The default reason for cancelling the runs of a study."""

_MAY_CHANGE_STATUS = frozenset(
    {"approval_request", "approval_decision", "call_end", "run_paused", "run_resumed", "run_end"}
)
"""The types of the events after which a run may begin or cease to wait for a person."""


class StudyRun:
    """One run of a study: its cell of the grid, and its state.

    `arm` has the label of each factor. `status` is "waiting" if a person must decide before the run can continue, and
    "interrupted" if the run was left before its end, by a process that has exited.
    `run` is the live run, None before its start and, if the study has a store, after its end. `error` is the reason of
    a failure, of the run or of its start.
    """

    def __init__(self, cell: Cell, store: Store | None) -> None:
        self.cell = cell
        self.status: Status = "not started"
        self.id: str | None = None
        self.run: Run | None = None
        self.stop_reason: str | None = None
        self.error: str | None = None
        self._store = store

    def end(self, run: Run) -> None:
        """Note how the run has ended. A store keeps its events, so they are not kept in memory as well."""
        self.stop_reason = run.stop_reason
        error = run.state.error or run.state.failure
        self.error = f"{error.type}: {error.message}" if error is not None else None
        self.run = None if self._store is not None else run

    @property
    def is_over(self) -> bool:
        """True if the run is not continued when the study is started again: it has ended, and was not cancelled."""
        return self.stop_reason not in (None, "cancelled")

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


@dataclass(eq=False, slots=True)
class _Followed:
    """What belongs to an active run: its subscriptions, and the context in which a caller waits for it."""

    subscriptions: ExitStack
    waited_for: ExitStack
    is_to_be_looked_at: bool = False


class Driving:
    """Drives the runs of a study that have not ended. Its state changes on the host thread only.

    `cancel`, `wait_begins` and `wait_ends` are safe from every thread.
    """

    def __init__(self, runs: Sequence[StudyRun], make: Callable[[StudyRun], Run], at_once: int) -> None:
        """`make` returns the run of a cell: a new one, or one that continues from its journal."""
        self.runs = runs
        self.counts: Counter[str] = Counter(run.status for run in runs)
        self.changed: Callable[[], object] = lambda: None
        """Called after the status of a run has changed, on the host thread."""
        self._make = make
        self.at_once = at_once
        self._active: dict[StudyRun, _Followed] = {}
        self._news = asyncio.Event()
        self._cancelled: str | None = None
        self._waits = 0

    @property
    def active(self) -> list[StudyRun]:
        """The runs that were started here and have not ended, in the order of their start."""
        return list(self._active)

    async def drive(self) -> None:
        """Drive all runs that are not over, until each has ended or its model has failed."""
        queue = deque(run for run in self.runs if not run.is_over)
        while True:
            self._news.clear()
            while queue and self._cancelled is None and self.counts["running"] < self.at_once:
                self._begin(queue.popleft())
                await asyncio.sleep(0)  # a model that answers at once must not keep other tasks from running
            if not self._active:
                return
            await self._news.wait()

    def cancel(self, reason: str) -> None:
        """Start no further runs, and cancel those that are active."""
        self._cancelled = reason
        for one in self.active:
            if one.run is not None:
                one.run.cancel(reason)

    def wait_begins(self) -> None:
        """Note that a caller waits for the study, and so for each of its runs."""
        call_in(hosting.host.loop, partial(self._count_waits, 1))

    def wait_ends(self) -> None:
        """Note that a caller has stopped waiting."""
        call_in(hosting.host.loop, partial(self._count_waits, -1))

    def _count_waits(self, change: int) -> None:
        self._waits += change
        for one, followed in self._active.items():
            if not self._waits:
                followed.waited_for.close()
            elif self._waits == change == 1 and one.run is not None:
                followed.waited_for.enter_context(one.run.waited_for())

    # -- one run -------------------------------------------------------------------------------------------------------

    def _begin(self, one: StudyRun) -> None:
        """Start a run in the background, and follow it. A run that cannot be made has failed."""
        try:
            run = one.run = self._make(one)
        except Exception as error:  # of the factory, or of the store: the other runs continue
            one.error = f"{type(error).__name__}: {error}"
            self._set(one, "failed")
            return
        one.id, one.stop_reason, one.error = run.id, None, None
        self._active[one] = followed = _Followed(ExitStack(), ExitStack())
        if self._waits:
            followed.waited_for.enter_context(run.waited_for())

        # Follow it. The subscribers are called in the thread that decides, pauses or drives, with the lock of the run.
        loop, host_thread = asyncio.get_running_loop(), threading.get_ident()

        def look_soon() -> None:
            if followed.is_to_be_looked_at:
                return
            followed.is_to_be_looked_at = True
            if threading.get_ident() == host_thread:
                loop.call_soon(self._look, one, followed)
            else:
                call_in(loop, partial(self._look, one, followed))

        def happened(event: Event | Delta) -> None:
            if event.type in _MAY_CHANGE_STATUS:
                look_soon()

        followed.subscriptions.callback(run.watch_driving(look_soon))
        followed.subscriptions.callback(run.watch(happened))
        self._set(one, "running")
        run.play()
        if self._cancelled is not None:  # meanwhile, by another thread
            run.cancel(self._cancelled)

    def _look(self, one: StudyRun, followed: _Followed) -> None:
        """Update the status of an active run."""
        followed.is_to_be_looked_at = False
        run = one.run
        if run is None or self._active.get(one) is not followed:
            return
        if not run.settled:
            with run.lock:
                waits = run.state.paused or any(state.asking for _, state in run.state.running())
            self._set(one, "waiting" if waits else "running")
            return

        # It has ended, or its model has failed.
        del self._active[one]
        followed.subscriptions.close()
        followed.waited_for.close()
        one.end(run)
        self._set(one, status_of(one.stop_reason))

    def _set(self, one: StudyRun, status: Status) -> None:
        if status != one.status:
            self.counts[one.status] -= 1
            self.counts[status] += 1
            one.status = status
            self._news.set()
            self.changed()


def status_of(stop_reason: str | None) -> Status:
    """Return the status of a run that nothing drives, by its stop reason; None if its model has failed."""
    if stop_reason in ("error", None):
        return "failed"
    return "cancelled" if stop_reason == "cancelled" else "done"
