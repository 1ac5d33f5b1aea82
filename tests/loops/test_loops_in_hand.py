"""Constructing a loop of any design: its tools, its limits and its repr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentnb import Agent, ConversationEngine, ExecutionLoop, Loop, LoopAgent, SessionLoop, UsageError, tool
from agentnb.loops.want import ask
from agentnb.testing import ScriptedLLM, call
from tests.designs import double

SOLUTION = '{"calls": [{"_tool": "double", "n": 2, "_outputPath": "†state.two"}], "output": "†state.two"}'


def asking(llm: Any, tools: Any) -> Loop:
    @Loop.from_generator(llm=llm, tools=tools)
    def asking(n: int) -> Any:
        yield ask("What is twice that?")
        reply = yield ask("Is that so?")
        return reply.content

    return asking


MADE: dict[str, Callable[[Any, Any], Loop]] = {
    "Agent": Agent,
    "SessionLoop": SessionLoop,
    "ExecutionLoop": ExecutionLoop,
    "from_generator": asking,
}
SHOWN = {
    "<SessionLoop session_loop: double, wait>": lambda: SessionLoop(None, [double, tool(wait)]),
    "<Agent clerk: twice>": lambda: Agent(None, {"twice": double}, name="clerk"),
    "<ExecutionLoop execution_loop: session_loop>": lambda: ExecutionLoop(None, [SessionLoop(None)]),
    "<GeneratorLoop asking>": lambda: asking(None, ()),
    "<LoopAgent newsroom>": lambda: LoopAgent("newsroom", [Agent(None, name="writer")]),
    "<ConversationEngine conversation_engine>": ConversationEngine,
    "<SessionLoop session_loop: double, double, double, double, double, double, double, double, ...>": lambda: (
        SessionLoop(None, [double] * 9)
    ),
}


def wait(minutes: int) -> None:
    """Wait."""


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
async def test_tools_from_an_iterator_are_available_in_every_run(make: Callable[[Any, Any], Loop]) -> None:
    turn: Any = SOLUTION if make is ExecutionLoop else [call("double", {"n": 2})]
    loop = make(ScriptedLLM([turn, "done"] * 2), (one for one in [double]))
    for _ in range(2):
        run = loop.start("go")
        await run
        assert [event.result for event in run.events if event.type == "call_end"] == [4]
    assert "double" in repr(loop)


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_the_error_for_a_tool_outside_a_list_shows_the_list(make: Callable[[Any, Any], Loop]) -> None:
    with pytest.raises(UsageError, match=r"Pass tools as a list, also a single tool: \[double\]"):
        make(None, double)


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_none_is_accepted_for_no_tools(make: Callable[[Any, Any], Loop]) -> None:
    assert make(None, None).tools == ()


@pytest.mark.parametrize("shown", SHOWN)
def test_the_repr_of_a_loop_contains_its_name_and_tools(shown: str) -> None:
    assert repr(SHOWN[shown]()) == shown


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (Agent, "max_iterations"),
        (SessionLoop, "max_turns"),
        (ExecutionLoop, "max_requests"),
        (ExecutionLoop, "max_concurrency"),
        (ConversationEngine, "max_tasks"),
    ],
)
def test_a_limit_must_be_a_whole_number(make: Callable[..., Loop], limit: str) -> None:
    with pytest.raises(UsageError, match=rf"{limit} must be None or .*whole.*, not 1\.5"):
        make(llm=None, **{limit: 1.5})
