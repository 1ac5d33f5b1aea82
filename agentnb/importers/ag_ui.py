"""AG-UI: logs of events of the protocol between agents and user interfaces, as JSON lines or a list.

The pieces of a message and of a call's arguments are joined. A message and the calls that name it as their parent are
one answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentnb.core.events import Event
from agentnb.importers.conversation import said
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, error_of, seconds

name = "AG-UI"

_IGNORED = frozenset({"TEXT_MESSAGE_END", "TOOL_CALL_END", "THINKING_END", "THINKING_START", "REASONING_START",
                      "REASONING_END", "REASONING_MESSAGE_START", "REASONING_MESSAGE_END",
                      "THINKING_TEXT_MESSAGE_START", "THINKING_TEXT_MESSAGE_END"})  # fmt: skip
"""Types of events that only mark where others begin and end."""


def recognises(file: ForeignFile) -> bool:
    """Return True for events that begin with the start of a run."""
    first = file.document[0] if isinstance(file.document, list) and file.document else file.first
    return isinstance(first, Mapping) and first.get("type") == "RUN_STARTED"


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of the runs. The runs of one log are turns of the same conversation."""
    events = file.document if isinstance(file.document, list) else [line for _, line in file.lines()]
    log = _Log(file)
    for number, event in enumerate(events, 1):
        if isinstance(event, Mapping):
            yield from log.event(event)
        else:
            file.damaged(f"event {number} is not an object", "damaged events")
    yield from log.flush()
    yield from log.writer.start()


class _Log:
    def __init__(self, file: ForeignFile) -> None:
        self.file = file
        self.writer = Writer(file.lost, name="agent")
        self.known: set[str] = set()
        self._answer: Answer | None = None
        self._calls: dict[str, Call] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._began = 0.0
        self._time = 0.0

    def event(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events of agentnb that one event of the log completes."""
        kind, writer = str(event.get("type")), self.writer
        time = seconds(event.get("timestamp"), self.file.lost)
        delta = event.get("delta")
        if kind == "RUN_STARTED":
            for key in ("threadId", "runId", "protocolVersion"):
                writer.about.setdefault(key, event.get(key))
            given = event.get("input")
            messages = given.get("messages") if isinstance(given, Mapping) else None
            yield from self._messages(messages)
        elif kind == "MESSAGES_SNAPSHOT":
            yield from self.flush()
            yield from self._messages(event.get("messages"))
        elif kind in ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CHUNK") and event.get("role", "assistant") != "assistant":
            self.file.lost["streamed messages of other roles"] += 1
        elif kind in ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CHUNK"):
            if kind == "TEXT_MESSAGE_START" and (self._texts or self._calls):
                yield from self.flush()
            self._open(time, event.get("messageId"))
            self._texts.append(str(delta or ""))
        elif kind in ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_CHUNK"):
            self._open(time, event.get("parentMessageId"))
            id = str(event.get("toolCallId") or next(reversed(self._calls), ""))
            call = self._calls.setdefault(id, Call(id, "", ""))
            call.name = str(event.get("toolCallName") or call.name)
            call.arguments += str(delta or "")
        elif kind == "TOOL_CALL_RESULT":
            yield from self.flush()
            self.known.add(str(event.get("messageId")))
            yield from writer.result(str(event.get("toolCallId") or ""), event.get("content"), time)
        elif kind.startswith(("REASONING_MESSAGE_C", "THINKING_TEXT_MESSAGE_C")):
            self._open(time, None)
            self._thoughts.append(str(delta or ""))
        elif kind == "RUN_ERROR":
            yield from self.flush()
            error = error_of(str(event.get("code") or "RunError"), event.get("message"))
            yield from writer.failure(error, time)
        elif kind == "RUN_FINISHED":
            yield from self.flush()
            outcome = event.get("outcome")
            if isinstance(outcome, Mapping) and outcome.get("type") not in (None, "success"):
                yield from writer.update({"outcome": dict(outcome)}, time)
        elif kind in ("STATE_SNAPSHOT", "CUSTOM"):
            yield from self.flush()
            title = str(event.get("name") or "state")
            yield from writer.update({title: event.get("value", event.get("snapshot"))}, time)
        elif kind not in _IGNORED:
            self.file.lost[f"events of type {kind}"] += 1
        self._time = time or self._time

    def _messages(self, messages: Any) -> Iterator[Event]:
        """Yield the messages that are not known."""
        for given in messages if isinstance(messages, list) else ():
            if not isinstance(given, Mapping) or str(given.get("id")) in self.known:
                continue
            self.known.add(str(given.get("id")))
            calls = {"tool_calls": given["toolCalls"]} if "toolCalls" in given else {}
            id = {"tool_call_id": given["toolCallId"]} if "toolCallId" in given else {}
            yield from said(self.file, [{**given, **calls, **id}], self.writer)

    def _open(self, time: float, message: Any) -> None:
        if self._answer is None:
            self._answer, self._began = Answer(), time
        if message:
            self.known.add(str(message))
        self._time = time or self._time

    def flush(self) -> Iterator[Event]:
        """Yield the answer that is complete now."""
        if (answer := self._answer) is None:
            return
        answer.content, answer.calls = "".join(self._texts), list(self._calls.values())
        if self._thoughts:
            answer.reasoning = [{"text": "".join(self._thoughts)}]
        self._answer, self._calls, self._texts, self._thoughts = None, {}, [], []
        yield from self.writer.answer(answer, self._time)
