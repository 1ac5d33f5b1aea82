"""JSON that can be written, and that nobody could read again.

pydantic writes 250 levels and integers of any length; it reads 200 levels and 4300 digits, and Python no more digits
than that. A recording of what is between would be one that is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from agentnb.core.unicode import mended, mended_inside

_ABOVE = 20
"""More levels than anything in an event stands below the line of a file that the event is in."""
_FEW = 200 - _ABOVE
"""Levels that are not too many."""
_SHORT = 2 * _FEW
"""Bytes that cannot have more."""
BITS = 14_000
"""Of an integer that is not too long."""
_JSON_TEXT = (str, bytes, bytearray)


def readable(value: Any) -> Any:
    """The JSON data, its text mended where it is not Unicode. Raises ValueError or RecursionError as below."""
    try:
        line = to_json(value)
    except ValueError:  # as for text that is not Unicode
        value = mended_inside(value)
        line = to_json(value)
    check_readable(line)
    return value


def check_readable(line: bytes) -> None:
    """Raise ValueError for JSON that cannot be read, or not where it will stand."""
    if len(line) > _SHORT:
        from_json(_ABOVE * b"[" + line + _ABOVE * b"]")


def check_levels(line: bytes | str) -> None:
    """The same for a whole event, of whose values each is known to be readable, unless it has too many levels."""
    if len(line) > _SHORT:
        text = line.encode() if isinstance(line, str) else line
        if text.count(b"[") + text.count(b"{") > _FEW:
            from_json(text)


def parse_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """A call's arguments as an object, and the text itself where it is not one.

    A call without any has none, an empty text or null. A text of JSON that holds the text of an object is that object:
    some servers write a call's arguments as JSON twice.
    """
    try:
        if type(arguments) is dict:  # as most models give them: in half the time of what follows
            return readable(arguments.copy()), None
        parsed = arguments
        for _ in range(2):
            if not isinstance(parsed, _JSON_TEXT):
                break
            if isinstance(parsed, str) and parsed.rstrip().endswith('}""'):  # some write the text of nothing behind it
                parsed = parsed.rstrip().removesuffix('""')
            parsed = json.loads(parsed) if parsed.strip() else None
        return ({} if parsed is None else _object(parsed)), None
    except (ValueError, TypeError, RecursionError):
        return {}, mended(str(arguments))


def _object(parsed: Any) -> dict[str, Any]:
    """A JSON object that can be written and read again. Raises TypeError or ValueError where it is none."""
    if type(parsed) is not dict and not isinstance(parsed, Mapping):
        raise TypeError(f"not a {type(parsed).__name__}")
    given: dict[str, Any] = readable(dict(parsed))
    return given
