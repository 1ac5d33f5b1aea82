"""Run: what every loop gives. Drive it, watch it, decide about its calls, save where it stands.

A run is driven by one of four: a consumer that pulls its events (`async for`), a caller that awaits it, a step, or a
task in the background (`play`). Whoever comes second watches. Control methods are safe from every thread and event
loop, and what they did is a fact when they return.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from agentnb.core.errors import StoreBusy, UsageError
from agentnb.core.events import Delta, Event, Queue, RunResumed
from agentnb.core.loop import Design, configured
from agentnb.core.messages import Message
from agentnb.core.state import State
from agentnb.core.unicode import printable
from agentnb.core.views import Prefix
from agentnb.run import host as hosting
from agentnb.run.approvals.decisions import Decisions
from agentnb.run.approvals.kept import lost_function, policy_of_a_recording, read_policy, recorded_policy
from agentnb.run.approvals.policy import make_policy
from agentnb.run.companions import companion_of
from agentnb.run.consumer import consume
from agentnb.run.driver import Driver
from agentnb.run.gate.breakpoints import Breakpoints
from agentnb.run.gate.gate import Gate, Unit
from agentnb.run.gate.words import names_in
from agentnb.run.given import check_name, check_options, check_seconds, check_text
from agentnb.run.journal import Journal, Recorder, RunStore, Watcher
from agentnb.run.mailbox import hear, queued
from agentnb.run.ownership import Ownership, drive_to_the_end, step, wait_for_result
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.past.taken_over import new_run_id
from agentnb.run.portable import portable_input, portable_start
from agentnb.run.recording import Recording


class Run(Decisions, Recording):
    """One run of a loop. Made by `loop.start(input)`; nothing has happened yet when you get it."""

    def __init__(
        self,
        loop: Design,
        *,
        input: Any = None,
        history: Sequence[Message] = (),
        name: str | None = None,
        store: RunStore | None = None,
        approve: Any = None,
        breakpoints: Sequence[Any] = (),
        limits: Mapping[str, float] | None = None,
        recording: Sequence[Event] = (),
        shared: tuple[str, int] | None = None,
        suspended: bool = False,
        again: Mapping[str, list[str]] = MappingProxyType({}),
        judges_open_questions: bool = True,
    ) -> None:
        check_options(name=name, store=store, breakpoints=breakpoints, limits=limits)
        self.loop = loop
        self.name = name
        self.store = store
        self._journal = Journal(loop, recording[0].run_id if recording else new_run_id())
        self._journal.load(list(recording))
        # A run that goes on keeps its policy and its limits, unless others are given.
        approve, kept = read_policy(approve), self._journal.state
        policy = make_policy(approve if approve is not None else policy_of_a_recording(kept.approve))
        self._gate = Gate(
            breakpoints, limits if limits is not None else kept.limits, lambda: names_in(loop, self.events)
        )
        if approve is None and not kept.over and (name_of_policy := lost_function(kept.approve)) is not None:
            warnings.warn(
                f"The policy of this run was {printable(name_of_policy)}, which its recording does not keep: every call"
                f" is asked about until approve= is given again (run {printable(name or self._journal.run_id)}).",
                UserWarning,
                stacklevel=3,
            )
        self._fork_options = {"store": store, "approve": approve, "limits": limits}
        self._journal.recorder = self._open_store(store, recording, shared)
        chosen: dict[str, Any] = {}
        if approve is not None and (recorded := recorded_policy(approve)) != kept.approve:
            chosen["approve"] = recorded
        if limits is not None and self._gate.limits != kept.limits:
            chosen["limits"] = self._gate.limits
        begin: Event | None = None
        if suspended or again or chosen:
            begin = RunResumed(suspended=suspended, again=dict(again), **chosen)
        if not recording:
            start = portable_start(loop.begin(portable_input(input), history))
            begin = replace(start, **configured(loop, self._journal.root.fingerprints), **chosen)
        self._journal.root.recorded = len(recording)
        judges_open_questions = judges_open_questions and approve is not None
        self._driver = Driver(self._journal, self._gate, policy, begin, judges_open_questions=judges_open_questions)
        self._hearing = hear(self._journal, begin=self._driver.begin)
        if not self._journal.state.over:
            loop.hears(self._hearing)
        super().__init__(self._journal, self._driver.unasked, self._driver.begin)
        self._driving = Ownership(self, self._journal, self._gate, self._driver)
        if not self._journal.state.over:
            loop.runs_as(self)
        if recording and chosen and not self._journal.state.over:
            self._driver.begin()  # at once: who goes on from here next has them too
        _remember(self)

    def _open_store(
        self, store: RunStore | None, recording: Sequence[Event], shared: tuple[str, int] | None
    ) -> Recorder | None:
        if store is None:
            return None
        return store.record_run(self._journal.run_id, self.name, self.loop.kind(), recording, shared=shared)

    # -- where it stands -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Where the run stands; read it, do not change it."""
        return self._journal.state

    @property
    def events(self) -> Sequence[Event]:
        """Everything that has happened so far, oldest first."""
        return Prefix(self._journal.events)

    def clock(self) -> float:
        """The time now, in seconds since the epoch, by the clock of the run's events: it never goes back."""
        return self._journal.now()

    @property
    def companion(self) -> object:
        """What stands beside the run's own loop, for its code (`Design.companion`)."""
        return companion_of(self._journal.root, self._journal.events)

    @property
    def driven(self) -> bool:
        """Whether anybody drives the run at the moment."""
        return self._driving.is_driven

    @property
    def pausing(self) -> bool:
        """Whether somebody has asked for a pause, and something in flight has to be finished first."""
        return self._gate.pausing is not None and not self.state.over

    @property
    def breakpoints(self) -> Breakpoints:
        """Where the run pauses; add to them and take from them at any time."""
        return self._gate.breakpoints

    @property
    def paused_for(self) -> str | None:
        """Why the run is paused, or is about to be; None where it is not."""
        with self._journal.lock:
            return super().paused_for or (self._gate.pausing if not self.state.over else None)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every event and delta from now on, in order, from the thread it happens in.

        Gives a function that ends it. A watcher must be quick; one that raises is logged and the run goes on.
        """
        return self._journal.watch(watcher)

    def watch_driving(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call `changed` whenever `driven` has changed, from the thread it happens in; gives a function that ends it.

        A run that nobody drives any more has had its last event before: that is no event of its own.
        """
        return self._driving.watch(changed)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """The run as it stands now, to be saved and restored; also in the middle of a call or an approval.

        With `name` and a store, the store finds it under that name.
        """
        if name is not None:
            check_name("snapshot(name)", name)
        with self._journal.lock:
            self._driver.begin()
            snapshot = Snapshot.of(self._journal.events, name=name or self.name)
            if name is not None and self._journal.recorder is not None:
                self._journal.recorder.name_snapshot(name, snapshot.position)
                try:
                    self._journal.flush()
                except StoreBusy:
                    self._driver.wakeup.flush()  # again, and soon
        return snapshot

    # -- driving ---------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncGenerator[Event | Delta, None]:
        """What has happened so far, then live, to the end.

        Where nobody drives the run this consumer does, at its own pace; closing it before the end cancels the run.
        Raises RunFailed where the model or the loop failed.
        """
        return consume(self._driving)

    def __await__(self) -> Generator[Any, None, Any]:
        """Drive to the end and give the output. Raises RunFailed, RunCancelled or LimitReached where there is none."""
        return drive_to_the_end(self._driving).__await__()

    def result(self, timeout: float | None = None) -> Any:
        """Block until the end and give the output. Raises TimeoutError when `timeout` seconds pass; the run goes on.

        A keyboard interrupt (Stop in a notebook) cancels the run.
        """
        check_seconds("result(timeout=...)", timeout)
        timeout = min(timeout, threading.TIMEOUT_MAX) if timeout is not None else None
        return wait_for_result(self._driving, timeout)

    def play(self) -> None:
        """Go on in the background, also after a pause or a failure of the model.

        Raises UsageError where the event loop that drove the run was closed under it.
        """
        self._driving.play()

    def pause(self, reason: str = "paused") -> bool:
        """Start nothing new; True unless the run is over, paused already, or not being driven.

        What is in flight is finished first, an engine's task too where a loop executes it; `run_paused` says when that
        has happened. A breakpoint and a step do not wait for tasks: they stop where they are.
        """
        check_text("pause(reason)", reason)
        return self._driving.pause(reason)

    def resume(self) -> bool:
        """Go on after a pause, or ask a model that failed again; True where there was something to resume.

        Raises UsageError as `play` does.
        """
        return self._driving.resume()

    def cancel(self, reason: str = "cancelled") -> bool:
        """End the run now; False where it is over. Every open call has its result when this returns."""
        check_text("cancel(reason)", reason)
        return self._driving.cancel(reason)

    async def step(self, unit: Unit = "event") -> list[Event]:
        """Go on up to the end of the next `event`, `call`, `turn` or `phase`; gives the events of that step.

        The list is empty when nothing is left. Where only a person can move the run on, it gives what happened so far,
        and `pending` says what it waits for. Raises UsageError in the body of an `async for` that drives the run.
        """
        taken_here = self._driving.is_taken_here()
        if not hosting.environment.hosted:
            return await step(self._driving, unit, taken_here=taken_here)
        stepping = hosting.host.submit(step(self._driving, unit, taken_here=taken_here))
        try:
            await hosting.environment.wait_async(stepping)
        except asyncio.CancelledError as stop:  # Stop in the cell
            hosting.environment.stopped(stop, hosting.STEP_STOPPED)
            raise
        return stepping.result()

    def submit_step(self, unit: Unit = "event", *, blocking: bool = False) -> Future[list[Event]]:
        """`step` on agentnb's own thread, for callers that cannot await; `blocking`: they do nothing else meanwhile."""
        return hosting.host.submit(
            step(self._driving, unit, taken_here=blocking and self._driving.is_taken_in_this_task())
        )

    # -- talking to it ---------------------------------------------------------------------------------------------

    def steer(self, text: str | Message | Mapping[str, Any]) -> None:
        """Redirect the run: the message is heard as soon as the loop allows. Raises UsageError when it is over."""
        self.queue("steering", text)

    def follow_up(self, text: str | Message | Mapping[str, Any]) -> None:
        """Say something for when the run would stop. Raises UsageError where it is over."""
        self.queue("follow_up", text)

    def queue(self, queue: Queue, text: str | Message | Mapping[str, Any]) -> None:
        """Put a message into one of the run's queues. Raises UsageError where the run is over."""
        if not self.queue_if_open(queue, text):
            raise UsageError(f"The run is over ({self.stop_reason}); nobody would hear {queue.replace('_', '-')}.")

    def queue_if_open(self, queue: Queue, text: str | Message | Mapping[str, Any]) -> bool:
        """Put a message into one of the run's queues; False where the run is over."""
        return self._hearing.queue_if_open(queue, text)

    @property
    def queued(self) -> list[tuple[Queue, Message]]:
        """What was said to the run and nobody has heard yet, in the order it will be heard."""
        with self._journal.lock:
            return queued(self._journal) if not self.state.over else []

    def withdraw(self, queue: Queue, message: Message | None = None) -> list[Message] | None:
        """Take everything back out of a queue, or only this message; None where the run is over.

        Gives what was taken back: nothing of what was heard in the meantime.
        """
        return self._hearing.withdraw(queue, message)

    def panel(self, parts: Sequence[str] | None = None) -> Any:
        """The run's panel, as a widget; with `parts`, only these (`agentnb.widgets.PARTS`)."""
        return hosting.presenter().panel(self, parts)

    def _ipython_display_(self) -> None:
        hosting.presenter().present(self)

    def suspend_at_questions(self) -> None:
        """End the run in this process where only a person can move it on, with `suspended`; restoring it goes on.

        What a policy for when nobody is there is declared for (`agentnb.headless`) is left to that.
        """
        self._gate.suspends_at_questions = True

    def __repr__(self) -> str:
        where = self.stop_reason or ("paused" if self.state.paused else self.phase)
        names = printable(f"{self.name or self.id} of {self.loop.name}")
        return f"<Run {names}: {where}, {len(self._journal.events)} events>"


_runs: weakref.WeakValueDictionary[int, Run] = weakref.WeakValueDictionary()
_count = itertools.count()


def _remember(run: Run) -> None:
    _runs[next(_count)] = run


def latest_run() -> Run | None:
    """The run that was started or restored last in this process, of those that go on or somebody holds on to."""
    return next(iter(runs_here()), None)


def runs_here() -> list[Run]:
    """The runs of this process that go on in the background, or that somebody holds on to, newest first."""
    return [run for _, run in reversed(list(_runs.items()))]
