"""Protocols: the parts of a run that its loop, a model or a tool uses, and the parts of a store that a run uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from agentnb.core.events import Event, Queue
from agentnb.core.messages import Message


class LoopMailbox(Protocol):
    """The mailbox of one loop in a run, for messages to that loop itself. Safe to use from every thread."""

    @property
    def over(self) -> bool:
        """True if messages are no longer delivered, because the run has ended."""

    def queue_if_open(self, queue: Queue, message: Any) -> bool:
        """Append a message to one of the loop's queues; return False if the run has ended."""

    def withdraw(self, queue: Queue) -> list[Message] | None:
        """Remove all messages from a queue and return them; return None if the run has ended."""

    def undelivered(self) -> dict[Queue, list[Message]]:
        """Return the queued messages.

        For a run that has ended: those sent to the loop itself that were not delivered.
        """

    @property
    def read_undelivered(self) -> Callable[[], dict[Queue, list[Message]]]:
        """A function that returns `undelivered` of a run that has ended. It does not keep the run alive."""

    def cancel(self, reason: str) -> bool:
        """End the run, and return True. Return False if the run has ended already, or if this loop is nested."""


class EventLog(Protocol):
    """The events of a run that has not ended."""

    @property
    def events(self) -> Sequence[Event]:
        """All events of the run so far, oldest first."""

    @property
    def number(self) -> int:
        """The number of the run among those that the code of the same call has made; 0 outside of every run."""


class Recorder(Protocol):
    """The storage of one journal. `record` may buffer lines until `flush`, which returns once they are on disk.

    Neither method waits for a lock: if the storage is locked, `flush` raises StoreBusy and can be called again.
    """

    def record(self, seq: int, line: bytes) -> None:
        """Accept an event as one line of JSON. seq: its number."""

    def flush(self) -> None:
        """Return once every accepted event is on disk. Raises StoreBusy if the storage is locked."""

    def name_snapshot(self, name: str, position: int) -> None:
        """Store a name for a position. It is on disk after the next `flush`."""


class RunStore(Protocol):
    """A store of recordings; `agentnb.Store` is one."""

    def record_run(
        self,
        run_id: str,
        name: str | None,
        loop: str,
        recording: Sequence[Event],
        *,
        shared: tuple[str, int] | None = None,
        tags: Sequence[str] = (),
    ) -> Recorder:
        """Begin to record a run: a new one, or one that continues after `recording`.

        shared: for a fork, the id of the run that it was forked from, and the number of events at its start that are
        the events of that run, and need not be stored twice. Only event 0 and the mark `inherited` differ. tags: the
        tags of a new run; the argument is not passed if there are none.
        """

    def position(self, run_id: str) -> int:
        """Return the number of events of the run that the store has."""


loop_context: ContextVar[object] = ContextVar("agentnb_loop_context", default=None)
"""The context object of the loop for whose own call this code runs (`Design.make_context`); None without one."""
