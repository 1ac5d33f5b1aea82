"""ExecutionLoop: requests that answer with calls and data, until one has an output (SEMANTICS.md).

Written top to bottom, the algorithm is:

    while True:
        request a Solution; start each of its calls as soon as the data it refers to exists,
            also while the rest of the answer is still streaming
        when the answer is complete and no more call can start: fail the calls that still wait
        append what the calls wrote, and then the errors of the calls that failed
        if the Solution has an output: end with it

As a loop design it has three roles. `ExecutionLoop.advance` decides what happens next. `ExecutionRequests` send the
context, and read the calls from an answer while it arrives. `ExecutionCalls` decide which calls may start: those whose
references are found (`dataflow`) in the data that the log folds to (`context`). Arguments are resolved when a call is
checked and again when it starts, so that a person decides about the data and not about a reference to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Unpack

from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, Event, MessageAdded, ModelStart, RunEnd, RunStart, StopReason
from agentnb.core.graph import CallDependencies
from agentnb.core.loop import Calls, Design, LoopFrame, Requests
from agentnb.core.messages import Message, input_messages, text_of
from agentnb.core.reply import Reply
from agentnb.core.required_effects import MODEL, Effect, required_effects
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool
from agentnb.loops.base import Loop, check_system_prompt, count_of
from agentnb.loops.events import take
from agentnb.loops.execution_loop.context import Context, Round, read_round, repeats_error
from agentnb.loops.execution_loop.dataflow import MODES, Dataflow, Mode, call_graph, check_plans, plan_message
from agentnb.loops.execution_loop.messages import returned, to_context, to_input
from agentnb.loops.execution_loop.solution import (
    PLANS,
    REFERENCES,
    OutputCheck,
    SolutionReply,
    instructions,
    native_specifications,
    read_again,
    solution_schema,
)
from agentnb.loops.execution_loop.stream import ExecutionStream
from agentnb.loops.execution_loop.tools import (
    Activity,
    Confirm,
    Delegates,
    SchemaTool,
    confirmation,
    is_detached,
    split_offered,
    with_schemas,
)
from agentnb.loops.execution_loop.types import Call, ErrorMessage, Solution, as_it_runs
from agentnb.loops.streaming import StreamStatus
from agentnb.run.validation import StartOptions


class ExecutionRequests(Requests):
    """The model requests of an execution loop: the context, and the instructions to answer with a Solution."""

    loop: ExecutionLoop
    answers_overlap = True  # a call starts when its own object closes

    @cached_property
    def system_prompt(self) -> str:
        """The prompt that the user has given, and instructions that describe the tools and the output."""
        loop = self.loop
        lines = [REFERENCES if loop.native else instructions(list(self.tools.values()), loop.output_check.schema)]
        if loop.plan is not None:
            lines += [PLANS[mode] for mode in dict.fromkeys(("eager", loop.plan))]
        return "\n\n".join([*([loop.system_prompt] if loop.system_prompt else []), "\n".join(lines)])

    def options(self) -> dict[str, Any]:
        """Return the options of a request: the tools, or the schema of a Solution that names them."""
        tools = list(self.tools.values())
        if self.loop.native:
            return {"tools": native_specifications(tools)} if tools else {}
        return {"schema": solution_schema(tools, self.loop.output_check.schema)}

    def messages(self, state: State) -> list[dict[str, Any]]:
        """Return the messages of a request: the context (SEMANTICS.md, 2. Messages and data)."""
        return self.recorded_messages(state, {"native": self.loop.native})

    @classmethod
    def recorded_messages(cls, state: State, config: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of a request with this configuration. Answers are sent only with native calls."""
        context = Context.of(state)
        return context.messages(native=config.get("native", False) or context.native)

    def new_reply(self, state: State) -> Reply:
        """Return the reader of an answer. It recognizes the calls that earlier answers to this request made."""
        context = Context.of(state)
        earlier = [call.proposed for call in state.calls.values() if not call.let_go]
        made, native = context.calls_made + len(earlier), self.loop.native or context.native
        tools = self.tools.values()
        constants = {tool.name: tool.constants for tool in tools if isinstance(tool, SchemaTool) and tool.constants}
        return SolutionReply(state.turn, made, earlier, native=native, run=state.at_path.runs, constants=constants)

    def read_again(self, message: Message) -> Message:
        """Return an answer whose text was replaced, with the output of its new text."""
        native = self.loop.native or bool(message.details and message.details.get("native"))
        return message.model_copy(update={"details": read_again(message, native=native)})


class ExecutionCalls(Calls):
    """The calls of an execution loop: each starts as soon as the data that it refers to exists."""

    loop: ExecutionLoop

    def flow(self, state: State) -> Dataflow:
        """Return the dataflow of the calls at a state of a run."""
        return Dataflow(state, self.tools, lazy=self.loop.plan == "lazy")

    def required(self, state: State) -> Sequence[Effect]:
        """Return the required effects: the model request, the questions, and the calls that run or may be checked."""
        required = required_effects(state)
        if not required or not state.open:
            return required
        effects = self.flow(state).effects(self.loop.max_concurrency)
        return [MODEL, *effects] if MODEL in required else effects

    def within_limit(self, calls: Sequence[CallState], state: State) -> Sequence[CallState]:
        """Return those of the checked calls that may start now under `max_concurrency`."""
        if self.loop.max_concurrency is None and not any(tool.sequential for tool in self.tools.values()):
            return calls
        return self.flow(state).admitted(calls, self.loop.max_concurrency)

    def call_graph(self, state: State) -> CallDependencies:
        """Return the calls of the round, and which of them read what others write."""
        required = self.required(state) if self.before_call is not None and not state.paused else ()
        confirming = {effect.id for effect in required if effect.kind == "call"}
        return call_graph(self.flow(state), state, confirming)

    def arguments(self, call: CallState, state: State) -> dict[str, Any]:
        """Return the call's parameters, with data in place of references. Raises InvalidArguments."""
        return self.flow(state).arguments(call)

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Return the call, ready to run. Raises InvalidArguments if it does not fit its tool."""
        delegate = self.loop.delegates.name_for(tool, call)
        if not isinstance(tool, SchemaTool):
            return tool.bind(arguments)
        return tool.prepare(
            as_it_runs(call, arguments),
            lambda: self._visible(tool, call, state, isolated=delegate is not None),
            delegated=self.loop.delegates.loop_for(tool, call) is not None,
        )

    def _visible(self, tool: SchemaTool, call: CallState, state: State, *, isolated: bool) -> list[dict[str, Any]]:
        """Return the part of the context that a call may see. Without scopes: the log, or nothing if `isolated`."""
        resolved = Call.of(call)
        scopes = tool.scopes_of(resolved)
        if scopes is None and not isolated:
            return Context.of(state).log(state)
        return Context.of(state).view(scopes or (), resolved.get("_instance"))

    def outcome(self, value: Any) -> dict[str, Any]:
        """Return the fields of the call's end. A tool may return a message, of data or of text for the model."""
        return returned(value)

    def detaches(self, call: CallState) -> bool:
        """Return True if the call's tool is detached (SEMANTICS.md, 10. Detached tools)."""
        return is_detached(self.tools.get(call.name))

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """Return the delegate that performs the call, or None."""
        return self.loop.delegates.loop_for(self.tools.get(call.name), call)

    def input_for(self, call: CallState, state: State) -> Any:
        """Return the input of the delegate: what the call's scopes allow it to see, then the call's parameters."""
        tool, delegate = self.tools.get(call.name), self.loop_for(call, state)
        if delegate is None or not isinstance(tool, SchemaTool):
            return super().input_for(call, state)
        visible = self._visible(tool, call, state, isolated=True)
        if isinstance(delegate, ExecutionLoop):
            return [*visible, {"type": "data", "kind": "input", "data": call.arguments}]

        # Loops of other designs get text.
        given = call.arguments["input"] if set(call.arguments) == {"input"} else call.arguments
        return {"input": given, "context": visible} if visible else given


class ExecutionLoop(Loop):
    """Request Solutions and run their calls as their data allows, until a Solution has an output.

    llm: the model. tools: what it can call; a tool may be a JSON schema, latent or performed by one of the
    `activities`. output: a JSON schema or a type that the output must fit; the model is sent an error if it does not.
    confirm: called with each call right before it starts, while other calls continue; returns True, False,
    `Reject(reason)`, or a call (Call or dict) to run instead, which is checked again. max_requests: maximal number of
    model requests; without it, a model that never answers with a Solution is asked forever. max_concurrency: maximal
    number of calls that run concurrently; calls awaiting approval do not count. context: messages for the model, also
    data messages (`{"type": "data", "kind": ..., "data": ...}`, or `{"type": "input", "input": ...}`); a message
    `{"type": "tool", "tool": {name: schema}}` offers tools. system_prompt: sent first. native: offer the tools in the
    provider's own format instead of asking for JSON text; text without calls is then the output. plan: `eager` or
    `lazy`; each request then includes the calls of the last one as a plan. delegates: loops and saved requests, by the
    names that tools have in `_delegate`.

    Raises UsageError for arguments that are not valid.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "ready": ["updating", "requesting", "done"],
        "requesting": ["confirming", "calling", "updating", "done"],
        "confirming": ["calling", "requesting", "updating", "done"],
        "calling": ["confirming", "requesting", "updating", "done"],
        "updating": ["requesting", "confirming", "calling", "done"],  # a detached call may run again after a restore
        "done": [],
    }
    opened_by: ClassVar[Mapping[str, str]] = {
        "model_start": "requesting",
        "approval_request": "confirming",
        "call_start": "calling",
        "message": "updating",
        "run_end": "done",
    }
    requests_class = ExecutionRequests
    calls_class = ExecutionCalls

    def __init__(
        self,
        llm: Any,
        tools: Sequence[Any] | Mapping[str, Any] | None = (),
        *,
        output: Any = None,
        confirm: Confirm | None = None,
        max_requests: int | None = None,
        max_concurrency: int | None = None,
        context: Sequence[Any] = (),
        activities: Mapping[str, Activity] | None = None,
        system_prompt: str | None = None,
        native: bool = False,
        plan: Mode | None = None,
        delegates: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        tools, context = split_offered(tools, context)
        super().__init__(llm, with_schemas(tools, activities or {}), name=name)

        # Check the arguments.
        if plan is not None and plan not in MODES:
            raise UsageError(f"plan must be None or one of {', '.join(MODES)}, not {plan!r}.")
        if isinstance(context, (str, Mapping)) or not isinstance(context, Iterable):
            raise UsageError(f"context= takes a list of messages, not {context!r:.80}.")
        self._initial_context: list[Message] = [to_context(message) for message in context]
        check_system_prompt(system_prompt)
        self.max_requests = count_of("max_requests", max_requests)
        self.max_concurrency = count_of("max_concurrency", max_concurrency, least=1)
        self.native = native
        self.plan = plan
        self.output_check = OutputCheck(output)
        self.system_prompt = system_prompt
        self.delegates = Delegates(
            delegates or {}, lambda **options: ExecutionLoop(**{"llm": llm, "max_requests": max_requests, **options})
        )
        if confirm is not None and not callable(confirm):
            raise UsageError(f"confirm must be a function that takes the call, or None, not {confirm!r}.")
        if confirm is not None:
            self.before_call = confirmation(confirm)

        # The state before the first run, the latest run, the stream that `run` returned last, and a separate context
        # for readers in other threads.
        self._before = State(messages=self._initial_context)
        self._frame: LoopFrame | None = None
        self._last_stream: StreamStatus | None = None
        self._reading: tuple[State, Context] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, in this process or another one, which has not run yet."""
        of_runs = {"_frame": None, "_last_stream": None, "_reading": None, "_lock": None}
        return {**self.__dict__, "_before": State(messages=self._initial_context), **of_runs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def config(self) -> dict[str, Any]:
        """Return the limits, the options and the output's schema."""
        limits = {name: getattr(self, name) for name in ("max_requests", "max_concurrency", "native")}
        given = {"plan": self.plan, "delegates": self.delegates.names}
        limits |= {name: value for name, value in given.items() if value}
        return {**super().config(), **limits, "system_prompt": self.system_prompt, "output": self.output_check.schema}

    # -- the decision ----------------------------------------------------------------------------------------------

    def begin(self, input: Any, history: Sequence[Message] = ()) -> RunStart:
        """Return the first event of a run: its context, and its input as messages."""
        given = None if input is None else to_input(input)
        start = super().begin(given, [*self._initial_context, *history])
        check_plans([*start.history, *map(to_context, given or ())])
        return start

    def messages_from(self, input: Any) -> list[Message]:
        """Return the input of a nested run as messages. An object is the loop's parameters."""
        try:
            return to_input(input)
        except UsageError:  # not written for this design
            return input_messages(input)

    def advance(self, state: State) -> Event | None:
        """Return the next event; None to wait for detached calls (SEMANTICS.md, 5. Algorithm)."""
        # No more call can start: fail those that still wait.
        if len(state.open) > state.detached:
            call = next(call for call in state.open.values() if not call.detached)
            why = Dataflow(state).why_unresolved(call) or "unresolved reference"
            return CallEnd(call_id=call.id, name=call.name, result=why, is_error=True, outcome="invalid")

        # Before the first request, append the input.
        if state.queues["input"]:
            return take(state, "input")
        if state.reply is None:
            return self._request(state)

        # The round has ended: append what its calls wrote, then its errors.
        context = Context.of(state)
        round = read_round(context, state, self.output_check)
        if (logged := context.logged(state)) < len(round.log):
            return MessageAdded(message=round.log[logged])

        # Deliver messages of the user. A message that was delivered after the answer gets a request, also if the round
        # has an output.
        if state.queues["steering"] and self._may_request(state):
            return take(state, "steering")
        was_delivered = bool({"steering", "follow_up"} & set(state.heard))
        stop_reason = None if was_delivered else self._stop_reason(state, round)
        if stop_reason is None:
            return self._request(state)
        if state.queues["follow_up"] and self._may_request(state):
            return take(state, "follow_up")

        # End. The output of an answer that was cut off is its text.
        if stop_reason == round.reply.cut_off and not round.has_output:
            return self._end(state, stop_reason, text_of(round.reply.message.content))
        return self._end(state, stop_reason, round.output)

    def _request(self, state: State) -> Event | None:
        """Return the next request, or the plan that comes before it, or the end at the limit `max_requests`."""
        if not self._may_request(state):
            return self._end(state, "max_requests")
        if self.plan is not None and state.reply is not None and state.reply.message.tool_calls:
            is_planned = Context.of(state).planned == state.turn
            if not is_planned and not Dataflow(state).cycle():
                return MessageAdded(message=plan_message(self.plan, state))
        return ModelStart(turn=state.turn + 1)

    def _end(self, state: State, reason: StopReason, output: Any = None) -> Event | None:
        """Return the end, once all detached calls have ended (SEMANTICS.md, 10. Detached tools)."""
        return RunEnd(reason=reason, output=output) if not state.detached else None

    def _may_request(self, state: State) -> bool:
        return self.max_requests is None or state.turn < self.max_requests

    def _stop_reason(self, state: State, round: Round) -> StopReason | None:
        """Return the stop reason if the loop ends with this round, else None (SEMANTICS.md, 5. Algorithm)."""
        cut_off, has_calls = round.reply.cut_off, bool(round.reply.message.tool_calls)
        if round.has_output:
            return cut_off or "completed"
        if cut_off in ("content_filter", "refusal") and not has_calls:
            return cut_off  # the next answer would be stopped too
        if not self._may_request(state):
            return "max_requests"
        # If nothing is new, the next request would be equal to this one.
        is_new = round.calls_in_log or has_calls or (round.has_errors and not repeats_error(state.messages))
        return None if is_new else cut_off or "stalled"

    # -- the loop as its user sees it ------------------------------------------------------------------------------

    def run(self, input: Any = None, **options: Unpack[StartOptions]) -> ExecutionStream:
        """Run the loop, and return the stream of its events.

        options: as for `start`. Raises UsageError while another stream of this loop is open.
        """
        if self._last_stream is not None and self._last_stream.is_open():
            raise UsageError("This loop is running. Read its stream to the end, or close it.")
        stream = ExecutionStream(self.start(input, **options), self)
        self._last_stream = stream.status
        return stream

    def attached(self, frame: LoopFrame) -> None:
        """Attach to a run: the loop's `state`, `context` and `output` are those of this run from now on."""
        self._frame = frame

    @property
    def current_calls(self) -> ExecutionCalls:
        """The calls of the latest run. Raises RuntimeError before the first."""
        if self._frame is None or not isinstance(self._frame.calls, ExecutionCalls):
            raise RuntimeError(f"There is no run of {self.name} yet. Start one first.")
        return self._frame.calls

    @property
    def state(self) -> dict[str, Any]:
        """The current data of the kind `state`."""
        whole: dict[str, Any] = self._read().whole("state")
        return whole

    @property
    def context(self) -> list[dict[str, Any]]:
        """The log: the messages that the run was given, and each data message and error since, oldest first."""
        return self._read().log(self._current())

    @property
    def output(self) -> Any:
        """The output of the latest run; None until it has ended."""
        return self._frame.state.output if self._frame is not None else None

    @property
    def solution(self) -> Solution | None:
        """The last answer of the model as a Solution; None before the first."""
        reply = self._current().reply
        if reply is None:
            return None
        fields = reply.message.details or read_again(reply.message, native=False)
        calls = [Call.made_of(call.name, call.arguments) for call in reply.message.tool_calls]
        output, done = fields.get("output"), fields.get("done") is True
        return Solution(meta=fields.get("meta"), calls=calls, output=output, done=done)

    @property
    def errors(self) -> list[ErrorMessage]:
        """The errors of the last round that has ended."""
        return [ErrorMessage(data=error.get("data")) for error in self._read().errors]

    def _current(self) -> State:
        """Return the state of the latest run; before the first, a state with the loop's initial context."""
        if self._frame is None or self._frame.state.started is None:
            return self._before
        return self._frame.state

    def _read(self) -> Context:
        """Return the context of the latest run, for readers in any thread. The run's own context is not shared."""
        state = self._current()
        with self._lock:
            if self._reading is None or self._reading[0] is not state:
                self._reading = state, Context()
            self._reading[1].catch_up(state)
            return self._reading[1]
