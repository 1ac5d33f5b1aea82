"""The events of runs in a store: how they are written, shared by forks, read, and verified.

An event is one row: a key made of the run's number and the event's number, the event as JSON without these two, and a
checksum of key and JSON. A row with a wrong checksum is reported and never returned. A missing row is found by the
numbers of the rows around it; at the end of a run, by its last event (`RunEnd`) or else by the database's own check.

The events that a fork has in common with another run of the same store are not copied. The fork's row in the table of
runs names that run and the number of shared events, so that the cost of a fork does not depend on its length. Reading a
run reads one segment of rows for each run that it shares events with.

This is the only module of the store that encodes and decodes events, also for exported files.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentnb.core.errors import RecordingCorrupt, StorageError, StoreBusy, StoreConflict, printable
from agentnb.core.events import Event, RunStart, decode_body, decode_event, encode_body, encode_event
from agentnb.store import rows
from agentnb.store.database import SPAN, Database, as_bytes, checksum, keys
from agentnb.store.outlines import Outline, outlines_of
from agentnb.store.rows import RunRow

# -- encoding --------------------------------------------------------------------------------------------------------


def decode(key: int, body: bytes, written: object, *, run_id: str = "") -> Event | None:
    """Return the event in a row, or None if the row is damaged."""
    if written != checksum(key, body):
        return None
    try:
        return decode_body(body, run_id, key % SPAN)
    except ValueError:
        return None


def to_json(event: Event) -> bytes:
    """Return an event as JSON for an exported file, where all events after the line of a run are of that run."""
    return encode_event(event, without=["run_id"])


def from_json(text: str, run_id: str) -> Event:
    """Return the event that `to_json` wrote. Raises ValueError."""
    return replace(decode_event(text), run_id=run_id)


def types_with(field: str) -> list[str]:
    """Return the types of events that have a field."""
    return [str(kind.__struct_config__.tag) for kind in Event.__subclasses__() if field in kind.__struct_fields__]


def first_bytes(type: str) -> tuple[bytes, bytes]:
    """Return a lower and an upper bound of the bodies of all events of a type. A body begins with the type."""
    begins = b'{"type":"%s' % type.encode()
    return begins + b'"', begins + b"#"  # the character after the quotation mark


def is_same(one: Event, other: Event) -> bool:
    """Return True if two events have the same content. `==` is not enough: NaN does not equal itself."""
    return one == other or encode_body(one) == encode_body(other)


def _inherited(event: Event, run_id: str) -> Event:
    """Return an event of another run as the event of a fork that shares it."""
    return replace(event, run_id=run_id, inherited=True)


def _row(number: int, event: Event) -> tuple[int, bytearray, int]:
    return _encoded_row(number, event.seq, encode_body(event))


def _encoded_row(number: int, seq: int, body: bytes) -> tuple[int, bytearray, int]:
    key = number * SPAN + seq
    # As a bytearray, because sqlite3 looks for an adapter for each value of type bytes.
    return key, bytearray(body), checksum(key, body)


# -- segments --------------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """Events `start` to `end` - 1 of a run, which are stored as rows of the run with the number `number`."""

    number: int
    start: int
    end: int


def segments(run: RunRow, start: int, end: int, row_of: Callable[[int], RunRow]) -> list[Segment]:
    """Return the segments in which the events `start` to `end` - 1 of a run are stored, in their order.

    row_of: returns the row of the run with a number, or raises RecordingCorrupt.
    """
    found: list[Segment] = []

    # Follow the origins, from the end to the beginning: the rows of each run begin where those it shares end.
    row, rest = run, end
    while rest > max(start, 1):
        own = max(start, row.shared, 1)
        if own < rest:
            found.insert(0, Segment(row.number, own, rest))
        rest = min(rest, row.shared)
        if rest > max(start, 1):
            if row.origin is None or row.origin >= row.number:  # an origin is always added before its fork
                raise RecordingCorrupt(f"The row of the run {row.id} is damaged: it shares events with itself.")
            row = row_of(row.origin)

    # Event 0 is always the run's own. If nothing is shared, it belongs to the same segment as the rest.
    if start == 0 and found and found[0][:2] == (run.number, 1):
        found[0] = found[0]._replace(start=0)
    elif start == 0 and end > 0:
        found.insert(0, Segment(run.number, 0, 1))
    return found


# -- reading ---------------------------------------------------------------------------------------------------------


def position(database: Database, number: int) -> int:
    """Return the number of events of a run."""
    ((last, shared),) = database.query(
        "SELECT (SELECT max(key) FROM events WHERE key BETWEEN ? AND ?), (SELECT shared FROM runs WHERE number = ?)",
        *(*keys(number), number),
    )
    return 0 if last is None else max(last % SPAN + 1, shared or 0)


def events(database: Database, number: int, end: int, start: int = 0, *, salvage: bool = False) -> list[Event]:
    """Return the events `start` to `end` - 1 of a run; with `end` SPAN, all from `start` on.

    Raises RecordingCorrupt if one is damaged or missing. With `salvage`, the events before it are returned.
    """
    read: list[Event] = []
    try:
        for event in _read(database, number, start, end, salvage=salvage):
            read.append(event)
    except RecordingCorrupt:
        if salvage:
            return read
        raise

    # If the last event is not the end of the run, later ones may be missing, and the rows do not show it.
    if not salvage and end == SPAN and start == 0 and not (read and read[-1].terminal):
        database.check("events")
    return read


def first_events(database: Database, tag: str) -> dict[str, Event]:
    """Return the first event of each run with a tag, by the run's id. Raises RecordingCorrupt if one is damaged."""
    found: dict[str, Event] = {}
    sql = (
        f"SELECT runs.number, id, key, body, events.checksum FROM tags JOIN runs ON tags.run = runs.number"
        f" JOIN events ON key = runs.number * {SPAN} WHERE tag = ?"
    )
    for number, id, key, body, written in database.query(sql, tag):
        event = decode(key, as_bytes(body), written, run_id=id)
        found[id] = event if event is not None else events(database, number, 1)[0]  # raises, and says which event
    return found


class StoredRecording(NamedTuple):
    """A run of a store, with its tags and all its events.

    `outlines` has the outlines of the events instead if these were asked for and are enough; `events` is empty then.
    """

    id: str
    name: str | None
    tags: tuple[str, ...]
    events: list[Event]
    outlines: Sequence[Outline] | None = None


AT_A_TIME = 500
"""The number of runs whose events are read by one statement."""


def many(database: Database, tag: str | None = None, *, outlined: bool = False) -> Iterator[StoredRecording]:
    """Yield the runs with a tag, or all, that have events, oldest first. `Store.recordings` documents it."""
    runs = [run for run in reversed(rows.all_runs(database)) if tag is None or tag in run.tags]
    for first in range(0, len(runs), AT_A_TIME):
        chunk = runs[first : first + AT_A_TIME]

        # One statement reads all rows between the first and the last run; those of other runs are not decoded.
        numbers = {run.number for run in chunk}
        sql = "SELECT key, body, checksum FROM events WHERE key BETWEEN ? AND ? ORDER BY key"
        try:
            found = database.query(sql, keys(min(numbers))[0], keys(max(numbers))[1])
        except RecordingCorrupt:
            found = []  # each run is read separately, so that only the damaged one is left out
        by_number: dict[int, list[tuple[int, Any, Any]]] = {}
        for row in found:
            if (number := row[0] // SPAN) in numbers:
                by_number.setdefault(number, []).append(row)

        for run in chunk:
            stored = [] if run.shared or run.is_damaged else by_number.get(run.number, [])
            outlines = outlines_of(run, stored) if outlined else None
            if outlines is not None:
                yield StoredRecording(run.id, run.name, run.tags, [], outlines)
                continue
            read = _whole(run, stored)
            try:  # a fork, a run that has not ended, and whatever is not as it should be
                read = events(database, run.number, SPAN) if read is None else read
            except RecordingCorrupt as error:
                name = printable(run.name or run.id)
                warnings.warn(f"The run {name!r} is left out: {error}", RuntimeWarning, stacklevel=2)
                continue
            if read:
                yield StoredRecording(run.id, run.name, run.tags, read)


def _whole(run: RunRow, found: Sequence[tuple[int, Any, Any]]) -> list[Event] | None:
    """Return the events in the rows of a run, if they are complete up to its end, and none is damaged; else None."""
    read: list[Event] = []
    for seq, (key, body, written) in enumerate(found):
        event = decode(key, as_bytes(body), written, run_id=run.id)
        if key % SPAN != seq or event is None:
            return None
        read.append(event)
    return read if read and read[-1].terminal else None


def _read(database: Database, number: int, start: int, end: int, *, salvage: bool) -> Iterator[Event]:
    run = rows.run_at(database, number, salvage=salvage)
    for segment in segments(run, start, end, lambda number: rows.run_at(database, number)):
        first, _ = keys(segment.number)
        expected = first + segment.start
        for key, body, written in _rows_between(database, expected, first + segment.end, salvage=salvage):
            if key != expected:
                raise _missing(database, run, expected % SPAN)
            body = as_bytes(body)
            if written != checksum(key, body):
                raise _damaged(database, run, key % SPAN, "its checksum is wrong.")
            try:
                event = decode_body(body, run.id, key % SPAN)
            except ValueError as error:
                raise _damaged(database, run, key % SPAN, str(error)) from error
            yield event if segment.number == number else _inherited(event, run.id)
            expected += 1
        if segment.end < SPAN and expected < first + segment.end:
            raise _missing(database, run, expected % SPAN)


def _rows_between(database: Database, low: int, high: int, *, salvage: bool) -> Iterable[tuple[int, object, object]]:
    """Return the rows with keys from `low` to before `high`; with `salvage`, those before the first damaged page."""
    sql = "SELECT key, body, checksum FROM events WHERE key >= ? AND key < ? ORDER BY key"
    try:
        return database.query(sql, low, high)
    except RecordingCorrupt:
        if not salvage:
            raise
    one_by_one = (database.query(sql, key, key + 1) for key in range(low, high))
    return (row for found in takewhile(len, one_by_one) for row in found)


def _missing(database: Database, run: RunRow, seq: int) -> RecordingCorrupt:
    return RecordingCorrupt(f"{database.where}: event {seq} of the run {run.id} is missing.")


def _damaged(database: Database, run: RunRow, seq: int, problem: str) -> RecordingCorrupt:
    return RecordingCorrupt(f"{database.where}: event {seq} of the run {run.id} is damaged: {problem}")


# -- writing ---------------------------------------------------------------------------------------------------------


class NewRun(NamedTuple):
    """A run to be recorded: new, or continued after `recording`.

    shared: for a fork, the id of the run that it was forked from, and the number of events at its start that are the
    events of that run. Only event 0 and the mark `inherited` differ. tags: the tags of a new run.
    """

    id: str
    name: str | None
    loop: str
    recording: Sequence[Event]
    created: float | None
    shared: tuple[str, int] | None
    tags: tuple[str, ...] = ()


def attach_run(database: Database, run: NewRun, now: float) -> int:
    """Add a run if the store does not have it, write the events of its recording that are missing, return its number.

    Raises StoreConflict if the store has more events of the run, or other events, and StoreBusy if another process
    writes.
    """
    recording = run.recording
    with database.transaction(patient=False):
        number = rows.number_of(database, run.id)
        if number is None:
            origin, shared = _shared(database, run)
            created = rows.not_before(database, "runs", now) if run.created is None else run.created
            number = rows.add_run(database, run.id, run.name, run.loop, created, origin, shared)
            missing = [*recording[:1], *recording[max(shared, 1) :]]
            for tag in run.tags:
                rows.add_tag(database, number, tag)
        else:
            have = position(database, number)
            if have > len(recording):
                raise StoreConflict(
                    f"{database.where} has {have} events of the run {run.id}, the recording {len(recording)}: another"
                    " process has continued it. Load it again, or continue this recording in another store."
                )
            if have and not is_same(events(database, number, have, have - 1)[0], recording[have - 1]):
                raise StoreConflict(
                    f"{database.where} has another event {have - 1} of the run {run.id} than the recording: another"
                    " process has continued it differently. Continue this recording in another store."
                )
            missing = list(recording[have:])
        if missing:
            database.append([value for event in missing for value in _row(number, event)])
    return number


def _shared(database: Database, run: NewRun) -> tuple[int | None, int]:
    """Return the run whose rows a new fork shares, and how many events; (None, 0) if the store does not have them."""
    if run.shared is None:
        return None, 0
    origin_id, count = run.shared
    number = rows.number_of(database, origin_id)
    count = 0 if number is None else min(count, position(database, number))  # the last events may not be on disk yet
    if number is None or count < 2:
        return None, 0

    # The store may have another continuation of a run with this id. Events have times, so comparing the last one is
    # enough.
    try:
        (last,) = events(database, number, count, count - 1)
        if not is_same(_inherited(last, run.id), run.recording[count - 1]):
            return None, 0
        # If all of it is shared by the origin itself, refer to the run that the origin shares it with.
        while (origin := rows.run_at(database, number)).origin is not None and origin.shared >= count:
            number = origin.origin
    except RecordingCorrupt:
        return None, 0
    return number, count


def common_with_origin(database: Database, recording: Sequence[Event]) -> tuple[str, int] | None:
    """Return the id of the run from which an imported fork was forked, and the number of their common events, or None.

    None if the recording is not of a fork, or the store does not have that run.
    """
    start = recording[0]
    if not isinstance(start, RunStart) or not start.ancestors:
        return None
    origin, inherited = start.ancestors[-1]
    number = rows.number_of(database, origin)
    if number is None:
        return None
    past = events(database, number, inherited, salvage=True)
    count = 1
    for stored, recorded in zip(past[1:], recording[1:], strict=False):
        if not is_same(_inherited(stored, recorded.run_id), recorded):
            break
        count += 1
    return origin, count


class RunRecorder:
    """Writes the events of a run as its journal appends them: `record` collects them, `flush` commits."""

    def __init__(self, database: Database, attach: Callable[[], int]) -> None:
        """`attach` adds the run to the store, unless it is there, and returns its number."""
        self._database = database
        self._attach: Callable[[], int] | None = attach
        self._number: int | None = None
        self._waiting: list[tuple[int, bytes]] = []
        """Events of a run that has no number yet."""
        self._rows: list[int | bytes | bytearray] = []
        self._names: list[tuple[str, int]] = []
        self._conflict: StoreConflict | None = None

    def record(self, seq: int, line: bytes) -> None:
        """Take an event; it is on disk after the next `flush`."""
        if self._number is None:
            self._waiting.append((seq, line))
        else:
            self._rows += _encoded_row(self._number, seq, line)

    def name_snapshot(self, name: str, position: int) -> None:
        """Give a position of this run a name. It is on disk after the next `flush`; the newest of that name counts."""
        self._names.append((name, position))

    def attach(self) -> None:
        """Get the run's number. Raises as `attach` does."""
        assert self._attach is not None
        self._number = self._attach()
        self._attach = None  # it holds the recording
        waiting, self._waiting = self._waiting, []
        for seq, line in waiting:
            self.record(seq, line)

    def flush(self) -> None:
        """Commit what was collected. If there is nothing, verify that what was committed can still be found.

        A write that fails is tried again, once. If that fails too, StorageError is raised, nothing that was collected
        is lost, and the next `flush` tries again. Raises StoreBusy if another process writes at this moment, and
        StoreConflict, each time, if another process has continued the run.
        """
        if self._conflict is not None:  # events after those of another process would not belong to this run
            raise self._conflict
        try:
            try:
                self._commit()
            except (StoreBusy, StoreConflict):
                raise
            except StorageError:
                self._commit()
        except StoreConflict as error:
            self._conflict = error
            raise

    def _commit(self) -> None:
        if self._number is None:
            self.attach()
        if self._rows:
            self._database.append(self._rows)
            self._rows = []  # not before: an interrupt may come during the write, and then it is repeated
        elif not self._names:
            self._database.confirm()
        while self._names:
            name, position = self._names[0]
            assert self._number is not None
            with self._database.transaction(patient=False):
                created = rows.not_before(self._database, "snapshots", time.time())
                rows.add_snapshot(self._database, name, self._number, position, created)
            del self._names[0]
