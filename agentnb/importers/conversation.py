"""Conversations: messages in the formats of OpenAI and Anthropic, as the events of a loop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from agentnb.core.events import Event
from agentnb.core.messages import Message
from agentnb.importers.blocks import read_block
from agentnb.importers.content import (
    COST,
    anthropic_usage,
    content_of,
    message_of,
    openai_answer,
    openai_usage,
)
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, error_of, numbers, seconds

SAME_ROLES = {"human": "user", "gpt": "assistant", "ai": "assistant", "model": "assistant", "function": "tool"}
"""Other names of the roles."""


def said(file: ForeignFile, messages: Sequence[Any], writer: Writer, model: str | None = None) -> Iterator[Event]:
    """Yield the events of messages. model: the model of those that name none."""
    for number, given in enumerate(messages):
        if not isinstance(given, Mapping):
            file.damaged(f"message {number} is not an object", "damaged messages")
            continue
        if "from" in given and "value" in given and "role" not in given:
            given = {"role": given["from"], "content": given["value"]}
        role = str(given.get("role") or "")
        role = SAME_ROLES.get(role, role)
        time = seconds(given.get("timestamp") or given.get("created_at"), file.lost)
        if given.get("type") == "function_call":  # an item of OpenAI's Responses
            given = {"role": "assistant", "tool_calls": [{**given, "id": given.get("call_id")}]}
            role = "assistant"
        elif given.get("type") == "function_call_output":
            given = {"role": "tool", "tool_call_id": given.get("call_id"), "content": given.get("output")}
            role = "tool"
        if role == "assistant":
            answer = openai_answer(given, file.lost)
            named = given.get("model")
            answer.model = named if isinstance(named, str) else model
            cost = next((given[name] for name in COST if name in given), None)  # it may be beside the usage
            answer.usage = numbers({"cost": cost}) | usage_of(given.get("usage"))
            reason = given.get("stop_reason") or given.get("finish_reason")
            answer.finish_reason = reason if isinstance(reason, str) else None
            answer.response_id = given["response_id"] if isinstance(given.get("response_id"), str) else None
            for index, call in enumerate(answer.calls):
                call.id = call.id or f"message_{number}_{index + 1}"
            yield from writer.answer(answer, time)
        elif role == "tool" and given.get("requestor") == "user":  # tau2: the simulated user has tools too
            file.lost["results of the user's calls"] += 1
        elif role == "tool":
            yield from _result(given, writer, time)
        else:
            yield from _user(file, given, role or "user", writer, time)


def _result(given: Mapping[str, Any], writer: Writer, time: float) -> Iterator[Event]:
    """Yield the result that a message of the role `tool` has, or the results in its blocks."""
    blocks = _results_in(given)
    if blocks:
        for block in blocks:
            yield from result_of(block, writer, time)
        return
    id = str(given.get("tool_call_id") or given.get("call_id") or "")
    if not id and writer.is_open(own := str(given.get("id") or "")):  # tau2 names the call by the id of the message
        id = own
    error = given.get("error")
    yield from result_of({**given, "tool_use_id": id, "is_error": has_failed(given)}, writer, time, error)


def has_failed(given: Mapping[str, Any]) -> bool:
    """Return True if the message of a result says that its call has failed."""
    return bool(given.get("is_error") or given.get("isError") or given.get("error")) or given.get("status") == "error"


def result_of(block: Mapping[str, Any], writer: Writer, time: float, error: Any = None) -> Iterator[Event]:
    """Yield the result in a block `tool_result`. Without an id it is that of the first open call, of its name if known.

    error: the words of the failure, or an object with a type and a message; where the result is empty they are it.
    """
    id, name, content = str(block.get("tool_use_id") or ""), block.get("name"), content_of(block.get("content"))
    if not id:
        same = (one for one in writer.open_calls if writer.name_of(one) == name)
        id = next(same, next(iter(writer.open_calls), ""))
    failure = None
    if isinstance(error, Mapping):
        failure = error_of(str(error.get("type") or "ToolError"), error.get("message") or to_json(error).decode())
    elif isinstance(error, str) and error:
        kind, colon, words = error.partition(": ")
        failure = error_of(kind, words) if colon and kind.isidentifier() else error_of("ToolError", error)
    if failure is not None and content in ("", [], [{"type": "text", "text": ""}]):
        content = error if isinstance(error, str) else failure.message
    yield from writer.result(id, content, time, is_error=bool(block.get("is_error")), error=failure)


def _results_in(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of results in a message."""
    content = given["parts"] if isinstance(given.get("parts"), list) else given.get("content")
    blocks = map(read_block, content) if isinstance(content, list) else ()
    return [block for block in blocks if block.get("type") == "tool_result"]


def _user(file: ForeignFile, given: Mapping[str, Any], role: str, writer: Writer, time: float) -> Iterator[Event]:
    """Yield the results in a message of the user, as Anthropic has them, and the message without them."""
    results = _results_in(given)
    for block in results:
        yield from result_of(block, writer, time)
    if results:
        field = "parts" if isinstance(given.get("parts"), list) else "content"
        rest = [one for one in given[field] if read_block(one).get("type") != "tool_result"]
        if not rest:
            return
        given = {**given, field: rest}
    if calls := given.get("tool_calls"):
        file.lost["calls of the user"] += len(calls) if isinstance(calls, list) else 1
    yield from writer.message(message_of(given, role), time)


def answer_of_items(file: ForeignFile, items: Sequence[Any]) -> Answer:
    """Return the answer that the items of a response of OpenAI's Responses are."""
    answer = Answer()
    texts: list[str] = []
    calls: list[Call] = []
    for item in items:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "message":
            for part in _list(item.get("content")):
                text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
                texts.append(text if isinstance(text, str) else "")
        elif kind == "function_call":
            calls.append(Call(str(item.get("call_id") or ""), str(item.get("name") or ""), item.get("arguments")))
        elif kind == "reasoning":
            parts = [part.get("text") for part in _list(item.get("summary")) if isinstance(part, Mapping)]
            answer.reasoning.append({"text": "\n".join(str(part or "") for part in parts)})
        else:
            file.lost[f"items of type {kind}"] += 1
    answer.content, answer.calls = "".join(texts), calls
    return answer


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def usage_of(given: Any) -> dict[str, Any]:
    """Return usage in the format of Anthropic or of OpenAI."""
    if not isinstance(given, Mapping):
        return {}
    has_cache = bool(given.keys() & {"cache_read_input_tokens", "cache_creation_input_tokens"})
    if not has_cache or "prompt_tokens" in given:  # LiteLLM has OpenAI's counts beside those of Anthropic's cache
        return openai_usage(given)
    cost = {"cost": openai_usage(given).get("cost")}
    return anthropic_usage(given) | {name: amount for name, amount in cost.items() if amount is not None}


class Known:
    """The messages that a loop has sent or received. Requests repeat the messages of earlier ones.

    A message that a request has more often than the loop knows it is new, so that two equal messages stay two.
    """

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._sent: Sequence[Any] = ()  # the latest request, and how often it has each message
        self._sent_times: Counter[str] = Counter()

    def new(self, messages: Sequence[Any]) -> list[Mapping[str, Any]]:
        """Return the messages of a request that are new, and note them."""
        # Most requests repeat the whole request before them. Only what follows it is looked at then.
        times, fresh = self._sent_times, messages[len(self._sent) :]
        if messages[: len(self._sent)] != self._sent:
            times, fresh = Counter(), messages
        self._sent, self._sent_times = messages, times
        found: list[Mapping[str, Any]] = []
        for message in fresh:
            if isinstance(message, Mapping):
                key = _key(message)
                times[key] += 1
                if times[key] > self._times[key]:
                    self._times[key] = times[key]
                    found.append(message)
        return found

    def add(self, message: Mapping[str, Any]) -> None:
        """Note an answer, which later requests repeat."""
        self._times[_key(message)] += 1


def _key(message: Mapping[str, Any]) -> str:
    """Return what identifies a message among those of a conversation."""
    calls = message.get("tool_calls")
    ids = [call.get("id") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    if message.get("role") == "tool":
        return json.dumps(["tool", message.get("tool_call_id")], default=str)
    return json.dumps([message.get("role"), message.get("content") or "", ids], default=str)


def sent(file: ForeignFile, messages: Sequence[Any], writer: Writer, known: Known) -> Iterator[Event]:
    """Yield the messages that a request sent for the first time, with the results of calls among them.

    An answer that no request of the recording made, such as an example in the prompt, is counted in `lost`, and its
    text is carried as a message.
    """
    for given in known.new(messages):
        role = given.get("role")
        if role == "assistant":
            file.lost["answers that no request made"] += 1
            yield from writer.close()
            text = content_of(given.get("content"))
            yield from writer.message(Message(role="system", content=text, details={"role": "assistant"}))
        elif role != "tool" or writer.is_open(str(given.get("tool_call_id"))):
            yield from said(file, [given], writer)
