"""ExecutionLoop: requests that answer with calls and data, until one has an output (SEMANTICS.md).

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

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentnb.core.errors import UsageError
from agentnb.core.events import CallEnd, Event, MessageAdded, ModelStart, RunEnd, StopReason
from agentnb.core.graph import CallGraph
from agentnb.core.messages import text_of
from agentnb.core.state import CallState, State
from agentnb.core.wanted import MODEL, Effect, wanted
from agentnb.loops.base import check_system_prompt, count_of, take
from agentnb.loops.execution_loop import prompt
from agentnb.loops.execution_loop.confirm import Confirm, confirmation
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.delegates import Delegates
from agentnb.loops.execution_loop.graph import call_graph
from agentnb.loops.execution_loop.plan import Mode, plan_message
from agentnb.loops.execution_loop.requests import ExecutionRequests
from agentnb.loops.execution_loop.tick import Tick, is_told_again, read_tick
from agentnb.loops.execution_loop.tools import Activity, with_offered, with_schemas


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
        self._output_check = prompt.OutputCheck(output)
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
        return call_graph(self, state)

    def config(self) -> dict[str, Any]:
        """The limits and the output's schema."""
        limits = {name: getattr(self, name) for name in ("max_requests", "max_concurrency", "native")}
        given = {"plan": self.plan, "delegates": self.delegates.names}
        limits |= {name: value for name, value in given.items() if value}
        return {**super().config(), **limits, "system_prompt": self._words, "output": self._output_check.schema}
