"""The forms of messages in a context, and the Solution of a loop."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from agentnb import ExecutionLoop, UsageError, tool
from agentnb.loops.execution_loop import Solution
from agentnb.testing import ScriptedLLM


def answer(*calls: dict[str, Any], output: Any = None, **more: Any) -> str:
    return json.dumps({"calls": list(calls), "output": output, **more}, ensure_ascii=False)


@tool
async def echo(v: object) -> object:
    """Give the value back."""
    return v


def reading(path: str) -> str:
    return answer({"_tool": "echo", "v": path, "_outputPath": "†state.x"}, output=1)


def asked(llm: ScriptedLLM) -> str:
    return str(llm.requests[0].messages) + str(llm.requests[0].schema)


@pytest.mark.parametrize(
    ("message", "path", "value"),
    [
        ({"type": "input", "input": {"city": "Berlin"}}, "†input.city", "Berlin"),
        ({"type": "input", "input": {"city": "Berlin"}, "schema": {"type": "object"}}, "†input.city", "Berlin"),
        ({"type": "input", "city": "Berlin", "_instance": "one"}, "†input.city", "Berlin"),
        ({"type": "input", "kind": "input", "data": {"city": "Berlin"}}, "†input.city", "Berlin"),
        ({"type": "state", "state": {"a": {"b": 1}}}, "†state.a.b", 1),
        ({"type": "state", "a": {"b": 1}}, "†state.a.b", 1),
        ({"type": "meta", "meta": {"version": "1.2.3"}}, "†meta.version", "1.2.3"),
        ({"type": "plan", "plan": [{"_tool": "echo", "v": 1}]}, "†plan.0._tool", "echo"),
    ],
)
@pytest.mark.parametrize("how", ["context", "input"])
async def test_data_can_be_given_under_the_name_of_its_type(how: str, message: Any, path: str, value: Any) -> None:
    instance = {"_instance": "one"} if "_instance" in message else {}
    call = {"_tool": "echo", "v": path, "_outputPath": "†data.x", **instance}
    given = {"context": [message]} if how == "context" else {}
    loop = ExecutionLoop(ScriptedLLM([answer(call, output=1)]), [echo], **given)
    await loop.run([message] if how == "input" else None)
    assert loop.context[-1]["data"] == {"x": value}


async def test_the_schema_of_an_input_is_sent_to_the_model() -> None:
    llm = ScriptedLLM([answer(output=1)])
    schema = {"type": "object", "properties": {"city": {"description": "where to go"}}}
    await ExecutionLoop(llm, context=[{"type": "input", "input": {"city": "Berlin"}, "schema": schema}]).run()
    assert "where to go" in asked(llm)


async def test_a_message_with_a_type_and_a_role_is_sent_as_text() -> None:
    llm = ScriptedLLM([answer(output=1)])
    await ExecutionLoop(llm, context=[{"type": "input", "role": "user", "content": "hello you"}]).run()
    assert "hello you" in asked(llm)


@pytest.mark.parametrize("message", [{"type": "system", "system": "Be good."}, {"type": "text", "text": "Be good."}])
async def test_text_can_be_given_under_the_name_of_its_type(message: Any) -> None:
    llm = ScriptedLLM([answer(output=1)])
    await ExecutionLoop(llm, context=[message]).run()
    assert "Be good." in asked(llm)


async def test_the_context_accepts_message_objects() -> None:
    llm = ScriptedLLM([answer(output=1)])
    await ExecutionLoop(llm, context=[SimpleNamespace(role="user", content="hello you")]).run()
    assert "hello you" in asked(llm)


# -- tools in the context --------------------------------------------------------------------------------------------

GREET = {"type": "object", "properties": {"userName": {"type": "string"}}, "required": ["userName"]}


@pytest.mark.parametrize(
    "offered",
    [{"greet": GREET}, {**GREET, "_tool": "greet"}, {"type": "object", "properties": {"_tool": {"const": "greet"}}}],
)
@pytest.mark.parametrize("tools", [None, [echo], {"echo": echo}])
async def test_a_message_of_the_context_can_contain_a_tool(tools: Any, offered: Any) -> None:
    llm = ScriptedLLM(
        [answer({"_tool": "greet", "userName": "Al", "_output": "hi", "_outputPath": "†state.x"}, output=1)]
    )
    loop = ExecutionLoop(llm, tools, context=[{"type": "tool", "tool": offered}])
    await loop.run()
    assert "greet" in asked(llm)
    assert loop.state == {"x": "hi"}


async def test_an_activity_performs_a_tool_of_the_context() -> None:
    call = {"_tool": "greet", "userName": "Al", "_outputPath": "†state.x"}
    context = [{"type": "tool", "tool": {"greet": GREET}}, "Greet him."]
    activities = {"greet": lambda call, tool, context: f"hi {call.userName}"}
    loop = ExecutionLoop(ScriptedLLM([answer(call, output=1)]), context=context, activities=activities)
    await loop.run()
    assert loop.state == {"x": "hi Al"}
    assert [message.get("content") for message in loop.context[:1]] == ["Greet him."]


async def test_an_activity_gets_the_schema_of_its_tool_as_a_mapping() -> None:
    given: list[Any] = []

    async def greet(call: Any, tool: Any, context: Any) -> str:
        given.append((dict(tool), tool.name))
        return f"{tool['description']} {call['userName']}"

    schema = {"_tool": "greet", "description": "Hi", "properties": {"userName": {"type": "string"}}}
    call = {"_tool": "greet", "userName": "Al", "_outputPath": "†state.x"}
    loop = ExecutionLoop(ScriptedLLM([answer(call, output=1)]), [schema], activities={"greet": greet})
    await loop.run()
    assert given == [(schema, "greet")]
    assert loop.state == {"x": "Hi Al"}


async def test_a_message_of_the_context_can_contain_a_tool_object() -> None:
    loop = ExecutionLoop(ScriptedLLM([reading("y")]), context=[{"type": "tool", "tool": echo}])
    await loop.run()
    assert loop.state == {"x": "y"}


@pytest.mark.parametrize("message", [{"type": "tool"}, {"type": "tool", "tool": "greet"}])
def test_a_tool_message_without_a_tool_is_refused(message: Any) -> None:
    with pytest.raises(UsageError, match="must have a tool, or tools by name"):
        ExecutionLoop(ScriptedLLM([]), context=[message])


def test_a_tool_message_as_input_is_refused() -> None:
    with pytest.raises(UsageError, match="belongs into context="):
        ExecutionLoop(ScriptedLLM([])).start([{"type": "tool", "tool": {"greet": GREET}}])


# -- the Solution ----------------------------------------------------------------------------------------------------


async def test_a_loop_returns_its_last_solution() -> None:
    call = {"_tool": "echo", "v": "†input.a", "_outputPath": "†state.x"}
    loop = ExecutionLoop(ScriptedLLM([answer(call), answer(output={"a": 1}, meta={"version": "2"})]), [echo])
    assert loop.solution is None
    run = loop.start({"a": 5})
    await run.step("turn")
    assert loop.solution == Solution(calls=[call])
    await run
    assert loop.solution == Solution(meta={"version": "2"}, output={"a": 1})


async def test_a_solution_whose_output_is_null_has_done_set() -> None:
    loop = ExecutionLoop(ScriptedLLM([answer(output=None, done=True)]))
    await loop.run()
    assert loop.solution == Solution(done=True)
