"""From the events of Anthropic's messages stream to chunks.

A message is a series of numbered blocks, each opened, filled by deltas and closed. Text, thinking and tool use
become chunks; blocks of other types (redacted thinking, tools that run at the provider) and events of other types
are passed over, as the API's versioning policy asks of its clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError
from agentnb.llms import failures

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk
    from agentnb.llms.sse import ServerSentEvent

_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
}
_CACHE_FIELDS = {"cache_read_tokens": "cache_read_input_tokens", "cache_write_tokens": "cache_creation_input_tokens"}


class MessageReader:
    """Reads one answer. `server` is how its errors call the server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls: dict[object, int] = {}  # a block's number -> the number of its tool call
        self._empty: set[int] = set()  # calls whose arguments have not been seen yet
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._done = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Give the chunks of one event. Raises a `ModelError` for an error event or a broken one."""
        if event.event == "ping":
            return []
        said = failures.decode_object(event.data, self._server)
        match said.get("type"):
            case "error":
                raise failures.from_payload(said, self._server)
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
            case _:
                pass
        return []

    def is_done(self) -> bool:
        """Say whether `message_stop` was read."""
        return self._done

    def finish(self) -> list[Chunk]:
        """Give the closing chunks. Raises `ModelProtocolError` when the answer is not complete."""
        if self._reason is None:
            raise ModelProtocolError(f"the stream of {self._server} ended without a stop reason")
        reason = _REASONS.get(self._reason, self._reason)
        closing: list[Chunk] = []
        if reason != "length":  # a call without arguments may have none to send, or not have come to them
            closing += [{"type": "tool_call_delta", "index": index, "arguments": "{}"} for index in sorted(self._empty)]
        if self._usage:
            closing.append(self._usage_chunk())
        return [*closing, {"type": "stop", "reason": reason}]

    def _open(self, number: object, block: Mapping[str, Any]) -> list[Chunk]:
        match block.get("type"):
            case "text" if block.get("text"):
                return [{"type": "text_delta", "content": block["text"]}]
            case "thinking" if block.get("thinking"):
                return [{"type": "reasoning_delta", "content": block["thinking"]}]
            case "tool_use":
                index = self._calls[number] = len(self._calls)
                given = block.get("input")  # always {} at Anthropic; some compatible servers send all of it here
                if not given:
                    self._empty.add(index)
                arguments = json.dumps(given) if given else ""
                call = {"index": index, "id": block.get("id"), "name": block.get("name"), "arguments": arguments}
                return [{"type": "tool_call_delta", **call}]
            case _:
                pass
        return []

    def _fill(self, number: object, delta: Mapping[str, Any]) -> list[Chunk]:
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return [{"type": "text_delta", "content": text}]
            case {"type": "thinking_delta", "thinking": str(text)}:
                return [{"type": "reasoning_delta", "content": text}]
            case {"type": "signature_delta", "signature": str(signature)}:
                return [{"type": "reasoning_delta", "content": "", "signature": signature}]
            case {"type": "input_json_delta", "partial_json": str(fragment)} if fragment and number in self._calls:
                index = self._calls[number]
                self._empty.discard(index)
                return [{"type": "tool_call_delta", "index": index, "arguments": fragment}]
        return []

    def _count(self, usage: object) -> None:
        self._usage |= {name: count for name, count in _mapping(usage).items() if count is not None}

    def _usage_chunk(self) -> Chunk:
        counted = {name: self._usage[field] for name, field in _CACHE_FIELDS.items() if field in self._usage}
        chunk: Chunk = {
            "type": "usage",
            # Anthropic counts cached tokens apart; everybody else, and OpenTelemetry, counts them as input.
            "input_tokens": self._usage.get("input_tokens", 0) + sum(counted.values()),
            "output_tokens": self._usage.get("output_tokens", 0),
        }
        return chunk | counted


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
