"""Context: the objects by which a tool's function uses the call that it runs for: `tool_context` and `progress`.

`tool_context` is as in the tools of Google's ADK. `progress` may be called in any of these ways:

    progress(0.5)    progress("reading")    progress({"done": 3, "total": 8})
    progress(3, 8, "a.txt")    progress(done=3, total=8)    await progress(0.5)
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Generator, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentnb.core.protocols import loop_context
from agentnb.core.tools import Acted, current_call

if TYPE_CHECKING:
    from agentnb.core.tools import ReportProgress


class State(MutableMapping[str, Any]):
    """The state of a session. Each change is made in the session immediately, and recorded in the delta."""

    APP_PREFIX = "app:"
    USER_PREFIX = "user:"
    TEMP_PREFIX = "temp:"

    def __init__(self, value: dict[str, Any], delta: dict[str, Any]) -> None:
        self._value = value
        self._delta = delta
        self._read: dict[str, Any] = {}
        """Copies of the lists and dicts that were read, by key, to detect changes inside them."""

    def __getitem__(self, key: str) -> Any:
        value = self._delta[key] if key in self._delta else self._value[key]
        if isinstance(value, (dict, list)) and key not in self._read:
            self._read[key] = copy.deepcopy(value)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self._value[key] = self._delta[key] = value

    def __delitem__(self, key: str) -> None:
        """Set the value to None: a delta cannot say that a key is gone."""
        _ = self[key]
        self[key] = None

    def __contains__(self, key: object) -> bool:
        return key in self._value or key in self._delta

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def has_delta(self) -> bool:
        """Return True if anything was changed."""
        self.note_changes_inside()
        return bool(self._delta)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a new dict."""
        return {**self._value, **self._delta}

    def note_changes_inside(self) -> None:
        """Add to the delta each list or dict whose items have changed since it was read."""
        for key, before in self._read.items():
            value = self._delta.get(key, self._value.get(key))
            if value != before:
                self[key] = value
                self._read[key] = copy.deepcopy(value)


@dataclass(slots=True)
class ToolActions:
    """The actions that follow the call. None means no action."""

    escalate: bool | None = None
    """End the loop that made the call after this turn, and the loop agent in which that loop is nested."""
    skip_summarization: bool | None = None
    """End the loop that made the call after this turn: its model does not see the result."""
    state_delta: dict[str, Any] = field(default_factory=dict)
    """The values that the function has set in the state of the session."""


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
    state: State = field(default_factory=lambda: State({}, {}))

    @classmethod
    def of_this_call(cls, name: str) -> ToolContext:
        """Return the context of the current call of the tool `name`."""
        run_id, path, call_id, _ = current_call.get() or ("", "", "", None)
        invocation = getattr(loop_context.get(), "context", None)
        session = getattr(invocation, "session", None)
        actions = ToolActions()
        state = State(session.state if session is not None else {}, actions.state_delta)
        return cls(name, call_id, run_id, path, actions, state)

    @property
    def agent_name(self) -> str:
        """The name of the loop that made the call, if it is nested in another."""
        return self.path.rpartition("/")[2]


async def with_actions(running: Awaitable[Any], context: ToolContext) -> Any:
    """Return the function's result, together with the actions that the function has set."""
    result = await running
    context.state.note_changes_inside()
    acted = context.actions
    actions: dict[str, Any] = {name: True for name in ("escalate", "skip_summarization") if getattr(acted, name)}
    if acted.state_delta:
        actions["state_delta"] = acted.state_delta
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
