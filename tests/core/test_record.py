from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentnb.core import events as e
from agentnb.core.messages import Message, ToolCall
from agentnb.core.record import Record
from agentnb.loops.session_loop import SessionEvent
from tests.core.samples import EVENTS, errors, event_of, messages, tool_calls

RECORDS: dict[type[Record], st.SearchStrategy[Any]] = {
    **{kind: event_of(kind) for kind in EVENTS},
    Message: messages,
    ToolCall: tool_calls,
    e.ErrorInfo: errors,
    SessionEvent: st.builds(SessionEvent, type=st.just("turn_end"), tool_results=st.lists(messages, max_size=2)),
}
every_record = pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)


def _below(cls: type[Record]) -> set[type[Record]]:
    return {cls}.union(*(_below(sub) for sub in cls.__subclasses__()))


def made(record: Record, *, only_set: bool = True) -> Record:
    """The same record, made without validation."""
    names = record.model_fields_set if only_set else type(record).model_fields
    return type(record).make(**{name: getattr(record, name) for name in names})


def test_every_record_of_the_core_is_tested_here() -> None:
    concrete = {kind for kind in _below(Record) if kind.__module__.startswith("agentnb.core") and kind.model_fields}
    assert concrete - {e.Event} <= set(RECORDS)


@every_record
def test_a_made_record_equals_a_constructed_one(kind: type[Record]) -> None:
    @settings(max_examples=20)
    @given(RECORDS[kind])
    def check(record: Record) -> None:
        for other in (made(record), made(record, only_set=False)):
            assert other == record
            assert record == other
            assert type(other) is type(record)
            assert other.model_dump() == record.model_dump()
            assert other.model_dump_json() == record.model_dump_json()
            assert repr(other) == repr(record)

    check()


@every_record
def test_a_made_record_copies_and_pickles_like_a_constructed_one(kind: type[Record]) -> None:
    @settings(max_examples=20)
    @given(RECORDS[kind])
    def check(record: Record) -> None:
        other = made(record)
        assert copy.copy(other) == record
        assert copy.deepcopy(other) == record
        assert pickle.loads(pickle.dumps(other)) == record
        assert other.model_copy() == record
        assert kind.model_validate(other.model_dump()) == record

    check()


def test_a_made_record_has_a_collection_of_its_own() -> None:
    first, second = e.ModelStart.make(), e.ModelStart.make()
    first.options["temperature"] = 1
    assert second.options == {}


def test_changing_a_copy_leaves_the_others_alone() -> None:
    first = e.CallStart.make(call_id="t1", name="echo", arguments={})
    changed = first.model_copy(update={"name": "shout"})
    assert (first.name, changed.name) == ("echo", "shout")
    assert e.CallStart.make(call_id="t2", name="x", arguments={}).model_fields_set == first.model_fields_set


def test_made_records_hash_like_constructed_ones() -> None:
    assert hash(e.RunPaused.make(reason="r")) == hash(e.RunPaused(reason="r"))
    assert hash(e.ErrorInfo.make(type="T", message="m")) == hash(e.ErrorInfo(type="T", message="m"))


def test_a_record_is_shown_with_what_it_has_and_not_with_what_it_has_not() -> None:
    asked = ToolCall(id="c1", name="look")
    assert repr(Message(role="user", content="go")) == "Message(role='user', content='go')"
    assert repr(Message(role="assistant", tool_calls=[asked], mood="calm")) == (
        "Message(role='assistant', tool_calls=[ToolCall(id='c1', name='look')], mood='calm')"
    )
    assert (
        repr(e.CallEnd(seq=3, run_id="r", call_id="c1", result=0))
        == "CallEnd(seq=3, run_id='r', call_id='c1', result=0)"
    )


def test_a_printed_delta_shows_what_it_brings() -> None:
    assert str(e.Delta("text_delta", content="Hello", run_id="r")) == (
        "Delta(type='text_delta', content='Hello', run_id='r')"
    )
