"""The file of a recording alone says which model, which options, who decided, what was shown, and how long."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import agentnb
from agentnb import Agent, Snapshot, tool
from agentnb.analysis import calls, decisions, messages
from agentnb.core.events import ApprovalRequest, ModelStart
from agentnb.run.approvals.decisions import decided_by_person
from agentnb.testing import ScriptedLLM, call


@tool
def look(path: str) -> str:
    return f"{path}: 3 rows"


@tool(approve=True)
def delete(path: str) -> str:
    return f"{path} is gone"


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """The file of a run in which a rule, a person with a name, code and a remembered decision have decided."""
    turns = [
        [call("look", {"path": "a"}, id="c0"), call("delete", {"path": "a"}, id="c1")],
        [call("delete", {"path": "b"}, id="c2")],
        [call("delete", {"path": "c"}, id="c3")],
        "Done.",
    ]
    rules = [{"tool": "look", "decision": "approve"}, {"decision": "ask"}]
    run = Agent(ScriptedLLM(turns), [look, delete]).start("Tidy up.", approve=rules)
    while not run.pending:
        await run.step("turn")
    decided_by_person(run, 1.5).approve(run.pending[0], reviewer="Ada")  # as the panel does with a click
    while not run.pending:
        await run.step("turn")
    run.approve("c2", remember="tool")
    await run
    return Path(run.snapshot().save(tmp_path / "run.json"))


async def test_a_recording_contains_the_model_and_options_of_each_request(file: Path) -> None:
    requests = [event for event in agentnb.replay(file).recording if isinstance(event, ModelStart)]
    assert {(request.provider, request.model) for request in requests} == {("scripted", "script")}
    assert all(request.options["tools"] == ["look", "delete"] for request in requests)
    answers = messages(Snapshot.load(file)).query("role == 'assistant'")
    assert set(answers["model_asked"]) == {"script"}


async def test_a_recording_contains_who_decided_about_each_call(file: Path) -> None:
    table = calls(Snapshot.load(file)).set_index("call_id")
    assert table["by"].to_dict() == {"c0": "rule", "c1": "human", "c2": "code", "c3": "remembered"}


async def test_a_recording_contains_the_person_and_the_seconds_until_the_click(file: Path) -> None:
    table = decisions(Snapshot.load(file)).set_index("call_id")
    assert table.loc["c1", ["reviewer", "took"]].tolist() == ["Ada", 1.5]
    assert pd.isna(table.loc["c2", "took"])  # code is not shown the question


async def test_a_recording_contains_what_was_shown_for_each_decision(file: Path) -> None:
    snapshot = Snapshot.load(file)
    asked = {event.seq: event for event in snapshot.events if isinstance(event, ApprovalRequest)}
    table = decisions(snapshot).set_index("call_id")
    question = asked[int(table.loc["c1", "question"])]
    assert (question.name, question.arguments) == ("delete", {"path": "a"})
    assert len(table.loc["c1", "shown"]) == 64  # the digest of all that was on the screen


async def test_a_recording_contains_the_duration_of_each_call(file: Path) -> None:
    assert (calls(Snapshot.load(file))["took"] >= 0).all()
