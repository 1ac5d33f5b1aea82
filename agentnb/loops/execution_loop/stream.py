"""The stream of an execution loop's events: a run that is read in the design's words (`projection`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentnb.loops.execution_loop.ahead import Ahead
from agentnb.loops.execution_loop.projection import ExecutionEvent, Projection
from agentnb.loops.streaming import DesignStream, Telling

if TYPE_CHECKING:
    from agentnb.loops.execution_loop.standing import ExecutionStanding
    from agentnb.run import Run


class ExecutionTelling(Telling[ExecutionEvent]):
    """A run in the words of an execution loop, to `loop_completed`."""

    last = "loop_completed"

    def facts(self) -> Ahead[Any]:
        """The run's own events, read ahead."""
        return Ahead(aiter(self.run))


class ExecutionStream(DesignStream[ExecutionEvent]):
    """The events of one run of an execution loop; `result()` gives the output once it is over."""

    def __init__(self, run: Run, loop: ExecutionStanding) -> None:
        projection = Projection(loop)
        super().__init__(ExecutionTelling(run, projection.say, projection.fail))

    async def result(self) -> Any:
        """Go on to the end; gives the output. Raises as awaiting the run does."""
        return await self
