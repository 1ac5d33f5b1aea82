"""MCP messages, read part by part, so that an invalid part does not affect the others.

The library `mcp` validates each message as a whole: if one tool of a hundred is unknown to it, it returns no tools; if
one block of a result is, it returns no result. So readers wrap its transports here. The library gets messages that it
knows, and `raw_of` returns what the server has sent.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentnb.core.blocks import as_block, picture_in
from agentnb.core.errors import ToolError

NOT_SENT = -32099
"""The code of the error for a request that has not reached the server."""

SESSION_EXPIRED = -32097
"""The code of the error for a request of a session that the server no longer knows, by the sign of the protocol."""

SESSION_REFUSED = -32096
"""The code of the error for a refused request whose text is about the session. The server may have performed it."""

OURS = secrets.token_hex(16)
"""The data of errors that this process makes itself. No server knows it, so no server can make such an error."""

_RAW = "agentnb"
"""The key in `_meta` for the result that the server has sent."""


@asynccontextmanager
async def read_in_parts(transport: Any, on_end: Callable[[], None]) -> AsyncIterator[Any]:
    """Open a transport of the library, with messages that the library can read.

    transport: the transport.
    on_end: called when the server has ended the session.
    """
    async with transport as (read, write):
        yield _Reader(read, on_end), write


class _Reader:
    """The stream of a server's messages."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        return _readable(await self._stream.receive())

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> Any:
        try:
            return _readable(await self._stream.__anext__())
        except StopAsyncIteration:
            self._on_end()
            raise

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> _Reader:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def _readable(item: Any) -> Any:
    """Return a message that the library can read. Its `_meta` has the result that the server has sent."""
    message: Any = getattr(item, "message", None)
    if isinstance(result := getattr(message, "result", None), dict):
        if isinstance(result.get("tools"), list):
            tools = [known for tool in result["tools"] if (known := _known(tool)) is not None]
            message.result = {**result, "tools": tools, "_meta": {_RAW: result}}
        elif "content" in result or "structuredContent" in result:
            rest = {key: value for key, value in result.items() if key in ("resultType", "isError")}
            message.result = {**rest, "content": [], "isError": rest.get("isError") is True, "_meta": {_RAW: result}}
    return item


def _known(tool: Any) -> dict[str, Any] | None:
    """Return the fields of a tool's entry that the library needs for a call; None if the tool is not usable."""
    if reason_unusable(tool) is not None:
        return None
    schema = tool["inputSchema"]
    properties, required = schema.get("properties", {}), schema.get("required", [])
    is_known = (
        isinstance(properties, dict)
        and all(isinstance(part, dict | bool) for part in properties.values())
        and isinstance(required, list)
        and all(isinstance(name, str) for name in required)
        and isinstance(schema.get("$schema", ""), str)
    )
    return {"name": tool["name"], "inputSchema": {**(schema if is_known else {}), "type": "object"}}


def raw_of(result: Any) -> dict[str, Any]:
    """Return the result of a request as the server has sent it."""
    written = (result.meta or {}).get(_RAW)
    raw: dict[str, Any] = written if isinstance(written, dict) else result.model_dump(by_alias=True, mode="json")
    return raw


def reason_unusable(tool: Any) -> str | None:
    """Return why a tool's entry cannot be used, None if it can."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        return "the entry has no name"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict):
        return f"its schema is not an object: {schema!r:.80}"
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return f"its schema is of type {kind!r:.80}, and arguments are an object"
    return None


def result_in(raw: Mapping[str, Any]) -> Any:
    """Return the result of a call: text, blocks, or structured data. Raises ToolError if it is an error."""
    content = raw.get("content")
    blocks = [_block(one) for one in content] if isinstance(content, list) else []
    structured = raw.get("structuredContent")
    has_text = any(block["type"] == "text" and block["text"].strip() for block in blocks)
    if structured is not None and not has_text:
        pictures = [block for block in blocks if block["type"] != "text"]
        if not pictures and raw.get("isError") is not True:
            return structured
        blocks = [{"type": "text", "text": json.dumps(structured, ensure_ascii=False)}, *pictures]
    text = "\n".join(block.get("text", f"[{block['type']}]") for block in blocks)
    if raw.get("isError") is True:
        raise ToolError(text)
    return text if all(block["type"] == "text" for block in blocks) else blocks


def _block(part: Any) -> dict[str, Any]:
    """Return a part of a result in a form for models: text, a picture, or a description of anything else."""
    match part:
        case {"type": "text", "text": str(text)}:
            return _text(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            picture = as_block({"type": "image", "data": data, "mimeType": kind})
            return picture if picture is not None else _text(f"[image: {kind}, {_size(data)}]")
        case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
            return _text(f"[audio: {kind}, {_size(data)}]")
        case {"type": "resource", "resource": {"text": str(text)}}:
            return _text(text)
        case {"type": "resource", "resource": {"blob": str(data), **resource}}:
            picture = _picture(data)
            return picture if picture is not None else _text(f"[{resource.get('uri', 'resource')}, {_size(data)}]")
        case {"type": "resource_link", "uri": str(uri)}:
            return _text(f"[{uri}]")
        case _:
            return _text(json.dumps(part, ensure_ascii=False))


def _picture(data: str) -> dict[str, Any] | None:
    try:
        return picture_in(base64.b64decode(data))
    except ValueError:
        return None


def _size(data: str) -> str:
    return f"{len(data) * 3 // 4:,} bytes"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
