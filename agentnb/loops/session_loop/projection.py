"""SessionLoop's ten event types, as a projection of the run's events (SEMANTICS.md, 2. Vocabulary).

`Projection` folds the run's events and translates them into the design's events. A live run and its recording have the
same stream. Every start event has an end event, and `agent_end` is always the last event.

The start of a call is emitted before a hook or a person decides about the call, because that decision may depend on the
reader of the stream. Without a hook or an approval, the start is emitted with the event that the tool has started: the
reader may wait for the tool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from agentnb.core.calls import result_message
from agentnb.core.events import ApprovalRequest, CallEnd, CallStart, Delta, ErrorInfo, Event, RunEnd
from agentnb.core.evolve import evolve
from agentnb.core.json import to_plain
from agentnb.core.messages import Message
from agentnb.core.record import Record
from agentnb.core.resume_point import ABORTED
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
    """An event of a session. Its type determines its fields (SEMANTICS.md, 2. Vocabulary)."""

    type: Type
    message: Message | None = None
    messages: list[Message] | None = None
    tool_results: list[Message] | None = None
    delta: str | None = None
    assistant_message_event: dict[str, Any] | None = None
    """A fragment of an answer: its `type` (`text_delta`, `reasoning_delta`, `tool_call_delta`) and the `delta`."""
    tool_call_id: str | None = None
    tool_name: str | None = None
    args: dict[str, Any] | None = None
    result: Any = None
    partial_result: Any = None
    is_error: bool | None = None


class Projection:
    """The translation of a run's events into a session's events.

    has_hook: True if a hook checks each call before it starts.
    """

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
        """The call whose start was emitted last."""
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._results: list[Message] = []
        self._answer: Message | None = None

    def say(self, event: Event | Delta) -> Iterator[SessionEvent]:
        """Yield the session's events for one event of the run."""
        if isinstance(event, Delta):
            yield from self._delta(event)
        elif event.path:  # of a nested loop, which appears as one call here
            evolve(self._state, event)
        else:
            yield from self._fact(event)

    def _fact(self, event: Event) -> Iterator[SessionEvent]:
        if isinstance(event, RunEnd):  # a nested loop may have suspended the run during a call
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
            # The last result of an answer ends its turn. In mode `discard` results enter the history only when the loop
            # continues.
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
        """Emit the start of the call that is checked next, in source order, after the check of the previous call."""
        before, reply = self._shown, self._state.reply
        one_by_one = reply is not None and reply.sequential
        if before is None or before.end is not None or (before.status != "proposed" and not one_by_one):
            yield from self._show_to(self._to_show[0])

    def _show_to(self, call: CallState) -> Iterator[SessionEvent]:
        """Emit the start of a call and of all calls before it, unless they have been emitted."""
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
        # Keep source order also if an abort ends the calls that have not started before the call that runs.
        while self._to_end and (end := self._to_end[0].end) is not None:
            call = self._to_end.popleft()
            yield from self._say_end(call)
            if not reply.provisional:  # each result follows its call directly
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
        """Emit undelivered input and the aborted answer with its reason (SEMANTICS.md, 7. Failures and abort)."""
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
        """Yield the end of the stream after a model failure in this loop or a nested one.

        Call this when the events of the run have ended. A failure after which the run was resumed does not end the
        stream.
        """
        yield from self._end_calls(words_of_failures(self._state))
        yield from self.say(RunEnd(reason="error", error=failure))

    def _end_calls(self, words: Mapping[str, str] = MappingProxyType({})) -> Iterator[SessionEvent]:
        """End the open calls with these results, by call id; calls without one are reported as aborted."""
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
    """Return the call to which a fragment belongs. Only its first fragment has its id and name."""
    if delta.type != "tool_call_delta":
        return {}
    return {"index": delta.index, "id": delta.id, "name": delta.name}


def _call_fields(call: CallState) -> dict[str, Any]:
    # A copy: a reader must not change the arguments of a call that is about to run.
    return {"tool_call_id": call.id, "tool_name": call.name, "args": to_plain(call.arguments)}
