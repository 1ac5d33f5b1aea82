"""Stretches of time in a recording: when models ran, calls waited and ran, and loops were in a phase.

Times are seconds since the run's first event. A stretch that is still open at the end of the recording ends there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from agentnb.analysis.sources import Source
from agentnb.core.events import RunEnd
from agentnb.core.evolve import walk
from agentnb.widgets.views.spans import Span, Spans


class Stretch(NamedTuple):
    """An interval of one kind from `start` to `end`. A timeline's lane has the loop's path first and the label last."""

    lane: tuple[str, ...]
    kind: str
    start: float
    end: float


_KINDS = {"run": {"model": "model", "call": "tool"}, "wait": {"call": "waiting", "pause": "paused"}}
"""The kind of a stretch, by the kind of the interval and the kind of its span."""


def stretches(source: Source) -> list[Stretch]:
    """Return the stretches of model requests, calls and pauses, by the rules of the panel's timeline.

    A call that a nested loop performs is left out, because the nested loop has its own lanes. Lanes are in the order of
    their first stretch.
    """
    spans = Spans().follow(source.events)
    found = [stretch for number, span in enumerate(spans.rows()) for stretch in _of_span(number, span, spans)]
    begun: dict[tuple[str, ...], float] = {}
    for stretch in found:
        begun[stretch.lane] = min(stretch.start, begun.get(stretch.lane, math.inf))
    return sorted(found, key=lambda stretch: (begun[stretch.lane], stretch.lane, stretch.start))


def _of_span(number: int, span: Span, spans: Spans) -> Iterator[Stretch]:
    """Yield the stretches of a request, a call or a pause. A loop's requests share a lane, and so do its pauses."""
    name = {"model": "model", "pause": "paused"}.get(span.kind, span.name)
    which = str(number) if span.kind == "call" else ""
    lane = (span.path, span.kind, which, f"{span.path}: {name}" if span.path else name)
    for one in span.intervals if not span.performed else ():
        kind = _KINDS[one.kind].get(span.kind)
        if kind is not None:
            failed = span.failed and one.kind == "run"
            end = one.end if one.end is not None else spans.last
            yield Stretch(lane, "failed" if failed else kind, one.start - spans.began, end - spans.began)


def phases(source: Source) -> Iterator[Stretch]:
    """Yield when each loop was in each phase. `kind` is the phase.

    The lane is the loop's path, or the name of the outermost loop. A stretch that ends with an event that is counted in
    another source is left out.
    """
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
