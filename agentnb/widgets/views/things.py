"""The things a run is made of, with when they waited and ran: the rows of a timeline, the lines of a bill.

What the page works out as events arrive (`page/trace.js`) is worked out here for a page without a kernel, from all
events at once and by the same rules: which thing an event is about is in the trace, what it does to it in its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentnb.core.events import ApprovalRequest, CallEnd, Event, ModelEnd, ModelFailed, RunEnd
from agentnb.widgets.views.live import is_within
from agentnb.widgets.views.trace import Trace

Kind = Literal["loop", "model", "call", "pause"]

_KINDS: Mapping[str, Kind] = {"run_start": "loop", "model_start": "model", "run_paused": "pause"}
_BEGINS = {
    "run_start": "run",
    "model_start": "run",
    "call_start": "run",
    "approval_request": "wait",
    "run_paused": "wait",
}
_ENDS = frozenset({"model_end", "model_error", "approval_decision", "call_end", "run_resumed", "run_end"})
STRETCHES = 60
"""Of one thing; later ones prolong the last."""


@dataclass(slots=True)
class Stretch:
    """A time in which a thing waited for a person (`wait`) or ran (`run`); `end` is None while it does.

    A call of which nobody knows how it ended has waited since it was started: for how long it ran, nothing says.
    """

    kind: str
    start: float
    end: float | None = None


@dataclass(slots=True)
class Thing:
    """A loop, a request to a model, a call or a pause. `turn` is the request that made a call.

    `calls` and `call_time` are a request's: how many it made, and the seconds they waited and ran.
    """

    kind: Kind
    name: str
    path: str
    opened: float
    ended: float | None = None
    stretches: list[Stretch] = field(default_factory=list)
    failed: bool = False
    depth: int = 0
    inside: list[Thing] = field(default_factory=list)
    usage: Mapping[str, float] = field(default_factory=dict)
    turn: Thing | None = None
    calls: int = 0
    call_time: float = 0.0
    is_performed: bool = False


class Things:
    """The things of a run. `rows` has them in order: each loop's behind it; `spent` seconds by what they were spent on.

    What models and calls took at the same time is added up, and a call that a loop performs counts as what that loop
    does. The one person who is waited for is waited for once, however many calls do so.
    """

    def __init__(self, events: Sequence[Event], trace: Trace) -> None:
        self.began = events[0].time if events else 0.0
        self.last = max((event.time for event in events), default=0.0)
        self.spent = {"model": 0.0, "call": 0.0, "wait": 0.0}
        self.turns: list[Thing] = []
        self._waits: list[tuple[float, float]] = []
        self._outermost: list[Thing] = []
        self._loops: dict[str, Thing] = {}
        self._open: dict[int, Thing] = {}
        self._events, self._trace = events, trace
        self._known: dict[int, Thing] = {}
        self._now = self.began
        """The time of the event that is taken in; in an older recording a clock may have been set back."""
        for event, number in zip(events, trace.things, strict=False):
            self._now = max(self._now, event.time)
            if number >= 0:
                self._take(event, number)

    def rows(self) -> Iterator[Thing]:
        """All of them, in the order a timeline has them."""
        yield from _flat(self._outermost)

    def _take(self, event: Event, number: int) -> None:
        thing = self._known.get(number) or self._begin(event, number)
        begins = _BEGINS.get(event.type)
        if isinstance(event, ApprovalRequest) and event.unknown and thing.stretches and thing.stretches[-1].end is None:
            thing.stretches[-1].kind = "wait"
            begins = None
        elif begins or event.type in _ENDS:
            self._stop(thing, self._now)
        if begins:
            self._start(thing, begins, self._now)
            self._open[number] = thing
        if isinstance(event, ModelEnd):
            thing.usage = event.usage
        elif _failed(event):
            thing.failed = True
        if event.type == "run_end":
            for one in [one for one, inside in self._open.items() if is_within(inside.path, event.path)]:
                self._stop(self._open[one], self._now)
                self._open.pop(one).ended = self._now
        elif event.type in _ENDS and (thing.kind != "call" or event.type == "call_end"):
            thing.ended = self._now
            self._open.pop(number, None)

    def _begin(self, event: Event, number: int) -> Thing:
        kind = _KINDS.get(event.type, "call")
        at = self._trace.causes[self._trace.firsts[number]]
        cause = self._events[at] if at >= 0 else None
        above = self._known.get(self._trace.things[at]) if at >= 0 else None
        opened = cause.time if kind == "call" and cause is not None else self._now
        thing = self._known[number] = Thing(kind, self._trace.names[number], event.path, opened)
        if kind == "model":
            self.turns.append(thing)
        elif kind == "loop" and above is not None:
            above.is_performed = True
        elif kind == "call" and above is not None and above.kind == "model":
            thing.turn = above
            above.calls += 1
        self._place(thing)
        return thing

    def _place(self, thing: Thing) -> None:
        path = thing.path if thing.kind != "loop" else thing.path.rpartition("/")[0]
        home = self._loops.get(path) if thing.kind != "loop" or thing.path else None
        thing.depth = home.depth + 1 if home is not None else 0
        (home.inside if home is not None else self._outermost).append(thing)
        if thing.kind == "loop":
            self._loops[thing.path] = thing

    def _start(self, thing: Thing, kind: str, time: float) -> None:
        if len(thing.stretches) < STRETCHES:
            thing.stretches.append(Stretch(kind, time))
        else:
            thing.stretches[-1].end = None
        thing.ended = None

    def _stop(self, thing: Thing, time: float) -> None:
        if not thing.stretches or thing.stretches[-1].end is not None:
            return
        stretch = thing.stretches[-1]
        stretch.end = time
        spent = max(0.0, time - stretch.start)
        what: str = "wait" if stretch.kind == "wait" else "" if thing.is_performed else thing.kind
        if what == "wait":
            self._count_wait(stretch.start, max(time, stretch.start))
        elif what in self.spent:
            self.spent[what] += spent
        if what == "call" and thing.turn is not None:
            thing.turn.call_time += spent

    def _count_wait(self, start: float, end: float) -> None:
        """Add a time in which somebody was waited for, but for what of it is counted already."""
        while self._waits and self._waits[-1][1] >= start:
            earlier = self._waits.pop()
            self.spent["wait"] -= earlier[1] - earlier[0]
            start, end = min(start, earlier[0]), max(end, earlier[1])
        self._waits.append((start, end))
        self.spent["wait"] += end - start


def _failed(event: Event) -> bool:
    match event:
        case ModelFailed():
            return True
        case CallEnd():
            return event.is_error or event.error is not None
        case RunEnd():
            return event.error is not None
        case _:
            return False


def _flat(things: Sequence[Thing]) -> Iterator[Thing]:
    for thing in things:
        yield thing
        yield from _flat(thing.inside)


def duration(seconds: float) -> str:
    """A time as a person reads it."""
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 99.95:
        return f"{seconds:.{2 if seconds < 9.995 else 1}f} s"
    whole = int(seconds + 0.5)  # rounded before it is divided: 119.9 s are two minutes, not one
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def bill(things: Things, usage: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the run has taken in all, each with its name."""
    told = [("time", duration(max(0.0, things.last - things.began)))]
    names = {"model": "model", "call": "calls", "wait": "waiting for you"}
    told += [(names[what], duration(spent)) for what, spent in things.spent.items() if spent]
    return told + [(name.replace("_", " "), amount(name, value)) for name, value in usage.items()]


def amount(name: str, value: float) -> str:
    """An amount of tokens, or of money."""
    return f"${value:,.4g}" if name == "cost" else f"{value:,.10g}"
