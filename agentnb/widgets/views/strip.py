"""The strip: when the models, the calls and the people of a run were busy, to scale, in a few lanes on one axis.

The axis is squeezed: where nothing works for more than half a second it is broken, and the break has the same width
whether a pause took a second or a night. What waited for a person says its seconds. Positions are in units of the
strip's width; whoever draws it may scale them. Times come from `spans`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentnb.core.events import Event
from agentnb.widgets.views.spans import Span, Spans
from agentnb.widgets.views.trace import PEOPLE

Lane = Literal["loops", "model", "calls", "you"]
MarkKind = Literal["message", "decision", "breakpoint", "snapshot", "fork"]

WIDTH = 800.0
SQUEEZED = 0.5
"""Seconds in which nothing works, after which the axis is broken."""
PAUSE, WAIT = 18.0, 58.0
"""The widths of a break: of a pause, and of a wait for a person, which has room for its seconds."""
BREAKS = 0.5
"""The share of the strip that breaks may take; if there are more they become narrower."""
END = 5.0
"""What is left free at the right end for the last mark."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A time in which something ran, from `start` to `end`. `position` is its first event, `number` its span.

    row, at_once: of calls that run at the same time, the number of this one (from 0), and how many they are. wait: the
    run waited for a person.
    """

    lane: Lane
    start: float
    end: float
    name: str
    seconds: float
    position: int
    number: int = -1
    row: int = 0
    at_once: int = 1
    wait: bool = False
    failed: bool = False
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Break:
    """A break in the axis, in the place of `seconds` in which nothing worked. `wait`: a person was waited for."""

    start: float
    end: float
    seconds: float
    wait: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that is marked on the strip."""

    kind: MarkKind
    x: float
    position: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The begin of a turn on the ruler."""

    x: float
    label: str
    position: int


@dataclass(frozen=True, slots=True)
class Strip:
    """The strip of a run. `times` and `places` are the points of its axis, between which it is even.

    requests: the turns of all loops. seconds: the whole time. worked: that in which the agent worked (`Figures`).
    waited: the seconds in which a person was asked about calls. paused, idle: those in which the run was paused, and
    others in which nobody drove it. spent: those of models and of calls.
    """

    width: float
    lanes: tuple[Lane, ...]
    bars: tuple[Bar, ...]
    breaks: tuple[Break, ...]
    marks: tuple[Mark, ...]
    turns: tuple[Turn, ...]
    requests: int
    times: tuple[float, ...]
    places: tuple[float, ...]
    seconds: float
    worked: float
    waited: float
    paused: float
    idle: float
    spent_on_model: float
    spent_on_calls: float

    def at(self, time: float) -> float:
        """Return the position of a time on the axis."""
        return _place(self.times, self.places, time)


def strip(
    events: Sequence[Event], spans: Spans, marks: Iterable[tuple[MarkKind, int]] = (), width: float = WIDTH
) -> Strip:
    """Return the strip of a run.

    marks: the kind and the event of marks that are no events of the run: its snapshots and its forks.
    """
    work = [(span, *times) for span in spans.all if _works(span) for times in _times(span, spans.last, "run")]
    waits = [(span, *times) for span in spans.all if span.kind == "call" for times in _times(span, spans.last, "wait")]
    asked = _union((start, end) for _, start, end in waits)
    idle = _idle(_union((start, end) for _, start, end in work), spans.began, spans.last)
    times, places, breaks = _axis(idle, asked, spans.began, spans.last, width)

    def place(time: float) -> float:
        return _place(times, places, time)

    # The loops that run inside the outermost, and what works: models, and calls side by side.
    bars: list[Bar] = []
    loops = [span for span in spans.all if span.kind == "loop" and span.depth == 1]
    for span in loops:
        end = spans.last if span.ended is None else span.ended
        bars.append(_bar("loops", span, span.opened, end, place, spans.last))
    for kind, lane in (("model", "model"), ("call", "calls")):
        own = sorted((one for one in work if one[0].kind == kind), key=lambda one: one[1])
        for (span, start, end), row, at_once in _side_by_side(own):
            bars.append(_bar(lane, span, start, end, place, spans.last, row, at_once))  # type: ignore[arg-type]

    # What waited for a person: one bar for questions at the same time.
    waits.sort(key=lambda wait: wait[1])
    starts = [start for _, start, _ in waits]
    for start, end in asked:
        span = waits[bisect_left(starts, start)][0]
        bars.append(_bar("you", span, start, end, place, spans.last, wait=True))

    # The ruler has the turns of the outermost loop; if it has none, those of the loops inside, with their names.
    requests = [span for span in spans.requests if ", attempt" not in span.name]
    numbered = [span for span in requests if not span.path] or requests
    turns = [Turn(place(span.opened), _label(span), span.position) for span in numbered]
    made = [*_marks(events), *((kind, position) for kind, position in marks if 0 <= position < len(events))]
    placed = [Mark(kind, place(events[position].time), position) for kind, position in made]
    return Strip(
        width,
        (*(("loops",) if loops else ()), "model", "calls", "you"),
        tuple(bars),
        tuple(breaks),
        tuple(sorted(placed, key=lambda mark: mark.position)),
        tuple(turns),
        len(requests),
        tuple(times),
        tuple(places),
        max(0.0, spans.last - spans.began),
        spans.figures.seconds,
        spans.figures.waited,
        spans.paused,
        spans.idle,
        sum(end - start for span, start, end in work if span.kind == "model"),
        sum(end - start for span, start, end in work if span.kind == "call"),
    )


def _label(span: Span) -> str:
    number = span.name.removeprefix("turn ").partition(",")[0]
    return f"{span.path.rpartition('/')[2]} {number}" if span.path else number


def _works(span: Span) -> bool:
    """Return whether a span is work of its own: a call that a loop performs is what that loop does."""
    return span.kind == "model" or (span.kind == "call" and not span.performed)


def _times(span: Span, last: float, kind: str) -> Iterator[tuple[float, float]]:
    for interval in span.intervals:
        if interval.kind == kind:
            yield interval.start, max(interval.start, last if interval.end is None else interval.end)


def _bar(
    lane: Lane, span: Span, start: float, end: float, place: Any, last: float, row: int = 0, at_once: int = 1,
    *, wait: bool = False,
) -> Bar:  # fmt: skip
    is_open = span.ended is None and end >= last
    failed = span.failed and not wait and lane != "loops"
    return Bar(
        lane, place(start), place(end), span.name, end - start, span.position, span.number, row, at_once, wait, failed,
        is_open,
    )  # fmt: skip


def _union(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the times without overlaps."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(times):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _idle(work: Sequence[tuple[float, float]], began: float, last: float) -> list[tuple[float, float]]:
    """Return the times of more than half a second in which nothing works."""
    found, free = [], began
    for start, end in [*work, (last, last)]:
        if start - free > SQUEEZED:
            found.append((free, start))
        free = max(free, end)
    return found


def _axis(
    idle: Sequence[tuple[float, float]], asked: Sequence[tuple[float, float]], began: float, last: float, width: float
) -> tuple[list[float], list[float], list[Break]]:
    """Return the points of the axis, as times and as places, and its breaks."""
    # A break in which a person was asked has room for the seconds.
    waited, starts = [], [start for start, _ in asked]
    for start, end in idle:
        near = asked[max(0, bisect_right(starts, start) - 1) : bisect_right(starts, end)]
        overlap = sum(max(0.0, min(end, until) - max(start, since)) for since, until in near)
        waited.append(overlap > SQUEEZED or overlap >= 0.9 * (end - start))
    sizes = [WAIT if wait else PAUSE for wait in waited]
    room = width - END
    shrink = min(1.0, BREAKS * room / sum(sizes)) if sizes else 1.0
    busy = max(0.0, last - began) - sum(end - start for start, end in idle)
    if busy <= 0 and sizes:
        shrink = min(shrink * 2, 1.0)
    scale = (room - shrink * sum(sizes)) / busy if busy > 0 else 0.0

    times, places, breaks = [began], [0.0], []
    for (start, end), wait, size in zip(idle, waited, sizes, strict=True):
        x = places[-1] + (start - times[-1]) * scale
        breaks.append(Break(x, x + size * shrink, end - start, wait))
        times += [start, end]
        places += [x, x + size * shrink]
    times.append(last)
    places.append(places[-1] + (last - times[-2]) * scale)
    return times, places, breaks


def _place(times: Sequence[float], places: Sequence[float], time: float) -> float:
    index = min(max(1, bisect_right(times, time)), len(times) - 1)
    start, end = times[index - 1], times[index]
    share = (time - start) / (end - start) if end > start else 0.0
    return places[index - 1] + min(1.0, max(0.0, share)) * (places[index] - places[index - 1])


def _side_by_side(
    work: Sequence[tuple[Span, float, float]],
) -> Iterator[tuple[tuple[Span, float, float], int, int]]:
    """Return work in the order of its begin, each with its row and the number of rows of what overlaps."""
    group: list[tuple[tuple[Span, float, float], int]] = []
    ends: list[float] = []
    for one in work:
        if ends and one[1] >= max(ends):
            yield from ((kept, row, len(ends)) for kept, row in group)
            group, ends = [], []
        row = next((row for row, end in enumerate(ends) if end <= one[1]), len(ends))
        ends[row : row + 1] = [one[2]]
        group.append((one, row))
    yield from ((kept, row, len(ends)) for kept, row in group)


def _marks(events: Sequence[Any]) -> Iterator[tuple[MarkKind, int]]:
    """Return the marks of a run's own events: a person's messages and decisions, stops, and where it was forked."""
    if events and 0 < (inherited := inherited_by(events[0])) < len(events):
        yield "fork", inherited
    for position, event in enumerate(events):
        if (kind := mark_of(event)) is not None:
            yield kind, position


def mark_of(event: Any) -> MarkKind | None:
    """Return the mark of an event on the strip: a person's message or decision, or a stop at a breakpoint."""
    match event.type:
        case "message" if event.message.role == "user" and event.origin in PEOPLE and not event.path:
            return "message"
        case "approval_decision" if event.by in ("human", "code"):
            return "decision"
        case "run_paused" if event.by == "breakpoint":
            return "breakpoint"
    return None


def inherited_by(start: Any) -> int:
    """Return how many events a run has inherited, by its first event; 0 if it is no fork."""
    ancestors = getattr(start, "ancestors", None)
    return int(ancestors[-1][1]) if ancestors else 0
