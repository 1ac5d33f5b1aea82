"""Salvage: a new store with everything that can be read in a damaged one.

A damaged store is read through SQL alone. SQLite raises an error as soon as a statement meets a damaged page, so a
table is read row by row, from both ends of each damaged part. Rows with a wrong checksum are lost as well. Each lost
event is named.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, UsageError, VersionMismatch
from agentnb.core.events import Event, RunStart
from agentnb.run.validation import check_name, check_path
from agentnb.store import recordings, rows
from agentnb.store.database import SPAN, Database, as_bytes, checksum, row_checksum
from agentnb.store.opening import is_address, open_database, open_store
from agentnb.store.postgres import without_password
from agentnb.store.rows import RunRow
from agentnb.store.sqlite import PAGE_BYTES, SqliteDatabase, copy_file_and_log

ROWS_AT_ONCE = 512
"""Rows read or written by one statement."""

SINGLE_STEPS = 1000
"""Keys that are tried one by one in a damaged part of a table, before the steps are doubled."""

_LAST_KEY = 1 << 62


@dataclass
class _Found:
    """The readable content of a store."""

    runs: dict[int, RunRow] = field(default_factory=dict)
    events: dict[int, bytes] = field(default_factory=dict)
    """Bodies by key."""
    damaged: set[int] = field(default_factory=set)
    """Keys of rows of events with a wrong checksum. The key itself may be wrong."""
    snapshots: list[tuple[str, int, int, float]] = field(default_factory=list)
    tags: list[tuple[int, str]] = field(default_factory=list)
    is_cut_short: bool = False
    """True if events may be missing at the end of a run."""
    losses: list[str] = field(default_factory=list)
    """Other rows that are lost, as text."""


def salvage(damaged: str | Path, into: str | Path) -> list[str]:
    """Make a new store of everything that can be read in a damaged one, and return one line of text for each run.

    The damaged store is not changed. An event that cannot be read is missing in the new store, and the line of its run
    has its number. `load(name, salvage=True)` returns the events before it; `Store.events`, with a position after it,
    returns those after it. A run of which only events are left is called `salvaged-` and a number.

    Raises RecordingMissing, StorageError if nothing can be read, VersionMismatch for a store of another version, and
    UsageError if the new store exists already.
    """
    for place in (damaged, into):
        if not is_address(place):
            check_path("salvage(damaged, into)", place)
    if not is_address(into) and Path(into).exists():
        raise UsageError(f"{into} already exists. Pass the path of a new store for the salvaged runs.")
    if not is_address(damaged) and not Path(damaged).is_file():
        raise RecordingMissing(f"There is no file {damaged} (looked for from {Path.cwd()}).")

    found = _read(damaged)
    if not found.runs and not found.events:
        raise _nothing(damaged)
    with closing(open_store(into)) as database:
        if rows.all_runs(database):
            raise UsageError(f"{database.where} already has runs. Pass a new store for the salvaged runs.")
        return _write(found, database)


def _nothing(damaged: str | Path) -> StorageError:
    where = without_password(damaged) if is_address(damaged) else damaged
    return StorageError(f"Nothing of a store can be read in {where}. Use a backup, or a file that export(path) wrote.")


# -- reading ---------------------------------------------------------------------------------------------------------


def _read(damaged: str | Path) -> _Found:
    try:
        with closing(open_database(damaged, read_only=True)) as database:
            return _read_tables(database)
    except VersionMismatch:
        raise
    except StorageError as error:
        if is_address(damaged):
            raise
        problem = error

    # SQLite opens no file whose first page is damaged. That page describes the tables, which all stores create in the
    # same order, so it is the same in each: take it from a new store, in a copy of the damaged one.
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder, "new.db")
        open_store(new).close()
        first = bytearray(new.read_bytes()[:PAGE_BYTES])
        first[28:32] = bytes(4)  # the number of pages; 0 makes SQLite use the size of the file
        copy = copy_file_and_log(Path(damaged), Path(folder))
        with copy.open("r+b") as file:
            file.write(first)
        try:
            with closing(SqliteDatabase(copy, read_only=True)) as database:
                return _read_tables(database)
        except StorageError:
            raise _nothing(damaged) from problem


def _read_tables(database: Database) -> _Found:
    found = _Found()

    for number, *row, written in _readable(database, "runs", "number", f"{rows.COLUMNS}, checksum"):
        found.runs[number] = rows.run_of(row, written)

    for key, body, written in _readable(database, "events", "key", "body, checksum"):
        if written == checksum(key, as_bytes(body)):
            found.events[key] = as_bytes(body)
        else:
            found.damaged.add(key)
    found.is_cut_short = bool(found.damaged)
    try:
        database.check("events")
    except RecordingCorrupt:
        found.is_cut_short = True

    for _, *row, written in _readable(database, "snapshots", "number", "name, run, position, created, checksum"):
        if written == row_checksum(*row):
            found.snapshots.append((row[0], row[1], row[2], row[3]))
        else:
            found.losses.append(f"the snapshot {row[0]!r} is damaged")

    for table in ("runs", "snapshots", "tags"):
        try:
            database.check(table)
        except RecordingCorrupt:
            found.losses.append(f"rows of the table {table} may be missing")

    # The key of a tag is not one number, so the tags are read run by run, by their index.
    for number, run in found.runs.items():
        try:
            tags = database.query("SELECT tag, checksum FROM tags WHERE run = ?", number)
        except RecordingCorrupt:
            found.losses.append(f"the tags of the run {run.name or run.id!r} are damaged")
            continue
        for tag, written in tags:
            if written == row_checksum(number, tag):
                found.tags.append((number, tag))
            else:
                found.losses.append(f"a tag of the run {run.name or run.id!r} is damaged: {tag!r}")
    return found


def _readable(database: Database, table: str, key: str, columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table that can be read, each with its key first."""
    select = f"SELECT {key}, {columns} FROM {table}"
    try:
        return database.query(f"{select} ORDER BY {key}")
    except RecordingCorrupt:
        pass

    found: dict[int, tuple[Any, ...]] = {}

    def read(where: str, *values: int) -> list[int]:
        some = database.query(f"{select} WHERE {where} LIMIT ?", *values)
        found.update({row[0]: row for row in some})
        return [row[0] for row in some]

    def read_all(where: str, low: int, high: int, *, downwards: bool) -> tuple[int, int]:
        """Read rows between two keys until one cannot be read; return the range that has not been read."""
        count = ROWS_AT_ONCE
        while low < high - 1:
            try:
                some = read(where, low, high, count)
            except RecordingCorrupt:
                if count == 1:
                    break
                count = max(count // 8, 1)
                continue
            if not some:
                return low, low
            if downwards:
                high = min(some[-1], high - 1)
            else:
                low = max(some[-1], low + 1)
        return low, high

    up = f"{key} > ? AND {key} < ? ORDER BY {key}"
    down = f"{up} DESC"
    low = -1
    while True:
        # Read upwards to the next damaged part.
        low, high = read_all(up, low, _LAST_KEY, downwards=False)
        if low >= high - 1:
            break

        # Step over the damaged part: try the next keys one by one, then further and further away.
        step = tries = 1
        after: list[int] | None = None
        while after is None and low + step < _LAST_KEY:
            try:
                after = read(up, low + step, _LAST_KEY, 1)
            except RecordingCorrupt:
                tries += 1
                step += 1 if tries < SINGLE_STEPS else step

        # Read downwards from where it can be read again, because the last step may have been too long.
        end = after[0] if after else _LAST_KEY
        read_all(down, low, end, downwards=True)
        if not after:
            break
        low = end
    return [found[key] for key in sorted(found)]


# -- writing ---------------------------------------------------------------------------------------------------------


def _write(found: _Found, database: Database) -> list[str]:
    own = {number: list(group) for number, group in groupby(sorted(found.events), key=lambda key: key // SPAN)}
    numbers: dict[int, int] = {}
    with database.transaction():
        # Runs. An origin has a smaller number than its forks, so it comes first.
        ids: set[str] = set()
        for number in sorted({*found.runs, *own}):
            run = _usable(found, number, own.get(number, []), ids)
            found.runs[number] = run
            ids.add(run.id)
            origin = numbers.get(run.origin) if run.origin is not None else None
            shared = run.shared if origin is not None else 0
            numbers[number] = rows.add_run(database, run.id, run.name, run.loop, run.created, origin, shared)

        # Events, under the numbers that their runs have in the new store.
        stored = sorted(found.events)
        for start in range(0, len(stored), ROWS_AT_ONCE):
            batch: list[int | bytes] = []
            for key in stored[start : start + ROWS_AT_ONCE]:
                moved = numbers[key // SPAN] * SPAN + key % SPAN
                batch += (moved, found.events[key], checksum(moved, found.events[key]))
            database.append(batch)

        for name, number, position, created in found.snapshots:
            if number in numbers:
                rows.add_snapshot(database, name, numbers[number], position, created)
        for number, tag in found.tags:
            rows.add_tag(database, numbers[number], tag)

    return [*(_line(found, found.runs[number], own) for number in sorted(numbers)), *found.losses]


def _usable(found: _Found, number: int, stored: list[int], ids: set[str]) -> RunRow:
    """Return the row of a run. If it is lost, or too damaged to be used, return one made of the first event."""
    run = found.runs.get(number)
    if run is not None and run.id not in ids:
        if not run.is_damaged:
            return run
        try:
            check_name("A run's id, name and loop", run.id, run.loop, *([] if run.name is None else [run.name]))
            return run
        except UsageError:
            pass
    first = _event(found, stored[0]) if stored else None
    loop = first.loop if isinstance(first, RunStart) else "unknown"
    created = first.time if first is not None else 0.0
    return RunRow(number, f"salvaged-{number}", None, loop, created, None, 0, is_damaged=run is not None)


def _line(found: _Found, run: RunRow, own: dict[int, list[int]]) -> str:
    """Return the text about a run: how many events it has, and which ones are damaged."""
    try:
        parts = recordings.segments(run, 0, SPAN, found.runs.__getitem__)
    except (KeyError, RecordingCorrupt):
        parts = [recordings.Segment(run.number, 0, SPAN)]
    seqs = [key % SPAN for part in parts for key in own.get(part.number, ()) if part.start <= key % SPAN < part.end]
    end = max(seqs[-1] + 1 if seqs else 0, run.shared)
    while run.number * SPAN + end in found.damaged:
        end += 1
    text = f"{run.name or run.id}: {len(seqs)} events" if seqs else f"{run.name or run.id}: no events"

    # Consecutive numbers have the same difference to their index.
    missing = sorted(set(range(end)) - set(seqs))
    ranges = [[seq for _, seq in group] for _, group in groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0])]
    if ranges:
        gaps = [str(gap[0]) if len(gap) == 1 else f"{gap[0]} to {gap[-1]}" for gap in ranges]
        text += f"; damaged: {', '.join(gaps)}"
    if found.is_cut_short and not _has_ended(found, parts[-1].number, own):
        text += "; events may be missing at its end"
    if run.is_damaged:
        text += "; its name, id, loop or date is damaged"
    return text


def _has_ended(found: _Found, number: int, own: dict[int, list[int]]) -> bool:
    last = _event(found, own[number][-1]) if own.get(number) else None
    return last is not None and last.terminal


def _event(found: _Found, key: int) -> Event | None:
    return recordings.decode(key, found.events[key], checksum(key, found.events[key]))
