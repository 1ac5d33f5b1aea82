"""What stands beside an invocation of LoopAgent's design as long as that runs: its context.

An agent's code is given the context, and `advance` is not: a context is no part of the state. So the run keeps it,
beside the outermost of the agents. It is made from what that agent was told where nobody has brought one; where the run
goes on from a recording, what the recording says has been said is in its session again, and the agents that say where
they stand find that. Agents that another design runs, as tools or to execute tasks, are an invocation at each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentnb.core.events import Event as Fact
from agentnb.core.events import MessageAdded, Queued, RunEnd, RunStart
from agentnb.core.loop import beside
from agentnb.core.state import State
from agentnb.loops.loop_agent.event import Event
from agentnb.loops.loop_agent.invocation import InvocationContext

if TYPE_CHECKING:
    from agentnb.loops.loop_agent.tree import AgentInTree
    from agentnb.run import Run


_MAPS = ("agent_states", "end_of_agents")


class Companion:
    """What stands beside an invocation as long as it runs: its context, made when it is first needed.

    agent: the outermost of its agents, which stands at `state`. recording: what it goes on from. around: the companion
    of the invocation that this one is inside of, where a loop of another design has begun it.
    """

    def __init__(
        self, agent: AgentInTree, state: State, recording: Sequence[Fact] = (), around: Companion | None = None
    ) -> None:
        self._agent = agent
        self._state = state
        self._recording = recording
        self._around = around
        self._context: InvocationContext | None = None

    def has(self, agent: AgentInTree) -> bool:
        """Whether the agent is one of this invocation's."""
        return any(other is self._agent for other in agent.around())

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


def context_of(state: State, agent: AgentInTree) -> InvocationContext:
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
