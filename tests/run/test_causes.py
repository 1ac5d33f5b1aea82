"""The error of a run that fails in the code of a loop has that exception as its cause, if this process raised it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentnb import ConversationEngine, LoopAgent, RunFailed, SessionLoop, Snapshot, restore, tool
from agentnb.core.events import ErrorInfo, RunEnd
from agentnb.testing import ScriptedLLM, call
from tests.loops.loop_agents import K
from tests.run.agents import Plans


def raises(error: Exception) -> Any:
    def fail(given: Any) -> Any:
        raise error

    return fail


LOOPS = {
    "a sub-agent": lambda error: LoopAgent("outer", [K("A"), K("B", boom=1, error=error)], 2),
    "one further inside": lambda error: LoopAgent("outer", [LoopAgent("inner", [K("B", boom=2, error=error)], 2)], 1),
    "an agent alone": lambda error: K("A", boom=1, error=error),
    "a callback": lambda error: LoopAgent("outer", [K("A")], 1, before_agent_callback=raises(error)),
    "a coordinator": lambda error: ConversationEngine(raises(error)),
    "a task": lambda error: ConversationEngine(llm=Plans(), execute=raises(error)),
    "a loop that does a task": lambda error: ConversationEngine(
        execute=LoopAgent("in", [K("A", boom=1, error=error)], 1)
    ),
}


@pytest.mark.parametrize("made", LOOPS.values(), ids=list(LOOPS))
async def test_the_cause_of_a_failed_run_is_the_raised_exception(made: Any) -> None:
    error = ValueError("mine")
    run = made(error).start("go")
    for _ in range(2):
        with pytest.raises(RunFailed, match="ValueError: mine") as failed:
            await run
        assert failed.value.__cause__ is error
    run = made(error).start("go")
    with pytest.raises(RunFailed) as failed:
        async for _ in run:
            pass
    assert failed.value.__cause__ is error


def test_a_blocking_result_raises_with_the_cause() -> None:
    error = ValueError("mine")
    with pytest.raises(RunFailed) as failed:
        LoopAgent("outer", [K("A", boom=1, error=error)], 1).start(None).result(10)
    assert failed.value.__cause__ is error


async def test_an_earlier_failure_is_not_the_cause() -> None:
    errors = [ValueError("first"), ValueError("second")]

    def execute(task: Any) -> None:
        raise errors[0 if task.id == "a" else 1]

    engine = ConversationEngine(llm=Plans(), execute=execute, on_task_error="continue")
    run = engine.start("go")
    await run
    agent = LoopAgent("outer", [engine, K("B", boom=1, error=errors[1])], 1)
    with pytest.raises(RunFailed) as failed:
        await agent.start("go")
    assert failed.value.__cause__ is errors[1]


async def test_an_exception_of_another_process_is_in_the_message_and_not_the_cause() -> None:
    engine = ConversationEngine(raises(ValueError("mine")))
    failed_run = engine.start("go")
    with pytest.raises(RunFailed):
        await failed_run
    again = restore(Snapshot.from_json(failed_run.snapshot().to_json()), engine)
    with pytest.raises(RunFailed, match="ValueError: mine") as failed:
        await again
    assert failed.value.__cause__ is None


async def test_the_failure_of_a_tool_is_not_the_cause() -> None:
    @tool
    async def boom() -> None:
        """Fail."""
        raise ValueError("the tool's")

    class Ends(SessionLoop):
        def advance(self, state: Any) -> Any:
            fact = super().advance(state)
            same = ErrorInfo(type="ValueError", message="the loop's")
            return RunEnd(reason="error", error=same) if fact.type == "run_end" else fact

    run = Ends(ScriptedLLM([[call("boom", id="c")], "fin"]), [boom]).start("go")
    with pytest.raises(RunFailed, match="the loop's") as failed:
        await asyncio.wait_for(run, 60)
    assert failed.value.__cause__ is None
