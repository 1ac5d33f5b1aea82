from __future__ import annotations

import asyncio
import json
import threading
from contextlib import aclosing
from typing import Any

import pytest

from agentnb import UsageError
from agentnb.errors import IllegalTransition
from agentnb.loops.conversation_engine import ConversationEngine, EngineState, SubTask
from agentnb.loops.conversation_engine.stream import EngineProjection
from agentnb.run import environment
from agentnb.run.environment import PlainPython
from agentnb.testing import ScriptedLLM
from tests.loops.engines import PLANNED, WHOLE, World, boom, in_words, is_chain, is_waiting, notation, rest, take
from tests.worlds import assert_folds, assert_one_terminal_event_last, collect, running_tasks, until

# -- pausing (conversation_engine/SEMANTICS.md, 6. Pausing) -----------------------------------------------------------


async def paused_after_a(world: World) -> Any:
    """Return an engine that was paused while its first task ran, and its stream (CE-07)."""
    engine = world.engine()
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    assert engine.pause() is True
    assert engine.state is EngineState.PAUSED
    assert engine.pause() is False
    assert await take(stream, 3) == ["COMPLETED a=A(0.5)", "SC(executing>paused)", "PAUSED(0.5)"]
    return engine, stream


async def test_ce_07_a_pause_takes_effect_after_the_running_task() -> None:
    world = World()
    engine, stream = await paused_after_a(world)
    pulled = asyncio.create_task(anext(stream))
    assert await is_waiting(pulled)
    assert world.ran == ["a"]
    assert engine.state is EngineState.PAUSED
    assert engine.resume() is True
    assert in_words(await pulled) == "SC(paused>executing)"
    await stream.aclose()


@pytest.mark.parametrize("who", ["the consumer", "another task", "another thread"])
async def test_ce_08_a_paused_engine_can_be_resumed(who: str) -> None:
    world = World()
    engine, stream = await paused_after_a(world)
    if who == "the consumer":
        assert engine.resume() is True
    elif who == "another thread":
        threading.Timer(0.02, engine.resume).start()
    else:
        asyncio.get_running_loop().call_soon(engine.resume)
    assert await rest(stream) == ["SC(paused>executing)", "RESUMED(0.5)", *WHOLE[-4:]]
    assert engine.resume() is False
    assert engine.state is EngineState.COMPLETED
    assert world.ran == ["a", "b"]


async def test_ce_09_a_pause_takes_effect_after_scheduling() -> None:
    engine = World().engine()
    stream = engine.run("goal")
    await take(stream, "SCHEDULED a")
    assert engine.state is EngineState.SCHEDULING
    assert engine.pause() is True
    assert await take(stream, 3) == ["SCHEDULED b", "SC(scheduling>paused)", "PAUSED(0.0)"]
    pulled = asyncio.create_task(anext(stream))
    assert await is_waiting(pulled)
    assert engine.resume() is True
    assert in_words(await pulled) == "SC(paused>scheduling)"
    assert engine.state is EngineState.SCHEDULING
    assert await rest(stream) == ["RESUMED(0.0)", *WHOLE[8:]]


async def test_a_consumer_that_pauses_gets_the_paused_event_and_then_waits() -> None:
    engine = World().engine()
    seen: list[str] = []

    async def consume() -> None:
        async for event in engine.run("goal"):
            seen.append(in_words(event))
            if seen[-1] == "STARTED b":
                engine.pause()

    consuming = asyncio.create_task(consume())
    await until(lambda: seen[-1:] == ["PAUSED(1.0)"])
    assert await is_waiting(consuming)
    assert engine.resume()
    await consuming
    assert seen[-2:] == WHOLE[-2:]


async def test_resume_before_the_paused_event_revokes_the_pause() -> None:
    engine = World().engine()
    stream = engine.run("goal")
    said = await take(stream, "STARTED a")
    assert engine.pause()
    assert engine.resume() is True
    assert engine.state is EngineState.EXECUTING
    assert engine.resume() is False
    assert said + await rest(stream) == WHOLE


async def test_the_published_example_cannot_pause_after_five_events() -> None:
    engine = World().engine()
    stream = engine.run("goal")
    for _ in range(5):
        await stream.__anext__()
    assert engine.state is EngineState.DECOMPOSING
    assert engine.pause() is False
    assert engine.current_progress == 0.0
    assert engine.resume() is False
    said = [in_words(event) async for event in stream]
    assert said == WHOLE[5:]
    assert engine.state is EngineState.COMPLETED


MAY_PAUSE = ("scheduling", "executing")
"""The states of the engine in which a pause is possible."""


@pytest.mark.parametrize("anytime", [False, True])
@pytest.mark.parametrize("position", range(len(WHOLE) + 1))
async def test_pausing_and_resuming_at_any_event_results_in_the_same_run(position: int, anytime: bool) -> None:
    world = World()
    engine = world.engine()
    stream = engine.run("goal")
    said = await take(stream, position) if position else []
    state, progress = engine.state, engine.current_progress
    allowed = state in (*MAY_PAUSE, *(("receiving", "context_fetching", "decomposing") if anytime else ()))
    assert engine.pause(anytime=anytime) is allowed
    assert engine.state == ("paused" if allowed else state)
    assert engine.current_progress == progress
    while allowed and (not said or not said[-1].startswith("PAUSED")):
        said += await take(stream, 1)
    if allowed:
        assert engine.current_progress == float(said[-1][7:-1])
        assert engine.resume() is True
        assert engine.state is state
    said += await rest(stream)
    pause = [f"SC({state}>paused)", said[said.index(f"SC({state}>paused)") + 1]] if allowed else []
    resume = [f"SC(paused>{state})", pause[1].replace("PAUSED", "RESUMED")] if allowed else []
    assert [words for words in said if words not in pause + resume] == WHOLE
    if allowed:
        at = said.index(pause[0])
        assert said[at : at + 4] == pause + resume
    assert is_chain(said)
    assert world.ran == ["a", "b"]
    assert engine.state is EngineState.COMPLETED


async def test_another_task_can_pause_the_engine_while_a_task_runs() -> None:
    world, running, release = World(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        running.set()
        await release.wait()

    world.during["a"] = hold
    engine = world.engine()
    consuming = asyncio.create_task(rest(engine.run("goal")))
    await running.wait()
    assert engine.pause() is True
    assert engine.state is EngineState.PAUSED
    assert await is_waiting(consuming)
    assert engine.current_progress == 0.0
    release.set()
    await until(lambda: engine.current_progress == 0.5)
    assert await is_waiting(consuming)
    assert engine.resume() is True
    said = await consuming
    assert said[9:14] == [
        "STARTED a",
        "COMPLETED a=A(0.5)",
        "SC(executing>paused)",
        "PAUSED(0.5)",
        "SC(paused>executing)",
    ]
    assert [
        words for words in said if "pause" not in words and "PAUSED" not in words and "RESUMED" not in words
    ] == WHOLE


async def test_an_error_has_precedence_over_a_pause() -> None:
    world = World()
    world.during["a"] = boom
    engine = world.engine()
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    assert engine.pause()
    assert await rest(stream) == ["FAILED a:boom:executing", "SC(executing>error)", "ERROR(boom,executing)"]


async def test_a_failed_task_with_on_task_error_continue_keeps_the_pause() -> None:
    world = World()
    world.during["a"] = boom
    engine = world.engine(on_task_error="continue")
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    assert engine.pause()
    assert await take(stream, 3) == ["FAILED a:boom:executing", "SC(executing>paused)", "PAUSED(0.0)"]
    assert engine.resume()
    assert (await rest(stream))[-1] == "DONE(2,1,1)"


def test_an_idle_engine_cannot_be_paused_resumed_or_cancelled() -> None:
    engine = ConversationEngine()
    assert (engine.pause(), engine.pause(anytime=True), engine.resume(), engine.cancel()) == (False,) * 4
    assert engine.state is EngineState.IDLE


# -- one run at a time, and resetting -------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
async def test_a_second_run_requires_a_reset(fails: bool) -> None:
    world = World()
    if fails:
        world.during["context"] = boom
    engine = world.engine()
    await collect(engine.run("goal"))
    state = engine.state
    with pytest.raises(IllegalTransition, match="reset"):
        engine.run("again")
    assert engine.state is state
    engine.reset()
    assert (engine.state, engine.total_tasks, engine.completed_tasks) == ("idle", 0, 0)
    assert (engine.current_progress, engine.tasks) == (0.0, [])
    world.during.clear()
    assert await rest(engine.run("again")) == WHOLE


async def test_a_second_concurrent_run_is_refused() -> None:
    engine = World().engine()
    first, second = engine.run("goal"), engine.run("again")
    said = await take(first, "STARTED a")
    with pytest.raises(IllegalTransition):
        await anext(second)
    with pytest.raises(IllegalTransition):
        engine.run("once more")
    with pytest.raises(UsageError):
        engine.continue_()
    assert said + await rest(first) == WHOLE


async def test_a_reset_during_a_run_is_refused() -> None:
    engine = World().engine()
    stream = engine.run("goal")
    said = await take(stream, "STARTED a")
    with pytest.raises(UsageError, match="running"):
        engine.reset()
    engine.pause()
    with pytest.raises(UsageError, match="running"):  # task a runs: the pause has not taken effect yet
        engine.reset()
    engine.resume()
    assert said + await rest(stream) == WHOLE


async def test_a_reset_of_a_paused_engine_ends_its_stream() -> None:
    world = World()
    engine, stream = await paused_after_a(world)
    engine.reset()
    assert (engine.state, engine.total_tasks) == ("idle", 0)
    again = engine.run("again")
    await take(again, "STARTED a")
    assert await rest(stream) == ["SC(paused>error)", "ERROR(reset,executing)"]
    assert await rest(again) == WHOLE[-5:]
    assert engine.state is EngineState.COMPLETED


# -- ending early ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(1, len(WHOLE) + 1))
async def test_closing_the_stream_ends_the_engine_with_an_error(position: int) -> None:
    world = World()
    engine = world.engine()
    stream = engine.run("goal")
    await take(stream, position)
    await stream.aclose()
    over = position >= len(WHOLE) - 1
    assert engine.state == ("completed" if over else "error")
    run = engine.current_run
    assert run is not None
    assert run.stop_reason == ("completed" if over else "cancelled")
    assert_one_terminal_event_last(run.events)
    assert_folds(run)
    assert running_tasks() == set()
    assert await rest(stream) == []
    engine.reset()
    assert await rest(engine.run("again")) == WHOLE


async def test_closing_a_stream_that_was_never_started_has_no_effect() -> None:
    engine = World().engine()
    await engine.run("goal").aclose()
    assert engine.state is EngineState.IDLE
    assert await rest(engine.run("goal")) == WHOLE


async def test_leaving_the_stream_by_a_break_ends_the_engine() -> None:
    engine = World().engine()
    async for event in engine.run("goal"):
        if in_words(event) == "STARTED a":
            break
    await until(lambda: engine.state is EngineState.ERROR)
    engine.reset()


@pytest.mark.parametrize("at", WHOLE)
async def test_an_engine_can_be_reset_immediately_after_a_break(at: str) -> None:
    engine = World().engine()
    async for event in engine.run("goal"):
        if in_words(event) == at:
            break
    engine.reset()
    assert await rest(engine.run("again")) == WHOLE


async def test_an_engine_can_be_restored_immediately_after_a_break() -> None:
    world = World()
    engine = world.engine()
    async for event in engine.run("goal"):
        if in_words(event) == "STARTED b":
            break
    assert engine.restore_from_snapshot(engine.create_snapshot())
    world.ran.clear()
    assert (await rest(engine.continue_()))[-1] == "DONE(2,2)"
    assert world.ran == ["b"]


async def test_a_reset_after_a_break_leaves_the_old_run_cancelled() -> None:
    engine = World().engine()
    async for event in engine.run("goal"):
        if in_words(event) == "STARTED a":
            break
    left = engine.current_run
    assert left is not None
    engine.reset()
    assert left.stop_reason == "cancelled"
    assert_one_terminal_event_last(left.events)


async def test_a_reset_is_refused_if_another_owner_advances_the_run() -> None:
    world, begun, goes_on = World(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await goes_on.wait()

    world.during["a"] = hold
    engine = world.engine()
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    await stream.aclose()
    assert engine.restore_from_snapshot(engine.create_snapshot())
    run = engine.current_run
    assert run is not None
    run.play()
    await begun.wait()
    async for _ in engine.continue_():
        break
    with pytest.raises(UsageError, match="running"):
        engine.reset()
    goes_on.set()
    assert await run == {"a": "A", "b": "B"}


async def test_a_run_whose_model_failed_can_be_resumed_after_a_reset() -> None:
    def fail(messages: Any) -> Any:
        raise RuntimeError("down")

    engine = ConversationEngine(llm=ScriptedLLM([fail, '[{"id": "a"}]']))
    assert (await rest(engine.run("goal")))[-1] == "ERROR(down,decomposing)"
    failed = engine.current_run
    assert failed is not None
    engine.reset()
    assert failed.resume()
    assert await failed == {"a": "a"}


async def test_cancelling_a_consumer_runs_every_finally_first() -> None:
    cleaned: list[str] = []

    async def execute(task: SubTask) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(task.id)

    engine = World().engine(execute=execute)
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    pulled = asyncio.create_task(anext(stream))
    assert await is_waiting(pulled)
    pulled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulled
    assert cleaned == ["a"]
    assert engine.state is EngineState.ERROR
    assert [task.status for task in engine.tasks] == ["running", "pending"]
    assert await rest(stream) == []


@pytest.mark.parametrize("position", range(1, len(WHOLE) + 1))
async def test_cancelling_at_any_event_ends_the_stream_with_an_error(position: int) -> None:
    engine = World().engine()
    stream = engine.run("goal")
    said = await take(stream, position)
    state = engine.state
    assert engine.cancel("enough") is (state != "completed")
    said += await rest(stream)
    assert is_chain(said)
    assert [words for words in said if words.startswith(("ERROR", "DONE"))] == said[-1:]
    if state != "completed":
        last = said[position - 1]
        drained = ["SCHEDULED b"] if last == "SCHEDULED a" else []
        if last.startswith("STARTED"):  # started work is closed
            drained = [f"FAILED {last[-1]}:enough:executing"]
        assert said[position:] == [*drained, f"SC({state}>error)", f"ERROR(enough,{state})"]
        assert engine.state is EngineState.ERROR
    assert engine.cancel() is False


async def test_cancelling_during_a_task_closes_the_task_first() -> None:
    world, begun, closed = World(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()

    world.during["a"] = hold
    engine = world.engine()
    consuming = asyncio.create_task(rest(engine.run("goal")))
    await begun.wait()
    assert engine.cancel("enough")
    said = await consuming
    assert closed.is_set()
    assert said[-4:] == ["STARTED a", "FAILED a:enough:executing", "SC(executing>error)", "ERROR(enough,executing)"]
    assert engine.state is EngineState.ERROR


async def test_cancelling_a_paused_engine_ends_its_stream() -> None:
    engine, stream = await paused_after_a(World())
    pulled = asyncio.create_task(rest(stream))
    assert await is_waiting(pulled)
    assert engine.cancel()
    assert await pulled == ["SC(paused>error)", "ERROR(cancelled,executing)"]


async def test_closing_the_stream_of_a_paused_engine_ends_it_with_an_error() -> None:
    engine, stream = await paused_after_a(World())
    await stream.aclose()
    assert engine.state is EngineState.ERROR
    assert engine.resume() is False


async def test_a_task_can_pause_its_own_engine() -> None:
    world = World()
    world.during["a"] = lambda: engine.pause()
    engine = world.engine()
    async with aclosing(engine.run("goal")) as stream:
        assert (await take(stream, "PAUSED(0.5)"))[:-3] == [*PLANNED, "STARTED a"]
        engine.resume()
        assert (await rest(stream))[-1] == "DONE(2,2)"


async def test_the_published_usage_example_runs() -> None:
    engine = ConversationEngine()
    stream = engine.run("Write a report")
    first = [await stream.__anext__() for _ in range(5)]
    engine.pause()
    assert engine.current_progress == 0.0
    engine.resume()
    events = [*first, *[event async for event in stream]]
    assert notation(events)[-1] == "DONE(1,1)"
    text = json.dumps(engine.create_snapshot())
    again = ConversationEngine()
    assert again.restore_from_snapshot(json.loads(text)) is True
    assert (again.state, again.current_progress, again.total_tasks) == ("completed", 1.0, 1)
    assert await rest(again.continue_()) == []
    engine.reset()
    assert engine.state is EngineState.IDLE


# -- in a kernel ----------------------------------------------------------------------------------------------------


class Hosted(PlainPython):
    """An environment like a kernel: runs live on agentnb's own thread."""

    hosted = True


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "current", Hosted())


@pytest.mark.usefixtures("hosted")
async def test_in_a_kernel_the_events_are_the_same() -> None:
    world = World()
    engine = world.engine()
    stream = engine.run("goal")
    said = await take(stream, "STARTED a")
    await asyncio.sleep(0.02)
    assert "a" not in world.asked
    assert engine.pause()
    said += await take(stream, "PAUSED(0.5)")
    assert engine.resume()
    assert said + await rest(stream) == [
        *(*WHOLE[:11], "SC(executing>paused)", "PAUSED(0.5)", "SC(paused>executing)", "RESUMED(0.5)", *WHOLE[11:]),
    ]


@pytest.mark.usefixtures("hosted")
async def test_in_a_kernel_a_loop_can_execute_a_task() -> None:
    engine = World().engine(execute=ConversationEngine())
    said = await rest(engine.run("goal"))
    assert said[-1] == "DONE(2,2)"
    assert engine.tasks[0].result == {"task_default": "A"}


@pytest.mark.usefixtures("hosted")
async def test_in_a_kernel_closing_the_stream_ends_the_engine() -> None:
    engine = World().engine()
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    await stream.aclose()
    assert engine.state is EngineState.ERROR
    engine.reset()
    world = World()
    world.during["a"] = boom
    engine = world.engine()
    assert (await rest(engine.run("goal")))[-1] == "ERROR(boom,executing)"


@pytest.mark.usefixtures("hosted")
async def test_in_a_kernel_an_engine_can_be_reset_immediately_after_a_break() -> None:
    engine = World().engine()
    async for event in engine.run("goal"):
        if in_words(event) == "STARTED a":
            break
    engine.reset()
    assert await rest(engine.run("again")) == WHOLE


# -- the run of the core, with interference at every event ------------------------------------------------------------


async def facts_of_a_whole_run() -> int:
    run = World().engine().start("goal")
    await run
    return len(run.events)


@pytest.mark.parametrize("what", ["pause", "cancel", "steer", "close"])
async def test_pause_cancel_steer_or_close_at_any_event_leaves_a_valid_run(what: str) -> None:
    length = await facts_of_a_whole_run()
    for position in range(length):
        world = World()
        run = world.engine().start("goal")
        async with aclosing(aiter(run)) as facts:
            async for fact in facts:
                if fact.seq == position and what == "close":
                    break
                if fact.seq == position and not run.state.over:
                    getattr(run, what)("why")
                if fact.type == "run_paused":
                    run.resume()
                if fact.type == "run_end":
                    break
        over = position == length - 1
        expected = "completed" if over or what in ("pause", "steer") else "cancelled"
        assert run.stop_reason == expected
        assert run.phase in ("completed", "error", "idle")
        assert_one_terminal_event_last(run.events)
        assert_folds(run)
        assert run.state.open == {}
        assert running_tasks() == set()
        projection = EngineProjection()
        said = notation([event for fact in run.events for event in projection.translate(fact)])
        assert is_chain(said)
        assert [words for words in said if words.startswith(("ERROR", "DONE"))] == said[-1:]
        assert world.ran == ["a", "b"][: len(world.ran)]
