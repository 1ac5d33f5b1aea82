"""What a recording can be asked: the loops that were being run at a moment, of which is read what waited for a person.

With the loop that was recorded, or one like it, these have their tools; of a recording alone there is what its events
say. Nothing can be decided about any call of theirs, and nothing else be done (`missing`).
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
"""What a run can do and a recording cannot; a replay steps all the same, and has a result, and so is not asked here."""


def stood(state: State) -> list[Stood]:
    """The loops that were being run, by the events alone."""
    return [Stood(path, loop, {}) for path, loop in state.running()]


def loops_at(loop: Design, state: State) -> list[Frame] | list[Stood]:
    """The loops that were being run, as far as `loop` knows them; where it is only a recording's, by the events."""
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
    """The error for what a recording does not have; where a run has it, with what to do `instead`."""
    if name not in _ACTS:
        return AttributeError(f"{type(recording).__name__!r} object has no attribute {name!r}")
    return UnknownName(f"Nothing happens in a recording, so it has no {name}(). {instead}")
