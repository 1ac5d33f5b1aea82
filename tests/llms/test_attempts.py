from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from agentnb.core.errors import ModelRequestError, ModelUnavailable
from agentnb.llms import OpenAI, client
from agentnb.llms.client import RETRY_AFTER_LIMIT
from tests.llms.collecting import GO, ask, only, until_failure
from tests.llms.peer import CUT, END, HELLO, Peer, Reply, body, event, head, part, said


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize(
    "failure",
    [
        body(429, said("Busy.")),
        body(500, said("Down.")),
        [CUT],
        [head(), CUT],
        [head(), event(said("Busy.", "overloaded_error")), END],
        [head(), part(b": ping\n\n"), event(said("Busy.", "overloaded_error"))],
        [head(), event("queued", "ping"), part(b"data:\n\n"), event(said("Busy.", "overloaded_error"))],
        body(200, said("Down.")),
    ],
)
async def test_a_failure_before_the_first_event_is_retried(peer: Peer, failure: Reply) -> None:
    peer.replies(failure, failure, HELLO)
    chunks = await ask(OpenAI("m", peer.url))
    assert [chunk["type"] for chunk in chunks] == ["retry", "retry", "text_delta", "stop"]
    assert [chunk["attempt"] for chunk in chunks[:2]] == [1, 2]
    assert "Model" in chunks[0]["error"]


@pytest.mark.usefixtures("no_waits")
async def test_attempts_are_bounded_and_the_last_failure_is_raised(peer: Peer) -> None:
    peer.replies(*[body(500, said(f"Down {number}.")) for number in range(4)])
    seen, error = await until_failure(OpenAI("m", peer.url, max_retries=3).stream(GO))
    assert [chunk["type"] for chunk in seen] == ["retry"] * 3
    assert type(error) is ModelUnavailable
    assert "Down 3." in str(error)
    assert error.__notes__ == ["4 attempts were made"]


async def test_a_request_error_is_not_retried(peer: Peer) -> None:
    peer.replies(body(400, said("No.")))
    with pytest.raises(ModelRequestError):
        await ask(OpenAI("m", peer.url))
    assert len(peer.requests) == 1


async def test_a_retry_waits_for_the_time_that_the_server_requests(peer: Peer) -> None:
    peer.replies(body(429, said("Busy."), retry_after="0.3"), HELLO)
    begun = time.monotonic()
    chunks = await ask(OpenAI("m", peer.url))
    assert time.monotonic() - begun >= 0.3
    assert only(chunks, "retry")["wait"] == 0.3


@pytest.mark.parametrize(
    "headers",
    [
        {"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"},
        {"retry_after": "0"},
        {"retry_after": "-1"},
        {"retry_after_ms": "0"},
        {"retry_after_ms": "nan"},
    ],
)
async def test_a_wait_of_zero_is_replaced_by_the_default_wait(peer: Peer, headers: dict[str, str]) -> None:
    peer.replies(body(503, said("Busy."), **headers), HELLO)
    assert only(await ask(OpenAI("m", peer.url)), "retry")["wait"] >= client.RETRY_WAIT


async def test_a_header_with_a_wait_of_zero_does_not_hide_the_other_header(peer: Peer) -> None:
    peer.replies(body(429, said("Busy."), retry_after_ms="0", retry_after="0.2"), HELLO)
    assert only(await ask(OpenAI("m", peer.url)), "retry")["wait"] == 0.2


async def test_no_wait_is_longer_than_the_cap(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_AFTER_LIMIT", 0.05)
    peer.replies(body(429, said("Busy."), retry_after="86400"), HELLO)
    async with asyncio.timeout(60):
        assert only(await ask(OpenAI("m", peer.url)), "text_delta")["content"] == "hello"
    assert len(peer.requests) == 2


async def test_a_wait_is_capped_and_can_be_cancelled(peer: Peer) -> None:
    peer.replies(body(429, said("Busy."), retry_after="86400"), HELLO)
    async with aclosing(OpenAI("m", peer.url).stream(GO)) as stream:
        assert (await anext(stream))["wait"] == RETRY_AFTER_LIMIT
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)
    assert len(peer.requests) == 1
