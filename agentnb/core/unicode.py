"""Text that is not Unicode, mended where it comes in.

A JSON escape may stand for half of a character (d83d, say), and a stream may be cut between the two halves. Python
keeps such a half as a lone surrogate, which UTF-8 cannot write: a recording of it could not be saved.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json


def mended(text: str) -> str:
    """`text` with halves of characters put together, and replaced by U+FFFD where the other half is missing."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def printable(text: str, *, but: str = "") -> str:
    """`text` for a terminal: what is not to be printed there, or not seen, is shown as an escape.

    but: characters that stay, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in but else repr(char)[1:-1] for char in text)


def mended_inside(value: Any) -> Any:
    """The same for all the text in JSON data; the value itself where there is nothing to mend."""
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
