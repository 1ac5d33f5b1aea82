"""A recording in the panel: the slider goes to any of its moments, and every part shows what had happened by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import expect

from agentnb import SessionLoop, replay, tool
from agentnb.testing import ScriptedLLM, delay, text
from tests.analysis.recordings import decided_run
from tests.benchmarks.models import Calling
from tests.benchmarks.test_loop import echo
from tests.designs import session_of_agents
from tests.widgets.pages import PanelPage


@pytest.fixture(scope="module")
def run() -> Any:
    return made(decided_run())


def made(coming: Coroutine[Any, Any, Any]) -> Any:
    """What comes of it, in a thread of its own: in this one Playwright has an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coming).result()


@pytest.fixture
def shown(show: Callable[..., PanelPage], run: Any) -> PanelPage:
    page = show(replay(run))
    page.page.set_viewport_size({"width": 900, "height": 800})
    page.settle()
    return page


def position(shown: PanelPage) -> Any:
    return shown.page.get_by_role("slider", name="Position")


def go_to(shown: PanelPage, at: int) -> None:
    position(shown).fill(str(at))
    shown.settle()


def events(shown: PanelPage) -> str:
    return shown.page.locator(".agentnb-count").inner_text()


def test_it_begins_before_the_first_event_and_has_them_all_on_its_slider(shown: PanelPage, run: Any) -> None:
    expect(position(shown)).to_have_attribute("max", str(len(run.events)))
    expect(position(shown)).to_have_value("0")
    assert events(shown) == "0 events"
    assert shown.errors == []


def test_the_slider_goes_to_any_moment_forwards_and_backwards(shown: PanelPage, run: Any) -> None:
    for at in (len(run.events), 5, 12, 0, 7):
        go_to(shown, at)
        assert events(shown) == f"{at} event{'' if at == 1 else 's'}"
        assert shown.panel.run.position == at  # type: ignore[union-attr]
    assert shown.errors == []


def test_each_part_shows_the_moment_as_it_was(shown: PanelPage, run: Any) -> None:
    asked = next(event.seq for event in run.events if event.type == "approval_request")
    go_to(shown, asked + 1)
    phase = shown.page.locator("[data-phase]").first
    shown.until(lambda: phase.get_attribute("data-phase") == shown.panel.run.phase != "idle", "its phase")  # type: ignore[union-attr]
    shown.page.get_by_role("tab", name="Timeline").click()
    shown.settle()
    expect(shown.page.get_by_role("option").filter(has_text="write")).to_have_count(1)
    shown.page.get_by_role("tab", name="Messages").click()
    shown.until(lambda: "It is done." not in shown.page.locator(".agentnb-said").first.inner_text(), "the moment")
    go_to(shown, len(run.events))
    shown.until(lambda: "It is done." in shown.page.locator(".agentnb-said").first.inner_text(), "the end")
    go_to(shown, asked + 1)
    shown.until(lambda: "It is done." not in shown.page.locator(".agentnb-said").first.inner_text(), "the moment again")


def test_what_the_person_was_asked_is_told_where_it_was_asked(shown: PanelPage, run: Any) -> None:
    asked = shown.page.get_by_role("list", name="Waited for a decision")
    expect(asked).to_be_hidden()
    go_to(shown, 1 + max(event.seq for event in run.events if event.type == "approval_request"))
    shown.until(lambda: asked.get_by_role("listitem").count() == 4, "the four questions")
    assert "/etc/passwd" in asked.inner_text()
    go_to(shown, len(run.events))
    shown.until(lambda: not asked.is_visible(), "nothing is asked at the end")


def test_text_is_typed_as_it_came(show: Callable[..., PanelPage]) -> None:
    async def slowly() -> Any:
        words = [piece for word in ("one", " two", " three", " four") for piece in (*text(word), delay(0.15))]
        run = SessionLoop(ScriptedLLM([words])).start("go", name="slow")
        await run
        return run

    run = made(slowly())
    shown = show(replay(run))
    go_to(shown, next(event.seq for event in run.events if event.type == "model_end"))
    shown.page.get_by_role("button", name="Play", exact=True).click()
    speaking = shown.page.locator(".agentnb-live .agentnb-line-text")
    seen = set()
    shown.until(
        lambda: seen.add(speaking.inner_text() if speaking.count() else "") or "one two three" in seen, "the text"
    )
    assert {"one", "one two"} & seen
    shown.until(lambda: int(position(shown).input_value()) == len(run.events), "the end")
    expect(speaking).to_have_count(0)


def test_keys_and_buttons_go_by_one_event_and_to_the_ends(shown: PanelPage, run: Any) -> None:
    slider = position(shown)
    slider.focus()
    for key, at in (("End", len(run.events)), ("ArrowLeft", len(run.events) - 1), ("Home", 0), ("ArrowRight", 1)):
        shown.page.keyboard.press(key)
        shown.settle()
        assert shown.panel.run.position == at  # type: ignore[union-attr]
    for name, at in (("Forward", 2), ("Back", 1), ("Last", len(run.events)), ("First", 0)):
        shown.page.get_by_role("button", name=name, exact=True).click()
        shown.settle()
        assert shown.panel.run.position == at  # type: ignore[union-attr]
    expect(shown.page.get_by_role("button", name="Back", exact=True)).to_have_attribute("aria-disabled", "true")


def test_what_a_cell_does_with_the_replay_moves_the_slider(shown: PanelPage) -> None:
    replayed = shown.panel.run  # type: ignore[union-attr]
    replayed.step("turn")
    shown.until(lambda: position(shown).input_value() == str(replayed.position), "the slider follows")
    replayed.to(1)
    shown.until(lambda: position(shown).input_value() == "2", "the slider follows back")
    assert events(shown) == "2 events"


def test_it_plays_to_the_end_and_may_be_held(shown: PanelPage, run: Any) -> None:
    shown.page.get_by_role("combobox", name="Speed").select_option("without pauses")
    shown.page.get_by_role("button", name="Play", exact=True).click()
    shown.until(lambda: int(position(shown).input_value()) > 3, "it plays")
    shown.page.get_by_role("button", name="Pause", exact=True).click()
    shown.settle()
    held = int(position(shown).input_value())
    assert held < len(run.events)
    shown.page.get_by_role("button", name="Play", exact=True).click()
    shown.until(lambda: int(position(shown).input_value()) == len(run.events), "it plays to the end")
    expect(shown.page.get_by_role("button", name="Play", exact=True)).to_have_attribute("aria-disabled", "true")
    assert shown.errors == []


def test_a_filter_holds_while_the_recording_is_gone_about_in(shown: PanelPage, run: Any) -> None:
    go_to(shown, len(run.events))
    shown.page.get_by_role("combobox", name="Type of event").select_option("call_start")
    shown.settle()
    starts = [event.seq for event in run.events if event.type == "call_start"]
    assert events(shown) == f"{len(starts)} of {len(run.events)}"
    go_to(shown, starts[1] + 1)
    assert events(shown) == f"2 of {starts[1] + 1}"


def test_loops_that_have_not_begun_are_not_there(show: Callable[..., PanelPage]) -> None:
    async def nested() -> Any:
        run = session_of_agents().start("go", approve=True)
        await run
        return run

    run = made(nested())
    shown = show(replay(run))
    go_to(shown, len(run.events))
    shown.page.get_by_role("tab", name="Messages").click()
    shown.settle()
    expect(shown.page.get_by_role("combobox", name="Loop of messages").locator("option")).to_have_count(5)
    go_to(shown, 3)
    expect(shown.page.get_by_role("combobox", name="Loop of messages")).to_be_hidden()
    go_to(shown, len(run.events))
    expect(shown.page.get_by_role("combobox", name="Loop of messages").locator("option")).to_have_count(5)
    assert shown.errors == []


def test_a_recording_has_no_buttons_that_would_drive_it(shown: PanelPage) -> None:
    for name in ("Step", "Cancel", "Steer", "Approve"):
        expect(shown.page.get_by_role("button", name=name, exact=True)).to_have_count(0)


# The longest pause between two frames, and how long until a moment is drawn, while somebody drags the slider.
DRAG = """async ([from, to, steps]) => {
  const slider = document.querySelector(".agentnb-position"), took = [];
  for (let step = 0; step <= steps; step++) {
    const began = performance.now();
    slider.value = Math.round(from + ((to - from) * step) / steps);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    took.push(performance.now() - began);
  }
  took.sort((one, other) => one - other);
  return [took[Math.floor(took.length / 2)], took.at(-1)];
}"""


@pytest.mark.alone
def test_the_slider_follows_the_hand_through_a_hundred_thousand_events(
    show: Callable[..., PanelPage], capsys: pytest.CaptureFixture[str]
) -> None:
    async def long() -> Any:
        run = SessionLoop(Calling(25_000), [tool(echo)]).start("go", name="long")
        await run
        return run

    run = made(long())
    shown = show(replay(run))
    last = len(run.events)
    go_to(shown, last)
    shown.until(lambda: events(shown) == f"{last:,} events", "all events are on the page", 120)
    for where, stretch in {
        "on": (0, last),
        "back": (last, 0),
        "about the middle": (last // 2, last // 2 + 300),
    }.items():
        median, longest = shown.page.evaluate(DRAG, [*stretch, 40])
        with capsys.disabled():
            drawn = f"{median:.0f} ms to a drawn moment, {longest:.0f} at most"
            print(f"\n{last:,} events, the slider dragged {where}: {drawn}")
        assert median < 1000
