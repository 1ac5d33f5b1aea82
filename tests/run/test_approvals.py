from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from agentnb import AlreadyDecided, SessionLoop, Snapshot, UsageError, tool
from agentnb.core.errors import InvalidArguments, UnknownCall
from agentnb.core.events import ApprovalDecision, CallStart
from agentnb.run.approvals.policy import Verdict
from agentnb.testing import ScriptedLLM, call
from tests.run.agents import Agent, sends
from tests.worlds import asks, assert_folds, provider_faults, running_tasks, types, until


async def waiting(run: Any, count: int = 1) -> Any:
    """Drive until this many calls wait; gives them."""
    run.play()
    await until(lambda: len(run.pending) >= count)
    return run.pending


def told(run: Any) -> dict[str, str]:
    assert provider_faults(run.messages) == []
    return {m.tool_call_id: m.content for m in run.messages if m.role == "tool"}


async def test_a_call_that_needs_approval_is_pending_with_its_arguments() -> None:
    agent = Agent()
    run = agent.loop(sends("a", to="bob"), "done").start("hi")
    (item,) = await waiting(run)
    assert (item.id, item.name, item.arguments) == ("a", "send", {"value": "a", "to": "bob"})
    assert item.schema["properties"].keys() == {"value", "to"}
    assert "send asks before every call" in item.reason
    assert "network" in item.reason
    assert item.deadline is None
    assert item.unknown is False
    assert agent.ran == []
    run.approve("a")
    assert await run == "done"
    assert agent.ran == ["a>bob"]
    assert run.pending == []


async def test_a_rejected_call_does_not_run_and_its_reason_reaches_the_model() -> None:
    agent = Agent()
    run = agent.loop(sends("a", "b"), "done").start("hi")
    await waiting(run, 2)
    run.reject("a", "too early")
    run.reject("b")
    await run
    assert agent.ran == []
    assert told(run) == {"a": "Rejected: too early", "b": "Rejected by the user."}


async def test_an_edited_call_runs_with_the_edited_arguments() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    await waiting(run)
    run.edit("a", {"value": "new", "to": "eve"})
    await run
    assert agent.ran == ["new>eve"]
    (started,) = [event for event in run.events if isinstance(event, CallStart)]
    assert started.arguments == {"value": "new", "to": "eve"}


async def test_a_replaced_call_runs_another_tool() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    await waiting(run)
    run.replace("a", "echo", {"value": "instead"})
    await run
    assert agent.ran == ["instead"]
    assert told(run) == {"a": "R:instead"}


async def test_an_answered_call_does_not_run() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    await waiting(run)
    run.answer("a", {"sent": True})
    await run
    assert agent.ran == []
    assert told(run) == {"a": '{"sent":true}'}


@pytest.mark.parametrize("wrong", [{"valeu": "x"}, {"value": 7}, {}])
async def test_an_edit_with_invalid_arguments_changes_nothing(wrong: dict[str, Any]) -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    await waiting(run)
    before = run.events
    with pytest.raises(InvalidArguments, match="value"):
        run.edit("a", wrong)
    with pytest.raises(InvalidArguments):
        run.replace("a", "echo", wrong)
    with pytest.raises(UnknownCall, match="no_such"):
        run.replace("a", "no_such", {})
    assert run.events == before
    run.approve("a")
    await run
    assert told(run) == {"a": "R:a>all"}


async def test_a_second_decision_about_a_call_is_refused() -> None:
    run = Agent().loop(sends("a", "b"), "done").start("hi")
    await waiting(run, 2)
    run.approve("a")
    run.reject("b")
    before = run.events
    for id in ("a", "b"):
        for decide in (
            lambda id: run.approve(id),
            lambda id: run.reject(id),
            lambda id: run.edit(id, {"value": "x"}),
            lambda id: run.replace(id, "echo", {"value": "x"}),
            lambda id: run.answer(id, 1),
        ):
            with pytest.raises(AlreadyDecided, match=id):
                decide(id)
    assert run.events == before
    await run


async def test_a_call_can_be_decided_by_its_pending_item() -> None:
    agent = Agent()
    run = agent.loop(sends("a", "b", "c", "d", "e"), "done").start("hi")
    first, second, third, fourth, fifth = await waiting(run, 5)
    run.approve(first)
    run.reject(second, "no")
    run.edit(third, {"value": "c", "to": "eve"})
    run.answer(fourth, "sent already")
    with pytest.raises(AlreadyDecided, match="The call 'b' of send is already decided: code rejected it at"):
        run.approve(second)
    run.approve(fifth)
    run.undo(run.decided[-1])
    (again,) = run.pending
    run.replace(again, "send", {"value": "e", "to": "ann"})
    await run
    assert sorted(agent.ran) == ["a>all", "c>eve", "e>ann"]
    assert (told(run)["b"], told(run)["d"]) == ("Rejected: no", "sent already")


async def test_a_decision_can_be_undone_by_its_pending_item() -> None:
    run = Agent().loop(sends("a", "b"), "done").start("hi")
    first, second = await waiting(run, 2)
    run.approve(first)
    run.undo(first)
    assert {item.id for item in run.pending} == {"a", "b"}
    run.reject(run.pending[0], "no")
    run.reject(second, "no")
    await run


async def test_a_pending_item_is_shown_without_its_schema_and_with_its_tool() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    (item,) = await waiting(run)
    assert "properties" not in repr(item)
    with pytest.raises(UnknownCall, match=r"No call 'send' is waiting for a decision; waiting: a \(send\)\."):
        run.approve("send")


async def test_a_decision_about_an_unknown_call_is_refused() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    await waiting(run)
    with pytest.raises(UnknownCall, match=r"No call 'z' is waiting.*waiting: a"):
        run.approve("z")
    run.cancel()


async def test_a_decision_about_a_cancelled_call_is_refused() -> None:
    run = Agent().loop(sends("a")).start("hi")
    await waiting(run)
    run.cancel()
    with pytest.raises(AlreadyDecided):
        run.approve("a")
    assert run.pending == []


async def test_changing_a_pending_item_changes_neither_the_call_nor_the_history() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    (item,) = await waiting(run)
    item.arguments["value"] = "meddled"
    assert run.messages[-1].tool_calls[0].arguments == {"value": "a"}
    run.approve("a")
    await run
    assert agent.ran == ["a>all"]


@pytest.mark.parametrize("changed", ["model_end", "approval_request"])
async def test_changing_the_arguments_in_an_event_requests_approval_again(changed: str) -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    await waiting(run)
    event: Any = next(event for event in run.events if event.type == changed)
    arguments = event.arguments if changed == "approval_request" else event.message.tool_calls[0].arguments
    arguments["value"] = "meddled"
    run.approve("a")
    await until(lambda: types(run.events).count("approval_request") == 2)
    assert agent.ran == []
    run.reject("a")
    await run


async def test_changing_the_arguments_after_an_edit_does_not_change_the_decision() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    await waiting(run)
    arguments = {"value": "edited", "to": "x"}
    run.edit("a", arguments)
    arguments["value"] = "later"
    await run
    assert agent.ran == ["edited>x"]
    decision = next(event for event in run.events if isinstance(event, ApprovalDecision))
    assert decision.arguments == {"value": "edited", "to": "x"}


async def test_changing_the_event_of_an_edit_does_not_change_what_runs() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi")
    await waiting(run)
    run.watch(lambda event: event.type == "approval_decision" and event.arguments.update(value="read"))
    run.edit("a", {"value": "edited", "to": "x"})
    await run
    assert agent.ran == ["edited>x"]


async def test_only_the_call_that_needs_approval_waits() -> None:
    agent = Agent()
    run = agent.loop([*sends("a"), *asks("b")], "done").start("hi")
    await waiting(run)
    await until(lambda: "b" in agent.ran)
    run.approve("a")
    await run
    assert list(told(run)) == ["a", "b"]


async def test_a_waiting_sequential_call_defers_the_calls_after_it() -> None:
    agent = Agent()
    run = agent.loop([*sends("a"), *asks("b")], "done", tool_execution="sequential").start("hi")
    await waiting(run)
    await asyncio.sleep(0.01)
    assert agent.ran == []
    run.approve("a")
    await run
    assert agent.ran == ["a>all", "b"]


async def test_a_decision_from_another_thread_resumes_the_run() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    await waiting(run)
    await asyncio.to_thread(run.approve, "a")
    async with asyncio.timeout(60):
        assert await run == "done"


# -- policies -------------------------------------------------------------------------------------------------------


async def test_a_policy_of_true_approves_and_is_recorded() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi", approve=True)
    await run
    assert agent.ran == ["a>all"]
    (decision,) = [event for event in run.events if isinstance(event, ApprovalDecision)]
    assert (decision.decision, decision.by) == ("approve", "rule")


async def test_a_policy_of_false_rejects_every_call() -> None:
    agent = Agent()
    run = agent.loop([*sends("a"), *asks("b")], "done").start("hi", approve=False)
    await run
    assert agent.ran == []
    assert all(words.startswith("Rejected") for words in told(run).values())


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (False, "Rejected: The policy of this run approves no calls."),
        (lambda proposed: False, "Not approved."),
        (lambda proposed: "reject", "Not approved."),
        ({"decision": "reject"}, "Not approved."),
        ({"decision": "reject", "reason": "too far"}, "Rejected: too far"),
    ],
)
async def test_the_reason_of_a_policy_reaches_the_model(policy: Any, words: str) -> None:
    run = Agent().loop(asks("a"), "done").start("hi", approve=policy)
    await run
    assert told(run) == {"a": words}


class WithoutWords(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize(
    ("said", "ran", "asked"),
    [
        (True, ["a"], False),
        ("approve", ["a"], False),
        (False, [], False),
        ("reject", [], False),
        (np.bool_(True), ["a"], False),
        (np.bool_(False), [], False),
        ({"decision": "reject", "reason": "no"}, [], False),
        ({"decision": True}, ["a"], False),
        ({"arguments": {"value": "other"}}, ["other"], False),
        ({"decision": "edit", "arguments": {"value": "other"}}, ["other"], False),
        ({"decision": "approve", "arguments": {"value": "other"}}, ["other"], False),
        (None, ["a"], True),
        ("ask", ["a"], True),
        ({"decision": "ask", "reason": "hm"}, ["a"], True),
        ({}, ["a"], True),
        ("maybe", ["a"], True),
        ({"decision": "maybe"}, ["a"], True),
        ({"decision": "approve", "args": {"value": "other"}}, ["a"], True),
        ({"decision": "ask", "deadline": "soon"}, ["a"], True),
        ({"decision": "edit"}, ["a"], True),
        ({"decision": "edit", "arguments": {"wrong": 1}}, ["a"], True),
        (1, ["a"], True),
        (LookupError("policy down"), ["a"], True),
        (LookupError("half a \ud83d"), ["a"], True),
        (WithoutWords(), ["a"], True),
        ({"decision": "approve", "reason": "half a \ud83d"}, ["a"], False),
        ({"decision": "approve", "reason": 5}, ["a"], True),
        ({"decision": "reject", "reason": ["no"]}, ["a"], True),
        (Verdict("approve", reason=None), ["a"], True),
    ],
)
async def test_a_policy_may_return_any_kind_of_verdict(form: str, said: Any, ran: list[str], asked: bool) -> None:
    def policy(proposed: Any) -> Any:
        assert (proposed.id, proposed.name, proposed.arguments) == ("a", "echo", {"value": "a"})
        if isinstance(said, Exception):
            raise said
        return said

    async def later(proposed: Any) -> Any:
        await asyncio.sleep(0)
        return policy(proposed)

    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi", approve=policy if form == "sync" else later)
    if asked:
        (item,) = await waiting(run)
        assert agent.ran == []
        assert item.reason
        run.approve("a")
    async with asyncio.timeout(60):
        assert await run == "done"
    assert agent.ran == ran
    assert types(run.events).count("approval_decision") == 1  # no call runs without a recorded decision
    assert_folds(run)
    assert Snapshot.from_json(run.snapshot().to_json()).events == tuple(run.events)


RULES = [
    {"tool": "echo", "arguments": {"value": "safe*"}, "decision": "approve"},
    {"tool": "echo", "decision": "reject", "reason": "not safe"},
    {"tool": "l*k", "decision": "approve"},
    {"needs": "network", "decision": "reject", "reason": "offline"},
]


async def test_the_first_rule_that_matches_decides() -> None:
    agent = Agent()
    turn = [
        *asks("safe-1", "other"),
        call("look", {"value": "l"}, id="l"),
        *sends("n"),
        call("slow", {"value": "s"}, id="s"),
    ]
    run = agent.loop(turn, "done").start("hi", approve=RULES)
    (item,) = await waiting(run)
    assert item.id == "s"
    assert "No rule" in item.reason
    run.approve("s")
    await run
    assert sorted(agent.ran) == ["l", "s", "safe-1"]
    assert told(run)["other"] == "Rejected: not safe"
    assert told(run)["n"] == "Rejected: offline"


@pytest.mark.parametrize(("arguments", "sent"), [({}, []), ({"to": "all"}, []), ({"to": "Ada"}, ["Ada"])])
async def test_a_rule_sees_the_default_of_an_omitted_argument(arguments: dict[str, Any], sent: list[str]) -> None:
    went: list[str] = []

    @tool
    def mail(to: str = "all") -> None:
        went.append(to)

    rules = [{"tool": "mail", "arguments": {"to": "all"}, "decision": "reject"}, {"decision": "approve"}]
    await SessionLoop(ScriptedLLM([[call("mail", arguments)], "done"]), [mail]).start("hi", approve=rules)
    assert went == sent


FORBIDS_IN_EARNEST: dict[str, Any] = {
    "rules": [{"arguments": {"dry_run": False}, "decision": "reject"}, {"decision": "approve"}],
    "callable": lambda asked: asked.arguments["dry_run"] is not False,
}


@pytest.mark.parametrize("policy", FORBIDS_IN_EARNEST.values(), ids=FORBIDS_IN_EARNEST)
async def test_a_policy_sees_converted_arguments(policy: Any) -> None:
    paid: list[bool] = []

    @tool
    def pay(dry_run: bool) -> None:
        paid.append(dry_run)

    turn = [call("pay", {"dry_run": "false"}), call("pay", {"dry_run": "true"})]
    await SessionLoop(ScriptedLLM([turn, "done"]), [pay]).start("hi", approve=policy)
    assert paid == [True]


FORBIDS_ONE: dict[str, Any] = {
    "rules": [{"arguments": {"ids": [1, None]}, "decision": "reject"}, {"decision": "approve"}],
    "a callable": lambda asked: 1 not in asked.arguments["ids"],
}


@pytest.mark.parametrize("policy", FORBIDS_ONE.values(), ids=FORBIDS_ONE)
async def test_a_policy_sees_converted_items_of_a_list(policy: Any) -> None:
    dropped: list[list[int | None]] = []

    @tool
    def drop(ids: list[int | None]) -> None:
        dropped.append(ids)

    turn = [call("drop", {"ids": ["1", None]}), call("drop", {"ids": ["2", None]})]
    await SessionLoop(ScriptedLLM([turn, "done"]), [drop]).start("hi", approve=policy)
    assert dropped == [[2, None]]


@pytest.mark.parametrize(
    ("pattern", "given", "matches"),
    [
        ({"depth": 2}, {"depth": 2}, True),
        ({"depth": 2}, {"depth": 3}, False),
        ({"depth": "2*"}, {"depth": 2}, False),
        ({"depth": 2}, {"depth": "2"}, False),
        ({"depth": None}, {"depth": None}, True),
        ({"depth": [1, "a*"]}, {"depth": [1, "a*"]}, True),
        ({"depth": [1, "a*"]}, {"depth": [1, "ab"]}, False),
        ({"depth": "*"}, {}, False),
        ({"depth": 2, "path": "/tmp/*"}, {"depth": 2, "path": "/tmp/a"}, True),
        ({"depth": 2, "path": "/tmp/*"}, {"depth": 2, "path": "/home"}, False),
    ],
)
async def test_a_rule_matches_texts_by_glob_and_other_arguments_by_value(
    pattern: dict[str, Any], given: dict[str, Any], matches: bool
) -> None:
    @tool
    async def seek(depth: Any = None, path: str = "/") -> str:
        return "found"

    run = SessionLoop(ScriptedLLM([[call("seek", given, id="a")], "done"]), [seek]).start(
        "hi", approve={"tool": "seek", "arguments": pattern, "decision": "approve"}
    )
    await run.step("call")
    assert [item.reason for item in run.pending] == ([] if matches else ["No rule of the policy matches this call."])
    run.cancel()


@pytest.mark.parametrize(("decision", "ran"), [(True, ["a"]), (False, [])])
async def test_a_single_rule_with_true_or_false_is_a_policy(decision: bool, ran: list[str]) -> None:
    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi", approve={"tool": "echo", "decision": decision})
    assert await run == "done"
    assert agent.ran == ran


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        "yes",
        [7],
        [{"tool": "x", "decision": "perhaps"}],
        [{"tol": "x"}],
        [{"tool": ["x", 5]}],
        [{"tool": 5}],
        [{"needs": ["network"]}],
        [{"arguments": ["x"]}],
        [{"decision": "ask", "deadline": "soon"}],
        [{"decision": "ask", "deadline": -1}],
        [{"decision": "ask", "deadline": True}],
        [{"decision": "ask", "reason": 5}],
    ],
)
def test_a_value_that_is_not_a_policy_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="approve"):
        Agent().loop("done").start("hi", approve=wrong)


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_a_call_without_a_decision_by_its_deadline_is_rejected(seconds: float) -> None:
    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi", approve=[{"decision": "ask", "deadline": seconds}])
    async with asyncio.timeout(60):
        await run
    assert agent.ran == []
    assert told(run) == {"a": "Rejected: no answer by the deadline"}
    (decision,) = [event for event in run.events if isinstance(event, ApprovalDecision)]
    assert (decision.decision, decision.by) == ("reject", "deadline")


async def test_a_decision_after_the_deadline_is_refused_without_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi", approve=[{"decision": "ask", "deadline": 60}])
    await run.step("call")
    (item,) = run.pending
    assert item.deadline is not None
    assert item.deadline == pytest.approx(time.time() + 60, abs=5)
    monkeypatch.setattr(time, "time", lambda: item.deadline + 1)
    with pytest.raises(AlreadyDecided, match="deadline"):
        run.approve("a")
    assert await run == "done"
    assert agent.ran == []


async def test_a_call_is_not_pending_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Agent().loop(asks("a"), "done").start("hi", approve=[{"decision": "ask", "deadline": 60}])
    await run.step("turn")
    [item] = run.pending
    monkeypatch.setattr(time, "time", lambda: item.deadline)
    assert run.pending == []


async def test_a_deadline_applies_to_a_stepped_run(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi", approve=[{"decision": "ask", "deadline": 60}])
    await run.step("call")
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert types(await run.step("call")) == ["approval_decision", "call_end"]
    assert running_tasks() == set()


async def test_a_policy_sees_a_copy_of_the_arguments() -> None:
    def meddle(proposed: Any) -> bool:
        proposed.arguments["value"] = "meddled"
        return True

    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi", approve=meddle)
    await run
    assert agent.ran == ["a"]
    assert run.messages[1].tool_calls[0].arguments == {"value": "a"}


async def test_a_run_cancelled_by_a_watcher_of_a_decision_ends_once() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    await waiting(run)
    run.watch(lambda news: news.type == "approval_decision" and run.cancel("enough"))
    run.answer("a", "it happened")
    assert run.stop_reason == "cancelled"
    assert [event.outcome for event in run.events if event.type == "call_end"] == ["aborted"]
