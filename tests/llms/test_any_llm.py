"""Models of other providers by the library any-llm, which is used for real: its clients ask a server of the tests."""

from __future__ import annotations

import json
import pickle
from importlib.util import find_spec
from typing import Any

import pytest

from agentnb import RunFailed, SessionLoop, Snapshot, restore, tool
from agentnb.content import Image, message
from agentnb.core.errors import (
    AuthenticationError,
    ContextTooLong,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    UsageError,
)
from agentnb.llms import AnyLLM
from tests.llms.collecting import GO, ask, collect, only, stop, text, until_failure
from tests.llms.peer import CUT, END, Peer, Reply, body, completion, event, head, said
from tests.llms.test_anthropic import block, fragment, named
from tests.llms.test_anthropic import said as words

if find_spec("any_llm") is None:  # every process collects this file, and would import it for seconds
    pytest.skip("any-llm is not installed", allow_module_level=True)
NIGHTLY = pytest.mark.sampled(1000)  # the library and the official clients take seconds to import
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("no_waits")]

PNG = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))


def llm(peer: Peer, provider: str = "openai", **options: Any) -> AnyLLM:
    return AnyLLM(f"{provider}:m", peer.url, **options)


@tool(idempotent=True)
def look(n: int) -> str:
    """Look."""
    return f"{n} seen"


def chunk(reason: str | None = None, **fields: Any) -> bytes:
    """An event as OpenAI sends it: the library needs all fields."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**head, "choices": [{"index": 0, "delta": fields, "finish_reason": reason}]})


HELLO = completion(chunk(content="hello"), chunk("stop"))


def anthropic_answer(*blocks: bytes, reason: str) -> Reply:
    ends = [
        named("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 7}),
        named("message_stop"),
    ]
    opening = named(
        "message_start",
        message={
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 30, "output_tokens": 1, "cache_read_input_tokens": 20},
        },
    )
    return [head(), opening, *blocks, *ends, END]


THOUGHT = block(
    0,
    {"type": "thinking_delta", "thinking": "Let me look."},
    {"type": "signature_delta", "signature": "SIG=="},
    type="thinking",
    thinking="",
    signature="",
)
CALL = block(1, fragment('{"n": '), fragment("3}"), type="tool_use", id="toolu_1", name="look", input={})


@NIGHTLY
async def test_text_usage_and_options_by_an_openai_provider(peer: Peer) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    last = event({**head, "choices": [], "usage": usage})
    peer.replies(completion(chunk(content="hel"), chunk(content="lo"), chunk("stop"), last))
    model = llm(peer, temperature=0)
    chunks = await ask(model, max_tokens=5)
    assert [chunk["content"] for chunk in chunks if chunk["type"] == "text_delta"] == ["hel", "lo"]
    assert only(chunks, "usage") == {"type": "usage", "input_tokens": 9, "output_tokens": 2}
    assert stop(chunks) == "stop"
    (request,) = peer.requests
    assert (request.body["temperature"], request.body["model"], request.body["stream"]) == (0, "m", True)
    assert peer.url[7:] not in request.headers.get("authorization", "")


async def test_a_run_with_thinking_and_calls_by_anthropic(peer: Peer, tmp_path: Any) -> None:
    final = anthropic_answer(block(0, words("Three."), type="text", text=""), reason="end_turn")
    peer.replies(anthropic_answer(THOUGHT, CALL, reason="tool_use"), final, final)
    model = llm(peer, "anthropic", max_tokens=100)
    run = SessionLoop(model, [look], system_prompt="Be brief.").start("How many?", options={"temperature": 1})
    assert await run == "Three."
    assert run.usage["input_tokens"] == 100  # twice 30, and 20 from the cache
    first, second = (request.body for request in peer.requests)
    assert peer.requests[0].path == "/v1/messages"
    assert first["system"] == "Be brief."
    assert (first["max_tokens"], first["temperature"], first["tools"][0]["name"]) == (100, 1, "look")
    thought, call = second["messages"][1]["content"]
    assert thought == {"type": "thinking", "thinking": "Let me look.", "signature": "SIG=="}
    assert (call["type"], call["id"], call["input"]) == ("tool_use", "toolu_1", {"n": 3})
    assert second["messages"][2]["content"][0]["tool_use_id"] == "toolu_1"

    # What is recorded, and a run that continues from the recording.
    asked = next(one for one in run.events if one.type == "model_start")
    assert (asked.provider, asked.model) == ("anthropic", "m")
    assert asked.options == {
        "max_tokens": 100,
        "temperature": 1,
        "stream_options": {"include_usage": True},
        "server": peer.url[7:],
        "library": "any-llm",
        "tools": ["look"],
    }
    at = next(number for number, one in enumerate(run.events, 1) if one.type == "call_end")
    again = restore(Snapshot.load(run.fork(at=at).snapshot().save(tmp_path / "r.json")), SessionLoop(model, [look]))
    assert await again == "Three."
    assert peer.requests[2].body["messages"] == second["messages"]


@NIGHTLY
async def test_a_picture_and_a_schema_are_translated_by_the_library(peer: Peer) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    peer.replies(anthropic_answer(block(0, words('{"ok": true}'), type="text", text=""), reason="end_turn"))
    chunks = await collect(llm(peer, "anthropic").stream([message("See?", PNG)], schema=schema))
    assert json.loads(text(chunks)) == {"ok": True}
    assert peer.requests[0].body["messages"][0]["content"][1] == PNG.model_dump()
    assert "output_config" in peer.requests[0].body


@NIGHTLY
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("status", "told", "kind"),
    [
        (400, "Odd request.", ModelRequestError),
        (400, "maximum context length is 5 tokens", ContextTooLong),
        (401, "Bad key.", AuthenticationError),
    ],
)
async def test_a_failure_is_raised_in_the_words_of_the_server(
    peer: Peer, provider: str, status: int, told: str, kind: Any
) -> None:
    peer.replies(body(status, said(told)))
    _, error = await until_failure(llm(peer, provider).stream(GO))
    assert type(error) is kind
    assert told in str(error)
    assert error.status == status


@NIGHTLY
async def test_a_busy_server_is_asked_again_by_agentnb_only(peer: Peer) -> None:
    peer.replies(body(429, said("Slow down.")), HELLO)
    chunks = await ask(llm(peer))
    assert "Slow down." in only(chunks, "retry")["error"]
    assert text(chunks) == "hello"
    assert len(peer.requests) == 2
    peer.replies(*[body(529, said("Overloaded."))] * 4)
    _, error = await until_failure(llm(peer, "anthropic").stream(GO))
    assert type(error) is ModelOverloaded
    assert len(peer.requests) == 6


@NIGHTLY
async def test_an_answer_that_breaks_off_is_an_error(peer: Peer) -> None:
    peer.replies([*completion(chunk(content="half"))[:2], CUT])
    seen, error = await until_failure(llm(peer).stream(GO))
    assert text(seen) == "half"
    assert isinstance(error, ModelProtocolError)


@NIGHTLY
async def test_no_key_of_the_provider_is_sent_to_another_server(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-provider-1234")
    monkeypatch.setenv("MY_KEY", "sk-mine-5678")
    peer.replies(HELLO, HELLO)
    await ask(llm(peer))
    assert "sk-of-the-provider-1234" not in str(peer.requests[0].headers)
    await ask(llm(peer, api_key_env="MY_KEY"))
    assert peer.requests[1].headers["authorization"] == "Bearer sk-mine-5678"
    peer.replies(body(400, said("What is sk-mine-5678?")))
    _, error = await until_failure(llm(peer, api_key_env="MY_KEY").stream(GO))
    assert "sk-mine" not in str(error)


@NIGHTLY
async def test_what_cannot_be_asked_is_named(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match='needs "provider:model"'):
        AnyLLM("gpt-5")
    with pytest.raises(UsageError, match="any-llm cannot use nobody: 'nobody' is not a supported provider"):
        await ask(AnyLLM("nobody:m"))
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        await ask(AnyLLM("openai:m"))
    with pytest.raises(UsageError, match=r"tempertur is not an option .*temperature"):
        llm(peer).with_options(tempertur=0)
    with pytest.raises(UsageError, match="no headers of its own"):
        await ask(llm(peer), extra_headers={"x-a": "b"})
    monkeypatch.setattr("agentnb.llms.any_llm.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"agentnb-toolkit\[any-llm\]"):
        AnyLLM("openai:m")


@NIGHTLY
async def test_an_option_that_the_provider_does_not_take_is_named(peer: Peer) -> None:
    with pytest.raises(RunFailed, match="not_there"):
        await SessionLoop(llm(peer, not_there=1)).start("Go.")
    assert peer.requests == []


@NIGHTLY
async def test_a_copy_in_another_process_asks_the_same_server(peer: Peer) -> None:
    peer.replies(HELLO)
    copy = pickle.loads(pickle.dumps(llm(peer, temperature=0).with_options(seed=7)))
    assert text(await ask(copy)) == "hello"
    assert (peer.requests[0].body["seed"], peer.requests[0].body["temperature"]) == (7, 0)
