"""OpenAI's answers: from the events of a chat completions stream to chunks.

Many servers speak this dialect, and few implement all of it. So the reader tolerates a lot: fields may be null or
missing, content may be a list of parts, usage may come with any chunk or never, an answer may come whole instead of in
pieces. It insists on two things, so that a truncated answer does not pass for a complete one: every event is a JSON
object, and the stream states its end, by a finish reason, by `[DONE]`, or by the usage after the last choice.

Some servers reject a tool's result unless they are sent again what came before the call: DeepSeek and Moonshot the
reasoning, Gemini a signature of the call, OpenRouter the reasoning details. DeepSeek requires it with every answer of a
conversation that has tools. So if tools are offered, the answer ends with a `reasoning_delta` that has these as
`provider`, with the name of the server, because other servers reject unknown fields. Gemini's signatures are kept with
every answer.

Gemini and Bedrock write a model's reasoning in front of the text, as `<thought>...</thought>` and
`<reasoning>...</reasoning>`, and a server on which no reasoning parser is configured leaves a model's
`<think>...</think>` there. It becomes reasoning (`TaggedReasoning`).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import ModelProtocolError, UsageError
from agentnb.core.json import parse_arguments
from agentnb.llms import errors
from agentnb.llms.reader import DONE, ObjectText, is_data, money, stop_reason, text_chunks, token_count, usage_chunk
from agentnb.llms.sse import WHOLE

if TYPE_CHECKING:
    from agentnb.llms.protocol import Chunk, JsonObject
    from agentnb.llms.sse import ServerSentEvent

_RESPONSE_FIELDS = {
    "model": "model",
    "response_id": "id",
    "fingerprint": "system_fingerprint",
    "service_tier": "service_tier",
    "upstream": "provider",  # OpenRouter
}
_REASONING_FIELDS = ("reasoning_content", "reasoning")  # DeepSeek, llama.cpp, vLLM; OpenRouter, newer vLLM
_EVENT_DETAILS = ("citations", "search_results")  # Perplexity; complete in every event
_DELTA_DETAILS = ("annotations", "executed_tools", "images")  # lists in pieces
USD_PER_TICK = 1e-10
_IN_TAGS = re.compile(r"openai\.gpt-oss")
"""The names of Bedrock's models whose reasoning may come as `<reasoning>` in the text."""
THINK = "think"
"""The name of the tag that models write themselves, and that a server without a reasoning parser passes on."""
_GEMINI = re.compile(r"(models/|google/)?gemini-")
"""The names of models whose hidden reasoning is only in the total of the usage."""


class ChatCompletionReader:
    """Reads one answer.

    server: the server's name, for errors.
    tools: the names of the tools that were offered.
    keep_logprobs: True if the answer's log probabilities were requested.
    tag: the name of the tag around reasoning in front of the text; None if the server writes none there.
    """

    def __init__(
        self, server: str, tools: Collection[str] = (), *, keep_logprobs: bool = False, tag: str | None = None
    ) -> None:
        self._server = server
        self._has_tools = bool(tools)
        self._keep_logprobs = keep_logprobs
        # What the closing chunks are made of.
        self._response: dict[str, str] = {}
        self._details: dict[str, Any] = {}
        self._usage: Chunk | None = None
        self._reason: str | None = None
        self._has_text = False
        self._refused = False
        # What the server wants to be sent again.
        self._reasoning_field: str | None = None
        self._reasoning_details = ReasoningDetails()
        self._message_extra: object = None
        self._tagged = TaggedReasoning(tag)
        # The position in the stream.
        self._calls = ToolCallPieces(tools)
        self._choice: object = None  # the index of the choice that is read
        self._last_unknown: Mapping[str, Any] | None = None  # an event without choices and usage
        self._came_in_deltas = False
        self._begun = False
        self._is_whole = False
        self._done = False
        self._has_final_usage = False

    def read(self, event: ServerSentEvent) -> list[Chunk]:
        """Return the chunks of one event. Raises a ModelError if the event reports an error or is not valid."""
        if event.data.strip() == DONE:
            self._done = True
            return []
        payload = errors.read_event(event.data, event.event, self._server)
        choices, usage = payload.get("choices"), payload.get("usage")

        # Keep the data about the whole answer: the first model and id, and the last value of each other field.
        for ours, theirs in _RESPONSE_FIELDS.items():
            value = payload.get(theirs)
            is_fixed = ours in ("model", "response_id") and ours in self._response
            if isinstance(value, str) and value and not is_fixed:
                self._response[ours] = value
        for name in _EVENT_DETAILS:
            if isinstance(payload.get(name), list) and payload[name]:
                self._details[name] = payload[name]
        if isinstance(groq := payload.get("x_groq"), Mapping):  # Groq has here what others have in the event itself
            if groq.get("error"):
                raise errors.from_payload(groq, self._server)
            usage = usage or groq.get("usage")
        if isinstance(usage, Mapping):
            self._usage = self._counted(usage)
        if _IN_TAGS.match(self._response.get("model", "")):
            self._tagged.tag = "reasoning"

        if not isinstance(choices, list):
            if not isinstance(usage, Mapping):
                self._last_unknown = payload
            return []
        self._begun = self._begun or bool(choices)
        self._has_final_usage = self._begun and isinstance(usage, Mapping) and not choices
        self._is_whole = event.event == WHOLE
        self._done = self._done or self._is_whole
        return [chunk for choice in choices if isinstance(choice, Mapping) for chunk in self._read_choice(choice)]

    def is_done(self) -> bool:
        """Return True if `[DONE]` was read. After a finish reason alone, the usage may still come."""
        return self._done

    @property
    def usage(self) -> Chunk | None:
        """The chunk with the usage that the server has reported so far, None if it has reported none."""
        return self._usage

    def finish(self) -> list[Chunk]:
        """Return the closing chunks, `stop` last. Raises a ModelError if the answer is not complete."""
        if self._reason is None and self._last_unknown is not None:
            raise errors.from_payload(self._last_unknown, self._server)
        if self._reason is None and not self._done and not self._has_final_usage:
            raise ModelProtocolError(
                f"the stream of {self._server} ended without a finish reason and without {DONE}, so the answer may be"
                " incomplete; ask again"
            )
        if not self._begun:
            raise ModelProtocolError(
                f"the stream of {self._server} ended before its answer began; ask again, or check base_url"
            )
        reason = stop_reason(self._reason, calls=bool(self._calls), text=self._has_text, server=self._server)
        if reason == "stop" and self._refused:
            reason = "refusal"
        closing = [*self._tagged.finish(), *self._calls.close(complete=reason == "tool_calls")]

        # What the server wants to be sent again with this answer.
        again: JsonObject = {}
        if self._reasoning_details:
            again["reasoning_details"] = self._reasoning_details.blocks()
        elif self._reasoning_field is not None:
            again["field"] = self._reasoning_field
        elif self._tagged.has_ended and self._tagged.tag == "reasoning":  # Gemini has no use for its own
            again["tag"] = self._tagged.tag
        if self._message_extra is not None:
            again["message_extra_content"] = self._message_extra
        if extras := self._calls.extras:
            again["extra_content"] = {str(index): extra for index, extra in extras.items()}
        if again and (self._calls or self._has_tools or self._message_extra is not None):
            provider = {"server": self._server} | again
            closing.append({"type": "reasoning_delta", "content": "", "provider": provider})

        if self._details:
            closing.append({"type": "details", "details": self._details})
        if self._reason is not None and self._reason != reason:  # otherwise the chunk `stop` has it
            self._response["finish_reason"] = self._reason
        if self._response:
            closing.append({"type": "response", **self._response})
        if self._usage is not None:
            closing.append(self._usage)
        return [*closing, {"type": "stop", "reason": reason}]

    def _counted(self, usage: Mapping[str, Any]) -> Chunk:
        """Return the usage. Gemini counts its hidden reasoning, which is paid for as output, in the total only."""
        counted = openai_usage(usage)
        total = token_count(usage.get("total_tokens"))
        if total is None or not _GEMINI.match(self._response.get("model", "")):
            return counted
        hidden = total - counted["input_tokens"] - counted["output_tokens"]
        if hidden <= 0:
            return counted
        known = counted.get("reasoning_tokens") or hidden
        return {**counted, "output_tokens": counted["output_tokens"] + hidden, "reasoning_tokens": known}

    def _read_choice(self, choice: Mapping[str, Any]) -> list[Chunk]:
        # Only the first choice is read if there are several (n > 1).
        index = choice.get("index")
        if index is not None and self._choice is None:
            self._choice = index
        if index is not None and index != self._choice:
            return []

        if choice.get("error"):
            raise errors.from_payload(choice, self._server)
        if choice.get("finish_reason"):
            self._reason = str(choice["finish_reason"])
        if isinstance(usage := choice.get("usage"), Mapping):  # Moonshot
            self._usage = self._counted(usage)
        if self._keep_logprobs and isinstance(logprobs := choice.get("logprobs"), Mapping):
            known = self._details.setdefault("logprobs", {})
            for name, piece in logprobs.items():
                if isinstance(piece, list):
                    known.setdefault(name, []).extend(piece)

        message = choice.get("message")
        if self._is_whole and isinstance(message, Mapping):  # Perplexity adds an empty delta
            return self._read_delta(message)
        if isinstance(delta := choice.get("delta"), Mapping):
            chunks = self._read_delta(delta)
            self._came_in_deltas = self._has_text or bool(self._calls)
            return chunks
        if self._came_in_deltas:  # some servers end with a copy of the whole answer
            return []
        return self._read_delta(message if isinstance(message, Mapping) else {"content": choice.get("text")})

    def _read_delta(self, delta: Mapping[str, Any]) -> list[Chunk]:
        chunks: list[Chunk] = []

        # Reasoning. DeepSeek wants to be sent an empty one too.
        for name in _REASONING_FIELDS:
            thoughts = text_chunks(delta.get(name), "reasoning_delta")
            if thoughts or (delta.get(name) == "" and self._reasoning_field is None):
                self._reasoning_field = name
            if thoughts:
                chunks += thoughts
                self._tagged.leave_to_server()
                break
        self._reasoning_details.read(delta.get("reasoning_details"))

        # Details that have no chunks of their own.
        for name in _DELTA_DETAILS:
            if isinstance(pieces := delta.get(name), list) and pieces:
                self._details[name] = [*self._details.get(name, ()), *pieces]
        routing = delta.get("provider_metadata")  # Vercel's gateway names the final provider here
        for name in ("gateway", "routing", "finalProvider"):
            routing = routing.get(name) if isinstance(routing, Mapping) else None
        if isinstance(routing, str):
            self._response["upstream"] = routing
        if isinstance(extra := delta.get("extra_content"), Mapping):
            if (google := extra.get("google")) and isinstance(google, Mapping) and google.get("thought") is True:
                self._tagged.tag = "thought"
            if extra and extra != {"google": {"thought": True}}:  # this alone only marks a piece of a thought
                self._message_extra = extra

        # Text, and the text of a refusal.
        content = delta.get("content")
        texts = text_chunks(json.dumps(content, ensure_ascii=False) if is_data(content) else content)
        for chunk in texts:
            chunks += self._tagged.read(chunk["content"]) if chunk["type"] == "text_delta" else [chunk]
        refusal = text_chunks(delta.get("refusal"))
        self._refused = self._refused or bool(refusal)
        chunks += refusal
        self._has_text = self._has_text or any(chunk["type"] == "text_delta" for chunk in chunks)

        # Tool calls: one, or a list. Some proxies still send `function_call`, which is older than tool calls.
        given = delta.get("tool_calls")
        fragments = [given] if isinstance(given, Mapping) else given
        if not (isinstance(fragments, list) and fragments):
            legacy = delta.get("function_call")
            fragments = [{"function": legacy}] if isinstance(legacy, Mapping) else []
        for position, fragment in enumerate(one for one in fragments if isinstance(one, Mapping)):
            if fragment.get("type") == "custom":
                called = _mapping(fragment.get("custom")).get("name")
                raise UsageError(
                    f"The model has made a call of the custom tool {called}, which chat completions have no results for"
                    ' that agentnb knows. OpenAI(..., api="responses") has custom tools.'
                )
            chunks += self._calls.read(fragment, position)
        return chunks


class TaggedReasoning:
    """Separates the reasoning that a server writes in front of the text, in tags, from the text.

    A tag in the middle of the text stays text, because a model may write about tags.
    """

    def __init__(self, tag: str | None = None) -> None:
        self.tag = tag
        """The name of the tag; None for a server that writes no reasoning into the text."""
        self.has_ended = False
        """True if reasoning came, up to its closing tag."""
        self._held = ""  # text that may be the beginning of a tag
        self._is_open = self._has_text = False

    def read(self, text: str) -> list[Chunk]:
        """Return the chunks of a piece of the text."""
        if self.tag is None or self._has_text:
            self._has_text = self._has_text or bool(text.strip())
            return [{"type": "text_delta", "content": text}] if text else []
        text, self._held = self._held + text, ""
        chunks: list[Chunk] = []
        while text:
            if self._is_open:
                thought, closing, text = text.partition(f"</{self.tag}>")
                if not closing:  # keep back what may be the beginning of the closing tag
                    ends = (n for n in range(len(self.tag) + 2, 0, -1) if thought.endswith(f"</{self.tag}>"[:n]))
                    at = len(thought) - next(ends, 0)
                    thought, self._held = thought[:at], thought[at:]
                chunks += [{"type": "reasoning_delta", "content": thought}] if thought else []
                self._is_open, self.has_ended = not closing, self.has_ended or bool(closing)
            elif text.lstrip().startswith(f"<{self.tag}>"):
                self._is_open, text = True, text.partition(">")[2]
            elif f"<{self.tag}>".startswith(text.lstrip()):
                self._held, text = text, ""
            else:
                self._has_text = True
                if self.tag == THINK and self.has_ended:
                    text = text.lstrip()  # models write empty lines between the tag and the text
                return [*chunks, {"type": "text_delta", "content": text}]
        return chunks

    def leave_to_server(self) -> None:
        """Do not look for `<think>`: the server separates the reasoning from the text itself."""
        if self.tag == THINK and not self._held and not self._is_open:
            self.tag = None

    def finish(self) -> list[Chunk]:
        """Return the chunk of what was kept back."""
        held, self._held = self._held, ""
        if self.tag == THINK and self.has_ended and not self._is_open:
            held = held.strip()
        return [{"type": "reasoning_delta" if self._is_open else "text_delta", "content": held}] if held else []


def openai_usage(usage: Mapping[str, Any]) -> Chunk:
    """Return the chunk of the usage that a server reports, in chat completions or in responses."""

    def first(*paths: str) -> int | None:
        """Return the first count at these paths, each a field of the usage or of a group in it (`group.field`)."""
        for path in paths:
            group, _, name = path.rpartition(".")
            fields = usage.get(group) if group else usage
            if isinstance(fields, Mapping) and (number := token_count(fields.get(name))) is not None:
                return number
        return None

    # The cost in US dollars: OpenRouter and Perplexity, or in ticks: xAI.
    cost = usage.get("cost")
    if isinstance(cost, Mapping):
        cost = cost.get("total_cost")
    if cost is None and (ticks := money(usage.get("cost_in_usd_ticks"))) is not None:
        cost = ticks * USD_PER_TICK
    elif cost is None:
        cost = usage.get("total_cost")

    return usage_chunk(
        cost=money(cost),
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


# Tool calls.
#
# OpenAI itself opens a call with its index, id and name, and continues with the index alone. Other servers leave out
# the index or the id, give all calls the same one, or give each fragment another id. Some repeat the name, some send it
# in pieces, some send it after the arguments, and some open the arguments with `{}`. So a fragment continues the call
# at its position (its index, else the call of its id, else its position in the event), unless the fragment shows
# that it belongs to another call: by a name and another id, by arguments after a complete object, or by the name of
# another tool. Some gateways send a complete call once more at its end. This copy is skipped, or a tool would run
# twice.

NO_ARGUMENTS = "{}"
"""The arguments with which some servers open every call, even if other arguments follow."""


@dataclass(slots=True)
class _Call:
    index: int
    ids: dict[str, None] = field(default_factory=dict)  # in order; the first is the call's id
    name: str = ""
    sent_name: str = ""  # the name in the last chunk that had one
    arguments: ObjectText = field(default_factory=ObjectText)
    waiting: list[str] = field(default_factory=list)  # arguments that came before the name
    has_sent_id: bool = False
    has_empty_opening: bool = False  # `{}` came: either all arguments, or the opening of others
    next_name: str = ""  # a name that came alone after a complete object: perhaps of the next call
    extra: object = None

    def is_real(self) -> bool:
        """Return False for a call without a name and arguments, which some servers send if they make no call."""
        return bool(self.name or "".join(self.waiting).strip())


class ToolCallPieces:
    """Puts the fragments of tool calls together, and gives each call of an answer its own index.

    tools: the names of the tools that were offered.
    """

    def __init__(self, tools: Iterable[str] = ()) -> None:
        self._tools = frozenset(tools)
        self._calls: list[_Call] = []
        self._at: dict[object, _Call] = {}  # by the server's index, or by the position in an event

    def __bool__(self) -> bool:
        return any(call.is_real() for call in self._calls)

    @property
    def extras(self) -> dict[int, object]:
        """The data that the provider must be sent again with a call (Gemini's signature), by the number of the call."""
        real = [call for call in self._calls if call.is_real()]
        return {number: call.extra for number, call in enumerate(real) if call.extra is not None}

    def read(self, fragment: Mapping[str, Any], position: int = 0) -> list[Chunk]:
        """Return the chunks of a fragment, which is at `position` in its event."""
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else fragment
        index, call_id, name = fragment.get("index"), _string(fragment.get("id")), _string(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping | list):  # some servers send the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        text = arguments if isinstance(arguments, str) else ""
        if self._is_copy(index, call_id, name, text):
            return []

        # Find the call that the fragment continues: by its id, by its index or position, or the last call.
        at = index if isinstance(index, int | str) else ("position", position)
        call = self._at.get(at)
        if call_id and (index is None or (call is None and not name)):
            call = self._of_id(call_id) or call
        if call is None and not call_id and not name and self._calls:
            last = self._calls[-1]
            if index is None or not last.arguments.has_closed():  # some servers increase the index within a call
                call = last

        # Otherwise start a new call. The call before it is then complete.
        chunks: list[Chunk] = []
        if call is None or self._starts_another(call, call_id, name, text):
            if self._calls and (last := self._calls[-1]).has_empty_opening and last.is_real():
                last.arguments.add(NO_ARGUMENTS)
                last.has_empty_opening = False
                chunks.append({"type": "tool_call_delta", "index": last.index, "arguments": NO_ARGUMENTS})
            call = self._at[at] = _Call(len(self._calls), name="" if call is None else call.next_name)
            self._calls.append(call)

        # Add the fragment to the call. A name that is not a tool's is a piece of a name.
        if fragment.get("extra_content"):
            call.extra = fragment["extra_content"]
        if call_id:
            call.ids[call_id] = None
        if name and name != call.name:
            call.name = name if name in self._tools else call.name + name
        if not call.arguments.begun and text.strip() == NO_ARGUMENTS:
            call.has_empty_opening, text = True, ""
        elif text.strip():
            call.has_empty_opening = False
        call.arguments.add(text)

        # A chunk needs the name, because the reader of the chunks may start the call as soon as it is complete.
        chunk: Chunk = {"type": "tool_call_delta", "index": call.index}
        if call.ids and call.name and not call.has_sent_id:
            call.has_sent_id, chunk["id"] = True, next(iter(call.ids))
        if call.name != call.sent_name:
            call.sent_name = chunk["name"] = call.name
        if not call.name:
            call.waiting.append(text)
            return chunks
        if call.waiting:
            text = "".join(call.waiting) + text
            call.waiting.clear()
        return [*chunks, chunk | {"arguments": text}]

    def close(self, *, complete: bool) -> list[Chunk]:
        """Return what servers leave out: an id, and `{}` for a call that is complete and has no arguments."""
        closing: list[Chunk] = []
        for call in self._calls:
            if not call.is_real():
                continue
            text = "".join(call.waiting)
            if complete and (call.has_empty_opening or not call.arguments.begun):
                text = text or NO_ARGUMENTS
            if text or not call.has_sent_id:
                rest: Chunk = {"type": "tool_call_delta", "index": call.index}
                if not call.has_sent_id:
                    rest["id"] = next(iter(call.ids), f"call_{uuid.uuid4().hex}")
                closing.append(rest | {"arguments": text})
        return closing

    def _of_id(self, call_id: str) -> _Call | None:
        return next((call for call in reversed(self._calls) if call_id in call.ids), None)

    def _is_copy(self, index: object, call_id: str, name: str, text: str) -> bool:
        """Return True if a fragment repeats a complete call."""
        if text.lstrip()[:1] not in ("{", '"'):  # neither an object nor the string of one
            return False
        here = self._at.get(index) if isinstance(index, int | str) and not name else None
        call = self._of_id(call_id) if call_id else here
        if call is None or name not in ("", call.name):
            return False
        if call.next_name and not name:  # these are the arguments of the next call
            return False
        if call.has_empty_opening:
            return text.strip() == NO_ARGUMENTS
        if not call.arguments.has_closed():
            return False
        arguments, malformed = parse_arguments(text)
        return malformed is None and (arguments, None) == parse_arguments(call.arguments.text())

    def _starts_another(self, call: _Call, call_id: str, name: str, text: str) -> bool:
        """Return True if a fragment at the position of `call` starts another call."""
        # A name with another id, or the name of another tool.
        has_other_id = bool(call_id and call.ids and call_id not in call.ids)
        if name and has_other_id:
            return True
        if name and call.name and name != call.name:
            if call.arguments.begun or call.has_empty_opening:
                return True
            continues_name = call.name + name in self._tools or name.startswith(call.name)
            if call.name in self._tools and not continues_name:
                return True
        # Another `{}` with a name. Anything else continues a call that was opened with `{}`.
        if call.has_empty_opening:
            return bool(name) and text.strip() == NO_ARGUMENTS
        # An object after a complete object. A name alone is a copy, or it is that of a next call of the same tool.
        if not (name or has_other_id or call.next_name) or not call.arguments.has_closed():
            return False
        if name and not text.strip():
            call.next_name = name
        return text.lstrip().startswith("{")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


# Reasoning details.

_IN_PIECES = ("text", "summary", "data")


@dataclass(slots=True)
class _DetailsBlock:
    fields: JsonObject = field(default_factory=dict)
    pieces: dict[str, list[str]] = field(default_factory=dict)


class ReasoningDetails:
    """Puts OpenRouter's reasoning details together: it streams blocks in pieces, and wants to be sent whole ones.

    A block is identified by its type and its index. Its text comes in pieces, and its signature at the end. An
    encrypted block has its own id. If there is no index, the signature ends a block.
    """

    def __init__(self) -> None:
        self._blocks: list[_DetailsBlock] = []
        self._at: dict[tuple[str, str], _DetailsBlock] = {}

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def read(self, details: object) -> None:
        """Add the details of one delta."""
        for fragment in details if isinstance(details, list) else ():
            if not isinstance(fragment, Mapping):
                continue
            at = (str(fragment.get("type")), str(fragment.get("index")))
            block = self._at.get(at)
            if block is not None:
                known_id, its_id = block.fields.get("id"), fragment.get("id")
                has_other_id = known_id and its_id and known_id != its_id
                if has_other_id or (fragment.get("index") is None and block.fields.get("signature")):
                    block = None
            if block is None:
                block = self._at[at] = _DetailsBlock()
                self._blocks.append(block)
            for name, value in fragment.items():
                if name in _IN_PIECES and isinstance(value, str):
                    block.pieces.setdefault(name, []).append(value)
                elif value is not None or name not in block.fields:
                    block.fields[name] = value

    def blocks(self) -> list[JsonObject]:
        """Return the blocks."""
        return [block.fields | {name: "".join(texts) for name, texts in block.pieces.items()} for block in self._blocks]
