from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from agentnb import Loop, Run, RunCancelled, RunFailed, SessionLoop, UsageError, tool
from agentnb.core.events import Delta
from agentnb.loops.loop_agent import BaseAgent
from agentnb.loops.loop_agent import Event as Said
from agentnb.run import environment, ownership
from agentnb.testing import ScriptedLLM, call, delay, text
from tests.run.agents import Agent, sends
from tests.worlds import (
    asks,
    assert_folds,
    assert_one_terminal_event_last,
    collect,
    facts,
    finished_calls,
    output_of,
    provider_faults,
    running_tasks,
    says,
    types,
    until,
)


async def test_a_consumer_drives_a_run_without_a_driver() -> None:
    run = Agent().two_turns().start("hi")
    events = facts(await collect(run))
    assert events == run.events
    assert_one_terminal_event_last(events)
    assert run.output == "done"
    assert running_tasks() == set()


async def test_no_event_follows_the_end_of_a_run_that_its_model_cancels() -> None:
    class Model:
        async def stream(self, messages: Any, **options: Any) -> Any:
            yield {"type": "text_delta", "content": "one"}
            run.cancel()
            yield {"type": "text_delta", "content": "two"}

    run = SessionLoop(Model()).start("hi")
    assert [event.type for event in await collect(run)][-3:] == ["text_delta", "cancel", "run_end"]


async def test_a_run_advances_only_when_its_consumer_requests_events() -> None:
    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi")
    async with aclosing(aiter(run)) as events:
        async for event in events:
            if event.type == "model_end":
                await asyncio.sleep(0.01)
                assert agent.ran == []
                break
    assert agent.ran == []


async def test_every_consumer_gets_every_event_in_order() -> None:
    agent = Agent()
    run = agent.loop(asks("hold", "b"), "done").start("hi")
    run.play()
    first = asyncio.create_task(collect(run))
    second = asyncio.create_task(collect(run))
    await agent.holding.wait()
    late = asyncio.create_task(collect(run))
    agent.release.set()
    seen = [facts(await task) for task in (first, second, late)]
    assert seen == [run.events] * 3
    assert facts(await collect(run)) == run.events  # and one that is added after the end
    assert running_tasks() == set()


async def test_a_late_consumer_gets_no_deltas_of_past_answers() -> None:
    run = Agent().loop("one two three").start("hi")
    early = await collect(run)
    late = await collect(run)
    assert [event.content for event in early if isinstance(event, Delta)] == ["one", " two", " three"]
    assert facts(late) == late == run.events


async def test_a_consumer_added_during_a_step_gets_the_end() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "one", "two").start("hi")
    run.follow_up("F")
    step = asyncio.create_task(run.step("turn"))
    await agent.holding.wait()
    watching = asyncio.create_task(collect(run))
    await asyncio.sleep(0)
    agent.release.set()
    await step
    async with asyncio.timeout(60):
        while await run.step("turn"):
            pass
        assert facts(await watching) == run.events


async def test_a_consumer_in_another_thread_gets_every_event() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    run.play()
    seen = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(collect(run))))
    await agent.holding.wait()
    agent.release.set()
    async with asyncio.timeout(60):
        assert facts(await seen) == run.events


@pytest.mark.parametrize("position", range(14))
async def test_closing_a_consumer_at_any_event_cancels_the_run_and_all_tasks(position: int) -> None:
    agent = Agent()
    run = agent.loop(says("well now", *asks("hold", "b")), "never").start("hi")
    async with asyncio.timeout(60), aclosing(aiter(run)) as events:
        for _ in range(position):
            event = await anext(events)
            if event.type == "call_end":
                break
    assert running_tasks() == set()
    assert agent.closed == [value for value in agent.ran if value == "hold"]
    if run.events:
        assert_one_terminal_event_last(run.events)
        assert run.stop_reason == "cancelled"
    assert provider_faults(run.messages) == []
    assert_folds(run)


async def test_closing_a_consumer_during_an_answer_closes_the_stream_of_the_model() -> None:
    closed: list[str] = []

    class Model:
        async def stream(self, messages: Any, **options: Any) -> Any:
            try:
                while True:
                    yield {"type": "text_delta", "content": "x"}
                    await asyncio.sleep(0)
            finally:
                await asyncio.sleep(0)
                closed.append("stream")

    loop = Agent().loop()
    loop.llm = Model()
    run = loop.start("hi")
    async with aclosing(aiter(run)) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
    assert closed == ["stream"]
    assert run.stop_reason == "cancelled"


def hangs_in_its_model(hangs: asyncio.Event) -> Loop:
    class Model:
        async def stream(self, messages: Any, **options: Any) -> Any:
            yield {"type": "text_delta", "content": "x"}
            hangs.set()
            await asyncio.Event().wait()

    return SessionLoop(Model())


def hangs_in_its_code(hangs: asyncio.Event) -> Loop:
    class Code(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> Any:
            yield Said(author=self.name, content="x")
            hangs.set()
            await asyncio.Event().wait()

    return Code(name="code")


@pytest.mark.parametrize("make", [hangs_in_its_model, hangs_in_its_code])
async def test_cancelling_a_consumer_with_a_task_for_each_event_cancels_the_run(
    make: Callable[[asyncio.Event], Loop],
) -> None:
    hangs = asyncio.Event()
    run = make(hangs).start("hi")
    events = aiter(run)

    async def take() -> None:
        await anext(events)

    hung = asyncio.create_task(hangs.wait())
    taking = asyncio.create_task(take())
    while not hung.done():
        await asyncio.wait([taking, hung], return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            taking.result()
            taking = asyncio.create_task(take())
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert run.stop_reason == "cancelled"


async def test_closing_a_consumer_does_not_interrupt_the_cleanup_of_a_tool() -> None:
    begun, stopped, may_end, done = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def hold() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()
            await may_end.wait()
            done.append("put away")

    async def read(run: Run) -> None:
        async for _ in run:
            pass

    run = SessionLoop(ScriptedLLM([[call("hold")]]), [hold]).start("hi")
    reader = asyncio.create_task(read(run))
    await begun.wait()
    run.cancel()
    await stopped.wait()
    reader.cancel()
    for _ in range(10):  # let it reach the point where it waits for the tool
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert done == ["put away"]


async def test_a_tool_whose_own_timeout_has_expired_can_be_cancelled() -> None:
    late = asyncio.Event()

    @tool
    async def hold() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                try:
                    await asyncio.Event().wait()
                finally:
                    late.set()
                    await asyncio.Event().wait()

    run = SessionLoop(ScriptedLLM([[call("hold"), call("hold")]]), [hold]).start("hi")
    run.play()
    await late.wait()
    run.cancel()
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(run, 10)


async def test_closing_a_consumer_that_does_not_drive_does_not_end_the_run() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    async with aclosing(aiter(run)) as events:
        await anext(events)
    agent.release.set()
    assert await run == "done"


async def test_cancelling_the_task_that_awaits_a_run_cancels_the_run() -> None:
    agent = Agent()
    run = agent.loop(asks("hold", "b")).start("hi")
    waiting = asyncio.create_task(output_of(run))
    await agent.holding.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert run.stop_reason == "cancelled"
    assert agent.closed == ["hold"]
    assert running_tasks() == set()
    assert provider_faults(run.messages) == []


@pytest.mark.parametrize("drive", ["await", "consume", "play", "step"])
async def test_a_cancellation_records_a_result_for_every_call_immediately(drive: str) -> None:
    agent = Agent()
    run = agent.loop(asks("hold", "b")).start("hi")
    driving = asyncio.create_task(
        {"await": output_of, "consume": collect, "play": _play, "step": lambda run: run.step("turn")}[drive](run)
    )
    await agent.holding.wait()
    await until(lambda: "b" in finished_calls(run.events))
    assert run.cancel("enough")
    assert [m.tool_call_id for m in run.messages if m.role == "tool"] == ["hold", "b"]
    assert run.messages[-2].content == "Operation aborted"
    assert run.stop_reason == "cancelled"
    async with asyncio.timeout(60):
        await asyncio.gather(driving, return_exceptions=True)
        with pytest.raises(RunCancelled, match="enough"):
            await run
    assert agent.closed == ["hold"]
    assert_one_terminal_event_last(run.events)
    assert running_tasks() == set()


async def _play(run: Any) -> None:
    run.play()
    await collect(run)


async def test_a_run_can_be_cancelled_from_another_thread() -> None:
    agent = Agent()
    run = agent.loop(asks("hold")).start("hi")
    waiting = asyncio.create_task(output_of(run))
    await agent.holding.wait()
    assert await asyncio.to_thread(run.cancel, "from afar")
    async with asyncio.timeout(60):
        with pytest.raises(RunCancelled, match="from afar"):
            await waiting
    assert agent.closed == ["hold"]


@pytest.mark.parametrize("drive", [output_of, collect, _play])
async def test_a_tool_that_cancels_its_own_run_keeps_its_result(drive: Any) -> None:
    @tool
    async def stop() -> str:
        run.cancel("enough")
        await asyncio.sleep(0.001)
        return "stopped it"

    agent = Agent()
    agent.tools.append(stop)
    run = agent.loop([{"type": "tool_call", "id": "s", "name": "stop"}]).start("hi")
    async with asyncio.timeout(60):
        await asyncio.gather(drive(run), return_exceptions=True)
    assert run.messages[-1].content == "stopped it"
    assert run.stop_reason == "cancelled"
    assert_one_terminal_event_last(run.events)


async def test_a_sync_tool_that_cancels_its_own_run_keeps_its_result() -> None:
    @tool
    def stop() -> str:
        run.cancel("enough")
        return "stopped it"

    agent = Agent()
    agent.tools.append(stop)
    run = agent.loop([{"type": "tool_call", "id": "s", "name": "stop"}]).start("hi")
    with pytest.raises(RunCancelled):
        await run
    assert run.messages[-1].content == "stopped it"


def waiting_for_its_own_run(*tools: Any) -> Run:
    agent = Agent()
    agent.tools.extend(tools)
    return agent.loop([{"type": "tool_call", "id": "w", "name": "wait"}], text("It did not.")).start("hi")


@pytest.mark.parametrize("drive", [output_of, collect, _play])
async def test_a_tool_that_awaits_its_own_run_gets_an_error(drive: Any) -> None:
    @tool
    async def wait() -> str:
        return str(await run)

    run = waiting_for_its_own_run(wait)
    async with asyncio.timeout(60):
        await drive(run)
        assert await run == "It did not."
    assert "the call of wait waits for its own run" in run.messages[-2].content


async def test_a_sync_tool_that_waits_for_its_own_run_gets_an_error() -> None:
    @tool
    def wait() -> str:
        return str(run.result(60))

    run = waiting_for_its_own_run(wait)
    assert await run == "It did not."
    assert "the call of wait waits for its own run" in run.messages[-2].content


async def test_a_task_that_a_tool_started_may_await_the_run() -> None:
    left: list[asyncio.Task[Any]] = []

    @tool
    async def wait() -> str:
        left.append(asyncio.create_task(output_of(run)))
        await asyncio.sleep(0)
        return "somebody else does"

    run = waiting_for_its_own_run(wait)
    await run
    async with asyncio.timeout(60):
        assert await left[0] == "It did not."


async def test_a_run_cancelled_after_a_model_failure_is_cancelled() -> None:
    run = Agent().loop([RuntimeError("down")]).start("hi")
    with pytest.raises(RunFailed):
        await run
    run.cancel("bye")
    with pytest.raises(RunCancelled, match="bye"):
        await run
    with pytest.raises(RunCancelled, match="bye"):
        run.result()
    assert (await collect(run))[-1].reason == "cancelled"


async def test_a_driving_consumer_cannot_await_the_run_in_its_loop() -> None:
    run = Agent().loop("done").start("hi")
    async with asyncio.timeout(60):
        async for event in run:
            if event.type == "model_end":
                with pytest.raises(UsageError, match="iterates over the run's events"):
                    await run
                with pytest.raises(UsageError, match="iterates over the run's events"):
                    run.result()
        assert await run == "done"


async def test_a_driving_consumer_cannot_step_the_run_in_its_loop() -> None:
    run = Agent().loop("done").start("hi")
    async with asyncio.timeout(60):
        async for event in run:
            if event.type == "message":
                assert [*await run.step(), *await run.step()] == run.events  # which has happened
                with pytest.raises(UsageError, match="iterates over the run's events"):
                    await run.step()
        assert await run == "done"


async def test_a_driving_consumer_cannot_add_a_consumer_in_its_loop() -> None:
    run = Agent().loop("done").start("hi")
    async with asyncio.timeout(60):
        async for event in run:
            if event.type == "model_end":
                looking_on = aiter(run)
                assert [await anext(looking_on) for _ in run.events] == run.events
                with pytest.raises(UsageError, match="iterates over the run's events"):
                    await anext(looking_on)
        assert await run == "done"


async def left_at_the_model_end() -> Run:
    run = Agent().two_turns().start("hi")
    async for event in run:
        if event.type == "model_end":
            break
    return run


async def test_a_closed_consumer_may_await_the_run() -> None:
    async with asyncio.timeout(60):
        run = await left_at_the_model_end()
        with pytest.raises(RunCancelled, match="its consumer was closed"):
            await run


async def test_a_closed_consumer_may_read_the_events_again() -> None:
    async with asyncio.timeout(60):
        run = await left_at_the_model_end()
        events = facts(await collect(run))
    assert events == run.events
    assert_one_terminal_event_last(events)


async def test_a_closed_consumer_may_step_the_run() -> None:
    async with asyncio.timeout(60):
        run = await left_at_the_model_end()
        while await run.step():
            pass
    assert run.stop_reason == "cancelled"


async def test_a_closed_consumer_cannot_block_for_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment.current, "hosted", True, raising=False)
    run = await left_at_the_model_end()
    with pytest.raises(UsageError, match="iterates over the run's events"):
        run.result(timeout=60)
    with pytest.raises(RunCancelled):
        await run


async def test_a_consumer_that_does_not_drive_may_await_the_run_in_its_loop() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")

    async def look_on() -> Any:
        await anext(aiter(run))
        return await run

    driving = asyncio.create_task(collect(run))
    await agent.holding.wait()
    looking_on = asyncio.create_task(look_on())
    await asyncio.sleep(0)
    agent.release.set()
    async with asyncio.timeout(60):
        assert await looking_on == "done"
        await driving


@pytest.mark.parametrize("drive", [output_of, collect, _play])
async def test_cancelling_during_an_answer_closes_the_stream(drive: Any) -> None:
    run = Agent().loop(["text_delta", *text("a b c d"), delay(60)][1:]).start("hi")
    run.watch(lambda news: isinstance(news, Delta) and news.content == " b" and run.cancel())
    async with asyncio.timeout(60):
        await asyncio.gather(drive(run), return_exceptions=True)
    assert [m.content for m in run.messages] == ["hi", "a b"]
    assert run.stop_reason == "cancelled"
    assert running_tasks() == set()


@pytest.mark.parametrize("drive", [output_of, collect, _play])
async def test_a_run_with_a_model_that_does_not_answer_can_be_cancelled(drive: Any) -> None:
    run = Agent().loop([delay(60)]).start("hi")
    driving = asyncio.create_task(drive(run))
    await until(lambda: "model_start" in types(run.events))
    await asyncio.sleep(0.01)
    run.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(driving, return_exceptions=True)
    assert running_tasks() == set()


async def test_a_cancellation_reaches_a_tool_that_only_yields() -> None:
    yielding = asyncio.Event()

    @tool
    async def busy() -> None:
        yielding.set()
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.sleep(60)

    agent = Agent()
    agent.tools.append(busy)
    run = agent.loop([{"type": "tool_call", "id": "s", "name": "busy"}]).start("hi")
    waiting = asyncio.create_task(output_of(run))
    await yielding.wait()
    run.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.done()


async def test_a_cancellation_reaches_a_tool_whose_wait_has_just_ended() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def busy() -> None:
        started.set()
        await go_on.wait()
        await asyncio.sleep(60)

    agent = Agent()
    agent.tools.append(busy)
    run = agent.loop([{"type": "tool_call", "id": "s", "name": "busy"}]).start("hi")
    waiting = asyncio.create_task(output_of(run))
    await started.wait()
    run.cancel()
    go_on.set()
    async with asyncio.timeout(60):
        await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.done()


async def test_a_run_cancelled_before_its_start_has_ended() -> None:
    agent = Agent()
    run = agent.two_turns().start("hi")
    assert run.cancel("never mind")
    assert not run.cancel()
    assert types(await collect(run)) == ["run_start", "cancel", "run_end"]
    with pytest.raises(RunCancelled, match="never mind"):
        await run
    assert run.loop.llm.requests == []


async def test_a_cancellation_keeps_queued_messages() -> None:
    agent = Agent()
    run = agent.loop(asks("hold")).start("hi")
    run.play()
    await agent.holding.wait()
    run.steer("S")
    run.follow_up("F")
    run.cancel()
    assert [m.content for m in run.state.queues["steering"]] == ["S"]
    assert [m.content for m in run.state.queues["follow_up"]] == ["F"]
    await collect(run)


async def test_a_consumer_gets_a_model_failure_after_all_events() -> None:
    run = Agent().loop([*text("so far"), ConnectionError("cut")], "done").start("hi")
    seen: list[Any] = []

    async def consume() -> None:
        async for event in run:
            seen.append(event)

    with pytest.raises(RunFailed, match="cut"):
        await consume()
    assert facts(seen) == run.events
    assert run.events[-1].type == "model_error"


@pytest.mark.parametrize("drive", [lambda run: output_of(run), lambda run: collect(run)], ids=["await", "pull"])
async def test_a_consumer_gets_the_results_of_calls_that_ran_during_a_model_failure(drive: Any) -> None:
    agent = Agent()

    class Failing:
        async def stream(self, messages: Any, **options: Any) -> Any:
            await agent.holding.wait()
            raise ConnectionError("cut")
            yield

    inside = [SessionLoop(Failing(), name="failing"), agent.loop(asks("hold"), name="beside")]
    asks_both = [call(loop.name, {"input": "go"}, id=loop.name) for loop in inside]
    run = SessionLoop(ScriptedLLM([asks_both]), inside).start("hi")
    seen: list[Any] = []

    async def look_on() -> None:
        async for event in run:
            seen.append(event)

    driven = asyncio.create_task(drive(run))
    await agent.holding.wait()
    looking = asyncio.create_task(look_on())
    await until(lambda: seen and seen[-1].type == "model_error")
    for _ in range(5):  # the other call runs on meanwhile
        await asyncio.sleep(0)
    agent.release.set()
    await asyncio.wait([driven, looking])
    assert facts(seen) == run.events
    assert run.events[-1].type == "call_end"
    assert [isinstance(task.exception(), RunFailed) for task in (driven, looking)] == [True, True]


async def test_a_tool_that_raises_cancelled_error_has_failed() -> None:
    @tool
    async def broken() -> None:
        other = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        other.cancel()
        await other

    for drive in (output_of, collect):
        agent = Agent()
        agent.tools.append(broken)
        run = agent.loop([{"type": "tool_call", "id": "s", "name": "broken"}], "done").start("hi")
        await drive(run)
        assert run.output == "done"
        assert "CancelledError" in run.messages[2].content


async def test_a_model_that_raises_cancelled_error_has_failed() -> None:
    for drive in (output_of, collect):
        run = Agent().loop([*text("a b"), asyncio.CancelledError("own")], "done").start("hi")
        with pytest.raises(RunFailed, match="CancelledError"):
            await drive(run)
        assert run.stop_reason is None
        assert run.resume()
        assert await run == "done"


async def test_a_consumer_that_resumes_a_failed_run_gets_the_later_events() -> None:
    run = Agent().loop([*text("a b"), ConnectionError("cut")], "done").start("hi")
    with pytest.raises(RunFailed):
        await run
    told = []
    async with asyncio.timeout(10):
        async for event in run:
            told.append(event)
            if event.type == "model_error":
                assert run.resume()
    assert facts(told) == run.events
    assert run.output == "done"


def test_a_result_is_available_without_an_event_loop() -> None:
    agent = Agent()
    run = agent.two_turns().start("hi")
    assert run.result(timeout=10) == "done"
    assert run.result() == "done"
    assert_folds(run)


def test_waiting_for_a_result_can_time_out_and_the_run_continues() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    with pytest.raises(TimeoutError, match="it continues"):
        run.result(timeout=0.05)
    assert run.stop_reason is None
    while not run.pending:  # it continues
        time.sleep(0.005)
    run.approve("a")
    assert run.result(timeout=10) == "done"


def test_a_wait_that_timed_out_leaves_no_future() -> None:
    def waits() -> int:
        return sum(isinstance(one, concurrent.futures.Future) for one in gc.get_objects())

    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    with pytest.raises(TimeoutError):
        run.result(timeout=0.05)
    before = waits()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            run.result(timeout=0)
    assert waits() <= before
    run.cancel()


def test_a_wait_whose_event_loop_is_closed_is_not_notified(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    run.play()

    async def wait() -> None:
        await asyncio.wait_for(run, 0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    run.approve("a")
    assert run.result(timeout=10) == "done"
    assert caplog.records == []


def test_result_raises_the_reason_if_there_is_no_result() -> None:
    run = Agent().loop([ConnectionError("cut")]).start("hi")
    with pytest.raises(RunFailed, match="cut"):
        run.result(timeout=10)
    cancelled = Agent().loop("done").start("hi")
    cancelled.cancel("no")
    with pytest.raises(RunCancelled, match="no"):
        cancelled.result(timeout=10)


async def test_result_is_refused_in_the_event_loop_that_drives_the_run() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    with pytest.raises(UsageError, match="await the run"):
        run.result()
    agent.release.set()
    assert await run == "done"


def test_play_without_an_event_loop_continues_in_the_background() -> None:
    run = Agent().two_turns().start("hi")
    ended = threading.Event()
    run.watch(lambda event: event.terminal and ended.set())
    run.play()
    assert ended.wait(10)
    assert run.output == "done"


def test_an_event_loop_that_ends_stops_the_run_without_an_error() -> None:
    agent = Agent()

    async def leave() -> Any:
        run = agent.loop(asks("hold"), "done").start("hi")
        run.play()
        await agent.holding.wait()
        return run

    run = asyncio.run(leave())
    assert agent.closed == ["hold"]
    assert not run.driven
    (item,) = run.pending or _after_a_step(run)
    assert item.unknown
    run.answer("hold", "it happened")
    assert run.result(timeout=10) == "done"


def _after_a_step(run: Any) -> Any:
    asyncio.run(run.step())
    return run.pending


_kept: list[Any] = []
"""Tasks that never end, and their runs. They are kept, because a garbage-collected task would warn in another test."""


def _run_whose_event_loop_was_closed() -> Run:
    """Its tool was running."""
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")

    async def play() -> None:
        run.play()
        await agent.holding.wait()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(play())
    loop.close()
    return run


def test_each_step_of_a_run_with_a_closed_event_loop_raises() -> None:
    run = _run_whose_event_loop_was_closed()
    with suppress(UsageError):
        while asyncio.run(run.step()):
            pass
    with pytest.raises(UsageError, match="Nothing drives this run any more"):
        asyncio.run(run.step())


def test_waiting_for_a_run_with_a_closed_event_loop_raises() -> None:
    run = _run_whose_event_loop_was_closed()
    for wait in (lambda: run.result(timeout=30), lambda: asyncio.run(collect(run))):
        with pytest.raises(UsageError, match="Nothing drives this run any more"):
            wait()
    run.cancel("no more")
    with pytest.raises(RunCancelled, match="no more"):
        run.result(timeout=30)


@pytest.mark.parametrize("go_on", [Run.play, Run.resume])
def test_resuming_a_run_with_a_closed_event_loop_raises(go_on: Callable[[Run], Any]) -> None:
    run = _run_whose_event_loop_was_closed()
    with pytest.raises(UsageError, match="Nothing drives this run any more"):
        go_on(run)
    assert "run_resumed" not in types(run.events)


def test_a_run_with_a_closed_event_loop_is_not_driven_and_cannot_be_paused() -> None:
    run = _run_whose_event_loop_was_closed()
    assert not run.driven
    assert not run.pause()


def test_a_step_after_a_step_with_a_closed_event_loop_raises() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")

    async def begin() -> asyncio.Task[Any]:
        stepping = asyncio.create_task(run.step("turn"))
        await agent.holding.wait()
        return stepping

    loop = asyncio.new_event_loop()
    _kept.append(loop.run_until_complete(begin()))
    loop.close()
    with pytest.raises(UsageError, match="Nothing drives this run any more"):
        asyncio.run(run.step("turn"))


def _run_held_in_another_thread(
    how: str, begin: Callable[[Run, Agent], Awaitable[None]]
) -> tuple[Run, Callable[[], None]]:
    """Return a run during a call, and a function that ends its event loop.

    how: the loop is `closed`, or only `left` by its thread, with its tasks unchanged; `run`: each task ends.
    """
    agent, begun, ends = Agent(), threading.Event(), threading.Event()
    run = agent.loop(asks("hold"), "done").start("hi")
    _kept.append(run)

    async def hold() -> None:
        await begin(run, agent)
        begun.set()
        await asyncio.to_thread(ends.wait)

    def drive() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(hold())
        if how == "closed":
            loop.close()

    threading.Thread(target=drive if how != "run" else lambda: asyncio.run(hold())).start()
    assert begun.wait(10)
    return run, ends.set


async def _played(run: Run, agent: Agent) -> None:
    run.play()
    await agent.holding.wait()


async def _stepped(run: Run, agent: Agent) -> None:
    while not agent.holding.is_set():
        await run.step()
        await asyncio.sleep(0)


async def _awaits(run: Run) -> None:
    await run


async def _steps(run: Run) -> None:
    while await run.step("turn"):
        pass


@pytest.mark.parametrize("how", ["closed", "left"])
@pytest.mark.parametrize("wait", [_awaits, collect, _steps])
async def test_a_task_that_awaits_a_run_is_notified_when_its_event_loop_ends(
    wait: Callable[[Run], Any], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "LOOK_SECONDS", 0.01)
    run, end = _run_held_in_another_thread(how, _played)
    waiting = asyncio.create_task(wait(run))
    for _ in range(20):
        await asyncio.sleep(0)
    end()
    with pytest.raises(UsageError, match="Nothing drives this run any more"):
        await waiting


@pytest.mark.parametrize("how", ["closed", "left"])
def test_a_blocking_wait_is_notified_when_the_event_loop_of_the_run_ends(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "LOOK_SECONDS", 0.01)
    run, end = _run_held_in_another_thread(how, _played)
    wait = environment.current.wait

    def wait_while_it_ends(*args: Any) -> None:
        end()
        wait(*args)

    monkeypatch.setattr(environment.current, "wait", wait_while_it_ends)
    with pytest.raises(UsageError, match="Nothing drives this run any more"):
        run.result(timeout=30)


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "left"])
async def test_closing_a_consumer_does_not_wait_for_a_call_of_an_ended_event_loop(closes: bool) -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")

    async def steps() -> None:
        while not agent.holding.is_set():
            await run.step()
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, steps())
    if closes:
        loop.close()
        _kept.append(run)
    async with aclosing(aiter(run)) as events:
        await anext(events)
    assert run.stop_reason == "cancelled"
    if not closes:
        await asyncio.to_thread(loop.run_until_complete, asyncio.sleep(0))
        loop.close()


@pytest.mark.parametrize("how", ["closed", "left"])
async def test_a_step_raises_when_another_event_loop_ends_without_ending_its_tasks(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "LOOK_SECONDS", 0.01)
    run, end = _run_held_in_another_thread(how, _stepped)
    step = asyncio.create_task(run.step("turn"))
    await until(lambda: run.driven)
    end()
    with pytest.raises(UsageError, match="Nothing drives this run any more"):
        await step


async def test_a_step_ends_when_another_event_loop_ends_its_tasks() -> None:
    run, end = _run_held_in_another_thread("run", _stepped)
    step = asyncio.create_task(run.step("turn"))
    await until(lambda: run.driven)
    end()
    assert await step == []
    assert types(await run.step("turn")) == ["approval_request"]


async def test_a_step_of_a_run_driven_by_another_thread_ends_when_that_thread_stops() -> None:
    run, end = _run_held_in_another_thread("run", _played)
    stepping = asyncio.create_task(run.step("turn"))
    await until(lambda: run.pausing)
    end()
    assert [event.type for event in await stepping][-1] == "call_start"
    assert not run.state.over


async def test_a_second_play_has_no_effect() -> None:
    run = Agent().two_turns().start("hi")
    run.play()
    run.play()
    assert await run == "done"
    assert len(run.loop.llm.requests) == 2


async def test_a_failing_watcher_is_logged_and_the_run_continues(caplog: pytest.LogCaptureFixture) -> None:
    run = Agent().two_turns().start("hi")

    def fail(event: Any) -> None:
        raise LookupError("watcher down")

    stop = run.watch(fail)
    assert await run == "done"
    assert "watcher down" in caplog.text
    stop()


async def test_a_stopped_watcher_is_not_notified_and_other_watchers_are() -> None:
    run = Agent().two_turns().start("hi")
    one: list[Any] = []
    other: list[Any] = []
    stop = run.watch(one.append)
    run.watch(other.append)
    await run.step("turn")
    told = list(one)
    stop()
    await run
    assert one == told
    assert facts(other) == run.events


async def test_an_event_that_a_watcher_causes_is_reported_after_the_current_one() -> None:
    run = Agent().loop("one", "two").start("hi")
    told: list[Any] = []
    run.watch(lambda event: event.type == "model_start" and run.steer("S") if len(told) < 5 else None)
    run.watch(told.append)
    await run
    assert facts(told) == run.events


async def test_a_run_shows_its_status() -> None:
    run = Agent().loop([*text("hi"), {"type": "usage", "input_tokens": 3, "output_tokens": 2}]).start("hi")
    assert run.phase == "idle"
    assert (run.output, run.stop_reason, run.messages, run.usage) == (None, None, [], {})
    await run
    assert (run.output, run.stop_reason, run.phase) == ("hi", "completed", "done")
    assert run.usage == {"input_tokens": 3, "output_tokens": 2}
    assert run.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}]
    assert "completed" in repr(run)


async def test_a_running_call_does_not_run_twice_when_another_thread_drives() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    while types(run.events)[-1:] != ["call_start"]:
        await run.step()
    await agent.holding.wait()
    waiting = asyncio.create_task(asyncio.to_thread(run.result, 10))
    await until(lambda: run.driven)
    assert run.pending == []  # no decision is needed: the call still runs in this process
    agent.release.set()
    assert await waiting == "done"
    assert agent.ran == ["hold"]


async def test_a_consumer_added_during_a_step_ends_with_the_last_step() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    stepping = asyncio.create_task(run.step("turn"))
    await agent.holding.wait()
    watching = asyncio.create_task(collect(run))
    await asyncio.sleep(0)  # the consumer has started
    agent.release.set()
    await stepping
    while await run.step():
        pass
    assert facts(await watching) == run.events
