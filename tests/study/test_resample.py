"""A resampling draws the steps of a run again, many times, and measures how far each step decides the outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Run, SessionLoop, Store, UsageError, tool
from agentnb.core.events import RunEnd
from agentnb.errors import RecordingMismatch
from agentnb.studies import Resampling
from agentnb.testing import Recorded, ScriptedLLM, call
from tests.designs import EXECUTED, WORLDS
from tests.test_designs import drive
from tests.worlds import until

pytest.importorskip("scipy")

WITHOUT_MODEL = {"engine", "loop_agent"}
"""The designs whose loops are functions here: they have no request that could be drawn."""

TURNS = 4


class World:
    """Makes loops that look three times, and then answer by chance. It counts the requests and the calls."""

    def __init__(self, chance: float = 0.5) -> None:
        self.chance = chance
        self.asked: list[Sequence[Any]] = []
        self.looked: list[int] = []

    def loop(self, seed: int = 0) -> SessionLoop:
        chance = random.Random(seed)

        @tool
        def look(at: int) -> str:
            self.looked.append(at)
            return f"nothing at {at}"

        def answer(messages: Sequence[Any]) -> Any:
            self.asked.append([dict(message) for message in messages])
            looks = sum(message["role"] == "tool" for message in messages)
            if looks < TURNS - 1:
                return call("look", {"at": looks})
            return "yes" if chance.random() < self.chance else "no"

        return SessionLoop(ScriptedLLM([answer], repeat=True), [look])

    async def run(self, seed: int = 0) -> Run:
        run = self.loop(seed).start("Is there something?")
        await run
        return run


def resample(run: Any, *args: Any, **options: Any) -> Resampling:
    return agentnb.resample(run, *args, progress=False, **options)


def requests(run: Run) -> list[int]:
    return [event.seq for event in run.events if event.type == "model_start"]


# --- what is drawn ----------------------------------------------------------------------------------------------------


async def test_one_step_is_drawn_many_times_with_the_messages_that_were_sent() -> None:
    world = World()
    run = await world.run()
    sent, world.asked, world.looked = world.asked, [], []
    drawn = await resample(run, at=requests(run)[1], n=7, until="step", loop=world.loop)
    assert world.asked == [sent[1]] * 7
    assert world.looked == []  # the step ends before a call starts
    assert drawn.counts["done"] == 7
    assert list(drawn.table()["value"]) == ["look"] * 7
    assert [len(sample.drawn.events) for sample in drawn.samples if sample.drawn] == [requests(run)[1] + 2] * 7


async def test_everything_from_a_step_is_drawn_to_the_end_of_the_run() -> None:
    world = World()
    run = await world.run()
    world.asked, world.looked = [], []
    drawn = await resample(run, at=requests(run)[1], n=5, loop=world.loop)
    assert (len(world.asked), len(world.looked)) == (5 * 3, 5 * 2)
    assert set(drawn.table()["value"]) <= {"yes", "no"}
    assert all(sample.run is not None and sample.run.stop_reason == "completed" for sample in drawn)


@pytest.mark.parametrize("distance", [0, 1, 2, 3])
async def test_every_event_of_a_turn_names_its_step(distance: int) -> None:
    run = await World().run()
    at = requests(run)[2] + distance
    assert resample(run, at=at).arms == {"at": [requests(run)[2]]}


async def test_an_event_before_the_first_request_names_the_first_step() -> None:
    run = await World().run()
    assert resample(run, at=0).arms == {"at": [requests(run)[0]]}


async def test_every_turn_is_drawn_and_the_last_one_ends_the_run() -> None:
    world = World()
    run = await world.run()
    drawn = await resample(run, every="turn", n=3, until="step", loop=world.loop)
    table = drawn.table()
    assert list(table["at"].unique()) == requests(run)
    assert list(table["turn"].unique()) == [1, 2, 3, 4]
    last = [sample for sample in drawn.samples if sample.step.seq == requests(run)[-1]]
    assert {sample.run.stop_reason for sample in last if sample.run} == {"completed"}


@pytest.mark.parametrize("world", [name for name in WORLDS if name not in WITHOUT_MODEL])
async def test_a_step_of_every_design_is_one_request_and_starts_no_call(world: str) -> None:
    run = await drive(WORLDS[world]().start("go"))
    EXECUTED.clear()
    drawn = await resample(run, every="turn", n=1, until="step", approve=True)
    assert EXECUTED == []
    assert list(drawn.flip_rates()["n"]) == [1] * len(requests(run))
    for sample in drawn.samples:
        assert sample.run is not None
        own = [event.type for event in sample.run.events[sample.step.seq :]]
        assert (own.count("model_start"), own.count("call_start"), own.count("approval_request")) == (1, 0, 0)


async def test_a_step_without_its_request_has_an_error_in_place_of_a_value() -> None:
    run = await World().run()

    class Impatient(SessionLoop):
        def advance(self, state: Any) -> Any:
            return RunEnd(reason="completed", output="no request")

        @classmethod
        def kind(cls) -> str:
            return SessionLoop.kind()

    drawn = await resample(run, at=0, n=1, until="step", loop=Impatient(ScriptedLLM(["never"])))
    assert list(drawn.table()["error"]) == ["ValueError: The request of the step has no answer."]


async def test_recorded_tools_serve_what_is_not_to_vary() -> None:
    world = World()
    run = await world.run()
    world.looked = []
    model = world.loop(3).llm
    drawn = await resample(run, at=0, n=4, loop=lambda: SessionLoop(model, Recorded(run).tools))
    assert world.looked == []
    assert drawn.counts["done"] == 4


async def test_a_saved_run_can_be_drawn_from_and_its_store_stays_as_it_is(tmp_path: Path) -> None:
    world = World()
    store = Store(tmp_path / "runs.db")
    run = world.loop().start("Is there something?", store=store)
    await run
    await resample(run, at=0, n=3)
    assert len(store.runs()) == 1
    path = tmp_path / "run.agentnb.json"
    run.snapshot().save(path)
    drawn = await resample(path, at=0, n=3, loop=world.loop)
    assert drawn.counts["done"] == 3


# --- results ----------------------------------------------------------------------------------------------------------


async def test_equal_seeds_give_equal_tables() -> None:
    run = await World().run()

    async def table(seed: int) -> Any:
        drawn = await resample(run, every="turn", n=3, seed=seed, loop=World().loop)
        return drawn.table()

    one, same, other = await table(1), await table(1), await table(2)
    assert one.equals(same)
    assert not one["seed"].equals(other["seed"])


async def test_shares_flips_and_intervals_are_those_of_the_samples() -> None:
    world = World(0.3)
    run = await world.run()
    recorded = run.output
    drawn = await resample(run, at=requests(run)[-1], n=40, loop=world.loop)
    values = list(drawn.table()["value"])
    (flips,) = drawn.flip_rates().to_dict("records")
    assert flips["flips"] == sum(value != recorded for value in values)
    assert flips["low"] < flips["rate"] == flips["flips"] / 40 < flips["high"]
    for row in drawn.distribution().to_dict("records"):
        assert row["count"] == values.count(row["value"])
        assert row["low"] < row["share"] < row["high"]
    narrow, wide = drawn.flip_rates(0.5).iloc[0], drawn.flip_rates(0.99).iloc[0]
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


async def test_numbers_have_a_mean_with_an_interval() -> None:
    world = World()
    run = await world.run()
    drawn = await resample(run, at=0, n=20, loop=world.loop, measure=lambda run: len(str(run.output)))
    (row,) = drawn.distribution().to_dict("records")
    values = list(drawn.table()["value"])
    assert set(values) == {2, 3}
    assert row["mean"] == pytest.approx(sum(values) / 20)
    assert 2 < row["low"] < row["mean"] < row["high"] < 3


async def test_a_measure_that_raises_is_a_row_with_its_error() -> None:
    world = World()
    run = await world.run(1)

    def measure(run: Any) -> Any:
        if run.output == "no":
            raise ValueError("this one")
        return run.output if run.stop_reason == "completed" else [1]

    drawn = await resample(run, at=requests(run)[-1], n=20, loop=world.loop, measure=measure)
    table = drawn.table()
    failed = table[table["error"].notna()]
    assert 0 < len(failed) < 20
    assert set(failed["error"]) == {"ValueError: this one"}
    assert set(table[table["error"].isna()]["value"]) == {"yes"}
    (flips,) = drawn.flip_rates().to_dict("records")
    assert flips["failed"] == len(failed)
    assert flips["failed"] + flips["n"] == 20
    (yes,) = drawn.distribution().to_dict("records")
    assert (yes["n"], yes["failed"], yes["share"]) == (flips["n"], flips["failed"], 1)
    assert f"; {len(failed)} failed" in drawn._repr_html_()


async def test_a_sample_whose_model_fails_is_a_row_with_its_error() -> None:
    run = await World().run()
    broken = SessionLoop(ScriptedLLM([ValueError("out of order")], repeat=True), [])
    drawn = await resample(run, at=0, n=2, loop=broken)
    assert drawn.counts["failed"] == 2
    assert all("out of order" in error for error in drawn.table()["error"])
    assert list(drawn.flip_rates()["failed"]) == [2]
    assert drawn.distribution().empty


async def test_a_sample_whose_loop_fails_has_no_value() -> None:
    world = World()
    run = await world.run()

    class Broken(SessionLoop):
        def advance(self, state: Any) -> Any:
            if state.model == "answered" or state.calls:
                raise ValueError("the loop is broken")
            return super().advance(state)

        @classmethod
        def kind(cls) -> str:
            return SessionLoop.kind()

    drawn = await resample(run, at=0, n=2, loop=lambda: Broken(world.loop().llm, world.loop().tools))
    table = drawn.table()
    assert list(table["status"]) == ["failed"] * 2
    assert list(table["value"]) == [None] * 2
    assert all("the loop is broken" in error for error in table["error"])
    assert list(drawn.flip_rates()["failed"]) == [2]


async def test_before_the_end_there_are_rows_without_values() -> None:
    run = await World().run()
    drawn = resample(run, at=0, n=2)
    assert list(drawn.table()["status"]) == ["not started"] * 2
    assert drawn.distribution().empty
    assert "no samples yet" in drawn._repr_html_()


async def test_a_cell_shows_the_flip_rate_of_each_step_and_the_panel_its_samples() -> None:
    world = World()
    run = await world.run()
    drawn = await resample(run, every="turn", n=3, loop=world.loop)
    html = drawn._repr_html_()
    assert html.count("<meter") == TURNS
    assert "of 3; 95 %:" in html
    assert "12 of 12 done" in repr(drawn)
    panel = drawn.panel()
    assert panel is drawn.panel()
    panel.close()
    assert len(agentnb.analysis.runs(drawn)) == 12


# --- questions and cancelling -----------------------------------------------------------------------------------------


def asking() -> SessionLoop:
    @tool(approve=True)
    def send(to: str) -> str:
        return f"sent to {to}"

    def answer(messages: Sequence[Any]) -> Any:
        return str(messages[-1]["content"]) if messages[-1]["role"] == "tool" else call("send", {"to": "Ada"})

    return SessionLoop(ScriptedLLM([answer], repeat=True), [send])


async def test_questions_of_samples_wait_and_are_listed() -> None:
    run = asking().start("go", approve=True)
    await run
    drawn = resample(run, at=0, n=3, loop=asking, approve=[{"tool": "send", "decision": "ask"}], at_once=1).start()
    await until(lambda: len(drawn.pending) == 3)
    assert drawn.approve(drawn.pending[:2]) == 2
    drawn.reject(drawn.pending[0], "no")
    await drawn
    assert sorted(drawn.table()["value"])[1:] == ["sent to Ada", "sent to Ada"]


async def test_a_policy_decides_and_a_single_step_asks_nobody() -> None:
    run = asking().start("go", approve=True)
    await run
    drawn = await resample(run, at=0, n=2, loop=asking)  # with the policy of the run
    assert set(drawn.table()["value"]) == {"sent to Ada"}
    drawn = await resample(run, at=0, n=2, until="step", loop=asking, approve=[{"tool": "send", "decision": "ask"}])
    assert (set(drawn.table()["value"]), drawn.pending) == ({"send"}, [])


async def test_a_cancelled_resampling_draws_the_rest_when_it_is_started_again() -> None:
    waits = asyncio.Event()
    world = World()
    run = await world.run()

    @tool
    async def look(at: int) -> str:
        if not waits.is_set():
            await asyncio.Event().wait()
        return "nothing"

    def loop() -> SessionLoop:
        return SessionLoop(world.loop().llm, [look])

    drawn = resample(run, at=0, n=3, loop=loop, at_once=2).start()
    await until(lambda: drawn.counts["running"] == 2)
    drawn.cancel()
    await drawn
    assert drawn.counts["cancelled"] == 2
    waits.set()
    await drawn.start()
    assert drawn.counts["done"] == 3


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": 99}, r"at= must be the number of an event of the run, 0 to 16, not 99"),
        ({"at": -1}, r"0 to 16, not -1"),
        ({"at": "first"}, r"not 'first'"),
        ({}, r"Pass either at="),
        ({"at": 0, "every": "turn"}, r"Pass either at="),
        ({"every": "event"}, r"every= must be \"turn\", not 'event'"),
        ({"at": 0, "n": 0}, r"n= must be a whole number of at least 1, not 0"),
        ({"at": 0, "until": "turn"}, r"until= must be 'step' or 'end'"),
        ({"at": 0, "measure": 3}, r"measure= must be a function that takes a run, not 3"),
        ({"at": 0, "at_once": 0}, r"at_once= must be a whole number"),
        ({"at": 0, "loop": lambda other: None}, r"cannot be called"),
        ({"at": 0, "limits": {"turn": 1}}, r"no limit 'turn'"),
    ],
)
async def test_what_cannot_be_drawn_is_refused(options: dict[str, Any], message: str) -> None:
    run = await World().run()
    with pytest.raises(UsageError, match=message):
        resample(run, **options)


async def test_a_run_without_requests_has_no_step() -> None:
    run = await drive(WORLDS["loop_agent"]().start("go"))
    assert not requests(run)
    with pytest.raises(UsageError, match="has made no request to a model"):
        resample(run, every="turn")
    with pytest.raises(UsageError, match="this run has none"):
        resample(run, at=0)
    with pytest.raises(UsageError, match="to which event 0 belongs"):
        resample(run, at=0)


async def test_a_loop_of_another_kind_or_none_is_refused(tmp_path: Path) -> None:
    run = await World().run()
    with pytest.raises(RecordingMismatch):
        resample(run, at=0, loop=WORLDS["engine"]())
    with pytest.raises(UsageError, match="loop of this recording is not known"):
        resample(run.snapshot(), at=0)


async def test_a_confidence_is_a_share() -> None:
    run = await World().run()
    with pytest.raises(UsageError, match="between 0 and 1"):
        resample(run, at=0).flip_rates(95)
