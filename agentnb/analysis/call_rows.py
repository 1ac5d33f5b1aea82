"""The calls of a recording, and the decisions about them, as rows. Each call is collected from its events.

Times are seconds since the run's first event, NaN if the event has not happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentnb.analysis.event_rows import call_id_of
from agentnb.analysis.sources import NEVER, Source
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallEnd, CallProposed, CallStart, Event, ModelEnd
from agentnb.core.evolve import walk
from agentnb.core.messages import ToolCall
from agentnb.core.state import CallState, State


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
    reviewer: str | None = None
    shown: str | None = None
    took: float = NEVER
    arguments_text: str = "{}"
    inherited: bool = False


def _waited(decision: ApprovalDecision, asked: float, decided: float) -> float:
    """Return the seconds from the question to the decision. A fork's replacement of a decision has no waiting time."""
    return decided - asked if decision.by != "fork" else NEVER


class Calls:
    """The calls of one recording, collected event by event; `rows` has them in the order of their proposals.

    A call is inherited if all its events are inherited.
    """

    def __init__(self, source: Source) -> None:
        self.rows: list[CallRow] = []
        self._source = source
        self._open: dict[tuple[str, str], CallRow] = {}
        self._lost: set[tuple[str, str]] = set()
        self._here: set[int] = set()
        """The ids of the row objects with at least one event that is not counted in another source."""

    def counted(self) -> list[CallRow]:
        """Return the rows that are not counted in another source, with `arguments_text` and `tries` set."""
        tries: dict[tuple[str, str, str], int] = {}
        for row in self.rows:
            row.arguments_text = text_of_arguments(row.arguments)
            same = row.path, row.tool, row.arguments_text
            row.tries = tries[same] = tries.get(same, 0) + 1
        return [row for row in self.rows if id(row) in self._here]

    def take(self, event: Event, state: State) -> None:
        """Add an event to the row of its call. `state` is the state of its loop after the event."""
        if isinstance(event, ModelEnd):
            for call in event.message.tool_calls:
                self._propose(event, state, call)
        elif isinstance(event, CallProposed):
            self._propose(event, state, event.call, own=event.hidden)
        elif (row := self.row(event)) is not None:
            self._note(row, event, event.time - self._source.began)
            self._note_whose(row, event)

    def row(self, event: Event) -> CallRow | None:
        """Return the row of the call that an event concerns, or None."""
        call_id = call_id_of(event)
        return self._open.get((event.path, call_id)) if call_id is not None else None

    def _propose(self, event: Event, state: State, call: ToolCall, *, own: bool = False) -> None:
        """Start a row for a proposed call. A call that was proposed while the answer streamed already has its row."""
        known = self._open.get((event.path, call.id))
        if known is not None and known.turn == state.turn:  # proposed while the answer streamed
            self._note_whose(known, event)
            return
        row = CallRow(
            *(self._source.name, event.path, state.name, state.turn, call.id, call.name, own, call.arguments),
            proposed=event.time - self._source.began,
            inherited=True,
        )
        self._open[event.path, call.id] = row
        self.rows.append(row)
        self._note_whose(row, event)

    def _note_whose(self, row: CallRow, event: Event) -> None:
        row.inherited = row.inherited and event.inherited
        if event.seq not in self._source.elsewhere:
            self._here.add(id(row))

    def _note(self, row: CallRow, event: Event, seconds: float) -> None:
        """Update a row with an event of its call; `seconds` is the time of the event."""
        key = row.path, row.call_id
        if isinstance(event, ApprovalRequest):
            row.tool, row.arguments, row.asked = event.name, event.arguments, seconds
            if event.unknown:  # the call's outcome is unknown, so the time for which it ran is unknown too
                self._lost.add(key)
        elif isinstance(event, ApprovalDecision):
            row.decision, row.by, row.decided = event.decision, event.by, seconds
            row.waited = _waited(event, row.asked, seconds)
        elif isinstance(event, CallStart):
            row.tool, row.arguments, row.attempts, row.started = event.name, event.arguments, event.attempt, seconds
            self._lost.discard(key)
        elif isinstance(event, CallEnd):
            row.outcome, row.is_error, row.result, row.ended = event.outcome, event.is_error, event.result, seconds
            row.took = seconds - row.started if key not in self._lost else NEVER
            row.error = event.error.type if event.error is not None else None


def call_rows(source: Source) -> list[CallRow]:
    """Return the calls of a recording in the order of their proposals, without those counted in another source."""
    calls = Calls(source)
    for event, state in walk(source.events):
        calls.take(event, state)
    return calls.counted()


def text_of_arguments(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON text with sorted keys, so that equal arguments have equal texts."""
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False, default=str)


def decision_rows(source: Source) -> Iterator[DecisionRow]:
    """Yield the decisions about calls in order, including those of policies and deadlines and withdrawn decisions."""
    calls = Calls(source)
    for event, state in walk(source.events):
        row = calls.row(event)
        if isinstance(event, ApprovalDecision) and row is not None and event.seq not in source.elsewhere:
            call: CallState | None = state.calls.get(event.call_id)
            asked = call.approval.arguments if call is not None and call.approval is not None else row.arguments
            seconds = event.time - source.began
            yield DecisionRow(
                run=source.name,
                seq=event.seq,
                seconds=seconds,
                path=event.path,
                call_id=event.call_id,
                tool=row.tool,
                arguments=asked,
                decision=event.decision,
                by=event.by,
                reason=event.reason,
                instead=event.arguments if event.decision in ("edit", "replace") else None,
                remember=event.remember,
                asked=row.asked,
                waited=_waited(event, row.asked, seconds),
                question=event.question,
                reviewer=event.reviewer,
                shown=event.shown,
                took=event.seconds if event.seconds is not None else NEVER,
                arguments_text=text_of_arguments(asked),
                inherited=event.inherited,
            )
        calls.take(event, state)
