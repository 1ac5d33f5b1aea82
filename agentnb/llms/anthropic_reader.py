"""Anthropic's answers: from the events of a messages stream to chunks.

A message is a series of numbered blocks. Each block is opened, filled by deltas, and closed. Text, thinking and tool
use become chunks. A block of another type (a tool that runs at the provider, its result, a compaction) is kept
unchanged, and so are the citations of a text, with the name of the server that can read them. Events of unknown types
are skipped, as the API's versioning policy asks. A message that comes whole is read as its blocks.

Anthropic signs the model's thinking. DeepSeek and Kimi do not always sign it, and reject a tool's result unless they
are sent the thinking before the call. So an unsigned block of thinking ends with the name of its server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError
from agentnb.llms import errors
from agentnb.llms.reader import DONE, money, parse_object, stop_reason, token_count, usage_chunk

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk
    from agentnb.llms.sse import ServerSentEvent

OWN_SERVER = "api.anthropic.com"
_READ = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
"""Types of blocks that become text, reasoning and calls. Blocks of other types are kept unchanged for their server."""
_CACHE_FIELDS = {"cache_read_tokens": "cache_read_input_tokens", "cache_write_tokens": "cache_creation_input_tokens"}


@dataclass(slots=True)
class _Block:
    """An open block: its own fields, and what its deltas have added."""

    kind: str
    fields: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict)
    citations: list[Any] = field(default_factory=list)


class MessageReader:
    """Reads one answer. `server` is the server's name, for errors."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._open: dict[object, _Block] = {}
        self._last_kind = ""  # the type of the block that was closed last
        self._calls: dict[object, int] = {}  # the index of the tool call by the number of its block
        self._number = 0  # the number of tool calls so far
        self._empty: set[int] = set()  # calls whose arguments have not come yet
        self._usage: dict[str, Any] = {}
        self.usage: Chunk | None = None
        """The chunk with the usage that the server has reported so far."""
        self._response: dict[str, str] = {}
        self._details: dict[str, Any] = {}
        self._reason: str | None = None
        self._has_text = False
        self._has_blocks = False
        self._begun = False
        self._done = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Return the chunks of one event. Raises a ModelError if the event reports an error or is not valid."""
        if event.data.strip() == DONE:  # from a proxy that also speaks OpenAI's dialect
            self._done = True
            return []
        payload = errors.read_event(event.data, event.event, self._server)
        chunks = self._read_event(payload)
        self._begun = self._begun or bool(chunks) or payload.get("type") in ("message_start", "message")
        self._has_text = self._has_text or any(chunk["type"] == "text_delta" for chunk in chunks)
        return chunks

    def is_done(self) -> bool:
        """Return True if `message_stop` was read."""
        return self._done

    def finish(self) -> list[Chunk]:
        """Return the closing chunks, `stop` last. Raises a ModelError if the answer is not complete."""
        if self._reason is None and not self._done:
            raise ModelProtocolError(
                f"the stream of {self._server} ended without a stop reason, so the answer may be incomplete; ask again"
            )
        if not self._begun:
            raise ModelProtocolError(
                f"the answer of {self._server} ended before a message in Anthropic's format began; check that base_url"
                " is the address of an API in this format"
            )
        has_content = self._has_text or self._has_blocks
        reason = stop_reason(self._reason, calls=self._number > 0, text=has_content, server=self._server)
        closing: list[Chunk] = []
        if reason == "tool_calls":  # a call without arguments may come without deltas
            closing += [{"type": "tool_call_delta", "index": index, "arguments": "{}"} for index in sorted(self._empty)]
        closing = [*(chunk for number in [*self._open] for chunk in self._close_block(number)), *closing]
        if self._reason is not None and self._reason != reason:  # otherwise the chunk `stop` has it
            self._response["finish_reason"] = self._reason
        if self._details:
            closing.append({"type": "details", "details": self._details})
        if self._response:
            closing.append({"type": "response", **self._response})
        if self.usage is not None:
            closing.append(self.usage)
        return [*closing, {"type": "stop", "reason": reason}]

    def _read_event(self, payload: Mapping[str, Any]) -> list[Chunk]:
        match payload.get("type"):
            case "message_start":
                # A call that code in the server's container has made comes here, whole.
                message = _mapping(payload.get("message"))
                self._read_response(message)
                self._reason = _string(message.get("stop_reason")) or self._reason
                content = message.get("content")
                return self._read_blocks(content) if isinstance(content, list) else []
            case "content_block_start":
                return self._open_block(payload.get("index"), _mapping(payload.get("content_block")))
            case "content_block_delta":
                return self._read_delta(payload.get("index"), _mapping(payload.get("delta")))
            case "content_block_stop":
                return self._close_block(payload.get("index"))
            case "message_delta":
                self._read_response(payload)
                self._keep_details(_mapping(payload.get("delta")))
                self._reason = _string(_mapping(payload.get("delta")).get("stop_reason")) or self._reason
            case "message_stop":
                self._done = True
            case "message":
                # A whole answer, as if no stream had been requested.
                self._read_response(payload)
                self._keep_details(payload)
                self._reason, self._done = _string(payload.get("stop_reason")), True
                content = payload.get("content")
                return self._read_blocks(content if isinstance(content, list) else [{"type": "text", "text": content}])
            case _:
                pass
        return []

    def _read_blocks(self, blocks: Sequence[object]) -> list[Chunk]:
        """Read blocks that come whole."""
        return [
            chunk
            for number, block in enumerate(blocks)
            for chunk in (*self._open_block(number, _mapping(block)), *self._close_block(number))
        ]

    def _read_response(self, message: Mapping[str, Any]) -> None:
        # Counts grow during an answer: a 0 after a count comes from a proxy that does not know the count.
        usage = _with_iterations(_mapping(message.get("usage")))
        output_details = _mapping(usage.get("output_tokens_details"))
        reasoning = {name: output_details.get(name) for name in ("thinking_tokens", "reasoning_tokens")}
        for name, value in {**usage, **reasoning}.items():
            number = token_count(value)
            if number or (number == 0 and name not in self._usage):
                self._usage[name] = number
        if (cost := money(usage.get("cost"))) is not None:
            self._usage["cost"] = cost
        if usage:
            self.usage = self._usage_chunk()

        given = {
            "model": message.get("model"),
            "response_id": message.get("id"),
            "service_tier": usage.get("service_tier"),
            "upstream": message.get("provider"),  # OpenRouter
        }
        self._response |= {name: value for name, value in given.items() if isinstance(value, str) and value}

    def _keep_details(self, part: Mapping[str, Any]) -> None:
        """Keep the details of an answer: why it was refused, and the container in which its tools ran."""
        self._details |= {name: part[name] for name in ("stop_details", "container") if part.get(name)}

    def _open_block(self, number: object, given: Mapping[str, Any]) -> list[Chunk]:
        """Open a block. A block whose end did not come is closed first."""
        chunks = [chunk for other in [*self._open] for chunk in self._close_block(other)]
        kind = given.get("type")
        if not isinstance(kind, str):  # not a block that its server would accept again
            return chunks
        block = self._open[_key(number)] = _Block(kind, dict(given))
        if kind == "tool_use":
            if _string(given.get("name")) or _string(given.get("id")):  # a block with neither is not a call
                index, arguments = self._number, given.get("input")
                self._number += 1
                # Anthropic sends {} here and the arguments in deltas. Some servers send all arguments here, and
                # again in deltas, which are then skipped.
                if arguments:
                    self._calls.pop(_key(number), None)
                else:
                    self._calls[_key(number)] = index
                    self._empty.add(index)
                chunks.append(
                    {
                        "type": "tool_call_delta",
                        "index": index,
                        "id": _string(given.get("id")),
                        "name": _string(given.get("name")),
                        "arguments": json.dumps(arguments, ensure_ascii=False) if arguments else "",
                    }
                )
        elif kind == "text":
            if isinstance(citations := given.get("citations"), list):
                block.citations += citations
            if self._last_kind == "text":  # the end of that text has not been reported
                chunks.append({"type": "text_end"})
            if isinstance(text := given.get("text"), str) and text:
                chunks.append({"type": "text_delta", "content": text})
        elif kind == "thinking":
            text, signature = str(given.get("thinking") or ""), given.get("signature")
            if text and signature:  # the whole block
                chunks.append({"type": "reasoning_delta", "content": text, **self._signed(signature=signature)})
                block.fields["signature"], text = "", ""
            elif text:
                chunks.append({"type": "reasoning_delta", "content": text})
            block.pieces["thinking"] = [text]
        return chunks

    def _close_block(self, number: object) -> list[Chunk]:
        """Close a block, and return the chunks for the data in it that only its server can read."""
        block = self._open.pop(_key(number), None)
        if block is None:
            return []
        kind, self._last_kind = block.kind, block.kind
        if kind == "text":
            if not block.citations:
                return []
            self._last_kind = ""  # the end of this text is reported here
            return [{"type": "text_end", "citations": block.citations, "server": self._server}]
        if kind == "thinking":
            signature = block.fields.get("signature") or ""
            has_text = any(block.pieces["thinking"])
            if signature:
                return [{"type": "reasoning_delta", "content": "", **self._signed(signature=signature)}]
            # DeepSeek and Kimi may sign nothing, but want to be sent the block again.
            is_needed = has_text and self._server != OWN_SERVER
            return [{"type": "reasoning_delta", "content": "", **self._signed()}] if is_needed else []
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

    def _read_delta(self, number: object, delta: Mapping[str, Any]) -> list[Chunk]:
        block = self._open.get(_key(number))
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return [{"type": "text_delta", "content": text}]
            case {"type": "thinking_delta", "thinking": str(text)}:
                if block is None or block.kind != "thinking":  # some servers open no block for it
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
        # Anthropic rejects signatures of other servers, and accepts its own from wherever its models run.
        return fields if self._server == OWN_SERVER else fields | {"provider": {"server": self._server}}

    def _usage_chunk(self) -> Chunk:
        counted = {name: self._usage[field] for name, field in _CACHE_FIELDS.items() if field in self._usage}
        # Anthropic counts cached tokens separately. Other providers, and OpenTelemetry, count them as input.
        return usage_chunk(
            input_tokens=self._usage.get("input_tokens", 0) + sum(counted.values()),
            output_tokens=self._usage.get("output_tokens", 0),
            **counted,
            reasoning_tokens=self._usage.get("thinking_tokens", self._usage.get("reasoning_tokens")),
            cost=money(self._usage.get("cost")),
        )


_COUNTED_APART = ("compaction", "advisor_message")
"""Parts of an answer whose tokens are not in the counts of the whole."""


def _with_iterations(usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a usage with the tokens of a compaction and of an adviser, which only its list of iterations has."""
    iterations = usage.get("iterations")
    parts = [_mapping(part) for part in iterations] if isinstance(iterations, list) else []
    apart = [part for part in parts if part.get("type") in _COUNTED_APART]
    names = [name for name in usage if name.endswith("_tokens")] if apart else []
    sums = {name: sum(token_count(part.get(name)) or 0 for part in (usage, *apart)) for name in names}
    return {**usage, **sums}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _key(number: object) -> int | str | None:
    return number if isinstance(number, int | str) else None
