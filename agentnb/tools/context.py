"""Context: the objects by which a tool's function uses the call that it runs for: `tool_context` and `progress`.

`tool_context` is as in the tools of Google's ADK. `progress` may be called in any of these ways:

    progress(0.5)    progress("reading")    progress({"done": 3, "total": 8})
    progress(3, 8, "a.txt")    progress(done=3, total=8)    await progress(0.5)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.protocols import loop_context
from agentnb.core.tools import Acted, current_call

if TYPE_CHECKING:
    from agentnb.core.tools import ReportProgress


@dataclass(slots=True)
class ToolActions:
    """The actions that follow the call. None means no action."""

    escalate: bool | None = None
    """End the loop that made the call after this turn, and the loop agent in which that loop is nested."""
    skip_summarization: bool | None = None
    """End the loop that made the call after this turn: its model does not see the result."""


@dataclass(slots=True)
class ToolContext:
    """The call that a function runs for: its id, the run, and the path of the loop in the run.

    `state` is the state of the session if a loop agent runs the loop, and otherwise a dict for this call alone.
    """

    tool_name: str = ""
    function_call_id: str = ""
    invocation_id: str = ""
    path: str = ""
    actions: ToolActions = field(default_factory=ToolActions)
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_this_call(cls, name: str) -> ToolContext:
        """Return the context of the current call of the tool `name`."""
        run_id, path, call_id, _ = current_call.get() or ("", "", "", None)
        invocation = getattr(loop_context.get(), "context", None)
        session = getattr(invocation, "session", None)
        return cls(name, call_id, run_id, path, state=session.state if session is not None else {})

    @property
    def agent_name(self) -> str:
        """The name of the loop that made the call, if it is nested in another."""
        return self.path.rpartition("/")[2]


async def with_actions(running: Awaitable[Any], context: ToolContext) -> Any:
    """Return the function's result, together with the actions that the function has set."""
    result = await running
    actions = {name: True for name in ("escalate", "skip_summarization") if getattr(context.actions, name)}
    return Acted(result, actions) if actions else result


class _Reported:
    """The result of `progress()`. Awaiting it is optional, and lets other tasks run."""

    def __await__(self) -> Generator[None, None, None]:
        yield


_REPORTED = _Reported()


def progress_callback(progress: ReportProgress) -> Callable[..., _Reported]:
    """Return the `progress` for a function. It merges its arguments into one value, and reports that value."""

    def report(*values: Any, **named: Any) -> _Reported:
        if len(values) == 1 and not named:
            progress(values[0])
        else:
            # By position, the first number is what is done, the second the total; a string is the message.
            numbers = iter(("done", "total"))
            fields = {"message" if isinstance(value, str) else next(numbers, "more"): value for value in values}
            progress({**fields, **named})
        return _REPORTED

    return report
