from __future__ import annotations

from typing import Any

import pytest

from agentnb.widgets.views.forms import EDITABLE, form, merge

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where it is."},
        "count": {"type": "integer"},
        "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "force": {"type": "boolean", "default": False},
        "mode": {"enum": ["fast", "careful", 3]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "options": {"$ref": "#/$defs/Options"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["path", "count", "options"],
    "$defs": {
        "Options": {
            "type": "object",
            "properties": {"depth": {"type": "integer"}, "inner": {"type": "object", "properties": {"a": {}}}},
            "required": ["depth"],
        }
    },
}


def by_label(fields: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {field["label"]: field for field in fields}


def test_each_property_has_a_control_for_its_type() -> None:
    fields = by_label(
        form(SCHEMA, {"path": "/a", "count": 12345678901234567891, "mode": "fast", "options": {"depth": 2}})
    )
    assert {label: field["kind"] for label, field in fields.items()} == {
        "path": "string", "count": "integer", "ratio": "number", "force": "boolean", "mode": "enum", "tags": "json",
        "options.depth": "integer", "options.inner": "json", "either": "json",
    }  # fmt: skip
    assert fields["count"]["text"] == "12345678901234567891"
    assert fields["path"]["required"]
    assert fields["path"]["description"] == "Where it is."
    assert fields["mode"]["options"] == ['"fast"', '"careful"', "3"]
    assert fields["mode"]["text"] == '"fast"'
    assert fields["ratio"]["nullable"]
    assert fields["ratio"]["given"] == fields["tags"]["given"] == "absent"
    assert fields["tags"]["type"] == "array of string"
    assert fields["options.depth"]["path"] == ["options", "depth"]


def test_a_field_shows_its_constraints() -> None:
    declared: dict[str, Any] = {
        "width": {"type": "integer", "minimum": 1, "maximum": 4000},
        "quality": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}], "default": 0.8},
        "host": {"type": "string", "minLength": 3, "pattern": "^[a-z.]+$"},
        "mode": {"enum": ["fit", "crop"], "default": "fit"},
    }
    fields = by_label(form({"properties": declared}, {}))
    assert {label: (field["type"], field["default"]) for label, field in fields.items()} == {
        "width": ("integer, ≥ 1, ≤ 4000", ""),
        "quality": ("number, > 0", "0.8"),
        "host": ("string, length ≥ 3, pattern ^[a-z.]+$", ""),
        "mode": ("one of", '"fit"'),
    }


def test_null_is_different_from_an_absent_value() -> None:
    assert by_label(form(SCHEMA, {"ratio": None}))["ratio"]["given"] == "null"


def test_an_absent_optional_object_is_not_expanded() -> None:
    schema = {**SCHEMA, "required": []}
    assert by_label(form(schema, {}))["options"]["kind"] == "json"
    assert "options.depth" in by_label(form(schema, {"options": {}}))


@pytest.mark.parametrize(
    ("given", "said", "depth"),
    [({"options": {"depth": 2}}, "value", "2"), ({"options": None}, "null", ""), ({}, "absent", "")],
)
def test_a_nullable_object_is_expanded_after_a_field_for_its_presence(
    given: dict[str, Any], said: str, depth: str
) -> None:
    declared = {"options": {"anyOf": [{"$ref": "#/$defs/Options"}, {"type": "null"}], "default": None}}
    fields = form({"properties": declared, "$defs": SCHEMA["$defs"]}, given)
    assert [field["label"] for field in fields] == ["options", "options.depth", "options.inner"]
    assert (fields[0]["kind"], fields[0]["type"], fields[0]["default"]) == ("object", "object", "null")
    assert (fields[0]["given"], fields[1]["text"]) == (said, depth)


def test_a_nullable_object_without_properties_is_edited_as_json() -> None:
    (field,) = form({"properties": {"options": {"type": ["object", "null"]}}}, {"options": None})
    assert (field["kind"], field["given"]) == ("json", "null")


def test_a_value_that_should_be_an_object_is_shown_unchanged() -> None:
    assert by_label(form(SCHEMA, {"options": "deep"}))["options"]["text"] == '"deep"'


def test_undeclared_arguments_are_kept() -> None:
    field = by_label(form(SCHEMA, {"surprise": [1]}))["surprise"]
    assert (field["kind"], field["text"], field["required"]) == ("json", "[\n  1\n]", False)
    assert "options.more" in by_label(form(SCHEMA, {"options": {"depth": 1, "more": 2}}))


def test_without_a_schema_the_arguments_are_one_field_of_json() -> None:
    assert [field["path"] for field in form({}, {"a": 1})] == [[]]
    assert form(None, {"a": 1})[0]["text"] == '{\n  "a": 1\n}'


def test_circular_references_in_a_schema_end() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert form(schema, {"a": 1})[0]["kind"] == "json"


def test_a_text_that_is_too_long_to_send_is_kept_and_restored() -> None:
    original = {"path": "/a", "body": "x" * (EDITABLE + 1), "options": {"depth": 1, "note": "y" * (EDITABLE + 1)}}
    fields = form({"properties": {"path": {"type": "string"}, "body": {"type": "string"}}}, original)
    assert by_label(fields)["body"]["kind"] == "kept"
    assert len(by_label(fields)["body"]["text"]) < 1000
    edited = merge({"path": "/b", "options": {"depth": 2}}, [["body"], ["options", "note"]], original)
    assert edited == {
        "path": "/b",
        "body": original["body"],
        "options": {"depth": 2, "note": original["options"]["note"]},
    }


@pytest.mark.parametrize("wrong", [{"type": "object", "properties": {"b": {}}, "required": True}, {"enum": 5}])
def test_arguments_with_an_invalid_schema_are_edited_as_json(wrong: dict[str, Any]) -> None:
    (field,) = form({"type": "object", "properties": {"a": wrong}}, {"a": {"b": 1}})
    assert (field["label"], field["kind"], field["path"]) == ("arguments (JSON object)", "json", [])
