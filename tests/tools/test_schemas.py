"""JSON schemas of third-party tools: readable parts are checked, and no pattern blocks a run."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress
from typing import Any

import pytest

from agentnb import ExecutionLoop, SessionLoop
from agentnb.errors import InvalidArguments
from agentnb.testing import ScriptedLLM, call
from agentnb.tools import as_tools

DRAFT_04 = "http://json-schema.org/draft-04/schema#"
DRAFT_06 = "http://json-schema.org/draft-06/schema#"
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
PAIR = [{"type": "number"}, {"type": "number"}]


class Server:
    """A tool with a third-party schema; its result is the arguments that it gets."""

    name = "server"

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    async def execute(self, call_id: str, arguments: dict[str, Any], signal: object, on_update: object) -> Any:
        return arguments


async def reaches(schema: Any, arguments: dict[str, Any]) -> Any:
    """Return the arguments that a tool with this schema gets. Raises InvalidArguments if they are refused."""
    return await as_tools([Server(schema)])["server"].bind(arguments)(lambda data: None)


def of(x: Any, **more: Any) -> dict[str, Any]:
    """The schema of an object whose property `x` has this schema."""
    return {"type": "object", "properties": {"x": x}, **more}


FITTING = [
    (of({"items": PAIR}, **{"$schema": DRAFT_07}), [1, 2], [1, "b"]),
    (of({"items": PAIR}), [1, 2], [1, "b"]),
    (of({"items": PAIR, "additionalItems": False}, **{"$schema": DRAFT_06}), [1, 2], [1, 2, 3]),
    (of({"prefixItems": PAIR}), [1, 2], [1, "b"]),
    (of({"minimum": 3, "exclusiveMinimum": True}, **{"$schema": DRAFT_04}), 4, 3),
    (of({"minimum": 3, "exclusiveMinimum": True}), 4, 3),
    (of({"exclusiveMinimum": 3}, **{"$schema": DRAFT_06}), 4, 3),
    (of({"$ref": "#/definitions/n"}, definitions={"n": {"type": "integer"}}, **{"$schema": DRAFT_04}), 4, "four"),
    (of({"$ref": "#/$defs/n"}, **{"$defs": {"n": {"type": "integer"}}}), 4, "four"),
    (of({"type": "string", "pattern": r"^[\p{L}\d_-]+$"}), "Größe", "zu groß"),
    (of({"type": "string", "pattern": r"^\d+$"}), "42", "٤٢"),
    (of({"type": "string", "pattern": "^a$"}), "a", "a\n"),
    (of({"type": "string", "pattern": r"^(?!.*\.\.)[a-z.]+$"}), "a.b", "a..b"),
    (of({"type": "string", "nullable": True}), None, 5),
    (of({"type": "string", "enum": ["a", "b"], "nullable": True}), None, "c"),
    (of({"$ref": "#/$defs/n", "nullable": True}, **{"$defs": {"n": {"type": "integer"}}}), None, "four"),
]


@pytest.mark.parametrize(("schema", "fits", "misfits"), FITTING)
async def test_a_schema_is_checked_by_its_own_draft(schema: Any, fits: Any, misfits: Any) -> None:
    assert await reaches(schema, {"x": fits}) == {"x": fits}
    with pytest.raises(InvalidArguments, match="Invalid arguments for server: x"):
        await reaches(schema, {"x": misfits})


UNREADABLE = [
    of({"type": "any"}),
    of({"type": "frobnicate"}),
    of({"type": ["string", "frobnicate"]}),
    of({"type": "string", "pattern": "("}),
    of({"type": "string", "pattern": "(((a{999}){999}){999}){999}"}),
    of({"patternProperties": {"(": {"type": "integer"}}}),
    of({"$ref": "http://127.0.0.1:1/string.json"}),
    of({"$ref": "http://127.0.0.1:1/strings.json#/definitions/name"}),
    of({"$ref": "#/$defs/missing"}),
    of({"oneOf": [{"type": "frobnicate"}, {"type": "string"}]}),
    of({"not": {"type": "frobnicate"}}),
    of({"anyOf": []}),
    of(None),
    of({"type": "string", "required": True}),
    of({"enum": None}),
    of({"type": "string"}, required=None),
    of({"type": "string", "minLength": "one"}),
    {"type": "object", "properties": None, "additionalProperties": False},
    {"$schema": 7, "type": "object"},
    {"$schema": "https://example.org/own", "type": "object"},
    {"type": "object", "$ref": "#"},
]


@pytest.mark.parametrize("schema", UNREADABLE)
async def test_an_unreadable_part_of_a_schema_is_not_checked(schema: Any) -> None:
    assert await reaches(schema, {"x": "Elbe"}) == {"x": "Elbe"}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (of({"items": PAIR}, **{"$schema": DRAFT_07}), of({"prefixItems": PAIR})),
        (
            of({"items": PAIR, "additionalItems": False}, **{"$schema": DRAFT_06}),
            of({"prefixItems": PAIR, "items": False}),
        ),
        (of({"minimum": 3, "exclusiveMinimum": True}, **{"$schema": DRAFT_04}), of({"exclusiveMinimum": 3})),
        (of({"type": "string", "nullable": True}), of({"type": ["string", "null"]})),
        (of({"type": "any", "description": "it"}), of({"description": "it"})),
        (of({"type": "string", "pattern": "("}), of({"type": "string"})),
        (of({"$ref": "http://127.0.0.1:1/n.json", "description": "it"}), of({"description": "it"})),
        (of({"type": "string"}, required=None), of({"type": "string"})),
    ],
)
def test_a_model_gets_a_schema_that_providers_accept(schema: Any, told: Any) -> None:
    assert as_tools([Server(schema)])["server"].parameters == told


async def test_the_readable_parts_next_to_an_unreadable_one_are_checked() -> None:
    schema = of({"type": "any"}, required=["y"])
    schema["properties"] |= {"y": {"type": "integer"}, "z": {"pattern": "("}}
    with pytest.raises(InvalidArguments, match=r"y: 'six' is not of type 'integer'\.$"):
        await reaches(schema, {"x": 1, "y": "six", "z": "anything"})


async def test_references_of_a_schema_to_other_documents_are_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        await reaches(of({"$ref": f"http://127.0.0.1:{listening.getsockname()[1]}/n.json"}), {"x": 1})
        with pytest.raises(BlockingIOError):
            listening.accept()


LISTED = {"type": "array", "items": {"type": "integer"}}
NESTED = of(
    {"$ref": "#/$defs/place"}, **{"$defs": {"place": {"type": "object", "properties": {"zip": {"type": "integer"}}}}}
)


@pytest.mark.parametrize(
    ("schema", "said", "read"),
    [
        (of({"type": "integer"}), "5", 5),
        (of({"type": ["integer", "null"]}), "5", 5),
        (of({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "5", 5),
        (of({"type": "boolean"}), "false", False),
        (of(LISTED), "[1, 2]", [1, 2]),
        (of(LISTED), '["1"]', [1]),
        (of({"anyOf": [LISTED, {"type": "null"}]}), "[1]", [1]),
        (NESTED, '{"zip": "8001"}', {"zip": 8001}),
        (of({"type": ["string", "integer"]}), "5", "5"),
        (of({"type": "string"}), "[1]", "[1]"),
        (of({}), "5", "5"),
    ],
)
async def test_a_string_is_converted_to_the_type_of_the_schema(schema: Any, said: str, read: Any) -> None:
    assert await reaches(schema, {"x": said}) == {"x": read}


@pytest.mark.parametrize("said", ["[1", "{}", "one, two", ""])
async def test_a_string_that_is_not_a_list_is_rejected(said: str) -> None:
    with pytest.raises(InvalidArguments, match="x: "):
        await reaches(of(LISTED), {"x": said})


@pytest.mark.parametrize(
    ("x", "default", "wrong"),
    [({"type": "integer"}, "auto", "five"), ({"enum": ["a", "b"]}, "", "c"), ({"type": "array"}, None, 5)],
)
async def test_a_declared_default_is_a_value_of_its_schema(x: dict[str, Any], default: Any, wrong: Any) -> None:
    schema = of({**x, "default": default}, required=["x"])
    assert await reaches(schema, {"x": default}) == {"x": default}
    with pytest.raises(InvalidArguments, match="x: "):
        await reaches(schema, {"x": wrong})


@pytest.mark.parametrize("depth", [500, 900, 5000, 100_000])
async def test_deeply_nested_text_is_refused_or_parsed_without_a_crash(depth: int) -> None:
    nested = {"type": "array", "items": {"$ref": "#/properties/x"}}
    with suppress(InvalidArguments):  # the limit of the depth depends on the version of Python
        await reaches(of(nested), {"x": "[" * depth + "]" * depth})


async def test_null_for_an_optional_argument_is_removed() -> None:
    assert await reaches(of({"type": "string"}), {"x": None}) == {}
    assert await reaches(of({"enum": ["a", "b"]}), {"x": None}) == {}


async def test_null_that_the_schema_allows_is_passed_to_the_tool() -> None:
    assert await reaches(of({"type": ["string", "null"]}), {"x": None}) == {"x": None}


async def test_null_for_a_required_argument_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="x: None is not of type 'string'"):
        await reaches(of({"type": "string"}, required=["x"]), {"x": None})


async def test_a_long_invalid_value_is_abbreviated_in_the_error() -> None:
    with pytest.raises(InvalidArguments) as refused:
        await reaches(of({"type": "integer"}), {"x": "long " * 10_000})
    assert len(str(refused.value)) < 300


SLOW = [
    ("^([a-z]+)+$", "a" * 40 + "!"),
    (r"^(([a-z])+\2)+$", "a" * 40 + "!"),
    (r"^(?=.*a)(\w+\s?)*$", "a" * 40 + "!"),
]
"""Patterns for which a usual engine takes years."""


@pytest.mark.parametrize(("pattern", "text"), SLOW)
@pytest.mark.parametrize("at", ["pattern", "items", "patternProperties", "additionalProperties", "anyOf"])
async def test_no_pattern_of_a_schema_blocks_the_event_loop(pattern: str, text: str, at: str) -> None:
    schema, value = {
        "pattern": ({"pattern": pattern}, text),
        "items": ({"items": {"pattern": pattern}}, [text] * 200),
        "patternProperties": ({"patternProperties": {pattern: {}}}, {text: 1}),
        "additionalProperties": ({"patternProperties": {pattern: {}}, "additionalProperties": {}}, {text: 1}),
        "anyOf": ({"anyOf": [{"pattern": pattern}, {"type": "string"}]}, text),
    }[at]
    run = SessionLoop(ScriptedLLM([[call("server", {"x": value})], "end"]), [Server(of(schema))]).start("go")
    started = time.monotonic()
    assert await asyncio.wait_for(run, 30) == "end"
    assert time.monotonic() - started < 10


async def test_no_pattern_of_a_tool_of_an_execution_loop_blocks_the_event_loop() -> None:
    pattern, text = SLOW[0]
    tools = [{"_tool": "look", "properties": {"x": {"type": "string", "pattern": pattern}}}]
    turns = [{"calls": [{"_tool": "look", "x": text}]}, {"output": "end"}]
    llm = ScriptedLLM([json.dumps(turn) for turn in turns])
    loop = ExecutionLoop(llm, tools, activities={"look": lambda *_: 5})
    assert await asyncio.wait_for(loop.run(), 5) == "end"
