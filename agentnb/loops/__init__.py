"""The loop designs, one package each, and the base class that they share."""

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
"""The module of each design by class name. `design_of` imports a module on demand."""


def design_of(kind: str) -> type[Design] | None:
    """Return the design class that a recording names, or None if it is not in `DESIGNS`.

    A recording can cause the import of these modules only.
    """
    return getattr(import_module(DESIGNS[kind]), kind) if kind in DESIGNS else None
