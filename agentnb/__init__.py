"""agentnb: see inside agent loops from a Jupyter notebook.

from agentnb import SessionLoop, tool
from agentnb.llms import Local

run = SessionLoop(Local(), [my_tool]).start("What is in the file?")
run          # as the last line of a cell: the panel
await run    # the output
"""

from agentnb.core.errors import (
    AgentnbError,
    AlreadyDecided,
    LimitReached,
    ModelError,
    RunCancelled,
    RunFailed,
    ToolError,
    UsageError,
)
from agentnb.loops.base import Loop, use_driver
from agentnb.loops.session_loop import SessionLoop
from agentnb.run import Run, Snapshot, restore
from agentnb.store import Store
from agentnb.tools import tool

__version__ = "0.1.0"

__all__ = [
    "AgentnbError",
    "AlreadyDecided",
    "LimitReached",
    "Loop",
    "ModelError",
    "Run",
    "RunCancelled",
    "RunFailed",
    "SessionLoop",
    "Snapshot",
    "Store",
    "ToolError",
    "UsageError",
    "restore",
    "tool",
]

use_driver(Run)
