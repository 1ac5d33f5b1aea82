"""Endings: how a call or a run gets its end where it did not come to one by itself. Safe from every thread."""

from __future__ import annotations

import time
from typing import Any

from agentnb.core.events import ApprovalDecision, CallEnd, ErrorInfo, RunEnd, StopReason
from agentnb.core.state import CallState
from agentnb.run.calling import current_call
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.portable import portable_text
from agentnb.run.refusals import end_in_words


def end_run(journal: Journal, reason: StopReason, why: str, error: ErrorInfo | None = None) -> None:
    """End the run, the innermost loop first: every call that is open gets its result, then its loop its end.

    A tool that ends its own run is left to return: its call gets the result it gives, and the end comes after it.
    """
    with journal.lock:
        if journal.state.over:
            return
        kept = {current_call.get()}
        for frame in reversed(journal.frames):
            for call in list(frame.state.open.values()):
                if (journal.run_id, frame.path, call.id) not in kept:
                    journal.append(end_in_words(call, why, "aborted"), frame, call)
            if frame.state.open and frame.above is not None:
                kept.add((journal.run_id, frame.above.path, frame.call))
            elif not frame.state.open and not frame.state.over:  # a watcher of these facts may have ended it meanwhile
                journal.append(RunEnd.make(reason=reason, error=error), frame)


def end_at_limit(journal: Journal, why: str) -> None:
    """End the run because a limit that was given to it is reached."""
    end_run(journal, "limit", why, ErrorInfo.make(type="LimitReached", message=why))


def reject(journal: Journal, frame: Frame, call: CallState, reason: str, *, by: str, **fields: Any) -> None:
    """Decide a call with no, and tell the model so; `fields` are the decision's."""
    reason = portable_text(reason)
    with journal.lock:
        decision = ApprovalDecision.make(call_id=call.id, decision="reject", by=by, reason=reason, **fields)
        journal.append(decision, frame, call)
        carry_out(journal, frame, call, decision)


def carry_out(journal: Journal, frame: Frame, call: CallState, decision: ApprovalDecision) -> None:
    """Give the call the end that was decided: the rejection, or the answer."""
    if call.decision is not decision:  # a watcher that was told of it has taken it back
        return
    words = f"Rejected: {decision.reason}" if decision.reason else "Rejected by the user."
    end = end_in_words(call, words, "rejected")
    if decision.decision == "answer":
        end = CallEnd.make(call_id=call.id, name=call.name, result=decision.result, outcome="answered")
    journal.append(end, frame, call)


def next_deadline(journal: Journal) -> float | None:
    """When the first of the calls that wait for a person will have waited long enough (epoch seconds)."""
    deadlines = (_deadline(call) for frame in journal.frames for call in frame.state.open.values())
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def expire(journal: Journal) -> None:
    """No answer by the deadline means no."""
    with journal.lock:
        for frame in list(journal.frames):
            for call in list(frame.state.open.values()):
                deadline = _deadline(call)
                if deadline is not None and deadline <= time.time():
                    reject(journal, frame, call, "no answer by the deadline", by="deadline")


def _deadline(call: CallState) -> float | None:
    return call.approval.deadline if call.status == "asking" and call.approval is not None else None
