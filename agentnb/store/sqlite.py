"""A store in one SQLite file.

WAL with `synchronous=NORMAL`: a commit survives the death of the process; a power cut may lose the last of them, never
more.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from agentnb.core.errors import StorageError, StoreConflict
from agentnb.store.database import COLUMNS, SPAN, Rows

BUSY_SECONDS = 10.0
"""How long to wait for another process's write, which takes milliseconds; after that something is wrong."""

PAGE_BYTES = 8192
"""Events with a result are a kilobyte or two: on SQLite's own 4096 a fifth of every page would stay empty."""

ROWS_AT_ONCE = 256
"""Events written by one statement; SQLite takes some hundreds of values at the least."""

_WORDS = {
    "identity": "INTEGER PRIMARY KEY",
    "key": "INTEGER PRIMARY KEY",
    "integer": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
}


def is_store(path: Path) -> bool:
    """Whether this file is a store; looks without changing anything."""
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:  # another kind of file, or one that may not be read
        return False
    return {"runs", "events", "snapshots"} <= tables


def version_of(path: Path) -> int:
    """The version of a store in a file; looks without changing anything. Raises StorageError where it cannot."""
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True)) as connection:
            ((version,),) = connection.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        raise StorageError(f"{path} cannot be used as a store: {error}") from error
    return int(version)


def _read_only(path: Path) -> str:
    return f"{path.resolve().as_uri()}?mode=ro"


class SqliteDatabase:
    """A store's file. One that may not be written is opened all the same, to be read."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._lock = threading.RLock()
        read_only = path.exists() and not os.access(path, os.W_OK)
        try:
            self._connection = sqlite3.connect(
                _read_only(path) if read_only else path,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                uri=read_only,
            )
            if not read_only:
                self._connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error as error:
            raise StorageError(f"{path} cannot be used as a store: {error}") from error

    @property
    def version(self) -> int:
        """The version of the store's tables; 0 where there are none."""
        return int(self.query("PRAGMA user_version")[0][0])

    def migrate(self, statements: Sequence[str], version: int) -> None:
        """Change the tables to this version, all of it or nothing; another process may have done it first."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    if self.version < version:
                        for statement in statements:
                            self._connection.execute(statement.format_map(_WORDS))
                        self._connection.execute(f"PRAGMA user_version={version}")
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StorageError(f"{self.where} cannot be used as a store: {error}") from error

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read."""
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"{self.where} could not be read: {error}") from error

    def write(self, sql: str, *values: object) -> None:
        """Write, and commit."""
        with self._lock:
            try:
                self._connection.execute(sql, values)
            except sqlite3.Error as error:
                raise StorageError(f"{self.where} could not be written: {error}") from error

    def append(self, rows: Rows) -> None:
        """Commit events.

        One statement for the usual handful: it is a transaction of its own, at two thirds of the cost of three.
        """
        with self._lock:
            try:
                for start in range(0, len(rows), COLUMNS * ROWS_AT_ONCE):
                    some = rows[start : start + COLUMNS * ROWS_AT_ONCE]
                    self._connection.execute(_insert(len(some) // COLUMNS), some)
            except sqlite3.IntegrityError as error:
                raise StoreConflict(
                    f"Event {int(rows[0]) % SPAN} of this run is in {self.where} already: another process goes on"
                    " with it."
                ) from error
            except sqlite3.Error as error:
                raise StorageError(f"{self.where} could not be written: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


@cache
def _insert(rows: int) -> str:
    return f"INSERT INTO events (key, body, checksum) VALUES {', '.join(['(?, ?, ?)'] * rows)}"
