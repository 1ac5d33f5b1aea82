"""What each format carries and counts, and what is refused."""

from __future__ import annotations

import io
import json
import math
import sqlite3
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentnb
from agentnb import SessionLoop, Snapshot, Store, UsageError, importers, tool
from agentnb.analysis import calls, decisions, events, messages
from agentnb.core.events import Event
from agentnb.core.messages import Message
from agentnb.errors import RecordingCorrupt, RecordingMismatch, RecordingMissing, StorageError, VersionMismatch
from agentnb.importers import Answer, Call, ForeignFile, Writer
from agentnb.testing import Recorded, ScriptedLLM
from agentnb.widgets.static.panel import static_html
from tests.importers.files import (
    AG_UI,
    ANSWERED,
    ANTHROPIC,
    ASKED,
    ATIF,
    CALLED,
    CHAT,
    CLAUDE,
    CODEX,
    INSPECT_CALL,
    INSPECT_EVENTS,
    LANGCHAIN,
    OPENAI_AGENTS,
    OTEL,
    PI,
    SWE_AGENT,
    TOLD,
    Json,
    agents_span,
    at,
    claude_line,
    codex_line,
    document,
    inspect_archive,
    inspect_log,
    inspect_model,
    inspect_sample,
    langgraph_state,
    lines,
    otel_span,
    otlp,
    parts,
    written,
)


def opened(path: Path, content: bytes) -> agentnb.run.Replay:
    path.write_bytes(content)
    recorded = agentnb.replay(path)
    return recorded.to(len(recorded.recording) - 1)


def types(recorded: Any) -> list[str]:
    return [event.type for event in recorded.recording]


# -- times -------------------------------------------------------------------------------------------------------------


def test_a_time_that_the_file_lacks_is_unknown_and_not_made_up(tmp_path: Path) -> None:
    path = written(tmp_path, "ATIF")
    table = events(path)
    known = table[table["type"] == "model_end"]
    assert list(known["seconds"]) == [1.0, 2.0]
    assert all(map(math.isnan, table[table["type"] == "model_start"]["seconds"]))
    assert all(map(math.isnan, calls(path)["took"]))
    answers = messages(path)
    assert all(map(math.isnan, answers[answers["role"] == "assistant"]["took"]))


def test_a_file_without_times_has_none(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "chat.json", document(CHAT))
    assert all(event.untimed for event in recorded.recording)
    assert recorded.imported["untimed"] == len(recorded.recording)


@pytest.mark.parametrize("time", ["yesterday", "99999-01-01T00:00:00Z", -5, 1e300, [], "2026-13-40"])
def test_an_impossible_time_is_counted_and_left_unknown(tmp_path: Path, time: Any) -> None:
    steps = [dict(step, timestamp=time) for step in ATIF["steps"]]
    recorded = opened(tmp_path / "t.json", document({**ATIF, "steps": steps}))
    assert all(event.untimed for event in recorded.recording)
    assert recorded.lost == {"impossible times": 4}


def test_times_that_run_backwards_are_counted(tmp_path: Path) -> None:
    steps = [dict(step, timestamp=f"2026-01-0{9 - step['step_id']}T00:00:00Z") for step in ATIF["steps"]]
    recorded = opened(tmp_path / "t.json", document({**ATIF, "steps": steps}))
    assert recorded.lost["times out of order"] == 3
    times = [event.time for event in recorded.recording]
    assert times == sorted(times)


# -- ATIF --------------------------------------------------------------------------------------------------------------


def test_atif_carries_usage_thinking_and_details(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "t.json", document(ATIF))
    assert recorded.usage == {"input_tokens": 10, "output_tokens": 3, "cost": 0.5}
    answer = next(message for message in recorded.messages if message.role == "assistant")
    assert answer.reasoning == [{"text": "Ask the tool."}]
    assert answer.details == {"metrics": {"logprobs": [-0.1]}}
    assert recorded.messages[0] == {"role": "system", "content": "Be short."}
    assert recorded.imported["version"] == "ATIF-v1.7"
    assert recorded.imported["tools"] == [{"type": "function"}]


@pytest.mark.parametrize("minor", range(8))
def test_every_published_version_of_atif_is_read(tmp_path: Path, minor: int) -> None:
    assert opened(tmp_path / "t.json", document({**ATIF, "schema_version": f"ATIF-v1.{minor}"})).lost == {}


def test_a_newer_version_of_atif_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VersionMismatch, match=r"ATIF-v2\.0; agentnb reads"):
        opened(tmp_path / "t.json", document({**ATIF, "schema_version": "ATIF-v2.0"}))


def embedded(levels: int) -> dict[str, Any]:
    """Return a trajectory whose agent calls a sub-agent, which calls another, and so on."""
    inside: dict[str, Any] = {**ATIF, "trajectory_id": "t0"}
    for level in range(1, levels + 1):
        ref = {"trajectory_id": f"t{level - 1}"}
        step = {
            "step_id": 1,
            "source": "agent",
            "message": "",
            "tool_calls": [{"tool_call_id": "d", "function_name": "delegate", "arguments": {}}],
            "observation": {"results": [{"source_call_id": "d", "content": "ok", "subagent_trajectory_ref": [ref]}]},
        }
        inside = {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": f"t{level}",
            "agent": {"name": "boss", "version": "1"},
            "steps": [step],
            "subagent_trajectories": [inside],
        }
    return inside


def test_an_embedded_sub_agent_is_a_nested_loop(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "t.json", document(embedded(1)))
    assert {event.path for event in recorded.recording} == {"", "harbor-agent"}
    inside = [event.type for event in recorded.recording if event.path]
    assert inside[0] == "run_start"
    assert inside[-1] == "run_end"
    assert list(calls(recorded)["tool"]) == ["delegate", "weather"]


def test_sub_agents_nested_too_deeply_are_counted(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "t.json", document(embedded(40)))
    assert recorded.lost["sub-agents nested too deeply"] == 1


def test_three_hundred_levels_are_refused_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(RecordingCorrupt, match=r"t\.json"):
        opened(tmp_path / "t.json", b'{"schema_version": "ATIF-v1.7", "steps": ' + b"[" * 100_000)
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    steps = json.loads(json.dumps(ATIF["steps"]))
    steps[2]["tool_calls"][0]["arguments"] = {"deep": deep}
    recorded = opened(tmp_path / "t.json", document({**ATIF, "steps": steps}))
    assert calls(recorded)["tool"][0] == "weather"
    Snapshot.load(recorded.snapshot().save(tmp_path / "kept.json"))


def test_a_reference_to_another_file_is_counted_and_not_opened(tmp_path: Path) -> None:
    steps = json.loads(json.dumps(ATIF["steps"]))
    ref = {"session_id": "x", "trajectory_path": str(tmp_path / "secret.json")}
    steps[2]["observation"]["results"][0]["subagent_trajectory_ref"] = [ref]
    recorded = opened(tmp_path / "t.json", document({**ATIF, "steps": steps}))
    assert recorded.lost == {"sub-agents in other files": 1}


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_logged_request_of_anthropic_carries_usage_and_thinking(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "r.json", document(ANTHROPIC))
    assert recorded.usage == {"input_tokens": 15, "output_tokens": 3, "cache_read_tokens": 5}
    answer = recorded.messages[2]
    assert answer.reasoning == [{"text": "Ask the tool.", "signature": "s"}]
    assert recorded.recording[-1].model == "claude-x-1"  # type: ignore[attr-defined]


def test_a_log_of_requests_is_read_as_its_conversations(tmp_path: Path) -> None:
    first = {"model": "m", "messages": CHAT[:2]}
    second = {"model": "m", "messages": CHAT}
    other = {"model": "m", "messages": [{"role": "user", "content": "Another."}]}
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines([first, second, other]))
    with pytest.raises(UsageError, match="has 2 recordings: log, log#2"):
        agentnb.replay(path)
    one, two = Snapshot.load_all(path)
    assert len(one.state.messages) == 5
    assert [message.content for message in two.state.messages] == ["Another."]
    assert set(calls(path)["run"]) == {"log"}
    assert one.run_id != two.run_id


def test_a_log_of_requests_carries_every_response_once(tmp_path: Path) -> None:
    def response(id: str, message: Json, tokens: int) -> Json:
        return {"id": id, "model": "m-1", "choices": [{"message": message}], "usage": {"prompt_tokens": tokens}}

    again = [*CHAT, {"role": "user", "content": "Thanks."}]
    log = [
        {"request": {"model": "m", "messages": CHAT[:2]}, "response": response("r1", CHAT[2], 10)},
        {"request": {"model": "m", "messages": [{"role": "user", "content": "Another."}]}, "response": {}},
        {"request": {"model": "m", "messages": CHAT[:4]}, "response": response("r2", CHAT[4], 20)},
        {
            "request": {"model": "m", "messages": again},
            "response": {"error": {"type": "overloaded", "message": "Wait."}},
        },
    ]
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(log))
    one, other = Snapshot.load_all(path)
    assert [message.role for message in one.state.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert [event.response_id for event in one.events if event.type == "model_end"] == ["r1", "r2"]
    assert one.state.usage == {"input_tokens": 30}
    assert [event.error.type for event in one.events if event.type == "model_error"] == ["overloaded"]
    assert [message.content for message in other.state.messages] == ["Another."]
    assert agentnb.replay(other).lost == {"responses of an unknown format": 1}


def test_requests_that_refer_to_the_response_before_them_are_one_conversation(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}
    told = {"type": "function_call_output", "call_id": "c1", "output": "21 degrees"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 21 degrees."}]}
    log = [
        {"request": {"model": "m", "input": "How warm is it?"}, "response": {"id": "r1", "output": [call]}},
        {
            "request": {"model": "m", "input": [told], "previous_response_id": "r1"},
            "response": {"id": "r2", "output": [said]},
        },
    ]
    recorded = opened(tmp_path / "log.json", document(log))
    assert [message.role for message in recorded.messages] == ["user", "assistant", "tool", "assistant"]
    assert recorded.messages[-1].content == "It is 21 degrees."
    assert recorded.lost == {}


def cassette() -> Json:
    """Return a cassette of VCR.py with the requests of a conversation and one of another kind."""
    body = {"id": "r", "choices": [{"message": ANSWERED}], "usage": {"prompt_tokens": 7}}
    request = {"method": "POST", "uri": "https://models.test/v1/chat/completions"}
    return {
        "interactions": [
            {"request": {**request, "body": None}, "response": {"body": {"string": "<html>"}}},
            {
                "request": {**request, "body": json.dumps({"model": "m", "messages": [ASKED]})},
                "response": {"status": {"code": 200}, "body": {"string": json.dumps(body)}},
            },
        ],
        "version": 1,
    }


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_a_cassette_is_read_as_the_requests_in_it(tmp_path: Path, kind: str) -> None:
    yaml = pytest.importorskip("yaml")
    content = document(cassette()) if kind == "json" else yaml.dump(cassette()).encode()
    recorded = opened(tmp_path / f"tape.{kind}", content)
    assert [message.content for message in recorded.messages] == [ASKED["content"], ANSWERED["content"]]
    assert recorded.usage == {"input_tokens": 7}
    assert recorded.lost == {"bodies of a response that are not JSON": 1, "requests without messages": 1}


def test_a_cassette_in_yaml_constructs_nothing_and_does_not_explode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("yaml")
    request = "- request: {parsed_body: {messages: [{role: user, content: Hi}]}}\n"
    hostile = {
        "interactions:\n- !!python/object/apply:os.abort []\n": "damaged cassette",
        "interactions:\n- [a, {": "damaged cassette",
        f"interactions: &a\n{request}- *a\n": "aliases repeat",
        "interactions:\n"
        + request
        + "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]\n" for n in range(12)): "aliases repeat",
    }
    for text, why in hostile.items():
        with pytest.raises(RecordingCorrupt, match=why):
            opened(tmp_path / "tape.yaml", text.encode())
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="pip install pyyaml"):
        opened(tmp_path / "tape.yaml", f"interactions:\n{request}".encode())


def test_blocks_of_an_answer_keep_their_order(tmp_path: Path) -> None:
    blocks = [
        {"type": "text", "text": "one"},
        {"type": "tool_use", "id": "c", "name": "t", "input": {}},
        {"type": "text", "text": "two"},
        {"type": "server_tool_use", "id": "x", "name": "search", "input": {}},
    ]
    recorded = opened(
        tmp_path / "c.json", document([{"role": "user", "content": "?"}, {"role": "assistant", "content": blocks}])
    )
    answer = recorded.messages[-1]
    assert answer.content == "onetwo"
    assert [part["type"] for part in answer.order] == ["text", "call", "text", "block"]


def test_a_missing_result_is_counted(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "c.json", document([*CHAT[:3], CHAT[4]]))
    assert recorded.lost == {"missing results": 1}
    assert list(calls(recorded)["outcome"]) == ["aborted"]


def test_a_result_without_a_call_and_a_repeated_result_are_counted(tmp_path: Path) -> None:
    stray = {"role": "tool", "tool_call_id": "other", "content": "?"}
    recorded = opened(tmp_path / "c.json", document([*CHAT[:4], CHAT[3], stray, CHAT[4]]))
    assert recorded.lost == {"repeated results": 1, "results of unknown calls": 1}


def test_the_same_id_in_two_answers_stays_two_calls(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "c.json", document([*CHAT, *CHAT[1:]]))
    assert list(calls(recorded)["call_id"]) == ["c1", "c1#2"]
    assert recorded.lost == {}


def test_arguments_that_are_not_an_object_are_kept_as_text(tmp_path: Path) -> None:
    broken = json.loads(json.dumps(CHAT))
    broken[2]["tool_calls"][0]["function"]["arguments"] = '{"city": '
    recorded = opened(tmp_path / "c.json", document(broken))
    assert recorded.messages[2].tool_calls[0].malformed == '{"city": '


def test_text_that_is_not_unicode_is_repaired(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "c.json", rb'[{"role": "user", "content": "\ud800 half"}]')
    assert recorded.messages[0].content == "\ufffd half"


def test_a_damaged_line_is_named_and_left_out(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="line 6"):
        recorded = opened(tmp_path / "c.jsonl", lines(CHAT) + b'{"role": "user", "con')
    assert recorded.lost == {"damaged lines": 1}
    assert len(recorded.messages) == 5


# -- Claude Code -------------------------------------------------------------------------------------------------------


def test_the_lines_of_one_answer_are_one_request(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "s.jsonl", lines(CLAUDE))
    assert types(recorded).count("model_start") == 2
    assert recorded.messages[1].reasoning == [{"text": "Ask the tool.", "signature": "s"}]
    assert recorded.usage == {"input_tokens": 24, "output_tokens": 4, "cache_read_tokens": 4}
    assert recorded.imported["version"] == "2.0.0"


def test_a_path_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "chat.json").write_bytes(document(CHAT))
    for place in ("~/logs/chat.json", "~/logs", "~/*/*.json"):
        assert set(calls(place)["tool"]) == {"weather"}
    with closing(Store("~/runs.db")) as store:
        store.add("~/logs/*.json")
        assert store.export("~/runs.zip") > 0
    assert Snapshot.load("~/logs/chat.json").save("~/kept.json") == tmp_path / "kept.json"
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "runs.db", "runs.zip", "kept.json"}


def test_a_duration_whose_start_is_unknown_is_a_limit(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "s.jsonl", lines(CLAUDE))
    shown = static_html(recorded.to(len(recorded.recording) - 1))
    assert "\N{LESS-THAN OR EQUAL TO}&nbsp;1.00&nbsp;s" in shown
    assert "no end recorded" in shown


def test_what_has_no_times_has_no_duration(tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_bytes(document(CHAT))
    table = agentnb.analysis.runs(tmp_path / "chat.json")
    assert table.seconds.isna().all()
    assert table.began.isna().all()


def test_a_call_that_the_user_refused_is_a_decision(tmp_path: Path) -> None:
    refused = (
        "The user doesn't want to proceed with this tool use. The tool use was rejected, the user said:\nNot there."
    )
    block = {"type": "tool_result", "tool_use_id": "c1", "content": refused, "is_error": True}
    recorded = opened(tmp_path / "s.jsonl", lines([*CLAUDE[:3], claude_line(4, "user", [block])]))
    (decision,) = (event for event in recorded.recording if event.type == "approval_decision")
    assert (decision.by, decision.decision, decision.reason) == ("human", "reject", "Not there.")  # type: ignore[attr-defined]
    assert list(calls(recorded)["outcome"]) == ["rejected"]


def with_agent(**fields: Any) -> list[dict[str, Any]]:
    """Return a session in which a call was performed by the sub-agent `a1`."""
    return [*CLAUDE[:3], {**CLAUDE[3], "toolUseResult": {"agentId": "a1", "prompt": "Look."}, **fields}, CLAUDE[4]]


def side(number: int, kind: str, content: Any, **fields: Any) -> dict[str, Any]:
    parent = f"side{number - 1}" if number > 1 else None
    own = {"isSidechain": True, "uuid": f"side{number}", "parentUuid": parent}
    return claude_line(number, kind, content, **own, timestamp="2026-01-01T10:00:03.500Z", **fields)


AGENT = [side(1, "user", "Look."), side(2, "assistant", [{"type": "text", "text": "Seen."}])]


def test_a_sub_agent_in_the_same_file_is_a_nested_loop(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "s.jsonl", lines([*AGENT, *with_agent()]))
    assert {event.path for event in recorded.recording} == {"", "agent"}
    assert recorded.lost == {}


def test_a_sub_agent_in_a_file_of_the_same_folder_is_a_nested_loop(tmp_path: Path) -> None:
    (tmp_path / "agent-a1.jsonl").write_bytes(lines(AGENT))
    recorded = opened(tmp_path / "s.jsonl", lines(with_agent()))
    assert {event.path for event in recorded.recording} == {"", "agent"}
    assert recorded.lost == {}


def test_a_sub_agent_that_is_nowhere_is_counted(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "s.jsonl", lines(with_agent()))
    assert recorded.lost == {"sub-agents in other files": 1}


def test_an_id_of_a_sub_agent_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_bytes(lines(AGENT))
    result = {"agentId": "/../secret", "prompt": "Other."}
    recorded = opened(tmp_path / "s.jsonl", lines(with_agent(toolUseResult=result)))
    assert recorded.lost == {"sub-agents in other files": 1}


async def test_a_fork_inside_a_sub_agent_is_refused_with_the_reason(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "s.jsonl", lines([*AGENT, *with_agent()]))
    inside = next(event.seq for event in recorded.recording if event.path)
    with pytest.raises(
        RecordingMismatch, match=r"inside the nested loop 'agent'.*tool\(SessionLoop\(...\), name='weather'\)"
    ):
        recorded.fork(at=inside, loop=SessionLoop(ScriptedLLM(["x"])))
    # As the message says: the sub-agent continues, and the agent after it.
    helper = SessionLoop(ScriptedLLM(["Helped."]), recorded.tools(at=inside))
    loop = SessionLoop(ScriptedLLM(["Done."]), recorded.tools(tool(helper, name="weather"), at=inside))
    run = recorded.fork(at=inside, loop=loop)
    assert await run == "Done."
    ends = [(event.path, event.reason) for event in run.events if event.type == "run_end"]
    assert ends == [("agent", "completed"), ("", "completed")]


def test_the_branch_that_ends_last_is_read(tmp_path: Path) -> None:
    other = claude_line(6, "assistant", [{"type": "text", "text": "Colder."}], parentUuid="u4")
    recorded = opened(tmp_path / "s.jsonl", lines([*CLAUDE, other]))
    assert recorded.messages[-1].content == "Colder."
    assert recorded.lost == {"lines of other branches": 1}


def test_a_cycle_of_parents_and_a_repeated_line_end(tmp_path: Path) -> None:
    turned = [{**CLAUDE[0], "parentUuid": "u5"}, *CLAUDE[1:], CLAUDE[2]]
    with pytest.warns(RuntimeWarning, match="line 6 repeats the uuid u3"):
        recorded = opened(tmp_path / "s.jsonl", lines(turned))
    assert recorded.lost == {"repeated lines": 1}
    assert len(recorded.messages) == 4


def test_a_compaction_and_notes_are_carried_or_counted(tmp_path: Path) -> None:
    compact = claude_line(6, "system", "", subtype="compact_boundary", compactMetadata={"preTokens": 5})
    recorded = opened(
        tmp_path / "s.jsonl", lines([{"type": "summary", "summary": "x", "sessionId": "s"}, *CLAUDE, compact])
    )
    assert recorded.state.values["compaction"] == {"preTokens": 5}
    assert recorded.lost == {"lines of type summary": 1}


def test_a_session_of_the_web_and_one_whose_first_line_is_a_note(tmp_path: Path) -> None:
    web = [{key: line[key] for key in ("type", "message", "timestamp")} for line in CLAUDE]
    with pytest.warns(RuntimeWarning, match="line 6 is not an object"):
        recorded = opened(tmp_path / "web.json", document({"loglines": [*web, "x"]}))
    assert [message.role for message in recorded.messages] == ["user", "assistant", "tool", "assistant"]
    assert recorded.lost == {"damaged lines": 1}
    bare = [{key: value for key, value in line.items() if key != "parentUuid"} for line in CLAUDE]
    recorded = opened(tmp_path / "s.jsonl", lines([{"type": "summary", "summary": "x"}, *bare]))
    assert len(recorded.messages) == 4
    assert recorded.lost == {"lines of type summary": 1}


def test_a_message_that_waited_for_results_was_delivered_at_an_unknown_time(tmp_path: Path) -> None:
    note = claude_line(4, "user", "Be quick.", timestamp="2026-01-01T10:00:03.500Z", uuid="n", parentUuid="u3")
    recorded = opened(tmp_path / "s.jsonl", lines([*CLAUDE[:3], note, {**CLAUDE[3], "parentUuid": "n"}, CLAUDE[4]]))
    (delivered,) = [event for event in recorded.recording if event.type == "message" and event.origin == "steering"]
    assert delivered.untimed
    assert recorded.lost == {}


def test_a_failed_request_and_the_one_after_it(tmp_path: Path) -> None:
    failed = claude_line(2, "assistant", [{"type": "text", "text": "Overloaded"}], isApiErrorMessage=True)
    again = claude_line(3, "assistant", [{"type": "text", "text": "Hello."}])
    recorded = opened(tmp_path / "s.jsonl", lines([CLAUDE[0], failed, again]))
    assert "model_error" in types(recorded)
    assert recorded.messages[-1].content == "Hello."
    assert recorded.result() is None or recorded.state.failure is None


# -- Inspect -----------------------------------------------------------------------------------------------------------


def approval(decision: str, approver: str = "guard", **fields: Any) -> dict[str, Any]:
    asked = {"event": "approval", "timestamp": at(3), "call": INSPECT_CALL, "approver": approver}
    return {**asked, "decision": decision, "explanation": "because", **fields}


def test_decisions_of_approvers_are_decisions(tmp_path: Path) -> None:
    edited = approval("modify", "human", modified={"arguments": {"city": "Oslo"}})
    changed = [*INSPECT_EVENTS[:2], edited, *INSPECT_EVENTS[2:]]
    path = tmp_path / "log.eval"
    approved = [*INSPECT_EVENTS[:2], approval("approve")]
    path.write_bytes(inspect_archive(inspect_sample(changed), inspect_sample(approved)))
    one, two = Snapshot.load_all(path)
    table = decisions([one, two])
    assert list(table["by"]) == ["human", "guard"]
    assert list(table["decision"]) == ["edit", "approve"]
    assert list(table["reason"]) == ["because", "because"]
    assert [event.type for event in one.events].count("approval_request") == 1


def test_a_rejected_call_did_not_run(tmp_path: Path) -> None:
    refused = {**INSPECT_EVENTS[3], "result": "", "error": {"type": "approval", "message": "because"}}
    log = inspect_log(inspect_sample([INSPECT_EVENTS[1], approval("reject"), refused]))
    recorded = opened(tmp_path / "l.json", document(log))
    assert list(calls(recorded)["outcome"]) == ["rejected"]
    assert "call_start" not in types(recorded)


def test_a_sub_agent_of_inspect_is_a_nested_loop_and_scores_are_values(tmp_path: Path) -> None:
    inner = inspect_model(4, [{"role": "user", "content": "Look."}], {"role": "assistant", "content": "Seen."})
    score = {"event": "score", "timestamp": at(9), "score": {"value": 1}}
    nested = [*INSPECT_EVENTS[:4], inner, *INSPECT_EVENTS[4:], score, {"event": "info", "data": 1}]
    recorded = opened(tmp_path / "l.json", document(inspect_log(inspect_sample(nested))))
    assert {event.path for event in recorded.recording} == {"", "weather"}
    assert recorded.state.values == {"score": {"value": 1}, "info": 1}
    assert recorded.lost == {}
    assert recorded.stop_reason == "completed"


@pytest.mark.parametrize("is_older", [False, True])
def test_a_model_that_scores_has_a_loop_of_its_own(tmp_path: Path, is_older: bool) -> None:
    judged = inspect_model(9, [{"role": "user", "content": "Is it right?"}], {"role": "assistant", "content": "Yes."})
    score = {"event": "score", "timestamp": at(10), "score": {"value": 1}}
    about = {"type": "scorer", "name": "judge", "timestamp": at(8)}
    if is_older:
        marks = [{"event": "step", "action": action, **about} for action in ("begin", "end")]
    else:
        marks = [{"event": kind, "id": "j", **about} for kind in ("span_begin", "span_end")]
    log = inspect_log(inspect_sample([*INSPECT_EVENTS, marks[0], judged, score, marks[1]]))
    recorded = opened(tmp_path / "l.json", document(log))
    assert [message.role for message in recorded.messages] == ["user", "assistant", "tool", "assistant"]
    assert {event.path for event in recorded.recording} == {"", "judge"}
    assert recorded.state.values == {"score": {"value": 1}}
    assert recorded.lost == {}


def test_messages_and_texts_that_are_stored_apart_are_in_their_places(tmp_path: Path) -> None:
    pooled = {key: value for key, value in INSPECT_EVENTS[1].items() if key != "input"} | {"input_refs": [[0, 1]]}
    newer = inspect_sample([pooled], message_pool=[ASKED])
    older = {"id": 2, "epoch": 1, "transcript": {"events": [INSPECT_EVENTS[1]], "content": {"a": "How warm is it?"}}}
    older = json.loads(json.dumps(older).replace("attachment://", "tc://"))
    path = tmp_path / "l.json"
    path.write_bytes(document(inspect_log(newer, older)))
    assert [found.state.messages[0].content for found in Snapshot.load_all(path)] == ["How warm is it?"] * 2


def test_samples_are_in_the_order_of_their_ids_and_changes_of_the_state_are_values(tmp_path: Path) -> None:
    changes = [{"op": "add", "path": "/messages/1", "value": 1}, {"op": "add", "path": "/metadata/x", "value": 2}]
    events = [*INSPECT_EVENTS, {"event": "state", "changes": changes}]
    path = tmp_path / "l.eval"
    path.write_bytes(inspect_archive(*[inspect_sample(events, id=number + 1) for number in range(11)][::-1]))
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(content.items()):  # as text: 1, 10, 11, 2
            archive.writestr(name, data)
    found = Snapshot.load_all(path)
    ids = [snapshot.start.config["imported"]["id"] for snapshot in found]
    assert ids == [f"{number}/1" for number in range(11, 0, -1)]  # that of the file's name counts
    assert found[0].state.values == {"state": changes[1:]}


def test_a_newer_log_of_inspect_and_one_without_samples_are_refused(tmp_path: Path) -> None:
    log = inspect_log(inspect_sample(INSPECT_EVENTS))
    with pytest.raises(VersionMismatch, match="of version 9; this agentnb reads up to 3"):
        opened(tmp_path / "l.json", document({**log, "version": 9}))
    with pytest.raises(RecordingCorrupt, match="a log of Inspect without samples"):
        opened(tmp_path / "l.json", document({**log, "samples": []}))


def test_a_sample_that_failed_and_one_without_events(tmp_path: Path) -> None:
    failed = inspect_sample(INSPECT_EVENTS, error={"message": "no memory"})
    plain = inspect_sample([], messages=[ASKED, CALLED, TOLD, ANSWERED])
    path = tmp_path / "l.json"
    path.write_bytes(document(inspect_log(failed, plain)))
    one, two = Snapshot.load_all(path)
    assert one.state.error is not None
    assert one.state.error.message == "no memory"
    assert [message.role for message in two.state.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_damaged_sample_is_named(tmp_path: Path) -> None:
    data = inspect_archive(inspect_sample(INSPECT_EVENTS), inspect_sample(INSPECT_EVENTS))
    place = data.index(b"samples/2") + 40
    with pytest.warns(RuntimeWarning, match="samples/2_epoch_1.json"):
        recorded = opened(tmp_path / "l.eval", data[:place] + b"\0\0\0\0" + data[place + 4 :])
    assert recorded.lost == {"damaged samples": 1}


# -- traces and events -------------------------------------------------------------------------------------------------


def test_requests_in_the_span_of_a_tool_are_a_nested_loop(tmp_path: Path) -> None:
    inner = json.dumps([parts("user", type="text", content="Look.")])
    told = json.dumps([parts("assistant", type="text", content="Seen.")])
    spans = [
        *OTEL,
        otel_span(2, "invoke_agent", "s2", "agent"),
        otel_span(2, "chat", "agent", "inner", input__messages=inner, output__messages=told),
    ]
    recorded = opened(tmp_path / "o.json", document(otlp(spans)))
    assert [event.type for event in recorded.recording if event.path == "weather"][-2:] == ["model_end", "run_end"]
    assert recorded.lost == {}


def test_a_cycle_of_spans_and_a_repeated_span_end(tmp_path: Path) -> None:
    cycle = [otel_span(4, "invoke_agent", "y", "x"), otel_span(5, "invoke_agent", "x", "y")]
    cycle.append(otel_span(6, "chat", "x", "z"))
    with pytest.warns(RuntimeWarning, match="span s1 is repeated"):
        recorded = opened(tmp_path / "o.json", document(otlp([*OTEL, *cycle, OTEL[0]])))
    assert recorded.lost == {"contents of answers": 1, "repeated spans": 1}


def test_two_equal_messages_stay_two(tmp_path: Path) -> None:
    yes = parts("user", type="text", content="yes")
    ok = parts("assistant", type="text", content="ok")
    spans = [
        otel_span(1, "chat", input__messages=json.dumps([yes]), output__messages=json.dumps([ok])),
        otel_span(2, "chat", input__messages=json.dumps([yes, ok, yes]), output__messages=json.dumps([ok])),
    ]
    recorded = opened(tmp_path / "o.json", document(otlp(spans)))
    assert [message.content for message in recorded.messages] == ["yes", "ok", "yes", "ok"]


def test_a_hundred_thousand_spans_of_one_trace_are_read(tmp_path: Path) -> None:
    spans = [{"traceId": "t", "spanId": str(n), "parentSpanId": str(n - 1), "name": "x"} for n in range(100_000)]
    recorded = opened(tmp_path / "o.json", document(otlp([*spans, *OTEL])))
    assert recorded.lost == {"spans of other kinds": 100_000}


def test_a_tool_that_no_known_answer_called_is_a_call_of_the_loop(tmp_path: Path) -> None:
    silent = [otel_span(1, "chat"), otel_span(2, "execute_tool", tool__name="weather", tool__call__result="21 degrees")]
    recorded = opened(tmp_path / "t.json", document(otlp(silent)))
    assert list(calls(recorded)["result"]) == ["21 degrees"]
    assert recorded.lost == {"contents of answers": 1}


def test_the_answer_of_a_span_that_lasts_until_its_calls_have_ended_has_no_time(tmp_path: Path) -> None:
    longer = {**OTEL[0], "endTimeUnixNano": OTEL[1]["endTimeUnixNano"]}
    recorded = opened(tmp_path / "t.json", document(otlp([longer, *OTEL[1:]])))
    answers = [event for event in recorded.recording if event.type == "model_end"]
    assert [answer.untimed for answer in answers] == [True, False]
    assert recorded.lost == {}


def test_spans_of_open_inference_are_read(tmp_path: Path) -> None:
    def span(second: int, kind: str, **values: Any) -> Json:
        given = otel_span(second, "chat")
        attributes = {key.replace("__", "."): value for key, value in values.items()}
        return {**given, "attributes": {"openinference.span.kind": kind, **attributes}}

    asked = {"llm__input_messages__0__message__role": "user", "llm__input_messages__0__message__content": "How warm?"}
    called = {
        "llm__output_messages__0__message__role": "assistant",
        "llm__output_messages__0__message__tool_calls__0__tool_call__function__name": "weather",
        "llm__output_messages__0__message__tool_calls__0__tool_call__function__arguments": '{"city": "Rome"}',
    }
    said = {
        "llm__output_messages__0__message__role": "assistant",
        "llm__output_messages__0__message__contents__0__message_content__text": "It is ",
        "llm__output_messages__0__message__contents__1__message_content__text": "warm.",
    }
    spans = [
        span(1, "LLM", llm__model_name="m", llm__token_count__prompt=3, **asked, **called),
        span(2, "TOOL", tool__name="weather", output__value="21 degrees"),
        span(3, "LLM", llm__token_count__prompt=4, **asked, **said),
        span(4, "CHAIN"),
    ]
    recorded = opened(tmp_path / "t.json", document(spans))
    assert [message.role for message in recorded.messages] == ["user", "assistant", "tool", "assistant"]
    assert list(calls(recorded)["result"]) == ["21 degrees"]
    assert recorded.messages[-1].content == "It is warm."
    assert recorded.usage == {"input_tokens": 7}
    assert recorded.lost == {}


def test_requests_of_adk_with_the_contents_of_gemini_are_read(tmp_path: Path) -> None:
    def span(second: int, contents: list[Json], answer: Json) -> Json:
        request = {"model": "g", "config": {"system_instruction": "Be short."}, "contents": contents}
        response = {"content": answer, "usage_metadata": {"prompt_token_count": 5}}
        values = {"gen_ai.system": "gcp.vertex.agent", "gcp.vertex.agent.llm_request": json.dumps(request)}
        values["gcp.vertex.agent.llm_response"] = json.dumps(response)
        return {**otel_span(second, "call_llm"), "attributes": values}

    asked = {"role": "user", "parts": [{"text": "How warm is it?"}]}
    called = {"role": "model", "parts": [{"function_call": {"id": "c1", "name": "weather", "args": {"city": "Rome"}}}]}
    told = {"role": "user", "parts": [{"function_response": {"id": "c1", "name": "weather", "response": {"t": 21}}}]}
    said = {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "It is warm."}]}
    spans = [span(1, [asked], called), span(3, [asked, called, told], said)]
    recorded = opened(tmp_path / "t.json", document(spans))
    assert [message.role for message in recorded.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert list(calls(recorded)["tool"]) == ["weather"]
    assert recorded.messages[-1].content == "It is warm."
    assert recorded.usage == {"input_tokens": 10}
    assert recorded.lost == {}


def test_spans_without_contents_are_counted(tmp_path: Path) -> None:
    turn = agents_span(1, type="response", response_id="r", usage={"input_tokens": 4})
    recorded = opened(tmp_path / "t.json", document([turn, OPENAI_AGENTS[2]]))
    assert recorded.lost == {"contents of answers": 1}
    assert recorded.usage == {"input_tokens": 4}
    assert list(calls(recorded)["tool"]) == ["weather"]
    assert list(calls(recorded)["own"]) == [True]


def test_a_rollout_keeps_usage_and_thinking(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "r.jsonl", lines([*CODEX, codex_line(9, "response_item", type="new_kind")]))
    assert recorded.usage == {"input_tokens": 7, "output_tokens": 2}
    assert recorded.messages[1].reasoning == [{"text": "Ask the tool."}]
    assert recorded.lost == {"items of type new_kind": 1}


def test_a_repeated_count_of_tokens_is_counted_once_and_a_turn_may_be_aborted(tmp_path: Path) -> None:
    count = {"last_token_usage": {"input_tokens": 5}, "total_token_usage": {"total_tokens": 5}}
    counted = codex_line(9, "event_msg", type="token_count", info=count)
    aborted = codex_line(9, "event_msg", type="turn_aborted", reason="interrupted")
    marks = [codex_line(9, "event_msg", type=kind) for kind in ("task_started", "task_complete")]
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]}
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    items = [codex_line(8, "response_item", **item) for item in (asked, answer)]
    recorded = opened(tmp_path / "r.jsonl", lines([*items, counted, aborted, counted, *marks]))
    assert recorded.usage == {"input_tokens": 5}
    assert recorded.state.values == {"turn_aborted": "interrupted"}
    assert recorded.lost == {}


def test_a_session_of_pi_keeps_usage_and_the_branch_that_ends_last(tmp_path: Path) -> None:
    other = {"type": "message", "id": "5", "parentId": "1", "timestamp": at(9), "message": PI[4]["message"]}
    recorded = opened(tmp_path / "p.jsonl", lines([*PI, other]))
    assert recorded.lost == {"entries of other branches": 3}
    recorded = opened(tmp_path / "p.jsonl", lines(PI))
    assert recorded.usage == {"input_tokens": 6, "output_tokens": 2, "cache_read_tokens": 1, "cost": 0.25}


def test_the_output_of_swe_agent_is_its_patch(tmp_path: Path) -> None:
    recorded = opened(tmp_path / "x.traj", document(SWE_AGENT))
    assert (recorded.output, recorded.stop_reason) == ("a patch", "completed")


def test_a_stream_of_ag_ui_is_read_and_a_snapshot_repeats_no_result(tmp_path: Path) -> None:
    told = next(event for event in AG_UI if event["type"] == "TOOL_CALL_RESULT")
    repeated = {"id": "other", "role": "tool", "toolCallId": told["toolCallId"], "content": told["content"]}
    events = [*AG_UI[:-1], {"type": "MESSAGES_SNAPSHOT", "messages": [repeated]}, AG_UI[-1]]
    stream = b"".join(b"event: message\ndata: %b\n\n" % json.dumps(event).encode() for event in events)
    recorded = opened(tmp_path / "run.txt", stream + b"data: [DONE]\n\n")
    assert recorded.imported["format"] == "AG-UI"
    assert [message.role for message in recorded.messages] == ["user", "assistant", "tool", "assistant"]
    assert recorded.lost == {}


# -- LangGraph, states of runs -----------------------------------------------------------------------------------------


def packed(name: str, fields: Any) -> msgspec.msgpack.Ext:
    """Return an object as LangGraph packs it: the names of its module and its class, and its fields."""
    return msgspec.msgpack.Ext(5, msgspec.msgpack.encode(["no_such_module", name, fields, "model_validate_json"]))


def checkpoints(path: Path) -> Path:
    """Write the database of a checkpointer: a run that stopped at a question, which a person answered."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(
            "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT,"
            " parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB)"
        )
        database.execute(
            "CREATE TABLE writes (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, task_id TEXT, idx INTEGER,"
            " channel TEXT, type TEXT, value BLOB)"
        )
        for number in (1, 2, 3, 4):
            said = [packed("Message", message) for message in LANGCHAIN[:number]]
            state = {"v": 4, "ts": at(number), "id": f"{number}", "channel_values": {"messages": said}}
            row = ("t", "", f"{number}", None, "msgpack", msgspec.msgpack.encode(state), b"")
            database.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        asked = {"value": {"action_requests": [{"name": "weather", "args": {}, "description": "May it?"}]}}
        answered = {"decisions": [{"type": "approve"}]}
        for channel, value in (("__interrupt__", [packed("Interrupt", asked)]), ("__resume__", [answered])):
            written = ("t", "", "2", "k", 0, channel, "msgpack", msgspec.msgpack.encode(value))
            database.execute("INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", written)
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


async def test_a_database_of_a_checkpointer_opens_with_the_decision_of_a_person(tmp_path: Path) -> None:
    path = checkpoints(tmp_path / "threads.sqlite")
    before = path.read_bytes()
    recorded = agentnb.replay(path)
    assert recorded.lost == {}
    assert list(decisions(path)["by"]) == ["human"]
    assert list(calls(path)["result"]) == ["21 degrees"]
    question = next(event.seq for event in recorded.recording if event.type == "approval_request")
    run = recorded.fork(at=question, decision="reject", loop=SessionLoop(ScriptedLLM(["As you wish."])))
    assert await run == "As you wish."
    assert path.read_bytes() == before


def test_a_damaged_database_is_refused_or_read_in_part(tmp_path: Path) -> None:
    path = checkpoints(tmp_path / "threads.sqlite")
    data = path.read_bytes()
    with pytest.raises(RecordingCorrupt, match="damaged database"):
        opened(path, data[: len(data) // 2])


def test_the_values_of_a_state_and_an_interrupt_of_another_kind(tmp_path: Path) -> None:
    states = [langgraph_state(1, LANGCHAIN[:2], interrupts=["Interrupt(...)"])]
    states[0]["values"]["plan"] = "look"
    recorded = opened(tmp_path / "s.json", document(states))
    assert recorded.state.values == {"values": {"plan": "look"}}
    assert recorded.lost == {"interrupts of other kinds": 1}


async def test_a_graph_without_messages_has_its_values_at_each_state(tmp_path: Path) -> None:
    states = [langgraph_state(number, []) for number in (3, 2, 1)]
    for state, value in zip(states, ("two", "one", "one"), strict=True):
        state["values"]["step"] = value
    recorded = opened(tmp_path / "s.json", document(states))
    changes = [event for event in recorded.recording if event.type == "state_update"]
    assert [event.values for event in changes] == [{"values": {"step": "one"}}, {"values": {"step": "two"}}]
    assert [event.untimed for event in changes] == [False, False]
    loop = SessionLoop(ScriptedLLM(["Hello."]))
    with pytest.raises(UsageError, match=r"It has no message yet: run\.steer"):
        recorded.fork(at=1, loop=loop).preview()
    run = recorded.fork(at=1, loop=loop)
    run.steer("Hi")
    assert await run == "Hello."


def test_a_saved_run_of_openai_agents_waits_at_its_question(tmp_path: Path) -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}
    state = {
        "$schemaVersion": "1.21",
        "current_agent": {"name": "a"},
        "original_input": "How warm is it?",
        "model_responses": [{"output": [item], "usage": {"input_tokens": 3, "output_tokens": 1}}],
        "generated_items": [{"type": "tool_call_item", "raw_item": item}],
        "current_step": {"data": {"interruptions": [{"raw_item": item}]}},
    }
    recorded = opened(tmp_path / "state.json", document(state))
    assert [pending.name for pending in recorded.pending] == ["weather"]
    assert recorded.usage == {"input_tokens": 3, "output_tokens": 1}


# -- continuing --------------------------------------------------------------------------------------------------------


async def test_the_recorded_tools_answer_the_calls_of_a_fork(tmp_path: Path) -> None:
    path = written(tmp_path, "Claude Code")
    recorded = agentnb.replay(path)
    answer = next(event.seq for event in recorded.recording if event.type == "model_end")
    run = recorded.fork(at=answer, loop=SessionLoop(ScriptedLLM(["Warm."]), Recorded(path).tools))
    await run
    assert [message.content for message in run.messages][-2:] == ["21 degrees", "Warm."]


async def test_a_fork_continues_with_another_result(tmp_path: Path) -> None:
    recorded = agentnb.replay(written(tmp_path, "ATIF"))
    end = next(event.seq for event in recorded.recording if event.type == "call_end")
    llm = ScriptedLLM(["Cold."])
    run = recorded.fork(at=end, result="3 degrees", loop=SessionLoop(llm))
    assert await run == "Cold."
    assert llm.requests[0].messages[-1]["content"] == "3 degrees"
    assert llm.requests[0].messages[0]["content"] == "Be short."


# -- folders, stores, other formats ------------------------------------------------------------------------------------


def test_a_folder_and_a_pattern_are_read_without_the_files_that_cannot_be(tmp_path: Path) -> None:
    written(tmp_path, "ATIF")
    written(tmp_path, "Claude Code")
    assert set(calls(str(tmp_path / "*.json*"))["run"]) == {"trajectory", "session"}
    (tmp_path / "notes.txt").write_text("no recording")
    with pytest.raises(StorageError, match=r"is a folder\. The tables of agentnb.analysis and Store.add read"):
        agentnb.replay(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"notes\.txt is left out: it is not a snapshot"):
        assert len(calls(tmp_path)) == 2
    store = Store(tmp_path / ".runs.db")
    with pytest.warns(RuntimeWarning, match=r"notes\.txt is left out"):
        assert len(store.add(tmp_path)) == 2
    store.close()
    with pytest.raises(RecordingMissing):
        calls(str(tmp_path / "*.none"))


def test_a_thousand_files_are_added_to_a_store_in_time(tmp_path: Path) -> None:
    rounds = [CHAT[0], *(message for _ in range(5) for message in CHAT[1:])]
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number:04}.json").write_bytes(document([*rounds, {"role": "user", "content": str(number)}]))
    store = Store(tmp_path / "runs.db")
    began = time.perf_counter()
    assert len(store.add(folder)) == 100
    assert time.perf_counter() - began < 10
    store.close()


class Haiku:
    """A format of another package."""

    name = "haiku"

    def recognises(self, file: ForeignFile) -> bool:
        return file.data.startswith(b"haiku")

    def read(self, file: ForeignFile) -> Iterator[Event]:
        writer = Writer(file.lost, name="poet")
        yield from writer.message(Message(role="user", content="A poem."))
        yield from writer.answer(Answer(calls=[Call("c", "rhyme", {"word": "moon"})]))
        yield from writer.result("c", "June")


def test_another_package_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("haiku", "tests.importers.test_importers:HAIKU", importers.GROUP)
    broken = EntryPoint("broken", "no_such_module:x", importers.GROUP)
    monkeypatch.setattr(importers, "entry_points", lambda group: [broken, point])
    with pytest.warns(RuntimeWarning, match="'broken' cannot be loaded"):
        recorded = opened(tmp_path / "x.haiku", b"haiku")
    assert list(calls(recorded)["tool"]) == ["rhyme"]
    assert recorded.imported["format"] == "haiku"


HAIKU = Haiku()


def test_a_file_of_no_known_format_is_refused_with_the_formats_that_are(tmp_path: Path) -> None:
    for content in (b"", b"text", b"{}", b"[]", b"[1]", b'{"a": 1}\n{"b": 2}\n', b"\x00\x01"):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(RecordingCorrupt, match="is not a snapshot, nor a recording of ATIF, Claude Code, Inspect"):
            agentnb.replay(tmp_path / "x")


def test_a_log_of_inspect_compressed_with_zstandard_opens_or_names_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "log.eval"
    sample = document(inspect_sample(INSPECT_EVENTS))
    packed = zstandard.ZstdCompressor().compress(sample)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        file.writestr("samples/1_epoch_1.json", packed)
        file.writestr("header.json", "{}")
    data = bytearray(archive.getvalue())
    data[8:10] = (93).to_bytes(2, "little")  # the method of the first member, there and in the directory
    place = data.index(b"PK\x01\x02") + 10
    data[place : place + 2] = (93).to_bytes(2, "little")
    for place in (22, data.index(b"PK\x01\x02") + 24):  # the size of its content
        data[place : place + 4] = len(sample).to_bytes(4, "little")
    path.write_bytes(data)
    assert [event.type for event in Snapshot.load(path).events].count("model_end") == 2
    path.write_bytes(bytes(data).replace(packed[-20:], bytes(20)))
    with pytest.raises(RecordingCorrupt, match="its compression is damaged"):
        Snapshot.load(path)
    place = data.index(b"PK\x01\x02") + 24
    path.write_bytes(data[:place] + (9).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(RecordingCorrupt, match="larger than the archive says"):
        Snapshot.load(path)
    for library in ("zstandard", "backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, library, None)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="pip install zstandard"):
        Snapshot.load(path)
