"""MessageQueue: what the user says while a session runs (SEMANTICS 3b)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from agentnb.core.events import Queue
from agentnb.core.messages import Message, to_message

if TYPE_CHECKING:
    from agentnb.run import Run


class MessageQueue:
    """What the user says while a session runs: steering, and follow-ups. Safe to fill from any thread, at any time.

    While a run is open the queue is the run's (each message is a fact as soon as it is added); what nobody has heard
    when it ends stays here for the next one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: dict[Queue, list[Message]] = {"steering": [], "follow_up": []}
        self._run: Run | None = None

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
            if self._run is not None:
                queues = self._run.state.queues
                self._kept = {queue: list(queues[queue]) for queue in self._kept}
                if self._run.state.over:  # what is left stays here for the next run
                    self._run = None
            return {queue: list(messages) for queue, messages in self._kept.items()}

    def hand_over(self) -> dict[Queue, list[Message]]:
        """What a run that begins now starts with: nothing where another one is open and has it already."""
        with self._lock:
            waiting = self.waiting()
            if self._run is not None:
                return {}
            self._kept = {"steering": [], "follow_up": []}
            return waiting

    def detach(self) -> None:
        """Keep here what nobody has heard: the run that has it will not go on."""
        with self._lock:
            self.waiting()
            self._run = None

    def attach(self, run: Run) -> None:
        """Be the queue of this run until it ends."""
        with self._lock:
            self._run = run

    def _add(self, queue: Queue, message: Any) -> None:
        with self._lock:
            if self._run is None or not self._run.queue_if_open(queue, message):
                self.waiting()
                self._kept[queue].append(to_message(message))

    def _dequeue(self, queue: Queue) -> list[Message]:
        with self._lock:
            if self._run is not None and (taken := self._run.withdraw(queue)) is not None:
                return taken
            taken = self.waiting()[queue]
            self._kept[queue] = []
            return taken
