"""The state at a position is the fold of the events before it, wherever it is taken from."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb.core.evolve import evolve, fold
from agentnb.run import checkpoints
from agentnb.run.checkpoints import Checkpoints
from tests.designs import WORLDS

every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


@pytest.fixture(autouse=True)
def close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", 4)


async def run_of(world: Any) -> Any:
    run = world().start("go", approve=True)
    await run
    return run


@every_world
async def test_the_state_at_a_position_is_the_fold_of_the_events_before_it(world: Any) -> None:
    run = await run_of(world)
    folded = [fold(run.events[:position]) for position in range(len(run.events) + 1)]
    for kept in (run._checkpoints, Checkpoints()):
        for position in [*reversed(range(len(folded))), *range(len(folded))]:
            assert kept.state_at(run.events, position) == folded[position], position
    assert run.state == folded[-1]


@every_world
async def test_a_state_is_its_own(world: Any) -> None:
    run = await run_of(world)
    kept, length = Checkpoints(), len(run.events)
    for position in range(0, length, 3):
        state = kept.state_at(run.events, position)
        for event in run.events[position:]:
            evolve(state, event)
        assert state == run.state
        assert kept.state_at(run.events, position) == fold(run.events[:position])


@every_world
async def test_a_fork_begins_with_the_fold_of_its_events(world: Any) -> None:
    run = await run_of(world)
    for position in range(1, len(run.events)):
        state = run._checkpoints.state_at(run.events, position, inherited_by="fork")
        marked = [event.model_copy(update={"run_id": "fork", "inherited": True}) for event in run.events[:position]]
        assert state == fold(marked)


async def test_the_number_of_kept_states_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", 1)
    monkeypatch.setattr(checkpoints, "MOST", 4)
    run = await run_of(WORLDS["session"])
    assert 2 <= len(run._checkpoints._spaced) <= 4
    assert run._checkpoints.state_at(run.events, 3) == fold(run.events[:3])
