"""Transport: POST requests whose answers are event streams. The only module that uses the HTTP library.

The library is httpx 0.28, on which JupyterLab depends, so that agentnb adds nothing to install. Its successor httpx2
comes with newer libraries of providers (and with the extra `mcp`). The two differ in an import and little else.

An HTTP connection belongs to the event loop in which it was opened. So a transport keeps one client for each event
loop. An asynchronous generator holds the client, and `asyncio.run` closes such generators before it closes the event
loop. If a transport is dropped earlier, its clients are closed in their event loops.

Errors are raised without their cause and without their context. The errors of httpx hold the request, whose headers
hold the API key, and a verbose traceback in a notebook prints the local variables of every frame in the chain.
"""

from __future__ import annotations

import asyncio
import hashlib
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
from agentnb.core.secrets import (
    CUT,
    SHORTEST_SECRET,
    Secrets,
    check_no_key_travels,
    is_a_secret_header,
    mask_logs,
    secrets_in_address,
    secrets_in_headers,
)
from agentnb.llms import errors
from agentnb.llms.identity import told
from agentnb.llms.keys import masked, value_of
from agentnb.llms.pacing import Pace
from agentnb.llms.sse import MAX_EVENT_SIZE, WHOLE, ServerSentEvent, SSEDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping

    from agentnb.llms.keys import EnvironmentKey

CONNECT_TIMEOUT = 10.0
"""Seconds to open a connection. A server that is reachable answers in one or two, including TLS."""
READ_TIMEOUT = 300.0
"""Seconds without an event. A server that hangs may continue to send comments, to keep the connection open. A reasoning
model behind OpenAI's dialect is silent while it thinks, which takes minutes.
"""
WRITE_TIMEOUT = 60.0
"""Seconds without progress while a request is sent. A request with pictures has megabytes."""
DRAIN_TIMEOUT = 0.5
"""Seconds to wait for the end of the body after the last event. A connection can be used again only if the body was
read to its end.
"""
MAX_IDLE_CONNECTIONS = 20
"""The number of connections that are kept open between requests, for each event loop. It is enough for a study with
many runs.
"""
MAX_ERROR_BODY = 64 * 1024
"""The number of bytes that are read of a body that reports an error."""
BOM = b"\xef\xbb\xbf"
_CHECK = "check the network and base_url"
_OF_HTTPX = frozenset({"accept", "accept-encoding", "connection", "user-agent"})
"""The headers that httpx sends by itself."""
_paces: weakref.WeakValueDictionary[tuple[object, ...], Pace] = weakref.WeakValueDictionary()
"""The paces of this process, while a transport uses them."""
_paces_lock = threading.Lock()


class Transport:
    """Posts requests to one URL. It can be used from several event loops and threads concurrently.

    url: the address.
    key: the API key, which is read for each request. No error quotes it.
    variables: environment variables whose keys no error may quote either.
    secrets: other strings that no error may quote.
    headers: headers of every request.
    timeout: the longest silence in seconds, None for no limit; or an `httpx.Timeout`, whose limits are used.
    http_client: the `httpx.AsyncClient` to send the requests by. It is not closed here.
    http_transport: the transport of httpx for the clients that are made here.

    Raises UsageError if an argument is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        key: EnvironmentKey | None = None,
        variables: tuple[str, ...] = (),
        secrets: tuple[str, ...] = (),
        headers: dict[str, str] | None = None,
        timeout: float | httpx.Timeout | None = READ_TIMEOUT,
        http_client: Any = None,
        http_transport: Any = None,
    ) -> None:
        self._given = _parse(url)
        if http_client is not None and not isinstance(http_client, httpx.AsyncClient):
            raise UsageError(f"http_client must be an httpx.AsyncClient, not {type(http_client).__name__}.")
        if http_transport is not None and not isinstance(http_transport, httpx.AsyncBaseTransport):
            kind = type(http_transport).__name__
            raise UsageError(f"transport must be an async transport of httpx, such as httpx.MockTransport, not {kind}.")
        if http_client is not None and http_transport is not None:
            raise UsageError("Pass the transport to the client: http_client=httpx.AsyncClient(transport=...).")
        self._http_client: httpx.AsyncClient | None = http_client
        self._http_transport: httpx.AsyncBaseTransport | None = http_transport
        # The server's name in errors is not the URL, which may contain a user name and a password.
        self.server = f"{self._given.host}:{self._given.port}" if self._given.port else self._given.host
        self.path = self._given.path
        self._url = self._given.copy_with(userinfo=b"")  # logs and tracebacks show the address of a request
        self._key = key
        # A gateway may know, and quote, a key that it was not sent.
        self._variables = (*variables, *((key.variable,) if key is not None else ()))
        self._secrets = secrets
        self._headers = {"accept": "text/event-stream, application/json", "content-type": "application/json"} | (
            headers or {}
        )
        self._timeout = timeout
        self._clients: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[httpx.AsyncClient]]] = {}
        self._lock = threading.Lock()
        self._paces: dict[tuple[object, ...], Pace] = {}
        # A transport in a reference cycle must not be collected together with its clients: each connection would raise
        # a ResourceWarning. So the finalizer holds the clients until the transport is collected. Then the generators
        # are dropped, and each is closed in its event loop.
        weakref.finalize(self, self._clients.clear).atexit = False
        mask_logs("httpx", self._secrets_now)

    async def open(self, body: bytes, *, headers: Mapping[str, str] | None = None, timeout: Any = None) -> Exchange:
        """Post `body`, and wait for the first event of the answer.

        headers: headers of this request, in addition to those of the transport.
        timeout: the timeout of this request, in place of that of the transport.

        Raises a ModelError; the connection is closed then.
        """
        client = await self._client()
        limits = _timeouts(self._timeout if timeout is None else timeout)
        silence = limits.read
        request = client.build_request(
            "POST", self._url, content=body, headers={**self._headers, **(headers or {})}, timeout=limits
        )
        auth: httpx.Auth | None = _KeyAuth(self._key, self._given)
        if self._http_client is not None and self._key is None and not self._given.userinfo:
            auth = client.auth  # that of the user's own client
        with _translated_errors(self.server, silence):
            response = await client.send(request, stream=True, auth=auth)
        exchange = Exchange(response, self.server, silence)
        try:
            await exchange.begin()
        except BaseException:
            await exchange.close()
            raise
        return exchange

    def identity(self) -> dict[str, Any]:
        """Return what is sent with each request, and where, without secrets and the timeout."""
        client, transport = self._http_client, self._http_transport
        found: dict[str, Any] = {
            "address": f"{self._given.scheme}://{self.server}{self.path}",
            "query": told(dict(self._given.params)),
            "headers": told(self._headers),
        }
        if client is not None:
            headers = {name: value for name, value in client.headers.items() if name not in _OF_HTTPX}
            found["client"] = {"headers": told(headers), "query": told(dict(client.params))}
            transport = client._transport
        if transport is not None and type(transport) is not httpx.AsyncHTTPTransport:
            found["transport"] = [type(transport).__qualname__, told(getattr(transport, "handler", None))]
        return found

    def redacted(self, error: ModelError, more: Iterable[str] = ()) -> ModelError:
        """Return the error without the API key, the secrets of the address, those of the headers, and `more`.

        Its context is dropped, because the request in it has the key.
        """
        error.__context__ = None
        return masked(error, self._secrets_now(more))

    def _secrets_now(self, more: Iterable[str] = ()) -> Secrets:
        keys = (key for key in map(value_of, self._variables) if len(key) >= SHORTEST_SECRET)
        address = self._given
        in_address = secrets_in_address(address.username, address.password, address.params.multi_items())
        in_client: list[str] = []
        if (client := self._http_client) is not None:
            login = getattr(client.auth, "_auth_header", "")
            in_client = secrets_in_headers({**client.headers, "proxy-authorization": login})
            in_client += secrets_in_address("", "", client.params.multi_items())
        return Secrets([*keys, *self._secrets, *in_address, *in_client, *more])

    def pace(self, model: str) -> Pace:
        """Return what the requests to this server share that ask this model with the current key."""
        credentials = [
            self._key.value() if self._key is not None else "",
            *self._headers.values(),
            self._given.userinfo.decode(),
        ]
        who = hashlib.blake2b("\0".join(credentials).encode("utf-8", "replace")).digest()
        name = (self._given.scheme, self._given.host, self._given.port, model, who)
        with _paces_lock:
            pace = self._paces[name] = _paces.setdefault(name, self._paces.get(name) or Pace())
        return pace

    def at(self, url: str) -> Transport:
        """Return a transport for another address of the same server, with connections of its own."""
        return Transport(
            str(_parse(url)),
            key=self._key,
            variables=self._variables,
            secrets=self._secrets,
            headers=self._headers,
            timeout=self._timeout,
            http_client=self._http_client,
            http_transport=self._http_transport,
        )

    async def close(self) -> None:
        """Close the connections of this event loop. The next request opens new ones."""
        with self._lock:
            held = self._clients.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held[1].aclose()

    def __reduce__(self) -> tuple[Callable[..., Transport], tuple[str]]:
        # A study may send models to other processes. The connections stay in this process.
        if self._http_client is not None or self._http_transport is not None:
            raise UsageError("A model with http_client= or transport= cannot be sent to another process.")
        self.check_can_travel()
        keys = partial(Transport, key=self._key, variables=self._variables, secrets=self._secrets)
        made = partial(keys, headers=self._headers, timeout=self._timeout)
        return made, (str(self._given),)

    def check_can_travel(self) -> None:
        """Raise UsageError, which names the argument, if a key was given as text: it is not sent to other processes."""
        check_no_key_travels("headers", self._headers, "headers")
        address = self._given
        if address.userinfo:
            check_no_key_travels("base_url", "a login", "password")
        for name, value in address.params.multi_items():
            if is_a_secret_header(name, value):
                check_no_key_travels("base_url", value, "key")

    async def _client(self) -> httpx.AsyncClient:
        if self._http_client is not None:
            return self._http_client
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [
                other for other in list(self._clients) if other.is_closed()
            ]:  # its generators were not closed
                del self._clients[other]
            held = self._clients.get(loop)
        if held is None:
            lender = _lend(self._url, self._timeout, self._clients, self._http_transport)
            held = (await anext(lender), lender)
            with self._lock:
                self._clients[loop] = held
        return held[0]


class Exchange:
    """One request and its answer: the response, and the events that are decoded from it."""

    def __init__(self, response: httpx.Response, server: str, timeout: float | None) -> None:
        self._response = response
        self._server = server
        self._timeout = timeout
        self._bytes = response.aiter_bytes()
        self._decoder = SSEDecoder()
        self._ready: deque[ServerSentEvent] = deque()

    async def begin(self) -> None:
        """Wait for the first event. Raises a ModelError if the response is an error or has no event."""
        response = self._response
        if not response.is_success:
            raise errors.from_status(response.status_code, await self._text(), response.headers, self._server)

        # Find out what the body is by its first character: the content type is often wrong, and no field of an event
        # stream starts like JSON or HTML.
        start = b""
        with _translated_errors(self._server, self._timeout):
            since = None
            while not start and (data := await anext(self._bytes, None)) is not None:
                start, since = data.removeprefix(BOM).lstrip(), self._check_silence(since)
        if start[:1] in (b"{", b"[", b"<"):
            text = (await self._text(start, MAX_EVENT_SIZE)).strip().removesuffix("data: [DONE]")
            if error := errors.not_a_stream(text, self._server):
                raise error
            self._ready.append(ServerSentEvent(text, WHOLE))
            return

        self._ready.extend(self._decoder.feed(start))
        with _translated_errors(self._server, self._timeout):
            first = await self._decode()
        if first is None:
            raise ModelProtocolError(
                f"{self._server} answered {response.status_code} and ended the stream before its first event"
            )
        self._ready.appendleft(first)

    async def next_event(self) -> ServerSentEvent | None:
        """Return the next event, None at the end of the stream. Raises a ModelError if the stream is interrupted."""
        with _translated_errors(self._server, self._timeout, ModelProtocolError):
            return await self._decode()

    async def drain(self) -> None:
        """Read the rest of a complete answer."""
        # If the server keeps the connection open or drops it, only the connection is lost.
        with suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while await anext(self._bytes, None) is not None:
                    pass

    async def close(self) -> None:
        """Release the connection. It is closed unless its answer was read to the end."""
        try:
            await self._response.aclose()
        except RuntimeError:
            if not _has_loop_ended():  # if it has, the connection has ended with it
                raise

    async def _decode(self) -> ServerSentEvent | None:
        since = None
        while not self._ready:
            data = await anext(self._bytes, None)
            if data is None:
                rest = self._decoder.close()
                if rest is None or rest.data.rstrip().endswith(("}", "]")):  # only the last line end is missing
                    return rest
                raise ModelProtocolError(f"the stream of {self._server} ended in the middle of an event")
            self._ready.extend(self._decoder.feed(data))
            if not self._ready:
                since = self._check_silence(since)
        return self._ready.popleft()

    def _check_silence(self, since: float | None) -> float:
        """Return the time since which bytes, but no event, have come. Raises ModelUnavailable after the timeout.

        httpx itself handles silence without any bytes.
        """
        now = time.monotonic()
        if since is not None and self._timeout is not None and now - since > self._timeout:
            raise ModelUnavailable(f"{self._server} was silent for {self._timeout:g} s, except for keep-alive comments")
        return since if since is not None else now

    async def _text(self, begin: bytes = b"", most: int = MAX_ERROR_BODY) -> str:
        body = bytearray(begin)
        with _translated_errors(self._server, self._timeout):
            while len(body) < most and (data := await anext(self._bytes, None)) is not None:
                body += data
        return body[:most].decode("utf-8", "replace") + (CUT if len(body) > most else "")


class _KeyAuth(httpx.Auth):
    """Adds the API key to the request at the last moment, so that no variable of our frames holds it.

    A user name and a password in the address, as for a server behind a proxy, take precedence over a key from the
    environment. If the two have different headers, both are sent.
    """

    def __init__(self, key: EnvironmentKey | None, url: httpx.URL) -> None:
        self._key = key
        self._url = url

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._key is not None and (value := self._key.header_value()) is not None:
            request.headers.setdefault(self._key.header, value)  # a header that the user has set wins
        if self._url.userinfo:
            yield from httpx.BasicAuth(self._url.username, self._url.password).auth_flow(request)
        else:
            yield request


@contextmanager
def _translated_errors(
    server: str, timeout: float | None, broken: type[ModelError] = ModelUnavailable
) -> Generator[None, None, None]:
    """Turn the errors of httpx into ModelErrors. `broken` is the type for a connection that fails."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise ModelUnavailable(f"no connection to {server} within {_connecting(timeout):g} s; {_CHECK}") from None
    except httpx.ReadTimeout:
        raise ModelUnavailable(f"{server} was silent for {timeout:g} s (timeout= sets this limit)") from None
    except httpx.ConnectError as error:
        raise ModelUnavailable(f"no connection to {server}: {error}; {_CHECK}") from None
    except httpx.DecodingError as error:
        raise ModelProtocolError(f"{server} sent a body that cannot be decoded: {error}") from None
    except httpx.HTTPError as error:
        raise broken(f"the connection to {server} broke: {str(error) or type(error).__name__}") from None


async def _lend(
    url: httpx.URL,
    silence: float | httpx.Timeout | None,
    clients: dict[asyncio.AbstractEventLoop, Any],
    transport: httpx.AsyncBaseTransport | None,
) -> AsyncGenerator[httpx.AsyncClient]:
    # A proxy of the environment is not used for this machine (0.0.0.0 is what servers print as their address).
    try:
        address = ipaddress.ip_address(url.host)
        is_local = address.is_loopback or address.is_unspecified
    except ValueError:
        is_local = url.host == "localhost"
    # Without TLS and without a proxy, the certificates are not needed: to load them takes 20 ms.
    needs_certificates = not is_local or url.scheme != "http"
    try:
        client = httpx.AsyncClient(
            timeout=_timeouts(silence),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS),
            transport=transport,
            trust_env=not is_local and transport is None,
            verify=needs_certificates,
        )
    except (httpx.InvalidURL, ValueError, ImportError) as error:
        # httpx reads the environment here, and its error does not name the variable.
        names = [name for name in os.environ if name.lower() in _PROXY_VARIABLES]
        raise UsageError(
            f"One of the environment variables {', '.join(sorted(names))} cannot be read: {error}."
            " (An IPv6 address in NO_PROXY has no brackets: ::1.)"
        ) from None
    try:
        yield client
    finally:
        clients.pop(asyncio.get_running_loop(), None)  # the transport must not keep a loop that ends
        await client.aclose()


_PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})


def is_timeout(value: object) -> bool:
    """Return True for a positive number of seconds, an `httpx.Timeout`, and None for no limit."""
    return value is None or isinstance(value, httpx.Timeout) or (type(value) in (int, float) and value > 0)  # type: ignore[operator]


def _timeouts(silence: float | httpx.Timeout | None) -> httpx.Timeout:
    if isinstance(silence, httpx.Timeout):
        return silence
    return httpx.Timeout(silence, connect=_connecting(silence), write=WRITE_TIMEOUT, pool=None)


def _connecting(silence: float | None) -> float:
    return CONNECT_TIMEOUT if silence is None else min(CONNECT_TIMEOUT, silence)


def _parse(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        fault = re.sub("'.*'", "'…'", str(error))  # it may quote a part of a password
        raise UsageError(f"base_url is not a URL: {fault}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 1) < 2**16:
        raise UsageError("base_url must be an http:// or https:// URL, such as http://localhost:8000/v1")
    return parsed


def _has_loop_ended() -> bool:
    """Return True if this code runs without an event loop: Python closes a coroutine whose loop has ended."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False
