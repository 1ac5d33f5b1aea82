"""Restoring: a run that goes on from where a snapshot stands."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentnb.core.ending import is_suspended
from agentnb.core.errors import UsageError
from agentnb.core.events import Event, RunEnd, RunStart
from agentnb.core.loop import Design, fingerprint
from agentnb.core.unicode import printable
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
    goes on from before that where `limits` are given; without them it is over. A LoopAgent that has ended in an error
    goes on at what has failed; a sub-agent that has itself decided to end in one begins anew, and makes its calls
    again.

    The run keeps its policy and its limits, unless others are given; those are recorded. A policy that was a function
    is in no recording: then every call is asked about until `approve` is given again, and a warning says so.

    Raises RecordingMismatch where the recording is of another kind of loop. Warns where the loop is configured
    differently, or where a tool has another description or schema: what was decided or remembered about that tool, and
    has not begun, is asked about again. With `store`, the run goes on under its own id where the store has nothing
    newer of it, and otherwise as a new run.
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
    check_kind(snapshot.start, loop)
    _warn_of_another_configuration(snapshot, loop)
    events: Sequence[Event] = past_of_a_restored_run(snapshot.events, loop, has_new_limits=limits is not None)
    if store is not None and store.position(snapshot.run_id) > len(events):
        events = as_of(new_run_id(), events)
    run = Run(
        loop,
        name=name or snapshot.name,
        store=store,
        approve=approve,
        breakpoints=breakpoints,
        limits=limits,
        recording=events,
        suspended=is_suspended(snapshot.events[-1]),
        again=_failed_steps(snapshot.events, loop),
    )
    _warn_of_changed_tools(run)
    return run


def _failed_steps(recorded: Sequence[Event], loop: Design) -> Mapping[str, list[str]]:
    """The calls whose failure has ended the recorded run, by the path of their loop."""
    last = recorded[-1]
    has_failed = isinstance(last, RunEnd) and last.terminal and last.reason == "error"
    return loop.failed_steps(recorded) if has_failed else {}


def _warn_of_another_configuration(snapshot: Snapshot, loop: Design) -> None:
    recorded, config = snapshot.start.config, loop.config()
    if fingerprint(loop.kind(), recorded) != fingerprint(loop.kind(), config):
        names = sorted(k for k in {*config, *recorded} if config.get(k) != recorded.get(k))
        warnings.warn(
            printable(f"The loop is not configured as it was recorded; different: {', '.join(names) or 'its order'}."),
            UserWarning,
            stacklevel=3,
        )


def _warn_of_changed_tools(run: Run) -> None:
    """Say which tools have another description or schema than when the loops that go on were recorded."""
    recorded = {event.path: event.tools for event in run.events if isinstance(event, RunStart)}
    changed = [
        f"{name} in {frame.path}" if frame.path else name
        for frame in run._journal.frames
        for name, now in frame.fingerprints.items()
        if recorded.get(frame.path, {}).get(name, now) != now
    ]
    if changed and not run.state.over:
        warnings.warn(
            "These tools have another description or schema than in the recording:"
            f" {printable(', '.join(changed))}. What was decided or remembered about them is asked about again.",
            UserWarning,
            stacklevel=3,
        )
