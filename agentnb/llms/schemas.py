"""Small changes that providers ask of a JSON schema, and of a tool's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentnb.llms.protocol import JsonObject, ToolSpecification

_TOLD = ("name", "description", "parameters", "strict", "cache_control", "defer_loading")


def as_specification(tool: Any) -> ToolSpecification:
    """Give a tool as `protocol` has it: it may be a tool itself, or told as one of the providers has it told.

    Raises UsageError for what is none.
    """
    if isinstance(tool, Mapping):
        known = tool
    else:
        given = {name: getattr(tool, name, None) for name in _TOLD}
        known = {name: value for name, value in given.items() if value is not None and not callable(value)}
    told = known.get("function", known)
    if isinstance(tool, Mapping) and is_provider_tool(tool):
        return tool
    if not isinstance(told, Mapping) or not isinstance(told.get("name"), str):
        raise UsageError(f"A model is told of a tool by its name, description and parameters, not by {tool!r:.200}.")
    if told is not known:  # OpenAI's shape, and what a gateway takes beside it
        told = {**told, **{name: known[name] for name in ("cache_control", "defer_loading") if name in known}}
    schema = told.get("input_schema")
    return told if schema is None else {**told, "parameters": schema}


def is_provider_tool(tool: ToolSpecification) -> bool:
    """Say whether a tool is one that runs at the provider, which has a type of its own: a web search, for one."""
    return tool.get("type") not in (None, "function", "custom") and "parameters" not in tool


def described(tool: ToolSpecification) -> JsonObject:
    """Give a tool's name and description; Bedrock refuses one that is empty, and nobody needs it."""
    name = {"name": tool["name"]}
    return name | {"description": tool["description"]} if tool.get("description") else name


def parameters(tool: ToolSpecification) -> JsonObject:
    """Give the schema of a tool's arguments as providers take it: an object, without alternatives at its top.

    Both OpenAI and Anthropic refuse `anyOf`, `oneOf` and `allOf` there. The properties of all alternatives become
    properties of the one object, and those are required that every alternative requires; the tool itself still checks
    what it is called with.
    """
    schema = dict(tool.get("parameters") or {})
    if _COMBINED & schema.keys():
        schema = _flattened(schema, schema, ())
    return {"type": "object", "properties": {}} | schema | {"type": "object"}


_COMBINED = frozenset({"anyOf", "oneOf", "allOf", "$ref", "not", "enum", "const", "if", "then", "else"})


def _flattened(schema: Mapping[str, Any], root: Mapping[str, Any], above: tuple[str, ...]) -> JsonObject:
    """Give a schema with the properties of all its alternatives; `above` are the references that led here."""
    flat = {name: value for name, value in schema.items() if name not in _COMBINED}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in above:
        found = _found(reference, root)
        flat = _merged(flat, [_flattened(found, root, (*above, reference))], all_hold=True)
    for name in ("allOf", "anyOf", "oneOf"):
        parts = [part for part in schema.get(name) or () if isinstance(part, Mapping) and part.get("type") != "null"]
        flat = _merged(flat, [_flattened(part, root, above) for part in parts], all_hold=name == "allOf")
    return flat


def _merged(flat: JsonObject, parts: Sequence[JsonObject], *, all_hold: bool) -> JsonObject:
    """Give an object schema with the properties of `parts`, of which `all_hold` or only one does."""
    if not parts:
        return flat
    properties = dict(flat.get("properties") or {})
    for part in parts:
        for name, schema in (part.get("properties") or {}).items():
            there = properties.setdefault(name, schema)
            if there != schema:
                known = there["anyOf"] if isinstance(there, Mapping) and list(there) == ["anyOf"] else [there]
                properties[name] = {"anyOf": known if schema in known else [*known, schema]}
    required = [set(part.get("required") or ()) for part in parts]
    needed = set(flat.get("required") or ()) | (set.union(*required) if all_hold else set.intersection(*required))
    merged = {name: value for name, value in flat.items() if name != "required"} | {"properties": properties}
    if any(part.get("additionalProperties", True) is not False for part in parts) and not all_hold:
        merged.pop("additionalProperties", None)
    if needed:
        merged["required"] = [name for name in properties if name in needed]
    for part in parts:
        for name in ("$defs", "definitions"):
            if name in part:
                merged[name] = {**part[name], **merged.get(name, {})}
        if part.get("description") and "description" not in merged and len(parts) == 1:
            merged["description"] = part["description"]
    return merged


def _found(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give what a reference inside the schema points to, an empty schema where there is nothing."""
    found: Any = root
    for name in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#") else ["?"]:
        key = name.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if key and isinstance(found, Mapping) else found if not key else None
    return found if isinstance(found, Mapping) else {}


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
