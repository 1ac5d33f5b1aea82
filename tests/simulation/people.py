"""People: they decide, edit, replace, answer, undo, remember, steer, pause, resume, step, fork, leave and cancel.

Their acts are drawn before the run starts: when, what, and about which pending call. An act that agentnb refuses is not
a fault. The effects of acts are compared with the recording later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentnb import AgentnbError, Loop, Run
from agentnb.core.events import Event
from agentnb.run.approvals.pending import Pending
from tests.simulation.choices import Choices
from tests.simulation.worlds import NOTES, Notes

DECISIONS = ("approve", "reject", "edit", "replace", "answer")
OF_A_QUESTION = frozenset({*DECISIONS, "remember", "regret", "keep"})
"""Acts that need a question; a person waits some time for one."""
PATIENCE = 20
"""How long a person waits for a question, in tenths of a second."""
CALM = (
    *("approve",) * 5,
    *("regret", "late", "late"),
    *("reject", "edit", "replace", "answer", "regret", "undo", "remember", "forget", "late"),
    *("steer", "follow_up", "withdraw", "snapshot", "keep", "fork", "resume", "play"),
)
FORKING = (*CALM, *("fork",) * 6, *("keep",) * 3)
RESTLESS = (*CALM, "pause", "pause", "resume", "resume", "breakpoint", "step", "cancel")


@dataclass(frozen=True)
class Act:
    """One act of a person, `after` a number of seconds; `which` selects one of the pending calls."""

    after: float
    what: str
    which: int

    def __str__(self) -> str:
        return f"+{self.after:g}s {self.what} {self.which}"


@dataclass(frozen=True)
class Said:
    """A decision of a person: its kind, the question as it was shown, and the number of its event."""

    what: str
    item: Pending
    event: int
    arguments: dict[str, Any] | None = None


@dataclass
class Person:
    """A person who acts on a run, and notes what happened."""

    run: Run
    now: Callable[[], float]
    rebuild: Callable[[], tuple[Loop, Notes]]
    """A function that constructs the loop for a fork, with its own notes."""
    said: list[Said] = field(default_factory=list)
    seen: list[Pending] = field(default_factory=list)
    snapshots: list[tuple[str, list[Pending]]] = field(default_factory=list)
    """Each snapshot as JSON, with the questions pending then; the act `keep` takes one while a question is pending."""
    forks: list[tuple[Run, Notes, int]] = field(default_factory=list)
    """Each fork, its notes, and the event at which it was made."""
    log: list[str] = field(default_factory=list)
    is_on_disk: Callable[[Event], bool] = lambda event: True
    faults: list[str] = field(default_factory=list)

    def act(self, act: Act) -> None:
        """Perform an act and note what happened. It must take no time, whatever the state of the store."""
        before, began = len(self.run.events), self.now()
        try:
            did = self._do(act, before)
        except AgentnbError as error:
            did = f"{type(error).__name__}: {error}"
        if self.now() > began:
            self.faults.append(f"a person who does {act.what} waits for {self.now() - began:.1f} s")
        if did:
            self.log.append(f"{self.now():.2f} after event {before - 1}: {act.what} {did}")

    def _do(self, act: Act, before: int) -> str:
        run, which = self.run, act.which
        waiting = run.pending
        self.seen += [item for item in waiting if item not in self.seen]
        item = waiting[which % len(waiting)] if waiting else None
        match act.what:
            case "late" if late := [item for item in self.seen if item not in waiting]:
                # The question was answered, or withdrawn and asked again: this must decide nothing.
                return self.decide(DECISIONS[which % len(DECISIONS)], late[-1 - which % len(late)])
            case "remember" if item is not None:
                run.approve(item, remember="tool" if which % 2 else "arguments")
                return item.id
            case what if what in DECISIONS:
                return self.decide(what, item) if item is not None else ""
            case "regret" if item is not None:
                did = self.decide("edit" if which % 4 > 1 else "approve", item)
                run.undo(item)
                if which % 2:
                    self.decide("approve", item)  # like a second click on the old question
                return did
            case "undo" if run.decided:
                run.undo(decided := run.decided[which % len(run.decided)])
                return decided.id
            case "forget" if run.remembered:
                run.forget(run.remembered[0])
            case "steer" | "follow_up":
                getattr(run, act.what)(f"{act.what} {before}")
            case "withdraw":
                run.withdraw("steering" if which % 2 else "follow_up")
            case "pause" | "resume" | "play":
                return str(getattr(run, act.what)())
            case "breakpoint":
                run.breakpoints.add("call_end" if which % 2 else "message")
            case "snapshot" | "keep" if len(self.snapshots) < 3:
                self.snapshots.append((run.snapshot().to_json(), waiting))
                return f"of {len(run.events)} events"
            case "fork" if before and len(self.forks) < 2:
                loop, notes = self.rebuild()
                at = which * 7919 % before
                fork = run.fork(at=at, loop=loop)
                NOTES[fork.id] = notes
                self.forks.append((fork, notes, at))
                return f"at {at}"
            case "cancel" if which == 0:
                run.cancel("enough")
            case _:
                return ""
        return "done"

    def attempt(self, what: str, item: Pending) -> None:
        """Decide about a question; the decision may be refused."""
        try:
            self.decide(what, item)
        except AgentnbError as error:
            self.log.append(f"{self.now():.2f} {what} of {item.id}@{item.event} {type(error).__name__}: {error}")

    def decide(self, what: str, item: Pending) -> str:
        """Decide about the question as it was shown, and note the event of the decision."""
        run = self.run
        before = len(run.events)
        arguments: dict[str, Any] | None = None
        if what == "approve":
            run.approve(item)
        elif what == "reject":
            run.reject(item, "no")
        elif what == "edit":
            arguments = {**item.arguments, "n": 7} if "n" in item.arguments else {**item.arguments}
            run.edit(item, arguments)
        elif what == "replace":
            arguments = {**item.arguments, "n": 8}
            run.replace(item, "good", arguments)
        else:
            run.answer(item, {"said": 1})
        made = next((e for e in run.events[before:] if e.type == "approval_decision"), None)
        if item.run_id != run.id:
            self.faults.append(f"{what} of {item.id}, which was asked in the run {item.run_id}, is taken by {run.id}")
        if made is not None:
            self.said.append(Said(what, item, made.seq, arguments))
            if not self.is_on_disk(made):
                self.faults.append(f"{what} of {item.id} has returned, and event {made.seq} is not on disk")
        return f"{item.id}@{item.event} ({item.name})"


def draw_act(choices: Choices, kinds: Sequence[str] = CALM) -> Act:
    """Draw one act of a person."""
    return Act(choices.pick(0.05, 0.0, 0.0, 0.2, 0.7, 2.0), choices.pick(*kinds), choices.below(8))


def draw_acts(choices: Choices, most: int) -> tuple[Act, ...]:
    """Draw the acts of a person."""
    kinds = RESTLESS if choices.chance(60) else CALM
    return tuple(draw_act(one, kinds) for one in choices.many(most, 93))
