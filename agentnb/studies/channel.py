"""The channel between a study and a worker: one TCP connection, over which questions, decisions and results go.

The study listens; the worker connects, with the address and the key that it has received with its task. Both prove that
they know the key before anything else is read (HMAC of random numbers). Messages are JSON, except for the recipe of the
study, which the worker unpickles. The study never unpickles what a worker sends. Messages are not encrypted.

The connection shows at once that a process has died: the other side reads the end of the stream. The kernel probes it
for machines that vanish.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError

_LENGTH = struct.Struct("!I")
_NONCE = 32
_PROOF = 32
HANDSHAKE_SECONDS = 10.0
"""The seconds that the other side has to prove that it knows the key."""

_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds without traffic until the kernel probes the connection, seconds between probes, and their number."""

LOST = (EOFError, OSError, asyncio.IncompleteReadError)
"""The exceptions of a connection that has ended."""


@dataclass(frozen=True, repr=False)
class Ticket:
    """Where and with which key a worker reaches the study, and what it is to say that it is.

    `study` is the process of the study, so that a worker in the same process can be recognised. The key is not part of
    the text of this object, because schedulers write the arguments of tasks to logs.
    """

    hosts: tuple[str, ...]
    port: int
    key: bytes
    place: str
    study: tuple[str, int]

    def __repr__(self) -> str:
        return f"<Ticket of the worker {self.place} to {', '.join(self.hosts)}:{self.port}>"


class Connection:
    """One connection whose other side has proved that it knows the key."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. If the connection has ended, do nothing: the reader of the connection notices it."""
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        """Send bytes, as `send` does."""
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(body)))
            self._writer.write(body)

    async def receive(self) -> dict[str, Any]:
        """Return the next message. Raises one of `LOST` if the connection has ended."""
        message = json.loads(await self.receive_bytes())
        assert isinstance(message, dict)
        return message

    async def receive_bytes(self) -> bytes:
        """Return the next bytes. Raises as `receive` does."""
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Close the connection after all that was sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close the connection at once. Safe from the event loop of the connection only."""
        self._writer.transport.abort()


class Listener:
    """Accepts the connections of workers that know the key, and calls `serve` with each in a task of its own."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self.key = secrets.token_bytes(32)
        self.port = 0
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, addresses: Sequence[str]) -> None:
        """Listen at a free port, for workers that use these addresses of this machine."""
        host = addresses[0] if len(addresses) == 1 else None  # None: at all of them
        self._server = await asyncio.start_server(self._accept, host, 0, family=socket.AF_INET)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close the port, and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with suppress(asyncio.CancelledError, Exception):
                await task

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_one(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(TimeoutError, *LOST):
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    is_known = await _challenge(self.key, reader, writer)
                if is_known:
                    _probe(writer)
                    await self._serve(Connection(reader, writer))
        finally:
            writer.close()


async def connect(ticket: Ticket) -> Connection:
    """Connect to a study. Raises one of `LOST` or TimeoutError if it cannot be reached, UsageError for a wrong key."""
    failed: Exception | None = None
    for host in ticket.hosts:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                reader, writer = await asyncio.open_connection(host, ticket.port)
        except (TimeoutError, OSError) as error:
            failed = error
            continue
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await _answer(ticket.key, reader, writer)
        _probe(writer)
        return Connection(reader, writer)
    assert failed is not None
    raise failed


async def _challenge(key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return True if the worker at the other side knows the key, and prove to it that this side knows it too."""
    ours = secrets.token_bytes(_NONCE)
    writer.write(ours)
    theirs, proof = await reader.readexactly(_NONCE), await reader.readexactly(_PROOF)
    if not hmac.compare_digest(proof, hmac.digest(key, b"worker" + ours + theirs, "sha256")):
        return False
    writer.write(hmac.digest(key, b"study" + theirs + ours, "sha256"))
    return True


async def _answer(key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    theirs, ours = await reader.readexactly(_NONCE), secrets.token_bytes(_NONCE)
    writer.write(ours + hmac.digest(key, b"worker" + theirs + ours, "sha256"))
    try:
        proof = await reader.readexactly(_PROOF)
    except LOST:
        proof = b""
    if not hmac.compare_digest(proof, hmac.digest(key, b"study" + ours + theirs, "sha256")):
        writer.close()
        raise UsageError("The process at the address of the study does not know the study's key.")


def _probe(writer: asyncio.StreamWriter) -> None:
    """Let the kernel notice a machine that has vanished."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has each
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def route_to(host: str) -> str:
    """Return the address of this machine from which a host is reached. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
