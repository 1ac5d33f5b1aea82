"""The tables of a store, as the steps that have led to them; a new store takes all of them, an older one the rest.

A step is never changed once it was released: stores made by it exist. A store of a newer version than this agentnb
knows is refused, because nobody can tell what reading it would miss.
"""

from __future__ import annotations

from typing import NamedTuple

from agentnb.core.errors import VersionMismatch


class Migration(NamedTuple):
    """A step to version `to`; `what` it changes, and the statements, in words that each database has its own of."""

    to: int
    what: str
    statements: tuple[str, ...]


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
)
STORE_VERSION = MIGRATIONS[-1].to


def pending(version: int, where: str) -> list[Migration]:
    """What has to be done to a store of this version. Raises VersionMismatch where it is of a newer agentnb."""
    if version > STORE_VERSION:
        raise VersionMismatch(
            f"{where} is a store of version {version}; this agentnb reads up to {STORE_VERSION}."
            " Update agentnb-toolkit."
        )
    return [migration for migration in MIGRATIONS if migration.to > version]
