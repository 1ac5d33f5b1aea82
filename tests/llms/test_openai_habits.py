"""Deviations in the answers of servers with OpenAI's protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentnb.core.errors import (
    AuthenticationError,
    ModelError,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailable,
    UsageError,
)
from agentnb.llms import OpenAI
from tests.llms.collecting import GO, ask, calls, only, stop, text, until_failure
from tests.llms.peer import END, HELLO, Peer, Reply, body, completion, delta, event, head, part

CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
WHOLE = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2},
}


async def answer(peer: Peer, reply: Reply, **rest: Any) -> list[dict[str, Any]]:
    peer.replies(reply)
    return await ask(OpenAI("m", peer.url, max_retries=0), **rest)


def lines(*data: str, media_type: str = "text/event-stream") -> Reply:
    return [head(200, media_type), *[part(line.encode()) for line in data], END]


SAID = 'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
STOPPED = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    "reply",
    [
        lines(SAID, STOPPED, media_type="application/json"),
        lines(SAID, STOPPED, media_type="text/plain; charset=utf-8"),
        lines(SAID, STOPPED, "data: [DONE]"),
        lines(SAID, STOPPED.rstrip("\n")),
        lines("data:\n\n", SAID, "data: \n\n", STOPPED),
        lines("event: ping\ndata: 2026-11-23\n\n", SAID, STOPPED),
        lines('event: ping\ndata: {"type": "ping"}\n\n', SAID, 'data: {"type": "ping"}\n\n', STOPPED),
        lines(SAID, 'data: {"choices": [], "usage": {"prompt_tokens": 1}}\n\n'),
        lines('data: {"choices": [], "prompt_filter_results": [{}]}\n\n', SAID, STOPPED),
        lines('data: {"choices": [{"index": 1, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n'),
        lines('data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": ""}]}\n\n', STOPPED),
        lines('data: {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n', "data: [DONE]\n\n"),
        [head(201), delta("stop", content="Hi"), END],
        body(200, WHOLE),
        body(200, [WHOLE]),
        lines('data: {"choices": [{"index": 0, "text": "Hi"}]}\n\n', STOPPED),
        lines("\n" + json.dumps(WHOLE, indent=1)),
        lines(json.dumps(WHOLE), "\n\ndata: [DONE]\n\n"),
        lines(json.dumps({"choices": [{"message": {"content": "Hi"}}]})),
    ],
    ids=[
        "called JSON", "called text", "DONE without a line end", "the last event without a line end", "empty data",
        "a ping that is no JSON", "pings", "ended by its account", "a prompt filter first", "choices counted from 1",
        "an empty finish reason", "a message in the stream", "status 201", "whole, as JSON", "whole, in a list",
        "a text of no message", "whole, called a stream", "whole, and DONE behind it", "whole, without a finish reason",
    ],
)  # fmt: skip
async def test_an_answer_is_read_in_every_form_of_response(peer: Peer, reply: Reply) -> None:
    chunks = await answer(peer, reply)
    assert (text(chunks), stop(chunks)) == ("Hi", "stop")


async def test_an_answer_without_streaming_has_calls_and_usage(peer: Peer) -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "d"}]}
    whole = WHOLE | {"choices": [{"index": 0, "message": calling, "finish_reason": "tool_calls"}]}
    chunks = await answer(peer, body(200, whole))
    assert [call["name"] for call in calls(chunks)] == ["now", "now"]
    assert only(chunks, "usage") == {"type": "usage", "input_tokens": 7, "output_tokens": 2}


@pytest.mark.parametrize(
    ("content", "thought", "said"),
    [
        ([{"type": "text", "text": "Hi"}], "", "Hi"),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Hi"}],
            "Hm.",
            "Hi",
        ),
        ([{"type": "reference", "reference_ids": [1]}, "Hi"], "", "Hi"),
        ({"type": "text", "text": "Hi"}, "", "Hi"),
        (5, "", ""),
    ],
)
async def test_content_in_parts_is_read(peer: Peer, content: object, thought: str, said: str) -> None:
    chunks = await answer(peer, completion(delta(content=content), delta("stop")))
    assert (text(chunks, "reasoning_delta"), text(chunks)) == (thought, said)


async def test_the_repetition_of_a_streamed_answer_is_skipped(peer: Peer) -> None:
    again = {"message": {"content": "Hi", "tool_calls": [CALL]}, "finish_reason": "tool_calls"}
    chunks = await answer(peer, completion(delta(content="Hi"), delta(tool_calls=[CALL]), event({"choices": [again]})))
    assert (text(chunks), len(calls(chunks)), stop(chunks)) == ("Hi", 1, "tool_calls")


@pytest.mark.parametrize(
    ("theirs", "with_text", "with_calls"),
    [
        ("eos", "stop", "tool_calls"),
        ("STOP", "stop", "tool_calls"),
        ("end_turn", "stop", "tool_calls"),
        ("odd", "odd", "tool_calls"),
        ("max_tokens", "length", "length"),
        ("MAX_TOKENS", "length", "length"),
        ("model_length", "length", "length"),
        ("tool_use", "tool_calls", "tool_calls"),
        ("sensitive", "content_filter", "content_filter"),
        ("guardrail_intervened", "content_filter", "content_filter"),
        ("content_filter: PROHIBITED_CONTENT", "content_filter", "content_filter"),
    ],
)
async def test_stop_reasons_of_other_servers_are_normalized(
    peer: Peer, theirs: str, with_text: str, with_calls: str
) -> None:
    assert stop(await answer(peer, completion(delta(content="x"), delta(theirs)))) == with_text
    assert stop(await answer(peer, completion(delta(tool_calls=[CALL]), delta(theirs)))) == with_calls


@pytest.mark.parametrize("usage", [
    {"prompt_tokens": 7, "completion_tokens": 2.0},
    {"prompt_tokens": "7", "completion_tokens": "2"},
    {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": -1}},
    {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 10**30}},
    {"prompt_tokens": 7, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": True}},
])  # fmt: skip
@pytest.mark.parametrize("within", [True, False])
async def test_usage_is_read_as_integers_from_every_field(peer: Peer, usage: dict[str, Any], within: bool) -> None:
    choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
    said = {"choices": [choice | {"usage": usage}]} if within else {"choices": [choice], "usage": usage}
    chunks = await answer(peer, completion(event({"choices": [], "usage": None}), event(said)))
    assert only(chunks, "usage") == {"type": "usage", "input_tokens": 7, "output_tokens": 2}


async def test_usage_of_groq_and_deepseek_is_read(peer: Peer) -> None:
    used = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": used}}
    chunks = await answer(peer, completion(delta(content="x"), event(last)))
    assert only(chunks, "usage") == {"type": "usage", "input_tokens": 7, "output_tokens": 2, "cache_read_tokens": 4}


async def test_an_answer_that_groq_interrupts_is_an_error(peer: Peer) -> None:
    peer.replies(completion(delta(content="half"), event({"choices": [], "x_groq": {"error": "over capacity"}})))
    seen, error = await until_failure(OpenAI("m", peer.url).stream(GO))
    assert text(seen) == "half"
    assert isinstance(error, ModelUnavailable)
    assert "over capacity" in str(error)


@pytest.mark.parametrize("amount", [-1, 10**30, "many", None, float("inf"), float("nan"), [1], True])
async def test_an_invalid_number_of_tokens_is_ignored(peer: Peer, amount: object) -> None:
    usage = {"prompt_tokens": amount, "completion_tokens": 2}
    chunks = await answer(peer, completion(delta(content="x"), event({"choices": [], "usage": usage})))
    assert only(chunks, "usage") == {"type": "usage", "input_tokens": 0, "output_tokens": 2}


@pytest.mark.parametrize(
    ("told", "cost"), [(0.25, 0.25), (0, 0.0), (-1, None), ("1", None), (True, None), (1e999, None)]
)
async def test_the_cost_of_an_answer_is_read(peer: Peer, told: object, cost: float | None) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "cost": told}
    chunks = await answer(peer, completion(delta(content="x"), event({"choices": [], "usage": usage})))
    assert only(chunks, "usage").get("cost") == cost


BAD = {"object": "error", "message": "Sorry.", "type": "BadRequestError", "code": 400}


@pytest.mark.parametrize(
    ("told", "blamed"),
    [
        (event(BAD), ModelRequestError),
        (event([{"error": {"code": 429, "message": "Sorry.", "status": "RESOURCE_EXHAUSTED"}}]), ModelOverloaded),
        (event({"error": {"code": "502", "message": "Sorry."}}), ModelUnavailable),
        (event({"error": "Sorry.", "error_type": "overloaded"}), ModelOverloaded),
        (event("Sorry.", "error"), ModelUnavailable),
        (event({"choices": [{"error": {"code": 502, "message": "Sorry."}}]}), ModelUnavailable),
        (delta("error") + event({"detail": "Sorry."}), ModelUnavailable),
        (delta("insufficient_system_resource"), ModelUnavailable),
        (delta("function_call_filter: MALFORMED_FUNCTION_CALL"), ModelUnavailable),
        (event({"detail": "Sorry."}), ModelUnavailable),
        (event({"success": False, "code": 500, "msg": "Sorry."}), ModelUnavailable),
        (part(b'error: {"code": 400, "message": "Sorry."}\n\n'), ModelRequestError),
        (part(b'{"error": {"code": 400, "message": "Sorry."}}\n\n'), ModelRequestError),
        (event({"base_resp": {"status_code": 1004, "status_msg": "Sorry."}, "choices": None}), ModelUnavailable),
    ],
    ids=[
        "vLLM's older", "Gemini's list", "a code in text", "TGI's", "plain text", "in the choice", "by its reason",
        "DeepSeek's reason", "Gemini's reason", "FastAPI's", "without the word", "llama.cpp's older",
        "Lemonade's", "MiniMax's",
    ],
)  # fmt: skip
@pytest.mark.parametrize("begun", [True, False])
async def test_an_error_within_a_stream_is_raised(
    peer: Peer, told: bytes, blamed: type[ModelError], begun: bool
) -> None:
    with pytest.raises(ModelError, match=r"Sorry\.|interrupted its answer") as caught:
        await answer(peer, completion(*[delta(content="half")] * begun, told))
    assert type(caught.value) is blamed


async def test_a_stop_for_tool_calls_without_calls_is_an_error(peer: Peer) -> None:
    with pytest.raises(ModelProtocolError, match="but sent no tool call"):
        await answer(peer, completion(delta(reasoning_content="I call now."), delta("tool_calls")))


def message(words: str, **rest: object) -> dict[str, Any]:
    return {"error": {"message": words, **rest}}


@pytest.mark.parametrize(
    ("status", "said", "options", "words"),
    [
        (400, message("Unknown field: stream_options."), {}, "stream_options=None leaves stream_options out"),
        (
            400,
            message("Unsupported parameter: 'max_tokens'."),
            {"max_tokens": 5},
            "max_tokens=None leaves max_tokens out",
        ),
        (422, {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs"}]}, {"seed": 1}, "seed=None leaves seed out"),
        (
            404,
            {"detail": "Not Found"},
            {},
            "base_url leads to the path /chat/completions; most servers need a base_url that ends with /v1",
        ),
        (400, message("gemma does not support tools"), {"tools": [{"name": "now"}]}, 'tool_calls="schema"'),
        (400, message("Provider returned error", metadata={"raw": '{"detail": "Too odd."}'}), {}, "Too odd."),
        (400, [message("Too odd.", code=400)], {}, "answered 400: Too odd."),
        (
            400,
            message("This response_format type is unavailable now"),
            {"schema": {"type": "object"}},
            'response_format={"type": "json_object"}',
        ),
        (400, message("See 'failed_generation'.", failed_generation="<function=now>"), {}, "(<function=now>)"),
    ],
)
async def test_the_error_for_a_refused_request_says_what_to_do(
    peer: Peer, status: int, said: object, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelRequestError) as caught:
        await answer(peer, body(status, said), **options)
    assert words in str(caught.value)
    assert caught.value.status == status


async def test_an_end_without_an_answer_is_an_error(peer: Peer) -> None:
    with pytest.raises(ModelProtocolError, match="ended before its answer began"):
        await answer(peer, completion())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'no key was sent; api_key_env="OPENAI_API_KEY"'),
        ({"api_key_env": "SOME_KEY"}, "the environment variable SOME"),
    ],
)
async def test_the_error_for_a_refused_key_names_its_variable(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-key")
    peer.replies(body(401, message("Who are you?")))
    with pytest.raises(AuthenticationError, match=words):
        await ask(OpenAI("m", peer.url, max_retries=0, **options))


async def test_an_answer_of_type_json_is_accepted(peer: Peer) -> None:
    await answer(peer, HELLO)
    assert peer.requests[0].headers["accept"] == "text/event-stream, application/json"


async def test_a_redirect_is_reported_and_not_followed(peer: Peer) -> None:
    moved = body(307, "", location=f"{peer.url.replace('//', '//user:secret@')}/v1/chat/completions?key=secret")
    with pytest.raises(
        ModelRequestError, match=r"moved to http://127\.0\.0\.1:\d+/v1/chat/completions; change base_url"
    ) as caught:
        await answer(peer, moved)
    assert "secret" not in str(caught.value)
    assert len(peer.requests) == 1


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("/v1", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/deployments/d?api-version=1", "/deployments/d/chat/completions?api-version=1"),
    ],
)
async def test_a_base_url_may_contain_a_query_or_the_whole_path(peer: Peer, base: str, path: str) -> None:
    peer.replies(HELLO)
    await ask(OpenAI("m", peer.url + base))
    assert peer.requests[0].path == path


async def test_the_reasoning_of_an_answer_without_calls_is_not_kept_for_the_provider(peer: Peer) -> None:
    chunks = await answer(peer, completion(delta(reasoning_content="Hm."), delta(content="x"), delta("stop")))
    assert [chunk["type"] for chunk in chunks] == ["reasoning_delta", "text_delta", "stop"]


async def test_the_message_of_a_whole_answer_counts_more_than_an_empty_delta(peer: Peer) -> None:
    (choice,) = WHOLE["choices"]  # type: ignore[misc]
    both = {**choice, "delta": {"role": "assistant", "content": ""}}  # Perplexity
    assert text(await answer(peer, body(200, WHOLE | {"choices": [both]}))) == "Hi"


async def test_a_call_of_a_custom_tool_names_the_api_that_has_them(peer: Peer) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "math", "input": "4 + 4"}}
    with pytest.raises(UsageError, match=r"custom tool math.*api=\"responses\""):
        await answer(peer, completion(delta(tool_calls=[call]), delta("tool_calls")))
