"""Carrier: how the code of an agent runs a loop of another design by hand (SEMANTICS.md, 2. Vocabulary).

`async for event in self.writer.run_async(ctx)` is how agents of the design run others, and a writer may be any loop. To
be part of the invocation such a loop is carried by an agent, which says nothing itself.
"""

from __future__ import annotations

from typing import Any

from agentnb.core.events import Event as Fact
from agentnb.core.events import RunEnd
from agentnb.core.loop import Design
from agentnb.core.state import CallState, State
from agentnb.loops.base import Loop
from agentnb.loops.loop_agent.base_agent import failed, own_call, propose_own_call
from agentnb.loops.loop_agent.composite_agent import CompositeAgent
from agentnb.loops.loop_agent.invocation import InvocationContext
from agentnb.loops.loop_agent.sub_agent import told


class Carrier(CompositeAgent):
    """Runs one loop of another design, once."""

    def __init__(self, loop: Loop) -> None:
        super().__init__("carrier", [loop])
        self.name = loop.name  # in whose name it speaks; any text may be one

    def begin_with(self, ctx: InvocationContext, *, as_loop: bool = False) -> dict[str, Any]:
        """The run's input, and what the loop is told: what the user said, and the last words of each agent."""
        said = super().begin_with(ctx, as_loop=as_loop)
        spoken = {event.author: event.text for event in ctx.session.events if event.author != "user" and event.text}
        return {**said, "told": told(self.sub_agents[0], said, spoken)}

    @property
    def itself(self) -> object:
        """The loop it carries."""
        return self.sub_agents[0]

    def decide(self, state: State) -> Fact:
        """Run the loop, and end with what it came to."""
        call = own_call(self.name, state)
        if call is None:
            return propose_own_call(self.name, state, input=state.input["told"])
        assert call.end is not None
        return failed(call) if call.end.is_error else RunEnd(reason="completed", output=call.end.result)

    def loop_for(self, call: CallState, state: State | None = None) -> Design | None:
        """The loop it carries."""
        return self.sub_agents[0] if call.name == self.name else None
