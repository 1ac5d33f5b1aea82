"""What it costs to keep a run on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path

import agentnb
from agentnb.store.sqlite import PAGE_BYTES
from tests.benchmarks.bare import CallStarted, bare_loop
from tests.benchmarks.measure import least_seconds, report
from tests.benchmarks.models import Calling

ITERATIONS = 1000
KILOBYTE = "".join(chr(97 + n % 26) for n in range(1024))


async def echo(value: int) -> str:
    return "x" * 10


async def kilobyte(value: int) -> str:
    return KILOBYTE


async def bare() -> None:
    async for _ in bare_loop(Calling(ITERATIONS), {"echo": echo}, "go"):
        pass


async def bare_with_commits(path: Path) -> None:
    """The bare loop that keeps its own events in SQLite, as a store's file does: what SQLite alone costs."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for setting in (f"page_size={PAGE_BYTES}", "journal_mode=WAL", "synchronous=NORMAL"):
            database.execute(f"PRAGMA {setting}")
        database.execute("CREATE TABLE events (key INTEGER PRIMARY KEY, body BLOB)")
        rows: list[int | bytes] = []
        key = 0
        async for event in bare_loop(Calling(ITERATIONS), {"echo": echo}, "go"):
            key += 1
            rows += (key, event.__pydantic_serializer__.to_json(event))
            if type(event) is CallStarted:
                database.execute(f"INSERT INTO events VALUES {', '.join(['(?, ?)'] * (len(rows) // 2))}", rows)
                rows = []


def test_the_whole_loop_with_its_journal_on_disk(tmp_path: Path, capsys) -> None:
    tool = agentnb.tool(echo)
    files = iter(range(100))

    async def kept() -> None:
        store = agentnb.Store(tmp_path / f"{next(files)}.db")
        await agentnb.SessionLoop(Calling(ITERATIONS), [tool]).start("go", store=store)
        store.close()

    def committing() -> Awaitable[None]:
        return bare_with_commits(tmp_path / f"{next(files)}.db")

    least = least_seconds({"bare": bare, "committing": committing, "kept": kept}, 5)
    ratio = least["kept"] / least["bare"]
    with capsys.disabled():
        detail = f"{least['kept'] / ITERATIONS * 1e6:.0f} µs beside {least['bare'] / ITERATIONS * 1e6:.0f} µs"
        report("iteration with its journal on disk", ratio, 5, detail)
        print(f"{'  the bare loop with such a commit of its own':58} {least['committing'] / least['bare']:6.2f}")
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
