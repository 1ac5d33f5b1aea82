"""One bit of a store is changed, in its file or in its log: the change is reported or no event that is read differs."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentnb import Store
from agentnb.core.errors import RecordingCorrupt, StorageError
from agentnb.core.events import Event
from agentnb.store import is_store
from tests.analysis.recordings import researcher
from tests.store.test_salvage import PAGE

Content = dict[str, tuple[object, list[Event]]]


async def fill(path: Path) -> None:
    """Create three ended runs and one unfinished run between them, with a tag and a snapshot."""
    store = Store(path)
    for name in ("first", "second"):
        await researcher().start("go", name=name, store=store, approve=True)
    run = researcher().start("go", name="unfinished", store=store, approve=True)
    await run.step("turn")
    run.snapshot("halfway")
    await run.step("turn")
    await researcher(answer="y" * 1500).start("go", name="last", store=store, approve=True)
    store.tag("first", "good")
    store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("flipped") / "runs.db"
    asyncio.run(fill(path))
    return path.read_bytes()


def content(path: Path) -> Content:
    """Return all that a store has. Raises StorageError if it reports damage."""
    with closing(Store(path)) as store:
        found = {info.id: (info, list(store.load(info.id).events)) for info in store.runs()}
        assert store.load("halfway").position == 10
        for info in store.runs():
            if info.damaged:
                raise RecordingCorrupt(f"{info.name} is damaged")
        return found


def is_reported(path: Path, expected: Content) -> bool:
    """Return True if damage is reported. Otherwise check that the contents are unchanged."""
    try:
        found = content(path)
    except StorageError:
        return True
    assert found == expected
    return False


def flip(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_a_changed_bit_in_the_file_is_reported_or_changes_no_event(whole: bytes, tmp_path: Path) -> None:
    path, chance = tmp_path / "runs.db", random.Random(7)
    path.write_bytes(whole)
    expected, reported = content(path), 0
    # Each page starts with the data by which SQLite finds its rows.
    heads = [page + byte for page in range(0, len(whole), PAGE) for byte in range(12)]
    used = [place for place in range(len(whole)) if whole[place]]
    for place in [*range(100), *chance.sample(heads, 150), *chance.sample(used, 250)]:
        path.write_bytes(flip(whole, place, chance.randrange(8)))
        reported += is_reported(path, expected)
    assert reported > 150


def test_a_run_whose_last_events_are_lost_is_marked_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.db"
    asyncio.run(fill(path))
    finding = "*** in database main ***\nTree 4 page 9: btreeInitPage() returns error code 11"
    with closing(Store(path)) as store:
        query = store._database.query

        def damaged(sql: str, *values: object) -> list[tuple[object, ...]]:
            return [(finding,)] if sql == "PRAGMA integrity_check(events)" else query(sql, *values)

        monkeypatch.setattr(store._database, "query", damaged)
        with pytest.raises(RecordingCorrupt, match=r"runs\.db is damaged: .* \(in the table events\)\. It was not ch"):
            store.load("unfinished")
        assert store.load("unfinished", salvage=True).position == 24
        assert {info.name: info.damaged for info in store.runs()} == {
            "first": False,
            "second": False,
            "unfinished": True,
            "last": False,
        }


# -- the log ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of a killed process: almost no data in the file, all data in the log."""
    folder = tmp_path_factory.mktemp("killed")
    script = f"from tests.store.test_salvage import fill_and_die; fill_and_die({str(folder / 'runs.db')!r})"
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    return folder


def events_by_run(path: Path) -> dict[str, list[Event]]:
    """Return the events of each run, up to the first that is damaged or missing."""
    with closing(Store(path)) as store:
        return {info.id: list(store.load(info.id, salvage=True).events) for info in store.runs() if info.events}


def test_after_damage_to_the_log_each_run_is_a_prefix_of_the_original(killed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(killed, tmp_path / "whole")) / "runs.db"
    log, shared_memory = path.with_name("runs.db-wal"), path.with_name("runs.db-shm")
    file, good, whole = path.read_bytes(), log.read_bytes(), events_by_run(path)
    assert [len(events) for events in whole.values()] == [27, 27, 27]
    chance, shorter = random.Random(3), 0
    for _ in range(60):
        place = chance.randrange(len(good))
        cut = chance.random() < 0.3
        path.write_bytes(file)
        log.write_bytes(good[:place] if cut else flip(good, place, chance.randrange(8)))
        shared_memory.unlink(missing_ok=True)
        try:
            found = events_by_run(path)
        except StorageError:
            assert is_store(path)
            continue
        for run_id, events in found.items():
            assert events == whole[run_id][: len(events)]
        shorter += found != whole
    assert shorter > 20


def test_committed_events_of_a_killed_process_are_in_the_store_without_damage(tmp_path: Path) -> None:
    path, chance = tmp_path / "runs.db", random.Random(11)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-m", "tests.store.killed_writer", path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            committed = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with closing(Store(path)) as store:
            assert store.position(f"run-{process.pid}") >= committed
