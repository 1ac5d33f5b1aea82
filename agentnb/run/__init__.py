"""Runs: the driver, its gate, decisions about calls, the journal, snapshots."""

from agentnb.run.approvals.pending import Pending
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.restoring import restore
from agentnb.run.run import Recording, Replay, Run, latest_run, replay, runs_here

__all__ = ["Pending", "Recording", "Replay", "Run", "Snapshot", "latest_run", "replay", "restore", "runs_here"]
