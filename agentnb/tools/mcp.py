"""Tools of MCP servers (the Model Context Protocol).

    with connect(["python", "server.py"]) as server:
        await SessionLoop(llm, server.tools).run("Which tests fail?")

A connection has an event loop in a thread of its own: in that of a notebook, only the cell that had opened it could
close it, and a run goes on in yet another one. So it may be opened in one cell, used by runs wherever they are driven,
and closed in a third; whoever forgets that leaves it to the end of the process, or of the last run that has its tools.
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

from agentnb.core.errors import ToolError, UsageError
from agentnb.core.unicode import printable
from agentnb.tools.adapt import DescribedTool
from agentnb.tools.mcp_wire import NOT_SENT, SESSION_GONE, raw_of, read_in_parts, result_in, why_unusable

if TYPE_CHECKING:
    from mcp import Client, MCPError

_LOGGER = logging.getLogger("agentnb")

Listing = list[Any]
"""The tools of a server as it has written them, each an object where it is as it should be."""

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
    headers: Mapping[str, str] | None = None,
) -> Connection:
    """Connect to an MCP server, and learn which tools it has. Needs the extra `mcp`.

    server: the command that starts it, as a list or one text; the address of one that runs (`https://.../mcp`); or
    what `mcp.Client` takes, an `MCPServer` of your own for one. env, cwd: for a command. It gets of this process's
    environment only what every program needs (`PATH`, `HOME`), and no keys: what else it needs is in `env`. headers:
    for an address, sent with every request, `{"Authorization": "Bearer ..."}` for one, and shown nowhere.

    trusted: whether what the server says of its tools is believed: one that only reads runs without a question, and
    one that may run twice does so when nobody knows whether it ran. Otherwise a person, or the run's `approve=`, is
    asked before every call. prefix: in front of each name, where two servers have a tool of the same. timeout: seconds
    for each call.

    After an outage the next call connects again; a command is started again. A call that was under way fails.

    Raises UsageError where there is no such server, with what it has printed.
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
        raise UsageError("connect(headers=) are for the address of a server; a command takes its keys by env=.")
    _check_headers(headers)
    printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rest
    if command is not None:
        where = shlex.join(command)
    else:
        where = re.sub(r"(?<=//)[^/?#]*@|\?.*", "", server) if isinstance(server, str) else type(server).__name__

    def make(link: _Link) -> Client:
        """The client of a new session; after an outage a command is started again."""
        given: Any = server
        if command is not None:
            name, *arguments = command
            process = StdioServerParameters(command=name, args=arguments, env=dict(env or {}), cwd=cwd)
            given = read_in_parts(stdio_client(process, errlog=cast("TextIO", printed)), link.end)
        elif isinstance(server, str):
            given = read_in_parts(over_http(server, headers), link.end)
        elif not isinstance(server, (MCPServer, Server)):
            given = read_in_parts(server, link.end)
        return mcp.Client(given, cache=None, message_handler=link.on_message)

    return Connection(_Link(make), where, printed, trusted=trusted, prefix=prefix, timeout=timeout)


def _check_headers(headers: Any) -> None:
    """Raise UsageError for headers that cannot be sent; without their values, of which one may be a key."""
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise UsageError(f"connect(headers=) takes a mapping of names to texts, not a {type(headers).__name__}.")
    for name, value in headers.items():
        if not isinstance(name, str) or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise UsageError(f"connect(headers=): {name!r:.80} is not the name of a header.")
        if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?", value):
            raise UsageError(
                f"connect(headers=): the value of {name!r} is not a text that a header can have. Does it end in a line"
                " break?"
            )


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
    """A connection to an MCP server, made by `connect`.

    `tools` are the server's, for any loop. The list follows the server, where that says that its tools have changed.
    `unusable` are the names of the tools that cannot be called, each with the reason. `instructions` is what the server
    says of its use, a text for a system prompt; None where it says nothing.
    """

    def __init__(
        self, link: _Link, where: str, printed: IO[bytes], *, trusted: bool, prefix: str, timeout: float | None
    ) -> None:
        self.tools: list[DescribedTool] = []
        self.unusable: dict[str, str] = {}
        self._link = link
        self._where = where
        self._trusted, self._prefix, self._timeout = trusted, prefix, timeout
        found: Future[Listing] = Future()
        holding = link.loop.create_task(link.hold(found))
        link.on_listing = weakref.WeakMethod(self._follow)  # a connection that nobody has any more is closed
        self._thread = threading.Thread(target=_serve, args=(link.loop, holding), daemon=True)
        self._thread.start()
        self.close: Callable[[], None] = weakref.finalize(self, _close, link, holding, self._thread, printed)
        """End the connection, and with it a server that was started for it. A second time it does nothing."""
        try:
            listing = found.result()
        except BaseException as error:
            words = _last_of(printed)
            self.close()
            if not isinstance(error, Exception):  # Ctrl-C
                raise
            hint = ' Give it what it asks for by headers={"Authorization": ...}.' if " 401 " in f"{error} " else ""
            raise UsageError(f"There is no MCP server at {where}: {_why(error)}.{hint}{words}") from None
        self._follow(listing)

    @property
    def instructions(self) -> str | None:
        """What the server says of its use."""
        return self._link.instructions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        without = f"; not usable: {', '.join(self.unusable)}" if self.unusable else ""
        return printable(f"<MCP server {self._where}: {', '.join(tool.name for tool in self.tools)}{without}>")

    def _follow(self, listing: Listing) -> None:
        """Make the tools those that the server has listed."""
        usable, unusable = [], {}
        for number, told in enumerate(listing, 1):
            if (why := why_unusable(told)) is None:
                usable.append(told)
            else:
                name = told.get("name") if isinstance(told, dict) else None
                unusable[name if isinstance(name, str) and name else f"tool {number}"] = why
        for name in unusable.keys() - self.unusable.keys():
            said = printable(f"The tool {name} of the MCP server {self._where} cannot be used: {unusable[name]}.")
            _LOGGER.warning("%s", said)
        names = _names(self._prefix + told["name"] for told in usable)
        self.unusable = unusable
        self.tools[:] = [self._tool(told, name) for told, name in zip(usable, names, strict=True)]

    def _tool(self, told: dict[str, Any], name: str) -> DescribedTool:
        connection, called = self, told["name"]

        async def execute(
            call_id: str, arguments: dict[str, Any], signal: object, on_update: Callable[..., Any]
        ) -> Any:
            return await connection._call(called, arguments, on_update)

        said = told.get("annotations") if self._trusted else None
        hints = said if isinstance(said, dict) else {}
        only_reads = hints.get("readOnlyHint") is True
        words = (told.get("description"), told.get("title"))
        tool = DescribedTool(
            execute,
            schema={**told["inputSchema"], "type": "object"},
            positional=4,
            name=name,
            description=next((text for text in words if isinstance(text, str) and text), ""),
            approve=not only_reads,
            idempotent=only_reads or hints.get("idempotentHint") is True,
            timeout=self._timeout,
        )
        tool.source = f"{called} of the MCP server {self._where}"
        return tool

    async def _call(self, name: str, arguments: dict[str, Any], on_update: Callable[..., Any]) -> Any:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            said = {"done": progress, "total": total, "message": message}
            on_update({name: value for name, value in said.items() if value is not None})

        link = self._link
        if not (link.loop.is_running() and self._thread.is_alive()):  # a process that is forked has no such thread
            raise ToolError("The connection to the MCP server is closed.")
        calling = link.call(name, arguments, tell)
        try:
            raw = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(calling, link.loop))
        except Exception as error:  # without what it has printed, which is for people: this goes into the recording
            raise ToolError(f"The MCP server failed: {_why(error)}.") from error
        return result_in(raw)


class _Link:
    """The session with a server, in the event loop of the connection's own thread; and the next, after an outage."""

    def __init__(self, make: Callable[[_Link], Client]) -> None:
        """`make` gives the client of a new session."""
        self.loop = asyncio.new_event_loop()
        self.instructions: str | None = None
        self.on_listing: Callable[[], Callable[[Listing], None] | None] = lambda: None
        self.has_ended = False
        """Whether the server has ended the session."""
        self._make = make
        self._client: Client | None = None
        self._wanted: asyncio.Queue[Future[Listing]] = asyncio.Queue()
        self._opening: Future[Listing] | None = None
        self._listing: set[asyncio.Task[None]] = set()

    async def hold(self, wanted: Future[Listing]) -> None:
        """Hold a session until another one is wanted, or this is cancelled: one task opens and closes all of them."""
        while True:
            further: Future[Listing] | None = None
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(CONNECT_SECONDS):
                        client = self._make(self)
                        self.has_ended = False
                        await stack.enter_async_context(client)
                        client.session.validate_tool_result = _accept  # type: ignore[method-assign]  # read by us
                        listing = await _listing_of(client)
                    self._client, self.instructions = client, client.instructions
                    wanted.set_result(listing)
                    following = self.loop.create_task(self._subscribe(client))
                    stack.callback(following.cancel)
                    further = await self._wanted.get()
            except asyncio.CancelledError:
                self._refuse(wanted, further)
                raise
            except BaseException as error:  # nobody waits for this task; the one who waits for the tools is told
                if not wanted.done():
                    wanted.set_exception(_first(error))  # IPython has a group printed by Python, in a hundred lines
            finally:
                self._client = None
            wanted = further if further is not None else await self._wanted.get()

    def _refuse(self, *wanted: Future[Listing] | None) -> None:
        """Tell everybody who waits for a session that there is none any more."""
        waiting = [*wanted]
        while not self._wanted.empty():
            waiting.append(self._wanted.get_nowait())
        for one in waiting:
            if one is not None and not one.done():
                one.set_exception(ToolError("The connection is closed"))

    def end(self) -> None:
        """The server has ended the session."""
        self.has_ended = True

    async def call(self, name: str, arguments: dict[str, Any], tell: Any) -> dict[str, Any]:
        """Call a tool; after an outage in a new session. The result as the server has written it.

        A call is made again only where it is sure that it has not reached the server.
        """
        from mcp import MCPError

        client = await self._session()
        try:
            return raw_of(await client.call_tool(name, arguments, progress_callback=tell))
        except MCPError as error:
            if not _has_not_arrived(error):
                raise
        if self._client is client:
            self.has_ended = True
        client = await self._session()
        return raw_of(await client.call_tool(name, arguments, progress_callback=tell))

    async def _session(self) -> Client:
        """The client of the session; where that has ended, of a new one."""
        if self._client is None or self.has_ended:
            if self._opening is None or self._opening.done():
                self._opening = Future()
                self._wanted.put_nowait(self._opening)
            self._tell(await asyncio.shield(asyncio.wrap_future(self._opening)))
        if self._client is None:
            raise ToolError("the connection was closed meanwhile")
        return self._client

    async def on_message(self, message: Any) -> None:
        """Follow what the server says about its tools."""
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification) and self._client is not None:
            task = self.loop.create_task(self._list_again(self._client))
            self._listing.add(task)
            task.add_done_callback(self._listing.discard)

    async def _subscribe(self, client: Client) -> None:
        """Follow what the server says about its tools, where a newer one says it only when it is asked to."""
        with suppress(Exception):  # it does not say it, or the session has ended
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    await self._list_again(client)

    async def _list_again(self, client: Client) -> None:
        with suppress(Exception):  # the session has ended
            self._tell(await _listing_of(client))

    def _tell(self, listing: Listing) -> None:
        if (follow := self.on_listing()) is not None:
            follow(listing)


async def _accept(name: str, result: Any) -> None:
    """Take a result that misses its schema: it is still the result."""


def _has_not_arrived(error: MCPError) -> bool:
    """Whether it is sure that the server has not taken a request up: nobody was there, or the session is unknown."""
    return error.code in (NOT_SENT, SESSION_GONE)


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
    if isinstance(error, TimeoutError) and not str(error):
        return f"it has not answered for {CONNECT_SECONDS:g} s"
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


def _close(link: _Link, holding: asyncio.Task[None], thread: threading.Thread, printed: IO[bytes]) -> None:
    with suppress(RuntimeError):  # it has ended by itself
        link.loop.call_soon_threadsafe(holding.cancel)
    if thread is not threading.current_thread():  # whoever forgot it may have its last tool collected there
        thread.join(CLOSE_SECONDS)
    printed.close()
