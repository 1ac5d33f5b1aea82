"""One bit of a store is changed, in its file or in the log beside it: that is told, or nothing that is read differs."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from agentnb import Store
from agentnb.core.errors import RecordingCorrupt, StorageError
from agentnb.core.events import Event
from agentnb.notebook import runs
from agentnb.store import is_store, salvage
from agentnb.store.write_ahead_log import FRAME, HEAD
from tests.analysis.recordings import researcher
from tests.store.test_salvage import PAGE, bodies, damage

Content = dict[str, tuple[object, list[Event]]]


async def fill(path: Path) -> None:
    """Three runs that are over, and one in the middle that is not, with a tag and a snapshot."""
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
    """All that a store says; raises where it says that something is damaged."""
    with closing(Store(path)) as store:
        found = {info.id: (info, list(store.load(info.id).events)) for info in store.runs()}
        assert store.load("halfway").position == 10
        for info in store.runs():
            if info.damaged:
                raise RecordingCorrupt(f"{info.name} is damaged")
        return found


def is_told(path: Path, expected: Content) -> bool:
    """Whether damage is told; if it is not, nothing may be amiss."""
    try:
        found = content(path)
    except StorageError:
        return True
    assert found == expected
    return False


def flipped(data: bytes, places: Iterator[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    for place, bit in places:
        yield place, data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def where_it_matters(data: bytes, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Every byte by which a page says what is in it, each in one bit, and some of those that it has."""
    for page in range(0, len(data), PAGE):
        head = page + (100 if page == 0 else 0)
        cells = int.from_bytes(data[head + 3 : head + 5], "big")
        firsts = range(head + 12, head + 12 + 2 * min(cells, 60), 2)
        pointers = [int.from_bytes(data[at : at + 2], "big") for at in firsts if data[head] == 5]
        of_tree = [page + pointer + byte for pointer in pointers for byte in range(9)]
        for place in [
            *range(head, head + 12 + 2 * min(cells, 60)),
            *of_tree,
            *chance.sample(range(page, page + PAGE), 40),
        ]:
            yield place, chance.randrange(8)


def test_a_bit_that_is_changed_in_the_file_is_told_or_changes_nothing(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(whole)
    expected, told = content(path), 0
    for _, data in flipped(whole, where_it_matters(whole, random.Random(7))):
        path.write_bytes(data)
        told += is_told(path, expected)
    assert told > 300


def test_a_run_whose_last_events_cannot_be_found_is_not_taken_for_one_that_was_broken_off(
    whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    short = _cut_one_short(whole, path)
    with closing(Store(path)) as store:
        with pytest.raises(RecordingCorrupt, match=r"runs\.db is damaged: .* \(in the table events\)\. It was not ch"):
            store.load(short)
        assert 0 < store.load(short, salvage=True).position < 27
        for other in {"first", "second", "last"} - {short}:
            assert store.load(other).position == 27


def _cut_one_short(whole: bytes, path: Path) -> str:
    """Change a bit so that SQLite finds nothing but the beginning of one run, all of the others, and no fault."""
    for _, data in flipped(
        whole, (place for seed in range(20) for place in where_it_matters(whole, random.Random(seed)))
    ):
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as raw, suppress(sqlite3.Error):
            counted = "SELECT name, count(*), max(key) - (number << 32) + 1 FROM runs, events"
            of_run = "key >= number << 32 AND key < (number + 1) << 32"
            found = {name: (n, m) for name, n, m in raw.execute(f"{counted} WHERE {of_run} GROUP BY name").fetchall()}
            whole_ones = [name for name, counts in found.items() if counts == (27, 27)]
            short = [name for name, (n, m) in found.items() if n == m < 27 and name != "unfinished"]
            if len(whole_ones) == 2 and len(short) == 1 and found["unfinished"] == (24, 24):
                return str(short[0])
    raise LookupError("no such bit")


# -- the log ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a process that was killed has left behind: next to nothing in its file, and all in the log."""
    folder = tmp_path_factory.mktemp("killed")
    script = f"from tests.store.test_salvage import fill_and_die; fill_and_die({str(folder / 'runs.db')!r})"
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    return folder


@pytest.fixture
def path(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "copy")) / "runs.db"


def log(path: Path) -> Path:
    return path.with_name("runs.db-wal")


def test_a_log_that_is_damaged_is_told_and_loses_nothing_that_can_be_read(path: Path, tmp_path: Path) -> None:
    good, file, everything = log(path).read_bytes(), path.read_bytes(), bodies(path)
    last = len(good) - FRAME.size - PAGE
    chance = random.Random(3)
    heads = [
        HEAD.size + frame * (FRAME.size + PAGE) + chance.randrange(FRAME.size)
        for frame in range(last // (PAGE + FRAME.size))
    ]
    places = [*range(HEAD.size), *heads, *chance.sample(range(last), 40)]
    for place, data in flipped(good, ((place, chance.randrange(8)) for place in places)):
        path.write_bytes(file)
        log(path).write_bytes(data)
        path.with_name("runs.db-shm").unlink(missing_ok=True)
        with pytest.raises(RecordingCorrupt, match=r"the log beside it, runs\.db-wal, is wrong at its byte"):
            Store(path)
        assert is_store(path)
        assert log(path).read_bytes() == data
        (tmp_path / "saved.db").unlink(missing_ok=True)
        salvage(path, tmp_path / "saved.db")
        assert len(everything - bodies(tmp_path / "saved.db")) <= 1, place


def test_a_store_whose_log_is_damaged_is_named_in_the_table_of_a_notebook(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(log(path), 60_000, b"damage")
    monkeypatch.chdir(path.parent)
    assert "agentnb.store.salvage('runs.db', 'saved.db')" in runs().note


@pytest.mark.parametrize("how", ["cut off", "changed"])
def test_a_log_whose_last_write_is_not_whole_is_told_and_the_rest_is_there(path: Path, how: str) -> None:
    if how == "cut off":
        os.truncate(log(path), log(path).stat().st_size - 100)
    else:
        damage(log(path), log(path).stat().st_size - 100, b"damage")
    with pytest.warns(RuntimeWarning, match=r"ends in a write that is not whole"):
        store = Store(path)
    with closing(store):
        assert [info.events for info in store.runs()] == [27, 27, 27]
        assert [info.tags for info in store.runs()] == [(), (), ()]  # that one was given was written last


@pytest.mark.parametrize("what", ["opened", "salvaged"])
def test_a_log_is_found_where_a_link_leads_to(path: Path, tmp_path: Path, what: str) -> None:
    link, everything = tmp_path / "link.db", bodies(Path(shutil.copytree(path.parent, tmp_path / "other")) / "runs.db")
    link.symlink_to(path)
    damage(log(path), 60_000, b"damage")
    if what == "opened":
        with pytest.raises(RecordingCorrupt, match=r"the log beside it, runs\.db-wal, is wrong at its byte"):
            Store(link)
    else:
        salvage(link, tmp_path / "saved.db")
        assert len(everything - bodies(tmp_path / "saved.db")) <= 1


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    Store(tmp_path / "runs.db").close()
    (tmp_path / "runs.db-wal").mkdir()
    with pytest.raises(StorageError, match=r"the log beside it, runs\.db-wal, cannot be read: Is a directory"):
        Store(tmp_path / "runs.db")


def record(store: Store, id: str, events: int) -> None:
    recorder = store.record_run(id, None, "SessionLoop", [])
    for seq in range(events):
        recorder.record(seq, b'{"type":"call_end","call_id":"%d","result":"%s"}' % (seq, b"x" * 3000))
    recorder.flush()


def test_what_is_left_of_a_write_that_was_not_whole_is_no_damage_once_it_was_written_over(tmp_path: Path) -> None:
    path, size = tmp_path / "runs.db", FRAME.size + PAGE
    with closing(Store(path)) as store, closing(sqlite3.connect(path)) as other:
        record(store, "one", 60)
        other.execute("PRAGMA wal_checkpoint").fetchall()
        store.tag("one", "begins the log anew")
        before, file = log(path).read_bytes(), path.read_bytes()
        record(store, "two", 20)
        after = log(path).read_bytes()
    other.close()
    salts = after[16:24]
    heads = [after[at : at + FRAME.size] for at in range(HEAD.size, len(after), size)]
    last = max(number for number, head in enumerate(heads) if head[8:16] == salts and head[4:8] != bytes(4))
    cut = HEAD.size + last * size + FRAME.size  # killed between the head of a commit's last frame and its page
    path.write_bytes(file)
    log(path).write_bytes(after[:cut] + before[cut:])
    with pytest.warns(RuntimeWarning, match=r"ends in a write that is not whole"):
        store = Store(path)
    with closing(store):
        store.tag("one", "and goes on")
        shutil.copytree(tmp_path, tmp_path / "copy")
    with closing(Store(tmp_path / "copy" / "runs.db")) as copy:
        assert copy.find(tag="and goes on")[0].events == 60


def test_what_a_process_that_is_killed_has_committed_is_there_and_no_damage(tmp_path: Path) -> None:
    path, chance = tmp_path / "runs.db", random.Random(11)
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-m", "tests.store.killed_writer", path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 120)):
            committed = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with closing(Store(path)) as store:
            assert store.position(f"run-{process.pid}") >= committed
