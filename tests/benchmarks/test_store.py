"""What a store's work costs, and that it does not grow with the length of a run or of a store where it need not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import agentnb
from agentnb import Store
from agentnb.core.events import Event
from tests.benchmarks.measure import report, tell
from tests.benchmarks.models import Calling


async def echo(value: int) -> str:
    return "x" * 10


def recorded(iterations: int, store: Store, name: str) -> list[Event]:
    """Record a run of four events an iteration in a store, and return its events."""

    async def run() -> list[Event]:
        run = agentnb.SessionLoop(Calling(iterations), [agentnb.tool(echo)]).start("go", name=name, store=store)
        await run
        return list(run.events)

    return asyncio.run(run())


def least(action: Callable[[], object], rounds: int = 5) -> float:
    """Return the least seconds of CPU that an action took."""
    took = []
    for _ in range(rounds):
        started = time.process_time()
        action()
        took.append(time.process_time() - started)
    return min(took)


def test_a_fork_of_a_long_run_costs_its_store_what_a_fork_of_a_short_one_does(tmp_path: Path, capsys) -> None:
    with closing(Store(tmp_path / "runs.db")) as store:
        seconds = {}
        for iterations in (20, 2000):
            events = recorded(iterations, store, f"origin of {iterations}")
            ids = iter(range(100))

            def fork(events: list[Event] = events, ids=ids, iterations: int = iterations) -> None:
                # The events that a run passes on: only the first of them, and none that is shared, is encoded.
                run_id, count = f"fork {iterations} {next(ids)}", len(events) - 1
                last = events[count - 1].model_copy(update={"run_id": run_id, "inherited": True})
                past = [*events[: count - 1], last]
                store.record_run(run_id, None, "SessionLoop", past, shared=(events[0].run_id, count))

            seconds[iterations] = least(fork)
    ratio = seconds[2000] / seconds[20]
    with capsys.disabled():
        detail = f"{seconds[2000] * 1e3:.2f} ms beside {seconds[20] * 1e3:.2f} ms"
        report("a store's part of a fork, of 8,000 events to one of 80", ratio, 2, detail)
    assert ratio < 5


def test_a_hundred_thousand_events_are_read_from_a_store(tmp_path: Path, capsys) -> None:
    with closing(Store(tmp_path / "runs.db")) as store:
        recorded(2500, store, "long")
        count = store.find(name="long")[0].events
        seconds = least(lambda: store.load("long"), 3)
    with capsys.disabled():
        tell(f"{'100,000 events read from a store':58} {seconds / count * 1e5 * 1000:8.0f} ms")
    assert seconds / count < 200e-6
