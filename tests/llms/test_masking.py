"""Keys that a person has put into an address, a body or a hosted tool: no text of a server or of a log shows them."""

from __future__ import annotations

import json
import logging
import re
from base64 import b64encode
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pytest

from agentnb import SessionLoop
from agentnb.core.errors import RunFailed, UsageError
from agentnb.llms import Anthropic, OpenAI
from agentnb.llms.description import recorded_options
from tests.llms.collecting import GO, ask, until_failure
from tests.llms.peer import HELLO, Peer

_FIELDS = ["api_key", "upstream", "credentials", "fields", "headers", "stop_token"]
pytestmark = pytest.mark.other_body("fields of other servers", fields=_FIELDS)

KEY = 'a/secret+"key" that=stays'
URL = "http://server.example/v1"


def hosted(**fields: Any) -> dict[str, Any]:
    return {"api": "responses", "tools": [{"type": "mcp", "server_label": "x", **fields}]}


WHERE = {
    "the authorization of a hosted tool": hosted(authorization=KEY),
    "a header of a hosted tool": hosted(headers={"Authorization": f"Bearer {KEY}"}),
    "another header of a hosted tool": hosted(headers={"X-Lab": KEY}),
    "the password of the address of a hosted tool": hosted(server_url=f"https://me:{quote(KEY, safe='')}@x.example/"),
    "the query of the address of a hosted tool": hosted(server_url=f"https://x.example/?key={quote_plus(KEY)}"),
    "a field of extra_body": {"extra_body": {"api_key": KEY}},
    "a nested field of extra_body": {"extra_body": {"upstream": [{"accessToken": KEY}]}},
    "a field below one that names a secret": {"extra_body": {"credentials": {"value": KEY}}},
    "a pair of a name and a value": {"extra_body": {"fields": [{"name": "X-Api-Key", "value": KEY}]}},
    "nested headers": {"extra_body": {"headers": {"X-Lab": KEY}}},
}
FORMS = {
    "whole": KEY,
    "in JSON": json.dumps({"sent": KEY}),
    "in JSON in JSON": json.dumps(json.dumps({"sent": KEY})),
    "with escaped slashes": KEY.replace("/", "\\/"),
    "in an address": quote(KEY, safe=""),
    "in an address, in small letters": re.sub("%..", lambda found: found[0].lower(), quote(KEY, safe="")),
    "in a form": quote_plus(KEY),
    "as a login": "Basic " + b64encode(f"{KEY}:".encode()).decode(),
    "in HTML": KEY.replace('"', "&quot;"),
}


def quoting(text: str | None = None) -> httpx.MockTransport:
    """A server that refuses each request, and quotes this text, or the request's body."""

    def answer(request: httpx.Request) -> httpx.Response:
        message = f"Not valid: {text if text is not None else request.content.decode()}"
        return httpx.Response(400, json={"error": {"message": message, "type": "invalid_request_error"}})

    return httpx.MockTransport(answer)


def is_shown(secret: str, text: str) -> bool:
    words = ("secret+", "secret%2B", "secret%2b", b64encode(secret.encode()).decode()[:20])
    return any(word in text for word in words)


@pytest.mark.parametrize("where", WHERE)
async def test_a_key_in_a_request_is_not_in_the_error_or_the_recording(where: str) -> None:
    llm = OpenAI("m", URL, transport=quoting(), max_retries=0, **WHERE[where])
    run = SessionLoop(llm).start("go")
    with pytest.raises(RunFailed) as failed:
        await run
    everything = f"{failed.value} {failed.value!r} {llm!r} {run.snapshot().to_json()}"
    assert "Not valid" in everything
    assert not is_shown(KEY, everything)


@pytest.mark.parametrize("form", FORMS)
async def test_a_key_is_masked_in_every_form_in_which_a_server_quotes_it(form: str) -> None:
    llm = OpenAI("m", URL, transport=quoting(FORMS[form]), extra_body={"api_key": KEY})
    _, error = await until_failure(llm.stream(GO))
    assert "***" in str(error)
    assert not is_shown(KEY, f"{error} {error.body}")  # type: ignore[attr-defined]


async def test_the_password_in_the_login_of_a_header_is_masked_alone() -> None:
    login = "Basic " + b64encode(b"me:hunter2-and-more").decode()
    llm = OpenAI("m", URL, transport=quoting("hunter2-and-more"), headers={"Authorization": login})
    _, error = await until_failure(llm.stream(GO))
    assert "Not valid: ***" in str(error)


async def test_a_key_of_one_request_is_masked() -> None:
    llm = Anthropic("m", URL, transport=quoting())
    _, error = await until_failure(llm.stream(GO, extra_body={"api_key": KEY}))
    assert not is_shown(KEY, f"{error} {error.body}")  # type: ignore[attr-defined]


async def test_a_long_error_that_is_cut_inside_a_key_does_not_show_its_beginning() -> None:
    for padding in range(455, 495):
        llm = OpenAI("m", URL, transport=quoting("x" * padding + KEY), extra_body={"api_key": KEY})
        _, error = await until_failure(llm.stream(GO))
        assert "a/secr" not in str(error)


async def test_what_is_no_key_is_not_masked() -> None:
    schema = {"type": "object", "properties": {"api_key": {"type": "string", "description": "the key"}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    llm = OpenAI("m", URL, transport=quoting(), tools=[tool], stop="the end", extra_body={"stop_token": "</end>"})
    _, error = await until_failure(llm.stream(GO))
    assert "***" not in f"{error} {error.body}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", WHERE)
def test_recorded_options_have_no_keys(where: str) -> None:
    assert not is_shown(KEY, json.dumps(recorded_options(WHERE[where])))


@pytest.mark.parametrize("bad", [{"extra_body": {"api_key": KEY, "x": object()}}, {"extra_body": KEY}])
async def test_an_option_that_cannot_be_sent_is_named_without_its_key(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="extra_body") as refused:
        await ask(OpenAI("m", URL, transport=quoting(), **bad))
    assert not is_shown(KEY, str(refused.value))


@pytest.mark.parametrize("query", ["key=AKEYTHATSTAYS", "code=AKEY%2BTHATSTAYS", "sig=AKEYTHATSTAYS&api-version=5"])
async def test_the_logs_of_the_http_library_do_not_have_the_key_of_an_address(
    peer: Peer, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    caplog.set_level(logging.DEBUG)
    peer.replies(HELLO)
    await ask(OpenAI("m", f"{peer.url}/v1?{query}"))
    assert f"POST {peer.url}/v1/chat/completions?" in caplog.text
    assert "THATSTAYS" not in caplog.text


async def test_the_logs_do_not_have_a_key_that_the_headers_of_an_answer_quote(
    peer: Peer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "AKEYTHATSTAYS")
    caplog.set_level(logging.DEBUG)
    moved = b"HTTP/1.1 307 Moved\r\nlocation: /v2?key=AKEYTHATSTAYS\r\ncontent-length: 0\r\n\r\n"
    peer.replies([moved])
    await until_failure(OpenAI("m", peer.url, api_key_env="SOME_KEY", max_retries=0).stream(GO))
    assert "/v2?key=***" in caplog.text
    assert "THATSTAYS" not in caplog.text
