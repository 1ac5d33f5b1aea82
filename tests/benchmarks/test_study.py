"""What a study adds to its runs, and what the table of many runs costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import agentnb
from agentnb import SessionLoop, Store
from agentnb.analysis import runs
from tests.benchmarks.measure import own_heap, report
from tests.benchmarks.models import Calling

RUNS = 1000
TURNS = 5


@agentnb.tool
async def echo(value: int) -> str:
    return "x" * 10


def make_loop(seed: int = 0) -> SessionLoop:
    return SessionLoop(Calling(TURNS - 1), [echo])


def study() -> None:
    done = agentnb.study(make_loop, ["go"], RUNS, progress=False).result()
    assert done.counts["done"] == RUNS


def bare() -> None:
    async def run() -> list[agentnb.Run]:
        runs = [make_loop().start("go") for _ in range(RUNS)]
        for run in runs:
            await run
        return runs

    asyncio.run(run())


def seconds_of(*actions: Callable[[], object], rounds: int = 3) -> list[float]:
    """Return the least CPU seconds of each action; every round runs all of them."""
    least = [float("inf")] * len(actions)
    for _ in range(rounds):
        for number, action in enumerate(actions):
            with own_heap():
                started = time.process_time()
                action()
                least[number] = min(least[number], time.process_time() - started)
    return least


def test_a_study_costs_little_more_than_its_runs(capsys) -> None:
    of_study, of_runs = seconds_of(study, bare)
    added = (of_study - of_runs) / RUNS
    with capsys.disabled():
        detail = f"{added * 1e3:+.2f} ms a run, aim 0.40; {of_runs / RUNS * 1e3:.2f} ms a run without a study"
        report("1,000 runs of five turns in a study, to bare runs", of_study / of_runs, 1.5, detail)
    assert of_study / of_runs < 2


def test_the_table_of_many_runs_costs_little_and_is_linear(tmp_path: Path, capsys) -> None:
    recorded = agentnb.study(make_loop, ["go"], progress=False).result().runs[0].recording
    assert recorded is not None
    seconds = {}
    for count in (250, 2000):
        with closing(Store(tmp_path / f"{count}.db")) as store:
            for number in range(count):
                events = [event.model_copy(update={"run_id": f"run {number}"}) for event in recorded.events]
                store.record_run(f"run {number}", None, "SessionLoop", events)
            (seconds[count],) = seconds_of(lambda store=store: runs(store), rounds=3)  # type: ignore[misc]
    growth = seconds[2000] / seconds[250] / 8
    total = 2000 * len(recorded.events)
    with capsys.disabled():
        detail = f"{seconds[2000] * 1e3:.0f} ms for 2,000 runs with {total:,} events"
        report("the table of 2,000 runs, for each run of 250", growth, 1.3, detail)
    assert growth < 2
    assert seconds[2000] / total < 60e-6
