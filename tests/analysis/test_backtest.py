"""A policy is compared with the recorded decisions of people."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentnb import SessionLoop, Snapshot, UsageError, tool
from agentnb.analysis import backtest
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallEnd, CallProposed, RunStart, ToolCall
from agentnb.testing import ScriptedLLM, call
from tests.analysis.recordings import researcher
from tests.worlds import until

PERSON = ("approve", "reject", "edit", "edit again", "replace", "answer")
POLICY = ("approve", "reject", "edit", "edit again", "ask")
RUNS_AFTER = {"approve": "as proposed", "edit": "edited", "edit again": "edited again"} | dict.fromkeys(
    ("reject", "replace", "answer")
)
"""The part of the call that runs after each decision, None if the call does not run."""
PROPOSED: dict[str, Any] = {
    "approve": lambda call: True,
    "reject": lambda call: False,
    "edit": lambda call: {"arguments": {**call.arguments, "edited": 1}},
    "edit again": lambda call: {"arguments": {**call.arguments, "edited": 2}},
    "ask": lambda call: None,
}


def recorded(decided: list[tuple[str, str]]) -> Snapshot:
    """A recording in which a person decided thus, each time after two seconds; every other one in a loop inside."""
    events: list[Any] = [RunStart(loop="SessionLoop", name="outer"), RunStart(loop="Agent", name="in", path="in")]
    for number, (person, _) in enumerate(decided):
        where: dict[str, Any] = {"path": "in" if number % 2 else ""}
        asked: dict[str, Any] = {"call_id": "again", "name": "write", "arguments": {"n": number}}
        edited = {"n": number, "edited": 2 if person == "edit again" else 1} if person[:4] in ("edit", "repl") else None
        word: Any = person.split()[0]
        events += [
            CallProposed(call=ToolCall(id="again", name="write", arguments=asked["arguments"]), **where),
            ApprovalRequest(**asked, **where),
            ApprovalDecision(call_id="again", decision=word, arguments=edited, **where),
            CallEnd(call_id="again", **where),
        ]
    stamped = [event.model_copy(update={"seq": n, "run_id": "r", "time": 2.0 * n}) for n, event in enumerate(events)]
    return Snapshot.of(stamped)


def compared(approve: Any, run: Any, **options: Any) -> dict[str, str]:
    return {one.call_id: one.compared for one in backtest(approve, run, **options).decisions}


def test_a_policy_that_approves_all_calls_misses_rejections_and_edits(run: Any) -> None:
    tried = backtest(True, run)
    assert compared(True, run) == {"w0": "agrees", "w1": "missed", "w2": "missed", "w3": "agrees"}
    assert (tried.prompts, tried.saved, tried.agreement) == (4, 4, 0.5)
    assert [one.call_id for one in tried.missed] == ["w1", "w2"]


def test_a_policy_that_rejects_all_calls_refuses_approved_calls(run: Any) -> None:
    assert compared(False, run) == {"w0": "refused", "w1": "agrees", "w2": "refused", "w3": "refused"}


def test_a_call_that_the_policy_leaves_to_a_person_does_not_count(run: Any) -> None:
    tried = backtest([{"tool": "write", "arguments": {"path": "a"}, "decision": "approve"}], run)
    assert (tried.saved, tried.agreement, len(tried.missed), len(tried.refused)) == (1, 1.0, 0, 0)
    assert tried.seconds_saved == tried.decisions[0].waited


def test_an_edit_agrees_if_it_results_in_the_same_arguments(run: Any) -> None:
    def edits(call: Any) -> Any:
        return {"arguments": {"path": "d", "content": "x"}} if call.arguments["path"] == "c" else None

    assert compared(edits, run)["w2"] == "agrees"
    assert compared(lambda call: {"arguments": {"path": "e"}}, run)["w2"] == "missed"


def test_a_policy_may_be_async(run: Any) -> None:
    async def policy(call: Any) -> bool:
        return call.arguments["path"] != "b"

    assert compared(policy, run) == {"w0": "agrees", "w1": "agrees", "w2": "missed", "w3": "agrees"}


def test_rules_on_needs_require_the_loop(run: Any) -> None:
    rule = [{"needs": "disk", "decision": "reject"}]
    assert set(compared(rule, run).values()) == {"asks"}
    assert set(compared(rule, run, loop=researcher()).values()) == {"refused", "agrees"}


async def test_the_policy_sees_the_tools_of_nested_loops() -> None:
    @tool(approve=True, needs="network")
    async def fetch() -> str:
        return "fetched"

    worker = SessionLoop(ScriptedLLM([[call("fetch", id="f1")], "done"]), [fetch], name="worker")
    boss = SessionLoop(ScriptedLLM([[call("worker", {"input": "go"}, id="c1")], "done"]), [worker], name="boss")
    run = boss.start("go")
    run.play()
    await until(lambda: run.pending)
    run.approve("f1")
    await run
    assert compared([{"needs": "network", "decision": "reject"}], run, loop=boss) == {"f1": "refused"}


def test_a_policy_cannot_change_the_recording(run: Any) -> None:
    backtest(lambda call: call.arguments.clear(), run)
    assert [one.arguments for one in backtest(True, run).decisions] == [
        {"path": "a"}, {"path": "b"}, {"path": "c"}, {"path": "/etc/passwd"},
    ]  # fmt: skip


def test_a_failing_policy_or_an_invalid_edit_leaves_the_call_to_the_person(run: Any) -> None:
    assert set(compared(lambda call: call.arguments["no such argument"], run).values()) == {"asks"}
    assert set(compared(lambda call: {"arguments": {"where": "e"}}, run, loop=researcher()).values()) == {"asks"}


def test_the_repr_shows_the_error_of_a_failing_policy(run: Any) -> None:
    tried = backtest(lambda call: call.arguments["path"] != "c" or call.arguments["no such argument"], run)
    assert [one.arguments for one in tried.failed] == [{"path": "c"}]
    assert "the policy failed at 1 of them, first with KeyError: 'no such argument'>" in repr(tried)
    assert "failed" not in repr(backtest(lambda call: None, run))


@given(st.lists(st.tuples(st.sampled_from(PERSON), st.sampled_from(POLICY)), max_size=12))
def test_the_counts_agree_with_a_brute_force_comparison(decided: list[tuple[str, str]]) -> None:
    """Compare by brute force, call by call, what ran and what would run under the policy."""
    tried = backtest(lambda call: PROPOSED[decided[call.arguments["n"]][1]](call), recorded(decided))
    runs = [(RUNS_AFTER[person], RUNS_AFTER[policy]) for person, policy in decided if policy != "ask"]
    assert (tried.prompts, tried.saved) == (len(decided), len(runs))
    assert len(tried.missed) == sum(now is not None and now != then for then, now in runs)
    assert len(tried.refused) == sum(now is None and then is not None for then, now in runs)
    assert tried.agreement == pytest.approx(sum(a == b for a, b in runs) / len(runs) if runs else math.nan, nan_ok=True)
    assert tried.seconds_saved == pytest.approx(2.0 * len(runs))


async def test_an_undone_decision_does_not_count() -> None:
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


def test_the_table_has_a_row_for_each_decision(run: Any) -> None:
    table = backtest(True, run).frame
    assert table.person.tolist() == ["approve", "reject", "edit", "approve"]
    assert set(table.policy) == {"approve"}
    assert list(table.attrs["columns"]) == list(table.columns)


async def test_without_recorded_decisions_the_agreement_is_nan() -> None:
    run = researcher().start("Look.", approve=True)
    await run
    tried = backtest(True, run)
    assert tried.prompts == 0
    assert math.isnan(tried.agreement)
    assert "nobody was asked" in repr(tried)


def test_the_repr_shows_the_result(run: Any) -> None:
    assert "4 of 4 questions saved" in repr(backtest(True, run))
    assert "50% as the person decided, 2 missed, 0 refused" in repr(backtest(True, run))


@pytest.mark.parametrize("nothing", [None, 3, "yes"])
def test_a_value_that_is_not_a_policy_is_refused(run: Any, nothing: Any) -> None:
    with pytest.raises(UsageError):
        backtest(nothing, run)
