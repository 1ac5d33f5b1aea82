"""Small files of each format, as the tests write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CALL: Json = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}

CHAT: list[Json] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"},
    {"role": "assistant", "content": "It is 21 degrees."},
]

ANTHROPIC: Json = {
    "model": "claude-x",
    "system": "Be short.",
    "messages": [
        {"role": "user", "content": "How warm is it?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Ask the tool.", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "21 degrees"}]},
    ],
    "response": {
        "id": "msg_2",
        "model": "claude-x-1",
        "content": [{"type": "text", "text": "It is 21 degrees."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 3},
    },
}

ATIF: Json = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s",
    "agent": {"name": "harbor-agent", "version": "1", "model_name": "m", "tool_definitions": [{"type": "function"}]},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be short."},
        {"step_id": 2, "source": "user", "message": "How warm is it?", "timestamp": "2026-01-01T10:00:00Z"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "I look.",
            "timestamp": "2026-01-01T10:00:01Z",
            "reasoning_content": "Ask the tool.",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "weather", "arguments": {"city": "Rome"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "21 degrees"}]},
            "metrics": {"prompt_tokens": 10, "completion_tokens": 3, "cost_usd": 0.5, "logprobs": [-0.1]},
        },
        {"step_id": 4, "source": "agent", "message": "It is 21 degrees.", "timestamp": "2026-01-01T10:00:02Z"},
    ],
}


def claude_line(number: int, kind: str, content: Any, **fields: Any) -> Json:
    """Return a line of a session of Claude Code."""
    message: Json = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"m{number}", "model": "claude-x", "usage": {"input_tokens": 10, "output_tokens": 2}}
    return {
        "uuid": f"u{number}",
        "parentUuid": f"u{number - 1}" if number > 1 else None,
        "sessionId": "s",
        "version": "2.0.0",
        "isSidechain": False,
        "type": kind,
        "message": message,
        "timestamp": f"2026-01-01T10:00:0{number}.000Z",
    } | fields


CLAUDE: list[Json] = [
    claude_line(1, "user", "How warm is it?"),
    claude_line(2, "assistant", [{"type": "thinking", "thinking": "Ask the tool.", "signature": "s"}]),
    claude_line(
        3,
        "assistant",
        [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}],
        message={
            "id": "m2",
            "role": "assistant",
            "model": "claude-x",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}],
            "usage": {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 4},
        },
    ),
    claude_line(4, "user", [{"type": "tool_result", "tool_use_id": "c1", "content": "21 degrees"}]),
    claude_line(5, "assistant", [{"type": "text", "text": "It is 21 degrees."}]),
]


def lines(values: list[Any]) -> bytes:
    """Return values as JSON lines."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def document(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value).encode()


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "ATIF": ("trajectory.json", lambda: document(ATIF)),
    "messages of OpenAI": ("chat.json", lambda: document(CHAT)),
    "messages as lines": ("chat.jsonl", lambda: lines(CHAT)),
    "request of Anthropic": ("request.json", lambda: document(ANTHROPIC)),
    "Claude Code": ("session.jsonl", lambda: lines(CLAUDE)),
}
"""Of each kind of file: its name, and a function that returns its content. All tell the same: a question about the
weather, a call of the tool `weather`, its result, and the answer."""


def written(folder: Path, kind: str) -> Path:
    """Write the file of a kind, and return its path."""
    name, content = FILES[kind]
    path = folder / name
    path.write_bytes(content())
    return path
