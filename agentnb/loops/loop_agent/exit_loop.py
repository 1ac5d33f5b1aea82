"""exit_loop: the tool with which a model leaves the loop around its own loop (SEMANTICS.md, 4. Escalation)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.core.tools import Invocation, Progress


class ExitLoop:
    """Give it to a sub-agent that is to decide when the work is done: `SessionLoop(llm, [exit_loop])`."""

    name = "exit_loop"
    description = "Call this when nothing is left to do: the loop you work in ends after this turn."
    approve = False
    idempotent = True
    timeout: float | None = None
    needs: tuple[str, ...] = ()
    sequential = False

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {"type": "object", "properties": {}}

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Checks that there are no arguments. Raises InvalidArguments."""
        if arguments:
            raise InvalidArguments(f"Invalid arguments for {self.name}: it takes none, not {', '.join(arguments)}.")
        return _leave


def _leave(progress: Progress) -> Awaitable[dict[str, Any]]:
    async def said() -> dict[str, Any]:
        return {"content": "The loop ends.", "terminate": True}

    return said()


def has_exited(state: State) -> bool:
    """Whether the model of a loop that has ended has called `exit_loop`, or a tool that has escalated."""
    results = (message for message in state.messages if message.role == "tool" and not message.is_error)
    return any(message.name == ExitLoop.name or _escalates(message) for message in results)


def _escalates(message: Message) -> bool:
    """Whether the tool has set `tool_context.actions.escalate`."""
    actions = message.details.get("actions") if isinstance(message.details, dict) else None
    return isinstance(actions, dict) and actions.get("escalate") is True


exit_loop = ExitLoop()
