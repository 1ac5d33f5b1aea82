"""The process that is killed: a run of many calls in a store, each of which writes its id to a file.

Run as a warm server: it imports agentnb once and forks a child for each line on its standard input,
because starting Python a hundred times would take longer than everything else.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from agentnb import SessionLoop, Store, tool
from agentnb.testing import ScriptedLLM, call

CALLS = 50
PER_TURN = 10


def make_loop(effects: Path, tool_execution: str, *, answered: int = 0, pace: float = 0.0) -> SessionLoop:
    """Return the loop of the killed process, and of the process that restores its run.

    answered: the number of turns that the model has answered. pace: seconds before and after each effect, times 0 to 3.
    """

    @tool
    async def effect(id: str) -> str:
        await asyncio.sleep(pace * (int(id[1:]) % 4))
        with effects.open("a") as file:
            file.write(f"{id}\n")
        await asyncio.sleep(pace * (int(id[1:]) % 3))
        return f"did {id}"

    turns: list[Any] = [
        [call("effect", {"id": f"c{n}"}, id=f"c{n}") for n in range(first, first + PER_TURN)]
        for first in range(0, CALLS, PER_TURN)
    ]
    llm = ScriptedLLM([*turns, "all done"][answered:])
    return SessionLoop(llm, [effect], tool_execution=tool_execution)  # type: ignore[arg-type]


async def drive(database: str, effects: str, tool_execution: str) -> None:
    await make_loop(Path(effects), tool_execution, pace=0.0005).start("go", name="run", store=Store(database))


def serve() -> None:
    """Fork for every line `database effects tool_execution`; print the process id of the child."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(drive(*line.split()))
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    serve()
