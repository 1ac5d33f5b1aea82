"""SessionLoop: a chat agent's loop, two loops in one (SEMANTICS 3)."""

from agentnb.loops.session_loop.loop import (
    EventStream,
    MessageQueue,
    SessionEvent,
    SessionLoop,
    ToolCallContext,
)

__all__ = [
    "EventStream",
    "MessageQueue",
    "SessionEvent",
    "SessionLoop",
    "ToolCallContext",
]
