"""The events of a recording, as rows of text and numbers.

Times are seconds since the run's first event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentnb.analysis.sources import Source
from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallProposed,
    CallStart,
    Event,
    MessageAdded,
    ModelEnd,
    ModelFailed,
    ModelStart,
    PhaseChange,
    Queued,
    RunEnd,
    RunPaused,
    RunStart,
    StateUpdate,
)
from agentnb.core.evolve import walk
from agentnb.core.messages import text_of
from agentnb.core.state import State
from agentnb.widgets.text import as_json


@dataclass(slots=True)
class EventRow:
    """One event; the fields are the columns of `agentnb.analysis.events`."""

    run: str
    seq: int
    time: float
    seconds: float
    path: str
    loop: str
    type: str
    phase: str
    turn: int
    call_id: str | None
    tool: str | None
    text: str
    provider: str | None
    model: str | None
    finish_reason: str | None
    inherited: bool


def event_rows(source: Source) -> Iterator[EventRow]:
    """Yield a row for each event of a recording, in order, without those counted in another source."""
    for event, state in walk(source.events):
        if event.seq in source.elsewhere:
            continue
        call_id = call_id_of(event)
        yield EventRow(
            run=source.name,
            seq=event.seq,
            time=event.time,
            seconds=event.time - source.began,
            path=event.path,
            loop=state.name,
            type=event.type,
            phase=state.phase or "",
            turn=state.turn,
            call_id=call_id,
            tool=_tool(event, state, call_id),
            text=_text(event),
            provider=(event.provider or None) if isinstance(event, ModelStart) else None,
            model=(event.model or None) if isinstance(event, ModelStart | ModelEnd) else None,
            finish_reason=event.finish_reason if isinstance(event, ModelEnd) else None,
            inherited=event.inherited,
        )


def call_id_of(event: Event) -> str | None:
    """Return the id of the call that an event concerns, or None."""
    if isinstance(event, CallProposed):
        return event.call.id
    return getattr(event, "call_id", None) or None


def _tool(event: Event, state: State, call_id: str | None) -> str | None:
    if call_id is None:
        return None
    call = state.calls.get(call_id)
    return call.name if call is not None else getattr(event, "name", None)


def _text(event: Event) -> str:
    """Return the content of an event in short form: a message, arguments, a result or a reason; "" for other events."""
    match event:
        case RunStart():
            return words_of(event.input)
        case MessageAdded() | ModelEnd() | Queued():
            return text_of(event.message.content)
        case ModelFailed():
            return f"{event.error.type}: {event.error.message}"
        case PhaseChange():
            return f"{event.source} > {event.phase}"
        case StateUpdate():
            return ", ".join(event.values)
        case CallProposed():
            return words_of(event.call.arguments)
        case ApprovalRequest() | CallStart():
            return words_of(event.arguments)
        case ApprovalDecision():
            who = f"{event.by} ({event.reviewer})" if event.reviewer else event.by
            return f"{event.decision} by {who}" + (f": {event.reason}" if event.reason else "")
        case CallEnd():
            return words_of(event.result)
        case RunEnd():
            return f"{event.error.type}: {event.error.message}" if event.error is not None else event.reason
        case RunPaused():
            return event.reason
        case _:
            return ""


def words_of(value: Any) -> str:
    """Return a JSON value as text: a string unchanged, null as "", any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else as_json(value).decode()
