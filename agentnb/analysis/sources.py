"""Sources: the recordings to analyse, read from runs, replays, snapshots, files, stores, studies, or several of these.

A source is a sequence of events with a name. The other modules of this package read sources only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from agentnb.core.errors import RecordingCorrupt, UsageError
from agentnb.core.events import Event, RunStart
from agentnb.run import Recording
from agentnb.run.past.folders import files_of, snapshots_in
from agentnb.run.past.fork import ancestors_of
from agentnb.run.past.snapshot import RecordingCheck, Snapshot
from agentnb.run.validation import expanded
from agentnb.store import RunInfo, Store, is_address, is_store
from agentnb.store.recordings import StoredRecording
from agentnb.studies import Study

_CONTINUED = frozenset({"cancelled", "suspended", "limit", "error"})
"""The stop reasons after which a run may be continued."""

NEVER = math.nan
"""The time of an event that has not happened."""


class Source(NamedTuple):
    """A recorded run. `name` is unique among the sources that are read together.

    `elsewhere` has the positions of the inherited events that are not counted here, because another source counts
    them: that of the run from which this run was forked, or that of another fork of that run. With `outlined`, the
    events are outlines (`agentnb.store.outlines`), which have the fields that tables need.
    """

    name: str
    events: Sequence[Event]
    elsewhere: frozenset[int] = frozenset()
    outlined: bool = False

    @property
    def began(self) -> float:
        """The time of the first event in seconds since the epoch, 0.0 without events."""
        return self.events[0].time if self.events else 0.0

    def seconds(self, event: Event) -> float:
        """Return the time of an event in seconds since the first event; NaN if it is not known."""
        return NEVER if event.untimed else event.time - self.began


def outlined_sources(of: Any) -> list[Source]:
    """Return the recordings in `of` as `sources` does. The events of a store are read in bulk, most as outlines."""
    stored = _stored(of, outlined=True)
    if stored is None:
        return sources(of)
    found: list[Source] = []
    used: dict[str, int] = {}
    for recording in stored:
        name = recording.name or recording.id
        if recording.outlines is not None:
            found.append(Source(_unique(name, used), cast("list[Event]", recording.outlines), outlined=True))
        elif _is_possible(name, recording.events):
            events = _with_inherited_marked(_in_order_of_time(recording.events))
            found.append(Source(_unique(name, used), events))
    return counted_once(found)


def _stored(of: Any, *, outlined: bool = False) -> Iterator[StoredRecording] | None:
    """Return the recordings of a store, or of a study that has one; None for anything else."""
    if isinstance(of, Store):
        return iter(not_continued(of.recordings(outlined=outlined)))
    if isinstance(of, Study) and of.store is not None:
        ids = {run.id for run in of.runs}
        stored = of.store.recordings(f"study:{of.name}", outlined=outlined)
        return (recording for recording in stored if recording.id in ids)
    return None


def not_continued(recordings: Iterable[StoredRecording]) -> list[StoredRecording]:
    """Return the recordings that no later one continues. A run that continues from one that was stopped repeats its
    events under another id: it stands for both.
    """
    found = list(recordings)
    beginnings = list(map(_beginning, found))
    latest = {key: number for number, key in enumerate(beginnings)}
    return [
        one
        for number, (one, key) in enumerate(zip(found, beginnings, strict=True))
        if key is None or latest[key] == number or _has_completed(one)
    ]


def _beginning(recording: StoredRecording) -> tuple[Any, ...] | None:
    """Return what a run and those that continue it have in common: its first two own events, with their times."""
    events: Sequence[Any] = recording.outlines if recording.outlines is not None else recording.events
    own = [(event.type, event.time) for event in islice((one for one in events if not one.inherited), 2)]
    if len(own) < 2 or not all(time for _, time in own):
        return None
    return (recording.name, events[0].loop, events[0].time, *own)


def _has_completed(recording: StoredRecording) -> bool:
    """Return True if a run has ended in a way that cannot be continued."""
    events: Sequence[Any] = recording.outlines if recording.outlines is not None else recording.events
    last = events[-1] if events else None
    return last is not None and last.type == "run_end" and not last.path and last.reason not in _CONTINUED


def _unique(name: str, used: dict[str, int]) -> str:
    """Return a name that is unique: with its number, if it was used before."""
    times = used[name] = used.get(name, 0) + 1
    return name if times == 1 else f"{name}#{times}"


def _is_possible(name: str, events: Sequence[Event]) -> bool:
    """Return True if a run could have produced these events; otherwise warn that the run is left out."""
    try:
        check = RecordingCheck()
        for event in events:
            check.apply(event)
    except (RecordingCorrupt, UsageError) as error:  # a damaged run must not hide the others
        warnings.warn(f"The run {name!r} is left out: {error}", RuntimeWarning, stacklevel=3)
        return False
    return True


def sources(of: Any) -> list[Source]:
    """Return the recordings in `of`, each with a unique name.

    of: a run, a replay or a snapshot; a study; a `Store`, for all its runs, oldest first; the path or address of a
    store; the path of a saved snapshot or of a recording of another tool; a folder or a pattern of such files
    (`"logs/*.json"`); a mapping of names to these; or a sequence of these. A run of a store, or a file of a folder,
    that cannot be read is left out, with a RuntimeWarning.

    Raises UsageError for any other argument, and for a file the errors of `Snapshot.load` and `Store`.
    """
    found: list[Source] = []
    used: dict[str, int] = {}
    for name, events in _read(of):
        found.append(Source(_unique(name, used), _with_inherited_marked(_in_order_of_time(events))))
    return counted_once(found)


def _in_order_of_time(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events with times that never decrease. In older recordings, times decrease if a clock was set back."""
    if all(one.time <= next.time for one, next in pairwise(events)):
        return events
    latest = accumulate((event.time for event in events), max)
    return [
        event if event.time == time else replace(event, time=time) for event, time in zip(events, latest, strict=True)
    ]


def _with_inherited_marked(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events with the inherited ones marked, as older recordings of forks do not mark each event."""
    start = events[0] if events else None
    if not isinstance(start, RunStart) or start.ancestors or not (ancestors := ancestors_of(start)):
        return events
    ((_, inherited),) = ancestors
    return [replace(event, inherited=True) if event.seq < inherited else event for event in events]


def counted_once(found: list[Source]) -> list[Source]:
    """Return the sources with `elsewhere` set: an inherited event is counted once, in the run that recorded it.

    If that run is not among the sources, the event is counted in the first of its forks.
    """
    counted: dict[str, int] = {}  # of each run: the number of events that are counted in some source
    for source in found:
        if source.events:
            run = source.events[0].run_id
            counted[run] = max(len(source.events), counted.get(run, 0))
    # In each source, find the inherited events that are counted in the source of their own run, or in an earlier fork.
    once: list[Source] = []
    for source in found:
        start = source.events[0] if source.events else None
        ancestors = ancestors_of(start) if isinstance(start, RunStart) else []
        elsewhere: set[int] = set()
        for event in source.events if ancestors else ():
            if event.inherited:
                run = next((run for run, end in ancestors if event.seq < end), ancestors[-1][0])
                if event.seq < counted.get(run, 0):
                    elsewhere.add(event.seq)
        for run, end in ancestors:  # if a run is not among the sources, its first fork counts its events
            counted[run] = max(end, counted.get(run, 0))
        once.append(source._replace(elsewhere=frozenset(elsewhere)))
    return once


def one_source(of: Any) -> Source:
    """Return the only recording in `of`. Raises UsageError if there are several or none."""
    found = sources(of)
    if len(found) != 1:
        names = ", ".join(source.name for source in found[:10]) or "nothing"
        raise UsageError(f"Exactly one recording is needed, got {len(found)}: {names}.")
    return found[0]


def _read(of: Any) -> Iterator[tuple[str, Sequence[Event]]]:
    """Yield the name and the events of each recording in `of`. Raises UsageError if `of` is not a recording."""
    if isinstance(of, Recording):
        yield of.name or of.id, of.recording
    elif isinstance(of, Snapshot):
        yield of.name or of.run_id, of.events
    elif (stored := _stored(of)) is not None:
        for recording in stored:
            name = recording.name or recording.id
            if _is_possible(name, recording.events):
                yield name, recording.events
    elif isinstance(of, Study):
        for one in of.runs:
            if one.run is not None and one.run.recording:
                yield one.name, one.run.recording
    elif isinstance(of, (str, Path)):
        path = expanded(of)
        if is_address(of) or (path.is_file() and is_store(path)):
            with closing(Store(of)) as store:
                yield from _read(store)
        elif (files := files_of(path)) is not None:
            for file, found in snapshots_in(files):
                for snapshot in found:
                    yield snapshot.name or file.name.split(".")[0], snapshot.events
        else:
            for snapshot in Snapshot.load_all(path):
                yield snapshot.name or path.name.split(".")[0], snapshot.events
    elif isinstance(of, Mapping):
        for name, one in of.items():
            yield str(name), one_source(one).events
    elif isinstance(of, RunInfo):
        raise UsageError("RunInfo is not a recording, it only describes a run: pass store.load(info.id).")
    elif isinstance(of, Iterable) and not (isinstance(of, Event) or hasattr(of, "columns")):
        # Several recordings. An event and a frame are iterable too, but they are parts of a recording.
        for one in of:
            yield from _read(one)
    else:
        raise UsageError(
            f"{type(of).__name__} is not a recording: pass a run, a replay, a snapshot, a store, a study, the path of a"
            " snapshot or a store, or several of these."
        )
