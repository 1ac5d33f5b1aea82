"""Events and messages as values: equal by content, copied, pickled, shown, and never changed."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agentnb.core import events as e
from agentnb.core.errors import ImpossibleEvent
from agentnb.core.messages import Message, ToolCall
from agentnb.loops.session_loop import SessionEvent
from tests.core.samples import EVENTS, errors, event_of, messages, tool_calls

RECORDS: dict[Any, st.SearchStrategy[Any]] = {
    **{kind: event_of(kind) for kind in EVENTS},
    Message: messages,
    ToolCall: tool_calls,
    e.ErrorInfo: errors,
    SessionEvent: st.builds(SessionEvent, type=st.just("turn_end"), tool_results=st.lists(messages, max_size=2)),
}
every_record = pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)


@every_record
def test_every_kind_of_copy_of_a_value_is_equal_to_it(kind: Any) -> None:
    @settings(max_examples=10, deadline=None)
    @given(RECORDS[kind])
    def check(record: Any) -> None:
        for other in (
            copy.copy(record),
            copy.deepcopy(record),
            pickle.loads(pickle.dumps(record)),
            record.model_copy(),
            kind.model_validate(record.model_dump()),
        ):
            assert type(other) is kind
            assert other == record
            assert repr(other) == repr(record)

    check()


@every_record
def test_a_value_cannot_be_changed(kind: Any) -> None:
    @settings(max_examples=1, deadline=None)
    @given(RECORDS[kind])
    def check(record: Any) -> None:
        with pytest.raises((AttributeError, ValueError)):
            record.role = "other"
        for name in getattr(kind, "__struct_fields__", ()):
            with pytest.raises(AttributeError):
                setattr(record, name, None)

    check()


def test_the_fields_of_a_message_cannot_be_changed() -> None:
    message = Message(role="user", content="hi")
    with pytest.raises(TypeError):
        message["content"] = "ho"
    with pytest.raises(TypeError):
        message.update(content="ho")
    assert message.content == "hi"


def test_events_do_not_share_default_collections() -> None:
    first, second = e.ModelStart(), e.ModelStart()
    first.options["temperature"] = 1
    assert second.options == {}


def test_changing_a_copy_does_not_change_the_event() -> None:
    first = e.CallStart(call_id="t1", name="echo", arguments={})
    changed = replace(first, name="shout")
    assert (first.name, changed.name) == ("echo", "shout")
    assert first.model_copy(update={"name": "shout"}) == changed


def test_equal_events_have_the_same_hash() -> None:
    assert hash(e.RunPaused(reason="r")) == hash(e.RunPaused(reason="r"))
    assert hash(e.ErrorInfo(type="T", message="m")) == hash(e.ErrorInfo(type="T", message="m"))


def test_events_of_two_types_are_not_equal() -> None:
    assert e.RunPaused(reason="r") != e.CancelRequested(reason="r")


def test_an_event_matches_by_its_fields() -> None:
    match e.CallEnd(call_id="c1", result=3):
        case e.CallEnd(call_id=id, result=3, type="call_end"):
            assert id == "c1"
        case _:
            pytest.fail("it did not match")


def test_an_event_as_plain_data_omits_defaults() -> None:
    event = e.CallEnd(call_id="c1", result=[1], seq=3)
    plain = {"type": "call_end", "call_id": "c1", "result": [1], "seq": 3}
    assert event.to_dict() == plain
    assert json.loads(event.to_json()) == plain


def test_a_dumped_event_includes_defaults() -> None:
    dumped = e.RunPaused(reason="r").model_dump()
    assert dumped["type"] == "run_paused"
    assert dumped["by"] == "human"
    assert dumped["seq"] == -1


def test_the_repr_of_a_record_shows_only_its_set_fields() -> None:
    asked = ToolCall(id="c1", name="look")
    assert repr(Message(role="user", content="go")) == "Message(role='user', content='go')"
    assert repr(Message(role="assistant", tool_calls=[asked], mood="calm")) == (
        "Message(role='assistant', tool_calls=[ToolCall(id='c1', name='look')], mood='calm')"
    )
    assert (
        repr(e.CallEnd(seq=3, run_id="r", call_id="c1", result=0))
        == "CallEnd(call_id='c1', result=0, seq=3, run_id='r')"
    )


def test_a_printed_delta_shows_its_content() -> None:
    assert str(e.Delta("text_delta", content="Hello", run_id="r")) == (
        "Delta(type='text_delta', content='Hello', run_id='r')"
    )


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (e.RunEnd(reason="done"), r"RunEnd is not valid: Invalid enum value 'done' - at `\$\.reason`\."),  # type: ignore[arg-type]
        (e.ModelStart(turn="one"), r"ModelStart is not valid: Expected `int`, got `str` - at `\$\.turn`\."),  # type: ignore[arg-type]
        (e.MessageAdded(message="hi"), r"MessageAdded is not valid: .* at `\$\.message`"),  # type: ignore[arg-type]
        (e.StateUpdate(values={1: 2}), r"StateUpdate is not valid: .* at `key` in `\$\.values`"),  # type: ignore[dict-item]
        (e.CallProposed(call={"id": "c"}), r"CallProposed is not valid: .*name: Field required.* - at `\$\.call`"),  # type: ignore[arg-type]
    ],
)
def test_the_check_of_an_event_names_the_invalid_field(event: e.Event, fault: str) -> None:
    with pytest.raises(ImpossibleEvent, match=fault):
        e.checked(event)


def test_the_check_of_an_event_converts_dicts_to_messages_and_calls() -> None:
    event = e.checked(e.MessageAdded(message={"role": "user", "content": "hi"}))  # type: ignore[arg-type]
    assert isinstance(event.message, Message)
    assert event == e.MessageAdded(message=Message(role="user", content="hi"))
