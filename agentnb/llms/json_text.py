"""Reading JSON that a stranger wrote, and writing it so that every stranger can read it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_MARK = re.compile(r'\\.?|["{}]', re.DOTALL)


class ObjectText:
    """The text of a JSON object that comes in pieces. Each piece is looked at once, and only when it is asked for."""

    def __init__(self) -> None:
        self.begun = False
        self.size = 0
        self._pieces: list[str] = []
        self._unseen: list[str] = []
        self._depth = self._looked_at = 0
        self.length = 0
        """Characters up to the end of the object, once that has come."""
        self._in_string = self._escaped = self._closed = False

    def add(self, piece: str) -> None:
        """Take the next piece."""
        self.begun = self.begun or bool(piece.strip())
        self._pieces.append(piece)
        self.size += len(piece)
        self._unseen.append(piece)

    def text(self) -> str:
        """Give what has come so far."""
        return "".join(self._pieces)

    def has_closed(self) -> bool:
        """Say whether the object's last brace has come."""
        for piece in self._unseen:
            begin = 1 if self._escaped else 0
            self._escaped = self._escaped and not piece
            for found in _MARK.finditer(piece, begin):
                mark = found[0]
                if mark.startswith("\\"):
                    self._escaped = len(mark) == 1  # the next piece begins with what it escapes
                elif mark == '"':
                    self._in_string = not self._in_string
                elif not self._in_string:
                    self._depth += 1 if mark == "{" else -1
                    if self._depth == 0 and not self._closed:
                        self._closed, self.length = True, self._looked_at + found.end()
            self._looked_at += len(piece)
        self._unseen.clear()
        return self._closed


def parse_object(text: str) -> dict[str, Any] | None:
    """Read a JSON object; None when the text is something else.

    A text in it may begin or end with half a character, whose other half the next event has: `Reply` joins them.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def strict_json(value: Any, separators: tuple[str, str] | None = None) -> str:
    """Give the value as JSON; a number that JSON has no word for, which some models write, as text: "NaN"."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
