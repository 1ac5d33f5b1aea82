"""What the texts promise of a LoopAgent, checked through its public names only, one claim a test."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import Agent, ConversationEngine, ExecutionLoop, LoopAgent, RunFailed, SessionLoop, Snapshot, tool
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions, InvocationContext, LoopAgentState
from tests.claims import Model, asks, says, words


class Stub(BaseAgent):
    """Says `NAME#n` on its n-th run. `script[n]` says what else happens on that run, `script["all"]` on every one."""

    def __init__(self, name: str, script: dict[Any, str] | None = None, **options: Any) -> None:
        super().__init__(name=name, **options)
        self.script = script or {}
        self.runs = 0
        self.finished = 0

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        self.runs += 1
        what = self.script.get(self.runs, self.script.get("all", ""))
        text = f"{self.name}#{self.runs}"
        try:
            if what == "raise":
                raise RuntimeError(text)
            if "silent" not in what:
                yield event(self.name, text, what)
            if "after" in what:
                yield Event(author=self.name, content=f"{self.name}-after")
            if "then-fail" in what:
                raise LookupError(text)
        finally:
            self.finished += 1


def event(author: str, text: str, what: str = "") -> Event:
    """An event that escalates (`escalate`, `root`, `to=NAME`), pauses (`pause`), or is `partial`."""
    fields: dict[str, Any] = {"author": author, "content": text}
    target = what.partition("to=")[2].split(" ")[0] or ("root" if "root" in what else None)
    if "escalate" in what or target:
        fields["actions"] = EventActions(escalate=True, **({"scope": target} if target else {}))
    if "pause" in what:
        parts = [{"text": text}, {"function_call": {"id": "fc-1", "name": "ask_user", "args": {}}}]
        fields["content"] = {"role": "model", "parts": parts}
        fields["long_running_tool_ids"] = {"fc-1"}
    if "partial" in what:
        fields["partial"] = True
    return Event(**fields)


def short(said: Event) -> str:
    """The notation of loop_agent/SEMANTICS.md, 8. Notation."""
    state = said.actions.agent_state
    if state is not None:
        assert set(state) == {"current_sub_agent", "times_looped"}
        return f"CK({said.author},{state['current_sub_agent']},{state['times_looped']})"
    if said.actions.end_of_agent:
        return f"END({said.author})"
    return (said.error_code or text_of(said)) + ("[esc]" if said.actions.escalate else "")


def text_of(said: Event) -> str:
    content: Any = said.content
    if isinstance(content, str):
        return content
    plain = json.loads(said.model_dump_json())["content"]
    return "".join(part.get("text") or "" for part in plain["parts"])


async def heard(
    agent: Any, ctx: InvocationContext | None = None, *, upto: int | None = None, into: list[str] | None = None
) -> list[str]:
    """What an invocation says, to its end or to its n-th event, where it is closed."""
    out = into if into is not None else []
    async with asyncio.timeout(60), aclosing(agent.run_async(ctx or InvocationContext())) as stream:
        async for said in stream:
            out.append(short(said))
            if len(out) == upto:
                break
    return out


def durable() -> InvocationContext:
    return InvocationContext(is_resumable=True)


def again(ctx: InvocationContext) -> InvocationContext:
    """The invocation as another process would have it."""
    states, ends = json.loads(json.dumps([ctx.agent_states, ctx.end_of_agents]))
    return InvocationContext(is_resumable=True, agent_states=states, end_of_agents=ends)


def loop(*agents: Any, name: str = "L", **options: Any) -> LoopAgent:
    return LoopAgent(name=name, sub_agents=list(agents), **options)


# --- scenarios --------------------------------------------------------------------------------------------------------


async def test_adk_01_a_checkpoint_stands_before_each_run() -> None:
    wanted = "CK(L,A,0) A#1 CK(L,A,1) A#2 END(L)"
    assert await heard(loop(Stub("A"), max_iterations=2), durable()) == words(wanted)
    assert await heard(loop(Stub("A"), max_iterations=2)) == ["A#1", "A#2"]


async def test_adk_02_sub_agents_run_in_order_pass_after_pass() -> None:
    wanted = "CK(L,A,0) A#1 CK(L,B,0) B#1 CK(L,C,0) C#1 CK(L,A,1) A#2 CK(L,B,1) B#2 CK(L,C,1) C#2 END(L)"
    assert await heard(loop(Stub("A"), Stub("B"), Stub("C"), max_iterations=2), durable()) == words(wanted)


@pytest.mark.parametrize("resumable", [True, False])
async def test_adk_05_an_escalation_lets_its_agent_finish_and_ends_the_loop(resumable: bool) -> None:
    last = Stub("C")
    agents = loop(Stub("A"), Stub("B", {"all": "escalate after"}), last)
    said = await heard(agents, InvocationContext(is_resumable=resumable))
    wanted = "CK(L,A,0) A#1 CK(L,B,0) B#1[esc] B-after END(L)" if resumable else "A#1 B#1[esc] B-after"
    assert said == words(wanted)
    assert last.runs == 0


async def test_adk_06_a_pause_stops_at_its_agent_without_an_end() -> None:
    ctx = durable()
    last = Stub("C")
    said = await heard(loop(Stub("A"), Stub("B", {"all": "pause"}), last, max_iterations=3), ctx)
    assert said == words("CK(L,A,0) A#1 CK(L,B,0) B#1")
    assert ctx.agent_states["L"] == {"current_sub_agent": "B", "times_looped": 0}
    assert not ctx.end_of_agents.get("L")
    assert last.runs == 0


async def test_adk_09_an_exception_comes_out_and_its_agent_runs_again() -> None:
    ctx = durable()
    agents = loop(Stub("A"), Stub("B", {1: "raise"}), Stub("C"), max_iterations=2)
    said: list[str] = []
    with pytest.raises(RuntimeError, match="B#1"):
        await heard(agents, ctx, into=said)
    assert said == words("CK(L,A,0) A#1 CK(L,B,0)")
    rest = await heard(agents, again(ctx))
    assert rest == words("B#2 CK(L,C,0) C#1 CK(L,A,1) A#2 CK(L,B,1) B#3 CK(L,C,1) C#2 END(L)")


def adk_15(scope: str = "") -> LoopAgent:
    inner = loop(Stub("X", {2: f"escalate {scope}"}), name="IN", max_iterations=3)
    return loop(inner, Stub("Y"), name="OUT", max_iterations=2)


async def test_adk_15_an_escalation_leaves_the_nearest_loop_or_the_one_it_names() -> None:
    assert await heard(adk_15()) == words("X#1 X#2[esc] Y#1 X#3 X#4 X#5 Y#2")
    assert await heard(adk_15("root")) == words("X#1 X#2[esc]")


async def test_adk_15_each_loop_that_an_escalation_leaves_ends_with_a_checkpoint() -> None:
    said = await heard(adk_15(), durable())
    assert said == words(
        "CK(OUT,IN,0) CK(IN,X,0) X#1 CK(IN,X,1) X#2[esc] END(IN) CK(OUT,Y,0) Y#1 "
        "CK(OUT,IN,1) CK(IN,X,0) X#3 CK(IN,X,1) X#4 CK(IN,X,2) X#5 END(IN) CK(OUT,Y,1) Y#2 END(OUT)"
    )
    assert (await heard(adk_15("root"), durable()))[-3:] == words("X#2[esc] END(IN) END(OUT)")
    assert (await heard(adk_15("to=OUT"), durable()))[-3:] == words("X#2[esc] END(IN) END(OUT)")
    assert (await heard(adk_15("to=IN"), durable())) == said


@pytest.mark.parametrize("fresh", [True, False])
async def test_adk_17_a_pause_inside_a_loop_inside_a_loop(fresh: bool) -> None:
    def build(x_runs: int = 0, p_runs: int = 0) -> tuple[LoopAgent, Stub]:
        first, x, p, c = Stub("A"), Stub("X"), Stub("P", {2: "pause"}), Stub("C")
        first.runs, x.runs, p.runs = min(x_runs, 1), x_runs, p_runs
        inner = loop(x, p, name="IN", max_iterations=3)
        return loop(first, inner, c, name="OUT", max_iterations=2), p

    ctx = durable()
    agents, _ = build()
    said = await heard(agents, ctx)
    assert said == words("CK(OUT,A,0) A#1 CK(OUT,IN,0) CK(IN,X,0) X#1 CK(IN,P,0) P#1 CK(IN,X,1) X#2 CK(IN,P,1) P#2")
    assert ctx.agent_states["OUT"] == {"current_sub_agent": "IN", "times_looped": 0}
    assert ctx.agent_states["IN"] == {"current_sub_agent": "P", "times_looped": 1}
    if fresh:
        agents, _ = build(2, 2)
    rest = await heard(agents, again(ctx))
    assert rest == words(
        "P#3 CK(IN,X,2) X#3 CK(IN,P,2) P#4 END(IN) CK(OUT,C,0) C#1 "
        "CK(OUT,A,1) A#2 CK(OUT,IN,1) CK(IN,X,0) X#4 CK(IN,P,0) P#5 CK(IN,X,1) X#5 CK(IN,P,1) P#6 "
        "CK(IN,X,2) X#6 CK(IN,P,2) P#7 END(IN) CK(OUT,C,1) C#2 END(OUT)"
    )


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 2, 7])
async def test_a_limit_is_a_number_of_passes(limit: int) -> None:
    a, b = Stub("A"), Stub("B")
    said = await heard(loop(a, b, max_iterations=limit), durable())
    assert (a.runs, b.runs) == (limit, limit)
    assert said[-1] == "END(L)"
    assert len(said) == 4 * limit + 1


async def test_no_limit_goes_on_until_someone_escalates() -> None:
    a = Stub("A", {50: "escalate"})
    assert len(await heard(loop(a))) == 50
    assert loop(Stub("A")).max_iterations is None


async def test_a_negative_limit_means_no_pass() -> None:
    a = Stub("A")
    assert await heard(loop(a, max_iterations=-1)) == []
    assert a.runs == 0


async def test_no_limit_over_silence_lets_other_tasks_run() -> None:
    stream = loop(Stub("A", {"all": "silent"})).run_async(InvocationContext())
    reading = asyncio.ensure_future(anext(stream))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.aclose()


async def test_a_pass_is_never_cut_by_the_limit() -> None:
    assert await heard(loop(Stub("A"), Stub("B"), Stub("C"), max_iterations=1)) == ["A#1", "B#1", "C#1"]


# --- empty ------------------------------------------------------------------------------------------------------------


async def test_an_empty_loop() -> None:
    assert await heard(loop()) == []
    assert await heard(loop(), durable()) == ["END(L)"]
    assert await heard(LoopAgent("L", [], 3)) == []


async def test_an_empty_loop_inside() -> None:
    inner = loop(name="IN")
    said = await heard(loop(Stub("A"), inner, Stub("B"), max_iterations=1), durable())
    assert said == words("CK(L,A,0) A#1 CK(L,IN,0) END(IN) CK(L,B,0) B#1 END(L)")


async def test_an_empty_loop_run_says_so() -> None:
    run = loop().start(None)
    await run
    assert run.stop_reason == "empty"
    assert [one.type for one in run.events if one.terminal] == ["run_end"]


# --- escalation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "said"),
    [("A", "A#1[esc]"), ("B", "A#1 B#1[esc]"), ("C", "A#1 B#1 C#1[esc]")],
)
async def test_escalation_from_first_middle_and_last(who: str, said: str) -> None:
    agents = [Stub(name, {"all": "escalate"} if name == who else None) for name in "ABC"]
    assert await heard(loop(*agents, max_iterations=3)) == words(said)


async def test_escalation_of_the_last_in_the_last_pass_is_escalated_not_the_limit() -> None:
    run = loop(Stub("A"), Stub("B", {2: "escalate"}), max_iterations=2).start(None)
    await run
    assert run.stop_reason == "escalated"


async def test_a_limit_is_said_too() -> None:
    run = loop(Stub("A"), max_iterations=2).start(None)
    await run
    assert run.stop_reason == "max_iterations"
    nothing = loop(Stub("A"), max_iterations=0).start(None)
    await nothing
    assert nothing.stop_reason == "max_iterations"


async def test_an_escaped_pass_is_not_counted() -> None:
    agents = loop(Stub("A"), Stub("B", {2: "escalate"}), Stub("C"), max_iterations=5)
    said = await heard(agents, durable())
    assert said[-1] == "END(L)"
    assert [one for one in said if one.startswith("CK")][-1] == "CK(L,B,1)"


async def test_the_event_that_escalates_is_forwarded_unmodified_through_every_loop() -> None:
    seen: list[Event] = []
    made = Event(author="X", content="out", actions=EventActions(escalate=True))

    class Once(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            yield made

    inner = loop(Once(name="X"), name="IN", max_iterations=4)
    async for one in loop(inner, name="OUT", max_iterations=2).run_async(InvocationContext()):
        seen.append(one)
    assert len(seen) == 2
    assert all(one.actions.escalate for one in seen)
    assert all(one.id == made.id and one.author == "X" and one.content == "out" for one in seen)


class Recites(BaseAgent):
    """Says the same events, the very same objects, on every run."""

    def __init__(self, name: str, *said: Event) -> None:
        super().__init__(name=name)
        self.said = said

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        for one in self.said:
            yield one


async def test_the_same_event_said_again_escalates_again() -> None:
    inner = loop(Recites("X", event("X", "x"), event("X", "out", "escalate")), name="IN", max_iterations=4)
    assert await heard(loop(inner, Stub("Y"), name="OUT", max_iterations=2)) == words("x out[esc] Y#1 x out[esc] Y#2")


async def test_the_same_event_said_again_pauses_again() -> None:
    agents = loop(Recites("X", event("X", "wait", "pause")), Stub("Y"))
    ctx = durable()
    assert await heard(agents, ctx) == words("CK(L,X,0) wait")
    assert await heard(agents, again(ctx)) == ["wait"]


async def test_the_same_event_said_again_is_kept_again() -> None:
    ctx = InvocationContext()
    await heard(loop(Recites("X", event("X", "x")), max_iterations=3), ctx)
    assert [text_of(one) for one in ctx.session.events] == ["x", "x", "x"]


async def test_an_escalation_in_three_loops_leaves_as_many_as_it_says() -> None:
    def build(what: str) -> LoopAgent:
        deep = loop(Stub("X", {1: what}), name="I3", max_iterations=2)
        middle = loop(deep, Stub("M"), name="I2", max_iterations=2)
        return loop(middle, Stub("O"), name="I1", max_iterations=1)

    assert await heard(build("escalate")) == words("X#1[esc] M#1 X#2 X#3 M#2 O#1")
    assert await heard(build("to=I2")) == words("X#1[esc] O#1")
    assert await heard(build("to=I1")) == words("X#1[esc]")
    assert await heard(build("root")) == words("X#1[esc]")


async def test_an_escalation_to_nobody_in_the_tree_leaves_the_nearest_or_all_but_never_none() -> None:
    said = await heard(loop(Stub("X", {"all": "to=nobody"}), max_iterations=3))
    assert said == ["X#1[esc]"]


async def test_partial_events_control_nothing() -> None:
    said = await heard(loop(Stub("A", {"all": "partial escalate"}), Stub("B"), max_iterations=2))
    assert said == words("A#1[esc] B#1 A#2[esc] B#2")
    said = await heard(loop(Stub("A", {"all": "partial pause"}), Stub("B"), max_iterations=2), durable())
    assert said[-1] == "END(L)"


async def test_escalation_before_the_last_events_of_its_agent_drains_it() -> None:
    class Long(BaseAgent):
        ended = False

        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            for number in range(5):
                yield Event(author=self.name, content=str(number), actions=EventActions(escalate=number == 0))
            self.ended = True

    long = Long(name="A")
    assert await heard(loop(long)) == words("0[esc] 1 2 3 4")
    assert long.ended


async def test_an_exception_after_an_escalation_wins() -> None:
    agents = loop(Stub("A", {"all": "escalate then-fail"}), Stub("B"))
    ctx = durable()
    with pytest.raises(LookupError):
        await heard(agents, ctx)
    assert ctx.agent_states["L"] == {"current_sub_agent": "A", "times_looped": 0}


async def test_an_exception_after_a_pause_wins() -> None:
    with pytest.raises(LookupError):
        await heard(loop(Stub("A", {"all": "pause then-fail"})), durable())


# --- pause ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("who", "run"), [(who, run) for who in "ABC" for run in (1, 2)])
@pytest.mark.parametrize("fresh", [True, False])
async def test_pause_and_resume_at_every_position(who: str, run: int, fresh: bool) -> None:
    def build() -> LoopAgent:
        agents = [Stub(name, {run: "pause"} if name == who else None) for name in "ABC"]
        return loop(*agents, max_iterations=2)

    ctx = durable()
    agents = build()
    said = await heard(agents, ctx)
    assert said[-1] == f"{who}#{run}"
    assert ctx.agent_states["L"] == {"current_sub_agent": who, "times_looped": run - 1}
    if fresh:
        counts = [one.runs for one in agents.sub_agents]
        agents = build()
        for one, count in zip(agents.sub_agents, counts, strict=True):
            one.runs = count
    rest = await heard(agents, again(ctx))
    assert rest[0] == f"{who}#{run + 1}", "no CK at the resumed position"
    assert rest[-1] == "END(L)"
    checkpoints = [one for one in said + rest if one.startswith("CK")]
    assert checkpoints == [f"CK(L,{name},{number})" for number in (0, 1) for name in "ABC"]


async def test_a_pause_drains_its_agent() -> None:
    said = await heard(loop(Stub("A", {"all": "pause after"}), Stub("B")), durable())
    assert said == words("CK(L,A,0) A#1 A-after")


async def test_pause_and_escalate_in_one_run_is_a_pause_and_the_escalation_is_lost() -> None:
    class Both(Stub):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            self.runs += 1
            if self.runs == 1:
                yield event(self.name, "esc", "escalate")
                yield event(self.name, "wait", "pause")
            else:
                yield event(self.name, f"{self.name}#{self.runs}")

    ctx = durable()
    agents = loop(Both("A"), Stub("B"), max_iterations=1)
    assert await heard(agents, ctx) == words("CK(L,A,0) esc[esc] wait")
    assert await heard(agents, again(ctx)) == words("A#2 CK(L,B,0) B#1 END(L)")


async def test_resuming_without_an_answer_pauses_again_as_often_as_it_likes() -> None:
    ctx = durable()
    agents = loop(Stub("A"), Stub("B", {"all": "pause"}))
    await heard(agents, ctx)
    for number in (2, 3, 4):
        ctx = again(ctx)
        assert await heard(agents, ctx) == [f"B#{number}"]


async def test_a_pause_where_nothing_is_durable_is_not_ignored() -> None:
    last = Stub("B")
    agents = loop(Stub("A", {1: "pause"}), last, max_iterations=3)
    assert await heard(agents) == ["A#1"]
    assert last.runs == 0


async def test_a_pause_where_nothing_is_durable_is_suspended() -> None:
    run = loop(Stub("A", {1: "pause"}), Stub("B"), max_iterations=3).start(None)
    async for _ in run:
        pass
    assert run.stop_reason == "suspended"
    assert [one.reason for one in run.events if one.terminal] == ["suspended"]


@pytest.mark.parametrize(
    "content",
    [
        {"role": "model", "parts": [{"function_call": {"id": "f", "name": "n", "args": {"a": 1}}}]},
        {
            "parts": [
                {"text": "wait"},
                {"function_call": {"id": "g", "name": "n"}},
                {"function_call": {"id": "f", "name": "n"}},
            ]
        },
    ],
)
@pytest.mark.parametrize("ids", [{"f"}, ["f"], ("f",), {"f", "other"}])
async def test_what_a_pause_looks_like(content: Any, ids: Any) -> None:
    last = Stub("B")

    class Waits(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            yield Event(author="A", content=content, long_running_tool_ids=ids)

    assert Event(content=content).content == content
    async for one in loop(Waits(name="A"), last, max_iterations=1).run_async(durable()):
        if one.long_running_tool_ids:
            call = one.content.parts[-1].function_call
            assert call.id == "f"
    assert last.runs == 0


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("text", {"f"}),
        (None, {"f"}),
        ({"parts": [{"function_call": {"id": "f", "name": "n", "args": {}}}]}, None),
        ({"parts": [{"function_call": {"id": "f", "name": "n", "args": {}}}]}, set()),
        ({"parts": [{"function_call": {"id": "f", "name": "n", "args": {}}}]}, {"g"}),
        ({"parts": []}, {"f"}),
        ({"parts": [{"function_response": {"id": "f", "name": "n", "response": {}}}]}, {"f"}),
    ],
)
async def test_what_is_no_pause(content: Any, ids: Any) -> None:
    class Says(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            yield Event(author="A", content=content, **({} if ids is None else {"long_running_tool_ids": ids}))

    last = Stub("B")
    await heard_any(loop(Says(name="A"), last, max_iterations=1), durable())
    assert last.runs == 1


async def heard_any(agent: Any, ctx: InvocationContext) -> list[Event]:
    return [one async for one in agent.run_async(ctx)]


async def test_a_pause_in_the_inner_loop_stops_the_outer_one_without_any_end() -> None:
    inner = loop(Stub("X", {1: "pause"}), name="IN", max_iterations=1)
    ctx = durable()
    said = await heard(loop(inner, Stub("Y"), name="OUT", max_iterations=1), ctx)
    assert said == words("CK(OUT,IN,0) CK(IN,X,0) X#1")
    assert set(ctx.agent_states) == {"OUT", "IN"}
    assert not any(ctx.end_of_agents.values())


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 12))
async def test_a_log_cut_anywhere_resumes_at_its_last_checkpoint(cut: int) -> None:
    ctx = durable()
    a, b = Stub("A"), Stub("B")
    agents = loop(a, b, max_iterations=2)
    said = await heard(agents, ctx, upto=cut)
    if said[-1] == "END(L)":
        assert await heard(agents, again(ctx)) == []
        return
    at = [one for one in said if one.startswith("CK")][-1]
    who = at.split(",")[1]
    rest = await heard(agents, again(ctx))
    assert rest[0].startswith(f"{who}#")
    before = [f"CK(L,{name},{number})" for number in (0, 1) for name in "AB"]
    assert [one for one in said + rest if one.startswith("CK")] == before
    assert rest[-1] == "END(L)"


@pytest.mark.parametrize("cut", range(8))
async def test_the_maps_are_what_the_events_fold_to(cut: int) -> None:
    """The log is the checkpoint: whoever replays the invocation's events has the two maps."""
    ctx = durable()
    inner = loop(Stub("X"), name="IN", max_iterations=1)
    agents = loop(Stub("A"), inner, max_iterations=2)
    states: dict[str, Any] = {}
    ends: dict[str, bool] = {}
    async with aclosing(agents.run_async(ctx)) as stream:
        number = 0
        async for one in stream:
            plain = json.loads(one.model_dump_json())
            if plain["actions"].get("end_of_agent"):
                ends[one.author] = True
                states.pop(one.author, None)
            elif plain["actions"].get("agent_state") is not None:
                states[one.author] = plain["actions"]["agent_state"]
                ends[one.author] = False
            if number == cut:
                break
            number += 1
    for name, state in ctx.agent_states.items():
        assert states[name] == state
    fromlog = InvocationContext(is_resumable=True, agent_states=states, end_of_agents=ends)
    frommaps = again(ctx)
    first = await heard(clone(agents), fromlog)
    assert first == await heard(clone(agents), frommaps)


def clone(agents: LoopAgent) -> LoopAgent:
    """The same tree with stubs that carry on counting."""
    copies: list[Any] = []
    for child in agents.sub_agents:
        if isinstance(child, LoopAgent):
            copies.append(clone(child))
        else:
            copy = Stub(child.name, child.script)
            copy.runs = child.runs
            copies.append(copy)
    return LoopAgent(name=agents.name, sub_agents=copies, max_iterations=agents.max_iterations)


async def test_after_the_end_a_resume_says_nothing() -> None:
    ctx = durable()
    agents = loop(Stub("A"), max_iterations=1)
    await heard(agents, ctx)
    assert ctx.end_of_agents["L"] is True
    assert "L" not in ctx.agent_states
    assert await heard(agents, again(ctx)) == []


async def test_a_state_with_its_passes_done_only_ends() -> None:
    for done in (3, 9):
        a = Stub("A")
        states = {"L": {"current_sub_agent": "A", "times_looped": done}}
        ctx = InvocationContext(is_resumable=True, agent_states=states)
        assert await heard(loop(a, max_iterations=3), ctx) == ["END(L)"]
        assert a.runs == 0


@pytest.mark.parametrize("gone", ["gone", ""])
async def test_a_sub_agent_that_is_gone_restarts_the_pass_and_keeps_the_count(gone: str, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    states = {"L": {"current_sub_agent": gone, "times_looped": 1}}
    said = await heard(
        loop(Stub("A"), Stub("B"), max_iterations=2), InvocationContext(is_resumable=True, agent_states=states)
    )
    assert said == words("CK(L,A,1) A#1 CK(L,B,1) B#1 END(L)")


async def test_a_state_may_be_the_model() -> None:
    state = LoopAgentState(current_sub_agent="B", times_looped=1)
    ctx = InvocationContext(is_resumable=True, agent_states={"L": state.model_dump(mode="json")})
    assert await heard(loop(Stub("A"), Stub("B"), max_iterations=2), ctx) == words("B#1 END(L)")


async def test_sub_agents_added_since_are_run_in_their_place() -> None:
    states = {"L": {"current_sub_agent": "B", "times_looped": 0}}
    ctx = InvocationContext(is_resumable=True, agent_states=states)
    said = await heard(loop(Stub("A"), Stub("B"), Stub("N"), max_iterations=1), ctx)
    assert said == words("B#1 CK(L,N,0) N#1 END(L)")


async def test_an_inner_loop_that_had_ended_is_not_repeated_on_resume_in_the_same_pass() -> None:
    ctx = durable()
    inner = loop(Stub("X"), name="IN", max_iterations=1)
    agents = loop(inner, Stub("Y", {1: "raise"}), name="OUT", max_iterations=1)
    with pytest.raises(RuntimeError):
        await heard(agents, ctx)
    assert await heard(agents, again(ctx)) == words("Y#2 END(OUT)")


async def test_an_inner_loop_that_ended_just_before_a_crash_is_not_repeated() -> None:
    ctx = durable()
    inner = loop(Stub("X"), name="IN", max_iterations=1)
    agents = loop(inner, Stub("Y"), name="OUT", max_iterations=1)
    said = await heard(agents, ctx, upto=4)
    assert said == words("CK(OUT,IN,0) CK(IN,X,0) X#1 END(IN)")
    assert await heard(agents, again(ctx)) == words("CK(OUT,Y,0) Y#1 END(OUT)")


async def test_completing_a_pass_resets_those_inside() -> None:
    ctx = durable()
    inner = loop(Stub("X"), name="IN", max_iterations=1)
    agents = loop(inner, Stub("Y"), name="OUT", max_iterations=2)
    said = await heard(agents, ctx, upto=7)
    assert said[-1] == "CK(OUT,IN,1)"
    assert "IN" not in ctx.agent_states
    assert not ctx.end_of_agents.get("IN")


PROGRAM = """
import asyncio, json, sys
from agentnb import LoopAgent
from agentnb.loops.loop_agent import BaseAgent, Event, InvocationContext

class K(BaseAgent):
    async def _run_async_impl(self, ctx):
        yield Event(author=self.name, content=self.name)

async def main():
    states, ends = json.load(sys.stdin)
    ctx = InvocationContext(is_resumable=True, agent_states=states, end_of_agents=ends)
    inner = LoopAgent(name="IN", sub_agents=[K(name="X"), K(name="P")], max_iterations=2)
    agents = LoopAgent(name="OUT", sub_agents=[K(name="A"), inner], max_iterations=1)
    async for e in agents.run_async(ctx):
        s = e.actions.agent_state
        if s is not None:
            print(f"CK({e.author},{s['current_sub_agent']},{s['times_looped']})")
        else:
            print(f"END({e.author})" if e.actions.end_of_agent else e.content)

asyncio.run(main())
"""


async def test_a_process_that_never_saw_the_invocation_goes_on() -> None:
    ctx = durable()
    inner = loop(Stub("X"), Stub("P", {1: "pause"}), name="IN", max_iterations=2)
    await heard(loop(Stub("A"), inner, name="OUT", max_iterations=1), ctx)
    maps = json.dumps([ctx.agent_states, ctx.end_of_agents])
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM],
        input=maps,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split() == words("P CK(IN,X,1) X CK(IN,P,1) P END(IN) END(OUT)")


# --- the maps ---------------------------------------------------------------------------------------------------------


async def test_set_agent_state() -> None:
    ctx = durable()
    ctx.set_agent_state("L", agent_state=LoopAgentState(current_sub_agent="A", times_looped=2))
    assert ctx.agent_states["L"] == {"current_sub_agent": "A", "times_looped": 2}
    assert ctx.end_of_agents["L"] is False
    ctx.set_agent_state("L", end_of_agent=True)
    assert "L" not in ctx.agent_states
    assert ctx.end_of_agents["L"] is True
    ctx.set_agent_state("L")
    assert "L" not in ctx.agent_states
    assert "L" not in ctx.end_of_agents


def test_the_state_forbids_what_it_does_not_know() -> None:
    assert LoopAgentState().model_dump(mode="json") == {"current_sub_agent": "", "times_looped": 0}
    with pytest.raises(ValueError, match="extra"):
        LoopAgentState(current_sub_agent="A", other=1)  # type: ignore[call-arg]


# --- exceptions and endings -------------------------------------------------------------------------------------------


class Odd(Exception):
    """Not one of ours."""


@pytest.mark.parametrize("error", [ValueError("v"), Odd("o"), KeyError("k"), ExceptionGroup("g", [ValueError("x")])])
async def test_any_exception_of_a_nested_agent_comes_out_as_it_is(error: Exception) -> None:
    class Fails(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            yield Event(author=self.name, content="before")
            raise error

    inner = loop(Fails(name="X"), name="IN")
    seen: list[str] = []
    with pytest.raises(type(error)) as caught:
        await heard(loop(inner, name="OUT"), durable(), into=seen)
    assert caught.value is error
    assert seen == words("CK(OUT,IN,0) CK(IN,X,0) before")


async def test_a_cancellation_that_an_agent_raises_itself_comes_out_as_it_is() -> None:
    error = asyncio.CancelledError("its own")

    class Gives(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            yield Event(author=self.name, content="before")
            raise error

    ctx = durable()
    with pytest.raises(asyncio.CancelledError) as caught:
        await heard(loop(Gives(name="X"), Stub("Y")), ctx)
    assert caught.value is error
    assert ctx.agent_states["L"] == {"current_sub_agent": "X", "times_looped": 0}


async def test_an_agent_without_a_yield_says_nothing() -> None:
    ran: list[str] = []

    class Quiet(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> None:  # type: ignore[override]
            ran.append(self.name)

    said = await heard(loop(Quiet(name="Q"), Stub("B"), max_iterations=2), durable())
    assert said == words("CK(L,Q,0) CK(L,B,0) B#1 CK(L,Q,1) CK(L,B,1) B#2 END(L)")
    assert ran == ["Q", "Q"]


async def test_what_is_thrown_into_the_stream_ends_it_where_it_is() -> None:
    ctx, agent = durable(), Stub("A", {"all": "after"})
    stream = loop(agent).run_async(ctx)
    assert [short(await anext(stream)) for _ in range(2)] == words("CK(L,A,0) A#1")
    with pytest.raises(LookupError, match="thrown"):
        await stream.athrow(LookupError("thrown"))
    assert agent.finished == 1
    assert ctx.agent_states["L"] == {"current_sub_agent": "A", "times_looped": 0}


async def test_two_invocations_of_one_loop_do_not_meet() -> None:
    agents = loop(Stub("A"), Stub("B"), max_iterations=2)
    one, other = await asyncio.gather(heard(agents, durable()), heard(agents, durable()))
    assert [said.split("#")[0] for said in one] == [said.split("#")[0] for said in other]
    assert one[-1] == other[-1] == "END(L)"


async def test_a_run_whose_agent_raises_ends_in_error_and_says_why() -> None:
    run = loop(Stub("A"), Stub("B", {1: "raise"}), max_iterations=2).start(None)
    with pytest.raises(RunFailed, match="B#1"):
        await run
    assert run.stop_reason == "error"
    assert [one.type for one in run.events if one.terminal] == ["run_end"]
    assert run.events[-1].terminal


@pytest.mark.parametrize("upto", range(1, 8))
async def test_closing_early_has_run_every_finally(upto: int) -> None:
    a, b, x = Stub("A", {"all": "after"}), Stub("B"), Stub("X", {"all": "after"})
    agents = loop(a, loop(x, b, name="IN", max_iterations=2), max_iterations=2)
    await heard(agents, durable(), upto=upto)
    assert [(one.runs - one.finished) for one in (a, b, x)] == [0, 0, 0]


async def test_a_break_without_aclosing_leaves_nothing_when_collected() -> None:
    a = Stub("A", {"all": "after"})

    async def consume() -> None:
        async for _ in loop(a).run_async(InvocationContext()):
            break

    await consume()
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert a.finished == a.runs


async def test_the_producer_waits_for_its_consumer() -> None:
    a, b = Stub("A"), Stub("B")
    stream = loop(a, b).run_async(InvocationContext())
    assert a.runs == 0
    assert text_of(await anext(stream)) == "A#1"
    for _ in range(20):
        await asyncio.sleep(0)
    assert b.runs == 0
    await stream.aclose()


@pytest.mark.parametrize("upto", range(1, 9))
async def test_abort_after_any_event(upto: int) -> None:
    ctx = durable()
    a, x, y = Stub("A", {"all": "after"}), Stub("X"), Stub("Y")
    agents = loop(a, loop(x, y, name="IN", max_iterations=1), max_iterations=1, name="OUT")
    whole = await heard(clone(agents), durable())
    said: list[Event] = []
    async for one in agents.run_async(ctx):
        said.append(one)
        if len(said) == upto:
            ctx.abort()
    assert [short(one) for one in said[:upto]] == whole[:upto]
    assert [one.error_code for one in said].count("INVOCATION_ABORTED") == 1
    assert said[-1].error_code == "INVOCATION_ABORTED"
    assert len(said) == upto + 1
    rest = await heard(agents, again(ctx))
    assert rest[-1] == "END(OUT)"
    checkpoints = [one for one in [short(one) for one in said] + rest if one.startswith("CK")]
    assert checkpoints == [one for one in whole if one.startswith("CK")]


async def test_abort_from_another_task_ends_a_stream_that_waits() -> None:
    entered = asyncio.Event()

    class Waits(BaseAgent):
        closed = False

        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            yield Event(author=self.name, content="waiting")
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.closed = True

    ctx = durable()
    agent = Waits(name="A")
    reading = asyncio.ensure_future(heard(loop(agent), ctx))
    await asyncio.wait_for(entered.wait(), 60)
    ctx.abort()
    assert await reading == words("CK(L,A,0) waiting INVOCATION_ABORTED")
    assert agent.closed


# --- construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["user", "not an identifier", "", "1a", "a-b"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        LoopAgent(name=name, sub_agents=[])
    with pytest.raises(ValueError, match=r".+"):
        Stub(name)


def test_an_agent_has_one_parent_only() -> None:
    shared = Stub("A")
    loop(shared, name="first")
    with pytest.raises(ValueError, match="parent"):
        loop(shared, name="second")


def test_siblings_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="A"):
        loop(Stub("A"), Stub("A"))


def test_the_same_agent_twice_is_refused() -> None:
    one = Stub("A")
    with pytest.raises(ValueError, match="A"):
        loop(one, one)


async def test_one_name_twice_in_the_tree_only_warns() -> None:
    inner = loop(Stub("A"), name="IN", max_iterations=1)
    agents = loop(Stub("A"), inner, max_iterations=1)
    assert await heard(agents) == ["A#1", "A#1"]


def test_positional_and_keyword_construction() -> None:
    agents = LoopAgent("L", [Stub("A")], 3)
    assert (agents.name, [one.name for one in agents.sub_agents], agents.max_iterations) == ("L", ["A"], 3)
    described = LoopAgent(name="L", description="d", sub_agents=[Stub("A")])
    assert described.description == "d"
    assert LoopAgent(sub_agents=[]).name == "loop_agent"


# --- callbacks, session -----------------------------------------------------------------------------------------------


async def test_before_agent_callback_runs_again_on_resume() -> None:
    called: list[str] = []
    agents = loop(Stub("A", {1: "pause"}), max_iterations=1, before_agent_callback=lambda *a, **k: called.append("L"))
    ctx = durable()
    await heard(agents, ctx)
    await heard(agents, again(ctx))
    assert called == ["L", "L"]


async def test_state_deltas_are_seen_by_the_next_agent() -> None:
    seen: list[Any] = []

    class Writes(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            count = ctx.session.state.get("count", 0)
            yield Event(author=self.name, content="w", actions=EventActions(state_delta={"count": count + 1}))

    class Reads(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            seen.append(ctx.session.state["count"])
            yield Event(author=self.name, content="r")

    await heard(loop(Writes(name="W"), Reads(name="R"), max_iterations=3))
    assert seen == [1, 2, 3]


async def test_events_are_kept_in_the_session_but_for_partial_ones() -> None:
    ctx = durable()
    await heard(loop(Stub("A", {1: "partial"}), max_iterations=2), ctx)
    kept = [short(one) for one in ctx.session.events]
    assert kept == words("CK(L,A,0) CK(L,A,1) A#2 END(L)")


async def test_every_event_is_json_and_carries_its_invocation() -> None:
    said = await heard_any(loop(Stub("A", {1: "pause"}), name="L"), durable())
    assert said[0].invocation_id
    assert len({one.id for one in said}) == len(said)
    for one in said:
        assert one.timestamp
        assert Event.model_validate(json.loads(one.model_dump_json())) == one


# --- children of every kind -------------------------------------------------------------------------------------------


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def confirmed(call: Any) -> bool:
    return True


def children() -> dict[str, Callable[[], Any]]:
    call = asks(("c1", "add", {"a": 1, "b": 2}))
    solution = '{"calls": [{"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.n"}], "output": null}'
    return {
        "agent": lambda: Agent(Model(call, "three"), [add], name="K"),
        "session": lambda: SessionLoop(Model(call, "three"), [add], name="K"),
        "execution": lambda: ExecutionLoop(
            Model(solution, '{"calls": [], "output": "three"}'), [add], confirm=confirmed, name="K"
        ),
        "engine": lambda: ConversationEngine(execute=lambda task: "three", name="K"),
        "loop": lambda: loop(Stub("three"), name="K", max_iterations=1),
        "stub": lambda: Stub("K"),
    }


@pytest.mark.parametrize("kind", list(children()))
async def test_a_child_of_every_kind_runs_between_two_others(kind: str) -> None:
    first, last = Stub("A"), Stub("B")
    agents = loop(first, children()[kind](), last, max_iterations=1)
    said = await heard(agents, durable())
    assert said[:3] == words("CK(L,A,0) A#1 CK(L,K,0)")
    assert said[-3:] == words("CK(L,B,0) B#1 END(L)")
    assert (first.runs, last.runs) == (1, 1)


@pytest.mark.parametrize("kind", list(children()))
async def test_a_run_over_a_child_of_every_kind_goes_on_from_a_snapshot_at_every_event(kind: str) -> None:
    def build() -> LoopAgent:
        return loop(Stub("A"), children()[kind](), Stub("B"), max_iterations=1)

    run = build().start("go")
    snapshots = [run.snapshot().to_json()]
    async for _ in run:
        snapshots.append(run.snapshot().to_json())
    assert run.stop_reason == "max_iterations"
    for snapshot in snapshots[:-1]:
        restored = agentnb.restore(Snapshot.from_json(snapshot), build())
        async with asyncio.timeout(60):
            restored.play()
            while not restored.state.over:
                for pending in restored.pending:
                    restored.approve(pending)
                await asyncio.sleep(0)
        assert restored.stop_reason == "max_iterations"
        assert [one.type for one in restored.events if one.terminal] == ["run_end"]


async def test_a_model_that_fails_inside_comes_out_of_the_stream() -> None:
    agents = loop(Stub("A"), Agent(Model([RuntimeError("down")]), name="K"), Stub("B"))
    with pytest.raises(Exception, match="down"):
        await heard(agents, durable())


async def test_a_model_that_fails_inside_leaves_the_run_to_be_resumed() -> None:
    agents = loop(Stub("A"), Agent(Model([RuntimeError("down")], "up"), name="K"), Stub("B"), max_iterations=1)
    run = agents.start(None)
    with pytest.raises(RunFailed):
        await run
    assert run.stop_reason is None
    assert run.resume() is True
    await run
    assert run.stop_reason == "max_iterations"


# --- runs -------------------------------------------------------------------------------------------------------------


async def test_a_suspended_run_is_restored_and_goes_on_with_the_paused_agent() -> None:
    def build() -> tuple[LoopAgent, list[Stub]]:
        stubs = [Stub("A"), Stub("B", {1: "pause"}), Stub("C")]
        return loop(*stubs, max_iterations=1), stubs

    agents, stubs = build()
    run = agents.start(None)
    async for _ in run:
        pass
    assert run.stop_reason == "suspended"
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    agents, stubs = build()
    stubs[1].runs = 1
    restored = agentnb.restore(snapshot, agents)
    await restored
    assert [one.runs for one in stubs] == [0, 2, 1]
    assert restored.stop_reason == "max_iterations"


async def test_a_run_steps_through_every_event_once() -> None:
    run = loop(Stub("A"), Stub("B"), max_iterations=2).start(None)
    seen: list[Any] = []
    while got := await run.step():
        seen += got
    assert [one.seq for one in seen] == [one.seq for one in run.events]
    assert seen[-1].terminal
    assert [one for one in seen if one.terminal] == [seen[-1]]


async def test_a_cancelled_run_says_so_and_can_be_gone_on_with() -> None:
    agents = loop(Stub("A"), Stub("B"), max_iterations=2)
    run = agents.start(None)
    await run.step()
    run.cancel("enough")
    with pytest.raises(agentnb.RunCancelled):
        await run
    assert run.stop_reason == "cancelled"
    fresh = loop(Stub("A"), Stub("B"), max_iterations=2)
    restored = agentnb.restore(run.snapshot(), fresh)
    await restored
    assert restored.stop_reason == "max_iterations"


async def test_a_session_steered_inside_a_loop_hears_it() -> None:
    model = Model(asks(("c1", "add", {"a": 1, "b": 1})), says("done"))
    agents = loop(SessionLoop(model, [add], name="K"), max_iterations=1)
    run = agents.start("go")
    await run.step("call")
    run.steer("look here")
    await run
    assert "user:look here" in model.heard(1)
