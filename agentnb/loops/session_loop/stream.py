"""EventStream: the stream of a session's events during a run (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

from typing import Any

from agentnb.core.messages import Message
from agentnb.loops.session_loop.projection import SessionEvent, SessionProjection
from agentnb.loops.streaming import RunStream


class EventStream(RunStream[SessionEvent]):
    """The events of one run of a session (`agentnb.run.Run`). `result()` returns the messages that the run adds.

    `agentnb.widgets.EventStream` is another class: the part of a run's panel that shows its events.
    """

    projection: SessionProjection

    def __init__(self, run: Any) -> None:
        super().__init__(run, SessionProjection(has_hook=run.loop.before_call is not None))

    async def result(self) -> list[Message]:
        """Run to the end and return the messages that this run has added."""
        async for _ in self:
            pass
        return self.projection.new
