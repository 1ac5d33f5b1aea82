"""Snapshots: a position in a journal, made portable (DESIGN 1).

A snapshot holds the journal up to a position, the kind and the configuration of the loop that made it, and the state it
folds to, as JSON text with one event a line. A chain of hashes runs through the lines and a digest closes the text, so
a file that was changed in one place is refused, with the line at fault. Nothing in it is ever unpickled, evaluated or
imported by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, VersionMismatch
from agentnb.core.events import Event, RunStart, decode_event, encode_event
from agentnb.core.evolve import fold
from agentnb.core.state import State
from agentnb.run.given import check_path, check_text

SCHEMA_VERSION = 1
SCHEMA_SUMMARIES = {1: "events one a line, each with the hash of the chain up to it; state without messages; digest."}
"""What each version of the format is. A newer one than ours is refused (`VersionMismatch`)."""


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
        return f"<Snapshot {self.name or self.run_id} of {self.start.name}: {self.position} events>"

    def to_json(self) -> str:
        """The snapshot as JSON text."""
        return _write(self)

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """The snapshot in JSON text. Raises RecordingCorrupt, or VersionMismatch for one of a newer agentnb."""
        check_text("from_json(text)", text)
        return _read(text, "the text")

    def save(self, path: str | Path) -> Path:
        """Write it to a file; gives the file's path."""
        check_path("save(path)", path)
        path = Path(path)
        partial = path.with_name(path.name + ".part")
        try:
            partial.write_bytes(self.to_json().encode())
            partial.replace(path)  # whoever reads meanwhile sees the old file or the new one, never half of one
        except OSError as error:
            raise StorageError(f"The snapshot cannot be written to {path}: {error.strerror}.") from error
        return path

    @classmethod
    def load(cls, path: str | Path) -> Snapshot:
        """Read a file. Raises RecordingMissing, RecordingCorrupt, or VersionMismatch for one of a newer agentnb."""
        check_path("Snapshot.load(path)", path)
        try:
            text = Path(path).read_bytes().decode()  # not read_text, which takes other line ends for ours
        except FileNotFoundError as error:
            raise RecordingMissing(f"There is no file {path} (looked for from {Path.cwd()}).") from error
        except OSError as error:
            raise StorageError(f"{path} cannot be read as a snapshot: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise RecordingCorrupt(f"{path} is not UTF-8 text (byte {error.start}).") from error
        return _read(text, str(path))


def _chain(lines: Sequence[bytes]) -> list[str]:
    """The hash of each line together with all before it."""
    hashes, current = [], hashlib.sha256()
    for line in lines:
        current.update(line + b"\n")
        hashes.append(current.hexdigest()[:16])
    return hashes


def _summary(state: State) -> dict[str, Any]:
    """The state without what the events say already in as many words."""
    left_out = (
        "messages",
        "input",
        "reply",
        "calls",
        "own_calls",
        "entered",
        "requests",
        "call",
        "children",
        "listens",
        "rules",
    )
    summary = {k: v for k, v in state.dump().items() if k not in left_out}
    return {**summary, "messages": len(state.messages)}


def _write(snapshot: Snapshot) -> str:
    lines = [encode_event(event) for event in snapshot.events]
    header = {
        "agentnb": "snapshot",
        "version": SCHEMA_VERSION,
        "name": snapshot.name,
        "loop": snapshot.start.loop,
        "fingerprint": snapshot.start.fingerprint,
        "position": snapshot.position,
    }
    text = to_json(header).decode()[:-1] + ',"events":[\n'
    text += ",\n".join(
        f'{{"chain":"{link}","event":{line.decode()}}}' for link, line in zip(_chain(lines), lines, strict=True)
    )
    text += f'\n],"state":{to_json(_summary(snapshot.state)).decode()},\n"digest":"'
    return text + hashlib.sha256(text.encode()).hexdigest() + '"}\n'


def _read(text: str, where: str) -> Snapshot:
    head, mark, tail = text.rpartition('"digest":"')
    intact = mark and tail == hashlib.sha256((head + mark).encode()).hexdigest() + '"}\n'
    try:
        data = json.loads(text)
        version, entries = data["version"], data["events"]
    except (ValueError, KeyError, TypeError) as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise RecordingCorrupt(f"{where} is not a snapshot{line}: {why}") from error
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise VersionMismatch(
            f"{where} is a snapshot of version {version}; this agentnb reads up to {SCHEMA_VERSION}."
            " Update agentnb-toolkit."
        )
    if not intact:
        raise RecordingCorrupt(f"{where} was changed after it was written{_line_at_fault(text, entries)}.")
    snapshot = Snapshot.of(_decode(entries, where), name=data.get("name"))
    if json.loads(to_json(_summary(snapshot.state))) != data["state"]:
        raise RecordingCorrupt(f"{where}: its events do not lead to the state it was saved with.")
    return snapshot


def _line_at_fault(text: str, entries: Any) -> str:
    """Where the chain of hashes breaks, in words; the events begin on the file's second line."""
    try:
        lines = [to_json(entry["event"]) for entry in entries]
        written = [entry["chain"] for entry in entries]
    except (KeyError, TypeError):
        return ""
    for number, (link, found) in enumerate(zip(_chain(lines), written, strict=True)):
        if link != found:
            return f": line {number + 2} (event {number})"
    return ": outside its events"


def _decode(entries: Any, where: str) -> list[Event]:
    events = []
    for number, entry in enumerate(entries):
        try:
            events.append(decode_event(to_json(entry["event"])))
        except ValidationError as error:
            raise RecordingCorrupt(f"{where}: event {number} is none: {error.errors()[0]['msg']}") from error
    return events
