"""AG-UI: logs of events of the protocol between agents and user interfaces: JSON lines, a list, server-sent events.

The pieces of a message and of a call's arguments are joined. A message and the calls that name it as their parent are
one answer. A sub-agent is a nested loop of the call that started it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, cast, get_args

from agentnb.core.events import Event, StopReason
from agentnb.core.messages import Message
from agentnb.importers.conversation import said, usage_of
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, error_of, seconds

name = "AG-UI"

_IGNORED = frozenset({"TOOL_CALL_END", "THINKING_END", "THINKING_START", "REASONING_START",
                      "REASONING_END", "REASONING_MESSAGE_START", "REASONING_MESSAGE_END",
                      "THINKING_TEXT_MESSAGE_START", "THINKING_TEXT_MESSAGE_END"})  # fmt: skip
"""Types of events that only mark where others begin and end."""


def recognises(file: ForeignFile) -> bool:
    """Return True for events that begin with the start of a run."""
    listed = _listed(file)
    first = listed[0] if listed else file.first
    # A part of a log may begin later, with a message or a call.
    return isinstance(first, Mapping) and first.get("type") in ("RUN_STARTED", *_FIRST) and _has_names(first)


_FIRST = {"TEXT_MESSAGE_START": "messageId", "TOOL_CALL_START": "toolCallId", "STATE_SNAPSHOT": "snapshot"}
"""Other types of events that a log may begin with, each with a field that it has."""


def _has_names(first: Mapping[str, Any]) -> bool:
    return first.get("type") == "RUN_STARTED" or _FIRST[str(first["type"])] in first


def _listed(file: ForeignFile) -> list[Any] | None:
    """Return the events of a file that is a list of these, or an object with such a list; else None."""
    document = file.document
    if isinstance(document, Mapping) and "type" not in document:
        document = document.get("events")
    return document if isinstance(document, list) else None


def read(file: ForeignFile) -> Iterator[Event]:
    """Yield the events of the runs. The runs of one log are turns of the same conversation."""
    listed = _listed(file)
    events = iter(listed) if listed is not None else (line for _, line in file.lines())
    root = _Log(file, Writer(file.lost, name="agent"))
    inside: dict[str, _Log | None] = {}  # by the id of a sub-agent
    for number, event in enumerate(events, 1):
        if not isinstance(event, Mapping):
            file.damaged(f"event {number} is not an object", "damaged events")
            continue
        kind, sub = str(event.get("type")), event.get("subagentRunId")
        if kind == "SUBAGENT_STARTED":
            above = inside.get(str(event.get("parentSubagentRunId")), root)
            inside[str(sub)] = None
            if above is not None:
                inside[str(sub)] = yield from above.sub_agent(event)
            continue
        log = inside.get(str(sub), root) if sub is not None else root
        if log is None:
            file.lost["events of sub-agents that no call started"] += 1
        elif kind in ("SUBAGENT_FINISHED", "SUBAGENT_ERROR"):
            if log is not root:
                yield from log.end(event, has_failed=kind == "SUBAGENT_ERROR")
                del inside[str(sub)]
        else:
            yield from log.event(event)
    for log in (*inside.values(), root):
        if log is not None:
            yield from log.flush()
    yield from root.writer.start()
    yield from root.finished()


class _Log:
    """The events of one agent."""

    def __init__(self, file: ForeignFile, writer: Writer) -> None:
        self.file = file
        self.writer = writer
        self.known: set[str] = set()
        self.results: set[str] = set()
        self._other: tuple[str, str, list[str], float] | None = None  # a message of another role: its id, role, pieces
        self._answer: Answer | None = None
        self._calls: dict[str, Call] = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._began = 0.0
        self._time = 0.0
        self._end: tuple[Mapping[str, Any], float] | None = None  # the last event of a run, and its time

    def event(self, event: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events of agentnb that one event of the log completes."""
        kind, writer = str(event.get("type")), self.writer
        if self._end is not None:  # another run of the same conversation follows
            (ended, at), self._end = self._end, None
            if ended.get("result") is not None:
                yield from writer.update({"result": ended["result"]}, at)
        time = seconds(event.get("timestamp"), self.file.lost)
        delta = event.get("delta")
        if self._other is not None and not (
            kind in ("TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CHUNK") and str(event.get("messageId")) == self._other[0]
        ):
            yield from self._tell()
        if kind == "RUN_STARTED":
            for key in ("threadId", "runId", "protocolVersion"):
                writer.about.setdefault(key, event.get(key))
            given = event.get("input")
            messages = given.get("messages") if isinstance(given, Mapping) else None
            yield from self._messages(messages)
        elif kind == "MESSAGES_SNAPSHOT":
            yield from self.flush()
            yield from self._messages(event.get("messages"))
        elif self._other is not None:
            self._other[2].append(str(delta or ""))
        elif kind in ("TEXT_MESSAGE_START", "TEXT_MESSAGE_CHUNK") and event.get("role") not in (None, "assistant"):
            yield from self.flush()
            self._other = str(event.get("messageId")), str(event["role"]), [str(delta or "")], time
            self.known.add(self._other[0])
        elif kind == "TEXT_MESSAGE_END":
            if self._answer is not None:
                _add_facts(self._answer, event.get("metadata"))
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
            self.results.add(str(event.get("toolCallId")))
            facts = event.get("metadata")
            is_error = isinstance(facts, Mapping) and facts.get("isError") is True
            yield from writer.result(str(event.get("toolCallId") or ""), event.get("content"), time, is_error=is_error)
        elif kind.startswith(("REASONING_MESSAGE_C", "THINKING_TEXT_MESSAGE_C")):
            self._open(time, None)
            self._thoughts.append(str(delta or ""))
        elif kind == "RUN_ERROR" and _reason(event) is None:
            yield from self.flush()
            error = error_of(str(event.get("code") or "RunError"), event.get("message"))
            yield from writer.failure(error, time)
        elif kind in ("RUN_FINISHED", "RUN_ERROR"):
            yield from self.flush()
            outcome = event.get("outcome")
            if isinstance(outcome, Mapping) and outcome.get("type") not in (None, "success", "cancelled"):
                yield from writer.update({"outcome": dict(outcome)}, time)
            self._end = event, time
        elif kind in ("STATE_SNAPSHOT", "CUSTOM"):
            yield from self.flush()
            title = str(event.get("name") or "state")
            yield from writer.update({title: event.get("value", event.get("snapshot"))}, time)
        elif kind not in _IGNORED:
            self.file.lost[f"events of type {kind}"] += 1
        self._time = time or self._time

    def sub_agent(self, event: Mapping[str, Any]) -> Generator[Event, None, _Log | None]:
        """Yield the events before a sub-agent starts, and return its log; None if no open call started it."""
        yield from self.flush()
        call, time = str(event.get("parentToolCallId") or ""), seconds(event.get("timestamp"), self.file.lost)
        if self.writer.is_open(call):
            yield from self.writer.begin(call, time)
        nested = self.writer.nested(call, str(event.get("name") or "agent"))
        return None if nested is None else _Log(self.file, nested)

    def end(self, event: Mapping[str, Any], *, has_failed: bool) -> Iterator[Event]:
        """Yield the events at the end of a sub-agent."""
        yield from self.flush()
        time = seconds(event.get("timestamp"), self.file.lost)
        error = error_of(str(event.get("code") or "AgentError"), event.get("message")) if has_failed else None
        yield from self.writer.end("error" if has_failed else "completed", time, event.get("result"), error)

    def finished(self) -> Iterator[Event]:
        """Yield the end of the run, if its last event tells how it ended: by a result, or by the reason of agentnb."""
        if self._end is None:
            return
        event, time = self._end
        reason = _reason(event) or ("completed" if event.get("result") is not None else None)
        if reason in get_args(StopReason):
            code = str(event.get("code") or "RunError")
            error = error_of(code, event.get("message")) if event.get("type") == "RUN_ERROR" else None
            yield from self.writer.end(cast("StopReason", reason), time, event.get("result"), error)

    def _tell(self) -> Iterator[Event]:
        """Yield the message of another role than that of the agent, which is complete now."""
        if (other := self._other) is not None:
            self._other = None
            yield from self.writer.message(Message(role=other[1], content="".join(other[2])), other[3])

    def _messages(self, messages: Any) -> Iterator[Event]:
        """Yield the messages that are not known."""
        for given in messages if isinstance(messages, list) else ():
            if not isinstance(given, Mapping) or str(given.get("id")) in self.known:
                continue
            self.known.add(str(given.get("id")))
            if given.get("role") == "tool" and str(given.get("toolCallId")) in self.results:
                continue  # a snapshot may repeat a result under another id
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
        """Yield the message or the answer that is complete now."""
        yield from self._tell()
        if (answer := self._answer) is None:
            return
        answer.content, answer.calls = "".join(self._texts), list(self._calls.values())
        if self._thoughts:
            answer.reasoning = [{"text": "".join(self._thoughts)}]
        self._answer, self._calls, self._texts, self._thoughts = None, {}, [], []
        yield from self.writer.answer(answer, self._time)


def _reason(event: Mapping[str, Any]) -> Any:
    """Return the reason for the end in the words of agentnb, if its exporter has written the event."""
    about = event.get("metadata")
    own = about.get("agentnb") if isinstance(about, Mapping) else None
    return own.get("reason") if isinstance(own, Mapping) else None


def _add_facts(answer: Answer, facts: Any) -> None:
    """Add what the metadata of the end of a message says of the answer."""
    if not isinstance(facts, Mapping):
        return
    texts = {name: facts[name] for name in ("model", "finishReason", "responseId") if isinstance(facts.get(name), str)}
    answer.model = texts.get("model", answer.model)
    answer.finish_reason = texts.get("finishReason", answer.finish_reason)
    answer.response_id = texts.get("responseId", answer.response_id)
    answer.usage = usage_of(facts.get("usage"))
