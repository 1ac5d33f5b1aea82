"""An event loop whose clock is virtual: nothing waits, a hang is an error, and a number decides what comes first.

The clock does not move while code runs. When nothing is ready it jumps to the next timer; when there is no timer
either, nothing can ever happen again, and that raises `Hang`. The callbacks that are due in one turn of the loop run in
an order that is drawn from `order`; 0 keeps the order of asyncio.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from agentnb.run import host as hosting
from agentnb.threads import THREADS

T = TypeVar("T")

EPOCH = 1_700_000_000.0
"""The virtual time since the epoch at which a world begins."""
MOST_TURNS = 200_000
JITTER = 1e-6
"""Seconds by which timers are late at most, so that those that are due together fire in a random order."""
TICK = 1e-11
"""Seconds by which each timer is later than the one before, so that those that are due together keep their order."""


class Hang(AssertionError):
    """Nothing can ever happen again, or the same thing happens for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock. `order` is the seed of the order of what is due together."""

    def __init__(self, order: int = 0, most_turns: int = MOST_TURNS) -> None:
        self.now = 1000.0
        self.errors: list[dict[str, Any]] = []
        self._random = random.Random(order) if order else None
        self._turns_left = most_turns
        self._timers = 0
        super().__init__(_Selector(self))
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        """The virtual time."""
        return self.now

    def call_at(self, when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        """A timer, a little late as every timer is."""
        self._timers += 1
        late = self._random.random() * JITTER if self._random is not None else self._timers * TICK
        return super().call_at(when + late, *args, **kwargs)

    def pass_time(self, timeout: float | None, is_woken: bool) -> None:
        """Begin a turn: jump to the next timer where nothing is ready, and shuffle what is."""
        self._turns_left -= 1
        if not self._turns_left:
            raise Hang(f"The same is repeated for ever: {self._doing()}")
        if timeout is None and not is_woken:
            raise Hang(f"Nothing is ready and nothing is scheduled, and these wait: {self._doing()}")
        if not is_woken:
            self.now += timeout or 0.0
        ready: Any = self._ready  # type: ignore[attr-defined]
        if self._random is not None and len(ready) > 1:
            handles = list(ready)
            self._random.shuffle(handles)
            ready.clear()
            ready.extend(handles)

    def _doing(self) -> str:
        """What the tasks wait for."""
        places = {}
        for task in asyncio.all_tasks(self):
            inner: Any = task.get_coro()
            while hasattr(getattr(inner, "cr_await", None), "cr_frame"):
                inner = inner.cr_await
            places[task.get_name()] = getattr(inner, "cr_frame", None)
        return ", ".join(
            f"{name} in {frame.f_code.co_name} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
            for name, frame in places.items()
            if frame is not None
        )


class _Selector(selectors.SelectSelector):
    """Looks for what is ready and never waits for it."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._owner = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        self._owner.pass_time(timeout, bool(found))
        return found


class _HostHere:
    """Takes the place of the thread on which runs live in the background: they live in this event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


@contextmanager
def _virtual(loop: VirtualLoop) -> Iterator[None]:
    """Virtual clocks, no threads."""
    real = time.time, time.monotonic, hosting.host
    time.time, time.monotonic = lambda: EPOCH + loop.now, lambda: loop.now
    hosting.host = _HostHere(loop)  # type: ignore[assignment]
    THREADS.inline = True
    try:
        yield
    finally:
        time.time, time.monotonic, hosting.host = real
        THREADS.inline = False


@dataclass(frozen=True)
class Ended(Generic[T]):
    """The outcome of a virtual world: the result, the tasks that were left running, the errors that nobody took."""

    result: T
    left: list[str]
    errors: list[str]


def run(main: Callable[[VirtualLoop], Awaitable[T]], *, order: int = 0, most_turns: int = MOST_TURNS) -> Ended[T]:
    """Run `main(loop)` to its end in virtual time. Raises Hang."""
    loop = VirtualLoop(order, most_turns)

    async def whole() -> T:
        return await main(loop)

    with _virtual(loop):
        asyncio.set_event_loop(loop)
        try:
            result = loop.run_until_complete(whole())
            left = [repr(task)[:300] for task in asyncio.all_tasks(loop)]
            return Ended(result, left, [str(error)[:600] for error in loop.errors])
        finally:
            _close(loop)


def _close(loop: VirtualLoop) -> None:
    loop._turns_left = MOST_TURNS
    for task in asyncio.all_tasks(loop):
        task.cancel()
    try:
        with suppress(BaseException):  # where it fails the world has failed before, and its report is on the way
            for _ in range(50):
                if not (tasks := asyncio.all_tasks(loop)):
                    break
                loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
