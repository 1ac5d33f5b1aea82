"""Calling functions of the user's, sync or async: one that is sync runs in a thread, so that it holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agentnb.core.maybe_async import is_async, listed, settled
from agentnb.core.threads import THREADS


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives, once that was awaited where it has to be; of one that yields, the list of that."""
    said = function(*args, **kwargs) if is_async(function) else await _in_thread(function, *args, **kwargs)
    return await listed(await settled(said), _in_thread)


def _in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Awaitable[Any]:
    return asyncio.wrap_future(THREADS.call(function, *args, **kwargs))
