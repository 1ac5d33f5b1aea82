"""Too late: the sentence about a decision that came after another one, or after the end of the run.

It names who has decided what, when, and in which run. Runs, studies, inboxes, workers and panels all use it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentnb.core.errors import AlreadyDecided
from agentnb.core.events import ApprovalDecision, Event, RunEnd
from agentnb.core.json import repair_text

DONE = {
    "approve": "approved",
    "reject": "rejected",
    "edit": "edited and approved",
    "replace": "replaced",
    "answer": "answered",
    "ask": "withdrew",
}
"""What an author has done, by the decision."""
BY = {
    "human": "a person",
    "code": "code",
    "rule": "a rule of the policy",
    "policy": "the policy",
    "deadline": "the deadline",
    "headless": "the policy for runs without a person",
    "remembered": "a remembered decision",
    "fork": "the fork",
    "loop": "the loop",
}
"""The authors of decisions in words, by `ApprovalDecision.by`; another value is the name of a function."""


@dataclass(frozen=True, slots=True)
class Made:
    """A decision that was made about a call. The fields are those of `ApprovalDecision`; `time` in epoch seconds."""

    decision: str
    by: str
    time: float
    reviewer: str | None = None
    earlier: int | None = None

    @classmethod
    def of(cls, event: ApprovalDecision) -> Made:
        """Return the decision of an event."""
        return cls(event.decision, event.by, event.time, event.reviewer, event.earlier)

    def __str__(self) -> str:
        """Return what was decided, by whom and when: `Ada approved it at 14:03:21`."""
        who = BY.get(self.by, repair_text(self.by))
        if self.by == "remembered" and self.earlier is not None:
            who = f"the decision of event {self.earlier}"
        if self.reviewer:
            name = repair_text(self.reviewer)
            who = name if self.by in ("human", "code") else f"{who}, by {name},"
        what = "that" if self.decision == "ask" else "it"
        return f"{who} {DONE.get(self.decision, self.decision)} {what} {at(self.time)}"


def at(seconds: float) -> str:
    """Return a time as text, with the date if it is not of today: `at 14:03:21`, `on 2026-11-28 at 14:03:21`."""
    then, today = time.localtime(seconds), time.localtime()
    clock = time.strftime("at %H:%M:%S", then)
    return clock if then[:3] == today[:3] else time.strftime("on %Y-%m-%d ", then) + clock


def decided_already(about: str, run: str, made: Made, withdrawal: Made | None = None, then: str = "") -> AlreadyDecided:
    """Return the error about a call that was decided already.

    about: the call in words. run: the name of its run. withdrawal: of the decision. then: what to do, a sentence.
    """
    how = f"{made}, and {withdrawal}" if withdrawal is not None else str(made)
    return AlreadyDecided(f"{about} is already decided: {how}, in the run {run}. {then}".rstrip())


def run_has_ended(about: str, run: str, reason: str | None, seconds: float | None) -> AlreadyDecided:
    """Return the error about a call whose run has ended before anybody has decided. reason: the stop reason."""
    how = f" ({reason.replace('_', ' ')})" if reason else ""
    when = f" {at(seconds)}" if seconds is not None else ""
    return AlreadyDecided(f"{about} is closed: its run has ended{how}{when}, the run {run}. Nothing was decided.")


def too_late(
    events: Sequence[Event],
    run: str,
    path: str,
    id: str,
    *,
    name: str = "",
    question: int | None = None,
    then: str = "",
) -> AlreadyDecided:
    """Return the error about a call that no longer waits, from the events of its run.

    run: the name of the run. path, id, name: those of the call. question: the number of the question, if it is known.
    then: a sentence about what to do.
    """
    about = f"The call {id!r}{f' of {name}' if name else ''}{f' in {path}' if path else ''}"
    made = [one for one in events if isinstance(one, ApprovalDecision) and (one.path, one.call_id) == (path, id)]
    decisions = [one for one in made if one.decision != "ask"]
    if question is not None:  # ids are not unique: a later call may have the same
        decisions = [one for one in decisions if one.question in (None, question)]
    if decisions:
        first = Made.of(decisions[-1])
        withdrawal = next((Made.of(one) for one in made if one.earlier == decisions[-1].seq), None)
        return decided_already(about, run, first, withdrawal, then)
    end = events[-1] if events else None
    if isinstance(end, RunEnd) and end.terminal:
        return run_has_ended(about, run, end.reason, end.time)
    return AlreadyDecided(f"{about} no longer waits for a decision, in the run {run}. {then}".rstrip())
