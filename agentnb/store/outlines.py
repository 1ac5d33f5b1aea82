"""Outlines of events: only the fields that tables of many runs need, decoded in bulk from a store.

An outline has the names and the values of the event's fields. Decoding it takes a third of the time of the whole event,
and following a run by its outlines (`follow`) a small part of the time of a fold. A run whose events change what an
outline does not have (`outlines_of` returns None for it) is read as a whole by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.json import Decoder

from agentnb.core.event import ErrorInfo
from agentnb.store.database import SPAN, as_bytes, checksum
from agentnb.store.rows import RunRow


class Outline(Struct, kw_only=True, tag_field="type", gc=False):
    """The fields of every event. `type` is the type of event, as recordings name it."""

    type: ClassVar[str] = ""

    seq: int = -1
    time: float = 0.0
    run_id: str = ""
    path: str = ""
    phase: str | None = None
    inherited: bool = False
    untimed: bool = False


class _Call(Struct, gc=False):
    id: str
    name: str
    arguments: dict[str, Any] = {}


class _Message(Struct, gc=False):
    content: str | list[dict[str, Any]] = ""
    tool_calls: list[_Call] = []


class _RunStart(Outline, tag="run_start"):
    loop: str
    name: str
    input: Any = None
    call: str = ""
    forked_from: str = ""
    ancestors: list[Any] = []
    data: dict[str, Any] = {}


class _PhaseChange(Outline, tag="phase_change"):
    source: str


class _MessageAdded(Outline, tag="message"):
    message: _Message


class _Queued(Outline, tag="queued"):
    message: _Message


class _Withdrawn(Outline, tag="withdrawn"):
    pass


class _StateUpdate(Outline, tag="state_update"):
    values: dict[str, Any]


class _ModelStart(Outline, tag="model_start"):
    turn: int = 0
    attempt: int = 1
    provider: str = ""
    model: str = ""


class _ModelEnd(Outline, tag="model_end"):
    message: _Message
    usage: dict[str, float | int] = {}
    timing: list[list[int]] = []
    model: str | None = None
    finish_reason: str | None = None


class _ModelFailed(Outline, tag="model_error"):
    error: ErrorInfo
    usage: dict[str, float | int] = {}


class _CallProposed(Outline, tag="call_proposed"):
    call: _Call
    hidden: bool = False


class _ApprovalRequest(Outline, tag="approval_request"):
    call_id: str
    name: str
    arguments: dict[str, Any]
    unknown: bool = False
    note: str = ""


class _ApprovalDecision(Outline, tag="approval_decision"):
    call_id: str
    decision: str
    by: str = "human"
    name: str | None = None
    arguments: dict[str, Any] | None = None
    reason: str = ""
    remember: str | None = None
    question: int | None = None
    reviewer: str | None = None
    shown: str | None = None
    seconds: float | None = None
    note: str = ""


class _CallStart(Outline, tag="call_start"):
    call_id: str
    name: str
    arguments: dict[str, Any]
    attempt: int = 1
    detached: bool = False
    own: bool = False


class _CallEnd(Outline, tag="call_end"):
    call_id: str
    name: str = ""
    result: Any = None
    is_error: bool = False
    outcome: str = "returned"
    error: ErrorInfo | None = None


class _RunPaused(Outline, tag="run_paused"):
    reason: str = ""


class _RunEnd(Outline, tag="run_end"):
    reason: str
    output: Any = None
    error: ErrorInfo | None = None
    usage: dict[str, float | int] = {}


for _kind in Outline.__subclasses__():
    _kind.type = str(_kind.__struct_config__.tag)

_decode = Decoder(
    list[
        _RunStart
        | _PhaseChange
        | _MessageAdded
        | _Queued
        | _Withdrawn
        | _StateUpdate
        | _ModelStart
        | _ModelEnd
        | _ModelFailed
        | _CallProposed
        | _ApprovalRequest
        | _ApprovalDecision
        | _CallStart
        | _CallEnd
        | _RunPaused
        | _RunEnd
    ]
).decode
"""Decodes the events of a run. The types that are missing (`cancel`, `run_resumed`) change a run in ways that need the
whole events."""


def outlines_of(run: RunRow, found: Sequence[tuple[int, Any, Any]]) -> Sequence[Outline] | None:
    """Return the outlines of a run. Return None if its whole events are needed: if the run is a fork, is not complete,
    is damaged, or has events that an outline cannot follow.

    found: the run's rows of the table of events, in order.
    """
    # Verify the rows, and decode all of them at once: this takes less time than one at a time.
    first = run.number * SPAN
    bodies = [body if type(body) is bytes else as_bytes(body) for _, body, _ in found]
    for expected, (key, _, written), body in zip(count(first), found, bodies, strict=False):
        if key != expected or written != checksum(key, body):
            return None
    try:
        outlines: Sequence[Outline] = _decode(b"[%s]" % b",".join(bodies))
    except (ValueError, RecursionError):  # for example NaN, which only the decoder of whole events reads
        return None

    # Only a complete run can be followed: from the start of its outermost loop to that loop's end.
    if not outlines or len(outlines) != len(bodies):
        return None
    start, end = outlines[0], outlines[-1]
    if not isinstance(start, _RunStart) or start.path or not isinstance(end, _RunEnd) or end.path:
        return None
    start.run_id = run.id
    latest = 0.0
    known: set[str | tuple[str, str]] = set()  # the paths of the loops that have begun, and the calls
    for seq, outline in enumerate(outlines):
        if outline.time < latest or (type(outline) in _LIMITED and not _can_follow(outline, known)):
            return None
        if outline.path not in known:
            return None
        outline.seq, latest = seq, outline.time
    return outlines


def _can_follow(outline: Outline, known: set[str | tuple[str, str]]) -> bool:
    """Return False if an outline does not have what this event changes, or if the event seems to be impossible."""
    match outline:
        case _RunStart():
            parent_is_known = not outline.path or outline.path.rpartition("/")[0] in known
            known.add(outline.path)
            return parent_is_known and not (outline.forked_from or outline.ancestors)
        case _ModelStart():
            return outline.turn >= 0 and outline.attempt >= 1
        case _ModelEnd():
            known.update((outline.path, call.id) for call in outline.message.tool_calls)
            return all(len(pair) == 2 and min(pair) >= 0 for pair in outline.timing)
        case _CallProposed():
            known.add((outline.path, outline.call.id))
            return True
        case _ApprovalDecision():  # other decisions change the name and the arguments of their call
            return outline.decision in ("approve", "reject", "answer") and (outline.path, outline.call_id) in known
        case _CallStart():
            return not outline.detached and outline.attempt >= 1 and (outline.path, outline.call_id) in known
        case _CallEnd() | _ApprovalRequest():
            return (outline.path, outline.call_id) in known
        case _:
            return False


_LIMITED = frozenset(
    {_RunStart, _ModelStart, _ModelEnd, _CallProposed, _ApprovalRequest, _ApprovalDecision, _CallStart, _CallEnd}
)
"""The events that an outline can follow only with some values."""


class LoopOutline:
    """The state of a loop, as far as a table needs it: its name, its phase, its turn, its calls of this turn."""

    __slots__ = ("calls", "name", "phase", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = ""
        self.turn = 0
        self.calls: dict[str, _Call] = {}


_FOLLOWED = frozenset({_RunStart, _ModelStart, _ModelEnd, _CallProposed})


def follow(outlines: Iterable[Outline]) -> Iterator[tuple[Outline, LoopOutline]]:
    """Yield each event with the state of its loop right after it, as `agentnb.core.evolve.walk` does."""
    loops: dict[str, LoopOutline] = {}
    for event in outlines:
        if type(event) in _FOLLOWED:
            _follow_one(loops, event)
        loop = loops[event.path]
        if event.phase is not None:
            loop.phase = event.phase
        yield event, loop


def _follow_one(loops: dict[str, LoopOutline], event: Outline) -> None:
    """Change the state of the event's loop, except for its phase."""
    match event:
        case _RunStart():
            loops[event.path] = LoopOutline(event.name)
        case _ModelStart():
            loop = loops[event.path]
            loop.turn = event.turn
            if event.attempt == 1:
                loop.calls = {}
        case _ModelEnd():
            for call in event.message.tool_calls:
                loops[event.path].calls.setdefault(call.id, call)
        case _CallProposed():
            loops[event.path].calls[event.call.id] = event.call
        case _:
            pass
