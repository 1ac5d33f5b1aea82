"""Remembered decisions: what a person decided once, decided again for the calls that are like that one.

A decision that is to be remembered says so itself (`ApprovalDecision.remember`). So the rule is as much a fact as the
decision is: folded with the state, there after a restore, and every decision that follows from it names it. A rule
answers only where a person would have been asked. What a policy or a hook has refused stays refused, and a call of
unknown outcome is always a person's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.core.events import ApprovalDecision, Decision, Remember
from agentnb.core.json_data import same_json
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import reject
from agentnb.run.approvals.pending import question_of
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal


@dataclass(frozen=True, slots=True)
class Remembered:
    """A decision that holds for later calls too.

    `event` is the number of the event that made it, at `time` (epoch seconds). `arguments` are those it holds for;
    None: for every call of the tool, whichever loop of the run makes it.
    """

    event: int
    decision: Decision
    tool: str
    arguments: dict[str, Any] | None
    reason: str
    by: str
    time: float
    reviewer: str | None = None

    @classmethod
    def of(cls, rule: ApprovalDecision) -> Remembered:
        """What the event says."""
        about = rule.name or "", rule.arguments, rule.reason
        return cls(rule.seq, rule.decision, *about, rule.by, rule.time, rule.reviewer)


def remembering(call: CallState, arguments: dict[str, Any], remember: Remember | None) -> dict[str, Any]:
    """The fields of a decision that is to be remembered."""
    if remember is None:
        return {}
    return {"remember": remember, "name": call.name, "arguments": arguments if remember == "arguments" else None}


def decide_as_before(journal: Journal, frame: Frame, call: CallState, arguments: dict[str, Any]) -> bool:
    """Decide a call as was decided about one like it; False where that was not to be remembered."""
    with journal.lock:
        rule = _rule_for(journal.state.rules, call.name, arguments)
        if rule is None:
            return False
        if rule.decision == "reject":
            reject(journal, frame, call, rule.reason, by="remembered", earlier=rule.seq)
        else:
            decision = ApprovalDecision.make(
                call_id=call.id,
                decision="approve",
                by="remembered",
                earlier=rule.seq,
                arguments=arguments,
                question=question_of(call),
            )
            journal.append(decision, frame, call)
        return True


def decide_those_waiting(journal: Journal) -> None:
    """A decision has just been remembered: the calls that are being asked about are decided by it too."""
    for frame in list(journal.frames):
        for call in list(frame.state.open.values()):
            if call.status == "asking" and call.approval is not None and not call.approval.unknown:
                decide_as_before(journal, frame, call, call.approval.arguments)


def _rule_for(rules: Sequence[ApprovalDecision], tool: str, arguments: Mapping[str, Any]) -> ApprovalDecision | None:
    """The newest rule for exactly this call, or else the newest for its tool."""
    of_tool = [rule for rule in reversed(rules) if rule.name == tool]
    if not of_tool:
        return None
    exact = (rule for rule in of_tool if rule.arguments is not None and same_json(rule.arguments, arguments))
    return next(exact, None) or next((rule for rule in of_tool if rule.remember == "tool"), None)
