"""`analysis.runs` has a row for each run of a study, of a store, or of any recordings."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import RunFailed, SessionLoop, Store, tool
from agentnb.analysis import COLUMNS, runs
from agentnb.store.recordings import AT_A_TIME
from agentnb.testing import ScriptedLLM, call
from tests.study.loops import asking, send, talking
from tests.worlds import until


def used(read: int, wrote: int, cost: float) -> dict[str, Any]:
    return {"type": "usage", "usage": {"input_tokens": read, "output_tokens": wrote, "cost": cost}}


@tool
async def divide(by: int) -> float:
    """Divide one."""
    return 1 / by


async def test_every_column_is_documented_in_the_frame_itself(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    study = await agentnb.study(talking, ["go"], arms={"model": ["a"]}, store=store, progress=False)
    frame = runs(study)
    assert list(frame.columns) == [*COLUMNS["runs"], "arm_model"]
    assert list(frame.attrs["columns"]) == list(frame.columns)
    assert list(runs([]).columns) == list(COLUMNS["runs"])


async def test_a_row_counts_what_happened() -> None:
    turns = [
        [call("divide", {"by": 0}), used(10, 1, 0.5)],
        [call("divide", {"by": 0}), call("divide", {"by": 2}), used(20, 2, 0.25)],
        "done",
    ]
    run = SessionLoop(ScriptedLLM(turns), [divide]).start("go", name="one", tags=["b", "a"])
    await run
    (row,) = runs(run).itertuples()
    assert (row.run, row.id, row.loop, row.outcome, row.stop_reason, row.output) == (
        *("one", run.id, "SessionLoop", "done"),
        *("completed", "done"),
    )
    assert (row.turns, row.calls, row.retries, row.call_errors, row.model_errors) == (3, 3, 1, 2, 0)
    assert (row.input_tokens, row.output_tokens, row.cost) == (30, 3, 0.75)
    assert row.seconds == pytest.approx(run.events[-1].time - run.events[0].time)
    assert (row.events, row.tags) == (len(run.events), ["a", "b"])
    assert (row.study, row.arm) == (None, "") or math.isnan(row.study)


async def test_a_row_says_how_long_questions_waited_and_who_decided() -> None:
    turn = [call("send", {"to": "a"}), call("send", {"to": "b"})]
    run = SessionLoop(ScriptedLLM([turn, "done"]), [send]).start("go")
    run.play()
    await until(lambda: len(run.pending) == 2)
    for item in run.pending:
        run.approve(item)
    await run
    (row,) = runs(run).itertuples()
    asked, decided = (
        [event.time for event in run.events if event.type == kind] for kind in ("approval_request", "approval_decision")
    )
    assert row.waited == pytest.approx(max(decided) - min(asked))
    assert (row.decisions, row.by_code, row.by_human, row.by_policy) == (2, 2, 0, 0)

    by_rule = await agentnb.study(asking, ["go"], approve=lambda call: "approve", progress=False)
    (row,) = runs(by_rule).itertuples()
    assert (row.decisions, row.by_policy) == (1, 1)


async def test_runs_that_failed_were_cancelled_or_are_open_have_a_row() -> None:
    failed = SessionLoop(ScriptedLLM([ConnectionError("no route")]), []).start("go", name="failed")
    with pytest.raises(RunFailed):
        await failed
    cancelled = talking().start("go", name="cancelled")
    cancelled.cancel()
    unfinished = asking().start("go", name="open")
    await unfinished.step("turn")
    frame = runs([failed, cancelled, unfinished]).set_index("run")
    assert frame.outcome.to_dict() == {"failed": "failed", "cancelled": "cancelled", "open": "open"}
    assert frame.error["failed"] == "ConnectionError: no route"
    assert frame.model_errors["failed"] == 1


@pytest.mark.parametrize("stored", [True, False])
async def test_a_study_has_a_row_for_each_cell_with_its_arm(tmp_path: Path, stored: bool) -> None:
    store = Store(tmp_path / "runs.db") if stored else None

    def make_loop(model: str, warmth: float) -> SessionLoop:
        if model == "broken" and make_loop.__dict__.setdefault("made", 0) >= 1:
            raise OSError("no model")
        make_loop.__dict__["made"] = make_loop.__dict__.get("made", 0) + (model == "broken")
        return talking(model)

    arms = {"model": ["a", "broken"], "warmth": [0.5]}
    study = agentnb.study(make_loop, ["x", "y"], 2, arms=arms, store=store, seed=4, progress=False)
    assert runs(study).outcome.tolist() == ["not started"] * 8
    frame = runs(await study)
    assert frame.groupby("arm_model").outcome.unique().map(list).to_dict() == {"a": ["done"], "broken": ["failed"]}
    assert set(frame.arm) == {"model=a, warmth=0.5", "model=broken, warmth=0.5"}
    assert set(frame.arm_warmth) == {0.5}
    assert set(frame.error.dropna()) == {"OSError: no model"}
    assert sorted(frame.seed) == sorted(run.seed for run in study)
    assert len(frame.groupby(["arm", "input", "repeat"])) == 8


async def test_the_rows_of_a_study_are_those_of_its_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    study = await agentnb.study(talking, ["go"], 5, arms={"model": ["a", "b"]}, store=store, progress=False)
    await talking().start("go", store=store, name="another")
    of_store, of_study = runs(store), runs(study)
    assert len(of_store) == 11
    assert len(of_study) == 10
    both = of_study.merge(of_store, on="id", suffixes=("", "_of_store"))
    for column in ("outcome", "turns", "events", "seed", "arm", "seconds"):
        assert both[column].tolist() == both[f"{column}_of_store"].tolist()


async def test_equal_seeds_give_equal_tables() -> None:
    def make_loop(model: str, seed: int) -> SessionLoop:
        turns = [[call("divide", {"by": seed % 3})]] * (seed % 4)
        return SessionLoop(ScriptedLLM([*turns, f"{model} {seed % 7}"]), [divide])

    def table(at_once: int) -> Any:
        study = agentnb.study(
            make_loop, ["x", "y"], 10, arms={"model": ["a", "b"]}, seed=5, at_once=at_once, progress=False
        )
        frame = runs(study.result(60))
        return frame.drop(columns=["id", "time", "began", "seconds", "waited", "arm_model"]).to_dict("records")

    one, other = table(1), table(8)
    assert str(one) == str(other)
    assert len({row["turns"] for row in one}) == 4


async def test_current_tags_are_those_of_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    await talking().start("go", store=store, name="one", tags=["first"])
    store.tag("one", "later")
    store.untag("one", "first")
    assert runs(store).tags.tolist() == [["later"]]


async def test_inherited_events_count_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    turns = [[call("divide", {"by": 1}), used(10, 1, 0.5)], "done"]
    run = SessionLoop(ScriptedLLM(turns), [divide])
    first = run.start("go", store=store)
    await first
    fork = first.fork(at=len(first.events) - 2, store=store)
    await fork
    frame = runs(store).set_index("id")
    assert frame.calls.to_dict() == {first.id: 1, fork.id: 0}
    assert frame.cost[first.id] == 0.5
    assert math.isnan(frame.cost[fork.id])


async def test_more_runs_than_one_statement_reads(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    await agentnb.study(talking, ["go"], AT_A_TIME + 20, store=store, progress=False)
    frame = runs(store)
    assert len(frame) == AT_A_TIME + 20
    assert set(frame.outcome) == {"done"}
    assert frame.id.nunique() == len(frame)


async def test_a_damaged_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    study = await agentnb.study(talking, ["go"], 3, store=store, progress=False)
    store.close()
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE events SET body = X'00' WHERE key = (SELECT min(key) + 1 FROM events)")
    connection.close()
    with pytest.warns(RuntimeWarning, match=f"The run '{study.runs[0].name}' is left out"):
        frame = runs(Store(tmp_path / "runs.db"))
    assert set(frame.run) == {run.name for run in study.runs[1:]}
