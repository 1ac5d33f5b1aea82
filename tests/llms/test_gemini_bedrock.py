"""Gemini and Bedrock by their OpenAI-compatible APIs: keys, the choice of the API, signatures, reasoning in tags."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentnb import SessionLoop, Snapshot, restore, tool
from agentnb.core.errors import AuthenticationError, ModelRequestError
from agentnb.llms import Anthropic, OpenAI
from tests.llms.collecting import ask, calls, collect, only, stop, text
from tests.llms.peer import HELLO, Peer, Reply, body, completion, delta, event

pytestmark = pytest.mark.other_body("signatures and options of Gemini", fields=["extra_content", "extra_body"])

GEMINI = "https://generativelanguage.googleapis.com/v1beta/openai/"
RUNTIME = "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1"
MANTLE = "https://bedrock-mantle.eu-west-1.api.aws/v1"
SIGNATURE = "AVSoXO4/lu90Bn7IxVcWAjD6KH3ZHMm+sCX1tnPJERDI6SZb63hrSEtmJT=="


def signed(signature: str, **more: Any) -> dict[str, Any]:
    return {"extra_content": {"google": {**more, "thought_signature": signature}}}


def called(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": "{}"}, **fields}


def whole(**message: Any) -> Reply:
    """An answer that was not streamed."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    return body(200, {"object": "chat.completion", "model": "gemini-x", "choices": [choice]})


def streamed(*deltas: dict[str, Any], model: str = "gemini-x") -> Reply:
    events = [event({"model": model, "choices": [{"index": 0, "delta": one}]}) for one in deltas]
    return completion(*events, delta("stop"))


@pytest.fixture
def as_gemini(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.llms.openai.is_gemini", lambda base: True)
    monkeypatch.setattr("agentnb.llms.openai.usual_variable", lambda base: None)


@tool(idempotent=True)
def now() -> str:
    """Tell the time."""
    return "noon"


@tool(idempotent=True)
def here() -> str:
    """Tell the place."""
    return "Bern"


# Keys and the choice of the API.


@pytest.mark.parametrize(
    ("base", "variable"),
    [
        (GEMINI, "GEMINI_API_KEY"),
        (RUNTIME, "AWS_BEARER_TOKEN_BEDROCK"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com/openai/v1", "AWS_BEARER_TOKEN_BEDROCK"),
        (MANTLE, "AWS_BEARER_TOKEN_BEDROCK"),
        ("http://generativelanguage.googleapis.com/v1beta/openai", None),
        ("https://generativelanguage.googleapis.com.evil.org/", None),
        ("https://bedrock-runtime.us-east-1.amazonaws.com.evil.org/openai/v1", None),
        ("https://s3.us-east-1.amazonaws.com/bedrock-runtime", None),
        ("https://evil.bedrock-runtime.us-east-1.amazonaws.com/v1", None),
    ],
)
async def test_a_known_server_has_a_key_of_its_own(base: str, variable: str | None) -> None:
    llm = OpenAI("m", base, max_retries=0)
    assert (llm._key_variable, llm._transport.server) == (variable, base.split("/")[2])
    if variable is not None:  # no request is sent without the key
        with pytest.raises(AuthenticationError, match=f"set the environment variable {variable}"):
            await ask(llm)


def test_the_messages_api_of_bedrock_has_the_same_key() -> None:
    llm = Anthropic("anthropic.claude-x", "https://bedrock-mantle.us-east-1.api.aws/anthropic")
    assert llm._key_variable == "AWS_BEARER_TOKEN_BEDROCK"
    assert Anthropic("m", GEMINI)._key_variable is None


@pytest.mark.parametrize(
    ("model", "base", "api"),
    [
        ("openai.gpt-5.6-terra", RUNTIME, "responses"),
        ("us.openai.gpt-5.5", RUNTIME, "responses"),
        ("openai.gpt-oss-120b", MANTLE, "chat"),
        ("openai.gpt-5.6-terra", "http://127.0.0.1:1/v1", "chat"),
        ("gemini-3-flash", GEMINI, "chat"),
    ],
)
def test_bedrock_has_the_responses_api_for_models_of_openai_that_reason(model: str, base: str, api: str) -> None:
    assert OpenAI(model, base).api == api


# Signatures.


ANSWERS = {
    "streamed": streamed(
        {"tool_calls": [called("now", id="", **signed(SIGNATURE))]},
        {"tool_calls": [called("here", id="")]},
        {"content": None, **signed("MESSAGE")},
    ),
    "at once": streamed({"tool_calls": [called("now", index=0, **signed(SIGNATURE)), called("here", index=0)]}),
    "whole": whole(tool_calls=[called("now", id="", **signed(SIGNATURE)), called("here", id="")], content=None),
}


@pytest.mark.parametrize("how", ANSWERS)
async def test_a_signature_is_sent_back_with_its_call_after_a_restore_and_a_fork(peer: Peer, how: str) -> None:
    loop = SessionLoop(OpenAI("gemini-3-x", peer.url), [now, here])
    peer.replies(ANSWERS[how], HELLO, HELLO, HELLO)
    run = loop.start("Where and when?")
    await run
    at = next(event.seq for event in run.events if event.type == "model_end")
    restored = restore(Snapshot.from_json(Snapshot.of(run.events[: at + 1]).to_json()), loop)
    await restored
    await run.fork(at)
    assert [message.content for message in run.state.messages if message.role == "tool"] == ["noon", "Bern"]
    for request in peer.requests[1:]:
        (answer,) = [message for message in request.body["messages"] if message["role"] == "assistant"]
        first, second = answer["tool_calls"]
        assert first["extra_content"] == {"google": {"thought_signature": SIGNATURE}}
        assert "extra_content" not in second
        assert ("extra_content" in answer) == (how == "streamed")
        assert first["id"] != second["id"]


async def test_the_signature_of_a_text_is_sent_back_without_tools_and_to_its_server_only(peer: Peer) -> None:
    # The text of this answer is not a thought, although it is marked.
    peer.replies(whole(content="Noon.", **signed(SIGNATURE, thought=True)), HELLO, HELLO)
    loop = SessionLoop(OpenAI("gemini-3-x", peer.url))
    for given in ("When?", "Where?"):
        async for _ in loop.run(given):
            pass
    answer = peer.requests[1].body["messages"][1]
    assert (answer["content"], answer["extra_content"]) == ("Noon.", signed(SIGNATURE, thought=True)["extra_content"])
    other = OpenAI("m", peer.url.replace("127.0.0.1", "localhost"))
    await collect(other.stream(loop.messages))
    assert SIGNATURE not in json.dumps(peer.requests[2].body)


@pytest.mark.usefixtures("as_gemini")
async def test_a_call_of_another_model_is_marked_as_unsigned(peer: Peer) -> None:
    made = [{"id": f"c{n}", "name": "now", "arguments": {}} for n in (1, 2)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "noon"} for n in (1, 2)]
    history = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "", "tool_calls": made}, *results]
    for model in ("gemini-3-x", "gemini-2.5-x"):
        peer.replies(HELLO)
        await collect(OpenAI(model, peer.url).stream(history))
    sent = [[call.get("extra_content") for call in one.body["messages"][1]["tool_calls"]] for one in peer.requests]
    unsigned = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert sent == [[unsigned, None], [None, None]]


# Reasoning in tags.


def gemini_thoughts(*pieces: str) -> Reply:
    marked = {"extra_content": {"google": {"thought": True}}}
    return streamed(*({"content": piece, **(marked if n == 0 else {})} for n, piece in enumerate(pieces)))


def bedrock_thoughts(*pieces: str) -> Reply:
    return streamed(*({"content": piece} for piece in pieces), model="openai.gpt-oss-20b-1:0")


@pytest.mark.parametrize(("tag", "reply"), [("thought", gemini_thoughts), ("reasoning", bedrock_thoughts)])
async def test_reasoning_in_tags_is_no_text_wherever_the_stream_is_cut(
    peer: Peer, tag: str, reply: Callable[..., Reply]
) -> None:
    said = f"<{tag}>a < b </{tag}x></{tag}>\nYes, <{tag}>."
    pieces = [[said[:n], said[n:]] for n in range(1, len(said))] + [[*said]]
    for one in pieces:
        peer.replies(reply(*one))
        chunks = await ask(OpenAI("m", peer.url))
        assert text(chunks, "reasoning_delta") == f"a < b </{tag}x>", one
        assert text(chunks) == f"\nYes, <{tag}>.", one


@pytest.mark.parametrize(
    ("said", "reasoning", "answer"),
    [
        ("<reasoning>One.</reasoning><reasoning>Two.</reasoning>Three.", "One.Two.", "Three."),
        ("<reasoning>Cut off</reas", "Cut off</reas", ""),
        ("<reason", "", "<reason"),
        ("Text <reasoning>stays</reasoning>.", "", "Text <reasoning>stays</reasoning>."),
        ("  <b>bold</b>", "", "  <b>bold</b>"),
    ],
)
async def test_tags_at_the_beginning_are_reasoning(peer: Peer, said: str, reasoning: str, answer: str) -> None:
    peer.replies(bedrock_thoughts(said), bedrock_thoughts(*said))
    for _ in range(2):
        chunks = await ask(OpenAI("m", peer.url))
        assert (text(chunks, "reasoning_delta"), text(chunks)) == (reasoning, answer)


async def test_tags_of_other_models_are_text(peer: Peer) -> None:
    said = "<reasoning>Hm.</reasoning>Hi."
    peer.replies(streamed({"content": said}, model="llama"))
    assert text(await ask(OpenAI("m", peer.url))) == said


async def test_the_summary_of_a_thought_is_not_sent_back_and_bedrocks_reasoning_is(peer: Peer) -> None:
    marked = {"extra_content": {"google": {"thought": True}}}
    call = {"tool_calls": [called("now", id="c")]}
    thoughts = {"content": "<thought>Hm.</thought>Let me see.", **marked}
    said = {"content": "<reasoning>Hm.</reasoning>Let me see."}
    peer.replies(streamed(thoughts, call), HELLO, streamed(said, call, model="openai.gpt-oss-20b-1:0"), HELLO)
    for _ in range(2):
        assert await SessionLoop(OpenAI("m", peer.url), [now]).start("When?") == "hello"
    answers = [request.body["messages"][1] for request in peer.requests[1::2]]
    assert [answer["content"] for answer in answers] == ["Let me see.", "<reasoning>Hm.</reasoning>Let me see."]
    assert "extra_content" not in answers[0]


# Options, usage and errors.


@pytest.mark.usefixtures("as_gemini")
@pytest.mark.parametrize(
    ("thinking", "config"),
    [
        (800, {"include_thoughts": True, "thinking_budget": 800}),
        (True, {"include_thoughts": True}),
        (False, {"thinking_budget": 0}),
    ],
)
async def test_thinking_is_an_option_of_gemini(peer: Peer, thinking: Any, config: dict[str, Any]) -> None:
    peer.replies(HELLO)
    await ask(OpenAI("gemini-3-x", peer.url, thinking=thinking))
    sent = peer.requests[0].body
    assert sent["extra_body"] == {"google": {"thinking_config": config}}
    assert "thinking" not in sent


async def test_hidden_reasoning_is_counted_as_output(peer: Peer) -> None:
    usage = {"prompt_tokens": 35, "completion_tokens": 12, "total_tokens": 109}  # as it was recorded
    for model in ("models/gemini-2.5-pro", "other"):
        peer.replies(
            completion(delta(content="x"), delta("stop"), event({"model": model, "choices": [], "usage": usage}))
        )
    counted = [only(await ask(OpenAI("m", peer.url)), "usage") for _ in range(2)]
    assert counted[0] == {"type": "usage", "input_tokens": 35, "output_tokens": 74, "reasoning_tokens": 62}
    assert counted[1] == {"type": "usage", "input_tokens": 35, "output_tokens": 12}


async def test_equal_calls_without_ids_are_two_calls(peer: Peer) -> None:
    peer.replies(streamed({"tool_calls": [called("now", id="")]}, {"tool_calls": [called("now", id="")]}))
    chunks = await ask(OpenAI("m", peer.url), tools=[now])
    assert (len(calls(chunks)), stop(chunks)) == (2, "tool_calls")


async def test_an_error_of_gemini_is_a_list(peer: Peer) -> None:
    peer.replies(body(400, [{"error": {"code": 400, "message": "No signature.", "status": "INVALID_ARGUMENT"}}]))
    with pytest.raises(ModelRequestError, match=r"answered 400: No signature\."):
        await ask(OpenAI("m", peer.url))


async def test_errors_of_bedrock_are_shown_in_its_words(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.replies(body(403, {"Message": "Bearer Token has expired"}))
    with pytest.raises(AuthenticationError, match="answered 403: Bearer Token has expired"):
        await ask(OpenAI("m", peer.url))
    monkeypatch.setattr("agentnb.llms.openai.is_bedrock", lambda base: True)
    peer.replies(body(400, {"error": {"message": "model `m` isn't supported on this route"}}))
    with pytest.raises(ModelRequestError, match=r"base_urls that end with /openai/v1, and the others at /v1"):
        await ask(OpenAI("m", peer.url))
