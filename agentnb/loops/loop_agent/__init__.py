"""LoopAgent: runs its sub-agents in order, pass after pass (SEMANTICS.md)."""

from contextlib import aclosing as Aclosing

from agentnb.loops.loop_agent.adapter import exit_loop
from agentnb.loops.loop_agent.agents import BaseAgent
from agentnb.loops.loop_agent.callback_context import CallbackContext, ReadonlyContext, ToolConfirmation
from agentnb.loops.loop_agent.context import (
    InvocationContext,
    LlmCallsLimitExceededError,
    ResumabilityConfig,
    Session,
)
from agentnb.loops.loop_agent.event import BaseAgentState, Event, EventActions, LoopAgentState
from agentnb.loops.loop_agent.loop import LoopAgent
from agentnb.tools.context import State

__all__ = [
    "Aclosing",
    "BaseAgent",
    "BaseAgentState",
    "CallbackContext",
    "Event",
    "EventActions",
    "InvocationContext",
    "LlmCallsLimitExceededError",
    "LoopAgent",
    "LoopAgentState",
    "ReadonlyContext",
    "ResumabilityConfig",
    "Session",
    "State",
    "ToolConfirmation",
    "exit_loop",
]
