"""Rows: the data for each event in the list of events: a summary, and the event's own data if it is small.

The page gets every event of a run, so a row is bounded: data of more than `ROW_LIMIT` bytes is clipped, and the row has
its full size. The page requests the rest when a person wants to see it (`full_text`). The summary of a row is the same
in the live and the static panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentnb.core.events import Event, plain_event
from agentnb.core.messages import OPTIONAL
from agentnb.llms.conversion import part_in_words
from agentnb.widgets.text import as_json, brief, one_line, pretty
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.decisions import decided
from agentnb.widgets.views.strip import inherited_by, mark_of
from agentnb.widgets.views.trace import Trace

ROW_LIMIT = 4096
"""The maximum size of an event's data in a row, in bytes of JSON."""
SHORT = 400
"""A field of at most so many bytes of JSON is never clipped, for example a call's outcome or an answer's usage."""
SUMMARY = 200
"""The maximum number of characters of the one line about an event."""
FULL_LIMIT = 256 * 1024
"""The maximum number of characters that "Show all" fetches; so long a message does not block the page noticeably."""

TAIL, TAIL_ROOM = 100, 16_000
"""The maximum number of rows in the trait that a page without a kernel shows, and of their characters in total."""

STAMPS = ("seq", "time", "run_id", "path", "phase", "type")
"""The fields that every event has; they are not part of a row's data."""

GROUPS: Mapping[str, str] = {
    "run_start": "run",
    "phase_change": "state",
    "message": "message",
    "queued": "message",
    "withdrawn": "message",
    "state_update": "state",
    "model_start": "model",
    "model_end": "model",
    "model_error": "error",
    "call_proposed": "call",
    "approval_request": "approval",
    "approval_decision": "approval",
    "call_start": "call",
    "call_end": "call",
    "run_paused": "run",
    "run_resumed": "run",
    "cancel": "error",
    "run_end": "run",
}
"""The group of each event type. The page shows each group in a colour."""


def row(event: Event, causes: Causes | None = None) -> dict[str, Any]:
    """Return the row of an event. If its data was clipped, `size` is the number of bytes that it has.

    `cut` are then the fields that were clipped.

    causes: the causes of the run's events, which have the name of the event's call; None if they are not computed.
    """
    made, data, _ = _row(event, causes)
    made["data"] = data
    return made


def encode_row(event: Event, trace: Trace | None = None, limit: int = ROW_LIMIT) -> bytes:
    """Return the row of an event as JSON, with its mark on the strip, its cause and its span.

    trace: it has what the event changed, which becomes part of the row. limit: the maximum size of the event's data.
    """
    made, _, encoded = _row(event, trace.spans.causes if trace is not None else None, limit)
    if (mark := mark_of(event)) is not None:
        made["mark"] = mark
    if event.seq == 0 and (inherited := inherited_by(event)):
        made["inherited"] = inherited
    if trace is not None:
        made |= trace.spans.marks(event.seq)
        if changes := trace.spans.changes(event.seq):
            encoded += b"," + changes[1:-1]
        if changed := trace.changes(event.seq):
            encoded += b',"trace":' + changed
    return as_json(made)[:-1] + b',"data":' + encoded + b"}"


def _row(event: Event, causes: Causes | None, limit: int = ROW_LIMIT) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return a row without its data, the data, and the data as JSON, which is made once."""
    data = plain_event(event)
    for stamp in STAMPS:
        data.pop(stamp, None)
    made: dict[str, Any] = {"seq": event.seq, "time": event.time, "type": event.type}
    if event.path:
        made["path"] = event.path
    if event.phase:
        made["phase"] = event.phase
    encoded = as_json(data)
    if len(encoded) > limit:
        made["size"] = len(encoded)
        whole = data
        data, encoded = _small(data, limit)
        made["cut"] = [name for name in data if data[name] is not whole[name] and data[name] != whole[name]]
    made["group"] = "error" if data.get("is_error") or data.get("error") else GROUPS.get(event.type, "state")
    made["summary"] = summary(event.type, data, event.phase)
    if event.type == "approval_decision" and causes is not None:  # the event has only the call's id
        made["summary"] = one_line(f"{causes.name_of(event.seq)} {made['summary']}", SUMMARY)
    return made, data, encoded


def encode_rows(events: Sequence[Event], room: int, trace: Trace | None = None) -> tuple[str, int]:
    """Return rows of the first events as a JSON array of about `room` bytes at most, and their number, at least one."""
    lines: list[bytes] = []
    for event in events:
        line = encode_row(event, trace)
        room -= len(line)
        if room < 0 and lines:
            break
        lines.append(line)
    return (b"[" + b",".join(lines) + b"]").decode(), len(lines)


def tail(events: Sequence[Event]) -> str:
    """Return the last of these events as JSON, as the page shows them without a kernel."""
    rows: list[str] = []
    room = TAIL_ROOM
    for made in map(row, reversed(events)):
        rows.append(as_json({key: made[key] for key in made if key != "data"}).decode())
        room -= len(rows[-1])
        if room < 0:
            break
    return f"[{','.join(reversed(rows))}]"


def _small(data: dict[str, Any], limit: int) -> tuple[dict[str, Any], bytes]:
    """Return data with its long fields clipped until it is small enough, and its JSON."""
    long = [name for name, value in data.items() if len(as_json(value)) > min(SHORT, limit // 4)]
    wide = ((limit // 2, 500, 8), (limit // 8, 100, 6)) if limit > ROW_LIMIT else ()
    for length, items, depth in (*wide, (1000, 20, 4), (300, 10, 4), (100, 5, 4), (40, 2, 3), (20, 1, 2)):
        clipped = data | {name: clip(data[name], length, items, depth) for name in long}
        encoded = as_json(clipped)
        if len(encoded) <= limit:
            break
    return clipped, encoded


def clip(value: Any, length: int, items: int, depth: int = 5) -> Any:
    """Return a JSON value with long strings, long lists and deep nesting cut, and a note at each cut.

    Pictures, documents and sound are named.
    """
    if isinstance(value, str):
        return value if len(value) <= length else f"{value[:length]}… ({len(value):,} characters)"
    if isinstance(value, Mapping):
        if (words := part_in_words(value)) is not None:
            return words
        if depth == 0:
            return f"{{… {len(value):,} fields}}"
        kept = {key[:100]: clip(value[key], length, items, depth - 1) for key in list(value)[: 2 * items]}
        return kept if len(value) <= 2 * items else kept | {"…": f"{len(value) - 2 * items:,} more fields"}
    if isinstance(value, (list, tuple)):
        if depth == 0:
            return f"[… {len(value):,} items]"
        kept_items = [clip(item, length, items, depth - 1) for item in value[:items]]
        return kept_items if len(value) <= items else [*kept_items, f"… {len(value) - items:,} more items"]
    return value


def full_text(value: Any) -> dict[str, Any]:
    """Return what "Show all" shows: the value as text, cut at `FULL_LIMIT`, and its length."""
    text = value if isinstance(value, str) else pretty(value)
    return {"text": text[:FULL_LIMIT], "length": len(text)}


def summary(type: str, data: Mapping[str, Any], phase: str | None = None) -> str:
    """Return one line about an event, from its data in a row."""
    return one_line(_summary(type, data, phase or ""), SUMMARY)


def _summary(type: str, data: Mapping[str, Any], phase: str) -> str:
    error = data.get("error") or {}
    failure = f"{error.get('type')}: {error.get('message')}"
    match type:
        case "run_start":
            return _join(f"{data['loop']} {data['name']}", data.get("input"))
        case "phase_change":
            return f"{data['source']} → {phase}"
        case "state_update":
            return brief(data.get("values", {}))
        case "run_paused" | "cancel":
            return str(data.get("reason", ""))
        case "run_end":
            return _join(data["reason"], failure if error else data.get("output"))

        # Messages, in the history and in a queue.
        case "message":
            origin = data.get("origin", "loop")
            source = "" if origin in ("loop", "input") else f" ({origin.replace('_', '-')})"
            return f"{data['message'].get('role', '')}{source}: {_message(data['message'])}"
        case "queued":
            return f"{data['queue'].replace('_', '-')}: {_message(data['message'])}"
        case "withdrawn":
            return f"{data['count']} from {data['queue'].replace('_', '-')}"

        # Requests and their answers. Before the text of an answer: its model, and the reason why it was cut off.
        case "model_start":
            attempt = data.get("attempt", 1)
            words = [f"turn {data.get('turn', 0)}", *([f"attempt {attempt}"] if attempt > 1 else [])]
            if data.get("continues"):
                words[-1] = "continues its answer"
            model = " ".join(str(name) for name in (data.get("provider"), data.get("model")) if name)
            return ", ".join([*words, *([model] if model else [])])
        case "model_end":
            reason = data.get("stop_reason")
            shown = [data.get("model"), None if reason in ("stop", "tool_calls") else reason]
            before = ", ".join(str(word) for word in shown if word)
            return (f"[{before}] " if before else "") + _message(data["message"])
        case "model_error":
            return failure

        # Calls.
        case "call_proposed":
            return call_line(data["call"])
        case "approval_request":
            return _join(call_line(data), data.get("reason"))
        case "approval_decision":
            by, earlier = data.get("by", "human"), data.get("earlier")
            if data["decision"] == "ask":
                return f"decision of event {earlier} withdrawn"
            words = [decided(data["decision"], by, earlier, data.get("remember"), data.get("reviewer"))]
            words += [call_line(data)] if data["decision"] in ("edit", "replace") else []
            note = f"for the record: {data['note']}" if data.get("note") else None
            return _join(" → ".join(words), data.get("result"), data.get("reason"), note)
        case "call_start":
            return call_line(data)
        case "call_end":
            return _join(f"{data.get('name') or data['call_id']} {data.get('outcome', 'returned')}", data.get("result"))
        case _:
            return ""


def _join(head: str, *rest: Any) -> str:
    return ": ".join([head, *(text for text in (brief(part) for part in rest) if text)])


def call_line(data: Mapping[str, Any]) -> str:
    """Return a call as it is written in code: its name and its arguments."""
    arguments = data.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        return f"{data.get('name', '')}({brief(arguments)})"
    return f"{data.get('name', '')}({', '.join(f'{key}={as_json(arguments[key]).decode()}' for key in arguments)})"


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content", "")
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else " ".join(str(block.get("text") or block) for block in blocks)
    calls = ", ".join(call_line(call) for call in message.get("tool_calls", ()) if isinstance(call, Mapping))
    return "  ".join(part for part in (text, calls and f"→ {calls}") if part) or aside(message) or "(nothing)"


def aside(message: Mapping[str, Any]) -> str:
    """Return the fields of a message without content on one line. Such messages have a kind defined by a loop."""
    common = {"type", "role", "content", *OPTIONAL}
    own = {name: message[name] for name in message if name not in common and not name.startswith("_")}
    return brief(own, SUMMARY) if own else ""
