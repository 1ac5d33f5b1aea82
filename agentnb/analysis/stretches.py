"""When a recording's models ran, its calls waited and ran, its loops were in a phase: stretches of time in lanes.

Times are seconds since the run's first event. What had not ended when the recording does ends there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from agentnb.analysis.sources import Source
from agentnb.core.events import RunEnd
from agentnb.core.evolve import walk
from agentnb.widgets.views.things import Thing, Things
from agentnb.widgets.views.trace import Trace


class Stretch(NamedTuple):
    """From `start` to `end` something of this `kind` went on in this lane: its loop's path, what it is, its label."""

    lane: tuple[str, ...]
    kind: str
    start: float
    end: float


_KINDS = {"run": {"model": "model", "call": "tool"}, "wait": {"call": "waiting", "pause": "paused"}}
"""What a stretch of a thing is called here."""


def stretches(source: Source) -> list[Stretch]:
    """When its models ran, and its calls waited for a person and ran, by the rules of the panel's timeline.

    Calls that a loop performs are that loop's.
    """
    trace = Trace()
    trace.follow(source.events, len(source.events))
    things = Things(source.events, trace)
    found = [stretch for number, thing in enumerate(things.rows()) for stretch in _of_thing(number, thing, things)]
    begun: dict[tuple[str, ...], float] = {}
    for stretch in found:
        begun[stretch.lane] = min(stretch.start, begun.get(stretch.lane, math.inf))
    return sorted(found, key=lambda stretch: (begun[stretch.lane], stretch.lane, stretch.start))


def _of_thing(number: int, thing: Thing, things: Things) -> Iterator[Stretch]:
    """The stretches of a request, a call or a pause: a loop's requests share a lane, and so do all pauses."""
    name = {"model": "model", "pause": "paused"}.get(thing.kind, thing.name)
    which = str(number) if thing.kind == "call" else ""
    lane = (thing.path, thing.kind, which, f"{thing.path}: {name}" if thing.path else name)
    for one in thing.stretches if not thing.is_performed else ():
        kind = _KINDS[one.kind].get(thing.kind)
        if kind is not None:
            failed = thing.failed and one.kind == "run"
            end = one.end if one.end is not None else things.last
            yield Stretch(lane, "failed" if failed else kind, one.start - things.began, end - things.began)


def phases(source: Source) -> Iterator[Stretch]:
    """When its loops were in which phase; `kind` is the phase, the lane is the loop's path, or its name."""
    standing: dict[str, tuple[str, str, float]] = {}
    for event, state in walk(source.events):
        seconds = event.time - source.began
        name, phase, since = standing.get(event.path, (event.path or state.name, "", seconds))
        ends = state.phase != phase or isinstance(event, RunEnd)
        if phase and ends and event.seq not in source.elsewhere:
            yield Stretch((name,), phase, since, seconds)
        if state.over:
            standing.pop(event.path, None)
        elif state.phase != phase:
            standing[event.path] = (name, state.phase or "", seconds)
    for name, phase, since in standing.values():
        yield Stretch((name,), phase, since, max(event.time for event in source.events) - source.began)
