"""Text that is not Unicode, mended when it is received.

A JSON escape may encode half of a character (d83d, say), and a stream may be cut between the two halves. Python keeps
this half as a lone surrogate, which UTF-8 cannot write: a recording of it could not be saved.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json


def mended(text: str) -> str:
    """Return `text` with halves of characters joined, and replaced by U+FFFD if the other half is missing."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def printable(text: str, *, but: str = "") -> str:
    """Return `text` for a terminal, with unprintable and invisible characters displayed as escapes.

    but: characters that stay, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in but else repr(char)[1:-1] for char in text)


def mended_inside(value: Any) -> Any:
    """Return JSON data with all its text mended; the value itself if there is nothing to mend."""
    try:
        to_json(value)
    except (ValueError, UnicodeError):
        return _mend(value)
    return value


def _mend(value: Any) -> Any:
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mend(item) for item in value]
    return mended(value) if isinstance(value, str) else value
