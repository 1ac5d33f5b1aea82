from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given

from agentnb.core.errors import InvalidArguments
from agentnb.core.json import to_plain
from agentnb.core.messages import Message, ToolCall, text_of, to_message, to_messages
from tests.core.samples import messages


def test_a_message_is_a_mapping_of_its_set_fields() -> None:
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


def test_a_missing_field_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Message(role="user")["colour"]


def test_empty_content_is_in_the_mapping() -> None:
    assert dict(Message(role="assistant")) == {"role": "assistant", "content": ""}


def test_a_message_can_be_dumped_as_json() -> None:
    message = Message(role="assistant", tool_calls=[ToolCall(id="t1", name="echo", arguments={})])
    assert message["tool_calls"] == [{"id": "t1", "name": "echo", "arguments": {}}]
    assert message["tool_calls"][0]["name"] == "echo"
    assert json.loads(json.dumps(message)) == message
    assert json.loads(message.to_json()) == message


def test_additional_fields_are_kept() -> None:
    message = Message(role="note", content="n", colour="red")
    assert message["colour"] == "red"
    assert message == {"role": "note", "content": "n", "colour": "red"}


def test_a_changed_copy_has_the_change_as_item_and_attribute() -> None:
    message = Message(role="user", content="hi")
    changed = message.model_copy(update={"content": "ho"})
    assert changed["content"] == "ho"
    assert changed == {"role": "user", "content": "ho"}
    assert changed != message
    assert copy.copy(changed) == changed


def test_a_field_that_is_not_set_has_its_default() -> None:
    message = Message(role="user")
    assert (message.tool_calls, message.is_error, message.name, message.reasoning) == ([], False, None, [])
    assert (message["tool_calls"], message["is_error"], message["name"]) == ([], False, None)
    assert list(message) == ["role", "content"]
    with pytest.raises(AttributeError):
        message.colour  # noqa: B018


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"role": 5}, "role: must be text, got 5"),
        ({"role": "user", "content": 7}, "content: must be text or a list of blocks, got 7"),
        ({"role": "user", "content": ["hi"]}, r"content\[0\]: must be a dict, got 'hi'"),
        ({"role": "assistant", "tool_calls": [{"id": "c1"}]}, r"tool_calls\[0\]\.name: Field required\."),
        ({"role": "assistant", "tool_calls": [{"id": "c1", "name": "n", "arguments": 1}]}, "arguments: must be a dict"),
        ({"role": "tool", "is_error": "yes"}, "is_error: must be True or False, got 'yes'"),
        ({"role": "assistant", "reasoning": "hm"}, "reasoning: must be a list, got 'hm'"),
    ],
)
def test_a_message_with_a_field_of_a_wrong_type_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidArguments, match=fault):
        Message(**fields)


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Message(role="user").content = "x"  # type: ignore[misc]


def test_messages_with_different_content_are_not_equal() -> None:
    assert Message(role="user", content="a") != Message(role="user", content="b")
    assert Message(role="user", content="a") != {"role": "user"}
    assert Message(role="user", content="a") != "a"


@given(messages)
def test_a_message_is_restored_from_its_plain_form(message: Message) -> None:
    assert Message.of(dict(message)) == message
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
def test_an_input_can_be_any_number_of_messages(given_input: object, contents: list[str]) -> None:
    made = to_messages(given_input)
    assert [message.content for message in made] == contents
    assert all(message.role == "user" for message in made)


def test_a_mapping_without_a_role_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidArguments, match=r"role and content, not {'content': 'hi'}\. role: Field required\."):
        to_message({"content": "hi"})


def test_the_text_of_blocks_omits_other_blocks() -> None:
    assert text_of("hi") == "hi"
    blocks = [{"type": "text", "text": "a"}, {"type": "image", "text": "no"}, {"type": "text", "text": "b"}]
    assert text_of(blocks) == "ab"


def test_to_plain_converts_every_record() -> None:
    plain = to_plain({"a": [Message(role="user"), (ToolCall(id="t", name="n"),)]})
    assert type(plain["a"][0]) is dict
    assert type(plain["a"][1][0]) is dict


def test_a_message_is_not_treated_as_a_sequence_of_messages() -> None:
    assert len(to_messages(Message(role="user", content="one"))) == 1
