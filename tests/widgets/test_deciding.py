"""Messages from the page that decide, undo, stop and save; the test acts as the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentnb import Snapshot, Store, restore
from agentnb.core.events import ApprovalDecision, CallEnd, CallStart
from agentnb.testing import call
from agentnb.widgets import SNAPSHOTS
from agentnb.widgets.views.decisions import CALLS, RECENT, DecisionLog
from tests.widgets.support import asking_everywhere, identified, session, until, waiting
from tests.widgets.test_panel import Shown


@pytest.fixture
def show() -> Iterator[Callable[[Any], Shown]]:
    made: list[Shown] = []

    def make(run: Any) -> Shown:
        made.append(Shown(run))
        return made[-1]

    yield make
    for shown in made:
        shown.run.cancel()
        shown.panel.close()


def asked(shown: Shown, decision: str, **more: Any) -> list[dict[str, Any]]:
    """A decision about each call that is shown."""
    return [{**identified(question), "decision": decision, **more} for question in shown.panel.pending]


def decisions(run: Any) -> list[tuple[str, str, str]]:
    return [(e.call_id, e.decision, e.by) for e in run.events if isinstance(e, ApprovalDecision)]


def test_a_hundred_calls_are_decided_by_one_message(show: Callable[[Any], Shown]) -> None:
    run = waiting(*(f"/reports/2026/draft-{n}.txt" for n in range(100)))
    shown = show(run)
    shown.click("decision", decisions=asked(shown, "approve"))
    assert run.pending == []


def test_all_decisions_about_calls_that_have_not_started_are_undone_by_one_message(
    show: Callable[[Any], Shown],
) -> None:
    run = waiting(*map(str, range(2 * RECENT)))
    shown = show(run)
    shown.click("decision", decisions=asked(shown, "approve"))
    assert shown.panel._now()["decisions"]["open"] == 2 * RECENT
    assert shown.click("undo")["note"] == f"{2 * RECENT} withdrawn; the calls wait for a decision again."
    assert len(run.pending) == 2 * RECENT
    assert not run.decided
    assert [decision for _, decision, _ in decisions(run)] == ["approve"] * 2 * RECENT + ["ask"] * 2 * RECENT


def test_a_message_about_several_calls_leaves_out_those_that_may_have_run(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a", "/b")
    run.approve("c0")
    run.submit_step("call").result(30)  # it has begun
    begun = [event for event in run.events if not (isinstance(event, CallEnd) and event.call_id == "c0")]
    again = restore(Snapshot.of(begun[: [event.type for event in begun].index("call_start") + 1]), run.loop)
    again.submit_step("event").result(30)
    shown = show(again)
    assert [item.unknown for item in again.pending] == [True, False]
    answer = shown.click("decision", decisions=asked(shown, "approve"))
    assert "Nobody knows whether delete_file has run" in answer["failed"]["0"]
    assert [item.id for item in again.pending] == ["c0"]
    assert shown.click("decision", decisions=asked(shown, "approve", unknown=True)[:1])["failed"] == {}


def test_of_many_decisions_each_valid_one_is_applied_and_each_failure_is_reported(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a", "/b", "/c", "/d")
    shown = show(run)
    made = asked(shown, "approve")
    made[1] = {**made[1], "digest": "another"}
    made[2] = {**made[2], "decision": "edit", "arguments": '{"path": 7}'}
    run.reject("c3")
    answer = shown.click("decision", decisions=made)
    assert answer["ok"]
    assert "changed since" in answer["failed"]["1"]
    assert "path" in answer["failed"]["2"]
    assert "is already decided: code rejected it at" in answer["failed"]["3"]
    assert decisions(run) == [("c3", "reject", "code"), ("c0", "approve", "human")]
    assert [item.id for item in run.pending] == ["c1", "c2"]


@pytest.mark.parametrize("typed", ['{"path": 1e999}', '{"path": "/a", "retries": [-1e999]}'])
def test_a_number_that_is_too_large_is_refused_and_not_infinite(show: Callable[[Any], Shown], typed: str) -> None:
    run = waiting("/a")
    shown = show(run)
    (made,) = asked(shown, "edit", arguments=typed)
    answer = shown.click("decision", **made)
    assert not answer["ok"]
    assert "1e999 is too large" in answer["error"]
    assert run.pending


def test_an_edited_call_is_not_decided_by_the_remembered_rule_of_another(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a", "/b")
    shown = show(run)
    first, second = asked(shown, "approve", remember="tool")
    second |= {"decision": "edit", "arguments": '{"path": "/mine"}', "remember": ""}
    assert shown.click("decision", decisions=[first, second])["failed"] == {}
    assert decisions(run) == [("c1", "edit", "human"), ("c0", "approve", "human")]


def test_with_two_tabs_each_call_has_one_decision_and_each_late_one_is_reported(
    show: Callable[[Any], Shown],
) -> None:
    run = waiting(*(f"/{n}" for n in range(40)))
    tabs = [show(run), show(run)]
    answers: list[dict[str, Any]] = []
    made = [asked(tabs[0], "approve"), asked(tabs[1], "reject")]
    made[1].reverse()

    def click(tab: int, message: dict[str, Any]) -> None:
        answers.append(tabs[tab].click("decision", **message))

    both = [threading.Thread(target=click, args=(tab, {"decisions": made[tab]})) for tab in (0, 1)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(decisions(run)) == 40
    assert sum(len(answer["failed"]) for answer in answers) == 40


def test_a_nested_call_is_decided_among_many_and_undone(show: Callable[[Any], Shown]) -> None:
    run = asking_everywhere()
    while len(run.pending) < 3:
        run.submit_step("call").result(30)
    shown = show(run)
    assert shown.click("decision", decisions=asked(shown, "approve"))["failed"] == {}
    told = shown.panel._decisions.data(run)
    assert [(one["path"], one["undo"]) for one in told["recent"]] == [("critic:k2", True), ("critic", True), ("", True)]
    assert shown.click("undo", event=told["recent"][0]["event"])["ok"]
    assert [(item.id, item.path) for item in run.pending] == [("c0", "critic:k2")]
    assert "can no longer be withdrawn" in shown.click("undo", event=told["recent"][0]["event"])["error"]


def test_decisions_are_shown_with_person_and_time(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a", "/b")
    shown = show(run)
    shown.decide("approve", remember="tool")
    told = shown.panel._decisions.data(run)
    by_rule, by_person = told["recent"]
    assert by_person["words"] == "approved by a person, for every call of the tool"
    assert by_rule["words"] == f"approved by the decision of event {by_person['event']}"
    assert by_person["time"] == run.events[by_person["event"]].time
    assert (by_person["name"], by_person["arguments"]) == ("delete_file", '{"path":"/a"}')
    assert told["rules"][0]["words"] == "approve every call, as a person decided"
    assert shown.click("forget", event=told["rules"][0]["event"])["ok"]
    assert "remembered: none" in shown.click("forget", event=told["rules"][0]["event"])["error"]


def test_the_newest_decisions_of_a_long_run_are_kept() -> None:
    turns = [[call("search", {"query": str(n)}, id=f"c{n}")] for n in range(CALLS + 20)]
    run = session([*turns, "Done."], approve=True)
    run.result(60)
    told = DecisionLog()
    recent = told.data(run)["recent"]
    assert len(recent) == RECENT
    assert recent[0]["arguments"] == f'{{"query":"{CALLS + 19}"}}'
    assert not any(one["undo"] for one in recent)
    assert len(told._calls) == CALLS


def test_a_breakpoint_from_a_form_compares_texts_and_evaluates_nothing(show: Callable[[Any], Shown]) -> None:
    run = session([[call("search", {"query": "x", "deep": {"n": 3}}, id="s")], "Done."])
    shown = show(run)
    evil = "__import__('os').system('boom')"
    form = {"event": "", "tool": "", "phase": "", "cost": "", "field": "query", "operator": "is", "value": evil}
    assert shown.click("breakpoint", do="add", **form)["ok"]
    assert shown.click("breakpoint", do="add", **{**form, "operator": "matches", "value": "[x"})["ok"]
    assert shown.panel._now()["breakpoints"]["list"][0]["label"] == f'query is "{evil}"'
    for wrong in ({"operator": "eval"}, {"event": "explosion"}, {"cost": "much"}, {"field": "", "value": ""}):
        assert "breakpoint" in shown.click("breakpoint", do="add", **{**form, **wrong})["error"].lower()
    assert shown.click("breakpoint", do="enable", number=2, enabled=False)["ok"]
    assert shown.click("breakpoint", do="remove", number=1)["ok"]
    assert "no breakpoint 1" in shown.click("breakpoint", do="remove", number=1)["error"]
    assert [(one.number, one.enabled) for one in run.breakpoints] == [(2, False)]


def test_a_queued_message_is_withdrawn_by_its_content(show: Callable[[Any], Shown]) -> None:
    run = session(["Hello."])
    shown = show(run)
    for words in ("one", "two", "two"):
        run.steer(words)
    queued = shown.panel._now()["status"]["queued"]
    assert [one["text"] for one in queued] == ["one", "two", "two"]
    assert shown.click("withdraw", digest=queued[2]["digest"])["ok"]
    assert [message.content for _, message in run.queued] == ["one", "two"]
    assert "can no longer be withdrawn" in shown.click("withdraw", digest="nothing")["error"]


def test_the_note_about_a_snapshot_names_its_store(show: Callable[[Any], Shown], tmp_path: Any) -> None:
    store = Store(tmp_path / "runs.db")
    run = session(["Hello."], store=store)
    note = show(run).click("control", action="Snapshot", name=" mine ")["note"]
    assert "SNAPSHOTS['mine']" in note
    assert f"{tmp_path / 'runs.db'}: store.load('mine')" in note
    assert store.load("mine").position == SNAPSHOTS.pop("mine").position
    run.cancel()
    store.close()


def test_fork_is_disabled_before_a_run_has_started(show: Callable[[Any], Shown]) -> None:
    run = session(["Done."])
    shown = show(run)
    assert not shown.panel._now()["status"]["can"]["Fork"]
    run.result(30)
    assert shown.panel._now()["status"]["can"]["Fork"]


def test_a_call_whose_decision_was_undone_does_not_run(show: Callable[[Any], Shown]) -> None:
    run = waiting("/a", "/b")
    shown = show(run)
    shown.click("decision", decisions=asked(shown, "approve"))
    told = shown.panel._decisions.data(run)["recent"]
    assert shown.click("undo", event=told[0]["event"])["ok"]
    run.play()
    until(lambda: any(isinstance(event, CallStart) for event in run.events))
    assert [event.call_id for event in run.events if isinstance(event, CallStart)] == ["c0"]
