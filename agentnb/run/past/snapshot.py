"""Snapshots: positions in a journal as portable text (ARCHITECTURE.md, 2. How a run works).

A snapshot holds the journal up to a position, the kind and the configuration of its loop, and a summary of the state,
as JSON text with one event a line. Each line holds the hash of all events up to it, and a digest ends the text. A file
that was changed is refused, and the error names the line. The contents are never unpickled, evaluated or imported by
name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from agentnb.core.errors import (
    IllegalTransition,
    ImpossibleEvent,
    RecordingCorrupt,
    RecordingMissing,
    StorageError,
    UsageError,
    VersionMismatch,
    printable,
)
from agentnb.core.events import (
    ApprovalRequest,
    CallStart,
    Event,
    ModelEnd,
    ModelStart,
    RunStart,
    Withdrawn,
    decode_event,
    encode_event,
)
from agentnb.core.evolve import evolve, fold
from agentnb.core.state import State
from agentnb.run.files import DATABASE, EXPORT, SNAPSHOT, read_bytes, written_atomically
from agentnb.run.validation import check_path, check_text, expanded

_DIGEST = b'"digest":"'
_BEGINS = b'{"chain":"%s","event":'
_LINK = 16
"""The number of characters of a hash in a line."""

SCHEMA_VERSION = 1
"""The version of the format. Version 1: one event a line with the hash of all events up to it, the summary of the
state, and a digest. A file of a newer version is refused (`VersionMismatch`)."""

_SUMMARY = (
    "run_id",
    "loop",
    "name",
    "phase",
    "position",
    "started",
    "turn",
    "attempt",
    "model",
    "options",
    "failure",
    "detached",
    "calls_started",
    "queues",
    "heard",
    "values",
    "usage",
    "paused",
    "cancelled",
    "stop_reason",
    "output",
    "error",
    "unsaid",
)
"""The fields of the state in the summary of a file, which also has the number of messages. The other fields
repeat the contents of the events."""


LATEST = 253_402_300_799.0
"""The last second of the year 9999, in seconds since the epoch. Python cannot represent a later date."""


@dataclass(frozen=True)
class Snapshot:
    """A position of a run, with all events before it. `Snapshot.load(path)` reads a file that `save(path)` wrote."""

    events: tuple[Event, ...]
    name: str | None = None
    _state: list[State] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, events: Iterable[Event], *, name: str | None = None) -> Snapshot:
        """Return the snapshot after these events. Raises RecordingCorrupt if the first one is not a RunStart."""
        snapshot = cls(tuple(events), name)
        if not snapshot.events or not isinstance(snapshot.events[0], RunStart):
            raise RecordingCorrupt("A recording begins with the event run_start; this one does not.")
        return snapshot

    @property
    def position(self) -> int:
        """The number of events."""
        return len(self.events)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.events[0].run_id

    @property
    def start(self) -> RunStart:
        """The first event of the run, which describes its loop."""
        first = self.events[0]
        assert isinstance(first, RunStart)
        return first

    @property
    def state(self) -> State:
        """The state at the position, computed at the first access."""
        if not self._state:
            self._state.append(fold(self.events))
        return self._state[0]

    def __repr__(self) -> str:
        names = printable(f"{self.name or self.run_id} of {self.start.name}")
        return f"<Snapshot {names}: {self.position} events>"

    def to_json(self) -> str:
        """Return the snapshot as JSON text."""
        return _write(self)

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Read a snapshot from JSON text. Raises RecordingCorrupt, or VersionMismatch for a newer agentnb's text."""
        check_text("from_json(text)", text)
        return _read(text.encode(errors="surrogatepass"), "the text")

    def save(self, path: str | Path) -> Path:
        """Write the snapshot to a file and return the path. Raises StorageError if the file cannot be written."""
        check_path("save(path)", path)
        path = expanded(path)
        text = self.to_json()
        with written_atomically(path, "The snapshot") as file:
            file.write(text.encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Read a snapshot from a file that `save` wrote, or a recording of another tool (`agentnb.importers`).

        Raises RecordingMissing if there is no file, StorageError if it cannot be read, RecordingCorrupt if it was
        changed or is not a snapshot, VersionMismatch if a newer agentnb wrote it, UsageError if it is a store, the
        export of a store, or has several recordings (`load_all` returns them).
        """
        found = cls.load_all(path)
        if len(found) > 1:
            names = ", ".join(str(one.name) for one in found[:10])
            raise UsageError(
                f"{path} has {len(found)} recordings: {names}. Choose one of agentnb.Snapshot.load_all({str(path)!r})."
            )
        return found[0]

    @classmethod
    def load_all(cls, path: str | Path) -> list[Snapshot]:
        """Read all recordings of a file: the one of a snapshot, or those in a file of another tool.

        path: `~` is the home folder. Raises the errors of `load`, except for several recordings.
        """
        check_path("Snapshot.load(path)", path)
        if str(path).lstrip().startswith("{"):
            raise UsageError("This is the text of a snapshot, not the path of a file. Use Snapshot.from_json(text).")
        path = expanded(path)
        try:
            data = read_bytes(path)
        except FileNotFoundError as error:
            raise RecordingMissing(f"There is no file {path} (looked for from {Path.cwd()}).") from error
        except IsADirectoryError as error:
            raise StorageError(
                f"{path} is a folder. The tables of agentnb.analysis and Store.add read the files in a folder;"
                f" `python -m agentnb ls {path}` lists them."
            ) from error
        except OSError as error:
            raise StorageError(f"{path} cannot be read as a snapshot: {error.strerror}.") from error
        if data.startswith(SNAPSHOT):
            return [_read(data, str(path))]
        if data.startswith(EXPORT):
            taken = f"agentnb.Store('runs.db').import_({str(path)!r})"
            raise UsageError(f"{path} is an export of a store, not a snapshot. {taken} imports its runs.")
        if (found := _import(path, data)) is not None:
            return found
        if data.startswith(DATABASE):
            store = f"agentnb.Store({str(path)!r})"
            raise UsageError(
                f"{path} is a database, not a snapshot. If it is a store, {store}.load(name) returns a snapshot."
            )
        return [_read(data, str(path), f", nor a recording of {', '.join(_foreign_formats())}")]


def _foreign_formats() -> list[str]:
    """Return the names of the formats of other tools that are read."""
    from agentnb.importers import formats

    return [format.name for format in formats()]


def _import(path: Path, data: bytes) -> list[Snapshot] | None:
    """Return the recordings in a file of another tool; None if its format is not known."""
    from agentnb.importers import recordings  # its formats are needed for foreign files only

    def in_folder(pattern: str) -> list[tuple[str, bytes]]:
        return [(other.name, read_bytes(other)) for other in sorted(path.parent.glob(pattern)) if other.is_file()]

    imported = recordings(path, data, in_folder)
    if imported is None:
        return None
    found: list[Snapshot] = []
    for name, events in imported:
        check = RecordingCheck()
        try:
            for event in events:
                check.apply(event)
        except UsageError as error:
            words = f"{path} cannot be read as a recording: event {check.state.position} of {name}. {error}"
            raise RecordingCorrupt(words) from error
        found.append(Snapshot(events, name, [check.state]))
    return found


def _chain(lines: Sequence[bytes]) -> list[str]:
    """Return one hash for each line, of this line and all lines before it."""
    hashes, current = [], hashlib.sha256()
    for line in lines:
        current.update(line + b"\n")
        hashes.append(current.hexdigest()[:_LINK])
    return hashes


def _summary(state: State) -> dict[str, Any]:
    dumped = state.dump()
    return {**{name: dumped[name] for name in _SUMMARY}, "messages": len(state.messages)}


def _header(snapshot: Snapshot, name: Any) -> bytes:
    header = {
        "agentnb": "snapshot",
        "version": SCHEMA_VERSION,
        "name": name,
        "loop": snapshot.start.loop,
        "fingerprint": snapshot.start.fingerprint,
        "position": snapshot.position,
    }
    return to_json(header)[:-1] + b',"events":['


def _footer(snapshot: Snapshot) -> bytes:
    return b'],"state":' + to_json(_summary(snapshot.state)) + b","


def _write(snapshot: Snapshot) -> str:
    lines = [encode_event(event) for event in snapshot.events]
    entries = [_BEGINS % link.encode() + line + b"}" for link, line in zip(_chain(lines), lines, strict=True)]
    text = b"\n".join([_header(snapshot, snapshot.name), b",\n".join(entries), _footer(snapshot), _DIGEST])
    return (text + hashlib.sha256(text).hexdigest().encode() + b'"}\n').decode()


def _read(text: bytes, where: str, others: str = "") -> Snapshot:
    # The digest at the end shows a change anywhere; the version is checked before it is reported as a change.
    head, mark, tail = text.rpartition(_DIGEST)
    intact = mark and tail == hashlib.sha256(head + mark).hexdigest().encode() + b'"}\n'
    try:
        data = json.loads(text.decode())
        version, entries = data["version"], data["events"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if text.startswith(SNAPSHOT) or _BEGINS[:10] in text:
            raise RecordingCorrupt(f"{where} was changed or cut off after it was written{_fault(text)}.") from error
        why = _line_of(error, text) if not others or isinstance(error, ValueError) else ""
        raise RecordingCorrupt(f"{where} is not a snapshot{others}{why}.") from error
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise VersionMismatch(
            f"{where} is a snapshot of version {version} (line 1); this agentnb reads up to {SCHEMA_VERSION}."
            " Update agentnb-toolkit."
        )
    if not intact:
        raise RecordingCorrupt(f"{where} was changed after it was written{_fault(text)}.")

    # The events must be possible, and must result in the state that the file records.
    events, state = _decode(entries, where)
    snapshot = Snapshot(tuple(events), data.get("name"), [state])
    folded = json.loads(to_json(_summary(state)))
    if any(not _same(folded[name], value) for name, value in data["state"].items() if name in folded):
        raise RecordingCorrupt(f"{where}: its events do not result in the state that was saved.")
    return snapshot


def _same(one: Any, other: Any) -> bool:
    """Return True if two JSON values are equal. Unlike in Python, NaN equals NaN."""
    return one == other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _line_of(error: Exception, text: bytes) -> str:
    """Return the line and the reason, for the message that a text is not a snapshot."""
    if isinstance(error, UnicodeDecodeError):
        return f": it is not UTF-8 text in line {text.count(bytes([10]), 0, error.start) + 1}"
    why = f"it has no {error}" if isinstance(error, KeyError) else error
    return f" (line {error.lineno}): {why}" if isinstance(error, json.JSONDecodeError) else f" (line 1): {why}"


def _fault(text: bytes) -> str:
    """Return the text that names the first changed line: the line at which the chain of hashes breaks."""
    # Compare each line of an event with the line as it would be written: with its hash, and a comma unless it is last.
    lines, chain, events = text.split(b"\n"), hashlib.sha256(), []
    for number, line in enumerate(lines[1:], 2):
        if line.startswith(b"],"):
            break
        event = line.removesuffix(b",")[len(_BEGINS) + _LINK - 2 : -1]
        chain.update(event + b"\n")
        entry = _BEGINS % chain.hexdigest()[:_LINK].encode() + event + b"}"
        following = b"".join(lines[number : number + 1])
        if line not in (entry, entry + b",") or (line != entry and following.startswith(b"],")):
            return f": line {number} (event {number - 2})"
        if line == entry and not following.startswith((b"],", _BEGINS[:10])):
            return f": line {number + 1}"
        events.append(event)
    else:
        return f": line {len(lines)}"
    return f": line {_outside(lines, events, number)}"


def _outside(lines: list[bytes], events: list[bytes], number: int) -> str:
    """Return the number of the changed line, as text, if no event was changed.

    lines: of the text. events: their encoded events. number: of the line after the events.
    """
    # One line with the digest must follow the summary, and the text must end with a line break.
    if len(lines) != number + 2 or lines[-1] or not re.fullmatch(_DIGEST + rb'[0-9a-f]{64}"}', lines[-2]):
        return str(number + 1)
    try:
        snapshot = Snapshot.of(map(decode_event, events))
        name = json.loads(lines[0] + b"]}").get("name")
    except (ValueError, RecordingCorrupt):
        return "1"
    # The header and the summary are derived from the events, so they can be compared. If both are right, the name in
    # the header or the digest was changed.
    if lines[0] != _header(snapshot, name):
        return "1"
    return str(number) if lines[number - 1] != _footer(snapshot) else f"1 or {number + 1}"


def _decode(entries: Any, where: str) -> tuple[list[Event], State]:
    """Return the events and the state after them. Raises RecordingCorrupt, with the line, for an impossible event.

    entries: the parsed lines of events. where: the name of the text in error messages.
    """
    events: list[Event] = []
    check = RecordingCheck()
    for number, entry in enumerate(entries):
        try:
            events.append(decode_event(to_json(entry["event"])))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise RecordingCorrupt(f"{where}: line {number + 2} (event {number}) is not a valid event.") from error
        try:
            check.apply(events[-1])
        except UsageError as error:
            words = f"{where} is not a valid recording of a run: line {number + 2} (event {number}). {error}"
            raise RecordingCorrupt(words) from error
    if not events:
        raise RecordingCorrupt("A recording begins with the event run_start; this one does not.")
    return events, check.state


# -- the check of events that were read from a file ------------------------------------------------------------------


def check_time(what: str, time: float | None) -> None:
    """Raise ImpossibleEvent if this is not a time in seconds since the epoch. None is accepted.

    what: the subject of the error message.
    """
    if time is not None and not 0 <= time <= LATEST:  # refuses NaN as well
        raise ImpossibleEvent(f"{what} is {time}, which is not a valid time.")


class RecordingCheck:
    """A check that a run could have produced these events in this order. A file can contain any events.

    The check covers the values that agentnb writes (event numbers, times, counts) and the consistency with the earlier
    events. Texts of models, tools and people are not checked. `state` is the state after the events.
    """

    def __init__(self) -> None:
        self.state = State()

    def apply(self, event: Event) -> None:
        """Check the next event and apply it to the state.

        Raises ImpossibleEvent or IllegalTransition, with the reason, if the event cannot be the next one.
        """
        position = self.state.position
        if (position == 0) is not (isinstance(event, RunStart) and not event.path):
            raise ImpossibleEvent(
                "A recording begins with the event run_start." if position == 0 else "A run begins only once."
            )
        check_time("Its time", event.time)
        if isinstance(event, ApprovalRequest):
            check_time("Its deadline", event.deadline)
        for name, least in _least_counts(event):
            if getattr(event, name) < least:
                raise ImpossibleEvent(f"Its {name} is {getattr(event, name)}, and must be at least {least}.")
        if isinstance(event, ModelEnd) and any(len(pair) != 2 or min(pair) < 0 for pair in event.timing):
            raise ImpossibleEvent("Its timing must be pairs of milliseconds and characters, each 0 or more.")
        try:
            evolve(self.state, event)
        except (ImpossibleEvent, IllegalTransition):
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ImpossibleEvent(f"{event.type} cannot follow the events before it: {error!r}.") from error
        if event.seq != position:
            raise ImpossibleEvent(f"Its number is {event.seq} and should be {position}.")


def _least_counts(event: Event) -> tuple[tuple[str, int], ...]:
    if isinstance(event, ModelStart):
        return (("turn", 0), ("attempt", 1))
    if isinstance(event, CallStart):
        return (("attempt", 1),)
    return (("count", 0), ("first", 0)) if isinstance(event, Withdrawn) else ()
