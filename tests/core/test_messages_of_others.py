"""Messages of other libraries are accepted everywhere: null fields, OpenAI's shape, and message objects."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from agentnb import Agent, ConversationEngine, Loop, SessionLoop, UsageError
from agentnb.core.errors import InvalidArguments
from agentnb.core.messages import to_message
from agentnb.loops.session_loop import MessageQueue
from agentnb.loops.want import ask
from agentnb.testing import ScriptedLLM, delay


@dataclass
class Said:
    role: str
    content: str | None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None


class Function(BaseModel):
    name: str
    arguments: str


class FunctionCall(BaseModel):
    id: str
    function: Function
    type: str = "function"


class Completion(BaseModel):
    """As the client of OpenAI gives it."""

    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[FunctionCall] | None = None


ASKED = {"id": "c1", "name": "t", "arguments": {"x": 1}}
FUNCTION = {"name": "t", "arguments": '{"x": 1}'}


@pytest.mark.parametrize(
    "call",
    [
        ASKED,
        {**ASKED, "malformed": None},
        {**ASKED, "type": "function"},
        {**ASKED, "arguments": '{"x": 1}'},
        {"id": "c1", "type": "function", "function": FUNCTION},
        {"id": "c1", "type": "function", "function": {**FUNCTION, "arguments": {"x": 1}}},
        SimpleNamespace(**ASKED),
        SimpleNamespace(id="c1", type="function", function=SimpleNamespace(**FUNCTION)),
        FunctionCall(id="c1", function=Function(**FUNCTION)),
    ],
)
def test_a_call_in_any_form_is_converted(call: Any) -> None:
    message = to_message({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message == {"role": "assistant", "content": "", "tool_calls": [ASKED]}


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_a_call_without_arguments_has_an_empty_object(arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": arguments}}
    assert to_message({"role": "assistant", "tool_calls": [call]}).tool_calls[0] == {
        **ASKED,
        "arguments": {},
    }


def test_the_text_of_arguments_that_are_not_an_object_is_kept() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"x": '}}
    read = to_message({"role": "assistant", "tool_calls": [call]}).tool_calls[0]
    assert (read.arguments, read.malformed) == ({}, '{"x": ')


def test_a_field_that_is_null_is_absent() -> None:
    given = dict.fromkeys(("content", "tool_calls", "tool_call_id", "name", "refusal", "is_error", "reasoning", "mine"))
    assert to_message({**given, "role": "user"}) == {"role": "user", "content": ""}


@pytest.mark.parametrize(
    "value",
    [
        Said("user", "hi"),
        SimpleNamespace(role="user", content="hi"),
        Completion(role="user", content="hi"),
        Completion(role="user", content="hi", tool_calls=None),
    ],
)
def test_an_object_with_role_and_content_is_a_message(value: Any) -> None:
    assert to_message(value) == {"role": "user", "content": "hi"}


def test_blocks_that_are_objects_are_converted() -> None:
    blocks = [SimpleNamespace(type="text", text="hi"), {"type": "text", "text": "you"}]
    assert to_message(SimpleNamespace(role="user", content=blocks)).content == [
        {"type": "text", "text": "hi"},
        {"type": "text", "text": "you"},
    ]


@pytest.mark.parametrize("value", [5, None, SimpleNamespace(role="user"), SimpleNamespace(content="x"), Said, object()])
def test_a_value_without_role_or_content_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArguments, match="A message is text, or a mapping with role and content"):
        to_message(value)


def test_a_call_without_a_name_is_refused_with_the_field_at_fault() -> None:
    with pytest.raises(InvalidArguments, match=r"tool_calls\[0\]\.name: Field required"):
        to_message({"role": "assistant", "tool_calls": [{"id": "c1", "function": {"arguments": "{}"}}]})


# -- where they come in ----------------------------------------------------------------------------------------------


def contents(run: Any) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in run.messages]


@pytest.mark.parametrize(
    "given", [Said("user", "hi"), [Said("user", "hi")], {"role": "user", "content": "hi", "x": None}]
)
@pytest.mark.parametrize("design", [SessionLoop, Agent])
async def test_a_run_is_started_with_a_message_object(design: Any, given: Any) -> None:
    run = design(ScriptedLLM(["ok"])).start(given)
    assert await run == "ok"
    assert contents(run) == [("user", "hi"), ("assistant", "ok")]


async def test_a_run_is_started_with_the_transcript_of_another_client() -> None:
    said = [
        Said("user", "go"),
        Completion(tool_calls=[FunctionCall(id="c1", function=Function(**FUNCTION))]),
        {"role": "tool", "tool_call_id": "c1", "content": "r", "name": None},
        Said("user", "more"),
    ]
    llm = ScriptedLLM(["ok"])
    await SessionLoop(llm).start(said)
    assert [message["role"] for message in llm.requests[0].messages] == ["user", "assistant", "tool", "user"]
    assert llm.requests[0].messages[1]["tool_calls"] == [ASKED]


async def test_a_run_is_steered_and_followed_up_with_message_objects() -> None:
    run = SessionLoop(ScriptedLLM(["one", "two", "three"])).start("hi")
    run.steer(Said("user", "S"))
    run.follow_up(SimpleNamespace(role="user", content="F"))
    await run
    assert [content for role, content in contents(run) if role == "user"] == ["hi", "S", "F"]


async def test_a_queue_takes_message_objects_before_a_run_and_during_it() -> None:
    queue = MessageQueue()
    queue.add_followup(Said("user", "before"))
    loop = SessionLoop(ScriptedLLM(["one", [delay(0), {"type": "text_delta", "content": "two"}], "three"]), queue=queue)
    stream = loop.run("hi")
    async for event in stream:
        if event.type == "message_end" and event.message.content == "one":
            queue.add_steering(Said("user", "during"))
    assert [m.content for m in loop.messages if m.role == "user"] == ["hi", "during", "before"]


async def test_a_session_continues_from_message_objects() -> None:
    loop = SessionLoop(ScriptedLLM(["ok"]), messages=[Said("user", "hi")])
    await loop.continue_()
    assert [m.content for m in loop.messages] == ["hi", "ok"]
    loop.messages = [Said("user", "anew")]
    assert [m.content for m in loop.messages] == ["anew"]


async def test_a_fork_changes_a_message_into_an_object() -> None:
    run = SessionLoop(ScriptedLLM(["one"])).start("hi")
    await run
    fork = run.fork(0, message=Said("user", "you"))
    await fork
    assert contents(fork)[0] == ("user", "you")
    answer = next(event.seq for event in run.events if event.type == "model_end")
    assert contents(run.fork(answer, message=Completion(content="other")))[-1] == ("assistant", "other")


async def test_a_generator_asks_with_a_message_object() -> None:
    @Loop.from_generator(llm=ScriptedLLM(["ok"]))
    def flow(_: Any) -> Any:
        return (yield ask(Said("user", "hi"))).content

    run = flow.start(None)
    assert await run == "ok"
    assert contents(run)[0] == ("user", "hi")


async def test_a_hook_may_return_message_objects() -> None:
    llm = ScriptedLLM(["ok"])
    await SessionLoop(llm, transform_context=lambda messages: [Said("user", "instead")]).start("hi")
    assert [dict(message) for message in llm.requests[0].messages] == [{"role": "user", "content": "instead"}]


async def test_a_call_in_a_user_message_is_refused_in_every_shape() -> None:
    run = SessionLoop(ScriptedLLM(["one"])).start("hi")
    with pytest.raises(UsageError, match="cannot be sent as user messages"):
        run.steer(Completion(tool_calls=[FunctionCall(id="c1", function=Function(**FUNCTION))]))
    assert run.queued == []


@pytest.mark.parametrize("design", [SessionLoop, Agent])
async def test_a_developer_message_is_sent_to_the_model(design: Any) -> None:
    llm = ScriptedLLM(["ok"])
    await design(llm).start([{"role": "developer", "content": "be brief"}, "hi"])
    assert [(m["role"], m["content"]) for m in llm.requests[0].messages] == [("developer", "be brief"), ("user", "hi")]


GO = {"role": "user", "content": "go"}


@pytest.mark.parametrize(
    ("given", "goal"),
    [(Said(**GO), GO), ([Said(**GO)], [GO]), ([SimpleNamespace(**GO)], [GO]), ((Completion(**GO), "on"), [GO, "on"])],
)
async def test_an_engine_takes_message_objects(given: Any, goal: Any) -> None:
    class Planner:
        async def decompose_goal(self, goal: Any) -> list[Any]:
            goals.append(goal)
            return []

    goals: list[Any] = []
    async for _ in ConversationEngine(llm=Planner()).run(given):
        pass
    assert goals == [goal]
