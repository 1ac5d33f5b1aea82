"""A recording in the panel: the slider goes to any of its moments, and every part shows what had happened by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import expect

from agentnb import replay
from tests.analysis.recordings import decided_run
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
