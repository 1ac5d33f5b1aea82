"""Reading files of which a store may be open in this process.

POSIX takes every lock that a process has on a file when the process closes any descriptor of it, also one that it had
opened only to read (https://www.sqlite.org/howtocorrupt.html, 2.2). SQLite, without its lock, would not be asked any
more: another process that is done with the store takes itself for the last one and deletes the log, into which this
one goes on to write. So a file is read through here, and a descriptor of one to which SQLite has a connection stays
open until that has ended, as SQLite does with its own.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

Identity = tuple[int, int]

_guard = threading.RLock()  # a connection that nobody has any more may end wherever memory is asked for
_connections: Counter[Identity] = Counter()
_kept: dict[Identity, list[FileIO]] = {}


def identity(path: str | Path) -> Identity | None:
    """Which file has this name now."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_connected(file: Identity | None) -> bool:
    """Whether a database connection of this process has this file open."""
    return file is not None and _connections[file] > 0


def connected(file: Identity) -> None:
    """Keep what is read of this file open from now on; to be said before its connection takes a lock."""
    with _guard:
        _connections[file] += 1


def disconnected(file: Identity) -> None:
    """Say that a connection to this file has ended."""
    with _guard:
        _connections[file] -= 1
        if not _connections[file]:
            del _connections[file]
            for kept in _kept.pop(file, []):
                kept.close()


@contextmanager
def opened(path: Path) -> Iterator[FileIO]:
    """A file, to be read from its beginning."""
    with _guard:
        kept = _kept.get(identity(path) or (0, 0))
        file = kept.pop() if kept else None
        if file is not None:
            file.seek(0)
    if file is None:
        file = FileIO(path)  # without a buffer: what that has would be of an earlier time when it is read again
    try:
        yield file
    finally:
        _close(file)


def _close(file: FileIO) -> None:
    with _guard:
        status = os.fstat(file.fileno())
        found = status.st_dev, status.st_ino
        if is_connected(found):
            _kept.setdefault(found, []).append(file)
        else:
            file.close()


def read_bytes(path: Path) -> bytes:
    """All that is in a file."""
    with opened(path) as file:
        return file.readall()
