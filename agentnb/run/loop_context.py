"""Loop contexts: the object that the code of each loop of a run uses during the run (`Design.make_context`)."""

from __future__ import annotations

from collections.abc import Sequence

from agentnb.core.events import Event, RunStart
from agentnb.run.frame import NOT_MADE, Frame


def context_of_loop(frame: Frame, events: Sequence[Event]) -> object:
    """Return the context of the loop in this frame. It is created on first use.

    events: the events of the run.
    """
    if frame.loop_context is NOT_MADE:
        outer = context_of_loop(frame.above, events) if frame.above is not None else None
        recording = _events_of_loop(frame.path, events[: frame.recorded])
        frame.loop_context = frame.design.make_context(frame.state, recording, outer)
    return frame.loop_context


def _events_of_loop(path: str, recording: Sequence[Event]) -> Sequence[Event]:
    """Return the recorded events of the loop at this path, and of loops inside it, since the loop's last start."""
    if not path:
        return recording
    found: list[Event] = []
    for event in recording:
        if event.path == path and isinstance(event, RunStart):
            found = []
        if event.path == path or event.path.startswith(f"{path}/"):
            found.append(event)
    return found
