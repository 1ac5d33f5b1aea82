"""The one module that knows the HTTP library: a POST whose answer is an event stream.

The library is httpx 0.28. Its successor httpx2 is what newer provider libraries (and the MCP extra) bring, but
httpx is what JupyterLab itself depends on, so wherever agentnb runs it is there already and adds nothing to
install. The two differ in an import and little else; only this file would change.

An HTTP connection belongs to the event loop it was opened on. A transport therefore keeps one client for each loop,
and ties its life to the loop's: the client is held by an asynchronous generator, and `asyncio.run` closes those
before it closes the loop. One of a transport that is dropped before is closed in its loop then.

Errors are raised without their cause on purpose. httpx's own carry the request, whose headers hold the API key, and
a notebook's verbose traceback prints the local variables of every frame in the chain. Nor do they keep it as their
context, which not everything that shows errors leaves out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from agentnb.core.errors import ModelError, ModelProtocolError, ModelUnavailable, UsageError
from agentnb.llms import errors
from agentnb.llms.keys import SHORTEST_SECRET, masked, secrets_of, value_of
from agentnb.llms.sse import MAX_EVENT_SIZE, WHOLE, ServerSentEvent, SSEDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping

    from agentnb.llms.keys import EnvironmentKey

CONNECT_TIMEOUT = 10.0
"""Seconds to open a connection: a server that is there answers in one or two, TLS included."""
READ_TIMEOUT = 300.0
"""Seconds without an event: a server that hangs may go on sending comments, to keep the connection open. A reasoning
model behind the OpenAI dialect is silent while it thinks, which takes minutes."""
WRITE_TIMEOUT = 60.0
"""Seconds without progress while a request is sent; images make it megabytes."""
DRAIN_TIMEOUT = 0.5
"""Seconds to wait for the end of the body after the last event: a body read to its end leaves a connection that can
be used again."""
MAX_IDLE_CONNECTIONS = 20
"""Connections kept open between requests, for each loop: enough for a sweep's steady state, little enough to forget
about."""
MAX_ERROR_BODY = 64 * 1024
"""Bytes read of a body that tells an error."""
BOM = b"\xef\xbb\xbf"


class Transport:
    """Posts requests to one URL, each giving an `Exchange`.

    `key` is read anew for every request. No error quotes it, nor the keys in the environment's `variables`, nor any of
    `secrets`. `timeout` is the longest silence in seconds, None for no limit. Usable from several event loops and
    threads, at the same time too.
    """

    def __init__(
        self,
        url: str,
        *,
        key: EnvironmentKey | None = None,
        variables: tuple[str, ...] = (),
        secrets: tuple[str, ...] = (),
        headers: dict[str, str] | None = None,
        timeout: float | None = READ_TIMEOUT,
    ) -> None:
        self._given = _parse(url)
        self.server = _public_name(self._given)
        self.path = self._given.path
        self._url = self._given.copy_with(userinfo=b"")  # a request is shown by its address: by logs, and by tracebacks
        self._key = key
        # A gateway may have, and quote, the key that it is not sent.
        self._variables = (*variables, *((key.variable,) if key is not None else ()))
        self._secrets = secrets
        self._headers = {"accept": "text/event-stream, application/json", "content-type": "application/json"} | (
            headers or {}
        )
        self._timeout = timeout
        self._clients: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[httpx.AsyncClient]]] = {}
        self._lock = threading.Lock()
        # A transport that ends in a cycle, as runs and tracebacks make them, must not take its clients with it: the
        # collector would tear the connections down, each with a ResourceWarning. Somebody else has them up to then, and
        # a generator that is dropped is closed in its loop.
        weakref.finalize(self, self._clients.clear).atexit = False

    async def open(
        self, body: bytes, *, headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> Exchange:
        """Post `body` and wait for the answer's first event. Raises a `ModelError`; nothing is left open then.

        `headers` and `timeout` are this request's: the headers are added to the transport's own, and `timeout` takes
        the place of its time-out.
        """
        client = await self._client()
        silence = self._timeout if timeout is None else timeout
        request = client.build_request(
            "POST", self._url, content=body, headers={**self._headers, **(headers or {})}, timeout=_timeouts(silence)
        )
        with _blaming(self.server, silence):
            response = await client.send(request, stream=True, auth=_KeyAuth(self._key, self._given))
        exchange = Exchange(response, self.server, silence)
        try:
            await exchange.begin()
        except BaseException:
            await exchange.close()
            raise
        return exchange

    def redacted(self, error: ModelError, headers: Mapping[str, str] | None = None) -> ModelError:
        """Return the error without the API key, the secrets of the address, and those of the headers in it.

        The errors that it came from are dropped as well: their request has the key.
        """
        error.__context__ = None
        keys = [*map(value_of, self._variables), *self._secrets, *((headers or {}).values())]
        return masked(error, [*(key for key in keys if len(key) >= SHORTEST_SECRET), *secrets_of(self._given)])

    async def close(self) -> None:
        """Close this event loop's connections; they open again when needed."""
        with self._lock:
            held = self._clients.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held[1].aclose()

    def __reduce__(self) -> tuple[Callable[..., Transport], tuple[str]]:
        # A sweep sends models to other processes; the connections stay in this one.
        keys = partial(Transport, key=self._key, variables=self._variables, secrets=self._secrets)
        made = partial(keys, headers=self._headers, timeout=self._timeout)
        return made, (str(self._given),)

    async def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in list(self._clients) if other.is_closed()]:  # without its generators
                del self._clients[other]
            held = self._clients.get(loop)
        if held is None:
            lender = _lend(self._url.host, self._timeout, self._clients)
            held = (await anext(lender), lender)
            with self._lock:
                self._clients[loop] = held
        return held[0]


class Exchange:
    """One request and its answer: the response, and the events decoded from it."""

    def __init__(self, response: httpx.Response, server: str, timeout: float | None) -> None:
        self._response = response
        self._server = server
        self._timeout = timeout
        self._bytes = response.aiter_bytes()
        self._decoder = SSEDecoder()
        self._ready: deque[ServerSentEvent] = deque()

    async def begin(self) -> None:
        """Wait for the first event. Raises when there is none."""
        response = self._response
        if not response.is_success:
            raise errors.from_status(response.status_code, await self._text(), response.headers, self._server)
        first = await self._first()
        if first is None:
            raise ModelProtocolError(
                f"{self._server} answered {response.status_code} and ended the stream before its first event"
            )
        self._ready.appendleft(first)

    async def _first(self) -> ServerSentEvent | None:
        # What the header calls the body is often wrong, and its first character never: no field of an event stream
        # begins like JSON or HTML.
        begin = b""
        with _blaming(self._server, self._timeout):
            since = None
            while not begin and (data := await anext(self._bytes, None)) is not None:
                begin, since = data.removeprefix(BOM).lstrip(), self._waiting_since(since)
        if begin[:1] in (b"{", b"[", b"<"):
            text = (await self._text(begin, MAX_EVENT_SIZE)).strip().removesuffix("data: [DONE]")
            if error := errors.not_a_stream(text, self._server):
                raise error
            return ServerSentEvent(text, WHOLE)
        self._ready.extend(self._decoder.feed(begin))
        with _blaming(self._server, self._timeout):
            return await self._decode()

    async def next_event(self) -> ServerSentEvent | None:
        """Give the next event, None at the stream's end. Raises when it breaks, or ends inside an event."""
        with _blaming(self._server, self._timeout, ModelProtocolError):
            return await self._decode()

    async def drain(self) -> None:
        """Read what little is left of an answer that is complete."""
        # A server that keeps the connection open here, or drops it, costs us that connection and nothing else.
        with suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while await anext(self._bytes, None) is not None:
                    pass

    async def close(self) -> None:
        """Release the connection; one whose answer was not read to its end is closed."""
        try:
            await self._response.aclose()
        except RuntimeError:
            if not _is_loop_over():
                raise  # otherwise the event loop has ended in the middle of this, and the connection with it

    async def _decode(self) -> ServerSentEvent | None:
        since = None
        while not self._ready:
            data = await anext(self._bytes, None)
            if data is None:
                rest = self._decoder.close()
                if rest is None or rest.data.rstrip().endswith(("}", "]")):  # a last line that nobody has ended
                    return rest
                raise ModelProtocolError(f"the stream of {self._server} ended in the middle of an event")
            self._ready.extend(self._decoder.feed(data))
            if not self._ready:
                since = self._waiting_since(since)
        return self._ready.popleft()

    def _waiting_since(self, since: float | None) -> float:
        """Since when bytes have made no event; raises where that is too long. httpx sees to real silence."""
        now = time.monotonic()
        if since is not None and self._timeout is not None and now - since > self._timeout:
            raise ModelUnavailable(f"{self._server} was silent for {self._timeout:g} s, but for keep-alive comments")
        return since if since is not None else now

    async def _text(self, begin: bytes = b"", most: int = MAX_ERROR_BODY) -> str:
        body = bytearray(begin)
        with _blaming(self._server, self._timeout):
            while len(body) < most and (data := await anext(self._bytes, None)) is not None:
                body += data
        return body[:most].decode("utf-8", "replace")


class _KeyAuth(httpx.Auth):
    """Puts the key on the request at the last moment, so that no frame of ours has a variable that holds it.

    A name and a password in the address, as for a server behind a proxy, were meant for it more than a key that happens
    to be in the environment; both go where each has a header of its own.
    """

    def __init__(self, key: EnvironmentKey | None, url: httpx.URL) -> None:
        self._key = key
        self._url = url

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._key is not None and (value := self._key.header_value()) is not None:
            request.headers.setdefault(self._key.header, value)  # one that was given is meant
        if self._url.userinfo:
            yield from httpx.BasicAuth(self._url.username, self._url.password).auth_flow(request)
        else:
            yield request


@contextmanager
def _blaming(
    server: str, timeout: float | None, broken: type[ModelError] = ModelUnavailable
) -> Generator[None, None, None]:
    """Turn httpx's errors into ours; `broken` is what a failing connection means here."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise ModelUnavailable(f"no connection to {server} within {_connecting(timeout):g} s") from None
    except httpx.ReadTimeout:
        raise ModelUnavailable(f"{server} was silent for {timeout:g} s") from None
    except httpx.ConnectError as error:
        raise ModelUnavailable(f"no connection to {server}: {error}") from None
    except httpx.DecodingError as error:
        raise ModelProtocolError(f"{server} sent a body that cannot be decoded: {error}") from None
    except httpx.HTTPError as error:
        raise broken(f"the connection to {server} broke: {str(error) or type(error).__name__}") from None


async def _lend(
    host: str, silence: float | None, clients: dict[asyncio.AbstractEventLoop, Any]
) -> AsyncGenerator[httpx.AsyncClient]:
    try:
        client = httpx.AsyncClient(
            timeout=_timeouts(silence),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS),
            trust_env=not _is_loopback(host),  # a company's HTTP_PROXY knows nothing of a server on this machine
        )
    except (httpx.InvalidURL, ValueError, ImportError) as error:
        # httpx reads the environment here, and its error says a port or a scheme and not where it is from.
        names = [name for name in os.environ if name.lower() in _PROXY_VARIABLES]
        raise UsageError(
            f"One of the environment variables {', '.join(sorted(names))} cannot be read: {error}."
            " (An IPv6 address in NO_PROXY has no brackets: ::1.)"
        ) from None
    try:
        yield client
    finally:
        clients.pop(asyncio.get_running_loop(), None)  # a loop that ends is not to stay for the transport's sake
        await client.aclose()


_PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})


def _timeouts(silence: float | None) -> httpx.Timeout:
    return httpx.Timeout(silence, connect=_connecting(silence), write=WRITE_TIMEOUT, pool=None)


def _connecting(silence: float | None) -> float:
    return CONNECT_TIMEOUT if silence is None else min(CONNECT_TIMEOUT, silence)


def _parse(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        fault = re.sub("'.*'", "'…'", str(error))  # of an address with a password, what it quotes may be a part of that
        raise UsageError(f"base_url is not a URL: {fault}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 1) < 2**16:
        raise UsageError("base_url must be an http:// or https:// URL, such as http://localhost:8000/v1")
    return parsed


def _public_name(url: httpx.URL) -> str:
    # Not the URL itself, which may have a user name and a password in it.
    return f"{url.host}:{url.port}" if url.port else url.host


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified  # 0.0.0.0 is what servers say they listen at
    except ValueError:
        return host == "localhost"


def _is_loop_over() -> bool:
    """Whether the event loop that this code was written for has ended: the code is only closed now."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False
