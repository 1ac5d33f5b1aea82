"""Keywords of a function that its signature declares by type: `**weights: float`, `**options: Unpack[Options]`."""

from typing import Any, Required, TypedDict, Unpack

import pytest
import typing_extensions
from pydantic import BaseModel

from agentnb import tool
from agentnb.core.errors import InvalidArguments


class Options(TypedDict, total=False):
    year: int
    name: Required[str]


class Later(typing_extensions.TypedDict, total=False):
    year: int


class Point(BaseModel):
    x: int


@tool
def weigh(city: str, **weights: float) -> str:
    return repr((city, weights))


@tool
def read(**options: Unpack[Options]) -> str:
    return repr(options)


@tool
def read_later(**options: typing_extensions.Unpack[Later]) -> str:
    return repr(options)


@tool
def draw(**points: Point) -> str:
    return repr(points)


async def result_of(made: Any, arguments: dict[str, Any]) -> Any:
    return await made.bind(arguments)(lambda data: None)


def test_the_schema_has_the_type_of_other_keywords():
    assert weigh.parameters["additionalProperties"] == {"type": "number"}


def test_the_schema_has_the_fields_of_an_unpacked_typed_dict():
    schema = read.parameters
    types = {name: field["type"] for name, field in schema["properties"].items()}
    assert (types, schema["required"]) == ({"year": "integer", "name": "string"}, ["name"])


def test_the_schema_has_the_definition_of_a_model_among_the_keywords():
    assert "Point" in draw.parameters["$defs"]


@pytest.mark.parametrize(
    ("made", "arguments", "shown"),
    [
        (weigh, {"city": "Rome", "a": "2.5"}, "('Rome', {'a': 2.5})"),
        (weigh, {"city": "Rome"}, "('Rome', {})"),
        (read, {"name": "n", "year": "3"}, "{'year': 3, 'name': 'n'}"),
        (read_later, {"year": 3}, "{'year': 3}"),
        (draw, {"a": {"x": 1}}, "{'a': Point(x=1)}"),
    ],
)
async def test_keywords_are_converted_to_their_declared_types(made: Any, arguments: dict[str, Any], shown: str):
    assert await result_of(made, arguments) == shown


@pytest.mark.parametrize(
    ("made", "arguments", "named"),
    [
        (weigh, {"city": "Rome", "a": "much"}, "a:"),
        (read, {"year": 3}, "name:"),
        (read, {"name": "n", "month": 1}, "month:"),
        (read_later, {"year": "soon"}, "year:"),
        (draw, {"a": {"x": "left"}}, r"a\.x:"),
    ],
)
def test_a_keyword_that_does_not_fit_is_refused_by_name(made: Any, arguments: dict[str, Any], named: str):
    with pytest.raises(InvalidArguments, match=named):
        made.bind(arguments)
