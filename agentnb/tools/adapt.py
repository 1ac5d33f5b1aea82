"""Adapters: functions, loops, and the tool objects of other toolkits, as tools.

A tool object of another toolkit has a name and a method. It may have a JSON schema of its arguments. If the parameters
of the method are not those of the schema, there are three cases. A method with `**kwargs` alone gets the arguments by
name. A method that requires one parameter gets all arguments in one dict. Any other method is called by position, as
the tools of SessionLoop's design are: `execute(id, args, signal, on_update)`, or as many of these as it takes.

The arguments are checked by the schema, except for its parts that cannot be read here. A string in place of a number, a
bool, a list or an object is converted, as for functions.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.loop import Design
from agentnb.core.tools import FOR_PROVIDERS, Invocation, ReportProgress, Tool, check_names, current_call
from agentnb.json_schema import JsonSchema, argument_faults, read_by
from agentnb.tools.context import progress_callback
from agentnb.tools.function import FunctionTool
from agentnb.tools.loop import LoopTool, loop_of
from agentnb.tools.signature import code_of, parse_docstring
from agentnb.tools.threads import in_thread

METHODS = ("run", "arun", "execute", "invoke", "__call__")
"""The names of the method in the tools of other toolkits. The first one that the object has is called."""

_OPTIONS = ("approve", "idempotent", "timeout", "needs", "sequential")
_MAX_POSITIONAL = 4
_SESSION_LOOP_NAMES = frozenset({"signal", "on_update"})
_ALL_ARGUMENTS = frozenset(
    {"args", "arguments", "kwargs", "params", "parameters", "tool_args", "tool_input", "input", "inputs"}
)
"""Names of a parameter that takes all arguments of a call as one dict."""


def as_tools(tools: Iterable[Any] | Mapping[str, Any]) -> dict[str, Tool]:
    """Return tools by name.

    tools: tools, functions, loops and objects with a name and a method; or a mapping of names to these.

    Raises UsageError for anything else, and for two tools of one name, because a call could run only one of them.
    """
    items = [(None, item) for item in tools] if not isinstance(tools, Mapping) else list(tools.items())
    made = [_as_tool(item, name) for name, item in items]
    named = {tool.name: tool for tool in made}
    if len(named) < len(made):
        check_names((tool.name, item) for tool, (_, item) in zip(made, items, strict=True))
    loop_names = {loop.name: name for name, tool in named.items() if (loop := loop_of(tool)) is not None}
    aliases = {loop_name: name for loop_name, name in loop_names.items() if loop_name not in named}
    return _ToolsWithAliases(named, aliases) if aliases else named


class _ToolsWithAliases(dict[str, Tool]):
    """Tools by name, and by alias for older recordings: these use a loop's own name even if no tool may have it."""

    def __init__(self, tools: Mapping[str, Tool], aliases: Mapping[str, str]) -> None:
        super().__init__(tools)
        self._aliases = aliases

    def __missing__(self, name: str) -> Tool:
        return self[self._aliases[name]]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._aliases

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tool of this name or alias, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default


def _as_tool(item: Any, name: str | None) -> Tool:
    if isinstance(item, FunctionTool):  # first, because the check for the protocol `Tool` takes 10 us
        return item if name in (None, item.name) else item.named(name)
    if isinstance(item, Design):
        return LoopTool(item, name)
    if isinstance(item, Tool):
        return item
    if inspect.ismethod(item) and isinstance(item.__func__, FunctionTool):
        made = FunctionTool.__get__(item.__func__, item.__self__)  # @classmethod above @tool, in Python 3.13
        return made if name is None else made.named(name)
    if inspect.isroutine(item) or isinstance(item, functools.partial):
        return FunctionTool(item, name=name)
    if isinstance(own_name := getattr(item, "name", None), str):
        for method_name in METHODS:
            if callable(method := getattr(item, method_name, None)):
                tool = _from_object(item, method, name or own_name)
                for option in FOR_PROVIDERS:
                    if (value := getattr(item, option, None)) is not None and not callable(value):
                        setattr(tool, option, value)
                return tool
    raise UsageError(f"{item!r} is not a tool: pass a function, a tool made by @agentnb.tool, or a loop.")


def _from_object(item: Any, method: Callable[..., Any], name: str) -> Tool:
    """Return a tool that calls a method of an object of another toolkit, with the options that the object has."""
    schema, model = getattr(item, "parameters", None), getattr(item, "args_schema", None)
    if schema is None and isinstance(model, Mapping):
        schema, model = model, None
    own_options = {option: getattr(item, option, None) for option in _OPTIONS}
    options = {option: value for option, value in own_options.items() if value is not None and not callable(value)}
    options |= {"name": name, "description": getattr(item, "description", None)}
    if "sequential" in (getattr(item, "execution_mode", None), getattr(item, "executionMode", None)):
        options["sequential"] = True

    # A JSON schema, with a method whose own signature does not name the arguments.
    if isinstance(schema, Mapping) and (positional := _positional_arguments(schema, method)) is not None:
        return DescribedTool(method, schema=schema, positional=positional, **options)
    # A pydantic model.
    if schema is None and isinstance(model, type) and issubclass(model, BaseModel):
        positional = _positional_arguments(model.model_json_schema(), method) or 0
        return DescribedTool(method, model=model, positional=positional, **options)
    # No schema, and a method that takes all arguments as one dict.
    if not isinstance(schema, Mapping) and _takes_all_in_one(method):
        return DescribedTool(method, schema={"type": "object", "additionalProperties": True}, positional=1, **options)
    # Otherwise the method is a function like any other.
    made = FunctionTool(method, **options)
    if isinstance(schema, Mapping):
        made.parameters = dict(schema)
    return made


def _positional_arguments(schema: Mapping[str, Any], method: Callable[..., Any]) -> int | None:
    """Return how many of SessionLoop's four arguments a method takes by position.

    Returns 0 if the method takes any name, 1 if it takes all arguments in one dict, and None if its own signature names
    the arguments of the schema. Arguments are passed by position if the schema has none of the required parameters. A
    schema without properties may be incomplete; then only the parameter names of SessionLoop's design decide.
    """
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except ValueError:  # some functions written in C have no signature
        return None
    if [one.kind for one in parameters] == [inspect.Parameter.VAR_KEYWORD]:
        return 0
    ordered = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_position = [one for one in parameters if one.kind in ordered]
    names = [one.name for one in by_position]
    required = [one.name for one in by_position if one.default is inspect.Parameter.empty]
    known = schema.get("properties") or ([] if _SESSION_LOOP_NAMES.intersection(names) else names)
    if not required or any(name in known for name in required):
        return None
    return min(len(by_position), _MAX_POSITIONAL) if len(required) > 1 else 1


def _takes_all_in_one(method: Callable[..., Any]) -> bool:
    """Return True if a method takes all arguments of a call as one dict, as `execute(args: dict)` does.

    A parameter of another type is one argument, and so is one without a type whose name any parameter may have.
    """
    try:
        parameters = list(inspect.signature(method).parameters.values())
        hints = get_type_hints(code_of(method))
    except (ValueError, NameError, TypeError):
        return False
    if len(parameters) != 1 or (one := parameters[0]).name not in _ALL_ARGUMENTS or one.default is not one.empty:
        return False
    if one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
        return False
    hint = hints.get(one.name)
    return one.name not in ("input", "inputs") if hint is None else (get_origin(hint) or hint) in (dict, Mapping)


class Signal:
    """Tells a running tool whether its call has been cancelled."""

    aborted = False


class DescribedTool(FunctionTool):
    """A method, with a description of its arguments in place of a signature.

    method: the method.
    schema: the JSON schema of the arguments; or
    model: a pydantic model of the arguments. The method gets the values of its fields.
    positional: how many of SessionLoop's four arguments the method takes by position; 1 to pass all arguments in one
        dict, 0 to pass them by name.
    options: as for `@tool`.
    """

    source: str = ""
    """The origin of the tool, to distinguish it in errors from another tool of the same name."""

    def __init__(
        self,
        method: Callable[..., Any],
        *,
        schema: Mapping[str, Any] | None = None,
        model: type[BaseModel] | None = None,
        positional: int,
        **options: Any,
    ) -> None:
        def any_arguments(**arguments: Any) -> None:
            """Stand for the method, whose signature does not name the arguments."""

        description = options.pop("description", None)
        if description is None:
            description = parse_docstring(method)[0]
        super().__init__(any_arguments, description=description, **options)
        self.function = method
        declared = dict(model.model_json_schema() if model is not None else schema or {})
        self._schema = JsonSchema(declared)
        is_unchanged = self._schema.sendable == {name: part for name, part in declared.items() if name != "$schema"}
        self.parameters = declared if is_unchanged else self._schema.sendable
        self._model = model
        self._positional = positional

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """Return the call with these arguments, ready to run. Raises InvalidArguments."""
        values = self.read(arguments)
        if self._model is not None:
            try:
                checked = self._model.model_validate(values)
            except ValidationError as error:
                raise InvalidArguments(f"Invalid arguments for {self.name}: {argument_faults(error)}.") from error
            except Exception as error:  # a user's validator fails
                reason = f"{type(error).__name__}: {error}"
                raise InvalidArguments(
                    f"Invalid arguments for {self.name}: they cannot be checked ({reason})."
                ) from error
            return functools.partial(self._invoke, {name: getattr(checked, name) for name in self._model.model_fields})
        try:
            faults = self._schema.faults(values)
        except ValueError as error:  # nested too deeply
            raise InvalidArguments(f"The arguments of {self.name} cannot be checked: {error}") from error
        if faults:
            raise InvalidArguments(f"Invalid arguments for {self.name}: {'; '.join(faults)}.")
        return functools.partial(self._invoke, values)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the JSON values that the method gets."""
        try:
            read: dict[str, Any] = read_by(self.parameters, arguments)
        except RecursionError:  # a string of JSON that is nested too deeply
            return arguments
        return read

    async def _invoke(self, values: dict[str, Any], progress: ReportProgress) -> Any:
        call, signal = current_call.get(), Signal()
        call_id = call[2] if call is not None else ""
        if self._positional == 0:
            invocation = functools.partial(self.function, **values)
        elif self._positional == 1:
            invocation = functools.partial(self.function, values)
        else:
            passed = (call_id, values, signal, progress_callback(progress))[: self._positional]
            invocation = functools.partial(self.function, *passed)
        try:
            return await (invocation() if inspect.iscoroutinefunction(self.function) else in_thread(invocation))
        except asyncio.CancelledError:
            signal.aborted = True
            raise
