"""A store that is open several times, in one process or in several, loses no event and reports no false damage."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from agentnb import Snapshot, Store
from agentnb.core.errors import RecordingCorrupt, StorageError, UsageError
from agentnb.notebook import runs
from agentnb.store import is_store, salvage, sqlite
from tests.analysis.recordings import researcher

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    with closing(Store(tmp_path / "runs.db")) as store:
        await researcher().start("go", name="first", store=store, approve=True)
        yield store


RUNS_OF_A_PROCESS = """
import asyncio, sys
import agentnb
from tests.analysis.recordings import researcher

store = agentnb.Store(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()  # both begin at once
async def work():
    for number in range(20):
        await researcher().start("go", name=f"{sys.argv[2]}-{number}", store=store, approve=True)
asyncio.run(work())
"""


def three_processes_write_at_once(path: Path) -> None:
    command = [sys.executable, "-c", RUNS_OF_A_PROCESS, str(path)]
    writers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for name in "abc"
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert [writer.communicate(timeout=60) and writer.returncode for writer in writers] == [0, 0, 0]


async def test_concurrent_writes_of_several_processes_lose_and_damage_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await asyncio.to_thread(three_processes_write_at_once, path)
    await (alone := researcher().start("go", approve=True))
    with closing(Store(path)) as store:
        assert {run.name for run in store.runs()} == {f"{name}-{number}" for name in "abc" for number in range(20)}
        for run in store.runs():  # concurrent calls end in any order
            assert sorted(event.type for event in store.events(run.id)) == sorted(event.type for event in alone.events)
            assert [event.seq for event in store.events(run.id)] == list(range(len(alone.events)))
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def another_process_opens_and_closes(path: Path) -> None:
    script = f"import sqlite3; c = sqlite3.connect({str(path)!r}); print(c.execute('SELECT name FROM runs').fetchall())"
    subprocess.run([sys.executable, "-c", f"{script}; c.close()"], check=True, timeout=60, stdout=subprocess.DEVNULL)


LOOKS: dict[str, Callable[[Store, Path], object]] = {
    "open it again": lambda store, path: Store(path).close(),
    "ask whether it is one": lambda store, path: is_store(path),
    "list it": lambda store, path: runs(path),
    "salvage it": lambda store, path: salvage(path, path.with_name("saved.db")),
    "take it for a snapshot": lambda store, path: Snapshot.load(path),
    "take it for an export": lambda store, path: store.import_(path),
    "export into it": lambda store, path: store.export(path),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_reading_the_file_of_an_open_store_does_not_release_its_locks(
    store: Store, look: Callable[[Store, Path], object]
) -> None:
    with suppress(UsageError, RecordingCorrupt):
        look(store, store.path)
    another_process_opens_and_closes(store.path)
    await researcher().start("go", name="second", store=store, approve=True)
    with closing(sqlite3.connect(store.path)) as other:
        assert other.execute("SELECT name FROM runs").fetchall() == [("first",), ("second",)]
    other.close()


def test_a_write_after_the_log_was_deleted_raises(store: Store, tmp_path: Path) -> None:
    store.path.read_bytes()  # by code that does not know that this releases the locks of SQLite
    another_process_opens_and_closes(store.path)
    store.path.with_name("runs.db-wal").unlink(missing_ok=True)  # as SQLite does, but for its newest releases
    with pytest.raises(StorageError, match=r"its log runs\.db-wal was moved, deleted or replaced"):
        store.tag("first", "good")
    assert store.export(tmp_path / "kept.jsonl") == 27


async def test_a_store_works_after_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(Store("runs.db")) as store:
        monkeypatch.chdir("/")
        await researcher().start("go", name="first", store=store, approve=True)
        assert ("first", "runs.db") in [(row.name, row.store) for row in runs()]


async def test_a_store_that_is_opened_by_a_link_is_the_same_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(store.path)
    with closing(Store(link)) as linked:
        await researcher().start("go", name="second", store=linked, approve=True)
        await researcher().start("go", name="third", store=store, approve=True)
        assert [info.name for info in linked.runs()] == ["third", "second", "first"]
    assert store.runs() != []
    assert list(link.parent.iterdir()) == [link]


class Interrupted:
    """A connection whose user loses patience while a statement waits: before it is done, or when it is."""

    def __init__(self, connection: sqlite3.Connection, statement: str, *, done: bool = True) -> None:
        self._connection = connection
        self._statement = statement
        self._done = done

    def execute(self, sql: str, *values: Any) -> Any:
        if not sql.startswith(self._statement):
            return self._connection.execute(sql, *values)
        if self._done:
            self._connection.execute(sql, *values)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_an_interrupt_while_a_write_waits_leaves_no_open_transaction(store: Store) -> None:
    database: Any = store._database
    connection = database._connection
    database._connection = Interrupted(connection, "BEGIN")
    with pytest.raises(KeyboardInterrupt):
        store.tag("first", "interrupted")
    database._connection = connection
    store.tag("first", "good")
    with closing(sqlite3.connect(store.path, timeout=0.1)) as other, other:
        assert other.execute("SELECT tag FROM tags").fetchall() == [("good",)]
        other.execute("BEGIN IMMEDIATE")
    other.close()


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_an_interrupt_while_events_are_written_leaves_no_gap(store: Store, done: bool) -> None:
    run = researcher().start("go", name="second", store=store, approve=True)
    await run.step("turn")
    database: Any = store._database
    connection = database._connection
    database._connection = Interrupted(connection, "INSERT INTO events", done=done)
    with pytest.raises(KeyboardInterrupt):
        run.steer("and then?")
    database._connection = connection
    await run
    assert list(store.load("second").events) == list(run.events)


# -- opened at the same moment ---------------------------------------------------------------------------------------


def test_a_new_store_waits_while_another_process_creates_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite.time, "sleep", lambda seconds: other.execute("ROLLBACK"))
        with closing(Store(tmp_path / "runs.db")) as store:
            assert store.runs() == []
    other.close()
