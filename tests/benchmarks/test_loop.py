"""An iteration, a delta, a fan-out and a thousand runs, beside the bare loop."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

import agentnb
from agentnb.core.reply import Reply
from tests.benchmarks.bare import bare_loop
from tests.benchmarks.measure import Contender, least_seconds, no_collections, now, own_heap, report, run_in_own_time
from tests.benchmarks.models import Calling, FanningOut, Typing


async def echo(value: int) -> str:
    return "x" * 10


async def nap(value: int) -> str:
    await asyncio.sleep(0.02)
    return "rested"


async def bare(calls: int, pause: float = 0) -> None:
    async for _ in bare_loop(Calling(calls, pause), {"echo": echo}, "go"):
        pass


@pytest.mark.parametrize(("iterations", "rounds"), [(10, 9), (100, 5), (1000, 3), (10_000, 2)])
def test_an_iteration_costs_a_small_multiple_of_the_bare_loops(iterations: int, rounds: int, capsys) -> None:
    tool = agentnb.tool(echo)

    async def ours() -> None:
        await agentnb.SessionLoop(Calling(iterations), [tool]).start("go")

    least = least_seconds({"bare": lambda: bare(iterations), "ours": ours}, rounds)
    ratio = least["ours"] / least["bare"]
    with capsys.disabled():
        detail = f"{least['ours'] / iterations * 1e6:.0f} µs beside {least['bare'] / iterations * 1e6:.0f} µs"
        report(f"iteration, {iterations} of them", ratio, 2.4, detail)
    assert ratio < 9


def test_an_iteration_that_is_pulled_costs_little_more_than_one_that_is_awaited(capsys) -> None:
    tool = agentnb.tool(echo)

    async def awaited() -> None:
        await agentnb.SessionLoop(Calling(1000), [tool]).start("go")

    async def pulled() -> None:
        async for _ in agentnb.SessionLoop(Calling(1000), [tool]).start("go"):
            pass

    least = least_seconds({"awaited": awaited, "pulled": pulled}, 7)
    ratio = least["pulled"] / least["awaited"]
    with capsys.disabled():
        report("iteration, pulled by a consumer, to awaited", ratio, 1.3, f"{least['pulled'] * 1e3:.0f} µs")
    assert ratio < 2.5


def test_an_iteration_of_a_short_run_costs_little_more_than_one_of_a_long_run(capsys) -> None:
    """The runs follow one another in one event loop, because its start is no cost of a run."""
    tool = agentnb.tool(echo)

    async def short() -> None:
        for _ in range(100):
            await agentnb.SessionLoop(Calling(10), [tool]).start("go")

    async def long() -> None:
        await agentnb.SessionLoop(Calling(1000), [tool]).start("go")

    least = least_seconds({"short": short, "long": long}, 7)
    ratio = least["short"] / least["long"]
    with capsys.disabled():
        report("iteration of a run of 10, to one of 1,000", ratio, 1.3, f"{least['short'] * 1e3:.0f} µs")
    assert ratio < 3


def test_an_iteration_in_the_middle_of_a_warm_run(capsys) -> None:
    """Of the same two loops what an iteration alone costs, the steadiest figure: it moves by 2 % from run to run.

    Nothing of an event loop's start, of cold caches, or of collections is in it, which both have their share of above.
    """
    marks: list[float] = []

    async def mark(value: int) -> str:
        marks.append(time.process_time())
        return "x" * 10

    async def bare_marked() -> None:
        async for _ in bare_loop(Calling(1000), {"echo": mark}, "go"):
            pass

    async def ours() -> None:
        await agentnb.SessionLoop(Calling(1000), [agentnb.tool(name="echo")(mark)]).start("go")

    least = dict.fromkeys((bare_marked, ours), float("inf"))
    for _ in range(9):
        for contender in least:
            marks.clear()
            with no_collections():
                asyncio.run(contender())
            parts = [(marks[at + 50] - marks[at]) / 50 for at in range(100, 900, 50)]
            least[contender] = min(least[contender], *parts)
    ratio = least[ours] / least[bare_marked]
    with capsys.disabled():
        detail = f"{least[ours] * 1e6:.1f} µs beside {least[bare_marked] * 1e6:.1f} µs"
        report("iteration alone, in the middle of a warm run", ratio, 2.4, detail)
    assert ratio < 14


def test_an_iteration_costs_the_same_at_the_end_of_a_long_run(capsys) -> None:
    marks: list[float] = []

    async def mark(value: int) -> str:
        marks.append(time.process_time())
        return "x" * 10

    calls, tenth = 10_000, 1_000
    tool = agentnb.tool(name="echo")(mark)

    async def run() -> None:
        await agentnb.SessionLoop(Calling(calls), [tool]).start("go")

    growths = []
    with no_collections():
        for _ in range(3):
            marks.clear()
            asyncio.run(run())
            growths.append((marks[-1] - marks[-1 - tenth]) / (marks[tenth] - marks[0]))
    growth = statistics.median(growths)
    with capsys.disabled():
        report("growth, last tenth of 10,000 iterations to the first", growth, 1.15)
    assert growth < 1.5


def test_a_delta_costs_a_small_multiple_of_the_bare_loops(capsys) -> None:
    deltas = 10_000

    async def bare_deltas() -> None:
        async for _ in bare_loop(Typing(deltas), {}, "go"):
            pass

    async def watched() -> None:
        seen: list[object] = []
        run = agentnb.SessionLoop(Typing(deltas)).start("go")
        run.watch(seen.append)
        await run

    async def pulled() -> None:
        async for _ in agentnb.SessionLoop(Typing(deltas)).start("go"):
            pass

    least = least_seconds({"bare": bare_deltas, "watched": watched, "pulled": pulled}, 7)
    with capsys.disabled():
        report("delta, to a watcher", least["watched"] / least["bare"], 2, f"{least['watched'] / deltas * 1e6:.1f} µs")
        report(
            "delta, pulled by a consumer",
            least["pulled"] / least["bare"],
            2,
            f"{least['pulled'] / deltas * 1e6:.1f} µs",
        )
    assert least["watched"] / least["bare"] < 4
    assert least["pulled"] / least["bare"] < 6


@pytest.mark.parametrize("kind", ["text_delta", "reasoning_delta", "tool_call_delta"])
def test_a_piece_of_a_long_answer_costs_what_one_of_a_short_answer_does(kind: str, capsys) -> None:
    chunk = {"type": kind, "content": "8 signs.", "arguments": "8 signs."}

    def seconds(pieces: int) -> float:
        reply, started = Reply(1), time.process_time()
        for number in range(pieces):
            reply.feed(chunk, number)
        reply.end()
        return time.process_time() - started

    growth = min(seconds(80_000) for _ in range(3)) / min(seconds(20_000) for _ in range(3)) / 4
    with capsys.disabled():
        report(f"{kind}, in 80,000 pieces to 20,000", growth, 1.15)
    assert growth < 2


def test_a_hundred_calls_at_once_take_little_longer_than_gather(capsys) -> None:
    tool = agentnb.tool(nap)
    ratio = float("inf")
    for _ in range(5):

        async def both() -> float:
            started = now()
            await agentnb.SessionLoop(FanningOut(100), [tool]).start("go")
            ours = now() - started
            started = now()
            await asyncio.gather(*(nap(number) for number in range(100)))
            return ours / (now() - started)

        ratio = min(ratio, run_in_own_time(both()))
    with capsys.disabled():
        report("100 parallel calls of 20 ms, to gather", ratio, 1.2)
    assert ratio < 2


def test_a_thousand_runs_at_once_take_a_small_multiple_of_a_thousand_bare_loops(capsys) -> None:
    tool = agentnb.tool(echo)

    async def a_thousand_bare() -> float:
        started = now()
        await asyncio.gather(*(bare(4, pause=0.01) for _ in range(1000)))
        return now() - started

    async def a_thousand() -> float:
        started = now()
        runs = (agentnb.SessionLoop(Calling(4, pause=0.01), [tool]).start("go") for _ in range(1000))
        await asyncio.gather(*(_output(run) for run in runs))
        return now() - started

    with own_heap():
        rounds = [(run_in_own_time(a_thousand()), run_in_own_time(a_thousand_bare())) for _ in range(3)]
    ours, floor = min(ours for ours, _ in rounds), min(floor for _, floor in rounds)
    with capsys.disabled():
        report("1,000 runs at once, 5 requests of 10 ms each", ours / floor, 2, f"{ours:.2f} s")
    assert ours / floor < 5


def test_a_thousand_runs_at_once_take_a_multiple_of_a_thousand_sleepers(capsys) -> None:
    """Each contender begins with a heap of its own: none pays for the garbage of the other."""
    tool = agentnb.tool(echo)

    async def sleep() -> None:
        for _ in range(5):
            await asyncio.sleep(0.01)

    async def run() -> None:
        await agentnb.SessionLoop(Calling(4, pause=0.01), [tool]).start("go")

    async def a_thousand(contender: Contender) -> float:
        started = now()
        await asyncio.gather(*(contender() for _ in range(1000)))
        return now() - started

    least = dict.fromkeys((run, sleep), float("inf"))
    for _ in range(3):
        for contender in least:
            with own_heap():
                least[contender] = min(least[contender], run_in_own_time(a_thousand(contender)))
    ratio = least[run] / least[sleep]
    with capsys.disabled():
        report("1,000 runs at once, 5 requests of 10 ms, to sleepers", ratio, 8, f"{least[run]:.2f} s")
    assert ratio < 50


async def _output(run: agentnb.Run) -> object:
    return await run
