from __future__ import annotations

from typing import Any

import pytest

from agentnb.core.errors import InvalidArguments
from agentnb.loops.execution_loop.references import MISSING, Path, at_path, expressions_in, parse_expression, resolve
from agentnb.loops.execution_loop.solution import SolutionReply, SolutionText
from agentnb.loops.execution_loop.writes import write_at

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
def test_a_reference_is_resolved_to_its_value(reference: str, value: Any) -> None:
    assert resolve(reference, look) == value


@pytest.mark.parametrize("reference", ["†state.x", "†nothing", "†state.a.b.9", "†state.n.x", "†state.x && †state.n"])
def test_a_reference_to_missing_data_is_unresolved(reference: str) -> None:
    with pytest.raises(InvalidArguments, match="unresolved reference †"):
        resolve(reference, look)


@pytest.mark.parametrize("text", ["†", "†.a", "†1.a", "†a.", "†a..b", "†a b", "†a ||", "†a | †b", "†a || b", "†a † b"])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidArguments, match="Malformed"):
        list(expressions_in({"deep": [text]}))


def test_the_text_of_a_parsed_expression_is_normalised() -> None:
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
def test_each_method_writes_at_its_path(root: Any, keys: str, value: Any, method: str, comes_to: Any) -> None:
    assert write_at(root, keys.split(".") if keys else [], value, method) == comes_to


def test_a_written_value_is_copied() -> None:
    value = {"list": [1]}
    root = write_at(write_at(MISSING, ["a"], value), ["a", "list"], 2, "push")
    assert (root, value) == ({"a": {"list": [1, 2]}}, {"list": [1]})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_complete_calls_are_returned_for_any_split_of_the_text(size: int) -> None:
    text = '{"meta": {"calls": [{}]}, '
    text += '"calls": [{"_tool": "ü†", "n": 1.5, "deep": {"a": []}}, 5, {"_tool": "b"}], "output": 1e3}'
    reader, given = SolutionText(), []
    for start in range(0, len(text), size):
        given += reader.feed(text[start : start + size])
    reader.end()
    assert given == [{"_tool": "ü†", "n": 1.5, "deep": {"a": []}}, 5, {"_tool": "b"}]
    assert (reader.fault, reader.closed) == (None, True)
    assert reader.fields == {"meta": {"calls": [{}]}, "calls": None, "output": 1000.0}


HALVES = '{"calls": [{"v": "a\ud83d\ude00\u2020"}], "output": "\ud83d\ude00 and half: \ud83d"}'
"""JSON with escaped surrogate pairs, as some servers write characters beyond the first 65536."""


@pytest.mark.parametrize("size", [1, 2, 3, len(HALVES)])
def test_surrogate_halves_are_joined_for_any_split_of_the_text(size: int) -> None:
    reader, given = SolutionText(), []
    for start in range(0, len(HALVES), size):
        given += reader.feed(HALVES[start : start + size])
    reader.end()
    assert given == [{"v": "a\U0001f600†"}]
    assert (reader.fault, reader.fields["output"]) == (None, "\U0001f600 and half: \ufffd")


def test_half_a_surrogate_after_the_object_is_a_fault() -> None:
    reader = SolutionText()
    reader.feed('{"output": 1}\ud83d')
    reader.end()
    assert reader.fault is not None


def test_a_call_has_the_arguments_of_the_recorded_answer() -> None:
    reply = SolutionReply(1, 0, (), native=False)
    for character in HALVES.replace('"v"', '"_tool": "t", "v"'):
        reply.feed({"type": "text_delta", "content": character}, 0)
    message = reply.end().message
    assert [call.arguments for call in message.tool_calls] == [{"v": "a\U0001f600†"}]
    assert '"v": "a\U0001f600†"' in message.content
    assert message.details["output"] == "\U0001f600 and half: \ufffd"


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, '{"a":' * 190 + "1" + "}" * 190, "1" * 5000])
@pytest.mark.parametrize(
    "text", ['{"calls": [{"_tool": "a"}, {"v": %s}, {"_tool": "b"}]}', '{"calls": [{"_tool": "a"}], "output": %s}']
)
@pytest.mark.parametrize("size", [7, 100_000])
def test_a_value_that_cannot_be_recorded_is_a_fault_after_the_earlier_calls(text: str, value: str, size: int) -> None:
    reader, given, whole = SolutionText(), [], text % value
    for start in range(0, len(whole), size):
        given += reader.feed(whole[start : start + size])
    reader.end()
    assert given == [{"_tool": "a"}]
    assert reader.fault is not None
    assert reader.fields.get("output") is None
