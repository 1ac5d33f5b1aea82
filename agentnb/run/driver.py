"""The driver: makes what the state wants happen, and nothing else (ARCHITECTURE.md, 2. How a run works).

`pump` is an async generator that moves a run on, and yields whenever there may be news. Whoever iterates over it sets
the pace: a consumer that pulls events, a task that drains it, a step that stops at its boundary. What it does next, one
thing after the other, the scheduler decides; what takes time is done here, and waited for, and broken off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from agentnb.core.errors import THROWN_IN, RunFailed
from agentnb.core.events import CallEnd, Event, ModelFailed
from agentnb.core.state import CallState, State
from agentnb.core.unicode import printable
from agentnb.core.wanted import Effect
from agentnb.run.approvals.context import LiveContexts
from agentnb.run.approvals.outcomes import expire, next_deadline
from agentnb.run.approvals.policy import Policy
from agentnb.run.executor import Executor
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate
from agentnb.run.headless import Unattended
from agentnb.run.inline_task import InlineTask
from agentnb.run.journal import Journal
from agentnb.run.mailbox import finish_handing_on
from agentnb.run.portable import error_info
from agentnb.run.scheduler import Halt, Pace, Wait
from agentnb.run.synthetic_results import end_at_limit, end_run
from agentnb.run.tasks import InFlight, warn_of
from agentnb.run.wakeup import RETRY_SECONDS, Wakeup

LOOK_SECONDS = 1.0
"""Between two looks whether the deadline of a question has passed."""

STEPS, BREATH = 100, 0.1
"""After how many steps, or seconds, the pump lets the event loop take a turn, where nothing it does ever waits.

By steps as a rule, so that what happens in which order does not depend on how busy the machine is; by seconds where the
code of tools, hooks or models holds it up.
"""


class Driver:
    """Drives one run. Its methods belong to the event loop that pumps, except those that say otherwise."""

    def __init__(
        self,
        journal: Journal,
        gate: Gate,
        policy: Policy | None,
        first: Event | None,
        *,
        judges_open_questions: bool = False,
    ) -> None:
        """`judges_open_questions`: the policy is a new one, and the open questions of a recording are put to it too."""
        self._journal = journal
        self._gate = gate
        self._state: State = journal.state
        self._first = first
        self._inline = InlineTask()
        self._performed: Effect | None = None
        self._is_pumped = False
        self._driving: asyncio.Task[object] | None = None
        """The task that only drives the run, if there is one; it awaits in place what is alone in flight."""
        self.is_stuck = False
        """Whether it has crashed and could not even be ended by that: to drive it on would be to crash again."""
        self.goes_on: Callable[[], bool] = lambda: False
        """Whether others drive on where whoever pumps leaves."""
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
        """What went wrong with the loop, the driver or the store, where something did."""
        return self._inflight.crash

    @property
    def cause(self) -> BaseException | None:
        """The exception behind the error that the run has ended with, where that is at hand."""
        failure = self._executor.loops[0].calling.failure
        if self.crash is not None or failure is None or failure[0] is not self._state.error:
            return self.crash
        return failure[1]

    def _note_crash(self, error: BaseException) -> None:
        self._inflight.crash = error

    def unasked(self) -> list[tuple[Frame, CallState]]:
        """The calls that wait for a person and that nobody was asked about: they are asked about once it is driven.

        Nobody knows how they ended, or the process ended that had taken back what was decided about them.
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
        """Make the run's first fact one, where it is not yet. Safe from every thread."""
        with self._journal.lock:
            if self._first is not None:
                first, self._first = self._first, None
                self._journal.append(first)
            finish_handing_on(self._journal)

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that has calls in flight, where the caller is not in it: the run has to be driven there."""
        loop = self.wakeup.loop if self._inflight else None
        return loop if loop is not None and loop.is_running() and not self.wakeup.is_here() else None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing happens in what is in flight, or nothing is."""
        return self._inflight.is_at_rest

    async def pump(self, pace: Pace) -> AsyncGenerator[None, None]:
        """Move the run on until it is over, or until a step's permit is used up and nobody else drives.

        Raises RunFailed when the model failed, and when the loop or the driver did.
        """
        clock, inline, state = time.monotonic, self._inline, self._state
        steps, breath, lock = 0, clock() + BREATH, self._journal.lock
        timer: asyncio.TimerHandle | None = None
        self._is_pumped = True
        if pace == "drain":
            self._driving = asyncio.current_task()
        try:
            if self.wakeup.move_in():  # the work takes up the calls that ran in another event loop
                self._inflight.clear()
            self._inflight.begin()
            timer = self._start_clock()
            self.begin()
            if pace == "pull":
                yield
            while state.stop_reason is None:
                with lock:  # what it looks at is what it decides about: another thread may decide or end calls
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
                        # Nothing holds a model's words back; to ask at each of them would make it a quarter dearer.
                        while (todo[0].kind != "model" or state.over) and await self._holds(todo[0]):
                            if pace == "pull":
                                yield
                    self._leave_what_is_late()
                    self._performed = None
                steps += 1
                if steps == STEPS or clock() > breath:  # what never waits must not keep everybody else waiting
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
            self._end_in(error)
            raise RunFailed(f"{type(error).__name__}: {error}") from error
        finally:
            if timer is not None:
                timer.cancel()
            if self._performed is not None and inline.is_busy:
                if self.goes_on():
                    self._inflight.spawn(self._performed, inline.hand_over())
                else:
                    await inline.close(self._inflight.seconds_to_close())
                    self._leave_what_is_late()
            self._performed = None
            self._is_pumped, self._driving = False, None
            self.wakeup.flush()

    def _end_in(self, error: BaseException) -> None:
        try:
            end_run(self._journal, "error", error_info(error))
        except Exception as worse:
            why = printable(f"{type(worse).__name__}: {worse}", but="\n\t")
            error.add_note(f"The run could not be ended by this: {why}")
        self.is_stuck = not self._state.over

    async def close(self) -> None:
        """Cancel what is in flight, and wait until every task has run its `finally`: nothing outlives the run.

        What has not ended after 2 seconds is named and left.
        """
        if self.wakeup.is_here():  # what another event loop has left in flight is not waited for here
            await self._inflight.close()
            if self._driving is not None and self._driving is not asyncio.current_task():
                await asyncio.wait([self._driving], timeout=self._inflight.seconds_to_close())

    async def written(self) -> None:
        """Write what has become fact. The end of a run waits for a store that is locked, for 2 seconds at most.

        What is not written then is named, and written when the lock is gone. Raises StorageError where the store fails.
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
        """Leave to itself what the pump has performed, where it was broken off and does not end."""
        if self._inline.is_late and self._performed is not None:
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
        """Until there is news, or a deadline has passed."""
        with self._journal.lock:
            deadline, due = next_deadline(self._journal), self.unattended.due()
            left = [due - time.monotonic()] if due is not None else []
            if deadline is not None:  # a computer that has slept does not wake anybody up: it is looked at now and then
                left.append(min(deadline - self._journal.now(), LOOK_SECONDS))
        await self.wakeup.wait(min(left, default=None))
        if left:
            expire(self._journal)
            self.unattended.decide()

    async def _holds(self, performed: Effect) -> bool:
        """Whether a step of a loop's own that the pump performs has to stand where it is; waits for news of that."""
        self._journal.fresh = False
        if self._state.over:
            self._interrupt()  # and not only when the event loop gets to it: its code does not go on
            return False
        frame = self._journal.frame_at(performed.path) or self._journal.root
        if self._gate.is_open(self._state, finishing=frame.finishes_calls):
            return False
        if not self._executor.settle_pause():
            await self._wait()
        return True

    def end_cancelled(self) -> None:
        """End the run that is cancelled, and break off what is in flight. Safe from every thread."""
        end_run(self._journal, "cancelled")
        self.wakeup.call(self._interrupt)

    def _run_out(self, why: str) -> None:
        end_at_limit(self._journal, why)
        self._interrupt()

    def _interrupt(self) -> None:
        if self._performed is None or not self._executor.may_return(self._performed):
            self._inline.interrupt(self._inflight.seconds_to_close())
        if self._state.over and not self._is_pumped:  # between two steps nobody else sees to it
            self._inflight.cancel_all_but((), self._executor.may_return)
        self.wakeup.wake()

    def failed(self) -> RunFailed:
        """The model's failure, as the error to raise; its cause is the exception itself where that is at hand."""
        # Not from the state: another thread may have resumed the run since the failure was seen.
        failure = next(event.error for event in reversed(self._journal.events) if isinstance(event, ModelFailed))
        error = RunFailed(f"The model failed: {failure.type}: {failure.message} (run.resume() asks again.)")
        failed = [loop for loop in self._executor.loops if loop.frame.state.failure is not None]
        error.__cause__ = failed[-1].asking.error if failed else None
        return error

    def _start_clock(self) -> asyncio.TimerHandle | None:
        """Let the limit on seconds end the run while it waits."""
        seconds = self._gate.limits.get("seconds")
        if seconds is None:
            return None
        why = f"The limit of {seconds:g} seconds is reached."
        left = max(0.0, seconds - self._gate.seconds_driven())
        return asyncio.get_running_loop().call_later(left, self._run_out, why)
