"""Any loop can be nested in any other: steps, approvals, limits, cancellation and snapshots work across the nesting."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentnb import (
    Agent,
    AgentnbError,
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
    replay,
    restore,
    tool,
)
from agentnb.core.events import ModelStart
from agentnb.loops.agent import AgentEventType
from agentnb.loops.loop_agent import BaseAgent, Event, EventActions, InvocationContext
from tests.streaming import Model, asks, says
from tests.worlds import collect, notation, provider_faults


class World:
    """Tools that record their calls with the arguments."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.during: Callable[[], Any] = lambda: None

        @tool
        async def work(n: int = 0) -> str:
            """Work."""
            self.ran.append(n)
            done = self.during()
            if asyncio.iscoroutine(done):
                await done
            return f"worked {n}"

        @tool(approve=True)
        async def write(n: int = 0) -> str:
            """Ask first."""
            self.ran.append(("wrote", n))
            return f"wrote {n}"

        @tool
        async def boom() -> str:
            """Fail."""
            raise ValueError("api down")

        self.tools = [work, write, boom]

    def hang(self) -> list[str]:
        """Let every call of `work` wait until it is cancelled. The returned list gets an item for each ended call."""
        ended: list[str] = []

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("yes")

        self.during = wait
        return ended


def handing(*names: str) -> list[Any]:
    """A turn that hands a task to each of these loops; every call has the same arguments."""
    return asks(*((f"h{n}", name, {"input": f"for {name}"}) for n, name in enumerate(names)))


def call(name: str, id: str = "c1", **arguments: Any) -> list[Any]:
    return asks((id, name, arguments))


def paths(events: Any) -> set[str]:
    return {event.path for event in events}


def plain(events: Any) -> list[tuple[str, str]]:
    return [(event.path, event.type) for event in events]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for is seen from outside only
            await asyncio.sleep(0.002)


def solution(calls: list[dict[str, Any]], output: Any) -> list[Any]:
    return says(json.dumps({"calls": calls, "output": output}))


# -- loops as tools --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [SessionLoop, Agent])
@pytest.mark.parametrize("inner", [SessionLoop, Agent])
async def test_a_loop_can_be_a_tool_of_another(outer: Any, inner: Any) -> None:
    world = World()
    critic = inner(Model(call("work", n=1), "inner says"), world.tools, name="critic")
    model = Model(handing("critic"), "outer says")
    run = outer(model, [critic]).start("go")
    assert await run == "outer says"
    assert world.ran == [1]
    assert model.contexts[1][2]["content"] == "inner says"
    assert paths(run.events) == {"", "critic"}
    assert [e.type for e in run.events if e.terminal] == ["run_end"]
    assert run.events[-1].terminal
    assert [m.role for m in run.messages] == ["user", "assistant", "tool", "assistant"]


async def test_the_nested_loop_gets_the_input_of_the_call() -> None:
    inside = Model("x")
    await SessionLoop(Model(handing("critic")), [Agent(inside, name="critic")]).start("go")
    assert inside.heard(0) == ["user:for critic"]


async def test_two_concurrent_loops_have_calls_with_the_same_id() -> None:
    world = World()
    barrier = asyncio.Barrier(2)
    world.during = barrier.wait
    one, two = (Agent(Model(call("work", n=n), f"said {n}"), world.tools, name=f"a{n}") for n in (1, 2))
    model = Model(handing("a1", "a2"), "fin")
    run = SessionLoop(model, [one, two]).start("go")
    assert await asyncio.wait_for(run, 60) == "fin"
    assert sorted(world.ran) == [1, 2]
    assert [m["content"] for m in model.contexts[1] if m["role"] == "tool"] == ["said 1", "said 2"]
    assert paths(run.events) == {"", "a1", "a2"}


async def test_the_same_loop_runs_twice_concurrently() -> None:
    world = World()
    barrier = asyncio.Barrier(2)
    world.during = barrier.wait

    class Stateless(Model):
        async def stream(self, messages: Any, **options: Any) -> Any:
            for chunk in call("work", n=1) if messages[-1]["role"] == "user" else says("said"):
                yield chunk

    critic = Agent(Stateless(), world.tools, name="critic")
    run = SessionLoop(Model(handing("critic", "critic"), "fin"), [critic]).start("go")
    assert await asyncio.wait_for(run, 60) == "fin"
    assert len(world.ran) == 2
    assert len(paths(run.events)) == 3
    assert [m.content for m in run.messages if m.role == "tool"] == ["said", "said"]


async def test_one_loop_object_runs_in_two_concurrent_runs() -> None:
    critic = Agent(Model("said", "said"), name="critic")
    runs = [SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go") for _ in range(2)]
    assert await asyncio.gather(*runs) == ["fin", "fin"]
    assert all(paths(run.events) == {"", "critic"} for run in runs)


async def test_a_loop_used_twice_starts_with_an_empty_history() -> None:
    inside = Model("first", "second")
    model = Model(handing("critic"), handing("critic"), "fin")
    run = SessionLoop(model, [Agent(inside, name="critic")]).start("go")
    await run
    assert inside.heard(1) == ["user:for critic"]
    assert [m.content for m in run.messages if m.role == "tool"] == ["first", "second"]


async def test_loops_nest_three_levels_deep() -> None:
    world = World()
    leaf = Agent(Model(call("work", n=3), "leaf"), world.tools, name="leaf")
    middle = SessionLoop(Model(handing("leaf"), "middle"), [leaf], name="middle")
    run = Agent(Model(handing("middle"), "top"), [middle], name="top").start("go")
    assert await run == "top"
    assert paths(run.events) == {"", "middle", "middle/leaf"}
    assert run.state.children["middle"].children["leaf"].output == "leaf"


async def test_usage_of_nested_loops_is_summed() -> None:
    used = [{"type": "usage", "input_tokens": 10, "output_tokens": 2, "cost": 0.5}]
    leaf = Agent(Model([*says("leaf"), *used]), name="leaf")
    middle = Agent(Model([*handing("leaf"), *used], [*says("middle"), *used]), [leaf], name="middle")
    run = SessionLoop(Model([*handing("middle"), *used], [*says("top"), *used]), [middle]).start("go")
    await run
    assert run.usage["input_tokens"] == 50
    assert run.usage["output_tokens"] == 10
    assert run.usage["cost"] == 2.5
    assert run.state.children["middle"].usage["input_tokens"] == 30


async def test_the_state_contains_the_states_of_nested_loops() -> None:
    run = SessionLoop(Model(handing("critic"), "fin"), [Agent(Model("said"), name="critic")]).start("go")
    await run
    child = run.state.children["critic"]
    assert (child.stop_reason, child.output, child.loop) == ("completed", "said", "Agent")
    assert [m.content for m in child.messages] == ["for critic", "said"]


async def test_a_name_of_a_loop_may_contain_a_slash() -> None:
    world = World()
    critic = Agent(Model(call("write", n=1), "said"), world.tools, name="a/b")
    run = SessionLoop(Model(handing("a/b"), "fin"), [critic]).start("go")
    run.play()
    await until(lambda: run.pending)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run.approve(run.pending[0].id)
    assert await run == "fin"
    again = restore(snapshot, SessionLoop(Model("fin"), [Agent(Model("said"), world.tools, name="a/b")]))
    again.approve(again.pending[0].id)
    assert await again == "fin"


async def test_a_tool_and_a_loop_run_concurrently() -> None:
    world = World()
    critic = Agent(Model("said"), name="critic")
    turn = asks(("c1", "work", {"n": 5}), ("c2", "critic", {"input": "x"}))
    model = Model(turn, "fin")
    await Agent(model, [*world.tools, critic]).start("go")
    assert [m["content"] for m in model.contexts[1] if m["role"] == "tool"] == ["worked 5", "said"]


async def test_a_loop_called_with_invalid_arguments_is_an_error_result() -> None:
    inside = Model("said")
    model = Model(asks(("c", "critic", {"question": 5})), "fin")
    assert await SessionLoop(model, [Agent(inside, name="critic")]).start("go") == "fin"
    assert model.contexts[1][2]["is_error"]
    assert inside.contexts == []


async def test_an_execution_loop_can_be_a_tool() -> None:
    world = World()
    solver = ExecutionLoop(Model(solution([{"_tool": "work", "n": 1}], {"x": 1})), world.tools, name="solver")
    model = Model(handing("solver"), "fin")
    assert await SessionLoop(model, [solver]).start("go") == "fin"
    assert json.loads(model.contexts[1][2]["content"]) == {"x": 1}
    assert world.ran == [1]


async def test_an_engine_and_a_loop_agent_can_be_tools() -> None:
    engine = ConversationEngine(execute=lambda task: "done", name="engine")
    passes = LoopAgent("passes", [Agent(Model("said"), name="sub")], 1)
    model = Model(handing("engine", "passes"), "fin")
    run = SessionLoop(model, [engine, passes]).start("go")
    assert await asyncio.wait_for(run, 60) == "fin"
    assert paths(run.events) == {"", "engine", "passes", "passes/sub"}


# -- engines and loop agents around others ---------------------------------------------------------------------------


def inner(kind: str, world: World) -> Loop:
    """Return a loop of this design that works once and answers `said`."""
    if kind == "session":
        return SessionLoop(Model(call("work", n=1), "said"), world.tools, name="inner")
    if kind == "agent":
        return Agent(Model(call("work", n=1), "said"), world.tools, name="inner")
    if kind == "execution":
        return ExecutionLoop(Model(solution([{"_tool": "work", "n": 1}], "said")), world.tools, name="inner")
    if kind == "engine":

        async def execute(task: Any) -> str:
            world.ran.append(1)
            return "said"

        return ConversationEngine(execute=execute, name="inner")
    return LoopAgent("inner", [Agent(Model(call("work", n=1), "said"), world.tools, name="sub")], 1)


KINDS = ["session", "agent", "execution", "engine", "loop_agent"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_executes_its_tasks_with_any_loop(kind: str) -> None:
    world = World()
    engine = ConversationEngine(execute=inner(kind, world))
    events = await collect(engine.run("go"))
    names = [event.event_type.name for event in events]
    assert names[-3:] == ["TASK_COMPLETED", "STATE_CHANGED", "ENGINE_COMPLETED"]
    assert world.ran == [1]
    assert (engine.completed_tasks, engine.total_tasks) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_loop_agent_runs_any_loop(kind: str) -> None:
    world = World()
    run = LoopAgent("outer", [inner(kind, world)], 1).start("go")
    await asyncio.wait_for(run, 60)
    assert run.stop_reason == "max_iterations"
    assert world.ran == [1]
    assert "inner" in run.state.children


@pytest.mark.parametrize("kind", KINDS)
async def test_run_async_yields_events_of_any_nested_loop(kind: str) -> None:
    world = World()
    outer = LoopAgent("outer", [inner(kind, world)], 1)
    events = await collect(outer.run_async(InvocationContext(is_resumable=True, user_content="go")))
    assert events
    assert events[-1].actions.end_of_agent
    assert world.ran == [1]


async def test_a_nested_agent_at_its_own_limit_is_a_failed_call() -> None:
    inside = Agent(Model(*[call("work", n=1)] * 9), World().tools, max_iterations=2, name="inner")
    model = Model(handing("inner"), "fin")
    run = SessionLoop(model, [inside]).start("go")
    assert await run == "fin"
    assert run.state.children["inner"].stop_reason == "max_iterations"
    (told,) = [message for message in run.messages if message.role == "tool"]
    assert told.is_error  # the model that called it must not treat an empty result as an answer
    assert "2 times (max_iterations)" in told.content
    assert provider_faults(run.messages) == []
    assert run.stop_reason == "completed"


# -- the designs' own streams over a nesting -------------------------------------------------------------------------


async def test_the_stream_of_a_session_shows_a_nested_loop_as_one_tool() -> None:
    critic = Agent(Model(call("work", n=1), "said"), World().tools, name="critic")
    events = await collect(SessionLoop(Model(handing("critic"), "fin"), [critic]).run("hi"))
    assert notation(events) == [
        "AS",
        "TS",
        "M(user:hi)",
        "M(A)",
        "XS(h0)",
        "XE(h0)",
        "M(result:h0)",
        "TE[h0]",
        "TS",
        "M(A)",
        "TE[]",
        "AE(4)",
    ]


async def test_the_stream_of_an_agent_shows_a_nested_loop_as_one_tool() -> None:
    critic = SessionLoop(Model(call("work", n=1), "said"), World().tools, name="critic")
    events = await collect(Agent(Model(handing("critic"), "fin"), [critic]).execute("hi"))
    kinds = [e.type for e in events]
    T = AgentEventType
    assert kinds.count(T.TOOL_EXECUTION_START) == 1
    assert kinds.count(T.TOOL_RESULT) == 1
    assert kinds.count(T.LLM_START) == 2
    assert [e.content for e in events if e.type == T.LLM_DELTA] == ["fin"]
    assert [e for e in events if e.is_terminal()] == events[-1:]


async def test_the_stream_of_an_execution_loop_shows_a_nested_loop_as_one_call() -> None:
    critic = Agent(Model("said"), name="critic")
    model = Model(solution([{"_tool": "critic", "input": "x", "_outputPath": "†state.said"}], "ok"))
    loop = ExecutionLoop(model, [critic])
    events = await collect(loop.run())
    assert [e.type for e in events].count("call_started") == 1
    assert [e.type for e in events].count("loop_completed") == 1
    assert loop.state["said"] == "said"


async def test_a_failing_nested_model_ends_the_stream_of_a_session_completely() -> None:
    critic = Agent(Model([RuntimeError("down")]), name="critic")
    events: list[Any] = []
    try:
        async with asyncio.timeout(60):
            async for event in SessionLoop(Model(handing("critic")), [critic]).run("hi"):
                events.append(event)
    except AgentnbError:
        pass
    notes = notation(events)
    assert notes[-1].startswith("AE")
    assert notes.count("TS") == sum(note.startswith("TE") for note in notes)
    assert [n for n in notes if n.startswith("XS")] == ["XS(h0)"]
    assert [n for n in notes if n.startswith("XE")] == ["XE(h0!)"]


async def test_a_failing_nested_model_ends_the_stream_of_an_agent_with_an_error() -> None:
    critic = SessionLoop(Model([RuntimeError("down")]), [], name="critic")
    events = await collect(Agent(Model(handing("critic")), [critic]).execute("hi"))
    assert events[-1].type == AgentEventType.ERROR
    assert "down" in events[-1].error.message
    opened = [e.tool_call.id for e in events if e.type == AgentEventType.TOOL_EXECUTION_START]
    ended = [e.result.tool_call_id for e in events if e.type in (AgentEventType.TOOL_ERROR, AgentEventType.TOOL_RESULT)]
    assert opened == ended


async def test_a_session_with_a_failed_nested_loop_accepts_a_new_message() -> None:
    model = Model(handing("critic"), "fine")
    loop = SessionLoop(model, [Agent(Model([RuntimeError("down")]), name="critic")])
    await collect(loop.run("hi"))
    await collect(loop.run("again"))
    assert provider_faults(model.contexts[-1]) == []
    assert model.heard(-1) == ["user:hi", "assistant", "h0", "user:again"]


async def test_a_session_with_a_failed_nested_loop_can_be_continued() -> None:
    model = Model(handing("critic"), "fine")
    loop = SessionLoop(model, [Agent(Model([RuntimeError("down")]), name="critic")])
    await collect(loop.run("hi"))
    await collect(loop.continue_())
    assert provider_faults(model.contexts[-1]) == []
    assert loop.messages[-1].content == "fine"


async def test_the_stream_of_an_execution_loop_reports_a_failed_nested_loop() -> None:
    model = Model(solution([{"_tool": "critic", "input": "x"}], None))
    loop = ExecutionLoop(model, [Agent(Model([RuntimeError("down")]), name="critic")])
    events = await collect(loop.run())
    kinds = [event.type for event in events]
    assert kinds[-1] == "loop_completed"
    assert kinds.count("call_started") == kinds.count("call_failed") == 1


class Asks(BaseAgent):
    """Pauses for something that takes long."""

    async def _run_async_impl(self, ctx: Any) -> Any:
        asked = {"parts": [{"function_call": {"id": "f1", "name": "ask"}}]}
        yield Event(author=self.name, content=asked, long_running_tool_ids={"f1"})


async def test_a_session_suspended_by_a_nested_loop_ends_its_stream_and_continues_with_a_valid_history() -> None:
    model = Model(handing("passes"), "fine")
    loop = SessionLoop(model, [LoopAgent("passes", [Asks("asks")], 1)])
    notes = notation(await collect(loop.run("hi")))
    assert notes == ["AS", "TS", "M(user:hi)", "M(A)", "XS(h0)", "XE(h0!)", "M(result:h0!)", "TE[h0]", "AE(3)"]
    await collect(loop.run("again"))
    assert provider_faults(model.contexts[-1]) == []
    assert model.heard(-1) == ["user:hi", "assistant", "h0", "user:again"]


async def test_an_agent_suspended_by_a_nested_loop_closes_its_open_events() -> None:
    agent = Agent(Model(handing("passes"), "fine"), [LoopAgent("passes", [Asks("asks")], 1)])
    events = await collect(agent.execute("hi"))
    kinds = [event.type.name for event in events]
    assert kinds.count("TOOL_EXECUTION_START") == kinds.count("TOOL_ERROR") == 1
    assert [event for event in events if event.is_terminal()] == events[-1:]


def test_two_nested_loops_of_one_loop_must_have_different_names() -> None:
    one, two = Agent(Model(), name="critic"), Agent(Model(), name="critic")
    with pytest.raises(AgentnbError, match="critic"):
        SessionLoop(Model(), [one, two])
    SessionLoop(Model(), [one, one])


# -- approvals -------------------------------------------------------------------------------------------------------


def asking(world: World, *, n: int = 1, name: str = "critic") -> Agent:
    return Agent(Model(call("write", n=n), "said"), world.tools, name=name)


async def started(run: Any, count: int = 1) -> Any:
    run.play()
    await until(lambda: len(run.pending) == count)
    return run


async def test_a_nested_call_requests_approval_in_the_outer_run() -> None:
    world = World()
    run = await started(SessionLoop(Model(handing("critic"), "fin"), [asking(world, n=4)]).start("go"))
    waiting = run.pending[0]
    assert (waiting.id, waiting.name, waiting.arguments) == ("c1", "write", {"n": 4})
    assert waiting.schema["properties"]["n"]
    assert waiting.reason
    assert world.ran == []
    run.approve("c1")
    assert await run == "fin"
    assert world.ran == [("wrote", 4)]
    with pytest.raises(AgentnbError):
        run.approve("c1")


@pytest.mark.parametrize("how", ["approve", "edit", "reject", "replace", "answer"])
async def test_every_kind_of_decision_applies_to_a_nested_call(how: str) -> None:
    world = World()
    critic = asking(world)
    run = await started(SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go"))
    decide: dict[str, Callable[[], None]] = {
        "approve": lambda: run.approve("c1"),
        "edit": lambda: run.edit("c1", {"n": 9}),
        "reject": lambda: run.reject("c1", "not now"),
        "replace": lambda: run.replace("c1", "work", {"n": 8}),
        "answer": lambda: run.answer("c1", "did it myself"),
    }
    decide[how]()
    with pytest.raises(AlreadyDecided):
        run.reject("c1", "too late")
    assert await run == "fin"
    ran = {"approve": [("wrote", 1)], "edit": [("wrote", 9)], "replace": [8]}.get(how, [])
    assert world.ran == ran
    said = critic.llm.contexts[1][2]["content"]
    assert said == {"approve": "wrote 1", "edit": "wrote 9", "replace": "worked 8", "answer": "did it myself"}.get(
        how, said
    )
    if how == "reject":
        assert "not now" in said


async def test_two_pending_calls_with_the_same_id_are_identified_by_their_paths() -> None:
    world = World()
    loops = [asking(world, n=1, name="one"), asking(world, n=2, name="two")]
    run = await started(SessionLoop(Model(handing("one", "two"), "fin"), loops).start("go"), 2)
    assert {(waiting.path, waiting.id) for waiting in run.pending} == {("one", "c1"), ("two", "c1")}
    run.reject("one/c1", "no")
    run.approve("two/c1")
    assert await run == "fin"
    assert world.ran == [("wrote", 2)]


async def test_a_recording_without_its_loop_has_the_same_pending_ids_as_the_run() -> None:
    world = World()
    loops = [asking(world, n=1, name="one"), asking(world, n=2, name="two")]
    run = await started(SessionLoop(Model(handing("one", "two"), "fin"), loops).start("go"), 2)
    recorded = replay(run.snapshot()).to(len(run.events) - 1)
    assert [waiting.id for waiting in recorded.pending] == [waiting.id for waiting in run.pending]
    run.cancel()


async def test_path_and_id_also_identify_a_single_pending_call() -> None:
    world = World()
    run = await started(SessionLoop(Model(handing("critic"), "fin"), [asking(world)]).start("go"))
    run.approve("critic/c1")
    assert await run == "fin"


async def test_outer_and_nested_calls_with_the_same_id_are_both_pending() -> None:
    world = World()
    turn = asks(("c1", "write", {"n": 5}), ("c2", "critic", {"input": "x"}))
    run = await started(SessionLoop(Model(turn, "fin"), [*world.tools, asking(world)]).start("go"), 2)
    outer, inner = sorted(run.pending, key=lambda waiting: waiting.path)
    assert (outer.id, outer.path, inner.id, inner.path) == ("c1", "", "c1", "critic")
    with pytest.raises(AgentnbError):
        run.reject("c1", "no")
    run.reject(outer, "no")
    run.approve(inner)
    assert await run == "fin"
    assert world.ran == [("wrote", 1)]


async def test_a_pending_call_with_a_slash_in_its_id_is_found() -> None:
    world = World()
    critic = Agent(Model(asks(("a/b", "write", {"n": 3})), "said"), world.tools, name="critic")
    run = await started(SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go"))
    run.approve(run.pending[0].id)
    assert await run == "fin"


async def test_edited_arguments_are_checked_in_the_nested_loop() -> None:
    world = World()
    run = await started(SessionLoop(Model(handing("critic"), "fin"), [asking(world)]).start("go"))
    with pytest.raises(AgentnbError):
        run.edit("c1", {"n": "many"})
    with pytest.raises(AgentnbError):
        run.replace("c1", "nothing", {})
    assert len(run.pending) == 1
    run.approve("c1")
    assert await run == "fin"


async def test_the_policy_of_the_run_applies_to_nested_loops() -> None:
    world = World()
    critic = Agent(Model(call("work", n=1), "said"), world.tools, name="critic")
    rules = [{"tool": "work", "decision": "reject"}, {"tool": "critic", "decision": "approve"}]
    await SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go", approve=rules)
    assert world.ran == []
    world = World()
    assert await SessionLoop(Model(handing("critic"), "fin"), [asking(world)]).start("go", approve=True) == "fin"
    assert world.ran == [("wrote", 1)]


async def test_nested_calls_can_be_decided_from_another_thread() -> None:
    world = World()
    run = await started(SessionLoop(Model(handing("critic"), "fin"), [asking(world)]).start("go"))
    thread = threading.Thread(target=lambda: run.approve("c1"))
    thread.start()
    assert await asyncio.wait_for(run, 60) == "fin"
    thread.join()


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"turns": 3}, {"calls": 3}, {"tokens": 25}, {"cost": 2.5}])
async def test_a_limit_reached_in_a_nested_loop_ends_the_run(limits: dict[str, float]) -> None:
    used = [{"type": "usage", "input_tokens": 9, "output_tokens": 1, "cost": 1.0}]
    inside = Model(*[[*call("work", n=n), *used] for n in range(9)])
    critic = SessionLoop(inside, World().tools, name="critic")
    run = Agent(Model([*handing("critic"), *used]), [critic]).start("go", limits=limits)
    with pytest.raises(LimitReached):
        await run
    assert run.stop_reason == "limit"
    assert provider_faults(run.messages) == []
    assert provider_faults(run.state.children["critic"].messages) == []
    if "turns" in limits:
        assert len(inside.contexts) == 2
    assert [e.type for e in run.events if e.terminal] == ["run_end"]
    assert run.state.children["critic"].stop_reason is not None


async def test_the_limit_on_seconds_ends_a_nested_wait() -> None:
    world = World()
    world.during = asyncio.Event().wait
    critic = Agent(Model(call("work")), world.tools, name="critic")
    run = SessionLoop(Model(handing("critic")), [critic]).start("go", limits={"seconds": 0.1})
    with pytest.raises(LimitReached):
        await asyncio.wait_for(run, 60)
    assert provider_faults(run.messages) == []


# -- breakpoints and steps -------------------------------------------------------------------------------------------


async def paused(run: Any) -> Any:
    run.play()
    await until(lambda: run.state.paused)
    return run


@pytest.mark.parametrize("point", ["work", "tool_execution", lambda e, s: e.path == "critic" and e.type == "model_end"])
async def test_a_breakpoint_hits_a_nested_event(point: Any) -> None:
    world = World()
    critic = Agent(Model(call("work", n=1), "said"), world.tools, name="critic")
    run = await paused(SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go", breakpoints=[point]))
    assert run.events[-1].type == "run_paused"
    assert "critic" in paths(run.events)
    assert run.stop_reason is None
    assert run.resume() is True
    await until(lambda: run.state.over or run.state.paused)
    while run.state.paused:
        run.resume()
        await asyncio.sleep(0.01)
    assert await run == "fin"
    assert world.ran == [1]


@pytest.mark.parametrize("unit", ["call", "turn", "phase"])
async def test_larger_steps_work_through_nested_loops(unit: Any) -> None:
    critic = Agent(Model(call("work", n=1), "said"), World().tools, name="critic")
    run = SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go")
    seen: list[Any] = []
    steps = 0
    while step := await asyncio.wait_for(run.step(unit), 60):
        seen.extend(step)
        steps += 1
        if unit == "call" and not run.state.over:
            assert step[-1].type == "call_end"
    assert plain(seen) == plain(run.events)
    assert steps > 2


async def test_two_nested_loops_are_stepped_by_call() -> None:
    world = World()
    loops = [Agent(Model(call("work", n=n), "said"), world.tools, name=f"a{n}") for n in (1, 2)]
    run = SessionLoop(Model(handing("a1", "a2"), "fin"), loops).start("go")
    seen: list[Any] = []
    while step := await asyncio.wait_for(run.step("call"), 60):
        seen.extend(step)
    assert plain(seen) == plain(run.events)
    assert sorted(world.ran) == [1, 2]
    assert run.output == "fin"


async def test_a_step_that_meets_a_nested_question_returns_its_events() -> None:
    world = World()
    run = SessionLoop(Model(handing("critic"), "fin"), [asking(world)]).start("go")
    first = await asyncio.wait_for(run.step("turn"), 60)
    while not run.pending:
        first += await asyncio.wait_for(run.step("turn"), 60)
    assert first[-1].type == "approval_request"
    assert await asyncio.wait_for(run.step(), 60) == []
    run.approve(run.pending[0].id)
    assert await run == "fin"


async def test_a_run_with_a_nested_call_in_flight_is_paused_and_resumed() -> None:
    world = World()
    gate = asyncio.Event()
    world.during = gate.wait
    critic = Agent(Model(call("work", n=1), "said"), world.tools, name="critic")
    run = SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go")
    run.play()
    await until(lambda: world.ran)
    assert run.pause() is True
    gate.set()
    await until(lambda: run.state.paused)
    assert len(critic.llm.contexts) == 1
    assert run.resume() is True
    assert await run == "fin"


# -- failures --------------------------------------------------------------------------------------------------------


async def test_resume_repeats_the_failed_request_of_a_nested_model() -> None:
    world = World()
    inside = Model(call("work", n=1), [RuntimeError("down")], "said")
    run = SessionLoop(outer := Model(handing("critic"), "fin"), [Agent(inside, world.tools, name="critic")]).start("go")
    with pytest.raises(RunFailed, match="down"):
        await run
    assert run.stop_reason is None
    assert not any(event.terminal for event in run.events)
    with pytest.raises(RunFailed):
        await run
    assert len(inside.contexts) == 2
    assert run.resume() is True
    assert await run == "fin"
    assert len(inside.contexts) == 3
    assert len(outer.contexts) == 2
    assert world.ran == [1]


async def test_resume_repeats_a_request_that_failed_after_a_nested_loop() -> None:
    outer = Model(handing("critic"), [RuntimeError("down")], "fin")
    run = SessionLoop(outer, [Agent(Model("said"), name="critic")]).start("go")
    with pytest.raises(RunFailed, match="down"):
        await run
    assert run.resume() is True
    assert await asyncio.wait_for(run, 60) == "fin"
    asked = [(event.turn, event.attempt) for event in run.events if isinstance(event, ModelStart) and not event.path]
    assert asked == [(1, 1), (2, 1), (2, 2)]


async def test_a_snapshot_with_a_failed_nested_model_is_restored() -> None:
    world = World()
    inside = Model([RuntimeError("down")])
    run = SessionLoop(Model(handing("critic")), [Agent(inside, world.tools, name="critic")]).start("go")
    with pytest.raises(RunFailed):
        await run
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    again = restore(snapshot, SessionLoop(Model("fin"), [Agent(Model("said"), world.tools, name="critic")]))
    again.resume()
    assert await again == "fin"


async def test_async_for_continues_after_a_nested_failure() -> None:
    run = SessionLoop(Model(handing("a"), "fin"), [Agent(Model([OSError("net")], "said"), name="a")]).start("go")
    with pytest.raises(RunFailed):
        await collect(run)
    assert run.resume() is True
    events = [event async for event in run if event.seq is not None]
    assert plain(events) == plain(run.events)
    assert events[-1].terminal


async def test_when_one_of_two_nested_models_fails_the_results_of_the_other_are_kept() -> None:
    world = World()
    loops = [
        Agent(Model([RuntimeError("down")], "said 1"), name="a1"),
        Agent(Model(call("work", n=2), "said 2"), world.tools, name="a2"),
    ]
    model = Model(handing("a1", "a2"), "fin")
    run = SessionLoop(model, loops).start("go")
    with pytest.raises(RunFailed):
        await asyncio.wait_for(run, 60)
    run.resume()
    assert await asyncio.wait_for(run, 60) == "fin"
    assert world.ran == [2]
    assert [m["content"] for m in model.contexts[1] if m["role"] == "tool"] == ["said 1", "said 2"]


async def test_the_error_of_a_nested_tool_reaches_the_nested_model() -> None:
    inside = Model(call("boom"), "said")
    run = SessionLoop(Model(handing("critic"), "fin"), [Agent(inside, World().tools, name="critic")]).start("go")
    assert await run == "fin"
    assert inside.contexts[1][2]["is_error"]
    assert "api down" in inside.contexts[1][2]["content"]


async def test_a_nested_loop_agent_that_raises_is_an_error_result() -> None:
    class Raises(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> Any:
            yield Event(author=self.name, content="first")
            raise ValueError("broken agent")

    model = Model(handing("passes"), "fin")
    run = SessionLoop(model, [LoopAgent("passes", [Raises("raises")], 1)]).start("go")
    assert await asyncio.wait_for(run, 60) == "fin"
    assert model.contexts[1][2]["is_error"]
    assert "broken agent" in model.contexts[1][2]["content"]


async def test_the_failure_of_a_nested_loop_reaches_the_model_like_an_error_of_a_tool() -> None:
    class Raises(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> Any:
            raise ValueError("broken")
            yield

    def breaks() -> None:
        raise ValueError("broken")

    model = Model(asks(("c1", "breaks", {}), ("c2", "raises", {"input": "go"})), "fin")
    await SessionLoop(model, [breaks, Raises("raises")]).run("go")
    told = [message["content"] for message in model.contexts[1] if message["role"] == "tool"]
    assert told == ["ValueError: broken"] * 2


async def test_a_nested_escalation_ends_the_nearest_loop_only() -> None:
    class Leaves(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> Any:
            yield Event(author=self.name, content="out", actions=EventActions(escalate=True))

    run = SessionLoop(Model(handing("passes"), "fin"), [LoopAgent("passes", [Leaves("leaves")])]).start("go")
    assert await asyncio.wait_for(run, 60) == "fin"
    assert run.state.children["passes"].stop_reason == "escalated"


# -- talking to it ---------------------------------------------------------------------------------------------------


async def test_steering_is_delivered_to_the_outermost_loop() -> None:
    world = World()
    inside, outside = Model(call("work"), "said"), Model(handing("critic"), "fin")
    run = SessionLoop(outside, [Agent(inside, world.tools, name="critic")]).start("go")
    world.during = lambda: run.steer("STEER")
    await run
    assert outside.heard(1) == ["user:go", "assistant", "h0", "user:STEER"]
    assert all("user:STEER" not in inside.heard(n) for n in range(2))


async def test_a_follow_up_is_delivered_when_the_outermost_loop_would_stop() -> None:
    world = World()
    outside = Model(handing("critic"), "fin", "more")
    run = SessionLoop(outside, [Agent(Model(call("work"), "said"), world.tools, name="critic")]).start("go")
    world.during = lambda: run.follow_up("MORE")
    assert await run == "more"
    assert [m.content for m in run.messages if m.role == "user"] == ["go", "MORE"]


async def test_steering_an_engine_reaches_its_nested_loop_or_raises_the_reason() -> None:
    world = World()
    inside = Model(call("work"), "said", "steered")
    run = ConversationEngine(execute=SessionLoop(inside, world.tools, name="inner")).start("go")
    world.during = lambda: run.steer("STEER")
    await asyncio.wait_for(run, 60)
    assert "user:STEER" in inside.heard(1)


# -- cancelling ------------------------------------------------------------------------------------------------------


async def test_a_nested_tool_can_cancel_the_run() -> None:
    world = World()
    critic = Agent(Model(asks(("c1", "work", {"n": 1}), ("c2", "work", {"n": 2}))), world.tools, name="critic")
    run = SessionLoop(Model(handing("critic")), [critic]).start("go")
    world.during = lambda: run.cancel("enough")
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(run, 60)
    assert world.ran == [1]
    assert provider_faults(run.messages) == []
    assert provider_faults(run.state.children["critic"].messages) == []
    assert [e.type for e in run.events if e.terminal] == ["run_end"]
    assert run.state.children["critic"].stop_reason == "cancelled"


async def test_a_cancellation_records_a_result_for_every_call_of_every_level() -> None:
    world = World()
    ended = world.hang()
    loops = [Agent(Model(call("work", n=n)), world.tools, name=f"a{n}") for n in (1, 2)]
    run = SessionLoop(Model(handing("a1", "a2")), loops).start("go")
    run.play()
    await until(lambda: len(world.ran) == 2)
    assert run.cancel("enough")
    assert provider_faults(run.messages) == []
    for name in ("a1", "a2"):
        assert provider_faults(run.state.children[name].messages) == []
    with pytest.raises(RunCancelled):
        await run
    await until(lambda: len(ended) == 2)


async def test_closing_a_consumer_cancels_nested_calls() -> None:
    world = World()
    ended = world.hang()
    critic = Agent(Model(call("work", n=1)), world.tools, name="critic")
    run = SessionLoop(Model(handing("critic")), [critic]).start("go")
    stream = aiter(run)

    async def read() -> None:
        async for _ in stream:
            pass

    reading = asyncio.create_task(read())
    await until(lambda: world.ran)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ended == ["yes"]
    assert run.stop_reason == "cancelled"
    assert provider_faults(run.messages) == []


async def test_a_cancelled_run_with_nested_loops_continues_when_restored() -> None:
    world = World()
    run = await started(SessionLoop(Model(handing("critic")), [asking(world)]).start("go"))
    run.cancel("enough")
    loop = SessionLoop(Model("fin"), [Agent(Model("said"), world.tools, name="critic")])
    again = restore(run.snapshot(), loop)
    again.approve(again.pending[0].id)
    assert await again == "fin"
    assert world.ran == [("wrote", 1)]


# -- snapshots and stores --------------------------------------------------------------------------------------------


class Answers:
    """A model that keeps no state: its n-th answer of a conversation is the n-th turn."""

    def __init__(self, *turns: Any) -> None:
        self.turns = turns

    async def stream(self, messages: Any, **_: Any) -> Any:
        turn = self.turns[sum(message["role"] == "assistant" for message in messages)]
        for chunk in says(turn) if isinstance(turn, str) else turn:
            yield chunk


def deep(world: World) -> Loop:
    leaf = Agent(Answers(call("write", n=3), "leaf"), world.tools, name="leaf")
    solver = ExecutionLoop(Answers(solution([{"_tool": "work", "n": 1}], "solved")), world.tools, name="solver")
    middle = SessionLoop(Answers(handing("leaf", "solver"), "middle"), [leaf, solver], name="middle")
    passes = LoopAgent("passes", [middle], 1)
    return Agent(Answers(handing("passes"), "top"), [passes], name="top")


async def decided(run: Any) -> Any:
    run.play()
    async with asyncio.timeout(60):
        while not run.stop_reason:
            for waiting in run.pending:
                run.approve(waiting)
            await asyncio.sleep(0.002)
    return await run


async def test_a_run_with_deep_nesting_restored_at_every_event_ends_the_same() -> None:
    run = deep(World()).start("go", approve=True)
    assert await run == "top"
    assert "passes/middle/leaf" in paths(run.events)
    for position in range(1, len(run.events)):
        snapshot = Snapshot.from_json(Snapshot.of(run.events[:position]).to_json())
        again = restore(snapshot, deep(World()))
        assert await decided(again) == "top"
        assert provider_faults(again.messages) == []


async def test_a_restored_run_with_nested_loops_does_not_repeat_ended_calls() -> None:
    world = World()
    run = deep(world).start("go", approve=True)
    await run
    ends = [e.seq for e in run.events if e.type == "call_end" and e.path.endswith(("leaf", "solver"))]
    later = World()
    again = restore(Snapshot.of(run.events[: max(ends) + 1]), deep(later))
    assert await decided(again) == "top"
    assert later.ran == []


async def test_a_snapshot_with_a_pending_nested_call_is_restored() -> None:
    world = World()
    run = await started(deep(world).start("go"))
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run.cancel("")
    later = World()
    again = restore(snapshot, deep(later))
    # A concurrent call that ran when the snapshot was taken has an unknown outcome, and is pending, too.
    assert [waiting.name for waiting in again.pending if not waiting.unknown] == ["write"]
    assert await decided(again) == "top"
    assert ("wrote", 3) in later.ran


async def test_a_nested_call_of_unknown_outcome_needs_a_decision() -> None:
    world = World()
    world.during = asyncio.Event().wait
    critic = Agent(Answers(call("work", n=1), "said"), world.tools, name="critic")
    run = SessionLoop(Answers(handing("critic"), "fin"), [critic]).start("go")
    run.play()
    await until(lambda: world.ran)
    snapshot = run.snapshot()
    run.cancel("")
    later = World()
    critic = Agent(Answers(call("work", n=1), "said"), later.tools, name="critic")
    again = restore(snapshot, SessionLoop(Answers(handing("critic"), "fin"), [critic]))
    again.play()
    await until(lambda: again.pending)
    assert again.pending[0].unknown
    again.answer(again.pending[0].id, "it happened")
    assert await again == "fin"
    assert later.ran == []
    assert again.state.children["critic"].messages[2].content == "it happened"


async def test_a_store_keeps_the_events_of_nested_loops(tmp_path: Path) -> None:
    world = World()
    store = Store(tmp_path / "runs.db")
    run = await started(deep(world).start("go", store=store, name="deep"))
    await until(lambda: ("passes/middle/solver", "run_end") in plain(run.events))
    before = plain(run.events)
    run.cancel("goes on elsewhere")
    later = World()
    again = restore(store.load("deep"), deep(later), store=store)
    assert plain(again.events) == before
    assert await decided(again) == "top"
    kept = plain(store.load(again.id).events)
    assert kept[: len(before)] == before
    assert kept == plain(again.events)


@pytest.mark.parametrize("change", ["renamed", "removed"])
async def test_a_snapshot_without_its_nested_loop_is_refused_and_can_still_be_restored(change: str) -> None:
    world = World()
    run = await started(SessionLoop(Answers(handing("critic"), "fin"), [asking(world)]).start("go"))
    snapshot = run.snapshot()
    run.cancel("")
    tools = [Agent(Answers(call("write", n=1), "said"), world.tools, name="judge")] if change == "renamed" else []
    with pytest.raises(AgentnbError, match="critic"):
        await asyncio.wait_for(decided(restore(snapshot, SessionLoop(Answers(handing("critic"), "fin"), tools))), 60)
    critic = Agent(Answers(call("write", n=1), "said"), world.tools, name="critic")
    again = restore(snapshot, SessionLoop(Answers(handing("critic"), "fin"), [critic]))
    assert await decided(again) == "fin"


async def test_an_engine_with_another_nested_loop_is_refused_and_with_a_function_repeats_the_task() -> None:
    world = World()
    run = await started(ConversationEngine(execute=asking(world, name="inner")).start("go"))
    snapshot = run.snapshot()
    run.cancel("")
    with pytest.raises(AgentnbError, match="inner"):
        restore(snapshot, ConversationEngine(execute=SessionLoop(Model(), [], name="inner")))
    engine = ConversationEngine(execute=lambda task: "x")
    again = restore(snapshot, engine)
    await asyncio.wait_for(again, 60)
    assert again.stop_reason == "completed"


# -- consumers -------------------------------------------------------------------------------------------------------


async def test_many_consumers_of_nested_loops_get_the_same_events() -> None:
    run = deep(World()).start("go", approve=True)

    async def facts() -> list[Any]:
        return [event async for event in run if event.seq is not None]

    seen = await asyncio.wait_for(asyncio.gather(*(facts() for _ in range(5))), 60)
    assert all(plain(one) == plain(run.events) for one in seen)
    assert all(one[-1].terminal and not any(e.terminal for e in one[:-1]) for one in seen)


async def test_deltas_of_nested_loops_have_their_path() -> None:
    run = SessionLoop(Model(handing("critic"), "fin"), [Agent(Model("said"), name="critic")]).start("go")
    deltas = [(e.path, e.content) async for e in run if e.type == "text_delta"]
    assert deltas == [("critic", "said"), ("", "fin")]


async def test_a_run_with_nested_loops_can_be_awaited_from_another_thread() -> None:
    world = World()
    run = await started(SessionLoop(Model(handing("critic"), "fin"), [asking(world)]).start("go"))
    outputs: list[Any] = []

    async def awaits() -> Any:
        return await run

    threads = [
        threading.Thread(target=lambda: outputs.append(run.result(timeout=30))),
        threading.Thread(target=lambda: outputs.append(asyncio.run(awaits()))),
    ]
    for thread in threads:
        thread.start()
    run.approve("c1")
    await until(lambda: len(outputs) == 2)
    for thread in threads:
        thread.join()
    assert outputs == ["fin", "fin"]


async def test_a_delta_of_a_nested_loop_arrives_while_the_loop_runs() -> None:
    gate = asyncio.Event()
    critic = Agent(Model([*says("a"), gate.wait, *says("b")]), name="critic")
    run = SessionLoop(Model(handing("critic"), "fin"), [critic]).start("go")
    async with asyncio.timeout(60):
        async for event in run:
            if event.type == "text_delta" and event.content == "a":
                gate.set()
    assert run.output == "fin"
