"""A failed step of a generator loop is not complete: a restored run repeats it, but no successful step."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from agentnb import Agent, Loop, RunFailed, Snapshot, Store, ToolError, replay, restore, tool
from agentnb.core.evolve import fold
from agentnb.loops.want import call, say
from agentnb.testing import ScriptedLLM
from agentnb.testing import call as calls

Steps = Generator[Any, Any, Any]
Flow = Callable[["World"], Callable[[Any], Steps]]


class World:
    """Functions that count their calls, and fail if their name is in `bad`."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        self.called: Counter[str] = Counter()

    def step(self, name: str, seconds: float = 0) -> Callable[[], Any]:
        """Return the function of that name."""

        async def does() -> str:
            self.called[name] += 1
            await asyncio.sleep(seconds)
            if name in self.bad:
                raise ConnectionError(f"{name} is down")
            return name

        does.__name__ = name
        return does


async def failed_and_restored(flow: Flow, *bad: str, path: Path | None = None) -> tuple[World, Any, Any]:
    """Run until the steps in `bad` have ended the run, and restore it in a new world in which no step fails."""
    before, after = World(*bad), World()
    run = Loop.from_generator(flow(before), name="g").start(None)
    with pytest.raises(RunFailed):
        await run
    recording = run.snapshot() if path is None else Snapshot.load(run.snapshot().save(path))
    return after, restore(recording, Loop.from_generator(flow(after), name="g")), run


def one_by_one(world: World) -> Callable[[Any], Steps]:
    def steps(_: Any) -> Steps:
        first = yield call(world.step("a"))
        second = yield call(world.step("b"))
        return first + second

    return steps


def at_once(world: World) -> Callable[[Any], Steps]:
    def steps(_: Any) -> Steps:
        return "".join((yield [call(world.step("a")), call(world.step("b", 0.01)), call(world.step("c", 0.02))]))

    return steps


def caught(world: World) -> Callable[[Any], Steps]:
    def steps(_: Any) -> Steps:
        try:
            yield call(world.step("a"))
        except ToolError:
            yield say("without a")
        return (yield call(world.step("b")))

    return steps


def raised_from(world: World) -> Callable[[Any], Steps]:
    def steps(_: Any) -> Steps:
        try:
            return (yield call(world.step("a")))
        except ToolError as error:
            raise RuntimeError("no a") from error

    return steps


async def test_a_failed_step_is_repeated_and_earlier_steps_are_not(tmp_path: Path) -> None:
    world, restored, _ = await failed_and_restored(one_by_one, "b", path=tmp_path / "s.json")
    assert await restored == "ab"
    assert world.called == {"b": 1}


@pytest.mark.parametrize("bad", [("a",), ("b",), ("c",), ("a", "c")])
async def test_of_concurrent_steps_only_the_failed_ones_are_repeated(bad: tuple[str, ...]) -> None:
    world, restored, _ = await failed_and_restored(at_once, *bad)
    assert await restored == "abc"
    assert world.called == dict.fromkeys(bad, 1)


async def test_a_step_whose_failure_was_caught_is_not_repeated() -> None:
    world, restored, _ = await failed_and_restored(caught, "a", "b")
    assert await restored == "b"
    assert world.called == {"b": 1}


async def test_a_step_whose_failure_was_caught_is_not_repeated_after_a_later_error() -> None:
    def steps_of(world: World, *, mended: bool) -> Callable[[Any], Steps]:
        def steps(_: Any) -> Steps:
            with contextlib.suppress(ToolError):
                yield call(world.step("a"))
            if not mended:
                raise KeyError("typo")
            return "done"

        return steps

    world = World("a")
    run = Loop.from_generator(steps_of(world, mended=False), name="g").start(None)
    with pytest.raises(RunFailed):
        await run
    assert await restore(run.snapshot(), Loop.from_generator(steps_of(world, mended=True), name="g")) == "done"
    assert world.called == {"a": 1}


async def test_a_step_is_repeated_if_the_generator_raised_from_its_failure() -> None:
    world, restored, _ = await failed_and_restored(raised_from, "a")
    assert await restored == "a"
    assert world.called == {"a": 1}


async def test_a_step_that_fails_again_can_be_repeated_again() -> None:
    world, restored, _ = await failed_and_restored(one_by_one, "b")
    world.bad = {"b"}
    with pytest.raises(RunFailed, match="b is down"):
        await restored
    last = World()
    again = restore(restored.snapshot(), Loop.from_generator(one_by_one(last), name="g"))
    assert await again == "ab"
    assert last.called == {"b": 1}


async def test_a_run_with_a_repeated_step_can_be_folded_and_replayed() -> None:
    _, restored, _ = await failed_and_restored(at_once, "b")
    await restored
    assert fold(restored.events).dump() == restored.state.dump()
    loop = Loop.from_generator(at_once(World()), name="g")
    assert replay(restored, loop).to(len(restored.events) - 1).output == "abc"


async def test_a_failed_step_of_a_stored_run_is_repeated(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = Loop.from_generator(one_by_one(World("b")), name="g").start(None, store=store, name="x")
    with pytest.raises(RunFailed):
        await run
    world = World()
    restored = restore(store.load("x"), Loop.from_generator(one_by_one(world), name="g"), store=store)
    assert await restored == "ab"
    assert world.called == {"b": 1}
    store.close()


async def test_the_failed_step_of_a_nested_generator_is_repeated() -> None:
    def outer(world: World) -> Callable[[Any], Steps]:
        inner = Loop.from_generator(one_by_one(world), name="inner")

        def steps(_: Any) -> Steps:
            return (yield call(world.step("before"))) + (yield call(inner))

        return steps

    world, restored, _ = await failed_and_restored(outer, "b")
    assert await restored == "beforeab"
    assert world.called == {"b": 1}


async def test_a_failed_loop_as_a_step_runs_again_from_the_start() -> None:
    @tool
    def look() -> str:
        return "seen"

    def flow(llm: Any) -> Any:
        agent = Agent(llm, [look], name="agent", max_iterations=1)

        def steps(_: Any) -> Steps:
            return (yield call(agent, "go"))

        return Loop.from_generator(steps, name="g")

    run = flow(ScriptedLLM([[calls("look")]])).start(None)
    with pytest.raises(RunFailed, match="max_iterations"):
        await run
    assert await restore(run.snapshot(), flow(ScriptedLLM(["fine"]))) == "fine"


@pytest.mark.parametrize("approve", [True, False])
async def test_a_failed_tool_as_a_step_needs_a_new_approval(approve: bool) -> None:
    def flow(error: Exception | None) -> Any:
        @tool(approve=True)
        def delete(path: str) -> str:
            if error is not None:
                raise error
            return f"deleted {path}"

        def steps(_: Any) -> Steps:
            return (yield call("delete", path="a"))

        return Loop.from_generator(steps, tools=[delete], name="g")

    run = flow(ConnectionError("down")).start(None)
    await until_asked(run)
    run.approve(run.pending[0])
    with pytest.raises(RunFailed):
        await run
    restored = restore(run.snapshot(), flow(None))
    await until_asked(restored)
    if approve:
        restored.approve(restored.pending[0])
        assert await restored == "deleted a"
    else:
        restored.reject(restored.pending[0], "no")
        with pytest.raises(RunFailed, match="no"):
            await restored


async def test_a_rejected_step_stays_rejected() -> None:
    @tool(approve=True)
    def delete(path: str) -> str:
        return "gone"

    def steps(_: Any) -> Steps:
        return (yield call("delete", path="a"))

    run = Loop.from_generator(steps, tools=[delete], name="g").start(None)
    await until_asked(run)
    run.reject(run.pending[0], "never")
    with pytest.raises(RunFailed):
        await run
    restored = restore(run.snapshot(), Loop.from_generator(steps, tools=[delete], name="g"))
    with pytest.raises(RunFailed, match="never"):
        await restored
    assert not restored.pending


async def until_asked(run: Any) -> None:
    """Step the run until a call is pending."""
    while not run.pending:
        await run.step()
