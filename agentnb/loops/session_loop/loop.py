"""SessionLoop: the loop of a chat agent, with an inner loop for tool calls (SEMANTICS.md).

Written top to bottom, the algorithm is:

    while True:                                    # the outer loop: follow-ups
        while there is something to answer:        # the inner loop: tool rounds
            ask the model; run its tool calls; take the user's messages that redirect it (steering)
        if no follow-up is queued:
            break

`advance` is this algorithm as a decision: take the input and steering, ask the model while there is something to
answer, then take a follow-up, then end. Steering is delivered at the start and after every turn. If steering arrives
while a batch of calls runs, `steering_mode` decides what happens to the batch (`steering.py`). In every mode each call
has exactly one result, before the next message, and the results are in the order in which the model made the calls
(SEMANTICS.md, 4. Tool calls).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Unpack

from msgspec.structs import replace

from agentnb.core.calls import result_message
from agentnb.core.conversation import messages_in_order, showable
from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, Event, ModelEnd, ModelStart, Queue, RunEnd, RunStart, StopReason
from agentnb.core.loop import Calls, LoopFrame, Requests
from agentnb.core.messages import Message, input_messages, text_of, to_messages
from agentnb.core.protocols import LoopMailbox
from agentnb.core.required_effects import MODEL, Effect, required_effects
from agentnb.core.state import CallState, State
from agentnb.loops import functions
from agentnb.loops.base import Loop, check_system_prompt, count_of
from agentnb.loops.events import propose, take
from agentnb.loops.output import StructuredOutput, prompt_for, schema_of
from agentnb.loops.session_loop.history import (
    ENDS_WITH_A_CUT_ANSWER,
    closing_messages,
    read_messages,
    results_of_open_calls,
)
from agentnb.loops.session_loop.hooks import (
    ToolCallContext,
    TurnContext,
    after_call,
    before_call,
    copies,
    preparation,
)
from agentnb.loops.session_loop.queue import MessageQueue
from agentnb.loops.session_loop.steering import (
    SKIPPED,
    SteeringMode,
    first_in_turn,
    next_skipped,
    skip_reason,
    skipped,
)
from agentnb.loops.session_loop.stream import EventStream
from agentnb.loops.streaming import StreamStatus
from agentnb.run.validation import StartOptions

Drain = Literal["one-at-a-time", "all"]


_RESULT_KEYS = frozenset({"content", "details", "terminate", "is_error"})
"""The keys of a dict that a tool may return as the fields of its result."""


class SessionRequests(Requests):
    """The model requests of a session."""

    loop: SessionLoop

    @property
    def system_prompt(self) -> str | None:
        """The prompt, with instructions for a model that takes no schema."""
        return prompt_for(self.loop.output, self.loop)

    def options(self) -> dict[str, Any]:
        """Return the options of every request: the tools, and the schema of the output."""
        return super().options() | schema_of(self.loop.output)

    def after_reply(self, reply: ModelEnd) -> dict[str, Any]:
        """Return how the calls of a reply run: `sequential` (one by one), and `provisional`. Empty if neither.

        Results are provisional in mode `discard`: steering can replace them until the loop continues.
        """
        loop = self.loop
        if loop.tool_execution == "parallel" and loop.steering_mode != "discard":
            return {}
        return {"sequential": loop.tool_execution == "sequential", "provisional": loop.steering_mode == "discard"}


class SessionCalls(Calls):
    """The calls of a session: checked in their order, and skipped when steering arrives."""

    loop: SessionLoop
    checks_in_order = True  # SEMANTICS.md, 4. Tool calls

    def required(self, state: State) -> Sequence[Effect]:
        """Return the required effects without the calls to skip.

        A call that has started stays required, even if its outcome is unknown after a crash.
        """
        required = required_effects(state)
        if not required or (reason := skip_reason(state, self.loop.steering_mode)) is None:
            return required
        # Hidden calls and calls that have started continue; so does the first call of a sequential turn.
        kept = {call.id for call in state.open.values() if call.hidden or call.attempt}
        if reason == SKIPPED and (first := first_in_turn(state)) is not None:
            kept.add(first.id)
        return [effect for effect in required if effect is MODEL or effect.id in kept]

    def skip(self, call: CallState, state: State) -> CallEnd | None:
        """Return the result of a call that steering skips before its tool runs, or None (SEMANTICS.md, 5. Steering)."""
        # A call that is retried after a crash may have had effects: it is not skipped.
        if self.loop.steering_mode == "after_batch" or call.hidden or call.attempt > 1:
            return None
        if state.reply is not None and state.reply.sequential:  # each call runs as soon as it is checked
            return None
        reason = skip_reason(state, self.loop.steering_mode)
        return skipped(call, reason) if reason is not None else None

    def outcome(self, value: Any) -> dict[str, Any]:
        """Return the fields of a call's result from the value that the tool returned.

        A tool may return a dict with `content` and optionally `details`, `terminate` or `is_error`.
        """
        if isinstance(value, dict) and "content" in value and set(value) <= _RESULT_KEYS:
            fields = {"result": value["content"], **{k: v for k, v in value.items() if k != "content"}}
            return {**fields, "terminate": bool(fields.get("terminate")), "is_error": bool(fields.get("is_error"))}
        return {"result": value}


class SessionLoop(Loop):
    """A session: ask the model, run its tool calls and return the results to it, until no message needs an answer.

    llm, tools: the model, and the tools that it can call. queue: the user's messages during a run (`MessageQueue`).
    steering_mode: the effect of steering on a batch of calls. `after_batch` completes the batch, `skip_pending` skips
    the calls that have not started, `discard` also replaces existing results. drain: queued messages are delivered
    `one-at-a-time`, or `all` together. tool_execution: `parallel` or `sequential`. max_turns: maximum number of model
    requests; None is no limit. system_prompt: sent to the model before the conversation. output: a type (such as a
    pydantic model) or a JSON schema that the last answer must fit; awaiting a run then returns an object of the type
    (`agentnb.loops.output`). messages: the conversation to continue from.

    Hooks may be async. before_tool_call: called with a `ToolCallContext` before every call; returns None or a dict of
    `block, reason, terminate`. after_tool_call: called with a `ToolCallContext` after every call; returns None or a
    dict of `content, details, is_error, terminate`. transform_context, convert_to_llm: compute the messages of a model
    request from those of the conversation. should_stop_after_turn: called after every turn with a `TurnContext`; the
    session ends if it returns true.

    Each hook receives its own copies of the messages. Each copy is made once: the history does not keep a hook's
    changes, but the same hook sees them at its next call. To change a message for one request only, copy it first.

    Raises UsageError for an unknown mode or an argument of the wrong type.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "idle": ["listening", "thinking", "done"],
        "listening": ["thinking", "done"],
        "thinking": ["acting", "listening", "done"],
        "acting": ["thinking", "listening", "done"],
        "done": [],
    }
    requests_class = SessionRequests
    calls_class = SessionCalls
    opened_by: ClassVar[Mapping[str, str]] = {
        "message": "listening",
        "model_start": "thinking",
        "call_start": "acting",
        "approval_request": "acting",
        "run_end": "done",
    }

    def __init__(
        self,
        llm: Any,
        tools: Sequence[Any] | None = (),
        queue: MessageQueue | None = None,
        *,
        steering_mode: SteeringMode = "after_batch",
        drain: Drain = "one-at-a-time",
        tool_execution: Literal["parallel", "sequential"] = "parallel",
        before_tool_call: Callable[[ToolCallContext], Any] | None = None,
        after_tool_call: Callable[[ToolCallContext], Any] | None = None,
        transform_context: Callable[[Sequence[Message]], Any] | None = None,
        convert_to_llm: Callable[[Sequence[Message]], Any] | None = None,
        should_stop_after_turn: Callable[[TurnContext], Any] | None = None,
        max_turns: int | None = None,
        system_prompt: str | None = None,
        output: Any = None,
        messages: Sequence[Any] = (),
        name: str | None = None,
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
        _one_of("steering_mode", steering_mode, ("after_batch", "skip_pending", "discard"))
        _one_of("drain", drain, ("one-at-a-time", "all"))
        _one_of("tool_execution", tool_execution, ("parallel", "sequential"))
        _check_hooks(
            before_tool_call=before_tool_call,
            after_tool_call=after_tool_call,
            transform_context=transform_context,
            convert_to_llm=convert_to_llm,
            should_stop_after_turn=should_stop_after_turn,
        )
        check_system_prompt(system_prompt)
        self.steering_mode, self.drain, self.tool_execution = steering_mode, drain, tool_execution
        self.max_turns, self.system_prompt = count_of("max_turns", max_turns), system_prompt
        self.output = StructuredOutput(output) if output is not None else None
        if before_tool_call is not None:
            self.before_call = before_call(before_tool_call)
        if after_tool_call is not None:
            self.after_call = after_call(after_tool_call)
        if transform_context is not None or convert_to_llm is not None:
            self.prepare = preparation(transform_context, convert_to_llm)
        if should_stop_after_turn is not None:
            self.activities = {
                "should_stop_after_turn": lambda _, state: functions.call(should_stop_after_turn, _with_results(state))
            }

    # -- the runs of the session -------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, in this process or another one, which has not run yet."""
        return {**self.__dict__, "_latest": None, "_last_stream": None}

    def begin(self, input: Any, history: Sequence[Message] = ()) -> RunStart:
        """Return the first event of a run. It includes the messages that are already queued."""
        return replace(super().begin(input, history), queued=self.queue.hand_over())

    def _start(self, **options: Any) -> Any:
        if "history" not in options:
            options["history"] = messages_in_order(read_messages(self.messages))
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
        messages = showable(read_messages(self.messages))
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

    # -- the conversation and the queue ------------------------------------------------------------------------------

    @property
    def messages(self) -> list[Message]:
        """The conversation. Assign another one to continue from it. Change it only while no run is in progress."""
        if self._last_stream is None:
            return self._messages
        state, ended = self._last_stream.run.state, self._last_stream.ended
        # Compute the list again only if the run has advanced since the last access.
        if self._position != (state.position, ended):
            left_open = results_of_open_calls(state) if ended else ()
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
        self._last_stream, self._messages = None, read_messages(messages)

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

    def messages_from(self, input: Any) -> list[Message]:
        """Return the input from a parent loop as messages: one for each item, an object as JSON text."""
        return input_messages(input)

    # -- the decision ------------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Event:
        """Return the next event (SEMANTICS.md, 3. Algorithm)."""
        if state.unsaid and (end := next_skipped(state, self.steering_mode)):
            return end
        queues, delivered = state.queues, state.heard
        if queues["input"]:
            return take(state, "input")
        # After a reply and its calls, ask `should_stop_after_turn` before taking steering or a follow-up.
        if state.reply is not None and not delivered and (event := self._after_turn(state)) is not None:
            return event
        # Steering comes first, but not between a follow-up and the request that answers it.
        if queues["steering"] and "follow_up" not in delivered and self._may_deliver(state, "steering"):
            return self._unless_at_limit(state, take(state, "steering"))
        if queues["follow_up"] and self.drain == "all" and "follow_up" in delivered:
            return take(state, "follow_up")
        if delivered or self._has_results_to_answer(state) or self._starts_with_unanswered_message(state):
            return self._unless_at_limit(state, ModelStart(turn=state.turn + 1))
        # Nothing is left to answer: take a follow-up, or end.
        if self._may_deliver(state, "follow_up"):
            return self._unless_at_limit(state, take(state, "follow_up"))
        return self._end(state, _completed(state) if state.messages else "empty")

    def _after_turn(self, state: State) -> Event | None:
        """Return the call of `should_stop_after_turn`, then the end if the hook says so or fails; otherwise None."""
        if "should_stop_after_turn" not in self.activities:
            return None
        id = f"should_stop_after_turn_{state.turn}"
        asked = state.calls.get(state.own_id(id))
        if asked is None:
            return propose(state, id, "should_stop_after_turn", {})
        if asked.end is not None and asked.end.is_error:
            return RunEnd(reason="error", error=asked.end.error)
        return self._end(state, _completed(state)) if asked.end is not None and asked.end.result else None

    def _unless_at_limit(self, state: State, event: Event) -> Event:
        """Return the event, or the end if `max_turns` is reached. Queued messages then stay queued."""
        if self.max_turns is not None and state.turn >= self.max_turns:
            return self._end(state, "max_turns")
        return event

    @staticmethod
    def _starts_with_unanswered_message(state: State) -> bool:
        """Return True if the history from which this run continues ends with a message to answer."""
        return state.reply is None and bool(state.messages) and state.messages[-1].role != "assistant"

    def _may_deliver(self, state: State, queue: Queue) -> bool:
        return bool(state.queues[queue]) and (self.drain == "all" or queue not in state.heard)

    def _has_results_to_answer(self, state: State) -> bool:
        if state.reply is None or not state.reply.message.tool_calls:
            return False
        calls = state.calls.values()
        return any(not call.hidden and call.end is not None and not call.end.terminate for call in calls)

    def _end(self, state: State, reason: StopReason) -> Event:
        if self.output is not None:
            if reason == "max_turns" or state.reply is None or state.reply.message.tool_calls:
                return RunEnd(reason=reason, output=self.output.partial(state.reply))
            may_ask = self.max_turns is None or state.turn < self.max_turns
            return self.output.next_event(state, state.reply, may_ask=may_ask)
        answer = state.reply.message if state.reply is not None else None
        return RunEnd(reason=reason, output=text_of(answer.content) if answer is not None else None)

    def config(self) -> dict[str, Any]:
        """Return the modes and limits of this session."""
        settings = ("steering_mode", "drain", "tool_execution", "max_turns", "system_prompt")
        output = {"output": self.output.schema} if self.output is not None else {}
        return {**super().config(), **{name: getattr(self, name) for name in settings}, **output}

    def read_output(self, recorded: Any) -> Any:
        """Return the output as an object of the type that was given as `output`."""
        return self.output.instance(recorded) if self.output is not None and recorded is not None else recorded


def _completed(state: State) -> StopReason:
    """Return the stop reason at the end of a session: `completed`, unless its last answer was cut off."""
    reply = state.reply
    return (reply.cut_off if reply is not None and not reply.message.tool_calls else None) or "completed"


def _with_results(state: State) -> TurnContext:
    """Return the messages, and the provisional results of the turn, which are not yet in the history."""
    calls = state.calls.values() if state.unsaid else ()
    most = state.max_result_chars
    results = (result_message(call, call.end, most) for call in calls if not call.hidden and call.end is not None)
    copied = (message.model_copy(deep=True) for message in results)
    return TurnContext([*copies("should_stop_after_turn", state), *copied])


def _check_hooks(**hooks: Any) -> None:
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise UsageError(f"{name} must be a function or None, not {hook!r:.80}.")


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
