"""Watchers: whoever is told of what happens, in a run, in a recording that grows, or in one that is walked through.

What a watcher fails with is its own affair: it is logged, the others are told, and whoever does the telling goes on.
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
    """Those who watch the run of this id. Safe from every thread, also while they are told."""

    def __init__(self, run_id: str, lock: AbstractContextManager[Any] | None = None) -> None:
        """lock: what is held while it is told, where something is; who has ended watching is told no more then."""
        self.run_id = run_id
        self.watchers: tuple[Callable[[Any], object], ...] = ()
        """Copied when it changes, so that it is read and gone through without the lock."""
        self._changing = lock if lock is not None else threading.Lock()

    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Tell `watcher` of everything from now on, in order, from the thread it happens in; gives what ends it."""
        with self._changing:
            self.watchers = (*self.watchers, watcher)

        def stop() -> None:
            with self._changing:
                self.watchers = tuple(other for other in self.watchers if other is not watcher)

        return stop

    def tell_each(self, news: Any) -> None:
        """Tell each of them, in the order in which they came."""
        for watcher in self.watchers:
            try:
                watcher(news)
            except (asyncio.CancelledError, *THROWN_IN):
                raise
            except BaseException:
                about = getattr(news, "type", "its beginning")
                logger.exception("A watcher of run %s failed on %s", self.run_id, about)
