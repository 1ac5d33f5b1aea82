"""LoopAgent: runs its sub-agents in order, pass after pass (SEMANTICS 1)."""

from agentnb.loops.loop_agent.loop import (
    BaseAgent,
    Event,
    EventActions,
    InvocationContext,
    LoopAgent,
    LoopAgentState,
    Session,
    exit_loop,
)

__all__ = [
    "BaseAgent",
    "Event",
    "EventActions",
    "InvocationContext",
    "LoopAgent",
    "LoopAgentState",
    "Session",
    "exit_loop",
]
