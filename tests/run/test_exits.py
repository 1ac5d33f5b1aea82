"""A BaseException ends the code that raises it, and neither agentnb's thread nor any other run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from agentnb import ExecutionLoop, LoopAgent, Run, RunFailed, SessionLoop, tool
from agentnb.loops.loop_agent import BaseAgent
from agentnb.testing import ScriptedLLM, call


@tool
async def work() -> str:
    return "worked"


@tool
async def leave_a_task() -> str:
    asyncio.get_running_loop().call_soon(leave)
    await asyncio.sleep(0)
    return "worked"


def leave(*_: Any) -> None:
    sys.exit(3)


class Leaving(BaseAgent):
    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Any, None]:
        leave()
        yield


class LeavingModel:
    async def stream(self, messages: Any, **_: Any) -> AsyncGenerator[Any, None]:
        leave()
        yield


def session(**options: Any) -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("work")], "done"]), [work], **options)


def watched(watcher: Callable[..., None]) -> Run:
    run = session().start("go")
    run.watch(watcher)
    return run


def planned() -> ExecutionLoop:
    solution = '{"calls": [{"_tool": "work"}], "output": "done"}'
    return ExecutionLoop(ScriptedLLM([solution, '{"calls": [], "output": "done"}']), [work], confirm=leave)


class Panic(BaseException):
    """Like the exception of pyo3 if a library written in Rust panics."""


def panic(*_: Any) -> None:
    raise Panic("index out of bounds")


class PanickingModel:
    async def stream(self, messages: Any, **_: Any) -> AsyncGenerator[Any, None]:
        panic()
        yield


FAILS: dict[str, Callable[[], Run]] = {
    "model": lambda: SessionLoop(LeavingModel()).start("go"),
    "transform_context": lambda: session(transform_context=leave).start("go"),
    "should_stop_after_turn": lambda: session(should_stop_after_turn=leave).start("go"),
    "model that panics": lambda: SessionLoop(PanickingModel()).start("go"),
    "agent of a LoopAgent": lambda: LoopAgent("outer", [Leaving("inner")], 1).start("go"),
}
GOES_ON: dict[str, Callable[[], Run]] = {
    "before_tool_call": lambda: session(before_tool_call=leave).start("go"),
    "hook that panics": lambda: session(before_tool_call=panic).start("go"),
    "watcher that panics": lambda: watched(panic),
    "after_tool_call": lambda: session(after_tool_call=leave).start("go"),
    "confirm": lambda: planned().start("go"),
    "watcher": lambda: watched(leave),
    "what a tool left behind": lambda: SessionLoop(ScriptedLLM([[call("leave_a_task")], "done"]), [leave_a_task]).start(
        "go"
    ),
}


def assert_others_go_on() -> None:
    other = session().start("go")
    other.play()
    assert other.result(10) == "done"


@pytest.mark.parametrize("start", FAILS.values(), ids=list(FAILS))
def test_an_exit_in_code_that_the_run_depends_on_fails_the_run(start: Callable[[], Run]) -> None:
    run = start()
    run.play()
    with pytest.raises(RunFailed):
        run.result(10)
    assert_others_go_on()


@pytest.mark.parametrize("start", GOES_ON.values(), ids=list(GOES_ON))
def test_an_exit_in_other_code_does_not_end_the_run(start: Callable[[], Run]) -> None:
    run = start()
    run.play()
    assert run.result(10) == "done"
    assert_others_go_on()


@pytest.mark.parametrize("fails", [leave, panic])
def test_a_breakpoint_that_raises_an_exit_pauses_the_run(fails: Callable[..., None]) -> None:
    run = session().start("go", breakpoints=[fails])
    paused = threading.Event()
    run.watch(lambda event: paused.set() if event.type == "run_paused" else None)
    run.play()
    assert paused.wait(10)
    run.resume()
    assert run.result(10) == "done"
    assert_others_go_on()


@pytest.mark.parametrize(("fails", "words"), [(leave, "SystemExit: 3"), (panic, "Panic: index out of bounds")])
def test_a_policy_that_raises_an_exit_does_not_approve(fails: Callable[..., None], words: str) -> None:
    run = session().start("go", approve=fails)
    asked = threading.Event()
    run.watch(lambda event: asked.set() if event.type == "approval_request" else None)
    run.play()
    assert asked.wait(10)
    assert run.pending[0].reason == f"The policy failed: {words}"
    run.cancel()
    assert_others_go_on()
