from __future__ import annotations

import copy
import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from pydantic import ValidationError

from agentnb.core.errors import InvalidArguments
from agentnb.core.messages import Message, ToolCall, text_of, to_message, to_messages, to_plain
from tests.core.samples import messages


def test_a_message_reads_as_a_mapping_of_the_fields_it_has() -> None:
    message = Message(role="user", content="hi")
    assert message["role"] == "user"
    assert dict(message) == {"role": "user", "content": "hi"}
    assert {**message} == {"role": "user", "content": "hi"}
    assert message == {"role": "user", "content": "hi"}
    assert list(message) == ["role", "content"]
    assert list(message.items()) == [("role", "user"), ("content", "hi")]
    assert len(message) == 2
    assert "tool_calls" not in message
    assert message.get("tool_calls") is None
    assert message.get("tool_calls", []) == []


def test_a_field_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Message(role="user")["colour"]


def test_content_is_there_even_where_it_is_empty() -> None:
    assert dict(Message(role="assistant")) == {"role": "assistant", "content": ""}


def test_tool_calls_are_plain_dicts_in_the_plain_message() -> None:
    message = Message(role="assistant", tool_calls=[ToolCall(id="t1", name="echo", arguments={})])
    assert message.plain["tool_calls"] == [{"id": "t1", "name": "echo", "arguments": {}}]
    assert message["tool_calls"][0]["name"] == "echo"
    assert json.loads(json.dumps(message.plain)) == message.plain


def test_fields_of_your_own_are_kept() -> None:
    message = Message(role="note", content="n", colour="red")
    assert message["colour"] == "red"
    assert message.plain == {"role": "note", "content": "n", "colour": "red"}


def test_a_changed_copy_shows_the_change_everywhere() -> None:
    message = Message(role="user", content="hi")
    assert message.plain["content"] == "hi"
    changed = message.model_copy(update={"content": "ho"})
    assert changed["content"] == "ho"
    assert changed.plain == {"role": "user", "content": "ho"}
    assert changed != message
    assert copy.copy(changed) == changed


def test_reading_a_message_does_not_change_how_it_dumps() -> None:
    fresh, read = Message(role="user", content="hi"), Message(role="user", content="hi")
    assert len(read.plain) == 2
    assert read.model_dump() == fresh.model_dump()
    assert read.model_dump_json() == fresh.model_dump_json()
    assert repr(read) == repr(fresh)


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Message(role="user").content = "x"  # type: ignore[misc]


def test_messages_differ_where_their_content_does() -> None:
    assert Message(role="user", content="a") != Message(role="user", content="b")
    assert Message(role="user", content="a") != {"role": "user"}
    assert Message(role="user", content="a") != "a"


@given(messages)
def test_a_message_comes_back_from_its_plain_form(message: Message) -> None:
    assert Message.model_validate(message.plain) == message
    assert to_message(json.loads(json.dumps(to_plain(message)))) == message


@pytest.mark.parametrize(
    ("given_input", "contents"),
    [
        (None, []),
        ("hi", ["hi"]),
        ({"role": "user", "content": "hi"}, ["hi"]),
        (Message(role="user", content="hi"), ["hi"]),
        (["a", {"role": "user", "content": "b"}, Message(role="user", content="c")], ["a", "b", "c"]),
        (("a",), ["a"]),
        (7, ["7"]),
    ],
)
def test_an_input_is_any_number_of_messages(given_input: object, contents: list[str]) -> None:
    made = to_messages(given_input)
    assert [message.content for message in made] == contents
    assert all(message.role == "user" for message in made)


def test_a_mapping_without_a_role_is_no_message_and_told_so() -> None:
    with pytest.raises(InvalidArguments, match=r"role and content, not {'content': 'hi'}\. role: Field required\."):
        to_message({"content": "hi"})


def test_the_text_of_blocks_leaves_other_blocks_out() -> None:
    assert text_of("hi") == "hi"
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "text": "no"}, {"type": "text", "text": "b"}]
    assert text_of(blocks) == "ab"


def test_to_plain_leaves_no_record_behind() -> None:
    plain = to_plain({"a": [Message(role="user"), (ToolCall(id="t", name="n"),)]})
    assert type(plain["a"][0]) is dict
    assert type(plain["a"][1][0]) is dict


def test_a_message_is_not_mistaken_for_a_sequence_of_them() -> None:
    assert not isinstance(Message(role="user"), Mapping)  # it reads as one; pydantic's own class is what it is
    assert len(to_messages(Message(role="user", content="one"))) == 1
