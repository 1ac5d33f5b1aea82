"""Exported files: runs as lines of JSON, written by `Store.export` and read by `Store.import_`.

The first line has the kind and version of the file, the last the numbers of its runs and events. Between them is a line
for each run, followed by a line for each of its events and of its named snapshots. Each line ends with a hash of itself
and of all lines before it, so that a file that was changed, cut off or reassembled is refused with the number of the
line. The lines before it can still be read (`salvage`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, UsageError, VersionMismatch
from agentnb.core.events import Event
from agentnb.run.files import DATABASE, SNAPSHOT, read_bytes, written_atomically
from agentnb.run.past.snapshot import RecordingCheck, check_time
from agentnb.run.validation import check_name
from agentnb.store import recordings

EXPORT_VERSION = 1
"""The version of the files written here; files up to this version are read."""

_MARK = b',"chain":"'
_LINK = 16
"""Characters of a hash: a changed line has the same hash with a probability of 1 in 2**64."""


@dataclass(slots=True)
class ExportedRun:
    """A run of an exported file: its row in the store, its events, its snapshots as (name, position, created)."""

    id: str
    name: str | None
    loop: str
    created: float
    tags: tuple[str, ...] = ()
    events: list[Event] = field(default_factory=list)
    snapshots: list[tuple[str, int, float]] = field(default_factory=list)


# -- writing ---------------------------------------------------------------------------------------------------------


def write(path: Path, runs: Iterable[ExportedRun]) -> int:
    """Write runs to a file, whole or not at all, and return the number of their events."""
    chain = hashlib.sha256()
    count = 0
    with written_atomically(path, "The export") as file:
        for line in _lines(runs):
            count += line.startswith(b'{"event":')
            chain.update(line)
            file.write(line[:-1] + _MARK + chain.hexdigest()[:_LINK].encode() + b'"}\n')
    return count


def _lines(runs: Iterable[ExportedRun]) -> Iterator[bytes]:
    """Return the lines without their hashes."""
    yield to_json({"agentnb": "export", "version": EXPORT_VERSION})
    count = events = 0
    for run in runs:
        yield to_json({"run": {name: getattr(run, name) for name in ("id", "name", "loop", "created", "tags")}})
        for event in run.events:
            yield b'{"event":' + recordings.to_json(event) + b"}"
        for name, position, created in run.snapshots:
            yield to_json({"snapshot": name, "position": position, "created": created})
        count, events = count + 1, events + len(run.events)
    yield to_json({"end": True, "runs": count, "events": events})


# -- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path, *, salvage: bool = False) -> list[ExportedRun]:
    """Return the runs of a file.

    salvage: read only the lines before the damaged one. The last run then has only the events in these lines.

    Raises RecordingMissing, UsageError for a file of another kind, VersionMismatch for one of a newer version, and
    RecordingCorrupt with the number of the damaged line.
    """
    try:
        text = read_bytes(path)
    except FileNotFoundError as error:
        raise RecordingMissing(f"There is no file {path} (looked for from {Path.cwd()}).") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read as an export: {error.strerror}.") from error
    where = str(path)
    if text.startswith(SNAPSHOT):
        raise UsageError(f"{where} is a snapshot and not an export: agentnb.Snapshot.load({where!r}) reads it.")
    if text.startswith(DATABASE):
        raise UsageError(f"{where} is a database and not an export. If it is a store, its export(path) writes one.")
    runs: list[ExportedRun] = []
    try:
        _read_lines(text.split(b"\n"), runs, where)
    except RecordingCorrupt:
        if not salvage:
            raise
    return [run for run in runs if run.events]


def _read_lines(lines: list[bytes], runs: list[ExportedRun], where: str) -> None:
    """Add the runs in the lines to `runs`, up to the line that raises RecordingCorrupt."""
    chain = hashlib.sha256()
    check, has_ended = RecordingCheck(), False
    for number, line in enumerate(lines, 1):
        line_is = f"{where}, line {number}"
        if has_ended and number == len(lines) and not line:
            return
        if has_ended:
            raise RecordingCorrupt(f"{line_is}: there is a line after the end.")
        entry = _entry(line, chain, line_is)
        if number == 1:
            _check_head(entry, line_is)
        elif entry.get("end"):
            has_ended = True
        elif "run" in entry:
            runs.append(_exported(entry, line_is))
            check = RecordingCheck()
        else:
            _add(entry, runs, check, line_is)
    raise RecordingCorrupt(
        f"{where} is cut off: it has no end (line {len(lines)}). import_(path, salvage=True) reads what it has."
    )


def _entry(line: bytes, chain: Any, where: str) -> dict[str, Any]:
    """Return the content of a line after its hash has been verified."""
    content, mark, link = line.rpartition(_MARK)
    content += b"}"
    chain.update(content)
    if not mark or link != chain.hexdigest()[:_LINK].encode() + b'"}':
        raise RecordingCorrupt(
            f"{where}: it was changed or cut off after it was written, or is not an export. import_(path, salvage=True)"
            " reads the lines of an export before this one."
        )
    try:
        entry = from_json(content)
    except ValueError as error:
        raise RecordingCorrupt(f"{where}: {error}") from error
    if not isinstance(entry, dict):
        raise RecordingCorrupt(f"{where}: it is not an entry of an export.")
    return entry


def _check_head(entry: dict[str, Any], where: str) -> None:
    if entry.get("agentnb") != "export" or not isinstance(entry.get("version"), int):
        raise RecordingCorrupt(f"{where} is not an export of a store.")
    if entry["version"] > EXPORT_VERSION:
        raise VersionMismatch(
            f"{where} is an export of version {entry['version']}; this agentnb reads up to {EXPORT_VERSION}."
            " Update agentnb-toolkit."
        )


def _exported(entry: dict[str, Any], where: str) -> ExportedRun:
    """Return the run of an entry, without its events. Raises RecordingCorrupt if one of its values is not possible."""
    try:
        run = ExportedRun(**{**entry["run"], "tags": tuple(entry["run"]["tags"])})
        names = [run.id, run.loop, *run.tags] + ([run.name] if run.name is not None else [])
        check_name("A run's id, name, loop and tags", *names)
        check_time("Its date", run.created)
    except UsageError as error:
        raise RecordingCorrupt(f"{where}: {error}") from error
    except (KeyError, TypeError) as error:
        raise RecordingCorrupt(f"{where}: it is not an entry of an export ({type(error).__name__}).") from error
    return run


def _add(entry: dict[str, Any], runs: list[ExportedRun], check: RecordingCheck, where: str) -> None:
    """Add an event or a snapshot to the last run. Raises RecordingCorrupt if it cannot follow what is before it."""
    try:
        run = runs[-1]
        if "event" in entry:
            event = recordings.from_json(json.dumps(entry["event"]), run.id)
            check.apply(event)
            run.events.append(event)
            return
        name, position = entry["snapshot"], entry["position"]
        created = entry.get("created", run.created)  # early exports do not have it
        check_name("A snapshot's name", name)
        check_time("Its date", created)
        if not isinstance(position, int) or not 0 < position <= len(run.events):
            raise RecordingCorrupt(
                f"{where}: the snapshot {name!r} is of event {position}, which the run does not have."
            )
        run.snapshots.append((name, position, created))
    except UsageError as error:
        raise RecordingCorrupt(f"{where}: {error}") from error
    except (KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise RecordingCorrupt(
            f"{where}: it is not an entry of an export ({type(error).__name__}: {error})."
        ) from error
