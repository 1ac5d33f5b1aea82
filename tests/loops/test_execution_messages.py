"""Messages returned by tools and given in contexts: each is appended, written, or refused with an error
(execution_loop/SEMANTICS.md, 6. Writing results)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentnb import ExecutionLoop, Snapshot, UsageError, tool
from agentnb.core.messages import Message
from agentnb.loops.execution_loop import ErrorMessage
from agentnb.testing import ScriptedLLM, text
from tests.loops.execution_world import World, c, errors_told, notation, solution
from tests.worlds import collect


def returning(value: Any, to: str | None = None, **fields: Any) -> ExecutionLoop:
    """Return a loop with one request whose call returns the value, and a second request."""

    @tool
    async def tell() -> Any:
        return value

    return World().loop(solution(c("tell", to, **fields)), solution(output="on"), tools=[tell])


def texts_told(loop: ExecutionLoop) -> list[Any]:
    return [message["content"] for message in loop.llm.requests[1].messages if not message["content"].startswith("{")]


MALFORMED = [
    {"_outputPath": "nowhere"},
    {"_outputPath": "†state..x"},
    {"_outputPath": 5},
    {"_outputPath": "†state.x", "_outputMethod": "paint"},
    {"_outputPath": "†error.x"},
    {"kind": 5},
    {"kind": "error"},
    {"_instance": 7},
]


@pytest.mark.parametrize("to", [None, "†state.o"])
@pytest.mark.parametrize("fields", MALFORMED)
async def test_a_tool_that_returns_a_malformed_message_fails_and_the_loop_continues(fields: Any, to: Any) -> None:
    loop = returning({"type": "data", "data": {"a": 1}, **fields}, to)
    said = notation(await collect(loop.run()))
    assert [*said[4:6], said[-1]] == ["failed c1 runtime", "errors 1", "output"]
    assert loop.state == {}


@pytest.mark.parametrize("fields", [*MALFORMED, {"_outputPath": "†state.elsewhere"}])
def test_a_context_with_a_malformed_message_is_refused_immediately(fields: Any) -> None:
    message = {"type": "data", "kind": "state", "data": {"x": 1}, **fields}
    with pytest.raises(UsageError):
        World().loop(context=[message])
    with pytest.raises(UsageError):
        World().loop().start([message])


async def test_the_log_of_another_run_can_be_the_context() -> None:
    first = World().loop(solution(c("give", "†state.l", v=1, _outputMethod="push")), solution(output=1))
    await first.start(None)
    again = World().loop(solution(c("give", "†state.l", v=2, _outputMethod="push"), output=1), context=first.context)
    await again.start(None)
    assert again.state == {"l": [1, 2]}


@pytest.mark.parametrize("made", [dict, Message.model_validate])
async def test_the_output_method_of_a_message_has_precedence_over_that_of_its_call(made: Any) -> None:
    message = {"role": "data", "type": "data", "data": 1, "_outputPath": "†state.l", "_outputMethod": "push"}
    loop = returning(made(message), "†state.other", _outputMethod="concat")
    assert await loop.start(None) == "on"
    assert loop.state == {"l": [1]}


async def test_a_message_with_only_an_output_path_uses_the_method_of_its_call() -> None:
    message = {"type": "data", "data": 1, "_outputPath": "†state.l"}
    loop = returning(message, "†state.l || †state.other", _outputMethod="push")
    assert await loop.start(None) == "on"
    assert loop.state == {"l": [1]}


@pytest.mark.parametrize("made", [dict, lambda message: ErrorMessage(data=message["data"])])
async def test_an_error_message_returned_by_a_tool_is_sent_once_and_is_not_data(made: Any) -> None:
    loop = returning(made({"type": "data", "kind": "error", "data": {"call": None, "error": "half of it is gone"}}))
    assert "errors 1" in notation(await collect(loop.run()))
    assert errors_told(loop, 1) == [{"call": None, "error": "half of it is gone"}]


@pytest.mark.parametrize(
    "message",
    [
        Message(role="user", content="Look."),
        {"role": "user", "content": "Look."},
        {"type": "text", "content": "Look."},
        {"type": "text", "text": "Look.", "role": "user"},
    ],
)
async def test_a_text_message_returned_by_a_tool_is_sent_to_the_model(message: Any) -> None:
    loop = returning(message)
    assert await loop.start(None) == "on"
    assert texts_told(loop)[1:] == ["Look."]


@pytest.mark.parametrize("value", [{"content": "x"}, {"role": "user"}, {"role": "user", "content": "x", "id": 1}, "x"])
async def test_a_value_that_is_not_exactly_a_text_message_is_dropped(value: Any) -> None:
    loop = returning(value)
    assert await loop.start(None) == "on"
    assert texts_told(loop)[1:] == []


async def test_a_text_message_of_a_call_with_an_output_path_is_written_as_data() -> None:
    mail = {"role": "user", "content": "a mail that was fetched"}
    loop = returning(mail, "†state.mail")
    assert await loop.start(None) == "on"
    assert loop.state == {"mail": mail}
    assert texts_told(loop)[1:] == []


async def test_a_call_that_writes_to_the_kind_error_is_a_structural_error() -> None:
    loop = World().loop(solution(c("give", "†error.x", v=1)), solution(output=1))
    assert "failed c1 structural" in notation(await collect(loop.run()))


async def test_an_output_path_too_long_for_a_recording_is_a_structural_error() -> None:
    loop = World().loop(solution(c("give", "†state" + ".a" * 300, v=1)), solution(output=1))
    run = loop.start(None)
    assert await run == 1
    assert Snapshot.from_json(run.snapshot().to_json()).events == tuple(run.events)
    assert "300 keys" in errors_told(loop, 1)[0]["error"]


async def test_errors_of_calls_are_reported_with_the_failure_of_the_next_model_request() -> None:
    whole = json.dumps({"calls": [c("boom"), c("fast", "†state.f")], "output": None})
    loop = World().loop([*text(whole, pieces=5)[:-1], ConnectionError("gone")])
    *_, last = await collect(loop.run())
    assert (last.type, last.reason) == ("loop_completed", "error")
    assert [(error.call, error.error) for error in last.errors] == [({"_tool": "boom"}, "RuntimeError: api down")]


async def test_errors_of_a_cancelled_tick_are_in_the_last_event() -> None:
    loop = World().loop(solution(c("boom"), c("slow", "†state.s")))
    stream = loop.run()
    said = []
    async for event in stream:
        said.append(event)
        if event.type == "call_failed":
            stream.run.cancel("enough")
    assert (said[-1].type, said[-1].reason) == ("loop_completed", "cancelled")
    assert [error.call["_tool"] for error in said[-1].errors] == ["boom", "slow"]


@pytest.mark.parametrize("native", [False, True])
async def test_answers_in_a_given_conversation_are_sent_and_the_runs_own_answers_are_not_data(native: bool) -> None:
    said = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello, Al."}]
    loop = World().loop(solution(c("fast", "†state.f")), solution(output=1), context=said, native=native)
    assert await loop.start({"role": "user", "content": "Go."}) == 1
    for request in loop.llm.requests:
        told = [(message["role"], message["content"]) for message in request.messages]
        assert told.index(("assistant", "Hello, Al.")) == told.index(("user", "Hello.")) + 1
    assert loop.context[:3] == [*said, {"role": "user", "content": "Go."}]
    assert [message.get("role") for message in loop.context].count("assistant") == 1


async def test_calls_in_a_given_conversation_are_sent_natively_with_their_results() -> None:
    call = {"id": "x1", "name": "fast", "arguments": {}}
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    result = {"role": "tool", "content": "fast", "tool_call_id": "x1"}
    said = [{"role": "user", "content": "Hello."}, answer, result]
    loop = World().loop("done", context=said, native=True)
    await loop.start("Go.")
    assert loop.llm.requests[0].messages[-4:-1] == said


async def test_calls_in_a_given_conversation_are_left_out_for_a_model_without_native_calls() -> None:
    call = {"id": "x1", "name": "fast", "arguments": {}}
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    result = {"role": "tool", "content": "fast", "tool_call_id": "x1"}
    loop = World().loop(solution(output=1), context=[{"role": "user", "content": "Hello."}, answer, result])
    await loop.start("Go.")
    told = [(message["role"], message["content"]) for message in loop.llm.requests[0].messages[1:]]
    assert told == [("user", "Hello."), ("assistant", "I look."), ("user", "Go.")]
    assert not any(message.get("tool_calls") for message in loop.llm.requests[0].messages)
    assert [message["content"] for message in loop.context] == ["Hello.", "I look.", "Go."]


async def test_a_loop_that_has_not_run_has_the_state_of_its_context() -> None:
    failed = {"type": "data", "kind": "error", "data": {"call": None, "error": "e"}}
    given = [{"type": "data", "kind": "state", "data": {"a": 1}}, failed]
    loop = World().loop(solution(c("give", "†state.b", v="†state.a"), output=1), context=given)
    run = loop.start(None)
    assert (loop.state, loop.context, [error.error for error in loop.errors]) == ({"a": 1}, given, ["e"])
    await run
    assert loop.state == {"a": 1, "b": 1}


@pytest.mark.parametrize("role", ["critic", "function", "data scientist"])
async def test_a_text_with_a_role_that_no_model_knows_is_sent_as_the_users(role: str) -> None:
    llm = ScriptedLLM([solution(output="done")])
    await ExecutionLoop(llm).start([{"role": role, "content": "Mind the gap."}, {"role": "user", "content": "go"}])
    sent = [(message["role"], message["content"]) for message in llm.requests[0].messages]
    assert ("user", "Mind the gap.") in sent
    assert {sender for sender, _ in sent} <= {"system", "user"}
