"""Headless: who decides about calls that wait for a person when no person is present.

A script, or a notebook that a program executes, must not wait for a person for ever. There, the declared policy answers
the questions. Without a declared policy, the answer is no (ARCHITECTURE.md, 4. Promises). The decision is an event like
any other, and its reason explains how to declare another policy.

The presence of a person is not guessed: a decision is made here only if the environment has a reason to assume that no
person is present (`Environment.absence`). A page that has used one of our panels counts as a person, from then on.

Code may decide instead of a person: a script that steps a run and approves its calls, or a task that runs concurrently
with the one that awaits the run. A question is therefore left open for some seconds first, and longer if the run
continues in the background. A run that is stepped, or that a script has paused, is left to that code.

Two situations that only a person could end are ended here: a pause while a caller waits for the run (in a script, only
if a breakpoint or a step has caused the pause), and a question that code meets in several steps in a row.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentnb.core.errors import InvalidArguments, UsageError, printable
from agentnb.core.events import ApprovalDecision, CancelRequested, RunPaused
from agentnb.core.json import to_json_data
from agentnb.core.required_effects import Effect
from agentnb.core.state import CallState
from agentnb.run import environment
from agentnb.run.approvals.context import LiveContexts
from agentnb.run.approvals.outcomes import reject, terminate
from agentnb.run.approvals.pending import question_of
from agentnb.run.approvals.policy import FAILED, Policy, Verdict, make_policy, proposed_call
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate
from agentnb.run.journal import Journal
from agentnb.run.tasks import InFlight
from agentnb.run.validation import shown

POLICY_VARIABLE = "AGENTNB_HEADLESS"
ATTENDED_VARIABLE = "AGENTNB_ATTENDED"
PATIENCE = 5.0
"""The seconds for which a question is left to code that may decide it, if no policy is declared."""
DECLARED_PATIENCE = 1.0
"""The seconds for that if a policy is declared. They are fewer, because the answer of that policy is expected."""
IN_BACKGROUND = 60.0
"""The seconds for that if the run is in the background and no caller waits for it: a later cell may decide."""
STEPPED = 5.0
"""The seconds for that if several steps meet the question: some code steps the run to its end in a loop."""

_YES_OR_NO = {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class Headless:
    """A declaration of who decides if no person is present.

    `policy` decides, after the question was open for `after` seconds. `attended` declares whether a person is present;
    None if that is to be found out.
    """

    policy: Any = None
    after: float = PATIENCE
    attended: bool | None = None

    @property
    def absence(self) -> str | None:
        """The reason why no person can be asked here; None if a person may be present."""
        if self.attended is not None:
            return None if self.attended else "it was declared that nobody is"
        return None if _has_page else environment.current.absence()

    def decider(self) -> Policy:
        """Return the policy that answers. Raises UsageError if the declared value is not a policy."""
        policy = self.policy
        if policy in (None, False, "reject"):
            return lambda call, context: Verdict("reject")
        if isinstance(policy, str) and policy != "approve" and not policy.endswith(".json"):
            raise UsageError(f"headless(policy) takes 'approve', 'reject', a callable or rules, not {policy!r}.")
        made = make_policy(True if policy == "approve" else policy)
        assert made is not None  # it is only for None
        return made

    def __repr__(self) -> str:
        policy = "none declared, so reject" if self.policy is None else repr(self.policy)
        here = (
            f"no person is present: {self.absence}"
            if self.absence is not None
            else "a person may be present, and is asked"
        )
        return f"<Headless policy: {policy}, after {self.after:g} s; {here}>"


_declared: Headless | None = None
_has_page = False


def headless(policy: Any = "reject", *, after: float | None = None, attended: bool | None = None) -> Headless:
    """Declare who decides about calls that wait for a person if no person is present. Valid for this process.

    policy: `"reject"`, `"approve"`, or a policy as for `approve=` of `start`: rules, or a callable that takes the call.
    A call that the policy leaves to a person is rejected. With None, no policy is declared, and every call is rejected.
    after: the seconds for which a question is left to your own code first; 1 by default, and at least 60 if the run
    continues in the background and no caller waits for it. attended: False if no person is present, True if one is;
    None to let agentnb find out.

    Environment variables declare the same from outside; this call takes precedence: AGENTNB_HEADLESS=approve or reject,
    AGENTNB_ATTENDED=no or yes. Returns the declaration in force. Raises UsageError if `policy` is not a policy.
    """
    global _declared
    given: Any = after
    if given is not None and (not isinstance(given, (int, float)) or isinstance(given, bool) or given < 0):
        raise UsageError(f"headless(after=...) takes a number of seconds, not {after!r}.")
    if after is None:
        after = PATIENCE if policy is None else DECLARED_PATIENCE
    declared = Headless(policy, after, attended)
    declared.decider()
    _declared = declared
    return declared


def in_force() -> Headless:
    """Return the declaration that is in force: of `headless`, or else of the environment variables."""
    if _declared is not None:
        return _declared
    policy = os.environ.get(POLICY_VARIABLE, "").lower() or None
    if policy not in (None, "approve"):
        policy = "reject"  # an unknown value must not approve calls
    attended = _YES_OR_NO.get(os.environ.get(ATTENDED_VARIABLE, "").lower())
    return Headless(policy, PATIENCE if policy is None else DECLARED_PATIENCE, attended)


def note_page() -> None:
    """Note that a person has a panel open in a page: this process counts as attended from now on."""
    global _has_page
    _has_page = True


# -- the questions of a run --------------------------------------------------------------------------------------------


DECLARING = (
    'agentnb.headless("approve"), or with a callable or rules as for approve=; or AGENTNB_HEADLESS=approve in the'
    " environment"
)
"""The part of a message that says how to declare another policy."""

ANSWERS_WITHIN = 60.0
"""The seconds that an async policy has for its answer; no person is present to notice that it hangs."""


class Unattended:
    """Decides the questions of one run that no person can answer. Belongs to the event loop that drives the run."""

    def __init__(self, journal: Journal, gate: Gate, inflight: InFlight, contexts: LiveContexts) -> None:
        self._journal = journal
        self._gate = gate
        self._inflight = inflight
        self._contexts = contexts
        self._steps_in_vain = False
        self._waiting = 0
        self._waited_since = 0.0
        self._seen: dict[int, float] = {}
        """The time at which each question or pause was first seen, by the number of its event."""

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Note, for the duration of the context, that a caller waits for the run. Safe from every thread."""
        with self._journal.lock:
            if not self._waiting:
                self._waited_since = time.monotonic()
            self._waiting += 1
        if self._seen or self._journal.state.paused:  # the driver may sleep until the later time of a background run
            self._inflight.wakeup.nudge()
        try:
            yield
        finally:
            with self._journal.lock:
                self._waiting -= 1

    @property
    def needs_person(self) -> bool:
        """Whether the run is paused, or a call waits for a person."""
        return self._journal.state.paused or any(frame.state.asking for frame in self._journal.frames)

    def due(self) -> float | None:
        """Return the time (`time.monotonic`) of the next decision on a question or a pause; None if there is none."""
        if not self.needs_person:
            return None
        headless = in_force()
        questions = [due for _, _, due in self._open_questions(headless)]
        return min([*questions, *(due for _, due in self._pause(headless))], default=None)

    def stepped_in_vain(self) -> None:
        """Decide the questions that are due after a step without events: code that only steps does not answer them."""
        self._steps_in_vain = True
        try:
            self.decide()
        finally:
            self._steps_in_vain = False

    def _open_questions(self, headless: Headless) -> Iterator[tuple[Frame, CallState, float]]:
        state = self._journal.state
        if state.failure is not None or state.cancelled is not None or state.paused:
            return
        absent: bool | None = None
        for frame in list(self._journal.frames):
            for call in list(frame.state.asking.values()):
                if call.approval is None:
                    continue
                if absent is None:  # determined once, and only if there is a question
                    absent = headless.absence is not None
                if absent and (due := self._due(call.approval.seq, headless)) is not None:
                    yield frame, call, due

    def _due(self, question: int, headless: Headless) -> float | None:
        seen = self._seen.setdefault(question, time.monotonic())
        if self._is_waited_for:
            return max(seen, self._waited_since) + headless.after
        if self._steps_in_vain:
            return seen + max(STEPPED, headless.after)
        return seen + max(IN_BACKGROUND, headless.after) if self._gate.owner in ("await", "play") else None

    @property
    def _is_waited_for(self) -> bool:
        """Whether a caller waits for the run, or a consumer pulls its events."""
        return bool(self._waiting) or self._gate.owner == "pull"

    def _pause(self, headless: Headless) -> Iterator[tuple[RunPaused, float]]:
        """Yield the pause of a run that callers wait for, and the time at which the pause is ended."""
        state = self._journal.state
        if not state.paused or state.cancelled is not None or not self._is_waited_for or headless.absence is None:
            return
        paused = next(event for event in reversed(self._journal.events) if isinstance(event, RunPaused))
        if paused.by == "human" and not environment.current.hosted:
            return  # left to code; in a notebook, a cell that waits blocks all code after it
        newest = self._journal.events[-1].seq  # steps advance a paused run, and each restarts the time
        yield paused, max(self._seen.setdefault(newest, time.monotonic()), self._waited_since) + headless.after

    def _end_pause(self, headless: Headless, paused: RunPaused) -> None:
        """Resume the run if a step has paused it, or the policy is "approve" and no limit has; otherwise cancel it."""
        with self._journal.lock:
            if not self._journal.state.paused:
                return  # it was resumed meanwhile
            # To approve calls is not to approve another budget.
            if paused.by == "step" or (headless.policy == "approve" and paused.by != "limit"):
                self._journal.append(self._gate.resumed(self._journal.state, self._journal.events))
                return
            reason = "" if paused.reason == "paused" else f" ({paused.reason})"
            why = (
                f"paused{reason}, and no person is present to resume it: {headless.absence}. To continue, call"
                f" run.resume() in your code, or {'raise the limit' if paused.by == 'limit' else 'set no breakpoint'}."
            )
            self._journal.append(CancelRequested(reason=why))
        _tell(f"The run of {shown(self._journal.root.design.name)} was cancelled: it was {why}")

    def decide(self) -> None:
        """End a pause that is due, and let the policy decide the questions that are due, in a task if it is async."""
        headless, now = in_force(), time.monotonic()
        for paused, due in list(self._pause(headless)):
            if due <= now:
                self._end_pause(headless, paused)
        for frame, call, due in list(self._open_questions(headless)):
            effect = Effect("question", call.id, frame.path)
            if due > now or effect in self._inflight:
                continue
            verdict = self._verdict_of_policy(headless, frame, call)
            if isinstance(verdict, Verdict):
                self._carry_out(headless, frame, call, verdict)
            else:
                self._inflight.spawn(effect, partial(self._decide_later, headless, frame, call, verdict))

    async def _decide_later(self, headless: Headless, frame: Frame, call: CallState, said: Awaitable[Verdict]) -> None:
        try:
            verdict = await asyncio.wait_for(said, ANSWERS_WITHIN)
        except TimeoutError:
            verdict = Verdict("reject", f"The policy has not answered in {ANSWERS_WITHIN:g} s.")
        self._carry_out(headless, frame, call, verdict)

    def _verdict_of_policy(self, headless: Headless, frame: Frame, call: CallState) -> Verdict | Awaitable[Verdict]:
        asked, tool = call.approval, frame.tools.get(call.name)
        assert asked is not None
        if tool is None or asked.unknown:  # a policy decides whether a call may run, not whether it has run
            return Verdict("reject", asked.reason)
        context = partial(self._contexts.of, frame, call)
        return headless.decider()(proposed_call(call.id, call.name, asked.arguments, tool), context)

    def _carry_out(self, headless: Headless, frame: Frame, call: CallState, said: Verdict) -> None:
        with self._journal.lock:
            if frame.state.open.get(call.id) is not call or call.status != "asking":
                return  # it was decided meanwhile
            if said.arguments is not None:
                try:
                    frame.calls.bind(frame.tools[call.name], call, dict(said.arguments), frame.state)
                except InvalidArguments as error:
                    said = Verdict("reject", f"{FAILED}{error}")
            why = f"Nobody is there to decide: {headless.absence}."
            if said.decision == "terminate":
                terminate(
                    self._journal, frame, call, replace(said, by="headless", reason=f"{why} {said.reason}".strip())
                )
            elif said.decision in ("approve", "edit"):
                arguments = to_json_data(said.arguments) if said.arguments is not None else None
                decision = ApprovalDecision(
                    call_id=call.id,
                    decision=said.decision,
                    by="headless",
                    question=question_of(call),
                    tool_fingerprint=frame.fingerprints.get(call.name),
                    reason=f"{why} The policy declared for that approves.",
                    arguments=arguments,
                    note=said.note,
                )
                self._journal.append(decision, frame, call)
                return
            else:
                asked = call.approval.reason if call.approval is not None else ""
                failed = f"{asked}. " if asked.startswith(FAILED) else ""  # the reason why a person was asked
                reason = f"{failed}{why} {_reason_to_reject(headless, said)}"
                reject(self._journal, frame, call, reason, by="headless", note=said.note)
        _tell(
            f"The call of {shown(call.name)} with {shown(dict(call.arguments))} was rejected, because no person is"
            f" present to decide: {headless.absence}. To decide in advance: start(approve=...), or {DECLARING}."
        )


def _tell(words: str) -> None:
    """Write one line to stderr, which a notebook shows in the cell."""
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed or missing
        sys.stderr.write(f"agentnb: {printable(' '.join(words.split()))}\n")
        sys.stderr.flush()


def _reason_to_reject(headless: Headless, said: Verdict) -> str:
    """Return the reason for a rejection, for the model and for readers of the recording."""
    asked = f" {said.reason}" if said.reason and headless.policy is not None else ""
    policy = "no policy is declared for that" if headless.policy is None else "the policy declared for that says so"
    return f"The answer is no, because {policy}.{asked} To declare another: {DECLARING}."
