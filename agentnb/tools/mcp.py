"""MCP: the tools of servers that speak the Model Context Protocol.

    with connect(["python", "server.py"]) as server:
        await SessionLoop(llm, server.tools).run("Which tests fail?")

A connection has an event loop in its own thread. In the event loop of a notebook, only the cell that opened the
connection could close it, and runs may use yet another event loop. So a connection may be opened in one cell, used by
any run, and closed in a third cell. Otherwise it is closed at the end of the process, or when the last reference to it
is gone.
"""

from __future__ import annotations

import asyncio
import logging
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

from agentnb.core.errors import ToolError, UsageError, printable
from agentnb.tools.adapt import DescribedTool
from agentnb.tools.mcp_wire import (
    NOT_SENT,
    OURS,
    SESSION_EXPIRED,
    SESSION_REFUSED,
    raw_of,
    read_in_parts,
    reason_unusable,
    result_in,
)

if TYPE_CHECKING:
    from mcp import Client

_LOGGER = logging.getLogger("agentnb")

Listing = list[Any]
"""The tools of a server as it has sent them. Each is an object if it is valid."""

CONNECT_SECONDS = 60.0
"""Seconds for a server to start and to list its tools. A server that is downloaded first (npx, uvx) takes longer."""

CLOSE_SECONDS = 5.0
"""Seconds to wait for a server to end."""

_OUTPUT_SHOWN = 1000
"""The number of bytes of a server's output that an error shows."""


def connect(
    server: Any,
    *,
    trusted: bool = False,
    prefix: str = "",
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
) -> Connection:
    """Connect to an MCP server, and list its tools. Requires the extra `mcp`.

    After an outage the next call connects again. A server that a command started is started again. A call that was
    running when the connection was lost fails.

    server: the command that starts the server, as a list or one string; the address of a running server
        (`https://.../mcp`); or what `mcp.Client` accepts, such as an `MCPServer` object.
    trusted: True to believe what the server says about its tools: a tool that only reads needs no approval, and one
        that is idempotent runs again if it is unknown whether it ran. Otherwise a person, or the run's `approve=`,
        decides about every call.
    prefix: a prefix of each name, if two servers have a tool of the same name.
    timeout: seconds for each call.
    env, cwd: the environment and the folder of a command. The command gets only those variables of this process that
        every program needs (`PATH`, `HOME`), and no keys; `env` adds others.
    headers: headers of every request to an address, such as `{"Authorization": "Bearer ..."}`. They are shown nowhere.

    Raises UsageError if there is no such server, with what it has printed.
    """
    try:
        import mcp
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.server import MCPServer, Server

        from agentnb.tools.mcp_http import over_http
    except ImportError:
        raise UsageError("Tools of MCP servers need the extra mcp: pip install 'agentnb-toolkit[mcp]'.") from None
    command = _command_of(server)
    if headers is not None and (command is not None or not isinstance(server, str)):
        raise UsageError("connect(headers=) is for the address of a server. Pass keys to a command by env=.")
    _check_headers(headers)
    printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
    if command is not None:
        address = shlex.join(command)
    else:
        address = re.sub(r"(?<=//)[^/?#]*@|\?.*", "", server) if isinstance(server, str) else type(server).__name__

    def make(sessions: _Sessions) -> Client:
        """Return the client of a new session. A server that is given as a command is started for each session."""
        transport: Any = server
        if command is not None:
            name, *arguments = command
            process = StdioServerParameters(command=name, args=arguments, env=dict(env or {}), cwd=cwd)
            transport = read_in_parts(stdio_client(process, errlog=cast("TextIO", printed)), sessions.end)
        elif isinstance(server, str):
            transport = read_in_parts(over_http(server, headers), sessions.end)
        elif not isinstance(server, (MCPServer, Server)):
            transport = read_in_parts(server, sessions.end)
        return mcp.Client(transport, cache=None, message_handler=sessions.on_message)

    return Connection(_Sessions(make), address, printed, trusted=trusted, prefix=prefix, timeout=timeout)


def _check_headers(headers: Any) -> None:
    """Raise UsageError for headers that cannot be sent. The error does not show values, which may be keys."""
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise UsageError(f"connect(headers=) must be a mapping of names to strings, not a {type(headers).__name__}.")
    for name, value in headers.items():
        if not isinstance(name, str) or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise UsageError(f"connect(headers=): {name!r:.80} is not the name of a header.")
        if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?", value):
            raise UsageError(
                f"connect(headers=): the value of {name!r} is not valid in a header. Does it end in a line break?"
            )


def _command_of(server: Any) -> list[str] | None:
    if isinstance(server, str):
        try:
            server = None if re.match(r"https?://", server) else shlex.split(server)
        except ValueError as error:
            raise UsageError(f"{server!r} is not a valid command: {error}.") from None
    if not isinstance(server, Sequence):
        return None
    command = [str(word) for word in server]
    if not command:
        raise UsageError('connect() needs the command of a server, such as ["python", "server.py"], or its address.')
    return command


class Connection:
    """A connection to an MCP server, made by `connect`.

    tools: the server's tools, for any loop. The list changes when the server reports that its tools have changed.
    unusable: the names of tools that cannot be called, each with the reason.
    """

    def __init__(
        self,
        sessions: _Sessions,
        address: str,
        printed: IO[bytes],
        *,
        trusted: bool,
        prefix: str,
        timeout: float | None,
    ) -> None:
        self.tools: list[DescribedTool] = []
        self.unusable: dict[str, str] = {}
        self._sessions = sessions
        self._address = address
        self._trusted, self._prefix, self._timeout = trusted, prefix, timeout
        found: Future[Listing] = Future()
        holding = sessions.loop.create_task(sessions.hold(found))
        sessions.on_listing = weakref.WeakMethod(self._follow)  # weak, so that an unused connection is closed
        self._thread = threading.Thread(target=_serve, args=(sessions.loop, holding), daemon=True)
        self._thread.start()
        self.close: Callable[[], None] = weakref.finalize(self, _close, sessions, holding, self._thread, printed)
        """Close the connection, and end a server that was started for it. Further calls do nothing."""
        try:
            listing = found.result()
        except BaseException as error:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - _OUTPUT_SHOWN))
            output = printed.read().decode(errors="replace").strip()
            output = f" It printed:\n{output}" if output else ""
            self.close()
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            hint = ' Pass its credentials by headers={"Authorization": ...}.' if " 401 " in f"{error} " else ""
            raise UsageError(f"There is no MCP server at {address}: {_reason(error)}.{hint}{output}") from None
        self._follow(listing)

    @property
    def instructions(self) -> str | None:
        """The server's instructions for its use, for a system prompt; None if it has sent none."""
        return self._sessions.instructions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        without = f"; not usable: {', '.join(self.unusable)}" if self.unusable else ""
        return printable(f"<MCP server {self._address}: {', '.join(tool.name for tool in self.tools)}{without}>")

    def _follow(self, listing: Listing) -> None:
        """Update the tools to those that the server has listed."""
        usable, unusable = [], {}
        for number, entry in enumerate(listing, 1):
            if (reason := reason_unusable(entry)) is None:
                usable.append(entry)
            else:
                name = entry.get("name") if isinstance(entry, dict) else None
                unusable[name if isinstance(name, str) and name else f"tool {number}"] = reason
        for name in unusable.keys() - self.unusable.keys():
            warning = printable(f"The tool {name} of the MCP server {self._address} cannot be used: {unusable[name]}.")
            _LOGGER.warning("%s", warning)
        names = _names(self._prefix + entry["name"] for entry in usable)
        self.unusable = unusable
        self.tools[:] = [self._tool(entry, name) for entry, name in zip(usable, names, strict=True)]

    def _tool(self, entry: dict[str, Any], name: str) -> DescribedTool:
        connection, server_name = self, entry["name"]

        async def execute(
            call_id: str, arguments: dict[str, Any], signal: object, on_update: Callable[..., Any]
        ) -> Any:
            return await connection._call(server_name, arguments, on_update, idempotent=idempotent)

        annotations = entry.get("annotations") if self._trusted else None
        hints = annotations if isinstance(annotations, dict) else {}
        only_reads = hints.get("readOnlyHint") is True
        idempotent = only_reads or hints.get("idempotentHint") is True
        texts = (entry.get("description"), entry.get("title"))
        tool = DescribedTool(
            execute,
            schema={**entry["inputSchema"], "type": "object"},
            positional=4,
            name=name,
            description=next((text for text in texts if isinstance(text, str) and text), ""),
            approve=not only_reads,
            idempotent=idempotent,
            timeout=self._timeout,
        )
        tool.source = f"{server_name} of the MCP server {self._address}"
        return tool

    async def _call(
        self, name: str, arguments: dict[str, Any], on_update: Callable[..., Any], *, idempotent: bool
    ) -> Any:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            fields = {"done": progress, "total": total, "message": message}
            on_update({name: value for name, value in fields.items() if value is not None})

        sessions = self._sessions
        if not (sessions.loop.is_running() and self._thread.is_alive()):  # a forked process does not have the thread
            raise ToolError("The connection to the MCP server is closed.")
        calling = sessions.call(name, arguments, report, idempotent=idempotent)
        try:
            raw = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calling, sessions.loop))
        except Exception as error:  # without the server's output, which does not belong into the recording
            raise ToolError(f"The MCP server failed: {_reason(error)}.") from error
        return result_in(raw)


class _Sessions:
    """The current session with a server, and the next one after an outage, in the event loop of the connection's
    thread.
    """

    def __init__(self, make: Callable[[_Sessions], Client]) -> None:
        """Create the event loop. `make` returns the client of a new session."""
        self.loop = asyncio.new_event_loop()
        self.instructions: str | None = None
        self.on_listing: Callable[[], Callable[[Listing], None] | None] = lambda: None
        self.has_ended = False
        """True if the server has ended the session."""
        self._make = make
        self._client: Client | None = None
        self._requested: asyncio.Queue[Future[Listing]] = asyncio.Queue()
        self._opening: Future[Listing] | None = None
        self._listing: set[asyncio.Task[None]] = set()

    async def hold(self, requested: Future[Listing]) -> None:
        """Hold a session until another one is requested or this task is cancelled. One task opens and closes all
        sessions.
        """
        while True:
            further: Future[Listing] | None = None
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        client = self._make(self)
                        self.has_ended = False
                        await stack.enter_async_context(client)
                        # A result that does not follow its schema is still the result.
                        client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
                        listing = await _listing_of(client)
                    self._client, self.instructions = client, client.instructions
                    requested.set_result(listing)
                    following = self.loop.create_task(self._subscribe(client))
                    stack.callback(following.cancel)
                    further = await self._requested.get()
            except asyncio.CancelledError:
                self._refuse(requested, further)
                raise
            except BaseException as error:  # reported to the caller that waits for the tools, not by this task
                if not requested.done():
                    requested.set_exception(_first_error(error))  # IPython prints a group in a hundred lines
            finally:
                self._client = None
            requested = further if further is not None else await self._requested.get()

    def _refuse(self, *requested: Future[Listing] | None) -> None:
        """Fail the requests for a session, because the connection is closed."""
        waiting = [*requested]
        while not self._requested.empty():
            waiting.append(self._requested.get_nowait())
        for one in waiting:
            if one is not None and not one.done():
                one.set_exception(ToolError("The connection is closed"))

    def end(self) -> None:
        """Note that the server has ended the session."""
        self.has_ended = True

    async def call(self, name: str, arguments: dict[str, Any], report: Any, *, idempotent: bool) -> dict[str, Any]:
        """Call a tool, in a new session after an outage. Return the result as the server has sent it.

        A call is repeated only if it certainly has not reached the server or its tool: the connection failed, or the
        server answered 404, which is the protocol's sign for a session that it no longer knows. A text of the server is
        no sign; after one about the session, only a call of an idempotent tool is repeated.
        """
        from mcp import MCPError

        client = await self._session()
        try:
            return raw_of(await client.call_tool(name, arguments, progress_callback=report))
        except MCPError as error:
            if error.data != OURS or error.code not in (NOT_SENT, SESSION_EXPIRED, SESSION_REFUSED):
                raise
            if self._client is client:
                self.has_ended = True
            if error.code == SESSION_REFUSED and not idempotent:
                raise
        client = await self._session()
        return raw_of(await client.call_tool(name, arguments, progress_callback=report))

    async def _session(self) -> Client:
        """Return the client of the current session, or of a new one if it has ended."""
        if self._client is None or self.has_ended:
            if self._opening is None or self._opening.done():
                self._opening = Future()
                self._requested.put_nowait(self._opening)
            self._set_listing(await asyncio.shield(asyncio.wrap_future(self._opening)))
        if self._client is None:
            raise ToolError("the connection was closed meanwhile")
        return self._client

    async def on_message(self, message: Any) -> None:
        """List the tools again if the server reports a change."""
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification) and self._client is not None:
            task = self.loop.create_task(self._list_again(self._client))
            self._listing.add(task)
            task.add_done_callback(self._listing.discard)

    async def _subscribe(self, client: Client) -> None:
        """List the tools again at each change. Newer servers report changes only to subscribers."""
        with suppress(Exception):  # the server has no subscriptions, or the session has ended
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    await self._list_again(client)

    async def _list_again(self, client: Client) -> None:
        with suppress(Exception):  # the session has ended
            self._set_listing(await _listing_of(client))

    def _set_listing(self, listing: Listing) -> None:
        if (follow := self.on_listing()) is not None:
            follow(listing)


async def _accept_result(name: str, result: Any) -> None:
    """Do nothing, in place of the library's check of a result."""


def _names(server_names: Iterable[str]) -> list[str]:
    """Return the names for models, without characters that only MCP allows. Equal names then get different numbers."""
    names: list[str] = []
    for server_name in server_names:
        name = legal = re.sub(r"[^a-zA-Z0-9_-]", "_", server_name)[:64]
        number = 1
        while name in names:
            number += 1
            name = f"{legal[:60]}_{number}"
        names.append(name)
    return names


def _first_error(error: BaseException) -> BaseException:
    """Return the first error of a group, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    error = _first_error(error)
    if isinstance(error, TimeoutError) and not str(error):
        return f"it did not answer within {CONNECT_SECONDS:g} s"
    return f"{type(error).__name__}: {error}".removesuffix(".").removesuffix(": ")


def _serve(loop: asyncio.AbstractEventLoop, holding: asyncio.Task[None]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(asyncio.wait([holding]))


async def _listing_of(client: Client) -> Listing:
    page = await client.list_tools()
    listing = _tools_in(page)
    while page.next_cursor is not None:
        page = await client.list_tools(cursor=page.next_cursor)
        listing += _tools_in(page)
    return listing


def _tools_in(page: Any) -> Listing:
    tools = raw_of(page).get("tools")
    return list(tools) if isinstance(tools, list) else []


def _close(sessions: _Sessions, holding: asyncio.Task[None], thread: threading.Thread, printed: IO[bytes]) -> None:
    with suppress(RuntimeError):  # the loop has ended already
        sessions.loop.call_soon_threadsafe(holding.cancel)
    if thread is not threading.current_thread():  # the last tool may be garbage-collected in it
        thread.join(CLOSE_SECONDS)
    printed.close()
