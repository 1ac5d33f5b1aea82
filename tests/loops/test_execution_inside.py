"""An ExecutionLoop inside a LoopAgent gets the same input as on its own."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import ExecutionLoop, LoopAgent, SessionLoop, Snapshot, restore
from agentnb.testing import ScriptedLLM
from tests.loops.execution_world import World, c, solution

PARAMETERS = {"u": "bob"}


def reads(name: str = "reads") -> ExecutionLoop:
    """Return a loop that writes its parameter `u` into its state."""
    calls = solution(c("give", "†state.u", v="†input.u")), solution(output="read")
    return World().loop(*calls, context=[], name=name)


@pytest.mark.parametrize(
    "given",
    [
        PARAMETERS,
        {"type": "data", "kind": "input", "data": PARAMETERS},
        [{"type": "data", "kind": "input", "data": PARAMETERS}, "and be quick"],
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_nested_loop_gets_the_parameters_of_the_loop_agent(given: Any, depth: int) -> None:
    first, second = reads("first"), reads("second")
    agents = LoopAgent("outer", [first, second], 1)
    run = (agents if depth == 1 else LoopAgent("around", [agents], 1)).start(given)
    assert await run == "read"
    assert (first.state, second.state) == (PARAMETERS, PARAMETERS)
    assert first.context[0] == {"type": "data", "kind": "input", "data": PARAMETERS}


async def test_a_nested_loop_gets_the_parameters_and_the_results_of_its_siblings() -> None:
    second = reads("second")
    await LoopAgent("outer", [reads("first"), second], 1).start(PARAMETERS)
    assert second.context[1] == {"role": "user", "content": "For context:\n[first] said: read"}


@pytest.mark.parametrize("given", [PARAMETERS, {"type": "image"}])
async def test_a_nested_session_loop_gets_the_parameters_as_json(given: Any) -> None:
    llm = ScriptedLLM(["done"])
    inside = LoopAgent("inside", [SessionLoop(llm, name="talks")], 1)
    await LoopAgent("outer", [inside], 1).start(given)
    (message,) = llm.requests[0].messages
    assert "invocation" not in message["content"]


async def test_a_restored_nested_loop_keeps_the_parameters() -> None:
    run = LoopAgent("outer", [reads()], 1).start(PARAMETERS)
    async for event in run:
        if event.type == "call_proposed" and event.path:
            break
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    again = reads()
    assert await restore(snapshot, LoopAgent("outer", [again], 1)) == "read"
    assert again.state == PARAMETERS
