"""Tasks: the effects of a run that are in flight, each in a task of its own, concurrently with the driver."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Future
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

from agentnb.core.errors import THROWN_IN, printable
from agentnb.core.maybe_async import absorb_late_exit
from agentnb.core.required_effects import Effect
from agentnb.run.frame import Frame
from agentnb.run.host import call_in
from agentnb.run.wakeup import Wakeup
from agentnb.threads import forget_call, unfinished_calls

logger = logging.getLogger("agentnb")

CLOSE_SECONDS = 2.0
"""The seconds that all interrupted effects together have for their `finally`. An effect that has not ended by then is
named in a warning and left behind. The end of a run does not wait longer for a locked store either."""

_left_behind: set[asyncio.Task[None]] = set()
"""The tasks that were left behind: asyncio keeps only weak references to tasks."""


class InFlight(dict[Effect, "asyncio.Task[None]"]):
    """The tasks of one run, by the effect they perform. Belongs to the event loop that drives the run.

    A task may rest at the gate: it waits for the scheduler to let it continue, and nothing happens in it until then.
    """

    def __init__(self, wakeup: Wakeup) -> None:
        super().__init__()
        self.wakeup = wakeup
        self.resting: dict[Effect, tuple[asyncio.Future[None], Callable[[], bool]]] = {}
        """The effects that wait at the gate, each with the future that wakes it and a test whether it may continue."""
        self._cancelled: set[asyncio.Task[None]] = set()
        """The tasks that were interrupted here and have not ended."""
        self.broken_off: set[Effect] = set()
        """The effects whose task was cancelled, but not by this class. If the run is still driven, the code of the
        effect itself has done that."""
        self.crash: BaseException | None = None
        """The error of the driver or the store in one of the tasks; None if there is none."""
        self.run_id = ""
        self.name_of: Callable[[Effect], str] = str
        """Returns the name of an effect for a person."""
        self._closes_by: float | None = None

    def begin(self) -> None:
        """Note that driving has started: effects that are interrupted from now on have the full time to end."""
        self._closes_by = None

    def seconds_to_close(self) -> float:
        """Return the seconds that interrupted effects still have to end, counted from the first call of this method."""
        if self._closes_by is None:
            self._closes_by = time.monotonic() + CLOSE_SECONDS
        return max(0.0, self._closes_by - time.monotonic())

    def any_of(self, path: str) -> bool:
        """Return True if the loop at `path` has an effect in flight."""
        return any(effect.path == path for effect in self)

    async def calls_end(self, frame: Frame) -> None:
        """Wait until no call of this loop runs any longer, except detached calls."""
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
        """Whether nothing is in flight, or every task rests at the gate."""
        return len(self) == len(self.resting)

    async def rest(self, effect: Effect, may_continue: Callable[[], bool]) -> None:
        """Wait, in the task of this effect, until the scheduler lets it continue."""
        rests = asyncio.get_running_loop().create_future()
        self.resting[effect] = rests, may_continue
        self.wakeup.wake()
        try:
            await rests
        finally:
            self.resting.pop(effect, None)

    def let_continue(self) -> None:
        """Let resting effects continue if they may."""
        for effect, (rests, may_continue) in list(self.resting.items()):
            if may_continue() and not rests.done():
                del self.resting[effect]
                rests.set_result(None)

    def spawn(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Perform an effect in a task of its own."""
        assert self.wakeup.loop is not None
        self.broken_off.discard(effect)
        self[effect] = self.wakeup.loop.create_task(self._carry(effect, work))

    async def _carry(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Perform one effect, and remove it before the scheduler runs again."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await work()
        except asyncio.CancelledError:
            if task not in self._cancelled:
                self.broken_off.add(effect)
            raise
        except THROWN_IN:
            raise
        except BaseException as error:  # errors of user code do not get here: this is a defect, and ends the run
            self.crash = error
        finally:
            self.pop(effect, None)
            self._cancelled.discard(task)
            self.wakeup.wake()

    def cancel_all_but(self, wanted: Iterable[Effect], spared: Callable[[Effect], bool]) -> None:
        """Cancel the effects in flight that are not `wanted`, except those for which `spared` returns True."""
        still_wanted = set(wanted)
        unwanted = [effect for effect in self if effect not in still_wanted and not spared(effect)]
        self._cancel(self[effect] for effect in unwanted)
        for effect in unwanted:
            carrying: Any = self[effect].get_coro()
            if getcoroutinestate(carrying) == CORO_CREATED:  # cancelled before it started, it does not remove itself
                self._cancelled.discard(self.pop(effect))

    def clear(self) -> None:
        """Forget all tasks: they belong to another event loop."""
        super().clear()
        self.resting.clear()
        self.broken_off.clear()
        self._cancelled.clear()

    async def close(self) -> asyncio.CancelledError | None:
        """Cancel everything, and wait until every task has run its `finally`: nothing outlives the run.

        A task that has not ended in time is named in a warning and left behind. If the caller is cancelled meanwhile,
        the cancellation is returned.
        """
        cancelled = None
        while tasks := list(self.values()):
            self._cancel(tasks)
            cancelled = await until_done(tasks, self.seconds_to_close()) or cancelled
            for effect, task in list(self.items()):
                if task.done():  # a task that was cancelled before it started did not remove itself
                    self._cancelled.discard(self.pop(effect))
                elif task in tasks:  # it is late
                    del self[effect]
                    self.leave(effect, task)
        return await self._threads_end() or cancelled

    async def _threads_end(self) -> asyncio.CancelledError | None:
        """Wait for the functions of the run in threads, which cannot be interrupted; name those that are late.

        If the caller is cancelled meanwhile, the cancellation is returned.
        """
        cancelled = None
        while (running := unfinished_calls(self.run_id)) and (seconds := self.seconds_to_close()) > 0:
            cancelled = await until_done([_first_end(running)], seconds) or cancelled
        for path, id in dict.fromkeys(running.values()):
            forget_call(self.run_id, path, id)
            warn_of(
                f"{self.name_of(Effect('call' if id else 'model', id, path))} was cancelled with its run, but its"
                f" function still runs in a thread {CLOSE_SECONDS:g} s later. A thread cannot be stopped from outside:"
                " it continues, but its result is not recorded. Make a function that may take long async, or give it a"
                " timeout of its own."
            )
        return cancelled

    def leave(self, effect: Effect, task: asyncio.Task[None]) -> None:
        """Leave a task behind that does not end, and warn of it."""
        _left_behind.add(task)
        task.add_done_callback(_forget)
        warn_of(
            f"{self.name_of(effect)} was cancelled with its run, and has not ended {CLOSE_SECONDS:g} s later. It"
            " continues, but its result is not recorded. Let asyncio.CancelledError propagate in code that can be"
            " cancelled, and keep each `finally` short."
        )

    def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Cancel each task once: a second time would interrupt the `finally` that the first has started.

        `task.cancelling()` cannot be used: a timeout in a tool also cancels the tool's task, and undoes that.
        """
        for task in tasks:
            if task not in self._cancelled:
                self._cancelled.add(task)
                task.cancel()


async def until_done(
    futures: Collection[asyncio.Future[Any]], seconds: float | None = None
) -> asyncio.CancelledError | None:
    """Wait until the futures are done, at most `seconds`, also if the caller is cancelled meanwhile.

    Returns the cancellation, which the caller has to raise after its closing; None if it was not cancelled.
    """
    until = time.monotonic() + seconds if seconds is not None else None
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            await absorb_late_exit()
            await asyncio.wait(futures, timeout=max(0.0, until - time.monotonic()) if until is not None else None)
            return cancelled
        except asyncio.CancelledError as error:
            cancelled = error


def _first_end(functions: Iterable[Future[Any]]) -> asyncio.Future[None]:
    """Return a future of this event loop that is done when the first of these functions in threads has ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    for function in functions:
        function.add_done_callback(lambda _: call_in(loop, wake))
    return ended


def warn_of(words: str) -> None:
    """Warn of an effect or of events that the end of a run has left behind."""
    words = printable(words)
    try:
        warnings.warn(words, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:  # warnings are errors here, but this run has ended already
        logger.warning(words)


def _forget(task: asyncio.Task[None]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # asyncio logs an exception that nobody retrieves
