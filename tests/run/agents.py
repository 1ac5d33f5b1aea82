"""A session with tools that can be observed and blocked, for tests of its run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentnb import SessionLoop, tool
from agentnb.testing import ScriptedLLM, call
from tests.worlds import asks


class Agent:
    """Makes sessions whose tools record their calls in it; a call with the value `hold` waits for `release`."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.release = asyncio.Event()
        self.holding = asyncio.Event()
        self.closed: list[Any] = []

        async def work(value: Any) -> str:
            self.ran.append(value)
            if value == "hold":
                self.holding.set()
                try:
                    await self.release.wait()
                finally:
                    self.closed.append(value)
            return f"R:{value}"

        @tool
        async def echo(value: str) -> str:
            return await work(value)

        @tool(idempotent=True)
        async def look(value: str) -> str:
            return await work(value)

        @tool(approve=True, needs="network")
        async def send(value: str, to: str = "all") -> str:
            return await work(f"{value}>{to}")

        @tool
        def slow(value: str) -> str:
            self.ran.append(value)
            return f"R:{value}"

        self.tools = [echo, look, send, slow]

    def loop(self, *turns: Any, **options: Any) -> SessionLoop:
        return SessionLoop(ScriptedLLM(turns), self.tools, **options)

    def two_turns(self, **options: Any) -> SessionLoop:
        return self.loop(asks("a", "b"), "done", **options)


def sends(*values: str, **arguments: Any) -> Sequence[Any]:
    """Return a turn with a call of the tool that needs approval for each value."""
    return [call("send", {"value": value, **arguments}, id=value) for value in values]


class Plans:
    """A planner whose tasks have one letter each."""

    def __init__(self, names: str = "ab") -> None:
        self.names = names

    def decompose_goal(self, goal: str) -> list[dict[str, Any]]:
        return [{"id": name, "description": f"do {name}"} for name in self.names]
