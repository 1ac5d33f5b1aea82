"""From the events of OpenAI's chat completions stream to chunks.

Many servers speak this dialect and few speak all of it, so the reader asks for little: fields may be null or
missing, content may be a list of parts, usage may come on any chunk or none, an answer may come whole instead of in
pieces. Two things it insists on, because a truncated answer must not pass for a whole one: every event is a JSON
object, and the stream says that it is over, by a finish reason, by `[DONE]`, or by its account, which comes last.

Some servers refuse a tool's result unless they see again what they have said before the call: DeepSeek and Moonshot
the reasoning, Gemini a signature that it gave with the call, OpenRouter the details of the reasoning. DeepSeek wants it
with every answer of a conversation that has tools. So where tools are offered an answer ends with a `reasoning_delta`
that holds these things, as `provider`, with the server they are for: others refuse a field that they do not know.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError
from agentnb.core.readable import parse_arguments
from agentnb.llms import errors
from agentnb.llms.reader import (
    DONE,
    ObjectText,
    amount,
    count,
    is_data,
    stop_reason,
    text_chunks,
    usage_chunk,
)
from agentnb.llms.sse import WHOLE

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk, JsonObject
    from agentnb.llms.sse import ServerSentEvent

_REASONING_FIELDS = ("reasoning_content", "reasoning")  # DeepSeek, llama.cpp, vLLM · OpenRouter, newer vLLM


class ChatCompletionReader:
    """Reads one answer. `server` is how its errors call the server, `tools` the names that were offered."""

    def __init__(self, server: str, tools: Collection[str] = (), *, keep_logprobs: bool = False) -> None:
        self._server = server
        self._keep_logprobs = keep_logprobs
        self._response: dict[str, str] = {}
        self._kept: dict[str, Any] = {}  # what the answer has beside text, thoughts and calls
        self._message_extra: object = None
        self._has_tools = bool(tools)
        self._calls = ToolCallPieces(tools)
        self._details = ReasoningDetails()
        self._reasoning_field: str | None = None
        self._usage: Chunk | None = None
        self._reason: str | None = None
        self._choice: object = None  # the index of the one that is read
        self._unread: Mapping[str, Any] | None = None  # what was no piece of an answer
        self._has_text = False
        self._refused = False
        self._in_deltas = False  # something of the answer has come so
        self._begun = False
        self._done = False
        self._accounted = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Give the chunks of one event. Raises a `ModelError` for an error event or a broken one."""
        if event.data.strip() == DONE:
            self._done = True
            return []
        said = errors.read_event(event.data, event.event, self._server)
        choices, usage = said.get("choices"), said.get("usage")
        self._read_response(said)
        if isinstance(beside := said.get("x_groq"), Mapping):  # Groq's place for what others say in the event itself
            if beside.get("error"):
                raise errors.from_payload(beside, self._server)
            usage = usage or beside.get("usage")
        if isinstance(usage, Mapping):
            self._usage = _usage_chunk(usage)
        if not isinstance(choices, list):
            if not isinstance(usage, Mapping):
                self._unread = said
            return []
        self._begun = self._begun or bool(choices)
        self._accounted = self._begun and isinstance(usage, Mapping) and not choices
        self._done = self._done or event.event == WHOLE
        return [chunk for choice in choices if isinstance(choice, Mapping) for chunk in self._read_choice(choice)]

    def is_done(self) -> bool:
        """Say whether `[DONE]` was read: after a finish reason, the usage may still come."""
        return self._done

    def finish(self) -> list[Chunk]:
        """Give the closing chunks. Raises a `ModelError` when the answer is not complete."""
        if self._reason is None and self._unread is not None:
            raise errors.from_payload(self._unread, self._server)
        if self._reason is None and not self._done and not self._accounted:
            raise ModelProtocolError(f"the stream of {self._server} ended without a finish reason and without {DONE}")
        if not self._begun:
            raise ModelProtocolError(f"{self._server} ended the stream of its answer without having begun it")
        reason = stop_reason(self._reason, calls=bool(self._calls), text=self._has_text, server=self._server)
        if reason == "stop" and self._refused:
            reason = "refusal"
        closing = self._calls.close(complete=reason == "tool_calls")
        if (self._calls or self._has_tools) and (provider := self._provider()):
            closing.append({"type": "reasoning_delta", "content": "", "provider": provider})
        if self._kept:
            closing.append({"type": "details", "details": self._kept})
        if self._reason is not None and self._reason != reason:  # `stop` has it otherwise
            self._response["finish_reason"] = self._reason
        if self._response:
            closing.append({"type": "response", **self._response})
        if self._usage is not None:
            closing.append(self._usage)
        return [*closing, {"type": "stop", "reason": reason}]

    def _provider(self) -> JsonObject:
        """What this server wants to see again with the calls of its answer."""
        given: JsonObject = {}
        if self._details:
            given["reasoning_details"] = self._details.whole()
        elif self._reasoning_field is not None:
            given["field"] = self._reasoning_field
        if self._message_extra is not None:
            given["message_extra_content"] = self._message_extra
        if extras := self._calls.extras:
            given["extra_content"] = {str(index): extra for index, extra in extras.items()}
        return {"server": self._server} | given if given else {}

    def _read_response(self, said: Mapping[str, Any]) -> None:
        """Keep which model has answered, and what the server says of its answer as a whole."""
        for ours, theirs in _RESPONSE.items():
            value = said.get(theirs)
            if (
                isinstance(value, str)
                and value
                and (ours not in ("model", "response_id") or ours not in self._response)
            ):
                self._response[ours] = value
        for name in _BESIDE_THE_ANSWER:
            if isinstance(said.get(name), list) and said[name]:
                self._kept[name] = said[name]

    def _keep(self, place: Mapping[str, Any], names: Iterable[str]) -> None:
        """Keep lists that a delta, or a whole message, has in pieces."""
        for name in names:
            if isinstance(pieces := place.get(name), list) and pieces:
                self._kept[name] = [*self._kept.get(name, ()), *pieces]

    def _read_logprobs(self, logprobs: object) -> None:
        if not self._keep_logprobs or not isinstance(logprobs, Mapping):
            return
        known = self._kept.setdefault("logprobs", {})
        for name, piece in logprobs.items():
            if isinstance(piece, list):
                known.setdefault(name, []).extend(piece)

    def _read_choice(self, choice: Mapping[str, Any]) -> list[Chunk]:
        index = choice.get("index")
        if index is not None and self._choice is None:
            self._choice = index
        if index is not None and index != self._choice:
            return []  # n > 1: an agent has one next message
        if choice.get("error"):
            raise errors.from_payload(choice, self._server)
        if choice.get("finish_reason"):
            self._reason = str(choice["finish_reason"])
        if isinstance(usage := choice.get("usage"), Mapping):  # Moonshot's place for it
            self._usage = _usage_chunk(usage)
        self._read_logprobs(choice.get("logprobs"))
        if isinstance(delta := choice.get("delta"), Mapping):
            chunks = self._read_delta(delta)
            self._in_deltas = self._has_text or bool(self._calls)
            return chunks
        if self._in_deltas:  # some end with all of it once more
            return []
        said = choice.get("message")
        if not isinstance(said, Mapping):
            said = {"content": choice.get("text")}  # as where there are no messages, only texts
        return self._read_delta(said)

    def _read_delta(self, delta: Mapping[str, Any]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for name in _REASONING_FIELDS:
            thoughts = text_chunks(delta.get(name), "reasoning_delta")
            if thoughts or (delta.get(name) == "" and self._reasoning_field is None):  # DeepSeek wants to see that too
                self._reasoning_field = name
            if thoughts:
                chunks += thoughts
                break
        self._details.read(delta.get("reasoning_details"))
        self._keep(delta, _BESIDE_THE_TEXT)
        routing = delta.get("provider_metadata")  # Vercel's gateway says there who has answered
        for name in ("gateway", "routing", "finalProvider"):
            routing = routing.get(name) if isinstance(routing, Mapping) else None
        if isinstance(routing, str):
            self._response["upstream"] = routing
        if delta.get("extra_content"):
            self._message_extra = delta["extra_content"]
        content = delta.get("content")
        chunks += text_chunks(json.dumps(content, ensure_ascii=False) if is_data(content) else content)
        refusal = text_chunks(delta.get("refusal"))
        self._refused = self._refused or bool(refusal)
        chunks += refusal
        self._has_text = self._has_text or any(chunk["type"] == "text_delta" for chunk in chunks)
        for place, fragment in enumerate(self._fragments(delta)):
            chunks += self._calls.read(fragment, place)
        return chunks

    def _fragments(self, delta: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        given = delta.get("tool_calls")
        fragments = [given] if isinstance(given, Mapping) else given
        if isinstance(fragments, list) and fragments:
            return [fragment for fragment in fragments if isinstance(fragment, Mapping)]
        legacy = delta.get("function_call")  # before there were tool calls, and still at some proxies
        return [{"function": legacy}] if isinstance(legacy, Mapping) else []


_RESPONSE = {
    "model": "model",
    "response_id": "id",
    "fingerprint": "system_fingerprint",
    "service_tier": "service_tier",
    "upstream": "provider",  # OpenRouter's
}
_BESIDE_THE_ANSWER = ("citations", "search_results")  # Perplexity's, whole in every event
_BESIDE_THE_TEXT = ("annotations", "executed_tools", "images")
USD_PER_TICK = 1e-10


def _usage_chunk(usage: Mapping[str, Any]) -> Chunk:
    def first(*places: str) -> int | None:
        """The first number of tokens there is, each at a field of the usage or of a group in it (`group.field`)."""
        for place in places:
            group, _, field = place.rpartition(".")
            there = usage.get(group) if group else usage
            if isinstance(there, Mapping) and (number := count(there.get(field))) is not None:
                return number
        return None

    return usage_chunk(
        cost=_cost(usage),
        input_tokens=first("prompt_tokens", "input_tokens"),
        output_tokens=first("completion_tokens", "output_tokens"),
        cache_read_tokens=first(
            "prompt_tokens_details.cached_tokens",
            "prompt_cache_hit_tokens",  # DeepSeek
            "num_cached_tokens",  # Mistral
            "cached_tokens",  # Moonshot
            "cache_read_input_tokens",  # a gateway of Anthropic's models
            "input_tokens_details.cached_tokens",
        ),
        cache_write_tokens=first(
            "prompt_tokens_details.cache_write_tokens",  # OpenRouter
            "prompt_tokens_details.cache_creation_tokens",
            "cache_creation_input_tokens",
        ),
        reasoning_tokens=first(
            "completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens", "reasoning_tokens"
        ),
    )


def _cost(usage: Mapping[str, Any]) -> float | None:
    """The cost in US dollars, where a server says it: OpenRouter, Perplexity, xAI."""
    cost = usage.get("cost")
    if isinstance(cost, Mapping):
        cost = cost.get("total_cost")
    if cost is None and (ticks := amount(usage.get("cost_in_usd_ticks"))) is not None:
        return ticks * USD_PER_TICK
    return amount(cost if cost is not None else usage.get("total_cost"))


# Tool calls.

NOTHING = "{}"
"""Arguments that some servers open every call with, also one that has others."""


@dataclass(slots=True)
class _Call:
    index: int
    ids: dict[str, None] = field(default_factory=dict)  # in the order they came; the first is the call's
    name: str = ""
    told: str = ""  # the name as it was told last
    arguments: ObjectText = field(default_factory=ObjectText)
    waiting: list[str] = field(default_factory=list)  # arguments that have come before the name
    has_id: bool = False
    held: bool = False  # `{}` has come, which may be all there is or the opening of more
    next_name: str = ""  # what has come alone behind a whole object: perhaps the next call's
    extra: object = None

    def is_made(self) -> bool:
        """Say whether this is a call: some servers send one without a name and arguments where they make none."""
        return bool(self.name or "".join(self.waiting).strip())


class ToolCallPieces:
    """Gives each call of an answer an index of its own. `tools` are the names that were offered."""

    def __init__(self, tools: Iterable[str] = ()) -> None:
        self._tools = frozenset(tools)
        self._calls: list[_Call] = []
        self._at: dict[object, _Call] = {}  # the server's index, or the place in an event -> the call there

    def __bool__(self) -> bool:
        return any(call.is_made() for call in self._calls)

    @property
    def extras(self) -> dict[int, object]:
        """What the provider wants to see again with a call (Gemini's signature of a thought), by the call's number."""
        made = [call for call in self._calls if call.is_made()]
        return {number: call.extra for number, call in enumerate(made) if call.extra is not None}

    def read(self, fragment: Mapping[str, Any], place: int = 0) -> list[Chunk]:
        """Give the chunks of a fragment, which stands at `place` in its event."""
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else fragment
        call_id, name = _word(fragment.get("id")), _word(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping | list):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        text = arguments if isinstance(arguments, str) else ""
        if self._is_told_again(fragment.get("index"), call_id, name, text):
            return []
        call, chunks = self._call(fragment.get("index"), place, call_id, name, text)
        if fragment.get("extra_content"):
            call.extra = fragment["extra_content"]
        if call_id:
            call.ids[call_id] = None
        if name and name != call.name:
            call.name = name if name in self._tools else call.name + name
        return [*chunks, *_told(call, text)]

    def close(self, *, complete: bool) -> list[Chunk]:
        """Give what servers leave out: an id, and `{}` for a call that is complete and has no arguments."""
        closing: list[Chunk] = []
        for call in self._calls:
            if not call.is_made():
                continue
            text = "".join(call.waiting)
            if complete and (call.held or not call.arguments.begun):
                text = text or NOTHING
            if text or not call.has_id:
                rest: Chunk = {"type": "tool_call_delta", "index": call.index}
                if not call.has_id:
                    rest["id"] = next(iter(call.ids), f"call_{uuid.uuid4().hex}")
                closing.append(rest | {"arguments": text})
        return closing

    def _call(self, index: object, place: int, call_id: str, name: str, text: str) -> tuple[_Call, list[Chunk]]:
        """The call that a fragment belongs to, and what is still to be told of the one before it."""
        at = index if isinstance(index, int | str) else ("place", place)
        call = self._at.get(at)
        if call_id and (index is None or (call is None and not name)):
            call = self._of_id(call_id) or call
        if call is None and not call_id and not name and self._calls:
            last = self._calls[-1]
            if index is None or not last.arguments.has_closed():  # some count on behind a call at an index they reuse
                call = last
        if call is not None and not self._is_of_another(call, call_id, name, text):
            return call, []
        closing: list[Chunk] = []
        if self._calls and (last := self._calls[-1]).held and last.is_made():  # nothing more comes for it
            last.arguments.add(NOTHING)
            last.held = False
            closing.append({"type": "tool_call_delta", "index": last.index, "arguments": NOTHING})
        call = self._at[at] = _Call(len(self._calls), name="" if call is None else call.next_name)
        self._calls.append(call)
        return call, closing

    def _of_id(self, call_id: str) -> _Call | None:
        return next((call for call in reversed(self._calls) if call_id in call.ids), None)

    def _is_told_again(self, index: object, call_id: str, name: str, text: str) -> bool:
        """Say whether a fragment is all of a call that has been told already."""
        if text.lstrip()[:1] not in ("{", '"'):  # an object, or the text of one
            return False
        here = self._at.get(index) if isinstance(index, int | str) and not name else None
        call = self._of_id(call_id) if call_id else here
        if call is None or name not in ("", call.name) or (call.next_name and not name):  # those are the next one's
            return False
        if call.held:
            return text.strip() == NOTHING
        if not call.arguments.has_closed():
            return False
        told = parse_arguments(text)
        return told[1] is None and told == parse_arguments(call.arguments.text())

    def _is_of_another(self, call: _Call, call_id: str, name: str, text: str) -> bool:
        other_id = bool(call_id and call.ids and call_id not in call.ids)
        if (name and other_id) or self._is_another_tool(call, name):
            return True
        if call.held:  # a second `{}` is another call's, and anything else goes on with this one
            return bool(name) and text.strip() == NOTHING
        if not (name or other_id or call.next_name) or not call.arguments.has_closed():
            return False
        if name and not text.strip():
            call.next_name = name  # once more, or of a call of the same tool, whose arguments are still to come
        return text.lstrip().startswith("{")

    def _is_another_tool(self, call: _Call, name: str) -> bool:
        if not name or not call.name or name == call.name:
            return False
        if call.arguments.begun or call.held:
            return True
        goes_on = call.name + name in self._tools or name.startswith(call.name)
        return call.name in self._tools and not goes_on


def _told(call: _Call, text: str) -> list[Chunk]:
    chunk: Chunk = {"type": "tool_call_delta", "index": call.index}
    if call.ids and call.name and not call.has_id:
        call.has_id, chunk["id"] = True, next(iter(call.ids))
    if call.name != call.told:
        call.told = chunk["name"] = call.name
    if not call.arguments.begun and text.strip() == NOTHING:
        call.held, text = True, ""
    elif text.strip():
        call.held = False
    call.arguments.add(text)
    if not call.name:  # whoever starts a call as soon as it is complete has to know which
        call.waiting.append(text)
        return []
    if call.waiting:
        text = "".join(call.waiting) + text
        call.waiting.clear()
    return [chunk | {"arguments": text}]


def _word(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


# Reasoning details of OpenRouter.

_IN_PIECES = ("text", "summary", "data")


class ReasoningDetails:
    """Puts the blocks together."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._at: dict[tuple[object, object], _Block] = {}

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def read(self, details: object) -> None:
        """Take in the details of one delta."""
        for fragment in details if isinstance(details, list) else ():
            if isinstance(fragment, Mapping):
                self._take(fragment)

    def whole(self) -> list[JsonObject]:
        """Give the blocks."""
        return [block.fields | {name: "".join(texts) for name, texts in block.pieces.items()} for block in self._blocks]

    def _take(self, fragment: Mapping[str, Any]) -> None:
        at = (str(fragment.get("type")), str(fragment.get("index")))
        block = self._at.get(at)
        if block is None or not block.goes_on_with(fragment):
            block = self._at[at] = _Block()
            self._blocks.append(block)
        for name, value in fragment.items():
            if name in _IN_PIECES and isinstance(value, str):
                block.pieces.setdefault(name, []).append(value)
            elif value is not None or name not in block.fields:
                block.fields[name] = value


class _Block:
    def __init__(self) -> None:
        self.fields: JsonObject = {}
        self.pieces: dict[str, list[str]] = {}

    def goes_on_with(self, fragment: Mapping[str, Any]) -> bool:
        known, theirs = self.fields.get("id"), fragment.get("id")
        if known and theirs and known != theirs:
            return False
        return fragment.get("index") is not None or not self.fields.get("signature")
