"""Spans: the events of a run as spans of OpenTelemetry, with the attributes of its conventions for generative AI.

A loop, a request to a model and a call are a span each. A question to a person, a decision and a pause are events of
the span that they hold up. A span has only the messages that no earlier request of its loop has sent, so the size of a
trace does not grow with the square of the run; `agentnb.messages_before` counts the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from pydantic_core import to_json

from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallProposed,
    CallStart,
    Event,
    MessageAdded,
    ModelEnd,
    ModelFailed,
    ModelStart,
    RunEnd,
    RunPaused,
    RunResumed,
    RunStart,
    StateUpdate,
)
from agentnb.core.messages import Message, ToolCall
from agentnb.exporters.turns import loop_about, prompt_of

Attributes = dict[str, str | int | float | bool | list[str]]

USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "cost": "operation.cost",
}
_OPTIONS = frozenset({"temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty"})
_FAILED = frozenset({"error", "cancelled"})
"""The reasons for the end of a loop that are errors of its span."""


@dataclass(slots=True)
class Moment:
    """An event of a span."""

    name: str
    time: float
    attributes: Attributes


@dataclass(slots=True)
class Span:
    """A span. Times are in seconds since the epoch; `untimed`: one of them is that of the event before."""

    id: str
    parent: str
    name: str
    kind: Literal["internal", "client"]
    start: float
    attributes: Attributes
    end: float = 0.0
    error: str = ""
    moments: list[Moment] = field(default_factory=list)
    untimed: bool = False


class Spans:
    """The spans of a run, event by event. content: False leaves out what people, models and tools said."""

    def __init__(self, *, content: bool = True) -> None:
        self.content = content
        self.run_id = ""
        self._loops: dict[str, Span] = {}
        self._requests: dict[str, Span] = {}
        self._calls: dict[tuple[str, str], Span] = {}
        self._made: dict[tuple[str, str], tuple[ToolCall, bool]] = {}
        self._new: dict[str, list[Message]] = {}  # the messages that the next request of a loop sends first
        self._results: dict[str, list[tuple[ToolCall, CallEnd]]] = {}
        self._sent: dict[str, int] = {}
        self._starts: dict[str, RunStart] = {}

    @property
    def trace(self) -> str:
        """The id of the trace."""
        return sha256(self.run_id.encode()).hexdigest()[:32]

    def add(self, event: Event) -> Iterator[tuple[Literal["open", "close"], Span]]:
        """Yield the spans that the event opens and closes."""
        path = event.path
        if isinstance(event, RunStart):
            yield "open", self._begin(event)
        elif isinstance(event, MessageAdded):
            self._new[path].append(event.message)
        elif isinstance(event, ModelStart):
            if (unanswered := self._requests.pop(path, None)) is not None:  # the model has paused its answer
                yield "close", self._ended(unanswered, event)
            self._requests[path] = asked = self._asked(event)
            yield "open", asked
        elif isinstance(event, (ModelEnd, ModelFailed)):
            if isinstance(event, ModelEnd):
                for call in event.message.tool_calls:
                    self._made.setdefault((path, call.id), (call, False))
                self._sent[path] += 1
            if (span := self._requests.pop(path, None)) is not None:
                yield "close", self._answered(span, event)
        elif isinstance(event, CallProposed):
            self._made[path, event.call.id] = event.call, event.hidden
        elif isinstance(event, (ApprovalRequest, ApprovalDecision, CallStart, CallEnd)):
            yield from self._call(event)
        elif isinstance(event, StateUpdate):
            values: Attributes = {"agentnb.values": _json(event.values)} if self.content else {}
            self._moment(self._loops[path], event, "agentnb.values", values)
        elif isinstance(event, (RunPaused, RunResumed)):
            reason = event.reason if isinstance(event, RunPaused) and self.content else ""
            self._moment(self._loops[path], event, f"agentnb.{event.type}", {"agentnb.reason": reason})
        elif isinstance(event, RunEnd):
            yield from self._end(event)

    def rest(self) -> Iterator[Span]:
        """Yield the spans that are open, the innermost first, and forget them."""
        for open in (self._requests, self._calls, self._loops):
            yield from reversed(open.values())
            open.clear()

    @property
    def unsent(self) -> int:
        """The number of messages that no request has sent yet."""
        return sum(map(len, self._new.values()))

    # -- loops -----------------------------------------------------------------------------------------------------

    def _begin(self, event: RunStart) -> Span:
        path = event.path
        self.run_id = self.run_id or event.run_id
        self._new[path], self._results[path], self._sent[path] = list(event.history), [], 0
        self._starts[path] = event
        above = path.rpartition("/")[0]
        caller = self._calls.get((above, event.call)) if path else None
        parent = caller or (self._loops.get(above) if path else None)
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": event.name,
            "gen_ai.conversation.id": self.run_id,
            "agentnb.loop": event.loop,
            "agentnb.path": path,
        }
        if tools := loop_about(event).get("tools"):
            attributes["gen_ai.tool.definitions"] = _json(tools)
        span = self._loops[path] = self._span(event, parent, f"invoke_agent {event.name}", "internal", attributes)
        return span

    def _end(self, event: RunEnd) -> Iterator[tuple[Literal["open", "close"], Span]]:
        """Close the spans of a loop, and those inside it that are open."""
        path = event.path
        inside = f"{path}/" if path else ""
        for key in [key for key in self._calls if key[0] == path or key[0].startswith(inside)]:
            yield "close", self._ended(self._calls.pop(key), event)
        for at in [at for at in self._requests if at == path or at.startswith(inside)]:
            yield "close", self._ended(self._requests.pop(at), event)
        span = self._loops.pop(path)
        span.attributes["agentnb.stop_reason"] = event.reason
        if event.output is not None and self.content:
            span.attributes["final_result"] = _text(event.output)
        if event.reason in _FAILED or event.error is not None:
            span.attributes["error.type"] = event.error.type if event.error is not None else event.reason
            span.error = event.error.message if event.error is not None and self.content else event.reason
        yield "close", self._ended(span, event)

    # -- requests --------------------------------------------------------------------------------------------------

    def _asked(self, event: ModelStart) -> Span:
        path = event.path
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": self._starts[path].name,
            "gen_ai.conversation.id": self.run_id,
            "agentnb.turn": event.turn,
        }
        if event.model:
            attributes["gen_ai.request.model"] = event.model
        if event.provider:
            attributes["gen_ai.provider.name"] = event.provider
        if event.attempt > 1:
            attributes["agentnb.attempt"] = event.attempt
        for name in _OPTIONS & event.options.keys():
            if isinstance(value := event.options[name], (int, float)):
                attributes[f"gen_ai.request.{name}"] = value
        # The messages that are new: the results of calls, in their order, then what was said since.
        results, new = self._results[path], self._new[path]
        if self._sent[path] or results:
            attributes["agentnb.messages_before"] = self._sent[path]
        if self.content:
            if prompt := prompt_of(self._starts[path]):
                attributes["gen_ai.system_instructions"] = _json([{"type": "text", "content": prompt}])
            answered = [_parts("tool", _result(call, end)) for call, end in results]
            attributes["gen_ai.input.messages"] = _json([*answered, *map(_sent, new)])
        self._sent[path] += len(results) + len(new)
        self._results[path], self._new[path] = [], []
        name = f"chat {event.model}" if event.model else "chat"
        return self._span(event, self._loops[path], name, "client", attributes)

    def _answered(self, span: Span, event: ModelEnd | ModelFailed) -> Span:
        if isinstance(event, ModelFailed):
            span.attributes["error.type"] = event.error.type
            span.error = (event.error.message if self.content else "") or event.error.type
            span.attributes |= {key: event.usage[name] for name, key in USAGE.items() if name in event.usage}
            return self._ended(span, event)
        reason = event.finish_reason or event.stop_reason
        found: Mapping[str, Any] = {
            "gen_ai.response.model": event.model,
            "gen_ai.response.id": event.response_id,
            "gen_ai.response.finish_reasons": [reason] if reason else None,
            **{key: event.usage.get(name) for name, key in USAGE.items()},
        }
        span.attributes.update({key: value for key, value in found.items() if value is not None})
        if self.content:
            finish = {"finish_reason": reason} if reason else {}
            span.attributes["gen_ai.output.messages"] = _json([{**_sent(event.message), **finish}])
        return self._ended(span, event)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _call(
        self, event: ApprovalRequest | ApprovalDecision | CallStart | CallEnd
    ) -> Iterator[tuple[Literal["open", "close"], Span]]:
        key = event.path, event.call_id
        if key not in self._made:
            return  # a change of a remembered decision
        span = self._calls.get(key)
        call, hidden = self._made[key]
        if span is None:
            attributes: Attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.type": "function",
            }
            if hidden:
                attributes["agentnb.hidden"] = True
            if self.content:
                attributes["gen_ai.tool.call.arguments"] = _json(call.arguments)
            parent = self._loops[event.path]
            span = self._calls[key] = self._span(event, parent, f"execute_tool {call.name}", "internal", attributes)
            yield "open", span
        if isinstance(event, ApprovalRequest):
            reason = event.reason if self.content else ""
            self._moment(span, event, "agentnb.approval_request", {"agentnb.reason": reason})
        elif isinstance(event, ApprovalDecision):
            decided: Attributes = {"agentnb.decision": event.decision, "agentnb.by": event.by}
            given = {"agentnb.reviewer": event.reviewer}
            if self.content:
                given |= {"agentnb.reason": event.reason, "agentnb.note": event.note}
            decided |= {name: value for name, value in given.items() if value}
            if event.seconds is not None:
                decided["agentnb.seconds"] = event.seconds
            self._moment(span, event, "agentnb.approval_decision", decided)
        elif isinstance(event, CallStart):
            self._moment(span, event, "agentnb.call_start", {"agentnb.attempt": event.attempt})
            if event.arguments != call.arguments and self.content:
                span.attributes["gen_ai.tool.call.arguments"] = _json(event.arguments)
        else:
            del self._calls[key], self._made[key]
            if not hidden:
                self._results[event.path].append((call, event))
            span.attributes["agentnb.outcome"] = event.outcome
            if self.content:
                span.attributes["gen_ai.tool.call.result"] = _text(event.result)
            if event.is_error:
                span.attributes["error.type"] = event.error.type if event.error is not None else event.outcome
                span.error = event.error.message if event.error is not None and self.content else event.outcome
            yield "close", self._ended(span, event)

    # -- spans -----------------------------------------------------------------------------------------------------

    def _span(
        self,
        event: Event,
        parent: Span | None,
        name: str,
        kind: Literal["internal", "client"],
        attributes: Attributes,
    ) -> Span:
        id = sha256(f"{self.run_id}/{event.seq}".encode()).hexdigest()[:16]
        inside = parent.id if parent is not None else ""
        return Span(id, inside, name, kind, event.time, attributes, untimed=event.untimed)

    @staticmethod
    def _ended(span: Span, event: Event) -> Span:
        span.end, span.untimed = event.time, span.untimed or event.untimed
        return span

    @staticmethod
    def _moment(span: Span, event: Event, name: str, attributes: Attributes) -> None:
        kept = {key: value for key, value in attributes.items() if value != ""}
        span.moments.append(Moment(name, event.time, kept))


def _json(value: Any) -> str:
    return to_json(value).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _parts(role: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _result(call: ToolCall, end: CallEnd) -> dict[str, Any]:
    return {"type": "tool_call_response", "id": call.id, "response": end.result}


def _sent(message: Message) -> dict[str, Any]:
    """Return a message in the format of the conventions."""
    if message.role == "tool":
        return _parts("tool", {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
    content: Sequence[Mapping[str, Any]] = (
        [{"type": "text", "content": message.content}] if isinstance(message.content, str) else message.content
    )
    parts: list[Mapping[str, Any]] = [
        {"type": "reasoning", "content": str(block.get("text") or "")} for block in message.reasoning
    ]
    for block in content:
        text = block.get("text") if block.get("type") == "text" else None
        part = {"type": "text", "content": text} if isinstance(text, str) else block
        if part.get("content") != "" or message.role != "assistant":
            parts.append(part)
    parts += (
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    )
    return _parts(message.role, *parts)
