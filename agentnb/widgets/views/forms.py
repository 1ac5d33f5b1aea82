"""Forms: a tool's JSON schema as the list of fields that its arguments are edited in.

The page draws one control per field and knows no JSON schema. A field is `path` (one name, or two for the properties
of an object), `kind`, `label`, `type` (in words, with its bounds), `description`, `required`, `default`, `nullable`,
`options` of an enumeration, and its value: `given` (`value`, `null`, `absent`) and `text`. An object that may be null
has a field of its own before those of its properties, which only says whether the object is present.

Values travel as text, because JavaScript has no integers beyond 2**53: an id of twenty digits that was not edited must
not be rounded. A text that is too long to travel is kept in the kernel (`kind: "kept"`), and put back by `merge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentnb.core.json import repair_text
from agentnb.widgets.text import on_a_line, one_line, pretty

EDITABLE = 16 * 1024
"""The maximum number of characters of a value that can be edited; a longer value is kept unchanged."""

_KINDS = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "a multiple of {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "minItems": "items ≥ {}",
    "maxItems": "items ≤ {}",
    "pattern": "pattern {}",
}
_ABSENT = object()


def form(schema: Mapping[str, Any] | None, arguments: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the fields of a tool's arguments; without a schema of properties, one field for all of them as JSON."""
    given = arguments if arguments is not None else {}
    try:
        fields = _fields_of(schema or {}, given)
    except Exception:  # the schema comes from the tool's author and may be invalid; the call can still be decided
        fields = None
    if fields is None:
        return [_field([], {"title": "arguments (JSON object)"}, {}, given, required=True)]
    return fields


def _fields_of(schema: Mapping[str, Any], given: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    root = _resolve(schema, schema)
    properties = root.get("properties")
    if not isinstance(properties, Mapping):
        return None
    fields: list[dict[str, Any]] = []
    for name, declared in properties.items():
        fields += _fields(str(name), declared, schema, given, required=name in root.get("required", ()))
    for name in given:
        if name not in properties:
            note = {"description": "The tool does not declare this argument."}
            fields.append(_field([name], note, schema, given[name], required=False))
    return fields


def merge(arguments: Any, kept: list[list[str]], original: Mapping[str, Any]) -> Any:
    """Return the arguments from a form, with the values that were not sent to the page put back from `original`.

    kept: the paths of these values.
    """
    for path in kept:
        if not path:
            return dict(original)
        source: Any = original
        target = arguments
        for name in path[:-1]:
            source, target = source[name], target.setdefault(name, {})
        target[path[-1]] = source[path[-1]]
    return arguments


def _fields(
    name: str, declared: Any, schema: Mapping[str, Any], given: Mapping[str, Any], *, required: bool
) -> list[dict[str, Any]]:
    """Return the field of one property, or, if the property is an object, the fields of its properties."""
    value = given.get(name, _ABSENT)
    resolved, nullable = _plain_type(declared, schema)
    inner = resolved.get("properties")
    itself = _field([name], declared, schema, value, required=required)
    is_one = isinstance(value, Mapping) or value is _ABSENT or (value is None and nullable)
    if not (isinstance(inner, Mapping) and inner and is_one):
        return [itself]
    if value is _ABSENT and not required and not nullable:  # its properties are not required either
        return [itself]
    inside: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    fields = [itself | {"kind": "object", "text": ""}] if nullable else []
    fields += [
        _field([name, str(key)], part, schema, inside.get(key, _ABSENT), required=key in resolved.get("required", ()))
        for key, part in inner.items()
    ]
    return fields + [_field([name, key], {}, schema, inside[key], required=False) for key in inside if key not in inner]


def _field(path: list[str], declared: Any, schema: Mapping[str, Any], value: Any, *, required: bool) -> dict[str, Any]:
    resolved, nullable = _plain_type(declared, schema)
    whole = _resolve(declared, schema)  # with the alternative null, and so with a default for both
    kind = _KINDS.get(str(resolved.get("type")), "json")
    made: dict[str, Any] = {
        "path": path,
        "label": ".".join(repair_text(name) for name in path) or str(resolved.get("title", "")),
        "kind": kind,
        "type": _type_in_words(resolved),
        "description": one_line(repair_text(str(resolved.get("description", ""))), 400),
        "required": required,
        "default": _in_a_line(on_a_line(whole["default"])) if "default" in whole else "",
        "nullable": nullable,
        "given": "absent" if value is _ABSENT else "null" if value is None and nullable else "value",
        "text": "" if value is _ABSENT or (value is None and nullable) else _text(kind, value),
    }
    if "enum" in resolved or "const" in resolved:
        made["kind"] = "enum"
        options = resolved.get("enum", [resolved.get("const")])
        made["options"] = [option for option in map(on_a_line, options) if option != "null" or not nullable]
        made["text"] = on_a_line(value) if made["given"] == "value" else ""
    elif len(made["text"]) > EDITABLE:
        made |= {"kind": "kept", "text": made["text"][:400], "length": len(made["text"])}
    return made


def _text(kind: str, value: Any) -> str:
    if kind == "string" and isinstance(value, str):
        return repair_text(value)
    return pretty(value) if kind == "json" else on_a_line(value)


def _plain_type(declared: Any, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the schema of a property without the alternative null, and True if null was an alternative."""
    resolved = _resolve(declared, schema)
    kind = resolved.get("type")
    if isinstance(kind, list):
        others = [name for name in kind if name != "null"]
        return {**resolved, "type": others[0] if len(others) == 1 else None}, "null" in kind
    for word in ("anyOf", "oneOf"):
        alternatives = resolved.get(word)
        if isinstance(alternatives, list):
            parts = [_resolve(part, schema) for part in alternatives]
            others = [part for part in parts if part.get("type") != "null"]
            nullable = len(others) < len(parts)
            if len(others) == 1:
                return {**others[0], **{key: resolved[key] for key in ("description",) if key in resolved}}, nullable
            return resolved, nullable
    return resolved, False


def _resolve(declared: Any, schema: Mapping[str, Any], depth: int = 8) -> Mapping[str, Any]:
    """Return a schema with its reference resolved. If it is a cycle or cannot be resolved, return {}: any value."""
    if not isinstance(declared, Mapping):
        return {}
    reference = declared.get("$ref")
    all_of = declared.get("allOf")
    if isinstance(reference, str) and depth:
        target: Any = schema
        for part in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(part, {}) if isinstance(target, Mapping) and part else target
        found = _resolve(target, schema, depth - 1)
        return {**found, **{key: value for key, value in declared.items() if key != "$ref"}}
    if isinstance(all_of, list) and len(all_of) == 1 and depth:
        return {**_resolve(all_of[0], schema, depth - 1), **{k: v for k, v in declared.items() if k != "allOf"}}
    return {} if reference is not None else declared


def _type_in_words(resolved: Mapping[str, Any]) -> str:
    """Return the type of a value in words, with its bounds."""
    kind, items = resolved.get("type"), resolved.get("items")
    if kind == "array" and isinstance(items, Mapping) and isinstance(items.get("type"), str):
        kind = f"array of {items['type']}"
    elif "enum" in resolved or "const" in resolved:
        kind = "one of"
    elif not isinstance(kind, str):
        kind = "JSON"
    bounds = [words.format(_in_a_line(resolved[bound])) for bound, words in _BOUNDS.items() if bound in resolved]
    return ", ".join([kind, *bounds])


def _in_a_line(value: Any) -> str:
    return one_line(repair_text(str(value)), 60)
