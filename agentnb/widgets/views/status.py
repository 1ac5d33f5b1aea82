"""The state of a run as the small JSON that the panel shows above its events.

It is read from the run after each change. It includes which buttons are enabled, so the page has no rules of its own
for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from agentnb.core.events import EVENT_TYPES, Event, plain_event
from agentnb.core.json import repair_text
from agentnb.core.messages import text_of
from agentnb.core.state import State
from agentnb.run import Recording, Replay
from agentnb.run.gate.breakpoints import NEVER
from agentnb.run.gate.conditions import OPERATORS
from agentnb.widgets.text import as_json, one_line, pretty
from agentnb.widgets.views.about import display_name, imported_text, model_name, state_in_words
from agentnb.widgets.views.loops import Loops, arrows_of, latest_of, nested_status
from agentnb.widgets.views.rows import ROW_LIMIT, STAMPS, clip

QUEUED = 20
"""The maximum number of queued messages that are shown."""
LABEL = 240
"""The maximum number of characters of a breakpoint's conditions."""
VALUES = 100
"""The maximum number of items of a list in the values of a loop's state."""
TEXT, ITEMS = 1000, 20
"""In a divergence: the maximum number of characters of one string, and of items of one list."""


def status_word(run: Recording, driven: bool | None = None) -> str:
    """Return the state of a run in a word or two.

    driven: True if the run has an owner, None to read it here. A caller that also reads other values passes it, because
    it may change between two reads.
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
    if isinstance(run, Replay) and run.position == len(run.recording) > 0:
        return "no end recorded"  # its process was killed, or another tool does not write an end
    if driven:  # effects in flight end before a pause
        return "pausing" if run.paused_for else "running"
    return "paused" if state.position else "not started"


def status(run: Recording, loops: Loops) -> dict[str, Any]:
    """Return the data of the panel's head and diagrams. Counts are of the whole run; `turn` is the outermost loop's."""
    # The status word and the buttons must describe the same moment, so no event is added while they are read.
    with run.lock:
        state = run.state
        over, paused, driven = bool(state.over), bool(state.paused), bool(run.driven)
        paused_for, phase, turn = run.paused_for or "", run.phase, state.turn
        cancelled, position, problem = state.cancelled is not None, state.position, _problem(state)
        word = status_word(run, driven)
        # First the pending calls, then the loops: reading the calls of a replay also makes the generators at its
        # position, and a generator's nested loops are known only while it exists.
        waiting = len(run.pending)
    pausing, lives = bool(paused_for) and not paused, driven and not over and not paused
    loops.follow(run.events)
    sign, words = state_in_words(word, waiting, turn)
    return {
        "run": one_line(str(run.name or "")),
        "name": display_name(run),
        "loop": one_line(run.loop.kind()),
        "id": str(run.id),
        "model": repair_text(model_name(run.events)),
        "imported": imported_text(run),
        "standing": word,
        "sign": sign,
        "words": words,
        "waiting": waiting,
        "phase": repair_text(phase) if phase else "",
        "path": arrows_of(loops.root),
        "times": list(loops.root.arrows.values()),
        "latest": latest_of(loops.root),
        **nested_status(loops),
        "over": over,
        "lives": lives,
        "turn": turn,
        "requests": loops.figures.turns,
        "calls": loops.figures.calls,
        "usage": dict(run.usage),
        "problem": problem,
        "paused_for": repair_text(paused_for),
        "diverged": divergence(run),
        "position": run.position,
        "queued": [
            {
                "queue": queue,
                "text": one_line(repair_text(text_of(message.content))),
                "digest": digest(queue, {"message": message}),
            }
            for queue, message in run.queued[:QUEUED]
        ],
        "can": {
            "Step": not over and (paused or not driven),
            "Play": not over and (paused or pausing or not driven),
            "Pause": lives and not pausing,
            "Cancel": not over and not cancelled,
            "Snapshot": True,
            "Steer": not over,
            "Follow up": not over,
            "Fork": position > 0,
        },
    }


def _problem(state: State) -> str:
    """Return the error of a run, with the path of the nested loop that failed; empty if there is none."""
    error = state.error or state.failure
    if error is None:
        return ""
    path: list[str] = []
    while state.error is None and (failed := [name for name in state.children if state.children[name].failure]):
        path.append(failed[-1])
        state = state.children[failed[-1]]
    place = f"{'/'.join(path)}: " if path else ""
    return one_line(f"{place}{error.type}: {error.message}", 600)


def state_data(state: State) -> dict[str, Any]:
    """Return the state of a loop: facts by name, and the values of the loop itself."""
    facts: dict[str, str | int | float] = {
        "phase": state.phase or "not begun",
        "turn": state.turn,
        "messages": len(state.messages),
        "calls started": state.calls_started,
        "calls in progress": len(state.open),
        "messages in queues": sum(map(len, state.queues.values())),
        **{name.replace("_", " "): amount for name, amount in state.usage.items()},
    }
    shown = {name: value for name, value in facts.items() if value or name in ("phase", "turn")}
    return {"facts": shown, "values": clip(state.values, TEXT, VALUES)}


def divergence(run: Recording) -> dict[str, Any] | None:
    """Return the recorded and the expected event, if a replay stopped because its loop decides differently; else None.

    Of each event there are its type and the fields that differ.
    """
    found = run.diverged
    if found is None:
        return None

    def fields(event: Event) -> dict[str, Any]:
        return {name: value for name, value in plain_event(event).items() if name not in STAMPS}

    def side(event: Event, other: Event) -> dict[str, Any]:
        differing = _differing(fields(event), fields(other))
        text = pretty(clip(differing, TEXT, ITEMS)) if differing else ""
        return {"type": event.type, "text": text[:ROW_LIMIT]}

    return {
        "seq": found.recorded.seq,
        "path": repair_text(found.recorded.path),
        "recorded": side(found.recorded, found.expected),
        "expected": side(found.expected, found.recorded),
    }


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `one` that `other` lacks or has with another value, in nested objects as well."""
    found: dict[str, Any] = {}
    for name, value in one.items():
        if name not in other:
            found[name] = value
        elif isinstance(value, Mapping) and isinstance(other[name], Mapping):
            if inside := _differing(value, other[name]):
                found[name] = inside
        elif value != other[name]:
            found[name] = value
    return found


def breakpoints(run: Recording, loops: Loops) -> dict[str, Any]:
    """Return the breakpoints of a run, and the choices for a new one."""
    tables = [loops.root.table, *loops.tables]
    return {
        "list": [
            {
                "number": one.number,
                "label": one_line(repair_text(one.label), LABEL),
                "enabled": one.enabled,
                "hits": one.hits,
                "last": one.last,
            }
            for one in run.breakpoints
        ],
        "events": [name for name in EVENT_TYPES if name not in NEVER],
        "tools": sorted({repair_text(name) for name in run.tool_schemas()}),
        "phases": list(dict.fromkeys(repair_text(phase) for table in tables for phase, _ in table or ())),
        "operators": list(OPERATORS),
    }


def digest(name: str, arguments: dict[str, Any]) -> str:
    """Return the digest that identifies a queued message that a page has shown."""
    return hashlib.sha256(as_json([name, arguments])).hexdigest()[:16]
