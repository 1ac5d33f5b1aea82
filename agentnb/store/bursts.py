"""Commits of one run that follow each other within one turn of the event loop.

A commit costs SQLite about as much as all else does in an iteration of a loop whose model and tools never wait. So from
the second one on they go to a redo log (`agentnb.store.redo_log`), and into SQLite all at once when the run waits or
ends, or at the event loop's next turn. Nobody else notices: who reads or writes the store meanwhile, in this
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentnb.core.errors import RecordingCorrupt, StorageError, StoreConflict
from agentnb.store import redo_log
from agentnb.store.database import COLUMNS, SPAN, Rows, checksum, conflict, keys
from agentnb.store.redo_log import Found, RedoLog, redo_log_of
from agentnb.store.schema import STORE_VERSION
from agentnb.store.sqlite_file import rescue

if TYPE_CHECKING:
    from agentnb.store.sqlite import SqliteDatabase

SINCE = 4
"""The version of the first stores that may have a redo log."""


class Bursts:
    """The redo log beside a store's file, of this process or of another. Used under the connection's lock."""

    def __init__(self, database: SqliteDatabase, path: Path, commit: Callable[[Callable[[], None]], None]) -> None:
        self._database = database
        self._commit = commit
        """Do something under SQLite's lock for writing."""
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
        self._next = int(rows[-COLUMNS]) + 1  # first: who is interrupted here writes them again, and then into SQLite
        self._rows += rows
        return True

    def expect(self, rows: Rows, *, going_on: bool) -> None:
        """Take note of a commit in SQLite."""
        self._next = int(rows[-COLUMNS]) + 1 if going_on and os.name == "posix" else -1

    def rest(self) -> bool:
        """Take note that the turn is over; gives whether there is a redo log of this connection's own."""
        self._next = -1
        return self.is_own()

    def is_own(self) -> bool:
        """Whether there is a redo log of this connection's own, or was until somebody else has taken it in."""
        return self._log is not None

    def any(self) -> bool:
        """Whether there may be something that SQLite does not have."""
        return self._log is not None or os.access(self._name, os.F_OK)  # quicker than to ask whether it exists

    def left(self) -> Rows:
        """What of it SQLite does not have yet, to be asked under its lock for writing; with nothing left, the log goes.

        Who has one of their own asks of that alone: somebody else's has nothing of the same run but what comes behind a
        commit in SQLite, and to break that off would make both slow. Raises StorageError where it cannot be read.
        """
        if rows := self._behind(self._rows):
            return rows
        if self._log is not None:
            is_there = self._log.is_there()  # otherwise somebody else has moved it into SQLite
            self._let_go()
            if not is_there:
                return []
        else:
            if not self.any() or not self._database.is_there() or not self._is_known():
                return []
            if rows := self.behind(self._read(redo_log.sealed)):
                return rows
        with suppress(OSError):  # in some folders only who made a file may remove it; all that is in it, SQLite has
            self._path.unlink()
        return []

    def read(self) -> Found | None:
        """What another process has there now, of a store that may not be written; to be asked before SQLite is.

        What leaves it from then on is in SQLite already.
        """
        return self._read(redo_log.read) if self.any() else None

    def behind(self, found: Found | None) -> Rows:
        """What SQLite does not have of what was read. Raises RecordingCorrupt where that is damaged."""
        if found is None or not self._is_known():
            return []
        try:
            return self._behind(self._rows_of(found))
        except StoreConflict as error:
            where = self._database.where
            raise RecordingCorrupt(
                f"{where} is damaged: {self._path.name} beside it has other events of the run {found.run_id} than it"
                f" has. {rescue(where)}"
            ) from error

    def _is_known(self) -> bool:
        """Whether the store is of a version whose redo log this agentnb knows."""
        return SINCE <= self._database.version <= STORE_VERSION

    def _begin(self, key: int) -> None:
        """Begin a redo log, if the run stands where its writer takes it to; where not, SQLite will tell of it."""
        self._commit(partial(self._begin_locked, key))

    def _begin_locked(self, key: int) -> None:
        number = key // SPAN
        ((last,),) = self._database.query("SELECT max(key) FROM events WHERE key BETWEEN ? AND ?", *keys(number))
        ((run_id,),) = self._database.query("SELECT id FROM runs WHERE number = ?", number)
        if last == key - 1:
            with suppress(OSError):  # then it is SQLite that is written to, and says what is the matter
                self._log = RedoLog(self._path, number, run_id, os.stat(self._file))

    def _read(self, read: Callable[[Path], Found | None]) -> Found | None:
        """What is in a log of another process; None where it is gone."""
        try:
            return read(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"{self._database.where} cannot be used: the newest of it is in {self._path.name} beside it, which"
                f" cannot be read: {error.strerror}."
            ) from error

    def _rows_of(self, found: Found) -> Rows:
        """The events in a log of another process, where they are of this store."""
        where, log = self._database.where, self._path.name
        if found.lost is not None:
            raise RecordingCorrupt(
                f"{where} is damaged: {log} beside it, the newest of it, is wrong at its byte {found.lost} or soon"
                f" after, and what follows would be lost. {rescue(where)}"
            )
        is_of_this = self._database.query("SELECT id FROM runs WHERE number = ?", found.number) == [(found.run_id,)]
        if found.run_id and not is_of_this:
            return []  # of a store that was here before this one
        if found.torn:
            warnings.warn(
                f"{log} ends in a write that is not whole, as where a disk is full: the last few events of"
                f" {f'the run {found.run_id}' if is_of_this else 'a run'} may be missing.",
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
        """Those from where SQLite's end of their run is; none where a power cut has taken what is before them.

        Raises StoreConflict where SQLite has others in their place, as where somebody deletes a redo log.
        """
        if not rows:
            return []
        first = int(rows[0])
        begins, ends = keys(first // SPAN)
        ((last,),) = self._database.query("SELECT max(key) FROM events WHERE key BETWEEN ? AND ?", begins, ends)
        have = ((begins if last is None else last + 1) - first) * COLUMNS
        if have > 0:
            key, _, checksum = rows[:have][-COLUMNS:]
            if self._database.query("SELECT checksum FROM events WHERE key = ?", key) != [(checksum,)]:
                raise conflict(self._database.where, rows)
        return rows[have:] if have >= 0 else []

    def _let_go(self) -> None:
        log, self._log, self._rows = self._log, None, []  # first: nothing is to be written to what is closed
        if log is not None:
            log.close()
