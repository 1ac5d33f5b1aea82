"""The tree of what was tried: which run was forked from which, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentnb import Store
from agentnb.analysis import branches
from tests.analysis.recordings import researcher


@pytest.fixture
async def three() -> list[Any]:
    """A run, two forks of it, and a fork of one of these."""
    run = researcher().start("go", name="first", approve=True)
    await run
    ends = [event.seq for event in run.events if event.type == "call_end"]
    late = run.fork(ends[3], result="changed", loop=researcher(), name="late", approve=True)
    early = run.fork(ends[0], result="changed", loop=researcher(), name="early", approve=True)
    await late
    await early
    deeper = early.fork(ends[0] + 2, loop=researcher(), name="deeper", approve=True)
    await deeper
    return [run, late, early, deeper]


def shape(tree: Any) -> Any:
    return [(branch.name, shape(branch.forks)) for branch in tree]


async def test_forks_stand_under_what_they_depart_from_in_the_order_of_where(three: list[Any]) -> None:
    assert shape(branches(three)) == [("first", [("early", [("deeper", [])]), ("late", [])])]
    assert shape(branches(reversed(three))) == shape(branches(three))


async def test_a_fork_of_what_is_not_there_stands_by_itself(three: list[Any]) -> None:
    assert shape(branches(three[1:])) == [("late", []), ("early", [("deeper", [])])]


async def test_a_store_has_its_tree(three: list[Any], tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    for run in three:
        store.record_run(run.id, run.name, "SessionLoop", run.events)
    assert shape(branches(store)) == shape(branches(three))
    store.close()


async def test_as_text_it_is_a_tree(three: list[Any]) -> None:
    lines = str(branches(three)).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "first",
        f"├─ at {three[2].events[0].forked_from.split('@')[1]}: early",
        f"│  └─ at {three[3].events[0].forked_from.split('@')[1]}: deeper",
        f"└─ at {three[1].events[0].forked_from.split('@')[1]}: late",
    ]
    assert all("completed: It is done." in line for line in lines)


async def test_in_a_cell_what_was_said_is_no_markup() -> None:
    run = researcher(answer="<b>done</b>\u202e").start("go", name="<script>", approve=True)
    await run
    page = branches(run)._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<b>" not in page
    assert "\u202e" not in page
