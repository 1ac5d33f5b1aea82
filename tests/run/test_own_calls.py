"""Calls that a loop makes itself: their part of the state, and tools that are called by a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from agentnb import Loop, RunFailed, Snapshot, restore, tool
from agentnb.core.events import CallProposed, Event, PhaseChange, RunEnd, StateUpdate
from agentnb.core.loop import Calls, Design, Result
from agentnb.core.messages import ToolCall
from agentnb.core.state import CallState, State
from tests.worlds import assert_folds, types


class Caller(Loop):
    """Makes the given calls one after the other, each in a separate phase."""

    phases: ClassVar[Mapping[str, Sequence[str]]] = {"one": ["two", "done"], "two": ["one", "done"], "done": []}
    opened_by: ClassVar[Mapping[str, str]] = {"run_end": "done"}

    def __init__(self, *calls: str, tools: Sequence[Any] = (), arguments: Any = None) -> None:
        super().__init__(tools=tools)
        self.calls = calls
        self.arguments = arguments or {}
        self.activities = {"look": lambda arguments, state: "looked"}

    def advance(self, state: State) -> Event | None:
        made = len(state.own_calls)
        if made == len(self.calls):
            return RunEnd(reason="completed", output=[call.end.result for call in state.own_calls if call.end])
        if len(state.entered) == made:
            assert state.phase is not None
            return PhaseChange(source=state.phase, phase="two" if state.phase == "one" else "one")
        call = ToolCall(id=f"call_{made}", name=self.calls[made], arguments=dict(self.arguments))
        return CallProposed(call=call, hidden=True)


def sender(sent: list[str], **options: Any) -> Any:
    @tool(**options)
    async def send(to: str = "all") -> str:
        sent.append(to)
        return f"sent to {to}"

    return send


async def test_the_state_keeps_the_calls_and_phases_of_a_loop() -> None:
    run = Caller("look", "look", "look").start(None)
    assert await run == ["looked"] * 3
    assert [call.id for call in run.state.own_calls] == ["call_0", "call_1", "call_2"]
    assert run.state.entered == ["two", "one", "two"]
    assert run.state.messages == []
    assert_folds(run)
    assert [call["end"]["result"] for call in run.state.dump()["own_calls"]] == ["looked"] * 3
    assert Snapshot.from_json(run.snapshot().to_json()).state.own_calls == run.state.own_calls


async def test_an_activity_may_yield_events() -> None:
    async def look(arguments: dict[str, Any], state: State) -> Any:
        yield StateUpdate(values={"seen": 1})
        yield Result("looked twice")

    loop = Caller("look")
    loop.activities = {"look": look}
    run = loop.start(None)
    assert await run == ["looked twice"]
    assert run.state.values == {"seen": 1}
    assert_folds(run)


async def test_an_activity_that_yields_another_value_has_failed() -> None:
    async def look(arguments: dict[str, Any], state: State) -> Any:
        yield "words"

    loop = Caller("look")
    loop.activities = {"look": look}
    run = loop.start(None)
    await run
    assert [call.end.result for call in run.state.own_calls if call.end] == [
        "TypeError: look may only yield events, deltas and a Result, not 'words'."
    ]


async def test_a_tool_called_by_a_loop_needs_approval_like_one_called_by_a_model() -> None:
    sent: list[str] = []
    run = Caller("send", tools=[sender(sent, approve=True)]).start(None)
    await run.step("call")
    assert [(pending.name, pending.arguments) for pending in run.pending] == [("send", {})]
    assert sent == []
    run.edit("call_0", {"to": "Ann"})
    assert await run == ["sent to Ann"]
    assert run.state.messages == []


async def test_a_policy_sees_the_tools_that_a_loop_calls() -> None:
    sent: list[str] = []
    run = Caller("send", tools=[sender(sent)]).start(None, approve=[{"tool": "send", "decision": "reject"}])
    (said,) = await run
    assert said == "Not approved."
    assert sent == []


async def test_invalid_arguments_from_a_loop_are_an_error_result() -> None:
    run = Caller("send", tools=[sender([])], arguments={"from": 1}).start(None)
    (said,) = await run
    assert "Invalid arguments for send" in said


@pytest.mark.parametrize(("idempotent", "asked"), [(False, ["call_0"]), (True, [])])
async def test_an_interrupted_tool_needs_a_decision(idempotent: bool, asked: list[str]) -> None:
    sent: list[str] = []
    run = Caller("send", tools=[sender(sent, idempotent=idempotent)]).start(None)
    await run
    started = types(run.events).index("call_start")
    again = Caller("send", tools=[sender(sent, idempotent=idempotent)])
    restored = restore(Snapshot.of(run.events[: started + 1]), again)
    await restored.step("event")
    assert [pending.id for pending in restored.pending] == asked
    if asked:
        restored.answer("call_0", "it was sent")
        assert await restored == ["it was sent"]
        assert sent == ["all"]
    else:
        await restored
        assert sent == ["all", "all"]


async def test_an_activity_takes_precedence_over_a_tool_of_the_same_name() -> None:
    @tool(name="look", approve=True)
    def other() -> str:
        return "never"

    assert await Caller("look", tools=[other]).start(None) == ["looked"]


async def test_the_performer_of_a_call_may_depend_on_the_state() -> None:
    class InnerCalls(Calls):
        def perform(self, call: CallState, state: State) -> Any:
            return f"{self.loop.name} performs {call.id} in {state.phase}"

    class Inner(Caller):
        calls_class = InnerCalls

        def __init__(self, name: str) -> None:
            super().__init__("look")
            self.name = name

    class OuterCalls(Calls):
        def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
            assert state is not None
            return Inner(f"number_{len(state.own_calls)}")

    class Outer(Caller):
        calls_class = OuterCalls

    run = Outer("a", "b").start(None)
    assert await run == [["number_1 performs call_0 in two"], ["number_2 performs call_0 in two"]]


@pytest.mark.parametrize("given", [{"topic": "x"}, [1, 2], [["a"], {"b": None}], 7, None, "x", True])
async def test_any_json_value_may_be_the_input(given: Any) -> None:
    run = Caller().start(given)
    await run
    assert run.state.input == given
    said = [message.role for message in run.state.queues["input"]]
    assert said == ([] if given is None else ["user"])


async def test_an_input_that_looks_like_a_message_must_be_valid() -> None:
    with pytest.raises(Exception, match="role"):
        await Caller().start({"content": "hi"})


async def test_a_design_that_waits_without_a_running_call_fails() -> None:
    class Waits(Caller):
        def advance(self, state: State) -> Event | None:
            return None

    with pytest.raises(RunFailed, match="no detached call is running"):
        await Waits().start(None)


async def test_any_design_can_detach_its_calls() -> None:
    gate = asyncio.Event()

    @tool
    async def hold() -> str:
        await gate.wait()
        return "held"

    class Detached(Calls):
        def detaches(self, call: CallState) -> bool:
            return call.name == "hold"

    class Detaches(Caller):
        calls_class = Detached

        def advance(self, state: State) -> Event | None:
            if len(state.own_calls) < 2:
                return super().advance(state)
            gate.set()
            return super().advance(state) if not state.detached else None

    run = Detaches("hold", "look", tools=[hold]).start(None)
    async with asyncio.timeout(60):
        assert await run == ["held", "looked"]
    assert [e.call_id for e in run.events if e.type == "call_end"] == ["call_1", "call_0"]
