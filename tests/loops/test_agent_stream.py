from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import aclosing
from typing import Any

import pytest

from agentnb import Agent, LimitReached, RunCancelled, RunFailed, UsageError, restore, tool
from agentnb.loops.agent import AgentEvent, EventCollector, TurnState
from agentnb.testing import ScriptedLLM, call, text
from tests.loops.agents import AgentWorld, assert_is_sound, short
from tests.worlds import asks, assert_one_terminal_event_last, collect, provider_faults, running_tasks, says

OPENING = ["PHASE_START(context_assembly)", "PHASE_END(context_assembly)"]


async def events_of(agent: Agent, prompt: Any = "hi", **options: Any) -> list[AgentEvent]:
    async with asyncio.timeout(60):
        events = await collect(agent.execute(prompt, **options))
    assert_is_sound(events)
    return events


# -- the events, in order (agent/SEMANTICS.md, 3. Algorithm) ----------------------------------------------------------


async def test_lm_01_the_events_of_a_turn_with_text() -> None:
    agent = Agent(ScriptedLLM([text("hello", pieces=2)], repeat=True))
    events = await events_of(agent)
    assert short(events) == [
        *("ITERATION_START#0", *OPENING, "LLM_START", "LLM_DELTA hel", "LLM_DELTA lo", "LLM_COMPLETE"),
        *("ITERATION_END#0", "AGENT_FINISH hello"),
    ]
    collector = EventCollector()
    for event in events:
        collector.add(event)
    assert collector.get_llm_content() == "hello"
    assert collector.get_final_response() == "hello"
    assert await agent.run("hi") == "hello"


async def test_lm_02_the_events_of_a_turn_with_a_call() -> None:
    agent = AgentWorld().agent(says("pre", call("t", id="c1")), "fin")
    events = await events_of(agent)
    assert short(events) == [
        *("ITERATION_START#0", *OPENING, "LLM_START", "LLM_DELTA pre", "LLM_TOOL_CALLS(1)", "LLM_COMPLETE"),
        *("TOOL_CALLS_START", "TOOL_EXECUTION_START(c1)", "TOOL_RESULT(c1)", "TOOL_CALLS_COMPLETE", "ITERATION_END#0"),
        *("ITERATION_START#1", *OPENING, "LLM_START", "LLM_DELTA fin", "LLM_COMPLETE", "ITERATION_END#1"),
        "AGENT_FINISH fin",
    ]
    result = next(event.result for event in events if event.type == "tool_result")
    assert (result.tool_call_id, result.tool_name, result.content, result.is_error) == ("c1", "t", "R", False)
    assert result.execution_time_ms >= 0
    assert [m["role"] for m in agent.llm.requests[1].messages] == ["user", "assistant", "tool"]


async def test_lm_07_a_failed_model_request_ends_the_stream_with_an_error() -> None:
    agent = AgentWorld().agent([RuntimeError("down")], [RuntimeError("down")])
    events = await events_of(agent)
    assert short(events) == [
        *("ITERATION_START#0", *OPENING, "LLM_START", "ERROR"),
    ]
    assert (events[-1].error.type, events[-1].error.message) == ("RuntimeError", "down")
    with pytest.raises(RuntimeError, match=r"^down$"):
        await agent.run("hi")


@pytest.mark.parametrize(
    "turns",
    [
        [[*text("par"), RuntimeError("down")]],
        [[call("t")], [RuntimeError("down")]],
        [[call("t"), RuntimeError("down")]],
    ],
    ids=["after text", "in the second turn", "after calls"],
)
async def test_lm_07_a_model_may_fail_at_any_position(turns: list[Any]) -> None:
    events = await events_of(AgentWorld().agent(*turns))
    assert [event.error.message for event in events if event.type == "error"] == ["down"]
    with pytest.raises(RuntimeError, match="down") as raised:
        await AgentWorld().agent(*turns).run("hi")
    assert raised.value in [chunk for turn in turns for chunk in turn]


async def test_lm_08_the_limit_ends_the_stream() -> None:
    agent = AgentWorld().agent(*[says("again", call("t"))] * 5, max_iterations=3)
    events = await events_of(agent)
    assert len(agent.llm.requests) == 3
    assert [event.type for event in events].count("tool_result") == 3
    assert [event.type for event in events].count("iteration_start") == 3
    assert events[-1].type == "max_iterations_reached"
    assert events[-1].content is None
    assert events[-1].metadata["max_iterations"] == 3


@pytest.mark.parametrize("limit", [0, 1])
async def test_the_number_of_model_requests_never_exceeds_the_limit(limit: int) -> None:
    agent = AgentWorld().agent(*[[call("t")]] * 3, max_iterations=limit)
    assert (await events_of(agent))[-1].type == "max_iterations_reached"
    assert len(agent.llm.requests) == limit


async def test_an_answer_in_the_last_permitted_turn_is_the_result() -> None:
    assert (await events_of(AgentWorld().agent([call("t")], "fin", max_iterations=2)))[-1].content == "fin"


async def test_lm_13_sequential_calls_run_one_after_the_other() -> None:
    agent = AgentWorld().agent(asks("c1", "c2"), "fin")
    said = short(await events_of(agent))
    start = said.index("TOOL_CALLS_START")
    assert said[start + 1 : start + 6] == [
        *("TOOL_EXECUTION_START(c1)", "TOOL_RESULT(c1)", "TOOL_EXECUTION_START(c2)", "TOOL_RESULT(c2)"),
        "TOOL_CALLS_COMPLETE",
    ]


async def test_lm_13_parallel_calls_end_in_the_order_of_completion() -> None:
    world = AgentWorld()
    second = asyncio.Event()
    world.during = {"c1": second.wait, "c2": second.set}
    agent = world.agent(asks("c1", "c2"), "fin", tool_execution="parallel")
    said = short(await events_of(agent))
    start = said.index("TOOL_CALLS_START")
    assert said[start + 1 : start + 6] == [
        *("TOOL_EXECUTION_START(c1)", "TOOL_EXECUTION_START(c2)", "TOOL_RESULT(c2)", "TOOL_RESULT(c1)"),
        "TOOL_CALLS_COMPLETE",
    ]
    assert [m.get("tool_call_id") for m in agent.llm.requests[1].messages] == [None, None, "c1", "c2"]


async def test_text_in_the_same_answer_as_calls_is_streamed() -> None:
    class AllAtOnce:
        def __init__(self) -> None:
            self.answers = [
                {"content": "pre", "tool_calls": [{"id": "c1", "name": "t", "arguments": {}}]},
                {"content": "fin", "tool_calls": []},
            ]

        async def generate_with_tools(self, messages: Any, tools: Any = None) -> Any:
            return self.answers.pop(0)

    said = short(await events_of(Agent(AllAtOnce(), AgentWorld().tools)))
    assert [word for word in said if word.startswith(("LLM_DELTA", "LLM_TOOL", "AGENT"))] == [
        *("LLM_DELTA pre", "LLM_TOOL_CALLS(1)", "LLM_DELTA fin", "AGENT_FINISH fin"),
    ]


@pytest.mark.parametrize("answer", ["fin", {"content": "fin"}])
async def test_a_model_with_only_complete_can_be_used(answer: Any) -> None:
    class Completing:
        def complete(self, messages: Any) -> Any:
            return answer

    assert await Agent(Completing()).run("hi") == "fin"


async def test_calls_in_several_chunks_are_all_kept() -> None:
    chunks = [{"type": "tool_calls", "tool_calls": [{"id": id, "name": "t", "arguments": {}}]} for id in ("c1", "c2")]
    said = short(await events_of(AgentWorld().agent(chunks, "fin")))
    assert "LLM_TOOL_CALLS(2)" in said
    assert "TOOL_RESULT(c1)" in said
    assert "TOOL_RESULT(c2)" in said


# -- ids ------------------------------------------------------------------------------------------------------------


async def test_all_events_of_a_run_have_one_run_id_and_a_turn_id() -> None:
    agent = AgentWorld().agent([call("t")], "fin", "again")
    events = await events_of(agent)
    assert [event.iteration for event in events] == sorted(event.iteration for event in events)
    assert {event.iteration for event in events} == {0, 1}
    assert all(event.turn_id and event.run_id for event in events)
    assert {event.run_id for event in await events_of(agent)} != {events[0].run_id}


async def test_concurrent_streams_of_one_agent_have_different_run_ids() -> None:
    agent = Agent(ScriptedLLM([lambda messages: text(f"to {messages[-1]['content']}")], repeat=True))
    one, other = await asyncio.gather(events_of(agent, "a"), events_of(agent, "b"))
    assert (one[-1].content, other[-1].content) == ("to a", "to b")
    assert one[0].run_id != other[0].run_id


async def test_an_iteration_start_names_its_parent_turn() -> None:
    events = await events_of(AgentWorld().agent([call("t")], "fin"))
    first, second = (event for event in events if event.type == "iteration_start")
    assert second.metadata["parent_turn_id"] == first.turn_id
    assert second.metadata["max_iterations"] == 10


# -- calls that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (call("nowhere", id="c1"), "Tool nowhere not found"),
        (call("echo", {"valeu": 1}, id="c1"), "value"),
        (call("boom", id="c1"), "api down"),
        ({"type": "tool_call", "id": "c1", "name": "echo", "arguments": '{"value": '}, "not a JSON object"),
    ],
)
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_an_invalid_call_results_in_an_error_event_and_a_tool_message(made: Any, words: str, mode: Any) -> None:
    agent = AgentWorld().agent([made, call("t", id="c2")], "fin", tool_execution=mode)
    events = await events_of(agent)
    failed = next(event for event in events if event.type == "tool_error")
    assert words in failed.error.message
    assert failed.result.is_error
    assert words in failed.result.content
    assert failed.tool_call.id == failed.result.tool_call_id == "c1"
    assert events[-1].content == "fin"
    assert [m.get("tool_call_id") for m in agent.llm.requests[1].messages[2:]] == ["c1", "c2"]
    collector = EventCollector()
    for event in events:
        collector.add(event)
    assert {result.tool_call_id: result.is_error for result in collector.get_tool_results()} == {
        "c1": True,
        "c2": False,
    }
    assert collector.get_errors() == []


async def test_progress_of_a_tool_is_streamed_while_it_runs() -> None:
    seen = asyncio.Event()

    @tool
    async def work(progress: Any) -> str:
        progress({"done": 1})
        await seen.wait()
        return "worked"

    said = []
    async with asyncio.timeout(60):
        async for event in Agent(ScriptedLLM([[call("work", id="c1")], "fin"]), [work]).execute("hi"):
            said.append(event)
            if event.type == "tool_progress":
                assert event.metadata == {"tool_name": "work", "status": {"done": 1}}
                seen.set()
    assert_is_sound(said)
    assert seen.is_set()


async def test_retries_of_a_model_client_are_recovery_events() -> None:
    retry = {"type": "retry", "attempt": 1, "wait": 0.5}
    said = short(await events_of(Agent(ScriptedLLM([[retry, *text("fin")]]))))
    assert said[3:7] == ["LLM_START", "RECOVERY_ATTEMPT", "LLM_DELTA fin", "RECOVERY_SUCCESS"]
    said = short(await events_of(Agent(ScriptedLLM([[retry, RuntimeError("down")]]))))
    assert said[-3:] == ["RECOVERY_ATTEMPT", "RECOVERY_FAILED", "ERROR"]


# -- cancelling -----------------------------------------------------------------------------------------------------


class Flag:
    """A cancel token with only one method."""

    def __init__(self, name: str, *, calls: bool) -> None:
        self.on = False
        self.name, self.calls = name, calls

    def set(self) -> None:
        self.on = True

    def __getattr__(self, name: str) -> Any:
        if name != self.name:
            raise AttributeError(name)
        return (lambda: self.on) if self.calls else self.on


TOKENS: list[Any] = [
    asyncio.Event,
    threading.Event,
    lambda: Flag("is_set", calls=True),
    lambda: Flag("is_cancelled", calls=True),
    lambda: Flag("cancelled", calls=True),
    lambda: Flag("is_cancelled", calls=False),
    lambda: Flag("cancelled", calls=False),
]


@pytest.mark.parametrize("make", TOKENS)
async def test_a_token_set_before_the_start_cancels_the_stream(make: Any) -> None:
    agent, token = Agent(ScriptedLLM([])), make()
    token.set()
    events = await events_of(agent, cancel_token=token)
    assert short(events) == ["EXECUTION_CANCELLED"]
    with pytest.raises(RunCancelled):
        await agent.run("hi", token)


@pytest.mark.parametrize("make", TOKENS)
async def test_a_token_is_checked_between_chunks(make: Any) -> None:
    token, said = make(), []
    agent = AgentWorld().agent(says("one two three", call("t")))
    async for event in agent.execute("hi", token):
        said.append(event)
        if event.type == "llm_delta":
            token.set()
    assert_is_sound(said)
    assert short(said)[3:] == [
        *("LLM_START", "LLM_DELTA one", "LLM_COMPLETE", "ITERATION_END#0", "EXECUTION_CANCELLED"),
    ]


async def test_a_token_is_checked_before_each_tool() -> None:
    world, token = AgentWorld(), asyncio.Event()
    world.during["c1"] = token.set
    events = await events_of(world.agent(asks("c1", "c2")), cancel_token=token)
    assert world.ran == ["c1"]
    assert short(events)[-6:] == [
        *("TOOL_CALLS_START", "TOOL_EXECUTION_START(c1)", "TOOL_RESULT(c1)", "TOOL_CALLS_COMPLETE"),
        *("ITERATION_END#0", "EXECUTION_CANCELLED"),
    ]


async def test_a_token_is_checked_before_each_turn() -> None:
    world, token = AgentWorld(), asyncio.Event()
    world.during["c1"] = token.set
    agent = world.agent(asks("c1"), "never")
    events = await events_of(agent, cancel_token=token)
    assert short(events)[-3:] == ["TOOL_CALLS_COMPLETE", "ITERATION_END#0", "EXECUTION_CANCELLED"]
    assert len(agent.llm.requests) == 1


@pytest.mark.parametrize("position", range(24))
async def test_a_token_can_be_set_at_any_event(position: int) -> None:
    world, token, said = AgentWorld(), asyncio.Event(), []
    agent = world.agent(says("pre", *asks("c1", "c2")), "fin")
    run = agent.start("hi")
    async with asyncio.timeout(60):
        async for event in agent.events(run, token):
            said.append(event)
            if len(said) > position:
                token.set()
    assert_is_sound(said)
    assert said[-1].type == ("execution_cancelled" if token.is_set() and position < len(said) - 1 else "agent_finish")
    assert_one_terminal_event_last(run.events)
    assert provider_faults(run.messages) == []
    assert running_tasks() == set()


async def test_a_token_is_checked_while_an_approval_is_pending() -> None:
    world, token, said = AgentWorld(), asyncio.Event(), []
    agent = world.agent([call("send", {"value": "a"}, id="c1")], "never")
    async with asyncio.timeout(60):
        async for event in agent.execute("hi", token):
            said.append(event)
            if event.type == "tool_progress":  # the call waits for approval
                asyncio.get_running_loop().call_soon(token.set)
    assert_is_sound(said)
    assert short(said)[-3:] == ["TOOL_CALLS_COMPLETE", "ITERATION_END#0", "EXECUTION_CANCELLED"]
    assert world.ran == []
    assert running_tasks() == set()


async def test_the_limit_has_precedence_over_a_token() -> None:
    world, token = AgentWorld(), asyncio.Event()
    world.during["c1"] = token.set
    events = await events_of(world.agent(asks("c1"), max_iterations=1), cancel_token=token)
    assert events[-1].type == "max_iterations_reached"
    token.clear()
    with pytest.raises(LimitReached):
        await world.agent(asks("c1"), max_iterations=1).run("hi", token)
    assert short(await events_of(world.agent(max_iterations=0), cancel_token=token)) == ["MAX_ITERATIONS_REACHED"]


async def test_a_token_has_precedence_over_an_answer() -> None:
    token, said = asyncio.Event(), []
    async for event in Agent(ScriptedLLM(["fin"])).execute("hi", token):
        said.append(event)
        if event.type == "llm_complete":
            token.set()
    assert said[-1].type == "execution_cancelled"


async def test_a_failed_model_request_has_precedence_over_a_token() -> None:
    token = asyncio.Event()

    def fail(messages: Any) -> Any:
        token.set()
        raise RuntimeError("down")

    agent = Agent(ScriptedLLM([fail, "again"]))
    run = agent.start("hi")
    events = await collect(agent.events(run, token))
    assert events[-1].type == "error"
    assert run.stop_reason is None
    assert run.resume()
    assert await run == "again"


async def test_a_function_can_be_a_cancel_token() -> None:
    asked: list[str] = []
    agent = Agent(ScriptedLLM([["one", "two", "three"]]))
    async for event in agent.execute("hi", cancel_token=lambda: "one" in asked):
        asked.append(str(event.content))
    assert event.type == "execution_cancelled"
    assert "two" not in asked


async def test_an_invalid_cancel_token_is_refused() -> None:
    with pytest.raises(UsageError, match="int is not a cancel token"):
        await collect(Agent(ScriptedLLM([])).execute("hi", 3))


async def test_run_with_a_token_returns_the_answer() -> None:
    assert await Agent(ScriptedLLM(["fin"])).run("hi", asyncio.Event()) == "fin"
    with pytest.raises(ConnectionError, match="cut"):
        await Agent(ScriptedLLM([[ConnectionError("cut")]])).run("hi", asyncio.Event())


# -- pulling and closing --------------------------------------------------------------------------------------------


def test_execute_is_an_async_generator_that_starts_nothing() -> None:
    agent = Agent(ScriptedLLM([]))
    assert inspect.isasyncgenfunction(agent.execute)
    assert inspect.isasyncgen(agent.execute("hi"))


async def test_the_run_never_advances_beyond_its_consumer() -> None:
    given: list[str] = []

    async def speak() -> Any:
        for word in ("one", "two", "three"):
            given.append(word)
            yield {"type": "text_delta", "content": word}

    class Speaking:
        def stream(self, messages: Any, **options: Any) -> Any:
            return speak()

    async with aclosing(Agent(Speaking()).execute("hi")) as events:
        async for event in events:
            if event.type == "llm_delta":
                assert given[-1] == event.content
                await asyncio.sleep(0.001)
                assert given[-1] == event.content


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize("position", range(16))
async def test_closing_a_stream_at_any_event_ends_every_task(position: int, mode: Any) -> None:
    world = AgentWorld()
    closed: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            closed.append("slow")

    world.during["c2"] = slow
    agent = world.agent(says("well now", *asks("c1", "c2")), tool_execution=mode)
    run = agent.start("hi")
    stream = agent.events(run)
    async with asyncio.timeout(60):
        for _ in range(position):
            event = await anext(stream)
            if event.type == "tool_result":
                break
        await stream.aclose()
    assert running_tasks() == set()
    assert closed == (["slow"] if "c2" in world.ran else [])
    assert provider_faults(run.messages) == []
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_the_stream_closes_the_stream_of_the_model() -> None:
    closed = []

    class Speaking:
        async def stream(self, messages: Any, **options: Any) -> Any:
            try:
                while True:
                    yield {"type": "text_delta", "content": "on and "}
            finally:
                closed.append(True)

    async with aclosing(Agent(Speaking()).execute("hi")) as events:
        async for event in events:
            if event.type == "llm_delta":
                break
    assert closed == [True]


async def test_a_consumer_can_be_cancelled_while_it_waits_for_an_event() -> None:
    world = AgentWorld()
    world.during["c1"] = lambda: asyncio.sleep(60)
    agent = world.agent(asks("c1"))
    run = agent.start("hi")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await collect(agent.events(run))
    assert run.stop_reason == "cancelled"
    assert running_tasks() == set()
    assert provider_faults(run.messages) == []


async def test_cancelling_the_run_ends_the_stream() -> None:
    world = AgentWorld()
    agent = world.agent(asks("c1", "c2"), tool_execution="parallel")
    run = agent.start("hi")
    world.during["c1"] = lambda: asyncio.sleep(60)
    world.during["c2"] = lambda: run.cancel("enough") and None
    async with asyncio.timeout(60):
        events = await collect(agent.events(run))
    assert_is_sound(events)
    assert events[-1].type == "execution_cancelled"
    assert events[-1].metadata == {"reason": "enough"}
    assert [e.tool_call.id for e in events if e.type == "tool_error"] == ["c1"]
    assert [e.tool_call.id for e in events if e.type == "tool_result"] == ["c2"]


async def test_an_error_in_the_loops_code_is_an_error_event_and_raises() -> None:
    class Broken(Agent):
        def advance(self, state: Any) -> Any:
            if state.turn == 1:
                raise LookupError("broken")
            return super().advance(state)

    said: list[AgentEvent] = []

    async def listen() -> None:
        async for event in Broken(ScriptedLLM([[call("t")]]), AgentWorld().tools).execute("hi"):
            said.append(event)

    with pytest.raises(RunFailed, match="broken"):
        await listen()
    assert_is_sound(said)
    assert (said[-1].type, said[-1].error.type) == ("error", "LookupError")
    with pytest.raises(RunFailed, match="broken"):
        await Broken(ScriptedLLM([[call("t")]]), AgentWorld().tools).run("hi")


async def test_a_limit_of_the_run_ends_the_stream_with_an_error() -> None:
    agent = AgentWorld().agent(*[[call("t")]] * 3)
    events = await events_of(agent, limits={"turns": 2})
    assert (events[-1].type, events[-1].error.type) == ("error", "LimitReached")
    with pytest.raises(LimitReached):
        await AgentWorld().agent(*[[call("t")]] * 3).run("hi", limits={"calls": 1})


# -- approvals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["approve", "reject", "edit", "replace", "answer"])
async def test_the_decision_of_a_person_about_a_call_is_in_the_stream(decision: str) -> None:
    world = AgentWorld()
    agent = world.agent([call("send", {"value": "a"}, id="c1"), call("t", id="c2")], "fin")
    run = agent.start("hi")
    said = []
    async for event in agent.events(run):
        said.append(event)
        if event.type == "tool_progress":
            assert event.metadata["status"] == "waiting for approval"
            {
                "approve": lambda: run.approve("c1"),
                "reject": lambda: run.reject("c1", "no"),
                "edit": lambda: run.edit("c1", {"value": "b"}),
                "replace": lambda: run.replace("c1", "echo", {"value": "c"}),
                "answer": lambda: run.answer("c1", "done"),
            }[decision]()
    assert_is_sound(said)
    outcome = next(event for event in said if event.type in ("tool_result", "tool_error"))
    expected = {"approve": "S:a", "reject": "Rejected: no", "edit": "S:b", "replace": "R:c", "answer": "done"}
    assert outcome.result.content == expected[decision]
    assert outcome.type == ("tool_error" if decision == "reject" else "tool_result")
    assert (outcome.tool_call.name, outcome.result.tool_name) == (
        ("echo",) * 2 if decision == "replace" else ("send",) * 2
    )


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_stream_of_a_resumed_run_is_that_of_a_run_without_a_failure(elsewhere: bool) -> None:
    agent = AgentWorld().agent([call("t", id="c1")], [ConnectionError("cut")], "fin")
    run = agent.start("hi")
    failed = await collect(agent.events(run))
    assert short(failed)[-1] == "ERROR"
    if elsewhere:
        agent = AgentWorld().agent("fin")
        run = restore(run.snapshot(), agent)
    else:
        assert run.resume()
    told = await collect(agent.events(run))
    assert_is_sound(told)
    whole = await events_of(AgentWorld().agent([call("t", id="c1")], "fin"))
    assert short(told) == short(whole)


async def test_a_policy_decides_about_calls() -> None:
    agent = AgentWorld().agent([call("send", {"value": "a"}, id="c1")], "fin")
    events = await events_of(agent, approve=False)
    assert "TOOL_ERROR(c1)" in short(events)
    assert events[-1].content == "fin"


async def test_the_execution_time_of_a_failed_nested_loop_is_not_negative() -> None:
    inner = Agent(ScriptedLLM([[RuntimeError("inner down")]]), name="helper")
    agent = Agent(ScriptedLLM([[call("helper", {"input": "q"}, id="h")], "done"]), [inner])
    (failed,) = [event async for event in agent.execute("hi") if event.type == "tool_error"]
    assert failed.result.execution_time_ms >= 0


# -- fields that consumers of the design read -------------------------------------------------------------------------


async def test_the_number_of_answers_is_the_number_of_llm_complete_events() -> None:
    events = await events_of(AgentWorld().agent(asks("c1"), RuntimeError("down")))
    kinds = [event.type for event in events]
    assert (kinds.count("llm_start"), kinds.count("llm_complete")) == (2, 1)
    assert short(events)[-2:] == ["LLM_START", "ERROR"]


async def test_the_result_of_a_tool_is_in_the_field_tool_result() -> None:
    agent = AgentWorld().agent([*asks("c1"), call("boom", id="c2")], "fin")
    ended = [event for event in await events_of(agent) if event.type in ("tool_result", "tool_error")]
    assert [(event.tool_result.content, event.tool_result.is_error) for event in ended] == [
        ("R:c1", False),
        ("RuntimeError: api down", True),
    ]
    assert all(event.result is event.tool_result for event in ended)


async def test_the_end_of_context_assembly_states_the_tokens_of_the_context() -> None:
    agent = AgentWorld().agent(asks("c1"), "fin", system_prompt="x" * 4000)
    events = await events_of(agent, "y" * 400)
    used = [event.metadata["tokens_used"] for event in events if event.type == "phase_end"]
    assert used == [1100, 1101]  # four characters a token, and "R:c1" after the first turn


class Found:
    def __init__(self, content: str, **metadata: Any) -> None:
        self.content, self.metadata = content, metadata


@pytest.mark.parametrize(
    ("document", "title", "score"),
    [
        ({"content": "x", "title": "T", "score": 0.5}, "T", 0.5),
        ({"content": "x", "metadata": {"title": "T", "score": 0.5}}, "T", 0.5),
        (Found("x", title="T", score=0.5), "T", 0.5),
        (Found("x", score=0), "Unknown", 0),
        ("x", "Unknown", 0.0),
    ],
)
async def test_each_retrieved_document_has_its_title_and_score(document: Any, title: str, score: float) -> None:
    agent = AgentWorld().agent("fin", retriever=lambda query: [document])
    (found,) = [event.metadata for event in await events_of(agent) if event.type == "retrieval_progress"]
    assert (found["doc_title"], found["relevance_score"]) == (title, score)


# -- the executor ----------------------------------------------------------------------------------------------------

TOLD = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "name": "t", "arguments": {}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "R"},
]


async def test_an_executor_continues_from_messages_and_a_turn() -> None:
    agent = AgentWorld().agent(asks("c2"), "fin")
    turn = TurnState.initial(3, run_id="r").next_turn()
    events = [event async for event in agent.executor.execute_stream(TOLD, turn)]
    assert [message["role"] for message in agent.llm.requests[0].messages] == ["user", "assistant", "tool"]
    assert [(e.iteration, e.turn_id) for e in events if e.type == "iteration_start"] == [(1, "r-1"), (2, "r-2")]
    assert (events[-1].type, events[-1].content) == ("agent_finish", "fin")


async def test_the_limit_of_a_turn_counts_all_turns_of_the_run() -> None:
    agent = AgentWorld().agent(*[asks("c")] * 5)
    turn = TurnState(turn_counter=3, turn_id="t", max_iterations=5)
    events = [event async for event in agent.executor.execute_stream(TOLD, turn)]
    assert len(agent.llm.requests) == 2
    assert events[-1].type == "max_iterations_reached"


async def test_an_executor_without_a_turn_starts_with_the_first() -> None:
    agent = AgentWorld().agent(*[asks("c")] * 5, max_iterations=1)
    events = [event async for event in agent.executor.execute_stream(TOLD)]
    assert events[0].iteration == 0
    assert events[-1].type == "max_iterations_reached"
    assert len(agent.llm.requests) == 1


async def test_ainvoke_is_equivalent_to_run() -> None:
    assert await AgentWorld().agent("fin").ainvoke("hi") == "fin"
