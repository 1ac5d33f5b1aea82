"""What people decide about calls: the decisions, each one a fact that names who made it.

A decision binds what was shown (DESIGN, promise 5): an approved call runs with exactly the arguments of its request;
edited arguments are checked against the tool's schema before anything changes. The first decision stands, unless it is
taken back before the call begins; then the call is asked about again, and both are facts. What is to be remembered is
said with the decision itself, so that there is no moment at which only one of the two is a fact.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from agentnb.core.errors import AlreadyDecided, UnknownCall, UsageError
from agentnb.core.events import ApprovalDecision, ApprovalRequest, Remember
from agentnb.core.messages import to_plain
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import carry_out, expire
from agentnb.run.approvals.outcomes import reject as refuse
from agentnb.run.approvals.pending import Decided, Pending, question_about_lost, ready, schemas, waiting
from agentnb.run.approvals.remembered import Remembered, decide_those_waiting, remembering
from agentnb.run.frame import Frame
from agentnb.run.given import check_text
from agentnb.run.journal import Journal
from agentnb.run.portable import portable


class Decisions:
    """The part of a run that people decide with; every method is safe from every thread."""

    def __init__(
        self, journal: Journal, lost: Callable[[], list[tuple[Frame, CallState]]], begin: Callable[[], None]
    ) -> None:
        """`lost` gives the calls that were started by a process that is gone, and have not been asked about yet.

        `begin` makes the run's first fact one, where it is not yet.
        """
        self.id = journal.run_id
        """Of the run that is decided about."""
        self._journal = journal
        self._lost = lost
        self._begin = begin

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """While a thread holds this, no other makes anything a fact: what it looks at is what it decides about."""
        return self._journal.lock

    def tool_schemas(self, path: str | None = None) -> dict[str, dict[str, Any]]:
        """The JSON schema of each tool's arguments; with `path`, of the tools of the loop that runs there."""
        return schemas(self._journal.frames, path)

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for a person, in the order they were made; an answer that came now would count."""
        with self._journal.lock:
            asked, now = waiting(self._journal.frames, self._lost()), time.time()
        return [one for one in asked if one.deadline is None or now < one.deadline]

    @property
    def decided(self) -> list[Decided]:
        """The calls that are decided and have not begun, in the order they were made; `undo` takes one back."""
        with self._journal.lock:
            return ready(self._journal.frames)

    def approve(self, id: str | Pending, *, remember: Remember | None = None) -> None:
        """Let the call of this id, or that `pending` gave, run as shown. Raises UnknownCall, or AlreadyDecided.

        remember: approve later calls of this run without asking, and those that wait now: every one of the same `tool`,
        or those of it with exactly the same `arguments`.
        """
        with self._journal.saying():
            frame, call = self._waiting(id)
            rule = _remembering(call, remember)
            self._journal.append(ApprovalDecision.make(call_id=call.id, decision="approve", **rule), frame)
            if rule:
                decide_those_waiting(self._journal)

    def reject(self, id: str | Pending, reason: str = "", *, remember: Remember | None = None) -> None:
        """Do not let the call run; the model is told why. `remember` as in `approve`. Raises as it does."""
        check_text("reject(id, reason)", reason)
        with self._journal.saying():
            frame, call = self._waiting(id)
            rule = _remembering(call, remember)
            refuse(self._journal, frame, call, reason, by="human", **rule)
            if rule:
                decide_those_waiting(self._journal)

    def undo(self, id: str | Decided | Pending) -> None:
        """Take back what was decided about a call that has not begun: it is asked about again, with the time it had.

        id: the call's, or the call as `decided` gives it, or as `pending` gave it. What the decision was to be
        remembered for is forgotten with it. Raises UnknownCall where no such call is open, UsageError where it is not
        decided or has begun.
        """
        with self._journal.saying():
            frame, call = self._decided(id)
            decision, asked = call.decision, call.approval
            assert decision is not None
            back = ApprovalDecision.make(call_id=call.id, decision="ask", earlier=decision.seq)
            self._journal.append(back, frame, call)
            changed = decision.decision in ("edit", "replace")
            arguments = decision.arguments if decision.arguments is not None and not changed else call.arguments
            had = asked.deadline - asked.time if asked is not None and asked.deadline is not None else None
            again = ApprovalRequest.make(
                call_id=call.id,
                name=call.name,
                arguments=asked.arguments if asked is not None else arguments,
                reason=asked.reason if asked is not None else f"What {decision.by} decided was taken back.",
                deadline=time.time() + had if had is not None else None,
                unknown=asked.unknown if asked is not None else False,
            )
            self._journal.append(again, frame, call)

    def forget(self, event: int | Remembered) -> None:
        """Decide no more calls by a remembered decision, one of `remembered` or its number. Raises UsageError.

        What it has decided already stands.
        """
        event = event.event if isinstance(event, Remembered) else event
        with self._journal.saying():
            rule = next((rule for rule in self._journal.state.rules if rule.seq == event), None)
            if rule is None:
                known = ", ".join(str(rule.seq) for rule in self._journal.state.rules) or "none"
                raise UsageError(f"No decision of event {event} is remembered; remembered: {known}.")
            if self._journal.state.over:
                raise UsageError("The run is over; there is nothing more to decide.")
            self._journal.append(ApprovalDecision.make(call_id="", decision="ask", earlier=event))

    def edit(self, id: str | Pending, arguments: dict[str, Any]) -> None:
        """Let the call run with other arguments. Raises InvalidArguments, UnknownCall, or AlreadyDecided."""
        with self._journal.saying():
            self._replace(*self._waiting(id), "edit", None, arguments)

    def replace(self, id: str | Pending, name: str, arguments: dict[str, Any]) -> None:
        """Let another tool run instead. Raises InvalidArguments, UnknownCall (also for the tool), or AlreadyDecided."""
        with self._journal.saying():
            self._replace(*self._waiting(id), "replace", name, arguments)

    def answer(self, id: str | Pending, result: Any) -> None:
        """Give the call's result instead of running it, or the answer that a suspended run goes on with.

        A run that was suspended is restored first, and answered before it goes on. Raises UnknownCall, AlreadyDecided,
        or UsageError where it is not restored.
        """
        with self._journal.saying():
            if self._answer_what_it_was_suspended_for(id, result):
                return
            frame, call = self._waiting(id)
            decision = ApprovalDecision.make(call_id=call.id, decision="answer", result=portable(result))
            self._journal.append(decision, frame)
            # A watcher that is told of the decision may have ended the run, and the call with it.
            carry_out(self._journal, frame, call, decision)

    def _answer_what_it_was_suspended_for(self, id: str | Pending, result: Any) -> bool:
        if not isinstance(id, str) or self._find(id) is not None:
            return False
        for frame in self._journal.frames:
            if (fact := frame.design.answer_to(id, portable(result), frame.state)) is not None:
                if self._journal.state.over:
                    raise UsageError(
                        "The run is suspended, and over here; restore(run.snapshot(), loop) gives one that goes on from"
                        f" there. Answer {id!r} in that."
                    )
                self._begin()
                self._journal.append(fact, frame)
                self._journal.remember()
                return True
        return False

    def _replace(
        self, frame: Frame, call: CallState, decision: str, name: str | None, arguments: dict[str, Any]
    ) -> None:
        tool = frame.tools.get(name if name is not None else call.name)
        if tool is None:
            raise UnknownCall(f"There is no tool {name or call.name!r}; there are {', '.join(sorted(frame.tools))}.")
        frame.design.bind(tool, call, to_plain(arguments), frame.state)  # raises where they do not fit
        made = ApprovalDecision.make(call_id=call.id, decision=decision, name=name, arguments=portable(arguments))
        self._journal.append(made, frame)

    def _waiting(self, one: str | Pending) -> tuple[Frame, CallState]:
        """The call, if it waits. A deadline that has passed has decided it, even if nobody has looked yet."""
        id = one.id if isinstance(one, Pending) else one
        found = self._find(id)
        if found is None:
            waiting = ", ".join(f"{p.id} ({p.name})" for p in self.pending) or "none"
            raise UnknownCall(f"No call {id!r} is waiting for a decision; waiting: {waiting}.")
        frame, call = found
        if found in self._lost():
            self._journal.append(question_about_lost(call), frame, call)
        if call.status == "asking":
            deadline = call.approval.deadline if call.approval is not None else None
            if deadline is None or time.time() < deadline:
                return frame, call
            expire(self._journal)
        decided = call.decision
        how = f"{decided.decision} by {decided.by}" if decided is not None else call.status
        raise AlreadyDecided(f"The call {id!r} is decided already: {how}.")

    def _decided(self, one: str | Decided | Pending) -> tuple[Frame, CallState]:
        """The call, if it is decided and has not begun."""
        id = one.id if isinstance(one, Decided | Pending) else one
        found = self._find(id)
        if found is None:
            raise UnknownCall(f"No call {id!r} is open.")
        frame, call = found
        if call.status != "ready":
            stands = {"proposed": "is not decided", "asking": "is not decided", "running": "has begun"}
            raise UsageError(f"The call {id!r} {stands.get(call.status, 'is over')}; there is nothing to take back.")
        return frame, call

    def _find(self, id: Any) -> tuple[Frame, CallState] | None:
        """The call of that id, or of that path and id: one that waits before one that does not."""
        if not isinstance(id, str):
            return None
        found = [
            (frame, calls[name])
            for frame in self._journal.frames
            for name in {id: None, id.removeprefix(f"{frame.path}/"): None}
            for calls in (frame.state.open, frame.state.calls)
            if name in calls
        ]
        lost = self._lost()
        return min(found, key=lambda one: one[1].status != "asking" and one not in lost, default=None)


def _remembering(call: CallState, remember: Remember | None) -> dict[str, Any]:
    """The fields of a decision about a call that is to be remembered. Raises UsageError where it cannot be."""
    if remember not in (None, "tool", "arguments"):
        raise UsageError(f"remember= takes 'tool' or 'arguments', not {remember!r}.")
    asked = call.approval
    if remember is not None and asked is not None and asked.unknown:
        raise UsageError("Whether a call of unknown outcome runs again is decided each time; it cannot be remembered.")
    return remembering(call, asked.arguments if asked is not None else call.arguments, remember)
