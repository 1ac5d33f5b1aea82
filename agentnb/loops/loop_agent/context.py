"""The context of an invocation: what its agents share while it runs (SEMANTICS.md, 2. Vocabulary).

Its two maps, `agent_states` and `end_of_agents`, are enough to resume an invocation in another process.

An agent's code receives the context; `advance` does not, because a context is not part of the state. The run keeps it
in an `Invocation` of the outermost agent (`Design.make_context`). If the user gave no context, it is made from the
input of that agent. When a run resumes from a recording, its session contains the recorded events again. If a loop of
another design runs an agent, as a tool or to execute a task, each call is a new invocation.
"""

from __future__ import annotations

import copy
import json
import threading
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

from agentnb.core.errors import AgentnbError, InvalidArguments
from agentnb.core.events import CallEnd, Delta, MessageAdded, Queued, RunEnd, RunStart
from agentnb.core.events import Event as RunEvent
from agentnb.core.protocols import loop_context
from agentnb.core.state import State
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.event import ASKS_TO_CONFIRM, Event, actions_of, field_of
from agentnb.run import Run

Stream = AsyncGenerator[Event, None]


class LlmCallsLimitExceededError(AgentnbError):
    """An invocation has sent more model requests than `max_llm_calls` of its `run_config` allows."""


class ResumabilityConfig(BaseModel):
    """The published option to emit checkpoints: `InvocationContext(resumability_config=...)`."""

    is_resumable: bool = False


class Session(BaseModel):
    """The log of a conversation: its `events`, and the `state` that the agents share.

    It can be dumped to JSON and loaded from it. The object also holds the runs that wait for a person; JSON does not.
    """

    model_config = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, alias_generator=to_camel, populate_by_name=True
    )

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    app_name: str = ""
    user_id: str = ""
    state: dict[str, Any] = Field(default_factory=dict)
    events: list[Event] = Field(default_factory=list)
    last_update_time: float = 0.0

    _waiting: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(
        self, events: Iterable[Any] | None = None, state: Mapping[str, Any] | None = None, /, **fields: Any
    ) -> None:
        """Accept the events and the state by position, too."""
        given = {"events": list(events) if events is not None else None, "state": state}
        super().__init__(**{name: value for name, value in given.items() if value is not None}, **fields)

    @property
    def waiting(self) -> dict[str, tuple[object, Run]]:
        """The runs that have stopped at a question to a person: the loop and its run, by the name of the agent."""
        return self._waiting

    def asked_about(self, id: str) -> Any:
        """Return the call that a person was asked about under this id last, or None if it has a result."""
        for event in reversed(self.events):
            if event.author != "user" and any(field_of(given, "id") == id for given in event.get_function_responses()):
                return None
            for call in event.get_function_calls():
                if field_of(call, "name") == ASKS_TO_CONFIRM and field_of(call, "id") == id:
                    return field_of(field_of(call, "args") or {}, "originalFunctionCall")
        return None

    def outputs_at_checkpoints(self) -> dict[str, dict[str, Any]]:
        """Return the outputs of the sub-agents of each loop agent at its last checkpoint, by name.

        The sub-agents that ran after the checkpoint run again.
        """
        return {event.author: event.said or {} for event in self.events if event.actions.agent_state is not None}

    def outputs(self) -> dict[str, Any]:
        """Return the last output of each loop agent that has ended, by name."""
        return {event.author: event.output for event in self.events if event.actions.end_of_agent}

    def open_calls(self) -> list[dict[str, Any]]:
        """Return the ids and names of the calls without an answer, except long-running ones."""
        made: dict[Any, dict[str, Any]] = {}
        for event in self.events:
            for call in event.get_function_calls():
                if not event.is_answered_later(call):
                    made[field_of(call, "id")] = {name: field_of(call, name) for name in ("id", "name")}
            for answer in event.get_function_responses():
                made.pop(field_of(answer, "id"), None)
        return list(made.values())


class Code:
    """The running code of an agent, and the streams of other agents that it has opened."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self._opened: list[Stream] = []

    def opens(self, stream: Stream) -> None:
        """Register the stream of an agent that the code runs itself (`agent.run_async(ctx)`)."""
        self._opened = [other for other in self._opened if getattr(other, "ag_frame", None) is not None]
        self._opened.append(stream)

    @property
    def may_forward(self) -> bool:
        """True if the code may forward events of other agents, because it has opened the stream of one."""
        return bool(self._opened)

    async def close(self) -> None:
        """Close the streams that the code has left open. Otherwise only the garbage collector would."""
        for stream in self._opened:
            await stream.aclose()


class Forwarded:
    """The event objects that the code of agents has yielded in one run, and the exception it has raised.

    A stream yields these objects, not copies made from the events of the run.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Event]] = {}
        self.error: BaseException | None = None

    def put(self, run_event: RunEvent | Delta, event: Event) -> None:
        """Keep the object from which an event of the run was made."""
        self._made[id(_identity(run_event))] = (run_event, event)

    def take(self, run_event: RunEvent | Delta) -> Event | None:
        """Remove and return the object from which this event of the run was made, or None."""
        return self._made.pop(id(_identity(run_event)), (run_event, None))[1]


def _identity(run_event: RunEvent | Delta) -> object:
    """Return the object that identifies an event of the run. The journal copies the event, but not its message."""
    return run_event.message if isinstance(run_event, MessageAdded) else run_event


@dataclass(eq=False)
class InvocationContext:
    """The context that the agents of one invocation share.

    is_resumable: emit checkpoints. agent_states, end_of_agents: the state of each agent, and whether it has ended, by
    name. Both are JSON, and a new context made from them resumes the invocation. If both have an entry for an agent,
    and it is marked as ended, an escalation of a nested loop leaves the agent, and its own end follows. user_content:
    the input of the user, text or content. If it answers earlier calls (`function_response`), it is added to the
    session. The answer to a question about a call has the response `{"confirmed": true}` or false; together with the
    session of the context that asked, it resumes the run. session: the log of events, and a state that `state_delta`
    changes. agent: the agent whose code is running, or the given one if none is. run: the current or last run of the
    invocation. end_invocation: if an agent sets it, the invocation ends after that agent. resumability_config,
    run_config: as published. `max_llm_calls` of `run_config` limits `increment_llm_call_count`. The other fields of the
    published design, such as services, are stored but not used by the loops.
    """

    adapter: ClassVar[type[Loop]]
    """The class that makes an agent from a loop of another design (`agentnb.loops.loop_agent.adapter`)."""

    is_resumable: bool = False
    agent_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    end_of_agents: dict[str, bool] = field(default_factory=dict)
    user_content: Any = None
    session: Session = field(default_factory=Session)
    invocation_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    branch: str | None = None
    end_invocation: bool = False
    agent: Any = None
    resumability_config: Any = None
    run_config: Any = None
    session_service: Any = None
    artifact_service: Any = None
    memory_service: Any = None
    credential_service: Any = None
    plugin_manager: Any = None
    context_cache_config: Any = None
    events_compaction_config: Any = None
    live_request_queue: Any = None
    node_path: str | None = None
    isolation_scope: str | None = None
    transcription_cache: Any = None
    live_session_resumption_handle: str | None = None
    input_realtime_cache: Any = None
    output_realtime_cache: Any = None
    active_streaming_tools: Any = None
    active_non_blocking_tool_tasks: Any = None
    canonical_tools_cache: Any = None
    token_compaction_checked: bool = False
    credential_by_key: dict[str, Any] = field(default_factory=dict)
    code: Code | None = field(default=None, init=False, repr=False)
    began: int = field(default=0, init=False, repr=False)
    """The number of events that the session had when the invocation began."""
    run: Run | None = field(default=None, init=False, repr=False)
    _streams: dict[str, tuple[Run, Forwarded]] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[int, Event] = field(default_factory=dict, init=False, repr=False)
    _around: InvocationContext | None = field(default=None, init=False, repr=False)
    _given: Any = field(default=None, init=False, repr=False)
    _decided: set[str] = field(default_factory=set, init=False, repr=False)
    _llm_calls: int = field(default=0, init=False, repr=False)
    _custom_metadata: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    _abort_signal: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    """Set when the invocation is aborted. Copies of the context share it."""

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Raise TypeError for an unknown keyword argument, and suggest the closest name."""
        known = [given.name for given in dataclass_fields(cls) if given.init]
        for name in fields:
            if name not in known:
                close = get_close_matches(name, known, 1)
                meant = f"; {close[0]}= is probably meant" if close else f". Its arguments are: {', '.join(known)}"
                raise TypeError(f"InvocationContext takes no {name}={meant}.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, given in (("agent_states", self.agent_states), ("end_of_agents", self.end_of_agents)):
            if not isinstance(given, Mapping):
                raise InvalidArguments(f"{name} must be a mapping from names of agents, not {given!r}.")
        self.agent_states = {name: _dumped(name, state) for name, state in self.agent_states.items()}
        self.end_of_agents = dict(self.end_of_agents)
        self.is_resumable = self.is_resumable or bool(getattr(self.resumability_config, "is_resumable", False))
        self._given = self.agent
        self._custom_metadata.update(getattr(self.run_config, "custom_metadata", None) or {})

    def enter(self, code: Code | None) -> None:
        """Set the code that is running, and its agent. None: no code of an agent is running."""
        self.code, self.agent = code, code.agent if code is not None else self._given

    @property
    def is_streamed(self) -> bool:
        """True if a stream is read, whose reader may answer questions with a new context. False in a run by `start`."""
        return self.code is None or bool(self._streams)

    @property
    def is_aborted(self) -> bool:
        """True if the invocation, or one around it, was aborted."""
        return self.aborted or (self._around is not None and self._around.is_aborted)

    @property
    def aborted(self) -> bool:
        """True if `abort` was called on this context or on a copy."""
        return self._abort_signal.is_set()

    @property
    def app_name(self) -> str:
        """The name of the session's application."""
        return self.session.app_name

    @property
    def user_id(self) -> str:
        """The id of the session's user."""
        return self.session.user_id

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> InvocationContext:
        """Return a copy, which shares the session, the maps and an abort. update: new values of fields.

        Raises InvalidArguments for an unknown field.
        """
        copied = copy.copy(self)
        for name, value in (update or {}).items():
            if not hasattr(copied, name):
                raise InvalidArguments(f"An InvocationContext has no field {name!r}.")
            setattr(copied, name, value)
        return copied

    def increment_llm_call_count(self) -> None:
        """Count a request to a model. Raises LlmCallsLimitExceededError beyond `max_llm_calls` of the `run_config`."""
        self._llm_calls += 1
        most = getattr(self.run_config, "max_llm_calls", 0) or 0
        if 0 < most < self._llm_calls:
            raise LlmCallsLimitExceededError(f"Max number of llm calls limit of `{most}` exceeded")

    def populate_invocation_agent_states(self) -> None:
        """Compute the two maps from the session's events of this invocation, if the context is resumable.

        An agent with content but without a checkpoint has started: its state is empty.
        """
        if not self.is_resumable:
            return
        for event in self._get_events(current_invocation=True):
            if event.actions.end_of_agent:
                self.set_agent_state(event.author, end_of_agent=True)
            elif event.actions.agent_state is not None:
                self.set_agent_state(event.author, event.actions.agent_state)
            elif event.author != "user" and event.content and not self.agent_states.get(event.author):
                self.set_agent_state(event.author, {})

    def _get_events(self, *, current_invocation: bool = False, current_branch: bool = False) -> list[Event]:
        """Return the session's events, optionally only those of this invocation or of this branch.

        An event of the user belongs to its branch and the branches above, or to all if it has no branch. An answer to a
        call belongs to a branch only if the call was made in it or below.
        """
        events = self.session.events
        if current_invocation:
            events = [event for event in events if event.invocation_id == self.invocation_id]
        if not current_branch:
            return list(events)
        below = f"{self.branch}."
        made = {
            field_of(call, "id")
            for event in self.session.events
            if self.branch and event.branch and (event.branch == self.branch or event.branch.startswith(below))
            for call in event.get_function_calls()
        }

        def belongs(event: Event) -> bool:
            if event.author != "user":
                return event.branch == self.branch
            answered = {field_of(given, "id") for given in event.get_function_responses()} - {None}
            if answered and self.branch and not answered & made:
                return False
            return event.branch is None or self.branch in (None, event.branch) or event.branch.startswith(below)

        return [event for event in events if belongs(event)]

    def get_agent_state(self, name: str) -> dict[str, Any] | None:
        """Return the state of an agent, or None if it has not started, has ended, or has no state."""
        return self.agent_states.get(name)

    def set_agent_state(self, agent_name: str, agent_state: Any = None, end_of_agent: bool = False) -> None:
        """Record the state of an agent, or that it has ended. With neither argument, record that it has not started."""
        state = _dumped(agent_name, agent_state) if agent_state is not None else None
        self.agent_states.pop(agent_name, None)
        self.end_of_agents.pop(agent_name, None)
        if end_of_agent:
            self.end_of_agents[agent_name] = True
        elif state is not None:
            self.agent_states[agent_name], self.end_of_agents[agent_name] = state, False

    def leave(self, name: str) -> None:
        """Mark an agent with a state to be left by an escalation. Its own end is still to come."""
        if name in self.agent_states:
            self.end_of_agents[name] = True

    def has_ended(self, name: str) -> bool:
        """Return True if an agent has ended."""
        return bool(self.end_of_agents.get(name)) and name not in self.agent_states

    def reset_sub_agent_states(self, agent_name: str) -> None:
        """Reset the state of all descendants of the agent of this name, so that they start again."""
        agent: Any = self.agent if self.agent is not None or self.run is None else self.run.loop
        self.reset_below(agent.find_agent(agent_name) if agent is not None else None)

    def reset_below(self, agent: Any) -> None:
        """Reset the state of all descendants of this agent, so that they start again."""
        for sub_agent in getattr(agent, "sub_agents", ()):
            self.set_agent_state(sub_agent.name)
            self.reset_below(sub_agent)

    def should_pause_invocation(self, event: Event) -> bool:
        """Return True if the event has a long-running call without an answer."""
        return any(field_of(call, "id") not in self._decided for call in event.long_running_calls)

    def asked(self, id: str) -> None:
        """Record that a person is asked under this id."""
        self._decided.discard(id)

    def decided(self, id: str) -> None:
        """Record that the question of this id is decided."""
        self._decided.add(id)

    def confirmations(self) -> dict[str, bool]:
        """Return the user's answers to questions about calls, by id."""
        event = Event(author="user", content=self.user_content)
        answers: dict[str, bool] = {}
        for answer in event.get_function_responses():
            response = field_of(answer, "response")
            if isinstance(response, Mapping) and isinstance(wrapped := response.get("response"), str):
                response = _object_in(wrapped)  # a client that has only text sends it like this
            confirmed = field_of(response, "confirmed") if response is not None else None
            if isinstance(confirmed, bool) and field_of(answer, "id") is not None:
                answers[str(field_of(answer, "id"))] = confirmed
        return answers

    def add(self, event: Event, *, is_performed: bool = False) -> None:
        """Add an event to the session, and perform its actions. is_performed: the state has its changes already."""
        events, actions = self.session.events, event.actions
        if not (events and events[-1] is event and self._may_forward()):  # it is forwarded
            events.append(event)
            self.session.last_update_time = event.timestamp
        if not is_performed:
            self.session.state.update(actions.state_delta)
        if actions.end_of_agent or actions.agent_state is not None:
            end = bool(actions.end_of_agent)
            self.set_agent_state(event.author, agent_state=actions.agent_state, end_of_agent=end)

    def add_answers(self) -> None:
        """Add the user's content to the session if it answers calls: the code that made the calls reads the session."""
        event = Event(author="user", content=self.user_content, invocation_id=self.invocation_id)
        known = (event.content for event in self.session.events if event.author == "user")
        if event.get_function_responses() and event.content not in known:
            self.session.events.append(event)

    def abort(self) -> None:
        """Stop the invocation after the current event. It can be resumed. Thread-safe."""
        self._abort_signal.set()
        if self._around is not None:
            self._around.abort()
            return
        for run, _ in list(self._streams.values()):
            run.cancel("aborted")

    def belongs_to(self, other: InvocationContext) -> None:
        """Nest this invocation in another one: its events are added to the session and the streams of that one."""
        self._around = other
        self.session, self.invocation_id, self.branch = other.session, other.invocation_id, other.branch
        self.run, self._streams, self._kept = other.run, other._streams, other._kept

    def events_of(self, loop: Any, **options: Any) -> Stream:
        """Run a loop of another design in this invocation, and return the stream of its events."""
        stream: Stream = self.adapter(loop).run_async(self, **options)
        return stream

    # -- for the streams of its runs -------------------------------------------------------------------------------

    def open(self, run: Run) -> Forwarded:
        """Start forwarding the events of the agents of a run. Return the object that holds them."""
        self.run = run if not self._streams else self.run
        forwarded = Forwarded()
        self._streams[run.id] = run, forwarded
        return forwarded

    def close(self, run: Run) -> None:
        """Stop forwarding the events of a run."""
        del self._streams[run.id]

    def forwarded(self, run_id: str) -> Forwarded | None:
        """Return the forwarded events of a run, or None if no stream reads them."""
        stream = self._streams.get(run_id)
        return stream[1] if stream is not None else None

    def keep(self, event: Event) -> None:
        """Record that a nested loop has handled this escalation, which leaves no loop around the nested one."""
        self._kept[id(event)] = event

    def escalation(self, event: Event) -> str | None:
        """Return the scope of an escalation: `nearest`, the name of a loop, or `root` for all. None: no escalation."""
        if not event.actions.escalate or (id(event) in self._kept and self._may_forward()):
            return None
        return event.actions.scope or "nearest"

    def _may_forward(self) -> bool:
        """Return True if the running code may forward an event that was added before; it is not added twice then."""
        return self.code is not None and self.code.may_forward


def _object_in(text: str) -> dict[str, Any]:
    """Return the object in a JSON text, or an empty one."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _dumped(name: str, state: Any) -> dict[str, Any]:
    if not isinstance(state, (BaseModel, Mapping)):
        raise InvalidArguments(f"The state of the agent {name!r} must be a mapping or a LoopAgentState, not {state!r}.")
    return state.model_dump(mode="json") if isinstance(state, BaseModel) else dict(state)


_MAPS = ("agent_states", "end_of_agents")


class Invocation:
    """The holder of an invocation's context during a run. The context is made when it is first needed.

    agent: the outermost agent. state: its state. recording: the events that its run resumes from. around: the outer
    invocation, if a loop of another design in it has started this one.
    """

    def __init__(
        self, agent: Loop, state: State, recording: Sequence[RunEvent] = (), around: Invocation | None = None
    ) -> None:
        self.agent = agent
        self._state = state
        self._recording = recording
        self._around = around
        self._context: InvocationContext | None = None

    @property
    def context(self) -> InvocationContext:
        """The context that the agents of the invocation share."""
        if self._context is None:
            # Make it from the input.
            given = self._state.input
            content = given.get("content") if isinstance(given, Mapping) else given
            content = _invocation(given).get("user_content", content)
            maps: dict[str, Any] = {name: value for name, value in _given(given).items() if name in _MAPS}
            self._context = InvocationContext(is_resumable=True, user_content=content, **maps)
            self._context.add_answers()

            # Add what was recorded before, also by another process: the events of agents and the answers for them. The
            # messages of loops of other designs are not events of the session.
            for event in self._recording:
                if isinstance(event, RunStart) and event.path and not _given(event.input):
                    self._context.set_agent_state(event.name)
                elif (isinstance(event, MessageAdded) and event.origin == "loop") or (
                    isinstance(event, Queued) and event.queue == "input"
                ):
                    said = event.message.get("event")
                    if isinstance(said, dict):
                        self._context.add(Event.model_validate(said))
                elif isinstance(event, CallEnd) and not event.is_error:
                    self._context.session.state.update(actions_of(event.name, event.details).state_delta)

            # The events of a nested invocation are added to the outer session, too.
            if self._around is not None:
                self._context.belongs_to(self._around.context)
        return self._context

    @context.setter
    def context(self, context: InvocationContext) -> None:
        self._context = context


def context_of(state: State, agent: Loop) -> InvocationContext:
    """Return the context of the invocation of an agent. state: the agent's state."""
    found = loop_context.get()
    return found.context if isinstance(found, Invocation) else Invocation(agent, state).context


def invocation_of(state: State) -> dict[str, dict[str, Any]]:
    """Return the position from which an agent resumes an invocation: maps and outputs. Empty if it resumes none."""
    return _given(state.input)


def end_before(name: str, state: State) -> RunEnd | None:
    """Return the end, with the output, of an agent that had ended in the invocation it resumes; otherwise None."""
    resumed = invocation_of(state)
    if not resumed.get("end_of_agents", {}).get(name) or name in resumed["agent_states"]:
        return None
    return RunEnd(reason="completed", output=resumed["outputs"].get(name))


def _given(input: Any) -> dict[str, dict[str, Any]]:
    """Return the maps and outputs in the input of an agent, or an empty dict if it does not resume an invocation."""
    given = _invocation(input)
    return {name: dict(given.get(name) or {}) for name in (*_MAPS, "said", "outputs")} if given else {}


def _invocation(input: Any) -> dict[str, Any]:
    """Return the part of an agent's input that is about its invocation; empty if it was started by `start`."""
    given = input.get("invocation") if isinstance(input, Mapping) else None
    return given if isinstance(given, dict) else {}
