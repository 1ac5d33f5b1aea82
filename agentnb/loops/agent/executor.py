"""AgentExecutor: runs an agent from given messages and a given turn (SEMANTICS.md, 2. Vocabulary).

The published design stores the messages and the turn state after each turn and passes them to `execute_stream` again.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

from agentnb.loops.agent.events import AgentEvent
from agentnb.loops.agent.stream import cancel_check, stream
from agentnb.loops.agent.turns import TurnState
from agentnb.loops.options import StartOptions

if TYPE_CHECKING:
    from agentnb.loops.agent.loop import Agent


class AgentExecutor:
    """An agent that continues from given messages and a given turn."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def execute_stream(
        self,
        messages: Iterable[Any],
        turn_state: TurnState | None = None,
        cancel_token: Any = None,
        **options: Unpack[StartOptions],
    ) -> AsyncGenerator[AgentEvent, None]:
        """Continue a conversation; yield the agent's events as `Agent.execute` does.

        messages: the conversation so far. turn_state: the next turn. It sets the number of the turn and the limit for
        all turns, including the earlier ones. None: the first turn, with the agent's own limit. cancel_token, options:
        as for `Agent.execute`.
        """
        agent = copy.copy(self.agent)
        if turn_state is not None and turn_state.max_iterations is not None:
            agent.max_iterations = max(0, turn_state.max_iterations - turn_state.turn_counter)
        elif turn_state is not None:
            agent.max_iterations = None
        run = agent.start(list(messages), **options)
        async with aclosing(stream(run, cancel_check(cancel_token), agent.ends_at_limit, turn_state)) as events:
            async for event in events:
                yield event
