"""Rows: the events, calls, decisions and messages of a recording, each as a dataclass.

The fields of a row are the columns of the frame of the same name (`agentnb.analysis.frames`). Times are seconds since
the run's first event, NaN if the event has not happened. Events that are counted in another source have no row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

from agentnb.analysis.sources import NEVER, Source
from agentnb.core.events import (
    Event,
    MessageAdded,
    ModelEnd,
    ModelFailed,
    ModelStart,
    RunEnd,
    RunResumed,
    RunStart,
)
from agentnb.core.evolve import walk
from agentnb.core.messages import Message, text_of
from agentnb.core.state import CallState, State
from agentnb.llms.prices import estimated_cost, saved_by_cache
from agentnb.store.outlines import Outline, follow
from agentnb.widgets.text import as_json


def time_of(event: Any) -> float:
    """Return the time of an event in seconds since the epoch; NaN if it is not known."""
    return NEVER if event.untimed else float(event.time)


def call_id_of(event: Any) -> str | None:
    """Return the id of the call that an event concerns, or None."""
    if event.type == "call_proposed":
        return str(event.call.id)
    return getattr(event, "call_id", None) or None


def _walked(source: Source) -> Iterator[tuple[Any, Any]]:
    """Yield each event, or its outline, with the state of its loop right after it."""
    return follow(cast("Sequence[Outline]", source.events)) if source.outlined else walk(source.events)


def json_text(value: Any) -> str:
    """Return a JSON value as text: a string unchanged, null as "", any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else as_json(value).decode()


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON text with sorted keys, so that equal arguments have equal texts."""
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False, default=str)


# -- events -----------------------------------------------------------------------------------------------------------


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
    """Yield a row for each event of a recording, in order."""
    began = source.began
    for event, state in _walked(source):
        if event.seq in source.elsewhere:
            continue
        kind = event.type
        call_id = call_id_of(event)
        call = state.calls.get(call_id) if call_id is not None else None
        # An event before its call is proposed finds no state of the call; the event itself may have the tool's name.
        tool = call.name if call is not None else getattr(event, "name", None) if call_id is not None else None
        yield EventRow(
            run=source.name,
            seq=event.seq,
            time=time_of(event),
            seconds=time_of(event) - began,
            path=event.path,
            loop=state.name,
            type=kind,
            phase=state.phase or "",
            turn=state.turn,
            call_id=call_id,
            tool=tool,
            text=_event_text(event),
            provider=(event.provider or None) if kind == "model_start" else None,
            model=(event.model or None) if kind in ("model_start", "model_end") else None,
            finish_reason=event.finish_reason if kind == "model_end" else None,
            inherited=event.inherited,
        )


def _event_text(event: Any) -> str:
    """Return the content of an event in short form: a message, arguments, a result or a reason; "" for other events."""
    match event.type:
        case "run_start":
            return json_text(event.input)
        case "message" | "model_end" | "queued":
            return text_of(event.message.content)
        case "model_error":
            return f"{event.error.type}: {event.error.message}"
        case "phase_change":
            return f"{event.source} > {event.phase}"
        case "state_update":
            return ", ".join(event.values)
        case "call_proposed":
            return json_text(event.call.arguments)
        case "approval_request" | "call_start":
            return json_text(event.arguments)
        case "approval_decision":
            who = f"{event.by} ({event.reviewer})" if event.reviewer else event.by
            return f"{event.decision} by {who}" + (f": {event.reason}" if event.reason else "")
        case "call_end":
            return json_text(event.result)
        case "run_end":
            return f"{event.error.type}: {event.error.message}" if event.error is not None else str(event.reason)
        case "run_paused":
            return str(event.reason)
        case _:
            return ""


# -- calls and decisions ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CallRow:
    """One call, from its proposal to its result; the fields are the columns of `agentnb.analysis.calls`."""

    run: str
    path: str
    loop: str
    turn: int
    call_id: str
    tool: str
    own: bool
    arguments: dict[str, Any]
    decision: str | None = None
    by: str | None = None
    outcome: str | None = None
    is_error: bool | None = None
    result: Any = None
    error: str | None = None
    attempts: int = 0
    time: float = NEVER
    proposed: float = NEVER
    asked: float = NEVER
    decided: float = NEVER
    started: float = NEVER
    ended: float = NEVER
    waited: float = NEVER
    took: float = NEVER
    arguments_text: str = "{}"
    tries: int = 1
    inherited: bool = False


@dataclass(slots=True)
class DecisionRow:
    """One decision about a call; the fields are the columns of `agentnb.analysis.decisions`."""

    run: str
    seq: int
    time: float
    seconds: float
    path: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    decision: str
    by: str
    reason: str
    instead: dict[str, Any] | None
    remember: str | None
    asked: float = NEVER
    waited: float = NEVER
    question: int | None = None
    unknown: bool = False
    reviewer: str | None = None
    shown: str | None = None
    took: float = NEVER
    arguments_text: str = "{}"
    inherited: bool = False
    note: str = ""


_OF_CALLS = frozenset({"model_end", "call_proposed", "approval_request", "approval_decision", "call_start", "call_end"})
"""The types of the events that change the row of a call."""


def call_rows(source: Source) -> list[CallRow]:
    """Return a row for each call of a recording, in the order of their proposals."""
    calls = _Calls(source)
    for event, state in _walked(source):
        if event.type in _OF_CALLS:
            calls.add(event, state)
    return calls.counted()


def decision_rows(source: Source) -> Iterator[DecisionRow]:
    """Yield a row for each decision about a call, in order.

    The decisions of people, policies and deadlines are included, also those that were withdrawn.
    """
    calls = _Calls(source)
    notes: dict[int, str] = {}  # by question
    for event, state in _walked(source):
        row = calls.row(event)
        if event.type == "approval_request":
            notes[event.seq] = event.note
        if event.type == "approval_decision" and row is not None and event.seq not in source.elsewhere:
            arguments = row.arguments
            if not source.outlined:
                call: CallState | None = state.calls.get(event.call_id)
                arguments = call.approval.arguments if call is not None and call.approval is not None else arguments
            seconds = source.seconds(event)
            yield DecisionRow(
                run=source.name,
                seq=event.seq,
                time=time_of(event),
                seconds=seconds,
                path=event.path,
                call_id=event.call_id,
                tool=row.tool,
                arguments=arguments,
                decision=event.decision,
                by=event.by,
                reason=event.reason,
                instead=event.arguments if event.decision in ("edit", "replace") else None,
                remember=event.remember,
                asked=row.asked,
                waited=_waited(event, row.asked, seconds),
                question=event.question,
                unknown=calls.asks_about_lost(row),
                reviewer=event.reviewer,
                shown=event.shown,
                took=event.seconds if event.seconds is not None else NEVER,
                arguments_text=arguments_text(arguments),
                inherited=event.inherited,
                note=event.note or (notes.get(event.question, "") if event.question is not None else ""),
            )
        calls.add(event, state)


def _waited(decision: Any, asked: float, decided: float) -> float:
    """Return the seconds from the question to the decision. A fork's replacement of a decision has no waiting time."""
    return decided - asked if decision.by != "fork" else NEVER


class _Calls:
    """The calls of one recording, each collected from its events; `rows` has them in the order of their proposals."""

    def __init__(self, source: Source) -> None:
        self.rows: list[CallRow] = []
        self._source = source
        self._open: dict[tuple[str, str], CallRow] = {}
        self._lost: set[tuple[str, str]] = set()
        """The calls with an unknown outcome. It is also unknown how long they ran."""
        self._here: set[int] = set()
        """The `id()` of each row that has at least one event that is not counted in another source."""

    def counted(self) -> list[CallRow]:
        """Return the rows that are not counted in another source, with `arguments_text` and `tries` set."""
        tries: dict[tuple[str, str, str], int] = {}
        for row in self.rows:
            row.arguments_text = arguments_text(row.arguments)
            same = row.path, row.tool, row.arguments_text
            row.tries = tries[same] = tries.get(same, 0) + 1
        return [row for row in self.rows if id(row) in self._here]

    def row(self, event: Any) -> CallRow | None:
        """Return the row of the call that an event concerns, or None."""
        call_id = call_id_of(event)
        return self._open.get((event.path, call_id)) if call_id is not None else None

    def asks_about_lost(self, row: CallRow) -> bool:
        """Return True if the newest question about a call is whether it has run: its outcome is unknown."""
        return (row.path, row.call_id) in self._lost

    def add(self, event: Any, state: Any) -> None:
        """Add an event, or its outline, to the row of its call. `state` is the state of its loop after the event."""
        # A call gets its row when it is proposed: by the model's answer, or by an event of its own.
        kind = event.type
        if kind == "model_end":
            for call in event.message.tool_calls:
                self._propose(event, state, call)
            return
        if kind == "call_proposed":
            self._propose(event, state, event.call, own=event.hidden)
            return

        # All later events update this row.
        row = self.row(event)
        if row is None:
            return
        key, seconds = (row.path, row.call_id), self._source.seconds(event)
        if kind == "approval_request":
            row.tool, row.arguments, row.asked = event.name, event.arguments, seconds
            if event.unknown:
                self._lost.add(key)
        elif kind == "approval_decision":
            row.decision, row.by, row.decided = event.decision, event.by, seconds
            row.waited = _waited(event, row.asked, seconds)
        elif kind == "call_start":
            row.tool, row.arguments, row.attempts, row.started = event.name, event.arguments, event.attempt, seconds
            self._lost.discard(key)
        elif kind == "call_end":
            row.outcome, row.is_error, row.result, row.ended = event.outcome, event.is_error, event.result, seconds
            row.took = seconds - row.started if key not in self._lost else NEVER
            row.error = event.error.type if event.error is not None else None
        self._count(row, event)

    def _propose(self, event: Any, state: Any, call: Any, *, own: bool = False) -> None:
        """Add a row for a proposed call. A call that was proposed while the answer streamed already has its row."""
        row = self._open.get((event.path, call.id))
        if row is None or row.turn != state.turn:
            row = CallRow(
                *(self._source.name, event.path, state.name, state.turn, call.id, call.name, own, call.arguments),
                time=time_of(event),
                proposed=self._source.seconds(event),
                inherited=True,
            )
            self._open[event.path, call.id] = row
            self._lost.discard((event.path, call.id))
            self.rows.append(row)
        self._count(row, event)

    def _count(self, row: CallRow, event: Any) -> None:
        """Note if an event of a call is inherited, and counted here. A call is inherited if all its events are."""
        row.inherited = row.inherited and event.inherited
        if event.seq not in self._source.elsewhere:
            self._here.add(id(row))


# -- messages ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MessageRow:
    """One message of a history; the fields are the columns of `agentnb.analysis.messages`."""

    run: str
    seq: int
    time: float
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
    cost_is_estimated: bool = False
    cache_read_tokens: float = NEVER
    took: float = NEVER
    stop_reason: str | None = None
    finish_reason: str | None = None
    provider: str | None = None
    model_asked: str | None = None
    options: dict[str, Any] | None = None
    model: str | None = None
    response_id: str | None = None
    fingerprint: str | None = None
    service_tier: str | None = None
    upstream: str | None = None
    attempts: int = 0
    inherited: bool = False


Paid: TypeAlias = ModelEnd | ModelFailed | RunEnd | RunResumed
"""An event that has the usage of an answer, complete or not."""


def cost_of(end: Paid, request: ModelStart | None) -> tuple[float, bool]:
    """Return the cost of an answer, NaN if it is not known, and True if it is estimated from prices."""
    if "cost" in end.usage:
        return end.usage["cost"], False
    if "cost_estimate" in end.usage:
        return end.usage["cost_estimate"], True
    cost = estimated_cost(end.usage, **_priced(end, request))
    return (cost, True) if cost is not None else (NEVER, False)


def model_of(end: Paid) -> str:
    """Return the name of the model that has answered, "" if the server has not named it."""
    return (end.model or "") if isinstance(end, ModelEnd) else ""


def saved_by(end: Paid, request: ModelStart | None) -> float:
    """Return the estimated cost that the server's cache has saved for an answer; NaN if it is not known."""
    saved = saved_by_cache(end.usage, **_priced(end, request))
    return saved if saved is not None else NEVER


def _priced(end: Paid, request: ModelStart | None) -> dict[str, Any]:
    """Return what the price of an answer depends on, as arguments of `estimated_cost`."""
    options = request.options if request is not None else {}
    return {
        "provider": request.provider if request is not None else "",
        "model": model_of(end) or (request.model if request is not None else ""),
        "server": str(options.get("server") or ""),
        "at": datetime.fromtimestamp(end.time, UTC) if math.isfinite(end.time) and end.time > 0 else None,
    }


@dataclass(slots=True)
class _History:
    """The progress in the history of a loop: the number of messages read, the last request, the last aborted answer."""

    state: State
    messages: int = 0
    request: ModelStart | None = None
    aborted: Event | None = None


def message_rows(source: Source) -> Iterator[MessageRow]:
    """Yield a row for each message, in the order in which they entered a history."""
    histories: dict[str, _History] = {}
    for event, state in walk(source.events):
        history = histories.get(event.path)
        if history is None or history.state is not state:  # a new loop at this path
            yield from _results_of_aborted(source, history)
            history = histories[event.path] = _History(state)
        if isinstance(event, ModelStart):
            history.request = event

        # The messages that this event has added to the history. A result may be added by an event after the end of its
        # call; it is counted with the end of the call.
        for message in state.messages[history.messages :]:
            call = state.calls.get(message.tool_call_id) if message.tool_call_id is not None else None
            made_by = call.end if call is not None and call.end is not None else event
            if made_by.seq not in source.elsewhere:
                row = _message_row(source, event, state, message, history)
                row.inherited = made_by.inherited
                yield row
        history.messages = len(state.messages)

        # An aborted answer is not part of the history.
        if isinstance(event, ModelFailed | RunEnd) and event.answer is not None:
            history.aborted = event
            if event.seq not in source.elsewhere:
                row = _message_row(source, event, state, state.broken_off[0], history)
                row.inherited = event.inherited
                yield row
    for history in histories.values():
        yield from _results_of_aborted(source, history)


def _results_of_aborted(source: Source, history: _History | None) -> Iterator[MessageRow]:
    """Yield the results of an aborted answer's calls. Called when it is certain that no other request follows."""
    if history is not None and history.aborted is not None and history.aborted.seq not in source.elsewhere:
        for message in history.state.broken_off[1:]:
            row = _message_row(source, history.aborted, history.state, message, history)
            row.inherited = history.aborted.inherited
            yield row


def _message_row(source: Source, event: Event, state: State, message: Message, history: _History) -> MessageRow:
    """Return the row of a message that `event` added. The row of an answer also describes the request and its usage."""
    origin: str | None = None
    if isinstance(event, MessageAdded):
        origin = event.origin if message is event.message else None
    elif isinstance(event, RunStart):
        origin = "history"
    row = MessageRow(
        run=source.name,
        seq=event.seq,
        time=time_of(event),
        seconds=source.seconds(event),
        path=event.path,
        turn=state.turn,
        role=message.role,
        origin=origin,
        content=text_of(message.content) or json_text(message.get("data")),
        calls=len(message.tool_calls),
        call_id=message.tool_call_id,
    )
    if message.role != "assistant" or not isinstance(event, ModelEnd | ModelFailed | RunEnd):
        return row

    # An answer, complete or aborted.
    row.stop_reason = event.stop_reason if isinstance(event, ModelEnd) else message.stop_reason
    request = history.request
    if request is not None:
        row.took, row.attempts = source.seconds(event) - source.seconds(request), request.attempt
        row.provider, row.model_asked = request.provider or None, request.model or None
        row.options = request.options
    if event.usage or isinstance(event, ModelEnd):
        usage: Mapping[str, float] = event.usage
        row.input_tokens = usage.get("input_tokens", NEVER)
        row.output_tokens = usage.get("output_tokens", NEVER)
        row.cost, row.cost_is_estimated = cost_of(event, request)
        row.cache_read_tokens = usage.get("cache_read_tokens", NEVER)
    if isinstance(event, ModelEnd):
        for name in ("finish_reason", "model", "response_id", "fingerprint", "service_tier", "upstream"):
            setattr(row, name, getattr(event, name))
    return row
