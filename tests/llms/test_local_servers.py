"""What llama.cpp, vLLM and Ollama answer, by public recordings of their chat completions.

llama.cpp's own server is also asked for real, in `test_local`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentnb.core.errors import ContextTooLong, ModelError, ModelRequestError
from agentnb.llms import OpenAI
from tests.llms.collecting import ask, calls, only, stop, text
from tests.llms.peer import Peer, Reply, body, completion, event

NOW: dict[str, Any] = {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
USAGE = {"prompt_tokens": 161, "completion_tokens": 20, "total_tokens": 181}


def chunk(server: str, delta: dict[str, Any] | None, reason: str | None = None, **more: Any) -> bytes:
    """An event of a server, with the fields that only this server has."""
    own: dict[str, dict[str, Any]] = {
        "llama.cpp": {"system_fingerprint": "b6123-ab", "timings": {"prompt_n": 161, "predicted_n": 20}},
        "vLLM": {},
        "Ollama": {"system_fingerprint": "fp_ollama"},
    }
    inside = {"vLLM": {"logprobs": None, "stop_reason": None}}.get(server, {})
    choices = [{"index": 0, "delta": delta, "finish_reason": reason, **inside}] if delta is not None else []
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "qwen3"}
    return event({**head, "choices": choices, **own[server], **more})


def call(index: int | None, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    known = {"index": index, "id": call_id, "type": "function" if call_id else None}
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return {field: value for field, value in known.items() if value is not None} | {"function": function}


def made(server: str) -> Reply:
    """An answer with reasoning and two calls, as each server streams it."""
    first, second = '{"zone": "UTC"}', '{"zone": "CET"}'
    if server == "Ollama":  # each call is whole; older versions give all of them the index 0
        deltas: list[dict[str, Any]] = [
            {"role": "assistant", "content": "", "reasoning": "Two zones."},
            {"role": "assistant", "content": "", "tool_calls": [call(0, "call_ejieksiz", "now", first)]},
            {"role": "assistant", "content": "", "tool_calls": [call(0, "call_q3fk1e5m", "now", second)]},
        ]
    elif server == "vLLM":  # the name first, the arguments in pieces
        ids = ["chatcmpl-tool-" + digit * 32 for digit in "ab"]
        deltas = [
            {"role": "assistant", "content": ""},
            {"reasoning_content": "Two "},
            {"reasoning_content": "zones."},
            {"tool_calls": [call(0, ids[0], "now", "")]},
            {"tool_calls": [call(0, None, None, first[:7])]},
            {"tool_calls": [call(0, None, None, first[7:])]},
            {"tool_calls": [call(1, ids[1], "now", "")]},
            {"tool_calls": [call(1, None, None, second)]},
        ]
    else:
        deltas = [
            {"role": "assistant", "content": None},
            {"reasoning_content": "Two zones."},
            {"tool_calls": [call(0, "fqz4zVVUuMuAaWMeKsVKcnM6EXkZFFXr", "now", "{")]},
            {"tool_calls": [call(0, None, None, first[1:])]},
            {"tool_calls": [call(1, "b3nn5GJXWLvrJpNbBLQY2dCZgAkRUqkV", "now", second)]},
        ]
    events = [chunk(server, delta) for delta in deltas]
    return completion(*events, chunk(server, {}, "tool_calls"), chunk(server, None, usage=USAGE))


SERVERS = ["llama.cpp", "vLLM", "Ollama"]


@pytest.mark.parametrize("server", SERVERS)
async def test_reasoning_two_calls_and_usage_are_read(peer: Peer, server: str) -> None:
    peer.replies(made(server))
    chunks = await ask(OpenAI("qwen3", f"{peer.url}/v1"), tools=[NOW])
    assert text(chunks, "reasoning_delta") == "Two zones."
    assert [json.loads(one["arguments"]) for one in calls(chunks)] == [{"zone": "UTC"}, {"zone": "CET"}]
    assert len({one["id"] for one in calls(chunks)}) == 2
    assert only(chunks, "usage")["input_tokens"] == 161
    assert stop(chunks) == "tool_calls"
    assert "authorization" not in peer.requests[0].headers


TOOLS_REFUSED = {
    "vLLM": {
        "object": "error",
        "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "Ollama": {
        "error": {
            "message": "registry.ollama.ai/library/llama3:8b does not support tools",
            "type": "api_error",
            "param": None,
            "code": None,
        }
    },
}


@pytest.mark.parametrize("server", TOOLS_REFUSED)
async def test_a_server_that_refuses_tools_is_named_with_what_to_do(peer: Peer, server: str) -> None:
    peer.replies(body(400, TOOLS_REFUSED[server]))
    with pytest.raises(ModelRequestError, match='tool_calls="schema"') as caught:
        await ask(OpenAI("m", peer.url), tools=[NOW])
    assert "tool" in str(caught.value).partition("answered 400: ")[2].partition("(")[0]


FAILURES: list[tuple[str, int, dict[str, Any], type[ModelError]]] = [
    (
        "vLLM",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested 6031 tokens.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        ContextTooLong,
    ),
    (
        "llama.cpp",
        400,
        {
            "error": {
                "code": 400,
                "message": "request (6031 tokens) exceeds the available context size (4096 tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 6031,
                "n_ctx": 4096,
            }
        },
        ContextTooLong,
    ),
    (
        "Ollama",
        404,
        {"error": {"message": 'model "qwen9" not found, try pulling it first', "type": "api_error", "code": None}},
        ModelRequestError,
    ),
    (
        "Ollama",
        400,
        {"error": {"message": "invalid image input", "type": "invalid_request_error", "param": None, "code": None}},
        ModelRequestError,
    ),
]


@pytest.mark.parametrize(("server", "status", "told", "kind"), FAILURES)
async def test_a_refused_request_has_the_words_of_the_server(
    peer: Peer, server: str, status: int, told: dict[str, Any], kind: type[ModelError]
) -> None:
    peer.replies(body(status, told))
    with pytest.raises(ModelError) as caught:
        await ask(OpenAI("m", peer.url))
    assert type(caught.value) is kind
    assert str(told.get("error", told)["message"]) in str(caught.value)
    assert "base_url" not in str(caught.value)
