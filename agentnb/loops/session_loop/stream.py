"""SessionLoop's own stream: its events as the run goes on (SEMANTICS 3b)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from agentnb.core.errors import RunFailed
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.loops.session_loop.projection import Projection, SessionEvent
from agentnb.loops.streaming import DesignStream, Telling

if TYPE_CHECKING:
    from agentnb.run import Run


class SessionTelling(Telling[SessionEvent]):
    """A run in the words of a session."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.projection = Projection(has_hook=run.loop.before_call is not None)

    async def events(self) -> AsyncGenerator[SessionEvent, None]:
        """The session's events, to `agent_end`. Raises RunFailed where the loop has crashed."""
        try:
            async with aclosing(aiter(self.run)) as events:
                async for event in events:
                    for said in self.projection.say(event):
                        self.ended = said.type == "agent_end"
                        yield said
        except RunFailed as error:
            failure = self.run.state.failure
            if failure is None and error.__cause__ is not None and not _is_of_a_hook(self.run.state):
                raise  # a crash is no event of a session
            if failure is not None and not self.ended:  # the model of a loop inside has failed
                for said in self.projection.fail(failure):
                    self.ended = said.type == "agent_end"
                    yield said
        finally:
            self.ended = True


class EventStream(DesignStream[SessionEvent]):
    """The events of one run of a session; `result()` gives the new messages once it is over."""

    telling: SessionTelling

    def __init__(self, run: Run) -> None:
        super().__init__(SessionTelling(run))

    async def result(self) -> list[Message]:
        """Go on to the end; gives the messages this run has added."""
        async for _ in self:
            pass
        return self.telling.projection.new


def _is_of_a_hook(state: State) -> bool:
    """Whether the run has ended with the error of a call of the session's own."""
    return any(call.hidden and call.end is not None and call.end.error == state.error for call in state.calls.values())
