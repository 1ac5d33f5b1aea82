"""What an execution loop says of itself, and the stream of its own events: the loop as seen from outside of its run.

What an execution loop asks of its model, and how its calls are made ready to run: the loop towards its driver.

ExecutionLoop: requests that answer with calls and data, until one has an output (SEMANTICS.md).

Written top to bottom it would read:

    while True:
        ask the model for a Solution; start each of its calls as soon as what it refers to is there,
            also while the rest of the answer is still coming
        when the answer is complete and nothing can start any more: what still waits will never run, and fails
        append what the calls have written, and then the errors of all that failed
        if the Solution has an output: end with it

As a decision it is `advance`. What may start is `wanted`: the calls whose references are found (`dataflow`)
in the data that the log folds to (`context`). What a call runs with is looked at when it is checked and again
when it is launched, so that a person decides about the data itself and not about its name.

A call of a detached tool is not waited for: the request is over without it, and what comes of it is appended when it
does. Only the end of the run waits; where the run is cancelled, fails or meets a limit, the call is cancelled with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, Event, MessageAdded, ModelStart, RunEnd, RunStart, StopReason
from agentnb.core.graph import CallGraph
from agentnb.core.loop import Design
from agentnb.core.messages import Message, input_messages, text_of
from agentnb.core.reply import Reply
from agentnb.core.running import Frame
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool
from agentnb.core.wanted import MODEL, Effect, wanted
from agentnb.loops.base import Loop, check_system_prompt, count_of, take
from agentnb.loops.execution_loop.context import Context, Tick, is_told_again, read_tick
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
from agentnb.loops.execution_loop.stream import ExecutionEvent, ExecutionStream
from agentnb.loops.execution_loop.tools import (
    Activity,
    Confirm,
    Delegates,
    SchemaTool,
    confirmation,
    is_detached,
    with_offered,
    with_schemas,
)
from agentnb.loops.execution_loop.types import Call, ErrorMessage, Solution, as_it_runs
from agentnb.loops.options import StartOptions
from agentnb.loops.streaming import Telling


class ExecutionStanding(Loop):
    """What ExecutionLoop is besides its decision."""

    def __init__(
        self,
        llm: Any,
        tools: Sequence[Any] | Mapping[str, Any] | None,
        given: Sequence[Any],
        *,
        plan: Mode | None,
        name: str | None,
    ) -> None:
        """`given`: the context of every run."""
        super().__init__(llm, tools, name=name)
        if plan is not None and plan not in MODES:
            raise UsageError(f"plan must be None or one of {', '.join(MODES)}, not {plan!r}.")
        if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
            raise UsageError(f"context= takes a list of messages, not {given!r:.80}.")
        self.plan = plan
        self.tools_by_name: dict[str, Tool] | None = None
        """The tools of a run, by name; None before there was one."""
        self._given: list[Message] = [to_context(message) for message in given]
        self._before = State(messages=self._given)
        self._frame: Frame | None = None
        self._telling: Telling[ExecutionEvent] | None = None
        self._reading: tuple[State, Context] | None = None
        self._lock = threading.Lock()

    def begin(self, input: Any, history: Sequence[Message] = ()) -> RunStart:
        """The run's first fact: the context it has, and its input as messages."""
        given = None if input is None else to_input(input)
        start = super().begin(given, [*self._given, *history])
        check_plans([*start.history, *map(to_context, given or ())])
        return start

    def hears_as(self, input: Any) -> list[Message]:
        """An object is the loop's parameters, as where it is started on its own."""
        try:
            return to_input(input)
        except UsageError:  # it was meant for others
            return input_messages(input)

    def flow(self, state: State) -> Dataflow:
        """How the calls stand of a run that stands there."""
        return Dataflow(state, self.tools_by_name, lazy=self.plan == "lazy")

    def run(self, input: Any = None, **options: Unpack[StartOptions]) -> ExecutionStream:
        """Run the loop; the stream of its ten kinds of events. Raises UsageError while one is open.

        options: as for `start`.
        """
        if self._telling is not None and self._telling.is_open:
            raise UsageError("This loop is running; go on with its stream, or close it.")
        stream = ExecutionStream(self.start(input, **options), self)
        self._telling = stream.telling
        return stream

    @property
    def state(self) -> dict[str, Any]:
        """The data of the kind `state`, as the log folds to by now."""
        whole: dict[str, Any] = self._read().whole("state")
        return whole

    @property
    def context(self) -> list[dict[str, Any]]:
        """The log: what the run was given, and every data message and error since, oldest first."""
        return self._read().log(self._stands())

    @property
    def output(self) -> Any:
        """What the run came to; None until it is over."""
        return self._frame.state.output if self._frame is not None else None

    @property
    def solution(self) -> Solution | None:
        """The last answer of the model as a Solution; None before the first."""
        reply = self._stands().reply
        if reply is None:
            return None
        said = reply.message.details or read_again(reply.message, native=False)
        calls = [Call.made_of(call.name, call.arguments) for call in reply.message.tool_calls]
        output, done = said.get("output"), said.get("done") is True
        return Solution(meta=said.get("meta"), calls=calls, output=output, done=done)

    @property
    def errors(self) -> list[ErrorMessage]:
        """The errors of the last tick that has ended."""
        return [ErrorMessage(data=error.get("data")) for error in self._read().errors]

    def _stands(self) -> State:
        """Where the latest run stands; before it has begun, what it will be given is all there is."""
        if self._frame is None or self._frame.state.started is None:
            return self._before
        return self._frame.state

    def _read(self) -> Context:
        """The context of the latest run, for whoever asks from outside of it, in whatever thread."""
        state = self._stands()
        with self._lock:
            if self._reading is None or self._reading[0] is not state:
                self._reading = state, Context()
            self._reading[1].catch_up(state)
            return self._reading[1]


class ExecutionRequests(ExecutionStanding):
    """How ExecutionLoop asks its model and performs calls."""

    native: bool
    delegates: Delegates
    _output_check: OutputCheck
    _words: str | None

    def taken_up(self, frame: Frame) -> None:
        """What the loop says of its run is of this one from here on."""
        self._frame = frame

    def has_tools(self, tools: dict[str, Tool]) -> None:
        """Take the tools, and tell the model of them."""
        self.tools_by_name = tools
        how = [REFERENCES if self.native else instructions(list(tools.values()), self._output_check.schema)]
        if self.plan is not None:
            how += [PLANS[mode] for mode in dict.fromkeys(("eager", self.plan))]
        self.system_prompt = "\n\n".join([*([self._words] if self._words else []), "\n".join(how)])

    def request_options(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """The tools, or the schema of a Solution that names them."""
        if self.native:
            return {"tools": native_specifications(tools)} if tools else {}
        return {"schema": solution_schema(tools, self._output_check.schema)}

    def messages_for(self, state: State) -> list[dict[str, Any]]:
        """The context, and not the answers (SEMANTICS.md, 2. Messages and data)."""
        return self.sends(state, {"native": self.native})

    @classmethod
    def sends(cls, state: State, config: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The context; the calls and their results too where the model makes them by the provider's own means."""
        folded = Context.of(state)
        return folded.messages(native=config.get("native", False) or folded.native)

    def new_reply(self, state: State) -> Reply:
        """A Solution; a repeated request takes up the calls it has made before."""
        folded = Context.of(state)
        earlier = [call.proposed for call in state.calls.values() if not call.let_go]
        made, native = folded.calls_made + len(earlier), self.native or folded.native
        tools = (self.tools_by_name or {}).values()
        constants = {tool.name: tool.constants for tool in tools if isinstance(tool, SchemaTool) and tool.constants}
        return SolutionReply(state.turn, made, earlier, native=native, run=state.place.runs, constants=constants)

    def read_again(self, message: Message) -> Message:
        """An answer whose text is another: so is the output in it."""
        native = self.native or bool(message.details and message.details.get("native"))
        return message.model_copy(update={"details": read_again(message, native=native)})

    # -- calls -----------------------------------------------------------------------------------------------------

    def arguments(self, call: CallState, state: State) -> dict[str, Any]:
        """The call's parameters with data in place of its references."""
        return self.flow(state).arguments(call)

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Activities get the whole call and the context; latent tools the result that the model has given."""
        delegate = self.delegates.name_for(tool, call)
        if not isinstance(tool, SchemaTool):
            return tool.bind(arguments)
        delegated = self.delegates.loop_for(tool, call) is not None
        isolated = delegate is not None
        return tool.prepare(
            as_it_runs(call, arguments), lambda: self._seen(tool, call, state, isolated=isolated), delegated=delegated
        )

    def _seen(self, tool: SchemaTool, call: CallState, state: State, *, isolated: bool) -> list[dict[str, Any]]:
        """The part of the context that the call is performed with (`scopes`)."""
        made = as_it_runs(call, call.arguments)
        scopes = tool.scopes_of(made)
        if scopes is None and not isolated:
            return Context.of(state).log(state)
        return Context.of(state).view(scopes or (), made.get("_instance"))

    def outcome(self, value: Any) -> dict[str, Any]:
        """A tool may return a message: a data message, or text for the model."""
        return returned(value)

    def detaches(self, call: CallState) -> bool:
        """Whether its tool is detached (SEMANTICS.md, 10. Detached tools)."""
        return is_detached((self.tools_by_name or {}).get(call.name))

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The delegate that performs the call, where one does."""
        return self.delegates.loop_for((self.tools_by_name or {}).get(call.name), call)

    def input_for(self, call: CallState, state: State) -> Any:
        """The call's parameters, and what its scopes let a delegate see."""
        tool, delegate = (self.tools_by_name or {}).get(call.name), self.loop_for(call, state)
        if delegate is None or not isinstance(tool, SchemaTool):
            return super().input_for(call, state)
        seen = self._seen(tool, call, state, isolated=True)
        if isinstance(delegate, ExecutionLoop):
            return [*seen, {"type": "data", "kind": "input", "data": call.arguments}]
        given = call.arguments["input"] if set(call.arguments) == {"input"} else call.arguments
        return given if not seen else {"input": given, "context": seen}


class ExecutionLoop(ExecutionRequests):
    """Ask for Solutions and run their calls as data allows, until one has an output.

    llm, tools: the model and what it can call; a tool may also be a JSON schema, latent or performed by one of the
    `activities`. output: what the output must be, a JSON schema or a type; one that is not is told to the model as an
    error. confirm: asked about each call right before it is launched, the others going on; returns True, False,
    `Reject(reason)`, or a call (Call or dict) to run instead, which is checked again. max_requests: requests to the
    model at most; without it one that never answers with a Solution is told so, and asked again, for ever.
    max_concurrency: calls that run at once at most; one that is asked about does not. context: messages the model is
    told, data messages (`{"type": "data", "kind": ..., "data": ...}`, or `{"type": "input", "input": ...}`) among them;
    `{"type": "tool", "tool": {name: schema}}` offers tools. system_prompt: told first. native:
    offer the tools to the model by the provider's own means instead of asking for JSON text; a reply of text is the
    output then. plan: tell each request what the last one called, as a Plan; `eager` or `lazy` (`plan`). delegates:
    loops and saved requests that tools name in `_delegate` (`delegates`).

    Raises UsageError for what these cannot be.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "ready": ["updating", "requesting", "done"],
        "requesting": ["confirming", "calling", "updating", "done"],
        "confirming": ["calling", "requesting", "updating", "done"],
        "calling": ["confirming", "requesting", "updating", "done"],
        "updating": ["requesting", "confirming", "calling", "done"],  # what is detached may be taken up again
        "done": [],
    }
    opened_by: ClassVar[Mapping[str, str]] = {
        "model_start": "requesting",
        "approval_request": "confirming",
        "call_start": "calling",
        "message": "updating",
        "run_end": "done",
    }
    answers_overlap = True  # a call starts when its own object closes

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
        tools, told = with_offered(tools, context)
        super().__init__(llm, with_schemas(tools, activities or {}), told, plan=plan, name=name)
        check_system_prompt(system_prompt)
        self.max_requests = count_of("max_requests", max_requests)
        self.max_concurrency = count_of("max_concurrency", max_concurrency, least=1)
        self.native = native
        self._output_check = OutputCheck(output)
        self._words = system_prompt
        self.delegates = Delegates(
            delegates or {}, lambda **options: ExecutionLoop(**{"llm": llm, "max_requests": max_requests, **options})
        )
        if confirm is not None and not callable(confirm):
            raise UsageError(f"confirm= takes a function of the call, not {confirm!r}.")
        if confirm is not None:
            self.before_call = confirmation(confirm)

    # -- the decision ----------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Event | None:
        """Return the next event (SEMANTICS.md, 5. Algorithm)."""
        if len(state.open) > state.detached:  # no call can start any more (SEMANTICS.md, 5. Algorithm)
            call = next(call for call in state.open.values() if not call.detached)
            why = self.flow(state).why_unresolved(call) or "unresolved reference"
            return CallEnd(call_id=call.id, name=call.name, result=why, is_error=True, outcome="invalid")
        if state.queues["input"]:
            return take(state, "input")
        if state.reply is None:
            return self._request(state)
        context = Context.of(state)
        tick = read_tick(context, state, self._output_check)
        if (logged := context.logged(state)) < len(tick.log):
            return MessageAdded(message=tick.log[logged])
        if state.queues["steering"] and self._may_ask(state):
            return take(state, "steering")
        why_end = None if {"steering", "follow_up"} & set(state.heard) else self._why_end(state, tick)
        if why_end is None:
            return self._request(state)
        if state.queues["follow_up"] and self._may_ask(state):
            return take(state, "follow_up")
        if why_end == tick.reply.cut_off and not tick.has_output:
            return self._end(state, why_end, text_of(tick.reply.message.content))
        return self._end(state, why_end, tick.output)

    def _request(self, state: State) -> Event | None:
        if not self._may_ask(state):
            return self._end(state, "max_requests")
        if self.plan is not None and self._is_new_plan(state):
            return MessageAdded(message=plan_message(self.plan, state))
        return ModelStart(turn=state.turn + 1)

    def _is_new_plan(self, state: State) -> bool:
        """Whether the calls of the last request are to become the plan (SEMANTICS.md, 9. Plans)."""
        has_calls = state.reply is not None and bool(state.reply.message.tool_calls)
        return has_calls and Context.of(state).planned != state.turn and not self.flow(state).cycle()

    def _end(self, state: State, reason: StopReason, output: Any = None) -> Event | None:
        """The end, once everything has ended that is detached (SEMANTICS.md, 10. Detached tools)."""
        return RunEnd(reason=reason, output=output) if not state.detached else None

    def _may_ask(self, state: State) -> bool:
        return self.max_requests is None or state.turn < self.max_requests

    def _why_end(self, state: State, tick: Tick) -> StopReason | None:
        """Return the stop reason if the loop ends with this tick, else None (SEMANTICS.md, 5. Algorithm)."""
        cut_off = tick.reply.cut_off
        if tick.has_output:
            return cut_off or "completed"
        if cut_off in ("content_filter", "refusal") and not tick.reply.message.tool_calls:
            return cut_off  # asked again, it would be the same
        if not self._may_ask(state):
            return "max_requests"
        has_news = tick.read or tick.reply.message.tool_calls or (tick.has_errors and not is_told_again(state.messages))
        return None if has_news else cut_off or "stalled"  # the next request would see the same context

    def wanted(self, state: State) -> Sequence[Effect]:
        """The model, what runs, and of the calls that wait those whose references are found."""
        wants = wanted(state)
        if not wants or not state.open:
            return wants
        effects = self.flow(state).effects(self.max_concurrency)
        return [MODEL, *effects] if MODEL in wants else effects

    def with_room(self, calls: Sequence[CallState], state: State) -> Sequence[CallState]:
        """Those that `max_concurrency` lets run, and none beside one that runs alone: `wanted` has all to ask about."""
        if self.max_concurrency is None and not any(tool.sequential for tool in (self.tools_by_name or {}).values()):
            return calls
        return self.flow(state).with_room(calls, self.max_concurrency)

    def call_graph(self, state: State) -> CallGraph:
        """The calls of the tick, and which of them read what others write."""
        wanted = self.wanted(state) if self.before_call is not None and not state.paused else ()
        asked_about = {effect.id for effect in wanted if effect.kind == "call"}
        return call_graph(self.flow(state), state, asked_about)

    def config(self) -> dict[str, Any]:
        """The limits and the output's schema."""
        limits = {name: getattr(self, name) for name in ("max_requests", "max_concurrency", "native")}
        given = {"plan": self.plan, "delegates": self.delegates.names}
        limits |= {name: value for name, value in given.items() if value}
        return {**super().config(), **limits, "system_prompt": self._words, "output": self._output_check.schema}
