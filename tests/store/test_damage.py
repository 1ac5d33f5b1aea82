"""Damage to a store is reported, with what and where, and nothing that can be read is lost."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentnb import RunFailed, Store
from agentnb.core.errors import RecordingCorrupt, StorageError
from agentnb.store import sqlite as sqlite_store
from tests.analysis.recordings import researcher

SPAN = 1 << 32


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    store = Store(tmp_path / "runs.db")
    for name in ("first", "second"):
        await researcher().start("go", name=name, store=store, approve=True)
    store.close()
    return tmp_path / "runs.db"


def change(path: Path, sql: str, *values: Any) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute(sql, values)
    raw.close()


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'e', 'f') AS BLOB)", "damaged"),
        ("UPDATE events SET body = substr(body, 1, 20)", "damaged"),
        ("UPDATE events SET body = x'ff00'", "damaged"),
        ("DELETE FROM events", "missing"),
    ],
)
async def test_an_event_that_was_changed_is_named_and_what_is_before_it_can_be_read(
    path: Path, sql: str, what: str
) -> None:
    whole = Store(path).load("second").events
    change(path, f"{sql} WHERE key = 2 * ? + 7", SPAN)
    store = Store(path)
    with pytest.raises(RecordingCorrupt, match=f"event 7 of the run is {what}"):
        store.load("second")
    assert store.load("second", salvage=True).events == whole[:7]
    assert len(store.load("first").events) == len(whole)
    assert [info.name for info in store.runs()] == ["second", "first"]
    assert len(store.find(tool="write")) == 2
    store.close()


def test_a_file_that_may_not_be_written_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everything
    store = Store(path)
    assert [info.name for info in store.runs()] == ["second", "first"]
    with pytest.raises(StorageError, match="could not be written: attempt to write a readonly database"):
        store.tag("first", "good")
    store.close()


async def test_a_run_whose_store_may_not_be_written_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    store = Store(path)
    with pytest.raises((StorageError, RunFailed), match="readonly database"):
        await researcher().start("go", name="third", store=store, approve=True)
    store.close()


async def test_a_database_that_is_locked_for_too_long_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", 0.2)
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
    """In a process of its own: fill a store until its file may grow no further, then read what is there."""
    store = Store(path)
    limit = path.stat().st_size + 200_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run = researcher(answer="x" * 1_000_000).start("go", name="large", store=store, approve=True)
    try:
        run.result()
    except RunFailed as error:
        print(f"failed: {error}")
    print([info.name for info in store.runs()], store.load("large").position)


def test_a_disk_that_is_full_ends_the_run_loudly_and_keeps_what_was_written(path: Path) -> None:
    script = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"from pathlib import Path; from tests.store.test_damage import full; full(Path({str(path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "failed: " in done.stdout, done.stderr
    assert "could not be written: " in done.stdout
    assert "['large', 'second', 'first']" in done.stdout
    assert int(done.stdout.split()[-1]) > 10
