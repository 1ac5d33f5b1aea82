"""What a recording tells of a person: which calls waited for a decision at a moment, and which had been decided.

With the loop that was recorded, or one like it, the questions have what its tools take; of a recording alone there is
what its events say. Nothing can be decided about any of them, and nothing else be done (`missing`).
"""

from __future__ import annotations

from typing import Any

from agentnb.core.errors import UnknownName
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.run.approvals.pending import Decided, Pending, decided, waiting
from agentnb.run.frame import Frame
from agentnb.run.past.recorded_loop import RecordedLoop

_DECIDING = ("approve", "reject", "edit", "replace", "answer", "undo", "forget")
_DRIVING = ("play", "pause", "resume", "cancel", "step", "submit_step", "result")
_TALKING = ("steer", "follow_up", "queue", "queue_if_open", "withdraw")
_ACTS = frozenset([*_DECIDING, *_DRIVING, *_TALKING])
"""What a run can do and a recording cannot; a replay steps all the same, and has a result, and so is not asked here."""


def questions(loop: Design, state: State) -> list[Pending]:
    """The calls that waited for a person."""
    return recorded_questions(state) if isinstance(loop, RecordedLoop) else waiting(_frames(loop, state))


def recorded_questions(state: State) -> list[Pending]:
    """The same of a recording of which nobody has the loop."""
    return [
        Pending(call.id, call.name, asked.arguments, {}, asked.reason, asked.deadline, asked.unknown, path, asked.seq)
        for path, loop in state.running()
        for call in loop.open.values()
        if call.status == "asking" and (asked := call.approval) is not None
    ]


def recorded_decisions(state: State) -> list[Decided]:
    """The calls that were decided and had not begun."""
    return [
        decided(path, call, call.id)
        for path, loop in state.running()
        for call in loop.open.values()
        if call.status == "ready" and call.decision is not None
    ]


def schemas(loop: Design, state: State, path: str | None) -> dict[str, dict[str, Any]]:
    """The JSON schema of each tool's arguments, of all loops that were being run or of the one at `path`."""
    if isinstance(loop, RecordedLoop):
        return {}
    frames = [frame for frame in _frames(loop, state) if path in (None, frame.path)]
    return {name: tool.parameters for frame in frames for name, tool in frame.tools.items()}


def _frames(loop: Design, state: State) -> list[Frame]:
    """The loops that were being run, as far as `loop` knows them."""
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
