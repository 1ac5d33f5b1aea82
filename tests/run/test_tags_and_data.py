"""What a run was started with besides its input: tags, by which a store finds it, and data, which is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import SessionLoop, Snapshot, Store, UsageError, restore
from agentnb.analysis import diff
from agentnb.core.events import RunStart
from agentnb.testing import ScriptedLLM


def loop() -> SessionLoop:
    return SessionLoop(ScriptedLLM(["hello"]))


async def test_tags_and_data_are_in_the_first_event_and_survive_a_snapshot(tmp_path: Any) -> None:
    run = loop().start("go", tags=["pilot", "nile", "pilot"], data={"arm": {"dose": 5}, "seed": 7})
    await run
    kept = Snapshot.load(run.snapshot().save(tmp_path / "run.json")).events[0]
    assert isinstance(kept, RunStart)
    assert kept.tags == ["pilot", "nile"]
    assert kept.data == {"arm": {"dose": 5}, "seed": 7}


async def test_a_store_finds_the_run_by_its_tags_and_a_restored_run_does_not_add_them_again(tmp_path: Any) -> None:
    store = Store(tmp_path / "runs.db")
    run = loop().start("go", store=store, name="one", tags=["pilot"])
    await run.step("turn")
    assert [info.name for info in store.find(tag="pilot")] == ["one"]
    store.untag("one", "pilot")
    await restore(store.load("one"), loop(), store=store)
    assert store.find(tag="pilot") == []


async def test_data_are_a_copy() -> None:
    data = {"list": [1]}
    run = loop().start("go", data=data)
    data["list"].append(2)
    await run
    assert run.events[0].to_dict()["data"] == {"list": [1]}


async def test_two_runs_that_differ_only_in_tags_and_data_are_the_same_run() -> None:
    one, other = loop().start("go", tags=["a"], data={"seed": 1}), loop().start("go", tags=["b"], data={"seed": 2})
    await one
    await other
    assert not diff(one, other)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tags": "pilot"}, "tags= takes a list"),
        ({"tags": [1]}, "Each of tags="),
        ({"tags": [""]}, "Each of tags="),
        ({"data": ["dose"]}, "data= takes a mapping"),
        ({"data": {1: 2}}, "data= takes a mapping"),
        ({"data": {"tool": object()}}, "data= takes JSON values"),
    ],
)
def test_other_values_are_refused_at_the_start(options: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        loop().start("go", **options)
