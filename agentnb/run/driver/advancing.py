"""Advancing: what comes next of a loop that waits for nothing, as its design says; the limits have a say in it."""

from __future__ import annotations

from agentnb.core.ending import is_suspended
from agentnb.core.errors import UsageError
from agentnb.core.events import Event, ModelStart, checked
from agentnb.run.effects.endings import end_at_limit
from agentnb.run.effects.starting import Work
from agentnb.run.gate.gate import Gate
from agentnb.run.given import shown
from agentnb.run.journal import Journal
from agentnb.run.portable import said_in_json


def advance(work: Work, journal: Journal, gate: Gate) -> bool:
    """Make a fact of what the design says comes next; False where it waits for what is detached.

    Raises UsageError where it says nothing that can be one, ImpossibleEvent for a field that is not valid, and as
    `Journal.append` does.
    """
    frame, state = work.frame, work.frame.state
    if state.cancelled is not None or state.stop_reason is not None:
        return True
    if work.end_cut_off("pull"):
        return True
    fact = frame.design.advance(state)
    if fact is None:
        if not state.detached:
            raise UsageError(
                f"{frame.design.name}.advance gave None, and there is nothing to wait for: it gives the event"
                " that comes next, and RunEnd(reason='completed', output=...) where the run is over."
            )
        return False
    if not isinstance(fact, Event):
        raise UsageError(f"{frame.design.name}.advance gives an event (agentnb.core.events), not {shown(fact)}.")
    fact = checked(said_in_json(fact, frame.design.name))
    if isinstance(fact, ModelStart):
        if gate.limits and (why := gate.limit_reached(journal.state, starting="model")) is not None:
            end_at_limit(journal, why)
            return True
        work.asked_by_us = True
        fact = work.asking.describe(fact)
    elif is_suspended(fact):
        frame = journal.root  # the run ends in this process, and the loops in it stay where they are
    journal.append(fact, frame)
    return True
