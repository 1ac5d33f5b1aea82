"""ExecutionLoop: requests that answer with calls and data, until one has an output (SEMANTICS.md)."""

from agentnb.loops.execution_loop.loop import ExecutionLoop
from agentnb.loops.execution_loop.projection import ExecutionEvent
from agentnb.loops.execution_loop.stream import ExecutionStream
from agentnb.loops.execution_loop.values import Call, ErrorMessage, Reject, Solution

__all__ = [
    "Call",
    "ErrorMessage",
    "ExecutionEvent",
    "ExecutionLoop",
    "ExecutionStream",
    "Reject",
    "Solution",
]
