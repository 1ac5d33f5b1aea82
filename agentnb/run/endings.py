"""Endings: how a call or a run gets its end where it did not come to one by itself. Safe from every thread."""

from __future__ import annotations

import time

from agentnb.core.events import ApprovalDecision, CallEnd, ErrorInfo, RunEnd, StopReason
from agentnb.core.state import CallState, State
from agentnb.run.calling import current_call
from agentnb.run.journal import Journal
from agentnb.run.portable import portable

ABORTED = "Operation aborted"


def end_run(journal: Journal, reason: StopReason, why: str, error: ErrorInfo | None = None) -> None:
    """End the run: every call that is open gets its result, then the run its end.

    A tool that ends its own run is left to return: its call gets the result it gives, and the end comes after it.
    """
    with journal.lock:
        if journal.state.over:
            return
        here = current_call.get()
        for call in list(journal.state.open.values()):
            if here != (journal.run_id, call.id):
                journal.append(_refused(call, why, "aborted"), about=call)
        if not journal.state.open and not journal.state.over:  # a watcher of these facts may have ended it meanwhile
            journal.append(RunEnd.make(reason=reason, error=error))


def reject(journal: Journal, call: CallState, reason: str, *, by: str) -> None:
    """Decide a call with no, and tell the model so."""
    reason = portable(reason)
    words = f"Rejected: {reason}" if reason else "Rejected by the user."
    with journal.lock:
        decision = ApprovalDecision.make(call_id=call.id, decision="reject", by=by, reason=reason)
        journal.append(decision, about=call)
        journal.append(_refused(call, words, "rejected"), about=call)


def next_deadline(state: State) -> float | None:
    """When the first of the calls that wait for a person will have waited long enough (epoch seconds)."""
    deadlines = (_deadline(call) for call in state.open.values())
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def expire(journal: Journal) -> None:
    """No answer by the deadline means no."""
    with journal.lock:
        for call in list(journal.state.open.values()):
            deadline = _deadline(call)
            if deadline is not None and deadline <= time.time():
                reject(journal, call, "no answer by the deadline", by="deadline")


def _deadline(call: CallState) -> float | None:
    return call.approval.deadline if call.status == "asking" and call.approval is not None else None


def _refused(call: CallState, words: str, outcome: str) -> CallEnd:
    return CallEnd.make(call_id=call.id, name=call.name, result=words, is_error=True, outcome=outcome)
