"""The loop designs, one package each, and the base class that they share."""

from agentnb.core.loop import register_designs

DESIGNS = {
    "Agent": "agentnb.loops.agent",
    "ConversationEngine": "agentnb.loops.conversation_engine",
    "ExecutionLoop": "agentnb.loops.execution_loop",
    "LoopAgent": "agentnb.loops.loop_agent",
    "SessionLoop": "agentnb.loops.session_loop",
}
"""The module of each design, by class name. It is imported at the first use (`agentnb.core.loop.design_of`)."""

register_designs(DESIGNS)
