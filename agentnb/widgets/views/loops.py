"""The loops of a run: the phase of each, and the transitions that it has taken.

They are folded from the run's events, so a live run, a restored one and a recording show the same. Events do not
contain the table of phases of a nested loop. So its parent is asked for the loop that performs the call. If the parent
cannot return it, because the parent is not the loop that was recorded, the nested loop is shown in words only.

A run may have thousands of nested loops. Of the nested loops of one loop, only those that are running are kept, or, if
none is running, the one that ran last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agentnb.core.events import CallEnd, CallProposed, CallStart, Event, RunEnd, RunStart
from agentnb.core.json import repair_text
from agentnb.core.loop import Design
from agentnb.core.messages import ToolCall
from agentnb.core.state import CallState
from agentnb.tools import as_tools, loop_of
from agentnb.widgets.drawings.diagram import Table, diagram, table_of
from agentnb.widgets.text import brief
from agentnb.widgets.views.call_graph import GraphView, LoopGraph, graph_of
from agentnb.widgets.views.spans import Figures

SHOWN = 12
"""The maximum number of nested loops that are shown; of the others, only the number is shown."""
DRAWN = 2
"""The maximum number of nested loops with a drawing, because a drawing is about as high as the list of events."""
GRAPHS = 3
"""The maximum number of loops whose call graphs are shown."""
TABLES = 16
"""The maximum number of tables of nested loops that are drawn, because each drawing is sent to the page."""
INPUT = 80
"""The maximum number of characters of the input of a nested loop."""

logger = logging.getLogger("agentnb")


class LoopView:
    """One loop: its phase, how often it took each transition, and its nested loops. `call` is the call it performs."""

    def __init__(
        self, path: str, design: Any, *, call: str = "", input: Any = None, graph: LoopGraph | None = None
    ) -> None:
        self.path = path
        self.design = design
        self.table: Table | None = table_of(design.phases) if design is not None else None
        self.call = call
        # The input in short form; if it is a list of messages, the text of the last one.
        last = input[-1] if isinstance(input, (list, tuple)) and input else None
        content = last.get("content") if isinstance(last, Mapping) else None
        self.input = brief(content if isinstance(content, str) and content else input, INPUT)
        self.phase: str | None = None
        self.arrows: dict[tuple[str, str], int] = {}
        self.latest: tuple[str, str] | None = None
        self.running = True
        self.ended = ""
        self.calls: dict[str, CallState] = {}
        self.graph = graph
        self.inside: dict[str, LoopView] = {}

    def take(self, event: Event) -> None:
        """Apply an event of this loop: it may enter a phase, and change the call graph."""
        if event.phase is not None:
            if self.phase is not None and self.phase != event.phase:
                self.latest = (self.phase, event.phase)
                self.arrows[self.latest] = self.arrows.get(self.latest, 0) + 1
            self.phase = event.phase
        if self.graph is not None:
            self.graph.take(event)

    def stop(self, reason: str = "") -> None:
        """Mark the loop and its nested loops as ended."""
        self.running, self.ended = False, self.ended or reason
        for loop in self.inside.values():
            if loop.running:
                loop.stop()

    def shown(self) -> Iterator[LoopView]:
        """Iterate over the nested loops that run, or else the last one; each is followed by its own nested loops."""
        running = [loop for loop in self.inside.values() if loop.running]
        for loop in running or list(self.inside.values())[-1:]:
            yield loop
            yield from loop.shown()


class Loops:
    """The loops of one run. Call `follow` with its events, then read.

    graphs: read the call graphs as well. tables: the tables of the nested loops that were seen, each with a number.
    named: the number of the table of each nested loop, by its design and its name as in the summary of its start.
    figures: the times and the counts of the run.
    """

    def __init__(self, design: Any, *, graphs: bool = False) -> None:
        self._graph_of = graph_of if graphs else lambda design: None
        self._design = design
        self.tables: dict[Table, int] = {}
        self.named: dict[str, int] = {}
        self._known: dict[tuple[int, str, str, str, str], Design | None] = {}
        self._reset()

    def _reset(self) -> None:
        self.root = LoopView("", self._design, graph=self._graph_of(self._design))
        self._by_path = {"": self.root}
        self._seen = 0
        self.figures = Figures()

    def follow(self, events: Sequence[Event]) -> Loops:
        """Apply the new events. If a replay has moved back, begin again and apply the events up to its position."""
        total = len(events)
        if total < self._seen:
            self._reset()  # the tables stay, because the page has drawings of them
        for event in events[self._seen : total]:
            self.figures.take(event)
            self._take(event)
        self._seen = total
        return self

    def design_at(self, path: str) -> Any:
        """Return the loop at `path`, or None if it is not known."""
        loop = self._by_path.get(path)
        return loop.design if loop is not None else None

    def nested(self) -> list[LoopView]:
        """Return the nested loops to show, each before its own nested loops."""
        return list(self.root.shown())

    def graphs(self) -> list[tuple[str, GraphView]]:
        """Return the call graphs to show, with the paths of their loops; of nested loops, only those with calls."""
        read = ((loop.path, loop.graph.read()) for loop in (self.root, *self.nested()) if loop.graph is not None)
        shown = ((path, graph) for path, graph in read if graph is not None and (graph.dresses or not path))
        return list(islice(shown, GRAPHS))

    def _take(self, event: Event) -> None:
        if event.path and isinstance(event, RunStart):
            self._begin(event)
        loop = self._by_path.get(event.path)
        if loop is None:
            return
        loop.take(event)
        if isinstance(event, CallProposed):
            loop.calls[event.call.id] = CallState(event.call, hidden=event.hidden)
        elif isinstance(event, CallStart):
            hidden = event.call_id in loop.calls and loop.calls[event.call_id].hidden
            call = ToolCall(id=event.call_id, name=event.name, arguments=event.arguments)
            loop.calls[event.call_id] = CallState(call, hidden=hidden)
        elif isinstance(event, CallEnd):
            loop.calls.pop(event.call_id, None)
            for inside in loop.inside.values():
                if inside.running and inside.call == event.call_id:
                    inside.stop(event.outcome)
        elif isinstance(event, RunEnd):
            loop.stop(event.reason)

    def _begin(self, event: RunStart) -> None:
        above_path, _, name = event.path.rpartition("/")
        above = self._by_path.get(above_path)
        if above is None:
            return
        for old in [old for old, loop in above.inside.items() if old == name or not loop.running]:
            self._forget(above.inside.pop(old))
        design = self._design_of(above, event)
        loop = LoopView(event.path, design, call=event.call, input=event.input, graph=self._graph_of(design))
        above.inside[name] = self._by_path[event.path] = loop
        if loop.table is not None and len(self.tables) < TABLES:
            self.tables.setdefault(loop.table, len(self.tables))
        if loop.table in self.tables:
            self.named[f"{event.loop} {event.name}"] = self.tables[loop.table]

    def _forget(self, loop: LoopView) -> None:
        del self._by_path[loop.path]
        for inside in loop.inside.values():
            self._forget(inside)

    def _design_of(self, above: LoopView, event: RunStart) -> Design | None:
        """Return the nested loop that starts with this event. Its parent is asked once for each kind of call."""
        call = above.calls.get(event.call)
        if call is None or not isinstance(above.design, Design):
            return None
        key = (id(above.design), call.name, event.loop, event.name, event.fingerprint)
        if key not in self._known:
            self._known[key] = _loop_for(above.design, call)
        design = self._known[key]
        return design if design is not None and (design.kind(), design.name) == (event.loop, event.name) else None


def _loop_for(design: Design, call: CallState) -> Design | None:
    tools = as_tools(design.tools)
    try:
        loop = design.calls_class(design, tools).loop_for(call)
    except Exception:
        # This is code of the user, written to be called by the driver. The panel works without this drawing.
        logger.exception("%s could not determine the loop that performs %s", design.kind(), call.name)
        return None
    if loop is None and not (call.hidden and call.name in design.activities):
        loop = loop_of(tools.get(call.name))
    return loop


def nested_status(loops: Loops) -> dict[str, Any]:
    """Return the nested loops as the page gets them, and the number of those that are left out."""
    nested = loops.nested()
    drawn = _drawn(nested[:SHOWN], loops.tables)
    return {"nested": [_entry(loop, drawn) for loop in nested[:SHOWN]], "more": max(0, len(nested) - SHOWN)}


def _drawn(nested: Sequence[LoopView], tables: Mapping[Table, int]) -> dict[str, int]:
    """Return the numbers of the tables to draw, by path; of sibling loops with the same table, only the first."""
    chosen: dict[tuple[str, int], str] = {}
    for loop in nested:
        if loop.table is not None and loop.table in tables:
            chosen.setdefault((loop.path.rpartition("/")[0], tables[loop.table]), loop.path)
    return {path: number for (_, number), path in list(chosen.items())[:DRAWN]}


def _entry(loop: LoopView, drawn: Mapping[str, int]) -> dict[str, Any]:
    return {
        "path": repair_text(loop.path),
        "input": repair_text(loop.input),
        "phase": repair_text(loop.phase or ""),
        "arrows": arrows_of(loop),
        "times": list(loop.arrows.values()),
        "latest": latest_of(loop),
        "running": loop.running,
        "ended": loop.ended.replace("_", " "),
        "table": drawn.get(loop.path, -1),
    }


def graph_status(graphs: Sequence[tuple[str, GraphView]]) -> list[dict[str, Any]]:
    """Return the call graphs as the page gets them, without their drawings."""
    return [
        {
            "path": repair_text(path),
            "name": graph_name(path),
            "heading": graph.heading,
            "notes": graph.notes,
            "more": graph.more,
            "calls": [list(dress) for dress in graph.dresses],
        }
        for path, graph in graphs
    ]


def graph_name(path: str) -> str:
    """Return the accessible name of a call graph."""
    return f"Call graph of {repair_text(path)}" if path else "Call graph"


def phases_of(table: Table) -> list[str]:
    """Return the names of the phases of a table."""
    return [repair_text(name) for name, _ in table]


def diagrams_of(loops: Loops) -> list[dict[str, Any]]:
    """Return the tables of the nested loops, each with its drawing and the loops that have it."""
    names: list[list[str]] = [[] for _ in loops.tables]
    for name, number in list(loops.named.items()):
        names[number].append(repair_text(name))
    return [
        {"phases": phases_of(table), "diagram": diagram(table), "loops": own}
        for table, own in zip(list(loops.tables), names, strict=False)
    ]


def arrows_of(loop: LoopView) -> list[list[str]]:
    """Return the transitions that a loop has taken, in the order in which it first took them."""
    return [[repair_text(name) for name in arrow] for arrow in loop.arrows]


def latest_of(loop: LoopView) -> int:
    """Return the index of the transition that was taken last, or -1."""
    return list(loop.arrows).index(loop.latest) if loop.latest is not None else -1


def breadcrumb(phase: str, nested: Sequence[Mapping[str, Any]]) -> str:
    """Return the phases of the outermost loop and of those that run inside it: `executing > worker: thinking`.

    Sibling loops are separated by commas.
    """
    line, above = phase, ""
    for entry in nested:
        if entry["running"]:
            inside = not above or entry["path"].startswith(f"{above}/")
            line += f"{' > ' if inside else ', '}{entry['path']}: {entry['phase']}"
            above = entry["path"]
    return line
