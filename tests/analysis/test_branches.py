"""The tree of forks: which run was forked from which, and at which event."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentnb import Snapshot, Store
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


async def test_forks_are_below_their_origin_in_the_order_of_their_events(three: list[Any]) -> None:
    assert shape(branches(three)) == [("first", [("early", [("deeper", [])]), ("late", [])])]
    assert shape(branches(reversed(three))) == shape(branches(three))


async def test_a_fork_without_its_origin_is_a_root(three: list[Any]) -> None:
    assert shape(branches(three[1:])) == [("late", []), ("early", [("deeper", [])])]


async def test_the_tree_of_a_store_has_all_its_runs(three: list[Any], tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    for run in three:
        store.record_run(run.id, run.name, "SessionLoop", run.events)
    assert shape(branches(store)) == shape(branches(three))
    store.close()


async def test_the_text_form_is_a_tree(three: list[Any]) -> None:
    lines = str(branches(three)).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "first",
        f"├─ at {three[2].events[0].forked_from.split('@')[1]}: early",
        f"│  └─ at {three[3].events[0].forked_from.split('@')[1]}: deeper",
        f"└─ at {three[1].events[0].forked_from.split('@')[1]}: late",
    ]
    assert all("completed: It is done." in line for line in lines)


async def test_recorded_text_in_a_tree_is_escaped_in_html() -> None:
    run = researcher(answer="<b>done</b>\u202e").start("go", name="<script>", approve=True)
    await run
    page = branches(run)._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<b>" not in page
    assert "\u202e" not in page


async def test_of_several_snapshots_of_a_run_the_tree_shows_the_longest(three: list[Any]) -> None:
    run = three[0]
    (branch,) = branches([run.at(3).snapshot("early"), run, run.at(5).snapshot("later")])
    assert (branch.name, branch.events) == ("first", len(run.events))


async def test_a_tree_of_a_thousand_levels_is_shown(three: list[Any]) -> None:
    start = three[0].events[0]
    chain = [start.model_copy(update={"run_id": f"r{n}", "forked_from": f"r{n - 1}@0"}) for n in range(2000)]
    tree = branches([Snapshot.of([event]) for event in chain])
    assert str(tree).splitlines()[-1].endswith("└─ at 0: r1999, 1 events, open")
    page = tree._repr_html_()
    assert page.count("<ul>") == page.count("</ul>") == page.count("<li>") == page.count("</li>") == 2000


async def test_forks_are_nested_lists_in_html(three: list[Any]) -> None:
    page = re.sub(">[^<]*<", "><", branches(three)._repr_html_())
    item = "<ul><li>{}</li></ul>"
    assert page == item.format("<ul><li><ul><li></li></ul></li><li></li></ul>")


def test_an_empty_store_is_shown_as_no_recordings(tmp_path: Path) -> None:
    nothing = branches(Store(tmp_path / "empty.db"))
    assert (str(nothing), nothing._repr_html_()) == ("no recordings", "<p>no recordings</p>")
