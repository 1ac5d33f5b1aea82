"""The store: every run's journal in one SQLite file.

Rows are only ever added. An event's row is keyed by its run's number and its `seq`, so two processes that go on with
the same run cannot both write the same position: the second is told so (`StoreConflict`), and the file stays whole. WAL
with `synchronous=NORMAL`: a commit survives the death of the process; a power cut may lose the last of them, never
more.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

from pydantic import ValidationError

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, StoreConflict, VersionMismatch
from agentnb.core.events import Event, RunEnd, decode_body, decode_event, encode_body
from agentnb.run.given import check_path
from agentnb.run.snapshot import Snapshot

STORE_VERSION = 1
BUSY_SECONDS = 10.0
"""How long to wait for another process's write, which takes milliseconds; after that something is wrong."""

PAGE_BYTES = 8192
"""Events with a result are a kilobyte or two: on SQLite's own 4096 a fifth of every page would stay empty."""

ROWS_AT_ONCE = 256
"""Events written by one statement; SQLite takes some hundreds of values at the least."""

_SPAN = 1 << 32
"""A run's events have the keys number * _SPAN + seq: one integer key, no second index to write."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT, loop TEXT NOT NULL, created REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS events (key INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, run INTEGER NOT NULL, position INTEGER NOT NULL, created REAL NOT
    NULL
);
CREATE INDEX IF NOT EXISTS snapshots_by_name ON snapshots (name);
"""


_open: WeakSet[Store] = WeakSet()


def open_stores() -> list[Store]:
    """The stores that are open in this process."""
    return list(_open)


def is_store(path: Path) -> bool:
    """Whether this file is a store; looks without changing anything."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:  # another kind of file, or one that may not be read
        return False
    return {"runs", "events", "snapshots"} <= tables


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run in a store: `created` in epoch seconds, `events` their number, `stop_reason` None while it is not over."""

    id: str
    name: str | None
    loop: str
    created: float
    events: int
    stop_reason: str | None


class Store:
    """Journals in one SQLite file. Safe to use from several threads, and by several processes at once."""

    def __init__(self, path: str | Path) -> None:
        check_path("Store(path)", path)
        self.path = Path(path)
        self._lock = threading.RLock()
        self._connection = self._connect()
        _open.add(self)

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > STORE_VERSION:
                raise VersionMismatch(
                    f"{self.path} is a store of version {version}; this agentnb reads up to {STORE_VERSION}."
                )
            if version < STORE_VERSION:
                connection.executescript(f"{_SCHEMA} PRAGMA user_version={STORE_VERSION};")
        except sqlite3.Error as error:
            raise StorageError(f"{self.path} cannot be used as a store: {error}") from error
        return connection

    def runs(self) -> list[RunInfo]:
        """Every run in the store, newest first."""
        rows = self._query(
            "SELECT id, name, loop, created, number,"
            " (SELECT count(*) FROM events WHERE key >= number * ?1 AND key < (number + 1) * ?1) FROM runs"
            " ORDER BY number DESC",
            _SPAN,
        )
        return [
            RunInfo(id, name, loop, created, count, self._reason(number))
            for id, name, loop, created, number, count in rows
        ]

    def load(self, name_or_id: str) -> Snapshot:
        """A snapshot by its name, or else the newest run of this name or id that has begun. Raises RecordingMissing."""
        named = self._query(
            "SELECT run, position FROM snapshots WHERE name = ? ORDER BY number DESC LIMIT 1", name_or_id
        )
        if named:
            ((number, position),) = named
        else:
            found = self._query(
                "SELECT number FROM runs WHERE (name = ?1 OR id = ?1) AND EXISTS"
                " (SELECT 1 FROM events WHERE key BETWEEN number * ?2 AND (number + 1) * ?2 - 1)"
                " ORDER BY number DESC LIMIT 1",
                *(name_or_id, _SPAN),
            )
            if not found:
                known = ", ".join(info.name or info.id for info in self.runs()[:10]) or "nothing"
                raise RecordingMissing(f"{self.path} has no run or snapshot {name_or_id!r}; it has {known}.")
            number, position = found[0][0], _SPAN
        return Snapshot.of(self._events(number, position), name=name_or_id)

    def names(self) -> list[str]:
        """What `load` takes: the names of snapshots, and of each run its name or else its id; newest first."""
        named = self._query("SELECT name FROM snapshots ORDER BY number DESC")
        runs = self._query("SELECT coalesce(name, id) FROM runs ORDER BY number DESC")
        return list(dict.fromkeys(name for (name,) in (*named, *runs)))

    def events(self, run_id: str, start: int = 0) -> list[Event]:
        """The events of a run from a position on. Raises RecordingCorrupt."""
        rows = self._query("SELECT number FROM runs WHERE id = ?", run_id)
        return self._events(rows[0][0], _SPAN, start) if rows else []

    def position(self, run_id: str) -> int:
        """How many events of the run the store has."""
        rows = self._query("SELECT number FROM runs WHERE id = ?", run_id)
        if not rows:
            return 0
        ((last,),) = self._query("SELECT max(key) FROM events WHERE key BETWEEN ? AND ?", *_keys(rows[0][0]))
        return 0 if last is None else last % _SPAN + 1

    def record_run(self, run_id: str, name: str | None, loop: str, recording: Sequence[Event]) -> RunRecorder:
        """Take up a run: new, or from the end of `recording`. Raises StoreConflict where the store has more of it."""
        with self._lock:
            have = self.position(run_id)
            if have > len(recording):
                raise StoreConflict(
                    f"{self.path} has {have} events of the run {run_id}, the recording {len(recording)}:"
                    " another process has gone on with it. Load it again."
                )
            self._write(
                "INSERT OR IGNORE INTO runs (id, name, loop, created) VALUES (?, ?, ?, ?)",
                run_id,
                name,
                loop,
                time.time(),
            )
            ((number,),) = self._query("SELECT number FROM runs WHERE id = ?", run_id)
            recorder = RunRecorder(self, number)
            for event in recording[have:]:
                recorder.record(event.seq, encode_body(event))
            recorder.flush()
            return recorder

    def close(self) -> None:
        """Close the file; runs that still write to it fail."""
        with self._lock:
            _open.discard(self)
            self._connection.close()

    def name_snapshot(self, name: str, number: int, position: int) -> None:
        """Keep a name for a position of a run; the newest of that name counts."""
        self._write(
            "INSERT INTO snapshots (name, run, position, created) VALUES (?, ?, ?, ?)",
            name,
            number,
            position,
            time.time(),
        )

    def append(self, rows: Sequence[int | bytes]) -> None:
        """Commit events, given as the key of one, its body, the key of the next, and so on.

        One statement for the usual handful: it is a transaction of its own, at two thirds of the cost of three. Raises
        StoreConflict where another process has written one of them first.
        """
        with self._lock:
            try:
                for start in range(0, len(rows), 2 * ROWS_AT_ONCE):
                    some = rows[start : start + 2 * ROWS_AT_ONCE]
                    self._connection.execute(_insert(len(some) // 2), some)
            except sqlite3.IntegrityError as error:
                raise StoreConflict(
                    f"Event {int(rows[0]) % _SPAN} of this run is in {self.path} already: another process goes on"
                    " with it."
                ) from error
            except sqlite3.Error as error:
                raise StorageError(f"{self.path} could not be written: {error}") from error

    def _reason(self, number: int) -> str | None:
        first, last = _keys(number)
        rows = self._query("SELECT body FROM events WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1", first, last)
        try:
            event = decode_event(rows[0][0]) if rows else None
        except ValidationError:  # the list is of all runs; `load` says what is wrong with this one
            return None
        return event.reason if isinstance(event, RunEnd) else None

    def _events(self, number: int, position: int, start: int = 0) -> list[Event]:
        first, _ = _keys(number)
        ((run_id,),) = self._query("SELECT id FROM runs WHERE number = ?", number)
        rows = self._query(
            "SELECT key, body FROM events WHERE key >= ? AND key < ? ORDER BY key", first + start, first + position
        )
        events = []
        for expected, (key, body) in enumerate(rows, start):
            if key - first != expected:
                raise RecordingCorrupt(f"{self.path}: event {expected} of the run is missing.")
            try:
                events.append(decode_body(body, run_id, expected))
            except ValidationError as error:
                raise RecordingCorrupt(f"{self.path}: event {expected} of the run is damaged: {error}") from error
        return events

    def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"{self.path} could not be read: {error}") from error

    def _write(self, sql: str, *values: object) -> None:
        with self._lock:
            try:
                self._connection.execute(sql, values)
            except sqlite3.Error as error:
                raise StorageError(f"{self.path} could not be written: {error}") from error

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"


class RunRecorder:
    """Writes one run's events into a store: `record` gathers, `flush` commits what was gathered at once."""

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self._number = number
        self._first = number * _SPAN
        self._rows: list[int | bytes] = []
        self._failure: StorageError | None = None

    def record(self, seq: int, line: bytes) -> None:
        """Take an event; it is on disk after the next `flush`."""
        self._rows += (self._first + seq, line)

    def flush(self) -> None:
        """Commit what was gathered. Raises StorageError where that failed, and then each time."""
        if self._failure is not None:  # what comes after a gap, or after another process's events, is not this run
            raise self._failure
        if self._rows:
            rows, self._rows = self._rows, []
            try:
                self._store.append(rows)
            except StorageError as error:
                self._failure = error
                raise

    def name_snapshot(self, name: str, position: int) -> None:
        """Keep a name for a position of this run."""
        self._store.name_snapshot(name, self._number, position)


@cache
def _insert(rows: int) -> str:
    return f"INSERT INTO events VALUES {', '.join(['(?, ?)'] * rows)}"


def _keys(number: int) -> tuple[int, int]:
    return number * _SPAN, (number + 1) * _SPAN - 1
