"""The tables of a store, as the steps that have led to them; a new store takes all of them, an older one the rest.

A step is never changed once it was released: stores made by it exist. A store of a newer version than this agentnb
knows is refused, because nobody can tell what reading it would miss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from agentnb.core.errors import VersionMismatch
from agentnb.store.database import Database, checksum, row_checksum

AT_ONCE = 1000
"""Events that are read and written in one go."""


class Migration(NamedTuple):
    """A step to version `to`.

    `what` it changes: statements, in words that each database has its own of, and then what these cannot say.
    """

    to: int
    what: str
    statements: tuple[str, ...]
    fill: Callable[[Database], None] = lambda database: None


def _fill_checksums(database: Database) -> None:
    """Every row has one from here on, but what an older agentnb writes that has the store open at this moment."""
    runs = database.query("SELECT number, id, name, loop, created FROM runs")
    for row in runs:
        database.write("UPDATE runs SET checksum = ? WHERE number = ?", row_checksum(*row), row[0])
    snapshots = database.query("SELECT number, name, run, position, created FROM snapshots")
    for number, *named in snapshots:
        database.write("UPDATE snapshots SET checksum = ? WHERE number = ?", row_checksum(*named), number)
    for run, tag in database.query("SELECT run, tag FROM tags"):
        database.write("UPDATE tags SET checksum = ? WHERE run = ? AND tag = ?", row_checksum(run, tag), run, tag)
    last = -1
    unchecked = "SELECT key, body FROM events WHERE checksum IS NULL AND key > ? ORDER BY key LIMIT ?"
    while events := database.query(unchecked, last, AT_ONCE):
        for key, body in events:
            database.write("UPDATE events SET checksum = ? WHERE key = ?", checksum(key, bytes(body)), key)
        last = events[-1][0]


MIGRATIONS = (
    Migration(
        1,
        "tables for runs, events and named snapshots",
        (
            "CREATE TABLE runs (number {identity}, id TEXT NOT NULL UNIQUE, name TEXT, loop TEXT NOT NULL,"
            " created {real} NOT NULL)",
            "CREATE TABLE events (key {key}, body {bytes} NOT NULL)",
            "CREATE TABLE snapshots (number {identity}, name TEXT NOT NULL, run {integer} NOT NULL,"
            " position {integer} NOT NULL, created {real} NOT NULL)",
            "CREATE INDEX snapshots_by_name ON snapshots (name)",
        ),
    ),
    Migration(
        2,
        "a checksum for each event, and tags of runs",
        (
            "ALTER TABLE events ADD COLUMN checksum {integer}",  # None for an event from before
            "CREATE TABLE tags (run {integer} NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (run, tag))",
        ),
    ),
    Migration(
        3,
        "a checksum for each run, snapshot and tag, and for each event that has none",
        tuple(f"ALTER TABLE {table} ADD COLUMN checksum {{integer}}" for table in ("runs", "snapshots", "tags")),
        _fill_checksums,
    ),
)
STORE_VERSION = MIGRATIONS[-1].to

TABLES = frozenset({"runs", "events", "snapshots"})
"""What every version has."""


def pending(version: int, where: str) -> list[Migration]:
    """What has to be done to a store of this version. Raises VersionMismatch where it is of a newer agentnb."""
    if version > STORE_VERSION:
        raise VersionMismatch(
            f"{where} is a store of version {version}; this agentnb reads up to {STORE_VERSION}."
            " Update agentnb-toolkit."
        )
    return [migration for migration in MIGRATIONS if migration.to > version]
