"""What the core and the driver ask of a tool; `agentnb.tools` makes them from functions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from agentnb.core.errors import UsageError

Progress = Callable[[Any], None]
"""Tell whoever watches how far a tool is: JSON data, at any time, from any thread."""

Invocation = Callable[[Progress], Awaitable[Any]]

current_call: ContextVar[tuple[str, str, str, object] | None] = ContextVar("agentnb_current_call", default=None)
"""The run, the loop in it and the call on whose behalf this code runs, and the task that performs it: a tool that
cancels its own run is not cut off by that, and does not wait for it."""


class Acted:
    """The result of a tool after which its loop ends; `{"escalate": True}` leaves the loop around that too."""

    def __init__(self, result: Any, actions: dict[str, Any]) -> None:
        self.result = result
        self.actions = actions


@runtime_checkable
class Tool(Protocol):
    """Something a model can call.

    `parameters` is the JSON schema of its arguments. `approve`: a person is asked before each call, or a function of
    the call that returns whether to ask. `idempotent`: it may run again when nobody knows whether it ran. `timeout` in
    seconds. `needs`: what it touches, in words a policy and a person can judge by. `sequential`: no other call runs
    beside it.
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
        """The call with these arguments, ready to run. Raises InvalidArguments that names the argument at fault."""


FOR_PROVIDERS = ("strict", "cache_control", "defer_loading")
"""What a tool may have beside these, and its specification then has too: how a provider is to treat it."""


def legal_name(name: str) -> str:
    """The name in the letters that every provider takes for a tool."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "loop"


def check_names(named: Iterable[tuple[str, Any]]) -> None:
    """Raise UsageError for two tools of one name, of which a call would run only one; `named` are names and tools.

    The same tool may be given twice.
    """
    given: dict[str, Any] = {}
    for name, item in named:
        if name in given and given[name] is not item:
            raise UsageError(
                f"Two tools have the name {name!r}: {_shown(given[name])} and {_shown(item)}. Give one of them another"
                " by name=, or in a mapping, {name: tool}."
            )
        given[name] = item


def _shown(item: Any) -> str:
    """A tool in words that tell it apart from another of its name: where its function is, or its server."""
    if source := getattr(item, "source", None):
        return str(source)
    function = getattr(item, "function", item)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{name}" if module and name else f"{item!r:.80}"


def fingerprint_of(tool: Tool) -> str:
    """A short hash of the tool as a model and a person are told of it: its name, its description and its schema."""
    text = json.dumps(specification(tool), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def specification(tool: Tool) -> dict[str, Any]:
    """The tool as a model is told of it, with what a provider wants said of it where the tool says that."""
    told = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    given = {name: getattr(tool, name, None) for name in FOR_PROVIDERS}
    return told | {name: value for name, value in given.items() if value is not None and not callable(value)}
