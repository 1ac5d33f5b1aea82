"""LoopAgents as runs: played, stepped, paused, steered and cancelled; saved and restored at every event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import (
    LimitReached,
    LoopAgent,
    RunCancelled,
    RunFailed,
    SessionLoop,
    Snapshot,
    Store,
    UsageError,
    restore,
    tool,
)
from agentnb.core.events import CallEnd, Event, MessageAdded, ModelEnd, RunEnd
from agentnb.core.evolve import evolve, fold, nested
from agentnb.core.state import State
from agentnb.loops.loop_agent import BaseAgent, InvocationContext, exit_loop
from agentnb.loops.loop_agent import Event as AgentEvent
from agentnb.loops.session_loop.queue import MessageQueue
from agentnb.testing import ScriptedLLM, call
from tests.loops.loop_agents import K, pausing, said_by
from tests.worlds import (
    assert_folds,
    assert_one_terminal_event_last,
    by_loop,
    output_of,
    provider_faults,
    running_tasks,
    says,
    types,
    until,
)


class Says(BaseAgent):
    """An agent that emits the same in every run."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[AgentEvent, None]:
        yield AgentEvent(author=self.name, content=f"{self.name} begins")
        await asyncio.sleep(0)
        yield AgentEvent(author=self.name, content=f"{self.name} says")


class World:
    """L(2, [A, IN(2, [X, session]), B]): opaque agents and a session with tools, one of which needs approval."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool
        async def work(value: str) -> str:
            self.ran.append(value)
            await asyncio.sleep(0)
            return f"did {value}"

        @tool(approve=True)
        async def send(value: str) -> str:
            self.ran.append(value)
            return f"sent {value}"

        self.tools = [work, send]

    @staticmethod
    def turns() -> list[Any]:
        made: list[Any] = []
        for n in range(4):
            calls = [call("work", {"value": f"w{n}"}, id=f"w{n}"), call("send", {"value": f"s{n}"}, id=f"s{n}")]
            usage = {"type": "usage", "input_tokens": 10, "output_tokens": 1}
            made += [[*says(f"ask {n}", *calls), usage], [*says(f"answer {n}"), usage]]
        return made

    def loop(self, *, answered: int = 0, **options: Any) -> LoopAgent:
        session = SessionLoop(ScriptedLLM(self.turns()[answered:]), self.tools, name="session")
        inner = LoopAgent("IN", [Says("X"), session], 2)
        return LoopAgent("L", [Says("A"), inner, Says("B")], 2, **options)


async def finish(run: Any) -> Any:
    """Play the run to its end, and approve every pending call."""
    run.play()
    async with asyncio.timeout(60):
        while not run.state.over or run.driven:
            for item in run.pending:
                run.approve(item)
            if run.state.paused:
                run.resume()
            await asyncio.sleep(0)
    return await run


def answered(events: Any) -> int:
    return types(events).count("model_end")


def in_flight(state: State) -> bool:
    """Return whether an effect was in flight, in this loop or in a nested one."""
    performed_by_loops = {child.call for child in state.children.values()}
    running = [call for call in state.open.values() if call.status == "running" and call.id not in performed_by_loops]
    inside = [child for child in state.children.values() if child.call in state.open and not child.over]
    return state.model == "asked" or bool(running) or any(map(in_flight, inside))


# -- promises ------------------------------------------------------------------------------------------------------


async def test_the_state_is_the_fold_of_the_events_after_every_event() -> None:
    run, state, checked = World().loop().start("go"), State(), 0

    def look(event: Any) -> None:
        nonlocal checked
        if isinstance(event, Event):
            evolve(state, event)
            assert state == run.state
            checked += 1

    run.watch(look)
    assert await finish(run) == "B says"
    assert checked == len(run.events) > 150
    assert fold(run.events) == run.state
    assert_one_terminal_event_last(run.events)
    assert run.stop_reason == "max_iterations"


async def test_a_run_restored_at_every_third_event_has_the_same_result() -> None:
    world = World()
    whole = world.loop().start("go")
    await finish(whole)
    positions = range(1, len(whole.events) + 1, 3)
    exact = 0
    for position in positions:
        before = whole.events[:position]
        world.ran.clear()
        snapshot = Snapshot.from_json(Snapshot.of(before).to_json())
        run = restore(snapshot, world.loop(answered=answered(before)))
        assert fold(before) == run.state
        assert await finish(run) == "B says"
        finished = {event.call_id for event in before if isinstance(event, CallEnd)}
        assert not finished & set(world.ran), "a call that had finished ran again"
        assert_one_terminal_event_last(run.events)
        assert_folds(run)
        assert run.stop_reason == "max_iterations"
        ends = [(event.path, event.reason) for event in run.events if isinstance(event, RunEnd)]
        assert ends == [(event.path, event.reason) for event in whole.events if isinstance(event, RunEnd)]
        answers = [event.message.content for event in run.events if isinstance(event, ModelEnd)]
        assert answers == [event.message.content for event in whole.events if isinstance(event, ModelEnd)]
        if not in_flight(fold(before)):
            exact += 1
            assert by_loop(run.events[position:]) == by_loop(whole.events[position:])
    assert exact > len(positions) / 3


@pytest.mark.parametrize("what", ["cancel", "pause", "close", "steer"])
async def test_pause_cancel_steer_or_close_leaves_a_valid_history(what: str) -> None:
    length = len(await _whole())
    for position in range(0, length - 1, 7):
        world = World()
        run = world.loop().start("go")
        await _interfere(run, what, position)
        assert_one_terminal_event_last(run.events)
        assert_folds(run)
        assert running_tasks() == set()
        for path in ("IN/session",):
            try:
                session = nested(run.state, path)
            except KeyError:
                continue
            if not session.queues["input"]:  # it has all that it is told
                assert provider_faults(session.messages) == []
        if what in ("pause", "steer"):
            assert (run.output, run.stop_reason) == ("B says", "max_iterations")


async def _whole() -> list[Event]:
    run = World().loop().start("go")
    await finish(run)
    return list(run.events)


async def _interfere(run: Any, what: str, position: int) -> None:
    if what == "close":
        async with aclosing(aiter(run)) as stream:
            async for event in stream:
                for item in run.pending:
                    run.approve(item)
                if event.seq == position:
                    break
        return

    def act(event: Any) -> None:
        if event.seq == position:
            run.steer("listen") if what == "steer" else getattr(run, what)()

    run.watch(act)
    run.loop.sub_agents[1].sub_agents[1].llm.turns += ["heard"] * 3
    try:
        await finish(run)
    except RunCancelled:
        assert what == "cancel"


async def test_a_cancelled_run_continues_when_restored() -> None:
    world = World()
    for position in range(3, len(await _whole()) - 1, 5):
        run = world.loop().start("go")
        run.watch(lambda event, run=run, position=position: event.seq == position and run.cancel("enough"))
        with pytest.raises(RunCancelled):
            await finish(run)
        again = restore(run.snapshot(), world.loop(answered=answered(run.events)))
        assert await finish(again) == "B says"
        assert_folds(again)


# -- suspending ----------------------------------------------------------------------------------------------------


async def test_callbacks_run_once_for_a_run_restored_at_any_event() -> None:
    def loop() -> LoopAgent:
        inner = LoopAgent(
            "IN", [K("A")], 1, before_agent_callback=lambda ctx: None, after_agent_callback=lambda ctx: "after"
        )
        return LoopAgent("OUT", [inner], 2)

    run = loop().start(None)
    await run
    for position in range(2, len(run.events)):
        again = restore(Snapshot.from_json(Snapshot.of(run.events[:position]).to_json()), loop())
        await again
        callbacks = [event for event in again.events if event.type == "call_end" and "callback" in event.name]
        assert [event.name for event in callbacks] == 2 * ["before_agent_callback", "after_agent_callback"], position
        assert len({event.call_id for event in callbacks}) == 4


async def test_a_step_by_turn_ends_with_the_run_of_an_agent_without_a_model() -> None:
    critic = SessionLoop(ScriptedLLM(["said"]), name="critic")
    run = LoopAgent("OUT", [LoopAgent("IN", [K("A"), K("B")], 1), critic], 1).start("go")
    ends: list[tuple[str, str]] = []
    while step := await run.step("turn"):
        ends.append((step[-1].type, step[-1].path))
    assert ends == [("run_end", "IN/A"), ("run_end", "IN/B"), ("model_end", "critic"), ("run_end", "")]


async def test_a_suspended_run_has_ended_and_continues_when_restored() -> None:
    inner = LoopAgent("IN", [K("X"), K("P", pause=2)], 3)
    loop = LoopAgent("OUT", [K("A"), inner, K("C")], 1)
    run = loop.start(None)
    assert await run is not None
    assert (run.stop_reason, run.state.over, await run.step()) == ("suspended", True, [])
    assert_one_terminal_event_last(run.events)
    again = restore(Snapshot.from_json(run.snapshot().to_json()), loop)
    assert await again == "C#1"
    assert again.stop_reason == "max_iterations"
    assert said_by(again) == ["A#1", "X#1", "P#1", "X#2", "P#2", "P#3", "X#3", "P#4", "C#1"]
    assert_folds(again)
    at = nested(run.state, "IN").values
    assert (at["current_sub_agent"], at["times_looped"]) == ("P", 1)


@pytest.mark.parametrize("name", ["A", "B", "C"])
async def test_a_pause_of_any_sub_agent_suspends_and_can_be_restored(name: str) -> None:
    loop = LoopAgent("L", [K(one, pause=1 if one == name else None) for one in "ABC"], 1)
    run = loop.start(None)
    await run
    assert run.stop_reason == "suspended"
    again = restore(run, loop)
    assert await again == ("C#2" if name == "C" else "C#1")
    assert [said[0] for said in said_by(again)] == sorted("ABC" + name)


async def test_a_pause_in_a_loop_called_by_a_model_suspends_the_whole_run() -> None:
    inner = LoopAgent("worker", [K("P", pause=1)], 1)
    llm = ScriptedLLM([[call("worker", {"input": "do"}, id="c1")], "fine"])
    loop = SessionLoop(llm, [inner])
    run = loop.start("go")
    await run
    assert run.stop_reason == "suspended"
    again = restore(Snapshot.from_json(run.snapshot().to_json()), loop)
    assert await again == "fine"
    assert said_by(again)[-1] == "P#2"
    assert provider_faults(again.messages) == []


async def test_a_failed_run_continues_from_its_last_checkpoint() -> None:
    for position, name in enumerate("ABC"):
        loop = LoopAgent("L", [K(one, boom=2 if one == name else None) for one in "ABC"], 2)
        run = loop.start("x")
        with pytest.raises(RunFailed, match="RuntimeError: boom"):
            await run
        assert run.stop_reason == "error"
        again = restore(Snapshot.from_json(run.snapshot().to_json()), loop)
        assert await again == ("C#3" if name == "C" else "C#2")
        said = [f"{one}#{n}" for n in (1, 2) for one in "ABC"]
        said[3 + position] = f"{name}#3"
        assert said_by(again) == said


async def test_a_failed_model_request_leaves_the_run_resumable() -> None:
    session = SessionLoop(ScriptedLLM([[ConnectionError("down")], "fine"]), name="s")
    run = LoopAgent("L", [K("A"), LoopAgent("IN", [session], 1)], 1).start("go")
    with pytest.raises(RunFailed, match="down"):
        await run
    assert run.stop_reason is None
    assert run.resume()
    assert await run == "fine"
    assert said_by(run).count("A#1") == 1


@pytest.mark.parametrize("upto", ["A", "B"])
async def test_renamed_sub_agents_restart_the_pass(upto: str) -> None:
    def loop(*names: str) -> LoopAgent:
        return LoopAgent("L", [K(name) for name in names], 2)

    whole = loop("A", "B").start(None)
    await whole
    state = State()
    for position, event in enumerate(whole.events[:-1], 1):
        evolve(state, event)
        with pytest.warns(UserWarning, match="sub_agents"):
            run = restore(Snapshot.of(whole.events[:position]), loop("A", "N") if upto == "B" else loop("N", "B"))
        await run
        assert run.stop_reason == "max_iterations"
        gone = state.values.get("current_sub_agent") == upto
        after = [
            e.values["current_sub_agent"]
            for e in run.events[position:]
            if "current_sub_agent" in getattr(e, "values", {})
        ]
        if gone and state.values["times_looped"] == 1:
            assert after == (["A", "N"] if upto == "B" else ["N", "B"])
        assert_folds(run)


# -- driving -------------------------------------------------------------------------------------------------------


async def test_stepping_returns_every_event_once() -> None:
    whole = await _whole()
    run, seen = World().loop().start("go"), []
    while not run.state.over:
        step = await run.step()
        seen += step
        for item in run.pending:
            run.approve(item)
    assert [(e.type, e.path) for e in seen] == [(e.type, e.path) for e in whole]


async def test_a_step_by_turn_or_call_ends_inside_a_sub_agent() -> None:
    world = World()
    run = world.loop().start("go")
    step = await run.step("turn")  # the run of an agent without a model is a turn
    assert [(event.type, event.path) for event in step if event.type == "run_end"] == [("run_end", "A")]
    assert [event.path for event in await run.step("turn")][-1] == "IN/X"
    step = await run.step("turn")
    assert [item.id for item in run.pending] == ["s0"]
    assert "approval_request" in types(step)
    run.reject("s0", "no")
    step = await run.step("turn")
    assert {event.path for event in step} == {"IN/session"}
    assert (await run.step("call"))[-1].type == "call_end"
    assert (await run.step("phase"))[-1].phase is not None


async def test_a_run_pauses_at_each_breakpoint_and_resumes() -> None:
    log: list[str] = []
    run = LoopAgent("L", [K("A", log=log), K("B", log=log)], 3).start(None, breakpoints=["state_update"])
    run.play()
    for passes in range(6):
        await until(lambda: run.state.paused)
        assert sum(entry.endswith("begins") for entry in log) == passes
        assert run.resume()
    assert await run == "B#3"


async def test_a_run_never_advances_beyond_its_consumer() -> None:
    log: list[str] = []
    async for event in LoopAgent("L", [K("A", says=2, log=log)], 2).start(None):
        at_the_time = list(log)
        await asyncio.sleep(0)
        assert log == at_the_time
        if isinstance(event, MessageAdded) and "+" not in event.message.content:
            assert log[-1] == f"{event.message.content} begins"


async def test_cancel_interrupts_an_agent_that_never_ends() -> None:
    class Endless(BaseAgent):
        closed = False

        async def _run_async_impl(self, ctx: Any) -> Any:
            try:
                while True:
                    yield AgentEvent(author=self.name, content="on and on")
            finally:
                self.closed = True

    for drive in ("pull", "await"):
        agent = Endless("E")
        run = LoopAgent("L", [agent]).start(None)
        if drive == "pull":
            async for event in run:
                if event.seq == 9:
                    run.cancel("enough")
        else:
            run.watch(lambda event, run=run: event.seq == 9 and run.cancel("enough"))
            with pytest.raises(RunCancelled, match="enough"):
                await asyncio.wait_for(output_of(run), 60)
        assert run.stop_reason == "cancelled"
        assert agent.closed
        assert_one_terminal_event_last(run.events)


async def test_the_output_is_the_last_message() -> None:
    assert await LoopAgent("L", [K("A"), K("B", says=1)], 2).start("x") == "B#2+1"
    assert await LoopAgent("L", [K("A"), K("B", escalate=1)]).start("x") == "B#1"
    run = LoopAgent("L", []).start(None)
    assert (await run, run.stop_reason) == (None, "empty")
    run = LoopAgent("L", [K("A")], 0).start(None)
    assert (await run, run.stop_reason) == (None, "max_iterations")
    run = LoopAgent("L", [LoopAgent("IN", [K("X", escalate=1)]), K("B")], 1).start(None)
    assert (await run, run.stop_reason) == ("B#1", "max_iterations")
    run = LoopAgent("L", [LoopAgent("IN", [K("X", escalate=1, scope="root")]), K("B")]).start(None)
    assert (await run, run.stop_reason) == ("X#1", "escalated")


async def test_usage_and_model_requests_are_summed() -> None:
    run = World().loop().start("go")
    await finish(run)
    assert run.usage == {"input_tokens": 80, "output_tokens": 8}
    assert run.state.requests == 8


@pytest.mark.parametrize(("limits", "said"), [({"calls": 0}, None), ({"turns": 1}, None), ({"seconds": 0}, [])])
async def test_the_run_of_a_sub_agent_counts_neither_as_a_call_nor_as_a_turn(
    limits: dict[str, int], said: list[str] | None
) -> None:
    run = LoopAgent("L", [K("A"), K("B")], 2).start(None, limits=limits)
    if said is None:
        assert await run == "B#2"
        return
    with pytest.raises(LimitReached):
        await run
    assert said_by(run) == said
    assert run.stop_reason == "limit"
    assert_one_terminal_event_last(run.events)
    assert_folds(run)


async def test_limits_include_everything_that_runs_inside() -> None:
    for limits, answers in (({"turns": 3}, 3), ({"tokens": 22}, 2), ({"turns": 0}, 0)):
        run = World().loop().start("go", limits=limits)
        with pytest.raises(LimitReached):
            await finish(run)
        assert answered(run.events) == answers
        assert_one_terminal_event_last(run.events)


# -- deciding and steering -----------------------------------------------------------------------------------------


async def test_a_nested_call_is_decided_by_its_id_or_by_path_and_id() -> None:
    for how in ("{id}", "{path}/{id}"):
        world = World()
        run = world.loop().start("go")
        run.play()
        await until(lambda run=run: bool(run.pending))  # type: ignore[misc]
        [item] = run.pending
        assert (item.path, item.name, item.arguments) == ("IN/session", "send", {"value": "s0"})
        run.edit(how.format(path=item.path, id=item.id), {"value": "changed"})
        with pytest.raises(UsageError):
            run.approve("s0")
        assert await finish(run) == "B says"
        assert "changed" in world.ran


async def test_steering_is_sent_to_the_running_session() -> None:
    llm = ScriptedLLM([[call("work", {"value": "w"}, id="c1")], "heard", "more"])
    world = World()
    run = LoopAgent("L", [SessionLoop(llm, world.tools, name="s")], 1).start("go")
    run.watch(lambda event: event.type == "call_start" and event.path == "s" and run.steer("stop that"))
    assert await run == "heard"
    assert [m["content"] for m in llm.requests[1].messages][-1] == "stop that"


@pytest.mark.parametrize("when", ["at once", "an agent runs"])
async def test_user_messages_are_kept_until_a_session_can_send_them(when: str) -> None:
    llm, second = ScriptedLLM(["one", "after the follow-up"]), ScriptedLLM(["two"])
    inner = LoopAgent("IN", [SessionLoop(llm, name="s"), SessionLoop(second, name="t")], 1)
    run = LoopAgent("L", [K("A"), inner], 1).start("go")

    def say(event: Any) -> None:
        if event.type == "run_start" and event.path == ("A" if when == "an agent runs" else ""):
            run.steer("mind this")
            run.follow_up("and then that")

    run.watch(say)
    assert await run == "two"
    heard = [m["content"] for m in llm.requests[-1].messages if m["role"] == "user"]
    assert heard[-2:] == ["mind this", "and then that"]
    assert len(llm.requests) == 2
    assert all(not queue for queue in run.state.queues.values() if queue != run.state.queues["input"])
    assert_folds(run)


async def test_steering_that_a_session_did_not_send_is_sent_by_the_next_session() -> None:
    first, second = ScriptedLLM(["one"]), ScriptedLLM(["two"])
    session = SessionLoop(first, name="s", max_turns=1)
    run = LoopAgent("L", [session, K("A"), SessionLoop(second, name="t")], 1).start("go")
    run.watch(lambda event: event.type == "model_start" and event.path == "s" and run.steer("late"))
    await run
    assert "late" in [m["content"] for m in second.requests[0].messages]


async def test_queued_messages_can_be_withdrawn() -> None:
    run = LoopAgent("L", [K("A"), SessionLoop(ScriptedLLM(["one"]), name="s")], 1).start("go")
    run.steer("a")
    run.follow_up("b")
    assert [m.content for m in run.withdraw("steering") or []] == ["a"]
    assert [m.content for m in run.withdraw("follow_up") or []] == ["b"]
    assert await run == "one"
    held = World()
    run = held.loop().start("go")
    run.play()
    await until(lambda: bool(run.pending))
    run.steer("c")
    assert [m.content for m in run.withdraw("steering") or []] == ["c"]
    assert await finish(run) == "B says"


async def test_a_message_in_a_sessions_own_queue_is_sent_once() -> None:
    queue, llm = MessageQueue(), ScriptedLLM(["one", "two", "three"])
    queue.add_steering("once")
    await LoopAgent("L", [SessionLoop(llm, name="s", queue=queue)], 2).start("go")
    heard = [[m["content"] for m in request.messages if m["role"] == "user"] for request in llm.requests]
    assert sum("once" in messages for messages in heard) == 1
    assert queue.dequeue_steering() == []


async def test_a_model_ends_its_own_loop_and_not_the_outer_loop() -> None:
    llm = ScriptedLLM([says("good", call("exit_loop", id="x"))] * 2)
    inner = LoopAgent("IN", [SessionLoop(llm, [exit_loop], name="s"), K("X")])
    run = LoopAgent("OUT", [inner, K("A")], 2).start("go")
    await run
    assert [said for said in said_by(run) if said.startswith("A#")] == ["A#1", "A#2"]


# -- other processes -----------------------------------------------------------------------------------------------


async def test_a_suspended_run_in_a_store_can_be_restored(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    loop = LoopAgent("L", [K("A"), K("P", pause=1), K("C")], 1)
    run = loop.start(None, name="x", store=store)
    await run
    assert run.stop_reason == "suspended"
    again = restore(store.load("x"), loop, store=store)
    assert await again == "C#1"
    assert json.loads(again.snapshot().to_json())["loop"] == "LoopAgent"
    store.close()


class Asking(BaseAgent):
    """An agent that asks, and emits the answer when it finds it in the session."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[AgentEvent, None]:
        answers = [answer for event in ctx.session.events for answer in event.get_function_responses()]
        yield AgentEvent(author=self.name, content=str(answers[0]["response"])) if answers else pausing(self.name, "?")


async def suspended(loop: LoopAgent) -> agentnb.Run:
    run = loop.start("go")
    await run
    assert run.stop_reason == "suspended"
    return run


async def test_a_suspended_run_continues_with_the_answer_to_its_call() -> None:
    loop = LoopAgent("L", [K("A"), Asking("P"), K("C")], 1)
    run = restore((await suspended(loop)).snapshot(), loop)
    run.answer("lr", "yes")
    assert await run == "C#1"
    assert said_by(run)[-2:] == ["{'result': 'yes'}", "C#1"]
    recording = agentnb.replay(run, loop)
    recording.to(len(run.events) - 1)  # and a replay reports no difference
    assert_folds(run)


async def test_the_answer_to_a_call_is_in_the_store_immediately(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    loop = LoopAgent("L", [Asking("P")], 1)
    restore((await suspended(loop)).snapshot(), loop, store=store, name="x").answer("lr", {"said": "yes"})
    assert await restore(store.load("x"), loop) == "{'said': 'yes'}"
    store.close()


@pytest.mark.parametrize("pauses", [False, True])
async def test_an_agent_that_fails_after_its_answer_gets_it_again(pauses: bool) -> None:
    class FailsOnce(Asking):
        has_failed = False

        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[AgentEvent, None]:
            async for event in super()._run_async_impl(ctx):
                yield event
            if not event.pauses and not self.has_failed:
                self.has_failed = True
                raise RuntimeError("boom")

    def pause(event: Any) -> None:
        if event.type == "call_end" and event.name == "run_agent" and event.is_error:
            run.pause()

    loop = LoopAgent("L", [K("A"), LoopAgent("IN", [FailsOnce("P")], 1)], 1)
    run = restore((await suspended(loop)).snapshot(), loop)
    run.answer("lr", "yes")
    if pauses:
        run.watch(pause)
        run.play()
        await until(lambda: run.state.paused)
        run.resume()
    with pytest.raises(RunFailed, match="RuntimeError: boom"):
        await run
    again = restore(Snapshot.from_json(run.snapshot().to_json()), loop)
    assert await again == "{'result': 'yes'}"
    assert again.stop_reason == "max_iterations"
    assert said_by(again) == ["A#1", "?", "{'result': 'yes'}", "{'result': 'yes'}"]
    assert_folds(again)


async def test_a_second_answer_to_a_call_is_refused() -> None:
    loop = LoopAgent("L", [Asking("P")], 1)
    run = restore((await suspended(loop)).snapshot(), loop)
    run.answer("lr", "yes")
    with pytest.raises(agentnb.AlreadyDecided, match="P has the answer to 'lr' already"):
        run.answer("lr", "no")


async def test_the_error_for_an_answer_to_a_suspended_run_names_restore() -> None:
    run = await suspended(LoopAgent("L", [Asking("P")], 1))
    with pytest.raises(agentnb.UsageError, match=r"restore\(run.snapshot\(\), loop\)"):
        run.answer("lr", "yes")
