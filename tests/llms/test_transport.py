from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import ExitStack, aclosing
from typing import Any

import pytest

from agentnb.core.errors import (
    ModelProtocolError,
    ModelUnavailable,
)
from agentnb.llms import OpenAI
from tests.llms.collecting import GO, ask, stop, text
from tests.llms.peer import END, HANG, HELLO, KEEP_ALIVE, Peer, Reply, body, delta, event, head, part


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ([head(), END], "before its first event"),
        ([head(), part(b": ping\n\n"), END], "before its first event"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"], "before its first event"),
        ([head(200, "text/html"), part(b"<h1>Welcome</h1>"), END], "not an event stream: <h1>Welcome</h1>"),
        (body(200, {"choices": []}), "not an event stream"),
        ([head(content_encoding="gzip"), part(b"this is not gzip"), END], "cannot be decoded"),
    ],
)
async def test_an_answer_that_is_not_a_stream_is_reported(peer: Peer, reply: Reply, words: str) -> None:
    peer.replies(reply)
    with pytest.raises(ModelProtocolError, match=words):
        await ask(OpenAI("m", peer.url))
    assert len(peer.requests) == 1, "asking again would give the same"


@pytest.mark.parametrize("steps", [[], [head()], [head(), part(b": ping\n\n")]])
async def test_a_silent_server_times_out(peer: Peer, steps: Reply) -> None:
    peer.replies([*steps, HANG])
    with pytest.raises(ModelUnavailable, match=r"silent for 0\.2 s"):
        await ask(OpenAI("m", peer.url, timeout=0.2, max_retries=0))
    assert peer.client_left.wait(30)


async def test_silence_during_a_stream_times_out(peer: Peer) -> None:
    peer.replies([head(), delta(content="half"), HANG])
    with pytest.raises(ModelUnavailable, match="silent"):
        await ask(OpenAI("m", peer.url, timeout=1))  # the first half is there long before
    assert peer.client_left.wait(30)
    assert len(peer.requests) == 1


@pytest.mark.parametrize("steps", [[head()], [head(), delta(content="half")]])
async def test_a_server_that_sends_only_keep_alives_times_out(peer: Peer, steps: Reply) -> None:
    peer.replies([*steps, KEEP_ALIVE])
    async with asyncio.timeout(60):
        with pytest.raises(ModelUnavailable, match=r"silent for 0\.3 s, except"):
            await ask(OpenAI("m", peer.url, timeout=0.3, max_retries=0))
    assert peer.client_left.wait(30)


async def test_a_missing_server_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    with pytest.raises(ModelUnavailable, match=f"no connection to 127.0.0.1:{port}"):
        await ask(OpenAI("m", f"http://127.0.0.1:{port}", max_retries=0))


@pytest.mark.parametrize(("connecting", "timeout"), [(0.2, 300), (0.2, None), (10, 0.2)])
async def test_connecting_to_a_server_that_accepts_no_connection_times_out(
    monkeypatch: pytest.MonkeyPatch, connecting: float, timeout: float | None
) -> None:
    monkeypatch.setattr("agentnb.llms.transport.CONNECT_TIMEOUT", connecting)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # no process accepts them, and then the queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        with pytest.raises(ModelUnavailable, match=r"within 0\.2 s"):
            await ask(OpenAI("m", f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=timeout, max_retries=0))


async def test_silence_after_done_does_not_delay_the_answer(peer: Peer) -> None:
    peer.replies([head(), delta("stop", content="x"), event("[DONE]"), HANG])
    async with asyncio.timeout(60):
        assert stop(await ask(OpenAI("m", peer.url))) == "stop"
    assert peer.client_left.wait(30)


@pytest.mark.parametrize("steps", [[], [head()], [head(), delta(content="half")]])
async def test_cancelling_closes_the_connection(peer: Peer, steps: Reply) -> None:
    peer.replies([*steps, HANG])
    task = asyncio.create_task(ask(OpenAI("m", peer.url)))
    assert await asyncio.to_thread(peer.hanging.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(peer.client_left.wait, 5)


async def test_closing_the_stream_closes_the_connection(peer: Peer) -> None:
    peer.replies([head(), delta(content="half"), HANG])
    async with aclosing(OpenAI("m", peer.url).stream(GO)) as stream:
        assert (await anext(stream))["content"] == "half"
    assert await asyncio.to_thread(peer.client_left.wait, 5)


def test_one_model_works_in_several_event_loops_in_succession(peer: Peer) -> None:
    peer.replies(HELLO, HELLO, HELLO, HELLO)
    model = OpenAI("m", peer.url)

    async def twice() -> str:
        return text(await ask(model)) + text(await ask(model))

    assert asyncio.run(twice()) == "hellohello"
    assert asyncio.run(twice()) == "hellohello"
    assert peer.connections == 2


def test_a_model_does_not_keep_an_ended_event_loop_alive(peer: Peer) -> None:
    peer.replies(HELLO)
    model = OpenAI("m", peer.url)

    async def once() -> weakref.ref[asyncio.AbstractEventLoop]:
        await ask(model)
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(once())
    gc.collect()
    assert ended() is None


async def test_one_model_works_in_several_event_loops_concurrently(peer: Peer) -> None:
    peer.replies(HELLO, HELLO, HELLO)
    model = OpenAI("m", peer.url)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(text(asyncio.run(ask(model)))))
    assert text(await ask(model)) == "hello"
    thread.start()
    await asyncio.to_thread(thread.join, 5)
    assert answers == ["hello"]
    assert text(await ask(model)) == "hello"
    assert peer.connections == 2


async def test_a_garbage_collected_model_closes_its_connections(peer: Peer) -> None:
    peer.replies(HELLO)
    model: Any = OpenAI("m", peer.url)
    model.holder = model  # a reference cycle, as in a run or a traceback: the garbage collector has to find it
    assert text(await ask(model)) == "hello"
    del model
    gc.collect()  # which warns about connections that are not closed
    assert await asyncio.to_thread(peer.client_left.wait, 60)


async def test_a_proxy_is_not_used_for_a_local_server(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    peer.replies(HELLO, HELLO)
    for address in (peer.url, peer.url.replace("127.0.0.1", "0.0.0.0")):
        assert text(await ask(OpenAI("m", address))) == "hello"


def test_importing_the_package_does_not_import_the_http_library() -> None:
    program = """
import sys, agentnb.llms
assert {"OpenAI", "Anthropic", "Local"} <= set(dir(agentnb.llms))
assert not {"httpx", "stamina", "xllamacpp"} & set(sys.modules), sys.modules
agentnb.llms.OpenAI
assert "httpx" in sys.modules
try:
    agentnb.llms.Nonsense
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nonsense" in done.stdout
