"""Calls of user-supplied functions, sync or async. Sync functions run in a thread and do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentnb.core.maybe_async import is_async, listed, settled
from agentnb.threads import THREADS


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function and return its result. Awaitables are awaited; the values of a generator become a list."""
    returned = function(*args, **kwargs) if is_async(function) else await _in_thread(function, *args, **kwargs)
    return await listed(await settled(returned), _in_thread)


def _in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Awaitable[Any]:
    return asyncio.wrap_future(THREADS.call(function, *args, **kwargs))
