"""Wakeup: how the pump sleeps, and how anything that becomes a fact wakes it, from whichever thread.

The pump says `journal.fresh = False`, looks at where the run stands, and waits where there is nothing to do. A fact
sets `fresh`, and rings the bell where the pump waits or the fact is to be written; otherwise that is all it does,
because the pump is then at work and will look again. Facts are written to disk at the event loop's next turn, all that
belong together at once; and each by itself where it comes from another thread, or where anybody is told of it: whoever
has been told that a call is over never finds it open again.

A store that another process has locked stops nobody's event loop: what could not be written is tried again soon, and
until it is written no tool starts. People do not wait; what they say is written with the rest.
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
from agentnb.core.threads import forgotten_in_a_fork
from agentnb.run import host as hosting
from agentnb.run.frame import Frame
from agentnb.run.host import call_in
from agentnb.run.journal import Journal

logger = logging.getLogger("agentnb")

RETRY_SECONDS = 0.05
"""Until what could not be written is tried again."""
LONG_SECONDS = 10.0
"""After that a store that is still locked is spoken of; the end of a process waits no longer for one, either."""

_unwritten: set[Wakeup] = set()
"""Those of the runs of which something could not be written yet."""
forgotten_in_a_fork(_unwritten.clear)


@atexit.register
def _write_the_rest() -> None:
    """Write what waits for a locked store, as the process ends; what cannot be written even now is named."""
    until = time.monotonic() + LONG_SECONDS
    while _unwritten and time.monotonic() < until:
        for news in _unwritten.copy():
            news.write_now()
        time.sleep(RETRY_SECONDS if _unwritten else 0)
    for news in _unwritten.copy():
        logger.error("The process ends, and %s", news.words_of(news.locked))


def loop_here() -> asyncio.AbstractEventLoop | None:
    """The event loop that the caller runs in; None in a thread without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Wakeup:
    """The bell of one run's pump."""

    def __init__(self, journal: Journal, failed: Callable[[Exception], None]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop the pump runs in, or ran in last."""
        self._journal = journal
        self._failed = failed
        self._thread: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._scheduled: asyncio.Handle | None = None
        """The write that comes at the event loop's next turn."""
        self._retries_in: asyncio.AbstractEventLoop | None = None
        """The event loop in which the write is tried again soon, where the store was locked."""
        self._locked_since: float | None = None
        self.locked: StoreBusy | None = None
        self._on_disk = len(journal.events)
        if journal.recorder is not None:
            journal.observe(self._has_come)
            journal.write = self.flush

    def move_in(self) -> bool:
        """The pump runs in this event loop from now on; gives whether that is another one than before."""
        here = asyncio.get_running_loop()
        moved, self.loop, self._thread = self.loop is not here, here, threading.get_ident()
        if moved:
            self._scheduled = None  # what was scheduled in another event loop may have gone with it
        return moved

    def is_here(self) -> bool:
        """Whether the caller is in the pump's event loop."""
        return self.loop is not None and loop_here() is self.loop

    def _has_come(self, event: Event, frame: Frame) -> None:
        """Something became a fact; in whichever thread."""
        loop = self.loop
        if loop is None or not loop.is_running():
            self.flush()
        elif threading.get_ident() != self._thread:
            self.flush()
            self.nudge()
        else:
            if self._waiter is not None:
                self.wake()
            if self._journal.watchers:  # what anybody has been told of is on disk
                self.flush()
            elif self._scheduled is None and self._journal.recorder is not None:
                # At the next turn: the pump may append more that belongs to the same write. In a context of its own:
                # that of a call would hold the run, also where the write is not needed any more.
                self._scheduled = loop.call_soon(self._flush_as_scheduled, context=Context())

    @property
    def is_due(self) -> bool:
        """Whether something has become fact that the event loop has had no turn yet to write to disk."""
        return self._scheduled is not None

    async def wait(self, seconds: float | None) -> None:
        """Until something happens, or so many seconds have passed."""
        assert self.loop is not None
        self._waiter = self.loop.create_future()
        self._journal.observe(self._has_come)
        timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), self.wake)
        try:
            # Looked at with the future in place, so that the news of other threads is not missed.
            if not self._journal.fresh:
                await self._waiter
        finally:
            self._waiter = None
            if self._journal.recorder is None:
                self._journal.ignore(self._has_come)
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Let the pump look again. In its event loop only."""
        self._journal.fresh = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def nudge(self) -> None:
        """Let the pump look again. Safe from every thread."""
        self.call(self.wake)

    def call(self, function: Callable[[], None]) -> None:
        """Call it in the pump's event loop, where there is one. Safe from every thread."""
        if self.loop is not None:
            call_in(self.loop, function)

    def _flush_as_scheduled(self) -> None:
        if self._scheduled is not None:  # the run may have ended since, and its store be closed
            self.flush()

    def flush(self) -> bool:
        """Write what has become fact to disk, and give whether it is there; a store that fails ends the run.

        Where the store is locked, it is tried again soon, and then the pump looks again.
        """
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is not None and threading.get_ident() == self._thread:
            scheduled.cancel()  # or it would hold the run, where nothing waits and the event loop comes to no turn
        if self._retries_in is not None and self._retries_in.is_running():
            return False  # the store is locked, and to try each time would hold up the caller
        try:
            with self._journal.lock:
                self._journal.flush()
                self._on_disk = len(self._journal.events)
        except StoreBusy as error:
            self._try_again(error)
            return False
        except StorageError as error:  # whoever made the fact is not to blame; the pump ends the run with it
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
        """What was not written, and why."""
        events = self._journal.events
        count = len(events) - self._on_disk
        of = f"{len(events)} events of the run {self._journal.run_id}"
        return f"the last {count} of {of} are not written: {error}"

    def write_now(self) -> None:
        """Write what has become fact, unless the store is locked: the process ends, and no event loop tries again."""
        try:
            self._journal.flush()
        except StoreBusy:
            return
        except StorageError as error:  # its store is closed, say
            logger.error("The process ends, and %s", self.words_of(error))
        _unwritten.discard(self)

    def leave_to_host(self) -> None:
        """Let what could not be written be tried again in agentnb's own thread: the pump's event loop may end now."""
        host = self._retries_in = hosting.host.loop
        call_in(host, lambda: host.call_later(RETRY_SECONDS, self._retry))
