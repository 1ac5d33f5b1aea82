"""`%restore` and `attach` keep the policy and the limits of the run, as `restore` does."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Run, Store, notebook, restore
from agentnb.errors import LimitReached, RunCancelled
from tests.run.test_kept_policy import RULES, loop, ran, stops

Again = Callable[[Store], Run]


def by_snapshot(store: Store) -> Run:
    return notebook.restore("half way", loop(first=1))


def by_name(store: Store) -> Run:
    return notebook.restore("x", loop(first=1))


def attached(store: Store) -> Run:
    return agentnb.attach("x", loop(first=1), store=store)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "runs.db")
    yield store
    store.close()


async def left(store: Store, approve: Any = None, **options: Any) -> None:
    """Leave a run in the store, and a snapshot of it, as a kernel does that has ended."""
    other = Store(store.path.with_name("other.sqlite"))
    run = await ran(approve, store=other, name="x", **options)
    run.snapshot("half way")
    other.export(store.path.with_name("left.jsonl"))
    run.cancel()
    with contextlib.suppress(RunCancelled):
        await run
    other.close()
    store.import_(store.path.with_name("left.jsonl"))


@pytest.mark.parametrize("again", [by_snapshot, by_name, attached])
@pytest.mark.parametrize(("approve", "waits"), [(RULES, ["c1"]), (True, []), (None, [])], ids=str)
async def test_a_resumed_run_keeps_its_rules_and_its_approval_of_all_calls(
    again: Again, approve: Any, waits: list[str], store: Store
) -> None:
    await left(store, approve)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = again(store)
    assert run.state.approve == approve
    assert await stops(run) == waits
    run.cancel()


@pytest.mark.parametrize("again", [by_snapshot, by_name, attached])
async def test_a_resumed_run_keeps_its_limits(again: Again, store: Store) -> None:
    await left(store, limits={"turns": 2})
    with pytest.raises(LimitReached, match="2 turns"):
        await again(store)


@pytest.mark.parametrize("again", [by_snapshot, by_name, attached])
async def test_a_warning_names_a_lost_policy_function_and_calls_need_approval(again: Again, store: Store) -> None:
    def careful(call: Any) -> bool:
        return True

    await left(store, careful)
    with pytest.warns(UserWarning, match=r"careful.*until approve= is given again"):
        run = again(store)
    assert await stops(run) == ["c1"]
    assert "careful" in run.pending[0].reason
    run.cancel()


async def test_a_policy_passed_to_attach_decides(store: Store) -> None:
    await left(store, lambda call: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = agentnb.attach("x", loop(first=1), store=store, approve=lambda call: False)
    assert await run == "done"
    assert [event.outcome for event in run.events if event.type == "call_end"] == ["returned", "rejected", "rejected"]


async def test_each_run_whose_policy_is_lost_is_named(store: Store) -> None:
    def careful(call: Any) -> bool:
        return True

    snapshots = []
    for name in ("one", "two"):
        run = loop().start("go", approve=careful, name=name)
        await run.step("turn")
        snapshots.append(run.snapshot())
        run.cancel()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")  # as in Python: the same text at the same place is shown once
        for snapshot in snapshots:
            restore(snapshot, loop()).cancel()
    assert [name in str(one.message) for one, name in zip(told, ("one", "two"), strict=True)] == [True, True]
