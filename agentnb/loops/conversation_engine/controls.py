"""The engine's own methods: one run at a time, pulled by its consumer, with the design's words for controlling it.

They cover the core's Run. Its facts are pulled one by one and said in the engine's words (`stream`), so the
engine never runs ahead of whoever reads it; where it stands is folded from the same facts. Pausing follows the
published rule, only while tasks are scheduled or executed (4g.3), and `state` says paused from the request on, while
ENGINE_PAUSED waits for the task that runs (4g.5).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

from agentnb.core.errors import IllegalTransition, RunFailed, UsageError
from agentnb.core.evolve import fold
from agentnb.core.messages import input_messages, to_plain
from agentnb.core.state import State
from agentnb.loops.conversation_engine import snapshot as snapshots
from agentnb.loops.conversation_engine.progress import EXECUTE
from agentnb.loops.conversation_engine.restore import facts_of
from agentnb.loops.conversation_engine.standing import EngineStanding
from agentnb.loops.conversation_engine.states import PAUSABLE, VALID_STATE_TRANSITIONS, WORKING, EngineState
from agentnb.loops.conversation_engine.stream import EngineEvent, Projection
from agentnb.loops.conversation_engine.tasks import TaskError
from agentnb.loops.options import StartOptions

if TYPE_CHECKING:
    from agentnb.run import Run

logger = logging.getLogger("agentnb")


class EngineControls(EngineStanding):
    """What ConversationEngine is besides its decision."""

    on_task_error: str

    def __init__(self, llm: Any = None, *, name: str | None = None) -> None:
        super().__init__(llm, name=name)
        self._undelivered: deque[EngineEvent] = deque()
        self._known: int | None = None
        """How many facts came with a snapshot that has not been continued yet."""

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, user_input: Any, **options: Unpack[StartOptions]) -> AsyncGenerator[EngineEvent, None]:
        """Work on a goal; the engine's events, as they are asked for. Closing them early ends the engine in an error.

        options: as for `start`. Raises IllegalTransition unless the engine is idle: `reset` it first; and UsageError
        where the goal is a message without a role.
        """
        self._check_idle()
        try:
            input_messages(to_plain(user_input))
        except ValueError as error:
            raise UsageError(
                f"A goal is text, a message with role and content, or an object that is none, not {user_input!r}."
            ) from error
        return self._deliver(lambda: self._begin(user_input, options), known=0)

    def continue_(self) -> AsyncGenerator[EngineEvent, None]:
        """Go on after `restore_from_snapshot`, resuming where it was paused; only what has not happened yet.

        Raises UsageError where nothing was restored, and IllegalTransition where the engine had failed.
        """
        run, known = self._run, self._known
        if run is None or known is None:
            raise UsageError("There is nothing to continue: restore a snapshot first, or run the engine.")
        if self.state is EngineState.ERROR:
            raise IllegalTransition("The engine has failed; reset() it, and run it again.")
        return self._deliver(lambda: self._take_up(run), known)

    def _begin(self, user_input: Any, options: StartOptions) -> Run:
        self._check_idle()
        self._undelivered, self._known = deque(), None
        self._run = self.start(user_input, **options)
        return self._run

    def _take_up(self, run: Run) -> Run:
        if run is not self._run or self._known is None:
            raise UsageError("What was restored has been continued already, or the engine was reset.")
        self._known = None
        return run

    def _check_idle(self) -> None:
        if (state := self.state) is not EngineState.IDLE:
            raise IllegalTransition(f"The engine is {state}; it can run when it is idle: reset() it first.")

    async def _deliver(self, begin: Callable[[], Run], known: int) -> AsyncGenerator[EngineEvent, None]:
        """The events of a run; of what was known before, only those that had not been delivered."""
        run, said = begin(), self._undelivered
        projection = Projection(counts_failures=self.on_task_error == "continue")
        try:
            async with aclosing(aiter(run)) as facts:
                async for fact in facts:
                    events = projection.say(fact)
                    if fact.seq is None:
                        continue
                    if fact.seq >= known:
                        said.extend(events)
                    if fact.seq >= known - 1:
                        while said:
                            yield said.popleft()
                    if run.pausing and self._has_failed(projection.state):
                        run.resume()  # an error goes before a pause (4c)
        except RunFailed:
            if not run.state.over and run.state.failure is None:
                raise

    def _has_failed(self, state: State) -> bool:
        """Whether a call has failed that the engine will end with."""
        ends = (call.end for call in state.calls.values() if call.hidden)
        return any(
            end is not None and end.is_error and (end.name != EXECUTE or self.on_task_error == "fail") for end in ends
        )

    # -- controlling -----------------------------------------------------------------------------------------------

    def pause(self, anytime: bool = False) -> bool:
        """Finish what is in flight and start nothing more; False unless tasks are being scheduled or executed.

        `anytime`: also while the goal is received, the context fetched or the goal decomposed.
        """
        allowed = self.state in (WORKING if anytime else PAUSABLE)
        return allowed and self._run is not None and self._run.pause()

    def resume(self) -> bool:
        """Go on in the state the engine was paused in; False where it is not paused."""
        return self.state is EngineState.PAUSED and self._run is not None and self._run.resume()

    def cancel(self, reason: str = "cancelled") -> bool:
        """End what the engine is doing, in the state error; False where it does nothing."""
        return self._run is not None and self._run.cancel(reason)

    def reset(self) -> None:
        """Back to idle, with nothing kept; what is paused is cancelled.

        Raises UsageError while the engine is working: pause or cancel it, or close its events.
        """
        if self._live and self._run is not None:
            if not self._run.state.paused:
                raise UsageError("The engine is running; pause or cancel it, or close its events, and then reset it.")
            self._run.cancel("reset")
        self._run, self._moved, self._known, self._undelivered = None, EngineState.IDLE, None, deque()

    def transition_to(self, state: EngineState | str) -> None:
        """Move the engine to another state of the machine; one that has a run is paused, resumed, cancelled or reset.

        Raises IllegalTransition where the table does not allow it, and where only the run itself gets there.
        """
        here, there = self.state, EngineState(state)
        if there not in VALID_STATE_TRANSITIONS[here]:
            allowed = ", ".join(VALID_STATE_TRANSITIONS[here])
            raise IllegalTransition(f"An engine cannot go from {here} to {there}; from {here} it can go to {allowed}.")
        if there is EngineState.IDLE:
            self.reset()
        elif self._run is None:
            self._moved = there
        elif not self._steer(here, there):
            raise IllegalTransition(f"The engine goes from {here} to {there} by itself, when it has come that far.")

    def _steer(self, here: EngineState, there: EngineState) -> bool:
        if there is EngineState.PAUSED:
            return self.pause()
        if there is EngineState.ERROR:
            return self.cancel()
        assert self._run is not None
        return here is EngineState.PAUSED and self._run.phase == there and self.resume()

    # -- snapshots -------------------------------------------------------------------------------------------------

    def create_snapshot(self) -> dict[str, Any]:
        """The engine as it stands, as JSON data (`snapshot`); at any time."""
        if self._run is None:
            return snapshots.take(State(), (), self._moved, ())
        events = self._run.events
        return snapshots.take(fold(events), events, self.state, self._undelivered)

    def restore_from_snapshot(self, snapshot: Any, **options: Unpack[StartOptions]) -> bool:
        """Stand where the snapshot was taken; `continue_` goes on from there. False, with a line in the log and nothing
        changed, where it is no snapshot.

        options: as for `start`, for what is continued. Raises UsageError while the engine is running.
        """
        if self._live:
            raise UsageError("The engine is running; cancel it, or close its events, before it is restored.")
        try:
            read = snapshots.read(snapshot)
        except TaskError as error:
            logger.warning("A snapshot was refused: %s", error)
            return False
        self.reset()
        if read.state is not EngineState.IDLE:
            facts = facts_of(read, self.begin(read.user_input))
            self._run = self._start(recording=facts, **options)
            self._known = len(facts)
            self._undelivered.extend(EngineEvent(e.event_type, e.data, e.timestamp) for e in read.undelivered)
        return True
