"""What the HTTP clients share: one way from a request to a stream of chunks.

A dialect is two things: a body made from messages, and a reader that turns events into chunks. Readers do no I/O,
so they are tested on recorded streams byte by byte; everything that can happen to a connection is handled here and
below.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import aclosing
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol

from agentnb.core.errors import AuthenticationError, ModelError, ModelRequestError, UsageError
from agentnb.core.maybe_async import Inside
from agentnb.llms import attempts
from agentnb.llms.conversion import ROLES
from agentnb.llms.description import recorded_options
from agentnb.llms.json_text import strict_json
from agentnb.llms.schemas import as_specification
from agentnb.llms.transport import Transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from agentnb.llms.keys import EnvironmentKey
    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification
    from agentnb.llms.sse import ServerSentEvent


class Reader(Protocol):
    """Turns the events of one answer into chunks."""

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Give the chunks of one event. Raises a `ModelError` for an error event or a broken one."""
        ...

    def is_done(self) -> bool:
        """Say whether nothing can follow the events read so far."""
        ...

    def finish(self) -> list[Chunk]:
        """Give the closing chunks. Raises `ModelProtocolError` when the answer is not complete."""
        ...


def address(base_url: object, variable: str, default: str) -> str:
    """Give the base URL: the one that is given, or else the environment variable's. Raises UsageError for no text."""
    if not isinstance(base_url, (str, NoneType)):
        raise UsageError(f"base_url is the address of a server, as a text, not {base_url!r}.")
    return (base_url or os.environ.get(variable) or default).rstrip("/")


def endpoint(base_url: str, path: str) -> str:
    """Give the address of `path` below a base URL, which may have a query (Azure), or the path in it already."""
    base, mark, query = base_url.partition("?")
    base = base.rstrip("/").removesuffix(path)
    return base + path + mark + query


class HttpModel(ABC):
    """A model behind an HTTP API. `model` is its name; `options` go into every request's body."""

    provider: str
    needed: frozenset[str] = frozenset()
    """Options that no request can do without."""
    _where: str = ""
    """What is usually wrong with a base_url."""

    def __init__(
        self,
        model: str,
        url: str,
        *,
        key: EnvironmentKey | None,
        key_variable: str,
        own_headers: Mapping[str, str],
        headers: Mapping[str, str] | None,
        timeout: float | None,
        max_retries: int,
        options: Mapping[str, Any],
    ) -> None:
        check_options(options, f"{type(self).__name__}(...)", key_variable)
        _check_model(model)
        _check_max_retries(max_retries)
        if timeout is not None:
            _check_timeout(timeout)
        self.model = model
        self.options = dict(options)
        self._headers = _checked(headers)
        self._max_retries = max_retries
        self._key_variable = key.variable if key is not None else None
        self._usual_variable = key_variable
        self._transport = Transport(
            url,
            key=key,
            variables=(key_variable,),
            secrets=tuple(self._headers.values()),
            headers={**own_headers, **self._headers},
            timeout=timeout,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, server={self._transport.server!r})"

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpecification] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Chunk]:
        """Ask for the next message; give it as chunks, `stop` last.

        `options` override the client's own; None takes one out. `model`, `timeout` and `max_retries` are those of this
        request, `extra_headers` (or `headers`) go with it, `extra_body` is merged into its body, and every other option
        is a field of the body. Raises a `ModelError`, and UsageError for an option that cannot be followed. Closing the
        generator, or cancelling the task that waits on it, closes the connection.
        """
        check_options(options, "stream(...)", self._usual_variable)
        merged = {name: value for name, value in (self.options | options).items() if value is not None}
        # Options that are about the request, and no part of its body.
        model, timeout = merged.pop("model", self.model), merged.pop("timeout", None)
        max_retries = merged.pop("max_retries", self._max_retries)
        _check_model(model)
        _check_max_retries(max_retries)
        if timeout is not None:
            _check_timeout(timeout)
        headers = _checked(merged.pop("headers", None)) | _checked(merged.pop("extra_headers", None))
        extra_body = merged.pop("extra_body", {})
        merged.pop("stream", None)  # True, which it is

        known = [message for message in messages if message["role"] in ROLES]
        body, new_reader = self._prepare(known, [as_specification(tool) for tool in tools or ()], schema, merged)
        body = {**body, "model": model, **extra_body}
        text = strict_json(body, separators=(",", ":"))
        encoded = text.encode("utf-8", "replace")  # half a surrogate pair in a tool's result must not end a run
        answer = attempts.answer(
            self._transport, encoded, new_reader, max_retries=max_retries, headers=headers, timeout=timeout
        )
        failure: ModelError | None = None
        try:
            async with aclosing(Inside(answer)) as chunks:
                async for chunk in chunks:
                    yield _retry_chunk(chunk) if isinstance(chunk, attempts.Retry) else chunk
        except ModelError as error:
            failure = self._advised(self._transport.redacted(error, headers), merged, body)
        if failure is not None:  # out here, where what it is the clean form of is not its context
            raise failure from None

    def describe(self, **options: Any) -> JsonObject:
        """Return which model a request with these options asks, and how: `provider`, `model` and `options`.

        This is what a run records of the request. It has no messages, no schemas and no secrets.
        """
        merged = self.options | {"server": self._transport.server} | options
        given = {name: value for name, value in merged.items() if value is not None}
        model = given.pop("model", self.model)
        extra = given.get("extra_body")
        if isinstance(extra, Mapping) and isinstance(extra.get("model"), str):
            model = extra["model"]
        return {"provider": self.provider, "model": model, "options": recorded_options(given)}

    def _advised(self, error: ModelError, options: Mapping[str, Any], body: JsonObject) -> ModelError:
        """The same error, with what the user can do where the server refuses a part of the request."""
        said = str(error)
        if isinstance(error, AuthenticationError) and error.status == 401:
            if (key := self._key_variable) is None:
                variable = self._usual_variable
                return error.reworded(f'{said} (no key was sent; api_key_env="{variable}" sends the one in {variable})')
            where = f"the key is that of the environment variable {key}"
            return error.reworded(f"{said} ({where}{', which is not set' * (key not in os.environ)})")
        if type(error) is not ModelRequestError or error.status is None:
            return error
        advice = []
        for name in options:
            if name not in self.needed and _names(said, name):
                wanted = re.search(rf"set {re.escape(name)} to ['\"`]?(\w+)", said)
                # To leave it out would be its default, which may be what is refused.
                advice.append(
                    f'{name}="{wanted[1]}" is what it asks for' if wanted else f"{name}=None leaves {name} out"
                )
        if error.status in (404, 405) and not re.search("model", said, re.IGNORECASE):
            advice.append(f"it was asked at {self._transport.path}, by base_url{self._where}")
        advice += self._advice(said, body)
        return error.reworded(f"{said} ({'; '.join(advice)})") if advice else error

    def _advice(self, said: str, body: JsonObject) -> list[str]:
        """What else to do about a request that was refused in these words."""
        return []

    async def aclose(self) -> None:
        """Close the connections that this event loop holds; the model can still be used."""
        await self._transport.close()

    @abstractmethod
    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        """Make the request's body, and what makes a reader for its answer."""


_NOT_OPTIONS = {
    "messages": "messages are the first argument of stream()",
    "base_url": "base_url is an argument of the client",
    "extra_query": "a query is a part of base_url",
    "http_client": "agentnb has one of its own",
    "organization": "give it by headers=",
    "project": "give it by headers=",
    "default_headers": "they are called headers here",
    "default_query": "a query is a part of base_url",
}
"""What other libraries' clients are given, and no server is sent as a field of the body."""


def check_options(options: Mapping[str, Any], where: str, variable: str) -> None:
    """Raise UsageError for an option that would be sent and mean nothing, or that cannot be followed."""
    for name in ("api_key", "key"):
        if name in options:
            instead = (
                f"API keys are read from the environment only, from {variable} or the variable that api_key_env= names"
                if variable
                else "no key is needed"
            )
            raise UsageError(f"{name} is not an option of {where}: {instead}.")
    for name, instead in _NOT_OPTIONS.items():
        if name in options:
            raise UsageError(f"{name} is not an option of {where}: {instead}.")
    if options.get("stream") not in (None, True):
        raise UsageError(f"{where} cannot follow stream={options['stream']!r}: an answer always streams.")
    if (extra := options.get("extra_body")) is not None:
        if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
            raise UsageError(f"extra_body must be a mapping of fields of the request's body, got {extra!r:.80}.")
        for name in ("messages", "stream"):
            if name in extra:
                raise UsageError(f"extra_body cannot have {name!r}: the client fills that field in itself.")
    _checked(options.get("headers"))
    _checked(options.get("extra_headers"))


def _check_model(model: object) -> None:
    if not isinstance(model, str):
        raise UsageError(f"model is a model's name, as a text, not {model!r}.")


def _check_max_retries(max_retries: object) -> None:
    if type(max_retries) is not int or max_retries < 0:
        raise UsageError(f"max_retries must be 0 or more, not {max_retries!r}")


def _check_timeout(timeout: Any) -> None:
    if type(timeout) not in (int, float) or not timeout > 0:
        raise UsageError(f"timeout is in seconds, more than none, or None for no limit, not {timeout!r}")


def _checked(headers: object) -> dict[str, str]:
    """Headers in lower case. Raises UsageError, which quotes no value, where they are none."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UsageError("headers is a mapping of names to texts, None for none.")
    for name, value in headers.items():
        texts = isinstance(name, str) and isinstance(value, str)
        if not (
            texts and re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) and value.isascii() and value.isprintable()
        ):
            raise UsageError(
                f"headers[{name!r:.80}] cannot be sent: a name and its value are texts of printable ASCII."
            )
    return {name.lower(): value for name, value in headers.items()}


def _names(said: str, option: str) -> bool:
    """Say whether a server's words name an option; one that is a word of the language too stands in quotes there."""
    edge = r"\b" if "_" in option else r"""['"`.\[\]]"""
    return re.search(edge + re.escape(option) + edge, said) is not None


def _retry_chunk(retry: attempts.Retry) -> Chunk:
    error = f"{type(retry.error).__name__}: {retry.error}"
    return {"type": "retry", "attempt": retry.attempt, "wait": retry.wait, "error": error}
