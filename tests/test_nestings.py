"""Pause, resume, step and cancel at the events of every design inside every other design.

The result of the run is always that of an undisturbed run. While the run is at rest, nothing advances, the code of no
opaque agent is ahead of its recorded events, and no engine is executing a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from agentnb import LimitReached, RunCancelled, Snapshot, restore
from agentnb.core.errors import UsageError
from tests.nestings import THREE, TWO, Marks, nesting, tasks_under_way
from tests.test_designs import check, outcome

Names = Sequence[str]

pytestmark = pytest.mark.sampled(3)  # 721 similar cases: a push runs a third of them, the nightly job all

EVERY_NESTING = [*((names, 3) for names in TWO), *((names, 7) for names in THREE)]
every_nesting = pytest.mark.parametrize(
    ("names", "stride"), EVERY_NESTING, ids=["-".join(names) for names, _ in EVERY_NESTING]
)


def approve(run: Any) -> None:
    for item in run.pending:
        with suppress(UsageError):  # cancelled during this test
            run.approve(item)


async def to_the_end(run: Any, at_rest: Callable[[], Awaitable[None]] | None = None) -> int:
    """Play the run to its end, approve pending calls, resume the run when it is paused; return the number of pauses."""
    pauses = 0
    run.play()
    async with asyncio.timeout(60):
        while not run.state.over or run.driven:
            approve(run)
            if run.state.paused:
                pauses += 1
                if at_rest is not None:
                    await at_rest()
                run.resume()
            await asyncio.sleep(0)
    return pauses


async def whole_of(names: Names) -> Any:
    run = nesting(names, Marks()).start("go")
    await to_the_end(run)
    check(run)
    return run


def positions(names: Names, stride: int, whole: Any) -> Iterator[int]:
    """Return every `stride`-th position of the whole run, with a different offset for each nesting."""
    return iter(range(sum(map(len, names)) % stride, len(whole.events) - 1, stride))


def same(run: Any, whole: Any, marks: Marks) -> None:
    check(run)
    assert outcome(run) == outcome(whole)
    assert marks.left_open() == set()


async def goes_on_elsewhere(snapshot: Snapshot, names: Names, whole: Any) -> None:
    marks = Marks()
    again = restore(Snapshot.from_json(snapshot.to_json()), nesting(names, marks))
    await to_the_end(again)
    same(again, whole, marks)


async def assert_nothing_moves(run: Any, marks: Marks) -> None:
    before = len(run.events), marks.standing
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(run.events), marks.standing) == before
    assert marks.runs_ahead_of(run.events) == set()


@every_nesting
async def test_a_pause_takes_effect_when_every_nested_loop_is_at_rest(names: Names, stride: int) -> None:
    whole = await whole_of(names)
    for position in positions(names, stride, whole):
        marks, saved = Marks(), []
        run = nesting(names, marks).start("go")
        run.watch(lambda event: event.seq == position and run.pause())  # noqa: B023

        async def at_rest() -> None:
            assert list(tasks_under_way(run.state)) == []  # noqa: B023
            await assert_nothing_moves(run, marks)  # noqa: B023
            saved.append(run.snapshot())  # noqa: B023

        assert await to_the_end(run, at_rest) <= 1
        same(run, whole, marks)
        for snapshot in saved:
            await goes_on_elsewhere(snapshot, names, whole)


@every_nesting
async def test_a_pause_after_a_restore_takes_effect_when_every_nested_loop_is_at_rest(
    names: Names, stride: int
) -> None:
    whole = await whole_of(names)
    for position in positions(names, stride, whole):
        marks = Marks()
        run = restore(Snapshot.of(whole.events[: position + 1]), nesting(names, marks))
        run.play()
        assert run.pause()

        async def at_rest() -> None:
            assert list(tasks_under_way(run.state)) == []  # noqa: B023

        assert await to_the_end(run, at_rest) <= 1
        same(run, whole, marks)


@every_nesting
async def test_a_pause_revoked_at_the_next_event_has_no_effect(names: Names, stride: int) -> None:
    whole = await whole_of(names)
    for position in positions(names, stride, whole):
        marks = Marks()
        run = nesting(names, marks).start("go")
        asked: list[bool] = []
        run.watch(lambda event: event.seq == position and asked.append(run.pause()))  # noqa: B023
        run.watch(lambda event: event.seq == position + 1 and not run.state.paused and run.resume())  # noqa: B023
        await to_the_end(run)
        assert asked == [position < len(whole.events) - 1]  # a run that has ended cannot be paused
        same(run, whole, marks)


@every_nesting
async def test_a_breakpoint_stops_at_its_event_and_nothing_advances(names: Names, stride: int) -> None:
    whole = await whole_of(names)
    for position in positions(names, stride, whole):
        marks, saved = Marks(), []
        run = nesting(names, marks).start("go", breakpoints=[lambda event, state: event.seq == position])  # noqa: B023

        async def at_rest() -> None:
            await assert_nothing_moves(run, marks)  # noqa: B023
            saved.append(run.snapshot())  # noqa: B023

        pauses = await to_the_end(run, at_rest)
        assert pauses == (run.events[position].type != "run_end")  # a breakpoint does not stop at the end of a run
        same(run, whole, marks)
        for snapshot in saved:
            await goes_on_elsewhere(snapshot, names, whole)


@every_nesting
@pytest.mark.parametrize("later", [0, 2])
async def test_cancel_during_a_requested_pause_ends_everything_immediately(
    names: Names, stride: int, later: int
) -> None:
    await cancel_while_a_pause_waits(names, stride, later)


async def test_cancel_during_a_requested_pause_works_with_a_busy_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tasks have a turn between any two steps of a run.
    monkeypatch.setattr("agentnb.run.driver.BREATH", -1.0)
    await cancel_while_a_pause_waits(("session", "opaque"), 3, 0)


async def cancel_while_a_pause_waits(names: Names, stride: int, later: int) -> None:
    whole = await whole_of(names)
    for position in positions(names, stride, whole):
        marks = Marks()
        run = nesting(names, marks).start("go")
        run.watch(lambda event: event.seq == position and run.pause())  # noqa: B023
        run.watch(lambda event: event.seq == position + later and run.cancel("enough"))  # noqa: B023
        await to_the_end(run)
        with suppress(RunCancelled, LimitReached):
            await run
        check(run)
        assert marks.left_open() == set()
        if run.stop_reason == "cancelled":
            await goes_on_elsewhere(run.snapshot(), names, whole)


async def played(run: Any, marks: Marks) -> None:
    await to_the_end(run)


async def awaited(run: Any, marks: Marks) -> None:
    stop = run.watch(lambda event: approve(run))
    approve(run)
    await asyncio.wait_for(run, 60)
    stop()


async def pulled(run: Any, marks: Marks) -> None:
    async with asyncio.timeout(60):
        async for _ in run:
            approve(run)
            assert marks.runs_ahead_of(run.events) == set()


async def cancelled(run: Any, marks: Marks) -> None:
    run.cancel("enough")
    with suppress(RunCancelled):
        await run


@every_nesting
@pytest.mark.parametrize("then", [played, awaited, pulled, cancelled])
async def test_each_step_returns_one_event_and_the_run_can_be_advanced_in_any_other_way(
    names: Names, stride: int, then: Callable[[Any, Marks], Awaitable[None]]
) -> None:
    whole = await whole_of(names)
    for position in list(positions(names, stride, whole))[::3]:
        marks, seen = Marks(), []
        run = nesting(names, marks).start("go")
        async with asyncio.timeout(60):
            while len(seen) <= position:
                seen += (step := await run.step())
                assert len(step) == 1 or (step == [] and run.pending)
                for _ in range(5):
                    await asyncio.sleep(0)
                # Each of several concurrent agents may have emitted something that no step has returned yet.
                assert marks.runs_ahead_of(run.events if "session" in names[:-1] else seen) == set()
                if not step:
                    approve(run)
        await then(run, marks)
        assert seen == run.events[: len(seen)]
        check(run)
        assert marks.left_open() == set()
        if then is not cancelled:
            assert outcome(run) == outcome(whole)


@every_nesting
async def test_a_run_with_a_requested_pause_can_be_stepped(names: Names, stride: int) -> None:
    whole = await whole_of(names)
    for position in positions(names, stride, whole):
        marks = Marks()
        run = nesting(names, marks).start("go")
        run.watch(lambda event: event.seq == position and run.pause())  # noqa: B023
        run.play()
        async with asyncio.timeout(60):
            while len(run.events) <= position:
                approve(run)
                await asyncio.sleep(0)
            for _ in range(4):
                approve(run)
                await run.step()
                assert marks.runs_ahead_of(run.events) == set()
        await to_the_end(run)
        same(run, whole, marks)


@every_nesting
async def test_a_consumer_can_pause_the_run_that_it_pulls(names: Names, stride: int) -> None:
    whole = await whole_of(names)
    for position in positions(names, stride, whole):
        marks, pauses = Marks(), 0
        run = nesting(names, marks).start("go")
        async with asyncio.timeout(60):
            async for event in run:
                approve(run)
                assert marks.runs_ahead_of(run.events) == set()
                if event.seq == position:
                    assert run.pause()
                if event.type == "run_paused":
                    pauses += 1
                    assert list(tasks_under_way(run.state)) == []
                    assert run.resume()
        assert pauses <= 1
        same(run, whole, marks)
