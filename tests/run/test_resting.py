"""Where a run pauses: a pause waits for a started task of an engine, and the code of an agent waits at its yield."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from agentnb import (
    Agent,
    ConversationEngine,
    LimitReached,
    Loop,
    LoopAgent,
    RunCancelled,
    RunFailed,
    SessionLoop,
    Snapshot,
    restore,
    tool,
)
from agentnb.loops import want
from agentnb.loops.loop_agent import BaseAgent, Event, InvocationContext
from tests.designs import Answers
from tests.run.agents import Plans
from tests.streaming import Model, asks
from tests.worlds import collect, running_tasks, types, until


@tool(approve=True)
async def write(n: int) -> str:
    """Asks first."""
    return f"wrote {n}"


@tool
async def work(n: int) -> str:
    """Works."""
    return f"worked {n}"


WORK = asks(("c1", "work", {"n": 1}))
WRITE = asks(("c1", "write", {"n": 1}))


def engine(*turns: Any, tools: Any = (work, write), **options: Any) -> ConversationEngine:
    """Two tasks, which an agent executes."""
    return ConversationEngine(llm=Plans(), execute=Agent(Model(*turns), tools, name="inner"), name="engine", **options)


def kinds(events: Any) -> list[str]:
    return [event.event_type.name for event in events]


async def take(stream: Any, last: str) -> list[str]:
    """An engine's events up to one of that kind."""
    seen: list[str] = []
    async with asyncio.timeout(60):
        while not seen or seen[-1] != last:
            seen += kinds([await anext(stream)])
    return seen


async def rest_of(stream: Any) -> list[str]:
    return kinds(await asyncio.wait_for(collect(stream), 60))


def tasks_done(state: Any) -> list[bool]:
    """Return for each started task of an engine whether it has ended."""
    return [call.end is not None for call in state.own_calls if call.name == "execute"]


async def paused(run: Any) -> Any:
    async with asyncio.timeout(60):
        await until(lambda: run.state.paused)
    return run


# -- an engine whose tasks a loop executes ---------------------------------------------------------------------------


async def test_a_task_of_an_engine_ends_before_the_engine_is_paused() -> None:
    made = engine(WORK, "A", "B")
    async with aclosing(made.run("go")) as stream:
        await take(stream, "TASK_STARTED")
        assert made.pause()
        assert made.state == "paused"
        assert await take(stream, "ENGINE_PAUSED") == ["TASK_COMPLETED", "STATE_CHANGED", "ENGINE_PAUSED"]
        assert made.completed_tasks == 1
        assert made.resume()
        rest = await rest_of(stream)
    assert rest[:4] == ["STATE_CHANGED", "ENGINE_RESUMED", "TASK_STARTED", "TASK_COMPLETED"]
    assert rest[-1] == "ENGINE_COMPLETED"


async def test_a_pause_of_an_engine_withdrawn_before_its_task_has_ended_is_not_emitted() -> None:
    made = engine(WORK, "A", "B")
    async with aclosing(made.run("go")) as stream:
        await take(stream, "TASK_STARTED")
        assert (made.pause(), made.resume(), made.resume()) == (True, True, False)
        assert made.state == "executing"
        assert await rest_of(stream) == [
            *("TASK_COMPLETED", "TASK_STARTED", "TASK_COMPLETED", "STATE_CHANGED", "ENGINE_COMPLETED"),
        ]


async def test_a_call_in_a_task_can_be_decided_while_the_pause_waits() -> None:
    run = engine(WRITE, "A", "B").start("go")
    run.play()
    await until(lambda: run.pending)
    assert run.pause()
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.pausing
    assert not run.state.paused
    assert not run.pause()
    run.approve(run.pending[0].id)
    await paused(run)
    assert tasks_done(run.state) == [True]
    assert run.resume()
    assert await run == {"a": "A", "b": "B"}


async def test_a_waiting_pause_takes_effect_after_the_deadline_of_a_question() -> None:
    run = engine(WRITE, "A", "B").start("go", approve=[{"tool": "write", "decision": "ask", "deadline": 0.05}])
    run.play()
    await until(lambda: run.pending)
    run.pause()
    await paused(run)
    assert run.state.children["inner"].messages[2].is_error
    run.resume()
    assert await run == {"a": "A", "b": "B"}


async def test_a_run_whose_pause_waits_for_a_task_is_cancelled_immediately() -> None:
    run = engine(WRITE, "A").start("go")
    run.play()
    await until(lambda: run.pending)
    run.pause()
    assert run.cancel("enough")
    assert run.stop_reason == "cancelled"
    assert run.state.children["inner"].stop_reason == "cancelled"
    with pytest.raises(RunCancelled):
        await run
    assert "run_paused" not in types(run.events)
    assert running_tasks() == set()


async def test_one_resume_withdraws_the_pause_and_repeats_the_failed_request() -> None:
    llm = Model([lambda: run.pause(), RuntimeError("down")], "A", "B")
    run = ConversationEngine(llm=Plans(), execute=Agent(llm, name="inner")).start("go")
    with pytest.raises(RunFailed):
        await run
    assert run.resume()
    assert not run.pausing
    assert await asyncio.wait_for(run, 60) == {"a": "A", "b": "B"}
    assert "run_paused" not in types(run.events)


async def test_a_snapshot_taken_while_a_pause_waits_is_restored_and_can_be_paused_again() -> None:
    run = engine(WRITE, "A", "B").start("go")
    run.play()
    await until(lambda: run.pending)
    run.pause()
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run.cancel()
    again = restore(snapshot, engine("A", "B"))
    again.play()
    assert again.pause()
    await asyncio.sleep(0.01)
    assert not again.state.paused
    again.approve(again.pending[0].id)
    await paused(again)
    assert tasks_done(again.state) == [True]
    again.resume()
    assert await again == {"a": "A", "b": "B"}


async def test_a_task_interrupted_at_its_start_is_finished_before_a_pause() -> None:
    whole = engine(WORK, "A", "B").start("go")
    await whole
    begun = next(event.seq for event in whole.events if event.type == "call_start" and event.name == "execute")
    again = restore(Snapshot.of(whole.events[: begun + 1]), engine(WORK, "A", "B"))
    again.play()
    again.pause()
    await paused(again)
    assert tasks_done(again.state) == [True]


async def test_stepping_while_a_pause_waits_advances_one_step_at_a_time() -> None:
    run = engine(WRITE, "A", "B").start("go")
    run.play()
    await until(lambda: run.pending)
    run.pause()
    while (await run.step())[0].type != "approval_request":  # the events during play
        pass
    run.approve(run.pending[0].id)
    assert [types(await run.step()) for _ in range(2)] == [["approval_decision"], ["call_start"]]
    await paused(run)
    inside = run.state.children["inner"]
    assert (inside.stop_reason, inside.requests) == (None, 1)
    run.resume()
    assert await run == {"a": "A", "b": "B"}


async def test_a_breakpoint_inside_a_task_pauses_the_run() -> None:
    run = engine(WORK, "A", "B").start("go", breakpoints=["work"])
    run.play()
    await paused(run)
    assert [event.type for event in run.events if event.path][-1:] == ["model_end"]
    assert run.state.children["inner"].stop_reason is None
    run.resume()
    assert await run == {"a": "A", "b": "B"}


async def test_a_pause_of_an_outer_loop_waits_for_the_current_task_of_an_engine_only() -> None:
    passes = LoopAgent("passes", [engine(WORK, "A", "B")], 1)
    run = passes.start("go")
    run.watch(lambda event: event.type == "model_start" and run.pause())
    run.play()
    await paused(run)
    assert tasks_done(run.state.children["engine"]) == [True]
    run.resume()
    await paused(run)
    assert tasks_done(run.state.children["engine"]) == [True, True]
    run.resume()
    await run
    assert run.stop_reason == "max_iterations"


async def test_a_pause_of_an_engine_waits_for_all_nested_loops_of_its_task() -> None:
    inner = LoopAgent("passes", [engine(WORK, "A", "B")], 1)
    run = ConversationEngine(llm=Plans(), execute=inner, name="outer").start("go")
    run.watch(lambda event: event.path == "passes" and run.pause())
    run.play()
    await paused(run)
    assert run.state.children["passes"].stop_reason == "max_iterations"
    assert tasks_done(run.state) == [True]
    assert run.resume()
    await paused(run)
    assert tasks_done(run.state) == [True, True]
    run.cancel()


async def test_a_pause_of_a_loop_agent_does_not_wait_for_the_end_of_a_session() -> None:
    model = Model(WORK, WORK, "said")
    run = LoopAgent("passes", [SessionLoop(model, [work], name="session")], 1).start("go")
    run.watch(lambda event: event.type == "call_start" and event.name == "work" and run.pause())
    run.play()
    await paused(run)
    assert len(model.contexts) == 1
    assert run.state.children["session"].stop_reason is None
    run.cancel()


# -- an agent whose code is opaque -----------------------------------------------------------------------------------


class Speaks(BaseAgent):
    """Yields a given number of events; its `log` has the progress of its code."""

    times = 3
    between: Any = staticmethod(asyncio.sleep)

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.log: list[str] = []

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        self.log.append("begun")
        try:
            for number in range(self.times):
                await self.between(0)
                self.log.append(f"at {number}")
                yield Event(author=self.name, content=str(number))
                self.log.append(f"behind {number}")
        finally:
            await asyncio.sleep(0)
            self.log.append("closed")


def said(events: Any) -> list[str]:
    return [event.message.content for event in events if event.type == "message" and event.message.get("event")]


async def breathe() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


NEST = ["alone", "in a loop agent", "beside another"]


def nested(agent: BaseAgent, where: str) -> Loop:
    if where == "alone":
        return agent
    passes = LoopAgent("passes", [agent], 1)
    if where == "in a loop agent":
        return passes
    other = LoopAgent("others", [Speaks("other")], 1)
    turn = asks(("c1", "passes", {"input": "x"}), ("c2", "others", {"input": "x"}))
    return SessionLoop(Answers(turn), [passes, other])


@pytest.mark.parametrize("where", ["alone", "in a loop agent"])
async def test_after_a_step_the_code_of_an_agent_is_at_the_yield_of_the_last_event(where: str) -> None:
    agent = Speaks("agent")
    run = nested(agent, where).start("go")
    stands = {"call_start": [], "call_end": [*("behind 2", "closed")]}
    while step := await asyncio.wait_for(run.step(), 60):
        await breathe()
        assert len(step) == 1
        event = step[0]
        if event.type == "call_start" and event.name == "run_agent":
            assert agent.log == stands["call_start"]
        elif words := said(step):
            assert agent.log[-1] == f"at {words[0]}"
        elif event.type == "call_end" and event.name == "run_agent":
            assert agent.log[-2:] == stands["call_end"]
    assert said(run.events) == ["0", "1", "2"]


@pytest.mark.parametrize("where", NEST)
@pytest.mark.parametrize("how", ["pause", "breakpoint"])
@pytest.mark.parametrize("drive", ["play", "pull"])
async def test_during_a_pause_the_code_of_an_agent_is_at_its_yield(where: str, how: str, drive: str) -> None:
    agent = Speaks("agent")

    def at(event: Any, state: Any = None) -> bool:
        return event.type == "message" and event.message.name == "agent" and event.message.content == "1"

    run = nested(agent, where).start("go", breakpoints=[at] if how == "breakpoint" else [])
    if how == "pause":
        run.watch(lambda event: at(event) and run.pause())
    pulling = asyncio.create_task(collect(run)) if drive == "pull" else None
    if drive == "play":
        run.play()
    await paused(run)
    await breathe()
    assert agent.log[-1] == "at 1"
    assert "behind 1" not in agent.log
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    assert run.resume()
    await asyncio.wait_for(pulling if pulling is not None else run, 60)
    assert agent.log[-1] == "closed"
    assert agent.log.count("begun") == 1
    again = Speaks("agent")
    await asyncio.wait_for(restore(snapshot, nested(again, where)), 60)
    assert again.log.count("begun") == 1  # it runs again from its start
    assert running_tasks() == set()


async def test_an_agent_paused_before_its_first_event_has_not_started() -> None:
    agent = Speaks("agent")
    run = nested(agent, "in a loop agent").start("go", breakpoints=["run_agent"])
    run.play()
    await paused(run)
    await breathe()
    assert agent.log == []
    run.resume()
    await run
    assert agent.log.count("begun") == 1


@pytest.mark.parametrize("where", NEST)
@pytest.mark.parametrize("stepped", [True, False])
async def test_a_cancellation_at_a_yield_runs_only_the_finally_of_the_agent(where: str, stepped: bool) -> None:
    agent = Speaks("agent")
    run = nested(agent, where).start("go")
    if stepped:
        while said(event for event in run.events if event.path.endswith("agent") or not event.path)[-1:] != ["1"]:
            await run.step()
    else:
        run.watch(lambda event: said([event]) == ["1"] and event.message.name == "agent" and run.pause())
        run.play()
        await paused(run)
    assert run.cancel("enough")
    assert run.stop_reason == "cancelled"
    with pytest.raises(RunCancelled):
        await run
    assert agent.log[-2:] == ["at 1", "closed"]
    assert running_tasks() == set()


async def test_closing_a_consumer_that_paused_an_agent_runs_its_finally() -> None:
    agent = Speaks("agent")
    run = nested(agent, "in a loop agent").start("go")
    async with aclosing(aiter(run)) as events:
        async for event in events:
            if said([event]) == ["1"]:
                run.pause()
            if event.type == "run_paused":
                break
    assert agent.log[-2:] == ["at 1", "closed"]


async def test_closing_a_consumer_between_two_deltas_runs_the_finally_of_the_model() -> None:
    log: list[str] = []

    class Talks:
        async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
            try:
                for word in "abc":
                    yield {"type": "text_delta", "content": word}
                    log.append(word)
            finally:
                await asyncio.sleep(0)
                log.append("closed")

    async with aclosing(aiter(Agent(Talks()).start("go"))) as events:
        async for event in events:
            if event.type == "text_delta":
                break
    assert log == ["closed"]


async def test_after_a_consumer_cancels_at_an_event_the_agent_does_not_continue() -> None:
    agent = Speaks("agent")
    run = nested(agent, "in a loop agent").start("go")
    async for event in run:
        if said([event]) == ["1"]:
            run.cancel("enough")
    assert agent.log[-2:] == ["at 1", "closed"]


async def test_the_limit_on_seconds_ends_an_agent_at_its_yield() -> None:
    agent = Speaks("agent")
    run = nested(agent, "alone").start("go", limits={"seconds": 0.5})
    run.watch(lambda event: said([event]) == ["1"] and run.pause())
    with pytest.raises(LimitReached):
        await asyncio.wait_for(run, 60)
    assert agent.log[-2:] == ["at 1", "closed"]


async def test_an_agent_can_pause_and_cancel_its_own_run() -> None:
    agent = Speaks("agent")

    async def between(_: float) -> None:
        if agent.log[-1] == "behind 0":
            run.pause()
        if agent.log[-1] == "behind 1":
            run.cancel("by itself")

    agent.between = between
    run = nested(agent, "in a loop agent").start("go")
    run.play()
    await paused(run)
    assert agent.log[-1] == "at 1"
    run.resume()
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(run, 60)
    assert agent.log[-1] == "closed"


async def test_agents_that_wait_for_each_other_can_be_stepped() -> None:
    barrier = asyncio.Barrier(2)
    agents = [Speaks(name, between=lambda _: barrier.wait()) for name in ("one", "two")]
    turn = asks(("c1", "first", {"input": "x"}), ("c2", "second", {"input": "x"}))
    loops = [LoopAgent(name, [agent], 1) for name, agent in zip(("first", "second"), agents, strict=True)]
    run = SessionLoop(Model(turn), loops).start("go")
    seen = []
    while step := await asyncio.wait_for(run.step(), 60):
        seen += step
    assert seen == run.events
    assert sorted(said(seen)) == ["0", "0", "1", "1", "2", "2"]


async def test_a_step_does_not_end_at_a_delta() -> None:
    class Streams(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            for partial in (True, True, False):
                yield Event(author=self.name, content="word", partial=partial)

    run = Streams("agent").start("go")
    seen = []
    while step := await asyncio.wait_for(run.step(), 60):
        seen += step
    assert said(seen) == ["word"]


async def test_an_agent_is_paused_from_another_thread() -> None:
    agent = Speaks("agent", times=1_000_000)  # it continues until it is paused
    run = nested(agent, "in a loop agent").start("go")
    spoken = threading.Event()
    run.watch(lambda event: said([event]) == ["3"] and spoken.set())
    waiting = threading.Thread(target=lambda: _result(run))
    waiting.start()
    assert await asyncio.to_thread(spoken.wait, 5)
    assert run.pause()
    assert await asyncio.to_thread(_comes_to_rest, run)
    log = list(agent.log)
    await asyncio.sleep(0.05)
    assert agent.log == log
    assert log[-1] == f"at {said(run.events)[-1]}"
    run.cancel()
    await asyncio.to_thread(waiting.join, 30)
    assert agent.log[-1] == "closed"


def _result(run: Any) -> None:
    with suppress(RunCancelled):
        run.result(timeout=20)


def _comes_to_rest(run: Any) -> bool:
    rests = threading.Event()
    stop = run.watch(lambda event: event.type == "run_paused" and rests.set())
    try:
        return run.state.paused or rests.wait(30)
    finally:
        stop()


# -- the generator form, and what a step leaves behind ---------------------------------------------------------------


async def test_after_a_step_a_generator_is_at_the_last_event() -> None:
    log: list[str] = []

    def written(_: Any) -> Generator[Any, Any, str]:
        log.append("message")
        yield want.say("one")
        log.append("message")
        yield want.say("two")
        log.append("call_proposed")
        yield want.call(len, "word")
        log.extend(["call_proposed"] * 2)
        yield [want.call(len, "words"), want.call(len, "word")]
        log.append("run_end")
        return "done"

    run = Loop.from_generator(written).start("go")
    shown: list[str] = []
    while step := await asyncio.wait_for(run.step(), 60):
        await breathe()
        shown += types(step)
        wants = [kind for kind in shown if kind in ("message", "call_proposed", "run_end")]
        assert log in (wants, [*wants, "call_proposed"])  # two concurrent calls are one command
    assert run.output == "done"


async def test_a_breakpoint_passed_by_a_step_does_not_stop_a_later_await() -> None:
    run = Agent(Model(WORK, "done"), [work]).start("go", breakpoints=["work"])
    await run.step("turn")
    assert await asyncio.wait_for(run, 60) == "done"


async def test_resume_continues_from_a_breakpoint_that_a_step_reached() -> None:
    run = Agent(Model(WORK, "done"), [work]).start("go", breakpoints=["model_start", "work"])
    run.play()
    await paused(run)
    await run.step("turn")
    assert run.resume()
    await until(lambda: run.state.over or run.state.paused)
    assert run.state.paused  # at the second request to the model
    assert run.events[-2].type == "model_start"
    run.resume()
    assert await run == "done"
