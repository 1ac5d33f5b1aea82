"""Codex CLI: rollouts, JSON lines of `{timestamp, type, payload}`.

The items of a response between two results are one answer. What `event_msg` repeats from the items is not read twice;
in a rollout without such items, the messages of the user are read from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentnb.core.events import Event
from agentnb.core.json import to_json_data
from agentnb.core.messages import Message
from agentnb.importers.content import content_of, openai_usage
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, seconds

name = "Codex CLI"

_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"})
_REPEATED = frozenset({"agent_message", "agent_reasoning", "agent_reasoning_raw_content", "user_message",
                       "task_started", "task_complete", "context_compacted"})  # fmt: skip
"""Types of `event_msg` that repeat what other lines have, or mark where a turn of the user begins and ends."""


def recognises(file: ForeignFile) -> bool:
    """Return True for lines of a rollout."""
    first = file.first
    return isinstance(first, Mapping) and "payload" in first and str(first.get("type")) in _TYPES


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of a rollout."""
    lines = [(line, payload) for _, line in file.lines() if isinstance(payload := line.get("payload"), Mapping)]
    if not lines:
        raise file.refused("it has no item of a rollout.")
    meta = next((payload for line, payload in lines if line.get("type") == "session_meta"), {})
    kept = ("id", "cwd", "originator", "cli_version", "source", "git", "model_provider", "forked_from_id")
    about = to_json_data({key: meta[key] for key in kept if meta.get(key)})
    writer = Writer(file.lost, name="codex", about=about)
    if isinstance(instructions := meta.get("instructions") or meta.get("base_instructions"), (str, Mapping)):
        text = instructions.get("text") if isinstance(instructions, Mapping) else instructions
        yield from writer.message(Message(role="system", content=content_of(text)))
    has_users = any(
        payload.get("type") == "message" and payload.get("role") == "user"
        for line, payload in lines
        if line.get("type") == "response_item"
    )
    rollout = _Rollout(file, writer)
    lines.reverse()
    while lines:  # each line is forgotten when it is read: a long rollout is not twice in memory
        line, payload = lines.pop()
        time = seconds(line.get("timestamp"), file.lost)
        kind, what = str(line.get("type")), str(payload.get("type"))
        if kind == "response_item":
            yield from rollout.item(payload, what, time)
        elif kind == "turn_context":
            rollout.model = payload["model"] if isinstance(payload.get("model"), str) else rollout.model
        elif kind == "event_msg" and what == "token_count":
            rollout.count(payload)
        elif kind == "event_msg" and what == "user_message" and not has_users:
            yield from rollout.flush()
            yield from writer.message(Message(role="user", content=content_of(payload.get("message"))), time)
        elif kind == "compacted":
            yield from rollout.flush()
            file.lost["compactions, whose replaced messages are still in the history"] += 1
            yield from writer.update({"compaction": payload.get("message")}, time)
        elif kind == "event_msg" and what == "turn_aborted":
            yield from rollout.flush()
            yield from writer.update({"turn_aborted": payload.get("reason")}, time)
        elif kind != "session_meta" and what not in _REPEATED:
            file.lost[f"items of type {what if kind == 'event_msg' else kind}"] += 1
    yield from rollout.flush()
    yield from writer.start()


class _Rollout:
    """The answer that is being put together from its items."""

    def __init__(self, file: ForeignFile, writer: Writer) -> None:
        self.file = file
        self.writer = writer
        self.model: str | None = None
        self._answer: Answer | None = None
        self._calls: list[Call] = []
        self._time = 0.0
        self._usage: dict[str, Any] = {}
        self._total: Any = None

    def count(self, payload: Mapping[str, Any]) -> None:
        """Note the usage of the request whose items came last."""
        info = payload.get("info")
        if not isinstance(info, Mapping) or not (usage := info.get("last_token_usage")):
            return
        # The same count is written again before the next request.
        total = info.get("total_token_usage")
        if total is not None and total == self._total:
            return
        self._total = total
        if self._answer is None:
            self.file.lost["counts of tokens after the results"] += 1
        else:
            self._usage = openai_usage(usage)

    def item(self, item: Mapping[str, Any], kind: str, time: float) -> Iterator[Event]:
        """Yield the events of an item: none yet if it belongs to an answer that may have more items."""
        if kind == "message" and item.get("role") == "assistant":
            answer = self._open(time)
            text = content_of(item.get("content"))
            answer.content = text if not answer.content else _joined(answer.content, text)
        elif kind == "reasoning":
            answer = self._open(time)
            parts = [*_list(item.get("summary")), *_list(item.get("content"))]
            text = "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
            thought = {"text": text}
            if item.get("encrypted_content"):
                thought["redacted"] = str(item["encrypted_content"])
            answer.reasoning.append(thought)
        elif kind in _CALLS:
            self._open(time)
            id = str(item.get("call_id") or item.get("id") or f"call_{time}_{len(self._calls)}")
            named = str(item.get("name") or kind.removesuffix("_call"))
            arguments = next((item[key] for key in ("arguments", "input", "action") if item.get(key) is not None), None)
            if kind == "custom_tool_call":
                arguments = {"input": arguments}
            self._calls.append(Call(id, named, arguments))
            if kind == "web_search_call":  # its result is not in the rollout
                yield from self.flush()
                self.file.lost["results of web searches"] += 1
                yield from self.writer.result(id, item.get("status"), time)
        elif kind.endswith("_output"):
            yield from self.flush()
            output = item.get("output", item.get("tools"))
            is_failed = False
            if isinstance(output, Mapping):
                is_failed = output.get("success") is False
                output = output.get("content", output)
            yield from self.writer.result(str(item.get("call_id") or ""), _value(output), time, is_error=is_failed)
        elif kind == "message":
            yield from self.flush()
            role = str(item.get("role") or "user")
            yield from self.writer.message(Message(role=role, content=content_of(item.get("content"))), time)
        else:
            self.file.lost[f"items of type {kind}"] += 1

    def flush(self) -> Iterator[Event]:
        """Yield the answer that is complete now."""
        if (answer := self._answer) is not None:
            answer.calls, answer.usage, answer.model = self._calls, self._usage, self.model
            self._answer, self._calls, self._usage = None, [], {}
            yield from self.writer.answer(answer, self._time)

    def _open(self, time: float) -> Answer:
        self._time = time or self._time
        if self._answer is None:
            self._answer = Answer()
        return self._answer


def _value(output: Any) -> Any:
    return content_of(output) if isinstance(output, (str, list)) or output is None else output


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n{other}"
    blocks = [[{"type": "text", "text": part}] if isinstance(part, str) else part for part in (one, other)]
    return [*blocks[0], *blocks[1]]
