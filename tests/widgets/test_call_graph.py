from __future__ import annotations

import asyncio
import random
import time
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest

from agentnb import Agent, SessionLoop, tool
from agentnb.core.evolve import fold
from agentnb.core.graph import CallDependencies, GraphCall
from agentnb.loops.execution_loop import Reject
from agentnb.loops.execution_loop.loop import ExecutionCalls
from agentnb.testing import ScriptedLLM, call, delay
from agentnb.widgets import CallGraph, static_html
from agentnb.widgets.drawings.graph import draw
from agentnb.widgets.drawings.layout import HEIGHT, WIDTH, lay_out_graph
from agentnb.widgets.static.pictures import graph_picture
from agentnb.widgets.views.call_graph import ARROWS, DRAWN, WORDS, view_of
from agentnb.widgets.views.loops import GRAPHS, Loops, graph_status
from tests.loops.execution_world import World, c, solution
from tests.widgets.support import HOSTILE, session, until
from tests.widgets.test_static import Reader

REPORT = [
    c("sum", "†state.summary", p="†state.profile"),
    c("fetch", "†state.profile", u="†input.u"),
    c("boom", "†state.weather"),
    c("ask", "†state.mail", v="†state.profile.name"),
    c("echo", v={"both": ["†state.summary && †state.mail"], "other": "†state.weather || †data.none"}),
]
"""c2 and c3 start immediately, c1 and c4 after c2; c4 needs approval, c3 fails, and c5 waits for all of them."""


def graph(run: Any, position: int | None = None) -> dict[str, GraphCall]:
    """The calls of the graph at this position, by id."""
    read: CallDependencies = run.loop.current_calls.call_graph(fold(run.events[:position]))
    return {call.id: call for call in read.calls}


def standings(run: Any, position: int | None = None) -> dict[str, str]:
    return {id: call.status for id, call in graph(run, position).items()}


def told(run: Any, position: int | None = None) -> dict[str, Any]:
    """Return the data of the outermost loop's graph that the page gets."""
    [first, *_] = graph_status(Loops(run.loop, graphs=True).follow(run.events[:position]).graphs())
    return first


def waiting() -> Any:
    """Return a run whose calls have five different statuses."""
    run = World().loop(solution(*REPORT), solution(output="done")).start(None, name="report")
    run.play()
    until(lambda: run.pending and graph(run)["c1"].status == "completed" and graph(run)["c3"].status == "failed")
    return run


# -- what the design tells


def test_the_graph_has_the_calls_of_a_request_and_which_call_reads_which() -> None:
    run = waiting()
    calls = graph(run)
    assert {id: call.reads for id, call in calls.items()} == {
        "c1": ("c2",), "c2": (), "c3": (), "c4": ("c2",), "c5": ("c1", "c4", "c3"),
    }  # fmt: skip
    assert standings(run) == {
        "c1": "completed", "c2": "completed", "c3": "failed", "c4": "waiting", "c5": "blocked",
    }  # fmt: skip
    assert calls["c5"].missing == ("†state.summary && †state.mail", "†state.weather || †data.none")
    assert (calls["c3"].writes, "api down" in str(calls["c3"].note)) == ("†state.weather", True)
    run.reject("c4", "not now")
    run.result(30)
    position = next(event.seq for event in run.events if event.type == "model_start" and event.turn == 2)
    assert standings(run, position)["c4"] == "rejected"
    assert graph(run, position)["c4"].note == "rejected by user: not now"
    assert standings(run, position)["c5"] == "failed"


def test_calls_are_in_the_graph_before_the_answer_has_ended() -> None:
    run = World().loop([*solution(*REPORT), delay(30)], solution(output="done")).start(None)
    run.play()
    until(lambda: run.pending)
    assert "model_end" not in [event.type for event in run.events]
    assert standings(run)["c4"] == "waiting"
    run.cancel()


def test_the_calls_pass_through_every_status() -> None:
    run = waiting()
    run.approve("c4")
    run.result(30)
    ways: dict[str, dict[str, None]] = {}
    for position in range(len(run.events)):
        for id, standing in standings(run, position).items():
            ways.setdefault(id, {})[standing] = None
    assert list(ways["c1"]) == ["blocked", "unblocked", "running", "completed"]
    assert list(ways["c3"]) == ["unblocked", "running", "failed"]
    assert list(ways["c4"]) == ["blocked", "unblocked", "waiting", "running", "completed"]


async def test_a_call_that_awaits_confirmation_is_confirming() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def confirm(call: Any) -> Any:
        asked.set()
        await answer.wait()
        return Reject("no")

    run = World().loop(solution(c("fast"), c("echo", v="†state.x")), solution(output=1), confirm=confirm).start(None)
    run.play()
    await asked.wait()
    assert standings(run) == {"c1": "confirming", "c2": "blocked"}
    answer.set()
    await run
    position = next(event.seq for event in run.events if event.type == "model_start" and event.turn == 2)
    assert standings(run, position) == {"c1": "rejected", "c2": "failed"}


def test_a_call_that_waits_for_the_concurrency_limit_is_unblocked() -> None:
    run = World().loop(solution(c("slow"), c("slow"), pieces=1), solution(output=1), max_concurrency=1).start(None)
    run.result(30)
    started = next(event.seq for event in run.events if event.type == "call_start")
    model_ended = next(event.seq for event in run.events if event.type == "model_end")
    assert standings(run, max(started, model_ended) + 1) == {"c1": "running", "c2": "unblocked"}


@pytest.mark.parametrize(
    ("written", "read", "is_read"),
    [
        ("†state.a", "†state.a", True),
        ("†state.a", "†state.a.b", True),
        ("†state.a.b", "†state.a", True),
        ("†state.a", "†state", True),
        ("†state", "†state.a", True),
        ("†state.a", "†state.ab", False),
        ("†state.a", "†data.a", False),
        ("†state.a.b", "†state.a.c", False),
        ("†state.ok || †state.failed", "†state.failed", True),
        ("†state.x && †state.y", "†state.y", True),
        ("†state.y", "†state.x || †state.y && †state.z", True),
    ],
)
def test_a_call_reads_another_if_their_paths_overlap(written: str, read: str, is_read: bool) -> None:
    run = World().loop(solution(c("give", written, v=1), c("echo", v=read)), solution(output=1)).start(None)
    run.result(30)
    assert graph(run, 6)["c2"].reads == (("c1",) if is_read else ())


def test_an_instance_reads_its_own_data_and_data_without_an_instance() -> None:
    calls = [
        c("give", "†state.a", v=1, _instance="one"),
        c("give", "†state.a", v=2),
        c("echo", v="†state.a", _instance="one"),
        c("echo", v="†state.a"),
    ]
    run = World().loop(solution(*calls, pieces=1), solution(output=1)).start(None)
    run.result(30)
    calls_ended = next(event.seq for event in run.events if event.type == "model_start" and event.turn == 2)
    read = graph(run, calls_ended)
    assert (read["c3"].reads, read["c4"].reads) == (("c1", "c2"), ("c2",))


def test_data_of_an_earlier_request_is_attributed_to_its_last_writer() -> None:
    run = (
        World()
        .loop(
            solution(c("give", "†state.n", v=1), c("give", "†state.n", v=2), c("give", "†state.m", v=3)),
            solution(c("echo", "†state.n", v="†state.n"), c("echo", v="†input.u")),
            solution(output=1),
        )
        .start(None)
    )
    run.result(30)
    position = [event.seq for event in run.events if event.type == "model_start"][2]
    calls = graph(run, position)
    assert [(id, call.earlier, call.reads) for id, call in calls.items()] == [
        ("c2", True, ()), ("c4", False, ("c2",)), ("c5", False, ()),
    ]  # fmt: skip
    assert told(run, position)["heading"] == "Calls of request 2: 2 completed"


def test_calls_that_wait_for_each_other_are_in_the_graph() -> None:
    circle = [c("echo", "†state.a", v="†state.b"), c("echo", "†state.b", v="†state.a"), c("echo", v="†state.b")]
    run = World().loop(solution(*circle), solution(output=1)).start(None)
    run.result(30)
    ended = next(event.seq for event in run.events if event.type == "model_start" and event.turn == 2)
    assert [call.reads for call in graph(run, ended).values()] == [("c2",), ("c1",), ("c2",)]
    assert len(Loops(run.loop, graphs=True).follow(run.events).graphs()[0][1].shape[1]) == 3


# -- what the panel tells


def test_each_call_has_a_sentence_with_its_status() -> None:
    run = waiting()
    assert [sentence for _, _, sentence in told(run)["calls"]] == [
        "c1 sum: completed, reads from c2, writes †state.summary",
        "c2 fetch: completed, writes †state.profile",
        "c3 boom: failed (RuntimeError: api down), writes †state.weather",
        "c4 ask: waiting for you, reads from c2, writes †state.mail",
        "c5 echo: blocked, waits for †state.summary && †state.mail, †state.weather || †data.none, "
        "reads from c1, c4, c3",
    ]
    assert told(run)["heading"] == "Calls of request 1: 1 waiting for you, 1 blocked, 1 failed, 2 completed"
    run.cancel()


def test_graphs_computed_incrementally_and_from_all_events_are_equal() -> None:
    run = (
        World()
        .loop(solution(*REPORT), solution(c("echo", v="†state.mail")), solution(c("boom")), solution(output="done"))
        .start(None)
    )
    run.play()
    until(lambda: run.pending)
    run.approve("c4")
    run.result(30)
    slowly = Loops(run.loop, graphs=True)
    for position in range(len(run.events) + 1):
        slowly.follow(run.events[:position])
        assert graph_status(slowly.graphs()) == graph_status(
            Loops(run.loop, graphs=True).follow(run.events[:position]).graphs()
        )


def test_the_last_request_with_calls_is_shown_and_earlier_ones_are_counted() -> None:
    run = (
        World().loop(solution(c("fast"), c("boom")), solution(c("slow")), solution(output="done", pieces=1)).start(None)
    )
    run.result(30)
    last = told(run)
    assert last["heading"] == "Calls of request 2: 1 completed"
    assert last["notes"] == "Request 3 has made no calls. Earlier: 2 calls in 1 request (1 failed, 1 completed)."
    asked = [event.seq for event in run.events if event.type == "model_start"]
    assert told(run, asked[0])["notes"] == "No calls yet."
    assert told(run, asked[1] + 1)["heading"] == "Calls of request 1: 1 failed, 1 completed"
    assert told(run, asked[1] + 1)["notes"] == "Request 2 has made no calls yet."


def test_of_many_calls_the_most_urgent_are_drawn_and_the_others_counted() -> None:
    calls = [GraphCall(f"c{n}", "t", "completed", (f"c{n - 1}",) if n else ()) for n in range(100)]
    calls[3] = calls[3]._replace(status="waiting")
    calls[97] = calls[97]._replace(status="blocked")
    graph = view_of(CallDependencies(1, (GraphCall("e", "t", "completed", earlier=True), *calls)))
    ids = [id for id, _ in graph.shape[0]]
    assert len(ids) == DRAWN
    assert {"c3", "c97"} <= set(ids)
    assert "e" not in ids
    assert graph.more == f"and {100 - DRAWN} more"
    assert graph.heading == "Calls of request 1: 1 waiting for you, 1 blocked, 98 completed"


def test_a_loop_without_a_call_graph_shows_none() -> None:
    run = session([[call("search", {"query": "x"}, id="c")], "ok"])
    run.result(30)
    assert Loops(run.loop, graphs=True).follow(run.events).graphs() == []
    assert not any(words.startswith("Call graph") for words in Reader(static_html(run)).pictures())


def test_a_nested_execution_loop_shows_its_own_graph() -> None:
    inner = World().loop(solution(*REPORT), solution(output="done"), name="reporter")
    run = Agent(ScriptedLLM([[call("reporter", {"input": "go"}, id="r")], "over"]), [inner]).start("go")
    run.play()
    until(lambda: run.pending)
    [(path, nested)] = Loops(run.loop, graphs=True).follow(run.events).graphs()
    assert path == "reporter"
    assert nested.dresses[3][1] == WORDS["waiting"]
    page = Reader(static_html(run))
    assert page.picture("Call graph of reporter: Calls of request 1:") is not None
    run.cancel()
    [(_, nested)] = Loops(run.loop, graphs=True).follow(run.events).graphs()
    assert nested.dresses[3][0] in ("failed", "rejected")


def test_the_number_of_graphs_is_limited() -> None:
    async def ask(messages: Any) -> Any:
        return solution(c("ask", v=1))

    inner = World().loop(*[ask] * 8, name="reporter")
    calls = [call("reporter", {"input": "go"}, id=f"r{n}") for n in range(5)]
    run = SessionLoop(ScriptedLLM([calls, "over"]), [inner]).start("go")
    run.play()
    until(lambda: len(run.pending) == 5)
    assert len(Loops(run.loop, graphs=True).follow(run.events).graphs()) == GRAPHS
    run.cancel()


def test_a_failing_call_graph_of_a_design_is_logged_and_omitted(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ExecutionCalls):
        def call_graph(self, state: Any) -> Any:
            return 1 / 0

    run = World().loop(solution(c("fast")), solution(output=1)).start(None)
    run.loop.calls_class = Broken  # type: ignore[misc]
    run.result(30)
    assert Loops(run.loop, graphs=True).follow(run.events).graphs() == []
    assert "division by zero" in caplog.text
    assert "Saved copy of" in static_html(run)


def test_the_panel_updates_the_graph_while_the_run_continues() -> None:
    run = waiting()
    panel = CallGraph(run)
    try:
        until(lambda: panel.graphs and panel.graphs[0]["calls"][3][0] == "waiting")
        drawing = panel.drawings
        run.approve("c4")
        until(lambda: run.state.over and panel.graphs[0]["calls"][4][0] == "failed")
        assert panel.drawings == drawing, "the same calls and arrows are the same drawing"
        assert panel.parts == ["graph"]
    finally:
        panel.close()


def test_an_unchanged_graph_is_not_computed_again() -> None:
    run = waiting()
    loops = Loops(run.loop, graphs=True).follow(run.events)
    [(_, first)] = loops.graphs()
    assert loops.graphs()[0][1] is first
    run.cancel()


@pytest.mark.alone
def test_computing_the_graph_costs_little_for_each_event() -> None:
    calls = [c("give", f"†state.v{n}", v=f"†state.v{n // 2}" if n else 0) for n in range(500)]
    run = World().loop(solution(*calls), solution(output=1)).start(None)
    run.result(60)
    loops = Loops(run.loop, graphs=True)
    started = time.process_time()
    loops.follow(run.events)
    assert (time.process_time() - started) / len(run.events) < 150e-6  # 15 measured


# -- the drawing


def drawn_at_random(count: int, seed: int) -> list[tuple[int, int]]:
    rolled = random.Random(seed)
    return [(rolled.randrange(count), n) for n in range(count) for _ in range(rolled.choice((0, 1, 1, 2)))]


CASES = [
    (8, []),
    (12, [(n, n + 1) for n in range(11)] + [(0, 11), (0, 5), (0, 7)]),
    (14, [(n, 13) for n in range(12)] + [(12, n) for n in range(6)]),
    (5, [(0, 1), (1, 2), (2, 0), (2, 3), (4, 4)]),
    *[(DRAWN, drawn_at_random(DRAWN, seed)) for seed in range(5)],
]


@pytest.mark.parametrize(("count", "arrows"), CASES)
def test_boxes_never_overlap_and_arrows_never_pass_behind_a_box(count: int, arrows: list[tuple[int, int]]) -> None:
    layout = lay_out_graph(count, arrows)
    for (x, y), (x2, y2) in combinations(layout.places, 2):
        assert abs(x - x2) >= WIDTH or abs(y - y2) >= HEIGHT
    for x, y in layout.places:
        assert 0 <= x <= layout.width - WIDTH
        assert 0 <= y <= layout.height - HEIGHT
    for way in layout.ways.values():
        for x, y in way[1:-1]:  # across the whole of a column, at this height
            assert not any(left == x and top < y < top + HEIGHT for left, top in layout.places)


@pytest.mark.parametrize(("count", "arrows"), CASES)
def test_every_arrow_leads_to_the_right_or_is_drawn_below(count: int, arrows: list[tuple[int, int]]) -> None:
    layout = lay_out_graph(count, arrows)
    assert {*layout.ways, *layout.below} == {(source, target) for source, target in arrows if source != target}
    for (source, target), way in layout.ways.items():
        assert layout.places[source][0] < layout.places[target][0]
        xs = [x for x, _ in way]
        assert xs == sorted(set(xs))


def test_calls_without_dependencies_are_in_the_first_column() -> None:
    layout = lay_out_graph(4, [(2, 0), (0, 1), (3, 1)])
    assert layout.places[2][0] == layout.places[3][0] < layout.places[0][0] < layout.places[1][0]


def test_unconnected_calls_are_in_rows_in_their_order() -> None:
    places = lay_out_graph(6, []).places
    assert [y == places[0][1] for _, y in places] == [True] * 4 + [False] * 2
    assert places == sorted(places, key=lambda place: (place[1], place[0]))


def test_a_drawing_has_no_colours_and_its_picture_has_the_status_of_each_call() -> None:
    graph = view_of(CallDependencies(1, tuple(GraphCall(f"c{n}", "t", one) for n, one in enumerate(WORDS))))
    plain, (picture, _) = draw(graph.shape), graph_picture(graph.shape, graph.dresses)
    for words in WORDS.values():
        assert f">{words}</text>" in picture
        assert words not in plain
    assert len(set(WORDS.values())) == len(WORDS)
    assert not any(word in plain for word in ("style=", "fill=", "stroke=", " id=", "url("))


def test_names_in_a_graph_are_drawn_as_text() -> None:
    calls = (
        GraphCall(HOSTILE, HOSTILE, "failed", (HOSTILE,), (HOSTILE,), HOSTILE, {HOSTILE: [HOSTILE]}),
        GraphCall("\x00", "\ufffe", "blocked", (HOSTILE,), (HOSTILE,)),
        GraphCall("", "", "blocked"),
        GraphCall("w", "查询" * 40, "running"),
    )
    graph = view_of(CallDependencies(1, calls))
    for svg in (draw(graph.shape), graph_picture(graph.shape, graph.dresses)[0]):
        root = ElementTree.fromstring(svg)
        assert {part.tag.rpartition("}")[2] for part in root.iter()} <= {"svg", "title", "g", "path", "rect", "text"}
        texts = "".join(root.itertext())
        assert "<script>" in texts
        assert "(no tool)" in texts
        assert "\u202e" not in texts
    for _, _, sentence in graph.dresses:
        sentence.encode()
        assert "\u202e" not in sentence


# -- the static copy


def test_the_static_copy_has_the_graph_as_picture_and_as_text() -> None:
    run = waiting()
    page = Reader(static_html(run))
    assert page.is_inert()
    picture = page.picture("Call graph: Calls of request 1:")
    texts = [part.text for part in picture.iter() if part.tag.endswith("text")]
    assert texts[1::2] == [WORDS[one] for one in ("completed", "completed", "failed", "waiting", "blocked")]
    assert "c5 echo: blocked, waits for †state.summary && †state.mail" in page.text
    run.cancel()


def test_names_from_a_model_do_not_become_markup_in_a_graph() -> None:
    path = "†state.<img/src=x>"
    calls = [{"_tool": HOSTILE.replace("\ud800", ""), "_outputPath": path}, c("echo", v=path)]
    run = World().loop(solution(*calls), solution(output=1)).start(None)
    run.result(30)
    assert Reader(static_html(run)).is_inert()


def test_the_static_copy_of_a_large_graph_is_small() -> None:
    @tool
    async def give(v: Any) -> None:
        raise RuntimeError("&" * 1000)

    name = "†state." + "&<>" * 20
    calls = [c("give", "†state.v", v="&<>" * 100, _instance=name) for _ in range(200)]
    calls += [c("&<>" * 20, v=["†state.v"] * 10) for _ in range(200)]
    run = World().loop(solution(*calls), solution(output=1), tools=[give]).start("&<>" * 1000)
    run.result(30)
    html = static_html(run)
    assert len(html.encode()) < 200_000
    assert "and 360 more" in Reader(html).text
    [(_, graph)] = Loops(run.loop, graphs=True).follow(run.events).graphs()
    assert len(graph.shape[1]) <= ARROWS
