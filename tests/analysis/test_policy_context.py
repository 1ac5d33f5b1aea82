"""The context that a policy gets with each call; a back-test passes the same context."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentnb import Agent, Run, SessionLoop, Snapshot, UsageError, headless, restore, tool
from agentnb.analysis import backtest
from agentnb.testing import ScriptedLLM, call
from tests.designs import WORLDS
from tests.worlds import until


@tool
async def delete(path: str) -> str:
    return f"gone {path}"


def deletes(*paths: str) -> list[Any]:
    return [call("delete", {"path": path}, id=path) for path in paths]


def session(*turns: Any, **options: Any) -> SessionLoop:
    return SessionLoop(ScriptedLLM(turns), [delete], **options)


async def decided(run: Run, decide: Callable[[Run, Any], object]) -> Run:
    """Play a run to its end; `decide` decides each call that waits."""
    run.play()
    while not run.state.over:
        await until(lambda: bool(run.pending) or run.state.over or run.state.failure is not None)
        for item in run.pending[:1]:
            decide(run, item)
    return run


def approve(run: Run, item: Any) -> None:
    run.approve(item)


class Shown:
    """A policy that keeps its contexts, and leaves every call to a person."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []

    def __call__(self, call: Any, context: Any) -> None:
        self.contexts.append(context)


async def test_the_context_has_the_messages_that_were_sent_to_the_model() -> None:
    shown = Shown()
    loop = session(deletes("a"), deletes("b"), "done", system_prompt="Be careful.")
    await decided(loop.start("go", approve=shown), approve)
    sent = [list(request.messages) for request in loop.llm.requests]
    assert [context.messages for context in shown.contexts] == sent[:2]


async def test_the_context_has_the_retrieved_messages() -> None:
    shown = Shown()
    llm = ScriptedLLM([deletes("a"), deletes("b"), "done"])
    agent = Agent(llm, [delete], retriever=lambda query: ["a document"], system_prompt="Be careful.")
    await decided(agent.start("go", approve=shown), approve)
    assert [context.messages for context in shown.contexts] == [list(request.messages) for request in llm.requests[:2]]


async def test_the_context_has_the_instructions_of_an_execution_loop() -> None:
    shown = Shown()
    loop = WORLDS["execution"]()
    sent: list[Any] = []
    answer = loop.llm.stream
    loop.llm.stream = lambda messages, **options: sent.append(list(messages)) or answer(messages, **options)
    await decided(loop.start("go", approve=shown), approve)
    assert shown.contexts[0].messages == sent[0]


async def test_the_context_has_the_calls_of_the_turn_the_state_and_the_decisions() -> None:
    shown = Shown()
    run = await decided(session(deletes("a", "b"), deletes("c"), "done").start("go", approve=shown), approve)
    first, second, third = shown.contexts
    assert first.calls == second.calls == [{"id": id, "name": "delete", "arguments": {"path": id}} for id in "ab"]
    assert [one["id"] for one in third.calls] == ["c"]
    assert (first.path, third.state["turn"], third.state["calls_started"]) == ("", 2, 2)
    assert first.decisions == []
    assert [(one["call_id"], one["decision"], one["arguments"]) for one in third.decisions] == [
        ("a", "approve", {"path": "a"}),
        ("b", "approve", {"path": "b"}),
    ]
    assert third.messages[-1].content == "gone b"  # an object reads as attributes, too
    assert run.stop_reason == "completed"


async def test_the_context_has_the_path_of_a_nested_loop() -> None:
    shown = Shown()
    inner = SessionLoop(ScriptedLLM([deletes("a"), "deleted"]), [delete], name="worker")
    outer = SessionLoop(ScriptedLLM([[call("worker", {"input": "tidy up"}, id="w")], "done"]), [inner])
    await decided(outer.start("go", approve=shown), approve)
    worker = next(context for context in shown.contexts if context.path)
    assert (worker.path, worker.state["name"]) == ("worker", "worker")
    assert [message["content"] for message in worker.messages] == ["tidy up"]


async def test_a_policy_cannot_change_the_run_by_the_context() -> None:
    def meddles(call: Any, context: Any) -> bool:
        for change in (
            lambda: context.messages[0].update(content="x"),
            lambda: context.calls[0]["arguments"].clear(),
            lambda: context.state["values"].setdefault("x", 1),
            lambda: context.messages[-1].pop("content"),
        ):
            with pytest.raises(TypeError):
                change()
        context.messages.clear()
        context.calls.append("x")
        return True

    run = session(deletes("a"), "done").start("go", approve=meddles)
    assert await run == "done"
    assert [message.content for message in run.messages] == ["go", "", "gone a", "done"]


async def test_a_context_does_not_change_while_the_run_continues() -> None:
    shown, texts = Shown(), []

    def policy(call: Any, context: Any) -> bool:
        shown(call, context)
        texts.append(context.to_json())
        return True

    await session(deletes("a", "b"), deletes("c"), "done").start("go", approve=policy)
    assert [context.to_json() for context in shown.contexts] == texts


def one(call: Any) -> bool:
    return bool(call.arguments["path"] == "a")


def with_default(call: Any, path: str = "a") -> bool:
    return bool(call.arguments["path"] == path)


def with_two_defaults(call: Any, path: str = "a", *, strict: bool = True) -> bool:
    return bool(call.arguments["path"] == path and strict)


def with_any(*args: Any, **kwargs: Any) -> bool:
    (call,) = args
    return bool(call.arguments["path"] == "a" and not kwargs)


def path_first(path: str, call: Any) -> bool:
    return bool(call.arguments["path"] == path)


class Policy:
    def method(self, call: Any) -> bool:
        return one(call)

    def __call__(self, call: Any, path: str = "a") -> bool:
        return with_default(call, path)

    def with_context(self, call: Any, context: Any) -> bool:
        return two(call, context)


def two(call: Any, context: Any) -> bool:
    return bool([one["id"] for one in context.calls] == ["a", "b"] and call.id == "a")


def by_name(call: Any, *, context: Any) -> bool:
    return two(call, context)


def by_name_with_default(call: Any, strict: bool = True, context: Any = None) -> bool:
    return two(call, context) and strict


async def later(call: Any, context: Any) -> bool:
    await asyncio.sleep(0)
    return two(call, context)


@functools.wraps(two)
def wrapped(*args: Any) -> bool:
    return two(*args)


@pytest.mark.parametrize(
    "policy",
    [
        one,
        lambda call: one(call),
        lambda call, path="a": with_default(call, path),
        with_default,
        with_two_defaults,
        with_any,
        functools.partial(path_first, "a"),
        functools.partial(with_default, path="a"),
        functools.partial(lambda call, context: call.id == context, context="a"),
        Policy().method,
        Policy(),
        two,
        lambda call, seen: two(call, seen),
        by_name,
        by_name_with_default,
        later,
        wrapped,
        functools.partial(by_name_with_default, strict=True),
        Policy().with_context,
    ],
)
async def test_a_policy_of_any_form_gets_the_context_if_it_accepts_one(policy: Any) -> None:
    run = session(deletes("a", "b"), "done").start("go", approve=policy)
    assert await run == "done"
    assert [message.content for message in run.messages[2:4]] == ["gone a", "Not approved."]


async def test_a_headless_policy_gets_the_context() -> None:
    shown = Shown()
    headless(lambda call, context: shown(call, context) or True, after=0, attended=False)
    try:
        run = SessionLoop(ScriptedLLM([deletes("a"), "done"]), [tool(approve=True)(delete.function)]).start("go")
        assert await run == "done"
    finally:
        headless(None)
    assert [message["content"] for message in shown.contexts[0].messages] == ["go"]


async def test_the_approve_function_of_a_tool_gets_the_context() -> None:
    shown = Shown()
    asking = tool(approve=lambda call, context: shown(call, context) or bool(context.decisions))(delete.function)
    run = SessionLoop(ScriptedLLM([deletes("a"), "done"]), [asking]).start("go")
    assert await run == "done"
    assert [message["content"] for message in shown.contexts[0].messages] == ["go"]


async def test_a_restored_run_passes_the_context_of_the_time_of_the_question() -> None:
    before, after = Shown(), Shown()
    run = session(deletes("a", "b"), "done").start("go", approve=before)
    run.play()
    await until(lambda: len(run.pending) == 2)
    run.approve(run.pending[0])
    snapshot = run.snapshot()
    run.cancel()
    restored = restore(snapshot, session("done"), approve=after)
    restored.play()
    await until(lambda: bool(after.contexts))
    await decided(restored, approve)
    assert after.contexts[-1].to_json() == before.contexts[1].to_json()


# -- the same in a back-test -------------------------------------------------------------------------------------------


class Judge:
    """A policy whose verdicts depend on everything that it is shown, and which keeps that."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str, str], list[str]] = {}

    def __call__(self, call: Any, context: Any) -> Any:
        text = context.to_json()
        self.shown.setdefault((context.path, call.id, json.dumps(call.arguments)), []).append(text)
        return (None, None, None, True, {"decision": "reject", "reason": "no"})[sum(map(ord, text)) % 5]


def some_person(seed: int) -> Callable[[Run, Any], object]:
    """Act as a person who decides in various ways, and sometimes undoes a decision or sends a message."""
    rng = random.Random(seed)

    def decide(run: Run, item: Any) -> None:
        if rng.random() < 0.2 and run.state.listens:
            run.steer(f"mind {rng.random()}")
        match rng.randrange(5):
            case 0:
                run.reject(item, "not that")
            case 1:
                run.answer(item, {"said": rng.randrange(9)})
            case 2 if "n" in item.arguments:
                run.edit(item, {"n": rng.randrange(9)})
            case _:
                run.approve(item)
                if rng.random() < 0.3 and run.decided and not run.state.children:
                    run.undo(run.decided[-1])

    return decide


DESIGNS = ["session", "sequential_session", "agent", "parallel_agent", "execution", "native_execution",
           "planned_execution", "session_of_agents", "engine_of_loops", "generator"]  # fmt: skip


@pytest.mark.parametrize("world", DESIGNS)
async def test_a_back_test_of_recorded_runs_passes_the_same_contexts_and_gets_the_same_verdicts(world: str) -> None:
    compared = 0
    for seed in range(20):
        live, again = Judge(), Judge()
        run = await decided(WORLDS[world]().start(f"go {seed}", approve=live), some_person(seed))
        recorded = Snapshot.from_json(run.snapshot().to_json())
        judged = backtest(again, recorded).decisions
        assert {one.policy for one in judged} <= {"ask"}  # the policy of the run left these calls to the person
        for key, texts in again.shown.items():
            assert texts == live.shown[key]
            compared += len(texts)
    assert compared > 20


async def test_a_back_test_of_a_run_without_a_policy_passes_the_contexts_of_a_run_with_one() -> None:
    shown, asking = Shown(), tool(approve=True)(delete.function)
    turns = [deletes("a"), deletes("b"), "done"]
    run = await decided(SessionLoop(ScriptedLLM(turns), [asking]).start("go"), approve)
    backtest(shown, run)
    with_policy = Shown()
    await decided(SessionLoop(ScriptedLLM(turns), [asking]).start("go", approve=with_policy), approve)
    assert [context.messages for context in shown.contexts] == [context.messages for context in with_policy.contexts]
    assert [len(context.decisions) for context in shown.contexts] == [0, 1]


def test_a_policy_with_three_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="second"):
        session("done").start("go", approve=lambda call, context, more: True)


async def test_the_cost_of_a_context_does_not_grow_with_the_run() -> None:
    async def seconds(turns: int) -> float:
        took = 0.0

        def policy(call: Any, context: Any) -> bool:
            nonlocal took
            return bool(context.messages[-1] and context.calls and context.decisions is not None and context.state)

        loop = session(*[deletes(str(n)) for n in range(turns)], "done", max_turns=None)
        began = time.process_time()
        await loop.start("go", approve=policy)
        took = time.process_time() - began
        return took / turns

    short, long = await seconds(100), await seconds(1000)
    assert long < 4 * short
