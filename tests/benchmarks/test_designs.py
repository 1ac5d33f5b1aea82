"""Every design: 2,000 turns cost the same from first to last, and 1,000 runs at once take as long as their models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from agentnb import Agent, ConversationEngine, ExecutionLoop, LoopAgent, SessionLoop, tool
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent import BaseAgent, Event
from tests.benchmarks.measure import no_collections, now, own_heap, report, run_in_own_time
from tests.benchmarks.models import Calling

TURNS = 2000
LATENCY = 0.5
"""Seconds a model takes: a short answer of a fast one."""

RUNS = 1000


@tool
async def echo(value: int) -> str:
    return "x" * 10


class Speaks(BaseAgent):
    """Says one thing, after as long as a model would take."""

    latency = 0.0

    async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Event]:
        if self.latency:
            await asyncio.sleep(self.latency)
        yield Event(author=self.name, content="said")


class Planner:
    """Plans as many tasks as it is told."""

    def __init__(self, tasks: int, latency: float = 0) -> None:
        self.tasks = tasks
        self.latency = latency

    async def decompose_goal(self, goal: str) -> Sequence[Mapping[str, Any]]:
        await asyncio.sleep(self.latency)
        return [{"id": f"t{n}", "description": "do it"} for n in range(self.tasks)]


async def execute(task: Any) -> str:
    return "done"


LONG: dict[str, Callable[[], Loop]] = {
    "SessionLoop": lambda: SessionLoop(Calling(TURNS), [echo]),
    "Agent": lambda: Agent(Calling(TURNS), [echo], max_iterations=None),
    "ConversationEngine": lambda: ConversationEngine(llm=Planner(TURNS), execute=execute, max_tasks=TURNS),
    "ExecutionLoop": lambda: ExecutionLoop(Calling(TURNS), [echo], native=True),
    "LoopAgent": lambda: LoopAgent("loop", [Speaks("speaks")], TURNS),
    "LoopAgent of sessions": lambda: LoopAgent("loop", [SessionLoop(Calling(0), name="session")], TURNS // 4),
}

SHORT: dict[str, Callable[[], Loop]] = {
    "SessionLoop": lambda: SessionLoop(Calling(2, LATENCY), [echo]),
    "Agent": lambda: Agent(Calling(2, LATENCY), [echo]),
    "ConversationEngine": lambda: ConversationEngine(llm=Planner(2, 3 * LATENCY), execute=execute),
    "ExecutionLoop": lambda: ExecutionLoop(Calling(2, LATENCY), [echo], native=True),
    "LoopAgent": lambda: LoopAgent("loop", [Speaks("speaks", latency=LATENCY)], 3),
}
"""Each waits for its model three times."""


@pytest.mark.parametrize("design", LONG)
def test_a_turn_costs_the_same_at_the_end_of_a_long_run(design: str, capsys: pytest.CaptureFixture[str]) -> None:
    growths = []
    for _ in range(3):
        marks: list[float] = []

        async def run() -> int:
            started = LONG[design]().start("go")
            started.watch(lambda event: marks.append(time.process_time()))  # noqa: B023
            await started
            return len(started.events)

        with no_collections():
            events = asyncio.run(run())
        tenth = events // 10
        growths.append((marks[-1] - marks[-1 - tenth]) / (marks[tenth] - marks[0]))
    growth = sorted(growths)[1]
    with capsys.disabled():
        report(f"{design}: last tenth of a long run to the first", growth, 1.15, f"{events} events")
    assert growth < 2


@pytest.mark.parametrize("design", SHORT)
def test_a_thousand_runs_at_once_take_as_long_as_their_models(design: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def one() -> float:
        started = now()
        await SHORT[design]().start("go")
        return now() - started

    async def all_at_once() -> list[float]:
        return sorted(await asyncio.gather(*(one() for _ in range(RUNS))))

    with own_heap():
        took = min((run_in_own_time(all_at_once()) for _ in range(2)), key=lambda seconds: seconds[-1])
    median, slowest = (seconds / (3 * LATENCY) for seconds in (took[RUNS // 2], took[-1]))
    with capsys.disabled():
        report(f"{design}: {RUNS} runs at once, the slowest to its model", slowest, 1.5, f"median {median:.2f}")
    assert slowest < 6
