from __future__ import annotations

import logging

import pytest

from agentnb.core.errors import AuthenticationError
from agentnb.llms import Anthropic, OpenAI
from agentnb.llms.failures import MAX_SERVER_TEXT
from tests.llms.collecting import ask, until_failure
from tests.llms.peer import END, HELLO, Peer, Reply, body, delta, event, head, part, said

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


async def test_a_key_that_is_no_header_is_not_quoted(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-\nsecret")
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY") as caught:
        await ask(Anthropic("m", peer.url))
    assert "secret" not in str(caught.value)
