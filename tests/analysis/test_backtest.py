"""A policy, tried on what people have decided."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from agentnb import UsageError
from agentnb.analysis import backtest
from tests.analysis.recordings import decided_run, researcher


@pytest.fixture(scope="module")
def run() -> Any:
    return asyncio.run(decided_run())


def compared(approve: Any, run: Any, **options: Any) -> dict[str, str]:
    return {one.call_id: one.compared for one in backtest(approve, run, **options).decisions}


def test_a_policy_that_approves_everything_misses_what_a_person_stopped_or_changed(run: Any) -> None:
    tried = backtest(True, run)
    assert compared(True, run) == {"w0": "agrees", "w1": "missed", "w2": "missed", "w3": "agrees"}
    assert (tried.prompts, tried.saved, tried.agreement) == (4, 4, 0.5)
    assert [one.call_id for one in tried.missed] == ["w1", "w2"]


def test_a_policy_that_rejects_everything_refuses_what_a_person_let_run(run: Any) -> None:
    assert compared(False, run) == {"w0": "refused", "w1": "agrees", "w2": "refused", "w3": "refused"}


def test_what_it_asks_about_is_neither_right_nor_wrong(run: Any) -> None:
    tried = backtest([{"tool": "write", "arguments": {"path": "a"}, "decision": "approve"}], run)
    assert (tried.saved, tried.agreement, len(tried.missed), len(tried.refused)) == (1, 1.0, 0, 0)
    assert tried.seconds_saved == tried.decisions[0].waited


def test_an_edit_agrees_where_it_comes_to_the_same_arguments(run: Any) -> None:
    def edits(call: Any) -> Any:
        return {"arguments": {"path": "d", "content": "x"}} if call.arguments["path"] == "c" else None

    assert compared(edits, run)["w2"] == "agrees"
    assert compared(lambda call: {"arguments": {"path": "e"}}, run)["w2"] == "missed"


def test_a_policy_may_be_async(run: Any) -> None:
    async def policy(call: Any) -> bool:
        return call.arguments["path"] != "b"

    assert compared(policy, run) == {"w0": "agrees", "w1": "agrees", "w2": "missed", "w3": "agrees"}


def test_rules_on_what_a_tool_touches_need_the_loop(run: Any) -> None:
    rule = [{"needs": "disk", "decision": "reject"}]
    assert set(compared(rule, run).values()) == {"asks"}
    assert set(compared(rule, run, loop=researcher()).values()) == {"refused", "agrees"}


async def test_a_decision_that_was_taken_back_does_not_count() -> None:
    run = researcher().start("Look.", approve=[{"tool": "read", "decision": "approve"}])
    await run.step("call")
    while not run.pending:
        await run.step()
    run.pause()
    run.approve("w0")
    run.undo("w0")
    run.reject("w0", reason="no")
    held = [(one.call_id, one.person) for one in backtest(True, run).decisions]
    assert held == [("w0", "reject")]
    run.cancel()


def test_a_table_of_it_has_a_row_for_each_decision(run: Any) -> None:
    table = backtest(True, run).frame
    assert table.person.tolist() == ["approve", "reject", "edit", "approve"]
    assert set(table.policy) == {"approve"}
    assert list(table.attrs["columns"]) == list(table.columns)


async def test_where_nobody_was_asked_there_is_nothing_to_agree_with() -> None:
    run = researcher().start("Look.", approve=True)
    await run
    tried = backtest(True, run)
    assert tried.prompts == 0
    assert math.isnan(tried.agreement)
    assert "nobody was asked" in repr(tried)


def test_it_says_what_it_comes_to(run: Any) -> None:
    assert "4 of 4 questions saved" in repr(backtest(True, run))
    assert "50% as the person decided, 2 missed, 0 refused" in repr(backtest(True, run))


@pytest.mark.parametrize("nothing", [None, 3, "yes"])
def test_what_is_no_policy_is_refused(run: Any, nothing: Any) -> None:
    with pytest.raises(UsageError):
        backtest(nothing, run)
