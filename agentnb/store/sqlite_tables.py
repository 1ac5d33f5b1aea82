"""The tables of a store in SQLite: how they are made there, and whether a file has them."""

from __future__ import annotations

from contextlib import closing
from functools import cache
from typing import Any

from agentnb.core.errors import RecordingCorrupt, StorageError
from agentnb.store.database import Database
from agentnb.store.schema import MIGRATIONS, STORE_VERSION, TABLES
from agentnb.store.sqlite_file import connect, rescue

WORDS = {
    "identity": "INTEGER PRIMARY KEY",
    "key": "INTEGER PRIMARY KEY",
    "integer": "INTEGER",
    "real": "REAL",
    "bytes": "BLOB",
}
"""SQLite's words for what a schema has its own of."""

Columns = list[tuple[Any, ...]]
"""The names of a table's columns, and which of them are its key."""

_COLUMNS = "SELECT name, pk FROM pragma_table_info(?)"


def check_tables(database: Database) -> None:
    """Refuse what is no store, before anything in it is changed, and what says of itself what no store does."""
    there = {name for (name,) in database.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    version, where = database.version, database.where
    if version > STORE_VERSION and (not there or there & TABLES):  # of a newer agentnb: `pending` refuses it
        return
    if not there and version == 0:  # a new one
        return
    if not there & TABLES or (version == 0 and not there >= TABLES):
        raise StorageError(f"{where} is a database, but no store of agentnb's. Nothing in it was changed.")
    if version < 1 or any(columns(database, table) != known for table, known in _tables(version)):
        said = f"its tables are not those of a store of version {version}, as which it gives itself out"
        raise RecordingCorrupt(f"{where} is damaged: {said}. {rescue(where)}")


def columns(database: Database, table: str) -> Columns:
    """The columns of a table."""
    return database.query(_COLUMNS, table)


@cache
def _tables(version: int) -> list[tuple[str, Columns]]:
    """The tables of a store of this version."""
    with closing(connect(":memory:")) as empty:
        for step in MIGRATIONS:
            for statement in step.statements if step.to <= version else ():
                empty.execute(statement.format_map(WORDS))
        tables = empty.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return [(name, empty.execute(_COLUMNS, (name,)).fetchall()) for (name,) in tables]
