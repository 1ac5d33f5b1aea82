"""The entry points of the designs: they accept the arguments of `start`, and an abandoned stream ends correctly."""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentnb import Agent, ConversationEngine, ExecutionLoop, LoopAgent, RunFailed, SessionLoop, Store, UsageError, tool
from agentnb.llms import Anthropic, OpenAI
from agentnb.loops.loop_agent import InvocationContext
from agentnb.testing import ScriptedLLM, call
from tests.worlds import collect

SOLUTION = '{"calls": [{"_tool": "delete"}], "output": "gone"}'
DELETED: list[str] = []


@tool(approve=True)
def delete() -> str:
    DELETED.append("file")
    return "deleted"


def session() -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("delete")], "gone"]), [delete])


def continued(**options: Any) -> Any:
    engine = ConversationEngine(execute=session())
    assert engine.restore_from_snapshot(
        {
            "state": "scheduling",
            "progress": 0.0,
            "tasks": [{"id": "a", "description": "A", "status": "pending", "priority": 0}],
            "completed_tasks": 0,
            "total_tasks": 1,
        },
        **options,
    )
    return engine.continue_()


@pytest.mark.parametrize("made", [Agent, ConversationEngine, ExecutionLoop, SessionLoop, OpenAI, Anthropic])
def test_every_parameter_of_a_constructor_is_in_its_docstring(made: type) -> None:
    said = [name for name in inspect.signature(made).parameters if name not in ("model", "name", "options")]
    assert [name for name in said if not re.search(rf"\b{name}\b", inspect.getdoc(made) or "")] == []


ENTRIES: dict[str, Callable[..., Any]] = {
    "Agent": lambda **options: Agent(session().llm, [delete]).execute("go", **options),
    "SessionLoop": lambda **options: session().run("go", **options),
    "continue_": lambda **options: SessionLoop(session().llm, [delete], messages=["go"]).continue_(**options),
    "ExecutionLoop": lambda **options: ExecutionLoop(ScriptedLLM([SOLUTION]), [delete]).run("go", **options),
    "ConversationEngine": lambda **options: ConversationEngine(execute=session()).run("go", **options),
    "restored": continued,
    "LoopAgent": lambda **options: LoopAgent("L", [session()], 1).run_async(
        InvocationContext(user_content="go"), **options
    ),
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
@pytest.mark.parametrize("approve", [True, False])
async def test_every_entry_point_takes_a_policy_and_a_store(
    entry: Callable[..., Any], approve: bool, tmp_path: Path
) -> None:
    DELETED.clear()
    store = Store(tmp_path / "runs.db")
    await collect(entry(approve=approve, store=store, name="mine"))
    assert ["file"] * approve == DELETED
    events = store.load("mine").events
    assert [event.decision for event in events if event.type == "approval_decision"] == [
        "approve" if approve else "reject"
    ]
    assert events[-1].terminal


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_an_abandoned_stream_ends_with_its_event_loop_without_an_error(
    entry: Callable[..., Any],
) -> None:
    complaints: list[dict[str, Any]] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        stream = aiter(entry())
        await anext(stream)

    asyncio.run(leave())
    assert complaints == []


def heard() -> ScriptedLLM:
    """Return a model that answers with the last message that it gets."""
    return ScriptedLLM([lambda messages: str(messages[-1]["content"])], repeat=True)


@pytest.mark.parametrize(
    "loop",
    [
        lambda: SessionLoop(heard()),
        lambda: Agent(heard()),
        lambda: LoopAgent("L", [SessionLoop(heard())], 1),
        lambda: ConversationEngine(execute=SessionLoop(heard())),
    ],
    ids=["SessionLoop", "Agent", "LoopAgent", "ConversationEngine"],
)
async def test_an_input_object_that_is_not_a_message_is_sent_as_json(loop: Callable[[], Any]) -> None:
    assert '{"city":"Aswan"}' in str(await loop().start({"city": "Aswan"}))


class Breaks:
    async def stream(self, messages: Any, **_: Any) -> Any:
        raise ValueError("broke")
        yield


STREAMS: dict[str, Callable[[Any], Any]] = {
    "SessionLoop": lambda llm: SessionLoop(llm).run("go"),
    "ExecutionLoop": lambda llm: ExecutionLoop(llm).run("go"),
}
every_stream = pytest.mark.parametrize("stream", STREAMS.values(), ids=list(STREAMS))


@every_stream
async def test_awaiting_a_stream_returns_the_output(stream: Callable[[Any], Any]) -> None:
    going = stream(ScriptedLLM(['{"output": "gone"}']))
    assert "gone" in await going
    assert going.ended


AGAIN: dict[str, Callable[[Any], Any]] = {"SessionLoop": SessionLoop, "ExecutionLoop": ExecutionLoop}


@pytest.mark.parametrize("design", AGAIN.values(), ids=list(AGAIN))
async def test_a_loop_can_be_run_again_after_a_break(design: Callable[[Any], Any]) -> None:
    loop = design(ScriptedLLM(['{"output": "gone"}'], repeat=True))
    async for _ in loop.run("go"):
        break
    assert "gone" in await loop.run("go again")


@pytest.mark.parametrize("design", AGAIN.values(), ids=list(AGAIN))
async def test_a_stream_deleted_before_its_start_does_not_block_the_next_run(design: Callable[[Any], Any]) -> None:
    loop = design(ScriptedLLM(['{"output": "gone"}']))
    stream = loop.run("go")
    del stream
    gc.collect()
    assert "gone" in await loop.run("go again")


@pytest.mark.parametrize("design", AGAIN.values(), ids=list(AGAIN))
async def test_a_run_advanced_by_another_owner_blocks_the_next_run_and_can_be_awaited(
    design: Callable[[Any], Any],
) -> None:
    loop = design(ScriptedLLM(['{"output": "gone"}']))
    run = loop.run("go").run
    await run.step()
    with pytest.raises(UsageError, match="is running"):
        loop.run("go again")
    assert "gone" in await run


@pytest.mark.parametrize("design", AGAIN.values(), ids=list(AGAIN))
async def test_a_referenced_stream_continues_after_a_break(design: Callable[[Any], Any]) -> None:
    loop = design(ScriptedLLM(['{"output": "gone"}']))
    stream = loop.run("go")
    async for _ in stream:
        break
    with pytest.raises(UsageError, match="is running"):
        loop.run("go again")
    assert "gone" in await stream


@every_stream
async def test_awaiting_a_stream_without_an_output_raises_the_reason(stream: Callable[[Any], Any]) -> None:
    with pytest.raises(RunFailed, match="broke"):
        await stream(Breaks())
