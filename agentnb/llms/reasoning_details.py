"""The details of a reasoning as OpenRouter streams them: blocks in pieces, which it wants to see again whole.

A block is known by its type and its index. Its text comes in pieces, its signature at the end; a block that is
encrypted has an id of its own. What comes without an index is a block by itself.
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
        self._blocks: list[tuple[JsonObject, dict[str, list[str]]]] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def read(self, details: object) -> None:
        """Take in the details of one delta."""
        for fragment in details if isinstance(details, list) else ():
            if isinstance(fragment, Mapping):
                self._take(fragment)

    def whole(self) -> list[JsonObject]:
        """Give the blocks."""
        return [block | {name: "".join(texts) for name, texts in pieces.items()} for block, pieces in self._blocks]

    def _take(self, fragment: Mapping[str, Any]) -> None:
        block, pieces = next((known for known in reversed(self._blocks) if _is_of(fragment, known[0])), (None, None))
        if block is None or pieces is None:
            block, pieces = {}, {}
            self._blocks.append((block, pieces))
        for name, value in fragment.items():
            if name in _IN_PIECES and isinstance(value, str):
                pieces.setdefault(name, []).append(value)
            elif value is not None or name not in block:
                block[name] = value


def _is_of(fragment: Mapping[str, Any], block: Mapping[str, Any]) -> bool:
    if fragment.get("index") is None or any(fragment.get(name) != block.get(name) for name in ("type", "index")):
        return False
    return not fragment.get("id") or not block.get("id") or fragment["id"] == block["id"]
