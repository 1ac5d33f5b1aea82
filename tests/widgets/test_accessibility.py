"""The panel for whoever does not see it, or works without a mouse: axe-core in each of its states, and the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from agentnb.testing import call, delay, text
from agentnb.widgets.static import static_html
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage, RecordedPanel
from tests.widgets.support import asking_everywhere, session

pytestmark = pytest.mark.browser


def waiting(*calls: Any) -> Any:
    run = session([list(calls), [*text("Done."), {"type": "usage", "input_tokens": 12, "cost": 0.01}], "Once more."])
    run.submit_step("turn").result(10)
    return run


def deletes(*paths: str) -> list[Any]:
    return [call("delete_file", {"path": path}, id=f"c{n}") for n, path in enumerate(paths)]


def one() -> Any:
    return waiting(*deletes("/a"))


def many() -> Any:
    return waiting(*deletes("/a", "/b", "/c"), call("move_file", {"path": "/a", "to": "/b"}, id="m"))


def row(shown: PanelPage, number: int) -> Any:
    return shown.page.get_by_role("group", name="delete_file", exact=True).nth(number)


def press(scope: Any, name: str) -> None:
    scope.get_by_role("button", name=name, exact=True).click()


def edited_wrongly(shown: PanelPage) -> None:
    press(row(shown, 0), "Edit")
    row(shown, 0).get_by_label("retries", exact=True).fill("three")
    press(row(shown, 0), "Approve")


def picked_and_opened(shown: PanelPage) -> None:
    row(shown, 0).get_by_role("checkbox").check()
    press(row(shown, 1), "Details of delete_file")
    press(row(shown, 2), "Replace")


def decided(shown: PanelPage) -> None:
    assert shown.panel is not None
    shown.panel.run.approve("c0", remember="tool")
    shown.panel.run.reject("m", "no")
    shown.panel.run.undo("c1")
    shown.panel._feed.wake()
    shown.until(shown.page.get_by_role("button", name="Undo: delete_file").first.is_visible, "the decisions")
    shown.page.locator("summary").first.click()


def broken_off(shown: PanelPage) -> None:
    assert shown.panel is not None
    run = shown.panel.run
    run.steer("stop that")
    run.breakpoints.add("approval_decision")
    run.breakpoints.add(tool="move_*").enabled = False
    press(shown.page, "Breakpoints")
    press(shown.page, "Add breakpoint")
    run.play()
    run.reject("c0")
    shown.until(lambda: "Stopped by the breakpoint" in shown.page.inner_text("#here"), "the breakpoint")


def selected(shown: PanelPage) -> None:
    row = shown.page.get_by_role("log", name="Events").get_by_role("option").filter(has_text="model_end")
    shown.until(row.count, "the events")
    row.click()


def over(shown: PanelPage) -> None:
    assert shown.panel is not None
    shown.panel.run.cancel()
    shown.until(lambda: "run_end" in shown.page.inner_text("#here"), "the end")


def gone(shown: PanelPage) -> None:
    assert shown.panel is not None
    shown.until(shown.page.locator(".agentnb-diagram svg").count, "the drawing, which comes last")
    shown.panel._feed.close()  # and nothing more comes from the kernel
    shown.settle()
    shown.page.evaluate("() => { window.model.send = () => { throw new Error('closed'); }; }")
    press(row(shown, 0), "Approve")
    shown.settle()
    expect(shown.page.get_by_text("The kernel is gone")).to_be_visible()


def silent() -> Any:
    return session([[*text("Once upon a time"), delay(30)]])


def speaking(shown: PanelPage) -> None:
    assert shown.panel is not None
    shown.panel.run.play()
    shown.until(shown.page.locator(".agentnb-line").count, "the line")


def nested() -> Any:
    run = asking_everywhere()
    while len(run.pending) < 3:
        run.submit_step("call").result(10)
    return run


STATES: dict[str, tuple[Callable[[], Any], Callable[[PanelPage], object]]] = {
    "not started": (lambda: session(["Hello."]), lambda shown: None),
    "speaking": (silent, speaking),
    "one call": (one, lambda shown: None),
    "an edit that does not fit": (one, edited_wrongly),
    "many calls": (many, picked_and_opened),
    "decided": (many, decided),
    "breakpoints": (one, broken_off),
    "an event": (one, selected),
    "loops inside": (nested, lambda shown: None),
    "over": (one, over),
    "the kernel gone": (one, gone),
}


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(5000)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("state", STATES)
def test_nothing_shuts_anybody_out_in_any_state(page: Page, state: str) -> None:
    start, act = STATES[state]
    run = start()
    page.goto("about:blank")
    shown = PanelPage(page, RecordedPanel(run))
    act(shown)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        shown.settle()
        assert faults(page) == [], scheme
        assert page.evaluate("window.poorContrast()") == [] or state == "the kernel gone", scheme
    assert shown.errors == []
    run.cancel()
    assert shown.panel is not None
    shown.panel.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_shuts_anybody_out_of_a_saved_notebook(page: Page, scheme: Any) -> None:
    run = many()
    page.emulate_media(color_scheme=scheme)
    page.set_content(f"<div id=here>{static_html(run, '')}</div>")
    assert faults(page) == []
    run.cancel()
