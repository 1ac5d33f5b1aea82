"""Code written for LoopAgent's design: custom agents, callbacks, and the fields of the context."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

import agentnb
from agentnb import ConversationEngine, ExecutionLoop, LoopAgent, SessionLoop, Snapshot, UsageError, restore, tool
from agentnb.errors import InvalidArguments
from agentnb.loops import want
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions, InvocationContext
from agentnb.run import environment
from agentnb.testing import ScriptedLLM, call
from tests.loops.loop_agents import K, events_in, pausing, resumed, said_by, said_in, short
from tests.worlds import assert_folds

CONTEXT = "For context:\n"


class Story(BaseAgent):
    """An agent that runs its sub-agents itself, as custom agents of the design do."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        for agent in self.sub_agents:
            async for event in agent.run_async(ctx):  # type: ignore[attr-defined]
                yield event
        yield Event(author=self.name, content=f"{self.name} done")


# -- agents that run agents ----------------------------------------------------------------------------------------


async def test_an_agent_can_run_its_sub_agents_itself() -> None:
    def loop() -> LoopAgent:
        return LoopAgent("L", [Story("S", [K("A"), LoopAgent("IN", [K("X")], 2)])], 2)

    assert await said_in(loop()) == "A#1 X#1 X#2 S done A#2 X#3 X#4 S done"
    ctx = InvocationContext(is_resumable=True)
    assert await said_in(loop(), ctx) == (
        "CK(L,S,0) A#1 CK(IN,X,0) X#1 CK(IN,X,1) X#2 END(IN) S done "
        "CK(L,S,1) A#2 CK(IN,X,0) X#3 CK(IN,X,1) X#4 END(IN) S done END(L)"
    )
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {"L": True})
    run = loop().start("go")
    await run
    assert [said for said in said_by(run) if said] == ["A#1", "X#1", "X#2", "S done", "A#2", "X#3", "X#4", "S done"]


async def test_an_agent_can_run_loops_of_every_design_itself() -> None:
    @agentnb.Loop.from_generator(llm=ScriptedLLM(["ever"]))
    def asks(topic: str) -> Any:
        yield want.ask(topic)

    session = SessionLoop(ScriptedLLM([[call("look", {"at": "it"}, id="c1")], "one"]), [look], name="s")
    agent = agentnb.Agent(ScriptedLLM(["two"]), name="a")
    solves = ExecutionLoop(ScriptedLLM([json.dumps({"calls": [], "output": 3})]), name="e")
    story = Story("S", [K("A"), session, agent, solves, ConversationEngine(name="engine"), asks])
    ctx = InvocationContext(is_resumable=True, user_content="go")
    events = [event for event in await events_in(LoopAgent("L", [story, K("B")], 1), ctx) if not event.partial]
    authors = [event.author for event in events]
    assert authors == ["L", "A", "s", "s", "s", "a", "e", "asks", "S", "L", "B", "L"]
    assert [event.text for event in ctx.session.events] == [event.text for event in events]


async def test_a_loop_run_by_an_agent_gets_the_messages_of_the_user_and_the_agents() -> None:
    session = SessionLoop(ScriptedLLM(["one", "two"]), name="s")
    assert await said_in(LoopAgent("L", [Story("S", [K("A"), session])], 2), user_content="go")
    heard = [[message["content"] for message in request.messages] for request in session.llm.requests]
    assert heard == [
        ["go", f"{CONTEXT}[A] said: A#1"],
        ["go", f"{CONTEXT}[A] said: A#1", "one", f"{CONTEXT}[S] said: S done", f"{CONTEXT}[A] said: A#2"],
    ]


async def test_the_model_error_of_a_loop_run_by_an_agent_is_raised_unchanged() -> None:
    session = SessionLoop(ScriptedLLM([[LookupError("down")]]), name="any name")
    with pytest.raises(LookupError, match="down"):
        await said_in(LoopAgent("L", [Story("S", [session])], 1))


async def test_an_abort_cancels_a_loop_run_by_an_agent() -> None:
    @tool
    async def stops() -> str:
        ctx.abort()
        return "too late"

    ctx = InvocationContext(is_resumable=True)
    session = SessionLoop(ScriptedLLM([[call("stops", id="c1")], "never"]), [stops], name="s")
    events = await events_in(LoopAgent("L", [Story("S", [session])], 1), ctx)
    assert events[-1].error_code == "INVOCATION_ABORTED"
    assert [answer["id"] for event in events for answer in event.get_function_responses()] == ["c1"]


async def test_events_passed_on_by_agents_stay_the_same_objects() -> None:
    made: list[Event] = []

    class Maker(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            made.append(Event(author=self.name, content="made"))
            yield made[-1]

    ctx = InvocationContext()
    loop = LoopAgent("L", [Story("S", [Story("T", [Maker("M"), LoopAgent("IN", [Maker("N")], 1)])])], 2)
    events = [event for event in await events_in(loop, ctx) if event.text == "made"]
    assert all(event is original for event, original in zip(events, made, strict=True))
    assert len(events) == 4
    assert len(ctx.session.events) == 8  # each event once, independent of how many agents passed it on


async def test_an_escalation_handled_by_a_loop_run_by_an_agent_has_no_further_effect() -> None:
    def loop(scope: str | None) -> LoopAgent:
        inside = LoopAgent("IN", [K("X", escalate="all", scope=scope)])
        return LoopAgent("L", [Story("S", [inside]), K("Y")], 2)

    assert await said_in(loop(None)) == "X#1[esc] S done Y#1 X#2[esc] S done Y#2"
    assert await said_in(loop("IN")) == "X#1[esc] S done Y#1 X#2[esc] S done Y#2"
    assert await said_in(loop("root")) == "X#1[esc] S done"
    assert await said_in(loop("L")) == "X#1[esc] S done"


async def test_an_escalation_passes_through_an_agent_that_is_not_a_loop() -> None:
    assert await said_in(LoopAgent("L", [Story("S", [K("X", escalate=1), K("Z")]), K("Y")])) == "X#1[esc] Z#1 S done"


async def test_a_pause_of_an_agent_run_by_another_pauses_the_loop() -> None:
    loop = LoopAgent("L", [K("A"), Story("S", [LoopAgent("IN", [K("X"), K("P", pause=1)], 2)])], 1)
    ctx = InvocationContext(is_resumable=True)
    assert await said_in(loop, ctx) == "CK(L,A,0) A#1 CK(L,S,0) CK(IN,X,0) X#1 CK(IN,P,0) P#1[pause] S done"
    assert ctx.agent_states["IN"] == {"current_sub_agent": "P", "times_looped": 0}
    # S runs again from its start; the loop inside it knows where it was.
    assert await said_in(loop, resumed(ctx)) == "P#2 CK(IN,X,1) X#2 CK(IN,P,1) P#3 END(IN) S done END(L)"


async def test_an_agent_can_run_a_loop_more_than_once() -> None:
    class Twice(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            for _ in range(2):
                async for event in self.sub_agents[0].run_async(ctx):  # type: ignore[attr-defined]
                    yield event

    loop = LoopAgent("L", [Twice("T", [LoopAgent("IN", [K("X")], 1)])], 1)
    assert await said_in(loop, is_resumable=True) == "CK(L,T,0) CK(IN,X,0) X#1 END(IN) CK(IN,X,0) X#2 END(IN) END(L)"


async def test_an_agent_can_handle_exceptions_of_another_agent() -> None:
    class Retries(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            for _ in range(2):
                try:
                    async for event in self.sub_agents[0].run_async(ctx):  # type: ignore[attr-defined]
                        yield event
                except RuntimeError as error:
                    yield Event(author=self.name, content=str(error))

    loop = LoopAgent("L", [Retries("R", [K("X", boom=1)])], 1)
    assert await said_in(loop) == "boom X#2"

    class Breaks(Retries):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            async for event in super()._run_async_impl(ctx):
                yield event
            raise LookupError("another")

    with pytest.raises(LookupError, match="another"):
        await said_in(LoopAgent("L", [Breaks("B", [K("X", boom=1)])], 1))


@pytest.mark.parametrize("upto", range(1, 8))
async def test_closing_the_stream_closes_agents_run_by_an_agent(upto: int) -> None:
    log: list[str] = []
    inside = [K("A", log=log, says=1), LoopAgent("IN", [K("X", log=log, says=1)], 2)]
    await events_in(LoopAgent("L", [Story("S", inside)], 1), InvocationContext(is_resumable=True), upto=upto)
    assert sum(entry.endswith("begins") for entry in log) == sum(entry.endswith("ends") for entry in log)


async def test_agents_on_agentnbs_own_thread_can_run_other_agents(monkeypatch: Any) -> None:
    class Hosted(environment.PlainPython):
        hosted = True

    monkeypatch.setattr(environment, "current", Hosted())
    loop = LoopAgent("L", [Story("S", [K("A"), LoopAgent("IN", [K("X")], 2)])], 1)
    assert await asyncio.wait_for(said_in(loop), 60) == "A#1 X#1 X#2 S done"
    ctx = InvocationContext(is_resumable=True)
    await events_in(loop, ctx, upto=3)
    assert await said_in(loop, resumed(ctx)) == "A#3 X#3 CK(IN,X,1) X#4 END(IN) S done END(L)"


async def test_an_abort_cancels_an_agent_run_by_another() -> None:
    ctx, events = InvocationContext(), []
    async for event in LoopAgent("L", [Story("S", [LoopAgent("IN", [K("X", says=9)])])]).run_async(ctx):
        events.append(short(event))
        if len(events) == 2:
            ctx.abort()
    assert events == ["X#1", "X#1+1", "INVOCATION_ABORTED"]


async def test_a_single_agent_can_be_streamed_and_started() -> None:
    ctx = InvocationContext(is_resumable=True)
    assert await said_in(K("A", says=1), ctx) == "A#1 A#1+1"
    assert await said_in(K("A", pause=1), ctx) == "A#1[pause]"
    with pytest.raises(RuntimeError, match="boom"):
        await said_in(K("A", boom=1), ctx)
    run = K("A", says=1).start("hi")
    assert (await run, run.stop_reason) == ("A#1+1", "completed")


# -- the class -----------------------------------------------------------------------------------------------------


class Careful(BaseAgent):
    """An agent that declares its attributes like a pydantic model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    threshold: int = 3
    words: list[str] = Field(default_factory=list)
    helper: K
    _seen: list[int] = PrivateAttr(default_factory=list)

    def __init__(self, name: str, helper: K, **options: Any) -> None:
        super().__init__(name=name, helper=helper, sub_agents=[helper], **options)

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        self._seen.append(len(self._seen))
        self.words.append(self.name)
        async for event in self.helper.run_async(ctx):
            yield event
        escalate = len(self._seen) >= self.threshold
        yield Event(author=self.name, content=f"{self._seen}", actions=EventActions(escalate=escalate))


async def test_agents_can_be_declared_like_pydantic_models() -> None:
    one, other = Careful("one", K("A"), threshold=2), Careful(name="other", helper=K("B"), description="x")
    assert await said_in(LoopAgent(name="L", sub_agents=[one, other])) == "A#1 [0] B#1 [0] A#2 [0, 1][esc]"
    assert (one.words, other.words) == (["one", "one"], ["other"])
    assert (other.threshold, other.description) == (3, "x")


def test_unset_actions_of_the_design_have_their_default_values() -> None:
    actions = Event(author="A").actions
    assert (actions.transfer_to_agent, actions.skip_summarization, actions.route, actions.compaction) == (None,) * 4
    assert (actions.artifact_delta, actions.requested_auth_configs, actions.requested_tool_confirmations) == ({},) * 3
    given = Event(author="A", actions=EventActions(skip_summarization=True, artifact_delta={"a.txt": 1}))
    assert Event.model_validate_json(given.model_dump_json()) == given


def test_a_mutable_class_attribute_is_copied_for_each_agent() -> None:
    class Noting(BaseAgent):
        notes: list[str] = []  # noqa: RUF012 - as a pydantic model declares it
        of_all: ClassVar[list[str]] = []

    one, other = Noting("one"), Noting("other")
    one.notes.append("x")
    one.of_all.append("y")
    assert (other.notes, Noting.notes, other.of_all) == ([], [], ["y"])


async def test_agents_share_the_session_and_its_state() -> None:
    class Writer(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            draft = ctx.session.state.get("draft", 0) + 1
            yield Event(author=self.name, content=f"draft {draft}", actions=EventActions(state_delta={"draft": draft}))

    class Critic(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            assert "W" in {event.author for event in ctx.session.events[-2:]}
            assert ctx.agent is self
            passed = ctx.session.state["draft"] >= 3  # an interrupted agent writes once more
            yield Event(author=self.name, content="ok" if passed else "no", actions=EventActions(escalate=passed))

    def loop() -> LoopAgent:
        return LoopAgent("L", [Writer("W"), Critic("C")])

    assert await said_in(loop()) == "draft 1 no draft 2 no draft 3 ok[esc]"
    run = loop().start(None)
    assert await run == "ok"
    # The same in a run restored in another process, at any event.
    for position in range(1, len(run.events)):
        again = restore(Snapshot.from_json(Snapshot.of(run.events[:position]).to_json()), loop())
        await again
        assert said_by(again)[-1] == "ok"
        assert "draft 3" in said_by(again)


class Counter(BaseAgent):
    """An agent that keeps its position in the context."""

    pauses_at = 0

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        at = ctx.agent_states.get(self.name, {}).get("at", 0)
        while at < 3:
            at += 1
            ctx.set_agent_state(self.name, agent_state={"at": at})
            yield Event(author=self.name, actions=EventActions(agent_state={"at": at}))
            if at == self.pauses_at:
                yield pausing(self.name, f"{at}?")
                return
            yield Event(author=self.name, content=f"{at}")


def counted(events: list[str]) -> str:
    return " ".join(said for said in events if said and not said.startswith("CK"))


async def test_an_agent_can_keep_its_own_state_in_the_context() -> None:
    for fields in ({}, {"is_resumable": True}):
        said = await said_in(LoopAgent("L", [Counter("N")], 2), **fields)
        assert counted(said.split()).removesuffix(" END(L)") == "1 2 3 1 2 3"  # each pass starts again
    loop, ctx = LoopAgent("L", [Counter("N", pauses_at=2)], 1), InvocationContext(is_resumable=True)
    assert counted((await said_in(loop, ctx)).split()) == "1 2?[pause]"
    assert ctx.agent_states["N"] == {"at": 2}
    loop = LoopAgent("L", [Counter("N")], 1)
    assert counted((await said_in(loop, resumed(ctx))).split()) == "3 END(L)"


async def test_the_own_state_of_an_agent_is_kept_in_a_snapshot() -> None:
    run = LoopAgent("L", [Counter("N", pauses_at=2)], 2).start(None)
    await run
    assert run.stop_reason == "suspended"
    again = restore(Snapshot.from_json(run.snapshot().to_json()), LoopAgent("L", [Counter("N")], 2))
    await again
    assert counted(said_by(again)) == "1 2? 3 1 2 3"
    assert_folds(again)


def test_the_context_sets_and_returns_the_state_of_an_agent() -> None:
    ctx = InvocationContext()
    assert ctx.get_agent_state("N") is None
    ctx.set_agent_state("N", {"at": 2})  # the form in the description of the design
    assert (ctx.get_agent_state("N"), ctx.end_of_agents) == ({"at": 2}, {"N": False})
    ctx.set_agent_state("N", end_of_agent=True)
    assert ctx.get_agent_state("N") is None


async def test_a_state_can_be_a_model() -> None:
    class Where(BaseModel):
        at: int = 0

    ctx = InvocationContext()
    ctx.set_agent_state("N", agent_state=Where(at=2))
    assert (ctx.agent_states, ctx.end_of_agents) == ({"N": {"at": 2}}, {"N": False})
    ctx.set_agent_state("N", end_of_agent=True)
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {"N": True})
    ctx.set_agent_state("N")
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {})


async def test_an_agent_can_reset_the_states_of_its_sub_agents() -> None:
    class Resets(Story):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            ctx.set_agent_state("IN", agent_state={"current_sub_agent": "X", "times_looped": 1})
            ctx.set_agent_state("X", end_of_agent=True)
            ctx.reset_sub_agent_states("R")
            assert not {"IN", "X"} & {*ctx.agent_states, *ctx.end_of_agents}
            async for event in super()._run_async_impl(ctx):
                yield event

    assert await said_in(LoopAgent("L", [Resets("R", [LoopAgent("IN", [K("X")], 2)])], 1)) == "X#1 X#2 R done"


async def test_a_context_does_not_change_the_mappings_that_were_passed() -> None:
    states, ends = {"L": {"current_sub_agent": "A", "times_looped": 0}}, {"L": False}
    ctx = InvocationContext(True, states, ends)
    assert await said_in(LoopAgent("L", [K("A")], 1), ctx) == "A#1 END(L)"
    assert (states, ends) == ({"L": {"current_sub_agent": "A", "times_looped": 0}}, {"L": False})


async def test_an_agent_gets_the_content_of_the_user() -> None:
    class Listens(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content=f"heard {Event(content=ctx.user_content).text}")

    loop = LoopAgent("OUT", [LoopAgent("IN", [Listens("A")], 1)], 1)
    assert await said_in(loop, user_content={"parts": [{"text": "hello"}]}) == "heard hello"
    assert await LoopAgent("OUT", [LoopAgent("IN", [Listens("A")], 1)], 1).start("hi") == "heard hi"


class Asks(BaseAgent):
    """An agent that asks until it finds the answer in the session."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        answers = [answer for event in ctx.session.events for answer in event.get_function_responses()]
        yield Event(author=self.name, content=answers[-1]["response"]) if answers else pausing(self.name, "well?")


ANSWER = {"role": "user", "parts": [{"function_response": {"id": "lr", "name": "ask", "response": "yes"}}]}


async def test_a_paused_agent_gets_its_answer_from_the_session() -> None:
    loop, ctx = LoopAgent("L", [Asks("P"), K("A")], 1), InvocationContext(is_resumable=True)
    assert await said_in(loop, ctx) == "CK(L,P,0) well?[pause]"
    again = resumed(ctx)
    again.user_content = ANSWER
    assert await said_in(loop, again) == "yes CK(L,A,0) A#1 END(L)"
    assert [event.author for event in again.session.events] == ["user", "P", "L", "A", "L"]
    ctx.user_content = ANSWER
    assert await said_in(loop, ctx) == "yes CK(L,A,0) A#2 END(L)"


async def test_a_run_restored_from_a_recording_finds_the_answer() -> None:
    loop = LoopAgent("L", [Asks("P")], 1)
    ctx = InvocationContext(is_resumable=True, user_content=ANSWER)
    async with aclosing(loop.run_async(ctx)) as events:
        await anext(events)
        assert ctx.run is not None
        snapshot = Snapshot.from_json(ctx.run.snapshot().to_json())
    assert await restore(snapshot, loop) == "yes"


async def test_an_agent_can_end_the_invocation() -> None:
    class Ends(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            ctx.end_invocation = True
            yield Event(author=self.name, content="over")

    loop = LoopAgent("OUT", [LoopAgent("IN", [Ends("E"), K("A")]), K("B")])
    assert await said_in(loop) == "over"


# -- callbacks -----------------------------------------------------------------------------------------------------


def noting(log: list[str], what: str, returns: Any = None) -> Any:
    async def callback(ctx: InvocationContext) -> Any:
        log.append(what)
        return returns

    return callback


async def test_callbacks_are_called_around_every_run() -> None:
    log: list[str] = []
    agent = K("A", before_agent_callback=noting(log, "before A"), after_agent_callback=noting(log, "after A"))
    agent.log = log
    loop = LoopAgent(
        "L", [agent], 2, before_agent_callback=noting(log, "before L"), after_agent_callback=noting(log, "after L")
    )
    assert await said_in(loop) == "A#1 A#2"
    assert [entry for entry in log if not entry.endswith("goes on")] == [
        "before L", "before A", "A#1 begins", "A#1 ends", "after A",
        "before A", "A#2 begins", "A#2 ends", "after A", "after L",
    ]  # fmt: skip


async def test_content_of_a_before_callback_replaces_the_run() -> None:
    log: list[str] = []
    agents = [K("A", before_agent_callback=lambda ctx: "cached"), K("B")]
    assert await said_in(LoopAgent("L", agents, 1)) == "cached B#1"
    inner = LoopAgent("IN", [K("X", log=log)], before_agent_callback=lambda ctx: {"parts": [{"text": "skipped"}]})
    assert await said_in(LoopAgent("OUT", [inner, K("Y")], 1), is_resumable=True) == (
        "CK(OUT,IN,0) skipped CK(OUT,Y,0) Y#1 END(OUT)"
    )
    assert log == []


async def test_content_of_an_after_callback_is_the_last_event() -> None:
    def loop(**options: Any) -> LoopAgent:
        agent = K("A", after_agent_callback=lambda ctx: "after A", **options)
        return LoopAgent("L", [agent], 1, after_agent_callback=noting([], "", "after L"))

    assert await said_in(loop(), is_resumable=True) == "CK(L,A,0) A#1 after A END(L) after L"
    assert await said_in(loop(escalate=1), is_resumable=True) == "CK(L,A,0) A#1[esc] after A END(L) after L"
    assert await said_in(loop()) == "A#1 after A after L"
    assert await said_in(LoopAgent("L", [], after_agent_callback=lambda ctx: "x"), is_resumable=True) == "END(L) x"
    run = loop().start(None)
    await run
    assert run.stop_reason == "max_iterations"


async def test_callbacks_are_called_until_one_returns_content() -> None:
    log: list[str] = []
    callbacks = [noting(log, "one"), noting(log, "two", "said"), noting(log, "three")]
    for agent in (K("A"), LoopAgent("A", [K("X")], 1)):
        agent.before_agent_callback = callbacks
        assert await said_in(agent) == "said"
    assert await said_in(LoopAgent("L", [K("A", after_agent_callback=callbacks)], 1)) == "A#1 said"
    assert await said_in(LoopAgent("L", [K("A")], 1, after_agent_callback=callbacks)) == "A#1 said"
    assert await said_in(LoopAgent("L", [K("A")], 1, before_agent_callback=[], after_agent_callback=())) == "A#1"
    assert log == ["one", "two"] * 4


async def test_the_before_callback_is_called_again_on_resume() -> None:
    log: list[str] = []
    loop = LoopAgent("L", [K("A", pause=1)], 1, before_agent_callback=noting(log, "before"))
    ctx = InvocationContext(is_resumable=True)
    assert await said_in(loop, ctx) == "CK(L,A,0) A#1[pause]"
    assert await said_in(loop, resumed(ctx)) == "A#2 END(L)"
    assert await said_in(loop, resumed(ctx)) == "A#3 END(L)"
    assert log == ["before"] * 3
    ended = InvocationContext(is_resumable=True, end_of_agents={"L": True})
    assert await said_in(loop, ended) == ""
    assert log == ["before"] * 3


@pytest.mark.parametrize("callback", ["before_agent_callback", "after_agent_callback"])
async def test_an_exception_of_a_callback_is_raised(callback: str) -> None:
    def fails(ctx: InvocationContext) -> None:
        raise LookupError(callback)

    for loop in (LoopAgent("L", [K("A")], 1, **{callback: fails}), LoopAgent("L", [K("A", **{callback: fails})], 1)):
        with pytest.raises(LookupError, match=callback):
            await said_in(loop)


# -- other loops inside --------------------------------------------------------------------------------------------


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


async def test_a_nested_session_emits_its_answers_calls_and_results() -> None:
    llm = ScriptedLLM([[call("look", {"at": "it"}, id="c1")], "one", "two"])
    loop = LoopAgent("L", [SessionLoop(llm, [look], name="s"), K("A")], 2)
    ctx = InvocationContext(is_resumable=True, user_content="go")
    events = [event for event in await events_in(loop, ctx) if not event.partial]
    assert [event.author for event in events] == ["L", "s", "s", "s", "L", "A", "L", "s", "L", "A", "L"]
    [called] = events[1].get_function_calls()
    assert (called["id"], called["args"]) == ("c1", {"at": "it"})
    assert events[2].content["parts"][0]["function_response"] == {"id": "c1", "name": "look", "response": "saw it"}
    heard = [[m["content"] for m in request.messages if m["role"] == "user"] for request in llm.requests]
    assert heard == [["go"], ["go"], ["go", f"{CONTEXT}[A] said: A#1"]]


@pytest.mark.parametrize(
    ("output", "words"), [({"x": 2}, '{"x":2}'), ([1], "[1]"), (0, "0"), (False, "false"), ("so", "so")]
)
async def test_a_session_gets_the_output_of_another_loop_as_json(output: Any, words: str) -> None:
    solves = ExecutionLoop(ScriptedLLM([json.dumps({"calls": [], "output": output})]), name="E")
    session = SessionLoop(ScriptedLLM(["done"]), name="S")
    await LoopAgent("L", [solves, session], 1).start("go")
    assert [message["content"] for message in session.llm.requests[0].messages] == ["go", f"{CONTEXT}[E] said: {words}"]


async def test_a_session_without_input_gets_a_default_prompt() -> None:
    llm = ScriptedLLM(["one"])
    loop = LoopAgent("L", [SessionLoop(llm, name="s")], 1)
    assert await loop.start(None) == "one"
    assert [m["role"] for m in llm.requests[0].messages] == ["user"]


@pytest.mark.parametrize(
    ("input", "before", "given"),
    [
        ("cats", [], "cats"),
        ({"n": 3}, [], {"n": 3}),
        (None, [], None),
        ("cats", [K("A")], "cats\n[A] said: A#1"),
        (None, [K("A")], "[A] said: A#1"),
    ],
)
async def test_a_loop_with_text_input_gets_earlier_messages_as_one_text(
    input: Any, before: list[Any], given: Any
) -> None:
    @agentnb.Loop.from_generator
    def line(topic: Any) -> Any:
        yield want.say("begins")
        return topic

    assert await LoopAgent("L", [*before, line], 1).start(input) == given


async def test_a_loop_in_an_invocation_gets_the_user_content_as_text() -> None:
    @agentnb.Loop.from_generator(llm=ScriptedLLM(["They sleep."]))
    def line(topic: str) -> Any:
        yield want.ask(topic)

    events = await events_in(LoopAgent("L", [line], 1), InvocationContext(user_content="cats"))
    assert [event.text for event in events if not event.partial] == ["They sleep."]


async def test_a_nested_engine_gets_its_goal_as_one_text() -> None:
    goals: list[Any] = []
    engine = ConversationEngine(llm=lambda goal: goals.append(goal) or [])
    await LoopAgent("L", [K("A"), engine], 1).start("cats")
    assert goals == ["cats\n[A] said: A#1"]


async def test_a_call_that_needs_approval_is_an_event_and_is_decided_through_the_context() -> None:
    @tool(approve=True)
    async def send(to: str) -> str:
        return f"sent to {to}"

    llm = ScriptedLLM([[call("send", {"to": "all"}, id="c1")], "done"])
    ctx, said = InvocationContext(user_content="go"), []
    async for event in LoopAgent("L", [SessionLoop(llm, [send], name="s")], 1).run_async(ctx):
        said += [made["name"] for made in event.get_function_calls()]
        if said[-1:] == ["adk_request_confirmation"] and ctx.run.pending:  # type: ignore[union-attr]
            ctx.run.approve("c1")  # type: ignore[union-attr]
    assert said == ["send", "adk_request_confirmation"]
    llm.assert_complete()


async def test_every_design_can_be_a_sub_agent() -> None:
    goals: list[Any] = []

    async def execute(task: Any) -> str:
        goals.append(task.description)
        return "did"

    engine = agentnb.ConversationEngine(execute=execute, name="engine")
    agent = agentnb.Agent(ScriptedLLM(["an answer"]), name="agent")
    inner = LoopAgent("IN", [SessionLoop(ScriptedLLM(["a word"]), name="session")], 1)
    run = LoopAgent("L", [engine, agent, inner], 1).start("do it")
    assert await run == "a word"
    assert {event.path for event in run.events} == {"", "engine", "agent", "IN", "IN/session"}
    assert "do it" in str(goals[0])
    assert_folds(run)


# -- inside other loops --------------------------------------------------------------------------------------------


class Hears(BaseAgent):
    """An agent that emits its input and the content of its session."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        await asyncio.sleep(0)
        told, said = Event(content=ctx.user_content).text, [event.text for event in ctx.session.events]
        yield Event(author=self.name, content=f"{told} {said}", actions=EventActions(state_delta={"told": told}))


def hearing(kind: str) -> Any:
    return Hears("A") if kind == "agent" else LoopAgent("A", [Hears("X")], 1)


def engine_of(agent: Any) -> ConversationEngine:
    plan = SimpleNamespace(decompose_goal=lambda goal: [{"id": id, "description": f"do {id}"} for id in "abc"])
    return ConversationEngine(llm=plan, execute=agent)


@pytest.mark.parametrize("kind", ["agent", "loop"])
async def test_an_agent_that_executes_tasks_gets_each_task_with_an_empty_history(kind: str) -> None:
    assert await engine_of(hearing(kind)).start("go") == {"a": "do a []", "b": "do b []", "c": "do c []"}


@pytest.mark.parametrize("tool_execution", ["sequential", "parallel"])
@pytest.mark.parametrize("kind", ["agent", "loop"])
async def test_an_agent_called_by_a_model_gets_the_input_of_the_call(kind: str, tool_execution: Any) -> None:
    calls = [call("A", {"input": said}, id=said) for said in ("one", "two")]
    session = SessionLoop(ScriptedLLM([calls, "done"]), [hearing(kind)], tool_execution=tool_execution)
    run = session.start("hi")
    await run
    assert [m.content for m in run.messages if m.role == "tool"] == ["one []", "two []"]


@pytest.mark.parametrize("kind", ["agent", "loop"])
async def test_agents_inside_a_restored_engine_have_the_same_output(kind: str) -> None:
    whole = engine_of(hearing(kind)).start("go")
    output = await whole
    ends = [event.seq + 1 for event in whole.events if event.type == "call_end" and not event.path]
    assert len(ends) == 5  # the context, the plan, three tasks
    for position in ends:
        assert await restore(Snapshot.of(whole.events[:position]), engine_of(hearing(kind))) == output


async def test_two_runs_of_one_recording_are_independent() -> None:
    def loop() -> LoopAgent:
        return LoopAgent("L", [Hears("X")], 2)

    run = loop().start("go")
    while run.state.values.get("times_looped") != 1:
        await run.step()
    copy = restore(run.snapshot(), loop())
    assert await copy == await run == "go ['go []']"


async def test_an_agent_inside_a_session_takes_part_in_the_invocation() -> None:
    """The agent gets its own input, and its events are in the session and the stream of the invocation."""
    session = SessionLoop(ScriptedLLM([[call("A", {"input": "one"})], "done"]), [hearing("loop")], name="S")
    ctx = InvocationContext(is_resumable=True, user_content="go")
    events = await events_in(LoopAgent("L", [session], 1), ctx)
    said = next(event for event in events if event.author == "X")
    assert said.text.startswith("one ")
    assert any(event is said for event in ctx.session.events)
    assert ctx.session.state == {"told": "one"}


async def test_an_agent_inside_a_session_can_abort_the_invocation() -> None:
    class Aborts(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            ctx.abort()
            yield Event(author=self.name, content="gone on")

    session = SessionLoop(ScriptedLLM([[call("A", {"input": "one"})], "done"]), [Aborts("A")], name="S")
    assert (await said_in(LoopAgent("L", [session], 1), user_content="go")).endswith("INVOCATION_ABORTED")


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sub_agents": K("A")}, "sub_agents of L must be a list of agents"),
        ({"sub_agents": None}, "sub_agents of L must be a list of agents"),
        ({"max_iteration": 3}, "no max_iteration=; max_iterations= is probably meant"),
        ({"before_agent_callback": "check"}, "callback of L must be a function or a list of functions, not 'check'"),
        ({"after_agent_callback": [print, None]}, "callback of L must be a function or a list of functions, not None"),
    ],
)
def test_the_error_for_invalid_arguments_of_a_loop_agent_names_them(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArguments, match=said):
        LoopAgent("L", **options)


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        ({"agent_states": {"L": None}}, "state of the agent 'L' must be a mapping"),
        ({"agent_states": ["L"]}, "agent_states must be a mapping"),
        ({"end_of_agents": 3}, "end_of_agents must be a mapping"),
    ],
)
def test_the_error_for_invalid_arguments_of_a_context_names_them(maps: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArguments, match=said):
        InvocationContext(**maps)


def test_a_refused_state_changes_nothing() -> None:
    ctx = InvocationContext(agent_states={"A": {"n": 1}})
    with pytest.raises(InvalidArguments):
        ctx.set_agent_state("A", agent_state=5)
    assert ctx.agent_states == {"A": {"n": 1}}


def test_run_async_of_a_loop_requires_a_context() -> None:
    with pytest.raises(UsageError, match=r"s.run_async\(ctx\) takes an InvocationContext, not 'go'"):
        SessionLoop(ScriptedLLM([]), name="s").run_async("go")


def test_run_async_of_a_loop_agent_requires_a_context() -> None:
    with pytest.raises(UsageError, match="takes an InvocationContext, not None"):
        LoopAgent("L", [K("A")], 1).run_async(None)  # type: ignore[arg-type]


async def test_an_agent_without_a_yield_emits_no_events() -> None:
    class Quiet(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> None:  # type: ignore[override]
            log.append(self.name)

    log: list[str] = []
    said = await said_in(LoopAgent("L", [Quiet("Q"), K("B")], 2), is_resumable=True)
    assert said == "CK(L,Q,0) CK(L,B,0) B#1 CK(L,Q,1) CK(L,B,1) B#2 END(L)"
    assert log == ["Q", "Q"]


class Returns(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        return [Event(author="A", content="unsaid")]


class IsNotAsync(BaseAgent):
    def _run_async_impl(self, ctx: InvocationContext) -> Any:
        yield Event(author="A", content="unsaid")


@pytest.mark.parametrize("agent", [Returns, IsNotAsync])
async def test_the_error_for_an_agent_that_returns_events_states_that_it_must_yield(agent: Any) -> None:
    with pytest.raises(TypeError, match=r"A\._run_async_impl returned a .*\. It must be `async def`, and yield Events"):
        await said_in(LoopAgent("L", [agent("A")], 1))
