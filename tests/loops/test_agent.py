from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import agentnb
from agentnb import Agent, LimitReached, RunCancelled, RunFailed, Snapshot, UsageError, restore, tool
from agentnb.core.events import CallEnd, CallStart
from agentnb.core.evolve import fold
from agentnb.llms.protocol import Chunk
from agentnb.testing import ScriptedLLM, call, text
from tests.benchmarks.measure import no_collections
from tests.loops.agents import AgentWorld, assert_is_sound, short
from tests.loops.loop_agents import K
from tests.worlds import (
    asks,
    assert_folds,
    assert_one_terminal_event_last,
    collect,
    facts,
    payload,
    provider_faults,
    running_tasks,
    says,
    started_calls,
    types,
)


def sent(agent: Agent, request: int) -> list[Any]:
    """Return the messages of a model request in short notation: roles and content, and ids of results."""
    messages = agent.llm.requests[request].messages
    assert provider_faults(messages) == []
    return [m["tool_call_id"] if m["role"] == "tool" else f"{m['role']}:{m['content']}" for m in messages]


# -- the answer -----------------------------------------------------------------------------------------------------


async def test_run_returns_the_text_of_the_last_turn() -> None:
    agent = AgentWorld().agent(says("pre", call("t", id="c1")), "fin", system_prompt="be brief")
    assert await agent.run("hi") == "fin"
    assert sent(agent, 1) == ["system:be brief", "user:hi", "assistant:pre", "c1"]


async def test_an_empty_answer_is_returned_as_empty_text() -> None:
    turns = [says("pre", call("t")), []]
    assert await AgentWorld().agent(*turns).run("hi") == ""
    events = await collect(AgentWorld().agent(*turns).execute("hi"))
    assert events[-1].content == ""


@pytest.mark.parametrize("failure", [RuntimeError("down"), ConnectionError("cut"), agentnb.ModelError("busy")])
async def test_run_raises_the_error_of_the_model(failure: Exception) -> None:
    with pytest.raises(type(failure)) as raised:
        await Agent(ScriptedLLM([[*text("so far"), failure]])).run("hi")
    assert raised.value is failure


async def test_a_started_run_raises_run_failed_and_can_be_resumed() -> None:
    agent = Agent(ScriptedLLM([[RuntimeError("down")], "fin"]))
    run = agent.start("hi")
    with pytest.raises(RunFailed, match="down"):
        await run
    assert run.stop_reason is None
    assert run.resume()
    assert await run == "fin"
    assert run.stop_reason == "completed"


async def test_a_cancellation_raised_by_the_model_does_not_cancel_the_caller() -> None:
    with pytest.raises(RunFailed, match="CancelledError"):
        await Agent(ScriptedLLM([[asyncio.CancelledError("inner")]])).run("hi")


async def test_lm_12_a_run_that_reaches_the_limit_raises_and_has_no_output() -> None:
    turns = [says("again", call("t"))] * 2
    with pytest.raises(LimitReached, match="2 times"):
        await AgentWorld().agent(*turns, max_iterations=2).run("hi")
    run = AgentWorld().agent(*turns, max_iterations=2).start("hi")
    with pytest.raises(LimitReached):
        await run
    assert (run.stop_reason, run.output) == ("max_iterations", None)
    assert provider_faults(run.messages) == []
    assert_one_terminal_event_last(run.events)


async def test_the_default_limit_is_ten_turns_and_with_none_there_is_no_limit() -> None:
    agent = AgentWorld().agent(*[[call("t")]] * 30)
    with pytest.raises(LimitReached):
        await agent.run("hi")
    assert len(agent.llm.requests) == 10
    assert await AgentWorld().agent(*[[call("t")]] * 30, "fin", max_iterations=None).run("hi") == "fin"


async def test_run_raises_run_cancelled_if_a_tool_cancels_the_run() -> None:
    world = AgentWorld()
    world.during["c1"] = lambda: agentnb.run.run.latest_run().cancel("enough") and None
    with pytest.raises(RunCancelled, match="enough"):
        await world.agent(asks("c1", "c2")).run("hi")
    assert world.ran == ["c1"]


@pytest.mark.parametrize("options", [{}, {"cancel_token": threading.Event()}])
async def test_run_raises_run_failed_if_a_nested_agent_suspends_the_run(options: dict[str, Any]) -> None:
    agent = Agent(ScriptedLLM([["One moment.", call("P", {"input": "go"})], "fin"]), [K("P", pause=1)])
    with pytest.raises(RunFailed, match="suspended"):
        await agent.run("hi", **options)


async def test_an_agent_without_messages_ends_with_an_empty_answer() -> None:
    agent = Agent(ScriptedLLM([]), system_prompt="be brief")
    run = agent.start(None)
    await run
    assert run.stop_reason == "empty"
    assert await agent.run(None) == ""
    assert short(await collect(agent.execute(None))) == ["AGENT_FINISH "]


async def test_an_agent_without_a_prompt_starts_with_the_queued_messages() -> None:
    for queue in ("steer", "follow_up"):
        agent = Agent(ScriptedLLM(["fin"]))
        run = agent.start(None)
        getattr(run, queue)("hi")
        assert await run == "fin"


async def test_a_conversation_can_be_the_prompt() -> None:
    agent = Agent(ScriptedLLM(["fin"]))
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, "c"]
    assert await agent.run(history) == "fin"
    assert sent(agent, 0) == ["user:a", "assistant:b", "user:c"]


async def test_one_agent_can_run_several_times_concurrently() -> None:
    agent = Agent(ScriptedLLM([lambda messages: text(f"to {messages[-1]['content']}")], repeat=True))
    assert await asyncio.gather(*(agent.run(str(n)) for n in range(3))) == ["to 0", "to 1", "to 2"]


async def test_a_tool_can_be_passed_under_a_name() -> None:
    async def give() -> str:
        return "R"

    agent = Agent(ScriptedLLM([[call("mine", id="c1")], "fin"]), {"mine": give})
    run = agent.start("hi")
    assert await run == "fin"
    assert run.messages[2].content == "R"
    assert [each["name"] for each in agent.llm.requests[0].tools] == ["mine"]


async def test_tool_execution_is_sequential_by_default() -> None:
    for mode, together in (({}, 1), ({"tool_execution": "parallel"}, 2)):
        running = most = 0

        @tool
        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

        await Agent(ScriptedLLM([[call("work"), call("work")], "fin"]), [work], **mode).run("hi")  # type: ignore[arg-type]
        assert most == together


async def test_an_object_with_a_name_and_a_run_method_can_be_a_tool() -> None:
    class Typed:
        name = "typed"

        async def run(self, x: int) -> str:
            return f"got {x}"

    class Free:
        name = "free"

        async def run(self, **arguments: Any) -> str:
            return f"got {sorted(arguments.items())}"

    agent = Agent(ScriptedLLM([[call("typed", {"x": 4}), call("free", {"x": 4, "y": "z"})], "fin"]), [Typed(), Free()])
    run = agent.start("hi")
    await run
    assert [m.content for m in run.messages if m.role == "tool"] == ["got 4", "got [('x', 4), ('y', 'z')]"]


async def test_a_model_can_take_its_tools_as_a_positional_argument() -> None:
    class Model:
        async def stream(self, messages: Any, tools: Any = None) -> Any:
            yield call("t", id="c") if messages[-1]["role"] == "user" else {"type": "text_delta", "content": "fin"}

    assert await Agent(Model(), AgentWorld().tools).run("hi") == "fin"


async def test_more_than_a_thousand_turns_cause_no_recursion_error() -> None:
    assert await AgentWorld().agent(*[[call("t")]] * 1200, "fin", max_iterations=2000).run("hi") == "fin"


async def test_the_default_name_of_an_agent_is_agent() -> None:
    assert (Agent(None).name, Agent(None, name="analyst").name) == ("agent", "analyst")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tool_execution": "both"}, "tool_execution"),
        ({"max_iterations": -1}, "max_iterations"),
        ({"retriever": 3}, "int is not a retriever"),
    ],
)
def test_invalid_options_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Agent(ScriptedLLM([]), **wrong)


# -- messages of the user during a run -------------------------------------------------------------------------------


async def test_steering_is_sent_at_the_start_of_the_next_turn() -> None:
    world = AgentWorld()
    agent = world.agent(asks("c1", "c2"), "fin")
    run = agent.start("hi")
    world.during["c1"] = lambda: [run.steer(words) for words in ("S1", "S2")]
    assert await run == "fin"
    assert world.ran == ["c1", "c2"]
    assert sent(agent, 1) == ["user:hi", "assistant:", "c1", "c2", "user:S1", "user:S2"]


async def test_steering_in_the_last_turn_stays_queued() -> None:
    agent = Agent(ScriptedLLM([lambda messages: run.steer("S") or text("fin"), "more"]))
    run = agent.start("hi")
    assert await run == "fin"
    assert [m.content for m in run.state.queues["steering"]] == ["S"]


async def test_steering_before_the_first_turn_is_sent_with_the_prompt() -> None:
    agent = Agent(ScriptedLLM(["fin"]))
    run = agent.start("hi")
    run.steer("S")
    await run
    assert sent(agent, 0) == ["user:hi", "user:S"]


async def test_follow_ups_are_sent_one_by_one_when_the_agent_would_stop() -> None:
    agent = AgentWorld().agent([call("t", id="c1")], "one", "two", "three")
    run = agent.start("hi")
    run.follow_up("F1")
    run.follow_up("F2")
    assert await run == "three"
    assert sent(agent, 3) == ["user:hi", "assistant:", "c1", "assistant:one", "user:F1", "assistant:two", "user:F2"]


async def test_queued_steering_is_sent_with_a_follow_up() -> None:
    agent = Agent(ScriptedLLM([lambda messages: run.steer("S") or text("one"), "two"]))
    run = agent.start("hi")
    run.follow_up("F")
    assert await run == "two"
    assert sent(agent, 1) == ["user:hi", "assistant:one", "user:F", "user:S"]


async def test_queued_messages_are_kept_at_the_limit() -> None:
    agent = AgentWorld().agent([call("t")], max_iterations=1)
    run = agent.start("hi")
    run.follow_up("F")
    agent.llm.turns = [lambda messages: run.steer("S") or [call("t")]]
    with pytest.raises(LimitReached):
        await run
    assert [m.content for queue in ("steering", "follow_up") for m in run.state.queues[queue]] == ["S", "F"]


async def test_a_follow_up_that_would_exceed_the_limit_stays_queued() -> None:
    run = Agent(ScriptedLLM(["one"]), max_iterations=1).start("hi")
    run.follow_up("F")
    with pytest.raises(LimitReached):
        await run
    assert run.messages[-1].content == "one"
    assert [m.content for m in run.state.queues["follow_up"]] == ["F"]


async def test_the_events_of_a_follow_up_belong_to_a_new_iteration() -> None:
    agent = Agent(ScriptedLLM(["one", "two"]))
    run = agent.start("hi")
    run.follow_up("F")
    events = await collect(agent.events(run))
    assert_is_sound(events)
    said = [word for word in short(events) if word.startswith(("ITERATION", "AGENT"))]
    assert said == ["ITERATION_START#0", "ITERATION_END#0", "ITERATION_START#1", "ITERATION_END#1", "AGENT_FINISH two"]


# -- retrieval ------------------------------------------------------------------------------------------------------


class Library:
    """A retriever that records its queries."""

    def __init__(self, found: Any = ("D1", "D2")) -> None:
        self.asked: list[str] = []
        self.found = found

    async def retrieve(self, query: str) -> Any:
        self.asked.append(query)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found(query) if callable(self.found) else self.found


async def test_retrieved_documents_are_sent_with_the_users_message() -> None:
    library = Library()
    agent = AgentWorld().agent([call("t", id="c1")], "fin", retriever=library, system_prompt="be brief")
    events = await collect(agent.execute("hi"))
    assert_is_sound(events)
    looked_up = ["RETRIEVAL_START", "RETRIEVAL_PROGRESS D1", "RETRIEVAL_PROGRESS D2", "RETRIEVAL_COMPLETE", "LLM_START"]
    said = short(events)
    for turn in range(2):
        start = said.index(f"ITERATION_START#{turn}")
        assert said[start + 3 : start + 8] == looked_up
    assert library.asked == ["hi", "hi"]  # never the tool's result
    told = "user:<retrieved>\n[1] D1\n\n[2] D2\n</retrieved>\n\nhi"
    assert sent(agent, 0) == ["system:be brief", told]
    assert sent(agent, 1) == ["system:be brief", told, "assistant:", "c1"]


async def test_the_history_does_not_contain_retrieved_documents() -> None:
    run = AgentWorld().agent([call("t")], "fin", retriever=Library()).start("hi")
    await run
    assert [m.role for m in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.messages[0].content == "hi"


async def test_documents_are_retrieved_for_the_last_message_of_the_user() -> None:
    library = Library(lambda query: [f"about {query}"])
    agent = AgentWorld().agent([call("t", id="c1")], "one", "two", retriever=library)
    run = agent.start(["old", "hi"])
    run.follow_up("F")
    agent.llm.turns[0] = lambda messages: run.steer("S") or [call("t", id="c1")]
    await run
    assert library.asked == ["hi", "S", "F"]
    about = "user:<retrieved>\n[1] about {0}\n</retrieved>\n\n{0}"
    assert sent(agent, 0) == ["user:old", about.format("hi")]
    assert sent(agent, 1) == ["user:old", "user:hi", "assistant:", "c1", about.format("S")]
    assert sent(agent, 2)[4:] == ["user:S", "assistant:one", about.format("F")]


async def test_documents_for_steering_during_a_retrieval_are_retrieved_before_the_model_request() -> None:
    def found(query: str) -> Any:
        if query == "hi":
            run.steer("S")
        return [f"about {query}"]

    library = Library(found)
    agent = Agent(ScriptedLLM(["fin"]), retriever=library)
    run = agent.start("hi")
    events = await collect(agent.events(run))
    assert_is_sound(events)
    assert library.asked == ["hi", "S"]
    assert sent(agent, 0) == ["user:hi", "user:<retrieved>\n[1] about S\n</retrieved>\n\nS"]


async def test_retrieved_documents_are_added_as_a_block_to_a_message_of_blocks() -> None:
    agent = Agent(ScriptedLLM(["fin"]), retriever=Library(["D"]))
    await agent.run({"role": "user", "content": [{"type": "text", "text": "hi"}]})
    content = agent.llm.requests[0].messages[0]["content"]
    assert content == [{"type": "text", "text": "<retrieved>\n[1] D\n</retrieved>"}, {"type": "text", "text": "hi"}]


async def test_messages_with_other_roles_do_not_change_where_documents_are_added() -> None:
    agent = Agent(ScriptedLLM(["fin"]), retriever=Library(["D"]), system_prompt="be brief")
    await agent.run([{"role": "note", "content": "n"}, "old", {"role": "note", "content": "n"}, "hi"])
    assert sent(agent, 0) == ["system:be brief", "user:old", "user:<retrieved>\n[1] D\n</retrieved>\n\nhi"]


async def test_stop_iteration_of_a_sync_retriever_does_not_hang_the_agent() -> None:
    agent = AgentWorld().agent("fin", retriever=lambda query: next(iter([])))
    async with asyncio.timeout(60):
        assert await agent.run("hi") == "fin"


async def test_a_failed_retrieval_is_an_event_and_does_not_end_the_run() -> None:
    agent = AgentWorld().agent([call("t")], "fin", retriever=Library(LookupError("index down")))
    events = await collect(agent.execute("hi"))
    assert_is_sound(events)
    assert events[-1].content == "fin"
    start = short(events).index("RETRIEVAL_START")
    assert short(events)[start : start + 4] == [
        *("RETRIEVAL_START", "RETRIEVAL_ERROR", "RETRIEVAL_COMPLETE", "LLM_START"),
    ]
    failed = events[start + 1]
    assert (failed.error.type, failed.error.message) == ("LookupError", "index down")
    assert agent.llm.requests[0].messages[0]["content"] == "hi"
    assert await AgentWorld().agent("fin", retriever=Library(LookupError("index down"))).run("hi") == "fin"


async def test_documents_retrieved_for_a_message_are_kept_after_a_later_failed_retrieval() -> None:
    library = Library(lambda query: _first_only(library))
    agent = AgentWorld().agent([call("t", id="c1")], "fin", retriever=library)
    assert await agent.run("hi") == "fin"
    assert "D" in sent(agent, 1)[0]


def _first_only(library: Library) -> list[str]:
    if len(library.asked) > 1:
        raise LookupError("index down")
    return ["D"]


async def test_documents_retrieved_for_an_earlier_message_are_not_sent_with_a_later_one() -> None:
    library = Library(lambda query: _first_only(library))
    agent = Agent(ScriptedLLM(["one", "two"]), retriever=library)
    run = agent.start("hi")
    run.follow_up("F")
    await run
    assert sent(agent, 1) == ["user:hi", "assistant:one", "user:F"]


async def test_an_agent_without_a_user_message_retrieves_nothing() -> None:
    library = Library()
    agent = Agent(ScriptedLLM(["fin"]), retriever=library)
    assert await agent.run({"role": "system", "content": "go"}) == "fin"
    assert library.asked == []


class Found:
    """A document with the attributes that many libraries use."""

    def __init__(self) -> None:
        self.page_content = "D"
        self.metadata = {"title": "About D"}
        self.score = 0.5


@pytest.mark.parametrize(
    ("found", "told", "contents"),
    [
        (None, "hi", []),
        ([], "hi", []),
        ("D", "[1] D", ["D"]),
        (["D", "E"], "[1] D\n\n[2] E", ["D", "E"]),
        (({"text": "D", "title": "T"},), "[1] T\nD", ["D"]),
        ([{"content": "D", "metadata": {"title": "T"}}], "[1] T\nD", ["D"]),
        ([Found()], "[1] About D\nD", ["D"]),
        ([SimpleNamespace(content="D", doc_id=3)], "[1] D", ["D"]),
        ([3], "[1] 3", ["3"]),
    ],
)
async def test_every_return_type_of_a_retriever_is_converted_to_documents(
    found: Any, told: str, contents: list[str]
) -> None:
    agent = Agent(ScriptedLLM(["fin"]), retriever=Library(found))
    events = await collect(agent.execute("hi"))
    assert_is_sound(events)
    assert [event.content for event in events if event.type == "retrieval_progress"] == contents
    assert next(e for e in events if e.type == "retrieval_complete").metadata == {"doc_count": len(contents)}
    assert told in agent.llm.requests[0].messages[0]["content"]


class AsyncCallable:
    async def __call__(self, query: str) -> list[str]:
        return [query.upper()]


class SyncLibrary:
    def retrieve(self, query: str) -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        return [query.upper()]


async def _streaming(query: str) -> Any:
    yield query.upper()


async def _later(query: str) -> list[str]:
    return [query.upper()]


@pytest.mark.parametrize(
    "retriever",
    [AsyncCallable(), SyncLibrary(), _streaming, _later, lambda query: [query.upper()], lambda query: _later(query)],
    ids=["async callable", "sync", "generator", "async", "function", "function of a coroutine"],
)
async def test_functions_objects_and_generators_can_be_retrievers(retriever: Any) -> None:
    agent = Agent(ScriptedLLM(["fin"]), retriever=retriever)
    await agent.run("hi")
    assert "[1] HI" in sent(agent, 0)[0]


@pytest.mark.parametrize("how", ["token", "cancel", "close"])
async def test_a_cancelled_retrieval_is_closed(how: str) -> None:
    cut: list[str] = []

    async def never(query: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cut.append(query)

    agent = Agent(ScriptedLLM([]), retriever=never)
    run, token, said = agent.start("hi"), asyncio.Event(), []
    stream = agent.events(run, token)
    async with asyncio.timeout(60):
        async for event in stream:
            said.append(event)
            if event.type == "retrieval_start":
                if how == "close":
                    break
                if how == "cancel":
                    asyncio.get_running_loop().call_later(0.01, run.cancel)
                else:
                    token.set()
        await stream.aclose()
    assert run.stop_reason == "cancelled"
    assert cut == (["hi"] if how == "cancel" else [])
    assert running_tasks() == set()
    if how != "close":
        assert_is_sound(said)
        assert short(said)[-4:] == [
            *("RETRIEVAL_START", "RETRIEVAL_COMPLETE", "ITERATION_END#0", "EXECUTION_CANCELLED"),
        ]


# -- the promises, for agents ---------------------------------------------------------------------------------------


TURNS: list[Any] = [
    says(
        "pre",
        call("t", id="c1"),
        call("boom", id="c2"),
        call("nowhere", id="c3"),
        call("echo", {"value": "x"}, id="c4"),
    ),
    [call("echo", {"value": "y"}, id="c5")],
    "one",
    "two",
]


class Answering:
    """A model that returns the n-th turn of its script for a history with n answers, also if a request is repeated."""

    async def stream(self, messages: Any, **options: Any) -> Any:
        turn = TURNS[sum(m["role"] == "assistant" for m in messages)]
        for chunk in text(turn) if isinstance(turn, str) else turn:
            yield chunk


def approve_what_is_asked(run: Any) -> None:
    """Approve every pending call: one that was in flight when the process ended asks whether to run again."""
    run.watch(lambda event: event.type == "approval_request" and run.approve(event.call_id))


def whole_agent(library: Library, mode: Any) -> Agent:
    return Agent(Answering(), AgentWorld().tools, retriever=library, tool_execution=mode)


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_a_run_restored_at_any_event_ends_with_the_same_result(mode: Any) -> None:
    agent = whole_agent(Library(), mode)
    run = agent.start("hi")
    run.follow_up("F")
    assert await run == "two"
    assert_folds(run)
    for position in range(2, len(run.events) + 1):  # after the follow-up, which a restored run does not repeat
        taken = Snapshot.from_json(Snapshot.of(run.events[:position]).to_json())
        again = restore(taken, whole_agent(Library(), mode))
        state = fold(taken.events)
        in_flight = state.model == "asked" or any(each.status == "running" for each in state.open.values())
        approve_what_is_asked(again)
        assert await again == "two"
        assert [m.plain for m in again.messages] == [m.plain for m in run.messages]
        if not in_flight:
            assert [payload(e) for e in again.events] == [payload(e) for e in run.events]
        finished = {e.call_id for e in taken.events if isinstance(e, CallEnd)}
        assert [id for id in started_calls(again.events) if id in finished] == [
            e.call_id for e in run.events if isinstance(e, CallStart) and e.call_id in finished
        ]


async def test_the_stream_of_a_recording_is_that_of_the_live_run() -> None:
    agent = whole_agent(Library(), "sequential")
    run = agent.start("hi")
    live = await collect(agent.events(run))
    assert_is_sound(live)
    recorded = await collect(agent.events(restore(run.snapshot(), whole_agent(Library(), "sequential"))))
    assert recorded == [event for event in live if event.type != "llm_delta"]


@pytest.mark.parametrize("position", range(1, 30, 3))
async def test_the_stream_of_a_restored_run_contains_every_event(position: int) -> None:
    agent = whole_agent(Library(), "parallel")
    run = agent.start("hi")
    whole = await collect(agent.events(run))
    again = whole_agent(Library(), "parallel")
    restored = restore(Snapshot.of(run.events[:position]), again)
    approve_what_is_asked(restored)
    said = await collect(again.events(restored))
    assert_is_sound(said)
    deltas = ("LLM_DELTA", "TOOL_PROGRESS")
    assert sorted(w for w in short(said) if not w.startswith(deltas)) == sorted(
        w for w in short(whole) if not w.startswith(deltas)
    )


def pause(run: Any) -> None:
    run.pause()
    asyncio.get_running_loop().call_later(0.001, run.resume)


def steer(run: Any) -> None:
    run.steer("S")


def cancel(run: Any) -> None:
    run.cancel("enough")


@pytest.mark.parametrize("act", [pause, steer, cancel])
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize("position", range(0, 40, 2))
async def test_a_run_has_one_terminal_event_after_pause_steer_or_cancel_at_any_event(
    position: int, act: Callable[[Any], None], mode: Any
) -> None:
    agent = whole_agent(Library(), mode)
    run = agent.start("hi")
    run.watch(lambda event: event.seq == position and not event.terminal and act(run))
    async with asyncio.timeout(60):
        said = await collect(agent.events(run))
    assert_is_sound(said)
    assert_one_terminal_event_last(run.events)
    assert_folds(run)
    assert provider_faults(run.messages) == []
    assert running_tasks() == set()
    unheard = run.state.queues["steering"]
    assert [m.content for m in [*run.messages, *unheard]].count("S") == (
        act is steer and position < len(run.events) - 1
    )


async def test_the_run_of_an_agent_is_kept_in_a_store(tmp_path: Any) -> None:
    store = agentnb.Store(tmp_path / "runs.db")
    agent = whole_agent(Library(), "sequential")
    events = await collect(agent.execute("hi", store=store, name="x"))
    assert events[-1].type == "agent_finish"
    again = restore(store.load("x"), whole_agent(Library(), "sequential"))
    assert again.output == "one"


async def test_restoring_with_another_configuration_warns() -> None:
    run = whole_agent(Library(), "sequential").start("hi")
    await run.step("turn")
    with pytest.warns(UserWarning, match="tool_execution"):
        restore(run.snapshot(), whole_agent(Library(), "parallel"))


async def test_an_agent_can_be_stepped_turn_by_turn() -> None:
    run = AgentWorld().agent([call("t", id="c1"), call("t", id="c2")], "fin").start("hi")
    first = await run.step("turn")
    assert types(first)[-1] == "call_end"
    assert [m.role for m in run.messages] == ["user", "assistant", "tool", "tool"]
    phases = [event.phase for event in [*first, *await run.step("turn"), *await run.step("turn")] if event.phase]
    assert phases == ["idle", "context_assembly", "llm_call", "tool_execution", "llm_call", "done"]


async def test_every_phase_change_of_an_agent_is_in_its_table() -> None:
    agent = whole_agent(Library(), "sequential")
    run = agent.start("hi")
    run.follow_up("F")
    run.watch(lambda event: event.seq in (4, 20) and run.steer("S"))
    await run
    ways = [event.phase for event in facts(run.events) if event.phase]
    assert set(ways) == set(Agent.phases)
    assert all(after in Agent.phases[before] for before, after in pairwise(ways))


class Calling:
    """A model that requests one call per turn, and then answers."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    async def stream(self, messages: Any, **options: Any) -> Any:
        chunk: Chunk = {"type": "text_delta", "content": "fin"}
        if self.left:
            chunk = {"type": "tool_call", "id": f"c{self.left}", "name": "mark", "arguments": {}}
        self.left -= 1
        yield chunk


@pytest.mark.alone
@pytest.mark.parametrize("retriever", [None, _later], ids=["alone", "with a retriever"])
def test_the_cost_of_a_turn_does_not_grow_with_the_length_of_the_run(retriever: Any) -> None:
    marks: list[float] = []

    @tool
    async def mark() -> str:
        marks.append(time.process_time())
        return "R"

    turns, tenth = 2000, 200

    async def execute() -> int:
        agent = Agent(Calling(turns), [mark], max_iterations=None, retriever=retriever)
        return len([None async for _ in agent.execute("hi")])

    growths = []
    with no_collections():
        for _ in range(3):
            marks.clear()
            assert asyncio.run(execute()) > 9 * turns
            growths.append((marks[-1] - marks[-1 - tenth]) / (marks[tenth] - marks[0]))
    assert statistics.median(growths) < 2
