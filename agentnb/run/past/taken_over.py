"""The past of a run that goes on from a recording: which of its events are the new run's, too.

What only ended the recorded run is none of it (`agentnb.core.ending`), and what its tools have given stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from agentnb.core.ending import ending, is_suspended, results_in
from agentnb.core.errors import RecordingMismatch, UsageError
from agentnb.core.events import CallEnd, CallStart, Event, RunEnd, RunStart
from agentnb.core.evolve import fold
from agentnb.core.loop import Design, configured
from agentnb.core.tools import fingerprint_of
from agentnb.tools import as_tools


def check_kind(start: RunStart, loop: Design) -> None:
    """Raise RecordingMismatch where the recording that begins so is of another kind of loop."""
    if start.loop != loop.kind():
        raise RecordingMismatch(f"The recording is of {start.loop}, and the loop to go on with is {loop.kind()}.")


def fingerprints(loop: Design) -> dict[str, str]:
    """The fingerprint of each of the loop's tools, by its name."""
    return {name: fingerprint_of(tool) for name, tool in as_tools(loop.tools).items()}


def new_run_id() -> str:
    """The id of a run that is made now."""
    return uuid.uuid4().hex[:12]


def as_of(run_id: str, events: Sequence[Event]) -> list[Event]:
    """These events as those of another run, numbered from 0."""
    return [event.model_copy(update={"run_id": run_id, "seq": number}) for number, event in enumerate(events)]


def past_of_a_restored_run(events: Sequence[Event], loop: Design, *, has_new_limits: bool = False) -> Sequence[Event]:
    """Without a cancellation or a suspension: those end a run in its process only (DESIGN 4).

    Nor with the end at a limit, where there are new ones; nor with a part of an end that was not recorded to its own:
    it goes on from before that.
    """
    last = events[-1]
    if isinstance(last, RunEnd) and last.terminal:
        if is_suspended(last):
            return events[:-1]
        if last.reason == "error":
            return events[: loop.goes_on_after_an_error_from(events)]
        if last.reason != "cancelled" and not (last.reason == "limit" and has_new_limits):
            return events
    over = ending(events)
    results = [event.model_copy(update={"seq": n}) for n, event in enumerate(results_in(events[over:]), over)]
    return [*events[:over], *results]


def past_of_a_fork(
    events: Sequence[Event], seq: int, loop: Design, *, instead: Event | None = None, without: bool = False
) -> list[Event]:
    """The events up to `seq`, with another `instead` of the last, or without it, as those of a new run.

    Raises UsageError where nothing would be left, or nothing of what is changed.
    """
    kept = [*events[:seq], *([] if without else [instead or events[seq]])]
    over = min(ending(events), len(events) - events[-1].terminal)
    if instead is not None and over <= seq:
        raise UsageError(f"The fork of a run that is over goes on before its event {over}: nothing behind it is kept.")
    kept = [*kept[:over], *results_in(kept[over:])]
    if not kept:
        raise UsageError("A fork begins with the event run_start at the least.")
    kept += _ends_of_running_calls(kept, events[seq + 1 :])
    first, *others = as_of(new_run_id(), kept)
    begun = {"forked_from": f"{events[0].run_id}@{seq}", **configured(loop, fingerprints(loop))}
    return [first.model_copy(update=begun), *others]


def _ends_of_running_calls(kept: Sequence[Event], later: Sequence[Event]) -> list[Event]:
    """The recorded ends of the calls that tools are performing after the events that are kept.

    A call that another loop performs is no such call, nor what a loop does itself: that goes on, or begins, in the new
    run.
    """
    performed = {(event.path.rpartition("/")[0], event.call) for event in later if isinstance(event, RunStart)}
    own = {(event.path, event.call_id) for event in kept if isinstance(event, CallStart) and event.own}
    running = {
        (path, call.id)
        for path, loop in fold(kept).running()
        for call in loop.open.values()
        if call.status == "running" and not any(c.call == call.id for c in loop.children.values())
    } - {*performed, *own}
    ends: list[Event] = []
    for event in later:
        if isinstance(event, CallEnd) and (event.path, event.call_id) in running and event.outcome != "aborted":
            running.discard((event.path, event.call_id))
            ends.append(event)
    return ends
