"""What the texts promise of a ConversationEngine, checked through its public names only, one claim a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

import agentnb
from agentnb import Agent, ConversationEngine, tool
from agentnb.loops.conversation_engine import (
    VALID_STATE_TRANSITIONS,
    EngineEvent,
    EngineEventType,
    EngineState,
    SubTask,
)
from agentnb.testing import ScriptedLLM

TASKS = [{"id": "b", "description": "B", "priority": 2}, {"id": "a", "description": "A", "priority": 1}]
PREFIX = [
    "SC(idle>receiving)",
    "SC(receiving>context_fetching)",
    "CONTEXT_RECEIVED",
    "SC(context_fetching>decomposing)",
    "TASK_DECOMPOSED",
    "SC(decomposing>scheduling)",
    "TASK_SCHEDULED a",
    "TASK_SCHEDULED b",
    "SC(scheduling>executing)",
]


class Coordinator:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[str] = []

    async def get_context_async(self, user_input: str) -> Any:
        self.asked.append(user_input)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(rules=["r"], tools=["t", "u"], knowledge=["k", "l", "m"])


class Planner:
    def __init__(self, tasks: Any = TASKS, error: Exception | None = None) -> None:
        self.tasks = tasks
        self.error = error
        self.calls = 0

    async def decompose_goal(self, user_input: str) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.tasks


class Work:
    """Upper-cases ids; `gates` holds a task back, `failing` raises, `log` keeps the order."""

    def __init__(self, failing: tuple[str, ...] = (), held: tuple[str, ...] = ()) -> None:
        self.failing = failing
        self.gates = {name: asyncio.Event() for name in held}
        self.begun = {name: asyncio.Event() for name in held}
        self.log: list[str] = []

    async def __call__(self, task: SubTask) -> str:
        self.log.append(task.id)
        if task.id in self.gates:
            self.begun[task.id].set()
            try:
                await self.gates[task.id].wait()
            finally:
                self.log.append(f"{task.id} closed")
        if task.id in self.failing:
            raise RuntimeError("task broke")
        return task.id.upper()


def made(tasks: Any = TASKS, execute: Any = None, **options: Any) -> ConversationEngine:
    return ConversationEngine(Coordinator(), Planner(tasks), execute or Work(), **options)


def line(event: EngineEvent) -> str:
    name = event.event_type.name
    if name == "STATE_CHANGED":
        return f"SC({event.data['from']}>{event.data['to']})"
    return f"{name} {event.data['task_id']}" if "task_id" in event.data else name


async def told(stream: AsyncIterator[EngineEvent]) -> list[EngineEvent]:
    return [event async for event in stream]


async def until(stream: Any, wanted: str) -> list[EngineEvent]:
    seen = []
    async for event in stream:
        seen.append(event)
        if line(event) == wanted:
            return seen
    raise AssertionError(f"{wanted} never came: {[line(event) for event in seen]}")


def lines(events: list[EngineEvent]) -> list[str]:
    return [line(event) for event in events]


def data(events: list[EngineEvent], name: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.event_type.name == name]


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


# Names


def test_the_states_equal_their_words() -> None:
    words = [
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
    assert [state.value for state in EngineState] == words
    assert EngineState.IDLE == "idle"
    assert EngineState.PAUSED == "paused"


def test_the_event_types_equal_their_words() -> None:
    for name in [
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
    ]:
        assert EngineEventType[name] == name.lower()


def test_the_table_is_that_of_the_design() -> None:
    table = {state.value: {each.value for each in VALID_STATE_TRANSITIONS[state]} for state in EngineState}
    seed = {
        "idle": {"receiving"},
        "receiving": {"context_fetching", "error"},
        "context_fetching": {"decomposing", "error"},
        "decomposing": {"scheduling", "error"},
        "scheduling": {"executing", "paused", "error"},
        "executing": {"completed", "paused", "error"},
        "paused": {"executing", "scheduling"},
        "completed": {"idle"},
        "error": {"idle"},
    }
    for state, following in seed.items():
        assert following <= table[state]
    assert {"error", "idle"} <= table["paused"]
    assert "completed" not in table["scheduling"]
    assert "executing" not in table["decomposing"]


def test_an_illegal_transition_raises_and_changes_nothing() -> None:
    engine = made()
    with pytest.raises(agentnb.errors.AgentnbError):
        engine.transition_to(EngineState.EXECUTING)
    assert engine.state == "idle"


def test_a_legal_transition_is_taken() -> None:
    engine = made()
    engine.transition_to("receiving")
    assert engine.state is EngineState.RECEIVING


def test_a_new_engine_is_idle_with_nothing_done() -> None:
    engine = ConversationEngine()
    assert (engine.state, engine.current_progress, engine.total_tasks, engine.completed_tasks) == ("idle", 0.0, 0, 0)


# A whole run


async def test_ce_01_a_whole_run() -> None:
    engine = made()
    events = await told(engine.run("goal"))
    assert lines(events) == [
        *PREFIX,
        "TASK_STARTED a",
        "TASK_COMPLETED a",
        "TASK_STARTED b",
        "TASK_COMPLETED b",
        "SC(executing>completed)",
        "ENGINE_COMPLETED",
    ]
    assert engine.state == "completed"
    assert (engine.total_tasks, engine.completed_tasks, engine.current_progress) == (2, 2, 1.0)


async def test_the_fields_of_each_event() -> None:
    events = await told(made().run("goal"))
    assert data(events, "CONTEXT_RECEIVED") == [{"rules_count": 1, "tools_count": 2, "knowledge_count": 3}]
    decomposed = data(events, "TASK_DECOMPOSED")[0]
    assert decomposed["task_count"] == 2
    assert sorted(task["id"] for task in decomposed["tasks"]) == ["a", "b"]
    assert all({"id", "description"} <= set(task) for task in decomposed["tasks"])
    assert data(events, "TASK_SCHEDULED") == [{"task_id": "a", "priority": 1}, {"task_id": "b", "priority": 2}]
    assert data(events, "TASK_STARTED") == [{"task_id": "a"}, {"task_id": "b"}]
    assert data(events, "TASK_COMPLETED") == [
        {"task_id": "a", "result": "A", "progress": 0.5},
        {"task_id": "b", "result": "B", "progress": 1.0},
    ]
    completed = data(events, "ENGINE_COMPLETED")[0]
    assert (completed["total_tasks"], completed["completed_tasks"]) == (2, 2)


async def test_every_event_is_json_and_stamped() -> None:
    for event in await told(made().run("goal")):
        json.dumps(event.data)
        assert event.timestamp is not None


async def test_the_state_during_each_event_is_the_one_it_tells() -> None:
    engine = made()
    async for event in engine.run("goal"):
        if event.event_type == "state_changed":
            assert engine.state == event.data["to"]


async def test_without_a_coordinator_the_context_is_empty() -> None:
    events = await told(ConversationEngine(llm=Planner(), execute=Work()).run("goal"))
    assert data(events, "CONTEXT_RECEIVED") == [{"rules_count": 0, "tools_count": 0, "knowledge_count": 0}]


async def test_with_nothing_at_all_there_is_one_task_and_its_result_is_its_description() -> None:
    events = await told(ConversationEngine().run("say hello"))
    assert data(events, "TASK_STARTED") == [{"task_id": "task_default"}]
    assert data(events, "TASK_COMPLETED")[0]["result"] == "say hello"


async def test_execute_may_be_an_ordinary_function() -> None:
    events = await told(made(execute=lambda task: task.id * 2).run("goal"))
    assert [each["result"] for each in data(events, "TASK_COMPLETED")] == ["aa", "bb"]


async def test_a_planner_may_be_an_ordinary_function() -> None:
    class Plain:
        def decompose_goal(self, user_input: str) -> Any:
            return TASKS

    events = await told(ConversationEngine(llm=Plain(), execute=Work()).run("goal"))
    assert len(data(events, "TASK_COMPLETED")) == 2


async def test_equal_priorities_keep_their_order() -> None:
    tasks = [{"id": name, "description": name, "priority": 1} for name in "cab"]
    events = await told(made(tasks).run("goal"))
    assert [each["task_id"] for each in data(events, "TASK_STARTED")] == ["c", "a", "b"]


async def test_missing_keys_have_defaults() -> None:
    events = await told(made([{"description": "x"}, {"description": "y"}]).run("goal"))
    assert data(events, "TASK_SCHEDULED") == [
        {"task_id": "task_0", "priority": 0},
        {"task_id": "task_1", "priority": 1},
    ]


async def test_unknown_keys_do_not_break_the_engine() -> None:
    events = await told(made([{"id": "a", "description": "x", "colour": "red"}]).run("goal"))
    assert lines(events)[-1] == "ENGINE_COMPLETED"


async def test_no_tasks_is_completed_at_once() -> None:
    engine = made([])
    events = await told(engine.run("goal"))
    assert lines(events)[-3:] == ["SC(scheduling>executing)", "SC(executing>completed)", "ENGINE_COMPLETED"]
    assert engine.current_progress == 1.0


async def test_too_many_tasks_are_not_dropped_silently() -> None:
    tasks = [{"id": f"t{n}", "description": "x"} for n in range(101)]
    engine = made(tasks)
    events = await told(engine.run("goal"))
    assert len(data(events, "TASK_COMPLETED")) == 100
    assert [each["dropped"] for each in data(events, "TASKS_TRUNCATED")] == [["t100"]]


async def test_dependencies_come_first() -> None:
    tasks = [
        {"id": "a", "description": "A", "priority": 1, "dependencies": ["b"]},
        {"id": "b", "description": "B", "priority": 2},
    ]
    events = await told(made(tasks).run("goal"))
    assert [each["task_id"] for each in data(events, "TASK_STARTED")] == ["b", "a"]


@pytest.mark.parametrize("needs", [["a"], ["gone"]])
async def test_dependencies_that_cannot_be_met_are_an_error(needs: list[str]) -> None:
    engine = made([{"id": "a", "description": "A", "dependencies": needs}])
    events = await told(engine.run("goal"))
    assert lines(events)[-1] == "ENGINE_ERROR"
    assert engine.state == "error"


@pytest.mark.parametrize("tasks", ["words", [3], None, [{"id": "a"}, {"id": "a"}], [{"priority": "high", "id": "a"}]])
async def test_a_plan_that_is_none_is_an_error_of_decomposing(tasks: Any) -> None:
    engine = made(tasks)
    events = await told(engine.run("goal"))
    assert lines(events)[-1] == "ENGINE_ERROR"
    assert events[-1].data["phase"] == "decomposing"
    assert engine.state == "error"


async def test_the_context_reaches_a_planner_and_a_worker_that_ask_for_it() -> None:
    seen: list[Any] = []

    class Asking:
        async def decompose_goal(self, user_input: str, context: Any) -> Any:
            seen.append(context)
            return TASKS

    async def execute(task: SubTask, context: Any) -> str:
        seen.append(context)
        return "x"

    await told(ConversationEngine(Coordinator(), Asking(), execute).run("goal"))
    assert len(seen) == 3
    assert all(len(context.knowledge) == 3 for context in seen)


async def test_the_engine_does_not_run_ahead_of_its_consumer() -> None:
    work = Work()
    stream = made(execute=work).run("goal")
    await until(stream, "TASK_COMPLETED a")
    for _ in range(20):
        await asyncio.sleep(0)
    assert work.log == ["a"]
    await stream.aclose()


# Pause and resume


async def test_the_example_of_the_design_cannot_pause_while_decomposing() -> None:
    engine = made()
    stream = engine.run("goal")
    for _ in range(5):
        await stream.__anext__()
    assert engine.state == "decomposing"
    assert engine.pause() is False
    assert engine.current_progress == 0.0
    assert engine.resume() is False
    assert lines(await told(stream))[-1] == "ENGINE_COMPLETED"


async def test_pause_at_any_time_for_those_who_ask_for_it() -> None:
    engine = made()
    stream = engine.run("goal")
    for _ in range(5):
        await stream.__anext__()
    assert engine.pause(anytime=True) is True
    seen = await until(stream, "ENGINE_PAUSED")
    assert engine.resume() is True
    assert lines([*seen, *await told(stream)])[-1] == "ENGINE_COMPLETED"


async def test_ce_07_and_08_a_pause_lets_the_task_end_first() -> None:
    work = Work()
    engine = made(execute=work)
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    assert engine.pause() is True
    assert engine.state == "paused"
    seen = [await anext(stream) for _ in range(3)]
    assert lines(seen) == ["TASK_COMPLETED a", "SC(executing>paused)", "ENGINE_PAUSED"]
    assert seen[0].data["progress"] == 0.5
    assert seen[2].data == {"progress": 0.5}
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert engine.resume() is True
    rest = [await waiting, *await told(stream)]
    assert lines(rest) == [
        "SC(paused>executing)",
        "ENGINE_RESUMED",
        "TASK_STARTED b",
        "TASK_COMPLETED b",
        "SC(executing>completed)",
        "ENGINE_COMPLETED",
    ]
    assert rest[1].data == {"progress": 0.5}
    assert work.log == ["a", "b"]
    assert engine.state == "completed"


async def test_one_consumer_may_pause_and_resume_itself() -> None:
    engine = made()
    seen = []
    async for event in engine.run("goal"):
        seen.append(event)
        if line(event) == "TASK_STARTED a":
            engine.pause()
        if event.event_type == EngineEventType.ENGINE_PAUSED:
            assert engine.resume() is True
    assert lines(seen)[-1] == "ENGINE_COMPLETED"
    assert "ENGINE_RESUMED" in lines(seen)


async def test_ce_09_a_pause_while_scheduling_returns_to_scheduling() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_SCHEDULED a")
    assert engine.pause() is True
    seen = [await anext(stream) for _ in range(3)]
    assert lines(seen) == ["TASK_SCHEDULED b", "SC(scheduling>paused)", "ENGINE_PAUSED"]
    assert seen[2].data == {"progress": 0.0}
    assert engine.resume() is True
    assert lines(await told(stream)) == [
        "SC(paused>scheduling)",
        "ENGINE_RESUMED",
        "SC(scheduling>executing)",
        "TASK_STARTED a",
        "TASK_COMPLETED a",
        "TASK_STARTED b",
        "TASK_COMPLETED b",
        "SC(executing>completed)",
        "ENGINE_COMPLETED",
    ]


async def test_resume_before_it_is_quiet_takes_the_pause_back() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    assert engine.pause() is True
    assert engine.resume() is True
    assert engine.state == "executing"
    assert lines(await told(stream)) == [
        "TASK_COMPLETED a",
        "TASK_STARTED b",
        "TASK_COMPLETED b",
        "SC(executing>completed)",
        "ENGINE_COMPLETED",
    ]


async def test_pause_twice_is_false_the_second_time() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    assert (engine.pause(), engine.pause()) == (True, False)
    assert (engine.resume(), engine.resume()) == (True, False)
    await told(stream)


async def test_pause_and_resume_of_an_idle_or_completed_engine_are_false() -> None:
    engine = made()
    assert (engine.pause(), engine.resume(), engine.state) == (False, False, "idle")
    await told(engine.run("goal"))
    assert (engine.pause(), engine.resume(), engine.state) == (False, False, "completed")


async def test_a_pause_after_the_last_task_began_is_told_before_completion() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED b")
    assert engine.pause() is True
    seen = await until(stream, "ENGINE_PAUSED")
    assert "TASK_COMPLETED b" in lines(seen)
    assert engine.resume() is True
    assert lines(await told(stream))[-2:] == ["SC(executing>completed)", "ENGINE_COMPLETED"]


async def test_a_pause_from_another_task_while_a_task_runs() -> None:
    work = Work(held=("a",))
    engine = made(execute=work)
    seen: list[EngineEvent] = []
    paused = asyncio.Event()

    async def consume() -> None:
        async for event in engine.run("goal"):
            seen.append(event)
            if line(event) == "ENGINE_PAUSED":
                paused.set()

    consuming = asyncio.ensure_future(consume())
    await work.begun["a"].wait()
    assert engine.pause() is True
    assert engine.state == "paused"
    assert "ENGINE_PAUSED" not in lines(seen)
    work.gates["a"].set()
    await paused.wait()
    assert engine.resume() is True
    await consuming
    assert lines(seen)[-1] == "ENGINE_COMPLETED"


async def test_a_failing_task_while_a_pause_is_wanted_is_an_error() -> None:
    engine = made(execute=Work(failing=("a",)))
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    engine.pause()
    assert lines(await told(stream))[-1] == "ENGINE_ERROR"
    assert engine.state == "error"


# Errors


async def test_ce_15_a_coordinator_that_raises() -> None:
    engine = ConversationEngine(Coordinator(RuntimeError("boom")), Planner(), Work())
    events = await told(engine.run("goal"))
    assert lines(events) == [
        "SC(idle>receiving)",
        "SC(receiving>context_fetching)",
        "SC(context_fetching>error)",
        "ENGINE_ERROR",
    ]
    assert events[-1].data["error"] == "boom"
    assert events[-1].data["phase"] == "context_fetching"
    assert engine.state == "error"


async def test_a_planner_that_raises() -> None:
    engine = ConversationEngine(Coordinator(), Planner(error=ValueError("no plan")), Work())
    events = await told(engine.run("goal"))
    assert lines(events)[-2:] == ["SC(decomposing>error)", "ENGINE_ERROR"]
    assert (events[-1].data["error"], events[-1].data["phase"]) == ("no plan", "decomposing")


async def test_a_task_that_raises_stops_the_engine_by_default() -> None:
    engine = made(execute=Work(failing=("a",)))
    events = await told(engine.run("goal"))
    assert lines(events)[-4:] == ["TASK_STARTED a", "TASK_FAILED a", "SC(executing>error)", "ENGINE_ERROR"]
    failed = data(events, "TASK_FAILED")[0]
    assert (failed["error"], failed["phase"]) == ("task broke", "executing")
    assert events[-1].data["phase"] == "executing"
    assert (engine.state, engine.completed_tasks) == ("error", 0)


async def test_a_task_that_raises_may_be_passed_over() -> None:
    engine = made(execute=Work(failing=("a",)), on_task_error="continue")
    events = await told(engine.run("goal"))
    assert lines(events)[-6:] == [
        "TASK_STARTED a",
        "TASK_FAILED a",
        "TASK_STARTED b",
        "TASK_COMPLETED b",
        "SC(executing>completed)",
        "ENGINE_COMPLETED",
    ]
    assert events[-1].data["completed_tasks"] == 1
    assert 1 in [value for name, value in events[-1].data.items() if "failed" in name]


async def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises((ValueError, TypeError, agentnb.errors.AgentnbError)):
        made(on_task_error="shrug")


async def test_the_dependents_of_a_failed_task_do_not_run() -> None:
    work = Work(failing=("a",))
    tasks = [{"id": "a", "description": "A"}, {"id": "b", "description": "B", "dependencies": ["a"]}]
    events = await told(made(tasks, execute=work, on_task_error="continue").run("goal"))
    assert work.log == ["a"]
    assert lines(events)[-1] in ("ENGINE_COMPLETED", "ENGINE_ERROR")


async def test_the_core_run_says_that_the_engine_failed() -> None:
    run = ConversationEngine(Coordinator(RuntimeError("boom")), Planner(), Work()).start("goal")
    with pytest.raises(agentnb.errors.AgentnbError, match="boom"):
        await run
    assert run.stop_reason == "error"


# Reset, again, close


async def test_run_after_completed_wants_a_reset() -> None:
    engine = made()
    await told(engine.run("goal"))
    with pytest.raises(agentnb.errors.AgentnbError):
        await told(engine.run("goal"))
    assert (engine.state, engine.completed_tasks) == ("completed", 2)
    engine.reset()
    assert (engine.state, engine.total_tasks, engine.completed_tasks, engine.current_progress) == ("idle", 0, 0, 0.0)
    await told(engine.run("goal"))
    assert engine.current_progress == 1.0


async def test_run_after_an_error_wants_a_reset() -> None:
    coordinator = Coordinator(RuntimeError("boom"))
    engine = ConversationEngine(coordinator, Planner(), Work())
    await told(engine.run("goal"))
    with pytest.raises(agentnb.errors.AgentnbError):
        await told(engine.run("goal"))
    engine.reset()
    coordinator.error = None
    assert lines(await told(engine.run("goal")))[-1] == "ENGINE_COMPLETED"


async def test_a_second_run_beside_the_first_is_refused() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    with pytest.raises(agentnb.errors.AgentnbError):
        await told(engine.run("other"))
    assert lines(await told(stream))[-1] == "ENGINE_COMPLETED"


async def test_reset_while_running_is_refused_and_changes_nothing() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    with pytest.raises(agentnb.errors.AgentnbError):
        engine.reset()
    assert lines(await told(stream))[-1] == "ENGINE_COMPLETED"
    assert engine.completed_tasks == 2


async def test_reset_of_an_idle_engine_is_harmless() -> None:
    engine = made()
    engine.reset()
    assert engine.state == "idle"


async def test_closing_the_stream_ends_the_task_and_the_state_says_so() -> None:
    work = Work(held=("a",))
    engine = made(execute=work)
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    waiting = asyncio.ensure_future(anext(stream))
    await work.begun["a"].wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await stream.aclose()
    assert work.log == ["a", "a closed"]
    assert engine.state == "error"
    engine.reset()
    assert engine.state == "idle"


async def test_closing_while_paused_ends_too() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    engine.pause()
    await until(stream, "ENGINE_PAUSED")
    await stream.aclose()
    assert engine.state == "error"


async def test_an_engine_can_be_cancelled() -> None:
    work = Work(held=("a",))
    engine = made(execute=work)
    seen: list[EngineEvent] = []

    async def consume() -> None:
        async for event in engine.run("goal"):
            seen.append(event)

    consuming = asyncio.ensure_future(consume())
    await work.begun["a"].wait()
    engine.cancel("enough")
    await consuming
    assert work.log == ["a", "a closed"]
    assert lines(seen)[-4:] == ["TASK_STARTED a", "TASK_FAILED a", "SC(executing>error)", "ENGINE_ERROR"]
    assert engine.state == "error"


# Snapshots


async def test_the_snapshot_has_the_fields_of_the_design() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_COMPLETED a")
    kept = as_json(engine.create_snapshot())
    assert (kept["state"], kept["progress"], kept["completed_tasks"], kept["total_tasks"]) == ("executing", 0.5, 1, 2)
    assert [task["id"] for task in kept["tasks"]] == ["a", "b"]
    assert all({"id", "description", "status", "priority"} <= set(task) for task in kept["tasks"])
    await stream.aclose()


async def test_ce_12_a_new_engine_goes_on_with_what_is_left() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    engine.pause()
    await until(stream, "ENGINE_PAUSED")
    kept = as_json(engine.create_snapshot())
    await stream.aclose()
    assert kept["state"] == "paused"
    work = Work()
    again = ConversationEngine(Coordinator(), Planner(), work)
    assert again.restore_from_snapshot(kept) is True
    assert (again.state, again.current_progress, again.total_tasks, again.completed_tasks) == ("paused", 0.5, 2, 1)
    events = await told(again.continue_())
    assert work.log == ["b"]
    assert lines(events)[-4:] == [
        "TASK_STARTED b",
        "TASK_COMPLETED b",
        "SC(executing>completed)",
        "ENGINE_COMPLETED",
    ]
    assert (events[-1].data["total_tasks"], events[-1].data["completed_tasks"]) == (2, 2)
    assert again.current_progress == 1.0
    assert [task["result"] for task in as_json(again.create_snapshot())["tasks"]] == ["A", "B"]


async def test_a_bare_engine_restores_and_continues() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_COMPLETED a")
    kept = as_json(engine.create_snapshot())
    await stream.aclose()
    again = ConversationEngine()
    assert again.restore_from_snapshot(kept) is True
    events = await told(again.continue_())
    assert data(events, "TASK_COMPLETED") == [{"task_id": "b", "result": "B", "progress": 1.0}]


@pytest.mark.parametrize("at", range(15))
async def test_a_snapshot_after_any_event_continues_to_the_same_end(at: int) -> None:
    engine = made()
    stream = engine.run("goal")
    seen = [await anext(stream) for _ in range(at + 1)]
    kept = as_json(engine.create_snapshot())
    await stream.aclose()
    work = Work()
    again = ConversationEngine(Coordinator(), Planner(), work)
    assert again.restore_from_snapshot(kept) is True
    done = [each["task_id"] for each in data(seen, "TASK_COMPLETED")]
    events = await told(again.continue_())
    assert again.state == "completed"
    assert again.current_progress == 1.0
    assert work.log == [name for name in ("a", "b") if name not in done]
    if lines(seen)[-1] != "ENGINE_COMPLETED":
        assert lines(events)[-1] == "ENGINE_COMPLETED"


async def test_a_task_that_was_running_runs_again() -> None:
    held = Work(held=("a",))
    engine = made(execute=held)
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    waiting = asyncio.ensure_future(anext(stream))
    await held.begun["a"].wait()
    kept = as_json(engine.create_snapshot())
    held.gates["a"].set()
    await waiting
    await stream.aclose()
    assert [task["status"] for task in kept["tasks"]] == ["running", "pending"]
    work = Work()
    again = made(execute=work)
    again.restore_from_snapshot(kept)
    await told(again.continue_())
    assert work.log == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: None,
        lambda kept: "text",
        lambda kept: [],
        lambda kept: {},
        lambda kept: {**kept, "state": "dancing"},
        lambda kept: {**kept, "tasks": "none"},
        lambda kept: {**kept, "tasks": [{"colour": "red"}]},
        lambda kept: {**kept, "tasks": [*kept["tasks"], {"id": "z", "status": "strange"}]},
        lambda kept: {name: value for name, value in kept.items() if name != "state"},
        lambda kept: {name: value for name, value in kept.items() if name != "tasks"},
    ],
)
async def test_a_malformed_snapshot_is_refused_and_changes_nothing(change: Any) -> None:
    engine = made()
    await told(engine.run("goal"))
    broken = change(as_json(engine.create_snapshot()))
    again = made()
    with contextlib.suppress(agentnb.errors.AgentnbError):
        assert again.restore_from_snapshot(broken) is False
    assert (again.state, again.total_tasks, again.completed_tasks) == ("idle", 0, 0)
    assert lines(await told(again.run("goal")))[-1] == "ENGINE_COMPLETED"


async def test_the_seeds_own_snapshot_can_be_restored() -> None:
    """Only the fields of the design: state, progress, tasks of four fields, counters."""
    kept = {
        "state": "paused",
        "progress": 0.5,
        "tasks": [
            {"id": "a", "description": "A", "status": "completed", "priority": 1},
            {"id": "b", "description": "B", "status": "pending", "priority": 2},
        ],
        "completed_tasks": 1,
        "total_tasks": 2,
    }
    work = Work()
    engine = made(execute=work)
    assert engine.restore_from_snapshot(kept) is True
    assert (engine.state, engine.current_progress) == ("paused", 0.5)
    await told(engine.continue_())
    assert work.log == ["b"]


async def test_a_restored_paused_engine_may_be_resumed_and_then_continued() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    engine.pause()
    await until(stream, "ENGINE_PAUSED")
    kept = engine.create_snapshot()
    await stream.aclose()
    again = made()
    again.restore_from_snapshot(kept)
    assert again.resume() is True
    assert again.state == "executing"
    assert data(await told(again.continue_()), "TASK_STARTED") == [{"task_id": "b"}]


async def test_restoring_over_a_running_engine_is_refused() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_COMPLETED a")
    kept = engine.create_snapshot()
    with contextlib.suppress(agentnb.errors.AgentnbError):
        assert engine.restore_from_snapshot(kept) is False
    assert lines(await told(stream))[-1] == "ENGINE_COMPLETED"


async def test_continue_of_an_idle_engine_is_refused() -> None:
    with pytest.raises(agentnb.errors.AgentnbError):
        await told(made().continue_())


async def test_a_snapshot_of_an_idle_engine_restores() -> None:
    again = made()
    assert again.restore_from_snapshot(as_json(made().create_snapshot())) is True
    assert again.state == "idle"
    assert lines(await told(again.run("goal")))[-1] == "ENGINE_COMPLETED"


async def test_a_snapshot_of_a_completed_engine_keeps_everything() -> None:
    engine = made()
    await told(engine.run("goal"))
    again = made()
    again.restore_from_snapshot(as_json(engine.create_snapshot()))
    assert (again.state, again.current_progress, again.completed_tasks) == ("completed", 1.0, 2)
    again.reset()
    assert lines(await told(again.run("goal")))[-1] == "ENGINE_COMPLETED"


async def test_the_snapshot_is_a_copy() -> None:
    engine = made()
    stream = engine.run("goal")
    await until(stream, "TASK_COMPLETED a")
    kept = engine.create_snapshot()
    before = json.dumps(kept)
    await told(stream)
    assert json.dumps(kept) == before


# A loop for each task


def worker(script: list[Any], **options: Any) -> Agent:
    @tool(**options)
    async def press(button: str) -> str:
        return f"pressed {button}"

    return Agent(ScriptedLLM(script), [press])


def pressing(identity: str, then: str) -> list[Any]:
    return [
        [{"type": "tool_call", "id": identity, "name": "press", "arguments": {"button": "red"}}],
        [{"type": "text_delta", "content": then}],
    ]


async def test_a_loop_executes_the_tasks_and_its_events_are_nested() -> None:
    engine = made(execute=worker([*pressing("1", "did a"), *pressing("2", "did b")]))
    run = engine.start("goal")
    await run
    inside = [event.type for event in run.events if event.path]
    assert [inside.count(type) for type in ("run_start", "call_end", "run_end")] == [2, 2, 2]
    assert run.stop_reason == "completed"


async def test_the_stream_of_an_engine_over_a_loop_is_the_same_as_over_a_function() -> None:
    engine = made(execute=worker([*pressing("1", "did a"), *pressing("2", "did b")]))
    events = await told(engine.run("goal"))
    assert [each["result"] for each in data(events, "TASK_COMPLETED")] == ["did a", "did b"]
    assert lines(events)[:9] == PREFIX


async def test_an_approval_inside_a_task_is_pending_on_the_run() -> None:
    run = made(execute=worker([*pressing("1", "did a"), *pressing("2", "did b")], approve=True)).start("goal")
    for _ in range(2):
        while not run.pending:
            assert await run.step()
        assert run.pending[0].arguments == {"button": "red"}
        run.approve(run.pending[0].id)
    await run
    assert run.stop_reason == "completed"


async def test_a_pause_in_mid_task_of_a_loop_is_told_and_taken_back() -> None:
    engine = made(execute=worker([*pressing("1", "did a"), *pressing("2", "did b")]))
    stream = engine.run("goal")
    await until(stream, "TASK_STARTED a")
    assert engine.pause() is True
    assert lines(await until(stream, "ENGINE_PAUSED"))[-2:] == ["SC(executing>paused)", "ENGINE_PAUSED"]
    assert engine.resume() is True
    events = await told(stream)
    assert lines(events)[-1] == "ENGINE_COMPLETED"
    assert len(data(events, "TASK_STARTED")) == 1


async def test_a_snapshot_in_mid_task_of_a_loop_goes_on_inside_it() -> None:
    run = made(execute=worker([*pressing("1", "did a"), *pressing("2", "did b")], approve=True)).start("goal")
    while not run.pending:
        await run.step()
    snapshot = agentnb.Snapshot.from_json(run.snapshot().to_json())
    run.cancel()
    rest = [*pressing("1", "did a")[1:], *pressing("2", "did b")]
    again = agentnb.restore(snapshot, made(execute=worker(rest, approve=True)))
    for _ in range(2):
        while not again.pending:
            assert await again.step()
        again.approve(again.pending[0].id)
    await again
    assert again.stop_reason == "completed"


async def test_a_loop_that_fails_fails_its_task() -> None:
    class Broken:
        async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
            raise RuntimeError("model down")
            yield

    engine = made(execute=Agent(Broken()))
    events = await told(engine.run("goal"))
    assert lines(events)[-4:] == ["TASK_STARTED a", "TASK_FAILED a", "SC(executing>error)", "ENGINE_ERROR"]
    assert events[-1].data == {"error": "model down", "phase": "executing"}
    assert engine.state == "error"
