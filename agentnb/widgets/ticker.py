"""The ticker: one thread sends the events for all panels of a process, at most `RATE` times a second for each panel.

A run's events come from any thread, and faster than they could be sent one by one: a message takes some 200 µs in the
kernel, and messages are lost once thousands are in flight. So a feed only notes that it has something to send (`wake`),
and this thread lets the feed send it. If no feed has something to send, the thread sleeps.
"""

from __future__ import annotations

import logging
import threading
import time
from contextvars import Context, copy_context
from typing import Protocol

RATE = 30
"""The maximum number of flushes of each feed per second."""

logger = logging.getLogger("agentnb")


class Flushable(Protocol):
    """An object that has something to send."""

    def flush(self) -> bool:
        """Send the next messages. Return True if there are more to send."""


class Ticker:
    """Flushes the feeds that were woken, one after the other, each once per tick.

    A feed is flushed in the context in which it was added: ipykernel finds the cell that a message belongs to by a
    context variable, and ipykernel 7.0 fails in a thread without it.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awake: dict[Flushable, None] = {}
        self._contexts: dict[Flushable, Context] = {}
        self._thread: threading.Thread | None = None

    def add(self, feed: Flushable) -> None:
        """Add a feed, with the context of the caller."""
        with self._condition:
            self._contexts[feed] = copy_context()

    def remove(self, feed: Flushable) -> None:
        """Remove a feed; it is not flushed again."""
        with self._condition:
            self._contexts.pop(feed, None)
            self._awake.pop(feed, None)

    def wake(self, feed: Flushable) -> None:
        """Flush a feed at the next tick. Safe to call from any thread."""
        with self._condition:
            self._awake[feed] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="agentnb panels", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not self._awake:
                    self._condition.wait()
            started = time.monotonic()
            self._flush_awake()
            time.sleep(max(0.01, 1 / RATE - (time.monotonic() - started)))

    def _flush_awake(self) -> None:
        # This is a separate method, so that the thread has no references to panels and their runs while it waits.
        with self._condition:
            due, self._awake = self._awake, {}
        for feed in due:
            self._flush(feed)

    def _flush(self, feed: Flushable) -> None:
        with self._condition:
            context = self._contexts.get(feed)
        if context is None:
            return
        try:
            more = context.run(feed.flush)
        except Exception:
            # A panel that cannot send, for example because its comm was closed, must not stop the others.
            logger.exception("A panel could not be updated")
            return
        if more:
            self.wake(feed)


TICKER = Ticker()
