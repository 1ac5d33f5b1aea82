"""The events of LoopAgent's design, and the actions that they carry (SEMANTICS.md, 2. Vocabulary).

An event is what an agent says, as plain data that the driver journals as a message. What it does besides, leaving a
loop or saying where its agent stands, are its actions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, field_validator, model_validator

from agentnb.loops.positional import Positional

ASKS_A_PERSON = frozenset({"adk_request_input", "adk_request_credential"})
"""Function calls that wait for a person whether or not the event says that they take long."""


class Content(dict[str, Any]):
    """Content, or a part of it, as a mapping whose fields also read as attributes: `content.parts[0].function_call.id`.

    A field of the design that is not there reads as None.
    """

    _fields = frozenset(
        {"role", "parts", "text", "function_call", "function_response", "id", "name", "args", "response"}
    )

    def __getattr__(self, name: str) -> Any:
        if name not in self and name not in self._fields:
            raise AttributeError(f"content has no {name!r}")
        return self.get(name)


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return Content({key: _readable(inside) for key, inside in value.items()})
    return [_readable(inside) for inside in value] if isinstance(value, list) else value


class BaseAgentState(Positional):
    """The base of what agents keep of where they stand; a subclass declares its fields."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class LoopAgentState(BaseAgentState):
    """Where a loop agent stands: the sub-agent it runs, and how many passes are complete."""

    current_sub_agent: str = ""
    times_looped: int = 0


class EventActions(Positional):
    """What an event does besides being said.

    `escalate` leaves the nearest loop once the agent that says so is done; with `scope="root"` every loop around it,
    with the name of a loop all up to that one. `agent_state` and `end_of_agent` say where its author stands.
    `state_delta` changes the state of the session. The design's other actions are kept for whoever reads the event.

    Raises pydantic's ValidationError, a ValueError, for an action that the design does not have.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    escalate: bool | None = None
    agent_state: dict[str, Any] | None = None
    end_of_agent: bool | None = None
    scope: str | None = None
    state_delta: dict[str, Any] = Field(default_factory=dict)
    artifact_delta: dict[str, Any] = Field(default_factory=dict)
    transfer_to_agent: str | None = None
    skip_summarization: bool | None = None
    requested_auth_configs: dict[str, Any] = Field(default_factory=dict)
    requested_tool_confirmations: dict[str, Any] = Field(default_factory=dict)
    compaction: Any = None
    rewind_before_invocation_id: str | None = None
    route: Any = None
    transfer_reason: str | None = None
    render_ui_widgets: Any = None
    set_model_response: Any = None


class Event(Positional):
    """One event of an invocation; `content` is text, or has `parts` with `text`, `function_call` and so on.

    `reason`, `output`: on the event that ends a loop agent, how it has come to its end, and to what. `said`: on the one
    that says where it stands, what its sub-agents have come to. Fields of your own are kept, unless they look like a
    misspelt one: that raises pydantic's ValidationError, a ValueError. `Event.Actions` is `EventActions`.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True, defer_build=True)

    Actions: ClassVar[type[EventActions]] = EventActions

    author: str = ""
    content: Any = None
    actions: EventActions = Field(default_factory=EventActions)
    long_running_tool_ids: set[str] | None = None
    partial: bool | None = None
    invocation_id: str = ""
    branch: str | None = None
    reason: str | None = None
    output: Any = None
    said: dict[str, Any] | None = None
    error_code: str | None = None
    error_message: str | None = None
    id: str = Field(default_factory=lambda: uuid.uuid4().hex[:12])
    timestamp: float = Field(default_factory=time.time)

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt(cls, given: Any) -> Any:
        unknown = [name for name in given if name not in cls.model_fields] if isinstance(given, Mapping) else []
        for name in unknown:
            if meant := get_close_matches(str(name), cls.model_fields, 1, 0.8):
                raise ValueError(f"An event has no field {name!r}; {meant[0]!r} is probably meant.")
        return given

    @field_validator("content")
    @classmethod
    def _read_by_attribute_too(cls, content: Any) -> Any:
        return _readable(content)

    def get_function_calls(self) -> list[Any]:
        """The function calls among the parts of the content."""
        return [call for part in _parts(self.content) if (call := read(part, "function_call")) is not None]

    def get_function_responses(self) -> list[Any]:
        """The answers to function calls among the parts of the content."""
        return [given for part in _parts(self.content) if (given := read(part, "function_response")) is not None]

    def is_final_response(self) -> bool:
        """Whether it is what its author has to say, and no piece of it, no call, and no result for the model."""
        if self.actions.skip_summarization or self.long_running_tool_ids:
            return True
        return not (self.partial or self.get_function_calls() or self.get_function_responses())

    def is_answered_later(self, call: Any) -> bool:
        """Whether the answer to this call of its comes later than the invocation ends."""
        return read(call, "id") in (self.long_running_tool_ids or ()) or read(call, "name") in ASKS_A_PERSON

    @property
    def long_running_calls(self) -> list[Any]:
        """Its calls whose answer comes later than the invocation ends."""
        return [call for call in self.get_function_calls() if self.is_answered_later(call)]

    @property
    def pauses(self) -> bool:
        """Whether it has a call whose answer comes later than the invocation ends."""
        return bool(self.long_running_calls)

    @property
    def text(self) -> str:
        """The text of the content."""
        if isinstance(self.content, str):
            return self.content
        return "".join(text for part in _parts(self.content) if isinstance(text := read(part, "text"), str))


def read(value: Any, name: str) -> Any:
    """A field of content, or of a part of it, whether that is a mapping or an object."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _parts(content: Any) -> Iterator[Any]:
    yield from (read(content, "parts") or ()) if not isinstance(content, str) else ()
