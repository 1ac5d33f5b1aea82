"""Admission: the rules by which a call may start, is refused, or needs approval.

A verdict (of the built-in checks, a hook or the policy) is valid only for the arguments that were checked. A decision
of a person is valid only for the arguments and the tool that the person was shown. The scheduler applies the rules; the
executor of the loop stores the verdicts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentnb.core.events import ApprovalDecision, ApprovalRequest
from agentnb.core.json import same_json, to_plain
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import reject, terminate
from agentnb.run.approvals.pending import question_of
from agentnb.run.approvals.policy import Policy, Verdict
from agentnb.run.approvals.remembered import apply_remembered, lapsed_reason
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.synthetic_results import Refusal

Finding = Verdict | Refusal | ApprovalDecision
"""The result of the checks of a call: of the built-in ones, of a hook, or of the policy."""


def is_decided(frame: Frame, call: CallState, arguments: dict[str, Any]) -> bool:
    """Return True if the decision about a call is valid for these arguments and for the tool as it is now.

    Return True also for a call without a decision: there is nothing to check again.
    """
    decision = call.decision
    if decision is None:
        return True
    decided_about = decision.tool_fingerprint
    if decided_about is not None and decided_about != frame.fingerprints.get(call.name, decided_about):
        return False
    if decision.decision != "approve":
        return True
    shown = decision.arguments
    if shown is None and call.approval is not None:
        shown = call.approval.arguments
    return shown is None or shown is arguments or same_json(shown, arguments)


def confirmed(finding: Finding, frame: Frame, call: CallState) -> Finding:
    """Return the finding to apply to a call, which may have been decided before for other arguments or another tool.

    If a person was asked about it, the person is asked again, regardless of the policy: the person has seen
    something other than what would run now. A refusal stays a refusal. Otherwise the finding is returned unchanged.
    """
    decision, question = call.decision, call.approval
    if not isinstance(finding, Verdict) or finding.decision in ("reject", "terminate"):
        return finding
    if question is None and (decision is None or decision.by not in ("remembered", "fork")):
        return finding
    since = f" (event {decision.seq})" if decision is not None else ""
    if decision is not None and decision.tool_fingerprint not in (None, frame.fingerprints.get(call.name)):
        change = f"The description or the schema of {call.name} has changed since this was decided{since}."
    else:
        change = f"What would run has changed since this was decided{since}."
    reason = f"{change} {finding.reason}" if finding.decision == "ask" and finding.reason else change
    return replace(finding, decision="ask", reason=reason, arguments=None)


def apply(finding: Finding, journal: Journal, frame: Frame, call: CallState, arguments: dict[str, Any]) -> None:
    """Record the result of the checks of a call: a refusal, a decision or a question.

    arguments: the arguments that were checked.
    """
    if isinstance(finding, Refusal):
        journal.append(finding.end, frame, call)
    elif finding.decision == "reject":
        reject(
            journal,
            frame,
            call,
            finding.reason,
            by=finding.by or "rule",
            note=finding.note,
        )
    elif finding.decision == "terminate":
        terminate(journal, frame, call, finding)
    elif isinstance(finding, ApprovalDecision):
        journal.append(finding, frame, call)
    elif finding.decision == "ask":
        # A remembered decision answers the question. Otherwise the question is written to disk before it is shown.
        if not apply_remembered(journal, frame, call, arguments):
            with journal.saying():
                change = lapsed_reason(journal, frame, call)
                journal.append(_question(call, finding, arguments, change, journal.now()), frame, call)
    else:
        checked = arguments if arguments is not call.arguments else None
        decision = ApprovalDecision(
            call_id=call.id,
            decision=finding.decision,
            by=finding.by or "rule",
            reason=finding.reason,
            note=finding.note,
            question=question_of(call),
            tool_fingerprint=frame.fingerprints.get(call.name),
            arguments=finding.arguments if finding.arguments is not None else checked,
        )
        journal.append(decision, frame, call)


def _question(call: CallState, verdict: Verdict, arguments: dict[str, Any], change: str, now: float) -> ApprovalRequest:
    return ApprovalRequest(
        call_id=call.id,
        name=call.name,
        arguments=to_plain(arguments),  # a copy: a reader who changes it has not changed what runs (promise 5)
        reason=f"{change} {verdict.reason}".strip() if change and change not in verdict.reason else verdict.reason,
        earlier=call.approval.seq if call.approval is not None else None,
        deadline=now + verdict.deadline if verdict.deadline is not None else None,
        seen=verdict.seen,
        note=verdict.note,
    )


def questions_for(policy: Policy | None, frame: Frame) -> set[str]:
    """Return the ids of the calls with a recorded question that a policy can answer.

    Calls that a crash has interrupted are left out: a policy cannot know how they have ended.
    """
    if policy is None:
        return set()
    asking = (call for call in frame.state.open.values() if call.status == "asking" and call.name in frame.tools)
    return {call.id for call in asking if call.approval is not None and not call.approval.unknown}
