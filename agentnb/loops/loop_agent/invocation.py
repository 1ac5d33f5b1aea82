"""What LoopAgent's design is written in: events, the actions they carry, and the context of an invocation.

The names are those of the design (SEMANTICS 1b). An event is plain data that the driver journals as a message; the
context is what the agents of one invocation share while it runs, and its two maps, `agent_states` and `end_of_agents`,
are all that is needed to resume it in another process.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field

from agentnb.core.state import State


class LoopAgentState(BaseModel):
    """Where a loop agent stands: the sub-agent it runs, and how many passes are complete."""

    model_config = ConfigDict(extra="forbid")

    current_sub_agent: str = ""
    times_looped: int = 0


class EventActions(BaseModel):
    """What an event does besides being said.

    `escalate` leaves the nearest loop once the agent that says so is done; with `scope="root"` every loop around it,
    with the name of a loop all up to that one. `agent_state` and `end_of_agent` are checkpoints.
    """

    model_config = ConfigDict(extra="allow")

    escalate: bool | None = None
    scope: str | None = None
    agent_state: dict[str, Any] | None = None
    end_of_agent: bool | None = None
    state_delta: dict[str, Any] = Field(default_factory=dict)


class Event(BaseModel):
    """One event of an invocation; `content` is text, or has `parts` with `text`, `function_call` and so on."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    author: str = ""
    content: Any = None
    actions: EventActions = Field(default_factory=EventActions)
    long_running_tool_ids: set[str] | None = None
    partial: bool | None = None
    invocation_id: str = ""
    branch: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    id: str = Field(default_factory=lambda: uuid.uuid4().hex[:12])
    timestamp: float = Field(default_factory=time.time)

    def get_function_calls(self) -> list[Any]:
        """The function calls among the parts of the content."""
        return [call for part in _parts(self.content) if (call := _read(part, "function_call")) is not None]

    @property
    def pauses(self) -> bool:
        """Whether it has a call that takes longer than the invocation: the answer comes later."""
        waited_for = self.long_running_tool_ids or set()
        return any(_read(call, "id") in waited_for for call in self.get_function_calls())

    @property
    def text(self) -> str:
        """The text of the content."""
        if isinstance(self.content, str):
            return self.content
        return "".join(text for part in _parts(self.content) if isinstance(text := _read(part, "text"), str))


def _read(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _parts(content: Any) -> Iterator[Any]:
    yield from (_read(content, "parts") or ()) if not isinstance(content, str) else ()


@dataclass
class Session:
    """The log of a conversation: `events` so far, `state` that the agents share."""

    events: list[Event] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class InvocationContext:
    """What the agents of one invocation share.

    is_resumable: checkpoints are events. agent_states, end_of_agents: where each agent stands, by name; a new context
    made from these (they are JSON) goes on from there. user_content: what the user said, text or content.
    """

    is_resumable: bool = False
    agent_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    end_of_agents: dict[str, bool] = field(default_factory=dict)
    user_content: Any = None
    session: Session = field(default_factory=Session)
    invocation_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    branch: str | None = None
    aborted: bool = False
    on_abort: list[Callable[[], object]] = field(default_factory=list, repr=False)
    forwarded: deque[tuple[Any, Event]] | None = field(default=None, repr=False)
    """Events as they were made, beside the facts they have become, for the stream to hand on."""
    error: BaseException | None = field(default=None, repr=False)
    """What a sub-agent raised."""

    def __post_init__(self) -> None:
        self.agent_states = {name: _dumped(state) for name, state in self.agent_states.items()}

    def set_agent_state(self, name: str, *, agent_state: Any = None, end_of_agent: bool = False) -> None:
        """Say where an agent stands: ended, in a state, or, with neither, not begun."""
        self.agent_states.pop(name, None)
        self.end_of_agents.pop(name, None)
        if end_of_agent:
            self.end_of_agents[name] = True
        elif agent_state is not None:
            self.agent_states[name], self.end_of_agents[name] = _dumped(agent_state), False

    def should_pause_invocation(self, event: Event) -> bool:
        """Whether the event has a call whose answer comes later."""
        return event.pauses

    def begin(self) -> None:
        """Hand events on from now on."""
        self.forwarded, self.error = deque(), None

    def abort(self) -> None:
        """Stop the invocation after the current event; it can be resumed."""
        self.aborted = True
        for stop in self.on_abort:
            stop()


def _dumped(state: Any) -> dict[str, Any]:
    return state.model_dump(mode="json") if isinstance(state, BaseModel) else dict(state)


_running: WeakValueDictionary[str, InvocationContext] = WeakValueDictionary()
"""The contexts of the invocations of this process, by their runs."""


def use_context(run_id: str, context: InvocationContext) -> None:
    """Let the agents of a run share this context."""
    _running[run_id] = context


def context_of(state: State) -> InvocationContext:
    """The context of the invocation that an agent at `state` is part of; made from its input where there is none."""
    context = _running.get(state.run_id)
    if context is None:
        given = invocation_of(state)
        content = state.input.get("content") if isinstance(state.input, Mapping) else state.input
        context = InvocationContext(is_resumable=True, user_content=content, **given)
        use_context(state.run_id, context)
    return context


def invocation_of(state: State) -> dict[str, Any]:
    """The maps an agent was started with: those of the invocation it resumes."""
    given = state.input.get("invocation") if isinstance(state.input, Mapping) else None
    return {name: dict(given.get(name) or {}) for name in ("agent_states", "end_of_agents")} if given else {}
