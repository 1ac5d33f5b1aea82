"""The file under a store in SQLite: whether it is one, what SQLite says of it, and what can be done."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from agentnb.core.errors import RecordingCorrupt, StorageError
from agentnb.store.write_ahead_log import log_of

BUSY_SECONDS = 10.0
"""How long to wait for another process's write, which takes milliseconds; after that something is wrong."""

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
    """A connection to a file, for several threads."""
    connection = sqlite3.connect(place, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri)
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str:
    return data.decode(errors="replace")  # a name that is damaged hides no run


def check_file(path: Path) -> None:
    """Refuse what SQLite would tell of in words that help nobody, or would make an empty store of."""
    if path.is_dir():
        raise StorageError(f"{path} cannot be used as a store: it is a folder; give the path of a file in it.")
    if not path.exists():
        if not path.resolve().parent.is_dir():
            raise StorageError(f"{path} cannot be used as a store: there is no folder {path.resolve().parent}.")
        return
    try:
        with path.open("rb") as file:
            begins = file.read(_FIRST_PAGE)
    except OSError as error:
        raise StorageError(f"{path} cannot be used as a store: {error.strerror}.") from error
    if not begins and (log := log_of(path)).exists() and log.stat().st_size:
        raise RecordingCorrupt(f"{path} is damaged: it is empty, but {log.name} beside it is not. {rescue(str(path))}")
    if begins and not begins.startswith(_MAGIC):
        if _TRACE in begins:
            raise RecordingCorrupt(f"{path} is damaged: it does not begin as a store does. {rescue(str(path))}")
        raise StorageError(f"{path} cannot be used as a store: file is not a database.")


def may_write(path: Path) -> bool:
    """Whether a store can be written here; SQLite's log lies beside its file."""
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def identity(path: Path) -> tuple[int, int] | None:
    """Which file has this name now."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
    return StorageError(f"{where} {what}: {error}.{_HELP.get(kind(error), '')}")


def rescue(where: str) -> str:
    """What can be done with a file that is damaged."""
    return (
        f"It was not changed. agentnb.store.salvage({where!r}, 'saved.db') makes a new store of all that can be read."
    )
