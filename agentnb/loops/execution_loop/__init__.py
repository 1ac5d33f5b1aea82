"""ExecutionLoop: requests that answer with calls and data, until one has an output (SEMANTICS.md)."""

from agentnb.loops.execution_loop.loop import ExecutionLoop
from agentnb.loops.execution_loop.stream import ExecutionEvent, ExecutionStream
from agentnb.loops.execution_loop.types import Call, ErrorMessage, Reject, Solution

__all__ = [
    "Call",
    "ErrorMessage",
    "ExecutionEvent",
    "ExecutionLoop",
    "ExecutionStream",
    "Reject",
    "Solution",
]
