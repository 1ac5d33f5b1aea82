"""Reading ahead: the run continues while its reader is busy (SEMANTICS.md, 13. Reading ahead).

Calls of an execution loop run while the answer streams and beside each other, whatever whoever reads the events does in
the meantime. So the run is pulled by a task of its own, which hands on each event at once: a reader that keeps up sees
things as they happen, and one that does not holds nothing up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T], AsyncIterator[T]):
    """The items of a generator, in their order. Raises what it raises; closing this has closed it.

    No generator itself: an event loop that ends closes all generators that were left at once, and of two that stand
    one inside the other, and both wait, one would complain.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._ready: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def __anext__(self) -> T:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        if (item := await self._ready.get()) is not None:
            return item[0]
        self._ready.put_nowait(None)  # for whoever asks again
        await self._reading
        raise StopAsyncIteration

    async def _read(self) -> None:
        try:
            async with aclosing(self._items):
                async for item in self._items:
                    self._ready.put_nowait((item,))
        finally:
            self._ready.put_nowait(None)

    async def aclose(self) -> None:
        """Stop reading, and wait until the generator has stopped."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)  # what it raises was raised, or nobody listens
