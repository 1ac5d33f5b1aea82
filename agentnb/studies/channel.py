"""The channel between a study and a worker: one TCP connection, over which questions, decisions and results go.

The study listens; the worker connects, with the address and the key that it has received with its task. Both prove that
they know the key before anything else is read (HMAC of random numbers). Messages are JSON, except for the recipe of the
study, which the worker unpickles. The study never unpickles what a worker sends.

Every message has a code: an HMAC of its number, its length and its body, with a key of this connection and direction,
which both sides derive from the key and the random numbers. The length has a code of its own, which is checked before
the body is read; the body is used only after its code was checked. So whoever is between the two sides can read what is
sent and can end the connection, and cannot change, add, repeat, reorder, reflect or leave out a message.

The connection shows at once that a process has died: the other side reads the end of the stream. The kernel probes it
for machines that vanish.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import UsageError

_LOGGER = logging.getLogger(__name__)
_LENGTH = struct.Struct("!I")
_NONCE = 32
_PROOF = 32
_CODE = 32
_HEAD = struct.Struct("!QI")
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
    """One connection whose other side has proved that it knows the key.

    sending, receiving: the keys of the codes of the messages in each direction.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, sending: bytes, receiving: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = sending
        self._receiving = receiving
        self._sent = 0
        self._received = 0

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. If the connection has ended, do nothing: the reader of the connection notices it."""
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        """Send bytes, as `send` does."""
        if not self._writer.is_closing():
            head = _HEAD.pack(self._sent, len(body))
            self._sent += 1
            parts = (_LENGTH.pack(len(body)), _code(self._sending, head), body, _code(self._sending, head + body))
            self._writer.write(b"".join(parts))  # at once: each write is a packet of its own

    async def receive(self) -> dict[str, Any]:
        """Return the next message. Raises one of `LOST` if the connection has ended."""
        message = json.loads(await self.receive_bytes())
        assert isinstance(message, dict)
        return message

    async def receive_bytes(self) -> bytes:
        """Return the next bytes. Raises as `receive` does, also if they are not what the other side has sent next."""
        begin = await self._reader.readexactly(_LENGTH.size + _CODE)
        (length,) = _LENGTH.unpack_from(begin)
        head = _HEAD.pack(self._received, length)
        self._check(head, begin[_LENGTH.size :])
        rest = await self._reader.readexactly(length + _CODE)
        body = rest[:length]
        self._check(head + body, rest[length:])
        self._received += 1
        return body

    def _check(self, content: bytes, code: bytes) -> None:
        if not hmac.compare_digest(code, _code(self._receiving, content)):
            self.abort()
            _LOGGER.warning("The connection between a study and a worker was ended: a message was changed on its way.")
            raise ConnectionError("a message was changed on its way")

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
                    connection = await _challenge(self.key, reader, writer)
                if connection is not None:
                    _probe(writer)
                    await self._serve(connection)
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
            connection = await _answer(ticket.key, reader, writer)
        _probe(writer)
        return connection
    assert failed is not None
    raise failed


async def _challenge(key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Connection | None:
    """Return the connection to the worker, and prove to it that this side knows the key. None if it does not."""
    ours = secrets.token_bytes(_NONCE)
    writer.write(ours)
    theirs, proof = await reader.readexactly(_NONCE), await reader.readexactly(_PROOF)
    if not hmac.compare_digest(proof, hmac.digest(key, b"worker" + ours + theirs, "sha256")):
        return None
    writer.write(hmac.digest(key, b"study" + theirs + ours, "sha256"))
    from_study, from_worker = _session_keys(key, study=ours, worker=theirs)
    return Connection(reader, writer, sending=from_study, receiving=from_worker)


async def _answer(key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Connection:
    """Prove to the study that this worker knows the key, and return the connection. Raises UsageError if the study
    does not know it.
    """
    theirs, ours = await reader.readexactly(_NONCE), secrets.token_bytes(_NONCE)
    writer.write(ours + hmac.digest(key, b"worker" + theirs + ours, "sha256"))
    try:
        proof = await reader.readexactly(_PROOF)
    except LOST:
        proof = b""
    if not hmac.compare_digest(proof, hmac.digest(key, b"study" + ours + theirs, "sha256")):
        writer.close()
        raise UsageError("The process at the address of the study does not know the study's key.")
    from_study, from_worker = _session_keys(key, study=theirs, worker=ours)
    return Connection(reader, writer, sending=from_worker, receiving=from_study)


def _session_keys(key: bytes, *, study: bytes, worker: bytes) -> tuple[bytes, bytes]:
    """Return the keys of the messages from the study and from the worker. study, worker: their random numbers."""
    numbers = study + worker
    return (
        hmac.digest(key, b"messages of the study" + numbers, "sha256"),
        hmac.digest(key, b"messages of the worker" + numbers, "sha256"),
    )


def _code(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")


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
