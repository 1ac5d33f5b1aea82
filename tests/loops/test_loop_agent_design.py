"""LoopAgent's design with code of its users: overriding the loop, contexts, sessions, callbacks, trees (ADK)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from pydantic import ConfigDict

from agentnb import LoopAgent, SessionLoop
from agentnb.loops.loop_agent import (
    Aclosing,
    BaseAgent,
    BaseAgentState,
    CallbackContext,
    Event,
    EventActions,
    InvocationContext,
    LlmCallsLimitExceededError,
    LoopAgentState,
    ReadonlyContext,
    ResumabilityConfig,
    Session,
)
from agentnb.testing import ScriptedLLM
from tests.loops.loop_agents import K, events_in, resumed, said_in

# -- a subclass overrides the loop -----------------------------------------------------------------------------------


class Logged(LoopAgent):
    log: list[str]

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        self.log.append("begins")
        async for event in super()._run_async_impl(ctx):
            yield event
        self.log.append("ends")


def logged(name: str, agents: list[Any], passes: int | None = 1, **options: Any) -> Logged:
    return Logged(name, agents, passes, log=[], **options)


async def test_a_subclass_can_override_the_loop() -> None:
    loop = logged("L", [K("A"), K("B")], 2)
    assert await said_in(loop) == "A#1 B#1 A#2 B#2"
    assert loop.log == ["begins", "ends"]


async def test_start_runs_the_overridden_loop() -> None:
    loop = logged("L", [K("A")])
    assert await loop.start(None) == "A#1"
    assert loop.log == ["begins", "ends"]


async def test_an_overridden_loop_emits_checkpoints() -> None:
    said = await said_in(logged("L", [K("A"), K("B")], 2), is_resumable=True)
    assert said == "CK(L,A,0) A#1 CK(L,B,0) B#1 CK(L,A,1) A#2 CK(L,B,1) B#2 END(L)"


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (None, "CK(O,L,0) CK(L,A,0) A#1[esc] END(L) CK(O,Z,0) Z#1 END(O)"),
        ("root", "CK(O,L,0) CK(L,A,0) A#1[esc] END(L) END(O)"),
    ],
)
async def test_an_escalation_ends_only_the_overridden_loop_unless_it_names_another(
    scope: str | None, said: str
) -> None:
    inner = logged("L", [K("A", escalate=1, scope=scope)], None)
    assert await said_in(LoopAgent("O", [inner, K("Z")], 1), is_resumable=True) == said


async def test_an_overridden_loop_is_resumed_at_its_pause() -> None:
    loop, ctx = logged("L", [K("A"), K("B", pause=1)]), InvocationContext(is_resumable=True)
    outer = LoopAgent("O", [loop, K("Z")], 1)
    assert await said_in(outer, ctx) == "CK(O,L,0) CK(L,A,0) A#1 CK(L,B,0) B#1[pause]"
    assert await said_in(outer, resumed(ctx)) == "B#2 END(L) CK(O,Z,0) Z#1 END(O)"
    assert loop.log == ["begins", "ends"] * 2


async def test_an_overridden_loop_is_resumed_at_its_failure() -> None:
    loop, ctx = logged("L", [K("A"), K("B", boom=1)]), InvocationContext(is_resumable=True)
    with pytest.raises(RuntimeError, match="boom"):
        await said_in(loop, ctx)
    assert await said_in(loop, resumed(ctx)) == "B#2 END(L)"


async def test_callbacks_are_called_once_around_an_override() -> None:
    log: list[str] = []
    loop = logged("L", [K("A")])
    loop.before_agent_callback = lambda context: log.append("before")
    loop.after_agent_callback = lambda context: log.append("after")
    await said_in(loop)
    assert log == ["before", "after"]


async def test_an_override_can_run_the_loop_twice_or_never() -> None:
    class Twice(LoopAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            for _ in range(2):
                async for event in super()._run_async_impl(ctx):
                    yield event

    class Never(LoopAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content="nothing to do")

    said = await said_in(Twice("L", [K("A")], 1), is_resumable=True)
    assert said == "CK(L,A,0) A#1 END(L) CK(L,A,0) A#2 END(L)"
    assert await said_in(Never("L", [K("A")], 1)) == "nothing to do"


async def test_an_override_can_filter_and_change_events() -> None:
    class Loud(LoopAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> Any:
            async for event in super()._run_async_impl(ctx):
                if event.author != "A":
                    yield event.model_copy(update={"content": event.text.upper()})

    assert await said_in(Loud("L", [K("A"), K("b")], 1)) == "B#1"


async def test_overridden_loops_can_be_nested() -> None:
    inner = logged("IN", [K("A")])
    outer = logged("OUT", [inner], 2)
    assert await said_in(outer) == "A#1 A#2"
    assert inner.log == ["begins", "ends"] * 2
    assert outer.log == ["begins", "ends"]


async def test_a_method_replaced_on_an_instance_is_used() -> None:
    loop = LoopAgent("L", [K("A")], 1)
    with mock.patch.object(loop, "_run_async_impl", wraps=loop._run_async_impl) as spied:
        assert await said_in(loop) == "A#1"
    spied.assert_called_once()


async def test_run_async_impl_of_a_loop_agent_runs_the_loop() -> None:
    loop = LoopAgent("L", [K("A")], 1, before_agent_callback=lambda context: "instead")
    assert [event.text async for event in loop._run_async_impl(InvocationContext())] == ["A#1"]


# -- the context -----------------------------------------------------------------------------------------------------


async def test_a_context_accepts_the_arguments_of_the_design() -> None:
    loop = LoopAgent(name="loop", max_iterations=1, sub_agents=[K(name="a")])
    session = Session(id="s", app_name="app", user_id="me", state={"k": 1})
    ctx = InvocationContext(
        invocation_id="i1",
        agent=loop,
        session=session,
        session_service=object(),
        artifact_service=object(),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    assert (ctx.is_resumable, ctx.app_name, ctx.user_id, ctx.session.state) == (True, "app", "me", {"k": 1})
    assert await said_in(loop, ctx) == "CK(loop,a,0) a#1 END(loop)"
    assert {event.invocation_id for event in session.events if event.author == "loop"} == {"i1"}
    assert session.last_update_time == session.events[-1].timestamp


async def test_run_async_accepts_its_context_by_name() -> None:
    assert [event.text async for event in K("A").run_async(parent_context=InvocationContext())] == ["A#1"]
    loop = SessionLoop(ScriptedLLM(["hi"]))
    events = [event async for event in loop.run_async(parent_context=InvocationContext(user_content="go"))]
    assert events[-1].text == "hi"


@pytest.mark.parametrize("config", [None, ResumabilityConfig(), ResumabilityConfig(is_resumable=False)])
def test_a_context_is_not_resumable_by_default(config: Any) -> None:
    assert not InvocationContext(resumability_config=config).is_resumable


def test_a_session_can_be_dumped_and_read_as_json() -> None:
    session = Session(events=[Event(author="a", content={"parts": [{"text": "hi"}]})], state={"k": [1]})
    again = Session.model_validate(json.loads(session.model_dump_json()))
    assert again.events[0].content.parts[0].text == "hi"
    assert again.state == {"k": [1]}


def test_the_states_of_agents_are_read_from_the_log() -> None:
    ctx = InvocationContext(is_resumable=True, invocation_id="i")
    ctx.session.events = [
        Event(invocation_id="i", author="a", actions=EventActions(agent_state={"current_sub_agent": "x"})),
        Event(invocation_id="i", author="b", actions=EventActions(end_of_agent=True)),
        Event(invocation_id="i", author="x", content="said"),
        Event(invocation_id="i", author="user", content="go"),
        Event(invocation_id="i", author="quiet"),
        Event(invocation_id="other", author="c", actions=EventActions(end_of_agent=True)),
    ]
    ctx.populate_invocation_agent_states()
    assert ctx.agent_states == {"a": {"current_sub_agent": "x"}, "x": {}}
    assert ctx.end_of_agents == {"a": False, "b": True, "x": False}


def test_a_context_that_is_not_resumable_does_not_read_the_log() -> None:
    ctx = InvocationContext(invocation_id="i")
    ctx.session.events = [Event(invocation_id="i", author="b", actions=EventActions(end_of_agent=True))]
    ctx.populate_invocation_agent_states()
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {})


async def test_an_invocation_can_be_resumed_from_its_log_alone() -> None:
    loop, ctx = LoopAgent("L", [K("A"), K("B", pause=1)], 1), InvocationContext(is_resumable=True)
    await said_in(loop, ctx)
    again = InvocationContext(is_resumable=True, invocation_id=ctx.invocation_id, session=ctx.session)
    again.populate_invocation_agent_states()
    assert await said_in(loop, again) == "B#2 END(L)"


def test_set_agent_state_accepts_the_arguments_of_the_design() -> None:
    ctx = InvocationContext(is_resumable=True)
    ctx.set_agent_state(agent_name="a", agent_state=LoopAgentState(current_sub_agent="x"))
    ctx.set_agent_state("b", None, True)
    assert ctx.agent_states == {"a": {"current_sub_agent": "x", "times_looped": 0}}
    assert ctx.end_of_agents == {"a": False, "b": True}
    ctx.set_agent_state("a")
    ctx.reset_sub_agent_states(agent_name="nobody")
    assert (ctx.agent_states, ctx.end_of_agents) == ({}, {"b": True})


def test_model_requests_are_counted_up_to_the_limit_of_the_run() -> None:
    ctx = InvocationContext(run_config=SimpleNamespace(max_llm_calls=2))
    ctx.increment_llm_call_count()
    ctx.increment_llm_call_count()
    with pytest.raises(LlmCallsLimitExceededError, match="`2` exceeded"):
        ctx.increment_llm_call_count()
    free = InvocationContext(run_config=SimpleNamespace(max_llm_calls=0))
    for _ in range(5):
        free.increment_llm_call_count()


def test_a_copy_of_a_context_shares_its_session_and_states() -> None:
    ctx = InvocationContext(branch="a")
    copied = ctx.model_copy(update={"branch": "a.b"})
    copied.set_agent_state("x", {})
    assert (ctx.branch, copied.branch) == ("a", "a.b")
    assert copied.session is ctx.session
    assert ctx.agent_states == {"x": {}}
    with pytest.raises(ValueError, match="no field 'brunch'"):
        ctx.model_copy(update={"brunch": "x"})


def test_is_aborted_is_true_after_an_abort() -> None:
    ctx = InvocationContext()
    assert not ctx.is_aborted
    ctx.abort()
    assert ctx.is_aborted


# -- agents ----------------------------------------------------------------------------------------------------------


class Counts(BaseAgentState):
    done: int = 0


class Counting(BaseAgent):
    """An agent that counts to three, and emits its state after each number."""

    async def _run_async_impl(self, ctx: InvocationContext) -> Any:
        state = self._load_agent_state(ctx, Counts) or Counts()
        for number in range(state.done + 1, 4):
            yield Event(author=self.name, content=str(number))
            ctx.set_agent_state(self.name, agent_state=Counts(done=number))
            yield self._create_agent_state_event(ctx)
        ctx.set_agent_state(self.name, end_of_agent=True)
        yield self._create_agent_state_event(ctx)


async def test_an_agent_can_save_and_load_its_state_with_the_methods_of_the_design() -> None:
    ctx = InvocationContext(is_resumable=True, branch="b")
    events = await events_in(Counting("C"), ctx, upto=4)
    assert events[-1].actions.agent_state == {"done": 2}
    assert (events[-1].branch, events[-1].invocation_id) == ("b", ctx.invocation_id)
    rest = await events_in(Counting("C"), resumed(ctx))
    assert [event.text for event in rest] == ["3", "", ""]
    assert rest[-1].actions.end_of_agent


def test_an_agent_that_has_not_started_has_no_state() -> None:
    ctx = InvocationContext()
    assert BaseAgent(name="a")._load_agent_state(ctx, LoopAgentState) is None
    assert BaseAgent(name="a")._create_agent_state_event(ctx).actions == EventActions()


def test_an_unknown_field_of_a_state_is_refused() -> None:
    with pytest.raises(ValueError, match="times_loped"):
        LoopAgentState(times_loped=1)
    with pytest.raises(ValueError, match="x"):
        BaseAgentState(x=1)


def test_aliases_of_the_design_are_available() -> None:
    assert Event.Actions is EventActions
    assert Aclosing(K("A").run_async(InvocationContext())) is not None


def tree() -> LoopAgent:
    return LoopAgent("top", [LoopAgent("one", [K("deep")]), K("two")], 3)


def test_every_agent_has_the_root_of_its_tree() -> None:
    top = tree()
    agents: list[Any] = [top, top.find_agent("one"), top.find_agent("two"), top.find_sub_agent("deep")]
    assert [agent.root_agent for agent in agents] == [top] * 4


async def test_a_clone_is_a_separate_tree() -> None:
    top = tree()
    copied = top.clone({"name": "other", "max_iterations": 1})
    assert (copied.name, copied.max_iterations, copied.parent_agent) == ("other", 1, None)
    assert (top.name, top.max_iterations) == ("top", 3)
    deep: Any = copied.find_agent("deep")
    assert deep is not top.find_agent("deep")
    assert deep.root_agent is copied
    one: Any = copied.find_agent("one")
    one.max_iterations = 1
    assert await said_in(copied) == "deep#1 two#1"


def test_a_callback_that_is_a_method_of_the_agent_is_bound_to_the_clone() -> None:
    class Own(K):
        def notice(self, callback_context: CallbackContext) -> None: ...

    agent: Any = Own("A")
    agent.before_agent_callback = [agent.notice]
    assert agent.clone().before_agent_callback[0].__self__ is not agent


@pytest.mark.parametrize(("update", "words"), [({"parent_agent": None}, "parent_agent"), ({"nme": "x"}, "'nme'")])
def test_a_clone_refuses_unknown_fields(update: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        K("A").clone(update)


def test_the_name_of_a_clone_must_be_an_identifier() -> None:
    with pytest.raises(ValueError, match="identifier"):
        K("A").clone({"name": "not one"})


async def test_run_live_calls_the_method_of_the_agent() -> None:
    class Live(K):
        async def _run_live_impl(self, ctx: InvocationContext) -> Any:
            yield Event(author=self.name, content="live", branch=ctx.branch)

    events = [event async for event in Live("A").run_live(InvocationContext(branch="b"))]
    assert [(event.text, event.branch) for event in events] == [("live", "b")]
    for agent in (K("A"), LoopAgent("L", [K("A")])):
        with pytest.raises(NotImplementedError):
            _ = [event async for event in agent.run_live(InvocationContext())]


# -- callbacks -------------------------------------------------------------------------------------------------------


async def called_with(callback: Any) -> None:
    await said_in(K("A", before_agent_callback=callback))


async def test_a_callback_is_called_with_its_keyword() -> None:
    seen: list[Any] = []

    def only_by_keyword(*, callback_context: CallbackContext) -> None:
        seen.append(callback_context)

    async def by_keyword(callback_context: CallbackContext) -> None:
        seen.append(callback_context)

    class Callable:
        def __call__(self, callback_context: CallbackContext) -> None:
            seen.append(callback_context)

    for callback in (only_by_keyword, by_keyword, Callable()):
        await called_with(callback)
    noted = mock.Mock(return_value=None)
    await called_with(noted)
    assert [type(context) for context in seen] == [CallbackContext] * 3
    assert list(noted.call_args.kwargs) == ["callback_context"]


async def test_a_callback_with_another_parameter_name_is_called_positionally() -> None:
    seen: list[Any] = []
    await called_with(lambda ctx: seen.append(ctx))
    await called_with(lambda ctx, more=1: seen.append(ctx))
    assert [type(context) for context in seen] == [CallbackContext] * 2


async def test_a_callback_context_has_the_fields_of_its_invocation() -> None:
    read: list[Any] = []

    def before(context: CallbackContext) -> None:
        read.append((context.agent_name, context.user_content, context.invocation_id, context.branch, context.user_id))
        read.append((context.session, context.get_invocation_context(), context.is_aborted, context.run_config))

    ctx = InvocationContext(user_content="go", branch="b", session=Session(user_id="me"))
    await said_in(K("A", before_agent_callback=before), ctx)
    assert read[0] == ("A", "go", ctx.invocation_id, "b", "me")
    assert read[1] == (ctx.session, ctx, False, None)


@pytest.mark.parametrize("which", ["before_agent_callback", "after_agent_callback"])
@pytest.mark.parametrize("design", [K, LoopAgent])
async def test_a_callback_can_change_the_state_of_the_session(design: Any, which: str) -> None:
    def callback(callback_context: CallbackContext) -> None:
        callback_context.state["k"] = "v"
        callback_context.state.update({"n": callback_context.state.get("n", 0) + 1})
        callback_context.state.setdefault("n", 5)

    inside = {"sub_agents": [K("X")], "max_iterations": 1} if design is LoopAgent else {}
    ctx = InvocationContext(session=Session(state={"n": 1, "other": 0}))
    events = await events_in(design("A", **{which: callback}, **inside), ctx)
    assert ctx.session.state == {"k": "v", "n": 2, "other": 0}
    assert [e.actions.state_delta for e in events if e.content is None] == [{"k": "v", "n": 2}]
    assert [e.text for e in events if e.content is not None] == ["X#1" if inside else "A#1"]  # the agent has run


async def test_a_change_inside_a_list_of_the_state_is_recorded() -> None:
    def callback(callback_context: CallbackContext) -> None:
        callback_context.state["list"].append(2)
        assert callback_context.state.has_delta()

    ctx = InvocationContext(session=Session(state={"list": [1]}))
    (event, _) = await events_in(K("A", before_agent_callback=callback), ctx)
    assert event.actions.state_delta == {"list": [1, 2]}


async def test_content_and_changes_of_a_callback_are_one_event() -> None:
    def callback(callback_context: CallbackContext) -> str:
        callback_context.state["k"] = "v"
        callback_context.actions.escalate = True
        return "cached"

    (event,) = await events_in(K("A", before_agent_callback=callback), InvocationContext())
    assert (event.text, event.actions.state_delta, event.actions.escalate) == ("cached", {"k": "v"}, True)


async def test_a_callback_that_only_reads_emits_no_event() -> None:
    def callback(callback_context: CallbackContext) -> None:
        assert callback_context.state["k"] == [1]
        assert "k" in callback_context.state
        assert list(callback_context.state) == ["k"]
        assert callback_context.state.to_dict() == {"k": [1]}

    ctx = InvocationContext(session=Session(state={"k": [1]}))
    assert len(await events_in(K("A", before_agent_callback=callback), ctx)) == 1


async def test_a_callback_can_end_the_invocation() -> None:
    def callback(callback_context: CallbackContext) -> None:
        callback_context.end_invocation = True

    assert await said_in(LoopAgent("L", [K("A", before_agent_callback=callback), K("B")], 2)) == ""


def test_a_readonly_context_refuses_changes() -> None:
    ctx = InvocationContext(session=Session(state={"k": 1}))
    readonly = ReadonlyContext(ctx)
    assert readonly.state["k"] == 1
    assert readonly.agent_name == "unknown"
    with pytest.raises(TypeError):
        readonly.state["k"] = 2


# -- misspelt names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LoopAgent("L", [K("A")], max_iteration=3), "takes no max_iteration=; max_iterations= is probably"),
        (lambda: LoopAgent("L", subagents=[K("A")]), "takes no subagents=; sub_agents= is probably"),
        (lambda: BaseAgent("A", before_agent_calback=print), "before_agent_callback= is probably"),
        (lambda: BaseAgent("A", desciption="x"), "description= is probably"),
        (lambda: BaseAgent("A", nothing_like_it=1), "takes no nothing_like_it="),
        (lambda: EventActions(escalte=True), "escalte"),
        (lambda: EventActions(exit=True), "exit"),
        (lambda: Event(autor="A"), "'author' is probably meant"),
        (lambda: Event(author="A", action=EventActions()), "'actions' is probably meant"),
        (lambda: Session(event=[]), "event"),
    ],
)
def test_a_misspelt_keyword_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("name", ["is_resumeable", "agent_state", "user_contents"])
def test_a_misspelt_keyword_of_a_context_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        InvocationContext(**{name: True})


def test_attributes_declared_by_a_subclass_are_keywords() -> None:
    class Writer(BaseAgent):
        style: str
        pages = 1
        model_config = ConfigDict(arbitrary_types_allowed=True)

    class Free(BaseAgent):
        model_config = ConfigDict(extra="allow")

    writer: Any = Writer("w", style="dry", pages=3)
    assert (writer.style, writer.pages) == ("dry", 3)
    assert Free("f", whatever=1).whatever == 1  # type: ignore[attr-defined]  # of the class's own choice


# -- further fields of contexts ---------------------------------------------------------------------------------------


def test_a_context_of_a_call_can_request_a_confirmation() -> None:
    context = CallbackContext(InvocationContext(), function_call_id="c1")
    context.request_confirmation(hint="Sure?", payload={"n": 1})
    asked = context.actions.requested_tool_confirmations["c1"]
    assert (asked.hint, asked.payload, asked.confirmed) == ("Sure?", {"n": 1}, False)
    with pytest.raises(ValueError, match="request_confirmation requires function_call_id"):
        CallbackContext(InvocationContext()).request_confirmation()


def test_custom_metadata_of_an_invocation_is_shared_between_contexts() -> None:
    ctx = InvocationContext(run_config=SimpleNamespace(custom_metadata={"a": 1}))
    CallbackContext(ctx).custom_metadata["b"] = 2
    assert dict(ReadonlyContext(ctx).custom_metadata) == {"a": 1, "b": 2}


def test_a_context_accepts_the_services_of_the_design() -> None:
    fields: Any = dict.fromkeys(("memory_service", "credential_service", "plugin_manager", "live_request_queue"), "x")
    ctx = InvocationContext(**fields, node_path="a/b", credential_by_key={"k": "v"})
    assert {name: getattr(ctx, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, "abcdef"),
        ({"current_invocation": True}, "abcd"),
        ({"current_branch": True}, "acdf"),
        ({"current_invocation": True, "current_branch": True}, "acd"),
    ],
)
def test_events_are_selected_by_invocation_and_branch(chosen: Any, expected: str) -> None:
    def said(text: str, branch: str | None, author: str = "x", invocation: str = "i") -> Event:
        return Event(author=author, content=text, branch=branch, invocation_id=invocation)

    events = [
        said("a", "one"),
        said("b", "two"),
        said("c", None, "user"),
        said("d", "one.deeper", "user"),
        said("e", "two", "user", "j"),
        said("f", "one", "x", "j"),
    ]
    ctx = InvocationContext(invocation_id="i", branch="one", session=Session(events=events))
    assert "".join(event.text for event in ctx._get_events(**chosen)) == expected


def test_a_session_accepts_events_and_state_positionally() -> None:
    session = Session([Event(author="user", content="go")], {"draft": 1})
    assert [event.author for event in session.events] == ["user"]
    assert session.state == {"draft": 1}
