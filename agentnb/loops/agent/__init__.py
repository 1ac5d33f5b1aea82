"""Agent: a model, its tools and a retriever, as one stream of events (SEMANTICS 5)."""

from agentnb.loops.agent.loop import (
    Agent,
    AgentEvent,
    AgentEventType,
    EventCollector,
    ToolCall,
    ToolResult,
    TurnState,
)

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentEventType",
    "EventCollector",
    "ToolCall",
    "ToolResult",
    "TurnState",
]
