"""Requests in the form that servers with OpenAI's protocol expect."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from agentnb import Agent, UsageError, tool
from agentnb.llms import Anthropic, Message, OpenAI
from tests.llms.collecting import ask, collect
from tests.llms.peer import HELLO, Peer, body, completion, delta

CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}


def made(**fields: Any) -> Message:
    return {"role": "assistant", "content": "", **fields}


async def sent(peer: Peer, *messages: Message) -> list[dict[str, Any]]:
    peer.replies(HELLO)
    await collect(OpenAI("m", peer.url).stream(messages))
    said: list[dict[str, Any]] = peer.requests[-1].body["messages"]
    return said


async def test_an_empty_answer_is_not_sent(peer: Peer) -> None:
    user = {"role": "user", "content": "a"}
    assert await sent(peer, user, made(), made(content=[]), user) == [user, user]


async def test_a_tool_is_sent_with_a_schema_and_without_an_empty_description(peer: Peer) -> None:
    peer.replies(HELLO)
    tools: list[dict[str, Any]] = [{"name": "a", "description": ""}, {"name": "b", "parameters": {"type": "object"}}]
    await ask(OpenAI("m", peer.url), tools=tools)
    schema = {"type": "object", "properties": {}}
    sent = [tool["function"] for tool in peer.requests[0].body["tools"]]
    assert sent == [{"name": name, "parameters": schema} for name in "ab"]


LOOK = {"type": "object", "properties": {"city": {"type": "string"}}}


@tool
def look(city: str) -> str:
    """Look."""
    return city


@pytest.mark.parametrize(
    "told",
    [
        {"name": "look", "description": "Look.", "parameters": LOOK},
        {"name": "look", "description": "Look.", "input_schema": LOOK},
        {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": LOOK}},
        look,
    ],
)
async def test_a_tool_in_the_form_of_any_provider_is_accepted(peer: Peer, told: Any) -> None:
    peer.replies(HELLO, body(200, {"type": "message", "content": [], "stop_reason": "end_turn"}))
    await ask(OpenAI("m", peer.url), tools=[told])
    (sent,) = peer.requests[0].body["tools"]
    assert (sent["function"]["name"], sent["function"]["description"]) == ("look", "Look.")
    assert sent["function"]["parameters"]["properties"] == LOOK["properties"]
    await ask(Anthropic("m", peer.url), tools=[told])
    (sent,) = peer.requests[1].body["tools"]
    assert (sent["name"], sent["input_schema"]["properties"]) == ("look", LOOK["properties"])


@pytest.mark.parametrize("told", [{"description": "nameless"}, "look", {"function": "look"}, lambda: None])
async def test_a_value_that_is_not_a_tool_is_rejected(told: Any) -> None:
    with pytest.raises(UsageError, match="A tool must have a name"):
        await ask(OpenAI("m", "http://127.0.0.1:1"), tools=[told])


async def test_a_call_in_the_form_of_openai_is_accepted(peer: Peer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"city": "Bern"}'}}
    (said,) = await sent(peer, made(tool_calls=[call]))
    assert said["tool_calls"] == [call]
    peer.replies(body(200, {"type": "message", "content": [], "stop_reason": "end_turn"}))
    await collect(Anthropic("m", peer.url).stream([made(tool_calls=[call])]))
    assert peer.requests[-1].body["messages"][0]["content"][0]["input"] == {"city": "Bern"}


async def test_the_invalid_name_of_a_recorded_call_is_replaced_for_servers(peer: Peer) -> None:
    calls = [{"id": "c", "name": name, "arguments": {}} for name in ("", "a.b c", "n" * 99)]
    (said,) = await sent(peer, made(tool_calls=calls))
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["unnamed", "a_b_c", "n" * 64]


async def test_infinity_and_nan_are_sent_as_text(peer: Peer) -> None:
    arguments = {"limits": [-math.inf, math.inf], "step": {"size": math.nan}, "n": 3}
    call = {"id": "c", "name": "plot", "arguments": arguments}
    (said,) = await sent(peer, made(tool_calls=[call]))
    words = {"limits": ["-Infinity", "Infinity"], "step": {"size": "NaN"}, "n": 3}
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == words
    peer.replies(body(200, {"type": "message", "content": [], "stop_reason": "end_turn"}))
    await collect(Anthropic("m", peer.url).stream([made(tool_calls=[call])]))
    assert peer.requests[-1].body["messages"][0]["content"][0]["input"] == words


async def test_a_long_id_is_shortened_for_openai_only(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [f"chatcmpl-tool-{letter * 32}" for letter in "ab"]
    calls = [{"id": id, "name": "now", "arguments": {}} for id in long]
    history = [made(tool_calls=calls), *[{"role": "tool", "tool_call_id": id, "content": "12"} for id in long]]

    async def ids() -> list[str]:
        said, *results = await sent(peer, *history)
        assert [call["id"] for call in said["tool_calls"]] == [result["tool_call_id"] for result in results]
        return [result["tool_call_id"] for result in results]

    assert await ids() == long
    monkeypatch.setattr("agentnb.llms.openai.OPENAI_URL", peer.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-key")
    cut = await ids()
    assert len(set(cut)) == 2
    assert {len(id) for id in cut} == {40}


@tool
def now() -> str:
    """The time."""
    return "12"


SIGNED = {"google": {"thought_signature": "abc"}}
DETAILS = [
    {"type": "reasoning.text", "index": 0, "text": "Let me", "format": "f"},
    {"type": "reasoning.text", "index": 0, "text": " see."},
    {"type": "reasoning.text", "index": 0, "text": "", "signature": "abc"},
    {"type": "reasoning.encrypted", "index": 1, "id": "r1", "data": "xyz"},
    {"type": "reasoning.encrypted", "index": 1, "id": "r2", "data": "uvw"},
]


@pytest.mark.parametrize(
    ("events", "given_back"),
    [
        ([delta(reasoning_content="Let me"), delta(reasoning_content=" see.")], {"reasoning_content": "Let me see."}),
        ([delta(reasoning="Let me see.")], {"reasoning": "Let me see."}),
        ([delta(reasoning_content=""), delta(reasoning_content=None)], {"reasoning_content": ""}),
        ([delta(reasoning_content=None)], {}),
        (
            [delta(reasoning=fragment.get("text", ""), reasoning_details=[fragment]) for fragment in DETAILS],
            {"reasoning_details": [{**DETAILS[0], "text": "Let me see.", "signature": "abc"}, *DETAILS[3:]]},
        ),
        ([delta(content=[{"type": "thinking", "thinking": "Let me see."}])], {}),
    ],
    ids=["DeepSeek", "Groq", "DeepSeek, without a thought", "a server that has thoughts", "OpenRouter", "Mistral"],
)  # fmt: skip
@pytest.mark.other_body("other servers' reasoning", fields=["reasoning", "reasoning_content", "reasoning_details"])
async def test_reasoning_before_a_call_is_sent_back_unchanged(
    peer: Peer, events: list[bytes], given_back: dict[str, Any]
) -> None:
    peer.replies(completion(*events, delta("tool_calls", tool_calls=[CALL])), HELLO)
    run = Agent(OpenAI("m", peer.url), [now]).start("What time is it?")
    assert await run == "hello"
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    assert peer.requests[1].body["messages"][1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [call],
        **given_back,
    }


@pytest.mark.other_body("DeepSeek's reasoning", fields=["reasoning_content"])
async def test_with_tools_the_reasoning_is_sent_back_with_every_answer(peer: Peer) -> None:
    """DeepSeek refuses the next request without it."""
    peer.replies(completion(delta(reasoning_content="Hm."), delta("stop", content="Noon.")), HELLO)
    run = Agent(OpenAI("m", peer.url), [now]).start("What time is it?")
    await run
    await Agent(OpenAI("m", peer.url), [now]).start([*run.messages, {"role": "user", "content": "And now?"}])
    said = {"role": "assistant", "content": "Noon.", "reasoning_content": "Hm."}
    assert said in peer.requests[1].body["messages"]


@pytest.mark.other_body("Gemini's signature", fields=["extra_content"])
async def test_the_signature_of_gemini_is_sent_back_with_its_call(peer: Peer) -> None:
    peer.replies(
        completion(delta(tool_calls=[CALL | {"extra_content": SIGNED}, CALL | {"index": 1, "id": "d"}]), delta("stop")),
        HELLO,
    )
    await Agent(OpenAI("m", peer.url), [now]).start("What time is it?")
    first, second = peer.requests[1].body["messages"][1]["tool_calls"]
    assert first["extra_content"] == SIGNED
    assert "extra_content" not in second


async def test_reasoning_is_sent_to_its_own_server_only(peer: Peer) -> None:
    thought = {"text": "Hm.", "provider": {"server": "api.deepseek.com", "field": "reasoning_content"}}
    calls = [{"id": "c", "name": "now", "arguments": {}}]
    (said,) = await sent(peer, made(tool_calls=calls, reasoning=[thought]))
    assert said.keys() == {"role", "content", "tool_calls"}
