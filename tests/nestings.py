"""Designs inside designs, two and three levels deep, each with a call that needs approval and an opaque agent.

They can be constructed in any process, like the worlds of `tests.designs`. `Marks` records the position of the code of
each opaque agent, so that a test can compare it with the events of the run.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from agentnb import Agent, ConversationEngine, ExecutionLoop, LoopAgent, SessionLoop
from agentnb.core.events import Event as Fact
from agentnb.core.state import State
from agentnb.loops import want
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent import BaseAgent, Event
from agentnb.testing import call
from tests.designs import TOOLS, Answers, states

WORK = [call("double", {"n": 1}, id="c1"), call("write", {"n": 3}, id="c2")]


class Marks:
    """The positions of the opaque agents: how often each has started, reached a yield, and been closed."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    @property
    def standing(self) -> tuple[dict[str, int], ...]:
        """All positions, for comparison with later ones."""
        return dict(self.begun), dict(self.said), dict(self.closed)

    def runs_ahead_of(self, events: Sequence[Fact]) -> set[str]:
        """Return the agents whose code is ahead of `events`."""
        shown = Counter(
            event.message.name
            for event in events
            if event.type == "message" and event.message.get("event") is not None  # type: ignore[attr-defined]
        )
        started = Counter(
            event.path.rpartition("/")[2]
            for event in events
            if event.type == "call_start" and event.name == "run_agent"  # type: ignore[attr-defined]
        )
        ahead = {name for name, said in self.said.items() if said > shown[name]}
        return ahead | {name for name, begun in self.begun.items() if begun > started[name]}

    def left_open(self) -> set[str]:
        """Return the agents whose `finally` has not run."""
        return {name for name, begun in self.begun.items() if begun != self.closed[name]}


class Opaque(BaseAgent):
    """An agent that emits two events, and records its position."""

    marks: Marks

    async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Event]:
        self.marks.begun[self.name] += 1
        try:
            for said in ("one", "two"):
                await asyncio.sleep(0)
                self.marks.said[self.name] += 1
                yield Event(author=self.name, content=f"{self.name} {said}")
        finally:
            self.marks.closed[self.name] += 1


class Solves:
    """A model that answers with two Solutions: the first has calls of these tools, the second the output."""

    def __init__(self, *calls: Mapping[str, Any]) -> None:
        self.calls = calls

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        is_done = any('"kind":"state"' in str(message["content"]) for message in messages)
        solution = {"calls": [] if is_done else list(self.calls), "output": "solved" if is_done else None}
        text = json.dumps(solution)
        for start in range(0, len(text), 20):
            await asyncio.sleep(0)
            yield {"type": "text_delta", "content": text[start : start + 20]}


def _agent(marks: Marks) -> Loop:
    return Agent(Answers(WORK), TOOLS, name="agent")


def _session(marks: Marks) -> Loop:
    return SessionLoop(Answers(WORK), TOOLS, name="session")


def _execution(marks: Marks) -> Loop:
    first = {"_tool": "double", "n": 1, "_outputPath": "†state.two"}
    second = {"_tool": "write", "n": 3, "_outputPath": "†state.written"}
    return ExecutionLoop(Solves(first, second), TOOLS, name="execution")


def _opaque(marks: Marks) -> Loop:
    return Opaque("opaque", marks=marks)


LEAVES: dict[str, Callable[[Marks], Loop]] = {
    "agent": _agent,
    "session": _session,
    "execution": _execution,
    "opaque": _opaque,
}


class _Planner:
    @staticmethod
    def decompose_goal(goal: str) -> list[dict[str, Any]]:
        return [{"id": name, "description": f"do {name}", "priority": n} for n, name in enumerate("ab")]


def _in_engine(inside: Loop, marks: Marks) -> Loop:
    return ConversationEngine(llm=_Planner(), execute=inside, name=f"engine_{inside.name}")


def _in_loop_agent(inside: Loop, marks: Marks) -> Loop:
    return LoopAgent(f"loop_{inside.name}", [Opaque(f"says_{inside.name}", marks=marks), inside], 1)


def _in_session(inside: Loop, marks: Marks) -> Loop:
    """Return a session that calls, in one turn, the loop, a loop agent, and a tool that needs approval."""
    beside = LoopAgent(f"beside_{inside.name}", [Opaque(f"other_{inside.name}", marks=marks)], 1)
    turn = [
        call(inside.name, {"input": "go"}, id="s1"),
        call(beside.name, {"input": "go"}, id="s2"),
        call("write", {"n": 5}, id="s3"),
    ]
    return SessionLoop(Answers(turn), [inside, beside, *TOOLS], name=f"session_{inside.name}")


def _in_agent(inside: Loop, marks: Marks) -> Loop:
    return Agent(Answers([call(inside.name, {"input": "go"}, id="a1")]), [inside], name=f"agent_{inside.name}")


def _in_execution(inside: Loop, marks: Marks) -> Loop:
    solves = Solves({"_tool": inside.name, "input": "go", "_outputPath": "†state.said"})
    return ExecutionLoop(solves, [inside], name=f"execution_{inside.name}")


def _in_generator(inside: Loop, marks: Marks) -> Loop:
    def written(given: Any) -> Generator[Any, Any, Any]:
        yield want.say("Begin.")
        return (yield want.call(inside, "go"))

    return Loop.from_generator(written, name=f"generator_{inside.name}")


AROUND: dict[str, Callable[[Loop, Marks], Loop]] = {
    "engine": _in_engine,
    "loop_agent": _in_loop_agent,
    "session": _in_session,
    "agent": _in_agent,
    "execution": _in_execution,
    "generator": _in_generator,
}


def nesting(names: Sequence[str], marks: Marks) -> Loop:
    """Return nested loops of these designs, the outermost first."""
    *around, leaf = names
    loop = LEAVES[leaf](marks)
    for name in reversed(around):
        loop = AROUND[name](loop, marks)
    return loop


TWO = list(product(AROUND, LEAVES))
THREE = [(outer, inner, list(LEAVES)[(n + m) % 4]) for n, outer in enumerate(AROUND) for m, inner in enumerate(AROUND)]


def tasks_under_way(state: State) -> Iterator[str]:
    """Yield the engines, including nested ones, that are executing a task."""
    for one in states(state):
        if one.loop == "ConversationEngine" and not one.over:
            yield from (one.name for call in one.open.values() if call.status == "running")
