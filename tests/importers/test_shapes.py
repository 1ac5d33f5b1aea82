"""Messages in the shapes of many tools: their words, calls, results and failures are carried, or counted in `lost`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import SessionLoop
from agentnb.analysis import calls, diff, runs
from agentnb.core.events import ModelEnd, ModelStart
from agentnb.testing import ScriptedLLM
from tests.importers.files import (
    CHATGPT,
    FILES,
    GEMINI,
    INSPECT_EVENTS,
    PI,
    TAU2,
    TAU2_MESSAGES,
    at,
    inspect_log,
    inspect_sample,
    written,
)

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


# -- logged requests and results ---------------------------------------------------------------------------------------


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


# -- usage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "cache_read_input_tokens": 4}, (9, 2, 4)),  # LiteLLM
        ({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4}, (9, 2, 4)),  # Anthropic
        ({"inputTokens": 5, "outputTokens": 2, "cacheReadInputTokens": 4}, (9, 2, 4)),  # Bedrock
        ({"inputTokens": 9, "outputTokens": 2, "cachedInputTokens": 4}, (9, 2, 4)),  # Vercel AI SDK
        ({"promptTokenCount": 9, "candidatesTokenCount": 2, "cachedContentTokenCount": 4}, (9, 2, 4)),  # Gemini
    ],
)
def test_usage_is_read_in_every_spelling(tmp_path: Path, given: Json, read: tuple[int, int, int]) -> None:
    answer = {"role": "assistant", "content": "Warm.", "usage": given}
    usage = opened(tmp_path, [{"role": "user", "content": "How warm?"}, answer]).usage
    assert (usage["input_tokens"], usage["output_tokens"], usage["cache_read_tokens"]) == read


def test_a_cost_in_the_file_is_not_replaced_by_an_estimate(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Warm.", "model": "gpt-4o", "cost": 0.25, "usage": {"prompt_tokens": 9}}
    row = runs(opened(tmp_path, [{"role": "user", "content": "How warm?"}, answer])).iloc[0]
    assert (row.cost, row.cost_is_estimated) == (0.25, False)


def test_totals_that_a_file_has_for_the_whole_run_are_those_of_the_run(tmp_path: Path) -> None:
    row = runs(opened(tmp_path, swe_agent(2, 2), "x.traj")).iloc[0]
    assert (row.input_tokens, row.output_tokens, row.cost) == (50, 7, 0.5)


# -- files with many recordings ----------------------------------------------------------------------------------------


def test_the_runs_of_one_file_have_the_names_the_fields_and_the_outcome_that_it_tells(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "bye"}]
    one: list[Json] = [
        {"task_id": 7, "trial": trial, "reward": float(trial), "info": {}, "traj": said} for trial in (0, 1)
    ]
    path = tmp_path / "airline.json"
    path.write_text(json.dumps(one))
    table = runs(path)
    assert list(table["run"]) == ["airline task 7 trial 0", "airline task 7 trial 1"]
    assert list(table["reward"]) == [0.0, 1.0]
    assert list(table["task_id"]) == [7, 7]
    assert set(table["outcome"]) == {"ended"}


def test_a_conversation_that_waits_for_an_answer_is_open(tmp_path: Path) -> None:
    assert runs(opened(tmp_path, [{"role": "user", "content": "How warm?"}])).iloc[0].outcome == "open"


# -- out and in again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["atif", "inspect", "ag-ui"])
@pytest.mark.parametrize("reason", [None, "length", "end_turn"])
def test_finish_reasons_last_words_and_the_missing_end_come_back(tmp_path: Path, format: str, reason: str) -> None:
    answer = {"role": "assistant", "content": "Warm.", "finish_reason": reason, "usage": {"completion_tokens": 2}}
    told = [{"role": "user", "content": "How warm?"}, answer, {"role": "user", "content": "###STOP###"}]
    written = opened(tmp_path, told).export(tmp_path / "out.json", format=format)
    again = agentnb.replay(written.path)
    (end,) = (event for event in again.recording if isinstance(event, ModelEnd))
    assert (end.finish_reason, end.usage) == (reason, {"output_tokens": 2})
    assert "###STOP###" in str(again.recording[-1])  # the recording has no end
    assert again.lost == {}


async def test_the_difference_to_a_fork_of_an_imported_recording_begins_at_the_fork(tmp_path: Path) -> None:
    recorded = opened(tmp_path, SHAPES["tau2"])
    at = next(event.seq for event in recorded.recording if event.type == "call_end")
    fork = recorded.fork(at=at, loop=SessionLoop(ScriptedLLM(["Cold."]), recorded.tools(at=at)))
    await fork
    assert diff(recorded, fork).common == at + 1


# -- conversations of people -------------------------------------------------------------------------------------------


def test_the_output_of_gemini_includes_its_thoughts_and_notes_are_counted(tmp_path: Path) -> None:
    note = {"type": "info", "content": "Request cancelled.", "timestamp": at(4)}
    recorded = opened(tmp_path, {**GEMINI, "messages": [*GEMINI["messages"], note]})
    assert recorded.usage == {"input_tokens": 9, "output_tokens": 5, "cache_read_tokens": 4, "reasoning_tokens": 3}
    assert recorded.lost == {"messages of type info": 1}


def test_the_branch_of_chatgpt_that_was_shown_last_is_read_and_the_others_are_counted(tmp_path: Path) -> None:
    other = {"id": "x", "parent": "n4", "message": {"author": {"role": "assistant"}, "content": {"parts": ["No."]}}}
    recorded = opened(tmp_path, [{**CHATGPT, "mapping": {**CHATGPT["mapping"], "x": other}}])
    assert "No." not in str(recorded.messages)
    assert recorded.lost == {"messages of other branches": 1}


def test_the_tools_of_the_simulated_user_are_counted_and_are_not_the_agents(tmp_path: Path) -> None:
    used = {"role": "user", "content": None, "tool_calls": [{"id": "u1", "name": "look", "arguments": {}}]}
    seen = {"role": "tool", "id": "u1", "content": "a screen", "requestor": "user"}
    (simulation,) = TAU2["simulations"]
    recorded = opened(tmp_path, {**TAU2, "simulations": [{**simulation, "messages": [*TAU2_MESSAGES, used, seen]}]})
    assert list(calls(recorded)["tool"]) == ["weather"]
    assert recorded.lost == {"calls of the user": 1, "results of the user's calls": 1}
    assert runs(recorded).iloc[0].reward == 1.0


# -- what a continued run is sent --------------------------------------------------------------------------------------


def test_the_summary_of_a_compaction_of_pi_is_a_message_and_what_it_replaced_is_counted(tmp_path: Path) -> None:
    compaction = {"type": "compaction", "id": "z", "timestamp": at(9), "summary": "Rome is warm.", **LINKED}
    session = [json.dumps(line) for line in (*PI, compaction)]
    recorded = opened(tmp_path, "\n".join(session), "s.jsonl")
    assert recorded.messages[-1].content == "Rome is warm."
    (replaced,) = recorded.lost.values()
    assert replaced == len(PI) - 2  # all but the head, and the message that is kept


def test_a_sample_of_inspect_has_the_schemas_of_the_tools_that_were_offered(tmp_path: Path) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    offered = {"name": "weather", "description": "Tells it.", "parameters": parameters}
    events = [{**one, "tools": [offered]} if one.get("event") == "model" else one for one in INSPECT_EVENTS]
    recorded = opened(tmp_path, inspect_log(inspect_sample(events)))
    assert recorded.imported["tools"] == [offered]
    (stub,) = recorded.tools()
    assert stub.description == "Tells it."


@pytest.mark.parametrize("begin", [0, 1])
def test_an_object_with_a_list_of_events_of_ag_ui_is_read(tmp_path: Path, begin: int) -> None:
    recorded = opened(tmp_path, {"threadId": "t", "events": [{"type": "RUN_STARTED", "threadId": "t"}, *SAID][begin:]})
    assert recorded.messages[-1].content == "Warm."


SAID = [
    {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Warm."},
    {"type": "TEXT_MESSAGE_END", "messageId": "m"},
]
LINKED = {"parentId": PI[-1].get("id"), "firstKeptEntryId": PI[-1].get("id")}


@pytest.mark.parametrize("kind", FILES)
def test_nothing_changes_in_silence_from_one_format_to_another(tmp_path: Path, kind: str) -> None:
    first = agentnb.replay(written(tmp_path, kind))
    for format in ("atif", "inspect", "ag-ui", "messages"):
        exported = first.export(tmp_path / "out.json", format=format)
        before, after = facts(first), facts(agentnb.replay(exported.path))
        if "reasons of ends" in exported.lost:
            before.pop("outcome"), after.pop("outcome")
        assert after == before, format


def facts(recorded: agentnb.run.Replay) -> Json:
    """Return what a report of a recording tells."""
    ends = [event for event in recorded.recording if isinstance(event, ModelEnd)]
    return {
        "outcome": runs(recorded).iloc[0].outcome,
        "answers": [(end.message.content, end.finish_reason, end.model, end.usage) for end in ends],
        "calls": calls(recorded)[["tool", "outcome", "is_error", "result"]].to_dict("records"),
    }
