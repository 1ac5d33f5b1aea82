"""A run that continues a recording: its tools, and what its model will be sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Agent, Loop, SessionLoop, UsageError, tool
from agentnb.loops.want import call as call_of
from agentnb.testing import ScriptedLLM, call
from tests.importers.files import CHAT, FILES, written

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def recording(folder: Path, **body: Any) -> Any:
    """Return a recording with two calls of the weather in Rome, with different results."""
    again = json.loads(json.dumps(CHAT[2:4]).replace('"c1"', '"c2"').replace("21", "3"))
    path = folder / "chat.json"
    path.write_text(json.dumps({"messages": [*CHAT[:4], *again, CHAT[4]], **body}))
    return agentnb.replay(path)


def results(run: Any) -> list[Any]:
    return [event.result for event in run.events if event.type == "call_end" and not event.inherited]


async def test_a_stub_returns_the_recorded_results_each_once_and_then_asks_a_person(tmp_path: Path) -> None:
    recorded = recording(tmp_path)
    asks = [call("weather", {"city": "Rome"})]
    loop = SessionLoop(ScriptedLLM([asks, asks, asks, "Warm."]), recorded.tools(at=2))
    run = recorded.fork(at=2, message="Ask three times.", loop=loop)
    await run.step("turn")
    assert results(run) == ["21 degrees"]
    await run.step("turn")
    assert results(run) == ["21 degrees", "3 degrees"]
    while not run.pending:
        await run.step("event")
    run.answer(run.pending[0], "5 degrees")
    assert await run == "Warm."
    assert results(run) == ["21 degrees", "3 degrees", "5 degrees"]


async def test_results_before_the_fork_are_used_up(tmp_path: Path) -> None:
    recorded = recording(tmp_path)
    first = next(event.seq for event in recorded.recording if event.type == "call_end")
    loop = SessionLoop(ScriptedLLM([[call("weather", {"city": "Rome"})], "Cold."]), recorded.tools(at=first))
    run = recorded.fork(at=first, loop=loop)
    await run
    assert results(run) == ["3 degrees"]
    assert [len(stub.results) for stub in recorded.to(first).tools()] == [1]


async def test_another_call_that_a_policy_approves_is_an_error_for_the_model_and_does_nothing(tmp_path: Path) -> None:
    recorded = recording(tmp_path)
    loop = SessionLoop(ScriptedLLM([[call("weather", {"city": "Oslo"})], "Unknown."]), recorded.tools())
    run = recorded.fork(at=1, loop=loop, approve=True)
    await run
    assert ["The recording has no" in result for result in results(run)] == [True]


def test_stubs_have_the_recorded_schemas(tmp_path: Path) -> None:
    given = [
        {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}},
        {"name": "tides", "input_schema": SCHEMA},
        {"name": 3},
        "x",
    ]
    tides, weather = sorted(recording(tmp_path, tools=given).tools(), key=lambda stub: stub.name)
    assert (weather.name, weather.description, weather.parameters) == ("weather", "The weather.", SCHEMA)
    assert (tides.name, tides.parameters, tides.results) == ("tides", SCHEMA, [])
    assert len(weather.results) == 2


async def test_own_functions_replace_the_tools_of_their_names(tmp_path: Path) -> None:
    @tool
    def weather(city: str) -> str:
        """Return the weather."""
        return f"snow in {city}"

    def tides(city: str) -> str:
        """Return the tides."""
        return "low"

    recorded = recording(tmp_path)
    tools = recorded.tools(weather, tides)
    assert [one.name for one in tools] == ["weather", "tides"]
    run = recorded.fork(at=1, loop=SessionLoop(ScriptedLLM([[call("weather", {"city": "Rome"})], "Snow."]), tools))
    await run
    assert results(run) == ["snow in Rome"]
    with pytest.raises(UsageError):
        recorded.tools("weather")


async def test_a_recorded_error_is_an_error_again(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([*CHAT[:3], {**CHAT[3], "is_error": True}, CHAT[4]]))
    recorded = agentnb.replay(path)
    loop = SessionLoop(ScriptedLLM([[call("weather", {"city": "Rome"})], "Oh."]), recorded.tools())
    run = recorded.fork(at=1, loop=loop)
    await run
    assert [event.is_error for event in run.events if event.type == "call_end"] == [True]


@pytest.mark.parametrize("kind", FILES)
async def test_the_preview_is_what_the_model_is_sent(tmp_path: Path, kind: str) -> None:
    recorded = agentnb.replay(written(tmp_path, kind))
    for event in recorded.recording:
        llm = ScriptedLLM(["Continued."] * 3)
        loop = SessionLoop(llm, recorded.tools(at=event.seq), system_prompt="Be kind.")
        run = recorded.fork(at=event.seq, loop=loop, approve=True)
        before = len(run.events)
        try:
            shown = run.preview()
        except UsageError:  # no request follows
            await run
            assert llm.requests == []
            continue
        assert len(run.events) == before
        assert llm.requests == []
        await run
        sent = llm.requests[0]
        assert list(shown.messages) == list(sent.messages)[: len(shown.messages)]
        assert len(shown.messages) == len(sent.messages) or list(shown.waits_for) == ["weather"]
        assert list(shown.tools) == list(sent.tools or [])


async def test_the_preview_has_the_change_of_the_fork_and_is_readable(tmp_path: Path) -> None:
    recorded = recording(tmp_path)
    seq = next(event.seq for event in recorded.recording if event.type == "call_end")
    run = recorded.fork(at=seq, result="-3 degrees", loop=SessionLoop(ScriptedLLM(["Cold."]), recorded.tools(at=seq)))
    assert str(run.preview()).splitlines() == [
        "4 messages to script; tools: weather",
        "  system: Be short.",
        "  user: How warm is it?",
        "  assistant: weather({'city': 'Rome'})",
        "  tool: -3 degrees",
    ]
    waiting = recorded.fork(at=seq - 2, loop=SessionLoop(ScriptedLLM(["Cold."]), recorded.tools()))
    assert str(waiting.preview()).splitlines()[0].endswith("; first the results of weather")


async def test_a_new_run_a_nested_loop_and_hooks_have_previews() -> None:
    run = SessionLoop(ScriptedLLM(["Hello."]), system_prompt="Be short.").start("Hi")
    assert [message["role"] for message in run.preview().messages] == ["system", "user"]
    assert await run == "Hello."
    with pytest.raises(UsageError, match="has ended"):
        run.preview()

    async def shouted(messages: Any) -> Any:
        return [{**message, "content": message["content"].upper()} for message in messages]

    run = SessionLoop(ScriptedLLM(["Hello."]), transform_context=shouted).start("Hi")
    assert [message["content"] for message in run.preview().messages] == ["HI"]

    inner = SessionLoop(ScriptedLLM([[call("weather", {})], "Cold."]), [tool(approve=True)(weather)], name="inner")

    @Loop.from_generator(llm=ScriptedLLM([]))
    def outer(topic: Any) -> Any:
        return (yield call_of(inner, topic))

    run = outer.start("Hi")
    while not run.pending:
        await run.step("event")
    assert (run.preview().path, run.preview().waits_for) == (run.pending[0].path, ["weather"])
    with pytest.raises(UsageError, match="No loop is running at 'x'"):
        run.preview("x")
    run.cancel()


def test_what_a_recording_needs_to_continue_is_in_the_errors(tmp_path: Path) -> None:
    recorded = recording(tmp_path)
    with pytest.raises(AttributeError, match="A recording cannot run, so it has no preview"):
        recorded.preview()
    with pytest.raises(UsageError, match="Pass the loop that continues it as loop="):
        recorded.fork(at=2)


async def test_an_agent_has_a_preview() -> None:
    run = Agent(ScriptedLLM(["Hello."]), []).start("Hi")
    shown = run.preview()
    await run
    assert shown.messages[-1]["content"] == "Hi"


def weather() -> str:
    """Return the weather."""
    return "cold"
