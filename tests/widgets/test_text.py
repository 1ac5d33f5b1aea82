from __future__ import annotations

import json

import pytest
from hypothesis import assume, given

from agentnb.core.json import repair_text
from agentnb.widgets.text import as_json, brief, duration, for_reading, one_line, pretty, visible
from tests.core.samples import json_values


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\u202egpj.exe", "a⟦U+202E⟧gpj.exe"),
        ("\u2066\u200b\ufeff", "⟦U+2066⟧⟦U+200B⟧⟦U+FEFF⟧"),
        ("\U000e0041", "⟦U+E0041⟧"),
        ("\x7f\x00", "␡␀"),
        ("\ud800", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("a\tb\r\nc", "a\tb\nc"),
        ("👩\u200d🔬 नमस्ते שלום", "👩\u200d🔬 नमस्ते שלום"),
    ],
)
def test_invisible_characters_are_shown_as_signs_and_text_is_unchanged(hidden: str, shown: str) -> None:
    assert visible(hidden) == shown


def test_text_with_lone_surrogates_can_be_encoded_after_repair() -> None:
    assert repair_text("a\udc00b").encode() == "a\ufffdb".encode()


def test_json_for_the_page_contains_neither_surrogates_nor_nan() -> None:
    assert json.loads(as_json({"a\ud800": [float("nan"), "\udfff"]})) == {"a\ufffd": ["NaN", "\ufffd"]}


def test_a_line_has_no_line_breaks_and_at_most_the_given_length() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("x" * 500, 20) == "x" * 19 + "…"
    assert len(brief({"key": "x" * 500}, 40)) == 40


def test_pretty_json_keeps_integers_that_a_browser_would_round() -> None:
    assert "12345678901234567891" in pretty({"id": 12345678901234567891})


def test_a_text_of_several_lines_is_shown_as_marked_lines() -> None:
    value = {"path": "a.md", "text": 'One.\n"mode": "x"\n', "parts": [{"a": "1\n2"}, "b"], "mode": "w"}
    assert (
        for_reading(value)
        == """\
{
  "path": "a.md",
  "text": 3 lines,
    │ One.
    │ "mode": "x"
    │
  "parts": [
    {
      "a": 2 lines
        │ 1
        │ 2
    },
    "b"
  ],
  "mode": "w"
}"""
    )


def test_short_values_and_numbers_share_a_line() -> None:
    value = {
        "at": {"x": 1, "y": None},
        "years": list(range(1890, 1906)),
        "rows": [{"a": 1.5}, {"b": []}],
        "words": ["a word of many letters, " * 4, "and another"],
    }
    assert (
        for_reading(value)
        == """\
{
  "at": {"x": 1, "y": null},
  "years": [
    1890, 1891, 1892, 1893, 1894, 1895, 1896, 1897, 1898, 1899, 1900, 1901, 1902, 1903,
    1904, 1905
  ],
  "rows": [{"a": 1.5}, {"b": []}],
  "words": [
    "a word of many letters, a word of many letters, a word of many letters, a word of many letters, ",
    "and another"
  ]
}"""
    )


@given(json_values)
def test_without_a_text_of_several_lines_the_form_for_reading_is_json(value: object) -> None:
    assume("\\n" not in pretty(value))
    assert json.loads(for_reading(value)) == json.loads(pretty(value))


def test_durations_are_shown_in_readable_units() -> None:
    told = [duration(seconds) for seconds in (0, 0.0004, 0.25, 1, 9.996, 42.04, 100, 3599, 7500)]
    assert told == ["0 ms", "0 ms", "250 ms", "1.00 s", "10.0 s", "42.0 s", "1 min 40 s", "59 min 59 s", "2 h 05 min"]


def test_a_duration_just_below_a_whole_minute_is_rounded_up() -> None:
    told = [duration(seconds) for seconds in (0.9996, 99.96, 119.4, 119.6, 3599.4, 3599.6, 7199.6)]
    assert told == ["1.00 s", "1 min 40 s", "1 min 59 s", "2 min 00 s", "59 min 59 s", "1 h 00 min", "2 h 00 min"]
