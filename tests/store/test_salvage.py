"""Whatever becomes of a store's file: it is said what, and all that can be read goes into a new store."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentnb import Store
from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, UsageError, VersionMismatch
from agentnb.core.events import Event
from agentnb.store import RunInfo, is_store, salvage
from agentnb.store.sqlite import PAGE_BYTES
from tests.analysis.recordings import researcher
from tests.store.test_migrations import STORES

PAGE = PAGE_BYTES


async def fill(path: Path) -> None:
    """Three runs, of which one is large, with a tag and a snapshot."""
    store = Store(path)
    for name, answer in (("first", "It is done."), ("large", "ä" * 30_000)):
        await researcher(answer=answer).start("go", name=name, store=store, approve=True)
    run = researcher().start("go", name="third", store=store, approve=True)
    await run.step("turn")
    run.snapshot("halfway")
    await run
    store.tag("first", "good")
    store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "runs.db"
    asyncio.run(fill(path))
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "runs.db"))


def content(path: Path) -> dict[str | None, tuple[RunInfo, list[Event]]]:
    store = Store(path)
    found = {info.name: (info, store.events(info.id)) for info in store.runs()}
    store.close()
    return found


def damage(path: Path, position: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(value)


def events_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw, raw:
        ((count,),) = raw.execute("SELECT count(*) FROM events")
    raw.close()
    return int(count)


# -- of what is whole, everything ------------------------------------------------------------------------------------


def test_of_a_store_that_is_whole_everything_is_salvaged(path: Path, tmp_path: Path) -> None:
    said = salvage(path, tmp_path / "saved.db")
    assert content(tmp_path / "saved.db") == content(path)
    assert said == ["first: 27 events", "large: 27 events", "third: 27 events"]
    for where in (path, tmp_path / "saved.db"):
        store = Store(where)
        assert store.load("halfway").position == 10
        store.close()


@pytest.mark.parametrize("old", STORES, ids=lambda path: path.stem)
def test_a_store_of_every_version_is_salvaged(old: Path, tmp_path: Path) -> None:
    salvage(old, tmp_path / "saved.db")
    copy = Path(shutil.copy(old, tmp_path / "copy.db"))
    assert content(tmp_path / "saved.db") == content(copy)


def fill_and_die(path: str) -> None:
    Store.close = lambda store: None  # type: ignore[method-assign]  # there is no time for it
    asyncio.run(fill(Path(path)))
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_left_in_the_log_is_salvaged(tmp_path: Path) -> None:
    script = f"from tests.store.test_salvage import fill_and_die; fill_and_die({str(tmp_path / 'runs.db')!r})"
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert (tmp_path / "runs.db-wal").stat().st_size > (tmp_path / "runs.db").stat().st_size
    os.truncate(tmp_path / "runs.db", 0)
    with pytest.raises(RecordingCorrupt, match=r"it is empty, but runs\.db-wal beside it is not"):
        Store(tmp_path / "runs.db")
    assert salvage(tmp_path / "runs.db", tmp_path / "saved.db")[2] == "third: 27 events"


# -- of what is damaged, all but that --------------------------------------------------------------------------------


def said_of(path: Path) -> list[str]:
    """What is said of damage where all is read, in agentnb's errors only."""
    said: list[str] = []
    try:
        store = Store(path)
        for info in store.runs():
            said += [str(info)] if info.damaged else []
            store.load(info.id)
        store.close()
    except (RecordingCorrupt, RecordingMissing, VersionMismatch) as error:
        said.append(str(error))
    return said


def test_wherever_a_byte_is_changed_it_is_told_in_words_and_at_most_one_event_is_lost(
    path: Path, tmp_path: Path
) -> None:
    good, told = path.read_bytes(), 0
    total = sum(len(events) for _, events in content(path).values())
    chance = random.Random(5)
    used = [at for at in range(len(good)) if good[max(at - 16, 0) : at + 16].strip(b"\0")]
    for position in [*range(0, 32, 2), *chance.sample(used, 120)]:
        damage(path, position, bytes([good[position] ^ 1 << chance.randrange(8)]))
        told += bool(said_of(path))
        assert is_store(path)
        (tmp_path / "saved.db").unlink(missing_ok=True)
        salvage(path, tmp_path / "saved.db")
        assert events_in(tmp_path / "saved.db") >= total - 1, position
        path.write_bytes(good)
    assert told > 60


def test_a_page_that_is_gone_takes_nothing_with_it_but_what_was_in_it(path: Path, tmp_path: Path) -> None:
    good, before = path.read_bytes(), bodies(path)
    for start in range(0, len(good), PAGE):
        damage(path, start, b"\xa5" * PAGE)
        (tmp_path / "saved.db").unlink(missing_ok=True)
        salvage(path, tmp_path / "saved.db")
        gone = good[start : start + PAGE]
        for lost in before - bodies(tmp_path / "saved.db"):
            assert lost[-20:] in gone or any(lost[at : at + 60] in gone for at in range(0, len(lost), 60))
        path.write_bytes(good)


def test_a_file_that_was_cut_off_gives_what_is_left(path: Path, tmp_path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2 * PAGE)
    said = salvage(path, tmp_path / "saved.db")
    assert said[0].startswith("first: 27 events")
    store = Store(tmp_path / "saved.db")
    assert store.load("first").state.output == "It is done."
    store.close()


def test_an_event_that_is_lost_is_named_and_those_behind_it_are_there(path: Path, tmp_path: Path) -> None:
    whole = content(path)["third"][1]
    with closing(sqlite3.connect(path)) as raw, raw:
        changed = "CAST(replace(CAST(body AS TEXT), 'e', 'f') AS BLOB)"
        changed = f"CASE key % 4294967296 WHEN 4 THEN x'00' ELSE {changed} END"
        raw.execute(
            f"UPDATE events SET body = {changed} WHERE key % 4294967296 IN (4, 11, 12) AND key / 4294967296 = 3"
        )
        twelfth = "CAST(replace(CAST(body AS TEXT), '{\"typf\"', '{\"type\"') AS BLOB)"
        raw.execute(f"UPDATE events SET body = {twelfth} WHERE key % 4294967296 = 12 AND key / 4294967296 = 3")
    raw.close()
    assert salvage(path, tmp_path / "saved.db")[2] == "third: 24 events; damaged: 4, 11 to 12"
    store = Store(tmp_path / "saved.db")
    (third,) = store.find(name="third")
    assert list(store.load("third", salvage=True).events) == whole[:4]
    assert store.events(third.id, 13) == whole[13:]
    with pytest.raises(RecordingCorrupt, match=r"event 4 of the run .* is missing"):
        store.load("third")
    store.close()


def test_what_a_run_is_called_is_checked_as_its_events_are(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE runs SET name = 'thirp' WHERE name = 'third'")
        raw.execute("UPDATE snapshots SET position = 9")
    raw.close()
    store = Store(path)
    assert {info.name: info.damaged for info in store.runs()} == {"first": False, "large": False, "thirp": True}
    with pytest.raises(RecordingCorrupt, match=r"what it says of the run 'thirp' .* is damaged"):
        store.load("thirp")
    with pytest.raises(RecordingCorrupt, match="the snapshot 'halfway' is damaged"):
        store.load("halfway")
    assert store.load("thirp", salvage=True).state.output == "It is done."
    store.close()
    assert salvage(path, tmp_path / "saved.db")[2] == "thirp: 27 events; its name, id, loop or date is damaged"


# -- what is no store, and what would be lost by it ------------------------------------------------------------------


def test_a_new_store_takes_nobodys_place(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is there already"):
        salvage(path, path)
    assert path.read_bytes() == before


def test_where_there_is_nothing_of_a_store_no_store_is_made(tmp_path: Path) -> None:
    with pytest.raises(RecordingMissing):
        salvage(tmp_path / "nothing.db", tmp_path / "saved.db")
    (tmp_path / "words.db").write_text("no store")
    with pytest.raises(StorageError, match="Nothing of a store can be read"):
        salvage(tmp_path / "words.db", tmp_path / "saved.db")
    assert not (tmp_path / "saved.db").exists()


async def test_a_database_is_salvaged_too(place: str, tmp_path: Path) -> None:
    store = Store(place)
    await researcher().start("go", name="first", store=store, approve=True)
    store._database.write("UPDATE events SET checksum = 1 WHERE key % 4294967296 = 3")
    store.close()
    assert salvage(place, tmp_path / "saved.db") == ["first: 26 events; damaged: 3"]


def bodies(path: Path) -> set[bytes]:
    with closing(sqlite3.connect(path)) as raw, raw:
        found = {body for (body,) in raw.execute("SELECT body FROM events")}
    raw.close()
    return found
