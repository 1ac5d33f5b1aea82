"""Deciding, stopping and undoing in the panel, in a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from pydantic import BaseModel

from agentnb.core.events import ApprovalDecision, CallEnd
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, delay, text
from agentnb.tools import tool
from agentnb.widgets import FORKS, SNAPSHOTS, static_html
from agentnb.widgets.text import for_reading
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage, RecordedPanel, press_in_menu, state
from tests.widgets.support import HOSTILE, results, session

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 1000})
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def show(page: Page) -> Iterator[Callable[..., PanelPage]]:
    shown: list[PanelPage] = []

    def make(run: Any, *parts: str) -> PanelPage:
        page.goto("about:blank")
        shown.append(PanelPage(page, RecordedPanel(run, parts=parts or ("controls", "approvals"))))
        return shown[-1]

    yield make
    for panel_page in shown:
        panel_page.close()


def deletes(*paths: str) -> list[Any]:
    return [call("delete_file", {"path": path}, id=f"c{n}") for n, path in enumerate(paths)]


def waiting(*calls: Any, then: Any = ("Done.",)) -> Any:
    run = session([list(calls), *then])
    run.submit_step("turn").result(30)
    return run


def mixed() -> Any:
    return waiting(*deletes("/a", "/b", "/c"), call("move_file", {"path": "/a", "to": "/b"}, id="m"))


def row(shown: PanelPage, number: int = 0, tool: str = "delete_file") -> Locator:
    return shown.page.get_by_role("group", name=tool, exact=True).nth(number)


def press(scope: Any, name: str) -> None:
    scope.get_by_role("button", name=name, exact=True).click()


def reject(scope: Any, reason: str = "") -> None:
    """Press Reject, type a reason and send it."""
    press(scope, "Reject")
    scope.get_by_label("Reason", exact=True).fill(reason)
    press(scope, "Reject")


def replace(scope: Any) -> None:
    press(scope, "More: Replace")
    press(scope, "Replace")


def select_all(shown: PanelPage) -> None:
    shown.page.get_by_label("Select all").check()


def approve_all(shown: PanelPage) -> None:
    select_all(shown)
    press(shown.page, "Approve all")


def rows_left(shown: PanelPage) -> int:
    """Return how many calls still wait on the page."""
    return shown.page.locator(".agentnb-call:not(.agentnb-was)").count()


def read_to_the_end(shown: PanelPage) -> None:
    """Scroll to the end of all arguments that are open."""
    for end in shown.page.locator(".agentnb-arguments .agentnb-end").all():
        end.evaluate("mark => mark.scrollIntoView()")
        shown.settle()


def decisions(run: Any) -> list[tuple[str, str, str]]:
    return [(e.call_id, e.decision, e.by) for e in run.events if isinstance(e, ApprovalDecision)]


def decisions_made(run: Any) -> list[tuple[str, Any]]:
    return [(e.decision, e.arguments) for e in run.events if isinstance(e, ApprovalDecision)]


# -- what is decided about ------------------------------------------------------------------------------------------


ROWS = """line => {
    const range = document.createRange(), rows = new Map();
    range.setStart(line.firstChild, line.textContent.search(/[^ \\u2502]/));
    range.setEndAfter(line.firstChild);
    for (const { left, top } of range.getClientRects()) rows.set(top, Math.min(left, rows.get(top) ?? Infinity));
    return [...rows.values()];
}"""  # the left edges of its rows
LONG = "It goes on and on, " * 12 + '"path": "/elsewhere"'


@pytest.mark.parametrize("path", [LONG, f"Dear Ann,\n{LONG}\n"], ids=["one line", "several lines"])
def test_a_wrapped_line_of_a_value_is_indented_more_than_a_new_value(path: str, show: Callable[..., PanelPage]) -> None:
    shown = show(waiting(*deletes(path)))
    told = shown.page.get_by_role("region", name="Arguments of delete_file (c0)")
    assert told.locator("dt").all_inner_texts() == ["path"]
    assert told.locator("dd").evaluate("value => value.textContent") == path
    lefts = told.locator("dd").evaluate(ROWS)
    name = told.locator("dt").bounding_box()
    assert len(lefts) > 1
    assert name is not None
    assert min(lefts) > name["x"] + name["width"]


@tool(approve=True)
def post(body: dict[str, Any], note: str = "") -> str:
    return f"{body}"


def posting(body: dict[str, Any], **more: Any) -> Any:
    run = SessionLoop(ScriptedLLM([[call("post", {"body": body, **more})], "Done."]), [post]).start("go")
    run.submit_step("turn").result(30)
    return run


def test_a_wrapped_line_of_an_object_is_indented_more_than_its_names(show: Callable[..., PanelPage]) -> None:
    shown = show(posting({"text": LONG, "path": "/here" * 20}))
    value = shown.page.get_by_role("region").locator("dd")
    assert value.inner_text() == for_reading({"text": LONG, "path": "/here" * 20})
    first, *others = value.locator("span").filter(has_text="It goes on").evaluate(ROWS)
    assert others
    assert min(others) > first


def test_a_text_that_could_be_another_value_is_in_quotes(show: Callable[..., PanelPage]) -> None:
    shown = show(posting({"n": 5}, note="5"))
    values = shown.page.get_by_role("region").locator("dd")
    assert [value.strip() for value in values.all_inner_texts()] == ['{\n  "n": 5\n}', '"5"']


def test_a_wrapped_line_on_a_saved_page_is_indented_more_than_a_new_value(page: Page) -> None:
    run = waiting(*deletes(f"Dear Ann,\n{LONG}\n"))
    page.set_content(f"<!doctype html><meta charset=utf-8>{static_html(run)}")
    told = page.locator("div", has_text="was waiting for a decision.").locator("pre").first
    assert told.inner_text() == for_reading(run.pending[0].arguments)
    first, *others = told.locator("span").filter(has_text="It goes on").evaluate(ROWS)
    assert others
    assert min(others) > first
    run.cancel()


# -- nothing runs that was not shown ---------------------------------------------------------------------------------


def test_approve_is_disabled_until_the_end_of_the_arguments_was_visible(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("report.csv" + "\n" * 60 + "; rm -rf /"))
    shown = show(run)
    approve = shown.page.get_by_role("button", name="Approve", exact=True)
    expect(approve).to_be_disabled()
    expect(approve).to_have_attribute("title", "Read to the end of the arguments first.")
    expect(row(shown)).to_contain_text("Read to the end of the arguments first.")
    expect(row(shown)).to_contain_text("more lines")
    read_to_the_end(shown)
    expect(row(shown)).not_to_contain_text("more line", use_inner_text=True)
    approve.click()
    shown.until(lambda: not run.pending, "the approval")


def test_an_edited_call_is_approved_when_the_end_of_each_value_in_its_form_was_visible(
    show: Callable[..., PanelPage],
) -> None:
    run = waiting(*deletes("report.csv" + "\n" * 60 + "; rm -rf /"))
    shown = show(run)
    card = row(shown)
    approve, path = card.get_by_role("button", name="Approve", exact=True), card.get_by_label("path", exact=True)
    press(card, "Edit")
    expect(path).to_be_focused()
    expect(card).to_contain_text("Read to the end of path first.")
    path.press("Control+Home")
    path.press_sequentially("/")
    expect(approve).to_be_disabled()
    path.fill("report.csv")
    expect(approve).to_be_enabled()
    expect(card).not_to_contain_text("Read to the end")
    press(card, "Edit")
    expect(approve).to_be_disabled()  # without the form, the call has the arguments that nobody has read
    press(card, "Edit")
    approve.click()
    shown.until(lambda: not run.pending, "the approval")
    ((decision, arguments),) = decisions_made(run)
    assert (decision, arguments["path"]) == ("edit", "report.csv")


def test_an_unchanged_value_of_the_form_is_read_to_its_end(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("report.csv" + "\n" * 60 + "; rm -rf /"))
    card = row(show(run))
    press(card, "Edit")
    expect(card.get_by_role("button", name="Approve", exact=True)).to_be_disabled()
    card.get_by_label("path", exact=True).press("Control+End")
    expect(card.get_by_role("button", name="Approve", exact=True)).to_be_enabled()


def test_approve_is_disabled_until_abbreviated_arguments_are_loaded(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("a" * 20_000 + "; rm -rf /"))
    shown = show(run)
    approve = shown.page.get_by_role("button", name="Approve", exact=True)
    expect(approve).to_have_attribute("title", "Show all of the arguments first.")
    press(shown.page, "Show all")
    shown.until(lambda: "; rm -rf /" in row(shown).inner_text(), "all of it")
    expect(approve).to_be_disabled()
    read_to_the_end(shown)
    expect(approve).to_be_enabled()


def test_a_call_with_arguments_too_long_for_a_page_can_only_be_approved_by_code(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("a" * 300_000 + "; rm -rf /"))
    shown = show(run)
    press(shown.page, "Show all")
    approve = shown.page.get_by_role("button", name="Approve", exact=True)
    shown.until(lambda: "in code" in str(approve.get_attribute("title")), "the reason")
    expect(approve).to_be_disabled()
    reject(shown.page)
    shown.until(lambda: not run.pending, "the rejection")


@pytest.mark.parametrize("how", ["the button", "End", "the letters while it is off"])
def test_the_rest_of_the_arguments_is_reached_without_a_mouse(how: str, show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("report.csv" + "\n" * 60 + "; rm -rf /"))
    shown = show(run)
    keys = shown.page.keyboard
    region = shown.page.get_by_role("region", name="Arguments of delete_file (c0)")
    region.focus()
    keys.press("a")
    shown.settle()
    assert shown.sent("decision") == [], "the end has not been in sight"
    if how == "End":
        keys.press("End")
    for _ in range(0 if how == "End" else 20):
        more = shown.page.get_by_role("button", name="Show more").or_(shown.page.get_by_role("button", name="Show all"))
        if not more.count():
            break
        more.press("Enter")
        shown.settle()
    expect(row(shown).get_by_role("button", name="Approve", exact=True)).to_be_enabled()
    region.focus()
    keys.press("a")
    shown.until(lambda: not run.pending, "the approval")


def test_approve_all_is_disabled_until_every_call_was_visible(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes(*(f"/{n}" for n in range(40))))
    shown = show(run)
    page = shown.page
    row(shown, 0).get_by_role("checkbox").check()
    expect(page.get_by_role("button", name="Approve 1", exact=True)).to_be_enabled()
    select_all(shown)
    expect(page.get_by_role("button", name="Approve all")).to_be_disabled()
    for n in range(40):
        row(shown, n).evaluate("row => row.scrollIntoView()")
        shown.settle()
    page.get_by_role("button", name="Approve all").click()
    shown.until(lambda: not run.pending, "the approvals")


def test_a_row_with_cut_off_arguments_can_be_approved_after_it_was_opened(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("a" * 300, "/b", "several\nlines"))
    shown = show(run)
    for n, fits in enumerate([False, True, False]):
        expect(row(shown, n).get_by_role("button", name="Approve", exact=True)).to_have_count(int(fits))
        expect(row(shown, n).get_by_role("button", name="Review", exact=True)).to_have_count(int(not fits))
        expect(row(shown, n).get_by_role("button", name="Reject", exact=True)).to_have_count(1)
    press(row(shown, 0), "Review")
    shown.until(row(shown, 0).get_by_role("button", name="Approve", exact=True).is_enabled, "the arguments in full")


# -- many calls ------------------------------------------------------------------------------------------------------


def test_all_calls_of_a_tool_are_selected_and_decided_by_one_message(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    bar = shown.page.get_by_role("group", name="Selected calls")
    press(shown.page, "Select by tool: delete_file")
    expect(bar).to_contain_text("3 selected")
    row(shown, 1).get_by_role("checkbox").uncheck()
    press(bar, "Reject 2\u2026")
    expect(shown.page.get_by_label("Reason for the selected calls")).to_be_focused()
    shown.page.get_by_label("Reason for the selected calls").fill("keep these")
    press(bar, "Reject 2")
    shown.until(lambda: "2 calls wait" in bar.inner_text(), "the rejections")
    assert len(shown.sent("decision")) == 1
    assert decisions(run) == [("c0", "reject", "human"), ("c2", "reject", "human")]
    assert results(run) == ["Rejected: keep these"] * 2
    approve_all(shown)
    shown.until(lambda: not run.pending, "the approvals")
    run.result(30)
    assert sorted(results(run)[2:]) == ["deleted /b False 3", "moved /a to /b"]


def test_calls_are_grouped_by_tool_and_show_what_differs(show: Callable[..., PanelPage]) -> None:
    move = call("move_file", {"path": "/a", "to": "/b"}, id="m")
    shown = show(waiting(*deletes("/data/a.csv"), move, *deletes("/data/b.csv", "/c.csv")[1:], *deletes("/data/b.csv")))
    headings = shown.page.locator(".agentnb-group")
    assert [" ".join(one.split()) for one in headings.all_inner_texts()] == [
        "delete_file 3 calls; different: path",
        "1 other call",
    ]
    lines = shown.page.locator(".agentnb-call-line .agentnb-call-args")
    assert lines.all_inner_texts() == ["/data/a.csv", "/c.csv", "/data/b.csv", '(path="/a", to="/b")']
    assert lines.locator("b").all_inner_texts() == ["data/a.csv", "c.csv", "data/b.csv"]


def test_no_button_for_several_calls_is_filled_and_at_most_one_in_all(show: Callable[..., PanelPage]) -> None:
    shown = show(mixed())
    filled = shown.page.locator(".agentnb-approvals .agentnb-primary:visible")
    select_all(shown)
    weights = [
        shown.page.get_by_role("button", name=name, exact=True).evaluate(
            "node => getComputedStyle(node).cssText || node.className"
        )
        for name in ("Approve all", "Reject 4\u2026")
    ]
    assert weights[0] == weights[1]
    expect(filled).to_have_count(0)
    for n in range(2):
        press(row(shown, n), "Details of delete_file")
        expect(filled).to_have_count(1)
    row(shown, 0).get_by_role("button", name="Edit", exact=True).focus()
    expect(filled).to_have_count(1)
    expect(row(shown, 0).locator(".agentnb-primary:visible")).to_have_count(1)


def test_rows_are_selected_and_decided_by_keys(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    keys = shown.page.keyboard
    row(shown).get_by_role("checkbox").focus()
    for key in ("Shift+ArrowDown", "Shift+ArrowDown", "Shift+ArrowUp"):
        keys.press(key)
    boxes = [row(shown, n).get_by_role("checkbox") for n in range(3)]
    assert [box.is_checked() for box in boxes] == [True, True, False]
    expect(boxes[1]).to_be_focused()
    keys.press("a")
    shown.until(lambda: len(run.pending) == 3, "the approval")
    shown.until(lambda: rows_left(shown) == 3, "the row to go")
    expect(row(shown, 1).get_by_role("checkbox")).to_be_focused()
    keys.press("r")
    expect(row(shown, 1).get_by_label("Reason", exact=True)).to_be_focused()
    keys.type("a reason")
    keys.press("Enter")
    shown.until(lambda: len(run.pending) == 2, "the rejection")
    shown.until(lambda: rows_left(shown) == 2, "the row to go")
    keys.press("u")
    shown.until(lambda: len(run.pending) == 3, "the approval to be withdrawn")
    assert decisions(run)[:2] == [("c1", "approve", "human"), ("c2", "reject", "human")]


def test_a_decided_row_stays_with_who_decided_and_undo(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    shown.page.clock.install()
    press(row(shown, 1), "Approve")
    was = shown.page.locator(".agentnb-was")
    shown.until(was.count, "the decision")
    expect(was).to_contain_text("approved by a person")
    assert shown.page.locator(".agentnb-waiting-list > *").nth(2).get_attribute("class") == was.get_attribute("class")
    shown.page.clock.fast_forward(8_000)
    expect(was).to_have_count(1)
    shown.page.mouse.move(0, 0)  # it stays while the pointer is over it
    shown.page.clock.fast_forward(4_000)
    shown.settle()
    expect(was).to_have_count(0)
    open_ones = shown.page.get_by_role("list", name="Decided, not started yet")
    expect(open_ones).to_contain_text("approved by a person")


def test_of_very_many_calls_the_next_are_shown_when_the_first_are_decided(
    show: Callable[..., PanelPage],
) -> None:
    paths = [f"/{n}/" + "long " * 100 for n in range(60)]
    run = waiting(*deletes(*paths))
    shown = show(run)
    page = shown.page
    heading = page.locator(".agentnb-waits").first
    rounds = []
    while run.pending:
        shown.until(lambda: heading.inner_text().startswith(f"{len(run.pending)} calls wait"), "the others")
        here = page.get_by_role("group", name="delete_file", exact=True).count()
        rounds.append(here)
        if here < len(run.pending):
            assert heading.inner_text().endswith(f"the first {here} are shown")
        before = len(run.pending)
        select_all(shown)
        approve = page.get_by_role("button", name="Approve all" if here == before else f"Approve {here}", exact=True)
        expect(approve).to_be_disabled()  # the lines are cut, so the whole call has not been visible
        press(page, "Open them")
        read_to_the_end(shown)
        approve.click()
        shown.until(lambda before=before: len(run.pending) < before, "the decisions")
        assert before - len(run.pending) == here  # a call that was not visible is not decided
    assert sum(rounds) == len(paths)
    assert len(rounds) > 1


def test_a_decided_call_that_is_still_shown_does_not_block_the_others(page: Page) -> None:
    page.goto("about:blank")
    question = {"name": "pay", "why": "", "unknown": False, "deadline": None, "values": [], "length": 0, "left": 0,
                "digest": "d", "fields": []}  # fmt: skip
    shown = PanelPage(page, state=state(pending=[{**question, "id": id} for id in ("c0", "c1", "c2")]))
    press(row(shown, tool="pay"), "Approve")
    select_all(shown)
    press(page, "Reject 3\u2026")
    press(page, "Reject 3")
    press(page, "Approve all")
    one, others = shown.sent("decision")
    assert one["id"] == "c0"
    assert [(other["id"], other["decision"]) for other in others["decisions"]] == [("c1", "reject"), ("c2", "reject")]


def test_a_decision_on_the_page_has_the_name_of_the_person_and_the_seconds(
    show: Callable[..., PanelPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTNB_REVIEWER", "Ana")
    run = waiting(*deletes("/a"))
    (item,) = run.pending
    shown = show(run)
    expect(row(shown)).to_be_visible()
    shown.page.wait_for_timeout(300)
    press(row(shown), "Approve")
    shown.until(lambda: not run.pending, "the decision")
    (made,) = (event for event in run.events if isinstance(event, ApprovalDecision))
    assert (made.by, made.reviewer, made.shown, made.question) == ("human", "Ana", item.shown, item.event)
    assert 0.25 < made.seconds < 30


def test_a_remembered_decision_about_selected_calls_applies_to_later_calls(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a", "/b"), then=(deletes("/c"), "Done."))
    shown = show(run)
    bar = shown.page.get_by_role("group", name="Selected calls")
    select_all(shown)
    bar.get_by_label("Remember").select_option("tool")
    press(bar, "Approve all")
    shown.until(lambda: not run.pending, "the approvals")
    rules = shown.page.get_by_role("list", name="Remembered decisions")
    shown.until(rules.is_visible, "the rule")
    expect(rules).to_contain_text("approve every call, as a person decided")
    assert decisions(run) == [("c0", "approve", "human"), ("c1", "approve", "remembered")]
    expect(shown.page.locator(".agentnb-told")).to_have_text("")
    run.result(30)
    assert decisions(run)[-1] == ("c0_3", "approve", "remembered")


def test_a_row_is_edited_in_place_and_its_form_is_decided_with_the_others(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    press(row(shown, 1), "Details of delete_file")
    press(row(shown, 1), "Edit")
    form = row(shown, 1)
    expect(form.get_by_label("path", exact=True)).to_be_focused()
    form.get_by_label("retries", exact=True).fill("many")
    approve_all(shown)
    expect(form).to_contain_text("Enter a whole number.")
    assert shown.sent("decision") == [], "one that does not fit decides nothing, nor do the others"
    press(row(shown, 2), "Details of delete_file")
    replace(row(shown, 2))  # which is only looked at
    form.get_by_label("retries", exact=True).fill("5")
    form.get_by_label("path", exact=True).fill("/edited")
    press(shown.page, "Approve all")
    shown.until(lambda: not run.pending, "the decisions")
    assert len(shown.sent("decision")) == 1
    run.result(30)
    done = ["deleted /a False 3", "deleted /c False 3", "deleted /edited False 5", "moved /a to /b"]
    assert sorted(results(run)) == done, "whichever of the threads was first"


def test_typed_text_is_kept_when_other_calls_are_added(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    pending = list(shown.panel.pending)  # type: ignore[union-attr]
    tell = lambda items: shown.page.evaluate("items => window.model.set('pending', items)", items)  # noqa: E731
    tell([])
    shown.settle()
    tell(pending[:1])
    shown.settle()
    expect(shown.page.get_by_role("group", name="Selected calls")).to_be_hidden()
    press(row(shown), "Edit")
    row(shown).get_by_label("path", exact=True).fill("/typed")
    tell(pending)
    shown.settle()
    expect(row(shown).get_by_label("path", exact=True)).to_have_value("/typed")
    expect(row(shown).get_by_label("path", exact=True)).to_be_focused()
    tell([pending[3], pending[0]])
    shown.settle()
    expect(row(shown).get_by_label("path", exact=True)).to_have_value("/typed")


def test_the_focus_moves_through_the_rows_and_stays_when_a_row_is_decided(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    keys = shown.page.keyboard
    row(shown).get_by_role("checkbox").focus()
    keys.press("ArrowDown")
    keys.press("Space")
    expect(row(shown, 1).get_by_role("checkbox")).to_be_checked()
    keys.press("ArrowUp")
    for _ in range(2):
        keys.press("Tab")
    expect(row(shown).get_by_role("button", name="Approve", exact=True)).to_be_focused()
    keys.press("Enter")
    shown.until(lambda: len(run.pending) == 3, "the decision")
    shown.until(lambda: row(shown, 2).count() == 0, "the row to go")
    expect(row(shown).get_by_role("button", name="Approve", exact=True)).to_be_focused()
    for left in (2, 1, 0):
        keys.press("Enter")
        shown.until(lambda left=left: len(run.pending) == left, "the next decision")
        shown.until(lambda left=left: rows_left(shown) == left, "the next row to go")
    assert shown.page.evaluate("document.activeElement.closest('.agentnb') !== null")


def test_after_the_last_call_one_tab_reaches_the_next_question(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"), then=(deletes("/b"), "Done."))
    shown = show(run)
    row(shown).get_by_role("button", name="Approve", exact=True).focus()
    shown.page.keyboard.press("Enter")
    shown.until(lambda: not run.pending, "the decision")
    shown.until(lambda: rows_left(shown) == 0, "the row to go")
    expect(shown.page.get_by_role("group", name="Waiting calls")).to_be_focused()
    run.play()
    shown.until(lambda: rows_left(shown) == 1, "the next call")
    shown.page.keyboard.press("Enter")
    assert run.pending
    shown.page.keyboard.press("Tab")
    shown.page.keyboard.press("Tab")
    expect(row(shown).get_by_role("button", name="Approve", exact=True)).to_be_focused()


def test_a_key_that_is_held_down_decides_one_call(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    row(shown).get_by_role("button", name="Approve", exact=True).focus()
    shown.page.keyboard.down("Enter")
    shown.until(lambda: len(run.pending) == 3, "the decision")
    shown.until(lambda: row(shown, 2).count() == 0, "the row to go")
    expect(row(shown).get_by_role("button", name="Approve", exact=True)).to_be_focused()
    shown.page.keyboard.down("Enter")  # again, without up: it repeats
    shown.page.keyboard.up("Enter")
    shown.settle()
    assert len(run.pending) == 3


def test_the_focus_stays_in_the_panel_when_the_focused_element_is_removed(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    run.approve("c0")
    undo = shown.page.get_by_role("button", name="Undo: delete_file", exact=True)
    shown.until(lambda: undo.count() == 1, "the decision")
    undo.focus()
    run.result(30)
    shown.until(lambda: undo.count() == 0, "the call to begin")
    expect(shown.page.get_by_role("group", name="Panel")).to_be_focused()


def test_the_focus_moves_to_the_cell_when_the_panel_is_removed(show: Callable[..., PanelPage]) -> None:
    shown = show(waiting(*deletes("/a")))
    shown.page.evaluate("document.body.insertAdjacentHTML('afterbegin', '<div id=cell tabindex=0>2</div>')")
    shown.page.evaluate("document.getElementById('cell').append(document.getElementById('here'))")
    row(shown).get_by_role("button", name="Approve", exact=True).focus()
    shown.page.evaluate("() => { window.dispose(); document.getElementById('here').remove(); }")
    expect(shown.page.locator("#cell")).to_be_focused()


def test_typing_presses_no_button_when_another_person_decides(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a", "/b"))
    shown = show(run)
    press(row(shown), "Details of delete_file")
    press(row(shown), "Edit")
    expect(row(shown).get_by_label("path", exact=True)).to_be_focused()
    run.approve("c0")
    shown.until(lambda: rows_left(shown) == 1, "the row to go")
    for key in ("Space", "Enter", "d", "d"):
        shown.page.keyboard.press(key)
    shown.settle()
    assert [pending.id for pending in run.pending] == ["c1"]
    panel = shown.page.get_by_role("group", name="Panel")
    expect(panel).to_be_focused()
    assert panel.get_attribute("data-lm-suppress-shortcuts") is not None, "the notebook takes bare letters for commands"


def test_the_focus_does_not_move_to_another_call_when_another_person_decides(
    show: Callable[..., PanelPage],
) -> None:
    run = waiting(*deletes("/a", "/b"))
    shown = show(run)
    row(shown).get_by_role("button", name="Approve", exact=True).focus()
    run.approve("c0")
    shown.until(lambda: rows_left(shown) == 1, "the row to go")
    shown.page.keyboard.press("Enter")
    shown.settle()
    assert [pending.id for pending in run.pending] == ["c1"]


def test_a_note_says_that_a_typed_reason_is_not_used(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    press(row(shown), "Reject")
    row(shown).get_by_label("Reason").fill("too dangerous")
    run.approve("c0")
    told = shown.page.get_by_text("delete_file no longer waits for a decision; the reason that was typed is not used.")
    shown.until(lambda: told.count() == 1, "the note")


@pytest.mark.parametrize("key", [{"isComposing": True}, {"keyCode": 229}], ids=["composing", "the last one in Safari"])
def test_enter_during_input_composition_does_not_decide(show: Callable[..., PanelPage], key: Any) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    press(row(shown), "Reject")
    reason = row(shown).get_by_label("Reason")
    reason.fill("危険")
    pressed = {"key": "Enter", "bubbles": True, "cancelable": True, **key}
    reason.evaluate("(node, key) => node.dispatchEvent(new KeyboardEvent('keydown', key))", pressed)
    shown.settle()
    assert shown.sent("decision") == []
    reason.press("Enter")
    shown.until(lambda: not run.pending, "the decision")


def test_letters_are_not_notebook_commands_while_a_button_has_the_focus(show: Callable[..., PanelPage]) -> None:
    shown = show(waiting(*deletes("/a")))
    shown.page.evaluate("window.heard = []; document.addEventListener('keydown', ({ key }) => window.heard.push(key))")
    row(shown).get_by_role("button", name="Edit", exact=True).focus()
    for key in ("d", "d", "Shift+Enter", "Control+s"):
        shown.page.get_by_role("button", name="More", exact=True).press(key)
    assert shown.page.evaluate("window.heard") == ["Shift", "Enter", "Control", "s"]


def test_a_typed_message_can_be_copied_after_the_run_has_ended(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    box = shown.page.get_by_label("Message to the run")
    box.fill("and then this")
    run.cancel()
    shown.until(shown.page.get_by_role("button", name="Replay", exact=True).is_visible, "the end")
    expect(box).to_be_focused()
    expect(box).to_have_value("and then this")
    assert not box.is_editable()


def test_after_a_reason_by_keyboard_the_next_call_has_the_focus(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a", "/b"))
    shown = show(run)
    row(shown).get_by_role("button", name="Details of delete_file").click()
    press(row(shown), "Reject")
    reason = row(shown).get_by_label("Reason")
    reason.fill("not this")
    reason.press("Enter")
    shown.until(lambda: rows_left(shown) == 1, "the row to go")
    assert [pending.id for pending in run.pending] == ["c1"]
    expect(row(shown).get_by_role("button", name="Approve", exact=True)).to_be_focused()


def test_the_panel_does_not_take_the_focus_back_after_a_person_has_left_it(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    row(shown).get_by_role("button", name="Edit", exact=True).focus()
    shown.page.mouse.click(990, 990)  # at an empty place
    run.approve("c0")
    shown.until(lambda: rows_left(shown) == 0, "the row to go")
    assert shown.page.evaluate("document.activeElement === document.body")


def test_many_calls_are_announced_together(show: Callable[..., PanelPage]) -> None:
    shown = show(mixed(), "approvals")
    page = shown.page
    pending = shown.panel.pending  # type: ignore[union-attr]
    page.evaluate(
        "() => { window.told = []; const at = document.querySelector('.agentnb-spoken');"
        " new MutationObserver(() => window.told.push(at.textContent)).observe(at, { childList: true }); }"
    )
    began = time.monotonic()
    for count in range(0, 60, 5):
        more = [{**pending[0], "id": f"x{n}"} for n in range(count)]
        page.evaluate("items => window.model.set('pending', items)", [*pending, *more])
        shown.settle()
    page.wait_for_function("() => window.told.some((words) => words.startsWith('59 calls wait'))")
    assert len(page.evaluate("window.told")) <= 1 + (time.monotonic() - began) / 2  # once in two seconds


# -- in the trace ----------------------------------------------------------------------------------------------------


def in_trace(page: Page, run: Any) -> PanelPage:
    page.goto("about:blank")
    shown = PanelPage(page, RecordedPanel(run), tab="Trace")
    shown.until(page.get_by_role("treegrid", name="Trace").get_by_role("group", name="delete_file").count, "the card")
    return shown


def close(shown: PanelPage) -> None:
    assert shown.errors == []
    assert shown.panel is not None
    shown.panel.run.cancel()
    shown.panel.close()


def test_a_question_unfolds_in_its_row_and_nothing_outside_moves(page: Page) -> None:
    run = waiting(*deletes("/a", "/b"), then=(deletes("/c"), "Done."))
    shown = in_trace(page, run)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p id=below>below</p>')")
    around = "() => [document.querySelector('#below'), document.querySelector('.agentnb-tabs')]"
    boxes = f"() => ({around})().map((node) => node.getBoundingClientRect().top)"
    before = page.evaluate(boxes)
    grid = page.get_by_role("treegrid", name="Trace")
    rows = grid.locator(".agentnb-trace-row:visible, .agentnb-grown-row:visible").filter(has_text="delete_file")
    shown.until(lambda: rows.count() == 1, "one card in place of the rows of both calls")
    select_all(shown)
    press(page, "Approve all")
    shown.until(lambda: not run.pending, "the decisions")
    shown.until(lambda: rows_left(shown) == 0, "the rows to go")
    assert page.evaluate(boxes) == before
    page.get_by_role("button", name="Play", exact=True).click()
    shown.until(lambda: run.pending, "the next question")
    shown.until(lambda: rows_left(shown) == 1, "its card")
    assert page.evaluate(boxes) == before
    card, panel = page.get_by_role("group", name="delete_file").bounding_box(), grid.bounding_box()
    assert card is not None
    assert panel is not None
    assert card["y"] > panel["y"]
    close(shown)


def test_a_question_is_above_the_view_while_another_tab_is_shown(page: Page) -> None:
    shown = in_trace(page, waiting(*deletes("/a")))
    press(row(shown), "Edit")
    row(shown).get_by_label("path", exact=True).fill("/typed")
    for tab, inside in (("Events", 0), ("Trace", 1)):
        page.get_by_role("tab", name=tab).click()
        shown.settle()
        expect(row(shown)).to_be_visible()
        expect(page.get_by_role("treegrid", name="Trace").get_by_role("group", name="delete_file")).to_have_count(
            inside
        )
        expect(row(shown).get_by_label("path", exact=True)).to_have_value("/typed")
    close(shown)


def test_after_the_last_question_the_row_has_the_focus(page: Page) -> None:
    run = waiting(*deletes("/a"))
    shown = in_trace(page, run)
    row(shown).get_by_role("button", name="Approve", exact=True).focus()
    page.keyboard.press("a")
    shown.until(lambda: rows_left(shown) == 0, "the decision")
    expect(page.get_by_role("treegrid", name="Trace")).to_be_focused()
    chosen = page.get_by_role("treegrid", name="Trace").locator("[aria-selected=true]")
    expect(chosen).to_contain_text("delete_file")
    close(shown)


def test_the_focus_stays_when_the_card_moves_to_another_row(page: Page) -> None:
    run = waiting(*deletes("/a", "/b", "/c"))
    shown = in_trace(page, run)
    page.clock.install()
    row(shown, 2).get_by_role("checkbox").focus()
    run.reject("c0", "no")
    shown.until(lambda: rows_left(shown) == 2, "the decision")
    page.clock.fast_forward(12_000)
    shown.settle()
    expect(page.locator(".agentnb-was")).to_have_count(0)
    expect(row(shown, 1).get_by_role("checkbox")).to_be_focused()
    close(shown)


def test_escape_leaves_the_card_to_the_trace(page: Page) -> None:
    shown = in_trace(page, waiting(*deletes("/a")))
    press(row(shown), "Edit")
    page.keyboard.press("Escape")
    expect(row(shown).get_by_role("button", name="Edit", exact=True)).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("treegrid", name="Trace")).to_be_focused()
    close(shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_card_in_the_trace_has_no_accessibility_fault(page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    for run in (waiting(*deletes("/a\n" * 50)), mixed()):
        shown = in_trace(page, run)
        if len(run.pending) > 1:
            select_all(shown)
            press(row(shown, 1), "Details of delete_file")
        assert faults(page) == []
        assert page.locator(".agentnb-panel .agentnb-primary:visible").count() <= 1
        close(shown)


# -- the form ----------------------------------------------------------------------------------------------------------


class Margins(BaseModel):
    left: int = 1
    right: int = 2


@tool(approve=True)
def write(text: str, margins: Margins, copies: int = 1) -> str:
    return f"{text!r} {margins.left} {copies}"


def decided(show: Callable[..., PanelPage], arguments: dict[str, Any], **typed: str) -> ApprovalDecision:
    """How a call of `write` is decided whose form is opened, filled in with this, and approved."""
    run = SessionLoop(ScriptedLLM([[call("write", arguments)], "Done."]), [write]).start("go")
    run.submit_step("turn").result(30)
    shown = show(run)
    form = row(shown, tool="write")
    press(form, "Edit")
    for label, value in typed.items():
        form.get_by_label(label, exact=True).fill(value)
    press(form, "Approve")
    shown.until(lambda: not run.pending, "the decision")
    return next(event for event in run.events if isinstance(event, ApprovalDecision))


def test_unchanged_fields_of_a_form_keep_their_original_values(show: Callable[..., PanelPage]) -> None:
    asked = {"text": "a\r\nb\rc", "margins": {"right": 7}}
    decision = decided(show, asked, copies="3")
    assert (decision.decision, decision.arguments) == ("edit", {**asked, "copies": 3})


def test_a_long_text_is_fully_visible_in_its_form(show: Callable[..., PanelPage]) -> None:
    shown = show(waiting(*deletes("a long way to " * 40)))
    press(row(shown), "Edit")
    box = row(shown).get_by_label("path", exact=True)
    assert box.evaluate("box => box.scrollHeight <= box.clientHeight")


def test_an_empty_object_is_kept_by_an_edit(show: Callable[..., PanelPage]) -> None:
    asked = {"text": "a", "margins": {}}
    assert decided(show, asked, copies="3").arguments == {**asked, "copies": 3}


@tool(approve=True)
def frame(text: str, margins: Margins | None = None) -> str:
    return f"{text!r} {margins}"


LEFT = "margins.left"
GIVEN = "margins: given or not"


def framed(show: Callable[..., PanelPage], arguments: dict[str, Any]) -> tuple[PanelPage, Any]:
    """The open form of a call whose object may be null, and its run."""
    run = SessionLoop(ScriptedLLM([[call("frame", arguments)], "Done."]), [frame]).start("go")
    run.submit_step("turn").result(30)
    shown = show(run)
    press(row(shown, tool="frame"), "Edit")
    return shown, run


@pytest.mark.parametrize("margins", [{"margins": {"left": 3}}, {"margins": None}, {}])
def test_a_nullable_object_is_edited_by_its_fields(show: Callable[..., PanelPage], margins: dict[str, Any]) -> None:
    shown, run = framed(show, {"text": "a", **margins})
    form = row(shown, tool="frame")
    if not margins.get("margins"):
        expect(form.get_by_label(LEFT, exact=True)).to_be_hidden()
        form.get_by_label(GIVEN).select_option("value")
    form.get_by_label(LEFT, exact=True).fill("4")
    press(form, "Approve")
    shown.until(lambda: not run.pending, "the decision")
    assert decisions_made(run) == [("edit", {"text": "a", "margins": {"left": 4}})]


@pytest.mark.parametrize(("choice", "decided"), [("null", {"margins": None}), ("absent", {})])
def test_a_nullable_object_can_be_removed_in_the_form(
    show: Callable[..., PanelPage], choice: str, decided: dict[str, Any]
) -> None:
    shown, run = framed(show, {"text": "a", "margins": {"left": 3}})
    form = row(shown, tool="frame")
    form.get_by_label(LEFT, exact=True).fill("nothing that fits")
    form.get_by_label(GIVEN).select_option(choice)
    expect(form.get_by_label(LEFT, exact=True)).to_be_hidden()
    press(form, "Approve")
    shown.until(lambda: not run.pending, "the decision")
    assert decisions_made(run) == [("edit", {"text": "a", **decided})]


@pytest.mark.parametrize("margins", [{"margins": {"left": 3}}, {"margins": None}, {}])
def test_an_unchanged_nullable_object_is_approved(show: Callable[..., PanelPage], margins: dict[str, Any]) -> None:
    shown, run = framed(show, {"text": "a", **margins})
    press(row(shown, tool="frame"), "Approve")
    shown.until(lambda: not run.pending, "the decision")
    assert [decision for decision, _ in decisions_made(run)] == ["approve"]


@tool
def bound(margins: Margins | None) -> str:
    return f"{margins}"


def test_a_required_nullable_object_has_fields_in_the_form(
    show: Callable[..., PanelPage],
) -> None:
    run = SessionLoop(ScriptedLLM([[call("frame", {"text": "a"})], "Done."]), [frame, bound]).start("go")
    run.submit_step("turn").result(30)
    shown = show(run)
    form = row(shown, tool="frame")
    replace(form)
    expect(form.get_by_label(GIVEN)).to_have_value("value")
    form.get_by_label(LEFT, exact=True).fill("4")
    press(form, "Approve")
    shown.until(lambda: not run.pending, "the decision")
    assert decisions_made(run) == [("replace", {"margins": {"left": 4}})]


def test_an_unchanged_form_approves_the_call(show: Callable[..., PanelPage]) -> None:
    assert decided(show, {"text": "a\r", "margins": {"left": 3}}).decision == "approve"


# -- who decided -----------------------------------------------------------------------------------------------------


def test_a_decision_is_undone_by_its_button(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    press(row(shown), "Approve")
    undo = shown.page.get_by_role("button", name="Undo: delete_file")
    shown.until(undo.is_visible, "the decision")
    expect(shown.page.locator(".agentnb-was")).to_contain_text("approved by a person")
    shown.page.locator("summary").click()
    newest = shown.page.get_by_role("list", name="Newest decisions")
    [when] = [event.time for event in run.events if isinstance(event, ApprovalDecision)]
    told = newest.locator("time").get_attribute("datetime") or ""
    assert abs(datetime.fromisoformat(told).timestamp() - when) < 0.002, "when it was decided"
    undo.click()
    shown.until(lambda: len(run.pending) == 4, "the question")
    shown.until(lambda: row(shown, 2).count() == 1, "the row")
    assert row(shown).locator("code").first.text_content() == "delete_file"
    assert decisions(run)[-1] == ("c0", "ask", "human")
    expect(shown.page.locator(".agentnb-told")).to_contain_text("waits for a decision again")
    expect(shown.page.locator(".agentnb-was")).to_have_count(0)
    expect(newest.get_by_role("listitem")).to_have_count(2)


def test_a_decision_about_a_single_call_is_undone_below_its_card(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    press(row(shown), "Approve")
    open_ones = shown.page.get_by_role("list", name="Decided, not started yet")
    shown.until(open_ones.is_visible, "the decision")
    expect(open_ones).to_contain_text("approved by a person")
    shown.page.get_by_role("group", name="Waiting calls").press("u")
    shown.until(lambda: len(run.pending) == 1, "the question")


def test_what_another_person_decides_is_read_out(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    spoken = shown.page.locator(".agentnb-spoken")
    expect(spoken).to_have_text("4 calls wait for your decision.")
    run.reject("c0", "no")
    shown.until(lambda: "delete_file: rejected by code." in spoken.inner_text(), "what was decided")


def test_a_decision_undone_before_the_page_was_updated_leaves_the_buttons_enabled(
    show: Callable[..., PanelPage],
) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    with run.lock:  # no message is sent meanwhile
        press(row(shown), "Approve")
        shown.settle()
        expect(row(shown).get_by_role("button", name="Approve", exact=True)).to_be_disabled()
        run.undo("c0")
    shown.until(row(shown).get_by_role("button", name="Approve", exact=True).is_enabled, "the question")
    reject(row(shown))
    shown.until(lambda: not run.pending, "the decision")
    assert [made[1] for made in decisions(run)] == ["approve", "ask", "reject"]


def test_many_decisions_are_undone_by_one_button(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    every = shown.page.get_by_role("button", name="Undo all")
    expect(every).to_be_hidden()
    approve_all(shown)
    shown.until(every.is_visible, "the decisions")
    expect(shown.page.get_by_text("4 decided calls have not started.")).to_be_visible()
    every.click()
    shown.until(lambda: len(run.pending) == 4, "the questions")
    shown.until(every.is_hidden, "the button to go")
    expect(shown.page.locator(".agentnb-told")).to_have_text("4 withdrawn; the calls wait for a decision again.")


def test_a_remembered_decision_is_forgotten_by_its_button(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    row(shown).get_by_label("Remember").select_option("arguments")
    press(row(shown), "Approve")
    forget = shown.page.get_by_role("button", name="Forget: delete_file")
    shown.until(forget.is_visible, "the rule")
    expect(shown.page.get_by_role("list", name="Remembered decisions")).to_contain_text('{"path":"/a"}')
    forget.click()
    shown.until(lambda: not run.remembered, "the forgetting")
    shown.until(lambda: not forget.count(), "the rule to go")


def test_a_late_decision_is_answered_with_who_decided_first(show: Callable[..., PanelPage]) -> None:
    run = mixed()
    shown = show(run)
    press(row(shown), "Approve")  # not yet carried to the kernel
    run.reject("c0", "no")
    shown.settle()
    told = shown.page.locator(".agentnb-told")
    shown.until(lambda: "code rejected it at" in told.inner_text(), "who was first")
    expect(told).to_contain_text("delete_file")
    assert decisions(run) == [("c0", "reject", "code")]
    approve_all(shown)
    run.reject("m")
    shown.until(lambda: not run.pending, "the others")
    shown.until(lambda: "move_file" in told.inner_text(), "the one that was late")
    assert [entry[:2] for entry in decisions(run)][1:] == [("m", "reject"), ("c1", "approve"), ("c2", "approve")]


def test_a_note_says_that_a_typed_form_is_not_used(
    show: Callable[..., PanelPage],
) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    press(shown.page, "Edit")
    shown.page.get_by_role("textbox", name="path").fill("/b")
    run.reject("c0", "no")
    told = shown.page.locator(".agentnb-told")
    shown.until(told.inner_text, "what became of it")
    expect(told).to_have_text("delete_file no longer waits for a decision; the values that were typed are not used.")


# -- stopping --------------------------------------------------------------------------------------------------------


def test_a_breakpoint_is_set_stops_the_run_and_can_be_disabled_and_removed(show: Callable[..., PanelPage]) -> None:
    searches = [[call("search", {"query": query}, id=query)] for query in ("a", "b", "c", "d")]
    run = session([*searches, "Done."])
    shown = show(run)
    page = shown.page
    press_in_menu(page, "Breakpoints")
    section = page.get_by_role("region", name="Breakpoints")
    expect(section.get_by_label("Event of the breakpoint")).to_be_focused()
    press(section, "Add breakpoint")
    shown.until(lambda: "without a condition" in section.inner_text(), "the refusal")
    section.get_by_label("Tool of the breakpoint").fill("sea*")
    section.get_by_label("Argument of the breakpoint").fill("query")
    section.get_by_label("Comparison").select_option("matches")
    section.get_by_label("Value", exact=True).fill("[bd]")
    section.get_by_label("Value", exact=True).press("Enter")
    item = section.get_by_role("listitem")
    shown.until(item.count, "the breakpoint")
    expect(item).to_contain_text('tool sea*, query matches "[bd]"')
    press(page, "Play")
    shown.until(lambda: run.state.paused, "the pause")
    shown.until(lambda: "Stopped by the breakpoint" in page.inner_text(".agentnb-stopped"), "the reason")
    expect(page.locator(".agentnb-stopped")).to_contain_text("call_start")
    assert [event.call_id for event in run.events if isinstance(event, CallEnd)] == ["a"]  # it stops before b
    shown.until(lambda: "1 hit, last at #" in item.inner_text(), "the hit")
    item.get_by_role("checkbox").uncheck()
    shown.until(lambda: not run.breakpoints[0].enabled, "switching it off")
    names = page.get_by_role("group", name="More", include_hidden=True).get_by_role("button", include_hidden=True)
    shown.until(lambda: "Breakpoints" in names.all_text_contents(), "the button that says none is on")
    item.get_by_role("checkbox").check()
    shown.until(lambda: run.breakpoints[0].enabled, "switching it on")
    press(item, 'Remove breakpoint: tool sea*, query matches "[bd]"')
    shown.until(lambda: not len(run.breakpoints), "taking it away")
    press(page, "Play")
    shown.until(lambda: run.state.over, "the end")
    shown.until(lambda: not page.inner_text(".agentnb-stopped"), "the page to say no more why it stood")


@pytest.mark.parametrize(
    ("fields", "label", "stops_at"),
    [
        ({"Event of the breakpoint": "model_end"}, "model_end", "model_end"),
        ({"Phase of the breakpoint": "acting"}, "phase acting", "model_end"),
        ({"Cost above": "0.015"}, "cost above 0.015", "model_end"),
        ({"Tool of the breakpoint": "sea*", "Event of the breakpoint": "call_end"}, "call_end, tool sea*", "call_end"),
    ],
    ids=["event", "phase", "cost", "tool"],
)  # fmt: skip
def test_each_kind_of_breakpoint_is_set_in_the_form_and_stops_the_run(
    show: Callable[..., PanelPage], fields: dict[str, str], label: str, stops_at: str
) -> None:
    spent = {"type": "usage", "cost": 0.01}
    run = session(
        [[call("search", {"query": "a"}, id="a"), spent], [call("search", {"query": "b"}, id="b"), spent], "Ok."]
    )
    shown = show(run)
    press_in_menu(shown.page, "Breakpoints")
    section = shown.page.get_by_role("region", name="Breakpoints")
    for name, value in fields.items():
        control = section.get_by_label(name)
        if control.evaluate("node => node.localName") == "select":
            control.select_option(value)
        else:
            control.fill(value)
    press(section, "Add breakpoint")
    shown.until(lambda: [one.label for one in run.breakpoints] == [label], "the breakpoint")
    press(shown.page, "Play")
    shown.until(lambda: run.state.paused, "the pause")
    stopped = shown.page.locator(".agentnb-stopped")
    shown.until(lambda: stopped.inner_text().endswith(f": {label}"), "the reason")
    paused = next(event for event in run.events if event.type == "run_paused")
    before = [event for event in run.events[: paused.seq] if event.type == stops_at]
    assert len(before) == (2 if "Cost above" in fields else 1)
    assert len([event for event in run.events if event.type == "call_end"]) <= 1


def test_a_breakpoint_is_set_from_an_event_in_the_list(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run, "controls", "events")
    option = shown.page.get_by_role("log", name="Events").get_by_role("option")
    shown.until(option.count, "the events")
    stop = shown.page.get_by_role("button", name="Break here")
    option.filter(has_text="approval_request").click()
    expect(stop).to_have_attribute("title", "Add a breakpoint: every approval_request of delete_file (B)")
    stop.click()
    shown.until(lambda: len(run.breakpoints), "the breakpoint")
    assert [one.label for one in run.breakpoints] == ["approval_request, tool delete_file"]
    expect(shown.page.get_by_role("button", name="Breakpoint added")).to_be_visible()
    run.cancel()
    shown.until(option.filter(has_text="run_end").count, "the end")
    option.filter(has_text="run_start").click()
    expect(shown.page.get_by_role("button", name="Close")).to_be_visible()
    expect(stop).to_be_disabled()
    expect(stop).to_have_attribute("title", "The run has ended.")


@pytest.mark.parametrize("paths", [["a" * 20_000], ["/a", "/b"]], ids=["one call", "many calls"])
def test_a_button_has_a_title_with_its_purpose_or_why_it_is_disabled(
    show: Callable[..., PanelPage], paths: list[str]
) -> None:
    run = waiting(*deletes(*paths))
    shown = show(run)
    page = shown.page
    for button in page.get_by_role("button").all():
        assert not button.is_visible() or button.get_attribute("title") or button.get_attribute("aria-label"), button
    off = {name: page.get_by_role("button", name=name, exact=True) for name in ("Play", "Approve", "Step")}
    expect(off["Play"]).to_have_attribute("title", "Run until the end, a breakpoint or Pause (Space)")
    expect(off["Approve"].first).to_have_attribute(
        "title", "Show all of the arguments first." if len(paths) == 1 else "Approve (A)"
    )
    expect(off["Step"]).to_have_attribute("title", "Run one step, then pause (S)")
    run.cancel()
    shown.until(page.get_by_role("button", name="Replay", exact=True).is_visible, "the end")
    page.get_by_role("button", name="More", exact=True).click()
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    expect(cancel).to_be_disabled()
    expect(cancel).to_have_attribute("title", "The run has ended.")


def test_pasted_lines_are_kept_and_enter_sends_them(show: Callable[..., PanelPage]) -> None:
    run = session([[*text("One"), delay(30)]])
    shown = show(run)
    run.submit_step("event").result(30)
    box = shown.page.get_by_label("Message to the run")
    box.fill("first\nsecond")
    box.press("Shift+Enter")
    box.press_sequentially("third")
    box.press("Enter")
    shown.until(lambda: run.queued, "the message")
    assert run.queued[0][1].content == "first\nsecond\nthird"
    expect(box).to_have_value("")


def test_a_message_is_shown_in_its_queue_and_can_be_withdrawn(show: Callable[..., PanelPage]) -> None:
    run = session([[*text("One"), delay(30)]])
    shown = show(run)
    run.submit_step("event").result(30)
    for words in ("stop that", "and this"):
        shown.page.get_by_label("Message to the run").fill(words)
        press(shown.page, "Steer")
        shown.until(lambda words=words: words in [m.content for _, m in run.queued], "the message")
    queued = shown.page.get_by_role("list", name="Messages not delivered yet")
    shown.until(lambda: queued.get_by_role("listitem").count() == 2, "the queue")
    back = queued.get_by_role("button", name="Withdraw: and this")
    back.click()
    shown.until(lambda: [m.content for _, m in run.queued] == ["stop that"], "the taking back")
    shown.until(lambda: queued.get_by_role("listitem").count() == 1, "the queue")
    queued.get_by_role("button", name="Withdraw: stop that").click()
    run.withdraw("steering")
    shown.until(lambda: "can no longer be withdrawn" in shown.page.inner_text(".agentnb-note"), "the refusal")


# -- keeping ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_has_the_given_name(show: Callable[..., PanelPage]) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run)
    press(shown.page, "More")
    shown.page.get_by_label("Name of the snapshot (optional)").fill("before it")
    press_in_menu(shown.page, "Snapshot")
    shown.until(lambda: "before it" in SNAPSHOTS, "the snapshot")
    note = shown.page.locator(".agentnb-answer > .agentnb-note")
    expect(note).to_have_text("Snapshot taken of 5 events: agentnb.widgets.SNAPSHOTS['before it']")
    assert SNAPSHOTS.pop("before it").name == "before it"


def test_a_fork_is_made_at_the_newest_event_or_at_the_selected_one(
    show: Callable[..., PanelPage],
) -> None:
    run = waiting(*deletes("/a"))
    shown = show(run, "controls", "events")
    press_in_menu(shown.page, "Fork")
    shown.until(lambda: "tidy fork@4" in FORKS, "the fork at the newest")
    option = shown.page.get_by_role("log", name="Events").get_by_role("option").filter(has_text="model_start")
    shown.until(option.count, "the events")
    option.click()
    shown.settle()
    press(shown.page, "More")
    expect(shown.page.get_by_role("group", name="More")).to_contain_text("at #2")
    press_in_menu(shown.page, "Fork")
    shown.until(lambda: "tidy fork@2" in FORKS, "the fork at the event")
    note = shown.page.locator(".agentnb-answer > .agentnb-note")
    expect(note).to_have_text(
        "Branch tidy fork@2, from #2. Its line below the strip opens it; in code it is"
        " agentnb.widgets.FORKS['tidy fork@2']."
    )
    newest, earlier = FORKS.pop("tidy fork@4"), FORKS.pop("tidy fork@2")
    assert [fork.events[0].forked_from for fork in (newest, earlier)] == [f"{run.id}@4", f"{run.id}@2"]
    newest.approve("c0")
    assert newest.result(30) == "Done."
    assert [item.id for item in run.pending] == ["c0"]


# -- what others say -------------------------------------------------------------------------------------------------


def test_hostile_text_in_decisions_breakpoints_and_queues_is_not_executed(page: Page) -> None:
    hostile = HOSTILE.replace("\ud800", "\ufffd")
    page.add_init_script("window.boomed = 0; window.boom = () => { window.boomed += 1; };")
    page.goto("about:blank")
    one = {"event": 1, "time": 1.0, "path": hostile, "name": hostile, "arguments": hostile, "words": hostile,
           "decision": hostile, "reason": hostile, "undo": True}  # fmt: skip
    rule = {"event": 2, "time": 1.0, "decision": hostile, "name": hostile, "arguments": hostile, "words": hostile}
    question = {"id": hostile, "path": hostile, "name": hostile, "why": hostile, "unknown": False, "deadline": None,
                "values": [{"name": hostile, "kind": kind, "text": hostile} for kind in ("text", "string", "json")],
                "needs": [hostile], "description": hostile, "length": len(hostile), "left": 0, "digest": "",
                "fields": []}  # fmt: skip
    status = {"run": "r", "name": "r", "id": "r", "loop": "L", "can": {"Fork": True},
              "paused_for": f"breakpoint {hostile}",
              "queued": [{"queue": hostile, "text": hostile, "digest": "d"}]}  # fmt: skip
    breakpoints = {"list": [{"number": 1, "label": hostile, "enabled": True, "hits": 1, "last": 1}],
                   "events": [hostile], "tools": [hostile], "phases": [hostile], "operators": [hostile]}  # fmt: skip
    shown = PanelPage(
        page,
        state={
            "key": "k", "parts": ["controls", "approvals"], "status": status, "tools": {}, "total": 0, "tail": "[]",
            "pending": [question, {**question, "id": "other"}], "decisions": {"recent": [one], "rules": [rule]},
            "breakpoints": breakpoints,
        },
    )  # fmt: skip
    press_in_menu(page, "Breakpoints (1)")
    page.locator("summary").click()
    told = page.inner_text("#here")
    assert told.count("<script>boom()</script>") >= 10
    assert "\u202e" not in told
    assert page.evaluate("window.boomed") == 0
    assert page.locator("#here :is(script, img, [onload], [onerror], [onclick])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1000
    assert shown.errors == []


@pytest.mark.parametrize("width", [250, 700])
def test_a_call_fits_the_width_of_the_panel(page: Page, width: int) -> None:
    page.goto("about:blank")
    page.set_viewport_size({"width": width, "height": 900})
    run = waiting(*deletes("/a" * 200))
    shown = PanelPage(page, RecordedPanel(run, parts=("approvals",)))
    shown.settle()
    card = page.get_by_role("group", name="delete_file").bounding_box()
    assert card is not None
    for control in page.locator("#here :is(button, input, select)").all():
        box = control.bounding_box()
        assert box is None or box["x"] + box["width"] <= card["x"] + card["width"]
    run.cancel()
    assert shown.panel is not None
    shown.panel.close()
    page.set_viewport_size({"width": 1000, "height": 1000})


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1000), ("light", 480), ("dark", 360), ("light", 220)])
def test_a_table_of_calls_fits_the_width_of_the_panel(page: Page, scheme: Any, width: int) -> None:
    page.goto("about:blank")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    run = waiting(*deletes("/a" * 200, "/b"), call("move_file", {"path": "/a", "to": "/b"}, id="m"))
    run.approve("m", remember="arguments")
    shown = PanelPage(page, RecordedPanel(run, parts=("controls", "approvals")))
    press_in_menu(page, "Breakpoints")
    select_all(shown)
    press(row(shown, 1), "Details of delete_file")
    press(row(shown, 1), "Edit")
    shown.settle()
    assert page.evaluate("window.poorContrast()") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for control in page.locator("#here :is(button, input, select)").all():
        box = control.bounding_box()
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= width)
    run.cancel()
    assert shown.panel is not None
    shown.panel.close()
    page.set_viewport_size({"width": 1000, "height": 1000})


def test_a_narrow_table_shows_the_whole_name_of_a_tool(page: Page) -> None:
    page.goto("about:blank")
    page.set_viewport_size({"width": 360, "height": 900})
    names = ["write_the_summary_of_all_the_measurements_here", "write_the_summary_of_all_the_measurements_away"]

    def write(path: str) -> str:
        return path

    tools = [tool(write, name=name, approve=True) for name in names]
    run = SessionLoop(ScriptedLLM([[call(name, {"path": "a"}) for name in names]]), tools).start("Write.")
    run.submit_step("turn").result(30)
    shown = PanelPage(page, RecordedPanel(run, parts=("controls", "approvals")))
    for name in names:
        around = row(shown, tool=name).bounding_box()
        written = row(shown, tool=name).locator("code").first.bounding_box()
        assert around is not None
        assert written is not None
        assert written["x"] + written["width"] <= around["x"] + around["width"]
    run.cancel()
    assert shown.panel is not None
    shown.panel.close()
    page.set_viewport_size({"width": 1000, "height": 1000})


# -- the layout of a table of calls ------------------------------------------------------------------------------------


def test_a_decided_row_is_one_line_of_the_table(show: Callable[..., PanelPage]) -> None:
    shown = show(waiting(*deletes("/a", "/b")))
    press(row(shown, 0), "Reject")
    was = shown.page.locator(".agentnb-was")
    shown.until(was.count, "the decision")
    assert was.bounding_box()["height"] < 50  # type: ignore[index]
    assert was.evaluate("row => row.scrollHeight <= row.clientHeight")


def test_the_fields_of_a_form_are_below_each_other(show: Callable[..., PanelPage]) -> None:
    shown = show(
        waiting(call("move_file", {"path": "/a", "to": "/b"}, id="m1"), call("delete_file", {"path": "/c"}, id="d"))
    )
    form = row(shown, tool="move_file")
    press(form, "Details of move_file")
    press(form, "Edit")
    boxes = [form.get_by_label(name, exact=True).bounding_box() for name in ("path", "to")]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["x"] == boxes[1]["x"]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]


def test_edit_shows_its_form_in_place_of_long_arguments(show: Callable[..., PanelPage]) -> None:
    long = call("delete_file", {"path": "\n".join(f"/line {n}" for n in range(60))}, id="long")
    shown = show(waiting(long, *deletes("/b")), "controls", "trace", "approvals")
    card = row(shown)
    press(card, "Details of delete_file")
    press(card, "Edit")
    first = card.get_by_label("path", exact=True)
    expect(first).to_be_focused()
    expect(first).to_be_in_viewport()
    expect(card.get_by_role("region", name="Arguments of delete_file (long)")).to_be_hidden()


def test_review_gives_the_keys_to_the_call_that_it_opens(show: Callable[..., PanelPage]) -> None:
    long = call("delete_file", {"path": "/a/very/long/path/" * 20}, id="long")
    run = waiting(long, *deletes("/b"))
    shown = show(run)
    press(row(shown), "Review")
    shown.page.keyboard.press("r")
    expect(row(shown).get_by_label("Reason", exact=True)).to_be_focused()
    assert len(run.pending) == 2
