"""A replay's panel shows each moment as it was live: what the page is sent, and what is drawn on it, are the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import expect

from agentnb import ExecutionLoop, SessionLoop, replay
from agentnb.core.events import Delta, Event
from agentnb.testing import ScriptedLLM, call, text
from agentnb.widgets import Panel
from agentnb.widgets.said import Conversation, tell
from tests import designs
from tests.loops.execution_world import CONTEXT, World, c, solution
from tests.widgets.pages import PanelPage
from tests.widgets.support import delete_file, move_file, search, session
from tests.worlds import until

PARTS = ("approvals", "graph", "messages")


class Told:
    """All that the page is told of where a run, or its replay, stands."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.panel = Panel(run, parts=PARTS)
        self.panel._feed.close()  # it is asked here, and nowhere else at the same time

    def now(self) -> dict[str, Any]:
        self.panel._graphs_due = 0.0
        now = self.panel._now()
        del now["breakpoints"]  # those of the run are the person's, and no facts
        status = now["status"] = {**now["status"], "can": {}}  # what drives it can be pressed live only
        if not self.run.state.paused:
            status["paused_for"] = ""  # that it is about to pause is a wish, and no fact
        if not self.run.driven and status["standing"] == "paused":
            status["standing"] = "running"  # nor is a fact that nobody drives it at the moment
        now["said"] = {path: self.said(path) for path in ("", *(one["path"] for one in now["status"]["nested"]))}
        return json.loads(json.dumps(now))

    def said(self, path: str) -> Any:
        design = self.panel._loops.design_at(path)
        return tell(Conversation(self.run, design, self.panel._feed.trace, path), 40)


async def approved(run: Any) -> None:
    """Somebody says yes to whatever is asked."""
    while not run.state.over:
        await until(lambda: run.pending or run.state.over)
        for waiting in run.pending:
            run.approve(waiting.id)


class Eventful:
    """A run to which happens what can happen to one: a person is of all sorts of minds, and the model fails once."""

    @staticmethod
    def loop() -> SessionLoop:
        asks = [call("delete_file", {"path": f"/{n}"}, id=f"d{n}") for n in range(4)]
        turns = [
            [*asks, call("move_file", {"path": "/a", "to": "/b"}, id="m")],
            [ConnectionError("nobody there")],
            [call("delete_file", {"path": "/9"}, id="d9"), {"type": "usage", "input_tokens": 9, "cost": 0.5}],
            "It is done.",
            "Once more.",
        ]
        return SessionLoop(ScriptedLLM(turns), [delete_file, move_file, search], name="tidy")

    @staticmethod
    async def person(run: Any) -> None:
        await until(lambda: len(run.pending) == 5)
        run.pause()
        run.steer("carefully")
        run.steer("no, quickly")
        run.withdraw("steering", run.queued[1][1])
        run.follow_up("and then?")
        run.approve("d0")
        run.undo("d0")
        run.reject("d0", "not that one")
        run.edit("d1", {"path": "/elsewhere", "force": True})
        run.replace("d2", "move_file", {"path": "/2", "to": "/3"})
        run.approve("d3", remember="tool")
        run.breakpoints.add("model_start")
        run.approve("m")
        run.resume()
        await until(lambda: run.state.paused)
        run.breakpoints.remove(1)
        run.resume()
        await until(lambda: not run.driven)  # the model has failed
        run.play()
        await until(lambda: run.state.over)


async def cancelled(run: Any) -> None:
    await until(lambda: run.pending)
    run.cancel("enough")
    await until(lambda: run.state.over)


RUNS: dict[str, tuple[Callable[[], Any], Callable[[Any], Coroutine[Any, Any, None]]]] = {
    **{name: (world, approved) for name, world in designs.WORLDS.items()},
    "eventful": (Eventful.loop, Eventful.person),
    "cancelled": (designs.session_of_agents, cancelled),
}


async def seen_live(loop: Any, person: Callable[[Any], Coroutine[Any, Any, None]]) -> tuple[Any, list[dict[str, Any]]]:
    """A run, and what the page was told after each of its events."""
    run = loop.start("go", name="seen")
    told, seen = Told(run), []

    def note(news: Event | Delta) -> None:
        if isinstance(news, Event):
            seen.append(told.now())

    run.watch(note)
    run.play()
    await asyncio.wait_for(person(run), 20)
    assert len(seen) == len(run.events)
    return run, seen


@pytest.mark.parametrize("name", RUNS)
async def test_the_page_is_told_the_same_after_each_event_as_it_was_live(name: str) -> None:
    make, person = RUNS[name]
    run, seen = await seen_live(make(), person)
    replayed = replay(run)
    told = Told(replayed)
    there_and_back = [*range(len(seen)), *reversed(range(len(seen))), len(seen) - 1, 0]
    for seq in there_and_back:
        replayed.to(seq)
        assert told.now() == seen[seq], run.events[seq]


# What is drawn, as text: each element with what it says and how it stands, without what no two pages share.
DRAWN = """() => {
  const dull = new Set(["id", "for", "style", "title", "tabindex", "disabled", "aria-disabled", "aria-controls",
    "aria-describedby", "aria-activedescendant", "aria-labelledby", "datetime"]);
  const told = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.textContent.trim();
    const apart = "style, .agentnb-then, .agentnb-axis, .agentnb-spoken[aria-live], .agentnb-empty";
    if (node.nodeType !== Node.ELEMENT_NODE || !node.getClientRects().length || node.matches(apart)) return "";
    const going = /not over/.test(node.getAttribute("aria-label") ?? ""); // live it grows while one looks
    const marks = [...node.attributes].filter(({ name }) => !dull.has(name) && !(going && name === "aria-label"));
    const inside = [...node.childNodes].filter((child) => !(going && child.className === "agentnb-took"));
    const said = inside.map(told).filter(Boolean).join(" ");
    return `<${node.localName} ${marks.map(({ name, value }) => `${name}=${value}`).join(" ")}>${said}`;
  };
  const part = (name) => [...document.querySelectorAll(`#here ${name}`)].map(told).join("\\n");
  return Object.fromEntries([".agentnb-chip", ".agentnb-facts", ".agentnb-where", ".agentnb-queue", ".agentnb-stopped",
    ".agentnb-approvals", ".agentnb-graphs", ".agentnb-log", ".agentnb-live", ".agentnb-usage", ".agentnb-side",
  ].map((name) => [name, part(name)]));
}"""


def drawn(shown: PanelPage, total: int) -> dict[str, str]:
    """What each part shows, in each of the places that share one."""
    page = shown.page
    shown.until(lambda: f"{total} events" in page.inner_text(".agentnb-count"), "all events")
    shown.until(page.locator(".agentnb-diagram svg").count, "the drawing")
    told = {}
    for tab in ("Events", "Timeline", "Messages"):
        page.get_by_role("tab", name=tab).click()
        for _ in range(4):
            shown.settle()
        if tab == "Messages":
            shown.until(lambda: page.locator(".agentnb-message").count(), "the messages")
        told |= {f"{tab} {name}": part for name, part in page.evaluate(DRAWN).items()}
    return told


class HeldUp:
    """A model that says the first of its chunks, and the others when it may."""

    def __init__(self, first: list[Any], rest: list[Any]) -> None:
        self.first, self.rest = first, rest
        self.may_go_on = threading.Event()

    async def stream(self, messages: Any, **_: Any) -> AsyncIterator[Any]:
        for chunk in self.first:
            yield chunk
        await asyncio.to_thread(self.may_go_on.wait, 20)
        for chunk in self.rest:
            yield chunk


class Scene(NamedTuple):
    """A run that has not begun, how it comes to the moment, and how it goes on from there."""

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
    """Three calls wait, one is decided and has not begun, and somebody has spoken into the queue."""
    asks = [call("delete_file", {"path": f"/{n}"}, id=f"d{n}") for n in range(4)]
    run = session([[*text("I shall."), *asks, {"type": "usage", "input_tokens": 7, "cost": 0.25}], "Done.", "Done."])

    def reach() -> None:
        run.submit_step("turn").result(10)
        run.approve("d1")
        run.follow_up("and then?")

    return Scene(run, reach, run.cancel)


def failed() -> Scene:
    run = session([[call("search", {"query": "x"}, id="s")], [*text("I think"), ConnectionError("nobody there")]])

    def reach() -> None:
        run.play()
        asyncio.run(until(lambda: run.state.failure is not None and not run.driven))

    return Scene(run, reach, lambda: None)


@pytest.mark.browser
@pytest.mark.parametrize("scene", [in_the_middle_of_an_answer, asked_about_many, failed])
def test_the_page_draws_the_same_as_it_did_live(scene: Callable[[], Scene], show: Callable[..., PanelPage]) -> None:
    run, reach, go_on = scene()
    shown = show(run)
    with ThreadPoolExecutor(1) as thread:  # in this one Playwright has an event loop
        thread.submit(reach).result(20)
    at = len(run.events)
    live = drawn(shown, at)
    go_on()
    shown.until(lambda: run.state.over or not run.driven, "it has gone on")
    shown.page.goto("about:blank")
    again = show(replay(run))
    again.page.get_by_role("slider", name="Position").fill(str(at))
    with suppress(AssertionError):
        again.until(lambda: drawn(again, at) == live, "the same", 5)
    for part, told in drawn(again, at).items():
        assert told == live[part], part


def test_nothing_can_be_decided_in_a_recording(show: Callable[..., PanelPage]) -> None:
    run, reach, _ = asked_about_many()
    reach()
    shown = show(replay(run))
    shown.page.get_by_role("slider", name="Position").fill(str(len(run.events)))
    waiting = shown.page.get_by_role("group", name="delete_file")
    shown.until(lambda: waiting.count() == 3, "the questions")
    first = waiting.first
    for name in ("Approve", "Reject", "Edit", "Replace"):
        off = first.get_by_role("button", name=name, exact=True)
        expect(off).to_be_disabled()
        expect(off).to_have_attribute("title", "Nothing is decided in a recording.")
    assert 'fork(4, decision="reject")' in shown.page.inner_text(f"#{first.get_attribute('aria-describedby')}")
    expect(shown.page.get_by_role("button", name="Undo: delete_file")).to_be_disabled()
    first.get_by_role("button", name="Details of delete_file").click()  # to look at it is allowed
    expect(first.get_by_role("region")).to_contain_text('"path": "/0"')
    enabled = ":is(button, input, select, textarea):enabled"
    left = [node.get_attribute("aria-label") for node in shown.page.locator(f".agentnb-approvals {enabled}").all()]
    assert left == ["Details of delete_file"] * 3
    shown.page.locator(".agentnb-approvals button").evaluate_all("all => all.forEach((one) => one.click())")
    shown.settle()
    assert not [one for one in ("decision", "undo", "forget", "withdraw") if shown.sent(one)]
    run.cancel()
