"""Driving a study in workers: assigns its runs to them, collects their questions, and sends them the decisions.

A worker is a process that an executor has (`agentnb.studies.executors`), and that performs `agentnb.studies.worker`. It
is connected for as long as the study is driven (`agentnb.studies.channel`), and drives many runs at the same time; each
new run goes to the worker that has the fewest.

If a worker dies, its connection ends. Its runs then go to other workers, which restore them from the store: finished
calls do not run again, and calls of unknown outcome become questions.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.process  # registers what it does at the exit of the interpreter before this module does
import dataclasses
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentnb.core.errors import AgentnbError, UsageError, WorkersLost, printable
from agentnb.core.events import CallEnd, ModelEnd, RunEnd
from agentnb.core.json import to_json_data
from agentnb.run import Pending, headless
from agentnb.run import host as hosting
from agentnb.run.host import call_in
from agentnb.store import Store
from agentnb.store.questions import error_from_json, pending_from_json
from agentnb.studies.budget import Budget
from agentnb.studies.channel import LOST, Connection, Listener, Ticket
from agentnb.studies.driving import Driving, StudyRun, has_ended, status_of
from agentnb.studies.executors import Executor
from agentnb.studies.worker import this_process

PERIOD = 0.5
"""Seconds between two looks at the workers that the executor has."""

DEATHS = 3
"""A run has failed if so many workers died while it worked, and it has made no progress between these deaths."""

WORKER_SECONDS = 60.0
"""The seconds without a worker after which there is a warning."""

FAILED_STARTS = 3
"""The study ends if the executor fails to start a worker so many times, for each worker, and none has connected."""

DECISION_SECONDS = 30.0
"""The seconds that a worker has to confirm a decision."""

_driven: weakref.WeakSet[DrivingInWorkers] = weakref.WeakSet()


@dataclass(eq=False, slots=True)
class _Worker:
    """A connected worker, and the runs that it drives."""

    name: str
    connection: Connection
    runs: set[StudyRun] = field(default_factory=set)
    has_begun: bool = False
    """True after it has begun its first run."""


@dataclass(eq=False, slots=True)
class _Active:
    """A run that a worker drives, and its questions."""

    worker: _Worker
    pending: list[Pending] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Decision:
    """A decision that was sent to a worker. The future has its result as soon as the worker has confirmed it."""

    active: _Active
    item: Pending
    future: concurrent.futures.Future[None]


class DrivingInWorkers(Driving):
    """Drives the runs of a study in the workers of an executor."""

    def __init__(
        self,
        runs: Sequence[StudyRun],
        at_once: int,
        executor: Executor,
        plan: bytes,
        store: Store,
        budget: Budget | None = None,
    ) -> None:
        """`plan` is the pickled `agentnb.studies.shipping.Plan`."""
        super().__init__(runs, at_once, budget)
        self._executor = executor
        self._plan = plan
        self._store = store
        self._numbers = {one: number for number, one in enumerate(runs)}
        self._active: dict[StudyRun, _Active] = {}
        self._workers: dict[str, _Worker] = {}
        """The connected workers by their places in the executor."""
        self._starting: set[str] = set()
        """The places whose workers have been started, and have not connected yet."""
        self._listener = Listener(self._serve)
        self._addresses: tuple[str, ...] = ()
        self._failures = 0
        self._failure: BaseException | str | None = None
        self._places = 0
        self._is_to_look = True
        """True if a worker has gone, or could not be started. Otherwise `PERIOD` passes between two looks."""
        self._looks_at = 0.0
        self._last_worker = time.monotonic()
        self._is_abandoned = False
        self._waits = 0
        self._holds = False
        self._presence: dict[str, Any] = {}
        self._decisions: dict[int, _Decision] = {}
        """The decisions that were sent and have not been confirmed, by their numbers."""
        self._asked = 0
        self._deaths: dict[StudyRun, tuple[int, int]] = {}
        """For each run whose worker has died: how many have since it made progress, and its events at that time."""

    # -- all runs ------------------------------------------------------------------------------------------------------

    async def drive(self) -> None:
        """Drive all runs that are not over, until each has ended or its model has failed.

        Raises WorkersLost if the executor has no workers left.
        """
        if not self._queue:
            return
        _driven.add(self)
        try:
            self._addresses = await asyncio.to_thread(self._executor.addresses)
            await self._listener.open(self._addresses)
            await self._drive()
        finally:
            for worker in self._workers.values():
                worker.connection.send({"type": "stop"})
                worker.connection.close()
            await self._listener.close()
            for one in list(self._active):
                self._leave(one, "interrupted")
            if not self._is_abandoned:
                await asyncio.to_thread(self._executor.end)
            _driven.discard(self)

    async def _drive(self) -> None:
        while not self._is_abandoned:
            self._news.clear()
            while self._workers and self._may_begin():
                self._assign(self._queue.popleft())
            self._tell_hold()
            if not self._waits_for_limit() and not self._active and (not self._queue or self._cancelled is not None):
                return
            if self._is_to_look or time.monotonic() >= self._looks_at:
                self._is_to_look, self._looks_at = False, time.monotonic() + PERIOD
                await self._start_workers()
                self._check_workers()
            self._tell_presence()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), PERIOD)

    def cancel(self, reason: str) -> None:
        """Start no further runs, and cancel those that are active."""
        self._cancelled = reason
        self.at_limit = concurrent.futures.Future()

        def tell() -> None:
            for worker in self._workers.values():
                worker.connection.send({"type": "cancel", "reason": reason, "cells": None})
            self._news.set()

        call_in(hosting.host.loop, tell)

    def lift(self) -> None:
        """Continue, because the limit of the study is higher. Called on the host thread."""
        self.at_limit = concurrent.futures.Future()
        self._tell_hold()
        self._news.set()

    @property
    def _under_way(self) -> Iterable[StudyRun]:
        return self._active

    def _tell_hold(self) -> None:
        """Tell the workers whether they may start requests to models, if that has changed."""
        if self._holds != (holds := self.budget.reached is not None):
            self._holds = holds
            for worker in self._workers.values():
                worker.connection.send({"type": "hold", "holds": holds})

    def cancel_runs(self, runs: Sequence[StudyRun], reason: str) -> None:
        """Cancel some runs, also those that have not begun. The others go on."""

        def tell() -> None:
            self._leave_out(runs)
            for one in runs:
                if (active := self._active.get(one)) is not None:
                    message = {"type": "cancel", "reason": reason, "cells": [self._numbers[one]]}
                    active.worker.connection.send(message)

        call_in(hosting.host.loop, tell)

    def wait_begins(self) -> None:
        """Note that a caller waits for the study, and so for each of its runs."""
        call_in(hosting.host.loop, partial(self._count_waits, 1))

    def wait_ends(self) -> None:
        """Note that a caller has stopped waiting."""
        call_in(hosting.host.loop, partial(self._count_waits, -1))

    def _count_waits(self, change: int) -> None:
        self._waits += change
        self._news.set()

    def _tell_presence(self) -> None:
        """Tell the workers whether a caller waits, and whether a person may be present here, if that has changed."""
        if self._presence != (presence := self._presence_now()):
            self._presence = presence
            for worker in self._workers.values():
                worker.connection.send(presence)

    def _presence_now(self) -> dict[str, Any]:
        return {"type": "presence", "waits": self._waits > 0, "absence": headless.in_force().absence}

    def abandon(self, reason: str) -> None:
        """Close the connections: the workers leave their runs to others. Safe from every thread."""

        def abort() -> None:
            self._is_abandoned, self._cancelled = True, reason
            for worker in self._workers.values():
                worker.connection.abort()
            self._news.set()

        call_in(hosting.host.loop, abort)

    # -- workers -------------------------------------------------------------------------------------------------------

    async def _start_workers(self) -> None:
        """Start a worker at each place of the executor that has none."""
        loop = asyncio.get_running_loop()
        try:
            places = await asyncio.to_thread(self._executor.places)
        except AgentnbError:
            raise
        except Exception as error:  # the scheduler has gone
            self._count_failure(error)
            return
        for place in places:
            if place in self._workers or place in self._starting:
                continue
            ticket = Ticket(self._addresses, self._listener.port, self._listener.key, place, this_process())

            def ended(error: BaseException | None, place: str = place) -> None:
                call_in(loop, partial(self._not_started, place, error))

            self._starting.add(place)
            try:
                await asyncio.to_thread(self._executor.start, place, ticket, ended)
            except AgentnbError:
                raise
            except Exception as error:
                self._not_started(place, error)
        self._starting.intersection_update(places)  # a worker that has gone before it connected
        self._places = len(places)

    def _not_started(self, place: str, error: BaseException | None) -> None:
        """Note that the work at a place has ended. If the worker had not connected, that is a failure."""
        if place in self._starting:
            self._starting.discard(place)
            self._count_failure(error or "the work ended before it began")
            self._is_to_look = True
            self._news.set()

    def _count_failure(self, error: BaseException | str) -> None:
        self._failures += 1
        self._failure = error

    def _check_workers(self) -> None:
        """Raise WorkersLost if workers cannot be started. If there are none for a while, warn: some may come later."""
        now = time.monotonic()
        if self._workers:
            self._last_worker = now
            return
        if self._failures > FAILED_STARTS * max(self._places, 1):
            raise WorkersLost(
                f"No worker of {self._executor.name} drives the runs of the study any longer:"
                f" {_text(self._failure).rstrip('.')}. What was recorded is kept. Look at the executor, or make another"
                " one; agentnb.study with the same name and store, and that executor, continues."
            )
        if now - self._last_worker > WORKER_SECONDS:
            self._last_worker = now
            warnings.warn(
                f"{self._executor.name} has had no worker for {WORKER_SECONDS:g} s, and the study waits for one. Start"
                " workers, or call study.cancel(): a study with the same name and store continues later.",
                RuntimeWarning,
                stacklevel=2,
            )

    async def _serve(self, connection: Connection) -> None:
        """Serve a worker that has connected, until its connection ends."""
        hello = await connection.receive()
        place = hello["place"]
        if place in self._workers:
            return  # a worker that was thought to have failed
        self._starting.discard(place)
        worker = _Worker(place, connection)
        connection.send_bytes(self._plan)
        connection.send(self._presence_now())
        connection.send({"type": "hold", "holds": self._holds})
        self._workers[place] = worker
        self._news.set()
        try:
            while True:
                self._receive(worker, await connection.receive())
        except LOST:
            pass
        except Exception as error:  # a message that this agentnb does not know
            self._failure = error
        finally:
            del self._workers[place]
        self._is_to_look = True
        if not worker.has_begun:
            self._failures += 1
        if not self._is_abandoned:
            await self._lost(worker)

    def _receive(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        """Process a message of a worker."""
        if message["type"] == "decided":
            self._confirmed(self._decisions.pop(message["number"]), message["error"])
            return
        if message["type"] == "failed":
            self._failure = message["error"]
            return
        one = self.runs[message["cell"]]
        active = self._active.get(one)
        if active is None or active.worker is not worker:
            return
        match message["type"]:
            case "started":
                worker.has_begun, self._failures = True, 0
                one.id = message["id"]
                if self._cancelled is not None:  # meanwhile
                    worker.connection.send({"type": "cancel", "reason": self._cancelled, "cells": None})
            case "spent":
                self._spent(one, message["tokens"], message["cost"], message["unpriced"])
                self._tell_hold()
            case "status":
                active.pending = [pending_from_json(item) for item in message["pending"]]
                one.is_paused = message["paused"]
                self._set(one, message["status"])
            case "end":
                one.id, one.stop_reason, one.error = message["id"] or one.id, message["stop_reason"], message["error"]
                self._leave(one, status_of(one.stop_reason))
            case other:
                raise AssertionError(f"a worker has sent {other!r}")

    def _leave(self, one: StudyRun, status: Any) -> None:
        """Note that no worker drives a run any longer."""
        if (active := self._active.pop(one, None)) is not None:
            active.worker.runs.discard(one)
            one.is_paused = False
            if status not in ("interrupted", "not started"):
                self.budget.end(one)
            self._set(one, status)

    async def _lost(self, worker: _Worker) -> None:
        """Give the runs of a worker that has died to others, from their last events."""
        for number, decision in list(self._decisions.items()):
            if decision.active.worker is worker:
                del self._decisions[number]
                decision.future.set_exception(_unconfirmed(decision.item))
        for one in list(worker.runs):
            try:
                ended, deaths = await self.patiently(partial(self._look_up, one))
            except Exception as error:  # of the store
                one.error = _text(error)
                self._leave(one, "failed")
                continue
            if ended:
                self._leave(one, status_of(one.stop_reason))
            elif deaths >= DEATHS:
                one.error = (
                    f"{deaths} workers died, one after the other, while they drove this run. It may be the cause."
                )
                self._leave(one, "failed")
            else:
                self._leave(one, "interrupted")
                if self._cancelled is None:
                    self._queue.appendleft(one)
        self._news.set()

    def _look_up(self, one: StudyRun) -> tuple[bool, int]:
        """Return whether the store has the end of a run, and how many workers have died since it made progress."""
        if one.id is None:  # it may have begun
            found = [info for info in self._store.find(name=one.name) if info.events and info.name == one.name]
            one.id = found[0].id if found else None
        events = [] if one.id is None else self._store.events(one.id)
        if not events:
            one.id = None
        last = events[-1] if events else None
        if isinstance(last, RunEnd) and last.terminal and last.reason != "cancelled":
            one.stop_reason = last.reason
            one.error = f"{last.error.type}: {last.error.message}" if last.error is not None else None
            return True, 0
        deaths, before = self._deaths.get(one, (0, 0))
        if any(isinstance(event, (ModelEnd, CallEnd)) for event in events[before:]):
            deaths = 0
        deaths += one.status == "running"  # one that waited for a person has not caused it
        self._deaths[one] = (deaths, len(events))
        return False, deaths

    # -- one run -------------------------------------------------------------------------------------------------------

    def _assign(self, one: StudyRun) -> None:
        """Let the worker with the fewest runs drive a run."""
        worker = min(self._workers.values(), key=lambda worker: len(worker.runs))
        worker.runs.add(one)
        self._active[one] = _Active(worker)
        one.stop_reason, one.error = None, None
        self._set(one, "running")
        worker.connection.send({"type": "run", "cell": self._numbers[one], "id": one.id})

    @property
    def pending(self) -> list[Pending]:
        """The calls of all active runs that wait for a person, the run that was started first at the beginning."""
        now = time.time()
        items = [item for active in list(self._active.values()) for item in active.pending]
        return [item for item in items if item.deadline is None or now < item.deadline]

    def decide(
        self, items: Sequence[tuple[StudyRun, Pending]], method: str, arguments: Mapping[str, Any]
    ) -> list[Exception | None]:
        """Send decisions to the workers, wait until they have confirmed them, and return the error of each, or None."""
        if threading.get_ident() == hosting.host.thread:
            raise UsageError(
                "This code runs on agentnb's own thread, which receives the answers of the workers. Decide in another"
                f" thread: await asyncio.to_thread(study.{method}, ...)."
            )
        as_json = {name: to_json_data(value) for name, value in arguments.items()}
        futures: list[concurrent.futures.Future[None]] = [concurrent.futures.Future() for _ in items]
        call_in(hosting.host.loop, partial(self._send_decisions, items, futures, method, as_json))
        errors: list[Exception | None] = []
        for (_, item), future in zip(items, futures, strict=True):
            try:
                future.result(DECISION_SECONDS)
                errors.append(None)
            except TimeoutError:
                errors.append(_unconfirmed(item))
            except Exception as error:
                errors.append(error)
        return errors

    def resume(self, runs: Sequence[StudyRun]) -> int:
        """Let those of the runs that are paused continue, and return how many."""
        paused = [one for one in runs if one.is_paused]

        def tell() -> None:
            for one in paused:
                if (active := self._active.get(one)) is not None:
                    active.worker.connection.send({"type": "resume", "cell": self._numbers[one]})

        call_in(hosting.host.loop, tell)
        return len(paused)

    def _send_decisions(
        self,
        items: Sequence[tuple[StudyRun, Pending]],
        futures: Sequence[concurrent.futures.Future[None]],
        method: str,
        arguments: Mapping[str, Any],
    ) -> None:
        for (one, item), future in zip(items, futures, strict=True):
            active = self._active.get(one)
            if active is None:
                future.set_exception(has_ended(item, one.name, one.recording))
                continue
            self._asked += 1
            self._decisions[self._asked] = _Decision(active, item, future)
            question = {**dataclasses.asdict(item), "schema": {}, "view": "", "description": ""}
            cell = self._numbers[one]
            active.worker.connection.send(
                {
                    "type": "decide",
                    "number": self._asked,
                    "cell": cell,
                    "item": question,
                    "method": method,
                    "arguments": arguments,
                }
            )

    def _confirmed(self, decision: _Decision, error: list[str] | None) -> None:
        if error is not None:
            decision.future.set_exception(error_from_json(error))
            return
        key = decision.item.path, decision.item.id, decision.item.event
        pending = decision.active.pending
        decision.active.pending = [item for item in pending if (item.path, item.id, item.event) != key]
        decision.future.set_result(None)


def _unconfirmed(item: Pending) -> WorkersLost:
    return WorkersLost(
        f"The worker that asked about {item.name} died before it confirmed the decision. If study.pending has the call"
        " again, nothing was decided."
    )


def _text(error: BaseException | str | None) -> str:
    return printable(f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error))


def _abandon_all() -> None:
    for driving in list(_driven):
        driving.abandon("the process ends")


# A pool waits for its processes when the interpreter exits, and a worker waits for the study. These functions are
# called in the reverse order of their registration, so this one is called before the one of `concurrent.futures`.
with suppress(AttributeError, RuntimeError):
    threading._register_atexit(_abandon_all)  # type: ignore[attr-defined]  # no public function is called so early
