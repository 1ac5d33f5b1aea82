"""An MCP server that is written by hand, as many are, and whose messages are not all as they should be."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

ANY = {"type": "object"}
NUMBERS = {"items": [{"type": "number"}, {"type": "number"}]}
PIXEL = "iVBORw0KGgo="

TOOLS: list[Any] = [
    {"name": "good", "description": "Echo.", "inputSchema": ANY},
    {"name": "listed", "inputSchema": {"type": "array", "items": {"type": "string"}}},
    {"name": "worded", "inputSchema": "a text"},
    {"name": "without"},
    {"name": 5, "inputSchema": ANY},
    "no entry",
    {"name": "untyped", "description": 7, "annotations": "none", "icons": 3, "inputSchema": {"required": None}},
    {
        "name": "pair",
        "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", **ANY, "properties": {"x": NUMBERS}},
    },
    {"name": "word", "inputSchema": {**ANY, "properties": {"x": {"type": "string", "pattern": r"^[\p{L}\d_-]+$"}}}},
    {"name": "delete", "inputSchema": ANY, "outputSchema": {**ANY, "required": ["rows"]}},
    {"name": "strange", "inputSchema": ANY, "outputSchema": {"type": "frobnicate", "pattern": "("}},
    *(
        {"name": name, "inputSchema": ANY}
        for name in ("structured", "plot", "blank", "mixed", "failed", "grow", "end", "refuse")
    ),
]

RESULTS: dict[str, Any] = {
    "delete": {"content": [{"type": "text", "text": "42 rows were deleted"}]},
    "strange": {"content": [{"type": "text", "text": "done"}], "structuredContent": {"rows": 3}},
    "structured": {"structuredContent": {"a": 1}},
    "plot": {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}], "structuredContent": {"a": 1}},
    "blank": {"content": [{"type": "text", "text": " "}], "structuredContent": {"a": 1}},
    "mixed": {
        "content": [
            {"type": "text", "text": "before"},
            {"type": "hologram", "depth": 3},
            {"type": "image", "data": "PHN2Zz4=", "mimeType": "image/svg+xml"},
            {"type": "audio", "data": "QUJD", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "the text of a.txt"}},
            {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "QUJD"}},
            {"type": "resource_link", "uri": "file:///b.txt", "name": "b"},
            "no block",
        ]
    },
    "failed": {"isError": True, "structuredContent": {"code": 7}},
}


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, answer = asked["method"], {"id": asked["id"]}
    if method == "initialize":
        said = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}}
        told = {"serverInfo": {"name": "odd", "version": "1"}, "instructions": "Ask for good."}
        say({**answer, "result": {**said, **told}})
    elif method == "tools/list":
        say({**answer, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        name, arguments = asked["params"]["name"], asked["params"].get("arguments")
        if name in ("end", "refuse"):
            with open(os.environ["CALLS"], "a") as calls:
                print("called", file=calls)
            if name == "end":
                os._exit(3)
            say({**answer, "error": arguments})
            continue
        if name == "grow":
            TOOLS.append({"name": "grown", "inputSchema": ANY})
            say({"method": "notifications/tools/list_changed"})
        echo = {"content": [{"type": "text", "text": json.dumps(arguments, ensure_ascii=False)}]}
        say({**answer, "result": RESULTS.get(name, echo)})
    else:
        say({**answer, "error": {"code": -32601, "message": "Method not found"}})
