"""What may be given as a tool: a tool, a function, a loop, or an object with a name and a method that does it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from agentnb.core.errors import UsageError
from agentnb.core.loop import Design
from agentnb.core.tools import FOR_PROVIDERS, Tool, check_names
from agentnb.tools.described import DescribedTool, described_by, takes_all_in_one
from agentnb.tools.function import FunctionTool
from agentnb.tools.loop import LoopTool, loop_of

METHODS = ("run", "arun", "execute", "invoke", "__call__")
"""What the method is called in the tools of other designs; the first that is there counts, or the object is called."""

_OPTIONS = ("approve", "idempotent", "timeout", "needs", "sequential")


def as_tools(tools: Iterable[Any] | Mapping[str, Any]) -> dict[str, Tool]:
    """Tools, functions, loops, or a mapping of names to any of these, by name.

    Raises UsageError for anything else, and for two tools of one name: a call would run only one of them.
    """
    items = [(None, item) for item in tools] if not isinstance(tools, Mapping) else list(tools.items())
    made = [_as_tool(item, name) for name, item in items]
    named = {one.name: one for one in made}
    if len(named) < len(made):
        check_names((one.name, item) for one, (_, item) in zip(made, items, strict=True))
    own = {loop.name: name for name, tool in named.items() if (loop := loop_of(tool)) is not None}
    own = {name: legal for name, legal in own.items() if name not in named}
    return _Tools(named, own) if own else named


class _Tools(dict[str, Tool]):
    """Tools by name. A loop whose own name is not legal for a tool is found by that too: older recordings have it."""

    def __init__(self, tools: Mapping[str, Tool], own: Mapping[str, str]) -> None:
        super().__init__(tools)
        self._own = own

    def __missing__(self, name: str) -> Tool:
        return self[self._own[name]]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._own

    def get(self, name: str, default: Any = None) -> Any:
        """The tool of this name, or `default`."""
        try:
            return self[name]
        except KeyError:
            return default


def _as_tool(item: Any, name: str | None) -> Tool:
    if isinstance(item, FunctionTool):  # asking whether it has all of a tool's attributes takes 10 µs
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
    if isinstance(own := getattr(item, "name", None), str):
        for method in METHODS:
            if callable(does := getattr(item, method, None)):
                from_object = _from_object(item, does, name or own)
                for option in FOR_PROVIDERS:
                    if (value := getattr(item, option, None)) is not None and not callable(value):
                        setattr(from_object, option, value)
                return from_object
    raise UsageError(f"{item!r} is no tool: give a function, one made by @agentnb.tool, or a loop.")


def _from_object(item: Any, does: Callable[..., Any], name: str) -> Tool:
    """An object with a method as a tool; of what else a tool has, it has what the object says."""
    description, schema = getattr(item, "description", None), getattr(item, "parameters", None)
    model = getattr(item, "args_schema", None)
    if schema is None and isinstance(model, Mapping):
        schema, model = model, None
    said = {option: getattr(item, option, None) for option in _OPTIONS}
    options = {option: value for option, value in said.items() if value is not None and not callable(value)}
    if "sequential" in (getattr(item, "execution_mode", None), getattr(item, "executionMode", None)):
        options["sequential"] = True
    if isinstance(schema, Mapping) and (by_place := described_by(schema, does)) is not None:
        return DescribedTool(does, schema=schema, by_place=by_place, name=name, description=description, **options)
    if schema is None and isinstance(model, type) and issubclass(model, BaseModel):
        by_place = described_by(model.model_json_schema(), does) or 0
        return DescribedTool(does, model=model, by_place=by_place, name=name, description=description, **options)
    if not isinstance(schema, Mapping) and takes_all_in_one(does):
        every = {"type": "object", "additionalProperties": True}
        return DescribedTool(does, schema=every, by_place=1, name=name, description=description, **options)
    made = FunctionTool(does, name=name, description=description, **options)
    if isinstance(schema, Mapping):
        made.parameters = dict(schema)
    return made
