"""What is in flight: the tasks of the effects that are performed beside the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from agentnb.core.wanted import Effect
from agentnb.run.news import News


class InFlight(dict[Effect, "asyncio.Task[None]"]):
    """The tasks of one run, by the effect they perform. Belongs to the event loop that drives the run."""

    def __init__(self, news: News) -> None:
        super().__init__()
        self._news = news
        self.crash: BaseException | None = None
        """What went wrong with the driver or the store in one of them, where something did."""

    def any_of(self, path: str) -> bool:
        """Whether the loop at `path` has anything in flight."""
        return any(effect.path == path for effect in self)

    def spawn(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Perform an effect in a task of its own."""
        assert self._news.loop is not None
        self[effect] = self._news.loop.create_task(self._carry(effect, work))

    async def _carry(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work of one effect, and take it off the list before the pump looks again."""
        try:
            await work()
        except Exception as error:  # none of the user's gets this far: it is ours, and ends the run
            self.crash = error
        finally:
            self.pop(effect, None)
            self._news.wake()

    def cancel_all_but(self, wanted: Iterable[Effect], spared: Callable[[Effect], bool]) -> None:
        """Cancel what is in flight and neither wanted nor spared."""
        still_wanted = set(wanted)
        for effect, task in self.items():
            if effect not in still_wanted and not spared(effect):
                task.cancel()

    async def close(self) -> None:
        """Cancel everything, and wait until every task has run its `finally`: nothing outlives the run."""
        while tasks := list(self.values()):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for effect, task in list(self.items()):
                if task.done():  # one that was cancelled before it began took nothing off the list
                    del self[effect]
