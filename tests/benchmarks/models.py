"""Models without latency, so that what is left is the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any


class Calling:
    """Asks for a call `calls` times, then answers; takes `pause` seconds over each."""

    def __init__(self, calls: int, pause: float = 0) -> None:
        self.calls = calls
        self.pause = pause
        self.asked = 0

    async def stream(self, messages: Sequence[Any], **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked += 1
        if self.pause:
            await asyncio.sleep(self.pause)
        if self.asked <= self.calls:
            yield {"type": "tool_call", "id": f"c{self.asked}", "name": "echo", "arguments": {"value": self.asked}}
        else:
            yield {"type": "text_delta", "content": "done"}


class Typing:
    """Answers in `deltas` pieces."""

    def __init__(self, deltas: int) -> None:
        self.deltas = deltas

    async def stream(self, messages: Sequence[Any], **_: Any) -> AsyncIterator[dict[str, Any]]:
        for _ in range(self.deltas):
            yield {"type": "text_delta", "content": "abcd"}


class FanningOut:
    """Makes `calls` calls at once, then answers."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.asked = 0

    async def stream(self, messages: Sequence[Any], **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked += 1
        if self.asked == 1:
            for number in range(self.calls):
                yield {"type": "tool_call", "id": f"c{number}", "name": "nap", "arguments": {"value": number}}
        else:
            yield {"type": "text_delta", "content": "done"}
