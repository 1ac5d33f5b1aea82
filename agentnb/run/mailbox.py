"""Mailbox: which loop of a run receives the messages of the user (steering and follow-ups).

Messages to the run are delivered to the outermost loop that listens (`Design.listens`). If that is a nested loop, it
may not have started yet, or have ended: the run keeps the messages until the next one starts, and no message is lost.

A message can also be addressed to one loop, which may be nested. It is delivered to that loop only. If the loop ends
first, the message is kept for the next run of that loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from agentnb.core.blocks import attached_blocks
from agentnb.core.errors import UsageError
from agentnb.core.events import Queue, Queued, RunEnd, RunStart, Withdrawn
from agentnb.core.messages import Message, is_message_object, to_sent_message
from agentnb.core.state import State
from agentnb.run.event_data import input_as_json
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.validation import check_text, shown

QUEUES: tuple[Queue, ...] = ("steering", "follow_up")


class Mailbox:
    """The queues for messages to one loop, or to the run. Safe from every thread.

    frame: the loop; None for the loop of the run that listens. begin: appends the run's first event, unless it has been
    appended. cancel: ends the run.
    """

    def __init__(
        self,
        journal: Journal,
        frame: Frame | None = None,
        begin: Callable[[], None] = lambda: None,
        cancel: Callable[[str], bool] = lambda reason: False,
    ) -> None:
        self._journal = journal
        self._frame = frame
        self._begin = begin
        self._cancel = cancel

    @property
    def over(self) -> bool:
        """Whether messages can no longer be delivered."""
        return self._journal.state.over or (self._frame is not None and self._frame.state.over)

    def queue_if_open(self, queue: Queue, message: Any) -> bool:
        """Put a message into one of the queues. Returns False if the run has ended."""
        data = input_as_json(message)
        is_message = isinstance(message, (str, Mapping)) or is_message_object(message)
        if not is_message and attached_blocks(data) is None:
            raise UsageError(f"A message to a run must be a string or a message, not {shown(message)}.")
        _check_queue(queue)
        said = to_sent_message(data)
        with self._journal.saying():
            if self.over:
                return False
            self._begin()
            if self._frame is not None:
                self._frame.said.append(said)
            self._journal.append(Queued(queue=queue, message=said), self._frame or listener(self._journal))
            return True

    def withdraw(self, queue: Queue, message: Message | None = None) -> list[Message] | None:
        """Withdraw all messages of a queue, or the oldest that equals `message`. Returns None if the run has ended."""
        _check_queue(queue)
        with self._journal.saying():
            if self.over:
                return None
            kept = [self._frame] if self._frame is not None else _loops_that_keep(self._journal)
            return _withdraw(self._journal, kept, queue, message)

    def cancel(self, reason: str) -> bool:
        """End the run, if the loop is its outermost one. Returns False if it is not, or if the run has ended."""
        check_text("cancel(reason)", reason)
        return self._cancel(reason)

    def undelivered(self) -> dict[Queue, list[Message]]:
        """Return the queued messages; for a nested loop that has ended, only those that were addressed to it."""
        frame = self._frame or self._journal.root
        return _undelivered(frame.state, frame.said if self._frame is not None and self.over else None)

    @property
    def read_undelivered(self) -> Callable[[], dict[Queue, list[Message]]]:
        """A function that returns `undelivered` once the run or the loop has ended, and before that an empty dict.

        It does not keep the run alive.
        """
        frame = self._frame or self._journal.root
        return partial(
            _undelivered_at_end, self._journal.state, frame.state, frame.said if self._frame is not None else None
        )


def _check_queue(queue: Any) -> None:
    if queue not in get_args(Queue):
        raise UsageError(f"The queue must be one of {', '.join(get_args(Queue))}, not {shown(queue)}.")


def open_mailbox(journal: Journal, frame: Frame) -> None:
    """Make the mailbox of a nested loop. It lives as long as the frame of the loop."""
    frame.mailbox = Mailbox(journal, frame)


def _undelivered(state: State, said: list[Message] | None) -> dict[Queue, list[Message]]:
    """Return the queued messages; with `said`, only those that are in it."""
    return {queue: [m for m in state.queues[queue] if said is None or _is_in(said, m)] for queue in QUEUES}


def _undelivered_at_end(whole: State, state: State, said: list[Message] | None) -> dict[Queue, list[Message]]:
    return _undelivered(state, said) if whole.over or state.over else {}


def _is_in(said: list[Message], message: Message) -> bool:
    return any(one is message for one in said)


def listener(journal: Journal) -> Frame:
    """Return the loop that receives the user's messages now; the run's own if no loop listens."""
    return next((frame for frame in journal.frames if frame.design.listens and not frame.state.over), journal.root)


def queued(journal: Journal) -> list[tuple[Queue, Message]]:
    """Return all messages that were not delivered yet, each queue oldest first."""
    return [
        (queue, message)
        for queue in QUEUES
        for frame in _loops_that_keep(journal)
        for message in frame.state.queues[queue]
    ]


def _withdraw(journal: Journal, kept: list[Frame], queue: Queue, message: Message | None) -> list[Message]:
    if message is None:
        return [taken for frame in kept for taken in _take(journal, frame, queue)]
    for frame in kept:
        waiting = frame.state.queues[queue]
        if message in waiting:
            journal.append(Withdrawn(queue=queue, count=1, first=waiting.index(message)), frame)
            return [message]
    return []


def _loops_that_keep(journal: Journal) -> list[Frame]:
    """Return the loops that keep messages: the run's own, and the one that listens."""
    root, hears = journal.root, listener(journal)
    return [root, hears] if hears is not root else [root]


def hand_on(journal: Journal, frame: Frame) -> None:
    """Pass the messages that the run has kept to a nested loop that has just started, if this loop listens."""
    root = journal.root
    if frame is not root and listener(journal) is frame:
        for queue in QUEUES:
            waiting = list(root.state.queues[queue])
            for message in waiting[_count_handed_on(journal, frame, queue, waiting, frame.path) :]:
                journal.append(Queued(queue=queue, message=message), frame)
            _take(journal, root, queue)


def finish_handing_on(journal: Journal) -> None:
    """Complete the `hand_on` to a loop that had just started in the recording, in case a crash has interrupted it."""
    frame = listener(journal)
    if _last_handed_on(journal, frame) is not None:
        with journal.lock:
            hand_on(journal, frame)


def hand_back(journal: Journal, frame: Frame) -> None:
    """Let the run keep the undelivered messages of a loop that has ended, except those addressed to this loop."""
    if frame.design.listens and not journal.root.design.listens:
        for queue in QUEUES:
            undelivered = [message for message in frame.state.queues[queue] if not _is_in(frame.said, message)]
            for message in undelivered[_count_handed_on(journal, frame, queue, undelivered, journal.root.path) :]:
                journal.append(Queued(queue=queue, message=message))


def _count_handed_on(journal: Journal, frame: Frame, queue: Queue, messages: Sequence[Message], path: str) -> int:
    """Return how many of these messages were put into the queue of the loop at `path` before the recording ended."""
    come = [event for event in _last_handed_on(journal, frame) or () if (event.path, event.queue) == (path, queue)]
    return sum(event.message in messages for event in come if isinstance(event, Queued))


def _last_handed_on(journal: Journal, frame: Frame) -> Sequence[Queued | Withdrawn] | None:
    """Return the last events of the recording that this loop was restored from, if these events hand messages on.

    They follow the start or the end of the loop. Return None if the recording ends with other events. Each message that
    is handed on is an event of its own: the process may have ended after any of them.
    """
    last: list[Queued | Withdrawn] = []
    for position in range(frame.recorded - 1, -1, -1):  # not over a copy: this is called at every step
        event = journal.events[position]
        if not isinstance(event, (Queued, Withdrawn)):
            return last if isinstance(event, (RunStart, RunEnd)) and event.path == frame.path else None
        last.append(event)
    return None


def _take(journal: Journal, frame: Frame, queue: Queue) -> list[Message]:
    taken = list(frame.state.queues[queue])
    if taken:
        journal.append(Withdrawn(queue=queue, count=len(taken)), frame)
    return taken
