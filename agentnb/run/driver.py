"""The driver: the async shell around scheduler and executor (ARCHITECTURE.md, 2. How a run works).

`pump` is an async generator that advances a run, and yields whenever there may be new events. The code that iterates
over it sets the pace: a consumer that pulls events, a task that drains it, a step that stops at its boundary. The
scheduler decides, the executor performs; the driver awaits what takes time, waits for wakeups, and interrupts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from agentnb.core.errors import THROWN_IN, RunFailed, printable
from agentnb.core.events import CallEnd, Event, ModelFailed
from agentnb.core.required_effects import Effect
from agentnb.core.state import CallState, State
from agentnb.run.approvals.context import LiveContexts
from agentnb.run.approvals.outcomes import expire, next_deadline
from agentnb.run.approvals.policy import Policy
from agentnb.run.event_data import error_info
from agentnb.run.executor import Executor
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate, limit_message
from agentnb.run.headless import Unattended
from agentnb.run.inline_task import InlineTask
from agentnb.run.journal import Journal
from agentnb.run.mailbox import finish_handing_on
from agentnb.run.scheduler import Halt, Pace, Wait
from agentnb.run.synthetic_results import end_at_limit, end_run
from agentnb.run.tasks import InFlight, until_done, warn_of
from agentnb.run.wakeup import RETRY_SECONDS, Wakeup

LOOK_SECONDS = 1.0
"""The seconds between two checks of the deadlines of questions."""

STEPS, BREATH = 100, 0.1
"""The number of steps, and the seconds, after which the pump lets the event loop take a turn if it never has to wait.

Normally the number of steps decides, so that the order of events does not depend on how busy the machine is. The
seconds decide if the code of a tool, a hook or a model blocks.
"""


class Driver:
    """Drives one run. Call its methods in the event loop that iterates over `pump`, unless their docstring differs."""

    def __init__(
        self,
        journal: Journal,
        gate: Gate,
        policy: Policy | None,
        first: Event | None,
        *,
        judges_open_questions: bool = False,
    ) -> None:
        """judges_open_questions: the policy is new, so it is also asked about the open questions of a recording."""
        self._journal = journal
        self._gate = gate
        self._state: State = journal.state
        self._first = first
        self._inline = InlineTask()
        self._performed: Effect | None = None
        self._is_pumped = False
        self._driving: asyncio.Task[object] | None = None
        """The task that only drives the run, or None. It performs an effect itself if no other is in flight."""
        self.is_stuck = False
        """Whether the run has crashed and its end could not be recorded: driving it again would crash again."""
        self.is_left = False
        """Whether the last owner has left before the end of the run, while others wait for the run."""
        self.wakeup = Wakeup(journal, self._note_crash)
        self._inflight = InFlight(self.wakeup)
        self._inflight.run_id, self._inflight.name_of = journal.run_id, self._name_of
        contexts = LiveContexts(journal)
        self.unattended = Unattended(journal, gate, self._inflight, contexts)
        self._executor = Executor(
            journal, gate, self._inflight, policy, contexts, judges_open_questions=judges_open_questions
        )

    @property
    def crash(self) -> BaseException | None:
        """The error of the loop, the driver or the store that has crashed the run; None if there is none."""
        return self._inflight.crash

    @property
    def cause(self) -> BaseException | None:
        """The exception behind the error that the run has ended with; None if this process does not have it."""
        failure = self._executor.loops[0].calling.failure
        if self.crash is not None or failure is None or failure[0] is not self._state.error:
            return self.crash
        return failure[1]

    def _note_crash(self, error: BaseException) -> None:
        self._inflight.crash = error

    def unasked(self) -> list[tuple[Frame, CallState]]:
        """Return the calls that wait for a person, but whose question is not recorded before the run is driven.

        Either their outcome is unknown after a crash, or their decision was withdrawn and the process exited.
        """
        if self.wakeup.loop is not None:
            return []
        calls = [(loop.frame, call) for loop in self._executor.loops for call in loop.frame.state.open.values()]
        return [
            (frame, call)
            for frame, call in calls
            if frame.asks_where_it_was_lost(call) or (call.status == "asking" and call.approval is None)
        ]

    def begin(self) -> None:
        """Append the first event of this run, unless it has been appended. Safe from every thread."""
        with self._journal.lock:
            if self._first is not None:
                first, self._first = self._first, None
                self._journal.append(first)
            finish_handing_on(self._journal)

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that has effects in flight, if it is not the caller's: the run has to be driven there.

        None if there are no effects in flight, or if they are in the caller's event loop.
        """
        loop = self.wakeup.loop if self._inflight else None
        return loop if loop is not None and loop.is_running() and not self.wakeup.is_here() else None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in flight, or everything in flight rests at the gate."""
        return self._inflight.is_at_rest

    async def pump(self, pace: Pace) -> AsyncGenerator[None, None]:
        """Advance the run until it has ended. With the pace "step", stop when the permit of the step is used up.

        Raises RunFailed if the model, the loop or the driver failed.
        """
        clock, inline, state = time.monotonic, self._inline, self._state
        steps, breath, lock = 0, clock() + BREATH, self._journal.lock
        timer: asyncio.TimerHandle | None = None
        self._is_pumped = True
        if pace == "drain":
            self._driving = asyncio.current_task()
        try:
            if self.wakeup.move_in():  # effects in another event loop are lost; the scheduler resumes them here
                self._inflight.clear()
            self._inflight.begin()
            timer = self._start_clock()
            self.begin()
            if pace == "pull":
                yield
            while state.stop_reason is None:
                with lock:  # another thread may decide or end calls: the state must not change during a step
                    todo = self._executor.take_step(pace)
                if isinstance(todo, Wait):
                    await self._wait()
                    breath = clock() + BREATH
                elif isinstance(todo, Halt):
                    if todo.error is not None:
                        raise todo.error
                    if todo.why == "failed":
                        raise self.failed()
                    break
                elif todo is not None:
                    self._performed, performance = todo
                    while await inline.perform(performance):
                        if pace == "pull":
                            yield
                        # The gate does not hold back the deltas of a model, so it is not checked after each of them:
                        # that would take a quarter more time.
                        while (todo[0].kind != "model" or state.over) and await self._holds(todo[0]):
                            if pace == "pull":
                                yield
                    if inline.is_late:
                        self._leave_what_is_late()
                    self._performed = None
                    inline.raise_if_cancelled()
                steps += 1
                if steps == STEPS or clock() > breath:  # a run that never waits must not block other tasks
                    await asyncio.sleep(0)
                    steps, breath = 0, clock() + BREATH
                if pace == "pull":
                    yield
            if state.over:
                await self.close()
            await self.written()
        except (RunFailed, asyncio.CancelledError, *THROWN_IN):
            raise
        except BaseException as error:  # it ends the run (ARCHITECTURE.md, 3. Three kinds of failure)
            self._note_crash(error)
            self._end_with_error(error)
            raise RunFailed(f"{type(error).__name__}: {error}") from error
        finally:
            if timer is not None:
                timer.cancel()
            if self._performed is not None and inline.is_busy:
                if pace == "pull" and self.is_left:
                    self._inflight.spawn(self._performed, inline.hand_over())
                else:
                    await inline.close(self._inflight.seconds_to_close())
                    if inline.is_late:
                        self._leave_what_is_late()
            self._performed = None
            self._is_pumped, self._driving = False, None
            self.wakeup.flush()
            inline.raise_if_cancelled()

    def _end_with_error(self, error: BaseException) -> None:
        try:
            end_run(self._journal, "error", error_info(error))
        except Exception as worse:
            why = printable(f"{type(worse).__name__}: {worse}", but="\n\t")
            error.add_note(f"The end of the run could not be recorded: {why}")
        self.is_stuck = not self._state.over

    async def close(self) -> None:
        """Cancel what is in flight, and wait until every task has run its `finally`: nothing outlives the run.

        An effect that has not ended after 2 seconds is named in a warning and left behind. If the caller is cancelled
        meanwhile, the cancellation is raised afterwards.
        """
        if self.wakeup.is_here():  # effects in another event loop cannot be awaited here
            cancelled = await self._inflight.close()
            if self._driving is not None and self._driving is not asyncio.current_task():
                cancelled = await until_done([self._driving], self._inflight.seconds_to_close()) or cancelled
            if cancelled is not None:
                raise cancelled

    async def written(self) -> None:
        """Write the appended events to disk. The end of a run waits at most 2 seconds for a locked store.

        Events that are not written then are named in a warning, and written when the lock is released. Raises
        StorageError if the store fails.
        """
        while not self.wakeup.flush():
            if self.crash is not None:
                raise self.crash
            if not self._state.over:
                return
            if not (seconds := self._inflight.seconds_to_close()):
                self.wakeup.leave_to_host()
                what = self.wakeup.words_of(self.wakeup.locked)
                warn_of(f"The run has ended, but {what} They are written when the lock is gone.")
                return
            await asyncio.sleep(min(seconds, RETRY_SECONDS))

    def _leave_what_is_late(self) -> None:
        """Leave the interrupted effect behind that was performed in place and has not ended in time."""
        if self._performed is not None:
            rest = self._inline.hand_over()
            self._inflight.leave(self._performed, asyncio.get_running_loop().create_task(rest()))

    def _name_of(self, effect: Effect) -> str:
        frame = self._journal.frame_at(effect.path)
        where = f" of {frame.design.name!r}" if frame is not None else f" in {effect.path!r}"
        if effect.kind == "model":
            return f"The request to the model{where}"
        ends = (event for event in reversed(self._journal.events) if isinstance(event, CallEnd))
        names = (end.name for end in ends if (end.path, end.call_id) == (effect.path, effect.id))
        call = frame.state.open.get(effect.id) if frame is not None else None
        return f"The call {call.name if call is not None else next(names, effect.id)!r}{where}"

    # -- pausing and ending ----------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait until a wakeup, or until a deadline has passed."""
        if not self.unattended.needs_person:  # no deadline applies
            await self.wakeup.wait(None)
            return
        with self._journal.lock:
            deadline, due = next_deadline(self._journal), self.unattended.due()
            left = [due - time.monotonic()] if due is not None else []
            if deadline is not None:  # no timer fires on time after the computer has slept: check regularly
                left.append(min(deadline - self._journal.now(), LOOK_SECONDS))
        await self.wakeup.wait(min(left, default=None))
        if left:
            expire(self._journal)
            self.unattended.decide()

    async def _holds(self, performed: Effect) -> bool:
        """Return True if the gate holds back the loop's own call that is performed in place.

        Before it returns True, it waits for a wakeup or records a pause.
        """
        self._journal.fresh = False
        if self._state.over:
            self._interrupt()  # now, not at the event loop's next turn: the code must not continue
            return False
        frame = self._journal.frame_at(performed.path) or self._journal.root
        if self._gate.is_open(self._state, finishing=frame.finishes_calls):
            return False
        if not self._executor.settle_pause():
            await self._wait()
        return True

    def end_cancelled(self) -> None:
        """End a cancelled run, and interrupt what is in flight. Safe from every thread."""
        end_run(self._journal, "cancelled")
        self.wakeup.call(self._interrupt)

    def _end_at_limit(self, why: str) -> None:
        if self._gate.stop_at_limit(why):
            self.wakeup.wake()
            return
        end_at_limit(self._journal, why)
        self._interrupt()

    def _interrupt(self) -> None:
        if self._performed is None or not self._executor.may_return(self._performed):
            self._inline.interrupt(self._inflight.seconds_to_close())
        if self._state.over and not self._is_pumped:  # between two steps the scheduler does not cancel it
            self._inflight.cancel_all_but((), self._executor.may_return)
        self.wakeup.wake()

    def failed(self) -> RunFailed:
        """Return the RunFailed to raise for a failure of the model. Its cause is the exception, if it is known here."""
        # Not from the state: another thread may have resumed the run since the failure was seen.
        failure = next(event.error for event in reversed(self._journal.events) if isinstance(event, ModelFailed))
        error = RunFailed(f"The model failed: {failure.type}: {failure.message} (run.resume() asks again.)")
        failed = [loop for loop in self._executor.loops if loop.frame.state.failure is not None]
        error.__cause__ = failed[-1].asking.error if failed else None
        return error

    def _start_clock(self) -> asyncio.TimerHandle | None:
        """Schedule the end of the run at its limit `seconds`. Returns the timer; None if the run has no such limit."""
        seconds = self._gate.limits.get("seconds")
        if seconds is None:
            return None
        why = limit_message("seconds", seconds)
        left = max(0.0, seconds - self._gate.seconds_driven())
        return asyncio.get_running_loop().call_later(left, self._end_at_limit, why)
