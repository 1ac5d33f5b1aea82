"""SessionLoop: the loop of a chat agent, with an inner loop for tool calls (SEMANTICS.md)."""

from agentnb.loops.session_loop.hooks import ToolCallContext, TurnContext
from agentnb.loops.session_loop.loop import SessionLoop
from agentnb.loops.session_loop.projection import SessionEvent
from agentnb.loops.session_loop.queue import MessageQueue
from agentnb.loops.session_loop.stream import EventStream

__all__ = [
    "EventStream",
    "MessageQueue",
    "SessionEvent",
    "SessionLoop",
    "ToolCallContext",
    "TurnContext",
]
