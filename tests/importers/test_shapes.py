"""Messages in the shapes of many tools: their words, calls, results and failures are carried, or counted in `lost`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb.analysis import calls
from agentnb.core.events import ModelStart

Json = dict[str, Any]


def opened(tmp_path: Path, value: Any, name: str = "file.json") -> agentnb.run.Replay:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    recorded = agentnb.replay(path)
    return recorded.to(len(recorded.recording) - 1)


ARGUMENTS = {"city": "Rome"}
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


def agentdojo(text: str) -> list[Json]:
    return [{"type": "text", "content": text}]


SHAPES: dict[str, list[Json]] = {
    "AgentDojo": [
        {"role": "user", "content": agentdojo("How warm?")},
        {"role": "assistant", "content": None, "tool_calls": [{"function": "weather", "args": ARGUMENTS, "id": "c1"}]},
        {"role": "tool", "content": agentdojo("21"), "tool_call_id": "c1", "error": None},
        {"role": "assistant", "content": agentdojo("Warm."), "tool_calls": None},
    ],
    "Bedrock": [
        {"role": "user", "content": [{"text": "How warm?"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "weather", "input": ARGUMENTS}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "21"}]}}]},
        {"role": "assistant", "content": [{"text": "Warm."}]},
    ],
    "Gemini": [
        {"role": "user", "parts": [{"text": "How warm?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": ARGUMENTS}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": "21"}}]},
        {"role": "model", "parts": [{"text": "Warm."}]},
    ],
    "Vercel AI SDK": [
        {"role": "user", "content": [{"type": "text", "text": "How warm?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": ARGUMENTS}],
        },
        {
            "role": "tool",
            "content": [
                {"type": "tool-result", "toolCallId": "c1", "toolName": "w", "output": {"type": "text", "value": "21"}}
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Warm."}]},
    ],
    "tau2": [
        {"role": "user", "content": "How warm?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "name": "weather", "arguments": ARGUMENTS}]},
        {"role": "tool", "id": "c1", "content": "21", "requestor": "assistant", "error": False},
        {"role": "assistant", "content": "Warm."},
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_words_the_call_and_its_result_are_carried(tmp_path: Path, shape: str) -> None:
    recorded = opened(tmp_path, SHAPES[shape])
    assert [message.role for message in recorded.messages] == ["user", "assistant", "tool", "assistant"]
    assert recorded.messages[0].content == "How warm?"
    assert [(call.name, call.arguments) for call in recorded.messages[1].tool_calls] == [("weather", ARGUMENTS)]
    assert recorded.messages[2].content == "21"
    assert recorded.messages[3].content == "Warm."
    assert recorded.lost == {}


@pytest.mark.parametrize(
    "failure",
    [
        {"error": "ValueError: no city Rome"},
        {"error": True, "content": "no city Rome"},
        {"error": {"type": "ValueError", "message": "no city Rome"}},
        {"status": "error", "content": "no city Rome"},
        {"is_error": True, "content": "no city Rome"},
    ],
)
def test_a_failure_beside_a_result_is_the_failure_of_the_call(tmp_path: Path, failure: Json) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "", **failure}
    asked = {"role": "assistant", "content": "", "tool_calls": [OPENAI_CALL]}
    table = calls(opened(tmp_path, [{"role": "user", "content": "How warm?"}, asked, result]))
    assert list(table["is_error"]) == [True]
    assert "no city Rome" in table["result"][0]


def test_a_block_of_an_unknown_type_is_shown_as_text_and_counted(tmp_path: Path) -> None:
    given = [{"role": "user", "content": [{"kind": "note", "words": "How warm?"}]}]
    recorded = opened(tmp_path, [*given, {"role": "assistant", "content": [{"type": "verdict", "words": "Warm."}]}])
    assert recorded.messages[0].content == '{"kind":"note","words":"How warm?"}'
    assert recorded.messages[1].content == '{"type":"verdict","words":"Warm."}'
    assert recorded.lost == {"blocks of type verdict, shown as text": 1}


def test_thinking_in_parts_and_beside_blocks_is_carried(tmp_path: Path) -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Warm."}]
    beside = {"role": "assistant", "content": [{"type": "text", "text": "Warm."}], "reasoning_content": "Hm."}
    for answer in ({"role": "assistant", "content": parts}, beside):
        recorded = opened(tmp_path, [{"role": "user", "content": "How warm?"}, answer])
        assert recorded.messages[1].reasoning == [{"text": "Hm."}]
        assert recorded.messages[1].content == "Warm."


# -- SWE-agent ---------------------------------------------------------------------------------------------------------


def swe_agent(answers: int, observations: int) -> Json:
    """Return a trajectory of two steps, of which the messages have some answers and observations."""
    history = [{"role": "user", "content": "An issue.", "agent": "main"}]
    for number in (1, 2):
        if number <= answers:
            history.append({"role": "assistant", "content": f"think {number}", "agent": "main"})
        if number <= observations:
            history.append({"role": "user", "content": f"OBSERVATION:\nseen {number}", "agent": "main"})
    steps = [{"response": f"think {number}\n", "observation": f"seen {number}"} for number in (1, 2)]
    stats = {"tokens_sent": 50, "tokens_received": 7, "instance_cost": 0.5, "api_calls": 2}
    return {"history": history, "trajectory": steps, "info": {"exit_status": "exit_cost", "model_stats": stats}}


@pytest.mark.parametrize(("answers", "observations"), [(2, 2), (2, 1), (1, 1)])
def test_what_only_the_last_step_of_swe_agent_has_is_carried(tmp_path: Path, answers: int, observations: int) -> None:
    recorded = opened(tmp_path, swe_agent(answers, observations), "x.traj")
    told = [str(message.content).removeprefix("OBSERVATION:\n") for message in recorded.messages]
    assert told == ["An issue.", "think 1", "seen 1", "think 2", "seen 2"]
    assert recorded.lost == {}


# -- logged requests and results --------------------------------------------------------------------------------------


def test_a_logged_request_has_its_options(tmp_path: Path) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "Warm."}, "finish_reason": "stop"}]}
    asked = {"model": "m", "temperature": 0.7, "messages": [{"role": "user", "content": "How warm?"}]}
    for logged in ({**asked, "response": answer}, {"request": asked, "response": answer}):
        recorded = opened(tmp_path, logged)
        options = [event.options for event in recorded.recording if isinstance(event, ModelStart)]
        assert options == [{"temperature": 0.7}]


def test_the_result_of_a_run_of_ag_ui_is_its_output(tmp_path: Path) -> None:
    run = {"threadId": "t", "runId": "r"}
    said = {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "role": "assistant", "delta": "Warm."}
    ended = {"type": "RUN_FINISHED", **run, "result": {"degrees": 21}}
    recorded = opened(tmp_path, [{"type": "RUN_STARTED", **run}, said, ended])
    assert recorded.output == {"degrees": 21}
