"""The present items of a growing list: a copy of a short list, and a view of a long one, which copies nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, overload

T = TypeVar("T")

COPY_LIMIT = 256
"""The number of messages up to which a model gets a copy of the list.

Copying one costs less than 1 µs at this length and 50 µs at 20,000 messages, which would make every turn of a long run
more expensive than the one before.
"""


def current_items(items: list[T]) -> Sequence[T]:
    """Return the present items of a growing list: as a new list if they are few, otherwise as a view."""
    return items.copy() if len(items) <= COPY_LIMIT else Prefix(items)


class Prefix(Sequence[T]):
    """The items that were in a list when this was created. The list may grow, and must not change otherwise.

    It is equal to a list of the same items, and has the interface of a sequence.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T] | Continued[T]) -> None:
        self._items = items
        self._length = len(items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._items[start:stop:step] if step > 0 else [self._items[i] for i in range(start, stop, step)]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(f"{index} of {self._length}")
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return repr(list(self))


class Continued(Sequence[T]):
    """A growing list that begins with items of another sequence, each changed in the same way when it is read.

    The earlier items are not copied before all of them are read. It is equal to a list of the same items.
    """

    __slots__ = ("_change", "_changed", "_earlier", "_items", "_length")

    def __init__(self, earlier: Sequence[T], length: int, change: Callable[[int, T], T], items: Iterable[T]) -> None:
        """Begin with the first `length` items of `earlier`, as `change(index, item)` returns them, then `items`."""
        # If the earlier items are a list of this kind too, read them now: otherwise each read would pass all lists.
        is_nested = isinstance(earlier, Prefix) and isinstance(earlier._items, Continued)
        self._earlier = earlier[:length] if is_nested else earlier
        self._length = length
        self._change = change
        self._changed: list[T] | None = None
        self._items = list(items)

    def append(self, item: T) -> None:
        """Add an item at the end."""
        self._items.append(item)

    def copy(self) -> Continued[T]:
        """Return a list with the same items, which grows independently."""
        return Continued(self._earlier, self._length, self._change, self._items)

    def _read(self) -> list[T]:
        """Return the earlier items, changed. The first read changes them, and later reads return the same items."""
        if self._changed is None:
            earlier = self._earlier[: self._length]
            self._changed = [self._change(index, item) for index, item in enumerate(earlier)]
        return self._changed

    def __len__(self) -> int:
        return self._length + len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            indices = range(*index.indices(len(self)))
            if len(indices) <= COPY_LIMIT:
                return [self[i] for i in indices]
            return (self._read() + self._items)[index]
        if index < 0:
            index += len(self)
        if index >= self._length:
            return self._items[index - self._length]
        if index < 0:
            raise IndexError(f"{index - len(self)} of {len(self)}")
        return self._changed[index] if self._changed is not None else self._change(index, self._earlier[index])

    def __iter__(self) -> Iterator[T]:
        yield from self._read()
        yield from self._items

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return repr(list(self))
