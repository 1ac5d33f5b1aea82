from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from agentnb.core.errors import ModelError, ModelProtocolError
from agentnb.core.events import ModelEnd, decode_event, encode_event
from agentnb.core.json import parse_arguments
from agentnb.core.reply import CUT_OFF, Reply


def piece(index: int, id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "tool_call_delta", "index": index, "id": id, "name": "add", "arguments": arguments}


def whole(id: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": "add", "arguments": {}}


@pytest.mark.parametrize(
    "chunks",
    [
        [whole("a"), whole("b"), whole("c")],
        [piece(0, "a"), piece(1, "b"), piece(2, "c")],
        [piece(1, "b"), piece(0, "a"), piece(2, "c")],
        [piece(0, "a"), whole("b"), whole("c")],
        [whole("a"), piece(0, "b"), whole("c")],
        [piece(0, "a"), whole("b"), piece(1, "c")],
        [piece(0, "a", "{"), whole("b"), piece(0, "a", "}"), piece(1, "c")],
        [piece(0, "a"), {"type": "tool_calls", "tool_calls": [whole("b"), whole("c")]}],
    ],
)
def test_calls_are_in_the_order_in_which_the_model_made_them(chunks: list[dict[str, Any]]) -> None:
    reply = Reply(1)
    for chunk in chunks:
        reply.feed(chunk, 0)
    made = reply.end().message.tool_calls
    assert [call.id for call in made] == ["a", "b", "c"]
    assert [call.malformed for call in made] == [None, None, None]


def test_null_content_is_ignored() -> None:
    reply = Reply(1)
    for content in (None, "a", "", None, "b"):
        reply.feed({"type": "text_delta", "content": content}, 0)
    assert (reply.text, reply.end().message.content) == ("ab", "ab")


@pytest.mark.parametrize(
    "counts",
    [
        {"input_tokens": 3, "output_tokens": 4},
        {"usage": {"input_tokens": 3, "output_tokens": 4}},
        {"usage": SimpleNamespace(input_tokens=3, output_tokens=4)},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}},
        {"usage": None, "prompt_tokens": 3, "completion_tokens": 4},
        {"input_tokens": 3, "output_tokens": 4, "cost": float("nan"), "seconds": float("inf"), "cached": -1},
    ],
)
def test_usage_is_normalized_to_the_same_keys(counts: dict[str, Any]) -> None:
    reply = Reply(1)
    reply.feed({"type": "usage", **counts}, 0)
    assert reply.end().usage == {"input_tokens": 3, "output_tokens": 4}


def test_a_subclass_of_str_is_accepted_as_text() -> None:
    class Token(str):
        __slots__ = ()

    reply = Reply(1)
    reply.feed({"type": "text_delta", "content": Token("a")}, 0)
    assert reply.text == "a"


def test_extra_fields_of_a_usage_object_are_read() -> None:
    class Used(BaseModel, extra="allow"):
        input_tokens: int

    reply = Reply(1)
    reply.feed({"type": "usage", "usage": Used(input_tokens=3, output_tokens=4)}, 0)  # type: ignore[call-arg]
    assert reply.end().usage == {"input_tokens": 3, "output_tokens": 4}


@pytest.mark.parametrize("content", [5, b"a", ["a"], False])
def test_content_that_is_not_text_is_refused_and_the_earlier_text_is_kept(content: Any) -> None:
    reply = Reply(1)
    reply.feed({"type": "text_delta", "content": "so far"}, 0)
    with pytest.raises(ModelProtocolError, match="instead of text"):
        reply.feed({"type": "text_delta", "content": content}, 0)
    assert reply.text == "so far"


@pytest.mark.parametrize("reason", ["error", "aborted"])
@pytest.mark.parametrize(("said", "words"), [({}, "has aborted its answer"), ({"error": "overheated"}, "overheated")])
def test_an_answer_that_ends_by_an_error_has_failed(reason: str, said: dict[str, Any], words: str) -> None:
    reply = Reply(1)
    reply.feed(whole("a"), 0)
    with pytest.raises(ModelError, match=words):
        reply.feed({"type": "stop", "reason": reason, **said}, 0)


@pytest.mark.parametrize(("said", "kept"), [(5, "5"), ("half a \ud83d", "half a \N{REPLACEMENT CHARACTER}")])
def test_the_stop_reason_of_an_answer_is_recordable_text(said: Any, kept: str) -> None:
    reply = Reply(1)
    reply.feed({"type": "stop", "reason": said}, 0)
    assert decode_event(encode_event(reply.end())).stop_reason == kept


def test_null_calls_are_ignored_and_an_id_is_converted_to_text() -> None:
    reply = Reply(1)
    reply.feed({"type": "tool_calls", "tool_calls": None}, 0)
    reply.feed({**whole("a"), "id": 5}, 0)
    assert [call.id for call in reply.end().message.tool_calls] == ["5"]


@pytest.mark.parametrize("kind", ["text", "feed", None, 5, ["tool_call"]])
def test_a_chunk_of_an_unknown_type_is_refused_and_the_type_is_named(kind: Any) -> None:
    with pytest.raises(ModelProtocolError, match=f"of unknown type {re.escape(repr(kind))}"):
        Reply(1).feed({"type": kind, "content": "a"}, 0)


@pytest.mark.parametrize(
    "chunk",
    [
        {"type": "text_delta", "text": "a"},
        {"type": "tool_calls", "calls": []},
        {"type": "tool_call", "name": ["add"]},
        {"type": "tool_call", "function": None},
        {"type": "tool_call_delta", "index": 0, "name": "add", "arguments": {"n": 1}},
        {"type": "tool_call_delta", "index": "first", "name": "add", "arguments": "{}"},
        {"type": "reasoning_delta", "content": 3},
        {"type": "reasoning_delta", "signature": "s", "content": b"a"},
    ],
    ids=lambda chunk: f"{chunk['type']} {list(chunk)[-1]}",
)
def test_an_invalid_chunk_is_refused_and_quoted(chunk: dict[str, Any]) -> None:
    with pytest.raises(ModelProtocolError, match=f"a {chunk['type']} that cannot be read .*{re.escape(str(chunk))}"):
        Reply(1).feed(chunk, 0)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (None, ({}, None)),
        ("", ({}, None)),
        (" \n", ({}, None)),
        ("null", ({}, None)),
        ('""', ({}, None)),
        ('{"a": 1}', ({"a": 1}, None)),
        (json.dumps('{"a": 1}'), ({"a": 1}, None)),
        ('"half"', ({}, '"half"')),
        (json.dumps("[1]"), ({}, json.dumps("[1]"))),
        (json.dumps(json.dumps('{"a": 1}')), ({}, json.dumps(json.dumps('{"a": 1}')))),
        ("[]", ({}, "[]")),
        ('{"a": ', ({}, '{"a": ')),
    ],
)
def test_arguments_are_parsed_to_an_object_or_kept_as_text(arguments: str | None, read: object) -> None:
    assert parse_arguments(arguments) == read


@pytest.mark.parametrize("name", ["arguments", "args", "input"])
def test_a_whole_call_may_name_its_arguments_differently(name: str) -> None:
    reply = Reply(1)
    reply.feed({"type": "tool_calls", "tool_calls": [{"id": "a", "name": "add", name: {"n": 1}}]}, 0)
    assert [call.arguments for call in reply.end().message.tool_calls] == [{"n": 1}]


def test_the_index_of_a_call_may_be_a_string() -> None:
    reply = Reply(1)
    for index in (0, "1", "0"):
        reply.feed({"type": "tool_call_delta", "index": index, "name": "add", "arguments": " "}, 0)
    assert len(reply.end().message.tool_calls) == 2


def test_provider_data_closes_a_reasoning_block() -> None:
    reply = Reply(1)
    for fields in (
        {"content": "Let me"},
        {"content": " see."},
        {"content": "", "signature": "abc"},
        {"content": "", "redacted": "xyz"},
        {"content": "Hm.", "index": 3},
        {"content": "", "provider": {"server": "there", "half": "\ud83d"}},
    ):
        reply.feed({"type": "reasoning_delta", **fields}, 0)
    kept = decode_event(encode_event(reply.end()))
    assert isinstance(kept, ModelEnd)
    assert kept.message.reasoning == [
        {"text": "Let me see.", "signature": "abc"},
        {"text": "", "redacted": "xyz"},
        {"text": "Hm.", "provider": {"server": "there", "half": "\N{REPLACEMENT CHARACTER}"}},
    ]


@pytest.mark.parametrize(
    ("reason", "malformed"), [("length", CUT_OFF), ("content_filter", CUT_OFF), ("refusal", CUT_OFF), ("stop", None)]
)
def test_a_call_cut_off_before_its_arguments_is_malformed(reason: str, malformed: str | None) -> None:
    reply = Reply(1)
    for chunk in (piece(0, "a"), piece(1, "b", ""), whole("c"), {"type": "stop", "reason": reason}):
        reply.feed(chunk, 0)
    assert [call.malformed for call in reply.end().message.tool_calls] == [None, malformed, None]
