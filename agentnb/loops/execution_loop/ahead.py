"""Reading ahead: what is read goes on while its reader is busy (SEMANTICS 6a).

Calls of an execution loop run while the answer streams and beside each other, whatever whoever reads the events does in
the meantime. So the run is pulled by a task of its own, which hands on each event at once: a reader that keeps up sees
things as they happen, and one that does not holds nothing up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def ahead(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The items of a generator, in their order. Raises what it raises; closing this has closed it."""
    ready: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async with aclosing(items):
                async for item in items:
                    ready.put_nowait((item,))
        finally:
            ready.put_nowait(None)

    reading = asyncio.create_task(read())
    try:
        while (item := await ready.get()) is not None:
            yield item[0]
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)  # what it raises was raised above, or nobody listens
