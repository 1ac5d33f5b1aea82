"""Small changes that providers ask of a JSON schema, and of a tool's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import UsageError

if TYPE_CHECKING:
    from agentnb.llms.protocol import JsonObject, ToolSpecification

_TOLD = ("name", "description", "parameters")


def as_specification(tool: Any) -> ToolSpecification:
    """Give a tool as `protocol` has it: it may be a tool itself, or told as one of the providers has it told.

    Raises UsageError for what is none.
    """
    known = tool if isinstance(tool, Mapping) else {name: getattr(tool, name, None) for name in _TOLD}
    told = known.get("function", known)
    if not isinstance(told, Mapping) or not isinstance(told.get("name"), str):
        raise UsageError(f"A model is told of a tool by its name, description and parameters, not by {tool!r:.200}.")
    schema = told.get("input_schema")
    return told if schema is None else {**told, "parameters": schema}


def described(tool: ToolSpecification) -> JsonObject:
    """Give a tool's name and description; Bedrock refuses one that is empty, and nobody needs it."""
    name = {"name": tool["name"]}
    return name | {"description": tool["description"]} if tool.get("description") else name


def parameters(tool: ToolSpecification) -> JsonObject:
    """Give the schema of a tool's arguments, which is to say that they are an object and what is in it."""
    return {"type": "object", "properties": {}} | dict(tool.get("parameters") or {})


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
