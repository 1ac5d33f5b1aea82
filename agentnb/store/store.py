"""The store: the recordings of all runs in one place, a SQLite file or a shared PostgreSQL database.

Events are only ever added. The key of an event has the number of its run and its own number, so two processes that
continue the same run cannot both write the same event: the second gets StoreConflict, and the store stays consistent.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn, SupportsIndex
from weakref import WeakSet

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StoreBusy, StoreConflict, UsageError, printable
from agentnb.core.events import Event, RunStart
from agentnb.run import Run
from agentnb.run.past.folders import files_of, snapshots_in
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.run import watch_runs
from agentnb.run.validation import check_name, check_path, check_position, check_text, expanded, shown
from agentnb.store import drivers, exchange, recordings, rows
from agentnb.store.attending import Attendance
from agentnb.store.database import SPAN
from agentnb.store.exchange import ExportedRun
from agentnb.store.inbox import Inbox
from agentnb.store.opening import is_address, open_store
from agentnb.store.postgres import without_password
from agentnb.store.recordings import NewRun, RunRecorder, StoredRecording, is_same
from agentnb.store.said import Found, search_text, tags_of_arm
from agentnb.store.search import Date, RunInfo, Search, find_runs, runs_that_match


def _attend(run: Run) -> None:
    if isinstance(run.store, Store):
        run.store.attend(run)


watch_runs(_attend)

_open: WeakSet[Store] = WeakSet()
_listing = threading.Lock()


def open_stores() -> list[Store]:
    """Return the stores that are open in this process."""
    with _listing:
        return list(_open)


class Store:
    """Recordings in one place. Safe to use from several threads, and by several processes at the same time.

    place: the path of a file, which is created if it is not there, or a `postgresql://` address.

    Raises StorageError if the place cannot be used as a store, RecordingCorrupt if it is too damaged to be opened, and
    VersionMismatch, with what to do, if it is a store of another version.
    """

    def __init__(self, place: str | Path) -> None:
        self._database = open_store(place)
        self._attendance = Attendance(self._database)
        self._address = str(place) if is_address(place) else None
        self.path = Path(self._database.where)
        if not is_address(place):
            self.path = self.path.absolute()
        with _listing:
            _open.add(self)

    @property
    def where(self) -> str:
        """The file's path, or the database's address without its password."""
        return self._database.where

    def place_for_workers(self) -> str:
        """Return what `Store` takes to open this store in another process.

        It has no password: a worker reads its own, from PGPASSWORD or ~/.pgpass.
        """
        return str(self.path) if self._address is None else without_password(self._address, keep_query=True)

    def close(self) -> None:
        """Close the store. Runs that still write to it fail."""
        with _listing:
            _open.discard(self)
        self._attendance.close()
        self._database.close()

    # -- finding ---------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunInfo]:
        """Return all runs in the store, newest first."""
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
        """Return the runs that meet all conditions, newest first.

        name, loop, tool, tag: patterns in which `*` stands for any text; tool: a tool that was called, or that a
        model asked for in a call that did not start. error: text in
        the type or the message of an error of a call, of the model or of the run; True for any error. cost: the minimum
        of the total cost of the requests of a run. since, until: the date of the run; a date, a datetime (local time if
        it has no time zone), ISO text, or seconds since the epoch. stop_reason: the reason for the end of the run.
        """
        search = Search(
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
        return find_runs(self._database, search)

    def search(
        self, text: str, *, arm: Mapping[str, object] | None = None, tag: str | None = None, limit: int = 100
    ) -> list[Found]:
        """Return where a text was said: by the user or the model, in arguments or results of calls, or in an error.

            for found in store.search("1888", arm={"model": "large"}):
                print(found.name, found.event, found.excerpt)

        A call that a model asked for is found at its start, or, if it did not start so (it was rejected, edited or
        answered, or waits), at the answer that asks for it.

        text: any text, compared without regard to the case of letters. arm: only runs of studies with these labels of
        factors. tag: only runs with a tag that matches, a pattern in which `*` stands for any text. limit: the maximum
        number of results, those of the newest run first. Events that a fork shares with its origin are found there.

        Raises UsageError if an argument is not valid.
        """
        check_text("search(text)", text)
        if not text.strip():
            raise UsageError("search(text) needs a text to search for, not an empty one.")
        if type(limit) is not int or limit < 1:
            raise UsageError(f"search(limit=) must be a whole number of at least 1, not {shown(limit)}.")
        tags = tags_of_arm(arm)
        runs = [run for run in runs_that_match(self._database, Search(tag=tag)) if tags <= set(run.tags)]
        return search_text(self._database, text, runs, limit)

    def to_parquet(self, folder: str | Path) -> Path:
        """Write the tables of all runs as Parquet files, partitioned by study, and return the folder.

        The same as `agentnb.analysis.to_parquet(store, folder)`, which describes the files.
        """
        analysis = import_module("agentnb.analysis")  # imported here: the tables are built on the store
        written: Path = analysis.to_parquet(self, folder)
        return written

    def names(self) -> list[str]:
        """Return the names that `load` accepts, newest first: of snapshots, and of each run its name or else its id."""
        rows.check(self._database)
        named = self._database.query("SELECT name FROM snapshots ORDER BY created DESC, number DESC")
        runs = self._database.query("SELECT coalesce(name, id) FROM runs ORDER BY created DESC, number DESC")
        return list(dict.fromkeys(str(name) for (name,) in (*named, *runs)))

    # -- reading ---------------------------------------------------------------------------------------------------

    def load(self, name_or_id: str, *, salvage: bool = False) -> Snapshot:
        """Return the snapshot with a name, or else the newest run with this name or id that has events.

        salvage: if an event is damaged or missing, return the events before it.

        Raises RecordingMissing, and RecordingCorrupt, which names the damaged event.
        """
        check_name("load(name_or_id)", name_or_id)
        number, position = self._resolve(name_or_id, salvage=salvage)
        try:
            events = recordings.events(self._database, number, position, salvage=salvage)
        except RecordingCorrupt as error:
            advice = f"store.load({name_or_id!r}, salvage=True) returns the events before the damage."
            raise RecordingCorrupt(f"{error} {advice}") from error
        if salvage and not events:  # no event of the run can be read: raise the cause
            events = recordings.events(self._database, number, position)
        return Snapshot.of(events, name=name_or_id)

    def events(self, run_id: str, start: int = 0) -> list[Event]:
        """Return the events of a run from a position on; none if the store does not have the run.

        Raises RecordingCorrupt, which names the damaged event.
        """
        check_position("events(start=)", start)
        number = self._number_of_id(run_id)
        return [] if number is None else recordings.events(self._database, number, SPAN, start)

    def starts(self, tag: str) -> list[tuple[RunInfo, RunStart]]:
        """Return the runs with exactly this tag that have events, newest first, each with its first event.

        Raises RecordingCorrupt if one of these events is damaged.
        """
        check_name("starts(tag)", tag)
        first = recordings.first_events(self._database, tag)
        found = [(info, first[info.id]) for info in self.runs() if info.id in first]
        return [(info, start) for info, start in found if isinstance(start, RunStart)]

    def recordings(self, tag: str | None = None, *, outlined: bool = False) -> Iterator[StoredRecording]:
        """Yield the runs that have events, oldest first, each with all its events. Many runs are read at a time.

        tag: only the runs with exactly this tag. outlined: decode only the fields that tables need, of the runs for
        which these are enough. A damaged run is left out, with a RuntimeWarning.
        """
        return recordings.many(self._database, tag, outlined=outlined)

    def position(self, run_id: str) -> int:
        """Return the number of events that the store has of a run."""
        number = self._number_of_id(run_id)
        return 0 if number is None else recordings.position(self._database, number)

    def _number_of_id(self, run_id: str) -> int | None:
        check_name("A run's id", run_id)
        number = rows.number_of(self._database, run_id)
        if number is None:
            self._database.check("runs")  # in a damaged table the run may not be found
        return number

    def _resolve(self, name_or_id: str, *, salvage: bool) -> tuple[int, int]:
        """Return the number and the position of a snapshot or, with the position SPAN, of a run."""
        named = rows.snapshot_named(self._database, name_or_id, salvage=salvage)
        return named or (self._number(name_or_id), SPAN)

    def _number(self, name_or_id: str) -> int:
        """Return the number of the newest run with this name or id that has events."""
        found = self._database.query(
            "SELECT number FROM runs WHERE (name = ? OR id = ?)"
            f" AND EXISTS (SELECT 1 FROM events WHERE key >= number * {SPAN} AND key < (number + 1) * {SPAN})"
            " ORDER BY created DESC, number DESC LIMIT 1",
            *(name_or_id, name_or_id),
        )
        if found:
            return int(found[0][0])

        # Say what there is instead.
        names = self.names()
        if name_or_id in names:
            raise RecordingMissing(f"{self.where} has no events of the run {name_or_id!r} yet.")
        known = printable(", ".join(names[:10])) or "nothing"
        damaged = " The rows of some of its runs are damaged." if any(run.damaged for run in self.runs()) else ""
        raise RecordingMissing(f"{self.where} has no run or snapshot {name_or_id!r}. The store has: {known}.{damaged}")

    # -- questions -------------------------------------------------------------------------------------------------

    def inbox(self, *, tag: str | None = None, arm: Mapping[str, object] | None = None) -> Inbox:
        """Return the inbox of this store: the questions of its runs, also of those that other processes drive.

            inbox = Store("postgresql://lab/agents").inbox(tag="study:levelled")
            for item in inbox:
                print(item.name, item.arguments)
            inbox.approve(inbox.pending, reviewer="Ada")

        The process that drives a run applies the decision at once, and the first decision about a question is the only
        one. tag: only the questions of runs with exactly this tag. arm: only those of runs of studies with these labels
        of factors.

        Raises UsageError if an argument is not valid, StorageError if the store cannot be written.
        """
        check_name("inbox(tag=)", *([] if tag is None else [tag]))
        return Inbox(self._database, [*([] if tag is None else [tag]), *sorted(tags_of_arm(arm))])

    def attend(self, run: Run) -> None:
        """Let the inboxes of this store have the questions of a run that was made in this process."""
        self._attendance.attend(run)

    def claim(self, study: str) -> drivers.Claim | drivers.Owner:
        """Return the right to drive a study, or who has it. Raises StoreBusy at once if the store is locked."""
        return drivers.claim(self._database, study)

    # -- naming ----------------------------------------------------------------------------------------------------

    def rename(self, name_or_id: str, name: str) -> None:
        """Give a run another name. Raises RecordingMissing."""
        check_name("rename(name_or_id, name)", name_or_id, name)
        rows.rename_run(self._database, self._number(name_or_id), name)

    def tag(self, name_or_id: str, *tags: str) -> None:
        """Add tags to a run, except for those that it has. Raises RecordingMissing."""
        check_name("tag(name_or_id, *tags)", name_or_id, *tags)
        number = self._number(name_or_id)
        with self._database.transaction():
            for tag in tags:
                rows.add_tag(self._database, number, tag)

    def untag(self, name_or_id: str, *tags: str) -> None:
        """Remove tags from a run; a tag that it does not have is ignored. Raises RecordingMissing."""
        check_name("untag(name_or_id, *tags)", name_or_id, *tags)
        number = self._number(name_or_id)
        with self._database.transaction():
            for tag in tags:
                rows.remove_tag(self._database, number, tag)

    # -- export and import -----------------------------------------------------------------------------------------

    def export(self, path: str | Path, runs: Iterable[str] | None = None, *, salvage: bool = False) -> int:
        """Write runs to one file of JSON lines, and return the number of events in it.

        runs: the names or ids of the runs; None for all. salvage: of a damaged run, write the events before the first
        one that is damaged or missing; a warning names each damaged run and event. The file has a chain of hashes
        (`agentnb.store.exchange`).

        Raises RecordingMissing, and RecordingCorrupt if a run is damaged and `salvage` is not given. A file that was at
        `path` then stays unchanged.
        """
        check_path("export(path)", path)
        if isinstance(runs, str) or (runs is not None and not isinstance(runs, Iterable)):
            raise UsageError(f"export(runs=) must be a list of names or ids, not {shown(runs)}.")
        known = {info.id: info for info in reversed(self.runs())}
        ids = list(known)
        if runs is not None:
            check_name("export(runs=)", *(names := list(runs)))
            numbers = [self._resolve(name, salvage=salvage)[0] for name in names]
            ids = [rows.run_at(self._database, number, salvage=salvage).id for number in numbers]
        return exchange.write(expanded(path), (self._exported(known[id], salvage) for id in dict.fromkeys(ids)))

    def _exported(self, info: RunInfo, salvage: bool) -> ExportedRun:
        number = self._number_of_id(info.id)
        assert number is not None  # it is in the list of runs
        try:
            events = recordings.events(self._database, number, SPAN)
        except RecordingCorrupt as error:
            if not salvage:
                raise
            events = recordings.events(self._database, number, SPAN, salvage=True)
            warnings.warn(f"{error} {len(events)} events of the run are exported.", RuntimeWarning, stacklevel=6)
        named = rows.snapshots_of(self._database, number, salvage=salvage)
        named = [(name, position, created) for name, position, created in named if position <= len(events)]
        return ExportedRun(info.id, info.name, info.loop, info.created, info.tags, events, named)

    def import_(self, path: str | Path, *, salvage: bool = False) -> list[str]:
        """Add the runs of a file that `export` wrote, and return their ids. Events that the store has already are kept.

        salvage: of a damaged file, read the lines before the damaged one.

        Raises RecordingCorrupt, which names the line, RecordingMissing, VersionMismatch, and StoreConflict if the store
        has another run with the same id. Then nothing is added.
        """
        check_path("import_(path)", path)
        found = exchange.read(expanded(path), salvage=salvage)
        for run in found:
            if not all(map(is_same, self.events(run.id), run.events)):
                raise StoreConflict(
                    f"{self.where} has a run {run.id} that is not the one in {path}. Import it into another store."
                )
        for run in found:
            with self._database.transaction():  # each is added whole or not at all, whatever happens meanwhile
                self._add_imported(run)
        return [run.id for run in found]

    def add(self, recordings: Snapshot | str | Path, *, tags: Iterable[str] = ()) -> list[str]:
        """Add recordings to the store, and return the ids of their runs. Events that the store has already are kept.

        recordings: a snapshot; the path of a saved snapshot or of a recording of another tool (`agentnb.importers`); or
        a folder or a pattern of such files, of which those that cannot be read are left out with a RuntimeWarning.
        tags: for each of the runs.

        Raises StoreConflict if the store has another run with the same id, and for a file the errors of
        `Snapshot.load`.
        """
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise UsageError(f"add(tags=) must be a list of tags, not {shown(tags)}.")
        check_name("add(tags=)", *(given := list(tags)))
        found: list[Snapshot] = []
        if isinstance(recordings, Snapshot):
            found = [recordings]
        else:
            check_path("add(recordings), if it is not a snapshot,", recordings)
            files = files_of(Path(recordings))
            if files is None:
                found = Snapshot.load_all(recordings)
            else:
                found = [snapshot for _, snapshots in snapshots_in(files) for snapshot in snapshots]
        for snapshot in found:
            if not all(map(is_same, self.events(snapshot.run_id), snapshot.events)):
                raise StoreConflict(f"{self.where} has a run {snapshot.run_id} that is not the one that is added.")
        for snapshot in found:
            with self._database.transaction():  # each is added whole or not at all
                created = snapshot.events[0].time  # 0 if no time is known
                whole = list(snapshot.events)
                run = ExportedRun(snapshot.run_id, snapshot.name, snapshot.start.loop, created, tuple(given), whole)
                self._add_imported(run)
        return [snapshot.run_id for snapshot in found]

    def _add_imported(self, run: ExportedRun) -> None:
        if self.position(run.id) < len(run.events):
            shared = recordings.common_with_origin(self._database, run.events)
            self.record_run(run.id, run.name, run.loop, run.events, created=run.created, shared=shared)
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
        self,
        run_id: str,
        name: str | None,
        loop: str,
        recording: Sequence[Event],
        *,
        created: float | None = None,
        shared: tuple[str, int] | None = None,
        tags: Sequence[str] = (),
    ) -> RunRecorder:
        """Begin to record a run: a new one, or one that continues after `recording`.

        shared: for a fork, the id of the run that it was forked from, and the number of events at its start that are
        the events of that run; only event 0 and the mark `inherited` differ. If the store has them, they are not
        written again. tags: the tags of a new run.

        Raises StoreConflict if the store has more events of the run, or other events. If another process writes at this
        moment, the run is added later, by the next `flush` of the recorder.
        """
        check_name("A run's name", *([] if name is None else [name]), loop)
        check_name("A run's tags", *tags)
        run, now = NewRun(run_id, name, loop, recording, created, shared, tuple(tags)), time.time()
        recorder = RunRecorder(self._database, lambda: recordings.attach_run(self._database, run, now))
        with suppress(StoreBusy):
            recorder.attach()
        return recorder

    # -- copying ---------------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError("A store cannot be copied or pickled. Open it in each process: agentnb.Store(...).")

    def __repr__(self) -> str:
        return f"Store({self.where!r})"
