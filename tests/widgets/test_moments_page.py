"""The panel of a replay draws each moment as the live one did, with its questions; but it does not decide."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import expect

from agentnb import ExecutionLoop, replay
from agentnb.testing import call, text
from tests.loops.execution_world import CONTEXT, World, c, solution
from tests.widgets.pages import PanelPage
from tests.widgets.support import session
from tests.worlds import until

pytestmark = pytest.mark.browser

# The drawn page as text: each element with its text and its state, without values that differ between pages.
DRAWN = """() => {
  const dull = new Set(["id", "for", "style", "title", "tabindex", "disabled", "aria-disabled", "aria-controls",
    "aria-describedby", "aria-activedescendant", "aria-labelledby", "datetime"]);
  const told = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.textContent.trim();
    // Live these grow while one looks.
    const time = ".agentnb-usage-facts > :first-child, .agentnb-time-taken, .agentnb-spent";
    const apart = `style, .agentnb-then, .agentnb-spoken[aria-live], .agentnb-empty, ${time}`;
    if (node.nodeType !== Node.ELEMENT_NODE || !node.getClientRects().length || node.matches(apart)) return "";
    const going = /not ended/.test(node.getAttribute("aria-label") ?? ""); // so does this
    const marks = [...node.attributes].filter(({ name }) => !dull.has(name) && !(going && name === "aria-label"));
    const inside = [...node.childNodes].filter((child) => !(going && child.className === "agentnb-took"));
    const said = inside.map(told).filter(Boolean).join(" ");
    return `<${node.localName} ${marks.map(({ name, value }) => `${name}=${value}`).join(" ")}>${said}`;
  };
  const part = (name) => [...document.querySelectorAll(`#here ${name}`)].map(told).join("\\n");
  return Object.fromEntries([".agentnb-facts", ".agentnb-queue", ".agentnb-stopped",
    ".agentnb-approvals", ".agentnb-graphs", ".agentnb-log", ".agentnb-live", ".agentnb-usage", ".agentnb-states",
  ].map((name) => [name, part(name)]));
}"""


def drawn(shown: PanelPage, total: int) -> dict[str, str]:
    """Return the contents of each part, in each of its views."""
    page = shown.page
    page.locator(".agentnb-panel").evaluate("panel => { panel.style.height = '2000px'; }")  # so that all rows are drawn
    shown.until(lambda: f"{total} events" in page.inner_text(".agentnb-count"), "all events")
    shown.until(page.locator(".agentnb-diagram svg").count, "the drawing")
    assert shown.panel is not None
    shown.until(shown.panel.is_told, "how the run stands")
    told = {}
    for tab in ("Trace", "Events", "Usage", "Messages"):
        page.get_by_role("tab", name=tab).click()
        told |= {f"{tab} {name}": part for name, part in at_rest(shown).items()}
    return told


def at_rest(shown: PanelPage) -> dict[str, str]:
    """Return the drawn page when it has not changed for longer than the interval between two drawings."""
    told: dict[str, str] = {}
    since = time.monotonic()
    while time.monotonic() - since < 0.3:
        shown.settle()
        before, told = told, shown.page.evaluate(DRAWN)
        since = since if told == before else time.monotonic()
    return told


class HeldUp:
    """A model that sends its first chunk, and the others after a signal."""

    def __init__(self, first: list[Any], rest: list[Any]) -> None:
        self.first, self.rest = first, rest
        self.may_go_on = threading.Event()

    async def stream(self, messages: Any, **_: Any) -> AsyncIterator[Any]:
        for chunk in self.first:
            yield chunk
        await asyncio.to_thread(self.may_go_on.wait, 300)
        for chunk in self.rest:
            yield chunk


class Scene(NamedTuple):
    """A run without events, a function that drives it to the position, and one that continues it."""

    run: Any
    reach: Callable[[], object]
    go_on: Callable[[], object]


def in_the_middle_of_an_answer() -> Scene:
    """Calls run, one of which waited for another, while the model is still writing."""
    calls = c("fetch", "†state.profile", u="†input.u"), c("sum", "†state.summary", p="†state.profile")
    chunks = solution(*calls, output="over", pieces=20)
    model = HeldUp(chunks[:-1], chunks[-1:])
    run = ExecutionLoop(model, World().tools, name="reporter", context=CONTEXT).start(None, name="report")

    def reach() -> None:
        run.play()
        asyncio.run(until(lambda: sum(event.type == "call_end" for event in run.events) == 2))

    return Scene(run, reach, model.may_go_on.set)


def asked_about_many() -> Scene:
    """Return a run with three pending calls, a decided call that has not started, and a queued message."""
    asks = [call("delete_file", {"path": f"/{n}"}, id=f"d{n}") for n in range(4)]
    run = session([[*text("I shall."), *asks, {"type": "usage", "input_tokens": 7, "cost": 0.25}], "Done.", "Done."])

    def reach() -> None:
        run.submit_step("turn").result(30)
        run.approve("d1")
        run.follow_up("and then?")

    return Scene(run, reach, run.cancel)


@pytest.mark.parametrize("scene", [in_the_middle_of_an_answer, asked_about_many])
def test_a_replay_draws_the_same_as_the_live_run(scene: Callable[[], Scene], show: Callable[..., PanelPage]) -> None:
    run, reach, go_on = scene()
    shown = show(run)
    with ThreadPoolExecutor(1) as thread:  # in this one Playwright has an event loop
        thread.submit(reach).result(30)
    at = len(run.events)
    shown.settle()
    shown.until(lambda: not shown.page.locator(".agentnb-was").count(), "the row of the decided call to go")
    undoable = shown.page.get_by_role("list", name="Decided, not started yet").locator("li")
    shown.until(lambda: undoable.count() == len(run.decided), "the decisions that can be undone")
    live = drawn(shown, at)
    go_on()
    shown.until(lambda: run.state.over or not run.driven, "it has gone on")
    shown.page.goto("about:blank")
    again = show(replay(run))
    again.go_to(at)
    for part, told in drawn(again, at).items():
        assert told == live[part], part


def test_a_recording_has_no_enabled_button_that_decides(show: Callable[..., PanelPage]) -> None:
    run, reach, _ = asked_about_many()
    reach()
    shown = show(replay(run))
    shown.go_to(len(run.events))
    waiting = shown.page.get_by_role("group", name="delete_file")
    shown.until(lambda: waiting.count() == 3, "the questions")
    first = waiting.first
    for name in ("Approve", "Reject"):
        off = first.get_by_role("button", name=name, exact=True)
        expect(off).to_be_disabled()
        expect(off).to_have_attribute("title", "A recording takes no decisions.")
    assert 'fork(4, decision="reject")' in shown.page.inner_text(f"#{first.get_attribute('aria-describedby')}")
    expect(shown.page.get_by_role("button", name="Undo: delete_file")).to_be_disabled()
    first.get_by_role("button", name="Details of delete_file").click()  # to look at it is allowed
    expect(first.get_by_role("region")).to_contain_text("path")
    for name in ("Approve", "Reject", "Edit"):
        expect(first.get_by_role("button", name=name, exact=True)).to_be_disabled()
    enabled = ":is(button, input, select, textarea):enabled:visible"
    left = [node.get_attribute("aria-label") for node in shown.page.locator(f".agentnb-approvals {enabled}").all()]
    assert left == ["Details of delete_file"] * 3
    shown.page.locator(".agentnb-approvals button").evaluate_all("all => all.forEach((one) => one.click())")
    shown.settle()
    assert not [one for one in ("decision", "undo", "forget", "withdraw") if shown.sent(one)]
    run.cancel()


def test_the_offered_fork_is_at_the_first_question(show: Callable[..., PanelPage]) -> None:
    calls = [call("delete_file", {"path": "/a"}, id="c11"), call("delete_file", {"path": "/b"}, id="1")]
    run = session([calls, "Done."])
    run.submit_step("turn").result(30)
    shown = show(replay(run))
    shown.go_to(len(run.events))
    shown.until(lambda: shown.page.get_by_role("group", name="delete_file").count() == 2, "the questions")
    expect(shown.page.locator(".agentnb-then code")).to_have_text(f'fork({run.pending[0].event}, decision="reject")')
    run.cancel()


def test_a_disabled_link_has_another_colour(show: Callable[..., PanelPage]) -> None:
    run, reach, _ = asked_about_many()
    reach()
    shown = show(run)
    link = shown.page.get_by_role("button", name="Withdraw: and then?")
    color = "link => getComputedStyle(link).color"
    shown.until(link.is_visible, "the message that was queued")
    on = link.evaluate(color)
    shown.page.goto("about:blank")
    shown = show(replay(run))
    shown.go_to(len(run.events))
    shown.until(link.is_visible, "the same in the recording")
    expect(link).to_be_disabled()
    assert link.evaluate(color) != on
    run.cancel()
