"""Loops as the ports of an engine: any loop can be the coordinator, make the plan or execute a task."""

from __future__ import annotations

import json
from typing import Any

import pytest

import agentnb
from agentnb import Agent, LimitReached, Loop, LoopAgent, RunFailed, SessionLoop, Snapshot, restore, tool
from agentnb.loops.conversation_engine import ConversationEngine
from agentnb.loops.loop_agent import InvocationContext
from agentnb.loops.want import say
from agentnb.testing import ScriptedLLM, call
from tests.loops.engines import PLANNED, TWO, WHOLE, World, portable, rest, take
from tests.loops.loop_agents import K

PLAN = json.dumps({"tasks": TWO})


@Loop.from_generator
def planner(goal: Any) -> Any:
    """Plan without a model: the input is the only task."""
    yield say("planning")
    return [{"id": "asked", "description": goal}]


@Loop.from_generator
def broken(goal: Any) -> Any:
    yield say("thinking")
    raise RuntimeError("boom")


async def execute(task: Any) -> str:
    return str(task.id).upper()


def last_request(llm: ScriptedLLM) -> str:
    return str(llm.requests[-1].messages[-1]["content"])


@Loop.from_generator
def repeats(task: str) -> Any:
    yield say("working")
    return task


# -- the planner -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", [SessionLoop, Agent])
async def test_a_loop_can_make_the_plan(design: Any) -> None:
    engine = ConversationEngine(llm=design(ScriptedLLM([PLAN])), execute=execute)
    assert await rest(engine.run("goal")) == WHOLE


async def test_a_planner_with_a_model_gets_the_goal_the_context_and_the_form_of_a_plan() -> None:
    llm = ScriptedLLM([PLAN])
    engine = ConversationEngine(lambda goal: {"rules": ["be brief"]}, SessionLoop(llm), execute)
    await rest(engine.run("make tea"))
    asked = last_request(llm)
    assert "make tea" in asked
    assert "be brief" in asked
    assert '"dependencies"' in asked


async def test_a_planner_without_a_model_gets_only_the_goal() -> None:
    said = await rest(ConversationEngine(llm=planner).run("make tea"))
    assert "COMPLETED asked=make tea(1.0)" in said


async def test_a_loop_agent_can_be_the_planner() -> None:
    class Plans(K):
        async def _run_async_impl(self, ctx: Any) -> Any:
            yield agentnb.loops.loop_agent.Event(author=self.name, content=PLAN)

    engine = ConversationEngine(llm=LoopAgent("planning", [Plans("p")], 1), execute=execute)
    assert await rest(engine.run("goal")) == WHOLE


async def test_a_planner_answer_that_is_not_a_plan_is_an_error_of_the_engine() -> None:
    engine = ConversationEngine(llm=SessionLoop(ScriptedLLM(["I would rather not."])), execute=execute)
    said = await rest(engine.run("goal"))
    assert said[:-1] == [*PLANNED[:4], "SC(decomposing>error)"]
    assert "I would rather not." in said[-1]


# -- the coordinator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (json.dumps({"rules": ["r"], "tools": ["s", "t"], "knowledge": []}), "CONTEXT(1,2,0)"),
        ("Water boils at 100 degrees.", "CONTEXT(0,0,1)"),
        ('{"temperature": 100}', "CONTEXT(0,0,1)"),
        ("", "CONTEXT(0,0,0)"),
    ],
)
async def test_a_loop_can_return_the_context(answer: str, counted: str) -> None:
    engine = ConversationEngine(SessionLoop(ScriptedLLM([answer])), World(), execute)
    assert await rest(engine.run("goal")) == [*WHOLE[:2], counted, *WHOLE[3:]]


async def test_the_answer_of_a_coordinator_is_passed_to_the_planner_and_the_tasks() -> None:
    told: list[Any] = []

    def do(task: Any, context: Any) -> str:
        told.append(context.knowledge)
        return "done"

    llm = ScriptedLLM([PLAN])
    coordinator = SessionLoop(ScriptedLLM(["Water boils at 100 degrees."]))
    await rest(ConversationEngine(coordinator, llm, do).run("goal"))
    assert "Water boils" in last_request(llm)
    assert told == [["Water boils at 100 degrees."]] * 2


@pytest.mark.parametrize(
    ("port", "phase", "before"), [("coordinator", "context_fetching", 2), ("llm", "decomposing", 4)]
)
async def test_a_failed_loop_is_an_error_in_its_phase(port: str, phase: str, before: int) -> None:
    said = await rest(World().engine(**{port: broken}).run("goal"))
    assert said[:-1] == [*PLANNED[:before], f"SC({phase}>error)"]
    assert "boom" in said[-1]
    assert said[-1].endswith(f",{phase})")


async def test_a_failed_loop_fails_its_task() -> None:
    engine = World().engine(execute=Agent(ScriptedLLM([RuntimeError("model down")])))
    said = await rest(engine.run("goal"))
    assert said[-4:] == [
        *("STARTED a", "FAILED a:model down:executing", "SC(executing>error)", "ERROR(model down,executing)"),
    ]
    assert engine.state == "error"


# -- all of them -----------------------------------------------------------------------------------------------------


def of_loops() -> ConversationEngine:
    return ConversationEngine(
        Agent(ScriptedLLM(["Water boils."]), name="librarian"),
        SessionLoop(ScriptedLLM([PLAN]), name="strategist"),
        SessionLoop(ScriptedLLM(["did A", "did B"]), name="worker"),
    )


async def test_the_events_of_each_loop_are_nested_under_its_name() -> None:
    run = of_loops().start("goal")
    await run
    assert list(dict.fromkeys(event.path for event in run.events)) == ["", "librarian", "strategist", "worker"]


async def test_a_pause_during_planning_takes_effect_after_the_plan() -> None:
    engine = of_loops()
    stream = engine.run("goal")
    await take(stream, "SC(context_fetching>decomposing)")
    run = engine.current_run
    assert run is not None
    run.watch(lambda event: event.path == "strategist" and event.type == "model_start" and engine.pause(anytime=True))
    assert await take(stream, "PAUSED(0.0)") == ["SC(decomposing>paused)", "PAUSED(0.0)"]
    assert [(event.path, event.type) for event in run.events][-3:-1] == [("strategist", "run_end"), ("", "call_end")]
    assert engine.resume()
    assert (await rest(stream))[-1] == "DONE(2,2)"


@tool(approve=True)
async def press(button: str) -> str:
    return f"pressed {button}"


def worker(*turns: Any) -> Agent:
    return Agent(ScriptedLLM(turns), [press])


def presses(id: str) -> list[Any]:
    return [call("press", {"button": "red"}, id=id)]


async def approve_the_next(run: Any) -> None:
    while not run.pending:
        assert await run.step()
    assert run.pending[0].arguments == {"button": "red"}
    run.approve(run.pending[0].id)


async def test_a_call_inside_a_task_that_needs_approval_is_pending_on_the_run() -> None:
    run = World().engine(execute=worker(presses("1"), "did a", presses("2"), "did b")).start("goal")
    await approve_the_next(run)
    await approve_the_next(run)
    assert await run == {"a": "did a", "b": "did b"}


async def test_a_run_saved_inside_a_task_continues_inside_it() -> None:
    run = World().engine(execute=worker(presses("1"))).start("goal")
    while not run.pending:
        assert await run.step()
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    run.cancel()
    again = restore(snapshot, World().engine(execute=worker("did a", presses("2"), "did b")))
    await approve_the_next(again)
    await approve_the_next(again)
    assert await again == {"a": "did a", "b": "did b"}


async def test_a_pause_inside_a_task_of_a_loop_takes_effect_after_the_task() -> None:
    engine = World().engine(execute=SessionLoop(ScriptedLLM(["did a", "did b"])))
    stream = engine.run("goal")
    await take(stream, "STARTED a")
    assert engine.pause()
    assert await take(stream, "PAUSED(0.5)") == ["COMPLETED a=did a(0.5)", "SC(executing>paused)", "PAUSED(0.5)"]
    assert engine.resume()
    assert [words for words in await rest(stream) if words.startswith("STARTED")] == ["STARTED b"]


async def test_a_snapshot_before_the_plan_repeats_the_request_of_the_planner_only() -> None:
    engine = of_loops()
    stream = engine.run("goal")
    await take(stream, "SC(context_fetching>decomposing)")
    snapshot = portable(engine.create_snapshot())
    await stream.aclose()
    llm = ScriptedLLM([PLAN])
    again = ConversationEngine(SessionLoop(ScriptedLLM([])), SessionLoop(llm), execute)
    assert again.restore_from_snapshot(snapshot)
    assert (await rest(again.continue_()))[-1] == "DONE(2,2)"
    assert "Water boils." in last_request(llm)


async def test_the_error_of_a_failed_planner_is_raised() -> None:
    with pytest.raises(RunFailed, match="boom"):
        await ConversationEngine(llm=broken).start("goal")


# -- the executor ----------------------------------------------------------------------------------------------------


async def test_a_loop_that_executes_a_task_gets_the_context() -> None:
    llm = ScriptedLLM(["done"])
    engine = ConversationEngine(lambda goal: {"rules": ["be brief"]}, execute=SessionLoop(llm))
    await rest(engine.run("make tea"))
    asked = last_request(llm)
    assert asked.startswith("make tea")
    assert "be brief" in asked


def never_done() -> Agent:
    return Agent(ScriptedLLM([[call("look")]] * 9), {"look": lambda: "nothing"}, max_iterations=2, name="worker")


@pytest.mark.parametrize("position", range(10, 14))
async def test_an_engine_closed_while_an_agent_executes_a_task_can_be_restored(position: int) -> None:
    def engine() -> ConversationEngine:
        return ConversationEngine(llm=World(), execute=Agent(ScriptedLLM(["done", "done"])))

    whole = await rest(engine().run("goal"))
    closed, again = engine(), engine()
    stream = closed.run("goal")
    said = await take(stream, position)
    await stream.aclose()
    assert again.restore_from_snapshot(portable(closed.create_snapshot()))
    left = await rest(again.continue_())
    if said[-1].startswith("STARTED"):  # the task that was running runs again
        left.remove(said[-1])
    assert said + left == whole


async def test_a_task_whose_agent_reaches_its_limit_has_failed() -> None:
    engine = ConversationEngine(llm=planner, execute=never_done(), on_task_error="continue")
    said = await rest(engine.run("make tea"))
    assert [words for words in said if "2 times (max_iterations)" in words] == said[-3:-2]
    assert said[-3].startswith("FAILED asked")
    assert engine.completed_tasks == 0


async def test_an_agent_that_reaches_its_limit_in_a_loop_agent_raises_limit_reached() -> None:
    with pytest.raises(LimitReached, match="2 times"):
        await never_done().run("go")
    outer = LoopAgent("outer", [never_done()], 2)
    context = InvocationContext()
    with pytest.raises(LimitReached, match="2 times"):
        async for _ in outer.run_async(context):
            pass


async def test_a_loop_with_text_input_gets_the_task_and_earlier_results_as_one_text() -> None:
    world = World([{"id": "a", "description": "A"}, {"id": "b", "description": "B", "dependencies": ["a"]}])
    said = await rest(world.engine(execute=repeats).run("goal"))
    assert "COMPLETED b=B\n[a] came to: A(1.0)" in said


async def test_a_task_whose_loop_suspends_the_run_ends_before_the_engine() -> None:
    said = await rest(World().engine(execute=K("worker", pause=1)).run("goal"))
    assert said == [
        *PLANNED,
        *("STARTED a", "FAILED a:suspended:executing", "SC(executing>error)", "ERROR(suspended,executing)"),
    ]
