"""The log beside a SQLite file, where commits are until SQLite moves them into the file.

SQLite goes by a log as far as its checksums fit, takes what follows for what a crash cut off, and deletes it all when
the file is closed. After a crash that is right. Where a byte was changed it is not: every commit behind that byte would
be gone without a word. So the log is looked at before SQLite opens the file. The format is told in
https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct(">8I")
"""How a log begins: a magic number, version, page size, how often it was begun anew, two salts, two checksums."""
FRAME = struct.Struct(">6I")
"""What stands before each page: its number, the file's size where a commit ends here or else 0, salts, checksums."""

_MAGIC = 0x377F0682  # of checksums over little-endian words; with the last bit set, over big-endian ones
_WORD = 0xFFFFFFFF


class Torn(NamedTuple):
    """A log that ends in a commit which is not whole, at this byte.

    A process that is killed while it writes leaves one; nobody was told then that the commit was done.
    """

    at: int


class Lost(NamedTuple):
    """A log with commits behind a damaged byte, which is in the page that begins at this one."""

    at: int


_Pair = tuple[int, int]


class _Frame(NamedTuple):
    at: int
    number: int
    is_commit: bool
    salts: _Pair
    checksums: _Pair
    head: memoryview
    """What of its head the checksums are of."""
    page: memoryview


def log_of(path: Path) -> Path:
    """Where SQLite writes first; beside the file itself, where `path` is a link to it."""
    path = path.resolve()
    return path.with_name(path.name + "-wal")


def pages(logged: bytes, size: int) -> Iterator[tuple[int, bytes, bool]]:
    """Each page of a log, the oldest first: its number, what is in it, and whether its checksums say that both are so.

    They go on from those of the page before it, so that behind a damaged checksum they say nothing good of a good one.
    """
    if len(logged) < HEAD.size:
        return
    magic, *_, first, second = HEAD.unpack_from(logged)
    before, at = (first, second), HEAD.size
    for frame in _frames(logged, size):
        sums = _continued(frame, before, _order(magic))
        yield frame.number, bytes(frame.page), sums == frame.checksums
        before, at = frame.checksums, frame.at + FRAME.size + size
    if len(logged) > at + FRAME.size:
        yield int.from_bytes(logged[at : at + 4], "big"), logged[at + FRAME.size :], False


def fault(path: Path) -> Torn | Lost | None:
    """What is wrong with the log of the database at `path`, where there is one; looks without changing anything."""
    log = log_of(path)
    while True:
        logged = _read(log)
        found = _fault(logged)
        if found is None or _read(log) == logged:  # otherwise another process writes to it while it is looked at
            return found


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except FileNotFoundError:
        return b""


def _fault(logged: bytes) -> Torn | Lost | None:
    if len(logged) < HEAD.size + FRAME.size:
        return None
    magic, _, size, _, *salts, first, second = HEAD.unpack_from(logged)
    order = _order(magic)
    sums = _checksums(logged[: HEAD.size - 8], (0, 0), order)
    if magic & ~1 != _MAGIC or sums != (first, second):
        return Lost(0) if any(logged) else None
    frames = _frames(logged, size)
    for frame in frames:
        sums = _continued(frame, sums, order)
        fits, is_newest = sums == frame.checksums and frame.number != 0, frame.salts == tuple(salts)
        if fits and is_newest:
            continue
        # A commit behind it was written later, so that this was whole then; without one, it may have been taken back.
        if (fits and frame.is_commit) or _has_commit(frames, frame, sums, order, tuple(salts)):
            return Lost(frame.at)
        return Torn(frame.at) if is_newest and frame.is_commit else None
    rest = HEAD.size + (len(logged) - HEAD.size) // (FRAME.size + size) * (FRAME.size + size)
    return Torn(rest) if logged[rest + 8 : rest + 16] == logged[16:24] else None  # the salts of a piece of a frame


def _has_commit(frames: Iterator[_Frame], damaged: _Frame, sums: _Pair, order: str, salts: _Pair) -> bool:
    """Whether one of these frames, behind a damaged one, ends a commit that was whole.

    That goes on from the frame before it; what is left of a commit that a process was killed in, and that was written
    over since, does not.
    """
    before = {damaged.checksums, sums}
    for frame in frames:
        following = (_continued(frame, sums, order) for sums in before)
        if frame.is_commit and frame.salts == salts and frame.checksums in following:
            return True
        before = {frame.checksums}
    return False


def _frames(logged: bytes, size: int) -> Iterator[_Frame]:
    """The whole frames of a log."""
    view = memoryview(logged)
    for at in range(HEAD.size, len(logged) - FRAME.size - size + 1, FRAME.size + size):
        number, after, one, two, first, second = FRAME.unpack_from(logged, at)
        page = view[at + FRAME.size : at + FRAME.size + size]
        yield _Frame(at, number, after != 0, (one, two), (first, second), view[at : at + 8], page)


def _order(magic: int) -> str:
    """The order of bytes in the words that the checksums are of."""
    return ">" if magic & 1 else "<"


def _continued(frame: _Frame, sums: _Pair, order: str) -> _Pair:
    """The checksums of all up to this frame."""
    sums = _checksums(frame.head, sums, order)
    return _checksums(frame.page, sums, order)


def _checksums(data: bytes | memoryview, sums: _Pair, order: str) -> _Pair:
    """SQLite's two checksums over words in this byte order, continued."""
    first, second = sums
    for one, two in struct.iter_unpack(order + "II", data):
        first = (first + one + second) & _WORD
        second = (second + two + first) & _WORD
    return first, second
