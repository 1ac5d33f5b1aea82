"""Finding runs in a store, by what they are and by what happened in them.

The database returns the rows that may match, and their values are compared here. So the results with SQLite and
PostgreSQL are the same for any letters, and for values that only one of them accepts as JSON. A damaged event matches
no condition. Without conditions the list has all runs, also damaged ones; `Store.load` reports the damage of a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime

from agentnb.core.errors import RecordingCorrupt, UsageError
from agentnb.core.events import Event, ModelEnd, RunEnd
from agentnb.run.validation import check_text, shown
from agentnb.store import recordings
from agentnb.store.database import SPAN, Database, as_bytes, keys
from agentnb.store.recordings import Segment
from agentnb.store.rows import RunRow, all_runs

Date = float | str | date | datetime


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run in a store. `created` is in epoch seconds, `events` a number, `stop_reason` None until the run has ended.

    `damaged`: the data here or the newest event is damaged; `Store.load` reports which, and any other damaged event.
    """

    id: str
    name: str | None
    loop: str
    created: float
    events: int
    stop_reason: str | None
    tags: tuple[str, ...] = ()
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The conditions of a search; None means any value. `Store.find` documents each. A wrong type raises UsageError."""

    name: str | None = None
    loop: str | None = None
    tag: str | None = None
    tool: str | None = None
    error: str | bool | None = None
    cost: float | None = None
    since: Date | None = None
    until: Date | None = None
    stop_reason: str | None = None

    def __post_init__(self) -> None:
        for option in ("name", "loop", "tag", "tool", "stop_reason"):
            if getattr(self, option) is not None:
                check_text(f"find({option}=)", getattr(self, option))
        error: object = self.error
        if not isinstance(error, (str, bool, type(None))):
            raise UsageError(f"find(error=) must be a string, or True for any error, not {shown(error)}.")
        cost: object = self.cost
        if cost is not None and (not isinstance(cost, (int, float)) or isinstance(cost, bool)):
            raise UsageError(f"find(cost=) must be a number, not {shown(cost)}.")


def find_runs(database: Database, search: Search) -> list[RunInfo]:
    """Return the runs that meet all conditions, newest first. Raises UsageError if a date is not valid."""
    everything = all_runs(database)
    runs = _that_match(everything, search)

    # Conditions on events, of the runs that are left. A fork has shared events, so each run is a list of segments.
    searches_errors = search.error is not None and search.error is not False
    if search.tool is not None or searches_errors or search.cost is not None:
        found = _Events(database, everything, runs)
        if search.tool is not None:
            called = _pattern(search.tool)
            runs = found.with_any(runs, ["call_start", "model_end"], _calls_matching(called))
        if searches_errors:
            failed = _error_matching("*" if search.error is True else f"*{search.error}*")
            runs = found.with_any(runs, recordings.types_with("error"), failed)
        if search.cost is not None:
            runs = found.with_cost(runs, search.cost)

    # The data of each run in the list comes from its last event.
    ends = _ends(database, runs)
    infos = []
    for run in runs:
        count, reason, is_damaged = ends[run.number]
        is_damaged = is_damaged or run.is_damaged or (reason is None and not _is_whole(database))  # it may be longer
        infos.append(RunInfo(run.id, run.name, run.loop, run.created, count, reason, run.tags, is_damaged))
    return [info for info in infos if search.stop_reason in (None, info.stop_reason)]


# -- conditions on runs ----------------------------------------------------------------------------------------------


def runs_that_match(database: Database, search: Search) -> list[RunRow]:
    """Return the rows of the runs that meet the conditions on runs, newest first; those on events do not count."""
    return _that_match(all_runs(database), search)


def _that_match(runs: Iterable[RunRow], search: Search) -> list[RunRow]:
    conditions = list(_conditions_on_runs(search))
    return [run for run in runs if all(holds(run) for holds in conditions)]


def _conditions_on_runs(search: Search) -> Iterator[Callable[[RunRow], bool]]:
    if search.name is not None:
        name = _pattern(search.name)
        yield lambda run: run.name is not None and name(run.name)
    if search.loop is not None:
        loop = _pattern(search.loop)
        yield lambda run: loop(run.loop)
    if search.tag is not None:
        tag = _pattern(search.tag)
        yield lambda run: any(map(tag, run.tags))
    if search.since is not None:
        since = _seconds(search.since)
        yield lambda run: run.created >= since
    if search.until is not None:
        until = _seconds(search.until)
        yield lambda run: run.created <= until


def _pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a text matches a pattern with `*` for any text, in any case of letters."""
    first, *parts = map(re.escape, pattern.casefold().split("*"))
    # Each part between two stars is searched for once (an atomic group): backtracking would take longer with each `*`.
    middle = "".join(f"(?>.*?{part})" for part in parts[:-1])
    last = f".*{parts[-1]}" if parts else ""
    matches = re.compile(f"{first}{middle}{last}", re.DOTALL).fullmatch
    return lambda text: matches(text.casefold()) is not None


def _seconds(when: Date) -> float:
    value = when
    try:
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        if isinstance(when, datetime):
            return when.timestamp()
        if isinstance(when, date):
            return datetime(when.year, when.month, when.day).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{shown(value)} is not a date: write it as 2026-11-22, or 2026-11-22T14:30.") from error
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        raise UsageError(f"A date must be a date, a datetime, ISO text or seconds since the epoch, not {shown(value)}.")
    return float(when)


# -- conditions on events --------------------------------------------------------------------------------------------


def _error_matching(pattern: str) -> Callable[[Event], bool]:
    matches = _pattern(pattern)

    def fails(event: Event) -> bool:
        error = getattr(event, "error", None)
        return error is not None and (matches(error.type) or matches(error.message))

    return fails


def _calls_matching(called: Callable[[str], bool]) -> Callable[[Event], bool]:
    """Return a function that tells whether an event starts or asks for a call of a tool with such a name."""

    def matches(event: Event) -> bool:
        if isinstance(event, ModelEnd):
            return any(called(call.name) for call in event.message.tool_calls)
        return called(getattr(event, "name", ""))

    return matches


class _Events:
    """The stored events of runs, for conditions on events."""

    def __init__(self, database: Database, everything: list[RunRow], runs: list[RunRow]) -> None:
        self._database = database
        by_number = {run.number: run for run in everything}
        self._segments: dict[int, list[Segment]] = {}
        for run in runs:
            try:
                self._segments[run.number] = recordings.segments(run, 0, SPAN, by_number.__getitem__)
            except (KeyError, RecordingCorrupt):  # a run it shares events with is damaged
                self._segments[run.number] = [Segment(run.number, 0, SPAN)]
        self._stored = {segment.number for segments in self._segments.values() for segment in segments}

    def with_any(self, runs: list[RunRow], types: Iterable[str], matches: Callable[[Event], bool]) -> list[RunRow]:
        """Return the runs that have an event of these types that matches."""
        # The first match among the rows of each run is enough: a segment has all rows of its run before its end.
        first: dict[int, int] = {}
        for type in types:
            for key, body, written in self._rows(type):
                number, seq = divmod(key, SPAN)
                if seq < first.get(number, SPAN):
                    event = recordings.decode(key, as_bytes(body), written)
                    if event is not None and matches(event):
                        first[number] = seq
        return [
            run for run in runs if any(first.get(part.number, SPAN) < part.end for part in self._segments[run.number])
        ]

    def with_cost(self, runs: list[RunRow], least: float) -> list[RunRow]:
        """Return the runs whose requests together cost at least `least`."""
        costs: dict[int, list[tuple[int, float]]] = {}
        for type in recordings.types_with("usage"):
            for key, body, written in self._rows(type):
                event = recordings.decode(key, as_bytes(body), written)
                if event is not None and (cost := getattr(event, "usage", {}).get("cost", 0.0)):
                    costs.setdefault(key // SPAN, []).append((key % SPAN, cost))
        return [
            run
            for run in runs
            if sum(
                cost
                for part in self._segments[run.number]
                for seq, cost in costs.get(part.number, ())
                if part.start <= seq < part.end
            )
            >= least
        ]

    def _rows(self, type: str) -> Iterator[tuple[int, object, object]]:
        if not self._stored:
            return
        after, before = recordings.first_bytes(type)
        found = self._database.query(
            "SELECT key, body, checksum FROM events WHERE key BETWEEN ? AND ? AND body > ? AND body < ?",
            *(keys(min(self._stored))[0], keys(max(self._stored))[1], after, before),
        )
        for key, body, written in found:
            if key // SPAN in self._stored:
                yield key, body, written


# -- how runs end ----------------------------------------------------------------------------------------------------


def _ends(database: Database, runs: list[RunRow]) -> dict[int, tuple[int, str | None, bool]]:
    """Return of each run its number of events, its stop reason if it has ended, and if its last event is damaged."""
    # The column `created` makes SQLite read the rows themselves and not an index, which has no checksum.
    last = f"SELECT max(key) FROM events WHERE key >= number * {SPAN} AND key < (number + 1) * {SPAN}"
    sql = f"SELECT number, created, key, body, events.checksum FROM runs JOIN events ON key = ({last})"
    try:
        found = {number: row for number, _, *row in database.query(sql)}
    except RecordingCorrupt:  # query each run separately: the damage may be in the rows of one run
        found = {}
        for run in runs:
            try:
                found |= {number: row for number, _, *row in database.query(f"{sql} WHERE number = ?", run.number)}
            except RecordingCorrupt:
                found[run.number] = [run.number * SPAN - 1, b"", 0]  # counts as a run without events that is damaged

    ends: dict[int, tuple[int, str | None, bool]] = {}
    for run in runs:
        if run.number not in found:
            ends[run.number] = (0, None, False)
            continue
        key, body, written = found[run.number]
        count = (key + 1) % SPAN
        if 0 < count < run.shared:  # a fork that has no events of its own after those it shares
            ends[run.number] = (run.shared, None, _is_damaged_at(database, run, run.shared - 1))
            continue
        event = recordings.decode(key, as_bytes(body), written)
        reason = event.reason if isinstance(event, RunEnd) and event.terminal else None
        ends[run.number] = (count, reason, event is None)
    return ends


def _is_damaged_at(database: Database, run: RunRow, seq: int) -> bool:
    try:
        recordings.events(database, run.number, seq + 1, seq)
    except RecordingCorrupt:
        return True
    return False


def _is_whole(database: Database) -> bool:
    try:
        database.check("events")
    except RecordingCorrupt:
        return False
    return True
