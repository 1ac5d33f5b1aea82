"""Restoring: a run that goes on from where a snapshot stands."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentnb.core.ending import ending, results_in
from agentnb.core.errors import RecordingMismatch, UsageError
from agentnb.core.events import Event, RunEnd
from agentnb.core.loop import Design, fingerprint
from agentnb.run.given import shown
from agentnb.run.journal import RunStore
from agentnb.run.run import Run
from agentnb.run.snapshot import Snapshot


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
    model that was being asked, or had failed, is asked again. A cancelled run goes on from before it was cancelled.

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
    events: Sequence[Event] = _before_the_end(snapshot.events, loop)
    if store is not None and store.position(snapshot.run_id) > len(events):
        events = _as_another_run(events)
    return Run(
        loop,
        name=name or snapshot.name,
        store=store,
        approve=approve,
        breakpoints=breakpoints,
        limits=limits,
        recording=events,
        suspended=_is_suspended(snapshot.events),
    )


def _check(snapshot: Snapshot, loop: Design) -> None:
    start = snapshot.start
    if start.loop != loop.kind():
        raise RecordingMismatch(f"The recording is of {start.loop}, and the loop to go on with is {loop.kind()}.")
    config = loop.config()
    if start.fingerprint != fingerprint(loop.kind(), config):
        names = sorted(k for k in {*config, *start.config} if config.get(k) != start.config.get(k))
        warnings.warn(
            f"The loop is not configured as it was recorded; different: {', '.join(names) or 'its order'}.",
            UserWarning,
            stacklevel=3,
        )


def _before_the_end(events: Sequence[Event], loop: Design) -> Sequence[Event]:
    """Without a cancellation or a suspension: those end a run in its process only (DESIGN 4).

    Nor with a part of an end that was not recorded to its own: it goes on from before that.
    """
    last = events[-1]
    if isinstance(last, RunEnd) and last.terminal:
        if last.reason == "suspended":
            return events[:-1]
        if last.reason == "error":
            return events[: loop.goes_on_after_an_error_from(events)]
        if last.reason != "cancelled":
            return events
    over = ending(events)
    results = [event.model_copy(update={"seq": n}) for n, event in enumerate(results_in(events[over:]), over)]
    return [*events[:over], *results]


def _is_suspended(events: Sequence[Event]) -> bool:
    last = events[-1]
    return isinstance(last, RunEnd) and last.reason == "suspended"


def _as_another_run(events: Sequence[Event]) -> list[Event]:
    run_id = uuid.uuid4().hex[:12]
    return [event.model_copy(update={"run_id": run_id}) for event in events]
