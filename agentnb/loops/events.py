"""The events that several designs return as decisions: a queued message delivered, and a call of the loop itself."""

from __future__ import annotations

from typing import Any

from agentnb.core.events import CallProposed, MessageAdded, Queue
from agentnb.core.messages import ToolCall
from agentnb.core.state import State


def take(state: State, queue: Queue) -> MessageAdded:
    """Return the event that moves the oldest message of a queue to the conversation."""
    return MessageAdded(message=state.queues[queue][0], origin=queue)


def propose(state: State, id: str, name: str, arguments: dict[str, Any]) -> CallProposed:
    """Return the event that proposes a hidden call of the loop itself.

    id: unique among the loop's own calls in one run of the loop.
    """
    return CallProposed(call=ToolCall(id=state.own_id(id), name=name, arguments=arguments), hidden=True)
