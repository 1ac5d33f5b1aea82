"""AgentEvent, the events of an agent's stream, and the types of their fields (SEMANTICS.md, 2. Vocabulary).

All types can be read from and written to JSON. `tool_result` and `error` are both fields of an event and constructors
of the class. The constructors are methods of the metaclass, so that instances have only the fields.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from agentnb.core.events import ErrorInfo
from agentnb.core.messages import Content
from agentnb.core.record import Record
from agentnb.loops.positional import Positional


class AgentEventType(StrEnum):
    """The types of events. Agent never emits some of them; they exist for code written for the published design."""

    ITERATION_START = "iteration_start"
    ITERATION_END = "iteration_end"
    PHASE_START = "phase_start"
    PHASE_END = "phase_end"
    CONTEXT_ASSEMBLY_START = "context_assembly_start"
    CONTEXT_ASSEMBLY_COMPLETE = "context_assembly_complete"
    COMPRESSION_APPLIED = "compression_applied"
    RETRIEVAL_START = "retrieval_start"
    RETRIEVAL_PROGRESS = "retrieval_progress"
    RETRIEVAL_COMPLETE = "retrieval_complete"
    RETRIEVAL_ERROR = "retrieval_error"
    LLM_START = "llm_start"
    LLM_DELTA = "llm_delta"
    LLM_TOOL_CALLS = "llm_tool_calls"
    LLM_COMPLETE = "llm_complete"
    TOOL_CALLS_START = "tool_calls_start"
    TOOL_EXECUTION_START = "tool_execution_start"
    TOOL_PROGRESS = "tool_progress"
    TOOL_RESULT = "tool_result"
    TOOL_ERROR = "tool_error"
    TOOL_CALLS_COMPLETE = "tool_calls_complete"
    RECURSION = "recursion"
    RECURSION_TERMINATED = "recursion_terminated"
    RECOVERY_ATTEMPT = "recovery_attempt"
    RECOVERY_SUCCESS = "recovery_success"
    RECOVERY_FAILED = "recovery_failed"
    AGENT_FINISH = "agent_finish"
    MAX_ITERATIONS_REACHED = "max_iterations_reached"
    EXECUTION_CANCELLED = "execution_cancelled"
    ERROR = "error"


T = AgentEventType
TERMINAL = frozenset({T.AGENT_FINISH, T.MAX_ITERATIONS_REACHED, T.EXECUTION_CANCELLED, T.ERROR})
LLM_CONTENT = frozenset({T.LLM_DELTA, T.LLM_COMPLETE, T.AGENT_FINISH})


class ToolCall(Positional, Record):
    """A call that the model requests. An empty id is replaced by a new one."""

    id: Annotated[str, AfterValidator(lambda id: id or f"call_{uuid.uuid4().hex[:8]}")] = Field(
        default="", validate_default=True
    )
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolResult(Positional, Record):
    """The result of a call: the content for the model, and the time in milliseconds if the call ran."""

    tool_call_id: str
    tool_name: str
    content: Content
    is_error: bool = False
    execution_time_ms: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


def _as_data(error: Any) -> Any:
    """Return an exception as ErrorInfo, and any other value unchanged."""
    return ErrorInfo(type=type(error).__name__, message=str(error)) if isinstance(error, BaseException) else error


if TYPE_CHECKING:
    _Constructors = type
else:

    class _Constructors(type(BaseModel)):
        """The constructors that have the name of a field: `AgentEvent.tool_result(...)` and `AgentEvent.error(...)`."""

        def tool_result(cls, result: ToolResult, **metadata: Any) -> AgentEvent:
            """Return a new event for the result of a tool."""
            return cls(type=T.TOOL_RESULT, tool_result=result, metadata=metadata)

        def error(cls, error: BaseException | ErrorInfo, **metadata: Any) -> AgentEvent:
            """Return a new event for the error that has ended the run."""
            return cls(type=T.ERROR, error=error, metadata=metadata)


class AgentEvent(Positional, Record, metaclass=_Constructors):
    """An event of an agent's stream. Its type determines its fields.

    `tool_result` is the result of a tool; `result` is another name for it, also as an argument. `error` is ErrorInfo;
    an exception passed as argument is converted. `iteration` counts turns from 0. All events of a run have `turn_id`
    and `run_id`. `AgentEvent.tool_result(result)` and `AgentEvent.error(exception)` return new events.
    """

    type: AgentEventType
    timestamp: float = Field(default_factory=time.time)
    phase: str | None = None
    content: str | None = None
    tool_call: ToolCall | None = None
    tool_result: ToolResult | None = None
    error: Annotated[ErrorInfo | None, BeforeValidator(_as_data)] = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    iteration: int | None = None
    turn_id: str | None = None
    run_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_result(cls, fields: Any) -> Any:
        if isinstance(fields, Mapping) and "result" in fields:
            others = {name: value for name, value in fields.items() if name != "result"}
            return {"tool_result": fields["result"], **others}
        return fields

    @property
    def result(self) -> ToolResult | None:
        """The result of a tool."""
        return self.tool_result

    @classmethod
    def phase_start(cls, phase: str, **metadata: Any) -> Self:
        """Return a new event for the start of a phase."""
        return cls(type=T.PHASE_START, phase=phase, metadata=metadata)

    @classmethod
    def phase_end(cls, phase: str, **metadata: Any) -> Self:
        """Return a new event for the end of a phase."""
        return cls(type=T.PHASE_END, phase=phase, metadata=metadata)

    @classmethod
    def llm_delta(cls, content: str, **metadata: Any) -> Self:
        """Return a new event for a fragment of the model's text."""
        return cls(type=T.LLM_DELTA, content=content, metadata=metadata)

    @classmethod
    def tool_progress(cls, tool_name: str, status: Any, **metadata: Any) -> Self:
        """Return a new event for the progress of a tool."""
        return cls(type=T.TOOL_PROGRESS, metadata={"tool_name": tool_name, "status": status, **metadata})

    @classmethod
    def agent_finish(cls, content: str, **metadata: Any) -> Self:
        """Return a new event for the end of the run with this answer."""
        return cls(type=T.AGENT_FINISH, content=content, metadata=metadata)

    @classmethod
    def failed(cls, failure: BaseException | ErrorInfo, **metadata: Any) -> Self:
        """Return a new event for the error that has ended the run, as `AgentEvent.error(failure)` does."""
        return cls(type=T.ERROR, error=_as_data(failure), metadata=metadata)

    def is_terminal(self) -> bool:
        """Return True if this is the last event of a stream."""
        return self.type in TERMINAL

    def is_llm_content(self) -> bool:
        """Return True if the event contains text of the model."""
        return self.type in LLM_CONTENT

    def is_tool_event(self) -> bool:
        """Return True if the event is about tools."""
        return self.type.startswith("tool_")


class EventCollector:
    """A list of the events of a stream, with queries for their content."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def add(self, event: AgentEvent) -> None:
        """Add an event to the list."""
        self.events.append(event)

    def filter(self, event_type: AgentEventType | str) -> list[AgentEvent]:
        """Return the events of one type."""
        return [event for event in self.events if event.type == event_type]

    def get_llm_content(self) -> str:
        """Return the text that the model has streamed in all turns."""
        return "".join(event.content or "" for event in self.filter(T.LLM_DELTA))

    def get_tool_results(self) -> list[ToolResult]:
        """Return the results of all calls. Results of failed calls have `is_error`."""
        return [
            event.tool_result
            for event in self.events
            if event.type in (T.TOOL_RESULT, T.TOOL_ERROR) and event.tool_result is not None
        ]

    def get_errors(self) -> list[ErrorInfo]:
        """Return the error that ended the run, and those of failed retrievals. Errors of calls are not included."""
        return [
            event.error
            for event in self.events
            if event.type in (T.ERROR, T.RETRIEVAL_ERROR) and event.error is not None
        ]

    def get_final_response(self) -> str | None:
        """Return the agent's answer, or None if the agent has not finished."""
        finishes = self.filter(T.AGENT_FINISH)
        return finishes[-1].content if finishes else None
