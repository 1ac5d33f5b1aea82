"""A model that streams its turns, calls functions in between, and records its requests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any


def says(content: str) -> list[Any]:
    """Return a turn of text."""
    return [{"type": "text_delta", "content": content}]


def asks(*calls: tuple[str, str, dict[str, Any]], before: str = "") -> list[Any]:
    """Return a turn of calls: (id, tool name, arguments)."""
    listed = [{"id": id, "name": name, "arguments": arguments} for id, name, arguments in calls]
    return [*(says(before) if before else []), {"type": "tool_calls", "tool_calls": listed}]


class Model:
    """A model that streams one turn per request and records its requests.

    A turn is a list of chunks. At its position, an exception is raised, and a function is called (and awaited).
    After the last turn it answers `end`.
    """

    def __init__(self, *turns: Any, end: str = "end") -> None:
        self.turns = list(turns)
        self.end = end
        self.contexts: list[list[dict[str, Any]]] = []
        self.closed = 0

    async def stream(
        self, messages: Any, *, tools: Any = None, schema: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        number = len(self.contexts)
        self.contexts.append([dict(message) for message in messages])
        turn = self.turns[number] if number < len(self.turns) else says(self.end)
        try:
            for chunk in says(turn) if isinstance(turn, str) else turn:
                if isinstance(chunk, BaseException):
                    raise chunk
                if callable(chunk):
                    done = chunk()
                    if inspect.isawaitable(done):
                        await done
                    continue
                await asyncio.sleep(0)
                yield chunk
        finally:
            self.closed += 1

    def heard(self, request: int) -> list[str]:
        """Return the history of a request: roles, ids of results, and messages of users."""
        out = []
        for message in self.contexts[request]:
            role = message["role"]
            if role == "user":
                out.append(f"user:{message['content']}")
            else:
                out.append(message["tool_call_id"] if role == "tool" else role)
        return out
