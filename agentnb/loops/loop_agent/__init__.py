"""LoopAgent: runs its sub-agents in order, pass after pass (SEMANTICS 1)."""

from agentnb.loops.loop_agent.base_agent import BaseAgent
from agentnb.loops.loop_agent.event import Event, EventActions, LoopAgentState
from agentnb.loops.loop_agent.exit_loop import exit_loop
from agentnb.loops.loop_agent.invocation import InvocationContext, Session
from agentnb.loops.loop_agent.loop import LoopAgent

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
