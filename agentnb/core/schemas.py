"""JSON schemas: nesting one inside another, and texts about invalid arguments from which a model can correct them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

_SHOWN = 80
"""The number of characters that are displayed of a value at fault."""


def hoist_definitions(schema: Mapping[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema ready to be nested in another one: its `$defs` moved to `definitions`, renamed with `prefix`.

    A `$ref` is relative to the root of the document, so a schema that is nested without this would have dangling
    references.
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
    """Return the reason why pydantic has no schema for a type.

    Pydantic's advice to set `arbitrary_types_allowed` is removed: the model that it refers to is internal.
    """
    return str(error).partition("\n")[0].partition(" Set `arbitrary_types_allowed")[0].rstrip(".")


def misfits(error: ValidationError, *inside: str) -> str:
    """Return the faults that pydantic has found in arguments: the path, the fault and the given value of each.

    inside: the path of the checked part, which comes before the path of each fault.
    """
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(map(str, (*inside, *fault["loc"]))) or "arguments"
        given = "" if fault["type"] == "missing" else f" (got {repr(fault['input'])[:_SHOWN]})"
        faults.append(f"{where}: {fault['msg']}{given}")
    return "; ".join(faults)
