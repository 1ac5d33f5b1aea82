"""Where a replay has departed from its recording: what was recorded and what the loop does now, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentnb.core.events import Event, plain_event
from agentnb.core.unicode import mended
from agentnb.run.recording import Recording
from agentnb.widgets.text import pretty
from agentnb.widgets.views.rows import ROW_LIMIT, STAMPS, clip

TEXT, ITEMS = 1000, 20
"""Characters of one text that is shown, and how many items of one list."""


def departure(run: Recording) -> dict[str, Any] | None:
    """Both sides where a replay stands before an event at which its loop decides otherwise; None anywhere else."""
    found = run.diverged
    if found is None:
        return None
    recorded, expected = _said(found.recorded), _said(found.expected)
    return {
        "seq": found.recorded.seq,
        "path": mended(found.recorded.path),
        "recorded": _side(found.recorded, recorded, expected),
        "expected": _side(found.expected, expected, recorded),
    }


def _said(event: Event) -> dict[str, Any]:
    return {name: value for name, value in plain_event(event).items() if name not in STAMPS}


def _side(event: Event, said: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """One side: the type of its event, and of its fields those that differ from the other's."""
    differing = _differing(said, other)
    text = pretty(clip(differing, TEXT, ITEMS)) if differing else ""
    return {"type": event.type, "text": text[:ROW_LIMIT]}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in one.items():
        if name not in other:
            found[name] = value
        elif isinstance(value, Mapping) and isinstance(other[name], Mapping):
            found |= {name: inside} if (inside := _differing(value, other[name])) else {}
        elif value != other[name]:
            found[name] = value
    return found
