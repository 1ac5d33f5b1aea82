"""Functions of the user's, which may be async or not, and may yield."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Inside(AsyncIterator[T], Generic[T]):
    """An async generator that another one iterates over, and closes.

    An event loop that ends closes every generator that it knows of, all at the same time, and reports an error for one
    that another generator is closing already. So it must know of the outermost alone.
    """

    def __init__(self, generator: AsyncGenerator[T, None]) -> None:
        self._generator = generator
        self._begun = False

    def __anext__(self) -> Awaitable[T]:
        if self._begun:
            return anext(self._generator)
        self._begun = True
        hooks = sys.get_asyncgen_hooks()  # by which the event loop gets to know of it, now or never
        sys.set_asyncgen_hooks(None, None)
        try:
            return anext(self._generator)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    async def aclose(self) -> None:
        """Close the generator."""
        await self._generator.aclose()


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
