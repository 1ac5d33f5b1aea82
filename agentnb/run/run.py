"""Run: one execution of a loop. It can be driven, watched, paused, steered and saved, and its calls can be decided.

A run has one owner at a time, which drives it: a consumer that pulls its events (`async for`), a step, or a task of its
own, for callers that await the run or in the background (`play`). All others watch. Control methods are safe from every
thread and event loop; the events that they cause are recorded when they return.

A Run and a Replay are Recordings: `at` returns a Replay, and `fork` returns a Run. The three classes are in one module,
because each needs the others. Most of a Replay is in `Playback`, most of a fork in `past/fork.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack

from msgspec.structs import replace

from agentnb.core.errors import StoreBusy, UsageError, printable
from agentnb.core.events import Delta, Event, ModelStart, Queue, RunResumed, RunStart
from agentnb.core.json import plain_number
from agentnb.core.loop import Design
from agentnb.core.messages import Message
from agentnb.core.prefix import Prefix
from agentnb.core.protocols import Recorder, RunStore
from agentnb.core.state import State
from agentnb.exporters import Exported, exported
from agentnb.llms.adapt import with_options
from agentnb.run import environment
from agentnb.run import host as hosting
from agentnb.run.approvals.decisions import Decisions
from agentnb.run.approvals.policy import make_policy
from agentnb.run.approvals.recorded_policy import lost_function, policy_of_a_recording, read_policy, recorded_policy
from agentnb.run.consumer import consume
from agentnb.run.driver import Driver
from agentnb.run.event_data import input_as_json
from agentnb.run.files import written_atomically
from agentnb.run.frame import Frame
from agentnb.run.gate.breakpoints import Breakpoints
from agentnb.run.gate.gate import Gate, OnlyRequest, Unit
from agentnb.run.gate.names import names_in
from agentnb.run.journal import Journal, Watcher, new_run_id
from agentnb.run.loop_context import context_of_loop
from agentnb.run.mailbox import Mailbox, queued
from agentnb.run.ownership import Ownership, drive_to_the_end, wait_for_result
from agentnb.run.past.fork import UNCHANGED, Change, apply_decision, prepared_fork
from agentnb.run.past.next_request import NextRequest, next_request
from agentnb.run.past.playback import Playback
from agentnb.run.past.readable import ReadableRun
from agentnb.run.past.recorded_loop import missing
from agentnb.run.past.snapshot import Snapshot
from agentnb.run.spending import spent_before, unpriced_model
from agentnb.run.stepping import step
from agentnb.run.validation import (
    StartOptions,
    check_name,
    check_on_limit,
    check_path,
    check_seconds,
    check_start_options,
    check_text,
    checked_data,
    checked_options,
    checked_tags,
    expanded,
)
from agentnb.run.watchers import Watchers
from agentnb.tools import as_tools
from agentnb.tools.recorded import stubs

_ABOUT_QUESTIONS = frozenset({"approval_request", "approval_decision", "call_end", "run_end"})
"""The types of the events after which a question may be open, or no longer be open."""

_INSTEAD = (
    "fork() returns a run that continues from this position; decision=, message=, arguments= or result= changes one"
    " thing there."
)


class Recording(ReadableRun):
    """A run that can be read, and from which replays and forks are made: a run, a stored recording, a replay."""

    def at(self, seq: int) -> Replay:
        """Return a replay of the run, positioned right after its event `seq`; -1 is before the first event.

        A replay can be read and stepped forward and back, but not driven.
        """
        return Replay(self.recording, self.loop, name=self.name, checkpoints=self._checkpoints).to(seq)

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
        """Return a new run that continues from the event `at` (default: the newest), with at most one change.

        Events before the fork are taken over: they send no model request and run no tool.

        message: replaces the message of that event (a message, a model's answer, the input); at any other event, a
        message of the user that is added there. A text replaces the text of a model's answer and keeps its calls;
        `{"role": "assistant", "content": ...}` replaces the whole answer.
        arguments: the arguments of the call that the event is about.
        decision: the decision about that call: True, False, `approve`, `reject` ..., or a dict with `decision` and its
        fields.
        result: the result of that call, which may be None.
        event: an event of the same type, in place of that event.
        loop: another loop of the same kind, with another model, other tools or settings.
        options: those of `start`. store, approve and limits default to those of this run; `options=` adds options of
        the model requests to those of this run, and replaces or removes (None) some.

        Raises UsageError if the change does not apply to the event, InvalidArguments if the arguments do not fit,
        RecordingMismatch if `loop` is of another kind.
        """
        change = Change(event=event, message=message, arguments=arguments, result=result, decision=decision)
        branch, arguments_of_run = prepared_fork(self, plain_number(at), change, loop, options)
        run = Run(**arguments_of_run)
        with run.lock:
            if run.state.failure is not None:  # request the model again: it may be another one
                run.resume()
            if branch.steer is not None:
                run.queue("steering", branch.steer)
            apply_decision(branch, run._journal)
        return run

    def tools(self, *own: Any, at: int | None = None) -> list[Any]:
        """Return tools for a run that continues this recording: your own, and a stub for each other tool of it.

            loop = SessionLoop(llm, recording.tools(run_tests))
            run = recording.fork(at=40, loop=loop)

        A stub returns the recorded result of a call that is in the recording, each result once. A person is asked about
        any other call, and gives its result: `run.answer(run.pending[0], "3 passed")`. Nothing is executed. A stub has
        the recorded schema, if the recording has one (`recording.imported`).

        own: functions, tools or loops, which replace the tools of the same name. at: the event of the fork; the results
        up to it are used up. Default: the position of a replay, else the beginning.

        Raises UsageError if one of `own` cannot be a tool.
        """
        given = as_tools(own)
        begin = plain_number(at) + 1 if at is not None else self.position or 0
        schemas = self.imported.get("tools")
        found = stubs(self.recording, begin, schemas if isinstance(schemas, list) else ())
        return [*given.values(), *(stub for stub in found if stub.name not in given)]

    def export_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the run as it is now into one HTML file that anyone can open, and return the path of the file.

        The file needs no kernel, no network and no other file. It shows the panel: the trace, events, messages, usage
        and state diagram of every moment of the run, and plays the run. The file has all events of the run, with what
        models and tools said; very long data is cut. A replay writes its whole recording. An existing file is replaced.
        The file is made to be shared: others can read it if they can read other new files of yours (the umask). Stores
        and snapshots can be read by their owner alone.

            run.export_html("nile.html")

        path: the path of the file; its folder must exist.

        Raises UsageError if the path is a folder, or its folder does not exist.
        """
        return environment.presenter().export_html(self, path)

    def export(self, path: str | os.PathLike[str], *, format: str) -> Exported:
        """Write the run as it is now into a file in the format of another tool.

            written = run.export("nile.json", format="atif")
            print(written.lost)  # what the format cannot carry, counted by kind

        A replay writes its whole recording. An existing file is replaced.

        path: the path of the file; its folder must exist. format: `atif` (trajectories of Harbor), `inspect` (logs of
        evaluations), `otlp` (spans of OpenTelemetry), `ag-ui` (events of AG-UI), `messages` (chat messages, in the
        format of OpenAI or Anthropic).

        Returns the path, the name of the format, and what it cannot carry. Raises UsageError if the format is not known
        or the recording has no messages, StorageError if the file cannot be written.
        """
        check_path("export(path)", path)
        if format == "inspect" and Path(path).suffix == ".eval":  # Inspect would read it as an archive
            raise UsageError(f"A log of Inspect is written as JSON: name the file {Path(path).stem}.json.")
        with self.lock:
            events = list(self.recording)
        title, content, lost = exported(events, format)
        target = expanded(path)
        with written_atomically(target, "The recording") as file:
            file.write(content)
        return Exported(target, title, lost)


class Replay(Playback, Recording):
    """A recording with a position that can be moved. The initial position is before the first event.

    The panel of a replay has a slider, which moves the position as `to` does. Thread-safe.
    """

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, _INSTEAD)

    def __repr__(self) -> str:
        where = f"{self.position} of {len(self._recorded)} events"
        return printable(f"<Replay {self.name or self.id} of {self.loop.name}: {where}>")


class Run(Decisions, Recording):
    """One run of a loop, created by `loop.start(input)`. A new run has no events until it is driven or controlled."""

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
        on_limit: Literal["end", "ask"] | None = None,
        options: Mapping[str, Any] | None = None,
        recording: Sequence[Event] = (),
        state: State | None = None,
        shared: tuple[str, int] | None = None,
        suspended: bool = False,
        again: Mapping[str, list[str]] = MappingProxyType({}),
        paid: Mapping[str, float] = MappingProxyType({}),
        judges_open_questions: bool = True,
        tags: Sequence[str] = (),
        data: Mapping[str, Any] | None = None,
    ) -> None:
        tags, data = checked_tags(tags), checked_data(data)
        check_start_options(name=name, store=store, breakpoints=breakpoints, limits=limits)
        check_on_limit(on_limit)
        options = checked_options(options)
        with_options(loop.llm, options)  # raises the error of an option that the model does not take
        self.loop = loop
        self.name = name
        self.store = store
        self._journal = Journal(loop, recording[0].run_id if recording else new_run_id())
        self._journal.run_name = name or self._journal.run_id
        self._journal.load(recording, state)
        self._checkpoints = self._journal.checkpoints
        # A restored run keeps its policy and its limits, unless others are given.
        approve, kept = read_policy(approve), self._journal.state
        policy = make_policy(approve if approve is not None else policy_of_a_recording(kept.approve))
        self._gate = Gate(
            breakpoints, limits if limits is not None else kept.limits, lambda: names_in(loop, self.events)
        )
        self._gate.asks_at_limits = (on_limit or kept.on_limit) == "ask"
        if recording and "cost" in self._gate.limits:
            self._gate.spent_before = spent_before(recording)
        self._gate.unpriced_model = lambda: unpriced_model(self._journal.events)
        if approve is None and not kept.over and (name_of_policy := lost_function(kept.approve)) is not None:
            warnings.warn(
                f"The policy of this run was {printable(name_of_policy)}, which a recording cannot keep. A person is"
                " asked about every call until approve= is given again (run"
                f" {printable(name or self._journal.run_id)}).",
                UserWarning,
                stacklevel=3,
            )
        self._fork_options = {"store": store, "approve": approve, "limits": limits}
        self._journal.recorder = self._open_store(store, recording, shared, tags or _kept_tags(recording, shared))
        # Make the event that this run begins with: its start, or the resumption of its recording if options have
        # changed or it was suspended.
        chosen: dict[str, Any] = {}
        if approve is not None and (recorded := recorded_policy(approve)) != kept.approve:
            chosen["approve"] = recorded
        if limits is not None and self._gate.limits != kept.limits:
            chosen["limits"] = self._gate.limits
        if on_limit is not None and on_limit != kept.on_limit:
            chosen["on_limit"] = on_limit
        if options and (options := {**kept.model_options, **options}) != kept.model_options:
            chosen["model_options"] = options
        begin: Event | None = None
        if suspended or again or chosen or paid:
            begin = RunResumed(suspended=suspended, again=dict(again), usage=dict(paid), **chosen)
        if not recording:
            begin = replace(self._journal.root.begin(input_as_json(input), history), tags=tags, data=data, **chosen)
        self._input = getattr(recording[0] if recording else begin, "input", None)
        self._journal.root.recorded = len(recording)
        judges_open_questions = judges_open_questions and approve is not None
        self._driver = Driver(self._journal, self._gate, policy, begin, judges_open_questions=judges_open_questions)
        super().__init__(self._journal, self._driver.unasked, self._driver.begin)
        self._driving = Ownership(self, self._journal, self._gate, self._driver)
        self._mailbox = Mailbox(self._journal, begin=self._driver.begin, cancel=self._driving.cancel)
        self._journal.root.mailbox = self._mailbox
        loop.attached(self._journal.root)
        if recording and chosen and not self._journal.state.over:
            self._driver.begin()  # now, so that the next restore of this recording has the changed options, too
        _remember(self)

    def _open_store(
        self, store: RunStore | None, recording: Sequence[Event], shared: tuple[str, int] | None, tags: Sequence[str]
    ) -> Recorder | None:
        if store is None:
            return None
        tagged = {"tags": tags} if tags else {}
        return store.record_run(self._journal.run_id, self.name, self.loop.kind(), recording, shared=shared, **tagged)

    # -- state and events ------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The current state of the run. Read it, do not change it."""
        return self._journal.state

    @property
    def events(self) -> Sequence[Event]:
        """The events of the run so far, oldest first."""
        return Prefix(self._journal.events)

    @property
    def input(self) -> Any:
        """The input that the run was started with, as plain data."""
        return self._input

    def clock(self) -> float:
        """Return the time by the clock of the run's events, in seconds since the epoch. It never goes back."""
        return self._journal.now()

    @property
    def loop_context(self) -> object:
        """The context of the outermost loop, for the code of that loop (`Design.make_context`)."""
        return context_of_loop(self._journal.root, self._journal.events)

    @property
    def driven(self) -> bool:
        """True while the run has an owner that drives it."""
        return self._driving.is_driven

    @property
    def pausing(self) -> bool:
        """True if a pause was requested and waits for effects in flight to finish."""
        return self._gate.pausing is not None and not self.state.over

    @property
    def breakpoints(self) -> Breakpoints:
        """The breakpoints of the run. They can be added and removed at any time."""
        return self._gate.breakpoints

    @property
    def paused_for(self) -> str | None:
        """The reason for the current or requested pause; None if there is none."""
        with self._journal.lock:
            return super().paused_for or (self._gate.pausing if not self.state.over else None)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every event and delta from now on, in order, in the thread that records it.

        Returns a function that unsubscribes. A watcher must return quickly. If it raises, the error is logged and the
        run continues.
        """
        return self._journal.watch(watcher)

    @property
    def settled(self) -> bool:
        """True if the run has ended, or waits for `resume()` after a failure of the model, and nothing drives it."""
        return self._driving.settled

    def waited_for(self) -> AbstractContextManager[None]:
        """Return a context in which the run counts as one that a caller waits for, as `await run` does.

        Without a person, the questions of such a run are decided earlier (`agentnb.headless`).
        """
        return self._driving.driver.unattended.waited_for()

    def watch_driving(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call `changed` whenever `driven` or `pausing` may have changed, in the thread that has changed it.

        Returns a function that unsubscribes. These changes are not events, so `watch` does not show them. The run's
        lock may be held during the call.
        """
        return self._driving.watch(changed)

    def watch_questions(self, changed: Callable[[Event | None], object]) -> Callable[[], None]:
        """Call `changed` with each event after which other questions may be open, in the thread that records it.

        Without an event, it is called whenever `driven` may have changed. The run's lock may be held during the call.
        Unlike a watcher, `changed` does not make the run write each event at once. Returns a function that
        unsubscribes.
        """

        def observe(event: Event, frame: Frame) -> None:
            if event.type in _ABOUT_QUESTIONS:
                changed(event)

        self._journal.observe(observe)
        stop = self._driving.watch(lambda: changed(None))

        def unsubscribe() -> None:
            self._journal.ignore(observe)
            stop()

        return unsubscribe

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Return a snapshot of the run, to save and restore; also in the middle of a call or an approval.

        name: the name of the snapshot. If the run has a store, the store keeps the position under that name.
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
                    self._driver.wakeup.flush()  # tries again soon
        return snapshot

    def preview(self, path: str | None = None) -> NextRequest:
        """Return what the model will be sent next, without asking it.

            run = recording.fork(at=40, result="3 failed", loop=loop)
            print(run.preview())

        path: of the loop whose request to return; None for the innermost loop that is running.

        Returns the messages, the tools and the options of the request. Raises UsageError if no request follows.
        """
        with self._journal.lock:
            self._driver.begin()
            return next_request(self.loop, self.state, path)

    # -- driving ---------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncGenerator[Event | Delta, None]:
        """Iterate over the events so far, then over events and deltas as they occur, to the end of the run.

        If the run has no owner, this consumer drives it: the run advances when the consumer requests the next event. If
        such a consumer is closed before the end, the run is cancelled, unless others read it or wait for it. Raises
        RunFailed if the model or the loop failed.
        """
        return consume(self._driving)

    def __await__(self) -> Generator[Any, None, Any]:
        """Drive the run to its end, or wait for the owner to do so, and return the output.

        Raises RunFailed, RunCancelled or LimitReached if the run has no output.
        """
        return drive_to_the_end(self._driving).__await__()

    def result(self, timeout: float | None = None) -> Any:
        """Block until the run has ended, and return the output. A keyboard interrupt (Stop in a notebook) cancels it.

        timeout: in seconds; None for no limit. Raises TimeoutError when it has passed; the run continues. Raises
        RunFailed, RunCancelled or LimitReached if the run has no output.
        """
        check_seconds("result(timeout=...)", timeout)
        timeout = min(timeout, threading.TIMEOUT_MAX) if timeout is not None else None
        return wait_for_result(self._driving, timeout)

    def play(self, *, stays_at_limits: bool = False, stays_paused: bool = False) -> None:
        """Continue the run in the background, also after a pause or a failure of the model.

        stays_at_limits: True if only `resume()` continues the run after a limit has paused it (`on_limit="ask"`).
        stays_paused: True if that holds for every pause, also one by a person or at a breakpoint.

        Raises UsageError if the event loop that drove the run was closed while it drove.
        """
        self._driving.play(stays_at_limits=stays_at_limits, stays_paused=stays_paused)

    def pause(self, reason: str = "paused") -> bool:
        """Pause the run: start no new effects. Returns False if there is nothing to pause.

        That is so if the run has ended, a pause is recorded or requested already, or only a step or nothing drives it.
        Effects in flight finish first. If a ConversationEngine executes a task with a nested loop, the task finishes
        first too; a breakpoint and a step do not wait for such tasks. Then the event `run_paused` is recorded.
        """
        check_text("pause(reason)", reason)
        return self._driving.pause(reason)

    def hold_requests(self, hold: Callable[[], bool]) -> None:
        """Start no model request while `hold()` is True. `look_again` has to be called when that changes."""
        self._gate.hold = hold

    def end_after(self, request: ModelStart, reason: str) -> None:
        """Start nothing but this request of the recording again, and cancel the run before another effect would start.

        The loop may end the run before. reason: the reason of the cancellation.
        """
        self._gate.only_request = OnlyRequest(request.path, request.turn, reason)

    @property
    def is_held(self) -> bool:
        """True if a model request waits because of `hold_requests`."""
        return self._gate.is_held and not self.state.over

    def look_again(self) -> None:
        """Start what a hold of requests has kept from starting, if it has ended. Safe from every thread."""
        self._gate.is_held = self._gate.is_held and self._gate.hold()
        self._driver.wakeup.nudge()

    def resume(self) -> bool:
        """Continue after a pause, or repeat a failed model request. Returns False if there is nothing to resume.

        Raises UsageError as `play` does.
        """
        return self._driving.resume()

    def cancel(self, reason: str = "cancelled") -> bool:
        """Cancel the run immediately. Returns False if it has ended, or is being cancelled already.

        When this returns True, every open call has its result.
        """
        check_text("cancel(reason)", reason)
        return self._driving.cancel(reason)

    def abandon(self, reason: str) -> None:
        """Cancel the run in this process only: its store keeps what it has, so that another process can continue it."""
        with self._journal.lock:
            self._journal.recorder = None
        self.cancel(reason)

    async def step(self, unit: Unit = "event") -> list[Event]:
        """Continue to the end of the next `event`, `call`, `turn` or `phase`, and return the events of that step.

        The list is empty if the run has ended. If only a person can move the run on, the step ends early and returns
        the events so far; `pending` lists the calls to decide. Raises UsageError in the body of an `async for` that
        drives the run.
        """
        taken_here = self._driving.is_taken_here()
        if not environment.current.hosted:
            return await step(self._driving, unit, taken_here=taken_here)
        stepping = hosting.host.submit(step(self._driving, unit, taken_here=taken_here))
        try:
            await environment.current.wait_async(stepping)
        except asyncio.CancelledError as stop:  # Stop in the cell
            environment.current.stopped(stop, environment.STEP_STOPPED)
            raise
        return stepping.result()

    def submit_step(self, unit: Unit = "event", *, blocking: bool = False) -> Future[list[Event]]:
        """Run `step` on agentnb's own thread, for callers that cannot await, and return its future.

        blocking: True if the caller blocks its thread until the future is done.
        """
        return hosting.host.submit(
            step(self._driving, unit, taken_here=blocking and self._driving.is_taken_in_this_task())
        )

    # -- messages --------------------------------------------------------------------------------------------------

    def steer(self, text: str | Message | Mapping[str, Any]) -> None:
        """Redirect the run: deliver the message as soon as the loop allows. Raises UsageError if the run has ended."""
        self.queue("steering", text)

    def follow_up(self, text: str | Message | Mapping[str, Any]) -> None:
        """Queue a message to deliver when the run would otherwise end. Raises UsageError if the run has ended."""
        self.queue("follow_up", text)

    def queue(self, queue: Queue, text: str | Message | Mapping[str, Any]) -> None:
        """Put a message into the queue `steering` or `follow_up`. Raises UsageError if the run has ended."""
        if not self.queue_if_open(queue, text):
            raise UsageError(
                f"The run has ended ({self.stop_reason}); the {queue.replace('_', '-')} message cannot be delivered."
                " Start or fork a run to continue."
            )

    def queue_if_open(self, queue: Queue, text: str | Message | Mapping[str, Any]) -> bool:
        """Put a message into the queue `steering` or `follow_up`. Returns False if the run has ended."""
        return self._mailbox.queue_if_open(queue, text)

    @property
    def queued(self) -> list[tuple[Queue, Message]]:
        """The queued messages that were not delivered yet, in the order of delivery, each with its queue."""
        with self._journal.lock:
            return queued(self._journal) if not self.state.over else []

    def withdraw(self, queue: Queue, message: Message | None = None) -> list[Message] | None:
        """Withdraw all messages of a queue, or the oldest that equals `message`, and return them.

        The list has no messages that were delivered in the meantime. Returns None if the run has ended.
        """
        return self._mailbox.withdraw(queue, message)

    def panel(self, parts: Sequence[str] | None = None) -> Any:
        """Return the panel of the run as a widget. `parts` selects some of its parts (`agentnb.widgets.PARTS`)."""
        return environment.presenter().panel(self, parts)

    def _ipython_display_(self) -> None:
        environment.presenter().present(self)

    def suspend_at_questions(self) -> None:
        """End the run with the stop reason `suspended` once only a person can move it on. A restored run continues.

        Questions that a declared headless policy answers (`agentnb.headless`) do not suspend the run.
        """
        self._gate.suspends_at_questions = True

    def __repr__(self) -> str:
        where = self.stop_reason or ("paused" if self.state.paused else self.phase)
        names = printable(f"{self.name or self.id} of {self.loop.name}")
        return f"<Run {names}: {where}, {len(self._journal.events)} events>"


def _kept_tags(recording: Sequence[Event], shared: tuple[str, int] | None) -> list[str]:
    """Return the tags of a recording that is continued, for a store that does not have it yet; a fork has none."""
    first = recording[0] if recording and shared is None else None
    return first.tags if isinstance(first, RunStart) else []


_runs: weakref.WeakValueDictionary[int, Run] = weakref.WeakValueDictionary()
_count = itertools.count()


_made = Watchers("of this process")


def _remember(run: Run) -> None:
    _runs[next(_count)] = run
    _made.tell_each(run)


def watch_runs(made: Callable[[Run], object]) -> Callable[[], None]:
    """Call `made` with each run that is made in this process from now on, in the thread that makes it.

    Returns a function that unsubscribes. Runs are made by starting, restoring and forking.
    """
    return _made.watch(made)


def latest_run() -> Run | None:
    """Return the newest of `runs_here`; None if there is none."""
    return next(iter(runs_here()), None)


def runs_here() -> list[Run]:
    """Return the runs of this process that run in the background or are still referenced, newest first."""
    return [run for _, run in reversed(list(_runs.items()))]


def replay(recording: Recording | Snapshot | str | Path, loop: Design | None = None) -> Replay:
    """Return a replay of a recording, which can be stepped forwards and backwards and performs no effects.

    recording: a run, a snapshot, or the path of a file that `snapshot.save` wrote. loop: the loop whose decisions each
    move compares with the recording; None for no comparison.

    Raises UsageError if the arguments have other types, and for a file the errors of `Snapshot.load`.
    """
    if not isinstance(loop, (Design, type(None))):
        raise UsageError(f"replay(recording, loop) takes a loop to compare with the recording, not {loop!r}.")
    if isinstance(recording, Recording):
        events = recording.recording if isinstance(recording, Replay) else recording.events
        return Replay(
            events,
            loop or recording.loop,
            name=recording.name,
            check=loop is not None,
            checkpoints=recording._checkpoints,
        )
    if not isinstance(recording, Snapshot):
        check_path("replay(recording), if it is not a run or a snapshot,", recording)
        recording = Snapshot.load(recording)
    snapshot = recording
    return Replay(snapshot.events, loop, name=snapshot.name, check=loop is not None)
