"""SessionLoop's own stream: its events as the run goes on (SEMANTICS 3b)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from agentnb.core.errors import RunFailed
from agentnb.core.messages import Message
from agentnb.loops.session_loop.projection import Projection, SessionEvent

if TYPE_CHECKING:
    from agentnb.run import Run


class EventStream:
    """The events of one run of a session, as it goes on: the run moves as they are asked for.

    Closing the stream before its end aborts the run. `result()` gives the new messages once it is over.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ended = False
        self._projection = Projection()
        self._events = self._stream()

    def __aiter__(self) -> AsyncIterator[SessionEvent]:
        return self

    async def __anext__(self) -> SessionEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Abort the run, where it is not over, and wait until all of it has stopped."""
        await self._events.aclose()
        if not self.ended:  # it was closed before it began
            self.run.cancel("the stream was closed")
            self.ended = True

    async def result(self) -> list[Message]:
        """Go on to the end; gives the messages this run has added."""
        async for _ in self:
            pass
        return self._projection.new

    async def _stream(self) -> AsyncGenerator[SessionEvent, None]:
        try:
            async with aclosing(aiter(self.run)) as events:
                async for event in events:
                    if self.ended:  # a model that failed, and then a cancellation: the session's end has been said
                        continue
                    for said in self._projection.say(event):
                        self.ended = said.type == "agent_end"
                        yield said
        except RunFailed as error:
            failure = self.run.state.failure
            if failure is None and error.__cause__ is not None:  # a crash is no event of a session
                raise
            if failure is not None and not self.ended:  # the model of a loop inside has failed
                for said in self._projection.fail(failure):
                    self.ended = said.type == "agent_end"
                    yield said
        finally:
            self.ended = True
