"""What it costs to keep a run on disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import agentnb
from agentnb.store.sqlite import LOG_BYTES, PAGE_BYTES
from tests.benchmarks.bare import CallStarted, bare_loop
from tests.benchmarks.measure import Contender, least_seconds, report, tell
from tests.benchmarks.models import Calling

ITERATIONS = 1000
KILOBYTE = "".join(chr(97 + n % 26) for n in range(1024))


async def echo(value: int) -> str:
    return "x" * 10


async def kilobyte(value: int) -> str:
    return KILOBYTE


async def bare(iterations: int) -> None:
    async for _ in bare_loop(Calling(iterations), {"echo": echo}, "go"):
        pass


async def bare_with_commits(database: sqlite3.Connection, iterations: int) -> None:
    """The bare loop that keeps its own events in SQLite, as a store's file does: what SQLite alone costs."""
    rows: list[int | bytes] = []
    key = 0
    async for event in bare_loop(Calling(iterations), {"echo": echo}, "go"):
        key += 1
        rows += (key, event.__pydantic_serializer__.to_json(event))
        if type(event) is CallStarted:
            database.execute(f"INSERT INTO events VALUES {', '.join(['(?, ?)'] * (len(rows) // 2))}", rows)
            rows = []


def database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    for setting in (f"page_size={PAGE_BYTES}", "journal_mode=WAL", "synchronous=NORMAL"):
        database.execute(f"PRAGMA {setting}")
    database.execute(f"PRAGMA wal_autocheckpoint={LOG_BYTES // PAGE_BYTES}")
    database.execute("CREATE TABLE events (key INTEGER PRIMARY KEY, body BLOB)")
    return database


@pytest.mark.parametrize(("iterations", "rounds"), [(1000, 4), (10_000, 2)])
def test_the_whole_loop_with_its_journal_on_disk(iterations: int, rounds: int, tmp_path: Path, capsys) -> None:
    """From the first step to the last commit: a file is made once, and closed once, for any number of runs."""
    tool = agentnb.tool(echo)
    databases = [database(tmp_path / f"bare{n}.db") for n in range(rounds)]
    stores = [agentnb.Store(tmp_path / f"{n}.db") for n in range(rounds)]
    unused, files = iter(databases), iter(stores)

    async def kept() -> None:
        await agentnb.SessionLoop(Calling(iterations), [tool]).start("go", store=next(files))

    contenders: dict[str, Contender] = {
        "bare": lambda: bare(iterations),
        "committing": lambda: bare_with_commits(next(unused), iterations),
        "kept": kept,
    }
    least = least_seconds(contenders, rounds)
    for opened in (*databases, *stores):
        opened.close()
    ratio = least["kept"] / least["bare"]
    with capsys.disabled():
        detail = f"{least['kept'] / iterations * 1e6:.0f} µs beside {least['bare'] / iterations * 1e6:.0f} µs"
        report(f"iteration with its journal on disk, {iterations} of them", ratio, 5, detail)
        tell(f"{'  the bare loop with such a commit of its own':58} {least['committing'] / least['bare']:6.2f}")
    assert ratio < 16


def test_a_journal_takes_at_most_two_bytes_on_disk_per_byte_of_message(tmp_path: Path, capsys) -> None:
    tool = agentnb.tool(name="echo")(kilobyte)
    path = tmp_path / "journal.db"
    store = agentnb.Store(path)

    async def run() -> agentnb.Run:
        run = agentnb.SessionLoop(Calling(ITERATIONS), [tool]).start("go", store=store)
        await run
        return run

    import asyncio

    finished = asyncio.run(run())
    said = sum(len(str(message.content)) for message in finished.messages)
    store.close()
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    with capsys.disabled():
        report("bytes on disk per byte of message (1 kB results)", on_disk / said, 2, f"{on_disk / 1e6:.2f} MB")
    assert on_disk / said <= 2
