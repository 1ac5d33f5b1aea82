"""What stands beside a run of LoopAgent's design as long as the run lives: the context of its invocation.

An agent's code is given the context, and `advance` is not: a context is no part of the state. So it is found by the id
of the run. It is made from the run's input where nobody has brought one; where the run goes on from a recording, what
the recording says has been said is in its session again, and the agents that say where they stand find that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from agentnb.core.events import Event as Fact
from agentnb.core.events import MessageAdded, RunStart
from agentnb.core.state import State
from agentnb.loops.loop_agent.event import Event
from agentnb.loops.loop_agent.invocation import InvocationContext


class Companion:
    """What stands beside a run as long as that lives: the context of its invocation, made when it is first needed."""

    def __init__(self, recording: Sequence[Fact] = ()) -> None:
        self.context: InvocationContext | None = None
        if recording and isinstance(first := recording[0], RunStart):
            self.context = _begun_with(first.input)
            for fact in recording:
                _remember(self.context, fact)


def _remember(context: InvocationContext, fact: Fact) -> None:
    """Let the context know what was said before the process that recorded it went."""
    if isinstance(fact, RunStart) and fact.path and not _given(fact.input):
        context.set_agent_state(fact.name)
    elif isinstance(fact, MessageAdded) and fact.origin == "loop":
        said = fact.message.get("event")
        if isinstance(said, dict):
            context.add(Event.model_validate(said))


_running: WeakValueDictionary[str, Companion] = WeakValueDictionary()
"""By the runs of this process."""


def accompany(run_id: str, recording: Sequence[Fact] = ()) -> Companion:
    """Begin to stand beside a run."""
    companion = _running[run_id] = Companion(recording)
    return companion


def use_context(run_id: str, context: InvocationContext) -> None:
    """Let the agents of a run share this context."""
    _running[run_id].context = context


def context_of(state: State, agent: Any) -> InvocationContext:
    """The context of the invocation that `agent`, which stands at `state`, is part of."""
    companion = _running.get(state.run_id)
    if companion is None:  # the run is another loop's, which knows of no invocation: it lives as long as the agent
        companion = agent.companion(state.run_id, ())
        agent.beside = companion
    if companion.context is None:
        companion.context = _begun_with(state.input)
    context: InvocationContext = companion.context
    return context


def _begun_with(input: Any) -> InvocationContext:
    content = input.get("content") if isinstance(input, Mapping) else input
    given: dict[str, Any] = _given(input)
    return InvocationContext(is_resumable=True, user_content=content, **given)


def invocation_of(state: State) -> dict[str, dict[str, Any]]:
    """The maps an agent was started with: those of the invocation it resumes."""
    return _given(state.input)


def _given(input: Any) -> dict[str, dict[str, Any]]:
    given = input.get("invocation") if isinstance(input, Mapping) else None
    return {name: dict(given.get(name) or {}) for name in ("agent_states", "end_of_agents")} if given else {}
