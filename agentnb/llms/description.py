"""Description: the data of a model request that is recorded in addition to the messages: provider, model and options.

A model may have a method `describe(**options)` that returns a mapping with `provider`, `model` and `options`, as the
clients of `agentnb.llms` do. Of other models the attributes `provider`, `model` (or `model_name`, `model_id`) and
`options` are read, if they exist.

What is recorded is small and has no secrets: the names of tools, the title of a schema, the names of headers.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from agentnb.core.json import repair_text
from agentnb.core.secrets import HEADERS, MASK, Secrets, is_a_secret, names_a_secret, secrets_in

_LONGEST = 1000
"""The maximum number of characters that are recorded of a string in an option."""


_IMMUTABLE = frozenset({str, int, float, bool, type(None)})


class Described(NamedTuple):
    """A request as it is recorded."""

    provider: str
    model: str
    options: dict[str, Any]


class Describer:
    """Describes the requests of one loop. Equal requests in a row are described once."""

    def __init__(self) -> None:
        self._content: list[Any] | None = None
        """The objects that the last description was made of; None if one of them could have changed since."""
        self._last = Described("", "", {})

    def describe(self, llm: Any, options: Mapping[str, Any]) -> Described:
        """Return the description of a request that `llm` makes with these options, as `described` does."""
        content, last = _described_objects(llm, options), self._content
        if content is None or last is None or len(content) != len(last) or not all(map(operator.is_, content, last)):
            self._content, self._last = content, described(llm, options)
        return self._last


def _described_objects(llm: Any, options: Mapping[str, Any]) -> list[Any] | None:
    """Return the objects that a description is made of; None if one of them may change without becoming another object.

    The items of a list of tools are compared, not their content: a run makes the specification of a tool once.
    """
    if callable(getattr(llm, "describe", None)):  # it may return another description for each request
        return None
    objects = [
        llm,
        getattr(llm, "provider", None),
        getattr(llm, "model", None),
        getattr(llm, "model_name", None),
        getattr(llm, "model_id", None),
    ]
    for given in (getattr(llm, "options", None), options):
        if isinstance(given, dict):
            for name, value in given.items():
                objects += (name, value)
                if name == "tools" and isinstance(value, list):
                    objects += value
                elif type(value) not in _IMMUTABLE:
                    return None
        elif given is not None:
            return None
    return objects


def described(llm: Any, options: Mapping[str, Any]) -> Described:
    """Describe a request that `llm` makes with these options."""
    description = None
    if callable(describe := getattr(llm, "describe", None)):
        with suppress(Exception):  # the method may have another purpose
            description = describe(**options)
    if isinstance(description, Mapping):
        given = description.get("options")
        return Described(
            _name(description.get("provider")) or type(llm).__name__,
            _name(description.get("model")),
            recorded_options(given if isinstance(given, Mapping) else options),
        )
    own = getattr(llm, "options", None)
    merged = {**(own if isinstance(own, Mapping) else {}), **options}
    merged = {name: value for name, value in merged.items() if isinstance(name, str) and value is not None}
    names = (merged.pop("model", None), *(getattr(llm, name, None) for name in ("model", "model_name", "model_id")))
    model = next((name for one in names if (name := _name(one))), "")
    return Described(_name(getattr(llm, "provider", None)) or type(llm).__name__, model, recorded_options(merged))


def recorded_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in the form in which they are recorded."""
    recorded: dict[str, Any] = {}
    for name, value in options.items():
        if name == "tools":
            recorded[name] = [_tool_name(tool) for tool in value] if isinstance(value, list | tuple) else _plain(value)
        elif name == "schema":
            recorded[name] = _title(value)
        else:
            recorded[name] = _plain(value, name)
    found = secrets_in(options)  # a field may quote the key of another one
    return Secrets(found).without(recorded) if found else recorded


def _plain(value: Any, name: str = "") -> Any:
    """Return a value as small JSON data: schemas by their title, secrets as `***`."""
    if isinstance(value, str) and (names_a_secret(name) or is_a_secret(value)):
        return MASK
    if name in HEADERS:
        return sorted(map(str, value)) if isinstance(value, Mapping | list) else "..."
    if isinstance(value, bool | int | float) or value is None:
        return value if value == value and value not in (float("inf"), float("-inf")) else str(value)
    if isinstance(value, str):
        text = repair_text(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if isinstance(value, Mapping):
        if "schema" in value or "properties" in value:
            return {key: _title(one) if key == "schema" else _plain(one, key) for key, one in _named(value)}
        return {key: _plain(one, key) for key, one in _named(value)}
    if isinstance(value, list | tuple):
        return [
            _tool_name(one) if isinstance(one, Mapping) and "input_schema" in one else _plain(one, name)
            for one in value
        ]
    return f"<{type(value).__name__}>"


def _named(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [
        (repair_text(str(key)), one) for key, one in value.items() if key not in ("properties", "$defs", "definitions")
    ]


def _title(schema: Any) -> Any:
    """Return the title of a schema."""
    if not isinstance(schema, Mapping):
        return _plain(schema)
    title = schema.get("title") or schema.get("name") or schema.get("type")
    return title if isinstance(title, str) else "schema"


def _tool_name(tool: Any) -> Any:
    """Return the name of a tool, which may be in the form of any provider, or a name itself."""
    if isinstance(tool, str):
        return repair_text(tool)
    given = tool if isinstance(tool, Mapping) else {"name": getattr(tool, "name", None)}
    inside = given.get("function")
    name = (inside if isinstance(inside, Mapping) else given).get("name") or given.get("type")
    return repair_text(name) if isinstance(name, str) else "tool"


def _name(value: Any) -> str:
    return repair_text(value) if isinstance(value, str) else ""
