"""Runs: the driver, its gate, decisions about calls, the journal, snapshots."""

from agentnb.run.pending import Pending
from agentnb.run.replay import Replay, replay
from agentnb.run.restore import restore
from agentnb.run.run import Run, latest_run, runs_here
from agentnb.run.snapshot import Snapshot

__all__ = ["Pending", "Replay", "Run", "Snapshot", "latest_run", "replay", "restore", "runs_here"]
