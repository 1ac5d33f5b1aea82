"""What becomes of a call by what was said about it: it may run, it is refused, or a person is asked."""

from __future__ import annotations

import time
from typing import Any

from agentnb.core.events import ApprovalDecision, ApprovalRequest
from agentnb.core.json_data import same_json
from agentnb.core.messages import to_plain
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import reject
from agentnb.run.approvals.policy import Policy, Verdict
from agentnb.run.approvals.remembered import decide_as_before
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.refusals import Refusal

Said = Verdict | Refusal | ApprovalDecision
"""What the checks, a hook and the policy may say about a call."""


def apply(journal: Journal, frame: Frame, call: CallState, verdict: Said, arguments: dict[str, Any]) -> None:
    """Make a fact of what was said about the call with these arguments."""
    if isinstance(verdict, Refusal):
        journal.append(verdict.end, frame, call)
    elif verdict.decision == "reject":
        reject(journal, frame, call, verdict.reason, by=verdict.by or "policy")
    elif isinstance(verdict, ApprovalDecision):
        journal.append(verdict, frame, call)
    elif verdict.decision == "ask":
        if not decide_as_before(journal, frame, call, arguments):
            journal.append(_question(call, verdict, arguments), frame, call)
    else:
        looked_at = arguments if arguments is not call.arguments else None
        decision = ApprovalDecision.make(
            call_id=call.id,
            decision=verdict.decision,
            by=verdict.by,
            reason=verdict.reason,
            arguments=verdict.arguments if verdict.arguments is not None else looked_at,
        )
        journal.append(decision, frame, call)


def _question(call: CallState, verdict: Verdict, arguments: dict[str, Any]) -> ApprovalRequest:
    return ApprovalRequest.make(
        call_id=call.id,
        name=call.name,
        arguments=to_plain(arguments),  # a copy: a reader who changes it has not changed what runs (promise 5)
        reason=verdict.reason,
        deadline=time.time() + verdict.deadline if verdict.deadline is not None else None,
    )


def is_decided(call: CallState, arguments: dict[str, Any]) -> bool:
    """Whether the decision about a call holds for these arguments: an approval binds what was shown (promise 5)."""
    decision = call.decision
    if decision is None or decision.decision != "approve":
        return True
    shown = decision.arguments
    if shown is None and call.approval is not None:
        shown = call.approval.arguments
    return shown is None or shown is arguments or same_json(shown, arguments)


def questions_for(policy: Policy | None, frame: Frame) -> set[str]:
    """The questions of a recording that a policy can answer: not those about what has become of a lost call."""
    if policy is None:
        return set()
    asking = (call for call in frame.state.open.values() if call.status == "asking" and call.name in frame.tools)
    return {call.id for call in asking if call.approval is not None and not call.approval.unknown}
