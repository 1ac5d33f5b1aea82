"""Watchers: functions that are notified of what is new in a run, in a recording that grows, or in a replay.

If a watcher raises, the error is logged, the other watchers are notified, and the notifying code continues.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from agentnb.core.errors import THROWN_IN

logger = logging.getLogger("agentnb")


class Watchers:
    """The watchers of one run. Safe from every thread, also during a notification."""

    def __init__(self, run_id: str, lock: AbstractContextManager[Any] | None = None) -> None:
        """Create an empty list of watchers.

        lock: the lock that the caller holds during notifications, if any. With it, a watcher that has unsubscribed is
        never notified afterwards.
        """
        self.run_id = run_id
        self.watchers: tuple[Callable[[Any], object], ...] = ()
        """The subscribed watchers. A change replaces the tuple, so that it can be iterated over without the lock."""
        self._changing = lock if lock is not None else threading.Lock()

    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Notify `watcher` of everything from now on, in order, in the notifying thread.

        Returns a function that unsubscribes.
        """
        with self._changing:
            self.watchers = (*self.watchers, watcher)

        def stop() -> None:
            with self._changing:
                self.watchers = tuple(other for other in self.watchers if other is not watcher)

        return stop

    def tell_each(self, news: Any) -> None:
        """Notify each watcher, in the order of subscription. The error of a watcher is logged, not raised.

        Only a cancellation, or an exception thrown in from outside (`THROWN_IN`), is raised.
        """
        for watcher in self.watchers:
            try:
                watcher(news)
            except (asyncio.CancelledError, *THROWN_IN):
                raise
            except BaseException:
                about = getattr(news, "type", "its beginning")
                logger.exception("A watcher of run %s failed on %s", self.run_id, about)
