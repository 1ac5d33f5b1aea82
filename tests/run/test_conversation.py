"""`run.messages`: the conversation of the run, including that of nested loops."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from agentnb import Agent, ConversationEngine, Loop, LoopAgent, SessionLoop, Snapshot, tool
from agentnb.core.evolve import fold
from agentnb.loops import want
from agentnb.testing import ScriptedLLM, call
from tests.loops.loop_agents import K
from tests.run.agents import Plans
from tests.worlds import assert_folds, provider_faults


@tool
async def work() -> str:
    """Work."""
    return "worked"


def worker(*said: str, name: str = "worker") -> SessionLoop:
    return SessionLoop(
        ScriptedLLM([turn for words in said for turn in ([call("work", id=words)], words)]), [work], name=name
    )


def said(run: Any) -> list[tuple[str, Any]]:
    return [(message.role, message.content or message.tool_calls[0].id) for message in run.messages]


def round_of(question: str, words: str) -> list[tuple[str, str]]:
    return [("user", question), ("assistant", words), ("tool", "worked"), ("assistant", words)]


async def test_the_conversation_of_a_loop_agent_has_the_messages_of_its_sub_agents_in_order() -> None:
    run = LoopAgent("outer", [K("A"), worker("one", "two")], 2).start("go")
    assert run.messages == []
    await run
    first = [("user", "go"), *round_of("For context:\n[A] said: A#1", "one")]
    assert said(run) == [
        ("assistant", "A#1"),
        *first,
        ("assistant", "A#2"),
        *first,  # its second run is told what was said before
        *round_of("For context:\n[A] said: A#2", "two"),
    ]
    assert run.state.messages == []
    assert provider_faults(run.messages) == []
    assert_folds(run)


async def test_the_conversation_includes_loops_at_every_depth() -> None:
    inner = LoopAgent("inner", [K("X"), K("Y")], 2)
    run = LoopAgent("outer", [inner, K("Z")], 2).start(None)
    await run
    words = "X#1 Y#1 X#2 Y#2 Z#1 X#3 Y#3 X#4 Y#4 Z#2"
    assert [message.content for message in run.messages] == words.split()


async def test_the_conversation_has_messages_of_callbacks_in_their_places() -> None:
    inner = LoopAgent("inner", [K("X")], 1, after_agent_callback=lambda ctx: "that was inner")
    run = LoopAgent("outer", [inner, K("Y")], 1, after_agent_callback=lambda ctx: "that was all").start(None)
    await run
    assert [message.content for message in run.messages] == ["X#1", "that was inner", "Y#1", "that was all"]


async def test_the_conversation_of_an_engine_has_the_messages_of_its_tasks() -> None:
    run = ConversationEngine(llm=Plans(), execute=worker("one", "two")).start("go")
    await run
    assert said(run) == [*round_of("do a", "one"), *round_of("do b", "two")]


async def test_the_conversation_of_an_engine_starts_with_the_request_for_its_plan() -> None:
    plan = '{"tasks": [{"id": "a", "description": "do a"}]}'
    run = ConversationEngine(llm=ScriptedLLM([plan]), execute=worker("one")).start("go")
    await run
    assert said(run) == [("user", "go"), ("assistant", plan), *round_of("do a", "one")]


async def test_the_messages_of_concurrent_loops_are_not_mixed() -> None:
    barrier = asyncio.Barrier(2)

    @tool
    async def meet() -> str:
        """Wait for the other one."""
        await barrier.wait()
        return "met"

    def made(name: str) -> SessionLoop:
        return SessionLoop(ScriptedLLM([[call("meet", id=name)], name]), [meet], name=name)

    def both(given: Any) -> Generator[Any, Any, Any]:
        yield [want.call(made("one"), "go"), want.call(made("two"), "go")]

    run = Loop.from_generator(both).start(None)
    await run
    words = [message.content for message in run.messages]
    assert words == ["go", "", "met", "one", "go", "", "met", "two"]
    assert provider_faults(run.messages) == []


async def test_a_loop_with_its_own_messages_has_no_messages_of_nested_loops() -> None:
    turns = [[call("worker", {"input": "do it"}, id="h")], "fin"]
    for outer in (SessionLoop(ScriptedLLM(turns), [worker("one")]), Agent(ScriptedLLM(turns), [worker("one")])):
        run = outer.start("go")
        await run
        assert said(run) == [("user", "go"), ("assistant", "h"), ("tool", "one"), ("assistant", "fin")]

    def steps(given: Any) -> Generator[Any, Any, Any]:
        yield want.ask("first")
        yield want.call(worker("one"), "do it")
        yield want.ask("second")

    run = Loop.from_generator(steps, ScriptedLLM(["a", "b"])).start(None)
    await run
    assert [message.content for message in run.messages] == ["first", "a", "second", "b"]


async def test_every_call_has_a_result_in_the_conversation_of_a_cancelled_run() -> None:
    held = asyncio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        held.set()
        await asyncio.Event().wait()
        return "never"

    session = SessionLoop(ScriptedLLM([[call("hold", id="c")]]), [hold], name="worker")
    run = LoopAgent("outer", [session], 1).start("go")
    run.play()
    await held.wait()
    run.cancel("enough")
    assert said(run) == [("user", "go"), ("assistant", "c"), ("tool", "Operation aborted")]


async def test_the_conversation_is_the_same_from_the_recording_at_every_position() -> None:
    run = LoopAgent("outer", [LoopAgent("inner", [worker("one", "two")], 2), K("A")], 1).start("go")
    seen: list[list[Any]] = []
    run.watch(lambda event: seen.append(run.messages) if getattr(event, "seq", None) is not None else None)
    await run
    for position, messages in enumerate(seen, 1):
        assert fold(run.events[:position]).conversation == messages
    assert Snapshot.from_json(run.snapshot().to_json()).state.conversation == run.messages
    assert len(seen[-1]) > 8
