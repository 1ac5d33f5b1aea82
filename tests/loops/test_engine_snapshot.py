from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from agentnb import Snapshot, UsageError, restore
from agentnb.core.evolve import fold
from agentnb.errors import IllegalTransition
from agentnb.loops.conversation_engine import ConversationEngine, EngineState
from agentnb.loops.conversation_engine.stream import EngineProjection
from agentnb.testing import ScriptedLLM
from tests.loops.engines import WHOLE, World, boom, is_chain, notation, portable, rest, take, without_pauses
from tests.worlds import assert_folds, collect, payload, until


async def snapshot_at(position: int | str, world: World, **options: Any) -> Any:
    """Return the snapshot of an engine at a position of its stream, and the events before it."""
    engine = world.engine(**options)
    stream = engine.run("goal")
    said = await take(stream, position) if position else []
    snapshot = portable(engine.create_snapshot())
    await stream.aclose()
    return snapshot, said


async def paused_snapshot(world: World, **options: Any) -> Any:
    """Return the snapshot of an engine that was paused after its first task (CE-11)."""
    engine = world.engine(**options)
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    engine.pause()
    await take(stream, 3)
    assert engine.state is EngineState.PAUSED
    snapshot = portable(engine.create_snapshot())
    await stream.aclose()
    return snapshot


def restored(snapshot: Any, world: World, **options: Any) -> ConversationEngine:
    engine = world.engine(**options)
    assert engine.restore_from_snapshot(snapshot) is True
    return engine


# -- content (conversation_engine/SEMANTICS.md, 7. Snapshots) ---------------------------------------------------


async def test_a_snapshot_contains_state_progress_context_and_tasks() -> None:
    snapshot = await paused_snapshot(World(context={"rules": ["r"]}))
    assert snapshot["version"] == 1
    assert (snapshot["state"], snapshot["previous_state"]) == ("paused", "executing")
    assert (snapshot["progress"], snapshot["completed_tasks"], snapshot["total_tasks"]) == (0.5, 1, 2)
    assert snapshot["user_input"] == "goal"
    assert snapshot["context"] == {"rules": ["r"], "tools": [], "knowledge": []}
    keys = ("id", "description", "status", "priority", "result", "type", "dependencies")
    assert [[task[key] for key in keys] for task in snapshot["tasks"]] == [
        ["a", "A", "completed", 1, "A", "generic", []],
        ["b", "B", "pending", 2, None, "generic", []],
    ]


async def test_a_snapshot_is_a_copy() -> None:
    engine = World().engine()
    stream = engine.run("goal")
    await take(stream, "COMPLETED a=A(0.5)")
    snapshot = engine.create_snapshot()
    snapshot["tasks"].clear()
    snapshot["context"]["rules"].append("x")
    later = engine.create_snapshot()
    assert len(later["tasks"]) == 2
    assert later["context"]["rules"] == []
    before = portable(later)
    assert (await rest(stream))[-1] == "DONE(2,2)"
    assert portable(later) == before


def test_an_idle_engine_has_a_snapshot() -> None:
    engine = ConversationEngine()
    snapshot = portable(engine.create_snapshot())
    assert (snapshot["state"], snapshot["tasks"], snapshot["progress"]) == ("idle", [], 0.0)
    again = ConversationEngine()
    assert again.restore_from_snapshot(snapshot) is True
    assert again.state is EngineState.IDLE
    with pytest.raises(UsageError):
        again.continue_()


# -- continuing ------------------------------------------------------------------------------------------------------


async def test_ce_12_a_new_engine_continues_from_a_snapshot() -> None:
    snapshot = await paused_snapshot(World())
    world = World()
    engine = restored(snapshot, world)
    assert (engine.state, engine.current_progress) == ("paused", 0.5)
    assert (engine.total_tasks, engine.completed_tasks) == (2, 1)
    said = await rest(engine.continue_())
    assert said == ["SC(paused>executing)", "RESUMED(0.5)", *WHOLE[-4:]]
    assert world.asked == ["b"]
    assert [task.result for task in engine.tasks] == ["A", "B"]
    assert (engine.current_progress, engine.state) == (1.0, "completed")


async def test_an_engine_without_arguments_continues_with_the_remaining_tasks() -> None:
    snapshot, _ = await snapshot_at("COMPLETED a=A(0.5)", World())
    engine = ConversationEngine()
    assert engine.restore_from_snapshot(snapshot) is True
    assert await rest(engine.continue_()) == ["STARTED b", "COMPLETED b=B(1.0)", *WHOLE[-2:]]


async def test_a_restored_engine_can_be_resumed_before_it_continues() -> None:
    engine = restored(await paused_snapshot(World()), World())
    assert engine.pause() is False
    assert engine.resume() is True
    assert engine.state is EngineState.EXECUTING
    assert engine.resume() is False
    assert await rest(engine.continue_()) == ["SC(paused>executing)", "RESUMED(0.5)", *WHOLE[-4:]]


async def test_a_restored_engine_must_be_continued_or_reset() -> None:
    snapshot = await paused_snapshot(World())
    engine = restored(snapshot, World())
    with pytest.raises(IllegalTransition):
        engine.run("goal")
    first, second = engine.continue_(), engine.continue_()
    await take(first, "STARTED b")
    with pytest.raises(UsageError):
        await anext(second)
    with pytest.raises(UsageError):
        engine.continue_()
    with pytest.raises(UsageError, match="running"):
        engine.restore_from_snapshot(snapshot)
    assert (await rest(first))[-1] == "DONE(2,2)"
    engine = restored(snapshot, World())
    engine.reset()
    assert engine.state is EngineState.IDLE
    assert await rest(engine.run("goal")) == WHOLE


@pytest.mark.parametrize("position", range(1, len(WHOLE) + 1))
async def test_a_snapshot_at_any_event_continues_with_the_remaining_events(position: int) -> None:
    world = World()
    snapshot, said = await snapshot_at(position, world)
    done = list(world.asked)
    again = World()
    engine = restored(snapshot, again)
    assert portable(engine.create_snapshot()) | {"timestamp": 0} == snapshot | {"timestamp": 0}
    left = await rest(engine.continue_())
    if said[-1].startswith("STARTED"):  # what was running runs again
        left.remove(said[-1])
    assert said + left == WHOLE
    assert done + again.asked == ["context", "plan", "a", "b"]
    assert (engine.state, engine.current_progress) == ("completed", 1.0)
    assert [task.result for task in engine.tasks] == ["A", "B"]


@pytest.mark.parametrize("position", range(1, len(WHOLE) - 1))
async def test_an_engine_whose_stream_was_closed_can_be_restored(position: int) -> None:
    world = World()
    engine = world.engine()
    stream = engine.run("goal")
    said = await take(stream, position)
    await stream.aclose()
    snapshot = portable(engine.create_snapshot())
    assert (snapshot["state"], snapshot["cancelled"]) == ("error", True)
    again = World()
    left = await rest(restored(snapshot, again).continue_())
    if said[-1].startswith("STARTED"):
        left.remove(said[-1])
    assert said + left == WHOLE
    assert world.asked + again.asked == ["context", "plan", "a", "b"]


async def paused_at(position: int) -> tuple[ConversationEngine, Any, list[str]]:
    """Return an engine on which a pause was requested at a position of its stream, the stream, and the events."""
    engine = World().engine()
    stream = engine.run("goal")
    said = await take(stream, position)
    assert engine.pause()
    return engine, stream, said


async def heard_by_a_new_engine(engine: ConversationEngine, said: list[str]) -> list[str]:
    """Return the given events and those of a new engine that continues from a snapshot of this engine."""
    left = await rest(restored(portable(engine.create_snapshot()), World()).continue_())
    running = said[-1] if said[-1].startswith("STARTED") else None
    again = left.index(running) if running in left else None  # what was running runs again
    return [*said, *(words for number, words in enumerate(left) if number != again)]


PAUSABLE = range(6, len(WHOLE) - 1)
"""The positions after which an engine can be paused."""


@pytest.mark.parametrize("position", PAUSABLE)
async def test_a_snapshot_during_a_requested_pause_is_restored_as_paused(position: int) -> None:
    engine, stream, said = await paused_at(position)
    state = next(words for words in reversed(said) if words.startswith("SC("))[3:-1].split(">")[1]
    snapshot = portable(engine.create_snapshot())
    assert (snapshot["state"], snapshot["previous_state"]) == ("paused", state)
    again = restored(snapshot, World())
    assert (again.state, again.current_progress) == ("paused", snapshot["progress"])
    heard = await heard_by_a_new_engine(engine, said)
    assert without_pauses(heard) == WHOLE
    assert sum(words.startswith("PAUSED") for words in heard) == 1
    await stream.aclose()


@pytest.mark.parametrize("pulled", [0, 1, 2])
@pytest.mark.parametrize("position", PAUSABLE)
async def test_a_snapshot_after_resume_keeps_the_pause_events_not_yet_consumed(position: int, pulled: int) -> None:
    engine, stream, said = await paused_at(position)
    while not said[-1].startswith("PAUSED"):
        said += await take(stream, 1)
    assert engine.resume()
    said += await take(stream, pulled)
    heard = await heard_by_a_new_engine(engine, said)
    assert without_pauses(heard) == WHOLE
    assert is_chain(heard)
    await stream.aclose()


@pytest.mark.parametrize("position", PAUSABLE)
async def test_an_engine_closed_during_a_pause_is_resumed_when_restored(position: int) -> None:
    engine, stream, said = await paused_at(position)
    while not said[-1].startswith("PAUSED"):
        said += await take(stream, 1)
    await stream.aclose()
    heard = await heard_by_a_new_engine(engine, said)
    assert without_pauses(heard) == WHOLE
    assert is_chain(heard)


async def test_a_snapshot_of_a_restored_and_resumed_engine_keeps_the_resume() -> None:
    engine = restored(await paused_snapshot(World()), World())
    assert engine.resume()
    again = restored(portable(engine.create_snapshot()), World())
    assert again.state is EngineState.EXECUTING
    assert await rest(again.continue_()) == ["SC(paused>executing)", "RESUMED(0.5)", *WHOLE[-4:]]


async def test_a_snapshot_keeps_the_events_that_the_consumer_has_not_consumed() -> None:
    engine = restored(await paused_snapshot(World()), World())
    assert engine.current_run is not None
    await engine.current_run
    stream = engine.continue_()
    said = await take(stream, 3)
    again = restored(portable(engine.create_snapshot()), World())
    assert said + await rest(again.continue_()) == ["SC(paused>executing)", "RESUMED(0.5)", *WHOLE[-4:]]
    await stream.aclose()


async def test_a_failed_task_stays_failed_after_a_restore() -> None:
    world = World()
    world.during["a"] = boom
    options = {"on_task_error": "continue"}
    snapshot, _ = await snapshot_at("STARTED b", world, **options)
    assert [task["status"] for task in snapshot["tasks"]] == ["failed", "running"]
    assert snapshot["tasks"][0]["error"] == "boom"
    again = World()
    assert await rest(restored(snapshot, again, **options).continue_()) == [
        *("STARTED b", "COMPLETED b=B(0.5)", "SC(executing>completed)", "DONE(2,1,1)"),
    ]
    assert again.asked == ["b"]


async def test_a_restored_engine_ends_with_the_error_of_its_failed_task() -> None:
    world = World()
    world.during["a"] = boom
    snapshot, _ = await snapshot_at("FAILED a:boom:executing", world)
    engine = restored(snapshot, World())
    assert await rest(engine.continue_()) == ["SC(executing>error)", "ERROR(boom,executing)"]


async def test_a_failure_has_precedence_over_a_pause_in_a_snapshot() -> None:
    world = World()
    world.during["a"] = boom
    engine = world.engine()
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    assert engine.pause()
    await take(stream, "FAILED a:boom:executing")
    assert engine.state is EngineState.EXECUTING
    assert engine.pause() is False
    again = restored(portable(engine.create_snapshot()), World())
    assert await rest(again.continue_()) == ["SC(executing>error)", "ERROR(boom,executing)"]
    await stream.aclose()


async def test_a_restored_engine_emits_the_error_that_was_not_consumed() -> None:
    world = World()
    world.during["a"] = boom
    snapshot, _ = await snapshot_at("SC(executing>error)", world)
    again = restored(snapshot, World())
    assert again.state is EngineState.ERROR
    assert await rest(again.continue_()) == ["ERROR(boom,executing)"]


@pytest.mark.parametrize(
    ("fails", "state"), [("context", "context_fetching"), ("plan", "decomposing"), ("a", "executing")]
)
async def test_a_failed_engine_is_restored_as_failed(fails: str, state: str) -> None:
    world = World()
    world.during[fails] = boom
    engine = world.engine()
    await collect(engine.run("goal"))
    snapshot = portable(engine.create_snapshot())
    assert (snapshot["state"], snapshot["previous_state"]) == ("error", state)
    assert snapshot["error"]["message"] == "boom"
    again = restored(snapshot, World())
    assert again.state is EngineState.ERROR
    assert portable(again.create_snapshot()) | {"timestamp": 0} == snapshot | {"timestamp": 0}
    with pytest.raises(IllegalTransition, match="failed"):
        again.continue_()
    again.reset()
    assert await rest(again.run("goal")) == WHOLE


async def test_a_plan_without_tasks_is_not_requested_again() -> None:
    snapshot, _ = await snapshot_at("DECOMPOSED()", World([]))
    again = World()
    assert (await rest(restored(snapshot, again).continue_()))[-1] == "DONE(0,0)"
    assert again.asked == []


async def test_a_restored_engine_sends_the_model_request_for_the_plan() -> None:
    llm = ScriptedLLM(['{"tasks": [{"id": "b", "priority": 2}, {"id": "a", "priority": 1}]}'])
    snapshot, said = await snapshot_at("SC(context_fetching>decomposing)", World())
    assert said + await rest(restored(snapshot, World(), llm=llm).continue_()) == WHOLE
    llm.assert_complete()


async def test_an_engine_can_be_restored_twice() -> None:
    snapshot = await paused_snapshot(World([{"id": id} for id in "abc"]))
    assert snapshot["progress"] == pytest.approx(1 / 3)
    engine = restored(snapshot, World())
    stream = engine.continue_()
    await take(stream, "STARTED c")
    second = portable(engine.create_snapshot())
    await stream.aclose()
    world = World()
    assert (await rest(restored(second, world).continue_()))[-1] == "DONE(3,3)"
    assert world.asked == ["c"]


# -- invalid snapshots -----------------------------------------------------------------------------------------------

PUBLISHED = {
    "state": "paused",
    "progress": 0.5,
    "tasks": [
        {"id": "b", "description": "B", "status": "pending", "priority": 2},
        {"id": "a", "description": "A", "status": "completed", "priority": 1},
    ],
    "completed_tasks": 1,
    "total_tasks": 2,
}


async def test_a_snapshot_of_the_published_design_can_be_restored() -> None:
    world = World()
    engine = restored(PUBLISHED, world)
    assert (engine.state, engine.current_progress, engine.completed_tasks) == ("paused", 0.5, 1)
    assert await rest(engine.continue_()) == ["SC(paused>executing)", "RESUMED(0.5)", *WHOLE[-4:]]
    assert world.asked == ["b"]


@pytest.mark.parametrize("state", ["decomposing", "scheduling", "executing"])
async def test_a_completed_task_does_not_run_again_in_any_state_of_the_engine(state: str) -> None:
    world = World()
    engine = restored({**PUBLISHED, "state": state}, world)
    assert (engine.current_progress, engine.completed_tasks) == (0.5, 1)
    assert (await rest(engine.continue_()))[-4:] == WHOLE[-4:]
    assert world.asked == ["b"]


async def test_a_task_with_the_status_running_runs_again() -> None:
    snapshot = copy.deepcopy(PUBLISHED)
    snapshot["tasks"][0]["status"] = "running"  # type: ignore[index]
    world = World()
    await collect(restored(snapshot, world).continue_())
    assert world.asked == ["b"]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "bogus"},
        {"state": None},
        {"tasks": None},
        {"tasks": "ab"},
        {"tasks": [7]},
        {"tasks": [{"description": "no id"}], "completed_tasks": 0, "total_tasks": 1},
        {"tasks": [{"id": "x", "status": "pending"}], "completed_tasks": 0, "total_tasks": 1},
        {"tasks": [{"id": "a", "description": "", "status": "??"}], "completed_tasks": 0, "total_tasks": 1},
        {"tasks": [{"id": "a", "description": ""}, {"id": "a", "description": ""}], "completed_tasks": 0},
        {"tasks": [{"id": "a", "description": "", "dependencies": ["b"]}], "completed_tasks": 0, "total_tasks": 1},
        {"total_tasks": 3},
        {"total_tasks": "many"},
        {"completed_tasks": 2},
        {"completed_tasks": -1},
        {"progress": 4 / 3},
        {"progress": "half"},
        {"version": 99},
        {"state": "completed"},
        {"previous_state": "paused"},
        {"state": "receiving"},
        {"state": "idle"},
        {"undelivered": [{"event_type": "??"}]},
        {"context": [1]},
        {"user_input": object()},
        {"user_input": {"content": "no role"}},
    ],
)
def test_an_invalid_snapshot_is_refused_and_changes_nothing(change: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = restored(PUBLISHED, World())
    before = portable(engine.create_snapshot()) | {"timestamp": 0}
    with caplog.at_level(logging.WARNING, "agentnb"):
        assert engine.restore_from_snapshot({**PUBLISHED, **change}) is False
    assert "refused" in caplog.text
    assert portable(engine.create_snapshot()) | {"timestamp": 0} == before


def test_a_snapshot_that_contains_itself_is_refused() -> None:
    snapshot: dict[str, Any] = copy.deepcopy(PUBLISHED)
    snapshot["context"] = snapshot
    assert ConversationEngine().restore_from_snapshot(snapshot) is False


@pytest.mark.parametrize("given", [None, "", 7, [], {}, {"state": "paused"}, {"tasks": []}])
def test_a_value_that_is_not_a_snapshot_is_refused(given: Any) -> None:
    engine = ConversationEngine()
    assert engine.restore_from_snapshot(given) is False
    assert engine.state is EngineState.IDLE


# -- snapshots of the core -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [False, True])
async def test_a_run_restored_from_its_own_snapshot_at_any_event_has_the_same_result(model: bool) -> None:
    def engine(world: World, asked: bool = False) -> ConversationEngine:
        llm = ScriptedLLM([] if asked else ['{"tasks": [{"id": "b", "priority": 2}, {"id": "a", "priority": 1}]}'])
        return world.engine(llm=llm) if model else world.engine()

    whole = engine(World()).start("goal")
    assert await whole == {"a": "A", "b": "B"}
    for position in range(1, len(whole.events) + 1):
        prefix = whole.events[:position]
        asked = "model_end" in [event.type for event in prefix]
        world = World()
        again = restore(Snapshot.from_json(Snapshot.of(prefix).to_json()), engine(world, asked))
        state = fold(prefix)
        in_flight = state.model == "asked" or any(call.status == "running" for call in state.open.values())
        assert await again == {"a": "A", "b": "B"}
        assert_folds(again)
        ended = {event.call_id for event in prefix if event.type == "call_end"}
        assert {"context": "get_context", "plan": "decompose_goal", "a": "execute a", "b": "execute b"}.keys() >= set(
            world.asked
        )
        for asked_for, call_id in [("context", "get_context"), ("a", "execute a"), ("b", "execute b")]:
            assert world.asked.count(asked_for) == (call_id not in ended)
        if not in_flight:
            assert [payload(event) for event in again.events] == [payload(event) for event in whole.events]


async def test_the_events_of_a_recording_are_those_of_the_live_run() -> None:
    engine = World().engine()
    live = await collect(engine.run("goal"))
    assert engine.current_run is not None
    recording = Snapshot.from_json(engine.current_run.snapshot().to_json())
    projection = EngineProjection()
    assert [said for event in recording.events for said in projection.translate(event)] == live


async def test_a_run_started_with_start_can_be_paused_and_restored() -> None:
    world = World()
    run = world.engine().start("goal")
    run.watch(lambda event: event.type == "call_start" and event.name == "execute" and run.pause())
    run.play()
    await until(lambda: run.state.paused)
    again = restore(run.snapshot(), World().engine())
    run.resume()
    await until(lambda: run.state.paused)
    run.resume()
    assert await run == {"a": "A", "b": "B"}
    projection = EngineProjection()
    said = notation([event for fact in run.events for event in projection.translate(fact)])
    assert is_chain(said)
    assert said.count("SC(executing>paused)") == 2
    assert await again == {"a": "A", "b": "B"}
    assert world.ran == ["a", "b"]
