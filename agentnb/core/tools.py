"""The interface of a tool for the core and the driver; `agentnb.tools` makes tools from functions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from agentnb.core.errors import UsageError

ReportProgress = Callable[[Any], None]
"""A function that reports a tool's progress to consumers: JSON data, at any time, from any thread."""

Invocation = Callable[[ReportProgress], Awaitable[Any]]

current_call: ContextVar[tuple[str, str, str, object] | None] = ContextVar("agentnb_current_call", default=None)
"""The run, the loop in it and the call for which this code runs, and the task that performs the call.

With it, a tool that cancels its own run is not interrupted by that, and does not wait for the run.
"""


class Acted:
    """The result of a tool, with the actions that the tool has set.

    `escalate` and `skip_summarization` end the loop of the call; `escalate` also ends the loop around that one.
    `state_delta` has the values that the tool has set in the state of the session.
    """

    def __init__(self, result: Any, actions: dict[str, Any]) -> None:
        self.result = result
        self.actions = actions


@runtime_checkable
class Tool(Protocol):
    """An object that a model can call.

    `parameters` is the JSON schema of its arguments. `approve`: True to ask a person before each call, or a function
    that takes the call and returns True to ask. `idempotent`: a call may run again if it is unknown whether it ran.
    `timeout` in seconds. `needs`: the resources that it uses, in words for a policy and a person. `sequential`: no
    other call runs concurrently with it.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    approve: Any
    idempotent: bool
    timeout: float | None
    needs: tuple[str, ...]
    sequential: bool

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Return the call with these arguments, ready to run.

        Raises InvalidArguments that names the argument at fault.
        """


FOR_PROVIDERS = ("strict", "cache_control", "defer_loading")
"""The optional attributes of a tool that its specification includes: instructions for a provider."""


def legal_name(name: str) -> str:
    """Return the name with only the characters that every provider accepts in a tool's name."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "loop"


def check_names(named: Iterable[tuple[str, Any]]) -> None:
    """Raise UsageError for two tools with the same name, because a call would run only one of them.

    named: pairs of a name and a tool. The same tool may be given twice.
    """
    found: dict[str, Any] = {}
    for name, item in named:
        if name in found and found[name] is not item:
            raise UsageError(
                f"Two tools have the name {name!r}: {_shown(found[name])} and {_shown(item)}. Pass"
                " another name for one of them: by name=, or in a mapping, {name: tool}."
            )
        found[name] = item


def _shown(item: Any) -> str:
    """Return a text that distinguishes a tool from another of the same name: its function's path, or its server."""
    if source := getattr(item, "source", None):
        return str(source)
    function = getattr(item, "function", item)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{name}" if module and name else f"{item!r:.80}"


def fingerprint_of(tool: Tool) -> str:
    """Return a short hash of the tool's specification: its name, its description and its schema."""
    text = json.dumps(specification(tool), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def specification(tool: Tool) -> dict[str, Any]:
    """Return the tool's description for a model, with the tool's instructions for a provider, if it has any."""
    required = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    found = {name: getattr(tool, name, None) for name in FOR_PROVIDERS}
    return required | {name: value for name, value in found.items() if value is not None and not callable(value)}
