"""A loop as a tool: a model calls it with what it is to do, and its output is the result.

The driver runs the loop inside the one that calls it: its events are nested, its calls ask as the outer ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.loop import Design
from agentnb.core.tools import Invocation, legal_name
from agentnb.core.unicode import printable

_WORDS = "Hands a task to {}, which works on it and answers."
_OPTIONS = ("name", "description", "approve", "needs", "sequential", "view")


class LoopTool:
    """A loop that a model can call. Never invoked itself: the driver runs `loop`."""

    idempotent = True  # what the loop does inside has facts of its own, and is never repeated
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
        """Options as those of `@tool`. Raises UsageError for one that a loop as a tool does not have."""
        if unknown:
            raise UsageError(f"A loop as a tool has no option {next(iter(unknown))!r}; it has {', '.join(_OPTIONS)}.")
        if not isinstance(approve, bool) and not callable(approve):
            raise UsageError(f"approve= is True, False, or a function of the call, not {approve!r:.80}.")
        if view is not None and not callable(view):
            raise UsageError(f"view= takes a function of the arguments that returns a text, not {view!r:.80}.")
        self.loop = loop
        self.name = legal_name(name or loop.name)  # a loop may have any name
        self.description = description or str(getattr(loop, "description", "") or _WORDS.format(loop.name))
        self.approve = approve
        self.needs = (needs,) if isinstance(needs, str) else tuple(needs)
        self.sequential = sequential
        self.view = view
        said = {"type": "string", "description": "What it is to do."}
        self.parameters: dict[str, Any] = {"type": "object", "properties": {"input": said}, "required": ["input"]}

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Checks the arguments. Raises InvalidArguments."""
        if not isinstance(arguments.get("input"), str) or len(arguments) > 1:
            raise InvalidArguments(f"Invalid arguments for {self.name}: it takes input, a text, and nothing else.")
        return _never

    def __repr__(self) -> str:
        return printable(f"<tool {self.name}: a loop>")


def loop_of(tool: object) -> Design | None:
    """The loop that performs the calls of a tool, where one does."""
    return tool.loop if isinstance(tool, LoopTool) else None


def _never(progress: object) -> Any:
    raise AssertionError("a loop is run by the driver")  # pragma: no cover
