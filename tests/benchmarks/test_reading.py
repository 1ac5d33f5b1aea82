"""To read an answer twice as long takes twice as long: its texts, its calls, and what a small model wraps them in."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentnb import ExecutionLoop, SessionLoop, tool
from agentnb.llms.schema_tools import ReplyReader
from agentnb.testing import ScriptedLLM, call

GROWS = 8
"""Four times as much may take eight times as long, where other things are measured too; squared it would be sixteen."""


@tool
async def good(n: int = 0, s: str = "") -> int:
    return n


class Streaming:
    """Answers with a text in pieces, and then with the end."""

    def __init__(self, text: str) -> None:
        self._answers = [text, '{"calls": [], "output": "done"}']

    async def stream(self, messages: Any, **options: Any) -> Any:
        text = self._answers.pop(0)
        for at in range(0, len(text), 50):
            yield {"type": "text_delta", "content": text[at : at + 50]}


def growth(make: Callable[[int], Callable[[], object]], size: int) -> float:
    def least(size: int) -> float:
        times = []
        for _ in range(3):
            do = make(size)
            began = time.process_time()
            do()
            times.append(time.process_time() - began)
        return min(times)

    return least(4 * size) / least(size)


def executed(text: str) -> Callable[[], object]:
    async def run() -> None:
        await ExecutionLoop(Streaming(text), [good], max_requests=2).start(None)

    return lambda: asyncio.run(run())


def a_long_text(size: int) -> Callable[[], object]:
    return executed(json.dumps({"calls": [{"_tool": "good", "s": "x" * size}], "output": "o"}))


def many_calls(size: int) -> Callable[[], object]:
    return executed(json.dumps({"calls": [{"_tool": "good", "n": 1}] * (size // 300), "output": "o"}))


def many_calls_one_by_one(size: int) -> Callable[[], object]:
    made = [call("good", {"n": 1}, id=f"c{n}") for n in range(size // 300)]

    async def run() -> None:
        await SessionLoop(ScriptedLLM([made, "done"]), [good], tool_execution="sequential").start("go")

    return lambda: asyncio.run(run())


def wrapped(text: str) -> Callable[[], object]:
    def read() -> None:
        reader = ReplyReader(["good"])
        for at in range(0, len(text), 50):
            reader.feed(text[at : at + 50])
        reader.finish("stop")

    return read


def fences_that_do_not_close(size: int) -> Callable[[], object]:
    return wrapped("```{" * (size // 4))


def tags_that_do_not_close(size: int) -> Callable[[], object]:
    return wrapped("<tool_call>{} " * (size // 14))


def words_behind_an_answer(size: int) -> Callable[[], object]:
    return wrapped('{"answer": "x"}' + " and" * (size // 4))


@pytest.mark.parametrize(
    "make",
    [
        a_long_text,
        many_calls,
        many_calls_one_by_one,
        fences_that_do_not_close,
        tags_that_do_not_close,
        words_behind_an_answer,
    ],
)
def test_an_answer_four_times_as_long_takes_no_more_than_that(make: Callable[[int], Callable[[], object]]) -> None:
    assert growth(make, 150_000) < GROWS
