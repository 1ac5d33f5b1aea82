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
    """The right of this process to drive a study. A thread writes its heartbeat."""

    def __init__(self, database: Database, study: str, owner: str) -> None:
        self._database = database
        self._study = study
        self._owner = owner
        self._is_released = threading.Event()
        _held.add(owner)
        threading.Thread(target=self._beat, name="agentnb driver", daemon=True).start()

    def release(self, *, ended: bool) -> None:
        """Let any process drive the study. ended: all was done that this process had to do."""
        self._is_released.set()
        _held.discard(self._owner)
        try:
            sql = "UPDATE drivers SET owner = ? WHERE study = ? AND owner = ?"
            self._database.write(sql, ENDED if ended else "", self._study, self._owner)
        except StorageError as error:
            logger.warning("The study %s could not be released in its store: %s", self._study, error)

    def _beat(self) -> None:
        sql = "UPDATE drivers SET beats = beats + 1 WHERE study = ? AND owner = ?"
        while not self._is_released.wait(BEAT_SECONDS):
            try:
                self._database.write(sql, self._study, self._owner)
            except StorageError as error:  # locked, or away for a moment
                logger.debug("No heartbeat of the study %s: %s", self._study, error)


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
