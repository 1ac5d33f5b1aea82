"""JSON that can be written but not read back.

pydantic writes 250 levels and integers of any length; it reads 200 levels and 4300 digits, and Python no more digits
than that. A recording with values between these limits would be lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from agentnb.core.unicode import mended, mended_inside

_ABOVE = 20
"""The maximum number of levels around an event in a line of a file, rounded up."""
_FEW = 200 - _ABOVE
"""The number of levels that a value may always have."""
_SHORT = 2 * _FEW
"""The number of bytes below which JSON text cannot have too many levels."""
BITS = 14_000
"""The number of bits that an integer may always have."""
_JSON_TEXT = (str, bytes, bytearray)


def readable(value: Any) -> Any:
    """Return the JSON data, with text that is not Unicode mended.

    Raises ValueError or RecursionError if the data could not be read back.
    """
    try:
        line = to_json(value)
    except ValueError:  # for example text that is not Unicode
        value = mended_inside(value)
        line = to_json(value)
    check_readable(line)
    return value


def check_readable(line: bytes) -> None:
    """Raise ValueError if JSON text could not be read back at its later position, inside an event in a file."""
    if len(line) > _SHORT:
        from_json(_ABOVE * b"[" + line + _ABOVE * b"]")


def check_levels(line: bytes | str) -> None:
    """Raise ValueError if a whole event is nested too deeply to be read back. Its values have been checked before."""
    if len(line) > _SHORT:
        text = line.encode() if isinstance(line, str) else line
        if text.count(b"[") + text.count(b"{") > _FEW:
            from_json(text)


def parse_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    """Return a call's arguments as an object, and None, or an empty object and the text if it is not an object.

    A missing value, an empty text or null means no arguments. JSON text that contains the text of an object is parsed
    twice: some servers write a call's arguments as JSON twice.
    """
    try:
        if type(arguments) is dict:  # the usual case, in half the time of the general one
            return readable(arguments.copy()), None
        parsed = arguments
        for _ in range(2):
            if not isinstance(parsed, _JSON_TEXT):
                break
            if isinstance(parsed, str) and parsed.rstrip().endswith('}""'):  # some servers append an empty JSON text
                parsed = parsed.rstrip().removesuffix('""')
            parsed = json.loads(parsed) if parsed.strip() else None
        return ({} if parsed is None else _object(parsed)), None
    except (ValueError, TypeError, RecursionError):
        return {}, mended(str(arguments))


def _object(parsed: Any) -> dict[str, Any]:
    """Return a JSON object that can be written and read back. Raises TypeError or ValueError for any other value."""
    if type(parsed) is not dict and not isinstance(parsed, Mapping):
        raise TypeError(f"not a {type(parsed).__name__}")
    given: dict[str, Any] = readable(dict(parsed))
    return given
