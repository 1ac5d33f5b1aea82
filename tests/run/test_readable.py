"""A recording can be read again, for any texts of hooks, policies, models and reasons of a cancellation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from agentnb import ExecutionLoop, Run, RunCancelled, SessionLoop, Snapshot
from agentnb.loops.execution_loop import Reject
from agentnb.testing import ScriptedLLM, call
from tests.loops.execution_world import World, c, solution
from tests.run.agents import Agent

NO_WORDS = [3, None, ["a", {"b": 1}], "\ud83d", object()]
NO_FLAGS = [0, "", "maybe", [1], 1.5]


async def read_again(run: Run) -> list[Any]:
    """Return the events of an ended run, read from its snapshot."""
    with suppress(RunCancelled):
        await run
    events = list(Snapshot.from_json(run.snapshot().to_json()).events)
    assert events == run.events
    return events


def reasons(events: list[Any], type: str = "approval_decision") -> list[str]:
    return [event.reason for event in events if event.type == type]


def looks(**options: Any) -> SessionLoop:
    return Agent().loop([call("look", {"value": "a"}, id="a")], "done", **options)


@pytest.mark.parametrize("reason", NO_WORDS)
async def test_any_reason_of_a_policy_can_be_read_again(reason: Any) -> None:
    run = looks().start("hi", approve=lambda call: {"decision": "reject", "reason": reason})
    assert all(type(said) is str for said in reasons(await read_again(run)))


async def test_the_reason_of_a_question_with_a_lone_surrogate_can_be_read_again() -> None:
    run = looks().start("hi", approve=[{"decision": "ask", "reason": "a\ud83d"}])
    await run.step("turn")
    assert run.pending[0].reason == "a\ufffd"
    run.approve("a")
    await read_again(run)


async def test_a_cancelled_run_with_a_lone_surrogate_in_the_reason_can_be_read_again() -> None:
    run = looks().start("hi")
    await run.step()
    assert run.cancel("a\ud83d")
    assert reasons(await read_again(run), "cancel") == ["a\ufffd"]


@pytest.mark.parametrize("reason", NO_WORDS)
async def test_confirm_may_reject_with_any_reason(reason: Any) -> None:
    loop = World().loop(solution(c("fast"), output=1), confirm=lambda call: Reject(reason))
    assert [type(said) for said in reasons(await read_again(loop.start(None)))] == [str]


async def test_the_replacement_by_confirm_is_recorded_as_valid_unicode() -> None:
    def loop() -> ExecutionLoop:
        return World().loop(solution(c("fast"), output=1), confirm=lambda call: {"_tool": "give", "v": "a\ud83d"})

    events = await read_again(loop().start(None))
    assert [event.result for event in events if event.type == "call_end"] == ["a\ufffd"]


@pytest.mark.parametrize("flag", ["is_error", "terminate"])
@pytest.mark.parametrize("value", NO_FLAGS)
async def test_flags_of_a_hook_are_read_like_those_of_a_tool(flag: str, value: Any) -> None:
    events = await read_again(looks(after_tool_call=lambda said: {flag: value}).start("hi"))
    assert [getattr(event, flag) for event in events if event.type == "call_end"] == [bool(value)]


@pytest.mark.parametrize("reason", [3, ["length"], "\ud83d"])
async def test_a_model_may_stop_with_any_reason(reason: Any) -> None:
    model = ScriptedLLM([[{"type": "text_delta", "content": "a"}, {"type": "stop", "reason": reason}]])
    events = await read_again(SessionLoop(model).start("hi"))
    assert [type(event.stop_reason) for event in events if event.type == "model_end"] == [str]


HALF = "a\ud83d"  # a lone surrogate: half of a character that was cut in two, in a text from another program
STARTED: dict[str, Callable[[], SessionLoop | ExecutionLoop]] = {
    "messages": lambda: SessionLoop(ScriptedLLM(["b"]), messages=[{"role": "user", "content": HALF}]),
    "a follow-up": lambda: told_before(SessionLoop(ScriptedLLM(["b", "c"]))),
    "a context": lambda: ExecutionLoop(
        ScriptedLLM([solution(output=1)]), context=[{"type": "data", "kind": "data", "data": {"v": HALF}}, HALF]
    ),
    "inside": lambda: SessionLoop(
        ScriptedLLM([[call("inside", {"input": "go"})], "c"]),
        [ExecutionLoop(ScriptedLLM([solution(output=1)]), context=[HALF], name="inside")],
    ),
}


def told_before(loop: SessionLoop) -> SessionLoop:
    loop.follow_up(HALF)
    return loop


@pytest.mark.parametrize("started", STARTED.values(), ids=list(STARTED))
async def test_the_input_of_a_run_is_recorded_as_valid_unicode(started: Callable[[], Any]) -> None:
    events = await read_again(started().start("hi"))
    assert any("a\ufffd" in str(event) for event in events)


@pytest.mark.parametrize("at", [1, 3])
async def test_the_message_of_a_fork_is_recorded_as_valid_unicode(at: int) -> None:
    run = SessionLoop(ScriptedLLM(["b"])).start("hi")
    await run
    events = await read_again(run.fork(at=at, message=HALF, loop=SessionLoop(ScriptedLLM(["b"]))))
    assert events[at].message.content == "a\ufffd"


@pytest.mark.parametrize("reason", NO_WORDS)
async def test_a_fork_may_decide_with_any_reason(reason: Any) -> None:
    run = looks().start("hi", approve=[{"decision": "ask"}])
    await run.step("turn")
    decision = {"decision": "reject", "reason": reason}
    events = await read_again(run.fork(decision=decision, loop=Agent().loop("done")))
    assert all(type(said) is str for said in reasons(events))
