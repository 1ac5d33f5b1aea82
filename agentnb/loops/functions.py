"""Calling functions of the user's, sync or async: one that is sync runs in a thread, so that it holds up nobody."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from agentnb.core.threads import THREADS


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives, once that was awaited where it has to be."""
    if is_async(function):
        said = function(*args, **kwargs)
    else:
        said = await asyncio.wrap_future(THREADS.call(function, *args, **kwargs))
    return await said if inspect.isawaitable(said) else said


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is async, as a function or as an object that is called."""
    return any(
        is_such(one)
        for one in (function, type(function).__call__)
        for is_such in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )
