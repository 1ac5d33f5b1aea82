"""The check that a run can have produced the events of a recording. A file may contain any events.

The check covers the values that agentnb writes (event numbers, times, counts) and the consistency with the previous
events. Texts of models, tools and people are not checked.
"""

from __future__ import annotations

from agentnb.core.errors import IllegalTransition, ImpossibleEvent
from agentnb.core.events import ApprovalRequest, CallStart, Event, ModelEnd, ModelStart, RunStart, Withdrawn
from agentnb.core.evolve import evolve
from agentnb.core.state import State

LATEST = 253_402_300_799.0
"""The last second of the year 9999, in seconds since the epoch. Python cannot represent a later date."""


def check_time(what: str, time: float | None) -> None:
    """Raise ImpossibleEvent if this is not a time in seconds since the epoch. None is accepted.

    what: the subject of the error message.
    """
    if time is not None and not 0 <= time <= LATEST:  # refuses NaN as well
        raise ImpossibleEvent(f"{what} is {time}, and that is no time.")


class Possible:
    """A check of the events of one recording, one after the other. `state` is the state after them."""

    def __init__(self) -> None:
        self.state = State()

    def take(self, event: Event) -> None:
        """Check the next event and apply it to the state.

        Raises ImpossibleEvent or IllegalTransition, with the reason, if the event cannot be the next one.
        """
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
