"""Promise 2: nothing twice, nothing lost. A process is killed a hundred times, each time at another moment.

The run makes 50 calls, each of which writes its id to a file. The restored run asks about the calls of unknown outcome.
The test answers from the file: it answers a call that has happened, and otherwise lets the call run again.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentnb import Store, restore
from agentnb.core.errors import StorageError
from agentnb.core.events import CallEnd
from tests.sigkill_child import CALLS, make_loop
from tests.warm import Warm, warm
from tests.worlds import assert_folds, assert_one_terminal_event_last, provider_faults, started_calls, types

pytestmark = pytest.mark.slow

KILLS = 50
"""The number of kills for each mode of tool execution."""


@pytest.fixture(scope="module")
def server() -> Iterator[Warm]:
    with warm("tests.sigkill_child") as process:
        yield process


def kill_one(server: Warm, database: Path, effects: Path, how: str, after: int, delay: float) -> None:
    """Let a child run until `after` calls have had their effect, wait `delay` seconds, and kill it."""
    server.tell(database, effects, how)
    child = int(server.hear())
    patience = time.monotonic() + 10
    while after and time.monotonic() < patience and len(_done(effects)) < after:
        time.sleep(0.0002)
    time.sleep(delay)
    with suppress(ProcessLookupError):  # the child had already ended
        os.kill(child, signal.SIGKILL)
    assert server.hear() == "gone"


def _done(effects: Path) -> list[str]:
    return effects.read_text().split() if effects.exists() else []


async def go_on(database: Path, effects: Path, how: str) -> dict[str, int]:
    """Restore and finish the run of the killed process, assert the promise, and return counts of calls."""
    store = Store(database)
    try:
        taken = store.load("run")
    except StorageError:  # killed before the first event was on disk: no effect can have happened
        assert _done(effects) == []
        store.close()
        return {"finished": 0, "unknown": 0}
    finished = {event.call_id for event in taken.events if isinstance(event, CallEnd)}
    unknown = [id for id in started_calls(taken.events) if id not in finished]
    done = _done(effects)
    assert set(done) <= finished | set(unknown), "something ran that was not on disk before"
    assert finished <= set(done)

    loop = make_loop(effects, how, answered=types(taken.events).count("model_end"))
    run = restore(taken, loop, store=store)
    asked: list[str] = []
    run.play()
    while not run.state.over:
        for item in run.pending:
            assert item.unknown
            asked.append(item.id)
            if item.id in done:
                run.answer(item, f"did {item.id}")
            else:
                run.approve(item)
        await asyncio.sleep(0)
    assert await run == "all done"

    assert sorted(asked) == sorted(unknown)
    assert sorted(_done(effects)) == sorted(f"c{n}" for n in range(CALLS))
    assert [m.content for m in run.messages if m.role == "tool"] == [f"did c{n}" for n in range(CALLS)]
    assert provider_faults(run.messages) == []
    assert_one_terminal_event_last(run.events)
    assert_folds(run)
    assert run.id == taken.run_id
    assert list(store.load("run").events) == run.events
    store.close()
    return {"finished": len(finished), "unknown": len(unknown)}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["parallel", "sequential"])
def test_a_process_killed_at_any_moment_loses_nothing_and_repeats_nothing(
    how: str, server: Warm, tmp_path: Path
) -> None:
    chance = random.Random(how)
    found: list[dict[str, int]] = []
    for number in range(KILLS):
        database, effects = tmp_path / f"{number}.db", tmp_path / f"{number}.txt"
        kill_one(server, database, effects, how, chance.randrange(CALLS), chance.uniform(0, 0.003))
        found.append(asyncio.run(go_on(database, effects, how)))
    # Enough processes were killed in the middle of the run, and in the middle of calls.
    assert sum(0 < result["finished"] < CALLS for result in found) > KILLS / 5
    assert sum(result["unknown"] > 0 for result in found) > KILLS / 10
