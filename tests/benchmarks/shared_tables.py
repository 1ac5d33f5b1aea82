"""Search and tables of 2,000 runs in a file and in PostgreSQL: `python -m tests.benchmarks.shared_tables`.

It prints the shortest time of several, and the CPU time of this process and of the server's: on a busy machine the
CPU time says more. `--times 10` compares with a store of so many times the runs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from agentnb import Store, analysis
from tests.benchmarks.test_tables import store_of
from tests.store.postgres import PostgresServer

MEASURED: dict[str, Callable[[Store], object]] = {
    "search, no result": lambda store: store.search("nowhere"),
    "search, many results": lambda store: store.search("some length"),
    "calls(store)": analysis.calls,
    "events(store)": analysis.events,
    "runs(store)": analysis.runs,
}


def cpu_of_server(store: Store) -> Callable[[], float]:
    """Return a function that returns the CPU seconds of the server's process for this store; 0 for a file."""
    if not store.where.startswith("postgresql"):
        return lambda: 0.0
    ((process,),) = store._database.query("SELECT pg_backend_pid()")

    def seconds() -> float:
        with suppress(OSError):
            return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
        return 0.0

    return seconds


def measured(store: Store, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return the milliseconds of each function: by the clock, of this process, and of the server."""
    server = cpu_of_server(store)
    found = {}
    for name, function in MEASURED.items():
        times: list[list[float]] = []
        for _ in range(repeats):
            before = time.perf_counter(), time.process_time(), server()
            function(store)
            after = time.perf_counter(), time.process_time(), server()
            times.append([1e3 * (end - begin) for begin, end in zip(before, after, strict=True)])
        found[name] = min(some[0] for some in times), min(some[1] for some in times), min(some[2] for some in times)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("SQLite", "PostgreSQL"):
                before: dict[str, Any] = {}
                for runs in dict.fromkeys([options.runs, options.runs * options.times]):
                    place: Any = f"{folder}/{runs}.db" if kind == "SQLite" else server.url
                    with closing(store_of(place, runs)) as store:
                        store._database.write("ANALYZE")
                        for name, (clock, here, there) in measured(store, options.repeats).items():
                            growth = f", {(here + there) / before[name]:.1f} times" if name in before else ""
                            before.setdefault(name, here + there)
                            cpu = f"{here:.0f} ms of CPU" + (f" and {there:.0f} ms of the server" if there else "")
                            print(f"{kind}, {runs} runs, {name}: {clock:.0f} ms; {cpu}{growth}")
                        if kind == "PostgreSQL":
                            store._database.write("DROP SCHEMA agentnb CASCADE")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
