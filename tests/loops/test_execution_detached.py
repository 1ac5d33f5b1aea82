"""Detached tools are awaited at the end of the run (execution_loop/SEMANTICS.md, 10. Detached tools)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentnb import ExecutionLoop, RunCancelled, RunFailed, Snapshot, restore, tool
from agentnb.core.calls import RUNS_ON
from agentnb.core.events import CallStart
from agentnb.testing import ScriptedLLM, call, text
from tests.loops.execution_world import World, c, data_told, errors_told, notation, solution
from tests.worlds import assert_one_terminal_event_last, collect, running_tasks, types, until


class Background(World):
    """The activities, and a detached one that ends when the test opens its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.closed: list[Any] = []

        @tool(detached=True)
        async def watch(v: Any) -> Any:
            self.ran.append(f"watch {v}")
            try:
                await self.gate.wait()
            finally:
                self.closed.append(v)
            if v == "bad":
                raise RuntimeError("gone wrong")
            return v

        @tool
        async def let_end() -> str:
            self.gate.set()
            await until(lambda: bool(self.closed))
            await asyncio.sleep(0)
            return "let"

        self.tools += [watch, let_end]


async def told(loop: ExecutionLoop) -> list[str]:
    async with asyncio.timeout(60):
        return notation(await collect(loop.run()))


async def test_the_next_request_starts_during_a_detached_call_and_later_ones_get_its_data() -> None:
    world = Background()
    loop = world.loop(
        solution(c("watch", "†state.w", v="seen")),
        solution(c("fast"), c("let_end")),
        solution(c("echo", "†state.e", v="†state.w")),
        solution(output="ok"),
    )
    said = await told(loop)
    assert said.index("request 2") < said.index("done c1") < said.index("completed 2")
    assert (said.count("started c1"), said.count("done c1")) == (1, 1)
    assert "state" not in [message.get("kind") for message in map(dict, data_told(loop, 1))]
    assert data_told(loop, 2) == [{"w": "seen"}]
    assert loop.state == {"w": "seen", "e": {"v": "seen"}}


async def test_a_turn_ends_when_its_last_detached_call_has_started() -> None:
    world = Background()
    loop = world.loop(solution(c("watch", v=1)), solution(c("let_end")), solution(output="ok"))
    run = loop.start(None, approve=lambda proposed: True if proposed.name == "let_end" else None)
    await run.step("turn")
    run.approve(run.pending[0].id)
    first, second = await run.step("turn"), await run.step("turn")
    assert types(first) == ["approval_decision", "call_start"]
    assert types(second)[-2:] == ["call_end", "call_end"]
    assert await run == "ok"


async def test_the_end_of_the_run_waits_for_a_detached_call_and_keeps_its_data() -> None:
    world = Background()
    loop = world.loop(solution(c("watch", "†state.w", v=1), output="early"))
    run = loop.start(None)
    run.play()
    async with asyncio.timeout(60):
        await until(lambda: bool(world.ran and (run.phase == "updating" or run.state.model == "idle")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not run.state.over
        world.gate.set()
        assert await run == "early"
    assert_one_terminal_event_last(run.events)
    assert [event.type for event in run.events[-3:]] == ["call_end", "message", "run_end"]
    assert loop.state == {"w": 1}
    assert running_tasks() == set()


async def test_an_error_of_a_detached_call_is_sent_with_the_next_request() -> None:
    world = Background()
    loop = world.loop(solution(c("watch", v="bad")), solution(c("let_end")), solution(c("fast")), solution(output="ok"))
    said = await told(loop)
    assert "failed c1 runtime" in said
    assert [len(errors_told(loop, n)) for n in range(4)] == [0, 0, 1, 0]
    assert errors_told(loop, 2)[0] == {"call": {"_tool": "watch", "v": "bad"}, "error": "RuntimeError: gone wrong"}


async def test_an_error_of_a_detached_call_at_the_end_is_in_the_result() -> None:
    world = Background()
    world.gate.set()
    loop = world.loop(solution(c("watch", v="bad"), output="anyway"))
    async with asyncio.timeout(60):
        *_, last = await collect(loop.run())
    assert (last.reason, last.output) == ("output", "anyway")
    assert [error.error for error in last.errors or ()] == ["RuntimeError: gone wrong"]


async def test_a_reference_to_data_of_a_detached_call_is_an_error_immediately() -> None:
    world = Background()
    loop = world.loop(
        solution(c("watch", "†state.w", v=1), c("echo", v="†state.w")), solution(c("let_end")), solution(output="ok")
    )
    said = await told(loop)
    assert said.index("failed c2 structural") < said.index("request 2")
    assert "watch" in str(errors_told(loop, 1)[0]["error"])


async def test_a_late_plain_value_is_dropped_and_a_late_message_is_appended() -> None:
    late = asyncio.Event()

    @tool(detached=True)
    async def note() -> dict[str, Any]:
        await late.wait()
        return {"type": "data", "kind": "note", "data": {"a": 1}}

    @tool(detached=True)
    async def plain() -> int:
        await late.wait()
        return 5

    @tool
    async def go() -> None:
        late.set()

    loop = World().loop(
        solution(c("note"), c("plain")), solution(c("go")), solution(output="ok"), tools=[note, plain, go]
    )
    await told(loop)
    assert [m["data"] for m in loop.context if m["kind"] not in ("input", "error")] == [{"a": 1}]


async def test_a_request_without_calls_waits_for_a_detached_call_and_is_not_a_stall() -> None:
    world = Background()
    loop = world.loop(solution(c("watch", "†state.w", v=1)), solution(), solution(output="ok"))
    run = loop.start(None)
    run.play()
    async with asyncio.timeout(60):
        await until(lambda: run.state.turn == 2 and run.state.model == "idle")
        world.gate.set()
        assert await run == "ok"
    assert run.state.turn == 3


async def test_cancelling_the_run_closes_a_detached_call_once() -> None:
    world = Background()
    loop = world.loop(solution(c("watch", "†state.w", v=1)), solution(c("slow"), output="ok"))
    run = loop.start(None)
    run.watch(lambda event: event.type == "call_end" and run.cancel("enough"))
    with pytest.raises(RunCancelled):
        await run
    assert world.closed == [1]
    ends = [event.call_id for event in run.events if event.type == "call_end"]
    assert sorted(ends) == ["c1", "c2"]
    assert_one_terminal_event_last(run.events)
    assert running_tasks() == set()


async def test_closing_the_stream_closes_a_detached_call() -> None:
    world = Background()
    stream = world.loop(solution(c("watch", v=1)), solution(output="ok")).run()
    async for event in stream:
        if event.type == "request_started" and event.n == 2:
            break
    await stream.aclose()
    assert world.closed == [1]
    assert running_tasks() == set()


async def test_a_failed_model_request_is_reported_after_detached_calls_and_no_call_runs_twice() -> None:
    world = Background()
    loop = world.loop(solution(c("watch", "†state.w", v=1)), [RuntimeError("down")], solution(output="ok"))
    run = loop.start(None)
    run.watch(lambda event: event.type == "model_error" and world.gate.set())
    with pytest.raises(RunFailed):
        async with asyncio.timeout(60):
            await run
    assert running_tasks() == set()
    run.resume()
    assert await run == "ok"
    assert (world.ran, loop.state) == (["watch 1"], {"w": 1})


async def test_a_detached_call_of_unknown_outcome_is_pending_while_the_run_continues() -> None:
    world = Background()
    script = [solution(c("watch", "†state.w", v=1)), solution(c("fast")), solution(output="ok")]

    async def killed(messages: Any) -> str:
        await until(lambda: bool(world.ran))
        run.cancel("killed")
        return "never said"

    run = world.loop(script[0], killed).start(None)
    with pytest.raises(RunCancelled):
        await run
    left = next(event.seq for event in run.events if event.type == "model_start" and event.turn == 2)
    taken = Snapshot.from_json(Snapshot.of(run.events[: left + 1]).to_json())
    again = restore(taken, ExecutionLoop(ScriptedLLM(script[1:]), world.tools, context=[]))
    again.play()
    async with asyncio.timeout(60):
        await until(lambda: again.state.turn == 3 and again.state.model == "idle")
        (item,) = again.pending
        assert (item.id, item.unknown) == ("c1", True)
        again.answer("c1", "it had happened")
        assert await again == "ok"
    assert world.ran == ["watch 1", "fast"]
    assert again.loop.state == {"w": "it had happened"}  # type: ignore[attr-defined]


async def test_a_detached_tool_with_approval_starts_only_after_approval() -> None:
    ran: list[int] = []

    @tool(detached=True, approve=True)
    async def send(n: int) -> None:
        ran.append(n)

    loop = World().loop(solution(c("send", n=1), c("send", n=2)), solution(output="ok"), tools=[send])
    run = loop.start(None)
    run.play()
    async with asyncio.timeout(60):
        await until(lambda: len(run.pending) == 2)
        run.approve("c1")
        run.reject("c2", "no")
        await run
    assert ran == [1]
    assert [e.detached for e in run.events if isinstance(e, CallStart)] == [True]


async def test_detached_calls_do_not_count_against_the_concurrency_limit() -> None:
    world = Background()
    loop = world.loop(
        solution(c("watch", v=1), c("watch", v=2), c("fast", "†state.f")),
        solution(c("let_end"), output="ok"),
        max_concurrency=1,
    )
    said = await told(loop)
    assert said.index("done c3") < said.index("request 2")
    assert world.ran[:3] == ["watch 1", "watch 2", "fast"]


@pytest.mark.parametrize("confirm", [None, lambda call: True])
async def test_a_detached_call_does_not_wait_for_the_concurrency_limit(confirm: Any) -> None:
    world = Background()

    @tool
    async def hold() -> None:
        await until(lambda: "watch 1" in world.ran)
        world.gate.set()

    loop = world.loop(
        solution(c("hold"), c("watch", v=1), output="ok"),
        tools=[*world.tools, hold], max_concurrency=1, confirm=confirm,
    )  # fmt: skip
    async with asyncio.timeout(60):
        assert await loop.start(None) == "ok"


async def test_a_native_detached_call_has_exactly_one_result_immediately() -> None:
    world = Background()
    turns = [[call("watch", {"v": "bad"}, id="x")], [call("let_end", {}, id="y")], text("done")]
    loop = ExecutionLoop(ScriptedLLM(turns), world.tools, native=True)
    async with asyncio.timeout(60):
        assert await loop.start("go") == "done"
    requests = loop.llm.requests
    said = [message["content"] for message in requests[1].messages if message["role"] == "tool"]
    assert said == [RUNS_ON]
    assert "gone wrong" in str(requests[2].messages[-1]["content"])
    assert [m["tool_call_id"] for m in requests[2].messages if m["role"] == "tool"] == ["c1", "c2"]


async def test_a_step_by_turn_does_not_wait_for_a_detached_call() -> None:
    world = Background()
    run = world.loop(solution(c("watch", v=1), c("fast")), solution(output="ok")).start(None)
    async with asyncio.timeout(60):
        events = await run.step("turn")
        assert [event.type for event in events if event.type == "call_end"] == ["call_end"]
        world.gate.set()
        while not run.state.over:
            await run.step("turn")
    assert [e.type for e in run.events].count("run_end") == 1


async def test_the_prompt_states_which_tools_are_detached() -> None:
    schema = {"_tool": "log", "properties": {}, "detached": True}
    loop = World().loop(solution(output=1), tools=[schema, *Background().tools], activities={"log": lambda *_: None})
    await told(loop)
    words = str(loop.llm.requests[0].messages[0]["content"])
    assert words.count("It runs on by itself") == 2
