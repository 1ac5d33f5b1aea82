"""What a run's facts are in an agent's words (SEMANTICS.md, 5. Event pairs).

`Projection` reads the facts one by one, so that the stream of a live run and of a recording tell the same. What it
opens is written down with what closes it. Every start has its end, except for what a failure has cut off: a
model that fails has no LLM_COMPLETE, so that whoever counts these counts answers. The one terminal event comes last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentnb.core import events as e
from agentnb.core.calls import render
from agentnb.core.events import CUT_OFF_REASONS
from agentnb.core.messages import text_of
from agentnb.loops.agent.events import AgentEvent, AgentEventType, ToolCall, ToolResult
from agentnb.loops.agent.retrieval import RETRIEVE, relevance_of, title_of
from agentnb.loops.agent.turns import TurnState

T = AgentEventType
CONTEXT_ASSEMBLY = "context_assembly"
CHARACTERS_PER_TOKEN = 4
"""As many as a token has in most texts: nothing here knows the tokenizer of the model."""


class Projection:
    """Says a run's events in the words of an agent."""

    def __init__(self, turn: TurnState | None = None) -> None:
        """turn: the one that the run begins with, where it goes on from somewhere."""
        self.ended = False
        self._first = turn
        self._characters = 0
        self._run_id = ""
        self._time = 0.0
        self._turn = TurnState.initial(run_id="")
        self._where: dict[str, Any] = {}  # what every event of the turn says of it
        self._turns = 0
        self._closers: list[AgentEventType] = []  # what closes what is open, the innermost last
        self._calls: dict[str, ToolCall] = {}  # the turn's calls without a result
        self._started: dict[str, float] = {}  # when those of them that were begun were
        self._recovering = False
        self._reason = ""

    def say(self, item: e.Event | e.Delta) -> Sequence[AgentEvent]:
        """The agent's events that this one is."""
        if self.ended or item.path:  # a loop inside this one has events of its own
            return ()
        if isinstance(item, e.Event):
            self._characters += _length(item)
        if isinstance(item, e.Delta):
            self._time = time.time()
            if item.type == "text_delta":
                return (self._event(T.LLM_DELTA, content=item.content),)
            return list(self._delta(item))
        handler = _HANDLERS.get(item.type)
        if handler is None:
            return ()
        self._time = item.time
        return list(handler(self, item))

    def fail(self, failure: e.ErrorInfo) -> Iterator[AgentEvent]:
        """The end that is an error, also of calls left open because a loop inside failed, or suspended the run.

        A model's failure is no end by itself: the run may have gone on from it.
        """
        if self.ended:
            return
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
        self._closers.clear()  # it has cut them off
        yield from self._end(T.ERROR, error=failure)

    # -- words -----------------------------------------------------------------------------------------------------

    def _event(self, type: AgentEventType, **fields: Any) -> AgentEvent:
        return AgentEvent(type=type, timestamp=self._time, **self._where, **fields)

    def _enter(self, turn: TurnState) -> None:
        self._turn = turn
        self._where = {"iteration": turn.turn_counter, "turn_id": turn.turn_id, "run_id": self._run_id}

    def _open(self, start: AgentEventType, end: AgentEventType, **fields: Any) -> AgentEvent:
        self._closers.append(end)
        return self._event(start, **fields)

    def _close(self, end: AgentEventType, **fields: Any) -> Iterator[AgentEvent]:
        """The end of what was opened with it, and of what is open inside; nothing where it is not open."""
        while end in self._closers:
            closer = self._closers.pop()
            yield self._event(closer, **(fields if closer is end else {}))

    def _end(self, type: AgentEventType, **fields: Any) -> Iterator[AgentEvent]:
        while self._closers:
            yield self._event(self._closers.pop())
        self.ended = True
        yield self._event(type, **fields)

    # -- facts -----------------------------------------------------------------------------------------------------

    def _run_start(self, event: e.RunStart) -> Iterator[AgentEvent]:
        self._run_id = event.run_id
        self._enter(self._first or TurnState.initial(event.config.get("max_iterations"), run_id=event.run_id))
        return iter(())

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
        if T.LLM_COMPLETE not in self._closers:  # asked again, after a crash
            yield self._open(T.LLM_START, T.LLM_COMPLETE)

    def _model_end(self, event: e.ModelEnd) -> Iterator[AgentEvent]:
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
        if event.call_id in self._calls and event.call_id not in self._started:  # a second time, after a crash
            call = ToolCall(id=event.call_id, name=event.name, arguments=event.arguments)
            self._calls[call.id] = call
            yield self._begin(call)

    def _begin(self, call: ToolCall) -> AgentEvent:
        self._started[call.id] = self._time
        return self._event(T.TOOL_EXECUTION_START, tool_call=call, metadata={"tool_name": call.name})

    def _call_end(self, event: e.CallEnd) -> Iterator[AgentEvent]:
        call = self._calls.pop(event.call_id, None)
        if call is None:
            if T.RETRIEVAL_COMPLETE in self._closers:
                yield from self._retrieved(event)
            return
        ran = self._started.pop(call.id, None)
        if ran is not None or event.outcome != "aborted":  # a call that was never begun needs no end
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

    def _cancelled(self, event: e.CancelRequested) -> Iterator[AgentEvent]:
        self._reason = event.reason
        return iter(())

    def _run_end(self, event: e.RunEnd) -> Iterator[AgentEvent]:
        if event.reason in CUT_OFF_REASONS:
            yield from self._end(T.AGENT_FINISH, content=event.output or "", metadata={"stop_reason": event.reason})
        elif event.reason in ("completed", "empty"):
            yield from self._end(T.AGENT_FINISH, content=event.output or "")
        elif event.reason == "max_iterations":
            yield from self._end(T.MAX_ITERATIONS_REACHED, metadata={"max_iterations": self._turn.max_iterations})
        elif event.reason == "cancelled":
            yield from self._end(T.EXECUTION_CANCELLED, metadata={"reason": self._reason})
        else:
            error = event.error or e.ErrorInfo(type="RunFailed", message=event.reason)
            yield from self.fail(error)

    # -- what is no fact -------------------------------------------------------------------------------------------

    def _delta(self, delta: e.Delta) -> Iterator[AgentEvent]:
        if delta.type == "call_delta" and delta.call_id in self._calls:
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


def _length(event: e.Event) -> int:
    """How many characters the event adds to what the model is sent."""
    if isinstance(event, e.RunStart):
        said = sum(len(text_of(message.content)) for message in event.history)
        return said + len(event.config.get("system_prompt") or "")
    if isinstance(event, (e.MessageAdded, e.ModelEnd)):
        return len(text_of(event.message.content))
    return len(text_of(render(event.result))) if isinstance(event, e.CallEnd) and event.name != RETRIEVE else 0


def _error_of(event: e.CallEnd) -> e.ErrorInfo:
    """What went wrong with a call; one that was refused has no exception behind it."""
    return event.error or e.ErrorInfo(type="ToolError", message=str(event.result))


_HANDLERS: dict[str, Callable[[Projection, Any], Iterator[AgentEvent]]] = {
    "run_start": Projection._run_start,
    "call_proposed": Projection._call_proposed,
    "model_start": Projection._model_start,
    "model_end": Projection._model_end,
    "approval_request": Projection._approval_request,
    "call_start": Projection._call_start,
    "call_end": Projection._call_end,
    "cancel": Projection._cancelled,
    "run_end": Projection._run_end,
}
