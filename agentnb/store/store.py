"""The store: every run's journal in one place, a SQLite file or a shared PostgreSQL database.

Events are only ever added. An event's row is keyed by its run's number and its `seq`, so two processes that go on with
the same run cannot both write the same position: the second is told so (`StoreConflict`), and the store stays whole.
How a run's events are read is in `journal.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, SupportsIndex
from weakref import WeakSet

from agentnb.core.errors import RecordingMissing, StoreBusy, StoreConflict, UsageError
from agentnb.core.events import Event, encode_body
from agentnb.core.unicode import printable
from agentnb.run.given import check_name, check_path, check_position, shown
from agentnb.run.past.snapshot import Snapshot
from agentnb.store import exchange, journal, rows
from agentnb.store.database import SPAN, checksum
from agentnb.store.places import is_address, store_at
from agentnb.store.recorder import RunRecorder
from agentnb.store.search import OF_RUN, Date, RunInfo, Wanted, find

_open: WeakSet[Store] = WeakSet()
_listing = threading.Lock()


def open_stores() -> list[Store]:
    """The stores that are open in this process."""
    with _listing:
        return list(_open)


class Store:
    """Journals in one place. Safe to use from several threads, and by several processes at once.

    place: the path of a file, made where there is none, or a `postgresql://` address. One made by an older agentnb is
    brought up to date as it is opened (`planned_migrations` says how). Raises StorageError where it cannot be used as a
    store, VersionMismatch where it is of a newer agentnb.
    """

    def __init__(self, place: str | Path) -> None:
        self._database = store_at(place)
        self.path = Path(self._database.where)
        if not is_address(place):
            self.path = self.path.absolute()
        with _listing:
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
        rows.check(self._database)
        named = self._database.query("SELECT name FROM snapshots ORDER BY created DESC, number DESC")
        runs = self._database.query("SELECT coalesce(name, id) FROM runs ORDER BY created DESC, number DESC")
        return list(dict.fromkeys(str(name) for (name,) in (*named, *runs)))

    # -- reading ---------------------------------------------------------------------------------------------------

    def load(self, name_or_id: str, *, salvage: bool = False) -> Snapshot:
        """A snapshot by its name, or else the newest run of this name or id that has begun, as it stands.

        salvage: where an event is damaged or missing, the run up to there. Raises RecordingMissing, RecordingCorrupt.
        """
        check_name("load(name_or_id)", name_or_id)
        named = rows.snapshot_named(self._database, name_or_id, salvage=salvage)
        number, position = named or (self._number(name_or_id), SPAN)
        return Snapshot.of(journal.events(self._database, number, position, salvage=salvage), name=name_or_id)

    def events(self, run_id: str, start: int = 0) -> list[Event]:
        """The events of a run from a position on. Raises RecordingCorrupt."""
        check_position("events(start=)", start)
        number = self._number_of_id(run_id)
        return [] if number is None else journal.events(self._database, number, SPAN, start)

    def position(self, run_id: str) -> int:
        """How many events of the run the store has."""
        number = self._number_of_id(run_id)
        return 0 if number is None else journal.position(self._database, number)

    def _number_of_id(self, run_id: str) -> int | None:
        check_name("A run's id", run_id)
        found = self._database.query("SELECT number FROM runs WHERE id = ?", run_id)
        return int(found[0][0]) if found else None

    def _number(self, name_or_id: str) -> int:
        found = self._database.query(
            "SELECT number FROM runs WHERE (name = ? OR id = ?)"
            f" AND EXISTS (SELECT 1 FROM events WHERE {OF_RUN}) ORDER BY created DESC, number DESC LIMIT 1",
            *(name_or_id, name_or_id),
        )
        if not found:
            names = self.names()
            if name_or_id in names:
                raise RecordingMissing(f"{self.where} has nothing of the run {name_or_id!r} yet: it has not begun.")
            known = printable(", ".join(names[:10])) or "nothing"
            damaged = " What it says of some of its runs is damaged." if any(run.damaged for run in self.runs()) else ""
            raise RecordingMissing(f"{self.where} has no run or snapshot {name_or_id!r}; it has {known}.{damaged}")
        return int(found[0][0])

    # -- naming ----------------------------------------------------------------------------------------------------

    def rename(self, name_or_id: str, name: str) -> None:
        """Give a run another name. Raises RecordingMissing."""
        check_name("rename(name_or_id, name)", name_or_id, name)
        rows.rename_run(self._database, self._number(name_or_id), name)

    def tag(self, name_or_id: str, *tags: str) -> None:
        """Put tags on a run; one that is there already stays. Raises RecordingMissing."""
        check_name("tag(name_or_id, *tags)", name_or_id, *tags)
        number = self._number(name_or_id)
        with self._database.transaction():
            for tag in tags:
                rows.add_tag(self._database, number, tag)

    def untag(self, name_or_id: str, *tags: str) -> None:
        """Take tags off a run; one that is not there is no error. Raises RecordingMissing."""
        check_name("untag(name_or_id, *tags)", name_or_id, *tags)
        number = self._number(name_or_id)
        with self._database.transaction():
            for tag in tags:
                rows.remove_tag(self._database, number, tag)

    # -- handing on ------------------------------------------------------------------------------------------------

    def export(self, path: str | Path, runs: Iterable[str] | None = None) -> int:
        """Write runs, by name or id, all of them by default, to one file of lines; gives how many events it has.

        The file has a chain of hashes (`agentnb.store.exchange`). Raises RecordingMissing, and RecordingCorrupt where a
        run is damaged; a file that was there stays then.
        """
        check_path("export(path)", path)
        if isinstance(runs, str) or (runs is not None and not isinstance(runs, Iterable)):
            raise UsageError(f"export(runs=) takes a list of names or ids, not {shown(runs)}.")
        known = {info.id: info for info in reversed(self.runs())}
        ids = list(known) if runs is None else [self.load(one).run_id for one in runs]
        return exchange.write(Path(path), (self._exported(known[id]) for id in dict.fromkeys(ids)))

    def _exported(self, info: RunInfo) -> exchange.ExportedRun:
        number = self._number_of_id(info.id)
        named = [] if number is None else rows.snapshots_of(self._database, number)
        given = (info.id, info.name, info.loop, info.created, info.tags)
        return exchange.ExportedRun(*given, self.events(info.id), named)

    def import_(self, path: str | Path, *, salvage: bool = False) -> list[str]:
        """Take in the runs of a file that `export` wrote; gives their ids. What the store has of them already stays.

        salvage: of a damaged file, what is before the line at fault. Raises RecordingCorrupt with that line,
        RecordingMissing, VersionMismatch, and StoreConflict where the store has another run of the same id; nothing
        is taken in then.
        """
        check_path("import_(path)", path)
        found = exchange.read(Path(path), salvage=salvage)
        for run in found:
            have = self.events(run.id)
            if not all(map(_same, have, run.events)):
                raise StoreConflict(f"{self.where} has a run {run.id} that is another one than that in {path}.")
        for run in found:
            with self._database.transaction():  # each is there whole or not at all, whatever happens meanwhile
                self._take_in(run)
        return [run.id for run in found]

    def _take_in(self, run: exchange.ExportedRun) -> None:
        if self.position(run.id) < len(run.events):
            self.record_run(run.id, run.name, run.loop, run.events, created=run.created)
        number = self._number_of_id(run.id)
        assert number is not None
        known = [(name, position) for name, position, _ in rows.snapshots_of(self._database, number)]
        for name, position, created in run.snapshots:
            if (name, position) not in known:
                rows.add_snapshot(self._database, name, number, position, created)
        for tag in run.tags:
            rows.add_tag(self._database, number, tag)

    # -- writing ---------------------------------------------------------------------------------------------------

    def record_run(
        self, run_id: str, name: str | None, loop: str, recording: Sequence[Event], *, created: float | None = None
    ) -> RunRecorder:
        """Take up a run: new, or from the end of `recording`.

        Raises StoreConflict where the store has more of it, or what it has is not how `recording` begins. Where another
        process writes just now, the run is taken up with its first events.
        """
        check_name("A run's name", *([] if name is None else [name]), loop)
        now = time.time()

        def take_up() -> int:
            with self._database.transaction(patient=False):
                made = rows.not_before(self._database, "runs", now) if created is None else created
                number = rows.add_run(self._database, run_id, name, loop, made)
                self._add_recording(number, run_id, recording)
            return number

        recorder = RunRecorder(self._database, take_up)
        with suppress(StoreBusy):
            recorder.take_up()
        return recorder

    def _add_recording(self, number: int, run_id: str, recording: Sequence[Event]) -> None:
        """Write what the store has not of a run that goes on from a recording."""
        have = journal.position(self._database, number)
        if have > len(recording):
            raise StoreConflict(
                f"{self.where} has {have} events of the run {run_id}, the recording {len(recording)}: another"
                " process has gone on with it. Load it again, or go on with this one in another store."
            )
        if have and not _same(journal.events(self._database, number, have, have - 1)[0], recording[have - 1]):
            raise StoreConflict(
                f"{self.where} has another event {have - 1} of the run {run_id} than the recording: somebody has"
                " gone on with it otherwise. Go on with this one in another store."
            )
        new: list[int | bytes | bytearray] = []
        for event in recording[have:]:
            key, line = number * SPAN + event.seq, encode_body(event)
            new += (key, bytearray(line), checksum(key, line))
        if new:
            self._database.append(new)

    def close(self) -> None:
        """Close it; runs that still write to it fail."""
        with _listing:
            _open.discard(self)
        self._database.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError("A store is neither copied nor pickled; each process opens it: agentnb.Store(...).")

    def __repr__(self) -> str:
        return f"Store({self.where!r})"


def _same(one: Event, other: Event) -> bool:
    """Whether two events say the same; `==` would not, where a value is not a number."""
    return one == other or encode_body(one) == encode_body(other)
