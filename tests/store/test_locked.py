"""A store that another process has locked blocks no event loop: runs wait for it, and people do not."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agentnb import RunCancelled, RunFailed, SessionLoop, Snapshot, Store, tool
from agentnb.errors import StorageError
from agentnb.run import tasks
from agentnb.store.sqlite import SqliteDatabase
from agentnb.testing import ScriptedLLM, call
from tests.worlds import until

HELD = 1.0
"""Seconds that a lock is held."""
STANDS_STILL = 0.7
"""Seconds for which an event loop may be blocked on a busy machine; less than the time for which a lock is held."""


@contextmanager
def locked(place: str) -> Iterator[None]:
    """Lock the store against writes."""
    if place.startswith("postgres"):
        with psycopg.connect(place) as connection:
            connection.execute("LOCK TABLE agentnb.events, agentnb.runs, agentnb.snapshots IN EXCLUSIVE MODE")
            yield
            connection.rollback()
        return
    connection = sqlite3.connect(place, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


class Heart:
    """Beats in the event loop, and keeps the longest time between two beats."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def beat(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now


async def stood_still(place: str, work: Callable[[], Any]) -> float:
    """Return the seconds for which the event loop was blocked while a lock was held during the work."""
    heart = Heart()
    beating = asyncio.create_task(heart.beat())
    with locked(place):
        working = asyncio.ensure_future(work())
        await asyncio.sleep(HELD)
    await working
    beating.cancel()
    return heart.longest


def counted(*, approve: bool = False) -> tuple[Any, list[int]]:
    ran: list[int] = []

    @tool(approve=approve)
    async def count(n: int) -> int:
        ran.append(n)
        return n

    return count, ran


def loop_of(function: Any) -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("count", {"n": 1}, id="c")], "done"]), [function])


async def test_a_run_waits_for_a_locked_store_without_blocking_the_event_loop(place: str, store: Store) -> None:
    count, ran = counted()
    run = loop_of(count).start("go", store=store)

    async def work() -> None:
        assert await run == "done"

    assert await stood_still(place, work) < STANDS_STILL
    assert ran == [1]
    assert list(store.load(run.id).events) == list(run.events)


async def test_a_run_starts_while_the_store_is_locked(place: str, store: Store) -> None:
    count, _ = counted()

    async def work() -> None:
        run = loop_of(count).start("go", store=store, name="late")
        assert await run == "done"

    assert await stood_still(place, work) < STANDS_STILL
    assert store.load("late").state.output == "done"


async def test_no_tool_starts_before_its_call_start_is_on_disk(place: str, store: Store) -> None:
    count, ran = counted()
    run = loop_of(count).start("go", store=store)
    with locked(place):
        run.play()
        await until(lambda: any(event.type == "call_start" for event in run.events))
        await asyncio.sleep(0.2)
        assert ran == []
    assert await run == "done"
    assert ran == [1]


async def test_a_decision_does_not_wait_for_the_lock_and_is_written_later(place: str, store: Store) -> None:
    count, ran = counted(approve=True)
    run = loop_of(count).start("go", store=store)
    run.play()
    await until(lambda: bool(run.pending))
    with locked(place):
        began = time.monotonic()
        run.approve("c")
        run.steer("and quickly")
        run.snapshot("decided")
        took = time.monotonic() - began
        await asyncio.sleep(0.2)
        assert ran == []
    assert took < STANDS_STILL
    assert await run == "done"
    assert store.load("decided").events[-1].type == "queued"
    assert list(store.load(run.id).events) == list(run.events)


async def test_a_cancellation_does_not_wait_for_the_lock(place: str, store: Store) -> None:
    count, ran = counted(approve=True)
    run = loop_of(count).start("go", store=store)
    run.play()
    await until(lambda: bool(run.pending))
    with locked(place):
        began = time.monotonic()
        run.cancel()
        assert run.stop_reason == "cancelled"
        assert time.monotonic() - began < STANDS_STILL
    with pytest.raises(RunCancelled):
        await run
    assert ran == []
    assert store.load(run.id).state.stop_reason == "cancelled"


def test_a_decision_about_a_run_without_a_driver_is_written_later(place: str, store: Store) -> None:
    count, _ = counted(approve=True)
    run = loop_of(count).start("go", store=store)
    asyncio.run(run.step("turn"))
    with locked(place):
        run.approve("c")
        time.sleep(0.1)
    for _ in range(100):
        if store.load(run.id).position == len(run.events):
            break
        time.sleep(0.05)
    assert list(store.load(run.id).events) == list(run.events)


async def test_two_runs_of_one_store_continue_after_the_lock(place: str, store: Store) -> None:
    (one, ran), (two, also) = counted(), counted()
    runs = [loop_of(one).start("go", store=store), loop_of(two).start("go", store=store)]

    async def work() -> None:
        assert await asyncio.gather(*runs) == ["done", "done"]

    assert await stood_still(place, work) < STANDS_STILL
    assert (ran, also) == ([1], [1])


@pytest.mark.parametrize("drive", ["await", "pull", "play", "step", "cancel"])
async def test_a_run_ends_while_its_store_is_locked_and_a_warning_names_the_unwritten_events(
    place: str, store: Store, drive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "CLOSE_SECONDS", 0.1)
    count, _ = counted(approve=True)
    run = (loop_of(count) if drive == "cancel" else SessionLoop(ScriptedLLM(["done"]))).start("go", store=store)

    async def comes_back() -> None:
        if drive == "cancel":
            run.play()
            await until(lambda: bool(run.pending))
            run.cancel()
        elif drive == "pull":
            assert [event.type async for event in run][-1] == "run_end"
        elif drive == "play":
            run.play()
        elif drive == "step":
            await run.step("turn")
        with suppress(RunCancelled):
            await asyncio.wait_for(run, 5)

    words = "events of the run .* are not written: .* They are written when the lock is gone"
    with locked(place), pytest.warns(RuntimeWarning, match=words):
        await comes_back()
    await until(lambda: [(row.id, row.events) for row in store.runs()] == [(run.id, len(run.events))])
    assert list(store.load(run.id).events) == list(run.events)


AT_ITS_END = """
import sqlite3, sys, threading
import agentnb
from agentnb.run import tasks
from agentnb.testing import ScriptedLLM

tasks.CLOSE_SECONDS = 0.0
store = agentnb.Store(sys.argv[1])
lock = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)
lock.execute("BEGIN IMMEDIATE")
print(agentnb.SessionLoop(ScriptedLLM(["done"])).start("go", store=store, name="last").result())
threading.Thread(target=lambda: threading.main_thread().join() or lock.execute("ROLLBACK")).start()
"""


def test_events_that_wait_for_a_lock_are_written_before_the_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    command = [sys.executable, "-W", "ignore", "-c", AT_ITS_END, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("done\n", "")
    with closing(Store(path)) as store:
        assert store.load("last").state.output == "done"


class Failing:
    """Makes writes to a store in a file fail: `times` of them, after the first `after`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, times: float) -> None:
        self.after, self.times = after, times
        write = SqliteDatabase.append

        def append(database: SqliteDatabase, rows: Any) -> None:
            self.after -= 1
            if self.after < 0 and self.times > 0:
                self.times -= 1
                raise StorageError("the disk is full")
            write(database, rows)

        monkeypatch.setattr(SqliteDatabase, "append", append)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("after", range(2))
async def test_a_write_that_fails_once_is_repeated(store: Store, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    Failing(monkeypatch, after, times=1)
    count, ran = counted()
    run = loop_of(count).start("go", store=store)
    assert await run == "done"
    assert ran == [1]
    assert list(store.load(run.id).events) == list(run.events)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("after", range(2))
async def test_a_store_that_keeps_failing_ends_the_run_with_an_error_and_no_event_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    failing = Failing(monkeypatch, after, times=float("inf"))
    count, ran = counted()
    run = loop_of(count).start("go", store=store, name="full")
    with pytest.raises(RunFailed, match="the disk is full"):
        await asyncio.wait_for(run, 10)
    assert len(ran) <= after  # no tool has run whose intent is not on disk
    whole = Snapshot.from_json(run.snapshot().to_json())
    assert list(whole.events) == list(run.events)

    failing.times = 0  # there is room again
    run.snapshot("kept")
    assert list(store.load("kept").events) == list(run.events)
