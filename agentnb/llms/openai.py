"""OpenAI's chat completions, and the many servers that speak them: vLLM, llama.cpp, Ollama, OpenRouter and others.

`tool_calls="native"` sends tools as the API has them. `tool_calls="schema"` is for servers that drop them (see
`schema_tools`).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentnb.core.errors import UsageError
from agentnb.llms.client import MAX_RETRIES, HttpModel, base_address, endpoint
from agentnb.llms.conversion import (
    MessageCache,
    Picture,
    all_text_of,
    described,
    is_provider_tool,
    is_strict,
    name_and_arguments,
    parameters,
    picture,
    safe_name,
)
from agentnb.llms.keys import is_at, key_for
from agentnb.llms.openai_reader import ChatCompletionReader
from agentnb.llms.reader import Reader, strict_json
from agentnb.llms.schema_tools import (
    ReplyReader,
    choose_tools,
    plain_message,
    plain_turns,
    union_schema,
    with_bounded_texts,
)
from agentnb.llms.transport import READ_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification
    from agentnb.llms.sse import ServerSentEvent

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_HOST = "api.openai.com"
KEY_VARIABLE = "OPENAI_API_KEY"
OPENAI_ID_LENGTH = 40
"""Characters that OpenAI takes in a call's id. vLLM's have 46; and some proxies keep in theirs what they need again, so
that elsewhere ids stay as they are."""


class OpenAI(HttpModel):
    """A model behind an OpenAI-compatible server.

    `base_url` is by default that of the environment variable OPENAI_BASE_URL, else OpenAI's own. OpenAI's own host is
    sent the key in OPENAI_API_KEY, which is read whenever a request leaves. Another server, also one on this machine,
    is sent no key unless `api_key_env` names the environment variable that has it; that may be OPENAI_API_KEY.
    `timeout` is the longest silence in seconds (300; None for no limit), `max_retries` counts what comes after the
    first attempt (3). `headers` go with every request, as a gateway wants them. `tool_calls="schema"` is for servers
    that know of no tools: calls are JSON in the reply. `images=False` is for models that read no pictures: a
    placeholder is sent in place of each. Other keyword arguments go into every request's body: `temperature=0`,
    `max_tokens=500`, `tool_choice="required"`, and so does `extra_body={...}`; None leaves one out that a server
    refuses, as `stream_options=None` does. In a run, `tool_choice="required"` ends with the first call: then the
    choice is "auto".
    """

    provider = "openai"
    _base_url_hint = ", which most servers want to end with /v1"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str | None = None,
        tool_calls: Literal["native", "schema"] = "native",
        images: bool = True,
        timeout: float | None = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        if tool_calls not in ("native", "schema"):
            raise UsageError(f'tool_calls is "native" or "schema", not {tool_calls!r}')
        base = base_address(base_url, "OPENAI_BASE_URL", OPENAI_URL)
        url = endpoint(base, "/chat/completions")
        is_own = base == OPENAI_URL or is_at(base, OPENAI_HOST)
        super().__init__(
            model,
            url,
            key=key_for(KEY_VARIABLE, api_key_env=api_key_env, is_own=is_own, header="authorization", prefix="Bearer "),
            key_variable=KEY_VARIABLE,
            own_headers={},
            headers=headers,
            timeout=timeout,
            max_retries=max_retries,
            options={"stream_options": {"include_usage": True}}
            | options,  # None takes it out, for servers that refuse it
        )
        self._in_schema = tool_calls == "schema"
        self._images = images
        native = partial(
            _native_message,
            server=self._transport.server,
            id_length=OPENAI_ID_LENGTH if is_own else None,
            developer="developer" if is_own else "system",
            images=images,
        )
        self._messages: MessageCache[list[JsonObject]] = MessageCache(_plain_message if self._in_schema else native)

    def _advice(self, said: str, body: JsonObject) -> list[str]:
        advice = []
        if "tools" in body and re.search("tool|function", said, re.IGNORECASE):
            advice.append('OpenAI(..., tool_calls="schema") calls tools without the server\'s help')
        if "response_format" in body and re.search("response_format|json_schema", said):  # DeepSeek has no schemas
            advice.append('OpenAI(..., response_format={"type": "json_object"}) asks for JSON and enforces no schema')
        return advice

    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        keep_logprobs = bool(options.get("logprobs") or options.get("top_logprobs"))
        new_reader: Callable[[], Reader] = partial(
            ChatCompletionReader,
            self._transport.server,
            [tool["name"] for tool in tools],
            keep_logprobs=keep_logprobs,
        )
        # An answer that says nothing is none: many servers refuse a message with neither content nor calls.
        said = [message for message in messages if message["role"] != "assistant" or _says_something(message)]
        if self._in_schema:
            tools, may_answer = choose_tools(tools, options.pop("tool_choice", None))
            converted = plain_turns([one for (one,) in self._messages.convert(said)], tools)
            if tools:
                schema = union_schema(tools, (schema or {"type": "string"}) if may_answer else None)
                new_reader = partial(
                    _SchemaReader, self._transport.server, [tool["name"] for tool in tools], keep_logprobs
                )
        else:
            converted = _in_order(self._messages.convert(said))
            if offered := [*options.pop("tools", ()), *map(_native_tool, tools)]:
                options = {"tools": offered} | options
        if schema is not None:
            if self._longest_string is not None:
                schema = with_bounded_texts(schema, self._longest_string)
            options = {"response_format": _response_format(schema)} | options
        return options | {"messages": converted, "stream": True}, new_reader

    _longest_string: int | None = None
    """Characters of a text in a reply that is bound to a schema, None for no limit; `Local` has one."""


class _SchemaReader:
    """Puts a `ReplyReader` behind the reader of the stream."""

    def __init__(self, server: str, tools: Sequence[str], keep_logprobs: bool) -> None:
        self._inner = ChatCompletionReader(server, keep_logprobs=keep_logprobs)
        self._reply = ReplyReader(tools)

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        chunks: list[Chunk] = []
        for chunk in self._inner.read(event):
            chunks += self._reply.feed(chunk["content"]) if chunk["type"] == "text_delta" else [chunk]
        return chunks

    def is_done(self) -> bool:
        return self._inner.is_done()

    def finish(self) -> list[Chunk]:
        *chunks, stop = self._inner.finish()
        *rest, last = self._reply.finish(stop["reason"])
        return [*rest, *chunks, last]


def _says_something(message: Message) -> bool:
    return bool(message.get("content") or message.get("tool_calls"))


def _plain_message(message: Message) -> list[JsonObject]:
    return [plain_message(message)]


def _native_message(
    message: Message, *, server: str, id_length: int | None, developer: str, images: bool
) -> list[JsonObject]:
    """Convert a message; a tool's result with pictures gives a second one, which belongs behind all results."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        blocks = content if isinstance(content, list | tuple) else [content]
        shown = [found for block in blocks if (found := picture(block)) is not None]
        text = all_text_of([_in_words(block, shown, images) for block in blocks]) if shown else all_text_of(content)
        # The dialect has no flag for a failure, so the words have to say it.
        result = {
            "role": "tool",
            "tool_call_id": _id(message["tool_call_id"], id_length),
            "content": f"Error: {text}" if message.get("is_error") else text,
        }
        if not (shown and images):
            return [result]
        # The dialect has no pictures in results: they are shown by the user, after the last result of the turn.
        name = message.get("name") or message["tool_call_id"]
        parts = [{"type": "text", "text": f"Images in the result of {name}:"}, *map(_image_part, shown)]
        return [result, {"role": "user", "content": parts}]
    if isinstance(content, list | tuple):
        content = [_content_part(block, images) for block in content]
    converted: JsonObject = {"role": developer if role == "developer" else role}
    converted["content"] = content if content is not None else ""  # some refuse null
    calls = message.get("tool_calls")
    if calls:
        converted["tool_calls"] = [_native_call(call, id_length) for call in calls]
    for thought in message.get("reasoning") or ():
        if (provider := thought.get("provider")) and provider.get("server") == server:
            _give_back(provider, message, converted)
    return [converted]


def _in_order(converted: Sequence[list[JsonObject]]) -> list[JsonObject]:
    """Put the pictures of a turn's results behind the last result: results have to follow their calls at once."""
    messages: list[JsonObject] = []
    shown: list[JsonObject] = []
    for first, *pictures in converted:
        if first["role"] != "tool" and shown:
            messages.append({"role": "user", "content": shown})
            shown = []
        messages.append(first)
        shown = [*shown, *(part for one in pictures for part in one["content"])]
    return [*messages, {"role": "user", "content": shown}] if shown else messages


def _in_words(block: object, shown: Sequence[Picture], images: bool) -> object:
    """Return a block of a result, with words in place of a picture."""
    if (found := picture(block)) is None:
        return block
    if not images:
        return {"type": "text", "text": found.placeholder}
    return {
        "type": "text",
        "text": f"[image {shown.index(found) + 1} of {len(shown)}: in the next message of the user]",
    }


def _content_part(block: object, images: bool) -> object:
    if (found := picture(block)) is None:
        return block
    if not images:
        return {"type": "text", "text": found.placeholder}
    # A picture in this dialect's own shape may have more to it, `detail` for one.
    return block if isinstance(block, Mapping) and block.get("type") == "image_url" else _image_part(found)


def _image_part(shown: Picture) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": shown.address}}


def _give_back(provider: Mapping[str, Any], message: Message, converted: JsonObject) -> None:
    """Put what the server has thought, or signed its calls with, where it wants to see it again (`openai_reader`)."""
    if field := provider.get("field"):
        converted[field] = "".join(thought.get("text") or "" for thought in message["reasoning"])
    if details := provider.get("reasoning_details"):
        converted["reasoning_details"] = details
    if extra := provider.get("message_extra_content"):
        converted["extra_content"] = extra
    for index, extra in (provider.get("extra_content") or {}).items():
        if int(index) < len(converted.get("tool_calls", ())):
            converted["tool_calls"][int(index)]["extra_content"] = extra


def _native_call(call: Mapping[str, Any], id_length: int | None) -> JsonObject:
    name, arguments = name_and_arguments(call)
    text = arguments if isinstance(arguments, str) else strict_json(arguments)
    function = {"name": safe_name(name), "arguments": text}
    return {"id": _id(call["id"], id_length), "type": "function", "function": function}


def _id(call_id: str, length: int | None) -> str:
    if length is None or len(call_id) <= length:
        return call_id
    return f"{call_id[: length - 9]}_{zlib.crc32(call_id.encode()):08x}"


def _native_tool(tool: ToolSpecification) -> JsonObject:
    if is_provider_tool(tool):
        return dict(tool)
    function = described(tool) | {"parameters": parameters(tool)}
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    beside = {name: tool[name] for name in ("cache_control", "defer_loading") if tool.get(name) is not None}
    return {"type": "function", "function": function} | beside


def _response_format(schema: Mapping[str, Any]) -> JsonObject:
    named: JsonObject = {"name": "answer", "schema": schema}
    if is_strict(schema):  # OpenAI enforces a schema only on request, and refuses the request for any other schema
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}
