"""pi: the JSON lines of a session of pi's coding agent. Entries form a tree; the branch that ends last is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import content_of
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, error_of, seconds

name = "pi"


def recognises(file: ForeignFile) -> bool:
    """Return True for lines that begin with a session of pi."""
    first = file.first
    return isinstance(first, Mapping) and first.get("type") == "session" and "id" in first and "timestamp" in first


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a session."""
    entries = [line for _, line in file.lines()]
    if not entries:
        raise file.refused("it has no entry of a session.")
    head = entries[0]
    kept = ("version", "id", "cwd", "provider", "modelId", "thinkingLevel")
    about = to_json_data({key: head[key] for key in kept if head.get(key)})
    writer = Writer(file.lost, name="pi", about=about)
    branch = _branch(file, entries[1:])[::-1]
    del entries
    order = {str(entry.get("id")): number for number, entry in enumerate(reversed(branch))}
    is_sent = [entry.get("type") == "message" for entry in reversed(branch)]
    number = -1
    while branch:  # each entry is forgotten when it is read: a long session is not twice in memory
        entry = branch.pop()
        number += 1
        kind = entry.get("type")
        message = entry.get("message")
        if kind == "message" and isinstance(message, Mapping):
            time = seconds(entry.get("timestamp") or message.get("timestamp"), file.lost)
            yield from _message(file, message, writer, time)
        elif kind in ("compaction", "branch_summary", "custom_message"):
            time = seconds(entry.get("timestamp"), file.lost)
            text = content_of(entry.get("summary") or entry.get("content"))
            if kind == "compaction":  # pi sends the summary in place of the messages before the first that it keeps
                first = order.get(str(entry.get("firstKeptEntryId")), number)
                if replaced := sum(is_sent[:first]):
                    file.lost["messages that a compaction replaced, still in the history"] += replaced
                is_sent[:first] = [False] * first
            yield from writer.message(Message(role="user", content=text, details={"entry": kind}), time)
        else:
            file.lost[f"entries of type {kind}"] += 1
    yield from writer.start()


def _branch(file: ForeignFile, entries: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries of the branch that ends last; all of them in a session of version 1, which has no tree."""
    if not entries or not all(isinstance(entry.get("id"), str) for entry in entries):
        return entries
    known = {str(entry["id"]): entry for entry in entries}
    path, id, seen = [], str(entries[-1]["id"]), set()
    while id in known and id not in seen:
        seen.add(id)
        path.append(known[id])
        id = str(known[id].get("parentId"))
    if len(path) < len(entries):
        file.lost["entries of other branches"] += len(entries) - len(path)
    return path[::-1]


def _message(file: ForeignFile, message: Mapping[str, Any], writer: Writer, time: float) -> Iterator[Event]:
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        yield from _answer(file, message, writer, time)
    elif role == "toolResult":
        id, details = str(message.get("toolCallId") or ""), message.get("details")
        is_error = bool(message.get("isError"))
        yield from writer.result(id, content_of(content), time, is_error=is_error, details=details)
    elif role == "bashExecution":  # a command of the user
        said = {key: message.get(key) for key in ("command", "output", "exitCode")}
        text = f"$ {said['command']}\n{said['output']}"
        yield from writer.message(Message(role="user", content=text, details=to_json_data(said)), time)
    elif role in ("user", "system"):
        yield from writer.message(Message(role=str(role), content=content_of(content)), time)
    else:
        file.lost[f"messages of the role {role}"] += 1


def _answer(file: ForeignFile, message: Mapping[str, Any], writer: Writer, time: float) -> Iterator[Event]:
    answer = Answer(provider=str(message.get("provider") or ""))
    texts: list[str] = []
    calls: list[Call] = []
    content = message.get("content")
    for block in content if isinstance(content, list) else [{"type": "text", "text": content_of(content)}]:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "thinking":
            thought = {"text": str(block.get("thinking") or "")}
            if block.get("thinkingSignature"):
                thought["signature"] = str(block["thinkingSignature"])
            answer.reasoning.append(thought)
        elif kind == "toolCall":
            calls.append(Call(str(block.get("id") or ""), str(block.get("name") or ""), block.get("arguments")))
        else:
            file.lost[f"blocks of type {kind}"] += 1
    answer.content, answer.calls = "".join(texts), calls
    model, reason = message.get("model"), message.get("stopReason")
    answer.model = model if isinstance(model, str) else None
    answer.finish_reason = reason if isinstance(reason, str) else None
    if isinstance(usage := message.get("usage"), Mapping):
        cost = usage.get("cost")
        parts = [usage.get(key) for key in ("input", "cacheRead", "cacheWrite")]
        counts: dict[str, Any] = {
            "input_tokens": sum(part for part in parts if isinstance(part, (int, float))),
            "output_tokens": usage.get("output", 0),
            "cache_read_tokens": usage.get("cacheRead", 0),
            "cache_write_tokens": usage.get("cacheWrite", 0),
            "cost": cost.get("total") if isinstance(cost, Mapping) else 0,
        }
        answer.usage = {key: value for key, value in counts.items() if value}
    if reason in ("error", "aborted") and not texts and not calls:
        words = str(message.get("errorMessage") or reason)
        yield from writer.failure(error_of("ModelError", words), time, 0.0, answer.model or "")
    else:
        yield from writer.answer(answer, time)
