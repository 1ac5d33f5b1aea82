"""The promises (ARCHITECTURE.md, 4. Promises), tested at every event of every design, and of nested loops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from agentnb import RunCancelled, RunFailed, Snapshot, restore
from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, Event
from agentnb.core.evolve import fold
from tests.designs import FAULTS, WORLDS, states
from tests.warm import Warm, warm
from tests.worlds import (
    PROVIDER_ROLES,
    assert_one_terminal_event_last,
    by_loop,
    collect,
    facts,
    provider_faults,
    running_tasks,
)

every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
Decide = Callable[[Any, Any], None]
Some = Callable[[range], range]


def approve(run: Any, item: Any) -> None:
    run.approve(item)


def reject(run: Any, item: Any) -> None:
    run.reject(item, "no")


async def drive(run: Any, decide: Decide = approve) -> Any:
    """Play the run to its end; decide about pending calls, and resume the run when it is paused."""
    run.play()
    async with asyncio.timeout(60):
        while not run.state.over or run.driven:
            for item in run.pending:
                with suppress(UsageError):
                    decide(run, item)
            if run.state.paused:
                run.resume()
            await asyncio.sleep(0)
    return run


def check(run: Any) -> None:
    """Assert the rules for every run that has ended."""
    assert_one_terminal_event_last(run.events)
    assert fold(run.events) == run.state
    assert run.pending == []
    assert running_tasks() == set()
    assert FAULTS == []
    ended = list(states(run.state))
    assert all(state.over for state in ended)
    # What a nested agent is told arrives message by message: until it is complete, a call may stand without its result.
    told = [state for state in ended if not state.queues["input"]]
    for messages in (*(state.messages for state in told), *([run.messages] if told == ended else [])):
        assert provider_faults([message for message in messages if message.role in PROVIDER_ROLES]) == []
    ends = [(event.path, event.seq) for event in run.events if event.type == "run_end"]
    starts = [(event.path, event.seq) for event in run.events if event.type == "run_start"]
    assert sorted(path for path, _ in ends) == sorted(path for path, _ in starts)
    results = [(event.path, event.call_id) for event in run.events if isinstance(event, CallEnd)]
    assert len(results) == len(set(results))


def outcome(run: Any) -> Any:
    """Return the result of a run, without what depends on the effects in flight when it was interrupted.

    The message of a detached call depends on whether the call had ended before the next request.
    """
    detached = {event.call_id for event in run.events if event.type == "call_start" and event.detached}
    said = [m.plain for m in run.state.messages if m.role in PROVIDER_ROLES]
    told = [{**m, "content": "", "is_error": None} if m.get("tool_call_id") in detached else m for m in said]
    return run.stop_reason, run.output, told


def ended(events: list[Event]) -> dict[tuple[str, str, int], int]:
    """Return how often each call with a result was started, by its loop, its id, and the position of its result."""
    found: dict[tuple[str, str, int], int] = {}
    for event in events:
        if isinstance(event, CallEnd):
            starts = [
                e
                for e in events[: event.seq]
                if e.type == "call_start" and (e.path, e.call_id) == (event.path, event.call_id)  # type: ignore[attr-defined]
            ]
            found[event.path, event.call_id, event.seq] = len(starts)
    return found


@every_world
async def test_every_design_runs_to_its_end(world: Callable[[], Any]) -> None:
    run = await drive(world().start("go"))
    assert run.stop_reason in ("completed", "max_iterations", "escalated")
    check(run)


@every_world
async def test_the_state_is_the_fold_of_the_events_after_every_event(world: Callable[[], Any]) -> None:
    run = world().start("go")
    seen: list[dict[str, Any]] = []
    run.watch(lambda event: event.seq is not None and seen.append(run.state.dump()))
    await drive(run)
    for position, dumped in enumerate(seen, 1):
        assert fold(run.events[:position]).dump() == dumped


@every_world
async def test_a_run_restored_at_every_event_has_the_same_result(world: Callable[[], Any], some_of: Some) -> None:
    whole = await drive(world().start("go"))
    for position in some_of(range(1, len(whole.events))):
        taken = Snapshot.from_json(Snapshot.of(whole.events[:position]).to_json())
        again = restore(taken, world())
        in_flight = any(state.model == "asked" or state.open for state in states(again.state) if not state.over)
        await drive(
            again,
            lambda run, item: run.answer(item, _result_of(whole, item)) if item.unknown else approve(run, item),
        )
        check(again)
        assert outcome(again) == outcome(whole), f"from event {position}"
        kept = ended(list(taken.events))
        assert {key: count for key, count in ended(again.events).items() if key in kept} == kept
        if not in_flight and "execution" not in world.__name__:  # its calls end in any order, and its data has dates
            assert by_loop(again.events) == by_loop(whole.events)


@pytest.fixture(scope="module")
def fresh_process() -> Iterator[Warm]:
    with warm("tests.fresh_process") as process:
        yield process


@pytest.mark.slow
@every_world
async def test_a_run_restored_in_another_process_has_the_same_result(
    world: Callable[[], Any], some_of: Some, fresh_process: Warm, tmp_path: Path
) -> None:
    whole = await drive(world().start("go"))
    results = {f"{e.path}/{e.call_id}": e.result for e in whole.events if isinstance(e, CallEnd)}
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps(results))
    for position in some_of(range(1, len(whole.events))):
        saved = Snapshot.of(whole.events[:position]).save(tmp_path / f"{position}.json")
        fresh_process.tell(world.__name__, saved, answers)
        said = json.loads(fresh_process.hear())
        assert (said["reason"], said["output"]) == (whole.stop_reason, whole.output), f"from event {position}"
        state = fold(whole.events[:position])
        if not any(one.model == "asked" or one.open for one in states(state) if not one.over):
            assert said["events"] == len(whole.events)


def _result_of(whole: Any, item: Any) -> Any:
    """Return the result of a call in the run that was not interrupted, as a person would look it up."""
    call_id = item.id.rpartition("/")[2]
    found = [e for e in whole.events if e.type == "call_end" and e.path == item.path and e.call_id == call_id]
    return found[0].result


@every_world
async def test_cancel_at_any_event_ends_everything_and_the_run_can_be_restored(
    world: Callable[[], Any],
    some_of: Some,
) -> None:
    whole = await drive(world().start("go"))
    for position in some_of(range(len(whole.events) - 1)):
        run = world().start("go")
        run.watch(lambda event: event.seq == position and run.cancel("enough"))  # noqa: B023
        with suppress(RunCancelled):
            await drive(run)
        assert run.stop_reason == "cancelled", f"at event {position}"
        check(run)
        again = restore(Snapshot.from_json(run.snapshot().to_json()), world())
        await drive(again)
        check(again)


@every_world
async def test_pausing_at_any_event_does_not_change_the_result(world: Callable[[], Any], some_of: Some) -> None:
    whole = await drive(world().start("go"))
    for position in some_of(range(len(whole.events) - 1)):
        run = world().start("go")
        run.watch(lambda event: event.seq == position and run.pause())  # noqa: B023
        await drive(run)
        check(run)
        assert outcome(run) == outcome(whole), f"at event {position}"


@every_world
async def test_steering_at_any_event_leaves_valid_histories(world: Callable[[], Any], some_of: Some) -> None:
    whole = await drive(world().start("go"))
    for position in some_of(range(len(whole.events) - 1)):
        run = world().start("go")
        run.watch(lambda event: event.seq == position and run.steer("look here"))  # noqa: B023
        await drive(run)
        check(run)


@every_world
async def test_rejecting_every_call_leaves_valid_histories(world: Callable[[], Any]) -> None:
    run = await drive(world().start("go"), reject)
    check(run)


@every_world
async def test_closing_a_consumer_at_any_event_ends_every_task(world: Callable[[], Any], some_of: Some) -> None:
    whole = await drive(world().start("go", approve=True))
    for position in some_of(range(len(whole.events))):
        run = world().start("go", approve=True)
        async with asyncio.timeout(60), aclosing(aiter(run)) as events:
            with suppress(RunFailed):
                async for event in events:
                    if event.seq == position:
                        break
        assert running_tasks() == set()
        check(run)


@every_world
async def test_a_pulled_run_has_the_same_events_as_a_played_one(world: Callable[[], Any]) -> None:
    played = await drive(world().start("go", approve=True))
    pulled = world().start("go", approve=True)
    seen = facts(await collect(pulled))
    assert seen == pulled.events
    assert outcome(pulled) == outcome(played)
    check(pulled)


@every_world
@pytest.mark.parametrize("unit", ["event", "call", "turn", "phase"])
async def test_a_stepped_run_has_the_same_events_as_a_played_one(world: Callable[[], Any], unit: Any) -> None:
    played = await drive(world().start("go"))
    run = world().start("go")
    events: list[Event] = []
    async with asyncio.timeout(60):
        while not run.state.over or len(events) < len(run.events):
            events += await run.step(unit)
            for item in run.pending:
                approve(run, item)
    assert events == run.events
    assert outcome(run) == outcome(played)
    check(run)


@every_world
async def test_two_runs_of_one_loop_have_the_same_events(world: Callable[[], Any]) -> None:
    one, two = [await drive(world().start("go", approve=True)) for _ in range(2)]
    assert outcome(one) == outcome(two)
    assert one.usage == two.usage
