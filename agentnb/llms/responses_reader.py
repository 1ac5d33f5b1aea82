"""Answers of OpenAI's Responses API: from the events of a stream to chunks.

An answer is a list of items: messages, reasoning, calls, and the items of tools that run at the provider. Each item is
opened, filled by deltas, and closed by an event that has all of it. Text, reasoning and calls become chunks as they
come. The server wants to be sent its items again, unchanged and in order, so the end of each item has what the message
does not hold otherwise: all of a reasoning item, and the ids of messages and calls. An item of another type is kept as
a block.

Other servers that speak this API leave out events, or change the ids between them. So an item is identified by its
position in the answer, the end of an item completes what its deltas have left out, and the last event completes the
list of items.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError, ModelUnavailable, UsageError
from agentnb.llms import errors
from agentnb.llms.openai_reader import openai_usage
from agentnb.llms.reader import DONE, stop_reason

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk, JsonObject
    from agentnb.llms.sse import ServerSentEvent

CALLS = ("function_call", "custom_tool_call")
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_UNANSWERED = {
    "computer_call": "remove the tool",
    "local_shell_call": "remove the tool",
    "apply_patch_call": "remove the tool",
    "shell_call": 'give it an environment of the type "container_auto"',
    "tool_search_call": "remove its execution",
    "mcp_approval_request": 'give it require_approval="never"',
}
"""Items that wait for the client's answer, which agentnb cannot give, and what to do with their tool."""


@dataclass(slots=True)
class _Item:
    """An open item, and what is in chunks of it so far."""

    kind: str
    fields: JsonObject
    texts: dict[object, list[str]] = field(default_factory=dict)  # by the index of the part
    annotations: list[Any] = field(default_factory=list)  # of the part that is open
    has_logprobs: bool = False  # the server sends a list of them, which is usually empty
    part: object = None  # the index of the part that is open
    call: int | None = None  # the number of the call in this answer, once its name is known
    block: int | None = None  # the number of the block in this answer


class ResponseReader:
    """Reads one answer.

    server: the server's name, for errors, and for the data that only this server can read.
    custom: the argument that has the text of a custom tool, by the name of each custom tool that was offered.
    """

    def __init__(self, server: str, custom: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._custom = custom or {}
        self._items: dict[object, _Item] = {}  # the open ones, by their position in the answer
        self._closed: set[object] = set()  # the positions of those that have ended
        self._closed_ids: Counter[str] = Counter()  # the number of those with an id; xAI gives several the same one
        self._calls = self._blocks = 0
        self._has_text = self._refused = False
        # What the closing chunks are made of.
        self._response: dict[str, str] = {}
        self._details: dict[str, Any] = {}
        self._usage: Chunk | None = None
        self._end: str | None = None
        self._reason: str | None = None
        self._begun = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Return the chunks of one event. Raises a ModelError if the event reports an error or is not valid."""
        if event.data.strip() == DONE:  # some servers send it, as in chat completions
            return []
        payload = errors.read_event(event.data, event.event, self._server)
        chunks = self._read_event(payload, str(payload.get("type") or event.event))
        self._has_text = self._has_text or any(chunk["type"] == "text_delta" for chunk in chunks)
        return chunks

    def is_done(self) -> bool:
        """Return True if the event that ends the answer was read."""
        return self._end is not None

    @property
    def usage(self) -> Chunk | None:
        """The chunk with the usage that the server has reported so far, None if it has reported none."""
        return self._usage

    def finish(self) -> list[Chunk]:
        """Return the closing chunks, `stop` last. Raises a ModelError if the answer is not complete."""
        if self._end is None:
            begun = "the end of its response, so the answer may be incomplete; ask again"
            other = "a response began; ask again, or check that base_url is an address of the Responses API"
            raise ModelProtocolError(f"the stream of {self._server} ended before {begun if self._begun else other}")
        ours = stop_reason(self._reason, calls=self._calls > 0, text=self._has_text, server=self._server)
        if ours == "stop" and self._refused:
            ours = "refusal"
        if self._reason is not None and self._reason != ours:  # otherwise the chunk `stop` has it
            self._response["finish_reason"] = self._reason
        closing: list[Chunk] = []
        if self._details:
            closing.append({"type": "details", "details": self._details})
        if self._response:
            closing.append({"type": "response", **self._response})
        if self._usage is not None:
            closing.append(self._usage)
        return [*closing, {"type": "stop", "reason": ours}]

    def _read_event(self, payload: Mapping[str, Any], kind: str) -> list[Chunk]:
        at, delta = self._position(payload), payload.get("delta")
        match kind.removeprefix("response."):
            case "created" | "in_progress" | "queued":
                self._read_response(_mapping(payload.get("response")))
            case "output_item.added":
                return self._open(at, _mapping(payload.get("item")))
            case "output_item.done":
                return self._close(at, _mapping(payload.get("item")))
            case "output_text.delta" | "refusal.delta" if isinstance(delta, str):
                item = self._item(at, "message")
                self._refused = self._refused or kind == "response.refusal.delta"
                return self._add_text(item, payload.get("content_index"), delta)
            case "content_part.added" if "logprobs" in _mapping(payload.get("part")):
                self._item(at, "message").has_logprobs = True
            case "output_text.annotation.added" if isinstance(payload.get("annotation"), Mapping):
                self._item(at, "message").annotations.append(payload["annotation"])
            case "reasoning_summary_text.delta" | "reasoning_text.delta" if isinstance(delta, str):
                part = kind, payload.get("summary_index", payload.get("content_index"))
                return self._add_reasoning(self._item(at, "reasoning"), part, delta)
            case "function_call_arguments.delta" | "custom_tool_call_input.delta" if isinstance(delta, str):
                return self._add_arguments(self._item(at, "function_call"), delta)
            case "completed" | "incomplete" | "failed" | "cancelled":
                return self._read_end(_mapping(payload.get("response")), kind)
            case _ if payload.get("object") == "response":  # a whole answer, as if no stream had been requested
                has_ended = payload.get("status") not in (
                    "in_progress",
                    "queued",
                )  # there are other words for completed
                return self._read_end(payload, "response.completed" if has_ended else "response.in_progress")
            case _:
                pass
        return []

    def _position(self, payload: Mapping[str, Any]) -> object:
        """Return what identifies the item of an event: its position, or its id if the server sends no position."""
        index = payload.get("output_index")
        if isinstance(index, int):
            return index
        item = _mapping(payload.get("item"))
        return str(payload.get("item_id") or item.get("id") or next(reversed(self._items), ""))

    def _read_response(self, response: Mapping[str, Any]) -> None:
        self._begun = True
        given = {
            "model": response.get("model"),
            "response_id": response.get("id"),
            "service_tier": response.get("service_tier"),
            "upstream": response.get("provider"),  # OpenRouter
        }
        self._response |= {name: value for name, value in given.items() if isinstance(value, str) and value}
        if isinstance(usage := response.get("usage"), Mapping):
            self._usage = openai_usage(usage)

    def _read_end(self, response: Mapping[str, Any], kind: str) -> list[Chunk]:
        self._read_response(response)
        if (status := response.get("status")) in ("incomplete", "failed", "cancelled"):  # its event may be "completed"
            kind = f"response.{status}"
        if response.get("error") or kind not in _ENDS[:2]:
            if isinstance(error := response.get("error"), Mapping):
                raise errors.from_payload({"error": error}, self._server)
            raise ModelUnavailable(
                f"{self._server} did not complete its answer (its status is {response.get('status')!r}); ask again"
            )
        if kind == "response.incomplete":
            details = _mapping(response.get("incomplete_details"))
            self._reason = str(details.get("reason") or "incomplete")
        self._end = kind

        # Complete the items whose end did not come.
        output = response.get("output")
        chunks: list[Chunk] = []
        closed, closed_ids = set(self._closed), self._closed_ids.copy()
        for position, item in enumerate(output if isinstance(output, list) else ()):
            its_id = str(_mapping(item).get("id"))
            if position in closed or closed_ids[its_id] > 0:
                closed_ids[its_id] -= 1
            else:
                at: object = its_id if its_id in self._items and position not in self._items else position
                chunks += self._close(at, _mapping(item))
        for at, open_item in list(self._items.items()):
            if open_item.kind == "message":  # the text of an answer that was cut off
                chunks += self._close(at, {**open_item.fields, "content": None})
        return chunks

    # Items.

    def _item(self, at: object, kind: str) -> _Item:
        """Return the open item at a position; a new one if the server has not opened it."""
        return self._items.get(at) or self._items.setdefault(at, _Item(kind, {"type": kind}))

    def _open(self, at: object, given: Mapping[str, Any]) -> list[Chunk]:
        chunks: list[Chunk] = []
        if (other := self._items.get(at)) is not None:  # a server that gives every item the same position
            chunks = self._close(at, other.fields)
        kind = str(given.get("type") or "")
        item = self._items[at] = _Item(kind, dict(given))
        self._closed.discard(at)
        if self._is_call(kind, given):
            return [*chunks, *self._open_call(item)]
        return [*chunks, *(self._keep_block(item) if kind not in ("message", "reasoning", "") else ())]

    def _close(self, at: object, given: Mapping[str, Any]) -> list[Chunk]:
        """End an item. `given` is all of it."""
        self._begun = True
        item = self._items.pop(at, None)
        kind = str(given.get("type") or (item.kind if item is not None else ""))
        if item is None or item.kind not in (kind, "function_call"):
            item = _Item(kind, {})
        item.kind = kind
        item.fields = {**item.fields, **given}
        if kind in ("message", "reasoning", *CALLS):  # the server rejects null in these, which it sends itself
            item.fields = {name: value for name, value in item.fields.items() if value is not None}
        self._closed.add(at)
        if item.fields.get("id"):
            self._closed_ids[str(item.fields["id"])] += 1
        if kind == "message":
            return self._close_message(item)
        if kind == "reasoning":
            return self._close_reasoning(item)
        if self._is_call(kind, item.fields):
            return self._close_call(item)
        self._refuse_unanswered(item.fields)
        return self._keep_block(item) if kind else []

    def _is_call(self, kind: str, item: Mapping[str, Any]) -> bool:
        """Return True for a call of a loop's tool. xAI's own tools are custom tools that were not offered."""
        return kind == "function_call" or (kind == "custom_tool_call" and item.get("name") in self._custom)

    def _keep_block(self, item: _Item) -> list[Chunk]:
        """Return the chunk of a block: at its start, which gives it its position, and again with all of it."""
        if item.block is None:
            item.block, self._blocks = self._blocks, self._blocks + 1
        return [{"type": "block", "index": item.block, "block": item.fields, "server": self._server}]

    def _refuse_unanswered(self, item: JsonObject) -> None:
        """Raise UsageError for an item that waits for an answer of the client."""
        kind = item.get("type")
        is_hosted = kind == "shell_call" and str(_mapping(item.get("environment")).get("type")).startswith("container")
        is_hosted = is_hosted or (kind == "tool_search_call" and item.get("execution") != "client")
        if kind in _UNANSWERED and not is_hosted:
            raise UsageError(
                f"The model has made a {kind}, which only the client could answer, and agentnb does not. Change the"
                f" tool of the provider in tools=: {_UNANSWERED[kind]}."
            )

    # Messages.

    def _add_text(self, item: _Item, part: object, text: str) -> list[Chunk]:
        chunks: list[Chunk] = []
        if item.texts and part != item.part:
            chunks = self._end_part(item)
        item.part = part
        item.texts.setdefault(part, []).append(text)
        return [*chunks, {"type": "text_delta", "content": text}] if text else chunks

    def _end_part(self, item: _Item, **more: Any) -> list[Chunk]:
        kept = {name: value for name, value in item.fields.items() if name not in ("type", "role", "content")}
        if item.has_logprobs:
            kept["logprobs"] = []
        end: Chunk = {"type": "text_end", "server": self._server, "item": kept | more}
        if item.annotations:
            end["citations"] = item.annotations
        item.annotations = []
        return [end]

    def _close_message(self, item: _Item) -> list[Chunk]:
        chunks: list[Chunk] = []
        content = item.fields.get("content")
        parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
        is_refusal = False
        # Bedrock numbers the part of a message from 1 in its deltas, because it counts the reasoning before.
        known_parts = list(item.texts)
        are_positions = item.texts.keys() <= set(range(len(parts)))
        for position, part in enumerate(parts):
            index = position if are_positions or position >= len(known_parts) else known_parts[position]
            is_refusal = part.get("type") == "refusal"
            self._refused = self._refused or is_refusal
            text = part.get("refusal") if is_refusal else part.get("text")
            known = "".join(item.texts.get(index, ()))
            if isinstance(text, str) and text.startswith(known) and len(text) > len(known):
                chunks += self._add_text(item, index, text[len(known) :])
            if isinstance(found := part.get("annotations"), list) and found and item.part in (index, None):
                item.annotations = list(found)
            item.has_logprobs = item.has_logprobs or "logprobs" in part
            if isinstance(logprobs := part.get("logprobs"), list) and logprobs:
                self._details.setdefault("logprobs", {}).setdefault("content", []).extend(logprobs)
        if not any(map(any, item.texts.values())):
            return chunks
        return [*chunks, *self._end_part(item, **({"refusal": True} if is_refusal else {}))]

    # Reasoning.

    def _add_reasoning(self, item: _Item, part: object, text: str) -> list[Chunk]:
        if item.texts and part not in item.texts:  # parts are paragraphs
            text = f"\n\n{text}"
        item.texts.setdefault(part, []).append(text)
        return [{"type": "reasoning_delta", "content": text}] if text else []

    def _close_reasoning(self, item: _Item) -> list[Chunk]:
        chunks: list[Chunk] = []
        if not item.texts:
            for name in ("summary", "content"):
                parts = item.fields.get(name)
                for index, part in enumerate(parts if isinstance(parts, list) else ()):
                    if isinstance(text := _mapping(part).get("text"), str):
                        chunks += self._add_reasoning(item, (name, index), text)
        provider = {"server": self._server, "item": item.fields}
        return [*chunks, {"type": "reasoning_delta", "content": "", "provider": provider}]

    # Calls.

    def _open_call(self, item: _Item) -> list[Chunk]:
        name = item.fields.get("name")
        if item.call is not None or not isinstance(name, str) or not name:
            return []
        item.call, self._calls = self._calls, self._calls + 1
        opening = ""
        if item.kind == "custom_tool_call":  # its text becomes an argument
            opening = f'{{{json.dumps(self._custom[name])}: "'
        return [
            {
                "type": "tool_call_delta",
                "index": item.call,
                "id": item.fields.get("call_id") or item.fields.get("id"),
                "name": name,
                "arguments": opening,
            }
        ]

    def _add_arguments(self, item: _Item, text: str) -> list[Chunk]:
        item.texts.setdefault(None, []).append(text)
        if item.call is None or not text:
            return []
        piece = json.dumps(text)[1:-1] if item.kind == "custom_tool_call" else text
        return [{"type": "tool_call_delta", "index": item.call, "arguments": piece}]

    def _close_call(self, item: _Item) -> list[Chunk]:
        is_custom = item.kind == "custom_tool_call"
        if item.call is None:  # the name did not come before
            item.texts.clear()
        chunks = self._open_call(item)
        if item.call is None:
            return []  # not a call
        whole, known = item.fields.get("input" if is_custom else "arguments"), "".join(item.texts.get(None, ()))
        if isinstance(whole, Mapping):  # some servers send the object itself
            whole = json.dumps(whole, ensure_ascii=False)
        if isinstance(whole, str) and whole.startswith(known):
            chunks += self._add_arguments(item, whole[len(known) :])
        is_complete = item.fields.get("status") != "incomplete"
        rest = '"}' if is_custom and is_complete else ""
        if not is_custom and is_complete and not (whole or known):
            rest = "{}"
        held = ("arguments", "input", "call_id", "name", *(() if is_custom else ("type",)))
        kept = {name: value for name, value in item.fields.items() if name not in held}
        end = {"type": "tool_call_delta", "index": item.call, "arguments": rest}
        return [*chunks, end | {"item": kept, "server": self._server}]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
