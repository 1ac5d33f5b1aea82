"""Threads: what asyncio cannot bring back from one, and what becomes of them in a process that is forked."""

from __future__ import annotations

import os
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


def forgotten_in_a_fork(forget: Callable[[], None]) -> None:
    """Call `forget` in every process that is forked from this one (multiprocessing's way on Linux below Python 3.14).

    Threads do not go with it, and what believes in one would wait for it for ever.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        os.register_at_fork(after_in_child=forget)
