"""A case: a world, a run with people, consumers and a store; and the story of what happened."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

import agentnb
from agentnb import AgentnbError, LimitReached, Loop, Run, RunCancelled, RunFailed, Snapshot, Store, UsageError, restore
from agentnb.analysis import messages
from agentnb.core.events import Event
from agentnb.errors import RecordingMissing, ReplayDiverged, StorageError
from agentnb.run.approvals.pending import Pending
from tests.simulation import model
from tests.simulation.choices import Choices
from tests.simulation.loop import EPOCH, Hang, VirtualLoop, run
from tests.simulation.people import (
    DECISIONS,
    FORKING,
    OF_A_QUESTION,
    PATIENCE,
    RESTLESS,
    Act,
    Person,
    draw_act,
    draw_acts,
)
from tests.simulation.store import Trouble, UnreliableDatabase, copied, draw_trouble
from tests.simulation.worlds import NOTES, Notes, Plan, Ran, build, draw_plan

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""The folder of the stores: in memory, if there is such a folder."""
CLEANS_UP = 5
"""Seconds after the end of a run, after which no effect of it may be in flight."""
IS_LOCKED = 30
"""Seconds, longer than any lock of a store."""
COMES_BACK = 2.5
"""Seconds after the end of a run within which waiting for it must return."""
FINE = re.compile(
    "configuration of the loop differs|until approve= is given again"
    "|call 'deaf' .* was cancelled with its run, and has not ended"
    "|are not written: .*database is locked"
)
"""Warnings that are expected."""
GENERATIONS = 3
"""The greatest number of restores and forks in a chain of runs."""
TRIES = 60
"""How often a run is resumed after failures of its model."""


@dataclass(frozen=True)
class Case:
    """Everything that is random in one simulation.

    order: the seed of the order of simultaneous callbacks, 0 for that of asyncio. policy: None, True, "rules", or the
    answers of a function to calls whose `n` is 0, 1, 2 ... acts: the acts of people, one after the other; later: their
    acts in each restored or forked run. watches: the acts of a watcher, each with the number of the event at which it
    acts. drives: how the run is advanced, and the number of events after which the consumer that advances it leaves.
    reads: the number of events after which each further consumer leaves; None: never.
    """

    plan: Plan
    order: int
    policy: Any
    limits: Mapping[str, float] | None
    breakpoints: tuple[str, ...]
    acts: tuple[Act, ...]
    later: tuple[Act, ...]
    watches: tuple[tuple[int, Act], ...]
    drives: tuple[str, int | None]
    reads: tuple[int | None, ...]
    trouble: Trouble | None
    attended: bool
    looks: tuple[int, ...]

    def lines(self) -> Iterator[str]:
        """Describe the case in text."""
        yield from self.plan.lines()
        yield f"order={self.order} policy={self.policy} limits={self.limits} breakpoints={self.breakpoints}"
        yield f"driven by {self.drives}, read by {list(self.reads)}, store: {self.trouble}, attended: {self.attended}"
        yield f"acts: {', '.join(map(str, self.acts)) or 'none'}"
        yield f"later: {', '.join(map(str, self.later)) or 'none'}"
        yield f"at events: {', '.join(f'{number}: {act.what} {act.which}' for number, act in self.watches) or 'none'}"

    @property
    def size(self) -> int:
        """The number of parts of the case."""
        return self.plan.size + len(self.acts) + len(self.later) + len(self.watches) + len(self.reads)


def draw_case(choices: Choices) -> Case:
    """Draw a random case."""
    part = choices.part
    words = ("ask", "approve", "reject", "edit", "deadline", "wait", "fail")
    given = part("given")
    return Case(
        plan=draw_plan(part("world")),
        order=given.below(1000),
        policy=given.pick(None, None, True, "rules", tuple(given.pick(*words) for _ in range(7))),
        limits=given.pick(None, None, None, None, {"calls": 4}, {"turns": 3}, {"seconds": 3.0}, {"tokens": 20}),
        breakpoints=given.pick((), (), (), (), ("call_start",), ("asking",), ("call_end",)),
        acts=draw_acts(part("acts"), 60),
        later=tuple(draw_act(one, FORKING) for one in part("later").many(8)),
        watches=tuple((one.below(60), draw_act(one, RESTLESS)) for one in part("watches").many(5, 40)),
        drives=(given.pick("await", "pull", "pull", "play", "step"), given.pick(None, None, None, given.below(30))),
        reads=tuple(one.pick(None, None, 1 + one.below(40)) for one in part("reads").many(2, 40)),
        trouble=draw_trouble(part("store")) if given.chance(40) else None,
        attended=not given.chance(25),
        looks=tuple(one.below(100) for one in part("looks").many(4, 40)),
    )


@dataclass
class Story:
    """The story of a case: its faults, the acts of people, and the events."""

    case: Case
    faults: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    events: Sequence[Event] = ()

    def lines(self) -> Iterator[str]:
        """Describe the story in text."""
        yield from self.case.lines()
        yield from self.log
        for event in self.events:
            fields = event.model_dump(mode="json", exclude_defaults=True, exclude={"run_id", "seq", "time", "path"})
            yield f"  {event.seq:3} {event.time % 1000:8.3f} {event.path:12} {event.type} {fields}"[:260]
        yield from (f"FAULT {fault}" for fault in self.faults)


def play(case: Case) -> Story:
    """Run a case in virtual time, and check what happened against the model."""
    story = Story(case)
    NOTES.clear()
    said = io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(_logged(said))
        stack.enter_context(redirect_stderr(io.StringIO()))  # messages about calls rejected by the headless policy
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        agentnb.headless("reject", after=3.0, attended=case.attended)
        stack.callback(agentnb.headless, None)
        folder = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY))) if case.trouble is not None else None
        )
        try:
            ended = run(lambda loop: _Live(case, story, loop, folder).live(), order=case.order)
            story.faults += [f"left running: {task}" for task in ended.left]
            story.faults += [f"an error that nobody took: {error}" for error in ended.errors]
        except Hang as hang:
            story.faults.append(f"a hang: {hang}")
    story.faults += [f"a warning: {one.message}" for one in caught if not FINE.search(str(one.message))]
    logged = [line for line in said.getvalue().splitlines() if "waits for its store" not in line]
    if logged:
        story.faults.append(f"logged: {chr(10).join(logged)[-800:]}")
    return story


@contextmanager
def _logged(to: io.StringIO) -> Iterator[None]:
    logger = logging.getLogger("agentnb")
    handler, propagates = logging.StreamHandler(to), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


@dataclass(frozen=True)
class _Image:
    """The state in which a process was killed: the file of its store, the functions that had run, its events."""

    file: Path
    ran: tuple[Ran, ...]
    events: tuple[Event, ...]


class _Live:
    """A case while it is being played."""

    def __init__(self, case: Case, story: Story, loop: VirtualLoop, folder: Path | None) -> None:
        self.case, self.story, self.loop, self.folder = case, story, loop, folder
        self.notes = Notes()
        self.images: list[_Image] = []
        self.store: Store | None = None
        self.disk: Store | None = None
        self.run = self._begin()
        rebuild = lambda: self._rebuilt("fork")  # noqa: E731 - shorter than a nested function
        self.person = Person(self.run, loop.time, rebuild, log=story.log, is_on_disk=self._is_on_disk)
        self.kept: dict[int, Any] = {}
        self.reading = 0
        self.done = False

    def fault(self, *faults: str, where: str = "the run") -> None:
        self.story.faults += [f"{where}: {fault}" for fault in faults]

    def _rebuilt(self, label: str) -> tuple[Loop, Notes]:
        notes = Notes(label)
        return build(self.case.plan, notes), notes

    def _begin(self) -> Run:
        case = self.case
        given: dict[str, Any] = {"limits": case.limits, "breakpoints": case.breakpoints}
        if self.folder is not None and case.trouble is not None:
            self.file = self.folder / "store.db"
            self.store, self.disk = Store(self.file), Store(self.file)
            given |= {"store": self.store, "name": "it"}
        run = build(case.plan, self.notes).start("go", approve=_policy(case.policy), **given)
        NOTES[run.id], self.notes.is_over = self.notes, lambda: run.state.over
        if self.store is not None and case.trouble is not None:
            self.database = UnreliableDatabase(
                self.store._database, case.trouble, now=self.loop.time, wait=self._wait, dies=self._die
            )
            self.store._database = self.database  # before any other write than that of the run's name
            self.notes.before_effect = self._check_intent
        return run

    # -- the run, its people and its consumers ---------------------------------------------------------------------

    async def live(self) -> None:
        """Play the run to its end, restore all snapshots and finish all forks, and replay the recording."""
        case, run = self.case, self.run
        if case.watches or case.looks:
            run.watch(self._watch(dict(case.watches)))
        around = [asyncio.create_task(self._consume(leaves), name="reader") for leaves in case.reads]
        around.append(asyncio.create_task(self._people(), name="people"))
        try:
            await self._drive()
        except Exception:
            self.fault(traceback.format_exc()[-1500:])
        if not run.state.over:
            self.fault(f"it does not end: {run!r}, pending {run.pending}, driven {run.driven}")
            run.cancel()
        self.done = True
        ended_at = self.loop.now
        came_back = ended_at + EPOCH - run.events[-1].time
        if came_back > COMES_BACK and not (case.trouble is not None and case.trouble.kind == "stalls"):
            self.fault(f"who waits for it comes back {came_back:.1f} s after its end")
        for task in around:
            try:
                await task
            except Exception:
                self.fault(traceback.format_exc()[-1500:], where=task.get_name())
        if (crash := run._driver.crash) is not None and not isinstance(crash, StorageError):
            self.fault("".join(traceback.format_exception(crash))[-1500:])
        await asyncio.sleep(CLEANS_UP)
        self.story.log.append(f"{ended_at:.2f} the run is over: {run.stop_reason}")
        self.story.events = tuple(run.events)
        if self.notes.running:
            self.fault(f"{self.notes.running} functions and models run on")
        self.fault(*self.person.faults)
        for number, state in self.kept.items():
            if to_jsonable_python(run.at(number).state.dump()) != state:
                self.fault(f"the state at event {number} was not what the events up to there fold to")
        self.fault(*model.faults(run, self.notes, self.person.said, has_policy=case.policy is not None))
        await asyncio.sleep(IS_LOCKED)
        self._check_store()
        await self._resume_all("", run, self.person)
        if self.person.forks:
            self._check_tables([run, *(fork for fork, _, _ in self.person.forks)])
        for image in self.images:
            await self._resume_from_disk(image)
        self._replay()
        for store in (self.store, self.disk):
            if store is not None:
                store.close()

    def _watch(self, acts: dict[int, Act]) -> Callable[[Any], None]:
        def watcher(news: Any) -> None:
            number = getattr(news, "seq", None)
            if number is None:
                return
            self._check_on_disk("a watcher", news)
            if number in self.case.looks and len(self.run.events) == number + 1:
                self.kept[number] = to_jsonable_python(self.run.state.dump())
            if (act := acts.pop(number, None)) is not None:
                self.person.act(act)

        return watcher

    async def _people(self) -> None:
        run = self.run
        for act in self.case.acts:
            await asyncio.sleep(act.after)
            if act.what in OF_A_QUESTION:
                for _ in range(PATIENCE):
                    if run.pending or run.state.over:
                        break
                    await asyncio.sleep(0.1)
            if self.done or run.state.over:
                return
            if act.what == "step":
                try:
                    await asyncio.wait_for(run.step("call"), 30)
                except (AgentnbError, TimeoutError) as error:
                    self.story.log.append(f"{self.loop.now:.2f} step {type(error).__name__}: {error}")
            else:
                self.person.act(act)
        for _ in range(2000):
            await asyncio.sleep(0.2)
            if self.done or run.state.over:
                return
            run.resume()
            for item in run.pending:
                self.person.attempt("approve", item)

    async def _consume(self, leaves: int | None) -> str:
        """Consume the events of the run and check their order; leave after `leaves` events, or never if it is None."""
        expected = 0
        events = aiter(self.run)
        self.reading += 1
        try:
            async for event in events:
                seq = getattr(event, "seq", None)
                if seq is None:
                    continue
                self._check_on_disk("a consumer", event)
                if seq != expected:
                    self.fault(f"a consumer is given event {seq} and waits for {expected}")
                expected = seq + 1
                if leaves is not None and expected >= leaves:
                    await self._leave(events)
                    return "left"
        except (RunFailed, RunCancelled, LimitReached) as error:
            return type(error).__name__
        finally:
            self.reading -= 1
        if self.run.state.over and expected != len(self.run.events):
            self.fault(f"a consumer has seen {expected} events of {len(self.run.events)}")
        return "end"

    async def _leave(self, events: Any) -> None:
        """Close this consumer. The run must continue if others still consume it."""
        before, others = len(self.run.events), self.reading - 1
        await events.aclose()
        for event in self.run.events[before:]:
            if others and event.type == "cancel" and "consumer" in getattr(event, "reason", ""):
                self.fault(f"a consumer has left, {others} others read it, and it is cancelled")

    async def _drive(self) -> None:
        run, (how, leaves) = self.run, self.case.drives
        for attempt in range(TRIES):
            if run.state.over:
                return
            try:
                match how:
                    case "await":
                        await run
                    case "pull":
                        await self._consume(leaves if attempt == 0 else None)
                    case "play":
                        run.play()
                        await run
                    case "step":
                        await self._step()
            except RunFailed:
                pass
            except (RunCancelled, LimitReached):
                return
            if not run.state.over:
                run.resume()

    async def _step(self) -> None:
        units: tuple[Any, ...] = ("event", "call", "turn", "phase")
        for number in range(2000):
            if self.run.state.over or self.run.state.failure is not None:
                return
            try:
                await self.run.step(units[zlib.crc32(bytes([number % 256])) % 4])
            except UsageError as error:
                if "under way" not in str(error):
                    raise
                await asyncio.sleep(0.1)
            if self.run.pending:
                await asyncio.sleep(0.1)

    # -- the store -------------------------------------------------------------------------------------------------

    @property
    def _is_broken(self) -> bool:
        """Whether the store refuses every further write (kind "full")."""
        return self.case.trouble is not None and self.case.trouble.kind == "full"

    def _wait(self, seconds: float) -> None:
        self.loop.now += seconds

    def _die(self) -> None:
        assert self.folder is not None
        file = copied(self.file, self.folder / f"killed{len(self.images)}.db")
        self.images.append(_Image(file, tuple(self.notes.ran), tuple(self.run.events)))

    def _is_on_disk(self, event: Event) -> bool:
        return (
            self.disk is None
            or self._is_broken
            or self.database.has_been_locked
            or self.disk.position(self.run.id) > event.seq
        )

    def _check_on_disk(self, who: str, event: Event) -> None:
        if not self._is_on_disk(event):
            self.fault(f"{who} is given event {event.seq}, and it is not on disk")

    def _check_intent(self, ran: Ran) -> None:
        """Check, before a tool has its effect, that another process would find its start on disk."""
        assert self.disk is not None
        started = any(
            event.type == "call_start" and (event.path, getattr(event, "call_id", "")) == (ran.path, ran.call_id)
            for event in self.disk.events(ran.run_id)
        )
        if not started:
            self.fault(f"{ran.name} runs for {ran.path}/{ran.call_id}, and its start is not on disk")

    def _check_store(self) -> None:
        if self.disk is None:
            return
        there, here = self.disk.events(self.run.id), list(self.run.events)
        if there != here[: len(there)]:
            self.fault("the store has other events than memory")
        if len(there) != len(here) and not self._is_broken:
            self.fault(f"the store has {len(there)} events, and memory has {len(here)}")

    # -- restored and forked runs ----------------------------------------------------------------------------------

    async def _resume_all(self, where: str, run: Run, person: Person, generation: int = 1) -> None:
        """Finish every snapshot and fork of a run, and the run itself if it was suspended."""
        if generation > GENERATIONS:
            return
        for number, (text, asked) in enumerate(person.snapshots):
            label = f"{where}snapshot {number}"
            await self._resume(label, Snapshot.from_json(text), asked, generation, is_policy_given=number % 2 > 0)
        for number, (fork, notes, at) in enumerate(person.forks):
            label, inherited = f"{where}fork {number} at {at}", len(fork.events)
            await self._finish(label, fork, notes, person.seen, generation)
            marks = [event.inherited for event in fork.events]
            if marks != sorted(marks, reverse=True) or any(marks[inherited:]) or not marks[0]:
                self.fault("it does not mark what it has inherited, and nothing else", where=label)
        if run.stop_reason == "suspended":
            snapshot = Snapshot.from_json(run.snapshot().to_json())
            await self._resume(f"{where}suspended", snapshot, [], generation, is_policy_given=True)

    async def _resume(
        self, where: str, snapshot: Snapshot, asked: Sequence[Pending], generation: int, *, is_policy_given: bool
    ) -> None:
        """Restore a snapshot and finish its run. The policy is given again, or not."""
        loop, notes = self._rebuilt(where)
        try:
            again = restore(snapshot, loop, **({"approve": _policy(self.case.policy)} if is_policy_given else {}))
            await self._finish(where, again, notes, asked, generation)
            self.fault(*model.faults_of_a_restore(snapshot.events, again, notes), where=where)
        except AgentnbError as error:
            self.fault(f"{type(error).__name__}: {error}", where=where)
        except Hang:
            raise
        except Exception:
            self.fault(traceback.format_exc()[-1500:], where=where)

    async def _resume_from_disk(self, image: _Image) -> None:
        """Restore and finish the run from the store of a killed process, as another process does."""
        where = f"killed at event {len(image.events)}"
        store = Store(image.file)
        try:
            snapshot = store.load("it")
        except RecordingMissing:
            if image.ran:
                self.fault(f"{len(image.ran)} functions ran, and the store has nothing of the run", where=where)
            return
        if tuple(snapshot.events) != image.events[: len(snapshot.events)]:
            self.fault("the store has other events than memory had", where=where)
        loop, notes = self._rebuilt(where)
        again = restore(snapshot, loop, store=store, approve=_policy(self.case.policy))
        await self._finish(where, again, notes, [], GENERATIONS)
        self.fault(*model.faults_of_a_restore(snapshot.events, again, notes, image.ran), where=where)
        store.close()

    async def _finish(self, where: str, again: Run, notes: Notes, asked: Sequence[Pending], generation: int) -> None:
        """Finish a run, check it against the model, and then do the same for its snapshots and forks.

        People decide about the questions that were pending when the run was saved (`asked`), perform their later acts,
        and then approve everything.
        """
        NOTES[again.id], notes.is_over = notes, lambda: again.state.over
        inherited = len(again.events)
        person = Person(again, self.loop.time, lambda: self._rebuilt(f"{where} fork"), log=self.story.log)
        for number, item in enumerate(asked):
            person.attempt(DECISIONS[number % len(DECISIONS)], item)
        for id in ("lr", "other") if generation % 2 else ():
            with suppress(AgentnbError):  # no agent waits for this answer
                again.answer(id, {"said": where})
        acts = iter(self.case.later)
        for _ in range(2000):
            if again.state.over:
                break
            if (act := next(acts, None)) is not None:
                person.act(act)
            else:
                for item in again.pending:
                    person.attempt("answer" if item.unknown else "approve", item)
            again.play()
            await asyncio.sleep(0.3)
            if again.state.failure is not None:
                again.resume()
        if not again.state.over:
            self.fault(f"it does not end: {again!r}, pending {again.pending}", where=where)
            again.cancel()
        with suppress(AgentnbError):
            await again
        if (crash := again._driver.crash) is not None and not isinstance(crash, StorageError):
            self.fault("".join(traceback.format_exception(crash))[-1500:], where=where)
        await asyncio.sleep(CLEANS_UP)
        if notes.running:
            self.fault(f"{notes.running} functions and models run on", where=where)
        found = model.faults(again, notes, person.said, has_policy=self.case.policy is not None, inherited=inherited)
        self.fault(*person.faults, *found, where=where)
        await self._resume_all(f"{where}, ", again, person, generation + 1)

    def _check_tables(self, runs: list[Run]) -> None:
        """Check that the tables count each request once, in the run that made it."""
        table = messages(runs)
        counted = table.loc[~table["inherited"], "input_tokens"].sum()
        used = sum(run.usage.get("input_tokens", 0) for run in runs)
        if counted != used:
            self.fault(f"the tables count {counted} tokens, and the runs have used {used}")

    def _replay(self) -> None:
        loop, notes = self._rebuilt("replay")
        replayed = agentnb.replay(self.run.snapshot(), loop)
        try:
            replayed.to(len(self.run.events) - 1)
        except ReplayDiverged as error:
            self.fault(f"{error}"[:800], where="the replay")
        if notes.ran or notes.asked:
            self.fault(f"it has asked {len(notes.asked)} models and run {len(notes.ran)} functions", where="the replay")


def _policy(policy: Any) -> Any:
    """Return the value for `approve=`."""
    if policy == "rules":
        return [
            {"tool": "asking", "decision": "ask", "deadline": 2},
            {"tool": "bad", "decision": "reject"},
            {"tool": "plain*", "arguments": {"n": 3}, "decision": "approve"},
            {"tool": "s*", "decision": "ask"},
            {"tool": "*", "decision": "approve"},
        ]
    if not isinstance(policy, tuple):
        return policy

    async def judge(call: Any) -> Any:
        n = call.arguments.get("n")
        what = policy[n % len(policy)] if isinstance(n, int) else "ask"
        call.arguments["n"] = 77  # this changes only a copy
        match what:
            case "wait":
                await asyncio.sleep(0.3)
                return True
            case "fail":
                raise KeyError("the policy")
            case "edit":
                return {"decision": "edit", "arguments": {"n": 5}}
            case "deadline":
                return {"decision": "ask", "deadline": 1.0}
        return {"approve": True, "reject": False, "ask": None}[what]

    return judge
