"""The trace: a run as a tree of rows: a loop has turns, a turn has calls, and a call may be a loop again.

The rows are values without markup. The static panel draws them; whatever else shows a trace draws the same rows. Times
come from `spans`. `Trace` follows the events of a run, so reading it again after new events costs only the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentnb.core.events import CUT_OFF_REASONS, ApprovalDecision, Event
from agentnb.core.messages import text_of
from agentnb.widgets.text import as_json, brief, for_reading, on_a_line, one_line
from agentnb.widgets.views.decisions import deciders_name
from agentnb.widgets.views.spans import Span, Spans

Kind = Literal["loop", "turn", "call", "message"]
Status = Literal["done", "running", "waiting", "failed", "next"]
"""`next`: a call that has not begun."""

PEOPLE = frozenset({"input", "steering", "follow_up"})
"""The origins of a person's messages."""
LINE = 240
"""Characters of the arguments of a call in its line."""
TEXT, ITEM = 96, 40
"""Characters of one argument in a line, and of one item in a list or an object."""
RESULT = 60
"""Characters of a result in a line; a longer one is shown below the line."""
GIVEN = 100
"""Characters of what a loop was given to do."""
TABLE = 400
"""Rows of a result that are laid out as a table."""

_DONE = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "edited",
    "replace": "replaced",
    "answer": "answered",
    "ask": "withdrawn",
}


@dataclass(frozen=True, slots=True)
class Decided:
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


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the trace. `position` is its first event, `number` its span (-1 if it has none).

    name: of a call the tool, of a message who wrote it. text: what the model or the person said, what a loop was given
    to do, a failure in words. arguments: of a call; `shortened` is their text on one line. outcome: how a call ended,
    empty if it returned; how an answer was cut off. by_person: of a message. seconds: how long it ran, without the time
    that it waited. why: the reason why a person is asked.
    """

    kind: Kind
    status: Status
    position: int
    name: str
    path: str = ""
    number: int = -1
    text: str = ""
    reasoning: str = ""
    arguments: Mapping[str, Any] | None = None
    shortened: str = ""
    result: Any = None
    outcome: str = ""
    by_person: bool = False
    seconds: float | None = None
    decided: tuple[Decided, ...] = ()
    why: str = ""
    inside: tuple[Row, ...] = ()

    def count(self, kind: Kind) -> int:
        """Return how many rows of a kind are inside this one."""
        return sum((row.kind == kind) + row.count(kind) for row in self.inside)


@dataclass(frozen=True, slots=True)
class Output:
    """A result for reading. `line` is the whole of it if it is short; otherwise `words` name what `text` shows."""

    line: str
    words: str
    text: str


class Trace:
    """The trace of a run. Call `follow` with its events, then `rows`."""

    def __init__(self, spans: Spans | None = None) -> None:
        self.spans = spans if spans is not None else Spans()
        self._events: Sequence[Any] = ()
        self._seen = 0
        self._loops: dict[str, int] = {}  # the span of the loop that runs at a path
        self._about: dict[int, list[int]] = {}  # by span: the positions of its events
        self._messages: dict[int, list[int]] = {}  # by the span of a loop
        self._performed: dict[int, list[int]] = {}  # by the span of a call: those of the loops that performed it
        self._over = False

    def follow(self, events: Sequence[Event]) -> Trace:
        """Read the events that are new."""
        total = len(events)
        self._events = events
        causes = self.spans.follow(events, total).causes
        for position in range(self._seen, total):
            event, span = events[position], causes.spans[position]
            if span >= 0:
                self._about.setdefault(span, []).append(position)
            if event.type == "run_start":
                self._loops[event.path] = span
                cause = causes.causes[position]
                if cause >= 0 and (call := causes.spans[cause]) >= 0:
                    self._performed.setdefault(call, []).append(span)
            elif event.type == "message":
                self._messages.setdefault(self._loops.get(event.path, -1), []).append(position)
            elif event.type == "run_end" and not event.path:
                self._over = True
        self._seen = total
        return self

    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the outermost loop; what the run was started with is not a row."""
        roots = [span for span in self.spans.all if span.kind == "loop" and span.parent is None]
        return tuple(row for root in roots for row in self._rows_of(root))

    def question(self) -> str:
        """Return what the run was started with, as text."""
        for position in self._messages.get(self._loops.get("", -1), ()):
            message = self._events[position].message
            if self._events[position].origin == "input" and message.role == "user":
                return text_of(message.content)
        start = self._events[0] if self._events else None
        given = getattr(start, "input", None)
        if isinstance(given, Sequence) and not isinstance(given, str) and given and isinstance(given[-1], Mapping):
            given = given[-1].get("content", given)
        return given if isinstance(given, str) else on_a_line(given) if given is not None else ""

    def _rows_of(self, loop: Span) -> list[Row]:
        """Return the rows directly inside a loop, in the order in which they began."""
        calls: dict[int, list[Span]] = {}
        rows: list[Row] = []
        before: dict[str, Mapping[str, Any]] = {}  # by tool: the arguments of its call before
        inside = [span for span in loop.inside if span.kind in ("model", "call")]
        for span in inside:
            if span.kind == "call" and span.turn is not None:
                calls.setdefault(span.turn.number, []).append(span)
        for span in inside:
            if span.kind == "model":
                rows.append(self._turn(span, calls.get(span.number, ()), before))
            elif span.turn is None:
                rows.append(self._call(span, before))
        rows += self._said(loop)
        rows.sort(key=lambda row: row.position)
        return rows

    def _said(self, loop: Span) -> Iterator[Row]:
        """Return the messages of a loop that are no answers and no results, without those that it was started with."""
        is_first = True
        for position in self._messages.get(loop.number, ()):
            event = self._events[position]
            role, text = event.message.role, text_of(event.message.content)
            if event.origin == "input" and (loop.path or is_first):
                is_first = False
                continue
            if role in ("user", "assistant") and text:
                by_person = role == "user" and event.origin in PEOPLE
                name = "You" if by_person else loop.name if role == "assistant" else "To the model"
                yield Row("message", "done", position, name, loop.path, text=text, by_person=by_person)

    def _turn(self, span: Span, calls: Sequence[Span], before: dict[str, Mapping[str, Any]]) -> Row:
        about = (self._events[position] for position in self._about[span.number])
        end = next((event for event in about if event.type != "model_start"), None)
        text = reasoning = outcome = ""
        inside = [self._call(call, before) for call in calls]
        if end is not None and end.type == "model_error":
            text = f"{end.error.type}: {end.error.message}"
        elif end is not None:
            text = text_of(end.message.content)
            thoughts = end.message.get("reasoning") or ()
            reasoning = "\n".join(str(block.get("text", "")) for block in thoughts if block.get("text"))
            outcome = f"cut off: {end.stop_reason}" if end.stop_reason in CUT_OFF_REASONS else ""
            known = {call.call for call in calls}
            for made in end.message.tool_calls if not self._over else ():
                if made.id not in known:
                    shortened = _shortened(made.name, made.arguments, before)
                    inside.append(
                        Row(
                            "call", "next", end.seq, made.name, span.path, arguments=made.arguments, shortened=shortened
                        )
                    )
        failed = end is not None and end.type == "model_error"
        # An answer that the end of the run interrupted has no end of its own.
        status: Status = "failed" if failed else "running" if span.ended is None else "done"
        return Row(
            "turn",
            status,
            span.position,
            span.name.capitalize(),
            span.path,
            span.number,
            text,
            reasoning,
            outcome=outcome,
            seconds=self._seconds(span),
            inside=tuple(inside),
        )

    def _call(self, span: Span, before: dict[str, Mapping[str, Any]]) -> Row:
        name, result, outcome, text, why = span.name, None, "", "", ""
        decided: list[Decided] = []
        asked: dict[int, Any] = {}
        has_ended = False
        arguments = self._proposed(span)
        for position in self._about[span.number]:
            event = self._events[position]
            match event.type:
                case "call_proposed":
                    name, arguments = event.call.name, event.call.arguments
                case "approval_request":
                    name, arguments, why = event.name, event.arguments, event.reason
                    asked[event.seq] = event
                case "approval_decision":
                    decided.append(self._decision(event, asked, name, arguments))
                case "call_start":
                    name, arguments, has_ended = event.name, event.arguments, False
                case "call_end":
                    has_ended, result = True, event.result
                    outcome = "" if event.outcome == "returned" else event.outcome.replace("_", " ")
                    if event.is_error:
                        text = result if isinstance(result, str) else on_a_line(result)
                case _:
                    pass

        # How far it has come.
        status: Status = "next"
        if has_ended:
            status = "failed" if span.failed else "done"
        elif span.intervals and span.intervals[-1].end is None:
            status = "waiting" if span.intervals[-1].kind == "wait" else "running"

        # A call that loops performed has their rows.
        loops = [self.spans.all[number] for number in self._performed.get(span.number, ())]
        inside = tuple(row for loop in loops for row in self._rows_of(loop))
        arguments = arguments or {}
        if loops and span.turn is None:  # the design has called it: what it was given to do says more
            shortened, text = "", text or _given(self._events[loops[-1].position].input, self.question())
        else:
            shortened = _shortened(name, arguments, before)
        return Row(
            "loop" if loops else "call",
            status,
            span.position,
            loops[-1].name if loops else name,
            span.path,
            span.number,
            text,
            arguments=arguments,
            shortened=shortened,
            result=result,
            outcome=outcome,
            seconds=self._seconds(loops[-1] if loops else span),
            decided=tuple(decided),
            why=why,
            inside=inside,
        )

    def _proposed(self, span: Span) -> Mapping[str, Any] | None:
        """Return the arguments that the model gave a call in its answer."""
        for position in self._about.get(span.turn.number, ()) if span.turn is not None else ():
            event = self._events[position]
            if event.type == "model_end":
                return next((made.arguments for made in event.message.tool_calls if made.id == span.call), None)
        return None

    def _decision(
        self, event: ApprovalDecision, asked: Mapping[int, Any], name: str, arguments: Mapping[str, Any] | None
    ) -> Decided:
        question = asked.get(event.question) if event.question is not None else None
        if question is None and asked and event.by in ("human", "code"):
            question = asked[max(asked)]
        changed = event.decision in ("edit", "replace")
        by = f"the decision of event {event.earlier}" if event.by == "remembered" else ""
        return Decided(
            _DONE[event.decision],
            by or deciders_name(event.by, event.reviewer),
            event.by in ("human", "code"),
            event.by == "remembered",
            max(0.0, event.time - question.time) if question is not None else None,
            event.reason,
            f"{name}({in_short(arguments or {}, {})})" if changed else "",
            event.seq,
        )

    def _seconds(self, span: Span) -> float | None:
        """Return how long a span ran; None if it has not begun."""
        has_run = any(interval.kind == "run" for interval in span.intervals)
        return span.worked(self.spans.last) if has_run else None


def _given(value: Any, question: str) -> str:
    """Return what a loop was given to do, in short: of messages the first that is not what the run was started with."""
    if not (isinstance(value, (list, tuple)) and value and all(isinstance(one, Mapping) for one in value)):
        return brief(value, GIVEN)
    texts = (text_of(one.get("content") or "") for one in value)
    return brief(next((text for text in texts if text and text != question), ""), GIVEN)


def _shortened(name: str, arguments: Mapping[str, Any], before: dict[str, Mapping[str, Any]]) -> str:
    """Return the arguments of a call in short, and note them as those of the tool's call before."""
    shortened = in_short(arguments, before.get(name, {}))
    before[name] = arguments
    return shortened


def in_short(arguments: Any, before: Mapping[str, Any]) -> str:
    """Return arguments in one line. Those that are as in the tool's call before come last, and are cut first."""
    if not isinstance(arguments, Mapping):
        return one_line(on_a_line(arguments), TEXT)
    names = sorted(arguments, key=lambda name: name in before and before[name] == arguments[name])
    parts = [f"{one_line(str(name), ITEM)}={_value(arguments[name])}" for name in names]
    return one_line(", ".join(parts), LINE)


def _value(value: Any) -> str:
    """Return an argument in a few words: of a long text its lines, of a long list its beginning and its length."""
    if isinstance(value, str) and "\n" in value.strip("\n"):
        return f"{value.strip(chr(10)).count(chr(10)) + 1:,} lines"
    if isinstance(value, str):
        return f'"{_cut(value, TEXT)}"'
    if isinstance(value, (list, tuple)) and len(value) > 4:
        return f"[{_cut(_item(value[0]), ITEM)}, {_cut(_item(value[1]), ITEM)}, … {len(value):,}]"
    if isinstance(value, Mapping) and len(value) > 4:
        return f"{{{', '.join(_cut(str(name), ITEM) for name in list(value)[:2])}, … {len(value):,}}}"
    return _cut(_item(value), TEXT)


def _item(value: Any) -> str:
    return as_json(value[: 2 * TEXT] if isinstance(value, str) else value).decode().replace(",", ", ")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def output(result: Any) -> Output:
    """Return a result for reading: short ones in a line, records as a table, all else as text."""
    if result is None or result == "":
        return Output("", "", "")
    text = result if isinstance(result, str) else on_a_line(result)
    if len(text) <= RESULT and "\n" not in text:
        return Output(text, "", text)
    if (columns := columns_of(result)) is not None:
        return Output("", f"{len(result):,} rows", _table(columns, result))
    if isinstance(result, str):
        lines = text.count("\n") + 1
        return Output("", f"{lines:,} lines" if lines > 1 else "output", text)
    return Output("", "output", for_reading(result))


def columns_of(result: Any) -> list[str] | None:
    """Return the names of the columns, if a result is a list of flat records with the same fields."""
    if not isinstance(result, (list, tuple)) or len(result) < 2 or not isinstance(result[0], Mapping):
        return None
    names = list(result[0])
    for record in result[:TABLE]:
        if not isinstance(record, Mapping) or list(record) != names:
            return None
        if any(isinstance(value, (Mapping, list, tuple)) or "\n" in str(value) for value in record.values()):
            return None
    return names if 0 < len(names) <= 12 else None


def _table(names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as lines of text with aligned columns."""
    shown = records[:TABLE]
    lines = [[_cut(str(name), ITEM) for name in names]]
    lines += [[_cut(on_a_line(v) if not isinstance(v, str) else v, ITEM) for v in record.values()] for record in shown]
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [any(isinstance(record[name], str) for record in shown) for name in names]
    text = [
        "  ".join(cell.ljust(size) if by else cell.rjust(size) for cell, size, by in zip(line, wide, left, strict=True))
        for line in lines
    ]
    more = [f"… {len(records) - TABLE:,} more rows"] if len(records) > TABLE else []
    return "\n".join(line.rstrip() for line in [*text, *more])
