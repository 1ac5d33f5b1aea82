"""Code that takes a run's events one by one, and so drives it: it cannot wait for the run in between."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from agentnb.run.effects.interrupt import task_here


class Taker:
    """Code that takes a run's events one by one, for as long as it holds on to them.

    A `break` lets go of them at once, and asyncio closes them a moment later: whoever waits then waits for that.
    """

    def __init__(self) -> None:
        self._task = task_here()
        self._events: Callable[[], object | None] = lambda: None

    def take(self, events: object) -> None:
        """These are the events."""
        self._events = weakref.ref(events)

    def is_here(self) -> bool:
        """Whether the caller is that code, and not done with them."""
        return self.is_in_this_task() and self._events() is not None

    def is_in_this_task(self) -> bool:
        """Whether the caller is that code, done with them or not: while it blocks, nothing closes them."""
        return self.is_of(task_here())

    def is_of(self, task: object) -> bool:
        """Whether that code runs in this task."""
        return self._task is not None and self._task is task
