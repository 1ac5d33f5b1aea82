"""The history as a model gets it: plain dicts, made once per message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from agentnb.core.messages import ROLES, Message, is_broken_off, plain_message, to_plain
from agentnb.core.views import COPY_LIMIT

_NOTHING: Mapping[int, dict[str, Any]] = {}


class PlainHistory:
    """Keeps the plain form of a growing list of messages; roles that no provider knows are left out, and answers that
    broke off with their results.

    A model gets a list each time, because that is what can be written as JSON and added to another one: a list of its
    own up to COPY_LIMIT messages, and the one that is kept here beyond it, which will grow.
    """

    def __init__(self, system_prompt: str | None = None) -> None:
        self.prefix = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._copies: dict[int, tuple[Message, dict[str, Any]]] = {}
        self._shown: list[Message] = []
        self._start_over()

    def _start_over(self) -> None:
        self._plain: list[dict[str, Any]] = list(self.prefix)
        self._length = len(self._plain)
        self._seen = 0
        self._left_out: list[int] = []
        self._skips = False
        """Whether the last answer broke off: its results follow it."""

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """The messages for a hook that prepares what is sent: copies, made once; the record stays as it is."""
        self._shown += (message.model_copy(deep=True) for message in messages[len(self._shown) :])
        return self._shown.copy()

    def prepared(self, messages: Sequence[Message | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages that a hook has put together, as plain dicts; made once for as long as the hook gives the same."""
        kept, self._copies = self._copies, {}
        plain = list(self.prefix)
        skips = False
        for given in messages:
            message = given if isinstance(given, Message) else plain_message(given)
            if message.get("role") != "tool":
                skips = is_broken_off(message)
            if skips:
                continue
            if isinstance(message, Message):
                _, copy = self._copies[id(message)] = kept.get(id(message)) or (message, to_plain(message))
            else:
                copy = to_plain(message)
            plain.append(copy)
        return plain

    def of(self, messages: Sequence[Message], amended: Mapping[int, dict[str, Any]] = _NOTHING) -> list[dict[str, Any]]:
        """The messages as plain dicts, with what is `amended` in place of those at its positions."""
        if len(self._plain) != self._length:  # a model has put something into what it was given
            self._start_over()
        plain = self._plain
        for message in messages[self._seen :]:
            role = message.role
            if role != "tool":
                self._skips = is_broken_off(message)
            if role in ROLES and not self._skips:
                plain.append(to_plain(message))  # a copy: a model may change it
            else:
                self._left_out.append(len(plain) - len(self.prefix) + len(self._left_out))
        self._seen, self._length = len(messages), len(plain)
        if amended:
            instead_of = plain.copy()
            for position, instead in amended.items():
                instead_of[len(self.prefix) + position - bisect_left(self._left_out, position)] = instead
            return instead_of
        return plain.copy() if self._length <= COPY_LIMIT else plain
