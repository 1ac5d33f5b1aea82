"""A loop as a tool: a model calls it with what it is to do, and its output is the result.

The driver runs the loop inside the one that calls it: its events are nested, its calls ask as the outer ones do.
"""

from __future__ import annotations

from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.loop import Design
from agentnb.core.tools import Invocation

_WORDS = "Hands a task to {}, which works on it and answers."


class LoopTool:
    """A loop that a model can call. Never invoked itself: the driver runs `loop`."""

    approve = False
    idempotent = True  # what the loop does inside has facts of its own, and is never repeated
    timeout: float | None = None
    needs: tuple[str, ...] = ()
    sequential = False

    def __init__(self, loop: Design, name: str | None = None) -> None:
        self.loop = loop
        self.name = name or loop.name
        self.description = str(getattr(loop, "description", "") or _WORDS.format(loop.name))
        said = {"type": "string", "description": "What it is to do."}
        self.parameters: dict[str, Any] = {"type": "object", "properties": {"input": said}, "required": ["input"]}

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Checks the arguments. Raises InvalidArguments."""
        if not isinstance(arguments.get("input"), str) or len(arguments) > 1:
            raise InvalidArguments(f"Invalid arguments for {self.name}: it takes input, a text, and nothing else.")
        return _never

    def __repr__(self) -> str:
        return f"<tool {self.name}: a loop>"


def loop_of(tool: object) -> Design | None:
    """The loop that performs the calls of a tool, where one does."""
    return tool.loop if isinstance(tool, LoopTool) else None


def _never(progress: object) -> Any:
    raise AssertionError("a loop is run by the driver")  # pragma: no cover
