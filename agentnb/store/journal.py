"""The events of one run in a store, read and held to what was written.

Each row has a checksum of its event, so that one that was damaged is named and not believed; one that is missing is
known by the numbers of its neighbours, and at the end by the last one, which says that the run is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import ValidationError

from agentnb.core.errors import RecordingCorrupt
from agentnb.core.events import Event, decode_body
from agentnb.store import rows
from agentnb.store.database import SPAN, Database, as_bytes, checksum, fits, keys


def position(database: Database, number: int) -> int:
    """How many events there are of the run of this number."""
    ((last,),) = database.query("SELECT max(key) FROM events WHERE key BETWEEN ? AND ?", *keys(number))
    return 0 if last is None else last % SPAN + 1


def events(database: Database, number: int, end: int, start: int = 0, *, salvage: bool = False) -> list[Event]:
    """The events of a run from `start` to before `end`, which is SPAN for all there are. Raises RecordingCorrupt.

    salvage: up to the first that is damaged or missing.
    """
    first, _ = keys(number)
    run_id = rows.id_of(database, number, salvage=salvage)
    found = database.query(
        "SELECT key, body, checksum FROM events WHERE key >= ? AND key < ? ORDER BY key",
        first + start,
        first + end,
    )
    events: list[Event] = []
    for expected, (key, body, written) in enumerate(found, start):
        try:
            events.append(_event(database, key, as_bytes(body), written, run_id, first + expected))
        except RecordingCorrupt:
            if salvage:
                return events
            raise
    if not salvage:
        _check_that_is_all(database, events, run_id, start, end)
    return events


def _check_that_is_all(database: Database, events: Sequence[Event], run_id: str, start: int, end: int) -> None:
    """See that no event is missing at the end; of a run that is over, the last one says so."""
    if end < SPAN and start + len(events) < end:
        raise RecordingCorrupt(f"{database.where}: event {start + len(events)} of the run {run_id} is missing.")
    if end == SPAN and start == 0 and not (events and events[-1].terminal):
        database.check("events")


def _event(database: Database, key: int, body: bytes, written: int | None, run_id: str, expected: int) -> Event:
    seq = expected % SPAN
    if key != expected:
        raise RecordingCorrupt(f"{database.where}: event {seq} of the run {run_id} is missing.")
    if not fits(written, checksum(key, body)):
        raise RecordingCorrupt(
            f"{database.where}: event {seq} of the run {run_id} is damaged: its checksum is another one."
        )
    try:
        return decode_body(body, run_id, seq)
    except ValidationError as error:
        raise RecordingCorrupt(f"{database.where}: event {seq} of the run {run_id} is damaged: {error}") from error
