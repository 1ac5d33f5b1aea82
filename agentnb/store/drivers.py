"""Who drives a study of a store: one process, so that each cell of the study is run once.

The table has one row for a study that was started. It is no part of the recordings. The owner is replaced only by
conditional writes, so of two processes that start a study at the same time one gets it, and the other one follows
(`agentnb.studies.elsewhere`). On the host of the owner, it lives as long as its process exists, even if that is stopped
or busy. An observer on another host watches by its own clock whether the owner's counter changes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import psutil  # type: ignore[import-untyped]

from agentnb.core.errors import StorageError, StoreBusy
from agentnb.store.database import PAUSE_SECONDS, Database

TABLE = "drivers"
STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS drivers (study TEXT PRIMARY KEY, owner TEXT NOT NULL, beats {integer} NOT NULL)",
)
"""`owner` is JSON; `ENDED` after the owner has done all, and empty after it has left the study before that."""
ENDED = "ended"
_FREE = ("", ENDED)

BEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""
GONE_SECONDS = 8.0
"""Seconds without a heartbeat after which an owner on another host is gone."""

RELEASE_SECONDS = 0.2
"""Seconds between two attempts to release a study whose store is away."""
CLAIM_SECONDS = 0.3
"""Seconds that a claim waits for another write, which takes milliseconds. The caller may be in an event loop."""

logger = logging.getLogger("agentnb")
_held: set[str] = set()
"""The owners of studies that this process drives."""


class Owner:
    """Another study object that drives a study, in this process or in another one, as the store has it."""

    def __init__(self, database: Database, study: str, row: tuple[str, int]) -> None:
        self._database = database
        self._study = study
        self._note(row)

    def __str__(self) -> str:
        if self._text in _FREE:
            return "another process"
        data = json.loads(self._text)
        host = str(data["host"]).split(" ")[0]
        own = " (this one)" if (data["host"], data["pid"]) == (_host(), os.getpid()) else ""
        return f"process {data['pid']}{own} on {host}"

    def look(self) -> Literal["drives", "gone", "cancelled", "ended"]:
        """Return what has become of the owner. An owner on another host is gone after `GONE_SECONDS` of silence.

        If another one has taken its place, that is the owner from now on.
        """
        row = _row(self._database, self._study)
        if row[0] in _FREE:
            return "ended" if row[0] == ENDED else "cancelled"
        if row != self._seen:
            self._note(row)
        return "drives" if _lives(json.loads(self._text), time.monotonic() - self._since) else "gone"

    def replace(self) -> Claim | None:
        """Return the right to drive the study in place of this owner; None if somebody else has it now."""
        before = _row(self._database, self._study)[0]
        own = _take(self._database, self._study, before) if before in (self._text, ENDED) else None
        return Claim(self._database, self._study, own) if own is not None else None

    def _note(self, row: tuple[str, int]) -> None:
        self._seen, self._text, self._since = row, row[0], time.monotonic()


class Claim:
    """The right of this process to drive a study. A thread writes its heartbeat.

    `lost` is called in that thread if another process has taken the study over: it did not see the heartbeat for long.
    """

    def __init__(self, database: Database, study: str, owner: str) -> None:
        self.lost: Callable[[Owner], object] = lambda owner: None
        self._database = database
        self._study = study
        self._owner = owner
        self._released_as: str | None = None
        self._is_released = threading.Event()
        _held.add(owner)
        threading.Thread(target=self._beat, name="agentnb driver", daemon=True).start()

    def release(self, *, ended: bool) -> None:
        """Let any process drive the study. ended: all was done that this process had to do.

        If the store is away, the heartbeat's thread releases the study later.
        """
        self._released_as = ENDED if ended else ""
        with suppress(StorageError):
            self._write()
        self._is_released.set()

    def _write(self) -> None:
        """Write a heartbeat, or that the study is released."""
        if (released := self._released_as) is not None:
            sql = "UPDATE drivers SET owner = ? WHERE study = ? AND owner = ?"
            with self._database.transaction(patient=False):
                self._database.write(sql, released, self._study, self._owner)
            _held.discard(self._owner)
        else:
            sql = "UPDATE drivers SET beats = beats + 1 WHERE study = ? AND owner = ?"
            self._database.write(sql, self._study, self._owner)

    def _beat(self) -> None:
        while self._owner in _held:
            try:
                if self._released_as is None or self._is_released.is_set():
                    self._write()
                row = _row(self._database, self._study)
            except StoreBusy as error:  # locked, or away for a moment
                logger.debug("No heartbeat of the study %s: %s", self._study, error)
            except StorageError as error:  # closed, or no longer there
                logger.debug("The study %s has no heartbeat any longer: %s", self._study, error)
                _held.discard(self._owner)
            else:
                if row[0] != self._owner and self._released_as is None:
                    _held.discard(self._owner)
                    self.lost(Owner(self._database, self._study, row))
            if self._is_released.wait(BEAT_SECONDS) and self._owner in _held:
                time.sleep(RELEASE_SECONDS)


def claim(database: Database, study: str) -> Claim | Owner:
    """Return the right to drive a study, or who has it. Raises StoreBusy soon if another process writes for long."""
    if not database.has_table(TABLE):
        database.create()
        database.add_tables(STATEMENTS)
    until = time.monotonic() + CLAIM_SECONDS
    while True:
        try:
            return _claim(database, study)
        except StoreBusy:
            if time.monotonic() >= until:
                raise
        time.sleep(PAUSE_SECONDS)


def _claim(database: Database, study: str) -> Claim | Owner:
    own = None
    with database.transaction(patient=False):
        database.write("INSERT INTO drivers VALUES (?, '', 0) ON CONFLICT DO NOTHING", study)
        row = _row(database, study)
        if row[0] in _FREE or not _lives(json.loads(row[0]), 0.0):
            own = _take(database, study, row[0])
            row = _row(database, study)
    return Claim(database, study, own) if own is not None else Owner(database, study, row)


def _take(database: Database, study: str, before: str) -> str | None:
    """Put this process into the row, in the place of `before`. Return None if somebody else was faster."""
    process = psutil.Process()
    own = json.dumps({"host": _host(), "pid": process.pid, "began": process.create_time(), "id": uuid.uuid4().hex})
    database.write("UPDATE drivers SET owner = ? WHERE study = ? AND owner = ?", own, study, before)
    return own if _row(database, study)[0] == own else None


def _row(database: Database, study: str) -> tuple[str, int]:
    [(owner, beats)] = database.query("SELECT owner, beats FROM drivers WHERE study = ?", study)
    return str(owner), int(beats)


def _host() -> str:
    """Return the name of this host and its space of process numbers: containers may share the name of a host."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}".strip()


def _lives(owner: dict[str, Any], silent: float) -> bool:
    """Return True unless the owner is gone. silent: the seconds since its heartbeat has changed."""
    if owner["host"] != _host():
        return silent < GONE_SECONDS
    if owner["pid"] == os.getpid():
        return json.dumps(owner) in _held
    try:
        process = psutil.Process(owner["pid"])
        return bool(abs(process.create_time() - owner["began"]) < 1 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
