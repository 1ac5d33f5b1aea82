"""ReadableRun: what can be read of a run, of a stored recording and of a replay: its state and its events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from agentnb.core.errors import ReplayDiverged, UsageError
from agentnb.core.events import Event, Queue, RunPaused
from agentnb.core.loop import Design
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.run.approvals.pending import Decided, Pending, ready
from agentnb.run.approvals.remembered import Remembered
from agentnb.run.checkpoints import Checkpoints
from agentnb.run.gate.breakpoints import Breakpoint, Breakpoints
from agentnb.run.mailbox import QUEUES
from agentnb.run.past.recorded_loop import recorded_frames
from agentnb.run.past.snapshot import Snapshot

if TYPE_CHECKING:
    # Not imported at run time: a property annotated with a Literal breaks completion in IPython (jedi's issue 1990).
    from agentnb.core.events import StopReason


class NoBreakpoints(Breakpoints):
    """The empty breakpoints of a recording, and of a run that another process drives."""

    def add(self, spec: Any = None, *, nth: int = 1, **conditions: Any) -> Breakpoint:
        """Raise UsageError: a recording does not run, so it cannot stop at a breakpoint."""
        raise UsageError(
            "This is a recording, which does not run and cannot be stopped. Its at(-1) returns a replay from the"
            " beginning, which has breakpoints and continue_()."
        )


class ReadableRun(ABC):
    """A run that can be read: its state and its events. A `Recording` can also be replayed and forked."""

    id: str
    name: str | None
    loop: Design
    parts: tuple[str, ...] | None = None
    """The parts that its panel has; None for all."""
    _fork_options: Mapping[str, Any] = {}
    _checkpoints: Checkpoints

    @property
    @abstractmethod
    def state(self) -> State:
        """The current state of the run. Read it, do not change it."""

    def clock(self) -> float:
        """Return the time by the clock of the run's events, in seconds since the epoch."""
        return time.time()

    @property
    @abstractmethod
    def events(self) -> Sequence[Event]:
        """The events of the run so far, oldest first."""

    @property
    def input(self) -> Any:
        """The input that the run was started with, as plain data."""
        return getattr(self.recording[0], "input", None) if self.recording else None

    @property
    @abstractmethod
    def pending(self) -> list[Pending]:
        """The calls that wait for a person."""

    @abstractmethod
    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Call `watcher` with everything new from now on. Returns a function that unsubscribes."""

    @abstractmethod
    def snapshot(self, name: str | None = None) -> Snapshot:
        """Return a snapshot of the run. name: the name of the snapshot."""

    @property
    def position(self) -> int | None:
        """The number of events before the position of a replay; None if this is not a replay."""
        return None

    @property
    def place(self) -> tuple[int, int] | None:
        """The `position` of a replay and the number of its moves; None if this is not a replay."""
        return None

    @property
    def diverged(self) -> ReplayDiverged | None:
        """The difference between the loop and the recording that a check found; None if there is none."""
        return None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError(
            "A run cannot be copied or pickled. run.fork() returns another run that continues from its position."
            " run.snapshot() can be pickled, and agentnb.restore(snapshot, loop) continues from it in any process."
        )

    @property
    def driven(self) -> bool:
        """True while the run has an owner in this process that drives it."""
        return False

    def watch_driving(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call `changed` when `driven` may have changed, or a pause was requested.

        Returns a function that unsubscribes.
        """
        return lambda: None

    def watch_questions(self, changed: Callable[[Event | None], object]) -> Callable[[], None]:
        """Call `changed` when other questions may be open. Returns a function that unsubscribes."""
        return lambda: None

    @property
    def paused_for(self) -> str | None:
        """The reason for the current pause; None if the run is not paused."""
        if self.state.over or not self.state.paused:
            return None
        paused = (event for event in reversed(self.events) if isinstance(event, RunPaused))
        return next(paused).reason

    @property
    def remembered(self) -> list[Remembered]:
        """The decisions that also apply to later calls, oldest first."""
        return [Remembered.of(rule) for rule in self.state.rules]

    @property
    def decided(self) -> list[Decided]:
        """The calls that are decided and have not started, in the order in which each loop made them."""
        with self.lock:
            return ready(recorded_frames(self.state), run_id=self.id)

    @property
    def queued(self) -> list[tuple[Queue, Message]]:
        """The queued messages that were not delivered yet, in the order of delivery, each with its queue."""
        return [(queue, message) for queue in QUEUES for message in self.state.queues[queue]]

    @property
    def breakpoints(self) -> Breakpoints:
        """The breakpoints of the run. If the run is not in this process, there are none, and none can be added."""
        return NoBreakpoints()

    def tool_schemas(self, path: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the JSON schema of the arguments of each tool, by name; empty if the loop's tools are not known.

        path: the loop whose tools to return; None for all loops.
        """
        return {}

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of the events. While a thread holds it, no other thread appends an event."""
        return nullcontext()

    @property
    def recording(self) -> Sequence[Event]:
        """All recorded events, including those after the position of a replay."""
        return self.events

    @property
    def imported(self) -> Mapping[str, Any]:
        """What is known of a recording of another tool besides its events: its `format`, its tools; else empty."""
        config = getattr(self.recording[0], "config", {}) if self.recording else {}
        about = config.get("imported")
        return about if isinstance(about, Mapping) else {}

    @property
    def lost(self) -> dict[str, int]:
        """What a recording of another tool has and its events do not, or lacks: counts by kind. Else empty."""
        lost = self.imported.get("lost")
        return dict(lost) if isinstance(lost, Mapping) else {}

    @property
    def phase(self) -> str:
        """The current phase of the loop; before the start, its first phase."""
        return self.state.phase if self.state.phase is not None else next(iter(self.loop.phases), "")

    @property
    def messages(self) -> list[Message]:
        """The conversation so far; for a loop that only runs other loops, their conversations in sequence."""
        return self.state.conversation

    @property
    def output(self) -> Any:
        """The output of the run; None until it has ended."""
        return self.state.output

    @property
    def stop_reason(self) -> StopReason | None:
        """The reason why the run has ended; None until then."""
        return self.state.stop_reason

    @property
    def usage(self) -> dict[str, float]:
        """The total of tokens (`input_tokens`, `output_tokens`, ...) and `cost` that this run has used.

        A fork counts only its own requests: the earlier ones were used by the run that it was forked from, so usages of
        several runs can be added. `state.usage` counts the whole history, and limits apply to that.
        """
        return dict(self.state.own_usage)
