"""Ownership: who drives a run. One owner drives at a time, the others watch.

The owner is a consumer that pulls events, a caller that awaits the run, a step, or the background. It claims the run,
pumps, and releases it; the callers that wait for the release check then whether they drive. If calls of the run are in
flight in another event loop, the run is driven there: a call must not be treated as lost while it runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentnb.core.errors import RunFailed, UsageError, WaitTimeoutError
from agentnb.core.events import CancelRequested, Event, RunPaused, RunResumed
from agentnb.core.state import State
from agentnb.run import host as hosting
from agentnb.run.approvals.decisions import Decisions
from agentnb.run.driver import Driver
from agentnb.run.event_data import text_or_empty
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate, Owner, Permit, Unit, check_unit
from agentnb.run.inline_task import task_here
from agentnb.run.journal import Journal
from agentnb.run.output import output_of
from agentnb.run.tool_calls import check_not_within
from agentnb.run.wakeup import loop_here

_in_background: dict[Ownership, object] = {}
"""The runs that continue in the background. They are kept alive here, so that a variable may be used again."""


TAKEN_HERE = (
    "This code takes the run's events one by one, and the run goes on when it asks for the next; it cannot wait for the"
    " run in between. Wait for it behind the last event, or let another task take them."
)


GONE = (
    "Nothing drives this run any more: its event loop was closed, or the thread of that has ended, or both are in the"
    " process that this one was forked from."
    " agentnb.restore(run.snapshot(), loop) goes on from there."
)


LOOK_SECONDS = 1.0
"""Between two checks whether the event loop still exists that drives a run for which a caller waits."""


class Taker:
    """Code that iterates over the events of a run, for as long as it keeps the iterator.

    A `break` drops the iterator immediately, and asyncio closes it a moment later.
    """

    def __init__(self) -> None:
        self._task = task_here()
        self._events: Callable[[], object | None] = lambda: None

    def take(self, events: object) -> None:
        """Note the iterator over the events."""
        self._events = weakref.ref(events)

    def is_here(self) -> bool:
        """Return True if the caller is this code, and still iterates."""
        return self.is_in_this_task() and self._events() is not None

    def is_in_this_task(self) -> bool:
        """Return True if the caller is this code, iterating or not: while it blocks, nothing closes the iterator."""
        return self.is_of(task_here())

    def is_of(self, task: object) -> bool:
        """Return True if this code runs in the given task."""
        return self._task is not None and self._task is task


class Ownership:
    """The owner of one run, and who waits for it. Its methods are safe from every thread."""

    def __init__(self, run: object, journal: Journal, gate: Gate, driver: Driver) -> None:
        self._run = weakref.ref(run)
        self.journal = journal
        self.gate = gate
        self.driver = driver
        self.decisions = Decisions(journal, driver.unasked, driver.begin)
        self._claimed_in: tuple[asyncio.AbstractEventLoop, threading.Thread | None, int] | None = None
        """The event loop, thread and process of the current or last owner; no thread if it is agentnb's own."""
        self.taken_by: Taker | None = None
        """The code that iterates over the events and so drives the run; None if there is none."""
        self.reported = len(journal.events)
        """The position of the next step's first event: after the last step, or after the events of the last owner."""
        self._failed_before = journal.state.failure
        """The failure of the model in the recording that this run continues: driving requests the model again."""
        self._playing = False
        self.is_left = False
        """Whether the owner leaves the run, or has left it, to those who read it or wait for it."""
        driver.goes_on = lambda: self.is_left
        self._waiting: tuple[tuple[Callable[[], None], object], ...] = ()
        """The readers of the run, and the callers that wait for it, while another drives: wakeup and task."""
        self._looking_on: tuple[Callable[[], object], ...] = ()
        """The functions that are called when an owner has claimed or released the run (`watch`)."""
        gate.breakpoints.added = lambda: journal.observe(self.observe)
        if gate.breakpoints:
            journal.observe(self.observe)
        self._task: object = None  # keeps a background task alive: asyncio itself holds only a weak reference

    def observe(self, event: Event, frame: Frame) -> None:
        """Pass an event to the gate; needed only once the run is stepped or has a breakpoint."""
        self.gate.observe(event, frame.state, self.journal.state)

    @property
    def state(self) -> State:
        """The state of the run."""
        return self.journal.state

    @property
    def settled(self) -> bool:
        """Whether driving would change nothing: the run has ended, or its model failed here and was not resumed."""
        failure = self.state.failure
        is_at_its_end = self.state.over or self.driver.is_stuck
        return (is_at_its_end and not self.is_driven) or (failure is not None and failure is not self._failed_before)

    @property
    def quiet(self) -> bool:
        """Whether it is settled and no event follows: effects next to a failed model request finish first."""
        return self.settled and (not self.is_driven or self.driver.is_at_rest)

    @property
    def is_driven(self) -> bool:
        """Whether the run has an owner that can drive it."""
        return self.gate.owner is not None and not self._is_gone

    @property
    def _is_gone(self) -> bool:
        """Whether the owner's event loop was closed or left, or belongs to another process."""
        if self.gate.owner is None or self._claimed_in is None:
            return False
        loop, thread, process = self._claimed_in
        is_left = thread is not None and not thread.is_alive() and not loop.is_running()
        return is_left or loop.is_closed() or process != os.getpid()

    def check_not_gone(self) -> None:
        """Raise UsageError if the owner can no longer drive."""
        if self._is_gone:
            raise UsageError(GONE)

    # -- claiming --------------------------------------------------------------------------------------------------

    def claim(self, owner: Owner, there: asyncio.AbstractEventLoop | None = None) -> bool:
        """Become the owner, in this event loop or in `there`.

        Returns False if the run has an owner, or if it has calls in flight in another event loop.
        """
        with self.journal.lock:
            self.check_not_gone()
            if self.gate.owner is not None or (owner != "play" and self.driver.home is not None):
                return False
            thread = threading.current_thread() if there is None else None
            self._claimed_in = there or asyncio.get_running_loop(), thread, os.getpid()
            self.gate.owner = owner
            self.is_left = False
            if owner == "play":
                _in_background[self] = self._run()
            if owner == "step":  # after a failure of the model in the background, the run is stepped from now on
                self._playing = False
            if owner in ("pull", "await"):  # a pause that was requested of an earlier owner does not apply to this one
                self.gate.pausing = None
        self._tell_who_looks_on()
        return True

    def release(self) -> None:
        """Give up the ownership, and wake those who wait for it."""
        with self.journal.lock:
            if self.gate.owner != "step":
                self.reported = len(self.journal.events)
            self.gate.owner = self.taken_by = None
            _in_background.pop(self, None)
            if self._playing and not self.settled:
                self._play_here()
            waiting = self._waiting
        for wake, _ in waiting:
            wake()
        self._tell_who_looks_on()

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call `changed` whenever the run was claimed or released. Returns a function that unsubscribes."""
        with self.journal.lock:
            self._looking_on = (*self._looking_on, changed)

        def stop() -> None:
            with self.journal.lock:
                self._looking_on = tuple(other for other in self._looking_on if other is not changed)

        return stop

    def _tell_who_looks_on(self) -> None:
        for changed in self._looking_on:
            changed()

    def leave(self, why: str) -> None:
        """The owner leaves. If others read the run or wait for it, one of them continues; otherwise cancel the run."""
        with self.journal.lock:
            self.leave_to_others()
            if not self.is_left:
                self.cancel(why)

    async def leave_and_close(self, why: str) -> None:
        """Leave the run as `leave` does. If that cancels the run, wait until everything in flight has ended."""
        self.leave(why)
        if not self.is_left:
            await self.driver.close()

    def leave_to_others(self) -> None:
        """Let one of the readers of the run, or of the callers that wait for it, continue to drive, if there are any.

        Code that has left its iteration with a `break`, and waits for the run now, does not count.
        """
        with self.journal.lock:
            taker = self.taken_by
            others = [task for _, task in self._waiting if taker is None or not taker.is_of(task)]
            self.is_left = bool(others) and not self.state.over

    @property
    def is_for_others(self) -> bool:
        """Whether the owner has left, and a reader or a waiting caller has to continue to drive."""
        return self.is_left and self.gate.owner is None

    @property
    def is_watched(self) -> bool:
        """Whether anybody reads the run or waits for it while another drives."""
        return bool(self._waiting)

    def has_others(self, taker: Taker) -> bool:
        """Return True if others than `taker` read the run or wait for it."""
        with self.journal.lock:
            return len(self._waiting) > (self.taken_by is not taker)

    def watch_releases(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever the run was released, or its owner can no longer drive. Returns what unsubscribes."""
        with self.journal.lock:
            self._waiting = (*self._waiting, (wake, task_here()))
        lookout = hosting.host.submit(self._look_out(wake)) if self._may_vanish else None

        def stop() -> None:
            if lookout is not None:
                lookout.cancel()
            with self.journal.lock:
                self._waiting = tuple(other for other in self._waiting if other[0] is not wake)

        return stop

    @property
    def _may_vanish(self) -> bool:
        """Whether the owner's event loop may end while the caller waits: it is neither the caller's nor agentnb's."""
        there = self._claimed_in[0] if self._claimed_in is not None else None
        return there is not None and there is not loop_here() and there is not hosting.host.loop

    async def _look_out(self, wake: Callable[[], None]) -> None:
        while not self._is_gone:  # noqa: ASYNC110 - a closed event loop notifies no one
            await asyncio.sleep(LOOK_SECONDS)
        wake()

    @contextmanager
    def released(self) -> Iterator[concurrent.futures.Future[None]]:
        """Return a future that is done once the run is released, or immediately if the run is settled.

        A run without an owner continues in the background. Raises UsageError if its owner can no longer drive.
        """
        released: concurrent.futures.Future[None] = concurrent.futures.Future()

        def wake() -> None:
            if not released.done():
                released.set_result(None)

        with self.journal.lock:
            if not self.settled:
                self.check_not_gone()
                if self.gate.owner is None:
                    self.play_on_host()
            stop = self.watch_releases(wake)
            if self.settled and not self.is_driven:
                wake()
        try:
            yield released
        finally:
            stop()

    def is_taken_here(self) -> bool:
        """Return True if the calling task is iterating over the run.

        The run then advances only when that task requests the next event, so the task must not wait for the run.
        """
        return self.taken_by is not None and self.taken_by.is_here()

    def is_taken_in_this_task(self) -> bool:
        """Return True if the calling task iterates over the run, or has left the iteration and nothing has closed it.

        For callers that block: nothing closes the iterator while they do.
        """
        return self.taken_by is not None and self.taken_by.is_in_this_task()

    # -- in the background -----------------------------------------------------------------------------------------

    def play(self) -> None:
        """Continue in the background, also after a pause or a failure of the model."""
        with self.journal.lock:
            if self.state.over:
                return
            self._go_on()
            self._playing = True
            if self.gate.owner is None:
                self._play_here()

    def _play_here(self) -> None:
        here = None if hosting.environment.hosted else loop_here()
        if here is None:
            self.play_on_host()
        elif self.claim("play"):
            self._task = here.create_task(self._play())

    def play_on_host(self) -> None:
        """Drive in the background: in the event loop that has calls of the run in flight, or in agentnb's thread."""
        home = self.driver.home or hosting.host.loop
        if self.claim("play", home):
            self._task = asyncio.run_coroutine_threadsafe(self._play(), home)

    async def _play(self) -> None:
        try:
            self.go_on_if_paused()
            async for _ in self.driver.pump("drain"):
                pass
        except RunFailed:
            pass  # it is recorded, and raised to callers that await the run
        except asyncio.CancelledError:  # the event loop ends; the run keeps its state
            self._playing = False
            self.leave_to_others()
            raise
        except BaseException:  # it cannot start: playing it again would fail again
            self._playing = False
            raise
        finally:
            if self.state.over:
                self._playing = False
            self.release()

    # -- pausing, going on, ending ---------------------------------------------------------------------------------

    def pause(self, reason: str) -> bool:
        """Request a pause: start nothing new. Returns True if there was something to pause."""
        with self.journal.lock:
            if self.state.over or self.state.paused or self.gate.pausing is not None:
                return False
            if not self.is_driven or self.gate.owner == "step":  # it does not continue by itself
                return False
            self.gate.ask_for_pause(reason)
            self.driver.wakeup.nudge()
            return True

    def resume(self) -> bool:
        """Resume after a pause or a failure of the model. Returns True if there was one."""
        with self.journal.saying():
            if not self._go_on():
                return False
            if self._playing and self.gate.owner is None:
                self._play_here()
            return True

    def _go_on(self) -> bool:
        if self.state.over:
            return False
        self.check_not_gone()
        was_pausing, self.gate.pausing = self.gate.pausing is not None, None
        if self.state.paused or self.state.failure is not None:
            self.journal.append(RunResumed())
        elif was_pausing:
            self.driver.wakeup.nudge()
        else:
            return False
        return True

    def go_on_if_paused(self) -> None:
        """Resume a paused run when an owner starts to drive it.

        A model failure is retried only if it was in the recording that this run was restored from; after a failure in
        this process, the run waits for `resume()`.
        """
        with self.journal.lock:
            if self.state.paused or (self.state.failure is not None and self.state.failure is self._failed_before):
                self.journal.append(RunResumed())

    def cancel(self, reason: str) -> bool:
        """End the run. Returns False if it has ended already."""
        with self.journal.lock:
            if self.state.over or self.state.cancelled is not None:
                return False
            self.driver.begin()
            self.journal.append(CancelRequested(reason=text_or_empty(reason)))
            self.driver.end_cancelled()
            self.driver.wakeup.flush()  # immediately: the caller may restore the run from the store next
            return True


# -- awaiting a run ----------------------------------------------------------------------------------------------------


async def drive_to_the_end(run: Ownership) -> Any:
    """Drive, or wait for the owner, until the run is settled. Returns the output; raises as `outcome` does."""
    _check_may_wait(run)
    while not run.settled:
        if not hosting.environment.hosted and run.claim("await"):
            await _drive(run)
        else:
            await _wait_for_the_others(run)
    if run.state.over:
        await run.driver.close()
    return outcome(run)


def wait_for_result(run: Ownership, timeout: float | None) -> Any:
    """Block until the run is settled. Returns the output; raises TimeoutError after `timeout` seconds."""
    _check_may_wait(run)
    if run.is_taken_in_this_task():
        raise UsageError(TAKEN_HERE)
    until = time.monotonic() + timeout if timeout is not None else None
    while not run.settled:
        try:
            with run.released() as released:
                if run.driver.wakeup.is_here():
                    raise UsageError("result() would block the event loop that drives this run; await the run instead.")
                with run.driver.unattended.waited_for():
                    left = max(0.0, until - time.monotonic()) if until is not None else None
                    hosting.environment.wait(released, left, run.decisions)
        except TimeoutError:
            asked = ", ".join(call.name for call in run.decisions.pending)
            waits = f" It waits for a decision about {asked} (run.pending)." if asked else ""
            on = "is paused (run.paused_for) until run.resume()" if run.state.paused else "goes on"
            raise WaitTimeoutError(f"The run is not over after {timeout:g} s; it {on}.{waits}") from None
        except KeyboardInterrupt as stop:
            _stopped(run, stop)
            raise
    return outcome(run)


def outcome(run: Ownership) -> Any:
    """Return the output of a settled run. Raises RunFailed, RunCancelled or LimitReached if it has none."""
    state, driver = run.state, run.driver
    if not (state.over or driver.is_stuck):
        raise driver.failed()
    output = output_of(state, run.journal.root.design, cause=driver.cause)
    if (crash := driver.crash) is not None:  # it has ended, and the end could not be recorded
        raise RunFailed(f"{type(crash).__name__}: {crash}") from crash
    return output


def _check_may_wait(run: Ownership) -> None:
    """Raise UsageError if the run advances only when the caller does: it would wait for ever."""
    check_not_within(run.journal)
    if run.is_taken_here():
        raise UsageError(TAKEN_HERE)


async def _drive(run: Ownership) -> None:
    """Drive the run in a task of its own, and wait for that task.

    A tool that is alone in flight is awaited in the task that drives. That task is therefore not the caller's: if the
    caller is cancelled while others read the run or wait for it, the tool and the run continue.
    """
    driving = asyncio.create_task(_drain(run))
    try:
        await asyncio.wait([driving])
    except asyncio.CancelledError:
        await run.leave_and_close("the caller that awaited it was cancelled")
        raise
    if not driving.cancelled():  # otherwise code of the run has cancelled it: the run has ended, or others continue it
        driving.result()


async def _drain(run: Ownership) -> None:
    try:
        run.go_on_if_paused()
        async for _ in run.driver.pump("drain"):
            pass
    except asyncio.CancelledError:
        await run.leave_and_close("the caller that awaited it was cancelled")
        raise
    except RunFailed:
        pass  # `outcome` raises it
    finally:
        run.release()


async def _wait_for_the_others(run: Ownership) -> None:
    try:
        with run.released() as released, run.driver.unattended.waited_for():
            await hosting.environment.wait_async(released, run.decisions)
    except asyncio.CancelledError as stop:
        if hosting.environment.hosted and not run.is_watched:  # Stop was pressed in the cell that waits
            _stopped(run, stop)
        elif run.is_left:  # to this one, too
            await run.leave_and_close("the caller that awaited it was cancelled")
        raise


def _stopped(run: Ownership, stop: BaseException) -> None:
    run.cancel("interrupted")
    hosting.environment.stopped(stop, hosting.STOPPED)


# -- stepping a run ----------------------------------------------------------------------------------------------------


async def step(run: Ownership, unit: Unit, *, taken_here: bool = False) -> list[Event]:
    """Continue to the end of the next `unit`. Returns the events since the last step.

    Raises UsageError for an unknown unit, if another step is under way, and if the run would have to advance although
    the caller iterates over it (`taken_here`).
    """
    check_unit(unit)
    if run.gate.owner is None and (home := run.driver.home) is not None:
        return await _step_there(run, unit, home)
    gate = run.gate
    with run.journal.saying():
        if gate.permit is not None and run.is_driven:
            raise UsageError(
                "A step is under way already; another can begin when it has ended. run.cancel() ends the run."
            )
        if run.state.failure is not None:
            run.journal.append(RunResumed())
        _begin_behind_a_pause(run)
        if (done := _take(run, unit)) or run.state.over:
            return done
        if taken_here:
            raise UsageError(TAKEN_HERE)
        run.journal.observe(run.observe)
        begins = run.reported
        mine = run.claim("step")
        permit = gate.permit = Permit(unit, run.state.position)
        if not mine and not run.state.paused:  # it is playing: let it continue to the end of the step, and no further
            gate.pause_for_a_step()
    if mine:
        await _drive_step(run)
    else:
        run.driver.wakeup.nudge()
        stop = run.watch_releases(gate.release_permit)
        try:
            if not run.is_driven:
                gate.release_permit()
            await asyncio.wrap_future(permit.done)
        finally:
            stop()
        run.reported = begins  # the owner has moved it if the run has ended; this step returns its events too
    if not (taken := _take(run, unit, all_of_them=True)) and not run.state.over:
        run.driver.unattended.stepped_in_vain()
        await asyncio.sleep(0)  # another task may decide; the caller may step again immediately
    return taken


async def _step_there(run: Ownership, unit: Unit, home: asyncio.AbstractEventLoop) -> list[Event]:
    """Step in the event loop that has calls of the run in flight. If that loop cancels its tasks, the step ends."""
    stepping = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step(run, unit), home))
    try:
        while not (await asyncio.wait([stepping], timeout=LOOK_SECONDS))[0] and not home.is_closed():
            run.check_not_gone()
    except asyncio.CancelledError:
        stepping.cancel()
        raise
    if stepping.done() and not stepping.cancelled():
        return stepping.result()
    run.check_not_gone()
    return _take(run, unit, all_of_them=True)


def _begin_behind_a_pause(run: Ownership) -> None:
    """If another owner drives and has paused, exclude the events before the pause from the step."""
    if run.gate.owner in (None, "step") or not run.state.paused:
        return
    unreported = reversed(run.journal.events[run.reported :])
    pause = next((event for event in unreported if isinstance(event, RunPaused)), None)
    if pause is not None and pause.by != "step":
        run.reported = pause.seq + 1


async def _drive_step(run: Ownership) -> None:
    try:
        async for _ in run.driver.pump("step"):
            pass
    except RunFailed:
        if run.state.failure is None:  # a failure of the model is an event of this step; another error is raised
            raise
    except asyncio.CancelledError:  # others that read the run may continue it
        run.leave_to_others()
        raise
    finally:
        run.gate.permit = None
        run.release()


def _take(run: Ownership, unit: Unit, *, all_of_them: bool = False) -> list[Event]:
    """Return the events since the last step, up to the end of the next unit.

    If they do not reach its end, return an empty list; with `all_of_them`, return all.
    """
    with run.journal.lock:
        events = run.journal.events[run.reported :]
        end = run.gate.boundary(unit, events)
        if end is None:
            if not all_of_them:
                return []
            end = len(events)
        run.reported += end
        return events[:end]
