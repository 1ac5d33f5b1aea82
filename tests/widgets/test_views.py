"""The views of the panel, in a real browser: tabs, causes, strip, messages, progress, usage."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from agentnb import restore
from agentnb.core.events import Delta
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, text
from agentnb.tools import tool
from agentnb.widgets import PARTS
from agentnb.widgets.views.spans import Spans
from agentnb.widgets.views.strip import strip
from tests.benchmarks.panel_stream import measure
from tests.loops.execution_world import World, c, solution
from tests.widgets.axe import faults
from tests.widgets.pages import PanelPage, RecordedPanel, rows, rows_message, state
from tests.widgets.support import HOSTILE, asking_inside, delete_file, pauses, session

pytestmark = pytest.mark.browser

USED = {"type": "usage", "input_tokens": 1200, "output_tokens": 30, "cost": 0.0123}


@tool
async def rest(seconds: float) -> str:
    """Rest."""
    await asyncio.sleep(seconds)
    return "rested"


@tool
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


def busy() -> Any:
    """Return a run of two turns: three concurrent calls, of which one fails and one needs approval; then an answer."""
    calls = [call("rest", {"seconds": 0.1}, id="r"), call("fail", {"why": "no road"}, id="f"),
             call("delete_file", {"path": "/a"}, id="d")]  # fmt: skip
    thought = {"type": "reasoning_delta", "content": "Rest first."}
    model = ScriptedLLM([[thought, *text("At once."), *calls, USED], [*text("That is all."), USED]])
    return SessionLoop(model, [rest, fail, delete_file], system_prompt="Be quick.").start("go", name="busy")


def played(run: Any) -> Any:
    run.submit_step("turn").result(30)
    for item in run.pending:
        run.approve(item)
    run.result(30)
    return run


def tab(page: Page, name: str) -> Locator:
    return page.get_by_role("tab", name=name, exact=True)


def option(page: Page, words: str) -> Locator:
    return page.get_by_role("log").get_by_role("option").filter(has_text=words)


def selected(page: Page) -> str:
    return str(page.locator("[aria-selected=true][data-row]:visible").first.inner_text())


def come(shown: PanelPage, words: str = "run_end") -> None:
    shown.until(lambda: words in shown.page.inner_text("#here"), words)


# -- tabs --------------------------------------------------------------------------------------------------------------


def test_views_have_tabs_that_arrow_keys_change(show: Callable[[Any], PanelPage]) -> None:
    shown = show(played(busy()))
    come(shown)
    page = shown.page
    expect(tab(page, "Events")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tabpanel", name="Events")).to_be_visible()
    tab(page, "Events").focus()
    for key, name in [("ArrowRight", "Messages"), ("ArrowRight", "Usage"),
                      ("ArrowRight", "Trace"), ("ArrowLeft", "Usage"), ("Home", "Trace"),
                      ("End", "Usage")]:  # fmt: skip
        page.keyboard.press(key)
        expect(tab(page, name)).to_be_focused()
        expect(page.get_by_role("tabpanel")).to_have_count(1)
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
    assert page.locator("[role=tab][tabindex='0']").count() == 1


def test_the_strip_alone_has_no_tabs_and_shows_the_event(page: Page) -> None:
    run = played(busy())
    shown = PanelPage(page, RecordedPanel(run, parts=("timeline",)))
    shown.until(lambda: shown.position == len(run.events), "all events")
    expect(page.get_by_role("tab")).to_have_count(0)
    shown.go_to(next(event.seq for event in run.events if event.type == "call_start") + 1)
    shown.slider.press("Enter")
    detail = page.get_by_role("region", name="Detail", exact=True)
    expect(detail).to_contain_text("as recorded")
    detail.get_by_text("as recorded").click()
    expect(detail).to_contain_text("call_start")
    detail.get_by_role("button", name="Close").click()
    expect(detail).to_be_hidden()
    assert shown.errors == []


def test_each_part_alone_has_no_error(page: Page) -> None:
    for part in PARTS:
        page.goto("about:blank")
        shown = PanelPage(page, state=state(parts=[part], key=part), settle=False)
        shown.deliver(rows_message(0, rows(0, 3)))
        shown.deliver({"type": "live", "lines": []})
        shown.settle()
        assert shown.errors == [], part


# -- what led to what --------------------------------------------------------------------------------------------------


def test_the_cause_of_an_event_is_reached_by_key_and_by_click_and_back(show: Callable[[Any], PanelPage]) -> None:
    shown = show(played(busy()))
    come(shown)
    page = shown.page
    option(page, "delete_file returned").click()
    for words in ("call_start", "approval_decision", "approval_request", "model_end", "model_start"):
        page.keyboard.press("ArrowLeft")
        if words == "call_start":  # the list has the focus after a click in it
            expect(page.get_by_role("listbox", name="Events, newest last")).to_be_focused()
        assert words in selected(page)
    page.keyboard.press("ArrowRight")
    assert "model_end" in selected(page)
    links = page.locator(".agentnb-links")
    page.get_by_text("as recorded").click()
    expect(links).to_contain_text("Caused by")
    expect(links).to_contain_text("Led to")
    links.get_by_role("button", name="approval_request").click()
    expect(page.locator(".agentnb-log [aria-selected=true]")).to_contain_text("approval_request")


def test_going_to_a_cause_that_the_filter_hides_clears_the_filter(show: Callable[[Any], PanelPage]) -> None:
    shown = show(played(busy()))
    come(shown)
    page = shown.page
    page.get_by_label("Type of event").select_option("call_end")
    option(page, "delete_file returned").click()
    page.keyboard.press("ArrowLeft")
    assert "call_start" in selected(page)
    expect(page.get_by_label("Type of event")).to_have_value("")


def test_events_are_filtered_by_tool_and_by_error(show: Callable[[Any], PanelPage]) -> None:
    shown = show(played(busy()))
    come(shown)
    page = shown.page
    options = page.get_by_role("log").get_by_role("option")
    page.get_by_label("Tool of event").select_option("delete_file")
    expect(options).to_have_count(4)
    expect(options.nth(1)).to_contain_text("delete_file approved by code")
    errors = page.get_by_role("button", name="Errors", exact=True)
    errors.click()
    expect(errors).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("log")).to_contain_text("No event matches the filter.")
    page.get_by_label("Tool of event").select_option("")
    expect(options).to_have_count(1)
    expect(options).to_contain_text("fail raised: ValueError: no road")


def test_data_that_a_page_discarded_is_fetched_on_request(page: Page) -> None:
    shown = PanelPage(page, state=state())
    page.evaluate("""() => {
        for (let batch = 0; batch < 80; batch++) {
            const rows = [...Array(128).keys()].map((n) => ({ seq: 128 * batch + n, time: 1, type: "call_end",
                group: "call", summary: `number ${128 * batch + n}`, data: { result: "x".repeat(3900) } }));
            const from = 128 * batch;
            window.model.deliver({ type: "events", from, total: 10240, now: 1, rows: JSON.stringify(rows) });
        }
    }""")
    shown.settle()
    option(page, "number 10239").click()
    assert shown.sent("show") == []
    page.keyboard.press("Home")
    shown.settle()  # it is drawn in the next frame
    [asked] = shown.sent("show")
    assert asked["seq"] == 0
    shown.deliver({"type": "shown", "token": asked["token"], "text": "all of it", "length": 9})
    expect(page.get_by_role("region", name="Detail", exact=True)).to_contain_text("all of it")


# -- strip -------------------------------------------------------------------------------------------------------------


def shapes(page: Page, kind: str) -> int:
    """Return how many bars of this kind the strip has."""
    return (page.locator(f".agentnb-strip-{kind}").first.get_attribute("d") or "").count("M")


def test_the_strip_has_bars_to_scale_for_what_ran_and_what_waited(show: Callable[[Any], PanelPage]) -> None:
    run = played(busy())
    shown = show(run)
    come(shown)
    page = shown.page
    shown.until(lambda: shapes(page, "model"), "the bars")
    known = strip(
        run.events, Spans().follow(run.events), width=page.locator(".agentnb-strip-slider").bounding_box()["width"] - 71
    )  # type: ignore[index]
    first = next(bar for bar in known.bars if bar.lane == "model")
    x = float((page.locator(".agentnb-strip-model").get_attribute("d") or "")[1:].split(" ")[0])
    assert x == pytest.approx(60 + first.start + 2, abs=1)  # after its round corner
    assert shapes(page, "wait") == 1
    assert shapes(page, "error") == 1
    assert shapes(page, "person") == 2  # the message, and the decision
    assert shapes(page, "call") >= 1
    numbers = page.locator(".agentnb-strip-text-turn").all_text_contents()
    assert numbers == [str(n + 1) for n in range(len(numbers))] != []


def test_a_call_lost_in_a_crash_is_a_wait_on_the_strip(show: Callable[[Any], PanelPage]) -> None:
    run = played(busy())
    start = next(event.seq for event in run.events if event.type == "call_start" and event.call_id == "d")
    other = restore(run.at(start).snapshot(), run.loop)
    for item in other.pending:
        other.answer(item, "gone")
    shown = show(other)
    come(shown, "call_end")
    shown.until(lambda: shapes(shown.page, "wait"), "the waits")
    known = strip(other.events, Spans().follow(other.events))
    assert [bar.name for bar in known.bars if bar.wait] == ["delete_file"] * shapes(shown.page, "wait")


def test_a_call_that_waited_for_another_has_a_link_to_it(show: Callable[[Any], PanelPage]) -> None:
    calls = [c("sum", "†state.sum", p="†state.profile"), c("fetch", "†state.profile", u="†input.u")]
    loop = World().loop([*solution(*calls, pieces=1)], solution(output="Done."), name="both")
    shown = show(played(loop.start(None)))
    come(shown)
    page = shown.page
    option(page, "sum(").filter(has_text="call_start").click()
    detail = page.get_by_role("region", name="Detail", exact=True)
    expect(detail.get_by_text("Waited for", exact=True).first).to_be_visible()
    detail.get_by_text("as recorded").click()
    links = page.locator(".agentnb-links")
    expect(links).to_contain_text("Waited for")
    links.get_by_role("button", name="call_end").first.click()
    expect(page.locator(".agentnb-log [aria-selected=true]")).to_contain_text("fetch returned")


def test_empty_views_say_what_to_do(show: Callable[[Any], PanelPage]) -> None:
    shown = show(session(["Hello."]))
    page = shown.page
    tab(page, "Trace").click()
    expect(page.get_by_text("Nothing has happened yet.", exact=True)).to_be_visible()
    for name, words in [("Events", "events"), ("Messages", "messages")]:
        tab(page, name).click()
        there = page.get_by_text(f"No {words} yet. Step or Play starts the run.")
        shown.until(there.is_visible, words)
    tab(page, "Events").click()
    page.get_by_role("button", name="Play").click()
    come(shown)
    page.get_by_label("Filter events").fill("no such thing")
    expect(page.get_by_text("No event matches the filter.")).to_be_visible()
    page.get_by_role("button", name="Show all events").click()
    expect(option(page, "run_end")).to_have_count(1)
    expect(page.get_by_label("Filter events")).to_be_focused()


@pytest.mark.parametrize(
    ("part", "words"),
    [("approvals", "No call waits"), ("graph", "No loop of this run has a call graph"),
     ("progress", "No running call reports"), ("events", "run.play() starts the run")],
)  # fmt: skip
def test_an_empty_part_alone_says_that_it_is_empty(page: Page, part: str, words: str) -> None:
    page.goto("about:blank")
    run = session(["Hello."])
    shown = PanelPage(page, RecordedPanel(run, parts=(part,)))
    box, told = page.locator(".agentnb").bounding_box(), page.get_by_text(words).bounding_box()
    assert box
    assert told
    assert told["y"] + told["height"] <= box["y"] + box["height"]
    assert shown.panel is not None
    shown.panel.close()


def test_nested_loops_are_a_lane_and_open_bars_grow(show: Callable[[Any], PanelPage]) -> None:
    run = asking_inside()
    run.play()
    shown = show(run)
    page = shown.page
    shown.until(lambda: run.pending and shapes(page, "wait"), "the question")
    names = page.locator(".agentnb-strip text").all_text_contents()
    assert names[:5] == ["loops", "model", "calls", "you", "turn"]
    shown.until(lambda: "worker" in page.locator(".agentnb-strip-text-loop").all_text_contents(), "the loop")
    waited = page.locator(".agentnb-strip-text-wait")
    shown.until(waited.count, "the seconds")
    before = waited.text_content()
    shown.until(lambda: waited.text_content() != before, "time goes on")


def test_the_elapsed_time_advances_while_a_span_is_open(show: Callable[[Any], PanelPage]) -> None:
    run = asking_inside()
    run.play()
    shown = show(run)
    shown.until(lambda: run.pending, "the question")
    tab(shown.page, "Usage").click()
    taken = shown.page.get_by_role("region", name="Tokens, cost and time").locator(".agentnb-fact").first
    shown.until(lambda: "s" in taken.inner_text(), "the time")
    before = taken.inner_text()
    shown.until(lambda: taken.inner_text() != before, "time goes on")


def test_ten_thousand_spans_are_few_bars_of_the_strip(page: Page) -> None:
    loop = {"number": 0, "kind": "loop", "name": "long", "path": "", "opened": 1000, "depth": 0, "parent": None}
    made: list[dict[str, Any]] = [{"seq": 0, "time": 1000, "type": "run_start", "group": "run", "summary": "",
                                   "span": 0, "spans": [loop]}]  # fmt: skip
    for n in range(1, 10_001):
        row = {"span": n, "summary": "", "group": "call", "data": {"call_id": f"c{n}"}}
        ran = {"kind": "run", "start": 1000 + n, "end": None, "position": 2 * n - 1, "since": 1000 + n, "after": None}
        opened = {"number": n, "kind": "call", "name": f"call {n}", "path": "", "opened": 1000 + n, "depth": 1,
                  "parent": 0, "call": f"c{n}", "intervals": {"0": ran}}  # fmt: skip
        ended = {"number": n, "ended": 1000 + n + 0.5, "intervals": {"0": {"end": 1000 + n + 0.5}}}
        made.append({"seq": 2 * n - 1, "time": 1000 + n, "type": "call_start", "spans": [opened], **row})
        made.append({"seq": 2 * n, "time": 1000 + n + 0.5, "type": "call_end", "spans": [ended], **row})
    shown = PanelPage(page, state=state())
    for first in range(0, len(made), 4000):
        shown.deliver(rows_message(first, made[first : first + 4000]))
    shown.settle()
    shown.until(lambda: shown.position == 20_001, "all events")
    shown.until(lambda: shapes(page, "call"), "the bars")
    assert shapes(page, "call") < 1000  # of each pixel, one
    assert page.locator(".agentnb-strip *").count() < 200


def test_the_diagram_shows_the_path_taken_the_counts_and_the_last_arrow(
    show: Callable[[Any], PanelPage],
) -> None:
    again = [call("delete_file", {"path": "/a"})]
    run = session([again, again, "ok"], approve=True)
    run.result(30)
    shown = show(run)
    page = shown.page
    image = page.get_by_role("img", name="State diagram")
    shown.until(lambda: image.locator(".agentnb-latest").count() == 2, "the last arrow and its head")
    told = image.get_attribute("aria-description") or ""
    assert "Taken: idle to listening; listening to thinking" in told
    assert "thinking to acting, 2 times" in told
    last = image.locator(".agentnb-arrow.agentnb-latest title")
    expect(last).to_have_text("thinking to done")


def test_a_range_of_the_strip_shows_its_sums_until_escape(show: Callable[[Any], PanelPage]) -> None:
    run = played(busy())
    shown = show(run)
    come(shown)
    page = shown.page
    group = page.get_by_role("group", name="Range")
    expect(group).to_be_hidden()
    box = shown.slider.bounding_box()
    assert box is not None
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 60, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 20)
    shown.draw()
    page.mouse.up()
    page.keyboard.up("Shift")
    before = shown.position
    spent = Spans().follow(run.events).spent
    words = group.inner_text().replace("\n", " ")
    assert f"#0 to #{len(run.events) - 1}" in words
    assert "3 calls" in words
    assert "2,400 tokens in, 60 out" in words
    for name, kind in (("calls", "call"), ("you", "wait")):
        said = re.search(rf"{name} +([\d.]+) (ms|s)", words)
        assert said is None or abs(float(said[1]) / (1000 if said[2] == "ms" else 1) - spent[kind]) < 0.01
    assert shown.position == before, "the shown moment stays"
    assert faults(page) == []
    page.keyboard.press("Escape")
    expect(group).to_be_hidden()

    # By keyboard: from the playhead to where it is moved.
    shown.go_to(3)
    shown.slider.press("F10")
    page.get_by_role("menuitem", name="Measure from here").click()
    shown.slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    shown.draw()
    expect(group).to_contain_text("#2 to #6")
    page.get_by_role("button", name="Clear the range").click()
    expect(group).to_be_hidden()


# -- messages ----------------------------------------------------------------------------------------------------------


def test_messages_have_roles_calls_with_results_and_folded_reasoning(show: Callable[[Any], PanelPage]) -> None:
    shown = show(played(busy()))
    come(shown)
    page = shown.page
    tab(page, "Messages").click()
    articles = page.get_by_role("article")
    shown.until(lambda: articles.count() == 4, "the messages")
    assert [one.get_attribute("data-role") for one in articles.all()] == ["system", "user", "assistant", "assistant"]
    asked = articles.nth(2)
    expect(asked).to_contain_text("At once.")
    expect(asked.get_by_text("Rest first.")).to_be_hidden()
    asked.get_by_text("reasoning", exact=True).click()
    expect(asked.get_by_text("Rest first.")).to_be_visible()
    asked.get_by_text("delete_file", exact=True).click()
    expect(asked.get_by_text("deleted /a False 3").last).to_be_visible()
    line = r'delete_file\(path="/a"\) → deleted /a False 3 · approved by code at [\d:]+$'
    expect(asked.locator("summary", has_text="delete_file")).to_have_text(re.compile(line))
    asked.get_by_role("button", name="Event").first.click()
    expect(page.get_by_role("tabpanel", name="Events")).to_be_visible()
    assert "model_end" in selected(page)


MARKDOWN = """# Agent *loops*

Here is a **short** summary, with `code **as it is**` and snake_case_names, 2 * 3 * 4, ~~not this~~ \\*nor this\\*;
a [paper](https://example.org/a_(b)?c=1), not [this](javascript:boom()) nor ![that](https://example.org/i.png).

| paper | year |
|:--|--:|
| Why \\| loops | 2017 |
| more `a|b` | <b>2020</b> |

3. First

   - inner *one*
   - [x] inner two
4. Second

> A quote
> - in it a list

```python
def f(x):
    return "**no**"
```
---
    indented
"""


def test_the_markdown_of_a_model_is_shown_as_elements_and_as_source(show: Callable[[Any], PanelPage]) -> None:
    shown = show(
        played(session([[*text("One."), call("move_file", {"source": "a\nb", "target": "b"}, id="m")], MARKDOWN]))
    )
    page = shown.page
    tab(page, "Messages").click()
    made = page.locator(".agentnb-markdown")
    shown.until(made.count, "the answer")
    assert page.locator("details.agentnb-made").evaluate("node => node.clientHeight") < 30, "a folded call is one line"
    assert made.get_by_role("heading").all_inner_texts() == ["Agent loops"]
    assert made.locator("em").all_inner_texts() == ["loops", "one"]
    assert made.locator("b").all_inner_texts() == ["short"]
    assert made.locator("s").all_inner_texts() == ["not this"]
    assert made.locator(":not(pre) > code").all_inner_texts() == ["code **as it is**"]
    assert made.locator(".agentnb-markdown-link").all_inner_texts() == ["paper"]
    for words in (
        "snake_case_names, 2 * 3 * 4,",
        "*nor this*",
        "paper (https://example.org/a_(b)?c=1), not [this](javascript:boom()) nor ![that](https://example.org/i.png).",
    ):
        expect(made).to_contain_text(words)
    assert made.get_by_role("columnheader").all_inner_texts() == ["paper", "year"]
    assert made.get_by_role("cell").all_inner_texts() == ["Why | loops", "2017", "more `a", "b` | <b>2020</b>"]
    assert made.locator("ol").get_attribute("start") == "3"
    assert made.locator("ol > li > ul > li").all_inner_texts() == ["inner one", "\u2611 inner two"]
    expect(made.locator("blockquote li")).to_have_text("in it a list")
    assert made.locator("pre").all_inner_texts() == ['def f(x):\n    return "**no**"', "indented"]
    expect(made.locator("hr")).to_have_count(1)
    assert made.locator("a, img, script").count() == 0
    assert faults(page) == []

    source = page.get_by_role("button", name="Source")
    source.click()
    expect(made).to_have_count(0)
    expect(page.get_by_role("article").last).to_contain_text("| Why \\| loops | 2017 |")
    source.press("Enter")
    expect(made).to_have_count(1)


def test_text_is_shown_while_it_streams_and_then_as_a_message(show: Callable[[Any], PanelPage]) -> None:
    seen = threading.Event()
    run = session([chain(text("Once upon a time"), pauses(seen.is_set), text(" it ended."))])
    shown = show(run)
    page = shown.page
    tab(page, "Messages").click()
    run.play()
    speaking = page.locator(".agentnb-speaking")
    shown.until(lambda: "upon a time" in (speaking.text_content() or ""), "the text on its way")
    seen.set()
    shown.until(lambda: page.get_by_role("article").count() == 2, "the message")
    expect(page.get_by_role("article").nth(1)).to_contain_text("Once upon a time it ended.")
    shown.until(speaking.is_hidden, "nothing on its way")


def test_the_messages_of_a_nested_loop_can_be_chosen_and_opened_items_stay_open(
    show: Callable[[Any], PanelPage],
) -> None:
    run = asking_inside()
    run.play()
    shown = show(run)
    page = shown.page
    shown.until(lambda: run.pending, "the question")
    tab(page, "Messages").click()
    articles = page.get_by_role("article")
    shown.until(lambda: articles.count() == 2, "the messages of the only loop that has any")
    expect(page.get_by_label("Loop of messages").locator("option:checked")).to_have_text("worker")
    fold = articles.nth(1).locator("details")
    expect(fold).to_contain_text("waiting for a decision")
    fold.locator("summary").click()
    run.approve("worker/c0")
    shown.until(lambda: "deleted /a" in articles.nth(1).inner_text(), "the result in the fold that was opened")
    page.get_by_label("Loop of messages").select_option("")
    shown.until(lambda: articles.count() == 0, "the outermost loop's")
    expect(page.get_by_text("No messages.")).to_be_visible()


# -- progress and what was taken ---------------------------------------------------------------------------------------


def test_a_running_call_has_a_bar_or_a_text_of_its_progress(show: Callable[[Any], PanelPage]) -> None:
    @tool
    async def work(kind: str, progress: Any) -> str:
        """Work."""
        progress({"done": 3, "total": 4, "file": "c.txt"} if kind == "bar" else "first line\nsecond line")
        await asyncio.sleep(30)
        return "done"

    calls = [call("work", {"kind": "bar"}, id="b"), call("work", {"kind": "words"}, id="w")]
    run = SessionLoop(ScriptedLLM([calls]), [work]).start("go")
    run.play()
    shown = show(run)
    page = shown.page
    tab(page, "Trace").click()
    lines = page.get_by_role("treegrid", name="Trace").get_by_role("row").filter(has_text="work(")
    shown.until(lambda: lines.filter(has_text="3 of 4").count() == 1, "the progress")
    bar = page.get_by_role("progressbar", name="work")
    expect(bar).to_have_attribute("aria-valuenow", "75")
    expect(lines.first).to_contain_text("3 of 4 · c.txt")
    expect(lines.nth(1)).to_contain_text("second line")
    expect(lines.nth(1)).not_to_contain_text("first line")
    run.cancel()
    shown.until(lambda: not bar.count(), "the end of it")


def test_usage_is_shown_in_total_and_by_turn(show: Callable[[Any], PanelPage]) -> None:
    shown = show(played(busy()))
    come(shown)
    page = shown.page
    tab(page, "Usage").click()
    strip = page.get_by_role("region", name="Tokens, cost and time")
    for words in ("input tokens 2,400", "output tokens 60", "cost $0.0246", "waiting for you"):
        expect(strip).to_contain_text(words)
    turns = strip.get_by_role("row")
    expect(turns).to_have_count(3)
    expect(turns.nth(1)).to_contain_text("turn 1")
    assert [cell.inner_text() for cell in turns.nth(1).get_by_role("cell").all()][1] == "3"
    turns.nth(2).get_by_role("button", name="turn 2").click()
    assert "model_start" in selected(page)


# -- what others say, and looks ----------------------------------------------------------------------------------------


ATTRIBUTES = """() => [...document.querySelectorAll('#here *')].flatMap((node) => [...node.attributes])
    .filter((one) => one.name !== 'value').map((one) => one.value).join()"""


def hostile_run() -> Any:
    said = HOSTILE.replace("\ud800", "\ufffd")

    @tool
    async def work(text: str, progress: Any) -> str:
        """Work."""
        progress({"done": 1, "total": 2, said: said})
        await asyncio.sleep(30)
        return said

    thought = {"type": "reasoning_delta", "content": said}
    calls = [call(said, {said: said}, id=said), call("work", {"text": said}, id="w")]
    usage = {"type": "usage", f"{said} tokens": 3}
    loop = SessionLoop(ScriptedLLM([[thought, *text(said), *calls, usage]]), [work], name="l", system_prompt=said)
    return loop.start(said, name=said)


def test_hostile_text_is_neither_executed_nor_hidden_in_any_view(page: Page) -> None:
    page.add_init_script("window.boomed = 0; window.boom = () => { window.boomed += 1; };")
    page.goto("about:blank")
    run = hostile_run()
    run.play()
    panel = RecordedPanel(run)
    shown = PanelPage(page, panel, tab="Trace")
    shown.until(lambda: page.get_by_role("progressbar").count(), "the progress")
    run.watch(lambda news: None)
    panel._feed._receive(Delta(type="call_delta", call_id=HOSTILE, data=HOSTILE, path=HOSTILE))
    panel._feed._receive(Delta(type="text_delta", content=HOSTILE))
    seen = ""
    for name in ("Trace", "Events", "Usage", "Messages"):
        tab(page, name).click()
        if name == "Messages":
            shown.until(lambda: page.get_by_role("article").count() >= 3, "the messages")
            for fold in page.locator("article summary").all():
                fold.click()
        shown.settle()
        seen = page.inner_text("#here")
        assert "<script>boom()</script>" in page.get_by_role("tabpanel").inner_text()
        told = page.evaluate(ATTRIBUTES)
        assert "\u202e" not in told + page.inner_text("#here")
    shown.settle()
    assert "␛[31m" in seen
    assert page.evaluate("window.boomed") == 0
    assert page.locator("#here :is(script, img:not([role]), [onerror], [onload], [href])").count() == 0
    assert shown.errors == []
    run.cancel()
    panel.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 360])
def test_every_view_is_readable_and_nothing_is_cut_off(browser: Browser, scheme: Any, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 1200}, color_scheme=scheme)
    run = busy()
    run.submit_step("turn").result(30)
    panel = RecordedPanel(run)
    shown = PanelPage(context.new_page(), panel)
    page = shown.page
    come(shown, "approval_request")
    panel._feed._receive(Delta(type="call_delta", call_id="r", data=0.4))
    for name in ("Trace", "Events", "Usage", "Messages"):
        tab(page, name).click()
        if name == "Messages":
            shown.until(lambda: page.get_by_role("article").count() == 3, "the messages")
            for fold in page.locator("article summary").all():
                fold.click()
        shown.settle()
        assert page.evaluate("window.poorContrast()") == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    run.cancel()
    panel.close()
    context.close()


def test_a_hidden_view_does_not_draw(page: Page) -> None:
    shown = PanelPage(page, state=state())
    shown.deliver(rows_message(0, rows(0, 50)))
    shown.settle()
    assert page.locator(".agentnb-messages article, .agentnb-trace-row").count() == 0
    assert shown.sent("messages") == []


@pytest.mark.alone
def test_a_page_with_a_long_run_responds_in_time(page: Page) -> None:
    figures = measure(page, events=4000, rate=2000, view="Trace")
    print(f"\n{figures}")
    assert figures["last_event_after_s"] < 5  # 0.1 measured, 0.4 on a busy machine
    assert figures["elements"] < 1500
    assert figures["own_work_ms"]["median"] < 8
