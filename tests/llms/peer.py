"""A server that sends exactly the bytes of a test, over a real socket.

It has a separate thread and event loop, so that a client can be used from any event loop. Replies are used in order,
one for each request. A reply is a list of steps: bytes to send, `HANG` (send nothing until the client disconnects),
`KEEP_ALIVE` (send comments until it disconnects) or `CUT` (drop the connection).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Step(Enum):
    HANG = "hang"
    KEEP_ALIVE = "keep alive"
    CUT = "cut"


HANG, KEEP_ALIVE, CUT = Step.HANG, Step.KEEP_ALIVE, Step.CUT
END = b"0\r\n\r\n"
Reply = list[bytes | Step]


def head(status: int = 200, media_type: str = "text/event-stream", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-type: {media_type}", "transfer-encoding: chunked"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def part(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload: object, name: str = "") -> bytes:
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return part((f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode())


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    """One event of a chat completion."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]})


def completion(*events: bytes) -> Reply:
    """A whole chat completion."""
    return [head(), *events, event("[DONE]"), END]


def body(status: int, payload: object, **headers: str) -> Reply:
    """A whole JSON answer."""
    return [head(status, "application/json", **headers), part(json.dumps(payload).encode()), END]


def said(message: str, kind: str = "some_error") -> dict[str, object]:
    """The body of an error, in either dialect."""
    return {"error": {"message": message, "type": kind}}


HELLO = completion(delta(content="hello"), delta("stop"))


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Peer:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.hanging = threading.Event()
        self.client_left = threading.Event()
        self._replies: deque[Reply] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._conversations: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop)
        self._server = server.result(30)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def replies(self, *replies: Reply) -> None:
        self._replies.extend(replies)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _shut_down(self) -> None:
        self._server.close()
        for writer in self._conversations.values():
            writer.transport.abort()
        await asyncio.gather(*self._conversations)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations[task] = writer
        self.connections += 1
        try:
            while await self._converse(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.client_left.set()  # it has closed an idle connection
        finally:
            del self._conversations[task]
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        payload = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(Request(first.split()[1], headers, payload))
        for step in self._replies.popleft():
            match step:
                case Step.CUT:
                    writer.transport.abort()
                    return False
                case Step.HANG:
                    self.hanging.set()
                    await self._wait_until_client_leaves(reader)
                    return False
                case Step.KEEP_ALIVE:
                    await self._keep_alive(writer)
                    return False
                case data:
                    writer.write(data)
                    await writer.drain()
        return True

    async def _keep_alive(self, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(part(b": still here\n\n"))
                await writer.drain()
                await asyncio.sleep(0.01)
        self.client_left.set()

    async def _wait_until_client_leaves(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionResetError):  # leaving without a goodbye
            assert await reader.read(1) == b""
        self.client_left.set()
