"""A restored run and a fork keep the policy and the limits of the run; a function is not recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentnb import SessionLoop, Snapshot, Store, replay, restore, tool
from agentnb.errors import LimitReached, UsageError
from agentnb.testing import ScriptedLLM, call

RULES: list[dict[str, Any]] = [{"tool": "s*", "arguments": {"to": "eve"}, "decision": "reject"}, {"decision": "ask"}]


def loop(turns: int = 3, first: int = 0) -> SessionLoop:
    """Return a session that sends to a, b, c, ... in successive turns, by a tool that needs no approval."""

    @tool
    async def send(to: str) -> str:
        return f"sent to {to}"

    made: list[Any] = [[call("send", {"to": chr(97 + n)}, id=f"c{n}")] for n in range(first, turns)]
    return SessionLoop(ScriptedLLM([*made, "done"]), [send])


def through_json(run: Any) -> Snapshot:
    return Snapshot.from_json(run.snapshot().to_json())


async def ran(approve: Any = None, **options: Any) -> Any:
    """Return a run that has made one approved call."""
    run = loop().start("go", approve=approve, **options)
    while run.state.calls_started < 1:
        await run.step("event")
        for item in run.pending:
            run.approve(item)
    await run.step("call")
    return run


async def stops(run: Any) -> list[str]:
    """Continue until a call is pending, or to the end; return the ids of the pending calls."""
    while not run.pending and run.stop_reason is None:
        await run.step("event")
    return [item.id for item in run.pending]


@pytest.mark.parametrize(
    ("approve", "waits"), [(RULES, ["c1"]), ({"decision": "ask"}, ["c1"]), (True, []), (None, [])], ids=str
)
async def test_a_policy_of_rules_or_a_boolean_is_kept(approve: Any, waits: list[str]) -> None:
    run = await ran(approve)
    again = restore(through_json(run), loop(first=1))
    assert await stops(again) == waits
    again.cancel()
    run.cancel()


async def test_a_policy_that_rejects_every_call_is_kept() -> None:
    run = loop(1).start("go", approve=False)
    await run.step("event")
    again = restore(through_json(run), loop(1))
    await again
    assert [event.outcome for event in again.events if event.type == "call_end"] == ["rejected"]
    run.cancel()


async def test_a_store_keeps_policy_and_limits(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = await ran(RULES, store=store, name="x", limits={"turns": 2})
    run.snapshot("x")
    other = Store(tmp_path / "runs.db")
    again = restore(other.load("x"), loop(first=1))
    assert (again.state.approve, again.state.limits) == (RULES, {"turns": 2})
    assert await stops(again) == ["c1"]
    again.cancel()
    run.cancel()
    store.close()
    other.close()


async def test_a_restored_run_keeps_the_limits() -> None:
    run = await ran(limits={"turns": 2})
    again = restore(through_json(run), loop(first=1))
    with pytest.raises(LimitReached, match="2 turns"):
        await again
    run.cancel()


async def test_policy_and_limits_given_to_a_restore_are_kept_by_the_next_one() -> None:
    run = await ran(True, limits={"turns": 2})
    second = restore(through_json(run), loop(first=1), approve=RULES, limits={"turns": 9})
    third = restore(through_json(second), loop(first=1))
    assert (third.state.approve, third.state.limits) == (RULES, {"turns": 9})
    assert await stops(third) == ["c1"]
    for one in (run, second, third):
        one.cancel()


async def test_removed_limits_stay_removed() -> None:
    run = await ran(limits={"turns": 2})
    again = restore(through_json(restore(through_json(run), loop(first=1), limits={})), loop(first=1))
    assert await again == "done"
    run.cancel()


async def test_a_kept_policy_is_not_recorded_again() -> None:
    run = await ran(RULES, limits={"turns": 5})
    snapshot = through_json(run)
    again = restore(snapshot, loop(first=1), approve=RULES, limits={"turns": 5})
    assert len(again.events) == snapshot.position
    run.cancel()


async def test_a_policy_function_is_not_recorded_and_calls_need_approval_instead() -> None:
    def careful(call: Any) -> bool:
        return True

    run = await ran(careful)
    assert run.events[0].approve == {"function": "careful"}
    with pytest.warns(UserWarning, match=r"careful.*until approve= is given again"):
        again = restore(through_json(run), loop(first=1))
    assert await stops(again) == ["c1"]
    assert "careful" in again.pending[0].reason
    with pytest.warns(UserWarning, match="careful"):
        once_more = restore(through_json(again), loop(first=1))
    assert [item.id for item in once_more.pending] == ["c1"]
    given = restore(through_json(again), loop(first=1), approve=careful)
    assert await given == "done"
    for one in (run, again, once_more):
        one.cancel()


async def test_a_policy_that_is_not_json_counts_as_a_function() -> None:
    run = await ran([{"arguments": {"to": object()}, "decision": "reject"}, {"decision": "approve"}])
    with pytest.warns(UserWarning, match="rules with values that are not JSON"):
        again = restore(through_json(run), loop(first=1))
    assert await stops(again) == ["c1"]
    again.cancel()
    run.cancel()


async def test_a_call_whose_decision_was_undone_is_not_decided_by_the_kept_policy() -> None:
    run = loop(1).start("go", approve=True)
    while not run.decided:
        await run.step("event")
    run.undo(run.decided[0])
    again = restore(through_json(run), loop(1))
    await again.step("event")
    assert [item.id for item in again.pending] == ["c0"]
    assert [event for event in again.events if event.type == "call_start"] == []
    again.cancel()
    run.cancel()


# -- forks -------------------------------------------------------------------------------------------------------------


async def test_a_fork_of_a_recording_keeps_policy_and_limits() -> None:
    run = await ran(RULES, limits={"turns": 7})
    fork = replay(through_json(run)).fork(run.events[-1].seq, loop=loop(first=1))
    assert (fork.events[0].approve, fork.events[0].limits) == (RULES, {"turns": 7})
    assert await stops(fork) == ["c1"]
    fork.cancel()
    run.cancel()


async def test_a_fork_of_a_run_keeps_its_policy_function() -> None:
    judged: list[str] = []

    def judge(call: Any) -> bool:
        judged.append(call.id)
        return True

    run = await ran(judge)
    judged.clear()
    assert await run.fork(loop=loop(first=1)) == "done"
    assert judged == ["c1", "c2"]
    run.cancel()


async def test_a_fork_records_its_policy_and_limits() -> None:
    run = await ran(RULES, limits={"turns": 2})
    fork = run.fork(loop=loop(first=1), approve=True, limits=None)
    assert (fork.events[0].approve, fork.events[0].limits) == (True, {})
    assert await fork == "done"
    run.cancel()


# -- the forms of a policy ---------------------------------------------------------------------------------------------


async def decided(approve: Any) -> Any:
    run = loop(1).start("go", approve=approve)
    await stops(run)
    return next((event for event in run.events if event.type == "approval_decision"), None), run


@pytest.mark.parametrize(
    ("said", "decision"),
    [
        ([{"tool": "s*", "decision": "approve"}, {"decision": "reject"}], "approve"),
        (False, "reject"),
        (True, "approve"),
    ],
)
async def test_a_policy_may_be_the_path_of_a_json_file(tmp_path: Path, said: Any, decision: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(said))
    for given in (path, str(path)):
        event, run = await decided(given)
        assert (event.decision, event.by) == (decision, "rule")
        assert run.events[0].approve == said


@pytest.mark.parametrize("text", ["{", '"approve"', "7", '[{"tol": "x"}]'])
def test_a_file_without_a_policy_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="approve"):
        loop().start("go", approve=str(path))


def test_a_missing_policy_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'nowhere\.json' cannot be read: No such file"):
        loop().start("go", approve="nowhere.json")


async def test_a_rule_may_be_for_several_tools() -> None:
    event, _ = await decided([{"tool": ["x*", "se*"], "decision": "reject"}, {"decision": "approve"}])
    assert event.decision == "reject"


@pytest.mark.parametrize("approve", [lambda call: "terminate", [{"decision": "terminate", "reason": "no more"}]])
async def test_a_policy_may_end_the_run(approve: Any) -> None:
    event, run = await decided(approve)
    assert (event.decision, run.stop_reason) == ("reject", "cancelled")
    assert [end.outcome for end in run.events if end.type == "call_end"] == ["rejected"]
