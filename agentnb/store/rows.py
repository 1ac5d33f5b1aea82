"""The small tables of a store: runs, named snapshots and tags. Each row has a checksum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from agentnb.core.errors import RecordingCorrupt
from agentnb.store.database import Database, row_checksum

# -- runs ------------------------------------------------------------------------------------------------------------


class RunRow(NamedTuple):
    """A run's row. Its events 1 to `shared` - 1 are stored for the run `origin`; other runs have `shared` 0."""

    number: int
    id: str
    name: str | None
    loop: str
    created: float
    origin: int | None
    shared: int
    tags: tuple[str, ...] = ()
    is_damaged: bool = False
    """True if the checksum of the row, or of one of its tags, is wrong."""


COLUMNS = "number, id, name, loop, created, origin, shared"


def check(database: Database) -> None:
    """Raise RecordingCorrupt if a run, a snapshot or a tag may be missing."""
    for table in ("runs", "snapshots", "tags"):
        database.check(table)


def all_runs(database: Database) -> list[RunRow]:
    """Return all runs, newest first. Raises RecordingCorrupt if one may be missing."""
    check(database)
    tags: dict[int, list[str]] = {}
    damaged = set()
    for number, tag, written in database.query("SELECT run, tag, checksum FROM tags"):
        tags.setdefault(number, []).append(str(tag))
        if written != row_checksum(number, tag):
            damaged.add(number)
    runs = []
    for *row, written in database.query(f"SELECT {COLUMNS}, checksum FROM runs ORDER BY created DESC, number DESC"):
        run = run_of(row, written)
        if run.number in tags:
            is_damaged = run.is_damaged or run.number in damaged
            run = run._replace(tags=tuple(sorted(tags[run.number])), is_damaged=is_damaged)
        runs.append(run)
    return runs


def run_at(database: Database, number: int, *, salvage: bool = False) -> RunRow:
    """Return the row of a run. Raises RecordingCorrupt if it is missing or, without `salvage`, damaged."""
    found = database.query(f"SELECT {COLUMNS}, checksum FROM runs WHERE number = ?", number)
    if not found:
        raise RecordingCorrupt(f"{database.where}: the row of the run with the number {number} is missing.")
    *row, written = found[0]
    run = run_of(row, written)
    if run.is_damaged and not salvage:
        raise RecordingCorrupt(
            f"{database.where}: the row of the run {run.name or run.id!r} (its name, id, loop or date) is damaged: its"
            " checksum is wrong."
        )
    return run


def run_of(row: Sequence[Any], written: object) -> RunRow:
    """Return a row with usable values, and a mark if it is damaged. A damaged row shares no events with others."""
    number, id, name, loop, created, origin, shared = row
    if written == row_checksum(*row):
        return RunRow(number, id, name, loop, created, origin, shared)
    created = created if isinstance(created, float) else 0.0
    return RunRow(number, str(id), None if name is None else str(name), str(loop), created, None, 0, is_damaged=True)


def number_of(database: Database, id: str) -> int | None:
    """Return the number of the run with this id, or None if the store does not have it."""
    found = database.query("SELECT number FROM runs WHERE id = ?", id)
    return int(found[0][0]) if found else None


def add_run(
    database: Database,
    id: str,
    name: str | None,
    loop: str,
    created: float,
    origin: int | None = None,
    shared: int = 0,
) -> int:
    """Add a run, unless it is there already, and return its number. Called in a transaction."""
    database.write(
        "INSERT INTO runs (id, name, loop, created, origin, shared, checksum) VALUES (?, ?, ?, ?, ?, ?, 0)"
        " ON CONFLICT DO NOTHING",
        *(id, name, loop, float(created), origin, shared),
    )
    ((number, written),) = database.query("SELECT number, checksum FROM runs WHERE id = ?", id)
    if written == 0:  # added here: the number, which belongs to the checksum, was not known before
        _write_checksum(database, number)
    return int(number)


def rename_run(database: Database, number: int, name: str) -> None:
    """Give a run another name."""
    with database.transaction():
        database.write("UPDATE runs SET name = ? WHERE number = ?", name, number)
        _write_checksum(database, number)


def _write_checksum(database: Database, number: int) -> None:
    (row,) = database.query(f"SELECT {COLUMNS} FROM runs WHERE number = ?", number)
    database.write("UPDATE runs SET checksum = ? WHERE number = ?", row_checksum(*row), number)


def not_before(database: Database, table: str, now: float) -> float:
    """Return `now`, or the newest date in the table if it is later because the clock has been set back."""
    ((latest,),) = database.query(f"SELECT max(created) FROM {table}")
    return now if latest is None else max(now, latest)


# -- snapshots -------------------------------------------------------------------------------------------------------


def add_snapshot(database: Database, name: str, run: int, position: int, created: float) -> None:
    """Give a position of a run a name."""
    row = (name, run, position, float(created))
    database.write(
        "INSERT INTO snapshots (name, run, position, created, checksum) VALUES (?, ?, ?, ?, ?)",
        *(*row, row_checksum(*row)),
    )


def snapshot_named(database: Database, name: str, *, salvage: bool) -> tuple[int, int] | None:
    """Return the run and the position with a name, the newest of several, or None.

    Raises RecordingCorrupt if the row is damaged, unless `salvage` is given.
    """
    found = database.query(
        "SELECT name, run, position, created, checksum FROM snapshots WHERE name = ?"
        " ORDER BY created DESC, number DESC LIMIT 1",
        name,
    )
    if not found:
        return None
    *row, written = found[0]
    if written != row_checksum(*row) and not salvage:
        raise _damaged_snapshot(database, name)
    return row[1], row[2]


def snapshots_of(database: Database, run: int, *, salvage: bool = False) -> list[tuple[str, int, float]]:
    """Return the named positions of a run as (name, position, created), oldest first.

    A damaged row raises RecordingCorrupt, or is left out if `salvage` is given.
    """
    sql = "SELECT name, run, position, created, checksum FROM snapshots WHERE run = ? ORDER BY number"
    found = []
    for *row, written in database.query(sql, run):
        if written == row_checksum(*row):
            found.append((row[0], row[2], row[3]))
        elif not salvage:
            raise _damaged_snapshot(database, row[0])
    return found


def _damaged_snapshot(database: Database, name: str) -> RecordingCorrupt:
    return RecordingCorrupt(f"{database.where}: the snapshot {name!r} is damaged: its checksum is wrong.")


# -- tags ------------------------------------------------------------------------------------------------------------


def add_tag(database: Database, run: int, tag: str) -> None:
    """Add a tag to a run, unless it has it."""
    sql = "INSERT INTO tags (run, tag, checksum) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    database.write(sql, run, tag, row_checksum(run, tag))


def remove_tag(database: Database, run: int, tag: str) -> None:
    """Remove a tag from a run, if it has it."""
    database.write("DELETE FROM tags WHERE run = ? AND tag = ?", run, tag)
