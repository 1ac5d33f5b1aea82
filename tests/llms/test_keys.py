from __future__ import annotations

import logging
from base64 import b64encode
from typing import Any

import pytest

from agentnb.core.errors import AuthenticationError, UsageError
from agentnb.llms import Anthropic, OpenAI
from agentnb.llms.failures import MAX_SERVER_TEXT
from tests.llms.collecting import ask, until_failure
from tests.llms.peer import CUT, END, HELLO, Peer, Reply, body, delta, event, head, part, said

KEY = "sk-a-secret-that-stays-here"


async def test_the_key_is_read_when_a_request_leaves(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.replies(HELLO, HELLO, HELLO)
    model = OpenAI("m", peer.url)
    for key in (None, "first-key", " second-key\n"):
        if key is not None:
            monkeypatch.setenv("OPENAI_API_KEY", key)
        await ask(model)
    sent = [request.headers.get("authorization") for request in peer.requests]
    assert sent == [None, "Bearer first-key", "Bearer second-key"]


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize(
    "reply",
    [
        body(401, said(f"Incorrect API key provided: {KEY}.")),
        body(500, said(f"{KEY} broke me")),
        body(500, said("x" * (MAX_SERVER_TEXT - 20) + KEY)),
        body(200, said(f"{KEY} broke me")),
        [head(), delta(content="x"), event(said(f"{KEY} broke me")), END],
        [head(), delta(content="x"), event(f"no JSON, but {KEY}"), END],
        [head(200, "text/html"), part(KEY.encode()), END],
    ],
)
async def test_the_key_is_in_no_error_no_log_and_no_repr(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reply: Reply
) -> None:
    caplog.set_level(logging.DEBUG, "stamina")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = OpenAI("m", peer.url.replace("127", "user:password@127", 1), max_retries=1)
    peer.replies(reply, reply)
    seen, error = await until_failure(model.stream([]))
    everything = f"{error!s} {error!r} {seen} {caplog.text} {model!r} {vars(model)}"
    assert "127.0.0.1" in everything
    assert KEY[:10] not in everything
    assert "password" not in str(error) + repr(model)


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize(
    "reply",
    [
        body(401, said(f"Incorrect API key provided: {KEY}.")),
        [head(), delta(content="x"), event(said(f"{KEY} broke me")), END],
        [head(), delta(content="x"), CUT],
        [CUT],
    ],
)
async def test_nothing_that_an_error_came_from_holds_the_key(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    peer.replies(reply, reply)
    _, error = await until_failure(OpenAI("m", peer.url, max_retries=1).stream([]))
    assert (error.__cause__, error.__context__) == (None, None)


async def test_a_login_in_the_address_is_sent_and_not_logged(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    peer.replies(HELLO)
    await ask(OpenAI("m", peer.url.replace("127", "me:pass%20word@127", 1)))
    assert peer.requests[0].headers["authorization"] == "Basic " + b64encode(b"me:pass word").decode()
    assert peer.url in caplog.text
    assert "pass%20word" not in caplog.text


async def test_a_login_in_the_address_goes_beside_a_key_that_has_a_header_of_its_own(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    peer.replies(body(200, {"type": "message", "content": [], "stop_reason": "end_turn"}))
    await ask(Anthropic("m", peer.url.replace("127", "me:it@127", 1)))
    sent = peer.requests[0].headers
    assert (sent["authorization"], sent["x-api-key"]) == ("Basic " + b64encode(b"me:it").decode(), KEY)


async def test_a_key_that_is_no_header_is_not_quoted(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-\nsecret")
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY") as caught:
        await ask(Anthropic("m", peer.url))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [OpenAI, Anthropic])
async def test_headers_that_are_given_go_with_every_request(peer: Peer, kind: type[OpenAI | Anthropic]) -> None:
    peer.replies(body(401, said("no")))
    await until_failure(kind("m", peer.url, headers={"X-Title": "agentnb", "user-agent": "lab"}).stream([]))
    sent = peer.requests[0].headers
    assert (sent["x-title"], sent["user-agent"]) == ("agentnb", "lab")


async def test_a_header_that_is_given_counts_more_than_our_own(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    peer.replies(HELLO)
    await ask(OpenAI("m", peer.url, headers={"Authorization": "Bearer a-token"}))
    assert peer.requests[0].headers["authorization"] == "Bearer a-token"


async def test_what_a_server_quotes_of_a_header_is_in_no_error_and_no_repr(peer: Peer) -> None:
    model = OpenAI("m", peer.url, headers={"gateway-auth": KEY})
    peer.replies(body(401, said(f"Who is {KEY}?")))
    _, error = await until_failure(model.stream([]))
    assert "Who is ***?" in str(error)
    assert KEY not in repr(error) + repr(model)


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"a": "x\r\nb: y"}, {"a": 1}, {"a": "\u2603"}, ["a"], "a: b"])
def test_headers_that_cannot_be_sent_are_refused_before_any_request(headers: Any) -> None:
    with pytest.raises(UsageError, match="headers"):
        OpenAI("m", "http://127.0.0.1:1", headers=headers)
