"""What can be read of a run, whether it goes on or is a recording: where it stands, and how it came there."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, Unpack

from agentnb.core.errors import ReplayDiverged, UsageError
from agentnb.core.events import Event, Queue, RunPaused
from agentnb.core.foreign import plain_number
from agentnb.core.loop import Design
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.loops.options import StartOptions
from agentnb.run.approvals.pending import Decided, Pending, ready
from agentnb.run.approvals.remembered import Remembered
from agentnb.run.gate.breakpoints import Breakpoint, Breakpoints
from agentnb.run.mailbox import QUEUES
from agentnb.run.past.asked import stood
from agentnb.run.past.fork import UNCHANGED, Change
from agentnb.run.past.snapshot import Snapshot

if TYPE_CHECKING:
    # Not at run time: a property that gives a Literal takes from IPython all it could complete (jedi's issue 1990).
    from agentnb.core.events import StopReason
    from agentnb.run.past.replay import Replay
    from agentnb.run.run import Run


class NoBreakpoints(Breakpoints):
    """Those of what goes on elsewhere, or not at all: none."""

    def add(self, spec: Any = None, *, nth: int = 1, **conditions: Any) -> Breakpoint:
        """Refused, for nothing would stop there. Raises UsageError."""
        raise UsageError(
            "This is a recording, which nothing here can stop. Its at(-1) goes through it from the beginning, with"
            " breakpoints of its own and continue_()."
        )


class Recording(ABC):
    """A run as far as it can be read."""

    id: str
    name: str | None
    loop: Design
    parts: tuple[str, ...] | None = None
    """The parts of its panel, where these are not all."""
    _fork_options: Mapping[str, Any] = {}

    @property
    @abstractmethod
    def state(self) -> State:
        """Where the run stands; read it, do not change it."""

    def clock(self) -> float:
        """The time now, in seconds since the epoch, by the clock of the run's events."""
        return time.time()

    @property
    @abstractmethod
    def events(self) -> Sequence[Event]:
        """Everything that has happened so far, oldest first."""

    @property
    @abstractmethod
    def pending(self) -> list[Pending]:
        """The calls that wait for a person."""

    @abstractmethod
    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Call `watcher` with what comes from now on; gives a function that ends it."""

    @abstractmethod
    def snapshot(self, name: str | None = None) -> Snapshot:
        """The run as it stands."""

    @property
    def position(self) -> int | None:
        """How many of its events have happened, where it is walked through."""
        return None

    @property
    def place(self) -> tuple[int, int] | None:
        """The same, and how often it was moved."""
        return None

    @property
    def diverged(self) -> ReplayDiverged | None:
        """What the loop does otherwise than the recording, where it is checked and does."""
        return None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError(
            "A run is neither copied nor pickled. run.fork() makes another one from where it stands; run.snapshot() can"
            " be pickled, and agentnb.restore(snapshot, loop) goes on from it, in another process too."
        )

    @property
    def driven(self) -> bool:
        """Whether anybody drives the run at the moment."""
        return False

    def watch_driving(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call `changed` whenever `driven` has changed and nothing else; gives a function that ends it."""
        return lambda: None

    @property
    def paused_for(self) -> str | None:
        """Why the run is paused; None where it is not."""
        if self.state.over or not self.state.paused:
            return None
        paused = (event for event in reversed(self.events) if isinstance(event, RunPaused))
        return next(paused).reason

    @property
    def remembered(self) -> list[Remembered]:
        """The decisions that hold for later calls too, oldest first."""
        return [Remembered.of(rule) for rule in self.state.rules]

    @property
    def decided(self) -> list[Decided]:
        """The calls that are decided and have not begun, in the order they were made."""
        with self.lock:
            return ready(stood(self.state), run_id=self.id)

    @property
    def queued(self) -> list[tuple[Queue, Message]]:
        """What was said to the run and nobody has heard yet, in the order it will be heard."""
        return [(queue, message) for queue in QUEUES for message in self.state.queues[queue]]

    @property
    def breakpoints(self) -> Breakpoints:
        """Where the run pauses: where nobody drives it here that is nowhere, and none can be added."""
        return NoBreakpoints()

    def tool_schemas(self, path: str | None = None) -> dict[str, dict[str, Any]]:
        """The JSON schema of each tool's arguments; none where nothing is known of the loop."""
        return {}

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """While a thread holds this, nothing becomes a fact."""
        return nullcontext()

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
        """Tokens (`input_tokens`, `output_tokens`, ...) and `cost` that this run has used, added up.

        A fork has used what was asked since the fork: what is before that was used by the run it departs from, and the
        usage of all runs together is the sum. `state.usage` is of the whole history, which is what limits count.
        """
        return dict(self.state.own_usage)

    def at(self, seq: int) -> Replay:
        """The run as it was right after its event `seq`: to be read, stepped back and forth, and not to be driven.

        -1 is before its first event.
        """
        from agentnb.run.past.replay import Replay  # it is a Recording itself

        return Replay(self.recording, self.loop, name=self.name).to(seq)

    def fork(
        self,
        at: int | None = None,
        *,
        message: Any = None,
        arguments: Mapping[str, Any] | None = None,
        result: Any = UNCHANGED,
        decision: Any = None,
        event: Event | None = None,
        loop: Design | None = None,
        **options: Unpack[StartOptions],
    ) -> Run:
        """A new run that goes on from its event `at` (the newest by default), with at most one thing changed.

        message: what was said at that event instead (a message, a model's answer, the input), or, at any other event,
        what the user says there. A text leaves a model's answer its calls; `{"role": "assistant", "content": ...}` is
        the whole answer. arguments, decision: what the call that the event is about runs with, and what is
        decided about it (True, False, `approve`, `reject` ..., or a dict with `decision` and what belongs to it).
        result: what that call gave, which may be None. event: another event of the same type. loop: another loop of the
        same kind, with another model, other tools or settings. options: as for `start`; store, approve and limits are
        this run's where no others are given.

        What is before the fork costs no request to the model and runs no tool. Raises UsageError where there is nothing
        to change, InvalidArguments where arguments do not fit, RecordingMismatch for a loop of another kind.
        """
        from agentnb.run.past.forked import forked  # it makes a Run, which is a Recording itself

        change = Change(event=event, message=message, arguments=arguments, result=result, decision=decision)
        return forked(self, plain_number(at), change, loop, **options)
