"""Outcomes of decisions: the results of calls that were rejected or answered, or whose deadline has passed."""

from __future__ import annotations

from typing import Any

from agentnb.core.events import ApprovalDecision, CallEnd, CancelRequested
from agentnb.core.state import CallState
from agentnb.run.approvals.pending import question_of
from agentnb.run.approvals.policy import Verdict
from agentnb.run.event_data import text_or_empty
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.synthetic_results import synthetic_end


def reject(journal: Journal, frame: Frame, call: CallState, reason: str, *, by: str, **fields: Any) -> None:
    """Record the rejection of a call, and its result for the model. `fields`: more fields of the decision.

    Nothing is recorded if the call has ended in the meantime.
    """
    fields = {"question": question_of(call), **fields}
    with journal.lock:
        decision = ApprovalDecision(call_id=call.id, decision="reject", by=by, reason=text_or_empty(reason), **fields)
        carry_out(journal, frame, call, journal.append(decision, frame, call))


def terminate(journal: Journal, frame: Frame, call: CallState, verdict: Verdict) -> None:
    """Reject a call and cancel the run, because a policy decided to terminate."""
    by = verdict.by or "rule"
    with journal.lock:
        reject(journal, frame, call, verdict.reason, by=by, note=verdict.note)
        if journal.state.cancelled is None and not journal.state.over:
            reason = text_or_empty(verdict.reason) if verdict.reason else ""
            journal.append(CancelRequested(reason=f"ended by {by}" + (f": {reason}" if reason else "")))


def carry_out(journal: Journal, frame: Frame, call: CallState, decision: ApprovalDecision | None) -> None:
    """Record the result that follows from a decision: the rejection or the answer.

    decision: the recorded event. With None, or if it is no longer the call's decision, nothing is recorded.
    """
    if decision is None or call.decision is not decision:  # a watcher of the decision may have withdrawn it
        return
    by_person = decision.by in ("human", "code", "remembered", "fork")
    without_reason = "Rejected by the user." if by_person else "Not approved."
    text = f"Rejected: {decision.reason}" if decision.reason else without_reason
    end = synthetic_end(call, text, "rejected")
    if decision.decision == "answer":
        end = CallEnd(call_id=call.id, name=call.name, result=decision.result, outcome="answered")
    journal.append(end, frame, call)


def next_deadline(journal: Journal) -> float | None:
    """Return the earliest deadline of the calls that wait for a person (epoch seconds); None if there is none."""
    deadlines = (_deadline(call) for frame in journal.frames for call in frame.state.asking.values())
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def expire(journal: Journal) -> None:
    """Reject the waiting calls whose deadline has passed."""
    with journal.lock:
        for frame in list(journal.frames):
            for call in list(frame.state.asking.values()):
                deadline = _deadline(call)
                if deadline is not None and deadline <= journal.now():
                    reject(journal, frame, call, "no answer by the deadline", by="deadline")


def _deadline(call: CallState) -> float | None:
    return call.approval.deadline if call.status == "asking" and call.approval is not None else None
