"""A LoopAgent that ended with an error is restored at the failed agent; completed calls do not run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from agentnb import ConversationEngine, Loop, LoopAgent, Run, RunFailed, SessionLoop, Snapshot, restore, tool
from agentnb.core.events import ErrorInfo, Event, MessageAdded, RunEnd
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.loops.loop_agent import BaseAgent, InvocationContext
from agentnb.loops.loop_agent import Event as Said
from agentnb.loops.want import Want, call
from agentnb.testing import ScriptedLLM


class Mended:
    """Work that fails once. done: what has been completed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.has_failed = False

    def fail_once(self) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("broken")

    def pay(self, n: int) -> str:
        """Pay an amount."""
        self.done.append(f"paid {n}")
        return f"paid {n}"


def paying(world: Mended, **hooks: Any) -> SessionLoop:
    asks = [{"type": "tool_call", "id": "c1", "name": "pay", "arguments": {"n": 1}}]
    return SessionLoop(ScriptedLLM([asks, "fine", asks, "fine"]), [tool(world.pay)], name="payer", **hooks)


def a_hook(world: Mended) -> Loop:
    return paying(world, should_stop_after_turn=lambda _: world.fail_once())


def a_hook_two_loops_deep(world: Mended) -> Loop:
    return LoopAgent("IN", [a_hook(world)], max_iterations=1)


def a_task(world: Mended) -> Loop:
    class Planner:
        def get_context_async(self, user_input: str) -> dict[str, Any]:
            return {}

        async def decompose_goal(self, goal: str) -> list[dict[str, str]]:
            return [{"id": "t1", "description": "one"}, {"id": "t2", "description": "two"}]

    def execute(task: Any) -> str:
        if task.id == "t2":
            world.fail_once()
        return world.pay(int(task.id[1]))

    return ConversationEngine(coordinator=Planner(), llm=Planner(), execute=execute)


def a_step_of_a_generator(world: Mended) -> Loop:
    def fails() -> str:
        world.fail_once()
        return "fine"

    def steps(input: Any) -> Iterator[Want]:
        yield call(world.pay, n=1)
        return (yield call(fails))

    return Loop.from_generator(steps, name="steps")


def a_decision(world: Mended) -> Loop:
    class Pays(Loop):
        phases: ClassVar[Mapping[str, Sequence[str]]] = {"paying": ["done"], "done": []}
        opened_by: ClassVar[Mapping[str, str]] = {"run_end": "done"}

        def advance(self, state: State) -> Event:
            if not state.messages:
                return MessageAdded(message=Message(role="assistant", content=world.pay(1)))
            world.fail_once()
            return RunEnd(reason="completed", output="fine")

    return Pays()


async def failed(loop: Loop) -> Run:
    run = loop.start("go", approve=True)
    with pytest.raises(RunFailed, match="broken"):
        await run
    assert run.stop_reason == "error"
    return run


@pytest.mark.parametrize(
    ("sub_agent", "done"),
    [
        (a_hook, ["paid 1"]),
        (a_hook_two_loops_deep, ["paid 1"]),
        (a_task, ["paid 1", "paid 2"]),
        (a_step_of_a_generator, ["paid 1"]),
        (a_decision, ["paid 1"]),
    ],
)
async def test_work_completed_before_the_failure_is_not_repeated(
    sub_agent: Callable[[Mended], Loop], done: list[str]
) -> None:
    world = Mended()
    loop = LoopAgent("L", [sub_agent(world)], max_iterations=1)
    run = await failed(loop)
    again = restore(Snapshot.from_json(run.snapshot().to_json()), loop)
    await again
    assert again.stop_reason == "max_iterations"
    assert world.done == done


async def test_sub_agents_before_the_failed_one_do_not_run_again() -> None:
    world = Mended()

    class Fails(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            world.fail_once()
            yield Said(author=self.name, content="fine")

    loop = LoopAgent("L", [paying(world), Fails("F")], max_iterations=1)
    run = await failed(loop)
    assert await restore(run.snapshot(), loop) == "fine"
    assert world.done == ["paid 1"]


async def test_a_sub_agent_that_ended_with_an_error_starts_again() -> None:
    world = Mended()

    class GivesUp(Loop):
        phases: ClassVar[Mapping[str, Sequence[str]]] = {"working": ["done"], "done": []}
        opened_by: ClassVar[Mapping[str, str]] = {"run_end": "done"}

        def advance(self, state: State) -> Event:
            if not state.messages:
                return MessageAdded(message=Message(role="assistant", content=world.pay(1)))
            if len(world.done) == 1:
                return RunEnd(reason="error", error=ErrorInfo(type="GaveUp", message="broken"))
            return RunEnd(reason="completed", output="fine")

    loop = LoopAgent("L", [GivesUp()], max_iterations=1)
    run = await failed(loop)
    assert await restore(run.snapshot(), loop) == "fine"
    assert world.done == ["paid 1", "paid 1"]
