"""Consumers: whoever reads a run's events while it goes on.

The first consumer of a run that nobody drives is its driver: the run moves on as it asks for the next event, and no
further. Everybody else watches, from any thread and any event loop, each with a queue of their own that is filled as
things happen and drained in bursts (a hand-over from task to task for each event would cost as much as the run).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from agentnb.core.events import Delta, Event
from agentnb.run.journal import Journal


class Watching:
    """A queue between a run and one consumer in another task, event loop or thread."""

    def __init__(self, journal: Journal) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._news: asyncio.Future[None] | None = None
        with journal.lock:
            self.queue: deque[Event | Delta] = deque(journal.events)
            self.stop = journal.watch(self._put)

    def _put(self, news: Event | Delta) -> None:
        self.queue.append(news)
        if self._news is not None:
            if threading.get_ident() == self._thread:
                self._wake()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def wait(self) -> None:
        """Until there is something in the queue, or `wake` is called."""
        self._news = self._loop.create_future()
        try:
            if not self.queue:  # looked at after the future is in place, so that nothing is missed
                await self._news
        finally:
            self._news = None

    def wake(self) -> None:
        """End a wait. Safe from every thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)
