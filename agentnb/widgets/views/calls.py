"""The call graphs of a run's loops, as the panel tells them: how each call stands, what it waits for, who reads whom.

Which calls read what others write is the design's to say (`Design.call_graph`), from a state. The run's own state
changes under the eyes of whoever looks from another thread, so the events of a loop that has such a graph are folded
here a second time; one that has none costs nothing. The graph is read from that when the panel is brought up to date,
and once at the end of each request. Of the requests before the current one only numbers stay; but one that has made no
calls, as the last one often does, leaves on the page what was there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agentnb.core.events import Event, ModelStart
from agentnb.core.evolve import evolve
from agentnb.core.graph import CallGraph, CallStanding, GraphCall
from agentnb.core.state import State
from agentnb.widgets.drawings.graph import Dress, Shape
from agentnb.widgets.text import brief, one_line, visible

DRAWN = 40
"""Calls of a request that are drawn at most."""
ARROWS = 120
"""Arrows."""
NAMED = 6
"""Calls that one call is said to read from, by name."""
WORDS: dict[CallStanding, str] = {
    "running": "● running",
    "waiting": "◆ waiting for you",
    "confirming": "◇ confirming",
    "unblocked": "○ unblocked",
    "blocked": "◌ blocked",
    "failed": "✗ failed",
    "rejected": "⊘ rejected",
    "completed": "✓ completed",
}
"""The words for a standing, behind a sign; in the order they are counted in, which is how pressing they are."""
_PRESSING = list(WORDS)

logger = logging.getLogger("agentnb")


class Told(NamedTuple):
    """One loop's graph: its drawing's shape, and everything about it that is in words."""

    heading: str
    notes: str
    more: str
    shape: Shape
    dresses: tuple[Dress, ...]


class Calls:
    """The calls of one loop. `take` its events, then `tell`."""

    def __init__(self, design: Any) -> None:
        self._design = design
        self._state = State()
        self._last = CallGraph(0, ())
        self._told: Told | None = None
        self._changed = True
        self._broken = False
        self._requests, self._ended = 0, Counter[CallStanding]()

    def take(self, event: Event) -> None:
        """An event of this loop."""
        if not self._broken:
            self._changed = True
            self._guard(self._fold, event)

    def tell(self) -> Told | None:
        """The graph of the current request, or of the last one that made calls; None where it cannot be told."""
        if self._changed and not self._broken:
            self._changed = False
            self._guard(self._tell)
        return None if self._broken else self._told

    def _guard(self, act: Callable[..., None], *values: Any) -> None:
        try:
            act(*values)
        except Exception:
            # What a design makes of its own calls is its author's code. The panel goes on without this graph.
            logger.exception("The call graph of %s could not be made", self._design.kind())
            self._broken = True

    def _fold(self, event: Event) -> None:
        if isinstance(event, ModelStart) and event.attempt == 1 and (graph := self._read()).calls:
            self._last = graph
            self._requests += 1
            self._ended.update(_count(graph))
        evolve(self._state, event, nested=True)  # wherever the loop is, for this fold it is the outermost

    def _read(self) -> CallGraph:
        graph = self._design.call_graph(self._state) if self._state.calls else None
        return graph if graph is not None else CallGraph(self._state.turn, ())

    def _tell(self) -> None:
        graph = self._read()
        if graph.calls:
            notes = _before(self._requests, self._ended)
        elif self._last.calls:
            graph = self._last
            yet = " yet" if self._state.model == "asked" else ""
            earlier = _before(self._requests - 1, self._ended - _count(graph))
            notes = f"Request {self._state.turn} has made no calls{yet}. {earlier}"
        else:
            notes = "No calls." if self._state.over else "No calls yet."
        self._told = told_of(graph, notes)


def calls_of(design: Any) -> Calls | None:
    """What follows the calls of a loop; None where the design does not tell how they depend on one another."""
    return Calls(design) if getattr(design, "call_graph", None) is not None else None


def _count(graph: CallGraph) -> Counter[CallStanding]:
    return Counter(call.standing for call in graph.calls if not call.earlier)


def _counted(counts: Counter[CallStanding]) -> str:
    return ", ".join(f"{counts[one]:,} {_word(one)}" for one in WORDS if counts[one])


def _word(standing: CallStanding) -> str:
    return WORDS[standing].partition(" ")[2]


def _before(requests: int, ended: Counter[CallStanding]) -> str:
    if not requests:
        return ""
    calls, plural = ended.total(), "s" if requests > 1 else ""
    return f"Earlier: {calls:,} call{'s' if calls > 1 else ''} in {requests:,} request{plural} ({_counted(ended)})."


def told_of(graph: CallGraph, notes: str = "") -> Told:
    """A graph in words, and what of it is drawn."""
    counts, drawn = _count(graph), _choose(graph.calls)
    left_out = counts.total() - sum(not call.earlier for call in drawn)
    numbers = {call.id: number for number, call in enumerate(drawn)}
    arrows = [(numbers[id], number) for number, call in enumerate(drawn) for id in call.reads if id in numbers]
    return Told(
        heading=f"Calls of request {graph.request}: {_counted(counts)}" if graph.calls else "Calls",
        notes=notes.strip(),
        more=f"and {left_out:,} more" if left_out else "",
        shape=(tuple((call.id, call.tool) for call in drawn), tuple(arrows[:ARROWS])),
        dresses=tuple(map(_dress, drawn)),
    )


def _choose(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Those that are drawn: the most pressing ones, in the order they were made, and what they read from earlier."""
    if len(calls) > DRAWN:
        pressing = sorted((call for call in calls if not call.earlier), key=lambda call: _PRESSING.index(call.standing))
        chosen = {call.id for call in pressing[:DRAWN]}
        read = {id for call in pressing[:DRAWN] for id in call.reads}
        room = DRAWN // 4
        kept = [call for call in calls if call.earlier and call.id in read][:room]
        calls = [*kept, *(call for call in calls if call.id in chosen and not call.earlier)]
    return list(calls)


def _dress(call: GraphCall) -> Dress:
    words = "✓ earlier request" if call.earlier else WORDS[call.standing]
    sentence = f"{one_line(call.id, 20)} {one_line(call.tool, 60)}: {words.partition(' ')[2]}"
    if call.note is not None:
        sentence += f" ({brief(call.note, 120)})"
    if call.missing:
        sentence += f", waits for {one_line(', '.join(call.missing), 160)}"
    if call.reads:
        more = f" and {len(call.reads) - NAMED:,} more" if len(call.reads) > NAMED else ""
        sentence += f", reads from {', '.join(one_line(id, 20) for id in call.reads[:NAMED])}{more}"
    if call.writes:
        sentence += f", writes {one_line(call.writes, 80)}"
    return ("earlier" if call.earlier else call.standing, words, visible(sentence))
