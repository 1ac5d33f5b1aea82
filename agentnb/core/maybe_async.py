"""Functions of the user, which may be async or not, and may be generators."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class InnerGenerator(AsyncIterator[T], Generic[T]):
    """An async generator that another generator iterates over and closes.

    An event loop that ends closes all generators that it knows of concurrently, and reports an error for one that
    another generator is already closing. So it must know only of the outermost one.
    """

    def __init__(self, generator: AsyncGenerator[T, None]) -> None:
        self._generator = generator
        self._has_started = False

    def __anext__(self) -> Awaitable[T]:
        if self._has_started:
            return anext(self._generator)
        self._has_started = True
        hooks = sys.get_asyncgen_hooks()  # the event loop registers a generator through these, only at its first step
        sys.set_asyncgen_hooks(None, None)
        try:
            return anext(self._generator)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    async def aclose(self) -> None:
        """Close the generator, and wait until it has ended."""
        try:
            if getattr(self._generator, "ag_frame", None) is not None:  # it has not ended yet
                await absorb_late_exit()
        finally:
            await self._generator.aclose()


@types.coroutine
def absorb_late_exit() -> Generator[None, None, None]:
    """Await this first, if the code that handles a cancellation awaits: it takes up the second error of a cancellation.

    Before Python 3.13, an async generator that is closed in a task which is cancelled before its first step gets two
    errors: a CancelledError, and a GeneratorExit at the next await. asyncio closes an abandoned generator in such a
    task, and `asyncio.run` cancels this task. The GeneratorExit would end the await, and all generators inside.
    """
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, (Exception, GeneratorExit)):
        with suppress(GeneratorExit):
            yield


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a function, or the `__call__` of a callable object, is async."""
    return any(
        is_kind(candidate)
        for candidate in (function, type(function).__call__)
        for is_kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )


async def settled(value: Any | Awaitable[Any]) -> Any:
    """Return the value, or the result of awaiting it if it is awaitable: the result of a function that may be async."""
    return await value if inspect.isawaitable(value) else value


async def listed(value: Any, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Any:
    """Return the value, or the list of its items if it is a generator: the result of a function that may be one.

    The returned value is tested, not the function: a decorator may have changed the function. A generator that is not
    async runs `in_thread`, as a sync function does.
    """
    if isinstance(value, AsyncGenerator):
        async with aclosing(value):
            return [item async for item in value]
    if inspect.isgenerator(value):
        return await in_thread(functools.partial(list, value))
    return value
