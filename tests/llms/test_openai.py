from __future__ import annotations

import pickle
from typing import Any

import pytest

from agentnb import SessionLoop
from agentnb.core.errors import (
    AuthenticationError,
    ContextTooLong,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailable,
    UsageError,
)
from agentnb.llms import Message, OpenAI
from tests.llms.collecting import GO, ask, calls, collect, only, stop, text, until_failure
from tests.llms.peer import CUT, END, HELLO, Peer, Reply, body, completion, delta, event, head, part

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


def call_delta(index: int | None, arguments: str | None = None, **rest: Any) -> dict[str, Any]:
    function = {name: rest.pop(name) for name in ("name",) if name in rest} | {"arguments": arguments}
    return {"function": function} | rest | ({} if index is None else {"index": index})


async def answer(peer: Peer, reply: Reply, **rest: Any) -> list[dict[str, Any]]:
    peer.replies(reply)
    return await ask(OpenAI("m", peer.url, max_retries=0), **rest)


async def test_text_usage_and_stop_are_yielded_in_this_order(peer: Peer) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}
    usage["completion_tokens_details"] = {"reasoning_tokens": 1}
    chunks = await answer(
        peer,
        completion(delta(role="assistant"), delta(content="Hi"), delta("stop"), event({"choices": [], "usage": usage})),
    )
    assert chunks == [
        {"type": "text_delta", "content": "Hi"},
        {"type": "usage", "input_tokens": 7, "output_tokens": 2, "cache_read_tokens": 5, "reasoning_tokens": 1},
        {"type": "stop", "reason": "stop"},
    ]


async def test_the_request_has_the_form_of_the_api(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.replies(HELLO)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-key")
    model = OpenAI("m", peer.url + "/v1/", api_key_env="OPENAI_API_KEY", temperature=0, seed=1)
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "2+3?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "name": "add", "arguments": {"a": 2}}]},
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "no", "is_error": True},
        {"role": "tool", "tool_call_id": "c2", "name": "add", "content": [{"type": "text", "text": "5"}]},
    ]
    await collect(model.stream(messages, tools=[ADD], seed=None, tool_choice="auto"))
    (request,) = peer.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-secret-key"
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    assert request.body == {
        "model": "m",
        "temperature": 0,
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": ADD}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "2+3?"}]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "Error: no"},
            {"role": "tool", "tool_call_id": "c2", "content": "5"},
        ],
    }


@pytest.mark.parametrize("strict", [True, False])
async def test_a_schema_is_strict_if_the_server_supports_it(peer: Peer, strict: bool) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    schema["required"] = ["a"] if strict else []
    await answer(peer, HELLO, schema=schema)
    named = {"name": "answer", "schema": schema} | ({"strict": True} if strict else {})
    assert peer.requests[0].body["response_format"] == {"type": "json_schema", "json_schema": named}


async def test_parallel_calls_may_be_interleaved(peer: Peer) -> None:
    chunks = await answer(
        peer,
        completion(
            delta(tool_calls=[call_delta(0, "", id="a", name="add"), call_delta(1, '{"c"', id="b", name="sub")]),
            delta(tool_calls=[call_delta(0, '{"a":')]),
            delta(tool_calls=[call_delta(1, ": 1}"), call_delta(0, " 2}")]),
            delta("tool_calls"),
        ),
    )
    assert calls(chunks) == [
        {"id": "a", "name": "add", "arguments": '{"a": 2}'},
        {"id": "b", "name": "sub", "arguments": '{"c": 1}'},
    ]
    assert stop(chunks) == "tool_calls"


async def test_the_id_and_name_of_a_call_are_yielded_once(peer: Peer) -> None:
    chunks = await answer(
        peer,
        completion(
            delta(tool_calls=[call_delta(0, "{", id="a", name="f")]), delta(tool_calls=[call_delta(0, "}", id="a")])
        ),
    )
    assert chunks[:2] == [
        {"type": "tool_call_delta", "index": 0, "id": "a", "name": "f", "arguments": "{"},
        {"type": "tool_call_delta", "index": 0, "arguments": "}"},
    ]


async def test_calls_with_missing_or_equal_indexes_are_separated(peer: Peer) -> None:
    for indexes in [(None, None), (0, 0), (3, 3)]:
        chunks = await answer(
            peer,
            completion(
                delta(tool_calls=[call_delta(indexes[0], "{}", id="a", name="f")]),
                delta(tool_calls=[call_delta(indexes[1], '{"x":', id="b", name="g"), call_delta(indexes[1], "1}")]),
                delta("stop"),
            ),
        )
        assert calls(chunks) == [
            {"id": "a", "name": "f", "arguments": "{}"},
            {"id": "b", "name": "g", "arguments": '{"x":1}'},
        ], indexes
        assert stop(chunks) == "tool_calls"


async def test_a_call_is_identified_by_its_id_and_arguments_may_be_an_object(peer: Peer) -> None:
    chunks = await answer(
        peer,
        completion(
            delta(tool_calls=[call_delta(None, '{"x":', id="a", name="f")]),
            delta(tool_calls=[{"id": "b", "function": {"name": "g", "arguments": {"y": 2}}}]),
            delta(tool_calls=[call_delta(None, "1}", id="a")]),
            event({"choices": [{"index": 0, "delta": None, "finish_reason": "tool_calls"}]}),
        ),
    )
    assert calls(chunks) == [
        {"id": "a", "name": "f", "arguments": '{"x":1}'},
        {"id": "b", "name": "g", "arguments": '{"y": 2}'},
    ]


async def test_a_call_without_id_and_arguments_is_completed(peer: Peer) -> None:
    (call,) = calls(
        await answer(peer, completion(delta(tool_calls=[call_delta(0, None, name="now")]), delta("tool_calls")))
    )
    assert call["arguments"] == "{}"
    assert call["id"].startswith("call_")


async def test_a_call_cut_off_by_the_length_limit_is_not_completed(peer: Peer) -> None:
    chunks = await answer(peer, completion(delta(tool_calls=[call_delta(0, "", id="a", name="f")]), delta("length")))
    assert calls(chunks) == [{"id": "a", "name": "f", "arguments": ""}]
    assert stop(chunks) == "length"


async def test_invalid_arguments_are_passed_on_unchanged(peer: Peer) -> None:
    chunks = await answer(
        peer, completion(delta(tool_calls=[call_delta(0, '{"a": ', id="a", name="f")]), delta("tool_calls"))
    )
    assert calls(chunks)[0]["arguments"] == '{"a": '


async def test_null_fields_are_ignored(peer: Peer) -> None:
    nulls = {"role": None, "content": None, "tool_calls": None, "refusal": None, "reasoning_content": None}
    chunks = await answer(
        peer,
        completion(
            delta(**nulls, function_call=None),
            delta(content="x"),
            event({"choices": None, "usage": None}),
            delta("stop"),
        ),
    )
    assert chunks == [{"type": "text_delta", "content": "x"}, {"type": "stop", "reason": "stop"}]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning_is_separate_from_the_text(peer: Peer, field: str) -> None:
    chunks = await answer(peer, completion(delta(**{field: "hm"}), delta(content="x"), delta("stop")))
    assert (text(chunks, "reasoning_delta"), text(chunks)) == ("hm", "x")


async def test_a_refusal_is_text_with_the_stop_reason_refusal(peer: Peer) -> None:
    chunks = await answer(peer, completion(delta(refusal="I will not."), delta("stop")))
    assert (text(chunks), stop(chunks)) == ("I will not.", "refusal")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("length", "length"), ("content_filter", "content_filter"), ("function_call", "tool_calls"), ("odd", "odd")],
)
async def test_stop_reasons_are_normalized(peer: Peer, theirs: str, ours: str) -> None:
    chunks = await answer(peer, completion(delta(content="half a sent"), delta(theirs)))
    assert (text(chunks), stop(chunks)) == ("half a sent", ours)


async def test_other_choices_are_ignored(peer: Peer) -> None:
    second = event({"choices": [{"index": 1, "delta": {"content": "two"}, "finish_reason": "length"}]})
    chunks = await answer(peer, completion(delta(content="one"), second, delta("stop")))
    assert (text(chunks), stop(chunks)) == ("one", "stop")


@pytest.mark.parametrize(
    "ending", [[event("[DONE]"), END], [delta("stop"), END], [delta("stop"), event("[DONE]"), CUT]]
)
async def test_a_finish_reason_or_done_ends_an_answer(peer: Peer, ending: Reply) -> None:
    chunks = await answer(peer, [head(), delta(content="x"), *ending])
    assert (text(chunks), stop(chunks)) == ("x", "stop")


@pytest.mark.parametrize("ending", [[END], [CUT]])
async def test_an_interrupted_stream_is_reported(peer: Peer, ending: Reply) -> None:
    peer.replies([head(), delta(content="half"), *ending])
    seen, error = await until_failure(OpenAI("m", peer.url).stream(GO))
    assert type(error) is ModelProtocolError
    assert text(seen) == "half"
    assert len(peer.requests) == 1, "an answer that has begun is not asked for again"


async def test_a_stream_cut_off_inside_an_event_is_reported(peer: Peer) -> None:
    with pytest.raises(ModelProtocolError, match="middle of an event"):
        await answer(peer, [head(), delta(content="x"), part(b"data: {"), END])


async def test_an_event_that_is_not_json_is_reported(peer: Peer) -> None:
    with pytest.raises(ModelProtocolError, match="not a JSON object: oops"):
        await answer(peer, completion(delta(content="x"), event("oops")))


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([r"a\ud83d\ud83d\udc4b\\ud83d"], "a\ufffd👋\\ud83d"),
        ([r"wave \ud83d", r"\udc4b!"], "wave 👋!"),
        ([r"\udc4b\ud83d", "."], "\ufffd\ufffd."),
    ],
    ids=["in one", "in two", "never"],
)
async def test_halves_of_a_surrogate_pair_are_joined_or_replaced(peer: Peer, events: list[str], said: str) -> None:
    told = [event(f'{{"choices": [{{"delta": {{"content": "{content}"}}}}]}}') for content in events]
    peer.replies(completion(*told, delta("stop")))
    assert await SessionLoop(OpenAI("m", peer.url)).start("hi") == said


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        ({"message": "Busy.", "type": "overloaded_error"}, ModelOverloaded),
        ({"message": "Busy.", "code": 429}, ModelOverloaded),
        ({"message": "Down.", "type": "server_error"}, ModelUnavailable),
        ({"message": "Too long.", "code": "context_length_exceeded"}, ContextTooLong),
        ({"message": "Too long.", "code": 400}, ModelRequestError),
        ("Down.", ModelUnavailable),
    ],
)
async def test_an_error_within_a_stream_has_the_right_type(peer: Peer, error: object, blamed: type[Exception]) -> None:
    half_a_call = delta(tool_calls=[call_delta(0, '{"a": ', id="c", name="add")])
    peer.replies([head(), half_a_call, event({"error": error}), END])
    with pytest.raises(blamed, match=r"Busy\.|Down\.|Too long\.") as caught:
        await ask(OpenAI("m", peer.url))
    assert type(caught.value) is blamed
    assert len(peer.requests) == 1


async def test_one_connection_is_used_for_several_requests(peer: Peer) -> None:
    peer.replies(HELLO, HELLO, HELLO)
    model = OpenAI("m", peer.url)
    for _ in range(3):
        assert text(await ask(model)) == "hello"
    assert peer.connections == 1
    await model.aclose()
    peer.replies(HELLO)
    assert text(await ask(model)) == "hello"
    assert peer.connections == 2


async def test_the_base_url_is_read_from_the_environment(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", peer.url + "/base")
    peer.replies(HELLO)
    await ask(OpenAI("m"))
    assert peer.requests[0].path == "/base/chat/completions"


async def test_no_request_is_sent_to_openai_without_a_key() -> None:
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        await ask(OpenAI("m"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key": "sk-1"},
        {"tool_calls": "magic"},
        {"base_url": "localhost:80"},
        {"base_url": "http://[::1"},
        {"base_url": "http://localhost:99999/v1"},
        {"model": None},
        {"max_retries": -1},
        {"max_retries": None},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"timeout": "30"},
    ],
)
def test_invalid_arguments_are_rejected_by_the_constructor(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        OpenAI(**{"model": "m", **wrong})


def test_a_key_argument_is_refused_and_the_variable_is_named() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as refused:
        OpenAI("m", api_key="sk-1")
    assert "sk-1" not in str(refused.value)


async def test_a_model_can_be_pickled(peer: Peer) -> None:
    peer.replies(HELLO, HELLO)
    model = OpenAI("m", peer.url, temperature=0)
    await ask(model)
    copy = pickle.loads(pickle.dumps(model))
    assert text(await ask(copy)) == "hello"
    assert peer.requests[1].body == peer.requests[0].body


async def test_a_body_with_status_200_and_an_error_is_an_error(peer: Peer) -> None:
    with pytest.raises(ModelRequestError, match=r"Unknown model\."):
        await answer(peer, body(200, {"error": {"message": "Unknown model.", "type": "invalid_request_error"}}))


async def test_usage_in_every_event_becomes_one_chunk(peer: Peer) -> None:
    def counted(count: int) -> bytes:
        choice = {"delta": {"content": "x"}}
        return event({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": count}})

    chunks = await answer(peer, completion(counted(1), counted(2), delta("stop")))
    assert only(chunks, "usage")["output_tokens"] == 2


async def test_a_message_is_converted_once(peer: Peer) -> None:
    peer.replies(HELLO, HELLO)
    model = OpenAI("m", peer.url)
    message = {"role": "user", "content": "first"}
    await collect(model.stream([message]))
    message["content"] = "changed"
    await collect(model.stream([message, {"role": "user", "content": "new"}]))
    assert [sent["content"] for sent in peer.requests[1].body["messages"]] == ["first", "new"]
