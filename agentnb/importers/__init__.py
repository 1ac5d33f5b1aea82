"""Importers: recordings of other tools, read as events of agentnb. One module a format, recognised by content.

`Snapshot.load`, and with it `agentnb.replay` and the tables of `agentnb.analysis`, read these files as they read the
recordings of agentnb. A format is a module, or an object, with three attributes:

    name                the format's name
    recognises(file)    True if the file is of this format; looks at file.first, file.document or file.data
    read(file)          yields the events; each run_start with an empty path begins another recording

`file` is a `ForeignFile`, and a `Writer` makes events that fit together. What cannot be carried is counted by kind in
`file.lost`. Another package adds a format by an entry point of the group `agentnb.importers` with the format as its
object.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from msgspec.structs import replace

from agentnb.core.errors import AgentnbError
from agentnb.core.events import Event, ModelEnd, RunEnd, RunStart
from agentnb.importers.content import anthropic_answer, content_of, message_of, openai_answer
from agentnb.importers.source import ForeignFile
from agentnb.importers.writer import Answer, Call, Writer, seconds, stamp

__all__ = [
    "Answer",
    "Call",
    "ForeignFile",
    "Format",
    "Imported",
    "Writer",
    "anthropic_answer",
    "content_of",
    "format_of",
    "message_of",
    "openai_answer",
    "recordings",
    "seconds",
]

GROUP = "agentnb.importers"
_MODULES = (
    "atif",
    "claude_code",
    "inspect_log",
    "codex",
    "pi",
    "langgraph",
    "ag_ui",
    "openai_agents",
    "otel",
    "swe_agent",
    "gemini_cli",
    "chatgpt",
    "messages",
)
"""The modules of the formats, in the order in which they are asked: those that accept many files come last."""


class Format(Protocol):
    """A format of recordings: a module or an object."""

    name: str

    def recognises(self, file: ForeignFile) -> bool:
        """Return True if the file is of this format."""

    def read(self, file: ForeignFile) -> Iterator[Event]:
        """Yield the events of the recordings in the file. Raises RecordingCorrupt, with the place."""


class Imported(NamedTuple):
    """A recording in a foreign file: its events, and its name."""

    name: str
    events: tuple[Event, ...]


def formats() -> Iterator[Format]:
    """Yield the known formats: those of agentnb, then those of other packages."""
    for module in _MODULES:
        yield cast("Format", import_module(f"{__name__}.{module}"))
    for point in entry_points(group=GROUP):
        try:
            yield point.load()
        except Exception as error:  # another package must not prevent that files are opened
            warnings.warn(f"The importer {point.name!r} cannot be loaded: {error}", RuntimeWarning, stacklevel=2)


def format_of(file: ForeignFile) -> Format | None:
    """Return the format of a file; None if it is not known."""
    return next((format for format in formats() if format.recognises(file)), None)


def recordings(
    path: Path, data: bytes, in_folder: Callable[[str], list[tuple[str, bytes]]] = lambda pattern: []
) -> list[Imported] | None:
    """Return the recordings in a foreign file; None if its format is not known.

    path: of the file, for names and messages. data: its content. in_folder: returns the names and the contents of
    the files in the same folder whose names match a pattern.

    Warns if a part of the file is damaged and left out. Raises RecordingCorrupt if nothing can be read, VersionMismatch
    if the file is of a version that cannot be read.
    """
    file = ForeignFile(path, data, in_folder)
    format = format_of(file)
    if format is None:
        return None
    digest = sha256(data).hexdigest()[:20]
    found: list[Imported] = []
    events: list[Event] = []
    labels: list[str] = []

    def complete() -> None:
        """Add the recording of the events so far, with what was lost."""
        run_id = digest if not found else f"{digest}-{len(found) + 1}"
        lost = file.lost_in(len(found))
        stamp(events, run_id, lost)
        start = cast("RunStart", events[0])
        about: dict[str, Any] = {"format": format.name, **start.config.get("imported", {})}
        if untimed := sum(event.untimed for event in events):
            about["untimed"] = untimed
        if lost:
            about["lost"] = dict(sorted(lost.items()))
        is_over = about.pop("ended", False) or _is_answered(events)  # nothing is missing after an answer
        if is_over and not file.damage and not isinstance(events[-1], RunEnd):
            about["ended"] = True
        labels.append(" ".join(str(about.pop("label", "")).split())[:80])
        events[0] = replace(start, config={**start.config, "imported": about})
        title = path.name.split(".")[0] or path.name
        found.append(Imported(title if not found else f"{title}#{len(found) + 1}", tuple(events)))
        events.clear()
        lost.clear()

    try:
        for event in format.read(file):
            if isinstance(event, RunStart) and not event.path and events:
                complete()
            events.append(event)
    except AgentnbError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise file.refused(f"it looks like {format.name}, and cannot be read: {error!r:.200}") from error
    if not events:
        damage = f" Its damage begins at {file.damage[0]:.200}." if file.damage else ""
        raise file.refused(f"it looks like {format.name}, and has no events.{damage}")
    file.forget()
    complete()
    if file.damage:
        others = f", and {len(file.damage) - 1} more" if len(file.damage) > 1 else ""
        warnings.warn(
            f"{path}: a part is damaged and left out: {file.damage[0]:.200}{others}.", RuntimeWarning, stacklevel=2
        )
    if len(found) == 1:
        return found
    # Of many, each has the name by which a person knows it, if the file tells one. Equal names are numbered.
    named: list[Imported] = []
    times: Counter[str] = Counter()
    for one, label in zip(found, labels, strict=True):
        name = f"{path.name.split('.')[0]} {label}" if label else one.name
        times[name] += 1
        named.append(Imported(name if times[name] == 1 else f"{name}#{times[name]}", one.events))
    return named


def _is_answered(events: list[Event]) -> bool:
    """Return True if the last message of the outermost loop is an answer without calls."""
    told = (
        event for event in reversed(events) if not event.path and event.type not in ("state_update", "phase_change")
    )
    last = next(told, None)
    return isinstance(last, ModelEnd) and not last.message.tool_calls
