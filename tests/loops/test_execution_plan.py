"""Plans: the calls of one request, sent with the next one (execution_loop/SEMANTICS.md, 9. Plans)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentnb import ExecutionLoop, Snapshot, UsageError, restore
from agentnb.loops.execution_loop.dataflow import Node, find_cycle
from agentnb.loops.execution_loop.references import parse_expression
from agentnb.testing import ScriptedLLM
from tests.loops.execution_world import World, c, data_told, errors_told, notation, solution
from tests.worlds import collect, until

STEPS = [c("echo", "†state.b", v="†state.a"), c("fast", "†state.a")]
CIRCLE = [c("echo", "†state.a", v="†state.b"), c("echo", "†state.b", v="†state.a"), c("fast", "†state.f")]


async def told(loop: ExecutionLoop, *given: Any) -> list[str]:
    async with asyncio.timeout(60):
        return notation(await collect(loop.run(*given)))


def plans_told(loop: ExecutionLoop, request: int) -> list[Any]:
    return data_told(loop, request, "plan")


async def test_without_a_plan_mode_no_plan_is_recorded() -> None:
    loop = World().loop(solution(*STEPS), solution(output=1))
    await told(loop)
    assert plans_told(loop, 1) == []
    assert "plan" not in [message["kind"] for message in loop.context]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
async def test_the_calls_of_a_request_are_the_plan_in_the_next_request(mode: Any) -> None:
    loop = World().loop(solution(*STEPS), solution(c("boom")), solution(), plan=mode)
    said = await told(loop)
    assert said[-1] == "stalled"
    assert [plans_told(loop, n) for n in range(3)] == [
        [],
        [{"mode": mode, "calls": STEPS}],
        [{"mode": mode, "calls": [c("boom")]}],
    ]
    assert loop.state == {"a": "fast", "b": {"v": "fast"}}


async def test_a_plan_is_recorded_only_if_there_is_a_next_request() -> None:
    loop = World().loop(solution(*STEPS, output=1), plan="eager")
    await told(loop)
    assert "plan" not in [message["kind"] for message in loop.context]
    loop = World().loop(solution(*STEPS), plan="eager", max_requests=1)
    assert (await told(loop))[-1] == "max_requests"
    assert "plan" not in [message["kind"] for message in loop.context]


async def test_a_request_without_calls_does_not_change_the_plan() -> None:
    loop = World().loop(solution(*STEPS), "no solution", solution(output=1), plan="eager")
    await told(loop)
    assert plans_told(loop, 2) == [{"mode": "eager", "calls": STEPS}]


@pytest.mark.parametrize(("mode", "ran_while_it_came"), [("eager", True), ("lazy", False)])
async def test_an_eager_plan_runs_while_it_is_streamed_and_a_lazy_plan_after_the_answer(
    mode: Any, ran_while_it_came: bool
) -> None:
    loop = World().loop(solution(*STEPS, pieces=40), solution(output=1), plan=mode)
    run = loop.start(None)
    await run
    types = [(event.type, getattr(event, "call_id", "")) for event in run.events]
    assert (types.index(("call_start", "c2")) < types.index(("model_end", ""))) is ran_while_it_came
    assert types.index(("call_end", "c2")) < types.index(("call_start", "c1"))


async def test_a_lazy_plan_can_be_inspected_before_its_calls_run() -> None:
    world = World()
    loop = world.loop(solution(*STEPS), solution(output=1), plan="lazy")
    run = loop.start(None, breakpoints=["model_end"])
    run.play()
    async with asyncio.timeout(60):
        await until(lambda: run.state.paused)
        graph = loop.current_calls.call_graph(run.state)
        assert world.ran == []
        assert [(one.id, one.reads) for one in graph.calls] == [("c1", ("c2",)), ("c2", ())]
        run.resume()
        while not run.state.over:
            if run.state.paused:
                run.resume()
            await asyncio.sleep(0)
    assert world.ran == ["fast", "echo fast"]


async def test_no_call_of_a_cycle_in_a_lazy_plan_runs() -> None:
    world = World()
    loop = world.loop(solution(*CIRCLE), solution(c("fast", "†state.f")), solution(output=1), plan="lazy")
    said = await told(loop)
    assert [word for word in said[: said.index("request 2")] if word.startswith(("started", "unblocked"))] == []
    assert [word for word in said if word.startswith("failed")] == [f"failed c{n} structural" for n in (1, 2, 3)]
    assert all("wait for one another" in error["error"] for error in errors_told(loop, 1))
    assert plans_told(loop, 1) == []
    assert plans_told(loop, 2) == [{"mode": "lazy", "calls": [c("fast", "†state.f")]}]
    assert world.ran == ["fast"]


async def test_calls_with_a_cycle_are_not_a_plan_in_an_eager_loop() -> None:
    loop = World().loop(solution(*CIRCLE), solution(output=1), plan="eager")
    await told(loop)
    assert loop.state == {"f": "fast"}
    assert plans_told(loop, 1) == []


async def test_reading_and_overwriting_existing_data_is_not_a_cycle() -> None:
    again = c("give", "†state.n", v="†state.n")
    loop = World().loop(solution(c("give", "†state.n", v=1)), solution(again), solution(output=1), plan="lazy")
    said = await told(loop)
    assert not any(word.startswith("failed") for word in said)


async def test_each_call_of_a_lazy_plan_is_confirmed() -> None:
    asked: list[str] = []
    loop = World().loop(
        solution(*STEPS), solution(output=1), plan="lazy", confirm=lambda call: asked.append(call.name) or True
    )
    await told(loop)
    assert asked == ["fast", "echo"]


async def test_a_given_plan_is_replaced_by_the_calls_of_the_next_request() -> None:
    given = {"type": "plan", "data": {"mode": "eager", "calls": STEPS}}
    loop = World().loop(solution(c("fast")), solution(output=1), plan="eager", context=[given])
    await told(loop)
    assert plans_told(loop, 0) == [{"mode": "eager", "calls": STEPS}]
    assert plans_told(loop, 1) == [{"mode": "eager", "calls": [c("fast")]}]


@pytest.mark.parametrize("calls", [CIRCLE, [c("echo", "†state.a", v="†state.a.b")], [c("echo", v="†")]])
def test_a_given_plan_with_a_cycle_or_a_malformed_reference_is_refused(calls: Any) -> None:
    with pytest.raises(UsageError, match="plan"):
        World().loop(context=[{"type": "plan", "data": {"calls": calls}}]).start(None)
    with pytest.raises(UsageError, match="plan"):
        World().loop().start({"type": "plan", "data": calls})


def test_a_given_plan_that_reads_given_data_has_no_cycle() -> None:
    state = {"type": "state", "data": {"a": {"b": 1}}}
    plan = {"type": "plan", "data": [c("echo", "†state.a", v="†state.a.b")]}
    World().loop(context=[state, plan]).start(None)


def test_a_plan_with_an_instance_is_refused() -> None:
    with pytest.raises(UsageError, match="instance"):
        World().loop(context=[{"type": "plan", "_instance": "one", "data": {"calls": []}}]).start(None)


def test_an_unknown_plan_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="eager, lazy"):
        World().loop(plan="soon")


async def test_the_prompt_explains_plans_if_a_plan_mode_is_set() -> None:
    words = []
    for mode in (None, "eager", "lazy"):
        loop = World().loop(solution(output=1), plan=mode)
        await told(loop)
        words.append(str(loop.llm.requests[0].messages[0]["content"]))
    assert ["kind plan" in said for said in words] == [False, True, True]
    assert ["in a circle" in said for said in words] == [False, False, True]


async def test_a_run_with_a_lazy_plan_can_be_restored_at_every_event() -> None:
    def loop() -> ExecutionLoop:
        return World().loop(solution(*CIRCLE), solution(*STEPS), solution(output=1), plan="lazy")

    run = loop().start(None)
    await run
    for position in range(1, len(run.events)):
        events = run.events[:position]
        answered = sum(event.type == "model_end" for event in events)
        script = [solution(*CIRCLE), solution(*STEPS), solution(output=1)][answered:]
        again = restore(Snapshot.from_json(Snapshot.of(events).to_json()), loop())
        again.loop.llm = ScriptedLLM(script)
        again.play()
        async with asyncio.timeout(60):
            while not again.state.over:
                for item in again.pending:
                    again.answer(item, {"v": "fast"} if item.name == "echo" else "fast")
                await asyncio.sleep(0)
        assert (again.output, again.loop.state) == (1, {"a": "fast", "b": {"v": "fast"}}), f"from event {position}"  # type: ignore[attr-defined]


def test_a_cycle_is_found_among_a_thousand_writers_and_readers_of_one_list() -> None:
    (items,) = parse_expression("†state.items").paths
    (found,) = parse_expression("†state.found").paths
    writers = [Node(f"w{n}", None, [], [items]) for n in range(1000)]
    readers = [Node(f"r{n}", None, [items], [found]) for n in range(1000)]
    assert find_cycle([*writers, *readers]) == []
    assert sorted(find_cycle([*writers, *readers, Node("x", None, [found], [items])])) != []


def test_calls_of_different_instances_form_no_cycle() -> None:
    (a,), (b,) = parse_expression("†state.a").paths, parse_expression("†state.b.c").paths
    (above,) = parse_expression("†state.b").paths
    assert find_cycle([Node("1", "x", [a], [b]), Node("2", "y", [above], [a])]) == []
    assert sorted(find_cycle([Node("1", "x", [a], [b]), Node("2", "x", [above], [a])])) == ["1", "2"]
