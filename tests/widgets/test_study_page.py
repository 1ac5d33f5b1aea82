"""The panel of a study on the page: its table, by mouse and by keyboard, and what opens in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import agentnb
from agentnb import SessionLoop
from agentnb.testing import ScriptedLLM
from tests.widgets.axe import faults
from tests.widgets.hostile import FAMILIES
from tests.widgets.studies import NO_STEP, at_rest, resampling, study
from tests.widgets.study_pages import RecordedStudyPanel, StudyPage

pytestmark = pytest.mark.browser


@pytest.fixture
def show_study(page: Page) -> Iterator[Callable[[Any], StudyPage]]:
    made: list[tuple[Any, StudyPage]] = []

    def make(of: Any, rows: int | None = None) -> StudyPage:
        shown = StudyPage(page, RecordedStudyPanel(of), kernel={"status": "idle"})
        made.append((of, shown))
        shown.until(lambda: len(known(shown)) >= (rows or len(of)), "the rows")
        shown.draw()
        return shown

    yield make
    for of, shown in made:
        assert shown.errors == []
        of.cancel()
        shown.panel.close()


def known(shown: StudyPage) -> list[str]:
    """The runs in the order of the table, as far as it is drawn."""
    rows = [row for row in shown.rows().all() if row.is_visible()]
    rows.sort(key=lambda row: int(row.get_attribute("aria-rowindex") or 0))
    return [row.locator(".agentnb-run-name").inner_text().replace("\n", " ") for row in rows]


def test_the_runs_are_listed_by_arm_with_their_sums(show_study: Any) -> None:
    shown = show_study(at_rest(study()))
    assert known(shown) == [f"{arm} {repeat}" for arm in ("sceptic", "plain") for repeat in range(4)]
    expect(shown.grid).to_contain_text("4 runs: 4 wait for you")
    arms = shown.page.get_by_role("table", name="Arms")
    expect(arms).to_contain_text("4 of 4")
    expect(arms).to_contain_text("51% to 100%")
    expect(shown.page.get_by_role("group", name="Study").get_by_text("4 wait for you", exact=True)).to_be_visible()

    # They end, and the table follows.
    shown.panel.of.approve(shown.panel.of.pending)
    shown.until(lambda: "wait for you" not in shown.grid.inner_text(), "the end of the runs")
    shown.until(lambda: "8 of 8 done" in shown.page.inner_text("#here"), "the sums")
    expect(shown.page.get_by_text("The difference is 100 points, 31 to 100 (95%, Newcombe).")).to_be_visible()
    expect(shown.grid).to_contain_text("0 of 4 end with")


def test_a_study_is_started_cancelled_and_continued_by_its_button(show_study: Any) -> None:
    made = study(2)
    shown = show_study(made)
    page = shown.page
    page.get_by_role("button", name="Start", exact=True).click()
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    shown.until(lambda: cancel.is_visible() and made.counts["waiting"] == 2, "the questions")
    cancel.click()
    on = page.get_by_role("button", name="Continue", exact=True)
    shown.until(on.is_visible, "the end")
    assert made.counts["cancelled"] == 2
    on.click()
    shown.until(lambda: made.counts["waiting"] == 2, "the questions again")
    shown.until(cancel.is_visible, "the button")


def test_the_table_is_sorted_filtered_and_grouped(show_study: Any) -> None:
    shown = show_study(at_rest(study()))
    page = shown.page
    page.get_by_role("combobox", name="Group").select_option("")
    assert known(shown) == [f"{arm} {repeat}" for repeat in range(4) for arm in ("sceptic", "plain")]
    shown.grid.get_by_text("calls", exact=True).click()
    assert shown.grid.get_by_role("columnheader", name="calls").get_attribute("aria-sort") == "descending"
    first = known(shown)
    page.get_by_role("button", name="Reverse the order").click()
    assert known(shown) != first
    page.get_by_role("searchbox", name="Find in all runs").fill("no step")
    assert known(shown)
    assert all(name.startswith("sceptic") for name in known(shown))
    expect(page.get_by_text("4 of 8 runs")).to_be_visible()
    page.get_by_role("searchbox").fill("published")  # it is in no row, and no run has said it yet
    expect(page.get_by_text("None of 8 runs fits this text.")).to_be_visible()
    shown.panel.of.approve(shown.panel.of.pending)
    shown.until(lambda: shown.panel.of.counts["done"] == 8, "the end")
    page.get_by_role("searchbox").fill("published on")
    shown.until(lambda: len(known(shown)) == 4, "what was said")
    assert all(name.startswith("plain") for name in known(shown))
    page.get_by_role("searchbox").fill("nothing like this")
    expect(page.get_by_text("None of 8 runs fits this text.")).to_be_visible()
    page.get_by_role("searchbox").press("Escape")
    page.get_by_role("combobox", name="Group").select_option("outcome")
    expect(shown.grid.get_by_role("row", name=NO_STEP).first).to_be_visible()
    page.get_by_role("combobox", name="Align").select_option("time")
    assert known(shown)


def test_a_run_opens_in_the_place_of_the_table_and_back(show_study: Any) -> None:
    shown = show_study(at_rest(study()))
    page = shown.page
    shown.grid.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    inner = page.get_by_role("group", name="Panel of sceptic 0")
    shown.until(lambda: inner.count() and inner.get_by_text(NO_STEP).count(), "the panel of the run")
    expect(shown.grid).to_be_hidden()
    page.get_by_role("button", name="\u2039 levelled").click()
    expect(shown.grid).to_be_focused()
    # A run that waits is decided in its own panel.
    shown.grid.get_by_text("plain", exact=True).nth(1).click()
    card = page.get_by_role("group", name="publish", exact=True)
    shown.until(lambda: card.count() and card.is_visible(), "the question")
    card.get_by_role("button", name="Approve", exact=True).click()
    shown.until(lambda: shown.panel.of.counts["done"] == 5, "the run that was decided")


def test_two_selected_runs_are_compared(show_study: Any) -> None:
    shown = show_study(at_rest(study(approve=True)))
    page = shown.page
    shown.grid.focus()
    page.keyboard.press("ArrowDown")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
        page.keyboard.press(" ")
    assert shown.grid.locator("[aria-selected=true]").count() == 2
    page.get_by_role("button", name="Compare 2").click()
    table = page.get_by_role("table", name="sceptic 0 and sceptic 1", exact=True)
    shown.until(lambda: table.count(), "the comparison")
    page.get_by_role("button", name="\u2039 levelled").click()
    page.get_by_role("button", name="Clear").click()
    assert shown.grid.locator("[aria-selected=true]").count() == 0


def test_the_keys_fold_groups_and_reach_each_row(show_study: Any) -> None:
    shown = show_study(at_rest(study()))
    page = shown.page
    shown.grid.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert known(shown) == [f"plain {repeat}" for repeat in range(4)]
    page.keyboard.press("ArrowRight")
    assert len(known(shown)) == 8
    page.keyboard.press("End")
    active = shown.grid.get_attribute("aria-activedescendant")
    assert "plain" in page.locator(f"[id='{active}']").inner_text()
    page.keyboard.press("ArrowLeft")  # to the heading of its group
    page.keyboard.press("Enter")
    assert known(shown) == [f"sceptic {repeat}" for repeat in range(4)]
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_a_resampling_has_a_bar_at_each_step_of_the_strip(show_study: Any) -> None:
    drawn = resampling()
    shown = show_study(drawn)
    page = shown.page
    bars = page.get_by_role("toolbar", name="Steps").get_by_role("button")
    shown.until(lambda: bars.count() == 3 and "of 4 samples" in (bars.nth(2).get_attribute("title") or ""), "the bars")
    sums = drawn.step_sums()
    for bar, step in zip(bars.all(), sums, strict=True):
        assert f"#{step.at}: {step.flips / step.n:.0%} differ" in (bar.get_attribute("title") or "")

    # They are at the requests of the strip, and a click shows the step: the strip there, and its values.
    slider = page.get_by_role("slider", name="Position in the run that is drawn")
    shown.until(lambda: slider.get_attribute("aria-valuemax") == str(len(drawn.recording.recording) - 1), "the strip")
    shown.draw()
    places = [(bar.bounding_box() or {})["x"] for bar in bars.all()]
    assert places == sorted(places)
    assert places[0] < places[2]
    bars.nth(1).click()
    shown.until(lambda: slider.get_attribute("aria-valuenow") == str(sums[1].at), "the step on the strip")
    step = page.get_by_role("region", name="Step", exact=True)
    expect(step).to_contain_text(f"#{sums[1].at}")
    expect(step.get_by_role("table")).to_contain_text(NO_STEP)
    assert faults(page) == []

    # Its samples are listed, and the run opens at the step.
    step.get_by_role("button", name="Its samples").click()
    expect(shown.grid).to_be_focused()
    step.get_by_role("button", name="Open the run here").click()
    inner = page.get_by_role("group", name="Panel of levelled")
    shown.until(lambda: inner.count() and inner.get_by_text(f"as it was at #{sums[1].at}").count(), "the run")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_panel_has_no_accessibility_faults(show_study: Any, theme: Any) -> None:
    shown = show_study(at_rest(study()))
    page = shown.page
    page.emulate_media(color_scheme=theme)
    shown.grid.focus()
    for key in ("ArrowDown", "ArrowDown", " "):
        page.keyboard.press(key)
    shown.draw()
    assert faults(page) == []
    for width in (360,) if theme == "dark" else ():
        page.set_viewport_size({"width": width, "height": 900})
        shown.draw()
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_text_is_inert(show_study: Any) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in FAMILIES.values()]

    def make_loop(policy: str) -> SessionLoop:
        return SessionLoop(ScriptedLLM([policy]), [])

    arms = {"policy": {text[:80].replace("\0", ""): text for text in texts}}  # no label may have a NUL
    made = agentnb.study(make_loop, texts[:2], arms=arms, name="hostile", progress=False)
    made.result(30)
    shown = show_study(made, rows=5)
    assert not shown.page.evaluate("Boolean(window.pwned)")
    assert shown.page.locator("#here :is(script, iframe, img, object, embed, link, base)").count() == 0


def test_of_thousands_of_runs_only_the_visible_rows_are_drawn(page: Page) -> None:
    made = study(1000, approve=True)
    panel = RecordedStudyPanel(made)
    shown = StudyPage(page, panel, kernel={"status": "idle"})
    shown.until(lambda: shown.grid.get_attribute("aria-rowcount") == "2003", "all rows")
    page.evaluate("window.work.length = 0")
    page.evaluate(
        """async () => {
          const grid = document.querySelector('[role="treegrid"]');
          for (let i = 0; i < 30; i++) {
            grid.scrollTop += i < 20 ? 52 : 5000;
            await new Promise(requestAnimationFrame);
          }
        }"""
    )
    assert shown.grid.get_attribute("aria-rowcount") == "2003"
    assert shown.rows().count() < 80
    assert "plain" in shown.grid.inner_text()
    assert shown.errors == []
    panel.close()
