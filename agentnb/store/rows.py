"""What a store knows of runs beside their events: the rows of its small tables, each with a checksum."""

from __future__ import annotations

from typing import NamedTuple

from agentnb.core.errors import RecordingCorrupt
from agentnb.store.database import Database, fits, row_checksum


class RunRow(NamedTuple):
    """A run's row, and its tags. `damaged`: of one of these the checksum is another one."""

    number: int
    id: str
    name: str | None
    loop: str
    created: float
    tags: tuple[str, ...]
    damaged: bool


def check(database: Database) -> None:
    """Raise RecordingCorrupt where a run, a snapshot or a tag may be missing."""
    for table in ("runs", "snapshots", "tags"):
        database.check(table)


def all_runs(database: Database) -> list[RunRow]:
    """Newest first. Raises RecordingCorrupt where one may be missing."""
    check(database)
    tags: dict[int, list[str]] = {}
    damaged = set()
    for number, tag, written in database.query("SELECT run, tag, checksum FROM tags"):
        tags.setdefault(number, []).append(str(tag))
        if not fits(written, row_checksum(number, tag)):
            damaged.add(number)
    found = database.query(
        "SELECT number, id, name, loop, created, checksum FROM runs ORDER BY created DESC, number DESC"
    )
    runs = []
    for number, id, name, loop, created, written in found:
        sound = fits(written, row_checksum(number, id, name, loop, created)) and number not in damaged
        sound = sound and all(isinstance(text, str) for text in (id, name or "", loop))
        runs.append(RunRow(number, id, name, loop, created, tuple(sorted(tags.get(number, ()))), not sound))
    return runs


def add_run(database: Database, id: str, name: str | None, loop: str, created: float) -> int:
    """Make a run's row where there is none yet; gives its number."""
    with database.transaction():
        database.write(
            "INSERT INTO runs (id, name, loop, created) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            *(id, name, loop, float(created)),
        )
        ((number, written),) = database.query("SELECT number, checksum FROM runs WHERE id = ?", id)
        if written is None:
            _check(database, number)
    return int(number)


def rename_run(database: Database, number: int, name: str) -> None:
    """Give a run another name."""
    with database.transaction():
        database.write("UPDATE runs SET name = ? WHERE number = ?", name, number)
        _check(database, number)


def _check(database: Database, number: int) -> None:
    (row,) = database.query("SELECT number, id, name, loop, created FROM runs WHERE number = ?", number)
    database.write("UPDATE runs SET checksum = ? WHERE number = ?", row_checksum(*row), number)


def id_of(database: Database, number: int, *, salvage: bool) -> str:
    """A run's id. Raises RecordingCorrupt where what stands beside it was changed, and it perhaps too."""
    columns = "number, id, name, loop, created, checksum"
    rows = database.query(f"SELECT {columns} FROM runs WHERE number = ?", number)
    if not rows:
        raise RecordingCorrupt(f"{database.where}: what it says of the run {number} is missing.")
    *row, written = rows[0]
    if not fits(written, row_checksum(*row)) and not salvage:
        raise RecordingCorrupt(
            f"{database.where}: what it says of the run {row[2] or row[1]!r} (its name, id, loop or date) is damaged:"
            " its checksum is another one."
        )
    return str(row[1])


def not_before(database: Database, table: str, now: float) -> float:
    """When what is written now was made: no earlier than what is there, so that the newest was written last.

    The computer's clock may have been set back.
    """
    ((latest,),) = database.query(f"SELECT max(created) FROM {table}")
    return now if latest is None else max(now, latest)


def add_snapshot(database: Database, name: str, run: int, position: int, created: float) -> None:
    """Keep a name for a position of a run."""
    row = (name, run, position, float(created))
    database.write(
        "INSERT INTO snapshots (name, run, position, created, checksum) VALUES (?, ?, ?, ?, ?)",
        *(*row, row_checksum(*row)),
    )


def snapshot_named(database: Database, name: str, *, salvage: bool) -> tuple[int, int] | None:
    """The run and the position that have this name. Raises RecordingCorrupt where they were changed."""
    rows = database.query(
        "SELECT name, run, position, created, checksum FROM snapshots WHERE name = ?"
        " ORDER BY created DESC, number DESC LIMIT 1",
        name,
    )
    if not rows:
        return None
    *row, written = rows[0]
    if not fits(written, row_checksum(*row)) and not salvage:
        raise _damaged_snapshot(database, name)
    return row[1], row[2]


def snapshots_of(database: Database, run: int) -> list[tuple[str, int, float]]:
    """The names of a run's positions, oldest first, and when they were given."""
    sql = "SELECT name, run, position, created, checksum FROM snapshots WHERE run = ? ORDER BY number"
    rows = database.query(sql, run)
    for *row, written in rows:
        if not fits(written, row_checksum(*row)):
            raise _damaged_snapshot(database, row[0])
    return [(name, position, created) for name, _, position, created, _ in rows]


def _damaged_snapshot(database: Database, name: str) -> RecordingCorrupt:
    return RecordingCorrupt(f"{database.where}: the snapshot {name!r} is damaged: its checksum is another one.")


def add_tag(database: Database, run: int, tag: str) -> None:
    """Put a tag on a run; one that is there already stays."""
    sql = "INSERT INTO tags (run, tag, checksum) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    database.write(sql, run, tag, row_checksum(run, tag))


def remove_tag(database: Database, run: int, tag: str) -> None:
    """Take a tag off a run; one that is not there is no error."""
    database.write("DELETE FROM tags WHERE run = ? AND tag = ?", run, tag)
