"""Loops as tools: a model calls a loop with a task, and the loop's output is the result of the call.

The run performs such a call by a nested loop: its events are nested, and its calls need approval like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agentnb.core.errors import InvalidArguments, UsageError, printable
from agentnb.core.loop import Design
from agentnb.core.tools import Invocation, legal_name

_DESCRIPTION = "Hands a task to {}, which works on it and answers."
_OPTIONS = ("name", "description", "approve", "needs", "sequential", "view")


class LoopTool:
    """A loop that a model can call. The call is never invoked: the run executes `loop`.

    The options are those of `@tool`. Raises UsageError for an option that a loop as a tool does not have.
    """

    idempotent = True  # the nested loop has events of its own, and none of its effects is repeated
    timeout: float | None = None

    def __init__(
        self,
        loop: Design,
        name: str | None = None,
        *,
        description: str | None = None,
        approve: bool | Callable[[Any], Any] = False,
        needs: Iterable[str] | str = (),
        sequential: bool = False,
        view: Callable[[dict[str, Any]], str] | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            given = next(iter(unknown))
            raise UsageError(f"A loop as a tool has no option {given!r}; the options are {', '.join(_OPTIONS)}.")
        if not isinstance(approve, bool) and not callable(approve):
            raise UsageError(f"approve= must be True, False, or a function that takes the call, not {approve!r:.80}.")
        if view is not None and not callable(view):
            raise UsageError(
                f"view= must be a function that takes the arguments and returns a string, not {view!r:.80}."
            )
        self.loop = loop
        self.name = legal_name(name or loop.name)  # a loop may have any name
        self.description = description or str(getattr(loop, "description", "") or _DESCRIPTION.format(loop.name))
        self.approve = approve
        self.needs = (needs,) if isinstance(needs, str) else tuple(needs)
        self.sequential = sequential
        self.view = view
        task = {"type": "string", "description": "What it is to do."}
        self.parameters: dict[str, Any] = {"type": "object", "properties": {"input": task}, "required": ["input"]}

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Check the arguments. Raises InvalidArguments."""
        if not isinstance(arguments.get("input"), str) or len(arguments) > 1:
            raise InvalidArguments(f"Invalid arguments for {self.name}: it takes input, a string, and nothing else.")

        def never(progress: object) -> Any:
            raise AssertionError("the run executes a loop, not this call")  # pragma: no cover

        return never

    def __repr__(self) -> str:
        return printable(f"<tool {self.name}: a loop>")


def loop_of(tool: object) -> Design | None:
    """Return the loop that performs the calls of a tool, or None if a function does."""
    return tool.loop if isinstance(tool, LoopTool) else None
