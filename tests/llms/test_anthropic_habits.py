"""Data that Anthropic's API expects back, and deviations of other servers with the same protocol."""

from __future__ import annotations

import pytest

from agentnb import Agent, tool
from agentnb.core.errors import ModelOverloaded, ModelProtocolError, ModelRequestError
from agentnb.llms import Anthropic
from tests.llms.collecting import ask, calls, collect, only, stop, text
from tests.llms.peer import Peer, body, event, part
from tests.llms.test_anthropic import HELLO, answer, block, end, fragment, message, named, said, start

WHOLE = {
    "type": "message",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": "7", "output_tokens": 2, "cache_read_input_tokens": -1, "service_tier": "standard"},
}


async def test_a_message_that_is_not_streamed_is_read(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.llms.anthropic_reader.OWN_SERVER", peer.url.removeprefix("http://"))
    assert await answer(peer, body(200, WHOLE)) == [
        {"type": "reasoning_delta", "content": "Hm.", "signature": "abc"},
        {"type": "text_delta", "content": "Hi"},
        {"type": "tool_call_delta", "index": 0, "id": "t1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "response", "service_tier": "standard", "finish_reason": "tool_use"},
        {"type": "usage", "input_tokens": 7, "output_tokens": 2},
        {"type": "stop", "reason": "tool_calls"},
    ]


TEXT = block(0, said("Hi"), type="text", text="")
CALL = block(1, fragment('{"a": 1}'), type="tool_use", id="t1", name="add", input={})


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([start(), TEXT, end(None)], "stop"),
        ([TEXT, named("message_stop")], "stop"),
        ([TEXT, event("[DONE]")], "stop"),
        ([start(), TEXT, CALL, end("end_turn")], "tool_calls"),
        ([start(), TEXT, end("length")], "length"),
        ([part(b"event: ping\ndata:\n\n"), part(b"data: \n\n"), start(), TEXT, end()], "stop"),
    ],
    ids=["a reason of null", "no reason", "DONE", "end_turn with calls", "OpenAI's word", "pings without data"],
)
async def test_the_different_ends_of_a_message_of_other_servers_are_read(
    peer: Peer, events: list[bytes], reason: str
) -> None:
    chunks = await answer(peer, message(*events))
    assert (text(chunks), stop(chunks)) == ("Hi", reason)


async def test_a_count_of_zero_does_not_replace_an_earlier_count(peer: Peer) -> None:
    chunks = await answer(
        peer, message(start(input_tokens=5, output_tokens=0), TEXT, end(input_tokens=0, output_tokens=2))
    )
    assert only(chunks, "usage") == {"type": "usage", "input_tokens": 5, "output_tokens": 2}


async def test_a_complete_input_is_not_extended_by_its_repetition(peer: Peer) -> None:
    twice = block(0, fragment('{"a": 1}'), type="tool_use", id="t1", name="add", input={"a": 1})
    once = block(0, fragment('{"a": 2}'), type="tool_use", id="t2", name="add", input={})  # the same number again
    chunks = await answer(peer, message(start(), twice, once, end("tool_use")))
    assert [call["arguments"] for call in calls(chunks)] == ['{"a": 1}', '{"a": 2}']


@pytest.mark.parametrize(
    "told",
    [
        event({"error": {"type": "overloaded_error", "message": "Sorry."}}, "error"),
        event({"error": {"type": "overloaded_error", "message": "Sorry."}}),
        event({"error": {"code": 529, "message": "Sorry."}}),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
async def test_an_error_in_the_form_of_another_protocol_is_raised(peer: Peer, told: bytes, begun: bool) -> None:
    with pytest.raises(ModelOverloaded, match=r"Sorry\."):
        await answer(peer, message(*[start(), TEXT] * begun, told))


async def test_an_overload_error_after_the_start_of_a_stream_is_not_retried(peer: Peer) -> None:
    peer.replies(message(start(), named("error", error={"type": "overloaded_error", "message": "Sorry."})), HELLO)
    with pytest.raises(ModelOverloaded, match=r"Sorry\."):
        await ask(Anthropic("m", peer.url))
    assert len(peer.requests) == 1


async def test_redacted_thinking_is_sent_back_in_its_position_before_the_call(peer: Peer) -> None:
    thought = block(0, {"type": "signature_delta", "signature": "abc"}, type="thinking", thinking="Hm.", signature="")
    redacted = block(1, type="redacted_thinking", data="xyz")
    call = block(2, type="tool_use", id="t1", name="now", input={})
    peer.replies(message(start(), thought, redacted, call, end("tool_use")), HELLO)
    assert await Agent(Anthropic("m", peer.url), [now]).start("What time is it?") == "hello"
    assert peer.requests[1].body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "tool_use", "id": "t1", "name": "now", "input": {}},
    ]


async def test_unsigned_thinking_is_sent_back_to_its_server_with_the_call(peer: Peer) -> None:
    """DeepSeek refuses the result of the tool without it; SGLang and Kimi require a field for the signature."""
    thought = block(0, {"type": "thinking_delta", "thinking": "Hm."}, type="thinking", thinking="")
    call = block(1, type="tool_use", id="t1", name="now", input={})
    peer.replies(message(start(), thought, call, end("tool_use")), HELLO)
    assert await Agent(Anthropic("m", peer.url), [now]).start("What time is it?") == "hello"
    assert peer.requests[1].body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "tool_use", "id": "t1", "name": "now", "input": {}},
    ]


async def test_unsigned_thinking_is_sent_back_to_its_server_with_an_answer(peer: Peer) -> None:
    peer.replies(message(start(), block(0, type="thinking", thinking="Hm."), TEXT, end()), HELLO)
    run = Agent(Anthropic("m", peer.url)).start("Hello?")
    await run
    await Agent(Anthropic("m", peer.url)).start([*run.messages, {"role": "user", "content": "And now?"}])
    assert peer.requests[1].body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Hi"},
    ]


async def test_unsigned_thinking_is_sent_to_its_own_server_only(peer: Peer) -> None:
    theirs = {"text": "theirs", "provider": {"server": "api.deepseek.com"}}
    peer.replies(HELLO)
    said = {"role": "assistant", "content": "Hi", "reasoning": [theirs, {"text": "nobody's"}]}
    await collect(Anthropic("m", peer.url).stream([said]))
    assert peer.requests[0].body["messages"][0]["content"] == [{"type": "text", "text": "Hi"}]


@pytest.mark.parametrize("told", [event({"choices": [{"delta": {"content": "Hi"}}]}), b""], ids=["OpenAI's", "nothing"])
async def test_a_stream_without_a_message_is_an_error(peer: Peer, told: bytes) -> None:
    with pytest.raises(ModelProtocolError, match="ended before a message"):
        await answer(peer, message(told, event("[DONE]")))


async def test_an_error_404_shows_the_path_of_the_request(peer: Peer) -> None:
    peer.replies(body(404, {"detail": "Not Found"}))
    with pytest.raises(ModelRequestError, match=r"\(base_url leads to the path /there/v1/messages\)"):
        await ask(Anthropic("m", peer.url + "/there/v1"))


async def test_thinking_signed_by_another_server_is_not_sent(peer: Peer) -> None:
    """Anthropic would refuse every further request, and a run may start with a server of the same protocol."""
    signed = {"signature": "abc", "redacted": "xyz"}
    theirs, ours, unknown = ({"text": name, **signed} for name in ("theirs", "ours", "unknown"))
    theirs["provider"], ours["provider"] = {"server": "api.moonshot.ai"}, {"server": peer.url.removeprefix("http://")}
    peer.replies(HELLO)
    said = {"role": "assistant", "content": "Hi", "reasoning": [theirs, ours, unknown]}
    await collect(Anthropic("m", peer.url).stream([said]))
    blocks = peer.requests[0].body["messages"][0]["content"]
    assert [block["thinking"] for block in blocks if block["type"] == "thinking"] == ["ours", "unknown"]
    assert len([block for block in blocks if block["type"] == "redacted_thinking"]) == 2


@tool
def now() -> str:
    """The time."""
    return " \n"


async def test_empty_text_is_not_sent(peer: Peer) -> None:
    """The API refuses empty text, and models return it."""
    call = block(1, type="tool_use", id="t1", name="now", input={})
    peer.replies(message(start(), block(0, said("\n\n"), type="text", text=""), call, end("tool_use")), HELLO)
    await Agent(Anthropic("m", peer.url), [now]).start("What time is it?")
    _asked, made, result = peer.requests[1].body["messages"]
    assert [block["type"] for block in made["content"]] == ["tool_use"]
    assert result["content"] == [{"type": "tool_result", "tool_use_id": "t1"}]


@pytest.mark.parametrize("content", ["", " \n", [], [{"type": "text", "text": " "}]])
async def test_an_empty_user_message_is_sent(peer: Peer, content: object) -> None:
    peer.replies(HELLO)
    answer = {"role": "assistant", "content": "Hi"}
    await collect(Anthropic("m", peer.url).stream([answer, {"role": "user", "content": content}]))
    assert peer.requests[0].body["messages"][-1] == {"role": "user", "content": [{"type": "text", "text": "(nothing)"}]}


async def test_an_answer_with_thinking_only_is_not_sent(peer: Peer) -> None:
    """The API refuses a turn that ends with thinking, and would refuse every further request."""
    peer.replies(HELLO)
    thought = {"role": "assistant", "content": "", "reasoning": [{"text": "Hm.", "signature": "abc"}]}
    await collect(Anthropic("m", peer.url).stream([{"role": "user", "content": "Hi"}, thought]))
    assert [turn["role"] for turn in peer.requests[0].body["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "(nothing)"), (" ", "(nothing)"), (None, "(nothing)"), ([{"type": "image", "source": {}}], "[image]")],
)
async def test_a_failed_call_without_text_is_sent_with_a_placeholder(peer: Peer, content: object, words: str) -> None:
    peer.replies(HELLO)
    failed = {"role": "tool", "tool_call_id": "t1", "content": content, "is_error": True}
    await collect(Anthropic("m", peer.url).stream([failed]))
    (result,) = peer.requests[0].body["messages"][0]["content"]
    assert (result["content"], result["is_error"]) == ([{"type": "text", "text": words}], True)


async def test_a_final_assistant_message_is_sent_without_trailing_space(peer: Peer) -> None:
    peer.replies(HELLO, HELLO)
    model, answer = Anthropic("m", peer.url), {"role": "assistant", "content": "The answer is \n"}
    await collect(model.stream([answer]))
    await collect(model.stream([answer, {"role": "user", "content": "Go on."}]))
    assert peer.requests[0].body["messages"][-1]["content"] == [{"type": "text", "text": "The answer is"}]
    assert peer.requests[1].body["messages"][0]["content"] == [{"type": "text", "text": "The answer is \n"}]


async def test_a_tool_is_sent_with_a_schema_and_without_an_empty_description(peer: Peer) -> None:
    await answer(peer, HELLO, tools=[{"name": "a", "description": ""}, {"name": "b", "parameters": {"$defs": {}}}])
    first, second = peer.requests[0].body["tools"]
    assert first == {"name": "a", "input_schema": {"type": "object", "properties": {}}}
    assert second["input_schema"] == {"type": "object", "properties": {}, "$defs": {}}


async def test_a_history_with_calls_is_sent_with_their_tools(peer: Peer) -> None:
    peer.replies(HELLO)
    calls = [{"id": id, "name": name, "arguments": {}} for id, name in [("a", "now"), ("b", "add"), ("c", "now")]]
    await collect(Anthropic("m", peer.url).stream([{"role": "assistant", "content": "", "tool_calls": calls}]))
    (request,) = peer.requests
    schema = {"type": "object", "properties": {}}
    assert request.body["tools"] == [{"name": name, "input_schema": schema} for name in ("now", "add")]
    assert request.body["tool_choice"] == {"type": "none"}


async def test_the_invalid_name_of_a_recorded_call_is_replaced_by_a_valid_one(peer: Peer) -> None:
    peer.replies(HELLO)
    made = [{"id": "c", "name": name, "arguments": {}} for name in ("", "a.b")]
    await collect(Anthropic("m", peer.url).stream([{"role": "assistant", "content": "", "tool_calls": made}]))
    assert [block["name"] for block in peer.requests[0].body["messages"][0]["content"]] == ["unnamed", "a_b"]
