"""Tools of MCP servers (the Model Context Protocol).

    with connect(["python", "server.py"]) as server:
        await SessionLoop(llm, server.tools).run("Which tests fail?")

A connection has an event loop in a thread of its own: in that of a notebook, only the cell that had opened it could
close it, and a run goes on in yet another one. So it may be opened in one cell, used by runs wherever they are driven,
and closed in a third; whoever forgets that leaves it to the end of the process, or of the last run that has its tools.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

from agentnb.core.errors import ToolError, UsageError
from agentnb.tools.described import DescribedTool

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import ContentBlock
    from mcp.types import Tool as Told

CONNECT_SECONDS = 60.0
"""For a server to start and say which tools it has; one that is fetched first (npx, uvx) takes its time."""

CLOSE_SECONDS = 5.0
"""For a server to end, before it is left to its own."""

_LAST_WORDS = 1000
"""Bytes of what a server has printed that an error shows."""


def connect(
    server: Any,
    *,
    trusted: bool = False,
    prefix: str = "",
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Connection:
    """Connect to an MCP server, and learn which tools it has. Needs the extra `mcp`.

    server: the command that starts it, as a list or one text; the address of one that runs (`https://.../mcp`); or
    what `mcp.Client` takes, an `MCPServer` of your own for one. env, cwd: for a command. It gets of this process's
    environment only what every program needs (`PATH`, `HOME`), and no keys: what else it needs is in `env`.

    trusted: whether what the server says of its tools is believed: one that only reads runs without a question, and
    one that may run twice does so when nobody knows whether it ran. Otherwise a person, or the run's `approve=`, is
    asked before every call. prefix: in front of each name, where two servers have a tool of the same. timeout: seconds
    for each call.

    Raises UsageError where there is no such server, with what it has printed.
    """
    try:
        import mcp
        from mcp.client.stdio import StdioServerParameters, stdio_client
    except ImportError:
        raise UsageError("Tools of MCP servers need the extra mcp: pip install 'agentnb-toolkit[mcp]'.") from None
    command = _command_of(server)
    printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
    if command is not None:
        name, *arguments = command
        process = StdioServerParameters(command=name, args=arguments, env=dict(env or {}), cwd=cwd)
        server, where = stdio_client(process, errlog=cast("TextIO", printed)), shlex.join(command)
    else:
        where = re.sub(r"(?<=//)[^/?#]*@|\?.*", "", server) if isinstance(server, str) else type(server).__name__
    return Connection(mcp.Client(server), where, printed, trusted=trusted, prefix=prefix, timeout=timeout)


def _command_of(server: Any) -> list[str] | None:
    if isinstance(server, str):
        try:
            server = None if re.match(r"https?://", server) else shlex.split(server)
        except ValueError as error:
            raise UsageError(f"{server!r} is no command: {error}.") from None
    if not isinstance(server, Sequence):
        return None
    command = [str(word) for word in server]
    if not command:
        raise UsageError('connect() takes the command of a server, ["python", "server.py"] for one, or its address.')
    return command


class Connection:
    """A connection to an MCP server, made by `connect`. `tools` are the server's, for any loop."""

    def __init__(
        self, client: Client, where: str, printed: IO[bytes], *, trusted: bool, prefix: str, timeout: float | None
    ) -> None:
        self._client = client
        self._where = where
        self._loop = asyncio.new_event_loop()
        found: Future[list[Told]] = Future()
        holding = self._loop.create_task(_hold(client, found))
        self._thread = threading.Thread(target=_serve, args=(self._loop, holding), daemon=True)
        self._thread.start()
        self.close: Callable[[], None] = weakref.finalize(self, _close, self._loop, holding, self._thread, printed)
        """End the connection, and with it a server that was started for it. A second time it does nothing."""
        try:
            told = found.result()
        except BaseException as error:
            words = _last_of(printed)
            self.close()
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            late = f"it has not answered for {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else None
            raise UsageError(f"There is no MCP server at {where}: {late or _why(error)}.{words}") from None
        names = _names(prefix + one.name for one in told)
        self.tools = [self._tool(one, name, trusted, timeout) for one, name in zip(told, names, strict=True)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MCP server {self._where}: {', '.join(tool.name for tool in self.tools)}>"

    def _tool(self, told: Told, name: str, trusted: bool, timeout: float | None) -> DescribedTool:
        async def execute(
            call_id: str, arguments: dict[str, Any], signal: object, on_update: Callable[..., Any]
        ) -> Any:
            return await self._call(told.name, arguments, on_update)

        hints = told.annotations if trusted else None
        only_reads = hints is not None and bool(hints.read_only_hint)
        return DescribedTool(
            execute,
            schema=told.input_schema,
            by_place=4,
            name=name,
            description=told.description or told.title or "",
            approve=not only_reads,
            idempotent=only_reads or (hints is not None and bool(hints.idempotent_hint)),
            timeout=timeout,
        )

    async def _call(self, name: str, arguments: dict[str, Any], on_update: Callable[..., Any]) -> Any:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            said = {"done": progress, "total": total, "message": message}
            on_update({name: value for name, value in said.items() if value is not None})

        if not (self._loop.is_running() and self._thread.is_alive()):  # a process that is forked has no such thread
            raise ToolError("The connection to the MCP server is closed.")
        calling = self._client.call_tool(name, arguments, progress_callback=tell)
        try:
            result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calling, self._loop))
        except Exception as error:  # without what it has printed, which is for people: this goes into the recording
            raise ToolError(f"The MCP server failed: {_why(error)}.") from error
        blocks = [_block(one) for one in result.content]
        words = "\n".join(block.get("text", f"[{block['type']}]") for block in blocks)
        if result.is_error:
            raise ToolError(words)
        if not blocks and result.structured_content is not None:
            return result.structured_content
        return words if all(block["type"] == "text" for block in blocks) else blocks


def _names(told: Iterable[str]) -> list[str]:
    """What models may call the tools: MCP takes other names too, and two of them may be one when they are mended."""
    names: list[str] = []
    for one in told:
        name = mended = re.sub(r"[^a-zA-Z0-9_-]", "_", one)[:64]
        number = 1
        while name in names:
            number += 1
            name = f"{mended[:60]}_{number}"
        names.append(name)
    return names


def _block(said: ContentBlock) -> dict[str, Any]:
    """A piece of a result as a model can be told it: text, or a picture; of what is neither, that it is there."""
    if said.type == "image":  # in Anthropic's shape; others are told that there is one
        return {"type": "image", "source": {"type": "base64", "media_type": said.mime_type, "data": said.data}}
    if said.type == "text":
        return {"type": "text", "text": said.text}
    if said.type == "resource":
        return {"type": "text", "text": str(getattr(said.resource, "text", f"[{said.resource.uri}]"))}
    return {"type": "text", "text": f"[{getattr(said, 'uri', said.type)}]"}


def _last_of(printed: IO[bytes]) -> str:
    """What a server that was started here has printed, to end an error with."""
    printed.seek(max(0, printed.seek(0, os.SEEK_END) - _LAST_WORDS))
    words = printed.read().decode(errors="replace").strip()
    return f" It printed:\n{words}" if words else ""


def _first(error: BaseException) -> BaseException:
    """What has gone wrong; where several things have at once, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _why(error: BaseException) -> str:
    error = _first(error)
    return f"{type(error).__name__}: {error}".removesuffix(".").removesuffix(": ")


def _serve(loop: asyncio.AbstractEventLoop, holding: asyncio.Task[None]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(asyncio.wait([holding]))


async def _hold(client: Client, found: Future[list[Told]]) -> None:
    """Hold the connection until this is cancelled, in the one task that may open and close it."""
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_SECONDS):
                await stack.enter_async_context(client)
                tools = await _tools_of(client)
            found.set_result(tools)
            await asyncio.Event().wait()
    except BaseException as error:  # nobody waits for this task; who waits for the tools is told
        if not found.done():
            found.set_exception(_first(error))  # IPython has a group printed by Python itself, in a hundred lines


async def _tools_of(client: Client) -> list[Told]:
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def _close(
    loop: asyncio.AbstractEventLoop, holding: asyncio.Task[None], thread: threading.Thread, printed: IO[bytes]
) -> None:
    with suppress(RuntimeError):  # it has ended by itself
        loop.call_soon_threadsafe(holding.cancel)
    if thread is not threading.current_thread():  # whoever forgot it may have its last tool collected there
        thread.join(CLOSE_SECONDS)
    printed.close()
