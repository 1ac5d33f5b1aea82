"""The bar at the foot of the notebook's window, in a real browser: what it shows, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from agentnb import replay
from agentnb.core.events import ApprovalDecision
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, text
from agentnb.tools import tool
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage, RecordedPanel
from tests.widgets.support import HOSTILE

pytestmark = pytest.mark.browser

REPORT = """# The Nile at Aswan, 1871 to 1970

The level changed in 1899: from 1098 to 850, -23%.
One step leaves 56% of the variance.
From 1899 to 1901 the mean was 829."""

# The panel in a notebook's window that scrolls, above or below what is in sight.
IN_A_WINDOW = """() => {
  const here = document.getElementById("here"), window_ = document.createElement("div");
  document.body.style.margin = 0;
  window_.className = "jp-NotebookPanel";
  window_.style.cssText = "position: relative; height: 600px; overflow: hidden";
  const style = "height: 100%; box-sizing: border-box; overflow: auto";
  window_.innerHTML = `<div class="jp-WindowedPanel-outer" style="${style}">`
    + '<div class="jp-Cell" id="first"></div><div style="height: 1500px"></div>'
    + '<div class="jp-Cell"><div id="waits"></div></div><button id="last">last</button></div>';
  document.body.prepend(window_);
  document.getElementById("first").append(here);
}"""
FAR, NEAR = 10_000, 0


@tool(approve=True, needs="write")
def write_report(name: str, text: str) -> str:
    """Write a report."""
    return f"wrote {name}"


@tool(approve=True)
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


def run_of(*calls: Any, name: str = "nile") -> Any:
    loop = SessionLoop(ScriptedLLM([list(calls), [*text("Done.")]]), [write_report, delete])
    run = loop.start("go", name=name)
    run.submit_step("turn").result(30)
    return run


def short(*paths: str) -> Any:
    return run_of(*(call("delete", {"path": path}, id=f"c{n}") for n, path in enumerate(paths or ("a.txt",))))


def long() -> Any:
    return run_of(call("write_report", {"name": "nile.md", "text": REPORT}, id="c0"))


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 720})
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def show(page: Page) -> Iterator[Callable[..., PanelPage]]:
    shown: list[PanelPage] = []

    def make(run: Any, scrolled: int = FAR) -> PanelPage:
        page.goto("about:blank")
        shown.append(PanelPage(page, RecordedPanel(run)))
        page.evaluate(IN_A_WINDOW)
        page.evaluate("document.title = 'notebook'")
        scroll(page, scrolled)
        shown[-1].settle()
        return shown[-1]

    yield make
    for panel_page in shown:
        panel_page.close()


def scroll(page: Page, to: int) -> None:
    page.evaluate("to => { document.querySelector('.jp-WindowedPanel-outer').scrollTop = to; }", to)


def bar_of(shown: PanelPage) -> Locator:
    bar = shown.page.get_by_role("region", name="Waiting for you")
    expect(bar).to_be_visible()
    return bar


def button(scope: Locator, name: str) -> Locator:
    return scope.get_by_role("button", name=name, exact=True)


def place(locator: Locator) -> tuple[float, float, float]:
    """Return the top, the right edge and the height of an element."""
    expect(locator).to_be_visible()
    box = locator.bounding_box()
    assert box is not None
    return box["y"], box["x"] + box["width"], box["height"]


def run_shown(shown: PanelPage) -> Any:
    assert shown.panel is not None
    return shown.panel.run


def decisions(run: Any) -> list[tuple[str, str, str]]:
    return [(e.call_id, e.decision, e.by) for e in run.events if isinstance(e, ApprovalDecision)]


def until_decided(shown: PanelPage, *wanted: tuple[str, str, str]) -> None:
    run = run_shown(shown)
    shown.until(lambda: decisions(run) == list(wanted), "the decision")


# -- what it shows


def test_the_bar_names_a_run_whose_question_is_out_of_sight_and_decides(show: Callable[..., PanelPage]) -> None:
    shown = show(short())
    bar = bar_of(shown)
    expect(bar).to_contain_text("nile")
    expect(bar).to_contain_text("waits for you")
    expect(bar).to_contain_text('delete(path="a.txt")')
    expect(button(bar, "Review")).to_be_hidden()
    shown.until(lambda: place(bar) == (553, 1000, 47), "the bar at the foot of the window")
    button(bar, "Approve").click()
    until_decided(shown, ("c0", "approve", "human"))
    shown.until(lambda: not bar.is_visible(), "the bar goes")


def test_a_call_that_does_not_fit_is_reviewed_before_it_is_decided(show: Callable[..., PanelPage]) -> None:
    shown = show(long())
    bar = bar_of(shown)
    expect(bar).to_contain_text('write_report(name="nile.md", text=5 lines)')
    for name in ("Approve", "Edit", "Reject"):
        expect(button(bar, name)).to_be_hidden()
    foot = place(button(bar, "Review"))
    button(bar, "Review").click()
    expect(bar).to_contain_text("One step leaves 56% of the variance.")
    expect(bar).to_contain_text("asks to run write_report")
    approve = button(bar, "Approve")
    expect(approve).to_be_enabled()
    assert place(approve) == foot, "the buttons stay"
    assert place(bar)[2] <= 0.4 * 720 + 1
    button(bar, "Fold").click()
    expect(button(bar, "Review")).to_be_focused()
    button(bar, "Review").click()
    approve.click()
    until_decided(shown, ("c0", "approve", "human"))


def test_a_long_text_is_read_to_its_end_before_it_is_approved(show: Callable[..., PanelPage]) -> None:
    shown = show(run_of(call("write_report", {"name": "n", "text": "a line\n" * 80 + "the end"}, id="c0")))
    bar = bar_of(shown)
    button(bar, "Review").click()
    expect(button(bar, "Approve")).to_be_disabled()
    shown.page.keyboard.press("a")
    bar.locator(".agentnb-end").evaluate("mark => mark.scrollIntoView()")
    expect(button(bar, "Approve")).to_be_enabled()
    assert decisions(run_shown(shown)) == []


def test_in_sight_of_its_question_the_bar_only_says_so(show: Callable[..., PanelPage]) -> None:
    shown = show(short(), NEAR)
    bar = bar_of(shown)
    expect(bar).to_contain_text("shown above")
    expect(button(bar, "Approve")).to_have_count(0)
    scroll(shown.page, FAR)
    expect(button(bar, "Approve")).to_be_visible()
    scroll(shown.page, NEAR)
    expect(bar).to_contain_text("shown above")
    button(bar, "Go to it").click()
    expect(shown.page.get_by_role("group", name="Waiting calls")).to_be_focused()


def test_open_panel_shows_the_question(show: Callable[..., PanelPage]) -> None:
    shown = show(long())
    bar = bar_of(shown)
    button(bar, "Review").click()
    button(bar, "Open panel").click()
    expect(shown.page.locator(".agentnb-panel .agentnb-waiting")).to_be_in_viewport()


def test_a_run_that_waits_for_nobody_has_no_bar(show: Callable[..., PanelPage]) -> None:
    shown = show(run_of(*text("Done.")))
    shown.page.wait_for_timeout(1500)
    expect(shown.page.locator(".agentnb-waitbar:visible")).to_have_count(0)
    assert shown.page.title() == "notebook"


def test_a_recording_has_no_bar(page: Page) -> None:
    run = short()
    page.goto("about:blank")
    shown = PanelPage(page, RecordedPanel(replay(run.snapshot())))
    page.wait_for_timeout(400)
    expect(page.locator(".agentnb-waitbar")).to_have_count(0)
    assert shown.errors == []
    run.cancel()


def test_a_run_that_plays_out_of_sight_is_named_and_can_be_paused(show: Callable[..., PanelPage]) -> None:
    shown = show(short(), NEAR)
    traits = "change => window.model.set('status', { ...window.model.get('status'), ...change })"
    usage = {"input_tokens": 1200, "output_tokens": 34}
    playing = {"waiting": 0, "lives": True, "phase": "thinking", "can": {"Pause": True}, "usage": usage}
    shown.page.evaluate("() => window.model.set('pending', [])")
    shown.page.evaluate(traits, playing)
    scroll(shown.page, FAR)
    bar = shown.page.get_by_role("region", name="Playing")
    expect(bar).to_contain_text("thinking \u00b7 1,234 tokens")
    button(bar, "Pause").click()
    assert [message["action"] for message in shown.sent("control")] == ["Pause"]
    button(bar, "Open").click()
    expect(bar).to_be_hidden()


# -- deciding


def test_edit_and_reject_unfold_in_the_bar(show: Callable[..., PanelPage]) -> None:
    shown = show(short())
    bar = bar_of(shown)
    button(bar, "Edit").click()
    bar.get_by_label("path", exact=True).fill("b.txt")
    button(bar, "Approve").click()
    until_decided(shown, ("c0", "edit", "human"))
    shown = show(short())
    bar = bar_of(shown)
    button(bar, "Reject").click()
    bar.get_by_label("Reason", exact=True).fill("not now")
    bar.get_by_label("Reason", exact=True).press("Enter")
    until_decided(shown, ("c0", "reject", "human"))


def test_keys_decide_only_while_the_bar_has_the_focus(show: Callable[..., PanelPage]) -> None:
    shown = show(short())
    bar = bar_of(shown)
    last = shown.page.locator("#last")
    last.focus()
    shown.page.keyboard.press("a")
    shown.page.wait_for_timeout(200)
    shown.settle()
    assert decisions(run_shown(shown)) == []
    expect(last).to_be_focused()
    button(bar, "Reject").focus()
    shown.page.keyboard.press("Escape")
    expect(last).to_be_focused()
    button(bar, "Edit").focus()
    shown.page.keyboard.press("a")
    until_decided(shown, ("c0", "approve", "human"))
    shown.until(lambda: not bar.is_visible(), "the bar goes")
    expect(last).to_be_focused()


def test_no_letter_decides_about_a_call_that_is_not_shown_in_full(show: Callable[..., PanelPage]) -> None:
    shown = show(long())
    bar = bar_of(shown)
    button(bar, "Review").focus()
    for key in ("a", "e", "r"):
        shown.page.keyboard.press(key)
    expect(button(bar, "Review")).to_be_focused()
    shown.settle()
    assert decisions(run_shown(shown)) == []


def test_several_calls_are_decided_one_after_the_other(show: Callable[..., PanelPage]) -> None:
    shown = show(short("a.txt", "b.txt"))
    bar = bar_of(shown)
    expect(bar).to_contain_text("waits for you, 1 of 2")
    assert shown.page.title() == "(2) notebook"
    button(bar, "Approve").click()
    shown.until(lambda: 'path="b.txt"' in bar.inner_text(), "the next call")
    assert shown.page.evaluate("() => document.activeElement.closest('.agentnb-waitbar') !== null")
    shown.until(lambda: shown.page.title() == "(1) notebook", "the title")
    shown.page.keyboard.press("r")
    shown.page.keyboard.press("Enter")
    until_decided(shown, ("c0", "approve", "human"), ("c1", "reject", "human"))
    shown.until(lambda: shown.page.title() == "notebook", "the title")


def test_what_another_person_decides_leaves_the_bar(show: Callable[..., PanelPage]) -> None:
    shown = show(short())
    bar = bar_of(shown)
    assert shown.panel is not None
    shown.panel.run.approve("c0")
    shown.panel._feed.wake()
    shown.until(lambda: not bar.is_visible(), "the bar goes")


# -- the page around it


def test_the_title_counts_what_waits_once_and_is_restored(show: Callable[..., PanelPage]) -> None:
    shown = show(short())
    page = shown.page
    bar_of(shown)
    assert page.title() == "(1) notebook"
    # Another panel of the same run, with a module of its own, as in a front end that loads one for each widget.
    page.evaluate(
        """async () => {
          const there = document.createElement("div"), model = window.model;
          document.getElementById("first").append(there);
          const url = URL.createObjectURL(new Blob([window.panelSource], { type: "text/javascript" }));
          const panel = (await import(url)).default;
          panel.initialize({ model });
          window.leaveOther = panel.render({ model, el: there });
        }"""
    )
    expect(page).to_have_title("(1) notebook")
    page.wait_for_timeout(400)
    assert page.title() == "(1) notebook"
    expect(page.locator(".agentnb-waitbar:visible")).to_have_count(1)
    page.evaluate("document.title = 'another notebook'")
    expect(page).to_have_title("(1) another notebook")
    page.evaluate("() => { window.leaveOther(); window.dispose(); }")
    expect(page).to_have_title("another notebook")
    expect(page.locator(".agentnb-waitbar")).to_have_count(0)


def test_the_cell_that_waits_says_so_and_keeps_its_height(show: Callable[..., PanelPage]) -> None:
    shown = show(long())
    page, bar = shown.page, bar_of(shown)
    page.evaluate("id => document.getElementById('waits').dataset.agentnbWaits = id", run_shown(shown).id)
    line = page.locator(".agentnb-cell-waits")
    expect(line).to_contain_text("This cell waits for a decision:")
    expect(line).to_contain_text('write_report(name="nile.md", text=5 lines)')
    button(line, "Show").click()
    expect(button(bar, "Approve")).to_be_enabled()
    before = place(page.locator("#waits"))[2]
    button(bar, "Approve").click()
    until_decided(shown, ("c0", "approve", "human"))
    shown.until(line.is_hidden, "the line goes")
    assert place(page.locator("#waits"))[2] == before


def test_the_last_cell_is_not_covered(show: Callable[..., PanelPage]) -> None:
    shown = show(short())
    bar_of(shown)

    def is_above_the_bar() -> bool:
        scroll(shown.page, FAR)  # the page may still grow
        top, _, height = place(shown.page.locator("#last"))
        return top + height <= place(bar_of(shown))[0]

    shown.until(is_above_the_bar, "the end of the page above the bar")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_bar_has_no_accessibility_faults(show: Callable[..., PanelPage], page: Page, theme: Any) -> None:
    page.emulate_media(color_scheme=theme)
    shown = show(long())
    bar = bar_of(shown)
    page.evaluate("() => { document.getElementById('here').id = ''; document.body.id = 'here'; }")
    page.add_style_tag(content="body { background: Canvas; color-scheme: light dark; }")
    assert faults(page) == []
    button(bar, "Review").click()
    expect(button(bar, "Approve")).to_be_enabled()
    assert faults(page) == []
    page.emulate_media(color_scheme=None)


def test_hostile_text_is_inert_in_the_bar(show: Callable[..., PanelPage]) -> None:
    shown = show(run_of(call("write_report", {"name": HOSTILE, "text": HOSTILE}, id="c0"), name=HOSTILE[:60]))
    bar = bar_of(shown)
    button(bar, "Review").click()
    expect(bar.locator("img, script, iframe")).to_have_count(0)
    assert shown.page.evaluate("() => document.documentElement.scrollWidth") <= 1000
