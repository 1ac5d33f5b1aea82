"""OpenAI's chat completions, and the many servers that speak them: vLLM, llama.cpp, Ollama, OpenRouter and others.

`tool_calls="native"` sends tools as the API has them. `tool_calls="schema"` is for servers that drop them (see
`schema_tools`).
"""

from __future__ import annotations

import re
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentnb.core.errors import UsageError
from agentnb.llms.attempts import MAX_RETRIES
from agentnb.llms.client import HttpModel, Reader, address, endpoint
from agentnb.llms.conversion import MessageCache, all_text_of, asked_for, safe_name
from agentnb.llms.json_text import strict_json
from agentnb.llms.keys import EnvironmentKey
from agentnb.llms.openai_reader import ChatCompletionReader
from agentnb.llms.schema_tools import ReplyReader, choose_tools, plain_message, plain_turns, union_schema
from agentnb.llms.schemas import described, is_strict, parameters
from agentnb.llms.transport import READ_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification
    from agentnb.llms.sse import ServerSentEvent

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_ID_LENGTH = 40
"""Characters that OpenAI takes in a call's id. vLLM's have 46; and some proxies keep in theirs what they need again, so
that elsewhere ids stay as they are."""


class OpenAI(HttpModel):
    """A model behind an OpenAI-compatible server.

    `base_url` is by default that of the environment variable OPENAI_BASE_URL, else OpenAI's own. The key is read
    from OPENAI_API_KEY whenever a request leaves; a server other than OpenAI's may do without. `timeout` is the
    longest silence in seconds (300; None for no limit), `max_retries` counts what comes after the first attempt
    (3). `headers` go with every request, as a gateway wants them. `tool_calls="schema"` is for servers that know of
    no tools: calls are JSON in the reply. Other keyword arguments go into every request's body: `temperature=0`,
    `max_tokens=500`, `tool_choice="required"`; None leaves one out that a server refuses, as `stream_options=None`
    does.
    """

    provider = "openai"
    _where = ", which most servers want to end with /v1"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        tool_calls: Literal["native", "schema"] = "native",
        timeout: float | None = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        if tool_calls not in ("native", "schema"):
            raise UsageError(f'tool_calls is "native" or "schema", not {tool_calls!r}')
        base = address(base_url, "OPENAI_BASE_URL", OPENAI_URL)
        super().__init__(
            model,
            endpoint(base, "/chat/completions"),
            key=self._key(required=base == OPENAI_URL),
            own_headers={},
            headers=headers,
            timeout=timeout,
            max_retries=max_retries,
            options={"stream_options": {"include_usage": True}}
            | options,  # None takes it out, for servers that refuse it
        )
        self._in_schema = tool_calls == "schema"
        native = partial(
            _native_message, server=self._transport.server, id_length=OPENAI_ID_LENGTH if base == OPENAI_URL else None
        )
        self._messages = MessageCache(plain_message if self._in_schema else native)

    def _advice(self, said: str, body: JsonObject) -> list[str]:
        advice = []
        if "tools" in body and re.search("tool|function", said, re.IGNORECASE):
            advice.append('OpenAI(..., tool_calls="schema") calls tools without the server\'s help')
        if "response_format" in body and re.search("response_format|json_schema", said):  # DeepSeek has no schemas
            advice.append('OpenAI(..., response_format={"type": "json_object"}) asks for JSON and enforces no schema')
        return advice

    @staticmethod
    def _key(*, required: bool) -> EnvironmentKey | None:
        return EnvironmentKey("OPENAI_API_KEY", "authorization", "Bearer ", required=required)

    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        new_reader: Callable[[], Reader] = partial(
            ChatCompletionReader, self._transport.server, [tool["name"] for tool in tools]
        )
        # An answer that says nothing is none: many servers refuse a message with neither content nor calls.
        said = [message for message in messages if message["role"] != "assistant" or _says_something(message)]
        converted = self._messages.convert(said)
        if self._in_schema:
            tools, may_answer = choose_tools(tools, options.pop("tool_choice", None))
            converted = plain_turns(converted, tools)
            if tools:
                schema = union_schema(tools, (schema or {"type": "string"}) if may_answer else None)
                new_reader = partial(_SchemaReader, self._transport.server, [tool["name"] for tool in tools])
        elif tools:
            options = {"tools": [_native_tool(tool) for tool in tools]} | options
        if schema is not None:
            options = {"response_format": _response_format(schema)} | options
        return options | {"model": self.model, "messages": converted, "stream": True}, new_reader


class _SchemaReader:
    """Puts a `ReplyReader` behind the reader of the stream."""

    def __init__(self, server: str, tools: Sequence[str]) -> None:
        self._inner = ChatCompletionReader(server)
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


def _native_message(message: Message, *, server: str, id_length: int | None) -> JsonObject:
    role, content = message["role"], message.get("content")
    if role == "tool":
        text = all_text_of(content)
        # The dialect has no flag for a failure, so the words have to say it.
        return {
            "role": "tool",
            "tool_call_id": _id(message["tool_call_id"], id_length),
            "content": f"Error: {text}" if message.get("is_error") else text,
        }
    converted: JsonObject = {"role": role, "content": content if content is not None else ""}  # some refuse null
    calls = message.get("tool_calls")
    if calls:
        converted["tool_calls"] = [_native_call(call, id_length) for call in calls]
    for thought in message.get("reasoning") or ():
        if (provider := thought.get("provider")) and provider.get("server") == server:
            _give_back(provider, message, converted)
    return converted


def _give_back(provider: Mapping[str, Any], message: Message, converted: JsonObject) -> None:
    """Put what the server has thought, or signed its calls with, where it wants to see it again (`openai_reader`)."""
    if field := provider.get("field"):
        converted[field] = "".join(thought.get("text") or "" for thought in message["reasoning"])
    if details := provider.get("reasoning_details"):
        converted["reasoning_details"] = details
    for index, extra in (provider.get("extra_content") or {}).items():
        if int(index) < len(converted.get("tool_calls", ())):
            converted["tool_calls"][int(index)]["extra_content"] = extra


def _native_call(call: Mapping[str, Any], id_length: int | None) -> JsonObject:
    name, arguments = asked_for(call)
    text = arguments if isinstance(arguments, str) else strict_json(arguments)
    function = {"name": safe_name(name), "arguments": text}
    return {"id": _id(call["id"], id_length), "type": "function", "function": function}


def _id(call_id: str, length: int | None) -> str:
    if length is None or len(call_id) <= length:
        return call_id
    return f"{call_id[: length - 9]}_{zlib.crc32(call_id.encode()):08x}"


def _native_tool(tool: ToolSpecification) -> JsonObject:
    return {"type": "function", "function": described(tool) | {"parameters": parameters(tool)}}


def _response_format(schema: Mapping[str, Any]) -> JsonObject:
    named: JsonObject = {"name": "answer", "schema": schema}
    if is_strict(schema):  # OpenAI enforces a schema only on request, and refuses the request for any other schema
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}
