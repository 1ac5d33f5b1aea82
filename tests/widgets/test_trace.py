"""The trace of a run: a tree of rows with what was called, how long it took, what was decided and what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall
from agentnb.testing import call
from agentnb.widgets.text import one_line
from agentnb.widgets.views.short import in_short, output, result_in_short
from agentnb.widgets.views.trace import Row, Trace
from tests import designs
from tests.widgets.support import asking, asking_everywhere, asking_inside, session, until
from tests.widgets.test_spans import stamped


def rows_of(run: Any) -> tuple[Row, ...]:
    return Trace().follow(run.events).rows()


def names(rows: Sequence[Row]) -> list[Any]:
    """The kinds and names of rows, with those inside."""
    return [(f"{row.kind} {row.name}", names(row.inside)) if row.inside else f"{row.kind} {row.name}" for row in rows]


def made(*calls: ToolCall, text: str = "") -> Message:
    return Message(role="assistant", content=text, tool_calls=list(calls))


def test_turns_have_their_calls_and_messages_stand_between_turns() -> None:
    run = session([[call("search", {"query": "a"}, id="a"), call("search", {"query": "b"}, id="b")], "Done."])
    run.steer("And c?")
    run.result(30)
    assert (
        names(rows_of(run))
        == [
            ("turn Turn 1", ["call search", "call search"]),
            "message You",
            "turn Turn 2",
        ]
        or names(rows_of(run))[0] == "message You"
    )
    [turn] = [row for row in rows_of(run) if row.name == "Turn 1"]
    assert [row.shortened for row in turn.inside] == ['query="a"', 'query="b"']
    assert [row.result for row in turn.inside] == [["a 1", "a 2"], ["b 1", "b 2"]]
    assert {row.status for row in turn.inside} == {"done"}
    assert rows_of(run)[-1].text == "Done."
    assert Trace().follow(run.events).question() == "tidy up"


def test_a_call_that_a_loop_performs_has_the_rows_of_that_loop() -> None:
    run = asking_everywhere()
    run.play()
    until(lambda: len(run.pending) == 3)
    [turn] = rows_of(run)
    assert names((turn,)) == [
        (
            "turn Turn 1",
            [
                ("loop critic", [("turn Turn 1", ["call delete_file"])]),
                ("loop critic:k2", [("turn Turn 1", ["call delete_file"])]),
                "call delete_file",
            ],
        )
    ]
    assert [turn.inside[0].inside[0].inside[0].status, turn.inside[2].status] == ["waiting", "waiting"]
    assert turn.inside[2].why
    assert turn.count("call") == 3
    run.cancel()


def test_a_loop_that_a_design_runs_has_what_it_was_given_to_do() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    run.approve("worker/c0")
    run.result(30)
    loops = [row for row in rows_of(run) if row.kind == "loop"]
    assert [(row.name, row.text, row.shortened) for row in loops] == [
        ("worker", "Write the draft", ""),
        ("worker", "Proof-read it", ""),
    ]


def test_times_are_without_waits_and_decisions_say_who_and_after_how_long() -> None:
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=made(ToolCall(id="c", name="rm", arguments={"path": "/a"}))),
        e.ApprovalRequest(call_id="c", name="rm", arguments={"path": "/a"}, reason="It needs write."),
        e.StateUpdate(values={}),
        e.ApprovalDecision(call_id="c", decision="edit", arguments={"path": "/b"}, question=3, reviewer="Ann"),
        e.CallStart(call_id="c", name="rm", arguments={"path": "/b"}),
        e.CallEnd(call_id="c", name="rm", result="gone"),
    )
    [[waits]] = [turn.inside for turn in Trace().follow(events, 5).rows()]
    [[decided_row]] = [turn.inside for turn in Trace().follow(events, 6).rows()]
    assert [waits.shortened, decided_row.shortened] == ['path="/a"', 'path="/b"']
    [turn] = Trace().follow(events).rows()
    [row] = turn.inside
    assert (turn.seconds, row.seconds) == (1.0, 1.0)
    assert row.shortened == 'path="/b"'
    [decided] = row.decided
    assert (decided.what, decided.by, decided.after, decided.before) == ("edited", "Ann", 2.0, 'rm(path="/a")')
    assert decided.by_person
    assert not decided.remembered


def test_the_trace_says_how_far_each_call_has_come() -> None:
    calls = [ToolCall(id=id, name=id, arguments={}) for id in ("ended", "failed", "runs", "waits", "next")]
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=made(*calls)),
        *(e.CallStart(call_id=id, name=id, arguments={}) for id in ("ended", "failed", "runs")),
        e.CallEnd(call_id="ended", name="ended", result=1),
        e.CallEnd(call_id="failed", name="failed", result="No: x", is_error=True, outcome="raised"),
        e.ApprovalRequest(call_id="waits", name="waits", arguments={}),
        e.ModelStart(turn=2),
    )
    turn, running = Trace().follow(events).rows()
    assert {row.name: row.status for row in turn.inside} == {
        "ended": "done",
        "failed": "failed",
        "runs": "running",
        "waits": "waiting",
        "next": "next",
    }
    assert next(row.text for row in turn.inside if row.name == "failed") == "No: x"
    assert running.status == "running"


def test_a_failed_request_and_its_repetition_are_rows_of_their_own() -> None:
    failure = e.ErrorInfo(type="RateLimit", message="429")
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelFailed(error=failure),
        e.RunResumed(),
        e.ModelStart(turn=1, attempt=2),
        e.ModelEnd(message=made(text="Yes"), stop_reason="length"),
    )
    rows = Trace().follow(events).rows()
    assert [(row.name, row.status, row.text, row.outcome) for row in rows] == [
        ("Turn 1", "failed", "RateLimit: 429", ""),
        ("Turn 1, attempt 2", "done", "Yes", "cut off: length"),
    ]


def test_a_withdrawn_decision_is_followed_by_the_new_one() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.undo("c0")
    run.reject("c0", "keep it")
    run.result(30)
    row = rows_of(run)[0].inside[0]
    assert [decided.what for decided in row.decided] == ["approved", "withdrawn", "rejected"]
    assert (row.status, row.outcome) == ("failed", "rejected")


@pytest.mark.parametrize("world", designs.WORLDS)
def test_following_event_by_event_gives_the_same_rows_as_all_at_once(world: str) -> None:
    run = designs.WORLDS[world]().start("go", approve=True)
    run.result(30)
    trace = Trace()
    for position in range(len(run.events)):
        trace.follow(run.events[: position + 1])
        if position % 9 == 0:
            assert trace.rows() == Trace().follow(run.events[: position + 1]).rows()
    assert trace.rows() == rows_of(run)


def applied(trace: Trace, until: int) -> tuple[list[Any], list[Any]]:
    """The rows that a page has at a position, by number, and the numbers of the outermost, by the rule of the page."""
    rows: list[Any] = []
    outermost: list[Any] = []
    for position in range(until):
        for change in json.loads(trace.changes(position) or b"[]"):
            number, place = change["number"], change.pop("place", None)
            if number == len(rows):
                rows.append({"position": position, "text": "", "arguments": "", "inside": []} | change)
                parent = change.get("parent")
                siblings = rows[parent]["inside"] if parent is not None else outermost
                siblings.append(number)
            else:
                rows[number].update(change)
            parent = rows[number].get("parent")
            if place is not None:
                rows[parent]["inside"].remove(number)
                rows[parent]["inside"].insert(place, number)
            if change.get("removed"):
                rows[parent]["inside"].remove(number)
    return rows, outermost


def check_page(trace: Trace, until: int) -> None:
    """Check that a page has the rows of the trace, in the same places."""
    told, outermost = applied(trace, until)
    assert outermost == [row.number for row in trace.rows()]
    for row in trace.all:
        page = told[row.number]
        assert page["inside"] == [inner.number for inner in row.inside]
        if page.get("removed"):
            continue
        names = ("kind", "status", "position", "name")
        assert [page[name] for name in names] == [getattr(row, name) for name in names]
        assert (page.get("span", -1), page.get("loop", -1)) == (row.span, row.loop)
        assert (page["text"], page["arguments"]) == (one_line(row.text.strip().partition("\n")[0]), row.shortened)
        assert page.get("outcome", "") == row.outcome
        shown = [decided for decided in row.decided if decided.is_worth_a_line]
        assert page.get("decided", {}).get("position") == (shown[-1].position if shown else None)
        if row.kind == "call" and row.status == "done":
            assert page["result"] == result_in_short(row.result)


@pytest.mark.parametrize("world", designs.WORLDS)
def test_a_page_that_applies_the_changes_has_the_same_rows_at_every_position(world: str) -> None:
    run = designs.WORLDS[world]().start("go", approve=True)
    run.result(30)
    trace = Trace()
    for end in range(len(run.events) + 1):
        trace.follow(run.events, end)
        check_page(trace, end)


def test_a_truncated_recording_has_fewer_rows_and_raises_no_error() -> None:
    run = designs.WORLDS["session_of_agents"]().start("go", approve=True)
    run.result(30)
    for first in range(len(run.events)):
        cut = [event.model_copy(update={"seq": n}) for n, event in enumerate(run.events[first:])]
        check_page(Trace().follow(cut), len(cut))


def test_the_passes_of_a_loop_agent_are_rows_around_its_agents() -> None:
    run = designs.WORLDS["loop_agent"]().start("go")
    run.result(30)
    one, two, answer = rows_of(run)
    assert [(row.kind, row.name, row.status, row.position) for row in (one, two)] == [
        ("pass", "Pass 1", "done", 1),
        ("pass", "Pass 2", "done", 23),
    ]
    assert [row.name for row in one.inside] == [row.name for row in two.inside] == ["first", "second"]
    assert one.seconds is not None
    assert one.seconds == pytest.approx(run.events[23].time - run.events[1].time)
    assert (answer.kind, answer.result) == ("answer", "second two")


def test_calls_that_have_not_begun_are_gone_when_their_loop_ends() -> None:
    calls = [ToolCall(id=id, name=id, arguments={}) for id in ("ran", "waits", "never")]
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=made(*calls)),
        e.CallStart(call_id="waits", name="waits", arguments={}),
        e.CallStart(call_id="ran", name="ran", arguments={}),
        e.CallEnd(call_id="ran", name="ran", result=1),
        e.RunEnd(reason="cancelled"),
    )
    trace = Trace().follow(events, 5)
    assert [row.name for row in trace.rows()[0].inside] == ["waits", "ran", "never"]  # in the order of their begin
    trace.follow(events)
    check_page(trace, len(events))
    assert [row.name for row in trace.rows()[0].inside] == ["waits", "ran"]


def test_arguments_that_an_edit_has_changed_are_those_of_the_call_before() -> None:
    calls = [ToolCall(id=id, name="rm", arguments={"path": "/a", "force": force}) for id, force in (("c", 0), ("d", 1))]
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=made(*calls)),
        e.CallStart(call_id="c", name="rm", arguments={"path": "/b", "force": 1}),
    )
    trace = Trace().follow(events, 3)
    assert [row.shortened for row in trace.rows()[0].inside] == ['path="/a", force=0', 'force=1, path="/a"']
    trace.follow(events)
    assert [row.shortened for row in trace.rows()[0].inside] == ['path="/b", force=1', 'path="/a", force=1']
    check_page(trace, 4)


def test_the_cost_of_an_event_does_not_grow_with_the_run() -> None:
    turns = 3001
    events: list[e.Event] = [e.RunStart(loop="L", name="l")]
    for turn in range(1, turns):
        events += [
            e.ModelStart(turn=turn),
            e.ModelEnd(message=made(ToolCall(id=f"c{turn}", name="f", arguments={"n": turn}), text="So:")),
            e.CallStart(call_id=f"c{turn}", name="f", arguments={"n": turn}),
            e.CallEnd(call_id=f"c{turn}", name="f", result=turn),
        ]
    events = stamped(*events)
    trace = Trace()
    told = [len(trace.follow(events, end).changes(end - 1)) for end in (4000, 8000, 12000)]
    assert max(told) < 200
    assert sum(len(trace.changes(position)) for position in range(12000)) < 120 * 12000


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (None, ""),
        (1.5, "1.5"),
        ("one\ntwo", "one"),
        ([{"a": 1}] * 9, "9 rows"),
        ({"rounds": 2000, "as_large": 0}, "rounds=2000, as_large=0"),
        (list(range(9)), "[0, 1, … 9]"),
        ("x" * 500, "x" * 99 + "…"),
    ],
)
def test_results_in_short(result: Any, line: str) -> None:
    assert result_in_short(result) == line


@pytest.mark.parametrize(
    ("arguments", "before", "line"),
    [
        ({}, {}, ""),
        ({"a": 1, "b": "x"}, {}, 'a=1, b="x"'),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}, 'b="x", a=1'),
        ({"years": list(range(1880, 1960, 10))}, {}, "years=[1880, 1890, … 8]"),
        ({"years": [1, 2]}, {}, "years=[1, 2]"),
        ({"text": "one\ntwo\n"}, {}, "text=2 lines"),
        ({"text": "x" * 200}, {}, f'text="{"x" * 95}…"'),
        ({"of": {str(n): n for n in range(9)}}, {}, "of={0, 1, … 9}"),
    ],
)
def test_arguments_in_short(arguments: Any, before: Any, line: str) -> None:
    assert in_short(arguments, before) == line


def test_many_arguments_are_cut_at_their_end() -> None:
    line = in_short({f"name{n}": "x" * 30 for n in range(20)}, {})
    assert len(line) == 240
    assert line.endswith("…")


def test_a_short_result_is_in_the_line_and_records_are_a_table() -> None:
    assert (output(1.1596).line, output("yes").line, output(None).line) == ("1.1596", "yes", "")
    table = output([{"year": 1880 + n, "mean": 10.5 * n, "name": "ab"[n]} for n in range(2)] * 3)
    assert (table.line, table.words) == ("", "6 rows")
    assert table.text.split("\n")[:3] == ["year  mean  name", "1880   0.0  a", "1881  10.5  b"]
    assert output("one\n" * 40).words == "41 lines"
    assert output({"a": ["x" * 90]}).words == "output"
    nested = output([{"a": {"b": "x" * 40}}, {"a": {"b": "x" * 40}}])
    assert nested.words == "output"
    assert output([{"n": n} for n in range(1000)]).text.endswith("… 600 more rows")
