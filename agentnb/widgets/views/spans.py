"""Spans: when each loop, model request, call and pause of a run waited and ran; for the timeline and the totals.

Spans are computed here once, for the live page, the static page and the analyses. `Causes` maps an event to its span;
the type of the event determines how the span changes. The changes are sent to the live page with the row of the event
(`changes`), so that a page that shows a replay at any position has the spans of that position (`page/spans.js`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentnb.core.events import Event
from agentnb.widgets.text import as_json
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.live import is_within

Kind = Literal["loop", "model", "call", "pause"]

_KINDS: Mapping[str, Kind] = {"run_start": "loop", "model_start": "model", "run_paused": "pause"}
_STARTS: Mapping[str, Literal["run", "wait"]] = {
    "run_start": "run",
    "model_start": "run",
    "call_start": "run",
    "approval_request": "wait",
    "run_paused": "wait",
}
_ENDS = frozenset({"model_end", "model_error", "approval_decision", "call_end", "run_resumed", "run_end"})
IDLE = 0.5
"""Seconds in which nothing runs, after which a run is idle."""
INTERVALS = 60
"""The maximum number of intervals of one span, for example of a call that is retried; later ones extend the last."""


@dataclass(slots=True)
class Interval:
    """A time in which a span ran (`run`) or waited for a person (`wait`). `end` is None while it is open.

    A call with an unknown outcome has waited since it started, because it is unknown how long it ran.
    position: the event that started it. since: the time from which the span could have started it. after: the event
    that it had to wait for, if there is one.
    """

    kind: Literal["run", "wait"]
    start: float
    position: int
    since: float
    after: int | None = None
    end: float | None = None


@dataclass(slots=True)
class Span:
    """A loop, a model request, a call or a pause. Times are those of events, in seconds since the epoch.

    position: its first event. parent: the loop that it belongs to. turn: of a call, the request that made it.
    performed: of a call, True if a nested loop performs it. calls, call_time: of a request, the number of calls
    that it made and the seconds that they ran, added up. inside: of a loop, the spans that belong to it. waited: of a
    loop, and of the call that it performs, the seconds in which a person was asked or the run was paused, and nothing
    ran inside. waits_since: the start of the time in which it waits now. at_most: the time of its start is unknown, so
    it ran for at most as long as it seems (`Event.untimed`).
    """

    number: int
    kind: Kind
    name: str
    path: str
    position: int
    opened: float
    depth: int = 0
    parent: Span | None = None
    turn: Span | None = None
    call: str = ""
    ended: float | None = None
    failed: bool = False
    performed: bool = False
    waited: float = 0.0
    waits_since: float | None = None
    at_most: bool = False
    usage: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0
    call_time: float = 0.0
    intervals: list[Interval] = field(default_factory=list)
    inside: list[Span] = field(default_factory=list)

    def worked(self, now: float) -> float:
        """Return the seconds that it ran until `now`, without the time that it waited."""
        ran = ((one.end if one.end is not None else now) - one.start for one in self.intervals if one.kind == "run")
        waited = self.waited + (now - self.waits_since if self.waits_since is not None else 0.0)
        return max(0.0, sum(max(0.0, seconds) for seconds in ran) - waited)


@dataclass(slots=True)
class _Inside:
    """How many models and calls run inside a loop, and how many calls wait for a decision. call: what it performs."""

    running: int = 0
    waiting: int = 0
    call: Span | None = None


class Spans:
    """The spans of a run. Call `follow` with its events, then read.

    all: the spans by number. requests: those that are model requests. spent: seconds spent on models, calls and
    waiting for decisions. Concurrent requests and calls are added up; a call that a loop performs is counted by what
    that loop does; waiting for a person counts once, however many calls wait at the same time. paused: seconds that the
    run was paused. idle: other seconds in which nothing ran, for example between two steps, or before a run was
    restored; shorter times than `IDLE` are not counted. While a person is asked a run is neither paused nor idle.
    """

    def __init__(self) -> None:
        self.causes = Causes()
        self.all: list[Span] = []
        self.requests: list[Span] = []
        self.spent = {"model": 0.0, "call": 0.0, "wait": 0.0}
        self.began = self.last = self.paused = self.idle = 0.0
        self._lock = threading.Lock()
        self._changes: list[bytes] = []
        self._changed: dict[int, dict[str, Any]] = {}  # by the current event: the changed fields, by span
        self._roots: list[Span] = []
        self._loops: dict[str, Span] = {}
        self._open: dict[int, Span] = {}
        self._inside: dict[int, _Inside] = {}  # by the number of the loop's span, while it is open
        self._pauses = 0
        self._all = _Inside()  # of the whole run
        self._waits: list[tuple[float, float]] = []

    def follow(self, events: Sequence[Event], until: int | None = None) -> Spans:
        """Read the events that are new, up to the position `until` if given. Safe to call from any thread."""
        until = len(events) if until is None else until
        with self._lock:
            self.causes.follow(events, until)
            seen = len(self._changes)
            for position, event in enumerate(events[seen:until], seen):
                self._changed, spent, paused, idle = {}, dict(self.spent), self.paused, self.idle
                self._fold(events, position, event)
                changed: dict[str, Any] = {}
                if self._changed:
                    changed["spans"] = [{"number": number, **fields} for number, fields in self._changed.items()]
                if self.spent != spent:
                    changed["spent"] = self.spent
                if self.paused != paused:
                    changed["paused"] = self.paused
                if self.idle != idle:
                    changed["idle"] = self.idle
                self._changes.append(as_json(changed) if changed else b"")
        return self

    def marks(self, position: int) -> dict[str, Any]:
        """Return the fields of an event's row about its cause and its span: `cause`, `span` and `after`, if present."""
        cause, span = self.causes.causes[position], self.causes.spans[position]
        after = self.causes.awaited.get(position)
        marks = {"cause": cause if cause >= 0 else None, "span": span if span >= 0 else None, "after": after}
        return {name: number for name, number in marks.items() if number is not None}

    def changes(self, position: int) -> bytes:
        """Return what an event changed, as JSON: `spans`, `spent`, `paused` and `idle`; empty if it changed nothing."""
        return self._changes[position]

    @property
    def touched(self) -> Collection[int]:
        """The numbers of the spans that the last event changed."""
        return self._changed.keys()

    def rows(self) -> Iterator[Span]:
        """Iterate over all spans in the order of a timeline: each loop is followed by the spans inside it."""
        yield from _flat(self._roots)

    def _fold(self, events: Sequence[Event], position: int, event: Any) -> None:
        """Apply one event."""
        if not position:
            self.began = self.last = event.time
        number = self.causes.spans[position]
        if self._is_again(event, number):
            self._interrupt()
        now = max(self.last, event.time)  # in an older recording a clock may have been set back
        self._count_idle(now - self.last, is_retry=event.type == "model_start" and event.attempt > 1)
        self.last = now
        if number < 0:
            return
        span = self.all[number] if number < len(self.all) else self._add(events, position, number)

        # End the open interval and start the next one. If a person is asked how a lost call ended, the call has waited
        # for the person since it started.
        starts = _STARTS.get(event.type)
        is_running = bool(span.intervals) and span.intervals[-1].end is None
        if is_running and event.type == "approval_request" and event.unknown:
            self._count(span, -1)
            self._set_interval(span, kind="wait")
            self._count(span, 1)
            starts = None
        elif is_running and (starts or event.type in _ENDS):
            self._stop(span, now)
        if starts:
            self._start(span, starts, now, position)
            if starts == "run" and event.untimed:
                self._set(span, at_most=True)

        # Note the usage or the failure in the event.
        if event.type == "model_end":
            self._set(span, usage=event.usage)
        elif event.type == "model_error" and event.usage:
            self._set(span, failed=True, usage=event.usage)
        elif event.type == "model_error" or getattr(event, "is_error", False) or getattr(event, "error", None):
            self._set(span, failed=True)

        # Close the span. The end of a loop closes everything inside it.
        closed = []
        if event.type == "run_end":
            closed = [inner for inner in self._open.values() if is_within(inner.path, event.path)]
        elif event.type in _ENDS and (span.kind != "call" or event.type == "call_end"):
            closed = [span]
        for inner in closed:
            self._stop(inner, now)
            self._open.pop(inner.number, None)
            self._set(inner, ended=now)

        # Note which loops wait now.
        for loop, inside in [(self.all[number], inside) for number, inside in self._inside.items()]:
            is_open = loop.ended is None
            waits = is_open and not inside.running and bool(inside.waiting or self._pauses)
            if waits != (loop.waits_since is not None):
                for waiter in (loop, inside.call):
                    if waiter is not None:
                        self._note_wait(waiter, now, waits=waits)
            if not is_open:
                del self._inside[loop.number]

    def _is_again(self, event: Any, number: int) -> bool:
        """Return whether a call or a request starts again that has not ended: its process has exited."""
        if event.type == "call_start" and 0 <= number < len(self.all):
            intervals = self.all[number].intervals
            return bool(intervals) and intervals[-1].kind == "run" and intervals[-1].end is None
        if event.type != "model_start" or event.attempt < 2 or event.continues:
            return False
        return any(span.kind == "model" and span.path == event.path for span in self._open.values())

    def _interrupt(self) -> None:
        """End all that ran when a process exited, with the event before: for how long it ran later is unknown."""
        for span in list(self._open.values()):
            if span.kind not in ("model", "call") or span.performed:
                continue
            if span.intervals and span.intervals[-1].kind == "run":
                self._stop(span, self.last)
            if span.kind == "model":
                self._open.pop(span.number)
                self._set(span, ended=self.last)

    def _count_idle(self, seconds: float, *, is_retry: bool) -> None:
        """Count the time since the event before, if the run was paused or nothing ran, and nobody was asked in it."""
        if self._all.waiting:
            return
        if self._pauses:
            self.paused += seconds
        elif not self._all.running and seconds > IDLE and not is_retry:  # it may wait for a busy provider
            self.idle += seconds

    def _note_wait(self, span: Span, now: float, *, waits: bool) -> None:
        if waits:
            self._set(span, waits_since=now)
        elif span.waits_since is not None:
            self._set(span, waited=span.waited + now - span.waits_since, waits_since=None)

    def _count(self, span: Span, change: int) -> None:
        """Count the last interval of a span, which begins (1) or ends (-1), in all loops around it."""
        kind = span.intervals[-1].kind
        if span.kind == "pause":
            self._pauses += change
            return
        if span.kind == "loop" or (kind == "run" and span.performed):
            return
        around, loop = [self._all], span.parent
        while loop is not None:
            if (inside := self._inside.get(loop.number)) is not None:
                around.append(inside)
            loop = loop.parent
        for inside in around:
            if kind == "run":
                inside.running += change
            else:
                inside.waiting += change

    def _add(self, events: Sequence[Event], position: int, number: int) -> Span:
        """Add the span that begins with this event."""
        event: Any = events[position]
        kind = _KINDS.get(event.type, "call")
        cause = self.causes.causes[position]
        source = self.causes.spans[cause] if cause >= 0 else -1
        by = self.all[source] if source >= 0 else None
        opened = events[cause].time if kind == "call" and cause >= 0 else self.last

        # A span is a row of its loop; a nested loop is a row of the loop around it.
        path = event.path.rpartition("/")[0] if kind == "loop" else event.path
        parent = self._loops.get(path) if kind != "loop" or event.path else None
        depth = parent.depth + 1 if parent is not None else 0
        span = Span(number, kind, self.causes.names[number], event.path, position, opened, depth, parent)
        self.all.append(span)
        (parent.inside if parent is not None else self._roots).append(span)
        self._open[number] = span
        self._set(span, kind=kind, name=span.name, path=span.path, opened=opened, depth=depth, parent=parent)

        # Connect it with the span that led to it.
        if kind == "model":
            self.requests.append(span)
        elif kind == "loop":
            self._loops[event.path] = span
            self._inside[number] = _Inside(call=by)
            if by is not None:
                if by.intervals and by.intervals[-1].end is None and not by.performed:
                    self._count(by, -1)
                self._set(by, performed=True)
        elif kind == "call":
            self._set(span, call=event.call.id if event.type == "call_proposed" else event.call_id)
            if by is not None and by.kind == "model":
                self._set(span, turn=by)
                self._set(by, calls=by.calls + 1)
        return span

    def _start(self, span: Span, kind: Literal["run", "wait"], now: float, position: int) -> None:
        last = span.intervals[-1] if span.intervals else None
        if last is not None and len(span.intervals) >= INTERVALS:
            self._set_interval(span, end=None)
        else:
            since = last.end if last is not None and last.end is not None else span.opened
            after = self.causes.awaited.get(position)
            span.intervals.append(Interval(kind, now, position, since, after))
            new = {"kind": kind, "start": now, "since": since} | ({"after": after} if after is not None else {})
            self._set_interval(span, **new)  # the page knows the position of the row
        self._count(span, 1)
        if span.ended is not None:
            self._open[span.number] = span
            self._set(span, ended=None)

    def _stop(self, span: Span, now: float) -> None:
        """End the open interval of a span, if there is one, and add its time to the totals."""
        if not span.intervals or span.intervals[-1].end is not None:
            return
        interval = span.intervals[-1]
        self._count(span, -1)
        self._set_interval(span, end=now)
        seconds = max(0.0, now - interval.start)
        if span.kind == "pause":
            return
        if interval.kind == "wait":
            self._count_wait(interval.start, max(now, interval.start))
        elif span.kind in self.spent and not span.performed:
            self.spent[span.kind] += seconds
            if span.turn is not None:
                self._set(span.turn, call_time=span.turn.call_time + seconds)

    def _count_wait(self, start: float, end: float) -> None:
        """Add the time of a wait for a person, without the part that has already been counted."""
        while self._waits and self._waits[-1][1] >= start:
            earlier = self._waits.pop()
            self.spent["wait"] -= earlier[1] - earlier[0]
            start, end = min(start, earlier[0]), max(end, earlier[1])
        self._waits.append((start, end))
        self.spent["wait"] += end - start

    def _set(self, span: Span, **fields: Any) -> None:
        """Set fields of a span, and note them as changes by the current event. A span as a value is noted by number."""
        changes = self._changed.setdefault(span.number, {})
        for name, value in fields.items():
            setattr(span, name, value)
            changes[name] = value.number if isinstance(value, Span) else value

    def _set_interval(self, span: Span, **fields: Any) -> None:
        """Set fields of the last interval of a span, and note them as changes by the current event."""
        index = len(span.intervals) - 1
        changes = self._changed.setdefault(span.number, {}).setdefault("intervals", {}).setdefault(str(index), {})
        for name, value in fields.items():
            setattr(span.intervals[index], name, value)
            changes[name] = value


def _flat(spans: Sequence[Span]) -> Iterator[Span]:
    for span in spans:
        yield span
        yield from _flat(span.inside)
