"""The parts that the readers of both dialects share. A reader turns the events of a stream into chunks.

These are the stop reasons, the counts of tokens, the parts of content, and JSON that may come in pieces or be invalid.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from agentnb.core.errors import ModelProtocolError, ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentnb.llms.protocol import Chunk
    from agentnb.llms.sse import ServerSentEvent


class Reader(Protocol):
    """Turns the events of one answer into chunks. A reader does no I/O."""

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Return the chunks of one event. Raises a ModelError if the event reports an error or is not valid."""
        ...

    def is_done(self) -> bool:
        """Return True if no event can follow those read so far."""
        ...

    @property
    def usage(self) -> Chunk | None:
        """The chunk with the usage that the server has reported so far, None if it has reported none."""
        ...

    def finish(self) -> list[Chunk]:
        """Return the closing chunks, `stop` last. Raises a ModelError if the answer is not complete."""
        ...


DONE = "[DONE]"
"""The data of the last event in OpenAI's dialect. Proxies also send it in Anthropic's."""


# Stop reasons. Servers that speak one dialect for a model of another often keep the model's own reasons, and some have
# reasons of their own. So one table holds all of them, in lower case.

_STOP_REASONS = {
    "stop": ("stop", "end_turn", "stop_sequence", "eos", "eos_token"),
    "length": (
        *("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
        "incomplete",  # a status of responses, if the server adds no reason
    ),
    "tool_calls": ("tool_calls", "tool_call", "tool_use", "function_call"),
    "content_filter": (
        *("content_filter", "safety", "sensitive", "guardrail_intervened"),  # the last two: Z.AI, Bedrock
        *("recitation", "prohibited_content", "blocklist", "spii"),  # Gemini
    ),
    "pause": ("pause_turn",),
    "interrupted": (
        *("error", "abort", "aborted", "network_error", "insufficient_system_resource"),
        *("malformed_function_call", "unexpected_tool_call"),  # Gemini; a second request usually succeeds
    ),
}
STOP_REASONS = {server: ours for ours, servers in _STOP_REASONS.items() for server in servers}
"""agentnb's stop reason for each reason of a server. "interrupted" is an error, see `stop_reason`."""
_VALID_WITH_CALLS = frozenset({"length", "content_filter", "refusal", "pause"})


def stop_reason(reason: str | None, *, calls: bool, text: bool, server: str) -> str:
    """Return agentnb's stop reason of an answer.

    reason: the server's reason, or None if it only ended the stream. An unknown reason is returned unchanged.
    calls: True if the answer has tool calls. text: True if it has text.
    server: the server's name, for errors.

    Raises ModelUnavailable if the server interrupted its answer, and ModelProtocolError if calls are missing.
    """
    ours = "stop" if reason is None else STOP_REASONS.get(reason.lower().rpartition(": ")[2], reason)
    if ours == "interrupted":
        raise ModelUnavailable(f"{server} interrupted its answer (its stop reason is {reason!r}); ask again")
    if calls and ours not in _VALID_WITH_CALLS:
        return "tool_calls"  # OpenAI itself ends a forced call with "stop"
    if ours == "tool_calls" and not calls and not text:
        raise ModelProtocolError(
            f"{server} ended its answer with the reason {reason!r}, but sent no tool call; ask again"
        )
    return ours


# Usage.


def token_count(value: object) -> int | None:
    """Return a number of tokens, which may be written as a string; None if the value is not one."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return int(number) if 0 <= number < 2**53 else None


def money(value: object) -> float | None:
    """Return an amount of money; None if the value is not one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 2**53 else None


def usage_chunk(**counts: float | None) -> Chunk:
    """Return the usage chunk. It always has input and output tokens, and the other counts if they are known."""
    known = {name: number for name, number in counts.items() if number is not None}
    return {"type": "usage", "input_tokens": 0, "output_tokens": 0} | known


# Content.


def text_chunks(content: object, kind: str = "text_delta") -> Sequence[Chunk]:
    """Return the chunks of content that is a string or a list of parts.

    Reasoning among the parts becomes chunks of its own type. Parts that are neither text nor reasoning are skipped.
    """
    if isinstance(content, str):
        return [{"type": kind, "content": content}] if content else []
    chunks: list[Chunk] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            chunks += text_chunks(part, kind)
        elif isinstance(part, dict):
            part_kind = "reasoning_delta" if part.get("type") in ("thinking", "reasoning") else kind
            for name in ("thinking", "text"):
                if isinstance(inner := part.get(name), str | list):
                    chunks += text_chunks(inner, part_kind)
    return chunks


def is_data(content: object) -> bool:
    """Return True if content is JSON data instead of text: some servers parse an answer that follows a schema."""
    if isinstance(content, dict):
        return not isinstance(content.get("text", content.get("thinking")), str | list)
    if isinstance(content, list):
        return bool(content) and all(
            isinstance(part, dict) and "type" not in part and is_data(part) for part in content
        )
    return False


# JSON.

_STRUCTURE = re.compile(r'\\.?|["{}]', re.DOTALL)


class ObjectText:
    """The text of a JSON object that comes in pieces. Each piece is scanned once, when `has_closed` is called."""

    def __init__(self) -> None:
        self.begun = False
        """True if a piece had something other than white space."""
        self.size = 0
        self.length = 0
        """The number of characters up to the end of the object, once it has closed."""
        self._pieces: list[str] = []
        self._unscanned: list[str] = []
        self._depth = self._scanned = 0
        self._in_string = self._escaped = self._closed = False

    def add(self, piece: str) -> None:
        """Append a piece."""
        self.begun = self.begun or bool(piece.strip())
        self._pieces.append(piece)
        self.size += len(piece)
        self._unscanned.append(piece)

    def text(self) -> str:
        """Return the text so far."""
        return "".join(self._pieces)

    def has_closed(self) -> bool:
        """Return True if the object's last brace has come."""
        for piece in self._unscanned:
            start = 1 if self._escaped else 0
            self._escaped = self._escaped and not piece
            for found in _STRUCTURE.finditer(piece, start):
                mark = found[0]
                if mark.startswith("\\"):
                    self._escaped = len(mark) == 1  # the escaped character is the first of the next piece
                elif mark == '"':
                    self._in_string = not self._in_string
                elif not self._in_string:
                    self._depth += 1 if mark == "{" else -1
                    if self._depth == 0 and not self._closed:
                        self._closed, self.length = True, self._scanned + found.end()
            self._scanned += len(piece)
        self._unscanned.clear()
        return self._closed


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if the text is not one.

    A string in it may start or end with half of a surrogate pair, which `Reply` joins to the other half.
    """
    try:
        parsed = json.loads(text, strict=False)  # a model may write line ends as they are
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def strict_json(value: Any, separators: tuple[str, str] | None = None) -> str:
    """Return the value as JSON. NaN and infinite numbers, which some models write, become strings: "NaN"."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
