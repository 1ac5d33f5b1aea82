"""Sync functions of the user that decide or hook into a run wait in a thread: the event loop goes on meanwhile."""

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from agentnb import SessionLoop, tool
from agentnb.testing import ScriptedLLM, call


@tool
def act() -> str:
    return "acted"


def loop_of(tools: Any = (act,), calls: int = 1, **hooks: Any) -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("act", {})] * calls, "done"]), list(tools), **hooks)


def by_policy(wait: Any) -> Any:
    return loop_of().start("q", approve=lambda call: wait() or True)


def by_tool(wait: Any) -> Any:
    @tool(name="act", approve=lambda call: wait() or False)
    def asks() -> str:
        return "acted"

    return loop_of([asks]).start("q")


def by_hook(name: str) -> Any:
    return lambda wait: loop_of(**{name: lambda context: wait()}).start("q")


WAYS = {
    "approve= of a run": by_policy,
    "approve= of a tool": by_tool,
    **{name: by_hook(name) for name in ("before_tool_call", "after_tool_call", "should_stop_after_turn")},
    "transform_context": lambda wait: loop_of(transform_context=lambda messages: wait() or messages).start("q"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_the_event_loop_goes_on_while_a_function_waits(way: str) -> None:
    waits, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(waits.set)
        assert goes_on.wait(10), "the event loop did not run while the function waited"

    run = asyncio.ensure_future(_awaited(WAYS[way](wait)))
    await asyncio.wait_for(waits.wait(), 10)
    goes_on.set()
    assert await run == "done"


async def _awaited(run: Any) -> Any:
    return await run


async def test_a_policy_decides_about_one_call_at_a_time_in_the_order_of_the_calls() -> None:
    busy, order = threading.Lock(), []

    def policy(proposed: Any) -> bool:
        assert busy.acquire(blocking=False)
        order.append(proposed.id)
        busy.release()
        return True

    run = loop_of(calls=8).start("q", approve=policy)
    await run
    assert order == [event.call_id for event in run.events if event.type == "call_start"]


async def test_a_policy_sees_the_context_variables_of_its_caller() -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    who.set("Ada")
    seen = []
    await loop_of().start("q", approve=lambda call: seen.append(who.get()) or True)
    assert seen == ["Ada"]


async def test_rules_are_applied_without_a_thread() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    await SessionLoop(ScriptedLLM([call("act_here", {}), "done"]), [act_here]).start(
        "q", approve=[{"decision": "approve"}]
    )
    assert {thread.ident for thread in threading.enumerate()} <= before


@tool
async def act_here() -> str:
    return "acted"
