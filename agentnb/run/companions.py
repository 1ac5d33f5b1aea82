"""Companions: the object that the code of each loop of a run uses while the loop is being run (`Design.companion`)."""

from __future__ import annotations

from collections.abc import Sequence

from agentnb.core.events import Event, RunStart
from agentnb.run.frame import UNASKED, Frame


def companion_of(frame: Frame, events: Sequence[Event]) -> object:
    """Return the companion object of the loop in this frame. It is created on first use.

    events: the events of the run.
    """
    if frame.companion is UNASKED:
        above = companion_of(frame.above, events) if frame.above is not None else None
        recording = _facts_at(frame.path, events[: frame.recorded])
        frame.companion = frame.design.companion(frame.state, recording, above)
    return frame.companion


def _facts_at(path: str, recording: Sequence[Event]) -> Sequence[Event]:
    """Return the recorded events of the loop at this path, and of loops inside it, since the loop's last start."""
    if not path:
        return recording
    facts: list[Event] = []
    for fact in recording:
        if fact.path == path and isinstance(fact, RunStart):
            facts = []
        if fact.path == path or fact.path.startswith(f"{path}/"):
            facts.append(fact)
    return facts
