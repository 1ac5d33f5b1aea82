"""The construction of the run for a fork."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, RunResumed
from agentnb.core.loop import Design
from agentnb.run.approvals.kept import read_policy, recorded_policy
from agentnb.run.gate.gate import check_limits
from agentnb.run.past.fork import Branch, Change, branch, settle
from agentnb.run.past.recorded_loop import RecordedLoop
from agentnb.run.recording import Recording
from agentnb.run.run import Run
from agentnb.run.validation import check_options

OPTIONS = frozenset({"name", "store", "approve", "breakpoints", "limits"})


def forked(origin: Recording, at: int | None, change: Change, loop: Design | None, **options: Any) -> Run:
    """Return a run that forks from a recording at the event `at`.

    at: the number of an event; None for the last event before the current position. change: the change at that event.
    loop: the loop of the new run; None for the loop of the recording. options: options of start(), see `OPTIONS`. The
    policy and the limits of the other run apply unless others are given.

    Raises UsageError if an option is unknown, if there is no loop or no event to fork from, or if the change is not
    possible (`branch`, which raises other errors too).
    """
    if unknown := sorted(options.keys() - OPTIONS):
        raise UsageError(f"fork() takes {', '.join(sorted(OPTIONS))} of what start() takes, and no {unknown[0]}.")
    loop = loop if loop is not None else origin.loop
    if isinstance(loop, RecordedLoop):
        raise UsageError("A recording from a file does not hold its loop: give the loop that goes on by loop=.")
    if not origin.recording:
        raise UsageError("The run has not begun: there is nothing to fork yet.")
    if at is None and not origin.events:
        raise UsageError("The replay stands before its first event: say by at= which one the fork departs from.")
    made = branch(origin.recording, len(origin.events) - 1 if at is None else at, change, loop)
    # The first event of the fork records its policy and limits: those of the other run, unless others are given.
    given, chosen = {**origin._fork_options, **options}, {}
    given["approve"] = read_policy(given.get("approve"))
    if "approve" in options or given["approve"] is not None:
        chosen["approve"] = recorded_policy(given["approve"])
    check_options(name=None, store=None, breakpoints=(), limits=given.get("limits"))
    if "limits" in options or given.get("limits") is not None:
        given["limits"] = chosen["limits"] = check_limits(given["limits"] or {})
    past, shared = _chosen(made, chosen)
    run = Run(
        loop,
        recording=past,
        shared=(origin.recording[0].run_id, shared),
        suspended=made.suspended,
        judges_open_questions="approve" in options,  # the policy of the other run has judged them already
        **given,
    )
    with run.lock:
        if run.state.failure is not None:  # request the model again: it may be another one
            run.resume()
        if made.steer is not None:
            run.queue("steering", made.steer)
        settle(made, run._journal)
    return run


def _chosen(made: Branch, chosen: dict[str, Any]) -> tuple[list[Event], int]:
    """Return the past of a run with this policy and these limits from its start.

    chosen: the fields of the first event to set. The second value is the number of first events that still equal those
    of the recording, except for event 0.
    """
    if not chosen:
        return made.events, made.shared
    first, *others = made.events
    unchanged = dict.fromkeys(chosen)
    shared = next((event.seq for event in others if isinstance(event, RunResumed)), made.shared)
    resumed = [replace(event, **unchanged) if isinstance(event, RunResumed) else event for event in others]
    return [replace(first, **chosen), *resumed], min(shared, made.shared)
