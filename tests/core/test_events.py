from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import ValidationError

from agentnb.core import events as e
from agentnb.core.events import EVENT_TYPES, Delta, decode_event, encode_event, plain_event
from agentnb.core.messages import Message
from tests.core.samples import EVENTS, any_event, event_of


def test_every_event_type_has_a_sample() -> None:
    assert {kind.__struct_config__.tag for kind in EVENTS} == set(EVENT_TYPES)


def test_the_vocabulary_is_closed() -> None:
    assert set(EVENT_TYPES) == {
        *("run_start", "phase_change", "message", "queued", "withdrawn", "state_update"),
        *("model_start", "model_end", "model_error", "call_proposed", "approval_request", "approval_decision"),
        *("call_start", "call_end", "run_paused", "run_resumed", "cancel", "run_end"),
    }


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_a_printed_event_starts_with_its_type(kind: type[e.Event]) -> None:
    @settings(max_examples=1)
    @given(event_of(kind))
    def printed(event: e.Event) -> None:
        assert f"{event}".startswith(f"{kind.__name__}(")

    printed()


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_is_unchanged_after_a_round_trip_through_json(kind: type[e.Event]) -> None:
    @settings(max_examples=30)
    @given(event_of(kind))
    def round_trip(event: e.Event) -> None:
        assert decode_event(encode_event(event)) == event

    round_trip()


@settings(max_examples=50)
@given(any_event)
def test_an_event_is_one_line_of_strict_json(event: e.Event) -> None:
    line = encode_event(event)
    assert b"\n" not in line
    assert json.loads(line)["type"] == event.type
    assert json.loads(line) == json.loads(json.dumps(json.loads(line)))


@pytest.mark.parametrize("empty", [[], {}, "", 0, 0.0, False, None])
def test_an_empty_result_keeps_its_type(empty: object) -> None:
    event = e.CallEnd(call_id="t1", result=empty)
    back = decode_event(encode_event(event))
    assert isinstance(back, e.CallEnd)
    assert back.result == empty
    assert type(back.result) is type(empty)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_cannot_represent_is_restored(value: float) -> None:
    back = decode_event(encode_event(e.CallEnd(call_id="t1", result=[value])))
    assert isinstance(back, e.CallEnd)
    assert repr(back.result) == repr([value])


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"null", b"[]", b'{"type":"no_such"}', b'{"type":"call_end"}', b'{"type":"cancel","extra":1}'],
)
def test_a_line_that_is_not_an_event_is_refused(line: bytes) -> None:
    with pytest.raises(ValidationError):
        decode_event(line)


def test_an_event_cannot_be_changed() -> None:
    event = e.CancelRequested(reason="enough")
    with pytest.raises(AttributeError):
        event.reason = "more"  # type: ignore[misc]


def test_only_the_end_of_the_outermost_loop_is_terminal() -> None:
    assert e.RunEnd(reason="completed").terminal
    assert not e.RunEnd(reason="completed", path="review/critic").terminal
    assert not e.RunStart(loop="L", name="l").terminal


def test_a_delta_cannot_be_in_the_journal() -> None:
    delta = Delta(type="text_delta", content="hi")
    assert delta.seq is None
    assert not delta.terminal
    assert plain_event(delta) == {"type": "text_delta", "content": "hi"}
    with pytest.raises(ValidationError):
        decode_event(json.dumps(plain_event(delta)))


@settings(max_examples=50)
@given(st.sampled_from(sorted(EVENTS, key=lambda kind: kind.__name__)).flatmap(event_of))
def test_the_plain_form_of_an_event_is_json_data(event: e.Event) -> None:
    assert json.loads(json.dumps(plain_event(event))) == json.loads(encode_event(event))


def test_a_message_in_an_event_keeps_its_own_fields() -> None:
    event = e.MessageAdded(message=Message(role="note", content="n", colour="red"))
    back = decode_event(encode_event(event))
    assert isinstance(back, e.MessageAdded)
    assert back.message["colour"] == "red"
