"""SessionLoop's ten event types, as a projection of the run's events (SEMANTICS.md, 2. Vocabulary).

`Projection` folds the same facts and says them in the design's words, so that the stream of a live run and of a
recording are the same. Every start has its end, and `agent_end` is always the last.

A call's start is said before anybody looks at it: a hook, or a person who is asked, may wait for whoever reads
the stream. Where nobody does, it is said with the fact that the tool has begun: its reader may wait for the tool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from agentnb.core.calls import result_message
from agentnb.core.ending import ABORTED
from agentnb.core.events import ApprovalRequest, CallEnd, CallStart, Delta, ErrorInfo, Event, RunEnd
from agentnb.core.evolve import evolve
from agentnb.core.messages import Message, to_plain
from agentnb.core.record import Record
from agentnb.core.state import CallState, State
from agentnb.loops.session_loop.history import ENDED_FROM_OUTSIDE, last_words, words_of_failures

Type = Literal[
    "agent_start",
    "agent_end",
    "turn_start",
    "turn_end",
    "message_start",
    "message_update",
    "message_end",
    "tool_execution_start",
    "tool_execution_update",
    "tool_execution_end",
]


class SessionEvent(Record):
    """One event of a session; which fields it has depends on its type (SEMANTICS.md, 2. Vocabulary)."""

    type: Type
    message: Message | None = None
    messages: list[Message] | None = None
    tool_results: list[Message] | None = None
    delta: str | None = None
    assistant_message_event: dict[str, Any] | None = None
    """What has come of an answer: its `type` (`text_delta`, `reasoning_delta`, `tool_call_delta`) and the `delta`."""
    tool_call_id: str | None = None
    tool_name: str | None = None
    args: dict[str, Any] | None = None
    result: Any = None
    partial_result: Any = None
    is_error: bool | None = None


class Projection:
    """Says a run's events in a session's words; `has_hook` is whether something looks at each call before it begins."""

    def __init__(self, *, has_hook: bool = False) -> None:
        self._has_hook = has_hook
        self.new: list[Message] = []
        self._state = State()
        self._said = 0
        self._in_turn = False
        self._in_message = False
        self._text = ""
        self._to_show: deque[CallState] = deque()
        self._to_end: deque[CallState] = deque()
        self._shown: CallState | None = None
        """The call whose start was said last."""
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._results: list[Message] = []
        self._answer: Message | None = None

    def say(self, event: Event | Delta) -> Iterator[SessionEvent]:
        """The session's events that this one is."""
        if isinstance(event, Delta):
            yield from self._delta(event)
        elif event.path:  # of a loop inside this one, which is one call here
            evolve(self._state, event)
        else:
            yield from self._fact(event)

    def _fact(self, event: Event) -> Iterator[SessionEvent]:
        if isinstance(event, RunEnd):  # a loop inside may have suspended the run in the middle of a call
            yield from self._end_calls()
        evolve(self._state, event)
        if event.type == "run_start":
            self._said = len(self._state.messages)
            yield _event("agent_start")
            yield from self._open_turn()
        elif isinstance(event, CallStart | ApprovalRequest):
            yield from self._show_to(self._state.calls[event.call_id])
        elif isinstance(event, CallEnd):
            yield from self._end_call(event)
        yield from self._say_new_messages()
        if event.type == "model_end":
            made = [call for call in self._state.calls.values() if not call.hidden]
            self._to_show, self._to_end, self._shown = deque(made), deque(made), None
        if self._to_show and self._has_hook:
            yield from self._show_next()
        if event.type == "model_start":
            yield from self._open_turn()
            self._text = ""
        elif isinstance(event, RunEnd):
            yield from self._end(event)

    def _delta(self, delta: Delta) -> Iterator[SessionEvent]:
        if delta.path:
            return
        if delta.type == "call_delta":
            call = self._state.calls.get(delta.call_id or "")
            if call is not None and not call.hidden:
                yield _event("tool_execution_update", partial_result=delta.data, **_call_fields(call))
        elif delta.type in ("text_delta", "reasoning_delta", "tool_call_delta"):
            if not self._in_message:
                self._in_message = True
                yield _event("message_start", message=Message(role="assistant", content=self._text))
            if delta.type == "text_delta":
                self._text += delta.content
            said = delta.content or delta.arguments
            yield _event(
                "message_update",
                message=Message(role="assistant", content=self._text),
                delta=said,
                assistant_message_event={"type": delta.type, "delta": said, **_call_of(delta)},
            )

    def _open_turn(self) -> Iterator[SessionEvent]:
        if not self._in_turn:
            self._in_turn = True
            self._results, self._answer = [], None
            self._started, self._ended = set(), set()
            yield _event("turn_start")

    def _close_turn(self, message: Message | None) -> Iterator[SessionEvent]:
        self._in_turn, self._answer = False, None
        yield _event("turn_end", message=message, tool_results=self._results)

    def _say_new_messages(self) -> Iterator[SessionEvent]:
        messages = self._state.messages
        for position in range(self._said, len(messages)):
            message = messages[position]
            if message.role != "tool" or message.tool_call_id not in {m.tool_call_id for m in self._results}:
                yield from self._open_turn()
                yield from self._message(message)
                if message.role == "tool":
                    self._results.append(message)
                elif message.role == "assistant":
                    self._answer, self._text = message, ""
            # An answer's turn is over with the last of its results, whenever those are told (discard: not before the
            # next thing happens).
            if self._answer is not None and len(self._results) == len(self._answer.tool_calls):
                yield from self._close_turn(self._answer)
        self._said = len(messages)

    def _message(self, message: Message) -> Iterator[SessionEvent]:
        self.new.append(message)
        if not (self._in_message and message.role == "assistant"):
            yield _event("message_start", message=message)
        self._in_message = False
        yield _event("message_end", message=message)

    def _show_next(self) -> Iterator[SessionEvent]:
        """Say the start of the call that is looked at next: in source order, each once the one before has been."""
        before, reply = self._shown, self._state.reply
        one_by_one = reply is not None and reply.sequential
        if before is None or before.end is not None or (before.status != "proposed" and not one_by_one):
            yield from self._show_to(self._to_show[0])

    def _show_to(self, call: CallState) -> Iterator[SessionEvent]:
        """Say the start of a call, where it is not said yet, behind those of the calls before it."""
        while self._to_show and not (call.hidden or call.id in self._started):
            self._shown = self._to_show.popleft()
            self._started.add(self._shown.id)
            yield _event("tool_execution_start", **_call_fields(self._shown))

    def _end_call(self, event: CallEnd) -> Iterator[SessionEvent]:
        call, reply = self._state.calls[event.call_id], self._state.reply
        if call.hidden:
            return
        if reply is None or not reply.sequential:
            yield from self._say_end(call)
            return
        # One by one also where an abort ends the calls that have not begun before the one that runs.
        while self._to_end and (end := self._to_end[0].end) is not None:
            call = self._to_end.popleft()
            yield from self._say_end(call)
            if not reply.provisional:  # results follow their calls one by one
                self._results.append(result_message(call, end, self._state.max_result_chars))
                yield from self._message(self._results[-1])

    def _say_end(self, call: CallState) -> Iterator[SessionEvent]:
        end = call.end
        if end is None or call.id in self._ended:
            return
        self._ended.add(call.id)
        yield from self._show_to(call)
        yield _event("tool_execution_end", result=end.result, is_error=end.is_error, **_call_fields(call))

    def _last_words(self) -> Iterator[SessionEvent]:
        """Undelivered input, and the answer that never came, with the reason (SEMANTICS.md, 7. Failures and abort)."""
        yield from self._open_turn()
        answer = None
        for message in last_words(self._state):
            yield from self._message(message)
            if message.role == "assistant":
                answer, self._text = message, ""
            elif message.role == "tool":
                self._results.append(message)
        yield from self._close_turn(answer)
        yield _event("agent_end", messages=self.new)

    def fail(self, failure: ErrorInfo) -> Iterator[SessionEvent]:
        """What is said where a model has failed, this loop's or that of one inside: the end of the stream.

        The run may be resumed; a failure that it has gone on from is no end.
        """
        yield from self._end_calls(words_of_failures(self._state))
        yield from self.say(RunEnd(reason="error", error=failure))

    def _end_calls(self, words: Mapping[str, str] = MappingProxyType({})) -> Iterator[SessionEvent]:
        """End the calls that are left open, in these words or as broken off."""
        for call in list(self._state.open.values()):
            why = words.get(call.id, ABORTED)
            yield from self.say(CallEnd(call_id=call.id, name=call.name, result=why, is_error=True, outcome="aborted"))

    def _end(self, event: RunEnd) -> Iterator[SessionEvent]:
        if event.reason in ENDED_FROM_OUTSIDE:
            yield from self._last_words()
            return
        if self._in_turn:
            yield from self._close_turn(None)
        yield _event("agent_end", messages=self.new)


def _event(type: Type, **fields: Any) -> SessionEvent:
    return SessionEvent(type=type, **fields)


def _call_of(delta: Delta) -> dict[str, Any]:
    """Which call a fragment of one belongs to; its id and name come with the first."""
    if delta.type != "tool_call_delta":
        return {}
    return {"index": delta.index, "id": delta.id, "name": delta.name}


def _call_fields(call: CallState) -> dict[str, Any]:
    # A copy: whoever is shown a call that is about to run must not change what runs.
    return {"tool_call_id": call.id, "tool_name": call.name, "args": to_plain(call.arguments)}
