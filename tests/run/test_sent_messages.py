"""The messages that are sent to a model: a list that belongs to the model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from agentnb import Agent, ExecutionLoop, SessionLoop, tool
from agentnb.core.prefix import COPY_LIMIT
from agentnb.testing import ScriptedLLM, call

TURNS = COPY_LIMIT // 2 + 20
"""Each is an answer and a result."""


@tool
async def count(value: int) -> int:
    """Count."""
    return value


class Own:
    """A model as people write it, which adds to the given messages before it sends them."""

    def __init__(self, *, puts_first: bool = False) -> None:
        self.puts_first = puts_first
        self.sent: list[str] = []

    async def stream(self, messages: Sequence[Any], **options: Any) -> AsyncIterator[dict[str, Any]]:
        if self.puts_first:
            messages.insert(0, {"role": "system", "content": "Count."})  # type: ignore[attr-defined]
        else:
            messages = [{"role": "system", "content": "Count."}] + messages  # type: ignore[operator]  # noqa: RUF005
        self.sent.append(json.dumps(messages))
        if len(self.sent) <= TURNS:
            yield call("count", {"value": len(self.sent)}, id=f"c{len(self.sent)}")
        else:
            yield {"type": "text_delta", "content": "counted"}


async def counted(model: Any) -> Any:
    run = SessionLoop(model, [count]).start("go")
    assert await run == "counted"
    return run


async def test_the_messages_are_a_list_that_can_be_dumped_and_concatenated() -> None:
    model = Own()
    run = await counted(model)
    assert len(json.loads(model.sent[-1])) == len(run.messages)  # its own first, and all but the answer to it


async def test_messages_added_by_a_model_are_not_in_the_next_request() -> None:
    adding, inserting = Own(), Own(puts_first=True)
    await counted(adding)
    await counted(inserting)
    assert inserting.sent == adding.sent


async def test_a_scripted_model_keeps_each_request_unchanged() -> None:
    script = ScriptedLLM([*([call("count", {"value": n}, id=f"c{n}")] for n in range(TURNS)), "counted"])
    await counted(script)
    assert [len(request.messages) for request in script.requests] == [1 + 2 * n for n in range(TURNS + 1)]


class Spoiling(ScriptedLLM):
    """A model that adapts the given messages to its provider in place."""

    async def stream(self, messages: Sequence[Any], **options: Any) -> AsyncIterator[Any]:
        for message in messages:
            message["content"] = [{"type": "text", "text": "spoiled"}]
            for made in message.get("tool_calls", ()):
                made["arguments"].clear()
                made["function"] = made.pop("name")
        async for chunk in super().stream(messages, **options):
            yield chunk


LOOPS: dict[str, Callable[[Any], Any]] = {
    "SessionLoop": lambda model: SessionLoop(model, [count]),
    "SessionLoop with a hook": lambda model: SessionLoop(model, [count], transform_context=list),
    "Agent": lambda model: Agent(model, [count]),
    "ExecutionLoop": lambda model: ExecutionLoop(model, [count], native=True),
}


@pytest.mark.parametrize("loop", LOOPS)
async def test_changes_of_a_model_to_a_message_are_not_recorded(loop: str) -> None:
    def turns() -> list[Any]:
        return [[call("count", {"value": 5}, id="c")], "counted"]

    spoiled = LOOPS[loop](Spoiling(turns())).start("go")
    await spoiled
    untouched = LOOPS[loop](ScriptedLLM(turns())).start("go")
    await untouched
    assert spoiled.messages == untouched.messages
