"""Whoever waits for a run comes back within 2 s of its end; what has not ended then is named and left behind."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentnb import LimitReached, Loop, Run, RunCancelled, SessionLoop, tool
from agentnb.loops.loop_agent import BaseAgent
from agentnb.loops.loop_agent import Event as Said
from agentnb.testing import ScriptedLLM, call
from tests.worlds import assert_one_terminal_event_last

WITHIN = 4.0
"""2 s, and what a busy machine takes."""


def _a_tool(puts_away: Callable[[], Any]) -> Loop:
    @tool
    async def immortal() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await puts_away()

    return SessionLoop(ScriptedLLM([[call("immortal", {}, id="c")], "done"]), [immortal])


def _a_nested_tool(puts_away: Callable[[], Any]) -> Loop:
    inner = _a_tool(puts_away)
    inner.name = "inner"
    return SessionLoop(ScriptedLLM([[call("inner", {"input": "x"}, id="c")], "done"]), [inner])


def _a_model(puts_away: Callable[[], Any]) -> Loop:
    class Model:
        async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
            try:
                yield {"type": "text_delta", "content": "a"}
                await asyncio.Event().wait()
            finally:
                await puts_away()

    return SessionLoop(Model())


def _a_step_of_its_own(puts_away: Callable[[], Any]) -> Loop:
    class Code(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Any]:
            try:
                yield Said(author=self.name, content="x")
                await asyncio.Event().wait()
            finally:
                await puts_away()

    return Code(name="code")


MADE = {
    "tool": (_a_tool, "immortal"),
    "nested tool": (_a_nested_tool, "immortal"),
    "model": (_a_model, "model"),
    "step of its own": (_a_step_of_its_own, "code"),
}


async def follow(run: Run) -> None:
    async for _ in run:
        pass


async def wait(run: Run) -> None:
    with pytest.raises((RunCancelled, LimitReached)):
        await run


async def play(run: Run) -> None:
    run.play()
    await wait(run)


async def step(run: Run) -> None:
    while run.stop_reason is None:
        await run.step()


@pytest.mark.parametrize("swallows", [True, False])
async def test_whoever_waits_for_a_run_comes_back_soon_after_its_end(swallows: bool) -> None:
    may_end = asyncio.Event()

    async def puts_away() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                if not swallows:
                    raise

    async def run_and_cancel(make: Callable[..., Loop], drive: Callable[..., Any], limits: Any) -> float:
        run = make(puts_away).start("go", limits=limits)
        driving = asyncio.create_task(drive(run))
        await asyncio.sleep(0.3)
        ended = time.monotonic()
        if limits is None:
            run.cancel()
        await driving
        assert_one_terminal_event_last(run.events)
        return time.monotonic() - ended

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        took = await asyncio.gather(  # together, as each takes 2 s
            *(
                run_and_cancel(make, drive, limits)
                for make, _ in MADE.values()
                for drive in (follow, wait, play, step)
                for limits in (None, {"seconds": 0.3})
                if drive in (follow, wait) or limits is None
            ),
            return_exceptions=True,
        )
        may_end.set()
    assert [error for error in took if isinstance(error, BaseException)] == []
    assert max(took, default=0) < WITHIN
    said = [str(warning.message) for warning in caught]
    assert [name for _, name in MADE.values() if not any(name in words for words in said)] == []


@pytest.mark.parametrize("drive", [follow, wait, play, step])
@pytest.mark.parametrize("made", MADE)
async def test_clean_up_that_ends_in_time_has_run(made: str, drive: Callable[..., Any]) -> None:
    did: list[str] = []

    async def puts_away() -> None:
        await asyncio.sleep(0.02)
        did.append("put away")

    make, _ = MADE[made]
    run = make(puts_away).start("go")
    driving = asyncio.create_task(drive(run))
    await asyncio.sleep(0.05)  # until it waits
    run.cancel()
    await driving
    assert did == ["put away"]
