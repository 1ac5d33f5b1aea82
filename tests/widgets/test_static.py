from __future__ import annotations

import re
import time
from base64 import b64decode
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from agentnb import Loop, SessionLoop, tool
from agentnb.content import Image, Pdf, message
from agentnb.core.events import (
    CallEnd,
    CallStart,
    MessageAdded,
    ModelEnd,
    ModelStart,
    Queued,
    RunStart,
    StateUpdate,
)
from agentnb.core.messages import Message, ToolCall
from agentnb.loops.want import say
from agentnb.run import Replay
from agentnb.testing import ScriptedLLM, call, text
from agentnb.widgets import static_html
from agentnb.widgets.static.panel import plain_text
from agentnb.widgets.static.pictures import CALL, MODEL, PERSON
from agentnb.widgets.views.decisions import clock
from tests import designs
from tests.widgets.support import HOSTILE, Recording, asking, asking_everywhere, asking_inside, session, until

ELEMENTS = {"div", "span", "b", "samp", "pre", "details", "summary", "ul", "li", "img"}
DRAWN = {"svg", "g", "path", "rect", "text"}
LIMIT = 180_000
"""Bytes of a page at most."""
IMAGE = {"alt", "width", "style", "src", "role", "data-phase"}
PICTURE = "data:image/svg+xml;base64,"


class Reader(HTMLParser):
    """The elements with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag != "img":  # which has no end
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def pictures(self) -> dict[str, ElementTree.Element]:
        """The pictures by their descriptions, as they are drawn."""
        images = [has for tag, has in self.elements if tag == "img"]
        assert all((has["src"] or "").startswith(PICTURE) for has in images)
        return {
            has["alt"] or "": ElementTree.fromstring(b64decode((has["src"] or "").removeprefix(PICTURE)))
            for has in images
        }

    def picture(self, beginning: str) -> ElementTree.Element:
        """The one picture whose description begins like this."""
        [found] = [drawn for words, drawn in self.pictures().items() if words.startswith(beginning)]
        return found

    def is_inert(self) -> bool:
        """Whether there is nothing but known elements with known attributes, in the HTML and in the pictures."""
        known = all(
            tag in ELEMENTS and set(has) <= ({"class", "style", "role", "aria-label"} if tag != "img" else IMAGE)
            for tag, has in self.elements
        )
        parts = [part for drawn in self.pictures().values() for part in drawn.iter()]
        return known and all(
            part.tag.rpartition("}")[2] in DRAWN
            and not any("href" in name or name.startswith("on") for name in part.attrib)
            for part in parts
        )


class Told(Recording):
    """A recording with the other attributes of a run that the static panel uses."""

    def __init__(self, phases: dict[str, list[str]] | None = None) -> None:
        super().__init__()
        self.loop = type(
            "Loop", (), {"phases": phases or {"running": ["done"], "done": []}, "kind": lambda self: HOSTILE}
        )()
        self.pending: list[object] = []
        self.driven = False
        self.remembered: list[object] = []
        self.queued: list[object] = []
        self.paused_for: str | None = None
        self.position = self.diverged = None

    messages = property(lambda self: self.state.messages)
    recording = property(lambda self: self.events)
    input = None
    phase = property(lambda self: self.state.phase or next(iter(self.loop.phases)))
    usage = property(lambda self: self.state.usage)
    stop_reason = property(lambda self: self.state.stop_reason)


def test_an_ended_run_is_readable_from_top_to_bottom() -> None:
    run = session([[*text("I will look. "), call("search", {"query": "drafts"})], "There are two."])
    run.result(30)
    page = Reader(static_html(run))
    order = [
        page.text.index(words)
        for words in (
            "✓ done",
            "tidy",
            "SessionLoop",
            "2 turns · 1 call",
            "tidy up",
            "model",
            "Turn 1",
            "I will look.",
            'search(query="drafts") → ["drafts 1", "drafts 2"]',
            "Turn 2",
            "There are two.",
            f"Saved copy of {len(run.events)} events. Run the cell to have the panel.",
        )
    ]
    assert order == sorted(order)
    words = list(page.pictures())
    assert words[0].startswith("Timeline: 2 turns in ")
    assert words[1].startswith(
        "State diagram: idle, listening, thinking, acting, done. Now: done. Taken: idle to listening"
    )
    assert page.is_inert()


def test_a_run_without_events_says_so() -> None:
    page = Reader(static_html(session(["Hello."])))
    assert "Nothing has happened yet." in page.text
    assert "○ ready" in page.text


def test_the_duration_of_a_run_is_in_hours_and_minutes() -> None:
    run = Told()
    run.start()
    run.end()
    run.events[-1] = run.events[-1].model_copy(update={"time": run.events[0].time + 7500})
    assert "2 h 05 min" in Reader(static_html(run)).text


def test_without_model_requests_no_turns_are_counted() -> None:
    run = designs.engine().start("go")
    assert "0 turns" not in Reader(static_html(run)).text
    run.result(30)
    page = Reader(static_html(run))
    assert "✓ done" in page.text
    assert " turn" not in page.text


def test_decisions_are_shown_with_their_calls() -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    run.reject("c0", "keep it")
    run.edit("c1", {"path": "/elsewhere"})
    run.result(30)
    text = Reader(static_html(run)).text
    assert 'delete_file(path="/a")' in text
    assert re.search(r"rejected by code after \d+ ms: keep it", text)
    assert text.count("rejected") == 1
    assert 'delete_file(path="/elsewhere") → deleted /elsewhere' in text
    assert re.search(r'edited by code after \d+ ms, asked about delete_file\(path="/b"\)', text)


def test_what_a_person_decided_is_shown_whole() -> None:
    run = asking("report\n\nTwo lines.\n")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.result(30)
    page = Reader(static_html(run))
    assert "delete_file(path=3 lines)" in page.text
    assert "report\n\nTwo lines." in page.text
    assert "approved by code after" in page.text


def test_remembered_and_undone_decisions_are_shown() -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    run.approve("c0", remember="tool")
    run.undo("c1")
    text = Reader(static_html(run)).text
    (rule,) = run.remembered
    assert "approve every call, as code decided" in text
    assert clock(rule.time) in text
    assert f"approved by the decision of event {rule.event}" in text
    assert "withdrawn by code" in text
    run.cancel()


def test_what_a_rule_lets_run_takes_no_line() -> None:
    run = session([[call("delete_file", {"path": "/a"}, id="c0")], "Done."], approve=True)
    run.result(30)
    assert any(event.type == "approval_decision" for event in run.events)
    assert "approved" not in Reader(static_html(run)).text


def test_a_run_stopped_at_a_breakpoint_names_it() -> None:
    run = session(["Hello."], breakpoints=["model_start"])
    run.play()
    until(lambda: run.state.paused)
    text = Reader(static_html(run)).text
    assert "Stopped by the breakpoint at model_start" in text
    assert "❚❚ paused" in text
    run.cancel()


def test_nested_loops_are_shown_with_their_phases_and_turns() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    waiting = Reader(static_html(run))
    run.approve("worker/c0")
    run.result(30)
    over = Reader(static_html(run))

    assert "State diagram of worker" in " ".join(waiting.pictures())
    assert any("Now: executing." in words for words in waiting.pictures())
    assert any("Now: acting." in words for words in waiting.pictures())
    assert "worker delete_file was waiting for a decision." in waiting.text
    assert "◆ waits for you" in waiting.text
    assert any("Now: completed." in words for words in over.pictures())
    assert "Loops: worker" in " ".join(over.pictures())
    for words in ("worker Write the draft 2 turns, 1 call", "Drafted.", "worker Proof-read it 1 turn", "Proof-read."):
        assert words in over.text
    assert over.is_inert()


def test_calls_of_the_same_id_in_several_loops_keep_their_own_results() -> None:
    run = asking_everywhere()
    run.play()
    until(lambda: len(run.pending) == 3)
    assert "3 wait for you" in Reader(static_html(run)).text
    for id, result in (("critic/c0", "first"), ("critic:k2/c0", "second"), ("c0", "outer")):
        run.answer(id, result)
    run.result(30)
    text = Reader(static_html(run)).text
    order = [text.index(words) for words in ("critic(", "→ first", "critic:k2(", "→ second", "→ outer", "Over.")]
    assert order == sorted(order)


def test_a_static_page_with_many_nested_loops_stays_small() -> None:
    run = Told()
    run.start()
    for number in range(500):
        run.add(RunStart(loop=HOSTILE, name="x", path=f"loop {number}", input="<&>" * 5000))
        for _ in range(20):
            run.add(MessageAdded(message=Message(role="user", content="&" * 10_000), path=f"loop {number}"))
    assert len(static_html(run).encode()) < LIMIT


def test_a_waiting_run_shows_the_question_and_no_button() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    page = Reader(static_html(run))
    assert "delete_file was waiting for a decision." in page.text
    assert '"path": "/a"' in page.text
    assert 'delete_file(path="/a") waits for a decision' in page.text
    assert page.is_inert()
    run.cancel()
    assert "✕ cancelled" in Reader(static_html(run)).text


def test_calls_that_have_not_begun_are_hollow() -> None:
    run = session([[call("search", {"query": "a"}, id="a"), call("search", {"query": "b"}, id="b")]])
    run.submit_step("event").result(30)
    while run.events[-1].type != "model_end":
        run.submit_step("event").result(30)
    text = Reader(static_html(run)).text
    assert text.count("□ search(") == 2
    assert "next" in text
    run.cancel()


def test_a_failure_of_the_model_is_shown_in_its_turn_and_at_the_top() -> None:
    run = session([[*text("The mean is"), RuntimeError("429: busy")]])
    run.play()
    until(lambda: run.state.failure is not None)
    page = Reader(static_html(run))
    assert page.text.count("RuntimeError: 429: busy") == 2
    assert "✕ model failed" in page.text
    assert "✕ Turn 1 RuntimeError: 429: busy" in page.text
    run.cancel()


def test_a_failed_call_shows_its_error() -> None:
    run = session([[call("no_such_tool", {}, id="c0")], "Sorry."])
    run.result(30)
    assert "✕ no_such_tool() invalid: Tool no_such_tool not found" in Reader(static_html(run)).text


def test_an_answer_that_was_cut_off_says_so() -> None:
    run = Told()
    run.start()
    run.add(ModelStart(turn=1))
    run.add(ModelEnd(message=Message(role="assistant", content="I was going"), stop_reason="length"))
    assert "I was going cut off: length" in Reader(static_html(run)).text


def test_the_messages_of_a_generator_are_rows() -> None:
    def chatter(input: Any) -> Any:
        for number in range(300):
            yield say(f"line <{number}>")

    run = Loop.from_generator(chatter).start("go", name="long")
    run.result(30)
    page = Reader(static_html(run))
    for words in ("line <0>", "260 messages left out", "line <299>"):
        assert words in page.text


def test_what_a_person_says_on_the_way_is_a_row() -> None:
    run = session([[call("search", {"query": "x"}, id="c")], "ok"])
    run.steer("Look in the <attic>.")
    assert "You Look in the <attic>. queued: steering" in Reader(static_html(run)).text
    run.result(30)
    assert "◆ You Look in the <attic>." in Reader(static_html(run)).text


def test_of_hundreds_of_questions_the_first_are_shown_and_some_others_named() -> None:
    run = session([[call("delete_file", {"path": "/a" * 500}, id=f"c{n}") for n in range(300)]])
    run.submit_step("turn").result(30)
    html = static_html(run)
    assert len(html.encode()) < LIMIT
    page = Reader(html)
    shown = page.text.count("was waiting for a decision.")
    assert 0 < shown < 300
    assert f"and {300 - shown - 20} more" in page.text
    run.cancel()


def test_a_note_is_shown_at_the_top_as_text() -> None:
    run = session(["Hello."])
    text = Reader(static_html(run, note="As of <now>.")).text
    assert text.index("As of <now>.") < text.index("Nothing has happened yet.")


def test_hostile_text_does_not_become_markup() -> None:
    run = Told({HOSTILE: ["<b>"], "<b>": []})
    run.name = HOSTILE
    run.start()
    run.add(Queued(queue="steering", message=Message(role="user", content=HOSTILE)))
    run.add(MessageAdded(message=Message(role="user", content=HOSTILE), origin="steering"))
    run.add(MessageAdded(message=Message(role=HOSTILE, content=HOSTILE)))
    path = HOSTILE.replace("/", "|")
    run.add(RunStart(loop=HOSTILE, name=HOSTILE, path=path))
    run.add(StateUpdate(values={HOSTILE: [HOSTILE]}, path=path, phase=HOSTILE))
    page = Reader(static_html(run))
    assert page.is_inert()
    assert "<script>boom()</script>" in page.text
    assert "⟦U+202E⟧" in page.text
    assert "\u202e" not in page.text
    static_html(run).encode()


def test_the_page_of_a_long_run_is_small_and_says_what_is_omitted() -> None:
    run = Told()
    run.start()
    for number in range(10_000):
        run.add(StateUpdate(values={"number": number, "text": "<&>" * 2000}))
    html = static_html(run)
    assert len(html.encode()) < 4000
    assert "Saved copy of 10,001 events." in Reader(html).text


def test_long_texts_and_conversations_are_cut_with_a_note() -> None:
    run = Told()
    run.start()
    for number in range(300):
        run.add(MessageAdded(message=Message(role="user", content=f"message {number} " + "&" * 10_000)))
    html = static_html(run)
    assert len(html.encode()) < LIMIT
    assert "260 messages left out" in Reader(html).text
    assert "characters in all" in Reader(html).text


def test_results_of_other_kinds_than_text_are_shown_as_json() -> None:
    run = session([[call("search", {"query": "x"}, id="c")], "ok"])
    run.result(30)
    assert isinstance(next(event for event in run.events if isinstance(event, CallEnd)).result, list)
    assert '"x 1"' in Reader(static_html(run)).text


def test_a_long_result_is_folded_and_cut_with_the_number_of_its_characters() -> None:
    run = Told()
    run.start()
    made = ToolCall(id="c", name="look", arguments={})
    run.add(ModelStart(turn=1))
    run.add(ModelEnd(message=Message(role="assistant", content="", tool_calls=[made])))
    run.add(CallStart(call_id="c", name="look", arguments={}))
    run.add(CallEnd(call_id="c", name="look", result="x" * 5000))
    page = Reader(static_html(run))
    assert page.text.count("x") < 2100
    assert "… (5,000 characters in all)" in page.text
    assert ("details", {"style": "margin-left:18px"}) in page.elements  # not open


def test_the_line_of_text_has_the_status_of_the_run() -> None:
    run = session(["Hello."])
    assert plain_text(run) == "tidy (SessionLoop): not started, phase idle, 0 events"
    run.result(30)
    assert plain_text(run) == f"tidy (SessionLoop): completed, phase done, {len(run.events)} events"


def test_the_line_of_text_of_a_replay_has_its_position() -> None:
    run = session(["Hello."])
    run.result(30)
    replay = Replay(run.events, run.loop, name=run.name)
    replay.step()
    assert plain_text(replay) == f"tidy (SessionLoop, recorded): running, phase idle, 1 of {len(run.events)} events"


def test_the_static_page_loads_nothing_and_has_no_style_sheet() -> None:
    run = session(["Hello."])
    run.result(30)
    html = static_html(run)
    page = Reader(html)
    for part in (html, *(ElementTree.tostring(drawn, "unicode") for drawn in page.pictures().values())):
        rest = part.replace("http://www.w3.org/2000/svg", "")
        assert not [
            word for word in ("http", "@import", "url(", "<style", "<script", "<svg") if word in rest and word != "<svg"
        ]
    assert "<svg" not in html
    assert "<style" not in html


def long_run(turns: int, name: str = "note") -> Told:
    """A recording of so many turns, each a request with an answer and a call."""
    run = Told()
    run.start()
    for number in range(turns):
        run.add(ModelStart(turn=number + 1))
        made = ToolCall(id=f"c{number}", name=name, arguments={"text": "<&>" * 400})
        said = Message(role="assistant", content="&" * 2000, tool_calls=[made], reasoning=[{"text": "<b>" * 500}])
        run.add(ModelEnd(message=said, usage={"input_tokens": 10, "output_tokens": 2, "<i>": 1}))
        run.add(CallStart(call_id=f"c{number}", name=name, arguments=made.arguments))
        run.add(CallEnd(call_id=f"c{number}", name=name, result="<&>" * 2000))
    return run


def test_a_run_of_ten_thousand_events_adds_less_than_200_kb() -> None:
    run = long_run(2500, "<&>" * 100)
    html = static_html(run)
    assert len(run.events) > 10_000
    assert len(html.encode()) < LIMIT
    page = Reader(html)
    assert "2,460 turns with 2,460 calls left out" in page.text
    assert page.picture("Timeline: 2,500 turns").get("width") == "800"


def test_thirty_events_add_less_than_12_kb() -> None:
    """The first thirty events of the first notebook's run have as much text."""
    run = session(
        [
            [
                *text("I look at what there is, and at what it means for the years after that."),
                call("search", {"query": f"drafts of {n}"}),
            ]
            for n in range(7)
        ]
        + ["There are two. " * 10]
    )
    run.result(30)
    assert len(run.events) >= 30
    assert len(static_html(run).encode()) < 12_000


def test_making_the_page_of_a_long_run_takes_little_time() -> None:
    run = long_run(2500)
    started = time.process_time()
    static_html(run)
    assert time.process_time() - started < 8  # 0.9 measured


def test_from_200_events_on_turns_are_folded() -> None:
    short, long = Reader(static_html(long_run(3))), Reader(static_html(long_run(60)))
    assert short.elements.count(("summary", {})) == 0
    assert long.elements.count(("summary", {})) == 40
    assert "20 turns with 20 calls left out" in long.text


def test_the_sums_say_what_time_and_tokens_were_spent_on() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.result(30)
    page = Reader(static_html(run))
    assert re.search(r"● model \d+ ms ■ calls \d+ ms ◆ you \d+ ms", page.text)
    assert "paused" not in page.text
    drawn = page.picture("Timeline: 2 turns in")
    colours = {part.get("fill") for part in drawn.iter()}
    assert {MODEL, CALL, PERSON} <= colours
    priced = Reader(static_html(long_run(2)))
    assert "20 tokens in 4 tokens out" in priced.text


def test_the_sums_say_how_long_the_run_was_paused() -> None:
    run = session(["Hello."], breakpoints=["model_start"])
    run.play()
    until(lambda: run.state.paused)
    run.resume()
    run.result(30)
    assert re.search(r"● model \d+ ms ❚❚ paused \d+ ms", Reader(static_html(run)).text)


def test_hostile_text_is_text_in_the_trace() -> None:
    page = Reader(static_html(long_run(3, HOSTILE)))
    assert page.is_inert()
    assert "\u202e" not in page.text
    assert "<script>boom" in page.text


def test_reasoning_is_folded_away() -> None:
    thought = {"type": "reasoning_delta", "content": "I had better look."}
    run = session([[thought, *text("Hello.")]])
    run.result(30)
    page = Reader(static_html(run))
    assert ("details", {"style": "margin-left:18px"}) in page.elements  # and so not open
    assert "reasoningI had better look." in page.text


@pytest.mark.parametrize("world", designs.WORLDS)
def test_at_every_event_of_every_design_the_page_is_whole(world: str) -> None:
    run = designs.WORLDS[world]().start("go", approve=True)
    run.result(30)
    replay = Replay(run.events, run.loop, name=world)
    for position in {*range(0, len(run.events), 7), len(run.events) - 1}:
        replay.to(position)
        page = Reader(static_html(replay))
        assert page.is_inert()
        assert page.open == []
        assert f"Saved copy of {position + 1:,} event" in page.text


async def test_pictures_of_messages_and_results_are_in_the_copy_and_other_parts_are_named() -> None:
    png, gif = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9)), Image.from_bytes(b"GIF89a" + bytes(9))
    pdf, link = Pdf.from_bytes(b"%PDF-1.7"), Image.from_url("https://e.org/a.png")
    large = Image.from_bytes(b"GIF89a" + bytes(180_000))

    @tool
    def shot() -> Any:
        """Take a picture."""
        return [png, pdf, "seen"]

    run = SessionLoop(ScriptedLLM([[call("shot", id="c")], "done"]), [shot]).start(
        message("See", gif, pdf, link, large)
    )
    await run
    page = Reader(static_html(run))
    shown = [has for tag, has in page.elements if tag == "img" and not (has["src"] or "").startswith(PICTURE)]
    assert [has["src"] for has in shown] == [
        f"data:image/{kind};base64,{part.model_dump()['source']['data']}" for kind, part in (("gif", gif), ("png", png))
    ]
    assert [has["alt"] for has in shown] == ["Picture 1 of 2", "Picture 1 of 1"]
    assert all("max-width" in (has["style"] or "") for has in shown)
    for words in (
        "[document: application/pdf, 9 bytes]",
        "[image: https://e.org/a.png]",
        "[image: image/png, 18 bytes]",
        "1 of 2 pictures left out to keep this small",
    ):
        assert words in page.text
    assert "https://" not in " ".join(has["src"] or "" for has in shown)
    assert "base64" not in page.text
