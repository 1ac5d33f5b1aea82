"""agentnb: see inside agent loops from a Jupyter notebook.

from agentnb import SessionLoop, tool
from agentnb.llms import Local

run = SessionLoop(Local(), [my_tool]).start("What is in the file?")
run          # as the last line of a cell: the panel
await run    # the output

The packages, each of which imports only those below it (`ARCHITECTURE.md` says more):

    __main__     the command `python -m agentnb`: recordings from a shell
    testing      scripted models and recordings as models, for your own tests
    notebook     kernel integration: a thread for runs, clicks while a cell runs, magics
    analysis     recordings as tables, figures and differences
    widgets      the panel and its parts, live and static
    studies      many runs over a grid of arms, inputs and repeats
    store        where journals are kept: SQLite, PostgreSQL
    loops        the five designs, and loops of your own
    telemetry    a live run for OpenTelemetry and AG-UI
    run          a run: driver, effects, approvals, gate, journal, snapshot, fork, replay
    exporters    recordings in the formats of other tools
    importers    recordings of other tools, as events
    llms         clients for language models
    tools        tools from functions, loops and MCP servers
    json_schema  checking of arguments against a JSON schema
    threads      threads for sync functions of the user
    core         events, state, the fold between them, and what a loop is
    content      pictures, documents and sound in messages
    errors       every exception that agentnb raises
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentnb import errors as errors
from agentnb.core.errors import (
    AgentnbError,
    AlreadyDecided,
    LimitReached,
    ModelError,
    RunCancelled,
    RunFailed,
    ToolError,
    UnknownName,
    UsageError,
)
from agentnb.loops import DESIGNS
from agentnb.loops.base import Loop
from agentnb.notebook.kernel import in_kernel, in_terminal
from agentnb.run import Run, Snapshot, replay, restore
from agentnb.run.approvals.reviewer import reviewer
from agentnb.run.environment import use_presenter
from agentnb.run.headless import headless
from agentnb.tools import tool

if TYPE_CHECKING:
    from agentnb.loops.agent import Agent
    from agentnb.loops.conversation_engine import ConversationEngine
    from agentnb.loops.execution_loop import ExecutionLoop
    from agentnb.loops.loop_agent import LoopAgent
    from agentnb.loops.session_loop import SessionLoop
    from agentnb.notebook.attaching import attach
    from agentnb.notebook.runs_table import runs
    from agentnb.store import Store
    from agentnb.studies.resampling import resample
    from agentnb.studies.study import Study, study

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentnbError",
    "AlreadyDecided",
    "ConversationEngine",
    "ExecutionLoop",
    "LimitReached",
    "Loop",
    "LoopAgent",
    "ModelError",
    "Run",
    "RunCancelled",
    "RunFailed",
    "SessionLoop",
    "Snapshot",
    "Store",
    "Study",
    "ToolError",
    "UsageError",
    "attach",
    "headless",
    "load_ipython_extension",
    "replay",
    "resample",
    "restore",
    "reviewer",
    "runs",
    "study",
    "tool",
]

_WHEN_ASKED_FOR = {
    **DESIGNS,
    "Store": "agentnb.store",
    "Study": "agentnb.studies",
    "attach": "agentnb.notebook.attaching",
    "resample": "agentnb.studies",
    "runs": "agentnb.notebook.runs_table",
    "study": "agentnb.studies",
}
"""The modules of the names that are imported at their first use, because no program needs all of these modules."""
_PACKAGES = frozenset(
    {
        *("analysis", "core", "errors", "exporters", "importers", "llms", "loops", "notebook", "run", "store"),
        *("studies", "telemetry", "testing", "tools", "widgets"),
    }
)
"""The packages that are available as attributes without an explicit import."""


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _WHEN_ASKED_FOR:
        from difflib import get_close_matches  # for mistakes only

        close = [] if name.startswith("_") else get_close_matches(name, __dir__(), 1)
        meant = f". Did you mean: {close[0]!r}?" if close else ""
        raise UnknownName(f"module {__name__!r} has no attribute {name!r}{meant}")
    found = globals()[name] = getattr(import_module(_WHEN_ASKED_FOR[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, *(name for name in globals() if name.startswith("__"))})


def _widgets() -> Any:
    import agentnb.widgets

    return agentnb.widgets


use_presenter(_widgets)
if in_kernel() or in_terminal():
    from agentnb.notebook import install

    install()


def load_ipython_extension(ipython: Any) -> None:
    """Add the magics; called by `%load_ext agentnb`."""
    from agentnb.notebook import load_magics

    load_magics(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Remove the magics; called by `%unload_ext agentnb`."""
    from agentnb.notebook import unload_magics

    unload_magics(ipython)
