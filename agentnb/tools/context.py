"""The call that a tool's function runs for, where it has a parameter `tool_context`, as tools of ADK do."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.loop import beside
from agentnb.core.tools import Acted, current_call


@dataclass(slots=True)
class ToolActions:
    """What the function wants to happen after its call; None leaves it as it is."""

    escalate: bool | None = None
    """Leave the loop agent around the loop that has made the call; that loop ends after this turn."""
    skip_summarization: bool | None = None
    """End the loop that has made the call after this turn: its model is not asked about the result."""


@dataclass(slots=True)
class ToolContext:
    """The call that the function runs for: its id, the run, and where in the run it is made.

    `state` is that of the session, where the loop is run by a loop agent; otherwise one of the call's own.
    """

    tool_name: str = ""
    function_call_id: str = ""
    invocation_id: str = ""
    path: str = ""
    actions: ToolActions = field(default_factory=ToolActions)
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_this_call(cls, name: str) -> ToolContext:
        """The context of the call that this code runs for."""
        run_id, path, call_id, _ = current_call.get() or ("", "", "", None)
        invocation = getattr(beside.get(), "context", None)
        session = getattr(invocation, "session", None)
        return cls(name, call_id, run_id, path, state=session.state if session is not None else {})

    @property
    def agent_name(self) -> str:
        """The name of the loop that has made the call, where it is nested in another."""
        return self.path.rpartition("/")[2]


async def acted(running: Awaitable[Any], context: ToolContext) -> Any:
    """Return the result of the function, with the actions that it has asked for where there are any."""
    result = await running
    wanted = {name: True for name in ("escalate", "skip_summarization") if getattr(context.actions, name)}
    return Acted(result, wanted) if wanted else result
