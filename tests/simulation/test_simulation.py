"""Random worlds agree with one model, and the simulation detects faults that are planted."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from agentnb.core.reply import Reply
from agentnb.run.approvals.decisions import Decisions
from agentnb.run.approvals.pending import Pending
from agentnb.run.loop_executor import LoopExecutor
from tests.simulation.__main__ import PUSH
from tests.simulation.case import Case, Story, draw_case, play
from tests.simulation.choices import drawn, of_seed
from tests.simulation.loop import Hang, VirtualLoop, run
from tests.simulation.shrink import kind, kinds, shrunk

CHUNK = 50


@pytest.mark.parametrize("first", range(0, PUSH, CHUNK))
def test_runs_in_random_worlds_perform_only_what_was_shown_and_decided(first: int) -> None:
    for seed in range(first, first + CHUNK):
        story = play(draw_case(of_seed(seed)))
        if story.faults:
            pytest.fail(report(seed, story))


@settings(max_examples=30, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(drawn(draw_case))
def test_worlds_generated_by_hypothesis_agree_with_the_model(case: Case) -> None:
    story = play(case)
    assert not story.faults, "\n".join(story.lines())


def report(seed: int, story: Story) -> str:
    """Return the faults, the command that repeats them, and the smallest world with the same kind of fault."""
    smallest = play(shrunk(seed, kind(story.faults[0]), tries=200))
    return "\n".join(
        [
            f"Seed {seed} fails: {story.faults[0]}",
            f"python -m tests.simulation --seed {seed} shows all of it. The smallest world found that fails like it:",
            *smallest.lines(),
        ]
    )


# -- planted faults ----------------------------------------------------------------------------------------------------


def first_that_fails(wanted: str, *, most: int | None = None) -> tuple[int, Story]:
    """Return the first seed with a fault that matches `wanted`, in a world of at most `most` parts."""
    for seed in range(PUSH):
        case = draw_case(of_seed(seed))
        if most is None or case.size <= most:
            story = play(case)
            if any(re.search(wanted, fault) for fault in story.faults):
                return seed, story
    pytest.fail(f"None of {PUSH} seeds has a fault that says {wanted!r}.")


def plant_no_flush_before_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = LoopExecutor.launch

    def without_flush(self: Any, *args: Any, **named: Any) -> Any:
        self._journal.flush = lambda: None
        try:
            return launch(self, *args, **named)
        finally:
            del self._journal.flush

    monkeypatch.setattr(LoopExecutor, "launch", without_flush)


def plant_an_answer_that_is_matched_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Decisions._waiting

    def by_id(self: Any, one: str | Pending) -> Any:
        return waiting(self, one.id if isinstance(one, Pending) else one)

    monkeypatch.setattr(Decisions, "_waiting", by_id)


def plant_a_lost_partial_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_off = Reply.broken_off
    monkeypatch.setattr(Reply, "broken_off", lambda *given: broken_off(*given).model_copy(update={"content": ""}))


@pytest.mark.parametrize(
    ("plant", "wanted"),
    [
        (plant_no_flush_before_a_tool, "its start is not on disk"),
        (plant_an_answer_that_is_matched_by_id, "was about the question"),
        (plant_a_lost_partial_answer, r"is lost \(failed\)"),
        (plant_a_lost_partial_answer, r"is lost \(broken off\)"),
    ],
)
def test_a_deliberately_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    first_that_fails(wanted)


def test_a_failing_world_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_a_lost_partial_answer(monkeypatch)
    seed, story = first_that_fails("is lost ", most=40)
    wanted = next(kind(fault) for fault in story.faults if "is lost" in fault)

    smallest = shrunk(seed, wanted, tries=100)

    assert wanted in kinds(play(smallest))
    assert smallest.size <= story.case.size * 2 / 3


def test_a_seed_results_in_the_same_story_in_every_process() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "11"],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]

    one, other = (re.sub(r"[0-9a-f]{12}|/tmp/\w+|'timestamp': [\d.]+", "", text) for text in printed)
    assert "run_end" in one
    assert one == other


# -- the virtual loop --------------------------------------------------------------------------------------------------


def test_a_virtual_day_takes_no_real_time() -> None:
    began = time.monotonic()

    async def sleeper(loop: VirtualLoop) -> float:
        before = time.time()
        await asyncio.sleep(86_400)
        return time.time() - before

    assert run(sleeper).result == pytest.approx(86_400)
    assert time.monotonic() - began < 10


def test_a_task_that_can_never_continue_is_reported_as_a_hang() -> None:
    async def waits(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(Hang, match=r"nothing is scheduled, and these wait: .*test_simulation"):
        run(waits)


def test_a_task_that_never_ends_is_reported_as_a_hang() -> None:
    async def turns(loop: VirtualLoop) -> None:
        while True:  # noqa: ASYNC110 - this is what has to be found
            await asyncio.sleep(0)

    with pytest.raises(Hang, match="for ever"):
        run(turns, most_turns=1000)


def test_simultaneous_timers_fire_in_the_order_of_the_seed() -> None:
    def order(seed: int) -> list[int]:
        async def main(loop: VirtualLoop) -> list[int]:
            came: list[int] = []

            async def comes(number: int) -> None:
                await asyncio.sleep(1)
                came.append(number)

            await asyncio.gather(*map(comes, range(8)))
            return came

        return run(main, order=seed).result

    assert order(0) == list(range(8))
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(1, 6)}) > 1


def test_a_task_that_is_still_running_at_the_end_is_reported() -> None:
    left = []

    async def main(loop: VirtualLoop) -> None:
        left.append(asyncio.create_task(asyncio.sleep(3), name="forgotten"))

    assert "forgotten" in run(main).left[0]
