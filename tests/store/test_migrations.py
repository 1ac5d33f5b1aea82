"""Stores and recordings of every version so far still open; newer ones are refused.

The fixtures were written by the agentnb of that version, and are never written again.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from agentnb import Snapshot, Store, replay
from agentnb.analysis import calls, diff, timeline
from agentnb.core.errors import RecordingMissing, StorageError, VersionMismatch
from agentnb.core.events import Event
from agentnb.store import planned_migrations
from agentnb.store.schema import MIGRATIONS, STORE_VERSION
from tests.analysis.recordings import researcher
from tests.store.permissions import read_only

FIXTURES = Path(__file__).parent / "fixtures"
STORES = sorted(FIXTURES.glob("store_v*.db"))
SNAPSHOTS = sorted(FIXTURES.glob("snapshot_v*.agentnb.json"))
EXPORTS = sorted(FIXTURES.glob("export_v*.jsonl"))


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, open_folder: Path) -> Path:
    return Path(shutil.copy(request.param, open_folder / "runs.db"))


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw, raw:
        ((found,),) = raw.execute("PRAGMA user_version")
    raw.close()
    return int(found)


def version_of(data: bytes) -> int:
    return int.from_bytes(data[60:64], "big")


def recording(what: Path, tmp_path: Path) -> Snapshot:
    """The run that every fixture has."""
    if what in SNAPSHOTS:
        return Snapshot.load(what)
    store = Store(shutil.copy(what, tmp_path / "old.db") if what in STORES else tmp_path / "new.db")
    if what in EXPORTS:
        store.import_(what)
    found = store.load("nile")
    store.close()
    return found


def test_there_is_a_store_of_every_version() -> None:
    assert [version(path) for path in STORES] == [migration.to for migration in MIGRATIONS]


def test_an_old_store_opens_and_its_runs_replay(old: Path) -> None:
    store = Store(old)
    assert [info.name for info in store.runs()] == ["talk", "nile"]
    assert replay(store.load("nile")).result() == "It is done."
    assert store.load("halfway").position < store.load("nile").position
    store.tag("nile", "old")
    assert store.find(tag="old", tool="write")[0].name == "nile"
    store.close()
    assert version(old) == STORE_VERSION


@pytest.mark.parametrize("folder_too", [False, True], ids=["file", "folder"])
def test_an_old_store_that_may_not_be_written_is_read_and_not_touched(old: Path, folder_too: bool) -> None:
    before = old.read_bytes()
    with read_only(old, folder_too=folder_too):
        store = Store(old)
        assert replay(store.load("nile")).result() == "It is done."
        assert [info.name for info in store.find(tool="write")] == ["nile"]
        assert planned_migrations(old) == [f"{step.to}: {step.what}" for step in MIGRATIONS[version_of(before) :]]
        with pytest.raises(StorageError, match="readonly database"):
            store.tag("nile", "old")
        store.close()
    assert old.read_bytes() == before


@pytest.mark.parametrize("what", [*STORES, *SNAPSHOTS, *EXPORTS], ids=lambda path: path.stem)
def test_an_old_recording_is_good_for_all_that_a_new_one_is(what: Path, tmp_path: Path) -> None:
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


def test_what_an_older_agentnb_writes_that_still_has_the_store_open_is_read(old: Path) -> None:
    Store(old).close()
    with closing(sqlite3.connect(old)) as raw, raw:
        raw.execute(
            "INSERT INTO runs (number, id, name, loop, created) SELECT 9, 'x', 'later', loop, 2e9 FROM runs LIMIT 1"
        )
        rows = "SELECT key + 8 * 4294967296, body, NULL FROM events WHERE key / 4294967296 = 1"
        raw.execute(f"INSERT INTO events (key, body, checksum) {rows}")
    raw.close()
    store = Store(old)
    later = store.runs()[0]
    assert (later.name, later.damaged) == ("later", False)
    assert replay(store.load("later")).result() == "It is done."
    store.close()


def test_what_would_be_changed_is_told_and_not_done(old: Path) -> None:
    before = version(old)
    planned = planned_migrations(old)
    assert [int(step.split(":")[0]) for step in planned] == list(range(before + 1, STORE_VERSION + 1))
    assert version(old) == before
    Store(old).close()
    assert planned_migrations(old) == []


def test_a_migration_is_done_whole_or_not_at_all(old: Path) -> None:
    store = Store(old)
    with pytest.raises(StorageError):
        store._database.migrate(
            ["CREATE TABLE added (number {integer})", "NONSENSE"], STORE_VERSION + 1, lambda _: None
        )
    assert version(old) == STORE_VERSION
    assert store._database.query("SELECT name FROM sqlite_master WHERE name = 'added'") == []
    store.close()


def test_a_store_of_a_newer_agentnb_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Store(path).close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(f"PRAGMA user_version = {STORE_VERSION + 1}")
    raw.close()
    for look in (Store, planned_migrations):
        with pytest.raises(VersionMismatch, match=f"version {STORE_VERSION + 1}; this agentnb reads up to"):
            look(path)
    assert version(path) == STORE_VERSION + 1


def test_where_there_is_no_store_nothing_is_planned(tmp_path: Path) -> None:
    with pytest.raises(RecordingMissing):
        planned_migrations(tmp_path / "nothing.db")
    (tmp_path / "words.db").write_text("no database at all, but some words, again and again" * 50)
    with pytest.raises(StorageError):
        planned_migrations(tmp_path / "words.db")


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_an_old_snapshot_opens_and_replays(path: Path) -> None:
    snapshot = Snapshot.load(path)
    assert replay(snapshot).result() == "It is done."


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_an_old_export_is_taken_in(path: Path, store: Store) -> None:
    store.import_(path)
    assert replay(store.load("nile")).result() == "It is done."
    assert store.find(tag="good")[0].name == "nile"
