"""A session is one conversation: what an agent with a model is told (loop_agent/SEMANTICS.md, 8. Conversation)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentnb import Loop, SessionLoop, restore, tool
from agentnb.loops.loop_agent import BaseAgent, Event, InvocationContext, LoopAgent, Session
from agentnb.testing import ScriptedLLM, call
from tests.worlds import says


@tool
def search(city: str) -> dict[str, int]:
    return {"hits": len(city)}


class Says(BaseAgent):
    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        yield Event(author=self.name, content="THE DRAFT")


def agent(llm: ScriptedLLM, name: str, *tools: Any) -> SessionLoop:
    return SessionLoop(llm, list(tools), name=name)


def pipeline(writer: Loop, critic: ScriptedLLM, refiner: ScriptedLLM | None = None, passes: int = 1) -> LoopAgent:
    """Return a writer, then a loop of a critic and a refiner."""
    inside = [agent(critic, "Critic"), *([agent(refiner, "Refiner")] if refiner else [])]
    return LoopAgent("Pipeline", [writer, LoopAgent("Refinement", inside, passes)], 1)


async def drive(made: BaseAgent, session: Session | None = None, text: str = "Write.") -> Session:
    context = InvocationContext(session=session or Session(), user_content=text)
    async for _ in made.run_async(context):
        pass
    return context.session


def told(llm: ScriptedLLM, request: int = 0) -> list[tuple[str, str]]:
    return [(message["role"], str(message["content"])) for message in llm.requests[request].messages]


WRITTEN = ("user", "For context:\n[Writer] said: THE DRAFT")
WRITERS = {"a model": lambda: agent(ScriptedLLM(["THE DRAFT"]), "Writer"), "code": lambda: Says("Writer")}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("form", ["run_async", "start"])
async def test_a_nested_loop_is_told_what_was_said_before_it(writer: str, form: str) -> None:
    critic = ScriptedLLM(["Too short."])
    made = pipeline(WRITERS[writer](), critic)
    await (drive(made) if form == "run_async" else made.start("Write."))
    assert told(critic) == [("user", "Write."), WRITTEN]


async def test_an_input_that_is_no_text_is_told_unchanged() -> None:
    critic, plain = ScriptedLLM(["ok"]), ScriptedLLM(["ok"])
    await pipeline(Says("Writer"), critic).start({"n": 3})
    await agent(plain, "Critic").start({"n": 3})
    assert told(critic)[0] == told(plain)[0]


async def test_an_agent_is_told_its_own_words_as_its_own_and_those_of_others_as_context() -> None:
    critic, refiner = ScriptedLLM(["Too short.", "Good."]), ScriptedLLM(["LONGER", "x"])
    await pipeline(Says("Writer"), critic, refiner, passes=2).start("Write.")
    longer = ("user", "For context:\n[Refiner] said: LONGER")
    assert told(critic, 1) == [("user", "Write."), WRITTEN, ("assistant", "Too short."), longer]


async def test_calls_and_results_of_others_are_told_in_words() -> None:
    writer = agent(ScriptedLLM([says("I search.", call("search", {"city": "Bonn"})), "THE DRAFT"]), "Writer", search)
    critic = ScriptedLLM(["ok"])
    await pipeline(writer, critic).start("Write.")
    assert told(critic)[1:] == [
        ("user", "For context:\n[Writer] said: I search.\n"
         "[Writer] called tool `search` with parameters: {'city': 'Bonn'}"),
        ("user", "For context:\n[Writer] `search` tool returned result: {'hits': 4}"),
        WRITTEN,
    ]  # fmt: skip


async def test_a_loop_that_the_code_of_an_agent_runs_is_told_what_the_code_ran_before() -> None:
    critic = ScriptedLLM(["ok"])
    first, inner = WRITERS["a model"](), LoopAgent("Refinement", [agent(critic, "Critic")], 1)

    class Flow(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
            for part in (first, inner):
                async for event in part.run_async(ctx):
                    yield event

    await drive(Flow("Flow"))
    assert told(critic) == [("user", "Write."), WRITTEN]


async def test_an_earlier_invocation_of_the_session_is_told_before_the_question() -> None:
    session = await drive(LoopAgent("First", [WRITERS["a model"]()], 1))
    critic = ScriptedLLM(["ok"])
    await drive(pipeline(Says("Other"), critic), session, "Judge.")
    assert told(critic)[:2] == [WRITTEN, ("user", "Judge.")]


async def test_events_of_another_branch_are_not_told() -> None:
    session = Session(events=[Event(author="Aside", content="secret", branch="a.b")])
    critic = ScriptedLLM(["ok"])
    context = InvocationContext(session=session, user_content="Judge.", branch="a.c")
    async for _ in LoopAgent("L", [agent(critic, "Critic")], 1).run_async(context):
        pass
    assert told(critic) == [("user", "Judge.")]


@pytest.mark.parametrize("way", ["restored", "forked"])
async def test_a_continued_run_tells_what_was_said_before(way: str) -> None:
    run = pipeline(WRITERS["a model"](), ScriptedLLM([])).start("Write.")
    async for event in run:
        if event.type == "run_start" and event.name == "Refinement":
            break
    critic = ScriptedLLM(["ok"])
    made = pipeline(WRITERS["a model"](), critic)
    await (restore(run.snapshot(), made) if way == "restored" else run.fork(loop=made))
    assert told(critic) == [("user", "Write."), WRITTEN]


async def test_what_is_told_has_a_bound() -> None:
    """The last twenty, and the last of each other agent: a long loop costs the same at its end (promise 7)."""
    critic = ScriptedLLM(["Again."], repeat=True)
    await pipeline(Says("Writer"), critic, passes=60).start("Write.")
    assert told(critic, 59)[:2] == [("user", "Write."), WRITTEN]
    assert len(told(critic, 59)) == len(told(critic, 40)) == 23
