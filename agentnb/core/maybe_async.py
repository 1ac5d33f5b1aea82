"""Functions of the user's, which may be async or not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
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
