"""Queries to a recording: the loops that were running at a position, and from them the calls that awaited a person.

If the recorded loop, or a similar one, is given, the running loops include their tools. Otherwise only the contents of
the events are known. A recording accepts no decisions and no other actions (`missing`).
"""

from __future__ import annotations

from agentnb.core.errors import UnknownName
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.run.approvals.pending import Stood
from agentnb.run.frame import Frame
from agentnb.run.past.recorded_loop import RecordedLoop

_DECIDING = ("approve", "reject", "edit", "replace", "answer", "undo", "forget")
_DRIVING = ("play", "pause", "resume", "cancel", "step", "submit_step", "result", "suspend_at_questions")
_TALKING = ("steer", "follow_up", "queue", "queue_if_open", "withdraw")
_ACTS = frozenset([*_DECIDING, *_DRIVING, *_TALKING])
"""The methods of a run that a recording does not have. A replay has `step` and `result`, and looks up neither here."""


def stood(state: State) -> list[Stood]:
    """Return the running loops, as far as the events describe them: without tools."""
    return [Stood(path, loop, {}) for path, loop in state.running()]


def loops_at(loop: Design, state: State) -> list[Frame] | list[Stood]:
    """Return the running loops, outermost first.

    If `loop` is a real loop, return frames, and omit nested loops that `loop` does not have. If it is a RecordedLoop,
    use the events only.
    """
    if isinstance(loop, RecordedLoop):
        return stood(state)
    frames = [Frame(loop, state)]
    for frame in frames:
        for name, child in frame.state.children.items():
            call = frame.state.open.get(child.call)
            inside = frame.loop_for(call) if call is not None and child.stop_reason is None else None
            if inside is not None and call is not None:
                frames.append(Frame(inside, child, name=name, above=frame, call=call.id))
    return frames


def missing(recording: object, name: str, instead: str) -> AttributeError:
    """Return the error for an attribute that a recording does not have.

    If a run has a method of this name, the message ends with `instead`, the advice for the user.
    """
    if name not in _ACTS:
        return AttributeError(f"{type(recording).__name__!r} object has no attribute {name!r}")
    return UnknownName(f"Nothing happens in a recording, so it has no {name}(). {instead}")
