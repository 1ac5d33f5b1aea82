"""CompositeAgent: an agent that is a decision over its sub-agents, with the callbacks around it (SEMANTICS 1b).

Its own decision is `decide`. Before the first and after the last come the callbacks, as calls of the loop's own. What
the first says stands for the run; the second is asked when the agent has come to its own end, and not when it was
broken off.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from agentnb.core.events import Event as Fact
from agentnb.core.events import RunEnd, StateUpdate
from agentnb.core.state import State
from agentnb.loops.loop_agent.base_agent import BaseAgent, failed, own_call, propose_own_call
from agentnb.loops.loop_agent.companion import end_before
from agentnb.loops.loop_agent.event import Event
from agentnb.loops.loop_agent.invocation import InvocationContext
from agentnb.loops.loop_agent.stream import ENDS

BEFORE, AFTER = "before_agent_callback", "after_agent_callback"


class CompositeAgent(BaseAgent):
    """An agent whose sub-agents are loops of the same run."""

    def __init__(self, name: str | None = None, sub_agents: Sequence[Any] = (), **options: Any) -> None:
        super().__init__(name, sub_agents, **options)
        self.activities = {name: partial(self._perform, partial(self._say_back, name)) for name in (BEFORE, AFTER)}

    @abstractmethod
    def decide(self, state: State) -> Fact:
        """What comes next, between the callbacks."""

    def advance(self, state: State) -> Fact:
        """What comes next."""
        if "ending" in state.values:
            return self._call(AFTER, state) or RunEnd.make(**state.values["ending"])
        if not state.values:
            if (ended := end_before(self.name, state)) is not None:
                return ended
            if (fact := self._call(BEFORE, state)) is not None:
                return fact
        fact = self.decide(state)
        if not isinstance(fact, RunEnd) or fact.reason not in ENDS or not self.after_agent_callback:
            return fact
        return StateUpdate.make(values={"ending": {"reason": fact.reason, "output": fact.output}})

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
        return RunEnd.make(reason="completed", output=call.end.result["output"]) if stands_for_the_run else None

    async def _say_back(self, name: str, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        if (said := await self._call_back(getattr(self, name), ctx)) is not None:
            yield said
