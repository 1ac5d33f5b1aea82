"""Exporters: recordings in the formats of other tools. One module a format.

`recording.export(path, format=...)` writes a file. A format is a module with two names:

    name                                    the format's name
    written(events, lost)                   returns the content of the file

What the format cannot carry is counted by kind in `lost`; nothing is left out in silence. `agentnb.exporters.turns` has
the events as loops with their requests, calls and messages, `agentnb.exporters.spans` as spans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event

__all__ = ["FORMATS", "Exported", "exported"]

FORMATS = {
    "ag-ui": "ag_ui",
    "atif": "atif",
    "inspect": "inspect_log",
    "messages": "messages",
    "otlp": "otlp",
}
"""The modules of the formats, by the names that `recording.export(format=)` accepts."""

KNOWN = frozenset(
    {
        *("run_start", "run_paused", "run_resumed", "run_end", "cancel", "phase_change", "state_update"),
        *("message", "queued", "withdrawn", "model_start", "model_end", "model_error"),
        *("call_proposed", "approval_request", "approval_decision", "call_start", "call_end"),
    }
)
"""The types of events that every format carries, counts in `lost`, or leaves out because others imply them. Events of
any other type are counted in `exported`.
"""


@dataclass(frozen=True)
class Exported:
    """A file that was written: its path, the name of its format, and what the format could not carry, by kind."""

    path: Path
    format: str
    lost: dict[str, int]

    def __str__(self) -> str:
        lost = ", ".join(f"{kind} ({count:,})" for kind, count in self.lost.items())
        return f"{self.path} ({self.format})" + (f"; not carried: {lost}" if lost else "")


def exported(events: Sequence[Event], format: str) -> tuple[str, bytes, dict[str, int]]:
    """Return a recording in another format: the format's name, the content of a file, and what was lost, by kind.

    Raises UsageError if the format is not known, or the recording has nothing that the format can carry.
    """
    if format not in FORMATS:
        raise UsageError(f"export(format=) must be one of {', '.join(sorted(FORMATS))}, not {format!r}.")
    if not events:
        raise UsageError("The recording has no events, so there is nothing to export.")
    module: Any = import_module(f"{__name__}.{FORMATS[format]}")
    lost: Counter[str] = Counter(f"events of the type {event.type}" for event in events if event.type not in KNOWN)
    content: bytes = module.written(events, lost)
    return module.name, content, dict(sorted((kind, count) for kind, count in lost.items() if count))
