"""Where a recording only tells how its run was ended from outside: cancelled, at a limit, or by an error.

Such an end is said in several facts (`agentnb.run.synthetic_results`): calls that are open are given a result, and the
loops inside end, before the run does. None of that came of what the run did, so whoever goes on from it goes on from
before all of it. A tool that has ended its own run gives its result behind that: this came of the run, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentnb.core.events import CallEnd, CancelRequested, Event, RunEnd

ABORTED = "Operation aborted"
"""What is said of a call that was broken off, or never began, because its run has ended."""

_FROM_OUTSIDE = frozenset({"limit", "error"})


def ending(events: Sequence[Event]) -> int:
    """The position of the first event of such an end; how many events there are where there is none."""
    begins = len(events)
    while begins and _is_of_an_end(events[begins - 1], is_last=begins == len(events)):
        begins -= 1
    return next((n for n, event in enumerate(events) if isinstance(event, CancelRequested)), begins)


def results_in(end: Sequence[Event]) -> list[Event]:
    """What tools have given in the events of such an end."""
    return [event for event in end if isinstance(event, CallEnd) and event.outcome != "aborted"]


def is_suspended(event: Event) -> bool:
    """Whether a run stands there to be gone on with later, and is not over."""
    return isinstance(event, RunEnd) and event.reason == "suspended"


def _is_of_an_end(event: Event, *, is_last: bool) -> bool:
    if isinstance(event, CallEnd):
        return event.outcome == "aborted"
    if not isinstance(event, RunEnd) or event.reason not in _FROM_OUTSIDE:
        return False
    return event.terminal or not is_last or event.reason == "limit"  # a loop inside may end with an error of its own
