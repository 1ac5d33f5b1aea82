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
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Literal

from agentnb.core.errors import RunFailed
from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallStart,
    ErrorInfo,
    Event,
    ModelStart,
    RunPaused,
    StopReason,
)
from agentnb.core.loop import Design
from agentnb.core.state import CallState, State
from agentnb.core.wanted import MODEL, Effect
from agentnb.run.asking import Asking
from agentnb.run.calling import Calling, Refusal
from agentnb.run.endings import ABORTED, end_run, expire, next_deadline, reject
from agentnb.run.gate import Gate
from agentnb.run.interrupt import Interrupted, Interruptible
from agentnb.run.journal import Journal
from agentnb.run.news import News
from agentnb.run.policy import Verdict
from agentnb.run.portable import error_info

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
        self.crash: BaseException | None = None
        """What went wrong with the loop, the driver or the store, where something did."""
        self.news = News(journal, self._note_crash)
        journal.observe = self._observe
        calling.shown = self.news.nudge

    def begin(self) -> None:
        """Make the run's first fact one, where it is not yet. Safe from every thread."""
        with self._journal.lock:
            if self._first is not None:
                first, self._first = self._first, None
                self._journal.append(first)

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that has calls in flight, where the caller is not in it: the run has to be driven there."""
        loop = self.news.loop if self._tasks else None
        return loop if loop is not None and loop.is_running() and not self.news.is_here() else None

    def _observe(self, event: Event) -> None:
        try:
            if self._gate.steps or self._gate.breakpoints:
                self._gate.observe(event, self._state)
        finally:
            self.news.has_come()

    def _note_crash(self, error: BaseException) -> None:
        self.crash = error

    async def pump(self, pace: Pace) -> AsyncGenerator[None, None]:  # noqa: C901 - one loop, read from top to bottom
        """Move the run on until it is over, or until a step's permit is used up and nobody else drives.

        Raises RunFailed when the model failed, and when the loop or the driver did.
        """
        if self.news.move_in():  # what ran in another event loop has gone with it; `_recover` sees to its calls
            self._tasks.clear()
        timer, breath = self._start_clock(), time.monotonic() + BREATH
        try:
            while not self._state.over:
                effect = await self._next(pace)
                if effect is HALT:
                    break
                if effect is MODEL and pace == "pull":
                    async with aclosing(self._asking.ask()) as answer:
                        with suppress(Interrupted):
                            while await self._performing.wait(anext(answer, _END)) is not _END:
                                yield
                elif effect is not None:
                    with suppress(Interrupted):  # whoever broke it off has seen to its result
                        await self._performing.wait(self._drain() if effect is MODEL else self._perform(effect))
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
            self.crash = error
            end_run(self._journal, "error", ABORTED, error_info(error))
            raise RunFailed(f"{type(error).__name__}: {error}") from error
        finally:
            if timer is not None:
                timer.cancel()
            self.news.flush()

    async def _next(self, pace: Pace) -> Effect | None:
        """Do the next thing; gives the effect that the pump is to perform itself, HALT where there is nothing to do."""
        self.news.fresh = False
        state, gate = self._state, self._gate
        if self._first is not None:
            self.begin()
        elif state.failure is not None:
            raise self.failed()
        elif gate.is_open(state):
            idle = not state.open and state.model == "idle"
            wants = () if idle else self._design.wanted(state)
            if self._tasks or self.crash is not None:
                self._cancel_unwanted(wants)
            effect = self._start(wants, pace) if wants else None
            if effect is None and not self.news.fresh:
                await self._go_on(wants)
            return effect
        elif any(call_id in state.open and state.open[call_id].hidden for call_id in self._intents):
            self._launch(alone=False)  # a step of the loop's own that has been said to start is not held back any more
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
            expire(self._journal)
            if not self.news.fresh:
                self._gate.release_permit()  # only a person can move the run on
        else:
            await self._wait()

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
                limits = self._gate.limits
                if limits and (why := self._gate.limit_reached(self._state, starting="model")) is not None:
                    self.finish("limit", why)
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
            if self.news.fresh and pace == "pull":
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
            reject(self._journal, call, verdict.reason, by=verdict.by)
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
        limits = self._gate.limits
        if limits and (why := self._gate.limit_reached(self._state, starting="call")) is not None:
            self.finish("limit", why)
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
        assert self.news.loop is not None
        self._tasks[effect] = self.news.loop.create_task(self._carry(effect, work))

    async def _carry(self, effect: Effect, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work of one effect, and take it off the list before the pump looks again."""
        try:
            await work()
        except Exception as error:  # none of the user's gets this far: it is ours, and ends the run
            self.crash = error
        finally:
            self._tasks.pop(effect, None)
            self.news.wake()

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

    # -- pausing and ending ----------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until there is news, or a deadline has passed."""
        deadline = next_deadline(self._state)
        await self.news.wait(deadline)
        if deadline is not None:
            expire(self._journal)

    def _settle_pause(self) -> bool:
        """Make a pause a fact once nothing is in flight; gives whether it did."""
        gate = self._gate
        if gate.pausing is None or self._state.paused or self._tasks:
            return False
        with self._journal.lock:
            reason, gate.pausing = gate.pausing, None
            self._journal.append(RunPaused.make(reason=reason))
        return True

    def finish(self, reason: StopReason, why: str) -> None:
        """End the run, and break off what is in flight. Safe from every thread."""
        error = ErrorInfo.make(type="LimitReached", message=why) if reason == "limit" else None
        end_run(self._journal, reason, why if reason == "limit" else ABORTED, error)
        self.news.call(self._interrupt)

    def _interrupt(self) -> None:
        if self._performed is None or not self._may_return(self._performed):
            self._performing.interrupt()
        self.news.wake()

    def failed(self) -> RunFailed:
        """The model's failure, as the error to raise; its cause is the exception itself where that is at hand."""
        failure = self._state.failure
        assert failure is not None
        error = RunFailed(f"The model failed: {failure.type}: {failure.message} (run.resume() asks again.)")
        error.__cause__ = self._asking.error
        return error

    def _start_clock(self) -> asyncio.TimerHandle | None:
        """Let the limit on seconds end the run while it waits."""
        seconds = self._gate.limits.get("seconds")
        if seconds is None:
            return None
        left = seconds - (time.time() - self._state.started if self._state.started is not None else 0)
        why = f"The limit of {seconds:g} seconds is reached."
        return asyncio.get_running_loop().call_later(max(0.0, left), self.finish, "limit", why)


_END = object()
