"""The call graphs of a run's loops: for each call its status, what it waits for, and the calls whose results it reads.

The design computes the graph from a state (`Calls.call_graph`). The run changes its own state in another thread, so
the events of a loop that has a graph are folded here a second time; a loop without one costs nothing. The graph is
read when the panel is updated, and once at the end of each request. Of earlier requests only counts are kept. If a
request has no calls, which is often true of the last one, the page still shows the previous graph.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from agentnb.core.events import Event, ModelStart
from agentnb.core.evolve import evolve
from agentnb.core.graph import CallDependencies, GraphCall, GraphStatus
from agentnb.core.loop import Calls, Design
from agentnb.core.state import State
from agentnb.tools import as_tools
from agentnb.widgets.drawings.graph import Dress, Shape
from agentnb.widgets.text import brief, one_line, visible

DRAWN = 40
"""The maximum number of calls of one request that are drawn."""
ARROWS = 120
"""The maximum number of arrows that are drawn."""
NAMED = 6
"""The maximum number of calls that are named as those whose results a call reads."""
WORDS: dict[GraphStatus, str] = {
    "running": "● running",
    "waiting": "◆ waiting for you",
    "confirming": "◇ confirming",
    "unblocked": "○ unblocked",
    "blocked": "◌ blocked",
    "failed": "✗ failed",
    "rejected": "⊘ rejected",
    "completed": "✓ completed",
}
"""The words for a status, after a sign; the most urgent status first."""
_URGENCY = list(WORDS)

logger = logging.getLogger("agentnb")


class GraphView(NamedTuple):
    """The graph of one loop: the shape of its drawing, and its texts."""

    heading: str
    notes: str
    more: str
    shape: Shape
    dresses: tuple[Dress, ...]


class LoopGraph:
    """The call graph of one loop. Call `take` with its events, then `read`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._state = State()
        self._last = CallDependencies(0, ())
        self._view: GraphView | None = None
        self._changed = True
        self._broken = False
        self._requests, self._ended = 0, Counter[GraphStatus]()

    def take(self, event: Event) -> None:
        """Apply an event of this loop."""
        if not self._broken:
            self._changed = True
            self._guard(self._fold, event)

    def read(self) -> GraphView | None:
        """Return the graph of the current request, or of the last one with calls; None if the design failed."""
        if self._changed and not self._broken:
            self._changed = False
            self._guard(self._update)
        return None if self._broken else self._view

    def _guard(self, act: Callable[..., None], *values: Any) -> None:
        try:
            act(*values)
        except Exception:
            # This is code of the design's author. The panel works without this graph.
            logger.exception("The call graph of %s could not be made", self._calls.loop.kind())
            self._broken = True

    def _fold(self, event: Event) -> None:
        if isinstance(event, ModelStart) and event.attempt == 1 and (graph := self._graph()).calls:
            self._last = graph
            self._requests += 1
            self._ended.update(_count(graph))
        evolve(self._state, event, nested=True)  # this fold is of one loop, also if that is nested

    def _graph(self) -> CallDependencies:
        make = self._calls.call_graph
        graph = make(self._state) if make is not None and self._state.calls else None
        return graph if graph is not None else CallDependencies(self._state.turn, ())

    def _update(self) -> None:
        graph = self._graph()
        if graph.calls:
            notes = _before(self._requests, self._ended)
        elif self._last.calls:
            graph = self._last
            yet = " yet" if self._state.model == "asked" else ""
            earlier = _before(self._requests - 1, self._ended - _count(graph))
            notes = f"Request {self._state.turn} has made no calls{yet}. {earlier}"
        else:
            notes = "No calls." if self._state.over else "No calls yet."
        self._view = view_of(graph, notes)


def graph_of(design: Any) -> LoopGraph | None:
    """Return the object that builds the call graph of a loop from its events; None if its design has no call graph."""
    if not isinstance(design, Design) or design.calls_class.call_graph is None:
        return None
    return LoopGraph(design.calls_class(design, as_tools(design.tools)))


def _count(graph: CallDependencies) -> Counter[GraphStatus]:
    return Counter(call.status for call in graph.calls if not call.earlier)


def _counted(counts: Counter[GraphStatus]) -> str:
    return ", ".join(f"{counts[one]:,} {WORDS[one].partition(' ')[2]}" for one in WORDS if counts[one])


def _before(requests: int, ended: Counter[GraphStatus]) -> str:
    if not requests:
        return ""
    calls, plural = ended.total(), "s" if requests > 1 else ""
    return f"Earlier: {calls:,} call{'s' if calls > 1 else ''} in {requests:,} request{plural} ({_counted(ended)})."


def view_of(graph: CallDependencies, notes: str = "") -> GraphView:
    """Return the texts of a graph, and the part of it that is drawn."""
    counts, drawn = _count(graph), _choose(graph.calls)
    left_out = counts.total() - sum(not call.earlier for call in drawn)
    numbers = {call.id: number for number, call in enumerate(drawn)}
    arrows = [(numbers[id], number) for number, call in enumerate(drawn) for id in call.reads if id in numbers]
    return GraphView(
        heading=f"Calls of request {graph.request}: {_counted(counts)}" if graph.calls else "Calls",
        notes=notes.strip(),
        more=f"and {left_out:,} more" if left_out else "",
        shape=(tuple((call.id, call.tool) for call in drawn), tuple(arrows[:ARROWS])),
        dresses=tuple(map(_dress, drawn)),
    )


def _choose(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Return the calls to draw: the most urgent ones, in order, and the earlier calls that they read from."""
    if len(calls) > DRAWN:
        urgent = sorted((call for call in calls if not call.earlier), key=lambda call: _URGENCY.index(call.status))
        chosen = {call.id for call in urgent[:DRAWN]}
        read = {id for call in urgent[:DRAWN] for id in call.reads}
        room = DRAWN // 4
        kept = [call for call in calls if call.earlier and call.id in read][:room]
        calls = [*kept, *(call for call in calls if call.id in chosen and not call.earlier)]
    return list(calls)


def _dress(call: GraphCall) -> Dress:
    words = "✓ earlier request" if call.earlier else WORDS[call.status]
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
    return ("earlier" if call.earlier else call.status, words, visible(sentence))
