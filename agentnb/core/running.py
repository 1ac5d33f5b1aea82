"""What a loop knows of a run of it: as much as it is told (`Design.taken_up`, `hears` and `runs_as`), and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from agentnb.core.events import Queue
from agentnb.core.messages import Message
from agentnb.core.state import State


class Frame(Protocol):
    """A loop that is being run: where it stands."""

    state: State


class Hearing(Protocol):
    """A run of a loop, as whoever says something to that loop itself needs it. Safe from every thread."""

    @property
    def over(self) -> bool:
        """Whether nothing that is said is heard any more."""

    def queue_if_open(self, queue: Queue, message: Any) -> bool:
        """Put a message into one of the loop's queues; False where the run is over."""

    def withdraw(self, queue: Queue) -> list[Message] | None:
        """Take everything back out of a queue; None where the run is over."""

    def unheard(self) -> dict[Queue, list[Message]]:
        """What is queued; of a run that is over, what was said to the loop itself and nobody has heard."""

    @property
    def left(self) -> Callable[[], dict[Queue, list[Message]]]:
        """`unheard` of a run that is over and that nobody has any more; it does not hold the run."""


class Stoppable(Protocol):
    """A run of a loop, as whoever ends it by way of that loop needs it."""

    def cancel(self, reason: str) -> bool:
        """End the run; False where it is over."""
