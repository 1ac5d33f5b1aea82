"""An error of a server has its own type, and keeps the details that a person needs to look it up."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import SessionLoop
from agentnb.errors import (
    AuthenticationError,
    ContentFiltered,
    ContextTooLong,
    ModelOverloaded,
    ModelRequestError,
    RunFailed,
)
from agentnb.llms import Anthropic, OpenAI
from tests.llms.collecting import ask, until_failure
from tests.llms.peer import Peer, body

AZURE_FILTER = {
    "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"hate": {"filtered": True}}},
}


async def failure(peer: Peer, status: int, payload: Any, kind: Any = OpenAI, **headers: str) -> Any:
    peer.replies(body(status, payload, **headers))
    _, error = await until_failure(kind("m", peer.url, max_retries=0).stream([{"role": "user", "content": "x"}]))
    return error


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"},
        {"type": "invalid_request_error", "message": "prompt is too long: 3333404 tokens > 200000 maximum"},
        {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit: 1 + 2 > 3"},
        {
            "message": "This endpoint's maximum context length is 200000 tokens. However, you requested 2500021",
            "code": 400,
        },
        {"message": "The total length of all messages is too long.", "type": "too_many_prompt_tokens", "code": 400},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
        {"message": "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576)."},
        {"message": "prompt too long; exceeded max context length by 10 tokens"},
        {"message": "Please reduce the length of the messages or completion."},
        {"message": "This model's maximum prompt length is 131072 but the request contains 200000 tokens."},
        {"message": "Input is too long for requested model."},
        {"message": "Range of input length should be [1, 30720]"},
        {"message": "Your input exceeds the context window of this model."},
        {"message": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length"},
    ],
)
@pytest.mark.parametrize("status", [400, 413])
async def test_a_context_that_is_too_long_raises_context_too_long(peer: Peer, status: int, error: Any) -> None:
    assert type(await failure(peer, status, {"error": error})) is ContextTooLong


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, AZURE_FILTER),
        (400, {"message": "Your request was rejected.", "code": "content_policy_violation"}),
        (400, {"message": "Output blocked by content filtering policy", "type": "invalid_request_error"}),
        (400, {"message": "Content Exists Risk", "type": "invalid_request_error"}),
        (400, {"message": "Input data may contain inappropriate content.", "code": "data_inspection_failed"}),
        (403, {"message": "Your chosen model requires moderation", "code": 403, "metadata": {"flagged_input": "x"}}),
        (403, {"message": "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"}),
    ],
)
async def test_a_content_filter_raises_content_filtered(peer: Peer, status: int, error: Any) -> None:
    assert type(await failure(peer, status, {"error": error})) is ContentFiltered


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (
            400,
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
            ModelRequestError,
        ),
        (400, "Invalid request: the image is too long.", ModelRequestError),
        (401, "Your input exceeds the context window.", AuthenticationError),
        (403, "You may not use this model.", AuthenticationError),
        (429, "Request too large for gpt-x: Limit 30000 tokens per min, Requested 40000.", ModelOverloaded),
    ],
)
async def test_other_errors_keep_their_types(peer: Peer, status: int, message: str, kind: Any) -> None:
    assert type(await failure(peer, status, {"error": {"message": message}})) is kind


async def test_an_error_keeps_the_code_and_the_body_of_the_server(peer: Peer) -> None:
    error = await failure(peer, 400, {"error": AZURE_FILTER}, x_request_id="req-7")
    assert (error.status, error.code, error.param, error.request_id) == (400, "content_filter", "prompt", "req-7")
    assert error.body["error"]["innererror"]["content_filter_result"] == {"hate": {"filtered": True}}


async def test_an_error_of_anthropic_keeps_its_type_and_the_request_id(peer: Peer) -> None:
    said = {"type": "error", "error": {"type": "not_found_error", "message": "model: m"}, "request_id": "req_011"}
    error = await failure(peer, 404, said, Anthropic)
    assert (error.code, error.request_id, error.body) == ("not_found_error", "req_011", said)


async def test_a_body_that_is_not_json_is_kept_as_text(peer: Peer) -> None:
    error = await failure(peer, 502, "<html>Bad gateway</html>")
    assert error.body == '"<html>Bad gateway</html>"'
    assert error.code is error.param is error.request_id is None


async def test_an_error_with_advice_keeps_code_and_param(peer: Peer) -> None:
    words = (
        "Function tools with reasoning_effort are not supported for gpt-x in /v1/chat/completions."
        " To use function tools, use /v1/responses or set reasoning_effort to 'none'."
    )
    peer.replies(body(400, {"error": {"message": words, "code": "unsupported", "param": "reasoning_effort"}}))
    with pytest.raises(ModelRequestError, match='reasoning_effort="none"') as caught:
        await ask(OpenAI("m", peer.url, reasoning_effort="low"))
    assert "reasoning_effort=None" not in str(caught.value)
    assert (caught.value.code, caught.value.param) == ("unsupported", "reasoning_effort")


async def test_a_recording_contains_the_details_of_a_failure(peer: Peer) -> None:
    peer.replies(body(400, {"error": AZURE_FILTER}, x_request_id="req-7"))
    run = SessionLoop(OpenAI("m", peer.url)).start("go")
    with pytest.raises(RunFailed) as caught:
        await run
    assert isinstance(caught.value.__cause__, ContentFiltered)
    (failed,) = [event for event in run.events if event.type == "model_error"]
    assert failed.error.type == "ContentFiltered"
    assert failed.error.details == {"status": 400, "code": "content_filter", "param": "prompt", "request_id": "req-7"}
