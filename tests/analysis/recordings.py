"""Recordings for the tests of analysis: ended runs of every design, and a run in which a person decided."""

from __future__ import annotations

from typing import Any

from agentnb import Run, SessionLoop, tool
from agentnb.testing import ScriptedLLM, call, text
from tests.worlds import until


@tool
async def read(table: str) -> str:
    """Read a table."""
    return f"{table} read"


@tool(approve=True, needs="disk")
async def write(path: str, content: str = "") -> str:
    """Write a file."""
    if path == "/etc/passwd":
        raise PermissionError("not there")
    return f"{path} written"


def used(read: int, written: int, cost: float) -> dict[str, Any]:
    return {"type": "usage", "input_tokens": read, "output_tokens": written, "cost": cost}


def researcher(*, answer: str = "It is done.", first: str = "a", **options: Any) -> SessionLoop:
    """Return a loop with two concurrent reads, then four writes that need approval, then an answer."""
    turns = [
        [call("read", {"table": first}, id="r1"), call("read", {"table": "b"}, id="r2"), used(100, 20, 0.01)],
        [call("write", {"path": path}, id=f"w{n}") for n, path in enumerate(("a", "b", "c", "/etc/passwd"))]
        + [used(200, 40, 0.02)],
        [*text(answer), used(300, 10, 0.03)],
    ]
    return SessionLoop(ScriptedLLM(turns), [read, write], name="researcher", **options)


async def decided_run(name: str | None = "nile", **options: Any) -> Run:
    """Return a run in which a person approved, rejected and edited calls, and approved one that fails."""
    run = researcher(**options).start("Look it up.", name=name)
    run.play()
    await until(lambda: len(run.pending) == 4)
    run.approve("w0")
    run.reject("w1", reason="not b")
    run.edit("w2", {"path": "d", "content": "x"})
    run.approve("w3")
    await run
    return run
