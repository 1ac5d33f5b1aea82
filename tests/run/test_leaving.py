"""The driver of a run may leave it: other consumers continue the run; it is cancelled when the last one leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from agentnb import Run, RunCancelled, SessionLoop, tool
from agentnb.testing import ScriptedLLM, call
from tests.worlds import assert_one_terminal_event_last, output_of


class World:
    """A run with one call, which output_of until `may_end` is set."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.did: list[str] = []

        @tool
        async def hold() -> str:
            self.did.append("began")
            self.begun.set()
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.did.append("was cancelled")
                raise
            self.did.append("ended")
            return "held"

        self.llm = ScriptedLLM([[call("hold", {}, id="c")], "done"])
        self.run = SessionLoop(self.llm, [hold]).start("go")

    async def goes_on_for(self, other: asyncio.Task[Any]) -> None:
        """Let the call end; check that the other consumer reaches the end, and that everything has happened once."""
        self.may_end.set()
        assert await asyncio.wait_for(other, 10) == "done"
        assert self.did == ["began", "ended"]
        assert self.run.stop_reason == "completed"
        assert_one_terminal_event_last(self.run.events)


async def reads(run: Run) -> Any:
    async for event in run:
        if event.type == "run_end":
            return event.output  # type: ignore[union-attr]  # the end is no delta
    return None


async def blocks(run: Run) -> Any:
    return await asyncio.to_thread(run.result, 10)


async def steps(run: Run) -> Any:
    while run.stop_reason is None:
        await run.step("turn")
    return run.output


Drive = Callable[[Run], Coroutine[Any, Any, Any]]


async def joined(world: World, *ways: Drive) -> list[asyncio.Task[Any]]:
    """Tasks that read the run, or wait for it, in this order; the first of them drives."""
    tasks = []
    for way in ways:
        tasks.append(asyncio.create_task(way(world.run)))
        await world.begun.wait()
        for _ in range(5):  # until it waits for the output
            await asyncio.sleep(0)
    return tasks


async def left(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("other", [reads, output_of, blocks])
@pytest.mark.parametrize("driver", [reads, output_of, steps])
async def test_another_consumer_continues_when_the_driver_is_cancelled(driver: Drive, other: Drive) -> None:
    world = World()
    first, second = await joined(world, driver, other)
    if other is blocks:
        await asyncio.sleep(0.05)  # until the thread output_of
    await left(first)
    await world.goes_on_for(second)


async def test_the_last_consumer_reaches_the_end_when_others_leave() -> None:
    world = World()
    first, second, third = await joined(world, reads, reads, output_of)
    await left(first)
    await left(second)
    await world.goes_on_for(third)


@pytest.mark.parametrize("position", range(1, 10))
async def test_another_consumer_gets_every_event_when_the_driver_is_closed_at_any_event(position: int) -> None:
    world = World()
    world.may_end.set()
    events = aiter(world.run)
    for _ in range(position):
        await anext(events)
    seen: list[Any] = []

    async def read() -> None:
        seen.extend([event async for event in world.run if event.seq is not None])

    other = asyncio.create_task(read())
    await asyncio.sleep(0)
    await events.aclose()  # type: ignore[attr-defined]  # it is a generator
    await asyncio.wait_for(other, 10)
    assert seen == list(world.run.events)
    assert world.run.output == "done"
    assert [event.type for event in seen].count("model_start") == 2  # no request was sent twice


@pytest.mark.parametrize(
    ("driver", "other"), [(reads, reads), (reads, output_of), (output_of, reads), (output_of, output_of)]
)
async def test_the_run_is_cancelled_when_the_last_consumer_leaves(driver: Drive, other: Drive) -> None:
    world = World()
    first, second = await joined(world, driver, other)
    await left(first)
    assert world.run.stop_reason is None
    await left(second)
    assert world.run.stop_reason == "cancelled"
    assert world.did == ["began", "was cancelled"]


async def test_a_consumer_that_does_not_drive_may_leave() -> None:
    world = World()
    first, second = await joined(world, output_of, reads)
    await left(second)
    await world.goes_on_for(first)


async def test_a_background_run_continues_without_consumers() -> None:
    world = World()
    world.run.play()
    (reader,) = await joined(world, reads)
    await left(reader)
    await world.goes_on_for(asyncio.create_task(output_of(world.run)))


def test_another_consumer_continues_in_its_event_loop_when_that_of_the_driver_has_ended() -> None:
    made: list[Run] = []
    read: list[Any] = []

    async def first() -> None:
        run = SessionLoop(ScriptedLLM(["done"])).start("go")
        made.append(run)
        events = aiter(run)
        await anext(events)
        other = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(second(run))))
        await asyncio.sleep(0.05)
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        await asyncio.wait_for(other, 10)

    async def second(run: Run) -> None:
        read.append(await reads(run))

    asyncio.run(first())
    assert read == ["done"]
    assert made[0].stop_reason == "completed"


@tool
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


async def test_code_that_cancels_the_task_it_runs_in_does_not_cancel_the_caller() -> None:
    run = SessionLoop(ScriptedLLM([[call("cancels_itself", {})], "done"]), [cancels_itself]).start("go")
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(run, 10)


async def test_code_that_cancels_the_task_that_drives_ends_the_run_for_all_who_wait_for_it() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    @tool
    async def cancels_itself() -> None:
        begun.set()
        await goes_on.wait()
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    run = SessionLoop(ScriptedLLM([[call("cancels_itself", {})], "done"]), [cancels_itself]).start("go")
    waiting = [asyncio.create_task(output_of(run)) for _ in range(2)]
    await begun.wait()
    reading = asyncio.create_task(reads(run))
    await asyncio.sleep(0)
    goes_on.set()
    for one in waiting:
        with pytest.raises(RunCancelled):
            await asyncio.wait_for(one, 10)
    await asyncio.wait_for(reading, 10)
    assert "approval_request" not in [event.type for event in run.events]


@pytest.mark.parametrize("way", [reads, steps])
async def test_a_call_that_cancels_its_own_task_has_failed_and_nobody_is_asked(way: Drive) -> None:
    run = SessionLoop(ScriptedLLM([[call("cancels_itself", {})], "done"]), [cancels_itself]).start("go")
    assert await asyncio.wait_for(way(run), 10) == "done"
    (end,) = [event for event in run.events if event.type == "call_end"]
    assert "has cancelled the task that it ran in" in end.result  # type: ignore[attr-defined]
    assert end.outcome == "raised"  # type: ignore[attr-defined]
    assert "approval_request" not in [event.type for event in run.events]


async def test_a_consumer_that_has_looked_on_may_wait_for_the_run_that_is_left_to_it() -> None:
    world = World()
    first = aiter(world.run)
    await anext(first)

    async def reads_and_awaits() -> Any:
        async for _ in world.run:
            return await world.run
        return None

    second = asyncio.create_task(reads_and_awaits())
    await asyncio.sleep(0)
    await first.aclose()  # type: ignore[attr-defined]  # it is a generator
    await world.goes_on_for(second)


async def test_a_run_with_a_call_in_another_event_loop_is_played_there() -> None:
    world, may_end = World(), threading.Event()

    async def step_and_stay() -> None:
        while not world.begun.is_set():
            await world.run.step()
            await asyncio.sleep(0)
        stepped.set()
        await asyncio.to_thread(may_end.wait, 10)
        world.may_end.set()
        await world.run

    stepped = threading.Event()
    there = asyncio.create_task(asyncio.to_thread(asyncio.run, step_and_stay()))
    await asyncio.to_thread(stepped.wait, 10)
    world.run.play()
    await asyncio.sleep(0.05)  # here it would treat the call as lost, and request a decision
    may_end.set()
    await there
    assert world.run.output == "done"
    assert world.did == ["began", "ended"]
    assert "approval_request" not in [event.type for event in world.run.events]


async def test_a_tool_may_limit_its_own_time_and_cancel_its_own_tasks() -> None:
    async def fails() -> None:
        raise ValueError

    @tool
    async def careful() -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                await asyncio.sleep(10)
        except* ValueError:
            pass
        return "went on"

    run = SessionLoop(ScriptedLLM([[call("careful", {})], "done"]), [careful]).start("go")
    assert await run == "done"
    assert [event.result for event in run.events if event.type == "call_end"] == ["went on"]  # type: ignore[union-attr]
