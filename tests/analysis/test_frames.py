"""Recordings as tables: a row for each event, call, message or decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas
import pytest

from agentnb import SessionLoop, Store, UsageError, replay, restore
from agentnb.analysis import COLUMNS, backtest, calls, decisions, events, messages
from agentnb.testing import ScriptedLLM, call
from tests.analysis.recordings import decided_run, read, researcher
from tests.designs import WORLDS
from tests.test_designs import drive

every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
FRAMES = {"events": events, "calls": calls, "messages": messages, "decisions": decisions}


def times_of(frame: pandas.DataFrame, call_id: str) -> list[float]:
    row = frame[frame.call_id == call_id].iloc[0]
    return [row.proposed, row.asked, row.decided, row.started, row.ended]


# -- what the tables hold --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FRAMES))
async def test_every_column_is_documented_in_the_frame_itself(run: Any, kind: str) -> None:
    frame = FRAMES[kind](run)
    assert list(frame.columns) == list(COLUMNS[kind])
    assert frame.attrs["columns"] == COLUMNS[kind]


@every_world
async def test_runs_of_every_design_have_a_row_for_each_event_and_each_call(world: Callable[[], Any]) -> None:
    run = world().start("go", approve=True)
    await run
    assert events(run).seq.tolist() == [event.seq for event in run.events]
    ended = [(event.path, event.call_id) for event in run.events if event.type == "call_end"]
    table = calls(run)
    assert sorted(zip(table.path, table.call_id, strict=True)) == sorted(ended)
    assert table.outcome.notna().all()


@every_world
async def test_every_message_of_every_history_has_a_row(world: Callable[[], Any]) -> None:
    run = world().start("go", approve=True)
    await run
    outer = messages(run)
    outer = outer[outer.path == ""]
    assert outer.role.tolist() == [message.role for message in run.state.messages]


async def test_a_row_of_a_call_has_all_times_from_proposal_to_result(run: Any) -> None:
    table = calls(run)
    assert table.call_id.tolist() == ["r1", "r2", "w0", "w1", "w2", "w3"]
    assert table.tool.tolist() == ["read"] * 2 + ["write"] * 4
    assert table.outcome.tolist() == ["returned", "returned", "returned", "rejected", "returned", "raised"]
    assert table.decision.tolist()[2:] == ["approve", "reject", "edit", "approve"]
    assert table.arguments.tolist()[4] == {"path": "d", "content": "x"}
    assert table.error.tolist()[5] == "PermissionError"
    assert table.turn.tolist() == [1, 1, 2, 2, 2, 2]
    for call_id in ("w0", "w2", "w3"):
        assert times_of(table, call_id) == sorted(times_of(table, call_id))


async def test_the_time_of_an_event_that_has_not_happened_is_nan(run: Any) -> None:
    row = calls(run).set_index("call_id").loc["r1"]
    assert math.isnan(row.asked)
    assert math.isnan(row.waited)
    assert row.took == pytest.approx(row.ended - row.started)
    assert math.isnan(calls(run).set_index("call_id").loc["w1"].started)


async def test_the_duration_of_a_call_lost_in_a_crash_is_nan(run: Any) -> None:
    seq = next(event.seq for event in run.events if event.type == "call_start" and event.call_id == "w3")
    other = restore(run.at(seq).snapshot(), researcher())
    other.answer("w3", "written")
    row = calls(other).set_index("call_id").loc["w3"]
    assert row.started <= row.asked <= row.ended
    assert math.isnan(row.took)


async def test_a_row_of_a_decision_has_the_question_and_the_result(run: Any) -> None:
    table = decisions(run)
    assert table.decision.tolist() == ["approve", "reject", "edit", "approve"]
    assert set(table.by) == {"code"}
    assert table.arguments.tolist()[2] == {"path": "c"}
    assert table.instead.tolist()[2] == {"path": "d", "content": "x"}
    assert table.reason.tolist()[1] == "not b"
    assert (table.waited > 0).all()


@every_world
async def test_waited_and_took_are_differences_of_event_times(world: Callable[[], Any]) -> None:
    """Compute the columns `waited` and `took` from the events, by their descriptions."""
    run = await drive(world().start("go"))
    since: dict[tuple[str, str, str], float] = {}
    waited: list[float] = []
    answered: list[float] = []
    for event in run.events:
        since[event.type, event.path, getattr(event, "call_id", "")] = event.time
        if event.type == "approval_decision" and event.by == "code":
            waited.append(event.time - since["approval_request", event.path, event.call_id])
        elif event.type == "model_end":
            answered.append(event.time - since["model_start", event.path, ""])
    assert decisions(run).query("by == 'code'").waited.tolist() == pytest.approx(waited)
    assert sorted(calls(run).waited.dropna()) == pytest.approx(sorted(waited))
    assert messages(run).took.dropna().tolist() == pytest.approx(answered)


async def test_rows_of_answers_have_their_tokens_and_their_cost(run: Any) -> None:
    answers = messages(run).query("role == 'assistant'")
    assert answers.input_tokens.tolist() == [100, 200, 300]
    assert answers.cost.sum() == pytest.approx(0.06)
    assert answers.calls.tolist() == [2, 4, 0]
    assert (answers.took > 0).all()


async def test_events_have_the_time_of_day_and_the_seconds_since_the_first(run: Any) -> None:
    table = events(run)
    assert table.seconds.iloc[0] == 0
    assert table.seconds.is_monotonic_increasing
    assert str(table.time.dt.tz) == "UTC"
    assert (table.time.iloc[-1] - table.time.iloc[0]).total_seconds() == pytest.approx(table.seconds.iloc[-1], abs=1e-5)


# -- what they are made of -------------------------------------------------------------------------------------------


async def test_every_form_of_a_recording_results_in_the_same_table(run: Any, tmp_path: Path) -> None:
    table = calls(run)
    saved = run.snapshot("nile").save(tmp_path / "nile.agentnb.json")
    for other in (replay(run), run.snapshot("nile"), saved, str(saved), [run], {"nile": run}):
        pandas.testing.assert_frame_equal(calls(other), table)


async def test_the_table_of_a_store_has_all_its_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    for name in ("one", "two"):
        await researcher().start("Look.", name=name, store=store, approve=True)
    assert list(dict.fromkeys(calls(store).run)) == ["one", "two"]
    store.close()
    assert list(dict.fromkeys(calls(tmp_path / "runs.db").run)) == ["one", "two"]


async def test_several_runs_of_the_same_name_are_numbered(run: Any) -> None:
    assert list(dict.fromkeys(events([run, run, run]).run)) == ["nile", "nile#2", "nile#3"]


async def test_a_run_in_progress_is_read_up_to_its_last_event() -> None:
    run = researcher().start("Look.")
    await run.step("turn")
    assert calls(run).outcome.tolist() == ["returned", "returned"]
    run.cancel()


@pytest.mark.parametrize("nothing", [3, None, [object()]])
def test_a_value_that_is_not_a_recording_is_refused(nothing: Any) -> None:
    with pytest.raises(UsageError, match="is not a recording"):
        events(nothing)


async def test_a_part_of_a_recording_is_refused() -> None:
    run = await decided_run()
    for part in (run.events, calls(run)):
        with pytest.raises(UsageError, match="is not a recording: pass a run"):
            events(part)


async def test_the_error_for_an_entry_of_a_store_says_how_to_load_it(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "runs.db")) as store:
        await researcher().start("Look.", store=store).step("event")
        with pytest.raises(UsageError, match=r"pass store\.load\(info\.id\)"):
            events(store.runs())


@pytest.mark.parametrize("kind", list(FRAMES))
async def test_the_type_of_a_column_does_not_depend_on_its_values(run: Any, kind: str) -> None:
    begun = researcher().start("Look.")
    await begun.step("event")
    types = [dict(FRAMES[kind](of).dtypes) for of in ([], begun, [researcher().start("Look.")], run)]
    assert list(types[0]) == list(COLUMNS[kind])
    assert types[:-1] == [types[-1]] * 3


def test_the_empty_table_of_a_back_test_has_the_same_types(run: Any) -> None:
    assert dict(backtest(True, []).frame.dtypes) == dict(backtest(True, run).frame.dtypes)


async def test_a_call_that_has_not_ended_is_neither_an_error_nor_a_success(run: Any) -> None:
    first = next(event.seq for event in run.events if event.type == "call_end")
    table = calls(run.at(first).snapshot())
    assert table.is_error.isna().tolist() == [False, True]
    assert table[table.is_error].empty


async def test_only_messages_of_the_user_have_an_origin() -> None:
    turns = [[call("read", {"table": "a"}, id="r1")], "done"]
    run = SessionLoop(ScriptedLLM(turns), [read], steering_mode="discard").start("Look it up.")
    run.watch(lambda event: event.type == "call_start" and run.steer("Look elsewhere."))
    await run
    told = messages(run)[["role", "origin"]].astype(object).where(lambda frame: frame.notna(), None)
    assert told.to_numpy().tolist() == [
        ["user", "input"],
        ["assistant", None],
        ["tool", None],  # it entered the history together with the next message
        ["user", "steering"],
        ["assistant", None],
    ]


async def test_changing_a_row_does_not_change_the_recording(run: Any) -> None:
    before = [event.model_dump(mode="json") for event in run.events]
    for arguments in calls(run).arguments:
        arguments["added"] = 1
    assert [event.model_dump(mode="json") for event in run.events] == before
