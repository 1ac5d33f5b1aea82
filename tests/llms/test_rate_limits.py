from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from agentnb.core.errors import ModelOverloaded, ModelRequestError
from agentnb.llms import OpenAI, client
from tests.llms.collecting import GO, ask, only, until_failure
from tests.llms.peer import HELLO, Peer, body, said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REFUSAL = json.dumps(said("Rate limit reached.", "rate_limit_error")).encode()


class Limited:
    """A server that accepts `rate` requests a second, and as many at once; it refuses the others."""

    def __init__(self, rate: float, retry_after_ms: int) -> None:
        self.rate = self._tokens = rate
        self._since = time.monotonic()
        self._header = f"retry-after-ms: {retry_after_ms}\r\n".encode()
        self.url = ""
        self.refused = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
            await reader.readexactly(int(fields["content-length"]))
            now = time.monotonic()
            self._tokens = min(self.rate, self._tokens + (now - self._since) * self.rate)
            self._since = now
            if self._tokens >= 1:
                self._tokens -= 1
                writer.write(b"".join(part for part in HELLO if isinstance(part, bytes)))
            else:
                self.refused += 1
                length = b"content-length: %d\r\n\r\n" % len(REFUSAL)
                writer.write(b"HTTP/1.1 429 X\r\ncontent-type: application/json\r\n" + self._header + length + REFUSAL)


@asynccontextmanager
async def limited(rate: float, retry_after_ms: int) -> AsyncIterator[Limited]:
    """Serve with a rate limit, in this event loop."""
    server = Limited(rate, retry_after_ms)
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError):
            await server.serve(reader, writer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        yield server
        await asyncio.wait([task for task in served if task is not None])  # the client has closed its connections


async def test_many_requests_at_a_rate_limit_all_get_their_answers_almost_as_fast_as_it_allows() -> None:
    async with limited(rate=40, retry_after_ms=250) as server:
        model = OpenAI("m", server.url)
        begun = time.monotonic()
        slots = asyncio.Semaphore(50)

        async def one() -> None:
            async with slots:
                await ask(model)

        async with asyncio.TaskGroup() as group:
            for _ in range(160):
                group.create_task(one())
        assert time.monotonic() - begun < 1.3 * (160 - 40) / 40 + 0.5  # and half a second for a busy machine
        await model.aclose()


async def test_two_clients_of_a_server_wait_together(peer: Peer) -> None:
    peer.replies(body(429, said("Busy."), retry_after="0.4"), HELLO, HELLO)
    async with aclosing(OpenAI("m", peer.url).stream(GO)) as refused:
        assert (await anext(refused))["type"] == "retry"
        begun = time.monotonic()
        await ask(OpenAI("m", peer.url))
        assert time.monotonic() - begun > 0.3


@pytest.mark.parametrize("other", ["model", "key"])
async def test_another_model_or_key_has_a_limit_of_its_own(
    peer: Peer, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE_KEY", "first-key-0001")
    monkeypatch.setenv("OTHER_KEY", "second-key-0002")
    peer.replies(body(429, said("Busy."), retry_after="30"), HELLO)
    async with aclosing(OpenAI("m", peer.url, api_key_env="ONE_KEY").stream(GO)) as refused:
        await anext(refused)
        model = OpenAI(
            "n" if other == "model" else "m", peer.url, api_key_env="OTHER_KEY" if other == "key" else "ONE_KEY"
        )
        async with asyncio.timeout(10):
            await ask(model)


async def test_a_request_that_waits_for_a_limit_of_others_says_so(peer: Peer) -> None:
    peer.replies(body(429, said("Busy."), retry_after="30"), HELLO)
    model = OpenAI("m", peer.url)
    async with aclosing(model.stream(GO)) as refused, aclosing(model.stream(GO)) as other:
        await anext(refused)
        waiting = await anext(other)
        assert waiting["type"] == "retry"
        assert waiting["attempt"] == 0
        assert "limits the rate of requests" in waiting["error"]
    assert len(peer.requests) == 1


async def test_refusals_do_not_count_as_attempts(peer: Peer) -> None:
    peer.replies(*[body(429, said("Busy."), retry_after_ms="1")] * 9, HELLO)
    chunks = await ask(OpenAI("m", peer.url, max_retries=1))
    assert only(chunks, "text_delta")["content"] == "hello"


async def test_without_retries_a_refusal_is_raised(peer: Peer) -> None:
    peer.replies(body(429, said("Busy."), retry_after_ms="1"))
    with pytest.raises(ModelOverloaded):
        await ask(OpenAI("m", peer.url, max_retries=0))


async def test_a_server_that_refuses_everything_is_given_up_with_its_wish(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.02)
    monkeypatch.setattr(client, "RETRY_AFTER_LIMIT", 0.05)
    peer.replies(*[body(429, said("Busy."), retry_after="86400")] * 3)
    _, error = await until_failure(OpenAI("m", peer.url).stream(GO))
    assert isinstance(error, ModelOverloaded)
    assert "has refused all requests" in str(error)
    assert "asks to wait 24 h" in str(error)


async def test_a_used_up_quota_is_not_waited_for(peer: Peer) -> None:
    peer.replies(body(429, said("You exceeded your current quota.", "insufficient_quota"), retry_after="30"))
    with pytest.raises(ModelRequestError, match="quota"):
        await ask(OpenAI("m", peer.url))
    assert len(peer.requests) == 1


async def test_the_server_decides_that_a_failed_request_is_not_sent_again(peer: Peer) -> None:
    peer.replies(*[body(500, said("No."), x_should_retry="false")] * 4)
    await until_failure(OpenAI("m", peer.url).stream(GO))
    assert len(peer.requests) == 1


@pytest.mark.usefixtures("no_waits")
async def test_the_server_decides_that_a_failed_request_is_sent_again(peer: Peer) -> None:
    peer.replies(body(400, said("Locked."), x_should_retry="true"), HELLO)
    assert only(await ask(OpenAI("m", peer.url)), "text_delta")["content"] == "hello"
