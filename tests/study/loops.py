"""Loops for the tests of studies, and the process that is killed in the middle of one.

Models answer by the messages, not by a position, so that a process that continues a run gets the same answers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import agentnb
from agentnb import SessionLoop, Store, tool
from agentnb.llms import Cached
from agentnb.studies import Study
from agentnb.testing import ScriptedLLM, call

CALLS = 4


@tool(approve=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


def asking(model: str = "a") -> SessionLoop:
    """Return a loop that asks about one call, and ends."""

    def answer(messages: Sequence[Any]) -> Any:
        return f"{model} is done" if messages[-1]["role"] == "tool" else call("send", {"to": model})

    return SessionLoop(ScriptedLLM([answer], repeat=True), [send])


def talking(model: str = "a") -> SessionLoop:
    """Return a loop that answers once."""
    return SessionLoop(ScriptedLLM([f"{model} is done"]), [])


class Chance:
    """A model that gives a new answer to each request, in each process."""

    model = "chance"

    async def stream(self, messages: Any, **_: Any) -> AsyncIterator[Any]:
        yield {"type": "text_delta", "content": uuid4().hex}


def from_a_file(path: str) -> SessionLoop:
    """Return a loop whose answers are kept in a file."""
    return SessionLoop(Cached(Chance(), path))


def seeded(model: str, seed: int) -> SessionLoop:
    """Return a loop whose calls and output depend on its seed."""
    turns = seed % 4

    def answer(messages: Sequence[Any]) -> Any:
        done = sum(message["role"] == "tool" for message in messages)
        return (
            f"{model} {seed % 11}" if done == turns else call("send", {"to": f"{model} {seed} {done}"}, id=f"c{done}")
        )

    return SessionLoop(ScriptedLLM([answer], repeat=True), [send])


def writing(file: Path, hang_after: int | None = None) -> Any:
    """Return a factory of loops that each write `CALLS` lines to a file, one call a turn.

    hang_after: once the file has so many lines, each call writes its line and does not return.
    """

    def make_loop(model: str, seed: int) -> SessionLoop:
        @tool(idempotent=False)
        async def write(line: str) -> str:
            with file.open("a") as open_file:
                open_file.write(f"{line}\n")
            if hang_after is not None and _lines_in(file) >= hang_after:
                await asyncio.Event().wait()
            return line

        def answer(messages: Sequence[Any]) -> Any:
            done = sum(message["role"] == "tool" for message in messages)
            return "done" if done == CALLS else call("write", {"line": f"{model} {seed} {done}"}, id=f"c{done}")

        return SessionLoop(ScriptedLLM([answer], repeat=True), [write])

    return make_loop


def _lines_in(file: Path) -> int:
    return len(file.read_text().splitlines())


def written_study(database: Path, file: Path, hang_after: int | None = None) -> Study:
    """Return the study of the killed process, and of the process that continues it."""
    return agentnb.study(
        writing(file, hang_after),
        ["go"],
        repeats=10,
        arms={"model": ["small", "large"]},
        store=Store(database),
        name="written",
        at_once=4,
        progress=False,
    )


async def drive(database: str, file: str, hang_after: str) -> None:
    await written_study(Path(database), Path(file), int(hang_after))


if __name__ == "__main__":
    asyncio.run(drive(*sys.argv[1:]))
