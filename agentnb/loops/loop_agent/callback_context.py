"""CallbackContext: what the callbacks around an agent are called with (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from agentnb.core.errors import InvalidArguments
from agentnb.loops.loop_agent.event import EventActions

if TYPE_CHECKING:
    from agentnb.loops.loop_agent.invocation import InvocationContext, Session


class ToolConfirmation(BaseModel):
    """A question to a person about a call: the hint, whether they have confirmed it, and what else they say."""

    model_config = ConfigDict(extra="forbid")

    hint: str = ""
    confirmed: bool = False
    payload: Any = None


class State:
    """The state of a session, and what was changed in it: each change is in the session at once, and in the delta."""

    APP_PREFIX = "app:"
    USER_PREFIX = "user:"
    TEMP_PREFIX = "temp:"

    def __init__(self, value: dict[str, Any], delta: dict[str, Any]) -> None:
        self._value = value
        self._delta = delta
        self._read: dict[str, Any] = {}
        """Copies of the lists and dicts that were read, by key: a change inside one is a change of the state."""

    def __getitem__(self, key: str) -> Any:
        value = self._delta[key] if key in self._delta else self._value[key]
        if isinstance(value, (dict, list)) and key not in self._read:
            self._read[key] = copy.deepcopy(value)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self._value[key] = self._delta[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self._value or key in self._delta

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default` where there is none."""
        try:
            return self[key]
        except KeyError:
            return default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is set to `default` where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, delta: Mapping[str, Any]) -> None:
        """Set several keys."""
        self._value.update(delta)
        self._delta.update(delta)

    def has_delta(self) -> bool:
        """Whether anything was changed."""
        self.note_changes_inside()
        return bool(self._delta)

    def to_dict(self) -> dict[str, Any]:
        """The state as a dict of its own."""
        return {**self._value, **self._delta}

    def note_changes_inside(self) -> None:
        """Put the lists and dicts that were changed since they were read into the delta."""
        for key, before in self._read.items():
            value = self._delta.get(key, self._value.get(key))
            if value != before:
                self[key] = value
                self._read[key] = copy.deepcopy(value)


class ReadonlyContext:
    """What may be read of an invocation."""

    def __init__(self, invocation_context: InvocationContext) -> None:
        self._invocation_context = invocation_context

    @property
    def user_content(self) -> Any:
        """What the user said to begin the invocation."""
        return self._invocation_context.user_content

    @property
    def invocation_id(self) -> str:
        """The id of the invocation."""
        return self._invocation_context.invocation_id

    @property
    def agent_name(self) -> str:
        """The name of the agent that runs."""
        agent = self._invocation_context.agent
        return str(agent.name) if agent is not None else "unknown"

    @property
    def state(self) -> Any:
        """The state of the session, not to be changed."""
        return MappingProxyType(self._invocation_context.session.state)

    @property
    def session(self) -> Session:
        """The session."""
        return self._invocation_context.session

    @property
    def user_id(self) -> str:
        """The id of the session's user."""
        return self._invocation_context.user_id

    @property
    def run_config(self) -> Any:
        """The configuration of the run, where one was given."""
        return self._invocation_context.run_config

    @property
    def custom_metadata(self) -> Mapping[str, Any]:
        """What was noted beside the invocation, not to be changed."""
        return MappingProxyType(self._invocation_context._custom_metadata)

    @property
    def is_aborted(self) -> bool:
        """Whether the invocation was aborted."""
        return self._invocation_context.is_aborted


class CallbackContext(ReadonlyContext):
    """What a callback around an agent is called with, as `callback_context`.

    `state` is the session's: what is set in it is said in an event of the agent. `actions` are those of that event.
    Whatever else an `InvocationContext` has can be read here too, and `end_invocation` set. function_call_id,
    tool_confirmation: the call that it is about, and the answer of a person, where there are any.
    """

    def __init__(
        self,
        invocation_context: InvocationContext,
        *,
        event_actions: EventActions | None = None,
        function_call_id: str | None = None,
        tool_confirmation: ToolConfirmation | None = None,
    ) -> None:
        super().__init__(invocation_context)
        self._event_actions = event_actions if event_actions is not None else EventActions()
        self._state = State(invocation_context.session.state, self._event_actions.state_delta)
        self.function_call_id = function_call_id
        self.tool_confirmation = tool_confirmation

    @property
    def state(self) -> State:
        """The state of the session; a change is part of the callback's event."""
        return self._state

    @property
    def actions(self) -> EventActions:
        """The actions of the callback's event."""
        self._state.note_changes_inside()
        return self._event_actions

    @property
    def custom_metadata(self) -> dict[str, Any]:
        """What was noted beside the invocation."""
        return self._invocation_context._custom_metadata

    def request_confirmation(self, *, hint: str = "", payload: Any = None) -> None:
        """Ask a person about the call, in the actions. Raises InvalidArguments where it is about no call."""
        if not self.function_call_id:
            raise InvalidArguments("request_confirmation requires function_call_id: this context is about no call.")
        asked = ToolConfirmation(hint=hint, payload=payload)
        self._event_actions.requested_tool_confirmations[self.function_call_id] = asked

    @property
    def branch(self) -> str | None:
        """The branch of the invocation."""
        return self._invocation_context.branch

    @property
    def end_invocation(self) -> bool:
        """Whether the invocation is to end."""
        return self._invocation_context.end_invocation

    @end_invocation.setter
    def end_invocation(self, value: bool) -> None:
        self._invocation_context.end_invocation = value

    def get_invocation_context(self) -> InvocationContext:
        """The context of the invocation itself."""
        return self._invocation_context

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._invocation_context, name)
