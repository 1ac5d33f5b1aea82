"""Stores of this version open; stores of other versions are refused with what to do. Old recordings can be read.

Each fixture was written by agentnb of its version. Stores of versions from before the first release are refused.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from agentnb import Snapshot, Store, replay
from agentnb.analysis import calls, diff, timeline
from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, VersionMismatch
from agentnb.core.events import Event
from agentnb.store import is_store, planned_migrations, salvage
from agentnb.store.database import VERSION
from agentnb.store.sqlite import SqliteDatabase
from tests.analysis.recordings import researcher
from tests.store.permissions import read_only
from tests.store.postgres import PostgresServer

FIXTURES = Path(__file__).parent / "fixtures"
STORES = sorted(FIXTURES.glob("store_v*.db"))
SNAPSHOTS = sorted(FIXTURES.glob("snapshot_v*.agentnb.json"))
EXPORTS = sorted(FIXTURES.glob("export_v*.jsonl"))


@pytest.fixture
def kept(open_folder: Path) -> Path:
    """A store that was written earlier."""
    return Path(shutil.copy(FIXTURES / f"store_v{VERSION}.db", open_folder / "runs.db"))


def make(path: Path, *statements: str) -> Path:
    """Make a database by SQL."""
    with closing(sqlite3.connect(path)) as raw, raw:
        for statement in statements:
            raw.execute(statement)
    raw.close()
    return path


def recording(what: Path, tmp_path: Path) -> Snapshot:
    """Return the run that every fixture has."""
    if what in SNAPSHOTS:
        return Snapshot.load(what)
    with closing(Store(shutil.copy(what, tmp_path / "copy.db") if what in STORES else tmp_path / "new.db")) as store:
        if what in EXPORTS:
            store.import_(what)
        return store.load("nile")


# -- this version ----------------------------------------------------------------------------------------------------


def test_an_older_store_of_this_version_opens_and_its_runs_replay(kept: Path) -> None:
    assert planned_migrations(kept) == []
    with closing(Store(kept)) as store:
        assert [info.name for info in store.runs()] == ["talk", "nile"]
        assert replay(store.load("nile")).result() == "It is done."
        assert store.load("halfway").position < store.load("nile").position
        store.tag("nile", "old")
        assert store.find(tag="old", tool="write")[0].name == "nile"


@pytest.mark.parametrize("folder_too", [False, True], ids=["file", "folder"])
def test_a_read_only_store_is_read_and_not_changed(kept: Path, folder_too: bool) -> None:
    before = kept.read_bytes()
    with read_only(kept, folder_too=folder_too), closing(Store(kept)) as store:
        assert replay(store.load("nile")).result() == "It is done."
        assert [info.name for info in store.find(tool="write")] == ["nile"]
        assert planned_migrations(kept) == []
        with pytest.raises(StorageError, match="readonly database"):
            store.tag("nile", "old")
    assert kept.read_bytes() == before


@pytest.mark.parametrize("what", [*STORES, *SNAPSHOTS, *EXPORTS], ids=lambda path: path.stem)
def test_an_old_recording_can_be_replayed_restored_and_forked(what: Path, tmp_path: Path) -> None:
    snapshot = recording(what, tmp_path)
    walk = replay(snapshot)
    assert [step.type for step in walk.step("turn")][:2] == ["run_start", "message"]
    assert walk.to(12).back()[0].seq == 12
    assert set(calls(snapshot)["tool"]) == {"read", "write"}
    assert timeline(snapshot).figure is not None
    assert diff(snapshot, snapshot).first is None
    assert "It is done." in walk.to(26).panel()._repr_mimebundle_()[0]["text/html"]
    fork = walk.fork(at=11, loop=researcher(answer="Otherwise."), approve=True)
    assert fork.events[1:12] == inherited(snapshot.events[1:12], fork.id)
    assert fork.cancel() is not None


def inherited(events: Sequence[Event], run_id: str) -> list[Event]:
    return [event.model_copy(update={"run_id": run_id, "inherited": True}) for event in events]


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_an_old_snapshot_opens_and_replays(path: Path) -> None:
    snapshot = Snapshot.load(path)
    assert replay(snapshot).result() == "It is done."


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_an_old_export_is_imported(path: Path, store: Store) -> None:
    store.import_(path)
    assert replay(store.load("nile")).result() == "It is done."
    assert store.find(tag="good")[0].name == "nile"


# -- a new store -----------------------------------------------------------------------------------------------------


def test_the_tables_of_a_new_store_are_planned_and_not_created(tmp_path: Path) -> None:
    empty = make(tmp_path / "empty.db")
    assert planned_migrations(empty) == ["1: the tables runs, events, snapshots, tags"]
    assert empty.read_bytes() == b""


def test_a_failed_creation_of_the_tables_creates_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = SqliteDatabase.write

    def fail_at_the_index(database: SqliteDatabase, sql: str, *values: object) -> None:
        if sql.startswith("CREATE INDEX"):
            raise StorageError("the disk is full")
        write(database, sql, *values)

    monkeypatch.setattr(SqliteDatabase, "write", fail_at_the_index)
    with pytest.raises(StorageError, match="the disk is full"):
        Store(tmp_path / "runs.db")
    assert planned_migrations(tmp_path / "runs.db") != []
    monkeypatch.undo()
    with closing(Store(tmp_path / "runs.db")) as store:
        assert store.runs() == []


def test_planned_migrations_of_a_missing_store_raise(tmp_path: Path) -> None:
    with pytest.raises(RecordingMissing):
        planned_migrations(tmp_path / "nothing.db")
    (tmp_path / "words.db").write_text("no database at all, but some words, again and again" * 50)
    with pytest.raises(StorageError):
        planned_migrations(tmp_path / "words.db")


# -- other versions --------------------------------------------------------------------------------------------------

OLD_TABLES = (
    "CREATE TABLE runs (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT, loop TEXT NOT NULL,"
    " created REAL NOT NULL)",
    "CREATE TABLE events (key INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE snapshots (number INTEGER PRIMARY KEY, name TEXT NOT NULL, run INTEGER NOT NULL,"
    " position INTEGER NOT NULL, created REAL NOT NULL)",
)
WITH_TAGS = (
    *OLD_TABLES,
    "ALTER TABLE events ADD COLUMN checksum INTEGER",
    "CREATE TABLE tags (run INTEGER NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (run, tag))",
)
OTHERS = {
    "the first before the release": (*OLD_TABLES, "PRAGMA user_version = 1"),
    "the second before the release": (*WITH_TAGS, "PRAGMA user_version = 2"),
    "the third before the release": (*WITH_TAGS, "PRAGMA user_version = 3"),
    "a later one": (*WITH_TAGS, "PRAGMA user_version = 99"),
}


@pytest.mark.parametrize("statements", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("use", [Store, planned_migrations], ids=lambda use: use.__name__)
def test_a_store_of_another_version_is_refused_with_instructions_and_not_changed(
    tmp_path: Path, statements: Sequence[str], use: type[Store]
) -> None:
    path = make(tmp_path / "runs.db", *statements)
    before = path.read_bytes()
    with pytest.raises(VersionMismatch, match=r"Open it with the agentnb that wrote it, call export\(.*import_\("):
        use(path)
    assert is_store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("statements", OTHERS.values(), ids=list(OTHERS))
def test_a_store_of_another_version_is_not_salvaged(tmp_path: Path, statements: Sequence[str]) -> None:
    with pytest.raises(VersionMismatch):
        salvage(make(tmp_path / "runs.db", *statements), tmp_path / "saved.db")
    assert not (tmp_path / "saved.db").exists()


@pytest.mark.parametrize("version", [1, 2, 3, 99])
def test_a_database_with_a_store_of_another_version_is_refused(postgres: PostgresServer, version: int) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for statement in (
            "DROP SCHEMA IF EXISTS agentnb CASCADE",
            "CREATE SCHEMA agentnb",
            "CREATE TABLE agentnb.runs (number BIGINT PRIMARY KEY, id TEXT NOT NULL)",
            "CREATE TABLE agentnb.version (version BIGINT NOT NULL)",
            f"INSERT INTO agentnb.version VALUES ({version})",
        ):
            connection.execute(statement.encode())
        with pytest.raises(VersionMismatch, match="Open it with the agentnb that wrote it"):
            Store(postgres.url)
        connection.execute("DROP SCHEMA agentnb CASCADE")


@pytest.mark.parametrize(
    "change",
    [
        "PRAGMA user_version = 0",
        "ALTER TABLE tags RENAME TO tagz",
        "ALTER TABLE events RENAME COLUMN body TO bodi",
        "DROP TABLE snapshots",
    ],
)
def test_tables_that_do_not_fit_the_version_are_reported_as_damage(kept: Path, change: str) -> None:
    make(kept, change)
    with pytest.raises(RecordingCorrupt, match="its tables are not those of a store of version"):
        Store(kept)
    assert is_store(kept)
