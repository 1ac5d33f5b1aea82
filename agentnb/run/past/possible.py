"""Whether the events of a recording can be those of a run: a file from elsewhere may say anything in the right words.

Looked at is what agentnb itself writes (numbers of events, times, counts) and what follows from the events before. What
models, tools and people have said may be anything.
"""

from __future__ import annotations

from agentnb.core.errors import IllegalTransition, ImpossibleEvent
from agentnb.core.events import ApprovalRequest, CallStart, Event, ModelEnd, ModelStart, RunStart, Withdrawn
from agentnb.core.evolve import evolve
from agentnb.core.state import State

LATEST = 253_402_300_799.0
"""The last second of the year 9999: no later date can be told."""


def check_time(what: str, time: float | None) -> None:
    """Raise ImpossibleEvent where this is no time, in seconds since the epoch; None is none, and that may be."""
    if time is not None and not 0 <= time <= LATEST:  # so that NaN is none either
        raise ImpossibleEvent(f"{what} is {time}, and that is no time.")


class Possible:
    """Takes the events of one recording in, one after the other, and raises at the first that cannot be."""

    def __init__(self) -> None:
        self.state = State()

    def take(self, event: Event) -> None:
        """Take the next event in. Raises ImpossibleEvent, which says why it cannot come next."""
        position = self.state.position
        if (position == 0) is not (isinstance(event, RunStart) and not event.path):
            raise ImpossibleEvent(
                "A recording begins with the event run_start." if position == 0 else "A run begins only once."
            )
        check_time("Its time", event.time)
        if isinstance(event, ApprovalRequest):
            check_time("Its deadline", event.deadline)
        for name, least in _least_counts(event):
            if getattr(event, name) < least:
                raise ImpossibleEvent(f"Its {name} is {getattr(event, name)}, and {least} is the least.")
        if isinstance(event, ModelEnd) and any(len(pair) != 2 or min(pair) < 0 for pair in event.timing):
            raise ImpossibleEvent("Its timing has something else than pairs of milliseconds and characters.")
        try:
            evolve(self.state, event)
        except (ImpossibleEvent, IllegalTransition):
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ImpossibleEvent(f"{event.type} cannot follow what is before it: {error!r}.") from error
        if event.seq != position:
            raise ImpossibleEvent(f"It has the number {event.seq} where {position} was to come.")


def _least_counts(event: Event) -> tuple[tuple[str, int], ...]:
    if isinstance(event, ModelStart):
        return (("turn", 0), ("attempt", 1))
    if isinstance(event, CallStart):
        return (("attempt", 1),)
    return (("count", 0), ("first", 0)) if isinstance(event, Withdrawn) else ()
