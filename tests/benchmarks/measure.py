"""Measures contenders in turn, in one process, and gives the least CPU time of each: noise never takes time away."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

Contender = Callable[[], Awaitable[object]]


def least_seconds(contenders: Mapping[str, Contender], rounds: int) -> dict[str, float]:
    """The least CPU seconds each contender took; every round runs all of them, one after the other."""
    least = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, contender in contenders.items():
            gc.collect()
            started = time.process_time()
            asyncio.run(_run(contender))
            least[name] = min(least[name], time.process_time() - started)
    return least


async def _run(contender: Contender) -> None:
    await contender()


@contextmanager
def no_collections() -> Iterator[None]:
    """A collection of garbage looks at the whole process, and most of that is not what is measured."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def report(what: str, ratio: float, aim: float, detail: str = "") -> None:
    """One line: what was measured, the ratio, and the ratio aimed at."""
    verdict = "ok" if ratio <= aim else "over"
    print(f"{what:58} {ratio:6.2f}   aim {aim:5.2f}   {verdict:4}   {detail}")
