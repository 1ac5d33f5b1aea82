"""What can be read of a run, whether it goes on or is a recording: where it stands, and how it came there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentnb.core.events import Event, StopReason
from agentnb.core.loop import Design
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.run.fork import Change

if TYPE_CHECKING:
    from agentnb.run.replay import Replay
    from agentnb.run.run import Run


class Recording(ABC):
    """A run as far as it can be read."""

    id: str
    name: str | None
    loop: Design
    _fork_options: Mapping[str, Any] = {}

    @property
    @abstractmethod
    def state(self) -> State:
        """Where the run stands; read it, do not change it."""

    @property
    @abstractmethod
    def events(self) -> Sequence[Event]:
        """Everything that has happened so far, oldest first."""

    @property
    def driven(self) -> bool:
        """Whether anybody drives the run at the moment."""
        return False

    @property
    def recording(self) -> Sequence[Event]:
        """All that was recorded: also what comes after the moment that a replay stands at."""
        return self.events

    @property
    def phase(self) -> str:
        """The loop's phase; before the start, the one it starts in."""
        return self.state.phase if self.state.phase is not None else next(iter(self.loop.phases), "")

    @property
    def messages(self) -> list[Message]:
        """The conversation so far; of a loop that only runs others, theirs, one after the other."""
        return self.state.conversation

    @property
    def output(self) -> Any:
        """What the run came to; None until it is over."""
        return self.state.output

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run is over; None until it is."""
        return self.state.stop_reason

    @property
    def usage(self) -> dict[str, float]:
        """Tokens (`input_tokens`, `output_tokens`, ...) and `cost`, added up."""
        return dict(self.state.usage)

    def at(self, seq: int) -> Replay:
        """The run as it was right after its event `seq`: to be read, stepped back and forth, and not to be driven."""
        from agentnb.run.replay import Replay  # it is a Recording itself

        return Replay(self.recording, self.loop, name=self.name).to(seq)

    def fork(
        self,
        at: int | None = None,
        *,
        message: Any = None,
        arguments: Mapping[str, Any] | None = None,
        result: Any = None,
        decision: Any = None,
        event: Event | None = None,
        loop: Design | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Run:
        """A new run that goes on from its event `at` (the newest by default), with at most one thing changed.

        message: what was said at that event instead (a message, a model's answer, the input), or, at any other event,
        what the user says there. arguments, decision: what the call that the event is about runs with, and what is
        decided about it (`approve`, `reject` ..., or a dict with `decision` and its `reason`, `arguments`, `result`).
        result: what that call gave. event: another event of the same type. loop: another loop of the same kind, with
        another model, other tools or settings. store, approve, limits: this run's, where no others are given; also
        breakpoints.

        What is before the fork costs no request to the model and runs no tool. Raises UsageError where there is nothing
        to change, InvalidArguments where arguments do not fit, RecordingMismatch for a loop of another kind.
        """
        from agentnb.run.forked import forked  # it makes a Run, which is a Recording itself

        change = Change(event, message, arguments, result, decision)
        return forked(self, at, change, loop, name=name, **{**self._fork_options, **options})
