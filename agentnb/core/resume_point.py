"""The resume point of a recording: the position from which a new run continues.

If the end of the run was imposed from outside (by a cancellation, a limit or an error), this position is before that
end. Such an end consists of several events (`agentnb.run.synthetic_results`): open calls are given a result, and nested
loops end, before the run does. None of these events follows from the run's own work, so a new run continues from before
all of them. If a tool ended its own run, its result comes after these events: this result belongs to the run's own
work, and is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentnb.core.events import CallEnd, CancelRequested, Event, RunEnd

ABORTED = "Operation aborted"
"""The result of a call that was interrupted, or never began, because its run has ended."""

_FROM_OUTSIDE = frozenset({"limit", "error"})


def resume_point(events: Sequence[Event]) -> int:
    """Return the number of events before an end imposed from outside; `len(events)` if there is none."""
    begins = len(events)
    while begins and _is_of_an_end(events[begins - 1], is_last=begins == len(events)):
        begins -= 1
    if CancelRequested not in map(type, events):
        return begins
    return next(n for n, event in enumerate(events) if isinstance(event, CancelRequested))


def results_in(end: Sequence[Event]) -> list[Event]:
    """Return the results of tools among the events of an end that was imposed from outside."""
    return [event for event in end if isinstance(event, CallEnd) and event.outcome != "aborted"]


def is_suspended(event: Event) -> bool:
    """Return True if the event suspends a run, which can then be resumed later and has not ended for good."""
    return isinstance(event, RunEnd) and event.reason == "suspended"


def _is_of_an_end(event: Event, *, is_last: bool) -> bool:
    if isinstance(event, CallEnd):
        return event.outcome == "aborted"
    if not isinstance(event, RunEnd) or event.reason not in _FROM_OUTSIDE:
        return False
    return event.terminal or not is_last or event.reason == "limit"  # a nested loop may end with an error of its own
