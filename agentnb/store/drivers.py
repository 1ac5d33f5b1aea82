"""Who drives a study of a store: one process, so that each cell of the study is run once.

The table has one row for a study that was started. It is no part of the recordings. The owner is replaced only by
conditional writes, so of two processes that start a study at the same time one gets it. On the host of the owner, it
lives as long as its process exists, even if that is stopped or busy. An observer on another host watches by its own
clock whether the owner's counter changes.
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
from typing import Any

import psutil  # type: ignore[import-untyped]

from agentnb.core.errors import StorageError, UsageError
from agentnb.store.database import Database

TABLE = "drivers"
STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS drivers (study TEXT PRIMARY KEY, owner TEXT NOT NULL, beats {integer} NOT NULL)",
)
"""`owner` is JSON, or empty after the owner has released the study."""

BEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""
GONE_SECONDS = 8.0
"""Seconds without a heartbeat after which an owner on another host is gone."""

logger = logging.getLogger("agentnb")
_held: set[str] = set()
"""The owners of studies that this process drives."""


class Claim:
    """The right to drive a study. Raises UsageError if another living process has it."""

    def __init__(self, database: Database, study: str) -> None:
        self._database = database
        self._study = study
        self._is_released = threading.Event()
        process = os.getpid(), psutil.Process().create_time()
        owner = {"host": _host(), "pid": process[0], "began": process[1], "id": uuid.uuid4().hex}
        self._owner = json.dumps(owner)
        if not database.has_table(TABLE):
            database.create()
            database.add_tables(STATEMENTS)
        database.write("INSERT INTO drivers VALUES (?, '', 0) ON CONFLICT DO NOTHING", study)
        before, beats = self._row()
        if before and _lives(json.loads(before), lambda: self._row() == (before, beats)):
            raise _refusal(study, json.loads(before))
        database.write("UPDATE drivers SET owner = ? WHERE study = ? AND owner = ?", self._owner, study, before)
        if (now := self._row()[0]) != self._owner:
            raise _refusal(study, json.loads(now or "{}"))
        _held.add(self._owner)
        threading.Thread(target=self._beat, name="agentnb driver", daemon=True).start()

    def release(self) -> None:
        """Let any process drive the study."""
        self._is_released.set()
        _held.discard(self._owner)
        try:
            self._database.write(
                "UPDATE drivers SET owner = '' WHERE study = ? AND owner = ?", self._study, self._owner
            )
        except StorageError as error:
            logger.warning("The study %s could not be released in its store: %s", self._study, error)

    def _row(self) -> tuple[str, int]:
        [(owner, beats)] = self._database.query("SELECT owner, beats FROM drivers WHERE study = ?", self._study)
        return str(owner), int(beats)

    def _beat(self) -> None:
        sql = "UPDATE drivers SET beats = beats + 1 WHERE study = ? AND owner = ?"
        while not self._is_released.wait(BEAT_SECONDS):
            try:
                self._database.write(sql, self._study, self._owner)
            except StorageError as error:  # locked, or away for a moment
                logger.debug("No heartbeat of the study %s: %s", self._study, error)


def _host() -> str:
    """Return the name of this host and its space of process numbers: containers may share the name of a host."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}".strip()


def _lives(owner: dict[str, Any], is_unchanged: Callable[[], bool]) -> bool:
    if owner["host"] != _host():
        until = time.monotonic() + GONE_SECONDS
        while time.monotonic() < until:
            if not is_unchanged():
                return True
            time.sleep(BEAT_SECONDS / 2)
        return False
    if owner["pid"] == os.getpid():
        return json.dumps(owner) in _held
    try:
        process = psutil.Process(owner["pid"])
        return bool(abs(process.create_time() - owner["began"]) < 1 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _refusal(study: str, owner: dict[str, Any]) -> UsageError:
    host, pid = str(owner.get("host", "another host")).split(" ")[0], owner.get("pid", "?")
    return UsageError(
        f"The study {study!r} is driven by process {pid} on {host}. Its panel shows it here, too. Call start() again"
        " when that process has cancelled it or has ended."
    )
