"""The history as a model gets it: plain dicts, made once per message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, overload

from agentnb.core.messages import Message

COPY_LIMIT = 256
"""Messages up to which a model gets a list of its own. Copying one costs less than 1 µs here and 50 µs at 20,000
messages, which would make every turn of a long run dearer than the one before; longer histories are given as a view."""

ROLES = frozenset({"system", "user", "assistant", "tool"})


class HistoryView(Sequence[dict[str, Any]]):
    """The first `length` messages of a history that goes on growing."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._length = len(messages)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self._messages[i] for i in range(*index.indices(self._length))]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"message {index} of {self._length}")
        return self._messages[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return islice(self._messages, self._length)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))


class PlainHistory:
    """Keeps the plain form of a growing list of messages; roles that no provider knows are left out."""

    def __init__(self, system_prompt: str | None = None) -> None:
        self.prefix = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._plain: list[dict[str, Any]] = list(self.prefix)
        self._seen = 0

    def of(self, messages: Sequence[Message]) -> Sequence[dict[str, Any]]:
        """The messages as plain dicts."""
        for position in range(self._seen, len(messages)):  # islice would walk over what has been seen
            message = messages[position]
            if message.role in ROLES:
                self._plain.append(message.plain)
        self._seen = len(messages)
        return list(self._plain) if len(self._plain) <= COPY_LIMIT else HistoryView(self._plain)
