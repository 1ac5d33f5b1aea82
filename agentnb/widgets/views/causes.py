"""Causes: which event led to each event of a run, and which span each event is about.

An event does not name its cause: a call's end has the call's id, a message has the queue it waited in, and only the
order of the events says which request an answer belongs to. This module reads the events of a run once, in order, and
gives each event two numbers:

- its cause: the position of the event that led to it. From the end of a call the causes lead to its start, its
  decision, its approval request, and the answer that made the call.
- its span: a loop, a model request, a call (from its first event to its result) or a pause.

It also notes the event that a call had to wait for. A loop acts on the last event it received, so a call that starts
right after the end of another call has waited for that call.

Two numbers are kept for each event and a name for each span. Nothing here raises an error: in a recording that was
cut, causes are missing.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

from agentnb.core.events import Event

MISSING = -1
"""The cause of an event that has none, and the span of an event that is about none."""


class _Call:
    """A call: its span, and the position of the last event about it."""

    __slots__ = ("ended", "last", "name", "span")

    def __init__(self, name: str, last: int) -> None:
        self.name, self.last, self.span, self.ended = name, last, MISSING, False


class _Loop:
    """The state of one loop. `span`, `request` and `pause` are numbers of spans, the others are positions of events.

    asked: the event that led to the current request. latest: the last event that the loop has received.
    freed: the last answer, result or resumption, after which waiting calls may start.
    """

    __slots__ = ("asked", "calls", "freed", "latest", "pause", "queues", "request", "span")

    def __init__(self, span: int, position: int) -> None:
        self.span, self.latest, self.asked = span, position, position
        self.freed = self.request = self.pause = MISSING
        self.calls: dict[str, _Call] = {}
        self.queues: dict[str, deque[int]] = {}


class Causes:
    """The causes and span numbers of a run's events. Call `follow` with the events, then read the attributes.

    causes, spans: a position and a number for each event. names, firsts: the name and the first event of each span.
    awaited: the event that a call's event had to wait for, by position. messages: by the path of a loop, the events
    that hold a message of its history (messages, answers, results).
    """

    def __init__(self) -> None:
        self.causes: array[int] = array("q")
        self.spans: array[int] = array("q")
        self.firsts: array[int] = array("q")
        self.names: list[str] = []
        self.awaited: dict[int, int] = {}
        self.messages: dict[str, array[int]] = {}
        self._lock = threading.Lock()
        self._loops: dict[str, _Loop] = {}

    def follow(self, events: Sequence[Event], until: int) -> None:
        """Read the events that are new, up to the position `until`. Safe to call from any thread."""
        with self._lock:
            seen = len(self.spans)
            for position, event in enumerate(events[seen:until], seen):
                cause, span = self._read(position, event)
                self.causes.append(cause)
                self.spans.append(span)

    def begun(self, path: str) -> int:
        """Return the position of the first event of the loop that ran last at `path`, or -1."""
        loop = self._loops.get(path)
        return self.firsts[loop.span] if loop is not None and loop.span >= 0 else MISSING

    def name_of(self, position: int) -> str:
        """Return the name of the span that an event is about; empty if there is none."""
        span = self.spans[position] if position < len(self.spans) else MISSING
        return self.names[span] if span >= 0 else ""

    def _read(self, position: int, event: Any) -> tuple[int, int]:
        """Return the cause and the span of an event, and note what later events need."""
        loop = self._loops.get(event.path)
        if loop is None:
            loop = self._loops[event.path] = _Loop(MISSING, MISSING)
        match event.type:
            # A loop starts. A nested one was started by the call of its parent.
            case "run_start":
                parent = self._loops.get(event.path.rpartition("/")[0]) if event.path else None
                call = parent.calls.get(event.call) if parent is not None else None
                name = event.path.rpartition("/")[2] or event.name
                loop = self._loops[event.path] = _Loop(self._open(position, name), position)
                loop.queues = {queue: deque([position] * len(queued)) for queue, queued in event.queued.items()}
                return (call.last if call is not None else MISSING), loop.span

            # A message enters the history: it comes from its queue, or from the event before it.
            case "message":
                self._note_message(position, event)
                queue = loop.queues.get(event.origin)
                cause = queue.popleft() if queue else loop.latest
                loop.latest = position
                return cause, MISSING
            case "queued":
                loop.queues.setdefault(event.queue, deque()).append(position)
                return MISSING, MISSING
            case "withdrawn":
                queued = list(loop.queues.get(event.queue, ()))
                end = event.first + event.count
                loop.queues[event.queue] = deque([*queued[: event.first], *queued[end:]])
                return next(iter(queued[event.first : end]), MISSING), MISSING

            # A request to the model. Ids of calls are unique within one request only, so calls that have ended are
            # forgotten; a second attempt at the same request keeps them.
            case "model_start":
                name = f"turn {event.turn}"
                if event.attempt > 1:
                    name += f", attempt {event.attempt}"
                else:
                    loop.calls = {id: call for id, call in loop.calls.items() if not call.ended}
                loop.request, loop.asked = self._open(position, name), position
                return loop.latest, loop.request
            case "model_end" | "model_error":
                message = event.message if event.type == "model_end" else event.answer
                if message is not None:
                    self._note_message(position, event)
                for made in message.tool_calls if event.type == "model_end" else ():
                    if made.id not in loop.calls:
                        loop.calls[made.id] = _Call(made.name, position)
                span, loop.request = loop.request, MISSING
                loop.latest = loop.freed = position
                return loop.asked, span

            # A call, from its proposal to its result.
            case "call_proposed":
                cause = loop.latest if event.hidden or loop.request < 0 else loop.asked
                call = loop.calls[event.call.id] = _Call(event.call.name, cause)
                return self._step(call, position)
            case "approval_request" | "approval_decision" | "call_start" | "call_end":
                call = loop.calls.get(event.call_id)
                if call is None:
                    call = loop.calls[event.call_id] = _Call(event.name or event.call_id, loop.latest)
                if event.type in ("approval_request", "call_start") and loop.freed > call.last:
                    self.awaited[position] = loop.freed
                if event.type == "call_end":
                    self._note_message(position, event)
                    call.ended = True
                    loop.latest = loop.freed = position
                return self._step(call, position)

            # A pause, and the end of a loop.
            case "run_paused":
                loop.pause = self._open(position, "paused")
                return loop.latest, loop.pause
            case "run_resumed":
                span, loop.pause = loop.pause, MISSING
                cause = self.firsts[span] if span >= 0 else loop.latest
                loop.latest = loop.freed = position
                return cause, span
            case "cancel":
                loop.latest = position
                return MISSING, MISSING
            case "run_end":
                if event.answer is not None:
                    self._note_message(position, event)
                return loop.latest, loop.span
            case _:
                return loop.latest, MISSING

    def _open(self, position: int, name: str) -> int:
        """Return the number of a new span that begins with this event."""
        self.firsts.append(position)
        self.names.append(name)
        return len(self.names) - 1

    def _step(self, call: _Call, position: int) -> tuple[int, int]:
        """Make this event the last one of a call. Return its cause, which is the previous last event, and its span."""
        if call.span < 0:
            call.span = self._open(position, call.name)
        cause, call.last = call.last, position
        return cause, call.span

    def _note_message(self, position: int, event: Event) -> None:
        self.messages.setdefault(event.path, array("q")).append(position)
