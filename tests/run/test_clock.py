"""The system clock may be set and the computer may sleep: durations are right, and deadlines apply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentnb import AlreadyDecided, Run, SessionLoop, Snapshot, Store, restore, tool
from agentnb.analysis import calls, events, messages
from agentnb.testing import ScriptedLLM, call
from tests.worlds import until

HOUR = 3600.0
SET = [-2 * HOUR, 2 * HOUR]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the computer's clock forward, or back, by so many seconds."""
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])

    def set(seconds: float) -> None:
        ahead[0] += seconds

    return set


@pytest.mark.parametrize("seconds", SET)
async def test_the_duration_of_a_call_is_right_when_the_clock_is_set(
    seconds: float, set_clock: Callable[[float], None]
) -> None:
    @tool
    async def sleep() -> str:
        set_clock(seconds)
        await asyncio.sleep(0.1)
        return "slept"

    run = SessionLoop(ScriptedLLM([[call("sleep", {}, id="c")], "done"]), [sleep]).start("go")
    await run
    row = calls(run).iloc[0]
    assert 0.09 < row.ended - row.started < 1
    times = [event.time for event in run.events]
    assert times == sorted(times)
    assert (events(run).seconds >= 0).all()


@pytest.mark.parametrize("seconds", SET)
async def test_the_duration_of_a_request_is_right_when_the_clock_is_set(
    seconds: float, set_clock: Callable[[float], None]
) -> None:
    class Model:
        async def stream(self, _: object, **__: object) -> object:
            yield {"type": "text_delta", "content": "x"}
            set_clock(seconds)
            await asyncio.sleep(0.1)

    run = SessionLoop(Model()).start("go")
    await run
    assert 0.09 < messages(run).took.max() < 1


def asks(deadline: float) -> Run:
    @tool
    async def write() -> str:
        return "written"

    rules = [{"tool": "write", "decision": "ask", "deadline": deadline}]
    return SessionLoop(ScriptedLLM([[call("write", {}, id="c")], "done"]), [write]).start("go", approve=rules)


async def test_a_deadline_applies_soon_after_the_computer_has_slept(
    set_clock: Callable[[float], None],
) -> None:
    run = asks(600)
    run.play()
    await until(lambda: bool(run.pending))
    set_clock(HOUR)
    assert await asyncio.wait_for(run, 5) == "done"
    (decision,) = [event for event in run.events if event.type == "approval_decision"]
    assert (decision.decision, decision.by) == ("reject", "deadline")


async def test_a_deadline_is_not_extended_when_the_clock_is_set_back(set_clock: Callable[[float], None]) -> None:
    run = asks(0.2)
    run.play()
    await until(lambda: bool(run.pending))
    set_clock(-2 * HOUR)
    assert await asyncio.wait_for(run, 5) == "done"
    assert run.events[-1].time - run.events[0].time < 5


@pytest.mark.parametrize("seconds", SET)
async def test_a_question_with_a_short_deadline_can_be_answered_after_the_clock_was_set(
    seconds: float, set_clock: Callable[[float], None]
) -> None:
    may_end = asyncio.Event()

    @tool
    async def write() -> str:
        return "written"

    @tool
    async def hold() -> str:
        await may_end.wait()
        return "held"

    rules = [
        {"tool": "write", "decision": "ask", "deadline": 600},
        {"tool": "hold", "decision": "approve"},
    ]
    turns = [[call("write", {}, id="c"), call("hold", {}, id="h")], "done"]
    run = SessionLoop(ScriptedLLM(turns), [write, hold]).start("go", approve=rules)
    run.play()
    await until(lambda: bool(run.pending) and any(event.type == "call_start" for event in run.events))
    set_clock(seconds)
    await asyncio.sleep(0.05)
    assert [item.id for item in run.pending] == ["c"]
    run.approve("c")
    may_end.set()
    assert await asyncio.wait_for(run, 5) == "done"


async def test_a_call_after_its_deadline_is_decided_by_the_deadline(set_clock: Callable[[float], None]) -> None:
    run = asks(600)
    await run.step("turn")
    set_clock(HOUR)
    with pytest.raises(AlreadyDecided, match="the deadline rejected it"):
        run.approve("c")
    assert [event.type for event in run.events].count("approval_decision") == 1


async def test_times_do_not_decrease_when_a_run_is_restored_with_an_earlier_clock(
    set_clock: Callable[[float], None],
) -> None:
    @tool
    async def look() -> str:
        return "seen"

    loop = SessionLoop(ScriptedLLM([[call("look", {}, id="c")], "done"]), [look])
    run = loop.start("go")
    await run.step("turn")
    set_clock(-2 * HOUR)
    again = restore(Snapshot.from_json(run.snapshot().to_json()), loop)
    await again
    times = [event.time for event in again.events]
    assert times == sorted(times)


async def test_the_run_that_was_written_last_is_the_newest(tmp_path: Path, set_clock: Callable[[float], None]) -> None:
    store = Store(tmp_path / "runs.db")
    for answer in ("first", "second"):
        await SessionLoop(ScriptedLLM([answer])).start("go", name="x", store=store)
        set_clock(-2 * HOUR)
    assert store.load("x").state.output == "second"
    newest, older = store.runs()
    assert store.load(newest.id).state.output == "second"
    assert store.load(older.id).state.output == "first"
    run = SessionLoop(ScriptedLLM(["third"])).start("go", store=store)
    run.snapshot("kept")
    set_clock(-2 * HOUR)
    await run
    run.snapshot("kept")
    assert store.load("kept").state.output == "third"
    store.close()


async def test_a_recording_with_decreasing_times_has_no_negative_duration() -> None:
    @tool
    async def look() -> str:
        return "seen"

    run = SessionLoop(ScriptedLLM([[call("look", {}, id="c")], "done"]), [look]).start("go")
    await run
    changed = [
        event.model_copy(update={"time": event.time - (2 * HOUR if event.type == "call_end" else 0)})
        for event in run.events
    ]
    row = calls(Snapshot.of(changed)).iloc[0]
    assert row.ended >= row.started >= 0
