"""What is in the pages of a SQLite file, read past SQLite, for a store that is damaged.

SQLite gives up a whole table where a page on the way to it makes no sense. Here nothing depends on anything else: an
event is found by how its body begins, wherever it lies, in the file or in the log beside it, and is believed because
its checksum fits. (Before version 2 there were none: then it must be an event.) Events are never changed, so that an
old copy of a page is as good as the newest. Of the rows of the other tables, which have checksums since version 3, the
newest copy that fits is taken, and what does not look like one is none. The format is told in
https://www.sqlite.org/fileformat2.html. (SQLite's own `.recover` is in its shell and in C only: neither Python's module
nor a package that pip can bring has it.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import ValidationError

from agentnb.core.events import decode_event
from agentnb.run.reading import read_bytes
from agentnb.store.database import checksum, row_checksum
from agentnb.store.write_ahead_log import FRAME, HEAD, log_of, pages

BODY = b'{"type":"'
_SIZES = (8192, 4096, 1024, 2048, 16384, 32768, 65536, 512)
"""What a page may have; the first one, which says it, may be damaged, so that it is told by where pages begin."""
_LEAF, _TREE_PAGES = 13, (2, 5, 10, 13)
_WIDEST = 40
"""Bytes of the head of a record: a store's has at most six values."""
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_YEAR_2020, _YEAR_2200 = 1.57e9, 7.3e9

Row = tuple[int, list[Any]]


@dataclass
class Rows:
    """What was found: events as key -> body, the rest by each table's own key."""

    events: dict[int, bytes] = field(default_factory=dict)
    runs: dict[int, list[Any]] = field(default_factory=dict)
    snapshots: dict[int, list[Any]] = field(default_factory=dict)
    tags: set[tuple[int, str]] = field(default_factory=set)
    sound_runs: set[int] = field(default_factory=set)
    """Those whose checksum fits."""
    sound_snapshots: set[int] = field(default_factory=set)
    changed_runs: set[int] = field(default_factory=set)
    """Those of which a copy was found whose checksum does not fit."""


def rows_in(path: Path) -> Rows:
    """Every row that can be read in a SQLite file and in its log."""
    whole = read_bytes(path)
    log = log_of(path)
    logged = log.read_bytes() if log.exists() else b""
    return _Pages(whole, logged, _page_size(whole, logged)).rows()


def _page_size(whole: bytes, logged: bytes) -> int:
    """What the first page says, if the file is as long as it says; or else the size at which most pages begin so."""
    told = int.from_bytes(whole[16:18], "big")
    if told in _SIZES and told * int.from_bytes(whole[28:32], "big") == len(whole) > 0:
        return told
    return max(_SIZES, key=lambda size: _begin(whole, 0, size) + _begin(logged, FRAME.size, size))


def _begin(data: bytes, head: int, size: int) -> int:
    """How many pages begin where they would at this size, less those places where none can."""
    places = range(HEAD.size + head if head else 0, len(data), size + head)
    return sum(1 if data[place] in _TREE_PAGES else -(data[place] != 0) for place in places)


class _Pages:
    """The pages of a file, and those of its log, which are newer."""

    def __init__(self, whole: bytes, logged: bytes, size: int) -> None:
        self.usable = size  # a store's pages keep nothing back
        self.pages = [whole[start : start + size] for start in range(0, len(whole), size)]
        self.newest = dict(enumerate(self.pages, 1))
        for number, page, fits in pages(logged, size):
            self.pages.append(page)
            if fits or number not in self.newest:  # a number that is damaged may be that of another page
                self.newest[number] = page

    def rows(self) -> Rows:
        """All of them; of the newest copy where there are several."""
        found = Rows()
        for page in self.pages:
            self._find_events(page, found)
        for page in [*self.pages, *self.newest.values()]:
            for number, values in self._records(page):
                _take(found, number, values)
        return found

    # -- events ----------------------------------------------------------------------------------------------------

    def _find_events(self, page: bytes, found: Rows) -> None:
        at = page.find(BODY)
        while at >= 0:
            with suppress(IndexError):
                for key, body in self._events_at(page, at):
                    found.events.setdefault(key, body)
            at = page.find(BODY, at + 1)

    def _events_at(self, page: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """The event whose body begins here, if one does: what stands before it is tried at each length it may have."""
        for head in range(at - 3, max(at - 8, 0), -1):
            if page[head] != at - head or page[head + 1] != 0:  # the length of the record's head; no value for the key
                continue
            types = list(_varints(page, head + 1, at))
            if len(types) not in (2, 3) or types[1] < 12 or types[1] % 2:
                continue
            length = (types[1] - 12) // 2
            for key, payload in _numbers_before(page, head):
                record = self._payload(page, head, payload)
                body = record[at - head : at - head + length]
                if len(body) == length and _is_event(key, body, types[2:], record[at - head + length :]):
                    yield key, body
                    return

    def _payload(self, page: bytes, start: int, length: int) -> bytes:
        """A record, with what of it did not fit into its page."""
        most, least = self.usable - 35, (self.usable - 12) * 32 // 255 - 23
        if length <= most:
            return page[start : start + length]
        here = least + (length - least) % (self.usable - 4)
        if here > most:
            here = least
        parts = [page[start : start + here]]
        number = int.from_bytes(page[start + here : start + here + 4], "big")
        while (missing := length - sum(map(len, parts))) > 0 and number in self.newest:
            if len(parts) > len(self.pages):  # they lead in a circle
                break
            further = self.newest[number]
            parts.append(further[4 : 4 + min(missing, self.usable - 4)])
            number = int.from_bytes(further[:4], "big")
        return b"".join(parts)

    # -- other tables ----------------------------------------------------------------------------------------------

    def _records(self, page: bytes) -> Iterator[Row]:
        """The rows of a table's page; of one that makes no sense, whatever in it looks like one."""
        begins = 100 if page.startswith(b"SQLite format 3\0") else 0
        if len(page) < begins + 8 or BODY in page:
            return
        kind, count = page[begins], int.from_bytes(page[begins + 3 : begins + 5], "big")
        if kind == _LEAF and begins + 8 + 2 * count <= len(page):
            pointers = struct.unpack_from(f">{count}H", page, begins + 8)
            rows = [self._record(page, pointer) for pointer in pointers]
            if all(row is not None for row in rows):
                yield from (row for row in rows if row is not None)
                return
        elif kind in _TREE_PAGES[:3] or (kind != _LEAF and int.from_bytes(page[:4], "big") <= len(self.pages)):
            return  # the way to other pages, or what did not fit into one
        for start in range(8, len(page) - 8):
            row = self._record(page, start)
            if row is not None and _shape(row[1]):
                yield row

    def _record(self, page: bytes, start: int) -> Row | None:
        try:
            length, at = _varint(page, start)
            number, at = _varint(page, at)
            if page[at] > _WIDEST:
                return None
            record = self._payload(page, at, length)
            head, first = _varint(record, 0)
            values, at = [], head
            for type in _varints(record, first, head):
                value, at = _value(record, at, type)
                values.append(value)
        except (IndexError, ValueError, struct.error):
            return None
        return (number, values) if len(record) == length == at else None


def _take(found: Rows, number: int, values: list[Any]) -> None:
    shape = _shape(values)
    if shape == "tag":
        found.tags.add((values[0], values[1]))
    elif shape is not None:
        fits = _fits(number, values)
        rows, sound = (found.runs, found.sound_runs) if shape == "run" else (found.snapshots, found.sound_snapshots)
        if fits or number not in sound:
            rows[number] = values[1:5]
        if fits:
            sound.add(number)
        elif shape == "run" and len(values) > 5:
            found.changed_runs.add(number)


def _fits(number: int, values: list[Any]) -> bool:
    """Whether the row of a run or of a snapshot has the checksum that it says."""
    with suppress(ValueError):  # text that is none
        return values[5:] in ([row_checksum(number, *values[1:5])], [row_checksum(*values[1:5])])
    return False


def _shape(values: list[Any]) -> str | None:
    """Which table a row with these values is of; the last of them is its checksum, from version 3 on."""
    if len(values) in (2, 3) and type(values[0]) is int and isinstance(values[1], str):
        return "tag"
    if len(values) not in (5, 6) or values[0] is not None or not isinstance(values[4], float):
        return None
    if not isinstance(values[1], str) or not _YEAR_2020 < values[4] < _YEAR_2200:
        return None
    if isinstance(values[2], (str, type(None))) and isinstance(values[3], str):
        return "run"
    return "snapshot" if type(values[2]) is type(values[3]) is int else None


# -- SQLite's encoding -----------------------------------------------------------------------------------------------


def _is_event(key: int, body: bytes, types: list[int], rest: bytes) -> bool:
    if types and types[0] != 0:
        with suppress(ValueError, struct.error):
            return bool(_value(rest, 0, types[0])[0] == checksum(key, body))
        return False
    try:
        decode_event(body)
    except ValidationError:
        return False
    return True


def _numbers_before(page: bytes, end: int) -> Iterator[tuple[int, int]]:
    """The pairs of a row's number and its record's length that may stand right before here."""
    for middle in range(end - 1, max(end - 10, 0), -1):
        number, after = _varint(page, middle)
        if after != end:
            continue
        for start in range(middle - 1, max(middle - 6, -1), -1):
            length, after = _varint(page, start)
            if after == middle:
                yield number, length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for length in range(8):
        byte = data[at + length]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + length + 1
    return value << 8 | data[at + 8], at + 9


def _varints(data: bytes, at: int, end: int) -> Iterator[int]:
    while at < end:
        value, at = _varint(data, at)
        yield value


def _value(data: bytes, at: int, type: int) -> tuple[Any, int]:
    if type == 0:
        return None, at
    if type in (8, 9):
        return type - 8, at
    if type == 7:
        return struct.unpack_from(">d", data, at)[0], at + 8
    if type in _INTEGERS:
        end = at + _INTEGERS[type]
        return int.from_bytes(data[at:end], "big", signed=True), end
    end = at + (type - 12 - type % 2) // 2
    value = data[at:end]
    return (value.decode() if type % 2 else value), end
