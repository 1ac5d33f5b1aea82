"""From the events of Anthropic's messages stream to chunks.

A message is a series of numbered blocks, each opened, filled by deltas and closed. Text, thinking and tool use
become chunks. A block of another type (a tool that runs at the provider, its result, a compaction) is kept as it came,
and so are the citations of a text, with the server that they are for. Events of other types are passed over, as the
API's versioning policy asks of its clients. A message that comes whole, as if no stream had been asked for, is its
blocks at once.

Anthropic signs what it thinks. DeepSeek and Kimi do not always, and refuse a tool's result unless they see again what
was thought before the call: so a block of thinking that nobody has signed ends with the server it is of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError
from agentnb.llms import errors
from agentnb.llms.reader import DONE, amount, count, parse_object, stop_reason, usage_chunk

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk
    from agentnb.llms.sse import ServerSentEvent

OWN_SERVER = "api.anthropic.com"
_READ = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
"""Types of blocks that become text, thoughts and calls. All others are kept as they came, for their server."""
_CACHE_FIELDS = {"cache_read_tokens": "cache_read_input_tokens", "cache_write_tokens": "cache_creation_input_tokens"}


@dataclass(slots=True)
class _Block:
    """A block that is open: its own fields, and what its deltas have filled in."""

    kind: str
    fields: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict)
    citations: list[Any] = field(default_factory=list)


class MessageReader:
    """Reads one answer. `server` is how its errors call the server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: dict[object, _Block] = {}
        self._last_kind = ""  # of the block that was closed last
        self._calls: dict[object, int] = {}  # a block's number -> the number of its tool call
        self._number = 0  # of the tool calls so far
        self._empty: set[int] = set()  # calls whose arguments have not been seen yet
        self._usage: dict[str, Any] = {}
        self._response: dict[str, str] = {}
        self._kept: dict[str, Any] = {}
        self._reason: str | None = None
        self._has_text = False
        self._has_blocks = False
        self._begun = False
        self._done = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Give the chunks of one event. Raises a `ModelError` for an error event or a broken one."""
        if event.data.strip() == DONE:  # a proxy's, whose other dialect ends so
            self._done = True
            return []
        said = errors.read_event(event.data, event.event, self._server)
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
        is_said = self._has_text or self._has_blocks
        reason = stop_reason(self._reason, calls=self._number > 0, text=is_said, server=self._server)
        closing: list[Chunk] = []
        if reason == "tool_calls":  # a call without arguments may have none to send, or not have come to them
            closing += [{"type": "tool_call_delta", "index": index, "arguments": "{}"} for index in sorted(self._empty)]
        closing = [*(chunk for number in [*self._open] for chunk in self._close(number)), *closing]
        if self._reason is not None and self._reason != reason:  # `stop` has it otherwise
            self._response["finish_reason"] = self._reason
        if self._kept:
            closing.append({"type": "details", "details": self._kept})
        if self._response:
            closing.append({"type": "response", **self._response})
        if self._usage:
            closing.append(self._usage_chunk())
        return [*closing, {"type": "stop", "reason": reason}]

    def _read(self, said: Mapping[str, Any]) -> list[Chunk]:
        match said.get("type"):
            case "message_start":
                self._read_response(_mapping(said.get("message")))
            case "content_block_start":
                return self._begin(said.get("index"), _mapping(said.get("content_block")))
            case "content_block_delta":
                return self._fill(said.get("index"), _mapping(said.get("delta")))
            case "content_block_stop":
                return self._close(said.get("index"))
            case "message_delta":
                self._read_response(said)
                self._keep(_mapping(said.get("delta")))
                self._reason = _word(_mapping(said.get("delta")).get("stop_reason")) or self._reason
            case "message_stop":
                self._done = True
            case "message":
                return self._read_whole(said)
            case _:
                pass
        return []

    def _read_response(self, message: Mapping[str, Any]) -> None:
        self._count(message.get("usage"))
        tier = _mapping(message.get("usage")).get("service_tier")
        given = {
            "model": message.get("model"),
            "response_id": message.get("id"),
            "service_tier": tier,
            "upstream": message.get("provider"),  # OpenRouter's
        }
        self._response |= {name: value for name, value in given.items() if isinstance(value, str) and value}

    def _keep(self, place: Mapping[str, Any]) -> None:
        """Keep what the answer has beside its blocks: why it was refused, and the container its tools ran in."""
        self._kept |= {name: place[name] for name in ("stop_details", "container") if place.get(name)}

    def _read_whole(self, message: Mapping[str, Any]) -> list[Chunk]:
        self._read_response(message)
        self._keep(message)
        self._reason, self._done = _word(message.get("stop_reason")), True
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        return [
            chunk
            for number, block in enumerate(blocks)
            for chunk in (*self._begin(number, _mapping(block)), *self._close(number))
        ]

    def _begin(self, number: object, given: Mapping[str, Any]) -> list[Chunk]:
        """Open a block; one whose end was not told is closed first."""
        chunks = [chunk for other in [*self._open] for chunk in self._close(other)]
        kind = given.get("type")
        if not isinstance(kind, str):  # no block that anybody could take back
            return chunks
        block = self._open[_key(number)] = _Block(kind, dict(given))
        if kind == "tool_use":
            if _word(given.get("name")) or _word(given.get("id")):  # one with neither is no call
                chunks.append(self._open_call(number, given))
        elif kind == "text":
            if isinstance(citations := given.get("citations"), list):
                block.citations += citations
            if self._last_kind == "text":  # its end was not sent yet
                chunks.append({"type": "text_end"})
            if isinstance(text := given.get("text"), str) and text:
                chunks.append({"type": "text_delta", "content": text})
        elif kind == "thinking":
            text, signature = str(given.get("thinking") or ""), given.get("signature")
            if text and signature:  # all of it at once
                chunks.append({"type": "reasoning_delta", "content": text, **self._signed(signature=signature)})
                block.fields["signature"], text = "", ""
            elif text:
                chunks.append({"type": "reasoning_delta", "content": text})
            block.pieces["thinking"] = [text]
        return chunks

    def _close(self, number: object) -> list[Chunk]:
        """Close a block: give what only its server can read, in the block's place."""
        block = self._open.pop(_key(number), None)
        if block is None:
            return []
        kind, self._last_kind = block.kind, block.kind
        if kind == "text":
            if not block.citations:
                return []
            self._last_kind = ""  # it has been told that this one ended
            return [{"type": "text_end", "citations": block.citations, "server": self._server}]
        if kind == "thinking":
            signature = block.fields.get("signature") or ""
            has_text = any(block.pieces["thinking"])
            if signature:
                return [{"type": "reasoning_delta", "content": "", **self._signed(signature=signature)}]
            # DeepSeek and Kimi sign nothing, and want to see it again all the same.
            wanted = has_text and self._server != OWN_SERVER
            return [{"type": "reasoning_delta", "content": "", **self._signed()}] if wanted else []
        if kind == "redacted_thinking":
            data = block.fields.get("data")
            return [{"type": "reasoning_delta", "content": "", **self._signed(redacted=data)}] if data else []
        if kind == "tool_use":
            return []
        fields = block.fields | {name: "".join(pieces) for name, pieces in block.pieces.items()}
        if "partial_json" in fields:
            fields["input"] = parse_object(fields.pop("partial_json")) or block.fields.get("input") or {}
        if block.citations:
            fields["citations"] = block.citations
        self._has_blocks = True
        return [{"type": "block", "block": fields, "server": self._server}]

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
        call = {"index": index, "id": _word(block.get("id")), "name": _word(block.get("name")), "arguments": arguments}
        return {"type": "tool_call_delta", **call}

    def _fill(self, number: object, delta: Mapping[str, Any]) -> list[Chunk]:
        block = self._open.get(_key(number))
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return [{"type": "text_delta", "content": text}]
            case {"type": "thinking_delta", "thinking": str(text)}:
                if block is None or block.kind != "thinking":  # a server that opens no block for it
                    block = self._open[_key(number)] = _Block("thinking", {}, {"thinking": []})
                block.pieces["thinking"].append(text)
                return [{"type": "reasoning_delta", "content": text}]
            case {"type": "signature_delta", "signature": str(signature)} if block is not None:
                block.fields["signature"] = (block.fields.get("signature") or "") + signature
                return []
            case {"type": "citations_delta"} if block is not None:
                block.citations.append(delta.get("citation"))
                return []
            case {"type": "input_json_delta", "partial_json": str(fragment)} if (
                fragment and _key(number) in self._calls
            ):
                index = self._calls[_key(number)]
                self._empty.discard(index)
                return [{"type": "tool_call_delta", "index": index, "arguments": fragment}]
        if block is not None and block.kind not in _READ:
            for name, piece in delta.items():  # `partial_json` of a server's tool, `content` of a compaction
                if name != "type" and isinstance(piece, str):
                    block.pieces.setdefault(name, []).append(piece)
        return []

    def _signed(self, **fields: str) -> Chunk:
        # Anthropic refuses a signature that is another server's; its own it knows wherever it runs.
        return fields if self._server == OWN_SERVER else fields | {"provider": {"server": self._server}}

    def _count(self, usage: object) -> None:
        details = _mapping(usage).get("output_tokens_details")
        thought = {name: _mapping(details).get(name) for name in ("thinking_tokens", "reasoning_tokens")}
        for name, told in {**_mapping(usage), **thought}.items():
            number = count(told)
            if number or (number == 0 and name not in self._usage):  # they grow: a proxy that says 0 does not know
                self._usage[name] = number
        if (cost := amount(_mapping(usage).get("cost"))) is not None:
            self._usage["cost"] = cost

    def _usage_chunk(self) -> Chunk:
        counted = {name: self._usage[field] for name, field in _CACHE_FIELDS.items() if field in self._usage}
        # Anthropic counts cached tokens apart; everybody else, and OpenTelemetry, counts them as input.
        return usage_chunk(
            input_tokens=self._usage.get("input_tokens", 0) + sum(counted.values()),
            output_tokens=self._usage.get("output_tokens", 0),
            **counted,
            reasoning_tokens=self._usage.get("thinking_tokens", self._usage.get("reasoning_tokens")),
            cost=amount(self._usage.get("cost")),
        )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _key(number: object) -> int | str | None:
    return number if isinstance(number, int | str) else None
