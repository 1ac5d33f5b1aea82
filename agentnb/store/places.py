"""Where a store may be: a file of its own, or a schema in a database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TypeGuard

from agentnb.core.errors import RecordingMissing
from agentnb.run.given import check_path
from agentnb.store.database import Database
from agentnb.store.postgres import SCHEMES, PostgresDatabase
from agentnb.store.schema import pending
from agentnb.store.sqlite import SqliteDatabase


def is_address(place: object) -> TypeGuard[str]:
    """Whether this is the address of a database, and not the path of a file."""
    return isinstance(place, str) and place.startswith(SCHEMES)


def database_at(place: str | Path, *, read_only: bool = False) -> Database:
    """A connection. Raises StorageError where it cannot be used as a store."""
    if is_address(place):
        return PostgresDatabase(place)
    check_path("Store(path)", place)
    return SqliteDatabase(Path(place), read_only=read_only)


def store_at(place: str | Path) -> Database:
    """A connection to a store that is brought up to date. Raises StorageError, VersionMismatch."""
    database = database_at(place)
    try:
        for step in pending(database.version, database.where):
            database.migrate(step.statements, step.to, step.fill)
    except BaseException:
        database.close()
        raise
    return database


def planned_migrations(place: str | Path) -> list[str]:
    """What opening this file or database with `Store` would change in it, in words; looks without changing anything.

    Raises RecordingMissing, StorageError where it is no store, VersionMismatch where it is of a newer agentnb.
    """
    if not is_address(place):
        check_path("planned_migrations(place)", place)
        if not Path(place).exists():
            raise RecordingMissing(f"There is no store {place}.")
    with closing(database_at(place, read_only=True)) as database:
        return [f"{step.to}: {step.what}" for step in pending(database.version, database.where)]
