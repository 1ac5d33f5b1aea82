"""What the core and the driver ask of a tool; `agentnb.tools` makes them from functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

Progress = Callable[[Any], None]
"""Tell whoever watches how far a tool is: JSON data, at any time, from any thread."""

Invocation = Callable[[Progress], Awaitable[Any]]

current_call: ContextVar[tuple[str, str, str, object] | None] = ContextVar("agentnb_current_call", default=None)
"""The run, the loop in it and the call on whose behalf this code runs, and the task that performs it: a tool that
cancels its own run is not cut off by that, and does not wait for it."""


@runtime_checkable
class Tool(Protocol):
    """Something a model can call.

    `parameters` is the JSON schema of its arguments. `approve`: a person is asked before each call. `idempotent`: it
    may run again when nobody knows whether it ran. `timeout` in seconds. `needs`: what it touches, in words a policy
    and a person can judge by. `sequential`: no other call runs beside it.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    approve: bool
    idempotent: bool
    timeout: float | None
    needs: tuple[str, ...]
    sequential: bool

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """The call with these arguments, ready to run. Raises InvalidArguments that names the argument at fault."""


def fingerprint_of(tool: Tool) -> str:
    """A short hash of the tool as a model and a person are told of it: its name, its description and its schema."""
    text = json.dumps(specification(tool), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def specification(tool: Tool) -> dict[str, Any]:
    """The tool as a model is told of it."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
