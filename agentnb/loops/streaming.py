"""The stream of a design's own events: an async iterator over a run that is read in the design's words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from agentnb.run import Run

Said = TypeVar("Said")


class DesignStream(ABC, Generic[Said]):
    """The events of one run, as it goes on; it begins when the first is asked for.

    Closing it before its end cancels the run. Awaiting it goes on to the end, and gives the run's output, or raises why
    there is none. `run` is the run, `ended` whether the last event has been said.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ended = False
        self._events = self._stream()

    @abstractmethod
    def _stream(self) -> AsyncGenerator[Said, None]:
        """What the run says in the design's words."""

    def __aiter__(self) -> AsyncIterator[Said]:
        return self

    async def __anext__(self) -> Said:
        return await anext(self._events)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._to_the_end().__await__()

    async def _to_the_end(self) -> Any:
        async for _ in self:
            pass
        return await self.run

    async def aclose(self) -> None:
        """Cancel the run, where it is not over, and wait until all of it has stopped."""
        await self._events.aclose()
        if not self.ended:  # it was closed before it began
            self.run.cancel("the stream was closed")
            self.ended = True
