"""Confirmation of a call in an invocation: the stream ends, and a context with the answer continues (ADK)."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

import agentnb
from agentnb import LoopAgent, SessionLoop, restore, tool
from agentnb.loops.loop_agent import BaseAgent, Event, InvocationContext, Session, exit_loop
from agentnb.testing import ScriptedLLM, call, delay
from tests.loops.loop_agents import K


class World:
    """A newsroom of three agents; the second one needs a confirmation before it sends."""

    def __init__(self, *turns: Any) -> None:
        self.sent: list[str] = []

        @tool(approve=True)
        async def send(to: str) -> str:
            self.sent.append(to)
            return f"sent to {to}"

        @tool
        async def look(at: str) -> str:
            self.sent.append(f"looked at {at}")
            return "seen"

        self.llm = ScriptedLLM([*(turns or [[call("send", {"to": "all"}, id="c1")]]), "done"])
        two = SessionLoop(self.llm, [send, look], name="two")
        three = SessionLoop(ScriptedLLM([[call("exit_loop", id="x1")]]), [exit_loop], name="three")
        self.loop = LoopAgent("root", [K("one"), two, three], 2)


def answered(ctx: InvocationContext, id: str, response: Any, session: Session | None = None) -> InvocationContext:
    """Return a context with the states and the session of the old one, and the answer of the user."""
    answer = {"function_response": {"id": id, "name": "adk_request_confirmation", "response": response}}
    return InvocationContext(
        is_resumable=ctx.is_resumable,
        agent_states=json.loads(json.dumps(ctx.agent_states)),
        end_of_agents=json.loads(json.dumps(ctx.end_of_agents)),
        session=session if session is not None else ctx.session,
        user_content={"role": "user", "parts": [answer]},
    )


def short(event: Event) -> Any:
    if event.actions.end_of_agent:
        return "END"
    if event.actions.agent_state is not None:
        return f"CK({event.actions.agent_state['current_sub_agent']})"
    names = [made["name"] for made in event.get_function_calls()]
    return event.text or names or [given["response"] for given in event.get_function_responses()]


async def events_of(agent: Any, ctx: InvocationContext) -> list[Event]:
    async with asyncio.timeout(4):  # shorter than the default time that a call waits for a person
        return [event async for event in agent.run_async(ctx) if not event.partial]


async def said(agent: Any, ctx: InvocationContext) -> list[Any]:
    return [short(event) for event in await events_of(agent, ctx)]


ASKED = ["CK(one)", "one#1", "CK(two)", ["send"], ["adk_request_confirmation"]]
REST = ["done", "CK(three)", ["exit_loop"], ["The loop ends."], "END"]


async def test_the_stream_ends_with_the_confirmation_request() -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    events = await events_of(world.loop, ctx)
    assert [short(event) for event in events] == ASKED
    assert events[-1].long_running_tool_ids == {"c1"}
    assert events[-1].is_final_response()
    assert ctx.should_pause_invocation(events[-1])
    assert ctx.agent_states == {"root": {"current_sub_agent": "two", "times_looped": 0}}
    assert world.sent == []


async def test_other_calls_of_the_same_answer_finish_before_the_stream_ends() -> None:
    world = World([call("send", {"to": "all"}, id="c1"), call("look", {"at": "it"}, id="c2")])
    assert (await said(world.loop, InvocationContext()))[-1] == ["seen"]
    assert world.sent == ["looked at it"]


@pytest.mark.parametrize("is_resumable", [True, False])
@pytest.mark.parametrize("response", [{"confirmed": True}, {"response": '{"confirmed": true}'}])
async def test_a_confirmed_call_runs_and_its_run_continues(response: Any, is_resumable: bool) -> None:
    world, ctx = World(), InvocationContext(is_resumable=is_resumable, user_content="go")
    await events_of(world.loop, ctx)
    again = answered(ctx, "c1", response)
    rest = await said(world.loop, again)
    assert rest == [
        ["sent to all"],
        *(word for word in REST if is_resumable or not str(word).startswith(("CK", "END"))),
    ]
    assert world.sent == ["all"]
    assert len(world.llm.requests) == 2  # the model request was not repeated
    assert again.run is not None
    assert again.run.stop_reason == "escalated"


async def test_the_answer_can_be_an_object() -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    again = answered(ctx, "c1", None)
    given = SimpleNamespace(id="c1", name="adk_request_confirmation", response={"confirmed": True})
    again.user_content = SimpleNamespace(role="user", parts=[SimpleNamespace(text=None, function_response=given)])
    assert await said(world.loop, again) == [["sent to all"], *REST]


async def test_a_call_that_is_not_confirmed_is_rejected() -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    rest = await said(world.loop, answered(ctx, "c1", {"confirmed": False}))
    assert rest == [["Rejected: This tool call is rejected."], *REST]
    assert world.sent == []


async def test_two_confirmation_requests_can_be_answered_in_any_order() -> None:
    world = World([call("send", {"to": "a"}, id="c1"), call("send", {"to": "b"}, id="c2")])
    ctx = InvocationContext(is_resumable=True, user_content="go")
    assert (await said(world.loop, ctx))[-2:] == 2 * [["adk_request_confirmation"]]
    ctx = answered(ctx, "c2", {"confirmed": True})
    assert await said(world.loop, ctx) == [["sent to b"]]
    ctx = answered(ctx, "c1", {"confirmed": True})
    assert await said(world.loop, ctx) == [["sent to a"], *REST]
    assert world.sent == ["b", "a"]


@pytest.mark.parametrize(
    ("id", "response"), [("other", {"confirmed": True}), ("c1", {"ok": 1}), ("c1", {"confirmed": 1})]
)
async def test_an_invalid_answer_decides_nothing(id: str, response: Any) -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    assert await said(world.loop, answered(ctx, id, response)) == [["send"], ["adk_request_confirmation"]]
    assert world.sent == []


async def test_an_answer_takes_effect_only_once() -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    await events_of(world.loop, answered(ctx, "c1", {"confirmed": True}))
    assert await said(world.loop, answered(ctx, "c1", {"confirmed": True})) == [["send"], ["adk_request_confirmation"]]
    assert world.sent == ["all"]


async def test_in_another_process_the_answer_decides_the_same_call_of_a_repeated_request() -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    session, there = Session.model_validate(json.loads(ctx.session.model_dump_json())), World()
    rest = await said(there.loop, answered(ctx, "c1", {"confirmed": True}, session))
    assert rest == [["send"], ["sent to all"], *REST]
    assert there.sent == ["all"]


@pytest.mark.parametrize("made", [call("send", {"to": "everybody"}, id="c1"), call("send", {"to": "all"}, id="c2")])
async def test_an_answer_decides_only_the_call_that_was_shown(made: Any) -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    session, there = Session.model_validate(json.loads(ctx.session.model_dump_json())), World([made])
    rest = await said(there.loop, answered(ctx, "c1", {"confirmed": True}, session))
    assert rest == [["send"], ["adk_request_confirmation"]]
    assert there.sent == []


async def test_without_an_answer_the_agent_runs_again() -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    again = InvocationContext(is_resumable=True, agent_states=ctx.agent_states, session=ctx.session)
    assert await said(world.loop, again) == [["send"], ["adk_request_confirmation"]]


async def test_a_run_suspended_at_a_confirmation_request_can_be_restored() -> None:
    world, ctx = World(), InvocationContext(is_resumable=True, user_content="go")
    await events_of(world.loop, ctx)
    assert ctx.run is not None
    assert ctx.run.stop_reason == "suspended"
    run = restore(ctx.run.snapshot(), world.loop)
    run.approve(run.pending[0])
    await run
    assert world.sent == ["all"]


async def test_a_consumer_can_decide_while_the_stream_is_open() -> None:
    world, ctx, words = World(), InvocationContext(user_content="go"), []
    async with asyncio.timeout(4):
        async for event in world.loop.run_async(ctx):
            words.append(short(event))
            if words[-1] == ["adk_request_confirmation"]:
                assert ctx.run is not None
                ctx.run.approve("c1")
    assert world.sent == ["all"]
    assert words[-1] == ["The loop ends."]


async def test_a_policy_decides_before_a_confirmation_request_is_emitted() -> None:
    world = World()
    async with asyncio.timeout(4):
        words = [short(event) async for event in world.loop.run_async(InvocationContext(), approve=True)]
    assert ["adk_request_confirmation"] not in words
    assert world.sent == ["all"]


async def test_a_declared_headless_policy_decides() -> None:
    agentnb.headless("approve", after=0, attended=False)
    try:
        world = World()
        assert (await said(world.loop, InvocationContext()))[-1] == ["The loop ends."]
        assert world.sent == ["all"]
    finally:
        agentnb.headless(None)


async def test_an_agent_that_runs_a_loop_pauses_at_its_confirmation_request() -> None:
    world = World()

    class Boss(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            async for event in world.loop.find_sub_agent("two").run_async(ctx):  # type: ignore[union-attr]
                yield event
            yield Event(author=self.name, content="went on")

    loop, ctx = LoopAgent("L", [Boss("boss")], 1), InvocationContext(is_resumable=True, user_content="go")
    assert [e for e in await said(loop, ctx) if e != "went on"] == ["CK(boss)", ["send"], ["adk_request_confirmation"]]
    assert ctx.agent_states == {"L": {"current_sub_agent": "boss", "times_looped": 0}}
    rest = await said(loop, answered(ctx, "c1", {"confirmed": True}))
    assert rest == [["sent to all"], "done", "went on", "END"]
    assert len(world.llm.requests) == 2


async def test_a_slow_model_does_not_end_the_stream() -> None:
    world = World([delay(0.05), call("send", {"to": "all"}, id="c1")])
    assert (await said(world.loop, InvocationContext()))[-1] == ["adk_request_confirmation"]


async def test_without_a_stream_a_confirmation_request_waits_for_a_decision_on_the_run() -> None:
    world = World()
    inner: Any = world.loop.find_sub_agent("two")

    class Boss(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            async for event in inner.run_async(ctx):
                yield event
                if event.long_running_tool_ids:
                    assert ctx.run is not None
                    ctx.run.approve(ctx.run.pending[0])

    run = LoopAgent("L", [Boss("boss")], 1).start("go")
    async with asyncio.timeout(4):
        await run
    assert world.sent == ["all"]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("agent", ["the same agent", "another process"])
async def test_a_confirmed_call_is_not_asked_about_again_at_any_depth(depth: int, agent: str) -> None:
    sent: list[str] = []

    @tool(approve=True)
    async def send(to: str) -> str:
        sent.append(to)
        return "sent"

    def nested() -> BaseAgent:
        llm = ScriptedLLM([[call("send", {"to": "all"}, id="c1")], "done"])
        made: Any = SessionLoop(llm, [send], name="sender")
        for level in range(depth):
            made = LoopAgent(f"L{level}", [made], 1)
        return made  # type: ignore[no-any-return]

    loop, session = nested(), Session()
    _ = [event async for event in loop.run_async(InvocationContext(user_content="go", session=session))]
    answer = {"id": "c1", "name": "adk_request_confirmation", "response": {"confirmed": True}}
    content = {"role": "user", "parts": [{"function_response": answer}]}
    again = loop if agent == "the same agent" else nested()
    events = [event async for event in again.run_async(InvocationContext(user_content=content, session=session))]
    asked = [made for event in events for made in event.get_function_calls() if made["name"] != "send"]
    assert (sent, asked) == (["all"], [])
