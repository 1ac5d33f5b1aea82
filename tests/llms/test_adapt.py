from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agentnb import ExecutionLoop, RunFailed, SessionLoop, tool
from agentnb.llms.adapt import as_model
from agentnb.testing import ScriptedLLM


@tool
async def double(n: int) -> int:
    return 2 * n


class WithTools:
    """An interface that returns mappings, with text and a call."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[Any], list[Any]]] = []

    async def generate_with_tools(self, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        self.asked.append((messages, tools))
        if len(self.asked) == 1:
            return {"content": "I look.", "tool_calls": [{"id": "d", "name": "double", "arguments": {"n": 21}}]}
        return {"content": messages[-1]["content"], "tool_calls": []}


async def test_text_and_calls_of_an_answer_without_streaming_are_kept() -> None:
    llm = WithTools()
    run = SessionLoop(llm, [double]).start("go")
    assert await run == "42"
    assert run.messages[1].content == "I look."
    assert [each["name"] for each in llm.asked[0][1]] == ["double"]


class ByName:
    def generate_with_tools(self, messages: list[Any], *, tools: Any = None) -> str:
        return ", ".join(each["name"] for each in tools or ())


class Whatever:
    async def generate_with_tools(self, messages: list[Any], **options: Any) -> str:
        return ", ".join(each["name"] for each in options.get("tools", ()))


@pytest.mark.parametrize("llm", [ByName(), Whatever()], ids=["keyword only", "any keywords"])
async def test_a_model_with_a_tools_parameter_gets_the_tools(llm: Any) -> None:
    assert await SessionLoop(llm, [double]).start("go") == "double"


class InBlocks:
    def complete(self, messages: list[Any]) -> SimpleNamespace:
        return SimpleNamespace(content=[{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "heard"}])


async def test_the_text_of_an_answer_in_blocks_is_the_text_of_its_blocks() -> None:
    assert await SessionLoop(InBlocks(), []).start("go") == "heard"


class Completing:
    def complete(self, messages: list[Any]) -> SimpleNamespace:
        return SimpleNamespace(content=f"{len(messages)} heard")


async def test_a_model_with_only_a_complete_method_is_called_without_tools() -> None:
    assert await SessionLoop(Completing(), [double]).start("go") == "1 heard"


async def test_a_sync_model_does_not_block_the_event_loop() -> None:
    asked, released = asyncio.Event(), threading.Event()
    here = asyncio.get_running_loop()

    class Blocking:
        def complete(self, messages: list[Any]) -> str:
            here.call_soon_threadsafe(asked.set)
            return "released" if released.wait(10) else "never released"

    run = SessionLoop(Blocking()).start("go")
    run.play()
    await asked.wait()
    released.set()
    assert await run == "released"


@pytest.mark.parametrize(
    "answer", [None, ("hello", []), {"text": "hello"}, SimpleNamespace()], ids=["nothing", "pair", "text", "SDK"]
)
async def test_a_result_that_is_not_an_answer_is_an_error_and_not_an_empty_answer(answer: Any) -> None:
    class Forgetful:
        def complete(self, messages: list[Any]) -> Any:
            return answer

    with pytest.raises(RunFailed, match="complete must return a string, or an object or a mapping with content"):
        await SessionLoop(Forgetful()).start("go")


async def test_an_object_that_is_not_a_model_is_rejected() -> None:
    with pytest.raises(RunFailed, match="list is not a model: it has neither stream"):
        await SessionLoop([]).start("go")


@pytest.mark.parametrize("kind", [ScriptedLLM, WithTools])
async def test_a_class_in_place_of_a_model_is_rejected(kind: Any) -> None:
    with pytest.raises(RunFailed, match=rf"{kind.__name__} is a class; pass an object of it"):
        await SessionLoop(kind).start("go")


async def test_a_class_with_static_methods_is_a_model() -> None:
    class Said:
        @staticmethod
        def complete(messages: list[Any]) -> str:
            return "heard"

    assert await SessionLoop(Said).start("go") == "heard"


async def test_a_model_whose_stream_is_not_async_is_rejected() -> None:
    class Sync:
        def stream(self, messages: Any, *, tools: Any = None, schema: Any = None) -> Any:
            yield {"type": "text_delta", "content": "hi"}

    with pytest.raises(RunFailed, match=r"Sync.stream must be `async def`"):
        await SessionLoop(Sync()).start("hi")


async def test_a_stream_that_returns_a_list_is_rejected() -> None:
    class InOnePiece:
        def stream(self, messages: Any, *, tools: Any = None, schema: Any = None) -> Any:
            return ["hi"]

    with pytest.raises(RunFailed, match=r"must yield chunks, and this one returned \['hi'\]"):
        await SessionLoop(InOnePiece()).start("hi")


def test_a_model_with_a_valid_stream_is_used_unchanged() -> None:
    model = SimpleNamespace(stream=lambda messages, **options: None)
    assert as_model(model) is model


class Published(WithTools):
    """The published interface: a stream of plain text that accepts no tools, and another method with tools."""

    async def stream(self, messages: list[Any]) -> Any:
        for piece in ("plain", " text"):
            yield piece


async def test_a_model_whose_stream_accepts_no_tools_gets_them_by_its_other_method() -> None:
    llm = Published()
    assert await SessionLoop(llm, [double]).start("go") == "42"
    assert len(llm.asked) == 2


async def test_a_stream_without_tools_is_used_for_requests_without_tools() -> None:
    llm = Published()
    run = SessionLoop(llm).start("go")
    assert [item.content async for item in run if item.type == "text_delta"] == ["plain", " text"]
    assert run.output == "plain text"
    assert llm.asked == []


async def test_a_model_with_only_a_stream_without_tools_is_called_without_tools() -> None:
    async def stream(messages: list[Any]) -> Any:
        yield "plain"

    assert await SessionLoop(SimpleNamespace(stream=stream), [double]).start("go") == "plain"


async def test_an_awaitable_stream_gets_only_the_arguments_that_it_accepts() -> None:
    async def chunks() -> Any:
        yield "plain"

    async def stream(messages: list[Any], tools: Any = None) -> Any:  # and accepts no schema
        return chunks()

    assert await SessionLoop(SimpleNamespace(stream=stream), [double]).start("go") == "plain"


SOLUTION = '{"calls": [], "output": "seen"}'


class KnowsOfTools:
    async def stream(self, messages: list[Any], tools: Any = None) -> Any:
        yield {"type": "text_delta", "content": SOLUTION}


class KnowsOfToolsInACoroutine:
    async def stream(self, messages: list[Any], tools: Any = None) -> Any:
        return KnowsOfTools().stream(messages, tools)


@pytest.mark.parametrize("llm", [KnowsOfTools(), KnowsOfToolsInACoroutine()], ids=["generator", "coroutine"])
async def test_a_model_without_a_schema_gets_the_format_in_the_messages(llm: Any) -> None:
    assert await ExecutionLoop(llm, [double]).start(None) == "seen"


class InsistsOnBoth:
    def __init__(self) -> None:
        self.given: list[tuple[Any, Any]] = []

    async def stream(self, messages: list[Any], tools: Any, schema: Any) -> Any:
        self.given.append(([each["name"] for each in tools], schema))
        yield {"type": "text_delta", "content": "heard"}


@pytest.mark.parametrize("tools", [[], [double]], ids=["without tools", "with tools"])
async def test_a_model_that_requires_tools_and_a_schema_gets_empty_ones(tools: list[Any]) -> None:
    llm = InsistsOnBoth()
    assert await SessionLoop(llm, tools).start("go") == "heard"
    assert llm.given == [([each.name for each in tools], None)]


def takes_tools(insisting: bool) -> Any:
    async def if_given(messages: Any, tools: Any = None) -> Any:
        yield {"type": "text_delta", "content": '{"calls": [], "output": "done"}'}

    async def always(messages: Any, tools: Any) -> Any:
        yield {"type": "text_delta", "content": '{"calls": [], "output": "done"}'}

    async def awaited(messages: Any, tools: Any) -> Any:
        return if_given(messages, tools)

    return [SimpleNamespace(stream=stream) for stream in ((always, awaited) if insisting else (if_given,))]


@pytest.mark.parametrize("llm", [*takes_tools(False), *takes_tools(True)])
async def test_a_stream_that_accepts_only_tools_gets_no_schema(llm: Any) -> None:
    assert await ExecutionLoop(llm, [double]).start("go") == "done"


async def test_a_time_limit_inside_a_model_ends_only_what_it_limits() -> None:
    class Limited:
        async def stream(self, messages: Any, *, tools: Any = None, schema: Any = None) -> AsyncIterator[Any]:
            with anyio.move_on_after(0.001):  # httpx uses it for a connection that takes long
                await anyio.sleep(60)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(60)
            yield {"type": "text_delta", "content": "hello"}

    assert await SessionLoop(Limited()).start("Hi.") == "hello"
    run = SessionLoop(Limited()).start("Hi.")
    assert [event async for event in run][-1].output == "hello"
