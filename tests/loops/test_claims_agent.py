"""Agent as agent/SEMANTICS.md describes it, claim by claim, through the public names only."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentnb import Agent, AgentnbError, LimitReached, RunCancelled, RunFailed, restore, tool
from agentnb.loops.agent import AgentEvent, AgentEventType, EventCollector, ToolCall, ToolResult, TurnState
from tests.claims import Model, answered_once, asks, collect, says, words

T = AgentEventType


@tool
async def t() -> str:
    """Give R."""
    return "R"


@tool
async def boom() -> str:
    """Fail."""
    raise ValueError("api down")


def kinds(events: Any) -> list[str]:
    return [event.type.name for event in events]


def without_pairs(events: Any) -> list[str]:
    """The types without those that only close what was opened, of which the design's own lists say nothing."""
    silent = {
        "ITERATION_END",
        "TOOL_CALLS_COMPLETE",
        "CONTEXT_ASSEMBLY_START",
        "CONTEXT_ASSEMBLY_COMPLETE",
        "RECURSION",
    }
    return [kind for kind in kinds(events) if kind not in silent]


def one(events: Any, kind: AgentEventType) -> Any:
    found = [event for event in events if event.type == kind]
    assert len(found) == 1
    return found[0]


# -- turns -----------------------------------------------------------------------------------------------------------


async def test_lm_01_a_text_in_two_pieces() -> None:
    agent = Agent(Model([*says("he"), *says("llo")]))
    events = await collect(agent.execute("hi"))
    assert without_pairs(events) == words(
        "ITERATION_START PHASE_START PHASE_END LLM_START LLM_DELTA LLM_DELTA LLM_COMPLETE AGENT_FINISH"
    )
    assert [e.content for e in events if e.type == T.LLM_DELTA] == ["he", "llo"]
    assert one(events, T.PHASE_START).phase == "context_assembly"
    assert events[-1].content == "hello"
    collector = EventCollector()
    for event in events:
        collector.add(event)
    assert collector.get_llm_content() == "hello"
    assert collector.get_final_response() == "hello"
    assert await Agent(Model([*says("he"), *says("llo")])).run("hi") == "hello"


async def test_lm_02_a_call_with_text_before_it() -> None:
    def model() -> Model:
        return Model(asks(("c1", "t", {}), before="pre"), "fin")

    asked = model()
    events = await collect(Agent(asked, [t], system_prompt="be good").execute("hi"))
    first = without_pairs(events)
    at = first.index("LLM_START")
    assert first[at : at + 7] == words(
        "LLM_START LLM_DELTA LLM_TOOL_CALLS LLM_COMPLETE TOOL_CALLS_START TOOL_EXECUTION_START TOOL_RESULT"
    )
    assert first[at + 7] == "ITERATION_START"
    assert first[-1] == "AGENT_FINISH"
    assert asked.heard(1) == ["system", "user:hi", "assistant", "c1"]
    assert asked.contexts[1][2]["content"] == "pre"
    assert one(events, T.LLM_TOOL_CALLS).metadata["tool_count"] == 1
    result = one(events, T.TOOL_RESULT).result
    assert (result.tool_call_id, result.tool_name, result.content, result.is_error) == ("c1", "t", "R", False)
    assert one(events, T.TOOL_EXECUTION_START).tool_call.id == "c1"
    assert await Agent(model(), [t]).run("hi") == "fin"


async def test_iterations_are_numbered_from_zero() -> None:
    events = await collect(Agent(Model(asks(("c1", "t", {})), "fin"), [t]).execute("hi"))
    assert [e.iteration for e in events if e.type == T.ITERATION_START] == [0, 1]
    assert {e.iteration for e in events if e.type == T.LLM_START} == {0, 1}


async def test_one_run_id_and_one_turn_id_a_turn_on_every_event() -> None:
    events = await collect(Agent(Model(asks(("c1", "t", {})), "fin"), [t]).execute("hi"))
    assert len({e.run_id for e in events}) == 1
    assert events[0].run_id
    assert all(e.turn_id for e in events)
    assert len({e.turn_id for e in events}) == 2
    second = kinds(events).index("ITERATION_START", 1)
    assert len({e.turn_id for e in events[:second]}) == 1
    assert len({e.turn_id for e in events[second:]}) == 1


PAIRS = {
    T.ITERATION_START: T.ITERATION_END,
    T.PHASE_START: T.PHASE_END,
    T.RETRIEVAL_START: T.RETRIEVAL_COMPLETE,
    T.LLM_START: T.LLM_COMPLETE,
    T.TOOL_CALLS_START: T.TOOL_CALLS_COMPLETE,
}


def assert_pairs_are_closed(events: list[Any]) -> None:
    """What starts also ends, innermost first, and the last event is the only terminal one."""
    for start, end in PAIRS.items():
        opened = 0
        for event in events:
            opened += (event.type == start) - (event.type == end)
            assert opened in (0, 1), (start, kinds(events))
        assert not opened, f"{start} is open in {kinds(events)}"
    started = [e.tool_call.id for e in events if e.type == T.TOOL_EXECUTION_START]
    ended = [e.result.tool_call_id for e in events if e.type in (T.TOOL_RESULT, T.TOOL_ERROR)]
    assert sorted(started) == sorted(ended)
    assert [e for e in events if e.is_terminal()] == events[-1:]


async def test_what_starts_ends_in_a_run_that_completes() -> None:
    model = Model(asks(("c1", "t", {}), ("c2", "boom", {}), ("c3", "nope", {})), "fin")
    assert_pairs_are_closed(await collect(Agent(model, [t, boom], retriever=lambda q: ["d"]).execute("hi")))


async def test_what_starts_ends_at_the_limit() -> None:
    model = Model(*[asks(("c", "t", {}))] * 5)
    assert_pairs_are_closed(await collect(Agent(model, [t], max_iterations=2).execute("hi")))


async def test_what_a_failure_of_the_model_cuts_off_has_no_end() -> None:
    events = await collect(Agent(Model([*says("a"), RuntimeError("down")])).execute("hi"))
    assert kinds(events)[-3:] == ["LLM_START", "LLM_DELTA", "ERROR"]
    events = await collect(Agent(Model(asks(("c", "t", {})), [RuntimeError("down")]), [t]).execute("hi"))
    assert kinds(events)[-5:] == ["ITERATION_START", "PHASE_START", "PHASE_END", "LLM_START", "ERROR"]
    assert_pairs_are_closed([*events[: kinds(events).index("ITERATION_START", 1)], events[-1]])


@pytest.mark.parametrize("at", range(16))
async def test_what_starts_ends_wherever_it_is_cancelled(at: int) -> None:
    model = Model(asks(("c1", "t", {}), ("c2", "t", {}), before="pre"), "fin")
    token = asyncio.Event()
    events: list[Any] = []
    async for event in Agent(model, [t]).execute("hi", cancel_token=token):
        events.append(event)
        if len(events) == at:
            token.set()
    assert_pairs_are_closed(events)
    expected = {T.EXECUTION_CANCELLED} if at and at < 12 else {T.EXECUTION_CANCELLED, T.AGENT_FINISH}
    assert events[-1].type in expected


async def test_text_beside_calls_is_kept_and_an_empty_list_of_calls_is_none() -> None:
    model = Model([*says("text"), {"type": "tool_calls", "tool_calls": []}])
    events = await collect(Agent(model).execute("hi"))
    assert events[-1].content == "text"
    assert "TOOL_CALLS_START" not in kinds(events)


async def test_two_chunks_of_calls_add_up() -> None:
    model = Model([*asks(("c1", "t", {})), *asks(("c2", "t", {}))], "fin")
    events = await collect(Agent(model, [t]).execute("hi"))
    assert [e.result.tool_call_id for e in events if e.type == T.TOOL_RESULT] == ["c1", "c2"]
    assert model.heard(1) == ["user:hi", "assistant", "c1", "c2"]


async def test_lm_13_sequential_is_the_default() -> None:
    model = Model(asks(("c1", "t", {}), ("c2", "t", {})), "fin")
    events = await collect(Agent(model, [t]).execute("hi"))
    order = [
        (e.type.name, e.tool_call.id if e.type == T.TOOL_EXECUTION_START else e.result.tool_call_id)
        for e in events
        if e.type in (T.TOOL_EXECUTION_START, T.TOOL_RESULT)
    ]
    start, result = "TOOL_EXECUTION_START", "TOOL_RESULT"
    assert order == [(start, "c1"), (result, "c1"), (start, "c2"), (result, "c2")]


async def test_lm_13_parallel_results_come_as_they_complete_and_messages_in_call_order() -> None:
    second = asyncio.Event()

    async def slow() -> str:
        await second.wait()
        return "slow"

    async def fast() -> str:
        second.set()
        return "fast"

    model = Model(asks(("c1", "slow", {}), ("c2", "fast", {})), "fin")
    events = await collect(Agent(model, [slow, fast], tool_execution="parallel").execute("hi"))
    order = [k for k in kinds(events) if k in ("TOOL_EXECUTION_START", "TOOL_RESULT")]
    assert order == ["TOOL_EXECUTION_START"] * 2 + ["TOOL_RESULT"] * 2
    assert [e.result.tool_call_id for e in events if e.type == T.TOOL_RESULT] == ["c2", "c1"]
    assert model.heard(1) == ["user:hi", "assistant", "c1", "c2"]


# -- limits and failures ---------------------------------------------------------------------------------------------


async def test_lm_08_the_limit_means_at_most_so_many_requests() -> None:
    model = Model(*[asks(("c", "t", {}))] * 5)
    events = await collect(Agent(model, [t], max_iterations=3).execute("hi"))
    assert len(model.contexts) == 3
    assert kinds(events).count("TOOL_RESULT") == 3
    assert events[-1].type == T.MAX_ITERATIONS_REACHED


async def test_lm_12_run_at_the_limit_is_no_success() -> None:
    model = Model(*[asks(("c", "t", {}), before="again ")] * 5)
    agent = Agent(model, [t], max_iterations=2)
    with pytest.raises(LimitReached):
        await agent.run("hi")
    run = Agent(Model(*[asks(("c", "t", {}))] * 5), [t], max_iterations=2).start("hi")
    with pytest.raises(LimitReached):
        await run
    assert run.stop_reason == "max_iterations"


async def test_an_answer_in_the_last_iteration_is_a_success() -> None:
    model = Model(asks(("c", "t", {})), "fin")
    assert await Agent(model, [t], max_iterations=2).run("hi") == "fin"


async def test_ten_iterations_are_the_default() -> None:
    model = Model(*[asks(("c", "t", {}))] * 20)
    with pytest.raises(LimitReached):
        await Agent(model, [t]).run("hi")
    assert len(model.contexts) == 10


async def test_a_thousand_turns_recurse_nowhere() -> None:
    model = Model(*[asks(("c", "t", {}))] * 1200)
    assert await Agent(model, [t], max_iterations=2000).run("hi") == "end"


async def test_lm_07_a_model_that_raises() -> None:
    model = Model([RuntimeError("down")])
    events = await collect(Agent(model).execute("hi"))
    assert events[-1].type == T.ERROR
    assert events[-1].error.message == "down"
    assert events[-1].error.type == "RuntimeError"
    assert "AGENT_FINISH" not in kinds(events)
    with pytest.raises(RuntimeError, match="down"):
        await Agent(Model([RuntimeError("down")])).run("hi")


async def test_the_stream_of_a_failed_model_ends_without_raising_and_the_run_resumes() -> None:
    model = Model([RuntimeError("down")], "fine")
    run = Agent(model).start("hi")
    with pytest.raises(RunFailed):
        await run
    assert run.stop_reason is None
    assert run.resume() is True
    assert await run == "fine"


async def test_a_tool_that_raises_is_an_error_event_and_the_loop_goes_on() -> None:
    model = Model(asks(("c", "boom", {})), "fin")
    events = await collect(Agent(model, [boom]).execute("hi"))
    event = one(events, T.TOOL_ERROR)
    assert event.error.type == "ValueError"
    assert "api down" in event.error.message
    assert "api down" in model.contexts[1][2]["content"]
    assert events[-1].content == "fin"


async def test_an_unknown_tool_is_answered() -> None:
    model = Model(asks(("c", "nope", {}), ("d", "t", {})), "fin")
    events = await collect(Agent(model, [t]).execute("hi"))
    assert one(events, T.TOOL_ERROR).result.tool_call_id == "c"
    assert model.heard(1) == ["user:hi", "assistant", "c", "d"]
    assert events[-1].type == T.AGENT_FINISH


async def test_an_empty_last_answer_is_not_filled_from_earlier_turns() -> None:
    model = Model(asks(("c", "t", {}), before="pre"), [])
    assert await Agent(model, [t]).run("hi") == ""


async def test_run_s_text_is_the_last_turn_s() -> None:
    model = Model(asks(("c", "t", {}), before="pre"), "fin")
    assert await Agent(model, [t]).run("hi") == "fin"


# -- retrieval -------------------------------------------------------------------------------------------------------


async def test_retrieval_s_events_one_a_document() -> None:
    async def retrieve(query: str) -> list[str]:
        return ["one", "two"]

    model = Model("x")
    events = await collect(Agent(model, retriever=retrieve).execute("hi"))
    found = [k for k in kinds(events) if k.startswith("RETRIEVAL")]
    assert found == ["RETRIEVAL_START", "RETRIEVAL_PROGRESS", "RETRIEVAL_PROGRESS", "RETRIEVAL_COMPLETE"]
    assert kinds(events).index("RETRIEVAL_COMPLETE") < kinds(events).index("LLM_START")
    sent = json.dumps(model.contexts[0])
    assert "one" in sent
    assert "two" in sent


async def test_what_was_retrieved_is_not_written_into_the_conversation() -> None:
    run = Agent(Model("x"), retriever=lambda q: ["secret"]).start("hi")
    await run
    assert [m.content for m in run.messages] == ["hi", "x"]


async def test_it_retrieves_for_the_user_s_last_message_in_every_turn() -> None:
    asked: list[str] = []

    class Retriever:
        async def retrieve(self, query: str) -> list[str]:
            asked.append(query)
            return []

    model = Model(asks(("c", "t", {})), "fin")
    await collect(Agent(model, [t], retriever=Retriever()).execute("what is it"))
    assert set(asked) == {"what is it"}
    assert len(asked) >= 1


async def test_a_failed_retrieval_is_told_and_the_run_goes_on() -> None:
    def retrieve(query: str) -> list[str]:
        raise OSError("index gone")

    events = await collect(Agent(Model("x"), retriever=retrieve).execute("hi"))
    event = one(events, T.RETRIEVAL_ERROR)
    assert not event.is_terminal()
    assert "index gone" in event.error.message
    assert events[-1].content == "x"


# -- cancelling, closing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["event", "method", "attribute"])
async def test_a_cancel_token_that_is_set_from_the_start(kind: str) -> None:
    class Method:
        def is_cancelled(self) -> bool:
            return True

    class Attribute:
        cancelled = True

    token: Any = {"event": asyncio.Event(), "method": Method(), "attribute": Attribute()}[kind]
    if kind == "event":
        token.set()
    model = Model("x")
    events = await collect(Agent(model).execute("hi", cancel_token=token))
    assert events[-1].type == T.EXECUTION_CANCELLED
    assert model.contexts == []
    assert_pairs_are_closed(events)


async def test_a_cancel_token_between_chunks() -> None:
    token = asyncio.Event()
    model = Model([*says("a"), *says("b"), *says("c")])
    events = []
    async for event in Agent(model).execute("hi", cancel_token=token):
        events.append(event)
        if event.type == T.LLM_DELTA:
            token.set()
    assert [e.content for e in events if e.type == T.LLM_DELTA] == ["a"]
    assert events[-1].type == T.EXECUTION_CANCELLED
    assert events[-1].is_terminal()
    assert model.closed == 1


async def test_a_cancel_token_set_by_the_first_tool_keeps_the_second_from_running() -> None:
    token, ran = asyncio.Event(), []

    async def first() -> str:
        ran.append("first")
        token.set()
        return "1"

    async def second() -> str:
        ran.append("second")
        return "2"

    model = Model(asks(("c1", "first", {}), ("c2", "second", {})), "fin")
    events = await collect(Agent(model, [first, second]).execute("hi", cancel_token=token))
    assert ran == ["first"]
    assert events[-1].type == T.EXECUTION_CANCELLED
    assert len(model.contexts) == 1


async def test_run_heeds_its_cancel_token() -> None:
    token = asyncio.Event()
    token.set()
    with pytest.raises(RunCancelled):
        await Agent(Model("x")).run("hi", cancel_token=token)


async def test_closing_early_has_run_every_finally() -> None:
    ended: list[str] = []
    started = asyncio.Event()

    async def waits() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.append("tool")
        return ""

    model = Model([*says("a"), *says("b")])
    stream = Agent(model).execute("hi")
    async for event in stream:
        if event.type == T.LLM_DELTA:
            break
    await stream.aclose()
    assert model.closed == 1

    stream = Agent(Model(asks(("c", "waits", {}))), [waits]).execute("hi")
    waiting = asyncio.create_task(collect(stream))
    await asyncio.wait_for(started.wait(), 60)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["tool"]


# -- the vocabulary --------------------------------------------------------------------------------------------------


async def test_events_are_json() -> None:
    model = Model(asks(("c", "boom", {}), ("d", "t", {})), [RuntimeError("down")])
    for event in await collect(Agent(model, [t, boom]).execute("hi")):
        assert AgentEvent.model_validate(json.loads(event.model_dump_json())).type == event.type


def test_event_types_of_the_seed_are_there() -> None:
    seed = words("""ITERATION_START MAX_ITERATIONS_REACHED PHASE_START PHASE_END RETRIEVAL_START RETRIEVAL_PROGRESS
        RETRIEVAL_COMPLETE LLM_START LLM_DELTA LLM_TOOL_CALLS LLM_COMPLETE TOOL_CALLS_START TOOL_EXECUTION_START
        TOOL_PROGRESS TOOL_RESULT TOOL_ERROR AGENT_FINISH ERROR CONTEXT_ASSEMBLY_START CONTEXT_ASSEMBLY_COMPLETE
        COMPRESSION_APPLIED ITERATION_END RECOVERY_ATTEMPT RECOVERY_SUCCESS RECOVERY_FAILED TOOL_CALLS_COMPLETE
        RECURSION EXECUTION_CANCELLED""")
    assert set(seed) <= {kind.name for kind in AgentEventType}


def test_defaults_are_none_and_no_constructor_hides_a_field() -> None:
    event = AgentEvent(type=T.LLM_START)
    assert event.result is None
    assert event.error is None
    assert event.tool_call is None
    assert event.metadata == {}
    assert not set(AgentEvent.model_fields) & {
        name for name in dir(AgentEvent) if callable(getattr(AgentEvent, name)) and name not in dir(object)
    }


def test_constructors_make_events() -> None:
    assert AgentEvent.phase_start("x").type == T.PHASE_START
    assert AgentEvent.phase_end("x").phase == "x"
    assert AgentEvent.llm_delta("a").content == "a"
    assert AgentEvent.agent_finish("done").is_terminal()
    assert AgentEvent.llm_delta("a").is_llm_content()
    assert AgentEvent.tool_result(ToolResult(tool_call_id="c", tool_name="t", content="R")).is_tool_event()
    assert AgentEvent(type=T.EXECUTION_CANCELLED).is_terminal()


def test_a_call_without_an_id_gets_one() -> None:
    first, second = ToolCall(name="t"), ToolCall(id="", name="t")
    assert first.id.startswith("call_")
    assert first.id != second.id
    assert first.arguments == {}


async def test_the_collector_lists_failed_tools_too() -> None:
    collector = EventCollector()
    for event in await collect(Agent(Model(asks(("c", "boom", {}), ("d", "t", {}))), [t, boom]).execute("hi")):
        collector.add(event)
    assert [(r.tool_call_id, r.is_error) for r in collector.get_tool_results()] == [("c", True), ("d", False)]
    assert len(collector.filter(T.ITERATION_START)) == 2
    assert collector.get_errors() == []


def test_the_collector_of_nothing() -> None:
    collector = EventCollector()
    assert collector.get_llm_content() == ""
    assert collector.get_tool_results() == []
    assert not collector.get_final_response()


def test_a_turn_state_carries_its_limit() -> None:
    first = TurnState.initial(max_iterations=3)
    assert (first.turn_counter, first.compacted, first.is_final) == (0, False, False)
    third = first.next_turn().next_turn()
    assert third.max_iterations == 3
    assert third.turn_counter == 2
    assert first.next_turn().parent_turn_id == first.turn_id
    assert third.next_turn().is_final
    assert TurnState.from_dict(json.loads(json.dumps(third.to_dict()))) == third
    with pytest.raises(Exception, match=r"frozen|immutable|read-only|cannot"):
        first.turn_counter = 9  # type: ignore[misc]


def test_a_turn_state_as_the_seed_makes_it() -> None:
    state = TurnState(turn_counter=0, turn_id="abc")
    assert state.max_iterations == 10
    assert not state.compacted


# -- models and tools of the seed ------------------------------------------------------------------------------------


async def test_tools_as_objects_with_name_and_run() -> None:
    class Plain:
        name = "plain"
        description = "Plain."

        async def run(self, x: int) -> str:
            return f"got {x}"

    model = Model(asks(("c", "plain", {"x": 4})), "fin")
    events = await collect(Agent(model, [Plain()]).execute("hi"))
    assert one(events, T.TOOL_RESULT).result.content == "got 4"


async def test_a_tool_object_whose_run_takes_keywords() -> None:
    class Plain:
        name = "plain"

        async def run(self, **arguments: Any) -> str:
            return f"got {sorted(arguments.items())}"

    model = Model(asks(("c", "plain", {"x": 4, "y": "z"})), "fin")
    events = await collect(Agent(model, [Plain()]).execute("hi"))
    assert one(events, T.TOOL_RESULT).result.content == "got [('x', 4), ('y', 'z')]"


async def test_a_model_with_generate_with_tools() -> None:
    class Seed:
        def __init__(self) -> None:
            self.asked = 0

        async def generate_with_tools(self, messages: Any, tools: Any = None) -> Any:
            self.asked += 1
            if self.asked == 1:
                return {"content": "pre", "tool_calls": [{"id": "c", "name": "t", "arguments": {}}]}
            return {"content": "fin"}

    assert await Agent(Seed(), [t]).run("hi") == "fin"


async def test_a_model_whose_stream_takes_tools_by_position() -> None:
    class Seed:
        def __init__(self) -> None:
            self.asked = 0

        async def stream(self, messages: Any, tools: Any = None) -> Any:
            self.asked += 1
            if self.asked == 1:
                yield {"type": "tool_calls", "tool_calls": [{"id": "c", "name": "t", "arguments": {}}]}
            else:
                yield {"type": "text_delta", "content": "fin"}

    assert await Agent(Seed(), [t]).run("hi") == "fin"


async def test_tools_of_one_s_own_progress_are_told() -> None:
    @tool
    async def slow(progress: Any) -> str:
        """Tell how far it is."""
        progress({"done": 1})
        return "ok"

    events = await collect(Agent(Model(asks(("c", "slow", {}))), [slow]).execute("hi"))
    assert kinds(events).index("TOOL_PROGRESS") < kinds(events).index("TOOL_RESULT")


# -- the core's run over it ------------------------------------------------------------------------------------------


async def test_steering_is_delivered_at_the_next_turn_s_start() -> None:
    runs: list[Any] = []

    async def steers() -> str:
        runs[0].steer("STEER")
        return "ok"

    model = Model(asks(("c", "steers", {}), ("d", "t", {})), "fin")
    runs.append(Agent(model, [steers, t]).start("hi"))
    await runs[0]
    assert model.heard(1) == ["user:hi", "assistant", "c", "d", "user:STEER"]


async def test_the_first_step_by_turn() -> None:
    run = Agent(Model(asks(("c", "t", {})), "fin"), [t]).start("hi")
    events = await run.step("turn")
    assert [e.type for e in events][-1] == "call_end"
    assert run.stop_reason is None


async def test_cancel_answers_every_call_at_once() -> None:
    started = asyncio.Event()

    async def waits() -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    run = Agent(Model(asks(("c", "waits", {}), ("d", "waits", {}))), [waits]).start("hi")
    run.play()
    await asyncio.wait_for(started.wait(), 60)
    assert run.cancel("enough")
    answered_once(run.messages)
    assert run.stop_reason == "cancelled"
    with pytest.raises(RunCancelled):
        await run


async def test_a_snapshot_at_every_event_goes_on_to_the_same_end() -> None:
    def turns() -> list[Any]:
        return [asks(("c", "t", {}), ("d", "t", {})), "fin"]

    idempotent = tool(idempotent=True)(t.function) if hasattr(t, "function") else None
    tools = [idempotent or t]
    run = Agent(Model(*turns()), tools).start("hi")
    snapshots = []
    async for event in run:
        if event.seq is not None:
            snapshots.append(run.snapshot())
    for snapshot in snapshots:
        requests = sum(e.type == "model_end" for e in snapshot.events)
        again = restore(snapshot, Agent(Model(*turns()[requests:]), tools))
        for waiting in again.pending:
            again.approve(waiting)
        again.play()
        for _ in range(200):
            for waiting in again.pending:
                again.approve(waiting)
            if again.stop_reason:
                break
            await asyncio.sleep(0.005)
        assert again.output == "fin"
        answered_once(again.messages)


async def test_two_streams_of_one_agent_at_once() -> None:
    agent = Agent(Model("x", "x"))
    first, second = await asyncio.gather(collect(agent.execute("a")), collect(agent.execute("b")))
    assert first[-1].content == second[-1].content == "x"
    assert first[0].run_id != second[0].run_id


async def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(AgentnbError):
        Agent(Model(), max_iterations=-1)
    with pytest.raises(AgentnbError):
        Agent(Model(), tool_execution="sideways")  # type: ignore[arg-type]
