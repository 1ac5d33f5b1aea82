"""The detail pane in a real browser: what it shows of a call, a turn, a message and a failure, and its buttons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, text
from agentnb.tools import tool
from tests.widgets import scenes
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage
from tests.widgets.support import delete_file, session, waiting

pytestmark = pytest.mark.browser


@tool
def splits(years: list[int], file: str) -> list[dict[str, Any]]:
    """Compare splits."""
    return [{"year": year, "mean": year / 2, "kind": "step"} for year in years]


@tool
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@tool
def shout(words: str) -> str:
    """Repeat the words."""
    return words


def surveyed() -> Any:
    """Return a run that waits for the approval of its last call."""
    turns = [
        [*text("I compare first."), call("splits", {"years": [1898, 1899, 1900], "file": "nile.csv"}, id="s")],
        [call("fail", {"why": "no road"}, id="f"), call("shout", {"words": "one\ntwo\u202e <b>three</b>"}, id="h")],
        [*text("That is enough."), call("delete_file", {"path": "/a"}, id="d")],
        [*text("Done.")],
    ]
    run = SessionLoop(ScriptedLLM(turns), [splits, fail, shout, delete_file]).start("When?", name="nile")
    while not run.pending:
        run.submit_step("event").result(30)
    return run


def detail(page: Page) -> Locator:
    return page.get_by_role("region", name="Detail", exact=True)


def choose(shown: PanelPage, words: str) -> None:
    """Choose the first event whose row has these words."""
    page = shown.page
    page.get_by_role("tab", name="Events").click()
    page.get_by_label("Filter events").fill(words)  # the list draws only the rows that fit in it
    rows = page.get_by_role("log").get_by_role("option").filter(has_text=words)
    shown.until(rows.count, words)
    rows.first.click()
    page.get_by_label("Filter events").fill("")
    shown.settle()


def names(pane: Locator) -> list[str]:
    return [words.split("\n")[0] for words in pane.locator("h4:visible").all_inner_texts()]


def test_a_call_has_its_table_its_arguments_why_and_what_it_led_to(show: Callable[[Any], PanelPage]) -> None:
    shown = show(surveyed())
    choose(shown, "splits returned")
    pane = detail(shown.page)
    expect(pane.locator("header")).to_contain_text("splits")
    expect(pane.locator("header")).to_contain_text("#4\u20135")
    assert names(pane) == ["Output", "Input", "Why", "Led to"]
    expect(pane.locator("h4").first).to_have_text("Output3 rows")
    table = pane.get_by_role("table")
    assert table.locator("th").all_inner_texts() == ["year", "mean", "kind"]
    assert table.locator("tbody tr").nth(1).locator("td").all_inner_texts() == ["1899", "949.5", "step"]
    assert table.locator("tbody tr").nth(0).locator("td").all_inner_texts()[1] == "949.0"  # under the others
    assert pane.locator("dl").first.inner_text().split("\n") == ["years", "[1898, 1899, 1900]", "file", "nile.csv"]
    expect(pane.get_by_role("button", name="#3 \u201cI compare first.\u201d")).to_be_visible()

    # A cause is a link: the pane shows it, and keeps the focus.
    pane.get_by_role("button", name="#3 \u201cI compare first.\u201d").click()
    expect(pane.locator("header")).to_contain_text("Turn 1")
    assert pane.evaluate("node => node.contains(document.activeElement)")
    assert shown.errors == []


def test_a_failed_call_has_its_whole_traceback(show: Callable[[Any], PanelPage]) -> None:
    shown = show(surveyed())
    choose(shown, "fail raised")
    pane = detail(shown.page)
    expect(pane.locator("header")).to_contain_text("raised")
    expect(pane.locator(".agentnb-glyph").first).to_have_attribute("data-status", "failed")
    expect(pane).to_contain_text("ValueError: no road")
    expect(pane.locator("pre").filter(has_text="Traceback")).to_contain_text("raise ValueError(why)")


def test_text_keeps_its_lines_and_invisible_characters_are_signs(show: Callable[[Any], PanelPage]) -> None:
    shown = show(surveyed())
    choose(shown, "shout returned")
    pane = detail(shown.page)
    shown_text = "one\ntwo\u27e6U+202E\u27e7 <b>three</b>"
    assert pane.locator("dd").first.inner_text() == pane.locator("pre").first.inner_text() == shown_text
    assert pane.locator(".agentnb-sections b").count() == 0


def test_a_turn_has_its_new_messages_its_text_its_calls_and_its_model(show: Callable[[Any], PanelPage]) -> None:
    shown = show(surveyed())
    choose(shown, "That is enough.")
    pane = detail(shown.page)
    expect(pane.locator("header")).to_contain_text("Turn 3")
    assert names(pane)[:4] == ["Input", "Output", "Calls", "Model"]
    expect(pane).to_contain_text("shout \u2192 one")
    expect(pane).to_contain_text('delete_file(path="/a")')
    pane.get_by_role("button", name="all 6 messages").click()
    expect(shown.page.get_by_role("tab", name="Messages")).to_have_attribute("aria-selected", "true")


def test_without_a_choice_it_shows_what_waits_and_why(show: Callable[[Any], PanelPage]) -> None:
    run = surveyed()
    shown = show(run)
    pane = detail(shown.page)
    shown.until(lambda: "waits for you" in pane.locator("header").inner_text(), "the question")
    assert names(pane)[0] == "Why it asks"
    expect(pane).to_contain_text("What led here")
    run.approve(run.pending[0])
    run.result(30)
    shown.until(lambda: "completed" in pane.locator("header").inner_text(), "the end")
    expect(pane).to_contain_text("Done.")


def test_the_state_at_an_event_is_asked_for_when_it_is_opened(show: Callable[[Any], PanelPage]) -> None:
    shown = show(surveyed())
    choose(shown, "splits returned")
    pane = detail(shown.page)
    assert shown.sent("state") == []
    pane.get_by_text("State here").click()
    facts = pane.locator(".agentnb-state-here dl")
    shown.until(facts.count, "the state")
    assert facts.first.inner_text().split("\n")[:4] == ["phase", "acting", "turn", "1"]
    [asked] = shown.sent("state")
    assert (asked["position"], asked["path"]) == (6, "")
    choose(shown, "fail raised")
    shown.until(lambda: "turn\n2" in facts.first.inner_text(), "the later state")


def test_buttons_that_cannot_be_used_say_why(show: Callable[[Any], PanelPage]) -> None:
    run = session(["Hello."])
    run.result(30)
    shown = show(run)
    choose(shown, "model_end")
    stop = detail(shown.page).get_by_role("button", name="Break here")
    expect(stop).to_be_disabled()
    expect(stop).to_have_attribute("title", "The run has ended.")


def test_keys_of_the_panel_break_here_and_open_what_if(show: Callable[[Any], PanelPage]) -> None:
    run = surveyed()
    shown = show(run)
    choose(shown, "splits returned")
    page = shown.page
    detail(page).get_by_role("group", name="Data of the event").focus()
    page.keyboard.press("b")
    shown.until(lambda: len(run.breakpoints), "the breakpoint")
    assert [one.label for one in run.breakpoints] == ["call_end, tool splits"]
    page.keyboard.press("w")
    form = page.get_by_role("group", name="What if", exact=True)
    shown.until(form.is_visible, "the form")


@pytest.mark.parametrize("width", [1200, 848, 360])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_has_no_accessibility_faults(show: Callable[[Any], PanelPage], width: int, theme: str) -> None:
    shown = show(surveyed())
    page = shown.page
    page.set_viewport_size({"width": width, "height": 700})
    page.evaluate("light => { document.documentElement.dataset.jpThemeLight = String(light); }", theme == "light")
    page.evaluate("colour => { document.body.style.background = colour; }", "#fff" if theme == "light" else "#131619")
    for words in ("splits returned", "fail raised", "That is enough."):
        choose(shown, words)
        expect(detail(page)).to_be_visible()
        page.evaluate(
            "() => document.querySelectorAll('.agentnb-detail details').forEach((one) => { one.open = true; })"
        )
        shown.settle()
        assert faults(page) == [], words


def test_in_one_column_it_unfolds_under_its_row(show: Callable[[Any], PanelPage]) -> None:
    shown = show(surveyed())
    page, pane = shown.page, detail(shown.page)
    page.get_by_role("tab", name="Trace").click()
    page.set_viewport_size({"width": 600, "height": 800})
    trace = page.get_by_role("treegrid", name="Trace")
    row = trace.locator(".agentnb-trace-row", has_text="splits")
    row.click()
    expect(trace.get_by_role("region", name="Detail", exact=True)).to_be_visible()
    shown.draw()
    above, below = row.bounding_box(), pane.bounding_box()
    assert above is not None
    assert below is not None
    assert 0 <= below["y"] - above["y"] - above["height"] < 8
    trace.focus()
    page.keyboard.press("Enter")
    expect(pane.get_by_role("group", name="Data of the event")).to_be_focused()
    page.keyboard.press("Escape")
    expect(pane).to_be_hidden()
    expect(trace).to_be_focused()

    row.click()
    page.get_by_role("tab", name="Usage").click()
    expect(pane).to_be_visible()
    assert trace.count() == 0  # it is at the foot of the other views
    page.get_by_role("tab", name="Trace").click()
    expect(trace.get_by_role("region", name="Detail", exact=True)).to_be_visible()
    page.set_viewport_size({"width": 1000, "height": 800})
    expect(pane).to_be_visible()
    expect(trace.get_by_role("region", name="Detail", exact=True)).to_have_count(0)


def test_one_of_several_calls_is_decided_in_its_foot(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a", "/b", "/c")
    shown = show(run)
    page, pane = shown.page, detail(shown.page)
    page.get_by_role("tab", name="Trace").click()
    calls = page.get_by_role("group", name="Waiting calls").get_by_role("group", name="delete_file")
    expect(pane.get_by_role("button", name="Approve")).to_have_count(0)
    for at, key in ((1, "Enter"), (0, "r")):
        calls.nth(at).get_by_role("button", name="Details of delete_file").focus()
        approve = pane.get_by_role("button", name="Approve", exact=True)
        expect(approve).to_be_enabled()
        expect(pane).to_contain_text(f"#{run.pending[at].event}")
        if key == "Enter":
            approve.press(key)
            shown.until(lambda: len(run.pending) == 2, "the decision")
            assert [item.arguments["path"] for item in run.pending] == ["/a", "/c"]
            page.evaluate("() => new Promise((done) => setTimeout(done, 100))")
        else:
            approve.press(key)  # the reason is given in the row of the call
            expect(page.get_by_label("Reason", exact=True).locator("visible=true")).to_be_focused()
            expect(approve).to_have_count(0)
    assert len(shown.sent("decision")) == 1


@pytest.mark.parametrize("width", [1200, 1000])
def test_diagrams_side_by_side_are_shown_in_full(show: Callable[[Any], PanelPage], width: int) -> None:
    run = scenes.completed()
    shown = show(run)
    page = shown.page
    page.set_viewport_size({"width": width, "height": 800})
    shown.until(lambda: page.locator(".agentnb-nested .agentnb-drawn svg").count(), "the inner diagram")
    shown.settle()
    cut = """() => [...document.querySelectorAll(".agentnb-drawn svg")].map((drawn) =>
      drawn.getBoundingClientRect().right - drawn.closest(".agentnb-states").getBoundingClientRect().right)"""
    assert max(page.evaluate(cut)) <= 0
    below = page.get_by_role("group", name="Data of the event").bounding_box()
    assert below is not None
    assert below["height"] > 60
    page.get_by_role("tab", name="Messages").click()
    made = page.locator(".agentnb-made > summary").first
    shown.until(made.count, "the messages")
    summary = made.bounding_box()
    assert summary is not None
    assert summary["width"] > 300  # below the text of its message, and not beside it


def test_what_is_folded_is_open_on_paper(show: Callable[[Any], PanelPage]) -> None:
    shown = show(surveyed())
    page = shown.page
    page.get_by_role("tab", name="Messages").click()
    shown.until(page.locator(".agentnb-made").count, "the messages")
    whole = page.locator(".agentnb-made pre").first
    is_visible = "node => node.checkVisibility({ contentVisibilityAuto: true })"
    assert not whole.evaluate(is_visible)
    page.emulate_media(media="print")
    assert whole.evaluate(is_visible)
