"""ExecutionLoop: requests that answer with calls and data, until one has an output (SEMANTICS 2).

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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, Event, MessageAdded, ModelStart, RunEnd, StopReason
from agentnb.core.graph import CallGraph
from agentnb.core.loop import Frame
from agentnb.core.reply import Reply
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool
from agentnb.core.wanted import MODEL, Effect, wanted
from agentnb.loops.base import take
from agentnb.loops.execution_loop import prompt
from agentnb.loops.execution_loop.confirm import Confirm, confirmation
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.dataflow import Dataflow
from agentnb.loops.execution_loop.graph import call_graph
from agentnb.loops.execution_loop.messages import returned
from agentnb.loops.execution_loop.reply import SolutionReply
from agentnb.loops.execution_loop.standing import ExecutionStanding
from agentnb.loops.execution_loop.tick import Tick, read_tick
from agentnb.loops.execution_loop.tools import Activity, bound, with_schemas


class ExecutionLoop(ExecutionStanding):
    """Ask for Solutions and run their calls as data allows, until one has an output.

    llm, tools: the model and what it can call; a tool may also be a JSON schema, latent or performed by one of the
    `activities`. output: what the output must be, a JSON schema or a type; one that is not is told to the model as an
    error. confirm: asked about each call right before it is launched, the others going on; returns True, False,
    `Reject(reason)`, or a call (Call or dict) to run instead, which is checked again. max_requests: requests to the
    model at most. max_concurrency: calls that run at once at most. context: messages the model is told, data messages
    (`{"type": "data", "kind": ..., "data": ...}`) among them. system_prompt: told first. native: offer the tools to the
    model by the provider's own means instead of asking for JSON text; a reply of text is the output then.

    Raises UsageError for what these cannot be.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "ready": ["updating", "requesting", "done"],
        "requesting": ["confirming", "calling", "updating", "done"],
        "confirming": ["calling", "requesting", "updating", "done"],
        "calling": ["confirming", "requesting", "updating", "done"],
        "updating": ["requesting", "done"],
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
        tools: Sequence[Any] | Mapping[str, Any] = (),
        *,
        output: Any = None,
        confirm: Confirm | None = None,
        max_requests: int | None = None,
        max_concurrency: int | None = None,
        context: Sequence[Any] = (),
        activities: Mapping[str, Activity] | None = None,
        system_prompt: str | None = None,
        native: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(llm, with_schemas(tools, activities or {}), context, name=name)
        for limit, value in (("max_requests", max_requests), ("max_concurrency", max_concurrency)):
            if value is not None and (value < 0 or (value == 0 and limit == "max_concurrency")):
                raise UsageError(f"{limit} must be None or a number that is not negative, not {value!r}.")
        self.max_requests, self.max_concurrency, self.native = max_requests, max_concurrency, native
        self._output_check = prompt.OutputCheck(output)
        self._words = system_prompt
        if confirm is not None:
            self.before_call = confirmation(confirm)

    # -- the decision ----------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Event:
        """What comes next (SEMANTICS 2c)."""
        if state.open:  # nothing can start any more: what still waits would wait for ever (2g.1)
            call = next(iter(state.open.values()))
            why = self._flow(state).why_unresolved(call) or "unresolved reference"
            return CallEnd.make(call_id=call.id, name=call.name, result=why, is_error=True, outcome="invalid")
        if state.queues["input"]:
            return take(state, "input")
        if state.reply is None:
            return self._request(state)
        tick = read_tick(Context.of(state), state, self._output_check)
        if (logged := state.heard.count("loop")) < len(tick.log):
            return MessageAdded.make(message=tick.log[logged])
        if state.queues["steering"] and self._may_ask(state):
            return take(state, "steering")
        why_end = None if {"steering", "follow_up"} & set(state.heard) else self._why_end(state, tick)
        if why_end is None:
            return self._request(state)
        if state.queues["follow_up"] and self._may_ask(state):
            return take(state, "follow_up")
        return RunEnd.make(reason=why_end, output=tick.output)

    def _request(self, state: State) -> Event:
        if not self._may_ask(state):
            return RunEnd.make(reason="max_requests")
        return ModelStart.make(turn=state.turn + 1)

    def _may_ask(self, state: State) -> bool:
        return self.max_requests is None or state.turn < self.max_requests

    def _why_end(self, state: State, tick: Tick) -> StopReason | None:
        """Why the loop is over with this tick (2c: output, then the limit, then stalled)."""
        if tick.has_output:
            return "completed"
        if not self._may_ask(state):
            return "max_requests"
        return None if state.calls or tick.has_errors else "stalled"  # the next request would see the same context

    def wanted(self, state: State) -> Sequence[Effect]:
        """The model, what runs, and of the calls that wait those whose references are found."""
        wants = wanted(state)
        if not wants or not state.open:
            return wants
        effects = self._flow(state).effects(self.max_concurrency)
        return [MODEL, *effects] if MODEL in wants else effects

    def _flow(self, state: State) -> Dataflow:
        return Dataflow(state, self.tools_by_name)

    def call_graph(self, state: State) -> CallGraph:
        """The calls of the tick, and which of them read what others write."""
        return call_graph(self, state)

    # -- requests and calls ----------------------------------------------------------------------------------------

    def taken_up(self, frame: Frame) -> None:
        """Take the tools, and tell the model of them."""
        self._frame, self.tools_by_name = frame, frame.tools
        tools = list(frame.tools.values())
        how = prompt.REFERENCES if self.native else prompt.instructions(tools, self._output_check.schema)
        self.system_prompt = f"{self._words}\n\n{how}" if self._words else how

    def request_options(self, tools: Sequence[Tool]) -> dict[str, Any]:
        """The tools, or the schema of a Solution that names them."""
        if self.native:
            return {"tools": prompt.native_specifications(tools)} if tools else {}
        return {"schema": prompt.solution_schema(tools, self._output_check.schema)}

    def messages_for(self, state: State) -> Sequence[Mapping[str, Any]]:
        """The context, and not the answers (SEMANTICS 2b)."""
        folded = Context.of(state)
        return folded.messages(native=self.native or folded.native)

    def new_reply(self, state: State) -> Reply:
        """A Solution; a repeated request takes up the calls it has made before."""
        folded = Context.of(state)
        earlier = [call.proposed for call in state.calls.values()]
        made, native = folded.calls_made + len(earlier), self.native or folded.native
        return SolutionReply(state.turn, made, earlier, native=native, run=state.place.runs)

    def arguments(self, call: CallState, state: State) -> dict[str, Any]:
        """The call's parameters with data in place of its references."""
        return self._flow(state).arguments(call)

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Activities get the whole call and the context; latent tools the result that the model has given."""
        return bound(tool, call, arguments, lambda: Context.of(state).log(state))

    def outcome(self, value: Any) -> dict[str, Any]:
        """A tool may return a message: a data message, or text for the model."""
        return returned(value)

    def config(self) -> dict[str, Any]:
        """The limits and the output's schema."""
        limits = {name: getattr(self, name) for name in ("max_requests", "max_concurrency", "native")}
        return {**super().config(), **limits, "system_prompt": self._words, "output": self._output_check.schema}
