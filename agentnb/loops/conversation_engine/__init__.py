"""ConversationEngine: fetch context, decompose a goal into tasks, run them one by one (SEMANTICS.md)."""

from agentnb.loops.conversation_engine.loop import ConversationEngine
from agentnb.loops.conversation_engine.ports import EngineContext
from agentnb.loops.conversation_engine.states import VALID_STATE_TRANSITIONS, EngineState
from agentnb.loops.conversation_engine.stream import EngineEvent, EngineEventType
from agentnb.loops.conversation_engine.tasks import SubTask

__all__ = [
    "VALID_STATE_TRANSITIONS",
    "ConversationEngine",
    "EngineContext",
    "EngineEvent",
    "EngineEventType",
    "EngineState",
    "SubTask",
]
