"""One run, and threads that control it and read it at the same time."""

from __future__ import annotations

import _thread
import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentnb import Run, RunFailed, SessionLoop, Store
from agentnb.core.events import Event
from tests.run.agents import Agent, sends
from tests.worlds import facts, output_of, types, until


@pytest.fixture
def _restless() -> Iterator[None]:
    """Let threads switch so often that each can run between any two operations of another."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Failing:
    """A model that fails so many times before it answers."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def stream(self, messages: Any, **options: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise ConnectionError("cut")
        yield {"type": "text_delta", "content": "done"}


def look_on(run: Run, ends: list[str], told: list[list[Event]]) -> None:
    """Read the events of the run repeatedly until it has ended; record how each reading ended."""

    async def read() -> None:
        while not run.state.over:
            events: list[Event] = []
            told.append(events)
            try:
                async for event in run:
                    events += facts([event])
                ends.append(events[-1].type)
            except RunFailed:
                ends.append("failed")

    asyncio.run(read())


@pytest.mark.usefixtures("_restless")
def test_consumers_of_an_immediately_resumed_run_get_the_failure_or_the_end() -> None:
    run = SessionLoop(Failing(30)).start("hi")
    ends: list[str] = []
    told: list[list[Event]] = []
    run.play()
    looking = [threading.Thread(target=look_on, args=(run, ends, told), daemon=True) for _ in range(2)]
    for thread in looking:
        thread.start()
    while not run.state.over:
        run.resume()
    for thread in looking:
        thread.join(30)
    assert set(ends) <= {"failed", "run_end"}
    assert all(events == run.events[: len(events)] for events in told)
    assert run.result(timeout=10) == "done"


async def test_a_pause_withdrawn_at_the_moment_it_takes_effect_leaves_no_pause(tmp_path: Path) -> None:
    run = Agent().loop(sends("a"), "done").start("hi", store=Store(tmp_path / "runs.db"))
    run.play()
    await until(lambda: bool(run.pending))
    for _ in range(3):  # all events are on disk, and the run only waits
        await asyncio.sleep(0)

    def pause_and_resume() -> None:
        with run.lock:
            run.pause()
            time.sleep(0.05)  # the run is about to pause, and waits for the lock; no event shows this
            assert run.resume()

    await asyncio.to_thread(pause_and_resume)
    run.approve("a")
    async with asyncio.timeout(10):
        assert await run == "done"
    assert "run_paused" not in types(run.events)


@pytest.mark.usefixtures("_restless")
def test_calls_can_be_decided_while_the_run_checks_them() -> None:
    ids = [str(number) for number in range(300)]
    run = Agent().loop(sends(*ids), "done").start("hi")
    asked = threading.Event()
    run.watch(lambda event: asked.set() if event.type == "approval_request" and event.call_id == ids[-1] else None)
    run.play()
    assert asked.wait(10)
    for id in ids:
        run.reject(id)
        time.sleep(0)  # lets the run check its calls
    assert run.result(timeout=30) == "done"


def test_ctrl_c_while_the_run_waits_for_another_thread_releases_its_lock() -> None:
    spoken_to = threading.Event()

    class Model:
        async def stream(self, messages: Any, **options: Any) -> Any:
            threading.Thread(target=run.steer, args=("look",)).start()
            spoken_to.wait()
            yield {"type": "stop", "reason": "stop"}

    def keep_the_run_waiting(event: Any) -> None:
        if event.type == "queued":
            spoken_to.set()
            time.sleep(0.05)  # no event shows that the run waits
            _thread.interrupt_main()

    run = SessionLoop(Model()).start("hi")
    run.watch(keep_the_run_waiting)
    loop = asyncio.new_event_loop()
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # it is ignored if the tests run in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(output_of(run))
    finally:
        signal.signal(signal.SIGINT, before)
    another = threading.Thread(target=run.cancel, daemon=True)
    another.start()
    another.join(10)
    assert not another.is_alive()
    loop.close()
