"""JSON schemas: inside others, and what does not follow one, in words that a model can mend it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

_SHOWN = 80
"""Characters of a value that is at fault."""


def hoist_definitions(schema: Mapping[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Give the schema ready to stand inside another one: its `$defs` moved to `definitions`, each name after `prefix`.

    A `$ref` counts from the root of the document, so a schema that is nested without this refers to nothing.
    """
    own = schema.get("$defs", {})
    renamed = {f"#/$defs/{name}": f"#/$defs/{prefix}{name}" for name in own}
    definitions |= {f"{prefix}{name}": _rename(part, renamed) for name, part in own.items()}
    hoisted: dict[str, Any] = _rename({name: part for name, part in schema.items() if name != "$defs"}, renamed)
    return hoisted


def _rename(schema: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_rename(part, renamed) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: renamed.get(part, part) if name == "$ref" and isinstance(part, str) else _rename(part, renamed)
        for name, part in schema.items()
    }


def why_none(error: Exception) -> str:
    """Why pydantic has no schema for a type, without what would have to be set in a model that nobody sees."""
    return str(error).partition("\n")[0].partition(" Set `arbitrary_types_allowed")[0].rstrip(".")


def misfits(error: ValidationError, *inside: str) -> str:
    """What pydantic has found in arguments, or in what is called `inside`: where, what, and what is there instead."""
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(map(str, (*inside, *fault["loc"]))) or "arguments"
        given = "" if fault["type"] == "missing" else f" (got {repr(fault['input'])[:_SHOWN]})"
        faults.append(f"{where}: {fault['msg']}{given}")
    return "; ".join(faults)
