"""The history as a model gets it: plain dicts, made once per message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from agentnb.core.messages import Message
from agentnb.core.views import as_it_stands

_NOTHING: Mapping[int, dict[str, Any]] = {}
ROLES = frozenset({"system", "user", "assistant", "tool"})


class PlainHistory:
    """Keeps the plain form of a growing list of messages; roles that no provider knows are left out."""

    def __init__(self, system_prompt: str | None = None) -> None:
        self.prefix = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._plain: list[dict[str, Any]] = list(self.prefix)
        self._seen = 0
        self._left_out: list[int] = []

    def of(
        self, messages: Sequence[Message], amended: Mapping[int, dict[str, Any]] = _NOTHING
    ) -> Sequence[dict[str, Any]]:
        """The messages as plain dicts, with what is `amended` in place of those at its positions."""
        plain = self._plain
        for message in messages[self._seen :]:
            said = message.plain
            if said["role"] in ROLES:
                plain.append(said)
            else:
                self._left_out.append(len(plain) - len(self.prefix) + len(self._left_out))
        self._seen = len(messages)
        if amended:
            instead_of = plain.copy()
            for position, instead in amended.items():
                instead_of[len(self.prefix) + position - bisect_left(self._left_out, position)] = instead
            return instead_of
        return as_it_stands(plain)
