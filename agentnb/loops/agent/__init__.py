"""Agent: a loop of a model, its tools and a retriever, with one stream of events (SEMANTICS.md)."""

from agentnb.loops.agent.events import AgentEvent, AgentEventType, EventCollector, ToolCall, ToolResult
from agentnb.loops.agent.loop import Agent, AgentExecutor
from agentnb.loops.agent.turns import TurnState

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentEventType",
    "AgentExecutor",
    "EventCollector",
    "ToolCall",
    "ToolResult",
    "TurnState",
]
