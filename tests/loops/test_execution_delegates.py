"""The scopes and the delegates of a call (execution_loop/SEMANTICS.md, 8. Scopes and delegates)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentnb import Agent, ExecutionLoop, RunFailed, Snapshot, UsageError, restore, tool
from agentnb.loops.execution_loop import Call
from agentnb.testing import ScriptedLLM, text
from tests.loops.execution_world import World, c, errors_told, notation, solution
from tests.worlds import assert_one_terminal_event_last, collect, until

TEXTS: dict[str, Any] = {"text": {"type": "string"}}
CONTEXT: list[Any] = [
    {"type": "data", "kind": "input", "data": {"u": "alice"}},
    {"type": "data", "kind": "state", "data": {"a": 1, "b": {"c": 2}}},
    {"type": "data", "kind": "state", "_instance": "one", "data": {"a": 10}},
    {"type": "data", "kind": "state", "_instance": "two", "data": {"a": 20}},
    {"type": "text", "content": "hello"},
]


def schema(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"_tool": name, "description": f"The {name}.", "properties": dict(TEXTS), **more}


async def told(loop: ExecutionLoop) -> list[str]:
    async with asyncio.timeout(60):
        return notation(await collect(loop.run()))


def data_of(messages: Any) -> list[Any]:
    """Return the data messages of a model request."""
    return [json.loads(m["content"]) for m in messages if str(m["content"]).startswith("{")]


class Looks(World):
    """An activity that records the context that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def made(self, *turns: Any, tools: Any = (), **options: Any) -> ExecutionLoop:
        def look(call: Call, tool: Any, context: list[dict[str, Any]]) -> str:
            self.seen.append(context)
            return "looked"

        options = {"context": CONTEXT, **options}
        return self.loop(*turns, tools=[*tools, *self.tools], activities={"look": look}, **options)


# -- scopes ----------------------------------------------------------------------------------------------------------


async def test_an_activity_without_scopes_gets_the_whole_log() -> None:
    looks = Looks()
    await told(looks.made(solution(c("look"), output=1), tools=[schema()]))
    (seen,) = looks.seen
    assert len(seen) == len(CONTEXT)


@pytest.mark.parametrize(
    ("scopes", "seen"),
    [
        ([], []),
        (["input"], [{"type": "data", "kind": "input", "data": {"u": "alice"}}]),
        (["state"], [{"type": "data", "kind": "state", "data": {"a": 1, "b": {"c": 2}}}]),
        (["†state.b"], [{"type": "data", "kind": "state", "data": {"b": {"c": 2}}}]),
        (["†state.nothing", "nothing"], []),
        (["text"], [{"role": "user", "content": "hello"}]),
    ],
)
async def test_an_activity_gets_only_the_data_of_its_scopes(scopes: Any, seen: Any) -> None:
    looks = Looks()
    loop = looks.made(solution(c("look", _scopes=scopes), output=1), tools=[schema()])
    assert "done c1" in await told(loop)
    assert looks.seen == [seen]


async def test_an_instance_sees_shared_data_and_its_own() -> None:
    looks = Looks()
    calls = [c("look", _scopes=["state"], _instance="one"), c("look", _scopes=["†state.a"], _instance="two")]
    await told(looks.made(solution(*calls, output=1), tools=[schema()]))
    assert [[message["data"] for message in seen] for seen in looks.seen] == [
        [{"a": 1, "b": {"c": 2}}, {"a": 10}],
        [{"a": 20}],
    ]


async def test_a_constant_of_the_tool_overrides_the_call() -> None:
    looks = Looks()
    provided = schema(_scopes={"const": ["input"]})
    await told(looks.made(solution(c("look", _scopes=["state"]), output=1), tools=[provided]))
    assert [message["kind"] for message in looks.seen[0]] == ["input"]


async def test_a_scope_that_the_tool_does_not_offer_is_a_structural_error() -> None:
    looks = Looks()
    offered = schema(_scopes={"type": "array", "items": {"enum": ["input"]}})
    loop = looks.made(
        solution(c("look", _scopes=["state"]), c("look", _scopes=["input"])), solution(output=1), tools=[offered]
    )
    assert "failed c1 structural" in await told(loop)
    assert [[message["kind"] for message in seen] for seen in looks.seen] == [["input"]]


@pytest.mark.parametrize("scopes", ["state", [1], ["†"], {"a": 1}])
async def test_malformed_scopes_are_a_structural_error(scopes: Any) -> None:
    loop = Looks().made(
        solution(c("look", _scopes=scopes), c("fast", _scopes=scopes)), solution(output=1), tools=[schema()]
    )
    said = await told(loop)
    assert {"failed c1 structural", "failed c2 structural"} <= set(said)


def test_a_tool_with_malformed_scopes_is_refused() -> None:
    with pytest.raises(ValueError, match="_scopes"):
        Looks().made(tools=[schema(_scopes={"const": "state"})])


async def test_the_schema_of_a_call_contains_the_choices_next_to_the_parameters() -> None:
    offered = schema(
        _scopes={"type": "array", "items": {"enum": ["input"]}},
        _delegate={"enum": ["one", "anonymous"]},
        _instance={"type": "string"},
        _reasoningForCall={"type": "string"},
    )
    loop = Looks().made(solution(output=1), tools=[offered, schema("other", _scopes={"const": ["input"]})])
    await told(loop)
    shown = loop.llm.requests[0].schema["properties"]["calls"]["items"]["anyOf"]
    properties = {one["properties"]["_tool"]["const"]: set(one["properties"]) for one in shown}
    assert {"_scopes", "_delegate", "_instance", "_reasoningForCall"} <= properties["look"]
    assert not {"_scopes", "_delegate", "_instance", "_reasoningForCall"} & properties["other"]


# -- delegates -------------------------------------------------------------------------------------------------------


async def test_a_saved_request_performs_the_call_in_its_own_context() -> None:
    llm = ScriptedLLM([solution(output={"said": "Bonjour"})])
    request = {
        "llm": llm,
        "context": [{"type": "system", "content": "You translate."}],
        "schema": {"type": "object", "required": ["said"]},
    }
    loop = Looks().made(
        solution(c("look", "†state.r", text="†input.u", _scopes=["†state.b"])),
        solution(output="ok"),
        tools=[schema(_delegate="translator")],
        delegates={"translator": request},
    )
    assert await told(loop) == [
        *("request 1", "received c1", "unblocked c1", "started c1", "done c1", "completed 1"),
        *("request 2", "completed 2", "output"),
    ]
    asked = llm.requests[0].messages
    assert [m["content"] for m in asked if m["role"] == "system"][-1] == "You translate."
    assert [(m["kind"], m["data"]) for m in data_of(asked)] == [
        ("state", {"b": {"c": 2}}),
        ("input", {"text": "alice"}),
    ]
    assert "hello" not in json.dumps([dict(m) for m in asked])
    assert loop.state["r"] == {"said": "Bonjour"}


async def test_the_events_of_a_delegate_are_nested_and_its_calls_need_approval() -> None:
    @tool(approve=True)
    async def send(what: str) -> str:
        return f"sent {what}"

    helper = Agent(
        ScriptedLLM([[{"type": "tool_call", "id": "x", "name": "send", "arguments": {"what": "it"}}], text("done")]),
        [send],
    )
    loop = Looks().made(
        solution(c("look", "†state.r", text="go")),
        solution(output=1),
        tools=[schema(_delegate="helper")],
        delegates={"helper": helper},
    )
    run = loop.start(None)
    run.play()
    async with asyncio.timeout(60):
        await until(lambda: bool(run.pending))
        (item,) = run.pending
        assert (item.name, item.path) == ("send", "agent")
        run.approve(item)
        await run
    assert loop.state["r"] == "done"
    assert_one_terminal_event_last(run.events)


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (c("look", input="just this"), "just this"),
        (c("look", text="go"), '{"text":"go"}'),
    ],
)
async def test_a_loop_of_another_design_gets_the_parameters_as_text(call: Any, given: str) -> None:
    llm = ScriptedLLM([text("done")])
    wants = {**schema(_delegate="helper"), "properties": {**TEXTS, "input": {"type": "string"}}}
    loop = Looks().made(solution(call, output=1), tools=[wants], delegates={"helper": Agent(llm)})
    await told(loop)
    assert [m["content"] for m in llm.requests[0].messages if m["role"] == "user"] == [given]


async def test_an_anonymous_delegate_returns_output_of_the_tools_output_schema() -> None:
    huge = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    loop = Looks().made(
        solution(c("plan_it", "†state.r", text="go")),
        solution(output={"n": "no number"}),
        solution(output={"n": 3}),
        solution(output="ok"),
        tools=[schema("plan_it", _delegate="anonymous", _output=huge)],
    )
    await told(loop)
    outer, inner, again, _ = loop.llm.requests
    assert "_output" not in outer.schema["properties"]["calls"]["items"]["anyOf"][0]["properties"]
    assert inner.schema["properties"]["output"]["anyOf"][0]["required"] == ["n"]
    assert [(m["kind"], m["data"]) for m in data_of(inner.messages)] == [("input", {"text": "go"})]
    assert "Invalid output" in str(again.messages[-1]["content"])
    assert loop.state["r"] == {"n": 3}


async def test_an_anonymous_delegate_of_an_activity_sees_only_its_scopes() -> None:
    looks = Looks()
    calls = [c("look"), c("look", _scopes=["input"])]
    await told(looks.made(solution(*calls, output=1), tools=[schema(_delegate="anonymous")]))
    assert [[message["kind"] for message in seen] for seen in looks.seen] == [[], ["input"]]


async def test_the_model_can_choose_a_delegate_only_if_the_tool_permits_it() -> None:
    looks = Looks()
    helper = {"llm": ScriptedLLM([solution(output="helped")])}
    choice = schema(_delegate={"enum": ["helper", "nobody"]})
    calls = [
        c("look", "†state.1", _delegate="helper"),
        c("look", "†state.2"),
        c("look", "†state.3", _delegate="other"),
        c("look", "†state.4", _delegate="nobody"),
        c("fast", "†state.5", _delegate="helper"),
    ]
    loop = looks.made(
        solution(*calls), solution(output=1), tools=[choice], delegates={"helper": helper, "other": helper}
    )
    said = await told(loop)
    assert {"failed c3 structural", "failed c4 structural", "failed c5 structural"} <= set(said)
    assert {key: value for key, value in loop.state.items() if key.isdigit()} == {"1": "helped", "2": "looked"}
    assert "not delegated" in errors_told(loop, 1)[-1]["error"]
    assert looks.ran == []


async def test_a_delegated_call_is_checked_and_confirmed() -> None:
    helper = ScriptedLLM([solution(output="helped")])
    loop = Looks().made(
        solution(c("look", text=1), c("look", text="no"), c("look", text="yes")),
        solution(output=1),
        tools=[schema(_delegate="helper")],
        delegates={"helper": {"llm": helper}},
        confirm=lambda call: call.text == "yes",
    )
    said = await told(loop)
    assert {"failed c1 structural", "rejected c2", "done c3"} <= set(said)
    assert len(helper.requests) == 1


async def test_delegates_of_two_instances_run_concurrently_with_their_own_data() -> None:
    llm = ScriptedLLM([solution(output="x"), solution(output="y")])
    calls = [c("look", "†state.r", _instance=one, _scopes=["state"]) for one in ("one", "two")]
    loop = Looks().made(
        solution(*calls), solution(output=1), tools=[schema(_delegate="helper")], delegates={"helper": {"llm": llm}}
    )
    await told(loop)
    data = [next(m["data"] for m in data_of(request.messages) if m["kind"] == "state") for request in llm.requests]
    assert sorted(data, key=str) == [{"a": 10, "b": {"c": 2}}, {"a": 20, "b": {"c": 2}}]  # in any order


async def test_a_failed_model_request_of_a_delegate_pauses_the_run() -> None:
    helper = {"llm": ScriptedLLM([[RuntimeError("down")], solution(output="helped")])}
    loop = Looks().made(
        solution(c("look", "†state.r"), output=1), tools=[schema(_delegate="helper")], delegates={"helper": helper}
    )
    run = loop.start(None)
    with pytest.raises(RunFailed, match="down"):
        await run
    run.resume()
    assert await run == 1
    assert loop.state["r"] == "helped"


async def test_a_person_can_replace_a_delegated_call_by_another_tool() -> None:
    looks = Looks()
    choice = schema(_delegate={"enum": ["helper"]}, approve=True)
    loop = looks.made(
        solution(c("look", "†state.r", _delegate="helper")),
        solution(output=1),
        tools=[choice],
        delegates={"helper": {"llm": ScriptedLLM([])}},
    )
    run = loop.start(None)
    run.play()
    async with asyncio.timeout(60):
        await until(lambda: bool(run.pending))
        run.replace("c1", "fast", {})
        await run
    assert loop.state["r"] == "fast"


async def test_a_detached_delegate_runs_during_the_next_requests() -> None:
    gate = asyncio.Event()

    @tool
    async def hold() -> str:
        await gate.wait()
        return "held"

    @tool
    async def go() -> None:
        gate.set()

    helper = ScriptedLLM([solution(c("hold", "†state.h")), solution(output="helped")])
    loop = Looks().made(
        solution(c("look", "†state.r")),
        solution(c("go")),
        solution(output="ok"),
        tools=[schema(_delegate="helper", detached=True), go],
        delegates={"helper": {"llm": helper, "tools": [hold]}},
    )
    said = await told(loop)
    assert said.index("request 2") < said.index("done c1")
    assert loop.state["r"] == "helped"


async def test_a_run_can_be_restored_inside_a_delegate() -> None:
    turns = [
        solution(c("look", "†state.r", text="go", _scopes=["input"])),
        solution(output="helped"),
        solution(output=1),
    ]

    def loop(script: Any) -> ExecutionLoop:
        return Looks().made(*script, tools=[schema(_delegate="helper")], delegates={"helper": {}})

    whole = loop(turns)
    run = whole.start(None)
    await run
    inside = [event.seq for event in run.events if event.path == "helper"]
    assert len(inside) > 4
    for position in range(inside[0], inside[-1] + 1):
        answered = sum(event.type == "model_end" for event in run.events[:position])
        again = restore(Snapshot.from_json(Snapshot.of(run.events[:position]).to_json()), loop(turns[answered:]))
        assert await again == 1
        assert again.loop.state == whole.state  # type: ignore[attr-defined]


def test_an_invalid_delegate_is_refused() -> None:
    for delegates in ({"one": 1}, {"anonymous": {}}, {"one": {"colour": "blue"}}, {"one": "requests/one.json"}):
        with pytest.raises(UsageError):
            World().loop(delegates=delegates)
