"""LoopAgent's design (loop_agent/SEMANTICS.md): the events of an invocation, pass by pass."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from agentnb import ConversationEngine, ExecutionLoop, Loop, LoopAgent, RunFailed, SessionLoop
from agentnb.loops.loop_agent import (
    BaseAgent,
    Event,
    EventActions,
    InvocationContext,
    LoopAgentState,
    Session,
    exit_loop,
)
from agentnb.testing import ScriptedLLM, call
from tests.benchmarks.measure import median_growth
from tests.loops.loop_agents import K, Silent, events_in, pausing, resumed, said_in, short
from tests.worlds import running_tasks, says, until


def abc(max_iterations: int | None = None, **options: Any) -> LoopAgent:
    """Return L(A, B, C); the keywords `a`, `b` and `c` are the options of the agents."""
    agents = [K(name, **options.get(name.lower(), {})) for name in "ABC"]
    return LoopAgent("L", agents, max_iterations)


# -- passes --------------------------------------------------------------------------------------------------------


async def test_adk_01_each_pass_emits_a_checkpoint_and_runs_each_sub_agent() -> None:
    assert await said_in(LoopAgent("L", [K("A")], 2), is_resumable=True) == "CK(L,A,0) A#1 CK(L,A,1) A#2 END(L)"
    assert await said_in(LoopAgent("L", [K("A")], 2)) == "A#1 A#2"


async def test_adk_02_sub_agents_run_in_order_in_every_pass() -> None:
    assert await said_in(abc(2), is_resumable=True) == (
        "CK(L,A,0) A#1 CK(L,B,0) B#1 CK(L,C,0) C#1 CK(L,A,1) A#2 CK(L,B,1) B#2 CK(L,C,1) C#2 END(L)"
    )


@pytest.mark.parametrize("limit", [0, -1, -7])
async def test_a_limit_of_zero_or_less_runs_no_pass(limit: int) -> None:
    ctx = InvocationContext(is_resumable=True)
    [end] = await events_in(abc(limit), ctx)
    assert (short(end), end.reason) == ("END(L)", "max_iterations")
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {"L": True})
    assert await said_in(abc(limit)) == ""


async def test_an_empty_loop_emits_only_its_end() -> None:
    [end] = await events_in(LoopAgent("L", []), InvocationContext(is_resumable=True))
    assert (short(end), end.reason) == ("END(L)", "empty")
    assert await said_in(LoopAgent("L", [])) == ""


async def test_an_empty_nested_loop_emits_only_its_end() -> None:
    loop = LoopAgent("OUT", [LoopAgent("E", []), K("A")], 2)
    assert await said_in(loop, is_resumable=True) == (
        "CK(OUT,E,0) END(E) CK(OUT,A,0) A#1 CK(OUT,E,1) END(E) CK(OUT,A,1) A#2 END(OUT)"
    )


@pytest.mark.parametrize("inside", [lambda: Silent("S"), lambda: LoopAgent("E", [])])
async def test_an_endless_loop_without_events_warns_and_does_not_block_other_tasks(inside: Any, caplog: Any) -> None:
    ctx = InvocationContext()

    async def stop() -> None:
        await until(lambda: bool(caplog.records))
        ctx.abort()

    stopping = asyncio.create_task(stop())
    with caplog.at_level(logging.WARNING, "agentnb"):
        assert await asyncio.wait_for(said_in(LoopAgent("L", [inside()]), ctx), 60) == "INVOCATION_ABORTED"
    await stopping
    assert [record.message for record in caplog.records] == [
        "L loops without a limit over sub-agents that emit no event: set max_iterations."
    ]


async def test_a_sub_agent_without_events_has_a_checkpoint() -> None:
    loop = LoopAgent("L", [Silent("S"), K("A")], 1)
    assert await said_in(loop, is_resumable=True) == "CK(L,S,0) CK(L,A,0) A#1 END(L)"


async def test_every_event_is_passed_on_as_the_same_object() -> None:
    made: list[Event] = []

    class Maker(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            for number in range(3):
                content = SimpleNamespace(parts=[SimpleNamespace(text=f"{number}", function_call=None)])
                made.append(Event(author=self.name, content=content, partial=number == 1, branch="x", custom=number))
                yield made[-1]

    events = await events_in(LoopAgent("OUT", [LoopAgent("L", [Maker("M")], 2)], 1), InvocationContext())
    assert len(events) == 6
    assert all(event is original for event, original in zip(events, made, strict=True))
    assert [event.text for event in events] == ["0", "1", "2"] * 2


class Recites(BaseAgent):
    """An agent that emits the same event objects in every run."""

    said: Any = ()

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        for event in self.said:
            yield event


def recites(*said: Event) -> Recites:
    return Recites("X", said=said)


async def test_an_event_object_emitted_again_escalates_again() -> None:
    out = Event(author="X", content="out", actions=EventActions(escalate=True))
    inner = LoopAgent("IN", [recites(Event(author="X", content="x"), out)], 4)
    assert await said_in(LoopAgent("OUT", [inner, K("Y")], 2)) == "x out[esc] Y#1 x out[esc] Y#2"


async def test_an_event_object_emitted_again_pauses_again() -> None:
    loop, ctx = LoopAgent("L", [recites(pausing("X", "wait")), K("Y")]), InvocationContext(is_resumable=True)
    assert await said_in(loop, ctx) == "CK(L,X,0) wait[pause]"
    assert await said_in(loop, resumed(ctx)) == "wait[pause]"


async def test_an_event_object_emitted_again_is_recorded_again() -> None:
    ctx = InvocationContext()
    await events_in(LoopAgent("L", [recites(Event(author="X", content="x"))], 3), ctx)
    assert [event.text for event in ctx.session.events] == ["x", "x", "x"]


async def test_a_session_keeps_all_events_except_partial_ones() -> None:
    ctx = InvocationContext(is_resumable=True)
    await events_in(LoopAgent("L", [recites(Event("X", "par", partial=True), Event("X", "whole"))], 1), ctx)
    assert [short(event) for event in ctx.session.events] == ["CK(L,X,0)", "whole", "END(L)"]


async def test_every_event_is_json_and_has_its_invocation_id() -> None:
    ctx = InvocationContext(is_resumable=True)
    events = await events_in(abc(2, b={"pause": 2}), ctx)
    assert len({event.id for event in events}) == len(events)
    for event in events:
        assert event.timestamp
        assert Event.model_validate_json(event.model_dump_json()) == event
    assert {event.invocation_id for event in events if event.author == "L"} == {ctx.invocation_id}


async def test_two_concurrent_invocations_of_one_loop_are_independent() -> None:
    loop = abc(2)
    both = await asyncio.gather(*(events_in(loop, InvocationContext(is_resumable=True)) for _ in range(2)))
    one, other = ([short(event).split("#")[0] for event in events] for events in both)
    assert one == other
    assert one[-1] == "END(L)"


async def test_an_event_can_have_any_content() -> None:
    odd = [None, "", "\ud800", {"parts": [{"text": "x"}, {"blob": b"\xff"}]}, object(), float("nan"), ["a"], {1: {2}}]

    class Odd(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            for content in odd:
                yield Event(author="", content=content, metadata=object())

    run = LoopAgent("L", [Odd("O")], 1).start(None)
    await run
    run.snapshot().to_json()
    assert len(await events_in(LoopAgent("L", [Odd("O")], 1), InvocationContext())) == len(odd)


# -- escalating ----------------------------------------------------------------------------------------------------


async def test_adk_05_an_escalation_ends_the_loop_after_its_agent_has_finished() -> None:
    loop = abc(b={"escalate": 1, "says": 1})
    assert await said_in(loop, is_resumable=True) == "CK(L,A,0) A#1 CK(L,B,0) B#1[esc] B#1+1 END(L)"
    assert await said_in(abc(b={"escalate": 1, "says": 1})) == "A#1 B#1[esc] B#1+1"


@pytest.mark.parametrize(
    ("who", "said"),
    [("a", "A#1 B#1 C#1 A#2[esc]"), ("b", "A#1 B#1 C#1 A#2 B#2[esc]"), ("c", "A#1 B#1 C#1 A#2 B#2 C#2[esc]")],
)
async def test_any_sub_agent_can_escalate_in_any_pass(who: str, said: str) -> None:
    ctx = InvocationContext(is_resumable=True)
    events = await events_in(abc(**{who: {"escalate": 2}}), ctx)
    assert events[-1].reason == "escalated"
    assert [short(event) for event in events if not short(event).startswith("CK")] == [*said.split(), "END(L)"]
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {"L": True})


async def test_an_escalation_in_the_last_pass_is_the_reason_of_the_end() -> None:
    events = await events_in(abc(1, c={"escalate": 1}), InvocationContext(is_resumable=True))
    assert events[-1].reason == "escalated"


async def test_escalate_false_does_not_escalate() -> None:
    class Checker(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content="no", actions=EventActions(escalate=False))

    assert await said_in(LoopAgent("L", [Checker("A")], 2)) == "no no"


async def test_flags_on_a_partial_event_have_no_effect() -> None:
    loop = abc(1, a={"escalate": 1, "partial": True})
    assert await said_in(loop, is_resumable=True) == ("CK(L,A,0) A#1[esc][partial] CK(L,B,0) B#1 CK(L,C,0) C#1 END(L)")

    class Asks(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            event = pausing(self.name, "ask")
            event.partial = True
            yield event

    assert await said_in(LoopAgent("L", [Asks("P"), K("A")], 1)) == "ask[pause][partial] A#1"


async def test_adk_15_an_escalation_ends_the_nearest_loop() -> None:
    def loop(scope: str | None) -> LoopAgent:
        return LoopAgent("OUT", [LoopAgent("IN", [K("X", escalate=2, scope=scope)], 3), K("Y")], 2)

    assert await said_in(loop(None)) == "X#1 X#2[esc] Y#1 X#3 X#4 X#5 Y#2"
    assert await said_in(loop("IN")) == "X#1 X#2[esc] Y#1 X#3 X#4 X#5 Y#2"
    for scope in ("root", "OUT"):
        assert await said_in(loop(scope)) == "X#1 X#2[esc]"
        assert await said_in(loop(scope), is_resumable=True) == (
            "CK(OUT,IN,0) CK(IN,X,0) X#1 CK(IN,X,1) X#2[esc] END(IN) END(OUT)"
        )


async def test_an_escalation_can_name_a_loop_between_the_nearest_and_the_root() -> None:
    inner = LoopAgent("IN", [K("X", escalate=1, scope="MID")], 3)
    loop = LoopAgent("OUT", [LoopAgent("MID", [inner, K("Y")], 3), K("Z")], 2)
    assert await said_in(loop) == "X#1[esc] Z#1 X#2 X#3 X#4 Y#1 X#5 X#6 X#7 Y#2 X#8 X#9 X#10 Y#3 Z#2"


async def test_an_escalation_with_an_unknown_scope_ends_the_loop() -> None:
    assert await said_in(LoopAgent("L", [K("X", escalate="all", scope="nobody")], 3)) == "X#1[esc]"


async def test_of_several_escalations_in_one_run_the_widest_takes_effect() -> None:
    class Twice(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content="a", actions=EventActions(escalate=True))
            yield Event(author=self.name, content="b", actions=EventActions(escalate=True, scope="root"))
            yield Event(author=self.name, content="c", actions=EventActions(escalate=True))
            yield Event(author=self.name, content="d")

    loop = LoopAgent("OUT", [LoopAgent("IN", [Twice("X")]), K("Y")], 1)
    assert await said_in(loop) == "a[esc] b[esc] c[esc] d"


@pytest.mark.parametrize("scopes", [("MID", "OUT"), ("OUT", "MID"), ("IN", "OUT"), ("OUT", "IN")])
async def test_of_several_named_loops_in_one_run_the_outermost_ends(scopes: tuple[str, str]) -> None:
    class Twice(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            for scope in scopes:
                yield Event(author=self.name, content=scope, actions=EventActions(escalate=True, scope=scope))

    inner = LoopAgent("IN", [Twice("X"), K("U")], 1)
    loop = LoopAgent("TOP", [LoopAgent("OUT", [LoopAgent("MID", [inner, K("V")], 1), K("Y")], 1), K("Z")], 1)
    assert await said_in(loop) == f"{scopes[0]}[esc] {scopes[1]}[esc] Z#1"


async def test_a_model_in_a_resumed_invocation_gets_the_messages_before_its_checkpoint() -> None:
    def loop(*turns: str) -> tuple[LoopAgent, ScriptedLLM]:
        llm = ScriptedLLM(turns)
        return LoopAgent("L", [SessionLoop(llm, name="writer"), SessionLoop(llm, name="critic")], 2), llm

    ctx = InvocationContext(is_resumable=True, user_content="write")
    async with aclosing(loop("draft", "shorter", "lost")[0].run_async(ctx)) as events:
        async for event in events:
            if event.text == "lost" and not event.partial:
                break
    session = Session(events=[Event.model_validate_json(event.model_dump_json()) for event in ctx.session.events])
    resumed = InvocationContext(is_resumable=True, user_content="write", agent_states=ctx.agent_states, session=session)
    again, llm = loop("short", "good")
    await events_in(again, resumed)
    heard = [[message["content"] for message in request.messages] for request in llm.requests]
    draft, short_one = "For context:\n[writer] said: draft", "For context:\n[writer] said: short"
    assert heard[0] == ["write", "draft", "For context:\n[critic] said: shorter"]
    assert heard[1] == ["write", draft, "shorter", short_one]


class Ear:
    """A model that records its messages and answers with their number."""

    def __init__(self) -> None:
        self.heard: list[list[str]] = []

    async def stream(self, messages: Any, **options: Any) -> Any:
        self.heard.append([message["content"] for message in messages])
        yield {"type": "text_delta", "content": f"heard {len(messages)}"}
        yield {"type": "stop", "reason": "stop"}


def solves() -> ExecutionLoop:
    return ExecutionLoop(ScriptedLLM(['{"calls": [], "output": {"v": 1}}'] * 2), [], name="solves")


COME_TO: dict[str, Callable[[], Loop]] = {
    "an execution loop": solves,
    "an engine": lambda: ConversationEngine(name="plans"),
    "a loop agent": lambda: LoopAgent("IN", [K("X"), solves()], 1),
    "a loop agent whose sub-agent escalates": lambda: LoopAgent("IN", [solves(), K("X", escalate="all"), K("Y")]),
}


@pytest.mark.parametrize("child", COME_TO)
async def test_a_model_in_a_resumed_invocation_gets_the_results_of_its_siblings(child: str) -> None:
    def loop(ear: Ear) -> LoopAgent:
        return LoopAgent("L", [COME_TO[child](), SessionLoop(ear, name="first"), SessionLoop(ear, name="second")], 1)

    whole = Ear()
    events = await events_in(loop(whole), InvocationContext(is_resumable=True, user_content="go"))
    for upto, event in enumerate(events, 1):
        ctx, ear = InvocationContext(is_resumable=True, user_content="go"), Ear()
        if event.partial:
            continue
        await events_in(loop(Ear()), ctx, upto=upto)
        session = Session(events=[Event.model_validate_json(event.model_dump_json()) for event in ctx.session.events])
        again = resumed(ctx)
        again.session, again.user_content = session, "go"
        await events_in(loop(ear), again)
        assert ear.heard == whole.heard[len(whole.heard) - len(ear.heard) :]
        assert ear.heard or short(event) in ("END(L)", "heard 3")


async def test_a_model_in_a_resumed_pass_gets_the_messages_of_the_previous_pass() -> None:
    def loop(ear: Ear) -> LoopAgent:
        return LoopAgent("OUT", [LoopAgent("IN", [SessionLoop(ear, name="first"), solves()], 1)], 2)

    ctx, ear = InvocationContext(is_resumable=True, user_content="go"), Ear()
    async with aclosing(loop(Ear()).run_async(ctx)) as events:
        async for event in events:
            if short(event) == "CK(OUT,IN,1)":
                break
    await events_in(loop(ear), ctx)
    [[go, own, *others]] = ear.heard
    assert (go, own) == ("go", "heard 1")
    assert '[IN] said: {"v":1}' in others[-1]


async def test_a_model_ends_the_loop_with_the_tool_exit_loop() -> None:
    llm = ScriptedLLM(["draft", says("good", call("exit_loop", id="x"))])
    loop = LoopAgent("L", [SessionLoop(llm, [exit_loop], name="critic"), K("A")])
    events = await events_in(loop, InvocationContext(is_resumable=True, user_content="write"))
    assert events[-1].reason == "escalated"
    assert (
        " ".join(short(e) for e in events if not e.partial)
        == "CK(L,critic,0) draft CK(L,A,0) A#1 CK(L,critic,1) good -[esc] END(L)"
    )
    llm.assert_complete()


# -- pausing -------------------------------------------------------------------------------------------------------


async def test_adk_06_a_pause_ends_the_stream_without_an_end_event() -> None:
    ctx = InvocationContext(is_resumable=True)
    assert await said_in(abc(3, b={"pause": 1}), ctx) == "CK(L,A,0) A#1 CK(L,B,0) B#1[pause]"
    assert ctx.agent_states == {"L": {"current_sub_agent": "B", "times_looped": 0}}
    assert ctx.end_of_agents == {"L": False}
    assert ctx.run is not None
    assert ctx.run.stop_reason == "suspended"


@pytest.mark.parametrize(
    ("who", "first", "rest"),
    [
        ("a", "CK(L,A,0) A#1[pause]", "A#2 CK(L,B,0) B#1 CK(L,C,0) C#1 END(L)"),
        ("b", "CK(L,A,0) A#1 CK(L,B,0) B#1[pause]", "B#2 CK(L,C,0) C#1 END(L)"),
        ("c", "CK(L,A,0) A#1 CK(L,B,0) B#1 CK(L,C,0) C#1[pause]", "C#2 END(L)"),
    ],
)
async def test_a_paused_agent_runs_again_when_resumed(who: str, first: str, rest: str) -> None:
    loop = abc(1, **{who: {"pause": 1}})
    ctx = InvocationContext(is_resumable=True)
    assert await said_in(loop, ctx) == first
    assert await said_in(loop, resumed(ctx)) == rest


async def test_resuming_with_the_same_context_is_equivalent_to_a_new_one() -> None:
    loop, ctx = abc(1, b={"pause": 1}), InvocationContext(is_resumable=True)
    await said_in(loop, ctx)
    assert await said_in(loop, ctx) == "B#2 CK(L,C,0) C#1 END(L)"


async def test_a_resumed_agent_can_pause_again() -> None:
    loop, ctx = abc(1, b={"pause": "all"}), InvocationContext(is_resumable=True)
    assert await said_in(loop, ctx) == "CK(L,A,0) A#1 CK(L,B,0) B#1[pause]"
    for run in (2, 3):
        ctx = resumed(ctx)
        assert await said_in(loop, ctx) == f"B#{run}[pause]"
        assert ctx.agent_states == {"L": {"current_sub_agent": "B", "times_looped": 0}}


async def test_an_agent_that_pauses_finishes_its_events_first() -> None:
    assert await said_in(abc(1, b={"pause": 1, "says": 2})) == "A#1 B#1[pause] B#1+1 B#1+2"


async def test_a_pause_has_precedence_over_an_escalation() -> None:
    class Both(BaseAgent):
        runs = 0

        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            self.runs += 1
            if self.runs == 1:
                yield Event(author=self.name, content="esc", actions=EventActions(escalate=True))
                yield pausing(self.name, "ask")
            else:
                yield Event(author=self.name, content="done")

    loop, ctx = LoopAgent("L", [Both("B"), K("C")], 1), InvocationContext(is_resumable=True)
    assert await said_in(loop, ctx) == "CK(L,B,0) esc[esc] ask[pause]"
    assert await said_in(loop, resumed(ctx)) == "done CK(L,C,0) C#1 END(L)"


async def test_an_invocation_that_is_not_resumable_is_suspended_by_a_pause() -> None:
    ctx = InvocationContext()
    assert await said_in(abc(3, b={"pause": 1}), ctx) == "A#1 B#1[pause]"
    assert ctx.run is not None
    assert (ctx.run.stop_reason, ctx.is_resumable) == ("suspended", False)
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {})


def calling(*ids: str) -> dict[str, Any]:
    return {"parts": [{"function_call": {"id": id, "name": "f", "args": {}}} for id in ids]}


@pytest.mark.parametrize("content", [calling("f"), {"role": "model", **calling("g", "f")}])
@pytest.mark.parametrize("ids", [{"f"}, ["f"], ("f",), {"f", "other"}])
async def test_a_call_with_a_long_running_id_pauses(content: Any, ids: Any) -> None:
    loop = LoopAgent("L", [recites(Event(author="X", content=content, long_running_tool_ids=ids)), K("B")], 1)
    assert await said_in(loop) == "-[pause]"


@pytest.mark.parametrize("name", ["adk_request_input", "adk_request_credential"])
async def test_a_call_that_asks_a_person_pauses_independent_of_its_id(name: str) -> None:
    event = Event(author="X", content={"parts": [{"function_call": {"id": "f", "name": name}}]})
    assert await said_in(LoopAgent("L", [recites(event), K("B")], 1)) == "-[pause]"


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("text", {"f"}),
        (None, {"f"}),
        (calling("f"), None),
        (calling("f"), set()),
        (calling("f"), {"g"}),
        ({"parts": []}, {"f"}),
        ({"parts": [{"function_response": {"id": "f", "name": "n", "response": {}}}]}, {"f"}),
    ],
)
async def test_a_long_running_id_without_a_call_does_not_pause(content: Any, ids: Any) -> None:
    event = Event(author="X", content=content, **({} if ids is None else {"long_running_tool_ids": ids}))
    assert (await said_in(LoopAgent("L", [recites(event), K("B")], 1))).endswith(" B#1")


async def test_adk_17_a_pause_in_a_nested_loop_is_resumed_inside_it() -> None:
    inner = LoopAgent("IN", [K("X"), K("P", pause=2)], 3)
    loop, ctx = LoopAgent("OUT", [K("A"), inner, K("C")], 2), InvocationContext(is_resumable=True)
    await said_in(loop, ctx)
    assert ctx.agent_states == {
        "OUT": {"current_sub_agent": "IN", "times_looped": 0},
        "IN": {"current_sub_agent": "P", "times_looped": 1},
    }
    again = await said_in(loop, resumed(ctx))
    assert again.startswith("P#3 CK(IN,X,2) X#3 CK(IN,P,2) P#4 END(IN) CK(OUT,C,0) C#1 CK(OUT,A,1) A#2 CK(OUT,IN,1)")
    assert again.endswith(
        "CK(IN,X,0) X#4 CK(IN,P,0) P#5 CK(IN,X,1) X#5 CK(IN,P,1) P#6 CK(IN,X,2) X#6 CK(IN,P,2) P#7"
        " END(IN) CK(OUT,C,1) C#2 END(OUT)"
    )


# -- resuming ------------------------------------------------------------------------------------------------------


async def test_an_ended_invocation_has_no_further_events() -> None:
    loop, ctx = abc(1), InvocationContext(is_resumable=True)
    await said_in(loop, ctx)
    assert await said_in(loop, ctx) == ""
    assert await said_in(loop, resumed(ctx)) == ""


async def test_an_agent_whose_end_is_not_in_the_log_runs_again() -> None:
    loop, ctx = abc(1), InvocationContext(is_resumable=True)
    await events_in(loop, ctx, upto=2)  # CK(L,A,0) A#1
    assert await said_in(loop, resumed(ctx)) == "A#2 CK(L,B,0) B#1 CK(L,C,0) C#1 END(L)"


@pytest.mark.parametrize("upto", range(1, 13))
async def test_an_invocation_can_be_resumed_after_every_event(upto: int) -> None:
    loop, ctx = abc(2), InvocationContext(is_resumable=True)
    first = [short(event) for event in await events_in(loop, ctx, upto=upto)]
    rest = (await said_in(loop, resumed(ctx))).split()
    names = [said[0] for said in first + rest if "#" in said]
    in_flight = len(first) % 2 == 0  # the agent of the last checkpoint has emitted an event, and runs again
    where = (upto - 1) // 2
    assert names == list("ABCABC"[: where + 1] + "ABCABC"[where:] if in_flight else "ABCABC")
    assert rest[-1] == "END(L)"
    assert [said for said in rest if said.startswith("CK")] == [
        f"CK(L,{name},{n})" for n, name in [(n, name) for n in (0, 1) for name in "ABC"][where + 1 :]
    ]


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("run", [1, 2])
async def test_adk_09_an_exception_is_raised_unchanged_and_its_agent_runs_again(position: int, run: int) -> None:
    error = ValueError("mine")
    error.__cause__ = KeyError("why")
    name = "ABC"[position]
    loop, ctx = abc(2, **{name.lower(): {"boom": run, "error": error}}), InvocationContext(is_resumable=True)
    with pytest.raises(ValueError, match="mine") as raised:
        await said_in(loop, ctx)
    assert raised.value is error
    assert isinstance(error.__cause__, KeyError)
    assert ctx.agent_states == {"L": {"current_sub_agent": name, "times_looped": run - 1}}
    assert ctx.end_of_agents == {"L": False}
    everything = [f"CK(L,{agent},{n})" for n in (0, 1) for agent in "ABC"]
    rest = (await said_in(loop, resumed(ctx))).split()
    assert rest[0] == f"{name}#{run + 1}"
    assert [said for said in rest if said.startswith("CK")] == everything[3 * (run - 1) + position + 1 :]
    assert rest[-1] == "END(L)"


async def test_an_exception_after_an_event_of_an_agent_is_raised() -> None:
    class Breaks(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content="a", actions=EventActions(escalate=True))
            raise LookupError("gone")

    ctx = InvocationContext(is_resumable=True)
    stream = LoopAgent("OUT", [LoopAgent("IN", [Breaks("X")])]).run_async(ctx)
    assert [short(await anext(stream)) for _ in range(3)] == ["CK(OUT,IN,0)", "CK(IN,X,0)", "a[esc]"]
    with pytest.raises(LookupError, match="gone"):
        await anext(stream)
    assert await anext(stream, None) is None
    assert ctx.agent_states["IN"] == {"current_sub_agent": "X", "times_looped": 0}


@pytest.mark.parametrize("error", [KeyError("k"), ExceptionGroup("g", [ValueError("x")])])
async def test_an_exception_of_a_nested_loop_is_raised_unchanged(error: Exception) -> None:
    inner = LoopAgent("IN", [K("X", boom=1, error=error)])
    with pytest.raises(type(error)) as raised:
        await said_in(LoopAgent("OUT", [inner]), is_resumable=True)
    assert raised.value is error


async def test_a_cancelled_error_raised_by_an_agent_is_raised_unchanged() -> None:
    error = asyncio.CancelledError("its own")

    class Gives(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content="before")
            raise error

    ctx = InvocationContext(is_resumable=True)
    with pytest.raises(asyncio.CancelledError) as raised:
        await said_in(LoopAgent("L", [Gives("X"), K("Y")]), ctx)
    assert raised.value is error
    assert ctx.agent_states["L"] == {"current_sub_agent": "X", "times_looped": 0}


async def test_an_exception_thrown_into_the_stream_ends_it_at_its_position() -> None:
    log: list[str] = []
    ctx = InvocationContext(is_resumable=True)
    stream = abc(a={"log": log, "says": 1}).run_async(ctx)
    assert [short(await anext(stream)) for _ in range(2)] == ["CK(L,A,0)", "A#1"]
    with pytest.raises(LookupError, match="thrown"):
        await stream.athrow(LookupError("thrown"))
    assert log == ["A#1 begins", "A#1 ends"]
    assert ctx.agent_states["L"] == {"current_sub_agent": "A", "times_looped": 0}


async def test_an_exception_has_precedence_over_a_pause() -> None:
    class Breaks(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield pausing(self.name, "ask")
            raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await said_in(LoopAgent("L", [Breaks("X")]), is_resumable=True)


@pytest.mark.parametrize("upto", range(1, 9))
async def test_the_states_of_a_context_are_those_of_its_events(upto: int) -> None:
    def loop() -> LoopAgent:
        return LoopAgent("OUT", [K("A"), LoopAgent("IN", [K("X")], 1)], 2)

    ctx = InvocationContext(is_resumable=True)
    states: dict[str, Any] = {}
    ends: dict[str, bool] = {}
    for event in await events_in(loop(), ctx, upto=upto):
        if event.actions.end_of_agent:
            ends[event.author] = True
            states.pop(event.author, None)
        elif event.actions.agent_state is not None:
            states[event.author], ends[event.author] = event.actions.agent_state, False
    assert ctx.agent_states.items() <= states.items()
    from_the_log = InvocationContext(is_resumable=True, agent_states=states, end_of_agents=ends)
    assert await said_in(loop(), from_the_log) == await said_in(loop(), resumed(ctx))


@pytest.mark.parametrize(("saved", "said"), [(1, "A#1 B#1 C#1"), (0, "A#1 B#1 C#1 A#2 B#2 C#2")])
async def test_a_removed_sub_agent_restarts_the_pass_with_its_checkpoint(saved: int, said: str, caplog: Any) -> None:
    states = {"L": {"current_sub_agent": "GONE", "times_looped": saved}}
    events = (await said_in(abc(2), is_resumable=True, agent_states=states)).split()
    assert events[0] == f"CK(L,A,{saved})"
    assert [one for one in events if "#" in one] == said.split()
    assert "no sub-agent 'GONE'" in caplog.text


async def test_an_added_sub_agent_runs_at_its_position() -> None:
    loop = LoopAgent("L", [K("A"), K("B"), K("N")], 1)
    states = {"L": {"current_sub_agent": "B", "times_looped": 0}}
    assert await said_in(loop, is_resumable=True, agent_states=states) == "B#1 CK(L,N,0) N#1 END(L)"


async def test_nested_states_are_cleared_by_the_checkpoint_of_a_restarted_pass() -> None:
    """The events after that checkpoint are the same whether or not the stream was closed there."""
    loop = LoopAgent("OUT", [LoopAgent("IN", [K("X"), K("P")], 1)], 1)
    states = {
        "OUT": {"current_sub_agent": "GONE", "times_looped": 0},
        "IN": {"current_sub_agent": "P", "times_looped": 0},
    }
    ctx = InvocationContext(is_resumable=True, agent_states=states)
    [checkpoint] = await events_in(loop, ctx, upto=1)
    assert short(checkpoint) == "CK(OUT,IN,0)"
    assert ctx.agent_states == {"OUT": {"current_sub_agent": "IN", "times_looped": 0}}
    assert await said_in(loop, resumed(ctx)) == "CK(IN,X,0) X#1 CK(IN,P,0) P#1 END(IN) END(OUT)"


@pytest.mark.parametrize("current", ["A", "C", "GONE", ""])
@pytest.mark.parametrize("passes", [2, 3])
async def test_a_state_with_all_passes_complete_emits_only_the_end(current: str, passes: int) -> None:
    states = {"L": {"current_sub_agent": current, "times_looped": passes}}
    assert await said_in(abc(2), is_resumable=True, agent_states=states) == "END(L)"


async def test_a_state_can_be_given_as_its_model() -> None:
    states: Any = {"L": LoopAgentState(current_sub_agent="C", times_looped=1)}
    ctx = InvocationContext(is_resumable=True, agent_states=states)
    assert await said_in(abc(2), ctx) == "C#1 END(L)"


async def test_an_invocation_that_is_not_resumable_continues_from_given_states() -> None:
    ctx = InvocationContext(agent_states={"L": {"current_sub_agent": "C", "times_looped": 1}})
    assert await said_in(abc(2), ctx) == "C#1"
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {})


async def test_an_invalid_state_is_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        await said_in(abc(2), is_resumable=True, agent_states={"L": {"extra": 1}})


async def test_states_of_sub_agents_can_be_reset_during_a_pause() -> None:
    loop = LoopAgent("OUT", [LoopAgent("IN", [K("X"), K("P", pause=1)], 3)], 1)
    ctx = InvocationContext(is_resumable=True)
    await events_in(loop, ctx)
    assert ctx.agent_states["IN"]["current_sub_agent"] == "P"
    ctx.reset_sub_agent_states("OUT")
    assert "IN" not in ctx.agent_states
    assert (await said_in(loop, resumed(ctx))).startswith("CK(IN,X,0) X#2")


async def test_a_nested_loop_that_had_ended_does_not_run_again() -> None:
    loop = LoopAgent("OUT", [LoopAgent("IN", [K("X")], 1), K("Y")], 2)
    ctx = InvocationContext(is_resumable=True)
    events = await events_in(loop, ctx, upto=4)
    assert short(events[-1]) == "END(IN)"
    assert await said_in(loop, resumed(ctx)) == (
        "CK(OUT,Y,0) Y#1 CK(OUT,IN,1) CK(IN,X,0) X#2 END(IN) CK(OUT,Y,1) Y#2 END(OUT)"
    )


@pytest.mark.parametrize(
    ("scope", "rest"),
    [
        ("root", "END(IN) END(MID) END(OUT)"),
        ("OUT", "END(IN) END(MID) END(OUT)"),
        ("MID", "END(IN) END(MID) CK(OUT,Z,0) Z#1 END(OUT)"),
        (None, "END(IN) CK(MID,Y,0) Y#1 END(MID) CK(OUT,Z,0) Z#1 END(OUT)"),
    ],
)
async def test_an_escalation_continues_after_the_stream_was_closed(scope: str | None, rest: str) -> None:
    def loop() -> LoopAgent:
        inner = LoopAgent("IN", [K("X", escalate=1, scope=scope)])
        return LoopAgent("OUT", [LoopAgent("MID", [inner, K("Y")], 1), K("Z")], 1)

    before = ["CK(OUT,MID,0)", "CK(MID,IN,0)", "CK(IN,X,0)", "X#1[esc]"]
    whole = [*before, *rest.split()]
    assert await said_in(loop(), is_resumable=True) == " ".join(whole)
    for upto in range(5, len(whole) + 1):
        if whole[upto - 1].startswith(("CK", "END")):
            ctx = InvocationContext(is_resumable=True)
            await events_in(loop(), ctx, upto=upto)
            assert await said_in(loop(), resumed(ctx)) == " ".join(whole[upto:])


async def test_an_interrupted_escalation_ends_the_outer_loop_without_the_removed_inner_loop() -> None:
    ctx = InvocationContext(is_resumable=True)
    inner = LoopAgent("IN", [K("X", escalate=1, scope="root")])
    assert short((await events_in(LoopAgent("OUT", [inner, K("Z")], 1), ctx, upto=4))[-1]) == "END(IN)"
    assert await said_in(LoopAgent("OUT", [K("Z")], 1), resumed(ctx)) == "END(OUT)"


async def test_an_escalation_interrupted_twice_still_takes_effect() -> None:
    def loop() -> LoopAgent:
        inner = LoopAgent("IN", [K("X", escalate=1, scope="root")])
        return LoopAgent("OUT", [LoopAgent("MID", [inner, K("Y")], 1), K("Z")], 1)

    ctx = InvocationContext(is_resumable=True)
    assert short((await events_in(loop(), ctx, upto=5))[-1]) == "END(IN)"
    assert ctx.end_of_agents == {"OUT": True, "MID": True, "IN": True}
    ctx = resumed(ctx)
    assert [short(event) for event in await events_in(loop(), ctx, upto=1)] == ["END(MID)"]
    ctx = resumed(ctx)
    assert await said_in(loop(), ctx) == "END(OUT)"
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {"OUT": True, "MID": True, "IN": True})


async def test_a_complete_pass_clears_the_states_of_nested_loops() -> None:
    loop, ctx = (
        LoopAgent("OUT", [LoopAgent("IN", [K("X")], 1), K("Y", pause=2)], 3),
        InvocationContext(is_resumable=True),
    )
    await said_in(loop, ctx)
    assert ctx.end_of_agents == {"OUT": False, "IN": True}
    assert ctx.agent_states == {"OUT": {"current_sub_agent": "Y", "times_looped": 1}}


# -- aborting and closing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upto", range(1, 9))
async def test_an_abort_ends_the_stream_with_one_event_and_can_be_resumed(upto: int) -> None:
    log: list[str] = []
    whole = (await said_in(abc(2, a={"says": 1}), is_resumable=True)).split()
    loop = abc(2, a={"log": log, "says": 1}, b={"log": log}, c={"log": log})
    ctx, events = InvocationContext(is_resumable=True), []
    async for event in loop.run_async(ctx):
        events.append(event)
        if len(events) == upto:
            ctx.abort()
    assert len(events) == upto + 1
    assert events[-1].error_code == "INVOCATION_ABORTED"
    assert sum(entry.endswith("begins") for entry in log) == sum(entry.endswith("ends") for entry in log)
    rest = (await said_in(loop, resumed(ctx))).split()
    assert rest[-1] == "END(L)"
    before = [short(event) for event in events[:-1]]
    assert before == whole[:upto]
    assert [said for said in before + rest if said[:2] == "CK"] == [said for said in whole if said[:2] == "CK"]


async def test_the_abort_event_has_a_response_for_each_open_call() -> None:
    """The session can be sent to a model: it has one result for each call."""

    def made(id: str) -> dict[str, Any]:
        return {"function_call": {"id": id, "name": "look", "args": {}}}

    class Calls(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content={"parts": [made("c1"), made("c2")]})
            answered = {"function_response": {"id": "c1", "name": "look", "response": "seen"}}
            yield Event(author=self.name, content={"parts": [answered, made("lr")]}, long_running_tool_ids={"lr"})
            ctx.abort()
            yield Event(author=self.name, content={"parts": [made("c3")]})

    ctx = InvocationContext(is_resumable=True)
    *_, aborted = await events_in(LoopAgent("L", [Calls("A")], 1), ctx)
    assert aborted.error_code == "INVOCATION_ABORTED"
    answers = {answer["id"]: answer["response"] for answer in aborted.get_function_responses()}
    assert answers == {id: {"error": "Operation aborted"} for id in ("c2", "c3")}
    assert ctx.session.open_calls() == []


async def test_an_agent_can_abort_its_own_invocation() -> None:
    class Aborts(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content="one")
            ctx.abort()
            while True:
                yield Event(author=self.name, content="two")

    assert await said_in(LoopAgent("L", [Aborts("A"), K("B")])) == "one two INVOCATION_ABORTED"


async def test_an_invocation_aborted_before_its_start_runs_no_agent() -> None:
    ctx, log = InvocationContext(is_resumable=True), []
    ctx.abort()
    assert await said_in(abc(a={"log": log}), ctx) == "INVOCATION_ABORTED"
    assert log == []


async def test_an_abort_cancels_a_waiting_agent() -> None:
    waiting = asyncio.Event()

    class Waits(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            waiting.set()
            await asyncio.Event().wait()
            yield Event(author=self.name)

    ctx = InvocationContext()
    reading = asyncio.create_task(said_in(LoopAgent("L", [Waits("W")]), ctx))
    await waiting.wait()
    ctx.abort()
    assert await reading == "INVOCATION_ABORTED"
    assert running_tasks() == set()


@pytest.mark.parametrize("upto", range(1, 16))
async def test_closing_the_stream_early_runs_every_finally(upto: int) -> None:
    log: list[str] = []
    inner = LoopAgent("IN", [K("X", says=2, log=log), K("Y", log=log)], 2)
    await events_in(
        LoopAgent("OUT", [K("A", says=1, log=log), inner], 2), InvocationContext(is_resumable=True), upto=upto
    )
    assert sum(entry.endswith("begins") for entry in log) == sum(entry.endswith("ends") for entry in log)
    assert running_tasks() == set()


async def test_closing_the_stream_in_another_task_runs_every_finally() -> None:
    log: list[str] = []
    stream = abc(a={"log": log, "says": 3}).run_async(InvocationContext())
    await anext(stream)
    await asyncio.create_task(stream.aclose())  # in another task, as the garbage collector does
    assert log[-1] == "A#1 ends"


async def test_a_stream_left_by_a_break_is_closed_by_the_garbage_collector() -> None:
    log: list[str] = []

    async def read() -> None:
        async for _ in abc(a={"log": log, "says": 3}).run_async(InvocationContext()):
            break

    await read()
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert log[-1] == "A#1 ends"


# -- pulling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_resumable", [True, False])
async def test_an_agent_starts_only_when_the_consumer_requests_the_next_event(is_resumable: bool) -> None:
    log: list[str] = []
    inner = LoopAgent("IN", [K("X", says=1, log=log), K("Y", log=log)], 2)
    loop = LoopAgent("OUT", [K("A", log=log), inner], 2)
    async for event in loop.run_async(InvocationContext(is_resumable=is_resumable)):
        said, at_the_time = short(event), list(log)
        for _ in range(3):
            await asyncio.sleep(0)
        assert log == at_the_time
        if "#" in said:  # its code is suspended at this yield
            assert log[-1] == f"{said} begins" if "+" not in said else log[-1] == f"{said.split('+')[0]} goes on"
        if said.startswith("CK"):
            assert not log or log[-1].endswith("ends")


@pytest.mark.alone
def test_the_cost_of_a_pass_does_not_grow_with_the_number_of_passes() -> None:
    async def passes() -> list[float]:
        loop, times = LoopAgent("OUT", [LoopAgent("IN", [K("X")], 1), K("A")], 600), [time.process_time()]
        async for event in loop.run_async(InvocationContext(is_resumable=True)):
            if event.author == "A":
                times.append(time.process_time())
        assert len(times) == 601
        return times

    assert median_growth(lambda: asyncio.run(passes()), 60) < 3


async def test_loops_can_be_nested_deeply() -> None:
    loop = LoopAgent("L0", [K("A")], 1)
    for depth in range(1, 60):
        loop = LoopAgent(f"L{depth}", [loop], 1)
    ctx = InvocationContext(is_resumable=True)
    events = await events_in(loop, ctx)
    assert [short(event) for event in events[-61:]] == ["A#1", *(f"END(L{depth})" for depth in range(60))]
    assert ctx.end_of_agents == {"L59": True}
    escalating = LoopAgent("L0", [K("A", escalate=1, scope="root")])
    for depth in range(1, 30):
        escalating = LoopAgent(f"L{depth}", [escalating])
    assert await said_in(escalating) == "A#1[esc]"


# -- constructing agents -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["user", "", "a b", "1a", "a-b"])
def test_a_name_must_be_an_identifier(name: str) -> None:
    if name:
        with pytest.raises(ValueError, match="identifier"):
            LoopAgent(name, [])
    assert (LoopAgent(sub_agents=[]).name, K().name) == ("loop_agent", "k")


def test_siblings_must_have_different_names() -> None:
    free = K("B")
    with pytest.raises(ValueError, match="Two sub-agents of L have the name A"):
        LoopAgent("L", [free, K("A"), K("A")])
    with pytest.raises(ValueError, match="have the name s"):
        LoopAgent("L", [SessionLoop(None, name="s"), K("s")])
    LoopAgent("L", [free])  # a refused agent is no parent


def test_an_agent_can_have_only_one_parent() -> None:
    agent = K("A")
    parent = LoopAgent("L", [agent])
    assert agent.parent_agent is parent
    with pytest.raises(ValueError, match="A already has a parent: L"):
        LoopAgent("M", [agent])


def test_invalid_arguments_of_a_loop_are_refused() -> None:
    with pytest.raises(ValueError, match="not 'A'"):
        LoopAgent("L", ["A"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="whole number"):
        LoopAgent("L", [], 1.5)  # type: ignore[arg-type]


def test_a_name_used_twice_in_the_tree_is_logged(caplog: Any) -> None:
    LoopAgent("OUT", [LoopAgent("IN", [K("A")]), K("A")])
    assert "Agents of OUT share a name (['A'])" in caplog.text


async def test_a_nested_loop_can_have_the_name_of_the_outer_loop() -> None:
    loop = LoopAgent("L", [LoopAgent("L", [K("A")], 2)], 2)
    assert await said_in(loop) == "A#1 A#2 A#3 A#4"
    assert (await said_in(LoopAgent("L", [LoopAgent("L", [K("A")], 2)], 2), is_resumable=True)).endswith(
        "END(L) END(L)"
    )


def test_agents_are_found_by_name() -> None:
    x = K("X")
    inner = LoopAgent("IN", [x])
    loop = LoopAgent("OUT", [K("A"), inner])
    assert (loop.find_agent("X"), loop.find_agent("IN"), loop.find_agent("OUT")) == (x, inner, loop)
    assert loop.find_agent("Z") is None


def test_find_sub_agent_searches_below_the_agent_and_not_the_agent_itself() -> None:
    x = K("X")
    loop = LoopAgent("OUT", [LoopAgent("IN", [x])])
    assert (loop.find_sub_agent("X"), loop.find_sub_agent("OUT"), x.find_sub_agent("X")) == (x, None, None)


@pytest.mark.parametrize(
    ("event", "is_final"),
    [
        (Event("A", "hi"), True),
        (Event("A", "h", partial=True), False),
        (Event("A", {"parts": [{"function_call": {"id": "c1", "name": "f"}}]}), False),
        (Event("A", {"parts": [{"function_response": {"id": "c1", "name": "f"}}]}), False),
        (pausing("A", "shall I?"), True),
        (Event("A", {"parts": [{"function_response": {}}]}, EventActions(skip_summarization=True)), True),
    ],
)
def test_is_final_response_depends_on_the_content_of_an_event(event: Event, is_final: bool) -> None:
    assert event.is_final_response() is is_final


async def test_the_agent_of_a_context_is_the_running_agent_and_then_the_given_one() -> None:
    class Looks(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
            yield Event(author=self.name, content=ctx.agent.name)

    loop = LoopAgent("L", [Looks("A")], 1)
    ctx = InvocationContext(agent=loop)
    assert [event.content async for event in ctx.agent.run_async(ctx)] == ["A"]
    assert ctx.agent is loop


def test_the_models_of_the_design_accept_positional_fields() -> None:
    event = Event("A", "hi", EventActions(True), {"x"})
    assert (event.author, event.content, event.actions.escalate, event.long_running_tool_ids) == (
        "A",
        "hi",
        True,
        {"x"},
    )
    assert LoopAgentState("B", 2).model_dump() == {"current_sub_agent": "B", "times_looped": 2}
    with pytest.raises(ValueError, match="extra"):
        LoopAgentState(other=1)


async def test_an_agent_that_yields_no_event_object_is_an_error() -> None:
    class Wrong(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield "text"

    with pytest.raises(TypeError, match="W yielded a str"):
        await said_in(LoopAgent("L", [Wrong("W")], 1))
    with pytest.raises(NotImplementedError, match="override"):
        await said_in(LoopAgent("L", [BaseAgent("B")], 1))


async def test_the_failure_of_a_model_is_raised_unchanged() -> None:
    failure = ConnectionError("down")
    ctx = InvocationContext(is_resumable=True, user_content="hi")
    session = SessionLoop(ScriptedLLM([[failure]]), name="s")
    loop = LoopAgent("L", [session], 1)
    with pytest.raises(ConnectionError) as raised:
        await said_in(loop, ctx)
    assert raised.value is failure
    assert ctx.agent_states == {"L": {"current_sub_agent": "s", "times_looped": 0}}
    again = resumed(ctx)
    again.user_content = "hi"
    session.llm = ScriptedLLM(["fine"])
    assert await said_in(loop, again) == "fine[partial] fine END(L)"
    with pytest.raises(RunFailed):
        await LoopAgent("L", [K("A", boom=1)]).start(None)
