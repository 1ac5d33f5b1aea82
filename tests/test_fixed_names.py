"""Every public name, signature, field and value that users rely on, with a test of its basic behaviour."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import (
    Agent,
    AlreadyDecided,
    ConversationEngine,
    ExecutionLoop,
    LimitReached,
    Loop,
    LoopAgent,
    RunCancelled,
    RunFailed,
    SessionLoop,
    Snapshot,
    Store,
    restore,
    tool,
)
from agentnb.testing import ScriptedLLM, delay
from tests.streaming import Model, asks, says
from tests.worlds import collect, output_of


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(approve=True)
def send(to: str) -> str:
    """Send it."""
    return f"sent to {to}"


@tool(idempotent=True)
async def look(at: str) -> str:
    """Look at something."""
    return at.upper()


def an_agent(*turns: Any, tools: Any = (add, send, look), **options: Any) -> Agent:
    return Agent(Model(*turns), list(tools), **options)


SEND = asks(("c1", "send", {"to": "Al"}))
ADD = asks(("c1", "add", {"a": 1, "b": 2}))


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for is read off a run, as its users read it
            await asyncio.sleep(0.001)


def parameters(function: Any) -> dict[str, Any]:
    """The parameters by name, with their defaults."""
    found = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in found if one.name != "self"}


def positional(function: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.kind in kinds and one.name != "self"]


# --- top level --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("Agent", "SessionLoop", "ExecutionLoop", "LoopAgent", "ConversationEngine", "Loop", "Run", "Snapshot"),
        *("Store", "tool", "restore", "load_ipython_extension"),
    ],
)
def test_the_top_level_exports_its_public_names(name: str) -> None:
    assert name in dir(agentnb)
    assert callable(getattr(agentnb, name))


def test_errors_are_exported_at_the_top_level_and_in_their_module() -> None:
    for name in ("RunFailed", "RunCancelled", "LimitReached", "AlreadyDecided"):
        assert getattr(agentnb, name) is getattr(agentnb.errors, name)
        assert issubclass(getattr(agentnb, name), agentnb.errors.AgentnbError)


@pytest.mark.parametrize("design", [Agent, SessionLoop, ExecutionLoop, LoopAgent, ConversationEngine])
def test_every_design_is_a_loop_with_the_same_parameters_of_start(design: Any) -> None:
    assert issubclass(design, Loop)
    wanted = {
        "name": None,
        "store": None,
        "approve": None,
        "breakpoints": (),
        "limits": None,
        "on_limit": None,
        "options": None,
    }
    wanted |= {"tags": (), "data": None}
    found = parameters(design.start)
    assert {name: found[name] for name in wanted} == wanted
    assert positional(design.start) == ["input"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda **k: Agent(Model(), **k), "agent"),
        (lambda **k: SessionLoop(Model(), [], **k), "session_loop"),
        (lambda **k: ExecutionLoop(Model(), [], **k), "execution_loop"),
        (lambda **k: LoopAgent(sub_agents=[], **k), "loop_agent"),
        (lambda **k: ConversationEngine(**k), "conversation_engine"),
    ],
)
def test_every_loop_accepts_a_name_and_has_a_default(make: Any, name: str) -> None:
    assert make().name == name
    assert make(name="other").name == "other"


def test_an_own_loop_has_the_name_of_its_class() -> None:
    class MyOwnLoop(Loop):
        def advance(self, state: Any) -> Any:
            raise NotImplementedError

    assert MyOwnLoop().name == "my_own_loop"
    assert MyOwnLoop(name="x").name == "x"


# --- a run ------------------------------------------------------------------------------------------------------------


async def test_start_performs_nothing_immediately() -> None:
    model = Model()
    run = Agent(model).start("hi")
    await asyncio.sleep(0)
    assert model.contexts == []
    assert run.stop_reason is None


async def test_async_for_returns_past_and_future_events_to_any_number_of_consumers() -> None:
    run = an_agent(ADD, "three").start("hi")
    first, second = await asyncio.gather(collect(run), collect(run))
    late = await collect(run)
    assert [one.seq for one in late] == [one.seq for one in run.events]
    for seen in (first, second):
        assert [one.seq for one in seen if getattr(one, "seq", None) is not None] == [one.seq for one in late]


async def test_await_returns_the_output() -> None:
    run = an_agent(ADD, "three").start("hi")
    assert await run == "three"
    assert run.output == "three"
    assert run.result(timeout=30) == "three"
    assert run.stop_reason == "completed"


def test_result_advances_the_run_without_an_event_loop() -> None:
    assert an_agent(ADD, "three").start("hi").result(timeout=10) == "three"


async def test_result_raises_timeout_error_after_its_timeout() -> None:
    run = an_agent(SEND, "sent").start("hi")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(run.result, 0.05)
    run.cancel("done")


def an_echo() -> Loop:
    @Loop.from_generator
    def echo(text: str) -> Any:
        yield from ()
        return text

    return echo


@pytest.mark.parametrize(
    "make",
    [lambda: an_agent("three"), lambda: LoopAgent(name="L", sub_agents=[an_agent("three")], max_iterations=1), an_echo],
    ids=["agent", "loop_agent", "generator"],
)
async def test_run_is_equivalent_to_awaiting_start(make: Any) -> None:
    assert await make().run("three") == "three"
    with pytest.raises(LimitReached):
        await an_agent(ADD, ADD).run("hi", limits={"turns": 1})


async def test_run_failed_run_cancelled_and_limit_reached_contain_the_reason() -> None:
    with pytest.raises(RunFailed, match="down"):
        await Agent(Model([RuntimeError("down")])).start("hi")
    run = an_agent(SEND).start("hi")
    await run.step("turn")
    run.cancel("enough of it")
    with pytest.raises(RunCancelled, match="enough of it"):
        await run
    with pytest.raises(LimitReached):
        await an_agent(ADD, ADD, ADD, max_iterations=2).start("hi")


@pytest.mark.parametrize("unit", ["event", "call", "turn", "phase"])
async def test_step_by_every_unit_returns_its_events_and_then_an_empty_list(unit: Any) -> None:
    run = an_agent(ADD, "three").start("hi")
    seen: list[Any] = []
    async with asyncio.timeout(60):
        while got := await run.step(unit):
            assert isinstance(got, list)
            assert unit != "event" or len(got) == 1
            seen += got
    assert [one.seq for one in seen] == [one.seq for one in run.events]
    assert await run.step(unit) == []


async def test_the_default_unit_of_step_is_an_event() -> None:
    run = an_agent("three").start("hi")
    assert len(await run.step()) == 1


async def test_a_step_ends_when_only_a_decision_can_advance_the_run() -> None:
    run = an_agent(SEND, "sent").start("hi")
    first = await run.step("turn")
    assert first[-1].type == "approval_request"
    assert await run.step("turn") == []
    assert [item.id for item in run.pending] == ["c1"]
    run.approve("c1")
    assert (await run.step("turn"))[-1].type == "call_end"


async def test_an_unknown_unit_is_refused() -> None:
    run = an_agent("three").start("hi")
    with pytest.raises(Exception, match="week"):
        await run.step("week")  # type: ignore[arg-type]


async def test_the_first_step_by_turn_ends_after_the_model_and_its_tools() -> None:
    run = an_agent(ADD, "three").start("hi")
    await run.step("turn")
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool"]


async def test_play_pause_resume_and_cancel_control_the_run() -> None:
    run = an_agent(SEND, "sent").start("hi")
    assert run.resume() is False
    run.play()
    await until(lambda: run.pending)
    assert run.pause() is True
    assert run.pause() is False
    assert run.resume() is True
    assert run.resume() is False
    run.cancel("enough")
    await until(lambda: run.stop_reason)
    assert run.stop_reason == "cancelled"
    assert run.pause() is False
    assert run.resume() is False


async def test_steering_and_follow_ups_are_sent_to_the_model() -> None:
    model = Model(ADD, "three", "four")
    run = SessionLoop(model, [add]).start("hi")
    await run.step("event")
    run.follow_up("later")
    run.steer("now")
    await run
    assert "user:now" in [said for number in range(2) for said in model.heard(number)]
    assert model.heard(2)[-1] == "user:later"


async def test_a_pending_call_has_its_name_arguments_schema_and_reason() -> None:
    run = an_agent(SEND, "sent").start("hi")
    run.play()
    await until(lambda: run.pending)
    (item,) = run.pending
    assert item.id == "c1"
    assert item.name == "send"
    assert item.arguments == {"to": "Al"}
    assert item.schema["properties"]["to"]["type"] == "string"
    assert isinstance(item.reason, str)
    assert item.reason
    assert item.deadline is None
    run.cancel("done")


@pytest.mark.parametrize(
    ("decide", "result", "is_error"),
    [
        (lambda run: run.approve("c1"), "sent to Al", False),
        (lambda run: run.reject("c1", "not him"), "not him", True),
        (lambda run: run.edit("c1", {"to": "Bo"}), "sent to Bo", False),
        (lambda run: run.replace("c1", "add", {"a": 1, "b": 1}), "2", False),
        (lambda run: run.answer("c1", "by hand"), "by hand", False),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_each_decision_takes_effect_and_cannot_be_changed(
    decide: Any, result: str, is_error: bool, threaded: bool
) -> None:
    run = an_agent(SEND, "done").start("hi")
    run.play()
    await until(lambda: run.pending)
    if threaded:
        thread = threading.Thread(target=decide, args=(run,))
        thread.start()
        await asyncio.to_thread(thread.join)
    else:
        decide(run)
    with pytest.raises(agentnb.AgentnbError):  # decided already, or no longer pending if the run was quick
        run.approve("c1")
    with pytest.raises(agentnb.AgentnbError):
        run.reject("c1", "too late")
    assert await run == "done"
    answer = next(message for message in run.messages if message["role"] == "tool")
    assert result in str(answer["content"])
    assert bool(answer["is_error"]) is is_error
    assert answer["tool_call_id"] == "c1"


async def test_the_error_for_a_second_decision_names_the_first() -> None:
    run = an_agent(SEND, "done").start("hi")
    while not run.pending:
        await run.step()
    run.approve("c1")
    with pytest.raises(AlreadyDecided, match="approve"):
        run.reject("c1", "too late")
    assert await run == "done"


async def test_a_decision_about_a_missing_call_is_refused() -> None:
    run = an_agent("done").start("hi")
    with pytest.raises(agentnb.AgentnbError):
        run.approve("nothing")


async def test_a_run_has_its_state_as_attributes() -> None:
    turn = [*ADD, {"type": "usage", "input_tokens": 3, "output_tokens": 2}]
    run = an_agent(turn, "three").start("hi")
    assert run.output is None
    await run
    assert run.state.over
    assert isinstance(run.phase, str)
    assert run.messages[-1]["content"] == run.messages[-1].content == "three"
    assert run.usage
    assert run.events[0].seq is not None


async def test_events_have_common_fields_and_can_be_dumped_as_json() -> None:
    run = an_agent(ADD, "three").start("hi")
    await run
    for event in run.events:
        plain = json.loads(event.model_dump_json())
        assert {"seq", "time", "run_id", "path", "type"} <= set(plain)
        assert event.run_id == run.id
    assert [event.terminal for event in run.events] == [False] * (len(run.events) - 1) + [True]
    end = run.events[-1]
    assert (end.type, end.reason) == ("run_end", "completed")


async def test_deltas_are_not_events() -> None:
    run = an_agent([*says("he"), *says("llo")]).start("hi")
    live = await collect(run)
    deltas = [one for one in live if one.type.endswith("_delta")]
    assert [one.content for one in deltas] == ["he", "llo"]
    assert all(getattr(one, "seq", None) is None for one in deltas)
    assert not [one for one in run.events if one.type.endswith("_delta")]
    assert not [one for one in await collect(run) if one.type.endswith("_delta")]


async def test_paths_contain_the_names_of_nested_loops() -> None:
    inner = Agent(Model("yes"), name="critic")
    middle = LoopAgent(name="review", sub_agents=[inner], max_iterations=1)
    run = LoopAgent(name="outer", sub_agents=[middle], max_iterations=1).start("hi")
    await run
    assert {"", "review", "review/critic"} <= {event.path for event in run.events}


async def test_a_snapshot_can_be_saved_loaded_and_restored(tmp_path: Path) -> None:
    run = an_agent(SEND, "sent").start("hi")
    run.play()
    await until(lambda: run.pending)
    snapshot = run.snapshot("before")
    assert isinstance(snapshot, Snapshot)
    snapshot.save(tmp_path / "one.json")
    run.cancel("gone")
    text = (tmp_path / "one.json").read_text()
    assert json.loads(text)
    loaded = Snapshot.load(tmp_path / "one.json")
    assert Snapshot.load(str(tmp_path / "one.json"))
    again = restore(loaded, an_agent("sent"))
    assert [item.id for item in again.pending] == ["c1"]
    again.approve("c1")
    assert await again == "sent"
    position = text.index("send to") if "send to" in text else text.index('"Al"') + 1
    (tmp_path / "one.json").write_text(text[:position] + "X" + text[position + 1 :])
    with pytest.raises(agentnb.AgentnbError):
        Snapshot.load(tmp_path / "one.json")


async def test_a_store_keeps_a_run_under_its_name(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = an_agent(SEND, "sent").start("hi", store=store, name="x")
    run.play()
    await until(lambda: run.pending)
    other = Store(tmp_path / "runs.db")
    assert any("x" in str(kept) for kept in other.runs())
    snapshot = other.load("x")
    assert isinstance(snapshot, Snapshot)
    assert other.load(run.id).run_id == run.id
    run.cancel("gone")
    again = restore(snapshot, an_agent("sent"), store=other)
    assert again.pending[0].name == "send"


# --- start's options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "approve",
    [
        True,
        lambda call: True,
        [{"tool": "send", "decision": "approve"}],
        [{"tool": "send", "arguments": {"to": "Al"}, "decision": "approve"}],
    ],
)
async def test_a_policy_can_approve_a_call(approve: Any) -> None:
    run = an_agent(SEND, "sent").start("hi", approve=approve)
    assert await asyncio.wait_for(output_of(run), 60) == "sent"
    assert "sent to Al" in str(run.messages[2]["content"])


@pytest.mark.parametrize("approve", [False, lambda call: False, [{"tool": "send", "decision": "reject"}]])
async def test_a_policy_can_reject_a_call(approve: Any) -> None:
    run = an_agent(SEND, "not sent").start("hi", approve=approve)
    assert await asyncio.wait_for(output_of(run), 60) == "not sent"
    assert run.messages[2]["is_error"]


@pytest.mark.parametrize("breakpoint", ["call_start", "add", "acting", lambda event, state: event.type == "call_start"])
async def test_breakpoints_can_be_words_and_functions(breakpoint: Any) -> None:
    agent = an_agent(ADD, "three")
    if breakpoint == "acting":
        breakpoint = next(phase for phase in agent.phases if phase not in ("idle", "done"))
    run = agent.start("hi", breakpoints=[breakpoint])
    run.play()
    await until(lambda: run.resume())
    assert await asyncio.wait_for(_through(run), 60) == "three"


async def _through(run: Any) -> Any:
    while run.stop_reason is None:
        run.resume()
        await asyncio.sleep(0.001)
    return run.output


@pytest.mark.parametrize(
    "limits", [{"turns": 1}, {"calls": 1}, {"tokens": 4}, {"seconds": 0.05}], ids=lambda given: next(iter(given))
)
async def test_each_limit_raises_limit_reached(limits: dict[str, float]) -> None:
    used = {"type": "usage", "input_tokens": 3, "output_tokens": 2}
    pause = [delay(0.1)] if "seconds" in limits else []
    turns = [[*pause, *asks((f"c{n}", "add", {"a": 1, "b": n})), used] for n in range(4)]
    run = Agent(ScriptedLLM(turns), [add]).start("hi", limits=limits)
    with pytest.raises(LimitReached):
        await run
    assert run.stop_reason == "limit"


# --- stop reasons -----------------------------------------------------------------------------------------------------


async def test_each_stop_reason_is_set_in_its_case() -> None:
    assert await reason(an_agent("x").start("hi")) == "completed"
    assert await reason(LoopAgent(name="L", sub_agents=[], max_iterations=2).start(None)) == "empty"
    one = LoopAgent(name="L", sub_agents=[an_agent("x")], max_iterations=1)
    assert await reason(one.start("hi")) == "max_iterations"
    assert await reason(an_agent(ADD, max_iterations=1).start("hi")) == "max_iterations"
    assert await reason(SessionLoop(Model(ADD), [add], max_turns=1).start("hi")) == "max_turns"
    call = '{"calls": [{"_tool": "add", "a": 1, "b": 2}], "output": null}'
    assert await reason(ExecutionLoop(Model(call, call), [add], max_requests=1).start(None)) == "max_requests"
    assert await reason(ExecutionLoop(Model('{"calls": [], "output": null}'), []).start(None)) == "stalled"
    assert await reason(an_agent(ADD, ADD).start("hi", limits={"turns": 1})) == "limit"
    broken = ConversationEngine(llm=Planner(ValueError("no")))
    assert await reason(broken.start("hi")) == "error"


class Planner:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def decompose_goal(self, user_input: str) -> Any:
        raise self.error


async def reason(run: Any) -> Any:
    with contextlib.suppress(agentnb.AgentnbError):
        await asyncio.wait_for(output_of(run), 60)
    return run.stop_reason


async def test_a_failed_model_request_leaves_the_run_resumable() -> None:
    run = Agent(Model([RuntimeError("down")], [RuntimeError("again")], "up")).start("hi")
    with pytest.raises(RunFailed):
        await run
    assert run.stop_reason is None
    with pytest.raises(RunFailed):
        await run
    assert run.resume() is True
    await until(lambda: sum(event.type == "model_failed" or "error" in event.type for event in run.events) >= 1)
    async with asyncio.timeout(60):
        while run.stop_reason is None:
            await run.step()
    assert run.output == "up"


# --- the designs ------------------------------------------------------------------------------------------------------


def test_loop_agent_has_its_published_names() -> None:
    from agentnb.loops import loop_agent as design

    assert positional(design.LoopAgent)[:3] == ["name", "sub_agents", "max_iterations"]
    assert parameters(design.LoopAgent)["max_iterations"] is None
    ctx = design.InvocationContext(is_resumable=False, agent_states={}, end_of_agents={})
    assert (ctx.is_resumable, ctx.agent_states, ctx.end_of_agents) == (False, {}, {})
    assert design.InvocationContext().is_resumable is False
    actions = design.EventActions(escalate=True, agent_state={"a": 1}, end_of_agent=True, scope="root")
    event = design.Event(author="A", content="c", actions=actions, long_running_tool_ids={"f"})
    assert event.actions.escalate is True
    assert event.actions.agent_state == {"a": 1}
    assert event.actions.end_of_agent is True
    assert event.actions.scope == "root"
    assert event.long_running_tool_ids == {"f"}
    assert (design.Event().actions.escalate or False) is False
    state = design.LoopAgentState(current_sub_agent="A", times_looped=2)
    assert state.model_dump(mode="json") == {"current_sub_agent": "A", "times_looped": 2}
    assert callable(ctx.abort)
    assert inspect.iscoroutinefunction(design.BaseAgent.run_async) is False


EXECUTION_EVENTS = {
    "request_started": {"n"},
    "call_received": {"id"},
    "call_unblocked": {"id"},
    "call_rejected": {"id"},
    "call_started": {"id", "args"},
    "call_completed": {"id"},
    "call_failed": {"id", "phase"},
    "errors_appended": {"count"},
    "request_completed": {"n", "output"},
    "loop_completed": {"reason"},
}


async def test_execution_loop_has_its_published_names() -> None:
    from agentnb.loops import execution_loop as design

    found = parameters(design.ExecutionLoop)
    assert list(found)[:2] == ["llm", "tools"]
    for name, default in {"output": None, "confirm": None, "max_requests": None, "context": ()}.items():
        assert found[name] == default
    calls = [
        {"_tool": "add", "a": 1, "b": 2, "_outputPath": "†state.n"},
        {"_tool": "send", "to": "Al"},
        {"_tool": "boom"},
        {"_tool": "look", "at": "†state.nothing"},
    ]

    def boom() -> None:
        raise RuntimeError("api down")

    def confirm(call: Any) -> Any:
        return design.Reject("no") if call.tool == "send" else True

    turns = [json.dumps({"calls": calls, "output": None}), '{"calls": [], "output": {"x": 1}}']
    loop = design.ExecutionLoop(
        Model(*turns),
        [add, send, look, tool(boom)],
        confirm=confirm,
        context=[{"type": "data", "kind": "input", "data": {"u": 1}}],
    )
    events = await collect(loop.run())
    assert {event.type for event in events} == set(EXECUTION_EVENTS)
    for event in events:
        assert set(event.model_dump(mode="json")) - {"type"} == EXECUTION_EVENTS[event.type]
    assert {event.phase for event in events if event.type == "call_failed"} == {"structural", "runtime"}
    assert events[-1].reason == "output"
    assert loop.state == {"n": 3}
    assert loop.output == {"x": 1}
    assert any(message["type"] == "data" and message["kind"] == "input" for message in loop.context)
    assert design.Call is not None
    assert design.Solution is not None
    assert design.ErrorMessage is not None


SESSION_EVENTS: dict[str, set[str]] = {
    "agent_start": set(),
    "agent_end": {"messages"},
    "turn_start": set(),
    "turn_end": {"message", "tool_results"},
    "message_start": {"message"},
    "message_update": {"message"},
    "message_end": {"message"},
    "tool_execution_start": {"tool_call_id", "tool_name", "args"},
    "tool_execution_update": {"tool_call_id", "tool_name"},
    "tool_execution_end": {"tool_call_id", "tool_name", "result", "is_error"},
}


async def test_session_loop_has_its_published_names() -> None:
    from agentnb.loops import session_loop as design

    wanted = {
        "queue": None,
        "steering_mode": "after_batch",
        "drain": "one-at-a-time",
        "tool_execution": "parallel",
        "before_tool_call": None,
        "after_tool_call": None,
        "transform_context": None,
        "convert_to_llm": None,
        "should_stop_after_turn": None,
        "max_turns": None,
    }
    found = parameters(design.SessionLoop)
    assert {name: found[name] for name in wanted} == wanted
    assert positional(design.SessionLoop)[:2] == ["llm", "tools"]
    queue = design.MessageQueue()
    queue.add_steering("s")
    queue.add_followup("f")
    assert queue.dequeue_steering()
    assert queue.dequeue_followup()

    @tool
    def slow(progress: Any) -> str:
        """Say how far it is."""
        progress("half")
        return "whole"

    loop = design.SessionLoop(Model(asks(("c1", "slow", {})), "done", "more"), [slow], queue=design.MessageQueue())
    stream = loop.run("hi")
    assert isinstance(stream, design.EventStream)
    events = await collect(stream)
    assert {event.type for event in events} == set(SESSION_EVENTS)
    for event in events:
        for field in SESSION_EVENTS[event.type]:
            assert hasattr(event, field), (event.type, field)
    assert len(loop.messages) == 4
    loop.steer("and now")
    events = await collect(loop.continue_())
    assert events[-1].type == "agent_end"
    loop.follow_up("later")
    loop.abort()


@pytest.mark.parametrize("mode", ["after_batch", "skip_pending", "discard"])
@pytest.mark.parametrize("drain", ["one-at-a-time", "all"])
@pytest.mark.parametrize("tool_execution", ["parallel", "sequential"])
async def test_session_loop_accepts_its_published_modes(mode: Any, drain: Any, tool_execution: Any) -> None:
    loop = SessionLoop(Model("x"), [add], steering_mode=mode, drain=drain, tool_execution=tool_execution)
    assert (await collect(loop.run("hi")))[-1].type == "agent_end"


@pytest.mark.parametrize("option", ["steering_mode", "drain", "tool_execution"])
def test_session_loop_refuses_unknown_modes(option: str) -> None:
    options: Any = {option: "otherwise"}
    with pytest.raises(agentnb.AgentnbError):
        SessionLoop(Model("x"), [], **options)


async def test_conversation_engine_has_its_published_names() -> None:
    from agentnb.loops import conversation_engine as design

    found = parameters(design.ConversationEngine)
    wanted = {"coordinator": None, "llm": None, "execute": None, "on_task_error": "fail"}
    assert {name: found[name] for name in wanted} == wanted
    states = [
        "idle",
        "receiving",
        "context_fetching",
        "decomposing",
        "scheduling",
        "executing",
        "paused",
        "completed",
        "error",
    ]
    assert [state.value for state in design.EngineState] == states
    for state in states:
        assert design.EngineState[state.upper()] == state
    kinds = [
        "STATE_CHANGED",
        "CONTEXT_RECEIVED",
        "TASK_DECOMPOSED",
        "TASK_SCHEDULED",
        "TASK_STARTED",
        "TASK_COMPLETED",
        "ENGINE_PAUSED",
        "ENGINE_RESUMED",
        "ENGINE_COMPLETED",
        "ENGINE_ERROR",
        "TASK_FAILED",
    ]
    for kind in kinds:
        assert design.EngineEventType[kind] == kind.lower()
    assert set(design.VALID_STATE_TRANSITIONS) == set(design.EngineState)
    engine = design.ConversationEngine()
    assert (engine.state, engine.total_tasks, engine.completed_tasks, engine.current_progress) == ("idle", 0, 0, 0.0)
    events = await collect(engine.run("do it"))
    for event in events:
        assert isinstance(event, design.EngineEvent)
        assert isinstance(event.event_type, design.EngineEventType)
        assert isinstance(event.data, dict)
        assert event.timestamp is not None
    assert (engine.state, engine.total_tasks, engine.completed_tasks, engine.current_progress) == (
        "completed",
        1,
        1,
        1.0,
    )
    snapshot = engine.create_snapshot()
    other = design.ConversationEngine()
    assert other.restore_from_snapshot(json.loads(json.dumps(snapshot))) is True
    assert other.state == "completed"
    assert engine.pause() is False
    assert engine.resume() is False
    engine.reset()
    assert engine.state == "idle"
    task = design.SubTask(id="a", description="A")
    assert (task.id, task.description) == ("a", "A")
    assert hasattr(task, "status")
    assert hasattr(task, "priority")
    with pytest.raises(Exception, match="completed"):
        engine.transition_to(design.EngineState.COMPLETED)


AGENT_EVENTS = (
    "ITERATION_START MAX_ITERATIONS_REACHED PHASE_START PHASE_END RETRIEVAL_START RETRIEVAL_PROGRESS "
    "RETRIEVAL_COMPLETE LLM_START LLM_DELTA LLM_TOOL_CALLS LLM_COMPLETE TOOL_CALLS_START TOOL_EXECUTION_START "
    "TOOL_PROGRESS TOOL_RESULT TOOL_ERROR AGENT_FINISH ERROR ITERATION_END TOOL_CALLS_COMPLETE"
)


async def test_agent_has_its_published_names() -> None:
    from agentnb.loops import agent as design

    found = parameters(design.Agent)
    assert list(found)[:2] == ["llm", "tools"]
    wanted = {"tools": (), "system_prompt": None, "retriever": None, "max_iterations": 10}
    assert {name: found[name] for name in wanted} == wanted
    assert parameters(design.Agent.execute)["cancel_token"] is None
    for kind in AGENT_EVENTS.split():
        assert design.AgentEventType[kind]
    agent = design.Agent(Model(ADD, "three"), [add], tool_execution="sequential")
    collector = design.EventCollector()
    async for event in agent.execute("hi"):
        assert isinstance(event, design.AgentEvent)
        assert event.run_id
        assert event.turn_id
        collector.add(event)
    assert collector.get_final_response() == "three"
    results = collector.get_tool_results()
    assert results[0].tool_call_id == "c1"
    assert results[0].tool_name == "add"
    assert not results[0].is_error
    assert await design.Agent(Model("text"), tool_execution="parallel").run("hi") == "text"
    call = design.ToolCall(id="", name="n", arguments={})
    assert call.id.startswith("call_")
    assert design.ToolResult(tool_call_id="c", tool_name="n", content="x").is_error is False
    state = design.TurnState.initial(max_iterations=3)
    assert state.next_turn().max_iterations == 3


async def test_the_events_of_an_agent_end_with_exactly_one_terminal_event() -> None:
    for agent in (an_agent(ADD, "x"), an_agent(ADD, ADD, max_iterations=1), Agent(Model([RuntimeError("down")]))):
        events = await collect(agent.execute("hi"))
        assert [event.is_terminal() for event in events] == [False] * (len(events) - 1) + [True]


# --- models and tools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["OpenAI", "Anthropic"])
def test_model_clients_have_their_published_names(kind: str, monkeypatch: Any) -> None:
    import agentnb.llms

    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    model = getattr(agentnb.llms, kind)("some-model")
    assert "sk-very-secret" not in repr(model)
    assert parameters(getattr(agentnb.llms, kind))["base_url"] is None
    assert next(iter(parameters(getattr(agentnb.llms, kind)))) == "model"
    assert callable(model.stream)


CHUNKS = [
    {"type": "text_delta", "content": "a"},
    {"type": "reasoning_delta", "content": "r"},
    {"type": "tool_call_delta", "index": 0, "id": "c1", "name": "add", "arguments": '{"a": 1,'},
    {"type": "tool_call_delta", "index": 0, "arguments": ' "b": 2}'},
    {"type": "tool_call", "id": "c2", "name": "add", "arguments": {"a": 2, "b": 2}},
    {"type": "tool_calls", "tool_calls": [{"id": "c3", "name": "add", "arguments": {"a": 3, "b": 2}}]},
    {"type": "usage", "input_tokens": 1, "output_tokens": 1},
    {"type": "stop", "reason": "tool_calls"},
]


async def test_every_kind_of_chunk_is_read() -> None:
    llm = ScriptedLLM([CHUNKS, [{"type": "text_delta", "content": "done"}, {"type": "stop", "reason": "stop"}]])
    run = Agent(llm, [add]).start("hi")
    assert await run == "done"
    llm.assert_complete()
    assert sorted(message["content"] for message in run.messages if message["role"] == "tool") == ["3", "4", "5"]
    assert {call["id"] for call in run.messages[1]["tool_calls"]} == {"c1", "c2", "c3"}
    assert set(run.messages[1]["tool_calls"][0]) >= {"id", "name", "arguments"}


async def test_a_scripted_model_reports_unused_turns() -> None:
    llm = ScriptedLLM([[{"type": "text_delta", "content": "a"}], [{"type": "text_delta", "content": "b"}]])
    await Agent(llm).start("hi")
    with pytest.raises(AssertionError):
        llm.assert_complete()


async def test_the_schema_of_a_tool_comes_from_its_signature_and_docstring() -> None:
    assert add.name == "add"
    assert add.description == "Add two numbers."
    schema = add.parameters
    assert schema["properties"]["a"]["type"] == "integer"
    assert set(schema["required"]) == {"a", "b"}


async def test_the_timeout_of_a_tool_is_an_error_result() -> None:
    @tool(timeout=0.01)
    async def never() -> str:
        """Never ends."""
        await asyncio.Event().wait()
        return ""

    run = Agent(Model(asks(("c1", "never", {})), "gave up"), [never]).start("hi")
    assert await run == "gave up"
    assert run.messages[2]["is_error"]


async def test_a_sync_tool_runs_in_a_thread() -> None:
    here = threading.get_ident()

    @tool
    def where() -> bool:
        """Whether it runs elsewhere."""
        return threading.get_ident() != here

    run = Agent(Model(asks(("c1", "where", {})), "x"), [where]).start("hi")
    await run
    assert run.messages[2]["content"] in ("true", "True")


async def test_the_needs_of_a_tool_are_shown_in_the_reason_of_a_pending_call() -> None:
    @tool(needs="network", approve=True)
    def fetch(url: str) -> str:
        """Fetch it."""
        return url

    run = Agent(Model(asks(("c1", "fetch", {"url": "u"})), "done"), [fetch]).start("hi")
    await run.step("turn")
    assert "network" in run.pending[0].reason
    run.cancel("done")


async def test_after_a_crash_an_idempotent_tool_runs_again_and_any_other_is_pending() -> None:
    runs: list[str] = []
    entered = asyncio.Event()

    def build(idempotent: bool) -> Agent:
        @tool(idempotent=idempotent)
        async def slow() -> str:
            """Waits the first time."""
            runs.append("slow")
            entered.set()
            if len(runs) == 1:
                await asyncio.Event().wait()
            return "whole"

        return Agent(Model("done") if runs else Model(asks(("c1", "slow", {})), "done"), [slow])

    for idempotent in (True, False):
        runs.clear()
        entered.clear()
        run = build(idempotent).start("hi")
        run.play()
        await asyncio.wait_for(entered.wait(), 60)
        snapshot = Snapshot.from_json(run.snapshot().to_json())
        run.cancel("gone")
        again = restore(snapshot, build(idempotent))
        again.play()
        if not idempotent:
            await until(lambda again=again: again.pending)
            assert [item.id for item in again.pending] == ["c1"]
            assert len(runs) == 1
            again.answer("c1", "it happened")
        assert await asyncio.wait_for(output_of(again), 60) == "done"
        assert len(runs) == (2 if idempotent else 1)


# --- the notebook -----------------------------------------------------------------------------------------------------


def test_the_extension_registers_its_magics() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    try:
        agentnb.load_ipython_extension(shell)
        for name in ("step", "pause", "resume", "snapshot", "restore", "runs"):
            assert shell.find_line_magic(name) is not None, name
    finally:
        agentnb.unload_ipython_extension(shell)
        shell.history_manager.end_session() if shell.history_manager else None


async def test_the_static_panel_of_a_run_labels_its_parts() -> None:
    run = an_agent(SEND, "sent").start("hi")
    run.play()
    await until(lambda: run.pending)
    shown = run.panel()
    assert shown is not None
    html = shown._repr_mimebundle_()[0]["text/html"] if hasattr(shown, "_repr_mimebundle_") else shown._repr_html_()
    for mark in ('role="log"', 'aria-label="Events"', 'role="img"', 'aria-label="State diagram"', "data-phase"):
        assert mark in html, mark
    assert 'role="group"' in html
    run.cancel("done")


def test_a_run_and_its_replay_are_exported_to_a_path(tmp_path: Path) -> None:
    run = an_agent("done").start("hi")
    run.result(30)
    for exported in (run, agentnb.replay(run), run.at(0)):
        assert positional(type(exported).export_html) == ["path"]
        path = exported.export_html(tmp_path / "run.html")
        assert path == tmp_path / "run.html"
        assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_labels_its_controls() -> None:
    page = Path(agentnb.__file__).parent / "widgets" / "page"
    text = "\n".join(path.read_text() for path in page.rglob("*.js"))
    for word in ("Step", "Play", "Pause", "Cancel", "Approve", "Approve all", "Reject", "Edit", "Replace", "Snapshot"):
        assert f'"{word}"' in text, word
