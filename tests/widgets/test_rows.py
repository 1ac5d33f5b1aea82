from __future__ import annotations

import json
import time
from typing import Any

import pytest

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.rows import FULL_LIMIT, GROUPS, ROW_LIMIT, encode_row, encode_rows, full_text, row
from tests.widgets.support import HOSTILE, asking

CALL = ToolCall(id="c1", name="search", arguments={"query": "x", "limit": 3})
MESSAGE = Message(role="assistant", content="Looking.", tool_calls=[CALL])
ERROR = e.ErrorInfo(type="ValueError", message="no such thing")
EXAMPLES: list[tuple[e.Event, str]] = [
    (e.RunStart(loop="Agent", name="agent", input="hello"), "Agent agent: hello"),
    (e.PhaseChange(source="idle", phase="thinking"), "idle → thinking"),
    (e.MessageAdded(message=Message(role="user", content="hi"), origin="follow_up"), "user (follow-up): hi"),
    (e.Queued(queue="steering", message=Message(role="user", content="stop")), "steering: stop"),
    (e.Withdrawn(queue="follow_up", count=2), "2 from follow-up"),
    (e.StateUpdate(values={"times": 2}), '{"times":2}'),
    (e.ModelStart(turn=2, attempt=3), "turn 2, attempt 3"),
    (e.ModelEnd(message=MESSAGE), 'Looking. → search(query="x", limit=3)'),
    (e.ModelFailed(error=ERROR), "ValueError: no such thing"),
    (e.CallProposed(call=CALL), 'search(query="x", limit=3)'),
    (e.ApprovalRequest(call_id="c1", name="rm", arguments={}, reason="it deletes"), "rm(): it deletes"),
    (e.ApprovalDecision(call_id="c1", decision="reject", reason="too risky"), "rejected by a person: too risky"),
    (
        e.ApprovalDecision(call_id="c1", decision="replace", name="ls", arguments={"p": 1}),
        "replaced by a person → ls(p=1)",
    ),
    (e.CallStart(call_id="c1", name="search", arguments={"query": "x"}), 'search(query="x")'),
    (e.CallEnd(call_id="c1", name="search", result=["a"]), 'search returned: ["a"]'),
    (e.RunPaused(reason="breakpoint"), "breakpoint"),
    (e.RunResumed(), ""),
    (e.CancelRequested(reason="enough"), "enough"),
    (e.RunEnd(reason="completed", output="done"), "completed: done"),
]


@pytest.mark.parametrize(("event", "words"), EXAMPLES, ids=lambda value: getattr(value, "type", ""))
def test_each_event_has_a_summary_line(event: e.Event, words: str) -> None:
    assert row(event)["summary"] == words


def test_the_row_of_a_decision_names_its_call() -> None:
    run = asking("/a")
    run.submit_step("turn").result(30)
    run.approve("c0", remember="tool")
    causes = Causes()
    causes.follow(run.events, len(run.events))
    [decision] = [event for event in run.events if event.type == "approval_decision"]
    words = "delete_file approved by code, for every call of the tool"
    assert row(decision, causes)["summary"] == words
    run.cancel()


def test_a_message_of_another_role_is_summarized_by_its_fields() -> None:
    message = Message.model_validate({"role": "data", "content": "", "type": "data", "kind": "state", "data": {"n": 1}})
    assert row(e.MessageAdded(message=message))["summary"] == 'data: {"kind":"state","data":{"n":1}}'


def test_every_type_of_event_has_an_example_and_a_colour() -> None:
    assert {event.type for event, _ in EXAMPLES} == set(e.EVENT_TYPES) == set(GROUPS)


def test_a_row_has_each_stamp_once_and_the_other_fields_as_data() -> None:
    event = e.CallEnd(seq=7, time=1.5, run_id="r", path="a/b", phase="acting", call_id="c1", result=None)
    made = json.loads(encode_row(event))
    assert {key: made[key] for key in ("seq", "time", "path", "phase", "type")} == {
        "seq": 7, "time": 1.5, "path": "a/b", "phase": "acting", "type": "call_end",
    }  # fmt: skip
    assert made["data"] == {"call_id": "c1"}


@pytest.mark.parametrize(
    "result",
    [
        "x" * 10_000_000,
        HOSTILE * 1000,
        [{"k" * 500 + str(n): ["z" * 1000] * 10 for n in range(100)}] * 3,
        {str(n): n for n in range(100_000)},
        list(range(100_000)),
        "\x1b" * 5000,
        [[[[[[[[["deep"] * 5] * 5] * 5] * 5] * 5] * 5] * 5]],
    ],
    ids=["long text", "hostile", "wide", "many keys", "many items", "escapes grow", "deep"],
)
def test_a_row_is_small_for_any_result_of_a_tool(result: Any) -> None:
    line = encode_row(e.CallEnd(call_id="c1", name="t", result=result))
    made = json.loads(line)
    assert len(line) < ROW_LIMIT + 1500
    assert made["size"] > ROW_LIMIT
    assert made["data"]["call_id"] == "c1"


NESTED = [{str(n): {str(m): "z" * 60 for m in range(10)} for n in range(10)}] * 5


def test_the_row_of_a_failed_call_with_a_large_result_says_that_it_failed() -> None:
    made = row(e.CallEnd(call_id="c1", name="t", result=NESTED, is_error=True, outcome="raised"))
    assert made["summary"].startswith("t raised: ")


def test_the_row_of_a_large_answer_has_its_whole_usage() -> None:
    usage = {"input_tokens": 900, "output_tokens": 300, "cached_tokens": 800, "reasoning_tokens": 100, "cost": 0.01}
    calls = [ToolCall(id=f"c{n}", name="write", arguments={str(m): "z" * 150 for m in range(10)}) for n in range(8)]
    made = row(e.ModelEnd(message=Message(role="assistant", tool_calls=calls), usage=usage))
    assert made["data"]["usage"] == usage


def test_the_row_of_a_call_with_long_arguments_says_that_its_outcome_is_unknown() -> None:
    event = e.ApprovalRequest(call_id="c1", name="t", arguments={"x": NESTED}, reason="why", deadline=5.0, unknown=True)
    assert row(event)["data"]["unknown"] is True


def test_show_all_returns_a_long_text_and_its_full_length() -> None:
    shown = full_text("y" * 10_000_000)
    assert shown == {"text": "y" * FULL_LIMIT, "length": 10_000_000}


def test_a_batch_is_limited_in_size_and_has_at_least_one_row() -> None:
    events = [e.CallEnd(seq=n, call_id="c", result="x" * 3000) for n in range(10)]
    rows, count = encode_rows(events, 10_000)
    assert len(json.loads(rows)) == count == 3
    assert encode_rows(events, 1)[1] == 1


@pytest.mark.alone
def test_encoding_a_row_takes_microseconds() -> None:
    events = [
        e.CallEnd(seq=n, call_id=f"c{n}", name="search", result="text of the usual length " * 3) for n in range(5000)
    ]
    started = time.process_time()
    encode_rows(events, 10**9)
    assert (time.process_time() - started) / 5000 < 60e-6  # 7 measured; the margin is for a loaded machine
