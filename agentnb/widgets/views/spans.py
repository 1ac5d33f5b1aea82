"""Spans: when each loop, model request, call and pause of a run waited and ran; for the timeline and the totals.

`Figures` are the times and the counts of a run that belong to the agent: without the time in which a person was waited
for and nothing ran, in which the run was paused, or in which nobody drove it, and without calls and requests that were
repeated after a crash. The tables, the panels and the comparisons all take them from here.

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
_RESTS = ("alone", "paused", "idle")
"""The times in which the agent does not work (`Figures`)."""
_MAY_GO_ON = frozenset({"call_start", "approval_request", "model_start", "run_resumed"})
_COUNTED = _MAY_GO_ON | _ENDS | _STARTS.keys()
"""The types of the events that change what is in flight."""
IDLE = 0.5
"""Seconds in which nothing runs, after which a run is idle."""
INTERVALS = 60
"""The maximum number of intervals of one span, for example of a call that is retried; later ones extend the last."""


@dataclass(slots=True)
class Interval:
    """A time in which a span ran (`run`) or waited for a person (`wait`). `end` is None while it is open.

    What ran when a process exited has ended with the event before: it is unknown how long it ran.
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
    loop, and of the call that it performs, the seconds in which a person was asked, the run was paused or its process
    was away, and nothing ran inside. waits_since: the start of the time in which it waits now. at_most: the time of its
    start is unknown, so it ran for at most as long as it seems (`Event.untimed`).
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


class Figures:
    """The figures of a run: its times and its counts. Call `take` with each event, in order, or with its outline.

    began, last: the times of the first and of the newest event, in seconds since the epoch. waited: the seconds in
    which a person was asked. The others add up to the whole time: seconds, in which the agent worked; alone, in which a
    person was asked and nothing ran; paused; and idle, in which nobody drove the run: between two steps, while it was
    stopped or its process had exited, before a fork of it was made. Without a sign of that, nothing must have run for
    longer than `IDLE`.

    turns: the requests to models. calls: the tool calls that models asked for, also if they were rejected. repeated:
    how often one of these was made again, after a failure or because its process had exited; this is not among them.
    """

    __slots__ = (
        *("_asked", "_is_inherited", "_is_paused", "_known", "_running", "alone", "began", "calls", "idle", "last"),
        *("paused", "repeated", "turns", "waited"),
    )

    def __init__(self) -> None:
        self.began: float | None = None
        self.last = self.waited = self.alone = self.paused = self.idle = 0.0
        self.turns = self.calls = self.repeated = 0
        self._running: set[tuple[str, str]] = set()  # what is in flight: path and call, or "" for a request
        self._asked: set[tuple[str, str]] = set()
        self._known: set[tuple[str, str]] = set()  # the calls without a result that are counted, or are a loop's own
        self._is_paused = self._is_inherited = False

    @property
    def rest(self) -> float:
        """The seconds in which the agent did not work."""
        return self.alone + self.paused + self.idle

    @property
    def seconds(self) -> float:
        """The seconds in which the agent worked."""
        return max(0.0, self.last - (self.began or 0.0) - self.rest)

    def goes_on(self, event: Any) -> bool:
        """Return True if an event shows that a process has exited: the next one goes on with what it had in flight."""
        if not self._running or (kind := event.type) not in _MAY_GO_ON:
            return False
        match kind:
            case "call_start":
                return (event.path, event.call_id) in self._running
            case "approval_request":
                return bool(event.unknown) and (event.path, event.call_id) in self._running
            case "model_start":
                is_same = event.attempt > 1 and not getattr(event, "continues", False)
                return is_same and (event.path, "") in self._running
            case "run_resumed":
                chosen = (event.approve, event.limits, event.model_options, event.on_limit)
                return not self._is_paused and (event.suspended or any(one is not None for one in chosen))
            case _:
                return False

    def take(self, event: Any) -> None:
        """Take the next event."""
        # Count the time since the event before, by what was in flight in it.
        if self.began is None:
            self.began = self.last = event.time
        passed = max(0.0, event.time - self.last)  # in an older recording a clock may have been set back
        self.last += passed
        kind = event.type
        if self._is_inherited and not event.inherited:
            self.idle += passed
        elif kind in _MAY_GO_ON and self.goes_on(event):
            self.idle += passed
            self._running.clear()
        elif passed:
            if self._asked:
                self.waited += passed
                if not self._running:
                    self.alone += passed
            elif self._is_paused:
                self.paused += passed
            elif not self._running and passed > IDLE:
                self.idle += passed
        self._is_inherited = event.inherited

        # Note what is in flight from now on.
        if kind not in _COUNTED:
            return
        match kind:
            case "model_start":
                self._running.add((event.path, ""))
                is_first = event.attempt == 1
                self.turns += is_first
                self.repeated += not (is_first or getattr(event, "continues", False))
            case "model_end" | "model_error":
                self._running.discard((event.path, ""))
            case "call_start":
                self._running.add((event.path, event.call_id))
                self._asked.discard((event.path, event.call_id))
                if not event.own and event.attempt == 1:
                    self._count(event)
                self._known.add((event.path, event.call_id))
                self.repeated += event.attempt > 1
            case "call_end":
                self._running.discard((event.path, event.call_id))
                self._asked.discard((event.path, event.call_id))
                self._count(event)  # if it has not started: it was rejected, or answered by a person
                self._known.discard((event.path, event.call_id))
            case "approval_request":
                self._count(event)
                self._asked.add((event.path, event.call_id))
            case "approval_decision":
                self._asked.discard((event.path, event.call_id))
            case "run_start" if event.path:  # what a nested loop does counts, not the call that it performs
                self._running.discard((event.path.rpartition("/")[0], event.call))
            case "run_paused":
                self._is_paused = True
            case "run_resumed":
                self._is_paused = False
            case "run_end":
                for kept in (self._running, self._asked):
                    kept.difference_update([one for one in kept if is_within(one[0], event.path)])
                self._is_paused = self._is_paused and bool(event.path)
            case _:
                pass

    def _count(self, event: Any) -> None:
        """Count a call that has no result, unless it is counted already."""
        call = event.path, event.call_id
        self.calls += call not in self._known
        self._known.add(call)


class Spans:
    """The spans of a run. Call `follow` with its events, then read.

    all: the spans by number. requests: those that are model requests. spent: seconds spent on models, calls and
    waiting for decisions. Concurrent requests and calls are added up; a call that a loop performs is counted by what
    that loop does; waiting for a person counts once, however many calls wait at the same time. figures: the times and
    counts of the run.
    """

    def __init__(self) -> None:
        self.causes = Causes()
        self.all: list[Span] = []
        self.requests: list[Span] = []
        self.spent = {"model": 0.0, "call": 0.0, "wait": 0.0}
        self.figures = Figures()
        self._lock = threading.Lock()
        self._changes: list[bytes] = []
        self._changed: dict[int, dict[str, Any]] = {}  # by the current event: the changed fields, by span
        self._roots: list[Span] = []
        self._loops: dict[str, Span] = {}
        self._open: dict[int, Span] = {}
        self._inside: dict[int, _Inside] = {}  # by the number of the loop's span, while it is open
        self._pauses = 0

    @property
    def began(self) -> float:
        """The time of the first event, in seconds since the epoch."""
        return self.figures.began or 0.0

    @property
    def last(self) -> float:
        """The time of the newest event."""
        return self.figures.last

    @property
    def paused(self) -> float:
        """The seconds in which the run was paused."""
        return self.figures.paused

    @property
    def idle(self) -> float:
        """The seconds in which nobody drove the run."""
        return self.figures.idle

    def follow(self, events: Sequence[Event], until: int | None = None) -> Spans:
        """Read the events that are new, up to the position `until` if given. Safe to call from any thread."""
        until = len(events) if until is None else until
        with self._lock:
            self.causes.follow(events, until)
            seen = len(self._changes)
            for position, event in enumerate(events[seen:until], seen):
                self._changed, spent = {}, dict(self.spent)
                before = {name: getattr(self.figures, name) for name in _RESTS}
                self._fold(events, position, event)
                changed: dict[str, Any] = {}
                if self._changed:
                    changed["spans"] = [{"number": number, **fields} for number, fields in self._changed.items()]
                if self.spent != spent:
                    changed["spent"] = self.spent
                for name, seconds in before.items():
                    if (now := getattr(self.figures, name)) != seconds:
                        changed[name] = now
                self._changes.append(as_json(changed) if changed else b"")
        return self

    def marks(self, position: int) -> dict[str, Any]:
        """Return the fields of an event's row about its cause and its span: `cause`, `span` and `after`, if present."""
        cause, span = self.causes.causes[position], self.causes.spans[position]
        after = self.causes.awaited.get(position)
        marks = {"cause": cause if cause >= 0 else None, "span": span if span >= 0 else None, "after": after}
        return {name: number for name, number in marks.items() if number is not None}

    def changes(self, position: int) -> bytes:
        """Return what an event changed, as JSON; empty if it changed nothing.

        The fields are `spans`, `spent`, `alone`, `paused` and `idle`.
        """
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
        number, idle = self.causes.spans[position], self.idle
        goes_on = self.figures.goes_on(event)
        if goes_on:
            self._interrupt()
        self.figures.take(event)
        self.spent["wait"] = self.figures.waited
        now = self.last
        if goes_on:  # the loops did not work while their process was away
            for one in [one for loop, inside in self._inside.items() for one in (self.all[loop], inside.call)]:
                if one is not None and one.waits_since is None:
                    self._set(one, waited=one.waited + self.idle - idle)
        if number < 0:
            return
        span = self.all[number] if number < len(self.all) else self._add(events, position, number)

        # End the open interval and start the next one.
        starts = _STARTS.get(event.type)
        is_running = bool(span.intervals) and span.intervals[-1].end is None
        if is_running and (starts or event.type in _ENDS):
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
        around: list[_Inside] = []
        loop = span.parent
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
        if interval.kind == "run" and span.kind in self.spent and not span.performed:
            self.spent[span.kind] += seconds
            if span.turn is not None:
                self._set(span.turn, call_time=span.turn.call_time + seconds)

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
