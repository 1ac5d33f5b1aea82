"""Anthropic's messages API, and servers that speak it: how a conversation becomes the body of a request.

In this API the roles alternate, and the results of all calls of a turn come first in the user turn after it. So
adjacent messages of one role are joined here. System messages are a field of their own, regardless of their position.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentnb.core.errors import UsageError
from agentnb.core.messages import parts_in_order
from agentnb.core.tools import FOR_PROVIDERS
from agentnb.llms.anthropic_reader import MessageReader
from agentnb.llms.client import MAX_RETRIES, HttpModel, base_address, endpoint
from agentnb.llms.conversion import (
    MessageCache,
    all_text_of,
    attachment,
    chosen_tool,
    close_objects,
    is_provider_tool,
    name_and_arguments,
    name_and_description,
    picture,
    provider_schema,
    safe_name,
)
from agentnb.llms.keys import is_at, is_bedrock, key_for, usual_variable
from agentnb.llms.reader import Reader, parse_object
from agentnb.llms.transport import READ_TIMEOUT

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification
    from agentnb.llms.sse import ServerSentEvent

ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_HOST = "api.anthropic.com"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
API_VERSION = "2023-06-01"
MAX_TOKENS = 8192
"""The maximum number of tokens of an answer. The API requires one, and every model since Claude 3.5 supports this one.
"""

NOTHING = "(nothing)"
"""The text that is sent in place of an empty user message, and as the result of a failed call without text: the API
rejects empty ones. Without a user turn the model would continue its own last message.
"""

ANSWER_TOOL = "final_answer"
"""The tool by which a model is asked for an answer that follows a schema."""
_ANSWER_TOOL = {"name": ANSWER_TOOL, "description": "Give your final answer. Call this once, when you know the answer."}

_CACHEABLE = frozenset({"text", "tool_result", "image", "document"})
_REASONING = frozenset({"thinking", "redacted_thinking"})
_TOOL_CHOICES = {"auto": "auto", "required": "any", "any": "any", "none": "none"}


class Anthropic(HttpModel):
    """A model behind Anthropic's messages API.

    model: the model's name.
    base_url: the address of the server; by default the one in the environment variable ANTHROPIC_BASE_URL, else
        Anthropic's own.
    api_key_env: the environment variable that has the API key, read for each request. By default Anthropic's own host
        is sent the key in ANTHROPIC_API_KEY, Bedrock's that in AWS_BEARER_TOKEN_BEDROCK, and any other server,
        including one on this machine, is sent no key.
    max_tokens: the maximum number of tokens of an answer (8192).
    images: False for models that accept no pictures; a placeholder is sent in place of each.
    structured: how the model is asked for an answer that follows a schema: "format" by the API's structured output, or
        "tool" by a tool that it must call, for models and servers that do not have structured output.
    timeout: the longest silence in seconds (300), None for no limit; or an `httpx.Timeout`, whose limits are used.
    http_client: an `httpx.AsyncClient` of your own, for a proxy, certificates or hooks:
        `httpx.AsyncClient(proxy=..., verify=...)`. It is used as it is, and you close it. transport: a transport of
        httpx for a client that is made for you, such as `httpx.MockTransport` in a test.
    max_retries: the number of attempts after the first one (3). Waits for a rate limit do not count, unless it is 0.
    headers: headers of every request, such as `{"anthropic-beta": ...}`.
    options: fields of the body of every request: `temperature=0`, `thinking={...}`, `extra_body={...}`, or
        `tools=[{"type": "web_search_20250305", "name": "web_search"}]` in addition to those of the loop. In a run,
        `tool_choice="required"`, or the name of a tool, applies until the model has made a call; then it is "auto".

    Three options are translated: `thinking=8000` is a budget of tokens for thinking, added to `max_tokens` if that is
    not larger (False for none, True to let the model choose). `reasoning_effort="low"` is `effort` of `output_config`.
    `caching`: whether a conversation is marked for the server's prompt cache, from its second request on and if no
    earlier message has changed; by default, for Anthropic's own server.

    Raises UsageError if an argument is not valid.
    """

    provider = "anthropic"
    required_options = frozenset({"max_tokens"})
    known_options = frozenset(
        {
            *(
                "caching",
                "reasoning_effort",
                "cache_control",
                "container",
                "context_management",
                "inference_geo",
                "max_tokens",
                "mcp_servers",
            ),
            *("metadata", "output_config", "service_tier", "speed", "stop_sequences", "temperature", "thinking"),
            *("tool_choice", "tools", "top_k", "top_p"),
        }
    )

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str | None = None,
        max_tokens: int = MAX_TOKENS,
        images: bool = True,
        structured: Literal["format", "tool"] = "format",
        timeout: Any = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
        transport: Any = None,
        **options: Any,
    ) -> None:
        if structured not in ("format", "tool"):
            raise UsageError(f'structured must be "format" or "tool", not {structured!r}')
        base = base_address(base_url, "ANTHROPIC_BASE_URL", ANTHROPIC_URL)
        url = endpoint(base.removesuffix("/v1"), "/v1/messages")
        is_own = base == ANTHROPIC_URL or is_at(base, ANTHROPIC_HOST)
        on_bedrock = is_bedrock(base)
        variable = (usual_variable(base) if on_bedrock else None) or KEY_VARIABLE
        super().__init__(
            model,
            url,
            key=key_for(variable, api_key_env=api_key_env, is_own=is_own or on_bedrock, header="x-api-key"),
            key_variable=variable,
            own_headers={"anthropic-version": API_VERSION},
            headers=headers,
            timeout=timeout,
            max_retries=max_retries,
            http_client=http_client,
            transport=transport,
            options={"max_tokens": max_tokens} | options,
        )
        self._by_tool = structured == "tool"
        self._images = images
        self._is_own = is_own
        self._messages = MessageCache(partial(_blocks, server=self._transport.server, images=images))

    @property
    def _form(self) -> JsonObject:
        return ({"images": False} if not self._images else {}) | ({"structured": "tool"} if self._by_tool else {})

    @property
    def _schema_as(self) -> str:
        return f"the tool {ANSWER_TOOL}" if self._by_tool else "output_config.format"

    def _advice(self, message: str, body: JsonObject) -> list[str]:
        refused = "format" in body.get("output_config", {}) and re.search("output_config|output_format|schema", message)
        return ['Anthropic(..., structured="tool") asks for the answer by a tool'] if refused else []

    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        caching = options.pop("caching", None)
        known = self._messages.number_known(messages) if (self._is_own if caching is None else caching) else 0
        converted = self._messages.convert(messages)
        turns: list[JsonObject] = []
        for role, blocks in converted:
            if role == "system" or not blocks:
                continue
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            else:
                turns.append({"role": role, "content": list(blocks)})  # a copy, because the cache keeps the original
        for turn in turns:
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")  # the API requires results first
        if turns and turns[-1]["role"] == "assistant" and (last := turns[-1]["content"][-1])["type"] == "text":
            # The API continues this turn, and rejects trailing white space.
            turns[-1]["content"][-1] = last | {"text": last["text"].rstrip()}

        thinking = options.get("thinking")
        if isinstance(thinking, bool):
            options["thinking"] = {"type": "adaptive" if thinking else "disabled"}
        elif isinstance(thinking, int):
            options["thinking"] = {"type": "enabled", "budget_tokens": thinking}
            if (
                options.get("max_tokens", thinking + 1) <= thinking
            ):  # the API counts both, and requires room for the answer
                options["max_tokens"] += thinking
        if (effort := options.pop("reasoning_effort", None)) is not None:
            options["output_config"] = {"effort": effort, **options.get("output_config", {})}

        body: JsonObject = {"messages": turns, "stream": True}
        if system := [block for role, blocks in converted if role == "system" for block in blocks]:
            body["system"] = system
        if offered := [*options.pop("tools", ()), *map(_tool, tools)]:
            body["tools"] = offered
        else:
            # A history with calls requires their tools, even if the model may not call them.
            blocks = [block for turn in turns for block in turn["content"]]
            if called := dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"):
                body["tools"] = [_tool({"name": name}) for name in called]
                options.setdefault("tool_choice", "none")
        choice = options.get("tool_choice")
        if (name := chosen_tool(choice, tools)) is not None:
            rest = choice if isinstance(choice, Mapping) and choice.get("type") == "tool" else {}
            options["tool_choice"] = {**rest, "type": "tool", "name": safe_name(name)}
        elif isinstance(choice, str):
            options["tool_choice"] = {"type": _TOOL_CHOICES.get(choice, choice)}
        if _is_stable(messages, known) and "cache_control" not in options:
            _mark_for_cache(body)
        if schema is not None and self._by_tool:
            # The answer is a call of a tool with this schema. A model that thinks cannot be forced to call a tool.
            body["tools"] = [
                *body.get("tools", ()),
                {**_ANSWER_TOOL, "input_schema": provider_schema({"parameters": schema})},
            ]
            is_thinking = (options.get("thinking") or {}).get("type") in ("enabled", "adaptive")
            if (options.get("tool_choice") or {}).get("type") in (None, "none", "auto"):
                alone = len(body["tools"]) == 1 or (options.get("tool_choice") or {}).get("type") == "none"
                forced = {"type": "tool", "name": ANSWER_TOOL} if alone else {"type": "any"}
                options["tool_choice"] = {"type": "auto"} if is_thinking else forced
            return options | body, partial(_ToolAnswerReader, self._transport.server)
        if schema is not None:
            form = {"type": "json_schema", "schema": close_objects(schema)}
            body["output_config"] = {"format": form} | options.pop("output_config", {})
        return options | body, partial(MessageReader, self._transport.server)


def _is_stable(messages: Sequence[Message], known: int) -> bool:
    """Return True if all messages before the newest turn were sent before, as they are now.

    known: the number of messages at the start that were sent before.
    """
    begin = next((number for number in range(len(messages) - 1, -1, -1) if messages[number]["role"] == "assistant"), 0)
    return 0 < begin <= known


def _mark_for_cache(body: JsonObject) -> None:
    """Mark the ends of the last two user turns, so that the server keeps the request up to there for the next one.

    The first mark is the end of the request before. A request that has marks of the user is left as it is.
    """
    turns = body["messages"]
    blocks = [block for turn in turns for block in turn["content"]] + body.get("system", [])
    marked_tools = sum("cache_control" in tool for tool in body.get("tools", ()))
    if turns[-1]["role"] != "user" or marked_tools > 2 or any("cache_control" in block for block in blocks):
        return
    for turn in [turn for turn in turns if turn["role"] == "user"][-2:]:
        if turn["content"][-1]["type"] in _CACHEABLE:
            turn["content"][-1] = turn["content"][-1] | {"cache_control": {"type": "ephemeral"}}


class _ToolAnswerReader:
    """Turns the call of the tool `ANSWER_TOOL` into the text of the answer."""

    def __init__(self, server: str) -> None:
        self._inner = MessageReader(server)
        self._calls: dict[int, bool] = {}
        """For each call, by its index: whether it is one of the tool."""

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        return [self._as_text(chunk) for chunk in self._inner.read(event)]

    def is_done(self) -> bool:
        return self._inner.is_done()

    @property
    def usage(self) -> Chunk | None:
        return self._inner.usage

    def finish(self) -> list[Chunk]:
        *chunks, stop = [self._as_text(chunk) for chunk in self._inner.finish()]
        if stop["reason"] == "tool_calls" and all(self._calls.values()):
            stop = {**stop, "reason": "stop", "finish_reason": "tool_use"}
        return [*chunks, stop]

    def _as_text(self, chunk: Chunk) -> Chunk:
        if chunk["type"] != "tool_call_delta":
            return chunk
        index = chunk["index"]
        if not self._calls.setdefault(index, chunk.get("name") == ANSWER_TOOL):
            return chunk
        return {"type": "text_delta", "content": chunk["arguments"]}


def _blocks(message: Message, *, server: str, images: bool) -> tuple[str, list[JsonObject]]:
    """Return a message as a role and its blocks."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        return "user", [_tool_result(message, images)]
    if role == "user":
        return role, _content_blocks(content, images) or [_text(NOTHING)]
    if role != "assistant":  # system, or OpenAI's `developer`
        return "system", _content_blocks(content, images)
    if (parts := parts_in_order(message)) is not None:
        blocks = _ordered_blocks(parts, server)
    else:
        reasoning = [block for thought in message.get("reasoning") or () for block in _thinking(thought, server)]
        calls = [_tool_use(call) for call in message.get("tool_calls") or ()]
        blocks = [*reasoning, *_content_blocks(content, images), *calls]
    while blocks and blocks[-1]["type"] in _REASONING:  # the API rejects a turn that ends with thinking
        blocks.pop()
    return role, blocks


def _ordered_blocks(parts: Sequence[Mapping[str, Any]], server: str) -> list[JsonObject]:
    """Return the blocks of an answer in the order in which they came."""
    blocks: list[JsonObject] = []
    for part in parts:
        is_its_own = part.get("server") == server  # other servers cannot read it
        if part["type"] == "reasoning":
            blocks += _thinking(part["reasoning"], server)
        elif part["type"] == "call":
            blocks.append(_tool_use(part["call"]))
        elif part["type"] == "block" and is_its_own:
            blocks.append(dict(part["block"]))
        elif part["type"] == "text" and part["text"].strip():  # the API rejects blank text
            cited = {"citations": part["citations"]} if part.get("citations") and is_its_own else {}
            blocks.append(_text(part["text"]) | cited)
    return blocks


def _thinking(thought: Mapping[str, Any], server: str) -> list[JsonObject]:
    blocks: list[JsonObject] = []
    signer = (thought.get("provider") or {}).get("server")
    if signer not in (None, server):
        return blocks  # signed by another server; this server would reject it as forged
    text = thought.get("text") or ""
    signature = thought.get("signature") or ""
    if signature or (signer and text):  # the API rejects it without a signature, but some servers do not sign
        blocks.append({"type": "thinking", "thinking": text, "signature": signature})
    if redacted := thought.get("redacted"):
        blocks.append({"type": "redacted_thinking", "data": redacted})
    return blocks


def _content_blocks(content: object, images: bool) -> list[JsonObject]:
    if isinstance(content, list | tuple):
        blocks = [_content_block(block, images) for block in content]
    else:
        blocks = [_text(all_text_of(content))]
    return [  # without blank text, which the API rejects
        block for block in blocks if block.get("type") != "text" or str(block.get("text") or "").strip()
    ]


def _content_block(block: object, images: bool) -> JsonObject:
    if (file := attachment(block)) is not None and not (isinstance(block, Mapping) and block.get("type") == "document"):
        if file.kind == "audio":
            return _text(file.placeholder("Anthropic's API takes no sound"))
        source = {"type": "url", "url": file.url}
        if file.data:
            source = {"type": "base64", "media_type": file.media_type, "data": file.data}
        return {"type": "document", "source": source} | (
            {"title": file.name} if file.name not in ("", "document.pdf") else {}
        )
    if (found := picture(block)) is None:
        return dict(block) if isinstance(block, Mapping) else _text(str(block))
    if not images:
        return _text(found.placeholder)
    if isinstance(block, Mapping) and block.get("type") == "image" and "source" in block:
        return dict(block)
    if found.url:
        return {"type": "image", "source": {"type": "url", "url": found.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": found.media_type, "data": found.data}}


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
    if message.get("is_error"):
        blocks = [_as_text(block) for block in blocks] or [_text(NOTHING)]
        result["is_error"] = True
    if blocks:
        result["content"] = blocks
    return result


def _as_text(block: JsonObject) -> JsonObject:
    """Return a block of a failed result as text, because the API accepts nothing else there."""
    if block.get("type") == "text":
        return block
    if (found := picture(block)) is not None:
        return _text(f"[{found.label}; not sent, because the result of a failed call is text only]")
    return _text(all_text_of([block]))


def _safe_id(call_id: str) -> str:
    """Return an id with only characters that the API allows; the ids of other providers or of users may have others."""
    safe = re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)
    return safe if safe == call_id else f"{safe}_{zlib.crc32(call_id.encode()):08x}"


def _tool(tool: ToolSpecification) -> JsonObject:
    if is_provider_tool(tool):
        return dict(tool)
    extra = {name: tool[name] for name in FOR_PROVIDERS if tool.get(name) is not None}
    schema = provider_schema(tool)
    return (
        name_and_description(tool) | {"input_schema": close_objects(schema) if tool.get("strict") else schema} | extra
    )
