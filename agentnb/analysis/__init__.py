"""Recordings as data: tables, figures, differences, and policies tried on what was decided. Nothing here runs a loop.

from agentnb.analysis import calls, diff, timeline

calls(run)                 # a pandas DataFrame: one row a call
timeline(run).figure       # what ran when
diff(run, fork)            # where the two part, side by side
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentnb.analysis.difference import Difference, diff
    from agentnb.analysis.figures import approvals, dwell_times, latency, timeline, tokens
    from agentnb.analysis.frames import COLUMNS, calls, decisions, events, messages
    from agentnb.analysis.policies import Backtest, backtest
    from agentnb.analysis.tree import branches

__all__ = [
    "COLUMNS",
    "Backtest",
    "Difference",
    "approvals",
    "backtest",
    "branches",
    "calls",
    "decisions",
    "diff",
    "dwell_times",
    "events",
    "latency",
    "messages",
    "timeline",
    "tokens",
]

_WHERE = {
    "difference": ("Difference", "diff"),
    "figures": ("approvals", "dwell_times", "latency", "timeline", "tokens"),
    "frames": ("COLUMNS", "calls", "decisions", "events", "messages"),
    "policies": ("Backtest", "backtest"),
    "tree": ("branches",),
}
_WHEN_ASKED_FOR = {name: module for module, names in _WHERE.items() for name in names}
"""Figures need matplotlib, which takes a second to import, and tables do not. No module has the name of what it has: it
would stand in its place once it is imported."""


def __getattr__(name: str) -> Any:
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_WHEN_ASKED_FOR[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
