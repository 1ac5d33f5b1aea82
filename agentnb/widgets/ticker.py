"""The one thread that sends for all panels of a process, at most `RATE` times a second each.

A run's events come from any thread and faster than a page can be told one by one: a message each costs some 200 µs in
the kernel, and messages are lost on the way once thousands are under way. So whoever has news only says so (`wake`),
and this thread collects it. With nothing to send it sleeps on a condition, without waking up.
"""

from __future__ import annotations

import logging
import threading
import time
from contextvars import Context, copy_context
from typing import Protocol

RATE = 30
"""Flushes a second."""

logger = logging.getLogger("agentnb")


class Flushable(Protocol):
    """Something with news to send."""

    def flush(self) -> bool:
        """Send what there is; True where there is more to send already."""


class Ticker:
    """Flushes whatever was woken, one after the other, and not again before the next tick.

    Each is flushed in the context it was first woken in: ipykernel finds the cell that a message belongs to by a
    context variable, and 7.0 fails in a thread that has none.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awake: dict[Flushable, None] = {}
        self._contexts: dict[Flushable, Context] = {}
        self._thread: threading.Thread | None = None

    def add(self, feed: Flushable) -> None:
        """Know this feed, in the context of the caller."""
        with self._condition:
            self._contexts[feed] = copy_context()

    def remove(self, feed: Flushable) -> None:
        """Forget this feed; it is not flushed again."""
        with self._condition:
            self._contexts.pop(feed, None)
            self._awake.pop(feed, None)

    def wake(self, feed: Flushable) -> None:
        """Flush this feed at the next tick; from any thread."""
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
        # In a frame of its own: the thread, while it waits, is not to hold on to the last panels and their runs.
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
            # One panel that cannot send, because its comm was closed under it for one, must not silence the others.
            logger.exception("A panel could not be brought up to date")
            return
        if more:
            self.wake(feed)


TICKER = Ticker()
