"""Calling functions of the user's, sync or async: one that is sync runs in a thread, so that it holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentnb.core.maybe_async import is_async, settled
from agentnb.core.threads import THREADS


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function gives, once that was awaited where it has to be."""
    if is_async(function):
        said = function(*args, **kwargs)
    else:
        said = await asyncio.wrap_future(THREADS.call(function, *args, **kwargs))
    return await settled(said)
