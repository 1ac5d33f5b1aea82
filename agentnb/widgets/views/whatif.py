"""What if: what can be changed at an event of a run, the current values, and what a branch with the change does.

A branch is a fork of the run (`agentnb.run.past.fork`). This module finds the event at which to fork for each kind of
change, and describes an editor for the current value. Each kind is tried without making a branch, so a change that is
not possible has its reason before a person types anything.

An editor is chosen by the shape of a value: a table for records, a form for an object, a text area for anything else.
Values travel as text, as in `forms`. Of a table the page sends the changed cells only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isinf
from typing import Any, NamedTuple

from agentnb.core.errors import UsageError
from agentnb.core.events import ApprovalDecision, CallStart, Event, MessageAdded, ModelStart, RunStart
from agentnb.core.json import repair_text
from agentnb.core.messages import text_of
from agentnb.run import Recording
from agentnb.run.past.fork import Change, why_not
from agentnb.widgets.text import as_json, on_a_line, one_line, pretty
from agentnb.widgets.views.forms import form, merge
from agentnb.widgets.views.short import columns_of, in_short
from agentnb.widgets.views.trace import Trace

EDITABLE = 64 * 1024
"""The maximum number of characters of a value that can be edited in the panel."""
ROWS = 400
"""The maximum number of rows of a table that can be edited in the panel."""
TITLE = 80
"""The maximum number of characters of what the form is about."""
SKIPPED = "This call was skipped."
"""The reason that the model is told of a skipped call, unless the person gives another one."""


class Subject(NamedTuple):
    """What an event is about: a call, an answer of a model, a message, the start of the run, or only a moment.

    event: the chosen event. about: the events of the same call or request, in order.
    """

    kind: str
    name: str
    event: Event
    about: tuple[Event, ...] = ()

    def last(self, type: str, before: int | None = None) -> Any:
        """Return the last event of a type, before the event number `before` if given; None if there is none."""
        found = (e for e in reversed(self.about) if e.type == type and (before is None or e.seq < before))
        return next(found, None)


class Kind(NamedTuple):
    """One kind of change. at: the event at which the branch is forked. kept: the number of events that stay.

    off: why it is not possible; empty if it is. value: the current value, which the editor shows.
    """

    kind: str
    label: str
    at: int
    kept: int
    then: str
    value: Any = None
    off: str = ""


def options(run: Recording, trace: Trace, seq: int) -> dict[str, Any]:
    """Return what can be changed at the event `seq`, for the page: the kinds of changes, with an editor for each.

    Raises UsageError if there is no such event.
    """
    about = subject(run, trace, seq)
    kinds = kinds_of(run, about)
    return {
        "seq": seq,
        "about": about.kind,
        "name": one_line(repair_text(about.name), TITLE),
        "path": repair_text(about.event.path),
        "kinds": [_for_page(run, about, kind) for kind in kinds],
    }


def kind_of(run: Recording, trace: Trace, seq: int, kind: str) -> tuple[Subject, Kind]:
    """Return what an event is about, and one kind of change. Raises UsageError if it is not possible there."""
    about = subject(run, trace, seq)
    found = next((one for one in kinds_of(run, about) if one.kind == kind), None)
    if found is None:
        raise UsageError(f"At event {seq} there is no {kind!r} to change.")
    if found.off:
        raise UsageError(found.off)
    return about, found


def subject(run: Recording, trace: Trace, seq: int) -> Subject:
    """Return what the event `seq` is about. Raises UsageError if there is no such event."""
    events = run.recording
    if not 0 <= seq < len(events):
        raise UsageError(f"The run has no event {seq}.")
    spans = trace.follow(events).spans
    event, number = events[seq], spans.causes.spans[seq]
    if isinstance(event, RunStart) and not event.path:
        return Subject("start", run.name or run.loop.name, event)
    if isinstance(event, MessageAdded):
        return Subject("message", {"user": "you", "assistant": "the loop"}.get(event.message.role, "a message"), event)
    span = spans.all[number] if number >= 0 else None
    if span is None or span.kind not in ("model", "call"):
        return Subject("moment", f"#{seq}", event)
    positions = range(span.position, len(events))
    about = tuple(events[at] for at in positions if spans.causes.spans[at] == number)
    return Subject("call" if span.kind == "call" else "answer", span.name, event, about)


def kinds_of(run: Recording, about: Subject) -> list[Kind]:
    """Return the kinds of changes at an event, in the order of their tabs."""
    kinds = {"call": _of_call, "answer": _of_answer, "message": _of_message, "start": _of_start}
    own = kinds[about.kind](run, about) if about.kind in kinds else []
    return [*own, _message_then(run, about), _model(run, about)]


# -- the kinds ---------------------------------------------------------------------------------------------------------


def _of_call(run: Recording, about: Subject) -> list[Kind]:
    end, start = about.last("call_end"), about.last("call_start")
    request, decision = about.last("approval_request"), about.last("approval_decision", start.seq if start else None)
    pivot = decision or start or request or about.about[0]
    arguments = _arguments(run, about, pivot)
    name, later = about.name, _later(run, about.event)

    # A decision takes the place of an earlier one, or of the start of the call; it follows any other event.
    kept = pivot.seq if pivot.type in ("approval_decision", "call_start") else pivot.seq + 1
    made: list[Kind] = []
    if request is not None or decision is not None:
        current = {"decision": decision.decision, "reason": decision.reason} if decision is not None else {}
        made.append(
            _tried(run, Kind("decision", "Decision", pivot.seq, kept, f"The decision applies to {name}. {later}",
                             {"arguments": arguments, **current}), Change(decision="reject"))
        )  # fmt: skip
    if end is not None and end.outcome != "aborted":
        change = Change(result=end.result)
        made.append(_tried(run, Kind("result", "Result", end.seq, end.seq, later, end.result), change))
    else:
        then = f"{name} does not run: this is its result. {later}"
        made.append(_tried(run, Kind("result", "Result", pivot.seq, kept, then), Change(result="")))
    then = f"{name} runs with these arguments. {later}"
    change = Change(decision={"decision": "edit", "arguments": arguments})
    made.append(_tried(run, Kind("arguments", "Arguments", pivot.seq, kept, then, arguments), change))
    if request is None and decision is None:
        then = f"{name} does not run, and the model reads the reason. {later}"
        made.append(_tried(run, Kind("skip", "Skip it", pivot.seq, kept, then, SKIPPED), Change(decision="reject")))
    return made


def _of_answer(run: Recording, about: Subject) -> list[Kind]:
    end = about.last("model_end")
    if end is None:
        return []
    text = text_of(end.message.content)
    then = _later(run, about.event)
    if calls := len(end.message.tool_calls):
        then = f"Its {'call runs' if calls == 1 else f'{calls} calls run'}. {then}"
    return [_tried(run, Kind("answer", "Answer", end.seq, end.seq, then, text), Change(message=text))]


def _of_message(run: Recording, about: Subject) -> list[Kind]:
    event = about.event
    assert isinstance(event, MessageAdded)
    text = text_of(event.message.content)
    then = _later(run, event)
    return [_tried(run, Kind("message", "Message", event.seq, event.seq, then, text), Change(message=text))]


def _of_start(run: Recording, about: Subject) -> list[Kind]:
    event = about.event
    assert isinstance(event, RunStart)
    then = "The run starts again with this input. Models are asked and tools run."
    given = event.input
    change = Change(message=given if given is not None else "")
    return [_tried(run, Kind("input", "Input", 0, 0, then, given), change)]


def _message_then(run: Recording, about: Subject) -> Kind:
    at = _moment_after(run, about)
    kept = at if run.recording[at].terminal else at + 1
    then = f"The message follows #{kept - 1}. {_later(run, about.event)}"
    kind = Kind("then", "Add a message", at, kept, then)
    if about.event.path:
        return kind._replace(off="A message reaches the outermost loop only, and this is inside another one.")
    return _tried(run, kind, Change())


def _model(run: Recording, about: Subject) -> Kind:
    # Of an answer, fork before the request, so that this answer comes from the other model, too.
    start = about.last("model_start") if about.kind == "answer" else None
    first = next((e for e in about.about if isinstance(e, ModelStart)), None)
    at = (first or start).seq - 1 if start is not None else _moment_after(run, about)
    then = _later(run, about.event, this_turn=start is not None)
    kind = Kind("model", "Model from here", at, at + 1, then)
    if about.event.path:
        return kind._replace(off="Here the model of the outermost loop can be changed, and this is inside another one.")
    kind = _tried(run, kind, Change())
    if not kind.off and run.loop.llm is None:
        kind = kind._replace(off=f"{run.loop.name} asks no model itself; the loops inside it do.")
    return kind


def _tried(run: Recording, kind: Kind, change: Change) -> Kind:
    return kind._replace(off=why_not(run, kind.at, change))


def _moment_after(run: Recording, about: Subject) -> int:
    """Return the event after which something is added: the end of what the chosen event is about, or that event.

    The calls of an answer belong to it: what follows the answer comes after them.
    """
    if about.kind == "call":
        end = about.last("call_end")
        return end.seq if end is not None else about.event.seq
    if about.kind != "answer":
        return about.event.seq
    path, events = about.event.path, run.recording
    later = (e for e in events[about.about[-1].seq + 1 :] if e.path == path)
    following = next((e for e in later if isinstance(e, (ModelStart, MessageAdded))), None)
    return following.seq - 1 if following is not None else len(events) - 1


def _arguments(run: Recording, about: Subject, pivot: Event) -> dict[str, Any]:
    """Return the arguments that the call has at this event."""
    if isinstance(pivot, ApprovalDecision) and pivot.decision in ("edit", "replace"):
        return dict(pivot.arguments or {})
    for event in reversed([e for e in about.about if e.seq <= pivot.seq or isinstance(e, CallStart)]):
        if event.type in ("call_start", "approval_request"):
            return dict(event.arguments)  # type: ignore[attr-defined]  # both have them
        if event.type == "call_proposed":
            return dict(event.call.arguments)  # type: ignore[attr-defined]
    return {}


def _later(run: Recording, event: Event, *, this_turn: bool = False) -> str:
    """Return what happens after the change: from which turn on the model is asked."""
    starts = (e for e in reversed(run.recording[: event.seq + 1]) if isinstance(e, ModelStart) and e.path == event.path)
    last = next(starts, None)
    if last is None and event.path:
        return "Then the loop continues: models are asked and tools run."
    turn = (last.turn if last is not None else 0) + (not this_turn or last is None)
    where = f" of {repair_text(event.path)}" if event.path else ""
    return f"From turn {turn}{where} on the model is asked and tools run."


def stays(kept: int) -> str:
    """Return which events a branch takes over."""
    if not kept:
        return ""
    return "#0 stays as it is." if kept == 1 else f"#0 to #{kept - 1} stay as they are."


# -- the editors -------------------------------------------------------------------------------------------------------


def _for_page(run: Recording, about: Subject, kind: Kind) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": kind.kind, "label": kind.label, "at": kind.at, "off": kind.off}
    made["then"] = " ".join(part for part in (stays(kind.kept), kind.then) if part)
    if kind.off:
        return made
    match kind.kind:
        case "result" | "input":
            made |= editor(kind.value)
        case "arguments":
            made |= _form_of(run, about, kind.value)
        case "decision":
            made |= _form_of(run, about, kind.value["arguments"])
            made["decision"] = str(kind.value.get("decision") or "")
            made["reason"] = repair_text(kind.value.get("reason") or "")
        case "model":
            made["shape"] = "models"
        case _:
            made |= {"shape": "text", "text": repair_text(kind.value or "")}
    if made.get("shape") == "long":
        made["off"] = made.pop("text")
    return made


def editor(value: Any) -> dict[str, Any]:
    """Return the editor of a value: `shape`, and what it shows.

    `table`: `columns`, `kinds` (`string` or `json`) and `rows` of texts. `object`: `fields` of a form. `json` and
    `text`: `text`. `long`: a text that says why the value cannot be edited.
    """
    size = len(value) if isinstance(value, str) else len(as_json(value))
    if size > EDITABLE:
        words = f"It has {size:,} characters, too many to edit here. In code, run.fork(at=..., result=...) changes it."
        return {"shape": "long", "text": words}
    if isinstance(value, str):
        return {"shape": "text", "text": repair_text(value)}
    if (columns := columns_of(value)) is not None and len(value) <= ROWS:
        rows = [[_cell(record[name]) for name in columns] for record in value]
        are_text = [all(isinstance(record[name], str) for record in value) for name in columns]
        kinds = ["string" if text else "json" for text in are_text]
        return {"shape": "table", "columns": [repair_text(str(name)) for name in columns], "kinds": kinds, "rows": rows}
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        return {"shape": "object", "fields": form(_schema_of(value), value)}
    return {"shape": "json", "text": pretty(value)}


def read_json(text: str) -> Any:
    """Return the value of a JSON text. Raises UsageError if it is not JSON, or has a number that is too large."""

    def finite(digits: str) -> float:
        number = float(digits)
        if isinf(number):
            raise ValueError(f"the number {digits} is too large")
        return number

    try:
        return json.loads(text, parse_float=finite)
    except ValueError as error:
        raise UsageError(f"This is not JSON: {error}.") from None


def value_of(message: Mapping[str, Any], current: Any) -> Any:
    """Return the value that a person has made of the current value.

    message: `cells` (the changed ones of a table: row, column, text), `json` (a text), `fields` with `kept` (of a
    form), or `text`. Raises UsageError if it is not valid.
    """
    if isinstance(message.get("json"), str):
        return read_json(message["json"])
    if message.get("cells") is not None:
        return _with_cells(current, message["cells"])
    if message.get("fields") is not None:
        return merge(read_json(str(message["fields"])), message.get("kept") or [], current)
    return str(message.get("text") or "")


def _with_cells(current: Any, cells: Sequence[Any]) -> list[Any]:
    """Return records with these cells changed. A cell that had a text gets a text, any other one a JSON value."""
    columns = columns_of(current) or []
    records = [dict(record) for record in current]
    for row, column, text in cells:
        if not (0 <= row < len(records) and 0 <= column < len(columns)):
            raise UsageError(f"There is no cell {column} in row {row}.")
        name = columns[column]
        if isinstance(records[row][name], str):
            records[row][name] = str(text)
            continue
        try:
            records[row][name] = read_json(str(text))
        except UsageError:
            expected = "a number" if isinstance(records[row][name], (int, float)) else "a JSON value"
            raise UsageError(f"Row {row + 1}, {name}: {str(text)!r:.60} is not {expected}.") from None
    return records


def _cell(value: Any) -> str:
    return repair_text(value) if isinstance(value, str) else on_a_line(value)


def _schema_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of an object as it is, so that each of its values has a field of its type."""
    types = {bool: "boolean", int: "integer", float: "number", str: "string"}
    properties = {name: {"type": types[type(one)]} if type(one) in types else {} for name, one in value.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _form_of(run: Recording, about: Subject, arguments: Mapping[str, Any]) -> dict[str, Any]:
    schema = run.tool_schemas(about.event.path).get(about.name)
    return {"shape": "object", "fields": form(schema if schema else _schema_of(arguments), arguments)}


# -- a name for the branch ---------------------------------------------------------------------------------------------


def default_name(about: Subject, kind: str, value: Any) -> str:
    """Return a readable name of a branch: what differs in it."""
    name = one_line(repair_text(about.name), 40)
    match kind:
        case "result":
            return f"other {name}"
        case "arguments":
            return one_line(f"{name}({in_short(value, {})})", 60)
        case "skip":
            return f"without {name}"
        case "decision":
            verdict = {"approve": "approved", "reject": "rejected", "edit": "edited"}.get(str(value), str(value))
            return f"{name} {verdict}"
        case "model":
            return f"with {one_line(str(value), 40)}"
        case "answer":
            return f"other {name} answer" if name else "other answer"
        case _:
            return one_line(str(value), 40) or "another message"
