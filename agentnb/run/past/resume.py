"""The events of a recording that a run which continues from it keeps: a restored run, or a fork.

Events that only end the recorded run are dropped (`agentnb.core.resume_point`); results of tools are kept. A fork
shares the events with the recording, and begins with the state after them: neither is copied event by event.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from agentnb.core.errors import ImpossibleEvent, RecordingMismatch, UsageError
from agentnb.core.events import CallEnd, CallStart, Event, ModelEnd, RunEnd, RunResumed, RunStart
from agentnb.core.evolve import evolve
from agentnb.core.loop import Design, configured
from agentnb.core.prefix import Continued
from agentnb.core.resume_point import is_suspended, results_in, resume_point
from agentnb.core.state import State
from agentnb.core.tools import fingerprint_of
from agentnb.run.checkpoints import Checkpoints
from agentnb.tools import as_tools


def check_kind(start: RunStart, loop: Design) -> None:
    """Raise RecordingMismatch if the recording with this first event is of another kind of loop."""
    if start.loop != loop.kind():
        raise RecordingMismatch(
            f"The recording is of a loop of kind {start.loop}, and the given loop is of kind {loop.kind()}."
        )


def fingerprints(loop: Design) -> dict[str, str]:
    """Return the fingerprint of each tool of the loop, by name."""
    return {name: fingerprint_of(tool) for name, tool in as_tools(loop.tools).items()}


def new_run_id() -> str:
    """Return a new, random id for a run."""
    return uuid.uuid4().hex[:12]


def as_of(run_id: str, events: Sequence[Event]) -> list[Event]:
    """Return copies of the events with another run id, numbered from 0."""
    return [replace(event, run_id=run_id, seq=number) for number, event in enumerate(events)]


def past_of_a_restored_run(events: Sequence[Event], loop: Design, *, has_new_limits: bool = False) -> Sequence[Event]:
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
            return events[: loop.kept_after_error(events)]
        if last.reason != "cancelled" and not (last.reason == "limit" and has_new_limits):
            return events
    # Drop the end, but keep the results of tools in it, numbered again.
    end = resume_point(events)
    results = [replace(event, seq=n) for n, event in enumerate(results_in(events[end:]), end)]
    return [*events[:end], *results]


@dataclass(frozen=True)
class Past:
    """The past of a fork: its events, and the state after them.

    `shared`: the number of first events that equal those of the recording, except for event 0 and the mark `inherited`.
    """

    events: Continued[Event]
    state: State
    shared: int


def past_of_a_fork(
    events: Sequence[Event],
    seq: int,
    loop: Design,
    checkpoints: Checkpoints,
    *,
    instead: Event | None = None,
    without: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Past:
    """Return the events up to and including `seq`, as the past of a new run of `loop`.

    checkpoints: of the recording. instead: an event that replaces the event `seq`; it is not marked as inherited, all
    other events are. without: leave the event `seq` out. options: the policy and the limits of the new run from its
    start, if they change. The recorded ends of calls that are running at `seq` are added.

    Raises UsageError if no event remains, if the replaced event belongs to the end of the recorded run, which a fork
    drops, or if it cannot follow the events before it.
    """
    run_id = new_run_id()
    if isinstance(instead, ModelEnd) and instead.usage == getattr(events[seq], "usage", None):
        instead = replace(instead, usage={})  # no model request was made for this answer
    end = min(resume_point(events), len(events) - events[-1].terminal)
    if instead is not None and end <= seq:
        raise UsageError(f"A fork drops the end of the run, from event {end} on. Choose an event before it.")

    # Take the events that are kept as they are, and the state after them.
    length = min(end, seq if without or instead is not None else seq + 1)
    if not length and instead is None:
        raise UsageError("A fork keeps at least the event run_start.")
    state = checkpoints.state_at(events, length, inherited_by=run_id)

    # Apply the replaced event, the results of tools in the end of the run, and those of the calls that run at `seq`.
    added: list[Event] = []
    unchanged = dict.fromkeys(options)

    def inherited(event: Event) -> Event:
        changes = unchanged if isinstance(event, RunResumed) else {}
        return replace(event, run_id=run_id, inherited=event is not instead, **changes)

    def add(event: Event) -> None:
        added.append(replace(inherited(event), seq=length + len(added)))
        evolve(state, added[-1])

    try:
        if instead is not None:
            add(instead)
        for event in results_in(events[end : seq + (not without)]):
            add(event)
        for event in _ends_of_running_calls(state, events, seq + 1):
            add(event)
    except ImpossibleEvent as error:
        raise UsageError(f"The run cannot continue from event {seq} with this change: {error}") from error

    # The first event describes the fork and its origin, and has its options. No later event changes these options.
    start, added = (added[0], added[1:]) if not length else (events[0], added)
    ancestors = _ancestors(events[0], seq if instead is not None else length + len(added))
    begun = {"forked_from": f"{events[0].run_id}@{seq}", "ancestors": ancestors, **configured(loop, fingerprints(loop))}
    first = replace(start, run_id=run_id, seq=0, inherited=start is events[0], **begun, **options)
    for name, value in options.items():
        setattr(state, name, value)
    past = Continued(events, max(length, 1), lambda at, event: inherited(event) if at else first, added)
    resumed = (event.seq for event in (events[1:length] if options else ()) if isinstance(event, RunResumed))
    return Past(past, state, next(resumed, length))


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


def _ends_of_running_calls(state: State, events: Sequence[Event], begin: int) -> list[Event]:
    """Return the recorded ends of the tool calls that are running in this state, from the event number `begin` on.

    Calls that a nested loop performs, and a loop's own calls, are not included: they continue, or start again, in the
    new run.
    """
    running = {
        (path, call.id)
        for path, loop in state.running()
        for call in loop.open.values()
        if call.status == "running" and not any(c.call == call.id for c in loop.children.values())
    }
    starts = set(running)
    for event in reversed(events[:begin]) if running else ():
        if isinstance(event, CallStart) and (event.path, event.call_id) in starts:
            starts.discard((event.path, event.call_id))
            if event.own:
                running.discard((event.path, event.call_id))
        if not starts:
            break
    # Take the first end of each call. A call that was aborted has no result to keep.
    ends: list[Event] = []
    for event in islice(events, begin, None) if running else ():
        if isinstance(event, RunStart):
            running.discard((event.path.rpartition("/")[0], event.call))
        elif isinstance(event, CallEnd) and (event.path, event.call_id) in running and event.outcome != "aborted":
            running.discard((event.path, event.call_id))
            ends.append(event)
        if not running:
            break
    return ends
