"""Words for arguments and results: short, for the line of a call, and laid out, for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.llms.conversion import part_in_words
from agentnb.widgets.text import as_json, for_reading, on_a_line, one_line, without_data

LINE = 240
"""Characters of the arguments of a call in its line."""
TEXT, ITEM = 96, 40
"""Characters of one argument in a line, and of one item in a list or an object."""
RESULT = 60
"""Characters of a result in a line; a longer one is shown below the line."""
BRIEFLY = 100
"""Characters of a result in a line that shows only its beginning."""
PARTS = 20
"""Items of a result that are searched for pictures, documents and sound, for the line of a call."""
TABLE = 400
"""Rows of a result that are laid out as a table."""


@dataclass(frozen=True, slots=True)
class Output:
    """A result for reading. `line` is the whole of it if it is short; otherwise `words` name what `text` shows."""

    line: str
    words: str
    text: str


def in_short(arguments: Any, before: Mapping[str, Any]) -> str:
    """Return arguments in one line. Those that are as in the tool's call before come last, and are cut first."""
    if not isinstance(arguments, Mapping):
        return one_line(on_a_line(arguments), TEXT)
    names = sorted(arguments, key=lambda name: name in before and before[name] == arguments[name])[:LINE]
    parts = [f"{one_line(str(name), ITEM)}={_value(arguments[name])}" for name in names]
    return one_line(", ".join(parts), LINE)


def _value(value: Any) -> str:
    """Return an argument in a few words: of a long text its lines, of a long list its beginning and its length."""
    if isinstance(value, str) and "\n" in value.strip("\n"):
        return f"{value.strip(chr(10)).count(chr(10)) + 1:,} lines"
    if isinstance(value, str):
        return f'"{_cut(value, TEXT)}"'
    if isinstance(value, (list, tuple)) and len(value) > 4:
        return f"[{_cut(_item(value[0]), ITEM)}, {_cut(_item(value[1]), ITEM)}, … {len(value):,}]"
    if isinstance(value, Mapping) and len(value) > 4:
        return f"{{{', '.join(_cut(str(name), ITEM) for name in list(value)[:2])}, … {len(value):,}}}"
    return _cut(_item(value), TEXT)


def _item(value: Any) -> str:
    return as_json(value[: 2 * TEXT] if isinstance(value, str) else value).decode().replace(",", ", ")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def result_in_short(result: Any) -> str:
    """Return a result in one line: of records their number, of a text its first line, else its beginning."""
    if isinstance(result, str):
        return one_line(result.strip().partition("\n")[0], BRIEFLY)
    if (words := part_in_words(result)) is not None:
        return one_line(words, BRIEFLY)
    if isinstance(result, Mapping) and len(result) <= PARTS:
        result = {name: part_in_words(value) or value for name, value in result.items()}
    elif isinstance(result, (list, tuple)) and len(result) <= PARTS:
        result = [part_in_words(value) or value for value in result]
    if isinstance(result, Mapping):
        return one_line(in_short(result, {}), BRIEFLY)
    if isinstance(result, (list, tuple)) and len(result) > 1 and isinstance(result[0], Mapping):
        return f"{len(result):,} rows"
    return "" if result is None else _cut(_value(result), BRIEFLY)


def output(result: Any) -> Output:
    """Return a result for reading: short ones in a line, records as a table, all else as text."""
    if result is None or result == "":
        return Output("", "", "")
    result = without_data(result)
    text = result if isinstance(result, str) else on_a_line(result)
    if len(text) <= RESULT and "\n" not in text:
        return Output(text, "", text)
    if (columns := columns_of(result)) is not None:
        return Output("", f"{len(result):,} rows", _table(columns, result))
    if isinstance(result, str):
        lines = text.count("\n") + 1
        return Output("", f"{lines:,} lines" if lines > 1 else "output", text)
    return Output("", "output", for_reading(result))


def columns_of(result: Any) -> list[str] | None:
    """Return the names of the columns, if a result is a list of flat records with the same fields."""
    if not isinstance(result, (list, tuple)) or len(result) < 2 or not isinstance(result[0], Mapping):
        return None
    names = list(result[0])
    for record in result[:TABLE]:
        if not isinstance(record, Mapping) or list(record) != names:
            return None
        if any(isinstance(value, (Mapping, list, tuple)) or "\n" in str(value) for value in record.values()):
            return None
    return names if 0 < len(names) <= 12 else None


def _table(names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as lines of text with aligned columns."""
    shown = records[:TABLE]
    lines = [[_cut(str(name), ITEM) for name in names]]
    lines += [[_cut(on_a_line(v) if not isinstance(v, str) else v, ITEM) for v in record.values()] for record in shown]
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [any(isinstance(record[name], str) for record in shown) for name in names]
    text = [
        "  ".join(cell.ljust(size) if by else cell.rjust(size) for cell, size, by in zip(line, wide, left, strict=True))
        for line in lines
    ]
    more = [f"… {len(records) - TABLE:,} more rows"] if len(records) > TABLE else []
    return "\n".join(line.rstrip() for line in [*text, *more])
