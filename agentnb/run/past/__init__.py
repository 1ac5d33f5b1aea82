"""The past of a run: snapshots, restored runs, forks and replays."""
