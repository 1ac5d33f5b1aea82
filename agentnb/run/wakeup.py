"""Wakeup: how the driver sleeps, how an appended event wakes it from any thread, and when events are written to disk.

The scheduler runs with `journal.fresh = False`, and the driver waits if there is nothing to do. An appended event sets
`fresh`, and wakes the driver if it waits. Events are written to disk at the event loop's next turn, several in one
write. An event from another thread is written immediately, and so is every event while the run has watchers: a watcher
that has been notified of the end of a call must never find that call open again in the store.

A store that another process has locked blocks no event loop: the write is repeated soon, and no tool starts until it
has succeeded. Controls (decisions, messages) do not wait; their events are written with the others.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Callable
from contextvars import Context

from agentnb.core.errors import StorageError, StoreBusy
from agentnb.core.events import Event
from agentnb.run import host as hosting
from agentnb.run.frame import Frame
from agentnb.run.host import call_in, loop_here
from agentnb.run.journal import Journal
from agentnb.threads import reset_in_forks

logger = logging.getLogger("agentnb")

RETRY_SECONDS = 0.05
"""The time until a failed write is repeated."""
LONG_SECONDS = 10.0
"""The time after which a store that is still locked is logged; the end of a process waits no longer for it either."""

_unwritten: set[Wakeup] = set()
"""The wakeups of the runs with events that could not be written yet."""
reset_in_forks(_unwritten.clear)


@atexit.register
def _write_the_rest() -> None:
    """Write the events that wait for a locked store when the process ends; log those that cannot be written."""
    until = time.monotonic() + LONG_SECONDS
    while _unwritten and time.monotonic() < until:
        for wakeup in _unwritten.copy():
            wakeup.write_now()
        time.sleep(RETRY_SECONDS if _unwritten else 0)
    for wakeup in _unwritten.copy():
        logger.error("The process ends, and %s", wakeup.words_of(wakeup.locked))


class Wakeup:
    """Wakes the driver of one run, and writes the run's events to disk."""

    def __init__(self, journal: Journal, failed: Callable[[Exception], None]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that the driver runs in, or ran in last."""
        self._journal = journal
        self._failed = failed
        self._thread: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        """The write that is scheduled for the event loop's next turn."""
        self._retries_in: asyncio.AbstractEventLoop | None = None
        """The event loop in which a failed write is repeated, if the store was locked."""
        self._locked_since: float | None = None
        self.locked: StoreBusy | None = None
        self._on_disk = len(journal.events)
        if journal.recorder is not None:
            journal.observe(self._after_append)
            journal.write = self.flush

    def move_in(self) -> bool:
        """Note that the driver runs in this event loop. Returns True if it ran in another one before."""
        here = asyncio.get_running_loop()
        moved, self.loop, self._thread = self.loop is not here, here, threading.get_ident()
        if moved:
            self._scheduled = None  # it may have ended with the other event loop
        return moved

    def is_here(self) -> bool:
        """Return True if the caller runs in the driver's event loop."""
        return self.loop is not None and loop_here() is self.loop

    def _after_append(self, event: Event, frame: Frame) -> None:
        """Wake the driver after an event was appended in any thread, and write the event now or soon."""
        loop = self.loop
        if loop is None or not loop.is_running():
            self.flush()
        elif threading.get_ident() != self._thread:
            self.flush()
            self.nudge()
        else:
            if self._waiter is not None:
                self.wake()
            if self._journal.watchers:  # an event that watchers were notified of is on disk
                self.flush()
            elif self._scheduled is None and self._journal.recorder is not None:
                # Write at the next turn, because the pump may append more events that belong to the same write. Use a
                # new context: the context of a call would keep the run alive, even if the write is not needed any more.
                self._scheduled = loop.call_soon(self._flush_as_scheduled, context=Context())

    @property
    def is_due(self) -> bool:
        """Whether events wait for the event loop's next turn to be written to disk."""
        return self._scheduled is not None

    async def wait(self, seconds: float | None) -> None:
        """Wait until `wake` is called or an event was appended, or until `seconds` have passed; None for no limit."""
        assert self.loop is not None
        self._waiter = self.loop.create_future()
        self._journal.observe(self._after_append)
        timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), self.wake)
        try:
            # Checked after the future was created, so that an event from another thread is not missed.
            if not self._journal.fresh:
                await self._waiter
        finally:
            self._waiter = None
            if self._journal.recorder is None:
                self._journal.ignore(self._after_append)
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Let the scheduler run again. Call it in the driver's event loop only."""
        self._journal.fresh = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def nudge(self) -> None:
        """Let the scheduler run again. Safe from every thread."""
        self.call(self.wake)

    def call(self, function: Callable[[], None]) -> None:
        """Call the function in the driver's event loop, if there is one. Safe from every thread."""
        if self.loop is not None:
            call_in(self.loop, function)

    def _flush_as_scheduled(self) -> None:
        if self._scheduled is not None:  # the run may have ended since, and its store be closed
            self.flush()

    def flush(self) -> bool:
        """Write the appended events to disk. Returns True if they are on disk.

        If the store is locked, the write is repeated soon, and then the scheduler runs again. A store that fails ends
        the run. Without a store there is nothing to write.
        """
        if self._journal.recorder is None:
            return True
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is not None and threading.get_ident() == self._thread:
            scheduled.cancel()  # otherwise it would keep the run alive until the event loop's next turn
        if self._retries_in is not None and self._retries_in.is_running():
            return False  # the store is locked, and trying each time would delay the caller
        try:
            with self._journal.lock:
                self._journal.flush()
                self._on_disk = len(self._journal.events)
        except StoreBusy as error:
            self._try_again(error)
            return False
        except StorageError as error:  # not the fault of the code that appended the event; the driver ends the run
            self._failed(error)
            self.nudge()
            _unwritten.discard(self)
            return False
        self._locked_since = None
        _unwritten.discard(self)
        return True

    def _try_again(self, locked: StoreBusy) -> None:
        now, self.locked = time.monotonic(), locked
        _unwritten.add(self)
        if self._locked_since is None:
            self._locked_since = now
        elif now > self._locked_since + LONG_SECONDS:
            self._locked_since = now
            logger.warning("The run %s waits for its store: %s", self._journal.run_id, locked)
        here = self.loop if self.loop is not None and self.loop.is_running() else hosting.host.loop
        self._retries_in = here
        call_in(here, lambda: here.call_later(RETRY_SECONDS, self._retry))

    def _retry(self) -> None:
        self._retries_in = None
        if self.flush():
            self.nudge()

    def words_of(self, error: StorageError | None) -> str:
        """Return a description of the events that were not written, and why."""
        events = self._journal.events
        count = len(events) - self._on_disk
        of = f"{len(events)} events of the run {self._journal.run_id}"
        return f"the last {count} of {of} are not written: {error}"

    def write_now(self) -> None:
        """Write the appended events, unless the store is locked; the process ends, so no write is repeated."""
        try:
            self._journal.flush()
        except StoreBusy:
            return
        except StorageError as error:  # for example, its store is closed
            logger.error("The process ends, and %s", self.words_of(error))
        _unwritten.discard(self)

    def leave_to_host(self) -> None:
        """Repeat the failed write in agentnb's own thread: the driver's event loop may end now."""
        host = self._retries_in = hosting.host.loop
        call_in(host, lambda: host.call_later(RETRY_SECONDS, self._retry))
