"""The tools of MCP servers: over the pipes of a real process, over HTTP, and of a server in this process."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult

from agentnb import Run, SessionLoop, UsageError
from agentnb.core.events import CallEnd
from agentnb.testing import ScriptedLLM, call
from agentnb.tools import mcp
from agentnb.tools.mcp import Connection, connect
from tests.tools.mcp_server import SERVER, add
from tests.worlds import until

COMMAND = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
ODD = [sys.executable, str(Path(__file__).with_name("odd_mcp_server.py"))]


@pytest.fixture(scope="module")
def desk() -> Iterator[Connection]:
    with connect(SERVER) as server:
        yield server


@pytest.fixture(scope="module")
def process() -> Iterator[Connection]:
    with connect(COMMAND, env={"DESK_KEY": "sk-given"}) as server:
        yield server


def start(server: Connection, name: str, arguments: dict[str, Any] | None = None, *, approve: Any = True) -> Run:
    """A run that makes this one call."""
    return SessionLoop(ScriptedLLM([[call(name, arguments or {})], "done"]), server.tools).start("go", approve=approve)


def end_of(run: Run) -> CallEnd:
    return next(event for event in run.events if isinstance(event, CallEnd))


async def called(server: Connection, name: str, arguments: dict[str, Any] | None = None) -> CallEnd:
    run = start(server, name, arguments)
    await run
    return end_of(run)


def tool_of(server: Connection, name: str) -> Any:
    return next(tool for tool in server.tools if tool.name == name)


def test_the_tools_of_a_server_have_its_descriptions_and_schemas(desk: Connection) -> None:
    add = tool_of(desk, "add")
    assert add.description == "Add two numbers."
    assert add.parameters["required"] == ["a", "b"]


async def test_a_call_is_performed_by_the_server(desk: Connection) -> None:
    assert (await called(desk, "add", {"a": 2, "b": 3})).result == "5"


async def test_a_call_is_performed_by_a_server_in_its_own_process(process: Connection) -> None:
    assert (await called(process, "add", {"a": 2, "b": 3})).result == "5"


@contextmanager
def over_http(app: Any = None, port: int = 0) -> Iterator[int]:
    """Run a server over HTTP, and return its port."""
    listening = socket.create_server(("127.0.0.1", port))
    app = app or desk_over_http()
    served = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=served.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        served.should_exit = True
        thread.join()
        listening.close()


def desk_over_http() -> Any:
    """Return a new app for each server, because the sessions belong to the app."""
    server = MCPServer("desk")
    server.tool(name="add")(add)
    return server.streamable_http_app()


async def test_a_call_is_performed_by_a_server_over_http() -> None:
    with over_http() as port, connect(f"http://127.0.0.1:{port}/mcp") as server:
        assert (await called(server, "add", {"a": 2, "b": 3})).result == "5"


KEY = "Bearer sk-hunter2"


class Guarded:
    """An app that wants a key."""

    def __init__(self) -> None:
        self.app = desk_over_http()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or headers.get(b"authorization") == KEY.encode():
            await self.app(scope, receive, send)
            return
        told = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": told})
        await send({"type": "http.response.body", "body": b'{"error": "invalid_token"}'})


async def test_headers_are_sent_with_every_request_and_are_not_shown() -> None:
    with (
        over_http(Guarded()) as port,
        connect(f"http://127.0.0.1:{port}/mcp", headers={"Authorization": KEY}) as server,
    ):
        assert (await called(server, "add", {"a": 2, "b": 3})).result == "5"
        assert "hunter2" not in repr(server)


def test_a_server_that_requires_a_key_is_reported_with_401() -> None:
    words = r"The server answered 401 Unauthorized.*headers="
    with over_http(Guarded()) as port, pytest.raises(UsageError, match=words):
        connect(f"http://127.0.0.1:{port}/mcp")


def test_a_wrong_key_is_not_shown() -> None:
    with over_http(Guarded()) as port, pytest.raises(UsageError, match="401") as refused:
        connect(f"http://127.0.0.1:{port}/mcp", headers={"Authorization": "Bearer sk-wrong"})
    assert "sk-wrong" not in str(refused.value)


@pytest.mark.parametrize("headers", [{"X-Key": "sk-wrong\n"}, {"X-Key": 5}, {"X Key": "sk-wrong"}, "X-Key: sk-wrong"])
def test_headers_that_cannot_be_sent_are_refused_and_not_shown(headers: Any) -> None:
    with pytest.raises(UsageError, match="headers") as refused:
        connect("http://127.0.0.1:1/mcp", headers=headers)
    assert "sk-wrong" not in str(refused.value)


@pytest.mark.parametrize("server", [COMMAND, SERVER])
def test_headers_without_an_address_are_rejected(server: Any) -> None:
    with pytest.raises(UsageError, match="headers"):
        connect(server, headers={"Authorization": KEY})


async def test_after_an_outage_of_a_server_the_next_call_connects_again() -> None:
    with over_http() as port:
        server = connect(f"http://127.0.0.1:{port}/mcp")
        assert (await called(server, "add", {"a": 1, "b": 1})).result == "2"
    away = await called(server, "add", {"a": 1, "b": 1})
    assert away.is_error
    assert away.result.startswith("The MCP server failed: ")
    with over_http(port=port):
        assert (await called(server, "add", {"a": 2, "b": 3})).result == "5"
        server.close()


async def test_a_call_reconnects_to_a_restarted_server() -> None:
    with over_http() as port:
        server = connect(f"http://127.0.0.1:{port}/mcp")
        assert (await called(server, "add", {"a": 1, "b": 1})).result == "2"
    with over_http(port=port):
        assert (await called(server, "add", {"a": 2, "b": 3})).result == "5"
        server.close()


class WithSessions:
    """An app of an older protocol, in which every request belongs to a session; `refusal` is how it refuses others."""

    def __init__(
        self,
        refusal: tuple[int, dict[str, Any]],
        *,
        annotations: dict[str, Any] | None = None,
        said: dict[str, Any] | None = None,
    ) -> None:
        self.sessions: list[str] = []
        self.calls = 0
        self.refusal = refusal
        self.annotations = annotations or {}
        self.said = said

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while scope["type"] == "http" and (part := await receive()).get("body"):
            body += part["body"]
            if not part.get("more_body"):
                break
        headers = dict(scope.get("headers", ()))
        asked = json.loads(body) if body else {}
        status, said = self.answer(asked, headers.get(b"mcp-session-id", b"").decode())
        told = [(b"content-type", b"application/json")]
        if asked.get("method") == "initialize":
            told.append((b"mcp-session-id", self.sessions[-1].encode()))
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": json.dumps(said).encode() if said is not None else b""})

    def answer(self, asked: dict[str, Any], session: str) -> tuple[int, dict[str, Any] | None]:
        method, answer = asked.get("method"), {"jsonrpc": "2.0", "id": asked.get("id")}
        if method == "initialize":
            self.sessions.append(f"session-{len(self.sessions)}")
            server = {"serverInfo": {"name": "old", "version": "1"}, "capabilities": {"tools": {}}}
            return 200, {**answer, "result": {"protocolVersion": "2025-03-26", **server}}
        if method is None:
            return 405, None
        if session not in self.sessions:
            return self.refusal
        if method == "tools/list":
            tool = {"name": "count", "inputSchema": {"type": "object"}, "annotations": self.annotations}
            return 200, {**answer, "result": {"tools": [tool]}}
        if method == "tools/call":
            self.calls += 1
            if self.said is not None:
                return 200, {**self.said, "id": asked.get("id")}
            return 200, {**answer, "result": {"content": [{"type": "text", "text": f"call {self.calls}"}]}}
        return 202, None


@pytest.mark.parametrize(
    "refusal",
    [
        (404, {"error": "gone"}),
        (404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}),
    ],
)
async def test_a_server_that_has_lost_the_session_gets_a_new_one(refusal: tuple[int, dict[str, Any]]) -> None:
    app = WithSessions(refusal)
    with over_http(app) as port, connect(f"http://127.0.0.1:{port}/mcp") as server:
        assert (await called(server, "count")).result == "call 1"
        app.sessions.clear()
        app.sessions.append("another")
        assert (await called(server, "count")).result == "call 2"


NO_SESSION = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Bad Request: No valid session ID"}}


async def test_a_refusal_whose_text_is_about_the_session_fails_the_call_and_the_next_one_gets_a_new_session() -> None:
    app = WithSessions((400, NO_SESSION))
    with over_http(app) as port, connect(f"http://127.0.0.1:{port}/mcp") as server:
        app.sessions.clear()
        refused = await called(server, "count")
        assert refused.is_error
        assert "400 Bad Request, perhaps because it no longer knows the session" in refused.result
        assert app.calls == 0
        assert (await called(server, "count")).result == "call 1"


async def test_a_call_of_an_idempotent_tool_is_made_again_after_such_a_refusal() -> None:
    app = WithSessions((400, NO_SESSION), annotations={"idempotentHint": True})
    with over_http(app) as port, connect(f"http://127.0.0.1:{port}/mcp", trusted=True) as server:
        app.sessions.clear()
        assert (await called(server, "count")).result == "call 1"


@pytest.mark.parametrize("code", [-32096, -32097, -32098, -32099, -32000, -32603, -32800])
async def test_no_error_code_of_a_server_repeats_a_call(tmp_path: Path, code: int) -> None:
    calls = tmp_path / "calls"
    with connect(ODD, env={"CALLS": str(calls)}) as server:
        assert (await called(server, "refuse", {"code": code, "message": "session expired", "data": "x"})).is_error
    assert calls.read_text() == "called\n"


@pytest.mark.parametrize("code", [-32097, -32099])
async def test_no_error_code_of_a_server_over_http_repeats_a_call(code: int) -> None:
    error = {"jsonrpc": "2.0", "id": 0, "error": {"code": code, "message": "session expired"}}
    app = WithSessions((400, error), said=error)
    with over_http(app) as port, connect(f"http://127.0.0.1:{port}/mcp") as server:
        assert (await called(server, "count")).is_error
        assert app.calls == 1


async def test_an_ended_process_is_started_again_without_repeating_the_call(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with connect(ODD, env={"CALLS": str(calls)}) as server:
        assert (await called(server, "end")).is_error
        assert (await called(server, "good", {"n": 1})).result == '{"n": 1}'
    assert calls.read_text() == "called\n"


@pytest.fixture(scope="module")
def odd() -> Iterator[Connection]:
    with connect(ODD) as server:
        yield server


def test_an_invalid_entry_is_named_and_the_other_tools_work(odd: Connection) -> None:
    names = {tool.name for tool in odd.tools}
    assert {"good", "untyped", "pair", "word"} <= names
    assert not names & {"listed", "worded", "without", "5"}
    assert odd.unusable["listed"] == "its schema is of type 'array', and arguments are an object"
    assert {"listed", "worded", "without", "tool 5", "tool 6"} == set(odd.unusable)
    assert all(name in repr(odd) for name in odd.unusable)


def test_the_instructions_of_a_server_are_available(odd: Connection) -> None:
    assert odd.instructions == "Ask for good."


@pytest.mark.parametrize(
    ("name", "arguments"), [("pair", {"x": [1, 2]}), ("word", {"x": "Größe"}), ("untyped", {"x": None}), ("good", {})]
)
async def test_a_schema_of_another_draft_accepts_valid_arguments(
    odd: Connection, name: str, arguments: dict[str, Any]
) -> None:
    assert json.loads((await called(odd, name, arguments)).result) == arguments


@pytest.mark.parametrize(("name", "x"), [("pair", [1, "b"]), ("word", "zu groß")])
async def test_a_schema_of_another_draft_refuses_invalid_arguments(odd: Connection, name: str, x: Any) -> None:
    assert (await called(odd, name, {"x": x})).outcome == "invalid"


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("delete", "42 rows were deleted"),
        ("strange", "done"),
        ("structured", {"a": 1}),
        ("blank", {"a": 1}),
    ],
)
async def test_a_result_that_does_not_match_its_schema_is_accepted(odd: Connection, name: str, result: Any) -> None:
    assert (await called(odd, name)).result == result


async def test_structured_content_next_to_a_picture_is_kept() -> None:
    with connect(ODD) as server:
        text, picture = (await called(server, "plot")).result
    assert text == {"type": "text", "text": '{"a": 1}'}
    assert picture["source"]["data"] == "iVBORw0KGgo="


async def test_structured_content_is_the_text_of_an_error(odd: Connection) -> None:
    failed = await called(odd, "failed")
    assert failed.is_error
    assert failed.result == '{"code": 7}'


async def test_an_unknown_block_does_not_affect_the_other_blocks(odd: Connection) -> None:
    assert (await called(odd, "mixed")).result.splitlines() == [
        "before",
        '{"type": "hologram", "depth": 3}',
        "[image: image/svg+xml, 6 bytes]",
        "[audio: audio/wav, 3 bytes]",
        "the text of a.txt",
        "[file:///a.bin, 3 bytes]",
        "[file:///b.txt]",
        '"no block"',
    ]


async def test_the_tools_are_updated_when_the_server_reports_a_change() -> None:
    with connect(ODD) as server:
        tools = server.tools
        await called(server, "grow")
        await until(lambda: "grown" in {tool.name for tool in tools})
        assert (await called(server, "grown", {"n": 1})).result == '{"n": 1}'


async def test_the_error_for_tools_of_the_same_name_names_both_servers(odd: Connection) -> None:
    with (
        connect(ODD) as other,
        pytest.raises(UsageError, match=r"good of the MCP server .* and good of"),
    ):
        SessionLoop(ScriptedLLM([]), [*odd.tools, *other.tools])


def test_a_connection_serves_runs_in_any_event_loop(process: Connection) -> None:
    for _ in range(2):
        assert asyncio.run(called(process, "add", {"a": 1, "b": 1})).result == "2"


async def test_invalid_arguments_are_reported_to_the_model_and_not_sent(desk: Connection) -> None:
    assert (await called(desk, "add", {"a": "x", "b": 3})).result == (
        "Invalid arguments for add: a: 'x' is not of type 'integer'."
    )


async def test_the_error_of_a_server_is_the_error_of_the_call(desk: Connection) -> None:
    end = await called(desk, "desk_refuse")
    assert end.is_error
    assert "Error executing tool desk.refuse" in end.result


async def test_a_picture_is_a_separate_block_after_the_text(desk: Connection) -> None:
    text, picture = (await called(desk, "draw")).result
    assert text == {"type": "text", "text": "a picture"}
    assert picture["source"]["media_type"] == "image/png"


async def test_a_result_without_text_is_its_structured_content() -> None:
    server = MCPServer("terse")
    server.tool(name="count")(lambda: CallToolResult(content=[], structured_content={"lines": 3}))
    with connect(server) as terse:
        assert (await called(terse, "count")).result == {"lines": 3}


async def test_a_call_shows_its_progress(desk: Connection) -> None:
    run = start(desk, "wait", {"seconds": 0})
    shown = [event.data async for event in run if event.type == "call_delta"]
    assert shown == [{"done": 1.0, "total": 3.0, "message": "reading"}]


async def test_every_call_needs_approval_unless_the_server_is_trusted(desk: Connection) -> None:
    run = start(desk, "read", {"path": "a.txt"}, approve=None)
    async for event in run:
        if event.type == "approval_request":
            run.reject(event.call_id, "not now")
    assert end_of(run).is_error


async def test_a_read_only_tool_of_a_trusted_server_needs_no_approval() -> None:
    with connect(SERVER, trusted=True) as server:
        run = start(server, "read", {"path": "a.txt"}, approve=None)
        await run
    assert end_of(run).result == "the text of a.txt"
    assert tool_of(server, "write").approve


def test_read_only_and_idempotent_tools_of_a_trusted_server_are_idempotent() -> None:
    with connect(SERVER, trusted=True) as server:
        again = {tool.name for tool in server.tools if tool.idempotent}
    assert again == {"read", "write"}


def test_a_prefix_distinguishes_the_tools_of_two_servers() -> None:
    with connect(SERVER, prefix="left_") as server:
        assert tool_of(server, "left_desk_refuse").description == "Fail."


def test_tools_whose_legal_names_are_equal_get_different_names() -> None:
    server = MCPServer("twins")
    for name in ("a.b", "a/b", "long" * 20 + "1", "long" * 20 + "2"):
        server.tool(name=name, description=name)(lambda: None)
    with connect(server) as twins:
        assert [(tool.name, tool.description) for tool in twins.tools] == [
            ("a_b", "a.b"),
            ("a_b_2", "a/b"),
            ("long" * 16, "long" * 20 + "1"),
            ("long" * 15 + "_2", "long" * 20 + "2"),
        ]


async def test_a_process_gets_the_given_environment_variables(process: Connection) -> None:
    assert (await called(process, "secret")).result == "sk-given"


async def test_a_process_does_not_inherit_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_KEY", "sk-ours")
    with connect(COMMAND) as server:
        assert (await called(server, "secret")).result == "none"


async def test_a_server_that_dies_fails_the_call_and_not_the_run() -> None:
    with connect(COMMAND) as server:
        run = start(server, "die")
        assert await run == "done"
    assert end_of(run).result == "The MCP server failed: MCPError: Connection closed."


async def test_a_cancelled_run_does_not_wait_for_the_server(desk: Connection) -> None:
    run = start(desk, "wait", {"seconds": 1000})
    async for event in run:
        if event.type == "call_delta":
            run.cancel("enough")
    assert run.stop_reason == "cancelled"


async def test_a_running_call_fails_when_the_connection_is_closed() -> None:
    server = connect(SERVER)
    run = start(server, "wait", {"seconds": 1000})
    async for event in run:
        if event.type == "call_delta":
            server.close()
    assert end_of(run).is_error


async def test_a_call_after_the_end_of_the_connection_fails_with_a_message() -> None:
    server = connect(SERVER)
    server.close()
    server.close()
    assert (await called(server, "add", {"a": 1, "b": 1})).result == "The connection to the MCP server is closed."


def test_the_error_for_a_command_that_is_not_a_server_has_its_output() -> None:
    with pytest.raises(UsageError, match=r"There is no MCP server at .*\n.*No such file or directory"):
        connect([sys.executable, "nowhere.py"])


def test_a_missing_command_is_reported() -> None:
    with pytest.raises(UsageError, match="There is no MCP server at no-such-program: FileNotFoundError"):
        connect("no-such-program")


def test_a_string_that_is_not_a_command_is_rejected() -> None:
    with pytest.raises(UsageError, match="is not a valid command: No closing quotation"):
        connect("python 'server.py")


def test_connecting_to_a_server_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "CONNECT_SECONDS", 0.5)
    with pytest.raises(UsageError, match=r"did not answer within 0.5 s"):
        connect([sys.executable, "-c", "import time; time.sleep(1000)"])


def test_a_connection_without_references_is_closed() -> None:
    before = set(threading.enumerate())
    server = connect(SERVER)
    gone = weakref.ref(server)
    of_the_connection = set(threading.enumerate()) - before
    assert of_the_connection
    del server
    gc.collect()
    assert gone() is None
    assert not of_the_connection & set(threading.enumerate())


def test_an_open_connection_does_not_prevent_the_process_from_ending() -> None:
    code = f"from agentnb.tools.mcp import connect; server = connect({COMMAND!r}); print(len(server.tools))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.strip() == "8"
    assert not ended.stderr


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(UsageError) as refused:
        connect("http://me:hunter2@127.0.0.1:1/mcp")
    assert "hunter2" not in str(refused.value)


def test_a_key_in_an_address_is_not_shown() -> None:
    with pytest.raises(UsageError, match=r"no MCP server at http://127\.0\.0\.1:1/mcp: "):
        connect("http://127.0.0.1:1/mcp?api_key=hunter2")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name on this system")
def test_ctrl_c_while_a_server_starts_ends_the_server(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    code = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    processes = []

    def stop() -> None:
        processes.append(int(started.read_text()))
        os.kill(os.getpid(), signal.SIGINT)

    stopping = threading.Thread(target=stop)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    try:
        stopping.start()
        with pytest.raises(KeyboardInterrupt):
            connect([sys.executable, "-c", code])
    finally:
        signal.signal(signal.SIGINT, before)
    stopping.join()
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0], 0)


FORKED = f"""
import os
from agentnb import SessionLoop
from agentnb.testing import ScriptedLLM, call
from agentnb.tools.mcp import connect

server = connect({COMMAND!r})
child = os.fork()
if child == 0:
    run = SessionLoop(ScriptedLLM([[call("secret")], "done"]), server.tools).start("go", approve=True)
    run.result(20)
    print(run.messages[-2].content, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_the_connection_is_closed_in_a_forked_process() -> None:
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "The connection to the MCP server is closed.\n", ran.stderr
