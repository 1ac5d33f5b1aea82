"""The panel: a run, live in a notebook, and its parts as widgets of their own.

Small values that a reloaded page or a second tab must find again are traits: the state of the run, the waiting
questions, the diagram, the last rows. Everything else is a custom message: the batches of events (`feed`) and the
commands of a person (`handlers`). A decision is sent as one message, because a trait that a person types into arrives
late or in part while a cell runs.

The page's side is in `page/`: plain modules and a style sheet, without a build step or anything from the network.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import anywidget
import traitlets

from agentnb.core.errors import UsageError
from agentnb.core.json import repair_text
from agentnb.run import Recording
from agentnb.run.headless import note_page
from agentnb.widgets import comms
from agentnb.widgets.branching import BranchHandlers
from agentnb.widgets.display import display_live
from agentnb.widgets.drawings.diagram import diagram, table_of
from agentnb.widgets.drawings.graph import draw
from agentnb.widgets.feed import Feed
from agentnb.widgets.handlers import CommandHandlers, snapshots_of
from agentnb.widgets.page_source import LOADER, PageSource, page_source, reference, release
from agentnb.widgets.static.panel import plain_text, static_html
from agentnb.widgets.views.about import QUESTION, input_text, tools_offered
from agentnb.widgets.views.branches import Branches
from agentnb.widgets.views.causes import Causes
from agentnb.widgets.views.decisions import DecisionLog
from agentnb.widgets.views.loops import Loops, diagrams_of, graph_status, phases_of
from agentnb.widgets.views.questions import Questions
from agentnb.widgets.views.rows import TAIL, tail
from agentnb.widgets.views.status import breakpoints, status
from agentnb.widgets.views.transcript import Transcript, transcript_data

PARTS = (
    *("controls", "approvals", "graph", "trace", "events", "timeline", "messages", "progress", "usage", "diagram"),
    "detail",
)
MESSAGES = 400
"""The maximum number of messages of a transcript that a page gets."""
TAIL_SECONDS = 2.0
"""The interval at which the trait with the last rows is updated while the run is driven."""
GRAPH_PAUSE = 10
"""The pause between two readings of the call graphs, as a multiple of the time that a reading takes: a request may make
thousands of calls."""


def parts_of(run: Recording, parts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested parts; by default all that a panel of this run has. Raises UsageError for unknown parts."""
    if not isinstance(run, Recording):
        raise UsageError(f"run must be a run, got {run!r:.80}. agentnb.replay(snapshot) makes a run of a snapshot.")
    own = run.parts or PARTS  # a replay has other parts than a run
    if parts is None:
        return own
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise UsageError(f"parts must be a list, also for a single part: [{parts!r}].")
    known = (*PARTS, *(name for name in own if name not in PARTS))
    if unknown := [name for name in parts if name not in known]:
        raise UsageError(f"A panel has no part {unknown[0]!r}. Its parts: {', '.join(known)}.")
    return tuple(parts)


class Panel(anywidget.AnyWidget):
    """The live panel of a run, with all parts or those given (see `PARTS`).

    Trace, events and messages share a space, with tabs. `close()` ends the panel, not the run.

    Raises UsageError for an unknown part.
    """

    _esm = LOADER

    # The widget that holds the page's module.
    source = traitlets.Instance(PageSource, allow_none=True).tag(sync=True, to_json=reference)
    key = traitlets.Unicode().tag(sync=True)  # the same for all views of one panel
    parts = traitlets.List(traitlets.Unicode()).tag(sync=True)
    question = traitlets.Unicode().tag(sync=True)  # what the run was started with
    offered: traitlets.List[Any] = traitlets.List().tag(sync=True)  # the tools of a run that has not begun
    status = traitlets.Dict().tag(sync=True)
    pending: traitlets.List[Any] = traitlets.List().tag(sync=True)
    tools = traitlets.Dict().tag(sync=True)
    decisions = traitlets.Dict().tag(sync=True)
    breakpoints = traitlets.Dict().tag(sync=True)
    phases = traitlets.List(traitlets.Unicode()).tag(sync=True)
    diagram = traitlets.Unicode().tag(sync=True)
    # Of nested loops: their phases and their drawing.
    tables: traitlets.List[Any] = traitlets.List().tag(sync=True)
    # Of call graphs: the status of the calls, which changes often, and the drawing, which does not.
    graphs: traitlets.List[Any] = traitlets.List().tag(sync=True)
    drawings: traitlets.List[Any] = traitlets.List().tag(sync=True)
    total = traitlets.Int().tag(sync=True)
    # Of a replay: its position, and how often it has moved.
    place: traitlets.List[int] = traitlets.List().tag(sync=True)
    tail = traitlets.Unicode("[]").tag(sync=True)
    branches: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, run: Recording, *, parts: Sequence[str] | None = None) -> None:
        parts = parts_of(run, parts)
        self.run = run
        self._loops = Loops(run.loop, graphs="graph" in parts)
        self._questions = Questions()
        self._decisions = DecisionLog()
        self._closing = threading.RLock()
        self._is_closed = False
        self._tail_end = -1  # the number of events when the tail was last updated
        self._tail_due = self._graphs_due = 0.0
        self._when_over: list[Callable[[], object]] = []
        self._pages: set[str] = set()  # the pages that show the panel
        self._closes_unseen = False
        self._opened: dict[str, InnerPanel] = {}  # of branches and of the replay, inside this one, by run
        key = uuid.uuid4().hex
        super().__init__(
            source=page_source(key),
            key=key,
            parts=list(parts),
            question=repair_text(input_text(run))[:QUESTION],
            offered=tools_offered(run) if not len(run.recording) else [],
            phases=phases_of(table_of(run.loop.phases)),
            diagram=diagram(table_of(run.loop.phases)) if "diagram" in parts else "",
            **self._now(),
            place=_place(run),
        )
        self._own_layout = self.layout  # ipywidgets leaves it open when the widget is closed
        comms.opened(self.model_id, str(run.id))
        self._commands = CommandHandlers(run, self.send)
        self._feed = Feed(run, self.send, self._settled, recorded=bool(self.place))
        self._branches = Branches(run, self._feed.wake)
        self._branching = BranchHandlers(run, self._branches, self._feed.trace, self._open_inside)
        self._handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "sync": lambda message: self._feed.rewind(int(message.get("have") or 0)),
            "ping": lambda message: self.send({"type": "pong", "token": message.get("token"), "now": self.run.clock()}),
            **self._commands.handlers,
            "messages": self._send_messages,
            "views": self._note_views,
            "inside": self._receive_inside,
            **{name: partial(self._respond, name) for name in self._branching.handlers},
        }
        self.on_msg(self._receive)
        self._stop_watching_driving = run.watch_driving(self._feed.wake)
        self._feed.start()  # last: from here on, the ticker's thread uses the panel

    def when_over(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the run has ended and all events were sent to the page, also if that is so already."""
        self._when_over.append(callback)
        self._feed.wake()

    def close(self) -> None:
        """Remove the panel from every page and stop watching the run."""
        if self.comm is not None:
            self._stop_watching_driving()
            self._branches.close()
            for opened in self._opened.values():
                opened.close()
            self._feed.close()
            comms.closed(self.model_id)
            self._shrink()
            release(self.key)
            self._own_layout.close()
        super().close()

    @property
    def is_shown(self) -> bool:
        """True if a page shows the panel."""
        return bool(self._pages)

    def close_unseen(self) -> None:
        """Close the panel as soon as no page shows it."""
        self._closes_unseen = True
        if not self._pages:
            self.close()

    def _note_views(self, message: dict[str, Any]) -> None:
        """Note that a page has started or stopped to show the panel."""
        note = self._pages.add if message.get("count") else self._pages.discard
        note(str(message.get("page")))
        if self._closes_unseen:
            self.close_unseen()

    def _shrink(self) -> None:
        # nbclient writes the last state of every widget into the notebook, also of closed ones.
        with self._closing, self.hold_sync():
            self._is_closed = True
            self.set_trait("_esm", "export default { render() {} };")
            self.source = None
            self.tail, self.diagram, self.tables, self.graphs, self.drawings = "[]", "", [], [], []
            self.tools, self.pending, self.phases, self.question = {}, [], [], ""
            self.offered = []
            self.decisions, self.breakpoints, self.branches = {}, {}, []

    def _update(self, **now: Any) -> None:
        with self._closing:  # a value that is set after the close would stay in the notebook
            for name, value in now.items() if not self._is_closed else ():
                setattr(self, name, value)

    def _now(self) -> dict[str, Any]:
        """Return the current values of the traits that change with the run."""
        now: dict[str, Any] = {"status": status(self.run, self._loops) | {"snapshots": snapshots_of(self.run)}}
        now |= {"pending": self._questions.waiting(self.run), "tools": self._questions.tools}
        now["decisions"] = self._decisions.data(self.run)
        now["breakpoints"] = breakpoints(self.run, self._loops)

        # The call graphs, unless they were read a short time ago.
        started = time.monotonic()
        if started >= self._graphs_due:
            graphs = self._loops.graphs()
            now |= {"graphs": graph_status(graphs), "drawings": [draw(graph.shape) for _, graph in graphs]}
            self._graphs_due = started + GRAPH_PAUSE * (time.monotonic() - started)
        return now

    def _receive(self, _: Any, content: Any, buffers: Any) -> None:
        comms.message_received(self.model_id)
        handler = self._handlers.get(str(content.get("type"))) if isinstance(content, dict) else None
        if handler is not None:
            note_page()
            handler(content)
            self._feed.wake()  # a pause with nothing in flight is not an event, but the buttons change

    def _respond(self, name: str, message: dict[str, Any]) -> None:
        """Answer a message about branches."""
        self._commands.respond(name, message, self._branching.handlers[name])

    def _open_inside(self, run: Recording) -> dict[str, Any]:
        """Make a panel inside this one, unless there is one, and return its state for the page.

        run: a branch, or a replay of the run of this panel, which has the same id.
        """
        inner = self._opened.get(run.id)
        if inner is None:
            inner = self._opened[run.id] = InnerPanel(run, self.send)
        return {"inside": inner.model_id, "state": inner.state_for_page()}

    def _receive_inside(self, message: dict[str, Any]) -> None:
        """Pass a message on to a panel inside this one."""
        for inner in self._opened.values():
            if inner.model_id == message.get("id"):
                inner._receive(inner, message.get("content"), [])

    def _send_messages(self, message: dict[str, Any]) -> None:
        """Send the last messages of a loop, as its next model request would send them: now, or at a position."""
        path, last = str(message.get("path") or ""), min(MESSAGES, int(message.get("last") or MESSAGES))
        begun = None if message.get("begun") is None else int(message["begun"])
        run, causes = self.run, self._feed.trace.spans.causes
        if (position := message.get("position")) is not None:  # the page shows an earlier moment
            run, causes = run.at(int(position) - 1), Causes()
        transcript = Transcript(run, self._loops.design_at(path), causes, path, begun=begun, reach=last)
        self.send({"type": "messages", "token": message.get("token"), **transcript_data(transcript, last)})

    def _settled(self, over: bool) -> None:
        """Update the traits after all events were sent to the page."""
        now = self._now()
        now["branches"] = self._branches.data()
        if "graphs" not in now or self._branches.is_due:
            self._feed.wake()
        if "diagram" in self.parts:
            now["tables"] = diagrams_of(self._loops)
        with self.hold_sync():  # one message for all of them; traits that have not changed are not sent
            # A replay's place is last: in a long recording the rest takes time, and the replay may move meanwhile.
            self._update(**now, place=_place(self.run))
            self._update_tail(over)
        if over:
            callbacks, self._when_over = self._when_over, []
            for callback in callbacks:
                callback()

    def _update_tail(self, over: bool) -> None:
        total, now = len(self.run.events), time.monotonic()
        if total == self._tail_end or (now < self._tail_due and not over and self.run.driven):
            return
        self._tail_end, self._tail_due = total, now + TAIL_SECONDS
        self._update(total=total, tail=tail(self.run.events[max(0, total - TAIL) : total]))

    def _ipython_display_(self) -> None:
        display_live(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        page = static_html(self.run)
        bundle: dict[str, Any] = {"text/plain": plain_text(self.run), "text/html": page}
        widget = super()._repr_mimebundle_(**kwargs)
        return {**(widget[0] if widget is not None else {}), **bundle}, {}


def _place(run: Recording) -> list[int]:
    return list(run.place or ())


class InnerPanel(Panel):
    """The panel of a branch or of a replay inside the panel of its run, whose comm carries its messages.

    So it needs nothing of a front end that the parent's panel does not need.
    """

    comm: Any

    def __init__(
        self, run: Recording, send: Callable[[dict[str, Any]], object], *, parts: Sequence[str] | None = None
    ) -> None:
        self._send_by_parent = send
        super().__init__(run, parts=parts)

    def open(self) -> None:
        """Open the connection to the page, by the parent's panel."""
        if self.comm is None:
            self.comm = InnerComm(self._send_by_parent)

    def state_for_page(self) -> dict[str, Any]:
        """Return the values of the traits that the page's model has."""
        return _without_own(self.get_state())


class InnerComm:
    """The comm of an inner panel: its messages are messages of another panel (`send`)."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self.comm_id = uuid.uuid4().hex
        self._send_by_parent = send

    def send(self, data: dict[str, Any], buffers: Any = None) -> None:
        """Send a change of traits, or a custom message."""
        if "state" in data:
            data = {**data, "state": _without_own(data["state"])}
        self._send_by_parent({"type": "inside", "id": self.comm_id, "data": data})

    def on_msg(self, callback: Callable[[Any], object]) -> None:
        """Do nothing: the parent's panel receives the messages."""

    def close(self, *args: Any, **options: Any) -> None:
        """Do nothing: the page's model ends with that of the parent's panel."""


def _without_own(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a widget without the fields that only a front end's model needs."""
    names = ("layout", "tabbable", "tooltip", "source")
    return {name: value for name, value in state.items() if not name.startswith("_") and name not in names}


class Part(Panel):
    """One part of a run's panel, alone."""

    part: ClassVar[str]

    def __init__(self, run: Recording) -> None:
        super().__init__(run, parts=(self.part,))


class Trace(Part):
    """A run as a tree of its loops, model requests and calls, each with its result, its time and its bar to scale."""

    part = "trace"


class EventStream(Part):
    """The part of the panel that shows the events of a run.

    `agentnb.loops.session_loop.EventStream` is another class: the stream of a session's events.
    """

    part = "events"


class Timeline(Part):
    """The strip of a run: when its loops, models, calls and people were busy, and its slider."""

    part = "timeline"


class Messages(Part):
    """The messages that are sent to the models of a run, and the answers."""

    part = "messages"


class Progress(Part):
    """The progress of the running calls of a run."""

    part = "progress"


class Usage(Part):
    """The tokens, cost and time of a run, in total and by turn."""

    part = "usage"


class StateDiagram(Part):
    """The state diagram of a run."""

    part = "diagram"


class Detail(Part):
    """What the chosen event of a run is about, in full; while none is chosen, what runs or waits now."""

    part = "detail"


class CallGraph(Part):
    """The call graph of a run, for loops that have one."""

    part = "graph"


class Controls(Part):
    """The buttons and the message box of a run."""

    part = "controls"


class Approvals(Part):
    """The calls of a run that wait for a person."""

    part = "approvals"
