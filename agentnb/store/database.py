"""The database under a store: its tables, its rows, and the interface that a store needs.

There are two kinds: a SQLite file (`sqlite.py`), and PostgreSQL for a lab that shares a store (`postgres.py`). The SQL
is the same for both, except for the types of the columns and for what a connection needs. Here is what they share.

Each row has a checksum of its values. So a changed byte is found in either database, and the error names the row. A
missing event is found because the events of a run are numbered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar
from zlib import crc32

from pydantic_core import to_json

from agentnb.core.errors import StoreBusy, StoreConflict, VersionMismatch

T = TypeVar("T")

# -- tables ----------------------------------------------------------------------------------------------------------

VERSION = 1
"""The version of the tables below. This agentnb reads and writes no other."""

TABLES: Mapping[str, str] = {
    "runs": (
        "CREATE TABLE runs (number {identity}, id TEXT NOT NULL UNIQUE, name TEXT, loop TEXT NOT NULL,"
        " created {real} NOT NULL, origin {integer}, shared {integer} NOT NULL, checksum {integer} NOT NULL)"
    ),
    "events": "CREATE TABLE events (key {key}, body {bytes} NOT NULL, checksum {integer} NOT NULL)",
    "snapshots": (
        "CREATE TABLE snapshots (number {identity}, name TEXT NOT NULL, run {integer} NOT NULL,"
        " position {integer} NOT NULL, created {real} NOT NULL, checksum {integer} NOT NULL)"
    ),
    "tags": (
        "CREATE TABLE tags (run {integer} NOT NULL, tag TEXT NOT NULL, checksum {integer} NOT NULL,"
        " PRIMARY KEY (run, tag))"
    ),
}
"""The statements that create the tables. Each database fills in its own types.

`origin` and `shared` belong to a fork: its events 1 to `shared` - 1 are those of the run with the number `origin`. They
are stored once. Event 0, which says what is different in the fork, is stored for each run.
"""
INDEX = "CREATE INDEX snapshots_by_name ON snapshots (name)"


def check_version(version: int, where: str) -> None:
    """Raise VersionMismatch if a store has tables of another version; 0 stands for a database without tables."""
    if version not in (0, VERSION):
        raise version_mismatch(where, f"version {version}")


def version_mismatch(where: str, version: str) -> VersionMismatch:
    """Return the error for a store of another version, with what to do."""
    return VersionMismatch(
        f"{where} is a store of {version}; this agentnb reads stores of version {VERSION} only. Nothing was changed."
        " Open it with the agentnb that wrote it, call export('runs.jsonl') there, and import_('runs.jsonl') on a new"
        " store here."
    )


# -- rows ------------------------------------------------------------------------------------------------------------

Rows = Sequence[int | bytes | bytearray]
"""Rows of the table of events, one after the other: key, body and checksum of the first, then of the second, and so on.
It is flat because the driver of SQLite takes the values of a statement in one sequence."""

COLUMNS = 3
"""The number of values in a row of the table of events."""

SPAN = 1 << 32
"""An event has the key `number * SPAN + seq`, with the number of its run: one integer key, and no second index."""


def keys(number: int) -> tuple[int, int]:
    """Return the first and the last key that an event of a run can have."""
    return number * SPAN, (number + 1) * SPAN - 1


def checksum(key: int, body: bytes | bytearray) -> int:
    """Return the checksum of an event's body and key. Both halves of the key are part of it."""
    return crc32(body, (key ^ key >> 32) & 0xFFFFFFFF)


def row_checksum(*values: object) -> int:
    """Return the checksum of a row of another table."""
    return crc32(to_json(values))


def as_bytes(body: object) -> bytes:
    """Return a body as bytes: PostgreSQL returns memoryviews, and a damaged file values of any type."""
    return bytes(body) if isinstance(body, (bytes, memoryview)) else b""


# -- the interface of a database ------------------------------------------------------------------------------------


class Database(Protocol):
    """A connection to a database. Safe to use from several threads. Each failure raises StorageError with the place.

    In statements, `?` stands for a value.
    """

    where: str
    """The file's path, or the address without its password."""

    body_in_small_letters: str
    """The SQL of an event's body as text, with its ASCII letters as small letters."""

    @property
    def version(self) -> int:
        """The version of the store's tables; 0 if there are none yet."""

    def create(self) -> None:
        """Create the tables, all or none, unless another process has created them."""

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows that a statement reads."""

    def check(self, table: str) -> None:
        """Raise RecordingCorrupt if the database itself finds a table damaged, so that rows may be missing.

        A checksum shows damage only in a row that is read. This check also shows that rows can no longer be found.
        """

    def write(self, sql: str, *values: object) -> None:
        """Execute a statement, and commit unless it is in a transaction."""

    def transaction(self, *, patient: bool = True) -> AbstractContextManager[None]:
        """Commit what is written inside, or nothing if it raises. A nested transaction belongs to the outer one.

        patient: wait some seconds for another process that writes. Otherwise StoreBusy is raised immediately.
        """

    def append(self, rows: Rows) -> None:
        """Commit events. Raises StoreConflict if another process has written one of them before.

        It is called in the event loop of a run, so it does not wait: it raises StoreBusy if another process writes.
        """

    def confirm(self) -> None:
        """Raise StorageError if committed events can no longer be found, for example because the file was moved."""

    def close(self) -> None:
        """Close the connection."""

    # -- questions (`agentnb.store.questions`) --

    def has_table(self, name: str) -> bool:
        """Return True if the store has a table that not each store has."""

    def add_tables(self, statements: Sequence[str]) -> None:
        """Create tables that not each store has, all or none, unless they are there."""

    def notify(self, channel: str) -> None:
        """Wake the listeners of a channel, in each process, when the transaction is committed."""

    def listen(self, channel: str) -> Listener:
        """Return a new listener of a channel."""


class Listener(Protocol):
    """Waits for notifications of a channel. One thread waits; `wake` and `close` are safe from each thread."""

    def wait(self, seconds: float) -> None:
        """Return after a notification or a `wake` since the last call, or after some seconds.

        It may return earlier. Raises StorageError if the database cannot be reached; the next call tries again.
        """

    def wake(self) -> None:
        """Let `wait` return at once."""

    def close(self) -> None:
        """Close the connection."""


# -- what both databases share ---------------------------------------------------------------------------------------

BUSY_SECONDS = 10.0
"""Seconds to wait for another process's write, which takes milliseconds. Runs do not wait here: they try again
(`agentnb.run.wakeup`)."""
PAUSE_SECONDS = 0.01
"""Seconds between two attempts."""
LOCK_SECONDS = 0.05
"""Seconds that a run's write waits for another thread that uses the connection, before it is tried again later."""


def patiently(do: Callable[[], T], is_in_transaction: Callable[[], bool]) -> T:
    """Call a function. While it raises StoreBusy, call it again, for some seconds.

    In a transaction it is called once: what came before it in the transaction would not be repeated.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return do()
        except StoreBusy:
            if is_in_transaction() or time.monotonic() >= until:
                raise
        time.sleep(PAUSE_SECONDS)


def append_rest(database: Database, rows: Rows, refused: Exception) -> None:
    """Commit the events that are not in the store yet, after it has refused all of them because it has the first.

    This happens if a connection was lost, or a user interrupted the write, after the commit and before its answer.
    Raises StoreConflict if the store has other events there: another process has written them.
    """
    sql = "SELECT key, body, checksum FROM events WHERE key BETWEEN ? AND ? ORDER BY key"
    found = database.query(sql, rows[0], rows[-COLUMNS])
    stored = [value for key, body, written in found for value in (key, as_bytes(body), written)]
    if not stored or stored != list(rows[: len(stored)]):
        raise StoreConflict(
            f"Event {int(rows[0]) % SPAN} of this run is already in {database.where}: another process has continued it,"
            " or another run of this process that was restored from it. Load the run again to continue it."
        ) from refused
    if rest := rows[len(stored) :]:
        database.append(rest)
