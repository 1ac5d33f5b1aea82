from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import pytest

import agentnb
from agentnb import (
    ConversationEngine,
    ExecutionLoop,
    LimitReached,
    Loop,
    LoopAgent,
    SessionLoop,
    Store,
    UsageError,
    restore,
    tool,
)
from agentnb.analysis.rows import call_id_of
from agentnb.core.errors import InvalidArguments, RecordingMismatch, RunCancelled, UnknownCall
from agentnb.core.evolve import fold
from agentnb.loops import want
from agentnb.loops.loop_agent import BaseAgent, Event
from agentnb.testing import ScriptedLLM, call
from tests.designs import WORLDS, states
from tests.loops.loop_agents import K, said_by
from tests.run.agents import Agent, sends
from tests.test_designs import check, drive, outcome
from tests.worlds import asks

every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


class Echoing:
    """Calls `echo` once with the last user message, then answers with its result; counts its requests."""

    def __init__(self) -> None:
        self.asked = 0

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> Any:
        self.asked += 1
        last = messages[-1]
        if last["role"] == "tool":
            yield {"type": "text_delta", "content": f"it gave {last['content']}"}
        else:
            yield {
                "type": "tool_call",
                "id": f"c{len(messages)}",
                "name": "echo",
                "arguments": {"text": last["content"]},
            }


class World:
    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []
        self.llm = Echoing()

        @tool(**options)
        async def echo(text: str) -> str:
            self.ran.append(text)
            return text.upper()

        self.loop = SessionLoop(self.llm, [echo])

    async def run(self) -> Any:
        run = self.loop.start("one", approve=True)
        await run
        return run


def seq_of(run: Any, type: str) -> int:
    return next(event.seq for event in run.events if event.type == type)


async def test_a_fork_repeats_no_request_and_no_call_of_the_past() -> None:
    world = World()
    run = await world.run()
    asked, ran = world.llm.asked, list(world.ran)
    fork = run.fork(at=seq_of(run, "call_end"))
    assert [e.type for e in fork.events] == [e.type for e in run.events[: seq_of(run, "call_end") + 1]]
    assert (world.llm.asked, world.ran) == (asked, ran)
    assert await fork == run.output
    assert world.llm.asked == asked + 1
    assert world.ran == ran


async def test_a_fork_is_a_separate_run_with_a_reference_to_its_origin() -> None:
    run = await World().run()
    before = list(run.events)
    fork = run.fork(at=3)
    await fork
    assert fork.id != run.id
    assert {event.run_id for event in fork.events} == {fork.id}
    assert fork.events[0].forked_from == f"{run.id}@3"
    assert list(run.events) == before


async def test_a_changed_result_is_sent_to_the_model() -> None:
    run = await World().run()
    fork = run.fork(at=seq_of(run, "call_end"), result="nothing")
    assert await fork == "it gave nothing"
    assert fork.messages[2].content == "nothing"


async def test_a_result_can_replace_the_execution_of_a_call() -> None:
    world = World()
    run = await world.run()
    fork = run.fork(at=seq_of(run, "call_start"), result="given")
    assert await fork == "it gave given"
    assert world.ran == ["one"]


@pytest.mark.parametrize(("decision", "said"), [(True, "it gave ONE"), (False, "it gave Rejected by the user.")])
async def test_a_decision_of_a_fork_may_be_true_or_false(decision: bool, said: str) -> None:
    run = await World().run()
    assert await run.fork(at=seq_of(run, "call_start"), decision=decision) == said


async def test_a_result_may_be_none() -> None:
    world = World()
    run = await world.run()
    for type in ("call_end", "call_start"):
        fork = run.fork(at=seq_of(run, type), result=None)
        await fork
        assert [(end.result, end.outcome) for end in fork.events if end.type == "call_end"] == [(None, "answered")]
    assert world.ran == ["one"]


async def test_changed_arguments_run_the_tool_again() -> None:
    world = World()
    run = await world.run()
    for type in ("model_end", "call_start"):
        assert await run.fork(at=seq_of(run, type), arguments={"text": "two"}) == "it gave TWO"
    assert world.ran == ["one", "two", "two"]


async def test_invalid_arguments_of_a_fork_are_refused() -> None:
    run = await World().run()
    with pytest.raises(InvalidArguments, match="text"):
        run.fork(at=seq_of(run, "call_start"), arguments={"words": "two"})


async def test_a_fork_can_change_the_first_message() -> None:
    run = await World().run()
    assert await run.fork(at=seq_of(run, "message"), message="two") == "it gave TWO"
    assert await run.fork(at=0, message="three") == "it gave THREE"


async def test_a_fork_can_change_an_answer() -> None:
    run = await World().run()
    last = [event.seq for event in run.events if event.type == "model_end"][-1]
    fork = run.fork(at=last, message="something else")
    assert await fork == "something else"


async def test_a_text_keeps_the_calls_of_an_answer_and_a_message_replaces_them() -> None:
    run = await World().run()
    first = seq_of(run, "model_end")
    assert await run.fork(at=first, message="now I look") == "it gave ONE"
    assert await run.fork(at=first, message={"role": "assistant", "content": "no look"}) == "no look"


async def test_a_message_at_another_event_is_a_user_message() -> None:
    run = await World().run()
    fork = run.fork(at=seq_of(run, "call_end"), message="and two?")
    assert await fork == "it gave AND TWO?"
    assert [m.role for m in fork.messages] == ["user", "assistant", "tool", "user", "assistant", "tool", "assistant"]


async def test_an_ended_run_continues_with_a_message() -> None:
    run = await World().run()
    fork = run.fork(message="two")
    assert await fork == "it gave TWO"
    assert fork.messages[: len(run.messages)] == run.messages


async def waiting_run(agent: Agent) -> Any:
    run = agent.loop(sends("x"), "done").start("hi")
    while not run.pending:
        await run.step()
    return run


async def test_a_fork_can_reject_an_approved_call() -> None:
    agent = Agent()
    run = await waiting_run(agent)
    run.approve("x")
    await run
    decided = seq_of(run, "approval_decision")
    other = SessionLoop(ScriptedLLM(["as you wish"]), agent.tools)
    fork = run.fork(at=decided, decision={"decision": "reject", "reason": "too early"}, loop=other)
    assert await fork == "as you wish"
    assert "too early" in fork.messages[2].content
    assert agent.ran == ["x>all"]


async def test_a_changed_decision_has_the_time_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    world = World(approve=True)
    with monkeypatch.context() as yesterday:
        yesterday.setattr(time, "time", lambda: now() - 86_400)
        run = world.loop.start("one")
        await run.step("turn")
        run.approve(run.pending[0].id)
        await run
    for type in ("approval_request", "approval_decision"):
        fork = run.fork(seq_of(run, type), decision="reject")
        await fork
        decided = fork.events[seq_of(fork, "approval_decision")]
        assert decided.time == run.events[seq_of(run, type)].time
        assert fork.events[-1].time > decided.time + 80_000  # its consequences happen now


@pytest.mark.parametrize("at", ["approval_request", "approval_decision"])
async def test_a_fork_can_approve_a_rejected_call(at: str) -> None:
    agent = Agent()
    run = await waiting_run(agent)
    run.reject("x")
    await run
    fork = run.fork(at=seq_of(run, at), decision="approve", loop=SessionLoop(ScriptedLLM(["sent"]), agent.tools))
    assert await fork == "sent"
    assert agent.ran == ["x>all"]
    assert fork.events[seq_of(run, "approval_request") + 1].decision == "approve"


async def test_a_fork_of_a_waiting_run_has_its_own_question() -> None:
    agent = Agent()
    run = await waiting_run(agent)
    fork = run.fork(loop=agent.loop("done"))
    assert [item.id for item in fork.pending] == ["x"]
    fork.approve("x")
    await fork
    assert [item.id for item in run.pending] == ["x"]
    run.cancel()


async def test_a_call_in_flight_at_the_fork_keeps_its_later_result() -> None:
    agent = Agent()
    run = agent.loop(asks("hold", "b"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    agent.release.set()
    await run
    first_end = seq_of(run, "call_end")
    fork = run.fork(at=first_end, loop=agent.loop("done"))
    await fork
    assert agent.ran == ["hold", "b"]
    assert fork.pending == []
    assert [m.content for m in fork.messages] == [m.content for m in run.messages]


async def test_a_call_of_a_generator_in_flight_at_the_fork_keeps_its_later_result() -> None:
    agent = Agent()

    def steps(given: Any) -> Generator[Any, Any, Any]:
        return (yield want.call("echo", value=given))

    loop = Loop.from_generator(steps, tools=agent.tools)
    run = loop.start("a")
    await run
    fork = run.fork(at=seq_of(run, "call_start"))
    assert await fork == "R:a"
    assert agent.ran == ["a"]


async def test_another_model_answers_after_the_fork() -> None:
    world = World()
    run = await world.run()
    fork = run.fork(at=seq_of(run, "call_end"), loop=SessionLoop(ScriptedLLM(["another"]), world.loop.tools))
    assert await fork == "another"


async def test_a_loop_of_another_kind_is_refused() -> None:
    run = await World().run()
    with pytest.raises(RecordingMismatch, match="SessionLoop"):
        run.fork(at=2, loop=agentnb.Agent(ScriptedLLM([])))


async def test_a_failed_request_is_repeated_in_a_fork() -> None:
    class Broken:
        async def stream(self, messages: Any, **_: Any) -> Any:
            raise RuntimeError("no")
            yield

    run = SessionLoop(Broken()).start("hi")
    await run.step("turn")
    assert run.state.failure is not None
    assert await run.fork(loop=SessionLoop(ScriptedLLM(["yes"]))) == "yes"


async def test_a_fork_of_a_cancelled_run_continues_before_the_cancellation() -> None:
    agent = Agent()
    run = agent.two_turns().start("hi")
    await run.step("turn")
    run.cancel("enough")
    fork = run.fork(loop=agent.loop("done"))
    assert await fork == "done"


async def test_a_fork_of_a_suspended_run_continues_with_the_suspended_agent() -> None:
    loop = LoopAgent("loop", [K("A"), K("P", pause=1), K("C")], 1)
    run = loop.start("go")
    await run
    assert run.stop_reason == "suspended"
    fork = run.fork()
    await fork
    assert (fork.stop_reason, said_by(fork)) == ("max_iterations", ["A#1", "P#1", "P#2", "C#1"])


LOOKS = [call("look", {"value": value}, id=value) for value in "ab"]


def looks(*turns: Any) -> SessionLoop:
    return Agent().loop(*turns)


def looks_inside(*turns: Any) -> SessionLoop:
    handing = [] if turns[0] == "done" else [[call("worker", {"input": "go"}, id="c1")]]
    return SessionLoop(ScriptedLLM([*handing, "done"]), [Agent().loop(*turns, name="worker")])


@pytest.mark.parametrize("made", [looks, looks_inside])
async def test_a_fork_of_a_run_at_its_limit_continues_before_the_limit(made: Callable[..., Any]) -> None:
    run = made(LOOKS, "done").start("hi", limits={"calls": 2 if made is looks_inside else 1})
    with pytest.raises(LimitReached):
        await run
    ends = range(seq_of(run, "call_end"), len(run.events))
    assert len(ends) == (3 if made is looks else 5)
    for at in ends:
        fork = run.fork(at, loop=made("done"), limits=None)
        assert await fork == "done"
        assert sorted(e.result for e in fork.events if e.type == "call_end" and e.name == "look") == ["R:a", "R:b"]
        assert not [e for e in fork.events if e.type == "call_end" and e.is_error]


@pytest.mark.parametrize("name", ["session", "parallel_agent", "execution", "engine_of_loops", "loop_of_loops"])
async def test_a_fork_of_a_run_at_its_limit_ends_like_a_run_without_a_limit(name: str) -> None:
    world = WORLDS[name]
    whole = await drive(world().start("go"))
    run = world().start("go", approve=True, limits={"calls": 1})
    with pytest.raises(LimitReached):
        await run
    fork = await drive(run.fork(loop=world(), limits=None))
    check(fork)
    assert outcome(fork) == outcome(whole)


@pytest.mark.parametrize("way", ["fork", "restore"])
async def test_an_agent_interrupted_by_a_cancellation_runs_again(way: str) -> None:
    def loop() -> LoopAgent:
        return LoopAgent("loop", [K("A", says=2)], 1)

    run = loop().start("go")
    run.watch(lambda event: event.type == "message" and run.cancel())
    with pytest.raises(RunCancelled):
        await run
    assert [event.outcome for event in run.events if event.type == "call_end"] == ["aborted", "aborted"]
    again = run.fork(loop=loop()) if way == "fork" else restore(run.snapshot(), loop())
    await again
    assert said_by(again) == ["A#1", "A#1", "A#1+1", "A#1+2"]


@pytest.mark.parametrize("way", ["fork", "restore"])
async def test_the_result_of_a_tool_that_cancelled_its_run_is_kept(way: str) -> None:
    @tool
    async def leave() -> str:
        run.cancel()
        return "left"

    def loop(*turns: Any) -> SessionLoop:
        return SessionLoop(ScriptedLLM(turns), [leave])

    run = loop([call("leave", id="c1")]).start("go")
    with pytest.raises(RunCancelled):
        await run
    again = run.fork(loop=loop("done")) if way == "fork" else restore(run.snapshot(), loop("done"))
    assert again.pending == []
    assert await again == "done"
    assert [message.content for message in again.messages] == ["go", "", "left", "done"]
    assert [event.seq for event in again.events] == list(range(len(again.events)))


async def test_an_event_can_be_replaced_by_another_of_its_type() -> None:
    run = await World().run()
    end = run.events[seq_of(run, "call_end")]
    changed = end.model_copy(update={"result": "broken", "is_error": True, "outcome": "raised"})
    assert await run.fork(at=end.seq, event=changed) == "it gave broken"
    with pytest.raises(UsageError, match="cannot replace it"):
        run.fork(at=end.seq - 1, event=changed)


async def test_a_fork_is_stored_in_the_store_of_its_origin(tmp_path: Any) -> None:
    store = Store(tmp_path / "runs.db")
    run = World().loop.start("one", store=store)
    await run
    fork = run.fork(at=3, name="branch")
    await fork
    assert {info.id for info in store.runs()} == {run.id, fork.id}
    assert store.load("branch").events == tuple(fork.events)


async def test_a_past_position_can_be_forked() -> None:
    run = await World().run()
    assert await run.at(seq_of(run, "call_end")).fork(result="other") == "it gave other"


async def test_a_recording_without_its_loop_can_be_forked_with_a_given_loop(tmp_path: Any) -> None:
    world = World()
    run = await world.run()
    recorded = agentnb.replay(run.snapshot().save(tmp_path / "run.json"))
    with pytest.raises(UsageError, match="loop="):
        recorded.fork(at=3)
    assert await recorded.fork(at=3, loop=world.loop) == run.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"at": 99}, "events 0 to"),
        ({"at": -1}, "events 0 to"),
        ({"at": 2.0}, "events 0 to"),
        ({"at": "2"}, "events 0 to"),
        ({"at": 3, "message": "a", "result": "b"}, "message and result"),
        ({"at": 0, "decision": "approve"}, "run_start"),
        ({"at": 4, "decision": "perhaps"}, "approve, reject"),
        ({"at": 4, "decision": {"decision": "reject", "mood": "bad"}}, "mood"),
        ({"at": 4, "decision": "edit"}, "to edit requires arguments"),
        ({"at": 4, "decision": {"decision": "replace", "name": "echo"}}, "to replace requires arguments"),
    ],
)
async def test_an_impossible_fork_is_refused_with_the_reason(change: Any, words: str) -> None:
    run = await World().run()
    with pytest.raises(UsageError, match=words):
        run.fork(**change)


async def test_a_run_without_events_cannot_be_forked() -> None:
    world = World()
    with pytest.raises(UsageError, match="has no events yet"):
        world.loop.start("one").fork()
    recorded = agentnb.replay(await world.run())
    with pytest.raises(UsageError, match="before its first event"):
        recorded.fork()


async def test_the_error_at_the_end_of_a_call_names_the_event_to_fork_at() -> None:
    run = await World().run()
    start = seq_of(run, "call_start")
    with pytest.raises(UsageError, match=f"fork at {start}"):
        run.fork(at=seq_of(run, "call_end"), arguments={"text": "two"})


async def test_a_call_of_the_loop_cannot_be_forked_with_other_arguments() -> None:
    loop = agentnb.Agent(ScriptedLLM(["done"], repeat=True), retriever=lambda query: ["a document"])
    run = loop.start("one")
    await run
    at = seq_of(run, "call_start")
    with pytest.raises(UnknownCall, match="performs the call"):
        run.fork(at, arguments={"query": "two"})
    assert await run.fork(at, result=[]) == "done"


async def test_a_call_of_an_unknown_tool_cannot_be_approved() -> None:
    run = SessionLoop(ScriptedLLM([[call("nothing", id="c1")], "done"])).start("go")
    await run
    with pytest.raises(UnknownCall, match="There is no tool 'nothing'; session_loop has no tools"):
        run.fork(seq_of(run, "model_end"), decision="approve")


def boss(answer: str) -> SessionLoop:
    worker = SessionLoop(ScriptedLLM([answer]), name="worker")
    return SessionLoop(ScriptedLLM([[call("worker", {"input": "go"}, id="c1")], "done"]), [worker], name="boss")


async def test_a_nested_loop_that_had_not_started_starts_in_the_fork() -> None:
    run = boss("then").start("go")
    await run
    now = boss("now")
    now.llm = ScriptedLLM(["done"])
    fork = run.fork(seq_of(run, "call_start"), loop=now)
    await fork
    assert [e.result for e in fork.events if e.type == "call_end"] == ["now"]


@pytest.mark.parametrize("way", ["fork", "restore"])
async def test_a_message_sent_at_the_end_of_a_nested_loop_is_delivered_to_the_next_one(way: str) -> None:
    def pair() -> Any:
        return LoopAgent("pair", [SessionLoop(ScriptedLLM(["one", "again"]), name=name) for name in ("one", "two")], 1)

    run = pair().start("go")
    await run
    at = next(event.seq for event in run.events if event.type == "run_end" and event.path == "one")
    again = run.fork(at, message="psst", loop=pair()) if way == "fork" else restore(run.at(at).snapshot(), pair())
    if way == "restore":
        again.steer("psst")
    await again
    assert [e.path for e in again.events if e.type == "message" and e.message.content == "psst"] == ["two"]


@every_world
async def test_a_fork_at_every_event_ends_like_the_run(
    world: Callable[[], Any], some_of: Callable[[range], range]
) -> None:
    whole = await drive(world().start("go"))
    for seq in some_of(range(len(whole.events))):
        fork = whole.fork(at=seq, loop=world())
        assert fold(fork.events) == fork.state
        in_flight = [state for state in states(fork.state) if (not state.over and state.model == "asked") or state.open]
        await drive(fork)
        check(fork)
        assert outcome(fork) == outcome(whole), f"from event {seq}: {in_flight}"


@pytest.mark.parametrize(
    "change",
    [{"arguments": {"text": 5}}, {"decision": {"decision": "replace", "name": "no such tool", "arguments": {}}}],
    ids=["arguments", "replace"],
)
async def test_a_refused_fork_writes_nothing_to_the_store(tmp_path: Any, change: Any) -> None:
    store = Store(tmp_path / "runs.db")
    run = World().loop.start("one", store=store)
    await run
    with pytest.raises(UsageError):
        run.fork(at=seq_of(run, "call_start"), **change)
    assert [info.id for info in store.runs()] == [run.id]
    store.close()


async def test_a_change_after_the_cancellation_is_refused() -> None:
    run = World().loop.start("one", approve=True)
    run.watch(lambda event: event.type == "call_start" and run.cancel())
    with pytest.raises(RunCancelled):
        await run
    cancelled, ended = seq_of(run, "cancel"), seq_of(run, "call_end")
    with pytest.raises(UsageError, match=f"from event {cancelled} on"):
        run.fork(at=ended, result="something else")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": "c9"}, "cannot be sent as user messages"),
        ({"role": "assistant", "tool_calls": [{"id": "c9", "name": "echo"}]}, "cannot be sent as user messages"),
    ],
    ids=["a result", "a call"],
)
async def test_tool_calls_and_results_cannot_be_sent_as_user_messages(message: Any, words: str) -> None:
    run = await World().run()
    for event in run.events:
        if event.type in ("message", "call_start"):  # in the place of a message, and in the user's queue
            with pytest.raises(UsageError, match=words):
                run.fork(at=event.seq, message=message)
    fork = run.fork(at=0)
    with pytest.raises(UsageError, match=words):
        fork.steer(message)
    assert fork.queued == []


async def test_a_changed_answer_must_be_an_assistant_message() -> None:
    run = await World().run()
    with pytest.raises(UsageError, match="the role must be 'assistant'"):
        run.fork(at=seq_of(run, "model_end"), message={"role": "user", "content": "x"})


# -- what a loop does itself -------------------------------------------------------------------------------------------


class Speaks(BaseAgent):
    async def _run_async_impl(self, ctx: Any) -> Any:
        yield Event(author=self.name, content=f"{self.name} speaks")


def asks_a_retriever() -> Any:
    return agentnb.Agent(Heard(), retriever=lambda query: "what was found")


def plans_and_executes() -> Any:
    return ConversationEngine(lambda goal: {"rules": ["be brief"]}, lambda goal: ["one", "two"])


def runs_sub_agents() -> Any:
    return LoopAgent("both", [Speaks("first"), Speaks("second")], 1)


class Heard:
    """A model that answers with the messages that it was sent."""

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> Any:
        yield {"type": "text_delta", "content": messages[-1]["content"]}


@pytest.mark.parametrize("at", ["call_proposed", "call_start", "call_end"])
@pytest.mark.parametrize(
    ("world", "call", "result", "output"),
    [
        (asks_a_retriever, "retrieve", ["other words"], "<retrieved>\n[1] other words\n</retrieved>\n\ngo"),
        (plans_and_executes, "get_context", "what is known", {"task_0": "one", "task_1": "two"}),
        (plans_and_executes, "decompose_goal", ["three"], {"task_0": "three"}),
        (plans_and_executes, "execute", "done", {"task_0": "done", "task_1": "two"}),
        (runs_sub_agents, "second", "other words", "other words"),
        (lambda: Speaks("alone"), "run_agent", "other words", "other words"),
    ],
    ids=["retrieved", "context", "plan", "task", "sub-agent", "agent's code"],
)
async def test_the_result_of_a_call_of_the_loop_can_be_changed(
    world: Any, call: str, result: Any, output: Any, at: str
) -> None:
    run = world().start("go")
    await run
    proposed = next(e for e in run.events if e.type == "call_proposed" and e.call.name == call)
    seq = next(e.seq for e in run.events if e.type == at and (e is proposed or call_id_of(e) == proposed.call.id))
    assert await run.fork(at=seq, result=result) == output


async def test_an_invalid_plan_is_refused_by_the_fork() -> None:
    run = plans_and_executes().start("go")
    await run
    end = next(e for e in run.events if e.type == "call_end" and e.call_id == "decompose_goal")
    with pytest.raises(UsageError, match="A decomposition must return a list of tasks"):
        run.fork(at=end.seq, result={"no": "plan"})


# -- an execution's answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [False, True])
async def test_a_changed_last_answer_of_an_execution_changes_the_output(native: bool) -> None:
    def said(output: str) -> str:
        return output if native else json.dumps({"calls": [], "output": output})

    run = ExecutionLoop(ScriptedLLM([said("one")]), native=native).start("go")
    assert await run == "one"
    at = seq_of(run, "model_end")
    assert await run.fork(at=at, message=said("two")) == "two"
    assert await run.fork(at=at, message={"role": "assistant", "content": said("three")}) == "three"


async def test_a_changed_answer_must_keep_calls_that_started_before_it_was_complete() -> None:
    @tool
    async def look() -> str:
        return "seen"

    run = ExecutionLoop(ScriptedLLM([[call("look", id="c1")], "done"]), [look], native=True).start("go")
    await run
    with pytest.raises(UsageError, match=r"were recorded before it was complete \(c1\)"):
        run.fork(at=seq_of(run, "model_end"), message={"role": "assistant", "content": "no calls"})
