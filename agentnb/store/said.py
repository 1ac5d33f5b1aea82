"""Text search in a store: finds the events in which a text was said, with an excerpt.

There is no index: a scan of 90,000 events takes less than 100 ms, and an index would have to be written with each
event. The database returns the rows that may match, by the parts of the text that have only ASCII letters and digits.
The text of their events is compared here. So the results with SQLite and PostgreSQL are the same for any letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from agentnb.core.errors import UsageError
from agentnb.core.events import (
    ApprovalDecision,
    CallEnd,
    CallStart,
    ErrorInfo,
    Event,
    MessageAdded,
    ModelEnd,
    ModelFailed,
    RunEnd,
    RunStart,
)
from agentnb.core.messages import text_of
from agentnb.run.validation import shown
from agentnb.store import recordings
from agentnb.store.database import SPAN, Database, as_bytes, keys
from agentnb.store.rows import RunRow

AROUND = 60
"""The number of characters of an excerpt before the text, and after it."""

AT_A_TIME = 200
"""The number of rows that are read by one statement."""


class Found(NamedTuple):
    """An event in which a text was said. `event` is its number in the run, `type` its type, `name` that of the run."""

    run_id: str
    name: str | None
    event: int
    type: str
    excerpt: str


def search_text(database: Database, text: str, runs: list[RunRow], limit: int) -> list[Found]:
    """Return the events of these runs in which a text was said, at most `limit`, those of the newest run first."""
    by_number = {run.number: run for run in runs}
    text = unicodedata.normalize("NFC", text)  # "ö" may be one character, or an "o" and a mark
    matches = re.compile(re.escape(text), re.IGNORECASE).search
    found: list[Found] = []
    if not by_number:
        return found

    # The rows that may match. JSON escapes some characters, so only the parts between them are looked for.
    # A letter with a mark is not one of them: the database may have it as one character.
    plain = re.sub(r".[\u0300-\u036f]+", " ", unicodedata.normalize("NFD", text))
    parts = [part.lower() for part in re.findall(r"[A-Za-z0-9]+", plain)]
    sql = f"SELECT key FROM events WHERE key BETWEEN ? AND ? AND {database.body_in_small_letters} LIKE ?"
    low, high = keys(min(by_number))[0], keys(max(by_number))[1]
    some = [key for (key,) in database.query(sql, low, high, f"%{'%'.join(parts)}%") if key // SPAN in by_number]
    words = re.split(r"[\s\"\\\x00-\x1f]+", text.casefold())

    # The events of the newest runs first, each in the order of its events.
    order = {run.number: place for place, run in enumerate(runs)}
    some.sort(key=lambda key: (order[key // SPAN], key))
    asked: dict[tuple[int, str, str], Found] = {}
    """The calls that a model asked for with the text in their arguments, until they start with it."""
    for number, rows in groupby(_rows(database, some), key=lambda row: row[0] // SPAN):
        run = by_number[number]
        here: list[Found] = []
        for key, body, written in rows:
            body = as_bytes(body)
            lowered = _composed(body.decode(errors="replace")).casefold()
            if not all(word in lowered for word in words):
                continue
            event = recordings.decode(key, body, written)
            if event is None:  # the row is damaged
                continue
            for call_id, said in said_in(event):
                if (match := matches(said := _composed(said))) is not None:
                    if isinstance(event, CallStart):
                        earlier = asked.pop((number, event.path, event.call_id), None)
                        here = [other for other in here if other is not earlier]
                    one = Found(run.id, run.name, key % SPAN, event.type, _excerpt(said, *match.span()))
                    here.append(one)
                    if call_id is not None:
                        asked[number, event.path, call_id] = one
                    break
        found += here
        if len(found) >= limit:
            break
    return found[:limit]


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _rows(database: Database, some: list[int]) -> Iterator[tuple[int, Any, Any]]:
    """Yield the rows with these keys, in this order. They are read some at a time, because few may be enough."""
    for first in range(0, len(some), AT_A_TIME):
        wanted = some[first : first + AT_A_TIME]
        sql = f"SELECT key, body, checksum FROM events WHERE key IN ({', '.join(map(str, wanted))})"
        found = {row[0]: row for row in database.query(sql)}
        yield from (found[key] for key in wanted if key in found)


def said_in(event: Event) -> Iterator[tuple[str | None, str]]:
    """Yield what was said in an event: by the user, the model or a tool.

    Each text comes with the id of its call if a model asks for that call, otherwise with None. A text that two events
    have is that of one: an input belongs to the start of the run, and a queued message to its delivery.
    """
    yield from ((None, text) for text in _texts_in(event))
    if isinstance(event, ModelEnd):
        for call in event.message.tool_calls:
            texts = _texts(call.arguments) if call.malformed is None else [call.malformed]
            yield from ((call.id, text) for text in texts)


def _texts_in(event: Event) -> Iterator[str]:
    match event:
        case RunStart():
            yield from _texts(event.input)
        case MessageAdded():
            if event.origin != "input":
                yield text_of(event.message.content)
        case ModelEnd():
            yield text_of(event.message.content)
        case ModelFailed():
            yield from _of_error(event.error)
        case CallStart():
            yield from _texts(event.arguments)
        case CallEnd():
            yield from _texts(event.result)
            yield from _of_error(event.error)
        case ApprovalDecision():
            yield event.reason
        case RunEnd():
            yield from _of_error(event.error)
        case _:
            pass


def _texts(data: Any) -> Iterator[str]:
    """Yield the texts in JSON data, and its numbers as texts."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield name
            yield from _texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)
    elif data is not None:
        yield str(data)


def _of_error(error: ErrorInfo | None) -> Iterator[str]:
    if error is not None:
        yield f"{error.type}: {error.message}"


def _excerpt(said: str, start: int, end: int) -> str:
    """Return the text around a match, in one line."""
    first, last = max(0, start - AROUND), min(len(said), end + AROUND)
    cut = "…" * (first > 0) + said[first:last] + "…" * (last < len(said))
    return " ".join(cut.split())


def tags_of_arm(arm: Any) -> set[str]:
    """Return the tags of the runs of an arm of a study. Raises UsageError if it is not a mapping."""
    if arm is None:
        return set()
    if not isinstance(arm, Mapping) or not all(isinstance(factor, str) for factor in arm):
        raise UsageError(f'search(arm=) takes the label of each factor, as {{"model": "large"}}, not {shown(arm)}.')
    return {f"{factor}:{label}" for factor, label in arm.items()}
