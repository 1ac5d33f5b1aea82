"""AG-UI 1.0: the events of a run as events of the protocol between agents and user interfaces, as JSON lines.

A nested loop is a sub-agent of the protocol. Questions, decisions, failed requests and values of the loop are events of
the type CUSTOM. What the protocol has no field for is in `metadata`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from agentnb.core.calls import render
from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallProposed,
    CallStart,
    Delta,
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
from agentnb.core.messages import Message, ToolCall, text_of
from agentnb.exporters.turns import count_parts, count_undelivered, known_time

name = "AG-UI"
VERSION = "1.0"

Json = dict[str, Any]
_USAGE = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "reasoning_tokens": "reasoningTokens",
    "cache_read_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
}


def written(events: Sequence[Event], lost: Counter[str]) -> bytes:
    """Return the events of the protocol, one a line."""
    stream = Stream()
    made = [one for event in events for one in stream.add(event)] + list(stream.rest())
    count_undelivered(events, lost)
    for event in events:
        if isinstance(event, ModelEnd):
            count_parts(event.message, lost)
        elif isinstance(event, MessageAdded):
            lost["details of messages"] += event.message.details is not None
            lost["blocks that are not text"] += not isinstance(event.message.content, str) and any(
                block.get("type") != "text" for block in event.message.content
            )
        elif isinstance(event, CallStart):
            lost["times of calls"] += bool(known_time(event))
        elif isinstance(event, ModelStart):
            lost["times of requests"] += bool(known_time(event))
            lost["names of providers"] += bool(event.provider)
            lost["options of requests"] += bool(event.options)
    return b"".join(to_json(one) + b"\n" for one in made)


class Stream:
    """The events of the protocol for the events of a run, one by one, and for what is streamed between them."""

    def __init__(self) -> None:
        self._run = ""
        self._names: dict[str, str] = {}  # of the running sub-agents, by path
        self._open: dict[str, tuple[str, str]] = {}  # by path: what is streamed (text or reasoning), and its id
        self._streamed: dict[str, set[str]] = {}  # by path: the kinds that were streamed of the current answer
        self._shown: set[tuple[str, str]] = set()  # calls that were shown before their answer was complete
        self._waiting: dict[tuple[str, str], ApprovalRequest] = {}
        self._usage: Counter[str] = Counter()
        self._failure: ModelFailed | None = None
        self._has_ended = False
        self._messages = 0

    def add(self, event: Event | Delta) -> Iterator[Json]:
        """Yield the events of the protocol for an event, or for a piece of an answer."""
        if isinstance(event, Delta):
            yield from self._delta(event)
            return
        path = event.path
        if isinstance(event, RunStart):
            yield from self._start(event)
        elif isinstance(event, MessageAdded):
            yield from self._message(event.message, event)
        elif isinstance(event, ModelEnd):
            yield from self._answer(event)
        elif isinstance(event, ModelFailed):
            yield from self._close(path, event)
            self._streamed.pop(path, None)
            self._failure = event
            error = {"type": event.error.type, "message": event.error.message}
            yield self._event("CUSTOM", event, name="agentnb.model_error", value=error)
        elif isinstance(event, CallProposed):
            self._shown.add((path, event.call.id))
            yield from self._call(event.call, event, None)
        elif isinstance(event, CallEnd):
            self._waiting.pop((path, event.call_id), None)
            content = render(event.result)
            text = content if isinstance(content, str) else to_json(content).decode()
            metadata: Json = {"isError": True, "outcome": event.outcome} if event.is_error else {}
            yield self._event(
                "TOOL_CALL_RESULT",
                event,
                messageId=self._id(),
                toolCallId=event.call_id,
                content=text,
                role="tool",
                **({"metadata": metadata} if metadata else {}),
            )
        elif isinstance(event, ApprovalRequest):
            self._waiting[path, event.call_id] = event
            question = {"toolCallId": event.call_id, "name": event.name, "arguments": event.arguments}
            question["reason"] = event.reason
            if event.note:
                question["note"] = event.note
            yield self._event("CUSTOM", event, name="agentnb.approval_request", value=question)
        elif isinstance(event, ApprovalDecision):
            self._waiting.pop((path, event.call_id), None)
            fields = {name: getattr(event, name) for name in ("decision", "by", "reviewer", "reason", "note")}
            decided = {"toolCallId": event.call_id, **{name: value for name, value in fields.items() if value}}
            yield self._event("CUSTOM", event, name="agentnb.approval_decision", value=decided)
        elif isinstance(event, StateUpdate):
            for key, value in event.values.items():
                yield self._event("CUSTOM", event, name=key, value=value)
        elif isinstance(event, (RunPaused, RunResumed)):
            self._failure = None if isinstance(event, RunResumed) else self._failure
            reason = event.reason if isinstance(event, RunPaused) else ""
            yield self._event("CUSTOM", event, name=f"agentnb.{event.type}", value=reason)
        elif isinstance(event, RunEnd):
            yield from self._end(event)

    def rest(self) -> Iterator[Json]:
        """Yield the event that ends the protocol's run, if the run itself has not ended."""
        if not self._run or self._has_ended:
            return
        for path in list(self._open):
            yield from self._close(path, None)
        self._has_ended = True
        if self._failure is not None:
            error = self._failure.error
            yield {"type": "RUN_ERROR", "message": error.message or error.type, "code": error.type}
            return
        outcome: Json = {"type": "success"}
        if self._waiting:
            outcome = {
                "type": "interrupt",
                "interrupts": [
                    {"id": id, "toolCallId": id, "reason": "approval", "message": asked.reason or asked.name}
                    for (_, id), asked in self._waiting.items()
                ],
            }
        about: Json = {"metadata": {"agentnb": {"reason": "open"}}}  # the protocol's run ends, that of agentnb has not
        finished: Json = {"type": "RUN_FINISHED", "threadId": self._run, "runId": self._run, "outcome": outcome}
        yield {**finished, **about, **self._used()}

    # -- loops -----------------------------------------------------------------------------------------------------

    def _start(self, event: RunStart) -> Iterator[Json]:
        path = event.path
        if not path:
            self._run = event.run_id
            about = {"name": event.name, "loop": event.loop}
            yield self._event(
                "RUN_STARTED",
                event,
                threadId=self._run,
                runId=self._run,
                protocolVersion=VERSION,
                metadata={"agentnb": about},
            )
        else:
            above = path.rpartition("/")[0]
            self._names[path] = f"{path}@{event.seq}"
            fields = {"subagentRunId": self._names[path], "name": event.name}
            if event.call:
                fields["parentToolCallId"] = event.call
            if above in self._names:
                fields["parentSubagentRunId"] = self._names[above]
            yield self._event("SUBAGENT_STARTED", event, **fields)
        for message in event.history:
            yield from self._message(message, event)

    def _end(self, event: RunEnd) -> Iterator[Json]:
        yield from self._close(event.path, event)
        error = event.error
        has_failed = event.reason == "error" or (error is not None and event.reason != "cancelled")
        about: Json = {"metadata": {"agentnb": {"reason": event.reason}}}
        if has_failed:
            code, words = (error.type, error.message) if error is not None else (event.reason, event.reason)
            about |= {"message": words or code, "code": code}
        elif event.output is not None:
            about["result"] = event.output
        if event.path:
            yield self._event("SUBAGENT_ERROR" if has_failed else "SUBAGENT_FINISHED", event, **about)
            self._names.pop(event.path, None)
        elif not self._has_ended:
            self._has_ended = True
            if has_failed:
                yield self._event("RUN_ERROR", event, **about, **self._used())
                return
            outcome: Json = {"type": "cancelled" if event.reason == "cancelled" else "success"}
            fields = {"threadId": self._run, "runId": self._run, "outcome": outcome, **about, **self._used()}
            yield self._event("RUN_FINISHED", event, **fields)

    def _used(self) -> Json:
        usage = {field: int(self._usage[name]) for name, field in _USAGE.items() if self._usage[name]}
        return {"usage": [usage]} if usage else {}

    # -- messages --------------------------------------------------------------------------------------------------

    def _message(self, message: Message, event: Event) -> Iterator[Json]:
        """Yield a message that is complete."""
        id = self._id()
        if message.role == "tool":  # of an earlier run
            fields = {"messageId": id, "toolCallId": str(message.tool_call_id), "content": text_of(message.content)}
            yield self._event("TOOL_CALL_RESULT", event, **fields, role="tool")
            return
        role = message.role if message.role in ("system", "developer", "user", "assistant") else "system"
        yield self._event("TEXT_MESSAGE_START", event, messageId=id, role=role)
        if text := text_of(message.content):
            yield self._event("TEXT_MESSAGE_CONTENT", event, messageId=id, delta=text)
        yield self._event("TEXT_MESSAGE_END", event, messageId=id)
        for call in message.tool_calls:
            yield from self._call(call, event, id)

    def _answer(self, event: ModelEnd) -> Iterator[Json]:
        """Yield what was not streamed of an answer, and its calls."""
        path, message = event.path, event.message
        yield from self._close(path, event)
        streamed = self._streamed.pop(path, set())
        id = self._id()
        thoughts = "\n".join(str(block.get("text") or "") for block in message.reasoning)
        if thoughts and "reasoning" not in streamed:
            yield from self._begin("reasoning", id, event)
            yield self._event("REASONING_MESSAGE_CONTENT", event, messageId=id, delta=thoughts)
            yield from self._finish("reasoning", id, event)
        metadata: Json = {"model": event.model, "finishReason": event.finish_reason or event.stop_reason}
        metadata |= {"usage": event.usage or None, "responseId": event.response_id}
        about = {"metadata": {key: value for key, value in metadata.items() if value is not None}}
        text = text_of(message.content)
        if "text" not in streamed:
            yield self._event("TEXT_MESSAGE_START", event, messageId=id, role="assistant")
            if text:
                yield self._event("TEXT_MESSAGE_CONTENT", event, messageId=id, delta=text)
            yield self._event("TEXT_MESSAGE_END", event, messageId=id, **about)
        for call in message.tool_calls:
            if (path, call.id) not in self._shown:
                yield from self._call(call, event, id if "text" not in streamed else None)
        self._usage.update({name: int(amount) for name, amount in event.usage.items() if name in _USAGE})

    def _call(self, call: ToolCall, event: Event, parent: str | None) -> Iterator[Json]:
        above = {"parentMessageId": parent} if parent else {}
        arguments = call.malformed if call.malformed is not None else json.dumps(call.arguments, ensure_ascii=False)
        yield self._event("TOOL_CALL_START", event, toolCallId=call.id, toolCallName=call.name, **above)
        if arguments:
            yield self._event("TOOL_CALL_ARGS", event, toolCallId=call.id, delta=arguments)
        yield self._event("TOOL_CALL_END", event, toolCallId=call.id)

    # -- what is streamed --------------------------------------------------------------------------------------------

    def _delta(self, delta: Delta) -> Iterator[Json]:
        path = delta.path
        kind = {"text_delta": "text", "reasoning_delta": "reasoning"}.get(delta.type)
        if delta.type == "retry_delta":  # the answer begins again
            yield from self._close(path, delta)
            self._streamed.pop(path, None)
        if kind is None or not delta.content:
            return
        if path in self._open and self._open[path][0] != kind:
            yield from self._close(path, delta)
        if path not in self._open:
            id = self._id()
            self._open[path] = kind, id
            self._streamed.setdefault(path, set()).add(kind)
            yield from self._begin(kind, id, delta)
        _, id = self._open[path]
        type = "TEXT_MESSAGE_CONTENT" if kind == "text" else "REASONING_MESSAGE_CONTENT"
        yield self._event(type, delta, messageId=id, delta=delta.content)

    def _begin(self, kind: str, id: str, event: Event | Delta) -> Iterator[Json]:
        if kind == "text":
            yield self._event("TEXT_MESSAGE_START", event, messageId=id, role="assistant")
        else:
            yield self._event("REASONING_START", event, messageId=id)
            yield self._event("REASONING_MESSAGE_START", event, messageId=id, role="reasoning")

    def _finish(self, kind: str, id: str, event: Event | Delta | None) -> Iterator[Json]:
        if kind == "text":
            yield self._event("TEXT_MESSAGE_END", event, messageId=id)
        else:
            yield self._event("REASONING_MESSAGE_END", event, messageId=id)
            yield self._event("REASONING_END", event, messageId=id)

    def _close(self, path: str, event: Event | Delta | None) -> Iterator[Json]:
        """End what is streamed of a loop."""
        if (open := self._open.pop(path, None)) is not None:
            yield from self._finish(open[0], open[1], event)

    # -- events ----------------------------------------------------------------------------------------------------

    def _id(self) -> str:
        """Return the id of a new message."""
        self._messages += 1
        return f"{self._run}-{self._messages}"

    def _event(self, type: str, event: Event | Delta | None, **fields: Any) -> Json:
        made: Json = {"type": type}
        if isinstance(event, Event) and (time := known_time(event)):
            made["timestamp"] = round(time * 1000)
        if event is not None and event.path in self._names:
            made["subagentRunId"] = self._names[event.path]
        return made | fields
