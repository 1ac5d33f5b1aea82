"""The events of LoopAgent's design, and their actions (SEMANTICS.md, 2. Vocabulary).

The content of an event is plain data that an agent emits. The run journals it as a message. The actions of an event say
what else it does, such as leaving a loop or storing the state of its agent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from agentnb.loops.positional import Positional

ASKS_TO_CONFIRM = "adk_request_confirmation"
"""The name of the function call by which a person is asked to approve a call."""

ASKS_A_PERSON = frozenset({"adk_request_input", "adk_request_credential"})
"""Names of function calls that wait for a person, also if the event does not mark them as long-running."""


_CONTENT = frozenset({"role", "parts"})
_PART = frozenset(
    {
        "text",
        "thought",
        "thought_signature",
        "inline_data",
        "file_data",
        "function_call",
        "function_response",
        "executable_code",
        "code_execution_result",
        "video_metadata",
        "media_resolution",
        "part_metadata",
    }
)
_IN_A_PART = frozenset(
    {
        *("id", "name", "args", "response", "will_continue", "scheduling"),
        *("data", "mime_type", "display_name", "file_uri", "code", "language", "outcome", "output"),
    }
)
"""The names of fields: of content (`_CONTENT`), of its parts (`_PART`), of the objects in a part (`_IN_A_PART`)."""

_SNAKE = {to_camel(name): name for name in _PART | _IN_A_PART if "_" in name}
_CAMEL = {name: camel for camel, name in _SNAKE.items()}
_OPAQUE = frozenset({"args", "response"})
"""Fields with data of a model or a tool. The keys of this data are not fields of the design, and are not renamed."""


class Content(dict[str, Any]):
    """Content, or a part of it: a mapping whose fields are also attributes, as in `content.parts[0].function_call.id`.

    A missing field of the design is None.
    """

    _fields = _CONTENT | _PART | _IN_A_PART

    def __getattr__(self, name: str) -> Any:
        if name not in self and name not in self._fields:
            raise AttributeError(f"Content has no field {name!r}.")
        return self.get(name)


def _readable(value: Any, names: Mapping[str, str] = _SNAKE) -> Any:
    """Return content as `Content`. The given fields may have their names in JSON, such as `functionCall`."""
    if isinstance(value, dict):
        inside = {key: _readable(value[key], {} if key in _OPAQUE else names) for key in value}
        return Content({names.get(key, key): given for key, given in inside.items()})
    return [_readable(inside, names) for inside in value] if isinstance(value, list) else value


def _in_json_names(value: Any, names: Mapping[str, str] = _CAMEL) -> Any:
    """Return content with the names of its fields in JSON."""
    if isinstance(value, dict):
        inside = {key: _in_json_names(value[key], {} if key in _OPAQUE else names) for key in value}
        return {names.get(key, key): given for key, given in inside.items()}
    return [_in_json_names(inside, names) for inside in value] if isinstance(value, list) else value


_SHORT = ("message", "state", "route", "node_path")
"""Arguments of an event that are not fields."""


def content_of(message: Any) -> Any:
    """Return the content for the argument `message` of an event: text, a part, or a list of these."""
    if message is None or not isinstance(field_of(message, "parts"), NoneType):
        return message
    given = message if isinstance(message, (list, tuple)) else [message]
    parts = [{"text": part} if isinstance(part, str) else part for part in given]
    role = "model" if len(parts) == 1 and field_of(parts[0], "function_call") is not None else "user"
    return {"role": role, "parts": parts}


class BaseAgentState(Positional):
    """The base class of agents' states. A subclass declares its fields."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class LoopAgentState(BaseAgentState):
    """The state of a loop agent: its current sub-agent, and the number of complete passes."""

    current_sub_agent: str = ""
    times_looped: int = 0


class EventActions(Positional):
    """The actions of an event.

    `escalate` leaves the nearest enclosing loop when the agent has ended; with `scope="root"` it leaves all enclosing
    loops, with the name of a loop all loops up to that one. `agent_state` is the state of the agent that is the author;
    `end_of_agent` says that this agent has ended. `state_delta` changes the state of the session. The design's other
    actions are stored for readers of the event.

    Each action is also accepted under its name in JSON, such as `stateDelta`. `model_dump(by_alias=True)` returns the
    names in JSON.

    Raises pydantic's ValidationError, a ValueError, for an unknown action.
    """

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, defer_build=True)

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


EXIT_LOOP = "exit_loop"
"""The name of the tool by which a model leaves a loop agent."""


def actions_of(tool: str | None, details: Any) -> EventActions:
    """Return the actions of a call that a model has made: those that its tool has set. details: of the call's end."""
    given = details.get("actions") if isinstance(details, Mapping) else None
    if not isinstance(given, Mapping):  # older recordings have none for `exit_loop`
        return EventActions(escalate=True, skip_summarization=True) if tool == EXIT_LOOP else EventActions()
    return EventActions(**{name: value for name, value in given.items() if name in EventActions.model_fields})


class NodeInfo(BaseModel):
    """The position in a workflow at which an event was made. The path `A@1/B@2` is the second run of B, in A."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    path: str = ""
    output_for: list[str] | None = None
    message_as_output: bool | None = None

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.path.rpartition("/")[2].partition("@")[0]

    @property
    def run_id(self) -> str:
        """The number of the run of the node."""
        return self.path.rpartition("/")[2].partition("@")[2]

    @property
    def parent_run_id(self) -> str | None:
        """The number of the run of the enclosing node, or None."""
        parent = self.path.rpartition("/")[0]
        return parent.rpartition("/")[2].partition("@")[2] or None


class Event(Positional):
    """One event of an invocation. `content` is text, or has `parts` with `text`, `function_call` and others.

    Instead of `content`, `message=` accepts text, a part or a list of these, as content of the user. `state=` and
    `route=` are the actions `state_delta` and `route`; `node_path=` is the path of `node_info`. Each field is also
    accepted under its name in JSON, such as `longRunningToolIds`. `model_dump(by_alias=True)` returns the names in
    JSON.

    `reason`, `output`: on the end of a loop agent, its stop reason and output. `said`: on a checkpoint, the outputs of
    the sub-agents. Other fields are stored. `Event.Actions` is `EventActions`.

    Raises pydantic's ValidationError, a ValueError, for an unknown field whose name is similar to that of a field.
    """

    model_config = ConfigDict(
        extra="allow",
        arbitrary_types_allowed=True,
        alias_generator=to_camel,
        populate_by_name=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        defer_build=True,
    )

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
    id: str = Field(default_factory=lambda: Event.new_id())
    timestamp: float = Field(default_factory=time.time)
    node_info: NodeInfo = NodeInfo()
    isolation_scope: str | None = None
    model_version: str | None = None
    turn_complete: bool | None = None
    turn_complete_reason: Any = None
    finish_reason: Any = None
    interrupted: bool | None = None
    custom_metadata: dict[str, Any] | None = None
    usage_metadata: Any = None
    grounding_metadata: Any = None
    citation_metadata: Any = None
    cache_metadata: Any = None
    avg_logprobs: float | None = None
    logprobs_result: Any = None
    input_transcription: Any = None
    output_transcription: Any = None
    voice_activity: Any = None
    go_away: Any = None
    live_session_id: str | None = None
    live_session_resumption_update: Any = None
    interaction_id: str | None = None
    interaction_status: Any = None
    environment_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_misspelt(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values() if field.alias)}
        given = _expand_short_forms(dict(given), known)
        for name in given:
            if name not in known and (meant := get_close_matches(str(name), known, 1, 0.8)):
                raise ValueError(f"An event has no field {name!r}; {meant[0]!r} is probably meant.")
        return given

    @field_validator("id")
    @classmethod
    def _never_empty(cls, id: str) -> str:
        return id or cls.new_id()

    @field_serializer("long_running_tool_ids")
    def _in_order(self, ids: set[str] | None) -> list[str] | None:
        return None if ids is None else sorted(ids)

    @field_serializer("content", mode="wrap")
    def _by_alias(self, content: Any, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        dumped = handler(content)
        return _in_json_names(dumped) if info.by_alias else dumped

    @staticmethod
    def new_id() -> str:
        """Return a new id for an event."""
        return uuid.uuid4().hex[:12]

    @property
    def message(self) -> Any:
        """The content, by its other published name."""
        return self.content

    @message.setter
    def message(self, message: Any) -> None:
        self.content = _readable(content_of(message))

    @property
    def node_name(self) -> str:
        """The name of the workflow node that made the event; empty for a checkpoint or end of an agent."""
        is_state = self.actions.agent_state or self.actions.end_of_agent
        return "" if is_state else self.node_info.name

    @field_validator("content")
    @classmethod
    def _read_by_attribute_too(cls, content: Any) -> Any:
        return _readable(content)

    def get_function_calls(self) -> list[Any]:
        """Return the function calls of the content."""
        return [call for part in _parts(self.content) if (call := field_of(part, "function_call")) is not None]

    def get_function_responses(self) -> list[Any]:
        """Return the answers to function calls that the content has."""
        return [given for part in _parts(self.content) if (given := field_of(part, "function_response")) is not None]

    def is_final_response(self) -> bool:
        """Return True if the event is a complete answer: not partial, without calls and without results for a model.

        Three more events are answers: one with `skip_summarization`, one that is marked with long-running calls, and an
        error that is not partial and has no call.
        """
        if self.actions.skip_summarization or self.long_running_tool_ids:
            return True
        if self.error_code and not self.partial and not self.get_function_calls():
            return True
        has_calls = bool(self.get_function_calls() or self.get_function_responses())
        return not (self.partial or has_calls or self.has_trailing_code_execution_result())

    def has_trailing_code_execution_result(self) -> bool:
        """Return True if the last part of the content is the result of code execution by a model."""
        parts = list(_parts(self.content))
        return bool(parts) and field_of(parts[-1], "code_execution_result") is not None

    def is_answered_later(self, call: Any) -> bool:
        """Return True if this call of the event is long-running: the invocation pauses until the call is answered."""
        return field_of(call, "id") in (self.long_running_tool_ids or ()) or field_of(call, "name") in ASKS_A_PERSON

    @property
    def long_running_calls(self) -> list[Any]:
        """The long-running calls of the event."""
        return [call for call in self.get_function_calls() if self.is_answered_later(call)]

    @property
    def pauses(self) -> bool:
        """True if the event has a long-running call, which pauses the invocation."""
        return bool(self.long_running_calls)

    @property
    def text(self) -> str:
        """The text of the content, without other parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(text for part in _parts(self.content) if isinstance(text := field_of(part, "text"), str))


def _expand_short_forms(given: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the arguments of an event with the short forms in `_SHORT` moved to their fields.

    A short form that is in `known` is not moved: a subclass declares a field of that name.
    """
    short = {name: given.pop(name) for name in _SHORT if name in given and name not in known}
    if (message := short.get("message")) is not None:
        if given.get("content") is not None:
            raise ValueError("An event takes content= or message=, which have the same meaning, but not both.")
        given["content"] = content_of(message)
    more = {
        name: short[key] for key, name in (("state", "state_delta"), ("route", "route")) if short.get(key) is not None
    }
    if more:
        given["actions"] = _with(given.get("actions"), **more)
    if short.get("node_path") is not None:
        given["node_info"] = _with(given.pop("nodeInfo", None) or given.get("node_info"), path=short["node_path"])
    return given


def _with(given: Any, **fields: Any) -> Any:
    """Return a model, or its arguments, with new values of these fields. Other data is returned unchanged."""
    if isinstance(given, BaseModel):
        return given.model_copy(update=fields)
    return {**(given or {}), **fields} if isinstance(given, (Mapping, NoneType)) else given


def field_of(value: Any, name: str) -> Any:
    """Return a field of content or of a part, which may be a mapping or an object; None if it is missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _parts(content: Any) -> Iterator[Any]:
    yield from (field_of(content, "parts") or ()) if not isinstance(content, str) else ()
