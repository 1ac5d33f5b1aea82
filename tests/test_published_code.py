"""Code written for the published designs. Only its imports have been changed to those of agentnb."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agentnb import SessionLoop, tool
from agentnb.loops.agent import Agent, AgentEventType, EventCollector
from agentnb.loops.conversation_engine import ConversationEngine, EngineEventType, EngineState
from agentnb.loops.execution_loop import ExecutionLoop
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions, InvocationContext, LoopAgent
from agentnb.loops.session_loop import MessageQueue


class Planner:
    """A planner with the interface of its design."""

    async def decompose_goal(self, user_input: str) -> list[dict[str, Any]]:
        return [{"id": f"t{n}", "description": f"{user_input} {n}", "priority": n} for n in range(3)]


class Context:
    rules = ("be kind",)
    tools = ("search",)
    knowledge = ()


class Coordinator:
    async def get_context_async(self, user_input: str) -> Context:
        return Context()


async def test_an_engine_can_be_consumed_with_async_for() -> None:
    engine = ConversationEngine(coordinator=Coordinator(), llm=Planner())
    done = []
    async for event in engine.run("write a report"):
        if event.event_type == EngineEventType.TASK_COMPLETED:
            done.append(event.data["task_id"])
        elif event.event_type == EngineEventType.CONTEXT_RECEIVED:
            assert event.data["rules_count"] == 1
    assert done == ["t0", "t1", "t2"]
    assert engine.state == EngineState.COMPLETED
    assert engine.current_progress == 1.0
    assert (engine.total_tasks, engine.completed_tasks) == (3, 3)


async def test_an_engine_can_be_consumed_with_anext_and_paused() -> None:
    engine = ConversationEngine(llm=Planner())
    stream = engine.run("write a report")
    for _ in range(5):
        await stream.__anext__()
    engine.pause()  # False: nothing is scheduled yet (conversation_engine/SEMANTICS.md, 6. Pausing)
    assert engine.current_progress == 0.0
    engine.resume()
    async for event in stream:
        last = event
    assert last.event_type == EngineEventType.ENGINE_COMPLETED


async def test_a_snapshot_of_an_engine_can_be_saved_and_restored_in_another_engine(tmp_path: Path) -> None:
    engine = ConversationEngine(llm=Planner())
    async for event in engine.run("write a report"):
        if event.event_type == EngineEventType.TASK_COMPLETED:
            break
        if event.event_type == EngineEventType.TASK_STARTED:
            with (tmp_path / "engine.json").open("w") as file:
                json.dump(engine.create_snapshot(), file)
    other = ConversationEngine()
    with (tmp_path / "engine.json").open() as file:
        assert other.restore_from_snapshot(json.load(file))
    started = [e.data["task_id"] async for e in other.continue_() if e.event_type == EngineEventType.TASK_STARTED]
    assert started == ["t0", "t1", "t2"]  # the first task had started and was not complete
    assert other.state == EngineState.COMPLETED


class Streaming:
    """A model that streams chunks in the format of the agent's design."""

    def __init__(self) -> None:
        self.asked = 0

    async def stream(self, messages: Any, tools: Any = None, **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked += 1
        if self.asked == 1:
            yield {"type": "text_delta", "content": "let me see"}
            yield {"type": "tool_calls", "tool_calls": [{"id": "c1", "name": "search", "arguments": {"query": "x"}}]}
        else:
            yield {"type": "text_delta", "content": "the "}
            yield {"type": "text_delta", "content": "answer"}


class SearchTool:
    """A tool with the interface of the agent's design."""

    name = "search"
    description = "Searches."

    async def run(self, query: str) -> str:
        return f"found {query}"


async def test_the_events_of_an_agent_can_be_consumed_with_async_for() -> None:
    collector, text = EventCollector(), ""
    async for event in Agent(llm=Streaming(), tools=[SearchTool()]).execute("what is x?"):
        collector.add(event)
        if event.type == AgentEventType.LLM_DELTA:
            text += event.content or ""
        elif event.type == AgentEventType.AGENT_FINISH:
            assert isinstance(event.metadata, dict)
    assert text == "let me seethe answer"
    assert collector.get_llm_content() == text
    assert [result.content for result in collector.get_tool_results()] == ["found x"]
    assert collector.get_errors() == []
    assert collector.get_final_response() == "the answer"
    assert len(collector.filter(AgentEventType.TOOL_RESULT)) == 1


async def test_run_of_an_agent_returns_the_text() -> None:
    assert await Agent(llm=Streaming(), tools=[SearchTool()]).run("what is x?") == "the answer"


class Writer(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        yield Event(author=self.name, content="a draft")


class Critic(BaseAgent):
    drafts = 0

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        self.drafts += 1
        yield Event(author=self.name, content="good", actions=EventActions(escalate=self.drafts == 2))


async def test_custom_agents_can_run_in_a_loop_agent() -> None:
    loop = LoopAgent(name="review", sub_agents=[Writer(name="writer"), Critic(name="critic")], max_iterations=5)
    ctx = InvocationContext(is_resumable=True)
    authors = [event.author async for event in loop.run_async(ctx) if event.content]
    assert authors == ["writer", "critic"] * 2
    assert ctx.end_of_agents == {"review": True}


async def test_messages_can_be_queued_while_a_session_streams() -> None:
    queue, asked = MessageQueue(), 0

    class Model:
        async def stream(self, messages: Any, **_: Any) -> AsyncIterator[dict[str, Any]]:
            nonlocal asked
            asked += 1
            yield {"type": "text_delta", "content": f"answer {asked} to {messages[-1]['content']}"}

    session = SessionLoop(Model(), queue=queue)
    said = []
    async for event in session.run("first"):
        if event.type == "message_end" and event.message is not None:
            said.append((event.message.role, event.message.content))
            if len(said) == 1:
                queue.add_followup("later")
                queue.add_steering("now")
    assert [content for role, content in said if role == "user"] == ["first", "now", "later"]
    assert asked == 2  # steering is sent before the first request (session_loop/SEMANTICS.md, 3. Algorithm)


async def test_the_events_of_an_execution_loop_can_be_consumed_with_async_for() -> None:
    @tool
    async def fetch(u: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"name": u.title()}

    class Model:
        async def stream(self, messages: Any, **_: Any) -> AsyncIterator[dict[str, Any]]:
            known = any("Alice" in str(message["content"]) for message in messages)
            calls = [] if known else [{"_tool": "fetch", "u": "†input.u", "_outputPath": "†state.user"}]
            text = json.dumps({"calls": calls, "output": {"user": "†state.user"} if known else None})
            yield {"type": "text_delta", "content": text}

    loop = ExecutionLoop(Model(), [fetch], context=[{"type": "data", "kind": "input", "data": {"u": "alice"}}])
    types = [event.type async for event in loop.run()]
    assert types == [
        "request_started",
        "call_received",
        "call_unblocked",
        "call_started",
        "call_completed",
        "request_completed",
        "request_started",
        "request_completed",
        "loop_completed",
    ]
    assert loop.state["user"] == {"name": "Alice"}
