"""The trace: a run as a tree of rows: a loop has turns, a turn has calls, and a call may be a loop again.

The rows are values without markup. The static panel draws them, and the live page gets them with the events: what an
event has added or changed is sent with its row (`changes`), so that a page that shows any earlier position has the
rows of that position (`page/trace_rows.js`). Times come from `spans`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentnb.core.events import CUT_OFF_REASONS, ApprovalDecision, Event
from agentnb.core.messages import text_of
from agentnb.widgets.text import as_json, brief, message_text, on_a_line, one_line
from agentnb.widgets.views.decisions import CHANGING, deciders_name
from agentnb.widgets.views.live import is_within
from agentnb.widgets.views.short import in_short, result_in_short
from agentnb.widgets.views.spans import Span, Spans

Kind = Literal["loop", "pass", "turn", "call", "message", "answer"]
Status = Literal["done", "running", "waiting", "failed", "next"]
"""`next`: a call that has not begun."""

PEOPLE = frozenset({"input", "steering", "follow_up"})
"""The origins of a person's messages."""
GIVEN = 100
"""Characters of what a loop was given to do."""
FIRST_LINE = 160
"""Characters of a text that the page gets for its row, of its first line."""

_DONE = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "edited",
    "replace": "replaced",
    "answer": "answered",
    "ask": "withdrawn",
}


@dataclass(frozen=True, slots=True)
class CallDecision:
    """A decision about a call. `after` are the seconds from the question to it, None if nobody was asked.

    by_person: whether a person or code decided, and not a rule or a function. remembered: whether it repeats such a
    decision. before: the call that was asked about, if the decision changed it. position: its event.
    """

    what: str
    by: str
    by_person: bool
    remembered: bool
    after: float | None
    reason: str
    before: str
    position: int

    @property
    def is_worth_a_line(self) -> bool:
        """False if a rule let the call run."""
        return self.by_person or self.after is not None or self.what != "approved" or self.remembered


@dataclass(slots=True)
class Row:
    """A row of the trace. `position` is its first event, `number` its place among all rows in the order of creation.

    span: its span, -1 if it has none. loop: of a loop, the span of the loop that runs in it, the last one if there
    were several. name: of a call the tool, of a message who wrote it. text: what the model or the person said, what a
    loop was given to do, a failure in words. arguments: of a call; `shortened` is their text on one line. outcome: how
    a call ended, empty if it returned; how an answer was cut off. usage: of a turn. by_person: of a message. why: the
    reason why a person is asked. began, ended: of a pass, whose time no span has. seconds: how long it ran when the
    rows were read, without the time that it waited; None if it has not begun. at_most: it may have run for less.
    """

    kind: Kind
    status: Status
    position: int
    name: str
    path: str = ""
    number: int = -1
    parent: int | None = None
    span: int = -1
    loop: int = -1
    text: str = ""
    reasoning: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    arguments: Mapping[str, Any] | None = None
    shortened: str = ""
    result: Any = None
    outcome: str = ""
    by_person: bool = False
    decided: list[CallDecision] = field(default_factory=list)
    why: str = ""
    began: float | None = None
    ended: float | None = None
    seconds: float | None = None
    at_most: bool = False
    inside: list[Row] = field(default_factory=list)

    def count(self, kind: Kind) -> int:
        """Return how many rows of a kind are inside this one."""
        return sum((row.kind == kind) + row.count(kind) for row in self.inside)


@dataclass(slots=True)
class _Loop:
    """A loop that runs. `row` is that of the call that it performs; None if its rows are the outermost."""

    span: Span
    row: Row | None
    current_pass: Row | None = None
    has_input: bool = False
    last_calls: dict[str, _Call] = field(default_factory=dict)  # by tool


@dataclass(slots=True)
class _Call:
    """A call. `before` and `after` are the calls of the same tool next to it in its loop.

    is_given: a loop performs it that the design has called; it shows what that loop was given, not the arguments.
    """

    row: Row
    tool: str = ""
    is_given: bool = False
    asked: dict[int, float] = field(default_factory=dict)  # the times of the questions, by their events
    has_ended: bool = False
    before: _Call | None = None
    after: _Call | None = None


class Trace:
    """The trace of a run. Call `follow` with its events, then `rows` or `changes`."""

    def __init__(self) -> None:
        self.spans = Spans()
        self.all: list[Row] = []
        self._outermost: list[Row] = []
        self._question: str | None = None
        self._lock = threading.Lock()
        self._changes: list[bytes] = []
        self._changed: dict[int, dict[str, Any]] = {}  # by the current event: what the page gets, by row
        self._loops: dict[str, _Loop] = {}  # by path; a loop is missing if no row has a place for it
        self._turns: dict[int, Row] = {}  # by span
        self._calls: dict[int, _Call] = {}  # by span
        # The calls that have not begun: by the path of their loop, then by the turn's row and the id.
        self._next: dict[str, dict[tuple[int, str], _Call]] = {}
        self._begun: dict[int, int] = {}  # by the turn's row: the number of calls that have begun
        self._in_pass: dict[str, _Loop] = {}  # by path

    def follow(self, events: Sequence[Event], until: int | None = None) -> Trace:
        """Read the events that are new, up to the position `until` if given. Safe to call from any thread."""
        until = len(events) if until is None else until
        with self._lock:
            seen = len(self._changes)
            for position, event in enumerate(events[seen:until], seen):
                self.spans.follow(events, position + 1)
                self._changed = {}
                self._fold(position, event)
                changed = [{"number": number, **fields} for number, fields in self._changed.items()]
                self._changes.append(as_json(changed) if changed else b"")
        return self

    def changes(self, position: int) -> bytes:
        """Return the rows that an event has added or changed, as JSON: a list; empty if there are none."""
        return self._changes[position]

    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the outermost loop; what the run was started with is not a row.

        The rows change when the trace follows more events.
        """
        for row in self.all:
            row.seconds = self._seconds(row)
            span = self._span(row)
            row.at_most = span is not None and span.at_most
        return tuple(self._outermost)

    def question(self) -> str:
        """Return what the run was started with, as text."""
        return self._question or ""

    def _fold(self, position: int, event: Any) -> None:
        """Apply one event, which the spans have followed."""
        span = self.spans.causes.spans[position]
        if event.type == "run_start":
            self._begin(position, event)
        elif (loop := self._loops.get(event.path)) is None:
            return
        else:
            match event.type:
                case "message":
                    self._note_message(position, event, loop)
                case "state_update":
                    self._note_pass(position, event, loop)
                case "model_start":
                    name = self.spans.all[span].name.capitalize()
                    row = Row("turn", "running", position, name, event.path, span=span)
                    self._turns[span] = self._add(row, loop)
                case "model_end" | "model_error":
                    if span in self._turns:
                        self._note_answer(position, event, self._turns[span], loop)
                case "run_end":
                    self._end(position, event, loop)
                case "call_proposed" | "approval_request" | "approval_decision" | "call_start" | "call_end":
                    if event.type != "approval_decision" or event.call_id:
                        self._note_call(position, event, span, loop)
                case _:
                    pass

        # How far the spans that the event has changed have come.
        for number in self.spans.touched:
            if number in self._turns:
                self._update_turn(self._turns[number])
            elif number in self._calls:
                self._update_call(self._calls[number])

    # -- loops, passes and messages

    def _begin(self, position: int, event: Any) -> None:
        """Note that a loop begins. A nested one gives its rows to the call that it performs."""
        causes = self.spans.causes
        span = self.spans.all[causes.spans[position]]
        if not event.path:
            self._note_question(event.input, is_message=False)
        if span.parent is None:
            self._loops[event.path] = _Loop(span, None)
            return
        cause = causes.causes[position]
        call = self._calls.get(causes.spans[cause]) if cause >= 0 else None
        if call is None:
            self._loops.pop(event.path, None)
            return
        self._loops[event.path] = _Loop(span, call.row)
        self._set(call.row, kind="loop", name=span.name, loop=span.number)
        if self.spans.all[call.row.span].turn is None:  # the design has called it: what it was given to do says more
            self._unlink(call)
            call.is_given = True
            self._set(call.row, shortened="", text=_given(event.input, self.question()))

    def _note_question(self, given: Any, *, is_message: bool) -> None:
        """Note what the run was started with: the first message that was its input, or the input itself."""
        if is_message:
            self._question = text_of(given)
            return
        if isinstance(given, Sequence) and not isinstance(given, str) and given and isinstance(given[-1], Mapping):
            given = given[-1].get("content", given)
        self._question = given if isinstance(given, str) else on_a_line(given) if given is not None else ""

    def _note_message(self, position: int, event: Any, loop: _Loop) -> None:
        """Add a message that is no answer and no result, unless the loop was started with it."""
        role, text = event.message.role, message_text(event.message.content)
        if event.origin == "input" and (event.path or not loop.has_input):
            if not event.path and role == "user":
                self._note_question(event.message.content, is_message=True)
            loop.has_input = True
        elif role in ("user", "assistant") and text:
            by_person = role == "user" and event.origin in PEOPLE
            name = "You" if by_person else loop.span.name if role == "assistant" else "To the model"
            self._add(Row("message", "done", position, name, event.path, text=text, by_person=by_person), loop)

    def _note_pass(self, position: int, event: Any, loop: _Loop) -> None:
        """Begin a pass of a LoopAgent, whose state says how many passes are complete."""
        passes = event.values.get("times_looped")
        if type(passes) is not int or "current_sub_agent" not in event.values:
            return
        name = f"Pass {passes + 1:,}"
        if loop.current_pass is None or loop.current_pass.name != name:
            self._end_pass(event.path)
            row = Row("pass", "running", position, name, event.path, began=self.spans.last)
            loop.current_pass = self._add(row, loop)
            self._in_pass[event.path] = loop

    def _end_pass(self, path: str) -> None:
        loop = self._in_pass.pop(path, None)
        if loop is not None and loop.current_pass is not None:
            self._set(loop.current_pass, status="done", ended=self.spans.last)
            loop.current_pass = None

    def _end(self, position: int, event: Any, loop: _Loop) -> None:
        """End a loop, and what is inside it: calls that have not begun do not begin any more."""
        for path in [path for path in self._next if is_within(path, event.path)]:
            self._remove(list(self._next.pop(path).values()))
        for path in [path for path in self._in_pass if is_within(path, event.path)]:
            self._end_pass(path)

        # The output is a row if the last row does not say it.
        last = self._outermost[-1] if self._outermost else None
        if not event.path and event.output is not None and (last is None or last.text != event.output):
            text = event.output if isinstance(event.output, str) else result_in_short(event.output)
            self._add(Row("answer", "done", position, "Answer", text=text, result=event.output), loop)

    # -- turns

    def _note_answer(self, position: int, event: Any, row: Row, loop: _Loop) -> None:
        """Note the answer of the model and the calls in it, which have not begun yet."""
        if event.type == "model_error":
            self._set(row, status="failed", text=f"{event.error.type}: {event.error.message}")
            return
        thoughts = event.message.get("reasoning") or ()
        row.usage = event.usage
        row.reasoning = "\n".join(str(block.get("text", "")) for block in thoughts if block.get("text"))
        self._set(row, text=text_of(event.message.content))
        if event.stop_reason in CUT_OFF_REASONS:
            self._set(row, outcome=f"cut off: {event.stop_reason}")
        begun = {self.spans.all[call.span].call for call in row.inside}
        for made in event.message.tool_calls:
            own, key = self._next.setdefault(row.path, {}), (row.number, made.id)
            if made.id not in begun and key not in own:
                call = own[key] = _Call(Row("call", "next", position, made.name, row.path))
                self._add(call.row, loop, row)
                self._note_arguments(call, loop, made.name, made.arguments)

    def _update_turn(self, row: Row) -> None:
        # An answer that the end of the run interrupted has no end of its own.
        if row.status != "failed":
            self._set(row, status="running" if self.spans.all[row.span].ended is None else "done")

    # -- calls

    def _note_call(self, position: int, event: Any, span: int, loop: _Loop) -> None:
        """Note an event about a call."""
        call = self._calls.get(span)
        if call is None:
            call = self._calls[span] = self._begin_call(position, self.spans.all[span], loop)
        row = call.row
        match event.type:
            case "call_proposed":
                self._note_arguments(call, loop, event.call.name, event.call.arguments)
            case "approval_request":
                self._note_arguments(call, loop, event.name, event.arguments)
                row.why = event.reason
                call.asked[event.seq] = event.time
            case "approval_decision":
                decided = _decision(event, call)
                row.decided.append(decided)
                if decided.is_worth_a_line:
                    self._tell(row, decided=_told_decision(decided))
                if event.decision in CHANGING:  # this is what will run
                    self._note_arguments(call, loop, event.name or call.tool, event.arguments or {})
            case "call_start":
                self._note_arguments(call, loop, event.name, event.arguments)
                call.has_ended = False
            case "call_end":
                call.has_ended, row.result = True, event.result
                self._tell(row, result="" if event.is_error else result_in_short(event.result))
                self._set(row, outcome="" if event.outcome == "returned" else event.outcome.replace("_", " "))
                if event.is_error:
                    self._set(row, text=event.result if isinstance(event.result, str) else on_a_line(event.result))
            case _:
                pass

    def _begin_call(self, position: int, span: Span, loop: _Loop) -> _Call:
        """Return the call that begins: the next one of the answer that made it, or a new one."""
        turn = self._turns.get(span.turn.number) if span.turn is not None else None
        own = self._next.get(span.path, {})
        call = own.pop((turn.number, span.call), None) if turn is not None else None
        if not own:
            self._next.pop(span.path, None)
        if call is None:
            call = _Call(Row("call", "next", position, span.name, span.path, span=span.number))
            self._add(call.row, loop, turn)
        else:
            self._set(call.row, position=position, span=span.number)
        if turn is not None:  # its place is after those that have begun
            place = self._begun.get(turn.number, 0)
            self._begun[turn.number] = place + 1
            if turn.inside[place] is not call.row:
                turn.inside.remove(call.row)
                turn.inside.insert(place, call.row)
                self._tell(call.row, place=place)
        return call

    def _note_arguments(self, call: _Call, loop: _Loop, tool: str, arguments: Mapping[str, Any]) -> None:
        """Note the tool and the arguments of a call. Those as in the tool's call before are the last in the line."""
        row = call.row
        if row.arguments is not None and row.arguments == arguments and call.tool == tool:
            return
        row.arguments = arguments
        if row.kind == "call":
            self._set(row, name=tool)
        if call.is_given:
            return
        if call.tool != tool:
            self._unlink(call)
            call.tool, call.before = tool, loop.last_calls.get(tool)
            if call.before is not None:
                call.before.after = call
            loop.last_calls[tool] = call
        self._shorten(call)
        if call.after is not None:
            self._shorten(call.after)

    def _shorten(self, call: _Call) -> None:
        before = call.before.row.arguments if call.before is not None else None
        self._set(call.row, shortened=in_short(call.row.arguments, before or {}))

    def _unlink(self, call: _Call) -> None:
        """Take a call out of the calls of its tool."""
        if call.before is not None:
            call.before.after = call.after
        if call.after is not None:
            call.after.before = call.before
            self._shorten(call.after)
        call.before = call.after = None

    def _update_call(self, call: _Call) -> None:
        span = self.spans.all[call.row.span]
        status: Status = "next"
        if call.has_ended:
            status = "failed" if span.failed else "done"
        elif span.intervals and span.intervals[-1].end is None:
            status = "waiting" if span.intervals[-1].kind == "wait" else "running"
        self._set(call.row, status=status)

    # -- rows

    def _add(self, row: Row, loop: _Loop, parent: Row | None = None) -> Row:
        """Add a row inside another one, by default as the last of its loop."""
        if parent is None:
            parent = loop.current_pass or loop.row
        row.number, row.parent = len(self.all), parent.number if parent is not None else None
        self.all.append(row)
        (parent.inside if parent is not None else self._outermost).append(row)
        fields = {"kind": row.kind, "status": row.status, "name": row.name}
        more = {"parent": row.parent, "span": row.span if row.span >= 0 else None, "began": row.began}
        self._changed[row.number] = fields | {name: value for name, value in more.items() if value is not None}
        if row.text:
            self._tell(row, text=_first_line(row.text))
        if row.by_person:
            self._tell(row, person=True)
        return row

    def _remove(self, calls: Sequence[_Call]) -> None:
        """Remove calls that have not begun."""
        numbers = {call.row.number for call in calls}
        for parent in {call.row.parent for call in calls if call.row.parent is not None}:
            inside = self.all[parent].inside
            inside[:] = [row for row in inside if row.number not in numbers]
        for call in calls:
            self._tell(call.row, removed=True)

    def _set(self, row: Row, **fields: Any) -> None:
        """Set fields of a row, and note those that differ for the page."""
        for name, value in fields.items():
            if getattr(row, name) != value:
                setattr(row, name, value)
                told = _first_line(value) if name == "text" else value
                self._tell(row, **{"arguments" if name == "shortened" else name: told})

    def _tell(self, row: Row, **fields: Any) -> None:
        """Note what the page gets about a row."""
        self._changed.setdefault(row.number, {}).update(fields)

    def _seconds(self, row: Row) -> float | None:
        """Return how long a row ran; None if it has not begun, or if it takes no time."""
        if row.began is not None:
            return max(0.0, (self.spans.last if row.ended is None else row.ended) - row.began)
        span = self._span(row)
        if span is None or not any(interval.kind == "run" for interval in span.intervals):
            return None
        return span.worked(self.spans.last)

    def _span(self, row: Row) -> Span | None:
        """Return the span that tells how long a row ran: of the loop that runs in it, else its own."""
        number = row.loop if row.loop >= 0 else row.span
        return self.spans.all[number] if number >= 0 else None


def _first_line(text: str) -> str:
    return one_line(text.strip().partition("\n")[0], FIRST_LINE)


def _given(value: Any, question: str) -> str:
    """Return what a loop was given to do, in short: of messages the first that is not what the run was started with."""
    if not (isinstance(value, (list, tuple)) and value and all(isinstance(one, Mapping) for one in value)):
        return brief(value, GIVEN)
    texts = (text_of(one.get("content") or "") for one in value)
    return brief(next((text for text in texts if text and text != question), ""), GIVEN)


def _decision(event: ApprovalDecision, call: _Call) -> CallDecision:
    """Return a decision about a call, which has the arguments that were asked about."""
    asked = call.asked.get(event.question) if event.question is not None else None
    if asked is None and call.asked and event.by in ("human", "code"):
        asked = call.asked[max(call.asked)]
    rule = f"the decision of event {event.earlier}" if event.earlier is not None else "a rule of the study"
    by = rule if event.by == "remembered" else ""
    return CallDecision(
        _DONE[event.decision],
        by or deciders_name(event.by, event.reviewer),
        event.by in ("human", "code"),
        event.by == "remembered",
        max(0.0, event.time - asked) if asked is not None else None,
        event.reason,
        f"{call.tool}({in_short(call.row.arguments or {}, {})})" if event.decision in CHANGING else "",
        event.seq,
    )


def _told_decision(decided: CallDecision) -> dict[str, Any]:
    """Return what the page gets about a decision."""
    told = {
        "what": decided.what,
        "by": one_line(decided.by, GIVEN),
        "person": decided.by_person,
        "after": decided.after,
        "reason": _first_line(decided.reason) or None,
        "position": decided.position,
    }
    return {name: value for name, value in told.items() if value is not None}
