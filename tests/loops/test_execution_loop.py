from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import agentnb
from agentnb import ExecutionLoop, LimitReached, RunCancelled, RunFailed, Snapshot, UsageError, tool
from agentnb.core.messages import Message
from agentnb.loops.execution_loop import Call, ErrorMessage, Reject, Solution
from agentnb.testing import ScriptedLLM, call, delay, text
from tests.loops.execution_world import MOMENT, World, c, data_told, errors_told, notation, solution
from tests.worlds import (
    assert_folds,
    assert_one_terminal_event_last,
    collect,
    provider_faults,
    running_tasks,
    types,
    until,
)


async def told(loop: ExecutionLoop) -> list[str]:
    events = await collect(loop.run())
    stream = loop._last_stream
    assert stream is not None
    assert_folds(stream.run)
    assert provider_faults([m.plain for m in stream.run.messages if m.role != "data"]) == []
    loop.llm.assert_complete()
    return notation(events)


# -- scenarios (execution_loop/SEMANTICS.md, 14. Activities of the tests) ---------------------------------------------


async def test_el_01_an_output_ends_the_loop() -> None:
    loop = World().loop(solution(output={"x": 1}))
    assert await told(loop) == ["request 1", "completed 1", "output"]
    assert loop.output == {"x": 1}


async def test_el_02_calls_run_in_the_order_of_their_data_dependencies() -> None:
    loop = World().loop(
        solution(c("sum", "†state.summary", p="†state.prof"), c("fetch", "†state.prof", u="†input.u")),
        solution(output="done"),
    )
    stream = loop.run()
    events = await collect(stream)
    assert notation(events) == [
        *("request 1", "received c1", "received c2", "unblocked c2", "started c2", "done c2"),
        *("unblocked c1", "started c1", "done c1", "completed 1", "request 2", "completed 2", "output"),
    ]
    assert [event.args for event in events if event.type == "call_started"] == [{"u": "alice"}, {"p": {"name": "Al"}}]
    assert loop.state == {"prof": {"name": "Al"}, "summary": "S:Al"}
    assert data_told(loop, 1) == [{"prof": {"name": "Al"}, "summary": "S:Al"}]
    assert stream.run.stop_reason == "completed"


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
async def test_el_02_the_order_of_the_calls_in_the_answer_does_not_matter(order: list[int]) -> None:
    steps = [
        c("fetch", "†state.prof", u="†input.u"),
        c("sum", "†state.summary", p="†state.prof"),
        c("give", "†state.last", v="†state.summary"),
    ]
    loop = World().loop(solution(*(steps[at] for at in order), output="done"))
    said = await told(loop)
    assert loop.state == {"prof": {"name": "Al"}, "summary": "S:Al", "last": "S:Al"}
    assert [word for word in said if word.startswith("done")] == [f"done c{order.index(step) + 1}" for step in range(3)]


async def test_el_03_a_call_runs_before_the_next_call_is_received() -> None:
    loop = World().loop([*text('{"calls":[{"_tool":"fast"},'), *MOMENT, *text('{"_tool":"slow"}],"output":"ok"}')])
    assert await told(loop) == [
        *("request 1", "received c1", "unblocked c1", "started c1", "done c1"),
        *("received c2", "unblocked c2", "started c2", "done c2", "completed 1", "output"),
    ]


async def test_el_06_a_failed_call_fails_the_calls_that_depend_on_it() -> None:
    loop = World().loop(solution(c("boom", "†state.a"), c("echo", v="†state.a")), solution(output=1))
    assert await told(loop) == [
        *("request 1", "received c1", "unblocked c1", "started c1", "received c2"),
        *("failed c1 runtime", "failed c2 structural", "errors 2", "completed 1"),
        *("request 2", "completed 2", "output"),
    ]
    first, second = errors_told(loop, 1)
    assert (first["call"], first["error"]) == (c("boom", "†state.a"), "RuntimeError: api down")
    assert second["call"] == c("echo", v="†state.a")
    assert "†state.a" in second["error"]


async def test_el_06_a_failure_propagates_along_a_chain_of_references() -> None:
    steps = [c("give", "†state.c", v="†state.b"), c("give", "†state.b", v="†state.a"), c("boom", "†state.a")]
    loop = World().loop(solution(*steps), solution(output="x"))
    first, *others, errors = [word for word in await told(loop) if word.startswith(("failed", "errors"))]
    assert (first, errors) == ("failed c3 runtime", "errors 3")
    assert sorted(others) == ["failed c1 structural", "failed c2 structural"]


async def test_el_09_an_output_before_the_calls_ends_the_loop_after_the_calls() -> None:
    world = World()
    before = json.dumps({"output": "ok", "calls": [c("give", "†state.a", v=1)]})
    for words in (before, json.dumps({"calls": [c("give", "†state.a", v=1)], "output": "ok"})):
        loop = world.loop(text(words, pieces=9))
        said = await told(loop)
        assert said == ["request 1", "received c1", "unblocked c1", "started c1", "done c1", "completed 1", "output"]
        assert (loop.output, loop.state) == ("ok", {"a": 1})
    assert world.ran == ["give 1", "give 1"]


async def test_el_12_a_request_without_calls_and_output_is_a_stall() -> None:
    loop = World().loop(solution())
    assert await told(loop) == ["request 1", "completed 1", "stalled"]
    assert loop.output is None
    run = World().loop(solution()).start(None)
    assert (await run, run.stop_reason) == (None, "stalled")


async def test_a_limit_has_precedence_over_a_stall() -> None:
    assert (await told(World().loop(solution(), max_requests=1)))[-1] == "max_requests"


@pytest.mark.parametrize("reason", ["no", ""])
async def test_a_request_whose_calls_were_all_rejected_is_not_a_stall(reason: str) -> None:
    loop = World().loop(solution(c("fast"), c("slow")), solution(output="x"), confirm=lambda call: Reject(reason))
    said = await told(loop)
    assert [word for word in said if word.startswith("rejected")] == ["rejected c1", "rejected c2"]
    assert said[-5:] == ["errors 2", "completed 1", "request 2", "completed 2", "output"]


async def test_el_14_a_rejected_call_fails_the_calls_that_depend_on_it() -> None:
    loop = World(0.002).loop(
        solution(c("slow", "†state.x"), c("fast"), c("echo", v="†state.x")),
        solution(output=1),
        confirm=lambda call: call.name != "slow",
    )
    said = await told(loop)
    assert [word for word in said if not word.startswith(("received", "unblocked", "started"))] == [
        *("request 1", "rejected c1", "done c2", "failed c3 structural", "errors 2", "completed 1"),
        *("request 2", "completed 2", "output"),
    ]
    assert errors_told(loop, 1)[0]["error"] == "rejected by user"


# -- when calls start ------------------------------------------------------------------------------------------------


async def test_a_call_starts_only_after_its_json_object_is_complete() -> None:
    world = World()
    whole = json.dumps({"calls": [c("give", v="x" * 20)], "output": 1})
    closes = whole.index("}") + 1
    seen: list[list[str]] = []

    def letters(_: Any) -> list[Any]:
        return [chunk for letter in whole for chunk in ({"type": "text_delta", "content": letter}, delay(0.001))]

    loop = world.loop(letters)
    run = loop.start(None)
    run.watch(lambda news: seen.append(list(world.ran)) if news.type == "text_delta" else None)
    await run
    assert not any(seen[:closes])
    assert seen[-1] == [f"give {'x' * 20}"]


@pytest.mark.parametrize(("at_once", "limit"), [(6, None), (2, 2)])
async def test_all_unblocked_calls_run_concurrently_up_to_the_limit(at_once: int, limit: int | None) -> None:
    running, most, all_run = 0, 0, asyncio.Event()

    @tool
    async def work(n: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        if running == at_once:
            all_run.set()
        await all_run.wait()
        await asyncio.sleep(0)
        running -= 1
        return n

    calls = solution(*(c("work", n=n) for n in range(6)), output=1)
    async with asyncio.timeout(60):
        await World().loop(calls, tools=[work], max_concurrency=limit).start(None)
    assert most == at_once


async def test_a_sequential_tool_runs_without_concurrent_calls() -> None:
    log: list[str] = []

    @tool(sequential=True)
    async def alone(n: int) -> None:
        log.append(f"alone {n}")
        await asyncio.sleep(0.003)
        log.append(f"end {n}")

    @tool
    async def other() -> None:
        log.append("other")
        await asyncio.sleep(0.001)
        log.append("end")

    await (
        World().loop(solution(c("other"), c("alone", n=1), c("alone", n=2), output=1), tools=[alone, other]).start(None)
    )
    assert log == ["other", "end", "alone 1", "end 1", "alone 2", "end 2"]


async def test_calls_with_diamond_dependencies_run_in_order() -> None:
    steps = [
        c("give", "†state.d", v="†state.b && †state.c"),
        c("give", "†state.b", v="†state.a"),
        c("give", "†state.c", v="†state.a"),
        c("fast", "†state.a"),
    ]
    loop = World().loop(solution(*steps, output="x"))
    await told(loop)
    assert loop.state["d"] == "fast"


async def test_a_cycle_of_references_results_in_errors() -> None:
    loop = World().loop(
        solution(c("echo", "†state.a", v="†state.b"), c("echo", "†state.b", v="†state.a")), solution(output=1)
    )
    said = await told(loop)
    assert said[3:6] == ["failed c1 structural", "failed c2 structural", "errors 2"]


async def test_the_call_that_ends_last_determines_the_data() -> None:
    fast_is_called = asyncio.Event()

    @tool
    async def slow() -> str:
        await fast_is_called.wait()
        for _ in range(20):  # until that call has its result
            await asyncio.sleep(0)
        return "slow"

    @tool
    async def fast() -> str:
        fast_is_called.set()
        return "fast"

    loop = World().loop(solution(c("slow", "†state.x"), c("fast", "†state.x"), output=1), tools=[slow, fast])
    await told(loop)
    assert loop.state == {"x": "slow"}
    assert [message["data"] for message in loop.context[1:]] == [{"x": "fast"}, {"x": "slow"}]


async def test_call_ids_are_unique_within_a_run() -> None:
    loop = World().loop(solution(c("fast"), c("fast")), solution(c("fast")), solution(output=1))
    said = await told(loop)
    assert [word for word in said if word.startswith("received")] == ["received c1", "received c2", "received c3"]


# -- references and paths --------------------------------------------------------------------------------------------


async def test_references_are_resolved_in_expressions_and_nested_parameters() -> None:
    context = [{"type": "data", "kind": "data", "data": {"a": 1, "none": None, "list": [{"k": "v"}]}}]
    world = World()
    values = [
        "†data.x || †data.a",
        "†data.none || †data.a",
        "†data.a && †data.list.0.k",
        {"in": ["†data.a", "††data.a"]},
        "Hi †data.a",
        "†data",
    ]
    loop = world.loop(solution(*(c("give", v=value) for value in values), output=1), context=context)
    events = await collect(loop.run())
    assert [event.result for event in events if event.type == "call_completed"] == [
        1,
        None,
        "v",
        {"in": [1, "†data.a"]},
        "Hi †data.a",
        {"a": 1, "none": None, "list": [{"k": "v"}]},
    ]


async def test_keys_can_be_unicode_and_json_escapes_are_decoded() -> None:
    for ascii in (True, False):
        words = {"calls": [c("give", "†state.ключ", v="†input.ü")], "output": "ж"}
        loop = World().loop(
            text(json.dumps(words, ensure_ascii=ascii), pieces=9),
            context=[{"type": "data", "kind": "input", "data": {"ü": "☃"}}],
        )
        await told(loop)
        assert (loop.state, loop.output) == ({"ключ": "☃"}, "ж")


async def test_an_alternative_is_used_if_the_call_for_the_other_fails() -> None:
    loop = World().loop(
        solution(
            c("give", "†state.c", v="†state.a || †state.b"), c("boom", "†state.a"), c("fast", "†state.b"), output=1
        )
    )
    await told(loop)
    assert loop.state == {"b": "fast", "c": "fast"}


async def test_a_reference_to_an_unknown_kind_does_not_prevent_waiting_for_its_alternative() -> None:
    world = World(0.002)
    loop = world.loop(
        solution(
            c("slow", "†state.x"), c("give", v="†nobody.x || †state.x"), c("give", v="†nobody.x && †state.x"), output=1
        )
    )
    said = await told(loop)
    assert world.ran == ["slow", "give slow"]
    assert said.index("failed c3 structural") < said.index("done c1")  # no later call can provide the data


@pytest.mark.parametrize(
    "bad",
    [
        c("give", v="†"),
        c("give", v="†state."),
        c("give", v="†state..a"),
        c("give", v="† a note"),
        c("give", v="†state.a || literal"),
        c("give", "state.a", v=1),
        c("give", "†state.a ||", v=1),
        c("give", "†state.a", v=1, _outputMethod="overwrite"),
        c("give", v="†nosuch.x"),
        c("nosuch", v="†state.never"),
        c("give", "†state.a", v="†state.a"),
        c("give", wrong=1),
        c("fetch", u=5),
        {"v": 1},
        {"_tool": 5},
        "give",
        7,
    ],
)
async def test_an_invalid_call_is_a_structural_error(bad: Any) -> None:
    world = World()
    loop = world.loop(solution(bad, c("fast")), solution(output=1))
    said = await told(loop)
    assert "failed c1 structural" in said
    assert "unblocked c1" not in said
    assert "done c2" in said
    assert "errors 1" in said
    assert world.ran == ["fast"]
    assert len(errors_told(loop, 1)) == 1


@pytest.mark.parametrize(
    ("method", "values", "comes_to"),
    [
        ("set", [{"a": 1}, {"b": 2}], {"b": 2}),
        ("merge", [{"a": {"x": 1}}, {"a": {"y": 2}}], {"a": {"x": 1, "y": 2}}),
        ("assign", [{"a": {"x": 1}, "c": 3}, {"a": {"y": 2}}], {"a": {"y": 2}, "c": 3}),
        ("push", [1, [2]], [1, [2]]),
        ("concat", [[1], [2, 3]], [1, 2, 3]),
        ("concat", ["ab", "cd"], "abcd"),
    ],
)
async def test_each_output_method_writes_as_defined(method: str, values: list[Any], comes_to: Any) -> None:
    calls = [c("give", "†state.deep.x", v=value, _outputMethod=method) for value in values]
    loop = World().loop(*(solution(made) for made in calls), solution(output=1))
    await told(loop)
    assert loop.state == {"deep": {"x": comes_to}}


async def test_set_removes_values_that_were_pushed_before() -> None:
    calls = [c("give", "†state.a", v=1, _outputMethod="push"), c("give", "†state.a", v=[9])]
    calls.append(c("give", "†state.a", v=2, _outputMethod="push"))
    loop = World().loop(*map(solution, calls), solution(output=1))
    await told(loop)
    assert loop.state == {"a": [9, 2]}


async def test_a_data_message_keeps_its_call_with_unresolved_references() -> None:
    loop = World().loop(solution(c("give", "†state.a", v="†input.u"), output=1))
    await told(loop)
    (wrote,) = [message for message in loop.context if message["kind"] == "state"]
    assert wrote["_call"]["v"] == "†input.u"


async def test_writes_to_nested_paths_are_folded_in_order() -> None:
    loop = World().loop(
        solution(c("give", "†data.user", v={"name": "Al", "status": "off"}), c("give", "†state.a", v={"b": 1})),
        solution(c("give", "†data.user.status", v="on"), c("give", "†state.a", v=9)),
        solution(c("give", "†state.user", v="†data.user"), c("give", "†state.b", v="†state.a.b")),
        solution(output=1),
    )
    assert "failed c6 structural" in await told(loop)
    assert loop.state == {"a": 9, "user": {"name": "Al", "status": "on"}}


async def test_the_arguments_of_a_call_do_not_change_with_the_data() -> None:
    loop = World().loop(
        solution(c("give", "†state.list", v=[1])),
        solution(c("give", v="†state.list")),
        solution(c("give", "†state.list", v=2, _outputMethod="push")),
        solution(output=1),
    )
    events = await collect(loop.run())
    assert loop.state == {"list": [1, 2]}
    assert [event.args for event in events if event.type == "call_started"][1] == {"v": [1]}
    assert next(event.result for event in events if event.type == "call_completed") == [1]


async def test_output_paths_can_be_alternatives_or_several_targets() -> None:
    loop = World().loop(
        solution(c("give", "†state.ok || †state.err", v=1), c("give", "†state.x && †data.y", v=2)),
        solution(c("give", "†state.z", v="†data.y")),
        solution(output=1),
    )
    await told(loop)
    assert loop.state == {"ok": 1, "x": 2, "z": 2}


async def test_each_instance_has_its_own_data() -> None:
    loop = World().loop(
        solution(c("give", "†state.n", v=1, _instance="a"), c("give", "†state.n", v=2, _instance="b")),
        solution(c("give", "†data.n", v="†state.n", _instance="a"), c("give", "†data.m", v="†state.n")),
        solution(output=1),
    )
    said = await told(loop)
    assert "failed c4 structural" in said  # the data exists only inside the instances
    assert loop.state == {}
    assert {"type": "data", "kind": "data", "_instance": "a", "data": {"n": 1}}.items() <= loop.context[3].items()
    assert data_told(loop, 1) == [{"n": 1}, {"n": 2}]


async def test_data_messages_of_the_same_kind_are_deeply_merged() -> None:
    context = [
        {"type": "data", "kind": "data", "data": {"user": {"name": "Al"}}},
        {"type": "data", "kind": "data", "data": {"user": {"age": 5}}},
        {"role": "user", "content": "Please."},
    ]
    loop = World().loop(solution(c("give", "†state.user", v="†data.user")), solution(output=1), context=context)
    await told(loop)
    assert loop.state == {"user": {"name": "Al", "age": 5}}
    assert data_told(loop, 0, "data") == [{"user": {"name": "Al", "age": 5}}]
    assert loop.llm.requests[0].messages[-1] == {"role": "user", "content": "Please."}
    assert loop.context[:3] == context


# -- what tools return -----------------------------------------------------------------------------------------------


async def test_a_result_without_a_path_is_dropped_unless_it_is_a_message() -> None:
    @tool
    async def tell(kind: str) -> Any:
        if kind == "text":
            return Message(role="user", content="Look here.")
        return {"type": "data", "kind": kind, "data": {"told": kind}}

    loop = World().loop(
        solution(c("tell", kind="state"), c("tell", kind="text"), c("tell", "†state.ok || †state.err", kind="state")),
        solution(c("give", v=5)),
        solution(output=1),
        tools=[*World().tools, tell],
    )
    await told(loop)
    assert loop.state == {"told": "state"}
    assert {"role": "user", "content": "Look here."} in loop.llm.requests[1].messages
    assert "5" not in json.dumps(loop.llm.requests[2].messages)


async def test_a_message_can_choose_among_alternative_output_paths() -> None:
    @tool
    async def attempt() -> Any:
        return {"type": "data", "data": "why", "_outputPath": "†state.err"}

    loop = World().loop(solution(c("attempt", "†state.ok || †state.err"), output=1), tools=[attempt])
    await told(loop)
    assert loop.state == {"err": "why"}


async def test_a_latent_tool_returns_the_output_of_the_model() -> None:
    decide = {
        "_tool": "decide",
        "properties": {"why": {"type": "string"}},
        "required": ["why"],
        "_output": {"type": "integer"},
    }
    loop = World().loop(
        solution(
            c("decide", "†state.n", why="†input.u", _output=3),
            c("decide", "†state.m", why="so"),
            c("decide", "†state.m", why="so", _output="three"),
            c("decide", "†state.m", why=1, _output=3),
        ),
        solution(output=1),
        tools=[decide],
    )
    said = await told(loop)
    assert [word for word in said if word.startswith(("done", "failed"))] == [
        *("failed c2 structural", "failed c3 structural", "failed c4 structural", "done c1")
    ] or sorted(word for word in said if word.startswith(("done", "failed"))) == [
        *("done c1", "failed c2 structural", "failed c3 structural", "failed c4 structural")
    ]
    assert loop.state == {"n": 3}


@pytest.mark.parametrize("value", [None, 0, "", {"a": []}])
async def test_a_latent_call_writes_the_output_of_the_model_also_null(value: Any) -> None:
    think = {"_tool": "think", "properties": {"_output": {}}}
    loop = World().loop(
        solution(c("think", "†state.a", _output=value), c("give", "†state.b", v="†state.a"), output=1),
        tools=[*World().tools, think],
    )
    await told(loop)
    assert loop.state == {"a": value, "b": value}


async def test_a_latent_result_is_written_to_the_first_alternative() -> None:
    decide = {"_tool": "decide", "properties": {}, "_output": {"type": "integer"}}
    loop = World().loop(solution(c("decide", "†state.yes || †state.no", _output=3), output=1), tools=[decide])
    await told(loop)
    assert loop.state == {"yes": 3}


@pytest.mark.parametrize(
    ("said", "known", "result"),
    [("look", ["look", "lookup"], "look"), (None, ["look", "lookup"], "lookup"), (None, ["look"], "given")],
)
async def test_a_named_activity_has_precedence_over_one_with_the_name_of_the_tool(
    said: str | None, known: list[str], result: str
) -> None:
    schema = {"_tool": "lookup", "properties": {}, **({"_activity": said} if said else {})}
    loop = World().loop(
        solution(c("lookup", "†state.r", _output="given"), output=1),
        tools=[schema],
        activities={name: lambda call, tool, context, name=name: name for name in known},
    )
    await told(loop)
    assert loop.state == {"r": result}


@pytest.mark.parametrize("kind", ["state", "input", "plan", "meta", "preset"])
async def test_a_message_of_the_context_can_give_its_kind_as_its_type(kind: str) -> None:
    given = [{"type": kind, "data": {"a": 1}}]
    loop = World().loop(solution(c("echo", "†data.x", v=f"†{kind}.a"), output=1), context=given)
    await told(loop)
    assert loop.context[-1]["data"] == {"x": {"v": 1}}


async def test_an_activity_gets_the_call_the_tool_and_the_context() -> None:
    seen: list[Any] = []

    async def look(call: Call, tool: Any, context: list[dict[str, Any]]) -> str:
        seen.append((call["_tool"], call.u, call._outputPath, call.id, tool.name, context[0]["data"]))
        return "ok"

    schema = {"_tool": "lookup", "_activity": "look", "properties": {"u": {"type": "string"}}}
    loop = World().loop(
        solution(c("lookup", "†state.r", u="†input.u"), output=1), tools=[schema], activities={"look": look}
    )
    await told(loop)
    assert seen == [("lookup", "alice", "†state.r", "c1", "lookup", {"u": "alice"})]
    assert loop.state == {"r": "ok"}


# -- errors ----------------------------------------------------------------------------------------------------------


async def test_a_tool_that_times_out_is_a_runtime_error() -> None:
    @tool(timeout=0.01)
    async def stuck() -> None:
        await asyncio.Event().wait()

    assert "failed c1 runtime" in await told(World().loop(solution(c("stuck"), output=1), tools=[stuck]))


async def test_the_last_of_two_tools_with_the_same_name_is_used() -> None:
    def defined(value: int) -> Any:
        async def one() -> int:
            return value

        return one

    loop = World().loop(solution(c("one", "†state.x"), output=1), tools=[defined(1), defined(2)])
    await told(loop)
    assert loop.state == {"x": 2}


async def test_only_errors_of_the_last_tick_are_sent_and_all_are_kept() -> None:
    loop = World().loop(solution(c("boom")), solution(c("fast")), solution(c("boom")), solution(output=1))
    await told(loop)
    assert [len(errors_told(loop, n)) for n in range(4)] == [0, 1, 0, 1]
    assert len([message for message in loop.context if message["kind"] == "error"]) == 2


async def test_errors_in_the_same_answer_as_an_output_are_in_the_result() -> None:
    loop = World().loop(solution(c("boom"), output="anyway"))
    *_, last = await collect(loop.run())
    assert (last.type, last.reason, last.output) == ("loop_completed", "output", "anyway")
    assert [error.error for error in last.errors] == ["RuntimeError: api down"]
    assert loop.errors == last.errors
    assert isinstance(last.errors[0], ErrorMessage)
    assert loop.context[-1]["data"]["call"] == {"_tool": "boom"}


@pytest.mark.parametrize(
    "words",
    [
        "I think that",
        '```json\n{"calls": [], "output": 1}\n```',
        '{"calls": [], "output": 1} and so on',
        '{"calls": [], "output": 1',
        '{"calls": [}',
        "[1, 2]",
        '"text"',
        "42",
        '{"answer": 5}',
        '{"calls": {"_tool": "fast"}, "output": null}',
        "",
        "   ",
        "null",
        "[]",
        '[{"calls": [{"_tool": "fast"}], "output": 1}]',
    ],
)
@pytest.mark.parametrize("pieces", [1, 3])
async def test_the_error_for_an_invalid_solution_is_sent_to_the_model(words: str, pieces: int) -> None:
    loop = World().loop(text(words, pieces=pieces), solution(output="ok"))
    assert await told(loop) == ["request 1", "errors 1", "completed 1", "request 2", "completed 2", "output"]
    [error] = errors_told(loop, 1)
    assert error["call"] is None
    assert "not a Solution" in error["error"]


@pytest.mark.parametrize(
    "n", ["9" * 5000, "[" * 230 + "]" * 230, "[" * 3000 + "]" * 3000], ids=["digits", "230 levels", "3000 levels"]
)
@pytest.mark.parametrize("place", ['"calls": [{"_tool": "fast"}, {"_tool": "echo", "v": %s}]', '"output": %s'])
async def test_the_error_for_a_solution_that_cannot_be_recorded_is_sent_to_the_model(
    tmp_path: Path, n: str, place: str
) -> None:
    loop = World().loop("{" + place % n + "}", solution(output="done"))
    run = loop.start(None)
    assert await run == "done"
    [error] = errors_told(loop, 1)
    assert "more levels, or a number with more digits" in error["error"]
    assert Snapshot.load(run.snapshot().save(tmp_path / "run.json")).position == len(run.events)


async def test_the_same_invalid_answer_to_the_same_context_is_a_stall() -> None:
    loop = World().loop("I cannot.", "I cannot.")
    *_, last = await told(loop)
    assert last == "stalled"
    assert len(errors_told(loop, 1)) == 1


async def test_a_different_invalid_answer_is_not_a_stall() -> None:
    loop = World().loop("I cannot.", "I must not.", "I cannot.", solution(output="ok"))
    *_, last = await told(loop)
    assert last == "output"


async def test_the_same_invalid_answer_to_another_context_is_not_a_stall() -> None:
    loop = World().loop("Hm.", solution(c("fast", "†state.a")), "Hm.", solution(output="ok"))
    *_, last = await told(loop)
    assert last == "output"


async def test_calls_before_a_truncation_are_performed() -> None:
    world = World()
    loop = world.loop(text('{"calls": [{"_tool": "fast"}, {"_tool": "slo', pieces=4), solution(output=1))
    said = await told(loop)
    assert "done c1" in said
    assert "errors 1" in said
    assert world.ran == ["fast"]


# -- the end of a run -------------------------------------------------------------------------------------------------


class Answer(BaseModel):
    n: int
    word: str = "w"


@pytest.mark.parametrize(
    "schema", [Answer, {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}]
)
async def test_the_error_for_an_invalid_output_is_sent_to_the_model(schema: Any) -> None:
    loop = World().loop(solution(output={"n": "x"}), solution(output={"n": 2}), output=schema)
    assert "errors 1" in await told(loop)
    assert errors_told(loop, 1)[0]["call"] is None
    assert "n" in errors_told(loop, 1)[0]["error"]
    assert loop.output == ({"n": 2, "word": "w"} if schema is Answer else {"n": 2})


async def test_a_model_request_has_the_schema_of_the_output() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    loop = World().loop(solution(output={"n": 1}), output=schema)
    await told(loop)
    assert '"n": {"type": "integer"}' in json.dumps(loop.llm.requests[0].schema)


async def test_the_error_for_an_invalid_output_has_the_text_of_an_argument_error() -> None:
    loop = World().loop(solution(output={"n": "x", "word": None}), solution(output={"n": 2}), output=Answer)
    await told(loop)
    assert errors_told(loop, 1)[0]["error"] == (
        "Invalid output: output.n: Input should be a valid integer, unable to parse string as an integer (got 'x');"
        " output.word: Input should be a valid string (got None)."
    )


@pytest.mark.parametrize("said", [{"output": {"value": None}}, {"output": None, "done": True}])
async def test_null_can_be_the_result(said: dict[str, Any]) -> None:
    loop = World().loop(solution(**said))
    assert await told(loop) == ["request 1", "completed 1", "output"]
    assert loop.output is None


@pytest.mark.parametrize("output", [0, False, "", [], {}, {"value": 5}])
async def test_any_value_except_null_is_an_output(output: Any) -> None:
    loop = World().loop(solution(output=output))
    assert await told(loop) == ["request 1", "completed 1", "output"]
    assert loop.output == output


async def test_the_limit_on_requests_ends_the_loop() -> None:
    loop = World().loop(solution(c("fast")), solution(c("fast")), max_requests=2)
    assert (await told(loop))[-1] == "max_requests"
    run = World().loop(max_requests=0).start(None)
    assert (await run, run.stop_reason) == (None, "max_requests")


async def test_an_output_in_the_last_permitted_request_is_the_result() -> None:
    loop = World().loop(solution(output=1), max_requests=1)
    assert (await told(loop))[-1] == "output"


async def test_a_loop_accepts_no_input_text_parameters_or_messages() -> None:
    for given, expected in [
        (None, []),
        ("Hello", [{"role": "user", "content": "Hello"}]),
        ({"u": "bob"}, [{"type": "data", "kind": "input", "data": {"u": "bob"}}]),
        ([{"type": "data", "kind": "data", "data": 5}], [{"type": "data", "kind": "data", "data": 5}]),
    ]:
        loop = World().loop(solution(output=1), context=())
        assert await loop.start(given) == 1
        assert loop.context == expected


async def test_a_slow_consumer_does_not_block_a_call() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> None:
        begun.set()
        await gate.wait()

    async with asyncio.timeout(60):
        async for event in World().loop(solution(c("hold"), output=1), tools=[hold]).run():
            if event.type == "call_started":
                await begun.wait()  # while no consumer requests the next event
                gate.set()
    assert event.reason == "output"


async def test_steering_and_follow_ups_are_sent_with_the_next_requests() -> None:
    loop = World().loop(solution(c("fast")), solution(output=1), solution(output=2))
    run = loop.start(None)
    run.watch(lambda news: run.steer("Careful.") if news.type == "call_start" else None)
    run.follow_up("And then?")
    assert await run == 2
    assert {"role": "user", "content": "Careful."} in loop.llm.requests[1].messages
    assert {"role": "user", "content": "And then?"} not in loop.llm.requests[1].messages
    assert {"role": "user", "content": "And then?"} in loop.llm.requests[2].messages


async def test_cancelling_ends_every_started_call() -> None:
    loop = World(0.5).loop(solution(c("slow", "†state.x"), c("echo", v="†state.x"), c("fast")))
    stream = loop.run()
    events = []
    async for event in stream:
        events.append(event)
        if event.type == "call_started" and event.id == "c3":
            stream.run.cancel("enough")
    assert notation(events)[-5:] == [
        *("failed c1 runtime", "failed c2 structural", "failed c3 runtime", "completed 1", "cancelled")
    ]
    assert provider_faults([m.plain for m in stream.run.messages if m.role != "data"]) == []
    assert running_tasks() == set()
    with pytest.raises(RunCancelled):
        await stream.result()


async def test_closing_the_stream_runs_every_finally() -> None:
    closed: list[str] = []

    @tool
    async def hold() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            closed.append("hold")

    async def hang(messages: Any) -> list[Any]:
        return [*text('{"calls": [{"_tool": "hold"}, {"_tool": "fast"},'), delay(60)]

    loop = World().loop(hang, tools=[*World().tools, hold])
    stream = loop.run()
    async for event in stream:
        if event.type == "call_completed":
            break
    await stream.aclose()
    assert closed == ["hold"]
    assert (stream.run.stop_reason, running_tasks()) == ("cancelled", set())
    unopened = World().loop().run()
    await unopened.aclose()
    assert unopened.run.stop_reason == "cancelled"


async def test_a_second_concurrent_stream_of_a_loop_is_refused() -> None:
    loop = World().loop(solution(output=1))
    stream = loop.run()
    with pytest.raises(UsageError):
        loop.run()
    assert await stream.result() == 1
    assert await loop.run().result() == 1


async def test_a_broken_answer_is_requested_again_after_its_calls_have_ended() -> None:
    world, is_fast_done = World(), asyncio.Event()

    @tool
    async def fast() -> None:
        world.ran.append("fast")
        for _ in range(10 * len(MOMENT)):  # turns of the event loop, more than the model needs until its error
            await asyncio.sleep(0)
        is_fast_done.set()

    @tool
    async def fetch(u: str) -> dict[str, str]:
        world.ran.append(f"fetch {u}")
        await is_fast_done.wait()
        return {"name": "Al"}

    first = text(json.dumps({"calls": [c("fetch", "†state.p", u="†input.u"), c("fast")]})[:-2])
    loop = world.loop(
        [*first, *MOMENT, ConnectionError("cut")],
        solution(c("fetch", "†state.p", u="†input.u"), c("sum", "†state.s", p="†state.p"), output="ok"),
        tools=[fast, fetch, *world.tools[3:]],
    )
    stream = loop.run()
    events = await collect(stream)
    assert notation(events)[-4:] == ["done c2", "done c1", "completed 1", "error"]
    assert loop.state == {"p": {"name": "Al"}}
    with pytest.raises(RunFailed):
        await stream.run
    assert stream.run.stop_reason is None
    assert stream.run.resume()
    assert await stream.run == "ok"
    assert world.ran == ["fetch alice", "fast", "sum"]  # the repeated call was matched with the first one
    assert loop.state == {"p": {"name": "Al"}, "s": "S:Al"}
    assert data_told(loop, 1) == [{"p": {"name": "Al"}}]
    assert provider_faults([m.plain for m in stream.run.messages if m.role != "data"]) == []
    assert_folds(stream.run)


async def test_cancelling_after_a_broken_answer_leaves_a_valid_history() -> None:
    loop = World().loop([*text('{"calls": [{"_tool": "fast"},'), *MOMENT, ConnectionError("cut")])
    run = loop.start(None)
    with pytest.raises(RunFailed):
        await run
    assert run.cancel()
    assert [m.role for m in run.messages] == ["data", "assistant", "tool"]
    assert provider_faults([m.plain for m in run.messages[1:]]) == []
    assert_one_terminal_event_last(list(run.events))


async def test_a_model_failure_during_confirm_is_reported_immediately_and_the_call_is_confirmed_again() -> None:
    asked: list[str] = []

    async def confirm(call: Call) -> bool:
        asked.append(call.id)
        if len(asked) == 1:
            await asyncio.sleep(60)
        return True

    world = World()
    loop = world.loop(
        [*text('{"calls": [{"_tool": "fast"},'), *MOMENT, ConnectionError("cut")],
        solution(c("fast"), output=1),
        confirm=confirm,
    )
    stream = loop.run()
    assert notation(await collect(stream)) == ["request 1", "received c1", "unblocked c1", "completed 1", "error"]
    assert running_tasks() == set()
    stream.run.resume()
    assert await stream.run == 1
    assert (asked, world.ran) == (["c1", "c1"], ["fast"])


async def test_limits_of_the_run_are_enforced() -> None:
    world = World()
    loop = world.loop(solution(c("fast"), c("fast"), c("fast")))
    run = loop.start(None, limits={"calls": 2})
    with pytest.raises(LimitReached):
        await run
    assert world.ran == ["fast", "fast"]
    assert provider_faults([m.plain for m in run.messages if m.role != "data"]) == []


# -- native calls ----------------------------------------------------------------------------------------------------


async def test_native_calls_are_performed_and_the_final_text_is_the_output() -> None:
    world = World()
    loop = world.loop(
        [
            {"type": "tool_call_delta", "index": 0, "id": "a", "name": "fetch", "arguments": '{"u": "†inp'},
            {"type": "tool_call_delta", "index": 0, "arguments": 'ut.u", "_outputPath": "†state.p"}'},
            *MOMENT,
            {"type": "tool_call_delta", "index": 1, "id": "b", "name": "sum", "arguments": '{"p": "†state.p"}'},
            {"type": "tool_call_delta", "index": 1, "arguments": " "},
        ],
        [
            call("fast", id="a"),
            {"type": "tool_calls", "tool_calls": [{"id": "x", "name": "echo", "arguments": '{"v": 1}'}]},
        ],
        "All done.",
    )
    said = await told(loop)
    assert said[:6] == ["request 1", "received c1", "unblocked c1", "started c1", "done c1", "received c2"]
    assert loop.output == "All done."
    assert loop.state == {"p": {"name": "Al"}}
    assert world.ran == ["fetch alice", "sum", "fast", "echo 1"]
    history = [m for m in loop.llm.requests[2].messages if m["role"] in ("assistant", "tool")]
    assert provider_faults(history) == []
    assert [m["content"] for m in history if m["role"] == "tool"] == ['{"name":"Al"}', "S:Al", "fast", '{"v":1}']


@pytest.mark.parametrize(
    ("output", "words", "expected"),
    [
        ({"type": "object", "required": ["x"]}, '{"x": 1}', {"x": 1}),
        ({"type": "string"}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        (int, "3", 3),
        (None, '{"x": 1}', '{"x": 1}'),
    ],
)
async def test_text_after_native_calls_is_parsed_if_the_output_schema_requires_it(
    output: Any, words: str, expected: Any
) -> None:
    loop = World().loop([call("fast")], words, output=output)
    assert (await told(loop))[-3:] == ["request 2", "completed 2", "output"]
    assert loop.output == expected


async def test_the_error_for_text_that_is_not_a_valid_output_is_sent_to_the_model() -> None:
    loop = World().loop([call("fast")], "three", "3", output={"type": "integer"})
    assert "errors 1" in await told(loop)
    assert loop.output == 3


async def test_each_native_call_has_exactly_one_result_also_after_an_error() -> None:
    turn = [
        call("boom", id="a"),
        call("fast", id="b"),
        call("unheard", id="c"),
        call("echo", {"v": "†state.no"}, id="d"),
    ]
    loop = World().loop(turn, "ok")
    await told(loop)
    messages = loop.llm.requests[1].messages
    asked = [made["id"] for message in messages for made in message.get("tool_calls", ())]
    assert len(set(asked)) == 4
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == asked


async def test_native_arguments_that_are_not_an_object_are_a_structural_error() -> None:
    loop = World().loop(
        [{"type": "tool_call_delta", "index": 0, "id": "a", "name": "fetch", "arguments": '{"u": '}], "ok"
    )
    assert "failed c1 structural" in await told(loop)


async def test_the_tools_are_sent_natively_or_in_the_schema() -> None:
    native = World().loop("hello", native=True)
    assert await native.start(None) == "hello"
    assert {tool["name"] for tool in native.llm.requests[0].tools} == {t.name for t in World().tools}
    loop = World().loop(solution(output=1))
    await loop.start(None)
    schema = loop.llm.requests[0].schema
    assert [one["properties"]["_tool"]["const"] for one in schema["properties"]["calls"]["items"]["anyOf"]] == [
        t.name for t in World().tools
    ]
    assert "fetch" in loop.llm.requests[0].messages[0]["content"]


# -- confirming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [True, False])
async def test_confirm_cannot_modify_the_call_that_it_gets(said: bool) -> None:
    def confirm(call: Call) -> bool:
        call["v"]["x"] = "changed"
        return said

    world = World()
    call = c("give", "†state.y", v={"x": 1})
    run = world.loop(solution(call, output=1), confirm=confirm).start(None)
    await run
    assert world.ran == (["give {'x': 1}"] if said else [])
    assert "changed" not in str(run.events)


@pytest.mark.parametrize("given", [{"x": 0}, "†input"])
async def test_a_modified_call_returned_by_confirm_is_a_replacement(given: Any) -> None:
    asked = 0

    def confirm(call: Call) -> Call:
        nonlocal asked
        asked += 1
        call["v"]["x"] = asked
        return call

    world = World()
    async with asyncio.timeout(60):
        context = [{"type": "data", "kind": "input", "data": {"x": 0}}]
        await world.loop(solution(c("give", v=given), output=1), confirm=confirm, context=context).start(None)
    assert (asked, world.ran) == (1, ["give {'x': 1}"])


async def test_a_replacement_with_true_instead_of_one_is_a_different_call() -> None:
    world = World()
    await world.loop(solution(c("give", v=1), output=1), confirm=lambda call: Call(call, v=True)).start(None)
    assert world.ran == ["give True"]


async def test_a_sync_confirm_does_not_block_other_calls() -> None:
    world, has_run = World(), threading.Event()

    @tool
    def tick() -> None:
        has_run.set()

    def confirm(call: Call) -> bool:
        return call.name == "tick" or has_run.wait(60)

    answer = solution(c("fast"), c("tick"), output=1)
    await world.loop(answer, tools=[*world.tools, tick], confirm=confirm).start(None)
    assert world.ran == ["fast"]


@pytest.mark.parametrize("constant", ["†state.w", {"const": "†state.w"}])
async def test_a_constant_output_path_of_a_tool_schema_is_used(constant: Any) -> None:
    schema = {"_tool": "w", "_outputPath": constant, "_outputMethod": "push", "_instance": {"type": "string"}}
    loop = World().loop(solution(c("w"), c("w"), output=1), tools=[schema], activities={"w": lambda *_: 5})
    await loop.start(None)
    assert loop.state == {"w": [5, 5]}
    asked = json.dumps(loop.llm.requests[0].schema)
    assert "_instance" in asked
    assert "_outputPath" not in asked


async def test_a_call_with_an_output_path_that_its_tool_schema_forbids_is_not_performed() -> None:
    schema = {"_tool": "w", "_outputPath": {"type": "string", "pattern": "^†state\\.w"}}
    answers = [solution(c("w", "†state.q")), solution(c("w", "†state.w.a"), output=1)]
    loop = World().loop(*answers, tools=[schema], activities={"w": lambda *_: 5})
    await loop.start(None)
    assert loop.state == {"w": {"a": 5}}
    assert "the `_outputPath` of w" in errors_told(loop, 1)[0]["error"]


async def test_sync_activities_run_concurrently() -> None:
    together = threading.Barrier(3, timeout=60)
    loop = World().loop(
        solution(*[c("meet") for _ in range(3)], output=1),
        tools=[{"_tool": "meet"}],
        activities={"meet": lambda call, tool, context: together.wait()},
    )
    run = loop.start(None)
    await run
    assert all(call.end.outcome == "returned" for call in run.state.calls.values())


async def test_the_context_is_copied_when_it_is_given_and_when_it_is_read() -> None:
    given = [{"type": "data", "kind": "input", "data": {"u": {"name": "alice"}}}]

    def meddle(call: Call, tool: Any, context: list[dict[str, Any]]) -> str:
        seen.append(json.dumps(context[0]["data"]))
        context[0]["data"]["u"]["name"] = "meddled"
        return "done"

    seen: list[str] = []
    loop = World().loop(
        solution(c("meddle")), solution(c("meddle"), output=1),
        tools=[{"_tool": "meddle"}], activities={"meddle": meddle}, context=given,
    )  # fmt: skip
    run = loop.start(None)
    await run
    given[0]["data"]["u"]["name"] = "reused"
    loop.context[0]["data"]["u"]["name"] = "read"
    assert run.events[0].history[0].plain["data"] == loop.context[0]["data"] == {"u": {"name": "alice"}}
    assert seen == ['{"u": {"name": "alice"}}'] * 2


@pytest.mark.parametrize("made", [Call("fast"), Call(tool="fast"), Call(_tool="fast"), Call({"_tool": "fast"})])
async def test_confirm_can_return_another_call_in_every_form(made: Call) -> None:
    loop = World().loop(
        solution(c("slow", "†state.a"), c("give", "†state.b", v="†state.a"), output=1),
        confirm=lambda asked: made if asked.tool == "slow" else True,
    )
    await told(loop)
    assert loop.state == {"a": "fast", "b": "fast"}


async def test_confirm_gets_resolved_data_and_can_reject_with_a_reason() -> None:
    seen: list[Any] = []

    async def confirm(call: Call) -> Any:
        seen.append((call.name, call.arguments, call["_tool"], call.id, call.get("_outputPath")))
        await asyncio.sleep(0)
        return Reject("not now") if call.name == "fetch" else True

    loop = World().loop(solution(c("fetch", "†state.p", u="†input.u"), c("fast")), solution(output=1), confirm=confirm)
    events = await collect(loop.run())
    assert seen == [("fetch", {"u": "alice"}, "fetch", "c1", "†state.p"), ("fast", {}, "fast", "c2", None)]
    assert [event.reason for event in events if event.type == "call_rejected"] == ["rejected by user: not now"]
    assert errors_told(loop, 1)[0] == {
        "call": c("fetch", "†state.p", u="†input.u"),
        "error": "rejected by user: not now",
    }


async def test_a_cancelled_error_in_confirm_rejects_the_call() -> None:
    async def confirm(call: Call) -> bool:
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.cancel()
        return bool(await waited_for)

    world = World()
    loop = world.loop(solution(c("fast")), solution(output=1), confirm=confirm)
    async with asyncio.timeout(60):
        assert "rejected c1" in notation([event async for event in loop.run()])
    assert world.ran == []
    assert errors_told(loop, 1)[0]["error"] == "rejected by user: confirm failed: CancelledError: "


@pytest.mark.parametrize(
    ("said", "runs"),
    [
        ({"_tool": "give", "v": 5}, ("give", {"v": 5})),
        ({"name": "give", "arguments": {"v": 5}}, ("give", {"v": 5})),
        ({"id": "c1", "name": "fast"}, ("fast", {})),
        ({"v": 5}, ("echo", {"v": 5})),
        ({"_tool": "note", "name": "n"}, ("note", {"name": "n"})),
        ({"_tool": "note", "name": "n", "arguments": {}}, ("note", {"name": "n", "arguments": {}})),
        ({"name": "n", "v": 5}, ("echo", {"name": "n", "v": 5})),
        ({"arguments": {"v": 5}}, ("echo", {"arguments": {"v": 5}})),
    ],
)
async def test_confirm_can_return_a_call_in_the_form_of_the_model_or_of_a_provider(said: Any, runs: Any) -> None:
    loop = World().loop(solution(c("echo", v=1)), solution(output=1), confirm=lambda asked: said)
    run = loop.start(None)
    await run
    (decision,) = [event for event in run.events if event.type == "approval_decision"]
    assert (decision.decision, decision.name, decision.arguments) == ("replace", *runs)


async def test_undoing_a_decision_about_a_replaced_call_keeps_the_replacement() -> None:
    world = World()
    confirm = {"fast": Call("ask", v=5)}
    loop = world.loop(solution(c("fast")), solution(output=1), confirm=lambda asked: confirm.get(asked.name, True))
    run = loop.start(None)
    await run.step("call")
    (asked,) = run.pending
    run.approve(asked.id)
    run.undo(asked.id)
    (again,) = run.pending
    assert (again.name, again.arguments) == (asked.name, asked.arguments) == ("ask", {"v": 5})
    run.approve(again.id)
    assert await run == 1
    assert world.ran == ["ask 5"]


async def test_a_decision_of_a_policy_that_was_undone_is_asked_with_resolved_references() -> None:
    world = World()
    run = world.loop(solution(c("fetch", u="†input.u"), output=1)).start(None, approve=True)
    while not run.decided:
        await run.step()
    (decided,) = run.decided
    run.undo(decided.id)
    for _ in ("asked for the first time", "asked again"):
        (item,) = run.pending
        assert (item.name, item.arguments) == ("fetch", {"u": "alice"})
        run.approve(item)
        run.undo(item)
    run.approve(run.pending[0])
    assert await run == 1
    assert world.ran == ["fetch alice"]
    assert types(run.events).count("approval_request") == 3, "what was shown is what ran"


async def test_a_replacement_from_confirm_is_checked_and_can_wait_for_data() -> None:
    world = World(0.002)

    def confirm(call: Call) -> Any:
        if call.name == "echo":
            return {"_tool": "give", "v": "†state.x"}
        return Call(call, u=5) if call.name == "fetch" else True

    loop = world.loop(
        solution(c("echo", "†state.y", v=1), c("slow", "†state.x"), c("fetch", u="†input.u")),
        solution(c("fast"), output=1),
        confirm=confirm,
    )
    said = await told(loop)
    assert [word for word in said if "c1" in word] == [
        *("received c1", "unblocked c1", "unblocked c1", "started c1", "done c1")
    ]
    assert said.index("done c2") < said.index("started c1")
    assert "failed c3 structural" in said
    assert world.ran == ["slow", "give slow", "fast"]
    assert loop.state == {"x": "slow", "y": "slow"}


@pytest.mark.parametrize("answer", [None, "yes", 1, {"name": "fast", "arguments": {}}])
async def test_only_true_permits_a_call(answer: Any) -> None:
    world = World()
    loop = world.loop(solution(c("give", v=1)), solution(output=1), confirm=lambda call: answer)
    said = await told(loop)
    assert world.ran == (["fast"] if isinstance(answer, dict) else [])
    assert ("rejected c1" in said) is not isinstance(answer, dict)


@pytest.mark.parametrize(("answer", "ran"), [(np.bool_(True), ["give 1"]), (np.bool_(False), [])], ids=["yes", "no"])
async def test_a_numpy_boolean_is_accepted_as_an_answer_of_confirm(answer: Any, ran: list[str]) -> None:
    world = World()
    loop = world.loop(solution(c("give", v=1)), solution(output=1), confirm=lambda call: answer)
    assert ("rejected c1" in await told(loop)) is not bool(ran)
    assert world.ran == ran


@pytest.mark.parametrize(
    ("instead", "state"),
    [
        (c("give", v=3), {"list": [1, 3], "other": [0]}),
        (c("give", "†state.other", v=3), {"list": [1], "other": 3}),
        (c("give", "†state.other", v=3, _outputMethod="push"), {"list": [1], "other": [0, 3]}),
    ],
)
async def test_a_replacement_has_the_output_path_of_the_replaced_call_unless_it_has_its_own(
    instead: dict[str, Any], state: dict[str, Any]
) -> None:
    loop = World().loop(
        solution(c("give", "†state.list", v=2, _outputMethod="push"), output=1),
        context=[{"type": "data", "kind": "state", "data": {"list": [1], "other": [0]}}],
        confirm=lambda call: instead,
    )
    await told(loop)
    assert loop.state == state


@pytest.mark.parametrize("instead", [c("echo", v="†state.x"), c("echo", "†state.y", v="††"), c("give", v=[1])])
async def test_a_run_with_calls_replaced_by_confirm_can_be_replayed(
    instead: dict[str, Any],
) -> None:
    def loop() -> ExecutionLoop:
        calls = solution(c("slow", "†state.x"), c("fast", "†state.z"), output=1)
        return World().loop(calls, confirm=lambda call: instead if call.name == "fast" else True)

    run = loop().start(None)
    await run
    recording = agentnb.replay(run, loop())
    assert recording.to(len(run.events) - 1).output == 1


async def test_an_exception_in_confirm_rejects_the_call() -> None:
    world = World()

    def confirm(call: Call) -> Any:
        raise RuntimeError("no idea")

    loop = world.loop(solution(c("give", v=1)), solution(output=1), confirm=confirm)
    assert "rejected c1" in await told(loop)
    assert "no idea" in errors_told(loop, 1)[0]["error"]
    assert world.ran == []


@pytest.mark.parametrize("said", [lambda call: Reject(5), lambda call: Call("echo", v="half a \ud83d")])
async def test_every_answer_of_confirm_can_be_recorded_and_read(said: Any) -> None:
    loop = World().loop(solution(c("give", v=1)), solution(output=1), confirm=said)
    run = loop.start("hi")
    assert await run == 1
    assert Snapshot.from_json(run.snapshot().to_json()).events == tuple(run.events)


async def test_confirm_blocks_only_its_own_call_and_is_repeated_if_the_data_has_changed() -> None:
    asked: list[Any] = []
    go_on = asyncio.Event()

    async def confirm(call: Call) -> bool:
        asked.append(call.v)
        if call.v == 1:
            await go_on.wait()
        return True

    world = World()
    context = [{"type": "data", "kind": "state", "data": {"a": 1}}]
    loop = world.loop(
        solution(c("echo", v="†state.a"), c("give", "†state.a", v=2), output=1), context=context, confirm=confirm
    )
    started: dict[str, Any] = {}
    async for event in loop.run():
        if event.type == "call_started":
            started[event.id] = event.args
        elif event.type == "call_completed" and event.id == "c2":
            go_on.set()
    assert asked == [1, 2, 2]
    assert started == {"c1": {"v": 2}, "c2": {"v": 2}}


# -- a person --------------------------------------------------------------------------------------------------------


async def test_an_approval_request_has_the_current_data_and_is_repeated_if_the_data_has_changed() -> None:
    world = World()
    context = [{"type": "data", "kind": "state", "data": {"a": 1}}]
    loop = world.loop(
        [
            *text('{"calls": [{"_tool": "ask", "v": "†state.a"},'),
            *MOMENT,
            *text('{"_tool": "give", "v": 2, '),
            *text('"_outputPath": "†state.a"}], "output": 1}'),
        ],
        context=context,
    )
    run = loop.start(None)
    run.play()
    await until(lambda: world.ran == ["give 2"] and bool(run.pending))
    [first] = run.pending
    assert (first.id, first.name, first.arguments) == ("c1", "ask", {"v": 1})
    run.approve("c1")
    await until(lambda: bool(run.pending))
    [second] = run.pending
    assert second.arguments == {"v": 2}
    assert world.ran == ["give 2"]
    run.approve("c1")
    assert await run == 1
    assert world.ran == ["give 2", "ask 2"]


async def test_a_pending_approval_blocks_only_the_calls_that_depend_on_the_call() -> None:
    steps = [c("ask", "†state.p", v=1), c("give", "†state.q", v="†state.p"), c("fast", "†state.r")]
    loop = World().loop(solution(*steps, output=1))
    run = loop.start(None)
    run.play()
    await until(lambda: "r" in loop.state)
    assert ([item.name for item in run.pending], loop.state) == (["ask"], {"r": "fast"})
    run.approve("c1")
    assert await run == 1
    assert loop.state == {"p": 1, "q": 1, "r": "fast"}


async def test_a_person_can_edit_replace_reject_and_answer_calls() -> None:
    world = World()
    calls = [c("ask", f"†state.r{n}", v="†input.u") for n in range(4)]
    loop = world.loop(solution(*calls), solution(output=1))
    run = loop.start(None)
    run.play()
    await until(lambda: len(run.pending) == 4)
    run.edit("c1", {"v": "†literal"})
    run.replace("c2", "give", {"v": "else"})
    run.reject("c3", "no")
    run.answer("c4", {"by": "hand"})
    assert await run == 1
    assert world.ran == ["ask †literal", "give else"]
    assert loop.state == {"r0": "†literal", "r1": "else", "r3": {"by": "hand"}}
    assert errors_told(loop, 1)[0]["error"] == "rejected by user: no"


@pytest.mark.parametrize(
    ("approve", "ran"),
    [
        (True, ["fetch alice", "ask 1"]),
        (False, []),
        (lambda call: call.arguments.get("u") == "alice", ["fetch alice"]),
        (
            [{"tool": "fetch", "arguments": {"u": "al*"}, "decision": "approve"}, {"decision": "reject"}],
            ["fetch alice"],
        ),
    ],
)
async def test_policies_decide_with_resolved_references(approve: Any, ran: list[str]) -> None:
    world = World()
    loop = world.loop(solution(c("fetch", u="†input.u"), c("ask", v=1), output=1))
    await loop.start(None, approve=approve)
    assert world.ran == ran


# -- the design's own values -----------------------------------------------------------------------------------------


def test_a_call_is_a_mapping_with_attributes() -> None:
    made = Call(_tool="fetch", u=1, _outputPath="†state.p")
    assert (made.name, made.arguments, made.u, made._outputPath, made["_tool"]) == (
        "fetch",
        {"u": 1},
        1,
        "†state.p",
        "fetch",
    )
    assert made == {"_tool": "fetch", "u": 1, "_outputPath": "†state.p"}
    assert made == Call("fetch", {"u": 1}, _outputPath="†state.p")
    assert (made.tool, made.outputPath) == ("fetch", "†state.p")
    with pytest.raises(AttributeError):
        _ = made.missing


async def test_the_json_of_a_solution_is_a_valid_model_answer() -> None:
    loop = World().loop(Solution(calls=[Call(_tool="fast")], output=5).to_json())
    assert (await told(loop))[-1] == "output"


async def test_tools_can_be_passed_as_a_mapping() -> None:
    async def give() -> str:
        return "given"

    loop = World().loop(solution(c("mine", "†state.a"), output=1), tools={"mine": give})
    await told(loop)
    assert loop.state == {"a": "given"}


def test_invalid_options_of_a_loop_are_refused() -> None:
    for options in ({"max_requests": -1}, {"max_concurrency": 0}, {"context": [5]}, {"context": [{"no": 1}]}):
        with pytest.raises(UsageError):
            ExecutionLoop(ScriptedLLM([]), **options)
    with pytest.raises(UsageError):
        ExecutionLoop(ScriptedLLM([]), [{"properties": {}}])


async def test_the_error_for_an_invalid_tool_schema_is_sent_to_the_model() -> None:
    tools = [{"_tool": "w", "properties": {"n": {"type": "nonsense"}}}]
    loop = World().loop(solution(c("w", n=1)), solution(output=2), tools=tools, activities={"w": lambda *_: 5})
    assert await loop.run() == 2
    (told_of,) = errors_told(loop, 1)
    assert told_of["error"].startswith("The arguments of w cannot be checked: Unknown type 'nonsense'")


async def test_a_remote_reference_of_a_schema_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    tools = [{"_tool": "w", "properties": {"n": {"$ref": "http://127.0.0.1:1/number.json"}}}]
    loop = World().loop(solution(c("w", n=1)), solution(output=2), tools=tools, activities={"w": lambda *_: 5})
    await loop.run()
    assert not fetched
    (told_of,) = errors_told(loop, 1)
    assert told_of["error"].startswith("The arguments of w cannot be checked: Unresolvable")


@pytest.mark.parametrize("output", [{"type": "text"}, {"n": int}, {"type": "object", "required": True}])
def test_an_invalid_output_schema_is_refused(output: Any) -> None:
    with pytest.raises(UsageError, match="output= takes a JSON schema, or a type that has one"):
        ExecutionLoop(ScriptedLLM([]), output=output)
