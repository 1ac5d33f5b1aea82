from __future__ import annotations

import time
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest

from agentnb.core.errors import (
    AuthenticationError,
    ModelError,
    ModelOverloaded,
    ModelRequestError,
    ModelUnavailable,
)
from agentnb.llms import OpenAI
from agentnb.llms.errors import MAX_SERVER_TEXT, from_status, retry_after
from tests.llms.collecting import ask
from tests.llms.peer import HANG, Peer, body, head, part, said

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("status", "kind", "blamed"),
    [
        (400, "", ModelRequestError),
        (401, "", AuthenticationError),
        (403, "", AuthenticationError),
        (404, "", ModelRequestError),
        (408, "", ModelUnavailable),
        (413, "", ModelRequestError),
        (422, "", ModelRequestError),
        (429, "", ModelOverloaded),
        (429, "insufficient_quota", ModelRequestError),
        (500, "", ModelUnavailable),
        (503, "", ModelUnavailable),
        (529, "overloaded_error", ModelOverloaded),
        (301, "", ModelRequestError),
    ],
)
async def test_each_status_raises_its_error_type(peer: Peer, status: int, kind: str, blamed: type[ModelError]) -> None:
    peer.replies(body(status, said("What the server says.", kind), retry_after="7"))
    with pytest.raises(blamed, match=rf"127\.0\.0\.1:\d+ answered {status}: What the server says\.") as caught:
        await ask(OpenAI("m", peer.url, max_retries=0))
    assert type(caught.value) is blamed
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"error": "plain"}', "plain"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"message": "top"}', "top"),
        ('{"error": true, "message": "top"}', "top"),
        ('{"error": {"type": "only_a_type"}}', "only_a_type"),
        ('{"detail": [{"loc": ["body"]}]}', '[{"loc": ["body"]}]'),
        ("<html>\n  Bad\n Gateway", "<html> Bad Gateway"),
        ("", "(nothing)"),
    ],
)
def test_the_message_of_the_server_is_extracted(text: str, words: str) -> None:
    assert str(from_status(500, text, {}, "there")) == f"there answered 500: {words}"


async def test_a_long_error_is_cut(peer: Peer) -> None:
    peer.replies([head(500, "text/html"), part(b"x" * 300_000), HANG])
    with pytest.raises(ModelUnavailable) as caught:
        await ask(OpenAI("m", peer.url, max_retries=0))
    assert len(str(caught.value)) < MAX_SERVER_TEXT + 50


def test_a_wait_is_read_from_seconds_milliseconds_or_a_date() -> None:
    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({"retry-after-ms": "250", "retry-after": "1"}) == 0.25
    assert retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)}) == pytest.approx(30, abs=2)
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_a_date_without_a_zone_is_in_utc() -> None:
    date = formatdate(time.time() + 30, usegmt=True).removesuffix(" GMT")
    assert retry_after({"retry-after": date}) == pytest.approx(30, abs=2)


async def test_the_wait_in_the_body_of_a_gemini_error_is_read(peer: Peer) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure"}, {"retryDelay": "34.5s"}]
    peer.replies(body(429, [{"error": {"code": 429, "message": "Slow down.", "details": details}}]))
    with pytest.raises(ModelOverloaded) as caught:
        await ask(OpenAI("m", peer.url, max_retries=0))
    assert caught.value.retry_after == 34.5
