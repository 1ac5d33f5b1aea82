"""The engine's own methods: one run at a time, pulled by its consumer, with the design's words for controlling it.

They cover the core's Run. Its facts are pulled one by one and said in the engine's words (`stream`), so the
engine never runs ahead of whoever reads it; where it stands is folded from the same facts. Pausing follows the
published rule, only while tasks are scheduled or executed, and `state` says paused from the request on, while
ENGINE_PAUSED waits for the task that runs (SEMANTICS.md, 6. Pausing).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

from agentnb.core.errors import IllegalTransition, RunFailed, UsageError
from agentnb.core.evolve import fold
from agentnb.core.maybe_async import Inside
from agentnb.core.messages import input_messages, plain_message, to_plain
from agentnb.core.state import State
from agentnb.loops.conversation_engine import snapshot as snapshots
from agentnb.loops.conversation_engine.delivery import Delivery, gone_on_from
from agentnb.loops.conversation_engine.restore import facts_of
from agentnb.loops.conversation_engine.standing import EngineStanding
from agentnb.loops.conversation_engine.states import PAUSABLE, VALID_STATE_TRANSITIONS, WORKING, EngineState
from agentnb.loops.conversation_engine.stream import EngineEvent
from agentnb.loops.conversation_engine.tasks import TaskError
from agentnb.loops.options import StartOptions

if TYPE_CHECKING:
    from agentnb.run import Run

logger = logging.getLogger("agentnb")


class EngineControls(EngineStanding):
    """What ConversationEngine is besides its decision."""

    def __init__(self, llm: Any = None, *, name: str | None = None) -> None:
        super().__init__(llm, name=name)
        self._delivery = Delivery()

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, user_input: Any, **options: Unpack[StartOptions]) -> AsyncGenerator[EngineEvent, None]:
        """Work on a goal; the engine's events, as they are asked for. Closing them early ends the engine in an error.

        options: as for `start`. Raises IllegalTransition unless the engine is idle: `reset` it first; and UsageError
        where the goal is a message without a role.
        """
        self._check_idle()
        is_several = isinstance(user_input, (list, tuple))
        try:
            input_messages(to_plain([*map(plain_message, user_input)] if is_several else plain_message(user_input)))
        except ValueError as error:
            raise UsageError(
                f"A goal is text, a message with role and content, or an object that is none, not {user_input!r}."
            ) from error
        return self._stream(lambda: self._begin(user_input, options))

    def continue_(self) -> AsyncGenerator[EngineEvent, None]:
        """Go on after `restore_from_snapshot`, resuming where it was paused; only what has not happened yet.

        Raises UsageError where nothing was restored, and IllegalTransition where the engine had failed and said so.
        """
        run = self._run
        if run is None or self._delivery.taken_up:
            raise UsageError("There is nothing to continue: restore a snapshot first, or run the engine.")
        if self.state is EngineState.ERROR and not self._delivery.carried:
            raise IllegalTransition("The engine has failed; reset() it, and run it again.")
        return self._stream(lambda: self._take_up(run))

    def _begin(self, user_input: Any, options: StartOptions) -> tuple[Run, Delivery]:
        self._check_idle()
        self._run = self.start(user_input, **options)
        self._delivery = Delivery(counts_failures=self.on_task_error == "continue")
        return self._run, self._delivery

    def _take_up(self, run: Run) -> tuple[Run, Delivery]:
        if run is not self._run or self._delivery.taken_up:
            raise UsageError("What was restored has been continued already, or the engine was reset.")
        self._delivery.taken_up = True
        return run, self._delivery

    def _check_idle(self) -> None:
        if (state := self.state) is not EngineState.IDLE:
            raise IllegalTransition(f"The engine is {state}; it can run when it is idle: reset() it first.")

    def _stream(self, begin: Callable[[], tuple[Run, Delivery]]) -> AsyncGenerator[EngineEvent, None]:
        events = self._deliver(begin, lambda: stream())
        stream = weakref.ref(events)
        return events

    async def _deliver(
        self, begin: Callable[[], tuple[Run, Delivery]], stream: Callable[[], object]
    ) -> AsyncGenerator[EngineEvent, None]:
        """The events of a run; of what was known before, only those that had not been delivered."""
        run, delivery = begin()
        if not run.driven:  # otherwise whoever drives it goes on when this stream is left
            delivery.stream = stream
        projection = delivery.projection()
        try:
            async with aclosing(Inside(aiter(run))) as facts:
                async for fact in facts:
                    for event in delivery.tell(fact, projection.say(fact)):
                        yield event
                    if run.pausing and self._has_failed(projection.state):
                        run.resume()  # an error goes before a pause (SEMANTICS.md, 4. Algorithm)
        except RunFailed:
            if not run.state.over and run.state.failure is None:
                raise

    # -- controlling -----------------------------------------------------------------------------------------------

    def pause(self, anytime: bool = False) -> bool:
        """Finish what is in flight and start nothing more; False unless tasks are being scheduled or executed, and
        where one has failed that the engine ends with.

        `anytime`: also while the goal is received, the context fetched or the goal decomposed.
        """
        if self._run is None or self._has_failed(self._run.state):
            return False
        return self.state in (WORKING if anytime else PAUSABLE) and self._run.pause()

    def resume(self) -> bool:
        """Go on in the state the engine was paused in; False where it is not paused."""
        return self.state is EngineState.PAUSED and self._run is not None and self._run.resume()

    def cancel(self, reason: str = "cancelled") -> bool:
        """End what the engine is doing, in the state error; False where it does nothing."""
        return self._run is not None and self._run.cancel(reason)

    def _end_what_was_left(self) -> None:
        """Cancel the run whose reader has left it, by a `break`: the event loop would close its stream only later."""
        if self._run is not None and self._live and self._delivery.is_left:
            self._run.cancel("its consumer was closed")

    def reset(self) -> None:
        """Back to idle, with nothing kept; what is paused, or left by whoever read its events, is cancelled.

        Raises UsageError while the engine is working: pause or cancel it, or close its events.
        """
        self._end_what_was_left()
        if self._live and self._run is not None:
            if not self._run.state.paused:
                raise UsageError("The engine is running; pause or cancel it, or close its events, and then reset it.")
            self._run.cancel("reset")
        self._run, self._moved, self._delivery = None, EngineState.IDLE, Delivery()

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
        told, pausing = self._delivery.told, self._run.pausing  # before the facts: whoever drives may move on
        events = self._run.events
        state = fold(events)
        shown = self._shown(state, pausing)
        past = gone_on_from(events, state, pausing=shown is EngineState.PAUSED and not state.paused)
        return snapshots.take(state, events, shown, self._delivery.undelivered(past, told))

    def restore_from_snapshot(self, snapshot: Any, **options: Unpack[StartOptions]) -> bool:
        """Stand where the snapshot was taken; `continue_` goes on from there. False, with a line in the log and nothing
        changed, where it is no snapshot.

        options: as for `start`, for what is continued. Raises UsageError while the engine is running.
        """
        self._end_what_was_left()
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
            carries = tuple(read.undelivered)
            self._delivery = Delivery(self.on_task_error == "continue", len(facts), carries, taken_up=False)
        return True
