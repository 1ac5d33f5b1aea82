"""The loops of a run, as the panel shows them: where each stands and the way it has taken through its phases.

Folded from the run's events, like everything, so a live run, a restored one and a recording show the same. What the
events do not say is a nested loop's table of phases. The loop above knows it: it names the loop that performs a call,
and is asked with the call as the events tell it. Where it cannot say (the loop is not the one that was recorded), the
nested loop is shown in words, without a drawing.

A run may run thousands of loops, one after the other or at the same time. Of those that one loop has run only the ones
that are running are of interest, or else the one that ran last, and no others are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agentnb.core.events import CallEnd, CallProposed, CallStart, Event, RunEnd, RunStart
from agentnb.core.loop import Design
from agentnb.core.messages import ToolCall
from agentnb.core.state import CallState
from agentnb.core.unicode import mended
from agentnb.tools import as_tools, loop_of
from agentnb.widgets.drawings.diagram import Table, table_of
from agentnb.widgets.text import brief
from agentnb.widgets.views.calls import Calls, Told, calls_of

SHOWN = 12
"""Nested loops that are shown at most; the others are counted."""
DRAWN = 2
"""Nested loops that are shown with a drawing, each about as high as the list of events; the others in words."""
GRAPHS = 3
"""Loops whose call graphs are shown."""
TABLES = 16
"""Tables of nested loops that are drawn at most: each drawing takes time and travels to the page."""
INPUT = 80
"""Characters of what a nested loop was given."""

logger = logging.getLogger("agentnb")


class Standing:
    """One loop: its phase, how often it took each arrow, and the loops inside it. `call` is the one it performs."""

    def __init__(
        self, path: str, design: Any, *, call: str = "", input: Any = None, graph: Calls | None = None
    ) -> None:
        self.path = path
        self.design = design
        self.table: Table | None = table_of(design.phases) if design is not None else None
        self.call = call
        self.input = brief(_last_said(input), INPUT)
        self.phase: str | None = None
        self.arrows: dict[tuple[str, str], int] = {}
        self.latest: tuple[str, str] | None = None
        self.running = True
        self.ended = ""
        self.calls: dict[str, CallState] = {}
        self.graph = graph
        self.inside: dict[str, Standing] = {}

    def take(self, event: Event) -> None:
        """An event of this loop: it may open a phase, and the call graph may change with it."""
        if event.phase is not None:
            if self.phase is not None and self.phase != event.phase:
                self.latest = (self.phase, event.phase)
                self.arrows[self.latest] = self.arrows.get(self.latest, 0) + 1
            self.phase = event.phase
        if self.graph is not None:
            self.graph.take(event)

    def stop(self, reason: str = "") -> None:
        """It does not run any more, and so nothing in it does."""
        self.running, self.ended = False, self.ended or reason
        for loop in self.inside.values():
            if loop.running:
                loop.stop()

    def of_interest(self) -> Iterator[Standing]:
        """The loops inside that run, or else the one that ran last; each followed by those inside it."""
        running = [loop for loop in self.inside.values() if loop.running]
        for loop in running or list(self.inside.values())[-1:]:
            yield loop
            yield from loop.of_interest()


class Loops:
    """The loops of one run, with `graphs` also their call graphs. `follow` its events, then read."""

    def __init__(self, design: Any, *, graphs: bool = False) -> None:
        self._calls_of = calls_of if graphs else lambda design: None
        self._design = design
        self.tables: dict[Table, int] = {}
        """What the nested loops that were seen look like, and the number of each."""
        self._known: dict[tuple[int, str, str, str, str], Design | None] = {}
        self._begin_run()

    def _begin_run(self) -> None:
        self.root = Standing("", self._design, graph=self._calls_of(self._design))
        self._by_path = {"": self.root}
        self._seen = 0

    def follow(self, events: Sequence[Event]) -> Loops:
        """Take in the events that are new; of a replay that has gone back, all that had happened by then."""
        total = len(events)
        if total < self._seen:
            self._begin_run()  # but the tables stay: the page has drawings of them
        for event in events[self._seen : total]:
            self._take(event)
        self._seen = total
        return self

    def design_at(self, path: str) -> Any:
        """The loop at `path`, where it is known which one it is."""
        loop = self._by_path.get(path)
        return loop.design if loop is not None else None

    def nested(self) -> list[Standing]:
        """The nested loops to show, each before those inside it."""
        return list(self.root.of_interest())

    def graphs(self) -> list[tuple[str, Told]]:
        """The call graphs to show, by the paths of their loops; nested loops are told of once they have made calls."""
        told = ((loop.path, loop.graph.tell()) for loop in (self.root, *self.nested()) if loop.graph is not None)
        shown = ((path, graph) for path, graph in told if graph is not None and (graph.dresses or not path))
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
            self._note_start(loop, event)
        elif isinstance(event, CallEnd):
            loop.calls.pop(event.call_id, None)
            for inside in loop.inside.values():
                if inside.running and inside.call == event.call_id:
                    inside.stop(event.outcome)
        elif isinstance(event, RunEnd):
            loop.stop(event.reason)

    @staticmethod
    def _note_start(loop: Standing, event: CallStart) -> None:
        hidden = event.call_id in loop.calls and loop.calls[event.call_id].hidden
        call = ToolCall(id=event.call_id, name=event.name, arguments=event.arguments)
        loop.calls[event.call_id] = CallState(call, hidden=hidden)

    def _begin(self, event: RunStart) -> None:
        above_path, _, name = event.path.rpartition("/")
        above = self._by_path.get(above_path)
        if above is None:
            return
        for old in [old for old, loop in above.inside.items() if old == name or not loop.running]:
            self._forget(above.inside.pop(old))
        design = self._design_of(above, event)
        loop = Standing(event.path, design, call=event.call, input=event.input, graph=self._calls_of(design))
        above.inside[name] = self._by_path[event.path] = loop
        if loop.table is not None and len(self.tables) < TABLES:
            self.tables.setdefault(loop.table, len(self.tables))

    def _forget(self, loop: Standing) -> None:
        del self._by_path[loop.path]
        for inside in loop.inside.values():
            self._forget(inside)

    def _design_of(self, above: Standing, event: RunStart) -> Design | None:
        """The loop that begins here; asked for once for each kind of call, though it may begin a thousand times."""
        call = above.calls.get(event.call)
        if call is None or not isinstance(above.design, Design):
            return None
        key = (id(above.design), call.name, event.loop, event.name, event.fingerprint)
        if key not in self._known:
            self._known[key] = _loop_for(above.design, call)
        design = self._known[key]
        return design if design is not None and (design.kind(), design.name) == (event.loop, event.name) else None


def _last_said(input: Any) -> Any:
    """What a loop was given; of messages, the last one's text."""
    last = input[-1] if isinstance(input, (list, tuple)) and input else None
    said = last.get("content") if isinstance(last, Mapping) else None
    return said if isinstance(said, str) and said else input


def _loop_for(design: Design, call: CallState) -> Design | None:
    try:
        loop = design.loop_for(call)
    except Exception:
        # It is the user's code, and was written to be asked by the driver. The panel goes on without this drawing.
        logger.exception("%s could not say which loop performs %s", design.kind(), call.name)
        return None
    if loop is None and not (call.hidden and call.name in design.activities):
        loop = loop_of(as_tools(design.tools).get(call.name))
    return loop


def nested_status(loops: Loops) -> dict[str, Any]:
    """The nested loops as the page gets them, and how many more there are."""
    nested = loops.nested()
    drawn = _drawn(nested[:SHOWN], loops.tables)
    return {"nested": [_entry(loop, drawn) for loop in nested[:SHOWN]], "more": max(0, len(nested) - SHOWN)}


def _drawn(nested: Sequence[Standing], tables: Mapping[Table, int]) -> dict[str, int]:
    """The numbers of the tables to draw, by path: of loops that look the same beside one another only the first."""
    chosen: dict[tuple[str, int], str] = {}
    for loop in nested:
        if loop.table is not None and loop.table in tables:
            chosen.setdefault((loop.path.rpartition("/")[0], tables[loop.table]), loop.path)
    return {path: number for (_, number), path in list(chosen.items())[:DRAWN]}


def _entry(loop: Standing, drawn: Mapping[str, int]) -> dict[str, Any]:
    return {
        "path": mended(loop.path),
        "input": mended(loop.input),
        "phase": mended(loop.phase or ""),
        "arrows": arrows_of(loop),
        "times": list(loop.arrows.values()),
        "latest": latest_of(loop),
        "running": loop.running,
        "ended": loop.ended.replace("_", " "),
        "table": drawn.get(loop.path, -1),
    }


def graph_status(graphs: Sequence[tuple[str, Told]]) -> list[dict[str, Any]]:
    """The call graphs as the page gets them, without their drawings."""
    return [
        {
            "path": mended(path),
            "name": graph_name(path),
            "heading": graph.heading,
            "notes": graph.notes,
            "more": graph.more,
            "calls": [list(dress) for dress in graph.dresses],
        }
        for path, graph in graphs
    ]


def graph_name(path: str) -> str:
    """What a call graph is called."""
    return f"Call graph of {mended(path)}" if path else "Call graph"


def arrows_of(loop: Standing) -> list[list[str]]:
    """The arrows the loop has taken, in the order they were first taken."""
    return [[mended(name) for name in arrow] for arrow in loop.arrows]


def latest_of(loop: Standing) -> int:
    """Which of the arrows was taken last; -1 where none was."""
    return list(loop.arrows).index(loop.latest) if loop.latest is not None else -1


def breadcrumb(phase: str, nested: Sequence[Mapping[str, Any]]) -> str:
    """The outermost loop's phase and those of the loops that run in it, in one line: `executing > worker: thinking`.

    Loops beside one another are told with a comma between them.
    """
    told, above = phase, ""
    for entry in nested:
        if entry["running"]:
            inside = not above or entry["path"].startswith(f"{above}/")
            told += f"{' > ' if inside else ', '}{entry['path']}: {entry['phase']}"
            above = entry["path"]
    return told
