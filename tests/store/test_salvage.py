"""The readable events of a damaged store are written to a new one, and the lost ones are named."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentnb import Store
from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, UsageError
from agentnb.core.events import Event
from agentnb.store import RunInfo, is_store, salvage
from agentnb.store.sqlite import PAGE_BYTES
from tests.analysis.recordings import researcher

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


def test_everything_in_an_undamaged_store_is_salvaged(path: Path, tmp_path: Path) -> None:
    said = salvage(path, tmp_path / "saved.db")
    assert content(tmp_path / "saved.db") == content(path)
    assert said == ["first: 27 events", "large: 27 events", "third: 27 events"]
    for where in (path, tmp_path / "saved.db"):
        store = Store(where)
        assert store.load("halfway").position == 10
        store.close()


def fill_and_die(path: str) -> None:
    Store.close = lambda store: None  # type: ignore[method-assign]  # there is no time for it
    asyncio.run(fill(Path(path)))
    os.kill(os.getpid(), signal.SIGKILL)


def test_events_in_the_log_of_a_killed_process_are_salvaged(tmp_path: Path) -> None:
    script = f"from tests.store.test_salvage import fill_and_die; fill_and_die({str(tmp_path / 'runs.db')!r})"
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert (tmp_path / "runs.db-wal").stat().st_size > (tmp_path / "runs.db").stat().st_size
    os.truncate(tmp_path / "runs.db", 0)
    with pytest.raises(RecordingCorrupt, match=r"it is empty, but its log runs\.db-wal is not"):
        Store(tmp_path / "runs.db")
    assert salvage(tmp_path / "runs.db", tmp_path / "saved.db")[2] == "third: 27 events"


# -- of what is damaged, all but that --------------------------------------------------------------------------------


def check_salvaged(damaged: Path, saved: Path, whole: set[bytes]) -> set[bytes]:
    """Salvage a store. Check that the new one is correct, and that each missing event is named."""
    saved.unlink(missing_ok=True)
    said = salvage(damaged, saved)
    found = bodies(saved)
    assert found <= whole
    for line in said:
        if counted := re.match(r"\S+: (\d+|no) events(; damaged: ([^;]*))?(; events may be missing at its end)?", line):
            count, _, ranges, cut_short = counted.groups()
            lost = [part.split(" to ") for part in ranges.split(", ")] if ranges else []
            named = sum(int(part[-1]) - int(part[0]) + 1 for part in lost)
            assert cut_short or (0 if count == "no" else int(count)) + named == 27, said
    with closing(Store(saved)) as store:
        assert len(store.runs()) == 3 or "rows of the table runs may be missing" in said
    return whole - found


def test_with_any_bit_changed_salvaged_events_are_correct_and_lost_ones_are_named(path: Path, tmp_path: Path) -> None:
    good, whole = path.read_bytes(), bodies(path)
    chance = random.Random(5)
    places = [*range(0, 56, 4), *chance.sample([at for at in range(len(good)) if good[at]], 100)]
    for place in places:
        damage(path, place, bytes([good[place] ^ 1 << chance.randrange(8)]))
        assert is_store(path)
        check_salvaged(path, tmp_path / "saved.db", whole)
        path.write_bytes(good)


def test_a_lost_page_loses_only_the_events_in_it(path: Path, tmp_path: Path) -> None:
    good, whole = path.read_bytes(), bodies(path)
    for start in range(0, len(good), PAGE):
        gone = good[start : start + PAGE]
        damage(path, start, b"\xa5" * PAGE)
        has_events = b'{"type":"' in gone
        if has_events or start == 0:
            for lost in check_salvaged(path, tmp_path / "saved.db", whole):
                assert lost[:40] in gone or lost[-20:] in gone, start
        path.write_bytes(good)


def test_a_truncated_file_is_salvaged_in_part(path: Path, tmp_path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2 * PAGE)
    said = salvage(path, tmp_path / "saved.db")
    assert said[0].startswith("first: 27 events")
    store = Store(tmp_path / "saved.db")
    assert store.load("first").state.output == "It is done."
    store.close()


def test_a_lost_event_is_named_and_the_events_after_it_are_salvaged(path: Path, tmp_path: Path) -> None:
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


def test_a_damaged_name_of_a_run_or_snapshot_is_reported(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE runs SET name = 'thirp' WHERE name = 'third'")
        raw.execute("UPDATE snapshots SET position = 9")
    raw.close()
    store = Store(path)
    assert {info.name: info.damaged for info in store.runs()} == {"first": False, "large": False, "thirp": True}
    with pytest.raises(RecordingCorrupt, match=r"the row of the run 'thirp' .* is damaged"):
        store.load("thirp")
    with pytest.raises(RecordingCorrupt, match="the snapshot 'halfway' is damaged"):
        store.load("halfway")
    assert store.load("thirp", salvage=True).state.output == "It is done."
    store.close()
    said = salvage(path, tmp_path / "saved.db")
    assert said[2:] == [
        "thirp: 27 events; its name, id, loop or date is damaged",
        "the snapshot 'halfway' is damaged",
    ]


# -- what is no store, and what would be lost by it ------------------------------------------------------------------


def test_salvage_does_not_overwrite_an_existing_file(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        salvage(path, path)
    assert path.read_bytes() == before


def test_salvage_of_a_file_that_is_not_a_store_creates_no_store(tmp_path: Path) -> None:
    with pytest.raises(RecordingMissing):
        salvage(tmp_path / "nothing.db", tmp_path / "saved.db")
    (tmp_path / "words.db").write_text("no store")
    with pytest.raises(StorageError, match="Nothing of a store can be read"):
        salvage(tmp_path / "words.db", tmp_path / "saved.db")
    assert not (tmp_path / "saved.db").exists()


async def test_a_file_or_a_database_is_salvaged(place: str, tmp_path: Path) -> None:
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
