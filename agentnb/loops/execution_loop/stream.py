"""The stream of an execution loop's events: a run that is read in the design's words (`projection`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import RunFailed
from agentnb.loops.execution_loop.ahead import Ahead
from agentnb.loops.execution_loop.projection import ExecutionEvent, Projection
from agentnb.loops.streaming import DesignStream, Telling

if TYPE_CHECKING:
    from agentnb.loops.execution_loop.standing import ExecutionStanding
    from agentnb.run import Run


class ExecutionTelling(Telling[ExecutionEvent]):
    """A run in the words of an execution loop."""

    def __init__(self, run: Run, loop: ExecutionStanding) -> None:
        super().__init__(run)
        self._projection = Projection(loop)

    async def events(self) -> AsyncGenerator[ExecutionEvent, None]:
        """The loop's events, to `loop_completed`. Raises RunFailed where the loop itself has failed."""
        try:
            async with aclosing(Ahead(aiter(self.run))) as events:
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


class ExecutionStream(DesignStream[ExecutionEvent]):
    """The events of one run of an execution loop; `result()` gives the output once it is over."""

    def __init__(self, run: Run, loop: ExecutionStanding) -> None:
        super().__init__(ExecutionTelling(run, loop))

    async def result(self) -> Any:
        """Go on to the end; gives the output. Raises as awaiting the run does."""
        return await self
