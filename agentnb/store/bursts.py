"""Commits of one run that follow each other within one turn of the event loop.

A commit costs SQLite about as much as all else does in an iteration of a loop whose model and tools never wait. So from
the second one on they go to a redo log (`agentnb.store.redo_log`), and into SQLite all at once when the run has come to
rest, as it has before anybody else gets a turn. Nobody else notices: who reads or writes the store meanwhile, in this
process or in another, first moves what is in the redo log into SQLite, as also happens after a process was killed.

A redo log is made under SQLite's lock for writing, when the run stands in SQLite as its writer has it; and it is
removed under that lock, when all that counts in it is in SQLite. So a run that somebody else takes over goes on at one
place only: either they find in SQLite what its writer has committed, or its writer sees the seal before it goes on.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentnb.core.errors import RecordingCorrupt, StorageError
from agentnb.store import redo_log
from agentnb.store.database import COLUMNS, SPAN, Rows, checksum, keys
from agentnb.store.redo_log import Found, RedoLog, redo_log_of
from agentnb.store.sqlite_file import rescue

if TYPE_CHECKING:
    from agentnb.store.sqlite import SqliteDatabase

SINCE = 4
"""The version of the first stores that may have a redo log."""


class Bursts:
    """The redo log beside a store's file, of this process or of another. Used under the connection's lock."""

    def __init__(self, database: SqliteDatabase, path: Path) -> None:
        self._database = database
        self._file = path
        self._path = redo_log_of(path)
        self._name = str(self._path)
        self._log: RedoLog | None = None
        self._rows: list[int | bytes] = []
        self._next = -1
        """The key behind the last one that was committed, where its run goes on in the same turn."""

    def take(self, rows: Rows) -> bool:
        """Have a commit on disk, of a run that goes on in the same turn; False where that is for SQLite."""
        if rows[0] != self._next:
            return False
        if self._log is None:
            self._begin(int(rows[0]))
        if self._log is None or not self._log.add(int(rows[0]) % SPAN, rows[1::COLUMNS]):  # type: ignore[arg-type]
            return False
        self._rows += rows
        self._next = int(rows[-COLUMNS]) + 1
        return True

    def expect(self, rows: Rows, *, going_on: bool) -> None:
        """Take note of a commit in SQLite."""
        self._next = int(rows[-COLUMNS]) + 1 if going_on and os.name == "posix" else -1

    def rest(self) -> bool:
        """Take note that the turn is over; gives whether there is a redo log of this connection's own."""
        self._next = -1
        return self._log is not None

    def any(self) -> bool:
        """Whether there may be something that SQLite does not have."""
        return self._log is not None or os.access(self._name, os.F_OK)  # quicker than to ask whether it exists

    def left(self) -> Rows:
        """What of it SQLite does not have yet, to be asked under its lock for writing; with nothing left, the log goes.

        Raises StorageError where it cannot be read.
        """
        if self._log is not None:
            rows = self._behind(self._rows)
            goes = self._log.is_there()  # otherwise somebody else has moved it into SQLite
        else:
            there = os.access(self._name, os.F_OK) and self._database.is_there()
            goes = there and self._database.version >= SINCE
            rows = self._behind(self._found(redo_log.sealed)) if goes else []
        if not rows:
            if goes:
                self._path.unlink()
            self._let_go()
        return rows

    def found(self) -> Rows:
        """The same of a store that may not be written, where nothing can go."""
        there = os.access(self._name, os.F_OK) and self._database.version >= SINCE
        return self._behind(self._found(redo_log.read)) if there else []

    def _begin(self, key: int) -> None:
        """Begin a redo log, if the run stands where its writer takes it to; where not, SQLite will tell of it."""
        number = key // SPAN
        with self._database.transaction():
            ((last,),) = self._database.query("SELECT max(key) FROM events WHERE key BETWEEN ? AND ?", *keys(number))
            ((run_id,),) = self._database.query("SELECT id FROM runs WHERE number = ?", number)
            if last == key - 1:
                with suppress(OSError):  # then it is SQLite that is written to, and says what is the matter
                    self._log = RedoLog(self._path, number, run_id, os.stat(self._file).st_mode & 0o777)

    def _found(self, read: Callable[[Path], Found | None]) -> Rows:
        """The events in a log of another process that SQLite does not have."""
        where, log = self._database.where, self._path.name
        try:
            found = read(self._path)
        except OSError as error:
            raise StorageError(
                f"{where} cannot be used: the newest of it is in {log} beside it, which cannot be read:"
                f" {error.strerror}."
            ) from error
        if found is None:
            return []
        if found.lost is not None:
            raise RecordingCorrupt(
                f"{where} is damaged: {log} beside it, the newest of it, is wrong at its byte {found.lost} or soon"
                f" after, and what follows would be lost. {rescue(where)}"
            )
        if self._database.query("SELECT id FROM runs WHERE number = ?", found.number) != [(found.run_id,)]:
            return []  # of a store that was here before this one
        if found.torn:
            warnings.warn(
                f"{log} ends in a write that is not whole, as where a disk is full: the last few events of the run"
                f" {found.run_id} may be missing.",
                RuntimeWarning,
                stacklevel=5,
            )
        return [
            value
            for position, body in found.events.items()
            for key in [found.number * SPAN + position]
            for value in (key, body, checksum(key, body))
        ]

    def _behind(self, rows: Rows) -> Rows:
        """Those from where SQLite's end of their run is; none where a power cut has taken what is before them."""
        if not rows:
            return []
        first = int(rows[0])
        begins, ends = keys(first // SPAN)
        ((last,),) = self._database.query("SELECT max(key) FROM events WHERE key BETWEEN ? AND ?", begins, ends)
        have = (begins if last is None else last + 1) - first
        return rows[have * COLUMNS :] if have >= 0 else []

    def _let_go(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log, self._rows = None, []
