"""From the events of Anthropic's messages stream to chunks.

A message is a series of numbered blocks, each opened, filled by deltas and closed. Text, thinking and tool use
become chunks; blocks of other types (tools that run at the provider) and events of other types are passed over, as the
API's versioning policy asks of its clients. A message that comes whole, as if no stream had been asked for, is its
blocks at once.

Anthropic signs what it thinks. DeepSeek and Kimi do not always, and refuse a tool's result unless they see again what
was thought before the call: so an answer ends with whose the thinking is that nobody has signed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError
from agentnb.llms import failures
from agentnb.llms.answers import DONE, count, stop_reason, usage_chunk

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk
    from agentnb.llms.sse import ServerSentEvent

OWN_SERVER = "api.anthropic.com"
_CACHE_FIELDS = {"cache_read_tokens": "cache_read_input_tokens", "cache_write_tokens": "cache_creation_input_tokens"}


class MessageReader:
    """Reads one answer. `server` is how its errors call the server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls: dict[object, int] = {}  # a block's number -> the number of its tool call
        self._number = 0  # of the tool calls so far
        self._empty: set[int] = set()  # calls whose arguments have not been seen yet
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._has_text = False
        self._unsigned = False  # what was thought last
        self._begun = False
        self._done = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Give the chunks of one event. Raises a `ModelError` for an error event or a broken one."""
        if event.data.strip() == DONE:  # a proxy's, whose other dialect ends so
            self._done = True
            return []
        said = failures.read_event(event.data, event.event, self._server)
        chunks = self._read(said)
        self._begun = self._begun or bool(chunks) or said.get("type") in ("message_start", "message")
        self._has_text = self._has_text or any(chunk["type"] == "text_delta" for chunk in chunks)
        return chunks

    def is_done(self) -> bool:
        """Say whether `message_stop` was read."""
        return self._done

    def finish(self) -> list[Chunk]:
        """Give the closing chunks. Raises a `ModelError` when the answer is not complete."""
        if self._reason is None and not self._done:
            raise ModelProtocolError(f"the stream of {self._server} ended without a stop reason")
        if not self._begun:
            raise ModelProtocolError(f"{self._server} ended its answer without having begun a message as Anthropic's")
        reason = stop_reason(self._reason, calls=self._number > 0, text=self._has_text, server=self._server)
        closing: list[Chunk] = []
        if reason == "tool_calls":  # a call without arguments may have none to send, or not have come to them
            closing += [{"type": "tool_call_delta", "index": index, "arguments": "{}"} for index in sorted(self._empty)]
        if self._unsigned and self._server != OWN_SERVER:
            closing.append({"type": "reasoning_delta", "content": "", **self._signed()})
        if self._usage:
            closing.append(self._usage_chunk())
        return [*closing, {"type": "stop", "reason": reason}]

    def _read(self, said: Mapping[str, Any]) -> list[Chunk]:
        match said.get("type"):
            case "message_start":
                self._count(_mapping(said.get("message")).get("usage"))
            case "content_block_start":
                return self._open(said.get("index"), _mapping(said.get("content_block")))
            case "content_block_delta":
                return self._fill(said.get("index"), _mapping(said.get("delta")))
            case "message_delta":
                self._count(said.get("usage"))
                self._reason = _mapping(said.get("delta")).get("stop_reason") or self._reason
            case "message_stop":
                self._done = True
            case "message":
                return self._read_whole(said)
            case _:
                pass
        return []

    def _read_whole(self, message: Mapping[str, Any]) -> list[Chunk]:
        self._count(message.get("usage"))
        self._reason, self._done = message.get("stop_reason"), True
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        return [chunk for number, block in enumerate(blocks) for chunk in self._open(number, _mapping(block))]

    def _open(self, number: object, block: Mapping[str, Any]) -> list[Chunk]:
        match block:
            case {"type": "text", "text": str(text)} if text:
                return [{"type": "text_delta", "content": text}]
            case {"type": "thinking"} if block.get("thinking") or block.get("signature"):
                self._unsigned = not block.get("signature")
                signed = {} if self._unsigned else self._signed(signature=block["signature"])
                return [{"type": "reasoning_delta", "content": block.get("thinking") or "", **signed}]
            case {"type": "redacted_thinking", "data": str(data)}:
                return [{"type": "reasoning_delta", "content": "", **self._signed(redacted=data)}]
            case {"type": "tool_use"}:
                return [self._open_call(number, block)]
            case _:
                return []

    def _open_call(self, number: object, block: Mapping[str, Any]) -> Chunk:
        index = self._number
        self._number += 1
        given = block.get("input")  # always {} at Anthropic; some compatible servers send all of it here
        if given:
            self._calls.pop(_key(number), None)  # and again in the deltas, which are nothing more
        else:
            self._calls[_key(number)] = index
            self._empty.add(index)
        arguments = json.dumps(given, ensure_ascii=False) if given else ""
        call = {"index": index, "id": block.get("id"), "name": block.get("name"), "arguments": arguments}
        return {"type": "tool_call_delta", **call}

    def _fill(self, number: object, delta: Mapping[str, Any]) -> list[Chunk]:
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return [{"type": "text_delta", "content": text}]
            case {"type": "thinking_delta", "thinking": str(text)}:
                self._unsigned = True
                return [{"type": "reasoning_delta", "content": text}]
            case {"type": "signature_delta", "signature": str(signature)} if signature:
                self._unsigned = False
                return [{"type": "reasoning_delta", "content": "", **self._signed(signature=signature)}]
            case {"type": "input_json_delta", "partial_json": str(fragment)} if (
                fragment and _key(number) in self._calls
            ):
                index = self._calls[_key(number)]
                self._empty.discard(index)
                return [{"type": "tool_call_delta", "index": index, "arguments": fragment}]
        return []

    def _signed(self, **fields: str) -> Chunk:
        # Anthropic refuses a signature that is another server's; its own it knows wherever it runs.
        return fields if self._server == OWN_SERVER else fields | {"provider": {"server": self._server}}

    def _count(self, usage: object) -> None:
        for name, told in _mapping(usage).items():
            number = count(told)
            if number or (number == 0 and name not in self._usage):  # they grow: a proxy that says 0 does not know
                self._usage[name] = number

    def _usage_chunk(self) -> Chunk:
        counted = {name: self._usage[field] for name, field in _CACHE_FIELDS.items() if field in self._usage}
        # Anthropic counts cached tokens apart; everybody else, and OpenTelemetry, counts them as input.
        return usage_chunk(
            input_tokens=self._usage.get("input_tokens", 0) + sum(counted.values()),
            output_tokens=self._usage.get("output_tokens", 0),
            **counted,
        )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _key(number: object) -> int | str | None:
    return number if isinstance(number, int | str) else None
