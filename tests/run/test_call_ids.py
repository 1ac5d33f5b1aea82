"""A call is identified by its path and its id, however often its loop runs at that path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest

from agentnb import Agent, ConversationEngine, ExecutionLoop, Loop, LoopAgent, SessionLoop, Snapshot, restore, tool
from agentnb.core.events import CallProposed, Event, RunEnd
from agentnb.core.messages import ToolCall
from agentnb.core.reply import Reply
from agentnb.loops import want
from agentnb.testing import ScriptedLLM, call
from tests.loops.loop_agents import K
from tests.run.agents import Plans
from tests.worlds import assert_folds, provider_faults


@tool(idempotent=True)
async def work(n: int = 0) -> str:
    """Work."""
    return f"worked {n}"


@tool(approve=True)
async def write() -> str:
    """Ask first."""
    return "wrote"


WORK = [call("work", id="c1")]


def worker(turns: int = 1, again: int = 2) -> SessionLoop:
    """A session whose model gives every call the same id, in each of so many runs."""
    return SessionLoop(ScriptedLLM([*([WORK] * turns), "done"] * again), [work], name="worker")


def solver(again: int = 2) -> ExecutionLoop:
    made = '{"calls": [{"_tool": "work"}], "output": "x"}'
    return ExecutionLoop(ScriptedLLM([made] * again), [work], name="worker")


def reader(again: int = 2) -> Agent:
    return Agent(ScriptedLLM([WORK, "done"] * again), [work], retriever=lambda query: ["a text"], name="worker")


def stopper(again: int = 2) -> SessionLoop:
    llm = ScriptedLLM(["done"] * again)
    return SessionLoop(llm, should_stop_after_turn=lambda messages: True, name="worker")


def writer() -> Loop:
    def steps(given: Any) -> Generator[Any, Any, Any]:
        return (yield want.call(len, "x"))

    return Loop.from_generator(steps, name="worker")


def passes() -> LoopAgent:
    return LoopAgent("worker", [worker(2, again=4), K("A"), K("B", before_agent_callback=lambda ctx: None)], 2)


def tasks() -> ConversationEngine:
    return ConversationEngine(lambda goal: {}, Plans(), lambda task: "done", name="worker")


def loop_agent(inside: Any) -> Loop:
    return LoopAgent("outer", [inside], 2)


def called_twice(inside: Any) -> Loop:
    turns = [[call("worker", {"input": "go"}, id=f"h{n}")] for n in range(2)]
    return SessionLoop(ScriptedLLM([*turns, "fin"]), [inside], name="outer")


def engine(inside: Any) -> Loop:
    return ConversationEngine(llm=Plans(), execute=inside, name="outer")


def generator(inside: Any) -> Loop:
    def steps(given: Any) -> Generator[Any, Any, Any]:
        for _ in range(2):
            yield want.call(inside, "go")

    return Loop.from_generator(steps, name="outer")


def repeated(events: Any) -> list[tuple[str, str]]:
    """The calls that have the path and the id of another one."""
    ends = Counter((event.path, event.call_id) for event in events if event.type == "call_end")
    return [key for key, count in ends.items() if count > 1]


def ids(events: Any, path: str) -> list[str]:
    return [event.call_id for event in events if event.type == "call_end" and event.path == path]


@pytest.mark.parametrize("outer", [loop_agent, called_twice, engine, generator])
@pytest.mark.parametrize("inside", [worker, solver, reader, stopper, writer, passes, tasks])
async def test_a_loop_that_runs_again_makes_calls_with_new_ids(
    outer: Callable[[Any], Loop], inside: Callable[[], Loop]
) -> None:
    run = outer(inside()).start("go")
    await run
    assert [event.path for event in run.events if event.type == "run_start"].count("worker") == 2
    assert repeated(run.events) == []
    assert_folds(run)
    for child in run.state.children.values():
        assert provider_faults([m for m in child.messages if m.role in ("user", "assistant", "tool")]) == []


async def test_the_ids_of_a_nested_loop_that_runs_again_continue_the_count() -> None:
    inner = LoopAgent("inner", [worker(1, again=4)], 2)
    run = LoopAgent("outer", [inner], 2).start("go")
    await run
    assert ids(run.events, "inner/worker") == ["c1", "c1_2", "c1_3", "c1_4"]
    assert ids(run.events, "inner") == ["worker_1", "worker_2", "worker_1#2", "worker_2#2"]


async def test_unique_ids_of_a_model_are_kept() -> None:
    turns = [[call("work", id="a"), call("work", id="b")], "done", [call("work", id="c")], "done"]
    run = LoopAgent("outer", [SessionLoop(ScriptedLLM(turns), [work], name="worker")], 2).start("go")
    await run
    assert ids(run.events, "worker") == ["a", "b", "c"]


async def test_the_same_id_in_two_loops_is_kept() -> None:
    one, two = (SessionLoop(ScriptedLLM([WORK, "done"]), [work], name=name) for name in ("one", "two"))
    run = LoopAgent("outer", [one, two], 1).start("go")
    await run
    assert (ids(run.events, "one"), ids(run.events, "two")) == (["c1"], ["c1"])


async def test_repeated_ids_of_a_model_are_numbered() -> None:
    llm = ScriptedLLM([WORK, WORK, "done"])
    run = Agent(llm, [work]).start("go")
    await run
    assert ids(run.events, "") == ["c1", "c1_2"]
    assert [m["tool_call_id"] for m in llm.requests[2].messages if m["role"] == "tool"] == ["c1", "c1_2"]


async def test_a_pending_call_of_a_second_pass_has_another_id() -> None:
    asks = [call("write", id="c1")]
    agent = SessionLoop(ScriptedLLM([asks, "done"] * 2), [write], name="worker")
    run = LoopAgent("outer", [agent], 2).start("go")
    decided: list[str] = []

    def decide(event: Any) -> None:
        if event.type == "approval_request":
            [item] = run.pending
            decided.append(item.id)
            run.approve(item)

    run.watch(decide)
    await run
    assert decided == ["c1", "c1_2"]


async def test_a_restored_run_assigns_the_same_ids_as_an_uninterrupted_one() -> None:
    def build() -> Loop:
        class Stateless:
            async def stream(self, messages: Any, **options: Any) -> Any:
                for chunk in WORK if messages[-1]["role"] == "user" else [{"type": "text_delta", "content": "done"}]:
                    yield chunk

        return LoopAgent("outer", [SessionLoop(Stateless(), [work], name="worker"), K("A")], 2)

    whole = build().start("go")
    await whole
    for position in range(1, len(whole.events)):
        snapshot = Snapshot.from_json(Snapshot.of(whole.events[:position]).to_json())
        again = restore(snapshot, build())
        await again
        assert repeated(again.events) == []
        assert ids(again.events, "worker") == ids(whole.events, "worker")


def test_a_frequent_id_is_numbered_without_a_search() -> None:
    looked: list[object] = []

    class Made(set[str]):
        def __contains__(self, id: object) -> bool:
            looked.append(id)
            return super().__contains__(id)

    reply = Reply(1, Made(["c1", *(f"c1_{n}" for n in range(2, 1001))]))
    reply.feed(call("work", id="c1"), 0)
    assert reply.end().message.tool_calls[0].id == "c1_1001"
    assert looked == ["c1", "c1_1001"]


def test_a_numbered_id_that_exists_is_not_assigned_again() -> None:
    reply = Reply(1, {"c1", "c1_3"})
    reply.feed(call("work", id="c1"), 0)
    assert reply.end().message.tool_calls[0].id == "c1_4"


class Looker(Loop):
    """Your own loop, whose call has its own id."""

    activities = {"look": lambda arguments, state: "seen"}  # noqa: RUF012

    def advance(self, state: Any) -> Event:
        id = state.own_id("look")
        if id not in state.calls:
            return CallProposed(call=ToolCall(id=id, name="look"), hidden=True)
        return RunEnd(reason="completed", output=state.calls[id].end.result)


async def test_your_own_loop_can_distinguish_its_passes() -> None:
    run = loop_agent(Looker(name="worker")).start("go")
    await run
    assert ids(run.events, "worker") == ["look", "look#2"]


@pytest.mark.parametrize("ids", [["x", "a/b", "a_b"], ["x", "x_", "x/", "x_:2", "x_:2:2"], ["1", "/", "_", "//"]])
async def test_concurrent_nested_loops_of_one_answer_have_separate_paths(ids: list[str]) -> None:
    class Critic:
        async def stream(self, messages: Any, **options: Any) -> Any:
            if messages[-1]["role"] == "user":
                yield {"type": "tool_call", "id": "k", "name": "work", "arguments": {}}
            else:
                yield {"type": "text_delta", "content": "fine"}

    critic = Agent(Critic(), [work], name="critic")
    asks = [call("critic", {"input": id}, id=id) for id in ids]
    run = SessionLoop(ScriptedLLM([asks, "end"]), [critic]).start("go")
    assert await run == "end"
    begun = [event.path for event in run.events if event.type == "run_start"]
    assert len(set(begun)) == len(begun) == len(ids) + 1
    assert [message.tool_call_id for message in run.messages if message.role == "tool"] == ids
    assert_folds(run)
