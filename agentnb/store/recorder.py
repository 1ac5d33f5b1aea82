"""Writing one run's events into a store, as its journal makes them."""

from __future__ import annotations

import time

from agentnb.core.errors import StorageError
from agentnb.store.database import SPAN, Database, checksum
from agentnb.store.rows import add_snapshot


class RunRecorder:
    """`record` gathers events, `flush` commits what was gathered at once."""

    def __init__(self, database: Database, number: int) -> None:
        self._database = database
        self._number = number
        self._first = number * SPAN
        self._rows: list[int | bytes | bytearray] = []
        self._failure: StorageError | None = None

    def record(self, seq: int, line: bytes) -> None:
        """Take an event; it is on disk after the next `flush`."""
        key = self._first + seq
        # Of bytes, but not of these, sqlite3 asks each time whether somebody has an adapter for them.
        self._rows += (key, bytearray(line), checksum(key, line))

    def flush(self) -> None:
        """Commit what was gathered; where there is nothing more, see to it that what was committed is still there.

        Raises StorageError where that failed, and then each time.
        """
        if self._failure is not None:  # what comes after a gap, or after another process's events, is not this run
            raise self._failure
        try:
            if self._rows:
                self._database.append(self._rows)
                self._rows = []  # not before: who is interrupted writes them again
            else:
                self._database.confirm()
        except StorageError as error:
            self._failure = error
            raise

    def name_snapshot(self, name: str, position: int) -> None:
        """Keep a name for a position of this run; the newest of that name counts."""
        add_snapshot(self._database, name, self._number, position, time.time())
