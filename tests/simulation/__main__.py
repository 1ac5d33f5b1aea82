"""The simulation as a command; the docstring of `tests.simulation` describes it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.case import draw_case, play
from tests.simulation.choices import of_seed
from tests.simulation.shrink import kind, kinds, shrunk

PUSH = 300
"""The number of seeds of every push."""
CHUNK = 50
PROGRESS = 1000
"""The number of seeds between two lines of progress."""


def chunk(seeds: Iterable[int]) -> tuple[int, list[tuple[int, list[str]]]]:
    """Play some seeds; return the number of their events, and the faults of each seed that failed."""
    events, failed = 0, []
    for seed in seeds:
        story = play(draw_case(of_seed(seed)))
        events += len(story.events)
        if story.faults:
            failed.append((seed, story.faults))
    return events, failed


def play_many(first: int, count: int, processes: int) -> int:
    """Play many seeds and print those that fail; return the number of failed seeds."""
    began, events, failing = time.perf_counter(), 0, 0
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    found: Counter[str] = Counter()
    with ProcessPoolExecutor(processes) as pool:
        for seeds, (these, failed) in zip(chunks, pool.map(chunk, chunks), strict=True):
            events += these
            failing += len(failed)
            if (seeds.stop - first) % PROGRESS == 0:
                print(f"{seeds.stop - first} seeds, {failing} failed", flush=True)
            for seed, faults in failed:
                print(f"seed {seed}: {faults[0][-1500:]}", flush=True)
                found.update({kind(fault) for fault in faults})
    seconds = time.perf_counter() - began
    for words, times in found.most_common():
        print(f"{times:5} times: {words}")
    print(
        f"{count} seeds, {failing} failed, {events} events, {seconds:.0f} s, {count / seconds * 60:.0f} seeds a minute"
    )
    return failing


def play_one(seed: int, *, shrink: bool) -> int:
    """Play one seed and print its story; return the number of its faults."""
    story = play(draw_case(of_seed(seed)))
    if shrink and story.faults:
        wanted = kind(story.faults[0])
        print(f"seed {seed} has {story.case.size} parts; looking for less that fails by: {wanted}", flush=True)
        story = play(shrunk(seed, wanted))
        print(f"found a world of {story.case.size} parts; it fails by: {', '.join(kinds(story))}")
    print("\n".join(story.lines()))
    return len(story.faults)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Random worlds in virtual time.")
    parser.add_argument("count", nargs="?", type=int, default=PUSH, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="play this one and print all of it")
    parser.add_argument("--shrink", action="store_true", help="with --seed: look for the smallest world that fails so")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.seed is not None:
        return min(1, play_one(given.seed, shrink=given.shrink))
    return min(1, play_many(given.first, given.count, given.processes))


if __name__ == "__main__":
    sys.exit(main())
