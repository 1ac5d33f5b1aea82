"""What the claims' tests share: a model of its own, and and the notation of session_loop/SEMANTICS.md, 9. Notation.

Nothing here knows agentnb but by its public names: these tests are the published texts, not the code.
"""

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


def answered_once(messages: Any) -> None:
    """Every call has exactly one result, before any later user or assistant message (promise 3)."""
    waiting: list[str] = []
    for message in messages:
        role = message["role"]
        if role == "tool":
            assert message["tool_call_id"] in waiting, f"a result nobody asked for: {message['tool_call_id']}"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"no result for {waiting} before a {role} message"
        if role == "assistant":
            waiting = [called["id"] for called in message.get("tool_calls") or ()]
    assert not waiting, f"no result for {waiting}"


def words(text: str) -> list[str]:
    """A line of the short hand as a list."""
    return text.split()


async def collect(stream: Any) -> list[Any]:
    """A stream's events, in time or not at all."""
    return await asyncio.wait_for(_all(stream), 60)


async def _all(stream: Any) -> list[Any]:
    return [event async for event in stream]


def short(events: Any) -> list[str]:
    """The notation of session_loop/SEMANTICS.md, 9. Notation; deltas are left out."""
    out: list[str] = []
    for event in events:
        kind = event.type
        if kind == "message_start":
            out.append(_message(event.message))
        elif kind == "message_end":
            assert _message(event.message).removesuffix("!").split(":")[0] == out[-1].removesuffix("!").split(":")[0]
            out[-1] = f"M({_message(event.message)})"
        elif kind == "tool_execution_start":
            out.append(f"XS({event.tool_call_id})")
        elif kind == "tool_execution_end":
            out.append(f"XE({event.tool_call_id}{'!' if event.is_error else ''})")
        elif kind == "turn_end":
            out.append(f"TE[{','.join(m.tool_call_id for m in event.tool_results)}]")
        elif kind == "agent_end":
            out.append(f"AE({len(event.messages)})")
        elif kind in ("agent_start", "turn_start"):
            out.append({"agent_start": "AS", "turn_start": "TS"}[kind])
    return out


def _message(message: Any) -> str:
    if message["role"] == "assistant":
        return "A"
    if message["role"] == "tool":
        return f"result:{message['tool_call_id']}{'!' if message.get('is_error') else ''}"
    return f"{message['role']}:{message['content']}"
