"""Recordings as data: tables, figures, differences, and back-tests of policies. Nothing here runs a loop.

from agentnb.analysis import calls, diff, timeline

runs(study)                # a pandas DataFrame: one row for each run
calls(run)                 # a pandas DataFrame: one row for each call
timeline(run).figure       # what ran when
diff(run, fork)            # the differences, side by side
connect(store)             # DuckDB, with these tables
"""

from typing import TYPE_CHECKING

from agentnb.core.lazy import lazy_exports

if TYPE_CHECKING:
    from agentnb.analysis.difference import Difference, diff
    from agentnb.analysis.figures import approvals, dwell_times, latency, timeline, tokens
    from agentnb.analysis.frames import COLUMNS, calls, decisions, events, messages, runs
    from agentnb.analysis.policies import Backtest, backtest
    from agentnb.analysis.sql import connect, to_parquet
    from agentnb.analysis.tree import branches

__all__ = [
    "COLUMNS",
    "Backtest",
    "Difference",
    "approvals",
    "backtest",
    "branches",
    "calls",
    "connect",
    "decisions",
    "diff",
    "dwell_times",
    "events",
    "latency",
    "messages",
    "runs",
    "timeline",
    "to_parquet",
    "tokens",
]

_WHERE = {
    "difference": ("Difference", "diff"),
    "figures": ("approvals", "dwell_times", "latency", "timeline", "tokens"),
    "frames": ("COLUMNS", "calls", "decisions", "events", "messages", "runs"),
    "policies": ("Backtest", "backtest"),
    "sql": ("connect", "to_parquet"),
    "tree": ("branches",),
}
"""The public names of each module, imported at first use: matplotlib takes a second to import, and tables need none."""

__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
