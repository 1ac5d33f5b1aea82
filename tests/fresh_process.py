"""A process without knowledge of a run: it restores a snapshot from its file, runs to the end, and prints the result.

Run as a warm server: it imports agentnb once and forks a child for each line `world snapshot answers` on its standard
input, because starting Python for every event of every design would take longer than everything else.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema  # noqa: F401 - takes a fifth of a second, which the children are to find done

from agentnb import Snapshot, restore
from tests.designs import WORLDS


async def go_on(world: str, snapshot: str, answers: dict[str, Any]) -> dict[str, Any]:
    """Finish a run; answer calls of unknown outcome with their results in the uninterrupted run."""
    run = restore(Snapshot.load(snapshot), WORLDS[world]())
    run.play()
    async with asyncio.timeout(60):
        while not run.state.over:
            for item in run.pending:
                if item.unknown:
                    run.answer(item, answers[f"{item.path}/{item.id.rpartition('/')[2]}"])
                else:
                    run.approve(item)
            await asyncio.sleep(0)
    return {"reason": run.stop_reason, "output": run.output, "events": len(run.events)}


def serve() -> None:
    """Fork for every line; each child prints a line of JSON."""
    for line in sys.stdin:
        if os.fork() == 0:
            world, snapshot, answers = line.split()
            said = asyncio.run(go_on(world, snapshot, json.loads(Path(answers).read_text())))
            print(json.dumps(said), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    serve()
