"""Opening a store: the choice of the database for a path or an address, and the tables of a new store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TypeGuard

from agentnb.core.errors import RecordingMissing
from agentnb.run.validation import check_path, expanded
from agentnb.store.database import TABLES, VERSION, Database
from agentnb.store.postgres import SCHEMES, PostgresDatabase
from agentnb.store.sqlite import SqliteDatabase


def is_address(place: object) -> TypeGuard[str]:
    """Return True if a place is the address of a database, and not the path of a file."""
    return isinstance(place, str) and place.startswith(SCHEMES)


def open_database(place: str | Path, *, read_only: bool = False) -> Database:
    """Return a connection to a file or a server; it may have no tables yet.

    Raises StorageError if it cannot be used as a store, VersionMismatch if it is a store of another version.
    """
    if is_address(place):
        return PostgresDatabase(place)
    check_path("Store(path)", place)
    return SqliteDatabase(expanded(place), read_only=read_only)


def open_store(place: str | Path) -> Database:
    """Return a connection to a store, which is created if it is not there. Raises as `open_database` does."""
    database = open_database(place)
    try:
        if database.version == 0:
            database.create()
    except BaseException:
        database.close()
        raise
    return database


def planned_migrations(place: str | Path) -> list[str]:
    """Return what opening a file or database with `Store` would change in it. Nothing is changed.

    There is one version of the tables, so the list names the creation of the tables, or is empty.

    Raises RecordingMissing if the file is missing, StorageError if it is not a store, VersionMismatch if it is a store
    of another version.
    """
    if not is_address(place):
        check_path("planned_migrations(place)", place)
        if not expanded(place).exists():
            raise RecordingMissing(f"There is no store {place} (looked for from {Path.cwd()}).")
    with closing(open_database(place, read_only=True)) as database:
        return [f"{VERSION}: the tables {', '.join(TABLES)}"] if database.version == 0 else []
