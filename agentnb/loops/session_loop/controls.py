"""The methods of a session: one conversation over several runs (SEMANTICS.md, 7. Failures and abort; 8. Continuing)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from msgspec.structs import replace

from agentnb.core.calls import result_message
from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, RunStart
from agentnb.core.loop import LoopFrame
from agentnb.core.messages import Message, to_message, to_messages
from agentnb.core.protocols import LoopMailbox
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import State
from agentnb.loops.base import Loop
from agentnb.loops.session_loop.history import (
    ENDS_WITH_A_CUT_ANSWER,
    closing_messages,
    failure_texts,
    messages_in_order,
    showable,
)
from agentnb.loops.session_loop.queue import MessageQueue
from agentnb.loops.session_loop.stream import EventStream
from agentnb.loops.streaming import StreamStatus
from agentnb.run.validation import StartOptions


class SessionControls(Loop):
    """The part of SessionLoop that is not its decision: streams, the conversation and the queue."""

    def __init__(
        self,
        llm: Any,
        tools: Sequence[Any] | None,
        *,
        queue: MessageQueue | None,
        messages: Sequence[Any],
        name: str | None,
    ) -> None:
        super().__init__(llm, tools, name=name)
        if queue is not None and not isinstance(queue, MessageQueue):
            raise UsageError(f"queue must be a MessageQueue or None, not {queue!r:.80}.")
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
            raise UsageError(f"messages must be a list of messages, not {messages!r:.80}.")
        self.queue = queue if queue is not None else MessageQueue()
        self._last_stream: StreamStatus | None = None
        self._latest: weakref.ref[LoopMailbox] | None = None
        """The run that was started, restored or forked last."""
        self._messages = to_messages(list(messages))
        self._position: tuple[int, bool] | None = None
        """The position of the last run that `_messages` reflects, and True if its stream had ended."""

    def begin(self, input: Any, history: Sequence[Message] = ()) -> RunStart:
        """Return the first event of a run. It includes the messages that are already queued."""
        return replace(super().begin(input, history), queued=self.queue.hand_over())

    def _start(self, **options: Any) -> Any:
        if "history" not in options:
            options["history"] = messages_in_order(_read(self.messages))
        return super()._start(**options)

    def attached(self, frame: LoopFrame) -> None:
        """Attach the queue to a run that has not ended. `abort` cancels this run, unless the loop is nested in it."""
        if frame.mailbox.over:
            return
        self.queue.attach(frame.mailbox)
        if frame.above is None:
            self._latest = weakref.ref(frame.mailbox)

    def run(self, message: Any, **options: Unpack[StartOptions]) -> EventStream:
        """Send a message to the session, and return the stream of the session's events.

        options: as for `start`. Raises UsageError while a stream is open.
        """
        return self._open(message, options)

    def continue_(self, **options: Unpack[StartOptions]) -> EventStream:
        """Continue without a new message, and return the stream of the session's events.

        The session answers a last message of the user or a tool, or takes the queued messages. options: as for `start`.
        Raises UsageError while a stream is open, and if there is nothing to continue from
        (SEMANTICS.md, 8. Continuing).
        """
        self._check_not_open()
        messages = showable(_read(self.messages))
        if not messages:
            raise UsageError("No messages to continue from")
        if messages[-1].role == "assistant" and not any(self.queue.waiting().values()):
            raise UsageError("Cannot continue from message role: assistant")
        return self._open(None, options)

    def _open(self, message: Any, options: StartOptions) -> EventStream:
        self._check_not_open()
        self._take_queue_back()
        stream = EventStream(self.start(message, **options))
        self._last_stream, self._position = stream.status, None
        return stream

    def _check_not_open(self) -> None:
        if self._is_open:
            raise UsageError("This session is running; steer it, queue a follow-up, or abort it.")

    @property
    def _is_open(self) -> bool:
        """True while a run is in progress. An aborted run is not, even if its stream was not read to the end."""
        stream = self._last_stream
        return stream is not None and stream.is_open() and not stream.run.state.over

    @property
    def messages(self) -> list[Message]:
        """The conversation. Assign another one to continue from it. Change it only while no run is in progress."""
        if self._last_stream is None:
            return self._messages
        state, ended = self._last_stream.run.state, self._last_stream.ended
        # Compute the list again only if the run has advanced since the last access.
        if self._position != (state.position, ended):
            left_open = _left_open(state) if ended else ()
            is_cut = state.stop_reason in ENDS_WITH_A_CUT_ANSWER or (ended and state.failure is not None)
            closing = closing_messages(state) if is_cut else ()
            self._messages = [*state.messages, *left_open, *closing] or self._messages
            self._position = (state.position, ended)
        return self._messages

    @messages.setter
    def messages(self, messages: Sequence[Any]) -> None:
        if self._is_open:
            raise UsageError(
                "The messages of a running session cannot be replaced. Abort it first, or wait for its end."
            )
        self._take_queue_back()
        self._last_stream, self._messages = None, _read(messages)

    def _take_queue_back(self) -> None:
        """Move undelivered messages of the last run back to the queue. The session never resumes that run."""
        if self._last_stream is not None:
            self.queue.detach()

    def steer(self, text: Any) -> None:
        """Queue a message to redirect the session: delivered as soon as `steering_mode` allows, or in the next run."""
        self.queue.add_steering(text)

    def follow_up(self, text: Any) -> None:
        """Queue a message that is delivered when the session would stop, or in the next run."""
        self.queue.add_followup(text)

    def reset(self) -> None:
        """Clear the conversation and the queue. Raises UsageError while a stream is open."""
        self._check_not_open()
        self.messages = []
        self.queue.dequeue_steering()
        self.queue.dequeue_followup()

    def abort(self, reason: str = "aborted") -> bool:
        """Cancel the latest run. Every call gets a result; queued messages stay queued.

        Return False if there is no run to cancel.
        """
        run = self._latest() if self._latest is not None else None
        return run is not None and run.cancel(reason)


def _read(messages: Sequence[Any]) -> list[Message]:
    """Return the conversation as messages. A user may have added messages as mappings."""
    return [to_message(message) for message in messages]


def _left_open(state: State) -> Iterator[Message]:
    """Yield results for the calls of a run that stopped during its calls because a nested loop failed or paused.

    The run may never be resumed, and the next run must send a valid conversation to the model.
    """
    if not any(not call.hidden for call in state.open.values()):
        return
    errors = failure_texts(state)
    for call in state.calls.values():
        if not call.hidden:
            why = errors.get(call.id, ABORTED)
            end = call.end or CallEnd(call_id=call.id, name=call.name, result=why, is_error=True, outcome="aborted")
            yield result_message(call, end, state.max_result_chars)
