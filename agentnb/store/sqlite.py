"""A store in one SQLite file.

WAL with `synchronous=NORMAL`: a commit survives the death of the process; a power cut may lose the last of them, never
more. A file that may not be written is read where it lies; where SQLite cannot do that (the folder may not be written
either, or the tables are of an older version) it is read from a copy that goes when the store is closed.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from agentnb.core.errors import RecordingCorrupt, StorageError, StoreBusy
from agentnb.run.reading import Identity, connected, disconnected, identity, opened
from agentnb.store import sqlite_file
from agentnb.store.database import COLUMNS, Database, Rows, append_rest
from agentnb.store.sqlite_file import (
    FAULTS,
    PAUSE_SECONDS,
    begin_log,
    check_file,
    check_log,
    connect,
    failure,
    kind,
    may_write,
    rescue,
    wait_no_more,
)
from agentnb.store.sqlite_tables import WORDS, check_tables
from agentnb.store.write_ahead_log import log_of

T = TypeVar("T")

PAGE_BYTES = 1024
"""A commit writes whole pages, and mostly a few hundred bytes of events. A result of a kilobyte or two goes on in pages
of its own, of which half a one stays empty; of SQLite's own 4096 it would be a fifth of every page."""

LOG_BYTES = 8 * 1024 * 1024
"""What the log takes before it is moved into the file, which waits for the disk."""

GLANCE_SECONDS = 0.01
"""Events that follow each other faster are written without a look at where the file lies before each: two looks take as
long as encoding four events. `confirm` looks when they have been written."""

LOCK_SECONDS = 0.05
"""How long a run's write waits for another thread that uses the connection; then it is tried again later."""

ROWS_AT_ONCE = 256
"""Events written by one statement; SQLite takes some hundreds of values at the least."""


def is_store(path: Path) -> bool:
    """Whether this file is a store, be it one that is damaged; looks without changing anything."""
    if not path.is_file():
        return False
    try:
        with closing(SqliteDatabase(path, read_only=True)) as database:
            return database.version > 0
    except RecordingCorrupt:
        return True
    except StorageError:  # another kind of file, or one that may not be read
        return False


class SqliteDatabase:
    """A store's file. One that may not be written is opened all the same, to be read."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.where = str(path)
        self._path = path.absolute()  # wherever the notebook goes from here
        self._lock = threading.RLock()
        self._checked: dict[str, str] = {}
        self._checked_at = -GLANCE_SECONDS
        self._ends: list[weakref.finalize[..., SqliteDatabase]] = []
        check_file(path)
        check_log(path)
        self._log = log_of(path)
        self._names = (str(self._path), str(self._log))
        self._files = self._identities()
        self._read_only = read_only or (path.exists() and not may_write(path))
        self._private = False
        try:
            self._connection = self._connect_to_read() if self._read_only else self._connect(path)
        except FAULTS as error:
            raise failure(self.where, "cannot be used as a store", error) from error
        try:
            with self._one_view():
                check_tables(self)
            if not self._read_only:
                self._connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
                begin_log(self._connection)
                self._connection.execute("PRAGMA synchronous=NORMAL")
                ((page_bytes,),) = self._connection.execute("PRAGMA page_size")  # a file keeps those it was made with
                self._connection.execute(f"PRAGMA wal_autocheckpoint={LOG_BYTES // page_bytes}")
                self.query("SELECT count(*) FROM sqlite_master")  # SQLite opens the log when it reads
                self._files = self._identities()
            wait_no_more(self._connection)
        except BaseException as error:
            self._disconnect()
            if isinstance(error, FAULTS):
                raise failure(self.where, "cannot be used as a store", error) from error
            raise

    def _connect(self, place: Path | str, *, uri: bool = False) -> sqlite3.Connection:
        """A connection that ends with this object: nobody need close a store."""
        connection = connect(place, uri=uri)
        if (file := identity(self._path)) is not None:
            connected(file)
        end = weakref.finalize(self, _end, connection, file)
        end.atexit = False  # at the end of the process a run may still write
        self._ends.append(end)
        return connection

    def _connect_to_read(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise StorageError(f"{self.where} cannot be used as a store: there is no such file.")
        connection = self._connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            connection.close()
            if kind(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            self._private = True
            return self._copied()
        return connection

    def _copied(self) -> sqlite3.Connection:
        """A connection to a private copy, with what another process has left in the file's log."""
        copy = self._connect("")  # SQLite's own: on disk where it is large, and gone when it is closed
        try:
            with tempfile.TemporaryDirectory() as folder:
                lies = Path(folder, "store.db")
                with opened(self._path) as file, lies.open("wb") as copied:
                    shutil.copyfileobj(file, copied)
                if (log := log_of(self._path)).exists():
                    shutil.copyfile(log, log_of(lies))
                with closing(connect(lies)) as source:
                    source.backup(copy)
        except OSError as error:
            raise StorageError(f"{self.where} cannot be used as a store: {error.strerror}.") from error
        copy.execute("PRAGMA query_only=ON")
        return copy

    @contextmanager
    def _one_view(self) -> Iterator[None]:
        """What is read within is of one moment: another process may bring the store up to date meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    @property
    def version(self) -> int:
        """The version of the store's tables; 0 where there are none."""
        return int(self.query("PRAGMA user_version")[0][0])

    def migrate(self, statements: Sequence[str], version: int, fill: Callable[[Database], None]) -> None:
        """Change the tables to this version, all of it or nothing; another process may have done it first."""
        if self._read_only and not self._private:
            with self._lock:
                self._connection.close()
                self._connection, self._private = self._copied(), True
        if self._private:
            self._connection.execute("PRAGMA query_only=OFF")
        with self.transaction():
            if self.version < version:
                for statement in statements:
                    self.write(statement.format_map(WORDS))
                fill(self)
                self.write(f"PRAGMA user_version={version}")
        if self._private:
            self._connection.execute("PRAGMA query_only=ON")

    @contextmanager
    def transaction(self, *, patient: bool = True) -> Iterator[None]:
        """What is written within is written whole or not at all; within another one, with that.

        patient: wait for another process that writes; otherwise it raises StoreBusy at once.
        """
        until = time.monotonic() + (sqlite_file.BUSY_SECONDS if patient else 0)
        while True:
            with self._lock:
                if self._in_transaction():
                    yield
                    return
                try:
                    if self._has_begun(until):  # it may be interrupted when it has
                        yield
                        self.write("COMMIT")
                        return
                except BaseException:
                    if self._in_transaction():  # a full disk has ended it already
                        self._connection.execute("ROLLBACK")
                    raise
            time.sleep(PAUSE_SECONDS)  # without the lock: a run's write is not to wait for this one

    def _has_begun(self, until: float) -> bool:
        """Begin a transaction; False where another process writes, and the time to wait for it is not over."""
        try:
            self._once(lambda: self._connection.execute("BEGIN IMMEDIATE"), "could not be written")
        except StoreBusy:
            if time.monotonic() >= until:
                raise
            return False
        return True

    def _in_transaction(self) -> bool:
        try:
            return self._connection.in_transaction
        except FAULTS as error:  # it is closed
            raise failure(self.where, "could not be written", error) from error

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read."""
        return self._patiently(lambda: self._connection.execute(sql, values).fetchall(), "could not be read")

    def _once(self, do: Callable[[], T], what: str) -> T:
        with self._lock:
            try:
                return do()
            except FAULTS as error:
                raise failure(self.where, what, error) from error

    def _patiently(self, do: Callable[[], T], what: str) -> T:
        """Do it, and again while another process holds the file, for some seconds, but not half a transaction."""
        until = time.monotonic() + sqlite_file.BUSY_SECONDS
        while True:
            try:
                return self._once(do, what)
            except StoreBusy:
                if self._in_transaction() or time.monotonic() >= until:
                    raise
            time.sleep(PAUSE_SECONDS)

    def check(self, table: str) -> None:
        """Raise RecordingCorrupt where SQLite finds a table damaged. Half a millisecond for each megabyte, and once."""
        if table not in self._checked:
            ((said,), *_) = self.query(f"PRAGMA integrity_check({table})")
            self._checked[table] = " ".join(said.removeprefix("*** in database main ***").split())
        if (said := self._checked[table]) != "ok":
            raise RecordingCorrupt(f"{self.where} is damaged: {said} (in the table {table}). {rescue(self.where)}")

    def write(self, sql: str, *values: object) -> None:
        """Write, and commit where that is not in a transaction."""
        with self._lock:
            self._check_file()
        self._patiently(lambda: self._connection.execute(sql, values), "could not be written")

    def append(self, rows: Rows) -> None:
        """Commit events; raises StoreBusy at once where another process writes.

        One statement for the usual handful: it is a transaction of its own, at two thirds of the cost of three.
        """
        with self._soon():
            if time.monotonic() > self._checked_at + GLANCE_SECONDS:
                self._check_file()
            try:
                for start in range(0, len(rows), COLUMNS * ROWS_AT_ONCE):
                    some = rows[start : start + COLUMNS * ROWS_AT_ONCE]
                    self._connection.execute(_insert(len(some) // COLUMNS), some)
            except sqlite3.IntegrityError as error:
                append_rest(self, rows, error)
            except FAULTS as error:
                raise failure(self.where, "could not be written", error) from error

    def confirm(self) -> None:
        """Raise StorageError where what was committed lies in a file that is not there any more."""
        with self._soon():
            self._check_file()

    @contextmanager
    def _soon(self) -> Iterator[None]:
        """Hold the connection; raises StoreBusy where another thread does, and for long."""
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            raise StoreBusy(f"{self.where} could not be written: another thread uses it, and for long.")
        try:
            yield
        finally:
            self._lock.release()

    def _check_file(self) -> None:
        """Refuse to write where SQLite would go on to, into a file that has no name any more.

        Its log is deleted under it where this process lost its locks: by a fork, or as `agentnb.run.reading` tells.
        """
        if not self._read_only and (found := self._identities()) != self._files:
            what = "it" if found[0] != self._files[0] else f"{self._log.name} beside it"
            raise StorageError(
                f"{self.where} could not be written: {what} is not the file any more that was opened, but was moved,"
                " deleted or replaced. What was written before can still be read here: store.export(path) keeps it."
            )
        self._checked_at = time.monotonic()

    def _identities(self) -> tuple[Identity | None, Identity | None]:
        file, log = self._names
        return identity(file), identity(log)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        for end in self._ends:
            end()


def _end(connection: sqlite3.Connection, file: Identity | None) -> None:
    connection.close()
    if file is not None:
        disconnected(file)


@cache
def _insert(rows: int) -> str:
    return f"INSERT INTO events (key, body, checksum) VALUES {', '.join(['(?, ?, ?)'] * rows)}"
