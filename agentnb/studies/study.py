"""Studies: many runs of a loop over a grid of arms, inputs and repeats, as one object.

`agentnb.study` checks the grid and finds the runs that a store has already. The runs are driven by
`agentnb.studies.driving`; decisions about their calls are made here, for all runs in one list.

What a store knows about a study is in the first event of each run: its tags (`study:NAME` and one for each factor) and,
in its data, the arm, the input, the repeat, the seed and the labels of all arms. Nothing else is stored, so a study can
be continued by any process that calls `agentnb.study` with the same arguments.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal, Self, cast
from weakref import WeakSet

from agentnb.core.errors import AlreadyDecided, LimitReached, StoreBusy, UsageError, printable
from agentnb.core.events import Remember, RunEnd, RunStart
from agentnb.core.loop import Design
from agentnb.run import Pending, Run, environment, headless
from agentnb.run import host as hosting
from agentnb.run.approvals.pending import to_decide_at_once
from agentnb.run.approvals.reviewer import declared_reviewer
from agentnb.run.environment import STOPPED_FOLLOWING, STOPPED_STUDY
from agentnb.run.validation import check_seconds, check_text, checked_data, checked_tags, shown
from agentnb.store import RunInfo, Store
from agentnb.store.drivers import Claim, Owner
from agentnb.studies.budget import Budget, recorded_amounts, split_limits
from agentnb.studies.driving import CANCELLED, STATUSES, Driving, DrivingHere, StudyRun, left_as, status_of
from agentnb.studies.elsewhere import DrivingElsewhere
from agentnb.studies.executors import Executor, check_store, check_workers, executor_of
from agentnb.studies.grid import Grid, Label, arm_text, at_once_of, cell_key, check_options
from agentnb.studies.progress import PERIOD, ProgressLine, summary
from agentnb.studies.recipe import OWN_DATA, TAG, Recipe
from agentnb.studies.remote import DrivingInWorkers
from agentnb.studies.rules import StudyRule, StudyRules
from agentnb.studies.shipping import Plan, pickled

RULES_AGAIN = 0.1
"""The seconds after which the rules of a study are applied again, if they have just decided about a call."""

logger = logging.getLogger("agentnb")

_running: WeakSet[Study] = WeakSet()
"""The studies of this process that are being driven."""
_kept: set[Study] = set()
"""The same studies: one that waits at its limit is not lost, although nothing else may refer to it."""


def study(
    make_loop: Callable[..., Design],
    inputs: Iterable[Any],
    repeats: int = 1,
    *,
    arms: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    name: str = "study",
    store: Store | str | Path | None = None,
    at_once: int = 8,
    seed: int = 0,
    seed_by: Literal["cell", "input"] = "cell",
    approve: Any = None,
    limits: Mapping[str, float] | None = None,
    on_limit: Literal["end", "ask"] | None = None,
    options: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    add: bool = False,
    retry_failed: bool = False,
    progress: bool = True,
    executor: Any = None,
) -> Study:
    """Return a study: a run for each combination of an arm, an input and a repeat. No run is started yet.

        def analyst(model, policy):
            return SessionLoop(OpenAI(model), tools, system_prompt=PROMPTS[policy])


        study = agentnb.study(
            analyst,
            ["Is there a step in the table?"],
            repeats=30,
            arms={"model": ["small", "large"], "policy": ["plain", "sceptic"]},
            store=Store("runs.db"),
            name="levelled",
        )
        await study  # or study.start(), in the background
        agentnb.analysis.runs(study)  # a row for each run

    make_loop: a function that returns a new loop. It is called for each run, with the values of the run's arm and, if
    it takes an argument `seed`, with the seed of the run.

    inputs: the inputs: a list, a column or a table (each row is an input: its value if there is one column, otherwise
    a mapping with None where a value is missing), an array, a range, or any iterable with an order. An input that is
    NaN is refused. repeats: the number of runs for each arm and input.

    arms: a mapping from an argument of `make_loop` to the list of its values, or to a mapping from a label to each
    value; all combinations are run. A list of arms is run as it is:
    `arms=[{"model": "small", "policy": "plain"}, {"model": "large", "policy": "sceptic"}]`. The arms `approve`,
    `limits`, `on_limit` and `options` are arguments of `start`, unless `make_loop` takes them:
    `arms={"options": {"cold": {"temperature": 0}, "warm": {"temperature": 1}}}`.

    store, name: the store that keeps the runs (an `agentnb.Store`, or the path or address of one), and the name of the
    study in it. A study of this name continues: runs that have ended are not run again, and others go on from their
    last event. A run that was paused stays paused until `study.resume()`. More repeats or inputs than before are added.
    Without a store, the runs are kept in memory.

    at_once: the maximum number of runs that work at the same time. A run that waits for a person does not count.

    seed: the seed from which the seed of each run is computed. Equal studies have runs with equal seeds. seed_by:
    "cell" gives each run a seed of its own; "input" gives the runs of all arms that have the same input and repeat the
    same seed, so that arms can be compared in pairs.

    approve, limits, on_limit, options: as for `start`, for each run; the options of an arm are added to `options`.
    Two names in `limits` are of the whole study: `total_cost` (US dollars) and `total_tokens`, of all its runs
    together, also of those that the store has already. When one is reached, requests under way end, and no other
    begins: `study.resume(total_cost=10)` allows 10 dollars more. Until then, awaiting the study raises LimitReached.

    tags, data: those of all runs, in addition to those of the study.

    add: add to a study of this name even if it has other arms or inputs, or another treatment: other loops, prompts,
    tools, models, options, limits or policies. What has ended of it stays as it is; tables tell the treatments apart by
    the column `treatment`. retry_failed: run those again that have failed; without it, they stay failed. progress: show
    a progress line.

    executor: the processes that drive the runs; None for this process. A `concurrent.futures.ProcessPoolExecutor` whose
    processes are spawned, a Dask client (`distributed.Client`) or the address of a Dask scheduler
    (`"tcp://host:8786"`), or a client or a view of ipyparallel. It needs a store that its workers can open, and
    make_loop, the values of arms, and policies are sent to them (cloudpickle), without keys: each worker reads its own
    environment variables. Questions come back: `study.pending` has those of all workers. If a worker dies, another one
    continues its runs.

    Raises UsageError, before any run is started, if an argument is not valid, if `make_loop` does not take an arm,
    fails, or returns the same loop twice, if a model does not take one of the options, and if the store has a study of
    this name with other arms or inputs, another treatment, another seed or another kind of loop. With an executor also
    if something cannot be sent, and if a worker has another version of Python or agentnb, does not see the store, or
    cannot make the loops.
    """
    total, limits = split_limits(limits)
    for_start = {"approve": approve, "limits": limits, "on_limit": on_limit, "options": options}
    check_options(**for_start)
    grid = Grid(name, make_loop, inputs, repeats, arms, seed, for_start, seed_by)
    if isinstance(store, (str, Path)):
        store = Store(store)
    if store is not None and not isinstance(store, Store):
        raise UsageError(f"store= takes an agentnb.Store, or the path or address of one, not {shown(store)}.")
    data = checked_data(data)
    if taken := [name for name in OWN_DATA if name in data]:
        raise UsageError(f"data= cannot have {taken[0]!r}: the study sets it for each run. Use another name.")
    workers = None
    if executor is not None:
        workers = executor_of(executor)
        check_store(store)
    return Study(
        grid,
        store=store,
        at_once=at_once_of(at_once),
        tags=checked_tags(tags),
        data=data,
        add=add,
        retry_failed=retry_failed,
        progress=progress,
        executor=workers,
        limits=total,
    )


class Study:
    """The runs of a grid. `agentnb.study` creates it. All methods are safe from every thread.

    `await study` or `study.result()` waits for the end of all runs, and returns the study. A run that fails does not
    end the study. `study.start()` starts the runs in the background. Iterate over a study for its runs.
    """

    _kind_of_run: type[StudyRun] = StudyRun

    def __init__(
        self,
        grid: Grid,
        *,
        store: Store | None,
        at_once: int,
        tags: Sequence[str],
        data: Mapping[str, Any],
        add: bool,
        progress: bool,
        executor: Executor | None = None,
        limits: Mapping[str, float] | None = None,
        retry_failed: bool = False,
    ) -> None:
        self.name = grid.name
        self._budget = Budget(limits or {})
        self.store = store
        self._grid = grid
        self._recipe = Recipe(grid, tags, data)
        self._shows_progress = progress
        self.runs = [self._kind_of_run(cell, store) for cell in grid.cells]
        """The runs of the grid, in the order in which they start."""
        if store is not None:
            self._find_recorded_runs(store, add=add)
        self._retries = retry_failed
        if retry_failed:
            self._forget_failures()
        self._executor = executor
        if executor is not None and store is not None and any(not run.is_over for run in self.runs):
            check_workers(executor, self._plan(store), store)
        self._at_once = at_once
        self._driving: Driving
        if store is not None and any(run.status == "interrupted" for run in self.runs):
            self._driving = self._elsewhere()
        else:
            self._driving = self._new_driving()
        self._future: concurrent.futures.Future[None] | None = None
        self._was_started = False
        self._watchers: list[Callable[[], object]] = []
        self._rules = StudyRules()
        self._has_asked = False
        self._following: asyncio.Task[None] | None = None

    @property
    def arms(self) -> dict[str, list[Label]]:
        """The labels of each factor."""
        return self._grid.labels

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs by status: not started, interrupted, running, waiting, paused, done, failed, cancelled."""
        return {status: self._driving.counts[status] for status in STATUSES}

    @property
    def is_running(self) -> bool:
        """True while the study is driven: from its start until all its runs have ended."""
        return self in _running

    def watch(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` when the study begins, when the status of a run has changed, and when the study has ended.

        It is called without arguments on agentnb's own thread, and must return at once. Returns a function that ends
        this.
        """
        self._watchers.append(callback)
        if isinstance(self._driving, DrivingElsewhere):
            self._driving.follow(weakref.WeakMethod(self._tell_watchers))

        def stop() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return stop

    # -- driving -----------------------------------------------------------------------------------------------------

    def start(self, *, retry_failed: bool = False) -> Self:
        """Start the runs in the background, and return the study at once. Continue those that have not ended.

        A run that was cancelled has not ended. retry_failed: also run those again that have failed. A run whose model
        has failed makes the request again; a run that ended with an error begins anew. If the study is being driven
        already, nothing changes. If another process, or another study object of this name, drives it, a RuntimeWarning
        says which, and the study is followed: until it has ended there or was cancelled there. If that process ends
        before, the rest is driven here.
        """
        self._was_started = True
        self._retries = self._retries or (retry_failed and not self.is_running)
        self._begin()
        return self

    def result(self, timeout: float | None = None) -> Self:
        """Block until all runs have ended, and return the study. A keyboard interrupt (Stop in a notebook) cancels it.

        timeout: in seconds; None for no limit. Raises TimeoutError when it has passed; the study continues.
        """
        check_seconds("result(timeout=...)", timeout)
        future = self._future or self._begin()
        self._driving.wait_begins()
        try:
            while not future.done():
                environment.current.wait(self._end_or_limit(future), timeout)
                self._check_limit(future)
        except TimeoutError:
            raise TimeoutError(f"The study {self.name!r} has not ended after {timeout:g} s: {self._summary}.") from None
        except KeyboardInterrupt as stop:
            self._stop(stop)
            raise
        finally:
            self._driving.wait_ends()
        future.result()
        return self

    def _end_or_limit(self, future: concurrent.futures.Future[None]) -> concurrent.futures.Future[None]:
        """Return a future that is done when the study has ended, or waits at its limit."""
        either: concurrent.futures.Future[None] = concurrent.futures.Future()

        def done(_: object) -> None:
            with suppress(concurrent.futures.InvalidStateError):
                either.set_result(None)

        for one in (future, self._driving.at_limit):
            one.add_done_callback(done)
        return either

    def _check_limit(self, future: concurrent.futures.Future[None]) -> None:
        """Raise LimitReached if the study has not ended, and waits at its limit."""
        why = self._budget.reached
        if not future.done() and why is not None:
            raise LimitReached(f"{why} {self._summary}. study.resume(total_cost=...) or (total_tokens=...) continues.")

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait until all runs have ended, and return the study. It is started if it was not."""
        return self._ended().__await__()

    async def _ended(self) -> Self:
        future = self._future or self._begin()
        self._driving.wait_begins()
        try:
            while not future.done():
                await environment.current.wait_async(self._end_or_limit(future))
                self._check_limit(future)
        except asyncio.CancelledError as stop:
            if environment.current.hosted or not self._was_started:  # Stop in the cell, or no one else waits for it
                self._stop(stop)
            raise
        finally:
            self._driving.wait_ends()
        future.result()
        return self

    def cancel(self, runs: StudyRun | Iterable[StudyRun] | str | None = None, reason: str = CANCELLED) -> bool:
        """Cancel all runs that are active, and start no others. Returns False if the study is not being driven.

        runs: a run of the study, or several, of which only these are cancelled. `start()` continues them later, each
        from its last event. reason: recorded in each run; it can be the only argument.
        """
        chosen: list[StudyRun] | None = None
        if isinstance(runs, str):
            reason = runs
        elif runs is not None:
            chosen = self._listed(runs)
        check_text("cancel(reason=)", reason)
        if self._future is None or self._future.done():
            return False
        follows = isinstance(self._driving, DrivingElsewhere) and self._driving.owner is not None
        owner = f"The study {self.name!r} is {self._driving.note}"
        if chosen is not None:
            if follows:
                raise UsageError(f"{owner}. Cancel its runs there.")
            self._driving.cancel_runs(chosen, reason)
            return True
        self._driving.cancel(reason)
        if follows:
            warnings.warn(f"{owner}, and goes on there. It is not followed here any longer.", RuntimeWarning, 2)
        return not follows

    def again(self, runs: StudyRun | Iterable[StudyRun]) -> Self:
        """Run one run, or several, anew from the beginning, and return the study at once.

        The new run takes the place of the old one in the study and its tables. The store keeps both.

        Raises UsageError if one of the runs is not of this study, or is active: cancel it first.
        """
        chosen = self._listed(runs)
        if active := [one for one in chosen if one.status in ("running", "waiting", "paused") and self.is_running]:
            raise UsageError(f"The run {active[0].name} is active. Call study.cancel(run) first.")
        if self.is_running:
            if isinstance(self._driving, DrivingElsewhere):
                raise UsageError(f"The study {self.name!r} is {self._driving.note}. Run it again there.")
            self._driving.drive_anew(chosen)
            return self
        for one in chosen:
            one.begin_anew()
        return self.start()

    def _listed(self, runs: StudyRun | Iterable[StudyRun]) -> list[StudyRun]:
        """Return runs that were passed as one or several. Raises UsageError if one is not of this study."""
        listed: list[Any] = [runs] if not isinstance(runs, Iterable) else list(runs)
        if others := [one for one in listed if not isinstance(one, StudyRun) or one not in self.runs]:
            raise UsageError(f"Pass runs of this study, not {shown(others[0])}.")
        return listed

    def _forget_failures(self) -> None:
        """Let the runs that have failed be driven again."""
        for one in self.runs:
            if one.status == "failed":
                if one.stop_reason is not None or one.id is None:
                    one.begin_anew()
                else:
                    one.status = "interrupted"

    def _stop(self, stop: BaseException) -> None:
        """Cancel the study, or end following it, because the caller that waited for it was stopped."""
        self._driving.cancel("interrupted")
        follows = isinstance(self._driving, DrivingElsewhere)
        environment.current.stopped(stop, STOPPED_FOLLOWING if follows else STOPPED_STUDY)

    def _begin(self) -> concurrent.futures.Future[None]:
        """Drive the runs on the host thread, unless that is the case already, and return the future of their end."""
        if self._future is not None and not self._future.done():
            return self._future
        found: Claim | Owner | None = None
        is_busy = False
        if self.store is not None:
            try:
                found = self.store.claim(self.name)
            except StoreBusy:
                is_busy = True
        claim = found if isinstance(found, Claim) else None
        if isinstance(found, Owner) or is_busy:
            driving: Driving = self._elsewhere(found if isinstance(found, Owner) else None)
        else:
            try:
                driving = self._driving_as_owner()
            except BaseException:
                if claim is not None:
                    claim.release(ended=False)
                raise
        self._driving = driving
        if isinstance(found, Owner):
            warnings.warn(
                f"The study {self.name!r} is driven by {found}. It is followed here, and driven here if that process"
                " ends before.",
                RuntimeWarning,
                stacklevel=3,
            )
        if self._shows_progress and (left := sum(not run.is_over for run in self.runs)):
            line = ProgressLine(self.name, len(self.runs), len(self.runs) - left)
        else:
            line = None
        _running.add(self)
        self._future = hosting.host.submit(self._drive(driving, line, claim))
        self._future.add_done_callback(lambda _: self._tell_watchers())
        return self._future

    def _elsewhere(self, owner: Owner | None = None) -> DrivingElsewhere:
        """Return the driving of a study that another process drives."""
        assert self.store is not None
        find = partial(_find_again, weakref.ref(self), self.store)
        claim = partial(self.store.claim, self.name)
        return DrivingElsewhere(self.runs, self._at_once, self.store, TAG.format(self.name), find, claim, owner)

    def _driving_as_owner(self) -> Driving:
        """Return a new driving of what is left."""
        if isinstance(self._driving, DrivingElsewhere):
            self._driving.end()
        if self.store is not None:  # another process may have run cells since this study was made
            self._find_recorded_runs(self.store, add=True, again=True)
        if self._retries:
            self._retries = False
            self._forget_failures()
        if self.store is not None and self._budget.limits:
            self._count_recorded_runs(self.store)
        return self._new_driving()

    async def _drive(self, driving: Driving, line: ProgressLine | None, claim: Claim | None) -> None:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        has_ended = False

        def draw() -> None:
            nonlocal timer
            timer = None
            assert line is not None
            line.update(driving.counts, note=self._note(driving))

        def changed() -> None:
            nonlocal timer
            self._tell_watchers()
            if self._rules and driving.counts["waiting"]:
                self._has_asked = True
                self._following = self._following or loop.create_task(self._follow_rules())
            if timer is None and line is not None:
                timer = loop.call_later(PERIOD, draw)

        def lost(owner: Owner) -> None:
            warnings.warn(
                f"The study {self.name!r} is driven by {owner} now, because this process could not be reached for a"
                " while. Its runs are left to that process.",
                RuntimeWarning,
                stacklevel=2,
            )
            driving.abandon("another process drives the study")

        driving.changed = changed
        if claim is not None:
            claim.lost = lost
        self._tell_watchers()
        _kept.add(self)
        try:
            await driving.drive()
            if isinstance(driving, DrivingElsewhere) and (claim := driving.taken) is not None:
                followed, driving = driving, await driving.patiently(self._driving_as_owner)
                self._driving, driving.changed, claim.lost = driving, changed, lost
                for _ in range(followed.waits):
                    driving.wait_begins()
                followed.at_limit.set_result(None)  # who waits looks again
                if followed.is_cancelled:  # meanwhile
                    driving.cancel(CANCELLED)
                await driving.drive()
            has_ended = not driving.is_cancelled
        finally:
            if claim is not None:
                await asyncio.to_thread(claim.release, ended=has_ended)
            _running.discard(self)
            _kept.discard(self)
            if timer is not None:
                timer.cancel()
            if line is not None:
                line.update(driving.counts, note=self._note(driving), last=True)

    def _note(self, driving: Driving) -> str:
        """Return who drives the study, what it has cost and is expected to cost, and whether it waits at its limit."""
        budget, parts = self._budget, [driving.note] if driving.note else []
        if cost := budget.spent["total_cost"]:
            expected = budget.expected({one: arm_text(one.cell.arm) for one in self.runs})
            parts.append(f"${cost:.4g}" + (f" of about ${expected:.4g}" if expected is not None else ""))
        if (why := budget.reached) is not None:
            parts.append(why)
        return " · ".join(parts)

    def _new_driving(self) -> Driving:
        at_once = self._at_once
        if self._executor is None or self.store is None:
            return DrivingHere(self.runs, at_once, self._make, self._budget)
        return DrivingInWorkers(self.runs, at_once, self._executor, self._plan(self.store), self.store, self._budget)

    def _plan(self, store: Store) -> bytes:
        """Return what the workers receive, as bytes. Raises UsageError if something in it cannot be pickled."""
        declared = headless.in_force()
        return pickled(Plan(self._recipe, store.place_for_workers(), declared.policy, declared.after))

    def _make(self, one: StudyRun) -> Run:
        """Return the run of a cell: a new one, or one that continues from its last event."""
        return self._recipe.make(one.cell, self.store, one.recording)

    # -- recorded runs -----------------------------------------------------------------------------------------------

    def _find_recorded_runs(self, store: Store, *, add: bool, again: bool = False) -> None:
        """Find the runs of this study that the store has. Raises UsageError if they are of another study.

        again: they were found, and compared with this study, before.
        """
        cells = {run.cell.key: run for run in self.runs}
        recorded = store.starts(TAG.format(self.name))
        for info, start in reversed(recorded):  # of several runs of a cell, the newest counts
            data = start.data
            if start.ancestors or data.get("study") != self.name:  # a fork of a run, or a run that a user has tagged
                continue
            if not again:
                self._check_same_study(info, start, add=add)
            one = cells.get(cell_key(data["arm"], data["input_key"], data["repeat"]))
            if one is None or info.id in one.replaced:
                continue
            one.id, one.stop_reason, one.error = info.id, info.stop_reason, None
            if info.stop_reason is None:
                one.status, one.error = left_as(store.events(info.id))
            else:
                one.status = status_of(info.stop_reason)
            if info.stop_reason == "error":
                end = store.events(info.id, info.events - 1)[-1]
                if isinstance(end, RunEnd) and end.error is not None:
                    one.error = f"{end.error.type}: {end.error.message}"
            if not (again or one.is_over) and self._grid.differences(start):
                one.begin_anew()  # no run is of two treatments

    def _count_recorded_runs(self, store: Store) -> None:
        """Count what the runs of this study in the store have spent, also those that were replaced by others."""
        by_id = {one.id: one for one in self.runs}
        counted = Budget(self._budget.limits)
        for info, start in store.starts(TAG.format(self.name)):
            if start.data.get("study") == self.name and not start.ancestors:
                for amounts in recorded_amounts(store.events(info.id)):
                    counted.add(by_id.get(info.id, info.id), *amounts)
        for one in self.runs:
            if one.is_over:
                counted.end(one)
        self._budget = counted

    def _check_same_study(self, info: RunInfo, start: RunStart, *, add: bool) -> None:
        data, grid = start.data, self._grid
        where = f"{self.store.where if self.store is not None else ''} has a study {self.name!r}"
        if data["study_seed"] != grid.seed:
            raise UsageError(
                f"{where} with seed={data['study_seed']}, not {grid.seed}. Pass that seed, or another name="
                " for a study with other seeds."
            )
        if (seed_by := data.get("seed_by", "cell")) != grid.seed_by:
            raise UsageError(
                f"{where} with seed_by={seed_by!r}, not {grid.seed_by!r}. Pass that, or another name= for a study with"
                " other seeds."
            )
        kind = grid.kinds.get(json.dumps(data["arm"]))
        if kind is not None and kind != start.loop:
            raise UsageError(
                f"{where} whose arm {arm_text(data['arm'])} has runs of {start.loop}, but make_loop returns"
                f" {kind}. Pass another name= for a study of this loop."
            )
        if add:
            return
        if data["arms"] != grid.labels:
            raise UsageError(
                f"{where} with other arms: {_arms_text(data['arms'])}, not {_arms_text(grid.labels)}. Pass another"
                " name=, or add=True to add these arms to that study."
            )
        if kind is not None and (differences := grid.differences(start)):
            arm = f" whose arm {arm_text(data['arm'])}" if data["arm"] else ", which"
            raise UsageError(
                f"{where}{arm} had another treatment: {'; '.join(differences)}. Its runs and new ones would count as"
                " equals. Make the loop as before, pass another name=, or add=True to add runs of this treatment: the"
                " column `treatment` of the tables tells them apart."
            )
        if data["input_key"] not in grid.input_keys:
            raise UsageError(
                f"{where} with other inputs: the input of its run {info.name!r} is not among these. Pass another name=,"
                " or add=True to add these inputs to that study."
            )

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[Pending]:
        """The calls of all runs that wait for a person, the run that was started first at the beginning.

        If this process has not started the study, and the store has runs of it that have not ended, these are the calls
        of the runs that other processes drive (`Store.inbox`).

        `study.run_of(item)` returns the run of one of them, with its arm.
        """
        return self._driving.pending

    def run_of(self, item: Pending | str) -> StudyRun:
        """Return the run of the study to which a pending call, or the id of a run, belongs. Raises UsageError."""
        id = item.run_id if isinstance(item, Pending) else item
        for one in self.runs:
            if one.id == id:
                return one
        raise UsageError(f"The study {self.name!r} has no run with the id {shown(id)}.")

    def approve(
        self,
        items: Pending | Iterable[Pending],
        *,
        remember: Remember | None = None,
        everywhere: bool = False,
        reviewer: str | None = None,
        unknown: bool = False,
    ) -> int:
        """Approve one call or several of `pending`, of any runs, and return how many were approved.

            study.approve(study.pending)
            study.approve(item for item in study.pending if item.name == "read")

        Calls that were decided meanwhile are not counted; if that is so for a single item, AlreadyDecided is raised.
        unknown: include calls whose outcome is unknown (`item.unknown`), which run again. Without it, several items
        are decided without these: a RuntimeWarning says how many were left out, and if all were, UsageError is raised.
        remember, reviewer: as for `run.approve`; a decision is remembered in the run of the call. everywhere: remember
        it for all runs of this study, also for those that start later. `rules` has these decisions, `forget` removes
        one.
        """
        arguments = {"remember": remember, "reviewer": reviewer}
        return self._decide(items, "approve", arguments, everywhere=everywhere, unknown=unknown)

    def reject(
        self,
        items: Pending | Iterable[Pending],
        reason: str = "",
        *,
        remember: Remember | None = None,
        everywhere: bool = False,
        reviewer: str | None = None,
        unknown: bool = False,
    ) -> int:
        """Reject one call or several of `pending`, and return how many were rejected. Otherwise as `approve`."""
        arguments = {"reason": reason, "remember": remember, "reviewer": reviewer}
        return self._decide(items, "reject", arguments, everywhere=everywhere, unknown=unknown)

    def edit(self, item: Pending, arguments: Mapping[str, Any], *, reviewer: str | None = None) -> None:
        """Approve a call of `pending` with other arguments. Raises as `run.edit` does."""
        self._decide(item, "edit", {"arguments": dict(arguments), "reviewer": reviewer})

    def answer(self, item: Pending, result: Any, *, reviewer: str | None = None) -> None:
        """Record the result of a call of `pending`, which then does not run. Raises as `run.answer` does."""
        self._decide(item, "answer", {"result": result, "reviewer": reviewer})

    @property
    def spent(self) -> dict[str, float]:
        """What the runs have spent together: `total_cost` in US dollars, as far as prices are known, `total_tokens`.

        If the study has no such limit, only what this process has spent.
        """
        return dict(self._budget.spent)

    def resume(
        self,
        runs: StudyRun | Iterable[StudyRun] | None = None,
        *,
        total_cost: float | None = None,
        total_tokens: float | None = None,
    ) -> int:
        """Let paused runs continue, and return how many: with `on_limit="ask"`, with the same amount once more.

        runs: a run of the study, or several; None for all. Those that are not paused (`is_paused`) are left alone.
        total_cost, total_tokens: let the study spend so much more, after its limit in `limits=` has been reached.

            study.resume(total_cost=10)  # ten dollars more, for all runs together

        Raises UsageError if the limit of the study is reached and no amount is given, or if it has no such limit.
        """
        more = {"total_cost": total_cost, "total_tokens": total_tokens}
        if given := {name: amount for name, amount in more.items() if amount is not None}:
            held = sum(one.is_paused for one in self.runs)

            async def lift() -> None:
                self._budget.lift(given)
                if self._budget.reached is None:
                    self._driving.lift()

            if threading.get_ident() == hosting.host.thread:
                raise UsageError("Lift the limit of a study from another thread than agentnb's own.")
            hosting.host.submit(lift()).result()
            return held if runs is None else self.resume(runs)
        if (why := self._budget.reached) is not None:
            name = next((name for name in self._budget.limits if name in why), "total_cost")
            raise UsageError(f"{why} Say how much more: study.resume({name}=...).")
        return self._driving.resume(self.runs if runs is None else self._listed(runs))

    def decide_as_person(
        self,
        item: Pending,
        method: str,
        arguments: Mapping[str, Any],
        *,
        seconds: float | None,
        everywhere: bool = False,
    ) -> None:
        """Decide about a call in the name of the person at the panel, who was shown it `seconds` ago.

        method: of `Run`, with its `arguments`. Raises as that method does. everywhere: as for `approve`.
        """
        named = {**arguments, "reviewer": declared_reviewer(), "decider": ["human", seconds]}
        self._decide(item, method, named, everywhere=everywhere)

    @property
    def rules(self) -> list[StudyRule]:
        """The decisions that are remembered for all runs of this study."""
        return self._rules.newest_first()

    def forget(self, rule: StudyRule | int) -> None:
        """Remove a decision of `rules`, or the one with this number. Runs that it has decided in keep their own.

        Raises UsageError if the study has no such rule.
        """
        self._rules.remove(rule)
        self._tell_watchers()

    def _decide(
        self,
        items: Pending | Iterable[Pending],
        method: str,
        arguments: Mapping[str, Any],
        *,
        everywhere: bool = False,
        unknown: bool = False,
    ) -> int:
        remember = arguments.get("remember")
        if everywhere and isinstance(self._driving, DrivingElsewhere):
            raise UsageError("everywhere=True is for a study that this process drives. Decide each call, or start it.")
        if everywhere and remember is None:
            raise UsageError('everywhere=True needs remember="tool" or remember="arguments".')
        is_single = isinstance(items, Pending)
        listed: list[Any] = [items] if is_single else list(items) if isinstance(items, Iterable) else [None]
        if others := [item for item in listed if not isinstance(item, Pending)]:
            raise UsageError(f"Pass items of study.pending, not {shown(others[0])}.")
        if not is_single:
            listed = to_decide_at_once(listed, unknown=unknown)
        errors = self._driving.decide([(self.run_of(item), item) for item in listed], method, arguments)
        for error in errors:
            if error is not None and (is_single or not isinstance(error, AlreadyDecided)):
                raise error
        if everywhere and remember is not None:
            by = (arguments.get("decider") or ("code",))[0]
            author: dict[str, Any] = {"by": by, "reviewer": arguments.get("reviewer"), "time": time.time()}
            for item, error in zip(listed, errors, strict=True):
                if error is None and not any(rule.fits(item) for rule in self._rules.newest_first()):
                    reason = str(arguments.get("reason") or "")
                    self._rules.add(item, cast("Any", method), remember, reason=reason, **author)
            self._apply_rules()
        return errors.count(None)

    def _apply_rules(self) -> bool:
        """Decide the waiting calls by the rules of the study. Returns True if there was one. Not on the host thread."""
        decided = 0
        for rule in self._rules.newest_first():
            fitting = [(self.run_of(item), item) for item in self.pending if rule.fits(item)]
            if not fitting:
                continue
            arguments: dict[str, Any] = {"remember": rule.remember, "reviewer": rule.reviewer}
            arguments |= {"decider": ["remembered", None]} | (
                {"reason": rule.reason} if rule.decision == "reject" else {}
            )
            errors = self._driving.decide(fitting, rule.decision, arguments)
            for error in errors:
                if error is not None and not isinstance(error, AlreadyDecided):
                    logger.error("A rule of the study %s could not decide about a call: %s", self.name, error)
            decided += errors.count(None)
        return decided > 0

    async def _follow_rules(self) -> None:
        """Apply the rules to what waits now, until nothing more is decided by them."""
        try:
            while True:
                self._has_asked = False
                if await asyncio.to_thread(self._apply_rules):
                    # A run may ask again before its status was looked at: then the status does not change.
                    await asyncio.sleep(RULES_AGAIN)
                elif not self._has_asked:
                    return
        finally:
            self._following = None

    # -- showing -----------------------------------------------------------------------------------------------------

    def panel(self) -> Any:
        """Return the panel of the study as a widget: a row for each run, the sums of each arm, and what waits for you.

        A study that is the last line of a cell shows it. A row opens the panel of its run; two rows can be compared.
        """
        return environment.presenter().study_panel(self)

    def inbox(self) -> Any:
        """Return the questions of all runs as a widget: by tool and arm, to be decided one by one or many at once."""
        return environment.presenter().study_inbox(self)

    def _ipython_display_(self) -> None:
        environment.presenter().present_study(self)

    def _tell_watchers(self) -> None:
        for watcher in list(self._watchers):
            watcher()

    def __getitem__(self, key: str | int) -> StudyRun:
        """Return a run: by the end of its name (`study["plain/3.0"]`), by its id, or by its position in `runs`.

        Raises KeyError, which has names that are similar, if there is no such run or more than one; IndexError for a
        position that does not exist.
        """
        if not isinstance(key, str):
            return self.runs[key]
        found = [one for one in self.runs if key in (one.name, one.id)]
        found = found or [one for one in self.runs if one.name.endswith(f"/{key}")]
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(one.name for one in found[:3])
            raise KeyError(f"{len(found)} runs of the study {self.name!r} end with {key!r}: {some}... Add the arm.")
        names = {one.name.removeprefix(f"{self.name}/"): one for one in self.runs}
        near = get_close_matches(key, names, 3, 0) or list(names)[:3]
        raise KeyError(f"The study {self.name!r} has no run {key!r}. Similar names: {', '.join(near)}.")

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[StudyRun]:
        return iter(self.runs)

    def __bool__(self) -> bool:
        return True

    @property
    def _summary(self) -> str:
        return summary(self._driving.counts, len(self.runs))

    def __repr__(self) -> str:
        return printable(f"<Study {self.name}: {self._summary}>")

    def _repr_html_(self) -> str:
        """Return a table with a row for each arm."""
        arms: dict[str, dict[str, int]] = {}
        for run in self.runs:
            row = arms.setdefault(arm_text(run.cell.arm), dict.fromkeys(STATUSES, 0))
            row[run.status] += 1
        shown_statuses = [status for status in STATUSES if any(row[status] for row in arms.values())]
        cells = ["arm", "runs", *shown_statuses]
        head = "".join(f'<th style="text-align: left">{escape(cell)}</th>' for cell in cells)
        body = ""
        for arm, row in arms.items():
            numbers = [sum(row.values()), *(row[status] for status in shown_statuses)]
            columns = "".join(f'<td style="text-align: right">{number}</td>' for number in numbers)
            body += f'<tr><td style="text-align: left">{escape(printable(arm))}</td>{columns}</tr>'
        title = escape(printable(f"{self.name}: {self._summary}"))
        return (
            f'<table aria-label="Study"><caption>{title}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )


def _find_again(study: weakref.ref[Study], store: Store) -> None:
    """Read again which runs of the study the store has."""
    if (of := study()) is not None:
        of._find_recorded_runs(store, add=True, again=True)


def _arms_text(arms: Mapping[str, Sequence[Label]]) -> str:
    return "; ".join(f"{factor}: {', '.join(map(str, labels))}" for factor, labels in arms.items()) or "none"
