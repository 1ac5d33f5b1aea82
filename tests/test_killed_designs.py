"""Promise 2 for every design: nothing twice, nothing lost, if a process is killed at any event of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentnb import Store, restore
from agentnb.core.errors import StorageError
from agentnb.core.events import CallEnd, CallStart
from tests.killed_designs import DESIGNS, make_loop
from tests.warm import Warm, warm
from tests.worlds import PROVIDER_ROLES, assert_folds, assert_one_terminal_event_last, provider_faults

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Warm]:
    with warm("tests.killed_designs") as process:
        yield process


def kill_at(server: Warm, design: str, database: Path, effects: Path, event: int) -> bool:
    """Run a design in a process that is killed at event `event`; return False if the run ended before that event."""
    server.tell(design, database, effects, event)
    return server.hear() == "killed"


def done(effects: Path) -> list[str]:
    return effects.read_text().split() if effects.exists() else []


async def go_on(design: str, database: Path, effects: Path) -> tuple[str, list[str], int]:
    """Finish the run of the killed process; return its output, its effects, and the number of unknown outcomes."""
    store = Store(database)
    try:
        taken = store.load("run")
    except StorageError:  # killed before the first event was on disk: no effect can have happened
        assert done(effects) == []
        run = make_loop(design, effects).start("go", name="run", store=store)
    else:
        run = restore(taken, make_loop(design, effects), store=store)
    asked = 0
    run.play()
    async with asyncio.timeout(60):
        while not run.state.over:
            for item in run.pending:
                assert item.unknown
                asked += 1
                loop = item.path.rpartition("/")[2] or run.loop.name
                if f"{loop}:{item.arguments['id']}" in done(effects):
                    run.answer(item, f"did {item.arguments['id']}")
                else:
                    run.approve(item)
            await asyncio.sleep(0)
    await run
    assert_one_terminal_event_last(run.events)
    assert_folds(run)
    assert provider_faults([m for m in run.messages if m.role in PROVIDER_ROLES]) == []
    ends = [(event.path, event.call_id) for event in run.events if isinstance(event, CallEnd)]
    assert len(ends) == len(set(ends))
    assert {(e.path, e.call_id) for e in run.events if isinstance(e, CallStart)} == set(ends)
    assert list(store.load("run").events) == run.events
    store.close()
    return str(run.output), sorted(done(effects)), asked


@pytest.mark.timeout(240)
@pytest.mark.parametrize("design", DESIGNS)
def test_a_process_killed_at_any_event_loses_nothing_and_repeats_nothing(
    design: str, server: Warm, tmp_path: Path
) -> None:
    whole = asyncio.run(go_on(design, tmp_path / "whole.db", tmp_path / "whole.txt"))
    assert len(whole[1]) == len(set(whole[1])) > 0
    assert whole[2] == 0
    event, asked = 0, 0
    while True:
        database, effects = tmp_path / f"{event}.db", tmp_path / f"{event}.txt"
        if not kill_at(server, design, database, effects, event):
            break
        output, did, unknown = asyncio.run(go_on(design, database, effects))
        assert (output, did) == whole[:2], f"killed at event {event}"
        asked += unknown
        event += 1
    assert event > 15
    assert asked > 0  # some processes were killed during calls
