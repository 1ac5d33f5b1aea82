"""What tables of many runs and a search cost, beside decoding all events, and that each run costs the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

import agentnb
from agentnb import Store, analysis
from agentnb.core.events import Event
from tests.benchmarks.measure import report
from tests.benchmarks.models import Calling
from tests.benchmarks.test_store import least

RUNS = 500


async def echo(value: int) -> str:
    return "a result of some length, " * 8


def recorded(calls: int) -> list[Event]:
    """Return the events of a run with this number of calls."""

    async def run() -> list[Event]:
        run = agentnb.SessionLoop(Calling(calls), [agentnb.tool(echo)]).start("go")
        await run
        return list(run.events)

    return asyncio.run(run())


def store_of(path: Path, runs: int) -> Store:
    events = recorded(10)
    store = Store(path)
    for number in range(runs):
        id = f"{number:032x}"
        store.record_run(id, f"run {number}", "SessionLoop", [replace(event, run_id=id) for event in events])
    return store


def test_tables_of_many_runs(tmp_path: Path, capsys) -> None:
    with (
        closing(store_of(tmp_path / "few.db", RUNS // 10)) as few,
        closing(store_of(tmp_path / "many.db", RUNS)) as many,
    ):
        whole = least(lambda: list(many.recordings()), 3)
        tables: dict[str, Callable[[Store], object]] = {"calls": analysis.calls, "events": analysis.events}
        for name, table in tables.items():
            seconds = least(lambda table=table: table(many), 3)
            growth = seconds / least(lambda table=table: table(few), 3) / 10
            with capsys.disabled():
                detail = f"{seconds * 1e3:.0f} ms for {RUNS} runs with 45 events"
                report(f"{name}(store), beside decoding all its events", seconds / whole, 1.5, detail)
                report(f"{name}(store), a run of 500 to one of 50", growth, 1.2)
            assert seconds / whole < 3
            assert growth < 2

        for text in ("some length", "nowhere"):
            seconds = least(lambda text=text: many.search(text), 3)
            with capsys.disabled():
                detail = f"{seconds * 1e3:.0f} ms for {RUNS} runs with 45 events"
                report(f"store.search({text!r}), beside decoding all", seconds / whole, 0.3, detail)
            assert seconds / whole < 0.6

        pytest.importorskip("duckdb")
        frames = least(lambda: (analysis.runs(many), analysis.calls(many)), 2)
        database = least(lambda: analysis.connect(many, tables=["runs", "calls"]).close(), 2)
        with capsys.disabled():
            report("connect(store), beside its frames", database / frames, 1.5, f"{database * 1e3:.0f} ms")
        assert database / frames < 3
