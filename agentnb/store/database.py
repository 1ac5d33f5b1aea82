"""What a store asks of the database under it. SQLite is built in; PostgreSQL is there for a lab that shares one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol
from zlib import crc32

from pydantic_core import to_json

from agentnb.core.errors import StoreConflict

Rows = Sequence[int | bytes | bytearray]
"""Events as they are kept, one behind the other: the key of one, its JSON without run and position, the checksum of
both, the key of the next, and so on. Flat, because an event is recorded a hundred thousand times a second."""

COLUMNS = 3
"""Values of an event."""

SPAN = 1 << 32
"""A run's events have the keys number * SPAN + seq: one integer key, no second index to write."""


def keys(number: int) -> tuple[int, int]:
    """The first and the last key that an event of a run may have."""
    return number * SPAN, (number + 1) * SPAN - 1


def checksum(key: int, body: bytes) -> int:
    """Of the event and of where it stands."""
    return crc32(body, key & 0xFFFFFFFF)


def row_checksum(*values: object) -> int:
    """Of a row of another table than that of events."""
    return crc32(to_json(values))


def fits(written: int | None, computed: int) -> bool:
    """Whether a checksum is right. None is none: an older agentnb that still has the store open writes rows without."""
    return written is None or written == computed


def as_bytes(body: object) -> bytes:
    """A body as the database gives it; one that is none any more is empty."""
    return bytes(body) if isinstance(body, (bytes, memoryview)) else b""


def append_rest(database: Database, rows: Rows, refused: Exception) -> None:
    """Commit what of these events is still to be written, where the store has the first of them and so `refused` all.

    They were written, and then the connection was lost, or somebody was interrupted, before that was known. Raises
    StoreConflict where the store has others: another process has written one of them.
    """
    sql = "SELECT key, body, checksum FROM events WHERE key BETWEEN ? AND ? ORDER BY key"
    found = database.query(sql, rows[0], rows[-COLUMNS])
    there = [value for key, body, written in found for value in (key, as_bytes(body), written)]
    if not there or there != list(rows[: len(there)]):
        raise StoreConflict(
            f"Event {int(rows[0]) % SPAN} of this run is in {database.where} already: another process goes on with it,"
            " or another run of this one that was restored from it."
        ) from refused
    if rest := rows[len(there) :]:
        database.append(rest)


class Database(Protocol):
    """A connection. Safe to use from several threads; what fails raises StorageError and names the place.

    Statements have `?` for values, and are in the SQL that both databases share.
    """

    where: str
    """The file, or the address without a password."""

    @property
    def version(self) -> int:
        """The version of the store's tables; 0 where there are none."""

    def migrate(self, statements: Sequence[str], version: int, fill: Callable[[Database], None]) -> None:
        """Change the tables to this version, and then their rows, all of it or nothing."""

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read."""

    def check(self, table: str) -> None:
        """Raise RecordingCorrupt where the database itself finds a table damaged, so that rows of it may be missing.

        What is read of a table has checksums of its own; this is for where nothing shows that something is not there.
        """

    def write(self, sql: str, *values: object) -> None:
        """Write, and commit where that is not in a transaction."""

    def transaction(self, *, patient: bool = True) -> AbstractContextManager[None]:
        """What is written within is written whole or not at all; within another one, with that.

        patient: wait some seconds for another process that writes; otherwise StoreBusy is raised at once.
        """

    def append(self, rows: Rows) -> None:
        """Commit events. Raises StoreConflict where another process has written one of them first.

        It is called in the event loop of a run, and so it waits for nobody: StoreBusy where another process writes.
        """

    def confirm(self) -> None:
        """Raise StorageError where what was committed would not be found again."""

    def close(self) -> None:
        """Let go of it."""
