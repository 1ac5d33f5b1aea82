"""What answers of either dialect have in common: the words for why they stop, and what is counted.

Servers that speak one dialect for a model of another often leave its words as they are, and some have words of their
own. So there is one table for all of them, and capitals make no difference.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agentnb.core.errors import ModelProtocolError, ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentnb.llms.protocol import Chunk

DONE = "[DONE]"
"""The last event's data in OpenAI's dialect, and behind proxies also in the other."""

_REASONS = {
    "stop": ("stop", "end_turn", "stop_sequence", "eos", "eos_token"),
    "length": ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
    "tool_calls": ("tool_calls", "tool_call", "tool_use", "function_call"),
    "content_filter": (
        *("content_filter", "safety", "sensitive", "guardrail_intervened"),  # · Z.AI's, Bedrock's
        *("recitation", "prohibited_content", "blocklist", "spii"),  # Gemini's
    ),
    "pause": ("pause_turn",),
    "broken_off": (
        *("error", "abort", "aborted", "network_error", "insufficient_system_resource"),
        *("malformed_function_call", "unexpected_tool_call"),  # Gemini's; asked again, it usually makes a call
    ),
}
OUR_WORDS = {theirs: ours for ours, words in _REASONS.items() for theirs in words}
"""Our word for why an answer ended, by the words of servers."""
_SAID_ALOUD = frozenset({"length", "content_filter", "refusal", "pause"})
"""Reasons that hold though there are calls."""


def stop_reason(theirs: str | None, *, calls: bool, text: bool, server: str) -> str:
    """Give our word for why an answer ended that has such content; None is a server that says no more than that it did.

    A server's own word stays where it is in no table. Raises a `ModelError` where it says that something is missing.
    """
    ours = "stop" if theirs is None else OUR_WORDS.get(theirs.lower().rpartition(": ")[2], theirs)
    if ours == "broken_off":
        raise ModelUnavailable(f"{server} broke its answer off: it gave {theirs!r} as its reason to stop")
    if calls and ours not in _SAID_ALOUD:
        return "tool_calls"  # a forced call ends with "stop" at OpenAI itself
    if ours == "tool_calls" and not calls and not text:
        raise ModelProtocolError(
            f"{server} ended its answer to have tools called ({theirs}), and called none; ask again"
        )
    return ours


def count(value: object) -> int | None:
    """Give a number of tokens, which may be written as text; None for what is no such number."""
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return int(number) if 0 <= number < 2**53 else None


def amount(value: object) -> float | None:
    """Give an amount of money; None for what is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 2**53 else None


def usage_chunk(**counts: float | None) -> Chunk:
    """Give the chunk of what was used: input and output always, the others where they are told."""
    told = {name: number for name, number in counts.items() if number is not None}
    return {"type": "usage", "input_tokens": 0, "output_tokens": 0} | told


def texts(content: object, kind: str = "text_delta") -> Sequence[Chunk]:
    """Give the chunks of content that is text or a list of parts, thinking apart; other parts are passed over."""
    if isinstance(content, str):
        return [{"type": kind, "content": content}] if content else []
    parts = content if isinstance(content, list) else [content]
    chunks: list[Chunk] = []
    for part in parts:
        if isinstance(part, str):
            chunks += texts(part, kind)
        elif isinstance(part, dict):
            inside = "reasoning_delta" if part.get("type") in ("thinking", "reasoning") else kind
            for name in ("thinking", "text"):
                if isinstance(said := part.get(name), str | list):
                    chunks += texts(said, inside)
    return chunks


def is_data(content: object) -> bool:
    """Say whether content is JSON data in place of text: some servers parse the answer that a schema was given for."""
    if isinstance(content, dict):
        return not isinstance(content.get("text", content.get("thinking")), str | list)
    if isinstance(content, list):
        return bool(content) and all(
            isinstance(part, dict) and "type" not in part and is_data(part) for part in content
        )
    return False
