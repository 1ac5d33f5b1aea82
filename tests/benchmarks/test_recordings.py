"""A long recording is opened, gone about in, searched, compared; and a policy is tried on many decisions."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import agentnb
from agentnb import Store, replay
from agentnb.analysis import backtest, calls, diff
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallProposed, RunStart, ToolCall
from agentnb.core.evolve import fold
from tests.benchmarks.measure import own_heap, report, tell
from tests.benchmarks.models import Calling
from tests.worlds import output_of

pytestmark = pytest.mark.alone
T = TypeVar("T")


async def echo(value: int) -> str:
    return "x" * 10


@pytest.fixture(scope="module")
def length(pytestconfig: pytest.Config) -> int:
    return 100_000 if pytestconfig.option.all_cases else 20_000


def session(length: int) -> Any:
    """Make a loop with this number of events."""
    return agentnb.SessionLoop(Calling(length // 4), [agentnb.tool(echo)], name="long")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("long")


@pytest.fixture(scope="module")
def run(length: int, folder: Path) -> Any:
    async def record() -> Any:
        run = session(length).start("go", name="long", store=Store(folder / "runs.db"))
        await run
        return run

    return asyncio.run(record())


def timed(what: str, action: Callable[[], T], capsys: pytest.CaptureFixture[str]) -> T:
    started = time.perf_counter()
    done = action()
    with capsys.disabled():
        tell(f"{what:58} {(time.perf_counter() - started) * 1000:8.0f} ms")
    return done


def test_a_long_recording_is_opened_walked_searched_and_compared(
    run: Any, length: int, folder: Path, capsys: Any
) -> None:
    assert len(run.events) >= length
    with capsys.disabled():
        tell(f"\na recording of {length:,} events")
    snapshot = timed("opened from its store", lambda: Store(folder / "runs.db").load("long"), capsys)
    walked = timed("made a replay", lambda: replay(snapshot), capsys)
    timed("gone to its last event", lambda: walked.to(length - 1), capsys)
    timed("gone back by one event", lambda: walked.to(length - 2), capsys)
    timed("gone back to its middle", lambda: walked.to(length // 2), capsys)
    wanted = length * 3 // 4
    found = timed("searched for a predicate", lambda: walked.find(lambda event, _: event.seq >= wanted), capsys)
    assert found is not None
    assert found.seq == wanted
    timed("a table of its calls", lambda: calls(snapshot), capsys)
    at = next(event.seq for event in run.events[length // 2 :] if event.type == "call_end")
    fork = timed("forked in its middle", lambda: run.fork(at, result="changed", loop=session(length)), capsys)
    asyncio.run(output_of(fork))
    difference = timed("compared with that fork", lambda: diff(snapshot, fork), capsys)
    assert difference.common == at


def test_a_fork_shares_its_prefix_and_begins_with_a_state_that_was_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """A fork of a run of 8,000 events, beside the fold of these events: 15 ms of CPU on the machine of the aims."""

    async def measure() -> None:
        run = agentnb.SessionLoop(Calling(2_000), [agentnb.tool(echo)], name="long").start("go")
        await run
        calls = [event.seq for event in run.events if event.type == "call_end"]
        run.fork(calls[10])  # imports what a fork needs

        def seconds(action: Callable[[], object]) -> float:
            started = time.process_time()
            action()
            return time.process_time() - started

        with own_heap():
            folding = min(seconds(lambda: fold(run.events)) for _ in range(5))
            # Each is as far from the next kept state as it happens to be.
            first = statistics.mean(seconds(lambda at=at: run.fork(at)) for at in calls[95::190])  # type: ignore[misc]
            run.fork(calls[-1])
            second = min(seconds(lambda: run.fork(calls[-1])) for _ in range(20))
            read = min(seconds(lambda: list(run.fork(calls[-1]).events)) for _ in range(5))
        with capsys.disabled():
            report(
                "a first fork at an event, on average, beside the fold", first / folding, 0.65, f"{first * 1e3:.2f} ms"
            )
            report("a second fork at an event, beside the fold", second / folding, 0.065, f"{second * 1e3:.2f} ms")
            report("  and all of its events read", read / folding, 1, f"{read * 1e3:.2f} ms")
        assert first / folding < 1
        assert second / folding < 0.2

    asyncio.run(measure())


def test_a_policy_is_tried_on_ten_thousand_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Any] = [RunStart(loop="SessionLoop", name="many", time=1.0, run_id="many")]
    for number in range(10_000):
        id, arguments = f"c{number}", {"path": f"/tmp/{number}"}
        decision = "reject" if number % 10 == 0 else "approve"
        events += [
            CallProposed(call=ToolCall(id=id, name="write", arguments=arguments)),
            ApprovalRequest(call_id=id, name="write", arguments=arguments),
            ApprovalDecision(call_id=id, decision=decision, reason="no" if decision == "reject" else ""),
        ]
    events = [event.model_copy(update={"seq": seq, "run_id": "many"}) for seq, event in enumerate(events)]
    many = agentnb.Snapshot.of(events)
    rules = [{"tool": "write", "arguments": {"path": "/tmp/*"}, "decision": "approve"}]
    tried = timed("a policy tried on 10,000 decisions", lambda: backtest(rules, many), capsys)
    assert tried.prompts == 10_000
    assert len(tried.missed) == 1000
