"""Tools for the tests of Agent that record when they run, and the rules for every stream of an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agentnb import Agent, tool
from agentnb.loops.agent import AgentEvent
from agentnb.testing import ScriptedLLM

BRACKETS = {
    "iteration_start": {"iteration_end"},
    "phase_start": {"phase_end"},
    "retrieval_start": {"retrieval_complete"},
    "llm_start": {"llm_complete"},
    "tool_calls_start": {"tool_calls_complete"},
    "tool_execution_start": {"tool_result", "tool_error"},
}


class AgentWorld:
    """A factory of agents. Their tools record here what they did and call a function of the test while they run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.during: dict[str, Callable[[], Any]] = {}

        @tool
        async def t() -> str:
            """Give R."""
            self.ran.append("t")
            return "R"

        @tool
        async def echo(value: str) -> str:
            """Give the value back."""
            self.ran.append(value)
            if value in self.during:
                done = self.during[value]()
                if asyncio.iscoroutine(done):
                    await done
            return f"R:{value}"

        @tool
        async def boom(value: str = "") -> str:
            """Fail."""
            raise RuntimeError("api down")

        @tool(approve=True)
        async def send(value: str) -> str:
            """Ask before it runs."""
            self.ran.append(f"sent {value}")
            return f"S:{value}"

        self.tools = [t, echo, boom, send]

    def agent(self, *turns: Any, **options: Any) -> Agent:
        return Agent(ScriptedLLM(turns), self.tools, **options)


def short(events: Sequence[AgentEvent]) -> list[str]:
    """Return a stream in short notation: types, numbers of iterations, ids of calls, and text."""
    said = []
    for event in events:
        word = event.type.upper()
        if event.type in ("iteration_start", "iteration_end"):
            word += f"#{event.iteration}"
        if event.type in ("phase_start", "phase_end"):
            word += f"({event.phase})"
        if event.tool_call is not None:
            word += f"({event.tool_call.id})"
        if event.type == "llm_tool_calls":
            word += f"({event.metadata['tool_count']})"
        if event.type in ("llm_delta", "agent_finish", "retrieval_progress"):
            word += f" {event.content}"
        said.append(word)
    return said


def assert_is_sound(events: Sequence[AgentEvent]) -> None:
    """Assert the rules for every stream: one terminal event, last; ids; JSON in and out; every start has its end.

    An interrupted start has no end.
    """
    assert [event.is_terminal() for event in events].count(True) == 1
    assert events[-1].is_terminal()
    waiting: list[tuple[set[str], str | None]] = []
    for event in events:
        call = event.tool_call.id if event.tool_call is not None else None
        if event.type in BRACKETS:
            waiting.append((BRACKETS[event.type], call if event.type == "tool_execution_start" else None))
            continue
        closed = [(ends, of) for ends, of in waiting if event.type in ends and (of is None or of == call)]
        if closed:
            waiting.remove(closed[-1])
        else:
            assert event.type not in set.union(*BRACKETS.values()), f"{event.type} closes nothing"
    assert waiting == [] or events[-1].type == "error"
    assert len({event.run_id for event in events}) == 1
    turns = {(event.iteration, event.turn_id) for event in events}
    assert len(turns) == len({iteration for iteration, _ in turns}) == len({id for _, id in turns})
    for event in events:
        assert AgentEvent.model_validate_json(event.model_dump_json()) == event
