"""LoopAgent: runs its sub-agents in order, pass after pass (SEMANTICS 1).

Written top to bottom it would read:

    while max_iterations is None or times_looped < max_iterations:
        for agent in sub_agents:
            checkpoint {current_sub_agent, times_looped}
            run the agent to its end
            if it has paused: stop here, to be resumed at this agent
            if it has escalated: stop
        times_looped += 1

As a decision it is `advance`. A sub-agent is a loop of its own: a `BaseAgent`, which is opaque and begins again where
it was broken off, or any other loop of agentnb, another LoopAgent included, which goes on exactly where it was. The
checkpoint is the loop's own state, so where to resume is a position in the journal.

An escalation leaves the nearest loop, unless it names another one (1g.6); it counts as no pass (1g.2).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CallProposed, ErrorInfo, RunEnd, RunStart, StateUpdate
from agentnb.core.events import Event as Fact
from agentnb.core.loop import Design
from agentnb.core.messages import ToolCall, to_messages
from agentnb.core.state import CallState, State
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.base_agent import BaseAgent
from agentnb.loops.loop_agent.exit_loop import exit_loop, has_exited
from agentnb.loops.loop_agent.invocation import (
    Event,
    EventActions,
    InvocationContext,
    LoopAgentState,
    Session,
    invocation_of,
)

__all__ = [
    "BaseAgent",
    "Event",
    "EventActions",
    "InvocationContext",
    "LoopAgent",
    "LoopAgentState",
    "Session",
    "exit_loop",
]


class LoopAgent(BaseAgent):
    """Run sub-agents in order, pass after pass, until one escalates or `max_iterations` passes are complete.

    name, sub_agents, and the keywords of `BaseAgent`. max_iterations: None is no limit, 0 and less is no pass.

    Raises InvalidArguments where sub-agents share a name or belong to another agent.
    """

    phases: ClassVar[Mapping[str, Sequence[str]]] = {
        "checkpoint": ["sub_agent", "done"],
        "sub_agent": ["checkpoint", "done"],
        "done": [],
    }
    opened_by: ClassVar[Mapping[str, str]] = {
        "state_update": "checkpoint",
        "call_start": "sub_agent",
        "run_end": "done",
    }

    def __init__(
        self, name: str, sub_agents: Sequence[Loop] = (), max_iterations: int | None = None, **options: Any
    ) -> None:
        super().__init__(name, sub_agents, **options)
        if max_iterations is not None and not isinstance(max_iterations, int):
            raise InvalidArguments(f"max_iterations is a whole number or None, not {max_iterations!r}.")
        self.max_iterations = max_iterations
        self.activities = {}

    def config(self) -> dict[str, Any]:
        """The sub-agents by name, and the limit."""
        return {"sub_agents": [agent.name for agent in self.sub_agents], "max_iterations": self.max_iterations}

    # -- the decision ----------------------------------------------------------------------------------------------

    def advance(self, state: State) -> Fact:
        """What comes next (SEMANTICS 1c)."""
        if not self.sub_agents:
            return RunEnd.make(reason="empty")
        if "current_sub_agent" not in state.values:
            return self._begin(state)
        call = state.calls.get(_call_id(state))
        if call is None:
            return self._run_sub_agent(state)
        assert call.end is not None
        if call.end.is_error:
            error = call.end.error or ErrorInfo.make(type="Error", message=str(call.end.result))
            return RunEnd.make(reason="error", error=error)
        escalated = _escalated(state.children[call.name])
        if escalated is None:
            return self._next(state, call)
        if escalated not in ("nearest", self.name) and "escalate" not in state.values:
            return StateUpdate.make(values={"escalate": escalated})
        return RunEnd.make(reason="escalated", output=call.end.result)

    def _begin(self, state: State) -> Fact:
        """The first position: where the invocation it resumes was, or the start."""
        given = invocation_of(state)
        if given.get("end_of_agents", {}).get(self.name):
            return RunEnd.make(reason="completed")
        saved = given.get("agent_states", {}).get(self.name)
        at = LoopAgentState.model_validate(saved) if saved is not None else LoopAgentState()
        names = [agent.name for agent in self.sub_agents]
        if self.max_iterations is not None and at.times_looped >= self.max_iterations:
            return RunEnd.make(reason="max_iterations")
        if saved is not None and at.current_sub_agent in names:
            return self._checkpoint(at.current_sub_agent, at.times_looped, 1, resumed=True)
        if saved is not None:
            warnings.warn(f"{self.name} has no sub-agent {at.current_sub_agent!r}; its pass begins anew.", stacklevel=2)
        return self._checkpoint(names[0], at.times_looped, 1)

    def _next(self, state: State, call: CallState) -> Fact:
        assert call.end is not None
        names, passes = [agent.name for agent in self.sub_agents], state.values["times_looped"]
        position = names.index(call.name) + 1
        if position == len(names):
            position, passes = 0, passes + 1
            if self.max_iterations is not None and passes >= self.max_iterations:
                return RunEnd.make(reason="max_iterations", output=call.end.result)
        said = {**state.values.get("said", {}), call.name: call.end.result}
        return self._checkpoint(names[position], passes, state.values["runs"] + 1, said=said)

    @staticmethod
    def _checkpoint(name: str, passes: int, runs: int, **more: Any) -> StateUpdate:
        resumed = {"resumed": more.pop("resumed", False)}
        return StateUpdate.make(
            values={"current_sub_agent": name, "times_looped": passes, "runs": runs, **resumed, **more}
        )

    def _run_sub_agent(self, state: State) -> CallProposed:
        agent = self._sub_agent(state.values["current_sub_agent"])
        call = ToolCall.make(id=_call_id(state), name=agent.name, arguments={"input": self._input_for(agent, state)})
        return CallProposed.make(call=call, hidden=True)

    def _sub_agent(self, name: str) -> Loop:
        found = next((agent for agent in self.sub_agents if agent.name == name), None)
        if found is None:
            raise InvalidArguments(f"{self.name} has no sub-agent {name!r}; it has {self.config()['sub_agents']}.")
        return found

    @staticmethod
    def _input_for(agent: Loop, state: State) -> Any:
        """What the user said; a loop that asks a model also hears what each of the others said last."""
        if not isinstance(agent, BaseAgent):
            given = [dict(message.plain) for message in to_messages(state.input) if message.content]
            heard = [{key: value for key, value in message.items() if key != "invocation"} for message in given]
            said = state.values.get("said", {}).items()
            return heard + [{"role": "user", "content": f"[{name}] said: {words}"} for name, words in said if words]
        if not state.values["resumed"] and isinstance(state.input, dict):  # only the first goes on from what was saved
            return {**state.input, "invocation": None}
        return state.input

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The sub-agent."""
        return self._sub_agent(call.name)

    def goes_on_after_an_error_from(self, events: Sequence[Fact]) -> int:
        """Up to the last checkpoint: the sub-agent that failed runs again (SEMANTICS 1e)."""
        for position in range(len(events) - 1, -1, -1):
            event = events[position]
            if isinstance(event, StateUpdate) and "current_sub_agent" in event.values:
                return position + 1
            if isinstance(event, RunStart) and not event.path:
                break
        return len(events)


def _call_id(state: State) -> str:
    return f"{state.values['current_sub_agent']}_{state.values['runs']}"


def _escalated(child: State) -> str | None:
    """Which loop the sub-agent wants left; None where it wants to go on."""
    wanted: str | None = child.values.get("escalate") if child.stop_reason == "escalated" else None
    return wanted or ("nearest" if has_exited(child) else None)
