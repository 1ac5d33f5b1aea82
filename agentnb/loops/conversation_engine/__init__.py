"""ConversationEngine: fetch context, decompose a goal into tasks, run them one by one (SEMANTICS 4)."""

from agentnb.loops.conversation_engine.loop import (
    VALID_STATE_TRANSITIONS,
    ConversationEngine,
    EngineContext,
    EngineEvent,
    EngineEventType,
    EngineState,
    SubTask,
)

__all__ = [
    "VALID_STATE_TRANSITIONS",
    "ConversationEngine",
    "EngineContext",
    "EngineEvent",
    "EngineEventType",
    "EngineState",
    "SubTask",
]
