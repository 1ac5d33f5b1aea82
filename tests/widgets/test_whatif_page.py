"""What if, branches and their comparison on a page, with real runs in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from agentnb import SessionLoop, tool
from agentnb.testing import ScriptedLLM, call, text
from agentnb.widgets import FORKS
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage
from tests.widgets.support import HOSTILE, play, until
from tests.widgets.test_whatif import BIG, nile, seq_of

pytestmark = pytest.mark.browser

Show = Callable[[Any], PanelPage]


@pytest.fixture(autouse=True)
def forks() -> Iterator[None]:
    before = set(FORKS)
    yield
    for name in set(FORKS) - before:
        FORKS.pop(name).cancel()


def ask_what_if(shown: PanelPage, seq: int) -> Locator:
    """Choose an event, open its form, and return the form."""
    page = shown.page
    page.get_by_role("tab", name="Events").click()
    events = page.get_by_role("log", name="Events").get_by_role("listbox")
    events.get_by_role("option").filter(has_text=re.compile(rf"^{seq}\D")).click()
    events.press("w")
    form = page.get_by_role("group", name="What if")
    shown.until(form.is_visible, "the form")
    return form


def the_branch(shown: PanelPage, name: str) -> Any:
    """Wait until a branch is over, and return it."""
    shown.until(lambda: name in FORKS and FORKS[name].state.over, "the branch")
    line = shown.page.get_by_role("list", name="Branches").get_by_role("listitem").filter(has_text=name)
    shown.until(line.is_visible, "its line")
    return FORKS[name]


def test_a_changed_result_is_run_compared_and_opened(show: Show) -> None:
    run = nile()
    shown = show(run)
    page = shown.page
    form = ask_what_if(shown, seq_of(run, "call_end"))
    expect(form.get_by_role("tab", name="Result")).to_have_attribute("aria-selected", "true")
    assert faults(page) == []

    # A cell, by keyboard alone: the first one has the focus.
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.keyboard.type("0.01")
    page.keyboard.press("Enter")
    expect(form).to_contain_text("1 of 9 values changed, row 2 of 3")
    expect(form).to_contain_text("#0 to #4 stay as they are. From turn 2 on the model is asked and tools run.")
    form.get_by_label("Approvals in the branch").select_option("then")
    form.get_by_label("Name of the branch").fill("no step")
    page.keyboard.press("Enter")
    branch = the_branch(shown, "no step")
    assert branch.output.startswith("1899")
    assert run.output.startswith("1898")
    shown.until(lambda: not form.is_visible(), "the form to go")

    # Compare: what differs is marked, on the branch's side only.
    page.get_by_role("button", name="Compare no step").click()
    table = page.get_by_role("table", name="nile and no step", exact=True)
    shown.until(table.is_visible, "the comparison")
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    expect(table).to_contain_text("#0 to #4 are the same in both: 1 turn")
    assert table.locator("mark").all_inner_texts() == ["0.01", "1899"]
    expect(page.get_by_role("table", name="Sums of nile and no step")).to_contain_text("turns")
    table.get_by_role("button", name="The common part").click()
    expect(table).to_contain_text("I compare first.")
    assert faults(page) == []

    # The branch has a panel of its own, in the place of its parent's.
    page.get_by_role("button", name="Open no step").click()
    inner = page.get_by_role("group", name="Panel of no step")
    shown.until(lambda: inner.locator(".agentnb-trace-row").count() > 3, "its trace")
    expect(table).not_to_be_visible()
    assert faults(page) == []
    page.get_by_role("button", name="nile").click()
    expect(inner).to_have_count(0)
    expect(table).to_be_visible()


def test_a_decision_is_changed_in_a_branch_which_asks_in_its_own_panel(show: Show) -> None:
    run = nile()
    shown = show(run)
    page = shown.page
    form = ask_what_if(shown, seq_of(run, "approval_decision"))
    expect(form.get_by_role("radio", name="Reject")).to_be_checked()
    assert faults(page) == []
    form.get_by_label("Reason").fill("Too long.")
    form.get_by_label("Name of the branch").fill("refused")
    form.get_by_role("button", name="Run branch").click()
    assert "Too long." in the_branch(shown, "refused").output

    # Another result before it: the branch asks about the report, and is decided in its own panel.
    form = ask_what_if(shown, seq_of(run, "call_end"))
    form.get_by_role("gridcell").nth(1).click()
    page.keyboard.type("0")
    form.get_by_label("Name of the branch").fill("asks")
    form.get_by_role("button", name="Run branch").click()
    shown.until(lambda: "asks" in FORKS and FORKS["asks"].pending, "the question")
    line = page.get_by_role("list", name="Branches").get_by_role("listitem").filter(has_text="asks")
    shown.until(lambda: line.count() and "waits for you" in line.inner_text(), "its outcome")
    words = line.locator(".agentnb-branch-label > .agentnb-dim")
    assert words.inner_text().startswith("waits for you")
    assert words.evaluate("node => node.scrollWidth <= node.clientWidth"), "it is not cut off, however long the name is"

    # It is not open, and nothing is decided yet: the tab's title, the bar and the comparison tell it.
    bar = page.get_by_role("region", name="Waiting for you")
    shown.until(bar.is_visible, "the bar")
    assert page.title().startswith("(1)")
    for words in ("asks", "waits for you", 'write_report(path="nile.md")', "branch of nile"):
        expect(bar).to_contain_text(words)
    page.get_by_role("button", name="Compare asks").click()
    table = page.get_by_role("table", name="nile and asks", exact=True)
    shown.until(table.is_visible, "the comparison")
    asks = table.get_by_role("row").filter(has_text="waits for you")
    expect(asks).to_contain_text('waits for you: write_report(path="nile.md")')
    expect(table.get_by_role("row").last).to_contain_text("not yet")
    assert table.get_by_text("not here").count() == 0
    assert faults(page) == []

    bar.get_by_role("button", name="Open").click()
    question = page.get_by_role("group", name="write_report")
    shown.until(question.is_visible, "the question in its panel")
    question.get_by_role("button", name="Approve", exact=True).click()
    shown.until(lambda: FORKS["asks"].state.over, "the end")
    assert not run.pending
    shown.until(lambda: not page.title().startswith("("), "the title without a number")
    expect(bar).to_be_hidden()


def test_a_comparison_shows_only_what_differs_and_each_value_whole(show: Show) -> None:
    run = nile()
    shown = show(run)
    page = shown.page
    end = seq_of(run, "call_end")
    branch = run.fork(at=end, result=[{"year": 1898, "unexplained": 0.01, "source": HOSTILE}], name="other")
    FORKS["other"] = branch
    play(branch)
    until(lambda: branch.pending)
    branch.approve(branch.pending[0])
    until(lambda: branch.state.over)
    compare = page.get_by_role("button", name="Compare other")
    shown.until(compare.count, "its line")
    compare.click()
    table = page.get_by_role("table", name="nile and other", exact=True)
    shown.until(table.is_visible, "the comparison")
    rows = table.locator(".agentnb-pair-row")
    before = rows.count()
    only = page.get_by_role("button", name="Only what differs")
    only.click()
    expect(only).to_have_attribute("aria-pressed", "true")
    equal = table.get_by_role("button", name=re.compile(r"^\d+ equal rows?$"))
    assert rows.count() < before
    folded = [int(words.split()[0]) for words in equal.all_inner_texts()]
    assert rows.count() + sum(folded) == before
    equal.first.click()
    assert rows.count() + sum(folded[1:]) == before

    # A click on a row shows the whole of its values, on both sides; hostile text stays text.
    rows.first.click()
    shown.until(lambda: table.locator(".agentnb-pair-part").count() == 2, "both values")
    result = table.locator(".agentnb-pair-part").nth(1)
    expect(result).to_contain_text("table 1900")
    expect(result).to_contain_text("0.01")
    expect(result).to_contain_text("<script>boom()</script>")
    assert table.locator("script, img").count() == 0
    assert faults(page) == []
    rows.first.get_by_role("button").first.press("Enter")
    expect(table.locator(".agentnb-pair-part")).to_have_count(0)

    # In forced colours a mark is seen, too: the browser's own letters for marks are black.
    page.emulate_media(forced_colors="active", color_scheme="dark")
    colours = table.locator("mark").first.evaluate(
        "node => [getComputedStyle(node).color, getComputedStyle(node).textDecorationLine]"
    )
    page.emulate_media(forced_colors="none", color_scheme="light")
    assert colours == ["rgb(255, 255, 255)", "underline"]


def test_a_message_is_added_in_a_branch(show: Show) -> None:
    run = nile()
    shown = show(run)
    form = ask_what_if(shown, seq_of(run, "call_end"))
    form.get_by_role("tab", name="Add a message").click()
    form.get_by_role("textbox", name="Add a message").fill("Think of the dam.")
    form.get_by_label("Approvals in the branch").select_option("then")
    form.get_by_label("Name of the branch").fill("dam")
    form.get_by_role("textbox", name="Add a message").press("Control+Enter")
    assert the_branch(shown, "dam").output.endswith("; 2")
    shown.page.get_by_role("button", name="Compare dam").click()
    table = shown.page.get_by_role("table", name="nile and dam", exact=True)
    shown.until(table.is_visible, "the comparison")
    expect(table.get_by_role("row").filter(has_text="Think of the dam.")).to_contain_text("not here")


def test_escape_closes_the_form_and_keeps_what_was_typed(show: Show) -> None:
    run = nile()
    shown = show(run)
    page = shown.page
    form = ask_what_if(shown, seq_of(run, "call_end"))
    form.get_by_role("gridcell").nth(1).click()
    page.keyboard.type("0.5x")
    page.keyboard.press("Escape")  # leaves the cell as it was
    expect(form).to_contain_text("nothing is changed yet")
    form.get_by_role("gridcell").nth(1).click()
    page.keyboard.type("0.5x")
    page.keyboard.press("Tab")
    form.get_by_role("button", name="Run branch").click()
    expect(form).to_contain_text("Row 1, unexplained: 0.5x is neither a number nor another JSON value.")
    assert shown.sent("branch") == []
    page.keyboard.press("Escape")
    expect(form).not_to_be_visible()
    again = ask_what_if(shown, seq_of(run, "call_end"))
    expect(again).to_contain_text("0.5x")


def test_a_value_is_edited_as_json_with_all_its_digits(show: Show) -> None:
    @tool
    def read_ids() -> list[dict[str, Any]]:
        """Read ids."""
        return [{"id": BIG, "n": 1}, {"id": BIG + 1, "n": 2}]

    run = SessionLoop(ScriptedLLM([[call("read_ids", {}, id="c1")], "Done."]), [read_ids]).start("go", name="ids")
    play(run)
    until(lambda: run.state.over)
    shown = show(run)
    form = ask_what_if(shown, seq_of(run, "call_end"))
    form.get_by_role("button", name="as JSON").click()
    area = form.get_by_role("textbox", name="Result", exact=True)
    expect(area).to_have_value(f'[\n  {{"id": {BIG}, "n": 1}},\n  {{"id": {BIG + 1}, "n": 2}}\n]')
    area.fill(area.input_value().replace('"n": 1', '"n": 7'))
    form.get_by_role("button", name="as before").click()
    shown.until(form.get_by_role("grid").is_visible, "the table")
    form.get_by_role("gridcell").nth(1).click()
    shown.page.keyboard.type("8")
    form.get_by_label("Name of the branch").fill("other ids")
    form.get_by_label("Name of the branch").press("Enter")
    branch = the_branch(shown, "other ids")
    results = [event.result for event in branch.events if event.type == "call_end"]
    assert results == [[{"id": BIG, "n": 8}, {"id": BIG + 1, "n": 2}]]


def test_branches_of_code_are_listed_and_renamed(show: Show) -> None:
    run = nile()
    shown = show(run)
    page = shown.page
    expect(page.get_by_role("tab", name="Compare")).not_to_be_visible()
    branches = [run.fork(at=3, name=f"branch {n}") for n in range(5)]
    listed = page.get_by_role("list", name="Branches").get_by_role("listitem")
    shown.until(lambda: listed.count() == 3, "the newest three")
    shown.until(lambda: "branch 4" in listed.last.inner_text(), "the newest")
    page.get_by_role("button", name="and 2 more").click()
    expect(listed).to_have_count(5)
    page.get_by_role("button", name="Rename branch 4").click()
    field = page.get_by_label("New name of the branch").last
    field.fill("branch 3")
    field.press("Enter")
    shown.until(lambda: "already" in listed.last.inner_text(), "the refusal")
    page.get_by_role("button", name="Rename branch 4").click()
    field.fill("the last")
    field.press("Enter")
    shown.until(lambda: "the last" in listed.last.inner_text(), "the new name")
    assert branches[-1].name == "the last"

    # The same by the context menu of its line.
    menu = page.get_by_role("menu", name="Branch")
    listed.last.click(button="right")
    expect(menu.get_by_role("menuitem")).to_have_text(["Open", "Compare", "Rename"])
    expect(menu.get_by_role("menuitem", name="Open")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(page.get_by_role("button", name="Open the last")).to_be_focused()
    listed.last.click(button="right")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    field.press("Escape")
    assert faults(page) == []


def test_hostile_text_stays_text(show: Show) -> None:
    @tool
    def read_all() -> list[dict[str, Any]]:
        """Read."""
        return [{HOSTILE: HOSTILE, "n": 1}, {HOSTILE: "b", "n": 2}]

    turns = [[*text(HOSTILE), call("read_all", {}, id="c1")], lambda messages: messages[-1]["content"]]
    run = SessionLoop(ScriptedLLM(turns), [read_all]).start(HOSTILE, name="plain")
    play(run)
    until(lambda: run.state.over)
    shown = show(run)
    page = shown.page
    page.evaluate("() => { window.boom = () => { window.boomed = true; }; }")
    form = ask_what_if(shown, seq_of(run, "call_end"))
    form.get_by_role("gridcell").nth(2).click()
    page.keyboard.type("<img src=x onerror=boom()>")
    form.get_by_label("Name of the branch").fill("<img src=x onerror=boom()>")
    form.get_by_label("Name of the branch").press("Enter")
    the_branch(shown, "<img src=x onerror=boom()>")
    page.get_by_role("button", name="Compare").click()
    shown.until(lambda: page.locator(".agentnb-pair").count() > 3, "the comparison")
    page.get_by_role("button", name="Open <img").click()
    shown.until(lambda: page.locator(".agentnb-inside .agentnb-trace-row").count(), "the panel")
    assert page.locator("#here img, #here script").count() == 0
    assert page.evaluate("window.boomed") is None


def test_a_replay_has_what_if_too(show: Show) -> None:
    run = nile()
    shown = show(run.at(len(run.events) - 1))
    form = ask_what_if(shown, seq_of(run, "call_end", 1))
    form.get_by_role("tab", name="Result").click()
    form.get_by_role("textbox", name="Result", exact=True).fill("not written")
    form.get_by_label("Name of the branch").fill("of a replay")
    form.get_by_role("button", name="Run branch").click()
    assert "not written" in the_branch(shown, "of a replay").output


def test_what_is_not_possible_says_why(show: Show) -> None:
    import agentnb

    run = nile()
    shown = show(agentnb.replay(run.snapshot()).to(len(run.events) - 1))
    form = ask_what_if(shown, seq_of(run, "call_end"))
    expect(form).to_contain_text("The recording does not have the loop that made it.")
    expect(form.get_by_role("button", name="Run branch")).not_to_be_visible()
    assert faults(shown.page) == []
