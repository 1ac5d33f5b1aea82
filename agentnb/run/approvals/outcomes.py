"""What comes of a decision: the end of a call that was rejected or answered, also by nobody in time."""

from __future__ import annotations

from typing import Any

from agentnb.core.events import ApprovalDecision, CallEnd, CancelRequested
from agentnb.core.state import CallState
from agentnb.run.approvals.pending import question_of
from agentnb.run.approvals.policy import Verdict
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.portable import portable_text
from agentnb.run.synthetic_results import end_in_words


def reject(journal: Journal, frame: Frame, call: CallState, reason: str, *, by: str, **fields: Any) -> None:
    """Decide a call with no, and tell the model so; `fields` are the decision's."""
    fields = {"question": question_of(call), **fields}
    with journal.lock:
        decision = ApprovalDecision(call_id=call.id, decision="reject", by=by, reason=portable_text(reason), **fields)
        carry_out(journal, frame, call, journal.append(decision, frame, call))


def terminate(journal: Journal, frame: Frame, call: CallState, verdict: Verdict) -> None:
    """Decide a call with no, and end the run, because a policy says so."""
    by = verdict.by or "rule"
    with journal.lock:
        reject(journal, frame, call, verdict.reason, by=by)
        if journal.state.cancelled is None and not journal.state.over:
            why = portable_text(verdict.reason) if verdict.reason else ""
            journal.append(CancelRequested(reason=f"ended by {by}" + (f": {why}" if why else "")))


def carry_out(journal: Journal, frame: Frame, call: CallState, decision: ApprovalDecision | None) -> None:
    """Give the call the end that was decided: the rejection, or the answer. `decision` is the recorded one, if any."""
    if decision is None or call.decision is not decision:  # a watcher that was told of it has taken it back
        return
    words = f"Rejected: {decision.reason}" if decision.reason else "Rejected by the user."
    end = end_in_words(call, words, "rejected")
    if decision.decision == "answer":
        end = CallEnd(call_id=call.id, name=call.name, result=decision.result, outcome="answered")
    journal.append(end, frame, call)


def next_deadline(journal: Journal) -> float | None:
    """When the first of the calls that wait for a person will have waited long enough (epoch seconds)."""
    deadlines = (_deadline(call) for frame in journal.frames for call in frame.state.asking.values())
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def expire(journal: Journal) -> None:
    """No answer by the deadline means no."""
    with journal.lock:
        for frame in list(journal.frames):
            for call in list(frame.state.asking.values()):
                deadline = _deadline(call)
                if deadline is not None and deadline <= journal.now():
                    reject(journal, frame, call, "no answer by the deadline", by="deadline")


def _deadline(call: CallState) -> float | None:
    return call.approval.deadline if call.status == "asking" and call.approval is not None else None
