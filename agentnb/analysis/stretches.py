"""When a recording's models ran, its calls waited and ran, its loops were in a phase: stretches of time in lanes.

Times are seconds since the run's first event. What had not ended when the recording does ends there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from agentnb.analysis.call_rows import call_rows
from agentnb.analysis.sources import Source, walk
from agentnb.core.events import ModelEnd, ModelFailed, ModelStart, RunEnd, RunPaused, RunResumed, RunStart


class Stretch(NamedTuple):
    """From `start` to `end` something of this `kind` went on in this lane: its loop's path, what it is, its label."""

    lane: tuple[str, ...]
    kind: str
    start: float
    end: float


def stretches(source: Source) -> list[Stretch]:
    """When its models ran, and its calls waited for a person and ran; calls that a loop performs are that loop's."""
    last = _last(source)
    found = [*_model(source, last), *_calls(source, last), *_pauses(source, last)]
    begun: dict[tuple[str, ...], float] = {}
    for stretch in found:
        begun[stretch.lane] = min(stretch.start, begun.get(stretch.lane, math.inf))
    return sorted(found, key=lambda stretch: (begun[stretch.lane], stretch.lane, stretch.start))


def _last(source: Source) -> float:
    return max((event.time for event in source.events), default=source.began) - source.began


def _label(path: str, name: str) -> str:
    return f"{path}: {name}" if path else name


def _model(source: Source, last: float) -> Iterator[Stretch]:
    asked: dict[str, float] = {}
    for event in source.events:
        seconds = event.time - source.began
        if isinstance(event, ModelStart):
            asked[event.path] = seconds
        elif isinstance(event, (ModelEnd, ModelFailed, RunEnd)) and event.path in asked:
            kind = "failed" if isinstance(event, ModelFailed) else "model"
            yield Stretch((event.path, "model", _label(event.path, "model")), kind, asked.pop(event.path), seconds)
    for path, start in asked.items():
        yield Stretch((path, "model", _label(path, "model")), "model", start, last)


def _calls(source: Source, last: float) -> Iterator[Stretch]:
    performed = {(e.path.rpartition("/")[0], e.call) for e in source.events if isinstance(e, RunStart)}
    for row in call_rows(source):
        if (row.path, row.call_id) in performed:
            continue
        lane = (row.path, row.call_id, str(row.turn), _label(row.path, row.tool))
        if not math.isnan(row.asked):
            yield Stretch(lane, "waiting", row.asked, _or(row.decided, row.ended, last))
        if not math.isnan(row.started):
            yield Stretch(lane, "failed" if row.is_error else "tool", row.started, _or(row.ended, last))


def _or(*times: float) -> float:
    return next(time for time in times if not math.isnan(time))


def _pauses(source: Source, last: float) -> Iterator[Stretch]:
    since: float | None = None
    lane = ("", "", "paused")
    for event in source.events:
        seconds = event.time - source.began
        if isinstance(event, RunPaused):
            since = seconds
        elif isinstance(event, (RunResumed, RunEnd)) and not event.path and since is not None:
            yield Stretch(lane, "paused", since, seconds)
            since = None
    if since is not None:
        yield Stretch(lane, "paused", since, last)


def phases(source: Source) -> Iterator[Stretch]:
    """When its loops were in which phase; `kind` is the phase, the lane is the loop's path, or its name."""
    standing: dict[str, tuple[str, str, float]] = {}
    for event, state in walk(source.events):
        seconds = event.time - source.began
        name, phase, since = standing.get(event.path, (event.path or state.name, "", seconds))
        if phase and (state.phase != phase or isinstance(event, RunEnd)):
            yield Stretch((name,), phase, since, seconds)
        if state.over:
            standing.pop(event.path, None)
        elif state.phase != phase:
            standing[event.path] = (name, state.phase or "", seconds)
    for name, phase, since in standing.values():
        yield Stretch((name,), phase, since, _last(source))
