"""The designs' scenarios told otherwise: in other orders, twice, with nothing, in other alphabets."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

import agentnb
from agentnb import Agent, ConversationEngine, ExecutionLoop, SessionLoop, Snapshot, restore
from agentnb.loops.conversation_engine import EngineEventType, SubTask
from agentnb.loops.execution_loop import Call, Reject
from agentnb.loops.session_loop import MessageQueue
from tests.claims import Model, answered_once, asks, collect, says, short, words

# --- the execution loop -----------------------------------------------------------------------------------------------


async def fast() -> str:
    await asyncio.sleep(0.001)
    return "fast"


async def slow() -> str:
    await asyncio.sleep(0.01)
    return "slow"


async def fetch(u: str) -> dict[str, str]:
    return {"name": "Al"}


async def sum(p: dict[str, str]) -> str:
    return "S:" + p["name"]


async def omega() -> str:
    return "Ω"


async def echo(v: Any) -> Any:
    return {"v": v}


async def boom() -> None:
    raise RuntimeError("api down")


def call(name: str, path: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {"_tool": name, **arguments, **({"_outputPath": f"†{path}"} if path else {})}


def solution(*calls: dict[str, Any], output: Any = None) -> str:
    return json.dumps({"calls": calls, "output": output}, ensure_ascii=False)


def executing(*turns: Any, tools: Any = (fast, slow, fetch, sum, echo, boom), **options: Any) -> ExecutionLoop:
    options.setdefault("context", [{"type": "data", "kind": "input", "data": {"u": "alice"}}])
    return ExecutionLoop(Model(*turns), tools if isinstance(tools, dict) else list(tools), **options)


def told(events: list[Any]) -> list[str]:
    out = []
    for event in events:
        marks = [getattr(event, name, None) for name in ("n", "id", "phase", "count", "reason")]
        out.append(event.type + "".join(f":{mark}" for mark in marks if mark is not None))
    return out


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]])
async def test_el_02_in_every_order_and_with_an_output_in_the_same_answer(order: list[int]) -> None:
    steps = [
        call("fetch", "state.prof", u="†input.u"),
        call("sum", "state.summary", p="†state.prof"),
        call("echo", "state.last", v="†state.summary"),
    ]
    loop = executing(solution(*(steps[at] for at in order), output="done"))
    events = await collect(loop.run())
    assert loop.state == {"prof": {"name": "Al"}, "summary": "S:Al", "last": {"v": "S:Al"}}
    completed = [event.id for event in events if event.type == "call_completed"]
    assert completed == [f"c{order.index(step) + 1}" for step in range(3)]
    assert told(events)[-2:] == ["request_completed:1", "loop_completed:output"]


async def test_el_06_a_failure_goes_down_a_chain() -> None:
    steps = [call("echo", "state.c", v="†state.b"), call("echo", "state.b", v="†state.a"), call("boom", "state.a")]
    loop = executing(solution(*steps), solution(output="x"))
    events = await collect(loop.run())
    failed = [line for line in told(events) if line.startswith(("call_failed", "errors"))]
    assert failed[0] == "call_failed:c3:runtime"
    assert sorted(failed[1:3]) == ["call_failed:c1:structural", "call_failed:c2:structural"]
    assert failed[3:] == ["errors_appended:3"]


async def test_two_failures_at_once_are_two_errors() -> None:
    loop = executing(solution(call("boom"), call("boom"), call("fast", "state.a")), solution(output="x"))
    events = await collect(loop.run())
    assert told(events).count("errors_appended:2") == 1
    assert loop.state == {"a": "fast"}


async def test_a_diamond_runs_from_its_top() -> None:
    steps = [
        call("echo", "state.d", v="†state.b && †state.c"),
        call("echo", "state.b", v="†state.a"),
        call("echo", "state.c", v="†state.a"),
        call("fast", "state.a"),
    ]
    loop = executing(solution(*steps, output="x"))
    await collect(loop.run())
    assert loop.state["d"] == {"v": {"v": "fast"}}


async def test_kinds_and_keys_of_other_alphabets() -> None:
    context = [{"type": "data", "kind": "input", "data": {"ü": "☃"}}]
    loop = executing(solution(call("echo", "state.ключ", v="†input.ü"), output="ж"), context=context)
    await collect(loop.run())
    assert loop.state == {"ключ": {"v": "☃"}}
    assert loop.output == "ж"


async def test_a_dagger_is_escaped_by_another_and_means_nothing_inside_a_text() -> None:
    steps = [
        call("echo", "state.a", v="††input.u"),
        call("echo", "state.b", v="Hi †input.u"),
        call("echo", "state.c", v="‡state.a"),
    ]
    loop = executing(solution(*steps, output="x"))
    await collect(loop.run())
    assert loop.state == {"a": {"v": "†input.u"}, "b": {"v": "Hi †input.u"}, "c": {"v": "‡state.a"}}


@pytest.mark.parametrize("kind", ["data", "input", "state"])
async def test_what_is_written_is_found_under_its_kind(kind: str) -> None:
    steps = [call("fast", f"{kind}.n"), call("echo", "state.seen", v=f"†{kind}.n")]
    loop = executing(solution(*steps, output="x"))
    await collect(loop.run())
    assert loop.state["seen"] == {"v": "fast"}


async def test_no_request_at_all_where_none_is_allowed() -> None:
    loop = executing(solution(output=1), max_requests=0)
    assert told(await collect(loop.run())) == ["loop_completed:max_requests"]


async def test_tools_may_be_a_mapping() -> None:
    loop = executing(solution(call("fast", "state.a"), output=1), tools={"fast": fast})
    await collect(loop.run())
    assert loop.state == {"a": "fast"}


LATENT = {"_tool": "think", "type": "object", "properties": {"_output": {}}}


@pytest.mark.parametrize("value", [None, 0, "", "hm", {"a": []}])
async def test_a_latent_call_writes_what_the_model_gave_even_null(value: Any) -> None:
    steps = [
        {"_tool": "think", "_output": value, "_outputPath": "†state.a"},
        call("echo", "state.b", v="†state.a"),
    ]
    loop = executing(solution(*steps, output="x"), tools=[echo, LATENT])
    await collect(loop.run())
    assert loop.state == {"a": value, "b": {"v": value}}


async def test_a_latent_call_without_its_output_is_a_structural_error() -> None:
    loop = executing(solution({"_tool": "think", "_outputPath": "†state.a"}, output="x"), tools=[LATENT])
    assert "call_failed:c1:structural" in told(await collect(loop.run()))


@pytest.mark.parametrize(
    "replacement",
    [
        {"_tool": "fast"},
        Call("fast"),
        Call(tool="fast"),
        Call(_tool="fast"),
        Call({"_tool": "fast"}),
        {"name": "fast", "arguments": {}},
    ],
    ids=["mapping", "name", "tool", "_tool", "fields", "as-models-call"],
)
async def test_confirm_may_put_another_call_in_the_place_of_one(replacement: Any) -> None:
    loop = executing(
        solution(call("slow", "state.a"), call("echo", "state.b", v="†state.a"), output="x"),
        confirm=lambda asked: replacement if asked.tool == "slow" else True,
    )
    await collect(loop.run())
    assert loop.state == {"a": "fast", "b": {"v": "fast"}}


@pytest.mark.parametrize("answer", [False, Reject("no"), Reject("")])
async def test_el_14_when_every_call_is_rejected(answer: Any) -> None:
    loop = executing(
        solution(call("fast", "state.a"), call("slow")), solution(output="x"), confirm=lambda asked: answer
    )
    events = told(await collect(loop.run()))
    assert events[-5:] == words(
        "errors_appended:2 request_completed:1 request_started:2 request_completed:2 loop_completed:output"
    )
    assert [line.split(":")[1] for line in events if line.startswith("call_rejected")] == ["c1", "c2"]
    assert loop.state == {}


async def test_the_model_is_told_the_errors_of_the_last_request_only() -> None:
    model = Model(solution(call("boom", "state.x")), solution(call("fast", "state.a")), solution(output="x"))
    loop = ExecutionLoop(model, [boom, fast])
    await collect(loop.run())
    shown = [json.dumps(context, ensure_ascii=False) for context in model.contexts]
    assert ["api down" in text for text in shown] == [False, True, False]
    assert "api down" in json.dumps(loop.context)


# --- the session -----------------------------------------------------------------------------------------------------


async def one() -> str:
    return "R1"


async def two() -> str:
    return "R2"


async def bad() -> str:
    raise ValueError("no")


def typed(x: int) -> int:
    return x


BATCH = asks(("t1", "one", {}), ("t2", "two", {}))
AFTER = "TE[t1,t2] TS M(user:S1) M(user:S2) M(A) TE[] AE(7)"
SKIPPED = "Skipped due to queued user message."


@pytest.mark.parametrize(
    ("mode", "tool_execution", "batch", "results"),
    [
        ("after_batch", "sequential", "XS(t1) XE(t1) M(result:t1) XS(t2) XE(t2) M(result:t2)", ["R1", "R2"]),
        ("after_batch", "parallel", "XS(t1) XS(t2) XE(t1) XE(t2) M(result:t1) M(result:t2)", ["R1", "R2"]),
        ("skip_pending", "sequential", "XS(t1) XE(t1) M(result:t1) XS(t2) XE(t2!) M(result:t2!)", ["R1", SKIPPED]),
        ("discard", "sequential", "XS(t1) XE(t1) XS(t2) XE(t2!) M(result:t1!) M(result:t2!)", [SKIPPED, SKIPPED]),
        ("discard", "parallel", "XS(t1) XS(t2) XE(t1) XE(t2) M(result:t1!) M(result:t2!)", [SKIPPED, SKIPPED]),
    ],
)
async def test_two_steering_messages_from_inside_the_first_tool(
    mode: Any, tool_execution: Any, batch: str, results: list[str]
) -> None:
    queue = MessageQueue()

    async def one() -> str:
        queue.add_steering("S1")
        queue.add_steering("S2")
        return "R1"

    loop = SessionLoop(
        Model(BATCH), [one, two], queue=queue, steering_mode=mode, tool_execution=tool_execution, drain="all"
    )
    said = short(await collect(loop.run("hi")))
    assert said == words(f"AS TS M(user:hi) M(A) {batch} {AFTER}")
    assert [message["content"] for message in loop.messages if message["role"] == "tool"] == results
    answered_once(loop.messages)


async def test_four_kinds_of_failure_in_one_batch_keep_the_source_order() -> None:
    calls = asks(("a", "bad", {}), ("b", "one", {}), ("c", "nowhere", {}), ("d", "typed", {"x": "no"}))
    loop = SessionLoop(Model(calls), [one, bad, typed])
    said = short(await collect(loop.run("hi")))
    assert [line for line in said if line.startswith("M(result")] == words(
        "M(result:a!) M(result:b) M(result:c!) M(result:d!)"
    )
    answered_once(loop.messages)


@pytest.mark.parametrize("prompt", ["", "ü ☃ ж", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]])
async def test_pi_01_with_prompts_of_every_kind(prompt: Any) -> None:
    said = short(await collect(SessionLoop(Model("x"), []).run(prompt)))
    contents = [prompt] if isinstance(prompt, str) else ["a", "b"]
    assert said == ["AS", "TS", *(f"M(user:{one})" for one in contents), "M(A)", "TE[]", f"AE({len(contents) + 1})"]


async def test_pi_01_when_the_model_says_nothing() -> None:
    assert short(await collect(SessionLoop(Model([]), []).run("hi"))) == words("AS TS M(user:hi) M(A) TE[] AE(2)")


@pytest.mark.parametrize("how", ["assign", "append", "extend"])
async def test_pi_20_continue_from_messages_that_were_brought_along(how: str) -> None:
    brought = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "name": "one", "arguments": {}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "R1"},
    ]
    model = Model("x")
    loop = SessionLoop(model, [one])
    if how == "assign":
        loop.messages = json.loads(json.dumps(brought))
    elif how == "append":
        for message in brought:
            loop.messages.append(message)  # type: ignore[arg-type]
    else:
        loop.messages.extend(brought)  # type: ignore[arg-type]
    assert short(await collect(loop.continue_())) == words("AS TS M(A) TE[] AE(1)")
    assert model.heard(0) == ["user:hi", "assistant", "t1"]
    assert [message["role"] for message in loop.messages] == ["user", "assistant", "tool", "assistant"]


async def test_pi_20_messages_may_be_added_after_a_run_too() -> None:
    model = Model("a", "b", "c")
    loop = SessionLoop(model, [])
    await collect(loop.run("hi"))
    loop.messages.append({"role": "user", "content": "more"})  # type: ignore[arg-type]
    assert short(await collect(loop.continue_())) == words("AS TS M(A) TE[] AE(1)")
    assert model.heard(1) == ["user:hi", "assistant", "user:more"]
    loop.messages.clear()
    with pytest.raises(agentnb.UsageError, match="No messages to continue from"):
        loop.continue_()
    await collect(loop.run("anew"))
    assert model.heard(2) == ["user:anew"]


@pytest.mark.parametrize(("drain", "said"), [("one-at-a-time", 2), ("all", 1)])
async def test_pi_20_an_answer_with_two_follow_ups(drain: Any, said: int) -> None:
    model = Model("a", "b", "c")
    loop = SessionLoop(model, [], drain=drain)
    await collect(loop.run("hi"))
    loop.follow_up("F1")
    loop.follow_up("F2")
    events = short(await collect(loop.continue_()))
    assert events.count("M(A)") == said
    assert [line for line in events if line.startswith("M(user")] == ["M(user:F1)", "M(user:F2)"]


@pytest.mark.parametrize("tool_execution", ["parallel", "sequential"])
@pytest.mark.parametrize("position", range(12))
async def test_pi_19_abort_at_any_event(tool_execution: Any, position: int) -> None:
    loop = SessionLoop(Model(BATCH, "x"), [one, two], tool_execution=tool_execution)
    events: list[Any] = []
    async with asyncio.timeout(60):
        async for event in loop.run("hi"):
            if event.type == "agent_start":
                loop.steer("S") if position > 6 else loop.follow_up("F")
            events.append(event)
            if len(events) == position + 1:
                loop.abort()
    kinds = [event.type for event in events]
    assert kinds.count("agent_end") == 1
    assert kinds[-1] == "agent_end"
    for start, end in (("turn_start", "turn_end"), ("message_start", "message_end")):
        assert kinds.count(start) == kinds.count(end)
    assert kinds.count("tool_execution_start") == kinds.count("tool_execution_end")
    answered_once(loop.messages)


# --- the engine ------------------------------------------------------------------------------------------------------

TASKS = [{"id": "b", "description": "B", "priority": 2}, {"id": "a", "description": "A", "priority": 1}]


class Planner:
    def __init__(self, tasks: Any = TASKS) -> None:
        self.tasks = tasks

    async def decompose_goal(self, user_input: str) -> Any:
        if isinstance(self.tasks, BaseException):
            raise self.tasks
        return self.tasks


class Coordinator:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    async def get_context_async(self, user_input: str) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(rules=[], tools=[], knowledge=[])


async def upper(task: SubTask) -> str:
    return task.id.upper()


def engine(tasks: Any = TASKS, execute: Any = upper, **options: Any) -> ConversationEngine:
    return ConversationEngine(coordinator=Coordinator(), llm=Planner(tasks), execute=execute, **options)


def line(event: Any) -> str:
    data = event.data
    if event.event_type == EngineEventType.STATE_CHANGED:
        return f"SC({data['from']}>{data['to']})"
    name = event.event_type.name
    return " ".join([name, *(str(data[key]) for key in ("task_id", "progress", "error", "phase") if key in data)])


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("boom"), TimeoutError("boom"), ValueError("☃")])
@pytest.mark.parametrize("where", ["context_fetching", "decomposing", "executing"])
async def test_ce_15_errors_of_every_kind_in_every_phase(error: Exception, where: str) -> None:
    async def fails(task: SubTask) -> str:
        raise error

    made = ConversationEngine(
        coordinator=Coordinator(error if where == "context_fetching" else None),
        llm=Planner(error if where == "decomposing" else TASKS),
        execute=fails,
    )
    events = await collect(made.run("go"))
    assert [line(event) for event in events][-2:] == [f"SC({where}>error)", f"ENGINE_ERROR {error} {where}"]
    assert made.state == "error"
    assert ("TASK_DECOMPOSED" in {event.event_type.name for event in events}) is (where == "executing")


@pytest.mark.parametrize("position", range(15))
async def test_pause_after_any_event_is_allowed_only_while_scheduling_and_executing(position: int) -> None:
    made = engine()
    lines: list[str] = []
    answered: bool | None = None
    allowed = False
    async with asyncio.timeout(60):
        async for event in made.run("go"):
            lines.append(line(event))
            if len(lines) == position + 1:
                allowed = made.state in ("scheduling", "executing")
                answered = made.pause()
                assert made.state == ("paused" if allowed else made.state)
            if event.event_type == EngineEventType.ENGINE_PAUSED:
                assert made.resume() is True
    whole = [line(event) for event in await collect(engine().run("go"))]
    assert answered is allowed
    added = [one for one in lines if "paused" in one or "PAUSED" in one or "RESUMED" in one]
    assert len(added) == (4 if allowed else 0)
    assert [one for one in lines if one not in added] == whole
    assert made.state == "completed"


@pytest.mark.parametrize("position", range(15))
async def test_ce_12_a_snapshot_after_any_event_of_a_paused_run_goes_on_in_another_engine(position: int) -> None:
    done: list[str] = []

    async def noted(task: SubTask) -> str:
        done.append(task.id)
        return task.id.upper()

    made = engine(execute=noted)
    stream = made.run("go")
    for _ in range(position + 1):
        await anext(stream)
    saved = json.loads(json.dumps(made.create_snapshot()))
    await stream.aclose()
    other = engine(execute=noted)
    assert other.restore_from_snapshot(saved) is True
    if other.state != "completed":
        await collect(other.continue_())
    assert other.state == "completed"
    assert (other.completed_tasks, other.total_tasks, other.current_progress) == (2, 2, 1.0)
    assert done.count("a") == 1 or position == 9, "only a task that was running may run again"


async def test_a_restored_pause_goes_on_by_continue_alone() -> None:
    made = engine()
    stream = made.run("go")
    async for event in stream:
        if line(event).startswith("TASK_COMPLETED a"):
            assert made.pause() is True
        if event.event_type == EngineEventType.ENGINE_PAUSED:
            break
    saved = json.loads(json.dumps(made.create_snapshot()))
    await stream.aclose()
    other = engine()
    assert other.restore_from_snapshot(saved) is True
    assert other.state == "paused"
    assert [line(event) for event in await collect(other.continue_())] == [
        "SC(paused>executing)",
        "ENGINE_RESUMED 0.5",
        "TASK_STARTED b",
        "TASK_COMPLETED b 1.0",
        "SC(executing>completed)",
        "ENGINE_COMPLETED",
    ]


@pytest.mark.parametrize("failing", ["a", "b"])
async def test_a_failure_of_the_first_and_of_the_last_task(failing: str) -> None:
    async def partly(task: SubTask) -> str:
        if task.id == failing:
            raise ValueError("no")
        return "x"

    made = engine(execute=partly, on_task_error="continue")
    events = await collect(made.run("go"))
    names = [line(event).split(" ")[0:2] for event in events if event.event_type.name.startswith("TASK_")]
    assert ["TASK_FAILED", failing] in names
    assert events[-1].event_type == EngineEventType.ENGINE_COMPLETED
    assert events[-1].data["total_tasks"] == 2
    assert events[-1].data["completed_tasks"] == 1
    stopped = engine(execute=partly)
    events = await collect(stopped.run("go"))
    assert events[-1].event_type == EngineEventType.ENGINE_ERROR
    assert stopped.completed_tasks == (0 if failing == "a" else 1)


@pytest.mark.parametrize("result", [None, "", 0, {"é": [1, None]}, [1, 2], "☃"])
async def test_a_task_may_give_anything(result: Any) -> None:
    events = await collect(engine(execute=lambda task: result).run("go"))
    given = [event.data["result"] for event in events if event.event_type == EngineEventType.TASK_COMPLETED]
    assert given == [result, result]


async def test_tasks_of_one_name_are_an_error_of_the_plan() -> None:
    made = engine([{"id": "a"}, {"id": "a"}])
    events = await collect(made.run("go"))
    assert line(events[-1]).endswith("decomposing")


async def test_tasks_may_be_objects() -> None:
    made = engine([SubTask(id="x", description="X", priority=1), SubTask(id="y", description="Y", priority=0)])
    events = await collect(made.run("go"))
    assert [event.data["task_id"] for event in events if event.event_type.name == "TASK_STARTED"] == ["y", "x"]


# --- the agent -------------------------------------------------------------------------------------------------------

CALL = asks(("c1", "one", {}))


def kinds(events: list[Any]) -> list[str]:
    return [event.type.name for event in events]


@pytest.mark.parametrize(
    ("turn", "finish"),
    [([], ""), (says(""), ""), (says("☃ü"), "☃ü"), ([*says("he"), *says(""), *says("llo")], "hello")],
)
async def test_lm_01_with_every_kind_of_text(turn: list[Any], finish: str) -> None:
    events = await collect(Agent(Model(turn)).execute("ж"))
    assert kinds(events)[-1] == "AGENT_FINISH"
    assert events[-1].content == finish
    assert await Agent(Model(turn)).run("ж") == finish


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
async def test_lm_08_and_12_at_every_limit(limit: int) -> None:
    model = Model(*[asks((f"c{n}", "one", {}), before="again ") for n in range(9)])
    events = await collect(Agent(model, [one], max_iterations=limit).execute("hi"))
    assert len(model.contexts) == limit
    assert kinds(events).count("TOOL_RESULT") == limit
    assert kinds(events).count("ITERATION_START") == kinds(events).count("ITERATION_END")
    assert kinds(events)[-1] == "MAX_ITERATIONS_REACHED"
    with pytest.raises(agentnb.LimitReached):
        await Agent(Model(*[CALL] * 9), [one], max_iterations=limit).run("hi")


@pytest.mark.parametrize(
    "turns",
    [
        [[RuntimeError("down")]],
        [[*says("par"), RuntimeError("down")]],
        [CALL, [RuntimeError("down")]],
        [[*CALL, RuntimeError("down")]],
    ],
    ids=["at once", "after text", "in the second turn", "after calls"],
)
async def test_lm_07_wherever_the_model_fails(turns: list[Any]) -> None:
    events = await collect(Agent(Model(*turns), [one]).execute("hi"))
    assert kinds(events)[-1] == "ERROR"
    assert kinds(events).count("ERROR") == 1
    assert (events[-1].error.type, events[-1].error.message) == ("RuntimeError", "down")
    raised = next(chunk for turn in turns for chunk in turn if isinstance(chunk, RuntimeError))
    with pytest.raises(RuntimeError, match="down") as caught:
        await Agent(Model(*turns), [one]).run("hi")
    assert caught.value is raised


@pytest.mark.parametrize("tool_execution", ["sequential", "parallel"])
async def test_lm_13_with_failures_among_the_calls(tool_execution: Any) -> None:
    model = Model(asks(("c1", "slow", {}), ("c2", "bad", {}), ("c3", "nowhere", {}), ("c4", "one", {})), "fin")
    events = await collect(Agent(model, [slow, bad, one], tool_execution=tool_execution).execute("hi"))
    ends = [event.result.tool_call_id for event in events if event.type.name in ("TOOL_RESULT", "TOOL_ERROR")]
    assert sorted(ends) == ["c1", "c2", "c3", "c4"]
    assert model.heard(1) == ["user:hi", "assistant", "c1", "c2", "c3", "c4"]
    if tool_execution == "sequential":
        assert ends == ["c1", "c2", "c3", "c4"]
    else:
        assert ends[-1] == "c1"


@pytest.mark.parametrize("documents", [[], ["d1"], ["d1", "☃"]])
async def test_retrieval_tells_each_document(documents: list[str]) -> None:
    model = Model("x")
    events = await collect(Agent(model, retriever=lambda query: documents).execute("hi"))
    assert kinds(events).count("RETRIEVAL_START") == kinds(events).count("RETRIEVAL_COMPLETE") == 1
    assert kinds(events).count("RETRIEVAL_PROGRESS") == len(documents)
    assert all(document in str(model.contexts[0]) for document in documents)


# --- restored from JSON in the middle --------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["agent", "session", "execution", "engine"])
async def test_from_json_at_every_event_to_the_same_output(design: str) -> None:
    def build() -> Any:
        if design == "agent":
            return Agent(TwoTurns(BATCH, "done ☃"), [one, two])
        if design == "session":
            return SessionLoop(TwoTurns(BATCH, "done ☃"), [one, two], steering_mode="discard")
        if design == "execution":
            first = solution(call("echo", "state.b", v="†state.a"), call("omega", "state.a"))
            return ExecutionLoop(TwoTurns(first, solution(output="done ☃")), [echo, omega])
        return engine()

    run = build().start("hi")
    texts = [run.snapshot().to_json()]
    async for event in run:
        if getattr(event, "seq", None) is not None:
            texts.append(run.snapshot().to_json())
    for text in texts[:-1]:
        again = restore(Snapshot.from_json(text), build())
        again.play()
        async with asyncio.timeout(60):
            while not again.state.over:
                for item in again.pending:
                    again.approve(item)
                await asyncio.sleep(0)
        assert again.output == run.output
        assert again.stop_reason == run.stop_reason
        answered_once(message for message in again.messages if message["role"] != "data")


class TwoTurns:
    """Gives its second turn as soon as the history has a result, so that what it is asked twice it answers alike."""

    def __init__(self, first: Any, second: Any) -> None:
        self.turns = first, second

    async def stream(self, messages: Any, **options: Any) -> Any:
        has_result = any(message["role"] == "tool" for message in messages) or "Ω" in str(messages)
        turn = self.turns[has_result]
        for chunk in says(turn) if isinstance(turn, str) else turn:
            yield chunk
