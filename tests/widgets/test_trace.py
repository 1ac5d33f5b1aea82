from __future__ import annotations

from typing import Any

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall
from agentnb.loops.session_loop import SessionLoop
from agentnb.testing import ScriptedLLM, call, delay, text
from agentnb.widgets.views.things import Things, bill, duration
from agentnb.widgets.views.trace import Trace
from tests.widgets.support import asking, asking_inside, search, session, until


def traced(run: Any) -> Trace:
    trace = Trace()
    trace.follow(run.events, len(run.events))
    return trace


def chain(run: Any, position: int) -> list[str]:
    """The types of the events that led to one, the nearest first."""
    trace, types = traced(run), []
    while (position := trace.causes[position]) >= 0:
        types.append(run.events[position].type)
    return types


def find(run: Any, type: str, number: int = 0) -> int:
    return [event.seq for event in run.events if event.type == type][number]


def test_from_a_result_one_comes_to_the_answer_that_made_the_call() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.result(30)
    led = ["call_start", "approval_decision", "approval_request", "model_end", "model_start", "message", "run_start"]
    assert chain(run, find(run, "call_end")) == led
    assert chain(run, find(run, "model_start", 1)) == ["call_end", *led]


def test_a_message_leads_to_where_it_was_queued() -> None:
    run = session([[*text("One"), delay(0.2)], "Two."])
    run.submit_step("event").result(30)
    run.follow_up("and then?")
    run.result(30)
    trace = traced(run)
    heard = next(event for event in run.events if event.type == "message" and event.origin == "follow_up")
    assert trace.causes[heard.seq] == find(run, "queued")
    assert trace.causes[find(run, "queued")] == -1


def test_a_message_that_was_taken_back_leads_nowhere_and_the_one_that_is_left_to_where_it_was_queued() -> None:
    run = session([[*text("One"), delay(0.2)], "Two."])
    run.submit_step("event").result(30)
    run.follow_up("first")
    run.follow_up("second")
    second = run.queued[1][1]
    assert run.withdraw("follow_up", second) == [second]
    run.result(30)
    trace = traced(run)
    heard = next(event for event in run.events if event.type == "message" and event.origin == "follow_up")
    assert trace.causes[heard.seq] == find(run, "queued", 0)
    assert trace.causes[find(run, "withdrawn")] == find(run, "queued", 1)


def test_a_loop_inside_leads_to_the_call_it_performs() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    begun = next(event for event in run.events if event.type == "run_start" and event.path)
    cause = run.events[traced(run).causes[begun.seq]]
    assert (cause.type, cause.call_id) == ("call_start", begun.call)
    run.cancel()


def test_an_id_that_a_model_uses_again_is_another_call() -> None:
    again = [call("search", {"query": "x"}, id="same")]
    run = session([again, again, "ok"])
    run.result(30)
    trace = traced(run)
    ends = [event.seq for event in run.events if event.type == "call_end"]
    assert trace.things[ends[0]] != trace.things[ends[1]]
    assert run.events[trace.causes[trace.causes[ends[1]]]].message is run.messages[3]


def test_an_event_that_comes_later_changes_nothing_about_earlier_ones() -> None:
    run = asking("/a", "/b")
    run.submit_step("turn").result(30)
    run.approve("c0")
    run.reject("c1", "no")
    run.result(30)
    whole, one_by_one = traced(run), Trace()
    for end in range(len(run.events) + 1):
        one_by_one.follow(run.events, end)
    assert (whole.causes, whole.things, whole.names) == (one_by_one.causes, one_by_one.things, one_by_one.names)


def test_a_recording_that_somebody_has_cut_has_fewer_causes_and_raises_nothing() -> None:
    run = asking_inside()
    run.play()
    until(lambda: run.pending)
    run.approve("worker/c0")
    run.result(30)
    for first in range(len(run.events)):
        cut = [event.model_copy(update={"seq": n}) for n, event in enumerate(run.events[first:])]
        trace = Trace()
        trace.follow(cut, len(cut))
        assert all(cause < position for position, cause in enumerate(trace.causes))
        assert sum(1 for _ in Things(cut, trace).rows()) == len(trace.names)


def stamped(*events: e.Event) -> list[Any]:
    """These events, a second apart."""
    return [event.model_copy(update={"seq": n, "time": 100.0 + n}) for n, event in enumerate(events)]


def test_what_a_run_took_is_told_by_what_it_was_spent_on() -> None:
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
    trace = Trace()
    trace.follow(events, len(events))
    things = Things(events, trace)
    told = [(row.kind, row.name, row.opened - 100, (row.ended or 0) - 100, row.depth) for row in things.rows()]
    assert told == [
        ("loop", "l", 0, 9, 0),
        ("model", "turn 1", 1, 2, 1),
        ("call", "rm", 2, 8, 1),
        ("call", "ls", 2, 5, 1),
    ]
    rm, ls = list(things.rows())[2:]
    assert [(part.kind, part.start - 100, (part.end or 0) - 100) for part in rm.stretches] == [
        ("wait", 3, 6),
        ("run", 7, 8),
    ]
    assert (rm.failed, ls.failed) == (False, True)
    assert (things.turns[0].calls, things.turns[0].call_time) == (2, 2)
    assert things.spent == {"model": 1.0, "call": 2.0, "wait": 3.0}
    assert bill(things, {"input_tokens": 1200, "cost": 0.0123}) == [
        ("time", "9.00 s"),
        ("model", "1.00 s"),
        ("calls", "2.00 s"),
        ("waiting for you", "3.00 s"),
        ("input tokens", "1,200"),
        ("cost", "$0.0123"),
    ]


def test_a_call_that_begins_when_something_else_is_over_has_waited_for_it() -> None:
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
    trace = Trace()
    trace.follow(events, len(events))
    assert trace.awaited == {7: 6}, "the first began while the model still spoke, and waited for nothing"
    assert trace.marks(7) == {"cause": 3, "thing": 3, "after": 6}
    assert trace.name_of(6) == "A"


def test_a_person_who_is_asked_many_things_at_once_is_waited_for_once() -> None:
    def ask(id: str) -> e.Event:
        return e.ApprovalRequest(call_id=id, name="rm", arguments={})

    asked = [ask(str(n)) for n in range(5)]
    decided = [e.ApprovalDecision(call_id=str(n), decision="approve") for n in range(5)]
    events = stamped(e.RunStart(loop="L", name="l"), *asked, *decided, ask("0"), e.RunEnd(reason="completed"))
    trace = Trace()
    trace.follow(events, len(events))
    things = Things(events, trace)
    assert things.spent["wait"] == 9 + 1, "from the first question to the last answer, and then once more"
    assert things.last - things.began == 12


def test_a_call_that_was_lost_with_its_process_waits_until_somebody_says_how_it_ended() -> None:
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
    trace = Trace()
    trace.follow(events, len(events))
    things = Things(events, trace)
    lost = next(row for row in things.rows() if row.name == "rm")
    assert [(part.kind, part.start - 100, (part.end or 0) - 100) for part in lost.stretches] == [
        ("wait", 3, 7),
        ("run", 8, 9),
    ]
    assert things.spent == {"model": 0.0, "call": 1.0, "wait": 4.0}, "the other was waited for in the meantime"


def test_what_a_loop_leaves_open_ends_with_it_and_what_it_performs_is_not_counted_twice() -> None:
    inner = SessionLoop(ScriptedLLM([[call("search", {"query": "x"}, id="s")], "Found."]), [search], name="finder")
    outer = SessionLoop(ScriptedLLM([[call("finder", {"input": "find"}, id="f")], "ok"]), [inner])
    run = outer.start("go")
    run.result(30)
    things = Things(run.events, traced(run))
    rows = list(things.rows())
    names = ["session_loop", "turn 1", "finder", "finder", "turn 1", "search", "turn 2", "turn 2"]
    assert [row.name for row in rows] == names
    assert [row.depth for row in rows] == [0, 1, 1, 1, 2, 2, 2, 1]
    assert all(row.ended is not None for row in rows)
    performed, found = rows[2], rows[5]
    assert performed.is_performed
    assert things.spent["call"] == sum((part.end or 0) - part.start for part in found.stretches)
    cancelled = asking("/a")
    cancelled.submit_step("turn").result(30)
    cancelled.cancel()
    assert all(row.ended is not None for row in Things(cancelled.events, traced(cancelled)).rows())


def test_times_are_told_as_a_person_reads_them() -> None:
    told = [duration(seconds) for seconds in (0, 0.0004, 0.25, 1, 9.996, 42.04, 100, 3599, 7500)]
    assert told == ["0 ms", "0 ms", "250 ms", "1.00 s", "10.0 s", "42.0 s", "1 min 40 s", "59 min 59 s", "2 h 05 min"]


def test_a_time_just_short_of_a_whole_minute_is_that_minute() -> None:
    told = [duration(seconds) for seconds in (0.9996, 99.96, 119.4, 119.6, 3599.4, 3599.6, 7199.6)]
    assert told == ["1.00 s", "1 min 40 s", "1 min 59 s", "2 min 00 s", "59 min 59 s", "1 h 00 min", "2 h 00 min"]
