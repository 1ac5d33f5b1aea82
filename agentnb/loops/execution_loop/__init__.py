"""ExecutionLoop: requests that answer with calls and data, until one has an output (SEMANTICS 2)."""

from agentnb.loops.execution_loop.loop import (
    Call,
    ErrorMessage,
    ExecutionEvent,
    ExecutionLoop,
    ExecutionStream,
    Reject,
    Solution,
)

__all__ = [
    "Call",
    "ErrorMessage",
    "ExecutionEvent",
    "ExecutionLoop",
    "ExecutionStream",
    "Reject",
    "Solution",
]
