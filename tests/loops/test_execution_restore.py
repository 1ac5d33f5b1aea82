"""An execution loop can be restored from its journal at every position, independent of how it was stopped."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agentnb import ExecutionLoop, RunFailed, Snapshot, restore, tool
from agentnb.core.events import CallEnd, Event
from agentnb.core.evolve import fold
from agentnb.core.state import State
from agentnb.loops.execution_loop import Call, ExecutionStream, Reject
from agentnb.testing import ScriptedLLM, call, delay
from tests.benchmarks.measure import median_growth, no_collections
from tests.loops.execution_world import World, c, notation, solution
from tests.worlds import (
    assert_folds,
    assert_one_terminal_event_last,
    collect,
    facts,
    finished_calls,
    payload,
    provider_faults,
    running_tasks,
    started_calls,
    until,
)

TURNS: list[Any] = [
    solution(
        c("sum", "†state.summary", p="†state.prof"),
        c("fetch", "†state.prof", u="†input.u"),
        c("boom", "†state.never"),
        c("echo", v="†state.never"),
        c("give", "†state.list", v=1, _outputMethod="push"),
        c("give", "†state.x && †data.y", v=3),
    ),
    "no json",
    solution(
        c("give", "†state.list", v="†state.list.0", _outputMethod="push"),
        c("slow", "†state.x"),
        c("ask", "†state.z", v=2),
    ),
    solution(output={"done": True}),
]
COMES_TO = {"summary": "S:Al", "prof": {"name": "Al"}, "list": [1, 1], "x": "slow", "z": 2}


def loop_at(state: State, world: World, turns: list[Any] = TURNS) -> ExecutionLoop:
    """Return a loop whose model continues with the turn that the run needs next."""
    done = state.turn - 1 if state.model == "asked" or state.failure is not None else state.turn
    return ExecutionLoop(ScriptedLLM(turns[done:]), world.tools, context=[])


async def finished(run: Any) -> Any:
    """Advance the run to its end; approve every pending call, or answer it if its outcome is unknown."""
    run.play()
    while not run.state.over:
        for item in run.pending:
            run.answer(item, 2) if item.unknown and item.name == "ask" else run.approve(item)
        await asyncio.sleep(0)
    return run.output


@pytest.fixture
async def whole() -> Any:
    loop = World(0.001).loop(*TURNS)
    run = loop.start(None)
    assert await finished(run) == {"done": True}
    assert loop.state == COMES_TO
    return run


async def test_a_run_restored_at_any_event_has_the_same_result(whole: Any) -> None:
    for position in range(1, len(whole.events)):
        snapshot = Snapshot.from_json(Snapshot.of(whole.events[:position]).to_json())
        world = World()
        loop = loop_at(snapshot.state, world)
        run = restore_quietly(snapshot, loop)
        before = finished_calls(whole.events[:position])
        assert await finished(run) == {"done": True}, position
        assert loop.state == COMES_TO, position
        assert not set(started_calls(run.events[position:])) & set(before), position
        assert len(finished_calls(run.events)) == len(set(finished_calls(run.events))) == 9, position
        assert provider_faults([m.plain for m in run.messages if m.role != "data"]) == [], position
        assert_one_terminal_event_last(list(run.events))
        assert_folds(run)
        assert [message.get("data") for message in loop.context if message.get("kind") == "error"], position
        assert len(loop.context) == 12, position


def restore_quietly(snapshot: Snapshot, loop: ExecutionLoop) -> Any:
    return restore(snapshot, loop)


async def test_a_run_restored_without_effects_in_flight_has_the_same_events(whole: Any) -> None:
    for position in range(1, len(whole.events)):
        state = fold(whole.events[:position])
        if state.model == "asked" or any(call.status in ("running", "asking") for call in state.open.values()):
            continue
        run = restore_quietly(Snapshot.of(whole.events[:position]), loop_at(state, World(0.001)))
        await finished(run)
        assert ordered(run.events[position:]) == ordered(whole.events[position:]), position


def ordered(events: Any) -> list[Any]:
    """Return the events without what depends on timing: times, order, and which call opened a phase."""
    timeless = {"seq": 0, "attempt": 0, "phase": None}
    return sorted(str({**payload(event), **timeless, "message": _timeless(event)}) for event in events)


def _timeless(event: Event) -> Any:
    message = getattr(event, "message", None)
    return None if message is None else {k: v for k, v in message.plain.items() if k != "_date"}


async def test_the_stream_of_a_recording_is_that_of_the_live_run(whole: Any) -> None:
    loop = World(0.001).loop(*TURNS)
    stream = loop.run()
    stream.run.watch(lambda news: stream.run.approve(news.call_id) if news.type == "approval_request" else None)
    live = await collect(stream)
    again = World().loop()
    recorded = await collect(ExecutionStream(restore(stream.run.snapshot(), again), again))
    assert recorded == live
    assert notation(live)[-1] == "output"


async def test_a_call_repeated_after_a_crash_has_one_started_event() -> None:
    @tool(idempotent=True)
    async def again() -> str:
        return "done"

    def loop() -> ExecutionLoop:
        return World().loop(solution(c("again"), output=1), tools=[again])

    stream = loop().run()
    whole, events = await collect(stream), stream.run.events
    started = next(event.seq for event in events if event.type == "call_start")
    other = loop()
    told = await collect(ExecutionStream(restore(Snapshot.of(events[: started + 1]), other), other))
    assert notation(told) == notation(whole)


async def test_a_call_in_flight_is_pending_after_a_restore() -> None:
    world = World(0.05)
    run = world.loop(solution(c("slow", "†state.x"), c("sum", "†state.y", p="†state.x")), *TURNS[-1:]).start(None)
    run.play()
    await until(lambda: world.ran == ["slow"])
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run.cancel()
    loop = ExecutionLoop(ScriptedLLM(TURNS[-1:]), world.tools)
    again = restore(snapshot, loop)
    again.play()
    await until(lambda: bool(again.pending))
    [waiting] = again.pending
    assert (waiting.id, waiting.unknown) == ("c1", True)
    again.answer("c1", {"name": "Bo"})
    assert await again == {"done": True}
    assert loop.state == {"x": {"name": "Bo"}, "y": "S:Bo"}
    assert world.ran == ["slow", "sum"]


async def test_a_started_latent_call_runs_again_without_a_question() -> None:
    def loop(*turns: Any) -> ExecutionLoop:
        decide = {"_tool": "decide", "properties": {}, "_output": {"type": "integer"}}
        return World().loop(*turns, tools=[decide])

    whole = loop(solution(c("decide", "†state.n", _output=3), output="ok")).start(None)
    await whole
    begun = next(event.seq for event in whole.events if event.type == "call_start")
    again = loop(solution(c("decide", "†state.n", _output=3), output="ok"))
    run = restore(Snapshot.of(whole.events[: begun + 1]), again)
    while await run.step():
        assert run.pending == []
    assert (run.output, again.state) == ("ok", {"n": 3})


async def test_decisions_are_kept_when_restored_at_any_event() -> None:
    turns = [
        solution(c("slow"), c("echo", "†state.y", v=1), c("ask", v=2), c("fast"), c("ask", v=3)),
        solution(output=1),
    ]

    def confirm(made: Call) -> Any:
        return {"slow": Reject("no"), "echo": Call("give", v=5)}.get(made.name, True)

    async def decided(run: Any) -> None:
        run.play()
        while not run.state.over:
            for item in run.pending:
                run.answer(item, "by hand") if item.arguments == {"v": 3} else run.reject(item)
            await asyncio.sleep(0)

    world = World()
    loop = world.loop(*turns, confirm=confirm)
    run = loop.start(None)
    await decided(run)
    assert sorted(world.ran) == ["fast", "give 5"]
    for position in range(1, len(run.events)):
        state = fold(run.events[:position])
        done = state.turn - 1 if state.model == "asked" else state.turn
        again = World()
        other = ExecutionLoop(ScriptedLLM(turns[max(done, 0) :]), again.tools, confirm=confirm)
        restored = restore(Snapshot.of(run.events[:position]), other)
        await decided(restored)
        assert restored.output == 1
        assert set(again.ran) <= {"fast", "give 5"}, position
        outcomes = {event.call_id: event.outcome for event in restored.events if isinstance(event, CallEnd)}
        assert [outcomes[f"c{n}"] for n in (1, 3, 5)] == ["rejected", "rejected", "answered"], position
        assert_folds(restored)


async def test_a_run_can_be_stepped_event_by_event() -> None:
    loop = World(0.001).loop(*TURNS)
    run = loop.start(None)
    seen: list[Event] = []
    while not run.state.over:
        seen += await run.step()
        for item in run.pending:
            run.approve(item)
        await asyncio.sleep(0)
    seen += await run.step()
    assert seen == list(run.events)
    assert loop.state == COMES_TO
    assert run.output == {"done": True}


@pytest.mark.parametrize("what", ["pause", "cancel", "steer", "close"])
async def test_pause_cancel_steer_or_close_at_any_event_leaves_a_valid_history(whole: Any, what: str) -> None:
    for position in range(len(whole.events)):
        loop = World(0.0005).loop(*TURNS, *([solution(output={"done": True})] * 3))
        run = loop.start(None)

        def act(news: Any, run: Any = run, position: int = position) -> None:
            if news.type == "approval_request":
                run.approve(news.call_id)
            if news.seq == position and not news.terminal:
                {"pause": run.pause, "cancel": run.cancel, "steer": lambda: run.steer("hm"), "close": str}[what]()

        run.watch(act)
        events = aiter(run)
        async for event in events:
            if event.type == "run_paused":
                run.resume()
            if what == "close" and event.seq == position:
                break
        await events.aclose()
        assert_one_terminal_event_last(facts(run.events))
        assert_folds(run)
        assert provider_faults([m.plain for m in run.messages if m.role != "data"]) == []
        assert running_tasks() == set()
        if what in ("pause", "steer") and run.stop_reason != "cancelled":
            assert (run.output, loop.state) == ({"done": True}, COMES_TO), position


@pytest.mark.parametrize("cut", range(1, 30, 2))
async def test_an_answer_interrupted_anywhere_is_requested_again_and_no_call_runs_twice(cut: int) -> None:
    turn = solution(c("fetch", "†state.prof", u="†input.u"), c("sum", "†state.s", p="†state.prof"), pieces=30)
    slow_turn = [part for chunk in turn for part in (chunk, delay(0.0005))]
    world = World()
    loop = world.loop([*slow_turn[: 2 * cut], ConnectionError("cut")], turn, solution(output=1))
    run = loop.start(None)
    with pytest.raises(RunFailed):
        await run
    assert run.resume()
    assert await run == 1
    assert world.ran == ["fetch alice", "sum"]
    assert loop.state == {"prof": {"name": "Al"}, "s": "S:Al"}
    assert provider_faults([m.plain for m in run.messages if m.role != "data"]) == []
    assert_folds(run)


@pytest.mark.alone
def test_the_cost_of_a_request_does_not_grow_with_the_length_of_the_run() -> None:
    turns = 800

    async def requests() -> list[float]:
        marks: list[float] = []

        def turn(messages: Any) -> list[Any]:
            marks.append(time.process_time())
            if len(marks) > turns:
                return solution(output="end", pieces=1)
            return solution(c("give", "†state.n", v="†state.n || †input.u"), pieces=2)

        loop = World().loop(*([turn] * (turns + 1)))
        assert await loop.start(None) == "end"
        assert len(loop.context) == turns + 1
        return marks

    assert median_growth(lambda: asyncio.run(requests()), turns // 10) < 3


@pytest.mark.alone
async def test_the_cost_of_an_answer_is_linear_in_its_length() -> None:
    async def seconds(calls: int) -> float:
        answer = solution(*(c("give", v="x" * 50) for _ in range(calls)), output=1, pieces=60 * calls)
        loop = World().loop(answer)
        with no_collections():
            began = time.process_time()
            assert await loop.start(None) == 1
            return time.process_time() - began

    await seconds(20)
    short, long = [min([await seconds(calls) for _ in range(3)]) for calls in (100, 400)]
    assert long < 9 * short


async def test_native_calls_can_be_restored() -> None:
    turns: list[Any] = [[call("fetch", {"u": "†input.u", "_outputPath": "†state.p"})], "The end."]
    run = World().loop(*turns).start(None)
    assert await run == "The end."
    for position in range(1, len(run.events)):
        snapshot = Snapshot.of(run.events[:position])
        world = World()
        loop = loop_at(snapshot.state, world, turns)
        again = restore(snapshot, loop)
        assert await finished(again) == "The end.", position
        assert loop.state == {"p": {"name": "Al"}}
