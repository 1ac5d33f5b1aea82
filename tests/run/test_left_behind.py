"""A wait for a run returns within 2 s of its end; a warning names what has not ended by then."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from agentnb import (
    ConversationEngine,
    ExecutionLoop,
    LimitReached,
    Loop,
    LoopAgent,
    Run,
    RunCancelled,
    SessionLoop,
    tool,
)
from agentnb.loops import want
from agentnb.loops.loop_agent import BaseAgent
from agentnb.loops.loop_agent import Event as Said
from agentnb.run import tasks
from agentnb.testing import ScriptedLLM, call
from tests.worlds import assert_one_terminal_event_last

WITHIN = 4.0
"""2 s, plus the delays of a busy machine."""


def _a_tool(puts_away: Callable[[], Any]) -> Loop:
    @tool
    async def immortal() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await puts_away()

    return SessionLoop(ScriptedLLM([[call("immortal", {}, id="c")], "done"]), [immortal])


def _a_nested_tool(puts_away: Callable[[], Any]) -> Loop:
    inner = _a_tool(puts_away)
    inner.name = "inner"
    return SessionLoop(ScriptedLLM([[call("inner", {"input": "x"}, id="c")], "done"]), [inner])


def _a_model(puts_away: Callable[[], Any]) -> Loop:
    class Model:
        async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
            try:
                yield {"type": "text_delta", "content": "a"}
                await asyncio.Event().wait()
            finally:
                await puts_away()

    return SessionLoop(Model())


def _a_step_of_its_own(puts_away: Callable[[], Any]) -> Loop:
    class Code(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncIterator[Any]:
            try:
                yield Said(author=self.name, content="x")
                await asyncio.Event().wait()
            finally:
                await puts_away()

    return Code(name="code")


MADE = {
    "tool": (_a_tool, "immortal"),
    "nested tool": (_a_nested_tool, "'immortal' of 'inner'"),
    "model": (_a_model, "model"),
    "step of its own": (_a_step_of_its_own, "code"),
}


async def follow(run: Run) -> None:
    async for _ in run:
        pass


async def wait(run: Run) -> None:
    with pytest.raises((RunCancelled, LimitReached)):
        await run


async def play(run: Run) -> None:
    run.play()
    await wait(run)


async def step(run: Run) -> None:
    while run.stop_reason is None:
        await run.step()


@pytest.mark.parametrize("swallows", [True, False])
async def test_a_wait_for_a_run_returns_soon_after_its_end(swallows: bool) -> None:
    may_end = asyncio.Event()

    async def puts_away() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                if not swallows:
                    raise

    async def run_and_cancel(make: Callable[..., Loop], drive: Callable[..., Any], limits: Any) -> float:
        run = make(puts_away).start("go", limits=limits)
        driving = asyncio.create_task(drive(run))
        await asyncio.sleep(0.3)
        ended = time.monotonic()
        if limits is None:
            run.cancel()
        await driving
        assert_one_terminal_event_last(run.events)
        return time.monotonic() - ended

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        took = await asyncio.gather(  # together, as each takes 2 s
            *(
                run_and_cancel(make, drive, limits)
                for make, _ in MADE.values()
                for drive in (follow, wait, play, step)
                for limits in (None, {"seconds": 0.3})
                if drive in (follow, wait) or limits is None
            ),
            return_exceptions=True,
        )
        may_end.set()
    assert [error for error in took if isinstance(error, BaseException)] == []
    assert max(took, default=0) < WITHIN
    said = [str(warning.message) for warning in caught]
    assert [name for _, name in MADE.values() if not any(name in words for words in said)] == []


@pytest.mark.parametrize("drive", [follow, wait, play, step])
@pytest.mark.parametrize("made", MADE)
async def test_cleanup_that_ends_in_time_is_awaited(made: str, drive: Callable[..., Any]) -> None:
    did: list[str] = []

    async def puts_away() -> None:
        await asyncio.sleep(0.02)
        did.append("put away")

    make, _ = MADE[made]
    run = make(puts_away).start("go")
    driving = asyncio.create_task(drive(run))
    await asyncio.sleep(0.05)  # until it waits
    run.cancel()
    await driving
    assert did == ["put away"]


# -- what else of a user's can hang ----------------------------------------------------------------------------------


def _with_a_call(hangs: Callable[..., Any], where: str) -> Run:
    @tool
    def look() -> str:
        return "seen"

    options = {} if where == "approve" else {where: hangs}
    loop = SessionLoop(ScriptedLLM([[call("look", {}, id="c")], "done"]), [look], **options)
    return loop.start("go", approve=hangs if where == "approve" else None)


def _executing(hangs: Callable[..., Any]) -> Run:
    planner = SimpleNamespace(decompose_goal=lambda goal: [{"id": "a", "description": "a", "priority": 0}])
    return ConversationEngine(lambda goal: {}, planner, hangs).start("go")


def _calling(hangs: Callable[..., Any]) -> Run:
    @Loop.from_generator
    def steps(_: Any) -> Any:
        yield want.call(hangs)

    return steps.start("go")


def _in_a_child(hangs: Callable[..., Any]) -> Run:
    made = tool(name="immortal")(hangs)
    child = SessionLoop(ScriptedLLM([[call("immortal", {}, id="c")], "done"]), [made], name="child")
    return LoopAgent("agent", [child], 1).start("go")


HANGING: dict[str, tuple[Callable[..., Run], str]] = {
    "policy": (lambda hangs: _with_a_call(hangs, "approve"), "The call 'look'"),
    "before_tool_call": (lambda hangs: _with_a_call(hangs, "before_tool_call"), "The call 'look'"),
    "after_tool_call": (lambda hangs: _with_a_call(hangs, "after_tool_call"), "The call 'look'"),
    "transform_context": (lambda hangs: _with_a_call(hangs, "transform_context"), "The request to the model"),
    "executor": (_executing, "The call"),
    "function of a generator loop": (_calling, "The call 'hangs'"),
    "tool of a child": (lambda hangs: _in_a_child(lambda: hangs()), "The call 'immortal' of 'child'"),
}


@pytest.mark.parametrize("hanging", HANGING)
async def test_a_warning_names_hanging_code_and_the_wait_returns(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CLOSE_SECONDS", 0.05)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def hangs(given: Any = None) -> None:
        begun.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    make, name = HANGING[hanging]

    async def run_and_cancel() -> None:
        run = make(hangs)
        waiting = asyncio.create_task(wait(run))
        await begun.wait()
        run.cancel()
        await asyncio.wait_for(waiting, 10)

    with pytest.warns(RuntimeWarning, match=name):
        await run_and_cancel()
    may_end.set()


async def test_closing_a_consumer_does_not_wait_for_hanging_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CLOSE_SECONDS", 0.05)
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)

    events = _sync_tool(work).start("go").__aiter__()
    while (await anext(events)).type != "call_start":
        pass
    assert await asyncio.to_thread(begun.wait, 30)
    with pytest.warns(RuntimeWarning, match="The call 'hang'"):
        await asyncio.wait_for(events.aclose(), 10)  # type: ignore[attr-defined]  # a generator
    may_end.set()


# -- what runs in threads, which nothing ends ------------------------------------------------------------------------


def _sync_tool(work: Callable[[], Any], **options: Any) -> Loop:
    @tool(**options)
    def hang() -> None:
        work()

    return SessionLoop(ScriptedLLM([[call("hang", {}, id="c")], "done"]), [hang])


def _nested_sync_tool(work: Callable[[], Any]) -> Loop:
    inner = _sync_tool(work)
    inner.name = "inner"
    return SessionLoop(ScriptedLLM([[call("inner", {"input": "x"})], "done"]), [inner])


def _sync_generator_tool(work: Callable[[], Any]) -> Loop:
    @tool
    def hang() -> Any:
        yield work()

    return SessionLoop(ScriptedLLM([[call("hang", {}, id="c")], "done"]), [hang])


def _detached(work: Callable[[], Any]) -> Loop:
    @tool(detached=True)
    def hang() -> None:
        work()

    return ExecutionLoop(ScriptedLLM(['{"calls": [{"_tool": "hang"}], "output": 1}']), [hang])


def _want(work: Callable[[], Any]) -> Loop:
    @Loop.from_generator
    def steps(_: Any) -> Any:
        yield want.call(hang)

    def hang() -> None:
        work()

    return steps


def _sync_model(work: Callable[[], Any]) -> Loop:
    class Model:
        def complete(self, messages: Any) -> str:
            work()
            return "late"

    return SessionLoop(Model())


THREADED = {
    "tool": (_sync_tool, "The call 'hang' of 'session_loop'"),
    "tool in a thread of its own": (lambda work: _sync_tool(work, thread="own"), "The call 'hang' of 'session_loop'"),
    "nested tool": (_nested_sync_tool, "The call 'hang' of 'inner'"),
    "generator": (_sync_generator_tool, "The call 'hang' of 'session_loop'"),
    "detached tool": (_detached, "The call 'hang' of 'execution_loop'"),
    "function of a generator loop": (_want, "The call 'hang' of 'steps'"),
    "model": (_sync_model, "The request to the model of 'session_loop'"),
}


async def _cancelled_in(run: Run, drive: Callable[..., Any], begun: threading.Event) -> None:
    driving = asyncio.create_task(drive(run))
    assert await asyncio.to_thread(begun.wait, 30)
    run.cancel()
    await driving


@pytest.mark.parametrize("drive", [follow, wait, play])
@pytest.mark.parametrize("made", THREADED)
async def test_a_warning_names_a_function_that_continues_in_its_thread(
    made: str, drive: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "CLOSE_SECONDS", 0.05)
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)

    make, name = THREADED[made]
    with pytest.warns(RuntimeWarning, match=f"{name} .* still runs in a thread"):
        await _cancelled_in(make(work).start("go"), drive, begun)
    may_end.set()


@pytest.mark.parametrize("drive", [follow, wait, play])
@pytest.mark.parametrize("made", THREADED)
async def test_a_function_that_ends_in_time_in_its_thread_is_awaited(made: str, drive: Callable[..., Any]) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(0.03)  # it waits for nothing and is not notified of the cancellation
        ended.set()

    make, _ = THREADED[made]
    await _cancelled_in(make(work).start("go"), drive, begun)
    assert ended.is_set()


async def test_a_timed_out_tool_does_not_delay_the_end() -> None:
    may_end = threading.Event()
    run = _sync_tool(lambda: may_end.wait(30), timeout=0.02).start("go")
    assert await asyncio.wait_for(run, 1.5) == "done"
    may_end.set()


def test_a_blocking_wait_for_the_result_gets_the_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CLOSE_SECONDS", 0.05)
    said: list[str] = []
    monkeypatch.setattr(tasks, "warn_of", said.append)  # the warning is raised in agentnb's thread
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)

    run = _sync_tool(work).start("go")
    cancelling = threading.Thread(target=lambda: begun.wait(30) and run.cancel())
    cancelling.start()
    with pytest.raises(RunCancelled):
        run.result(30)
    assert ["'hang'" in words for words in said] == [True]
    may_end.set()
    cancelling.join()
