"""What a tool does to the invocation is in the actions of its event (loop_agent/SEMANTICS.md, 4. Escalation)."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import Loop, SessionLoop, restore
from agentnb.loops.loop_agent import BaseAgent, Event, InvocationContext, LoopAgent, Session, exit_loop
from agentnb.testing import ScriptedLLM, call


def escalating(tool_context: Any) -> str:
    tool_context.actions.escalate = True
    return "done"


def noting(tool_context: Any) -> str:
    tool_context.state["draft"] = "a cat"
    tool_context.state.setdefault("seen", []).append("a")
    return "noted"


async def events_of(agent: Loop, session: Session | None = None) -> list[Event]:
    context = InvocationContext(user_content="go", session=session or Session())
    return [event async for event in agent.run_async(context) if not event.partial]


def actions_in(events: list[Event]) -> list[dict[str, Any]]:
    answers = [event for event in events if event.get_function_responses()]
    return [event.actions.model_dump(exclude_defaults=True) for event in answers]


def calling(made: Any, name: str) -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call(name)], "on"]), [made], name="critic")


@pytest.mark.parametrize(
    ("made", "name", "actions"),
    [
        (exit_loop, "exit_loop", {"escalate": True, "skip_summarization": True}),
        (escalating, "escalating", {"escalate": True}),
        (noting, "noting", {"state_delta": {"draft": "a cat", "seen": ["a"]}}),
    ],
)
async def test_the_event_of_a_call_has_the_actions_of_its_tool(made: Any, name: str, actions: dict[str, Any]) -> None:
    assert actions_in(await events_of(LoopAgent("L", [calling(made, name)], 1))) == [actions]


async def test_a_loop_that_the_code_of_an_agent_runs_escalates_through_the_agent() -> None:
    critic = calling(exit_loop, "exit_loop")

    class Flow(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            async for event in critic.run_async(ctx):
                yield event

    events = await events_of(LoopAgent("L", [Flow("flow")], 3))
    assert actions_in(events) == [{"escalate": True, "skip_summarization": True}]


async def test_a_tool_that_sets_state_does_not_end_its_loop() -> None:
    critic = calling(noting, "noting")
    await critic.start("go")
    assert len(critic.llm.requests) == 2


async def test_a_restored_run_has_the_state_that_tools_have_set() -> None:
    seen: list[Any] = []

    class Reader(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            seen.append(dict(ctx.session.state))
            yield Event(author=self.name, content="read")

    def pipeline() -> LoopAgent:
        return LoopAgent("L", [calling(noting, "noting"), Reader("reader")], 1)

    run = pipeline().start("go")
    async for event in run:
        if event.type == "state_update" and event.values.get("current_sub_agent") == "reader":
            break
    await restore(run.snapshot(), pipeline())
    assert seen == [{"draft": "a cat", "seen": ["a"]}]
