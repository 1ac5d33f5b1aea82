"""The file in which commits are on disk before SQLite has them: those that a run makes faster than SQLite takes them.

It lies beside the store, is only ever appended to, and so has one order for every process. Its writer appends a commit
by one write, and looks whether it lies where it should. Anybody else who needs what is in it appends a seal first: what
stands before the seal counts, and a commit behind it does not, as its writer sees.

A record is a line with three numbers (the position of its first event, the bytes that follow, their checksum), and then
the bodies of its events, a line each. The first record says whose the others are: the run's number, and its id.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from agentnb.run.reading import Identity, identity

_SEAL = b"sealed\n"

_forks = 0
"""How often this process was forked from another on its way here: a fork shares its parent's open files."""


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def redo_log_of(path: Path) -> Path:
    """Where the commits of a store in this file are that SQLite does not have yet; beside the file itself."""
    path = path.resolve()
    return path.with_name(path.name + "-redo")


class RedoLog:
    """A new one, for commits of this run. Raises OSError where it cannot be made, or is there.

    store: whose file it lies beside; the same people may read and write it.
    """

    def __init__(self, path: Path, number: int, run_id: str, store: os.stat_result) -> None:
        self._path = path
        mode = store.st_mode & 0o777  # from the first moment: who could open it once may read it for ever
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, mode)
        self.close = weakref.finalize(self, os.close, self._file)  # nobody need close a store
        """Let go of it."""
        self.close.atexit = False  # at the end of the process a run may still write, and its number be another file's
        if os.geteuid() == 0:  # as SQLite does with its log: root's would be closed to whose store it is
            os.fchown(self._file, store.st_uid, store.st_gid)
        os.fchmod(self._file, mode)  # what the umask has taken from it
        self._identity: Identity | None = identity(path)
        self._forks = _forks
        self._end = 0
        self.add(number, [run_id.encode()])

    def add(self, first: int, bodies: Sequence[bytes]) -> bool:
        """Have a commit on disk, of events from position `first` on; False where it does not count."""
        if self._forks != _forks:
            return False
        body = b"\n".join(bodies)
        data = b"%d %d %d\n%b\n" % (first, len(body), crc32(body, first), body)
        end = self._end + len(data)
        try:
            os.write(self._file, data)
            if os.lseek(self._file, 0, os.SEEK_CUR) != end:
                return False
        except OSError:  # the disk is full; SQLite says what can be done about that
            return False
        self._end = end  # not before: of what was not whole, or interrupted, nothing that follows counts either
        return True

    def is_there(self) -> bool:
        """Whether it is still the file of its name, and this process its writer."""
        return self._forks == _forks and identity(self._path) == self._identity


class Found(NamedTuple):
    """What counts in a redo log: the run's number in the store, its id, and its events by their positions.

    The id is empty where the beginning, which says it, cannot be read. torn: it ends in a record that is not whole, as
    where the disk was full. lost: the byte where something is wrong with a whole record behind it.
    """

    number: int
    run_id: str
    events: dict[int, bytes]
    torn: bool = False
    lost: int | None = None


def sealed(path: Path) -> Found | None:
    """What counts in a redo log, to which its writer can add no more from here on; None where nothing does.

    Raises OSError.
    """
    file = os.open(path, os.O_APPEND | os.O_WRONLY)
    try:
        os.write(file, _SEAL)
    finally:
        os.close(file)
    return read(path)


def read(path: Path) -> Found | None:
    """What counts in a redo log as it is now. Raises OSError."""
    while True:
        data = path.read_bytes()
        found = _found(data)
        if found is None or not (found.torn or found.lost is not None) or path.read_bytes() == data:
            return found  # otherwise its writer writes to it while it is looked at


def _found(data: bytes) -> Found | None:
    records, wrong = [], None
    for at, record in _lines(data):
        if record is not None:
            records.append((at, *record))
        elif wrong is None:
            wrong = at
    if not records:  # None: whoever made it was killed before there was anything to add
        return None if wrong is None else Found(0, "", {}, torn=True)
    lost = wrong if wrong is not None and records[-1][0] > wrong else None
    _, number, run_id = records[0] if records[0][0] == 0 else (0, 0, b"")
    events: dict[int, bytes] = {}
    for _, first, body in records[1:] if run_id else records:
        events.update(enumerate(body.split(b"\n"), first))
    return Found(number, run_id.decode(), events, wrong is not None and lost is None, lost)


def _lines(data: bytes) -> Iterator[tuple[int, tuple[int, bytes] | None]]:
    """Where each record begins, and what it says; None for a line that is none. Up to a seal, or to the end."""
    at = 0
    while at < len(data):
        end = data.find(b"\n", at) + 1 or len(data)
        line = data[at:end]
        if line == _SEAL:
            return
        record = _record(data, line, end)
        yield at, record
        at = end if record is None else end + len(record[1]) + 1


def _record(data: bytes, line: bytes, end: int) -> tuple[int, bytes] | None:
    try:
        first, length, checksum = map(int, line.split())
    except ValueError:
        return None
    body = data[end : end + length]
    return (first, body) if end + length < len(data) and crc32(body, first) == checksum else None
