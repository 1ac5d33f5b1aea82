"""Restoring: the construction of a run that continues from a snapshot."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from agentnb.core.errors import UsageError, printable
from agentnb.core.events import Event, RunEnd, RunStart
from agentnb.core.json import same_json, to_json_data
from agentnb.core.loop import Design, fingerprint
from agentnb.core.protocols import RunStore
from agentnb.core.resume_point import is_suspended, results_in, resume_point
from agentnb.run.journal import new_run_id
from agentnb.run.past.recorded_loop import check_kind
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.run import Run
from agentnb.run.validation import shown

_NOTHING: Mapping[str, float] = {}


def restore(
    snapshot: Snapshot | Run | str | Path,
    loop: Design,
    *,
    store: RunStore | None = None,
    name: str | None = None,
    approve: Any = None,
    breakpoints: Sequence[Any] = (),
    limits: Mapping[str, float] | None = None,
    on_limit: Literal["end", "ask"] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Run:
    """Return a run that continues from a snapshot, with the decisions of `loop`.

    Calls with a result do not run again. A call that was started and has no result runs again only if its tool is
    idempotent. Otherwise it waits in `run.pending`: approve runs it again, answer sets its result, reject fails it. A
    model request that was in flight or had failed is made again. A call that awaits a decision is first submitted to
    `approve`, if that is given.

    A cancelled run continues from the position before it was cancelled. A run that reached one of its `limits`
    continues from the position before that if new `limits` are given; otherwise it has ended. A LoopAgent that has
    ended with an error continues at the step that failed. If a sub-agent decided by its own rules to end with an error,
    the sub-agent starts again and repeats its calls.

    The run keeps its policy and its limits unless others are given, and its options in addition to those given; given
    ones are recorded. A recording does not
    contain a policy that was a function: a warning is issued, and every call needs approval until `approve` is given
    again. With `store`, the run keeps its id if the store has no later events of it; otherwise it gets a new id.

    Raises RecordingMismatch if the recording is of another kind of loop, UsageError if the arguments have other types,
    and for a file the errors of `Snapshot.load`. Warns if the configuration of the loop has changed, or if a tool has
    another description or schema: decisions about calls of that tool that have not started, and remembered decisions,
    are then requested again.
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
        raise UsageError(f"restore(snapshot, loop) takes the loop to continue with, not {shown(loop)}.")
    check_kind(snapshot.start, loop)
    _warn_of_another_configuration(snapshot, loop)

    # Use a new id if the store has later events of this run: they must not be overwritten.
    events: Sequence[Event] = _kept_events(snapshot.events, loop, has_new_limits=limits is not None)
    if store is not None and store.position(snapshot.run_id) > len(events):
        run_id = new_run_id()
        events = [replace(event, run_id=run_id, seq=number) for number, event in enumerate(events)]
    run = Run(
        loop,
        name=name or snapshot.name,
        store=store,
        approve=approve,
        breakpoints=breakpoints,
        limits=limits,
        on_limit=on_limit,
        options=options,
        recording=events,
        suspended=is_suspended(snapshot.events[-1]),
        again=_failed_steps(snapshot.events, loop),
        paid=_paid_in_vain(snapshot.events, events),
    )
    _warn_of_changed_tools(run)
    return run


def _kept_events(events: Sequence[Event], loop: Design, *, has_new_limits: bool = False) -> Sequence[Event]:
    """Return the events that a restored run keeps.

    A cancellation or a suspension is dropped, because it ends a run in its process only (ARCHITECTURE.md, 2. How a run
    works). The end at a limit is dropped if there are new limits (`has_new_limits`). After an error, the loop decides
    how many events to keep. An end that was recorded incompletely is dropped too.
    """
    last = events[-1]
    if isinstance(last, RunEnd) and last.terminal:
        if is_suspended(last):
            return events[:-1]
        if last.reason == "error":
            return events[: loop.kept_after_error(events)]
        if last.reason != "cancelled" and not (last.reason == "limit" and has_new_limits):
            return events
    # Drop the end, but keep the results of tools in it, numbered again.
    end = resume_point(events)
    results = [replace(event, seq=n) for n, event in enumerate(results_in(events[end:]), end)]
    return [*events[:end], *results]


def _paid_in_vain(recorded: Sequence[Event], kept: Sequence[Event]) -> Mapping[str, float]:
    """Return the usage in those of the recorded events that are not kept: such answers were paid, too."""
    paid: dict[str, float] = {}
    for events, sign in ((recorded, 1), (kept, -1)):
        for event in events:
            for name, amount in getattr(event, "usage", _NOTHING).items():
                paid[name] = paid.get(name, 0) + sign * amount
    return {name: amount for name, amount in paid.items() if amount > 0}


def _failed_steps(recorded: Sequence[Event], loop: Design) -> Mapping[str, list[str]]:
    """Return the ids of the calls whose failure ended the recorded run, by the path of their loop; else empty."""
    last = recorded[-1]
    has_failed = isinstance(last, RunEnd) and last.terminal and last.reason == "error"
    return loop.repeated_after_error(recorded) if has_failed else {}


def _warn_of_another_configuration(snapshot: Snapshot, loop: Design) -> None:
    recorded, config = snapshot.start.config, loop.config()
    # A recording lacks the settings that did not exist yet. The loop then behaved as it does with their defaults.
    config = {key: value for key, value in config.items() if key in recorded or not _is_default(loop, key, value)}
    if fingerprint(loop.kind(), recorded) != fingerprint(loop.kind(), config):
        missing = object()
        names = sorted(k for k in {*config, *recorded} if config.get(k, missing) != recorded.get(k, missing))
        warnings.warn(
            printable(f"The configuration of the loop differs from the recording: {', '.join(names)}."),
            UserWarning,
            stacklevel=3,
        )


def _is_default(loop: Design, key: str, value: Any) -> bool:
    """Return True if this value of a setting is the default of the constructor's argument, or says "not set"."""
    parameter = inspect.signature(type(loop)).parameters.get(key)
    if parameter is not None and same_json(to_json_data(parameter.default), value):
        return True
    return value is None or value is False or value in ("", [], {}, ())


def _warn_of_changed_tools(run: Run) -> None:
    """Warn of the tools of running loops whose description or schema differs from the recorded one."""
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
            f" {printable(', '.join(changed))}. Decisions about calls of them are requested again.",
            UserWarning,
            stacklevel=3,
        )
