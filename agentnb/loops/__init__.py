"""The loop designs, one module each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentnb.core.loop import Design

DESIGNS = {
    "Agent": "agentnb.loops.agent",
    "ConversationEngine": "agentnb.loops.conversation_engine",
    "ExecutionLoop": "agentnb.loops.execution_loop",
    "LoopAgent": "agentnb.loops.loop_agent",
    "SessionLoop": "agentnb.loops.session_loop",
}
"""Where each design is. They are imported when they are asked for."""


def design_of(kind: str) -> type[Design] | None:
    """The design that recordings name so, if it is one of these: nothing else is ever imported because one names it."""
    return getattr(import_module(DESIGNS[kind]), kind) if kind in DESIGNS else None
