"""Client: one request over HTTP, from messages to a stream of chunks, with its options and its retries.

A dialect (`openai`, `anthropic`) adds two things: how messages become the body of a request, and a `Reader`, which
turns the events of the answer into chunks.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import stamina

from agentnb.core.errors import (
    AuthenticationError,
    ModelError,
    ModelOverloaded,
    ModelRequestError,
    ModelUnavailable,
    UsageError,
)
from agentnb.core.secrets import Secrets, check_no_key_travels, secrets_in, secrets_in_headers
from agentnb.llms import errors
from agentnb.llms.conversion import ROLES, as_specification
from agentnb.llms.description import recorded_options
from agentnb.llms.pacing import sleep_of
from agentnb.llms.protocol import usage_told_to
from agentnb.llms.reader import strict_json
from agentnb.llms.transport import Transport, is_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from agentnb.llms.keys import EnvironmentKey
    from agentnb.llms.protocol import Chunk, JsonObject, Message, ToolSpecification
    from agentnb.llms.reader import Reader
    from agentnb.llms.transport import Exchange

MAX_RETRIES = 3
RETRY_WAIT = 0.5
"""Seconds before the first retry. The wait doubles each time, up to `RETRY_WAIT_LIMIT`, plus up to `RETRY_JITTER`."""
RETRY_WAIT_LIMIT = 8.0
RETRY_JITTER = 0.5
RETRY_AFTER_LIMIT = 60.0
"""The longest wait in seconds that a server can ask for. Then it is asked again, whatever it has asked for."""
PATIENCE = 300.0
"""The seconds for which requests wait while the server refuses all of them. A person prefers an error to a longer wait.
"""
NOTICED = 1.0
"""The wait in seconds for a rate limit from which it is reported."""

# stamina logs each retry as a warning, which Python prints into the notebook unless logging is configured. The stream
# reports retries anyway. If logging is configured, the warning still appears.
logging.getLogger("stamina").addHandler(logging.NullHandler())


class HttpModel(ABC):
    """A model behind an HTTP API: the base of the clients.

    model: the model's name.
    url: the address of requests.
    key: the API key, None to send none.
    key_variable: the environment variable that usually has the key, for errors.
    own_headers, headers: headers of every request: those of the dialect, and those of the user.
    timeout: the longest silence in seconds, None for no limit; or an `httpx.Timeout`.
    http_client, transport: an `httpx.AsyncClient` to use, or a transport of httpx for the clients that are made.
    max_retries: the number of attempts after the first one. Waits for a rate limit do not count, unless it is 0.
    options: fields of the body of every request.
    """

    provider: str
    required_options: frozenset[str] = frozenset()
    """Options that every request must have."""
    known_options: frozenset[str] = frozenset()
    """The fields of a request's body that `with_options` accepts."""

    def __init__(
        self,
        model: str,
        url: str,
        *,
        key: EnvironmentKey | None,
        key_variable: str,
        own_headers: Mapping[str, str],
        headers: Mapping[str, str] | None,
        timeout: Any,
        max_retries: int,
        options: Mapping[str, Any],
        http_client: Any = None,
        transport: Any = None,
    ) -> None:
        self._usual_variable = key_variable
        self._check_options(options, f"{type(self).__name__}(...)")
        _check_request(model, timeout, max_retries)
        self.model = model
        self.options = dict(options)
        self._headers = _checked_headers(headers)
        self._max_retries = max_retries
        self._key_variable = key.variable if key is not None else None
        self._transport = Transport(
            url,
            key=key,
            variables=(key_variable,),
            secrets=tuple(secrets_in_headers(self._headers)),
            headers={**own_headers, **self._headers},
            timeout=timeout,
            http_client=http_client,
            http_transport=transport,
        )
        check_spelling(options, self.known_options, f"{type(self).__name__}(...)", self._transport.server)

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
        """Request the next message, and yield it as chunks, `stop` last.

        A request that fails before the first event of its answer is sent again, after a `retry` chunk, at most
        `max_retries` times. A refusal because of a rate limit does not count: the request waits, together with all
        requests of this process that share the limit, until the server has refused them for `PATIENCE`. A later failure
        is raised: a part of the answer may have been shown and acted on, and a second answer would differ from it.

        messages: the conversation.
        tools: the tools that the model may call.
        schema: a JSON schema for the text of the answer.
        options: options that override those of the client; None removes one. `model`, `timeout` and `max_retries` are
            those of this request, `extra_headers` (or `headers`) are sent with it, and `extra_body` is merged into its
            body. Every other option is a field of the body.

        Raises a ModelError, and UsageError for an option that is not supported. Closing the generator, or cancelling
        the task that waits for it, closes the connection.
        """
        self._check_options(options, "stream(...)")
        check_spelling(options, self.known_options, "stream(...)", self._transport.server)
        merged = {name: value for name, value in (self.options | options).items() if value is not None}

        # Take out the options that are not fields of the body.
        model, timeout = merged.pop("model", self.model), merged.pop("timeout", None)
        max_retries = merged.pop("max_retries", self._max_retries)
        _check_request(model, timeout, max_retries)
        headers = _checked_headers(merged.pop("headers", None)) | _checked_headers(merged.pop("extra_headers", None))
        extra_body = merged.pop("extra_body", {})
        merged.pop("stream", None)  # it can only be True

        # Make the body. Half of a surrogate pair in a tool's result must not end the run, so it is replaced.
        known = [message for message in messages if message["role"] in ROLES]
        body, new_reader = self._prepare(known, [as_specification(tool) for tool in tools or ()], schema, merged)
        body = {**body, "model": model, **extra_body}
        encoded = _encoded(body, self.options | options)

        pace = self._transport.pace(model)
        ticket, since = pace.ticket(), time.monotonic()
        failures = 0
        attempts = stamina.retry_context(
            on=lambda error: again is not None and again,
            attempts=None,
            timeout=None,  # the number of failures, each wait and the time of refusals are bounded
            wait_initial=RETRY_WAIT,
            wait_max=RETRY_WAIT_LIMIT,
            wait_jitter=RETRY_JITTER,
        )
        advised: ModelError | None = None
        try:
            async for attempt in attempts:
                # Wait for the limit that this request shares with others.
                is_reported = attempt.num > 1
                while not stamina.is_testing() and (wait := pace.wait_of(ticket, time.monotonic())):
                    now = time.monotonic()
                    if min(pace.refusing_for(now), now - since) > PATIENCE:
                        raise ModelOverloaded(f"{self._transport.server}: {_refuses_all(None)}")
                    if wait > NOTICED and not is_reported:
                        is_reported = True
                        why = f"{self._transport.server} limits the rate of requests, and this one waits for its turn"
                        yield {"type": "retry", "attempt": attempt.num - 1, "wait": wait, "error": why}
                    await asyncio.sleep(sleep_of(wait))

                epoch = pace.epoch
                reader = new_reader()
                exchange: Exchange | None = None
                failure: ModelError | None = None
                again: bool | float | None = None  # the seconds to wait for the next attempt, True for stamina's wait
                has_started = False
                try:
                    # Send the request, and wait for the first event of the answer. stamina keeps any exception up to
                    # here, and raises it or starts the next attempt when the loop continues.
                    with attempt:
                        try:
                            exchange = await self._transport.open(encoded, headers=headers, timeout=timeout)
                            chunks = await _read_next(exchange, reader)
                            has_started = True
                            pace.accepted()
                        except ModelError as error:
                            failure = self._transport.redacted(error, secrets_in(self.options | options))
                            if max_retries and _is_refusal(failure):
                                asked = failure.retry_after
                                shortened = min(asked, RETRY_AFTER_LIMIT) if asked is not None else None
                                now = time.monotonic()
                                closed = pace.refused(epoch, shortened, now)
                                again = 0.0  # the wait is that of the shared limit
                                reported = closed if shortened is None else shortened
                                if pace.refusing_for(now) > PATIENCE:
                                    again = None
                                    failure = failure.reworded(f"{failure} ({_refuses_all(asked)})")
                            elif _is_worth_a_retry(failure) and failures < max_retries:
                                failures += 1
                                asked = failure.retry_after  # stamina does not limit a given wait
                                again = True if asked is None else min(asked, RETRY_AFTER_LIMIT)
                                reported = attempt.next_wait if again is True else again
                            if attempt.num > 1:
                                failure.add_note(f"{attempt.num} attempts were made")
                            raise failure from None
                    # Stream the answer.
                    if has_started and exchange is not None:
                        tell, told = usage_told_to.get(), None
                        while chunks is not None:
                            if tell is not None and (usage := reader.usage) is not told and usage is not None:
                                tell(told := usage)
                            for chunk in chunks:
                                yield chunk
                            chunks = await _read_next(exchange, reader)
                        if reader.is_done():
                            await exchange.drain()
                finally:
                    if exchange is not None:
                        await exchange.close()
                if has_started:
                    for chunk in reader.finish():
                        yield chunk
                # Report the retry. The wait for it is between two passes of this loop, or at the beginning of the next.
                elif failure is not None and again is not None:
                    words = f"{type(failure).__name__}: {failure}"
                    yield {"type": "retry", "attempt": attempt.num, "wait": reported, "error": words}
        except ModelError as error:
            advised = self._advised(self._transport.redacted(error, secrets_in(self.options | options)), merged, body)
        finally:
            pace.leave(ticket)
        if advised is not None:  # raised outside of the handler, so that the error with secrets is not its context
            raise advised from None

    def describe(self, **options: Any) -> JsonObject:
        """Return what a run records of a request with these options: `provider`, `model` and `options`.

        It has no messages, no schemas and no secrets. With a schema, the options have the part of the request in which
        it is sent, as `schema_as`.
        """
        merged = self.options | {"server": self._transport.server} | options
        given = {name: value for name, value in merged.items() if value is not None}
        model = given.pop("model", self.model)
        extra = given.get("extra_body")
        if isinstance(extra, Mapping) and isinstance(extra.get("model"), str):
            model = extra["model"]
        if given.get("schema") is not None:
            given["schema_as"] = self._schema_as
        return {"provider": self.provider, "model": model, "options": recorded_options(given)}

    def identity(self) -> JsonObject:
        """Return what determines an answer, besides the options and the request: the API, the server and the model.

        It has the address, the headers and the client of httpx, without secrets, and how the request is written
        (`_form`).
        """
        return {"provider": self.provider, "model": self.model, **self._transport.identity()} | self._form

    def with_options(self, **options: Any) -> Self:
        """Return a client for the same model with these options, in addition to those of this client.

        Both use the same connections. None removes an option.

            exact = llm.with_options(temperature=0)

        Raises UsageError for an option that is not known, or not valid. `extra_body` has other fields.
        """
        where = f"{type(self).__name__}.with_options(...)"
        check_known(options, self.known_options, where, self._transport.server)
        made = copy.copy(self)
        made.options = self.options | options
        made._check_options(made.options, where)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs. Raises UsageError if a key was given as text: each process reads its own.

        A key that is read from an environment variable travels as the name of the variable.
        """
        self._transport.check_can_travel()
        for name, value in self.options.items():
            check_no_key_travels(name, value, name)
        return self.__dict__

    def __copy__(self) -> Self:
        made = object.__new__(type(self))  # a copy in this process may have keys
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = copy.copy(self)
        made.options = copy.deepcopy(self.options, memo)
        return made

    async def aclose(self) -> None:
        """Close the connections of this event loop. The model can still be used: it opens new ones."""
        await self._transport.close()

    @property
    def _form(self) -> JsonObject:
        """The arguments of the client that change how a request is written, without those with the usual value."""
        return {}

    @property
    @abstractmethod
    def _schema_as(self) -> str:
        """The part of a request that has the schema of the answer, for recordings."""

    @abstractmethod
    def _prepare(
        self,
        messages: Sequence[Message],
        tools: list[ToolSpecification],
        schema: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> tuple[JsonObject, Callable[[], Reader]]:
        """Return the body of a request, and a function that makes a reader for its answer."""

    def _check_options(self, options: Mapping[str, Any], where: str) -> None:
        """Raise UsageError for an option that is not supported. A client with options of its own extends this.

        where: the call that has the options, for the error.
        """
        check_options(options, where, self._usual_variable)

    @property
    def _base_url_hint(self) -> str:
        """The usual fault of a base_url, for errors."""
        return ""

    def _advice(self, message: str, body: JsonObject) -> list[str]:
        """Return what the user can do about a request that the server refused with this message."""
        return []

    def _advised(self, error: ModelError, options: Mapping[str, Any], body: JsonObject) -> ModelError:
        """Return the error with what the user can do about it, if the server refused a part of the request."""
        message = str(error)
        if isinstance(error, AuthenticationError) and error.status == 401:
            if (key := self._key_variable) is None:
                usual = self._usual_variable
                return error.reworded(
                    f'{message} (no key was sent; api_key_env="{usual}" sends the key in the variable {usual})'
                )
            unset = "" if key in os.environ else ", which is not set"
            return error.reworded(f"{message} (the key is that of the environment variable {key}{unset})")
        if type(error) is not ModelRequestError or error.status is None:
            return error

        # An option that the message names: leave it out, or set it as the server asks. Leaving it out means its
        # default, which may be the value that is refused.
        advice = []
        for name in options:
            # An option whose name is also an English word has to be in quotes.
            edge = r"\b" if "_" in name else r"""['"`.\[\]]"""
            if name not in self.required_options and re.search(edge + re.escape(name) + edge, message):
                wanted = re.search(rf"set {re.escape(name)} to ['\"`]?(\w+)", message)
                advice.append(
                    f'the server asks for {name}="{wanted[1]}"' if wanted else f"{name}=None leaves {name} out"
                )
        # A wrong address.
        if error.status in (404, 405) and not re.search("model", message, re.IGNORECASE):
            advice.append(f"base_url leads to the path {self._transport.path}{self._base_url_hint}")
        # A picture for a model that takes none.
        has_picture = re.search(r'"type":"(image|image_url|input_image)"', strict_json(body, separators=(",", ":")))
        if has_picture and re.search("image|vision|multi-?modal", message, re.IGNORECASE):
            advice.append(f"{type(self).__name__}(..., images=False) sends a text in place of each picture")
        advice += self._advice(message, body)
        return error.reworded(f"{message} ({'; '.join(advice)})") if advice else error


def _encoded(body: JsonObject, options: Mapping[str, Any]) -> bytes:
    """Return the body of a request. Raises UsageError for an option that is not JSON data."""
    try:
        return strict_json(body, separators=(",", ":")).encode("utf-8", "replace")
    except TypeError:
        for name, value in options.items():
            try:
                strict_json(value)
            except TypeError:
                shown = Secrets(secrets_in({name: value})).without(repr(value))
                raise UsageError(f"{name}={shown:.80} cannot be sent: an option must be JSON data.") from None
        raise


async def _read_next(exchange: Exchange, reader: Reader) -> list[Chunk] | None:
    """Return the chunks of the next event of the answer, None at its end. Keep-alive events are skipped."""
    while not reader.is_done() and (event := await exchange.next_event()) is not None:
        if not errors.is_sign_of_life(event.data, event.event):
            return reader.read(event)
    return None


def _refuses_all(asked: float | None) -> str:
    """Return the words for a server that has not recovered. asked: the seconds that it asks to wait."""
    words = f"it has refused all requests for {PATIENCE / 60:g} minutes"
    if asked is None:
        return words
    return f"{words}, and asks to wait {f'{asked / 3600:.0f} h' if asked >= 7200 else f'{asked:.0f} s'}"


def _is_refusal(error: ModelError) -> bool:
    """Return True if a server asks all of its clients to wait."""
    if error.should_retry is False:
        return False
    return isinstance(error, ModelOverloaded) or (error.status == 503 and error.retry_after is not None)


def _is_worth_a_retry(error: ModelError) -> bool:
    """Return True if the request may succeed when it is sent again. The server's word decides, if there is one."""
    if error.should_retry is not None:
        return error.should_retry
    return isinstance(error, ModelOverloaded | ModelUnavailable)


# Addresses and options.


def base_address(base_url: object, variable: str, default: str) -> str:
    """Return the base URL: the given one, else the environment variable's, else the default.

    Raises UsageError if the given one is not a string.
    """
    if base_url is not None and not isinstance(base_url, str):
        raise UsageError(f"base_url must be the address of a server, as a string, not {type(base_url).__name__}.")
    return (base_url or os.environ.get(variable) or default).rstrip("/")


def endpoint(base_url: str, path: str) -> str:
    """Return the address of `path` below a base URL, which may have a query (Azure) and may end with the path."""
    base, mark, query = base_url.partition("?")
    base = base.rstrip("/").removesuffix(path)
    return base + path + mark + query


_NOT_OPTIONS = {
    "messages": "messages are the first argument of stream()",
    "base_url": "base_url is an argument of the client",
    "extra_query": "a query is a part of base_url",
    **{
        name: f"httpx has it, so pass http_client=httpx.AsyncClient({name}=...) to the model's client"
        for name in (
            *("verify", "cert", "trust_env", "http1", "http2", "proxy", "proxies", "mounts", "limits", "event_hooks"),
            *("follow_redirects", "max_redirects", "auth", "cookies", "default_encoding"),
        )
    },
    "http_client": "it is an argument of the model's client",
    "transport": "it is an argument of the model's client",
    "client": "an httpx.AsyncClient is passed to the model's client as http_client=",
    "http_async_client": "an httpx.AsyncClient is passed to the model's client as http_client=",
    "async_client": "an httpx.AsyncClient is passed to the model's client as http_client=",
    "request_timeout": "this option is called timeout here",
    "default_timeout": "this option is called timeout here",
    "organization": "pass it as a header by headers=",
    "project": "pass it as a header by headers=",
    "default_headers": "this option is called headers here",
    "default_query": "a query is a part of base_url",
}
"""Options of other libraries' clients that are not fields of a request's body, and what to use instead."""


def check_options(options: Mapping[str, Any], where: str, variable: str) -> None:
    """Raise UsageError for an option that would have no effect, or that is not supported.

    where: the call that has the options, for the error.
    variable: the environment variable that has the API key, "" if no key is needed.
    """
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
        raise UsageError(f"{where} does not support stream={options['stream']!r}: an answer is always streamed.")
    if (extra := options.get("extra_body")) is not None:
        if not isinstance(extra, Mapping) or not all(isinstance(name, str) for name in extra):
            raise UsageError(
                f"extra_body must be a mapping of fields of the request's body, got {type(extra).__name__}."
            )
        for name in ("messages", "stream"):
            if name in extra:
                raise UsageError(f"extra_body cannot have {name!r}: the client sets that field itself.")
    _checked_headers(options.get("headers"))
    _checked_headers(options.get("extra_headers"))


OPTIONS_OF_REQUESTS = frozenset({"extra_body", "extra_headers", "max_retries", "timeout"})
"""The options of every client that are not fields of the body of a request."""
_OTHER_OPTIONS = frozenset({"model", "stream", "headers", "schema", "tools"})
"""More names that a request may have. `check_options` has the rules for them."""
ALIKE = 0.85
"""The similarity from which an unknown option is taken for a misspelt one, such as `tempratur` (0.9)."""


def check_known(options: Mapping[str, Any], known: frozenset[str], where: str, server: str) -> None:
    """Raise UsageError for an option that is not known, because some servers ignore what they do not know.

    known: the fields of the body. where: the call that has the options. server: the server's name.
    """
    if "model" in options:
        raise UsageError(f"model is not an option of {where}: make a client for that model.")
    for name in options:
        if name in known or name in OPTIONS_OF_REQUESTS or name in _NOT_OPTIONS or name in ("api_key", "key"):
            continue
        close = difflib.get_close_matches(name, sorted(known | OPTIONS_OF_REQUESTS), 1)
        raise _unknown_option(name, where, server, close)


def check_spelling(options: Mapping[str, Any], known: frozenset[str], where: str, server: str) -> None:
    """Raise UsageError for an option that looks like a misspelt one. Other options are sent, although unknown.

    Arguments: as for `check_known`.
    """
    for name in options.keys() - known - OPTIONS_OF_REQUESTS - _OTHER_OPTIONS:
        if close := difflib.get_close_matches(name, sorted(known | OPTIONS_OF_REQUESTS), 1, ALIKE):
            raise _unknown_option(name, where, server, close)


def _unknown_option(name: str, where: str, server: str, close: list[str]) -> UsageError:
    guess = f" Did you mean {close[0]}?" if close else ""
    return UsageError(
        f"{name} is not an option of {where} for {server}.{guess} If the server has it, pass"
        f" extra_body={{{name!r}: ...}}."
    )


def _check_request(model: object, timeout: Any, max_retries: object) -> None:
    if not isinstance(model, str):
        raise UsageError(f"model must be the name of a model, as a string, not {model!r}.")
    if type(max_retries) is not int or max_retries < 0:
        raise UsageError(f"max_retries must be 0 or more, not {max_retries!r}")
    if not is_timeout(timeout):
        raise UsageError(
            f"timeout must be a positive number of seconds, an httpx.Timeout, or None for no limit, not {timeout!r}"
        )


def _checked_headers(headers: object) -> dict[str, str]:
    """Return headers with names in lower case. Raises UsageError, which quotes no value, if they are not valid."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UsageError("headers must be a mapping of names to strings, or None for no headers.")
    for name, value in headers.items():
        are_strings = isinstance(name, str) and isinstance(value, str)
        is_valid = are_strings and re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII)
        if not (is_valid and value.isascii() and value.isprintable()):
            raise UsageError(
                f"headers[{name!r:.80}] cannot be sent: a name and its value must be strings of printable ASCII."
            )
    return {name.lower(): value for name, value in headers.items()}
