"""Restoring: a run that goes on from where a snapshot stands."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentnb.core.ending import is_suspended
from agentnb.core.errors import UsageError
from agentnb.core.events import Event, RunEnd, RunResumed
from agentnb.core.loop import Design, fingerprint
from agentnb.run.given import shown
from agentnb.run.journal import RunStore
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.past.taken_over import as_of, check_kind, new_run_id, past_of_a_restored_run
from agentnb.run.run import Run


def restore(
    snapshot: Snapshot | Run | str | Path,
    loop: Design,
    *,
    store: RunStore | None = None,
    name: str | None = None,
    approve: Any = None,
    breakpoints: Sequence[Any] = (),
    limits: Mapping[str, float] | None = None,
) -> Run:
    """A run that goes on from a snapshot, with `loop` to decide what comes next.

    Calls that have a result do not run again. A call that was started and has none runs again only if its tool is
    idempotent; otherwise it waits in `run.pending`: approve runs it again, answer gives its result, reject fails it. A
    model that was being asked, or had failed, is asked again. A cancelled run goes on from before it was cancelled. A
    call that waits for a decision is put to `approve` first, where that is given. A run that met one of its `limits`
    goes on from before that where `limits` are given; without them it is over.

    Raises RecordingMismatch where the recording is of another kind of loop, and warns where the loop is configured
    differently. With `store`, the run goes on under its own id where the store has nothing newer of it, and otherwise
    as a new run.
    """
    if isinstance(snapshot, (str, Path)):
        snapshot = Snapshot.load(snapshot)
    elif isinstance(snapshot, Run):
        snapshot = snapshot.snapshot()
    if not isinstance(snapshot, Snapshot):
        raise UsageError(
            f"restore(snapshot, loop) takes a snapshot, a run or the path of a file, not {shown(snapshot)}."
        )
    if not isinstance(loop, Design):
        raise UsageError(f"restore(snapshot, loop) takes the loop to go on with, not {shown(loop)}.")
    _check(snapshot, loop)
    events: Sequence[Event] = past_of_a_restored_run(snapshot.events, loop, has_new_limits=limits is not None)
    if store is not None and store.position(snapshot.run_id) > len(events):
        events = as_of(new_run_id(), events)
    return Run(
        loop,
        name=name or snapshot.name,
        store=store,
        approve=approve,
        breakpoints=breakpoints,
        limits=limits,
        recording=events,
        resumed=_resumed(snapshot.events, loop),
    )


def _resumed(recorded: Sequence[Event], loop: Design) -> RunResumed | None:
    """What the restored run begins with, where its recording had ended in a suspension or with a failed step."""
    last = recorded[-1]
    if is_suspended(last):
        return RunResumed.make(suspended=True)
    if isinstance(last, RunEnd) and last.terminal and last.reason == "error" and (again := loop.failed_steps(recorded)):
        return RunResumed.make(again=dict(again))
    return None


def _check(snapshot: Snapshot, loop: Design) -> None:
    start = snapshot.start
    check_kind(start, loop)
    config = loop.config()
    if start.fingerprint != fingerprint(loop.kind(), config):
        names = sorted(k for k in {*config, *start.config} if config.get(k) != start.config.get(k))
        warnings.warn(
            f"The loop is not configured as it was recorded; different: {', '.join(names) or 'its order'}.",
            UserWarning,
            stacklevel=3,
        )
