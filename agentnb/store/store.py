"""The store: every run's journal in one place, a SQLite file or a shared PostgreSQL database.

Events are only ever added. An event's row is keyed by its run's number and its `seq`, so two processes that go on with
the same run cannot both write the same position: the second is told so (`StoreConflict`), and the store stays whole.
Each row has a checksum of its event, so that one that was damaged is named and not believed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from weakref import WeakSet

from pydantic import ValidationError

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StoreConflict
from agentnb.core.events import Event, decode_body, encode_body
from agentnb.run.given import check_path
from agentnb.run.snapshot import Snapshot
from agentnb.store import exchange
from agentnb.store.database import SPAN, Database, checksum, keys
from agentnb.store.postgres import SCHEMES, PostgresDatabase
from agentnb.store.recorder import RunRecorder
from agentnb.store.schema import pending
from agentnb.store.search import OF_RUN, Date, RunInfo, Wanted, find
from agentnb.store.sqlite import SqliteDatabase, version_of

_open: WeakSet[Store] = WeakSet()


def open_stores() -> list[Store]:
    """The stores that are open in this process."""
    return list(_open)


def planned_migrations(path: str | Path) -> list[str]:
    """What opening this file with `Store` would change in it, in words; looks without changing anything.

    Raises RecordingMissing, StorageError where it is no store, VersionMismatch where it is of a newer agentnb.
    """
    if not Path(path).exists():
        raise RecordingMissing(f"There is no store {path}.")
    return [f"{step.to}: {step.what}" for step in pending(version_of(Path(path)), str(path))]


class Store:
    """Journals in one place. Safe to use from several threads, and by several processes at once.

    place: the path of a file, made where there is none, or a `postgresql://` address. One made by an older agentnb is
    brought up to date as it is opened (`planned_migrations` says how). Raises StorageError where it cannot be used as a
    store, VersionMismatch where it is of a newer agentnb.
    """

    def __init__(self, place: str | Path) -> None:
        check_path("Store(path)", place)
        self._database: Database
        if isinstance(place, str) and place.startswith(SCHEMES):
            self._database = PostgresDatabase(place)
            self.path = Path(self._database.where)
        else:
            self.path = Path(place)
            self._database = SqliteDatabase(self.path)
        for step in pending(self._database.version, self.where):
            self._database.migrate(step.statements, step.to)
        _open.add(self)

    @property
    def where(self) -> str:
        """The file's path, or the database's address without its password."""
        return self._database.where

    # -- finding ---------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunInfo]:
        """Every run in the store, newest first."""
        return self.find()

    def find(
        self,
        *,
        name: str | None = None,
        loop: str | None = None,
        tag: str | None = None,
        tool: str | None = None,
        error: str | bool | None = None,
        cost: float | None = None,
        since: Date | None = None,
        until: Date | None = None,
        stop_reason: str | None = None,
    ) -> list[RunInfo]:
        """The runs for which all of this holds, newest first.

        name, loop, tool, tag: patterns, with `*` for anything; tool: one that was called. error: a text in the type or
        the message of an error of a call, of the model or of the run; True for any error. cost: at least so much in
        all. since, until: when it was made; a date, a datetime (without a time zone: local time), ISO text, or seconds
        since the epoch. stop_reason: why it is over.
        """
        wanted = Wanted(
            name=name,
            loop=loop,
            tag=tag,
            tool=tool,
            error=error,
            cost=cost,
            since=since,
            until=until,
            stop_reason=stop_reason,
        )
        return find(self._database, wanted)

    def names(self) -> list[str]:
        """What `load` takes: the names of snapshots, and of each run its name or else its id; newest first."""
        named = self._database.query("SELECT name FROM snapshots ORDER BY created DESC, number DESC")
        runs = self._database.query("SELECT coalesce(name, id) FROM runs ORDER BY created DESC, number DESC")
        return list(dict.fromkeys(name for (name,) in (*named, *runs)))

    # -- reading ---------------------------------------------------------------------------------------------------

    def load(self, name_or_id: str, *, salvage: bool = False) -> Snapshot:
        """A snapshot by its name, or else the newest run of this name or id that has begun, as it stands.

        salvage: where an event is damaged or missing, the run up to there. Raises RecordingMissing, RecordingCorrupt.
        """
        named = self._database.query(
            "SELECT run, position FROM snapshots WHERE name = ? ORDER BY created DESC, number DESC LIMIT 1", name_or_id
        )
        number, position = named[0] if named else (self._number(name_or_id), SPAN)
        return Snapshot.of(self._events(number, position, salvage=salvage), name=name_or_id)

    def events(self, run_id: str, start: int = 0) -> list[Event]:
        """The events of a run from a position on. Raises RecordingCorrupt."""
        rows = self._database.query("SELECT number FROM runs WHERE id = ?", run_id)
        return self._events(rows[0][0], SPAN, start) if rows else []

    def position(self, run_id: str) -> int:
        """How many events of the run the store has."""
        rows = self._database.query("SELECT number FROM runs WHERE id = ?", run_id)
        if not rows:
            return 0
        ((last,),) = self._database.query("SELECT max(key) FROM events WHERE key BETWEEN ? AND ?", *keys(rows[0][0]))
        return 0 if last is None else last % SPAN + 1

    def _number(self, name_or_id: str) -> int:
        rows = self._database.query(
            "SELECT number FROM runs WHERE (name = ? OR id = ?)"
            f" AND EXISTS (SELECT 1 FROM events WHERE {OF_RUN}) ORDER BY created DESC, number DESC LIMIT 1",
            *(name_or_id, name_or_id),
        )
        if not rows:
            known = ", ".join(self.names()[:10]) or "nothing"
            raise RecordingMissing(f"{self.where} has no run or snapshot {name_or_id!r}; it has {known}.")
        return int(rows[0][0])

    def _events(self, number: int, position: int, start: int = 0, *, salvage: bool = False) -> list[Event]:
        first, _ = keys(number)
        ((run_id,),) = self._database.query("SELECT id FROM runs WHERE number = ?", number)
        rows = self._database.query(
            "SELECT key, body, checksum FROM events WHERE key >= ? AND key < ? ORDER BY key",
            first + start,
            first + position,
        )
        events: list[Event] = []
        for expected, (key, body, written) in enumerate(rows, start):
            try:
                events.append(self._event(key, bytes(body), written, run_id, first + expected))
            except RecordingCorrupt:
                if salvage:
                    break
                raise
        return events

    def _event(self, key: int, body: bytes, written: int | None, run_id: str, expected: int) -> Event:
        seq = expected % SPAN
        if key != expected:
            raise RecordingCorrupt(f"{self.where}: event {seq} of the run is missing.")
        if written is not None and written != checksum(key, body):
            raise RecordingCorrupt(f"{self.where}: event {seq} of the run is damaged: its checksum is another one.")
        try:
            return decode_body(body, run_id, seq)
        except ValidationError as error:
            raise RecordingCorrupt(f"{self.where}: event {seq} of the run is damaged: {error}") from error

    # -- naming ----------------------------------------------------------------------------------------------------

    def rename(self, name_or_id: str, name: str) -> None:
        """Give a run another name. Raises RecordingMissing."""
        self._database.write("UPDATE runs SET name = ? WHERE number = ?", name, self._number(name_or_id))

    def tag(self, name_or_id: str, *tags: str) -> None:
        """Put tags on a run; one that is there already stays. Raises RecordingMissing."""
        number = self._number(name_or_id)
        for tag in tags:
            self._database.write("INSERT INTO tags (run, tag) VALUES (?, ?) ON CONFLICT DO NOTHING", number, tag)

    def untag(self, name_or_id: str, *tags: str) -> None:
        """Take tags off a run; one that is not there is no error. Raises RecordingMissing."""
        number = self._number(name_or_id)
        for tag in tags:
            self._database.write("DELETE FROM tags WHERE run = ? AND tag = ?", number, tag)

    # -- handing on ------------------------------------------------------------------------------------------------

    def export(self, path: str | Path, runs: Iterable[str] | None = None) -> int:
        """Write runs, by name or id, all of them by default, to one file of lines; gives how many events it has.

        The file has a chain of hashes (`agentnb.store.exchange`). Raises RecordingMissing, and RecordingCorrupt, before
        anything is written, where a run is damaged.
        """
        known = self.find()
        chosen = known[::-1]
        if runs is not None:
            ids = [self.load(one).run_id for one in runs]
            chosen = [next(info for info in known if info.id == id) for id in dict.fromkeys(ids)]
        return exchange.write(Path(path), [self._exported(info) for info in chosen])

    def _exported(self, info: RunInfo) -> exchange.ExportedRun:
        named = self._database.query(
            "SELECT snapshots.name, position FROM snapshots JOIN runs ON run = runs.number WHERE id = ?"
            " ORDER BY snapshots.number",
            info.id,
        )
        given = (info.id, info.name, info.loop, info.created, info.tags)
        return exchange.ExportedRun(*given, self.events(info.id), [(name, position) for name, position in named])

    def import_(self, path: str | Path, *, salvage: bool = False) -> list[str]:
        """Take in the runs of a file that `export` wrote; gives their ids. What the store has of them already stays.

        salvage: of a damaged file, what is before the line at fault. Raises RecordingCorrupt with that line,
        RecordingMissing, VersionMismatch, and StoreConflict where the store has another run of the same id; nothing
        is taken in then.
        """
        found = exchange.read(Path(path), salvage=salvage)
        for run in found:
            have = self.events(run.id)
            if have != run.events[: len(have)] and have[: len(run.events)] != run.events:
                raise StoreConflict(f"{self.where} has a run {run.id} that is another one than that in {path}.")
        for run in found:
            self._take_in(run)
        return [run.id for run in found]

    def _take_in(self, run: exchange.ExportedRun) -> None:
        have = self.position(run.id)
        if have < len(run.events):
            recorder = self.record_run(run.id, run.name, run.loop, run.events, created=run.created)
            for name, position in run.snapshots if have == 0 else ():
                recorder.name_snapshot(name, position)
        self.tag(run.id, *run.tags)

    # -- writing ---------------------------------------------------------------------------------------------------

    def record_run(
        self, run_id: str, name: str | None, loop: str, recording: Sequence[Event], *, created: float | None = None
    ) -> RunRecorder:
        """Take up a run: new, or from the end of `recording`. Raises StoreConflict where the store has more of it."""
        have = self.position(run_id)
        if have > len(recording):
            raise StoreConflict(
                f"{self.where} has {have} events of the run {run_id}, the recording {len(recording)}:"
                " another process has gone on with it. Load it again."
            )
        self._database.write(
            "INSERT INTO runs (id, name, loop, created) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            *(run_id, name, loop, time.time() if created is None else created),
        )
        ((number,),) = self._database.query("SELECT number FROM runs WHERE id = ?", run_id)
        recorder = RunRecorder(self._database, number)
        for event in recording[have:]:
            recorder.record(event.seq, encode_body(event))
        recorder.flush()
        return recorder

    def close(self) -> None:
        """Close it; runs that still write to it fail."""
        _open.discard(self)
        self._database.close()

    def __repr__(self) -> str:
        return f"Store({self.where!r})"
