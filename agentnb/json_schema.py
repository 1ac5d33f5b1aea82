"""JSON schemas of tools: reading and checking values by them, nesting them, and describing faults in arguments.

A schema may come from any source: an MCP server, an object of another toolkit, a user. It may be written for any draft,
use keywords of OpenAPI, contain keywords that no draft has, and refer to other documents by their addresses, which are
not fetched. A part that cannot be read is not checked here: the code that performs the call may understand it.

The checks are those of jsonschema-rs. Its regular expressions are those of ECMA 262, as JSON Schema requires, and their
backtracking is limited: a pattern from another party must not block the event loop, in which all these checks run.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python

from agentnb.core.json import repair_texts

Path = tuple[str | int, ...]

BACKTRACKS = 50_000
"""The maximum number of backtracking steps in one search for a pattern. This many steps take some milliseconds.

If one pattern of a schema needs more, no pattern of that schema is checked any longer.
"""

_SHOWN = 80
"""The maximum number of characters that an error shows of an invalid value."""

_FAULT = 500
"""The maximum number of characters of the description of one fault."""

_DRAFTS = {
    "2020-12": ("Draft202012Validator", "https://json-schema.org/draft/2020-12/schema"),
    "2019-09": ("Draft201909Validator", "https://json-schema.org/draft/2019-09/schema"),
    "draft-07": ("Draft7Validator", "http://json-schema.org/draft-07/schema#"),
    "draft-06": ("Draft6Validator", "http://json-schema.org/draft-06/schema#"),
    "draft-04": ("Draft4Validator", "http://json-schema.org/draft-04/schema#"),
}
"""The drafts, by the substring of `$schema` that names each: the class of its validator, the address of its metaschema.
"""

_UNDECLARED = ("2020-12", "draft-07", "draft-04")
"""The drafts that a schema without `$schema` may be written for, the most likely first."""

_OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_OF_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_OF_ONE = frozenset(
    {"items", "additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
"""These three sets are the keywords whose values hold schemas: by name, in a list, or a single one."""

_INVERTING = frozenset({"not", "oneOf", "if"})
"""Keywords that may reject a value because a schema inside them accepts it. If a part of that schema were removed, it
would accept more values and the keyword would reject more. So such a keyword is removed as a whole.
"""

_RESTS = {
    "properties": ("additionalProperties",),
    "patternProperties": ("additionalProperties",),
    "prefixItems": ("items",),
    "items": ("additionalItems",),
}
"""By keyword: the keywords that apply to the properties or items that it does not cover. If it is removed, they are
removed too, because they would then apply to all properties or items.
"""

_ELSEWHERE = {"$comment": "elsewhere"}
"""The placeholder for the content of every address outside of the schema."""

_READ_AS: dict[str, type[int | float]] = {"integer": int, "number": float, "boolean": bool}
_CONTAINERS: dict[str, type] = {"array": list, "object": dict}


class JsonSchema:
    """A checker of values against a JSON schema of any draft.

    `unread` has a description of each part that cannot be read and is therefore not checked. `sendable` is the schema
    without these parts and in the keywords of the newest draft, for a model: providers refuse a request with a schema
    that they cannot read, and some support no other draft.
    """

    def __init__(self, schema: Any) -> None:
        self.unread: list[str] = []
        self.sendable: dict[str, Any] = {}
        self._schema: Any = {}
        self._draft = "2020-12"
        try:
            self._read(repair_texts(to_jsonable_python(schema, fallback=str)))
            try:
                self._validator = self._made(self._schema)
            except ValueError:  # a pattern that is too large
                self._drop_patterns()
        except ValueError as error:  # not JSON, or nested too deeply
            self.unread.append(f"Unreadable schema: {error}"[:_FAULT])
            self._validator = self._made({})

    def faults(self, value: Any) -> list[str]:
        """Return the faults of the value, each with its path.

        Raises ValueError if the value is not JSON, or is nested too deeply.
        """
        from jsonschema_rs import ValidationErrorKind

        found = []
        for fault in self._validator.iter_errors(value):
            if isinstance(fault.kind, ValidationErrorKind.BacktrackLimitExceeded):
                self._drop_patterns()
                return self.faults(value)
            path = ".".join(map(str, fault.instance_path))
            text = _fault_text(fault)[:_FAULT]
            found.append(f"{path}: {text}" if path else text)
        return found

    def _read(self, schema: Any) -> None:
        """Find the draft of the schema, and remove the parts that cannot be read."""
        if not isinstance(schema, dict | bool):
            raise ValueError(f"it is not an object: {schema!r:.80}")
        self._schema = schema
        declared = schema.pop("$schema", None) if isinstance(schema, dict) else None
        # Replace keywords of OpenAPI that have an equivalent in every draft.
        for path, part in list(_schemas(schema)):
            if part.get("type") == "any":
                del part["type"]
            if part.pop("nullable", None) is True and path:
                _allow_null(part)
        named = [draft for draft in _DRAFTS if isinstance(declared, str) and draft in declared]
        self._draft = min(named or _UNDECLARED, key=lambda draft: len(_faults_of_schema(draft, schema)))
        # Repeat until there are no faults: a removed part may have hidden faults of another one.
        while paths := _faults_of_schema(self._draft, schema):
            for path in paths:
                self._take_out(path)
        for path in list(_unresolved(schema)):
            self._take_out(path)
        self.sendable = _in_newest_draft(schema) if isinstance(schema, dict) else {}
        # Accept a declared default as a value, even if the rest of its schema does not.
        for path, part in list(_schemas(schema)):
            if "default" in part and path and not self._takes(part, part["default"]):
                default, content = part.pop("default"), dict(part)
                part.clear()
                part["anyOf"] = [{"enum": [default]}, content]
        if self.unread:  # these keywords apply to values that no other part has accepted, so every part is needed
            for _, part in _schemas(schema):
                part.pop("unevaluatedProperties", None)
                part.pop("unevaluatedItems", None)

    def _takes(self, schema: dict[str, Any], value: Any) -> bool:
        """Return True if a part of the schema accepts a value.

        Also return True if this is unknown because the part refers to others.
        """
        try:
            return bool(self._made(schema).is_valid(value))
        except ValueError:
            return True

    def _take_out(self, path: Path) -> None:
        """Remove the smallest part around this path whose removal does not change the meaning of the rest."""
        cut, is_schema = _cut(path)
        holder: Any = self._schema
        for key in cut[:-1]:
            holder = holder[key] if _has(holder, key) else None
        if not cut:
            self._schema.clear()
            self.unread.append("Unreadable schema")
        elif _has(holder, cut[-1]):
            self.unread.append(_unread_text(path, self._schema))
            if is_schema:
                holder[cut[-1]] = {}
            else:
                del holder[cut[-1]]
                for rest in _RESTS.get(str(cut[-1]), ()):
                    holder.pop(rest, None)

    def _drop_patterns(self) -> None:
        """Stop checking the patterns of this schema, because one was too large or took too long."""
        for path, part in list(_schemas(self._schema)):
            for keyword in part.keys() & {"pattern", "patternProperties"}:
                self._take_out((*path, keyword))
        self._validator = self._made(self._schema)

    def _made(self, schema: Any) -> Any:
        """Return a validator of the schema's draft with limited patterns.

        Raises ValueError if a pattern is too large.
        """
        import jsonschema_rs

        kind = getattr(jsonschema_rs, _DRAFTS[self._draft][0])
        bounded = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS)
        return kind(schema, pattern_options=bounded, offline=True, validate_formats=False)


@functools.cache
def _metaschema(draft: str) -> Any:
    import jsonschema_rs

    validator, address = _DRAFTS[draft]
    return getattr(jsonschema_rs, validator)({"$ref": address}, validate_formats=True)  # a pattern is a format


def _faults_of_schema(draft: str, schema: Any) -> list[Path]:
    """Return the paths of the parts of a schema that a draft does not allow, the shortest first."""
    return sorted({tuple(fault.instance_path) for fault in _metaschema(draft).iter_errors(schema)}, key=len)


def _schemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the schema and each schema inside it, with its path."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword, value in list(schema.items()):
        if keyword in _OF_NAMES and isinstance(value, dict):
            inside: Sequence[tuple[Path, Any]] = [((keyword, name), part) for name, part in value.items()]
        elif keyword in _OF_LISTS and isinstance(value, list):
            inside = [((keyword, number), part) for number, part in enumerate(value)]
        elif keyword in _OF_ONE:
            inside = [((keyword,), value)]
        else:
            continue
        for further, part in inside:
            yield from _schemas(part, (*path, *further))


def _cut(path: Path) -> tuple[Path, bool]:
    """Return the path of the smallest removable part around a path, and True if it is a schema, False for a keyword."""
    cut: Path = ()
    at, is_schema = 0, True
    while at < len(path):
        # Step over a keyword, then over the name or the number of the schema that it holds.
        keyword = path[at]
        at, is_schema = at + 1, False
        if keyword in _INVERTING:
            return path[:at], False
        if at < len(path) and (keyword in _OF_NAMES or (keyword in _OF_LISTS and isinstance(path[at], int))):
            at, is_schema = at + 1, True
        elif keyword not in _OF_ONE:
            return path[:at], False
        cut = path[:at]
    return cut, is_schema


def _in_newest_draft(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema of any draft, with the keywords of the newest draft."""
    schema = copy.deepcopy(schema)
    for _, part in list(_schemas(schema)):
        rest = part.pop("additionalItems", None)
        if isinstance(part.get("items"), list):
            part["prefixItems"] = part.pop("items")
            if rest is not None:
                part["items"] = rest
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(part.get(exclusive), bool):
                is_exclusive = part.pop(exclusive)
                if is_exclusive and bound in part:
                    part[exclusive] = part.pop(bound)
    return schema


def _has(holder: Any, key: str | int) -> bool:
    if isinstance(holder, dict):
        return key in holder
    return isinstance(holder, list) and isinstance(key, int) and key < len(holder)


def _unread_text(path: Path, schema: Any) -> str:
    """Return a description of the part at this path of a schema, for the schema's author."""
    for key in path:
        schema = schema[key] if _has(schema, key) else None
    keyword = next((key for key in reversed(path) if isinstance(key, str)), "")
    problem = {"type": "Unknown type", "$ref": "Unresolvable", "pattern": "Unreadable pattern"}.get(
        keyword, "Unreadable"
    )
    return f"{problem} {schema!r:.80} at {'.'.join(map(str, path))}"


def _unresolved(schema: Any) -> Iterator[Path]:
    """Yield the paths of references to addresses outside of the schema, or to missing parts."""
    import jsonschema_rs

    references = [(path, part["$ref"]) for path, part in _schemas(schema) if "$ref" in part]
    if not references:
        return
    registry = jsonschema_rs.Registry([("urn:schema", schema)], retriever=lambda address: _ELSEWHERE)
    resolver = registry.resolver("urn:schema")
    for path, reference in references:
        try:
            found: object = resolver.lookup(reference).contents
        except Exception:  # the library raises several kinds
            found = _ELSEWHERE
        if found == _ELSEWHERE:
            yield (*path, "$ref")


def _allow_null(schema: dict[str, Any]) -> None:
    """Add null to the values that the schema accepts, like OpenAPI's `nullable: true`."""
    if "type" not in schema:
        content = dict(schema)
        schema.clear()
        schema["anyOf"] = [{"type": "null"}, content]
        return
    if isinstance(schema["type"], str) and schema["type"] != "null":
        schema["type"] = [schema["type"], "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"].append(None)


def _fault_text(fault: Any) -> str:
    """Return a description of a fault, with no more of the value than a model needs."""
    name, value = fault.kind.name, fault.kind.value
    shown = repr(fault.instance)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    if name == "required":
        return f"{value!r} is a required property"
    if name == "type":
        types = value if isinstance(value, list) else [value]
        return f"{shown} is not of type {', '.join(map(repr, sorted(types)))}"
    if name == "pattern":
        return f"{shown} does not match {value!r}"
    if name == "anyOf":
        return f"{shown} is not valid under any of the given schemas"
    return str(fault.message)


def read_by(schema: Any, value: Any) -> Any:
    """Return the value, with its parts converted to the types that the schema requires if that is possible.

    Text is parsed as a number, a boolean, a list or an object if the schema does not accept text. A null property is
    removed if it is optional and must not be null.
    """
    return _read_by(schema, value, schema)


def _read_by(schema: Any, value: Any, root: Any) -> Any:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return value

    # Parse text if the schema accepts only other types.
    types = _types(schema, root)
    if isinstance(value, str) and types is not None and "string" not in types:
        value = _read_text(value, types)
    # Read the properties of an object, without optional ones that are null and must not be.
    if isinstance(value, dict):
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return value
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        return {
            name: _read_by(properties.get(name), item, root)
            for name, item in value.items()
            if item is not None or name in needed or name not in properties or _takes_null(properties[name], root)
        }
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return [_read_by(schema["items"], item, root) for item in value]
    return value


def _resolved(schema: Any, root: Any) -> Any:
    """Return the schema that a `$ref` inside the document leads to; a schema without one is returned unchanged.

    None if the reference leads to nothing.
    """
    for _ in range(10):  # a reference may lead to another one or to itself
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found = root
        for name in reference[2:].split("/"):
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        schema = found
    return schema


def _types(schema: Any, root: Any) -> set[str] | None:
    """Return the types of the values that a schema accepts, or None if it does not restrict them."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return None
    declared = schema.get("type")
    types = {declared} if isinstance(declared, str) else set(map(str, declared)) if isinstance(declared, list) else None
    branches = schema.get("anyOf") or schema.get("oneOf")
    if types is None and isinstance(branches, list):
        each = [_types(branch, root) for branch in branches if branch is not schema]
        types = None if None in each else {one for some in each for one in some or ()}
    if types is not None and schema.get("nullable") is True:
        types.add("null")
    return None if types is None or "any" in types else types


def _takes_null(schema: Any, root: Any) -> bool:
    if isinstance(schema, Mapping) and schema.get("nullable") is True:
        return True
    schema = _resolved(schema, root)
    types = _types(schema, root)
    if types is not None and "null" not in types:
        return False
    allowed = schema.get("enum") if isinstance(schema, Mapping) else None
    return not isinstance(allowed, list) or None in allowed


def _read_text(text: str, types: set[str]) -> Any:
    """Return the value that a text denotes, as one of these types; the text itself if it denotes none of them."""
    for name in ("integer", "number", "boolean"):
        if name in types:
            try:
                return _reader(name).validate_python(text)
            except ValidationError:
                continue
    if types & _CONTAINERS.keys() and text.lstrip()[:1] in ("[", "{"):
        try:
            value = json.loads(text, strict=False)  # a model may write line ends as they are
        except (ValueError, RecursionError):
            return text
        if any(isinstance(value, kind) for name, kind in _CONTAINERS.items() if name in types):
            return value
    return text


@functools.cache
def _reader(name: str) -> TypeAdapter[Any]:
    # Created on first use: the first adapter of a process takes a tenth of the import time.
    return TypeAdapter(_READ_AS[name])


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


def schema_faults(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Return what does not fit a JSON schema, as text. Raises ValueError if the schema is not valid."""
    parsed = JsonSchema(schema)
    if parsed.unread:
        raise ValueError(f"{parsed.unread[0]}.")
    return parsed.faults(value)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise ValueError if this is not JSON or not a JSON schema."""
    to_json(schema)
    if unread := JsonSchema(schema).unread:
        raise ValueError(unread[0])


def no_schema_reason(error: Exception) -> str:
    """Return the reason why pydantic has no schema for a type.

    Pydantic's advice to set `arbitrary_types_allowed` is removed: the model that it refers to is internal.
    """
    return str(error).partition("\n")[0].partition(" Set `arbitrary_types_allowed")[0].rstrip(".")


def argument_faults(error: ValidationError, *inside: str) -> str:
    """Return the faults that pydantic has found in arguments: the path, the fault and the given value of each.

    inside: the path of the checked part, which comes before the path of each fault.
    """
    faults = []
    for fault in error.errors(include_url=False):
        path = ".".join(map(str, (*inside, *fault["loc"]))) or "arguments"
        value = "" if fault["type"] == "missing" else f" (got {repr(fault['input'])[:_SHOWN]})"
        faults.append(f"{path}: {fault['msg']}{value}")
    return "; ".join(faults)
