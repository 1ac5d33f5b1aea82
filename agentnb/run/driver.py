"""The driver: makes what the state wants happen, and nothing else (DESIGN 1).

`pump` is an async generator that moves a run on, and yields whenever there may be news. Whoever iterates over it sets
the pace: a consumer that pulls events, a task that drains it, a step that stops at its boundary. It does one thing
after the other:

    start what is wanted and not in flight, cancel what is in flight and no longer wanted;
    where nothing is wanted and nothing in flight, ask the design for the next fact;
    otherwise wait for news.

Intent is a fact before an effect starts, and on disk before a tool runs; a result is a fact when the effect ends. What
is wanted and was started by a process that is gone is what a crash left behind: a model is asked again, a call runs
again only where its tool is idempotent, and otherwise the person is asked (DESIGN, promise 2).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from agentnb.core.errors import LimitReached, RunFailed, StorageError
from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallStart,
    ErrorInfo,
    Event,
    ModelStart,
    RunEnd,
    RunPaused,
    StopReason,
)
from agentnb.core.loop import Design
from agentnb.core.state import CallState, State
from agentnb.core.wanted import MODEL, Effect
from agentnb.run.asking import Asking
from agentnb.run.calling import ABORTED, Calling, Refusal, current_call, rejection
from agentnb.run.gate import Gate
from agentnb.run.interrupt import Interrupted, Interruptible
from agentnb.run.journal import Journal
from agentnb.run.policy import Verdict
from agentnb.run.portable import error_info, portable

Pace = Literal["pull", "drain", "step"]
"""How a run is driven, and so what the pump does itself instead of making a task for it.

pull: a consumer takes each event before the next thing happens; the model is asked here, at the consumer's pace.
drain: as fast as it goes; a call that is alone in flight is performed here too.
step: nothing is done here, so that what is in flight goes on between two steps.
"""

HALT = Effect("question", "")
"""No effect, and nothing that could be done."""

BREATH = 0.01
"""Seconds after which the pump lets the event loop take a turn, where nothing it does ever waits."""


class Driver:
    """Drives one run. Its methods belong to the event loop that pumps, except those that say otherwise."""

    def __init__(
        self, design: Design, journal: Journal, gate: Gate, asking: Asking, calling: Calling, first: Event | None
    ) -> None:
        self._design = design
        self._journal = journal
        self._gate = gate
        self._asking = asking
        self._calling = calling
        self._state: State = journal.state
        self._tasks: dict[Effect, asyncio.Task[None]] = {}
        self._verdicts: dict[str, Verdict | Refusal] = {}
        self._intents: dict[str, None] = {}  # a set that keeps the order the calls were made in
        self._asked_by_us = False
        self._performing = Interruptible()
        self._performed: Effect | None = None
        self._first = first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._news = False
        self._flush_scheduled = False
        self.crash: BaseException | None = None
        journal.observe = self._observe
        calling.shown = self.nudge

    def begin(self) -> None:
        """Make the run's first fact one, where it is not yet. Safe from every thread."""
        with self._journal.lock:
            if self._first is not None:
                first, self._first = self._first, None
                self._journal.append(first)

    def is_here(self) -> bool:
        """Whether the caller is in the event loop that pumps."""
        try:
            return self._loop is not None and asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that has calls in flight, where the caller is not in it: the run has to be driven there."""
        loop = self._loop if self._tasks else None
        return loop if loop is not None and loop.is_running() and not self.is_here() else None

    def nudge(self) -> None:
        """Let the pump look again at what may be done. Safe from every thread."""
        self.call_threadsafe(self._wake)

    async def pump(self, pace: Pace) -> AsyncGenerator[None, None]:  # noqa: C901 - one loop, read from top to bottom
        """Move the run on until it is over, or until a step's permit is used up and nobody else drives.

        Raises RunFailed when the model failed, and when the loop or the driver did.
        """
        self._move_in()
        timer, breath = self._limit_seconds(), time.monotonic() + BREATH
        try:
            while not self._state.over:
                effect = await self._next(pace)
                if effect is HALT:
                    break
                if effect is MODEL and pace == "pull":
                    async with aclosing(self._asking.ask()) as answer:
                        while await self._here(anext(answer, _END)) is not _END:
                            yield
                elif effect is not None:
                    await self._here(self._drain() if effect is MODEL else self._perform(effect))
                if pace == "pull":
                    yield
                if time.monotonic() > breath:  # a model and tools that never wait must not keep everybody else waiting
                    await asyncio.sleep(0)
                    breath = time.monotonic() + BREATH
            if self._state.over:
                await self.close()
            self._journal.flush()
        except RunFailed:
            raise
        except Exception as error:  # ours or the loop's: it ends the run, loudly (DESIGN 1)
            self._fail(error)
            raise RunFailed(f"{type(error).__name__}: {error}") from error
        finally:
            if timer is not None:
                timer.cancel()
            self._flush()

    def _move_in(self) -> None:
        here = asyncio.get_running_loop()
        if self._loop is not here:  # what ran in another event loop has gone with it; `_recover` sees to its calls
            self._tasks.clear()
        self._loop, self._thread = here, threading.get_ident()

    async def _next(self, pace: Pace) -> Effect | None:
        """Do the next thing; gives the effect that the pump is to perform itself, HALT where there is nothing to do."""
        self._news = False
        state, gate = self._state, self._gate
        if self._first is not None:
            self.begin()
        elif state.failure is not None:
            raise self.failed()
        elif gate.is_open(state):
            wants = self._design.wanted(state)
            self._cancel_unwanted(wants)
            effect = self._start(wants, pace)
            if effect is None and not self._news:
                await self._go_on(wants)
            return effect
        elif not self._settle_pause():
            if not gate.running and gate.pausing is None:
                return HALT
            await self._wait()
        return None

    async def _go_on(self, wants: Sequence[Effect]) -> None:
        """Nothing can be started: wait for what is in flight, or let the design say what comes next."""
        if self._state.cancelled is not None and not self._tasks:
            self.finish("cancelled", ABORTED)  # the tool that cancelled its own run is done
        elif not wants and not self._tasks:
            self._advance()
        elif not self._tasks and self._gate.permit is not None and all(e.kind == "question" for e in wants):
            self._expire()
            if not self._news:
                self._release_permit()  # only a person can move the run on
        else:
            await self._wait()

    async def _here(self, work: Awaitable[Any]) -> Any:
        """Do the work of an effect that is alone in flight in the pump's own task; _END where it was broken off."""
        try:
            return await self._performing.wait(work)
        except Interrupted:  # whoever broke it off has seen to its result
            return _END

    async def _perform(self, effect: Effect) -> None:
        call = self._state.open.get(effect.id)
        if call is not None:
            self._performed = effect
            try:
                await self._calling.perform(call)
            finally:
                self._performed = None

    def _advance(self) -> None:
        with self._journal.lock:  # another thread may end the run, or take back what it has queued
            if self._state.cancelled is not None or self._state.over:
                return
            fact = self._design.advance(self._state)
            if fact.type == "model_start":
                why = self._gate.limit_reached(self._state, starting="model")
                if why is not None:
                    self.finish("limit", why, LimitReached(why))
                    return
                self._asked_by_us = True
            self._journal.append(fact)

    # -- starting --------------------------------------------------------------------------------------------------

    def _start(self, wants: Sequence[Effect], pace: Pace) -> Effect | None:
        """Start what is wanted and not in flight; gives the one effect that the pump is to perform itself.

        It stops where the gate closes. For a consumer that pulls it stops at each new fact, so that the consumer can
        act on it before the next.
        """
        state = self._state
        for effect in wants:
            if effect in self._tasks and self._holds_back(effect):
                return None
            if effect in self._tasks or effect.kind == "question":
                continue
            if state.over or state.cancelled is not None or not self._gate.is_open(state):
                return None
            if effect is MODEL:
                if self._start_model(pace):
                    return MODEL
            elif (call := state.open.get(effect.id)) is not None:
                self._start_call(call)
                if effect in self._tasks and self._holds_back(effect):
                    return None
            if self._news and pace == "pull":
                return None
        return self._launch(alone=pace == "drain" and len(wants) == 1) if self._intents else None

    def _holds_back(self, effect: Effect) -> bool:
        """Whether the calls behind this one wait until it is checked."""
        call = self._state.open.get(effect.id) if self._design.checks_in_order else None
        return call is not None and call.status == "proposed"

    def _start_model(self, pace: Pace) -> bool:
        """Ask the model; gives whether the pump is to do it."""
        if not self._asked_by_us:  # whoever asked is gone, or failed: ask again
            self._asked_by_us = True
            state = self._state
            with self._journal.lock:
                if state.model == "asked":
                    again = ModelStart.make(turn=state.turn, attempt=state.attempt + 1, options=state.options)
                    self._journal.append(again)
            return False
        self._asked_by_us = False
        if pace == "step":
            self._spawn(MODEL, self._drain)
        return pace != "step"

    async def _drain(self) -> None:
        async for _ in self._asking.ask():
            pass

    def _start_call(self, call: CallState) -> None:
        if call.status == "proposed":
            verdict = self._verdicts.pop(call.id, None)
            if verdict is None and (call.hidden or self._calling.checks_at_once):
                verdict = self._calling.check(call)
            if verdict is None:
                self._spawn(Effect("call", call.id), partial(self._check, call))
            else:
                self._apply(verdict, call)
        elif call.status == "ready":
            self._intend(call)
        elif call.id not in self._intents:
            self._recover(call)

    def _apply(self, verdict: Verdict | Refusal, call: CallState) -> None:
        if isinstance(verdict, Refusal):
            self._journal.append(verdict.end, about=call)
        elif verdict.decision == "ask":
            self._ask_person(call, verdict)
        elif verdict.by is None:
            self._intend(call)
        elif verdict.decision == "reject":
            self.reject(call, verdict.reason, by=verdict.by)
        else:
            decision = ApprovalDecision.make(
                call_id=call.id,
                decision=verdict.decision,
                by=verdict.by,
                reason=verdict.reason,
                arguments=verdict.arguments,
            )
            self._journal.append(decision, about=call)

    def _ask_person(self, call: CallState, verdict: Verdict, *, unknown: bool = False) -> None:
        request = ApprovalRequest.make(
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            reason=verdict.reason,
            deadline=time.time() + verdict.deadline if verdict.deadline is not None else None,
            unknown=unknown,
        )
        self._journal.append(request, about=call)

    def _intend(self, call: CallState) -> None:
        why = self._gate.limit_reached(self._state, starting="call")
        if why is not None:
            self.finish("limit", why, LimitReached(why))
            return
        self._intents[call.id] = None
        intent = CallStart.make(call_id=call.id, name=call.name, arguments=call.arguments, attempt=call.attempt + 1)
        self._journal.append(intent, about=call)

    def _recover(self, call: CallState) -> None:
        """A call was started, and whoever started it is gone without leaving a result."""
        tool = self._calling.tool(call.name)
        if call.hidden or (tool is not None and tool.idempotent):
            self._intend(call)
        else:
            reason = (
                f"{call.name} was started and nobody knows how it ended. Approve to run it again, "
                "answer with its result if it happened, or reject to fail it."
            )
            self._ask_person(call, Verdict("ask", reason), unknown=True)

    def _launch(self, *, alone: bool) -> Effect | None:
        """Run the calls whose intent is a fact, once it is on disk; gives the one that the pump is to run itself."""
        self._journal.flush()
        intents, self._intents = self._intents, {}
        if alone and not self._tasks:
            return Effect("call", next(iter(intents)))
        for call_id in intents:
            call = self._state.open.get(call_id)
            if call is not None:
                self._spawn(Effect("call", call_id), partial(self._calling.perform, call))
        return None

    async def _check(self, call: CallState) -> None:
        self._verdicts[call.id] = await self._calling.check_with_hooks(call)

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _spawn(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        assert self._loop is not None
        self._tasks[effect] = self._loop.create_task(self._carry(effect, work))

    async def _carry(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work of one effect, and take it off the list before the pump looks again."""
        try:
            await work()
        except Exception as error:  # none of the user's gets this far: it is ours, and ends the run
            self.crash = error
        finally:
            self._tasks.pop(effect, None)
            self._wake()

    def _cancel_unwanted(self, wants: Sequence[Effect]) -> None:
        if self.crash is not None:
            raise self.crash
        if self._tasks:
            still_wanted = set(wants)
            for effect, task in self._tasks.items():
                if effect not in still_wanted and not self._may_return(effect):
                    task.cancel()

    def _may_return(self, effect: Effect) -> bool:
        """Whether this is the call that has cancelled its own run: it is not cut off by that (see `finish`)."""
        return self._state.cancelled is not None and effect.id in self._state.open

    async def close(self) -> None:
        """Cancel what is in flight, and wait until every task has run its `finally`: nothing outlives the run."""
        while tasks := list(self._tasks.values()):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for effect, task in list(self._tasks.items()):
                if task.done():  # one that was cancelled before it began took nothing off the list
                    del self._tasks[effect]

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until there is news, or a deadline has passed."""
        deadline = min((d for d in map(_deadline, self._state.open.values()) if d is not None), default=None)
        assert self._loop is not None
        self._waiter = self._loop.create_future()
        timer = None
        if deadline is not None:
            timer = self._loop.call_later(max(0.0, deadline - time.time()), self._wake)
        try:
            if not self._news:  # looked at after the future is in place, so that other threads' news is not missed
                await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        if deadline is not None and time.time() >= deadline:
            self._expire()

    def _expire(self) -> None:
        """No answer by the deadline means no."""
        with self._journal.lock:
            for call in list(self._state.open.values()):
                due = _deadline(call)
                if due is not None and due <= time.time():
                    self.reject(call, "no answer by the deadline", by="deadline")

    def reject(self, call: CallState, reason: str, *, by: str) -> None:
        """Decide a call that waits with no. Safe from every thread."""
        reason = portable(reason)
        with self._journal.lock:
            decision = ApprovalDecision.make(call_id=call.id, decision="reject", by=by, reason=reason)
            self._journal.append(decision, about=call)
            self._journal.append(rejected(call, reason), about=call)

    def _observe(self, event: Event) -> None:
        self._gate.observe(event, self._state)
        self._news = True
        if self._waiter is None and self._journal.recorder is None:
            return  # nobody waits, and nothing is to be written
        loop = self._loop
        if loop is None or not loop.is_running():
            self._flush()
        elif threading.get_ident() != self._thread:
            self._flush()
            self.call_threadsafe(self._wake)
        else:
            self._wake()
            if self._journal.recorder is not None and not self._flush_scheduled:
                self._flush_scheduled = True
                loop.call_soon(self._flush)  # after the pump, which may append more that belongs to the same write

    def _flush(self) -> None:
        self._flush_scheduled = False
        try:
            self._journal.flush()
        except StorageError as error:  # whoever made the fact is not to blame; the pump ends the run with it
            self.crash = error
            self.nudge()

    def _wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def call_threadsafe(self, function: Callable[[], None]) -> None:
        """Call it in the event loop that pumps, where there is one. Safe from every thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    # -- pausing and ending ----------------------------------------------------------------------------------------

    def _settle_pause(self) -> bool:
        """Make a pause a fact once nothing is in flight; gives whether it did."""
        gate = self._gate
        if gate.pausing is None or self._state.paused or self._tasks:
            return False
        with self._journal.lock:
            reason, gate.pausing = gate.pausing, None
            self._journal.append(RunPaused.make(reason=reason))
        return True

    def _release_permit(self) -> None:
        if self._gate.permit is not None:
            self._gate.permit.release()
            self._gate.permit = None

    def finish(self, reason: StopReason, why: str, error: BaseException | None = None) -> None:
        """End the run: every call that is open gets its result, then the run its end. Safe from every thread.

        A tool that ends its own run is left to return: its call gets the result it gives, and the end comes after it.
        """
        with self._journal.lock:
            here = current_call.get()
            for call in list(self._state.open.values()):
                if here != (self._journal.run_id, call.id):
                    self._journal.append(aborted(call, why if reason == "limit" else ABORTED))
            if not self._state.open:
                self._journal.append(RunEnd.make(reason=reason, error=_brief(error)))
        self.call_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._performed is None or not self._may_return(self._performed):
            self._performing.interrupt()
        self._wake()

    def _fail(self, error: Exception) -> None:
        """The loop or the driver failed: say so as the run's last fact, as far as that is still possible."""
        self.crash = error
        with self._journal.lock:
            if self._state.over:
                return
            for call in list(self._state.open.values()):
                self._journal.append(aborted(call, ABORTED))
            self._journal.append(RunEnd.make(reason="error", error=error_info(error)))

    def failed(self) -> RunFailed:
        """The model's failure, as the error to raise; its cause is the exception itself where that is at hand."""
        failure = self._state.failure
        assert failure is not None
        error = RunFailed(f"The model failed: {failure.type}: {failure.message} (run.resume() asks again.)")
        error.__cause__ = self._asking.error
        return error

    def _limit_seconds(self) -> asyncio.TimerHandle | None:
        seconds = self._gate.limits.get("seconds")
        if seconds is None:
            return None
        left = seconds - (time.time() - self._state.started if self._state.started is not None else 0)
        return asyncio.get_running_loop().call_later(max(0.0, left), self._out_of_time, seconds)

    def _out_of_time(self, seconds: float) -> None:
        if not self._state.over:
            why = f"The limit of {seconds:g} seconds is reached."
            self.finish("limit", why, LimitReached(why))


_END = object()


def _deadline(call: CallState) -> float | None:
    return call.approval.deadline if call.status == "asking" and call.approval is not None else None


def _brief(error: BaseException | None) -> ErrorInfo | None:
    return ErrorInfo.make(type=type(error).__name__, message=str(error)) if error is not None else None


def aborted(call: CallState, why: str) -> CallEnd:
    """The result of a call that the end of the run overtook."""
    return CallEnd.make(call_id=call.id, name=call.name, result=why, is_error=True, outcome="aborted")


def rejected(call: CallState, reason: str) -> CallEnd:
    """The result of a call that was decided with no."""
    return CallEnd.make(call_id=call.id, name=call.name, result=rejection(reason), is_error=True, outcome="rejected")
