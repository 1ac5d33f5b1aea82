"""What is in flight: the tasks of the effects that are performed beside the driver."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

from agentnb.core.errors import THROWN_IN
from agentnb.core.threads import let_go, unfinished
from agentnb.core.unicode import printable
from agentnb.core.wanted import Effect
from agentnb.run.frame import Frame
from agentnb.run.host import call_in
from agentnb.run.wakeup import Wakeup

logger = logging.getLogger("agentnb")

CLOSE_SECONDS = 2.0
"""What is broken off has so long, in all, for its `finally`; what has not ended then is named and left to itself. Nor
does the end of a run wait longer for a store that is locked."""

_left: set[asyncio.Task[None]] = set()
"""What was left to itself: asyncio holds on to no task."""


class InFlight(dict[Effect, "asyncio.Task[None]"]):
    """The tasks of one run, by the effect they perform. Belongs to the event loop that drives the run.

    A task may rest: it waits for the pump to let it go on, and until then nothing happens in it.
    """

    def __init__(self, news: Wakeup) -> None:
        super().__init__()
        self.wakeup = news
        self.resting: dict[Effect, tuple[asyncio.Future[None], Callable[[], bool]]] = {}
        """The effects that wait at the gate: what wakes each, and whether it may go on."""
        self._cancelled: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
        self.crash: BaseException | None = None
        """What went wrong with the driver or the store in one of them, where something did."""
        self.run_id = ""
        self.name_of: Callable[[Effect], str] = str
        """What a person calls an effect."""
        self._closes_by: float | None = None

    def begin(self) -> None:
        """Somebody drives from here on: what is broken off from now on has its own time for that."""
        self._closes_by = None

    def seconds_to_close(self) -> float:
        """How long what is broken off may still take; the time begins with the first question."""
        if self._closes_by is None:
            self._closes_by = time.monotonic() + CLOSE_SECONDS
        return max(0.0, self._closes_by - time.monotonic())

    def any_of(self, path: str) -> bool:
        """Whether the loop at `path` has anything in flight."""
        return any(effect.path == path for effect in self)

    async def calls_end(self, frame: Frame) -> None:
        """Wait until none of this loop's calls runs any more, but those that are detached."""
        calls = frame.state.open
        while running := [
            task
            for effect, task in self.items()
            if effect.path == frame.path
            and (call := calls.get(effect.id)) is not None
            and call.status == "running"
            and not call.detached
        ]:
            await asyncio.wait(running)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing happens in any of them, or there are none."""
        return len(self) == len(self.resting)

    async def rest(self, effect: Effect, may_go_on: Callable[[], bool]) -> None:
        """Wait, in the task of this effect, until the pump has come by and it may go on."""
        rests = asyncio.get_running_loop().create_future()
        self.resting[effect] = rests, may_go_on
        self.wakeup.wake()
        try:
            await rests
        finally:
            self.resting.pop(effect, None)

    def let_go_on(self) -> None:
        """Let those that rest go on where they may."""
        for effect, (rests, may_go_on) in list(self.resting.items()):
            if may_go_on() and not rests.done():
                del self.resting[effect]
                rests.set_result(None)

    def spawn(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Perform an effect in a task of its own."""
        assert self.wakeup.loop is not None
        self[effect] = self.wakeup.loop.create_task(self._carry(effect, work))

    async def _carry(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work of one effect, and take it off the list before the pump looks again."""
        try:
            await work()
        except (asyncio.CancelledError, *THROWN_IN):
            raise
        except BaseException as error:  # none of the user's gets this far: it is ours, and ends the run
            self.crash = error
        finally:
            self.pop(effect, None)
            self.wakeup.wake()

    def cancel_all_but(self, wanted: Iterable[Effect], spared: Callable[[Effect], bool]) -> None:
        """Cancel what is in flight and neither wanted nor spared."""
        still_wanted = set(wanted)
        unwanted = [effect for effect in self if effect not in still_wanted and not spared(effect)]
        self._cancel(self[effect] for effect in unwanted)
        for effect in unwanted:
            carrying: Any = self[effect].get_coro()
            if getcoroutinestate(carrying) == CORO_CREATED:  # cancelled before it began, it takes nothing off the list
                del self[effect]

    def clear(self) -> None:
        """Forget them: they were of another event loop."""
        super().clear()
        self.resting.clear()

    async def close(self) -> None:
        """Cancel everything, and wait until every task has run its `finally`: nothing outlives the run.

        Where one has not ended in time, a warning names it, and it is left to itself.
        """
        while tasks := list(self.values()):
            self._cancel(tasks)
            _, late = await asyncio.wait(tasks, timeout=self.seconds_to_close())
            for effect, task in list(self.items()):
                if task.done():  # one that was cancelled before it began took nothing off the list
                    del self[effect]
                elif task in late:
                    del self[effect]
                    self.leave(effect, task)
        await self._threads_end()

    async def _threads_end(self) -> None:
        """Wait for the functions of the run that are in threads, where nothing can break them off; name those left."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        while (running := unfinished(self.run_id)) and (seconds := self.seconds_to_close()) > 0:
            ended.clear()
            for function in running:
                function.add_done_callback(lambda _: call_in(loop, ended.set))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ended.wait()
        for path, id in dict.fromkeys(running.values()):
            let_go(self.run_id, path, id)
            warn_of(
                f"{self.name_of(Effect('call' if id else 'model', id, path))} was broken off with its run, and its"
                f" function still runs in a thread {CLOSE_SECONDS:g} s later. Nothing ends a thread from outside: it is"
                " left to itself; what it does from here on is no part of the run. A function that may take long can"
                " be async, or have a time-out of its own."
            )

    def leave(self, effect: Effect, task: asyncio.Task[None]) -> None:
        """Leave to itself what does not end, and say so."""
        _left.add(task)
        task.add_done_callback(_forget)
        warn_of(
            f"{self.name_of(effect)} was broken off with its run, and has not ended {CLOSE_SECONDS:g} s later. It is"
            " left to itself; what it does from here on is no part of the run. Code that is cancelled should let"
            " asyncio.CancelledError through, and a `finally` should be short."
        )

    def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Cancel each once: a second time would break off the `finally` that the first has begun.

        `task.cancelling()` does not tell: a timeout in a tool cancels the tool's task as well, and takes that back.
        """
        for task in tasks:
            if task not in self._cancelled:
                self._cancelled.add(task)
                task.cancel()


def warn_of(words: str) -> None:
    """Warn of what the end of a run has left behind."""
    words = printable(words)
    try:
        warnings.warn(words, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:  # where warnings are errors: it is none of this run, which is over
        logger.warning(words)


def _forget(task: asyncio.Task[None]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # asyncio logs an exception that nobody retrieves
