"""The loops of a recording: those that were running at a position, with or without the loop that was recorded.

If the recorded loop, or a similar one, is given, the running loops include their tools. Otherwise a `RecordedLoop`
takes its place: the description of the loop in the events, which cannot run. A recording accepts no decisions and no
other actions (`missing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentnb.core.errors import RecordingMismatch, UnknownName, UsageError
from agentnb.core.events import Event, RunStart
from agentnb.core.loop import Design, design_of
from agentnb.core.state import State
from agentnb.run.approvals.pending import RecordedFrame
from agentnb.run.frame import Frame

_DECIDING = ("approve", "reject", "edit", "replace", "answer", "undo", "forget")
_DRIVING = (
    *("play", "pause", "resume", "cancel", "abandon", "step", "submit_step", "result", "suspend_at_questions"),
    *("hold_requests", "look_again", "end_after"),
)
_TALKING = ("steer", "follow_up", "queue", "queue_if_open", "withdraw")
_ACTS = frozenset([*_DECIDING, *_DRIVING, *_TALKING, "waited_for", "preview"])
"""The methods of a run that a recording does not have. A replay has `step` and `result`, and looks up neither here."""


class RecordedLoop(Design):
    """A loop that can be displayed, but makes no decisions."""

    def __init__(self, start: RunStart, phases: Mapping[str, Sequence[str]]) -> None:
        self.name = start.name
        self.phases = phases  # type: ignore[misc]  # of the recorded design, whose class may be unknown
        self._config = start.config
        self.system_prompt = start.config.get("system_prompt")
        self.kind = lambda: start.loop  # type: ignore[method-assign]

    def advance(self, state: State) -> Event:
        """Raise UsageError, because a recorded loop makes no decisions."""
        raise UsageError(
            f"This recording of a {self.kind()} does not contain the loop itself. Pass the loop to continue it."
        )

    def config(self) -> dict[str, Any]:
        """Return the recorded configuration."""
        return dict(self._config)


def recorded_loop(events: Sequence[Event]) -> Design:
    """Return the loop that a recording describes. Raises UsageError if there is no first event.

    Its phases are those of the design, if the design is known; otherwise those in the recorded configuration; otherwise
    those of the events, with the transitions that occurred.
    """
    start = events[0] if events else None
    if not isinstance(start, RunStart):
        raise UsageError("The recording has no events yet.")
    if (design := design_of(start.loop)) is not None:
        return RecordedLoop(start, design.phases)
    if isinstance(recorded := start.config.get("phases"), Mapping):
        return RecordedLoop(start, recorded)
    phases: dict[str, list[str]] = {}
    before: str | None = None
    for event in events:
        if event.path or event.phase is None:
            continue
        phases.setdefault(event.phase, [])
        if before is not None and before != event.phase and event.phase not in phases[before]:
            phases[before].append(event.phase)
        before = event.phase
    return RecordedLoop(start, phases or {"running": []})


def check_kind(start: RunStart, loop: Design) -> None:
    """Raise RecordingMismatch if the recording with this first event is of another kind of loop."""
    if start.loop != loop.kind():
        raise RecordingMismatch(
            f"The recording is of a loop of kind {start.loop}, but the given loop is of kind {loop.kind()}. Pass a"
            " loop of the recorded kind."
        )


def recorded_frames(state: State) -> list[RecordedFrame]:
    """Return the running loops, as far as the events describe them: without tools."""
    return [RecordedFrame(path, loop, {}) for path, loop in state.running()]


def loops_at(loop: Design, state: State) -> list[Frame] | list[RecordedFrame]:
    """Return the running loops, outermost first.

    If `loop` is a real loop, return frames, and omit nested loops that `loop` does not have. If it is a RecordedLoop,
    use the events only.
    """
    return recorded_frames(state) if isinstance(loop, RecordedLoop) else frames_at(loop, state)


def frames_at(loop: Design, state: State) -> list[Frame]:
    """Return the frames of the running loops, outermost first, without nested loops that `loop` does not have."""
    frames = [Frame(loop, state)]
    for frame in frames:
        for name, child in frame.state.children.items():
            call = frame.state.open.get(child.call)
            inside = frame.loop_for(call) if call is not None and child.stop_reason is None else None
            if inside is not None and call is not None:
                frames.append(Frame(inside, child, name=name, above=frame, call=call.id))
    return frames


def frame_at(loop: Design, state: State, path: str) -> Frame | None:
    """Return the frame of the running loop at `path`, or None if there is none that `loop` has."""
    return next((frame for frame in frames_at(loop, state) if frame.path == path), None)


def missing(recording: object, name: str, instead: str) -> AttributeError:
    """Return the error for an attribute that a recording does not have.

    If a run has a method of this name, the message ends with `instead`, the advice for the user.
    """
    if name not in _ACTS:
        return AttributeError(f"{type(recording).__name__!r} object has no attribute {name!r}")
    return UnknownName(f"A recording cannot run, so it has no {name}(). {instead}")
