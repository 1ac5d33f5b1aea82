"""The panel without sight or without a mouse: axe-core in each state of the panel, and the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from agentnb import SessionLoop, replay
from agentnb.run import Replay
from agentnb.testing import ScriptedLLM, call, delay, text
from agentnb.widgets import FORKS, SNAPSHOTS
from agentnb.widgets.static.panel import static_html
from tests.loops.execution_world import World, c, solution
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage, RecordedPanel, press_in_menu
from tests.widgets.support import asking_everywhere, session

pytestmark = pytest.mark.browser


def waiting(*calls: Any) -> Any:
    run = session([list(calls), [*text("Done."), {"type": "usage", "input_tokens": 12, "cost": 0.01}], "Once more."])
    run.submit_step("turn").result(30)
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
    press(row(shown, 2), "Details of delete_file")
    press(row(shown, 2), "More: Replace")
    press(row(shown, 2), "Replace")


def decided(shown: PanelPage) -> None:
    assert shown.panel is not None
    shown.panel.run.approve("c0", remember="tool")
    shown.panel.run.reject("m", "no")
    shown.panel.run.undo("c1")
    shown.panel._feed.wake()
    shown.until(shown.page.get_by_role("button", name="Undo: delete_file").first.is_visible, "the decisions")
    for summary in shown.page.locator("summary:visible").all():
        summary.click()


def broken_off(shown: PanelPage) -> None:
    assert shown.panel is not None
    run = shown.panel.run
    run.steer("stop that")
    run.breakpoints.add("approval_decision")
    run.breakpoints.add(tool="move_*").enabled = False
    press_in_menu(shown.page, "Breakpoints")
    press(shown.page, "Add breakpoint")
    run.play()
    run.reject("c0")
    shown.until(lambda: "Stopped by the breakpoint" in shown.page.inner_text("#here"), "the breakpoint")


def selected(shown: PanelPage) -> None:
    row = shown.page.get_by_role("log", name="Events").get_by_role("option").filter(has_text="model_end")
    shown.until(row.count, "the events")
    row.click()


def graph() -> Any:
    """Calls that read from one another, wider than a narrow page, of which one fails, and a long text."""
    world = World()
    calls = [c("sum", "†state.summary", p="†state.profile"), c("fetch", "†state.profile", u="†input.u"),
             c("echo", "†state.report", v="†state.summary"), c("give", v="†state.weather")]  # fmt: skip
    loop = world.loop([*solution(*calls, pieces=1)], solution(output="A long report. " * 80), name="reporter")
    run = loop.start(None, name="report")
    run.submit_step("turn").result(30)
    return run


def seen_as(tab: str) -> Callable[[PanelPage], None]:
    def look(shown: PanelPage) -> None:
        shown.panel.run.result(30)  # type: ignore[union-attr]
        shown.until(lambda: "run_end" in shown.page.inner_text("#here"), "the end")
        shown.page.get_by_role("tab", name=tab).click()
        view = shown.page.get_by_role("tabpanel", name=tab)
        shown.until(
            lambda: any(words in view.inner_text() for words in ("turn 1", "Turn 1", "Answer with one", "completed")),
            tab,
        )
        shown.page.evaluate("() => document.querySelectorAll('details').forEach((node) => { node.open = true; })")

    return look


def over(shown: PanelPage) -> None:
    assert shown.panel is not None
    shown.panel.run.cancel()
    shown.until(lambda: "run_end" in shown.page.inner_text("#here"), "the end")


def gone(shown: PanelPage) -> None:
    assert shown.panel is not None
    shown.until(shown.page.locator(".agentnb-diagram svg").count, "the drawing, which comes last")
    shown.panel._feed.close()  # and the kernel sends no more messages
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
    shown.page.get_by_role("tab", name="Trace").click()
    shown.until(shown.page.locator(".agentnb-stream").count, "the text")


def nested() -> Any:
    run = asking_everywhere()
    while len(run.pending) < 3:
        run.submit_step("call").result(30)
    return run


def recorded() -> Replay:
    run = one()
    run.approve(run.pending[0].id)
    run.result(30)
    return replay(run)


def halfway(shown: PanelPage) -> None:
    shown.go_to(5)
    shown.until(lambda: "as it was at #4" in shown.page.inner_text("#here"), "the moment")


def asked(shown: PanelPage) -> None:
    shown.page.get_by_role("slider", name="Position").press("End")
    shown.until(shown.page.get_by_role("group", name="move_file").count, "the questions")
    press(row(shown, 1), "Details of delete_file")


def departing() -> Replay:
    return replay(many(), SessionLoop(ScriptedLLM([]), max_turns=1))


def departed(shown: PanelPage) -> None:
    shown.page.get_by_role("slider", name="Position").press("End")
    shown.until(shown.page.get_by_role("status", name="Difference from the recording").is_visible, "both sides")


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
    "trace": (graph, seen_as("Trace")),
    "messages": (graph, seen_as("Messages")),
    "usage": (graph, seen_as("Usage")),
    "graph": (graph, seen_as("Graph")),
    "the menu": (one, lambda shown: press(shown.page, "More")),
    "cancelling": (one, lambda shown: press_in_menu(shown.page, "Cancel")),
    "a phase": (one, lambda shown: shown.page.get_by_role("list", name="Phases").get_by_role("button").first.click()),
    "the question": (one, lambda shown: press(shown.page, "Whole question")),
    "a recording": (recorded, halfway),
    "a recording of a question": (lambda: replay(many()), asked),
    "a departure": (departing, departed),
    "over": (one, over),
    "the kernel gone": (one, gone),
}


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("state", STATES)
def test_the_panel_has_no_accessibility_fault_in_any_state(page: Page, state: str) -> None:
    start, act = STATES[state]
    run = start()
    page.goto("about:blank")
    shown = PanelPage(page, RecordedPanel(run))
    act(shown)
    for scheme, width in (("light", 1000), ("dark", 1000), ("light", 480)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 1000})
        shown.settle()
        assert faults(page) == [], (scheme, width)
        assert page.evaluate("window.poorContrast()") == [], scheme
    page.set_viewport_size({"width": 1000, "height": 1000})
    assert shown.errors == []
    if not isinstance(run, Replay):
        run.cancel()
    assert shown.panel is not None
    shown.panel.close()


@pytest.mark.parametrize(("start", "scheme", "width"), [(many, "light", 1000), (graph, "dark", 480)])
def test_a_saved_notebook_has_no_accessibility_fault(page: Page, start: Any, scheme: Any, width: int) -> None:
    run = start()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 1000})
    page.set_content(f"<div id=here>{static_html(run)}</div>")
    assert faults(page) == []
    page.evaluate("() => document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert faults(page) == []
    page.set_viewport_size({"width": 1000, "height": 1000})
    run.cancel()


# -- by keyboard alone -----------------------------------------------------------------------------------------------


Step = str | tuple[str, str]
"""A button to press, or a field and the text to type."""


class Keys:
    """A person without a mouse: finds elements by their names with the Tab key, and types."""

    def __init__(self, shown: PanelPage) -> None:
        self.shown = shown
        self.keyboard = shown.page.keyboard

    def tab_to(self, name: str) -> None:
        control = self.shown.page.get_by_label(name, exact=True)
        control = control.or_(self.shown.page.get_by_role("button", name=name, exact=True))
        for _ in range(60):
            if any(one.evaluate("node => node === document.activeElement") for one in control.all()):
                return
            self.keyboard.press("Tab")
        raise AssertionError(f"The Tab key never comes to {name!r}:\n{self.shown.page.inner_text('#here')}")

    def press(self, name: str) -> None:
        self.tab_to(name)
        self.keyboard.press("Enter")
        self.shown.settle()

    def type(self, name: str, text: str) -> None:
        self.tab_to(name)
        self.keyboard.press("Control+A")
        self.keyboard.type(text)

    def do(self, step: Step) -> None:
        if isinstance(step, str):
            self.press(step)
        else:
            self.type(*step)


def results(run: Any) -> list[Any]:
    return [event.result for event in run.events if event.type == "call_end"]


BY_KEYBOARD: dict[str, tuple[list[Step], Callable[[Any], bool]]] = {
    "edit": (
        ["Edit", ("path", "/typed"), "Approve"],
        lambda run: run.result(30) == "Done." and results(run) == ["deleted /typed False 3"],
    ),
    "replace": (
        ["More: Replace", "Replace", ("Tool", "move_file"), ("path", "/a"), ("to", "/b"), "Approve"],
        lambda run: run.result(30) == "Done." and results(run) == ["moved /a to /b"],
    ),
    "reject": (
        ["Reject", ("Reason", "not that one"), "Reject"],
        lambda run: run.result(30) == "Done." and "not that one" in str(results(run)),
    ),
    "take a snapshot": (
        ["More", ("Name of the snapshot (optional)", "typed\n")],
        lambda run: SNAPSHOTS.pop("typed").name == "typed",
    ),
    "fork": (["More", "Fork"], lambda run: bool(FORKS.popitem()[1].events)),
    "steer": (
        [("Message to the run", "stop that"), "Steer"],
        lambda run: [message.content for _, message in run.queued] == ["stop that"],
    ),
    "add a breakpoint": (
        ["More", "Breakpoints", ("Tool of the breakpoint", "move_*"), "Add breakpoint"],
        lambda run: [one.label for one in run.breakpoints] == ["tool move_*"],
    ),
}


@pytest.mark.parametrize("what", BY_KEYBOARD)
def test_every_action_of_the_mouse_is_possible_by_keyboard(page: Page, what: str) -> None:
    steps, is_done = BY_KEYBOARD[what]
    page.goto("about:blank")
    run = one()
    shown = PanelPage(page, RecordedPanel(run, parts=("controls", "approvals", "events")))
    shown.until(page.get_by_role("group", name="delete_file").count, "the question")
    keys = Keys(shown)
    for step in steps:
        keys.do(step)
    shown.settle()
    assert is_done(run)
    assert shown.errors == []
    run.cancel()
