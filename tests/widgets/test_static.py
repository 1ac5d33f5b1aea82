from __future__ import annotations

from html.parser import HTMLParser

from agentnb.core.events import (
    ApprovalDecision,
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
from agentnb.run import Replay
from agentnb.testing import call, text
from agentnb.widgets import static_html
from agentnb.widgets.static.panel import SMALL, WHOLE, plain_text
from agentnb.widgets.views.decisions import clock
from tests import designs
from tests.widgets.support import HOSTILE, Recording, asking, asking_everywhere, asking_inside, session, until

ELEMENTS = {
    "div",
    "span",
    "p",
    "strong",
    "code",
    "pre",
    "style",
    "details",
    "summary",
    "svg",
    "g",
    "path",
    "text",
    "title",
    "desc",
    "ul",
    "li",
}


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
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def find(self, **attributes: str) -> dict[str, str | None]:
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        [found] = [has for _, has in self.elements if wanted.items() <= has.items()]
        return found


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
    phase = property(lambda self: self.state.phase or next(iter(self.loop.phases)))
    usage = property(lambda self: self.state.usage)
    stop_reason = property(lambda self: self.state.stop_reason)


def test_an_ended_run_is_readable_from_top_to_bottom() -> None:
    run = session([[*text("I will look. "), call("search", {"query": "drafts"})], "There are two."])
    run.result(30)
    page = Reader(static_html(run))
    assert page.find(role="log")["aria-label"] == "Events"
    assert page.find(aria_label="State diagram")["role"] == page.find(aria_label="Timeline")["role"] == "img"
    assert page.find(aria_label="State diagram")["data-phase"] == run.phase == "done"
    for words in (
        "tidy up",
        "I will look.",
        "drafts",
        "drafts 1",
        "There are two.",
        "completed",
        "run_end",
        "returned",
    ):
        assert words in page.text


def test_a_run_without_events_says_so() -> None:
    assert "Nothing has happened yet." in Reader(static_html(session(["Hello."]))).text


def test_the_duration_of_a_run_is_in_hours_and_minutes() -> None:
    run = Told()
    run.start()
    run.end()
    run.events[-1] = run.events[-1].model_copy(update={"time": run.events[0].time + 7500})
    assert "2 h 05 min" in Reader(static_html(run)).text


def test_without_model_requests_no_turns_are_counted() -> None:
    run = designs.engine().start("go")
    assert "phase idle · 0 events" in Reader(static_html(run)).text
    run.result(30)
    assert f"phase completed · {len(run.events)} events" in Reader(static_html(run)).text


def test_decisions_are_shown_with_their_calls() -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    run.reject("c0", "keep it")
    run.edit("c1", {"path": "/elsewhere"})
    run.result(30)
    text = Reader(static_html(run)).text
    first, second = (event for event in run.events if isinstance(event, ApprovalDecision))
    assert f"rejected by code at {clock(first.time)} · rejected" in text
    assert "keep it" in text
    assert f"edited and approved by code at {clock(second.time)} · returned" in text
    assert "deleted /elsewhere" in text


def test_remembered_and_undone_decisions_are_shown() -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    run.approve("c0", remember="tool")
    run.undo("c1")
    text = Reader(static_html(run)).text
    (rule,) = run.remembered
    assert "approve every call, as code decided" in text
    assert clock(rule.time) in text
    assert f"approved by the decision of event {rule.event} at" in text
    assert "withdrawn by code at" in text
    run.cancel()


def test_a_run_stopped_at_a_breakpoint_names_it() -> None:
    run = session(["Hello."], breakpoints=["model_start"])
    run.play()
    until(lambda: run.state.paused)
    assert "Stopped by the breakpoint at model_start" in Reader(static_html(run)).text
    run.cancel()


def test_nested_loops_are_shown_with_their_phases_and_messages() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    waiting = Reader(static_html(run))
    run.approve("worker/c0")
    run.result(30)
    over = Reader(static_html(run))

    assert waiting.find(aria_label="State diagram")["data-phase"] == "executing"
    assert waiting.find(data_path="worker")["data-nested-phase"] == "acting"
    assert waiting.find(aria_label="Phases of worker")["role"] == "img"
    assert "phase executing > worker: acting · 1 model request" in waiting.text
    assert "worker delete_file was waiting for a decision." in waiting.text
    assert over.find(aria_label="State diagram")["data-phase"] == "completed"
    assert over.find(data_path="worker")["data-nested-phase"] == "done"
    assert "worker done (completed)Proof-read it" in over.text
    assert "What was said in worker" in over.text
    assert "worker turn 1" in over.text


def test_calls_of_the_same_id_in_several_loops_keep_their_own_results() -> None:
    run = asking_everywhere()
    run.play()
    until(lambda: len(run.pending) == 3)
    for id, result in (("critic/c0", "first"), ("critic:k2/c0", "second"), ("c0", "outer")):
        run.answer(id, result)
    run.result(30)
    said = Reader(static_html(run)).text.partition("Events")[0]
    outer, _, inside = said.partition("What was said in ")
    assert "outer" in outer
    assert "second" not in outer
    assert "second" in inside


def test_a_static_page_with_many_nested_loops_stays_small() -> None:
    run = Told()
    run.start()
    for number in range(500):
        run.add(RunStart(loop=HOSTILE, name="x", path=f"loop {number}", input="<&>" * 5000))
        for _ in range(20):
            run.add(MessageAdded(message=Message(role="user", content="&" * 10_000), path=f"loop {number}"))
    html = static_html(run)
    assert len(html.encode()) < 200_000
    assert "and 488 more" in Reader(html).text


def test_a_waiting_run_shows_the_question_and_no_button() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    page = Reader(static_html(run))
    assert page.find(role="group")["aria-label"] == "delete_file"
    assert "button" not in {tag for tag, _ in page.elements}
    run.cancel()


def test_of_hundreds_of_questions_the_first_are_shown_and_some_others_named() -> None:
    run = session([[call("delete_file", {"path": "/a" * 500}, id=f"c{n}") for n in range(300)]])
    run.submit_step("turn").result(30)
    for bounds, limit in ((WHOLE, 200_000), (SMALL, 120_000)):
        html = static_html(run, bounds=bounds)
        assert len(html.encode()) < limit
        page = Reader(html)
        shown = [has for _, has in page.elements if has.get("role") == "group"]
        assert 0 < len(shown) < 300
        assert f"and {300 - len(shown) - 20} more" in page.text
    run.cancel()


def test_a_note_is_shown_at_the_top_as_text() -> None:
    run = session(["Hello."])
    text = Reader(static_html(run, note="As of <now>.")).text
    assert text.index("As of <now>.") < text.index("Events")


def test_hostile_text_does_not_become_markup() -> None:
    run = Told({HOSTILE: ["<b>"], "<b>": []})
    run.name = HOSTILE
    run.start()
    run.add(Queued(queue="steering", message=Message(role=HOSTILE, content=HOSTILE)))
    run.add(MessageAdded(message=Message(role=HOSTILE, content=HOSTILE), origin="steering"))
    path = HOSTILE.replace("/", "|")
    run.add(RunStart(loop=HOSTILE, name=HOSTILE, path=path))
    run.add(StateUpdate(values={HOSTILE: [HOSTILE]}, path=path, phase=HOSTILE))
    page = Reader(static_html(run))
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
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
    assert len(html.encode()) < 200_000
    text = Reader(html).text
    assert "9,851 events left out" in text
    assert "state_update" in text


def test_long_texts_and_conversations_are_cut_with_a_note() -> None:
    run = Told()
    run.start()
    for number in range(300):
        run.add(MessageAdded(message=Message(role="user", content=f"message {number} " + "&" * 10_000)))
    html = static_html(run)
    assert len(html.encode()) < 200_000
    assert "270 messages left out" in Reader(html).text
    assert "characters in all" in Reader(html).text


def test_results_of_other_kinds_than_text_are_shown_as_json() -> None:
    run = session([[call("search", {"query": "x"}, id="c")], "ok"])
    run.result(30)
    assert isinstance(next(event for event in run.events if isinstance(event, CallEnd)).result, list)
    assert '"x 1"' in Reader(static_html(run)).text


def test_a_page_without_its_drawing_names_the_phase() -> None:
    run = session(["Hello."])
    page = Reader(static_html(run, ""))
    assert page.find(aria_label="State diagram")["data-phase"] == "idle"
    assert "svg" not in {tag for tag, _ in page.elements}


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


def test_the_static_page_loads_no_external_resource() -> None:
    run = session(["Hello."])
    run.result(30)
    html = static_html(run).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in html
    assert "@import" not in html
    assert "url(" not in html


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


def test_a_run_of_ten_thousand_events_adds_less_than_200_kb_with_all_its_views() -> None:
    run = long_run(2500, "<&>" * 100)
    html = static_html(run)
    assert len(run.events) > 10_000
    assert len(html.encode()) < 200_000
    page = Reader(html)
    assert page.find(aria_label="Timeline")["role"] == "img"
    for words in ("longest of 5,001 rows", "messages left out", "events left out", "earlier turns are left out"):
        assert words in page.text


def test_the_static_page_has_the_timeline_and_the_usage() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.result(30)
    page = Reader(static_html(run))
    [chart] = [has for tag, has in page.elements if has.get("class") == "agentnb-svg agentnb-chart"]
    assert chart["viewbox"]
    classes = [has.get("class") for _, has in page.elements]
    assert {"agentnb-bar-loop", "agentnb-bar-model", "agentnb-bar-call", "agentnb-bar-wait"} <= set(classes)
    assert "Tokens, cost and time" in page.text
    assert "waiting for you" in page.text
    folds = [tag for tag, has in page.elements if has.get("class") == "agentnb-fold"]
    assert folds == ["details"] * 3


def test_hostile_text_is_text_in_the_timeline_and_the_conversation() -> None:
    page = Reader(static_html(long_run(3, HOSTILE)))
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert not [has for _, has in page.elements if any(name.startswith("on") or name == "href" for name in has)]
    assert "\u202e" not in page.text
    assert "<script>boom" in page.text


def test_reasoning_is_folded_away() -> None:
    thought = {"type": "reasoning_delta", "content": "I had better look."}
    run = session([[thought, *text("Hello.")]])
    run.result(30)
    page = Reader(static_html(run))
    assert page.find(**{"class": "agentnb-reasoning"}) == {"class": "agentnb-reasoning"}  # and so not open
    assert "I had better look." in page.text
