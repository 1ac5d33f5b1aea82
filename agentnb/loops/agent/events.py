"""The vocabulary of an agent's stream: AgentEvent and what it carries (SEMANTICS.md, 2. Vocabulary).

All of it is data, JSON in and out. `tool_result` and `error` are fields of an event and constructors of the
class: the constructors are methods of the metaclass, where an instance does not find them.
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
    """The kinds of events; those that Agent never says are there for code that was written for the design."""

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
    """A call the model asks for; an empty id becomes one of its own."""

    id: Annotated[str, AfterValidator(lambda id: id or f"call_{uuid.uuid4().hex[:8]}")] = Field(
        default="", validate_default=True
    )
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolResult(Positional, Record):
    """How a call came out: what the model is told, and how long it took where it ran."""

    tool_call_id: str
    tool_name: str
    content: Content
    is_error: bool = False
    execution_time_ms: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


def _as_data(error: Any) -> Any:
    """An exception as data; anything else as it is."""
    return ErrorInfo(type=type(error).__name__, message=str(error)) if isinstance(error, BaseException) else error


if TYPE_CHECKING:
    _Constructors = type
else:

    class _Constructors(type(BaseModel)):
        """The constructors of events that share their name with a field."""

        def tool_result(cls, result: ToolResult, **metadata: Any) -> AgentEvent:
            """A tool has given its result."""
            return cls(type=T.TOOL_RESULT, tool_result=result, metadata=metadata)

        def error(cls, error: BaseException | ErrorInfo, **metadata: Any) -> AgentEvent:
            """The run has failed, and is over."""
            return cls(type=T.ERROR, error=error, metadata=metadata)


class AgentEvent(Positional, Record, metaclass=_Constructors):
    """One event of an agent's stream; which fields it has depends on its type.

    `tool_result` is what a tool gave; `result` is the same, and may be given in its place. `error` is what went wrong,
    as data; an exception that is given becomes that. `iteration` counts turns from 0; `turn_id` is the turn's and
    `run_id` the run's, on every event. `AgentEvent.tool_result(result)` and `AgentEvent.error(exception)` make events.
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
        """What a tool gave."""
        return self.tool_result

    @classmethod
    def phase_start(cls, phase: str, **metadata: Any) -> Self:
        """A phase begins."""
        return cls(type=T.PHASE_START, phase=phase, metadata=metadata)

    @classmethod
    def phase_end(cls, phase: str, **metadata: Any) -> Self:
        """A phase is over."""
        return cls(type=T.PHASE_END, phase=phase, metadata=metadata)

    @classmethod
    def llm_delta(cls, content: str, **metadata: Any) -> Self:
        """A piece of the model's text."""
        return cls(type=T.LLM_DELTA, content=content, metadata=metadata)

    @classmethod
    def tool_progress(cls, tool_name: str, status: Any, **metadata: Any) -> Self:
        """How far a tool is."""
        return cls(type=T.TOOL_PROGRESS, metadata={"tool_name": tool_name, "status": status, **metadata})

    @classmethod
    def agent_finish(cls, content: str, **metadata: Any) -> Self:
        """The agent is done, and this is its answer."""
        return cls(type=T.AGENT_FINISH, content=content, metadata=metadata)

    @classmethod
    def failed(cls, failure: BaseException | ErrorInfo, **metadata: Any) -> Self:
        """Something went wrong, and the run is over; the same as `AgentEvent.error(failure)`."""
        return cls(type=T.ERROR, error=_as_data(failure), metadata=metadata)

    def is_terminal(self) -> bool:
        """Whether nothing follows this event."""
        return self.type in TERMINAL

    def is_llm_content(self) -> bool:
        """Whether it has text of the model."""
        return self.type in LLM_CONTENT

    def is_tool_event(self) -> bool:
        """Whether it is about tools."""
        return self.type.startswith("tool_")


class EventCollector:
    """Keeps the events of a stream, and picks out what they say."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []

    def add(self, event: AgentEvent) -> None:
        """Keep an event."""
        self.events.append(event)

    def filter(self, event_type: AgentEventType | str) -> list[AgentEvent]:
        """The events of one type."""
        return [event for event in self.events if event.type == event_type]

    def get_llm_content(self) -> str:
        """All the text the model has streamed, in all turns."""
        return "".join(event.content or "" for event in self.filter(T.LLM_DELTA))

    def get_tool_results(self) -> list[ToolResult]:
        """The result of every call; those of calls that failed say `is_error`."""
        return [
            event.tool_result
            for event in self.events
            if event.type in (T.TOOL_RESULT, T.TOOL_ERROR) and event.tool_result is not None
        ]

    def get_errors(self) -> list[ErrorInfo]:
        """What went wrong besides calls: the failure that ended the run, and retrievals that failed."""
        return [
            event.error
            for event in self.events
            if event.type in (T.ERROR, T.RETRIEVAL_ERROR) and event.error is not None
        ]

    def get_final_response(self) -> str | None:
        """The agent's answer; None where it has not come to one."""
        finishes = self.filter(T.AGENT_FINISH)
        return finishes[-1].content if finishes else None
