"""MessageQueue: what the user says while a session runs (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from agentnb.core.events import Queue
from agentnb.core.messages import Message, to_said
from agentnb.core.running import Hearing


class MessageQueue:
    """What the user says while a session runs: steering, and follow-ups. Safe to fill from any thread, at any time.

    While a run is open, alone or inside another loop's, the queue is the run's (each message is a fact as soon as it is
    added); what nobody has heard when it ends stays here for the next one. Of several that are open at the same time,
    it is the one that has begun last. A run that nobody has any more is none: what was said to it has gone with it,
    unless it was over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # not held where a run is told something: it has a lock of its own
        self._kept: dict[Queue, list[Message]] = {"steering": [], "follow_up": []}
        self._runs: list[tuple[weakref.ref[Hearing], weakref.finalize[..., Hearing]]] = []
        self._left: deque[dict[Queue, list[Message]]] = deque()
        """What runs have left that nobody has any more: put here wherever memory is asked for, also under the lock."""

    def add_steering(self, message: Any) -> None:
        """Redirect the run."""
        self._add("steering", message)

    def add_followup(self, message: Any) -> None:
        """Say something for when the run would stop."""
        self._add("follow_up", message)

    def dequeue_steering(self) -> list[Message]:
        """Take back all the steering nobody has heard."""
        return self._dequeue("steering")

    def dequeue_followup(self) -> list[Message]:
        """Take back all the follow-ups nobody has heard."""
        return self._dequeue("follow_up")

    def waiting(self) -> dict[Queue, list[Message]]:
        """What nobody has heard yet."""
        with self._lock:
            self._keep_ended()
            run = self._open_run()
            queued = run.unheard() if run is not None else {}
            return {queue: [*queued.get(queue, ()), *kept] for queue, kept in self._kept.items()}

    def hand_over(self) -> dict[Queue, list[Message]]:
        """What a run that begins now starts with: nothing where another one is open and has it already."""
        with self._lock:
            return self._take_kept() if self._open_run() is None else {}

    def detach(self) -> None:
        """Keep here what nobody has heard: the run that has it will not go on."""
        with self._lock:
            self._keep_ended(all=True)

    def attach(self, run: Hearing) -> None:
        """Be the queue of this run until it ends."""
        with self._lock:
            is_the_only_one = self._open_run() is None
            gone = weakref.finalize(run, _leave, self._left, run.left)
            gone.atexit = False
            self._runs.append((weakref.ref(run), gone))
            since_it_began, has = self._take_kept() if is_the_only_one else {}, run.unheard()
        for queue, messages in since_it_began.items():
            for message in messages:
                if message in has[queue]:  # a run that was restored has it from its recording
                    has[queue].remove(message)
                else:
                    self._add(queue, message)

    def _open_run(self) -> Hearing | None:
        """The run that hears, the newest; what newer ones that have ended have not heard is kept."""
        open, behind = None, len(self._runs)
        while behind and open is None:  # not all of them: a thousand may be open at once
            run = self._runs[behind - 1][0]()
            if run is not None and not run.over:
                open = run
            else:
                behind -= 1
        self._keep_ended(behind)
        return open

    def _keep_ended(self, begin: int = 0, *, all: bool = False) -> None:
        """Keep what the runs have not heard that have ended, from this place on; with `all`, open ones too."""
        while self._left:
            self._keep_messages(self._left.popleft())
        attached, self._runs[begin:] = self._runs[begin:], []
        for found, gone in attached:
            run = found()
            if run is not None and not run.over and not all:
                self._runs.append((found, gone))
            elif run is not None:
                gone.detach()
                self._keep_messages(run.unheard())

    def _keep_messages(self, unheard: dict[Queue, list[Message]]) -> None:
        for queue, messages in unheard.items():
            self._kept[queue] = [*messages, *self._kept[queue]]

    def _take_kept(self) -> dict[Queue, list[Message]]:
        taken, self._kept = self._kept, {"steering": [], "follow_up": []}
        return taken

    def _add(self, queue: Queue, message: Any) -> None:
        while True:
            with self._lock:
                run = self._open_run()
                if run is None:
                    self._kept[queue].append(to_said(message))
                    return
            if run.queue_if_open(queue, message):
                return

    def _dequeue(self, queue: Queue) -> list[Message]:
        while True:
            with self._lock:
                run = self._open_run()
                if run is None:
                    taken, self._kept[queue] = self._kept[queue], []
                    return taken
            if (queued := run.withdraw(queue)) is not None:
                return queued


def _leave(left: deque[dict[Queue, list[Message]]], unheard: Callable[[], dict[Queue, list[Message]]]) -> None:
    if any((messages := unheard()).values()):
        left.append(messages)
