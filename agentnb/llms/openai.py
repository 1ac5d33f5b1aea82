"""OpenAI's chat completions, and the many servers that speak them: vLLM, llama.cpp, Ollama, OpenRouter and others.

`tool_calls="native"` sends tools as the API has them. `tool_calls="schema"` is for servers that drop them (see
`schema_tools`).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal

from agentnb.core.errors import UsageError
from agentnb.llms.attempts import MAX_RETRIES
from agentnb.llms.client import HttpModel, Reader
from agentnb.llms.conversion import MessageCache, text_of
from agentnb.llms.keys import EnvironmentKey
from agentnb.llms.openai_reader import ChatCompletionReader
from agentnb.llms.schema_tools import ReplyReader, choose_tools, plain_message, plain_turns, union_schema
from agentnb.llms.schemas import is_strict
from agentnb.llms.transport import READ_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification
    from agentnb.llms.sse import ServerSentEvent

OPENAI_URL = "https://api.openai.com/v1"


class OpenAI(HttpModel):
    """A model behind an OpenAI-compatible server.

    `base_url` is by default that of the environment variable OPENAI_BASE_URL, else OpenAI's own. The key is read
    from OPENAI_API_KEY whenever a request leaves; a server other than OpenAI's may do without. `timeout` is the
    longest silence in seconds (300; None for no limit), `max_retries` counts what comes after the first attempt
    (3). Other keyword arguments go into every request: `temperature=0`, `max_tokens=500`, `tool_choice="required"`.
    """

    provider = "openai"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        tool_calls: Literal["native", "schema"] = "native",
        timeout: float | None = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        **options: Any,
    ) -> None:
        if tool_calls not in ("native", "schema"):
            raise UsageError(f'tool_calls is "native" or "schema", not {tool_calls!r}')
        if not isinstance(base_url, (str, type(None))):
            raise UsageError(f"base_url is the address of a server, as a text, not {base_url!r}.")
        base = (base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")
        super().__init__(
            model,
            f"{base}/chat/completions",
            key=self._key(required=base == OPENAI_URL),
            timeout=timeout,
            max_retries=max_retries,
            options={"stream_options": {"include_usage": True}}
            | options,  # None takes it out, for servers that refuse it
        )
        self._in_schema = tool_calls == "schema"
        self._messages = MessageCache(plain_message if self._in_schema else _native_message)

    @staticmethod
    def _key(*, required: bool) -> EnvironmentKey | None:
        return EnvironmentKey("OPENAI_API_KEY", "authorization", "Bearer ", required=required)

    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Reader]:
        reader: Reader = ChatCompletionReader(self._transport.server)
        converted = self._messages.convert(messages)
        if self._in_schema:
            tools, may_answer = choose_tools(tools, options.pop("tool_choice", None))
            converted = plain_turns(converted, tools)
            if tools:
                schema = union_schema(tools, (schema or {"type": "string"}) if may_answer else None)
                reader = _SchemaReader(reader, ReplyReader([tool["name"] for tool in tools]))
        elif tools:
            options = {"tools": [_native_tool(tool) for tool in tools]} | options
        if schema is not None:
            options = {"response_format": _response_format(schema)} | options
        return options | {"model": self.model, "messages": converted, "stream": True}, reader


class _SchemaReader:
    """Puts a `ReplyReader` behind the reader of the stream."""

    def __init__(self, inner: Reader, reply: ReplyReader) -> None:
        self._inner = inner
        self._reply = reply

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


def _native_message(message: Message) -> JsonObject:
    role, content = message["role"], message.get("content")
    if role == "tool":
        text = text_of(content)
        # The dialect has no flag for a failure, so the words have to say it.
        return {
            "role": "tool",
            "tool_call_id": message["tool_call_id"],
            "content": f"Error: {text}" if message.get("is_error") else text,
        }
    converted: JsonObject = {"role": role, "content": content if content is not None else ""}  # some refuse null
    calls = message.get("tool_calls")
    if calls:
        converted["tool_calls"] = [_native_call(call) for call in calls]
    return converted


def _native_call(call: Mapping[str, Any]) -> JsonObject:
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": text}}


def _native_tool(tool: ToolSpecification) -> JsonObject:
    function = {"name": tool["name"], "description": tool.get("description") or ""}
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": function | {"parameters": parameters}}


def _response_format(schema: Mapping[str, Any]) -> JsonObject:
    named: JsonObject = {"name": "answer", "schema": schema}
    if is_strict(schema):  # OpenAI enforces a schema only on request, and refuses the request for any other schema
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}
