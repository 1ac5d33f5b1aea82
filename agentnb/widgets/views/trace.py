"""What led to each event, and which thing it is about: the threads through a run.

The events say it, but not in one place: a call's end has the call's id, a message only the queue it waited in, and that
an answer belongs to the request before it is said by nothing but their order. Here the events of a run are read once,
in order, and each gets two numbers. Its cause is the position of the event that led to it, -1 where nothing did: from
a call's end one comes to its start, its decision, its question, and the answer that made it. Its thing is what it is a
part of, -1 where of nothing: a request to the model, a call from the question about it to its result, a loop, a pause.
Things are what a timeline has rows for. And where a call went on only when something else was over, that is told too:
a loop acts on what it has heard last, so a call that begins right after another's end has waited for it.

What is kept is two numbers an event and a few words a thing, and no event is looked at twice. Nothing here raises: a
recording that somebody has cut has causes that are missing, and no more.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from agentnb.core.events import Event

NOTHING = -1
"""The cause or the thing of an event that has none."""


class _Call:
    """A call that a loop has made: its thing, and the last event about it."""

    __slots__ = ("ended", "last", "name", "thing")

    def __init__(self, name: str, last: int) -> None:
        self.name, self.last, self.thing, self.ended = name, last, NOTHING, False


class _Loop:
    """One loop as far as it has come: what it has heard last, its request, its calls, what is queued for it."""

    __slots__ = ("asked", "calls", "heard", "over", "pause", "queues", "request", "thing")

    def __init__(self, thing: int, heard: int) -> None:
        self.thing, self.heard = thing, heard
        self.over = NOTHING  # the last answer, result or resumption
        self.request = self.pause = NOTHING  # things
        self.asked = heard
        self.calls: dict[str, _Call] = {}
        self.queues: dict[str, deque[int]] = {}


class Trace:
    """The causes and the things of a run's events. `follow` the events, then read.

    causes, things: a number for each event. names, firsts: of each thing what it is called, and its first event.
    """

    def __init__(self) -> None:
        self.causes: array[int] = array("q")
        self.things: array[int] = array("q")
        self.firsts: array[int] = array("q")
        self.names: list[str] = []
        self.awaited: dict[int, int] = {}
        """What the event of a call waited for, by its position; only where it did."""
        self.said: dict[str, array[int]] = {}
        """The events that have a message of the history (messages, answers, results), by the path of the loop."""
        self._lock = threading.Lock()
        self._loops: dict[str, _Loop] = {}
        self._readers: dict[str, Callable[[_Loop, int, Any], tuple[int, int]]] = {
            "run_start": self._start,
            "message": self._message,
            "queued": self._queued,
            "withdrawn": self._withdrawn,
            "model_start": self._ask,
            "model_end": self._answer,
            "model_error": self._answer,
            "call_proposed": self._propose,
            "approval_request": self._of_call,
            "approval_decision": self._of_call,
            "call_start": self._of_call,
            "call_end": self._end_call,
            "run_paused": self._pause,
            "run_resumed": self._resume,
            "cancel": self._cancel,
            "run_end": self._end,
        }

    def follow(self, events: Sequence[Event], until: int) -> None:
        """Take in the events that are new, up to the position `until`; from any thread."""
        with self._lock:
            seen = len(self.things)
            for position, event in enumerate(events[seen:until], seen):
                cause, thing = self._read(position, event)
                self.causes.append(cause)
                self.things.append(thing)

    def _read(self, position: int, event: Event) -> tuple[int, int]:
        loop = self._loops.get(event.path)
        if loop is None:
            loop = self._loops[event.path] = _Loop(NOTHING, NOTHING)
        read = self._readers.get(event.type)
        return (loop.heard, NOTHING) if read is None else read(loop, position, event)

    def begun(self, path: str) -> int:
        """Where the loop at `path` began that ran there last."""
        loop = self._loops.get(path)
        return self.firsts[loop.thing] if loop is not None and loop.thing >= 0 else NOTHING

    def name_of(self, position: int) -> str:
        """What the event at this position is about, by name; empty where it is about nothing."""
        thing = self.things[position] if position < len(self.things) else NOTHING
        return self.names[thing] if thing >= 0 else ""

    def marks(self, position: int) -> dict[str, Any]:
        """What a row tells of this: `cause`, `thing`, and with a thing's first event its `name`."""
        cause, thing = self.causes[position], self.things[position]
        made: dict[str, Any] = {} if cause < 0 else {"cause": cause}
        if thing >= 0:
            made["thing"] = thing
            if self.firsts[thing] == position:
                made["name"] = self.names[thing]
        if position in self.awaited:
            made["after"] = self.awaited[position]
        return made

    def _begin(self, position: int, name: str) -> int:
        self.firsts.append(position)
        self.names.append(name)
        return len(self.names) - 1

    def _start(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        above = self._loops.get(event.path.rpartition("/")[0]) if event.path else None
        call = above.calls.get(event.call) if above is not None else None
        name = event.path.rpartition("/")[2] or event.name
        begun = self._loops[event.path] = _Loop(self._begin(position, name), position)
        begun.queues = {queue: deque([position] * len(queued)) for queue, queued in event.queued.items()}
        return call.last if call is not None else NOTHING, begun.thing

    def _message(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        self._note_said(position, event)
        queue = loop.queues.get(event.origin)
        cause = queue.popleft() if queue else loop.heard
        loop.heard = position
        return cause, NOTHING

    def _queued(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        loop.queues.setdefault(event.queue, deque()).append(position)
        return NOTHING, NOTHING

    def _withdrawn(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        queue = list(loop.queues.get(event.queue, ()))
        gone = queue[event.first : event.first + event.count]
        loop.queues[event.queue] = deque([*queue[: event.first], *queue[event.first + event.count :]])
        return gone[0] if gone else NOTHING, NOTHING

    def _ask(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        cause = loop.heard
        again = f", attempt {event.attempt}" if event.attempt > 1 else ""
        if not again:  # ids of calls are one request's: a model may use them again in the next
            loop.calls = {id: call for id, call in loop.calls.items() if not call.ended}
        loop.request = self._begin(position, f"turn {event.turn}{again}")
        loop.asked = position
        return cause, loop.request

    def _answer(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        if event.type == "model_end":
            self._note_said(position, event)
            for call in event.message.tool_calls:
                if call.id not in loop.calls:
                    loop.calls[call.id] = _Call(call.name, position)
        elif event.answer is not None:
            self._note_said(position, event)
        thing, loop.request, loop.heard, loop.over = loop.request, NOTHING, position, position
        return loop.asked, thing

    def _propose(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        cause = loop.heard if event.hidden or loop.request < 0 else loop.asked
        call = loop.calls[event.call.id] = _Call(event.call.name, cause)
        return self._note(call, position)

    def _of_call(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        call = loop.calls.get(event.call_id)
        if call is None:
            call = loop.calls[event.call_id] = _Call(event.name or event.call_id, loop.heard)
        if event.type in ("approval_request", "call_start") and loop.over > call.last:
            self.awaited[position] = loop.over
        return self._note(call, position)

    def _end_call(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        marks = self._of_call(loop, position, event)
        self._note_said(position, event)
        loop.calls[event.call_id].ended = True
        loop.heard = loop.over = position
        return marks

    def _note(self, call: _Call, position: int) -> tuple[int, int]:
        if call.thing < 0:
            call.thing = self._begin(position, call.name)
        cause, call.last = call.last, position
        return cause, call.thing

    def _pause(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        loop.pause = self._begin(position, "paused")
        return loop.heard, loop.pause

    def _resume(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        thing, loop.pause = loop.pause, NOTHING
        cause = self.firsts[thing] if thing >= 0 else loop.heard
        loop.heard = loop.over = position
        return cause, thing

    def _cancel(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        loop.heard = position
        return NOTHING, NOTHING

    def _end(self, loop: _Loop, position: int, event: Any) -> tuple[int, int]:
        if event.answer is not None:
            self._note_said(position, event)
        return loop.heard, loop.thing

    def _note_said(self, position: int, event: Any) -> None:
        said = self.said.get(event.path)
        if said is None:
            said = self.said[event.path] = array("q")
        said.append(position)
