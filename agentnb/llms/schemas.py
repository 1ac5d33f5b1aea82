"""Small changes that providers ask of a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentnb.llms.protocol import JsonObject


def close_objects(schema: Any) -> Any:
    """Give the schema with `additionalProperties: false` on every object that says nothing about it.

    Anthropic refuses a schema for structured output without it.
    """
    if isinstance(schema, list):
        return [close_objects(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: close_objects(part) for name, part in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def is_strict(schema: Any) -> bool:
    """Say whether OpenAI would enforce the schema: every object is closed and needs all its properties."""
    if isinstance(schema, list):
        return all(is_strict(part) for part in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
    return all(is_strict(part) for part in schema.values())


def hoist_definitions(schema: Mapping[str, Any], prefix: str, definitions: JsonObject) -> Any:
    """Give the schema ready to stand inside another one: its `$defs` moved to `definitions`, each name after `prefix`.

    A `$ref` counts from the root of the document, so a schema that is nested without this refers to nothing.
    """
    own = schema.get("$defs", {})
    renamed = {f"#/$defs/{name}": f"#/$defs/{prefix}{name}" for name in own}
    definitions |= {f"{prefix}{name}": _rename(part, renamed) for name, part in own.items()}
    return _rename({name: part for name, part in schema.items() if name != "$defs"}, renamed)


def _rename(schema: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_rename(part, renamed) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: renamed.get(part, part) if name == "$ref" and isinstance(part, str) else _rename(part, renamed)
        for name, part in schema.items()
    }
