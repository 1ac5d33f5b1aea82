"""Small files of each format, as the tests write them."""

from __future__ import annotations

import io
import json
import zipfile
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


# -- evaluations and traces --------------------------------------------------------------------------------------------

INSPECT_CALL: Json = {"id": "c1", "function": "weather", "arguments": {"city": "Rome"}, "type": "function"}
ASKED: Json = {"role": "user", "content": "How warm is it?"}
CALLED: Json = {"role": "assistant", "content": "", "tool_calls": [INSPECT_CALL]}
TOLD: Json = {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"}
ANSWER = "It is 21 degrees."
ANSWERED: Json = {"role": "assistant", "content": ANSWER}


def at(second: int) -> str:
    """Return a time."""
    return f"2026-01-01T10:00:{second:02}+00:00"


def inspect_model(second: int, inputs: list[Json], answer: Json, **fields: Any) -> Json:
    """Return the event of a request of Inspect."""
    output = {"model": "m", "choices": [{"message": answer, "stop_reason": "stop"}], "usage": {"input_tokens": 3}}
    asked = {"event": "model", "timestamp": at(second), "completed": at(second + 1), "model": "p/m", "input": inputs}
    return {**asked, "output": output, **fields}


INSPECT_EVENTS: list[Json] = [
    {"event": "sample_init", "timestamp": at(0)},
    inspect_model(1, [{**ASKED, "content": "attachment://a"}], CALLED),
    {"event": "span_begin", "timestamp": at(4), "id": "s", "type": "tool", "name": "weather"},
    {
        "event": "tool",
        "timestamp": at(3),
        "completed": at(5),
        "id": "c1",
        "function": "weather",
        "arguments": {"city": "Rome"},
        "result": "21 degrees",
    },
    {"event": "span_end", "timestamp": at(5), "id": "s"},
    inspect_model(6, [ASKED, CALLED, TOLD], ANSWERED),
]


def inspect_sample(events: list[Json], **fields: Any) -> Json:
    """Return a sample of Inspect."""
    return {"id": 1, "epoch": 1, "events": events, "attachments": {"a": "How warm is it?"}, **fields}


def inspect_log(*samples: Json) -> Json:
    """Return a log of Inspect."""
    return {"version": 2, "status": "success", "eval": {"task": "warmth", "model": "p/m"}, "samples": list(samples)}


def inspect_archive(*samples: Json) -> bytes:
    """Return a log of Inspect in its archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for number, sample in enumerate(samples, 1):
            file.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample))
        header = inspect_log()
        del header["samples"]
        file.writestr("header.json", json.dumps(header))
    return archive.getvalue()


def codex_line(second: int, kind: str, **payload: Any) -> Json:
    """Return a line of a rollout of Codex."""
    return {"timestamp": at(second), "type": kind, "payload": payload}


CODEX: list[Json] = [
    codex_line(0, "session_meta", id="s", cwd="/x", cli_version="1"),
    codex_line(1, "event_msg", type="user_message", message="How warm is it?"),
    codex_line(1, "response_item", **ASKED, type="message"),
    codex_line(2, "response_item", type="reasoning", summary=[{"type": "summary_text", "text": "Ask the tool."}]),
    codex_line(3, "response_item", type="function_call", name="weather", call_id="c1", arguments='{"city": "Rome"}'),
    codex_line(3, "event_msg", type="token_count", info={"last_token_usage": {"input_tokens": 7, "output_tokens": 2}}),
    codex_line(4, "response_item", type="function_call_output", call_id="c1", output="21 degrees"),
    codex_line(5, "response_item", type="message", role="assistant", content=[{"type": "output_text", "text": ANSWER}]),
]

PI: list[Json] = [
    {"type": "session", "version": 3, "id": "s", "timestamp": at(0), "cwd": "/x"},
    {"type": "message", "id": "1", "parentId": None, "timestamp": at(1), "message": ASKED},
    {
        "type": "message",
        "id": "2",
        "parentId": "1",
        "timestamp": at(2),
        "message": {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Ask the tool."},
                {"type": "toolCall", "id": "c1", "name": "weather", "arguments": {"city": "Rome"}},
            ],
            "model": "m",
            "usage": {"input": 5, "output": 2, "cacheRead": 1, "cost": {"total": 0.25}},
            "stopReason": "toolUse",
        },
    },
    {
        "type": "message",
        "id": "3",
        "parentId": "2",
        "timestamp": at(3),
        "message": {"role": "toolResult", "toolCallId": "c1", "content": [{"type": "text", "text": "21 degrees"}]},
    },
    {
        "type": "message",
        "id": "4",
        "parentId": "3",
        "timestamp": at(4),
        "message": {"role": "assistant", "content": [{"type": "text", "text": "It is 21 degrees."}]},
    },
]

AG_UI: list[Json] = [
    {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "input": {"messages": [{"id": "m0", **ASKED}]}},
    {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant", "timestamp": 1767261600000},
    {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
    {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "weather", "parentMessageId": "m1"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": '{"city": '},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": '"Rome"}'},
    {"type": "TOOL_CALL_END", "toolCallId": "c1"},
    {"type": "TOOL_CALL_RESULT", "toolCallId": "c1", "messageId": "m2", "content": "21 degrees"},
    {"type": "TEXT_MESSAGE_START", "messageId": "m3", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m3", "delta": "It is "},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m3", "delta": "21 degrees."},
    {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "success"}},
]


def agents_span(second: int, **data: Any) -> Json:
    """Return a span of the OpenAI Agents SDK."""
    times = {"started_at": at(second), "ended_at": at(second + 1)}
    return {"object": "trace.span", "id": f"s{second}", "trace_id": "t", "parent_id": "a", **times, "span_data": data}


OPENAI_AGENTS: list[Json] = [
    {"object": "trace", "id": "t", "workflow_name": "warmth"},
    agents_span(1, type="generation", input=[ASKED], output=[{**CALLED, "tool_calls": [CALL]}], model="m"),
    agents_span(2, type="function", name="weather", input='{"city": "Rome"}', output="21 degrees"),
    agents_span(3, type="generation", input=[ASKED, {**CALLED, "tool_calls": [CALL]}, TOLD], output=[ANSWERED]),
]


def otel_span(second: int, operation: str, parent: str = "a", id: str = "", **values: Any) -> Json:
    """Return a span of OTLP JSON. values: attributes, with `__` for `.` in their names."""
    named = {"gen_ai.operation.name": operation}
    named |= {f"gen_ai.{key.replace('__', '.')}": one for key, one in values.items()}
    return {
        "traceId": "t",
        "spanId": id or f"s{second}",
        "parentSpanId": parent,
        "name": operation,
        "startTimeUnixNano": str(1_767_261_600_000_000_000 + second * 10**9),
        "endTimeUnixNano": str(1_767_261_600_500_000_000 + second * 10**9),
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in named.items()],
    }


def parts(role: str, **part: Any) -> Json:
    """Return a message of the GenAI conventions with one part."""
    return {"role": role, "parts": [part]}


OTEL_CALL = parts("assistant", type="tool_call", id="c1", name="weather", arguments={"city": "Rome"})
OTEL_ASKED = parts("user", type="text", content="How warm is it?")
OTEL_TOLD = parts("tool", type="tool_call_response", id="c1", response="21 degrees")
OTEL: list[Json] = [
    otel_span(1, "chat", input__messages=json.dumps([OTEL_ASKED]), output__messages=json.dumps([OTEL_CALL])),
    otel_span(2, "execute_tool", tool__name="weather", tool__call__id="c1", tool__call__result="21 degrees"),
    otel_span(
        3,
        "chat",
        input__messages=json.dumps([OTEL_ASKED, OTEL_CALL, OTEL_TOLD]),
        output__messages=json.dumps([parts("assistant", type="text", content="It is 21 degrees.")]),
    ),
]


def otlp(spans: list[Json]) -> Json:
    """Return spans as OTLP JSON."""
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


SWE_AGENT: Json = {
    "environment": "x",
    "history": [
        {**ASKED, "agent": "main"},
        {**CALLED, "tool_calls": [CALL], "agent": "main", "thought": "", "action": "weather"},
        {"role": "tool", "content": "21 degrees", "tool_call_ids": ["c1"], "agent": "main"},
        {**ANSWERED, "agent": "main"},
    ],
    "trajectory": [],
    "info": {"exit_status": "submitted", "submission": "a patch"},
}

FILES |= {
    "Inspect as JSON": ("log.json", lambda: document(inspect_log(inspect_sample(INSPECT_EVENTS)))),
    "Inspect": ("log.eval", lambda: inspect_archive(inspect_sample(INSPECT_EVENTS))),
    "Codex CLI": ("rollout.jsonl", lambda: lines(CODEX)),
    "pi": ("pi.jsonl", lambda: lines(PI)),
    "AG-UI": ("agui.jsonl", lambda: lines(AG_UI)),
    "OpenAI Agents": ("trace.json", lambda: document(OPENAI_AGENTS)),
    "OpenTelemetry": ("spans.json", lambda: document(otlp(OTEL))),
    "SWE-agent": ("x.traj", lambda: document(SWE_AGENT)),
}


def langgraph_state(second: int, messages: list[Json], **fields: Any) -> Json:
    """Return a state of a thread of LangGraph."""
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": f"{second:04}"}}
    return {"config": config, "created_at": at(second), "next": [], "values": {"messages": messages}, **fields}


LANGCHAIN: list[Json] = [
    {"type": "human", "id": "1", "content": "How warm is it?"},
    {"type": "ai", "id": "2", "content": "", "tool_calls": [{"id": "c1", "name": "weather", "args": {"city": "Rome"}}]},
    {"type": "tool", "id": "3", "content": "21 degrees", "tool_call_id": "c1", "status": "success"},
    {"type": "ai", "id": "4", "content": ANSWER, "usage_metadata": {"input_tokens": 4}},
]
LANGGRAPH = [langgraph_state(number, LANGCHAIN[:number]) for number in (4, 3, 2, 1)]

FILES |= {"LangGraph": ("states.json", lambda: document(LANGGRAPH))}


# -- conversations of people -------------------------------------------------------------------------------------------

GEMINI_CALL: Json = {
    "id": "c1",
    "name": "weather",
    "args": {"city": "Rome"},
    "status": "success",
    "result": [{"functionResponse": {"id": "c1", "name": "weather", "response": {"output": "21 degrees"}}}],
}
GEMINI: Json = {
    "sessionId": "s",
    "projectHash": "p",
    "messages": [
        {"id": "1", "timestamp": at(1), "type": "user", "content": "How warm is it?"},
        {
            "id": "2",
            "timestamp": at(2),
            "type": "gemini",
            "content": "",
            "toolCalls": [GEMINI_CALL],
            "thoughts": [{"subject": "Weather", "description": "Ask the tool."}],
            "tokens": {"input": 9, "output": 2, "cached": 4, "thoughts": 3, "tool": 0, "total": 14},
            "model": "gemini-x",
        },
        {"id": "3", "timestamp": at(3), "type": "gemini", "content": ANSWER, "model": "gemini-x"},
    ],
}


def chatgpt_node(number: int, role: str, content: Json, **fields: Any) -> Json:
    """Return a node of a conversation of ChatGPT, whose parent is the one before it."""
    author = {"role": role, "name": "weather" if role == "tool" else None}
    message = {
        "id": f"n{number}",
        "author": author,
        "create_time": 1_767_261_600 + number,
        "content": content,
        **fields,
    }
    return {"id": f"n{number}", "parent": f"n{number - 1}", "message": message}


CHATGPT_NODES = [
    {"id": "n0", "parent": None, "message": None},
    chatgpt_node(1, "user", {"content_type": "text", "parts": ["How warm is it?"]}),
    chatgpt_node(2, "assistant", {"content_type": "thoughts", "thoughts": [{"content": "Ask the tool."}]}),
    chatgpt_node(3, "assistant", {"content_type": "code", "text": '{"city": "Rome"}'}, recipient="weather"),
    chatgpt_node(4, "tool", {"content_type": "text", "parts": ["21 degrees"]}),
    chatgpt_node(5, "assistant", {"content_type": "text", "parts": [ANSWER]}, metadata={"model_slug": "gpt-x"}),
]
CHATGPT: Json = {"title": "Weather", "mapping": {node["id"]: node for node in CHATGPT_NODES}, "current_node": "n5"}

TAU2_MESSAGES = [{**message, "timestamp": at(number)} for number, message in enumerate(CHAT[1:])]
TAU2: Json = {
    "info": {"agent_info": {"llm": "m"}},
    "simulations": [{"task_id": "7", "trial": 0, "reward_info": {"reward": 1.0}, "messages": TAU2_MESSAGES}],
}

FILES |= {
    "Gemini CLI": ("session.json", lambda: document(GEMINI)),
    "ChatGPT": ("conversations.json", lambda: document([CHATGPT])),
    "tau2": ("results.json", lambda: document(TAU2)),
}
