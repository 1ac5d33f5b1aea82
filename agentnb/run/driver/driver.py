"""The driver: makes what the state wants happen, and nothing else (DESIGN 1).

`pump` is an async generator that moves a run on, and yields whenever there may be news. Whoever iterates over it sets
the pace: a consumer that pulls events, a task that drains it, a step that stops at its boundary. It does one thing
after the other, for the outermost loop and for those that run inside it:

    start what is wanted and not in flight, cancel what is in flight and no longer wanted;
    where nothing of a loop is wanted and nothing in flight, ask its design for the next fact;
    otherwise wait for news.

A loop inside another performs one of its calls: where such a call is started, the loop begins, with facts of its own
under its own path; where the loop is over, its output is the call's result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from agentnb.core.errors import THROWN_IN, RunFailed
from agentnb.core.events import Event, RunPaused
from agentnb.core.state import CallState, State
from agentnb.core.wanted import Effect
from agentnb.run.approvals.outcomes import expire, next_deadline
from agentnb.run.approvals.policy import Policy
from agentnb.run.driver.advancing import advance
from agentnb.run.driver.listening import finish_handing_on
from agentnb.run.driver.nesting import Nesting
from agentnb.run.driver.unattended import Unattended
from agentnb.run.effects.endings import end_at_limit, end_run
from agentnb.run.effects.inflight import InFlight
from agentnb.run.effects.interrupt import Inline
from agentnb.run.effects.starting import Pace, ToPerform, Work
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate
from agentnb.run.journal import Journal
from agentnb.run.news import News
from agentnb.run.portable import error_info

Idle = Literal["wait", "halt"]
"""wait: until there is news. halt: nobody drives the run to its end, and the permit is used up."""

STEPS, BREATH = 100, 0.1
"""After how many steps, or seconds, the pump lets the event loop take a turn, where nothing it does ever waits.

By steps as a rule, so that what happens in which order does not depend on how busy the machine is; by seconds where the
code of tools, hooks or models holds it up.
"""


class Driver:
    """Drives one run. Its methods belong to the event loop that pumps, except those that say otherwise."""

    def __init__(self, journal: Journal, gate: Gate, policy: Policy | None, first: Event | None) -> None:
        self._journal = journal
        self._gate = gate
        self._policy = policy
        self._state: State = journal.state
        self._first = first
        self._inline = Inline()
        self._performed: Effect | None = None
        self._is_pumped = False
        self.news = News(journal, self._note_crash)
        self._inflight = InFlight(self.news)
        self.unattended = Unattended(journal, gate, self._inflight)
        self._nesting = Nesting(journal, self._make_work)
        self._works = self._nesting.works
        self._nesting.begin()

    def _make_work(self, frame: Frame) -> Work:
        return Work(frame, self._journal, self._gate, self._inflight, self._policy, self._nesting.enter)

    @property
    def crash(self) -> BaseException | None:
        """What went wrong with the loop, the driver or the store, where something did."""
        return self._inflight.crash

    @property
    def cause(self) -> BaseException | None:
        """The exception behind the error that the run has ended with, where that is at hand."""
        failure = self._works[0].calling.failure
        if self.crash is not None or failure is None or failure[0] is not self._state.error:
            return self.crash
        return failure[1]

    def _note_crash(self, error: BaseException) -> None:
        self._inflight.crash = error

    def lost(self) -> list[tuple[Frame, CallState]]:
        """The calls of which nobody knows how they ended, before the run is driven: then they are asked about."""
        if self.news.loop is not None:
            return []
        frames = [work.frame for work in self._works]
        return [(f, call) for f in frames for call in f.state.open.values() if f.asks_where_it_was_lost(call)]

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
        loop = self.news.loop if self._inflight else None
        return loop if loop is not None and loop.is_running() and not self.news.is_here() else None

    async def pump(self, pace: Pace) -> AsyncGenerator[None, None]:  # noqa: C901 - one loop, read from top to bottom
        """Move the run on until it is over, or until a step's permit is used up and nobody else drives.

        Raises RunFailed when the model failed, and when the loop or the driver did.
        """
        if self.news.move_in():  # the work takes up the calls that ran in another event loop
            self._inflight.clear()
        self._is_pumped = True
        finish_handing_on(self._journal)
        timer, clock, inline, state = self._start_clock(), time.monotonic, self._inline, self._state
        steps, breath = 0, clock() + BREATH
        try:
            while state.stop_reason is None:
                todo = self._next(pace)
                if todo is None:
                    pass
                elif todo == "halt":
                    break
                elif todo == "wait":
                    await self._wait()
                    breath = clock() + BREATH
                else:
                    self._performed, performance = todo
                    while await inline.perform(performance):
                        if pace == "pull":
                            yield
                        # Nothing holds a model's words back; to ask at each of them would make it a quarter dearer.
                        while (todo[0].kind != "model" or state.over) and await self._holds(todo[0]):
                            if pace == "pull":
                                yield
                    self._performed = None
                steps += 1
                if steps == STEPS or clock() > breath:  # what never waits must not keep everybody else waiting
                    await asyncio.sleep(0)
                    steps, breath = 0, clock() + BREATH
                if pace == "pull":
                    yield
            if state.over:
                await self.close()
            self._journal.flush()
        except (RunFailed, asyncio.CancelledError, *THROWN_IN):
            raise
        except BaseException as error:  # ours or the loop's: it ends the run, loudly (DESIGN 1)
            self._note_crash(error)
            end_run(self._journal, "error", error_info(error))
            raise RunFailed(f"{type(error).__name__}: {error}") from error
        finally:
            if timer is not None:
                timer.cancel()
            await inline.close()
            self._performed = None
            self._is_pumped = False
            self.news.flush()

    def _next(self, pace: Pace) -> ToPerform | Idle | None:  # noqa: C901 - what comes before what, in one place
        """Do the next thing; gives the effect that the pump is to perform itself, or what else it is to do."""
        journal, gate, state = self._journal, self._gate, self._state
        journal.fresh = False
        if self._first is not None:
            self.begin()
            return None
        if state.failure is not None:
            self._inflight.let_go_on()
            if not self._inflight.is_at_rest:  # what runs is finished first; what is looked at will be looked at again
                self._inflight.cancel_all_but((), self._is_no_check)
                return "wait"
            raise self.failed()
        if not gate.is_open(state):
            if any(work.finish_starting() for work in self._works):
                return None
            if not any(work.is_let_through() for work in self._works):
                if self._settle_pause():
                    return None
                return "halt" if pace == "step" and gate.pausing is None else "wait"
        works, inflight = self._works, self._inflight
        if inflight or len(works) > 1 or state.detached or inflight.crash is not None:
            return self._move_several(pace)
        work = works[0]
        if not (wants := work.wants()):
            self._go_on(work)
            if pace == "pull" or not (wants := work.wants()):
                return None
        todo = work.start(wants, pace, True)  # where a fact has just come, it looks whether that closes the gate
        return todo if todo is not None or journal.fresh else self._stand_still(wants)

    def _move_several(self, pace: Pace) -> ToPerform | Idle | None:
        """The same where several loops run, or where things are in flight."""
        if (crash := self._inflight.crash) is not None:
            raise crash
        works = list(self._works)
        wants = {work: work.wants() for work in works}
        everything = [effect for work in works for effect in wants[work] if effect.id not in work.inside]
        if self._inflight:
            self._inflight.cancel_all_but(everything, self._may_return)
            if self._state.cancelled is None:
                self._inflight.let_go_on()
        alone = not self._inflight and len(everything) == 1 and all(wants.values())  # the others wait for a loop inside
        works = [work for work in works if work.is_let_through()]  # a pause that waits for some holds back the others
        for work in works:
            todo = work.start(wants[work], pace, alone) if wants[work] else None
            if todo is not None or (pace == "pull" and self._journal.fresh):
                return todo
        if self._journal.fresh:
            return None
        for work in reversed(works):  # innermost first: what it comes to, the others may have waited for
            if not self._waits(work, wants[work]) and self._go_on(work):
                return None
        return self._stand_still(everything)

    def _waits(self, work: Work, wants: Sequence[Effect]) -> bool:
        """Whether something of this loop is wanted or in flight, and is no call that is detached."""
        state, path = work.frame.state, work.frame.path
        if not state.detached:
            return bool(wants) or self._inflight.any_of(path)
        about = [*wants, *(effect for effect in self._inflight if effect.path == path)]
        calls = [state.open.get(effect.id) for effect in about]
        return any(call is None or not call.detached for call in calls)

    def _go_on(self, work: Work) -> bool:
        """Let the design of a loop that waits for nothing say what comes next; False where it waits all the same."""
        if work.frame.state.stop_reason is not None:
            if work.inside:  # they are being broken off, and go first
                return False
            self._nesting.leave(work)
        elif self._state.cancelled is not None:
            end_run(self._journal, "cancelled")  # the tool that cancelled its own run is done
        else:
            return advance(work, self._journal, self._gate)
        return True

    def _stand_still(self, wants: Sequence[Effect]) -> Idle | None:
        """Nothing can be started before something happens."""
        waits_for_a_person = not self._inflight and all(effect.kind == "question" for effect in wants)
        if self._gate.permit is None or not waits_for_a_person:
            return "wait"
        expire(self._journal)
        if not self._journal.fresh:
            self._gate.release_permit()  # only a person can move the run on
        return None

    # -- what is in flight -------------------------------------------------------------------------------------------

    def _may_return(self, effect: Effect) -> bool:
        """Whether this is the call that has cancelled its own run: it is not cut off by that (see `end_run`)."""
        if self._state.cancelled is None:
            return False
        frame = self._journal.frame_at(effect.path)
        return frame is not None and effect.id in frame.state.open

    def _is_no_check(self, effect: Effect) -> bool:
        """Whether this performs something, and does not only ask whether it may be performed."""
        frame = self._journal.frame_at(effect.path)
        call = frame.state.open.get(effect.id) if frame is not None else None
        return call is None or call.status == "running"

    async def close(self) -> None:
        """Cancel what is in flight, and wait until every task has run its `finally`: nothing outlives the run."""
        await self._inflight.close()

    async def broken_off(self) -> None:
        """Wait until every task that the end of the run has broken off here has run its `finally`."""
        while self._inflight and self.news.is_here():
            await asyncio.wait(list(self._inflight.values()))

    # -- pausing and ending ----------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until there is news, or a deadline has passed."""
        deadlines = [due for due in (next_deadline(self._journal), self.unattended.due()) if due is not None]
        await self.news.wait(min(deadlines, default=None))
        if deadlines:
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
        if not self._settle_pause():
            await self._wait()
        return True

    def _settle_pause(self) -> bool:
        """Make a pause a fact once nothing is in flight; gives whether it did."""
        gate = self._gate
        if gate.pausing is None or not self._inflight.is_at_rest:
            return False
        with self._journal.lock:
            reason, gate.pausing = gate.pausing, None
            if self._state.paused:  # a step came to a breakpoint in a run that is paused, and stays so
                return False
            self._journal.append(RunPaused.make(reason=reason))
        return True

    def end_cancelled(self) -> None:
        """End the run that is cancelled, and break off what is in flight. Safe from every thread."""
        end_run(self._journal, "cancelled")
        self.news.call(self._interrupt)

    def _run_out(self, why: str) -> None:
        end_at_limit(self._journal, why)
        self._interrupt()

    def _interrupt(self) -> None:
        if self._performed is None or not self._may_return(self._performed):
            self._inline.interrupt()
        if self._state.over and not self._is_pumped:  # between two steps nobody else sees to it
            self._inflight.cancel_all_but((), self._may_return)
        self.news.wake()

    def failed(self) -> RunFailed:
        """The model's failure, as the error to raise; its cause is the exception itself where that is at hand."""
        failure = self._state.failure
        assert failure is not None
        error = RunFailed(f"The model failed: {failure.type}: {failure.message} (run.resume() asks again.)")
        failed = [work for work in self._works if work.frame.state.failure is not None]
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
