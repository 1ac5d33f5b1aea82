"""The file under a store in SQLite: whether it is one, what SQLite says of it, and what can be done."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from pathlib import Path

from agentnb.core.errors import RecordingCorrupt, StorageError, StoreBusy
from agentnb.run.reading import identity, is_connected, opened
from agentnb.store.write_ahead_log import Lost, Torn, fault, log_of

BUSY_SECONDS = 10.0
"""How long to wait for another process's write, which takes milliseconds; after that something is wrong. A run waits
without an end, and not here: what it writes is tried again (`agentnb.run.wakeup`)."""
PAUSE_SECONDS = 0.01
"""Between two tries."""

FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; the second where its words have a piece of a damaged file in them."""

_MAGIC = b"SQLite format 3\0"
_TRACE = b"CREATE TABLE events (key"
"""In the first page of every store, also where SQLite can make nothing of it any more."""
_FIRST_PAGE = 8192

_HELP = {
    sqlite3.SQLITE_BUSY: " Another process is writing to it, and for long; try again when that is done.",
    sqlite3.SQLITE_CANTOPEN: " See whether it, and its folder, may be read and written.",
    sqlite3.SQLITE_FULL: " What was written before is kept; make room, and go on from there.",
    sqlite3.SQLITE_IOERR: " What was written before is kept; see whether its disk has room and is well.",
    sqlite3.SQLITE_READONLY: " It can be read; make the file and its folder writable, or use another store.",
}


def connect(place: str | Path, *, uri: bool = False) -> sqlite3.Connection:
    """A connection to a file, for several threads. It waits for other processes until `wait_no_more`."""
    connection = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)
    connection.text_factory = _text
    return connection


def wait_no_more(connection: sqlite3.Connection) -> None:
    """Have SQLite raise at once where another process holds a lock: while it waits, the event loop stands still."""
    connection.execute("PRAGMA busy_timeout=0")


def _text(data: bytes) -> str:
    return data.decode(errors="replace")  # a name that is damaged hides no run


def begin_log(connection: sqlite3.Connection) -> None:
    """Have what is written go to a log first. SQLite does not wait where another process turns to that just now."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if kind(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


def check_file(path: Path) -> None:
    """Refuse what SQLite would tell of in words that help nobody, or would make an empty store of."""
    try:
        if path.is_dir():
            raise StorageError(f"{path} cannot be used as a store: it is a folder; give the path of a file in it.")
        if not path.exists():
            if not path.resolve().parent.is_dir():
                raise StorageError(f"{path} cannot be used as a store: there is no folder {path.resolve().parent}.")
            return
        with opened(path) as file:
            begins = file.read(_FIRST_PAGE)
    except OSError as error:
        raise StorageError(f"{path} cannot be used as a store: {error.strerror}.") from error
    if not begins and (log := log_of(path)).exists() and log.stat().st_size:
        raise RecordingCorrupt(f"{path} is damaged: it is empty, but {log.name} beside it is not. {rescue(str(path))}")
    if begins and not begins.startswith(_MAGIC):
        if _TRACE in begins:
            raise RecordingCorrupt(f"{path} is damaged: it does not begin as a store does. {rescue(str(path))}")
        raise StorageError(f"{path} cannot be used as a store: file is not a database.")


def check_log(path: Path) -> None:
    """Refuse a file of whose log SQLite would lose something without a word; one that is open here is well."""
    if is_connected(identity(path)):
        return
    log = log_of(path).name
    try:
        found = fault(path)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be used as a store: the log beside it, {log}, cannot be read: {error.strerror}."
        ) from error
    if isinstance(found, Lost):
        raise RecordingCorrupt(
            f"{path} is damaged: the log beside it, {log}, is wrong at its byte {found.at} or soon after, and"
            f" all that follows would be lost. {rescue(str(path))}"
        )
    if isinstance(found, Torn):
        warnings.warn(
            f"The log of {path} ends in a write that is not whole, as where a process is killed in the middle"
            " of it: the last few events of a run may be missing.",
            RuntimeWarning,
            stacklevel=5,
        )


def may_write(path: Path) -> bool:
    """Whether a store can be written here; SQLite's log lies beside its file."""
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def kind(error: Exception) -> int:
    """SQLite's number for what went wrong."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # what is above says more than anybody needs to know


def failure(where: str, what: str, error: Exception) -> StorageError:
    """SQLite's words, and what can be done."""
    if kind(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        said = "what it says is no text" if isinstance(error, UnicodeDecodeError) else error
        return RecordingCorrupt(f"{where} is damaged: {said}. {rescue(where)}")
    busy = kind(error) == sqlite3.SQLITE_BUSY
    return (StoreBusy if busy else StorageError)(
        f"{where} {what}: {str(error).removesuffix('.')}.{_HELP.get(kind(error), '')}"
    )


def rescue(where: str) -> str:
    """What can be done with a file that is damaged."""
    return (
        f"It was not changed. agentnb.store.salvage({where!r}, 'saved.db') makes a new store of all that can be read."
    )
