"""An event loop with a virtual clock: no real waits, a hang is an error, and a seed determines the order of callbacks.

The clock does not advance while code runs. If no callback is ready, it jumps to the next timer. If there is no timer
either, no callback can ever run again, and `Hang` is raised. The callbacks of one turn of the event loop run in random
order with the seed `order`; 0 keeps the order of asyncio.
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
"""The virtual time, in seconds since the epoch, at the start of a world."""
MOST_TURNS = 200_000
JITTER = 1e-6
"""The largest delay of a timer in seconds, so that simultaneous timers fire in a random order."""
TICK = 1e-11
"""The additional delay of each timer in seconds, so that simultaneous timers fire in the order of their creation."""


class Hang(AssertionError):
    """No callback can ever run again, or callbacks run forever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock. `order` is the seed of the order of simultaneous callbacks."""

    def __init__(self, order: int = 0, most_turns: int = MOST_TURNS) -> None:
        self.now = 1000.0
        self.errors: list[dict[str, Any]] = []
        self._random = random.Random(order) if order else None
        self._turns_left = most_turns
        self._timers = 0
        super().__init__(_Selector(self))
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def call_at(self, when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        """Schedule a timer with a small delay."""
        self._timers += 1
        late = self._random.random() * JITTER if self._random is not None else self._timers * TICK
        return super().call_at(when + late, *args, **kwargs)

    def pass_time(self, timeout: float | None, is_woken: bool) -> None:
        """Start a turn: jump to the next timer if no callback is ready, and shuffle the ready callbacks."""
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
        """Return where the tasks wait, as text."""
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
    """A selector that returns what is ready and never waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._owner = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        self._owner.pass_time(timeout, bool(found))
        return found


class _HostHere:
    """A replacement for the thread of background runs: they live in this event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


@contextmanager
def _virtual(loop: VirtualLoop) -> Iterator[None]:
    """Replace the clocks by virtual ones, and use no threads."""
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
    """The outcome of a virtual world: the result, the tasks still running, and the errors that no code handled."""

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
        with suppress(BaseException):  # an error here follows an earlier one, which is raised
            for _ in range(50):
                if not (tasks := asyncio.all_tasks(loop)):
                    break
                loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
