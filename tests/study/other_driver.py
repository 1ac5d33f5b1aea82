"""A study that several processes make, and a process that starts it.

Each call of its tool writes a line with the process and the seed of the run, and lasts until there is a file `go`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import agentnb
from agentnb import SessionLoop, Store, tool
from agentnb.studies import Study
from agentnb.testing import ScriptedLLM, call


def study(folder: Path, place: str | None = None, repeats: int = 3) -> Study:
    """Return the study. Its runs call a tool once."""

    def make(seed: int) -> SessionLoop:
        @tool(idempotent=False)
        async def work() -> str:
            with (folder / "lines").open("a") as lines:
                lines.write(f"{os.getpid()} {seed}\n")
            while not (folder / "go").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            return "worked"

        def answer(messages: Any) -> Any:
            return "end" if messages[-1]["role"] == "tool" else call("work", {})

        return SessionLoop(ScriptedLLM([answer], repeat=True), [work])

    options: dict[str, Any] = {"name": "s", "progress": False, "at_once": 2}
    return agentnb.study(make, ["x"], repeats, store=Store(place or str(folder / "runs.db")), **options)


def calls(folder: Path) -> list[list[str]]:
    """Return the process and the seed of each call."""
    file = folder / "lines"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    started = study(Path(sys.argv[1]), sys.argv[2]).start()
    waits = threading.Timer(0.3, print, ["waits"], {"flush": True})
    waits.start()
    try:
        started.result()
    finally:
        waits.cancel()
        print(started, flush=True)
