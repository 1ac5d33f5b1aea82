"""Plain lists of chat messages, in the formats of OpenAI and Anthropic, also as a request log.

A file is a JSON list of messages, an object that has such a list (`messages`, `traj`, `conversation`, `input`), a body
of a request with its response, or JSON lines: of messages, or of such objects, each of which is a recording of its own.
In a log of requests whose messages continue each other, the last request has the whole conversation, and is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import anthropic_answer, content_of, openai_answer
from agentnb.importers.conversation import said, usage_of
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Writer, seconds

name = "chat messages"

_LISTS = ("messages", "traj", "conversation", "conversations", "trajectory", "history", "input")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "human", "gpt", "ai", "model"})


def recognises(file: ForeignFile) -> bool:
    """Return True for messages with roles."""
    if file.document is not None:
        value = file.document
        return _is_messages(value) or _messages_in(value) is not None or _is_list_of_objects(value)
    first = file.first
    return _is_message(first) or _messages_in(first) is not None


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a conversation, or of one conversation after the other."""
    if file.document is not None:
        value = file.document
        given = [(0, one) for one in value] if _is_list_of_objects(value) else None
        if given is None:
            yield from _conversation(file, value if isinstance(value, Mapping) else {"messages": value})
            return
    elif _is_message(file.first):
        yield from _conversation(file, {"messages": [value for _, value in file.lines()]})
        return
    else:
        given = list(file.lines())
    logs: list[Mapping[str, Any]] = []
    for number, one in given:
        if _messages_in(one) is None:
            file.damaged(f"line {number} has no messages" if number else "an entry has no messages", "damaged lines")
            continue
        # A request that begins with all messages of the one before it continues that conversation.
        if logs and _continues(logs[-1], one):
            logs[-1] = one
        else:
            logs.append(one)
    for one in logs:
        yield from _conversation(file, one)


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    role, author, kind = (value.get(name) for name in ("role", "from", "type"))
    return (
        (isinstance(role, str) and role in _ROLES and bool(value.keys() & {"content", "tool_calls", "parts"}))
        or (isinstance(author, str) and author in _ROLES and "value" in value)
        or (isinstance(kind, str) and kind in ("function_call", "function_call_output"))
    )


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _is_message(value[0]) and all(map(_is_message, value[:5]))


def _messages_in(value: Any) -> list[Any] | None:
    """Return the messages of an object that has a list of messages; None if it has none."""
    if not isinstance(value, Mapping):
        return None
    for field in ("request", "body", "request_body"):  # a request log
        if isinstance(inner := value.get(field), Mapping) and (found := _messages_in(inner)) is not None:
            return found
    return next((value[name] for name in _LISTS if _is_messages(value.get(name))), None)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _messages_in(value[0]) is not None


def _request(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(
        (value[name] for name in ("request", "body", "request_body") if isinstance(value.get(name), Mapping)), value
    )


def _continues(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    one, other = _messages_in(earlier) or [], _messages_in(later) or []
    is_log = any(name in later for name in ("request", "body", "response", "model"))
    return is_log and len(other) > len(one) and other[: len(one)] == one


def _conversation(file: ForeignFile, value: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of one conversation. value: the object that has its messages, and perhaps a response."""
    file.begin()
    request = _request(value)
    messages = _messages_in(value) or []
    about: dict[str, Any] = {
        "id": value.get("id"),
        "tools": request.get("tools") or request.get("functions"),
        "other": {key: one for key, one in value.items() if key not in _READ and one not in (None, [], {})},
    }
    if request is not value:
        about["request"] = {key: one for key, one in request.items() if key not in _READ and one not in (None, [], {})}
    kept = to_json_data({key: one for key, one in about.items() if one not in (None, [], {})})
    writer = Writer(file.lost, name="chat", about=kept)
    if request.get("system") not in (None, "", []):  # Anthropic's place of the system prompt
        yield from writer.message(Message(role="system", content=content_of(request["system"])))
    model = request.get("model")
    yield from said(file, messages, writer, model if isinstance(model, str) else None)
    if isinstance(response := value.get("response"), Mapping):
        yield from _response(file, response, writer)
    yield from writer.start()


_READ = frozenset(
    {*_LISTS, "request", "body", "request_body", "response", "tools", "functions", "system", "model", "id"}
)


def _response(file: ForeignFile, response: Mapping[str, Any], writer: Writer) -> Iterator[Event]:
    """Yield the answer in the response of a logged request, in the format of OpenAI or Anthropic."""
    body = response.get("body") if isinstance(response.get("body"), Mapping) else response
    assert isinstance(body, Mapping)
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        answer = openai_answer(message if isinstance(message, Mapping) else {}, file.lost)
        reason = choices[0].get("finish_reason")
        if len(choices) > 1:
            file.lost["alternative answers"] += len(choices) - 1
    elif isinstance(body.get("content"), list):
        answer, reason = anthropic_answer(body["content"]), body.get("stop_reason")
    else:
        file.lost["responses of an unknown format"] += 1
        return
    answer.usage = usage_of(body.get("usage"))
    answer.model = body["model"] if isinstance(body.get("model"), str) else None
    answer.response_id = body["id"] if isinstance(body.get("id"), str) else None
    answer.finish_reason = reason if isinstance(reason, str) else None
    yield from writer.answer(answer, seconds(body.get("created"), file.lost))
