"""JSON text of small models: raw line ends and tabs inside a text are read as they are meant."""

import pytest

from agentnb.core.json import parse_arguments


@pytest.mark.parametrize("raw", ["a\nb", "a\tb", "a\r\nb", "a\x0cb"])
def test_arguments_may_have_raw_control_characters_inside_a_text(raw: str) -> None:
    assert parse_arguments(f'{{"body": "{raw}"}}') == ({"body": raw}, None)


def test_a_malformed_text_is_kept() -> None:
    assert parse_arguments('{"body": "a') == ({}, '{"body": "a')


@pytest.mark.parametrize("text", ["{}{}", "{} {}", '{}{"a": {"b": "}{"}}', '{"a": {"b": "}{"}}{"a": {"b": "}{"}}'])
def test_an_object_that_a_server_has_written_twice_or_after_an_empty_one_is_read_once(text: str) -> None:
    assert parse_arguments(text) == ({"a": {"b": "}{"}} if "a" in text else {}, None)


def test_two_different_objects_are_not_arguments() -> None:
    assert parse_arguments('{"a": 1}{"a": 2}') == ({}, '{"a": 1}{"a": 2}')
