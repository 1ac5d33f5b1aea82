from __future__ import annotations

from typing import Any

import pytest

from agentnb.core.errors import (
    AuthenticationError,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailable,
)
from agentnb.llms import Anthropic, Chunk, Message
from tests.llms.collecting import GO, ask, calls, collect, stop, text, until_failure
from tests.llms.peer import CUT, END, Peer, Reply, event, head, part

ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}

SOURCE = {"type": "url", "url": "https://e.org/a.png"}


def named(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def block(index: int, *deltas: dict[str, Any], **opened: Any) -> bytes:
    filled = [named("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join(
        [
            named("content_block_start", index=index, content_block=opened),
            *filled,
            named("content_block_stop", index=index),
        ]
    )


def said(text: str) -> dict[str, str]:
    return {"type": "text_delta", "text": text}


def fragment(text: str) -> dict[str, str]:
    return {"type": "input_json_delta", "partial_json": text}


def start(**usage: int) -> bytes:
    return named("message_start", message={"role": "assistant", "content": [], "usage": usage})


def end(reason: str | None = "end_turn", **usage: int) -> bytes:
    return named("message_delta", delta={"stop_reason": reason}, usage=usage) + named("message_stop")


def message(*events: bytes) -> Reply:
    return [head(), *events, END]


HELLO = message(start(), block(0, said("hello"), type="text", text=""), end())


async def answer(peer: Peer, reply: Reply, **rest: Any) -> list[Chunk]:
    peer.replies(reply)
    return await ask(Anthropic("m", peer.url, max_retries=0), **rest)


async def test_text_usage_and_stop_are_yielded_in_this_order(peer: Peer) -> None:
    chunks = await answer(
        peer,
        message(
            start(input_tokens=5, cache_read_input_tokens=20, cache_creation_input_tokens=3, output_tokens=1),
            named("ping"),
            block(0, said("Hi"), said("!"), type="text", text=""),
            end(output_tokens=9),
        ),
    )
    assert chunks == [
        {"type": "text_delta", "content": "Hi"},
        {"type": "text_delta", "content": "!"},
        {"type": "response", "finish_reason": "end_turn"},
        {"type": "usage", "input_tokens": 28, "output_tokens": 9, "cache_read_tokens": 20, "cache_write_tokens": 3},
        {"type": "stop", "reason": "stop"},
    ]


async def test_a_call_of_code_at_the_server_comes_whole_with_the_start(peer: Peer) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}, "caller": {"type": "code_execution"}}
    whole = {"role": "assistant", "content": [use], "stop_reason": "tool_use", "usage": {}}
    chunks = await answer(peer, message(named("message_start", message=whole), named("message_stop")))
    assert calls(chunks) == [{"id": "t1", "name": "add", "arguments": '{"a": 1}'}]
    assert stop(chunks) == "tool_calls"


async def test_the_tokens_of_a_compaction_are_counted(peer: Peer) -> None:
    parts = [
        {"type": "compaction", "input_tokens": 100, "cache_read_input_tokens": 5000, "output_tokens": 80},
        {"type": "message", "input_tokens": 180, "cache_read_input_tokens": 0, "output_tokens": 8},
    ]
    last: Any = {"input_tokens": 180, "cache_read_input_tokens": 0, "output_tokens": 8, "iterations": parts}
    first = start(input_tokens=100, cache_read_input_tokens=5000, output_tokens=7)
    chunks = await answer(peer, message(first, block(0, said("x"), type="text", text=""), end(**last)))
    used = {"type": "usage", "input_tokens": 5280, "output_tokens": 88, "cache_read_tokens": 5000}
    assert chunks[-2] == used


async def test_the_start_of_a_block_may_contain_text(peer: Peer) -> None:
    blocks = [block(0, type="thinking", thinking="Hm."), block(1, said("llo"), type="text", text="He")]
    chunks = await answer(peer, message(start(), *blocks, end()))
    assert (text(chunks, "reasoning_delta"), text(chunks)) == ("Hm.", "Hello")


async def test_thinking_is_yielded_with_its_signature(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.llms.anthropic_reader.OWN_SERVER", peer.url.removeprefix("http://"))
    thinking = block(
        0,
        {"type": "thinking_delta", "thinking": "Hm."},
        {"type": "signature_delta", "signature": "abc"},
        type="thinking",
        thinking="",
        signature="",
    )
    chunks = await answer(peer, message(start(), thinking, block(1, said("x"), type="text", text=""), end()))
    assert chunks[:3] == [
        {"type": "reasoning_delta", "content": "Hm."},
        {"type": "reasoning_delta", "content": "", "signature": "abc"},
        {"type": "text_delta", "content": "x"},
    ]


async def test_tool_calls_are_numbered_from_zero(peer: Peer) -> None:
    chunks = await answer(
        peer,
        message(
            start(),
            block(0, said("Let me"), type="text", text=""),
            block(1, fragment(""), fragment('{"a"'), fragment(": 1}"), type="tool_use", id="t1", name="add", input={}),
            block(2, type="tool_use", id="t2", name="now", input={}),
            block(3, type="tool_use", id="t3", name="sub", input={"b": 2}),
            end("tool_use"),
        ),
    )
    assert calls(chunks) == [
        {"id": "t1", "name": "add", "arguments": '{"a": 1}'},
        {"id": "t2", "name": "now", "arguments": "{}"},
        {"id": "t3", "name": "sub", "arguments": '{"b": 2}'},
    ]
    assert stop(chunks) == "tool_calls"


@pytest.mark.parametrize(("theirs", "ours"), [("max_tokens", "length"), ("refusal", "refusal")])
async def test_a_call_that_was_cut_off_is_not_completed(peer: Peer, theirs: str, ours: str) -> None:
    tools = [
        block(0, fragment('{"a": '), type="tool_use", id="t1", name="add", input={}),
        block(1, type="tool_use", id="t2", name="add", input={}),
    ]
    chunks = await answer(peer, message(start(), *tools, end(theirs)))
    assert [call["arguments"] for call in calls(chunks)] == ['{"a": ', ""]
    assert stop(chunks) == ours


async def test_unknown_events_are_skipped_and_unknown_blocks_are_kept_unchanged(peer: Peer) -> None:
    chunks = await answer(
        peer,
        message(
            event({"type": "future_event", "usage": {"output_tokens": 99}}),
            start(),
            block(0, type="future_block", data="xyz"),
            block(1, fragment('{"query": 1}'), type="server_tool_use", id="s1", name="web_search", input={}),
            block(2, {"type": "citations_delta", "citation": {}}, said("x"), type="text", text=""),
            named("content_block_delta", index=9, delta={"type": "future_delta"}),
            named("content_block_delta"),
            end(),
        ),
    )
    server = peer.url.removeprefix("http://")
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": 1}}
    assert chunks == [
        {"type": "block", "server": server, "block": {"type": "future_block", "data": "xyz"}},
        {"type": "block", "server": server, "block": search},
        {"type": "text_delta", "content": "x"},
        {"type": "text_end", "server": server, "citations": [{}]},
        {"type": "response", "finish_reason": "end_turn"},
        {"type": "stop", "reason": "stop"},
    ]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("stop_sequence", "stop"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
        ("new_reason", "new_reason"),
    ],
)
async def test_stop_reasons_are_normalized(peer: Peer, theirs: str, ours: str) -> None:
    assert stop(await answer(peer, message(start(), end(theirs)))) == ours


@pytest.mark.parametrize(
    ("kind", "blamed"),
    [
        ("overloaded_error", ModelOverloaded),
        ("rate_limit_error", ModelOverloaded),
        ("api_error", ModelUnavailable),
        ("invalid_request_error", ModelRequestError),
        ("authentication_error", AuthenticationError),
    ],
)
async def test_an_error_within_a_stream_has_the_right_type(peer: Peer, kind: str, blamed: type[Exception]) -> None:
    half_a_call = named(
        "content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": "add", "input": {}}
    )
    half_a_call += named("content_block_delta", index=0, delta=fragment('{"a": '))
    peer.replies(message(start(), half_a_call, named("error", error={"type": kind, "message": "Sorry."})))
    seen, error = await until_failure(Anthropic("m", peer.url).stream(GO))
    assert type(error) is blamed
    assert "Sorry." in str(error)
    assert calls(seen)[0]["arguments"] == '{"a": '
    assert len(peer.requests) == 1


@pytest.mark.parametrize("ending", [[END], [CUT], [part(b"event: message_delta\n"), END]])
async def test_an_interrupted_stream_is_reported(peer: Peer, ending: Reply) -> None:
    with pytest.raises(ModelProtocolError):
        await answer(peer, [head(), start(), block(0, said("half"), type="text", text=""), *ending])


async def test_the_request_has_the_form_of_the_api(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    peer.replies(HELLO)
    model = Anthropic("m", peer.url + "/v1", api_key_env="ANTHROPIC_API_KEY", max_tokens=100, temperature=0)
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+3?"},
        {"role": "user", "content": [{"type": "text", "text": "And 4+5?"}, {"type": "image", "source": SOURCE}]},
        {
            "role": "assistant",
            "content": "Adding.",
            "reasoning": [{"text": "Hm.", "signature": "abc"}, {"text": "unsigned"}],
            "tool_calls": [
                {"id": "t1", "name": "add", "arguments": {"a": 2}},
                {"id": "odd.id", "name": "add", "arguments": "{broken"},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "add", "content": "no", "is_error": True},
        {"role": "user", "content": "Hurry."},
        {"role": "tool", "tool_call_id": "odd.id", "name": "add", "content": ""},
    ]
    await collect(model.stream(messages, tools=[ADD], tool_choice="required"))
    (request,) = peer.requests
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == "sk-ant-secret"
    assert request.headers["anthropic-version"] == "2023-06-01"
    odd = request.body["messages"][1]["content"][3]["id"]
    assert odd.startswith("odd_id_")
    assert request.body == {
        "model": "m",
        "max_tokens": 100,
        "temperature": 0,
        "stream": True,
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "add", "description": "Add.", "input_schema": ADD["parameters"]}],
        "tool_choice": {"type": "any"},
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "2+3?"},
                    {"type": "text", "text": "And 4+5?"},
                    {"type": "image", "source": SOURCE},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
                    {"type": "text", "text": "Adding."},
                    {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2}},
                    {"type": "tool_use", "id": odd, "name": "add", "input": {"malformed_arguments": "{broken"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "tool_result", "tool_use_id": odd},
                    {"type": "text", "text": "Hurry."},
                ],
            },
        ],
    }


async def test_a_second_request_sends_the_same_history(peer: Peer) -> None:
    peer.replies(HELLO, HELLO)
    model = Anthropic("m", peer.url)
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    await collect(model.stream(messages))
    await collect(model.stream(messages))
    assert peer.requests[0].body == peer.requests[1].body


async def test_a_schema_becomes_an_output_format_of_closed_objects(peer: Peer) -> None:
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": inner}}}
    await answer(peer, HELLO, schema=schema, output_config={"effort": "low"})
    closed = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": inner | {"additionalProperties": False}}},
    }
    form = {"type": "json_schema", "schema": closed | {"additionalProperties": False}}
    assert peer.requests[0].body["output_config"] == {"format": form, "effort": "low"}


async def test_no_request_is_sent_to_anthropic_without_a_key() -> None:
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY"):
        await ask(Anthropic("m"))


async def test_the_base_url_is_read_from_the_environment(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", peer.url)
    peer.replies(HELLO)
    assert text(await ask(Anthropic("m"))) == "hello"
