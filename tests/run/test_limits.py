"""`limits={"calls": n}` counts calls of tools, in all loops of a run together, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any

import pytest

from agentnb import Agent, ConversationEngine, LimitReached, Loop, LoopAgent, SessionLoop, restore, tool
from agentnb.core.events import CallStart
from agentnb.errors import UsageError
from agentnb.loops import want
from agentnb.testing import ScriptedLLM, call
from tests.loops.loop_agents import K
from tests.run.agents import Plans
from tests.worlds import assert_folds, assert_one_terminal_event_last, output_of, until

ran: list[int] = []


@tool
async def work(n: int = 0) -> str:
    """Work."""
    ran.append(n)
    return f"worked {n}"


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


def worker(again: int = 1, calls: int = 1, name: str = "worker") -> SessionLoop:
    turn = [call("work", {"n": n}, id=f"c{n}") for n in range(calls)]
    return SessionLoop(ScriptedLLM([*([turn] if turn else []), "done"] * again), [work], name=name)


def agent_that_looks_things_up() -> Loop:
    turns = [[call("work", id="c1")], [call("work", id="c2")], "fin"]
    return Agent(ScriptedLLM(turns), [work], retriever=lambda query: ["a text"])


def session_with_a_hook() -> Loop:
    turns = [[call("work", id="c1")], [call("work", id="c2")], "fin"]
    return SessionLoop(ScriptedLLM(turns), [work], should_stop_after_turn=lambda messages: len(messages) > 4)


def engine() -> Loop:
    return ConversationEngine(lambda goal: {}, Plans("abc"), worker(3))


def loop_agent() -> Loop:
    return LoopAgent("outer", [K("A"), LoopAgent("inner", [worker(2), K("B")], 1)], 2)


def generator() -> Loop:
    def steps(given: Any) -> Generator[Any, Any, Any]:
        yield want.call(len, "x")
        yield want.call("work")
        yield want.call(worker(), "go")
        yield [want.call(work, 1), want.call(len, "y")]

    return Loop.from_generator(steps, tools=[work])


def session_of_a_session() -> Loop:
    turns = [[call("worker", {"input": "go"}, id="h")], "fin"]
    return SessionLoop(ScriptedLLM(turns), [worker(calls=2)])


MADE = [
    (agent_that_looks_things_up, 2),
    (session_with_a_hook, 2),
    (engine, 3),
    (loop_agent, 2),
    (generator, 3),
    (session_of_a_session, 3),  # handing the task on is a call of the model's too
]
every_loop = pytest.mark.parametrize(("made", "calls"), MADE)


@every_loop
async def test_a_run_with_as_many_calls_as_its_limit_ends_normally(made: Any, calls: int) -> None:
    run = made().start("go", limits={"calls": calls + 1})
    await run
    assert run.state.calls_started == calls
    assert_folds(run)


@every_loop
async def test_a_limit_below_the_number_of_calls_ends_the_run_before_the_last_call(made: Any, calls: int) -> None:
    run = made().start("go", limits={"calls": calls - 1})
    with pytest.raises(LimitReached, match="calls"):
        await run
    assert run.state.calls_started == calls - 1
    assert len(ran) <= calls - 1
    assert_one_terminal_event_last(run.events)
    assert_folds(run)


async def test_a_limit_on_calls_does_not_apply_to_calls_of_the_loop() -> None:
    run = LoopAgent("outer", [K("A"), worker(calls=0)], 1).start("go", limits={"calls": 0})
    assert await run == "done"


async def test_other_limits_apply_to_calls_of_the_loop() -> None:
    run = LoopAgent("outer", [worker(calls=0), K("A")], 1).start("go", limits={"turns": 1, "seconds": 0})
    with pytest.raises(LimitReached, match="seconds"):
        await run
    assert run.state.children == {}


async def test_call_start_says_whether_it_is_a_call_of_the_loop() -> None:
    run = generator().start("go")
    await run
    assert [(e.path, e.name, e.own) for e in run.events if isinstance(e, CallStart)] == [
        ("", "len", True),
        ("", "work", False),
        ("", "worker", True),
        ("worker", "work", False),
        ("", "work", False),
        ("", "len", True),
    ]


@pytest.mark.parametrize("way", ["restored", "forked"])
async def test_the_age_of_a_recording_does_not_count_as_seconds_of_the_run(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    with monkeypatch.context() as yesterday:
        yesterday.setattr(time, "time", lambda: now() - 86_400)
        run = worker(again=2).start("go", limits={"seconds": 60})
        await run.step("turn")
    other = run.fork() if way == "forked" else restore(run.snapshot(), worker(), limits={"seconds": 60})
    await other
    assert other.stop_reason == "completed"


async def test_the_seconds_of_all_turns_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, later = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + sum(later))

    @tool
    async def wait() -> None:
        later.append(40)

    run = SessionLoop(ScriptedLLM([[call("wait")]], repeat=True), [wait]).start("go", limits={"seconds": 100})
    with pytest.raises(LimitReached, match="100 seconds"):
        await run
    assert sum(later) == 120


@tool
async def slow(n: int) -> str:
    """Record its start and its end."""
    ran.append(n)
    await asyncio.sleep(0)
    ran.append(-n)
    return f"worked {n}"


def three_at_once(**hooks: Any) -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("slow", {"n": n}, id=f"c{n}") for n in (1, 2, 3)], "fin"]), [slow], **hooks)


async def pulled(run: Any) -> None:
    async for _ in run:
        pass
    await run


async def stepped(run: Any) -> None:
    while await run.step():
        pass
    await run


@pytest.mark.parametrize("driven", [output_of, pulled, stepped])
@pytest.mark.parametrize("limit", [0, 1, 2])
async def test_of_concurrent_calls_as_many_run_as_the_limit_allows(limit: int, driven: Any) -> None:
    run = three_at_once().start("go", limits={"calls": limit})
    with pytest.raises(LimitReached):
        await driven(run)
    assert sorted(ran) == [*range(-limit, 0), *range(1, limit + 1)]
    results = [message.is_error for message in run.messages if message.role == "tool"]
    assert results == [n > limit for n in (1, 2, 3)]
    assert_folds(run)


async def test_a_nested_loop_ends_before_the_limit_ends_the_run() -> None:
    turn = [call("worker", {"input": "go"}, id="h"), call("work", id="c")]
    run = SessionLoop(ScriptedLLM([turn, "fin"]), [worker(calls=0), work]).start("go", limits={"calls": 1})
    with pytest.raises(LimitReached):
        await run
    assert [message.content for message in run.messages if message.tool_call_id == "h"] == ["done"]


async def test_a_call_that_the_limit_defers_is_checked_once() -> None:
    looked: list[str] = []
    loop = three_at_once(before_tool_call=lambda context: looked.append(context.tool_call.id))
    run = loop.start("go", limits={"calls": 2})
    with pytest.raises(LimitReached):
        await run
    assert looked == ["c1", "c2", "c3"]


async def test_calls_of_unknown_outcome_do_not_wait_for_each_other_at_the_limit() -> None:
    @tool(idempotent=True)
    async def hang(n: int) -> None:
        ran.append(n)
        await asyncio.Event().wait()

    def loop() -> SessionLoop:
        return SessionLoop(ScriptedLLM([[call("hang", {"n": n}) for n in (1, 2)], "fin"]), [hang])

    run = loop().start("go")
    run.play()
    await until(lambda: len(ran) == 2)
    broken_off = run.snapshot()
    run.cancel()
    with pytest.raises(LimitReached):
        await restore(broken_off, loop(), limits={"calls": 0})


async def test_a_limit_reached_while_a_question_is_open_ends_the_run() -> None:
    @tool(approve=True)
    async def write(n: int) -> str:
        return f"wrote {n}"

    turn = [call("work", id="c0"), call("write", {"n": 1}, id="c1"), call("write", {"n": 2}, id="c2")]
    run = SessionLoop(ScriptedLLM([turn, "done"]), [work, write]).start("go", limits={"calls": 1})
    while len(run.pending) < 2:
        await run.step()
    run.approve("c1")

    await run.step("turn")

    assert run.stop_reason == "limit"
    assert_one_terminal_event_last(run.events)


def test_a_limit_with_too_many_seconds_is_refused() -> None:
    with pytest.raises(UsageError, match="seconds"):
        SessionLoop(ScriptedLLM(["done"])).start("go", limits={"seconds": 10**400})


async def test_a_background_run_that_fails_before_its_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no timers today")

    run = SessionLoop(ScriptedLLM(["done"])).start("go", limits={"seconds": 5})
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", fails)
    run.play()
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.stop_reason == "error"
    assert [event.type for event in run.events].count("run_end") == 1
