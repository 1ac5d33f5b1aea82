"""JSON that can be written, and that nobody could read again.

pydantic writes 250 levels and integers of any length; it reads 200 levels and 4300 digits, and Python no more digits
than that. A recording of what is between would be one that is lost.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json

from agentnb.core.unicode import mended_inside

_ABOVE = 20
"""More levels than anything in an event stands below the line of a file that the event is in."""
_FEW = 200 - _ABOVE
"""Levels that are not too many."""
_SHORT = 2 * _FEW
"""Bytes that cannot have more."""
BITS = 14_000
"""Of an integer that is not too long."""


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


def check_levels(line: bytes) -> None:
    """The same for a whole event, of whose values each is known to be readable, unless it has too many levels."""
    if len(line) > _SHORT and line.count(b"[") + line.count(b"{") > _FEW:
        from_json(line)
