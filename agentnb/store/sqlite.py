"""A store in one SQLite file, read and written through SQL alone.

Durability: events are committed to a write-ahead log (`PRAGMA journal_mode=WAL`, `synchronous=NORMAL`). A commit
survives the death of the process. After a power cut the last commits may be missing, but nothing before them: SQLite
applies the log up to the first record that is not whole, and discards the rest without an error. The same happens if a
byte of the log was changed on disk. Once the log has been moved into the file, each damaged row is found by its
checksum, and each damaged page by `PRAGMA integrity_check`.

Locks: SQLite's own waiting (`busy_timeout`) would block the event loop, so it is used only while a store is opened.
After that, runs try again later, and other callers try again here (`patiently`).

A file that cannot be written is opened for reading. If SQLite cannot do that, because the folder cannot be written
either, it reads a private copy, which is removed when the store is closed.
"""

from __future__ import annotations

import os
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

from agentnb.core.errors import RecordingCorrupt, StorageError, StoreBusy, VersionMismatch
from agentnb.run.files import Identity, connected, create_private, disconnected, file_identity, opened_file
from agentnb.store import database
from agentnb.store.database import (
    COLUMNS,
    INDEX,
    LOCK_SECONDS,
    PAUSE_SECONDS,
    TABLES,
    VERSION,
    Rows,
    append_rest,
    check_version,
    patiently,
    version_mismatch,
)

T = TypeVar("T")

PAGE_BYTES = 1024
"""A commit writes whole pages, and mostly a few hundred bytes of events: SQLite's default of 4096 would write more."""

LOG_BYTES = 8 * 1024 * 1024
"""The size of the log at which SQLite moves it into the file, and waits for the disk."""

GLANCE_SECONDS = 0.01
"""The file's identity is checked before a write only if this time has passed since the last check, because two checks
take as long as encoding four events. `confirm` checks it after the writes.
"""

ROWS_AT_ONCE = 256
"""Events written by one statement: every SQLite accepts at least 999 values in one."""

LISTEN_SECONDS = 0.05
"""Seconds between two looks for commits of other processes, while something waits for them."""

FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""The exceptions of the driver. It raises the second if SQLite's message quotes bytes of a damaged file."""

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)
"""SQLite's codes if another process holds a lock. It returns the second if several open the log at the same moment."""

TYPES = {
    "identity": "INTEGER PRIMARY KEY",
    "key": "INTEGER PRIMARY KEY",
    "integer": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
}
STATEMENTS = {table: statement.format_map(TYPES) for table, statement in TABLES.items()}

_MAGIC = b"SQLite format 3\0"
_TRACE = b"CREATE TABLE events (key"
"""A part of the first bytes of each store. It shows that a file is a store even if SQLite can no longer open it."""
_TRACE_WITHIN = 8192

_HELP = {
    **dict.fromkeys(BUSY, " Another process has been writing to it for a long time; try again when it has finished."),
    sqlite3.SQLITE_CANTOPEN: " Check that the file and its folder can be read and written.",
    sqlite3.SQLITE_FULL: " What was written before is kept. Free some space, and continue.",
    sqlite3.SQLITE_IOERR: " What was written before is kept. Check that the disk has space and no errors.",
    sqlite3.SQLITE_READONLY: " It can be read. To write, make the file and its folder writable, or use another store.",
}


def is_store(path: Path) -> bool:
    """Return True if a file is a store, also one that is damaged or of another version. Nothing is changed."""
    if not path.is_file():
        return False
    try:
        with closing(SqliteDatabase(path, read_only=True)) as found:
            return found.version > 0
    except (RecordingCorrupt, VersionMismatch):
        return True
    except StorageError:  # a file of another kind, or one that cannot be read
        return False


def log_of(path: Path) -> Path:
    """Return the path of the write-ahead log; SQLite puts it next to the file itself, also if `path` is a link."""
    path = path.resolve()
    return path.with_name(path.name + "-wal")


class SqliteDatabase:
    """A connection to a store's file, with the protocol `Database`. It is closed when it is garbage-collected.

    read_only: open an existing file without changing it. A file that cannot be written is opened so in any case.

    Raises StorageError if the file cannot be opened or is not a store, RecordingCorrupt if it is damaged, and
    VersionMismatch if its tables are of another version.
    """

    body_in_small_letters = "lower(CAST(body AS TEXT))"

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.where = str(path)
        self._path = path.absolute()  # the working directory may change
        self._log = log_of(path)
        self._names = (str(self._path), str(self._log))
        self._lock = threading.RLock()
        self._findings: dict[str, str] = {}
        """The result of SQLite's check, for each table that was checked."""
        self._ends: list[weakref.finalize[..., SqliteDatabase]] = []
        self._listeners: weakref.WeakSet[SqliteListener] = weakref.WeakSet()
        _check_file(path)
        self._read_only = read_only or (path.exists() and not _can_write(path))
        if not self._read_only:
            create_private(path)
        self._files = self._identities()
        self._files_checked_at = -GLANCE_SECONDS
        try:
            self._connection = self._connect_to_read() if self._read_only else self._connect(path)
            check_version(self.version, self.where)
            if not self._read_only:
                self._prepare_to_write()
            # From here on SQLite raises immediately if another process holds a lock.
            self._connection.execute("PRAGMA busy_timeout=0")
        except BaseException as error:
            self._disconnect()
            if isinstance(error, FAULTS):
                raise _failure(self.where, "cannot be used as a store", error) from error
            raise

    # -- connecting ------------------------------------------------------------------------------------------------

    def _connect(self, place: Path | str, *, uri: bool = False) -> sqlite3.Connection:
        """Return a connection that is closed with this object."""
        connection = _connect(place, uri=uri)
        if (file := file_identity(self._path)) is not None:
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
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if _kind(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise

        # To read a file with a log, SQLite needs to write a third file next to them. If it cannot, read a copy of both.
        # The copy goes into an anonymous database of SQLite's own, which is removed when it is closed.
        copy = self._connect("")
        try:
            with (
                tempfile.TemporaryDirectory() as folder,
                closing(_connect(copy_file_and_log(self._path, Path(folder)))) as source,
            ):
                source.backup(copy)
        except OSError as error:
            file = f" ({error.filename})" if error.filename is not None else ""
            raise StorageError(f"{self.where} cannot be used as a store: {error.strerror}{file}.") from error
        copy.execute("PRAGMA query_only=ON")
        return copy

    def _prepare_to_write(self) -> None:
        """Choose the size of pages of a new file, and have SQLite write to a log first."""
        self._connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        until = time.monotonic() + database.BUSY_SECONDS
        while True:  # SQLite itself does not wait if another process switches to the log at the same moment
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if _kind(error) not in BUSY or time.monotonic() > until:
                    raise
            time.sleep(PAUSE_SECONDS)
        self._connection.execute("PRAGMA synchronous=NORMAL")
        ((page_bytes,),) = self._connection.execute("PRAGMA page_size")  # a file keeps the size it was made with
        self._connection.execute(f"PRAGMA wal_autocheckpoint={LOG_BYTES // page_bytes}")
        self._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()  # SQLite opens the log when it reads
        self._files = self._identities()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        for end in self._ends:
            end()

    # -- tables ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the store's tables; 0 if the file is empty.

        Raises StorageError if the file is a database of something else, and RecordingCorrupt if its tables are not
        those of the version that it names.
        """
        # One statement, so that both are of one moment: another process may create the tables meanwhile.
        rows = self.query(
            "SELECT user_version, name, sql FROM pragma_user_version LEFT JOIN sqlite_master ON type = ?", "table"
        )
        version = int(rows[0][0])
        tables = {name: sql for _, name, sql in rows if name is not None}
        if version == VERSION and STATEMENTS.items() <= tables.items():
            return version
        if not tables and version != VERSION:
            return version

        # Not a store of this version. Stores from before the first release have version 1 to 3, and those of version 1
        # no tags. All other files that have our tables are damaged; without them, the file belongs to another program.
        ours = STATEMENTS.keys() & tables.keys()
        if len(ours) >= 3 and version not in (0, VERSION):
            return version
        if version == VERSION and ours == STATEMENTS.keys() - {"tags"} and len(tables) == 3:
            raise version_mismatch(self.where, "a version from before the first release")
        if (tables and not ours) or (version == 0 and len(ours) < len(STATEMENTS)):
            raise StorageError(f"{self.where} is a database, but not a store of agentnb. Nothing in it was changed.")
        raise _damage(
            self.where, f"its tables are not those of a store of version {version}, the version that it names"
        )

    def create(self) -> None:
        """Create the tables, all or none, unless another process has created them."""
        with self.transaction():
            if self.version == 0:
                for statement in (*STATEMENTS.values(), INDEX):
                    self.write(statement)
                self.write(f"PRAGMA user_version={VERSION}")

    def check(self, table: str) -> None:
        """Raise RecordingCorrupt if SQLite finds a table damaged. It takes 0.5 ms for each megabyte, and runs once."""
        if table not in self._findings:
            ((finding,), *_) = self.query(f"PRAGMA integrity_check({table})")
            self._findings[table] = " ".join(finding.removeprefix("*** in database main ***").split())
        if (finding := self._findings[table]) != "ok":
            raise _damage(self.where, f"{finding} (in the table {table})")

    # -- reading and writing ---------------------------------------------------------------------------------------

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows that a statement reads."""
        return self._execute(lambda: self._connection.execute(sql, values).fetchall(), "could not be read")

    def write(self, sql: str, *values: object) -> None:
        """Execute a statement, and commit unless it is in a transaction."""
        with self._lock:
            self._check_files()
        self._execute(lambda: self._connection.execute(sql, values), "could not be written")

    def _execute(self, do: Callable[[], T], failed: str) -> T:
        return patiently(lambda: self._once(do, failed), self._is_in_transaction)

    def _once(self, do: Callable[[], T], failed: str) -> T:
        with self._lock:
            try:
                return do()
            except FAULTS as error:
                raise _failure(self.where, failed, error) from error

    @contextmanager
    def transaction(self, *, patient: bool = True) -> Iterator[None]:
        """Commit what is written inside, or nothing if it raises. A nested transaction belongs to the outer one.

        patient: wait some seconds for another process that writes. Otherwise StoreBusy is raised immediately.
        """
        until = time.monotonic() + (database.BUSY_SECONDS if patient else 0)
        while True:
            with self._lock:
                if self._is_in_transaction():
                    yield
                    return
                try:
                    if self._begin(until):  # an interrupt may come after BEGIN, so this is inside the `try`
                        yield
                        self.write("COMMIT")
                        return
                except BaseException:
                    if self._is_in_transaction():  # a full disk has ended it already
                        self._connection.execute("ROLLBACK")
                    raise
            time.sleep(PAUSE_SECONDS)  # without the lock: a run's write must not wait for this one

    def _begin(self, until: float) -> bool:
        """Begin a transaction. Return False if another process writes and there is time to try again."""
        try:
            self._once(lambda: self._connection.execute("BEGIN IMMEDIATE"), "could not be written")
        except StoreBusy:
            if time.monotonic() >= until:
                raise
            return False
        return True

    def _is_in_transaction(self) -> bool:
        try:
            return self._connection.in_transaction
        except FAULTS as error:  # the connection is closed
            raise _failure(self.where, "could not be written", error) from error

    def append(self, rows: Rows) -> None:
        """Commit events. Raises StoreBusy immediately if another process writes, and StoreConflict as `Database` does.

        A few events are one statement, which is a transaction of its own: two thirds of the cost of three statements.
        """
        with self._held_soon():
            if time.monotonic() > self._files_checked_at + GLANCE_SECONDS:
                self._check_files()
            try:
                for start in range(0, len(rows), COLUMNS * ROWS_AT_ONCE):
                    some = rows[start : start + COLUMNS * ROWS_AT_ONCE]
                    self._connection.execute(_insert(len(some) // COLUMNS), some)
            except sqlite3.IntegrityError as error:
                append_rest(self, rows, error)
            except FAULTS as error:
                raise _failure(self.where, "could not be written", error) from error

    def confirm(self) -> None:
        """Raise StorageError if the file to which events were committed was moved, deleted or replaced."""
        with self._held_soon():
            self._check_files()

    @contextmanager
    def _held_soon(self) -> Iterator[None]:
        """Hold the connection; raise StoreBusy if another thread holds it for long."""
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            raise StoreBusy(
                f"{self.where} could not be written: another thread has been using it for a long time. Try again"
                " when it has finished."
            )
        try:
            yield
        finally:
            self._lock.release()

    def _check_files(self) -> None:
        """Raise StorageError if the file or its log has been moved, deleted or replaced.

        SQLite would continue to write into a file that has no name any more. Another process may also delete the log if
        this one has lost its locks: by a fork of the process, or as `agentnb.run.files` explains.
        """
        if not self._read_only and (found := self._identities()) != self._files:
            changed = "it" if found[0] != self._files[0] else f"its log {self._log.name}"
            raise StorageError(
                f"{self.where} could not be written: {changed} was moved, deleted or replaced after it was opened. What"
                " was written before can still be read here: store.export(path) keeps it."
            )
        self._files_checked_at = time.monotonic()

    def _identities(self) -> tuple[Identity | None, Identity | None]:
        file, log = self._names
        return file_identity(file), file_identity(log)

    # -- notifications ---------------------------------------------------------------------------------------------

    def has_table(self, name: str) -> bool:
        """Return True if the store has a table that not each store has."""
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))

    def add_tables(self, statements: Sequence[str]) -> None:
        """Create tables that not each store has, all or none, unless they are there."""
        with self.transaction():
            for statement in statements:
                self.write(statement.format_map(TYPES))

    def notify(self, channel: str) -> None:
        """Wake the listeners of this connection; those of others notice the commit."""
        for listener in list(self._listeners):
            listener.wake()

    def listen(self, channel: str) -> SqliteListener:
        """Return a new listener, which any commit of another process wakes."""
        listener = SqliteListener(self)
        self._listeners.add(listener)
        return listener

    def commits_of_others(self) -> int:
        """Return a number that changes when another connection has committed something. It takes microseconds."""
        return int(self.query("PRAGMA data_version")[0][0])


class SqliteListener:
    """Waits for a commit of another connection. It implements the protocol `Listener`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._woken = threading.Event()
        self._seen = -1

    def wait(self, seconds: float) -> None:
        """Return after a commit of another connection or a `wake`, or after some seconds."""
        until = time.monotonic() + seconds
        while (version := self._database.commits_of_others()) == self._seen:
            left = until - time.monotonic()
            if left <= 0 or self._woken.wait(min(left, LISTEN_SECONDS)):
                break
        self._seen = version
        self._woken.clear()

    def wake(self) -> None:
        """Let `wait` return at once."""
        self._woken.set()

    def close(self) -> None:
        """Do nothing: the connection is that of the store."""


# -- files -----------------------------------------------------------------------------------------------------------


def _connect(place: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    """Return a connection for several threads, which waits for other processes (`PRAGMA busy_timeout` changes that)."""
    seconds = database.BUSY_SECONDS
    connection = sqlite3.connect(place, timeout=seconds, isolation_level=None, check_same_thread=False, uri=uri)
    connection.text_factory = lambda text: text.decode(errors="replace")  # a run with a damaged name is still listed
    return connection


def _end(connection: sqlite3.Connection, file: Identity | None) -> None:
    connection.close()
    if file is not None:
        disconnected(file)


@cache
def _insert(rows: int) -> str:
    return f"INSERT INTO events (key, body, checksum) VALUES {', '.join(['(?, ?, ?)'] * rows)}"


def _can_write(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def _check_file(path: Path) -> None:
    """Raise StorageError if SQLite would reject a file without saying why, or would make an empty store of it."""
    try:
        if path.is_dir():
            raise StorageError(f"{path} cannot be used as a store: it is a folder; give the path of a file in it.")
        if not path.exists():
            if not path.resolve().parent.is_dir():
                raise StorageError(f"{path} cannot be used as a store: there is no folder {path.resolve().parent}.")
            return
        with opened_file(path) as file:
            first = file.read(_TRACE_WITHIN)
        has_log = log_of(path).is_file() and log_of(path).stat().st_size > 0
    except OSError as error:
        raise StorageError(f"{path} cannot be used as a store: {error.strerror}.") from error
    # SQLite deletes the log of an empty file.
    if not first and has_log:
        raise _damage(str(path), f"it is empty, but its log {log_of(path).name} is not")
    if first and not first.startswith(_MAGIC):
        if _TRACE in first:
            raise _damage(str(path), "its first bytes are not those of a store")
        raise StorageError(
            f"{path} cannot be used as a store: it is not a database. Pass the path of a store or of a new file."
        )


def copy_file_and_log(path: Path, folder: Path) -> Path:
    """Copy a store's file and its log into a folder, and return the path of the copy."""
    copy = folder / "store.db"
    with opened_file(path) as file, copy.open("wb") as target:
        shutil.copyfileobj(file, target)
    if (log := log_of(path)).is_file():
        shutil.copyfile(log, log_of(copy))
    return copy


# -- errors ----------------------------------------------------------------------------------------------------------


def _kind(error: Exception) -> int:
    """Return SQLite's primary result code; its upper bits are details."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _failure(where: str, failed: str, error: Exception) -> StorageError:
    """Return the error to raise for one of SQLite's, with what to do."""
    kind = _kind(error)
    message = "text in it is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damage(where, message)
    error_class = StoreBusy if kind in BUSY else StorageError
    return error_class(f"{where} {failed}: {message.removesuffix('.')}.{_HELP.get(kind, '')}")


def _damage(where: str, message: str) -> RecordingCorrupt:
    return RecordingCorrupt(
        f"{where} is damaged: {message}. It was not changed. agentnb.store.salvage({where!r}, 'saved.db') creates a"
        " new store with everything that can be read."
    )
