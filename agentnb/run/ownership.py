"""Ownership: who drives a run, and who waits for it.

A run has at most one owner, which drives it:

- `pull`: a consumer, in its own task. The run advances when the consumer requests the next event.
- `step`: a caller of `step`, in its own task, until the permit of the step is used up.
- `await`: a task of its own, for callers that wait for the run.
- `play`: a task of its own, in the background. In a kernel, and for threads that block for the result, this is also
  how the run is driven for callers that wait.

All others wait: callers that await the run, threads that block for its result, consumers that only watch. They are
woken when the owner releases the run. If the run has not ended and has no owner, a caller that waits for the end then
starts a task that drives the run. A consumer does the same, but only if the owner was closed or cancelled before the
end of the run. When the last of them leaves, the run is cancelled, unless it is played or stepped.

If calls of the run are in flight in another event loop, the run is driven there: a call must not be treated as lost
while it runs.
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
from functools import partial
from typing import Any, Literal

from agentnb.core.errors import RunFailed, UsageError, WaitTimeoutError
from agentnb.core.events import CancelRequested, Event
from agentnb.core.state import State
from agentnb.run import environment
from agentnb.run import host as hosting
from agentnb.run.approvals.decisions import Decisions
from agentnb.run.driver import Driver
from agentnb.run.event_data import text_or_empty
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate, Owner, pause_at_limit
from agentnb.run.host import call_in, loop_here
from agentnb.run.inline_task import task_here
from agentnb.run.journal import Journal
from agentnb.run.output import output_of
from agentnb.run.tool_calls import check_not_within

_in_tasks: dict[Ownership, object] = {}
"""The runs that are driven by a task of their own. They are kept alive here if no variable refers to them any more."""


TAKEN_HERE = (
    "This code iterates over the run's events, and the run advances only when it requests the next one: inside the"
    " iteration it cannot wait for the run. Wait for the run after the last event, or iterate in another task."
)


GONE = (
    "Nothing drives this run any more: its event loop was closed, its thread has ended, or both belong to the process"
    " that this one was forked from. Call agentnb.restore(run.snapshot(), loop) for a run that continues from its last"
    " event."
)


CALLER_CANCELLED = "the caller that awaited it was cancelled"
"""The reason for cancelling a run that was driven only for callers that have stopped waiting for it."""


LOOK_SECONDS = 1.0
"""The seconds between two checks whether the owner's event loop still exists, while a caller waits for the run."""


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
    """The owner of one run, and the callers and consumers that wait for it. The methods are safe from every thread."""

    def __init__(self, run: object, journal: Journal, gate: Gate, driver: Driver) -> None:
        self._run = weakref.ref(run)
        self.journal = journal
        self.gate = gate
        self.driver = driver
        self.decisions = Decisions(journal, driver.unasked, driver.begin)
        self._claimed_in: tuple[asyncio.AbstractEventLoop, threading.Thread | None, int] | None = None
        """The event loop, thread and process of the current or last owner. The thread is None if the ownership was
        claimed from another event loop."""
        self.taken_by: Taker | None = None
        """The code that iterates over the events and so drives the run; None if there is none."""
        self.reported = len(journal.events)
        """The position of the next step's first event: after the last step, or after the events of the last owner."""
        self._failed_before = journal.state.failure
        """The failure of the model in the recording that this run continues: driving requests the model again."""
        self._playing = False
        self._stays_at_limits = self._stays_paused = False
        """True if only `resume` continues the run after a limit, or anything, has paused it, in any process."""
        self._waiting: tuple[tuple[Callable[[], None], asyncio.Task[Any] | None], ...] = ()
        """The callers and consumers that wait for the run: the function that wakes each, and its task. The task is None
        in a thread without an event loop."""
        self._subscribers: tuple[Callable[[], object], ...] = ()
        """The functions that `watch` has subscribed."""
        gate.asked = self._notify_subscribers
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
        """Whether driving would change nothing: the run has ended, or waits for `resume` after a failure of the model.

        A failure in the recording that this run continues does not count: driving then requests the model again.
        """
        failure = self.state.failure
        is_at_its_end = self.state.over or self.driver.is_stuck
        return (is_at_its_end and not self.is_driven) or (failure is not None and failure is not self._failed_before)

    @property
    def quiet(self) -> bool:
        """Whether the run is settled and no event can follow. After a failed model request, calls in flight finish."""
        return self.settled and (not self.is_driven or self.driver.is_at_rest)

    @property
    def is_driven(self) -> bool:
        """Whether the run has an owner that can drive it."""
        return self.gate.owner is not None and not self._is_gone

    @property
    def _is_gone(self) -> bool:
        """Whether the owner's event loop was closed, its thread has ended, or both belong to another process."""
        if self.gate.owner is None or self._claimed_in is None:
            return False
        loop, thread, process = self._claimed_in
        thread_ended = thread is not None and not thread.is_alive() and not loop.is_running()
        return thread_ended or loop.is_closed() or process != os.getpid()

    def check_not_gone(self) -> None:
        """Raise UsageError if the owner can no longer drive."""
        if self._is_gone:
            raise UsageError(GONE)

    # -- claiming --------------------------------------------------------------------------------------------------

    def claim(self, owner: Owner, there: asyncio.AbstractEventLoop | None = None) -> bool:
        """Become the owner, in this event loop or in `there`.

        Returns False if the run has an owner; without `there`, also if it has effects in flight in another event loop.
        """
        with self.journal.lock:
            self.check_not_gone()
            if self.gate.owner is not None or (there is None and self.driver.home is not None):
                return False
            here = loop_here()
            thread = threading.current_thread() if there is None or there is here else None
            self._claimed_in = there or asyncio.get_running_loop(), thread, os.getpid()
            self.gate.owner = owner
            self.driver.is_left = False
            if owner in ("await", "play"):
                _in_tasks[self] = self._run()
            if owner == "step":  # after a failure of the model in the background, the run is stepped from now on
                self._playing = False
            if owner in ("pull", "await"):  # a pause that was requested of an earlier owner does not apply to this one
                self.gate.pausing = None
        self._notify_subscribers()
        return True

    def release(self) -> None:
        """Give up the ownership, and wake those who wait. A run that is played continues in the background."""
        with self.journal.lock:
            if self.gate.owner != "step":
                self.reported = len(self.journal.events)
            self.gate.owner = self.taken_by = None
            _in_tasks.pop(self, None)
            if self._playing and not self.settled:
                self.drive_in_a_task("play")
            waiting = self._waiting
        for wake, _ in waiting:
            wake()
        self._notify_subscribers()

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call `changed` when the run was claimed or released, and when a pause was requested or its request withdrawn.

        Returns a function that unsubscribes.
        """
        with self.journal.lock:
            self._subscribers = (*self._subscribers, changed)

        def stop() -> None:
            with self.journal.lock:
                self._subscribers = tuple(other for other in self._subscribers if other is not changed)

        return stop

    def _notify_subscribers(self) -> None:
        for changed in self._subscribers:
            changed()

    # -- driving in a task -----------------------------------------------------------------------------------------

    def drive_in_a_task(self, owner: Literal["await", "play"], *, blocks: bool = False) -> None:
        """Drive the run in a task of its own, if it has no owner.

        The task runs in the event loop that has effects of the run in flight. If there are none, it runs in the
        caller's event loop. In a kernel, or if the caller has no event loop, or with `blocks` (the caller blocks its
        thread), it runs in the event loop of agentnb's own thread instead.
        """
        here, there = loop_here(), self.driver.home
        if there is None:
            is_possible_here = here is not None and not blocks and not environment.current.hosted
            there = here if is_possible_here else hosting.host.loop
        assert there is not None
        if self.claim(owner, there):
            # A tool that is alone in flight is awaited in the task that drives. That task is therefore not the
            # caller's: if the caller is cancelled while others wait for the run, the tool and the run continue.
            drain = self._drain(owner)
            self._task = there.create_task(drain) if there is here else asyncio.run_coroutine_threadsafe(drain, there)

    async def _drain(self, owner: Owner) -> None:
        try:
            self.go_on_if_paused()
            async for _ in self.driver.pump("drain"):
                pass
        except RunFailed:
            pass  # it is recorded, and raised to callers that await the run
        except BaseException as stop:  # the event loop ends, Ctrl-C, or code of the run has cancelled this task
            self._playing = False
            self.leave(CALLER_CANCELLED if owner == "await" else None)
            if self.state.over and isinstance(stop, asyncio.CancelledError):
                await self.driver.close()
            raise
        finally:
            if self.state.over:
                self._playing = False
            self.release()

    # -- waiting and leaving ---------------------------------------------------------------------------------------

    def watch_releases(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever the run was released, or its owner can no longer drive.

        Returns a function that unsubscribes.
        """
        with self.journal.lock:
            self._waiting = (*self._waiting, (wake, task_here()))
        watching = hosting.host.submit(self._watch_owner(wake)) if self._may_vanish else None

        def stop() -> None:
            if watching is not None:
                watching.cancel()
            with self.journal.lock:
                self._waiting = tuple(other for other in self._waiting if other[0] is not wake)

        return stop

    @property
    def _may_vanish(self) -> bool:
        """Whether the owner's event loop may end while the caller waits: it is neither the caller's nor agentnb's."""
        there = self._claimed_in[0] if self._claimed_in is not None else None
        return there is not None and there is not loop_here() and there is not hosting.host.loop

    async def _watch_owner(self, wake: Callable[[], None]) -> None:
        while not self._is_gone:  # noqa: ASYNC110 - a closed event loop notifies no one
            await asyncio.sleep(LOOK_SECONDS)
        wake()

    @contextmanager
    def waiting(
        self, wake: Callable[[], None], owner: Literal["await", "play"], *, blocks: bool = False
    ) -> Iterator[None]:
        """Register a caller that waits for the run, for the duration of the context. A task drives if no owner does.

        wake: called when the run was released, and immediately if it is settled. Raises UsageError if the owner of the
        run can no longer drive.
        """
        with self.journal.lock:
            if not self.settled:
                self.check_not_gone()
                self.drive_in_a_task(owner, blocks=blocks)
            stop = self.watch_releases(wake)
            if self.settled and not self.is_driven:
                wake()
        try:
            with self.driver.unattended.waited_for():
                yield
        finally:
            stop()

    async def stop_waiting(self, why: str) -> None:
        """Note that a caller has stopped waiting. If it was the last, cancel the run and wait until effects have ended.

        A run that is played or stepped, or that a consumer drives, is not cancelled.
        """
        with self.journal.lock:
            is_last = not self._waiting and (self.gate.owner == "await" or self.driver.is_left)
            if is_last:
                self.cancel(why)
        if is_last:
            await self.driver.close()

    def leave(self, why: str | None = None) -> None:
        """Leave the run, as its owner, before its end. If others wait for the run, one of them drives it afterwards.

        why: the reason for cancelling the run if no others wait for it; None for not cancelling it.
        """
        with self.journal.lock:
            others = [task for _, task in self._waiting]
            if (taker := self.taken_by) is not None:
                # The task of the consumer itself does not count: it may have left its iteration with a `break`, and
                # wait for the run now.
                others = [task for task in others if not taker.is_of(task)]
            elif self.gate.owner == "await":
                # The task that drives was cancelled: either its event loop ends, and with it the callers there, or code
                # of the run has cancelled the task. So only callers elsewhere count.
                others = [task for task in others if task is None or task.get_loop() is not loop_here()]
            self.driver.is_left = bool(others) and not self.state.over
            if not self.driver.is_left and why is not None:
                self.cancel(why)

    async def leave_and_close(self, why: str) -> None:
        """Leave the run as `leave` does. If that cancels the run, wait until everything in flight has ended."""
        self.leave(why)
        if not self.driver.is_left:
            await self.driver.close()

    @property
    def lacks_owner(self) -> bool:
        """Whether the owner has left before the end, others wait for the run, and none of them drives it yet."""
        return self.driver.is_left and self.gate.owner is None

    @property
    def is_watched(self) -> bool:
        """Whether callers or consumers wait for the run."""
        return bool(self._waiting)

    def has_others(self, taker: Taker) -> bool:
        """Return True if others than `taker` wait for the run."""
        with self.journal.lock:
            return len(self._waiting) > (self.taken_by is not taker)

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

    # -- controls --------------------------------------------------------------------------------------------------

    def play(self, *, stays_at_limits: bool = False, stays_paused: bool = False) -> None:
        """Continue in the background, also after a pause or a failure of the model.

        stays_at_limits: do not continue after a limit has paused the run. stays_paused: nor after any other pause.
        """
        with self.journal.lock:
            if self.state.over:
                return
            self._stays_at_limits, self._stays_paused = stays_at_limits, stays_paused
            if not self._is_to_stay_paused():
                self._go_on()
            self._playing = True
            self.drive_in_a_task("play")

    def pause(self, reason: str) -> bool:
        """Request a pause: start nothing new. Returns True if there was something to pause."""
        with self.journal.lock:
            if self.state.over or self.state.paused or self.gate.pausing is not None:
                return False
            if not self.is_driven or self.gate.owner == "step":  # it stops anyway
                return False
            self.gate.ask_for_pause(reason)
            self.driver.wakeup.nudge()
            return True

    def resume(self) -> bool:
        """Resume after a pause or a failure of the model. Returns True if there was one."""
        with self.journal.saying():
            if not self._go_on():
                return False
            if self._playing:
                self.drive_in_a_task("play")
            return True

    def _go_on(self) -> bool:
        if self.state.over:
            return False
        self.check_not_gone()
        was_pausing, self.gate.pausing = self.gate.pausing is not None, None
        if self.state.paused or self.state.failure is not None:
            self.journal.append(self.gate.resumed(self.state, self.journal.events))
        elif was_pausing:
            self.driver.wakeup.nudge()
            self._notify_subscribers()
        else:
            return False
        return True

    def go_on_if_paused(self) -> None:
        """Resume a paused run when an owner starts to drive it.

        A model failure is retried only if it was in the recording that this run was restored from; after a failure in
        this process, the run waits for `resume()`.
        """
        with self.journal.lock:
            if self._is_to_stay_paused():
                return
            if self.state.paused or (self.state.failure is not None and self.state.failure is self._failed_before):
                self.journal.append(self.gate.resumed(self.state, self.journal.events))

    def _is_to_stay_paused(self) -> bool:
        if self._stays_paused:
            return self.state.paused
        return self._stays_at_limits and pause_at_limit(self.state, self.journal.events) is not None

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


# -- waiting for the end -----------------------------------------------------------------------------------------------


async def drive_to_the_end(run: Ownership) -> Any:
    """Wait until the run is settled; a task drives it if it has no owner. Then do the same as `outcome`."""
    _check_may_wait(run)
    while not run.settled:
        try:
            await _wait_until_released(run)
        except asyncio.CancelledError as stop:
            if environment.current.hosted and not run.is_watched:  # Stop was pressed in the cell that waits
                _stopped(run, stop)
            else:
                await run.stop_waiting(CALLER_CANCELLED)
            raise
    if run.state.over:
        await run.driver.close()
    return outcome(run)


async def _wait_until_released(run: Ownership) -> None:
    if environment.current.hosted:  # clicks in the notebook are processed meanwhile, and the run outlives the cell
        released: concurrent.futures.Future[None] = concurrent.futures.Future()
        with run.waiting(partial(_end, released), "play"):
            await environment.current.wait_async(released, run.decisions)
        return
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if loop_here() is loop:  # waking the own event loop from its thread needs no pipe, which would be slow
            _end(woken)
        else:
            call_in(loop, partial(_end, woken))

    with run.waiting(wake, "await"):
        await woken


def _end(future: asyncio.Future[None] | concurrent.futures.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def wait_for_result(run: Ownership, timeout: float | None) -> Any:
    """Block until the run is settled, then do the same as `outcome`. Raises TimeoutError after `timeout` seconds."""
    _check_may_wait(run)
    if run.is_taken_in_this_task():
        raise UsageError(TAKEN_HERE)
    until = time.monotonic() + timeout if timeout is not None else None
    while not run.settled:
        try:
            released: concurrent.futures.Future[None] = concurrent.futures.Future()
            with run.waiting(partial(_end, released), "play", blocks=True):
                if run.driver.wakeup.is_here():
                    raise UsageError("result() would block the event loop that drives this run; await the run instead.")
                left = max(0.0, until - time.monotonic()) if until is not None else None
                environment.current.wait(released, left, run.decisions)
        except TimeoutError:
            asked = ", ".join(call.name for call in run.decisions.pending)
            waits = f" It waits for a decision about {asked} (run.pending)." if asked else ""
            on = "is paused (run.paused_for) until run.resume()" if run.state.paused else "continues"
            raise WaitTimeoutError(f"The run has not ended after {timeout:g} s; it {on}.{waits}") from None
        except KeyboardInterrupt as stop:
            _stopped(run, stop)
            raise
    return outcome(run)


def _stopped(run: Ownership, stop: BaseException) -> None:
    run.cancel("interrupted")
    environment.current.stopped(stop, environment.STOPPED)


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
    """Raise UsageError if the run advances only when the caller continues: the caller would wait for ever."""
    check_not_within(run.journal)
    if run.is_taken_here():
        raise UsageError(TAKEN_HERE)
