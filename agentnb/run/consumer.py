"""Consumers: readers of a run's events while the run continues.

The first consumer of a run without an owner drives it: the run advances only when this consumer requests the next
event. All other consumers watch, from any thread and event loop, also after the first one has left. Each has its own
queue, which is filled as events occur and drained in bursts: switching tasks for each event would cost as much as the
run itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing

from agentnb.core.errors import RunFailed, UsageError
from agentnb.core.events import Delta, Event
from agentnb.core.maybe_async import InnerGenerator
from agentnb.run import environment
from agentnb.run import host as hosting
from agentnb.run.host import call_in
from agentnb.run.journal import Journal
from agentnb.run.ownership import TAKEN_HERE, Ownership, Taker, outcome


class Watching:
    """A queue between a run and one consumer in another task, event loop or thread."""

    def __init__(self, journal: Journal, received: int = 0) -> None:
        """Start to watch. received: the number of events that the consumer has received already."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiter: asyncio.Future[None] | None = None
        with journal.lock:
            self.queue: deque[Event | Delta] = deque(journal.events[received:])
            self.stop = journal.watch(self._put)

    def _put(self, news: Event | Delta) -> None:
        self.queue.append(news)
        if self._waiter is not None:
            if threading.get_ident() == self._thread:
                self._wake()
            else:
                call_in(self._loop, self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, run: Ownership) -> None:
        """Wait until the queue has an item, no event can follow, or the run lacks an owner."""
        self._waiter = self._loop.create_future()
        try:
            # Check again after the future was created, so that no event is missed in between.
            if not (self.queue or run.quiet or run.lacks_owner):
                with run.driver.unattended.waited_for():
                    await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """End the current wait, if any. Safe from every thread."""
        call_in(self._loop, self._wake)


def consume(run: Ownership) -> AsyncGenerator[Event | Delta, None]:
    """Return an iterator over the events so far, then over events and deltas as they occur, to the end of the run.

    The consumer of the iterator drives the run if the run has no owner.
    """
    taker = Taker()
    is_direct = not environment.current.hosted or run.driver.wakeup.is_here()
    events = _pull(run, taker) if is_direct else _pull_from_host(run, taker)
    taker.take(events)
    return events


async def _pull(run: Ownership, taker: Taker) -> AsyncGenerator[Event | Delta, None]:
    # After a failure of the model: yield the recorded events first. The run may be resumed while they are read.
    received, events = 0, run.journal.events
    while run.settled and not run.state.over and received < len(events):
        yield events[received]
        received += 1

    # Another owner drives, or the run is settled: look on.
    if run.settled or not run.claim("pull"):
        async with aclosing(InnerGenerator(_watch_run(run, received))) as seen:
            async for item in seen:
                yield item
        return

    # This consumer is the owner now: receive the events that it has not yielded yet, and all new ones.
    run.taken_by = taker
    news: deque[Event | Delta] = deque()
    with run.journal.lock:
        news.extend(events[received:])
        stop = run.journal.watch(news.append)
    if run.driver.wakeup.is_due:
        run.driver.wakeup.flush()

    # Drive the run, and yield the events of each of its steps before the next one.
    try:
        run.go_on_if_paused()
        async with aclosing(InnerGenerator(run.driver.pump("pull"))) as pump:
            try:
                while news:
                    yield news.popleft()
                async for _ in pump:
                    while news:
                        yield news.popleft()
            except (GeneratorExit, asyncio.CancelledError):
                # Leave before the pump is closed, so that interrupted effects get the reason.
                run.leave("its consumer was closed")
                raise
        while news:
            yield news.popleft()
        if run.state.stop_reason == "error":  # the loop itself has ended with an error: raise it
            outcome(run)
    except RunFailed:
        while news:
            yield news.popleft()
        raise
    except (GeneratorExit, asyncio.CancelledError):
        await run.leave_and_close("its consumer was closed")
        raise
    finally:
        stop()
        run.release()


async def _watch_run(run: Ownership, received: int) -> AsyncGenerator[Event | Delta, None]:
    """Yield the events after the first `received`, then new events and deltas, while another owner drives.

    If the owner leaves before the end, a task drives the run from then on. Raises the error of `outcome` if the model
    or the loop failed, and UsageError if the owner can no longer drive or the caller iterates over the run.
    """
    watching = Watching(run.journal, received)
    if run.driver.wakeup.is_due:  # some events are not on disk yet: write them before they are yielded
        run.driver.wakeup.flush()
    if not run.settled:  # it has no owner if calls of this run are in flight in another event loop
        run.drive_in_a_task("play")
    stop = run.watch_releases(watching.wake)
    try:
        while True:
            while watching.queue:
                yield watching.queue.popleft()
            with run.journal.lock:  # between these checks no event is recorded, and the run is not resumed
                if run.quiet and not watching.queue:
                    if run.state.stop_reason == "error" or not run.state.over:
                        outcome(run)
                    return
                if not run.settled:
                    run.check_not_gone()
                if run.lacks_owner:
                    run.drive_in_a_task("await")
            if run.is_taken_here():
                raise UsageError(TAKEN_HERE)
            await watching.wait(run)
    except (GeneratorExit, asyncio.CancelledError):
        stop()
        await run.stop_waiting("its consumer was closed")
        raise
    finally:
        stop()
        watching.stop()


async def _pull_from_host(run: Ownership, taker: Taker) -> AsyncGenerator[Event | Delta, None]:
    """Pull in agentnb's own thread, item by item. While the caller waits, clicks in the notebook are processed."""
    remote = _pull(run, taker)
    step: Future[Event | Delta | None] | None = None
    try:
        while True:
            step = hosting.host.submit(_next(remote))
            await environment.current.wait_async(step, run.decisions)
            item = step.result()
            if item is None:
                return
            yield item
    except UsageError:  # no person can be asked here: stop waiting, without ending the run
        if step is not None:
            step.cancel()
        raise
    except asyncio.CancelledError as stop:  # Stop in the cell
        if step is not None and not step.done() and not run.has_others(taker):
            environment.current.stopped(stop, environment.STOPPED)
        raise
    finally:
        if step is not None and not step.done():
            step.cancel()
            if not run.has_others(taker):
                run.cancel("its consumer was interrupted")
        await environment.current.wait_async(hosting.host.submit(remote.aclose()))


async def _next(news: AsyncIterator[Event | Delta]) -> Event | Delta | None:
    """Return the next item, or None at the end. A coroutine, because `run_coroutine_threadsafe` needs one."""
    return await anext(news, None)
