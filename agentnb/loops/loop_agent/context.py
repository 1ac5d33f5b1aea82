"""The context of an invocation: what its agents share while it runs (SEMANTICS.md, 2. Vocabulary).

Its two maps, `agent_states` and `end_of_agents`, are enough to resume an invocation in another process.

An agent's code receives the context; `advance` does not, because a context is not part of the state. The run keeps it
in a `Companion` of the outermost agent (`Design.companion`). If the user gave no context, it is made from the input of
that agent. When a run resumes from a recording, its session contains the recorded events again. Agents that another
design runs, as tools or to execute tasks, are a new invocation for each call.
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
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic.alias_generators import to_camel

from agentnb.core.errors import AgentnbError, InvalidArguments
from agentnb.core.events import Delta, MessageAdded, Queued, RunEnd, RunStart
from agentnb.core.events import Event as Fact
from agentnb.core.loop import beside
from agentnb.core.state import State
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.event import Event, read

if TYPE_CHECKING:
    from agentnb.run import Run


Stream = AsyncGenerator[Event, None]


ASKS_TO_CONFIRM = "adk_request_confirmation"
"""The name of the function call that asks a person about a call."""


class LlmCallsLimitExceededError(AgentnbError):
    """An invocation has asked its models more often than `max_llm_calls` of its `run_config` allows."""


class ResumabilityConfig(BaseModel):
    """Whether checkpoints are events, as the design says it: `InvocationContext(resumability_config=...)`."""

    is_resumable: bool = False


class Session(BaseModel):
    """The log of a conversation: `events` so far, `state` that the agents share; whose it is, in the design's words.

    It is JSON in and out. A run that waits for a person is kept beside it, as long as the object lives.
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
        """Take the events and the state by position as well."""
        given = {"events": list(events) if events is not None else None, "state": state}
        super().__init__(**{name: value for name, value in given.items() if value is not None}, **fields)

    @property
    def waiting(self) -> dict[str, tuple[object, Run]]:
        """The runs that have stopped at a question to a person, and what they are of, by the name of their agent."""
        return self._waiting

    def asked_about(self, id: str) -> Any:
        """The call that a person was asked about under this id last; None where nobody was, or it has its result."""
        for event in reversed(self.events):
            if event.author != "user" and any(read(given, "id") == id for given in event.get_function_responses()):
                return None
            for call in event.get_function_calls():
                if read(call, "name") == ASKS_TO_CONFIRM and read(call, "id") == id:
                    return read(read(call, "args") or {}, "originalFunctionCall")
        return None

    def said_by_the_last_checkpoints(self) -> dict[str, dict[str, Any]]:
        """What the sub-agents of each loop agent had come to where it last said where it stands.

        What came later is done again.
        """
        return {event.author: event.said or {} for event in self.events if event.actions.agent_state is not None}

    def outputs(self) -> dict[str, Any]:
        """What each loop agent came to when it ended last."""
        return {event.author: event.output for event in self.events if event.actions.end_of_agent}

    def open_calls(self) -> list[dict[str, Any]]:
        """The ids and names of the calls that nobody has answered, but for those whose answer is to come later."""
        made: dict[Any, dict[str, Any]] = {}
        for event in self.events:
            for call in event.get_function_calls():
                if not event.is_answered_later(call):
                    made[read(call, "id")] = {name: read(call, name) for name in ("id", "name")}
            for answer in event.get_function_responses():
                made.pop(read(answer, "id"), None)
        return list(made.values())


class Code:
    """The code of an agent, as it runs, and the streams of other agents that it has opened."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self._opened: list[Stream] = []

    def opens(self, stream: Stream) -> None:
        """It runs another agent by hand."""
        self._opened = [other for other in self._opened if getattr(other, "ag_frame", None) is not None]
        self._opened.append(stream)

    @property
    def hands_on(self) -> bool:
        """Whether what it says may be what another has said: it has run one by hand."""
        return bool(self._opened)

    async def close(self) -> None:
        """Close what it has left open: nobody else would before the garbage collector does."""
        for stream in self._opened:
            await stream.aclose()


class Forwarded:
    """What the agents of one run have said and raised, as they made it, beside the facts this has become."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Event]] = {}
        self.error: BaseException | None = None

    def put(self, fact: Fact | Delta, event: Event) -> None:
        """Keep the event that a fact was made of."""
        self._made[id(_kept_in(fact))] = (fact, event)

    def take(self, fact: Fact | Delta) -> Event | None:
        """The event that this fact was made of, once."""
        return self._made.pop(id(_kept_in(fact)), (fact, None))[1]


def _kept_in(fact: Fact | Delta) -> object:
    """What of a fact is the same object once it is recorded, which makes a copy of the fact."""
    return fact.message if isinstance(fact, MessageAdded) else fact


@dataclass(eq=False)
class InvocationContext:
    """What the agents of one invocation share.

    is_resumable: checkpoints are events. agent_states, end_of_agents: where each agent stands, by name; a new context
    made from these (they are JSON) goes on from there. One that has ended and stands somewhere is left there, by an
    escalation that has ended the loop inside it already. user_content: what the user said, text or content; where it
    answers calls that were made before (`function_response`), it is in the session too. An answer to a question about a
    call says `{"confirmed": true}` or false; with the session of the context that asked, its run goes on from there.

    `session` has what was said, and a state that `state_delta` changes. `agent` is the one whose code is running, and
    where none is the one that was given; `run` the run that the invocation is, or was last. An agent that sets
    `end_invocation` leaves every loop around it. resumability_config, run_config: as in the design; `max_llm_calls` of
    the latter is what `increment_llm_call_count` counts up to. The design's services, plugin manager and other
    configurations are kept, and not used.
    """

    adapter: ClassVar[type[Loop]]
    """Makes an agent of a loop of another design (`agentnb.loops.loop_agent.adapter`)."""

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
    run: Run | None = field(default=None, init=False, repr=False)
    _streams: dict[str, tuple[Run, Forwarded]] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[int, Event] = field(default_factory=dict, init=False, repr=False)
    _around: InvocationContext | None = field(default=None, init=False, repr=False)
    _given: Any = field(default=None, init=False, repr=False)
    _decided: set[str] = field(default_factory=set, init=False, repr=False)
    _llm_calls: int = field(default=0, init=False, repr=False)
    _custom_metadata: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    _abort_signal: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    """Set once the invocation is aborted; its copies share it."""

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Raise TypeError for a keyword that a context does not have, with the one that is probably meant."""
        known = [given.name for given in dataclass_fields(cls) if given.init]
        for name in fields:
            if name not in known:
                close = get_close_matches(name, known, 1)
                meant = f"; {close[0]}= is probably meant" if close else f"; it has {', '.join(known)}"
                raise TypeError(f"InvocationContext takes no {name}={meant}.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, given in (("agent_states", self.agent_states), ("end_of_agents", self.end_of_agents)):
            if not isinstance(given, Mapping):
                raise InvalidArguments(f"{name}= takes a mapping from agents' names, not {given!r}.")
        self.agent_states = {name: _dumped(name, state) for name, state in self.agent_states.items()}
        self.end_of_agents = dict(self.end_of_agents)
        self.is_resumable = self.is_resumable or bool(getattr(self.resumability_config, "is_resumable", False))
        self._given = self.agent
        self._custom_metadata.update(getattr(self.run_config, "custom_metadata", None) or {})

    def enter(self, code: Code | None) -> None:
        """Let this code be the one that is running; None where no agent's is."""
        self.code, self.agent = code, code.agent if code is not None else self._given

    @property
    def is_streamed(self) -> bool:
        """Whether somebody reads the events of the invocation, who may answer by a context; not so in a started run."""
        return self.code is None or bool(self._streams)

    @property
    def durable(self) -> bool:
        """Whether the maps say where to resume; otherwise a pause only stops the invocation."""
        return self.is_resumable

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called."""
        return self.aborted or (self._around is not None and self._around.is_aborted)

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called on it, or on a copy of it."""
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
        """A copy that shares the session, the maps and an abort, with other values where `update` has them.

        Raises InvalidArguments for a field that a context does not have.
        """
        copied = copy.copy(self)
        for name, value in (update or {}).items():
            if not hasattr(copied, name):
                raise InvalidArguments(f"A context has no {name!r}.")
            setattr(copied, name, value)
        return copied

    def increment_llm_call_count(self) -> None:
        """Count a request to a model. Raises LlmCallsLimitExceededError beyond `max_llm_calls` of the `run_config`."""
        self._llm_calls += 1
        most = getattr(self.run_config, "max_llm_calls", 0) or 0
        if 0 < most < self._llm_calls:
            raise LlmCallsLimitExceededError(f"Max number of llm calls limit of `{most}` exceeded")

    def populate_invocation_agent_states(self) -> None:
        """Fold the session's events of this invocation into the two maps, where the invocation is resumable.

        An agent that has said something, and not where it stands, has begun: its state is empty.
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
        """The session's events, of this invocation alone, or of this branch.

        What the user says belongs to the branch that it was said in and to those around it, or to all where it was said
        in none; an answer to a call, where that call was made in this branch or below it.
        """
        events = self.session.events
        if current_invocation:
            events = [event for event in events if event.invocation_id == self.invocation_id]
        if not current_branch:
            return list(events)
        below = f"{self.branch}."
        made = {
            read(call, "id")
            for event in self.session.events
            if self.branch and event.branch and (event.branch == self.branch or event.branch.startswith(below))
            for call in event.get_function_calls()
        }

        def belongs(event: Event) -> bool:
            if event.author != "user":
                return event.branch == self.branch
            answered = {read(given, "id") for given in event.get_function_responses()} - {None}
            if answered and self.branch and not answered & made:
                return False
            return event.branch is None or self.branch in (None, event.branch) or event.branch.startswith(below)

        return [event for event in events if belongs(event)]

    def get_agent_state(self, name: str) -> dict[str, Any] | None:
        """Where an agent stands; None where it has not begun, has ended, or keeps nothing of it."""
        return self.agent_states.get(name)

    def set_agent_state(self, agent_name: str, agent_state: Any = None, end_of_agent: bool = False) -> None:
        """Say where an agent stands: ended, in a state, or, with neither, not begun."""
        state = _dumped(agent_name, agent_state) if agent_state is not None else None
        self.agent_states.pop(agent_name, None)
        self.end_of_agents.pop(agent_name, None)
        if end_of_agent:
            self.end_of_agents[agent_name] = True
        elif state is not None:
            self.agent_states[agent_name], self.end_of_agents[agent_name] = state, False

    def leave(self, name: str) -> None:
        """Say that an agent that stands somewhere is left there: it is still to say that it has ended."""
        if name in self.agent_states:
            self.end_of_agents[name] = True

    def has_ended(self, name: str) -> bool:
        """Whether an agent has said that it has ended."""
        return bool(self.end_of_agents.get(name)) and name not in self.agent_states

    def reset_sub_agent_states(self, agent_name: str) -> None:
        """Let every agent below the one of that name begin anew; no agent's code need be running."""
        agent: Any = self.agent if self.agent is not None or self.run is None else self.run.loop
        self.reset_below(agent.find_agent(agent_name) if agent is not None else None)

    def reset_below(self, agent: Any) -> None:
        """Let every agent below this one begin anew."""
        for inside in getattr(agent, "sub_agents", ()):
            self.set_agent_state(inside.name)
            self.reset_below(inside)

    def should_pause_invocation(self, event: Event) -> bool:
        """Whether the event has a call whose answer comes later, and has not come yet."""
        return any(read(call, "id") not in self._decided for call in event.long_running_calls)

    def asked(self, id: str) -> None:
        """Note that a person is asked under this id."""
        self._decided.discard(id)

    def decided(self, id: str) -> None:
        """Note that a question to a person is decided."""
        self._decided.add(id)

    def confirmations(self) -> dict[str, bool]:
        """What the user has answered to questions about calls, by their ids."""
        said = Event(author="user", content=self.user_content)
        answers: dict[str, bool] = {}
        for answer in said.get_function_responses():
            response = read(answer, "response")
            if isinstance(response, Mapping) and isinstance(wrapped := response.get("response"), str):
                response = _object_in(wrapped)  # as a client sends it that has only text
            confirmed = read(response, "confirmed") if response is not None else None
            if isinstance(confirmed, bool) and read(answer, "id") is not None:
                answers[str(read(answer, "id"))] = confirmed
        return answers

    def add(self, event: Event) -> None:
        """Let an event have been said: it is in the session, and its actions are done."""
        events, actions = self.session.events, event.actions
        if not (events and events[-1] is event and self._is_handed_on()):  # which says nothing new
            events.append(event)
            self.session.last_update_time = event.timestamp
        self.session.state.update(actions.state_delta)
        if actions.end_of_agent or actions.agent_state is not None:
            end = bool(actions.end_of_agent)
            self.set_agent_state(event.author, agent_state=actions.agent_state, end_of_agent=end)

    def hear(self) -> None:
        """Let what the user said be in the session where it answers calls: whoever made them looks there."""
        said = Event(author="user", content=self.user_content, invocation_id=self.invocation_id)
        heard = (event.content for event in self.session.events if event.author == "user")
        if said.get_function_responses() and said.content not in heard:
            self.session.events.append(said)

    def abort(self) -> None:
        """Stop the invocation after the current event; it can be resumed. Safe from every thread."""
        self._abort_signal.set()
        if self._around is not None:
            self._around.abort()
            return
        for run, _ in list(self._streams.values()):
            run.cancel("aborted")

    def belongs_to(self, other: InvocationContext) -> None:
        """Be inside another invocation: what is said in this one is said in that one's session, and in its streams."""
        self._around = other
        self.session, self.invocation_id, self.branch = other.session, other.invocation_id, other.branch
        self.run, self._streams, self._kept = other.run, other._streams, other._kept

    def events_of(self, loop: Any, **options: Any) -> Stream:
        """Run a loop of another design in this invocation: its events, as they are asked for."""
        stream: Stream = self.adapter(loop).run_async(self, **options)
        return stream

    # -- for the streams of its runs -------------------------------------------------------------------------------

    def open(self, run: Run) -> Forwarded:
        """Hand on, from now on, what the agents of this run say."""
        self.run = run if not self._streams else self.run
        forwarded = Forwarded()
        self._streams[run.id] = run, forwarded
        return forwarded

    def close(self, run: Run) -> None:
        """Hand on no more."""
        del self._streams[run.id]

    def forwarded(self, run_id: str) -> Forwarded | None:
        """What the agents of that run have said, where somebody takes it."""
        stream = self._streams.get(run_id)
        return stream[1] if stream is not None else None

    def keep(self, event: Event) -> None:
        """A loop inside an agent has taken this escalation for its own: it leaves no loop around that agent."""
        self._kept[id(event)] = event

    def escalation(self, event: Event) -> str | None:
        """Which loop the event leaves: `nearest`, one by its name, or `root` for every one."""
        if not event.actions.escalate or (id(event) in self._kept and self._is_handed_on()):
            return None
        return event.actions.scope or "nearest"

    def _is_handed_on(self) -> bool:
        """Whether an event that was said before is so again by hand; otherwise its agent just says it once more."""
        return self.code is not None and self.code.hands_on


def _object_in(text: str) -> dict[str, Any]:
    """The object that a JSON text has; an empty one where it has none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _dumped(name: str, state: Any) -> dict[str, Any]:
    if not isinstance(state, (BaseModel, Mapping)):
        raise InvalidArguments(f"The state of the agent {name!r} is a mapping or a LoopAgentState, not {state!r}.")
    return state.model_dump(mode="json") if isinstance(state, BaseModel) else dict(state)


_MAPS = ("agent_states", "end_of_agents")


class Companion:
    """What stands beside an invocation as long as it runs: its context, made when it is first needed.

    agent: the outermost of its agents, which stands at `state`. recording: what it goes on from. around: the companion
    of the invocation that this one is inside of, where a loop of another design has begun it.
    """

    def __init__(
        self, agent: Loop, state: State, recording: Sequence[Fact] = (), around: Companion | None = None
    ) -> None:
        self.agent = agent
        self._state = state
        self._recording = recording
        self._around = around
        self._context: InvocationContext | None = None

    @property
    def context(self) -> InvocationContext:
        """The context that the agents share."""
        if self._context is None:
            self._context = _begun_with(self._state.input)
            self._context.hear()
            for fact in self._recording:
                _remember(self._context, fact)
            if self._around is not None:  # what is said inside is said in the session around, to whoever hears that
                self._context.belongs_to(self._around.context)
        return self._context

    @context.setter
    def context(self, context: InvocationContext) -> None:
        self._context = context


def _remember(context: InvocationContext, fact: Fact) -> None:
    """Let the context know what was said before the process that recorded it went."""
    if isinstance(fact, RunStart) and fact.path and not _given(fact.input):
        context.set_agent_state(fact.name)
    elif isinstance(fact, (MessageAdded, Queued)) and _is_of_an_agent(fact):
        said = fact.message.get("event")
        if isinstance(said, dict):
            context.add(Event.model_validate(said))


def _is_of_an_agent(fact: MessageAdded | Queued) -> bool:
    """Whether it was said by an agent, or to one; what is said to a loop inside is not."""
    return fact.queue == "input" if isinstance(fact, Queued) else fact.origin == "loop"


def use_context(run: Run, context: InvocationContext) -> None:
    """Let the agents of a run share this context."""
    assert isinstance(run.companion, Companion)
    run.companion.context = context


def context_of(state: State, agent: Loop) -> InvocationContext:
    """The context of the invocation that `agent`, which stands at `state`, is part of."""
    companion = beside.get()
    return companion.context if isinstance(companion, Companion) else Companion(agent, state).context


def _begun_with(input: Any) -> InvocationContext:
    content = input.get("content") if isinstance(input, Mapping) else input
    content = _invocation(input).get("user_content", content)
    maps: dict[str, Any] = {name: given for name, given in _given(input).items() if name in _MAPS}
    return InvocationContext(is_resumable=True, user_content=content, **maps)


def invocation_of(state: State) -> dict[str, dict[str, Any]]:
    """What an agent was started with of the invocation it resumes: its maps, and what was come to in it."""
    return _given(state.input)


def end_before(name: str, state: State) -> RunEnd | None:
    """The end of an agent that had ended in the invocation it resumes, and had said so; what it came to stays."""
    resumed = invocation_of(state)
    if not resumed.get("end_of_agents", {}).get(name) or name in resumed["agent_states"]:
        return None
    return RunEnd(reason="completed", output=resumed["outputs"].get(name))


def _given(input: Any) -> dict[str, dict[str, Any]]:
    given = _invocation(input)
    return {name: dict(given.get(name) or {}) for name in (*_MAPS, "said", "outputs")} if given else {}


def _invocation(input: Any) -> dict[str, Any]:
    """What an agent was told of the invocation that it is in, or goes on with; nothing where it was started alone."""
    given = input.get("invocation") if isinstance(input, Mapping) else None
    return given if isinstance(given, dict) else {}
