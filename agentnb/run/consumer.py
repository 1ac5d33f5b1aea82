"""Consumers: whoever reads a run's events while it goes on.

The first consumer of a run that nobody drives is its driver: the run moves on as it asks for the next event, and no
further. Everybody else watches, from any thread and any event loop, each with a queue of their own that is filled as
things happen and drained in bursts (a hand-over from task to task for each event would cost as much as the run).
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
from agentnb.core.maybe_async import Inside
from agentnb.run import host as hosting
from agentnb.run.host import call_in
from agentnb.run.journal import Journal
from agentnb.run.ownership import TAKEN_HERE, Ownership, Taker, outcome


class Watching:
    """A queue between a run and one consumer in another task, event loop or thread."""

    def __init__(self, journal: Journal, told: int = 0) -> None:
        """`told`: how many of the events the consumer has seen."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._news: asyncio.Future[None] | None = None
        with journal.lock:
            self.queue: deque[Event | Delta] = deque(journal.events[told:])
            self.stop = journal.watch(self._put)

    def _put(self, news: Event | Delta) -> None:
        self.queue.append(news)
        if self._news is not None:
            if threading.get_ident() == self._thread:
                self._wake()
            else:
                call_in(self._loop, self._wake)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def wait(self, run: Ownership) -> None:
        """Until there is something in the queue, or nothing more comes."""
        self._news = self._loop.create_future()
        try:
            # Looked at with the future in place, so that nothing is missed.
            if not (self.queue or run.quiet or run.is_for_others):
                with run.driver.unattended.waited_for():
                    await self._news
        finally:
            self._news = None

    def wake(self) -> None:
        """End a wait. Safe from every thread."""
        call_in(self._loop, self._wake)


def consume(run: Ownership) -> AsyncGenerator[Event | Delta, None]:
    """What has happened so far, then live, to the end; drives the run where nobody does."""
    taker = Taker()
    is_direct = not hosting.environment.hosted or run.driver.wakeup.is_here()
    events = _pull(run, taker) if is_direct else _pull_from_host(run, taker)
    taker.take(events)
    return events


async def _pull(run: Ownership, taker: Taker) -> AsyncGenerator[Event | Delta, None]:
    told, events = 0, run.journal.events
    while run.settled and not run.state.over and told < len(events):  # it may be resumed while its failure is told
        yield events[told]
        told += 1
    while run.settled or not run.claim("pull"):
        is_left = False
        async with aclosing(Inside(_look_on(run, told))) as seen:
            async for item in seen:
                if item is None:
                    is_left = True
                else:
                    told += item.seq is not None
                    yield item
        if not is_left:
            return
    run.taken_by = taker
    news: deque[Event | Delta] = deque()
    with run.journal.lock:
        news.extend(events[told:])
        stop = run.journal.watch(news.append)
    if run.driver.wakeup.is_due:
        run.driver.wakeup.flush()
    try:
        run.go_on_if_paused()
        while news:
            yield news.popleft()
        async with aclosing(Inside(run.driver.pump("pull"))) as pump:
            try:
                async for _ in pump:
                    while news:
                        yield news.popleft()
            except GeneratorExit:  # before the pump is closed: what it performs is to know why it is broken off
                run.leave("its consumer was closed")
                raise
        while news:
            yield news.popleft()
        if run.state.stop_reason == "error":  # the loop has ended in an error of its own
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


async def _look_on(run: Ownership, told: int) -> AsyncGenerator[Event | Delta | None, None]:
    """What has happened and happens while somebody else drives; ends with None where they leave the run to others."""
    watching = Watching(run.journal, told)
    if run.driver.wakeup.is_due:  # what nobody had been told of is not on disk yet
        run.driver.wakeup.flush()
    if run.gate.owner is None and not run.settled:  # calls of this run are in flight in another event loop
        run.play_on_host()
    stop = run.watch_releases(watching.wake)
    try:
        while True:
            while watching.queue:
                yield watching.queue.popleft()
            with run.journal.lock:  # nothing becomes a fact, and nobody resumes it, between one look and the next
                if run.quiet and not watching.queue:
                    if run.state.stop_reason == "error" or not run.state.over:
                        outcome(run)
                    return
                if not run.settled:
                    run.check_not_gone()
                is_left = run.is_for_others and not watching.queue
            if is_left:
                yield None
                return
            if run.is_taken_here():
                raise UsageError(TAKEN_HERE)
            await watching.wait(run)
    except (GeneratorExit, asyncio.CancelledError):
        stop()
        if run.is_left:  # to this one, too
            await run.leave_and_close("its consumer was closed")
        raise
    finally:
        stop()
        watching.stop()


async def _pull_from_host(run: Ownership, taker: Taker) -> AsyncGenerator[Event | Delta, None]:
    """Pull in agentnb's own thread, item by item; where the caller waits, clicks get in."""
    remote = _pull(run, taker)
    step: Future[Event | Delta | None] | None = None
    try:
        while True:
            step = hosting.host.submit(_next(remote))
            await hosting.environment.wait_async(step, run.decisions)
            item = step.result()
            if item is None:
                return
            yield item
    except UsageError:  # nobody here can be asked, which is no reason to end a run that somebody else drives
        if step is not None:
            step.cancel()
        raise
    except asyncio.CancelledError as stop:  # Stop in the cell
        if step is not None and not step.done() and not run.has_others(taker):
            hosting.environment.stopped(stop, hosting.STOPPED)
        raise
    finally:
        if step is not None and not step.done():
            step.cancel()
            if not run.has_others(taker):
                run.cancel("its consumer was interrupted")
        await hosting.environment.wait_async(hosting.host.submit(remote.aclose()))


async def _next(news: AsyncIterator[Event | Delta]) -> Event | Delta | None:
    """`anext` as a coroutine, which is what another thread's event loop takes; None at the end."""
    return await anext(news, None)
