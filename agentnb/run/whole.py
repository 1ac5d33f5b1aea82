"""Atomic writes: a file is replaced as a whole, or stays as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agentnb.core.errors import StorageError, UsageError
from agentnb.run.reading import opened

DATABASE = b"SQLite format 3\0"
SNAPSHOT = b'{"agentnb":"snapshot",'
EXPORT = b'{"agentnb":"export",'
"""The first bytes of each kind of file with recordings, so that an error can name the kind of a wrong file."""


@contextmanager
def written_whole(path: Path, what: str) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing, which replaces `path` when the block ends without an error.

    Readers see the old or the new file, never a part of it, even if several processes write concurrently. what: the
    content, for errors. Raises StorageError if the file cannot be written, and UsageError if `path` is a database,
    perhaps a store. After any error the old file is unchanged.
    """
    if _is_database(path):
        raise UsageError(f"{path} is a database, perhaps a store: {what.lower()} needs a file of its own.")
    partial = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(3).hex()}.part")
    try:
        try:
            with partial.open("xb") as file:
                yield file
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"{what} cannot be written to {path}: {error.strerror}.") from error


def _is_database(path: Path) -> bool:
    try:
        with opened(path) as file:
            return file.read(len(DATABASE)) == DATABASE
    except OSError:
        return False
