"""Calling a function in another thread: what asyncio cannot bring back from there is put in words that it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def carried(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function; a StopIteration becomes a RuntimeError, as a coroutine's own does.

    No future takes a StopIteration, so whoever waits for the thread would wait for ever.
    """
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError(f"StopIteration: {error}") from error
