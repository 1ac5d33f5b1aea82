from __future__ import annotations

import logging
from base64 import b64encode
from typing import Any

import pytest

from agentnb.core.errors import AuthenticationError, UsageError
from agentnb.llms import Anthropic, OpenAI
from agentnb.llms.errors import MAX_SERVER_TEXT
from agentnb.llms.keys import is_at
from tests.llms.collecting import GO, ask, until_failure
from tests.llms.peer import CUT, END, HELLO, Peer, Reply, body, delta, event, head, part, said

KEY = "sk-a-secret-that-stays-here"


async def test_the_key_is_read_when_a_request_is_sent(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.replies(HELLO, HELLO)
    model = OpenAI("m", peer.url, api_key_env="SOME_KEY")
    for key in ("first-key", " second-key\n"):
        monkeypatch.setenv("SOME_KEY", key)
        await ask(model)
    sent = [request.headers.get("authorization") for request in peer.requests]
    assert sent == ["Bearer first-key", "Bearer second-key"]


@pytest.mark.parametrize(("kind", "variable"), [(OpenAI, "OPENAI_API_KEY"), (Anthropic, "ANTHROPIC_API_KEY")])
async def test_the_key_of_a_provider_is_sent_to_another_server_only_if_its_variable_is_named(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, kind: type[OpenAI | Anthropic], variable: str
) -> None:
    monkeypatch.setenv(variable, KEY)
    for options in ({}, {"api_key_env": variable}):
        peer.replies(body(401, said("no")))
        await until_failure(kind("m", peer.url, **options).stream(GO))
    without, named = [str(request.headers) for request in peer.requests]
    assert KEY not in without
    assert KEY in named


@pytest.mark.parametrize(
    ("base", "own"),
    [
        ("https://api.openai.com/v1", True),
        ("https://api.openai.com:443/v1/", True),
        ("https://eu.api.openai.com/v1", True),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com.evil.org/v1", False),
        ("https://evilapi.openai.com/v1", False),
        ("https://api.openai.com@evil.org/v1", False),
        ("https://evil.org/api.openai.com", False),
        ("http://localhost:8000/v1", False),
    ],
)
def test_the_host_of_a_provider_is_recognised_by_its_whole_name(base: str, own: bool) -> None:
    assert is_at(base, "api.openai.com") == own


async def test_a_named_key_that_is_not_set_raises_before_a_request_is_sent(peer: Peer) -> None:
    with pytest.raises(AuthenticationError, match="SOME_KEY"):
        await ask(OpenAI("m", peer.url, api_key_env="SOME_KEY"))
    assert not peer.requests


@pytest.mark.parametrize("given", [KEY, "", "A B", 5])
def test_a_key_in_place_of_a_variable_name_is_refused_and_not_quoted(given: Any) -> None:
    with pytest.raises(UsageError, match="name of an environment variable") as refused:
        OpenAI("m", "http://127.0.0.1:1", api_key_env=given)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("base", "secret"),
    [
        ("user:hunter2@127.0.0.1", "hunter2"),
        ("user:hunter2@127.0.0.1", b64encode(b"user:hunter2").decode()),
        ("user:pass%2Fw%20rd@127.0.0.1", "pass/w rd"),
        ("user:pass%2Fw%20rd@127.0.0.1", "pass%2Fw%20rd"),
        ("sk-a-user-alone@127.0.0.1", "sk-a-user-alone"),
        ("127.0.0.1/v1?api_key=QUERYSECRET12&api-version=2025", "QUERYSECRET12"),
        ("127.0.0.1/v1?key=short1", "short1"),
        ("127.0.0.1/v1?sig=a%2Bb%2Fc%3D%3D", "a+b/c=="),
    ],
)
@pytest.mark.parametrize("form", ["in a text", "in its code", "cut off"])
async def test_no_error_contains_a_secret_of_the_address(peer: Peer, base: str, secret: str, form: str) -> None:
    padding = "x" * (MAX_SERVER_TEXT - len(secret)) if form == "cut off" else ""
    error = {
        "message": f"{padding}{secret} is wrong",
        "code": secret if form == "in its code" else "bad",
        "param": secret,
    }
    peer.replies(body(400, {"error": error}))
    url = peer.url.replace("127.0.0.1", base.partition("/")[0]) + "/" + base.partition("/")[2]
    _, failure = await until_failure(OpenAI("m", url).stream(GO))
    everything = f"{failure!s} {failure!r} {failure.code} {failure.param} {failure.body}"
    assert secret not in everything
    assert secret[:-1] not in everything or form != "cut off"
    assert "bad" in everything or form == "in its code"


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
async def test_errors_logs_and_reprs_do_not_contain_the_key(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reply: Reply
) -> None:
    caplog.set_level(logging.DEBUG, "stamina")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = OpenAI("m", peer.url.replace("127", "user:password@127", 1), max_retries=1)
    peer.replies(reply, reply)
    seen, error = await until_failure(model.stream(GO))
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
async def test_the_cause_and_context_of_an_error_do_not_contain_the_key(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    peer.replies(reply, reply)
    _, error = await until_failure(OpenAI("m", peer.url, max_retries=1).stream(GO))
    assert (error.__cause__, error.__context__) == (None, None)


async def test_a_login_in_the_address_is_sent_and_not_logged(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    peer.replies(HELLO)
    await ask(OpenAI("m", peer.url.replace("127", "me:pass%20word@127", 1), api_key_env="OPENAI_API_KEY"))
    assert peer.requests[0].headers["authorization"] == "Basic " + b64encode(b"me:pass word").decode()
    assert peer.url in caplog.text
    assert "pass%20word" not in caplog.text


async def test_a_login_in_the_address_is_sent_in_addition_to_a_key_in_another_header(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    peer.replies(body(200, {"type": "message", "content": [], "stop_reason": "end_turn"}))
    await ask(Anthropic("m", peer.url.replace("127", "me:it@127", 1), api_key_env="ANTHROPIC_API_KEY"))
    sent = peer.requests[0].headers
    assert (sent["authorization"], sent["x-api-key"]) == ("Basic " + b64encode(b"me:it").decode(), KEY)


async def test_a_key_that_is_not_valid_in_a_header_is_not_quoted(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-\nsecret")
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY") as caught:
        await ask(Anthropic("m", peer.url, api_key_env="ANTHROPIC_API_KEY"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [OpenAI, Anthropic])
async def test_given_headers_are_sent_with_every_request(peer: Peer, kind: type[OpenAI | Anthropic]) -> None:
    peer.replies(body(401, said("no")))
    await until_failure(kind("m", peer.url, headers={"X-Title": "agentnb", "user-agent": "lab"}).stream(GO))
    sent = peer.requests[0].headers
    assert (sent["x-title"], sent["user-agent"]) == ("agentnb", "lab")


async def test_a_given_header_replaces_the_default_header(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    peer.replies(HELLO)
    await ask(OpenAI("m", peer.url, api_key_env="OPENAI_API_KEY", headers={"Authorization": "Bearer a-token"}))
    assert peer.requests[0].headers["authorization"] == "Bearer a-token"


async def test_a_header_value_that_a_server_quotes_is_masked(peer: Peer) -> None:
    model = OpenAI("m", peer.url, headers={"gateway-auth": KEY})
    peer.replies(body(401, said(f"Who is {KEY}?")))
    _, error = await until_failure(model.stream(GO))
    assert "Who is ***?" in str(error)
    assert KEY not in repr(error) + repr(model)


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"a": "x\r\nb: y"}, {"a": 1}, {"a": "\u2603"}, ["a"], "a: b"])
def test_headers_that_cannot_be_sent_are_refused_before_any_request(headers: Any) -> None:
    with pytest.raises(UsageError, match="headers"):
        OpenAI("m", "http://127.0.0.1:1", headers=headers)


@pytest.mark.usefixtures("no_waits")
async def test_retries_and_logs_do_not_contain_the_secret_of_a_header(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stamina")
    peer.replies(body(500, said(f"{KEY} broke me")), HELLO, body(500, said(f"{KEY} broke me")), HELLO)
    seen = await ask(OpenAI("m", peer.url, headers={"x-gateway": KEY}))
    seen += await ask(OpenAI("m", peer.url), extra_headers={"x-gateway": KEY})
    assert str(seen).count("*** broke me") == 2
    assert KEY not in str(seen) + caplog.text


@pytest.mark.parametrize("url", ["http://user:sec/ret@host/v1", "http://user:pass@host:hunter2/v1"])
def test_an_invalid_address_is_not_quoted(url: str) -> None:
    with pytest.raises(UsageError, match="base_url") as refused:
        OpenAI("m", url)
    assert not {"sec", "hunter2", "pass"} & set(str(refused.value).replace("'", " ").split())
