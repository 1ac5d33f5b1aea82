"""The panel of a study: what it sends of the runs and the arms, and its copy in a saved notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import agentnb
from agentnb import SessionLoop, Store, tool
from agentnb.testing import ScriptedLLM, call
from agentnb.widgets.static.study import plain_study, static_study
from agentnb.widgets.views.miniature import CALL, FAILED_CALL, FAILURE, MODEL, QUESTION, Miniature
from agentnb.widgets.views.population import Population, arm_name
from agentnb.widgets.views.shares import difference, half_width, interval
from tests.widgets.hostile import FAMILIES
from tests.widgets.studies import NO_STEP, at_rest, resampling, study
from tests.widgets.study_pages import RecordedStudyPanel
from tests.widgets.support import until


def rows_of(population: Population) -> list[dict[str, Any]]:
    while population.follow():
        pass
    rows, _ = population.changes(0, 10**9)
    return sorted(map(json.loads, rows), key=lambda row: row["n"])


def kinds(run: Any) -> list[int]:
    mini = Miniature()
    mini.follow(run.events)
    return [int(mark[0]) for mark in mini.marks]


# --- one run in miniature ---------------------------------------------------------------------------------------------


@tool
async def fail() -> str:
    """Fail."""
    raise OSError("no")


@tool(approve=True)
async def ask() -> str:
    """Ask."""
    return "asked"


def test_a_strip_has_a_mark_for_each_request_call_question_and_failure() -> None:
    run = SessionLoop(ScriptedLLM([[call("ask"), call("fail")], RuntimeError("busy")]), [ask, fail]).start("go")
    run.play()
    until(lambda: len(run.pending) == 1 and any(event.type == "call_end" for event in run.events))
    mini = Miniature()
    mini.follow(run.events)
    assert [mark[0] for mark in mini.marks if mark[3] < 0] == [QUESTION]
    run.approve(run.pending[0])
    until(lambda: run.state.failure is not None)
    mini.follow(run.events[mini.position :])
    assert sorted(kinds(run)) == sorted([MODEL, QUESTION, CALL, FAILED_CALL, MODEL, FAILURE])
    assert (mini.turns, mini.calls) == (2, 2)
    assert all(mark[3] >= 0 for mark in mini.marks)
    assert mini.waited > 0
    run.cancel()


def test_time_in_which_nothing_worked_has_no_width() -> None:
    run = SessionLoop(ScriptedLLM([call("ask"), "done"]), [ask]).start("go")
    run.play()
    until(lambda: len(run.pending) == 1)
    run.approve(run.pending[0])
    run.result(30)
    # The same run, whose person took an hour.
    asked = next(event.seq for event in run.events if event.type == "approval_decision")
    late = [replace(event, time=event.time + 3600 * (event.seq >= asked)) for event in run.events]
    soon, hour = Miniature(), Miniature()
    soon.follow(run.events)
    hour.follow(late)
    assert hour.waited - soon.waited == pytest.approx(3600)
    assert [mark[2] for mark in hour.marks] == pytest.approx([mark[2] for mark in soon.marks], abs=1e-4)


def test_a_call_that_a_loop_performs_is_shown_as_what_that_loop_does() -> None:
    inner = SessionLoop(ScriptedLLM(["inner answer"]), [], name="inner")
    outer = SessionLoop(ScriptedLLM([call("inner", {"input": "go"}), "done"]), [inner])
    run = outer.start("go")
    run.result(30)
    assert kinds(run) == [MODEL, MODEL, MODEL]


# --- rows and sums ----------------------------------------------------------------------------------------------------


def test_each_run_has_a_row_and_each_arm_its_sums() -> None:
    made = at_rest(study())
    population = Population(made)
    rows = rows_of(population)
    assert [row["kind"] for row in rows] == ["done", "waiting"] * 4
    assert {row["outcome"] for row in rows} == {NO_STEP, "waits for you"}
    assert all(row["turns"] > 1 and row["tokens"] > 900 and row["strip"] for row in rows)
    head = population.head()
    assert (head["sign"], head["words"]) == ("waiting", "4 wait for you")
    assert head["outcomes"] == [NO_STEP]
    sceptic, plain = head["arms"]
    assert (sceptic["name"], sceptic["counts"], sceptic["ended"]) == ("sceptic", {"done": 4}, 4)
    assert sceptic["shares"] == [[4, *interval(4, 4)]]
    assert (plain["counts"], plain["ended"], plain["turns"]) == ({"waiting": 4}, 0, None)

    made.approve(made.pending)
    made.result(30)
    rows = rows_of(population)
    assert [row["kind"] for row in rows] == ["done"] * 8
    assert population.head()["arms"][1]["waited"] > 0
    assert population.head()["sign"] == "done"


def test_an_arm_is_named_by_its_labels_and_by_the_factor_of_a_label_that_is_no_word() -> None:
    assert arm_name({"model": "large", "policy": "plain"}) == "large · plain"
    assert arm_name({"model": "large", "warmth": 0.5}) == "large · warmth 0.5"
    assert arm_name({}) == "all runs"


def test_the_intervals_are_those_of_wilson() -> None:
    assert interval(10, 17) == (0.3601, 0.7839)  # as statsmodels computes it
    assert interval(0, 20)[0] == 0
    assert interval(20, 20)[1] == 1
    assert interval(0, 0) == (0, 1)


def test_differences_are_those_of_newcombe_and_means_have_intervals() -> None:
    assert difference((56, 70), (48, 80)) == (0.2, 0.0524, 0.3339)  # his example (a), 1998
    assert difference((0, 10), (0, 10)) == (0.0, -0.2775, 0.2775)
    assert half_width([4]) is None
    assert half_width([4, 5, 6, 7]) == pytest.approx(1.96 * 1.291 / 2, abs=1e-3)
    made = at_rest(study(approve=True))
    population = Population(made)
    rows_of(population)
    head = population.head()
    shares = [arm["shares"][0][0] / arm["ended"] for arm in head["arms"]]
    assert head["differences"][0][0] == shares[0] - shares[1]
    assert "The difference is 100 points, 31 to 100 (95 %, Newcombe)." in static_study(made)


def test_a_run_that_fails_is_a_row_with_its_error() -> None:
    def make_loop() -> SessionLoop:
        return SessionLoop(ScriptedLLM([RuntimeError("429: the provider is busy")]), [])

    made = agentnb.study(make_loop, ["go"], progress=False)
    made.result(30)
    (row,) = rows_of(Population(made))
    assert (row["kind"], "429" in row["outcome"]) == ("failed", True)
    assert FAILURE in row["strip"][::4]


def test_the_rows_of_a_study_in_a_store_are_read_from_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    study(store=store, approve=True).result(30)
    again = study(store=store, repeats=5, approve=True)
    population = Population(again)
    assert not population.is_read
    population.read()
    rows = rows_of(population)
    assert [row["kind"] for row in rows] == ["done"] * 8 + ["not started"] * 2
    assert all(row["turns"] for row in rows[:8])
    assert population.saying("PUBLISHED on") == [1, 3, 5, 7]
    assert population.saying("nowhere") == []
    again.result(30)
    assert all(row["kind"] == "done" and row["turns"] for row in rows_of(population))
    store.close()


def test_a_page_gets_the_rows_that_it_lacks() -> None:
    made = at_rest(study())
    panel = RecordedStudyPanel(made)
    sent: dict[int, dict[str, Any]] = {}
    reached = 0

    def receive() -> None:
        nonlocal reached
        while not panel.outbox.empty():
            for name, message in panel.outbox.get():
                if not name and message["type"] == "population":
                    assert message["after"] <= reached
                    reached = message["change"]
                    sent.update({row["n"]: row for row in json.loads(message["rows"])})

    until(lambda: receive() or len(sent) == 8)
    made.approve(made.pending)
    until(lambda: receive() or all(row["kind"] == "done" for row in sent.values()))
    sent.clear()
    reached = 0
    panel._receive(panel, {"type": "sync", "have": 0}, [])
    until(lambda: receive() or len(sent) == 8)
    until(lambda: panel.study["sign"] == "done")
    panel.close()


def test_a_study_tells_who_watches_it() -> None:
    made = study(1, approve=True)
    told: list[bool] = []
    stop = made.watch(lambda: told.append(made.is_running))
    made.result(30)
    until(lambda: told[-1:] == [False])
    assert told[0] is True
    stop()
    seen = len(told)
    made.start()
    until(lambda: not made.is_running)
    assert len(told) == seen


# --- the copy in a saved notebook -------------------------------------------------------------------------------------


def test_the_copy_has_the_sums_and_the_first_rows_and_is_small() -> None:
    made = at_rest(study(40))
    page = static_study(made)
    assert len(page.encode()) <= 12_000
    assert page.count("<tr>") == 2 + 2 + 30  # two heads, two arms
    assert "and 50 more runs" in page
    assert page.index("waits for you") < page.index("✓" if "✓" in page else "and 50 more")  # these come first
    assert "●■" in page
    assert "4 of" not in page
    assert "<style" not in page
    assert "<script" not in page
    assert "plain: 40 waiting for you" in plain_study(made)
    made.cancel()


def test_the_copy_of_a_resampling_has_a_bar_for_each_step() -> None:
    drawn = resampling(n=2, turns=14)
    page = static_study(drawn)
    assert len(page.encode()) <= 12_000
    steps = page[page.index('aria-label="Steps"') : page.index('aria-label="Runs"')]
    assert steps.count("<img ") == 12
    assert "and 2 more steps" in steps
    assert "0% (0 of 2; 0% to 66%)" in steps
    assert "and 20 more runs" in page


def test_the_measure_of_a_resampling_is_not_called_by_those_who_wait() -> None:
    drawn = resampling()
    panel = RecordedStudyPanel(drawn)
    until(lambda: panel.steps is not None and panel.steps.data["steps"][-1]["n"] == 4)
    until(lambda: panel.study["steps"]["steps"][-1]["n"] == 4)
    sums = drawn.step_sums()
    assert [step["flips"][0] for step in panel.study["steps"]["steps"]] == [step.flips for step in sums]
    assert panel.study["arms"][1]["name"] == f"turn 2, #{sums[1].at}"
    panel.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_text_is_inert_in_the_copy(family: str) -> None:
    hostile = FAMILIES[family].encode("utf-8", "replace").decode()

    def make_loop(policy: str) -> SessionLoop:
        return SessionLoop(ScriptedLLM([hostile]), [])

    label = hostile[:80].replace("\0", "")  # which no label may have
    made = agentnb.study(make_loop, [hostile], arms={"policy": {label: 1}}, progress=False)
    assert made.result(30).counts["done"] == 1
    page = static_study(made)
    for markup in ("<script", "<img", "<svg", "<iframe", "<style", "<b ", "<a "):
        assert markup not in page.lower()
