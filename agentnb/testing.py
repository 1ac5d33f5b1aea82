"""Scripted models, for tests and for notebooks that have to run the same everywhere.

A scripted model streams real chunks through the same path as any other; only where they come from differs. A turn is a
list of chunks, or a function of the messages that gives one: such a model can read what the tools returned and answer
from it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError

Chunk = Any
Turn = Iterable[Chunk] | Callable[..., Any] | str

__all__ = ["Delay", "Request", "ScriptedLLM", "call", "delay", "text"]


@dataclass(frozen=True, slots=True)
class Delay:
    """A pause in a scripted turn, in seconds."""

    seconds: float


def delay(seconds: float) -> Delay:
    """A pause between two chunks."""
    return Delay(seconds)


def text(content: str, *, pieces: int | None = None) -> list[dict[str, Any]]:
    """Text as chunks: one a word, or `pieces` of equal length."""
    if pieces is None:
        words = content.split(" ")
        parts = [word if n == 0 else f" {word}" for n, word in enumerate(words)]
    else:
        size = max(1, -(-len(content) // pieces))
        parts = [content[n : n + size] for n in range(0, len(content), size)]
    return [{"type": "text_delta", "content": part} for part in parts if part]


def call(name: str, arguments: Mapping[str, Any] | None = None, *, id: str = "") -> dict[str, Any]:
    """A tool call as a chunk; without an id the run gives it one."""
    return {"type": "tool_call", "id": id, "name": name, "arguments": dict(arguments or {})}


@dataclass(frozen=True, slots=True)
class Request:
    """What the model was asked."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    schema: Mapping[str, Any] | None
    options: Mapping[str, Any]


class ScriptEnded(UsageError, AssertionError):
    """A scripted model was asked more often than its script goes."""


class ScriptedLLM:
    """A model that says what it is told to, turn by turn.

    turns: each a list of chunks (DESIGN 4), `delay(seconds)` between them where wanted, an exception to raise there; or
    a text; or a function of the messages that gives either. `requests` keeps what it was asked; `assert_complete`
    checks that every turn was used. A request after the last turn raises AssertionError. `repeat=True` starts over
    instead.
    """

    def __init__(self, turns: Iterable[Turn], *, repeat: bool = False) -> None:
        self.turns = list(turns)
        self.repeat = repeat
        self.requests: list[Request] = []

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Chunk]:
        """The next turn's chunks."""
        number = len(self.requests)
        self.requests.append(Request(messages, tools, schema, options))
        if self.repeat and self.turns:
            number %= len(self.turns)
        elif number >= len(self.turns):
            raise ScriptEnded(f"The script has {len(self.turns)} turns; this is request {number + 1}.")
        turn: Any = self.turns[number]
        if callable(turn) and not isinstance(turn, Iterable):
            turn = turn(messages)
            turn = await turn if inspect.isawaitable(turn) else turn
        for chunk in text(turn) if isinstance(turn, str) else turn:
            if isinstance(chunk, Delay):
                await asyncio.sleep(chunk.seconds)
            elif isinstance(chunk, BaseException):
                raise chunk
            else:
                yield chunk

    def assert_complete(self) -> None:
        """Raise AssertionError unless every turn was asked for."""
        if len(self.requests) != len(self.turns):
            raise AssertionError(f"{len(self.requests)} of {len(self.turns)} scripted turns were used.")
