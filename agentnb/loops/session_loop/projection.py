"""SessionLoop's ten event types, as a projection of the run's events (SEMANTICS.md, 2. Vocabulary).

`SessionProjection` folds the run's events and translates them into the design's events. A live run and its recording
have the same stream. Every start event has an end event, and `agent_end` is always the last event.

The start of a call is emitted before a hook or a person decides about the call, because that decision may depend on the
reader of the stream. Without a hook or an approval, the start is emitted after the tool has started, so that the reader
may wait for an action of the tool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from agentnb.core.calls import result_message
from agentnb.core.errors import RunFailed
from agentnb.core.events import (
    ApprovalRequest,
    CallEnd,
    CallStart,
    Delta,
    ErrorInfo,
    Event,
    MessageAdded,
    ModelEnd,
    ModelStart,
    RunEnd,
    RunStart,
)
from agentnb.core.json import to_plain
from agentnb.core.messages import Message
from agentnb.core.record import Record
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import CallState
from agentnb.loops.projection import Handlers, Projection
from agentnb.loops.session_loop.history import ENDS_WITH_A_CUT_ANSWER, closing_messages, failure_texts

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


class SessionProjection(Projection[SessionEvent]):
    """The translation of a run's events into a session's events.

    has_hook: True if a hook checks each call before it starts.
    """

    def __init__(self, *, has_hook: bool = False) -> None:
        super().__init__()
        self._has_hook = has_hook
        self.new: list[Message] = []
        """The messages that the run has added to the conversation."""
        self._translated = 0
        """The number of messages in the history whose events were emitted."""
        self._in_turn = False
        self._in_message = False
        self._text = ""
        self._to_show: deque[CallState] = deque()
        """The turn's calls whose start was not emitted yet."""
        self._to_end: deque[CallState] = deque()
        self._shown: CallState | None = None
        """The call whose start was emitted last."""
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._results: list[Message] = []
        self._answer: Message | None = None

    def translate(self, item: Event | Delta) -> Iterator[SessionEvent]:
        """Yield the session's events for one event of the run."""
        # A nested loop may have suspended the run during a call.
        if isinstance(item, RunEnd) and not item.path:
            yield from self._end_calls()

        yield from super().translate(item)

        # With a hook, the start of a call is emitted as soon as the call is the next to be checked.
        if self._has_hook and self._to_show and isinstance(item, Event) and not item.path:
            yield from self._show_next()

    # -- events of the run ---------------------------------------------------------------------------------------------

    def _run_start(self, event: RunStart) -> Iterator[SessionEvent]:
        self._translated = len(self.state.messages)
        yield _event("agent_start")
        yield from self._open_turn()

    def _message_added(self, event: MessageAdded) -> Iterator[SessionEvent]:
        return self._new_messages()

    def _model_start(self, event: ModelStart) -> Iterator[SessionEvent]:
        yield from self._new_messages()
        yield from self._open_turn()
        self._text = ""

    def _model_end(self, event: ModelEnd) -> Iterator[SessionEvent]:
        yield from self._new_messages()
        made = [call for call in self.state.calls.values() if not call.hidden]
        self._to_show, self._to_end, self._shown = deque(made), deque(made), None

    def _call_start(self, event: CallStart | ApprovalRequest) -> Iterator[SessionEvent]:
        yield from self._show_to(self.state.calls[event.call_id])
        yield from self._new_messages()

    def _call_end(self, event: CallEnd) -> Iterator[SessionEvent]:
        yield from self._end_call(event)
        yield from self._new_messages()

    def _run_end(self, event: RunEnd) -> Iterator[SessionEvent]:
        yield from self._new_messages()
        if event.reason in ENDS_WITH_A_CUT_ANSWER:
            yield from self._last_turn()
        elif self._in_turn:
            yield from self._close_turn(None)
        self.ended = True
        yield _event("agent_end", messages=self.new)

    def _delta(self, delta: Delta) -> Iterator[SessionEvent]:
        if delta.type == "call_delta":
            call = self.state.calls.get(delta.call_id or "")
            if call is not None and not call.hidden:
                yield _event("tool_execution_update", partial_result=delta.data, **_call_fields(call))
        elif delta.type in ("text_delta", "reasoning_delta", "tool_call_delta"):
            if not self._in_message:
                self._in_message = True
                yield _event("message_start", message=Message(role="assistant", content=self._text))
            if delta.type == "text_delta":
                self._text += delta.content
            fragment = delta.content or delta.arguments
            yield _event(
                "message_update",
                message=Message(role="assistant", content=self._text),
                delta=fragment,
                assistant_message_event={"type": delta.type, "delta": fragment, **_call_of(delta)},
            )

    # -- turns and messages --------------------------------------------------------------------------------------------

    def _open_turn(self) -> Iterator[SessionEvent]:
        if not self._in_turn:
            self._in_turn = True
            self._results, self._answer = [], None
            self._started, self._ended = set(), set()
            yield _event("turn_start")

    def _close_turn(self, message: Message | None) -> Iterator[SessionEvent]:
        self._in_turn, self._answer = False, None
        yield _event("turn_end", message=message, tool_results=self._results)

    def _new_messages(self) -> Iterator[SessionEvent]:
        """Emit the messages that the last event has added to the history."""
        messages = self.state.messages
        for position in range(self._translated, len(messages)):
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
        self._translated = len(messages)

    def _message(self, message: Message) -> Iterator[SessionEvent]:
        self.new.append(message)
        if not (self._in_message and message.role == "assistant"):
            yield _event("message_start", message=message)
        self._in_message = False
        yield _event("message_end", message=message)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _show_next(self) -> Iterator[SessionEvent]:
        """Emit the start of the next call, in the order of the calls, once the previous call is checked."""
        before, reply = self._shown, self.state.reply
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
        call, reply = self.state.calls[event.call_id], self.state.reply
        if call.hidden:
            return
        if reply is None or not reply.sequential:
            yield from self._emit_end(call)
            return
        # Keep the order of the calls, also if an abort ends those that have not started before the one that runs.
        while self._to_end and (end := self._to_end[0].end) is not None:
            call = self._to_end.popleft()
            yield from self._emit_end(call)
            if not reply.provisional:  # each result follows its call directly
                self._results.append(result_message(call, end, self.state.max_result_chars))
                yield from self._message(self._results[-1])

    def _emit_end(self, call: CallState) -> Iterator[SessionEvent]:
        end = call.end
        if end is None or call.id in self._ended:
            return
        self._ended.add(call.id)
        yield from self._show_to(call)
        yield _event("tool_execution_end", result=end.result, is_error=end.is_error, **_call_fields(call))

    # -- ends ----------------------------------------------------------------------------------------------------------

    def reports(self, error: RunFailed, failure: ErrorInfo | None) -> bool:
        """Return True if `agent_end` reports this error.

        It reports a model failure, and an error with which the session has ended, such as the failure of a hook. It
        does not report a crash.
        """
        if failure is not None or error.__cause__ is None:
            return True
        own_calls = (call.end for call in self.state.calls.values() if call.hidden)
        return any(end is not None and end.error == self.state.error for end in own_calls)

    def fail(self, failure: ErrorInfo) -> Iterator[SessionEvent]:
        """Yield the end of the stream after a model failure in this loop or a nested one."""
        yield from self._end_calls(failure_texts(self.state))
        yield from self.translate(RunEnd(reason="error", error=failure))

    def _end_calls(self, results: Mapping[str, str] = MappingProxyType({})) -> Iterator[SessionEvent]:
        """End the open calls with these results, by call id; calls without one are reported as aborted."""
        for call in list(self.state.open.values()):
            result = results.get(call.id, ABORTED)
            yield from self.translate(
                CallEnd(call_id=call.id, name=call.name, result=result, is_error=True, outcome="aborted")
            )

    def _last_turn(self) -> Iterator[SessionEvent]:
        """Emit undelivered input and the aborted answer with its reason (SEMANTICS.md, 7. Failures and abort)."""
        yield from self._open_turn()
        answer = None
        for message in closing_messages(self.state):
            yield from self._message(message)
            if message.role == "assistant":
                answer, self._text = message, ""
            elif message.role == "tool":
                self._results.append(message)
        yield from self._close_turn(answer)

    handlers: ClassVar[Handlers] = {
        RunStart: _run_start,
        MessageAdded: _message_added,
        ModelStart: _model_start,
        ModelEnd: _model_end,
        ApprovalRequest: _call_start,
        CallStart: _call_start,
        CallEnd: _call_end,
        RunEnd: _run_end,
        Delta: _delta,
    }


def _event(type: Type, **fields: Any) -> SessionEvent:
    return SessionEvent(type=type, **fields)


def _call_of(delta: Delta) -> dict[str, Any]:
    """Return the call to which a fragment belongs. Only the first fragment of a call has the id and the name."""
    if delta.type != "tool_call_delta":
        return {}
    return {"index": delta.index, "id": delta.id, "name": delta.name}


def _call_fields(call: CallState) -> dict[str, Any]:
    # A copy: a reader must not change the arguments of a call that is about to run.
    return {"tool_call_id": call.id, "tool_name": call.name, "args": to_plain(call.arguments)}
