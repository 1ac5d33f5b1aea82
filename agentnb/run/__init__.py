"""Runs: the driver, its gate, decisions about calls, the journal, snapshots."""

from agentnb.run.approvals.pending import Pending
from agentnb.run.past.replay import Replay, replay
from agentnb.run.past.restore import restore
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.run import Run, latest_run, runs_here

__all__ = ["Pending", "Replay", "Run", "Snapshot", "latest_run", "replay", "restore", "runs_here"]
