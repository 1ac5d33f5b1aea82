"""Delegates: loops that perform calls, each in its own context (SEMANTICS.md, 8. Scopes and delegates).

A tool's schema names who performs its calls in `_delegate`: a constant, or a schema by which the model chooses; a call
of a tool that says nothing cannot be delegated, since the person or policy that lets a tool run must know what runs.
The names are those of `delegates=`, never a path or an address: nothing that a model or a recording says is loaded. A
delegate is any loop, or a saved request, a mapping of `context`, `schema` (of the output) and other options of
ExecutionLoop, asked of the same model unless it names another.

`anonymous` needs no name: of a tool without an activity it is one fresh loop, which is asked for the tool's `_output`
and knows nothing else, so that the model that calls need not see or write it; of a tool with an activity, that
activity, with nothing of the context but what is scoped.

A delegate's context is its own, then what the call's `_scopes` let it see, then the call's parameters as an Input; a
loop of another design is given these as text. Its output is the call's result, to be written where the call says. The
loop is nested: its events, questions, snapshots and limits are the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.loop import Design
from agentnb.core.state import CallState
from agentnb.core.tools import Tool
from agentnb.loops.execution_loop.standing import ExecutionStanding
from agentnb.loops.execution_loop.tools import SchemaTool, schema_faults

ANONYMOUS = "anonymous"


class Delegates:
    """The delegates of one loop, by name. Raises UsageError for what cannot be one."""

    def __init__(self, given: Mapping[str, Any], make: Callable[..., Design]) -> None:
        """`make` makes an execution loop on the same model, of its options."""
        self._make = make
        self._named = {name: self._made(name, one) for name, one in given.items()}
        self._anonymous: dict[str, Design] = {}

    @property
    def names(self) -> list[str]:
        """Those that were given, sorted."""
        return sorted(self._named)

    def _made(self, name: str, given: Any) -> Design:
        if isinstance(given, Design):
            return given
        if not isinstance(given, Mapping) or name == ANONYMOUS:
            raise UsageError(f"A delegate is a loop or a saved request, under a name of its own; {name!r} is not.")
        options = {"output" if option == "schema" else option: value for option, value in given.items()}
        try:
            return self._make(**{"name": name, **options})
        except TypeError as error:
            raise UsageError(f"The saved request {name!r} has what no request has: {error}") from error

    def name_for(self, tool: Tool | None, call: CallState) -> str | None:
        """Who performs the call, None where its tool does. Raises InvalidArguments where that cannot be."""
        made = call.made
        is_its_own = tool is not None and made.name == tool.name  # a person may put in another
        said = made.arguments.get("_delegate") if is_its_own else None
        offered = tool.delegate if isinstance(tool, SchemaTool) else None
        if not offered:
            if said is not None:
                raise InvalidArguments(f"Calls of {call.name} are not delegated; `_delegate` is {said!r}.")
            return None
        name = offered.constant if offered.constant is not None else said
        if offered.schema is not None and name is not None and (faults := list(schema_faults(offered.schema, name))):
            raise InvalidArguments(f"Invalid `_delegate` for {call.name}: {'; '.join(faults)}.")
        if name is not None and name != ANONYMOUS and name not in self._named:
            known = ", ".join([ANONYMOUS, *self.names])
            raise InvalidArguments(f"There is no delegate {name!r}. Delegates: {known}.")
        return name

    def loop_for(self, tool: Tool | None, call: CallState) -> Design | None:
        """The loop that performs the call, where one does."""
        if not isinstance(tool, SchemaTool) or not tool.delegate:
            return None
        name = self.name_for(tool, call)
        if name is None or (name == ANONYMOUS and tool.activity is not None):
            return None
        if name != ANONYMOUS:
            return self._named[name]
        if tool.name not in self._anonymous:
            words = tool.description or None
            self._anonymous[tool.name] = self._make(output=tool.output, system_prompt=words, name=tool.name)
        return self._anonymous[tool.name]


def delegate_input(delegate: Design, parameters: dict[str, Any], seen: list[dict[str, Any]]) -> Any:
    """What a delegate is started with: the messages it may see, and the call's parameters."""
    if isinstance(delegate, ExecutionStanding):
        return [*seen, {"type": "data", "kind": "input", "data": parameters}]
    given = parameters["input"] if set(parameters) == {"input"} else parameters
    return given if not seen else {"input": given, "context": seen}
