"""Each decision records who made it and its question; for a person also the name, the seconds, and what was shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import agentnb
from agentnb import ExecutionLoop, SessionLoop, analysis, headless, tool
from agentnb.core.events import ApprovalDecision, CallProposed, CallStart, ToolCall
from agentnb.core.evolve import fold
from agentnb.errors import UsageError
from agentnb.testing import ScriptedLLM, call
from tests.run.agents import Agent, sends
from tests.worlds import until


def decisions(run: Any) -> list[ApprovalDecision]:
    return [event for event in run.events if isinstance(event, ApprovalDecision)]


async def asking(*values: str, **options: Any) -> Any:
    """A run whose calls wait."""
    run = Agent().loop(sends(*values), "done").start("hi", **options)
    await run.step("turn")
    return run


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AGENTNB_REVIEWER", raising=False)
    yield
    agentnb.reviewer(None)


def yes(call: Any) -> bool:
    return True


async def later(call: Any) -> bool:
    return True


class Judge:
    def __call__(self, call: Any) -> bool:
        return True


def human(call: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("approve", "by"),
    [
        (True, "rule"),
        ({"decision": "approve"}, "rule"),
        ([{"tool": "send", "decision": "approve"}], "rule"),
        (yes, "yes"),
        (later, "later"),
        (partial(yes), "yes"),
        (Judge(), "Judge"),
        (lambda call: {"arguments": {"value": "x"}}, "<lambda>"),
        (human, "function human"),
    ],
)
async def test_a_decision_of_a_policy_is_recorded_as_rule_or_with_the_name_of_the_function(
    approve: Any, by: str
) -> None:
    run = Agent().loop(sends("a"), "done").start("hi", approve=approve)
    await run
    (decision,) = decisions(run)
    assert (decision.by, decision.question, decision.shown, decision.seconds, decision.reviewer) == (
        by,
        None,
        None,
        None,
        None,
    )


async def test_a_decision_by_a_method_of_the_run_is_recorded_as_code(unnamed: None) -> None:
    agentnb.reviewer("Ana")
    run = await asking("a", "b", "c")
    first, second, third = run.pending
    run.approve(first)
    run.reject(second)
    run.answer(third, 1)
    run.undo(run.decided[0])
    assert [(one.by, one.reviewer, one.seconds) for one in decisions(run)] == [("code", None, None)] * 4
    assert [one.question for one in decisions(run)] == [first.event, second.event, third.event, None]
    assert decisions(run)[0].shown == first.shown
    run.cancel()


async def test_a_decision_may_have_the_name_of_the_person(unnamed: None) -> None:
    run = await asking("a", "b", "c", "d", "e")
    run.approve("a", reviewer="Ana")
    run.reject("b", reviewer="Bo")
    run.edit("c", {"value": "x"}, reviewer="Cy")
    run.replace("d", "echo", {"value": "x"}, reviewer="Di")
    run.answer("e", 1, reviewer="Ed")
    assert [one.reviewer for one in decisions(run)] == ["Ana", "Bo", "Cy", "Di", "Ed"]
    run.cancel()


@pytest.mark.parametrize("name", ["", "  ", 5, b"Ana"])
async def test_an_invalid_name_is_refused_without_a_decision(name: Any, unnamed: None) -> None:
    run = await asking("a")
    with pytest.raises(UsageError, match="name"):
        run.approve("a", reviewer=name)
    with pytest.raises(UsageError, match="name"):
        agentnb.reviewer(name)
    assert decisions(run) == []
    run.cancel()


async def test_a_remembered_decision_is_recorded_as_remembered() -> None:
    run = await asking("a", "b")
    (_, second) = run.pending
    run.approve("a", remember="tool")
    assert [(one.by, one.question) for one in decisions(run)][1] == ("remembered", second.event)
    run.cancel()


async def test_a_rejection_after_the_deadline_is_recorded_as_deadline() -> None:
    run = await asking("a", approve=[{"decision": "ask", "deadline": 0.01}])
    (asked,) = (event.seq for event in run.events if event.type == "approval_request")
    await run
    assert [(one.by, one.question, one.shown) for one in decisions(run)] == [("deadline", asked, None)]


async def test_a_decision_of_a_declared_policy_is_recorded_as_headless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.run.headless._declared", None)
    headless("approve", after=0, attended=False)
    run = await asking("a")
    (asked,) = (event.seq for event in run.events if event.type == "approval_request")
    await run
    assert [(one.decision, one.by, one.question) for one in decisions(run)] == [("approve", "headless", asked)]


def confirm_none(call: Any) -> bool:
    return False


def confirm_others(call: Any) -> Any:
    return {"_tool": "pay", "amount": 2}


@pytest.mark.parametrize(("confirm", "decision"), [(confirm_none, "reject"), (confirm_others, "replace")])
async def test_a_decision_of_confirm_is_recorded_with_its_name(confirm: Any, decision: str) -> None:
    @tool
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    solution = '{"calls": [{"_tool": "pay", "amount": 1}], "output": "ok"}'
    run = ExecutionLoop(ScriptedLLM([solution]), [pay], confirm=confirm).start(None)
    await run
    assert [(one.decision, one.by) for one in decisions(run)] == [(decision, confirm.__name__)]


def test_an_older_recording_in_which_the_loop_decided_folds_to_the_same_state() -> None:
    made = ToolCall(id="c", name="pay", arguments={"amount": 1})
    instead = ApprovalDecision(call_id="c", decision="replace", by="loop", name="pay", arguments={"amount": 2})
    now = instead.model_copy(update={"by": "confirm", "recheck": True})
    events = [agentnb.core.events.RunStart(loop="ExecutionLoop", name="x"), CallProposed(call=made)]
    states = [fold([*events, one]) for one in (instead, now)]
    assert [(s.calls["c"].status, s.calls["c"].arguments, s.calls["c"].replaced) for s in states] == [
        ("proposed", {"amount": 2}, ToolCall(id="c", name="pay", arguments={"amount": 2}))
    ] * 2


# -- forks -------------------------------------------------------------------------------------------------------------


async def test_a_changed_decision_is_recorded_as_fork_without_name_seconds_or_digest() -> None:
    run = await asking("a")
    run.approve("a", reviewer="Ana")
    await run
    at = decisions(run)[0].seq
    for change in ({"decision": False}, {"arguments": {"value": "x"}}, {"result": "given"}):
        fork = run.fork(at, loop=Agent().loop("done"), **change)
        (made,) = decisions(fork)
        assert (made.by, made.reviewer, made.shown, made.seconds) == ("fork", None, None, None)
        assert made.question == decisions(run)[0].question
        fork.cancel()


async def test_a_replaced_decision_event_is_recorded_as_fork() -> None:
    run = await asking("a")
    run.approve("a", reviewer="Ana")
    await run
    made = decisions(run)[0]
    instead = made.model_copy(update={"decision": "edit", "arguments": {"value": "x"}, "seconds": 3.0})
    fork = run.fork(made.seq, event=instead, loop=Agent().loop("done"))
    assert [(one.by, one.reviewer, one.shown, one.seconds) for one in decisions(fork)] == [("fork", None, None, None)]
    fork.cancel()


async def test_a_fork_keeps_who_made_the_inherited_decisions() -> None:
    run = await asking("a")
    run.approve("a", reviewer="Ana")
    await run
    fork = run.fork(loop=Agent().loop("done"))
    assert [(one.by, one.reviewer) for one in decisions(fork)] == [("code", "Ana")]


# -- what runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["call_start", "approval_decision", "approval_request"])
@pytest.mark.parametrize("decide", [lambda run: run.approve("c"), lambda run: run.edit("c", {"amount": 2})])
async def test_changing_an_event_does_not_change_what_runs(type: str, decide: Any) -> None:
    ran: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    run = SessionLoop(ScriptedLLM([[call("pay", {"amount": 1}, id="c")], "done"]), [pay]).start("go")
    shown: list[int] = []
    async for event in run:
        if event.type == "approval_request" and shown:
            run.cancel()  # a new question
        elif event.type == "approval_request":
            decide(run)
            shown = [decided.arguments["amount"] for decided in run.decided]
        if event.type == type and event.arguments:
            event.arguments["amount"] = 999
    assert ran in (shown, [])
    started = [event for event in run.events if isinstance(event, CallStart)]
    assert len(started) == len(ran)


async def test_a_reference_that_changes_after_the_approval_needs_approval_again() -> None:
    ran: list[int] = []
    written = asyncio.Event()

    @tool
    async def slow() -> int:
        await written.wait()
        return 500

    @tool
    async def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    asked: list[Any] = []

    def once(call: Any) -> bool | None:
        """Leave the first payment to a person, and approve everything else."""
        if call.name == "pay" and not asked:
            asked.append(call)
            return None
        return True

    calls = [
        {"_tool": "slow", "_outputPath": "†state.amount"},
        {"_tool": "pay", "amount": "†state.amount || †input.amount", "_outputPath": "†state.paid"},
    ]
    llm = ScriptedLLM([json.dumps({"calls": calls, "output": "ok"})])
    run = ExecutionLoop(llm, [slow, pay], max_concurrency=1).start({"amount": 3}, approve=once)
    run.play()
    await until(lambda: run.pending)
    (first,) = run.pending
    run.approve(first)
    written.set()
    await until(lambda: run.pending)
    (second,) = run.pending
    assert (first.arguments, second.arguments, ran) == ({"amount": 3}, {"amount": 500}, [])
    assert "has changed since this was decided" in second.reason
    assert run.events[second.event].earlier == first.event
    run.approve(second)
    await run
    assert ran == [500]


# -- tables ------------------------------------------------------------------------------------------------------------


async def test_the_table_of_decisions_has_person_digest_and_duration() -> None:
    run = await asking("a", "b")
    first, second = run.pending
    run.approve(first, reviewer="Ana")
    run.reject(second)
    await run
    table = analysis.decisions(run)
    assert table.by.tolist() == ["code", "code"]
    assert table.question.tolist() == [first.event, second.event]
    assert table.reviewer.tolist()[0] == "Ana"
    assert table.shown.tolist() == [first.shown, second.shown]
    assert table.took.isna().all(), "no person was shown it"


async def test_the_table_of_decisions_of_a_fork_has_no_waiting_time() -> None:
    run = await asking("a")
    run.approve("a")
    await run
    fork = run.fork(decisions(run)[0].seq, decision=False, loop=Agent().loop("done"))
    await fork
    assert analysis.decisions(fork).waited.isna().all()
