"""All protocols against aimock, a server that was not written for these tests."""

from __future__ import annotations

import json

import pytest

from agentnb.core.errors import AuthenticationError, ModelProtocolError, ModelUnavailable
from agentnb.llms import Anthropic, Message, OpenAI
from tests.llms.aimock import ANTHROPIC_MODEL, OPENAI_MODEL, RESPONSES_MODEL, TIME, WEATHER, AIMock
from tests.llms.collecting import ask, calls, collect, only, stop, text, until_failure

pytestmark = pytest.mark.wire

Client = OpenAI | Anthropic
TOOLS = [{"name": name, "description": "", "parameters": {"type": "object"}} for name in ("get_weather", "get_time")]


@pytest.fixture(params=["openai", "responses", "anthropic"])
def model(request: pytest.FixtureRequest, aimock: AIMock) -> Client:
    if request.param == "openai":
        return OpenAI(OPENAI_MODEL, f"{aimock.url}/v1")
    if request.param == "responses":
        return OpenAI(RESPONSES_MODEL, f"{aimock.url}/v1", api="responses")
    return Anthropic(ANTHROPIC_MODEL, aimock.url)


async def test_text_arrives_in_pieces(model: Client) -> None:
    chunks = await ask(model, "say hello")
    assert text(chunks) == "Grüezi, 世界! 👋 How are you?"
    assert len([chunk for chunk in chunks if chunk["type"] == "text_delta"]) > 2
    assert stop(chunks) == "stop"


async def test_the_number_of_tokens_is_reported(model: Client) -> None:
    assert {"input_tokens", "output_tokens"} <= only(await ask(model, "say hello"), "usage").keys()


async def test_parallel_tool_calls_arrive_with_their_arguments(model: Client) -> None:
    chunks = await ask(model, "two tools", tools=TOOLS)
    found = calls(chunks)
    assert [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in found] == [WEATHER, TIME]
    assert len({call["id"] for call in found}) == 2
    assert stop(chunks) == "tool_calls"


async def test_a_conversation_with_results_is_accepted(model: Client) -> None:
    found = calls(await ask(model, "two tools", tools=TOOLS))
    results = [{"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": "18"} for call in found]
    made = [call | {"arguments": json.loads(call["arguments"])} for call in found]
    turns: list[Message] = [
        {"role": "user", "content": "two tools"},
        {"role": "assistant", "content": "", "tool_calls": made},
        *results,
    ]
    assert text(await collect(model.stream([*turns, {"role": "user", "content": "say hello"}], tools=TOOLS)))


async def test_reasoning_arrives_separately_from_the_text(model: Client) -> None:
    chunks = await ask(model, "think")
    assert (text(chunks, "reasoning_delta"), text(chunks)) == ("Let me see.", "Forty-two.")


async def test_a_stop_by_length_is_reported(model: Client) -> None:
    assert stop(await ask(model, "too long")) == "length"


async def test_a_request_to_a_busy_server_is_retried(model: Client) -> None:
    chunks = await ask(model, "busy once")
    assert "Slow down." in only(chunks, "retry")["error"]
    assert text(chunks) == "Now."


async def test_a_wrong_key_is_reported(model: Client) -> None:
    with pytest.raises(AuthenticationError, match=r"Bad key\."):
        await ask(model, "wrong key")


async def test_a_garbled_answer_is_reported(model: Client) -> None:
    with pytest.raises(ModelProtocolError):
        await ask(model, "garbled")


@pytest.mark.usefixtures("no_waits")
async def test_a_request_is_retried_when_the_server_hangs_up_and_then_fails(model: Client) -> None:
    seen, error = await until_failure(model.stream([{"role": "user", "content": "hang up"}]))
    assert [chunk["type"] for chunk in seen] == ["retry"] * 3
    assert type(error) is ModelUnavailable


async def test_a_connection_lost_during_a_stream_is_reported(model: Client) -> None:
    seen, error = await until_failure(model.stream([{"role": "user", "content": "die"}]))
    assert type(error) is ModelProtocolError
    assert text(seen)
    assert "This sentence is cut off in the middle of it.".startswith(text(seen))
