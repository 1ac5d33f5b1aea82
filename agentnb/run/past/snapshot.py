"""Snapshots: a position in a journal, made portable (ARCHITECTURE.md, 2. How a run works).

A snapshot holds the journal up to a position, the kind and the configuration of the loop that made it, and the state it
folds to, as JSON text with one event a line. A chain of hashes runs through the lines and a digest closes the text, so
a file that was changed in one place is refused, with the line at fault. Nothing in it is ever unpickled, evaluated or
imported by name.
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
    RecordingCorrupt,
    RecordingMissing,
    StorageError,
    UsageError,
    VersionMismatch,
)
from agentnb.core.events import Event, RunStart, decode_event, encode_event
from agentnb.core.evolve import fold
from agentnb.core.state import State
from agentnb.core.unicode import printable
from agentnb.run.given import check_path, check_text
from agentnb.run.past.possible import Possible
from agentnb.run.reading import read_bytes
from agentnb.run.whole import DATABASE, EXPORT, SNAPSHOT, written_whole

_DIGEST = b'"digest":"'
_BEGINS = b'{"chain":"%s","event":'
_LINK = 16
"""Characters of a hash."""

SCHEMA_VERSION = 1
"""Of the format: events one a line, each with the hash of the chain up to it, what sums up the state, and a digest. A
file of a newer version is refused (`VersionMismatch`)."""

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
"""What a file says of the state, beside how many messages it has; the rest the events say in as many words."""


@dataclass(frozen=True)
class Snapshot:
    """Where a run stood. `Snapshot.load(path)` reads what `save(path)` wrote."""

    events: tuple[Event, ...]
    name: str | None = None
    _state: list[State] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, events: Iterable[Event], *, name: str | None = None) -> Snapshot:
        """The snapshot at the end of these events. Raises RecordingCorrupt where they are not a run's."""
        snapshot = cls(tuple(events), name)
        if not snapshot.events or not isinstance(snapshot.events[0], RunStart):
            raise RecordingCorrupt("A recording begins with the event run_start; this one does not.")
        return snapshot

    @property
    def position(self) -> int:
        """How many events it holds."""
        return len(self.events)

    @property
    def run_id(self) -> str:
        """The run it is of."""
        return self.events[0].run_id

    @property
    def start(self) -> RunStart:
        """The run's first event, which says what loop it is of."""
        first = self.events[0]
        assert isinstance(first, RunStart)
        return first

    @property
    def state(self) -> State:
        """The state at its position."""
        if not self._state:
            self._state.append(fold(self.events))
        return self._state[0]

    def __repr__(self) -> str:
        names = printable(f"{self.name or self.run_id} of {self.start.name}")
        return f"<Snapshot {names}: {self.position} events>"

    def to_json(self) -> str:
        """The snapshot as JSON text."""
        return _write(self)

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """The snapshot in JSON text. Raises RecordingCorrupt, or VersionMismatch for one of a newer agentnb."""
        check_text("from_json(text)", text)
        return _read(text.encode(errors="surrogatepass"), "the text")

    def save(self, path: str | Path) -> Path:
        """Write it to a file; gives the file's path."""
        check_path("save(path)", path)
        path = Path(path)
        text = self.to_json()
        with written_whole(path, "The snapshot") as file:
            file.write(text.encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Read a file. Raises RecordingMissing, RecordingCorrupt, or VersionMismatch for one of a newer agentnb."""
        check_path("Snapshot.load(path)", path)
        if str(path).lstrip().startswith("{"):
            raise UsageError("This is a snapshot's text, and no path of a file: Snapshot.from_json(text) reads it.")
        try:
            data = read_bytes(Path(path))
        except FileNotFoundError as error:
            raise RecordingMissing(f"There is no file {path} (looked for from {Path.cwd()}).") from error
        except OSError as error:
            raise StorageError(f"{path} cannot be read as a snapshot: {error.strerror}.") from error
        if data.startswith(DATABASE):
            store = f"agentnb.Store({str(path)!r})"
            raise UsageError(f"{path} is a database and no snapshot. If it is a store, {store}.load(name) gives one.")
        if data.startswith(EXPORT):
            taken = f"agentnb.Store('runs.db').import_({str(path)!r})"
            raise UsageError(f"{path} is an export of a store and no snapshot: {taken} takes in the runs that it has.")
        return _read(data, str(path))


def _chain(lines: Sequence[bytes]) -> list[str]:
    """The hash of each line together with all before it."""
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


def _read(text: bytes, where: str) -> Snapshot:
    head, mark, tail = text.rpartition(_DIGEST)
    intact = mark and tail == hashlib.sha256(head + mark).hexdigest().encode() + b'"}\n'
    try:
        data = json.loads(text.decode())
        version, entries = data["version"], data["events"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if text.startswith(SNAPSHOT) or _BEGINS[:10] in text:
            raise RecordingCorrupt(f"{where} was changed or cut off after it was written{_fault(text)}.") from error
        raise RecordingCorrupt(f"{where} is not a snapshot{_line_of(error, text)}.") from error
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise VersionMismatch(
            f"{where} is a snapshot of version {version} (line 1); this agentnb reads up to {SCHEMA_VERSION}."
            " Update agentnb-toolkit."
        )
    if not intact:
        raise RecordingCorrupt(f"{where} was changed after it was written{_fault(text)}.")
    events, state = _decode(entries, where)
    snapshot = Snapshot(tuple(events), data.get("name"), [state])
    come_to = json.loads(to_json(_summary(state)))
    if any(not _same(come_to[name], value) for name, value in data["state"].items() if name in come_to):
        raise RecordingCorrupt(f"{where}: its events do not lead to the state it was saved with.")
    return snapshot


def _same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same; NaN, which is not equal to itself, is."""
    return one == other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _line_of(error: Exception, text: bytes) -> str:
    """Why a text is no snapshot, and in which line."""
    if isinstance(error, UnicodeDecodeError):
        return f": it is no UTF-8 text in line {text.count(bytes([10]), 0, error.start) + 1}"
    why = f"it has no {error}" if isinstance(error, KeyError) else error
    return f" (line {error.lineno}): {why}" if isinstance(error, json.JSONDecodeError) else f" (line 1): {why}"


def _fault(text: bytes) -> str:
    """In which line a text is not what was written, in words: the first where the chain of hashes breaks."""
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
    """Which line is at fault where all events are as they were; `number`: of the one behind them."""
    if len(lines) != number + 2 or lines[-1] or not re.fullmatch(_DIGEST + rb'[0-9a-f]{64}"}', lines[-2]):
        return str(number + 1)
    try:
        snapshot = Snapshot.of(map(decode_event, events))
        name = json.loads(lines[0] + b"]}").get("name")
    except (ValueError, RecordingCorrupt):
        return "1"
    if lines[0] != _header(snapshot, name):
        return "1"
    return str(number) if lines[number - 1] != _footer(snapshot) else f"1 or {number + 1}"


def _decode(entries: Any, where: str) -> tuple[list[Event], State]:
    """The events, and the state that they lead to. Raises RecordingCorrupt with the line of one that cannot be."""
    events: list[Event] = []
    possible = Possible()
    for number, entry in enumerate(entries):
        try:
            events.append(decode_event(to_json(entry["event"])))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise RecordingCorrupt(f"{where}: line {number + 2} (event {number}) is no event.") from error
        try:
            possible.take(events[-1])
        except UsageError as error:
            words = f"{where} is no recording of a run: line {number + 2} (event {number}). {error}"
            raise RecordingCorrupt(words) from error
    if not events:
        raise RecordingCorrupt("A recording begins with the event run_start; this one does not.")
    return events, possible.state
