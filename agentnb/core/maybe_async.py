"""Functions of the user's, which may be async or not, and may yield."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is async, as a function or as an object that is called."""
    return any(
        is_such(one)
        for one in (function, type(function).__call__)
        for is_such in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )


async def settled(value: Any | Awaitable[Any]) -> Any:
    """The value itself, or what awaiting it gives: what such a function gave."""
    return await value if inspect.isawaitable(value) else value


async def listed(value: Any, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Any:
    """The value itself, or the list of what it yields: what such a function gave, where it is a generator.

    What it gave tells, and not what it is or wraps: a decorator may have changed that. One that is not async runs
    `in_thread`, as a function does.
    """
    if isinstance(value, AsyncGenerator):
        async with aclosing(value):
            return [item async for item in value]
    if inspect.isgenerator(value):
        return await in_thread(functools.partial(list, value))
    return value
