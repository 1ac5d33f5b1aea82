"""Models that answer all at once, as models that stream.

The loop designs were published with interfaces of their own: `generate_with_tools(messages, tools)`, or
`complete(messages)`. What these give (text, a mapping, or an object with `content` and `tool_calls`) becomes the chunks
of one answer; text and calls of the same answer are both kept. Either may be async; one that is not
runs in a thread, because nothing else goes on while it holds the event loop up: no other run, and no click either.

Beside `generate_with_tools` there may be a `stream(messages)` that knows of no tools: it is asked where there are none.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import CUT_OFF_REASONS
from agentnb.core.maybe_async import is_async, settled
from agentnb.core.threads import THREADS
from agentnb.llms.protocol import Chunk, Message, Model, ToolSpecification
from agentnb.llms.reader import STOP_REASONS, text_chunks

_ASKED = ("stream", "generate_with_tools", "complete")
"""The methods that a model is asked by, the first of them it has."""


def in_one_piece(answer: Any) -> UsageError:
    """The error for what a model's `stream` gave instead of something to iterate over."""
    return UsageError(f"A model's stream() yields its chunks, and this one returned {answer!r:.80}.")


def as_model(llm: Any) -> Model:
    """The model itself where it streams, or one that asks it. Raises UsageError where it is no model."""
    if isinstance(llm, type) and _wants_an_object(llm):
        raise UsageError(f"{llm.__name__} is a class, and a model is an object of it: {llm.__name__}(...).")
    stream = getattr(llm, "stream", None)
    if callable(stream) and not _takes_messages(stream):
        raise UsageError(f"{type(llm).__name__} is no model: its stream() does not take the messages.")
    if inspect.iscoroutinefunction(stream):
        return _InCoroutine(stream)
    if inspect.isgeneratorfunction(stream):
        raise UsageError(f"{type(llm).__name__}.stream is to be `async def`: while it waits, the run goes on.")
    if callable(stream) and _takes(stream, "tools"):
        model: Model = llm if _takes(stream, "schema") and not _not_optional(stream) else _Fitted(stream)
        return model
    asks = [ask for name in _ASKED[1:] if callable(ask := getattr(llm, name, None))]
    at_once = _AllAtOnce(asks[0]) if asks else None
    if callable(stream):
        return _WithoutTools(stream, at_once)
    if at_once is not None:
        return at_once
    raise UsageError(
        f"{type(llm).__name__} is no model: it has no stream(messages, *, tools, schema, **options),"
        " and neither generate_with_tools nor complete."
    )


class _AllAtOnce:
    def __init__(self, ask: Any) -> None:
        self._ask = ask
        parameters = inspect.signature(ask).parameters.values()
        by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        if getattr(ask, "__name__", "") == "generate_with_tools":  # whatever else it may be given, it is given tools
            by_name |= {"tools" for p in parameters if p.kind is p.VAR_KEYWORD}
        self._takes_tools = any(p.name == "tools" and p.kind is not p.KEYWORD_ONLY for p in parameters) or (
            sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) > 1
        )
        self._takes_tools_by_name = "tools" in by_name and not self._takes_tools

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpecification] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Chunk, None]:
        """The answer, in one piece."""
        given = (list(messages), list(tools or ())) if self._takes_tools else (list(messages),)
        ask = functools.partial(self._ask, tools=list(tools or ())) if self._takes_tools_by_name else self._ask
        asked = ask(*given) if is_async(ask) else await asyncio.wrap_future(THREADS.call(ask, *given))
        answer = await settled(asked)
        _check_answer(self._ask, answer)
        content = answer if isinstance(answer, str) else _field(answer, "content")
        if isinstance(content, list):
            for chunk in text_chunks(content):
                yield chunk
        elif content:
            yield {"type": "text_delta", "content": content}
        if isinstance(answer, str):
            return
        if calls := _field(answer, "tool_calls"):
            yield {"type": "tool_calls", "tool_calls": calls}
        usage = _field(answer, "usage")
        if isinstance(usage, Mapping) or hasattr(usage, "model_dump"):
            yield {"type": "usage", "usage": usage}
        response = {"model": _field(answer, "model"), "response_id": _field(answer, "id")}
        if told := {name: value for name, value in response.items() if isinstance(value, str)}:
            yield {"type": "response", **told}
        reason = _field(answer, "stop_reason") or _field(answer, "finish_reason")
        if isinstance(reason, str) and (ours := STOP_REASONS.get(reason.lower(), reason)) in CUT_OFF_REASONS:
            yield {"type": "stop", "reason": ours}


def _check_answer(ask: Any, answer: Any) -> None:
    """Raise UsageError for what is no answer: a `return` was forgotten, or it is a whole response of some client's."""
    if isinstance(answer, Mapping):
        is_answer = "content" in answer or "tool_calls" in answer
    else:
        is_answer = isinstance(answer, str) or hasattr(answer, "content") or hasattr(answer, "tool_calls")
    if not is_answer:
        raise UsageError(
            f"A model's {getattr(ask, '__name__', 'answer')} returns a text, or an object or a mapping with content and"
            f" tool_calls, and this one returned {answer!r:.80}."
        )


class _WithoutTools:
    def __init__(self, stream: Any, with_tools: _AllAtOnce | None) -> None:
        self._stream = stream
        self._with_tools = with_tools

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpecification] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Chunk, None]:
        """The answer as it comes, unless there are tools to offer and something that takes them."""
        if tools and self._with_tools is not None:
            stream: Any = self._with_tools.stream(messages, tools=tools)
        else:
            stream = self._stream(list(messages))
        if inspect.isawaitable(stream):
            stream = await stream
        async with _closing(stream):
            async for chunk in stream:
                yield chunk


class _Fitted:
    """A `stream` of another signature: a schema it does not know of stands in the messages too, in words."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._takes_schema = _takes(stream, "schema")
        self._always = _not_optional(stream)

    def stream(self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """What it gives, called with what it takes."""
        if self._takes_schema and schema is not None:
            options["schema"] = schema
        return self._stream(messages, **{**self._always, **options})


class _InCoroutine:
    """A `stream` that has to be awaited first."""

    def __init__(self, stream: Any) -> None:
        self._takes_tools = _takes(stream, "tools")
        self._fitted = _Fitted(stream)

    async def stream(self, messages: Sequence[Message], **options: Any) -> AsyncGenerator[Chunk, None]:
        """The answer as it comes. Raises UsageError where it comes in one piece."""
        stream = await self._fitted.stream(messages, **(options if self._takes_tools else {}))
        if not hasattr(stream, "__aiter__"):
            raise in_one_piece(stream)
        async with _closing(stream):
            async for chunk in stream:
                yield chunk


@asynccontextmanager
async def _closing(stream: Any) -> AsyncGenerator[None, None]:
    """Close a stream in the end, where it can be closed."""
    try:
        yield
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()


def _wants_an_object(kind: type) -> bool:
    """Whether what a class is asked by belongs to its objects, and is no static method or class method."""
    method = next((name for name in _ASKED if hasattr(kind, name)), "")
    return inspect.isfunction(inspect.getattr_static(kind, method, None))


def _takes_messages(stream: Any) -> bool:
    """Whether it can be called with the messages; where nobody can tell, it can."""
    function = getattr(stream, "__func__", None)  # of a class's method, which is the same for a thousand models
    return _binds(stream, 1) if function is None else _method_binds(function, 2)


@functools.lru_cache(maxsize=64)
def _method_binds(function: Any, given: int) -> bool:
    return _binds(function, given)


def _binds(function: Any, given: int) -> bool:
    try:
        inspect.signature(function).bind_partial(*[None] * given)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _takes(method: Any, name: str) -> bool:
    """Whether it can be called with this argument; where nobody can tell, it can."""
    parameters = _parameters(method)
    return parameters is None or name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _not_optional(method: Any) -> dict[str, Any]:
    """What says "none" to a method that has to be given tools, or a schema."""
    parameters = _parameters(method) or {}
    nothing: dict[str, Any] = {"tools": [], "schema": None}
    required = {name for name, one in parameters.items() if one.default is one.empty}
    return {name: none for name, none in nothing.items() if name in required}


def _parameters(method: Any) -> Mapping[str, inspect.Parameter] | None:
    """What it can be called with; None where nobody can tell."""
    function = getattr(method, "__func__", None)  # of a class's method, which is the same for a thousand models
    return _read_parameters(method) if function is None else _read_method(function)


@functools.lru_cache(maxsize=64)
def _read_method(function: Any) -> Mapping[str, inspect.Parameter] | None:
    return _read_parameters(function)


def _read_parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
