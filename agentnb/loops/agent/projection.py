"""Agent's events, as a projection of the run's events (SEMANTICS.md, 5. Event pairs).

`AgentProjection` reads the run's events one by one, so that a live run and its recording have the same stream. It
records for each start event the end event that is due. Every start has an end, except after a failure: a failed model
request has no LLM_COMPLETE, so that the number of LLM_COMPLETE events is the number of answers. The terminal event is
the last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from pydantic_core import to_json

from agentnb.core import events as e
from agentnb.core.calls import render
from agentnb.core.events import CUT_OFF_REASONS
from agentnb.core.messages import text_of
from agentnb.loops.agent.events import AgentEvent, AgentEventType, ToolCall, ToolResult
from agentnb.loops.agent.retrieval import RETRIEVE, relevance_of, title_of
from agentnb.loops.agent.turns import TurnState
from agentnb.loops.projection import Handlers, Projection

T = AgentEventType
CONTEXT_ASSEMBLY = "context_assembly"
CHARACTERS_PER_TOKEN = 4
"""The approximate number of characters in a token. The model's tokenizer is unknown here."""


class AgentProjection(Projection[AgentEvent]):
    """The translation of a run's events into an agent's events."""

    needs_state = False

    def __init__(self, turn: TurnState | None = None) -> None:
        """turn: the first turn of a run that continues a conversation; None for turn 0."""
        super().__init__()
        self._first = turn
        self._characters = 0  # of all messages so far
        self._run_id = ""
        self._time = 0.0
        self._turn = TurnState.initial(run_id="")
        self._where: dict[str, Any] = {}  # the fields that all events of the turn have
        self._turns = 0
        self._closers: list[AgentEventType] = []  # the end events that are due, the innermost last
        self._calls: dict[str, ToolCall] = {}  # the turn's calls without a result
        self._started: dict[str, float] = {}  # the start times of those that have started
        self._recovering = False
        self._reason = ""

    def handle(self, item: e.Event | e.Delta) -> Iterable[AgentEvent]:
        """Return the agent's events for one event of the run."""
        self._time = item.time if isinstance(item, e.Event) else time.time()
        return super().handle(item)

    def fail(self, failure: e.ErrorInfo) -> Iterator[AgentEvent]:
        """Yield the end of the stream with an error. Calls left open by a nested loop get an error, too."""
        yield from self._recovered(T.RECOVERY_FAILED)
        for call in list(self._calls.values()):
            yield from self._call_end(
                e.CallEnd(
                    call_id=call.id,
                    name=call.name,
                    result=failure.message,
                    is_error=True,
                    outcome="aborted",
                    error=failure,
                    time=self._time,
                )
            )
        self._closers.clear()  # a failure leaves the open starts without an end
        yield from self._end(T.ERROR, error=failure)

    # -- the agent's events --------------------------------------------------------------------------------------------

    def _event(self, type: AgentEventType, **fields: Any) -> AgentEvent:
        return AgentEvent(type=type, timestamp=self._time, **self._where, **fields)

    def _enter(self, turn: TurnState) -> None:
        self._turn = turn
        self._where = {"iteration": turn.turn_counter, "turn_id": turn.turn_id, "run_id": self._run_id}

    def _open(self, start: AgentEventType, end: AgentEventType, **fields: Any) -> AgentEvent:
        self._closers.append(end)
        return self._event(start, **fields)

    def _close(self, end: AgentEventType, **fields: Any) -> Iterator[AgentEvent]:
        """Yield this end event, after the end events that are nested in it. Yield nothing if it is not due."""
        while end in self._closers:
            closer = self._closers.pop()
            yield self._event(closer, **(fields if closer is end else {}))

    def _end(self, type: AgentEventType, **fields: Any) -> Iterator[AgentEvent]:
        while self._closers:
            yield self._event(self._closers.pop())
        self.ended = True
        yield self._event(type, **fields)

    # -- events of the run ---------------------------------------------------------------------------------------------

    def _run_start(self, event: e.RunStart) -> Iterable[AgentEvent]:
        self._characters += sum(len(text_of(message.content)) for message in event.history)
        self._characters += len(event.config.get("system_prompt") or "")
        self._run_id = event.run_id
        self._enter(self._first or TurnState.initial(event.config.get("max_iterations"), run_id=event.run_id))
        return ()

    def _message(self, event: e.MessageAdded) -> Iterable[AgentEvent]:
        self._characters += len(text_of(event.message.content))
        return ()

    def _open_turn(self) -> Iterator[AgentEvent]:
        if T.ITERATION_END not in self._closers:
            if self._turns:
                self._enter(self._turn.next_turn())
            self._turns += 1
            metadata = {"max_iterations": self._turn.max_iterations, "parent_turn_id": self._turn.parent_turn_id}
            yield self._open(T.ITERATION_START, T.ITERATION_END, metadata=metadata)
            yield self._event(T.PHASE_START, phase=CONTEXT_ASSEMBLY)
            tokens = -(-self._characters // CHARACTERS_PER_TOKEN)
            yield self._event(T.PHASE_END, phase=CONTEXT_ASSEMBLY, metadata={"tokens_used": tokens})

    def _call_proposed(self, event: e.CallProposed) -> Iterator[AgentEvent]:
        if event.call.name != RETRIEVE:
            return
        yield from self._open_turn()
        yield self._open(T.RETRIEVAL_START, T.RETRIEVAL_COMPLETE, metadata={"query": event.call.arguments["query"]})

    def _retrieved(self, event: e.CallEnd) -> Iterator[AgentEvent]:
        documents = [] if event.is_error else event.result
        for number, document in enumerate(documents):
            found = {"doc_title": title_of(document) or "Unknown", "relevance_score": relevance_of(document)}
            metadata = {"index": number, **found, "document": document}
            yield self._event(T.RETRIEVAL_PROGRESS, content=document["content"], metadata=metadata)
        if event.is_error and event.outcome != "aborted":
            yield self._event(T.RETRIEVAL_ERROR, error=_error_of(event))
        yield from self._close(T.RETRIEVAL_COMPLETE, metadata={"doc_count": len(documents)})

    def _model_start(self, event: e.ModelStart) -> Iterator[AgentEvent]:
        yield from self._open_turn()
        if T.LLM_COMPLETE not in self._closers:  # a request may be repeated after a crash
            yield self._open(T.LLM_START, T.LLM_COMPLETE)

    def _model_end(self, event: e.ModelEnd) -> Iterator[AgentEvent]:
        self._characters += len(text_of(event.message.content))
        yield from self._recovered(T.RECOVERY_SUCCESS)
        calls = event.message.tool_calls
        if calls:
            named = {"tool_count": len(calls), "tool_names": [call.name for call in calls]}
            yield self._event(T.LLM_TOOL_CALLS, metadata={**named, "tool_calls": list(calls)})
        metadata = {"stop_reason": event.stop_reason, "usage": event.usage}
        yield from self._close(T.LLM_COMPLETE, content=text_of(event.message.content), metadata=metadata)
        if not calls:
            yield from self._close(T.ITERATION_END)
            return
        for call in calls:
            self._calls[call.id] = ToolCall(id=call.id, name=call.name, arguments=call.arguments)
        yield self._open(T.TOOL_CALLS_START, T.TOOL_CALLS_COMPLETE, metadata=named)

    def _approval_request(self, event: e.ApprovalRequest) -> Iterator[AgentEvent]:
        metadata = {"tool_name": event.name, "status": "waiting for approval", "reason": event.reason}
        call = ToolCall(id=event.call_id, name=event.name, arguments=event.arguments)
        yield self._event(T.TOOL_PROGRESS, tool_call=call, metadata=metadata)

    def _call_start(self, event: e.CallStart) -> Iterator[AgentEvent]:
        if event.call_id in self._calls and event.call_id not in self._started:  # it may be started again after a crash
            call = ToolCall(id=event.call_id, name=event.name, arguments=event.arguments)
            self._calls[call.id] = call
            yield self._begin(call)

    def _begin(self, call: ToolCall) -> AgentEvent:
        self._started[call.id] = self._time
        return self._event(T.TOOL_EXECUTION_START, tool_call=call, metadata={"tool_name": call.name})

    def _call_end(self, event: e.CallEnd) -> Iterator[AgentEvent]:
        if event.name != RETRIEVE:
            self._characters += len(text_of(render(event.result)))
        call = self._calls.pop(event.call_id, None)
        if call is None:
            if T.RETRIEVAL_COMPLETE in self._closers:
                yield from self._retrieved(event)
            return
        ran = self._started.pop(call.id, None)
        if ran is not None or event.outcome != "aborted":  # an aborted call that never started needs no end
            if ran is None:
                yield self._begin(call)
                del self._started[call.id]
            yield self._finish(call, event, ran)
        if not self._calls:
            yield from self._close(T.TOOL_CALLS_COMPLETE)
            yield from self._close(T.ITERATION_END)

    def _finish(self, call: ToolCall, event: e.CallEnd, started: float | None) -> AgentEvent:
        fields: dict[str, Any] = {"tool_call_id": call.id, "tool_name": call.name, "content": render(event.result)}
        if started is not None:
            fields["execution_time_ms"] = max(0.0, event.time - started) * 1000
        result = ToolResult(is_error=event.is_error, metadata={"outcome": event.outcome}, **fields)
        if event.is_error:
            return self._event(T.TOOL_ERROR, tool_call=call, tool_result=result, error=_error_of(event))
        return self._event(T.TOOL_RESULT, tool_call=call, tool_result=result)

    def _cancelled(self, event: e.CancelRequested) -> Iterable[AgentEvent]:
        self._reason = event.reason
        return ()

    def _run_end(self, event: e.RunEnd) -> Iterator[AgentEvent]:
        if event.reason in CUT_OFF_REASONS:
            yield from self._end(T.AGENT_FINISH, content=_text(event.output), metadata={"stop_reason": event.reason})
        elif event.reason in ("completed", "empty"):
            yield from self._end(T.AGENT_FINISH, content=_text(event.output))
        elif event.reason == "max_iterations":
            yield from self._end(T.MAX_ITERATIONS_REACHED, metadata={"max_iterations": self._turn.max_iterations})
        elif event.reason == "cancelled":
            yield from self._end(T.EXECUTION_CANCELLED, metadata={"reason": self._reason})
        else:
            error = event.error or e.ErrorInfo(type="RunFailed", message=event.reason)
            yield from self.fail(error)

    # -- deltas --------------------------------------------------------------------------------------------------------

    def _delta(self, delta: e.Delta) -> Iterator[AgentEvent]:
        if delta.type == "text_delta":
            yield self._event(T.LLM_DELTA, content=delta.content)
        elif delta.type == "call_delta" and delta.call_id in self._calls:
            call = self._calls[delta.call_id]
            metadata = {"tool_name": call.name, "status": delta.data}
            yield self._event(T.TOOL_PROGRESS, tool_call=call, metadata=metadata)
        elif delta.type == "retry_delta":
            self._recovering = True
            yield self._event(T.RECOVERY_ATTEMPT, metadata=delta.data)

    def _recovered(self, how: AgentEventType) -> Iterator[AgentEvent]:
        if self._recovering:
            self._recovering = False
            yield self._event(how)

    handlers: ClassVar[Handlers] = {
        e.RunStart: _run_start,
        e.MessageAdded: _message,
        e.CallProposed: _call_proposed,
        e.ModelStart: _model_start,
        e.ModelEnd: _model_end,
        e.ApprovalRequest: _approval_request,
        e.CallStart: _call_start,
        e.CallEnd: _call_end,
        e.CancelRequested: _cancelled,
        e.RunEnd: _run_end,
        e.Delta: _delta,
    }


def _text(output: Any) -> str:
    """Return the output of an agent as text: JSON, if it is an object of a given type."""
    return output if isinstance(output, str) else "" if output is None else to_json(output).decode()


def _error_of(event: e.CallEnd) -> e.ErrorInfo:
    """Return the error of a failed call. A refused call has no exception; its result is the message."""
    return event.error or e.ErrorInfo(type="ToolError", message=str(event.result))
