"""Damage to a store is reported with its place, and everything readable is kept."""

from __future__ import annotations

import asyncio
import gc
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentnb import RunFailed, Store
from agentnb.core.errors import RecordingCorrupt, StorageError
from agentnb.notebook import runs
from agentnb.store import database
from agentnb.store.sqlite import PAGE_BYTES
from tests.analysis.recordings import researcher
from tests.store.permissions import read_only

SPAN = 1 << 32


@pytest.fixture
async def path(open_folder: Path) -> Path:
    store = Store(open_folder / "runs.db")
    for name in ("first", "second"):
        await researcher().start("go", name=name, store=store, approve=True)
    store.close()
    return open_folder / "runs.db"


def change(path: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(sql, values)
    raw.close()


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'e', 'f') AS BLOB)", "damaged"),
        ("UPDATE events SET body = substr(body, 1, 20)", "damaged"),
        ("UPDATE events SET body = x'ff00'", "damaged"),
        ("DELETE FROM events", "missing"),
        ("UPDATE events SET key = key - 4294967296 * 2", "missing"),
    ],
)
async def test_a_changed_event_is_named_and_the_events_before_it_are_readable(path: Path, sql: str, what: str) -> None:
    whole = Store(path).load("second").events
    change(path, f"{sql} WHERE key = 2 * ? + 7", SPAN)
    store = Store(path)
    with pytest.raises(RecordingCorrupt, match=f"event 7 of the run .* is {what}"):
        store.load("second")
    assert store.load("second", salvage=True).events == whole[:7]
    assert len(store.load("first").events) == len(whole)
    assert [info.name for info in store.runs()] == ["second", "first"]
    assert len(store.find(tool="write")) == 2
    store.close()


def test_after_the_loss_of_a_page_the_events_before_it_and_all_other_runs_are_exported(
    path: Path, tmp_path: Path
) -> None:
    with closing(Store(path)) as store:
        whole = {info.name: list(store.load(info.id).events) for info in store.runs()}
    data = bytearray(path.read_bytes())
    page = data.index(b'"type":"call_end"', len(data) // 2) // PAGE_BYTES * PAGE_BYTES
    data[page : page + PAGE_BYTES] = b"\xa5" * PAGE_BYTES
    path.write_bytes(data)

    with closing(Store(path)) as store:
        with pytest.raises(RecordingCorrupt):
            store.export(tmp_path / "runs.jsonl")
        with pytest.warns(RuntimeWarning, match=r"is damaged: .* events of the run are exported"):
            store.export(tmp_path / "runs.jsonl", salvage=True)
    with closing(Store(tmp_path / "new.db")) as store:
        store.import_(tmp_path / "runs.jsonl")
        found = {name: list(store.load(name).events) for name in ("first", "second")}
    assert sum(found[name] == events for name, events in whole.items()) == 1
    for name, events in found.items():
        assert events == whole[name][: len(events)]
        assert len(events) > 3


def test_a_run_without_readable_events_is_named_and_the_other_runs_are_exported(path: Path, tmp_path: Path) -> None:
    change(path, "UPDATE events SET checksum = 1 WHERE key = 2 * ?", SPAN)
    with closing(Store(path)) as store:
        with pytest.raises(RecordingCorrupt, match=r"event 0 of the run .* is damaged"):
            store.load("second", salvage=True)
        with pytest.warns(
            RuntimeWarning, match=r"event 0 of the run .* is damaged: .* 0 events of the run are exported"
        ):
            store.export(tmp_path / "runs.jsonl", ["second", "first"], salvage=True)
        first = store.load("first").run_id
    with closing(Store(tmp_path / "new.db")) as store:
        assert store.import_(tmp_path / "runs.jsonl") == [first]


def test_an_event_of_another_run_is_reported_as_damage(path: Path) -> None:
    change(path, "DELETE FROM events WHERE key = 2 * ? + 7", SPAN)
    change(path, "UPDATE events SET key = key + ? WHERE key = ? + 7", SPAN, SPAN)
    with closing(Store(path)) as store, pytest.raises(RecordingCorrupt, match=r"event 7 of the run .* is damaged"):
        store.load("second")


@pytest.mark.parametrize("folder_too", [False, True], ids=["file", "folder"])
async def test_a_read_only_store_can_be_read(path: Path, folder_too: bool) -> None:
    with read_only(path, folder_too=folder_too):
        store = Store(path)
        assert [info.name for info in store.runs()] == ["second", "first"]
        with pytest.raises(StorageError, match=r"readonly database.* To write, make the file and its folder writab"):
            store.tag("first", "good")
        with pytest.raises((StorageError, RunFailed), match="readonly database"):
            await researcher().start("go", name="third", store=store, approve=True)
        store.close()


def test_a_read_only_store_shows_the_events_of_a_killed_process(open_folder: Path) -> None:
    script = f"from tests.store.test_salvage import fill_and_die; fill_and_die({str(open_folder / 'runs.db')!r})"
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    (open_folder / "runs.db-shm").unlink()
    with read_only(open_folder / "runs.db", folder_too=True):
        store = Store(open_folder / "runs.db")
        assert [info.name for info in store.runs()] == ["third", "large", "first"]
        store.close()


def take_away(path: Path, other: Path | None) -> None:
    if other is None:
        path.unlink()
    else:
        shutil.copy(path, other).replace(path)


@pytest.mark.parametrize("what", ["deleted", "replaced"])
async def test_a_write_to_a_moved_deleted_or_replaced_file_raises(path: Path, tmp_path: Path, what: str) -> None:
    store = Store(path)
    run = researcher().start("go", name="third", store=store, approve=True)
    await run.step("turn")
    take_away(path, tmp_path / "other.db" if what == "replaced" else None)
    with pytest.raises(RunFailed, match="it was moved, deleted or replaced after it was opened"):
        await run
    assert store.export(tmp_path / "kept.jsonl", ["third"]) >= 10
    store.close()


async def test_a_file_may_be_deleted_after_the_run_has_ended(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = researcher().start("go", store=store, approve=True)
    output = await run
    store.close()
    store.path.unlink()
    await asyncio.sleep(0)  # the driver writes the remaining events in the next turn of the event loop
    assert await run == output


def test_a_database_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    for name, version in (("history.db", 0), ("cookies.db", 77)):
        with closing(sqlite3.connect(tmp_path / name)) as raw, raw:
            raw.execute("CREATE TABLE runs_of_mine (number INTEGER)")
            raw.execute(f"PRAGMA user_version = {version}")
        raw.close()
        before = (tmp_path / name).read_bytes()
        with pytest.raises(
            StorageError, match=r"is a database, but not a store of agentnb\. Nothing in it was changed"
        ):
            Store(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_a_path_that_is_not_a_store_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "words.db").write_text("words")
    for place, words in (("", "it is a folder"), ("words.db", "not a database"), ("no/runs.db", "there is no folder")):
        with pytest.raises(StorageError, match=words):
            Store(tmp_path / place)


async def test_the_table_of_runs_shows_the_other_runs_of_a_damaged_store(path: Path) -> None:
    change(path, "UPDATE events SET body = x'00' WHERE key = 2 * ? + 7", SPAN)
    gc.collect()  # the status of a run in this process is not read from the store
    table = runs(path)
    assert [row.status for row in table][1] == "completed"
    assert "event 7 of the run" in table[0].status
    assert table[0].status.startswith("damaged: ")


def test_the_table_of_runs_shows_the_other_stores_and_names_the_damaged_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr("agentnb.notebook.runs_table.SHOWN", 10_000)  # also beside many runs of other tests
    shutil.copy(path, "broken.db")
    with open("broken.db", "r+b") as file:
        file.write(b"no store any more")
    table = runs()
    assert {row.name for row in table} >= {"first", "second"}
    assert "broken.db is damaged: its first bytes are not those of a store" in table.note
    assert "agentnb.store.salvage('broken.db', 'saved.db')" in table.note


async def test_a_write_to_a_store_that_stays_locked_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)
    store = Store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="database is locked"):
        store.tag("first", "good")
    assert [info.name for info in store.runs()] == ["second", "first"]
    other.execute("ROLLBACK")
    store.tag("first", "good")
    other.close()
    store.close()


def full(path: Path) -> None:
    """Run in a separate process: fill a store until its file cannot grow, then read it."""
    store = Store(path)
    limit = path.stat().st_size + 200_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run = researcher(answer="x" * 1_000_000).start("go", name="large", store=store, approve=True)
    try:
        run.result()
    except RunFailed as error:
        print(f"failed: {error}")
    print([info.name for info in store.runs()], store.load("large").position)


def test_a_full_disk_ends_the_run_with_an_error_and_keeps_the_written_events(path: Path) -> None:
    script = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"from pathlib import Path; from tests.store.test_damage import full; full(Path({str(path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "failed: " in done.stdout, done.stderr
    assert "could not be written: " in done.stdout
    assert "['large', 'second', 'first']" in done.stdout
    assert int(done.stdout.split()[-1]) > 10
