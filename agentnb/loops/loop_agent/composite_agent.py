"""CompositeAgent: an agent that decides over its sub-agents, with callbacks around it (SEMANTICS.md, 2. Vocabulary).

Its own decision is `decide`. Before the first and after the last come the callbacks, as calls of the loop's own. What
the first says stands for the run; the second is asked when the agent has come to its own end, and not when it was
broken off.

A subclass may put code in the place of the decision, by overriding `_run_async_impl`. A run of it is then that code, as
for any other agent, with the callbacks around it. `super()._run_async_impl(ctx)` inside runs the decision, in a run of
its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

from agentnb.core.events import Event as Fact
from agentnb.core.events import RunEnd, StateUpdate
from agentnb.core.state import State
from agentnb.loops.loop_agent.base_agent import AS_LOOP, BaseAgent, failed, own_call, propose_own_call
from agentnb.loops.loop_agent.companion import end_before
from agentnb.loops.loop_agent.event import Event
from agentnb.loops.loop_agent.invocation import InvocationContext
from agentnb.loops.loop_agent.stream import ENDS, stream

BEFORE, AFTER = "before_agent_callback", "after_agent_callback"


class CompositeAgent(BaseAgent):
    """An agent whose sub-agents are loops of the same run."""

    def _bind(self) -> None:
        super()._bind()
        callbacks = {name: partial(self._perform, partial(self._say_back, name)) for name in (BEFORE, AFTER)}
        self.activities = {**self.activities, **callbacks}

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        """Run the agent's own decision, without the callbacks; the events of that."""
        return self._opened(stream, ctx, as_loop=True)

    def runs_code(self, input: Any) -> bool:
        """Whether a run on this input is the code of a subclass, and not the agent's own decision."""
        is_overridden = getattr(self._run_async_impl, "__func__", None) is not CompositeAgent._run_async_impl
        return is_overridden and not _is_as_loop(self, input)

    @abstractmethod
    def decide(self, state: State) -> Fact:
        """What comes next, between the callbacks."""

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


def _is_as_loop(agent: CompositeAgent, input: Any) -> bool:
    """Whether a run on this input is the agent's own decision, run by the code of a subclass."""
    return isinstance(input, Mapping) and input.get(AS_LOOP) == agent.name
