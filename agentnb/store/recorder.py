"""Writing one run's events into a store, as its journal makes them."""

from __future__ import annotations

import time
from collections.abc import Callable

from agentnb.core.errors import StorageError, StoreBusy, StoreConflict
from agentnb.store.database import SPAN, Database, checksum
from agentnb.store.rows import add_snapshot, not_before


class RunRecorder:
    """`record` gathers events, `flush` commits what was gathered at once."""

    def __init__(self, database: Database, take_up: Callable[[], int]) -> None:
        """`take_up` gives the number that the run has in the store, once it has got one."""
        self._database = database
        self._take_up = take_up
        self._number: int | None = None
        self._gathered: list[tuple[int, bytes]] = []
        """Events of a run that has no number yet."""
        self._rows: list[int | bytes | bytearray] = []
        self._names: list[tuple[str, int]] = []
        self._conflict: StoreConflict | None = None

    def record(self, seq: int, line: bytes) -> None:
        """Take an event; it is on disk after the next `flush`."""
        if self._number is None:
            self._gathered.append((seq, line))
            return
        key = self._number * SPAN + seq
        # Of bytes, but not of these, sqlite3 asks each time whether somebody has an adapter for them.
        self._rows += (key, bytearray(line), checksum(key, line))

    def take_up(self) -> None:
        """Get the run's number. Raises as `Store.record_run` does, and StoreBusy."""
        self._number = self._take_up()
        gathered, self._gathered = self._gathered, []
        for seq, line in gathered:
            self.record(seq, line)

    def flush(self) -> None:
        """Commit what was gathered; where there is nothing more, see to it that what was committed is still there.

        A write that fails is tried again, once. Raises StorageError where that fails too; nothing of what was gathered
        is lost then, and the next `flush` goes on with it. Raises StoreBusy where another process writes just now, and
        StoreConflict, each time, where another process has gone on with the run.
        """
        if self._conflict is not None:  # what comes after another process's events is not this run
            raise self._conflict
        try:
            try:
                self._commit()
            except (StoreBusy, StoreConflict):
                raise
            except StorageError:
                self._commit()
        except StoreConflict as error:
            self._conflict = error
            raise

    def _commit(self) -> None:
        if self._number is None:
            self.take_up()
        if self._rows:
            self._database.append(self._rows)
            self._rows = []  # not before: who is interrupted writes them again
        elif not self._names:
            self._database.confirm()
        while self._names:
            name, position = self._names[0]
            assert self._number is not None
            with self._database.transaction(patient=False):
                made = not_before(self._database, "snapshots", time.time())
                add_snapshot(self._database, name, self._number, position, made)
            del self._names[0]

    def name_snapshot(self, name: str, position: int) -> None:
        """Keep a name for a position of this run, on disk after the next `flush`; the newest of that name counts."""
        self._names.append((name, position))
