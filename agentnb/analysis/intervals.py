"""Intervals of a recording: when models ran, calls waited and ran, and loops were in a phase.

Times are seconds since the run's first event. An interval that is still open at the end of the recording ends there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from agentnb.analysis.sources import Source
from agentnb.core.events import RunEnd
from agentnb.core.evolve import walk
from agentnb.widgets.views.spans import Spans


class LaneInterval(NamedTuple):
    """An interval of one kind from `start` to `end`.

    lane: identifies the row in a figure. In a timeline, its first part is the loop's path and its last part the label.
    """

    lane: tuple[str, ...]
    kind: str
    start: float
    end: float


_KINDS = {"run": {"model": "model", "call": "tool"}, "wait": {"call": "waiting", "pause": "paused"}}
"""The kind of a `LaneInterval`, by the kind of the interval in the span (run or wait) and the kind of the span."""


def intervals(source: Source) -> list[LaneInterval]:
    """Return the intervals of model requests, calls and pauses, by the rules of the panel's timeline.

    A call that a nested loop performs is left out, because the nested loop has its own lanes. Lanes are in the order of
    their first interval.
    """
    spans = Spans().follow(source.events)
    found: list[LaneInterval] = []
    for number, span in enumerate(spans.rows()):
        if span.performed:
            continue
        # Each call has a lane of its own; the requests of a loop share a lane, and so do its pauses.
        name = {"model": "model", "pause": "paused"}.get(span.kind, span.name)
        which = str(number) if span.kind == "call" else ""
        lane = (span.path, span.kind, which, f"{span.path}: {name}" if span.path else name)
        for one in span.intervals:
            kind = _KINDS[one.kind].get(span.kind)
            if kind is not None:
                failed = span.failed and one.kind == "run"
                end = one.end if one.end is not None else spans.last
                found.append(
                    LaneInterval(lane, "failed" if failed else kind, one.start - spans.began, end - spans.began)
                )

    first: dict[tuple[str, ...], float] = {}
    for interval in found:
        first[interval.lane] = min(interval.start, first.get(interval.lane, math.inf))
    return sorted(found, key=lambda interval: (first[interval.lane], interval.lane, interval.start))


def phases(source: Source) -> Iterator[LaneInterval]:
    """Yield when each loop was in each phase. `kind` is the phase.

    The lane is the loop's path, or the name of the outermost loop. An interval is left out if the event that ends it is
    counted in another source.
    """
    # By path: the loop's name, its phase, and the time at which it entered the phase.
    entered: dict[str, tuple[str, str, float]] = {}
    for event, state in walk(source.events):
        seconds = event.time - source.began
        name, phase, since = entered.get(event.path, (event.path or state.name, "", seconds))
        ends = state.phase != phase or isinstance(event, RunEnd)
        if phase and ends and event.seq not in source.elsewhere:
            yield LaneInterval((name,), phase, since, seconds)
        if state.over:
            entered.pop(event.path, None)
        elif state.phase != phase:
            entered[event.path] = (name, state.phase or "", seconds)
    for name, phase, since in entered.values():
        yield LaneInterval((name,), phase, since, max(event.time for event in source.events) - source.began)
