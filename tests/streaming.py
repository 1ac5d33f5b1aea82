"""A model that streams its turns, calls functions on the way, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any


def says(content: str) -> list[Any]:
    """A turn that is text."""
    return [{"type": "text_delta", "content": content}]


def asks(*calls: tuple[str, str, dict[str, Any]], before: str = "") -> list[Any]:
    """A turn that asks for calls: (id, tool name, arguments)."""
    listed = [{"id": id, "name": name, "arguments": arguments} for id, name, arguments in calls]
    return [*(says(before) if before else []), {"type": "tool_calls", "tool_calls": listed}]


class Model:
    """Streams its turns one request after the other and keeps what it was asked.

    A turn is a list of chunks; an exception in it is raised there, a function in it is called (and awaited) there.
    After the last turn it says `end`.
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
        """A request's history: roles, ids of results, and what users said."""
        out = []
        for message in self.contexts[request]:
            role = message["role"]
            if role == "user":
                out.append(f"user:{message['content']}")
            else:
                out.append(message["tool_call_id"] if role == "tool" else role)
        return out
