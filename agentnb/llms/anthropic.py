"""Anthropic's messages API, and servers that speak it.

Its turns alternate, and the results of all calls of a turn stand first in the one user turn after it; so neighbours
of one role are joined here. System messages stand outside of the turns, wherever in the conversation they were.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agentnb.core.messages import parts_in_order
from agentnb.core.tools import FOR_PROVIDERS
from agentnb.llms.anthropic_reader import MessageReader
from agentnb.llms.client import MAX_RETRIES, HttpModel, base_address, endpoint
from agentnb.llms.conversion import (
    MessageCache,
    all_text_of,
    close_objects,
    described,
    is_provider_tool,
    name_and_arguments,
    parameters,
    picture,
    safe_name,
)
from agentnb.llms.keys import is_at, key_for
from agentnb.llms.reader import Reader, parse_object
from agentnb.llms.transport import READ_TIMEOUT

if TYPE_CHECKING:
    from agentnb.llms.protocol import JsonObject, Message, ToolSpecification

ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_HOST = "api.anthropic.com"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
API_VERSION = "2023-06-01"
MAX_TOKENS = 8192
"""Tokens of an answer, which the API wants named: what every model since Claude 3.5 can give."""

NOTHING = "(nothing)"
"""What a user says without a word: the API refuses blank text, and without a turn the model would go on by itself. And
what a failed call says without one."""

_TOOL_CHOICES = {"auto": "auto", "required": "any", "any": "any", "none": "none"}


class Anthropic(HttpModel):
    """A model behind Anthropic's messages API.

    `base_url` is by default that of the environment variable ANTHROPIC_BASE_URL, else Anthropic's own. Anthropic's own
    host is sent the key in ANTHROPIC_API_KEY, which is read whenever a request leaves. Another server, also one on this
    machine, is sent no key unless `api_key_env` names the environment variable that has it; that may be
    ANTHROPIC_API_KEY. `max_tokens` bounds the answer (8192). `timeout` is the longest silence in seconds (300; None for
    no limit), `max_retries` counts what comes after the first attempt (3). `headers` go with every request:
    `{"anthropic-beta": ...}`, or what a gateway wants. `images=False` is for models that read no pictures: a
    placeholder is sent in place of each. Other keyword arguments go into every request's body: `temperature=0`,
    `thinking={...}`, `tools=[{"type": "web_search_20250305", "name": "web_search"}]` beside those of the loop, and so
    does `extra_body={...}`. In a run, `tool_choice="any"` ends with the first call: then the choice is "auto".
    """

    provider = "anthropic"
    required_options = frozenset({"max_tokens"})

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str | None = None,
        max_tokens: int = MAX_TOKENS,
        images: bool = True,
        timeout: float | None = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        base = base_address(base_url, "ANTHROPIC_BASE_URL", ANTHROPIC_URL)
        url = endpoint(base.removesuffix("/v1"), "/v1/messages")
        is_own = base == ANTHROPIC_URL or is_at(base, ANTHROPIC_HOST)
        super().__init__(
            model,
            url,
            key=key_for(KEY_VARIABLE, api_key_env=api_key_env, is_own=is_own, header="x-api-key"),
            key_variable=KEY_VARIABLE,
            own_headers={"anthropic-version": API_VERSION},
            headers=headers,
            timeout=timeout,
            max_retries=max_retries,
            options={"max_tokens": max_tokens} | options,
        )
        self._messages = MessageCache(partial(_blocks, server=self._transport.server, images=images))

    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        converted = self._messages.convert(messages)
        turns = _turns(converted)
        body: JsonObject = {"messages": turns, "stream": True}
        if system := [block for role, blocks in converted if role == "system" for block in blocks]:
            body["system"] = system
        if offered := [*options.pop("tools", ()), *map(_tool, tools)]:
            body["tools"] = offered
        elif called := _called(turns):
            # A history with calls has to have their tools, also where nobody is to call them any more.
            body["tools"] = [_tool({"name": name}) for name in called]
            options.setdefault("tool_choice", "none")
        if isinstance(choice := options.get("tool_choice"), str):
            options["tool_choice"] = {"type": _TOOL_CHOICES.get(choice, choice)}
        if schema is not None:
            form = {"type": "json_schema", "schema": close_objects(schema)}
            options["output_config"] = {"format": form} | options.get("output_config", {})
        return options | body, partial(MessageReader, self._transport.server)


def _turns(converted: Sequence[tuple[str, list[JsonObject]]]) -> list[JsonObject]:
    turns: list[JsonObject] = []
    for role, blocks in converted:
        if role == "system" or not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": list(blocks)})  # a copy: the cache keeps the original
    for turn in turns:
        turn["content"].sort(key=lambda block: _PLACES.get(block["type"], 1))
    if turns and turns[-1]["role"] == "assistant" and (last := turns[-1]["content"][-1])["type"] == "text":
        turns[-1]["content"][-1] = last | {"text": last["text"].rstrip()}  # or the API refuses to go on from it
    return turns


def _called(turns: Sequence[JsonObject]) -> list[str]:
    blocks = (block for turn in turns for block in turn["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


_PLACES = {"tool_result": 0}  # results stand before anything else the user says, or the API refuses the turn


def _blocks(message: Message, *, server: str, images: bool) -> tuple[str, list[JsonObject]]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        return "user", [_tool_result(message, images)]
    if role == "user":
        return role, _content_blocks(content, images) or [_text(NOTHING)]
    if role != "assistant":  # `developer` is OpenAI's word for it
        return "system", _content_blocks(content, images)
    if (parts := parts_in_order(message)) is not None:
        said = _said_in_order(parts, server)
    else:
        thoughts = [block for thought in message.get("reasoning") or () for block in _thinking(thought, server)]
        calls = [_tool_use(call) for call in message.get("tool_calls") or ()]
        said = [*thoughts, *_content_blocks(content, images), *calls]
    while said and said[-1]["type"] in _THOUGHTS:  # a turn may not end with what was thought
        said.pop()
    return role, said


_THOUGHTS = frozenset({"thinking", "redacted_thinking"})


def _said_in_order(parts: Sequence[Mapping[str, Any]], server: str) -> list[JsonObject]:
    """Give the blocks of an answer in the order they came."""
    blocks: list[JsonObject] = []
    for part in parts:
        is_theirs = part.get("server") == server  # another one does not know it
        if part["type"] == "reasoning":
            blocks += _thinking(part["reasoning"], server)
        elif part["type"] == "call":
            blocks.append(_tool_use(part["call"]))
        elif part["type"] == "block" and is_theirs:
            blocks.append(dict(part["block"]))
        elif part["type"] == "text" and part["text"].strip():  # text with nothing to read in it is refused
            cited = {"citations": part["citations"]} if part.get("citations") and is_theirs else {}
            blocks.append(_text(part["text"]) | cited)
    return blocks


def _thinking(thought: Mapping[str, Any], server: str) -> list[JsonObject]:
    blocks: list[JsonObject] = []
    theirs = (thought.get("provider") or {}).get("server")
    if theirs not in (None, server):
        return blocks  # the run began with another server, whose signature this one takes for forged
    text = thought.get("text") or ""
    signature = thought.get("signature") or ""
    if signature or (theirs and text):  # without one the API takes it for forged, but some servers sign nothing
        blocks.append({"type": "thinking", "thinking": text, "signature": signature})
    if redacted := thought.get("redacted"):
        blocks.append({"type": "redacted_thinking", "data": redacted})
    return blocks


def _content_blocks(content: object, images: bool) -> list[JsonObject]:
    if isinstance(content, list | tuple):
        blocks = [_content_block(block, images) for block in content]
    else:
        blocks = [_text(all_text_of(content))]
    return [  # text with nothing to read in it is refused
        block for block in blocks if block.get("type") != "text" or str(block.get("text") or "").strip()
    ]


def _content_block(block: object, images: bool) -> JsonObject:
    if (shown := picture(block)) is None:
        return dict(block) if isinstance(block, Mapping) else _text(str(block))
    if not images:
        return _text(shown.placeholder)
    if isinstance(block, Mapping) and block.get("type") == "image" and "source" in block:
        return dict(block)
    if shown.url:
        return {"type": "image", "source": {"type": "url", "url": shown.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": shown.media_type, "data": shown.data}}


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _tool_use(call: Mapping[str, Any]) -> JsonObject:
    name, arguments = name_and_arguments(call)
    given = parse_object(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(given, Mapping):
        given = {"malformed_arguments": arguments}
    return {"type": "tool_use", "id": _safe_id(call["id"]), "name": safe_name(name), "input": dict(given)}


def _tool_result(message: Message, images: bool) -> JsonObject:
    result: JsonObject = {"type": "tool_result", "tool_use_id": _safe_id(message["tool_call_id"])}
    blocks = _content_blocks(message.get("content"), images)
    if message.get("is_error"):  # of which the API wants to hear in words
        blocks = [block for block in blocks if block.get("type") == "text"] or [_text(NOTHING)]
        result["is_error"] = True
    if blocks:
        result["content"] = blocks
    return result


def _safe_id(call_id: str) -> str:
    """Give the id in the letters that the API allows; other providers' ids, and people's, have more."""
    safe = re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)
    return safe if safe == call_id else f"{safe}_{zlib.crc32(call_id.encode()):08x}"


def _tool(tool: ToolSpecification) -> JsonObject:
    if is_provider_tool(tool):
        return dict(tool)
    beside = {name: tool[name] for name in FOR_PROVIDERS if tool.get(name) is not None}
    return described(tool) | {"input_schema": parameters(tool)} | beside
