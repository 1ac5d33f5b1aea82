from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentnb.core.errors import UsageError
from agentnb.llms import Chunk, Message, OpenAI
from agentnb.llms.schema_tools import ReplyReader, union_schema, with_bounded_texts
from tests.llms.collecting import ask, calls, collect, only, stop, text
from tests.llms.peer import Peer, Reply, completion, delta

NUMBER = {"$defs": {"Number": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/Number"}}}
ADD = {"name": "add", "description": "Add.", "parameters": NUMBER | {"required": ["a"]}}
NOW = {"name": "now", "description": "The time."}


def written(*pieces: str, reason: str = "stop") -> Reply:
    return completion(*(delta(content=piece) for piece in pieces), delta(reason))


def read(*pieces: str, reason: str = "stop") -> list[Chunk]:
    reader = ReplyReader(["add"])
    return [chunk for piece in pieces for chunk in reader.feed(piece)] + reader.finish(reason)


async def answer(peer: Peer, reply: Reply, **rest: Any) -> list[Chunk]:
    peer.replies(reply)
    return await ask(OpenAI("m", peer.url, tool_calls="schema"), **rest)


async def test_a_call_is_read_from_a_structured_reply(peer: Peer) -> None:
    chunks = await answer(peer, written('{\n "tool": "add",', ' "arguments": {"a": 2}}'), tools=[ADD])
    call = only(chunks, "tool_call")
    assert (call["name"], call["arguments"]) == ("add", {"a": 2})
    assert call["id"].startswith("call_")
    assert (text(chunks), stop(chunks)) == ("", "tool_calls")


async def test_an_answer_streams_while_its_string_is_open(peer: Peer) -> None:
    chunks = await answer(peer, written('{"answer"', ': "The sum', " is 5", '."}'), tools=[ADD])
    assert [chunk["content"] for chunk in chunks if chunk["type"] == "text_delta"] == ["The sum", " is 5", "."]
    assert stop(chunks) == "stop"


@given(st.text(), st.lists(st.integers(0, 400)), st.booleans())
def test_any_split_of_a_reply_results_in_the_same_answer(answer: str, cuts: list[int], escaped: bool) -> None:
    reply = json.dumps({"answer": answer}, ensure_ascii=escaped)
    edges = [0, *sorted(cut for cut in cuts if cut < len(reply)), len(reply)]
    pieces = [reply[start:end] for start, end in pairwise(edges)]
    assert text(read(*pieces)) == answer


async def test_text_from_a_server_that_ignores_the_schema_is_the_answer(peer: Peer) -> None:
    chunks = await answer(peer, written("I would", " rather talk."), tools=[ADD])
    assert (text(chunks), stop(chunks)) == ("I would rather talk.", "stop")


@pytest.mark.parametrize(
    ("reply", "shown"), [('{"answer": "half a sen', "half a sen"), ('{"tool": "add", "arg', '{"tool": "add", "arg')]
)
def test_a_truncated_reply_is_shown_in_part(reply: str, shown: str) -> None:
    chunks = read(reply, reason="length")
    assert (text(chunks), stop(chunks)) == (shown, "length")


def test_a_call_of_a_tool_that_was_not_offered_is_text() -> None:
    reply = '{"tool": "format_disk", "arguments": {}}'
    assert (text(read(reply)), stop(read(reply))) == (reply, "stop")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ('{"name": "add", "arguments": {"a": 2}}', ""),
        ('{"name": "add", "parameters": {"a": 2}}', ""),
        ('```json\n{"tool": "add", "arguments": {"a": 2}}\n```', ""),
        ('I add.\n```\n{"name": "add", "arguments": {"a": 2}}\n```\nSee above.', "I add.\nSee above."),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>', ""),
        ('{"name": "add", "arguments": "{\\"a\\": 2}"}', ""),
        ('{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}', ""),
    ],
)
def test_a_call_is_read_even_if_the_server_ignores_the_schema(reply: str, said: str) -> None:
    chunks = read(*reply)
    assert made(chunks) == [("add", {"a": 2})]
    assert (text(chunks), stop(chunks)) == (said, "tool_calls")


@pytest.mark.parametrize("form", ["%s\n%s", "<tool_call>%s</tool_call>\n<tool_call>%s</tool_call>"])
def test_several_calls_are_read_from_one_reply(form: str) -> None:
    chunks = read(form % ('{"tool": "add", "arguments": {"a": {}}}', '{"tool": "add", "arguments": {"a": 2}}'))
    assert made(chunks) == [("add", {"a": {}}), ("add", {"a": 2})]
    assert (text(chunks), stop(chunks)) == ("", "tool_calls")


def test_the_arguments_of_a_call_stream_while_they_are_written() -> None:
    reader = ReplyReader(["add"])
    pieces = ['{"tool": "add", "argu', 'ments": {"text": "a ', "long ", '} text"', "}", "}"]
    seen = [reader.feed(piece) for piece in pieces]
    assert [[chunk["arguments"] for chunk in chunks] for chunks in seen] == [
        *([], ["", '{"text": "a '], ["long "], ['} text"'], ["}"], [])
    ]
    assert reader.finish("stop") == [{"type": "stop", "reason": "tool_calls"}]


def test_an_answer_that_is_an_object_streams_while_it_is_written() -> None:
    reader = ReplyReader(["add"])
    pieces = ['{"answer": {"city": "Ber', 'lin"', "}", "}"]
    assert [text(reader.feed(piece)) for piece in pieces] == ['{"city": "Ber', 'lin"', "}", ""]
    assert reader.finish("stop") == [{"type": "stop", "reason": "stop"}]


def test_a_truncated_call_has_the_arguments_received_so_far() -> None:
    reader = ReplyReader(["add"])
    chunks = [*reader.feed('{"tool": "add", "arguments": {"a": '), *reader.finish("length")]
    assert (calls(chunks)[0]["arguments"], stop(chunks)) == ('{"a": ', "length")


def made(chunks: list[Chunk]) -> list[tuple[str, Any]]:
    """Return the calls, streamed ones and complete ones."""
    whole = [(chunk["name"], chunk["arguments"]) for chunk in chunks if chunk["type"] == "tool_call"]
    return [*((call["name"], json.loads(call["arguments"])) for call in calls(chunks)), *whole]


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ('```json\n{"answer": "five"}\n```', "five"),
        ('```json\n{"size": 5}\n```', '```json\n{"size": 5}\n```'),
        ('So: ```{"answer": "five"}```', 'So: ```{"answer": "five"}```'),
        ('[{"name": "add"}]', '[{"name": "add"}]'),
        ('{"size": 5}\n{"size": 6}', '{"size": 5}\n{"size": 6}'),
    ],
)
def test_a_reply_that_is_not_a_call_is_shown_whole(reply: str, shown: str) -> None:
    chunks = read(*reply)
    assert (text(chunks), stop(chunks)) == (shown, "stop")


def test_a_surrogate_pair_that_is_split_is_joined() -> None:
    assert text(read('{"answer": "a\\ud83d', '\\udc4b"}')) == "a👋"


async def test_one_schema_covers_every_tool_and_the_answer(peer: Peer) -> None:
    await answer(peer, written("{}"), tools=[ADD, NOW])
    schema = peer.requests[0].body["response_format"]["json_schema"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid({"tool": "add", "arguments": {"a": 1}})
    assert valid({"tool": "now", "arguments": {}})
    assert valid({"answer": "5"})
    assert not valid({"tool": "add", "arguments": {"a": "one"}}), "definitions are found from within the union"
    assert not valid({"tool": "sub", "arguments": {}})
    assert not valid({"answer": 5})
    assert not valid({"tool": "now", "arguments": {}, "answer": "5"})
    assert "tools" not in peer.requests[0].body


def test_schema_definitions_of_the_same_name_are_separated() -> None:
    other = {"name": "other", "parameters": {"$defs": {"Number": {"type": "string"}}, "$ref": "#/$defs/Number"}}
    valid = jsonschema.Draft202012Validator(union_schema([ADD, other])).is_valid
    assert valid({"tool": "add", "arguments": {"a": 1}})
    assert valid({"tool": "other", "arguments": "x"})
    assert not valid({"tool": "other", "arguments": 1})


async def test_an_answer_may_have_its_own_schema(peer: Peer) -> None:
    chunks = await answer(peer, written('{"answer": {"sum": 5}}'), tools=[ADD], schema={"type": "object"})
    assert json.loads(text(chunks)) == {"sum": 5}


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ("auto", {"add", "now", "answer"}),
        ("required", {"add", "now"}),
        ({"type": "function", "function": {"name": "now"}}, {"now"}),
    ],
)
async def test_a_tool_choice_narrows_the_schema(peer: Peer, choice: object, offered: set[str]) -> None:
    await answer(peer, written("{}"), tools=[ADD, NOW], tool_choice=choice)
    body = peer.requests[0].body
    alternatives = body["response_format"]["json_schema"]["schema"]["anyOf"]
    assert {
        alternative["properties"].get("tool", {"const": "answer"})["const"] for alternative in alternatives
    } == offered
    assert "tool_choice" not in body


async def test_without_tools_the_reply_is_the_text(peer: Peer) -> None:
    for options in ({}, {"tools": [ADD], "tool_choice": "none"}):
        assert text(await answer(peer, written('{"answer": "x"}'), **options)) == '{"answer": "x"}'
        assert "response_format" not in peer.requests[-1].body


async def test_a_tool_choice_of_a_missing_tool_is_refused(peer: Peer) -> None:
    with pytest.raises(UsageError, match="sub"):
        await answer(peer, [], tools=[ADD], tool_choice={"type": "function", "function": {"name": "sub"}})


async def test_the_history_is_sent_in_plain_alternating_turns(peer: Peer) -> None:
    peer.replies(written('{"answer": "ok"}'))
    call = {"id": "1", "name": "add", "arguments": {"a": 1}}
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "", "tool_calls": [call, call | {"id": "2"}]},
        {"role": "tool", "tool_call_id": "1", "name": "add", "content": "5"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "no"}], "is_error": True},
        {"role": "user", "content": "And?"},
    ]
    await collect(OpenAI("m", peer.url, tool_calls="schema").stream(messages, tools=[ADD]))
    system, *turns = peer.requests[0].body["messages"]
    assert system["role"] == "system"
    assert "add: Add." in system["content"]
    assert system["content"].endswith("Be brief.")
    said = json.dumps({"tool": "add", "arguments": {"a": 1}})
    assert turns == [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": f"{said}\n{said}"},
        {"role": "user", "content": "The tool add returned: 5\n\nThe tool called last failed: no\n\nAnd?"},
    ]


def test_every_unbounded_string_of_a_schema_gets_a_maximum_length() -> None:
    text = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "plain": text,
            "or null": {"type": ["string", "null"]},
            "short": text | {"maxLength": 3},
            "one of": text | {"enum": ["a"]},
            "list": {"type": "array", "items": text},
        },
        "$defs": {"Deep": {"anyOf": [text, {"type": "integer"}]}},
    }
    bounded = with_bounded_texts(schema, 100)
    assert bounded["properties"] == {
        "plain": text | {"maxLength": 100},
        "or null": {"type": ["string", "null"], "maxLength": 100},
        "short": text | {"maxLength": 3},
        "one of": text | {"enum": ["a"]},
        "list": {"type": "array", "items": text | {"maxLength": 100}},
    }
    assert bounded["$defs"]["Deep"]["anyOf"][0] == text | {"maxLength": 100}
