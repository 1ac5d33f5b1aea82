"""The frame of the panel: its head, its keys, its tabs, its phases, and its height, which does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, delay, text
from agentnb.widgets.static.panel import static_html
from agentnb.widgets.views.about import display_name
from tests.widgets import scenes
from tests.widgets.pages import PanelPage, RecordedPanel, press_in_menu, rows, rows_message, state
from tests.widgets.support import asking, search, session, waiting

pytestmark = pytest.mark.browser


def button(shown: PanelPage, name: str) -> Any:
    return shown.page.get_by_role("button", name=name, exact=True)


# -- the height --------------------------------------------------------------------------------------------------------


def test_nothing_outside_the_panel_moves_whatever_happens_inside(show: Callable[[Any], PanelPage]) -> None:
    run = asking("/a")
    shown = show(run)
    page = shown.page
    page.evaluate("() => document.body.insertAdjacentHTML('beforeend', '<p id=below>the next cell</p>')")
    heights = []

    def note() -> None:
        shown.settle()
        heights.append(page.evaluate("() => document.getElementById('below').getBoundingClientRect().top"))

    note()
    button(shown, "Whole question").click()
    note()
    run.play()
    group = page.get_by_role("group", name="delete_file")
    shown.until(group.is_visible, "the question")
    note()
    button(shown, "More").click()
    note()
    page.keyboard.press("Escape")
    group.get_by_role("button", name="Approve", exact=True).click()
    shown.until(lambda: run.state.over and group.count() == 0, "the end")
    for name in ("Trace", "Events", "Messages", "Usage"):
        page.get_by_role("tab", name=name).click()
        note()
        expect(page.get_by_role("group", name="Sum")).to_be_visible(visible=name == "Trace")
    assert len(set(heights)) == 1


def test_the_height_is_changed_by_the_handle_and_remembered_for_the_notebook(browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("http://panel.test/**", lambda route: route.fulfill(body="<p>", content_type="text/html"))

    def height(notebook: str, keys: list[str]) -> float:
        page.goto(f"http://panel.test/{notebook}")
        PanelPage(page, state=state())
        handle = page.get_by_role("separator", name="Height of the panel")
        handle.focus()
        for key in keys:
            page.keyboard.press(key)
        box = page.locator(".agentnb-panel").bounding_box()
        assert box is not None
        assert handle.get_attribute("aria-valuenow") == str(round(box["height"]))
        return box["height"]

    assert height("one.ipynb", []) == 560
    assert height("one.ipynb", ["ArrowDown", "ArrowDown", "ArrowUp"]) == 580
    assert height("two.ipynb", ["End", "ArrowDown"]) == 1200
    assert height("one.ipynb", []) == 580
    assert height("two.ipynb", ["Home", "ArrowUp"]) == 320
    box = page.get_by_role("separator").bounding_box()
    assert box is not None
    page.mouse.move(200, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(200, box["y"] + 103, steps=4)
    page.mouse.up()
    assert height("two.ipynb", []) == 420
    page.get_by_role("separator").dblclick()
    assert height("two.ipynb", []) == 560
    context.close()


# -- the head ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", ["not_started", "waiting", "waiting_for_many", "paused", "failed", "cancelled"])
def test_the_live_and_the_static_panel_say_the_same_about_the_state(
    show: Callable[[Any], PanelPage], scene: str
) -> None:
    run = getattr(scenes, scene)()
    shown = show(run)
    word = shown.page.locator(".agentnb-state-word").inner_text()
    shown.page.set_content(static_html(run))
    assert shown.page.locator(".agentnb-static b").first.inner_text().split(" ", 1)[1] == word
    run.cancel()


def test_a_run_that_reaches_its_turns_says_how_many(show: Callable[[Any], PanelPage]) -> None:
    turns = [[call("search", {"query": "a"}, id=f"s{n}")] for n in range(3)]
    run = SessionLoop(ScriptedLLM(turns), [search], max_turns=2).start("go")
    run.result(30)
    shown = show(run)
    expect(shown.page.locator(".agentnb-state-word")).to_have_text("stopped at 2 turns")


def test_the_time_that_a_question_waits_is_shown_but_not_said(show: Callable[[Any], PanelPage]) -> None:
    shown = show(waiting("/a"))
    chip = shown.page.locator(".agentnb-state")
    expect(chip).to_contain_text("waits for you")
    shown.until(lambda: "0:0" in chip.inner_text(), "the time")
    expect(chip.get_by_role("status")).to_have_text("waits for you")


def test_a_run_without_a_name_is_shown_with_its_design_and_a_number(show: Callable[[Any], PanelPage]) -> None:
    first, second = (SessionLoop(ScriptedLLM(["Hello."]), []).start("go") for _ in range(2))
    shown = show(first)
    design, number = display_name(first).split(" ")
    assert (design, display_name(second)) == ("session", f"session {int(number) + 1}")
    expect(shown.page.locator(".agentnb-name")).to_have_text(f"session {number}")
    assert first.name is None


def test_the_question_is_one_line_and_unfolds(show: Callable[[Any], PanelPage]) -> None:
    question = "When did the level change?\nSay how sure you are.\n" + "And why. " * 60
    run = SessionLoop(ScriptedLLM(["Hello."]), []).start(question, name="nile")
    shown = show(run)
    line, whole = shown.page.locator(".agentnb-question-line"), shown.page.get_by_role("region", name="Question")
    box = line.bounding_box()
    assert box is not None
    assert box["height"] <= 24
    expect(whole).to_be_hidden()
    button(shown, "Whole question").press("Enter")
    assert whole.inner_text() == question
    whole.press("Escape")
    expect(whole).to_be_hidden()
    expect(button(shown, "Whole question")).to_be_focused()


def test_cancelling_is_apart_and_asks_first(show: Callable[[Any], PanelPage]) -> None:
    run = waiting("/a")
    shown = show(run)
    press_in_menu(shown.page, "Cancel")
    expect(shown.page.get_by_text("Cancel tidy? It ends for good.")).to_be_visible()
    expect(button(shown, "Cancel run")).to_be_focused()
    shown.page.keyboard.press("Escape")
    expect(button(shown, "Cancel")).to_be_focused()
    button(shown, "Cancel").click()
    button(shown, "Keep it").click()
    assert shown.sent("control") == []
    button(shown, "Cancel").click()
    button(shown, "Cancel run").click()
    shown.until(lambda: run.state.over, "the end")
    expect(button(shown, "More")).to_be_focused()


def test_a_narrow_panel_has_step_and_follow_up_in_its_menu(page: Page) -> None:
    run = session([[call("search", {"query": "a"}, id="s")], "Found."])
    shown = PanelPage(page, RecordedPanel(run), tab="Trace")
    step, follow_up, menu = button(shown, "Step"), button(shown, "Follow up"), page.get_by_role("group", name="More")
    expect(step).to_be_visible()
    expect(follow_up).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 700})
    expect(step).to_have_count(0)
    expect(follow_up).to_have_count(0)

    button(shown, "More").click()
    expect(menu.get_by_role("button").first).to_have_text("Step")
    page.get_by_label("Unit of a step").select_option("turn")
    step.click()
    shown.until(lambda: run.state.turn == 1 and not run.driven, "the step")
    page.keyboard.press("Escape")
    page.get_by_label("Message to the run").fill("and now this")
    button(shown, "More").click()
    follow_up.click()
    shown.until(lambda: run.state.queues["follow_up"], "the message")
    expect(menu).to_be_hidden()

    page.set_viewport_size({"width": 1000, "height": 700})
    expect(step).to_be_visible()
    expect(follow_up).to_be_visible()
    run.cancel()


def test_events_that_were_lost_are_mentioned_until_they_are_there(page: Page) -> None:
    shown = PanelPage(page, state=state())
    notice = page.get_by_text("Some events have not arrived: asking again for #10 to #19.")
    shown.deliver(rows_message(0, rows(0, 10)))
    shown.deliver(rows_message(20, rows(20, 5)))
    expect(notice).to_be_visible()
    shown.until(lambda: shown.sent("sync")[-1]["have"] == 10, "the question for them")
    shown.deliver(rows_message(10, rows(10, 15)))
    expect(notice).to_be_hidden()
    expect(page.get_by_role("tab", name="Events")).to_have_text("Events 25")


def test_one_button_plays_pauses_and_asks_again(show: Callable[[Any], PanelPage]) -> None:
    run = session([[*text("Hel"), RuntimeError("429: busy")], [*text("Once"), delay(60)]])
    shown = show(run)
    button(shown, "Play").click()
    again = button(shown, "Ask again")
    shown.until(again.is_visible, "the failure")
    expect(shown.page.get_by_text("Nothing is lost: Ask again repeats the request.")).to_be_visible()
    expect(shown.page.get_by_text("after 1 attempt")).to_be_visible()
    assert button(shown, "Play").count() + button(shown, "Pause").count() == 0
    again.click()
    shown.until(button(shown, "Pause").is_visible, "the second request")
    expect(shown.page.get_by_text("Nothing is lost")).to_be_hidden()
    run.cancel()


NOTE_POSITIONS = """() => {
  window.positions = [];
  const note = () => {
    const slider = document.querySelector('[aria-label^="Panel of"] [role=slider][aria-label="Position"]');
    if (slider) window.positions.push(slider.getAttribute("aria-valuenow"));
  };
  const watched = { subtree: true, childList: true, attributeFilter: ["aria-valuenow"] };
  new MutationObserver(note).observe(document.body, watched);
}"""
"""Notes each position that the replay inside the panel shows, also those that a reader of the page would miss."""


def test_a_run_that_is_over_is_replayed_in_its_panel(show: Callable[[Any], PanelPage]) -> None:
    run = session([[delay(0.3), call("search", {"query": "a"}, id="s")], [delay(0.3), *text("Found.")]])
    shown = show(run)
    page = shown.page
    assert button(shown, "Replay").count() == 0
    button(shown, "Play").click()
    shown.until(lambda: run.state.over and button(shown, "Replay").count(), "the end")
    assert button(shown, "Step").count() + button(shown, "Play").count() == 0
    events = len(run.events)

    page.evaluate(NOTE_POSITIONS)
    button(shown, "Replay").click()
    inner = page.get_by_role("group", name="Panel of the replay")
    shown.until(inner.is_visible, "the panel of the replay")
    slider = inner.get_by_role("slider", name="Position")
    end = str(events - 1)

    def played() -> bool:
        return slider.get_attribute("aria-valuenow") == slider.get_attribute("aria-valuemax") == end

    shown.until(played, "the replay to its end")
    passed = set(page.evaluate("window.positions"))
    assert {"-1", end} < passed  # it begins before the first event, and shows some on its way
    expect(inner.get_by_role("button", name="Step", exact=True)).to_be_visible()
    shown.until(inner.get_by_role("button", name="Play", exact=True).is_visible, "the stop at the end")

    page.get_by_title("Back to the run").click()
    expect(button(shown, "Replay")).to_be_focused()
    page.evaluate("window.positions.length = 0")
    button(shown, "Replay").press("Enter")
    shown.until(inner.is_visible, "the panel of the replay")
    shown.until(
        lambda: "-1" in page.evaluate("window.positions") and played(), "the replay, again from before the first event"
    )
    assert len(run.events) == events


def test_a_run_that_has_not_begun_names_its_tools_and_those_that_ask(page: Page) -> None:
    run = scenes.not_started()
    shown = PanelPage(page, RecordedPanel(run), tab="Trace")
    tools = page.get_by_role("list", name="Tools").get_by_role("listitem")
    expect(tools).to_have_text(["read_table", "write_report", "delete_file"])
    expect(page.get_by_text("3 tools, of which 2 ask before they run:")).to_be_visible()
    expect(tools.locator("[data-kind=person]:visible")).to_have_count(2)
    button(shown, "Step").click()
    shown.until(page.get_by_role("treegrid", name="Trace").is_visible, "the first event")
    expect(page.get_by_text("Nothing has happened yet.", exact=True)).to_be_hidden()
    run.cancel()


# -- the keys ----------------------------------------------------------------------------------------------------------


def test_keys_of_the_panel_do_what_its_buttons_do(show: Callable[[Any], PanelPage]) -> None:
    run = session([[call("search", {"query": "a"}, id="s")], [*text("Once"), delay(60)]])
    shown = show(run)
    page = shown.page
    page.evaluate("window.heard = []; document.addEventListener('keydown', ({ key }) => window.heard.push(key))")
    tabs = page.get_by_role("tab")
    tabs.first.focus()
    page.keyboard.press("s")
    shown.until(lambda: run.events and not run.driven, "the step")
    page.keyboard.press("3")
    expect(page.get_by_role("tab", name="Messages")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("/")
    expect(page.get_by_label("Find", exact=True)).to_be_focused()
    page.keyboard.type("s1 ?")
    assert len(shown.sent("control")) == 1
    page.keyboard.press("Escape")
    expect(page.get_by_label("Find", exact=True)).to_have_value("")
    page.keyboard.press("Escape")
    expect(page.get_by_role("group", name="Panel")).to_be_focused()
    page.keyboard.press("2")
    page.keyboard.press("/")
    expect(page.get_by_label("Filter events")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    shown.until(button(shown, "Play").is_enabled, "the end of the step")
    page.keyboard.press("Space")
    shown.until(button(shown, "Pause").is_visible, "the play")
    button(shown, "More").focus()
    page.keyboard.press("Space")  # it presses the button that has the focus
    expect(page.get_by_role("group", name="More")).to_be_visible()
    assert [message["action"] for message in shown.sent("control")] == ["Step", "Play"]
    assert page.evaluate("window.heard") == []
    run.cancel()


def test_find_shows_only_the_messages_that_have_the_text(show: Callable[[Any], PanelPage]) -> None:
    run = session([[*text("I look."), call("search", {"query": "drafts"}, id="s")], "There are two."])
    run.result(30)
    shown = show(run)
    page = shown.page
    find = page.get_by_label("Find", exact=True)
    expect(find).to_be_hidden()
    page.get_by_role("tab", name="Messages").click()
    messages = page.get_by_role("article")
    shown.until(lambda: messages.count() == 3, "the messages")
    find.fill("DRAFTS")
    expect(messages).to_have_count(1)
    find.fill("nowhere")
    expect(page.get_by_text("None of 3 messages has this text.")).to_be_visible()
    find.fill("")
    expect(messages).to_have_count(3)


# -- the phases --------------------------------------------------------------------------------------------------------


def test_the_events_of_a_phase_are_listed_and_it_takes_a_breakpoint(show: Callable[[Any], PanelPage]) -> None:
    run = session([[call("search", {"query": "a"}, id="s")], "Done."])
    shown = show(run)
    page = shown.page
    phases = page.get_by_role("list", name="Phases", exact=True)
    phases.get_by_role("button", name="acting").click()
    button(shown, "Break here").click()
    shown.until(lambda: [one.label for one in run.breakpoints] == ["phase acting"], "the breakpoint")
    button(shown, "Play").click()
    shown.until(lambda: "phase acting" in page.locator(".agentnb-stopped").inner_text(), "the reason")
    button(shown, "Remove").click()
    shown.until(lambda: not len(run.breakpoints), "taking it away")
    shown.until(button(shown, "Play").is_enabled, "the pause")
    button(shown, "Play").click()
    shown.until(lambda: run.state.over, "the end")
    page.get_by_role("tab", name="Messages").click()
    phases.get_by_role("button", name="acting").press("Enter")
    page.keyboard.press("Enter")  # the first of what it offers
    count = page.locator(".agentnb-count")
    expected = [event.type for event in run.events if event.type.startswith("call")]
    shown.until(lambda: f"of {len(run.events)}" in count.inner_text(), "the filter")
    told = page.get_by_role("log", name="Events").get_by_role("option").all_inner_texts()
    assert all(any(type in row for row in told) for type in expected)
    assert not any("run_start" in row for row in told)
    button(shown, "phase acting").click()
    expect(count).to_have_text(f"{len(run.events)} events")


def test_a_diagram_alone_has_phases_that_are_not_buttons(page: Page) -> None:
    PanelPage(page, state=state(parts=["diagram"]))
    expect(page.get_by_role("list", name="Phases").get_by_role("listitem")).to_have_text(["running", "done"])
    expect(page.get_by_role("button")).to_have_count(0)


# -- the widths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "columns"), [(1200, 2), (848, 2), (560, 1), (360, 1), (320, 1)])
def test_the_columns_follow_the_width_and_nothing_is_cut_off(page: Page, width: int, columns: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    shown = PanelPage(page, state=state(question="When did the level change? " * 9))
    shown.deliver(rows_message(0, rows(0, 100)))
    shown.settle()
    list_box = page.get_by_role("log", name="Events").bounding_box()
    phases = page.get_by_role("list", name="Phases").bounding_box()
    assert list_box is not None
    assert phases is not None
    assert (phases["x"] >= list_box["x"] + list_box["width"]) == (columns == 2)
    assert columns == 2 or phases["y"] + phases["height"] <= list_box["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for control in page.get_by_role("banner").get_by_role("button").all():
        box = control.bounding_box()
        assert box is None or box["x"] + box["width"] <= width
    expect(button(shown, "Pause")).to_be_visible()
    expect(page.get_by_role("img", name="State diagram")).to_have_attribute("data-phase", "running")


def test_the_last_kernel_state_is_readable_when_the_kernel_is_gone(page: Page) -> None:
    shown = PanelPage(page, state=state(), kernel={"status": "idle"})
    shown.deliver(rows_message(0, rows(0, 10)))
    page.evaluate("window.model.widget_manager.kernel.change('dead')")
    shown.settle()
    expect(page.locator(".agentnb-state-word")).to_have_text("kernel gone")
    page.get_by_label("Filter events").fill("number 7")
    expect(page.get_by_role("log", name="Events").get_by_role("option")).to_have_count(1)
    expect(button(shown, "Pause")).to_be_disabled()
    assert shown.errors == []
