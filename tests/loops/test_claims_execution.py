"""What the texts promise of an ExecutionLoop, checked through its public names only, one claim a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pydantic
import pytest

import agentnb
from agentnb import ExecutionLoop, tool
from agentnb.loops.execution_loop import Call, Reject
from agentnb.testing import ScriptedLLM

INPUT = {"type": "data", "kind": "input", "data": {"u": "alice"}}
D = "†"


def solution(*calls: dict[str, Any], output: Any = None) -> list[dict[str, Any]]:
    return text(json.dumps({"calls": list(calls), "output": output}, ensure_ascii=False))


def text(content: str, size: int = 7) -> list[dict[str, Any]]:
    return [{"type": "text_delta", "content": content[at : at + size]} for at in range(0, len(content), size)]


def call(name: str, to: str | None = None, how: str | None = None, **arguments: Any) -> dict[str, Any]:
    path = {} if to is None else {"_outputPath": to if to.startswith(D) else f"{D}{to}"}
    method = {} if how is None else {"_outputMethod": how}
    return {"_tool": name, **arguments, **path, **method}


class Hands:
    """The tools of the scenarios; `gate` holds `held` back, and `log` keeps who began and who ended."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.log: list[str] = []

    def tools(self) -> list[Callable[..., Any]]:
        async def fast() -> str:
            self.log.append("fast")
            return "fast"

        async def slow() -> str:
            self.log.append("slow")
            await asyncio.sleep(0.02)
            return "slow"

        async def held() -> str:
            self.begun.set()
            try:
                await self.gate.wait()
            finally:
                self.log.append("held closed")
            return "held"

        async def fetch(u: str) -> dict[str, str]:
            return {"name": "Al"}

        async def sum(p: dict[str, Any]) -> str:
            return "S:" + str(p["name"])

        async def echo(v: Any) -> Any:
            self.log.append(f"echo {json.dumps(v, ensure_ascii=False)}")
            return v

        async def boom() -> str:
            raise RuntimeError("api down")

        async def typed(n: int) -> int:
            return n

        return [fast, slow, held, fetch, sum, echo, boom, typed]


class Piped:
    """A model whose stream the test writes piece by piece: a string is text, an exception is raised, None ends it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.requests = 0

    def send(self, *pieces: Any) -> None:
        for piece in pieces:
            self.queue.put_nowait(piece)

    async def stream(self, messages: Any, **options: Any) -> AsyncIterator[dict[str, Any]]:
        self.requests += 1
        while (piece := await self.queue.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece if isinstance(piece, dict) else {"type": "text_delta", "content": piece}


class Seeing(ScriptedLLM):
    """A scripted model that keeps what it was shown, as text."""

    def __init__(self, turns: Any) -> None:
        super().__init__(turns)
        self.shown: list[str] = []

    def stream(self, messages: Any, **options: Any) -> Any:
        self.shown.append(json.dumps([dict(message) for message in messages], ensure_ascii=False, default=str))
        return super().stream(messages, **options)


def made(*turns: Any, hands: Hands | None = None, context: Any = (INPUT,), **options: Any) -> ExecutionLoop:
    return ExecutionLoop(ScriptedLLM(list(turns)), (hands or Hands()).tools(), context=list(context), **options)


async def told(loop: ExecutionLoop) -> list[Any]:
    return [event async for event in loop.run()]


def short(events: list[Any]) -> list[str]:
    """`type` and the short name of the call: c1, c2 in the order in which they were received."""
    names: dict[str, str] = {}
    lines = []
    for event in events:
        line = str(event.type)
        if line.startswith("call_"):
            names.setdefault(event.id, f"c{len(names) + 1}")
            line += " " + names[event.id]
        if event.type == "call_failed":
            line += " " + event.phase
        lines.append(line)
    return lines


def calls(events: list[Any]) -> list[str]:
    return [line for line in short(events) if line.startswith(("call_", "errors"))]


def errors(loop: ExecutionLoop) -> list[Any]:
    found = [message["data"] for message in loop.context if isinstance(message["data"], dict)]
    return [data for data in found if set(data) == {"call", "error"}]


async def after(*steps: Any, **options: Any) -> ExecutionLoop:
    """The loop after one request with these calls and an output."""
    loop = made(solution(*steps, output="ok"), **options)
    await told(loop)
    return loop


async def one_by_one(*steps: Any, **options: Any) -> ExecutionLoop:
    """The loop after a request for each of these calls."""
    loop = made(*[solution(step) for step in steps], solution(output="ok"), **options)
    await told(loop)
    return loop


# The scenarios


async def test_el_01_an_output_at_once_is_three_events() -> None:
    loop = made(solution(output={"x": 1}))
    events = await told(loop)
    assert [event.type for event in events] == ["request_started", "request_completed", "loop_completed"]
    assert (events[0].n, events[1].n, events[1].output, events[2].reason) == (1, 1, {"x": 1}, "output")
    assert loop.output == {"x": 1}


async def test_el_02_order_is_of_the_data_not_of_the_calls() -> None:
    first = solution(call("sum", "state.summary", p="†state.prof"), call("fetch", "state.prof", u="†input.u"))
    loop = made(first, solution(output="done"))
    events = await told(loop)
    assert short(events) == [
        "request_started",
        "call_received c1",
        "call_received c2",
        "call_unblocked c2",
        "call_started c2",
        "call_completed c2",
        "call_unblocked c1",
        "call_started c1",
        "call_completed c1",
        "request_completed",
        "request_started",
        "request_completed",
        "loop_completed",
    ]
    assert [event.args for event in events if event.type == "call_started"] == [{"u": "alice"}, {"p": {"name": "Al"}}]
    assert loop.state["summary"] == "S:Al"
    assert [event.output for event in events if event.type == "request_completed"] == [None, "done"]


async def test_el_03_a_call_starts_and_completes_while_the_reply_streams() -> None:
    llm, hands = Piped(), Hands()
    loop = ExecutionLoop(llm, hands.tools())
    llm.send('{"calls": [{"_tool": "fast"}')
    seen = []
    async for event in loop.run():
        seen.append(event)
        if event.type == "call_completed" and len(seen) < 6:
            llm.send(', {"_tool": "slow"}], "output": "ok"}', None)
    assert short(seen)[:6] == [
        "request_started",
        "call_received c1",
        "call_unblocked c1",
        "call_started c1",
        "call_completed c1",
        "call_received c2",
    ]


async def test_independent_calls_run_at_the_same_time() -> None:
    hands = Hands()

    async def opener() -> None:
        await hands.begun.wait()
        hands.gate.set()

    loop = ExecutionLoop(ScriptedLLM([solution(call("held"), call("opener"), output=1)]), [*hands.tools(), opener])
    lines = calls(await told(loop))
    assert lines.index("call_completed c2") < lines.index("call_completed c1")


@pytest.mark.parametrize("order", [["held", "late"], ["late", "held"]])
async def test_the_last_to_complete_wins_whatever_the_order_of_the_calls(order: list[str]) -> None:
    hands = Hands()

    async def late() -> str:
        hands.gate.set()
        return "late"

    steps = [call(name, "state.x") for name in order]
    loop = ExecutionLoop(ScriptedLLM([solution(*steps, output=1)]), [*hands.tools(), late])
    await told(loop)
    assert loop.state["x"] == "held"


async def test_el_06_a_failed_producer_fails_its_dependents() -> None:
    loop = made(solution(call("boom", "state.a"), call("echo", v="†state.a")), solution(output=1))
    events = await told(loop)
    lines = calls(events)
    assert lines.index("call_failed c1 runtime") < lines.index("call_failed c2 structural")
    assert lines[-1] == "errors_appended"
    assert [event.count for event in events if event.type == "errors_appended"] == [2]
    assert "api down" in json.dumps(errors(loop)[0]["error"])


async def test_a_cycle_fails_both_and_does_not_hang() -> None:
    loop = made(
        solution(call("echo", "state.a", v="†state.b"), call("echo", "state.b", v="†state.a")), solution(output=1)
    )
    events = await told(loop)
    assert calls(events)[-3:] == ["call_failed c1 structural", "call_failed c2 structural", "errors_appended"]
    assert events[-1].reason == "output"


async def test_a_call_that_needs_itself_fails() -> None:
    loop = await after(call("echo", "state.a", v="†state.a"))
    assert len(errors(loop)) == 1


async def test_a_dangling_name_is_an_unresolved_reference() -> None:
    loop = made(solution(call("echo", v="†state.nowhere")), solution(output=1))
    events = await told(loop)
    assert calls(events) == ["call_received c1", "call_failed c1 structural", "errors_appended"]
    assert "unresolved" in json.dumps(errors(loop)[0]["error"])


@pytest.mark.parametrize("order", ["output first", "calls first"])
async def test_el_09_output_before_calls_drops_no_call(order: str) -> None:
    steps = [call("fast", "state.a"), call("slow", "state.b")]
    reply = {"meta": {}, "output": "x", "calls": steps} if order == "output first" else {"calls": steps, "output": "x"}
    loop = made(text(json.dumps(reply, ensure_ascii=False)))
    events = await told(loop)
    assert loop.state == {"a": "fast", "b": "slow"}
    assert [event.type for event in events][-2:] == ["request_completed", "loop_completed"]
    assert loop.output == "x"


async def test_output_with_failing_calls_returns_the_errors_too() -> None:
    loop = made(solution(call("boom"), output="x"))
    events = await told(loop)
    assert [event.type for event in events][-3:] == ["errors_appended", "request_completed", "loop_completed"]
    assert loop.output == "x"
    assert len(errors(loop)) == 1
    assert len(loop.errors) == 1


async def test_the_limit_of_requests_ends_the_loop() -> None:
    loop = made(*[solution(call("fast"))] * 5, max_requests=3)
    events = await told(loop)
    assert [event.n for event in events if event.type == "request_started"] == [1, 2, 3]
    assert events[-1].type == "loop_completed"
    run = made(*[solution(call("fast"))] * 5, max_requests=3).start(None)
    assert await run is None
    assert run.stop_reason == "max_requests"


async def test_an_output_in_the_last_allowed_request_is_an_output() -> None:
    loop = made(solution(call("fast")), solution(output=1), max_requests=2)
    assert (await told(loop))[-1].reason == "output"


async def test_el_12_nothing_called_and_nothing_given_is_stalled() -> None:
    loop = made(solution())
    events = await told(loop)
    assert [event.type for event in events] == ["request_started", "request_completed", "loop_completed"]
    assert events[-1].reason == "stalled"


async def test_stalled_is_a_normal_end_of_the_run() -> None:
    run = made(solution()).start(None)
    assert await run is None
    assert run.stop_reason == "stalled"


async def test_a_limit_goes_before_stalled() -> None:
    run = made(solution(), max_requests=1).start(None)
    await run
    assert run.stop_reason == "max_requests"


async def test_a_request_whose_calls_only_failed_is_not_stalled() -> None:
    loop = made(solution(call("unheard")), solution(output=1))
    assert (await told(loop))[-1].reason == "output"


async def test_el_14_a_rejection_goes_to_the_model_and_its_dependents_fail() -> None:
    loop = made(
        solution(call("slow", "state.x"), call("fast"), call("echo", v="†state.x")),
        solution(output=1),
        confirm=lambda call: call.name != "slow",
    )
    events = await told(loop)
    lines = calls(events)
    assert {"call_rejected c1", "call_completed c2", "call_failed c3 structural"} <= set(lines)
    assert "call_started c1" not in lines
    assert "call_failed c1 structural" not in lines
    assert [event.count for event in events if event.type == "errors_appended"] == [2]
    assert "rejected by user" in json.dumps([error["error"] for error in errors(loop)])


@pytest.mark.parametrize("value", [False, 0, "", [], {}])
async def test_every_output_but_null_ends_the_loop(value: Any) -> None:
    loop = made(solution(output=value))
    assert (await told(loop))[-1].reason == "output"
    assert loop.output == value


# Structural errors


@pytest.mark.parametrize(
    "bad",
    [
        call("unheard"),
        call("typed", n="not a number"),
        call("typed"),
        call("typed", n="†input.u"),
        call("echo", v="†"),
        call("echo", v="†state..a"),
        call("echo", v="†state.a ||"),
        call("fast", "state..a"),
        {"_tool": "fast", "_outputPath": "state.a"},
        call("fast", "state.a", how="zap"),
        {"v": 1},
    ],
)
async def test_what_is_malformed_fails_before_it_starts(bad: dict[str, Any]) -> None:
    loop = made(solution(bad, call("fast", "state.ok")), solution(output=1))
    events = await told(loop)
    lines = calls(events)
    assert "call_failed c1 structural" in lines
    assert "call_started c1" not in lines
    assert loop.state == {"ok": "fast"}
    assert len(errors(loop)) == 1


async def test_an_error_message_carries_the_whole_call() -> None:
    loop = await after(call("echo", "state.x", v="†state.nowhere"))
    error = errors(loop)[0]
    assert error["call"]["_tool"] == "echo"
    assert error["call"]["v"] == "†state.nowhere"
    assert error["call"]["_outputPath"] == "†state.x"


async def test_errors_are_appended_once_at_the_end_of_the_tick() -> None:
    loop = made(solution(call("boom"), call("unheard"), call("slow", "state.a")), solution(output=1))
    lines = calls(await told(loop))
    assert lines.count("errors_appended") == 1
    assert lines[-1] == "errors_appended"


async def test_a_request_without_errors_appends_none() -> None:
    assert "errors_appended" not in calls(await told(made(solution(call("fast"), output=1))))


async def test_the_model_sees_the_errors_of_the_last_request_only() -> None:
    llm = Seeing([solution(call("boom")), solution(call("fast")), solution(output=1)])
    await told(ExecutionLoop(llm, Hands().tools()))
    assert ["api down" in shown for shown in llm.shown] == [False, True, False]


async def test_results_and_state_are_shown_to_the_next_request() -> None:
    llm = Seeing([solution(call("fetch", "state.prof", u="x")), solution(call("fast")), solution(output=1)])
    await told(ExecutionLoop(llm, Hands().tools()))
    assert ["Al" in shown for shown in llm.shown] == [False, True, True]


async def test_the_context_given_is_shown_to_the_model() -> None:
    llm = Seeing([solution(output=1)])
    await told(ExecutionLoop(llm, Hands().tools(), context=[INPUT]))
    assert "alice" in llm.shown[0]


# Output methods, and the fold


async def test_set_replaces_the_whole_value() -> None:
    loop = await one_by_one(call("echo", "state.a", v={"b": 1}), call("echo", "state.a", "set", v={"c": 2}))
    assert loop.state == {"a": {"c": 2}}


async def test_merge_is_deep() -> None:
    loop = await one_by_one(
        call("echo", "state.a", v={"b": {"x": 1}}), call("echo", "state.a", "merge", v={"b": {"y": 2}})
    )
    assert loop.state == {"a": {"b": {"x": 1, "y": 2}}}


async def test_assign_is_shallow() -> None:
    loop = await one_by_one(
        call("echo", "state.a", v={"b": {"x": 1}, "k": 0}), call("echo", "state.a", "assign", v={"b": {"y": 2}})
    )
    assert loop.state == {"a": {"b": {"y": 2}, "k": 0}}


async def test_push_appends_one_value_even_a_list() -> None:
    loop = await one_by_one(call("echo", "state.a", "push", v=1), call("echo", "state.a", "push", v=[2]))
    assert loop.state == {"a": [1, [2]]}


async def test_concat_joins_lists() -> None:
    loop = await one_by_one(call("echo", "state.a", "concat", v=[1]), call("echo", "state.a", "concat", v=[2, 3]))
    assert loop.state == {"a": [1, 2, 3]}


async def test_merge_and_assign_onto_nothing_are_the_value() -> None:
    loop = await one_by_one(call("echo", "state.a", "merge", v={"x": 1}), call("echo", "state.b", "assign", v={"y": 1}))
    assert loop.state == {"a": {"x": 1}, "b": {"y": 1}}


async def test_a_set_forgets_what_was_pushed_before() -> None:
    loop = await one_by_one(
        call("echo", "state.a", "push", v=1), call("echo", "state.a", v=[9]), call("echo", "state.a", "push", v=2)
    )
    assert loop.state == {"a": [9, 2]}


async def test_a_leaf_under_a_value_keeps_its_siblings() -> None:
    given = {"type": "data", "kind": "data", "data": {"user": {"name": "Al", "status": "old"}}}
    loop = await one_by_one(
        call("echo", "data.user.status", v="new"), call("echo", "state.seen", v="†data.user"), context=[given]
    )
    assert loop.state["seen"] == {"name": "Al", "status": "new"}


async def test_a_leaf_of_an_overwritten_object_is_not_found() -> None:
    loop = await one_by_one(
        call("echo", "state.a", v={"b": 1}), call("echo", "state.a", v=9), call("echo", "state.seen", v="†state.a.b")
    )
    assert loop.state == {"a": 9}
    assert len(errors(loop)) == 1


async def test_context_messages_of_one_identity_merge_deeply() -> None:
    one = {"type": "data", "kind": "input", "data": {"a": {"x": 1}}}
    two = {"type": "data", "kind": "input", "data": {"a": {"y": 2}}}
    loop = await after(call("echo", "state.seen", v="†input.a"), context=[one, two])
    assert loop.state["seen"] == {"x": 1, "y": 2}


async def test_a_state_message_in_the_context_is_the_state_to_go_on_from() -> None:
    loop = await after(
        call("echo", "state.b", v="†state.a"), context=[{"type": "data", "kind": "state", "data": {"a": 1}}]
    )
    assert loop.state == {"a": 1, "b": 1}


# References, expressions, escapes


@pytest.mark.parametrize(
    ("written", "received"),
    [
        ("†input.u", "alice"),
        ("††input.u", "†input.u"),
        ("Hi †input.u", "Hi †input.u"),
        ("†input.gone || †input.u", "alice"),
        ("†input.u || †input.gone", "alice"),
        ("†input.u && †input.deep.er", 7),
        ("†input.deep", {"er": 7}),
        ("†input.nothing", None),
        ("†input.nothing || †input.u", None),
        ("plain", "plain"),
        ("", ""),
    ],
)
async def test_what_a_parameter_stands_for(written: str, received: Any) -> None:
    given = {"type": "data", "kind": "input", "data": {"u": "alice", "deep": {"er": 7}, "nothing": None}}
    loop = made(solution(call("echo", "state.seen", v=written), output=1), context=[given])
    events = await told(loop)
    assert [event.args for event in events if event.type == "call_started"] == [{"v": received}]
    assert loop.state == {"seen": received}


@pytest.mark.parametrize("written", ["†input.u && †input.gone", "†input.gone || †input.lost"])
async def test_an_expression_that_is_not_met_stays_unresolved(written: str) -> None:
    assert len(errors(await after(call("echo", v=written)))) == 1


async def test_an_alternative_runs_as_soon_as_one_path_is_there() -> None:
    loop = await after(
        call("echo", "state.c", v="†state.a || †state.b"), call("boom", "state.a"), call("fast", "state.b")
    )
    assert loop.state["c"] == "fast"


async def test_an_output_path_with_and_writes_all() -> None:
    assert (await after(call("fast", "†state.a && †state.b"))).state == {"a": "fast", "b": "fast"}


async def test_an_output_path_with_or_writes_the_first() -> None:
    assert (await after(call("fast", "†state.a || †state.b"))).state == {"a": "fast"}


async def test_a_returned_message_chooses_its_branch() -> None:
    async def careful() -> dict[str, Any]:
        return {"type": "data", "kind": "state", "data": {"err": "handled"}}

    llm = ScriptedLLM([solution(call("careful", "†state.ok || †state.err"), output=1)])
    loop = ExecutionLoop(llm, [careful])
    events = await told(loop)
    assert loop.state == {"err": "handled"}
    assert "errors_appended" not in calls(events)


async def test_a_plain_value_without_a_path_is_dropped_after_it_was_awaited() -> None:
    loop = await after(call("slow"))
    assert loop.state == {}
    assert "slow" not in json.dumps([dict(message) for message in loop.context], default=str)


async def test_a_returned_message_without_a_path_is_appended() -> None:
    async def note() -> dict[str, Any]:
        return {"type": "data", "kind": "state", "data": {"noted": True}}

    loop = ExecutionLoop(ScriptedLLM([solution(call("note"), output=1)]), [note])
    await told(loop)
    assert loop.state == {"noted": True}


async def test_a_call_without_a_path_that_fails_is_reported() -> None:
    assert len(errors(await after(call("boom")))) == 1


async def test_a_path_into_a_list_goes_by_its_index() -> None:
    given = {"type": "data", "kind": "input", "data": {"names": ["a", "b"]}}
    assert (await after(call("echo", "state.x", v="†input.names.1"), context=[given])).state == {"x": "b"}


async def test_arguments_are_resolved_at_launch() -> None:
    """While somebody decides, another call writes the path again: what was shown would not run, so ask anew."""
    asked: list[Any] = []
    hands = Hands()
    rewritten = asyncio.Event()

    async def confirm(call: Call) -> bool:
        if call.name != "echo":
            return True
        asked.append(dict(call.arguments))
        if len(asked) == 1:
            hands.gate.set()
            await rewritten.wait()
        return True

    loop = made(
        solution(call("fast", "state.x"), call("held", "state.x"), call("echo", "state.y", v="†state.x"), output=1),
        hands=hands,
        confirm=confirm,
    )
    async for event in loop.run():
        if event.type == "call_completed" and hands.gate.is_set():
            rewritten.set()
    assert asked == [{"v": "fast"}, {"v": "held"}]
    assert loop.state["y"] == "held"


# The stream


async def test_never_from_a_partial_object() -> None:
    llm, hands = Piped(), Hands()
    loop = ExecutionLoop(llm, hands.tools())
    stream = loop.run()
    llm.send('{"calls": [{"_tool": "fast", "_outputPath": "†state.a"')
    assert (await anext(stream)).type == "request_started"
    waiting = asyncio.ensure_future(anext(stream))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert hands.log == []
    llm.send("}", '], "output": 1}', None)
    assert (await waiting).type == "call_received"
    assert [event.type async for event in stream][-1] == "loop_completed"


async def test_every_way_to_cut_a_reply_reads_the_same() -> None:
    content = json.dumps(
        {"meta": {"a": "}]"}, "calls": [call("echo", "state.a", v='x"}]{†'), call("fast")], "output": 1},
        ensure_ascii=False,
    )
    told_of = []
    for size in (1, 2, 3, 5, 11, len(content)):
        loop = made(text(content, size))
        told_of.append((sorted(short(await told(loop))), loop.state))
    assert all(each == told_of[0] for each in told_of)


async def test_a_reply_as_escaped_ascii_reads_the_same() -> None:
    loop = made(text(json.dumps({"calls": [call("echo", "state.a", v="†input.u")], "output": 1})))
    await told(loop)
    assert loop.state == {"a": "alice"}


async def test_a_stream_that_fails_lets_running_calls_finish_then_fails_the_request() -> None:
    llm, hands = Piped(), Hands()
    loop = ExecutionLoop(llm, hands.tools())
    llm.send('{"calls": [{"_tool": "held", "_outputPath": "†state.a"}')

    async def release() -> None:
        await hands.begun.wait()
        llm.send(ConnectionError("cut"))  # not before: a call that has not begun by then is not begun any more
        hands.gate.set()

    releasing = asyncio.ensure_future(release())
    run = loop.start(None)
    with pytest.raises(agentnb.errors.RunFailed):
        await run
    await releasing
    assert loop.state == {"a": "held"}
    assert run.stop_reason is None
    llm.send('{"calls": [], "output": "second"}', None)
    run.resume()
    assert await run == "second"
    assert loop.state == {"a": "held"}


async def test_the_stream_of_a_loop_whose_model_fails_ends() -> None:
    llm = Piped()
    llm.send(ConnectionError("cut"))
    loop = ExecutionLoop(llm, Hands().tools())
    events = []
    try:
        async for event in loop.run():
            events.append(event)
    except agentnb.errors.RunFailed:
        pass
    assert [event.type for event in events].count("loop_completed") == 1
    assert events[-1].reason == "error"


@pytest.mark.parametrize("content", ["not json at all", '{"calls": [{"_tool": "fast"', '{"calls": 3}', "[1, 2]", ""])
async def test_a_reply_that_is_no_solution_does_not_hang(content: str) -> None:
    loop = made(text(content), solution(output="after"), max_requests=4)
    events = []
    try:
        async for event in loop.run():
            events.append(event)
    except agentnb.errors.AgentnbError:
        pass
    assert events[-1].type == "loop_completed"


async def test_a_model_with_complete_only_is_adapted() -> None:
    class Completing:
        async def complete(self, messages: Any, **options: Any) -> str:
            return json.dumps({"calls": [call("fast", "state.a")], "output": "x"})

    loop = ExecutionLoop(Completing(), Hands().tools())
    assert (await told(loop))[-1].reason == "output"
    assert loop.state == {"a": "fast"}


async def test_closing_the_stream_has_run_every_finally() -> None:
    hands = Hands()
    loop = made(solution(call("held"), output=1), hands=hands)
    stream = loop.run()
    async for event in stream:
        if event.type == "call_started":
            break
    await hands.begun.wait()
    await stream.aclose()
    assert hands.log == ["held closed"]


async def test_a_busy_reader_holds_no_call_up() -> None:
    hands = Hands()
    async for event in made(solution(call("held"), output=1), hands=hands).run():
        if event.type == "call_started":
            await hands.begun.wait()  # while nobody asks for the next event
            hands.gate.set()
    assert event.reason == "output"


async def test_cancel_closes_every_call_that_started() -> None:
    hands = Hands()
    run = made(solution(call("held"), output=1), hands=hands).start(None)
    run.play()
    await hands.begun.wait()
    run.cancel("enough")
    with pytest.raises(agentnb.errors.RunCancelled):
        await run
    assert run.stop_reason == "cancelled"
    assert hands.log == ["held closed"]
    assert [event.terminal for event in run.events].count(True) == 1
    assert run.events[-1].terminal


# Confirm


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("answer", ["true", "false", "reject", "call", "dict"])
async def test_the_four_answers_of_confirm(answer: str, asynchronous: bool) -> None:
    def decide(asked: Call) -> Any:
        if asked.arguments.get("v") != "first":
            return True
        return {
            "true": True,
            "false": False,
            "reject": Reject("not today"),
            "call": Call(call("echo", "state.x", v="second")) if answer == "call" else None,
            "dict": call("echo", "state.x", v="second"),
        }[answer]

    async def later(asked: Call) -> Any:
        await asyncio.sleep(0)
        return decide(asked)

    loop = made(solution(call("echo", "state.x", v="first"), output=1), confirm=later if asynchronous else decide)
    lines = calls(await told(loop))
    expected = {"true": {"x": "first"}, "call": {"x": "second"}, "dict": {"x": "second"}}.get(answer, {})
    assert loop.state == expected
    assert ("call_rejected c1" in lines) == (answer in ("false", "reject"))
    if answer == "reject":
        assert "not today" in json.dumps(errors(loop))


async def test_a_replacement_is_checked_again() -> None:
    loop = made(
        solution(call("echo", v=1), output=1),
        confirm=lambda asked: call("typed", n="x") if asked.name == "echo" else True,
    )
    lines = calls(await told(loop))
    assert "call_failed c1 structural" in lines
    assert "call_started c1" not in lines


async def test_a_replacement_may_be_blocked_again() -> None:
    hands = Hands()

    def confirm(asked: Call) -> Any:
        if asked.name == "echo" and asked.arguments["v"] == 1:
            hands.gate.set()
            return call("echo", "state.y", v="†state.x")
        return True

    loop = made(solution(call("held", "state.x"), call("echo", v=1), output=1), hands=hands, confirm=confirm)
    await told(loop)
    assert loop.state == {"x": "held", "y": "held"}


async def test_while_one_call_is_asked_about_others_run() -> None:
    done = asyncio.Event()

    async def confirm(asked: Call) -> bool:
        if asked.name == "slow":
            await done.wait()
        return True

    loop = made(solution(call("slow"), call("fast"), output=1), confirm=confirm)
    lines = []
    async for event in loop.run():
        lines.append(event)
        if event.type == "call_completed":
            done.set()
    assert calls(lines).index("call_completed c2") < calls(lines).index("call_started c1")


async def test_confirm_is_shown_resolved_arguments_only_of_unblocked_calls() -> None:
    shown: list[Any] = []

    def confirm(asked: Call) -> bool:
        shown.append((asked.name, dict(asked.arguments)))
        return True

    loop = made(
        solution(call("sum", p="†state.prof"), call("fetch", "state.prof", u="†input.u"), call("echo", v="†state.no")),
        solution(output=1),
        confirm=confirm,
    )
    await told(loop)
    assert shown == [("fetch", {"u": "alice"}), ("sum", {"p": {"name": "Al"}})]


@pytest.mark.parametrize("answer", [RuntimeError("confirm broke"), None])
async def test_a_confirm_that_breaks_or_says_nothing_means_no(answer: Any) -> None:
    hands = Hands()

    def confirm(asked: Call) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    loop = made(solution(call("fast"), output=1), hands=hands, confirm=confirm)
    events = []
    try:
        async for event in loop.run():
            events.append(event)
    except (agentnb.errors.AgentnbError, RuntimeError):
        pass
    assert events[-1].type == "loop_completed"
    assert hands.log == []


# People


def wary(*turns: Any) -> ExecutionLoop:
    @tool(approve=True)
    async def pay(amount: int) -> int:
        return amount

    return ExecutionLoop(ScriptedLLM(list(turns)), [pay, *Hands().tools()])


async def test_a_tool_that_wants_approval_waits_for_a_person() -> None:
    @tool(approve=True)
    async def pay(amount: int) -> int:
        return amount

    loop = ExecutionLoop(ScriptedLLM([solution(call("pay", "state.paid", amount=3), output=1)]), [pay])
    run = loop.start(None)
    while not run.pending:
        await run.step()
    asked = run.pending[0]
    assert (asked.name, asked.arguments) == ("pay", {"amount": 3})
    run.edit(asked.id, {"amount": 2})
    assert await run == 1
    assert loop.state == {"paid": 2}


async def test_a_rejection_by_a_person_is_an_error_message() -> None:
    run = (loop := wary(solution(call("pay", "state.a", amount=1)), solution(output=1))).start(None)
    while not run.pending:
        await run.step()
    run.reject(run.pending[0].id, "never")
    assert await run == 1
    assert "never" in json.dumps(errors(loop))
    assert loop.state == {}


async def test_others_run_while_a_person_thinks_and_dependents_wait() -> None:
    @tool(approve=True)
    async def pay(amount: int) -> int:
        return amount

    llm = ScriptedLLM(
        [
            solution(
                call("pay", "state.p", amount=1),
                call("echo", "state.q", v="†state.p"),
                call("fast", "state.r"),
                output=1,
            )
        ]
    )
    loop = ExecutionLoop(llm, [pay, *Hands().tools()])
    run = loop.start(None)
    while loop.state.get("r") is None:
        assert await run.step()
    assert run.pending
    assert loop.state == {"r": "fast"}
    run.approve(run.pending[0].id)
    await run
    assert loop.state == {"p": 1, "q": 1, "r": "fast"}


async def test_answering_for_a_call_writes_its_result() -> None:
    run = (loop := wary(solution(call("pay", "state.a", amount=1), output=1))).start(None)
    while not run.pending:
        await run.step()
    run.answer(run.pending[0].id, "by hand")
    assert await run == 1
    assert loop.state == {"a": "by hand"}


# Native transport, schemas, context


def native(identity: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": identity, "name": name, "arguments": arguments}


async def test_native_tool_calls_resolve_references_and_a_text_is_the_output() -> None:
    turns = [
        [
            native("a", "sum", p="†state.prof", _outputPath="†state.summary"),
            native("b", "fetch", u="†input.u", _outputPath="†state.prof"),
        ],
        [{"type": "text_delta", "content": "all done"}],
    ]
    loop = ExecutionLoop(ScriptedLLM(turns), Hands().tools(), context=[INPUT])
    events = await told(loop)
    assert loop.output == "all done"
    assert loop.state["summary"] == "S:Al"
    assert events[-1].reason == "output"


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
async def test_a_text_after_native_calls_is_the_output_it_is_the_json_of(
    output: Any, words: str, expected: Any
) -> None:
    turns = [[native("a", "fast")], text(words), text("no more")]
    loop = ExecutionLoop(ScriptedLLM(turns), Hands().tools(), output=output)
    events = await told(loop)
    assert [event.n for event in events if event.type == "request_started"] == [1, 2]
    assert loop.output == expected


async def test_a_text_that_is_no_such_output_is_an_error_for_the_model() -> None:
    turns = [[native("a", "fast")], text("three"), text("3")]
    loop = ExecutionLoop(ScriptedLLM(turns), Hands().tools(), output={"type": "integer"})
    events = await told(loop)
    assert [event.count for event in events if event.type == "errors_appended"] == [1]
    assert loop.output == 3


async def test_native_calls_each_have_one_result_in_the_history() -> None:
    turns = [
        [native("a", "boom"), native("b", "fast"), native("c", "unheard"), native("d", "echo", v="†state.no")],
        [{"type": "text_delta", "content": "ok"}],
    ]
    run = ExecutionLoop(ScriptedLLM(turns), Hands().tools()).start(None)
    assert await run == "ok"
    results = [message.tool_call_id for message in run.messages if message.role == "tool"]
    asked = [each.id for message in run.messages for each in (message.tool_calls or [])]
    assert sorted(results) == sorted(asked)
    assert len(set(asked)) == 4


async def test_an_output_schema_is_asked_of_the_model() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    kept: list[Any] = []

    class Watching(ScriptedLLM):
        def stream(self, messages: Any, **options: Any) -> Any:
            kept.append(options.get("schema"))
            return super().stream(messages, **options)

    loop = ExecutionLoop(Watching([solution(output={"x": 1})]), [], output=schema)
    await told(loop)
    assert loop.output == {"x": 1}
    assert '"x"' in json.dumps(kept[0])


async def test_an_output_against_its_schema_is_not_an_output() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    loop = ExecutionLoop(ScriptedLLM([solution(output={"y": 1}), solution(output={"x": 1})]), [], output=schema)
    await told(loop)
    assert loop.output == {"x": 1}


async def test_an_output_by_a_pydantic_model() -> None:
    class Answer(pydantic.BaseModel):
        x: int

    loop = ExecutionLoop(ScriptedLLM([solution(output={"x": "no"}), solution(output={"x": 1})]), [], output=Answer)
    await told(loop)
    found = loop.output
    assert (found.x if isinstance(found, Answer) else found["x"]) == 1


async def test_start_takes_none_or_an_input() -> None:
    assert await made(solution(output=1)).start(None) == 1
    llm = Seeing([solution(output=2)])
    assert await ExecutionLoop(llm, []).start("please add") == 2
    assert "please add" in llm.shown[0]


async def test_run_takes_an_input_too() -> None:
    llm = Seeing([solution(output=2)])
    async for _ in ExecutionLoop(llm, []).run("please add"):
        pass
    assert "please add" in llm.shown[0]


async def test_what_a_call_wrote_remembers_the_call_with_its_references() -> None:
    loop = await after(call("echo", "state.a", v="†input.u"))
    wrote = [message for message in loop.context if message["kind"] == "state"]
    assert len(wrote) == 1
    assert wrote[0]["_call"]["v"] == "†input.u"


# Identity, and coming back


async def test_call_ids_are_unique_over_the_requests() -> None:
    loop = made(solution(call("fast"), call("fast")), solution(call("fast")), solution(output=1))
    received = [event.id for event in await told(loop) if event.type == "call_received"]
    assert len(set(received)) == 3


async def test_the_events_have_exactly_the_fields_of_their_design() -> None:
    loop = made(
        solution(call("fast"), call("slow"), call("boom")),
        solution(output="x"),
        confirm=lambda asked: asked.name != "slow",
    )
    expected = {
        "request_started": {"n"},
        "call_received": {"id"},
        "call_unblocked": {"id"},
        "call_rejected": {"id"},
        "call_started": {"id", "args"},
        "call_completed": {"id"},
        "call_failed": {"id", "phase"},
        "errors_appended": {"count"},
        "request_completed": {"n", "output"},
        "loop_completed": {"reason"},
    }
    seen = {event.type: set(event.model_dump(mode="json")) - {"type"} for event in await told(loop)}
    assert seen == expected


async def test_every_event_has_its_call_in_a_legal_order() -> None:
    loop = made(solution(call("fast"), call("sum", p="†state.p"), call("fetch", "state.p", u="x"), output=1))
    by_call: dict[str, list[str]] = {}
    for event in await told(loop):
        if event.type.startswith("call_"):
            by_call.setdefault(event.id, []).append(event.type)
    assert all(
        kinds == ["call_received", "call_unblocked", "call_started", "call_completed"] for kinds in by_call.values()
    )


async def test_a_snapshot_at_every_event_goes_on_to_the_same_end() -> None:
    def turns() -> list[Any]:
        return [
            solution(call("sum", "state.s", p="†state.p"), call("fetch", "state.p", u="†input.u"), call("boom")),
            solution(call("echo", "state.l", "push", v="†state.s")),
            solution(output="end"),
        ]

    def loop() -> ExecutionLoop:
        tools = [tool(each, idempotent=True) for each in Hands().tools()]
        return ExecutionLoop(ScriptedLLM(turns()), tools, context=[INPUT])

    whole = (first := loop()).start(None)
    assert await whole == "end"
    for at in range(len(whole.events)):
        run = (again := loop()).start(None)
        while len(run.events) <= at and await run.step():
            pass
        snapshot = agentnb.Snapshot.from_json(run.snapshot().to_json())
        run.cancel()
        finishing = ExecutionLoop(
            ScriptedLLM(turns()[sum(event.type == "model_end" for event in snapshot.events) :]),
            [tool(each, idempotent=True) for each in Hands().tools()],
            context=[INPUT],
        )
        restored = agentnb.restore(snapshot, finishing)
        assert await restored == "end", at
        assert finishing.state == first.state, at
        assert again.output in (None, "end"), at


async def test_a_call_in_flight_when_saved_is_asked_about_and_may_be_answered() -> None:
    hands = Hands()
    run = made(solution(call("held", "state.a"), output="end"), hands=hands).start(None)
    run.play()
    await hands.begun.wait()
    snapshot = run.snapshot()
    run.cancel()
    again = made(solution(output="end"), hands=Hands())
    restored = agentnb.restore(snapshot, again)
    while not restored.pending:
        await restored.step()
    restored.answer(restored.pending[0].id, "it happened")
    assert await restored == "end"
    assert again.state == {"a": "it happened"}


async def test_a_rejected_call_was_unblocked_first_and_never_fails() -> None:
    loop = made(solution(call("fast"), output=1), confirm=lambda asked: Reject("no"))
    assert calls(await told(loop)) == ["call_received c1", "call_unblocked c1", "call_rejected c1", "errors_appended"]


async def test_cancelling_through_the_stream_closes_its_calls() -> None:
    hands = Hands()
    loop = made(solution(call("held", "state.x"), call("echo", v="†state.x"), output=1), hands=hands)
    stream = loop.run()
    events = []
    async for event in stream:
        events.append(event)
        if event.type == "call_started":
            await hands.begun.wait()
            stream.run.cancel("enough")
    lines = short(events)
    assert {"call_failed c1 runtime", "call_failed c2 structural"} <= set(lines)
    assert lines[-2:] == ["request_completed", "loop_completed"]
    assert events[-1].reason == "cancelled"
    assert hands.log == ["held closed"]


async def test_the_latest_definition_of_a_tool_wins() -> None:
    def defined(value: int) -> Any:
        async def one() -> int:
            return value

        return one

    loop = ExecutionLoop(ScriptedLLM([solution(call("one", "state.x"), output=1)]), [defined(1), defined(2)])
    await told(loop)
    assert loop.state == {"x": 2}


async def test_a_tool_that_takes_too_long_is_a_runtime_error() -> None:
    @tool(timeout=0.01)
    async def stuck() -> None:
        await asyncio.Event().wait()

    loop = ExecutionLoop(ScriptedLLM([solution(call("stuck"), output=1)]), [stuck])
    assert "call_failed c1 runtime" in calls(await told(loop))


async def test_a_person_decides_about_the_data_that_will_be_used() -> None:
    """While a person thinks, another call writes the path again: they are asked again, with what is there now."""
    hands = Hands()

    @tool(approve=True)
    async def pay(v: Any) -> Any:
        return v

    steps = [call("fast", "state.x"), call("held", "state.x"), call("pay", "state.y", v="†state.x")]
    loop = ExecutionLoop(ScriptedLLM([solution(*steps, output=1)]), [pay, *hands.tools()])
    run = loop.start(None)
    while not run.pending:
        assert await run.step()
    assert run.pending[0].arguments == {"v": "fast"}
    hands.gate.set()
    while loop.state["x"] != "held":
        assert await run.step()
    run.approve(run.pending[0].id)
    while not run.pending:
        assert await run.step()
    assert run.pending[0].arguments == {"v": "held"}
    run.approve(run.pending[0].id)
    assert await run == 1
    assert loop.state["y"] == "held"


async def test_a_latent_tools_result_is_what_the_model_gave() -> None:
    note = {"_tool": "note", "_output": {"type": "string"}}
    steps = [{"_tool": "note", "_output": "hey", "_outputPath": "†state.n"}, {"_tool": "note"}]
    loop = ExecutionLoop(ScriptedLLM([solution(*steps, output=1)]), [note])
    lines = calls(await told(loop))
    assert loop.state == {"n": "hey"}
    assert "call_failed c2 structural" in lines


async def test_the_same_loop_may_run_twice() -> None:
    loop = made(solution(call("fast", "state.a"), output=1))
    await told(loop)
    loop.llm = ScriptedLLM([solution(output=2)])
    await told(loop)
    assert loop.output == 2
