"""A real MCP server for the tests: in this process by `SERVER`, or in its own process by `python mcp_server.py`."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.types import ToolAnnotations

SERVER = MCPServer("desk")
PIXEL = b"\x89PNG\r\n\x1a\n"


@SERVER.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@SERVER.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(path: str) -> str:
    """Read a file."""
    return f"the text of {path}"


@SERVER.tool(annotations=ToolAnnotations(idempotent_hint=True))
def write(path: str) -> str:
    """Write a file."""
    return f"{path} is written"


@SERVER.tool(name="desk.refuse")
def refuse() -> str:
    """Fail."""
    raise ValueError("no such file")


@SERVER.tool()
def draw() -> list[str | Image]:
    """Draw a picture."""
    return ["a picture", Image(data=PIXEL, format="png")]


@SERVER.tool()
async def wait(context: Context, seconds: float) -> str:
    """Take long, and say so."""
    await context.report_progress(1, 3, "reading")
    await asyncio.sleep(seconds)
    return "waited"


@SERVER.tool()
def secret() -> str:
    """What is in the environment."""
    return os.environ.get("DESK_KEY", "none")


@SERVER.tool()
def die() -> str:
    """End the server in the middle of a call."""
    print("key=sk-desk", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    SERVER.run()
