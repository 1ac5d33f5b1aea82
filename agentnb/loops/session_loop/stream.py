"""EventStream: the stream of a session's events during a run (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentnb.core.errors import RunFailed
from agentnb.core.messages import Message
from agentnb.loops.session_loop.projection import Projection, SessionEvent
from agentnb.loops.streaming import DesignStream, Telling

if TYPE_CHECKING:
    from agentnb.run import Run


class SessionTelling(Telling[SessionEvent]):
    """The translation of a run into a session's events, up to `agent_end`."""

    last = "agent_end"

    def is_said(self, error: RunFailed) -> bool:
        """Return True if `agent_end` reports this error.

        It reports an error with which the session has ended, such as the failure of a hook, but not a crash.
        """
        state = self.run.state
        own = (call.end for call in state.calls.values() if call.hidden)
        return error.__cause__ is None or any(end is not None and end.error == state.error for end in own)


class EventStream(DesignStream[SessionEvent]):
    """The events of one run of a session. `result()` returns the new messages after its end."""

    def __init__(self, run: Run) -> None:
        self._projection = Projection(has_hook=run.loop.before_call is not None)
        super().__init__(SessionTelling(run, self._projection.say, self._projection.fail))

    async def result(self) -> list[Message]:
        """Run to the end and return the messages that this run has added."""
        async for _ in self:
            pass
        return self._projection.new
