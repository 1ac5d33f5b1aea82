"""The messages of a recording's histories, as rows.

Times are seconds since the run's first event, NaN if the event has not happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentnb.analysis.event_rows import words_of
from agentnb.analysis.sources import NEVER, Source
from agentnb.core.events import Event, MessageAdded, ModelEnd, ModelFailed, ModelStart, RunEnd, RunStart
from agentnb.core.evolve import walk
from agentnb.core.messages import Message, text_of
from agentnb.core.state import State


@dataclass(slots=True)
class MessageRow:
    """One message of a history; the fields are the columns of `agentnb.analysis.messages`."""

    run: str
    seq: int
    seconds: float
    path: str
    turn: int
    role: str
    origin: str | None
    content: str
    calls: int
    call_id: str | None
    input_tokens: float = NEVER
    output_tokens: float = NEVER
    cost: float = NEVER
    took: float = NEVER
    stop_reason: str | None = None
    finish_reason: str | None = None
    provider: str | None = None
    model_asked: str | None = None
    model: str | None = None
    response_id: str | None = None
    fingerprint: str | None = None
    service_tier: str | None = None
    upstream: str | None = None
    attempts: int = 0
    inherited: bool = False


@dataclass(slots=True)
class _Heard:
    """The reader's progress in a loop: the number of messages read, the last request, and the last aborted answer."""

    state: State
    messages: int = 0
    asked: float = NEVER
    broke_off: Event | None = None
    request: ModelStart | None = None
    attempts: int = 0


def message_rows(source: Source) -> Iterator[MessageRow]:
    """Yield the messages in the order in which they entered a history, without those counted in another source."""
    heard: dict[str, _Heard] = {}
    for event, state in walk(source.events):
        known = heard.get(event.path)
        if known is None or known.state is not state:
            yield from _results_of_broken_off(source, known)
            known = heard[event.path] = _Heard(state)
        if isinstance(event, ModelStart):
            known.asked, known.attempts, known.request = event.time, event.attempt, event
        # Messages that this event has added to the history.
        for message in state.messages[known.messages :]:
            said_by = _said_by(event, state, message)
            if said_by.seq not in source.elsewhere:
                row = _message_row(source, event, state, message, known)
                row.inherited = said_by.inherited
                yield row
        known.messages = len(state.messages)
        # An aborted answer is not part of the history.
        if isinstance(event, ModelFailed | RunEnd) and event.answer is not None:
            known.broke_off = event
            if event.seq not in source.elsewhere:
                row = _message_row(source, event, state, state.broken_off[0], known)
                row.inherited = event.inherited
                yield row
    for known in heard.values():
        yield from _results_of_broken_off(source, known)


def _results_of_broken_off(source: Source, known: _Heard | None) -> Iterator[MessageRow]:
    """Yield the results of an aborted answer's calls. Called when it is certain that no other request follows."""
    if known is not None and known.broke_off is not None and known.broke_off.seq not in source.elsewhere:
        for message in known.state.broken_off[1:]:
            row = _message_row(source, known.broke_off, known.state, message, known)
            row.inherited = known.broke_off.inherited
            yield row


def _said_by(event: Event, state: State, message: Message) -> Event:
    """Return the event that made a message: for a call's result the end of the call, otherwise `event`.

    A result may enter the history with an event after the end of its call.
    """
    call = state.calls.get(message.tool_call_id) if message.tool_call_id is not None else None
    return call.end if call is not None and call.end is not None else event


def _origin(event: Event, message: Message) -> str | None:
    """Return the origin of a message that entered a history with this event, or None for answers and results."""
    if isinstance(event, MessageAdded):
        return event.origin if message is event.message else None
    return "history" if isinstance(event, RunStart) else None


def _message_row(source: Source, event: Event, state: State, message: Message, known: _Heard) -> MessageRow:
    """Return the row of a message. An answer has the usage, the duration and the provider of its request as well."""
    row = MessageRow(
        run=source.name,
        seq=event.seq,
        seconds=event.time - source.began,
        path=event.path,
        turn=state.turn,
        role=message.role,
        origin=_origin(event, message),
        content=text_of(message.content) or words_of(message.get("data")),
        calls=len(message.tool_calls),
        call_id=message.tool_call_id,
    )
    if isinstance(event, ModelEnd) and message.role == "assistant":
        used: Mapping[str, float] = event.usage
        row.input_tokens = used.get("input_tokens", NEVER)
        row.output_tokens = used.get("output_tokens", NEVER)
        row.cost = used.get("cost", NEVER)
        row.took, row.stop_reason = event.time - known.asked, event.stop_reason
        for name in ("finish_reason", "model", "response_id", "fingerprint", "service_tier", "upstream"):
            setattr(row, name, getattr(event, name))
        if known.request is not None:
            row.provider, row.model_asked = known.request.provider or None, known.request.model or None
        row.attempts = known.attempts
    elif isinstance(event, ModelFailed | RunEnd) and message.role == "assistant":
        row.took, row.stop_reason = event.time - known.asked, message.stop_reason
        if known.request is not None:
            row.provider, row.model_asked = known.request.provider or None, known.request.model or None
        row.attempts = known.attempts
    return row
