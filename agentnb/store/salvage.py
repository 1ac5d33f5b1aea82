"""A new store of what can be read in a damaged one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from agentnb.core.errors import RecordingMissing, StorageError, UsageError
from agentnb.core.events import RunStart, decode_event
from agentnb.run.given import check_path
from agentnb.store import rows
from agentnb.store.database import SPAN, Database, as_bytes, checksum, fits, row_checksum
from agentnb.store.pages import Rows, rows_in
from agentnb.store.places import database_at, is_address, store_at

AT_ONCE = 1000
"""Events written in one go."""


def salvage(damaged: str | Path, into: str | Path) -> list[str]:
    """Make a new store of all that can be read in a damaged one, which is not changed; gives what that is, in words.

    An event that cannot be read is missing in the new store, and named; those behind it are there (`events`, with the
    position to begin at), and the run up to it is what `load(name, salvage=True)` gives. A run of which nothing but
    events is left is called `salvaged-` and a number. Raises RecordingMissing, StorageError where there is nothing
    to be read, and UsageError where the new store is there already.
    """
    for place in (damaged, into):
        if not is_address(place):
            check_path("salvage(damaged, into)", place)
    if not is_address(into) and Path(into).exists():
        raise UsageError(f"{into} is there already; what is salvaged goes into a store of its own.")
    if is_address(damaged):
        with closing(database_at(damaged)) as database:
            found, where = _rows_of(database), database.where
    elif Path(damaged).is_file():
        found, where = rows_in(Path(damaged)), str(damaged)
    else:
        raise RecordingMissing(f"There is no file {damaged} (looked for from {Path.cwd()}).")
    if not found.runs and not found.events:
        raise StorageError(f"Nothing of a store can be read in {where}.")
    with closing(store_at(into)) as database:
        if rows.all_runs(database):
            raise UsageError(f"{database.where} has runs already; what is salvaged goes into a store of its own.")
        return _write(found, database)


def _rows_of(database: Database) -> Rows:
    found = Rows()
    for key, body, written in database.query("SELECT key, body, checksum FROM events"):
        if fits(written, checksum(key, as_bytes(body))):
            found.events[key] = as_bytes(body)
    for number, *row, written in database.query("SELECT number, id, name, loop, created, checksum FROM runs"):
        found.runs[number] = row
        if not fits(written, row_checksum(number, *row)):
            found.changed_runs.add(number)
    snapshots = database.query("SELECT number, name, run, position, created FROM snapshots")
    found.snapshots = {number: row for number, *row in snapshots}
    found.tags = {(run, tag) for run, tag in database.query("SELECT run, tag FROM tags")}
    return found


def _write(found: Rows, database: Database) -> list[str]:
    said = []
    keys = sorted(found.events)
    of_run = {number: list(group) for number, group in groupby(keys, key=lambda key: key // SPAN)}
    numbers = {}
    with database.transaction():
        for number in sorted({*found.runs, *of_run}):
            there = of_run.get(number, [])
            run = found.runs.get(number) or _made_up(number, found.events[there[0]])
            numbers[number] = rows.add_run(database, *run)
            doubt = "; its name, id, loop or date is damaged" if number in found.changed_runs - found.sound_runs else ""
            said.append(f"{run[1] or run[0]}: {_told([key % SPAN for key in there])}{doubt}")
        for start in range(0, len(keys), AT_ONCE):
            database.append(list(_moved(keys[start : start + AT_ONCE], found.events, numbers)))
        for _, (name, old, position, created) in sorted(found.snapshots.items()):
            if old in numbers:
                rows.add_snapshot(database, name, numbers[old], position, created)
        for old, tag in sorted(found.tags):
            if old in numbers:
                rows.add_tag(database, numbers[old], tag)
    return said


def _moved(keys: list[int], events: dict[int, bytes], numbers: dict[int, int]) -> Iterator[int | bytes]:
    """The rows of events, under the numbers that their runs have in the new store."""
    for key in keys:
        moved = numbers[key // SPAN] * SPAN + key % SPAN
        yield from (moved, events[key], checksum(moved, events[key]))


def _made_up(number: int, first: bytes) -> list[Any]:
    """A run's row that is lost, from its first event."""
    event = decode_event(first)
    return [f"salvaged-{number}", None, event.loop if isinstance(event, RunStart) else "unknown", event.time]


def _told(positions: list[int]) -> str:
    """Which events there are, and which are not, in words."""
    if not positions:
        return "no events"
    missing = sorted(set(range(positions[-1])) - set(positions))
    ranges = [list(group) for _, group in groupby(enumerate(missing), key=lambda one: one[1] - one[0])]
    gaps = ", ".join(str(a[1]) if a is b else f"{a[1]} to {b[1]}" for a, b in ((r[0], r[-1]) for r in ranges))
    return f"{len(positions)} events" + (f"; damaged: {gaps}" if gaps else "")
