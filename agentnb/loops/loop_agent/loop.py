"""LoopAgent: runs its sub-agents in order, pass after pass (SEMANTICS.md).

Written top to bottom, the algorithm is:

    while max_iterations is None or times_looped < max_iterations:
        for agent in sub_agents:
            checkpoint {current_sub_agent, times_looped}
            run the agent to its end
            if it has paused: stop here, to be resumed at this agent
            if it has escalated: stop
        times_looped += 1

`decide` is this algorithm as a decision. A sub-agent is a nested loop: a `BaseAgent`, whose code starts again if it was
interrupted, or any other loop of agentnb (also a LoopAgent), which continues exactly where it was. The checkpoint is
the loop's own state, so the position to resume from is a position in the journal.

The callbacks before and after the agent are the loop's own calls, around the decision. Content returned by a callback
before replaces the run. The callbacks after are called when the decision ends the run, and not after an abort, a pause
or an error.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CallEnd, CallStart, RunEnd, RunPaused, RunResumed, StateUpdate
from agentnb.core.events import Event as RunEvent
from agentnb.core.loop import Design
from agentnb.core.resume_point import resume_point
from agentnb.core.state import CallState, State
from agentnb.loops.base import Loop
from agentnb.loops.events import propose
from agentnb.loops.loop_agent.adapter import escalation_of, has_messages, input_for
from agentnb.loops.loop_agent.agents import (
    AS_LOOP,
    RUN,
    BaseAgent,
    BaseAgentCalls,
    failed,
    own_call,
    propose_own_call,
    stream,
)
from agentnb.loops.loop_agent.context import InvocationContext, end_before, invocation_of
from agentnb.loops.loop_agent.event import Event, LoopAgentState
from agentnb.loops.loop_agent.stream import ENDS

logger = logging.getLogger("agentnb")

BEFORE, AFTER = "before_agent_callback", "after_agent_callback"

_PAUSING = (RunPaused, RunResumed)
"""Events caused by people, which may be recorded between any two events of a loop."""


class LoopAgentCalls(BaseAgentCalls):
    """The calls of a loop agent: of its sub-agents, its code and its callbacks."""

    loop: LoopAgent

    def perform(self, call: CallState, state: State) -> Any:
        """Run a sub-agent. Returns None if it no longer exists (SEMANTICS.md, 5. Checkpoints and resuming)."""
        return super().perform(call, state) if call.name in self.loop.activities else None

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """Return the sub-agent that performs this call."""
        return self.loop.sub_agent(call.name)


class LoopAgent(BaseAgent):
    """An agent that runs its sub-agents in order, pass after pass, until one escalates or a limit is reached.

    name, sub_agents, keyword arguments: as for `BaseAgent`. max_iterations: maximum number of passes. None is no limit;
    with 0 or less there is no pass. A subclass may override `_run_async_impl`, and run the loop itself by
    `super()._run_async_impl(ctx)`.

    A run that ended in an error can be restored. It resumes at the step that failed: the code of an agent, a hook or a
    task of a nested loop, a step of a generator, or a decision that raised an exception. Steps that had finished do not
    run again; only the code of an agent starts again from its beginning. A sub-agent that ended in an error by its own
    decision starts again at its checkpoint, and makes its calls again.

    Raises InvalidArguments as `BaseAgent` does, and if `max_iterations` is neither a whole number nor None.
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

    calls_class = LoopAgentCalls
    tells = True

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
            raise InvalidArguments(f"max_iterations must be a whole number or None, not {max_iterations!r}.")
        self.max_iterations = max_iterations
        self._has_warned = False

    def _get_start_state(self, agent_state: LoopAgentState | None) -> tuple[int, int]:
        """Return the number of complete passes and the index of the sub-agent to run next, for a subclass's code."""
        if agent_state is None:
            return 0, 0
        names = [agent.name for agent in self.sub_agents]
        current = agent_state.current_sub_agent
        if current and current not in names:
            self._warn_of_missing(current)
        return agent_state.times_looped, names.index(current) if current in names else 0

    def _run_live_impl(self, ctx: InvocationContext) -> Any:
        raise NotImplementedError("A LoopAgent does not support voice or video.")

    def config(self) -> dict[str, Any]:
        """Return the names of the sub-agents, and the limit."""
        return {"sub_agents": [agent.name for agent in self.sub_agents], "max_iterations": self.max_iterations}

    def keeps(self, event: Event) -> bool:
        """Return True if the escalation is meant for this loop or for a loop in it, so that it leaves no outer loop."""
        scope = event.actions.scope
        return bool(event.actions.escalate) and (scope is None or isinstance(self.find_agent(scope), LoopAgent))

    # -- code and callbacks around the decision --------------------------------------------------------------------

    def _bind(self) -> None:
        super()._bind()
        callbacks = {name: partial(self._perform, partial(self._run_callback, name)) for name in (BEFORE, AFTER)}
        self.activities = {**self.activities, **callbacks}

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Run the decision of the loop without the callbacks, in a nested run, and yield its events."""
        return self._opened(stream, ctx, as_loop=True)

    def runs_code(self, input: Any) -> bool:
        """Return True if a run with this input runs the code of a subclass instead of the decision."""
        is_overridden = getattr(self._run_async_impl, "__func__", None) is not LoopAgent._run_async_impl
        return is_overridden and not _is_as_loop(self, input)

    def advance(self, state: State) -> RunEvent:
        """Return the next event: of a subclass's code, a callback, or the decision (SEMANTICS.md, 3. Algorithm)."""
        # A subclass has its own code, with the callbacks around it. The code may run the decision, without callbacks.
        if self.runs_code(state.input):
            return super().advance(state)
        if _is_as_loop(self, state.input):
            ended = end_before(self.name, state) if not state.values else None
            return ended or self.decide(state)

        # The decision is at its end: call the callback after it, then end.
        if "ending" in state.values:
            return self._call(AFTER, state) or RunEnd(**state.values["ending"])

        # Nothing has been decided yet: end if the invocation it resumes had ended, otherwise call the callback before.
        if not state.values:
            if (ended := end_before(self.name, state)) is not None:
                return ended
            if (event := self._call(BEFORE, state)) is not None:
                return event

        # Decide. If that is the end, and there is a callback to call after it, note the end first.
        event = self.decide(state)
        if not isinstance(event, RunEnd) or event.reason not in ENDS or not self.after_agent_callback:
            return event
        return StateUpdate(values={"ending": {"reason": event.reason, "output": event.output}})

    def _call(self, name: str, state: State) -> RunEvent | None:
        """Return the call of a callback, or the end that it results in. None if the agent continues."""
        if not getattr(self, name):
            return None
        call = own_call(name, state)
        if call is None:
            return propose_own_call(name, state)
        assert call.end is not None
        if call.end.is_error:
            return failed(call)
        replaces_run = name == BEFORE and call.end.result["said"]
        return RunEnd(reason="completed", output=call.end.result["output"]) if replaces_run else None

    async def _run_callback(self, name: str, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if (event := await self._call_back(getattr(self, name), ctx)) is not None:
            yield event

    # -- the decision ----------------------------------------------------------------------------------------------

    def decide(self, state: State) -> RunEvent:
        """Return the next event of the loop, without callbacks (SEMANTICS.md, 3. Algorithm)."""
        values = state.values
        if "current_sub_agent" not in values:
            return self._first_checkpoint(state)
        current, passes, runs = values["current_sub_agent"], values["times_looped"], values["runs"]

        # At a checkpoint: run its sub-agent.
        agent = self.sub_agent(current)
        if agent is None:
            return self._restart_pass(current, passes, runs + 1)
        call_id = f"{current}_{runs}"
        call = state.calls.get(state.own_id(call_id))
        if call is None:
            return propose(state, call_id, agent.name, {"input": input_for(agent, state)})

        # The sub-agent has ended. End if it failed or escalated. If the scope of the escalation goes further than this
        # loop, record it first, for the parent. A result that a person has given does not escalate.
        assert call.end is not None
        if call.end.is_error:
            return failed(call)
        child = state.children.get(call.name)
        scope = escalation_of(child) if child is not None and child.call == call.id else None
        scope = "nearest" if values.get("left") else scope
        if scope not in (None, "nearest", self.name) and "escalate" not in values:
            return StateUpdate(values={"escalate": scope})
        if scope is not None:
            return RunEnd(reason="escalated", output=call.end.result)

        # Go to the checkpoint of the next sub-agent, or of the first one in the next pass.
        names = [agent.name for agent in self.sub_agents]
        position = names.index(call.name) + 1
        if position == len(names):
            position, passes = 0, passes + 1
            if self._is_limit(passes):
                return RunEnd(reason="max_iterations", output=call.end.result)
            is_silent = not any(map(has_messages, state.children.values()))
            if self.max_iterations is None and is_silent and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s loops without a limit over sub-agents that emit no event: set max_iterations.", self.name
                )
        outputs = {**values.get("said", {}), call.name: call.end.result}
        return self._checkpoint(names[position], passes, runs + 1, said=outputs)

    def _first_checkpoint(self, state: State) -> RunEvent:
        """Return the checkpoint of the resumed invocation or of the first sub-agent, or the end if there is no pass."""
        resumed = invocation_of(state)
        at = LoopAgentState.model_validate(resumed.get("agent_states", {}).get(self.name) or {})
        before = resumed.get("said", {}).get(self.name, {})
        outputs = {agent.name: before[agent.name] for agent in self.sub_agents if agent.name in before}
        if not self.sub_agents:
            return RunEnd(reason="empty")
        if self._is_limit(at.times_looped):
            return RunEnd(reason="max_iterations")
        left = bool(resumed.get("end_of_agents", {}).get(self.name))
        if self.sub_agent(at.current_sub_agent) is not None:
            return self._checkpoint(at.current_sub_agent, at.times_looped, 1, resumed=True, left=left, said=outputs)
        if left:  # a nested loop, which no longer exists, had escalated beyond this one
            return RunEnd(reason="escalated")
        return self._restart_pass(at.current_sub_agent, at.times_looped, 1, said=outputs)

    def _is_limit(self, passes: int) -> bool:
        return self.max_iterations is not None and passes >= self.max_iterations

    def _restart_pass(self, missing: str, passes: int, runs: int, **more: Any) -> RunEvent:
        """Return the checkpoint of the first sub-agent. missing: the current one if it no longer exists, or empty."""
        if not self.sub_agents:
            return RunEnd(reason="empty")
        if missing:
            self._warn_of_missing(missing)
        return self._checkpoint(self.sub_agents[0].name, passes, runs, **more)

    def _warn_of_missing(self, name: str) -> None:
        logger.warning("%s has no sub-agent %r; its pass starts again.", self.name, name)

    @staticmethod
    def _checkpoint(name: str, passes: int, runs: int, *, resumed: bool = False, **more: Any) -> StateUpdate:
        position = {"current_sub_agent": name, "times_looped": passes, "runs": runs, "resumed": resumed}
        return StateUpdate(values={**position, **more})

    def sub_agent(self, name: str) -> Loop | None:
        """Return the sub-agent of this name, or None."""
        return next((agent for agent in self.sub_agents if agent.name == name), None)

    # -- restoring after an error ----------------------------------------------------------------------------------

    def kept_after_error(self, events: Sequence[RunEvent]) -> int:
        """Return the number of events to keep of a recording that ended in an error; the failed step runs again.

        If a decision raised an exception, these are the events before it. If a loop's own call has failed (an agent's
        code, a hook, a task), these are the events before the end of that call. A nested loop that has failed otherwise
        starts again at its checkpoint.
        """
        over = resume_point(events)
        before = next(event for event in reversed(events[:over]) if not isinstance(event, _PAUSING))
        if not (isinstance(before, CallEnd) and before.is_error and not before.path):
            return over
        if (position := _own_call_that_failed(events)) is not None:
            return position
        for position in range(len(events) - 1, 0, -1):
            event = events[position]
            if isinstance(event, StateUpdate) and "current_sub_agent" in event.values:
                return position + 1
        return 1

    def repeated_after_error(self, events: Sequence[RunEvent]) -> Mapping[str, list[str]]:
        """Return the failed steps of nested generator loops that have ended this recording, by path."""
        return {path: ids for agent in self.sub_agents for path, ids in agent.repeated_after_error(events).items()}


def _own_call_that_failed(events: Sequence[RunEvent]) -> int | None:
    """Return the position of the end of the failed own call that has ended the innermost loop, or None.

    After it there are only events that the loop has recorded about the call, and the ends of calls that were aborted.
    """
    # Find the end of the innermost loop: the first RunEnd of those at the end of the recording.
    ends = len(events)
    while isinstance(events[ends - 1], (CallEnd, RunEnd, *_PAUSING)):
        ends -= 1
    innermost = next(position for position in range(ends, len(events)) if isinstance(events[position], RunEnd))

    # Go back to the call that the loop ended with.
    path, position = events[innermost].path, innermost - 1
    event = events[position]
    while isinstance(event, (StateUpdate, *_PAUSING)) or (isinstance(event, CallEnd) and event.outcome == "aborted"):
        position -= 1
        event = events[position]
    if not (isinstance(event, CallEnd) and event.is_error and event.path == path):
        return None
    starts = (start for start in events[:position] if isinstance(start, CallStart) and start.path == path)
    is_own = event.name in (RUN, BEFORE, AFTER) or any(start.own for start in starts if start.call_id == event.call_id)
    return position if is_own else None


def _is_as_loop(agent: LoopAgent, input: Any) -> bool:
    """Return True if the code of a subclass has started this run to use the decision of the agent."""
    return isinstance(input, Mapping) and input.get(AS_LOOP) == agent.name
