"""Gemini CLI: a session, one JSON object (`~/.gemini/tmp/PROJECT/chats/session-*.json`).

A message of the model has its thoughts, and its calls with their results. Notes of the program are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Content, Message
from agentnb.importers.content import content_of
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, numbers, seconds

name = "Gemini CLI"


def recognises(file: ForeignFile) -> bool:
    """Return True for an object with a session's id, the hash of a project and messages."""
    document = file.document
    return isinstance(document, dict) and {"sessionId", "projectHash", "messages"} <= document.keys()


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a session."""
    document = file.document
    about = {"id": document.get("sessionId"), "summary": document.get("summary")}
    writer = Writer(file.lost, name="gemini", about=to_json_data({key: one for key, one in about.items() if one}))
    messages = document["messages"]
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, Mapping):
            file.damaged(f"message {number} is not an object", "damaged messages")
            continue
        time, kind = seconds(message.get("timestamp"), file.lost), message.get("type")
        if kind == "user":
            yield from writer.message(Message(role="user", content=content_of(message.get("content"))), time)
        elif kind == "gemini":
            yield from _answer(file, message, number, writer, time)
        else:
            file.lost[f"messages of type {kind}"] += 1
    yield from writer.start()


def _answer(file: ForeignFile, message: Mapping[str, Any], number: int, writer: Writer, time: float) -> Iterator[Event]:
    """Yield a request with its answer, and the results of its calls."""
    calls = [one for one in _list(message.get("toolCalls")) if isinstance(one, Mapping)]
    if others := len(_list(message.get("toolCalls"))) - len(calls):
        file.lost["calls that are not objects"] += others
    ids = [str(call.get("id") or f"message_{number}_{place}") for place, call in enumerate(calls, 1)]
    thoughts = [one for one in _list(message.get("thoughts")) if isinstance(one, Mapping)]
    model = message.get("model")
    answer = Answer(
        content=content_of(message.get("content")),
        calls=[Call(id, str(call.get("name") or ""), call.get("args")) for id, call in zip(ids, calls, strict=True)],
        reasoning=[
            {"text": ": ".join(str(one[key]) for key in ("subject", "description") if one.get(key))} for one in thoughts
        ],
        usage=_usage(message.get("tokens")),
        model=model if isinstance(model, str) else None,
    )
    yield from writer.answer(answer, time)
    for id, call in zip(ids, calls, strict=True):
        status, ended = call.get("status"), seconds(call.get("timestamp"), file.lost)
        if call.get("result") is None and status not in ("error", "cancelled"):
            continue  # it was waiting when the session was saved
        content, is_error = _result(call)
        outcome: Any = "aborted" if status == "cancelled" else None
        is_error = is_error or status in ("error", "cancelled")
        yield from writer.result(id, content, ended, is_error=is_error, outcome=outcome)


def _result(call: Mapping[str, Any]) -> tuple[Content, bool]:
    """Return the content of a call's result, and True if it is an error. It is parts of Gemini."""
    result = call.get("result")
    if not isinstance(result, list):
        return content_of(result if result is not None else call.get("resultDisplay")), False
    parts: list[Any] = []
    is_error = False
    for part in result:
        answer = part.get("functionResponse") if isinstance(part, Mapping) else None
        if not isinstance(answer, Mapping):
            parts.append(part)
            continue
        response = answer.get("response")
        if isinstance(response, Mapping) and len(response) == 1 and response.keys() <= {"output", "error"}:
            is_error = is_error or "error" in response
            response = next(iter(response.values()))
        parts.append(response if isinstance(response, (str, Mapping)) else {"response": response})
        parts += _list(answer.get("parts"))
    return content_of(parts), is_error


def _usage(given: Any) -> dict[str, Any]:
    """Return usage. As elsewhere in agentnb, the output includes the reasoning."""
    tokens: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    counts = numbers(tokens)
    if "output" in counts:
        counts["output"] += counts.get("thoughts", 0)
    names = {"input": "input_tokens", "output": "output_tokens"}
    found = {ours: counts[theirs] for theirs, ours in names.items() if theirs in counts}
    more = {"cached": "cache_read_tokens", "thoughts": "reasoning_tokens"}
    return found | {ours: counts[theirs] for theirs, ours in more.items() if counts.get(theirs)}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
