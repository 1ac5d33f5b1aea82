"""Finding runs in a store, by what they are and by what happened in them.

A database is only asked for rows that may matter; what they say is compared here. So SQLite and PostgreSQL give the
same answers, whatever letters, and whatever else that is no JSON to one of them, a recording has. An event that is
damaged says nothing: the list is of all runs, and `load` says what is wrong with one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from msgspec import ValidationError

from agentnb.core.errors import RecordingCorrupt, UsageError
from agentnb.core.events import Event, RunEnd, decode_event
from agentnb.run.given import check_text, shown
from agentnb.store.database import SPAN, Database, as_bytes, checksum, fits, keys
from agentnb.store.rows import RunRow, all_runs

Date = float | str | date | datetime

OF_RUN = f"key >= number * {SPAN} AND key < (number + 1) * {SPAN}"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run in a store: `created` in epoch seconds, `events` their number, `stop_reason` None while it is not over.

    `damaged`: some of this, or its newest event, is; `Store.load` says what, of any other event too.
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
class Wanted:
    """What a run must be to be found; None is anything. `Store.find` says what each means."""

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
        """Raise UsageError where one of these cannot be what it is to be."""
        for what in ("name", "loop", "tag", "tool", "stop_reason"):
            if getattr(self, what) is not None:
                check_text(f"find({what}=)", getattr(self, what))
        error: object = self.error
        if not isinstance(error, (str, bool, type(None))):
            raise UsageError(f"find(error=) takes a text, or True for any error, not {shown(error)}.")
        cost: object = self.cost
        if cost is not None and (not isinstance(cost, (int, float)) or isinstance(cost, bool)):
            raise UsageError(f"find(cost=) takes a number, not {shown(cost)}.")


def find(database: Database, wanted: Wanted) -> list[RunInfo]:
    """The runs, newest first. Raises UsageError where a date is none."""
    fits = list(_of_runs(wanted))
    runs = [run for run in all_runs(database) if all(fit(run) for fit in fits)]
    for found in _of_events(database, wanted, runs):
        runs = [run for run in runs if run.number in found]
    ends = _ends(database, [run.number for run in runs])
    infos = []
    for run in runs:
        count, reason, damaged = ends.get(run.number, (0, None, False))
        damaged = damaged or run.damaged or (reason is None and not _is_sound(database))  # it may be longer
        infos.append(RunInfo(run.id, run.name, run.loop, run.created, count, reason, run.tags, damaged))
    return [info for info in infos if wanted.stop_reason in (None, info.stop_reason)]


# -- what a run is ---------------------------------------------------------------------------------------------------


def _of_runs(wanted: Wanted) -> Iterator[Callable[[RunRow], bool]]:
    if wanted.name is not None:
        name = _pattern(wanted.name)
        yield lambda run: run.name is not None and name(run.name)
    if wanted.loop is not None:
        loop = _pattern(wanted.loop)
        yield lambda run: loop(run.loop)
    if wanted.tag is not None:
        tag = _pattern(wanted.tag)
        yield lambda run: any(map(tag, run.tags))
    if wanted.since is not None:
        since = _seconds(wanted.since)
        yield lambda run: run.created >= since
    if wanted.until is not None:
        until = _seconds(wanted.until)
        yield lambda run: run.created <= until


def _pattern(pattern: str) -> Callable[[str], bool]:
    """Whether a text is of a pattern with `*` for anything, whatever the case."""
    first, *parts = map(re.escape, pattern.casefold().split("*"))
    # A part between two others is looked for once, and not again further on: that would take longer with each `*`.
    middle = "".join(f"(?>.*?{part})" for part in parts[:-1])
    last = f".*{parts[-1]}" if parts else ""
    matches = re.compile(f"{first}{middle}{last}", re.DOTALL).fullmatch
    return lambda text: matches(text.casefold()) is not None


def _seconds(when: Date) -> float:
    given = when
    try:
        if isinstance(when, str):
            when = datetime.fromisoformat(when)
        if isinstance(when, datetime):
            return when.timestamp()
        if isinstance(when, date):
            return datetime(when.year, when.month, when.day).timestamp()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{shown(given)} is no date: write it as 2026-11-22, or 2026-11-22T14:30.") from error
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        raise UsageError(f"A date is a date, a datetime, ISO text or seconds since the epoch, not {shown(given)}.")
    return float(when)


# -- what happened in it ---------------------------------------------------------------------------------------------


def _of_events(database: Database, wanted: Wanted, runs: list[RunRow]) -> Iterator[set[int]]:
    """The numbers of the runs for which each condition on events holds."""
    if wanted.tool is not None:
        called, callers = _pattern(wanted.tool), set[int]()
        for number, event in _events(database, runs, ["call_start"], callers):
            if called(getattr(event, "name", "")):
                callers.add(number)
        yield callers
    if wanted.error is True or isinstance(wanted.error, str):
        said, failed = _pattern("*" if wanted.error is True else f"*{wanted.error}*"), set[int]()
        for number, event in _events(database, runs, _with("error"), failed):
            error = getattr(event, "error", None)
            if error is not None and (said(error.type) or said(error.message)):
                failed.add(number)
        yield failed
    if wanted.cost is not None:
        spent = dict.fromkeys((run.number for run in runs), 0.0)
        for number, event in _events(database, runs, _with("usage")):
            spent[number] += getattr(event, "usage", {}).get("cost", 0.0)
        yield {number for number, cost in spent.items() if cost >= wanted.cost}


def _with(field: str) -> list[str]:
    """The types of events that have this field."""
    return [str(kind.__struct_config__.tag) for kind in Event.__subclasses__() if field in kind.__struct_fields__]


def _events(
    database: Database, runs: list[RunRow], types: Iterable[str], found: Container[int] = ()
) -> Iterator[tuple[int, Event]]:
    """The undamaged events of these types, each with the number of its run; of runs `found` already no more."""
    numbers = {run.number for run in runs}
    if not numbers:
        return
    between = (keys(min(numbers))[0], keys(max(numbers))[1])
    for type in types:
        begins = b'{"type":"%s' % type.encode()  # each body does (`encode_event`), up to a quote; "#" is behind it
        rows = database.query(
            "SELECT key, body, checksum FROM events WHERE key BETWEEN ? AND ? AND body > ? AND body < ?",
            *(*between, begins + b'"', begins + b"#"),
        )
        for key, body, written in rows:
            if key // SPAN not in numbers or key // SPAN in found:
                continue
            if (event := _event(key, as_bytes(body), written)) is not None:
                yield key // SPAN, event


def _event(key: int, body: bytes, written: int | None) -> Event | None:
    if not fits(written, checksum(key, body)):
        return None
    try:
        return decode_event(body)
    except ValidationError:
        return None


def _ends(database: Database, numbers: list[int]) -> dict[int, tuple[int, str | None, bool]]:
    """How many events each of these runs has, why it is over, and whether the newest event is damaged."""
    last = f"SELECT max(key) FROM events WHERE {OF_RUN}"
    # `created`, so that SQLite reads the rows themselves, and not an index, which has no checksum.
    sql = f"SELECT number, created, key, body, events.checksum FROM runs JOIN events ON key = ({last})"
    try:
        rows = database.query(sql)
    except RecordingCorrupt:  # somewhere in the file; the runs it is not in are told of
        rows = [row for number in numbers for row in _readable(database, f"{sql} WHERE number = ?", number)]
    return {number: _end(key, as_bytes(body), written) for number, _, key, body, written in rows}


def _is_sound(database: Database) -> bool:
    try:
        database.check("events")
    except RecordingCorrupt:
        return False
    return True


def _readable(database: Database, sql: str, number: int) -> list[tuple[Any, ...]]:
    try:
        return database.query(sql, number)
    except RecordingCorrupt:
        return [(number, 0.0, number * SPAN - 1, b"", 0)]  # no events, the newest of which is damaged


def _end(key: int, body: bytes, written: int | None) -> tuple[int, str | None, bool]:
    event = _event(key, body, written)
    reason = event.reason if isinstance(event, RunEnd) and event.terminal else None
    return (key + 1) % SPAN, reason, event is None
