"""AnyLLM: models of any provider that the library any-llm knows, about fifty, by the clients of these providers.

`OpenAI` makes the request and reads the answer, as for every server of chat completions. In place of the transport,
any-llm translates the request for the provider, and the answer to chunks of chat completions. Signatures of reasoning,
which Anthropic and Gemini want to be sent again, are in these chunks.

any-llm is a small package that uses the official clients of the providers and has types. litellm knows more providers,
but it is seventy times as large, and depends on boto3, tokenizers and twenty more packages.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from agentnb.core.errors import (
    AuthenticationError,
    ContentFiltered,
    ContextTooLong,
    ModelError,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailable,
    UsageError,
)
from agentnb.core.maybe_async import settled
from agentnb.llms import errors
from agentnb.llms.client import MAX_RETRIES
from agentnb.llms.openai import OpenAI
from agentnb.llms.reader import DONE
from agentnb.llms.sse import ServerSentEvent
from agentnb.llms.transport import READ_TIMEOUT, Exchange, Transport

if TYPE_CHECKING:
    from agentnb.llms.protocol import JsonObject

INSTALL = "pip install 'agentnb-toolkit[any-llm]'"
NO_KEY = "none"
"""The key for a server that is given by its address: the official clients need one, and must not send that of the
provider's own server."""
_KINDS: dict[str, type[ModelError]] = {
    "AuthenticationError": AuthenticationError,
    "MissingApiKeyError": AuthenticationError,
    "ContentFilterError": ContentFiltered,
    "ContextLengthExceededError": ContextTooLong,
    "InvalidRequestError": ModelRequestError,
    "ModelNotFoundError": ModelRequestError,
    "InsufficientFundsError": ModelRequestError,
    "RateLimitError": ModelOverloaded,
}
"""The errors of any-llm for a failure that has no status. All others are failures of the server."""


class AnyLLM(OpenAI):
    """A model of a provider that any-llm knows.

        llm = AnyLLM("mistral:mistral-small-latest")

    model: the provider and the model, as "provider:model".
    base_url: the address of the server, if it is not the provider's own. It is sent a key only with `api_key_env`.
    api_key_env: the environment variable that has the API key; by default the usual one of the provider.
    tool_calls, images, timeout, max_retries, options: as for `OpenAI`. A provider may refuse an option.

    Raises UsageError if an argument is not valid, or if any-llm is not installed.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key_env: str | None = None,
        tool_calls: Literal["native", "schema"] = "native",
        images: bool = True,
        timeout: float | None = READ_TIMEOUT,
        max_retries: int = MAX_RETRIES,
        **options: Any,
    ) -> None:
        provider, _, name = model.partition(":")
        if not (re.fullmatch(r"[\w-]+", provider, re.ASCII) and name):
            raise UsageError(f'AnyLLM needs "provider:model", as in "mistral:mistral-small-latest", not {model!r}.')
        for option in ("http_client", "transport"):
            if option in options:
                raise UsageError(f"AnyLLM has no {option}=: the library of the provider has its own connections.")
        if find_spec("any_llm") is None:
            raise UsageError(f"AnyLLM needs the package any-llm: {INSTALL}")
        address = base_url or f"http://{provider}.any-llm"  # the second has the name of the provider, for errors
        super().__init__(
            name,
            address,
            api="chat",
            api_key_env=api_key_env,
            tool_calls=tool_calls,
            images=images,
            timeout=timeout,
            max_retries=max_retries,
            **options,
        )
        self.provider = provider
        self._transport = _Library(address, provider, base_url, api_key_env, timeout)

    def describe(self, **options: Any) -> JsonObject:
        """Return what a run records of a request with these options: `provider`, `model` and `options`."""
        description = super().describe(**options)
        has_address = isinstance(self._transport, _Library) and self._transport.base_url is not None
        left_out = ("api",) if has_address else ("api", "server")
        given = {name: value for name, value in description["options"].items() if name not in left_out}
        return description | {"options": given | {"library": "any-llm"}}


class _Library(Transport):
    """Sends the requests by any-llm.

    address: an address with the name of the server. variable: the environment variable that has the key.
    """

    def __init__(
        self, address: str, provider: str, base_url: str | None, variable: str | None, timeout: float | None
    ) -> None:
        super().__init__(address, variables=(variable,) if variable is not None else ())
        self._made_of = address, provider, base_url, variable, timeout
        self.base_url = base_url

    def __reduce__(self) -> tuple[Any, ...]:
        return _Library, self._made_of

    async def open(self, body: bytes, *, headers: Mapping[str, str] | None = None, timeout: Any = None) -> Exchange:
        """Ask the provider, and wait for the first chunk. Raises a ModelError."""
        _, provider, base_url, variable, usual_timeout = self._made_of
        if headers:
            raise UsageError(f"{', '.join(headers)}: a request by any-llm has no headers of its own.")
        silence: Any = usual_timeout if timeout is None else timeout
        silence = getattr(silence, "read", silence)  # of an httpx.Timeout
        await asyncio.to_thread(import_module, "any_llm")  # it takes a second
        key = os.environ.get(variable) if variable is not None else NO_KEY if base_url is not None else None
        exchange = _LibraryExchange(self.server, silence)
        try:
            await exchange.ask(_provider(provider, key, base_url), json.loads(body))
        except BaseException:
            await exchange.close()
            raise
        return exchange


class _LibraryExchange(Exchange):
    """One request by any-llm and its answer, as the events of chat completions."""

    def __init__(self, server: str, silence: float | None) -> None:
        self._server = server
        self._silence = silence
        self._client: Any = None
        self._chunks: AsyncIterator[Any] | None = None
        self._first: ServerSentEvent | None = None
        self._has_ended = False

    async def ask(self, provider: Any, request: dict[str, Any]) -> None:
        """Send the request, and wait for the first chunk."""
        self._client = provider.client
        with _translated(self._server, self._silence):
            async with asyncio.timeout(self._silence):
                self._chunks = aiter(await provider.acompletion(**request))
        self._first = await self._next(ModelUnavailable)

    async def next_event(self) -> ServerSentEvent | None:
        """Return the next event, None at the end of the answer."""
        event, self._first = self._first, None
        return event or await self._next()

    async def _next(self, broken: type[ModelError] = ModelProtocolError) -> ServerSentEvent | None:
        if self._chunks is None or self._has_ended:
            return None
        with _translated(self._server, self._silence, broken):
            async with asyncio.timeout(self._silence):
                chunk = await anext(self._chunks, None)
        if chunk is None:
            self._has_ended = True
            return ServerSentEvent(DONE)
        return ServerSentEvent(chunk.model_dump_json(exclude_none=True))

    async def drain(self) -> None:
        """Do nothing: the answer was read to its end."""

    async def close(self) -> None:
        """Close the connections of the provider's client."""
        for one, name in ((self._chunks, "aclose"), (self._client, "close")):
            if callable(close := getattr(one, name, None)):
                with suppress(RuntimeError):  # the event loop may have ended
                    await settled(close())


def _provider(name: str, key: str | None, base_url: str | None) -> Any:
    """Return any-llm's client of a provider. It does not retry, because agentnb does."""
    library = import_module("any_llm")
    make = partial(library.AnyLLM.create, name, api_key=key, api_base=base_url, unified_exceptions=True)
    try:
        try:
            return make(max_retries=0)
        except library.UnsupportedParameterError:
            return make()
    except library.MissingApiKeyError as error:
        raise AuthenticationError(str(error)) from None
    except (library.UnsupportedProviderError, ImportError) as error:  # or the provider's own client is not installed
        raise UsageError(f"any-llm cannot use {name}: {error}") from None


@contextmanager
def _translated(server: str, silence: float | None, broken: type[ModelError] = ModelUnavailable) -> Generator[None]:
    """Turn the errors of any-llm into ModelErrors. `broken` is the type for a connection that fails."""
    library = import_module("any_llm")
    try:
        yield
    except TimeoutError:
        raise ModelUnavailable(f"{server} was silent for {silence:g} s (timeout= sets this limit)") from None
    except library.UnsupportedParameterError as error:
        raise UsageError(f"{error.parameter_name} is not an option of {server}: {error}") from None
    except library.AnyLLMError as error:
        status = error.status_code
        if status is not None and status >= 400:
            about = {"message": error.message, "type": error.error_type, "code": error.code, "param": error.param}
            headers = {"retry-after": str(wait)} if (wait := getattr(error, "retry_after", None)) else {}
            raise errors.from_status(status, json.dumps({"error": about}), headers, server) from None
        kind = _KINDS.get(type(error).__name__, broken)
        raise kind(f"{server} failed: {error.message}") from None
    except NotImplementedError as error:
        raise UsageError(f"any-llm cannot do this with {server}: {error}") from None
