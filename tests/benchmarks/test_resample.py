"""What a sample costs: little more than the run of one turn, however long the run is from which it is drawn."""

from __future__ import annotations

import asyncio

import agentnb
from agentnb import SessionLoop, tool
from tests.benchmarks.measure import report
from tests.benchmarks.models import Calling
from tests.benchmarks.test_study import seconds_of

TURNS = 200
STEPS = 20
SAMPLES = 10


@tool
async def echo(value: int) -> str:
    return "x" * 10


async def recorded() -> agentnb.Run:
    run = SessionLoop(Calling(TURNS - 1), [echo]).start("go")
    await run
    return run


async def one_turn() -> None:
    for _ in range(STEPS * SAMPLES):
        await SessionLoop(Calling(0), [echo]).start("go")


def test_a_sample_of_a_long_run_costs_little_more_than_a_run_of_one_turn(capsys) -> None:
    run = asyncio.run(recorded())
    requests = [event.seq for event in run.events if event.type == "model_start"]
    steps = requests[:: TURNS // STEPS]

    def samples() -> None:
        for at in steps:
            drawn = agentnb.resample(run, at=at, n=SAMPLES, until="step", progress=False).result()
            assert drawn.counts["done"] == SAMPLES

    of_samples, of_runs = seconds_of(samples, lambda: asyncio.run(one_turn()), rounds=2)
    each = of_samples / STEPS / SAMPLES
    with capsys.disabled():
        detail = f"{each * 100 * STEPS:.1f} s for 100 samples of each of 20 steps of {len(run.events)} events"
        report("a sample of one step, to a run of one turn", of_samples / of_runs, 5, detail)
    assert of_samples / of_runs < 10
