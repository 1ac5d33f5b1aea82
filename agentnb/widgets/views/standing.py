"""Where a run stands, as the small JSON that the panel shows above its events.

Read from the run whenever something has happened. Which buttons can do anything now is decided here as well, so that
the page only has to follow.
"""

from __future__ import annotations

import hashlib
from typing import Any

from agentnb.core.events import EVENT_TYPES
from agentnb.core.messages import text_of
from agentnb.core.state import State
from agentnb.core.unicode import mended
from agentnb.run.gate.breakpoints import NEVER
from agentnb.run.gate.conditions import OPERATORS
from agentnb.run.recording import Recording
from agentnb.widgets.text import as_json, for_reading, one_line
from agentnb.widgets.views.departing import departure
from agentnb.widgets.views.forms import form
from agentnb.widgets.views.loops import Loops, arrows_of, latest_of, nested_status
from agentnb.widgets.views.rows import ROW_LIMIT

QUEUED = 20
"""Queued messages that are shown."""
ASKED, FEW = 64 * 1024, 4
"""Characters of questions that a page gets at once, and how many it gets however long; the others come later."""
LABEL = 240
"""Characters of a breakpoint's conditions."""


def standing(run: Recording, driven: bool | None = None) -> str:
    """Where a run stands, in a word or two.

    driven: whether anybody drives it, as the caller has seen it: it may change while the caller says more of the run.
    """
    state = run.state
    if driven is None:
        driven = run.driven
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
    if driven:  # and what is in flight is finished before a pause
        return "pausing" if run.paused_for else "running"
    return "paused" if state.position else "not started"


def problem(state: State) -> str:
    """What went wrong, and in which of the loops."""
    told = state.error or state.failure
    if told is None:
        return ""
    path: list[str] = []
    while state.error is None and (failed := [name for name in state.children if state.children[name].failure]):
        path.append(failed[-1])
        state = state.children[failed[-1]]
    place = f"{'/'.join(path)}: " if path else ""
    return one_line(f"{place}{told.type}: {told.message}", 600)


def status(run: Recording, loops: Loops) -> dict[str, Any]:
    """What the panel's head and diagrams show. Counts are of the whole run; `turn` is the outermost loop's."""
    state = run.state
    over, paused, driven = bool(state.over), bool(state.paused), bool(run.driven)
    pausing, lives = bool(run.paused_for) and not paused, driven and not over and not paused
    loops.follow(run.events)
    return {
        "run": one_line(str(run.name or "")),
        "loop": one_line(run.loop.kind()),
        "id": str(run.id),
        "standing": standing(run, driven),
        "waiting": len(run.pending),
        "phase": mended(run.phase) if run.phase else "",
        "path": arrows_of(loops.root),
        "times": list(loops.root.arrows.values()),
        "latest": latest_of(loops.root),
        **nested_status(loops),
        "over": over,
        "lives": lives,
        "turn": state.turn,
        "requests": state.requests,
        "calls": state.calls_started,
        "usage": dict(run.usage),
        "problem": problem(state),
        "paused_for": mended(run.paused_for or ""),
        "diverged": departure(run),
        "position": run.position,
        "queued": queued(run),
        "can": {
            "Step": not over and (paused or not driven),
            "Play": not over and (paused or pausing or not driven),
            "Pause": lives and not pausing,
            "Cancel": not over and state.cancelled is None,
            "Snapshot": True,
            "Steer": not over,
            "Follow up": not over,
            "Fork": state.position > 0,
        },
    }


def queued(run: Recording) -> list[dict[str, Any]]:
    """What was said to the run and nobody has heard yet."""
    return [
        {
            "queue": queue,
            "text": one_line(mended(text_of(message.content))),
            "digest": digest(queue, {"message": message}),
        }
        for queue, message in run.queued[:QUEUED]
    ]


def breakpoints(run: Recording, loops: Loops) -> dict[str, Any]:
    """The breakpoints of a run, and what one may be made of."""
    tables = [loops.root.table, *loops.tables]
    return {
        "list": [
            {
                "number": one.number,
                "label": one_line(mended(one.label), LABEL),
                "enabled": one.enabled,
                "hits": one.hits,
                "last": one.last,
            }
            for one in run.breakpoints
        ],
        "events": [name for name in EVENT_TYPES if name not in NEVER],
        "tools": sorted({mended(name) for name in run.tool_schemas()}),
        "phases": list(dict.fromkeys(mended(phase) for table in tables for phase, _ in table or ())),
        "operators": list(OPERATORS),
    }


def digest(name: str, arguments: dict[str, Any]) -> str:
    """What identifies a queued message that was on screen."""
    return hashlib.sha256(as_json([name, arguments])).hexdigest()[:16]


def identity(item: Any) -> dict[str, Any]:
    """What identifies the question about a waiting call, as the page gets it and sends it back.

    A question that was not asked yet has no number; then the call and how often it was started do.
    """
    return {
        "run": mended(item.run_id),
        "path": mended(item.path),
        "event": item.event,
        "id": mended(item.id),
        "attempt": item.attempt,
    }


class Waiting:
    """The calls that wait for a person, as the page gets them. Each is put together once: its arguments may be long."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
        self.tools: dict[str, dict[str, list[dict[str, Any]]]] = {}
        """The tools a waiting call may be replaced by, by the path of its loop, each with its empty form."""

    def questions(self, run: Recording, *, everything: bool = False) -> list[dict[str, Any]]:
        """The oldest, as many as a page gets at once, or all; each with the form its arguments are edited in."""
        made: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
        asking: dict[str, bool] = {}
        room = ASKED
        for item in run.pending:
            if room <= 0 and len(made) >= FEW and not everything:
                break
            id = (item.run_id, item.path, item.event, item.id, item.attempt)
            before, question = self._made.get(id, (None, {}))
            if before is None or _told(before) != _told(item):
                question = _question(item)
                asking[item.path] = True
            made[id] = (item, question)
            room -= question["size"]
            asking.setdefault(item.path, False)
        self._made = made
        self.tools = {path: tools(run, path) if new else self.tools[path] for path, new in asking.items()}
        return [question for _, question in made.values()]


def _told(item: Any) -> tuple[Any, ...]:
    return item.shown, item.deadline


def _question(item: Any) -> dict[str, Any]:
    text = for_reading(item.arguments)
    fields = form(item.schema, item.arguments)
    return {
        **identity(item),
        "name": mended(item.name),
        "why": mended(item.reason or ""),
        "view": mended(item.view),
        "unknown": bool(getattr(item, "unknown", False)),
        "deadline": item.deadline,
        "arguments": text[:ROW_LIMIT],
        "length": len(text),
        "digest": item.shown,
        "fields": fields,
        "size": len(text[:ROW_LIMIT]) + len(as_json(fields)),
    }


def tools(run: Recording, path: str) -> dict[str, list[dict[str, Any]]]:
    """The tools of the loop at `path`, each with its empty form."""
    return {mended(name): form(schema, None) for name, schema in run.tool_schemas(path).items()}
