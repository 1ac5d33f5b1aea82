"""The past of a run that goes on from a recording: which of its events are the new run's, too.

What only ended the recorded run is none of it (`agentnb.core.ending`), and what its tools have given stays.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from msgspec.structs import replace

from agentnb.core.ending import ending, is_suspended, results_in
from agentnb.core.errors import RecordingMismatch, UsageError
from agentnb.core.events import CallEnd, CallStart, Event, ModelEnd, RunEnd, RunStart
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
    return [replace(event, run_id=run_id, seq=number) for number, event in enumerate(events)]


def past_of_a_restored_run(events: Sequence[Event], loop: Design, *, has_new_limits: bool = False) -> Sequence[Event]:
    """Without a cancellation or a suspension: they end a run in its process (ARCHITECTURE.md, 2. How a run works).

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
    results = [replace(event, seq=n) for n, event in enumerate(results_in(events[over:]), over)]
    return [*events[:over], *results]


def past_of_a_fork(
    events: Sequence[Event], seq: int, loop: Design, *, instead: Event | None = None, without: bool = False
) -> list[Event]:
    """The events up to `seq`, with another `instead` of the last, or without it, as those of a new run.

    They are marked as inherited, all but the one that is there instead of another. Raises UsageError where nothing
    would be left, or nothing of what is changed.
    """
    if isinstance(instead, ModelEnd) and instead.usage == getattr(events[seq], "usage", None):
        instead = replace(instead, usage={})  # nobody was asked for this answer
    kept = [*events[:seq], *([] if without else [instead or events[seq]])]
    over = _before_the_end(events)
    if instead is not None and over <= seq:
        raise UsageError(f"The fork of a run that is over goes on before its event {over}: nothing behind it is kept.")
    kept = [*kept[:over], *results_in(kept[over:])]
    if not kept:
        raise UsageError("A fork begins with the event run_start at the least.")
    kept += _ends_of_running_calls(kept, events[seq + 1 :])
    past = [replace(event, inherited=instead is None or event.seq != seq) for event in as_of(new_run_id(), kept)]
    ancestors = _ancestors(events[0], seq if instead is not None else len(past))
    begun = {"forked_from": f"{events[0].run_id}@{seq}", "ancestors": ancestors, **configured(loop, fingerprints(loop))}
    return [replace(past[0], **begun), *past[1:]]


def common_with_a_fork(events: Sequence[Event], seq: int, *, changed: bool = False) -> int:
    """Return the number of first events that a fork has in common with the recording that it departs from at `seq`.

    changed: the event `seq` is replaced or left out. Event 0 differs in any case; the others in the mark `inherited`.
    """
    return min(_before_the_end(events), seq if changed else seq + 1)


def _before_the_end(events: Sequence[Event]) -> int:
    """Return the number of events before those that only ended the recorded run."""
    return min(ending(events), len(events) - events[-1].terminal)


def _ancestors(start: Event, inherited: int) -> list[tuple[str, int]]:
    """The runs that a fork inherits its first events from: the run that begins with `start`, and those before it."""
    assert isinstance(start, RunStart)
    before = [(run, min(end, inherited)) for run, end in ancestors_of(start)]
    return [*before, (start.run_id, inherited)]


def ancestors_of(start: RunStart) -> list[tuple[str, int]]:
    """`RunStart.ancestors`, which older recordings do not have: these name the run they departed from alone."""
    run, _, at = start.forked_from.rpartition("@")
    return start.ancestors or ([(run, int(at) + 1)] if run and at.isdecimal() else [])


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
