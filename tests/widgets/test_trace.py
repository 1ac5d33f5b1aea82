"""The trace of a run: a tree of rows with what was called, how long it took, what was decided and what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall
from agentnb.testing import call
from agentnb.widgets.views.trace import Row, Trace, in_short, output
from tests import designs
from tests.widgets.support import asking, asking_everywhere, asking_inside, session, until
from tests.widgets.test_spans import stamped


def rows_of(run: Any) -> tuple[Row, ...]:
    return Trace().follow(run.events).rows()


def names(rows: tuple[Row, ...]) -> list[Any]:
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
