"""MessageQueue: the user's messages during the run of a session (SEMANTICS.md, 2. Vocabulary)."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from agentnb.core.events import Queue
from agentnb.core.messages import Message, to_sent_message
from agentnb.core.protocols import LoopMailbox
from agentnb.run.event_data import input_as_json


class MessageQueue:
    """The user's messages during the run of a session: steering and follow-ups. All methods are thread-safe.

    While a run of the session is open, top-level or nested, messages go to the run and are recorded as events
    immediately. Messages that the run has not taken when it ends stay in the queue for the next run. If several runs
    are open, messages go to the one that started last. A run that was garbage-collected no longer receives messages. If
    it had not ended, its undelivered messages are lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # not held while a run is given a message: the run has its own lock
        self._kept: dict[Queue, list[Message]] = {"steering": [], "follow_up": []}
        self._runs: list[tuple[weakref.ref[LoopMailbox], weakref.finalize[..., LoopMailbox]]] = []
        self._orphaned: deque[dict[Queue, list[Message]]] = deque()
        """Undelivered messages of ended runs that were garbage-collected. A finalizer may append to the deque at any
        allocation, even while this thread holds the lock."""

    def __getstate__(self) -> dict[Queue, list[Message]]:
        """Return the messages that no run has: a copy, in this process or another one, is attached to no run."""
        with self._lock:
            return {queue: list(kept) for queue, kept in self._kept.items()}

    def __setstate__(self, state: dict[Queue, list[Message]]) -> None:
        self.__init__()  # type: ignore[misc]  # the other attributes are those of a new queue
        self._kept.update(state)

    def add_steering(self, message: Any) -> None:
        """Queue a message that redirects the run."""
        self._add("steering", message)

    def add_followup(self, message: Any) -> None:
        """Queue a message that is delivered when the run would stop."""
        self._add("follow_up", message)

    def dequeue_steering(self) -> list[Message]:
        """Withdraw all undelivered steering messages and return them."""
        return self._dequeue("steering")

    def dequeue_followup(self) -> list[Message]:
        """Withdraw all undelivered follow-ups and return them."""
        return self._dequeue("follow_up")

    def waiting(self) -> dict[Queue, list[Message]]:
        """Return the undelivered messages, by queue."""
        with self._lock:
            self._keep_ended()
            run = self._open_run()
            queued = run.undelivered() if run is not None else {}
            return {queue: [*queued.get(queue, ()), *kept] for queue, kept in self._kept.items()}

    def hand_over(self) -> dict[Queue, list[Message]]:
        """Return the messages for a run that starts now; empty if another open run has them already."""
        with self._lock:
            return self._take_kept() if self._open_run() is None else {}

    def detach(self) -> None:
        """Move undelivered messages of all runs back to this queue. The runs must not continue."""
        with self._lock:
            self._keep_ended(all=True)

    def attach(self, run: LoopMailbox) -> None:
        """Attach the queue to this run until the run ends."""
        with self._lock:
            is_the_only_one = self._open_run() is None
            finalizer = weakref.finalize(run, _keep_orphaned, self._orphaned, run.read_undelivered)
            finalizer.atexit = False
            self._runs.append((weakref.ref(run), finalizer))
            # Messages that were queued since the run started go to the newest open run, which is usually this one.
            queued_since, known = self._take_kept() if is_the_only_one else {}, run.undelivered()
        for queue, messages in queued_since.items():
            for message in messages:
                if message in known[queue]:  # a restored run has it from its recording
                    known[queue].remove(message)
                else:
                    self._add(queue, message)

    def _open_run(self) -> LoopMailbox | None:
        """Return the newest open run, or None. Undelivered messages of newer runs that have ended are kept."""
        open, position = None, len(self._runs)
        while position and open is None:  # stop at the newest open run: a thousand may be open
            run = self._runs[position - 1][0]()
            if run is not None and not run.over:
                open = run
            else:
                position -= 1
        self._keep_ended(position)
        return open

    def _keep_ended(self, begin: int = 0, *, all: bool = False) -> None:
        """Keep undelivered messages of the ended runs from this index on; with `all`, those of open runs too."""
        while self._orphaned:
            self._keep_messages(self._orphaned.popleft())
        attached, self._runs[begin:] = self._runs[begin:], []
        for ref, finalizer in attached:
            run = ref()
            if run is not None and not run.over and not all:
                self._runs.append((ref, finalizer))
            elif run is not None:
                finalizer.detach()
                self._keep_messages(run.undelivered())

    def _keep_messages(self, undelivered: dict[Queue, list[Message]]) -> None:
        for queue, messages in undelivered.items():
            self._kept[queue] = [*messages, *self._kept[queue]]

    def _take_kept(self) -> dict[Queue, list[Message]]:
        taken, self._kept = self._kept, {"steering": [], "follow_up": []}
        return taken

    def _add(self, queue: Queue, message: Any) -> None:
        while True:
            with self._lock:
                run = self._open_run()
                if run is None:
                    self._kept[queue].append(to_sent_message(input_as_json(message)))
                    return
            # If the run has ended in the meantime, try again.
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


def _keep_orphaned(
    orphaned: deque[dict[Queue, list[Message]]], undelivered: Callable[[], dict[Queue, list[Message]]]
) -> None:
    if any((messages := undelivered()).values()):
        orphaned.append(messages)
