"""Chat messages: the conversation of the outermost loop as the body of a request, in the format of OpenAI or Anthropic.

The file is an object with `messages`, and with `tools` and `model` if they are known. It is in the format of Anthropic
if an answer has what only that format carries: signed reasoning, or parts in an order of their own. A message may have
fields that servers do not know: `timestamp`, `usage`, `model`, `finish_reason`, `response_id`, `is_error`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.core.messages import Message, parts_in_order
from agentnb.exporters.turns import Asked, Called, Said, Update, known_time, loops_of

name = "chat messages"

Json = dict[str, Any]
_OWN_FIELDS = ("refusal", "annotations", "audio", "logprobs")
"""The details of an answer that are fields of a message of OpenAI."""


def written(events: Sequence[Event], lost: Counter[str]) -> bytes:
    """Return the conversation as JSON."""
    loop = loops_of(events, lost)
    answers = [step for step in loop.steps if isinstance(step, Asked) and step.end is not None]
    models = {step.end.model for step in answers if step.end is not None}
    model = models.pop() if len(models) == 1 else None
    is_anthropic = any(_needs_anthropic(step.end.message) for step in answers if step.end is not None)
    conversation = _Conversation(lost, model, is_anthropic)
    messages = [message for step in loop.steps for message in conversation.of(step)]
    about, request = loop.about, loop.about.get("request")
    body: Json = {**(request if isinstance(request, Mapping) else {}), "model": model, "tools": loop.tools or None}
    first: Json = {"role": "system", "content": loop.system_prompt}
    messages = [first, *messages] if loop.system_prompt else messages
    if not messages:
        raise UsageError("The recording has no messages, so it cannot be written as chat messages.")
    if is_anthropic:  # the system prompt has a place of its own
        while messages and messages[0]["role"] == "system" and "system" not in body:
            body["system"] = messages.pop(0)["content"]
    other = about.get("other") if about.get("format") == name else None
    whole = {"id": about.get("id"), **body, "messages": messages, **(other if isinstance(other, Mapping) else {})}
    lost["reasons of ends"] += loop.end is not None
    lost["sub-agents"] += sum(1 for _ in loop.walk()) - 1
    return to_json({key: value for key, value in whole.items() if value is not None}, indent=1) + b"\n"


def _needs_anthropic(answer: Message) -> bool:
    return bool(parts_in_order(answer)) or any(
        block.get("signature") or block.get("redacted") for block in answer.reasoning
    )


class _Conversation:
    """Makes the messages of a file. model: the model of the answers, if all have the same."""

    def __init__(self, lost: Counter[str], model: str | None, is_anthropic: bool) -> None:
        self.lost = lost
        self.model = model
        self.is_anthropic = is_anthropic

    def of(self, step: Said | Update | Asked | Called) -> Iterator[Json]:
        """Yield the messages of a step."""
        if isinstance(step, Said):
            message, details = step.message, step.message.details
            made = {name: message[name] for name in ("role", "content", "name") if name in message}
            if isinstance(details, Mapping) and details.get("role") == "assistant":
                made["role"] = "assistant"  # an answer that no request of the recording made
            elif message.role in ("assistant", "tool"):  # of an earlier run
                made = _openai(message) if message.role == "assistant" else message.to_dict()
            elif details is not None:
                self.lost["details of messages"] += 1
            yield {**made, **_time(step.event)}
        elif isinstance(step, Update):
            self.lost["values of the loop"] += 1
        elif isinstance(step, Called):
            self.lost["calls of the loop itself"] += 1
        elif step.end is None:
            self.lost["failed requests" if step.failed is not None else "requests without an answer"] += 1
        else:
            yield self._answer(step)
            yield from self._results(step)

    def _answer(self, asked: Asked) -> Json:
        end = asked.end
        assert end is not None
        message = end.message
        made = _anthropic(message) if self.is_anthropic else _openai(message)
        details = message.details if isinstance(message.details, Mapping) else {}
        own = {} if self.is_anthropic else {key: details[key] for key in _OWN_FIELDS if key in details}
        self.lost["details of answers"] += len(details) > len(own)
        self.lost["orders of the parts of answers"] += bool(message.order) and not self.is_anthropic
        self.lost["times of requests"] += bool(known_time(asked.start)) and asked.start.time != end.time
        self.lost["options of requests"] += bool(asked.start.options)
        self.lost["names of providers"] += bool(asked.start.provider)
        facts = {
            "model": end.model if end.model != self.model else None,
            "usage": end.usage or None,
            "finish_reason": end.finish_reason or end.stop_reason,
            "response_id": end.response_id,
        }
        return {**made, **own, **{key: fact for key, fact in facts.items() if fact is not None}, **_time(end)}

    def _results(self, asked: Asked) -> Iterator[Json]:
        """Yield the messages of the results, and count what they leave out."""
        results: list[Json] = []
        for call in asked.calls:
            self.lost["questions to a person"] += len(call.asked)
            self.lost["decisions"] += len(call.decided)
            self.lost["times of calls"] += bool(known_time(call.start)) and known_time(call.start) != known_time(
                call.end
            )
        for call in asked.results:
            assert call.end is not None
            self.lost["details of results"] += call.end.details is not None or call.end.error is not None
            self.lost["outcomes of calls"] += call.end.outcome not in ("returned", "raised")
            results.append(self._result(call))
        yield from results

    def _result(self, call: Called) -> Json:
        end = call.end
        assert end is not None
        is_error: Json = {"is_error": True} if end.is_error else {}
        if self.is_anthropic:
            block = {"type": "tool_result", "tool_use_id": call.call.id, "content": call.content, **is_error}
            return {"role": "user", "content": [block], **_time(end)}
        return {"role": "tool", "tool_call_id": call.call.id, "content": call.content, **is_error, **_time(end)}


def _openai(message: Message) -> Json:
    """Return an answer in OpenAI's format."""
    made: Json = {"role": "assistant", "content": message.content}
    texts = [str(block.get("text") or "") for block in message.reasoning]
    if len(texts) == 1:
        made["reasoning_content"] = texts[0]
    elif texts:
        made["thinking_blocks"] = [{"type": "thinking", "thinking": text} for text in texts]
    if message.tool_calls:
        made["content"] = message.content or None
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    return made


def _arguments(call: Any) -> str:
    malformed: str | None = call.malformed
    return malformed if malformed is not None else json.dumps(call.arguments, ensure_ascii=False)


def _anthropic(message: Message) -> Json:
    """Return an answer in Anthropic's format."""
    usual: list[Json] = [
        *({"type": "reasoning", "reasoning": block} for block in message.reasoning),
        *([{"type": "text", "text": message.content}] if message.content else []),
        *({"type": "call", "call": call} for call in message.tool_calls),
    ]
    blocks: list[Json] = []
    for part in parts_in_order(message) or usual:
        if part["type"] == "reasoning":
            block = part["reasoning"]
            if block.get("redacted"):
                blocks.append({"type": "redacted_thinking", "data": block["redacted"]})
            else:
                signature = {"signature": block["signature"]} if block.get("signature") else {}
                blocks.append({"type": "thinking", "thinking": block.get("text") or "", **signature})
        elif part["type"] == "call":
            call = part["call"]
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]})
        elif part["type"] == "block":
            blocks.append(part["block"])
        elif isinstance(part["text"], str):
            cited = {"citations": part["citations"]} if part.get("citations") else {}
            blocks.append({"type": "text", "text": part["text"], **cited})
        else:
            blocks += part["text"]
    return {"role": "assistant", "content": blocks}


def _time(event: Event | None) -> Json:
    time = known_time(event)
    return {"timestamp": datetime.fromtimestamp(time, UTC).isoformat()} if time else {}
