"""The past of a run that continues from a recording: the selection of the events that the new run keeps.

Events that only end the recorded run are dropped (`agentnb.core.resume_point`); results of tools are kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from msgspec.structs import replace

from agentnb.core.errors import RecordingMismatch, UsageError
from agentnb.core.events import CallEnd, CallStart, Event, ModelEnd, RunEnd, RunStart
from agentnb.core.evolve import fold
from agentnb.core.loop import Design, configured
from agentnb.core.resume_point import is_suspended, results_in, resume_point
from agentnb.core.tools import fingerprint_of
from agentnb.tools import as_tools


def check_kind(start: RunStart, loop: Design) -> None:
    """Raise RecordingMismatch if the recording with this first event is of another kind of loop."""
    if start.loop != loop.kind():
        raise RecordingMismatch(f"The recording is of {start.loop}, and the loop to go on with is {loop.kind()}.")


def fingerprints(loop: Design) -> dict[str, str]:
    """Return the fingerprint of each tool of the loop, by name."""
    return {name: fingerprint_of(tool) for name, tool in as_tools(loop.tools).items()}


def new_run_id() -> str:
    """Return a new, random id for a run."""
    return uuid.uuid4().hex[:12]


def as_of(run_id: str, events: Sequence[Event]) -> list[Event]:
    """Return copies of the events with another run id, numbered from 0."""
    return [replace(event, run_id=run_id, seq=number) for number, event in enumerate(events)]


def prefix_of_a_restored_run(events: Sequence[Event], loop: Design, *, has_new_limits: bool = False) -> Sequence[Event]:
    """Return the events that a restored run keeps.

    A cancellation or a suspension is dropped: they end a run in its process (ARCHITECTURE.md, 2. How a run works). The
    end at a limit is dropped if there are new limits (`has_new_limits`). After an error, the loop decides how many
    events to keep. The incomplete recording of an end is dropped too.
    """
    last = events[-1]
    if isinstance(last, RunEnd) and last.terminal:
        if is_suspended(last):
            return events[:-1]
        if last.reason == "error":
            return events[: loop.goes_on_after_an_error_from(events)]
        if last.reason != "cancelled" and not (last.reason == "limit" and has_new_limits):
            return events
    # Drop the end, but keep the results of tools in it, numbered again.
    over = resume_point(events)
    results = [replace(event, seq=n) for n, event in enumerate(results_in(events[over:]), over)]
    return [*events[:over], *results]


def prefix_of_a_fork(
    events: Sequence[Event], seq: int, loop: Design, *, instead: Event | None = None, without: bool = False
) -> list[Event]:
    """Return the events up to and including `seq`, as the past of a new run of `loop`.

    instead: an event that replaces the event `seq`; it is not marked as inherited, all other events are. without: leave
    the event `seq` out. The recorded ends of calls that are running at `seq` are added. Raises UsageError if no event
    remains, or if the replaced event belongs to the end of the recorded run, which a fork drops.
    """
    if isinstance(instead, ModelEnd) and instead.usage == getattr(events[seq], "usage", None):
        instead = replace(instead, usage={})  # no model request was made for this answer
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
    """Return the number of first events that a fork at `seq` has in common with the recording.

    changed: the event `seq` is replaced or left out. Event 0 differs in any case; the others in the mark `inherited`.
    """
    return min(_before_the_end(events), seq if changed else seq + 1)


def _before_the_end(events: Sequence[Event]) -> int:
    """Return the number of events before the events that only end the recorded run."""
    return min(resume_point(events), len(events) - events[-1].terminal)


def _ancestors(start: Event, inherited: int) -> list[tuple[str, int]]:
    """Return the runs from which a fork inherits its first events, oldest first, each with the number of events.

    start: the first event of the recording, whose run is the last one. inherited: the number of inherited events.
    """
    assert isinstance(start, RunStart)
    before = [(run, min(end, inherited)) for run, end in ancestors_of(start)]
    return [*before, (start.run_id, inherited)]


def ancestors_of(start: RunStart) -> list[tuple[str, int]]:
    """Return `RunStart.ancestors`. For an older recording without them, derive one from `RunStart.forked_from`."""
    run, _, at = start.forked_from.rpartition("@")
    return start.ancestors or ([(run, int(at) + 1)] if run and at.isdecimal() else [])


def _ends_of_running_calls(kept: Sequence[Event], later: Sequence[Event]) -> list[Event]:
    """Return the recorded ends of the tool calls that are running after the events `kept`.

    later: the other events of the recording. Calls that a nested loop performs, and a loop's own calls, are not
    included: they continue, or start again, in the new run.
    """
    performed = {(event.path.rpartition("/")[0], event.call) for event in later if isinstance(event, RunStart)}
    own = {(event.path, event.call_id) for event in kept if isinstance(event, CallStart) and event.own}
    running = {
        (path, call.id)
        for path, loop in fold(kept).running()
        for call in loop.open.values()
        if call.status == "running" and not any(c.call == call.id for c in loop.children.values())
    } - {*performed, *own}
    # Take the first end of each call. A call that was aborted has no result to keep.
    ends: list[Event] = []
    for event in later:
        if isinstance(event, CallEnd) and (event.path, event.call_id) in running and event.outcome != "aborted":
            running.discard((event.path, event.call_id))
            ends.append(event)
    return ends
