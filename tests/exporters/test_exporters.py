"""Recordings in the formats of other tools: what is written is read back, and what is not carried is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import agentnb
from agentnb import Loop, SessionLoop, Snapshot, UsageError, tool
from agentnb.core.events import Event
from agentnb.errors import StorageError
from agentnb.exporters import FORMATS
from agentnb.loops.want import call as call_of
from agentnb.testing import ScriptedLLM, call
from tests.importers.files import ANTHROPIC, ATIF, CHAT, FILES, document, written

Json = dict[str, Any]


@tool(approve=True)
def weather(city: str) -> str:
    """Return the weather."""
    return f"cold in {city}"


def plain(events: Any) -> list[Json]:
    """Return events without what belongs to the file that they were read from."""
    made: list[Json] = []
    for event in events:
        fields = event.to_dict()
        for name in ("run_id", "config") if event.type == "run_start" else ("run_id",):
            fields.pop(name, None)
        made.append(fields)
    return made


def out_and_in(path: Path, format: str) -> tuple[Snapshot, Snapshot]:
    """Return the recording in a file, and what is read back after its export."""
    first = Snapshot.load(path)
    written = agentnb.replay(first).export(path.with_name("out.json"), format=format)
    return first, Snapshot.load(written.path)


@pytest.mark.parametrize(("format", "kind"), [("atif", "ATIF"), ("messages", "messages of OpenAI")])
def test_what_came_in_goes_out_and_in_again_unchanged(tmp_path: Path, format: str, kind: str) -> None:
    first, again = out_and_in(written(tmp_path, kind), format)
    assert plain(again.events) == plain(first.events)
    assert again.start.config["imported"].get("lost") is None


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("format", ["atif", "messages"])
def test_a_second_export_equals_the_first(tmp_path: Path, kind: str, format: str) -> None:
    first = agentnb.replay(written(tmp_path, kind)).export(tmp_path / "1.json", format=format)
    second = agentnb.replay(first.path).export(tmp_path / "2.json", format=format)
    assert json.loads(second.path.read_bytes()) == json.loads(first.path.read_bytes())


def test_a_trajectory_is_written_as_it_was(tmp_path: Path) -> None:
    sub: Json = {"schema_version": "ATIF-v1.7", "trajectory_id": "s", "agent": {"name": "sub", "version": "1"}}
    sub["steps"] = [{"step_id": 1, "source": "agent", "message": "cold"}]
    given = json.loads(json.dumps(ATIF)) | {"notes": "n", "extra": {"a": 1}, "final_metrics": {"total_steps": 4}}
    given["steps"][1] |= {"timestamp": "2026-01-01T10:00:00+00:00", "extra": {"b": 2}, "is_copied_context": True}
    given["steps"][2] |= {"timestamp": "2026-01-01T10:00:01+00:00", "reasoning_effort": "low"}
    given["steps"][2]["observation"]["results"][0] |= {
        "subagent_trajectory_ref": [{"trajectory_id": "weather@5"}],
        "extra": {"is_error": True},
    }
    given["steps"][2]["observation"]["results"].append({"content": "The screen is dark."})
    given["steps"][3] |= {"timestamp": "2026-01-01T10:00:02+00:00", "model_name": "other", "llm_call_count": 2}
    path = tmp_path / "given.json"
    path.write_bytes(document(given | {"subagent_trajectories": [sub | {"trajectory_id": "weather@5"}]}))
    written = agentnb.replay(path).export(tmp_path / "out.json", format="atif")
    made = json.loads(written.path.read_bytes())
    (embedded,) = made.pop("subagent_trajectories")
    (ref,) = made["steps"][2]["observation"]["results"][0].pop("subagent_trajectory_ref")
    del given["steps"][2]["observation"]["results"][0]["subagent_trajectory_ref"]
    assert made == given
    assert ref["trajectory_id"] == embedded["trajectory_id"]
    assert embedded["steps"] == sub["steps"]
    assert written.lost == {}


def test_messages_are_written_in_the_format_that_carries_them(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(document(CHAT))
    agentnb.replay(path).export(tmp_path / "out.json", format="messages")
    assert json.loads((tmp_path / "out.json").read_bytes()) == {"messages": CHAT}
    path.write_bytes(document(ANTHROPIC))
    agentnb.replay(path).export(tmp_path / "out.json", format="messages")
    made = json.loads((tmp_path / "out.json").read_bytes())
    assert made["system"] == "Be short."
    assert made["messages"][:3] == [ANTHROPIC["messages"][0], made["messages"][1], ANTHROPIC["messages"][2]]
    assert made["messages"][1]["content"] == ANTHROPIC["messages"][1]["content"]
    assert made["messages"][3]["usage"] == {"input_tokens": 15, "output_tokens": 3, "cache_read_tokens": 5}
    first, again = out_and_in(path, "messages")
    assert plain(again.events) == plain(first.events)


texts = some.text(max_size=12)
arguments = some.dictionaries(texts, some.none() | some.booleans() | some.integers(-9, 9) | texts, max_size=2)


@some.composite
def chats(draw: some.DrawFn) -> list[Json]:
    """Make a conversation in OpenAI's format."""
    chat: list[Json] = [{"role": "user", "content": draw(texts)}]
    for number in range(draw(some.integers(0, 3))):
        calls = [
            {"id": f"c{number}.{n}", "type": "function", "function": {"name": draw(texts), "arguments": draw(encoded)}}
            for n in range(draw(some.integers(0, 2)))
        ]
        answer: Json = {"role": "assistant", "content": draw(texts)}
        if draw(some.booleans()):
            answer |= {
                "usage": {"input_tokens": draw(some.integers(0, 9)), "cost": 0.5},
                "model": draw(some.sampled_from("mn")),
            }
        if draw(some.booleans()):
            answer["reasoning_content"] = draw(texts)
        if calls:
            answer["tool_calls"] = calls
        chat.append(answer)
        for one in calls:
            chat.append({"role": "tool", "tool_call_id": one["id"], "content": draw(texts)})
            if draw(some.booleans()):
                chat[-1]["is_error"] = True
        if draw(some.booleans()):
            chat.append({"role": draw(some.sampled_from(["user", "system"])), "content": draw(texts)})
    return chat


encoded = arguments.map(json.dumps) | some.just("{oh")


@settings(max_examples=40, deadline=None)
@given(chat=chats())
def test_any_conversation_goes_out_and_in_again_unchanged(chat: list[Json], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(document({"messages": chat}))
    first, again = out_and_in(path, "messages")
    assert plain(again.events) == plain(first.events)
    if not any("{oh" in json.dumps(message) for message in chat):  # a trajectory has no malformed arguments
        _, again = out_and_in(path, "atif")
        assert [without_times(one) for one in plain(again.events)] == [
            without_times(one) for one in plain(first.events)
        ]


def without_times(event: Json) -> Json:
    """Return an event without what the other of the two formats names differently."""
    return {name: value for name, value in event.items() if name not in ("time", "untimed")}


@Loop.from_generator(llm=ScriptedLLM([]))
def outer(topic: Any) -> Any:
    inner = SessionLoop(ScriptedLLM([[call("weather", {"city": "Rome"}, id="c1")], "It is cold."]), [weather])
    return (yield call_of(inner, topic))


async def test_a_run_with_a_sub_agent_and_a_decision_is_exported_and_opens(tmp_path: Path) -> None:
    run = outer.start("How warm is it?", approve=True)
    await run
    written = run.export(tmp_path / "run.json", format="atif")
    assert written.format == "ATIF"
    assert written.lost["decisions"] == 1
    assert "not carried: decisions (1)" in str(written)
    opened = agentnb.replay(written.path)
    nested = [event for event in opened.recording if event.path]
    assert [event.type for event in nested if event.type in ("model_end", "call_end", "run_end")] == [
        "model_end",
        "call_end",
        "model_end",
        "run_end",
    ]
    told = [event.result for event in nested if event.type == "call_end"]
    assert told == ["cold in Rome"]


async def test_what_a_format_cannot_carry_is_counted(tmp_path: Path) -> None:
    llm = ScriptedLLM([ConnectionError("gone"), [call("weather", {"city": "Rome"})], "Cold."])
    run = SessionLoop(llm, [weather], system_prompt="Be short.").start("How warm is it?")
    await run.step("turn")
    run.resume()
    run.steer("Hurry.")
    await run.step("turn")
    run.reject(run.pending[0], reason="no")
    await run
    for format in ("atif", "messages"):
        lost = run.export(tmp_path / "run.json", format=format).lost
        assert lost["failed requests"] == 1
        assert (lost["questions to a person"], lost["decisions"]) == (1, 1)
        opened = agentnb.replay(tmp_path / "run.json")
        opened.to(len(opened.recording) - 1)
        told = [(message.role, message.content) for message in opened.messages]
        assert told == [("system", "Be short."), *((message.role, message.content) for message in run.messages)]


async def test_an_export_is_refused_with_the_reason_and_leaves_the_old_file(tmp_path: Path) -> None:
    run = SessionLoop(ScriptedLLM(["Hello."])).start("Hi")
    with pytest.raises(UsageError, match="no events"):
        run.export(tmp_path / "run.json", format="atif")
    await run
    path = run.export(tmp_path / "run.json", format="atif").path
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"one of {', '.join(sorted(FORMATS))}, not 'csv'"):
        run.export(path, format="csv")
    with pytest.raises(UsageError, match="name the file run"):
        run.export(tmp_path / "run.eval", format="inspect")
    with pytest.raises(StorageError):
        run.export(tmp_path / "nowhere" / "run.json", format="atif")
    with pytest.raises(UsageError, match="takes the path of a file"):
        run.export("", format="atif")
    assert path.read_bytes() == before


def test_a_call_without_a_result_stays_without_one(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(document(CHAT[:3]))
    for format in ("atif", "messages"):
        first, again = out_and_in(path, format)
        assert ended(again.events) == ended(first.events)


def ended(events: tuple[Event, ...]) -> list[Any]:
    return [(event.result, event.outcome) for event in events if event.type == "call_end"]  # type: ignore[attr-defined]
