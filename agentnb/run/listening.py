"""Who hears what the user says while loops run inside loops.

It is the outermost loop that listens (`Design.listens`). Where that is not the run's own loop, it may not run yet, or
no more: until the next one begins, the run keeps what was said, and nothing is lost.
"""

from __future__ import annotations

from agentnb.core.events import Queue, Queued, Withdrawn
from agentnb.core.messages import Message
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal

QUEUES: tuple[Queue, ...] = ("steering", "follow_up")


def listener(journal: Journal) -> Frame:
    """The loop that hears what the user says now; the run's own where none does."""
    return next((frame for frame in journal.frames if frame.design.listens), journal.root)


def queued(journal: Journal) -> list[tuple[Queue, Message]]:
    """What nobody has heard yet, wherever it is kept, each queue oldest first."""
    return [(queue, message) for queue in QUEUES for frame in _kept(journal) for message in frame.state.queues[queue]]


def withdraw(journal: Journal, queue: Queue, message: Message | None = None) -> list[Message]:
    """Take everything back out of a queue, wherever it is kept, or the oldest message that says the same."""
    if message is None:
        return [taken for frame in _kept(journal) for taken in _take(journal, frame, queue)]
    for frame in _kept(journal):
        waiting = frame.state.queues[queue]
        if message in waiting:
            journal.append(Withdrawn.make(queue=queue, count=1, first=waiting.index(message)), frame)
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
            for message in list(root.state.queues[queue]):
                journal.append(Queued.make(queue=queue, message=message), frame)
            _take(journal, root, queue)


def hand_back(journal: Journal, frame: Frame) -> None:
    """A loop is over: what it has not heard is for the next that listens."""
    if frame.design.listens and not journal.root.design.listens:
        for queue in QUEUES:
            for message in frame.state.queues[queue]:
                journal.append(Queued.make(queue=queue, message=message))


def _take(journal: Journal, frame: Frame, queue: Queue) -> list[Message]:
    taken = list(frame.state.queues[queue])
    if taken:
        journal.append(Withdrawn.make(queue=queue, count=len(taken)), frame)
    return taken
