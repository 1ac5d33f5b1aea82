"""Content: messages and answers in the formats of OpenAI and Anthropic, which most recordings use inside their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from agentnb.core.json import to_json_data
from agentnb.core.messages import Content, Message
from agentnb.importers.blocks import MEDIA, Block, as_text, read_block, text_in
from agentnb.importers.writer import Answer, Call

ANTHROPIC = "api.anthropic.com"
"""The server of blocks that only Anthropic's models can read (`Message.order`)."""


def content_of(value: Any) -> Content:
    """Return content as text or blocks. What is neither, and a block of an unknown shape, becomes JSON text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list):
        return to_json(value).decode()
    blocks = [_shown(read_block(block)) for block in value]
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return str(blocks[0]["text"])
    return blocks


def _shown(block: Block) -> Block:
    """Return a block that a person and a model can read."""
    if text_in(block) is None and block.get("type") not in _CARRIED:
        return as_text(block)
    made: Block = to_json_data(block)
    return made


_CARRIED = MEDIA | {"search_result", "tool_reference"}


def message_of(given: Mapping[str, Any], role: str | None = None) -> Message:
    """Return a message of the user or the system; the name of its author is kept."""
    name = given.get("name")
    return Message(
        role=role or str(given.get("role") or "user"),
        content=content_of(given["parts"] if isinstance(given.get("parts"), list) else given.get("content")),
        name=name if isinstance(name, str) else None,
    )


def openai_calls(calls: Any, lost: Counter[str]) -> list[Call]:
    """Return the calls of an answer in OpenAI's format, or in one with `id`, `name` (or `function`), `arguments`."""
    found: list[Call] = []
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, Mapping):
            lost["calls that are not objects"] += 1
            continue
        function = call.get("function")
        inner: Mapping[str, Any] = function if isinstance(function, Mapping) else call
        custom = call.get("custom")
        if isinstance(custom, Mapping):
            inner = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        name = inner.get("name") if not isinstance(function, str) else function
        arguments = next((inner[key] for key in ("arguments", "args", "input") if key in inner), None)
        found.append(
            Call(id=str(call.get("id") or call.get("call_id") or ""), name=str(name or ""), arguments=arguments)
        )
    return found


def openai_answer(given: Mapping[str, Any], lost: Counter[str]) -> Answer:
    """Return an answer in OpenAI's format, with the fields that other servers add for reasoning."""
    reasoning: list[dict[str, Any]] = []
    for field in ("reasoning_content", "reasoning", "thinking"):
        value = given.get(field)
        if isinstance(value, str) and value:
            reasoning.append({"text": value})
            break
    if not reasoning and isinstance(blocks := given.get("thinking_blocks"), list):
        reasoning += (thought(read_block(block)) for block in blocks if isinstance(block, Mapping))
    kept = {name: given[name] for name in ("refusal", "annotations", "audio", "logprobs") if given.get(name)}
    calls = openai_calls(given.get("tool_calls"), lost)
    if isinstance(old := given.get("function_call"), Mapping):  # before tools
        calls.append(Call(id="", name=str(old.get("name") or ""), arguments=old.get("arguments")))
    parts = given.get("parts")
    answer = anthropic_answer(parts if isinstance(parts, list) else given.get("content"), lost)
    known = {call.id for call in answer.calls}  # some messages have their calls twice
    answer.calls = [*answer.calls, *(call for call in calls if call.id not in known or not call.id)]
    if reasoning and not answer.reasoning:
        answer.reasoning = reasoning
        answer.order = []
    elif reasoning and [one["text"] for one in reasoning] != [one["text"] for one in answer.reasoning]:
        lost["reasoning that is told twice"] += 1
    if calls:
        answer.order = []
    answer.details = to_json_data(kept) if kept else None
    return answer


def anthropic_answer(content: Any, lost: Counter[str] | None = None) -> Answer:
    """Return an answer from its blocks in Anthropic's format. lost: counts the blocks that are shown as JSON text."""
    if not isinstance(content, list):
        return Answer(content=content_of(content))
    texts: list[str] = []
    media: list[dict[str, Any]] = []
    reasoning: list[dict[str, Any]] = []
    calls: list[Call] = []
    order: list[dict[str, Any]] = []
    for block in map(read_block, content):
        kind = _kind(block)
        if kind not in _ANSWER_BLOCKS and kind not in MEDIA and text_in(block) is None and not _is_of_server(kind):
            if lost is not None:
                lost[f"blocks of type {kind or 'unknown'}, shown as text"] += 1
            block = as_text(block)
        if (text := text_in(block)) is not None:
            cited = {"citations": block["citations"], "server": ANTHROPIC} if block.get("citations") else {}
            texts.append(text)
            order.append({"type": "text", "length": len(text), **cited})
        elif kind in ("thinking", "redacted_thinking", "reasoning"):
            reasoning.append(thought(block))
            order.append({"type": "reasoning"})
        elif kind == "tool_use":
            calls.append(Call(str(block.get("id") or ""), str(block.get("name") or ""), block.get("input")))
            order.append({"type": "call"})
        elif kind in MEDIA:
            media.append(to_json_data(block))
        else:
            order.append({"type": "block", "server": ANTHROPIC, "block": to_json_data(block)})
    usual = ["reasoning"] * len(reasoning) + ["text"] * bool(texts) + ["call"] * len(calls)
    is_usual = [part["type"] for part in order] == usual and not any("citations" in part for part in order)
    if media:  # the order of an answer has no place for them
        if not is_usual and lost is not None:
            lost["orders of the parts of answers"] += 1
        told = [{"type": "text", "text": "".join(texts)}] if any(texts) else []
        return Answer(content=[*told, *media], calls=calls, reasoning=reasoning)
    return Answer(content="".join(texts), calls=calls, reasoning=reasoning, order=[] if is_usual else order)


_ANSWER_BLOCKS = frozenset({"tool_use", "thinking", "redacted_thinking", "reasoning"})


def _is_of_server(kind: str) -> bool:
    """Return True for a block of what Anthropic's server did: it is carried for that server, and for its readers."""
    return kind in ("server_tool_use", "mcp_tool_use", "container_upload") or kind.endswith("_tool_result")


def thought(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block of reasoning: its text, and what its provider needs to be sent again."""
    text = block.get("thinking", block.get("reasoning", block.get("text")))
    found: dict[str, Any] = {"text": text if isinstance(text, str) else ""}
    if block.get("signature"):
        found["signature"] = str(block["signature"])
    if block.get("type") == "redacted_thinking" and block.get("data"):
        found["redacted"] = str(block["data"])
    return found


def _kind(block: Any) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    return kind if isinstance(kind, str) else ""


# -- usage -----------------------------------------------------------------------------------------------------------


def anthropic_usage(given: Any) -> dict[str, Any]:
    """Return usage in Anthropic's format. As elsewhere in agentnb, `input_tokens` includes the cached tokens."""
    if not isinstance(given, Mapping):
        return {}
    read, written = given.get("cache_read_input_tokens"), given.get("cache_creation_input_tokens")
    found = {
        "input_tokens": _sum(given.get("input_tokens"), read, written),
        "output_tokens": given.get("output_tokens"),
        "cache_read_tokens": read or None,
        "cache_write_tokens": written or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def openai_usage(given: Any) -> dict[str, Any]:
    """Return usage in one of OpenAI's formats, or in a format with the names of `input_tokens`, `output_tokens`."""
    if not isinstance(given, Mapping):
        return {}
    inputs = _part(given, "prompt_tokens_details", "input_tokens_details", "inputTokenDetails")
    outputs = _part(given, "completion_tokens_details", "output_tokens_details", "outputTokenDetails")
    found = {
        "input_tokens": _first(given, *_INPUT),
        "output_tokens": _first(given, *_OUTPUT),
        "cache_read_tokens": _first(inputs, "cached_tokens", "cacheReadTokens") or _first(given, *_CACHE_READ),
        "cache_write_tokens": _first(given, *_CACHE_WRITE),
        "reasoning_tokens": _first(outputs, "reasoning_tokens", "reasoningTokens") or _first(given, *_REASONING),
        "cost": _first(given, *COST),
    }
    if "candidatesTokenCount" in given:  # of Gemini, which counts the reasoning apart
        found["output_tokens"] = _sum(given["candidatesTokenCount"], given.get("thoughtsTokenCount"))
    if "cacheReadInputTokens" in given or "cacheWriteInputTokens" in given:  # of Bedrock, which counts them apart
        parts = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
        found["input_tokens"] = _sum(*(given.get(name) for name in parts))
    return {name: value for name, value in found.items() if value is not None}


_INPUT = ("input_tokens", "prompt_tokens", "inputTokens", "promptTokens", "promptTokenCount", "prompt_token_count")
_OUTPUT = ("output_tokens", "completion_tokens", "outputTokens", "completionTokens", "candidatesTokenCount")
_CACHE_READ = (
    *("cached_input_tokens", "cached_tokens", "input_tokens_cache_read", "cache_read_tokens"),
    *("cache_read_input_tokens", "cachedInputTokens", "cacheReadInputTokens", "cachedContentTokenCount"),
)
_CACHE_WRITE = (
    *("input_tokens_cache_write", "cache_write_tokens", "cache_creation_input_tokens"),
    *("cacheWriteInputTokens", "cacheCreationInputTokens"),
)
_REASONING = ("reasoning_output_tokens", "reasoning_tokens", "reasoningTokens", "thoughtsTokenCount")
COST = ("cost", "cost_usd", "total_cost", "response_cost", "costUSD", "totalCost")
"""The names under which a file tells what an answer, or a run, has cost in US dollars."""


def _part(given: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((part for name in names if isinstance(part := given.get(name), Mapping)), {})


def _first(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if isinstance(given.get(name), (int, float))), None)


def _sum(*amounts: Any) -> Any:
    known = [amount for amount in amounts if isinstance(amount, (int, float))]
    return sum(known) if known else None
