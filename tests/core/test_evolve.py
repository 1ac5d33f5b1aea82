from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from agentnb.core import events as e
from agentnb.core.calls import RUNS_ON, render
from agentnb.core.errors import AgentnbError
from agentnb.core.evolve import evolve, fold
from agentnb.core.messages import Message, ToolCall
from agentnb.core.required_effects import MODEL, Effect, required_effects
from agentnb.core.state import State


def start(**fields: Any) -> e.RunStart:
    return e.RunStart(loop="L", name="l", input="hi", **fields)


def calls(*ids: str) -> list[ToolCall]:
    return [ToolCall(id=id, name="echo", arguments={"value": id}) for id in ids]


def answer(*ids: str, **fields: Any) -> e.ModelEnd:
    return e.ModelEnd(message=Message(role="assistant", tool_calls=calls(*ids)), **fields)


def end(id: str, result: Any = "ok", **fields: Any) -> e.CallEnd:
    return e.CallEnd(call_id=id, name="echo", result=result, **fields)


def begun(id: str) -> e.CallStart:
    return e.CallStart(call_id=id, name="echo", arguments={"value": id})


ASKED = [start(), e.MessageAdded(message=Message(role="user", content="hi"), origin="input"), e.ModelStart(turn=1)]


def roles(state: State) -> list[str]:
    return [m.tool_call_id or m.role for m in state.messages]


def refuse(events: list[e.Event], impossible: e.Event) -> None:
    """Check that the state after `events` refuses `impossible` and does not change."""
    state = fold(events)
    before = copy.deepcopy(state)
    with pytest.raises(AgentnbError):
        evolve(state, impossible)
    assert state == before


def test_a_requested_answer_is_a_required_effect() -> None:
    state = fold(ASKED)
    assert state.turn == 1
    assert required_effects(state) == [MODEL]


def test_the_calls_of_an_answer_are_required_in_their_order() -> None:
    state = fold([*ASKED, answer("t2", "t1")])
    assert required_effects(state) == [Effect("call", "t2"), Effect("call", "t1")]


def test_the_calls_of_a_sequential_answer_are_required_one_at_a_time() -> None:
    events = [*ASKED, answer("t1", "t2", sequential=True)]
    assert required_effects(fold(events)) == [Effect("call", "t1")]
    assert required_effects(fold([*events, end("t1")])) == [Effect("call", "t2")]


def test_a_detached_call_of_a_sequential_answer_does_not_defer_the_next_call() -> None:
    state = fold([*ASKED, answer("t1", "t2", "t3", sequential=True), detached("t1")])
    assert required_effects(state) == [Effect("call", "t1"), Effect("call", "t2")]


def test_a_call_that_awaits_approval_is_required_as_a_question() -> None:
    asked = e.ApprovalRequest(call_id="t1", name="echo", arguments={})
    assert required_effects(fold([*ASKED, answer("t1", "t2"), asked])) == [
        Effect("question", "t1"),
        Effect("call", "t2"),
    ]


@pytest.mark.parametrize(
    "stop",
    [e.CancelRequested(), e.ModelFailed(error=e.ErrorInfo(type="E", message="")), e.RunEnd(reason="suspended")],
)
def test_a_stopped_run_requires_no_effect(stop: e.Event) -> None:
    assert required_effects(fold([*ASKED, stop])) == []
    assert required_effects(fold([*ASKED, *proposed("t1"), stop])) == []


def test_a_run_that_has_ended_is_not_paused_and_waits_for_no_model() -> None:
    state = fold([*ASKED, e.RunPaused(), e.RunEnd(reason="error")])
    assert (state.paused, state.model) == (False, "idle")


def test_after_a_failure_a_resumed_run_requires_the_model_again() -> None:
    failed = e.ModelFailed(error=e.ErrorInfo(type="E", message=""))
    assert required_effects(fold([*ASKED, failed, e.RunResumed()])) == [MODEL]


def test_results_enter_the_history_together_in_the_order_of_the_calls() -> None:
    events = [*ASKED, answer("t1", "t2", "t3"), end("t3"), end("t1")]
    assert roles(fold(events)) == ["user", "assistant"]
    assert roles(fold([*events, end("t2")])) == ["user", "assistant", "t1", "t2", "t3"]


def test_no_message_request_or_end_is_possible_while_calls_are_open() -> None:
    events = [*ASKED, answer("t1", "t2"), end("t2")]
    for impossible in (
        e.MessageAdded(message=Message(role="user", content="x")),
        e.ModelStart(turn=2),
        e.RunEnd(reason="completed"),
    ):
        refuse(events, impossible)


def test_a_call_has_one_result() -> None:
    refuse([*ASKED, answer("t1", "t2"), end("t1")], end("t1", "other"))
    refuse([*ASKED, answer("t1"), end("t1")], end("t1", "other"))


def test_a_result_can_be_replaced_only_until_the_model_has_seen_it() -> None:
    skipped = end("t1", "skipped", outcome="skipped", is_error=True)
    provisional = [*ASKED, answer("t1", provisional=True), end("t1")]
    state = fold([*provisional, skipped, e.ModelStart(turn=2)])
    assert [m.content for m in state.messages if m.role == "tool"] == ["skipped"]
    refuse([*provisional, e.ModelStart(turn=2)], skipped)


def test_a_result_for_a_missing_call_is_refused() -> None:
    refuse(ASKED, end("t1"))
    refuse([*ASKED, answer("t1")], end("t2"))


@pytest.mark.parametrize(
    "impossible",
    [
        begun("t1"),
        e.ApprovalRequest(call_id="t1", name="echo", arguments={}),
        e.ApprovalDecision(call_id="t1", decision="approve"),
    ],
)
def test_an_event_about_a_call_that_is_not_open_is_refused(impossible: e.Event) -> None:
    refuse(ASKED, impossible)
    refuse([*ASKED, answer("t1", "t2"), end("t1")], impossible)


@pytest.mark.parametrize(
    "kind", [e.RunResumed(), e.CancelRequested(), e.ModelStart(turn=2), e.RunEnd(reason="completed")]
)
def test_no_event_follows_the_end_of_the_run(kind: e.Event) -> None:
    refuse([*ASKED, answer(), e.RunEnd(reason="completed")], kind)


def test_an_event_of_a_nested_loop_that_has_not_started_is_refused() -> None:
    refuse(ASKED, e.MessageAdded(message=Message(role="user", content="x"), path="critic"))
    refuse(ASKED, e.RunStart(loop="L", name="editor", input="", path="critic/editor"))


def test_a_run_starts_once() -> None:
    refuse(ASKED, start())


def test_an_answer_without_a_request_is_refused() -> None:
    refuse([start()], answer())
    refuse([*ASKED, answer()], answer())


def test_a_proposed_call_cannot_replace_an_open_one() -> None:
    refuse([*ASKED, answer("t1")], e.CallProposed(call=calls("t1")[0]))


def test_a_delivered_message_leaves_its_queue() -> None:
    one, two = Message(role="user", content="1"), Message(role="user", content="2")
    events = [start(), e.Queued(queue="steering", message=one), e.Queued(queue="steering", message=two)]
    state = fold([*events, e.MessageAdded(message=one, origin="steering")])
    assert state.queues["steering"] == [two]
    assert state.heard == ["steering"]
    assert fold([*events, e.Withdrawn(queue="steering", count=2)]).queues["steering"] == []


def test_hidden_calls_are_not_in_the_history() -> None:
    hidden = e.CallProposed(call=ToolCall(id="h", name="retrieve"), hidden=True)
    state = fold([*ASKED, answer("t1"), end("t1"), hidden, end("h")])
    assert roles(state) == ["user", "assistant", "t1"]


def test_a_call_of_the_loop_is_in_the_state_until_its_next_one() -> None:
    def own(id: str) -> list[e.Event]:
        return [e.CallProposed(call=ToolCall(id=id, name="retrieve"), hidden=True), end(id)]

    state = fold([start(), *own("h1"), *own("h2"), *own("h3")])
    assert list(state.calls) == ["h3"]
    assert [call.id for call in state.own_calls] == ["h1", "h2", "h3"]


def test_a_repeated_approval_request_clears_the_decision() -> None:
    asked = e.ApprovalRequest(call_id="t1", name="echo", arguments={"value": "changed"})
    approved = e.ApprovalDecision(call_id="t1", decision="approve")
    call = fold([*ASKED, answer("t1"), approved, asked]).open["t1"]
    assert (call.status, call.decision) == ("asking", None)


def test_usage_is_summed() -> None:
    first, second = answer(usage={"input_tokens": 3, "cost": 0.5}), answer(usage={"input_tokens": 4})
    events = [*ASKED, first, e.ModelStart(turn=2), second]
    assert fold(events).usage == {"input_tokens": 7, "cost": 0.5}


def test_an_edited_call_has_the_arguments_of_the_edit() -> None:
    edit = e.ApprovalDecision(call_id="t1", decision="edit", arguments={"value": "new"})
    assert fold([*ASKED, answer("t1"), edit]).calls["t1"].arguments == {"value": "new"}
    replace = e.ApprovalDecision(call_id="t1", decision="replace", name="shout", arguments={})
    assert fold([*ASKED, answer("t1"), replace]).calls["t1"].name == "shout"


def test_the_given_history_precedes_the_input() -> None:
    history = [Message(role="user", content="before"), Message(role="assistant", content="yes")]
    state = fold([start(history=history)])
    assert state.messages == history
    assert [m.content for m in state.queues["input"]] == ["hi"]


def test_a_state_can_be_dumped_as_json() -> None:
    state = fold([*ASKED, answer("t1", "t2"), end("t1", {"a": [1]}), e.StateUpdate(values={"k": None})])
    dumped = json.loads(json.dumps(state.dump()))
    assert dumped["turn"] == 1
    assert [call["id"] for call in dumped["calls"]] == ["t1", "t2"]
    assert dumped["values"] == {"k": None}


def test_folding_does_not_change_the_events() -> None:
    events = [*ASKED, answer("t1"), end("t1", ["x"]), e.ModelStart(turn=2), answer(), e.RunEnd(reason="completed")]
    states = [fold(events[:n]) for n in range(len(events) + 1)]
    assert [fold(events[:n]) for n in range(len(events) + 1)] == states
    assert [state.position for state in states] == list(range(len(events) + 1))


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("text", "text"),
        ("", ""),
        (None, ""),
        ({"a": 1}, '{"a":1}'),
        ({}, "{}"),
        ([], "[]"),
        ([1, "x"], '[1,"x"]'),
        (False, "false"),
        (0, "0"),
        ([{"type": "text", "text": "t"}], [{"type": "text", "text": "t"}]),
        ([{"type": 1}], '[{"type":1}]'),
    ],
)
def test_a_result_is_rendered_as_text_or_blocks(result: Any, content: Any) -> None:
    assert render(result) == content


# -- answers whose calls run before they have ended ------------------------------------------------------------------


def proposed(*ids: str) -> list[e.Event]:
    return [e.CallProposed(call=call) for call in calls(*ids)]


def test_results_enter_the_history_after_the_answer_that_made_the_calls() -> None:
    state = fold([*ASKED, *proposed("t1"), begun("t1"), end("t1")])
    assert roles(state) == ["user"]
    for event in (*proposed("t2"), answer("t1", "t2"), begun("t2"), end("t2")):
        evolve(state, event)
    assert roles(state) == ["user", "assistant", "t1", "t2"]


def test_a_repeated_request_keeps_the_calls_of_the_interrupted_answer() -> None:
    failed = e.ModelFailed(error=e.ErrorInfo(type="E", message="cut"))
    again = [failed, e.RunResumed(), e.ModelStart(turn=1, attempt=2)]
    state = fold([*ASKED, *proposed("t1", "t2"), begun("t1"), end("t1"), *again])
    assert (list(state.calls), list(state.open)) == (["t1", "t2"], ["t2"])
    for event in (begun("t2"), end("t2"), answer("t1", "t2")):
        evolve(state, event)
    assert roles(state) == ["user", "assistant", "t1", "t2"]


def test_the_history_contains_the_calls_of_an_answer_that_never_completed() -> None:
    state = fold(
        [*ASKED, *proposed("t1"), e.CancelRequested(), end("t1", outcome="aborted"), e.RunEnd(reason="cancelled")]
    )
    assert roles(state) == ["user", "assistant", "t1"]
    assert [call.id for call in state.messages[1].tool_calls] == ["t1"]


def test_the_history_contains_the_calls_of_a_second_answer_that_never_completed() -> None:
    broken_off = [e.ModelStart(turn=2), *proposed("t2"), e.CancelRequested(), end("t2", outcome="aborted")]
    state = fold([*ASKED, answer("t1"), end("t1"), *broken_off, e.RunEnd(reason="cancelled")])
    assert roles(state) == ["user", "assistant", "t1", "assistant", "t2"]
    assert [call.id for call in state.messages[3].tool_calls] == ["t2"]


def test_a_replacement_by_the_loop_is_checked_again() -> None:
    instead = e.ApprovalDecision(call_id="t1", decision="replace", by="loop", name="other", arguments={"n": 1})
    state = fold([*ASKED, *proposed("t1"), instead])
    call = state.open["t1"]
    assert (call.status, call.name, call.arguments) == ("proposed", "other", {"n": 1})
    assert (call.proposed, call.replaced) == (calls("t1")[0], ToolCall(id="t1", name="other", arguments={"n": 1}))


def detached(id: str) -> e.CallStart:
    return e.CallStart(call_id=id, name="echo", arguments={"value": id}, detached=True)


def test_a_turn_ends_without_its_detached_calls_and_the_history_says_that_they_still_run() -> None:
    state = fold([*ASKED, answer("t1", "t2"), detached("t1"), begun("t2"), end("t2")])
    assert [m.content for m in state.messages[-2:]] == [RUNS_ON, "ok"]
    assert roles(state)[-2:] == ["t1", "t2"]
    assert (list(state.open), state.detached) == (["t1"], 1)
    assert required_effects(state) == [Effect("call", "t1")]


def test_a_detached_call_stays_open_until_its_end_which_is_reported_once() -> None:
    events = [*ASKED, answer("t1"), detached("t1"), e.ModelStart(turn=2), answer("t2"), begun("t2")]
    state = fold([*events, end("t1", "late"), end("t2"), e.ModelStart(turn=3)])
    assert roles(state) == ["user", "assistant", "t1", "assistant", "t2"]
    assert (state.open, state.detached, state.calls) == ({}, 0, {})
    late = fold([*events, end("t1", "late")])
    assert late.calls["t1"].end is not None
    refuse([*events, end("t1"), end("t2"), e.ModelStart(turn=3)], end("t1"))


def test_a_detached_call_that_ends_within_its_turn_has_its_result_in_the_history() -> None:
    state = fold([*ASKED, answer("t1", "t2"), detached("t1"), end("t1", "soon"), begun("t2"), end("t2")])
    assert [m.content for m in state.messages[-2:]] == ["soon", "ok"]


def test_a_run_cannot_end_while_a_detached_call_runs() -> None:
    events = [*ASKED, answer("t1"), detached("t1")]
    refuse(events, e.RunEnd(reason="completed"))
    assert fold([*events, end("t1"), e.RunEnd(reason="completed")]).over


def test_a_detached_call_that_is_started_again_counts_once() -> None:
    state = fold([*ASKED, answer("t1"), detached("t1"), detached("t1")])
    assert state.detached == 1
