"""AgentExecutor: an agent that continues from messages and a turn (SEMANTICS.md, 2. Vocabulary).

The design persists the messages and the turn's state at each turn, and calls `execute_stream` with them again.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

from agentnb.loops.agent.events import AgentEvent
from agentnb.loops.agent.stream import asks_token, stream
from agentnb.loops.agent.turns import TurnState
from agentnb.loops.options import StartOptions

if TYPE_CHECKING:
    from agentnb.loops.agent.loop import Agent


class AgentExecutor:
    """Run an agent from the messages and the turn that it stands at."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def execute_stream(
        self,
        messages: Iterable[Any],
        turn_state: TurnState | None = None,
        cancel_token: Any = None,
        **options: Unpack[StartOptions],
    ) -> AsyncGenerator[AgentEvent, None]:
        """Go on from a conversation; the stream of the agent's events, as `Agent.execute` gives it.

        messages: the conversation so far. turn_state: the turn that comes next, which numbers the turns and has the
        limit of all of them; the first, with the agent's own limit, where it is None. cancel_token, options: as for
        `Agent.execute`.
        """
        agent = copy.copy(self.agent)
        if turn_state is not None and turn_state.max_iterations is not None:
            agent.max_iterations = max(0, turn_state.max_iterations - turn_state.turn_counter)
        elif turn_state is not None:
            agent.max_iterations = None
        run = agent.start(list(messages), **options)
        async with aclosing(stream(run, asks_token(cancel_token), agent.ends_at_limit, turn_state)) as events:
            async for event in events:
                yield event
