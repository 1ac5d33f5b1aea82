"""SessionLoop's own stream: its events as the run goes on (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentnb.core.errors import RunFailed
from agentnb.core.messages import Message
from agentnb.loops.session_loop.projection import Projection, SessionEvent
from agentnb.loops.streaming import DesignStream, Telling

if TYPE_CHECKING:
    from agentnb.run import Run


class SessionTelling(Telling[SessionEvent]):
    """A run in the words of a session, to `agent_end`."""

    last = "agent_end"

    def is_said(self, error: RunFailed) -> bool:
        """A crash is no event of a session; the error that a session ends with, as one of its hook's, is."""
        state = self.run.state
        own = (call.end for call in state.calls.values() if call.hidden)
        return error.__cause__ is None or any(end is not None and end.error == state.error for end in own)


class EventStream(DesignStream[SessionEvent]):
    """The events of one run of a session; `result()` gives the new messages once it is over."""

    def __init__(self, run: Run) -> None:
        self._projection = Projection(has_hook=run.loop.before_call is not None)
        super().__init__(SessionTelling(run, self._projection.say, self._projection.fail))

    async def result(self) -> list[Message]:
        """Go on to the end; gives the messages this run has added."""
        async for _ in self:
            pass
        return self._projection.new
