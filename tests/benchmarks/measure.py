"""Measures contenders in turn, in one process, and gives the least CPU time of each: noise never takes time away."""

from __future__ import annotations

import asyncio
import gc
import selectors
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
Contender = Callable[[], Awaitable[object]]


def least_seconds(contenders: Mapping[str, Contender], rounds: int) -> dict[str, float]:
    """The least CPU seconds each contender took; every round runs all of them, one after the other."""
    least = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, contender in contenders.items():
            with own_heap():
                started = time.process_time()
                asyncio.run(_run(contender))
                least[name] = min(least[name], time.process_time() - started)
    return least


async def _run(contender: Contender) -> None:
    await contender()


def median_growth(measure: Callable[[], list[float]], tenth: int) -> float:
    """How much dearer the last tenth of a long run is than its first: `measure` marks each part of it by CPU time.

    It is measured three times, and what comes of the middle one: anything may hold up one of them.
    """
    growths = []
    for _ in range(3):
        with no_collections():
            marks = measure()
        growths.append((marks[-1] - marks[-1 - tenth]) / (marks[tenth] - marks[0]))
    return statistics.median(growths)


class _NeverWaits(selectors.DefaultSelector):
    """Adds up what it would have waited for timers, and goes on at once."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.waited += timeout or 0.0
        return super().select(timeout and 0)


class _OwnTime(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while the machine does other things."""

    def __init__(self) -> None:
        self._waits = _NeverWaits()
        super().__init__(self._waits)

    def time(self) -> float:
        return time.process_time() + self._waits.waited


def run_in_own_time(main: Coroutine[Any, Any, T]) -> T:
    """Run it as on a machine that has nothing else to do: its loop's `time()` is the CPU time and the waits alone."""
    with asyncio.Runner(loop_factory=_OwnTime) as runner:
        return runner.run(main)


def now() -> float:
    """The time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


@contextmanager
def no_collections() -> Iterator[None]:
    """A collection of garbage looks at the whole process, and most of that is not what is measured."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def own_heap() -> Iterator[None]:
    """Collections look at nothing that is in memory already: the whole test session is, and is not what is measured.

    What was in memory stays left out afterwards, otherwise the next call would have to collect all of it again.
    """
    gc.collect()
    gc.freeze()
    yield


def report(what: str, ratio: float, aim: float, detail: str = "") -> None:
    """One line: what was measured, the ratio, and the ratio aimed at."""
    verdict = "ok" if ratio <= aim else "over"
    tell(f"{what:58} {ratio:6.2f}   aim {aim:5.2f}   {verdict:4}   {detail}")


def tell(line: str) -> None:
    """Print a line to the standard error, which is also seen of a test that another process of pytest runs."""
    print(line, file=sys.stderr, flush=True)
