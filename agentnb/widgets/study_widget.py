"""The panel of a study: a table of its runs, and the sums of its arms.

The sums are a trait, which a reloaded page finds again. The rows are messages: a page says up to which change it has
them, and gets those that have changed since, in batches. While the study runs, both are updated `RATE` times a second.

A row opens the panel of its run inside this one, with the messages of the run's panel inside messages of this one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import anywidget
import traitlets

from agentnb.core.errors import AlreadyDecided, UsageError
from agentnb.run import Pending, Recording, Snapshot, replay
from agentnb.run import host as hosting
from agentnb.run.approvals.decisions import decided_by_person
from agentnb.run.headless import note_page
from agentnb.run.host import call_in
from agentnb.studies import Resampling, Study, StudyRun
from agentnb.widgets import comms
from agentnb.widgets.handlers import (
    Message,
    answer_to,
    check_is_known,
    decide_each,
    decision_in,
    late,
    measured_seconds,
    question_key,
)
from agentnb.widgets.page_source import LOADER, PageSource, page_source, reference, release
from agentnb.widgets.static.study import plain_study, static_study
from agentnb.widgets.ticker import TICKER
from agentnb.widgets.views.compare import compared
from agentnb.widgets.views.inbox import Inbox
from agentnb.widgets.views.population import Population
from agentnb.widgets.views.questions import shown_arguments
from agentnb.widgets.views.rows import FULL_LIMIT, full_text
from agentnb.widgets.views.steps import Steps
from agentnb.widgets.widget import InnerPanel

RATE = 4
"""The updates of a page per second while the study runs."""
BATCH = 96 * 1024
"""The number of characters of the rows in one message: the page takes them in a task of some milliseconds."""
ASKED_WITHIN = 1.0
"""The seconds in which a page asks for the rows. They are sent then, or after this time."""
OPENED = 8
"""The maximum number of runs whose panels are kept open inside this one."""

RECORDED, STRIP = "recorded", "strip"
"""The ids of the run of a resampling: of its panel, and of its strip alone."""
STUDY_PARTS = ("runs", "inbox")
"""The parts of the panel of a study."""
IN_STUDY = "study "
"""Before what a decision is remembered for, if that is for all runs of the study: `study tool`, `study arguments`."""

logger = logging.getLogger("agentnb")


class StudyPanel(anywidget.AnyWidget):
    """The panel of a study. `close()` ends the panel, not the study."""

    _esm = LOADER

    source = traitlets.Instance(PageSource, allow_none=True).tag(sync=True, to_json=reference)
    key = traitlets.Unicode().tag(sync=True)
    study = traitlets.Dict().tag(sync=True)  # its sums, and those of its arms
    status = traitlets.Dict().tag(sync=True)  # what the panel of a run needs to know of what it is inside
    parts = traitlets.List(traitlets.Unicode()).tag(sync=True)
    pending: traitlets.List[Any] = traitlets.List().tag(sync=True)
    decisions = traitlets.Dict().tag(sync=True)

    def __init__(self, study: Study, *, parts: Sequence[str] = STUDY_PARTS) -> None:
        self.of = study
        self.population = Population(study)
        self.inbox = Inbox(self.population, self.population.name_of)
        self.steps = Steps(study, self._wake) if isinstance(study, Resampling) else None
        self._sent = 0  # the number of the last change that was sent
        self._sends_from = time.monotonic() + ASKED_WITHIN
        self._lock = threading.Lock()
        self._closing = threading.RLock()
        self._is_closed = False
        self._due = 0.0  # the next update
        self._is_timed = False
        self._pages: set[str] = set()
        self._closes_unseen = False
        self._opened: dict[str, InnerPanel] = {}
        key = uuid.uuid4().hex
        self.population.follow()
        super().__init__(source=page_source(key), key=key, parts=list(parts), **self._now())
        self._own_layout = self.layout  # ipywidgets leaves it open when the widget is closed
        comms.opened(self.model_id, f"study {study.name}")
        self._answers: dict[str, tuple[str, Callable[[Message], dict[str, Any]]]] = {
            "control": ("done", self._drive),
            "open": ("open", self._open),
            "compare": ("compare", self._compare),
            "decision": ("decided", self._decide),
            "undo": ("done", self._undo),
            "forget": ("done", self._forget),
            "show": ("shown", self._show),
            "search": ("found", self._search),
        }
        self._handlers = {
            "sync": lambda message: self._rewind(int(message.get("have") or 0)),
            "ping": lambda message: self.send({"type": "pong", "token": message.get("token"), "now": time.time()}),
            "views": self._note_views,
            "inside": self._receive_inside,
        }
        self.on_msg(self._receive)
        self._unwatch = study.watch(self._wake)
        TICKER.add(self)
        if not self.population.is_read:
            threading.Thread(target=self._read, name="agentnb study", daemon=True).start()
        self._wake()

    # -- sending --------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Update the pages, but not more often than `RATE` times a second. Safe to call from any thread."""
        wait = self._due - time.monotonic()
        if wait <= 0:
            TICKER.wake(self)
        elif not self._is_timed:
            self._is_timed = True
            call_in(hosting.host.loop, partial(self._wake_after, wait))

    def _wake_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._wake_now)

    def _wake_now(self) -> None:
        self._is_timed = False
        TICKER.wake(self)

    def _read(self) -> None:
        try:
            self.population.read(self._wake)
        except Exception:
            # The thread has no caller. The runs that were not read have a row without figures.
            logger.exception("The runs of the study %s could not be read", self.of.name)

    def _rewind(self, have: int) -> None:
        """Send the rows that have changed since this change again: a page lacks them."""
        with self._lock:
            self._sent = max(0, min(self._sent, have))
        self._due = self._sends_from = 0.0
        self._wake()

    def flush(self) -> bool:
        """Send the rows that have changed, one batch, and the sums. Return True if there is more to send."""
        if time.monotonic() < self._sends_from:
            return True
        self._due = time.monotonic() + 1 / RATE
        more = self.population.follow()
        with self._lock:
            before = self._sent
        rows, reached = self.population.changes(before, BATCH)
        if rows:
            self.send({"type": "population", "after": before, "change": reached, "rows": f"[{','.join(rows)}]"})
            with self._lock:
                if self._sent == before:  # otherwise a page has asked for others meanwhile
                    self._sent = reached
            more = True
        if not more:
            if self.steps is not None:
                self.steps.follow()
            with self._closing:  # a value that is set after the close would stay in the notebook
                if not self._is_closed:
                    with self.hold_sync():
                        for name, value in self._now().items():
                            setattr(self, name, value)
            if self.of.is_running:
                self._wake()  # its runs make events between two changes of their status
        return more

    def _now(self) -> dict[str, Any]:
        head = self.population.head() | {"read": self.population.is_read}
        if self.steps is not None:
            head["steps"] = self.steps.data
        asked = self.inbox.data()
        status = {"run": head["name"], "id": f"study {head['name']}", "over": not self.of.is_running}
        status["waiting"] = asked["waiting"]
        return {"study": head, "status": status, "pending": asked["pending"], "decisions": asked["decisions"]}

    # -- receiving ------------------------------------------------------------------------------------------------

    def _receive(self, _: Any, content: Any, buffers: Any) -> None:
        comms.message_received(self.model_id)
        if not isinstance(content, dict):
            return
        note_page()
        type = str(content.get("type"))
        if type == "search":  # it takes a while, in which the kernel has other messages to receive
            act = partial(copy_context().run, self._answer, type, content)
            threading.Thread(target=act, name="agentnb search", daemon=True).start()
        elif type in self._answers:
            self._answer(type, content)
        elif type in self._handlers:
            self._handlers[type](content)

    def _answer(self, type: str, message: Message) -> None:
        """Answer a message with the same token. An error is part of the answer."""
        name, act = self._answers[type]
        self.send(answer_to(name, message, act, f"the study {self.of.name}"))
        self._due = 0.0
        self._wake()

    def _drive(self, message: Message) -> dict[str, Any]:
        """Start the study, continue it, ask its failed runs again, or cancel it."""
        if message.get("action") == "Cancel":
            self.of.cancel("cancelled in the panel")
        else:
            self.of.start(retry_failed=message.get("action") == "Retry failed")
        return {}

    def _run(self, number: Any) -> StudyRun:
        try:
            return self.of.runs[int(number)]
        except (ValueError, IndexError):
            raise UsageError(f"The study has no run {number!r}.") from None

    def _open(self, message: Message) -> dict[str, Any]:
        """Make the panel of a run inside this one, unless there is one, and return its state for the page.

        The run of a resampling has two ids: RECORDED is its panel, STRIP its strip alone, to which bars are drawn.
        """
        id = message.get("id")
        if self.steps is not None and id in (RECORDED, STRIP):
            if id not in self._opened:
                self._opened[id] = self._recorded(["timeline"] if id == STRIP else None)
            inner = self._opened[id]
        else:
            one = self._run(id)
            known = self._opened.pop(one.name, None)
            is_same = known is not None and (one.run is None or known.run is one.run)
            inner = known if known is not None and is_same else InnerPanel(_to_open(one), self.send)
            self._opened[one.name] = inner
        for name in [name for name in self._opened if name != STRIP][:-OPENED]:
            self._opened.pop(name).close()
        return {"inside": inner.model_id, "state": inner.state_for_page()}

    def _recorded(self, parts: Sequence[str] | None) -> InnerPanel:
        """Return a panel of a replay of the run that is drawn, at its end."""
        assert isinstance(self.of, Resampling)
        shown = replay(self.of.recording)
        shown.to(len(shown.recording) - 1)
        return InnerPanel(shown, self.send, parts=parts)

    def _compare(self, message: Message) -> dict[str, Any]:
        """Return the comparison of two runs."""
        numbers = str(message.get("id")).split()
        if len(numbers) != 2:
            raise UsageError("Select two runs to compare.")
        left, right = map(self._run, numbers)
        names = self._name(left), self._name(right)
        return {"compared": compared(_events(left), _events(right), names)}

    def _search(self, message: Message) -> dict[str, Any]:
        """Return the numbers of the runs in which a text was said."""
        text = str(message.get("text") or "").strip()
        return {"runs": self.population.saying(text) if text else []}

    def _name(self, one: StudyRun) -> str:
        return self.population.name_of(self.population.lines[self.of.runs.index(one)])

    # -- questions ------------------------------------------------------------------------------------------------

    def _decide(self, message: Message) -> dict[str, Any]:
        """Apply the decision of a message, or each of its decisions."""
        waiting = self.inbox.waiting()
        if "decisions" in message:
            return decide_each(message["decisions"], lambda one: self._apply(one, waiting, several=True), waiting)
        self._apply(message, waiting)
        return {}

    def _apply(
        self, message: Message, waiting: Mapping[Any, tuple[StudyRun, Pending]], *, several: bool = False
    ) -> None:
        _, item = self._find(message, waiting)
        if several:
            check_is_known(message, item)
        if message.get("digest", "") != item.shown:
            raise UsageError("The call has changed since it was shown. Check it and decide again.")
        method, arguments = decision_in(message, item)
        remember = str(message.get("remember") or "")
        if remember and method in ("approve", "reject"):
            arguments["remember"] = remember.removeprefix(IN_STUDY)
        everywhere = remember.startswith(IN_STUDY) and "remember" in arguments
        self.of.decide_as_person(item, method, arguments, seconds=measured_seconds(message), everywhere=everywhere)

    def _find(self, message: Message, waiting: Mapping[Any, tuple[StudyRun, Pending]]) -> tuple[StudyRun, Pending]:
        found = waiting.get(question_key(message))
        if found is None:
            one, path = self.inbox.place(message.get("run"), str(message.get("path", "")))
            raise late(message, _events(one) if one is not None else [], one.name if one is not None else "?", path)
        return found

    def _show(self, message: Message) -> dict[str, Any]:
        """Return the complete arguments of a waiting call."""
        try:
            _, item = self._find(message, self.inbox.waiting())
        except AlreadyDecided as error:
            return full_text(str(error))
        return {"text": "", **shown_arguments(item.arguments, FULL_LIMIT)}

    def _undo(self, message: Message) -> dict[str, Any]:
        """Withdraw the decision of the event in the message; without one, those about all calls not yet started."""
        events = self.inbox.undoable() if message.get("event") is None else [int(message["event"])]
        undone = 0
        for one, event in map(self.inbox.decided, events):
            if one.run is None:
                continue
            for item in one.run.decided:
                if item.event == event:
                    decided_by_person(one.run, None).undo(item)
                    undone += 1
        if not undone:
            raise UsageError("This can no longer be withdrawn: the call has started, or it was withdrawn already.")
        return {"note": f"{undone:,} withdrawn; {'it waits' if undone == 1 else 'they wait'} for a decision again."}

    def _forget(self, message: Message) -> dict[str, Any]:
        """Forget a rule of the study."""
        self.of.forget(int(message.get("event") or 0))
        return {"note": "Forgotten; later calls need a decision again, except in runs where it has decided already."}

    def _receive_inside(self, message: Message) -> None:
        for inner in list(self._opened.values()):
            if inner.model_id == message.get("id"):
                inner._receive(inner, message.get("content"), [])

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove the panel from every page."""
        if self.comm is not None:
            self._unwatch()
            TICKER.remove(self)
            for inner in self._opened.values():
                inner.close()
            comms.closed(self.model_id)
            # nbclient writes the last state of every widget into the notebook, also of closed ones.
            with self._closing, self.hold_sync():
                self._is_closed = True
                self.set_trait("_esm", "export default { render() {} };")
                self.source, self.study, self.status = None, {}, {}
                self.pending, self.decisions = [], {}
            release(self.key)
            self._own_layout.close()
        super().close()

    def close_unseen(self) -> None:
        """Close the panel as soon as no page shows it."""
        self._closes_unseen = True
        if not self._pages:
            self.close()

    def _note_views(self, message: Mapping[str, Any]) -> None:
        note = self._pages.add if message.get("count") else self._pages.discard
        note(str(message.get("page")))
        if self._closes_unseen:
            self.close_unseen()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: dict[str, Any] = {"text/plain": plain_study(self.of), "text/html": static_study(self.of)}
        widget = super()._repr_mimebundle_(**kwargs)
        return {**(widget[0] if widget is not None else {}), **bundle}, {}


def _to_open(one: StudyRun) -> Recording:
    """Return what the panel of a run of a study shows: the live run, or a replay of its recording at its end."""
    recording = one.recording
    if recording is None:
        raise UsageError(f"The run {one.name!r} has not started. {one.error or ''}".strip())
    if not isinstance(recording, Snapshot):
        return recording
    shown = replay(recording)
    shown.to(len(recording.events) - 1)
    return shown


def _events(one: StudyRun) -> list[Any]:
    recording = one.recording
    return list(recording.events) if recording is not None else []
