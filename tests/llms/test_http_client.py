"""httpx as people use it: a client or a transport of one's own, an `httpx.Timeout`; options of httpx are never sent."""

import json
import pickle
from typing import Any

import httpx
import pytest

from agentnb import SessionLoop, UsageError
from agentnb.llms import Anthropic, OpenAI

URL = "http://model.test/v1"
ANSWER = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
OF_HTTPX = {
    "verify": False,
    "proxy": "http://proxy.test:3128",
    "http2": True,
    "event_hooks": {"request": []},
    "follow_redirects": True,
    "mounts": {},
    "cert": "client.pem",
    "limits": None,
    "auth": ("ada", "pw"),
}


class Server:
    """A server in this process. `requests` has what it was sent."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(200, content=ANSWER)


@pytest.mark.parametrize("option", OF_HTTPX)
@pytest.mark.parametrize("client", [OpenAI, Anthropic])
def test_an_option_of_httpx_is_refused_with_where_it_belongs(client: Any, option: str) -> None:
    with pytest.raises(UsageError, match=r"http_client=httpx\.AsyncClient"):
        client("m", URL, **{option: OF_HTTPX[option]})


def test_an_option_of_httpx_is_refused_for_a_run_too() -> None:
    with pytest.raises(UsageError, match="http_client"):
        OpenAI("m", URL).with_options(verify=False)


@pytest.mark.parametrize("name", ["http_client", "transport"])
async def test_requests_go_by_the_given_client_or_transport(name: str) -> None:
    server = Server()
    transport = httpx.MockTransport(server)
    given = transport if name == "transport" else httpx.AsyncClient(transport=transport)
    assert await SessionLoop(OpenAI("m", URL, **{name: given})).start("q") == "hi"
    assert json.loads(server.requests[0].content).keys() == {"model", "messages", "stream", "stream_options"}


async def test_a_given_client_sends_its_own_headers_and_is_not_closed() -> None:
    server = Server()
    client = httpx.AsyncClient(transport=httpx.MockTransport(server), headers={"x-team": "rivers"}, auth=("ada", "pw"))
    await SessionLoop(OpenAI("m", URL, http_client=client)).start("q")
    headers = server.requests[0].headers
    assert (headers["x-team"], headers["authorization"].partition(" ")[0]) == ("rivers", "Basic")
    assert not client.is_closed


async def test_an_httpx_timeout_sets_the_limits_of_a_request() -> None:
    server = Server()
    limits = httpx.Timeout(5, connect=1)
    await SessionLoop(OpenAI("m", URL, timeout=limits, transport=httpx.MockTransport(server))).start("q")
    assert server.requests[0].extensions["timeout"] == limits.as_dict()


@pytest.mark.parametrize("given", [{"http_client": httpx.Client()}, {"http_client": "x"}, {"transport": object()}])
def test_another_object_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be an"):
        OpenAI("m", URL, **given)


def test_a_model_with_a_client_of_ones_own_is_not_sent_to_another_process() -> None:
    with pytest.raises(UsageError, match="another process"):
        pickle.dumps(OpenAI("m", URL, http_client=httpx.AsyncClient()))
