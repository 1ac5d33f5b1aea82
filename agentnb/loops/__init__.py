"""The loop designs, one module each."""

DESIGNS = {
    "Agent": "agentnb.loops.agent",
    "ConversationEngine": "agentnb.loops.conversation_engine",
    "ExecutionLoop": "agentnb.loops.execution_loop",
    "LoopAgent": "agentnb.loops.loop_agent",
    "SessionLoop": "agentnb.loops.session_loop",
}
"""Where each design is. They are imported when they are asked for."""
