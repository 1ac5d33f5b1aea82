"""Files of recordings: reading files that may be open as a store in this process, and writing files atomically.

In POSIX, a process that closes any descriptor of a file loses all its locks on that file, even if the descriptor was
opened only for reading (https://www.sqlite.org/howtocorrupt.html, 2.2). Without the lock of this process, another
process that closes the store would assume that it is the last user, and would delete the log to which this process
still writes. Files are therefore read through this module: while SQLite has a connection to a file, descriptors of this
file stay open until the connection has ended. SQLite handles its own descriptors in the same way.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from stat import S_IMODE
from typing import IO

from agentnb.core.errors import StorageError, UsageError

DATABASE = b"SQLite format 3\0"
SNAPSHOT = b'{"agentnb":"snapshot",'
EXPORT = b'{"agentnb":"export",'
"""The first bytes of each kind of file with recordings, so that an error can name the kind of a wrong file."""

Identity = tuple[int, int]

_guard = threading.RLock()  # reentrant: the garbage collector may end a connection while this thread holds the lock
_connections: Counter[Identity] = Counter()
_kept: dict[Identity, list[FileIO]] = {}


def file_identity(path: str | Path) -> Identity | None:
    """Return the device and inode of the file that has this path now; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_connected(file: Identity | None) -> bool:
    """Return True if a database connection of this process has this file open."""
    return file is not None and _connections[file] > 0


def connected(file: Identity) -> None:
    """Register a connection to this file: from now on, its descriptors stay open.

    Call it before the connection takes a lock.
    """
    with _guard:
        _connections[file] += 1


def disconnected(file: Identity) -> None:
    """Unregister a connection to this file that has ended. After the last one, close the kept descriptors."""
    with _guard:
        _connections[file] -= 1
        if not _connections[file]:
            del _connections[file]
            for kept in _kept.pop(file, []):
                kept.close()


@contextmanager
def opened_file(path: Path) -> Iterator[FileIO]:
    """Open a file for reading, from its beginning. Reuses a descriptor that had to stay open."""
    with _guard:
        kept = _kept.get(file_identity(path) or (0, 0))
        file = kept.pop() if kept else None
        if file is not None:
            file.seek(0)
    if file is None:
        file = FileIO(path)  # without a buffer, which would hold old content when the descriptor is used again
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
    """Return the content of a file."""
    with opened_file(path) as file:
        return file.readall()


@contextmanager
def written_atomically(path: Path, what: str) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing, which replaces `path` when the block ends without an error.

    Readers see the old or the new file, never a part of it, even if several processes write concurrently. what: the
    name of the content in error messages. A new file can be read by its owner alone, because recordings hold
    conversations; an existing one keeps its permissions. Raises StorageError if the file cannot be
    written, and UsageError if `path` is a database, because it may be a store. After any error the old file is
    unchanged.
    """
    if _is_database(path):
        raise UsageError(f"{path} is a database, perhaps a store. Choose another file for {what.lower()}.")
    partial = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(3).hex()}.part")
    try:
        try:
            with open(partial, "xb", opener=_private) as file:
                yield file
            with suppress(FileNotFoundError):
                partial.chmod(S_IMODE(path.stat().st_mode))
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"{what} cannot be written to {path}: {error.strerror}.") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def create_private(path: Path) -> None:
    """Create an empty file for SQLite that its owner alone can read, unless there is a file or it cannot be created.

    SQLite gives the files that it puts next to it the same permissions. The name `:memory:` stands for no file.
    """
    if str(path) == ":memory:":
        return
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def _is_database(path: Path) -> bool:
    try:
        with opened_file(path) as file:
            return file.read(len(DATABASE)) == DATABASE
    except OSError:
        return False
