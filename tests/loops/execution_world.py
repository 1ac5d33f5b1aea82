"""Tools, scripts, notation of the tests of ExecutionLoop: execution_loop/SEMANTICS.md, 14. Activities of the tests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agentnb import ExecutionLoop, tool
from agentnb.testing import ScriptedLLM, delay, text

CONTEXT = [{"type": "data", "kind": "input", "data": {"u": "alice"}}]
MOMENT = [delay(0)] * 100
"""A pause of a model for a hundred turns of its event loop, independent of their duration."""


class World:
    """The activities, and a record of what has run."""

    def __init__(self, pause: float = 0.0) -> None:
        self.ran: list[str] = []
        self.pause = pause

        @tool
        async def fast() -> str:
            self.ran.append("fast")
            await asyncio.sleep(self.pause)
            return "fast"

        @tool
        async def slow() -> str:
            self.ran.append("slow")
            await asyncio.sleep(5 * self.pause)
            return "slow"

        @tool
        async def fetch(u: str) -> dict[str, str]:
            self.ran.append(f"fetch {u}")
            await asyncio.sleep(2 * self.pause)
            return {"name": "Al"}

        @tool
        async def sum(p: dict[str, str]) -> str:
            self.ran.append("sum")
            return f"S:{p['name']}"

        @tool
        async def echo(v: Any) -> dict[str, Any]:
            self.ran.append(f"echo {v}")
            return {"v": v}

        @tool
        async def give(v: Any) -> Any:
            self.ran.append(f"give {v}")
            return v

        @tool
        async def boom() -> None:
            self.ran.append("boom")
            raise RuntimeError("api down")

        @tool(approve=True)
        async def ask(v: Any) -> Any:
            self.ran.append(f"ask {v}")
            return v

        self.tools: list[Any] = [fast, slow, fetch, sum, echo, give, boom, ask]

    def loop(self, *turns: Any, **options: Any) -> ExecutionLoop:
        return ExecutionLoop(ScriptedLLM(turns), options.pop("tools", self.tools), **{"context": CONTEXT, **options})


def c(name: str, to: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a call as a model writes it."""
    return {"_tool": name, **fields, **({"_outputPath": to} if to is not None else {})}


def solution(*calls: Any, output: Any = None, pieces: int = 5, **more: Any) -> list[Any]:
    """Return a turn whose text is a Solution."""
    return text(json.dumps({"calls": list(calls), "output": output, **more}), pieces=pieces)


def notation(events: list[Any]) -> list[str]:
    """Return the events in short notation, such as `received c1`, `failed c2 structural`, `errors 2`, `request 1`."""
    words = {
        "request_started": lambda e: f"request {e.n}",
        "call_received": lambda e: f"received {e.id}",
        "call_unblocked": lambda e: f"unblocked {e.id}",
        "call_rejected": lambda e: f"rejected {e.id}",
        "call_started": lambda e: f"started {e.id}",
        "call_completed": lambda e: f"done {e.id}",
        "call_failed": lambda e: f"failed {e.id} {e.phase}",
        "errors_appended": lambda e: f"errors {e.count}",
        "request_completed": lambda e: f"completed {e.n}",
        "loop_completed": lambda e: e.reason,
    }
    return [words[e.type](e) for e in events]


def errors_told(loop: ExecutionLoop, request: int) -> list[Any]:
    """Return the error messages of a request."""
    data = [json.loads(m["content"]) for m in loop.llm.requests[request].messages if m["content"].startswith("{")]
    return [message["data"] for message in data if message["kind"] == "error"]


def data_told(loop: ExecutionLoop, request: int, kind: str = "state") -> list[Any]:
    """Return the data of a kind in a request, one for each object."""
    data = [json.loads(m["content"]) for m in loop.llm.requests[request].messages if m["content"].startswith("{")]
    return [message["data"] for message in data if message["kind"] == kind]
