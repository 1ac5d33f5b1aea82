"""The details of a reasoning as OpenRouter streams them: blocks in pieces, which it wants to see again whole.

A block is known by its type and its index. Its text comes in pieces, its signature at the end; a block that is
encrypted has an id of its own. Where there is no index, the signature ends a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentnb.llms.protocol import JsonObject

_IN_PIECES = ("text", "summary", "data")


class ReasoningDetails:
    """Puts the blocks together."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._at: dict[tuple[object, object], _Block] = {}

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def read(self, details: object) -> None:
        """Take in the details of one delta."""
        for fragment in details if isinstance(details, list) else ():
            if isinstance(fragment, Mapping):
                self._take(fragment)

    def whole(self) -> list[JsonObject]:
        """Give the blocks."""
        return [block.fields | {name: "".join(texts) for name, texts in block.pieces.items()} for block in self._blocks]

    def _take(self, fragment: Mapping[str, Any]) -> None:
        at = (str(fragment.get("type")), str(fragment.get("index")))
        block = self._at.get(at)
        if block is None or not block.goes_on_with(fragment):
            block = self._at[at] = _Block()
            self._blocks.append(block)
        for name, value in fragment.items():
            if name in _IN_PIECES and isinstance(value, str):
                block.pieces.setdefault(name, []).append(value)
            elif value is not None or name not in block.fields:
                block.fields[name] = value


class _Block:
    def __init__(self) -> None:
        self.fields: JsonObject = {}
        self.pieces: dict[str, list[str]] = {}

    def goes_on_with(self, fragment: Mapping[str, Any]) -> bool:
        known, theirs = self.fields.get("id"), fragment.get("id")
        if known and theirs and known != theirs:
            return False
        return fragment.get("index") is not None or not self.fields.get("signature")
