from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from typing import Any

import pytest

from agentnb import LimitReached, Loop, Run, RunCancelled, RunFailed, SessionLoop, Snapshot, UsageError, tool
from agentnb.core.events import Event, ModelStart, RunEnd, StateUpdate
from agentnb.core.state import State
from agentnb.run import runs_here
from agentnb.testing import ScriptedLLM, call, text
from tests.run.agents import Agent, sends
from tests.worlds import (
    asks,
    assert_folds,
    assert_one_terminal_event_last,
    collect,
    output_of,
    provider_faults,
    types,
    until,
)

WHOLE = [
    *("run_start", "message", "model_start", "model_end", "call_start", "call_start", "call_end", "call_end"),
    *("model_start", "model_end", "run_end"),
]


async def test_a_run_has_no_events_before_it_is_driven() -> None:
    agent = Agent()
    run = agent.two_turns().start("hi")
    await asyncio.sleep(0)
    assert run.events == []
    assert run.stop_reason is None
    assert not run.driven


async def test_stepping_by_event_returns_each_event_once() -> None:
    run = Agent().two_turns().start("hi")
    steps = []
    while step := await run.step():
        steps.append(step)
    assert all(len(step) == 1 for step in steps)
    assert types(event for step in steps for event in step) == WHOLE
    assert await run.step() == []
    assert await run == "done"


@pytest.mark.parametrize(
    ("unit", "ends"),
    [
        ("call", ["call_end", "call_end", "run_end"]),
        ("turn", ["call_end", "model_end", "run_end"]),
        ("phase", ["message", "model_start", "call_start", "model_start", "run_end"]),
    ],
)
async def test_a_step_ends_with_its_unit(unit: Any, ends: list[str]) -> None:
    run = Agent().two_turns().start("hi")
    steps = []
    while step := await run.step(unit):
        steps.append(step)
    assert [step[-1].type for step in steps] == ends
    assert types(event for step in steps for event in step) == WHOLE
    assert [event.seq for step in steps for event in step] == list(range(len(WHOLE)))


async def test_a_step_starts_no_effect_after_its_end() -> None:
    agent = Agent()
    run = agent.two_turns().start("hi")
    while types(run.events)[-1:] != ["model_end"]:
        await run.step()
    await asyncio.sleep(0)
    assert agent.ran == []
    assert len(run.loop.llm.requests) == 1


async def test_an_unknown_unit_is_refused_without_an_event() -> None:
    run = Agent().two_turns().start("hi")
    with pytest.raises(UsageError, match="event, call, turn, phase"):
        await run.step("second")  # type: ignore[arg-type]
    assert run.events == []


@pytest.mark.parametrize(
    ("says", "last"), [("done", "run_end"), ([ConnectionError("down")], "model_error")], ids=["the end", "a failure"]
)
async def test_a_step_of_a_playing_run_ends_with_the_run_or_a_model_failure(says: Any, last: str) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(messages: Any) -> Any:
        asked.set()
        await go_on.wait()
        return says

    run = Agent().loop(late).start("hi")
    run.play()
    await asked.wait()
    step = asyncio.create_task(run.step("call"))
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(60):
        assert types(await step)[-1] == last


async def test_a_second_concurrent_step_is_refused() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    step = asyncio.create_task(run.step("turn"))
    await agent.holding.wait()
    with pytest.raises(UsageError, match="running already"):
        await run.step()
    agent.release.set()
    assert (await step)[-1].type == "call_end"


async def test_running_calls_continue_between_steps() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    while types(run.events)[-1:] != ["call_start"]:
        await run.step()
    await agent.holding.wait()
    agent.release.set()
    assert types(await run.step()) == ["call_end"]
    assert agent.ran == ["hold"]


async def test_a_run_can_be_stepped_and_then_played_to_its_end() -> None:
    run = Agent().two_turns().start("hi")
    await run.step("turn")
    assert await run == "done"
    assert types(run.events) == WHOLE


@pytest.mark.parametrize(
    ("unit", "taken"),
    [("event", ["model_start"]), ("turn", ["model_start", "model_end", "call_start", "call_end"])],
)
@pytest.mark.parametrize("drive", ["play", "await"])
async def test_a_step_after_a_pause_continues_the_run_of_any_driver(drive: str, unit: Any, taken: list[str]) -> None:
    run = Agent().loop(asks("a"), asks("b"), "done").start("hi", breakpoints=[{"event": "call_end"}])
    if drive == "play":
        run.play()
    waiting = asyncio.create_task(output_of(run))
    await until(lambda: run.state.paused)
    at = len(run.events)
    events = await run.step(unit)
    assert [event.seq for event in events] == list(range(at, len(run.events)))
    assert types(events) == taken
    run.cancel()
    with pytest.raises(RunCancelled):
        await waiting


async def test_a_step_ends_when_only_a_decision_can_continue_the_run() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    events = await run.step("turn")
    assert types(events)[-1] == "approval_request"
    assert [waiting.id for waiting in run.pending] == ["a"]
    assert await run.step("turn") == []
    run.approve("a")
    assert types(await run.step("turn")) == ["approval_decision", "call_start", "call_end"]


async def test_repeated_steps_let_another_task_decide() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")

    async def approve() -> None:
        run.approve("a")

    await run.step("turn")
    deciding = asyncio.create_task(approve())
    assert await run.step() == []
    assert deciding.done()


async def test_a_pause_lets_running_calls_finish_and_starts_no_new_ones() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    assert run.pause("a look")
    assert not run.pause()
    agent.release.set()
    await until(lambda: run.state.paused)
    assert types(run.events)[-2:] == ["call_end", "run_paused"]
    assert run.events[-1].reason == "a look"
    assert len(run.loop.llm.requests) == 1
    assert run.resume()
    assert not run.resume()
    assert await run == "done"
    assert types(run.events)[-4:] == ["run_resumed", "model_start", "model_end", "run_end"]


async def test_a_pause_with_a_lone_surrogate_in_its_reason_can_be_read_again() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    assert run.pause("half a \ud83d")
    agent.release.set()
    await until(lambda: run.state.paused)
    assert Snapshot.from_json(run.snapshot().to_json()).events[-1].reason == "half a \N{REPLACEMENT CHARACTER}"
    run.resume()
    assert await run == "done"


async def test_pausing_a_run_that_is_not_driven_or_has_ended_has_no_effect() -> None:
    run = Agent().loop("done").start("hi")
    assert run.pause() is False
    assert run.resume() is False
    assert run.events == []
    await run
    before = run.events
    assert run.pause() is False
    assert run.resume() is False
    assert run.cancel() is False
    run.play()
    assert run.events == before


@pytest.mark.parametrize("reason", [None, 5, ["why"]])
async def test_a_reason_that_is_not_text_is_refused_without_an_event(reason: Any) -> None:
    run = Agent().loop("done").start("hi")
    await run.step()
    before = list(run.events)
    for act in (run.pause, run.cancel):
        with pytest.raises(UsageError, match="takes a text"):
            act(reason)
    assert run.events == before
    assert await run == "done"


async def test_a_pending_pause_can_be_withdrawn() -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    assert run.pause()
    assert run.resume()
    agent.release.set()
    assert await run == "done"
    assert "run_paused" not in types(run.events)


async def test_a_loop_that_pauses_its_own_run_sends_no_request() -> None:
    class Shy(Loop):
        def advance(self, state: State) -> Event:
            if state.messages:
                return RunEnd(reason="completed", output=state.messages[-1].content)
            assert run.pause()
            return ModelStart(turn=1)

    run = Shy(ScriptedLLM(["done"])).start("hi")
    run.play()
    await until(lambda: run.state.paused or run.state.over)
    assert types(run.events) == ["run_start", "model_start", "run_paused"]
    run.resume()
    assert await run == "done"


@pytest.mark.parametrize("position", range(len(WHOLE) - 1))
async def test_pausing_and_resuming_at_any_event_does_not_change_the_run(position: int) -> None:
    run = Agent().two_turns().start("hi")
    run.watch(lambda event: event.seq == position and run.pause())
    run.play()
    await until(lambda: run.state.paused or run.state.over)
    assert run.state.paused or position == len(WHOLE) - 2
    run.resume()
    assert await run == "done"
    assert [kind for kind in types(run.events) if kind not in ("run_paused", "run_resumed")] == WHOLE
    assert_folds(run)


@pytest.mark.parametrize(
    ("breakpoint", "at"),
    [
        ("model_end", ["model_end", "model_end"]),
        ("echo", ["call_start"]),
        ("acting", ["call_start"]),
        (lambda event, state: event.type == "model_start" and state.turn == 2, ["model_start"]),
        ("call_end", ["call_end"]),
    ],
)
async def test_a_run_pauses_at_its_breakpoints(breakpoint: Any, at: list[str]) -> None:
    run = Agent().loop(asks("a"), "done").start("hi", breakpoints=[breakpoint])
    run.play()
    for expected in at:
        await until(lambda: run.state.paused)
        pause = run.events[-1]
        assert f"breakpoint at {expected}" in pause.reason
        run.resume()
    assert await run == "done"


async def test_a_breakpoint_at_model_start_stops_before_the_request() -> None:
    run = Agent().loop("done").start("hi", breakpoints=["model_start"])
    run.play()
    await until(lambda: run.state.paused)
    assert run.loop.llm.requests == []
    run.resume()
    await run
    assert len(run.loop.llm.requests) == 1


def test_a_background_run_without_references_continues_and_is_found() -> None:
    def begin() -> None:
        asked = threading.Event()
        run = SessionLoop(ScriptedLLM([[call("shown")], "done"]), [shown]).start("hi", name="nobody's")
        run.watch(lambda event: asked.set() if event.type == "approval_request" else None)
        run.play()
        assert asked.wait(10)

    def found() -> list[Run]:
        gc.collect()
        return [run for run in runs_here() if run.name == "nobody's"]

    @tool(approve=True)
    def shown() -> str:
        return "shown"

    begin()
    [run] = found()
    run.approve(run.pending[0].id)
    assert run.result(10) == "done"
    del run
    while found():  # agentnb's thread releases it a moment after the waiting caller has the result
        time.sleep(0.01)


async def test_a_failing_breakpoint_pauses_the_run_with_the_error_and_is_disabled() -> None:
    def at_two(event: Any, state: Any) -> bool:
        return event.turn == 2

    run = Agent().loop("done").start("hi", breakpoints=[at_two])
    run.play()
    await until(lambda: run.state.paused)
    assert run.paused_for == (
        "breakpoint at run_start (seq 0): at_two failed and was disabled"
        " (AttributeError: 'RunStart' object has no attribute 'turn')"
    )
    assert not run.breakpoints[0].enabled
    run.resume()
    assert await run == "done"


def test_a_value_that_is_not_a_breakpoint_is_refused() -> None:
    with pytest.raises(UsageError, match="breakpoint"):
        Agent().loop("done").start("hi", breakpoints=[7])


@pytest.mark.parametrize(
    ("limits", "requests", "calls"),
    [
        ({"turns": 1}, 1, 2),
        ({"turns": 0}, 0, 0),
        ({"calls": 1}, 1, 1),
        ({"calls": 0}, 1, 0),
        ({"tokens": 10}, 1, 0),
        ({"cost": 0.5}, 1, 0),
        ({"turns": 9, "calls": 1}, 1, 1),
    ],
)
@pytest.mark.parametrize("tool_execution", ["parallel", "sequential"])
async def test_a_limit_ends_the_run(limits: dict[str, float], requests: int, calls: int, tool_execution: Any) -> None:
    agent = Agent()
    turn = [*asks("a", "b"), {"type": "usage", "input_tokens": 6, "output_tokens": 4, "cost": 0.5}]
    run = agent.loop(turn, "done", tool_execution=tool_execution).start("hi", limits=limits)
    with pytest.raises(LimitReached, match=next(name for name in reversed(limits))):
        await run
    assert run.stop_reason == "limit"
    assert len(run.loop.llm.requests) == requests
    assert types(run.events).count("call_start") == calls
    assert provider_faults(run.messages) == []
    assert_one_terminal_event_last(run.events)
    assert_folds(run)
    with pytest.raises(LimitReached):
        await run


async def test_a_cost_limit_without_reported_cost_ends_the_run() -> None:
    turn = [*asks("a"), {"type": "usage", "input_tokens": 6, "output_tokens": 4}]
    run = Agent().loop(turn, "done").start("hi", limits={"cost": 5})
    with pytest.raises(LimitReached, match="reports tokens but no cost"):
        await run
    assert len(run.loop.llm.requests) == 1


async def test_a_limit_on_seconds_cancels_running_calls() -> None:
    agent = Agent()
    run = agent.loop(asks("hold")).start("hi", limits={"seconds": 0.5})
    with pytest.raises(LimitReached, match="seconds"):
        async with asyncio.timeout(60):
            await run
    assert agent.closed == ["hold"]
    assert run.messages[-1].is_error


@pytest.mark.parametrize("wrong", [{"hours": 1}, {"turns": -1}, {"turns": True}, {"turns": "3"}, {"cost": math.nan}])
def test_an_unknown_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="limits"):
        Agent().loop("done").start("hi", limits=wrong)


async def test_steering_is_recorded_when_the_method_returns() -> None:
    run = Agent().loop("one", "two").start("hi")
    run.steer("S")
    run.follow_up("F")
    assert types(run.events) == ["run_start", "queued", "queued"]
    await run
    assert [m.content for m in run.messages] == ["hi", "S", "one", "F", "two"]
    with pytest.raises(UsageError, match="has ended"):
        run.steer("late")


async def test_a_model_failure_pauses_the_run_and_a_step_repeats_the_request() -> None:
    run = Agent().loop([*text("par tial"), ConnectionError("cut")], "done").start("hi")
    with pytest.raises(RunFailed, match="cut") as failed:
        await run
    assert isinstance(failed.value.__cause__, ConnectionError)
    assert run.stop_reason is None
    assert run.events[-1].type == "model_error"
    assert run.events[-1].partial == "par tial"
    with pytest.raises(RunFailed, match="cut"):
        await run
    assert len(run.loop.llm.requests) == 1
    steps = await run.step("turn")
    assert types(steps)[-1] == "model_end"
    assert await run == "done"
    assert [event.attempt for event in run.events if event.type == "model_start"] == [1, 2]


async def test_resume_repeats_a_failed_request_for_a_new_consumer() -> None:
    run = Agent().loop([ConnectionError("cut")], [ConnectionError("again")], "done").start("hi")
    for words in ("cut", "again"):
        with pytest.raises(RunFailed, match=words):
            await collect(run)
        assert run.resume()
    events = await collect(run)
    assert events[-1].type == "run_end"
    assert run.output == "done"


async def test_resume_repeats_a_failed_request_in_the_background() -> None:
    run = Agent().loop([ConnectionError("cut")], "done").start("hi")
    run.play()
    await until(lambda: run.state.failure is not None and not run.driven)
    assert run.resume()
    await until(lambda: run.state.over)
    assert run.output == "done"


async def test_a_step_after_a_failure_in_the_background_advances_one_step_only() -> None:
    run = Agent().loop([ConnectionError("cut")], asks("a"), "done").start("hi")
    run.play()
    await until(lambda: run.state.failure is not None and not run.driven)
    assert types(await run.step("turn"))[-1] == "call_end"
    assert not run.driven


async def test_a_step_reports_a_failed_model_as_an_event() -> None:
    run = Agent().loop([ConnectionError("cut")], "done").start("hi")
    assert types(await run.step("turn"))[-1] == "model_error"
    assert types(await run.step("turn"))[-1] == "model_end"


async def test_a_run_that_only_records_events_lets_other_tasks_run() -> None:
    class Endless(Loop):
        def advance(self, state: State) -> Event:
            return StateUpdate(values={"n": state.position})

    run = Endless().start(None)
    asyncio.get_running_loop().call_later(0.02, run.cancel)
    with pytest.raises(RunCancelled):
        await run
