"""A fork shares the rows of its origin, and is read as if it had rows of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentnb import Run, SessionLoop, Snapshot, Store, UsageError, restore
from agentnb.core.errors import RecordingCorrupt
from agentnb.store import RunInfo, salvage
from agentnb.testing import ScriptedLLM
from tests.analysis.recordings import researcher


@pytest.fixture
async def origin(store: Store) -> Run:
    run = researcher().start("go", name="origin", store=store, approve=True)
    await run
    return run


def rows(store: Store) -> int:
    """Return the number of events that are stored."""
    ((count,),) = store._database.query("SELECT count(*) FROM events")
    return int(count)


def info(store: Store, name: str) -> RunInfo:
    (found,) = store.find(name=name)
    return found


def other() -> Any:
    return researcher(answer="Otherwise.")


async def test_a_fork_stores_only_its_own_events(origin: Run, store: Store) -> None:
    before = rows(store)
    fork = origin.fork(11, loop=other(), name="fork", approve=True)
    assert rows(store) == before + len(fork.events) - 11
    assert list(store.load(fork.id).events) == list(fork.events)
    await fork
    assert list(store.load("fork").events) == list(fork.events)
    assert store.position(fork.id) == len(fork.events)
    assert rows(store) == before + len(fork.events) - 11
    assert list(store.load("origin").events) == list(origin.events)


@pytest.mark.parametrize("start", [0, 1, 5, 11, 12, 13])
async def test_the_events_of_a_fork_are_read_from_any_position(origin: Run, store: Store, start: int) -> None:
    fork = origin.fork(11, loop=other(), approve=True)
    await fork
    assert store.events(fork.id, start) == list(fork.events[start:])


async def test_a_fork_of_a_fork_is_read_with_the_events_of_both_origins(origin: Run, store: Store) -> None:
    first = origin.fork(11, loop=other(), name="first", approve=True)
    await first
    for at in (5, 11, 14, len(first.events) - 2):
        second = first.fork(at, loop=other(), approve=True)
        await second
        assert list(store.load(second.id).events) == list(second.events)


async def test_a_fork_without_further_events_is_listed_with_its_shared_events(origin: Run, store: Store) -> None:
    origin.fork(11, loop=other(), name="fork")
    found = info(store, "fork")
    assert (found.events, found.stop_reason, found.damaged) == (12, None, False)


@pytest.mark.parametrize(
    "change",
    [{"result": "changed"}, {"message": "and then?"}, {"decision": "reject"}, {"limits": {"turns": 9}}, {}],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 4, 10, 11, 14, 20, 26])
async def test_a_fork_at_any_event_is_stored_with_all_its_events(
    origin: Run, store: Store, at: int, change: dict[str, Any]
) -> None:
    try:
        fork = origin.fork(at, loop=other(), approve=True, **change)
    except UsageError:  # no change is possible at this event
        return
    assert list(store.load(fork.id).events) == list(fork.events)
    await fork
    assert list(store.load(fork.id).events) == list(fork.events)


async def test_a_search_finds_a_fork_by_its_shared_events(origin: Run, store: Store) -> None:
    origin.fork(20, loop=other(), name="late")
    origin.fork(2, loop=other(), name="early")
    assert {found.name for found in store.find(tool="read")} == {"origin", "late"}
    assert {found.name for found in store.find(error=True)} == {"origin", "late"}
    cost = sum(getattr(event, "usage", {}).get("cost", 0) for event in origin.events)
    part = sum(getattr(event, "usage", {}).get("cost", 0) for event in origin.events[:21])
    assert {found.name for found in store.find(cost=cost - 1e-9)} == (
        {"origin", "late"} if part == cost else {"origin"}
    )
    assert {found.name for found in store.find(cost=part - 1e-9)} == {"origin", "late"}


async def test_a_fork_in_another_store_has_all_its_events(origin: Run, tmp_path: Path) -> None:
    into = Store(tmp_path / "other.db")
    fork = origin.fork(11, loop=other(), name="fork", store=into, approve=True)
    await fork
    assert rows(into) == len(fork.events)
    assert list(into.load("fork").events) == list(fork.events)
    into.close()


async def test_a_fork_does_not_share_events_with_another_continuation_of_its_origin(
    store: Store, tmp_path: Path
) -> None:
    def loop() -> SessionLoop:
        return SessionLoop(ScriptedLLM(["one", "two"]))

    run = loop().start("go", store=store)
    await run.step()
    past = run.snapshot()
    await run
    elsewhere = restore(past, loop())
    await elsewhere
    at = len(past.events)
    fork = elsewhere.fork(at, name="fork", store=store)
    assert list(store.load("fork").events) == list(fork.events)


async def test_a_restored_fork_continues_in_its_store(
    origin: Run, store: Store, place: str, open_store: Callable[[str], Store]
) -> None:
    origin.fork(11, loop=other(), name="fork")
    again = open_store(place)
    run = restore(again.load("fork"), other(), store=again, approve=True)
    await run
    assert list(store.load("fork").events) == list(run.events)


async def test_an_imported_fork_shares_rows_again(origin: Run, store: Store, tmp_path: Path) -> None:
    fork = origin.fork(11, loop=other(), name="fork", approve=True)
    await fork
    store.export(tmp_path / "runs.jsonl")
    into = Store(tmp_path / "other.db")
    into.import_(tmp_path / "runs.jsonl")
    assert rows(into) == rows(store)
    assert into.runs() == store.runs()
    for name in ("origin", "fork"):
        assert into.load(name) == store.load(name)
    into.close()


async def test_a_damaged_event_is_named_in_each_run_that_shares_it(origin: Run, store: Store, tmp_path: Path) -> None:
    fork = origin.fork(11, loop=other(), name="fork", approve=True)
    await fork
    store._database.write("UPDATE events SET checksum = 1 WHERE key % 4294967296 = 5")
    for run in (origin, fork):
        with pytest.raises(RecordingCorrupt, match=f"event 5 of the run {run.id} is damaged"):
            store.load(run.id)
        assert list(store.load(run.id, salvage=True).events) == list(run.events[:5])
    with pytest.warns(RuntimeWarning, match="5 events of the run are exported"):
        assert store.export(tmp_path / "runs.jsonl", salvage=True) == 10


async def test_a_salvaged_fork_is_named_and_shares_rows_again(
    origin: Run, store: Store, place: str, tmp_path: Path
) -> None:
    fork = origin.fork(11, loop=other(), name="fork", approve=True)
    await fork
    store._database.write("UPDATE events SET checksum = 1 WHERE key % 4294967296 = 5")
    store.close()
    assert salvage(place, tmp_path / "saved.db") == [
        f"origin: {len(origin.events) - 1} events; damaged: 5",
        f"fork: {len(fork.events) - 1} events; damaged: 5",
    ]
    saved = Store(tmp_path / "saved.db")
    assert saved.events(fork.id, 6) == list(fork.events[6:])
    saved.close()


async def test_a_snapshot_of_a_fork_is_loaded_by_its_name(origin: Run, store: Store) -> None:
    fork = origin.fork(11, loop=other(), approve=True)
    saved: Snapshot = fork.snapshot("here")
    await fork
    assert list(store.load("here").events) == list(saved.events)
