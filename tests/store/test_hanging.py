"""A database that stops answering blocks no caller for ever, and a run continues when it answers again."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from agentnb import RunFailed, SessionLoop, Store, tool
from agentnb.core.errors import StorageError
from agentnb.store import postgres as store_in_postgres
from agentnb.testing import ScriptedLLM, call
from tests.store.postgres import PostgresServer

ANSWER_SECONDS = 0.4
ENOUGH = 8.0
"""Seconds that are enough for two attempts of each operation, on a busy machine."""


class Proxy:
    """Forwards connections to a server until it hangs: then it accepts data and returns none."""

    def __init__(self, port: int) -> None:
        self.hangs = False
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        hung = False
        with suppress(OSError):
            while data := source.recv(65536):
                hung = hung or self.hangs  # a connection that has lost something is of no use any more
                if not hung:
                    target.sendall(data)
        target.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def store(postgres: PostgresServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(store_in_postgres, "ANSWER_SECONDS", ANSWER_SECONDS)
    store = Store(f"{postgres.url.replace(str(postgres.port), str(proxy.port))}?connect_timeout=2")
    yield store
    store.close()


@tool
async def look() -> str:
    """Look."""
    return "seen"


def loop() -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("look", {})], "done"]), [look])


def test_a_statement_without_an_answer_fails(store: Store, proxy: Proxy) -> None:
    proxy.hangs = True
    started = time.monotonic()
    with pytest.raises(StorageError):
        store.runs()
    assert time.monotonic() - started < ENOUGH
    proxy.hangs = False
    assert isinstance(store.runs(), list)


async def test_a_run_whose_store_never_answers_ends_without_blocking_the_event_loop(store: Store, proxy: Proxy) -> None:
    run = loop().start("go", store=store)
    await run.step("turn")
    proxy.hangs = True
    with pytest.raises(RunFailed, match=r"could not be written|cannot be used as a store"):
        await asyncio.wait_for(run, 2 * ENOUGH)


async def test_a_run_continues_when_its_store_answers_again(store: Store, proxy: Proxy) -> None:
    run = loop().start("go", store=store)
    await run.step("turn")
    proxy.hangs = True
    threading.Timer(ANSWER_SECONDS / 2, lambda: setattr(proxy, "hangs", False)).start()
    assert await asyncio.wait_for(run, ENOUGH) == "done"
    assert list(store.load(run.id).events) == list(run.events)


def test_time_limits_in_an_address_take_precedence() -> None:
    address = store_in_postgres._with_limits("postgresql://me@there/lab?connect_timeout=60&sslmode=require")
    query = dict(pair.split("=") for pair in urlsplit(address).query.split("&"))
    assert (query["connect_timeout"], query["sslmode"]) == ("60", "require")
    assert query["tcp_user_timeout"] == "15000"
    assert query["keepalives"] == "1"
