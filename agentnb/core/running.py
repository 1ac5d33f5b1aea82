"""What a loop knows of a run of it: as much as it is told (`Design.taken_up`, `hears` and `runs_as`), and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from agentnb.core.events import Event, Queue
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


class Recording(Protocol):
    """The events of a run that goes on."""

    @property
    def events(self) -> Sequence[Event]:
        """Everything that has happened in it so far, oldest first."""


class AskedBy(NamedTuple):
    """On whose behalf code runs: the outermost run, the run itself, and the path of the loop that asks its model.

    The two runs differ where the code of a call has started a run of its own. `path` is None in the code of a call.
    """

    outermost: Recording
    run: Recording
    path: str | None


asked_by: ContextVar[AskedBy | None] = ContextVar("agentnb_asked_by", default=None)
"""On whose behalf the code of a model or a call runs; None outside of every run."""


def act_for(run: Recording, path: str | None) -> None:
    """Say on whose behalf the rest of this context runs."""
    around = asked_by.get()
    asked_by.set(AskedBy(run if around is None else around.outermost, run, path))
