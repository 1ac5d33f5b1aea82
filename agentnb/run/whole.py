"""Files that are there whole or not at all."""

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
"""How the files begin that recordings are kept in: whoever is given one of another kind can say which it is."""


@contextmanager
def written_whole(path: Path, what: str) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when all is written.

    Whoever reads meanwhile sees the old file or the new one, never half of one, also where several write at once.
    Raises StorageError where it cannot be written, UsageError where that would be the end of a store; what was there
    stays.
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
