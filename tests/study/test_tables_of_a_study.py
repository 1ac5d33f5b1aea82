"""Each table of a study says to which arm, input and repeat a row belongs, and when it was; `runs` says who decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest

import agentnb
from agentnb import SessionLoop, Store, analysis
from agentnb.run import headless
from agentnb.run.approvals.decisions import decided_by_person
from agentnb.studies import Study
from agentnb.testing import ScriptedLLM, call
from tests.study.loops import asking, send
from tests.worlds import until

TABLES = ("runs", "calls", "decisions", "events", "messages")
PLACE = {"study", "arm", "arm_model", "input", "input_key", "input_text", "repeat"}


def asked(store: Store | None = None, inputs: tuple[Any, ...] = ("first", {"n": 2})) -> Study:
    study = agentnb.study(
        asking, list(inputs), 2, arms={"model": ["a", "b"]}, approve=True, store=store, name="pilot", progress=False
    )
    return study.result(30)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("table", TABLES)
def test_a_row_has_the_place_of_its_run(table: str, stored: bool, tmp_path: Path) -> None:
    study = asked(Store(tmp_path / "runs.db") if stored else None)
    frame = getattr(analysis, table)(study)
    assert set(frame.attrs["columns"]) == set(frame.columns) > PLACE
    places = frame.groupby(["arm_model", "input", "input_text", "repeat"]).run.unique().map(list).to_dict()
    texts = ("first", '{"n":2}')
    assert places == {
        (run.arm["model"], run.cell.input_number, texts[run.cell.input_number], run.repeat): [run.name] for run in study
    }


@pytest.mark.parametrize("table", TABLES)
def test_the_time_is_a_time_of_day(table: str, tmp_path: Path) -> None:
    study = asked(Store(tmp_path / "runs.db"), inputs=("first",))
    frame = getattr(analysis, table)(study)
    assert frame.time.dtype == "datetime64[ns, UTC]"
    began = analysis.runs(study).set_index("run").began
    assert (frame.time >= frame.run.map(began)).all()
    assert (frame.time.max() - began.min()) < pandas.Timedelta(minutes=5)


@pytest.mark.parametrize("written", [False, True])
def test_sql_has_the_same_columns(written: bool, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    study = asked()
    place: Any = analysis.to_parquet(study, tmp_path / "tables") if written else study
    with analysis.connect(place) as database:
        for table in TABLES:
            sql = f"SELECT DISTINCT study, arm_model, input, input_text, typeof(time) FROM {table} ORDER BY ALL"
            found = database.execute(sql).fetchall()
            assert found[0] == ("pilot", "a", 0, "first", "TIMESTAMP WITH TIME ZONE")
            assert len(found) == 4


def test_the_number_of_an_input_is_that_of_the_study_that_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    asked(store, ("first", "second"))
    turned = asked(store, ("second", "first"))
    for table in TABLES:
        numbers = getattr(analysis, table)(turned).groupby("input_text").input.unique().map(list).to_dict()
        assert numbers == {"second": [0], "first": [1]}


def test_a_run_of_no_study_has_its_input_and_no_arm() -> None:
    run = asking().start("hello", approve=True)
    run.result(30)
    for table in TABLES:
        frame = getattr(analysis, table)(run)
        assert set(frame.input_text) == {"hello"}
        assert frame.study.isna().all()
        assert frame.input.isna().all()


# -- who decided -------------------------------------------------------------------------------------------------------


def by(run: Any) -> dict[str, int]:
    (row,) = analysis.runs(run).to_dict("records")
    return {str(name): number for name, number in row.items() if str(name).startswith("by_") and number}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headless, "_declared", None)
    agentnb.headless("approve", after=0, attended=False)


async def test_a_rule_and_a_function_are_policies() -> None:
    for policy in ([{"tool": "send", "decision": "approve"}], lambda call: "approve"):
        run = asking().start("go", approve=policy)
        await run
        assert by(run) == {"by_policy": 1}


async def test_an_absent_person_is_no_policy(nobody: None) -> None:
    run = asking().start("go")
    await run
    assert by(run) == {"by_absent": 1}


async def test_a_deadline_is_no_policy() -> None:
    run = asking().start("go", approve=[{"decision": "ask", "deadline": 0.01}])
    await run
    assert by(run) == {"by_deadline": 1}


async def test_a_rule_that_a_person_has_made_is_no_policy_and_the_person_is_named() -> None:
    turns = [[call("send", {"to": "a"}, id="one"), call("send", {"to": "b"}, id="two")], "end"]
    run = SessionLoop(ScriptedLLM(turns), [send]).start("go")
    run.play()
    await until(lambda: len(run.pending) == 2)
    decided_by_person(run, 1.0).approve(run.pending[0], remember="tool", reviewer="Ada")
    await run
    assert by(run) == {"by_human": 1, "by_remembered": 1}
    assert analysis.runs(run).reviewers.tolist() == ["Ada"]


async def test_a_decision_that_was_withdrawn_is_counted_as_such() -> None:
    run = asking().start("go")
    await run.step("turn")
    run.approve(run.pending[0], reviewer="Ada")
    run.undo(run.decided[0], reviewer="Bob")
    run.reject(run.pending[0], reviewer="Bob")
    await run
    (row,) = analysis.runs(run).itertuples()
    assert (row.decisions, row.withdrawn, row.reviewers) == (2, 1, "Ada, Bob")
    decided = analysis.decisions(run)
    assert row.decisions == (decided.decision != "ask").sum()
