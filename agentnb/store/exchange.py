"""Runs as one file of lines, to keep and to hand on: written by `Store.export`, read by `Store.import_`.

The first line says what it is, the last how much there is. Between them is a line for each run, followed by a line for
each of its events and of its named snapshots. Every line ends with a hash of itself and of all lines before it, so that
a file that was changed, cut off or put together anew is refused, and the line at fault is named. What is before that
line can be read all the same (`salvage`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pydantic_core import from_json, to_json

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, UsageError, VersionMismatch
from agentnb.core.events import Event, decode_event, encode_event
from agentnb.run.given import check_name
from agentnb.run.past.possible import Possible, check_time
from agentnb.run.reading import read_bytes
from agentnb.run.whole import DATABASE, SNAPSHOT, written_whole

EXPORT_VERSION = 1
"""What this agentnb writes; it reads up to this."""

_MARK = b',"chain":"'
_LINK = 16
"""Characters of a hash; that a changed line has the same by chance is one in 2**64."""


@dataclass(slots=True)
class ExportedRun:
    """A run of an exported file: what the store knew of it, its events, its snapshots as (name, position, created)."""

    id: str
    name: str | None
    loop: str
    created: float
    tags: tuple[str, ...] = ()
    events: list[Event] = field(default_factory=list)
    snapshots: list[tuple[str, int, float]] = field(default_factory=list)


# -- writing ---------------------------------------------------------------------------------------------------------


def write(path: Path, runs: Iterable[ExportedRun]) -> int:
    """Write runs to a file, whole or not at all; gives how many events they have."""
    chain = hashlib.sha256()
    count = 0
    with written_whole(path, "The export") as file:
        for line in _lines(runs):
            count += line.startswith(b'{"event":')
            chain.update(line)
            file.write(line[:-1] + _MARK + chain.hexdigest()[:_LINK].encode() + b'"}\n')
    return count


def _lines(runs: Iterable[ExportedRun]) -> Iterator[bytes]:
    """The lines without their hashes."""
    yield to_json({"agentnb": "export", "version": EXPORT_VERSION})
    count = events = 0
    for run in runs:
        yield to_json({"run": {name: getattr(run, name) for name in ("id", "name", "loop", "created", "tags")}})
        for event in run.events:
            yield b'{"event":' + encode_event(event, without=["run_id"]) + b"}"
        for name, position, created in run.snapshots:
            yield to_json({"snapshot": name, "position": position, "created": created})
        count, events = count + 1, events + len(run.events)
    yield to_json({"end": True, "runs": count, "events": events})


# -- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path, *, salvage: bool = False) -> list[ExportedRun]:
    """The runs in a file. Raises RecordingMissing, RecordingCorrupt with the line at fault, or VersionMismatch.

    salvage: give what is before the line at fault; a run that it cuts off is as far as it goes.
    """
    try:
        text = read_bytes(path)
    except FileNotFoundError as error:
        raise RecordingMissing(f"There is no file {path} (looked for from {Path.cwd()}).") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read as an export: {error.strerror}.") from error
    _check_kind(text, str(path))
    runs: list[ExportedRun] = []
    try:
        _read(text.split(b"\n"), runs, str(path))
    except RecordingCorrupt:
        if not salvage:
            raise
    return [run for run in runs if run.events]


def _check_kind(text: bytes, where: str) -> None:
    """Raise UsageError for a file of another kind, which tells how that is read."""
    if text.startswith(SNAPSHOT):
        raise UsageError(f"{where} is a snapshot and no export: agentnb.Snapshot.load({where!r}) reads it.")
    if text.startswith(DATABASE):
        raise UsageError(f"{where} is a database and no export. If it is a store, its export(path) writes one.")


def _read(lines: list[bytes], runs: list[ExportedRun], where: str) -> None:
    chain = hashlib.sha256()
    possible, ended = Possible(), False
    for number, line in enumerate(lines, 1):
        if ended and number == len(lines) and not line:
            return
        if ended:
            raise RecordingCorrupt(f"{where}, line {number}: there is something behind the end.")
        entry = _entry(line, chain, f"{where}, line {number}")
        if number == 1:
            _check_head(entry, where)
        elif entry.get("end"):
            ended = True
        else:
            possible = _take(entry, runs, possible, f"{where}, line {number}")
    raise RecordingCorrupt(f"{where} is cut off: it has no end (line {len(lines)}).")


def _entry(line: bytes, chain: Any, where: str) -> dict[str, Any]:
    """What a line says, once its hash is found to be right."""
    said, mark, link = line.rpartition(_MARK)
    said += b"}"
    chain.update(said)
    if not mark or link != chain.hexdigest()[:_LINK].encode() + b'"}':
        raise RecordingCorrupt(f"{where}: it was changed or cut off after it was written, or is no export.")
    try:
        entry = from_json(said)
    except ValueError as error:
        raise RecordingCorrupt(f"{where}: {error}") from error
    if not isinstance(entry, dict):
        raise RecordingCorrupt(f"{where}: it is no entry of an export.")
    return entry


def _check_head(entry: dict[str, Any], where: str) -> None:
    if entry.get("agentnb") != "export" or not isinstance(entry.get("version"), int):
        raise RecordingCorrupt(f"{where} is not an export of a store.")
    if entry["version"] > EXPORT_VERSION:
        raise VersionMismatch(
            f"{where} is an export of version {entry['version']}; this agentnb reads up to {EXPORT_VERSION}."
            " Update agentnb-toolkit."
        )


def _take(entry: dict[str, Any], runs: list[ExportedRun], possible: Possible, where: str) -> Possible:
    """Take an entry in; gives what the next event has to follow. Raises RecordingCorrupt where it cannot be."""
    try:
        if "run" in entry:
            runs.append(_exported(entry["run"]))
            return Possible()
        if "event" in entry:
            event = decode_event(to_json(entry["event"]))
            possible.take(event)
            runs[-1].events.append(replace(event, run_id=runs[-1].id))
        else:
            created = entry.get("created", runs[-1].created)  # the first agentnb did not say
            name, position = entry["snapshot"], entry["position"]
            check_name("A snapshot's name", name)
            check_time("Its date", created)
            if not isinstance(position, int) or not 0 < position <= len(runs[-1].events):
                raise RecordingCorrupt(f"{where}: the snapshot {name!r} is of event {position}, which the run has not.")
            runs[-1].snapshots.append((name, position, created))
    except UsageError as error:
        raise RecordingCorrupt(f"{where}: {error}") from error
    except (KeyError, TypeError, IndexError, ValueError, RecursionError) as error:
        raise RecordingCorrupt(f"{where}: it is no entry of an export ({type(error).__name__}).") from error
    return possible


def _exported(said: dict[str, Any]) -> ExportedRun:
    """A run without its events. Raises UsageError where something said of it cannot be."""
    run = ExportedRun(**{**said, "tags": tuple(said["tags"])})
    names = [run.id, run.loop, *run.tags] + ([run.name] if run.name is not None else [])
    check_name("A run's id, name, loop and tags", *names)
    check_time("Its date", run.created)
    return run
