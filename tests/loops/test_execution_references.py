from __future__ import annotations

from typing import Any

import pytest

from agentnb.core.errors import InvalidArguments
from agentnb.loops.execution_loop.data import written
from agentnb.loops.execution_loop.references import MISSING, Path, at_path, expressions_in, parse_expression, resolve
from agentnb.loops.execution_loop.reply import SolutionText

DATA = {"state": {"a": {"b": [1, {"c": None}]}, "n": 0}}


def look(path: Path) -> Any:
    return at_path(DATA.get(path.kind, MISSING), path.keys)


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("†state.a.b.0", 1),
        ("†state.a.b.1.c", None),
        ("†state", DATA["state"]),
        ("†state.x||†state.n", 0),
        ("†state.x && †state.n || †state.a.b.0", 1),
        ("††state", "†state"),
        ("†††", "††"),
        ("plain", "plain"),
        (" †state.n", " †state.n"),
        ("", ""),
    ],
)
def test_what_a_text_stands_for(reference: str, value: Any) -> None:
    assert resolve(reference, look) == value


@pytest.mark.parametrize("reference", ["†state.x", "†nothing", "†state.a.b.9", "†state.n.x", "†state.x && †state.n"])
def test_what_is_not_there_is_unresolved(reference: str) -> None:
    with pytest.raises(InvalidArguments, match="unresolved reference †"):
        resolve(reference, look)


@pytest.mark.parametrize("text", ["†", "†.a", "†1.a", "†a.", "†a..b", "†a b", "†a ||", "†a | †b", "†a || b", "†a † b"])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidArguments, match="Malformed"):
        list(expressions_in({"deep": [text]}))


def test_an_expression_reads_as_it_was_written() -> None:
    assert str(parse_expression("†a.b&&†c||†d")) == "†a.b && †c || †d"


@pytest.mark.parametrize(
    ("root", "keys", "value", "method", "comes_to"),
    [
        (MISSING, "a.b", 1, "set", {"a": {"b": 1}}),
        ({"a": 9}, "a.b", 1, "set", {"a": {"b": 1}}),
        ({"a": [1, 2]}, "a.1", 5, "set", {"a": [1, 5]}),
        ({"a": [1]}, "a.1", 5, "set", {"a": [1, 5]}),
        ({"a": [1]}, "a.x", 5, "set", {"a": {"x": 5}}),
        ({"a": [1]}, "a.7", 5, "set", {"a": {"7": 5}}),
        ({"a": 1}, "a", {"b": 2}, "merge", {"a": {"b": 2}}),
        ({"a": None}, "a", 1, "push", {"a": [1]}),
        ({"a": 0}, "a", 1, "push", {"a": [0, 1]}),
        ({"a": [1]}, "a", 2, "concat", {"a": [1, 2]}),
        ({"a": 1}, "", {"b": 2}, "set", {"b": 2}),
        ({"a": 1}, "", {"b": 2}, "assign", {"a": 1, "b": 2}),
    ],
)
def test_what_a_write_comes_to(root: Any, keys: str, value: Any, method: str, comes_to: Any) -> None:
    assert written(root, keys.split(".") if keys else [], value, method) == comes_to


def test_what_was_written_is_a_copy() -> None:
    value = {"list": [1]}
    root = written(written(MISSING, ["a"], value), ["a", "list"], 2, "push")
    assert (root, value) == ({"a": {"list": [1, 2]}}, {"list": [1]})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_calls_are_given_as_they_close_however_the_text_is_cut(size: int) -> None:
    text = '{"meta": {"calls": [{}]}, '
    text += '"calls": [{"_tool": "ü†", "n": 1.5, "deep": {"a": []}}, 5, {"_tool": "b"}], "output": 1e3}'
    reader, given = SolutionText(), []
    for start in range(0, len(text), size):
        given += reader.feed(text[start : start + size])
    reader.end()
    assert given == [{"_tool": "ü†", "n": 1.5, "deep": {"a": []}}, 5, {"_tool": "b"}]
    assert (reader.fault, reader.closed) == (None, True)
    assert reader.fields == {"meta": {"calls": [{}]}, "calls": None, "output": 1000.0}
