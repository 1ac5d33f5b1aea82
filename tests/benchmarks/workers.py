"""The figures of studies in workers, too large for every test run: `python -m tests.benchmarks.workers dask`.

It runs the five designs on a cluster of two workers, some of whose runs ask a person, and prints how long a question
needs until it is in `study.pending`. Then it kills workers in the middle of another study.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import agentnb
from agentnb import Store
from agentnb.core.events import ApprovalRequest
from tests.designs import WORLDS
from tests.study.killed import killed_study

DESIGNS = ["session", "agent", "execution", "engine", "loop_agent"]
ASKING = 3
"""The number of these designs whose runs call the tool that asks."""


def make_loop(design: str) -> Any:
    return WORLDS[design]()


@contextmanager
def cluster(kind: str) -> Iterator[Any]:
    """Start two workers."""
    if kind == "pool":
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    elif kind == "dask":
        import distributed

        options = {"n_workers": 2, "threads_per_worker": 4, "dashboard_address": ":0", "silence_logs": "CRITICAL"}
        with distributed.LocalCluster(**options) as dask, distributed.Client(dask) as client:
            yield client
    elif kind == "ipyparallel":
        import ipyparallel

        with ipyparallel.Cluster(n=2, log_level=50) as client:
            yield client
    else:
        yield None


def many(executor: Any, folder: Path, runs: int, asking: int) -> None:
    """Run each design `runs` times; about `asking` of the runs ask."""
    store = Store(folder / "many.db")
    first = -(-asking // ASKING)

    def policy(call: Any, context: Any) -> bool | None:
        numbers = re.findall(r"number (\d+)", json.dumps([message["content"] for message in context.messages]))
        return None if call.name == "write" and int(numbers[0]) < first else True

    inputs = [f"do number {number}" for number in range(runs)]
    arms = {"design": DESIGNS}
    began = time.monotonic()
    study = agentnb.study(make_loop, inputs, arms=arms, store=store, executor=executor, approve=policy, progress=False)
    made = time.monotonic()
    study.start()
    arrived: dict[tuple[str, str, int | None], float] = {}
    while study.counts["done"] + study.counts["failed"] < len(study):
        pending, now = study.pending, time.time()
        for item in pending:
            arrived.setdefault((item.run_id, item.path, item.event), now)
        study.approve(pending)
        time.sleep(0.002)
    study.result()
    done = time.monotonic()
    table = agentnb.analysis.runs(study)
    read = time.monotonic()
    asked = {
        (event.run_id, event.path, event.seq): event.time
        for recording in store.recordings()
        for event in recording.events
        if isinstance(event, ApprovalRequest)
    }
    late = sorted(1e3 * (when - asked[question]) for question, when in arrived.items())
    outcomes = table.groupby("arm_design").outcome.value_counts().to_dict()
    took = done - made
    print(f"{study!r}: checked in {made - began:.1f} s, run in {took:.1f} s, {took / len(study) * 1e3:.1f} ms a run")
    print(f"table of {len(table)} rows in {read - done:.1f} s: {outcomes}")
    print(f"{len(late)} questions of {len(asked)}; until pending: median {statistics.median(late):.1f} ms", end="")
    print(f", p95 {late[int(len(late) * 0.95)]:.1f} ms, most {late[-1]:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["here", "pool", "dask", "ipyparallel"])
    parser.add_argument("--runs", type=int, default=500, help="of each design")
    parser.add_argument("--asking", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    with cluster(options.kind) as executor, tempfile.TemporaryDirectory() as folder:
        many(executor, Path(folder), options.runs, options.asking)
        if options.kills and executor is not None:
            began = time.monotonic()
            study = asyncio.run(killed_study(Path(folder), executor, options.kills, 10 * options.kills, 0.05))
            print(f"{options.kills} workers killed: {study!r} in {time.monotonic() - began:.1f} s", end="")
            print("; nothing repeated, nothing lost")


if __name__ == "__main__":
    main()
