"""The stream of an execution loop's events: a run that is read in the design's words (`projection`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import RunFailed
from agentnb.loops.execution_loop.ahead import ahead
from agentnb.loops.execution_loop.projection import ExecutionEvent, Projection

if TYPE_CHECKING:
    from agentnb.loops.execution_loop.standing import ExecutionStanding
    from agentnb.run import Run


class ExecutionStream:
    """The events of one run of an execution loop, as it goes on; it begins when the first is asked for.

    Closing the stream before its end cancels the run. `result()` gives the output once it is over.
    """

    def __init__(self, run: Run, loop: ExecutionStanding) -> None:
        self.run = run
        self.ended = False
        self._projection = Projection(loop)
        self._events = self._stream()

    def __aiter__(self) -> AsyncIterator[ExecutionEvent]:
        return self

    async def __anext__(self) -> ExecutionEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Cancel the run, where it is not over, and wait until all of it has stopped."""
        await self._events.aclose()
        if not self.ended:  # it was closed before it began
            self.run.cancel("the stream was closed")
            self.ended = True

    async def result(self) -> Any:
        """Go on to the end; gives the output. Raises as awaiting the run does."""
        async for _ in self:
            pass
        return await self.run

    async def _stream(self) -> AsyncGenerator[ExecutionEvent, None]:
        try:
            async with aclosing(ahead(aiter(self.run))) as events:
                async for event in events:
                    for said in self._projection.say(event):
                        self.ended = said.type == "loop_completed"
                        yield said
        except RunFailed:
            failure = self.run.state.failure
            if failure is not None and not self.ended:
                self.ended = True
                for said in self._projection.fail(failure):
                    yield said
            elif failure is None:  # the loop's own failure is no event of it
                raise
        finally:
            self.ended = True
