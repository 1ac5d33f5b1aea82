"""Remembered decisions, and undone decisions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from agentnb import AlreadyDecided, SessionLoop, Snapshot, Store, UsageError, restore, tool
from agentnb.core.errors import UnknownCall
from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallStart
from agentnb.core.evolve import fold
from agentnb.testing import ScriptedLLM, call
from tests.run.agents import Agent, sends
from tests.widgets.support import asking_everywhere
from tests.worlds import asks, assert_folds, provider_faults, types, until


async def waiting(run: Any, count: int = 1) -> Any:
    """Drive until this many calls wait; gives them."""
    run.play()
    await until(lambda: len(run.pending) >= count)
    return run.pending


async def stopped(*turn: Any, **options: Any) -> tuple[Agent, Any]:
    """Return a run without a driver, with the calls of its first turn pending."""
    agent = Agent()
    run = agent.loop([part for calls in turn for part in calls], "done").start("hi", **options)
    await run.step("turn")
    return agent, run


def decisions(run: Any) -> list[tuple[str, str, str, int | None]]:
    return [(e.call_id, e.decision, e.by, e.earlier) for e in run.events if isinstance(e, ApprovalDecision)]


def assert_every_call_had_its_decision(run: Any) -> None:
    """Check that each call that needed approval started after a decision that allowed it and was not undone."""
    standing: dict[tuple[str, str], ApprovalDecision | None] = {}
    for event in run.events:
        if isinstance(event, ApprovalRequest):
            standing[event.path, event.call_id] = None
        elif isinstance(event, ApprovalDecision):
            standing[event.path, event.call_id] = event if event.decision != "ask" else None
        elif isinstance(event, CallStart) and (event.path, event.call_id) in standing:
            decided = standing[event.path, event.call_id]
            assert decided is not None
            assert decided.decision in ("approve", "edit", "replace")
    assert_folds(run)
    assert provider_faults(run.messages) == []


# -- remembering -----------------------------------------------------------------------------------------------------


async def test_a_remembered_decision_applies_to_the_tool_and_names_its_source() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), [*sends("b"), *sends("c")], "done").start("hi")
    await waiting(run)
    run.approve("a", remember="tool")
    assert await run == "done"
    assert agent.ran == ["a>all", "b>all", "c>all"]
    first = next(event for event in run.events if isinstance(event, ApprovalDecision))
    assert decisions(run) == [
        ("a", "approve", "code", None),
        ("b", "approve", "remembered", first.seq),
        ("c", "approve", "remembered", first.seq),
    ]
    assert types(run.events).count("approval_request") == 1
    (rule,) = run.remembered
    assert (rule.event, rule.decision, rule.tool, rule.arguments, rule.by) == (
        first.seq,
        "approve",
        "send",
        None,
        "code",
    )
    assert rule.time == first.time
    assert_every_call_had_its_decision(run)


async def test_a_decision_remembered_for_arguments_applies_to_equal_arguments_only() -> None:
    agent = Agent()
    same = call("send", {"value": "a", "to": "bob"}, id="2")
    turned = call("send", {"to": "bob", "value": "a"}, id="3")
    other = call("send", {"value": "a", "to": "eve"}, id="4")
    run = agent.loop([call("send", {"value": "a", "to": "bob"}, id="1")], [same, turned, other], "done").start("hi")
    await waiting(run)
    run.approve("1", remember="arguments")
    await until(lambda: [item.id for item in run.pending] == ["4"])
    run.reject("4")
    await run
    assert agent.ran == ["a>bob"] * 3
    assert_every_call_had_its_decision(run)


async def test_one_and_true_are_different_arguments_for_a_remembered_decision() -> None:
    ran: list[Any] = []

    def switch(on: Any) -> str:
        ran.append(on)
        return "ok"

    calls = [call("switch", {"on": value}, id=str(n)) for n, value in enumerate([1, True, 1.0, 1])]
    run = SessionLoop(ScriptedLLM([calls, "done"]), [tool(approve=True)(switch)]).start("hi")
    await waiting(run, 4)
    run.approve("0", remember="arguments")
    assert [item.id for item in run.pending] == ["1", "2"]
    run.cancel()


async def test_a_remembered_decision_applies_to_calls_that_are_already_pending() -> None:
    agent, run = await stopped(sends("a", "b"), asks("c"))
    run.reject("a", "not today", remember="tool")
    assert run.pending == []
    assert await run == "done"
    assert agent.ran == ["c"]
    told = {m.tool_call_id: m.content for m in run.messages if m.role == "tool"}
    assert told["b"] == "Rejected: not today"
    assert_every_call_had_its_decision(run)


async def test_a_rule_for_arguments_precedes_one_for_the_tool_and_a_newer_one_an_older() -> None:
    agent = Agent()
    turns = [
        sends("a"),
        [call("send", {"value": "b"}, id="b1")],
        [call("send", {"value": v}, id=f"{v}2") for v in "ab"],
    ]
    run = agent.loop(*turns, "done").start("hi")
    await waiting(run)
    run.reject("a", "never", remember="arguments")
    await until(lambda: run.pending)
    run.approve("b1", remember="tool")
    await run
    assert [entry[:3] for entry in decisions(run)][2:] == [
        ("a2", "reject", "remembered"),
        ("b2", "approve", "remembered"),
    ]


async def test_a_remembered_rule_applies_only_if_a_person_would_be_asked() -> None:
    agent = Agent()
    policy = [{"arguments": {"value": "bad*"}, "decision": "reject"}]
    run = agent.loop(sends("a"), sends("bad"), sends("b"), "done").start("hi", approve=policy)
    await waiting(run)
    run.approve("a", remember="tool")
    await run
    assert agent.ran == ["a>all", "b>all"]
    assert ("bad", "reject", "rule", None) in decisions(run)


async def test_a_restored_run_keeps_a_remembered_decision() -> None:
    agent = Agent()
    run = agent.loop(sends("a"), sends("b"), "done").start("hi")
    await waiting(run)
    run.watch(lambda news: news.type == "call_end" and run.pause())
    run.approve("a", remember="tool")
    await until(lambda: run.state.paused)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    restored = restore(snapshot, Agent().loop(sends("b"), "done"))
    assert restored.remembered == run.remembered
    assert await restored == "done"
    assert decisions(restored)[-1][:3] == ("b", "approve", "remembered")
    run.cancel()


async def test_a_run_loaded_from_a_store_keeps_a_remembered_decision(tmp_path: Any) -> None:
    store = Store(tmp_path / "runs.db")
    run = Agent().loop(sends("a"), sends("b"), "done").start("hi", store=store, name="x")
    await waiting(run)
    run.approve("a", remember="tool")
    assert await run == "done"
    assert fold(store.load("x").events).rules == run.state.rules
    store.close()


@pytest.mark.parametrize("given", ["as it is", "by number"])
async def test_a_remembered_decision_can_be_forgotten(given: str) -> None:
    agent = Agent()
    run = agent.loop(sends("a"), sends("b"), "done").start("hi")
    await waiting(run)
    run.approve("a", remember="tool")
    (rule,) = run.remembered
    run.forget(rule if given == "as it is" else rule.event)
    assert run.remembered == []
    await until(lambda: run.pending)
    with pytest.raises(UsageError, match="remembered: none"):
        run.forget(rule.event)
    run.approve("b")
    await run
    assert agent.ran == ["a>all", "b>all"]
    assert_every_call_had_its_decision(run)


async def test_a_rule_made_in_a_nested_loop_applies_to_that_loop_only() -> None:
    run = asking_everywhere()
    run.play()
    await until(lambda: len(run.pending) == 3)
    inside = next(item for item in run.pending if item.path == "critic")
    run.approve(inside, remember="tool")
    assert sorted(item.path for item in run.pending) == ["", "critic:k2"]
    (rule,) = run.remembered
    assert (rule.path, rule.tool) == ("critic", "delete_file")
    for item in run.pending:
        run.approve(item)
    await run
    assert_folds(run)
    with pytest.raises(UsageError, match="has ended"):
        run.forget(rule.event)


async def test_an_unknown_value_of_remember_is_refused() -> None:
    _, run = await stopped(sends("a"))
    with pytest.raises(UsageError, match="'tool' or 'arguments'"):
        run.approve("a", remember="forever")
    assert [item.id for item in run.pending] == ["a"]
    run.cancel()


async def test_a_decision_about_a_call_of_unknown_outcome_cannot_be_remembered() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    await waiting(run)
    run.approve("a", remember="tool")
    await run
    begun = types(run.events).index("call_start")
    restored = restore(Snapshot.of(run.events[: begun + 1]), Agent().loop("done"))
    await restored.step("call")
    assert [item.unknown for item in restored.pending] == [True]
    with pytest.raises(UsageError, match="unknown outcome"):
        restored.approve("a", remember="tool")
    restored.reject("a")
    assert await restored == "done"


# -- taking back -----------------------------------------------------------------------------------------------------


async def test_a_decision_can_be_undone_before_the_call_starts() -> None:
    agent, run = await stopped(sends("a", "b"))
    run.approve("a")
    (item,) = run.decided
    assert (item.id, item.name, item.decision, item.by, item.arguments) == (
        "a",
        "send",
        "approve",
        "code",
        {"value": "a"},
    )
    before = len(run.events)
    run.undo("a")
    assert types(run.events[before:]) == ["approval_decision", "approval_request"]
    assert decisions(run)[-1] == ("a", "ask", "code", item.event)
    assert run.decided == []
    assert [item.id for item in run.pending] == ["a", "b"]
    run.reject("a")
    run.approve("b")
    await run
    assert agent.ran == ["b>all"]
    assert_every_call_had_its_decision(run)


@pytest.mark.parametrize(
    "decide",
    [lambda run: run.edit("a", {"value": "x", "to": "y"}), lambda run: run.replace("a", "echo", {"value": "x"})],
)
async def test_undoing_an_edit_restores_the_call(decide: Any) -> None:
    agent, run = await stopped(sends("a", to="bob"))
    (asked,) = run.pending
    decide(run)
    run.undo("a")
    (again,) = run.pending
    assert again == replace(asked, event=again.event)
    assert run.events[again.event].type == run.events[asked.event].type == "approval_request"
    assert again.event > asked.event, "another question about the same"
    run.approve("a")
    await run
    assert agent.ran == ["a>bob"]
    assert_every_call_had_its_decision(run)


async def test_undoing_a_remembered_decision_forgets_it() -> None:
    agent, run = await stopped(sends("a"))
    run.approve("a", remember="tool")
    run.undo("a")
    assert run.remembered == []
    run.approve("a")
    await run
    assert agent.ran == ["a>all"]


async def test_a_decision_of_a_rule_or_a_policy_can_be_undone() -> None:
    agent, run = await stopped(sends("a", "b"), asks("c"))
    run.approve("a", remember="tool")
    assert [(item.id, item.by) for item in run.decided] == [("a", "code"), ("b", "remembered")]
    run.undo("b")
    assert [item.id for item in run.pending] == ["b"]
    assert len(run.remembered) == 1
    run.reject("b")
    await run
    assert agent.ran.count("b>all") == 0
    assert_every_call_had_its_decision(run)


@pytest.mark.parametrize("policy", [True, lambda call: {"arguments": {"value": "other"}}], ids=["approved", "edited"])
async def test_after_undoing_a_decision_of_a_policy_the_original_call_needs_approval(policy: Any) -> None:
    agent = Agent()
    run = agent.loop(sends("a", to="bob"), "done").start("hi", approve=policy)
    while not run.decided:
        await run.step()
    run.undo("a")
    (item,) = run.pending
    assert (item.name, item.arguments, item.deadline, item.unknown) == (
        "send",
        {"value": "a", "to": "bob"},
        None,
        False,
    )
    decider = "rule" if policy is True else "<lambda>"
    assert item.reason == f"What {decider} decided was taken back."
    run.approve("a")
    assert await run == "done"
    assert agent.ran == ["a>bob"]
    assert_every_call_had_its_decision(run)


async def test_undoing_a_decision_keeps_the_unknown_outcome_of_the_call() -> None:
    run = Agent().loop(sends("a"), "done").start("hi", approve=True)
    await run
    begun = types(run.events).index("call_start")
    restored = restore(Snapshot.of(run.events[: begun + 1]), Agent().loop("done"))
    await restored.step("call")
    (asked,) = restored.pending
    restored.approve("a")
    restored.undo("a")
    (again,) = restored.pending
    assert again == replace(asked, event=again.event)
    assert again.unknown
    restored.cancel()


async def test_undoing_a_decision_restarts_the_deadline() -> None:
    _, run = await stopped(sends("a"), approve=[{"decision": "ask", "deadline": 60}])
    (asked,) = run.pending
    run.approve("a")
    run.undo("a")
    (again,) = run.pending
    assert asked.deadline < again.deadline < asked.deadline + 30
    run.cancel()


async def test_undoing_is_refused_for_started_ended_and_undecided_calls() -> None:
    agent = Agent()
    run = agent.loop([*sends("a", "b"), *sends("hold")], "done").start("hi")
    await waiting(run, 3)
    run.approve("a")
    run.reject("b")
    await until(lambda: "a>all" in agent.ran)
    for id, why in (("a", "has ended|has started"), ("b", "has ended"), ("hold", "is not decided")):
        with pytest.raises(UsageError, match=why):
            run.undo(id)
    with pytest.raises(UnknownCall):
        run.undo("nobody")
    run.cancel()


async def test_after_an_undo_a_second_decision_is_refused() -> None:
    _, run = await stopped(sends("a"))
    run.approve("a")
    run.undo("a")
    run.edit("a", {"value": "z"})
    with pytest.raises(AlreadyDecided):
        run.approve("a")
    run.cancel()


async def test_an_undone_decision_is_undone_in_a_restored_run() -> None:
    _, run = await stopped(sends("a"))
    run.edit("a", {"value": "other"})
    run.undo("a")
    for position in range(len(run.events) - 1, len(run.events) + 1):  # also killed between the two facts
        agent = Agent()
        restored = restore(Snapshot.of(run.events[:position]), agent.loop("done"))
        (item,) = restored.pending
        assert item.arguments == {"value": "a"}
        restored.approve("a")
        assert await restored == "done"
        assert agent.ran == ["a>all"]
    run.cancel()


async def test_a_watcher_can_undo_a_rejection_when_it_is_notified() -> None:
    agent, run = await stopped(sends("a"))

    def take_back(news: Any) -> None:
        if news.type == "approval_decision" and news.decision == "reject":
            run.undo("a")

    stop = run.watch(take_back)
    run.reject("a")
    stop()
    assert [item.id for item in run.pending] == ["a"]
    run.approve("a")
    await run
    assert agent.ran == ["a>all"]


def repeat(act: Callable[[Any], object], calls: Callable[[], Any], done: threading.Event) -> threading.Thread:
    """Do this to all of these calls, again and again, in another thread."""

    def work() -> None:
        while not done.is_set():
            for item in calls():
                with suppress(UsageError):  # another thread was faster
                    act(item)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def test_no_call_starts_without_its_decision_under_concurrent_undo() -> None:
    agent = Agent()
    ids = [str(n) for n in range(120)]
    run = agent.loop(sends(*ids), "done").start("hi")
    await waiting(run, len(ids))
    done = threading.Event()
    threads = [
        repeat(lambda item: run.undo(item), lambda: run.decided, done),
        repeat(lambda item: run.edit(item, {"value": item.id, "to": "all"}), lambda: run.pending, done),
    ]
    try:
        async with asyncio.timeout(60):
            assert await run == "done"
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert sorted(agent.ran) == sorted(f"{id}>all" for id in ids)
    assert_every_call_had_its_decision(run)
