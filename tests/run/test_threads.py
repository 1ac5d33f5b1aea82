"""One run, and threads that control it and look at it at the same moment."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from agentnb import Store
from tests.run.agents import Agent, sends
from tests.worlds import types, until


async def test_a_pause_that_is_taken_back_in_the_moment_it_comes_leaves_none(tmp_path: Path) -> None:
    run = Agent().loop(sends("a"), "done").start("hi", store=Store(tmp_path / "runs.db"))
    run.play()
    await until(lambda: bool(run.pending))
    for _ in range(3):  # what has happened is on disk, and the run only waits
        await asyncio.sleep(0)

    def pause_and_resume() -> None:
        with run.lock:
            run.pause()
            time.sleep(0.05)  # the run comes to where it would pause, and waits for the lock: no event tells of that
            assert run.resume()

    await asyncio.to_thread(pause_and_resume)
    run.approve("a")
    async with asyncio.timeout(10):
        assert await run == "done"
    assert "run_paused" not in types(run.events)
