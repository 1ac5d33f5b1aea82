"""Finding runs in a store, by what they are and by what happened in them, in SQL that both databases understand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from pydantic import ValidationError

from agentnb.core.errors import UsageError
from agentnb.core.events import RunEnd, decode_event
from agentnb.store.database import SPAN, Database, keys

Date = float | str | date | datetime

OF_RUN = f"key >= number * {SPAN} AND key < (number + 1) * {SPAN}"
Condition = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run in a store: `created` in epoch seconds, `events` their number, `stop_reason` None while it is not over."""

    id: str
    name: str | None
    loop: str
    created: float
    events: int
    stop_reason: str | None
    tags: tuple[str, ...] = ()


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


def find(database: Database, wanted: Wanted) -> list[RunInfo]:
    """The runs, newest first. Raises UsageError where a date is none."""
    conditions = [*_of_runs(wanted), *_of_events(database, wanted)]
    where = f"WHERE {' AND '.join(condition for condition, _ in conditions)}" if conditions else ""
    rows = database.query(
        f"SELECT id, name, loop, created, number, (SELECT count(*) FROM events WHERE {OF_RUN})"
        f" FROM runs {where} ORDER BY number DESC",
        *(value for _, values in conditions for value in values),
    )
    tags: dict[int, list[str]] = {}
    for number, tag in database.query("SELECT run, tag FROM tags ORDER BY tag"):
        tags.setdefault(number, []).append(tag)
    found = [
        RunInfo(id, name, loop, created, count, _reason(database, number), tuple(tags.get(number, ())))
        for id, name, loop, created, number, count in rows
    ]
    return [info for info in found if wanted.stop_reason in (None, info.stop_reason)]


def _of_runs(wanted: Wanted) -> Iterator[Condition]:
    for column, pattern in (("name", wanted.name), ("loop", wanted.loop)):
        if pattern is not None:
            yield _like(column), (_pattern(pattern),)
    if wanted.tag is not None:
        yield f"EXISTS (SELECT 1 FROM tags WHERE run = number AND {_like('tag')})", (_pattern(wanted.tag),)
    if wanted.since is not None:
        yield "created >= ?", (_seconds(wanted.since),)
    if wanted.until is not None:
        yield "created <= ?", (_seconds(wanted.until),)


def _of_events(database: Database, wanted: Wanted) -> Iterator[Condition]:
    if wanted.tool is not None:
        called = f"{database.json('type')} = 'call_start' AND {_like(database.json('name'))}"
        yield _has_event(called), (_pattern(wanted.tool),)
    if wanted.error is True:
        yield _has_event(f"{database.json('error', 'type')} IS NOT NULL"), ()
    elif isinstance(wanted.error, str):
        said = [_like(database.json("error", field)) for field in ("type", "message")]
        yield _has_event(" OR ".join(said)), (_pattern(f"*{wanted.error}*"),) * 2
    if wanted.cost is not None:
        spent = f"sum(CAST({database.json('usage', 'cost')} AS DOUBLE PRECISION))"
        yield f"coalesce((SELECT {spent} FROM events WHERE {OF_RUN}), 0) >= ?", (wanted.cost,)


def _has_event(condition: str) -> str:
    return f"EXISTS (SELECT 1 FROM events WHERE {OF_RUN} AND ({condition}))"


def _like(field: str) -> str:
    return f"lower({field}) LIKE ? ESCAPE '\\'"


def _pattern(pattern: str) -> str:
    """A pattern with `*` for anything, as LIKE has it, whatever the case."""
    for special in "\\%_":
        pattern = pattern.replace(special, f"\\{special}")
    return pattern.replace("*", "%").lower()


def _seconds(when: Date) -> float:
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError as error:
            raise UsageError(f"{when!r} is no date: write it as 2026-11-22, or 2026-11-22T14:30.") from error
    if isinstance(when, datetime):
        return when.timestamp()
    if isinstance(when, date):
        return datetime(when.year, when.month, when.day).timestamp()
    return float(when)


def _reason(database: Database, number: int) -> str | None:
    rows = database.query("SELECT body FROM events WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1", *keys(number))
    try:
        event = decode_event(bytes(rows[0][0])) if rows else None
    except ValidationError:  # the list is of all runs; `load` says what is wrong with this one
        return None
    return event.reason if isinstance(event, RunEnd) else None
