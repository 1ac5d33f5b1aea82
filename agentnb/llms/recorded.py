"""Recorded models: a recording as a model, which answers each request as it was answered in the recording.

A request is identified by its messages, so that concurrent loops may send requests in another order and still each get
their own answers. The messages that were sent are computed from the recording, by the class of the loop's requests
(`Requests.recorded_messages`). If they cannot be computed, because the user's code made them, a request gets the next
unused answer, unless the model is `strict`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import ModelError, ScriptEnded, UsageError
from agentnb.core.events import ErrorInfo, Event, ModelEnd, ModelFailed, ModelStart, RunStart
from agentnb.core.evolve import walk
from agentnb.core.json import same_json
from agentnb.core.loop import Design, Requests
from agentnb.core.messages import parts_in_order, text_of, without_broken_off
from agentnb.core.state import State
from agentnb.llms.description import recorded_options
from agentnb.llms.protocol import Chunk

_SENT = frozenset({"user", "assistant", "tool"})
"""The roles that identify a request. Instructions do not, and messages of other roles are not sent."""


@dataclass(slots=True)
class RecordedExchange:
    """A recorded request and its outcome: an answer, or an error after a part of its text."""

    messages: Sequence[Mapping[str, Any]]
    asked: ModelStart
    answer: ModelEnd | None = None
    error: ErrorInfo | None = None
    partial: str = ""
    used: bool = False


Designs = Callable[[str], type[Design]]
"""A function that returns the class of a loop's design, by its name in recordings."""


def exchanges(events: Iterable[Event], designs: Designs) -> list[RecordedExchange]:
    """Return the requests of a recording that were answered or failed, in the order in which they were made."""
    made: list[RecordedExchange] = []
    begun: dict[str, RunStart] = {}
    waiting: dict[str, RecordedExchange] = {}
    for event, state in walk(events):
        if isinstance(event, RunStart):
            begun[event.path] = event
        elif isinstance(event, ModelStart):
            sent = _sent_at(state, designs(state.loop).requests_class, begun[event.path].config)
            waiting[event.path] = exchange = RecordedExchange(_identity(sent), event)
            made.append(exchange)
        elif isinstance(event, ModelEnd):
            waiting[event.path].answer = event
        elif isinstance(event, ModelFailed):
            waiting[event.path].error, waiting[event.path].partial = event.error, event.partial
    return [one for one in made if one.answer is not None or one.error is not None]


def _sent_at(state: State, requests: type[Requests], config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the messages of a request at this state, without the system prompt and the changes of `prepare`."""
    if (own := requests.recorded_messages(state, config)) is not None:
        return own
    instead = requests.replacements(state)
    return [instead.get(position, message) for position, message in without_broken_off(state.messages)]


def _identity(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages that identify a request."""
    return [message for message in messages if message["role"] in _SENT]


class RecordedModel:
    """Answers requests as the models of a recording did.

    events: the recording.
    speed: the speed as a multiple of the recorded one, None to answer immediately.
    strict: True to reject a request whose messages are not in the recording.
    designs: a function that returns the class of a loop's design, which computes the messages that the loop sent.

    The class is for tests. A request after the last recorded one raises ScriptEnded, which is an AssertionError. With
    `strict`, a request that is not in the recording raises AssertionError.
    """

    def __init__(
        self,
        events: Iterable[Event],
        *,
        speed: float | None = None,
        strict: bool = False,
        designs: Designs = lambda kind: Design,
    ) -> None:
        if speed is not None and (type(speed) not in (int, float) or not 0 < speed < math.inf):
            raise UsageError(
                f"speed= must be a positive multiple of the recorded speed, or None for no waits, not {speed!r}."
            )
        self.exchanges = exchanges(events, designs)
        self.speed = speed
        self.strict = strict

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Chunk]:
        """Yield the answer to these messages as it was streamed."""
        exchange = self._find(_identity(messages))
        exchange.used = True
        if exchange.answer is None:
            if exchange.partial:
                yield {"type": "text_delta", "content": exchange.partial}
            assert exchange.error is not None
            raise ModelError(f"{exchange.error.type}: {exchange.error.message}")
        passed = 0
        for milliseconds, chunk in _chunks(exchange.answer):
            if self.speed and milliseconds > passed:
                await asyncio.sleep((milliseconds - passed) / 1000 / self.speed)
                passed = milliseconds
            yield chunk

    def describe(self, **options: Any) -> dict[str, Any]:
        """Return the provider, model and options of the next recorded request."""
        asked = next((exchange.asked for exchange in self.exchanges if not exchange.used), None)
        if asked is None or not asked.provider:  # older recordings do not have this
            return {"provider": "recorded", "model": "", "options": recorded_options(options)}
        return {"provider": asked.provider, "model": asked.model, "options": asked.options}

    def assert_complete(self) -> None:
        """Raise AssertionError unless every recorded request was made again."""
        if unused := sum(not exchange.used for exchange in self.exchanges):
            raise AssertionError(f"{unused} of {len(self.exchanges)} recorded requests were not made.")

    def _find(self, messages: Sequence[Mapping[str, Any]]) -> RecordedExchange:
        left = [exchange for exchange in self.exchanges if not exchange.used]
        for exchange in left:
            if len(exchange.messages) == len(messages) and same_json(exchange.messages, list(messages)):
                return exchange
        if not left:
            raise ScriptEnded(
                f"The recording has {len(self.exchanges)} requests to models; this is one more. Record the run again if"
                " it should make this request."
            )
        if self.strict:
            raise AssertionError(_unknown(messages, left[0].messages))
        return left[0]


def _unknown(messages: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]) -> str:
    for number, (now, then) in enumerate(zip(messages, recorded, strict=False)):
        if now != then:
            return (
                f"This request is not in the recording. The next recorded one differs in message {number}:\n"
                f"  recorded: {dict(then)}\n  now:      {dict(now)}"
            )
    return (
        "This request is not in the recording. The next recorded one has"
        f" {len(recorded)} messages, this one has {len(messages)}."
    )


def _chunks(answer: ModelEnd) -> Iterator[tuple[int, Chunk]]:
    """Yield the chunks of an answer, each with its time in ms since the request."""
    message = answer.message
    text = text_of(message.content)
    in_order = parts_in_order(message)
    parts = in_order or [
        *({"type": "reasoning", "reasoning": block} for block in message.reasoning),
        {"type": "text", "text": text},
        *({"type": "call", "call": call} for call in message.tool_calls),
    ]
    # The number of characters that came at each time. The rest of the text came with the end of the answer.
    timing = deque((milliseconds, characters) for milliseconds, characters in answer.timing)
    passed = 0
    for part in parts:
        if part["type"] == "reasoning":
            block = {("content" if name == "text" else name): value for name, value in part["reasoning"].items()}
            yield passed, {"type": "reasoning_delta", **block}
        elif part["type"] == "call":
            call = part["call"]
            arguments = call.get("malformed", call["arguments"])
            item: Chunk = {name: part[name] for name in ("server", "item") if name in part}
            yield passed, {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": arguments, **item}
        elif part["type"] == "block":
            yield passed, part
        else:
            rest = part["text"]
            while rest:
                characters = len(rest)
                if timing:
                    passed, characters = timing.popleft()
                    if characters > len(rest):  # the remaining ones are of the next text
                        timing.appendleft((passed, characters - len(rest)))
                piece, rest = rest[:characters], rest[characters:]
                if piece:
                    yield passed, {"type": "text_delta", "content": piece}
            if in_order:
                yield passed, {**part, "type": "text_end"}
    if isinstance(message.details, Mapping):
        yield passed, {"type": "details", "details": message.details}
    response = {name: getattr(answer, name) for name in _RESPONSE if getattr(answer, name) is not None}
    if response:
        yield passed, {"type": "response", **response}
    if answer.usage:
        yield passed, {"type": "usage", **answer.usage}
    yield passed, {"type": "stop", "reason": answer.stop_reason, "finish_reason": answer.finish_reason}


_RESPONSE = ("model", "response_id", "fingerprint", "service_tier", "upstream", "finish_reason")
