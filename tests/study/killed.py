"""A study whose workers are killed in the middle, and the checks that nothing was repeated and nothing lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import agentnb
from agentnb import SessionLoop, Store, tool
from agentnb.errors import AlreadyDecided, WorkersLost
from agentnb.studies import Study
from agentnb.testing import ScriptedLLM, call

CALLS = 4


def working(file: Path, seconds: float = 0.02) -> Any:
    """Return a factory of loops that each write `CALLS` lines to a file, with the process that writes each."""

    def make_loop(model: str, seed: int) -> SessionLoop:
        @tool(idempotent=False)
        async def write(line: str) -> str:
            with file.open("a") as open_file:
                open_file.write(f"{os.getpid()} {line}\n")
            await asyncio.sleep(seconds)  # here most are killed: the line is written, and the result is not recorded
            return line

        def answer(messages: Any) -> Any:
            done = sum(message["role"] == "tool" for message in messages)
            return "done" if done == CALLS else call("write", {"line": f"{model}-{seed}-{done}"}, id=f"c{done}")

        return SessionLoop(ScriptedLLM([answer], repeat=True), [write])

    return make_loop


def lines_in(file: Path) -> list[tuple[int, str]]:
    """Return the process and the text of each line."""
    text = file.read_text() if file.exists() else ""
    return [(int(pid), line) for pid, _, line in (line.partition(" ") for line in text.splitlines())]


def working_study(folder: Path, executor: Any, repeats: int = 10, seconds: float = 0.02) -> Study:
    """Return a study of `2 * repeats` runs, which write to a file in the folder."""
    return agentnb.study(
        working(folder / "lines", seconds),
        ["go"],
        repeats,
        arms={"model": ["small", "large"]},
        store=Store(folder / "runs.db"),
        name="killed",
        executor=executor,
        progress=False,
    )


async def killed_study(folder: Path, executor: Any, kills: int, repeats: int = 10, seconds: float = 0.02) -> Study:
    """Drive a study while workers are killed, and return it after all runs have ended and were checked."""
    file = folder / "lines"
    study = working_study(folder, executor, repeats, seconds).start()
    every = 2 * repeats * CALLS // (kills + 1)
    killed, unknown = 0, 0
    while (future := study._future) is not None and not future.done():
        lines = lines_in(file)
        if killed < kills and len(lines) >= (killed + 1) * every:
            pid = lines[-1][0]
            with suppress(ProcessLookupError):  # it was ended with the other ones of its pool
                os.kill(pid, signal.SIGKILL)
                killed += 1
        for item in study.pending:  # a call whose outcome is unknown: the file says whether it happened
            assert item.unknown
            unknown += 1
            happened = item.arguments["line"] in [line for _, line in lines_in(file)]
            with suppress(AlreadyDecided, WorkersLost):  # its worker has been ended meanwhile: it is asked about again
                study.answer(item, item.arguments["line"]) if happened else study.approve(item)
        await asyncio.sleep(0.005)
    await study
    assert killed == kills
    assert unknown > 0
    assert study.counts["done"] == 2 * repeats
    expected = Counter(f"{run.arm['model']}-{run.seed}-{n}" for run in study for n in range(CALLS))
    assert Counter(line for _, line in lines_in(file)) == expected
    assert study.store is not None
    assert len({run.id for run in study}) == 2 * repeats
    assert len([info for info in study.store.find(tag="study:killed") if info.events]) == 2 * repeats
    return study


if __name__ == "__main__":  # a notebook's process, which ends in the middle, or is killed
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    study = working_study(Path(sys.argv[1]), pool, seconds=0.2).start()
    while len(lines_in(Path(sys.argv[1]) / "lines")) < int(sys.argv[2]):
        time.sleep(0.01)
