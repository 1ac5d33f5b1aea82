"""Run: what every loop gives. Drive it, watch it, decide about its calls, save where it stands (DESIGN 4).

A run is driven by one of four: a consumer that pulls its events (`async for`), a caller that awaits it, a step, or a
task in the background (`play`). Whoever comes second watches. Control methods are safe from every thread and event
loop, and what they did is a fact when they return.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
import uuid
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from agentnb.core.errors import LimitReached, RunCancelled, RunFailed, UsageError
from agentnb.core.events import CancelRequested, Delta, Event, Queue, Queued, RunResumed, StopReason, Withdrawn
from agentnb.core.loop import Design
from agentnb.core.messages import Message, to_message
from agentnb.core.state import State
from agentnb.run import host as hosting
from agentnb.run.approvals import Decisions, Pending
from agentnb.run.asking import Asking
from agentnb.run.calling import Calling
from agentnb.run.consumer import Watching
from agentnb.run.driver import Driver
from agentnb.run.gate import UNITS, Gate, Permit, Unit
from agentnb.run.journal import Journal, Recorder, RunStore, Watcher
from agentnb.run.policy import make_policy
from agentnb.run.portable import portable
from agentnb.run.prefix import Prefix
from agentnb.run.snapshot import Snapshot
from agentnb.tools import as_tools

Owner = Literal["pull", "await", "play", "step"]


class Run(Decisions):
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
    ) -> None:
        self.loop = loop
        self.id = recording[0].run_id if recording else uuid.uuid4().hex[:12]
        self.name = name
        self._gate = Gate(breakpoints, limits)
        policy = make_policy(approve)
        tools = as_tools(loop.tools)
        self._journal = Journal(loop, self.id)
        self._journal.load(list(recording))
        self._journal.recorder = self._open_store(store, recording)
        calling = Calling(loop, self._journal, tools, policy)
        asking = Asking(loop, self._journal, tools)
        begin = loop.begin(portable_input(input), history) if not recording else None
        self._driver = Driver(loop, self._journal, self._gate, asking, calling, begin)
        Decisions.__init__(self, self._journal, self._driver, calling, tools)
        self._owner: Owner | None = None
        self._playing = False
        self._reported = len(recording)
        self._released: list[Callable[[], None]] = []
        _remember(self)
        self._task: object = None  # keeps a background task alive: asyncio itself holds only a weak reference

    def _open_store(self, store: RunStore | None, recording: Sequence[Event]) -> Recorder | None:
        if store is None:
            return None
        return store.record_run(self.id, self.name, self.loop.kind(), recording)

    # -- where it stands -------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Where the run stands; read it, do not change it."""
        return self._journal.state

    @property
    def events(self) -> Sequence[Event]:
        """Everything that has happened so far, oldest first."""
        return Prefix(self._journal.events)

    @property
    def phase(self) -> str:
        """The loop's phase; before the start, the one it starts in."""
        return self.state.phase if self.state.phase is not None else next(iter(self.loop.phases))

    @property
    def messages(self) -> list[Message]:
        """The conversation so far."""
        return list(self.state.messages)

    @property
    def output(self) -> Any:
        """What the run came to; None until it is over."""
        return self.state.output

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run is over; None until it is."""
        return self.state.stop_reason

    @property
    def usage(self) -> dict[str, float]:
        """Tokens (`input_tokens`, `output_tokens`, ...) and `cost`, added up."""
        return dict(self.state.usage)

    @property
    def driven(self) -> bool:
        """Whether anybody drives the run at the moment."""
        return self._owner is not None

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with every event and delta from now on, in order, from the thread it happens in.

        Gives a function that ends it. A watcher must be quick; one that raises is logged and the run goes on.
        """
        return self._journal.watch(watcher)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """The run as it stands now, to be saved and restored; also in the middle of a call or an approval.

        With `name` and a store, the store finds it under that name.
        """
        with self._journal.lock:
            self._driver.begin()
            snapshot = Snapshot.of(self._journal.events, name=name or self.name)
            if name is not None and self._journal.recorder is not None:
                self._journal.flush()
                self._journal.recorder.name_snapshot(name, snapshot.position)
        return snapshot

    # -- driving ---------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncGenerator[Event | Delta, None]:
        """What has happened so far, then live, to the end.

        Where nobody drives the run this consumer does, at its own pace; closing it before the end cancels the run.
        Raises RunFailed where the model or the loop failed.
        """
        if not hosting.environment.hosted or self._driver.is_here():
            return self._pull()
        return self._pull_from_host()

    def __await__(self) -> Generator[Any, None, Any]:
        """Drive to the end and give the output. Raises RunFailed, RunCancelled or LimitReached where there is none."""
        return self._to_the_end().__await__()

    def result(self, timeout: float | None = None) -> Any:
        """Block until the end and give the output. Raises TimeoutError when `timeout` seconds pass; the run goes on.

        A keyboard interrupt (Stop in a notebook) cancels the run.
        """
        until = time.monotonic() + timeout if timeout is not None else None
        while not self._settled():
            released = self._when_released()
            if self._owner is None:
                self._play_on_host()
            self._refuse_to_block_own_loop()
            try:
                hosting.environment.wait(released, max(0.0, until - time.monotonic()) if until is not None else None)
            except TimeoutError:
                raise TimeoutError(f"The run is not over after {timeout:g} s; it goes on.") from None
            except KeyboardInterrupt:
                self.cancel("interrupted")
                raise
        return self._outcome()

    def play(self) -> None:
        """Go on in the background, also after a pause or a failure of the model."""
        with self._journal.lock:
            if self.state.over:
                return
            self._playing = True
            self._go_on()
            if self._owner is None:
                self._play_here()

    def pause(self, reason: str = "paused") -> bool:
        """Start nothing new; True unless the run is over, paused already, or not being driven.

        What is in flight is finished first; `run_paused` says when that has happened.
        """
        with self._journal.lock:
            if self.state.over or self.state.paused or self._gate.pausing is not None or not self._gate.running:
                return False
            self._gate.pausing = reason
            self._driver.nudge()
            return True

    def resume(self) -> bool:
        """Go on after a pause, or ask a model that failed again; True where there was something to resume."""
        with self._journal.lock:
            if not self._go_on():
                return False
            if self._playing and self._owner is None:
                self._play_here()
            return True

    def cancel(self, reason: str = "cancelled") -> bool:
        """End the run now; False where it is over. Every open call has its result when this returns."""
        with self._journal.lock:
            if self.state.over or self.state.cancelled is not None:
                return False
            self._driver.begin()
            self._journal.append(CancelRequested.make(reason=portable(reason)))
            self._driver.finish("cancelled", reason)
            return True

    async def step(self, unit: Unit = "event") -> list[Event]:
        """Go on up to the end of the next `event`, `call`, `turn` or `phase`; gives the events of that step.

        The list is empty when nothing is left. Where only a person can move the run on, it gives what happened so far,
        and `pending` says what it waits for.
        """
        if not hosting.environment.hosted:
            return await self._step(unit)
        step = self.submit_step(unit)
        await hosting.environment.wait_async(step)
        return step.result()

    def submit_step(self, unit: Unit = "event") -> concurrent.futures.Future[list[Event]]:
        """`step` on agentnb's own thread, for callers that cannot await."""
        return hosting.host.submit(self._step(unit))

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
        message = to_message(portable_input(text))
        with self._journal.lock:
            if self.state.over:
                return False
            self._driver.begin()
            self._journal.append(Queued.make(queue=queue, message=message))
            return True

    def withdraw(self, queue: Queue) -> list[Message] | None:
        """Take everything back out of a queue; None where the run is over."""
        with self._journal.lock:
            if self.state.over:
                return None
            taken = list(self.state.queues[queue])
            if taken:
                self._journal.append(Withdrawn.make(queue=queue, count=len(taken)))
            return taken

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for a person."""
        return self.waiting_calls()

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _to_the_end(self) -> Any:
        while not self._settled():
            if hosting.environment.hosted or not self._claim("await"):
                released = self._when_released()
                if self._owner is None:
                    self._play_on_host()
                try:
                    await hosting.environment.wait_async(released)
                except asyncio.CancelledError:
                    if hosting.environment.hosted:  # Stop in the cell that waits
                        self.cancel("interrupted")
                    raise
                continue
            try:
                self._go_on_if_paused()
                async for _ in self._driver.pump("drain"):
                    pass
            except asyncio.CancelledError:
                self.cancel("whoever awaited it was cancelled")
                await self._driver.close()
                raise
            except RunFailed:
                break
            finally:
                self._release()
        return self._outcome()

    async def _pull_from_host(self) -> AsyncGenerator[Event | Delta, None]:
        """Pull in agentnb's own thread, item by item; where the caller waits, clicks get in."""
        remote = self._pull()
        step: concurrent.futures.Future[Any] | None = None
        try:
            while True:
                step = hosting.host.submit(_next(remote))
                await hosting.environment.wait_async(step)
                item = step.result()
                if item is None:
                    return
                yield item
        finally:
            if step is not None and not step.done():
                step.cancel()
                self.cancel("its consumer was interrupted")
            await hosting.environment.wait_async(hosting.host.submit(remote.aclose()))

    async def _pull(self) -> AsyncGenerator[Event | Delta, None]:
        if self._settled() or not self._claim("pull"):
            async for item in self._look_on():
                yield item
            return
        news: deque[Event | Delta] = deque()
        with self._journal.lock:
            news.extend(self._journal.events)
            stop = self._journal.watch(news.append)
        try:
            self._go_on_if_paused()
            while news:
                yield news.popleft()
            async with aclosing(self._driver.pump("pull")) as pump:
                async for _ in pump:
                    while news:
                        yield news.popleft()
            while news:
                yield news.popleft()
        except RunFailed:
            while news:
                yield news.popleft()
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self.cancel("its consumer was closed")
            await self._driver.close()
            raise
        finally:
            stop()
            self._release()

    async def _look_on(self) -> AsyncIterator[Event | Delta]:
        watching = Watching(self._journal)
        self._released.append(watching.wake)
        if self._owner is None and not self._settled():  # calls of this run are in flight in another event loop
            self._play_on_host()
        try:
            while True:
                while watching.queue:
                    yield watching.queue.popleft()
                if self._settled() and not watching.queue:
                    break
                await watching.wait()
        finally:
            watching.stop()
        if self.state.failure is not None or self.state.stop_reason == "error":
            self._outcome()

    async def _step(self, unit: Unit) -> list[Event]:
        if unit not in UNITS:
            raise UsageError(f"A step is one {', '.join(UNITS)}, not {unit!r}.")
        if self._owner is None and (home := self._driver.home) is not None:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._step(unit), home))
        with self._journal.lock:
            if self._gate.permit is not None:
                raise UsageError("A step is under way already.")
            if self.state.failure is not None:
                self._journal.append(RunResumed.make())
            if (done := self._take_step(unit)) or self.state.over:
                return done
            self._gate.steps = True
            permit = self._gate.permit = Permit(unit)
            mine = self._claim("step")
            if not mine and not self.state.paused:  # it is playing: let it go on to the boundary, and no further
                self._gate.pausing = self._gate.pausing or "step"
        if mine:
            await self._drive_step()
        else:
            self._driver.nudge()
            await asyncio.wrap_future(permit.done)
        return self._take_step(unit, whatever=True)

    async def _drive_step(self) -> None:
        try:
            async for _ in self._driver.pump("step"):
                pass
        except RunFailed:
            if self.state.failure is None:  # the model's failure is an event of this step; ours is raised
                raise
        finally:
            self._gate.permit = None
            self._release()

    def _take_step(self, unit: Unit, *, whatever: bool = False) -> list[Event]:
        """The events since the last step, up to the end of the next unit; all of them for `whatever`."""
        with self._journal.lock:
            events = self._journal.events[self._reported :]
            end = self._gate.boundary(unit, events)
            if end is None:
                if not whatever:
                    return []
                end = len(events)
            self._reported += end
            return events[:end]

    def _claim(self, owner: Owner) -> bool:
        with self._journal.lock:
            if self._owner is not None or (owner != "play" and self._driver.home is not None):
                return False
            self._owner = owner
            self._gate.running = owner != "step"
            return True

    def _release(self) -> None:
        with self._journal.lock:
            if self._owner != "step":
                self._reported = len(self._journal.events)
            self._owner = None
            self._gate.running = False
            if self._playing and not self._settled():
                self._play_here()
            waiting, self._released = self._released, []
        for wake in waiting:
            wake()

    def _when_released(self) -> concurrent.futures.Future[None]:
        released: concurrent.futures.Future[None] = concurrent.futures.Future()

        def wake() -> None:
            if not released.done():
                released.set_result(None)

        with self._journal.lock:
            if self._settled() and self._owner is None:
                wake()
            else:
                self._released.append(wake)
        return released

    def _settled(self) -> bool:
        """Whether driving on would change nothing: the run is over, or its model failed and nobody resumed it."""
        return (self.state.over and self._owner is None) or self.state.failure is not None

    def _go_on(self) -> bool:
        """Undo a pause or a failure; gives whether there was one."""
        if self.state.over:
            return False
        if self._gate.pausing is not None and not self.state.paused:
            self._gate.pausing = None
            self._driver.nudge()
            return True
        if self.state.paused or self.state.failure is not None:
            self._journal.append(RunResumed.make())
            return True
        return False

    def _go_on_if_paused(self) -> None:
        """Whoever starts driving a paused run wants it to go on; one whose model failed waits to be told."""
        with self._journal.lock:
            if self.state.paused:
                self._journal.append(RunResumed.make())

    def _play_here(self) -> None:
        try:
            here = None if hosting.environment.hosted else asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is None:
            self._play_on_host()
        elif self._claim("play"):
            self._task = here.create_task(self._play())

    def _play_on_host(self) -> None:
        """Drive in the background: where calls of this run are in flight already, or else on agentnb's own thread."""
        home = self._driver.home or hosting.host.loop
        if self._claim("play"):
            self._task = asyncio.run_coroutine_threadsafe(self._play(), home)

    async def _play(self) -> None:
        try:
            self._go_on_if_paused()
            async for _ in self._driver.pump("drain"):
                pass
        except RunFailed:
            pass  # a fact by now, and raised to whoever awaits the run
        except asyncio.CancelledError:  # the event loop ends; the run stands where it is
            self._playing = False
            raise
        finally:
            if self._settled_but_owned():
                self._playing = False
            self._release()

    def _settled_but_owned(self) -> bool:
        return self.state.over or self.state.failure is not None

    def _refuse_to_block_own_loop(self) -> None:
        if self._driver.is_here():
            raise UsageError("result() would block the event loop that drives this run; await the run instead.")

    def _outcome(self) -> Any:
        state = self.state
        if state.failure is not None:
            raise self._driver.failed()
        if state.stop_reason == "cancelled":
            raise RunCancelled(state.cancelled or "cancelled")
        if state.stop_reason == "limit" or (state.stop_reason in self.loop.limits_that_raise):
            raise LimitReached(state.error.message if state.error is not None else str(state.stop_reason))
        if state.stop_reason == "error":
            said = f"{state.error.type}: {state.error.message}" if state.error is not None else "The loop failed."
            raise RunFailed(said) from self._driver.crash
        if (crash := self._driver.crash) is not None:  # it came to an end, and that could not be recorded
            raise RunFailed(f"{type(crash).__name__}: {crash}") from crash
        return state.output

    def panel(self) -> Any:
        """The run's panel, as a widget."""
        return hosting.presenter().panel(self)

    def _ipython_display_(self) -> None:
        hosting.presenter().present(self)

    def __repr__(self) -> str:
        where = self.stop_reason or ("paused" if self.state.paused else self.phase)
        return f"<Run {self.name or self.id} of {self.loop.name}: {where}, {len(self._journal.events)} events>"


_latest: weakref.ref[Run] | None = None


def _remember(run: Run) -> None:
    global _latest
    _latest = weakref.ref(run)


def latest_run() -> Run | None:
    """The run that was started or restored last in this process, as long as somebody holds on to it."""
    return _latest() if _latest is not None else None


async def _next(news: AsyncIterator[Event | Delta]) -> Event | Delta | None:
    """`anext` as a coroutine, which is what another thread's event loop takes; None at the end."""
    return await anext(news, None)


def portable_input(input: Any) -> Any:
    """A run's input as it will stand in the journal."""
    if isinstance(input, (list, tuple)):
        return [portable_input(item) for item in input]
    return portable(input.plain if isinstance(input, Message) else input)
