"""The trace of the live panel, in a real browser: its rows are those of the saved panel, at every moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from agentnb import replay
from agentnb.core import events as e
from agentnb.core.events import Delta
from agentnb.core.messages import Message, ToolCall
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call
from agentnb.tools import tool
from agentnb.widgets.bundle import module
from agentnb.widgets.text import duration
from agentnb.widgets.views.rows import encode_rows
from agentnb.widgets.views.short import result_in_short
from agentnb.widgets.views.trace import Row, Trace
from tests import designs
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage, RecordedPanel, rows_message, state
from tests.widgets.support import HOSTILE, asking_everywhere, play, session, waiting
from tests.widgets.test_spans import stamped

pytestmark = pytest.mark.browser

READ = """grid => [...grid.querySelectorAll(":scope > .agentnb-trace-row")].map((row) => ({
  number: Number(row.dataset.row), level: Number(row.getAttribute("aria-level")),
  index: Number(row.getAttribute("aria-rowindex")),
  what: [...row.querySelector(".agentnb-what").children].filter((part) => !part.hidden).map((part) => part.textContent)
    .filter(Boolean),
  status: row.querySelector(".agentnb-glyph").dataset.status, took: row.querySelector(".agentnb-took").textContent,
}))"""
"""The rows that are drawn."""


def grid(page: Page) -> Locator:
    return page.get_by_role("treegrid", name="Trace")


def row(page: Page, words: str) -> Locator:
    return grid(page).get_by_role("row").filter(has_text=words)


def read(page: Page) -> list[dict[str, Any]]:
    """All rows of the trace, from top to bottom; the list is scrolled."""
    found: dict[int, dict[str, Any]] = {}
    scroller = page.locator(".agentnb-trace-scroll")
    for step in range(1000):
        at = scroller.evaluate("(list, y) => { list.scrollTop = y; return list.scrollTop; }", 200 * step)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found |= {one["index"]: one for one in grid(page).evaluate(READ)}
        if at < 200 * step:
            break
    return [found[index] for index in sorted(found)]


def flat(rows: Sequence[Row], level: int = 1) -> Iterator[tuple[int, Row]]:
    for one in rows:
        yield level, one
        yield from flat(one.inside, level + 1)


def check(page: Page, rows: Sequence[Row]) -> None:
    """Check that the page has these rows, each with its words, its mark and its time."""
    expected = list(flat(rows))
    shown = read(page)
    assert [one["number"] for one in shown] == [one.number for _, one in expected]
    for drawn, (level, one) in zip(shown, expected, strict=True):
        words = " ".join(drawn["what"])
        assert (drawn["level"], drawn["status"]) == (level, one.status)
        assert one.name.lower() in words.lower()
        assert one.shortened in words
        if one.kind == "call" and one.status == "done":
            assert result_in_short(one.result) in words
        if one.kind in ("message", "answer") or (one.kind == "turn" and not one.inside):
            assert one.text.strip().partition("\n")[0][:100] in words
        if one.seconds is not None and one.status == "done":
            assert drawn["took"] in (duration(one.seconds), "<1 ms")


def shown_trace(page: Page, run: Any, **options: Any) -> PanelPage:
    shown = PanelPage(page, RecordedPanel(run, **options), tab="Trace")
    shown.until(lambda: grid(page).count() == 1, "the trace")
    return shown


@pytest.fixture
def trace(page: Page) -> Iterator[Callable[..., PanelPage]]:
    shown: list[PanelPage] = []

    def make(run: Any, **options: Any) -> PanelPage:
        shown.append(shown_trace(page, run, **options))
        return shown[-1]

    yield make
    for one in shown:
        one.close()


def nested() -> Any:
    """A run in which three calls wait, one of them in each loop."""
    run = asking_everywhere()
    while len(run.pending) < 3:
        run.submit_step("call").result(30)
    return run


def count(page: Page) -> int:
    return int(grid(page).get_attribute("aria-rowcount") or 0)


@pytest.mark.parametrize("world", designs.WORLDS)
def test_the_live_page_has_the_rows_of_the_saved_panel(trace: Callable[..., PanelPage], world: str) -> None:
    run = designs.WORLDS[world]().start("go", approve=True)
    run.result(30)
    shown = trace(run)
    rows = Trace().follow(run.events).rows()
    shown.until(lambda: count(shown.page) == len(list(flat(rows))), "the rows")
    check(shown.page, rows)


@pytest.mark.parametrize("world", ["session", "loop_of_loops", "session_of_agents"])
def test_a_recording_has_the_rows_of_its_position(trace: Callable[..., PanelPage], world: str) -> None:
    run = designs.WORLDS[world]().start("go", approve=True)
    run.result(30)
    shown = trace(replay(run))
    total = len(run.events)
    for position in (total, total // 2, total // 3, total - 5, 0):
        shown.go_to(position)
        rows = Trace().follow(run.events[:position]).rows()
        shown.until(lambda rows=rows: count(shown.page) == len(list(flat(rows))), "the rows")  # type: ignore[misc]
        check(shown.page, rows)


def test_arrow_keys_walk_fold_and_unfold_the_tree(trace: Callable[..., PanelPage]) -> None:
    run = designs.WORLDS["loop_of_loops"]().start("go", approve=True)
    run.result(30)
    shown = trace(run)
    page = shown.page
    total = len(list(flat(Trace().follow(run.events).rows())))
    shown.until(lambda: count(page) == total, "the rows")
    grid(page).focus()
    chosen = page.locator(".agentnb-trace-row[aria-selected=true]")
    page.keyboard.press("Home")
    expect(chosen).to_contain_text("Pass 1")
    assert grid(page).get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    page.keyboard.press("ArrowRight")
    expect(chosen).to_contain_text("session")
    page.keyboard.press("ArrowLeft")  # folded
    expect(chosen).to_have_attribute("aria-expanded", "false")
    assert count(page) < total
    assert chosen.locator(".agentnb-track > i").count() > 1  # the bars of what is in it
    page.keyboard.press("ArrowDown")
    expect(chosen).not_to_contain_text("Turn")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(chosen).to_have_attribute("aria-expanded", "true")
    assert count(page) == total
    page.keyboard.press("ArrowRight")
    expect(chosen).to_contain_text("Turn 1")
    page.keyboard.press("ArrowLeft")  # folded
    page.keyboard.press("ArrowLeft")  # the row around it
    expect(chosen).to_contain_text("session")
    page.keyboard.press("End")
    expect(chosen).to_contain_text("Answer")
    expect(grid(page)).to_be_focused()


def test_what_is_folded_stays_folded_while_events_come(trace: Callable[..., PanelPage]) -> None:
    run = session([[call("search", {"query": "a"}, id="a")], [call("search", {"query": "b"}, id="b")], "Done."])
    run.submit_step("turn").result(30)
    shown = trace(run)
    page = shown.page
    shown.until(lambda: row(page, "search").count() == 1, "the first turn")
    row(page, "Turn 1").locator(".agentnb-fold").click()
    expect(row(page, "search")).to_have_count(0)
    run.result(30)
    shown.until(lambda: row(page, "Done.").count() == 1, "the end")
    expect(row(page, "search")).to_have_count(1)
    expect(row(page, "Turn 1")).to_have_attribute("aria-expanded", "false")


def test_a_click_selects_the_event_and_enter_shows_it(trace: Callable[..., PanelPage]) -> None:
    run = session([[call("search", {"query": "a"}, id="a")], "Done."])
    run.result(30)
    shown = trace(run)
    page = shown.page
    shown.until(lambda: row(page, "Done.").count() == 1, "the end")
    row(page, "search").click()
    expect(row(page, "search")).to_have_attribute("aria-selected", "true")
    grid(page).focus()
    page.keyboard.press("Enter")
    [start] = [event.seq for event in run.events if event.type == "call_start"]
    expect(page.get_by_role("region", name="Detail", exact=True)).to_contain_text(f"Event #{start}, as recorded")


def test_a_key_pauses_at_such_events_and_another_copies_the_code(trace: Callable[..., PanelPage]) -> None:
    run = session([[call("search", {"query": "a"}, id="a")], "Done."])
    run.submit_step("turn").result(30)
    shown = trace(run)
    page = shown.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown.until(lambda: row(page, "search").count() == 1, "the call")
    row(page, "search").click()
    page.keyboard.press("b")
    shown.until(lambda: "Breakpoint added" in page.locator(".agentnb-trace-note").inner_text(), "the breakpoint")
    assert [one.label for one in run.breakpoints] == ["call_start, tool search"]
    page.keyboard.press("c")
    [start] = [event.seq for event in run.events if event.type == "call_start"]
    expect(page.locator(".agentnb-trace-note")).to_contain_text(f"run.events[{start}]")


def test_a_model_writes_into_its_row_which_grows(trace: Callable[..., PanelPage]) -> None:
    run = session([[call("search", {"query": "a"}, id="a")], "Done."])
    run.submit_step("event").result(30)
    while not any(event.type == "model_start" for event in run.events):
        run.submit_step("event").result(30)
    shown = trace(run)
    page = shown.page
    shown.until(lambda: count(page) > 0, "the turn")
    assert shown.panel is not None
    feed = shown.panel._feed

    def say(*deltas: Any) -> None:
        for delta in deltas:
            feed._receive(Delta(path="", **delta))

    say({"type": "text_delta", "content": "It began"}, {"type": "text_delta", "content": " in 1899.\nThen"})
    grown = page.locator(".agentnb-grown-row")
    shown.until(lambda: grown.count() == 1 and "Then" in grown.inner_text(), "the text")
    expect(grown).to_contain_text("tokens")
    assert grown.get_attribute("role") == "row"
    assert grown.locator("> [role=gridcell]").count() == 1

    # It grows to eight lines, and follows its end.
    say({"type": "text_delta", "content": "".join(f"\nline {n}" for n in range(40))})
    shown.until(lambda: "line 39" in grown.inner_text(), "the lines")
    pre = grown.locator("pre")
    assert pre.evaluate("pre => pre.clientHeight") <= 152
    assert pre.evaluate("pre => pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4")
    pre.evaluate("pre => { pre.scrollTop = 0; }")
    say({"type": "text_delta", "content": "\nline 40"})
    shown.until(lambda: "line 40" in grown.inner_text(), "the next line")
    assert pre.evaluate("pre => pre.scrollTop") == 0

    # A call that is written is below the turn, with its arguments as text.
    say({"type": "tool_call_delta", "index": 0, "name": "write", "arguments": '{"name": "a.md", "text": "# One\\nTwo'})
    shown.until(lambda: "# One\nTwo" in grown.inner_text(), "the arguments")
    expect(grown).to_contain_text('write(name="a.md", text=…)')
    assert row(page, "It began in 1899.").count() == 1

    # The answer ends it.
    run.submit_step("event").result(30)
    shown.until(lambda: grown.count() == 0, "the end")


def test_a_call_reports_its_progress_in_its_row(trace: Callable[..., PanelPage]) -> None:
    run = nested()
    shown = trace(run)
    page = shown.page
    shown.until(lambda: count(page) == 8, "the rows")
    assert shown.panel is not None
    shown.panel._feed._receive(Delta(type="call_delta", path="", call_id="k1", data={"done": 3, "total": 4}))
    bar = page.get_by_role("progressbar")
    shown.until(lambda: bar.count() == 1, "the progress")
    assert bar.get_attribute("aria-valuenow") == "75"
    expect(row(page, "3 of 4")).to_have_count(1)
    expect(grid(page).get_by_role("group", name="Waiting calls")).to_have_count(1)  # in place of the calls that wait


GROW = """source => {
  const url = URL.createObjectURL(new Blob([source + "\\nexport { Trace, storeOf };"], { type: "text/javascript" }));
  return import(url).then(({ Trace, storeOf }) => {
    window.store = storeOf(window.model);
    window.trace = new Trace(window.store, () => {});
    const place = document.createElement("div");
    place.className = "agentnb agentnb-panel";
    place.style.cssText = "display: flex; flex-direction: column; height: 400px";
    place.append(window.trace.el);
    document.body.append(place);
    window.store.view(() => window.trace.draw());
    window.card = document.createElement("div");
    window.card.innerHTML = "<button>Yes</button><div style='height: 90px'></div>";
  });
}"""


def events_of(turns: int) -> list[Any]:
    events: list[e.Event] = [e.RunStart(loop="L", name="l")]
    for turn in range(1, turns + 1):
        made = Message(role="assistant", tool_calls=[ToolCall(id=f"c{turn}", name="f", arguments={"n": turn})])
        events += [
            e.ModelStart(turn=turn),
            e.ModelEnd(message=made),
            e.CallStart(call_id=f"c{turn}", name="f", arguments={"n": turn}),
            e.CallEnd(call_id=f"c{turn}", name="f", result=turn),
        ]
    return stamped(*events)


def batches(events: list[Any]) -> Iterator[dict[str, Any]]:
    trace = Trace().follow(events)
    for first in range(0, len(events), 2000):
        rows, _ = encode_rows(events[first : first + 2000], 10**9, trace)
        yield rows_message(first, [], len(events)) | {"rows": rows}


@pytest.fixture
def alone(page: Page) -> PanelPage:
    """A trace that the test can call, with 20 turns of a call each."""
    shown = PanelPage(page, state=state(parts=["trace"]), settle=False)
    page.evaluate(
        "() => { document.head.append(document.querySelector('[data-agentnb-style]'));"
        " document.querySelector('#here').remove(); }"
    )
    page.evaluate(GROW, module())
    for batch in batches(events_of(20)):
        shown.deliver(batch)
    shown.settle()
    return shown


def test_what_another_part_puts_in_the_place_of_a_row_moves_the_rows_below_it(alone: PanelPage) -> None:
    page = alone.page
    page.evaluate("() => { trace.grow('ask', 3, card); }")
    alone.settle()
    grown = page.locator(".agentnb-grown-row")
    page.locator(".agentnb-trace-scroll").evaluate("list => { list.scrollTop = 0; }")
    alone.settle()
    boxes = page.evaluate("""() => [...document.querySelectorAll(".agentnb-trace-grid > *")].map((node) => {
      const { top, height } = node.getBoundingClientRect();
      return [Number(node.dataset.row), top, height];
    })""")
    assert [number for number, *_ in boxes] == sorted(number for number, *_ in boxes)  # as they are seen
    assert [number for number, *_ in boxes].count(3) == 1
    for (_, top, height), (_, below, _) in pairwise(boxes):
        assert below == pytest.approx(top + height, abs=0.6)
    assert grown.get_attribute("aria-level") == "2"

    # The focus stays in it while rows come and go, and Escape goes back to the rows.
    page.evaluate("() => { trace.chosen = 3; trace.grid.focus(); }")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Yes")).to_be_focused()
    page.evaluate("() => { trace.fold(trace.store.trace.all[0], true); trace.draw(); }")
    expect(page.get_by_role("button", name="Yes")).to_be_focused()
    page.evaluate("() => { trace.scroller.scrollTop = 5000; trace.draw(); }")
    expect(page.get_by_role("button", name="Yes")).to_be_focused()
    page.keyboard.press("Escape")
    expect(grid(page)).to_be_focused()
    page.evaluate("() => trace.shrink('ask')")
    alone.settle()
    expect(grown).to_have_count(0)
    assert alone.errors == []


def test_what_is_put_under_a_row_leaves_the_row_and_is_not_higher_than_the_list(alone: PanelPage) -> None:
    page = alone.page
    page.evaluate("() => { card.lastChild.style.height = '3000px'; trace.grow('form', 2, card, { under: true }); }")
    page.evaluate("() => trace.reveal(2)")
    alone.settle()
    alone.settle()
    room = page.locator(".agentnb-trace-scroll").evaluate("list => list.clientHeight")
    assert page.locator(".agentnb-grown-row").evaluate("node => node.offsetHeight") <= room
    numbers = page.evaluate(
        """() => [...document.querySelectorAll(".agentnb-trace-grid > *")].map((node) => node.dataset.row)"""
    )
    assert numbers.count("2") == 2
    page.evaluate(
        "() => { trace.fold(trace.store.trace.all[2], true); trace.grow('inside', 3, document.createElement('p')); }"
    )
    alone.settle()
    assert page.evaluate("() => trace.folded.size") == 0  # it is unfolded, so that it can be seen


def test_only_rows_with_the_text_are_shown_and_those_around_them(alone: PanelPage) -> None:
    page = alone.page
    page.evaluate("() => trace.find('N=17')")
    assert count(page) == 2
    expect(row(page, "n=17")).to_have_class("agentnb-trace-row agentnb-found")
    page.evaluate("() => trace.find('no such thing')")
    expect(page.locator(".agentnb-trace-empty")).to_have_text("No row has this text.")
    page.evaluate("() => trace.find('')")
    assert count(page) == 40


def test_of_ten_thousand_rows_few_are_on_the_page(page: Page) -> None:
    shown = PanelPage(page, state=state(parts=["trace"]), settle=False)
    for batch in batches(events_of(5000)):
        shown.deliver(batch)
    shown.settle()
    assert count(page) == 10_000
    assert page.locator(".agentnb-trace *").count() < 1500
    expect(row(page, "n=5000")).to_have_count(1)  # it follows the end
    grid(page).focus()
    page.keyboard.press("Home")
    expect(row(page, "Turn 1").first).to_be_visible()
    assert page.locator(".agentnb-trace *").count() < 1500
    page.keyboard.press("ArrowLeft")
    assert count(page) == 9999
    assert shown.errors == []


def test_hostile_text_is_inert_and_visible(trace: Callable[..., PanelPage]) -> None:
    run = session([[call("search", {"query": HOSTILE}, id="a")], HOSTILE])
    run.steer(HOSTILE)
    run.result(30)
    shown = trace(run)
    page = shown.page
    shown.until(lambda: row(page, "<img").count() >= 2 or "run_end" in page.inner_text("#here"), "the rows")
    assert page.evaluate("() => window.hacked") is None
    assert page.locator(".agentnb-trace").locator("img, script, iframe, b b").count() == 0


def test_the_trace_has_no_accessibility_faults(trace: Callable[..., PanelPage]) -> None:
    run = nested()
    shown = trace(run)
    page = shown.page
    shown.until(lambda: count(page) == 8, "the rows")
    row(page, "critic").first.click()
    assert shown.panel is not None
    shown.panel._feed._receive(Delta(type="call_delta", path="", call_id="k1", data={"done": 3, "total": 4}))
    shown.until(lambda: page.get_by_role("progressbar").count() == 1, "the progress")
    assert faults(page) == []


def test_a_live_run_can_be_seen_as_it_was_and_its_bars_are_to_the_scale_of_the_strip(
    trace: Callable[..., PanelPage],
) -> None:
    run = session([[call("search", {"query": n}, id="a")] for n in "abc"] + ["Done."])
    run.result(30)
    shown = trace(run)
    page = shown.page
    shown.until(lambda: row(page, "Done.").count() == 1, "the end")
    bars = page.locator(".agentnb-trace-row .agentnb-track > i")
    at_the_end = bars.first.evaluate("bar => bar.style.left + bar.style.width")

    # Back: the rows of that moment, at the same places of the scale.
    slider = page.get_by_role("slider", name="Position")
    slider.focus()
    for _ in range(len(run.events) // 2):
        page.keyboard.press("ArrowLeft")
    position = len(run.events) - len(run.events) // 2
    rows = Trace().follow(run.events[:position]).rows()
    shown.until(lambda: count(page) == len(list(flat(rows))), "the rows")
    check(page, rows)
    assert bars.first.evaluate("bar => bar.style.left + bar.style.width") == at_the_end

    # And live again.
    slider.press("End")
    shown.until(lambda: row(page, "Done.").count() == 1, "the end, once more")


def test_rows_of_one_tool_can_be_told_apart_by_their_arguments(trace: Callable[..., PanelPage]) -> None:
    @tool
    def read(id: str) -> str:
        return f"a long text about {id}, " * 20

    run = SessionLoop(ScriptedLLM([[call("read", {"id": "p1"}), call("read", {"id": "p2"})], "Done."]), [read]).start(
        "Read."
    )
    run.result(30)
    shown = trace(run)
    shown.page.set_viewport_size({"width": 720, "height": 900})
    shown.settle()
    for words in ("p1", "p2"):
        given = row(shown.page, f'read(id="{words}")').locator(".agentnb-given")
        assert given.evaluate("node => node.scrollWidth <= node.clientWidth")


def test_a_run_that_began_without_a_turn_is_not_told_to_start(trace: Callable[..., PanelPage]) -> None:
    run = SessionLoop(ScriptedLLM(["Done."]), []).start("Hello.")
    run.submit_step("event").result(30)
    shown = trace(run)
    expect(shown.page.get_by_text("No turn or call yet.", exact=True)).to_be_visible()
    expect(shown.page.get_by_text("Nothing has happened")).to_be_hidden()


def test_a_decided_call_shows_the_arguments_that_ran_and_its_detail_the_earlier_ones(
    trace: Callable[..., PanelPage],
) -> None:
    run = waiting("/a", "/b")
    page = (shown := trace(run)).page
    shown.until(lambda: page.get_by_role("group", name="delete_file", exact=True).count() == 2, "the questions")
    run.edit("c0", {"path": "/elsewhere"})
    decided = page.locator(".agentnb-was")
    shown.until(decided.count, "the decision")
    expect(decided).to_contain_text('delete_file(path="/elsewhere")')
    expect(decided).to_contain_text("edited and approved by code")
    expect(decided.get_by_title('delete_file(path="/a")')).to_be_visible()
    run.reject("c1", "keep it")
    play(run)
    shown.until(lambda: run.state.over, "the end")
    shown.until(row(page, "keep it").count, "the rejected call")
    assert row(page, "keep it").inner_text().count("rejected") == 1
    row(page, "/elsewhere").click()
    detail = page.get_by_role("region", name="Detail", exact=True)
    expect(detail.get_by_role("heading", name="Before the edit")).to_be_visible()
    expect(detail).to_contain_text("/a")
