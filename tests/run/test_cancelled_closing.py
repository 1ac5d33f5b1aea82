"""A closing that is cancelled waits until every `finally` of the run has ended. Only then does it end, as cancelled."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from agentnb import Agent, ExecutionLoop, Loop, LoopAgent, SessionLoop, tool
from agentnb.loops.loop_agent import BaseAgent, InvocationContext
from agentnb.loops.loop_agent import Event as Said
from agentnb.run import tasks
from agentnb.testing import ScriptedLLM, call


async def takes_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def waits_for_futures() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(20):
        future = loop.create_future()
        loop.call_soon(lambda done=future: done.done() or done.set_result(None))
        await future


async def has_a_timeout() -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()


CLEANUPS = [takes_turns, waits_for_futures, has_a_timeout]


class World:
    """A run with one effect, which awaits in its `finally`."""

    def __init__(self, effect: str, cleanup: Callable[[], Awaitable[None]] = takes_turns) -> None:
        self.did: list[str] = []
        self.begun = asyncio.Event()
        self._cleanup = cleanup
        self.run = getattr(self, f"_{effect}")().start("go")

    async def read(self) -> Any:
        """Read the events until the effect has begun; return the iterator."""
        events = aiter(self.run)
        while not self.begun.is_set():
            await anext(events)
        return events

    async def read_on(self) -> None:
        async for _ in self.run:
            pass

    async def wait(self) -> None:
        await self.run

    async def _clean_up(self) -> None:
        self.did.append("cleans up")
        try:
            await self._cleanup()
        finally:  # if it is cancelled again, it still takes a while
            for _ in range(3):
                with suppress(asyncio.CancelledError):
                    await takes_turns()
            self.did.append("is clean")

    async def _work(self) -> None:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            await self._clean_up()

    def model(self) -> Any:
        """Return a model that never ends its answer."""

        class Model:
            async def stream(_, messages: Any, **options: Any) -> AsyncIterator[Any]:
                try:
                    while True:
                        self.begun.set()
                        yield {"type": "text_delta", "content": "a"}
                        await asyncio.sleep(0)
                finally:
                    await self._clean_up()

        return Model()

    def _model(self) -> Loop:
        return SessionLoop(self.model())

    def _silent_model(self) -> Loop:
        """Return a loop whose model never answers."""

        class Model:
            async def stream(_, messages: Any, **options: Any) -> AsyncIterator[Any]:
                await self._work()
                yield {"type": "text_delta", "content": "a"}

        return SessionLoop(Model())

    def _code(self) -> Loop:
        """Return a loop whose own code never ends."""

        class Code(BaseAgent):
            async def _run_async_impl(_, ctx: Any) -> AsyncIterator[Any]:
                try:
                    while True:
                        self.begun.set()
                        yield Said(author="code", content="x")
                finally:
                    await self._clean_up()

        return Code(name="code")

    def _tool(self) -> Loop:
        """Return a loop with two concurrent calls: one ends at once, the other never."""

        @tool
        async def quick() -> None:
            await self.begun.wait()

        @tool
        async def work() -> None:
            await self._work()

        calls = [call("work", {}, id="a"), call("quick", {}, id="b")]
        return SessionLoop(ScriptedLLM([calls, "done"]), [quick, work])

    def _nested_tool(self) -> Loop:
        inner = self._tool()
        inner.name = "inner"
        return SessionLoop(ScriptedLLM([[call("inner", {"input": "x"}, id="c")], "done"]), [inner])


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.parametrize("effect", ["model", "code", "tool", "nested_tool"])
@pytest.mark.parametrize("how", ["error", "break"])
def test_the_end_of_the_event_loop_waits_for_the_closing_of_a_left_iterator(
    how: str, effect: str, cleanup: Callable[[], Awaitable[None]]
) -> None:
    world: Any = None

    async def main() -> None:
        nonlocal world
        world = World(effect, cleanup)
        async for _ in world.run:
            if world.begun.is_set():
                if how == "break":
                    return
                raise ValueError("mine")

    with suppress(ValueError):
        asyncio.run(main())
    assert world.did == ["cleans up", "is clean"]
    assert world.run.stop_reason == "cancelled"


STREAMS: dict[str, Callable[[Any], AsyncIterator[Any]]] = {
    "session": lambda model: SessionLoop(model).run("go"),
    "agent": lambda model: Agent(model).execute("go"),
    "agent with a token": lambda model: Agent(model).execute("go", lambda: False),
    "executor": lambda model: Agent(model).executor.execute_stream([{"role": "user", "content": "go"}]),
    "execution": lambda model: ExecutionLoop(model, native=True).run("go"),
    "loop agent": lambda model: LoopAgent("l", [SessionLoop(model)], max_iterations=1).run_async(InvocationContext()),
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_end_of_the_event_loop_waits_for_the_closing_of_a_left_stream(name: str) -> None:
    world: Any = None

    async def main() -> None:
        nonlocal world
        world = World("model")
        async for _ in STREAMS[name](world.model()):
            await turns(5)  # some streams read ahead
            if world.begun.is_set():
                raise ValueError("mine")

    with suppress(ValueError):
        asyncio.run(main())
    assert world.did == ["cleans up", "is clean"]


@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_closing_of_a_stream_that_is_cancelled_ends_as_cancelled_after_every_finally(
    name: str, after: int
) -> None:
    world = World("model")
    stream: Any = aiter(STREAMS[name](world.model()))
    while not world.begun.is_set():
        await anext(stream)
        await turns(5)  # some streams read ahead
    # The task of the event loop that closes an abandoned generator calls `aclose` of the generator itself.
    closing = asyncio.create_task(getattr(stream, "_events", stream).aclose())
    await turns(after)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert world.did == ["cleans up", "is clean"]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.parametrize("effect", ["model", "code", "tool", "nested_tool"])
async def test_a_closing_that_is_cancelled_ends_as_cancelled_after_every_finally(
    effect: str, cleanup: Callable[[], Awaitable[None]], after: int, times: int
) -> None:
    world = World(effect, cleanup)
    closing = asyncio.create_task((await world.read()).aclose())
    for _ in range(times):
        await turns(after)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert world.did == ["cleans up", "is clean"]
    assert world.run.stop_reason == "cancelled"
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.parametrize("effect", ["silent_model", "tool", "nested_tool"])
@pytest.mark.parametrize("drives", [World.read_on, World.wait])
async def test_a_caller_that_is_cancelled_twice_ends_as_cancelled_after_every_finally(
    drives: Callable[[World], Any], effect: str, cleanup: Callable[[], Awaitable[None]]
) -> None:
    world = World(effect, cleanup)
    caller = asyncio.create_task(drives(world))
    await world.begun.wait()
    await turns(5)
    for _ in range(2):
        caller.cancel()
        await turns(5)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert world.did == ["cleans up", "is clean"]
    assert world.run.stop_reason == "cancelled"
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("effect", ["silent_model", "tool", "nested_tool"])
async def test_a_consumer_that_is_cancelled_while_a_cancelled_run_ends_is_cancelled(effect: str) -> None:
    world = World(effect)
    consumer = asyncio.create_task(world.read_on())
    await world.begun.wait()
    await turns(5)
    world.run.cancel()
    await turns(5)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert world.did == ["cleans up", "is clean"]


@pytest.mark.parametrize("effect", ["model", "code", "tool", "nested_tool"])
async def test_a_cancelled_closing_does_not_wait_longer_than_others(
    effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "CLOSE_SECONDS", 0.1)
    may_end = asyncio.Event()

    async def hangs() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    world = World(effect, hangs)
    closing = asyncio.create_task((await world.read()).aclose())
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            await turns(5)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert 0.05 < time.monotonic() - begun < 20
    assert ["has not ended" in str(warning.message) for warning in caught] == [True]
    may_end.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert world.did == ["cleans up", "is clean"]


async def test_a_cancelled_closing_waits_for_a_function_in_a_thread() -> None:
    begun, did = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    @tool
    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.2)
        did.append("ended")

    run = SessionLoop(ScriptedLLM([[call("work", {}, id="a")], "done"]), [work]).start("go")

    async def read() -> None:
        async for _ in run:
            pass

    consumer = asyncio.create_task(read())
    await begun.wait()
    for _ in range(2):
        consumer.cancel()
        await turns(5)
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert did == ["ended"]
