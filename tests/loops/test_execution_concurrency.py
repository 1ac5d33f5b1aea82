"""The concurrency limit: a pending approval does not count (execution_loop/SEMANTICS.md, 5. Algorithm)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentnb import tool
from agentnb.loops.execution_loop import Call, Reject
from tests.benchmarks.measure import least_seconds
from tests.loops.execution_world import World, c, solution


async def test_a_call_waiting_for_confirm_does_not_block_other_calls() -> None:
    has_run = asyncio.Event()

    async def confirm(call: Call) -> bool:
        if call.name == "slow":
            await has_run.wait()
        return True

    world = World()
    loop = world.loop(solution(c("slow"), c("fast"), output=1), confirm=confirm, max_concurrency=1)
    async with asyncio.timeout(60):
        async for event in loop.run():
            if event.type == "call_completed":
                has_run.set()
    assert world.ran == ["fast", "slow"]


async def test_a_call_waiting_for_a_policy_does_not_block_other_calls() -> None:
    has_run = asyncio.Event()

    async def policy(asked: Any) -> bool:
        if asked.name == "slow":
            await has_run.wait()
        return True

    world = World()
    loop = world.loop(solution(c("slow"), c("fast"), output=1), max_concurrency=1)
    async with asyncio.timeout(60):
        async for event in loop.run(approve=policy):
            if event.type == "call_completed":
                has_run.set()
    assert world.ran == ["fast", "slow"]


@pytest.mark.parametrize("limit", [1, 2])
async def test_confirmed_calls_respect_the_concurrency_limit(limit: int) -> None:
    running, most, asked = 0, 0, 0
    all_are_asked, all_run = asyncio.Event(), asyncio.Event()

    async def confirm(call: Call) -> bool:
        nonlocal asked
        asked += 1
        if asked == 6:
            all_are_asked.set()
        await all_are_asked.wait()
        return True

    @tool
    async def work(n: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        if running == limit:
            all_run.set()
        await all_run.wait()
        await asyncio.sleep(0)
        running -= 1
        return n

    calls = solution(*(c("work", n=n) for n in range(6)), output=1)
    loop = World().loop(calls, tools=[work], max_concurrency=limit, confirm=confirm)
    async with asyncio.timeout(60):
        assert await loop.start(None) == 1
    assert (most, asked) == (limit, 6)


async def test_a_rejection_takes_effect_while_another_call_runs() -> None:
    is_told = asyncio.Event()

    @tool
    async def work() -> None:
        await is_told.wait()

    def confirm(call: Call) -> Any:
        return True if call.name == "work" else Reject("no")

    loop = World().loop(
        solution(c("work"), c("echo", v=1)), solution(output=1), tools=[work, *World().tools], max_concurrency=1,
        confirm=confirm,
    )  # fmt: skip
    async with asyncio.timeout(60):
        async for event in loop.run():
            if event.type == "call_rejected":
                is_told.set()


async def test_a_call_waiting_for_the_limit_is_confirmed_again_if_its_data_has_changed() -> None:
    asked: list[Any] = []

    def confirm(call: Call) -> bool:
        asked.append((call.name, call.arguments))
        return True

    world = World()
    context = [{"type": "data", "kind": "state", "data": {"a": 1}}]
    calls = c("give", "†state.a", v=2), c("echo", v="†state.a")
    loop = world.loop(solution(*calls, output=1), context=context, confirm=confirm, max_concurrency=1)
    await loop.start(None)
    assert world.ran == ["give 2", "echo 2"]
    assert asked == [("give", {"v": 2}), ("echo", {"v": 1}), ("echo", {"v": 2})]


async def test_a_step_ends_when_only_a_decision_can_advance_the_run() -> None:
    inner = World().loop(solution(c("ask", v=1)), solution(output="in"), name="inner")
    tools = [{"_tool": "deep", "properties": {}, "_delegate": "inner"}, *World().tools]
    loop = World().loop(
        solution(c("deep", "†state.d"), c("fast", "†state.f")), solution(output=1), tools=tools,
        delegates={"inner": inner}, confirm=lambda call: True, max_concurrency=1,
    )  # fmt: skip
    run = loop.start(None)
    async with asyncio.timeout(60):
        while await run.step():
            pass
        assert [waiting.name for waiting in run.pending] == ["ask"]
        run.approve(run.pending[0].id)
        assert await run == 1
    assert loop.state == {"d": "in", "f": "fast"}


@pytest.mark.parametrize("confirm", [None, lambda call: True])
def test_the_cost_of_waiting_calls_is_linear_in_each_completed_call(confirm: Any) -> None:
    def chain(length: int) -> Any:
        calls = [c("give", f"†state.n{n}", v=f"†state.n{n + 1}") for n in range(length)]
        last = c("give", f"†state.n{length}", v=1)
        options: dict[str, Any] = {"confirm": confirm, "max_concurrency": 1 if confirm else None}
        return World().loop(solution(*calls, last, output=1), **options).start(None)

    async def follow(length: int) -> None:
        assert await chain(length) == 1

    seconds = least_seconds({"few": lambda: follow(50), "many": lambda: follow(400)}, 2)
    assert seconds["many"] < 64 * 2 * seconds["few"]  # eight times as many calls have 64 times as many pairs
