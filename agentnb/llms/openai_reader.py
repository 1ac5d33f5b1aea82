"""From the events of OpenAI's chat completions stream to chunks.

Many servers speak this dialect and few speak all of it, so the reader asks for little: fields may be null or
missing, usage may come on any chunk or none, tool calls may lack an index or an id, or share an index. Two things
it insists on, because a truncated answer must not pass for a whole one: every event is a JSON object, and the
stream says that it is over, by a finish reason or by `[DONE]`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError
from agentnb.llms import failures

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk
    from agentnb.llms.sse import ServerSentEvent

DONE = "[DONE]"

_REASONS = {"function_call": "tool_calls", "tool_calls": "tool_calls", "stop": "stop", "length": "length"}
_REASONING_FIELDS = ("reasoning_content", "reasoning")  # DeepSeek, llama.cpp, vLLM · OpenRouter, newer vLLM


class ChatCompletionReader:
    """Reads one answer. `server` is how its errors call the server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._calls = _ToolCalls()
        self._usage: Chunk | None = None
        self._reason: str | None = None
        self._refused = False
        self._done = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Give the chunks of one event. Raises a `ModelError` for an error event or a broken one."""
        if event.data.strip() == DONE:
            self._done = True
            return []
        said = failures.decode_object(event.data, self._server)
        if event.event == "error" or said.get("error"):
            raise failures.from_payload(said, self._server)
        if isinstance(usage := said.get("usage"), Mapping):
            self._usage = _usage_chunk(usage)
        choices = said.get("choices")
        if not isinstance(choices, list):
            return []
        return [chunk for choice in choices if isinstance(choice, Mapping) for chunk in self._read_choice(choice)]

    def is_done(self) -> bool:
        """Say whether `[DONE]` was read: after a finish reason, the usage may still come."""
        return self._done

    def finish(self) -> list[Chunk]:
        """Give the closing chunks. Raises `ModelProtocolError` when the answer is not complete."""
        if self._reason is None and not self._done:
            raise ModelProtocolError(f"the stream of {self._server} ended without a finish reason and without {DONE}")
        reason = self._stop_reason()
        closing = self._calls.close(complete=reason == "tool_calls")
        if self._usage is not None:
            closing.append(self._usage)
        return [*closing, {"type": "stop", "reason": reason}]

    def _stop_reason(self) -> str:
        reason = self._reason or "stop"
        if reason == "stop" and self._calls.any:
            return "tool_calls"  # a forced call ends with "stop" at OpenAI itself
        if reason == "stop" and self._refused:
            return "refusal"
        return _REASONS.get(reason, reason)

    def _read_choice(self, choice: Mapping[str, Any]) -> list[Chunk]:
        if choice.get("index") not in (0, None):
            return []  # n > 1: an agent has one next message
        if choice.get("finish_reason"):
            self._reason = str(choice["finish_reason"])
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            return []
        chunks: list[Chunk] = []
        reasoning = next((delta[name] for name in _REASONING_FIELDS if delta.get(name)), None)
        if isinstance(reasoning, str):
            chunks.append({"type": "reasoning_delta", "content": reasoning})
        for name in ("content", "refusal"):
            if isinstance(text := delta.get(name), str) and text:
                self._refused = self._refused or name == "refusal"
                chunks.append({"type": "text_delta", "content": text})
        for fragment in delta.get("tool_calls") or ():
            if isinstance(fragment, Mapping):
                chunks.append(self._calls.read(fragment))
        return chunks


class _ToolCalls:
    """Gives each call an index of its own, whatever the server's indexes are worth."""

    def __init__(self) -> None:
        self._at: dict[object, int] = {}  # the server's index -> ours
        self._ids: list[str | None] = []
        self._empty: list[bool] = []

    @property
    def any(self) -> bool:
        return bool(self._ids)

    def read(self, fragment: Mapping[str, Any]) -> Chunk:
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else {}
        call_id, name, arguments = fragment.get("id"), function.get("name"), function.get("arguments")
        if isinstance(arguments, Mapping):  # some servers send the object itself
            arguments = json.dumps(arguments)
        index = self._index(fragment.get("index"), call_id)
        chunk: Chunk = {"type": "tool_call_delta", "index": index}
        if call_id and self._ids[index] is None:
            self._ids[index] = chunk["id"] = str(call_id)
        if name:
            chunk["name"] = str(name)
        chunk["arguments"] = arguments if isinstance(arguments, str) else ""
        self._empty[index] = self._empty[index] and not chunk["arguments"].strip()
        return chunk

    def close(self, *, complete: bool) -> list[Chunk]:
        """Give what servers leave out: an id, and `{}` for a call that is complete and has no arguments."""
        closing: list[Chunk] = []
        for index, (call_id, empty) in enumerate(zip(self._ids, self._empty, strict=True)):
            rest: Chunk = {"type": "tool_call_delta", "index": index}
            if call_id is None:
                rest["id"] = f"call_{uuid.uuid4().hex}"
            rest["arguments"] = "{}" if empty and complete else ""
            if call_id is None or rest["arguments"]:
                closing.append(rest)
        return closing

    def _index(self, theirs: object, call_id: object) -> int:
        if theirs is None and call_id in self._ids and call_id:
            return self._ids.index(str(call_id))
        index = self._at.get(theirs)
        if index is None or (call_id and self._ids[index] not in (None, call_id)):  # another id: another call
            index = len(self._ids)
            self._ids.append(None)
            self._empty.append(True)
            self._at[theirs] = index
        return index


def _usage_chunk(usage: Mapping[str, Any]) -> Chunk:
    chunk: Chunk = {
        "type": "usage",
        "input_tokens": usage.get("prompt_tokens") or 0,
        "output_tokens": usage.get("completion_tokens") or 0,
    }
    for name, group, field in (
        ("cache_read_tokens", "prompt_tokens_details", "cached_tokens"),
        ("reasoning_tokens", "completion_tokens_details", "reasoning_tokens"),
    ):
        details = usage.get(group)
        if isinstance(details, Mapping) and isinstance(details.get(field), int):
            chunk[name] = details[field]
    return chunk
