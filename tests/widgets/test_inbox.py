"""The inbox of a study: the questions of all its runs, decided together, and decisions for all its runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

import agentnb
from agentnb.core.errors import UsageError
from agentnb.core.events import ApprovalDecision
from agentnb.studies import Study
from tests.widgets.axe import faults
from tests.widgets.studies import analyst, at_rest, study
from tests.widgets.study_pages import RecordedStudyPanel, StudyPage
from tests.widgets.support import until


def plain(repeats: int = 3, **options: Any) -> Study:
    """Return a study whose runs all ask once."""
    return study(repeats, arms={"policy": ["plain"]}, **options)


def decisions(made: Study) -> list[ApprovalDecision]:
    recordings = [run.recording for run in made]
    return [
        event
        for recording in recordings
        if recording is not None
        for event in recording.events
        if isinstance(event, ApprovalDecision)
    ]


def verdict(question: dict[str, Any], **values: Any) -> dict[str, Any]:
    identity = {name: question[name] for name in ("run", "path", "event", "id", "attempt", "digest")}
    return {**identity, "decision": "approve", "seconds": 2.5, **values}


@pytest.fixture
def asked() -> Iterator[tuple[Study, RecordedStudyPanel]]:
    made = at_rest(plain())
    panel = RecordedStudyPanel(made, parts=["inbox"])
    until(lambda: len(panel.pending) == 3)
    yield made, panel
    made.cancel()
    panel.close()


def answer(panel: RecordedStudyPanel, **message: Any) -> dict[str, Any]:
    panel._receive(panel, {"token": "t", **message}, [])
    found: dict[str, Any] = {}
    while not panel.outbox.empty():
        found = next((one for _, one in panel.outbox.get() if isinstance(one, dict) and one.get("token") == "t"), found)
    return found


# --- rules of a study -------------------------------------------------------------------------------------------------


def test_a_decision_for_all_runs_decides_those_that_wait_and_those_that_ask_later() -> None:
    made = at_rest(plain(6, at_once=1))  # each waits, so all have asked
    first, *_ = made.pending
    assert made.approve(first, remember="tool", everywhere=True, reviewer="Ada") == 1
    made.result(30)
    assert made.counts["done"] == 6
    by = [(one.by, one.reviewer, one.shown is not None) for one in decisions(made)]
    assert sorted(by) == [("code", "Ada", True)] + [("remembered", "Ada", False)] * 5
    (rule,) = made.rules
    assert (rule.tool, rule.arguments, rule.decision, rule.by) == ("publish", None, "approve", "code")


def test_runs_that_start_later_are_decided_by_the_rule() -> None:
    later = agentnb.study(analyst, ["Is there a step?"], 4, arms={"policy": ["sceptic", "plain"]}, progress=False)
    later.start()
    until(lambda: later.pending)
    later.reject(later.pending[0], "not today", remember="tool", everywhere=True)
    later.result(30)
    made = decisions(later)
    assert {one.decision for one in made} == {"reject"}
    assert all(one.reason == "not today" for one in made)


def test_a_rule_for_arguments_decides_only_calls_with_these() -> None:
    made = at_rest(plain(8))
    item = made.pending[0]
    same = [one for one in made.pending if one.arguments == item.arguments]
    made.approve(item, remember="arguments", everywhere=True)
    until(lambda: len(made.pending) == 8 - len(same))
    assert all(one.arguments != item.arguments for one in made.pending)
    made.cancel()


def test_a_rule_can_be_forgotten_and_needs_something_to_remember() -> None:
    made = at_rest(plain(2))
    item = made.pending[0]
    with pytest.raises(UsageError, match="remember="):
        made.approve(item, everywhere=True)
    made.approve(item, remember="arguments", everywhere=True)
    made.forget(made.rules[0])
    assert made.rules == []
    with pytest.raises(UsageError, match="no rule"):
        made.forget(7)
    made.cancel()


# --- what the page gets, and what it sends ----------------------------------------------------------------------------


def test_the_questions_of_all_runs_have_their_arm_and_their_run(asked: tuple[Study, RecordedStudyPanel]) -> None:
    _, panel = asked
    assert [question["path"] for question in panel.pending] == ["plain 0", "plain 1", "plain 2"]
    assert {question["group"] for question in panel.pending} == {"plain"}
    assert panel.status["waiting"] == 3


def test_a_decision_records_the_person_and_what_was_shown(asked: tuple[Study, RecordedStudyPanel]) -> None:
    made, panel = asked
    first, second, _ = panel.pending
    assert answer(panel, type="decision", **verdict(first))["ok"]
    edited = verdict(second, decision="edit", arguments='{"title": "Other"}', kept=[])
    assert answer(panel, type="decision", **edited)["ok"]
    made_by = decisions(made)
    assert [(one.by, one.decision, one.seconds) for one in made_by] == [
        ("human", "approve", 2.5),
        ("human", "edit", 2.5),
    ]
    assert made_by[0].shown == first["digest"]


def test_a_decision_binds_what_was_shown(asked: tuple[Study, RecordedStudyPanel]) -> None:
    made, panel = asked
    first, second, third = panel.pending
    refused = answer(panel, type="decision", **{**verdict(first), "digest": "of something else"})
    assert "has changed" in refused["error"]
    made.approve(made.pending[0])
    until(lambda: not any(item.run_id == first["run"] for item in made.pending))
    late = answer(panel, type="decision", **verdict(first))
    assert late["late"] == [0]
    both = answer(panel, type="decision", decisions=[verdict(first), verdict(second), verdict(third)])
    assert both["late"] == [0]
    until(lambda: not made.pending)


def test_a_person_decides_for_all_runs_and_can_forget_it(asked: tuple[Study, RecordedStudyPanel]) -> None:
    made, panel = asked
    decided = [verdict(question, remember="study tool") for question in panel.pending[:2]]
    assert answer(panel, type="decision", decisions=decided)["failed"] == {}
    until(lambda: not made.pending)
    until(lambda: panel.decisions["rules"])
    (rule,) = panel.decisions["rules"]
    assert "in all runs, as a person decided" in rule["words"]
    assert answer(panel, type="forget", event=rule["event"])["ok"]
    assert made.rules == []
    assert sorted(one.by for one in decisions(made)) == ["human", "remembered", "remembered"]


def test_the_complete_arguments_of_a_question_are_sent(asked: tuple[Study, RecordedStudyPanel]) -> None:
    _, panel = asked
    shown = answer(panel, type="show", **verdict(panel.pending[0]))
    assert [value["name"] for value in shown["values"]] == ["title", "where"]


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_many_calls_are_selected_and_decided_on_the_page(page: Page) -> None:
    made = at_rest(study(3, arms={"policy": ["sceptic", "plain"]}))
    panel = RecordedStudyPanel(made)
    shown = StudyPage(page, panel, kernel={"status": "idle"})
    page.get_by_role("button", name="Open inbox").click()
    calls = page.get_by_role("group", name="publish", exact=True)
    shown.until(lambda: calls.count() == 3, "the questions")
    assert faults(page) == []
    page.get_by_role("button", name="Select by tool: plain publish").click()
    page.get_by_role("group", name="Selected calls").get_by_label("Remember").select_option("study tool")
    page.get_by_role("button", name="Approve all", exact=True).click()
    shown.until(lambda: made.counts["done"] == 6, "the end of the runs")
    remembered = page.get_by_role("list", name="Remembered decisions")
    shown.until(lambda: remembered.count() and "in all runs" in remembered.inner_text(), "the rule")
    page.get_by_role("tab", name="Runs").click()
    shown.until(lambda: "6 of 6 done" in page.inner_text("#here"), "the sums")
    assert shown.errors == []
    panel.close()
