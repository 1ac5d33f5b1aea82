"""The panel on a page, in a real browser."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from agentnb import SessionLoop, tool
from agentnb.core.graph import CallDependencies, GraphCall
from agentnb.testing import ScriptedLLM, call, delay, text
from agentnb.widgets.drawings.diagram import diagram, table_of
from agentnb.widgets.drawings.graph import draw
from agentnb.widgets.static.panel import static_html
from agentnb.widgets.views.call_graph import WORDS, view_of
from agentnb.widgets.views.forms import form
from agentnb.widgets.views.loops import graph_status
from tests.widgets.pages import PanelPage, RecordedPanel, rows, rows_message, state
from tests.widgets.support import HOSTILE, asking, asking_inside, pauses, results, search, session, waiting

pytestmark = pytest.mark.browser


def waiting_inside() -> Any:
    run = asking_inside()
    while not run.pending:
        run.submit_step("turn").result(30)
    return run


def nested(path: str = "worker", phase: str = "running", **changes: Any) -> dict[str, Any]:
    """A loop inside, as the status has it."""
    return {"path": path, "phase": phase, "input": "a task", "arrows": [], "running": True, "ended": "", "table": 0,
            **changes}  # fmt: skip


# -- the whole way -----------------------------------------------------------------------------------------------------


def test_a_run_is_played_and_approved_with_the_keyboard_alone(show: Callable[[Any], PanelPage]) -> None:
    run = asking("/a")
    shown = show(run)
    page = shown.page
    expect(page.get_by_role("img", name="State diagram")).to_have_attribute("data-phase", "idle")
    page.get_by_role("button", name="Play", exact=True).focus()
    page.keyboard.press("Enter")
    group = page.get_by_role("group", name="delete_file")
    shown.until(group.is_visible, "the question")
    expect(page.locator(".agentnb-spoken")).to_have_text("tidy: delete_file (path /a) waits for your decision.")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.do") == "approve":
            break
    page.keyboard.press("Enter")
    shown.until(lambda: run.state.over, "the end")
    shown.until(
        lambda: page.get_by_role("img", name="State diagram").get_attribute("data-phase") == "done", "the last phase"
    )
    assert results(run) == ["deleted /a False 3"]
    shown.until(lambda: group.count() == 0, "the question to go")
    shown.until(lambda: "run_end" in page.get_by_role("log", name="Events").inner_text(), "the last event")
    shown.until(lambda: page.locator(".agentnb-taken").count(), "the drawing")  # its first takes a second
    phases = page.get_by_role("list", name="Phases", exact=True)
    expect(phases.get_by_role("button")).to_have_text(["idle", "listening", "thinking", "acting", "done"])
    expect(phases.locator("[aria-current]")).to_have_text("done")
    assert page.locator(".agentnb-arrow.agentnb-taken").count() >= 4
    page.get_by_role("button", name="More", exact=True).click()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_attribute("aria-disabled", "true")
    for name in ("Step", "Play", "Pause"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)


def test_step_pause_and_messages_reach_the_run(show: Callable[[Any], PanelPage]) -> None:
    run = session([[*text("One"), delay(30)]])
    shown = show(run)
    page = shown.page
    page.get_by_label("Unit of a step").select_option("phase")
    page.get_by_role("button", name="Step", exact=True).click()
    shown.until(lambda: run.events and run.events[-1].phase == "listening", "the step")
    page.get_by_role("tab", name="Trace").click()
    page.get_by_label("Message to the run").fill("stop that")
    page.get_by_role("button", name="Steer", exact=True).click()
    shown.until(lambda: run.state.queues["steering"], "the message")
    expect(page.get_by_label("Message to the run")).to_have_value("")
    page.get_by_label("Message to the run").fill("then this")
    page.get_by_role("button", name="Follow up", exact=True).click()
    shown.until(lambda: run.state.queues["follow_up"], "the message")


def test_a_playing_run_is_paused_and_resumed(show: Callable[[Any], PanelPage]) -> None:
    run = session([*([delay(0.02), call("search", {"query": "a"}, id=f"s{n}")] for n in range(200)), "Done."])
    shown = show(run)
    page = shown.page
    page.get_by_role("button", name="Play", exact=True).click()
    pause = page.get_by_role("button", name="Pause", exact=True)
    shown.until(lambda: len(run.events) > 10 and pause.count() and pause.is_enabled(), "some events, on the page too")
    pause.click()
    shown.until(lambda: run.state.paused, "the pause")
    paused_at = len(run.events)
    assert paused_at < 4 * 200
    play = page.get_by_role("button", name="Play", exact=True)
    shown.until(lambda: play.count() and play.is_enabled(), "the pause on the page")
    play.click()
    shown.until(lambda: len(run.events) > paused_at + 4, "more events")


def test_streaming_text_is_visible(show: Callable[[Any], PanelPage]) -> None:
    seen = threading.Event()
    run = session([chain(text("Once upon a time there was"), pauses(seen.is_set), text(" an end"))])
    shown = show(run)
    run.play()
    shown.page.get_by_role("tab", name="Trace").click()
    line = shown.page.locator(".agentnb-stream-text")
    shown.until(lambda: line.count() and "there was" in line.inner_text(), "the line")
    seen.set()
    shown.until(lambda: run.state.over and not line.count(), "the end of the line")


# -- deciding ----------------------------------------------------------------------------------------------------------


def test_edited_numbers_keep_all_digits(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a", retries=12345678901234567891)
    shown = show(run)
    group = shown.page.get_by_role("group", name="delete_file")
    group.get_by_role("button", name="Edit", exact=True).click()
    expect(group.get_by_label("path", exact=True)).to_be_focused()
    group.get_by_label("path", exact=True).fill("/b")
    group.get_by_label("force", exact=True).check()
    group.get_by_role("button", name="Approve", exact=True).click()
    shown.until(lambda: not run.pending, "the decision")
    run.result(30)
    assert results(run) == ["deleted /b True 12345678901234567891"]


def test_a_form_submits_only_valid_values_and_keeps_typed_text(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a")
    shown = show(run)
    group = shown.page.get_by_role("group", name="delete_file")
    edit = group.get_by_role("button", name="Edit", exact=True)
    edit.click()
    group.get_by_label("retries", exact=True).fill("three")
    group.get_by_label("path", exact=True).fill("/typed")
    group.get_by_role("button", name="Approve", exact=True).click()
    expect(group).to_contain_text("Enter a whole number.")
    expect(group.get_by_label("retries", exact=True)).to_be_focused()
    assert shown.sent("decision") == []
    shown.page.keyboard.press("Escape")
    expect(edit).to_be_focused()
    edit.click()
    expect(group.get_by_label("path", exact=True)).to_have_value("/typed")
    group.get_by_label("retries", exact=True).fill("4")
    group.get_by_label("retries", exact=True).press("Enter")
    shown.until(lambda: not run.pending, "the decision")


def test_an_error_of_the_kernel_is_shown_next_to_the_form(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a")
    shown = show(run)
    group = shown.page.get_by_role("group", name="delete_file")
    group.get_by_role("button", name="Edit", exact=True).click()
    group.get_by_label("path", exact=True).fill("/kept")
    group.get_by_label("retries", exact=True).fill("-1")
    approve = group.get_by_role("button", name="Approve", exact=True)
    approve.click()
    shown.until(lambda: "retries" in (group.locator("[role=alert]").text_content() or ""), "the error")
    expect(group.get_by_label("path", exact=True)).to_have_value("/kept")
    expect(approve).to_have_attribute("aria-disabled", "false")
    group.get_by_label("retries: given or not").select_option("absent")
    approve.click()
    shown.until(lambda: not run.pending, "the decision")


def test_another_tool_can_be_chosen(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a")
    shown = show(run)
    group = shown.page.get_by_role("group", name="delete_file")
    group.get_by_role("button", name="More: Replace", exact=True).click()
    group.get_by_role("button", name="Replace", exact=True).click()
    group.get_by_label("Tool", exact=True).select_option("move_file")
    group.get_by_label("path", exact=True).fill("/a")
    group.get_by_label("to", exact=True).fill("/trash")
    expect(group).to_contain_text("Approve runs move_file with the values above instead.")
    group.get_by_role("button", name="Approve", exact=True).click()
    shown.until(lambda: not run.pending, "the decision")
    run.result(30)
    assert results(run) == ["moved /a to /trash"]


def test_a_second_click_has_no_effect(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a")
    shown = show(run)
    approve = shown.page.get_by_role("group", name="delete_file").get_by_role("button", name="Approve", exact=True)
    approve.dblclick()
    assert len(shown.sent("decision")) == 1
    shown.until(lambda: not run.pending, "the decision")


def test_the_second_half_of_a_double_click_does_not_decide_the_next_call(
    show: Callable[[Any], PanelPage],
) -> None:
    run = waiting("/a", "/b")
    shown = show(run)
    approve = shown.page.get_by_role("group", name="delete_file").get_by_role("button", name="Approve", exact=True)
    approve.nth(0).click()
    approve.nth(1).dispatch_event("click", {"detail": 2})
    shown.until(lambda: approve.count() == 1, "the decision")
    assert len(shown.sent("decision")) == 1
    approve.click()
    shown.until(lambda: not run.pending, "the next decision")


def test_reject_sends_the_reason_and_approve_all_approves_the_remaining_calls(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a", "/b", "/c")
    shown = show(run)
    groups = shown.page.get_by_role("group", name="delete_file")
    expect(groups).to_have_count(3)
    for number in (0, 2):
        groups.nth(number).get_by_role("button", name="Details of delete_file").click()
        groups.nth(number).get_by_role("button", name="Reject", exact=True).click()
    groups.nth(2).get_by_label("Reason").fill("keep it")
    groups.first.get_by_label("Reason").fill("not this one")
    groups.first.get_by_role("button", name="Reject", exact=True).click()
    shown.until(lambda: groups.count() == 2, "the rejection")
    expect(groups.nth(1).get_by_label("Reason")).to_have_value("keep it")
    shown.page.get_by_label("Select all").check()
    shown.page.get_by_role("button", name="Approve all", exact=True).click()
    shown.until(lambda: not run.pending, "the approvals")
    run.result(30)
    assert sorted(results(run)[1:]) == ["deleted /b False 3", "deleted /c False 3"]


def test_a_call_that_may_be_done_is_never_approved_but_run_again_answered_or_failed(page: Page) -> None:
    question = {
        "id": "c1", "name": "pay", "why": "The kernel ended while it ran.", "unknown": True, "usual": False,
        "deadline": time.time() + 65, "values": [], "length": 0, "left": 0, "digest": "d", "fields": [],
    }  # fmt: skip
    shown = PanelPage(page, state=state(pending=[question]))
    group = page.get_by_role("group", name="pay")
    expect(group).to_contain_text("the kernel ended while it ran")
    expect(group).to_contain_text("maybe done")
    expect(group).to_contain_text("then the call is rejected")
    expect(group.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    expect(group.locator(".agentnb-primary:visible")).to_have_count(0)
    group.get_by_role("region").focus()
    page.keyboard.press("a")
    assert shown.sent("decision") == []
    group.get_by_role("button", name="It is done", exact=True).click()
    group.get_by_label("result", exact=True).fill("paid")
    group.get_by_role("button", name="It is done", exact=True).click()
    [sent] = shown.sent("decision")
    assert (sent["decision"], sent["id"], sent["result"]) == ("answer", "c1", "paid")
    shown.deliver({"type": "decided", "token": sent["token"], "ok": False, "error": "not yet"})
    group.get_by_role("button", name="Back", exact=True).click()
    group.get_by_role("button", name="Run again", exact=True).click()
    shown.deliver({"type": "decided", "token": shown.sent("decision")[-1]["token"], "ok": False, "error": "not yet"})
    for _ in range(2):
        group.get_by_role("button", name="Fail it", exact=True).click()
    assert [sent["decision"] for sent in shown.sent("decision")] == ["answer", "approve", "reject"]


def test_calls_that_may_be_done_are_not_decided_together(page: Page) -> None:
    question = {"name": "pay", "deadline": None, "values": [], "length": 0, "left": 0, "digest": "d", "fields": []}
    pending = [{**question, "id": id, "unknown": id == "c1"} for id in ("c0", "c1", "c2")]
    shown = PanelPage(page, state=state(pending=pending))
    page.get_by_label("Select all").check()
    row = page.get_by_role("group", name="pay").nth(1)
    expect(row.get_by_role("checkbox")).to_be_disabled()
    expect(row.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Approve 2", exact=True).click()
    [sent] = shown.sent("decision")
    assert [one["id"] for one in sent["decisions"]] == ["c0", "c2"]


def test_a_call_is_replaced_by_a_tool_of_any_name(page: Page) -> None:
    question = {"id": "c1", "name": "pay", "values": [], "length": 0, "left": 0, "digest": "d", "fields": []}
    tools = {"pay": [], "toString": [], "constructor": form({"properties": {"path": {"type": "string"}}}, {})}
    shown = PanelPage(page, state=state(pending=[question], tools={"": tools}))
    group = page.get_by_role("group", name="pay")
    group.get_by_role("button", name="More: Replace", exact=True).click()
    group.get_by_role("button", name="Replace", exact=True).click()
    group.get_by_label("Tool", exact=True).select_option("constructor")
    group.get_by_label("path", exact=True).fill("/a")
    group.get_by_role("button", name="Approve", exact=True).click()
    [sent] = shown.sent("decision")
    assert (sent["name"], sent["arguments"]) == ("constructor", '{"path":"/a"}')
    assert shown.errors == []


# -- loops inside ------------------------------------------------------------------------------------------------------


def test_a_nested_call_is_approved_in_the_group_of_its_loop(show: Callable[[Any], PanelPage]) -> None:
    run = waiting_inside()
    shown = show(run)
    page = shown.page
    group = page.get_by_role("group", name="delete_file", exact=True)
    expect(group.locator(".agentnb-asking > .agentnb-path")).to_have_text("worker")
    expect(page.locator(".agentnb-spoken")).to_have_text(
        "report: delete_file (path /a), in worker waits for your decision."
    )
    inside = page.get_by_role("list", name="Phases of worker")
    shown.until(
        lambda: page.get_by_role("img", name="Phases of worker").locator(".agentnb-taken").count(), "the drawing"
    )
    expect(page.get_by_role("img", name="State diagram")).to_have_attribute("data-phase", "executing")
    worker = page.get_by_role("list", name="Loops inside").locator("[data-nested-phase]")
    expect(worker).to_have_attribute("data-nested-phase", "acting")
    expect(inside.locator("[aria-current]")).to_have_text("acting")
    facts = page.locator(".agentnb-facts")
    expect(facts).to_contain_text("1 turn · 1 call")
    expect(facts).to_have_attribute("title", "phase executing \u203a worker: acting")
    group.get_by_role("button", name="More: Replace", exact=True).click()
    group.get_by_role("button", name="Replace", exact=True).click()
    group.get_by_label("Tool", exact=True).select_option("move_file")
    group.get_by_label("path", exact=True).fill("/a")
    group.get_by_label("to", exact=True).fill("/trash")
    group.get_by_role("button", name="Approve", exact=True).click()
    shown.until(lambda: not run.pending, "the decision")
    run.result(30)
    shown.until(lambda: "proof" in worker.inner_text().lower(), "the last task")
    shown.until(lambda: "done (completed)" in worker.inner_text(), "the worker's end")
    outermost = page.get_by_role("img", name="State diagram")
    shown.until(lambda: outermost.get_attribute("data-phase") == "completed", "the engine's end")
    assert "moved /a to /trash" in results(run)


def test_nested_loops_are_added_and_removed_without_redrawing_or_moving_other_elements(page: Page) -> None:
    table = table_of({"running": ["done"], "done": []})
    drawn = {"phases": ["running", "done"], "diagram": diagram(table)}
    shown = PanelPage(page, state=state(tables=[drawn], parts=["events", "diagram"]))
    status = state()["status"]
    inside = page.locator(".agentnb-nested > li")

    def tell(*loops: dict[str, Any], **changes: Any) -> float:
        changed = {**status, "nested": list(loops), "more": 0, **changes}
        page.evaluate("status => window.model.set('status', status)", changed)
        shown.settle()
        box = page.locator(".agentnb-states").bounding_box()
        assert box is not None
        return box["height"]

    both = tell(nested(), nested("worker/critic"))
    page.evaluate("() => { for (const node of document.querySelectorAll('.agentnb-nested *')) node.mine = true; }")
    assert tell(nested(phase="done", running=False, ended="completed"), nested("helper")) == both
    made_anew = "() => [...document.querySelectorAll('.agentnb-nested *')].filter(node => !node.mine).length"
    assert page.evaluate(made_anew) == 0
    expect(inside.first).to_contain_text("done (completed)")
    expect(page.get_by_role("list", name="Phases of helper").locator("[aria-current]")).to_have_count(1)
    long = [nested("p" * 300, phase="q" * 100, input="i" * 300), nested("x/" * 50, input="")]
    assert tell(*long) == both, "each keeps to its line"
    assert tell(nested()) == both, "the room is kept for the next one"
    expect(inside).to_have_count(1)
    many = [nested(f"worker:{n}", table=0 if n < 2 else -1) for n in range(12)]
    tell(*many, more=1234)
    expect(inside).to_have_count(13)
    expect(inside.last).to_have_text("and 1,234 more")
    expect(page.get_by_role("img")).to_have_count(3)
    assert tell(nested(), over=True) < both


def test_events_are_filtered_by_their_loop(page: Page) -> None:
    shown = PanelPage(page, state=state())
    choice = page.get_by_label("Loop of event")
    shown.deliver(rows_message(0, rows(0, 10)))
    shown.settle()
    expect(choice).to_be_hidden()
    paths = ["", "worker", "worker/critic", "workers"]
    mixed = [{**row, **({"path": paths[n % 4]} if n % 4 else {})} for n, row in enumerate(rows(10, 40))]
    shown.deliver(rows_message(10, mixed))
    shown.settle()
    count = page.locator(".agentnb-count")
    for chosen, told in (("main loop", "20 of 50"), ("worker", "20 of 50"), ("worker/critic", "10 of 50")):
        choice.select_option(label=chosen)
        expect(count).to_have_text(told)
    shown.deliver(rows_message(50, [{**row, "path": "worker/critic"} for row in rows(50, 5)]))
    expect(count).to_have_text("15 of 55")
    choice.select_option(label="all loops")
    page.get_by_label("Filter events").fill("critic")
    expect(count).to_have_text("15 of 55")
    expect(page.get_by_role("option").filter(has_text="number 54").locator(".agentnb-path")).to_have_text(
        "worker/critic"
    )


# -- the list ----------------------------------------------------------------------------------------------------------


def test_only_visible_rows_are_drawn_and_each_row_can_be_reached(page: Page) -> None:
    shown = PanelPage(page, state=state())
    shown.deliver(rows_message(0, rows(0, 20_000)))
    shown.settle()
    options = page.get_by_role("log", name="Events").get_by_role("option")
    assert options.count() < 100
    expect(page.get_by_role("log", name="Events")).to_contain_text("number 19999")
    page.get_by_role("listbox", name="Events, newest last").focus()
    page.keyboard.press("Home")
    shown.settle()
    expect(options.first).to_have_attribute("aria-posinset", "1")
    expect(options.first).to_have_attribute("aria-setsize", "20000")
    detail = page.get_by_role("region", name="Detail", exact=True)
    expect(detail).to_contain_text("c0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("PageDown")
    shown.settle()
    seen = page.evaluate("document.querySelector('.agentnb-log').clientHeight") // 24
    expect(detail).to_contain_text(f"Event #{seen}, as recorded")
    page.keyboard.press("Escape")
    expect(detail).to_contain_text("Event #19999, as recorded")  # none is chosen: it shows the last one


def test_the_list_follows_the_end_unless_a_person_has_scrolled_up(page: Page) -> None:
    shown = PanelPage(page, state=state())
    log = page.get_by_role("log", name="Events")
    shown.deliver(rows_message(0, rows(0, 500)))
    shown.settle()
    page.evaluate("document.querySelector('.agentnb-log').scrollTop = 1000")
    shown.settle()
    shown.deliver(rows_message(500, rows(500, 500)))
    shown.settle()
    assert page.evaluate("document.querySelector('.agentnb-log').scrollTop") == 1000
    page.get_by_role("button", name="Latest", exact=True).click()
    shown.settle()
    expect(log).to_contain_text("number 999")
    shown.deliver(rows_message(1000, rows(1000, 5)))
    shown.settle()
    expect(log).to_contain_text("number 1004")


def test_more_rows_are_drawn_around_a_scrolled_position_than_at_the_end(page: Page) -> None:
    shown = PanelPage(page, state=state())
    shown.deliver(rows_message(0, rows(0, 500)))
    shown.settle()
    options = page.get_by_role("log", name="Events").get_by_role("option")
    seen = page.evaluate("document.querySelector('.agentnb-log').clientHeight") // 24
    assert options.count() <= seen + 10
    page.evaluate("document.querySelector('.agentnb-log').scrollTop = 4000")
    shown.settle()
    assert options.count() >= seen + 2 * 20


STAND_STILL = """() => {
    const now = performance.now() + 1000;
    performance.now = () => now;
    window.later = [];
    window.setTimeout = (then) => later.push(then);
}"""


def test_fast_rows_are_drawn_at_intervals_and_the_last_one_always(page: Page) -> None:
    shown = PanelPage(page, state=state())
    log = page.get_by_role("log", name="Events")
    page.evaluate(STAND_STILL)
    for first in range(0, 3000, 500):
        shown.deliver(rows_message(first, rows(first, 500)))
        shown.settle()
    expect(page.locator(".agentnb-count")).to_have_text("3,000 events")
    expect(log).to_contain_text("number 499")
    page.evaluate("() => later.forEach((then) => then())")
    expect(log).to_contain_text("number 2999")


def test_a_few_new_rows_are_drawn_immediately(page: Page) -> None:
    shown = PanelPage(page, state=state())
    page.evaluate(STAND_STILL)
    for first in range(0, 60, 6):
        shown.deliver(rows_message(first, rows(first, 6)))
        shown.settle()
        expect(page.get_by_role("log", name="Events")).to_contain_text(f"number {first + 5}", timeout=1)


def test_filters_by_text_and_type_apply_to_later_events_too(page: Page) -> None:
    shown = PanelPage(page, state=state())
    shown.deliver(rows_message(0, rows(0, 20_000)))
    page.get_by_label("Filter events").fill("NUMBER 1999")
    count = page.locator(".agentnb-count")
    expect(count).to_have_text("11 of 20,000")
    log = page.get_by_role("log", name="Events")
    assert set(log.locator("mark").all_inner_texts()) == {"number 1999"}
    page.get_by_label("Type of event").select_option("model_end")
    expect(count).to_have_text("1 of 20,000")
    shown.deliver(rows_message(20_000, rows(20_000, 10, words="number 1999 again")))
    expect(count).to_have_text("2 of 20,010")
    page.get_by_label("Filter events").fill("c20003")  # only in the data
    page.get_by_label("Type of event").select_option("")
    expect(count).to_have_text("1 of 20,010")
    row = log.get_by_role("option")
    expect(row).to_contain_text("call_id: c20003")
    assert log.locator("mark").all_inner_texts() == ["c20003"]
    page.get_by_label("Filter events").fill("")
    expect(log.locator("mark")).to_have_count(0)
    expect(log).not_to_contain_text("call_id")
    page.get_by_label("Filter events").fill("nowhere")
    expect(page.get_by_text("No event matches the filter.")).to_be_visible()


def test_hits_in_hostile_text_are_marked_and_stay_text(page: Page) -> None:
    shown = PanelPage(page, state=state())
    hostile = rows(0, 2)
    hostile[0]["summary"] = f"{'x' * 200} (.*) <b>({HOSTILE}"
    hostile[1]["data"] = {"result": [{"<img src=x>": f"{'y' * 300}<script>.*(z"}]}
    shown.deliver(rows_message(0, hostile))
    page.get_by_label("Filter events").fill("<B>(<script")
    log = page.get_by_role("log", name="Events")
    expect(log.locator("mark")).to_have_text("<b>(<script")
    assert log.locator("mark").is_visible(), "it is at the end of a long line, which begins later now"
    for words, field in ((".*(Z", "result.0.<img src=x>: …"), ("<IMG SRC=X>", "result.0: <img src=x>")):
        page.get_by_label("Filter events").fill(words)
        expect(log.get_by_role("option")).to_contain_text(field)
        expect(log.locator("mark")).to_have_text(words.lower())
    assert log.locator("img, script, b").count() == 0


def test_until_the_kernel_answers_the_saved_tail_is_shown(page: Page) -> None:
    saved = [{key: row[key] for key in row if key != "data"} for row in rows(100, 20)]
    shown = PanelPage(page, state=state(tail=json.dumps(saved), total=120))
    expect(page.get_by_role("log", name="Events")).to_contain_text("number 119")
    shown.deliver(rows_message(0, rows(0, 5)))
    shown.settle()
    expect(page.locator(".agentnb-count")).to_have_text("5 events")
    expect(page.get_by_role("log", name="Events")).not_to_contain_text("number 119")


def test_a_long_value_is_fetched_on_request(show: Callable[[Any], PanelPage]) -> None:
    run = session([[call("search", {"query": "y" * 50_000}, id="c")], "ok"])
    run.result(30)
    shown = show(run)
    shown.until(lambda: "run_end" in shown.page.inner_text(".agentnb-log"), "the events")
    shown.page.get_by_role("log").get_by_role("option").filter(has_text="call_start").click()
    detail = shown.page.get_by_role("region", name="Detail", exact=True)
    expect(detail.get_by_text("query", exact=True)).to_be_visible()
    detail.get_by_role("button", name="Show all").first.click()
    shown.until(lambda: "y" * 50_000 in detail.inner_text(), "the whole argument")
    expect(detail.get_by_role("button", name="Show all")).to_have_count(1)  # of the output

    shown.page.get_by_role("log").get_by_role("option").filter(has_text="model_end").first.click()
    recorded = detail.locator(".agentnb-recorded")
    recorded.locator("summary").click()
    expect(recorded).to_contain_text("bytes in all")
    recorded.get_by_role("button", name="Show all").click()
    shown.until(lambda: "y" * 50_000 in recorded.inner_text(), "the whole event")


# -- what others say ---------------------------------------------------------------------------------------------------


def test_hostile_text_is_neither_executed_nor_hidden(page: Page) -> None:
    hostile = HOSTILE.replace("\ud800", "\ufffd")
    question = {
        "id": hostile, "path": hostile, "name": hostile, "why": hostile, "unknown": False, "deadline": None,
        "values": [{"name": hostile, "kind": kind, "text": hostile} for kind in ("text", "string", "json")],
        "needs": [hostile], "description": hostile, "length": len(hostile), "left": 0, "digest": hostile,
        "fields": [{"path": [hostile], "label": hostile, "kind": "string", "type": hostile, "description": hostile,
                    "required": False, "nullable": True, "given": "value", "text": hostile}],
    }  # fmt: skip
    row = {"seq": 0, "time": 1.0, "type": hostile, "group": hostile, "path": hostile, "phase": hostile,
           "summary": hostile,
           "data": {hostile: [hostile], "text": hostile}}  # fmt: skip
    status = {"run": hostile, "id": hostile, "loop": hostile, "standing": hostile, "phase": hostile, "problem": hostile,
              "path": [[hostile, "x"]], "usage": {hostile: 1}, "can": {},
              "nested": [nested(hostile, hostile, input=hostile, ended=hostile, arrows=[[hostile, "x"]])]}  # fmt: skip
    table = table_of({hostile: ["x"], "x": []})
    evil = '<svg xmlns="http://www.w3.org/2000/svg" onload="boom()"><script>boom()</script><g onclick="boom()"/></svg>'
    page.add_init_script("window.boomed = 0; window.boom = () => { window.boomed += 1; };")
    page.goto("about:blank")
    shown = PanelPage(
        page,
        state=state(status=status, pending=[question], tools={hostile: {hostile: question["fields"], "b": []}},
                    phases=[hostile, "x"], diagram=diagram(table),
                    tables=[{"phases": [hostile, "x"], "diagram": diagram(table)}]),
    )  # fmt: skip
    shown.deliver(rows_message(0, [row]))
    shown.deliver({"type": "live", "lines": [{"kind": hostile, "path": hostile, "name": hostile, "text": hostile}]})
    shown.settle()
    page.get_by_role("log").get_by_role("option").filter(has_text="boom").first.click()
    for name in ("Edit", "More: Replace", "Replace"):
        page.get_by_role("button", name=name, exact=True).click()
    page.evaluate("svg => window.model.set('diagram', svg)", evil)
    page.evaluate("svg => window.model.set('tables', [{ phases: [], diagram: svg }])", evil)
    shown.settle()
    assert page.evaluate("window.boomed") == 0
    assert (
        page.evaluate("document.querySelectorAll('#here script, #here img, #here [onload], #here [onclick]').length")
        == 0
    )
    told = page.inner_text("#here")
    assert "<script>boom()</script>" in told
    assert "⟦U+202E⟧" in told
    assert "␛[31m" in told
    assert "\u202e" not in told
    expect(page.locator(".agentnb-drawn [data-gid]")).to_have_count(0)
    assert shown.errors == []


# -- the call graph ----------------------------------------------------------------------------------------------------


def graphs(*calls: GraphCall, path: str = "") -> dict[str, Any]:
    """The traits of a panel that shows these calls."""
    told = view_of(CallDependencies(1, calls))
    return {"graphs": graph_status([(path, told)]), "drawings": [draw(told.shape)]}


def tell(shown: PanelPage, traits: dict[str, Any]) -> float:
    """Set these traits of the page; return the height of the panel."""
    for name, value in traits.items():
        shown.page.evaluate("([name, value]) => window.model.set(name, value)", [name, value])
    shown.settle()
    box = shown.page.locator("#here").bounding_box()
    assert box is not None
    return box["height"]


def test_the_calls_of_a_graph_are_updated_in_place_without_moving_other_elements(page: Page) -> None:
    first, second = GraphCall("c1", "fetch", "running"), GraphCall("c2", "sum", "blocked", ("c1",), ("†state.a",))
    shown = PanelPage(page, state=state(parts=["graph"], **graphs(first, second)))
    image = page.get_by_role("img", name="Call graph", exact=True)
    expect(image.locator(".agentnb-is-running")).to_have_count(2)  # the call, and the arrow from it
    expect(image).to_contain_text("◌ blocked")
    page.evaluate("() => { for (const node of document.querySelectorAll('.agentnb-graph *')) node.mine = true; }")
    before = tell(shown, graphs(first._replace(status="completed"), second._replace(status="running", missing=())))
    expect(image).to_contain_text("● running")
    expect(image.locator(".agentnb-edge")).to_have_class("agentnb-edge agentnb-is-completed")
    made_anew = "() => [...document.querySelectorAll('.agentnb-graph *')].filter(node => !node.mine).length"
    assert page.evaluate(made_anew) == 0
    items = page.get_by_role("list", name="Calls", exact=True).get_by_role("listitem")
    expect(items).to_have_text(["c1 fetch: completed", "c2 sum: running, reads from c1"])
    tall = tell(shown, graphs(*[GraphCall(f"c{n}", "t", "running") for n in range(20)]))
    assert tall > before
    assert tell(shown, graphs(first)) == tall, "the room is kept for the next request"
    assert tell(shown, {"status": {**state()["status"], "over": True}}) == before
    assert shown.errors == []


def test_a_long_graph_scrolls_in_a_narrow_panel_and_an_absent_one_is_hidden(page: Page) -> None:
    page.set_viewport_size({"width": 380, "height": 900})
    chain = [GraphCall(f"c{n}", "t", "blocked", (f"c{n - 1}",) if n else ()) for n in range(8)]
    shown = PanelPage(page, state=state(**graphs(*chain)))
    page.get_by_role("tab", name="Graph").click()
    image = page.get_by_role("img", name="Call graph", exact=True)
    assert image.evaluate("image => image.scrollWidth > image.clientWidth")
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    tell(shown, {"graphs": [], "drawings": []})
    expect(image).to_have_count(0)
    expect(page.get_by_role("tab", name="Graph")).to_be_hidden()
    expect(page.get_by_role("tabpanel", name="Trace")).to_be_visible()


def test_a_graph_of_hostile_names_is_text(page: Page) -> None:
    hostile = HOSTILE.replace("\ud800", "\ufffd")
    page.add_init_script("window.boomed = 0; window.boom = () => { window.boomed += 1; };")
    page.goto("about:blank")
    call = GraphCall(hostile, hostile, "failed", (), (hostile,), hostile, hostile)
    shown = PanelPage(page, state=state(**graphs(call, path=hostile)))
    page.get_by_role("tab", name="Graph").click()
    evil = '<svg xmlns="http://www.w3.org/2000/svg" onload="boom()"><script>boom()</script><g onclick="boom()"/></svg>'
    assert "<script>boom()</script>" in page.inner_text(".agentnb-graph")
    assert "\u202e" not in page.inner_text(".agentnb-graph")
    tell(shown, {"drawings": [evil]})
    assert page.evaluate("window.boomed") == 0
    assert page.locator("#here :is(script, img:not([role]), [onload], [onclick])").count() == 0
    assert shown.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_status_of_a_call_has_enough_contrast_in_each_theme(page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    calls = [GraphCall(f"c{n}", "t", standing) for n, standing in enumerate(WORDS)]
    PanelPage(page, state=state(**graphs(*calls, GraphCall("e", "t", "completed", earlier=True))))
    page.get_by_role("tab", name="Graph").click()
    faint = """() => [...document.querySelectorAll('.agentnb-node text')].filter(text => {
        const colours = [text, text.parentNode.querySelector('path')].map(part => getComputedStyle(part).fill);
        const [low, high] = colours.map(colour => luminance(numbers(colour))).sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05) < 4.5;
    }).map(text => text.textContent)"""
    assert page.evaluate(faint) == []


# -- a kernel that is gone ---------------------------------------------------------------------------------------------


def test_the_panel_reports_a_dead_kernel_and_disables_its_buttons(page: Page) -> None:
    shown = PanelPage(page, state=state(), kernel={"status": "idle"})
    pause = page.get_by_role("button", name="Pause", exact=True)
    expect(pause).to_be_enabled()
    page.evaluate("window.model.widget_manager.kernel.change('restarting')")
    shown.settle()
    expect(page.get_by_text("The kernel is gone: this is the last state that it sent.")).to_be_visible()
    expect(page.get_by_text("In a new kernel, agentnb.attach() finds the runs that are in a store.")).to_be_visible()
    expect(pause).to_be_disabled()
    shown.deliver({"type": "pong", "token": "", "now": time.time()})
    shown.settle()
    expect(pause).to_be_enabled()


# -- looks -------------------------------------------------------------------------------------------------------------


# A narrow panel has a line of phases in place of the diagram.
SHOWN_IN_FULL = ".agentnb-diagram:visible, .agentnb-nested-head > span:visible, .agentnb-asking .agentnb-path:visible"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 360])
def test_nested_loops_have_enough_contrast_and_nothing_is_cut_off(browser: Browser, scheme: Any, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 1600}, color_scheme=scheme)
    run = waiting_inside()
    shown = PanelPage(context.new_page(), RecordedPanel(run))
    page = shown.page
    shown.until(page.locator("[data-nested-phase]").count, "the loop inside")
    assert page.evaluate("window.poorContrast()") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for node in page.locator(SHOWN_IN_FULL).all():
        box = node.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert node.evaluate(
            "node => node.scrollWidth <= node.clientWidth + 1 || getComputedStyle(node).display === 'inline'"
        )
    run.cancel()
    shown.panel.close()  # type: ignore[union-attr]
    context.close()


@pytest.mark.parametrize("width", [250, 700])
def test_long_names_do_not_break_the_layout_of_the_panel(
    page: Page, show: Callable[[Any], PanelPage], width: int
) -> None:
    name = "t" * 64
    loop = SessionLoop(ScriptedLLM([[call(name, {"query": "x" * 99})], "Done."]), [tool(search.function, name=name)])
    run = loop.start("go", name="n" * 300)
    run.result(30)
    page.set_viewport_size({"width": width, "height": 900})
    shown = show(run)
    page.get_by_role("tab", name="Messages").click()
    made = page.locator(".agentnb-made")
    shown.until(made.count, "the messages")
    for node in (page.locator(".agentnb-name"), *page.get_by_role("tab").all()):
        assert node.bounding_box()["height"] <= 36, f"{node.inner_text()} is on several lines"  # type: ignore[index]
    box, inside = made.bounding_box(), page.locator(".agentnb-messages").bounding_box()
    assert box is not None
    assert inside is not None
    assert box["x"] + box["width"] <= inside["x"] + inside["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 360])
def test_text_has_enough_contrast_and_nothing_is_cut_off(browser: Browser, scheme: Any, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 1200}, color_scheme=scheme)
    run = waiting("/a", "/b")
    shown = PanelPage(context.new_page(), RecordedPanel(run))
    page = shown.page
    groups = page.get_by_role("group", name="delete_file")
    groups.first.get_by_role("button", name="Details of delete_file").click()
    groups.first.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("retries", exact=True).fill("three")
    groups.first.get_by_role("button", name="Approve", exact=True).click()
    shown.until(
        lambda: page.get_by_role("log").get_by_role("option").filter(has_text="approval_request").count(), "the events"
    )
    page.get_by_role("log").get_by_role("option").filter(has_text="model_end").first.click()
    assert page.evaluate("window.poorContrast()") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for button in page.get_by_role("button").all():
        box = button.bounding_box()
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= width)
    run.cancel()
    shown.panel.close()  # type: ignore[union-attr]
    context.close()


def test_animations_are_off_with_reduced_motion(page: Page) -> None:
    page.goto("about:blank")
    PanelPage(page, state=state())
    moves = """() => [...document.querySelectorAll("#here *")].filter((node) => {
      const { transitionDuration, animationName, transitionProperty } = getComputedStyle(node);
      return animationName !== "none" || (transitionProperty !== "none" && transitionDuration !== "0s");
    }).length"""
    assert page.evaluate(moves) > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moves) == 0


def test_each_control_shows_its_focus(show: Callable[[Any], PanelPage]) -> None:
    shown = show(waiting("/a"))
    shown.page.keyboard.press("Tab")
    seen = set()
    for _ in range(25):
        seen.add(shown.page.evaluate("window.focused()"))
        shown.page.keyboard.press("Tab")
    assert {"BUTTON seen", "INPUT seen", "SELECT seen", "DIV seen"} <= seen
    assert not [entry for entry in seen if entry.endswith("unseen")]


# Without elements that show the time, which changes.
LOOKS = """() => [...document.querySelectorAll("#here *")].filter(node => !node.closest(".agentnb-usage")).map(node => {
  const { x, y, width, height } = node.getBoundingClientRect(), style = getComputedStyle(node);
  return [node.className, x, y, width, height, style.color, style.backgroundColor, style.display, style.padding].join();
})"""


def test_a_static_panel_on_the_same_page_does_not_change_a_live_one(show: Callable[[Any], PanelPage]) -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    shown = show(run)
    page = shown.page
    shown.until(page.locator(".agentnb-diagram svg").count, "the drawing, which comes last")
    shown.until(page.locator(".agentnb-detail h4").count, "the detail pane, which is drawn a little later")
    shown.settle()
    before = page.evaluate(LOOKS)
    page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", static_html(run))
    expect(page.locator(".agentnb-static")).to_be_visible()
    assert page.evaluate(LOOKS) == before


def test_two_views_of_one_panel_show_the_same(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a")
    shown = show(run)
    shown.page.evaluate(
        "() => { const other = document.createElement('div'); other.id = 'other'; document.body.append(other);"
        " window.disposeOther = window.panel.render({ model: window.model, el: other }); }"
    )
    shown.until(lambda: "delete_file" in shown.page.inner_text("#other"), "the second view")
    shown.page.locator("#other").get_by_role("button", name="Approve", exact=True).click()
    shown.until(lambda: not run.pending, "the decision")
    shown.until(lambda: "Approve" not in shown.page.inner_text("#here"), "the first view")
    shown.page.evaluate("window.disposeOther()")
    shown.settle()


@pytest.mark.parametrize("width", [320, 600, 1000])
def test_in_a_saved_notebook_the_rows_are_not_squeezed_by_the_state_diagram(page: Page, width: int) -> None:
    run = waiting("/a")
    run.approve(run.pending[0])
    run.result(30)
    page.set_viewport_size({"width": width, "height": 900})
    page.set_content(f"<!doctype html><meta charset=utf-8>{static_html(run)}")
    widths = page.locator(".agentnb-static [role=log] > ul > li > div").evaluate_all(
        "all => all.map(row => row.offsetWidth)"
    )
    assert min(widths) >= 200
    assert page.evaluate("document.documentElement.scrollWidth") <= width
