"""Where a run stands, as the small JSON that the panel shows above its events.

Read from the run whenever something has happened. Which buttons can do anything now is decided here as well, so that
the page only has to follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from agentnb.core.events import Event
from agentnb.widgets.forms import form
from agentnb.widgets.rows import ROW_LIMIT
from agentnb.widgets.text import as_json, one_line, pretty, repaired

UNITS = ("event", "call", "turn", "phase")


class Path:
    """The way a run has taken through its loop's phases: each arrow once, in the order they were first taken."""

    def __init__(self) -> None:
        self.arrows: dict[tuple[str, str], None] = {}
        self._current: str | None = None
        self._seen = 0

    def follow(self, events: Sequence[Event]) -> list[list[str]]:
        """The arrows taken up to now."""
        total = len(events)
        for event in events[self._seen : total]:
            if event.phase is None or event.path:
                continue
            if self._current is not None and self._current != event.phase:
                self.arrows[self._current, event.phase] = None
            self._current = event.phase
        self._seen = total
        return [list(arrow) for arrow in self.arrows]


def standing(run: Any) -> str:
    """Where a run stands, in a word or two."""
    state = run.state
    if state.over:
        return str(run.stop_reason).replace("_", " ")
    if state.cancelled is not None:
        return "cancelling"
    if state.failure is not None:
        return "model failed"
    if run.pending:
        return "waiting for you"
    if state.paused:
        return "paused"
    if run.driven:
        return "running"
    return "paused" if state.position else "not started"


def status(run: Any, path: Path) -> dict[str, Any]:
    """What the panel's head and diagram show."""
    state = run.state
    over, paused, driven = bool(state.over), bool(state.paused), bool(run.driven)
    told = state.error or state.failure
    return {
        "run": one_line(str(run.name or "")),
        "loop": one_line(run.loop.kind()),
        "id": str(run.id),
        "standing": standing(run),
        "phase": repaired(run.phase) if run.phase else "",
        "path": [[repaired(name) for name in arrow] for arrow in path.follow(run.events)],
        "over": over,
        "stop_reason": run.stop_reason,
        "turn": state.turn,
        "calls": state.calls_started,
        "usage": dict(run.usage),
        "problem": one_line(f"{told.type}: {told.message}", 600) if told is not None else "",
        "can": {
            "Step": not over and (paused or not driven),
            "Play": not over and (paused or not driven),
            "Pause": driven and not over and not paused,
            "Cancel": not over and state.cancelled is None,
            "Snapshot": True,
            "Steer": not over,
            "Follow up": not over,
        },
    }


def digest(name: str, arguments: dict[str, Any]) -> str:
    """What identifies the question that was on screen; a decision binds exactly this call with these arguments."""
    return hashlib.sha256(as_json([name, arguments])).hexdigest()[:16]


class Waiting:
    """The calls that wait for a person, as the page gets them. Each is put together once: its arguments may be long."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, dict[str, Any]]] = {}

    def questions(self, run: Any) -> list[dict[str, Any]]:
        """All of them, oldest first, each with the form its arguments are edited in."""
        made: dict[str, tuple[Any, dict[str, Any]]] = {}
        for item in run.pending:
            before, question = self._made.get(item.id, (None, {}))
            # The very same arguments: comparing long ones each time would cost as much as making the question anew.
            same = before is not None and before.arguments is item.arguments and before.name == item.name
            if not same or (before.reason, before.deadline) != (item.reason, item.deadline):
                question = _question(item)
            made[item.id] = (item, question)
        self._made = made
        return [question for _, question in made.values()]


def _question(item: Any) -> dict[str, Any]:
    text = pretty(item.arguments)
    return {
        "id": item.id,
        "name": repaired(item.name),
        "why": repaired(item.reason or ""),
        "unknown": bool(getattr(item, "unknown", False)),
        "deadline": item.deadline,
        "arguments": text[:ROW_LIMIT],
        "length": len(text),
        "digest": digest(item.name, item.arguments),
        "fields": form(item.schema, item.arguments),
    }


def tools(run: Any) -> dict[str, list[dict[str, Any]]]:
    """The tools a call may be replaced by, each with its empty form."""
    return {repaired(name): form(schema, None) for name, schema in run.tool_schemas().items()}
