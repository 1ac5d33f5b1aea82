from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from agentnb import RunFailed, SessionLoop, UsageError
from agentnb.errors import IllegalTransition
from agentnb.loops.conversation_engine import (
    VALID_STATE_TRANSITIONS,
    ConversationEngine,
    EngineEvent,
    EngineEventType,
    EngineState,
    SubTask,
)
from agentnb.testing import ScriptedLLM
from tests.benchmarks.measure import median_growth
from tests.loops.engines import PLANNED, TWO, WHOLE, World, boom, is_chain, notation, rest, take
from tests.worlds import assert_folds, collect

# -- the events, in order (conversation_engine/SEMANTICS.md, 3. Events) -----------------------------------------------


async def test_ce_01_the_events_of_a_complete_run() -> None:
    world = World()
    engine = world.engine()
    events = await collect(engine.run("goal"))
    assert notation(events) == WHOLE
    assert engine.state is EngineState.COMPLETED
    assert (engine.total_tasks, engine.completed_tasks, engine.current_progress) == (2, 2, 1.0)
    by_type = {event.event_type: event.data for event in events}
    described = [{"id": "b", "description": "B"}, {"id": "a", "description": "A"}]
    assert by_type[EngineEventType.TASK_DECOMPOSED] == {"task_count": 2, "tasks": described}
    assert by_type[EngineEventType.TASK_SCHEDULED] == {"task_id": "b", "priority": 2}
    assert by_type[EngineEventType.ENGINE_COMPLETED] == {"total_tasks": 2, "completed_tasks": 2}
    assert [event.timestamp for event in events] == sorted(event.timestamp for event in events)
    assert time.time() - 60 < events[0].timestamp <= time.time()
    assert world.ran == ["a", "b"]


async def test_the_state_of_an_engine_is_that_of_its_last_state_change() -> None:
    engine = World().engine()
    assert engine.state is EngineState.IDLE
    async for event in engine.run("goal"):
        if event.event_type is EngineEventType.STATE_CHANGED:
            assert engine.state == event.data["to"]


async def test_an_engine_without_arguments_has_one_task() -> None:
    engine = ConversationEngine()
    said = await rest(engine.run("the goal"))
    assert "DECOMPOSED(task_default)" in said
    assert said[-4:] == [
        *("STARTED task_default", "COMPLETED task_default=the goal(1.0)", "SC(executing>completed)", "DONE(1,1)"),
    ]


async def test_an_engine_never_advances_beyond_its_consumer() -> None:
    world = World()
    stream = world.engine().run("goal")
    assert world.asked == []
    for expected, asked in [
        ("SC(receiving>context_fetching)", []),
        ("CONTEXT(0,0,0)", ["context"]),
        ("SC(context_fetching>decomposing)", ["context"]),
        ("DECOMPOSED(b,a)", ["context", "plan"]),
        ("STARTED a", ["context", "plan"]),
        ("COMPLETED a=A(0.5)", ["context", "plan", "a"]),
        ("STARTED b", ["context", "plan", "a"]),
    ]:
        await take(stream, expected)
        await asyncio.sleep(0.01)
        assert world.asked == asked
    await stream.aclose()


@pytest.mark.parametrize(
    ("fails", "phase", "before"),
    [
        ("context", "context_fetching", PLANNED[:2]),
        ("plan", "decomposing", PLANNED[:4]),
    ],
)
async def test_ce_15_a_failed_coordinator_or_planner_ends_the_engine(fails: str, phase: str, before: list[str]) -> None:
    world = World()
    world.during[fails] = boom
    engine = world.engine()
    events = await collect(engine.run("goal"))
    assert notation(events) == [*before, f"SC({phase}>error)", f"ERROR(boom,{phase})"]
    assert events[-1].data == {"error": "boom", "phase": phase}
    assert engine.state is EngineState.ERROR
    assert engine.current_progress == 0.0


async def test_a_failed_task_ends_the_engine() -> None:
    world = World()
    world.during["a"] = boom
    engine = world.engine()
    assert await rest(engine.run("goal")) == [
        *PLANNED,
        *("STARTED a", "FAILED a:boom:executing", "SC(executing>error)", "ERROR(boom,executing)"),
    ]
    assert engine.state is EngineState.ERROR
    assert world.ran == ["a"]
    assert [task.status for task in engine.tasks] == ["failed", "pending"]


@pytest.mark.parametrize(
    ("error", "words"), [(KeyError("boom"), "'boom'"), (TimeoutError("boom"), "boom"), (ValueError("☃"), "☃")]
)
@pytest.mark.parametrize(
    ("fails", "phase"), [("context", "context_fetching"), ("plan", "decomposing"), ("a", "executing")]
)
async def test_the_error_of_an_engine_has_the_text_of_the_exception(
    error: Exception, words: str, fails: str, phase: str
) -> None:
    def fail() -> None:
        raise error

    world = World()
    world.during[fails] = fail
    assert (await rest(world.engine().run("goal")))[-2:] == [f"SC({phase}>error)", f"ERROR({words},{phase})"]


async def test_tasks_before_a_failed_last_task_stay_completed() -> None:
    for options, end in (({}, "ERROR(boom,executing)"), ({"on_task_error": "continue"}, "DONE(2,1,1)")):
        world = World()
        world.during["b"] = boom
        engine = world.engine(**options)
        assert (await rest(engine.run("goal")))[-1] == end
        assert engine.completed_tasks == 1


async def test_a_failed_task_is_skipped_with_on_task_error_continue() -> None:
    world = World()
    world.during["a"] = boom
    engine = world.engine(on_task_error="continue")
    events = await collect(engine.run("goal"))
    assert notation(events) == [
        *PLANNED,
        *("STARTED a", "FAILED a:boom:executing", "STARTED b", "COMPLETED b=B(0.5)"),
        *("SC(executing>completed)", "DONE(2,1,1)"),
    ]
    assert events[-1].data == {"total_tasks": 2, "completed_tasks": 1, "failed_tasks": 1}
    assert (engine.state, engine.completed_tasks, engine.current_progress) == ("completed", 1, 0.5)


async def test_a_task_that_depends_on_a_failed_task_does_not_run() -> None:
    plan = [
        {"id": "c", "description": "C", "dependencies": ["b"]},
        {"id": "b", "description": "B", "dependencies": ["a"]},
        {"id": "a", "description": "A"},
        {"id": "d", "description": "D", "priority": 9},
    ]
    world = World(plan)
    world.during["a"] = boom
    said = await rest(world.engine(on_task_error="continue").run("goal"))
    assert said[-7:] == [
        *("FAILED a:boom:executing", "FAILED b:'a', which it depends on, failed.:executing"),
        *("FAILED c:'b', which it depends on, failed.:executing", "STARTED d", "COMPLETED d=D(0.25)"),
        *("SC(executing>completed)", "DONE(4,1,3)"),
    ]
    assert world.ran == ["a", "d"]


async def test_a_plan_without_tasks_completes_the_engine() -> None:
    engine = World([]).engine()
    stream = engine.run("goal")
    await take(stream, "DECOMPOSED()")
    assert engine.current_progress == 0.0
    assert await rest(stream) == [
        *("SC(decomposing>scheduling)", "SC(scheduling>executing)", "SC(executing>completed)", "DONE(0,0)"),
    ]
    assert engine.current_progress == 1.0


# -- the plan -------------------------------------------------------------------------------------------------------


async def order(plan: Any, **options: Any) -> list[str]:
    world = World(plan)
    await collect(world.engine(**options).run("goal"))
    return world.ran


async def test_tasks_run_by_priority_and_then_in_the_order_of_the_plan() -> None:
    assert await order([{"id": id, "priority": p} for id, p in [("x", 1), ("y", 0), ("z", 1), ("v", 0)]]) == list(
        "yvxz"
    )


async def test_tasks_without_priorities_run_in_the_order_of_the_plan() -> None:
    assert await order([{"description": "first"}, {"id": "x"}, "third"]) == ["task_0", "x", "task_2"]


async def test_a_task_runs_after_its_dependencies() -> None:
    plan = [
        {"id": "deploy", "priority": 0, "dependencies": ["test", "build"]},
        {"id": "test", "priority": 1, "dependencies": ["build"]},
        {"id": "build", "priority": 5},
        {"id": "other", "priority": 2},
    ]
    assert await order(plan) == ["other", "build", "test", "deploy"]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (None, "not None"),
        (7, "not 7"),
        ("no plan at all", "as JSON"),
        ({"a": 1}, "list of tasks"),
        ([None], "Task 0 is None"),
        ([{"id": "a"}, 7], "Task 1 is 7"),
        ([{"id": "a", "priority": "soon"}], "priority"),
        ([{"id": "a", "priority": float("nan")}], "priority"),
        ([{"id": "a", "dependencies": "b"}], "dependencies"),
        ([{"id": ""}], "id"),
        ([{"id": "a"}, {"id": "a"}], "Two tasks have the id 'a'"),
        ([{"id": "a", "dependencies": ["zzz"]}], "'zzz', which is not a task"),
        ([{"id": "a", "dependencies": ["a"]}], "cycle: a"),
        ([{"id": "a", "dependencies": ["b"]}, {"id": "b", "dependencies": ["a"]}, {"id": "c"}], "cycle: a, b"),
        ([{"id": one, "dependencies": [other]} for one, other in ("ab", "ba", "ca")], "cycle: a, b."),
    ],
)
async def test_an_invalid_plan_is_an_error(plan: Any, why: str) -> None:
    world = World()
    world.plan = plan
    engine = world.engine()
    events = await collect(engine.run("goal"))
    assert notation(events)[:-1] == [*PLANNED[:4], "SC(decomposing>error)"]
    assert events[-1].data["phase"] == "decomposing"
    assert why in events[-1].data["error"]
    assert engine.total_tasks == 0
    assert world.ran == []


async def test_missing_and_unknown_keys_of_a_task_are_accepted() -> None:
    plan = [{"id": 1, "unknown": object(), "status": "done", "result": 3, "priority": None, "dependencies": None}, {}]
    world = World(plan)
    seen: list[SubTask] = []
    engine = world.engine(execute=seen.append)
    await collect(engine.run("goal"))
    assert [(t.id, t.description, t.priority, t.type, t.dependencies) for t in seen] == [
        ("1", "1", 0, "generic", []),
        ("task_1", "task_1", 1, "generic", []),
    ]
    assert SubTask(id="x", nobody="knows") == SubTask(id="x")


@pytest.mark.parametrize(
    "plan",
    [
        {"tasks": TWO},
        '{"tasks": [{"id": "b", "priority": 2}, {"id": "a", "priority": 1}]}',
        'Here [are] they:\n```json\n[{"id": "b", "priority": 2}, {"id": "a", "priority": 1}]\n```',
        (SubTask(id="b", priority=2), SubTask(id="a", priority=1)),
        [SimpleNamespace(id="b", priority=2), SimpleNamespace(id="a", priority=1)],
    ],
)
async def test_a_plan_can_have_several_forms(plan: Any) -> None:
    assert await order(plan) == ["a", "b"]


async def test_a_truncated_plan_is_an_event_with_the_dropped_tasks() -> None:
    plan = [{"id": f"t{number}"} for number in range(5)]
    events = await collect(World(plan).engine(max_tasks=3).run("goal"))
    said = notation(events)
    assert said[4:6] == ["DECOMPOSED(t0,t1,t2)", "TRUNCATED(t3,t4)"]
    assert events[5].data == {"max_tasks": 3, "task_count": 5, "dropped": ["t3", "t4"]}
    assert said[-1] == "DONE(3,3)"
    assert len(await order([{"id": f"t{number}"} for number in range(150)])) == 100
    assert len(await order([{"id": f"t{number}"} for number in range(150)], max_tasks=None)) == 150
    assert await order([{"id": "a"}], max_tasks=0) == []


async def test_a_truncated_plan_with_a_missing_dependency_is_an_error() -> None:
    events = await collect(World([{"id": "a", "dependencies": ["b"]}, {"id": "b"}]).engine(max_tasks=1).run("goal"))
    assert "max_tasks=1 leaves out" in events[-1].data["error"]


# -- the ports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "context",
    [
        SimpleNamespace(rules=["r"], tools=["t1", "t2"], knowledge=[]),
        {"rules": ["r"], "tools": ["t1", "t2"], "knowledge": None, "more": 1},
    ],
)
async def test_the_parts_of_the_context_are_counted_and_passed_on(context: Any) -> None:
    seen: list[Any] = []

    class Planner:
        def decompose_goal(self, user_input: str, context: Any = None) -> Any:
            seen.append((user_input, context))
            return [{"id": "a"}]

    async def execute(task: SubTask, known: Any) -> None:
        seen.append((task.id, known))

    async def coordinator(user_input: str) -> Any:
        return context

    said = await rest(ConversationEngine(coordinator, Planner(), execute).run("goal"))
    assert "CONTEXT(1,2,0)" in said
    assert [who for who, _ in seen] == ["goal", "a"]
    for _, known in seen:
        assert known.rules == known["rules"] == ["r"]
        assert known.tools == ["t1", "t2"]
        assert known.knowledge == []


async def test_a_port_with_one_parameter_gets_one_argument() -> None:
    def plan(user_input: str) -> Any:
        return [{"id": "a"}, {"id": "b"}]

    def execute(task: SubTask, retries: int = 3) -> int:
        return retries

    said = await rest(ConversationEngine(lambda goal: None, plan, execute).run("goal"))
    assert said[-3:] == ["COMPLETED b=3(1.0)", "SC(executing>completed)", "DONE(2,2)"]


async def test_sync_ports_do_not_block_the_event_loop() -> None:
    here = threading.current_thread()
    ticked = threading.Event()

    def execute(task: SubTask) -> bool:
        assert threading.current_thread() is not here
        return ticked.wait(10)

    async def tick() -> None:
        ticked.set()

    stream = ConversationEngine(execute=execute).run("goal")
    await take(stream, "STARTED task_default")
    pulled = asyncio.create_task(anext(stream))
    await asyncio.create_task(tick())
    assert (await pulled).data["result"] is True
    await stream.aclose()


async def test_stop_iteration_of_a_sync_port_is_an_error_of_the_engine() -> None:
    def execute(task: SubTask) -> Any:
        return next(iter(()))

    said = await rest(ConversationEngine(execute=execute).run("goal"))
    assert said[-1] == "ERROR(StopIteration: ,executing)"


async def test_a_loop_can_execute_a_task() -> None:
    loop = SessionLoop(ScriptedLLM(["did A", "did B"]))
    world = World()
    said = await rest(world.engine(execute=loop).run("goal"))
    assert [words for words in said if words.startswith("COMPLETED")] == [
        "COMPLETED a=did A(0.5)",
        "COMPLETED b=did B(1.0)",
    ]
    assert [request.messages[-1]["content"] for request in loop.llm.requests] == ["A", "B"]


async def test_a_loop_that_executes_a_task_gets_the_results_of_its_dependencies() -> None:
    loop = SessionLoop(ScriptedLLM(["did A", "did B"]))
    world = World([{"id": "a", "description": "A"}, {"id": "b", "description": "B", "dependencies": ["a"]}])
    engine = world.engine(execute=loop)
    events = engine.run("goal")
    await take(events, "COMPLETED a=did A(0.5)")
    snapshot = engine.create_snapshot()
    await rest(events)
    again = SessionLoop(ScriptedLLM(["did B"]))
    restored = World().engine(execute=again)
    assert restored.restore_from_snapshot(snapshot) is True
    await rest(restored.continue_())
    for llm in (loop.llm, again.llm):
        said = [message["content"] for message in llm.requests[-1].messages]
        assert said == ["B", "[a] came to: did A"]


async def test_a_result_that_is_not_json_is_converted() -> None:
    said = await rest(ConversationEngine(execute=lambda task: {1, 2}).run("goal"))
    assert "COMPLETED task_default=[1, 2](1.0)" in said


@pytest.mark.parametrize("result", [None, "", 0, {"é": [1, None]}, [1, 2], "☃"])
async def test_a_task_can_return_any_json(result: Any) -> None:
    events = await collect(World().engine(execute=lambda task: result).run("goal"))
    assert [event.data["result"] for event in events if event.event_type == "task_completed"] == [result, result]


async def async_parts(task: SubTask) -> AsyncGenerator[Any, None]:
    """Yield the result of a task in parts."""
    yield task.id
    yield {"part": 2}


def sync_parts(task: SubTask) -> Generator[Any, None, None]:
    """Yield the result of a task in parts, without async."""
    yield task.id
    yield {"part": 2}


@pytest.mark.parametrize("execute", [async_parts, sync_parts, lambda task: async_parts(task)])
async def test_execute_can_yield_its_result_in_parts(execute: Any) -> None:
    done = [event async for event in ConversationEngine(execute=execute).run("goal")][-3]
    assert done.data["result"] == ["task_default", {"part": 2}]


async def test_a_generator_that_fails_after_a_yield_fails_its_task() -> None:
    async def breaks(task: SubTask) -> AsyncGenerator[str, None]:
        yield "half"
        boom()

    said = await rest(ConversationEngine(execute=breaks).run("goal"))
    assert "FAILED task_default:boom:executing" in said


async def test_a_goal_that_is_a_message_without_a_role_is_refused() -> None:
    engine = ConversationEngine()
    with pytest.raises(UsageError, match="goal"):
        engine.run({"content": "no role"})
    assert engine.state is EngineState.IDLE


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ({"role": "user", "content": "the goal"}, "the goal"),
        ({"city": "Aswan"}, '{"city":"Aswan"}'),
        ([{"n": 1}, 2], '[{"n":1},2]'),
        ({}, "{}"),
    ],
)
async def test_a_goal_can_be_a_message_or_any_object_and_is_kept_in_a_snapshot(goal: Any, words: str) -> None:
    engine = ConversationEngine()
    events = engine.run(goal)
    await anext(events)
    again = ConversationEngine()
    assert again.restore_from_snapshot(json.loads(json.dumps(engine.create_snapshot())))
    for left in (events, again.continue_()):
        assert f"COMPLETED task_default={words}(1.0)" in await rest(left)


@pytest.mark.parametrize(
    "options",
    [
        {"on_task_error": "ignore"},
        {"max_tasks": -1},
        {"llm": 7},
        {"execute": 7},
        {"coordinator": 7},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ConversationEngine(**options)


def test_the_error_for_a_model_as_coordinator_names_the_right_argument() -> None:
    with pytest.raises(UsageError, match="Pass a model as llm="):
        ConversationEngine(ScriptedLLM([]))


# -- a model that makes the plan ------------------------------------------------------------------------------------

ANSWER = '{"tasks": [{"id": "b", "description": "B", "priority": 2, "dependencies": []}, {"id": "a", "priority": 1}]}'


async def test_a_model_request_has_the_schema_of_a_plan() -> None:
    llm = ScriptedLLM([ANSWER])
    context = {"rules": ["be brief"]}
    said = await rest(World(context=context).engine(llm=llm).run("the goal"))
    assert said == [words if words != "CONTEXT(0,0,0)" else "CONTEXT(1,0,0)" for words in WHOLE]
    [request] = llm.requests
    assert request.schema is not None
    assert request.schema["properties"]["tasks"]["type"] == "array"
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert request.messages[1]["content"].startswith("the goal\n")
    assert "be brief" in request.messages[1]["content"]


async def test_a_model_with_only_complete_can_make_the_plan() -> None:
    class Model:
        async def complete(self, messages: Any) -> str:
            return f"Sure:\n```json\n{ANSWER}\n```"

    assert await rest(World().engine(llm=Model()).run("goal")) == WHOLE


async def test_a_model_answer_that_is_not_a_plan_is_an_error() -> None:
    events = await collect(World().engine(llm=ScriptedLLM(["I cannot."])).run("goal"))
    assert notation(events)[-2] == "SC(decomposing>error)"
    assert "I cannot." in events[-1].data["error"]


async def test_a_failed_model_request_ends_the_stream_and_pauses_the_run() -> None:
    engine = World().engine(llm=ScriptedLLM([[RuntimeError("no line")], ANSWER]))
    said = await rest(engine.run("goal"))
    assert said == [*PLANNED[:4], "SC(decomposing>error)", "ERROR(no line,decomposing)"]
    assert engine.state is EngineState.ERROR
    assert engine.resume() is False
    run = engine.current_run
    assert run is not None
    assert run.stop_reason is None
    run.resume()
    assert await run == {"a": "A", "b": "B"}
    assert engine.state is EngineState.COMPLETED


async def test_decompose_goal_has_precedence_over_the_model() -> None:
    class Both(ScriptedLLM):
        def decompose_goal(self, user_input: str) -> Any:
            return TWO

    llm = Both([])
    assert await rest(World().engine(llm=llm).run("goal")) == WHOLE
    assert llm.requests == []


# -- the run of the core ---------------------------------------------------------------------------------------------


async def test_a_run_started_with_start_returns_the_results() -> None:
    world = World()
    engine = world.engine()
    run = engine.start("goal")
    assert await run == {"a": "A", "b": "B"}
    assert run.stop_reason == "completed"
    assert run.phase == "completed"
    assert engine.state is EngineState.IDLE
    assert_folds(run)


async def test_a_failed_run_started_with_start_raises_the_error() -> None:
    world = World()
    world.during["plan"] = boom
    run = world.engine().start("goal")
    with pytest.raises(RunFailed, match="boom"):
        await run
    assert (run.stop_reason, run.phase) == ("error", "error")


async def test_a_run_can_be_stepped_phase_by_phase() -> None:
    run = World().engine().start("goal")
    phases = []
    while not run.state.over:
        await run.step("phase")
        phases.append(run.phase)
    assert phases == ["receiving", "context_fetching", "decomposing", "scheduling", "executing", "completed"]


@pytest.mark.alone
def test_the_cost_of_a_task_does_not_grow_with_the_number_of_tasks() -> None:
    tasks = 800

    async def performed() -> list[float]:
        marks: list[float] = []

        async def execute(task: SubTask) -> None:
            marks.append(time.process_time())

        engine = ConversationEngine(None, lambda goal: [{"id": f"t{n}"} for n in range(tasks)], execute, max_tasks=None)
        said = await rest(engine.run("goal"))
        assert said[-1] == f"DONE({tasks},{tasks})"
        return marks

    assert median_growth(lambda: asyncio.run(performed()), tasks // 10) < 3


# -- the state machine -----------------------------------------------------------------------------------------------


def test_the_transition_table_is_that_of_the_design() -> None:
    table = {state.value: {other.value for other in allowed} for state, allowed in VALID_STATE_TRANSITIONS.items()}
    assert table == {
        "idle": {"receiving"},
        "receiving": {"context_fetching", "error"},
        "context_fetching": {"decomposing", "error"},
        "decomposing": {"scheduling", "error"},
        "scheduling": {"executing", "paused", "error"},
        "executing": {"completed", "paused", "error"},
        "paused": {"executing", "scheduling", "error", "idle"},
        "completed": {"idle"},
        "error": {"idle"},
    }
    assert {state.value for state in EngineState} == set(table)


@pytest.mark.parametrize("source", list(EngineState))
@pytest.mark.parametrize("target", list(EngineState))
def test_a_forbidden_transition_raises_and_changes_nothing(source: EngineState, target: EngineState) -> None:
    engine = ConversationEngine()
    ways = {EngineState.PAUSED: ["executing"], EngineState.ERROR: ["receiving"]}
    chain = ["receiving", "context_fetching", "decomposing", "scheduling", "executing", "completed"]
    steps = chain[: chain.index(source) + 1] if source in chain else []
    if source in ways:
        steps = [*chain[: chain.index(ways[source][0]) + 1], source.value]
    for step in steps:
        engine.transition_to(step)
    assert engine.state is source
    if target in VALID_STATE_TRANSITIONS[source]:
        engine.transition_to(target)
        assert engine.state is target
    else:
        with pytest.raises(IllegalTransition):
            engine.transition_to(target)
        assert engine.state is source


async def test_a_running_engine_permits_only_a_pause_a_resume_and_an_error() -> None:
    engine = World().engine()
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    with pytest.raises(IllegalTransition):
        engine.transition_to(EngineState.COMPLETED)
    engine.transition_to(EngineState.PAUSED)
    assert await take(stream, "PAUSED(0.5)") == ["COMPLETED a=A(0.5)", "SC(executing>paused)", "PAUSED(0.5)"]
    with pytest.raises(IllegalTransition):
        engine.transition_to(EngineState.SCHEDULING)
    engine.transition_to(EngineState.EXECUTING)
    said = await take(stream, "STARTED b")
    engine.transition_to(EngineState.ERROR)
    said += await rest(stream)
    assert is_chain(said, "paused")
    assert said[-1] == "ERROR(cancelled,executing)"


def test_an_event_can_be_constructed() -> None:
    event = EngineEvent(EngineEventType.TASK_STARTED, {"task_id": "a"})
    assert event.event_type == "task_started"
    assert event == EngineEvent(EngineEventType("task_started"), {"task_id": "a"}, event.timestamp)


def test_an_engine_has_its_arguments_as_attributes() -> None:
    coordinator, llm = (lambda goal: None), (lambda goal: [])
    engine = ConversationEngine(coordinator=coordinator, llm=llm)
    assert engine.coordinator is coordinator
    assert engine.llm is llm
    assert ConversationEngine().coordinator is None
