"""Plain lists of chat messages, in the formats of OpenAI and Anthropic, also as a request log.

A file is a JSON list of messages, an object that has such a list (`messages`, `traj`, `conversation`, `input`), a body
of a request with its response, or JSON lines: of messages, or of such objects, each of which is a recording of its own.
In a log of requests whose messages continue each other, the last request has the whole conversation, and is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import (
    anthropic_answer,
    anthropic_usage,
    content_of,
    message_of,
    openai_answer,
    openai_usage,
)
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Writer, seconds

name = "chat messages"

_LISTS = ("messages", "traj", "conversation", "conversations", "trajectory", "history", "input")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "human", "gpt", "ai", "model"})
_SAME = {"human": "user", "gpt": "assistant", "ai": "assistant", "model": "assistant", "function": "tool"}


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


def said(file: ForeignFile, messages: Sequence[Any], writer: Writer, model: str | None = None) -> Iterator[Event]:
    """Yield the events of messages. model: the model of those that name none."""
    for number, given in enumerate(messages):
        if not isinstance(given, Mapping):
            file.damaged(f"message {number} is not an object", "damaged messages")
            continue
        if "from" in given and "value" in given and "role" not in given:
            given = {"role": given["from"], "content": given["value"]}
        role = str(given.get("role") or "")
        role = _SAME.get(role, role)
        time = seconds(given.get("timestamp") or given.get("created_at"), file.lost)
        if given.get("type") == "function_call":  # an item of OpenAI's Responses
            given = {"role": "assistant", "tool_calls": [{**given, "id": given.get("call_id")}]}
            role = "assistant"
        elif given.get("type") == "function_call_output":
            given = {"role": "tool", "tool_call_id": given.get("call_id"), "content": given.get("output")}
            role = "tool"
        if role == "assistant":
            content = given.get("content")
            answer = openai_answer(given, file.lost)
            if not answer.calls and not given.get("tool_calls") and isinstance(content, list):
                answer = anthropic_answer(content)
            named = given.get("model")
            answer.model = named if isinstance(named, str) else model
            answer.usage = _usage(given.get("usage"))
            reason = given.get("stop_reason") or given.get("finish_reason")
            answer.finish_reason = reason if isinstance(reason, str) else None
            for index, call in enumerate(answer.calls):
                call.id = call.id or f"message_{number}_{index + 1}"
            yield from writer.answer(answer, time)
        elif role == "tool":
            yield from _result(given, writer, time)
        else:
            yield from _user(file, given, role or "user", writer, time)


def _result(given: Mapping[str, Any], writer: Writer, time: float) -> Iterator[Event]:
    """Yield the result that a message of the role `tool` has. Without an id it is that of the first open call."""
    id = str(given.get("tool_call_id") or given.get("call_id") or "")
    if not id and len(writer.open_calls) >= 1:
        id = writer.open_calls[0]
    is_error = bool(given.get("is_error")) or given.get("status") == "error"
    yield from writer.result(id, content_of(given.get("content")), time, is_error=is_error)


def _user(file: ForeignFile, given: Mapping[str, Any], role: str, writer: Writer, time: float) -> Iterator[Event]:
    """Yield the results in a message of the user, as Anthropic has them, and the message without them."""
    content = given.get("content")
    if isinstance(content, list):
        results = [one for one in content if isinstance(one, Mapping) and one.get("type") == "tool_result"]
        for one in results:
            id, is_error = str(one.get("tool_use_id") or ""), bool(one.get("is_error"))
            yield from writer.result(id, content_of(one.get("content")), time, is_error=is_error)
        rest = [one for one in content if one not in results] if results else content
        if not rest:
            return
        given = {**given, "content": rest}
    yield from writer.message(message_of(given, role), time)


def _usage(given: Any) -> dict[str, Any]:
    has_cache = isinstance(given, Mapping) and bool(
        given.keys() & {"cache_read_input_tokens", "cache_creation_input_tokens"}
    )
    return anthropic_usage(given) if has_cache else openai_usage(given)


def _response(file: ForeignFile, response: Mapping[str, Any], writer: Writer) -> Iterator[Event]:
    """Yield the answer in the response of a logged request, in the format of OpenAI or Anthropic."""
    body = response.get("body") if isinstance(response.get("body"), Mapping) else response
    assert isinstance(body, Mapping)
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        message = choices[0].get("message")
        answer = openai_answer(message if isinstance(message, Mapping) else {}, file.lost)
        reason = choices[0].get("finish_reason")
        file.lost["alternative answers"] += len(choices) - 1
    elif isinstance(body.get("content"), list):
        answer, reason = anthropic_answer(body["content"]), body.get("stop_reason")
    else:
        file.lost["responses of an unknown format"] += 1
        return
    answer.usage = _usage(body.get("usage"))
    answer.model = body["model"] if isinstance(body.get("model"), str) else None
    answer.response_id = body["id"] if isinstance(body.get("id"), str) else None
    answer.finish_reason = reason if isinstance(reason, str) else None
    yield from writer.answer(answer, seconds(body.get("created"), file.lost))
