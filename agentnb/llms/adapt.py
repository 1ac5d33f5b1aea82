"""Adapters: any object that answers messages, as a `Model` that streams chunks.

The loop designs were published with interfaces of their own: `generate_with_tools(messages, tools)` and
`complete(messages)`. Their results (a string, a mapping, or an object with `content` and `tool_calls`) become the
chunks of one answer, with text and calls. The method may be async. A sync method runs in a thread, because it would
block the event loop, and with it all other runs and clicks.

In addition to `generate_with_tools`, an object may have a `stream(messages)` without tools. It is used for requests
without tools.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import Parameter
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import CUT_OFF_REASONS
from agentnb.core.maybe_async import is_async, settled
from agentnb.llms.description import described
from agentnb.llms.protocol import Chunk, Message, Model, ToolSpecification
from agentnb.llms.reader import STOP_REASONS, text_chunks
from agentnb.threads import THREADS

_METHODS = ("stream", "generate_with_tools", "complete")
"""The methods by which a model is asked. The first one that it has is used."""


def in_one_piece(answer: Any) -> UsageError:
    """Return the error for a model's `stream` that returned something that cannot be iterated over."""
    return UsageError(
        f"A model's stream() must yield chunks, and this one returned {answer!r:.80}. Make it an async generator:"
        " `async def` with `yield`."
    )


def as_model(llm: Any) -> Model:
    """Return a model that streams: the object itself, or an adapter around it.

    Raises UsageError if the object is not a model.
    """
    if isinstance(llm, type):
        # A class is a model itself if its method is a static method or a class method.
        method = next((name for name in _METHODS if hasattr(llm, name)), "")
        if inspect.isfunction(inspect.getattr_static(llm, method, None)):
            raise UsageError(f"{llm.__name__} is a class; pass an object of it: {llm.__name__}(...).")
    stream = getattr(llm, "stream", None)
    if callable(stream) and not _takes_messages(stream):
        raise UsageError(
            f"{type(llm).__name__} is not a model: its stream() does not take the messages. Define it as"
            " stream(messages, *, tools, schema, **options)."
        )
    if inspect.iscoroutinefunction(stream):
        return _InCoroutine(stream)
    if inspect.isgeneratorfunction(stream):
        raise UsageError(f"{type(llm).__name__}.stream must be `async def`, because a sync generator blocks all runs.")
    if callable(stream) and _takes(stream, "tools"):
        model: Model = llm if _takes(stream, "schema") and not _required(stream) else _Fitted(stream)
        return model
    asks = [ask for name in _METHODS[1:] if callable(ask := getattr(llm, name, None))]
    whole = _WholeAnswer(asks[0]) if asks else None
    if callable(stream):
        return _WithoutTools(stream, whole)
    if whole is not None:
        return whole
    raise UsageError(
        f"{type(llm).__name__} is not a model: it has neither stream(messages, *, tools, schema, **options),"
        " nor generate_with_tools nor complete."
    )


def with_options(llm: Any, options: Mapping[str, Any]) -> Any:
    """Return a model that asks `llm` with these options; None removes one.

    A model with a method `with_options`, as the clients of `agentnb.llms` have, is asked for another client. The
    method `stream` of any other model is passed the options.

    Raises UsageError if the model does not take one of the options.
    """
    if not options or llm is None:
        return llm
    if callable(own := getattr(llm, "with_options", None)):
        return own(**options)
    return _WithOptions(llm, options)


def takes_schema(llm: Any) -> bool:
    """Return True if a model is passed the JSON schema that an answer must follow."""
    stream = getattr(llm, "stream", None)
    return callable(stream) and _takes(stream, "tools") and _takes(stream, "schema")


class _WithOptions:
    """A model that is passed options with each request."""

    def __init__(self, llm: Any, options: Mapping[str, Any]) -> None:
        model = as_model(llm)
        stream = getattr(llm, "stream", None)
        takes = callable(stream) and _takes(stream, "tools")  # the other adapters pass no options
        for name in options:
            if not (takes and _takes(stream, name)):
                method = next(name for name in _METHODS if hasattr(llm, name))
                raise UsageError(
                    f"{name} is not an option of {type(llm).__name__}: its {method}() does not take it."
                    " A method stream(messages, *, tools, schema, **options) takes all options."
                )
        self._llm, self._model = llm, model
        self._given = {name: value for name, value in options.items() if value is not None}
        own = getattr(llm, "options", None)
        self.options = {**(own if isinstance(own, Mapping) else {}), **self._given}

    def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpecification] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Ask the model with the options, and those of this request."""
        given: dict[str, Any] = {"tools": tools, "schema": schema}
        asked = {name: value for name, value in given.items() if value is not None}
        return self._model.stream(messages, **asked, **{**self._given, **options})

    def describe(self, **options: Any) -> dict[str, Any]:
        """Return the description of a request with the options."""
        return described(self._llm, {**self._given, **options})._asdict()


class _WholeAnswer:
    """A method that returns the whole answer."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask
        parameters = inspect.signature(ask).parameters.values()
        by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        # `generate_with_tools` gets the tools even if it has no parameter of that name.
        if getattr(ask, "__name__", "") == "generate_with_tools":
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
        """Yield the answer in one piece."""
        given = (list(messages), list(tools or ())) if self._takes_tools else (list(messages),)
        ask = functools.partial(self._ask, tools=list(tools or ())) if self._takes_tools_by_name else self._ask
        asked = ask(*given) if is_async(ask) else await asyncio.wrap_future(THREADS.call(ask, *given))
        answer = await settled(asked)
        # Reject what is not an answer: a `return` may be missing, or it is the whole response of a client.
        if isinstance(answer, Mapping):
            is_answer = "content" in answer or "tool_calls" in answer
        else:
            is_answer = isinstance(answer, str) or hasattr(answer, "content") or hasattr(answer, "tool_calls")
        if not is_answer:
            raise UsageError(
                f"A model's {getattr(self._ask, '__name__', 'answer')} must return a string, or an object or a mapping"
                f" with content and tool_calls, and this one returned {answer!r:.80}."
            )

        # Turn it into chunks: the text, the calls, and what is known about the answer.
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
        if known := {name: value for name, value in response.items() if isinstance(value, str)}:
            yield {"type": "response", **known}
        reason = _field(answer, "stop_reason") or _field(answer, "finish_reason")
        if isinstance(reason, str) and (ours := STOP_REASONS.get(reason.lower(), reason)) in CUT_OFF_REASONS:
            yield {"type": "stop", "reason": ours}


class _WithoutTools:
    """A `stream` that accepts no tools, with another method for requests that have tools."""

    def __init__(self, stream: Any, with_tools: _WholeAnswer | None) -> None:
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
        """Yield the answer as it comes, unless there are tools and a method that accepts them."""
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
    """A `stream` with another signature. It may ignore the schema, which the messages also describe in words."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._takes_schema = _takes(stream, "schema")
        self._always = _required(stream)

    def stream(self, messages: Sequence[Message], *, schema: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Call the method with the arguments that it accepts."""
        if self._takes_schema and schema is not None:
            options["schema"] = schema
        return self._stream(messages, **{**self._always, **options})


class _InCoroutine:
    """A `stream` that must be awaited first."""

    def __init__(self, stream: Any) -> None:
        self._takes_tools = _takes(stream, "tools")
        self._fitted = _Fitted(stream)

    async def stream(self, messages: Sequence[Message], **options: Any) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it comes. Raises UsageError if it comes in one piece."""
        stream = await self._fitted.stream(messages, **(options if self._takes_tools else {}))
        if not hasattr(stream, "__aiter__"):
            raise in_one_piece(stream)
        async with _closing(stream):
            async for chunk in stream:
                yield chunk


@asynccontextmanager
async def _closing(stream: Any) -> AsyncGenerator[None, None]:
    """Close a stream at the end, if it can be closed."""
    try:
        yield
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()


def _takes_messages(stream: Any) -> bool:
    """Return True if `stream` can be called with the messages, or if its signature is unknown."""
    # The signature of a method is read once for its class, which may have a thousand objects.
    function, arguments = (stream.__func__, 2) if hasattr(stream, "__func__") else (stream, 1)
    signature = _signature(function)
    if signature is None:
        return True
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    positional = sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    return positional >= arguments or Parameter.VAR_POSITIONAL in kinds


def _takes(method: Any, name: str) -> bool:
    """Return True if `method` can be called with this argument, or if its signature is unknown."""
    signature = _signature(getattr(method, "__func__", method))
    if signature is None:
        return True
    return name in signature.parameters or any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())


def _required(method: Any) -> dict[str, Any]:
    """Return the empty values of `tools` and `schema` for a method that requires these arguments."""
    signature = _signature(getattr(method, "__func__", method))
    parameters = signature.parameters if signature is not None else {}
    empty: dict[str, Any] = {"tools": [], "schema": None}
    required = {name for name, one in parameters.items() if one.default is one.empty}
    return {name: value for name, value in empty.items() if name in required}


def _signature(function: Any) -> inspect.Signature | None:
    """Return the signature of a function, or None if it has none, like some functions written in C."""
    try:
        return _cached_signature(function)
    except TypeError:  # not hashable
        return _read_signature(function)


def _read_signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


_cached_signature = functools.lru_cache(maxsize=64)(_read_signature)


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
