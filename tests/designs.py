"""The five designs and nestings of them, each as a small world that can be constructed in any process.

The models have no state: their answers follow from the conversation. So a run restored in another process gets the
answers of a run that was never interrupted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from agentnb import Agent, ConversationEngine, ExecutionLoop, LoopAgent, SessionLoop, ToolError, tool
from agentnb.core.state import State
from agentnb.loops import want
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions
from agentnb.testing import call
from tests.worlds import provider_faults

Turn = Sequence[Mapping[str, Any]]

FAULTS: list[str] = []
"""Faults that a provider would find in the messages that the models were sent."""

EXECUTED: list[str] = []
"""The names of the tools and tasks whose code has run, in order."""


class Answers:
    """A model whose n-th answer in a conversation is the n-th turn; later answers are `words`."""

    def __init__(self, *turns: Turn, words: str = "done") -> None:
        self.turns = turns
        self.words = words

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        FAULTS.extend(provider_faults(messages))
        answered = sum(message["role"] == "assistant" for message in messages)
        if answered < len(self.turns):
            for chunk in self.turns[answered]:
                await asyncio.sleep(0)
                yield chunk
        else:
            yield {"type": "text_delta", "content": f"{self.words} {answered}"}
        yield {"type": "usage", "input_tokens": 10, "output_tokens": 1}


@tool
async def double(n: int) -> int:
    """Twice as much."""
    EXECUTED.append("double")
    await asyncio.sleep(0)
    return 2 * n


@tool(idempotent=True)
async def fail(n: int) -> None:
    """Fails."""
    EXECUTED.append("fail")
    raise RuntimeError(f"no {n}")


@tool(approve=True)
async def write(n: int) -> str:
    """Asks first."""
    EXECUTED.append("write")
    return f"wrote {n}"


@tool
def think(n: int) -> int:
    """In a thread."""
    EXECUTED.append("think")
    return n + 1


TOOLS = [double, fail, write, think]
WORK: list[Turn] = [
    [call("double", {"n": 1}, id="c1"), call("fail", {"n": 2}, id="c2"), call("write", {"n": 3}, id="c3")],
    [call("think", {"n": 4}, id="c4"), call("nothing", {}, id="c5")],
]


class Says(BaseAgent):
    """An agent that emits its name in two runs; in the second it escalates, if this option is set."""

    leaves = False

    async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Event]:
        EXECUTED.append(self.name)
        yield Event(author=self.name, content=f"{self.name} one")
        await asyncio.sleep(0)
        yield Event(author=self.name, content=f"{self.name} two", actions=EventActions(escalate=self.leaves))


def session() -> Loop:
    return SessionLoop(Answers(*WORK), TOOLS, name="session")


def sequential_session() -> Loop:
    return SessionLoop(Answers(*WORK), TOOLS, tool_execution="sequential", name="session")


def agent() -> Loop:
    return Agent(Answers(*WORK), TOOLS, retriever=lambda query: ["a document"], name="agent")


def parallel_agent() -> Loop:
    return Agent(Answers(*WORK), TOOLS, tool_execution="parallel", name="agent")


def _plan(goal: str) -> list[dict[str, Any]]:
    return [{"id": name, "description": f"do {name}", "priority": n} for n, name in enumerate("bac")]


async def _execute(task: Any) -> str:
    EXECUTED.append("execute")
    await asyncio.sleep(0)
    if task.id == "a":
        raise RuntimeError("not a")
    return str(task.id).upper()


class _Planner:
    decompose_goal = staticmethod(_plan)


def engine() -> Loop:
    return ConversationEngine(
        lambda goal: {"rules": ["be brief"]}, _Planner(), _execute, on_task_error="continue", name="engine"
    )


def loop_agent() -> Loop:
    return LoopAgent("loop_agent", [Says("first"), Says("second")], 2)


class Solves:
    """A model that answers with Solutions: first calls, one of which depends on another, then the output."""

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        FAULTS.extend(provider_faults(messages))
        solution: Mapping[str, Any] = {"calls": SOLUTION, "output": None}
        if any('"kind":"error"' in str(message["content"]) for message in messages):  # the first tick has ended
            solution = {"calls": [], "output": "solved"}
        text = json.dumps(solution)
        for start in range(0, len(text), 20):
            await asyncio.sleep(0)
            yield {"type": "text_delta", "content": text[start : start + 20]}
        yield {"type": "usage", "input_tokens": 10, "output_tokens": 1}


SOLUTION: list[dict[str, Any]] = [
    {"_tool": "think", "n": "†state.two", "_outputPath": "†state.three"},
    {"_tool": "double", "n": 1, "_outputPath": "†state.two"},
    {"_tool": "write", "n": 3, "_outputPath": "†state.written"},
    {"_tool": "fail", "n": 2, "_outputPath": "†state.never"},
    {"_tool": "double", "n": "†state.never", "_outputPath": "†state.nor_this"},
]


@tool(detached=True)
async def tell_later(n: int) -> str:
    """Goes on by itself for a while."""
    EXECUTED.append("tell_later")
    for _ in range(40):
        await asyncio.sleep(0)
    return f"told {n}"


@tool(detached=True, idempotent=True)
async def fail_later(n: int) -> None:
    """Goes on by itself, and fails."""
    EXECUTED.append("fail_later")
    for _ in range(25):
        await asyncio.sleep(0)
    raise RuntimeError(f"not even later: {n}")


class Plans:
    """A model that answers with one Solution after another: the one after that of the plan, and then the output."""

    def __init__(self, *solutions: list[dict[str, Any]]) -> None:
        self.solutions = solutions

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        FAULTS.extend(provider_faults(messages))
        told = [json.loads(m["content"]) for m in messages if str(m["content"]).startswith("{")]
        plan = next((message["data"]["calls"] for message in told if message["kind"] == "plan"), None)
        done = self.solutions.index(plan) + 1 if plan is not None else 0
        solution = {"calls": [], "output": "solved"}
        if done < len(self.solutions):
            solution = {"calls": self.solutions[done], "output": None}
        text = json.dumps(solution)
        for start in range(0, len(text), 40):
            await asyncio.sleep(0)
            yield {"type": "text_delta", "content": text[start : start + 40]}
        yield {"type": "usage", "input_tokens": 10, "output_tokens": 1}


def detached_execution() -> Loop:
    """Detached calls, which run during the next requests; one needs approval and one fails."""
    steps = [
        [
            {"_tool": "tell_later", "n": 1, "_outputPath": "†state.told"},
            {"_tool": "fail_later", "n": 2, "_outputPath": "†state.never"},
            {"_tool": "double", "n": 1, "_outputPath": "†state.two"},
        ],
        [{"_tool": "write", "n": "†state.two", "_outputPath": "†state.written"}, {"_tool": "tell_later", "n": 5}],
    ]
    return ExecutionLoop(Plans(*steps), [*TOOLS, tell_later, fail_later], plan="eager", name="execution")


def planned_execution() -> Loop:
    """A lazy plan, which is sent with the next request; one of its calls is delegated, with a part of the context."""
    ask = {
        "_tool": "ask",
        "properties": {"n": {"type": "integer"}},
        "_delegate": "helper",
        "_scopes": {"const": ["state"]},
    }
    writes = [{"_tool": "write", "n": "†state.step0", "_outputPath": "†state.written"}]
    helper = ExecutionLoop(Plans(writes), TOOLS, plan="eager", name="helper")
    steps = [
        [
            {"_tool": "think", "n": "†state.two", "_outputPath": "†state.step0"},
            {"_tool": "double", "n": 1, "_outputPath": "†state.two"},
        ],
        [{"_tool": "ask", "n": "†state.step0", "_outputPath": "†state.helped"}, SOLUTION[3]],
    ]
    return ExecutionLoop(Plans(*steps), [*TOOLS, ask], plan="lazy", delegates={"helper": helper}, name="execution")


def execution() -> Loop:
    return ExecutionLoop(Solves(), TOOLS, name="execution")


def native_execution() -> Loop:
    return ExecutionLoop(Answers(*WORK), TOOLS, native=True, name="execution")


def loop_of_executions() -> Loop:
    return LoopAgent("outer", [execution(), Says("says")], 1)


def _plans() -> Loop:
    plan = json.dumps({"tasks": _plan("goal")[:2]})
    return SessionLoop(Answers([call("double", {"n": 1}, id="p1")], words=plan), TOOLS, name="planner")


def engine_of_loops() -> Loop:
    return ConversationEngine(Agent(Answers(words="a fact"), name="coordinator"), _plans(), session(), name="engine")


def loop_of_loops() -> Loop:
    inner = LoopAgent("inner", [Says("says"), agent(), Says("leaves", leaves=True)])
    return LoopAgent("outer", [sequential_session(), inner], 2)


def session_of_agents() -> Loop:
    """Two concurrent agents as the tools of a session; each has a call that needs approval, with the same id."""
    turn = [call("one", {"input": "go"}, id="c1"), call("two", {"input": "go"}, id="c2")]
    one, two = (Agent(Answers(*WORK), TOOLS, name=name) for name in ("one", "two"))
    return SessionLoop(Answers(turn, turn), [one, two], name="boss")


def _top_to_bottom(given: Any) -> Generator[Any, Any, Any]:
    """A generator with all kinds of yields: a message, a model request, calls one by one and at once, a nested loop."""
    yield want.say("Be brief.")
    reply = yield want.ask("Go on.")
    while reply.tool_calls:
        reply = yield want.ask()
    yield want.phase("checking")
    came_to: list[Any] = yield [want.call(double, 2), want.call("double", n=3)]
    came_to += [(yield want.call(len, "in a thread")), (yield want.call("think", n=1))]
    for called in (write, fail):
        try:
            came_to.append((yield want.call(called, 5)))
        except ToolError as error:
            came_to.append(str(error))
    yield want.phase("asking")
    came_to += yield [want.call(Agent(Answers(*WORK), TOOLS, name=name), given) for name in ("one", "two")]
    return [reply.content, *came_to]


def generator() -> Loop:
    return Loop.from_generator(_top_to_bottom, Answers(*WORK), TOOLS, name="generator", phases=["asking", "checking"])


WORLDS: dict[str, Callable[[], Loop]] = {
    world.__name__: world
    for world in (
        session,
        sequential_session,
        agent,
        parallel_agent,
        engine,
        execution,
        native_execution,
        detached_execution,
        planned_execution,
        loop_agent,
        loop_of_executions,
        engine_of_loops,
        loop_of_loops,
        session_of_agents,
        generator,
    )
}


def states(state: State) -> Iterator[State]:
    """Return a state and the states of its nested loops."""
    yield state
    for child in state.children.values():
        yield from states(child)
