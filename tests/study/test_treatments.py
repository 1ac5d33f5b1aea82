"""A study that continues compares the treatment of each arm with what its runs have recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Agent, ConversationEngine, SessionLoop, UsageError, tool
from agentnb.analysis import runs
from agentnb.testing import ScriptedLLM
from tests.worlds import until


def read(path: str) -> str:
    """Read a file."""
    return path


def scripted(model: str = "script") -> ScriptedLLM:
    llm = ScriptedLLM(["done"], repeat=True)
    llm.model = model
    return llm


def reader(description: str) -> Any:
    return tool(read, description=description)


def session(model: str = "script", **changed: Any) -> Callable[[], SessionLoop]:
    return lambda: SessionLoop(scripted(model), **changed)


def of_agent(prompt: str) -> Callable[[], SessionLoop]:
    return lambda: SessionLoop(scripted(), [Agent(scripted(), system_prompt=prompt, name="helper")])


def of_engine(prompt: str) -> Callable[[], ConversationEngine]:
    return lambda: ConversationEngine(execute=SessionLoop(scripted(), system_prompt=prompt, name="worker"))


async def study(path: Path, make_loop: Any, repeats: int = 1, **options: Any) -> agentnb.Study:
    return await agentnb.study(
        make_loop, ["go"], repeats, store=path / "runs.db", name="pilot", progress=False, **options
    )


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (session(system_prompt="old"), session(system_prompt="new"), "system prompt was 'old' and is 'new'"),
        (session(), session(tools=[reader("Read.")]), "tools was empty and is"),
        (session(tools=[reader("Read.")]), session(tools=[reader("Look.")]), "tool read was"),
        (session(), session(model="larger"), "model was .*script.* and is .*larger"),
        (session(), session(max_turns=3), "setting max_turns was empty and is 3"),
        (of_agent("old"), of_agent("new"), "system prompt of helper was 'old' and is 'new'"),
        (of_engine("old"), of_engine("new"), "system prompt of worker was 'old' and is 'new'"),
    ],
    ids=["prompt", "tools", "description", "model", "setting", "sub-agent", "executor"],
)
async def test_a_loop_that_was_changed_is_refused(tmp_path: Path, before: Any, now: Any, named: str) -> None:
    await study(tmp_path, before)
    with pytest.raises(UsageError, match=named):
        await study(tmp_path, now, 2)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"approve": True}, {"approve": False}),
        ({}, {"limits": {"turns": 1}}),
        ({"limits": {"turns": 2}}, {"limits": {"turns": 2}, "on_limit": "ask"}),
        ({}, {"options": {"temperature": 1}}),
    ],
    ids=["approve", "limits", "on_limit", "options"],
)
async def test_options_that_were_changed_are_refused(tmp_path: Path, before: Any, now: Any) -> None:
    await study(tmp_path, session(), **before)
    with pytest.raises(UsageError, match=f"{list(now)[-1]} was"):
        await study(tmp_path, session(), 2, **now)


async def test_the_value_behind_the_label_of_an_arm_is_compared(tmp_path: Path) -> None:
    def make_loop(size: int) -> SessionLoop:
        return SessionLoop(scripted())  # what the tools do with the size cannot be seen in the loop

    await study(tmp_path, make_loop, arms={"size": {"small": 1}})
    with pytest.raises(UsageError, match="the value of size was 1 and is 2"):
        await study(tmp_path, make_loop, arms={"size": {"small": 2}})


async def test_another_treatment_that_is_added_is_told_apart_by_a_column(tmp_path: Path) -> None:
    await study(tmp_path, session(system_prompt="old"))
    added = await study(tmp_path, session(system_prompt="new"), 2, add=True)
    assert list(runs(added).outcome) == ["done", "done"]
    assert runs(added).treatment.nunique() == 2


async def test_an_unfinished_run_of_another_treatment_is_not_continued(tmp_path: Path) -> None:
    @tool(approve=True)
    def send(to: str) -> str:
        return to

    def asking(prompt: str) -> Callable[[], SessionLoop]:
        llm = ScriptedLLM([agentnb.testing.call("send", {"to": "Ada"}), "done"])
        return lambda: SessionLoop(llm, [send], system_prompt=prompt)

    left = agentnb.study(asking("old"), ["go"], store=tmp_path / "runs.db", name="pilot", progress=False).start()
    await until(lambda: left.counts["waiting"] == 1)
    before = left.runs[0].id
    left.cancel()
    await left
    added = agentnb.study(
        asking("new"), ["go"], store=tmp_path / "runs.db", name="pilot", add=True, progress=False, approve=True
    )
    assert added.counts["not started"] == 1
    await added
    assert added.runs[0].id != before
