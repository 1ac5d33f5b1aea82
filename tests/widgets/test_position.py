"""The position: the strip goes to any event of a recording or a run, and every part shows the state at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import expect

from agentnb import SessionLoop, replay, tool
from agentnb.core.events import RunEnd
from agentnb.run import Replay
from agentnb.testing import ScriptedLLM, call
from tests.analysis.recordings import decided_run, read, write
from tests.benchmarks.models import Calling
from tests.benchmarks.test_loop import echo
from tests.designs import session_of_agents
from tests.widgets.pages import PanelPage, RecordedPanel
from tests.widgets.support import session, until


@pytest.fixture(scope="module")
def run() -> Any:
    return made(decided_run())


def made(coming: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine from a separate thread, because Playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coming).result()


async def long(calls: int) -> Any:
    """A run of four events for each call."""
    run = SessionLoop(Calling(calls), [tool(echo)]).start("go", name="long")
    await run
    return run


@pytest.fixture
def shown(show: Callable[..., PanelPage], run: Any) -> PanelPage:
    page = show(replay(run))
    page.page.set_viewport_size({"width": 900, "height": 800})
    page.settle()
    return page


def events(shown: PanelPage) -> str:
    return shown.page.locator(".agentnb-count").inner_text()


def test_the_slider_starts_before_the_first_event_and_covers_all_events(shown: PanelPage, run: Any) -> None:
    expect(shown.slider).to_have_attribute("aria-valuemax", str(len(run.events) - 1))
    expect(shown.slider).to_have_attribute("aria-valuenow", "-1")
    expect(shown.slider).to_have_attribute("aria-valuetext", "before the first event")
    assert events(shown) == "0 events"
    assert shown.errors == []


def test_the_slider_moves_to_any_position_forwards_and_backwards(shown: PanelPage, run: Any) -> None:
    for at in (len(run.events), 5, 12, 0, 7):
        shown.go_to(at)
        assert events(shown) == f"{at} event{'' if at == 1 else 's'}"
        assert shown.panel.run.position == at  # type: ignore[union-attr]
    assert shown.errors == []


def test_each_part_shows_the_state_at_the_position(shown: PanelPage, run: Any) -> None:
    asked = next(event.seq for event in run.events if event.type == "approval_request")
    shown.go_to(asked + 1)
    phase = shown.page.locator("[data-phase]").first
    shown.until(lambda: phase.get_attribute("data-phase") == shown.panel.run.phase != "idle", "its phase")  # type: ignore[union-attr]
    shown.page.get_by_role("tab", name="Trace").click()
    shown.until(lambda: shown.page.locator(".agentnb-trace-row").filter(has_text="write").count() > 0, "the call")
    shown.page.get_by_role("tab", name="Messages").click()
    shown.until(lambda: "It is done." not in shown.page.locator(".agentnb-said").first.inner_text(), "the moment")
    shown.go_to(len(run.events))
    shown.until(lambda: "It is done." in shown.page.locator(".agentnb-said").first.inner_text(), "the end")
    shown.go_to(asked + 1)
    shown.until(lambda: "It is done." not in shown.page.locator(".agentnb-said").first.inner_text(), "the moment again")


def test_a_question_is_shown_at_the_position_where_it_was_asked(shown: PanelPage, run: Any) -> None:
    waiting = shown.page.get_by_role("group", name="write")
    shown.go_to(1 + max(event.seq for event in run.events if event.type == "approval_request"))
    shown.until(lambda: waiting.count() == 4, "the four questions")
    assert "/etc/passwd" in waiting.last.inner_text()
    shown.go_to(len(run.events))
    shown.until(lambda: waiting.count() == 0, "nothing is asked at the end")


def spoken(answer: str, *, seconds: float = 1.0, pieces: int = 40, waits: float = 0.0) -> Replay:
    """Return a recording with an answer in a number of even pieces, after the run had waited for a person."""

    async def at_once() -> Any:
        run = SessionLoop(ScriptedLLM([answer])).start("go", name="spoken")
        await run
        return run

    run = made(at_once())
    start, end = (next(e.seq for e in run.events if e.type == type) for type in ("model_start", "model_end"))
    size = -(-len(answer) // pieces)
    timing = [
        [round(1000 * seconds * n / pieces), len(answer[size * (n - 1) : size * n])] for n in range(1, pieces + 1)
    ]
    events = [
        event.model_copy(
            update={"time": 1000.0 + (waits if event.seq >= start else 0) + (seconds if event.seq >= end else 0)}
        )
        for event in run.events
    ]
    events[end] = events[end].model_copy(update={"timing": timing})
    return Replay(events, run.loop, name="spoken")


def speaking(shown: PanelPage) -> str:
    return str(shown.page.evaluate("() => document.querySelector('.agentnb-stream-text')?.textContent ?? ''"))


# All texts shown during playback, independent of how often they are read.
NOTE_TYPED = """() => {
  window.typed = [];
  const note = () => {
    const text = document.querySelector(".agentnb-stream-text")?.textContent ?? "";
    if (text && text !== window.typed.at(-1)) window.typed.push(text);
  };
  const all = { childList: true, subtree: true, characterData: true };
  new MutationObserver(note).observe(document.getElementById("here"), all);
}"""


def typed(shown: PanelPage, enough: Callable[[list[str]], bool]) -> list[str]:
    """Play from the question until there is enough text, then fast to the end; return the texts shown meanwhile."""

    def seen() -> list[str]:
        return list(shown.page.evaluate("() => window.typed"))

    shown.go_to(3)
    shown.page.get_by_role("tab", name="Trace").click()
    shown.page.evaluate(NOTE_TYPED)
    press(shown, "Play")
    shown.until(lambda: enough(seen()), "a part of it")
    shown.page.get_by_role("combobox", name="Speed").select_option(value="20")
    shown.until(lambda: shown.position == 5, "the end")
    return seen()


def press(shown: PanelPage, name: str) -> None:
    shown.page.get_by_role("button", name=name, exact=True).click()


def test_an_answer_is_played_at_its_recorded_pace(show: Callable[..., PanelPage]) -> None:
    answer = "".join(f"{n} " for n in range(100))
    shown = show(spoken(answer, seconds=10))
    seen = typed(shown, lambda seen: len(seen) > 4)
    assert all(answer.startswith(text) for text in seen)
    assert seen == sorted(seen, key=len)
    shown.settle()
    assert speaking(shown) == ""


def test_an_answer_too_long_for_a_row_is_played_to_its_end(show: Callable[..., PanelPage]) -> None:
    answer = "".join(f"{n} " for n in range(3000))
    shown = show(spoken(answer, seconds=3, pieces=200))
    seen = typed(shown, lambda seen: answer.index(seen[-1] if seen else "") > len(answer) // 2)
    assert len(seen[-1]) == 1200


def test_playback_paused_within_an_answer_stops_there_and_continues(show: Callable[..., PanelPage]) -> None:
    answer = "".join(f"{n} " for n in range(100))
    shown = show(spoken(answer, seconds=30, pieces=290))
    shown.page.get_by_role("tab", name="Trace").click()
    shown.go_to(3)
    press(shown, "Play")
    shown.until(lambda: len(speaking(shown)) > 20, "a part of it")
    press(shown, "Pause")
    shown.settle()  # the text received by then is drawn
    held = speaking(shown)
    shown.settle()
    assert speaking(shown) == held
    assert shown.position == 3
    press(shown, "Play")
    shown.until(lambda: len(speaking(shown)) > len(held), "more of it")
    press(shown, "Back one event")  # moving to another position pauses playback
    expect(shown.page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    assert speaking(shown) == ""


def test_play_at_the_end_starts_from_the_beginning(show: Callable[..., PanelPage]) -> None:
    shown = show(spoken("x" * 400, seconds=30))
    shown.page.get_by_role("tab", name="Trace").click()
    shown.go_to(5)
    press(shown, "Play")
    shown.until(lambda: shown.position == 3 and speaking(shown), "the answer, once more")


def test_playback_stops_at_a_divergence_and_shows_both_sides(show: Callable[..., PanelPage], run: Any) -> None:
    class Hasty(SessionLoop):
        def advance(self, state: Any) -> Any:
            return RunEnd(reason="completed", output="hasty") if state.turn == 2 else super().advance(state)

        @classmethod
        def kind(cls) -> str:
            return "SessionLoop"

    other = Hasty(ScriptedLLM([]), [read, write], name="researcher")
    shown = show(replay(run, other))
    departs = shown.page.get_by_role("status", name="Difference from the recording")
    third = next(event.seq for event in run.events if event.type == "model_start" and event.turn == 3)
    shown.go_to(len(run.events))
    shown.until(departs.is_visible, "both sides")
    assert shown.position == third
    assert events(shown) == f"{third} events"
    words = departs.inner_text()
    assert f"Event {third} is not what the loop does now" in words
    assert "recorded model_start" in words
    assert "now run_end" in words
    assert '"output": "hasty"' in words
    expect(shown.page.get_by_role("button", name="Step", exact=True)).to_be_disabled()
    press(shown, "Back one event")
    shown.until(lambda: not departs.is_visible(), "here it agrees")
    press(shown, "Play")  # again up to this position, and not beyond
    shown.until(departs.is_visible, "both sides again")
    expect(shown.page.get_by_role("button", name="Play", exact=True)).to_be_visible()


def test_an_empty_recording_says_that_it_is_empty(show: Callable[..., PanelPage]) -> None:
    shown = show(replay(SessionLoop(ScriptedLLM(["x"])).start("go", name="nothing")))
    expect(shown.slider).to_have_attribute("aria-valuetext", "nothing is recorded")
    for name in ("Back one event", "Step", "Play"):
        expect(shown.page.get_by_role("button", name=name, exact=True)).to_be_disabled()


def test_keys_and_buttons_move_by_events_and_turns_and_to_the_ends(shown: PanelPage, run: Any) -> None:
    begins = [event.seq + 1 for event in run.events if event.type == "model_start"]
    shown.slider.focus()
    for key, at in (
        ("End", len(run.events)),
        ("ArrowLeft", len(run.events) - 1),
        ("Shift+ArrowLeft", begins[-1]),
        ("Shift+ArrowLeft", begins[-2]),
        ("Shift+ArrowRight", begins[-1]),
        ("Shift+ArrowRight", len(run.events)),
        ("Home", 0),
        ("Shift+ArrowRight", begins[0]),
        ("ArrowRight", begins[0] + 1),
    ):
        shown.page.keyboard.press(key)
        shown.settle()
        assert shown.position == at, key
        assert shown.panel.run.position == at  # type: ignore[union-attr]
    for name, at in (("Step", begins[0] + 2), ("Back one event", begins[0] + 1)):
        shown.page.get_by_role("button", name=name, exact=True).click()
        shown.settle()
        assert shown.panel.run.position == at  # type: ignore[union-attr]
    shown.go_to(0)
    expect(shown.page.get_by_role("button", name="Back one event")).to_have_attribute("aria-disabled", "true")


@pytest.mark.parametrize("unit", ["call", "turn", "phase"])
def test_a_step_ends_where_the_kernel_says(shown: PanelPage, run: Any, unit: str) -> None:
    expected = replay(run)
    shown.page.get_by_role("combobox", name="Unit of a step").select_option(unit)
    for _ in range(3):
        expected.step(unit)
        press(shown, "Step")
        shown.until(lambda: shown.position == expected.position, "the end of the step")
    assert shown.panel.run.position == expected.position  # type: ignore[union-attr]


def test_moves_of_the_replay_in_a_cell_move_the_slider(shown: PanelPage) -> None:
    replayed = shown.panel.run  # type: ignore[union-attr]
    replayed.step("turn")
    shown.until(lambda: shown.position == replayed.position, "the slider follows")
    replayed.to(1)
    shown.until(lambda: shown.position == 2, "the slider follows back")
    assert events(shown) == "2 events"


def test_a_position_is_sent_with_the_number_of_moves(run: Any) -> None:
    replayed = replay(run)
    replayed.to(5)
    first = replayed.place
    replayed.to(4)
    replayed.to(5)
    assert first[0] == replayed.place[0] == 6
    assert first[1] < replayed.place[1]


def test_a_single_part_follows_the_replay_backwards(page: Any, run: Any) -> None:
    replayed = replay(run)
    shown = PanelPage(page, RecordedPanel(replayed, parts=("events", "approvals")))
    replayed.to(len(run.events) - 1)
    shown.until(lambda: events(shown) == f"{len(run.events)} events", "all of them")
    replayed.to(max(event.seq for event in run.events if event.type == "approval_request"))
    shown.until(lambda: events(shown) == f"{replayed.position} events", "the moment")
    shown.until(lambda: page.get_by_role("group", name="write").count() == 4, "the questions")
    expect(page.get_by_role("button", name="Approve", exact=True).first).to_be_disabled()
    assert shown.errors == []
    shown.panel.close()  # type: ignore[union-attr]


def test_playback_runs_to_the_end_and_can_be_paused(show: Callable[..., PanelPage]) -> None:
    run = made(long(50))
    shown = show(replay(run))
    shown.page.get_by_role("combobox", name="Speed").select_option("without pauses")
    shown.page.get_by_role("button", name="Play", exact=True).click()
    shown.until(lambda: shown.position > 3, "it plays")
    shown.page.get_by_role("button", name="Pause", exact=True).click()
    shown.settle()
    held = shown.position
    assert held < len(run.events)
    shown.go_to(len(run.events) - 5)
    shown.page.get_by_role("button", name="Play", exact=True).click()
    shown.until(lambda: shown.position == len(run.events), "it plays to the end")
    expect(shown.page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    assert shown.errors == []


def test_a_filter_is_kept_while_the_position_changes(shown: PanelPage, run: Any) -> None:
    shown.go_to(len(run.events))
    shown.page.get_by_role("combobox", name="Type of event").select_option("call_start")
    shown.settle()
    starts = [event.seq for event in run.events if event.type == "call_start"]
    assert events(shown) == f"{len(starts)} of {len(run.events)}"
    shown.go_to(starts[1] + 1)
    assert events(shown) == f"2 of {starts[1] + 1}"


def test_nested_loops_that_have_not_started_are_not_shown(show: Callable[..., PanelPage]) -> None:
    async def nested() -> Any:
        run = session_of_agents().start("go", approve=True)
        await run
        return run

    run = made(nested())
    shown = show(replay(run))
    shown.go_to(len(run.events))
    shown.page.get_by_role("tab", name="Messages").click()
    choice = shown.page.get_by_role("combobox", name="Loop of messages")
    shown.until(lambda: choice.locator("option").count() == 5, "the loops, of which the kernel tells")
    shown.go_to(3)
    shown.until(choice.is_hidden, "none of them")
    shown.go_to(len(run.events))
    shown.until(lambda: choice.locator("option").count() == 5, "the loops again")
    assert shown.errors == []


def test_the_chosen_conversation_is_kept_when_the_position_moves_back(
    show: Callable[..., PanelPage],
) -> None:
    run = session_of_agents().start("go", approve=True)
    run.result(30)
    shown = show(replay(run))
    shown.go_to(len(run.events))
    shown.page.get_by_role("tab", name="Messages").click()
    choice = shown.page.get_by_role("combobox", name="Loop of messages")
    shown.until(lambda: choice.locator("option").count() == 5, "the loops")
    choice.select_option(index=1)
    chosen = choice.input_value()
    shown.go_to(len(run.events) - 1)
    shown.settle()
    expect(choice).to_have_value(chosen)


def test_a_recording_has_no_buttons_that_drive_a_run(shown: PanelPage) -> None:
    for name in ("Cancel", "Steer", "Snapshot"):
        expect(shown.page.get_by_role("button", name=name, exact=True)).to_have_count(0)


# -- a run that goes on


@pytest.fixture
def live(show: Callable[..., PanelPage]) -> PanelPage:
    """A run in which one of two calls waits for a person."""
    asks = [call("search", {"query": "q"}, id="s"), call("delete_file", {"path": "/a"}, id="d")]
    run = session(["I shall look.", [*asks], "It is done."])
    run.follow_up("Do it.")
    with ThreadPoolExecutor(1) as thread:  # Playwright has an event loop in this one
        thread.submit(run.play).result(30)
    until(lambda: run.pending)
    return show(run)


def test_a_live_run_is_shown_as_it_was_while_events_go_on_arriving(live: PanelPage) -> None:
    page, run = live.page, live.panel.run  # type: ignore[union-attr]
    button = page.get_by_role("button", name="Live", exact=True)
    live.until(lambda: events(live) == f"{len(run.events)} events", "all events")
    expect(button).to_have_attribute("aria-pressed", "true")
    second = [event.seq for event in run.events if event.type == "model_start"][1]
    live.go_to(second + 1)
    assert events(live) == f"{second + 1} events"
    expect(live.slider).to_have_attribute(
        "aria-valuetext", f"event {second} of {len(run.events) - 1}, model asked, turn 2"
    )
    expect(page.locator("[data-phase]").first).to_have_attribute("data-phase", "thinking")
    expect(page.locator(".agentnb-state-word")).to_have_text(f"as it was at #{second}")
    assert "turn 2 \u00b7 0 calls" in page.locator(".agentnb-facts").inner_text()
    page.get_by_role("tab", name="Messages").click()
    said = page.locator(".agentnb-said").first
    live.until(lambda: "Do it." in said.inner_text() and "delete_file" not in said.inner_text(), "the messages then")

    # The run ends, and the page still shows that moment.
    run.approve(run.pending[0])
    live.until(lambda: run.state.over and live.position != live.panel.run.position, "the end")  # type: ignore[union-attr]
    live.until(lambda: page.get_by_role("button", name="End", exact=True).is_visible(), "the way back")
    assert live.position == second + 1
    assert "It is done." not in said.inner_text()
    page.get_by_role("button", name="End", exact=True).click()
    live.until(lambda: "It is done." in said.inner_text(), "the newest messages")
    assert live.position == len(run.events)
    assert page.locator(".agentnb-strip-live").is_hidden()
    expect(live.slider).to_have_attribute(
        "aria-valuetext", f"event {len(run.events) - 1} of {len(run.events) - 1}, the end"
    )


def test_the_playhead_is_dragged_back_and_the_live_end_is_reached_again(live: PanelPage) -> None:
    page, run = live.page, live.panel.run  # type: ignore[union-attr]
    live.until(lambda: run.pending and live.position == len(run.events), "all events")
    live.settle()
    box = live.slider.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 80, box["y"] + 30, steps=4)
    live.settle()
    assert 0 < live.position < len(run.events)
    expect(page.get_by_role("button", name="Live", exact=True)).to_have_attribute("aria-pressed", "false")
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 30, steps=4)
    page.mouse.up()
    live.settle()
    expect(page.get_by_role("button", name="Live", exact=True)).to_have_attribute("aria-pressed", "true")
    live.slider.press("Home")
    live.settle()
    assert live.position == 0
    live.slider.press("l")
    live.settle()
    expect(page.get_by_role("button", name="Live", exact=True)).to_have_attribute("aria-pressed", "true")


def test_a_click_on_a_mark_goes_to_its_event_and_enter_opens_it(live: PanelPage) -> None:
    run = live.panel.run  # type: ignore[union-attr]
    message = next(event.seq for event in run.events if event.type == "message")

    def click() -> int:  # the run waits, so the axis changes until the wait is squeezed
        x = live.page.evaluate("() => document.querySelector('.agentnb-strip-person').getBBox().x + 5")
        live.slider.click(position={"x": x + 2, "y": 40})
        live.settle()
        return live.position

    live.until(lambda: click() == message + 1, "the message")
    live.slider.press("Enter")
    live.settle()
    details = live.page.get_by_role("region", name="Detail", exact=True)
    expect(details).to_contain_text(f"#{message}")


def test_the_menu_of_the_strip_shows_the_time_without_breaks(live: PanelPage) -> None:
    page = live.page
    live.slider.focus()
    for key in ("F10", "ContextMenu"):
        page.keyboard.press(key)
        item = page.get_by_role("menuitemcheckbox", name="Real time")
        expect(item).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("menu", name="Strip")).to_be_hidden()
        expect(live.slider).to_be_focused()
    page.keyboard.press("F10")
    page.keyboard.press("Enter")
    live.slider.click(button="right", position={"x": 200, "y": 20})
    expect(item).to_have_attribute("aria-checked", "true")
    page.keyboard.press("Escape")
    assert live.errors == []


def test_a_snapshot_taken_in_the_panel_has_a_ribbon_on_the_strip(live: PanelPage) -> None:
    page, run = live.page, live.panel.run  # type: ignore[union-attr]
    ribbons = page.locator(".agentnb-strip-mark")
    assert not ribbons.get_attribute("d")
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Snapshot", exact=True).click()
    live.until(lambda: ribbons.get_attribute("d"), "the ribbon")
    assert live.panel.status["snapshots"] == [len(run.events) - 1]  # type: ignore[union-attr]


# The time until each position is drawn, while the playhead is dragged from one place to another.
DRAG = """async ([from, to, steps]) => {
  const slider = document.querySelector("[role=slider]"), box = slider.getBoundingClientRect(), took = [];
  const point = (type, share) => {
    const at = { clientX: box.left + box.width * share, clientY: box.top + 20 };
    slider.dispatchEvent(new PointerEvent(type, { pointerId: 1, bubbles: true, ...at }));
  };
  slider.setPointerCapture = () => {};
  slider.hasPointerCapture = () => true;
  window.work.length = 0;
  point("pointerdown", from);
  for (let step = 0; step <= steps; step++) {
    const began = performance.now();
    point("pointermove", from + ((to - from) * step) / steps);
    await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    took.push(performance.now() - began);
  }
  point("pointerup", to);
  const spread = (numbers) => {
    const sorted = [...numbers].sort((one, other) => one - other);
    return [sorted[Math.floor(sorted.length / 2)], sorted.at(-1)];
  };
  const [median, longest] = spread(took), [typical, work] = spread(window.work);
  return { median, longest, typical, work };
}"""


@pytest.mark.alone
@pytest.mark.parametrize("kind", [pytest.param("recorded", marks=pytest.mark.sampled(1000)), "live"])  # nightly: both
@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.sampled(1000))])
def test_dragging_is_fast_in_a_long_run(
    kind: str, count: int, show: Callable[..., PanelPage], capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(long(count // 4))
    shown = show(replay(run) if kind == "recorded" else run)
    last = len(run.events)
    shown.until(lambda: shown.slider.get_attribute("aria-valuemax") == str(last - 1), "all events are on the page", 120)
    shown.slider.press("End")
    shown.until(lambda: events(shown) == f"{last:,} events", "the end", 120)
    for where, stretch in {"back": (0.99, 0.1), "on": (0.1, 0.99), "about the middle": (0.5, 0.52)}.items():
        took = shown.page.evaluate(DRAG, [*stretch, 40])
        shown.settle()
        with capsys.disabled():
            drawn = f"{took['median']:.0f} ms to a drawn moment, {took['longest']:.0f} at most"
            work = f"a frame's work {took['typical']:.1f} ms, {took['work']:.0f} at most"
            print(f"\n{last:,} {kind} events, dragged {where}: {drawn}; {work}")
        assert took["median"] < count / 100  # 17 ms measured
