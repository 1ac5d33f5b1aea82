from __future__ import annotations

import json
from typing import Any

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, delay, text
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.rows import encode_rows
from agentnb.widgets.views.spans import INTERVALS, Spans
from agentnb.widgets.views.trace import Trace
from tests.widgets.support import asking, asking_inside, search, session, until


def causes_of(run: Any) -> Causes:
    return Spans().follow(run.events).causes


def chain(run: Any, position: int) -> list[str]:
    """The types of the events that led to one, the nearest first."""
    causes, types = causes_of(run), []
    while (position := causes.causes[position]) >= 0:
        types.append(run.events[position].type)
    return types


def find(run: Any, type: str, number: int = 0) -> int:
    return [event.seq for event in run.events if event.type == type][number]


def test_the_causes_of_a_result_lead_to_the_answer_that_made_the_call() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.result(30)
    led = ["call_start", "approval_decision", "approval_request", "model_end", "model_start", "message", "run_start"]
    assert chain(run, find(run, "call_end")) == led
    assert chain(run, find(run, "model_start", 1)) == ["call_end", *led]


def test_the_cause_of_a_message_is_its_queued_event() -> None:
    run = session([[*text("One"), delay(0.2)], "Two."])
    run.submit_step("event").result(30)
    run.follow_up("and then?")
    run.result(30)
    causes = causes_of(run)
    heard = next(event for event in run.events if event.type == "message" and event.origin == "follow_up")
    assert causes.causes[heard.seq] == find(run, "queued")
    assert causes.causes[find(run, "queued")] == -1


def test_after_a_withdrawal_the_remaining_message_has_the_right_cause() -> None:
    run = session([[*text("One"), delay(0.2)], "Two."])
    run.submit_step("event").result(30)
    run.follow_up("first")
    run.follow_up("second")
    second = run.queued[1][1]
    assert run.withdraw("follow_up", second) == [second]
    run.result(30)
    causes = causes_of(run)
    heard = next(event for event in run.events if event.type == "message" and event.origin == "follow_up")
    assert causes.causes[heard.seq] == find(run, "queued", 0)
    assert causes.causes[find(run, "withdrawn")] == find(run, "queued", 1)


def test_the_cause_of_a_nested_loop_is_its_call() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    begun = next(event for event in run.events if event.type == "run_start" and event.path)
    cause = run.events[causes_of(run).causes[begun.seq]]
    assert (cause.type, cause.call_id) == ("call_start", begun.call)
    run.cancel()


def test_a_call_with_a_reused_id_is_another_span() -> None:
    again = [call("search", {"query": "x"}, id="same")]
    run = session([again, again, "ok"])
    run.result(30)
    causes = causes_of(run)
    ends = [event.seq for event in run.events if event.type == "call_end"]
    assert causes.spans[ends[0]] != causes.spans[ends[1]]
    assert run.events[causes.causes[causes.causes[ends[1]]]].message is run.messages[3]


def test_a_later_event_does_not_change_earlier_causes() -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.reject("c1", "no")
    run.result(30)
    whole, one_by_one = causes_of(run), Causes()
    for end in range(len(run.events) + 1):
        one_by_one.follow(run.events, end)
    assert (whole.causes, whole.spans, whole.names) == (one_by_one.causes, one_by_one.spans, one_by_one.names)


def test_a_truncated_recording_has_fewer_causes_and_raises_no_error() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    run.approve("worker/c0")
    run.result(30)
    for first in range(len(run.events)):
        cut = [event.model_copy(update={"seq": n}) for n, event in enumerate(run.events[first:])]
        spans = Spans().follow(cut)
        assert all(cause < position for position, cause in enumerate(spans.causes.causes))
        assert sum(1 for _ in spans.rows()) == len(spans.causes.names)


def stamped(*events: e.Event) -> list[Any]:
    """These events, a second apart."""
    return [event.model_copy(update={"seq": n, "time": 100.0 + n}) for n, event in enumerate(events)]


def test_the_duration_of_a_run_is_divided_by_activity() -> None:
    asked = Message.model_validate(
        {"role": "assistant", "tool_calls": [{"id": "c", "name": "rm", "arguments": {}}, {"id": "d", "name": "ls"}]}
    )
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=asked, usage={"input_tokens": 1200, "cost": 0.0123}),
        e.ApprovalRequest(call_id="c", name="rm", arguments={}),
        e.CallStart(call_id="d", name="ls", arguments={}),
        e.CallEnd(call_id="d", name="ls", is_error=True, outcome="raised"),
        e.ApprovalDecision(call_id="c", decision="approve"),
        e.CallStart(call_id="c", name="rm", arguments={}),
        e.CallEnd(call_id="c", name="rm"),
        e.RunEnd(reason="completed"),
    )
    spans = Spans().follow(events)
    told = [(row.kind, row.name, row.opened - 100, (row.ended or 0) - 100, row.depth) for row in spans.rows()]
    assert told == [
        ("loop", "l", 0, 9, 0),
        ("model", "turn 1", 1, 2, 1),
        ("call", "rm", 2, 8, 1),
        ("call", "ls", 2, 5, 1),
    ]
    rm, ls = list(spans.rows())[2:]
    assert [(part.kind, part.start - 100, (part.end or 0) - 100) for part in rm.intervals] == [
        ("wait", 3, 6),
        ("run", 7, 8),
    ]
    assert (rm.failed, ls.failed) == (False, True)
    assert (spans.requests[0].calls, spans.requests[0].call_time) == (2, 2)
    assert spans.spent == {"model": 1.0, "call": 2.0, "wait": 3.0}


def test_a_call_that_starts_when_another_ends_has_waited_for_it() -> None:
    def propose(id: str) -> e.Event:
        return e.CallProposed(call=ToolCall(id=id, name=id.upper()))

    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        propose("a"),
        propose("b"),
        e.CallStart(call_id="a", name="A", arguments={}),
        e.ModelEnd(message=Message(role="assistant", content="")),
        e.CallEnd(call_id="a", name="A"),
        e.CallStart(call_id="b", name="B", arguments={}),
        e.CallEnd(call_id="b", name="B"),
    )
    spans = Spans().follow(events)
    assert spans.causes.awaited == {7: 6}, "the first began while the model still spoke, and waited for nothing"
    assert spans.marks(7) == {"cause": 3, "span": 3, "after": 6}
    assert spans.causes.name_of(6) == "A"


def test_concurrent_questions_count_as_one_wait() -> None:
    def ask(id: str) -> e.Event:
        return e.ApprovalRequest(call_id=id, name="rm", arguments={})

    asked = [ask(str(n)) for n in range(5)]
    decided = [e.ApprovalDecision(call_id=str(n), decision="approve") for n in range(5)]
    events = stamped(e.RunStart(loop="L", name="l"), *asked, *decided, ask("0"), e.RunEnd(reason="completed"))
    spans = Spans().follow(events)
    assert spans.spent["wait"] == 9 + 1, "from the first question to the last answer, and then once more"
    assert spans.last - spans.began == 12


def test_a_pause_is_not_counted_as_a_wait_for_a_decision() -> None:
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ApprovalRequest(call_id="a", name="rm", arguments={}),
        e.ApprovalDecision(call_id="a", decision="approve"),
        e.RunPaused(reason="step"),
        e.RunStart(path="x", loop="L", name="x"),
        e.RunResumed(),
        e.RunEnd(reason="completed"),
    )
    spans = Spans().follow(events)
    assert (spans.spent["wait"], spans.paused) == (1.0, 2.0)
    assert json.loads(spans.changes(5))["paused"] == 2.0


def test_the_times_add_up_with_the_time_between_steps() -> None:
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelFailed(error=e.ErrorInfo(type="Busy", message="")),
        e.ModelStart(turn=1, attempt=2),
        e.ModelEnd(message=Message(role="assistant", content="")),
        e.ApprovalRequest(call_id="a", name="rm", arguments={}),
        e.RunPaused(reason="step"),
        e.ApprovalDecision(call_id="a", decision="approve"),
        e.RunResumed(),
        e.CallStart(call_id="a", name="rm", arguments={}),
        e.CallEnd(call_id="a", name="rm"),
    )
    spans = Spans().follow(events)
    assert spans.spent == {"model": 2.0, "call": 1.0, "wait": 2.0}
    assert (spans.paused, spans.idle) == (1.0, 4.0)  # a request is repeated: a person resumes, or a process goes on
    assert sum(spans.spent.values()) + spans.paused + spans.idle == spans.last - spans.began
    assert spans.figures.seconds == spans.spent["model"] + spans.spent["call"]
    assert [json.loads(spans.changes(position) or b"{}").get("idle") for position in (1, 3, 5, 9)] == [1, 2, 3, 4]


def test_what_ran_when_a_process_exited_has_ended_with_the_event_before() -> None:
    asked = Message.model_validate({"role": "assistant", "tool_calls": [{"id": id, "name": "ls"} for id in "ab"]})
    before = [
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=asked),
        e.CallStart(call_id="a", name="ls", arguments={}),
        e.CallStart(call_id="b", name="ls", arguments={}),
    ]
    after = [
        e.CallStart(call_id="a", name="ls", arguments={}, attempt=2),
        e.CallStart(call_id="b", name="ls", arguments={}, attempt=2),
        e.CallEnd(call_id="a", name="ls"),
        e.CallEnd(call_id="b", name="ls"),
        e.ModelStart(turn=2),
    ]
    night = [event.model_copy(update={"time": event.time + 3600}) for event in stamped(*before, *after)]
    spans = Spans().follow([*stamped(*before), *night[len(before) :]])
    assert spans.spent["call"] == 1 + 0 + 2 + 2  # the first attempts until the event before, then the second
    assert spans.idle == 1 + 1 + 3601 + 1
    lost = e.ModelStart(turn=2, attempt=2).model_copy(update={"seq": len(night), "time": night[-1].time + 600})
    spans = Spans().follow([*stamped(*before), *night[len(before) :], lost])
    assert (spans.spent["model"], spans.requests[1].ended) == (1.0, night[-1].time)


def test_the_time_of_a_call_and_of_a_request_excludes_waits() -> None:
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelFailed(error=e.ErrorInfo(type="Busy", message="")),
        e.RunPaused(reason="the model failed"),
        e.RunResumed(),
        e.ModelStart(turn=1, attempt=2),
        e.CallProposed(call=ToolCall(id="a", name="rm")),
        e.ModelEnd(message=Message(role="assistant", content="")),
        e.ApprovalRequest(call_id="a", name="rm", arguments={}),
        e.ApprovalDecision(call_id="a", decision="approve"),
        e.CallStart(call_id="a", name="rm", arguments={}),
        e.CallEnd(call_id="a", name="rm"),
    )
    spans = Spans().follow(events)
    worked = {span.kind: span.worked(spans.last) for span in spans.all if span.kind != "model"}
    assert worked["call"] == 1.0
    assert sum(span.worked(spans.last) for span in spans.requests) == 3.0


def test_a_call_lost_in_a_crash_waits_from_the_question_on() -> None:
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.CallProposed(call=ToolCall(id="a", name="rm")),
        e.CallProposed(call=ToolCall(id="b", name="ls")),
        e.CallStart(call_id="a", name="rm", arguments={}),
        e.ApprovalRequest(call_id="b", name="ls", arguments={}),
        e.ApprovalDecision(call_id="b", decision="reject"),
        e.ApprovalRequest(call_id="a", name="rm", arguments={}, unknown=True),
        e.ApprovalDecision(call_id="a", decision="approve"),
        e.CallStart(call_id="a", name="rm", arguments={}, attempt=2),
        e.CallEnd(call_id="a", name="rm"),
    )
    spans = Spans().follow(events)
    lost = next(row for row in spans.rows() if row.name == "rm")
    assert [(part.kind, part.start - 100, (part.end or 0) - 100) for part in lost.intervals] == [
        ("run", 3, 5),
        ("wait", 6, 7),
        ("run", 8, 9),
    ]
    assert spans.spent == {"model": 0.0, "call": 3.0, "wait": 2.0}, "the other was waited for while it ran"


def test_open_spans_end_with_their_loop_and_nested_loops_are_not_counted_twice() -> None:
    inner = SessionLoop(ScriptedLLM([[call("search", {"query": "x"}, id="s")], "Found."]), [search], name="finder")
    outer = SessionLoop(ScriptedLLM([[call("finder", {"input": "find"}, id="f")], "ok"]), [inner])
    run = outer.start("go")
    run.result(30)
    spans = Spans().follow(run.events)
    rows = list(spans.rows())
    names = ["session_loop", "turn 1", "finder", "finder", "turn 1", "search", "turn 2", "turn 2"]
    assert [row.name for row in rows] == names
    assert [row.depth for row in rows] == [0, 1, 1, 1, 2, 2, 2, 1]
    assert all(row.ended is not None for row in rows)
    performed, found = rows[2], rows[5]
    assert performed.performed
    assert spans.spent["call"] == sum((part.end or 0) - part.start for part in found.intervals)
    cancelled = asking("/a")
    cancelled.submit_step("turn").result(30)
    cancelled.cancel()
    assert all(row.ended is not None for row in Spans().follow(cancelled.events).rows())


def applied(rows: list[dict[str, Any]]) -> tuple[dict[int, dict[str, Any]], dict[str, float]]:
    """The spans and the seconds spent that a page has after these rows: it only applies the changes."""
    spans: dict[int, dict[str, Any]] = {}
    spent = {"model": 0.0, "call": 0.0, "wait": 0.0}
    for position, row in enumerate(rows):
        spent = row.get("spent", spent)
        for change in row.get("spans", ()):
            intervals = change.pop("intervals", {})
            span = spans.setdefault(change["number"], {"ended": None, "failed": False, "calls": 0, "intervals": []})
            span.update(change)
            for index, fields in intervals.items():
                if int(index) == len(span["intervals"]):
                    span["intervals"].append({"end": None, "after": None, "position": position})
                span["intervals"][int(index)].update(fields)
    return spans, spent


def test_a_page_that_applies_the_rows_has_the_same_spans_at_every_position() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    run.approve("worker/c0")
    run.result(30)
    for end in range(len(run.events) + 1):
        trace = Trace().follow(run.events, end)
        spans = trace.spans
        rows, count = encode_rows(run.events[:end], 10**9, trace)
        assert count == end
        page, spent = applied(json.loads(rows))
        assert spent == spans.spent
        assert [page[span.number]["name"] for span in spans.all] == [span.name for span in spans.all]
        for span in spans.all:
            told = page[span.number]
            fields = ("kind", "path", "opened", "ended", "failed", "depth", "calls")
            assert [told[name] for name in fields] == [getattr(span, name) for name in fields]
            assert told["parent"] == (span.parent.number if span.parent is not None else None)
            times = [(part.kind, part.start, part.end, part.position) for part in span.intervals]
            assert [(part["kind"], part["start"], part["end"], part["position"]) for part in told["intervals"]] == times


def test_a_call_that_is_retried_keeps_a_bounded_number_of_intervals_and_the_last_continues() -> None:
    start = e.CallStart(call_id="a", name="rm", arguments={})
    ask = e.ApprovalRequest(call_id="a", name="rm", arguments={})
    [span] = Spans().follow(stamped(*([start, ask] * 100))).all
    assert len(span.intervals) == INTERVALS
    assert span.intervals[-1].end is None


def test_a_span_has_the_event_and_the_time_since_which_it_waited() -> None:
    def propose(id: str) -> e.Event:
        return e.CallProposed(call=ToolCall(id=id, name=id))

    events = stamped(
        e.RunStart(loop="L", name="l"),
        propose("a"),
        propose("b"),
        e.CallStart(call_id="a", name="a", arguments={}),
        e.CallEnd(call_id="a", name="a"),
        e.CallStart(call_id="b", name="b", arguments={}),
    )
    [interval] = Spans().follow(events).all[2].intervals
    assert (interval.since - 100, interval.start - 100, interval.after) == (0, 5, 4)


def test_a_call_that_never_started_ends_with_its_loop() -> None:
    events = stamped(
        e.RunStart(loop="L", name="l"),
        e.CallProposed(call=ToolCall(id="a", name="a")),
        e.RunEnd(reason="cancelled"),
    )
    _, call = Spans().follow(events).all
    assert (call.ended, call.intervals) == (102.0, [])


def nested(*inside: e.Event) -> list[Any]:
    """A call that a loop performs, with these events inside it."""
    asked = Message(role="assistant", content="", tool_calls=[ToolCall(id="c", name="inner", arguments={})])
    return stamped(
        e.RunStart(loop="L", name="l"),
        e.ModelStart(turn=1),
        e.ModelEnd(message=asked),
        e.CallStart(call_id="c", name="inner", arguments={}),
        e.RunStart(path="inner", loop="L", name="inner", call="c"),
        *inside,
        e.RunEnd(path="inner", reason="completed"),
        e.CallEnd(call_id="c", name="inner"),
        e.ModelStart(turn=2),
    )


def worked(events: list[Any]) -> tuple[float, float]:
    """The seconds that the call of `nested` and the loop in it have worked."""
    spans = Spans().follow(events)
    [call] = [span for span in spans.all if span.kind == "call" and not span.path]
    [loop] = [span for span in spans.all if span.kind == "loop" and span.path]
    assert call.performed
    return call.worked(spans.last), loop.worked(spans.last)


ASKED = e.ApprovalRequest(path="inner", call_id="d", name="rm", arguments={})
DECIDED = e.ApprovalDecision(path="inner", call_id="d", decision="approve")
STARTED = e.CallStart(path="inner", call_id="d", name="rm", arguments={})
ENDED = e.CallEnd(path="inner", call_id="d", name="rm")
NOTHING = e.StateUpdate(values={}, path="inner")


def test_the_time_of_a_nested_loop_and_of_its_call_excludes_waits_for_a_person_inside() -> None:
    assert worked(nested(NOTHING, NOTHING)) == (5, 3)
    events = nested(ASKED, NOTHING, NOTHING, DECIDED, STARTED, ENDED)
    assert worked(events) == (6, 4)
    assert worked(events[:8]) == (2, 1), "it waits still"
    assert worked(events[:6]) == (2, 1), "it has begun to wait"


def test_the_time_of_a_nested_loop_excludes_pauses() -> None:
    events = nested(e.RunPaused(reason="step"), NOTHING, NOTHING, e.RunResumed(), NOTHING)
    assert worked(events) == (5, 3)
    assert worked(events[:8]) == (2, 1), "it is paused still"


def test_a_wait_while_something_else_runs_in_the_loop_is_work() -> None:
    other = [e.CallStart(path="inner", call_id="o", name="ls", arguments={})]
    events = nested(ASKED, *other, NOTHING, e.CallEnd(path="inner", call_id="o", name="ls"), NOTHING, DECIDED)
    assert worked(events) == (9 - 3, 7 - 3), "from the question to the start of the other call, and after its end"
    events = nested(
        *other, e.RunPaused(reason="step"), NOTHING, e.CallEnd(path="inner", call_id="o", name="ls"), NOTHING
    )
    assert worked(events) == (8 - 2, 6 - 2), "from the end of the call to the end of the loop"


def test_the_page_gets_the_waits_of_nested_loops() -> None:
    events = nested(ASKED, NOTHING, DECIDED)
    spans = Spans().follow(events)
    changed = [json.loads(spans.changes(position) or b"{}").get("spans", []) for position in (5, 7)]
    told = [{one["number"]: (one.get("waited"), one.get("waits_since")) for one in each} for each in changed]
    [call] = [span.number for span in spans.all if span.performed]
    [loop] = [span.number for span in spans.all if span.kind == "loop" and span.path]
    assert (told[0][call], told[0][loop]) == ((None, 105.0), (None, 105.0))
    assert (told[1][call], told[1][loop]) == ((2.0, None), (2.0, None))


def test_a_wait_in_a_loop_two_levels_down_is_one_of_all_loops_around() -> None:
    inner = "inner/deep"
    asked = Message(role="assistant", content="", tool_calls=[ToolCall(id="k", name="deep", arguments={})])
    events = nested(
        e.ModelStart(path="inner", turn=1),
        e.ModelEnd(path="inner", message=asked),
        e.CallStart(path="inner", call_id="k", name="deep", arguments={}),
        e.RunStart(path=inner, loop="L", name="deep", call="k"),
        e.ApprovalRequest(path=inner, call_id="d", name="rm", arguments={}),
        e.StateUpdate(path=inner, values={}),
        e.ApprovalDecision(path=inner, call_id="d", decision="reject"),
        e.RunEnd(path=inner, reason="completed"),
        e.CallEnd(path="inner", call_id="k", name="deep"),
    )
    spans = Spans().follow(events)
    seconds = {f"{span.kind} {span.name}": span.worked(spans.last) for span in spans.all}
    assert {name: seconds[name] for name in ("loop deep", "call deep", "loop inner", "call inner")} == {
        "loop deep": 4 - 2,
        "call deep": 6 - 2,
        "loop inner": 10 - 2,
        "call inner": 12 - 2,
    }
