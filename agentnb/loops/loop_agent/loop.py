"""LoopAgent: runs its sub-agents in order, pass after pass (SEMANTICS.md).

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

An escalation leaves the nearest loop, unless it names another one (SEMANTICS.md, 4. Escalation). An escalated pass is
not counted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from agentnb.core.ending import ending
from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CallEnd, CallProposed, CallStart, RunEnd, RunPaused, RunResumed, StateUpdate
from agentnb.core.events import Event as Fact
from agentnb.core.loop import Design
from agentnb.core.state import CallState, State
from agentnb.loops.base import Loop, propose
from agentnb.loops.loop_agent.adapter import escalated, has_spoken, input_for
from agentnb.loops.loop_agent.agents import AS_LOOP, RUN, BaseAgent, failed, own_call, propose_own_call, stream
from agentnb.loops.loop_agent.context import InvocationContext, end_before, invocation_of
from agentnb.loops.loop_agent.event import Event, LoopAgentState
from agentnb.loops.loop_agent.stream import ENDS

BEFORE, AFTER = "before_agent_callback", "after_agent_callback"


logger = logging.getLogger("agentnb")

_PAUSING = (RunPaused, RunResumed)
"""What people have done to the run, which may be recorded between any two of its facts."""


class LoopAgent(BaseAgent):
    """Run sub-agents in order, pass after pass, until one escalates or `max_iterations` passes are complete.

    name, sub_agents, and the keywords of `BaseAgent`. max_iterations: None is no limit, 0 and less is no pass. A
    subclass may override `_run_async_impl`, and run the loop itself by `super()._run_async_impl(ctx)`.

    A run that has ended in an error can be restored, and goes on at what has failed: the code of an agent, a hook or a
    task of a loop inside, a step of a generator, a decision that raised. What had finished before does not run again,
    but for an agent's code, which begins anew. A sub-agent whose own decision was to end in an error begins anew at its
    checkpoint, and makes its calls again.

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

    _more_fields = ("max_iterations",)

    def __init__(
        self,
        name: str | None = None,
        sub_agents: Sequence[Loop] = (),
        max_iterations: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, sub_agents, **options)
        if max_iterations is not None and not isinstance(max_iterations, int):
            raise InvalidArguments(f"max_iterations is a whole number or None, not {max_iterations!r}.")
        self.max_iterations = max_iterations
        self._has_warned = False

    def _get_start_state(self, agent_state: LoopAgentState | None) -> tuple[int, int]:
        """The complete passes and the index of the sub-agent to go on with, for a loop that is written by hand."""
        if agent_state is None:
            return 0, 0
        names = [agent.name for agent in self.sub_agents]
        current = agent_state.current_sub_agent
        if current and current not in names:
            self._warn_of_one_gone(current)
        return agent_state.times_looped, names.index(current) if current in names else 0

    def _run_live_impl(self, ctx: InvocationContext) -> Any:
        raise NotImplementedError("A LoopAgent does not run by voice or video.")

    def config(self) -> dict[str, Any]:
        """The sub-agents by name, and the limit."""
        return {"sub_agents": [agent.name for agent in self.sub_agents], "max_iterations": self.max_iterations}

    def keeps(self, event: Event) -> bool:
        """Whether the escalation is meant for this loop, or for one inside it."""
        scope = event.actions.scope
        return bool(event.actions.escalate) and (scope is None or isinstance(self.find_agent(scope), LoopAgent))

    def perform(self, call: CallState, state: State) -> Any:
        """Run a sub-agent; one that no longer exists returns None (SEMANTICS.md, 5. Checkpoints and resuming)."""
        return super().perform(call, state) if call.name in self.activities else None

    # -- code and callbacks around the decision ---------------------------------------------------------------------

    def _bind(self) -> None:
        super()._bind()
        callbacks = {name: partial(self._perform, partial(self._say_back, name)) for name in (BEFORE, AFTER)}
        self.activities = {**self.activities, **callbacks}

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Run the agent's own decision, without the callbacks; the events of that."""
        return self._opened(stream, ctx, as_loop=True)

    def runs_code(self, input: Any) -> bool:
        """Whether a run on this input is the code of a subclass, and not the agent's own decision."""
        is_overridden = getattr(self._run_async_impl, "__func__", None) is not LoopAgent._run_async_impl
        return is_overridden and not _is_as_loop(self, input)

    def advance(self, state: State) -> Fact:
        """What comes next."""
        if self.runs_code(state.input):
            return super().advance(state)
        if _is_as_loop(self, state.input):
            ended = end_before(self.name, state) if not state.values else None
            return ended or self.decide(state)
        if "ending" in state.values:
            return self._call(AFTER, state) or RunEnd(**state.values["ending"])
        if not state.values:
            if (ended := end_before(self.name, state)) is not None:
                return ended
            if (fact := self._call(BEFORE, state)) is not None:
                return fact
        fact = self.decide(state)
        if not isinstance(fact, RunEnd) or fact.reason not in ENDS or not self.after_agent_callback:
            return fact
        return StateUpdate(values={"ending": {"reason": fact.reason, "output": fact.output}})

    def _call(self, name: str, state: State) -> Fact | None:
        """The call of a callback, or the end that it has brought; None where the agent goes on."""
        if not getattr(self, name):
            return None
        call = own_call(name, state)
        if call is None:
            return propose_own_call(name, state)
        assert call.end is not None
        if call.end.is_error:
            return failed(call)
        stands_for_the_run = name == BEFORE and call.end.result["said"]
        return RunEnd(reason="completed", output=call.end.result["output"]) if stands_for_the_run else None

    async def _say_back(self, name: str, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if (said := await self._call_back(getattr(self, name), ctx)) is not None:
            yield said

    # -- the decision ----------------------------------------------------------------------------------------------

    def decide(self, state: State) -> Fact:
        """Return the next event (SEMANTICS.md, 3. Algorithm)."""
        return self._in_a_pass(state) if "current_sub_agent" in state.values else self._begin(state)

    def _begin(self, state: State) -> Fact:
        """The first position: where the invocation it resumes was, or the start."""
        resumed = invocation_of(state)
        at = LoopAgentState.model_validate(resumed.get("agent_states", {}).get(self.name) or {})
        before = resumed.get("said", {}).get(self.name, {})
        said = {agent.name: before[agent.name] for agent in self.sub_agents if agent.name in before}
        if not self.sub_agents:
            return RunEnd(reason="empty")
        if self._is_enough(at.times_looped):
            return RunEnd(reason="max_iterations")
        left = bool(resumed.get("end_of_agents", {}).get(self.name))
        if self._sub_agent(at.current_sub_agent) is not None:
            return self._checkpoint(at.current_sub_agent, at.times_looped, 1, resumed=True, left=left, said=said)
        if left:  # and whatever it was left in is gone
            return RunEnd(reason="escalated")
        return self._begin_pass_anew(at.current_sub_agent, at.times_looped, 1, said=said)

    def _in_a_pass(self, state: State) -> Fact:
        current, passes, runs = (state.values[key] for key in ("current_sub_agent", "times_looped", "runs"))
        if self._sub_agent(current) is None:
            return self._begin_pass_anew(current, passes, runs + 1)
        call = state.calls.get(state.own_id(_call_id(state)))
        if call is None:
            return self._run_sub_agent(state)
        assert call.end is not None
        if call.end.is_error:
            return failed(call)
        leaves = "nearest" if state.values.get("left") else self._leaves(state, call)
        if leaves is None:
            return self._next(state, call)
        if leaves not in ("nearest", self.name) and "escalate" not in state.values:
            return StateUpdate(values={"escalate": leaves})
        return RunEnd(reason="escalated", output=call.end.result)

    @staticmethod
    def _leaves(state: State, call: CallState) -> str | None:
        """Which loop the sub-agent that this call has run wants left; None where somebody else gave its result."""
        child = state.children.get(call.name)
        return escalated(child) if child is not None and child.call == call.id else None

    def _next(self, state: State, call: CallState) -> Fact:
        assert call.end is not None
        names, passes = [agent.name for agent in self.sub_agents], state.values["times_looped"]
        position = names.index(call.name) + 1
        if position == len(names):
            position, passes = 0, passes + 1
            if self._is_enough(passes):
                return RunEnd(reason="max_iterations", output=call.end.result)
            self._warn_of_silence(state)
        said = {**state.values.get("said", {}), call.name: call.end.result}
        return self._checkpoint(names[position], passes, state.values["runs"] + 1, said=said)

    def _is_enough(self, passes: int) -> bool:
        return self.max_iterations is not None and passes >= self.max_iterations

    def _begin_pass_anew(self, gone: str, passes: int, runs: int, **more: Any) -> Fact:
        if not self.sub_agents:
            return RunEnd(reason="empty")
        if gone:
            self._warn_of_one_gone(gone)
        return self._checkpoint(self.sub_agents[0].name, passes, runs, **more)

    def _warn_of_one_gone(self, name: str) -> None:
        logger.warning("%s has no sub-agent %r any more; its pass begins anew.", self.name, name)

    def _warn_of_silence(self, state: State) -> None:
        """Warn about a loop without a limit whose pass emitted nothing (SEMANTICS.md, 3. Algorithm)."""
        if self.max_iterations is None and not self._has_warned and not any(map(has_spoken, state.children.values())):
            self._has_warned = True
            logger.warning("%s loops without a limit over sub-agents that say nothing: give max_iterations.", self.name)

    @staticmethod
    def _checkpoint(name: str, passes: int, runs: int, *, resumed: bool = False, **more: Any) -> StateUpdate:
        position = {"current_sub_agent": name, "times_looped": passes, "runs": runs, "resumed": resumed}
        return StateUpdate(values={**position, **more})

    def _run_sub_agent(self, state: State) -> CallProposed:
        agent = self._sub_agent(state.values["current_sub_agent"])
        assert agent is not None
        return propose(state, _call_id(state), agent.name, {"input": input_for(agent, state)})

    def _sub_agent(self, name: str) -> Loop | None:
        return next((agent for agent in self.sub_agents if agent.name == name), None)

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The sub-agent."""
        return self._sub_agent(call.name)

    def goes_on_after_an_error_from(self, events: Sequence[Fact]) -> int:
        """Up to what has failed: that runs again, and what was said and answered before it did stays.

        Where a decision has raised, that is the decision; where a call of a loop's own has failed, that call: the code
        of an agent, a hook, a task. A loop inside that has failed otherwise begins anew at its checkpoint, and the
        calls that it had made with it.
        """
        over = ending(events)
        before = next(event for event in reversed(events[:over]) if not isinstance(event, _PAUSING))
        if not (isinstance(before, CallEnd) and before.is_error and not before.path):
            return over
        failed = _own_call_that_failed(events)
        return failed if failed is not None else _last_checkpoint(events)

    def failed_steps(self, events: Sequence[Fact]) -> Mapping[str, list[str]]:
        """The steps of generators inside whose failure has ended this recording."""
        return {path: ids for agent in self.sub_agents for path, ids in agent.failed_steps(events).items()}


def _own_call_that_failed(events: Sequence[Fact]) -> int | None:
    """Where the call of its own has failed that has ended the innermost loop; None where that ended otherwise.

    Behind that call comes only what the loop has noted of it, and what its end has broken off.
    """
    ends = len(events)
    while isinstance(events[ends - 1], (CallEnd, RunEnd, *_PAUSING)):
        ends -= 1
    innermost = next(position for position in range(ends, len(events)) if isinstance(events[position], RunEnd))
    position, path = innermost - 1, events[innermost].path
    while isinstance(event := events[position], (StateUpdate, *_PAUSING)) or _is_broken_off(event):
        position -= 1
    if not (isinstance(event, CallEnd) and event.is_error and event.path == path):
        return None
    starts = (start for start in events[:position] if isinstance(start, CallStart) and start.path == path)
    is_own = event.name in (RUN, BEFORE, AFTER) or any(start.own for start in starts if start.call_id == event.call_id)
    return position if is_own else None


def _is_broken_off(event: Fact) -> bool:
    return isinstance(event, CallEnd) and event.outcome == "aborted"


def _last_checkpoint(events: Sequence[Fact]) -> int:
    for position in range(len(events) - 1, 0, -1):
        event = events[position]
        if isinstance(event, StateUpdate) and "current_sub_agent" in event.values:
            return position + 1
    return 1


def _call_id(state: State) -> str:
    return f"{state.values['current_sub_agent']}_{state.values['runs']}"


def _is_as_loop(agent: LoopAgent, input: Any) -> bool:
    """Whether a run on this input is the agent's own decision, run by the code of a subclass."""
    return isinstance(input, Mapping) and input.get(AS_LOOP) == agent.name
