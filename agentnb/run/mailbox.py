"""Who hears what the user says while loops run inside loops.

It is the outermost loop that listens (`Design.listens`). Where that is not the run's own loop, it may not run yet, or
no more: until the next one begins, the run keeps what was said, and nothing is lost.

What is said to a loop itself, wherever in the run it is, that loop hears and no other (`Mailbox`): what it has not
heard when it is over is for its own next run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from agentnb.core.errors import UsageError
from agentnb.core.events import Queue, Queued, RunEnd, RunStart, Withdrawn
from agentnb.core.messages import Message, is_message_object, to_said
from agentnb.core.state import State
from agentnb.run.frame import Frame
from agentnb.run.given import shown
from agentnb.run.journal import Journal
from agentnb.run.portable import portable_input

QUEUES: tuple[Queue, ...] = ("steering", "follow_up")


class Mailbox:
    """What is said to the loop in `frame`, or, without one, to whoever in the run listens. Safe from every thread.

    `begin` makes the run's first fact one, where it is not yet.
    """

    def __init__(self, journal: Journal, frame: Frame | None = None, begin: Callable[[], None] = lambda: None) -> None:
        self._journal = journal
        self._frame = frame
        self._begin = begin

    @property
    def over(self) -> bool:
        """Whether nothing that is said is heard any more."""
        return self._journal.state.over or (self._frame is not None and self._frame.state.over)

    def queue_if_open(self, queue: Queue, message: Any) -> bool:
        """Put a message into one of the queues; False where the run is over."""
        if not (isinstance(message, (str, Mapping)) or is_message_object(message)):
            raise UsageError(f"A run is told a text or a message, not {shown(message)}.")
        _check_queue(queue)
        said = to_said(portable_input(message))
        with self._journal.saying():
            if self.over:
                return False
            self._begin()
            if self._frame is not None:
                self._frame.said.append(said)
            self._journal.append(Queued(queue=queue, message=said), self._frame or listener(self._journal))
            return True

    def withdraw(self, queue: Queue, message: Message | None = None) -> list[Message] | None:
        """Take everything back out of a queue, or the oldest message that says the same; None where the run is over."""
        _check_queue(queue)
        with self._journal.saying():
            if self.over:
                return None
            kept = [self._frame] if self._frame is not None else _kept(self._journal)
            return _withdraw(self._journal, kept, queue, message)

    def unheard(self) -> dict[Queue, list[Message]]:
        """What is queued; of a loop inside that is over, what was said to it and nobody has heard."""
        frame = self._frame or self._journal.root
        return _unheard(frame.state, frame.said if self._frame is not None and self.over else None)

    @property
    def left(self) -> Callable[[], dict[Queue, list[Message]]]:
        """`unheard` of a run that is over and that nobody has any more; it does not hold the run."""
        frame = self._frame or self._journal.root
        return partial(_left, self._journal.state, frame.state, frame.said if self._frame is not None else None)


def _check_queue(queue: Any) -> None:
    if queue not in get_args(Queue):
        raise UsageError(f"A run's queues are {', '.join(get_args(Queue))}, and not {shown(queue)}.")


def hear(journal: Journal, frame: Frame | None = None, begin: Callable[[], None] = lambda: None) -> Mailbox:
    """What is said to a loop; it lives as long as anything of the run does."""
    hearing = Mailbox(journal, frame, begin)
    (frame or journal.root).hearing = hearing
    return hearing


def _unheard(state: State, said: list[Message] | None) -> dict[Queue, list[Message]]:
    """What is queued there; with `said`, of this only."""
    return {queue: [m for m in state.queues[queue] if said is None or _is_in(said, m)] for queue in QUEUES}


def _left(whole: State, state: State, said: list[Message] | None) -> dict[Queue, list[Message]]:
    return _unheard(state, said) if whole.over or state.over else {}


def _is_in(said: list[Message], message: Message) -> bool:
    return any(one is message for one in said)


def listener(journal: Journal) -> Frame:
    """The loop that hears what the user says now; the run's own where none does."""
    return next((frame for frame in journal.frames if frame.design.listens and not frame.state.over), journal.root)


def queued(journal: Journal) -> list[tuple[Queue, Message]]:
    """What nobody has heard yet, wherever it is kept, each queue oldest first."""
    return [(queue, message) for queue in QUEUES for frame in _kept(journal) for message in frame.state.queues[queue]]


def _withdraw(journal: Journal, kept: list[Frame], queue: Queue, message: Message | None) -> list[Message]:
    if message is None:
        return [taken for frame in kept for taken in _take(journal, frame, queue)]
    for frame in kept:
        waiting = frame.state.queues[queue]
        if message in waiting:
            journal.append(Withdrawn(queue=queue, count=1, first=waiting.index(message)), frame)
            return [message]
    return []


def _kept(journal: Journal) -> list[Frame]:
    """The loops that keep what was said: the run's own, and the one that listens."""
    root, hears = journal.root, listener(journal)
    return [root, hears] if hears is not root else [root]


def hand_on(journal: Journal, frame: Frame) -> None:
    """A loop has begun: where it is the one that listens, it hears what was said before."""
    root = journal.root
    if frame is not root and listener(journal) is frame:
        for queue in QUEUES:
            waiting = list(root.state.queues[queue])
            for message in waiting[_handed(journal, frame, queue, waiting, frame.path) :]:
                journal.append(Queued(queue=queue, message=message), frame)
            _take(journal, root, queue)


def finish_handing_on(journal: Journal) -> None:
    """Give a loop that had just begun in the recording what it was to hear and was not handed any more."""
    frame = listener(journal)
    if _handed_last(journal, frame) is not None:
        with journal.lock:
            hand_on(journal, frame)


def hand_back(journal: Journal, frame: Frame) -> None:
    """A loop is over: what it has not heard is for the next that listens, but for what was said to this one itself."""
    if frame.design.listens and not journal.root.design.listens:
        for queue in QUEUES:
            unheard = [message for message in frame.state.queues[queue] if not _is_in(frame.said, message)]
            for message in unheard[_handed(journal, frame, queue, unheard, journal.root.path) :]:
                journal.append(Queued(queue=queue, message=message))


def _handed(journal: Journal, frame: Frame, queue: Queue, messages: Sequence[Message], path: str) -> int:
    """How many of these messages were handed into that queue of the loop at `path` by whoever drove the run before."""
    come = [event for event in _handed_last(journal, frame) or () if (event.path, event.queue) == (path, queue)]
    return sum(event.message in messages for event in come if isinstance(event, Queued))


def _handed_last(journal: Journal, frame: Frame) -> Sequence[Queued | Withdrawn] | None:
    """What the recording that this loop was taken up from ends with behind the loop's beginning, or its end.

    None where it does not end there. Each message that is handed on is a fact of its own: whoever made them may be gone
    after any of them.
    """
    last: list[Queued | Withdrawn] = []
    for position in range(frame.recorded - 1, -1, -1):  # not over a copy: it is asked at every step
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
