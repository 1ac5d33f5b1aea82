"""The panel: a run, live in a notebook.

Small things that a reloaded page or a second tab must find again are traits: where the run stands, what waits for a
person, the diagram, the last rows. Everything else is a custom message: the batches of events (`feed`), and what the
person does (`clicks`). A decision travels as one message, because a trait that a person types into arrives late or
in part while a cell runs.

The page's side is in `page/`: plain modules and a style sheet, no build step and nothing from elsewhere.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any

import anywidget
import traitlets

from agentnb.core.errors import UsageError
from agentnb.core.unicode import mended
from agentnb.run.headless import page_has_spoken
from agentnb.run.recording import Recording
from agentnb.widgets import comms
from agentnb.widgets.clicks import Clicks
from agentnb.widgets.drawings.diagram import Table, diagram, table_of
from agentnb.widgets.drawings.graph import draw
from agentnb.widgets.feed import Feed
from agentnb.widgets.frozen.panel import SMALL, plain_text, static_html
from agentnb.widgets.page import packed_module
from agentnb.widgets.views.decisions import Decisions
from agentnb.widgets.views.loops import Loops, graph_status
from agentnb.widgets.views.rows import TAIL, tail
from agentnb.widgets.views.said import Conversation, tell
from agentnb.widgets.views.standing import Waiting, breakpoints, status

PARTS = ("controls", "approvals", "graph", "events", "timeline", "messages", "progress", "usage", "diagram")
SAID = 400
"""Messages that a page gets at most."""
TAIL_SECONDS = 2.0
"""How often that trait is brought up to date while the run goes on."""
GRAPH_PAUSE = 10
"""The call graphs are let alone ten times as long as it took to read them: a request may make thousands of calls."""


def parts_of(run: Recording, parts: Sequence[str] | None) -> tuple[str, ...]:
    """The parts that are asked for; by default all that a panel of this run has. Raises UsageError for others."""
    if not isinstance(run, Recording):
        raise UsageError(f"A panel shows a run, not {run!r:.80}. agentnb.replay(...) makes one of a snapshot.")
    own = run.parts or PARTS  # a run that can only be looked at has no buttons
    if parts is None:
        return own
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise UsageError(f"parts= takes a list, also of a single one: [{parts!r}].")
    known = (*PARTS, *(name for name in own if name not in PARTS))
    if unknown := [name for name in parts if name not in known]:
        raise UsageError(f"A panel has no part {unknown[0]!r}; the parts are {', '.join(known)}.")
    return tuple(parts)


class Panel(anywidget.AnyWidget):
    """A run, live, in the `parts` that `PARTS` names; all of them by default.

    Events, timeline and messages share a place, behind tabs. An unknown part raises UsageError. `close()` ends the
    panel, not the run.
    """

    _esm = packed_module()

    key = traitlets.Unicode().tag(sync=True)  # tells the page which views are of the same panel
    parts = traitlets.List(traitlets.Unicode()).tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    pending: traitlets.List[Any] = traitlets.List().tag(sync=True)
    tools = traitlets.Dict().tag(sync=True)
    decisions = traitlets.Dict().tag(sync=True)
    breakpoints = traitlets.Dict().tag(sync=True)
    phases = traitlets.List(traitlets.Unicode()).tag(sync=True)
    diagram = traitlets.Unicode().tag(sync=True)
    tables: traitlets.List[Any] = traitlets.List().tag(sync=True)  # of the nested loops: their phases and their drawing
    graphs: traitlets.List[Any] = traitlets.List().tag(sync=True)  # how the calls of each stand, which often changes
    drawings: traitlets.List[Any] = traitlets.List().tag(sync=True)  # of the same graphs: what of them seldom changes
    total = traitlets.Int().tag(sync=True)
    place: traitlets.List[int] = traitlets.List().tag(sync=True)  # a replay's: the events that have happened, its moves
    tail = traitlets.Unicode("[]").tag(sync=True)

    def __init__(self, run: Recording, *, parts: Sequence[str] | None = None) -> None:
        parts = parts_of(run, parts)
        self.run = run
        self._loops = Loops(run.loop, graphs="graph" in parts)
        self._waiting = Waiting()
        self._decisions = Decisions()
        self._drawing, self._leaving = threading.Lock(), threading.RLock()
        self._has_left = False
        self._to_draw = -1  # how many nested loops had been seen when the drawing was last begun
        self._told = -1
        self._tail_due = self._graphs_due = 0.0
        self._when_over: list[Callable[[], object]] = []
        self._pages: set[str] = set()  # those that show it
        self._closes_unseen = False
        super().__init__(
            key=uuid.uuid4().hex,
            parts=list(parts),
            phases=_names(table_of(run.loop.phases)),
            **self._now(),
            place=_place(run),
        )
        self._own_layout = self.layout  # ipywidgets leaves it open when the widget is closed
        comms.opened(self.model_id, str(run.id))
        self._clicks = Clicks(run, self.send, self._decisions)
        self._feed = Feed(run, self.send, self._settled, recorded=bool(self.place))
        self._stop_watching_driving = run.watch_driving(self._feed.wake)
        self._handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "sync": lambda message: self._feed.rewind(int(message.get("have") or 0)),
            "ping": lambda message: self.send({"type": "pong", "token": message.get("token"), "now": self.run.clock()}),
            **self._clicks.handlers,
            "said": self._tell_said,
            "views": self._note_views,
        }
        self.on_msg(self._receive)
        self._draw_in_background()

    def when_over(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the run has ended and the page has been sent everything; at once if that is so."""
        self._when_over.append(callback)
        self._feed.wake()

    def close(self) -> None:
        """Take the panel off every page and stop watching the run."""
        if self.comm is not None:
            self._stop_watching_driving()
            self._feed.close()
            comms.closed(self.model_id)
            self._leave_little()
            self._own_layout.close()
        super().close()

    def close_unseen(self) -> None:
        """Close the panel as soon as no page shows it."""
        self._closes_unseen = True
        if not self._pages:
            self.close()

    def _note_views(self, message: dict[str, Any]) -> None:
        """Note that a page has begun or ceased to show the panel."""
        note = self._pages.add if message.get("count") else self._pages.discard
        note(str(message.get("page")))
        if self._closes_unseen:
            self.close_unseen()

    def _leave_little(self) -> None:
        # nbclient writes the last state of every widget into the notebook, also of those that are closed.
        with self._leaving, self.hold_sync():
            self._has_left = True
            self.set_trait("_esm", "export default { render() {} };")
            self.tail, self.diagram, self.tables, self.graphs, self.drawings = "[]", "", [], [], []
            self.tools, self.pending, self.phases = {}, [], []
            self.decisions, self.breakpoints = {}, {}

    def _draw_in_background(self) -> None:
        """Draw the loops that have been seen since; the page goes by their numbers until then."""
        if "diagram" in self.parts and self._to_draw != len(self._loops.tables):
            # Importing matplotlib takes the better part of a second, and the panel need not wait for it.
            self._to_draw = len(self._loops.tables)
            drawing = copy_context().run
            threading.Thread(target=drawing, args=(self._draw,), name="agentnb diagram", daemon=True).start()

    def _draw(self) -> None:
        with self._drawing:
            self._tell(diagram=diagram(table_of(self.run.loop.phases)))
            for table in list(self._loops.tables)[len(self.tables) :]:
                self._tell(tables=[*self.tables, {"phases": _names(table), "diagram": diagram(table)}])

    def _tell(self, **now: Any) -> None:
        with self._leaving:  # what comes when it has left would stay in the notebook
            for name, value in now.items() if not self._has_left else ():
                setattr(self, name, value)

    def _now(self) -> dict[str, Any]:
        now: dict[str, Any] = {"status": status(self.run, self._loops)}
        now |= {"pending": self._waiting.questions(self.run), "tools": self._waiting.tools}
        now["decisions"] = self._decisions.tell(self.run)
        return {**now, "breakpoints": breakpoints(self.run, self._loops), **self._graphs_now()}

    def _graphs_now(self) -> dict[str, Any]:
        began = time.monotonic()
        if began < self._graphs_due:
            return {}
        graphs = self._loops.graphs()
        told = {"graphs": graph_status(graphs), "drawings": [draw(graph.shape) for _, graph in graphs]}
        self._graphs_due = began + GRAPH_PAUSE * (time.monotonic() - began)
        return told

    def _receive(self, _: Any, content: Any, buffers: Any) -> None:
        comms.heard(self.model_id)
        handler = self._handlers.get(str(content.get("type"))) if isinstance(content, dict) else None
        if handler is not None:
            page_has_spoken()
            handler(content)
            self._feed.wake()  # a pause that nothing was in flight for is no event, but the buttons change

    def _tell_said(self, message: dict[str, Any]) -> None:
        """Give the last messages of a loop, as its model is sent them; answered by `said`."""
        path, last = str(message.get("path") or ""), min(SAID, int(message.get("last") or SAID))
        begun = None if message.get("begun") is None else int(message["begun"])
        design = self._loops.design_at(path)
        conversation = Conversation(self.run, design, self._feed.spans.causes, path, begun=begun, reach=last)
        self.send({"type": "said", "token": message.get("token"), **tell(conversation, last)})

    def _settled(self, over: bool) -> None:
        now = self._now()
        if "graphs" not in now:
            self._feed.wake()
        with self.hold_sync():  # one message for all of them; traits that are the same as before are not sent
            # A replay's place last of all: the rest takes its time in a long recording, and somebody goes on meanwhile.
            self._tell(**now, place=_place(self.run))
            self._update_tail(over)
        self._draw_in_background()
        if over:
            callbacks, self._when_over = self._when_over, []
            for callback in callbacks:
                callback()

    def _update_tail(self, over: bool) -> None:
        total, now = len(self.run.events), time.monotonic()
        if total == self._told or (now < self._tail_due and not over and self.run.driven):
            return
        self._told, self._tail_due = total, now + TAIL_SECONDS
        self._tell(total=total, tail=tail(self.run.events[max(0, total - TAIL) : total]))

    def _ipython_display_(self) -> None:
        from agentnb.widgets.presenting import present_live  # it knows the panel

        present_live(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        page = static_html(self.run, self.diagram, SMALL)
        bundle: dict[str, Any] = {"text/plain": plain_text(self.run), "text/html": page}
        made = super()._repr_mimebundle_(**kwargs)
        if made is not None:
            bundle = {**made[0], **bundle}
        return bundle, {}


def _place(run: Recording) -> list[int]:
    return list(run.place or ())


def _names(table: Table) -> list[str]:
    return [mended(name) for name, _ in table]
